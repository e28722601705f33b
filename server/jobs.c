/* server/jobs.c - jobs: submitted, listed, asked for things; the log they are made of */
#include "server/jobs.h"

#include <string.h>
#include <sys/eventfd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/tree.h"
#include "drivers/network.h"
#include "drivers/runtimes.h"
#include "server/jobs_int.h"
#include "server/queue.h"
#include "server/quota.h"
#include "server/retention.h"
#include "server/server.h"

enum { LIST_DEFAULT = 100, LIST_MAX = 1000 };

/* An event's `job` is the number of that job's first event. */
static const char *const schema[] = {
    "CREATE TABLE events (seq INTEGER PRIMARY KEY, job INTEGER NOT NULL, t REAL NOT NULL, "
    "type TEXT NOT NULL, body TEXT NOT NULL);"
    "CREATE INDEX events_job ON events (job, seq);"
    "CREATE TABLE jobs (id INTEGER PRIMARY KEY, project TEXT NOT NULL, name TEXT NOT NULL, "
    "kind TEXT NOT NULL, state INTEGER NOT NULL, live INTEGER NOT NULL, priority INTEGER NOT NULL, "
    "attempt INTEGER NOT NULL, retries INTEGER NOT NULL, min INTEGER NOT NULL, "
    "max INTEGER NOT NULL, now INTEGER NOT NULL, cpu REAL NOT NULL, memory INTEGER NOT NULL, "
    "gpu INTEGER NOT NULL, created REAL NOT NULL, started REAL NOT NULL, ended REAL NOT NULL, "
    "retry_at REAL NOT NULL, reason TEXT NOT NULL, labels TEXT);"
    "CREATE UNIQUE INDEX jobs_name ON jobs (project, name);"
    "CREATE INDEX jobs_project ON jobs (project, id);"
    "CREATE INDEX jobs_state ON jobs (state, id);"
    "CREATE TABLE job_labels (key TEXT, value TEXT, job INTEGER, PRIMARY KEY (key, value, job)) "
    "WITHOUT ROWID",
    "ALTER TABLE jobs ADD COLUMN user INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE jobs ADD COLUMN processes INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN removed TEXT NOT NULL DEFAULT ''",
    NULL
};

int jobs_init(struct server *s, struct err *err)
{
    return store_schema(s->store, "jobs", schema, err);
}

/* Somebody may wait for what is in the log now. */
static void tell(struct server *s)
{
    if (s->queue)
        queue_wake(s->queue);
    if (s->hears)
        eventfd_write(s->heard_fd, 1);
    if (s->http)
        http_wake(s);
}

/* ------------------------------------------------------------ the log */

static int next_seq(sqlite3 *db, int64_t *out, struct err *err)
{
    sqlite3_stmt *st = store_sql(db, "SELECT max(seq) FROM events", err);
    if (!st || store_step(st, err) < 0)
        return -(int)err->code;
    *out = sqlite3_column_int64(st, 0) + 1;
    sqlite3_reset(st);
    return 0;
}

static int store_labels(sqlite3 *db, const struct job_row *r, struct err *err)
{
    OWN_JSON json_t *labels = r->labels ? json_loads(r->labels, 0, NULL) : NULL;
    const char *key;
    json_t *value;

    json_object_foreach(labels, key, value)
        if (store_run(db, err, "INSERT OR IGNORE INTO job_labels VALUES (?, ?, ?)", "ssi", key,
                      json_string_value(value), r->id) < 0)
            return -(int)err->code;
    return 0;
}

static int drop_labels(sqlite3 *db, const struct job_row *r, struct err *err)
{
    OWN_JSON json_t *labels = r->labels ? json_loads(r->labels, 0, NULL) : NULL;
    const char *key;
    json_t *value;

    json_object_foreach(labels, key, value)
        if (store_run(db, err, "DELETE FROM job_labels WHERE key = ? AND value = ? AND job = ?",
                      "ssi", key, json_string_value(value), r->id) < 0)
            return -(int)err->code;
    return 0;
}

static int store_event(sqlite3 *db, int64_t seq, int64_t job, double t, const char *type,
                       const json_t *body, struct err *err)
{
    OWN_MEM char *text = body ? json_dumps(body, JSON_COMPACT) : strdup("{}");
    if (!text)
        return err_set(err, ERR_NOMEM, "no memory for an event");
    return store_run(db, err, "INSERT INTO events VALUES (?, ?, ?, ?, ?)", "iidss", seq, job, t,
                     type, text);
}

/* Folds and stores; an event that says nothing new is not stored. */
static int append_to(sqlite3 *db, struct job_row *r, const char *type, const json_t *body,
                     struct err *err)
{
    double t = clock_wall();
    bool patch = !strcmp(type, "job.patched");
    int64_t seq;

    if (patch && drop_labels(db, r, err) < 0)
        return -(int)err->code;
    bool news = job_fold(r, t, type, body);
    if (patch && store_labels(db, r, err) < 0)
        return -(int)err->code;
    if (!news)
        return 0;
    if (next_seq(db, &seq, err) < 0 || store_event(db, seq, r->id, t, type, body, err) < 0)
        return -(int)err->code;
    return job_row_write(db, r, err);
}

struct change {
    struct job_event *events;
    int n;
};

static int append_all(sqlite3 *db, void *arg, struct err *err)
{
    const struct change *c = arg;

    for (int i = 0; i < c->n; i++) {
        OWN_ROW r = { 0 };
        int rc = job_row_of(db, c->events[i].job, &r, err);
        if (rc == -ERR_MISSING)
            continue;
        if (rc < 0 || append_to(db, &r, c->events[i].type, c->events[i].body, err) < 0)
            return -(int)err->code;
    }
    return 0;
}

int jobs_append_all(struct server *s, struct job_event *events, int n, struct err *err)
{
    struct change c = { events, n };
    int rc = n ? store_write_last(s->store, append_all, &c, err) : 0;
    bool ends = false;

    for (int i = 0; i < n; i++) {
        ends |= !strcmp(events[i].type, "job.ended");
        json_decref(events[i].body);
        events[i].body = NULL;
    }
    if (n && rc == 0)
        tell(s);
    if (ends && rc == 0)
        retention_wake(s->retention);
    return rc;
}

/* One event of a job that is named. */
struct asked {
    const char *project, *name, *type;
    const json_t *body;
    bool any_state;             /* also when it has ended */
    int (*check)(sqlite3 *db, const struct job_row *r, struct err *err);
};

static int append_named(sqlite3 *db, void *arg, struct err *err)
{
    const struct asked *a = arg;
    OWN_ROW r = { 0 };

    if (job_row_find(db, a->project, a->name, &r, err) < 0)
        return -(int)err->code;
    if (!a->any_state && job_state_ended(r.state))
        return err_set(err, ERR_CONFLICT, "job \"%s\" has ended (%s)", r.name,
                       job_state_name(r.state));
    if (a->check && a->check(db, &r, err) < 0)
        return -(int)err->code;
    return append_to(db, &r, a->type, a->body, err);
}

static int ask(struct server *s, struct asked *a, struct err *err)
{
    int rc = store_write_last(s->store, append_named, a, err);

    if (rc == 0)
        tell(s);
    return rc;
}

int jobs_append(struct server *s, const char *project, const char *name, const char *type,
                json_t *body, struct err *err)
{
    OWN_JSON json_t *taken = body;

    return ask(s, &(struct asked){ project, name, type, taken, false, NULL }, err);
}

/* ------------------------------------------------------------ as JSON */

static json_t *row_json(const struct job_row *r, json_t *spec)
{
    json_t *labels = r->labels ? json_loads(r->labels, 0, NULL) : NULL;

    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:o*, s:o, s:i, s:f, s:f, s:f, s:i, "
                     "s:{s:i, s:i, s:i}, s:f, s:I, s:I, s:o*}",
                     "name", r->name, "project", r->project, "state", job_state_name(r->state),
                     "reason", r->reason, "kind", r->kind, "spec", spec,
                     "labels", labels ? labels : json_object(), "priority", r->priority,
                     "created", r->created, "started", r->started, "ended", r->ended,
                     "attempt", r->attempt, "workers", "min", r->min, "max", r->max,
                     "now", r->now, "retry_at", r->retry_at, "uid", (json_int_t)r->id,
                     "user", (json_int_t)r->user,
                     "files_removed", r->removed[0] ? json_string(r->removed) : NULL);
}

int job_spec_of(sqlite3 *db, int64_t id, json_t **out, struct err *err)
{
    sqlite3_stmt *st = store_sql(db, "SELECT body FROM events WHERE seq = ?", err);
    if (!st || store_bind(st, err, "i", id) < 0)
        return -(int)err->code;
    int rc = store_step(st, err);
    if (rc < 0)
        return rc;
    OWN_JSON json_t *body =
        rc ? json_loads((const char *)sqlite3_column_text(st, 0), 0, NULL) : NULL;
    sqlite3_reset(st);
    json_t *spec = json_object_get(body, "spec");
    if (!spec)
        return err_set(err, ERR_IO,
                       "job number %lld has no document (muster serve --check says more)",
                       (long long)id);
    *out = json_incref(spec);
    return 0;
}

/* ------------------------------------------------------------ submit */

struct submit {
    const char *project, *name;
    const json_t *spec;
    struct job_row row;
};

static int name_job(sqlite3 *db, const struct submit *u, int64_t id, char *out, struct err *err)
{
    OWN_ROW other = { 0 };
    struct err none;

    if (u->name) {
        snprintf(out, JOB_NAME_MAX + 1, "%s", u->name);
    } else {
        const char *base = json_string_value(json_object_get(u->spec, "name"));
        snprintf(out, JOB_NAME_MAX + 1, "%.100s-%lld", base && *base ? base : "job", (long long)id);
    }
    int rc = job_row_find(db, u->project, out, &other, &none);
    if (rc == 0)
        return err_set(err, ERR_CONFLICT, "there is a job \"%s\" in project \"%s\" already (choose "
                       "another name, or delete it)", out, u->project);
    return rc == -ERR_MISSING ? 0 : err_set(err, none.code, "%s", none.text);
}

static int submit(sqlite3 *db, void *arg, struct err *err)
{
    struct submit *u = arg;
    struct job_row *r = &u->row;
    char name[JOB_NAME_MAX + 1];
    double t = clock_wall();

    if (next_seq(db, &r->id, err) < 0 || name_job(db, u, r->id, name, err) < 0)
        return -(int)err->code;
    OWN_JSON json_t *body = json_pack("{s:s, s:s, s:O}", "project", u->project, "name", name,
                                      "spec", (json_t *)u->spec);
    if (!body)
        return err_set(err, ERR_INVALID, "name: is not UTF-8");
    job_fold(r, t, "job.submitted", body);
    if (store_event(db, r->id, r->id, t, "job.submitted", body, err) < 0 ||
        job_row_write(db, r, err) < 0)
        return -(int)err->code;
    return store_labels(db, r, err);
}

/* Only the owner's jobs say host_files. */
static int check_network(const struct server *s, const json_t *spec, struct err *err)
{
    if (network_mode(spec) != NETWORK_HOST)
        return 0;
    return runtimes_host_network(s->data_dir, json_is_true(json_object_get(spec, "host_files")),
                                 err);
}

int jobs_submit(struct server *s, const char *project, const char *name, const json_t *given,
                json_t **out_job, struct err *err)
{
    OWN_JSON json_t *spec = NULL;

    if (job_spec_amounts(given, &spec, err) < 0 || job_spec_check(spec, err) < 0 ||
        check_network(s, spec, err) < 0 || quota_check_job(s->quota, project, spec, err) < 0)
        return -(int)err->code;
    struct submit u = { .project = project, .name = name && *name ? name : NULL, .spec = spec };
    const char *base = name ? name : json_string_value(json_object_get(spec, "name"));
    if (base && *base && job_name_check(base, err) < 0)
        return -(int)err->code;
    store_point("jobs.submit");
    int rc = store_write(s->store, submit, &u, err);
    store_point("jobs.submitted");
    if (rc == 0) {
        tell(s);
        if (out_job)
            *out_job = row_json(&u.row, json_incref(spec));
    }
    job_row_done(&u.row);
    return rc;
}

/* ------------------------------------------------------------ asked for */

struct get { const char *project, *name; json_t **out; };

static int get(sqlite3 *db, void *arg, struct err *err)
{
    const struct get *g = arg;
    OWN_ROW r = { 0 };
    json_t *spec;

    if (job_row_find(db, g->project, g->name, &r, err) < 0 || job_spec_of(db, r.id, &spec, err) < 0)
        return -(int)err->code;
    json_t *doc = row_json(&r, spec);
    if (!doc)
        return err_set(err, ERR_NOMEM, "no memory for a job");
    *g->out = doc;
    return 0;
}

int jobs_get(struct server *s, const char *project, const char *name, json_t **out,
             struct err *err)
{
    return store_read(s->store, get, &(struct get){ project, name, out }, err);
}

int jobs_cancel(struct server *s, const char *project, const char *name, const char *by,
                struct err *err)
{
    OWN_JSON json_t *body = json_pack("{s:s}", "by", by ? by : "");

    return ask(s, &(struct asked){ project, name, "job.cancel_requested", body, false, NULL }, err);
}

int jobs_patch_labels(struct server *s, const char *project, const char *name,
                      const json_t *labels, struct err *err)
{
    if (job_labels_check(labels, err) < 0)
        return -(int)err->code;
    OWN_JSON json_t *body = json_pack("{s:O}", "labels", (json_t *)labels);
    return ask(s, &(struct asked){ project, name, "job.patched", body, true, NULL }, err);
}

static int can_resize(sqlite3 *db, const struct job_row *r, struct err *err)
{
    json_t *spec;

    if (strcmp(r->kind, "train"))
        return err_set(err, ERR_INVALID,
                       "job \"%s\" is a %s job: only native training takes more or "
                       "fewer workers while it runs",
                       r->name, r->kind);
    if (!r->live)
        return 0;
    if (job_spec_of(db, r->id, &spec, err) < 0)
        return -(int)err->code;
    const json_t *max = json_object_get(json_object_get(spec, "workers"), "max");
    int alone = !max || json_integer_value(max) <= 1;
    json_decref(spec);
    if (alone)
        return err_set(err, ERR_CONFLICT, "job \"%s\" was started as one process, which nobody can "
                       "join (submit it with --workers 1..N)", r->name);
    return 0;
}

int jobs_resize(struct server *s, const char *project, const char *name, int min, int max,
                struct err *err)
{
    if (min < 1 || max < min || max > 4096)
        return err_set(err, ERR_INVALID, "workers: %d..%d is no range of workers (1..4096)", min,
                       max);
    OWN_JSON json_t *body = json_pack("{s:{s:i, s:i}}", "workers", "min", min, "max", max);
    return ask(s, &(struct asked){ project, name, "job.resized", body, false, can_resize }, err);
}

/* ------------------------------------------------------------ delete */

int job_path(const struct server *s, int64_t id, int attempt, char *out, size_t size,
             struct err *err)
{
    int n = attempt > 0
        ? snprintf(out, size, "%s/jobs/%lld/%d", s->data_dir, (long long)id, attempt)
        : snprintf(out, size, "%s/jobs/%lld", s->data_dir, (long long)id);

    if (n < 0 || (size_t)n >= size)
        return err_set(err, ERR_INVALID, "the path of the data directory is too long");
    return 0;
}

struct deletion { const char *project, *name; int64_t id; };

static int delete_job(sqlite3 *db, void *arg, struct err *err)
{
    struct deletion *d = arg;
    OWN_ROW r = { 0 };
    int64_t seq;

    if (job_row_find(db, d->project, d->name, &r, err) < 0)
        return -(int)err->code;
    if (!job_state_ended(r.state))
        return err_set(err, ERR_CONFLICT, "job \"%s\" is %s: cancel it first", r.name,
                       job_state_name(r.state));
    d->id = r.id;
    /* What is left keeps its number, and those of its events, from being given again. */
    if (next_seq(db, &seq, err) < 0 || drop_labels(db, &r, err) < 0 ||
        store_run(db, err, "DELETE FROM events WHERE job = ?", "i", r.id) < 0 ||
        store_run(db, err, "DELETE FROM jobs WHERE id = ?", "i", r.id) < 0)
        return -(int)err->code;
    return store_event(db, seq, r.id, clock_wall(), "job.deleted", NULL, err);
}

int jobs_delete(struct server *s, const char *project, const char *name, struct err *err)
{
    struct deletion d = { project, name, 0 };
    char path[4096];

    if (store_write_last(s->store, delete_job, &d, err) < 0)
        return -(int)err->code;
    tell(s);
    retention_wake(s->retention);
    store_point("jobs.deleted");        /* what is left of its files goes at the next start */
    if (job_path(s, d.id, 0, path, sizeof path, err) < 0)
        return -(int)err->code;
    int rc = tree_remove(path, err);
    store_reclaim(s->store);
    return rc;
}

/* ------------------------------------------------------------ lists */

struct list {
    const struct jobs_query *q;
    json_t *out;
    int64_t last;
    bool more;
};

static int state_mask(const char *name, struct err *err)
{
    int mask = 0;

    for (int i = 0; i <= JOB_CANCELLED; i++)
        if (!name || !*name || !strcmp(name, job_state_name((enum job_state)i)) ||
            (!strcmp(name, "active") && !job_state_ended((enum job_state)i)))
            mask |= 1 << i;
    if (!mask)
        return err_set(err, ERR_INVALID,
                       "state: there is no \"%.32s\" (queued, preparing, running, "
                       "cancelling, succeeded, failed, cancelled or active)",
                       name);
    return mask;
}

/* The statement's text follows from what is asked: an index is used where there is one. At most one
 * state (found by jobs_state), or all, or several by going through all from the newest. */
static int list_sql(const struct jobs_query *q, int mask, struct buf *sql)
{
    bool one = (mask & (mask - 1)) == 0;

    buf_text(sql, "SELECT " JOB_COLUMNS " FROM jobs ");
    if (q->label_key)
        buf_text(sql, "WHERE id IN (SELECT job FROM job_labels WHERE key = ?1 AND value = "
                 "ifnull(?2, value)) AND id < ?3");
    else
        buf_text(sql, "WHERE id < ?3");
    if (one)
        buf_text(sql, " AND state = ?4");
    else if (mask != (1 << (JOB_CANCELLED + 1)) - 1)
        buf_text(sql, " AND (?4 >> state) & 1");
    if (q->project)
        buf_text(sql, " AND project = ?5");
    if (q->text)
        buf_text(sql, " AND name LIKE ?6 ESCAPE '\\'");
    buf_text(sql, " ORDER BY id DESC LIMIT ?7");
    return one ? __builtin_ctz((unsigned)mask) : mask;
}

static void like_pattern(const char *text, struct buf *out)
{
    buf_text(out, "%");
    for (; text && *text; text++)
        buf_printf(out, "%s%c", strchr("%_\\", *text) ? "\\" : "", *text);
    buf_text(out, "%");
}

static int list_rows(sqlite3_stmt *st, struct list *l, int limit, struct err *err)
{
    int rc;

    while ((rc = store_step(st, err)) > 0) {
        OWN_ROW r = { 0 };
        if ((int)json_array_size(l->out) == limit) {
            l->more = true;
            break;
        }
        job_row_read(st, &r);
        l->last = r.id;
        if (json_array_append_new(l->out, row_json(&r, NULL)) < 0)
            return err_set(err, ERR_NOMEM, "no memory for a list of jobs");
    }
    return rc < 0 ? rc : 0;
}

static int list(sqlite3 *db, void *arg, struct err *err)
{
    struct list *l = arg;
    const struct jobs_query *q = l->q;
    int limit = q->limit <= 0 ? LIST_DEFAULT : q->limit < LIST_MAX ? q->limit : LIST_MAX;
    int mask = state_mask(q->state, err);
    OWN_BUF sql = BUF_INIT;
    OWN_BUF like = BUF_INIT;
    sqlite3_stmt *st = NULL;
    int64_t before = INT64_MAX;

    if (mask < 0)
        return mask;
    if (q->token && *q->token) {
        char *end;
        before = strtoll(q->token, &end, 10);
        if (*end || before <= 0)
            return err_set(err, ERR_INVALID, "page token: \"%.40s\" is none of this list",
                           q->token);
    }
    int64_t state = list_sql(q, mask, &sql);
    like_pattern(q->text, &like);
    if (buf_ok(&sql, err) < 0 || buf_ok(&like, err) < 0)
        return -(int)err->code;
    if (sqlite3_prepare_v2(db, sql.data, -1, &st, NULL) != SQLITE_OK)
        return err_set(err, ERR_IO, "the database: %s", sqlite3_errmsg(db));
    /* Parameters that the text does not have are ignored. */
    sqlite3_bind_text(st, 1, q->label_key, -1, SQLITE_STATIC);
    sqlite3_bind_text(st, 2, q->label_value, -1, SQLITE_STATIC);
    sqlite3_bind_int64(st, 3, before);
    sqlite3_bind_int64(st, 4, state);
    sqlite3_bind_text(st, 5, q->project, -1, SQLITE_STATIC);
    sqlite3_bind_text(st, 6, like.data, -1, SQLITE_STATIC);
    sqlite3_bind_int64(st, 7, limit + 1);
    int rc = list_rows(st, l, limit, err);
    sqlite3_finalize(st);
    return rc;
}

int jobs_list(struct server *s, const struct jobs_query *q, json_t **out,
              char out_token[JOB_TOKEN], struct err *err)
{
    OWN_JSON json_t *array = json_array();
    struct list l = { .q = q, .out = array };

    if (!array)
        return err_set(err, ERR_NOMEM, "no memory for a list of jobs");
    if (store_read(s->store, list, &l, err) < 0)
        return -(int)err->code;
    out_token[0] = '\0';
    if (l.more)
        snprintf(out_token, JOB_TOKEN, "%lld", (long long)l.last);
    *out = TAKE(array);
    return 0;
}

struct count { const char *project; json_t *out; };

static int count(sqlite3 *db, void *arg, struct err *err)
{
    struct count *c = arg;
    sqlite3_stmt *st = c->project
        ? store_sql(db, "SELECT state, count(*) FROM jobs WHERE project = ? GROUP BY state", err)
        : store_sql(db, "SELECT state, count(*) FROM jobs GROUP BY state", err);
    int rc;

    if (!st || (c->project && store_bind(st, err, "s", c->project) < 0))
        return -(int)err->code;
    while ((rc = store_step(st, err)) > 0)
        json_object_set_new(c->out, job_state_name((enum job_state)sqlite3_column_int(st, 0)),
                            json_integer(sqlite3_column_int64(st, 1)));
    return rc;
}

int jobs_count(struct server *s, const char *project, json_t **out, struct err *err)
{
    OWN_JSON json_t *doc = json_object();
    struct count c = { project, doc };

    for (int i = 0; i <= JOB_CANCELLED; i++)
        json_object_set_new(doc, job_state_name((enum job_state)i), json_integer(0));
    if (store_read(s->store, count, &c, err) < 0)
        return -(int)err->code;
    *out = TAKE(doc);
    return 0;
}

/* ------------------------------------------------------------ events */

struct events { const char *project, *name; int64_t after; json_t *out; };

static int events(sqlite3 *db, void *arg, struct err *err)
{
    struct events *e = arg;
    OWN_ROW r = { 0 };
    int rc;

    if (job_row_find(db, e->project, e->name, &r, err) < 0)
        return -(int)err->code;
    sqlite3_stmt *st = store_sql(db,
                                 "SELECT seq, t, type, body FROM events WHERE job = ? AND seq > ? "
                                 "ORDER BY seq",
                                 err);
    if (!st || store_bind(st, err, "ii", r.id, e->after) < 0)
        return -(int)err->code;
    while ((rc = store_step(st, err)) > 0) {
        json_t *doc = json_pack("{s:I, s:f, s:s}", "seq", (json_int_t)sqlite3_column_int64(st, 0),
                                "t", sqlite3_column_double(st, 1), "type",
                                (const char *)sqlite3_column_text(st, 2));
        OWN_JSON json_t *body = json_loads((const char *)sqlite3_column_text(st, 3), 0, NULL);
        json_object_update_missing(doc, body);
        json_array_append_new(e->out, doc);
    }
    return rc;
}

int jobs_events(struct server *s, const char *project, const char *name, int64_t after,
                json_t **out, struct err *err)
{
    OWN_JSON json_t *array = json_array();
    struct events e = { project, name, after, array };

    if (store_read(s->store, events, &e, err) < 0)
        return -(int)err->code;
    *out = TAKE(array);
    return 0;
}

static int clock_of(sqlite3 *db, void *arg, struct err *err)
{
    return next_seq(db, arg, err);
}

int64_t jobs_clock(struct server *s)
{
    struct err err;
    int64_t next = 1;

    return store_read(s->store, clock_of, &next, &err) < 0 ? 0 : next - 1;
}

struct where { const char *project, *name; struct job_row *row; };

static int where(sqlite3 *db, void *arg, struct err *err)
{
    struct where *w = arg;
    return job_row_find(db, w->project, w->name, w->row, err);
}

int jobs_dir(struct server *s, const char *project, const char *name, char *out, size_t size,
             struct err *err)
{
    OWN_ROW r = { 0 };

    if (store_read(s->store, where, &(struct where){ project, name, &r }, err) < 0)
        return -(int)err->code;
    if (r.removed[0])
        return err_set(err, ERR_MISSING, "job \"%s\": %s", r.name, r.removed);
    if (r.attempt > 0)
        return job_path(s, r.id, r.attempt, out, size, err);
    if (size)
        out[0] = '\0';
    return 0;
}

int jobs_clear(struct server *s, const char *project, const char *name, struct err *err)
{
    OWN_ROW r = { 0 };

    if (store_read(s->store, where, &(struct where){ project, name, &r }, err) < 0)
        return -(int)err->code;
    if (!job_state_ended(r.state))
        return err_set(err, ERR_CONFLICT, "job \"%s\" has not ended", r.name);
    for (int i = 1; i <= r.attempt; i++) {
        char path[4096], work[sizeof path + 8];
        if (job_path(s, r.id, i, path, sizeof path, err) < 0)
            return -(int)err->code;
        snprintf(work, sizeof work, "%s/work", path);
        if (tree_remove(work, err) < 0)
            return -(int)err->code;
    }
    return 0;
}

/* ------------------------------------------------------------ check */

static int check_job(sqlite3 *db, const struct job_row *row, struct err *err)
{
    OWN_ROW fold = { .id = row->id };
    sqlite3_stmt *st = store_sql(db, "SELECT t, type, body FROM events WHERE job = ? ORDER BY seq",
                                 err);
    int rc;

    if (!st || store_bind(st, err, "i", row->id) < 0)
        return -(int)err->code;
    while ((rc = store_step(st, err)) > 0) {
        OWN_JSON json_t *body = json_loads((const char *)sqlite3_column_text(st, 2), 0, NULL);
        if (!body || !job_fold(&fold, sqlite3_column_double(st, 0),
                               (const char *)sqlite3_column_text(st, 1), body)) {
            sqlite3_reset(st);
            return err_set(err, ERR_IO, "job \"%s\": an event of its log cannot be", row->name);
        }
    }
    if (rc == 0 && !job_row_equal(row, &fold))
        return err_set(err, ERR_IO, "job \"%s\": its row is not what its events say", row->name);
    return rc;
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
    sqlite3_stmt *st = store_sql(db, "SELECT " JOB_COLUMNS " FROM jobs ORDER BY id", err);
    int rc;

    if (!st)
        return -(int)err->code;
    while ((rc = store_step(st, err)) > 0) {
        OWN_ROW r = { 0 };
        job_row_read(st, &r);
        if (check_job(db, &r, &why) < 0)
            c->each(c->arg, why.text);
        c->n++;
    }
    if (rc < 0)
        return rc;
    st = store_sql(db, "SELECT DISTINCT job FROM events WHERE type <> 'job.deleted' AND job NOT IN "
                   "(SELECT id FROM jobs)", err);
    if (!st)
        return -(int)err->code;
    while ((rc = store_step(st, err)) > 0) {
        char text[96];
        snprintf(text, sizeof text, "there are events of job number %lld, which is not there",
                 (long long)sqlite3_column_int64(st, 0));
        c->each(c->arg, text);
    }
    return rc;
}

int jobs_check(struct server *s, void (*each)(void *arg, const char *text), void *arg,
               int64_t *out_n, struct err *err)
{
    struct checking c = { each, arg, 0 };
    int rc = store_read(s->store, check_all, &c, err);

    *out_n = c.n;
    return rc;
}
