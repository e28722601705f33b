/* server/retention.c - files of ended jobs go in time */
#include "server/retention_int.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/tree.h"
#include "drivers/limits.h"
#include "server/jobs_int.h"
#include "server/quota.h"
#include "server/server.h"

enum { BATCH = 200, DAY_S = 86400, HOUR_S = 3600 };
/* Jobs often end together: one pass for all. */
static const double TOGETHER_S = 0.5;

static const char *const schema[] = {
    "CREATE TABLE job_files (job INTEGER PRIMARY KEY, bytes INTEGER NOT NULL)",
    NULL
};

/* ------------------------------------------------------------ how much there is */

struct ids { int64_t at[BATCH], bytes[BATCH]; int n; int64_t after, last; };

static int read_ids(sqlite3_stmt *st, struct ids *ids, struct err *err)
{
    int rc;

    ids->n = 0;
    while ((rc = store_step(st, err)) > 0)
        ids->at[ids->n++] = sqlite3_column_int64(st, 0);
    return rc;
}

static int list_unmeasured(sqlite3 *db, void *arg, struct err *err)
{
    struct ids *ids = arg;
    sqlite3_stmt *st = store_sql(db, "SELECT id FROM jobs WHERE id > ? AND state >= 4 AND removed = "
                                 "'' AND id NOT IN (SELECT job FROM job_files) ORDER BY id LIMIT ?",
                                 err);
    if (!st || store_bind(st, err, "ii", ids->after, (int64_t)BATCH) < 0)
        return -(int)err->code;
    return read_ids(st, ids, err);
}

static int list_ended(sqlite3 *db, void *arg, struct err *err)
{
    struct ids *ids = arg;
    sqlite3_stmt *st = store_sql(db, "SELECT job, seq FROM events WHERE seq > ? AND type = "
                                 "'job.ended' ORDER BY seq LIMIT ?", err);
    int rc;

    if (!st || store_bind(st, err, "ii", ids->after, (int64_t)BATCH) < 0)
        return -(int)err->code;
    ids->n = 0;
    ids->last = ids->after;
    while ((rc = store_step(st, err)) > 0) {
        ids->at[ids->n++] = sqlite3_column_int64(st, 0);
        ids->last = sqlite3_column_int64(st, 1);
    }
    return rc;
}

static int write_bytes(sqlite3 *db, void *arg, struct err *err)
{
    const struct ids *ids = arg;

    for (int i = 0; i < ids->n; i++)
        if (store_run(db, err, "INSERT OR REPLACE INTO job_files VALUES (?, ?)", "ii", ids->at[i],
                      ids->bytes[i]) < 0)
            return -(int)err->code;
    return 0;
}

static int measure(struct retention *r, struct ids *ids, struct err *err)
{
    char path[4096];

    for (int i = 0; i < ids->n && !r->ending; i++) {
        if (job_path(r->server, ids->at[i], 0, path, sizeof path, err) < 0)
            return -(int)err->code;
        ids->bytes[i] = tree_bytes(path, NULL);
        r->total += (double)ids->bytes[i];
    }
    return r->ending || ids->n == 0 ? 0 : store_write(r->server->store, write_bytes, ids, err);
}

static int sum_all(sqlite3 *db, void *arg, struct err *err)
{
    sqlite3_stmt *st = store_sql(db, "SELECT ifnull(sum(bytes), 0) FROM job_files JOIN jobs ON id = "
                                 "job WHERE removed = ''", err);
    if (!st || store_step(st, err) < 0)
        return -(int)err->code;
    *(double *)arg = (double)sqlite3_column_int64(st, 0);
    sqlite3_reset(st);
    return 0;
}

static int forget_gone(sqlite3 *db, void *arg, struct err *err)
{
    (void)arg;
    return store_run(db, err, "DELETE FROM job_files WHERE job NOT IN (SELECT id FROM jobs WHERE "
                     "removed = '')", "");
}

/* All at the first time, then those that have ended since. */
static int measure_new(struct retention *r, struct err *err)
{
    struct store *store = r->server->store;
    OWN_MEM struct ids *ids = calloc(1, sizeof *ids);

    if (!ids)
        return err_set(err, ERR_NOMEM, "no memory to look at jobs' files");
    if (!r->seen) {
        int64_t clock = jobs_clock(r->server);
        if (store_write(store, forget_gone, NULL, err) < 0)
            return -(int)err->code;
        do {
            if (store_read(store, list_unmeasured, ids, err) < 0 || measure(r, ids, err) < 0)
                return -(int)err->code;
            ids->after = ids->n ? ids->at[ids->n - 1] : ids->after;
        } while (ids->n == BATCH && !r->ending);
        if (store_read(store, sum_all, &r->total, err) < 0)
            return -(int)err->code;
        r->seen = clock;
    }
    do {
        ids->after = r->seen;
        if (store_read(store, list_ended, ids, err) < 0 || measure(r, ids, err) < 0)
            return -(int)err->code;
        r->seen = ids->last;
    } while (ids->n == BATCH && !r->ending);
    return 0;
}

/* ------------------------------------------------------------ which go */

struct candidate {
    int64_t id;
    double ended;
    bool keep;
    char project[64];
};

struct page { struct candidate at[BATCH]; int n; double ended; int64_t id; };

static bool has_keep(const char *labels)
{
    OWN_JSON json_t *doc = labels ? json_loads(labels, 0, NULL) : NULL;
    const char *keep = json_string_value(json_object_get(doc, "keep"));

    return keep && strcmp(keep, "false");
}

/* Those after the last of the page before, the oldest first. */
static int read_page(sqlite3 *db, void *arg, struct err *err)
{
    struct page *p = arg;
    sqlite3_stmt *st = store_sql(db, "SELECT " JOB_COLUMNS " FROM jobs WHERE state >= 4 AND removed "
                                 "= '' AND (ended, id) > (?, ?) ORDER BY ended, id LIMIT ?", err);
    int rc;

    if (!st || store_bind(st, err, "dii", p->ended, p->id, (int64_t)BATCH) < 0)
        return -(int)err->code;
    p->n = 0;
    while ((rc = store_step(st, err)) > 0) {
        OWN_ROW row = { 0 };
        struct candidate *c = &p->at[p->n++];
        job_row_read(st, &row);
        *c = (struct candidate){ .id = row.id, .ended = row.ended, .keep = has_keep(row.labels) };
        snprintf(c->project, sizeof c->project, "%s", row.project);
    }
    return rc;
}

struct spec_of { int64_t id; json_t *spec; };

static int read_spec(sqlite3 *db, void *arg, struct err *err)
{
    struct spec_of *s = arg;
    return job_spec_of(db, s->id, &s->spec, err);
}

/* One that cannot be asked about is. */
static bool in_use(struct retention *r, const struct candidate *c)
{
    struct spec_of s = { .id = c->id };
    struct err none = { 0 };
    const struct server_part *const *more = r->server->more;

    if (store_read(r->server->store, read_spec, &s, &none) < 0)
        return true;
    OWN_JSON json_t *spec = s.spec;
    for (int i = 0; more && more[i]; i++)
        if (more[i]->in_use && more[i]->in_use(r->server, c->project, spec))
            return true;
    return false;
}

/* ------------------------------------------------------------ how they go */

static void remove_dir(const char *path)
{
    char gone[4096 + 8];
    struct err err = { 0 };

    snprintf(gone, sizeof gone, "%s.gone", path);
    tree_remove(gone, &err);            /* of a server that was killed */
    store_point("retention.rename");
    if (rename(path, gone) < 0 && errno != ENOENT) {
        log_event(LEVEL_WARN, "job.files_stay", "{s:s, s:s}", "path", path, "reason",
                  strerror(errno));
        return;
    }
    store_point("retention.renamed");
    if (tree_remove(gone, &err) < 0)
        log_event(LEVEL_WARN, "job.files_stay", "{s:s, s:s}", "path", gone, "reason", err.text);
}

static int remove_files(struct retention *r, const struct candidate *c, const char *why,
                        struct err *err)
{
    char path[4096], reason[256], when[32];
    time_t now = (time_t)clock_wall();
    struct tm tm;

    if (job_path(r->server, c->id, 0, path, sizeof path, err) < 0)
        return -(int)err->code;
    int64_t bytes = tree_bytes(path, NULL);
    gmtime_r(&now, &tm);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M", &tm);
    snprintf(reason, sizeof reason, "its files and its log were removed on %s UTC: %.120s (jobs in "
             "runtimes.yaml)", when, why);
    struct job_event e = { c->id, "job.files_removed",
                           json_pack("{s:s, s:I}", "reason", reason, "bytes", (json_int_t)bytes) };
    if (!e.body)
        return err_set(err, ERR_NOMEM, "no memory for an event");
    store_point("retention.record");
    if (jobs_append_all(r->server, &e, 1, err) < 0)
        return -(int)err->code;
    store_point("retention.recorded");
    remove_dir(path);
    r->total -= (double)bytes;
    return 0;
}

/* ------------------------------------------------------------ a pass */

static int collect(struct retention *r, double now, double days, double most, int *removed,
                   struct err *err)
{
    OWN_MEM struct page *p = calloc(1, sizeof *p);
    char why[120], size[32];

    if (!p)
        return err_set(err, ERR_NOMEM, "no memory to look at jobs' files");
    limits_print_bytes((long long)most, size, sizeof size);
    do {
        if (store_read(r->server->store, read_page, p, err) < 0)
            return -(int)err->code;
        for (int i = 0; i < p->n && !r->ending; i++) {
            const struct candidate *c = &p->at[i];
            bool old = days > 0 && now - c->ended > days * DAY_S;
            p->ended = c->ended;
            p->id = c->id;
            if (!old && (most <= 0 || r->total <= most))
                return 0;
            if (c->keep || in_use(r, c))
                continue;
            if (old)
                snprintf(why, sizeof why, "it had ended more than %g days before", days);
            else
                snprintf(why, sizeof why, "files of ended jobs took more than %s", size);
            if (remove_files(r, c, why, err) < 0)
                return -(int)err->code;
            ++*removed;
        }
    } while (p->n == BATCH && !r->ending);
    return 0;
}

int retention_pass(struct retention *r, double now, int *out_removed, struct err *err)
{
    double days, most;

    *out_removed = 0;
    if (measure_new(r, err) < 0)
        return -(int)err->code;
    quota_keep(r->server->quota, &days, &most);
    if (most > 0 && r->total > most && store_read(r->server->store, sum_all, &r->total, err) < 0)
        return -(int)err->code;
    bool due = days > 0 && now >= r->days_at;
    if (!due && (most <= 0 || r->total <= most))
        return 0;
    r->days_at = now + HOUR_S;
    return collect(r, now, days, most, out_removed, err);
}

/* ------------------------------------------------------------ what a killed server left */

static int is_removed(sqlite3 *db, void *arg, struct err *err)
{
    OWN_ROW row = { 0 };

    if (job_row_of(db, *(int64_t *)arg, &row, err) < 0)
        return -(int)err->code;
    return row.removed[0] ? 0 : err_set(err, ERR_CONFLICT, "its files are to stay");
}

void retention_finish(struct retention *r)
{
    char path[4096], gone[sizeof path + 8];

    snprintf(path, sizeof path, "%s/jobs", r->server->data_dir);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d)) && !r->ending;) {
        struct err none = { 0 };
        char *end;
        int64_t id = strtoll(e->d_name, &end, 10);
        if (id <= 0 || job_path(r->server, id, 0, path, sizeof path, &none) < 0)
            continue;
        snprintf(gone, sizeof gone, "%s.gone", path);
        if (!strcmp(end, ".gone"))
            tree_remove(gone, &none);
        else if (!*end && store_read(r->server->store, is_removed, &id, &none) == 0)
            remove_dir(path);
    }
    if (d)
        closedir(d);
}

/* ------------------------------------------------------------ life */

/* Until somebody asks (`news`), the server ends, or the time is up. True: somebody did. */
static bool wait_for(struct retention *r, bool news, double seconds)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    double at = (double)until.tv_sec + (double)until.tv_nsec * 1e-9 + seconds;
    until.tv_sec = (time_t)at;
    until.tv_nsec = (long)((at - (double)until.tv_sec) * 1e9);
    pthread_mutex_lock(&r->lock);
    while (!(news && r->asked) && !r->ending &&
           pthread_cond_timedwait(&r->wake, &r->lock, &until) != ETIMEDOUT)
        ;
    bool asked = r->asked;
    r->asked &= !news;
    pthread_mutex_unlock(&r->lock);
    return asked;
}

static void *run(void *arg)
{
    struct retention *r = arg;

    retention_finish(r);
    while (!r->ending) {
        struct err err = { 0 };
        int removed = 0;
        if (retention_pass(r, clock_wall(), &removed, &err) < 0)
            log_event(LEVEL_WARN, "retention.trouble", "{s:s}", "reason", err.text);
        if (removed)
            log_event(LEVEL_INFO, "retention.removed", "{s:i}", "jobs", removed);
        double again = use_measure(r);
        if (wait_for(r, true, again > 0 ? again : HOUR_S))
            wait_for(r, false, TOGETHER_S);
    }
    return NULL;
}

int retention_init(struct server *s, struct err *err)
{
    return jobs_init(s, err) < 0 ? -(int)err->code
                                 : store_schema(s->store, "retention", schema, err);
}

int retention_new(struct server *s, struct retention **out, struct err *err)
{
    OWN(retention) r = calloc(1, sizeof *r);
    pthread_condattr_t attr;
    sigset_t all, old;

    if (!r)
        return err_set(err, ERR_NOMEM, "no memory for retention");
    r->server = s;
    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&r->wake, &attr);
    pthread_condattr_destroy(&attr);
    if (retention_init(s, err) < 0)
        return -(int)err->code;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&r->thread, NULL, run, r);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc)
        return err_set(err, ERR_AGAIN, "cannot start the thread of retention: %s", strerror(rc));
    r->has_thread = true;
    *out = TAKE(r);
    return 0;
}

void retention_free(struct retention *r)
{
    if (!r)
        return;
    r->ending = true;
    if (r->has_thread) {
        retention_wake(r);
        pthread_join(r->thread, NULL);
    }
    use_free(r);
    pthread_cond_destroy(&r->wake);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

void retention_wake(struct retention *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    r->asked = true;
    pthread_cond_signal(&r->wake);
    pthread_mutex_unlock(&r->lock);
}
