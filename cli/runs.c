/* cli/runs.c - muster runs: begun, listed, shown, followed, ended */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/terminal.h"
#include "cli/listing.h"
#include "cli/verb.h"

#define V2 "/apis/v2beta1/"

struct args {
    const char *project, *experiment, *state, *text, *name, *version;
    struct option_list parameters;
    long limit;
    int json, wait, follow, archived;
    struct cli *cli;
};
#define AT(field) offsetof(struct args, field)
static const struct option options[] = {
    { "project", 0, "NAME", "of the runs (default: MUSTER_PROJECT, or \"default\")", OPTION_TEXT,
      AT(project) },
    { "experiment", 0, "NAME", "list, create: that it belongs to", OPTION_TEXT, AT(experiment) },
    { "state", 0, "STATE", "list: running, succeeded, failed, terminated ...", OPTION_TEXT,
      AT(state) },
    { "text", 0, "TEXT", "list: only names that contain it", OPTION_TEXT, AT(text) },
    { "archived", 0, NULL, "list: those that are archived", OPTION_FLAG, AT(archived) },
    { "limit", 0, "N", "list: at most so many, newest first (default: 100)", OPTION_INT,
      AT(limit) },
    { "version", 0, "NAME", "create: of the pipeline (default: its default one)", OPTION_TEXT,
      AT(version) },
    { "param", 'p', "NAME=VALUE", "create: a parameter", OPTION_LIST, AT(parameters) },
    { "name", 0, "TEXT", "create: what it is called", OPTION_TEXT, AT(name) },
    { "wait", 'w', NULL, "create, retry: until it has ended; fails when it did", OPTION_FLAG,
      AT(wait) },
    { "follow", 'f', NULL, "logs: go on until the run has ended", OPTION_FLAG, AT(follow) },
    { "json", 0, NULL, "print what the server answers", OPTION_FLAG, AT(json) },
    { 0 }
};

/* Between two looks at a run: nobody notices. */
enum { LOOK_US = 50000 };

/* ------------------------------------------------------------ a run by its id or name */

static int run_id(struct client *s, const char *named, char **out, struct err *err)
{
    OWN_JSON json_t *doc = NULL;
    struct err none = { 0 };

    if (!listing_is_id(named) &&
        listing_find(s, "runs", "workflow_name", named, &doc, &none) < 0 &&
        listing_find(s, "runs", "display_name", named, &doc, err) < 0)
        return -(int)err->code;
    char *copy = strdup(doc ? text_of(doc, "run_id") : named);
    if (!copy)
        return err_set(err, ERR_NOMEM, "no memory for a name");
    *out = copy;
    return 0;
}

/* One call about one run: "METHOD /api/runs/PROJECT/ID" and the rest of the path. */
static int call(struct client *s, const char *method, const char *id, const char *rest,
                json_t **out, struct err *err)
{
    OWN_MEM char *path = client_path("/api/runs/%/%", s->project, id, NULL), *whole = NULL;

    if (!path || asprintf(&whole, "%s%s", path, rest) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a request");
    return client_call(s, method, whole, NULL, out, err);
}

static bool is_step(const json_t *node)
{
    return !strcmp(text_of(node, "kind"), "Pod");
}

/* Is it the node that is meant? By id, whole name, or the last part of it. */
static bool is_named(const json_t *node, const char *named)
{
    return !named || !strcmp(text_of(node, "id"), named) || !strcmp(text_of(node, "name"), named) ||
           !strcmp(text_of(node, "display"), named);
}

static double span_of(const json_t *doc)
{
    double from = number_of(doc, "started"), to = number_of(doc, "ended");

    return from <= 0 ? -1 : (to > 0 ? to : clock_wall()) - from;
}

/* ------------------------------------------------------------ list and show */

static int list(struct client *s, const void *args, char **names, struct err *err)
{
    const struct args *a = args;
    OWN_JSON json_t *all = json_array();
    OWN_MEM char *experiment = NULL, *token = strdup("");
    size_t i;
    json_t *r;

    (void)names;
    if (a->experiment && listing_experiment(s, a->experiment, &experiment, err) < 0)
        return -(int)err->code;
    do {
        OWN_JSON json_t *doc = NULL;
        OWN_BUF path = BUF_INIT;
        long left = a->limit - (long)json_array_size(all);
        buf_printf(&path, "/api/runs?limit=%ld", left < 1000 ? left : 1000);
        listing_query(&path, "project", s->project);
        listing_query(&path, "experiment", experiment);
        listing_query(&path, "state", a->state);
        listing_query(&path, "text", a->text);
        listing_query(&path, "archived", a->archived ? "true" : NULL);
        listing_query(&path, "token", token);
        if (buf_ok(&path, err) < 0 || client_call(s, "GET", path.data, NULL, &doc, err) < 0)
            return -(int)err->code;
        json_array_extend(all, json_object_get(doc, "runs"));
        free(token);
        token = strdup(text_of(doc, "next"));
    } while (token && *token && (long)json_array_size(all) < a->limit);
    if (a->json) {
        listing_json(all);
        return 0;
    }
    json_array_foreach(all, i, r) {
        listing_stamp(number_of(r, "created"));
        printf("  %-11s ", text_of(r, "state"));
        listing_span(span_of(r));
        printf("  %s  %s%s%s\n", text_of(r, "workflow"), text_of(r, "name"),
               *text_of(r, "message") ? "  " : "", text_of(r, "message"));
    }
    if (token && *token)
        fprintf(stderr, "there are more (--limit N)\n");
    return 0;
}

static int depth_of(const json_t *by_id, const json_t *node)
{
    int depth = 0;

    while ((node = json_object_get(by_id, text_of(node, "parent"))) && depth < 40)
        depth++;
    return depth;
}

static void print_nodes(const json_t *nodes)
{
    OWN_JSON json_t *by_id = json_object();
    size_t i;
    json_t *n;

    json_array_foreach((json_t *)nodes, i, n)
        json_object_set(by_id, text_of(n, "id"), n);
    json_array_foreach((json_t *)nodes, i, n) {
        const char *message = text_of(n, "message");
        printf("  %-9s ", text_of(n, "phase"));
        listing_span(is_step(n) ? span_of(n) : -1);
        printf("  %*s%s%s%s%s\n", 2 * depth_of(by_id, n), "", text_of(n, "display"),
               json_is_true(json_object_get(n, "cached")) ? "  (cached)" : "",
               *message ? ": " : "", message);
    }
}

/* Children follow their parents. */
static void add_below(const json_t *by_id, const json_t *node, json_t *out)
{
    size_t i;
    json_t *id;

    json_array_append(out, (json_t *)node);
    json_array_foreach(json_object_get(node, "children"), i, id) {
        const json_t *child = json_object_get(by_id, json_string_value(id));
        if (child)
            add_below(by_id, child, out);
    }
}

static json_t *as_tree(const json_t *nodes)
{
    OWN_JSON json_t *by_id = json_object();
    json_t *out = json_array(), *n;
    size_t i;

    json_array_foreach((json_t *)nodes, i, n)
        json_object_set(by_id, text_of(n, "id"), n);
    json_array_foreach((json_t *)nodes, i, n)
        if (!json_object_get(by_id, text_of(n, "parent")))
            add_below(by_id, n, out);
    return out;
}

static int show(struct client *s, const void *args, char **names, struct err *err)
{
    const struct args *a = args;
    OWN_JSON json_t *run = NULL, *nodes = NULL, *tree = NULL;
    OWN_MEM char *id = NULL;
    const char *key;
    json_t *value;

    if (run_id(s, names[0], &id, err) < 0 || call(s, "GET", id, "", &run, err) < 0 ||
        call(s, "GET", id, "/nodes", &nodes, err) < 0)
        return -(int)err->code;
    if (a->json) {
        json_object_set(run, "nodes", json_object_get(nodes, "nodes"));
        listing_json(run);
        return 0;
    }
    printf("%s  %s%s%s\n", text_of(run, "name"), text_of(run, "state"),
           *text_of(run, "message") ? ": " : "", text_of(run, "message"));
    printf("  workflow %s, id %s, project %s\n  begun ", text_of(run, "workflow"), id,
           text_of(run, "project"));
    listing_stamp(number_of(run, "created"));
    printf("  ran");
    listing_span(span_of(run));
    putchar('\n');
    json_object_foreach(json_object_get(run, "parameters"), key, value) {
        OWN_MEM char *text = json_is_string(value) ? NULL
            : json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
        printf("  parameter %s = %s\n", key, text ? text : json_string_value(value));
    }
    tree = as_tree(json_object_get(nodes, "nodes"));
    print_nodes(tree);
    return 0;
}

/* ------------------------------------------------------------ create, and wait */

static int wait_for(struct client *s, const char *id, const struct args *a,
                    struct err *err)
{
    for (;; usleep(LOOK_US)) {
        OWN_JSON json_t *run = NULL;
        if (call(s, "GET", id, "", &run, err) < 0)
            return -(int)err->code;
        if (number_of(run, "ended") <= 0)
            continue;
        if (a->json)
            listing_json(run);
        else
            printf("%s %s %s\n", text_of(run, "workflow"), id, text_of(run, "state"));
        if (!strcmp(text_of(run, "state"), "succeeded"))
            return 0;
        a->cli->exit_code = 1;
        return err_set(err, ERR_CONFLICT, "run %s %s%s%s", text_of(run, "workflow"),
                       text_of(run, "state"), *text_of(run, "message") ? ": " : "",
                       text_of(run, "message"));
    }
}

/* The experiment of that name, which is made when it is not there. */
static int make_experiment(struct client *s, const char *named, char **out, struct err *err)
{
    OWN_JSON json_t *made = NULL;
    OWN_JSON json_t *body = json_pack("{s:s, s:s}", "display_name", named, "namespace", s->project);
    struct err none = { 0 };

    if (listing_experiment(s, named, out, &none) == 0)
        return 0;
    if (none.code != ERR_MISSING)
        return err_set(err, none.code, "%s", none.text);
    if (client_call(s, "POST", V2 "experiments", body, &made, err) < 0)
        return -(int)err->code;
    *out = strdup(text_of(made, "experiment_id"));
    return *out ? 0 : err_set(err, ERR_NOMEM, "no memory for a name");
}

static int version_id(struct client *s, const char *pipeline, const char *named, char **out,
                      struct err *err)
{
    OWN_MEM char *path = client_path(V2 "pipelines/%/versions?sort_by=created_at+desc", pipeline,
                                     NULL);
    OWN_JSON json_t *all = NULL;
    size_t i;
    json_t *v;

    if (!path)
        return err_set(err, ERR_NOMEM, "no memory for a request");
    if (listing_all(s, path, "pipeline_versions", 1000, &all, NULL, err) < 0)
        return -(int)err->code;
    json_array_foreach(all, i, v)
        if (!strcmp(text_of(v, "name"), named) ||
            !strcmp(text_of(v, "pipeline_version_id"), named)) {
            *out = strdup(text_of(v, "pipeline_version_id"));
            return *out ? 0 : err_set(err, ERR_NOMEM, "no memory for a name");
        }
    return err_set(err, ERR_MISSING, "the pipeline has no version \"%.200s\"", named);
}

static int create(struct client *s, const void *args, char **names, struct err *err)
{
    const struct args *a = args;
    OWN_MEM char *pipeline = NULL, *version = NULL, *experiment = NULL;
    OWN_JSON json_t *parameters = NULL, *made = NULL;

    if (listing_parameters(&a->parameters, &parameters, err) < 0 ||
        listing_pipeline(s, names[0], &pipeline, err) < 0 ||
        (a->version && version_id(s, pipeline, a->version, &version, err) < 0) ||
        make_experiment(s, a->experiment ? a->experiment : "Default", &experiment, err) < 0)
        return -(int)err->code;
    OWN_JSON json_t *body = json_pack(
        "{s:s*, s:s, s:{s:s, s:s*}, s:{s:O}}", "display_name", a->name, "experiment_id", experiment,
        "pipeline_version_reference", "pipeline_id", pipeline, "pipeline_version_id", version,
        "runtime_config", "parameters", parameters);
    if (!body)
        return err_set(err, ERR_INVALID, "the name is not UTF-8");
    if (client_call(s, "POST", V2 "runs", body, &made, err) < 0)
        return -(int)err->code;
    if (a->wait)
        return wait_for(s, text_of(made, "run_id"), a, err);
    if (a->json)
        listing_json(made);
    else
        printf("%s %s\n", text_of(made, "display_name"), text_of(made, "run_id"));
    return 0;
}

/* ------------------------------------------------------------ logs and artifacts */

static int print_log(struct client *s, const char *id, const json_t *node, bool head,
                     struct err *err)
{
    OWN_MEM char *path = client_path("/api/runs/%/%/nodes/%/artifacts/main-logs", s->project, id,
                                     text_of(node, "id"), NULL);
    OWN_BUF text = BUF_INIT;
    struct err none = { 0 };

    if (!path)
        return err_set(err, ERR_NOMEM, "no memory for a request");
    if (head)
        printf("==> %s%s <==\n", text_of(node, "name"),
               json_is_true(json_object_get(node, "cached")) ? " (cached: it did not run)" : "");
    fflush(stdout);
    if (!*text_of(node, "job"))
        return 0;
    if (client_text(s, path, &text, &none) < 0)
        return none.code == ERR_MISSING ? 0 : err_set(err, none.code, "%s", none.text);
    terminal_write(stdout, text.data, text.n);
    fflush(stdout);
    return 0;
}

static bool has_ended(const json_t *node)
{
    return number_of(node, "ended") > 0;
}

/* Steps that have ended and are not in `seen` yet; without `follow` all that began. */
static int print_logs(struct client *s, const char *id, const char *step, bool follow,
                      json_t *seen, struct err *err)
{
    OWN_JSON json_t *doc = NULL;
    size_t i;
    json_t *n;

    if (call(s, "GET", id, "/nodes", &doc, err) < 0)
        return -(int)err->code;
    json_array_foreach(json_object_get(doc, "nodes"), i, n) {
        const char *name = text_of(n, "id");
        if (!is_step(n) || !is_named(n, step) || json_object_get(seen, name) ||
            (follow && !has_ended(n)) || number_of(n, "started") <= 0)
            continue;
        json_object_set_new(seen, name, json_true());
        if (print_log(s, id, n, !step || strcmp(text_of(n, "id"), step), err) < 0)
            return -(int)err->code;
    }
    return 0;
}

static int logs(struct client *s, const void *args, char **names, struct err *err)
{
    const struct args *a = args;
    OWN_JSON json_t *seen = json_object();
    OWN_MEM char *id = NULL;

    if (run_id(s, names[0], &id, err) < 0)
        return -(int)err->code;
    for (;; usleep(LOOK_US)) {
        OWN_JSON json_t *run = NULL;
        if (call(s, "GET", id, "", &run, err) < 0 ||
            print_logs(s, id, names[1], a->follow, seen, err) < 0)
            return -(int)err->code;
        if (!a->follow || number_of(run, "ended") > 0) {
            if (names[1] && json_object_size(seen) == 0)
                return err_set(err, ERR_MISSING, "run %s has no step \"%.200s\" that began",
                               names[0], names[1]);
            if (a->follow && strcmp(text_of(run, "state"), "succeeded")) {
                a->cli->exit_code = 1;
                return err_set(err, ERR_IO, "run %s %s%s%s", names[0], text_of(run, "state"),
                               *text_of(run, "message") ? ": " : "", text_of(run, "message"));
            }
            return 0;
        }
    }
}

static int print_artifact(struct client *s, const char *id, const json_t *nodes, char **names,
                          struct err *err)
{
    size_t i;
    json_t *n;

    json_array_foreach((json_t *)nodes, i, n) {
        const json_t *outputs = json_object_get(n, "outputs");
        OWN_BUF bytes = BUF_INIT;
        if (!is_named(n, names[1]) ||
            !json_object_get(json_object_get(outputs, "artifacts"), names[2]))
            continue;
        OWN_MEM char *path = client_path("/api/runs/%/%/nodes/%/artifacts/%", s->project, id,
                                         text_of(n, "id"), names[2], NULL);
        if (!path)
            return err_set(err, ERR_NOMEM, "no memory for a request");
        if (client_text(s, path, &bytes, err) < 0)
            return -(int)err->code;
        terminal_write(stdout, bytes.data, bytes.n);
        return 0;
    }
    return err_set(err, ERR_MISSING, "step \"%.200s\" has left no artifact \"%.64s\"", names[1],
                   names[2]);
}

/* A table; with a step and a name, the bytes of that one. */
static int artifacts(struct client *s, const void *args, char **names, struct err *err)
{
    const struct args *a = args;
    OWN_JSON json_t *doc = NULL, *all = json_array();
    OWN_MEM char *id = NULL;
    size_t i;
    json_t *n, *art;
    const char *name;

    if (run_id(s, names[0], &id, err) < 0 || call(s, "GET", id, "/nodes", &doc, err) < 0)
        return -(int)err->code;
    const json_t *nodes = json_object_get(doc, "nodes");
    if (names[1] && names[2])
        return print_artifact(s, id, nodes, names, err);
    json_array_foreach((json_t *)nodes, i, n) {
        if (!is_step(n) || !is_named(n, names[1]))
            continue;
        json_t *left = json_object_get(json_object_get(n, "outputs"), "artifacts");
        json_object_foreach(left, name, art) {
            json_t *one = json_pack("{s:s, s:s}", "step", text_of(n, "name"), "artifact", name);
            json_object_update_missing(one, art);
            json_array_append_new(all, one);
        }
    }
    if (a->json) {
        listing_json(all);
        return 0;
    }
    json_array_foreach(all, i, art)
        printf("%12ld  %s  %s  %s\n", whole_of(art, "size"), text_of(art, "step"),
               text_of(art, "artifact"), text_of(art, "uri"));
    return 0;
}

static int explain(struct client *s, const void *args, char **names, struct err *err)
{
    const struct args *a = args;
    OWN_JSON json_t *doc = NULL;
    OWN_MEM char *id = NULL;
    size_t i;
    json_t *e;

    if (run_id(s, names[0], &id, err) < 0 || call(s, "GET", id, "/explain", &doc, err) < 0)
        return -(int)err->code;
    if (a->json) {
        listing_json(json_object_get(doc, "steps"));
        return 0;
    }
    json_array_foreach(json_object_get(doc, "steps"), i, e)
        printf("%-7s %-9s %s: %s\n", json_is_true(json_object_get(e, "cached")) ? "cached" : "ran",
               text_of(e, "phase"), text_of(e, "name"), text_of(e, "why"));
    return 0;
}

/* ------------------------------------------------------------ changes */

static int each(struct client *s, char **names, const char *method, const char *rest,
                const char *said, struct err *err)
{
    for (; *names; names++) {
        OWN_MEM char *id = NULL;
        if (run_id(s, *names, &id, err) < 0 || call(s, method, id, rest, NULL, err) < 0)
            return -(int)err->code;
        printf("%s: %s\n", *names, said);
    }
    return 0;
}

static int terminate(struct client *s, const void *args, char **names, struct err *err)
{
    (void)args;
    return each(s, names, "POST", "/terminate", "is being terminated", err);
}

static int retry(struct client *s, const void *args, char **names, struct err *err)
{
    const struct args *a = args;
    OWN_MEM char *id = NULL;

    if (each(s, names, "POST", "/retry", "what failed runs again", err) < 0)
        return -(int)err->code;
    if (!a->wait)
        return 0;
    return run_id(s, names[0], &id, err) < 0 ? -(int)err->code : wait_for(s, id, a, err);
}

static int resume(struct client *s, const void *args, char **names, struct err *err)
{
    (void)args;
    return each(s, names, "POST", "/resume", "goes on", err);
}

static int archive(struct client *s, const void *args, char **names, struct err *err)
{
    (void)args;
    return each(s, names, "POST", "/archive", "archived", err);
}

static int unarchive(struct client *s, const void *args, char **names, struct err *err)
{
    (void)args;
    return each(s, names, "POST", "/unarchive", "no longer archived", err);
}

static int delete_runs(struct client *s, const void *args, char **names, struct err *err)
{
    (void)args;
    return each(s, names, "DELETE", "", "deleted, with its logs and artifacts", err);
}

static const struct verb verbs[] = {
    { "list", "", 0, 0, list },
    { "show", "RUN", 1, 1, show },
    { "create", "PIPELINE", 1, 1, create },
    { "logs", "RUN [STEP]", 1, 2, logs },
    { "artifacts", "RUN [STEP [NAME]]", 1, 3, artifacts },
    { "explain", "RUN", 1, 1, explain },
    { "terminate", "RUN...", 1, VERB_MANY, terminate },
    { "retry", "RUN", 1, 1, retry },
    { "resume", "RUN...", 1, VERB_MANY, resume },
    { "archive", "RUN...", 1, VERB_MANY, archive },
    { "unarchive", "RUN...", 1, VERB_MANY, unarchive },
    { "delete", "RUN...", 1, VERB_MANY, delete_runs },
    { 0 }
};

static int run(struct cli *c, int argc, char **argv, struct err *err)
{
    struct args a = { .limit = 100, .cli = c };

    return verb_run(&command_runs, verbs, argc, argv, &a, err);
}

const struct command command_runs = {
    .name = "runs",
    .args = "list|show|create|logs|artifacts|explain|terminate|retry|resume|archive|unarchive|"
            "delete [RUN...]",
    .summary = "run pipelines, look at their steps, end them",
    .example = "muster runs create train -p epochs=3 --wait\n"
               "muster runs show train-4x7bq\n"
               "muster runs logs train-4x7bq preprocess\n"
               "muster runs explain train-4x7bq\n"
               "muster runs artifacts train-4x7bq train model > model.pt",
    .more = "A RUN is called by its workflow's name, by its own name (the newest of it) or by its "
            "id; a STEP by\nthe last part of its name, the whole of it or its id. muster apply -f "
            "runs a file directly.",
    .options = options,
    .run = run,
};
