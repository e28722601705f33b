/* pipelines/runs.c - runs: created, asked for things, ended */
#include "pipelines/runs.h"

#include <ctype.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/near.h"
#include "pipelines/cache.h"
#include "pipelines/catalog.h"
#include "pipelines/flow.h"
#include "pipelines/runs_int.h"
#include "server/auth.h"
#include "server/server.h"

enum { WORKFLOW_MAX = 57 };     /* with its end 63: a name of Kubernetes' */

/* ------------------------------------------------------------ create */

struct creation {
    const struct run_request *q;
    const char *text, *flow_text;
    size_t text_n;
    const json_t *flow;
    json_t *doc;
    int (*also)(sqlite3 *db, void *arg, const json_t *run, struct err *err);
    void *arg;
};

/* Letters, digits, '-' and '.' of a name; what else it has becomes '-'. */
static void plain_name(const char *name, char *out, size_t size)
{
    size_t n = 0;

    for (const char *p = name; *p && n + 1 < size; p++) {
        char c = (char)tolower((unsigned char)*p);
        bool fine = isalnum((unsigned char)c) || (n && strchr("-.", c));
        if (fine || (n && out[n - 1] != '-'))
            out[n++] = fine ? c : '-';
    }
    while (n && strchr("-.", out[n - 1]))
        n--;
    out[n] = 0;
    if (!n)
        snprintf(out, size, "run");
}

static void random_end(char out[6])
{
    static const char letters[] = "bcdfghjklmnpqrstvwxz2456789";
    unsigned char b[5];

    if (getrandom(b, sizeof b, 0) != (ssize_t)sizeof b)
        abort();
    for (int i = 0; i < 5; i++)
        out[i] = letters[b[i] % (sizeof letters - 1)];
    out[5] = 0;
}

static int name_taken(sqlite3 *db, const char *project, const char *name, struct err *err)
{
    sqlite3_stmt *st = store_sql(db, "SELECT 1 FROM runs WHERE project = ? AND "
                                 "json_extract(doc, '$.workflow') = ?", err);

    if (!st || store_bind(st, err, "ss", project, name) < 0)
        return -(int)err->code;
    int rc = store_step(st, err);
    if (rc > 0)
        sqlite3_reset(st);
    return rc;
}

/* The workflow's own name when it has one and nobody had it, else with an end that is new. */
static int name_workflow(sqlite3 *db, struct creation *c, struct err *err)
{
    char base[WORKFLOW_MAX + 1], name[WORKFLOW_MAX + 8], end[6];
    bool own = !json_is_true(json_object_get(c->flow, "generate")) &&
               !strcmp(text_of(c->flow, "dialect"), "argo");
    int rc;

    plain_name(text_of(c->flow, "name"), base, sizeof base);
    snprintf(name, sizeof name, "%s", base);
    while (!own || (rc = name_taken(db, c->q->project, name, err)) != 0) {
        if (own && rc < 0)
            return rc;
        random_end(end);
        snprintf(name, sizeof name, "%s-%s", base, end);
        own = true;
    }
    json_object_set_new(c->doc, "workflow", json_string(name));
    if (!*text_of(c->doc, "name"))
        json_object_set_new(c->doc, "name", json_string(name));
    return 0;
}

static int touch_experiment(sqlite3 *db, const json_t *run, struct err *err)
{
    OWN_JSON json_t *doc = NULL;

    if (rows_read(db, &rows_experiments, text_of(run, "project"), text_of(run, "experiment"), &doc,
                  err) < 0)
        return -(int)err->code;
    json_object_set(doc, "last_run", json_object_get(run, "created"));
    return rows_update(db, &rows_experiments, doc, err);
}

static int create(sqlite3 *db, void *arg, struct err *err)
{
    struct creation *c = arg;
    struct record e = { .type = "run.created" };
    char digest[65];

    if (c->text) {
        if (rows_text_put(db, c->text, c->text_n, c->flow_text, digest, err) < 0)
            return -(int)err->code;
        json_object_set_new(c->doc, "digest", json_string(digest));
    }
    if (name_workflow(db, c, err) < 0 || touch_experiment(db, c->doc, err) < 0 ||
        rows_insert(db, &rows_runs, c->doc, err) < 0)
        return -(int)err->code;
    snprintf(e.run, sizeof e.run, "%s", text_of(c->doc, "id"));
    e.body = json_pack("{s:O, s:O}", "digest", json_object_get(c->doc, "digest"), "parameters",
                       json_object_get(c->doc, "parameters"));
    int rc = runs_log_add(db, &e, err);
    record_done(&e);
    return rc < 0 || !c->also ? rc : c->also(db, c->arg, c->doc, err);
}

/* What is to be run: of the request itself, or of the version that it names. */
struct source {
    json_t *flow, *version;
    char *flow_text;
};

static void source_done(struct source *f)
{
    json_decref(f->flow);
    json_decref(f->version);
    free(f->flow_text);
}

static int find_source(struct server *s, const struct run_request *q, struct source *out,
                       struct err *err)
{
    if (q->pipeline || q->version)
        if (versions_get(s, q->project, q->pipeline, q->version, &out->version, err) < 0)
            return -(int)err->code;
    if (!q->text && !out->version)
        return err_set(err, ERR_INVALID, "a run needs a pipeline: a version's, or its own text");
    if (!q->text)
        return versions_text(s, q->project, text_of(out->version, "id"), NULL, NULL, &out->flow,
                             err);
    if (flow_compile(q->file && *q->file ? q->file : "pipeline.yaml", q->text, q->text_n,
                     &out->flow, err) < 0)
        return -(int)err->code;
    out->flow_text = json_dumps(out->flow, JSON_COMPACT);
    return out->flow_text ? 0 : err_set(err, ERR_NOMEM, "no memory for a run");
}

/* The type of an input; "": there is none of that name. */
static const char *type_of(const json_t *flow, const char *name)
{
    size_t i;
    json_t *input;

    json_array_foreach(json_object_get(flow, "inputs"), i, input)
        if (!strcmp(text_of(input, "name"), name))
            return text_of(input, "type");
    return "";
}

/* A text for what is not one, or the other way round: clients that know texts alone send a number as
 * "3", and those that do not send 3 where Argo has texts. */
static json_t *fit_value(const json_t *flow, const char *name, json_t *v)
{
    bool argo = !strcmp(text_of(flow, "dialect"), "argo");
    const char *type = type_of(flow, name), *text = json_string_value(v);

    if (argo && !text) {
        OWN_MEM char *dumped = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
        return dumped ? json_string(dumped) : NULL;
    }
    if (argo || !text || !*type || !strcmp(type, "STRING"))
        return json_incref(v);
    if (!strcasecmp(text, "true") || !strcasecmp(text, "false"))
        return json_boolean(!strcasecmp(text, "true"));
    json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);
    return value ? value : json_incref(v);
}

static int check_known(const json_t *flow, const char *name, struct err *err)
{
    struct near near = near_to(name);
    json_t *input;
    size_t i;

    json_array_foreach(json_object_get(flow, "inputs"), i, input) {
        if (!strcmp(text_of(input, "name"), name))
            return 0;
        near_try(&near, text_of(input, "name"));
    }
    return near.word ? err_set(err, ERR_INVALID, "the pipeline has no parameter \"%.100s\"; did you "
                               "mean \"%.100s\"?", name, near.word)
                     : err_set(err, ERR_INVALID, "the pipeline has no parameter \"%.100s\"", name);
}

struct configs {
    struct server *server;
    const char *project;
    json_t *out;
    struct err *err;
};

/* All there are. A name a.b.c may be key b.c of map a, or key c of map a.b. */
static int all_configs(struct configs *c)
{
    OWN_JSON json_t *rows = NULL;
    size_t i;
    json_t *row;

    if (auth_value_list(c->server->auth, AUTH_CONFIG, c->project, &rows, c->err) < 0)
        return -(int)c->err->code;
    json_array_foreach(rows, i, row) {
        const char *name = text_of(row, "name");
        for (const char *dot = name; (dot = strchr(dot, '.')); dot++) {
            OWN_MEM char *map = strndup(name, (size_t)(dot - name));
            json_t *in = map ? json_object_get(c->out, map) : NULL;
            if (!map || (!in && json_object_set_new(c->out, map, in = json_object()) < 0) ||
                json_object_set(in, dot + 1, json_object_get(row, "value")) < 0)
                return err_set(c->err, ERR_NOMEM, "no memory for config maps");
        }
    }
    return 0;
}

static int take_config(void *arg, const char *map, const char *key, bool optional)
{
    struct configs *c = arg;
    OWN_MEM char *value = NULL;
    struct err none = { 0 };

    (void)optional;             /* one that is not there yet may be made by a step of the run */
    if (!c->out && !(c->out = json_object()))
        return err_set(c->err, ERR_NOMEM, "no memory for config maps");
    if (!map)
        return all_configs(c);
    int rc = step_config(c->server, c->project, map, key, &value, &none);
    if (rc < 0)
        return rc == -ERR_MISSING ? 0 : err_set(c->err, none.code, "%s", none.text);
    json_t *in = json_object_get(c->out, map);
    if ((!in && json_object_set_new(c->out, map, in = json_object()) < 0) ||
        json_object_set_new(in, key, json_string(value)) < 0)
        return err_set(c->err, ERR_NOMEM, "no memory for config maps");
    return 0;
}

int runs_configs(struct server *s, const char *project, const json_t *flow, json_t **out,
                 struct err *err)
{
    struct configs c = { s, project, NULL, err };
    int rc = run_graph_configs(flow, take_config, &c);

    if (rc < 0)
        json_decref(c.out);
    else
        *out = c.out;
    return rc;
}

/* Are these its parameters? The graph of a run knows. *out: as they count, an object. */
static int fit_parameters(const struct run_request *q, const json_t *flow, const json_t *configs,
                          json_t **out, struct err *err)
{
    OWN_JSON json_t *fit = json_object();
    OWN(run_graph) g = NULL;
    const char *name;
    json_t *v;

    json_object_foreach((json_t *)q->parameters, name, v) {
        if (check_known(flow, name, err) < 0)
            return -(int)err->code;
        if (json_object_set_new(fit, name, fit_value(flow, name, v)) < 0)
            return err_set(err, ERR_NOMEM, "no memory for parameters");
    }
    const struct graph_run run = { .id = "check", .name = "check", .project = q->project,
                                   .parameters = fit, .configs = configs, .created = 1 };
    if (run_graph_new(flow, &run, &g, err) < 0)
        return -(int)err->code;
    *out = TAKE(fit);
    return 0;
}

/* A project's token can add a version to a pipeline that the owner's recurring run takes the newest
 * of: that one has no more rights than its author. */
static bool may_mount_host(const struct run_request *q, const struct source *from)
{
    return q->host_files && (q->text || !q->host_version ||
                             !strcmp(q->host_version, text_of(from->version, "id")));
}

static json_t *run_json(const struct run_request *q, const struct source *from,
                        const char *experiment, json_t *parameters)
{
    char id[ROWS_ID];
    double now = clock_wall();

    rows_new_id(id);
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:b, s:O, s:[], "
        "s:s, s:s, s:s, s:s, s:i, s:i, s:b, s:b}",
        "id", id, "project", q->project, "name", q->name ? q->name : "", "description",
        q->description ? q->description : "", "experiment", experiment, "pipeline",
        from->version ? text_of(from->version, "pipeline") : "", "version",
        from->version ? text_of(from->version, "id") : "", "recurring",
        q->recurring ? q->recurring : "", "state", "running", "phase", "Running", "message", "",
        "created", now, "scheduled", q->scheduled > 0 ? q->scheduled : now, "started", now, "ended",
        0.0, "archived", 0, "parameters", parameters, "metrics", "dialect",
        text_of(from->flow, "dialect"), "digest", text_of(from->version, "digest"),
        "service_account", q->service_account ? q->service_account : "", "api",
        q->api ? q->api : "", "nodes", 0, "done", 0, "no_cache", q->no_cache, "host_files",
        may_mount_host(q, from));
}

static int experiment_of(struct server *s, const struct run_request *q, json_t **out,
                         struct err *err)
{
    if (!q->experiment || !*q->experiment)
        return experiments_default(s, q->project, out, err);
    return experiments_get(s, q->project, q->experiment, out, err);
}

int runs_create_with(struct server *s, const struct run_request *q,
                     int (*also)(sqlite3 *db, void *arg, const json_t *run, struct err *err),
                     void *arg, json_t **out, struct err *err)
{
    __attribute__((cleanup(source_done))) struct source from = { NULL, NULL, NULL };
    OWN_JSON json_t *experiment = NULL, *parameters = NULL, *configs = NULL;

    if (q->parameters && !json_is_object(q->parameters))
        return err_set(err, ERR_INVALID, "parameters: takes an object");
    if (experiment_of(s, q, &experiment, err) < 0 || find_source(s, q, &from, err) < 0 ||
        runs_configs(s, q->project, from.flow, &configs, err) < 0 ||
        fit_parameters(q, from.flow, configs, &parameters, err) < 0)
        return -(int)err->code;
    if (json_is_true(json_object_get(experiment, "archived")))
        return err_set(err, ERR_CONFLICT, "experiment \"%.200s\" is archived: a run needs another, or "
                       "unarchive it", text_of(experiment, "name"));
    OWN_JSON json_t *doc = run_json(q, &from, text_of(experiment, "id"), parameters);
    if (!doc)
        return err_set(err, ERR_INVALID, "a text of the run is not UTF-8");
    if (configs && json_object_set(doc, "configs", configs) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a run");
    struct creation c = { q, q->text, from.flow_text, q->text_n, from.flow, doc, also, arg };
    store_point("runs.create");
    if (store_write(s->store, create, &c, err) < 0)
        return -(int)err->code;
    store_point("runs.created");
    runs_wake(s);
    if (out)
        *out = TAKE(doc);
    return 0;
}

int runs_create(struct server *s, const struct run_request *q, json_t **out, struct err *err)
{
    return runs_create_with(s, q, NULL, NULL, out, err);
}

/* ------------------------------------------------------------ asked for */

struct asking {
    const char *project, *id;
    const char *states;         /* " running pending ": in which it may be asked; NULL: any */
    const char *cannot;         /* "has ended": said else */
    struct record e;
    json_t *doc;
};

static int ask(sqlite3 *db, void *arg, struct err *err)
{
    struct asking *a = arg;
    char state[32];

    json_decref(TAKE(a->doc));          /* of a first try that found the disk full */
    if (rows_read(db, &rows_runs, a->project, a->id, &a->doc, err) < 0)
        return -(int)err->code;
    snprintf(state, sizeof state, " %s ", text_of(a->doc, "state"));
    if (a->states && !strstr(a->states, state))
        return err_set(err, ERR_CONFLICT, "run \"%.200s\" %s (it is%s)", text_of(a->doc, "name"),
                       a->cannot, state);
    snprintf(a->e.run, sizeof a->e.run, "%s", a->id);
    return runs_log_add(db, &a->e, err);
}

static int asked(struct server *s, struct asking *a, struct err *err)
{
    int rc = store_write_last(s->store, ask, a, err);

    record_done(&a->e);
    json_decref(a->doc);
    if (rc == 0) {
        runs_wake(s);
        if (s->http)
            http_wake(s);
    }
    return rc;
}

int runs_terminate(struct server *s, const char *project, const char *id, const char *by,
                   struct err *err)
{
    struct asking a = { .project = project, .id = id, .states = " pending running terminating ",
                        .cannot = "has ended" };

    a.e.type = "run.terminate";
    a.e.body = json_pack("{s:s}", "by", by ? by : "");
    a.e.patch = json_pack("{s:s}", "state", "terminating");
    return asked(s, &a, err);
}

int runs_retry(struct server *s, const char *project, const char *id, struct err *err)
{
    struct asking a = { .project = project, .id = id, .states = " failed error terminated ",
                        .cannot = "did not fail" };
    OWN_JSON json_t *doc = NULL, *flow = NULL, *configs = NULL;

    if (rows_get(s, &rows_runs, project, id, &doc, err) < 0 ||
        runs_text(s, project, id, NULL, NULL, &flow, err) < 0 ||
        runs_configs(s, text_of(doc, "project"), flow, &configs, err) < 0)
        return -(int)err->code;
    a.e.type = "run.retry";
    a.e.body = configs ? json_pack("{s:O}", "configs", configs) : NULL;
    a.e.patch = json_pack("{s:s, s:s, s:s, s:f, s:f}", "state", "running", "phase", "Running",
                          "message", "", "ended", 0.0, "archive_at", 0.0);
    return asked(s, &a, err);
}

int runs_archive(struct server *s, const char *project, const char *id, bool archive,
                 struct err *err)
{
    struct asking a = { .project = project, .id = id };

    a.e.patch = json_pack("{s:b}", "archived", archive);
    return asked(s, &a, err);
}

int runs_resume(struct server *s, const char *project, const char *id, const char *node,
                struct err *err)
{
    struct asking a = { .project = project, .id = id, .states = " pending running ",
                        .cannot = "has ended" };
    OWN_JSON json_t *n = NULL;

    if (node) {
        if (runs_node(s, project, id, node, &n, err) < 0)
            return -(int)err->code;
        if (strcmp(text_of(n, "kind"), "Suspend") || strcmp(text_of(n, "phase"), "Running"))
            return err_set(err, ERR_CONFLICT, "\"%.200s\" is not suspended", text_of(n, "name"));
    }
    a.e.type = "node.resumed";
    a.e.body = n ? json_pack("{s:O}", "node", json_object_get(n, "name")) : json_object();
    return asked(s, &a, err);
}

/* ------------------------------------------------------------ metrics */

struct reporting {
    const char *project, *id;
    const json_t *metrics;
    json_t *known;
};

static bool has_metric(const json_t *list, const json_t *m)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!strcmp(text_of(json_array_get(list, i), "name"), text_of(m, "name")) &&
            !strcmp(text_of(json_array_get(list, i), "node"), text_of(m, "node")))
            return true;
    return false;
}

static int report(sqlite3 *db, void *arg, struct err *err)
{
    struct reporting *r = arg;
    OWN_JSON json_t *doc = NULL;
    size_t i;
    json_t *m;

    if (rows_read(db, &rows_runs, r->project, r->id, &doc, err) < 0)
        return -(int)err->code;
    json_t *list = json_object_get(doc, "metrics");
    json_array_foreach((json_t *)r->metrics, i, m)
        if (has_metric(list, m))
            json_array_append(r->known, m);
        else
            json_array_append(list, m);
    return rows_update(db, &rows_runs, doc, err);
}

int runs_metrics(struct server *s, const char *project, const char *id, const json_t *metrics,
                 json_t **out_known, struct err *err)
{
    OWN_JSON json_t *known = json_array();
    struct reporting r = { project, id, metrics, known };
    size_t i;
    json_t *m;

    json_array_foreach((json_t *)metrics, i, m)
        if (!*text_of(m, "name") || !json_is_number(json_object_get(m, "value")))
            return err_set(err, ERR_INVALID, "metrics[%zu]: takes a name and a number", i);
    if (store_write(s->store, report, &r, err) < 0)
        return -(int)err->code;
    if (out_known)
        *out_known = TAKE(known);
    return 0;
}

/* ------------------------------------------------------------ life */

void runs_free(struct runs *r)
{
    if (!r)
        return;
    r->ending = true;
    if (r->has_thread) {
        runs_wake(r->server);
        pthread_join(r->thread, NULL);
    }
    hands_free(r->hands);
    runs_forget(r);
    pthread_mutex_destroy(&r->lock);
    free(r);
}
OWN_DEFINE(runs)

static int start(struct server *s, struct err *err)
{
    OWN(runs) r = calloc(1, sizeof *r);
    sigset_t all, old;

    if (!r)
        return err_set(err, ERR_NOMEM, "no memory for runs");
    r->server = s;
    r->schedule_changed = true;
    pthread_mutex_init(&r->lock, NULL);
    s->heard_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->heard_fd < 0)
        return err_set(err, ERR_IO, "cannot hear of jobs: too many files are open");
    if (rows_init(s, err) < 0 || runs_log_init(s, err) < 0 || step_cache_init(s, err) < 0 ||
        hands_new(r, &r->hands, err) < 0)
        return -(int)err->code;
    s->runs = r;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&r->thread, NULL, runs_thread, r);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc) {
        s->runs = NULL;
        return err_set(err, ERR_AGAIN, "cannot start the thread of runs: %s", strerror(rc));
    }
    r->has_thread = true;
    r = NULL;
    return 0;
}

static void stop(struct server *s)
{
    runs_free(TAKE(s->runs));
}

/* A step's outputs are read out of its files after it has ended, by a run that has not. */
static bool in_use(struct server *s, const char *project, const json_t *spec)
{
    const char *id = json_string_value(json_object_get(json_object_get(spec, "labels"), "run"));
    OWN_JSON json_t *run = NULL;
    struct err err = { 0 };

    if (!id || !*id)
        return false;
    if (!s->runs)               /* not started: nobody knows yet */
        return true;
    if (runs_get(s, project, id, &run, &err) < 0)
        return err.code != ERR_MISSING;
    return json_number_value(json_object_get(run, "ended")) <= 0;
}

const struct server_part runs_part = { "runs of pipelines", start, stop, in_use };
