/* protocols/native_runs.c - /api/runs, /api/recurring: runs of pipelines, begun now or by the
 * clock, looked at, asked for things */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/json.h"
#include "pipelines/catalog.h"
#include "pipelines/runs.h"
#include "pipelines/schedule.h"
#include "protocols/native.h"
#include "server/jobs.h"
#include "server/scalars.h"
#include "server/server.h"
#include "server/volumes.h"

enum { BEAT_S = 15, PATH_SIZE = 4096 };
static const double WATCH_S = 0.1;      /* between two looks at a run that is watched */

/* The run that the path names, when the token may see it. */
struct run_name { const char *project, *id; };

static int run_of(const struct request *q, struct run_name *out, struct err *err)
{
    *out = (struct run_name){ request_arg(q, "project"), request_arg(q, "id") };
    return request_allows(q, out->project, err);
}

/* An experiment is called by its name here, and made when it is not there. */
static int experiment_of(struct server *s, const char *project, const char *name, json_t **out,
                         struct err *err)
{
    struct err none = { 0 };

    if (!*name)
        return 0;
    if (rows_find(s, &rows_experiments, project, "", name, out, &none) == 0)
        return 0;
    return experiments_create(s, project, name, "", out, err);
}

static int create_run(struct request *q, struct err *err)
{
    OWN_JSON json_t *doc = NULL, *experiment = NULL;
    const char *project;
    json_t *run;

    if (request_json(q, &doc, err) < 0 ||
        native_project(q, json_string_value(json_object_get(doc, "project")), &project, err) < 0 ||
        experiment_of(request_server(q), project, text_of(doc, "experiment"), &experiment, err) < 0)
        return -(int)err->code;
    const char *pipeline = text_of(doc, "pipeline"), *version = text_of(doc, "version");
    const json_t *text = json_object_get(doc, "text");
    const struct run_request r = {
        .project = project, .name = json_string_value(json_object_get(doc, "name")),
        .description = text_of(doc, "description"),
        .experiment = json_string_value(json_object_get(experiment, "id")),
        .pipeline = *pipeline ? pipeline : NULL, .version = *version ? version : NULL,
        .parameters = json_object_get(doc, "parameters"), .text = json_string_value(text),
        .text_n = json_string_length(text), .file = text_of(doc, "file"), .api = "native",
        .no_cache = json_is_true(json_object_get(doc, "no_cache")),
        .host_files = !request_project(q),
    };
    if (runs_create(request_server(q), &r, &run, err) < 0)
        return -(int)err->code;
    return respond_json(q, 201, run);
}

/* {KEY: a page of documents, "next", "total"} */
static int list(struct request *q, const struct rows_kind *kind, const char *key, struct err *err)
{
    const char *named = request_query(q, "project"), *limit = request_query(q, "limit");
    const char *state = request_query(q, "state"), *archived = request_query(q, "archived");
    OWN_JSON json_t *filter = state && *state
        ? json_pack("[{s:s, s:s, s:s}]", "key", "state", "op", "EQUALS", "value", state) : NULL;
    const struct rows_query query = {
        .project = named && *named ? named : request_project(q),
        .parent = request_query(q, "experiment"), .text = request_query(q, "text"),
        .sort = request_query(q, "sort"), .filter = filter, .token = request_query(q, "token"),
        .limit = limit ? (int)strtol(limit, NULL, 10) : 0,
        .archived = archived ? !strcmp(archived, "true") : 0,
    };
    OWN_MEM char *next = NULL;
    json_t *rows;
    int64_t total;

    if ((query.project && request_allows(q, query.project, err) < 0) ||
        rows_list(request_server(q), kind, &query, &rows, &next, &total, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, json_pack("{s:o, s:s, s:I}", key, rows, "next", next, "total",
                                          (json_int_t)total));
}

static int list_runs(struct request *q, struct err *err)
{
    return list(q, &rows_runs, "runs", err);
}

static int get_run(struct request *q, struct err *err)
{
    struct run_name r;
    json_t *doc;

    if (run_of(q, &r, err) < 0 || runs_get(request_server(q), r.project, r.id, &doc, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, doc);
}

static int delete_run(struct request *q, struct err *err)
{
    struct run_name r;

    if (run_of(q, &r, err) < 0 || runs_delete(request_server(q), r.project, r.id, err) < 0)
        return -(int)err->code;
    return respond_empty(q, 204);
}

static int terminate_run(struct request *q, struct err *err)
{
    struct run_name r;

    if (run_of(q, &r, err) < 0 ||
        runs_terminate(request_server(q), r.project, r.id, "user", err) < 0)
        return -(int)err->code;
    return get_run(q, err);
}

static int retry_run(struct request *q, struct err *err)
{
    struct run_name r;

    if (run_of(q, &r, err) < 0 || runs_retry(request_server(q), r.project, r.id, err) < 0)
        return -(int)err->code;
    return get_run(q, err);
}

static int archive(struct request *q, bool to, struct err *err)
{
    struct run_name r;

    if (run_of(q, &r, err) < 0 || runs_archive(request_server(q), r.project, r.id, to, err) < 0)
        return -(int)err->code;
    return get_run(q, err);
}

static int archive_run(struct request *q, struct err *err)
{
    return archive(q, true, err);
}

static int unarchive_run(struct request *q, struct err *err)
{
    return archive(q, false, err);
}

/* ?node=: one that is suspended; else all that are. */
static int resume_run(struct request *q, struct err *err)
{
    const char *node = request_query(q, "node");
    struct run_name r;

    if (run_of(q, &r, err) < 0 ||
        runs_resume(request_server(q), r.project, r.id, node && *node ? node : NULL, err) < 0)
        return -(int)err->code;
    return get_run(q, err);
}

/* ?brief=1: without inputs and outputs, which may be large. */
static int get_nodes(struct request *q, struct err *err)
{
    const char *brief = request_query(q, "brief");
    struct run_name r;
    json_t *nodes, *n;
    size_t i;

    if (run_of(q, &r, err) < 0 || runs_nodes(request_server(q), r.project, r.id, &nodes, err) < 0)
        return -(int)err->code;
    json_array_foreach(nodes, i, n) {
        if (!brief || !*brief)
            break;
        json_object_del(n, "inputs");
        json_object_del(n, "outputs");
    }
    return respond_json(q, 200, json_pack("{s:o}", "nodes", nodes));
}

static int get_node(struct request *q, struct err *err)
{
    struct run_name r;
    json_t *node;

    if (run_of(q, &r, err) < 0 ||
        runs_node(request_server(q), r.project, r.id, request_arg(q, "node"), &node, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, node);
}

/* Numbers that a step left, in its own directory and on the volumes that it has mounted. */
static int get_scalars(struct request *q, struct err *err)
{
    OWN_JSON json_t *node = NULL, *job = NULL, *all = json_object();
    struct server *s = request_server(q);
    struct err none = { 0 };
    struct run_name r;
    json_t *mount, *found = NULL;
    char path[PATH_SIZE];
    size_t i;

    if (run_of(q, &r, err) < 0 ||
        runs_node(s, r.project, r.id, request_arg(q, "node"), &node, err) < 0)
        return -(int)err->code;
    const char *name = text_of(node, "job");
    if (!*name || jobs_get(s, r.project, name, &job, &none) < 0)
        return respond_json(q, 200, TAKE(all));
    if (jobs_dir(s, r.project, name, path, sizeof path, &none) == 0 && *path &&
        scalars_read(path, &found, &none) == 0) {
        json_object_update(all, found);
        json_decref(found);
    }
    const json_t *step = json_object_get(json_object_get(job, "spec"), "step");
    json_array_foreach(json_object_get(step, "mounts"), i, mount) {
        const char *from = text_of(mount, "from");
        if (strncmp(from, "volume:", 7) ||
            volumes_path(s, r.project, from + 7, path, sizeof path, &none) < 0 ||
            scalars_read_below(path, &found, &none) < 0)
            continue;
        json_object_update_missing(all, found);
        json_decref(found);
    }
    return respond_json(q, 200, TAKE(all));
}

/* ------------------------------------------------------------ watched */

/* A run that is told of when something in it has changed. Owned by one connection. */
struct watch {
    struct server *server;
    char project[128], id[ROWS_ID];
    int64_t clock;
    double looked, beat;
    struct buf out;             /* not yet taken */
    size_t taken;
    bool ended;
};

static void watch_free(void *arg)
{
    struct watch *w = arg;

    buf_done(&w->out);
    free(w);
}

/* Fills w->out, where there are news. */
static void watch_look(struct watch *w, double now)
{
    OWN_JSON json_t *doc = NULL;
    struct err err = { 0 };
    const int64_t clock = runs_clock(w->server);

    w->looked = now;
    if (clock == w->clock) {
        if (now > w->beat + BEAT_S)
            buf_text(&w->out, ":\n\n");
        return;
    }
    w->clock = clock;
    if (runs_get(w->server, w->project, w->id, &doc, &err) == 0) {
        OWN_MEM char *text = json_dumps(doc, JSON_COMPACT);
        w->ended = number_of(doc, "ended") > 0;
        buf_printf(&w->out, "data: %s\n\n", text ? text : "{}");
    } else {
        w->ended = true;        /* it was deleted */
    }
    if (w->ended)
        buf_text(&w->out, "event: end\ndata: {}\n\n");
}

static long watch_more(void *arg, char *out, size_t max)
{
    struct watch *w = arg;
    const double now = clock_seconds();

    if (w->taken == w->out.n) {
        if (w->ended)
            return -1;
        buf_clear(&w->out);
        w->taken = 0;
        if (now >= w->looked + WATCH_S)
            watch_look(w, now);
        if (w->out.failed)
            return -1;
    }
    const size_t left = w->out.n - w->taken, take = left < max ? left : max;
    if (take) {
        memcpy(out, w->out.data + w->taken, take);
        w->taken += take;
        w->beat = now;
    }
    return (long)take;
}

/* Server-sent events: the document of the run at once, and after each change, to its end. */
static int watch_run(struct request *q, struct err *err)
{
    OWN_JSON json_t *doc = NULL;
    struct run_name r;

    if (run_of(q, &r, err) < 0 || runs_get(request_server(q), r.project, r.id, &doc, err) < 0)
        return -(int)err->code;
    struct watch *w = calloc(1, sizeof *w);
    if (!w)
        return err_set(err, ERR_NOMEM, "no memory to watch a run");
    *w = (struct watch){ .server = request_server(q), .clock = -1, .beat = clock_seconds() };
    snprintf(w->project, sizeof w->project, "%s", r.project);
    snprintf(w->id, sizeof w->id, "%s", r.id);
    respond_header(q, "Cache-Control", "no-cache");
    respond_header(q, "X-Accel-Buffering", "no");
    return respond_stream(q, 200, "text/event-stream; charset=utf-8", watch_more, w, watch_free);
}

static int get_events(struct request *q, struct err *err)
{
    const char *after = request_query(q, "after");
    struct run_name r;
    json_t *events;

    if (run_of(q, &r, err) < 0 ||
        runs_events(request_server(q), r.project, r.id, after ? strtoll(after, NULL, 10) : 0,
                    &events, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, json_pack("{s:o}", "events", events));
}

static int get_explanation(struct request *q, struct err *err)
{
    struct run_name r;
    json_t *steps;

    if (run_of(q, &r, err) < 0 ||
        runs_explain(request_server(q), r.project, r.id, &steps, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, json_pack("{s:o}", "steps", steps));
}

static int get_text(struct request *q, struct err *err)
{
    struct run_name r;
    OWN_MEM char *text = NULL;
    size_t n;

    if (run_of(q, &r, err) < 0 ||
        runs_text(request_server(q), r.project, r.id, &text, &n, NULL, err) < 0)
        return -(int)err->code;
    return respond_bytes(q, 200, "text/plain; charset=utf-8", text, n);
}

static int get_flow(struct request *q, struct err *err)
{
    struct run_name r;
    json_t *flow;

    if (run_of(q, &r, err) < 0 ||
        runs_text(request_server(q), r.project, r.id, NULL, NULL, &flow, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, flow);
}

static int send_artifact(struct request *q, const char *type, struct err *err)
{
    OWN_JSON json_t *art = NULL;
    struct run_name r;
    struct stat st;
    OWN_FD int fd = -1;

    if (run_of(q, &r, err) < 0 ||
        runs_artifact(request_server(q), r.project, r.id, request_arg(q, "node"),
                      request_arg(q, "name"), &art, &fd, err) < 0)
        return -(int)err->code;
    if (fstat(fd, &st) < 0)
        return err_set(err, ERR_IO, "cannot read the artifact: %s", strerror(errno));
    respond_file(q, 200, type, fd, 0, (uint64_t)st.st_size);
    fd = -1;
    return 0;
}

/* As bytes for a download: a page that a step made never runs as one of ours. */
static int get_artifact(struct request *q, struct err *err)
{
    respond_header(q, "Content-Disposition", "attachment");
    return send_artifact(q, "application/octet-stream", err);
}

/* As a page, for a frame of the console: it may have colours and pictures of its own, and that is
 * all. No script, no address but its own, no form, nothing of our origin. */
static int show_page(struct request *q, struct err *err)
{
    respond_header(q, "Content-Security-Policy",
                   "default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; "
                   "base-uri 'none'; form-action 'none'; frame-ancestors 'self'; sandbox");
    return send_artifact(q, "text/html; charset=utf-8", err);
}

/* ------------------------------------------------------------ recurring runs */

/* {"name", "trigger": {"cron" | "interval_s", "start"?, "end"?}, "pipeline" and "version"? or
 * "text",
 *  "parameters"?, "experiment"?, "max_concurrency"?, "no_catchup"?, "disabled"?} */
static int create_recurring(struct request *q, struct err *err)
{
    OWN_JSON json_t *doc = NULL, *experiment = NULL;
    const char *project;
    json_t *made;

    if (request_json(q, &doc, err) < 0 ||
        native_project(q, json_string_value(json_object_get(doc, "project")), &project, err) < 0 ||
        experiment_of(request_server(q), project, text_of(doc, "experiment"), &experiment, err) < 0)
        return -(int)err->code;
    const char *pipeline = text_of(doc, "pipeline"), *version = text_of(doc, "version");
    const json_t *text = json_object_get(doc, "text"), *given = json_object_get(doc, "parameters");
    const struct recurring_request r = {
        .project = project, .name = text_of(doc, "name"),
        .description = text_of(doc, "description"),
        .experiment = json_string_value(json_object_get(experiment, "id")),
        .pipeline = *pipeline ? pipeline : NULL, .version = *version ? version : NULL,
        .text = json_string_value(text), .text_n = json_string_length(text),
        .parameters = json_is_object(given) ? given : NULL,
        .trigger = json_object_get(doc, "trigger"), .api = "native",
        .max_concurrency = (int)whole_of(doc, "max_concurrency"),
        .no_catchup = json_is_true(json_object_get(doc, "no_catchup")),
        .disabled = json_is_true(json_object_get(doc, "disabled")),
        .no_cache = json_is_true(json_object_get(doc, "no_cache")),
        .host_files = !request_project(q),
    };
    if (recurring_create(request_server(q), &r, &made, err) < 0)
        return -(int)err->code;
    return respond_json(q, 201, made);
}

static int list_recurring(struct request *q, struct err *err)
{
    return list(q, &rows_recurring, "recurring", err);
}

static int get_recurring(struct request *q, struct err *err)
{
    struct run_name r;
    json_t *doc;

    if (run_of(q, &r, err) < 0 ||
        recurring_get(request_server(q), r.project, r.id, &doc, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, doc);
}

static int set_recurring(struct request *q, bool on, struct err *err)
{
    struct run_name r;

    if (run_of(q, &r, err) < 0 ||
        recurring_enable(request_server(q), r.project, r.id, on, err) < 0)
        return -(int)err->code;
    return get_recurring(q, err);
}

static int enable_recurring(struct request *q, struct err *err)
{
    return set_recurring(q, true, err);
}

static int disable_recurring(struct request *q, struct err *err)
{
    return set_recurring(q, false, err);
}

static int delete_recurring(struct request *q, struct err *err)
{
    struct run_name r;

    if (run_of(q, &r, err) < 0 ||
        recurring_delete(request_server(q), r.project, r.id, err) < 0)
        return -(int)err->code;
    return respond_empty(q, 204);
}

#define RECURRING "/api/recurring/{project}/{id}"

static const struct http_route routes[] = {
    { "GET", "/api/runs", HTTP_WAITS, list_runs, NULL },
    { "POST", "/api/runs", HTTP_WAITS, create_run, NULL },
    { "GET", "/api/runs/{project}/{id}", HTTP_WAITS, get_run, NULL },
    { "DELETE", "/api/runs/{project}/{id}", HTTP_WAITS, delete_run, NULL },
    { "POST", "/api/runs/{project}/{id}/terminate", HTTP_WAITS, terminate_run, NULL },
    { "POST", "/api/runs/{project}/{id}/retry", HTTP_WAITS, retry_run, NULL },
    { "POST", "/api/runs/{project}/{id}/archive", HTTP_WAITS, archive_run, NULL },
    { "POST", "/api/runs/{project}/{id}/unarchive", HTTP_WAITS, unarchive_run, NULL },
    { "POST", "/api/runs/{project}/{id}/resume", HTTP_WAITS, resume_run, NULL },
    { "GET", "/api/runs/{project}/{id}/nodes", HTTP_WAITS, get_nodes, NULL },
    { "GET", "/api/runs/{project}/{id}/watch", HTTP_WAITS, watch_run, NULL },
    { "GET", "/api/runs/{project}/{id}/flow", HTTP_WAITS, get_flow, NULL },
    { "GET", "/api/runs/{project}/{id}/nodes/{node}", HTTP_WAITS, get_node, NULL },
    { "GET", "/api/runs/{project}/{id}/nodes/{node}/scalars", HTTP_WAITS, get_scalars, NULL },
    { "GET", "/api/runs/{project}/{id}/nodes/{node}/pages/{name}", HTTP_WAITS, show_page, NULL },
    { "GET", "/api/runs/{project}/{id}/events", HTTP_WAITS, get_events, NULL },
    { "GET", "/api/runs/{project}/{id}/explain", HTTP_WAITS, get_explanation, NULL },
    { "GET", "/api/runs/{project}/{id}/text", HTTP_WAITS, get_text, NULL },
    { "GET", "/api/runs/{project}/{id}/nodes/{node}/artifacts/{name}", HTTP_WAITS, get_artifact,
      NULL },
    { "GET", "/api/recurring", HTTP_WAITS, list_recurring, NULL },
    { "POST", "/api/recurring", HTTP_WAITS, create_recurring, NULL },
    { "GET", RECURRING, HTTP_WAITS, get_recurring, NULL },
    { "DELETE", RECURRING, HTTP_WAITS, delete_recurring, NULL },
    { "POST", RECURRING "/enable", HTTP_WAITS, enable_recurring, NULL },
    { "POST", RECURRING "/disable", HTTP_WAITS, disable_recurring, NULL },
    { 0 }
};

const struct protocol protocol_native_runs = { "runs", routes, native_error };
