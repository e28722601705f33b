/* server/queue_share.c - what projects have used, told again by the events of recent attempts
 *
 * While it runs the scheduler counts core seconds as they pass and lets them fade (count_use). A
 * new one finds the same numbers in the log: an attempt used its workers' cores from job.preparing
 * to attempt.ended, as many workers as the last job.scaled said. What is older than HOURS half
 * lives is a thousandth of what it was, and is not looked at.
 */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "server/queue_int.h"

enum { HOURS = 10 };

/* A job's attempt, between two events of it. */
struct use {
    int64_t job;
    double since;               /* 0: none is under way */
    double cores;               /* thousandths, of a worker */
    int workers;
    struct project *project;
};

struct uses { struct use *at; int n, cap; };

/* By job, which have come in order of their numbers but for retries and long ones. */
static struct use *use_of(struct uses *u, int64_t job, struct err *err)
{
    int low = 0, high = u->n;

    while (low < high) {
        int mid = (low + high) / 2;
        if (u->at[mid].job < job)
            low = mid + 1;
        else
            high = mid;
    }
    if (low < u->n && u->at[low].job == job)
        return &u->at[low];
    if (u->n == u->cap) {
        int cap = u->cap ? u->cap * 2 : 64;
        struct use *more = realloc(u->at, (size_t)cap * sizeof *more);
        if (!more) {
            err_set(err, ERR_NOMEM, "no memory for what %d jobs used", cap);
            return NULL;
        }
        u->at = more;
        u->cap = cap;
    }
    memmove(u->at + low + 1, u->at + low, (size_t)(u->n - low) * sizeof *u->at);
    u->at[low] = (struct use){ .job = job };
    u->n++;
    return &u->at[low];
}

/* Core seconds from `since` to t, as they count at `now`: each second has faded since. */
static void count(struct use *u, double t, double now)
{
    const double rate = log(2) / SHARE_HALF_S;
    const double since = fmin(u->since, now);   /* the clock may have been set back */

    t = fmin(t, now);
    if (since > 0 && t > since)
        u->project->used += u->cores * u->workers *
                            (exp(-rate * (now - t)) - exp(-rate * (now - since))) / rate;
}

/* The first event of the last hours: times grow with numbers, but for a clock that was set. */
static int64_t first_since(sqlite3 *db, double t, int64_t last, struct err *err)
{
    sqlite3_stmt *st =
        store_sql(db, "SELECT seq, t FROM events WHERE seq >= ? ORDER BY seq LIMIT 1", err);
    int64_t low = 0, high = last;

    while (st && low < high) {
        int64_t mid = low + (high - low) / 2;
        if (store_bind(st, err, "i", mid) < 0)
            return -1;
        int rc = store_step(st, err);
        double at = rc > 0 ? sqlite3_column_double(st, 1) : t;
        sqlite3_reset(st);
        if (rc < 0)
            return -1;
        if (at < t)
            low = mid + 1;
        else
            high = mid;
    }
    return st ? low : -1;
}

/* What is known of a job that has not been met yet in these hours. */
static int meet(sqlite3 *db, struct queue *q, struct use *u, double from, bool runs,
                struct err *err)
{
    OWN_ROW r = { 0 };
    int rc = job_row_of(db, u->job, &r, err);

    if (rc == -ERR_MISSING)
        return 0;
    if (rc < 0)
        return rc;
    u->project = entries_project(q, r.project);
    if (!u->project)
        return err_set(err, ERR_NOMEM, "no memory for a project");
    u->cores = r.cpu * 1000;
    u->workers = r.now > r.min ? r.now : r.min;
    /* Its beginning is out of sight. */
    if (runs)
        u->since = r.started > from ? r.started : from;
    return 0;
}

static int add_event(sqlite3 *db, struct queue *q, struct uses *all, sqlite3_stmt *st, double from,
                     double now, struct err *err)
{
    const double t = sqlite3_column_double(st, 1);
    const char *type = (const char *)sqlite3_column_text(st, 2);
    const bool begins = !strcmp(type, "job.preparing"), ends = !strcmp(type, "attempt.ended");
    struct use *u = use_of(all, sqlite3_column_int64(st, 0), err);

    if (!u || (!u->project && meet(db, q, u, from, !begins, err) < 0))
        return -(int)err->code;
    if (!u->project)
        return 0;               /* the job was deleted */
    count(u, t, now);
    if (sqlite3_column_type(st, 3) == SQLITE_INTEGER)
        u->workers = sqlite3_column_int(st, 3);
    u->since = ends ? 0 : begins || u->since > 0 ? t : 0;
    return 0;
}

int share_restore(sqlite3 *db, void *queue, struct err *err)
{
    struct queue *q = queue;
    const double now = queue_now(q);
    const double from = now - HOURS * SHARE_HALF_S;
    struct uses all = { 0 };
    int64_t first = first_since(db, from, q->seen, err);
    sqlite3_stmt *st = first < 0 ? NULL : store_sql(db,
        "SELECT job, t, type, json_extract(body, '$.workers') FROM events WHERE seq >= ? AND "
        "type IN ('job.preparing', 'job.scaled', 'attempt.ended') ORDER BY seq", err);
    int rc = st ? store_bind(st, err, "i", first) : -(int)err->code;

    while (rc >= 0 && (rc = store_step(st, err)) > 0)
        rc = add_event(db, q, &all, st, from, now, err);
    if (rc < 0 && st)
        sqlite3_reset(st);
    /* What runs: one that has run for longer than that has said nothing. */
    for (int i = 0; rc >= 0 && i < q->live.n; i++) {
        struct use *u = use_of(&all, q->live.at[i]->plan.id, err);
        rc = u && (u->project || meet(db, q, u, from, true, err) == 0) ? 0 : -(int)err->code;
    }
    for (int i = 0; rc >= 0 && i < all.n; i++)
        if (all.at[i].project)
            count(&all.at[i], now, now);
    free(all.at);
    return rc < 0 ? rc : 0;
}
