/* server/jobs_fold.c - what each event means for a job, and a job's row in the table */
#include <string.h>

#include "server/jobs_int.h"

static const struct { const char *name; bool ended; } states[] = {
    [JOB_QUEUED] = { "queued", false },
    [JOB_PREPARING] = { "preparing", false },
    [JOB_RUNNING] = { "running", false },
    [JOB_CANCELLING] = { "cancelling", false },
    [JOB_SUCCEEDED] = { "succeeded", true },
    [JOB_FAILED] = { "failed", true },
    [JOB_CANCELLED] = { "cancelled", true },
};
enum { N_STATES = sizeof states / sizeof states[0] };

const char *job_state_name(enum job_state s)
{
    return states[s].name;
}

bool job_state_ended(enum job_state s)
{
    return states[s].ended;
}

void job_row_done(struct job_row *r)
{
    free(r->labels);
    r->labels = NULL;
}

/* ------------------------------------------------------------ events */

static int int_of(const json_t *doc, const char *key, int fallback)
{
    const json_t *v = json_object_get(doc, key);
    return json_is_number(v) ? (int)json_number_value(v) : fallback;
}

static double number_of(const json_t *doc, const char *key, double fallback)
{
    const json_t *v = json_object_get(doc, key);
    return json_is_number(v) ? json_number_value(v) : fallback;
}

static void take_text(char *to, size_t size, const json_t *doc, const char *key)
{
    const char *text = json_string_value(json_object_get(doc, key));
    snprintf(to, size, "%s", text ? text : "");
}

static bool take_labels(struct job_row *r, const json_t *labels)
{
    char *text =
        json_object_size(labels) ? json_dumps(labels, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    bool same = !r->labels ? !text : text && !strcmp(text, r->labels);

    free(r->labels);
    r->labels = text;
    return !same;
}

static bool submitted(struct job_row *r, double t, const json_t *body)
{
    const json_t *spec = json_object_get(body, "spec");
    const json_t *workers = json_object_get(spec, "workers");
    const json_t *resources = json_object_get(spec, "resources");

    take_text(r->project, sizeof r->project, body, "project");
    take_text(r->name, sizeof r->name, body, "name");
    take_text(r->kind, sizeof r->kind, spec, "kind");
    r->state = JOB_QUEUED;
    r->created = t;
    r->priority = int_of(spec, "priority", 0);
    r->min = int_of(workers, "min", 1);
    r->max = int_of(workers, "max", r->min);
    r->cpu = number_of(resources, "cpu", 1.0);
    r->memory = (int64_t)number_of(resources, "memory", 0);
    r->gpu = int_of(resources, "gpu", 0);
    r->processes = int_of(resources, "processes", 0);
    take_labels(r, json_object_get(spec, "labels"));
    return true;
}

static bool cancel_requested(struct job_row *r, double t, const json_t *body)
{
    (void)t;
    (void)body;
    if (r->state == JOB_CANCELLING)
        return false;
    r->state = JOB_CANCELLING;
    return true;
}

/* With "attempt": that attempt is about to be started. Without: a word about what is being done. */
static bool preparing(struct job_row *r, double t, const json_t *body)
{
    int attempt = int_of(body, "attempt", 0);

    (void)t;
    if (!attempt)
        return true;
    /* Cancelled between the scheduler's look and its word: that attempt does not begin. */
    if (attempt <= r->attempt || r->state == JOB_CANCELLING)
        return false;
    r->attempt = attempt;
    r->user = (unsigned)number_of(body, "user", 0);
    r->live = true;
    r->reason[0] = 0;           /* of the attempt before: this one has not failed */
    r->retry_at = 0;
    if (r->state == JOB_QUEUED)
        r->state = JOB_PREPARING;
    return true;
}

static bool attempt_started(struct job_row *r, double t, const json_t *body)
{
    int attempt = int_of(body, "attempt", 0);

    if (attempt < r->attempt || (attempt == r->attempt && (!r->live || r->state == JOB_RUNNING)))
        return false;
    if (r->state == JOB_CANCELLING && r->started > 0)
        return false;
    r->attempt = attempt;
    r->live = true;
    r->reason[0] = 0;
    if (r->started == 0)
        r->started = number_of(body, "at", t);
    r->now = int_of(body, "workers", r->now);
    if (r->state != JOB_CANCELLING)
        r->state = JOB_RUNNING;
    return true;
}

static bool workers_changed(struct job_row *r, double t, const json_t *body)
{
    int now = int_of(body, "workers", r->now);

    (void)t;
    if (now == r->now || !r->live)
        return false;
    r->now = now;
    return true;
}

static bool resized(struct job_row *r, double t, const json_t *body)
{
    const json_t *workers = json_object_get(body, "workers");
    int min = int_of(workers, "min", r->min), max = int_of(workers, "max", r->max);

    (void)t;
    if (min == r->min && max == r->max)
        return false;
    r->min = min;
    r->max = max;
    return true;
}

static bool attempt_ended(struct job_row *r, double t, const json_t *body)
{
    (void)t;
    if (!r->live || int_of(body, "attempt", 0) != r->attempt)
        return false;
    r->live = false;
    r->now = 0;
    take_text(r->reason, sizeof r->reason, body, "reason");
    return true;
}

static bool retrying(struct job_row *r, double t, const json_t *body)
{
    (void)t;
    if (r->live || r->state == JOB_QUEUED || r->state == JOB_CANCELLING)
        return false;
    r->state = JOB_QUEUED;
    r->retry_at = number_of(body, "at", 0);
    r->retries++;
    return true;
}

static bool ended(struct job_row *r, double t, const json_t *body)
{
    const char *name = json_string_value(json_object_get(body, "state"));

    for (int i = 0; i < N_STATES; i++)
        if (states[i].ended && name && !strcmp(states[i].name, name)) {
            r->state = (enum job_state)i;
            r->ended = t;
            r->live = false;
            r->now = 0;
            take_text(r->reason, sizeof r->reason, body, "reason");
            return true;
        }
    return false;
}

/* Why a job that could run is not started; "": nothing of that kind any more. */
static bool waiting(struct job_row *r, double t, const json_t *body)
{
    char before[sizeof r->reason];

    (void)t;
    if (r->state != JOB_QUEUED || r->live)
        return false;
    memcpy(before, r->reason, sizeof before);
    take_text(r->reason, sizeof r->reason, body, "reason");
    return strcmp(before, r->reason) != 0;
}

static bool files_removed(struct job_row *r, double t, const json_t *body)
{
    (void)t;
    if (r->removed[0] || !job_state_ended(r->state))
        return false;
    take_text(r->removed, sizeof r->removed, body, "reason");
    return r->removed[0] != '\0';
}

static bool patched(struct job_row *r, double t, const json_t *body)
{
    (void)t;
    return take_labels(r, json_object_get(body, "labels"));
}

static const struct {
    const char *type;
    bool (*fold)(struct job_row *r, double t, const json_t *body);
    bool after_end;
} folds[] = {
    { "job.submitted", submitted, false },
    { "job.cancel_requested", cancel_requested, false },
    { "job.preparing", preparing, false },
    { "attempt.started", attempt_started, false },
    { "worker.joined", workers_changed, false },
    { "worker.left", workers_changed, false },
    { "job.resized", resized, false },
    { "attempt.ended", attempt_ended, false },
    { "job.retrying", retrying, false },
    { "job.ended", ended, false },
    { "job.waiting", waiting, false },
    { "job.patched", patched, true },
    { "job.files_removed", files_removed, true },
};

bool job_fold(struct job_row *r, double t, const char *type, const json_t *body)
{
    for (size_t i = 0; i < sizeof folds / sizeof folds[0]; i++)
        if (!strcmp(folds[i].type, type))
            return (folds[i].after_end || !job_state_ended(r->state)) && folds[i].fold(r, t, body);
    return !job_state_ended(r->state);          /* a word that changes nothing, kept as told */
}

/* ------------------------------------------------------------ the row */

static void column_text(sqlite3_stmt *st, int i, char *to, size_t size)
{
    const char *text = (const char *)sqlite3_column_text(st, i);
    snprintf(to, size, "%s", text ? text : "");
}

void job_row_read(sqlite3_stmt *st, struct job_row *r)
{
    int i = 0;

    *r = (struct job_row){ .id = sqlite3_column_int64(st, i++) };
    column_text(st, i++, r->project, sizeof r->project);
    column_text(st, i++, r->name, sizeof r->name);
    column_text(st, i++, r->kind, sizeof r->kind);
    r->state = (enum job_state)sqlite3_column_int(st, i++);
    r->live = sqlite3_column_int(st, i++);
    r->priority = sqlite3_column_int(st, i++);
    r->attempt = sqlite3_column_int(st, i++);
    r->retries = sqlite3_column_int(st, i++);
    r->min = sqlite3_column_int(st, i++);
    r->max = sqlite3_column_int(st, i++);
    r->now = sqlite3_column_int(st, i++);
    r->cpu = sqlite3_column_double(st, i++);
    r->memory = sqlite3_column_int64(st, i++);
    r->gpu = sqlite3_column_int(st, i++);
    r->created = sqlite3_column_double(st, i++);
    r->started = sqlite3_column_double(st, i++);
    r->ended = sqlite3_column_double(st, i++);
    r->retry_at = sqlite3_column_double(st, i++);
    column_text(st, i++, r->reason, sizeof r->reason);
    const char *labels = (const char *)sqlite3_column_text(st, i++);
    r->labels = labels ? strdup(labels) : NULL;
    r->user = (unsigned)sqlite3_column_int64(st, i++);
    r->processes = sqlite3_column_int(st, i++);
    column_text(st, i++, r->removed, sizeof r->removed);
}

/* What a column of two states is indexed by changes only with the state: an update writes one
 * page. */
int job_row_write(sqlite3 *db, const struct job_row *r, struct err *err)
{
    return store_run(db, err, "INSERT INTO jobs (" JOB_COLUMNS ") VALUES "
                     "(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT (id) DO UPDATE SET "
                     "state=excluded.state, live=excluded.live, attempt=excluded.attempt, "
                     "retries=excluded.retries, min=excluded.min, max=excluded.max, "
                     "now=excluded.now, started=excluded.started, ended=excluded.ended, "
                     "retry_at=excluded.retry_at, reason=excluded.reason, labels=excluded.labels, "
                     "user=excluded.user, removed=excluded.removed",
                     "isssiiiiiiiidiiddddssiis", r->id, r->project, r->name, r->kind,
                     (int64_t)r->state, (int64_t)r->live, (int64_t)r->priority,
                     (int64_t)r->attempt, (int64_t)r->retries, (int64_t)r->min, (int64_t)r->max,
                     (int64_t)r->now, r->cpu, r->memory, (int64_t)r->gpu, r->created, r->started,
                     r->ended, r->retry_at, r->reason, r->labels, (int64_t)r->user,
                     (int64_t)r->processes, r->removed);
}

static int find_row(sqlite3_stmt *st, struct job_row *out, struct err *err)
{
    int rc = store_step(st, err);

    if (rc <= 0)
        return rc;
    job_row_read(st, out);
    sqlite3_reset(st);
    return 1;
}

int job_row_find(sqlite3 *db, const char *project, const char *name, struct job_row *out,
                 struct err *err)
{
    sqlite3_stmt *st =
        store_sql(db, "SELECT " JOB_COLUMNS " FROM jobs WHERE project = ? AND name = ?", err);
    if (!st || store_bind(st, err, "ss", project, name) < 0)
        return -(int)err->code;
    int rc = find_row(st, out, err);
    if (rc == 0)
        return err_set(err, ERR_MISSING, "there is no job \"%.130s\" in project \"%.64s\"", name,
                       project);
    return rc < 0 ? rc : 0;
}

int job_row_of(sqlite3 *db, int64_t id, struct job_row *out, struct err *err)
{
    sqlite3_stmt *st = store_sql(db, "SELECT " JOB_COLUMNS " FROM jobs WHERE id = ?", err);
    if (!st || store_bind(st, err, "i", id) < 0)
        return -(int)err->code;
    int rc = find_row(st, out, err);
    if (rc == 0)
        return err_set(err, ERR_MISSING, "there is no job number %lld", (long long)id);
    return rc < 0 ? rc : 0;
}

bool job_row_equal(const struct job_row *a, const struct job_row *b)
{
    return a->id == b->id && !strcmp(a->project, b->project) && !strcmp(a->name, b->name) &&
           !strcmp(a->kind, b->kind) && a->state == b->state && a->live == b->live &&
           a->priority == b->priority && a->attempt == b->attempt && a->retries == b->retries &&
           a->min == b->min && a->max == b->max && a->now == b->now && a->cpu == b->cpu &&
           a->user == b->user && a->memory == b->memory && a->gpu == b->gpu &&
           a->created == b->created &&
           a->started == b->started && a->ended == b->ended && a->retry_at == b->retry_at &&
           !strcmp(a->reason, b->reason) && a->processes == b->processes &&
           !strcmp(a->removed, b->removed) &&
           (a->labels ? b->labels && !strcmp(a->labels, b->labels) : !b->labels);
}
