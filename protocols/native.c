/* protocols/native.c - muster's own API: who asks, projects, values, the machine, health,
 * metrics */
#include "protocols/native.h"

#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "pipelines/rows.h"
#include "server/auth.h"
#include "server/jobs.h"
#include "server/objects.h"
#include "server/queue.h"
#include "server/server.h"
#include "server/tickets.h"
#include "server/volumes.h"

void native_error(struct request *q, const struct err *err)
{
    const int status = request_error_status(q, err);

    respond_json(q, status, json_pack("{s:{s:i, s:s}}", "error", "code", status, "message",
                                      err->text));
}

int native_project(const struct request *q, const char *named, const char **out, struct err *err)
{
    const char *project = named && *named ? named
        : request_project(q) ? request_project(q) : "default";

    if (request_allows(q, project, err) < 0)
        return -(int)err->code;
    if (!auth_project_exists(request_server(q)->auth, project))
        return err_set(err, ERR_MISSING,
                       "there is no project \"%.64s\" here (muster project add NAME "
                       "makes one)",
                       project);
    *out = project;
    return 0;
}

static struct auth *auth_of(struct request *q)
{
    return request_server(q)->auth;
}

/* ------------------------------------------------------------ health, log-in */

static int get_health(struct request *q, struct err *err)
{
    (void)err;
    return respond_json(q, 200, json_pack("{s:s, s:s}", "status", "ok", "version", MUSTER_VERSION));
}

/* A text of the body; ERR_INVALID where it is none. `need` 0: NULL when it is absent. */
static int body_text(const json_t *doc, const char *key, bool need, const char **out,
                     struct err *err)
{
    const json_t *v = json_object_get(doc, key);

    if (!json_is_object(doc) || (v && !json_is_string(v)) || (!v && need))
        return err_set(err, ERR_INVALID, "the body is an object with a text \"%s\"", key);
    *out = json_string_value(v);
    return 0;
}

/* The link's token comes after its '#', which a browser sends nowhere; the page takes it out of the
 * address and asks here. What the page keeps, in the storage of its origin, is a session's, never the
 * token; it comes back in the header "Authorization". */
static int post_login(struct request *q, struct err *err)
{
    const char *token;
    char session[AUTH_TOKEN];
    OWN_JSON json_t *doc = NULL;

    if (request_json(q, &doc, err) < 0 || body_text(doc, "token", true, &token, err) < 0
        || auth_session_add(auth_of(q), token, session, err) < 0)
        return -(int)err->code;
    log_event(LEVEL_INFO, "session.began", "{}");
    return respond_json(q, 200, json_pack("{s:s, s:i}", "session", session, "seconds",
                                          (int)AUTH_SESSION_S));
}

static int post_logout(struct request *q, struct err *err)
{
    const char *session = request_session(q);

    if (session && auth_session_remove(auth_of(q), session, err) < 0)
        return -(int)err->code;
    return respond_empty(q, 204);
}

/* {"target": "/path?query"}: for what a browser fetches without the page's headers. */
static int post_ticket(struct request *q, struct err *err)
{
    const char *target;
    char ticket[AUTH_TOKEN];
    OWN_JSON json_t *doc = NULL;

    if (request_json(q, &doc, err) < 0 || body_text(doc, "target", true, &target, err) < 0
        || request_ticket(q, target, ticket, err) < 0)
        return -(int)err->code;
    return respond_json(q, 201, json_pack("{s:s, s:i}", "ticket", ticket, "seconds",
                                          (int)TICKETS_S));
}

static int get_whoami(struct request *q, struct err *err)
{
    const struct server *s = request_server(q);

    (void)err;
    return respond_json(q, 200, json_pack("{s:s?, s:b, s:s?, s:s, s:s}", "project",
                                          request_project(q), "root", request_project(q) == NULL,
                                          "job", request_job(q), "address", s->address, "version",
                                          MUSTER_VERSION));
}

/* ------------------------------------------------------------ projects and tokens */

static int list_projects(struct request *q, struct err *err)
{
    json_t *rows;

    if (auth_project_list(auth_of(q), &rows, err) < 0)
        return -(int)err->code;
    for (size_t i = json_array_size(rows); request_project(q) && i-- > 0;)
        if (strcmp(json_string_value(json_object_get(json_array_get(rows, i), "name")),
                   request_project(q)))
            json_array_remove(rows, i);
    return respond_json(q, 200, json_pack("{s:o}", "projects", rows));
}

static int add_project(struct request *q, struct err *err)
{
    OWN_JSON json_t *doc = NULL;
    const char *name;

    if (request_json(q, &doc, err) < 0 || body_text(doc, "name", true, &name, err) < 0
        || auth_project_add(auth_of(q), name, err) < 0)
        return -(int)err->code;
    return respond_json(q, 201, json_pack("{s:s}", "name", name));
}

static int count_bucket(void *arg, const struct bucket *b)
{
    (void)b;
    ++*(long *)arg;
    return 0;
}

/* Whatever else is kept for it: a later project of the name would find it. */
static int check_empty(struct server *s, const char *project, struct err *err)
{
    static const struct rows_kind *const kinds[] = { &rows_runs, &rows_recurring, &rows_pipelines };
    OWN_JSON json_t *volumes = NULL;
    long buckets = 0;

    if (buckets_list(s, project, NULL, NULL, count_bucket, &buckets, err) < 0 ||
        volumes_list(s, project, &volumes, err) < 0)
        return -(int)err->code;
    if (buckets || json_array_size(volumes))
        return err_set(err, ERR_CONFLICT, "project \"%s\" has %ld buckets and %zu volumes (remove "
                       "them first)", project, buckets, json_array_size(volumes));
    for (size_t i = 0; s->runs && i < sizeof kinds / sizeof kinds[0]; i++) {
        const struct rows_query all = { .project = project, .limit = 1, .archived = -1 };
        OWN_JSON json_t *rows = NULL;
        OWN_MEM char *token = NULL;
        int64_t n = 0;
        if (rows_list(s, kinds[i], &all, &rows, &token, &n, err) < 0)
            return -(int)err->code;
        if (n)
            return err_set(err, ERR_CONFLICT, "project \"%s\" has %lld %s%s (delete %s first)",
                           project, (long long)n, kinds[i]->what, n == 1 ? "" : "s",
                           n == 1 ? "it" : "them");
    }
    return 0;
}

/* What runs in it would go on without anybody who may see it. */
static int remove_project(struct request *q, struct err *err)
{
    struct server *s = request_server(q);
    const char *project = request_arg(q, "project"), *state;
    OWN_JSON json_t *counts = NULL;
    json_t *n;
    long jobs = 0;

    if (jobs_count(s, project, &counts, err) < 0)
        return -(int)err->code;
    json_object_foreach(counts, state, n)
        jobs += (long)json_integer_value(n);
    if (jobs)
        return err_set(err, ERR_CONFLICT, "project \"%s\" has %ld job%s (delete them first)",
                       project, jobs, jobs == 1 ? "" : "s");
    if (check_empty(s, project, err) < 0 || auth_project_remove(s->auth, project, err) < 0)
        return -(int)err->code;
    return respond_empty(q, 204);
}

static int list_tokens(struct request *q, struct err *err)
{
    const char *project = request_arg(q, "project");
    json_t *rows;

    if (request_allows(q, project, err) < 0
        || auth_token_list(auth_of(q), project, &rows, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, json_pack("{s:o}", "tokens", rows));
}

static int add_token(struct request *q, struct err *err)
{
    OWN_JSON json_t *doc = NULL;
    const char *project = request_arg(q, "project"), *label = NULL;
    char token[AUTH_TOKEN], id[16];

    if (request_json(q, &doc, err) < 0 || body_text(doc, "label", false, &label, err) < 0
        || auth_token_add(auth_of(q), project, label ? label : "", token, id, err) < 0)
        return -(int)err->code;
    log_event(LEVEL_INFO, "token.added", "{s:s, s:s}", "project", project, "id", id);
    return respond_json(q, 201, json_pack("{s:s, s:s, s:s}", "id", id, "project", project, "token",
                                          token));
}

static int remove_token(struct request *q, struct err *err)
{
    const char *project = request_arg(q, "project"), *id = request_arg(q, "id");

    if (auth_token_remove(auth_of(q), project, id, err) < 0)
        return -(int)err->code;
    log_event(LEVEL_INFO, "token.removed", "{s:s, s:s}", "project", project, "id", id);
    return respond_empty(q, 204);
}

/* ------------------------------------------------------------ values */

/* The word in the path says which kind. */
static int kind_of(const struct request *q, enum auth_kind *out, struct err *err)
{
    const char *word = request_arg(q, "kind");

    if (strcmp(word, "secrets") && strcmp(word, "config"))
        return err_set(err, ERR_MISSING, "a project has \"secrets\" and \"config\", no \"%.64s\"",
                       word);
    *out = strcmp(word, "secrets") ? AUTH_CONFIG : AUTH_SECRET;
    return request_allows(q, request_arg(q, "project"), err);
}

static int list_values(struct request *q, struct err *err)
{
    enum auth_kind kind;
    json_t *rows;

    if (kind_of(q, &kind, err) < 0
        || auth_value_list(auth_of(q), kind, request_arg(q, "project"), &rows, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, json_pack("{s:o}", "values", rows));
}

static int set_value(struct request *q, struct err *err)
{
    OWN_JSON json_t *doc = NULL;
    enum auth_kind kind;
    const char *value;

    if (kind_of(q, &kind, err) < 0 || request_json(q, &doc, err) < 0 ||
        body_text(doc, "value", true, &value, err) < 0 ||
        auth_value_set(auth_of(q), kind, request_arg(q, "project"), request_arg(q, "name"), value,
                       err) < 0)
        return -(int)err->code;
    return respond_empty(q, 204);
}

static int remove_value(struct request *q, struct err *err)
{
    enum auth_kind kind;

    if (kind_of(q, &kind, err) < 0
        || auth_value_remove(auth_of(q), kind, request_arg(q, "project"), request_arg(q, "name"),
                             err) < 0)
        return -(int)err->code;
    return respond_empty(q, 204);
}

/* ------------------------------------------------------------ the machine */

static json_t *pick(const json_t *doc, const char *key)
{
    json_t *v = json_object_get(doc, key);
    return v ? json_incref(v) : json_integer(0);
}

static int get_machine(struct request *q, struct err *err)
{
    struct server *s = request_server(q);
    OWN_JSON json_t *m = queue_machine(s->queue), *counts = NULL;
    const json_t *used = json_object_get(m, "used");
    const double cores = json_number_value(json_object_get(m, "cores"));

    if (jobs_count(s, request_project(q), &counts, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, json_pack(
        "{s:{s:f, s:f, s:o, s:o}, s:{s:o, s:o}, s:{s:o, s:o}, s:o, s:o, s:O, s:f}",
        "cpu", "total", cores, "limit", cores * s->load_limit, "used", pick(used, "cpu"),
               "load", pick(m, "load"),
        "memory", "total", pick(m, "memory"), "used", pick(used, "memory"),
        "gpu", "total", pick(m, "gpus"), "used", pick(used, "gpu"),
        "running", pick(m, "running"), "waiting", pick(m, "waiting"), "jobs", counts,
        "started", s->started));
}

/* ------------------------------------------------------------ metrics */

static long resident_bytes(void)
{
    OWN_FILE FILE *f = fopen("/proc/self/statm", "r");
    long pages = 0;

    if (!f || fscanf(f, "%*d %ld", &pages) != 1)
        return 0;
    return pages * sysconf(_SC_PAGESIZE);
}

static void add_metric(struct buf *b, const char *name, const char *type, const char *help)
{
    buf_printf(b, "# HELP muster_%s %s\n# TYPE muster_%s %s\n", name, help, name, type);
}

static void add_http(struct buf *b, struct http *h)
{
    struct http_stats st;
    uint64_t sum = 0;

    http_stats(h, &st);
    add_metric(b, "http_requests_total", "counter", "Answers by the first digit of their status.");
    for (int i = 1; i < 6; i++)
        buf_printf(b, "muster_http_requests_total{status=\"%dxx\"} %lu\n", i, st.by_status[i]);
    add_metric(b, "http_refused_total", "counter", "Connections and heads that were no request.");
    buf_printf(b, "muster_http_refused_total %lu\n", st.by_status[0]);
    add_metric(b, "http_request_seconds", "histogram", "From the whole head to the last byte.");
    for (int i = 0; i < HTTP_BUCKETS; i++) {
        sum += st.latency[i];
        if (i < HTTP_BUCKETS - 1)
            buf_printf(b, "muster_http_request_seconds_bucket{le=\"%g\"} %lu\n", http_bucket_s[i],
                       sum);
    }
    buf_printf(b, "muster_http_request_seconds_bucket{le=\"+Inf\"} %lu\n"
               "muster_http_request_seconds_sum %.6f\nmuster_http_request_seconds_count %lu\n", sum,
               st.latency_sum_s, sum);
    add_metric(b, "http_bytes_total", "counter", "Bytes of requests and answers.");
    buf_printf(
        b, "muster_http_bytes_total{way=\"in\"} %lu\nmuster_http_bytes_total{way=\"out\"} %lu\n",
        st.bytes_in, st.bytes_out);
    add_metric(b, "http_connections", "gauge", "Connections that are open.");
    buf_printf(b, "muster_http_connections %lu\n", st.connections_open);
    add_metric(b, "http_connections_total", "counter", "Connections there have been.");
    buf_printf(b, "muster_http_connections_total %lu\n", st.connections_all);
    add_metric(b, "http_dropped_total", "counter", "Connections closed to make room for new ones.");
    buf_printf(b, "muster_http_dropped_total %lu\n", st.connections_dropped);
    add_metric(b, "http_streams", "gauge", "Logs and events that are being followed.");
    buf_printf(b, "muster_http_streams %lu\n", st.streams_open);
}

static int get_metrics(struct request *q, struct err *err)
{
    struct server *s = request_server(q);
    OWN_JSON json_t *counts = NULL;
    OWN_BUF b = BUF_INIT;
    const char *state;
    json_t *n;

    if (jobs_count(s, NULL, &counts, err) < 0)
        return -(int)err->code;
    add_metric(&b, "jobs", "gauge", "Jobs by state.");
    json_object_foreach(counts, state, n)
        buf_printf(&b, "muster_jobs{state=\"%s\"} %lld\n", state, json_integer_value(n));
    add_http(&b, s->http);
    add_metric(&b, "store_commits_total", "counter", "Transactions that reached the disk.");
    buf_printf(&b, "muster_store_commits_total %lu\n", store_commits(s->store));
    add_metric(&b, "resident_bytes", "gauge", "Memory of the server.");
    buf_printf(&b, "muster_resident_bytes %ld\n", resident_bytes());
    add_metric(&b, "started_seconds", "gauge", "When the server started, Unix time.");
    buf_printf(&b, "muster_started_seconds %.3f\n", s->started);
    if (buf_ok(&b, err) < 0)
        return -(int)err->code;
    return respond_bytes(q, 200, "text/plain; version=0.0.4; charset=utf-8", b.data, b.n);
}

static const struct http_route routes[] = {
    { "GET", "/healthz", HTTP_OPEN | HTTP_ALWAYS, get_health, NULL },
    { "POST", "/login", HTTP_OPEN | HTTP_WAITS, post_login, NULL },
    { "POST", "/logout", HTTP_WAITS, post_logout, NULL },
    { "POST", "/api/tickets", 0, post_ticket, NULL },
    { "GET", "/metrics", HTTP_ROOT, get_metrics, NULL },
    { "GET", "/api/whoami", HTTP_JOB, get_whoami, NULL },
    { "GET", "/api/machine", 0, get_machine, NULL },
    { "GET", "/api/projects", 0, list_projects, NULL },
    { "POST", "/api/projects", HTTP_ROOT | HTTP_WAITS, add_project, NULL },
    { "DELETE", "/api/projects/{project}", HTTP_ROOT | HTTP_WAITS, remove_project, NULL },
    { "GET", "/api/projects/{project}/tokens", 0, list_tokens, NULL },
    { "POST", "/api/projects/{project}/tokens", HTTP_ROOT | HTTP_WAITS, add_token, NULL },
    { "DELETE", "/api/projects/{project}/tokens/{id}", HTTP_ROOT | HTTP_WAITS, remove_token, NULL },
    { "GET", "/api/projects/{project}/{kind}", 0, list_values, NULL },
    { "PUT", "/api/projects/{project}/{kind}/{name}", HTTP_WAITS, set_value, NULL },
    { "DELETE", "/api/projects/{project}/{kind}/{name}", HTTP_WAITS, remove_value, NULL },
    { 0 }
};

const struct protocol protocol_native = { "native", routes, native_error };
