/* pipelines/runs_look.c - what is known of a run: its nodes, artifacts, why it was cached */
#include <fcntl.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "pipelines/cache.h"
#include "pipelines/runs_int.h"
#include "server/jobs.h"
#include "server/logs.h"
#include "server/objects.h"
#include "server/server.h"

/* ------------------------------------------------------------ views */

/* So many graphs of ended runs are kept, with so many nodes in all: some kilobytes each. */
enum { LOOKED_MAX = 4, LOOKED_NODES = 25000 };

struct fold {
    const char *project, *id;
    struct view *view;
    int64_t last;
};

static int fold(sqlite3 *db, void *arg, struct err *err)
{
    struct fold *f = arg;
    struct view *v = f->view;
    OWN_MEM char *flow = NULL;

    if (rows_read(db, &rows_runs, f->project, f->id, &v->doc, err) < 0 ||
        rows_text_get(db, text_of(v->doc, "digest"), NULL, NULL, &flow, err) < 0)
        return -(int)err->code;
    v->flow = json_loads(flow, 0, NULL);
    if (!v->flow)
        return err_set(err, ERR_NOMEM, "no memory for a run");
    return runs_fold(db, v->doc, v->flow, &v->graph, &f->last, err);
}

/* The number of a run's newest event; 0: there is none. */
struct newest { const char *id; int64_t seq; };

static int newest_event(sqlite3 *db, void *arg, struct err *err)
{
    struct newest *n = arg;
    sqlite3_stmt *st = store_sql(db, "SELECT max(seq) FROM run_events WHERE run = ?", err);

    if (!st || store_bind(st, err, "s", n->id) < 0 || store_step(st, err) < 0)
        return -(int)err->code;
    n->seq = sqlite3_column_int64(st, 0);
    sqlite3_reset(st);
    return 0;
}

/* One of a list of runs, with a reference; NULL: it is not there. */
static struct live *take(struct runs *r, struct live **list, const char *project, const char *id)
{
    pthread_mutex_lock(&r->lock);
    struct live *l = *list;
    while (l && (strcmp(l->id, id) || (project && strcmp(l->project, project))))
        l = l->next;
    if (l) {
        l->refs++;
        l->looked = clock_seconds();
    }
    pthread_mutex_unlock(&r->lock);
    return l;
}

void views_forget(struct runs *r, double before)
{
    struct live *gone = NULL;
    int n = 0, nodes = 0;

    pthread_mutex_lock(&r->lock);
    for (struct live **at = &r->looked; *at;) {
        struct live *l = *at;
        nodes += run_graph_count(l->graph);
        if (++n <= LOOKED_MAX && nodes <= LOOKED_NODES && l->looked >= before) {
            at = &l->next;
            continue;
        }
        n--;
        nodes -= run_graph_count(l->graph);
        *at = l->next;
        l->next = gone;
        gone = l;
    }
    pthread_mutex_unlock(&r->lock);
    for (struct live *l = gone, *next; l; l = next) {
        next = l->next;
        live_unref(r, l);
    }
}

/* A graph that was made for this view is kept for the next ones; else the view has it to itself. */
static void keep(struct runs *r, struct view *v, int64_t last)
{
    struct live *l = r ? calloc(1, sizeof *l) : NULL;

    if (!l)
        return;
    pthread_mutex_init(&l->lock, NULL);
    snprintf(l->id, sizeof l->id, "%s", text_of(v->doc, "id"));
    snprintf(l->project, sizeof l->project, "%s", text_of(v->doc, "project"));
    l->doc = TAKE(v->doc);
    l->flow = TAKE(v->flow);
    l->graph = v->graph;
    l->folded = last;
    l->looked = clock_seconds();
    l->refs = 2;                /* the list's, and the view's */
    v->live = l;
    pthread_mutex_lock(&l->lock);       /* nobody else knows it yet */
    pthread_mutex_lock(&r->lock);
    l->next = r->looked;
    r->looked = l;
    pthread_mutex_unlock(&r->lock);
    views_forget(r, 0);
}

/* One that has ended, and was looked at before; NULL: or its log has grown since. */
static struct live *take_looked(struct server *s, const char *project, const char *id)
{
    struct live *l = take(s->runs, &s->runs->looked, project, id);
    struct newest newest = { id, 0 };
    struct err none = { 0 };

    if (!l || (store_read(s->store, newest_event, &newest, &none) == 0 && newest.seq == l->folded))
        return l;
    live_unref(s->runs, l);
    return NULL;
}

int view_open(struct server *s, const char *project, const char *id, struct view *out,
              struct err *err)
{
    struct view v = { .runs = s->runs };
    struct fold f = { project, id, &v, 0 };

    if (s->runs && !(v.live = take(s->runs, &s->runs->first, project, id)))
        v.live = take_looked(s, project, id);
    if (v.live) {
        pthread_mutex_lock(&v.live->lock);
        v.graph = v.live->graph;
        *out = v;
        return 0;
    }
    if (store_read(s->store, fold, &f, err) < 0) {
        view_done(&v);
        return -(int)err->code;
    }
    keep(s->runs, &v, f.last);
    *out = v;
    return 0;
}

void view_done(struct view *v)
{
    if (v->live) {
        pthread_mutex_unlock(&v->live->lock);
        live_unref(v->runs, v->live);
        return;
    }
    run_graph_free(v->graph);
    json_decref(v->doc);
    json_decref(v->flow);
}

/* ------------------------------------------------------------ the run itself */

static int count_node(void *arg, const struct node *n)
{
    int *done = arg;

    *done += node_phase_ended(n->phase);
    return 0;
}

int runs_get(struct server *s, const char *project, const char *id, json_t **out, struct err *err)
{
    OWN_JSON json_t *doc = NULL;
    struct err none = { 0 };

    if (rows_get(s, &rows_runs, project, id, &doc, err) < 0)
        return -(int)err->code;
    if (!strcmp(text_of(doc, "state"), "running") || !strcmp(text_of(doc, "state"), "terminating")) {
        OWN_VIEW v = { 0 };
        int done = 0;
        if (view_open(s, project, id, &v, &none) == 0) {
            run_graph_each(v.graph, count_node, &done);
            json_object_set_new(doc, "nodes", json_integer(run_graph_count(v.graph)));
            json_object_set_new(doc, "done", json_integer(done));
        }
    }
    *out = TAKE(doc);
    return 0;
}

struct texts {
    const char *project, *id;
    char *text, *flow;
    size_t n;
};

static int read_texts(sqlite3 *db, void *arg, struct err *err)
{
    struct texts *t = arg;
    OWN_JSON json_t *doc = NULL;

    if (rows_read(db, &rows_runs, t->project, t->id, &doc, err) < 0)
        return -(int)err->code;
    return rows_text_get(db, text_of(doc, "digest"), &t->text, &t->n, &t->flow, err);
}

int runs_text(struct server *s, const char *project, const char *id, char **out_text,
              size_t *out_n, json_t **out_flow, struct err *err)
{
    struct texts t = { project, id, NULL, NULL, 0 };
    int rc = store_read(s->store, read_texts, &t, err);

    if (rc == 0 && out_flow && !(*out_flow = json_loads(t.flow, 0, NULL)))
        rc = err_set(err, ERR_NOMEM, "no memory for a run");
    if (rc == 0 && out_text)
        *out_text = TAKE(t.text);
    if (rc == 0 && out_n)
        *out_n = t.n;
    free(t.text);
    free(t.flow);
    return rc;
}

/* ------------------------------------------------------------ nodes */

static json_t *node_json(const struct node *n)
{
    OWN_JSON json_t *children = json_array();

    for (int i = 0; i < n->n_children; i++)
        json_array_append_new(children, json_string(n->children[i]->id));
    /* Copies: what a reader holds does not share its counts with the thread of runs. */
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:O, s:s, s:f, s:f, s:i, s:o, s:o, "
                     "s:b, s:s}",
                     "id", n->id, "name", n->name, "display", n->display ? n->display : n->name,
                     "kind", node_kind_name(n->kind), "phase", node_phase_name(n->phase), "task",
                     n->task ? n->task : "", "template", n->template_name ? n->template_name : "",
                     "parent", n->parent ? n->parent->id : "", "children", children, "message",
                     n->message ? n->message : "", "started", n->started, "ended", n->ended,
                     "attempt", n->attempt, "inputs",
                     n->inputs ? json_deep_copy(n->inputs) : json_object(), "outputs",
                     n->outputs ? json_deep_copy(n->outputs) : json_object(), "cached", n->cached,
                     "job", n->job ? n->job : "");
}

static int add_node(void *arg, const struct node *n)
{
    return json_array_append_new(arg, node_json(n));
}

int runs_nodes(struct server *s, const char *project, const char *id, json_t **out,
               struct err *err)
{
    OWN_VIEW v = { 0 };
    OWN_JSON json_t *list = json_array();

    if (view_open(s, project, id, &v, err) < 0)
        return -(int)err->code;
    if (run_graph_each(v.graph, add_node, list) != 0)
        return err_set(err, ERR_NOMEM, "no memory for the nodes of a run");
    *out = TAKE(list);
    return 0;
}

int runs_node(struct server *s, const char *project, const char *id, const char *node,
              json_t **out, struct err *err)
{
    OWN_VIEW v = { 0 };

    if (view_open(s, project, id, &v, err) < 0)
        return -(int)err->code;
    const struct node *n = run_graph_find(v.graph, node);
    if (!n)
        return err_set(err, ERR_MISSING, "there is no node \"%.200s\" in this run", node);
    *out = node_json(n);
    return *out ? 0 : err_set(err, ERR_NOMEM, "no memory for a node");
}

/* ------------------------------------------------------------ events, and why */

struct events {
    const char *project, *id, *type;
    int64_t after;
    json_t *out;
};

static int events(sqlite3 *db, void *arg, struct err *err)
{
    const struct events *e = arg;
    OWN_JSON json_t *doc = NULL;
    int rc;

    if (rows_read(db, &rows_runs, e->project, e->id, &doc, err) < 0)
        return -(int)err->code;
    sqlite3_stmt *st = store_sql(db, "SELECT seq, t, type, body FROM run_events WHERE run = ? "
                                 "AND seq > ? ORDER BY seq", err);
    if (!st || store_bind(st, err, "si", e->id, e->after) < 0)
        return -(int)err->code;
    while ((rc = store_step(st, err)) > 0) {
        const char *type = (const char *)sqlite3_column_text(st, 2);
        if (e->type && strcmp(e->type, type))
            continue;
        json_t *one = json_pack("{s:I, s:f, s:s}", "seq", (json_int_t)sqlite3_column_int64(st, 0),
                                "t", sqlite3_column_double(st, 1), "type", type);
        OWN_JSON json_t *body = json_loads((const char *)sqlite3_column_text(st, 3), 0, NULL);
        json_object_update_missing(one, body);
        json_array_append_new(e->out, one);
    }
    return rc;
}

int runs_events(struct server *s, const char *project, const char *id, int64_t after,
                json_t **out, struct err *err)
{
    OWN_JSON json_t *list = json_array();

    if (store_read(s->store, events, &(struct events){ project, id, NULL, after, list }, err) < 0)
        return -(int)err->code;
    *out = TAKE(list);
    return 0;
}

struct explaining {
    json_t *by_name, *out;
};

static int explain_node(void *arg, const struct node *n)
{
    const struct explaining *e = arg;

    if (n->kind != NODE_STEP)
        return 0;
    const json_t *said = json_object_get(e->by_name, n->name);
    const json_t *cache = json_object_get(said, "cache"), *from = json_object_get(said, "cached");
    const char *why = text_of(cache, "why");
    return json_array_append_new(e->out, json_pack(
        "{s:s, s:s, s:s, s:b, s:s, s:O*, s:O*}", "node", n->id, "name", n->name, "phase",
        node_phase_name(n->phase), "cached", n->cached, "why",
        *why ? why : node_phase_ended(n->phase) ? "it was not a program" : "it has not ended yet",
        "key", json_object_get(cache, "key"), "run", json_object_get(from, "run")));
}

int runs_explain(struct server *s, const char *project, const char *id, json_t **out,
                 struct err *err)
{
    OWN_JSON json_t *ended = json_array(), *by_name = json_object(), *list = json_array();
    struct explaining e = { by_name, list };
    OWN_VIEW v = { 0 };
    size_t i;
    json_t *one;

    if (store_read(s->store, events, &(struct events){ project, id, "node.ended", 0, ended },
                   err) < 0)
        return -(int)err->code;
    json_array_foreach(ended, i, one)
        json_object_set(by_name, text_of(one, "node"), one);
    if (view_open(s, project, id, &v, err) < 0)
        return -(int)err->code;
    run_graph_each(v.graph, explain_node, &e);
    *out = TAKE(list);
    return 0;
}

static int clock_of(sqlite3 *db, void *arg, struct err *err)
{
    sqlite3_stmt *st = store_sql(db, "SELECT max(seq) FROM run_events", err);

    if (!st || store_step(st, err) < 0)
        return -(int)err->code;
    *(int64_t *)arg = sqlite3_column_int64(st, 0);
    sqlite3_reset(st);
    return 0;
}

int64_t runs_clock(struct server *s)
{
    struct err err;
    int64_t seq = 0;

    return store_read(s->store, clock_of, &seq, &err) < 0 ? 0 : seq;
}

/* ------------------------------------------------------------ check */

static int check_run(sqlite3 *db, const char *id, struct err *err)
{
    OWN_VIEW v = { 0 };

    if (fold(db, &(struct fold){ NULL, id, &v, 0 }, err) < 0)
        return err_add(err, "run %s", id);
    const char *phase = node_phase_name(run_graph_phase(v.graph, NULL));
    if (number_of(v.doc, "ended") > 0 && strcmp(phase, text_of(v.doc, "phase")))
        return err_set(err, ERR_IO, "run %s: its row says %s, its events say %s", id,
                       text_of(v.doc, "phase"), phase);
    return 0;
}

struct checking {
    void (*each)(void *arg, const char *text);
    void *arg;
    int64_t n;
};

static int check_all(sqlite3 *db, void *arg, struct err *err)
{
    struct checking *c = arg;
    struct err why = { 0 };
    OWN_JSON json_t *ids = json_array();
    sqlite3_stmt *st = store_sql(db, "SELECT id FROM runs ORDER BY seq", err);
    size_t i;
    json_t *id;
    int rc;

    if (!st)
        return -(int)err->code;
    while ((rc = store_step(st, err)) > 0)
        json_array_append_new(ids, json_string((const char *)sqlite3_column_text(st, 0)));
    if (rc < 0)
        return rc;
    json_array_foreach(ids, i, id)
        if (check_run(db, json_string_value(id), &why) < 0)
            c->each(c->arg, why.text);
    c->n = (int64_t)json_array_size(ids);
    return 0;
}

int runs_check(struct server *s, void (*each)(void *arg, const char *text), void *arg,
               int64_t *out_n, struct err *err)
{
    struct checking c = { each, arg, 0 };

    if (rows_init(s, err) < 0 || runs_log_init(s, err) < 0 ||
        store_read(s->store, check_all, &c, err) < 0)
        return -(int)err->code;
    *out_n = c.n;
    return 0;
}

/* ------------------------------------------------------------ artifacts */

static int write_line(void *arg, const struct log_line *l)
{
    FILE *f = arg;

    fwrite(l->text, 1, l->n, f);
    fputc('\n', f);
    return 0;
}

/* What a step printed, as a file that nobody else sees. */
static int open_log(struct server *s, const char *project, const char *job, json_t **out_art,
                    int *out_fd, struct err *err)
{
    OWN_FILE FILE *f = tmpfile();
    struct log_cursor at = { 0, 0 }, before;
    char dir[4096];

    if (!f)
        return err_set(err, ERR_IO, "cannot make a file for a log");
    if (jobs_dir(s, project, job, dir, sizeof dir, err) < 0)
        return -(int)err->code;
    do {
        before = at;
        if (logs_read(dir, &at, NULL, write_line, f, err) < 0)
            return -(int)err->code;
    } while (at.file != before.file || at.offset != before.offset);
    if (fflush(f) != 0)
        return err_set(err, ERR_IO, "cannot write a log");
    if (out_fd) {
        *out_fd = fcntl(fileno(f), F_DUPFD_CLOEXEC, 3);
        lseek(*out_fd, 0, SEEK_SET);
    }
    *out_art = json_pack("{s:s, s:s, s:I, s:b}", "name", "main-logs", "uri", "", "size",
                         (json_int_t)ftell(f), "dir", 0);
    return 0;
}

int runs_artifact(struct server *s, const char *project, const char *id, const char *node,
                  const char *name, json_t **out_art, int *out_fd, struct err *err)
{
    OWN_JSON json_t *n = NULL, *run = NULL;
    char bucket[OBJECTS_BUCKET_MAX + 1];
    int64_t size;

    if (rows_get(s, &rows_runs, project, id, &run, err) < 0 ||
        runs_node(s, project, id, node, &n, err) < 0)
        return -(int)err->code;
    if (!strcmp(name, "main-logs") && *text_of(n, "job"))
        return open_log(s, text_of(run, "project"), text_of(n, "job"), out_art, out_fd, err);
    json_t *art = json_object_get(json_object_get(json_object_get(n, "outputs"), "artifacts"),
                                  name);
    const char *uri = text_of(art, "uri");
    const char *slash = !strncmp(uri, "gs://", 5) ? strchr(uri + 5, '/') : NULL;
    if (!art)
        return err_set(err, ERR_MISSING, "node \"%.200s\" has no artifact \"%.64s\"",
                       text_of(n, "name"), name);
    if (out_fd) {
        if (!slash || slash - uri - 5 > OBJECTS_BUCKET_MAX)
            return err_set(err, ERR_MISSING, "artifact \"%.64s\" is not in a bucket of this server",
                           name);
        snprintf(bucket, sizeof bucket, "%.*s", (int)(slash - uri - 5), uri + 5);
        if (objects_open(s, text_of(run, "project"), bucket, slash + 1, out_fd, &size, err) < 0)
            return -(int)err->code;
    }
    *out_art = json_incref(art);
    return 0;
}

/* ------------------------------------------------------------ removal */

static int delete_jobs(struct server *s, const char *project, const char *id, struct err *err)
{
    struct jobs_query q = { .project = project, .label_key = "run", .label_value = id,
                            .limit = 1000 };
    char token[JOB_TOKEN] = "";

    do {
        OWN_JSON json_t *page = NULL;
        size_t i;
        json_t *job;
        q.token = token;
        if (jobs_list(s, &q, &page, token, err) < 0)
            return -(int)err->code;
        json_array_foreach(page, i, job) {
            struct err why = { 0 };
            int rc = jobs_delete(s, project, text_of(job, "name"), &why);
            if (rc < 0 && rc != -ERR_MISSING)
                return err_set(err, why.code, "%s", why.text);
        }
    } while (*token);
    return 0;
}

static int add_name(void *arg, const struct object *o)
{
    return json_array_append_new(arg, json_string(o->name));
}

static int delete_objects(struct server *s, const char *project, const char *id, struct err *err)
{
    char bucket[128], prefix[64];
    OWN_JSON json_t *names = json_array(), *prefixes = json_array();
    OWN_BUF token = BUF_INIT;
    struct err none = { 0 };

    snprintf(bucket, sizeof bucket, "artifacts-%s", project);
    snprintf(prefix, sizeof prefix, "%s/", id);
    for (;;) {
        struct objects_query q = { .project = project, .bucket = bucket, .prefix = prefix,
                                   .limit = 1000 };
        size_t i;
        json_t *name;
        json_array_clear(names);
        buf_clear(&token);
        if (objects_list(s, &q, add_name, names, prefixes, &token, &none) < 0)
            return none.code == ERR_MISSING ? 0 : err_set(err, none.code, "%s", none.text);
        json_array_foreach(names, i, name) {
            struct objects_when when = OBJECTS_WHENEVER;
            if (objects_delete(s, project, bucket, json_string_value(name), 0, &when, &none) < 0 &&
                none.code != ERR_MISSING)
                return err_set(err, none.code, "%s", none.text);
        }
        if (json_array_size(names) == 0)
            return 0;
    }
}

static int delete_rows(sqlite3 *db, void *arg, struct err *err)
{
    const char *id = arg;

    if (store_run(db, err, "DELETE FROM run_events WHERE run = ?", "s", id) < 0 ||
        step_cache_forget(db, id, err) < 0)
        return -(int)err->code;
    return rows_remove(db, &rows_runs, id, err);
}

int runs_remove(struct server *s, const char *project, const char *id, struct err *err)
{
    if (delete_jobs(s, project, id, err) < 0 || delete_objects(s, project, id, err) < 0)
        return -(int)err->code;
    return store_write_last(s->store, delete_rows, (void *)id, err);
}

int runs_delete(struct server *s, const char *project, const char *id, struct err *err)
{
    OWN_JSON json_t *doc = NULL;
    struct record e = { .type = "run.terminate" };

    if (rows_get(s, &rows_runs, project, id, &doc, err) < 0)
        return -(int)err->code;
    if (json_number_value(json_object_get(doc, "ended")) > 0)
        return runs_remove(s, text_of(doc, "project"), id, err);
    snprintf(e.run, sizeof e.run, "%s", id);
    e.body = json_pack("{s:s, s:b}", "by", "delete", "delete", 1);
    e.patch = json_pack("{s:s, s:b}", "state", "terminating", "deleting", 1);
    int rc = runs_log_write(s, &e, 1, err);
    record_done(&e);
    runs_wake(s);
    return rc;
}
