/* pipelines/runs_thread.c - the thread of runs: read the logs, put on record, do what is wanted
 *
 * DESIGN. A round reads what is new in the log of runs and applies it to the graphs, reads what is
 * new in the log of jobs and makes node.ended of jobs that ended, asks each graph that changed for
 * the leaves that it wants, and submits them. What a round decides it writes in one transaction; the
 * next round reads it back. Nothing is waited for but the disk: outputs are carried by the hands.
 */
#include <malloc.h>
#include <math.h>
#include <poll.h>
#include <search.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/statvfs.h>

#include "base/clock.h"
#include "base/log.h"
#include "pipelines/runs_act.h"
#include "pipelines/runs_int.h"
#include "pipelines/schedule.h"
#include "server/jobs.h"
#include "server/server.h"
#include "server/volumes.h"

/* The graph of a run that has ended is kept so long after somebody looked at it. */
static const double LOOKED_S = 60;

/* After a failure of the store (a full disk) it is tried again so often. */
enum { TROUBLE_MS = 500 };

/* On a disk that has less than this left, what ended steps leave beside their outputs is not kept. */
enum { SHORT_BYTES = 16 << 20 };

/* So many leaves are begun before it is looked again who has ended. */
enum { BEGIN_MAX = 64 };

void runs_wake(struct server *s)
{
    if (s->heard_fd > 0)
        eventfd_write(s->heard_fd, 1);
}

/* ------------------------------------------------------------ what is put on record next */

void runs_pending(struct runs *r, const struct live *l, const char *type, json_t *body,
                  json_t *patch, json_t *cache)
{
    struct record e = { .type = type, .body = body, .patch = patch, .cache = cache };

    snprintf(e.run, sizeof e.run, "%s", l->id);
    if (r->n_pending == r->pending_cap) {
        int cap = r->pending_cap ? 2 * r->pending_cap : 64;
        struct record *more = realloc(r->pending, (size_t)cap * sizeof *more);
        if (!more) {            /* the run stays as it is until the server starts again */
            log_event(LEVEL_ERROR, "runs.memory", "{s:s}", "run", l->id);
            record_done(&e);
            return;
        }
        r->pending = more;
        r->pending_cap = cap;
    }
    r->pending[r->n_pending++] = e;
}

/* *out: something was written, so there is something to read. */
static int commit(struct runs *r, bool *out, struct err *err)
{
    if (r->n_pending == 0)
        return 0;
    store_point("runs.commit");
    if (runs_log_write(r->server, r->pending, r->n_pending, err) < 0)
        return -(int)err->code;
    store_point("runs.committed");
    r->n_pending = 0;
    *out = true;
    if (r->server->http)
        http_wake(r->server);
    return 0;
}

/* ------------------------------------------------------------ runs that have not ended */

enum { LARGE = 1000 };           /* nodes: their memory is given back at once */

static void live_free(struct live *l)
{
    bool large = l->graph && run_graph_count(l->graph) > LARGE;

    run_graph_free(l->graph);
    json_decref(l->doc);
    json_decref(l->flow);
    json_decref(l->volumes);
    free(l->later);
    pthread_mutex_destroy(&l->lock);
    free(l);
    if (large)
        malloc_trim(0);
}

void live_unref(struct runs *r, struct live *l)
{
    pthread_mutex_lock(&r->lock);
    bool last = --l->refs == 0;
    pthread_mutex_unlock(&r->lock);
    if (last)
        live_free(l);
}

static struct live *live_find(struct runs *r, const char *id)
{
    struct live *l = r->first;

    while (l && strcmp(l->id, id))
        l = l->next;
    return l;
}

static void live_drop(struct runs *r, struct live *l)
{
    pthread_mutex_lock(&r->lock);
    for (struct live **at = &r->first; *at; at = &(*at)->next)
        if (*at == l) {
            *at = l->next;
            break;
        }
    pthread_mutex_unlock(&r->lock);
    live_unref(r, l);
}

/* Volumes that the workflow makes for itself; its steps find them by name. */
static int make_claims(struct server *s, struct live *l, struct err *err)
{
    json_t *claims = json_object_get(l->volumes, "claims");
    json_t *list = json_object_get(l->volumes, "volumes");
    size_t i;
    json_t *c;

    if (!list)
        json_object_set_new(l->volumes, "volumes", list = json_array());
    json_array_foreach(claims, i, c) {
        const char *name = json_string_value(json_object_get(c, "name"));
        OWN_MEM char *volume = NULL;
        struct err none = { 0 };
        if (asprintf(&volume, "%s-%s", json_string_value(json_object_get(l->doc, "workflow")),
                     name) < 0)
            return err_set(err, ERR_NOMEM, "no memory for a volume");
        int rc = volumes_create(s, l->project, volume, c, &none);
        if (rc < 0 && rc != -ERR_CONFLICT)
            return err_set(err, none.code, "%s", none.text);
        json_array_append_new(list, json_pack("{s:s, s:s}", "name", name, "claim", volume));
    }
    return 0;
}

static void drop_claims(struct server *s, const struct live *l)
{
    size_t i;
    json_t *c;

    json_array_foreach(json_object_get(l->volumes, "claims"), i, c) {
        OWN_MEM char *volume = NULL;
        struct err none = { 0 };
        if (asprintf(&volume, "%s-%s", json_string_value(json_object_get(l->doc, "workflow")),
                     json_string_value(json_object_get(c, "name"))) >= 0)
            volumes_delete(s, l->project, volume, &none);
    }
}

static int live_fill(sqlite3 *db, struct runs *r, struct live *l, struct err *err)
{
    OWN_MEM char *flow = NULL;

    if (rows_read(db, &rows_runs, NULL, l->id, &l->doc, err) < 0 ||
        rows_text_get(db, json_string_value(json_object_get(l->doc, "digest")), NULL, NULL, &flow,
                      err) < 0)
        return -(int)err->code;
    l->flow = json_loads(flow, 0, NULL);
    if (!l->flow)
        return err_set(err, ERR_NOMEM, "no memory for a run");
    snprintf(l->project, sizeof l->project, "%s",
             json_string_value(json_object_get(l->doc, "project")));
    l->wants_result = strstr(flow, "outputs.result") != NULL;
    double limit = json_number_value(json_object_get(l->flow, "deadline_s"));
    l->deadline = limit > 0 ? fmin(json_number_value(json_object_get(l->doc, "started")),
                                   clock_wall()) + limit : 0;
    l->terminating = !strcmp(json_string_value(json_object_get(l->doc, "state")), "terminating");
    l->deleting = json_is_true(json_object_get(l->doc, "deleting"));
    if (runs_fold(db, l->doc, l->flow, &l->graph, &l->folded, err) < 0 ||
        run_graph_volumes(l->graph, &l->volumes, err) < 0)
        return -(int)err->code;
    return make_claims(r->server, l, err);
}

/* A run that cannot even be loaded has ended. */
static void say_unloadable(struct runs *r, struct live *l, const struct err *why)
{
    runs_pending(r, l, "run.ended", json_pack("{s:s, s:s}", "phase", "Error", "message", why->text),
                 json_pack("{s:s, s:s, s:s, s:f}", "state", "error", "phase", "Error", "message",
                           why->text, "ended", clock_wall()), NULL);
}

static struct live *live_load(sqlite3 *db, struct runs *r, const char *id)
{
    struct live *l = calloc(1, sizeof *l);
    struct err err = { 0 };

    if (!l)
        return NULL;
    l->refs = 1;
    l->changed = true;
    pthread_mutex_init(&l->lock, NULL);
    snprintf(l->id, sizeof l->id, "%s", id);
    if (live_fill(db, r, l, &err) < 0) {
        if (l->doc) {           /* it is there, but cannot be run */
            log_event(LEVEL_WARN, "run.unloadable", "{s:s, s:s}", "run", id, "reason", err.text);
            say_unloadable(r, l, &err);
        }
        live_free(l);
        return NULL;
    }
    pthread_mutex_lock(&r->lock);
    struct live **at = &r->first;
    while (*at)
        at = &(*at)->next;
    *at = l;
    pthread_mutex_unlock(&r->lock);
    return l;
}

/* ------------------------------------------------------------ the log of runs */

struct reading {
    struct runs *runs;
    sqlite3 *db;
};

static bool begins(const char *type)
{
    return !strcmp(type, "run.created") || !strcmp(type, "run.retry");
}

/* Its outputs are kept and its end is on record: what else it left may go where room is short. */
static void make_room(struct runs *r, struct live *l, const json_t *ended)
{
    const char *job = json_string_value(json_object_get(ended, "job"));
    const char *name = json_string_value(json_object_get(ended, "node"));
    struct statvfs disk;
    struct err err = { 0 };

    if (!job || !*job || !name || statvfs(r->server->data_dir, &disk) < 0 ||
        (uint64_t)disk.f_bavail * disk.f_frsize >= SHORT_BYTES)
        return;
    const struct node *node = run_graph_find(l->graph, name);
    if (node && node->kind == NODE_STEP && jobs_clear(r->server, l->project, job, &err) == 0)
        log_event(LEVEL_WARN, "run.cleared", "{s:s, s:s, s:s, s:s}", "run", l->id, "node", name,
                  "job", job, "reason", "the disk is nearly full");
}

static void apply(struct runs *r, struct live *l, const struct run_news *n)
{
    OWN_JSON json_t *body = json_loads(n->body, 0, NULL);
    struct err err = { 0 };

    pthread_mutex_lock(&l->lock);
    if (run_graph_apply(l->graph, n->type, body, n->t, &err) < 0)
        log_event(LEVEL_ERROR, "run.event", "{s:s, s:s, s:s}", "run", n->run, "type", n->type,
                  "reason", err.text);
    pthread_mutex_unlock(&l->lock);
    l->folded = n->seq;
    l->changed = true;
    if (!strcmp(n->type, "node.ended"))
        make_room(r, l, body);
    if (!strcmp(n->type, "run.terminate")) {
        l->terminating = true;
        l->deleting |= json_is_true(json_object_get(body, "delete"));
    }
    if (strcmp(n->type, "run.ended"))
        return;
    if (l->deleting)            /* what is left of it goes after this round */
        r->remove = true;
    if (*json_string_value(json_object_get(l->doc, "recurring")))
        r->schedule_changed = true;     /* it may be the next one's turn */
    live_drop(r, l);
}

static int each_news(void *arg, const struct run_news *n)
{
    struct reading *g = arg;
    struct runs *r = g->runs;
    struct live *l = live_find(r, n->run);

    if (!l && begins(n->type))
        l = live_load(g->db, r, n->run);
    if (l && n->seq > l->folded)
        apply(r, l, n);
    return 0;
}

static int read_runs(sqlite3 *db, void *arg, struct err *err)
{
    struct runs *r = arg;
    struct reading g = { r, db };

    return runs_log_read(r->server, r->seen_runs, each_news, &g, &r->seen_runs, err);
}

static int read_all(sqlite3 *db, void *arg, struct err *err)
{
    struct runs *r = arg;
    OWN_JSON json_t *ids = json_array();
    sqlite3_stmt *st = store_sql(db, "SELECT max(seq) FROM run_events", err);
    size_t i;
    json_t *id;
    int rc;

    if (!st || store_step(st, err) < 0)
        return -(int)err->code;
    r->seen_runs = sqlite3_column_int64(st, 0);
    sqlite3_reset(st);
    st = store_sql(db, "SELECT id FROM runs WHERE state IN ('pending', 'running', 'terminating') "
                   "ORDER BY seq", err);
    if (!st)
        return -(int)err->code;
    while ((rc = store_step(st, err)) > 0)
        json_array_append_new(ids, json_string((const char *)sqlite3_column_text(st, 0)));
    if (rc < 0)
        return rc;
    json_array_foreach(ids, i, id)
        live_load(db, r, json_string_value(id));
    return 0;
}

/* ------------------------------------------------------------ the log of jobs */

static int by_uid(const void *a, const void *b)
{
    int64_t x = ((const struct leaf *)a)->uid, y = ((const struct leaf *)b)->uid;

    return (x > y) - (x < y);
}

static struct leaf *leaf_find(struct runs *r, int64_t uid)
{
    struct leaf key = { .uid = uid };
    void *at = tfind(&key, &r->leaves, by_uid);

    return at ? *(struct leaf **)at : NULL;
}

bool runs_track(struct runs *r, struct leaf *f)
{
    if (!tsearch(f, &r->leaves, by_uid))
        return false;
    r->n_leaves++;
    return true;
}

void runs_hear(struct runs *r)
{
    if (!r->deaf)
        return;
    r->seen_jobs = jobs_clock(r->server);
    r->server->hears = true;
    r->deaf = false;
}

bool runs_tracks(struct runs *r, int64_t uid)
{
    return leaf_find(r, uid) != NULL;
}

void leaf_free(struct leaf *f)
{
    if (!f)
        return;
    if (f->run)
        live_unref(f->run_of, f->run);
    json_decref(f->body);
    json_decref(f->cache);
    json_decref(f->metrics);
    free(f);
}

/* What an event of its job says of a leaf; true: the job has ended. */
bool leaf_hear(struct leaf *f, const char *type, double t, const json_t *body)
{
    if (!strcmp(type, "attempt.started")) {
        f->started = t;
        pthread_mutex_lock(&f->run->lock);
        run_graph_running(f->run->graph, f->node, f->job, t);
        pthread_mutex_unlock(&f->run->lock);
    } else if (!strcmp(type, "attempt.ended")) {
        const char *reason = json_string_value(json_object_get(body, "reason"));
        int code = (int)json_integer_value(json_object_get(body, "code"));
        f->lost = code < 0;
        f->code = code < 0 ? 0 : code;
        f->signal = (int)json_integer_value(json_object_get(body, "signal"));
        snprintf(f->reason, sizeof f->reason, "%s", reason ? reason : "");
    } else if (!strcmp(type, "job.ended")) {
        const char *state = json_string_value(json_object_get(body, "state"));
        const char *reason = json_string_value(json_object_get(body, "reason"));
        f->good = state && !strcmp(state, "succeeded");
        f->cancelled = state && !strcmp(state, "cancelled");
        if (!f->good && (!*f->reason || f->cancelled))
            snprintf(f->reason, sizeof f->reason, "%s", f->cancelled ? "terminated"
                     : reason && *reason ? reason : "failed");
        f->lost |= !f->good && !f->cancelled && !f->code && !f->signal;
        f->ended = t;
        return true;
    }
    return false;
}

struct ended {
    struct runs *runs;
    struct leaf *first, **last;
};

static int each_job_news(void *arg, const struct job_news *n)
{
    struct ended *e = arg;
    struct leaf *f = leaf_find(e->runs, n->job);

    if (!f || !strcmp(n->type, "job.submitted"))
        return 0;
    OWN_JSON json_t *body = json_loads(n->body, 0, NULL);
    if (!leaf_hear(f, n->type, n->t, body))
        return 0;
    tdelete(f, &e->runs->leaves, by_uid);
    e->runs->n_leaves--;
    f->next = NULL;
    *e->last = f;
    e->last = &f->next;
    return 0;
}

static bool has_artifacts(const json_t *order)
{
    return json_array_size(json_object_get(json_object_get(order, "outputs"), "artifacts")) > 0;
}

/* Its outputs and node.ended are made and put on record. Takes f. */
void leaf_finish(struct runs *r, struct leaf *f)
{
    json_t *patch = f->metrics ? json_pack("{s:O}", "+metrics", f->metrics) : NULL;

    runs_pending(r, f->run, "node.ended", TAKE(f->body), patch, TAKE(f->cache));
    leaf_free(f);
}

void leaf_ended(struct runs *r, struct leaf *f)
{
    json_t *order = NULL;
    struct err err = { 0 };

    pthread_mutex_lock(&f->run->lock);
    if (run_graph_order(f->run->graph, f->node, &order, &err) == 0)
        step_fill(f->run, f->node, order, &err);
    pthread_mutex_unlock(&f->run->lock);
    if (has_artifacts(order) && !f->cancelled) {
        hands_give(r->hands, f, order);
        return;
    }
    leaf_collect(r->server, f, order);
    json_decref(order);
    leaf_finish(r, f);
}

static int read_jobs(struct runs *r, struct err *err)
{
    struct ended e = { r, NULL, NULL };
    int rc = 0;

    e.last = &e.first;
    if (r->n_leaves)
        rc = jobs_news(r->server, r->seen_jobs, each_job_news, &e, &r->seen_jobs, err);
    else if (!r->deaf && !r->first)
        r->server->hears = !(r->deaf = true);   /* thousands of jobs a second are none of ours */
    for (struct leaf *f = e.first, *next; f; f = next) {
        next = f->next;
        leaf_ended(r, f);
    }
    for (struct leaf *f; (f = hands_take(r->hands));)
        leaf_finish(r, f);
    return rc;
}

/* ------------------------------------------------------------ what a run wants */

static void check_deadline(struct runs *r, struct live *l, double now, double *next)
{
    if (l->deadline <= 0 || l->deadline_said)
        return;
    if (now >= l->deadline) {
        l->deadline_said = true;
        runs_pending(r, l, "run.deadline", NULL, NULL, NULL);
    } else if (*next == 0 || l->deadline < *next) {
        *next = l->deadline;
    }
}

struct summary {
    int done;
    double first;
    char failure[600];          /* of the step that failed first */
};

static int sum_up(void *arg, const struct node *n)
{
    struct summary *s = arg;

    s->done += node_phase_ended(n->phase);
    if (node_kind_leaf(n->kind) && (n->phase == NODE_FAILED || n->phase == NODE_ERROR) &&
        (!*s->failure || n->ended < s->first)) {
        s->first = n->ended;
        snprintf(s->failure, sizeof s->failure, "%.150s%s%.400s", n->name, n->message ? ": " : "",
                 n->message ? n->message : "");
    }
    return 0;
}

static void check_end(struct runs *r, struct live *l, double now)
{
    const char *message = NULL;
    struct summary sum = { 0 };

    pthread_mutex_lock(&l->lock);
    enum node_phase phase = run_graph_phase(l->graph, &message);
    int nodes = run_graph_count(l->graph);
    if (phase != NODE_RUNNING)
        run_graph_each(l->graph, sum_up, &sum);
    if (phase != NODE_SUCCEEDED && (!message || !*message))
        message = sum.failure;
    json_t *body = phase == NODE_RUNNING ? NULL
        : json_pack("{s:s, s:s*}", "phase", node_phase_name(phase), "message", message);
    json_t *patch = !body ? NULL
        : json_pack("{s:s, s:s, s:s, s:f, s:i, s:i}", "phase", node_phase_name(phase), "message",
                    message ? message : "", "state",
                    phase == NODE_SUCCEEDED ? "succeeded" : l->terminating ? "terminated"
                    : phase == NODE_ERROR ? "error" : "failed", "ended", now, "nodes", nodes, "done",
                    sum.done);
    pthread_mutex_unlock(&l->lock);
    if (!body)
        return;
    double ttl = runs_ttl_of(l->flow, phase == NODE_SUCCEEDED);
    if (ttl >= 0) {
        json_object_set_new(patch, "archive_at", json_real(now + ttl));
        r->ttl_changed = true;
    }
    drop_claims(r->server, l);
    l->end_said = true;
    runs_pending(r, l, "run.ended", body, patch, NULL);
    log_event(LEVEL_INFO, "run.ended", "{s:s, s:s, s:s}", "run", l->id, "workflow",
              json_string_value(json_object_get(l->doc, "workflow")), "phase",
              node_phase_name(phase));
}

/* *out_more: there is more to begin than was. */
static void look_at(struct runs *r, struct live *l, double now, double *next, bool *out_more)
{
    bool more = false;

    check_deadline(r, l, now, next);
    runs_act_later(r, l, now, next);
    if (!l->changed || l->end_said)
        return;
    runs_act_stop(r, l);
    runs_act_begin(r, l, now, BEGIN_MAX, &more);
    l->changed = more;
    *out_more |= more;
    if (!more)
        check_end(r, l, now);
    runs_act_later(r, l, now, next);
}

/* ------------------------------------------------------------ rounds */

static int read_deleting(sqlite3 *db, void *arg, struct err *err)
{
    sqlite3_stmt *st = store_sql(db, "SELECT project, id FROM runs WHERE state IN ('terminated', "
                                 "'succeeded', 'failed', 'error') AND "
                                 "json_extract(doc, '$.deleting') = 1", err);
    int rc;

    if (!st)
        return -(int)err->code;
    while ((rc = store_step(st, err)) > 0)
        json_array_append_new(arg, json_pack("[s, s]", (const char *)sqlite3_column_text(st, 0),
                                             (const char *)sqlite3_column_text(st, 1)));
    return rc;
}

/* Runs that were to be removed once they have ended. */
static int remove_ended(struct runs *r, struct err *err)
{
    OWN_JSON json_t *list = json_array();
    size_t i;
    json_t *one;

    r->remove = false;
    if (store_read(r->server->store, read_deleting, list, err) < 0)
        return -(int)err->code;
    json_array_foreach(list, i, one)
        if (runs_remove(r->server, json_string_value(json_array_get(one, 0)),
                        json_string_value(json_array_get(one, 1)), err) < 0) {
            r->remove = true;
            return -(int)err->code;
        }
    return 0;
}

/* The calendar's clock was set by so much: what waits waits as long as before. Recurring runs go by the
 * calendar. */
static void clock_set(struct runs *r, double by)
{
    for (struct live *l = r->first; l; l = l->next) {
        l->deadline += l->deadline > 0 ? by : 0;
        for (int i = 0; i < l->n_later; i++)
            l->later[i].at += by;
    }
    r->ttl_changed = true;
    r->schedule_changed = true;
}

static int round_of(struct runs *r, double *next, bool *out_again, struct err *err)
{
    const double now = clock_wall(), by = clock_was_set(&r->clock, now);

    *next = 0;
    *out_again = false;
    if (by != 0)
        clock_set(r, by);
    if (store_read(r->server->store, read_runs, r, err) < 0 || read_jobs(r, err) < 0 ||
        commit(r, out_again, err) < 0)
        return -(int)err->code;
    if (*out_again)             /* first what that made ready */
        return 0;
    if ((r->remove && remove_ended(r, err) < 0) || runs_ttl(r, now, next, err) < 0)
        return -(int)err->code;
    for (struct live *l = r->first; l; l = l->next)
        look_at(r, l, now, next, out_again);
    if (r->schedule_changed || (r->due > 0 && now >= r->due)) {
        r->schedule_changed = false;
        if (recurring_begin(r->server, now, &r->due, err) < 0)
            return -(int)err->code;
        *out_again = true;
    }
    if (r->due > 0 && (*next == 0 || r->due < *next))
        *next = r->due;
    return commit(r, out_again, err);
}

static void wait_for_news(struct runs *r, int timeout_ms)
{
    struct pollfd fd = { r->server->heard_fd, POLLIN, 0 };
    eventfd_t n;

    if (poll(&fd, 1, timeout_ms) > 0)
        eventfd_read(r->server->heard_fd, &n);
}

static void drop_leaf(void *leaf)
{
    leaf_free(leaf);
}

void runs_forget(struct runs *r)
{
    tdestroy(r->leaves, drop_leaf);
    r->leaves = NULL;
    while (r->first)
        live_drop(r, r->first);
    views_forget(r, INFINITY);
    for (int i = 0; i < r->n_pending; i++)
        record_done(&r->pending[i]);
    free(r->pending);
    r->pending = NULL;
    r->n_pending = 0;
}

void *runs_thread(void *arg)
{
    struct runs *r = arg;
    struct err err = { 0 };
    bool told = false;

    r->deaf = true;
    r->remove = r->ttl_changed = true;
    while (!r->ending && store_read(r->server->store, read_all, r, &err) < 0)
        wait_for_news(r, TROUBLE_MS);
    while (!r->ending) {
        double next;
        bool again;
        err = (struct err){ 0 };
        int rc = round_of(r, &next, &again, &err);
        views_forget(r, clock_seconds() - LOOKED_S);
        if (rc < 0 && !told)
            log_event(LEVEL_WARN, "runs.trouble", "{s:s}", "reason", err.text);
        told = rc < 0;
        double ms = next > 0 ? ceil((next - clock_wall()) * 1000) : 60000;
        wait_for_news(r, rc < 0 ? TROUBLE_MS : again || ms < 1 ? 0 : ms > 60000 ? 60000 : (int)ms);
    }
    return NULL;
}
