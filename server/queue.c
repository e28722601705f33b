/* server/queue.c - the scheduler's thread: read the log, look, decide, put on record, act */
#include "server/queue.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/sysinfo.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/tree.h"
#include "drivers/gpus.h"
#include "server/queue_int.h"
#include "server/server.h"

/* After a failure of the store (a full disk) it is tried again so often. */
enum { TROUBLE_MS = 500 };

/* While jobs wait and there is no room, new ones come in by thousands a second and change nothing: a
 * round for all that came meanwhile is enough. News of the driver is not waited with. */
enum { FULL_MS = 2 };

/* ------------------------------------------------------------ the machine */

static int64_t number_file(const char *path)
{
    OWN_FILE FILE *f = fopen(path, "r");
    long long n;

    return f && fscanf(f, "%lld", &n) == 1 ? n : 0;
}

static int count_gpus(void)
{
    struct gpus all;

    gpus_list(gpus_root(), &all);
    return all.n;
}

void machine_read(const struct queue_config *c, struct plan_machine *out)
{
    struct sysinfo info;
    cpu_set_t set;
    int64_t limit = number_file("/sys/fs/cgroup/memory.max");
    double cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    int64_t memory = sysinfo(&info) == 0 ? (int64_t)info.totalram * info.mem_unit : INT64_MAX / 2;

    if (limit > 0 && limit < memory)
        memory = limit;
    out->has[PLAN_CPU] = llround((c->cores > 0 ? c->cores : cores) * 1000);
    out->has[PLAN_MEMORY] = c->memory > 0 ? c->memory : memory;
    out->has[PLAN_GPU] = c->gpus >= 0 ? c->gpus : count_gpus();
}

/* ------------------------------------------------------------ the log */

static int read_job(sqlite3 *db, struct queue *q, int64_t id, struct err *err)
{
    OWN_ROW r = { 0 };
    int rc = job_row_of(db, id, &r, err);

    if (rc == -ERR_MISSING) {
        entries_drop(q, id);
        return 0;
    }
    return rc < 0 ? rc : entries_update(q, &r, err);
}

static int read_news(sqlite3 *db, void *arg, struct err *err)
{
    struct queue *q = arg;
    sqlite3_stmt *st = store_sql(db, "SELECT seq, job FROM events WHERE seq > ? ORDER BY seq", err);
    int64_t seen = q->seen, last = -1;
    int rc;

    if (!st || store_bind(st, err, "i", q->seen) < 0)
        return -(int)err->code;
    while ((rc = store_step(st, err)) > 0) {
        int64_t job = sqlite3_column_int64(st, 1);
        seen = sqlite3_column_int64(st, 0);
        if (job != last && (rc = read_job(db, q, job, err)) < 0) {
            sqlite3_reset(st);
            break;
        }
        last = job;
    }
    if (rc < 0)
        return rc;
    q->seen = seen;
    return 0;
}

/* The clock may have been set back since a retry was stored: no wait is longer than it was then. */
static int bound_waits(sqlite3 *db, struct queue *q, struct err *err)
{
    const double now = queue_now(q);

    for (int i = 0; i < q->later.n; i++) {
        struct entry *e = q->later.at[i];
        if (e->retry_at <= now)
            continue;
        sqlite3_stmt *st = store_sql(db, "SELECT json_extract(body, '$.wait_s') FROM events WHERE "
                                     "job = ? AND type = 'job.retrying' ORDER BY seq DESC LIMIT 1",
                                     err);
        int rc = st ? store_bind(st, err, "i", e->plan.id) : -(int)err->code;
        if (rc < 0 || (rc = store_step(st, err)) < 0)
            return rc;
        if (rc > 0)
            e->retry_at = fmin(e->retry_at, now + sqlite3_column_double(st, 0));
        sqlite3_reset(st);
    }
    return 0;
}

static int read_all(sqlite3 *db, void *arg, struct err *err)
{
    struct queue *q = arg;
    sqlite3_stmt *st = store_sql(db, "SELECT max(seq) FROM events", err);
    int rc;

    if (!st || store_step(st, err) < 0)
        return -(int)err->code;
    q->seen = sqlite3_column_int64(st, 0);
    sqlite3_reset(st);
    st = store_sql(db, "SELECT " JOB_COLUMNS " FROM jobs WHERE state < 4 ORDER BY id", err);
    if (!st)
        return -(int)err->code;
    while ((rc = store_step(st, err)) > 0) {
        OWN_ROW r = { 0 };
        job_row_read(st, &r);
        if (entries_update(q, &r, err) < 0) {
            sqlite3_reset(st);
            return -(int)err->code;
        }
    }
    return rc < 0 ? rc : bound_waits(db, q, err);
}

/* Puts what is pending on record, then reads it back. */
static int commit(struct queue *q, struct err *err)
{
    int n = q->pending.n;

    q->pending.n = 0;
    if (n == 0)
        return 0;
    store_point("queue.commit");
    if (jobs_append_all(q->server, q->pending.at, n, err) < 0)
        return -(int)err->code;
    store_point("queue.committed");
    return store_read(q->server->store, read_news, q, err);
}

/* ------------------------------------------------------------ one round */

double queue_now(const struct queue *q)
{
    return q->config.now ? q->config.now() : clock_wall();
}

static int round_of(struct queue *q, bool look, struct err *err)
{
    const double now = queue_now(q), by = clock_was_set(&q->clock, now);

    if (by < 0)                 /* forward: a wait is over sooner, and none is lost */
        entries_clock_set(q, by);
    if (store_read(q->server->store, read_news, q, err) < 0)
        return -(int)err->code;
    entries_wake_later(q, now);
    if ((look && act_look(q, now, err) < 0) || act_cancel(q, now, err) < 0 || commit(q, err) < 0)
        return -(int)err->code;
    if (act_plan(q, now, err) < 0)
        return -(int)err->code;
    bool started = q->pending.n > 0;
    if (commit(q, err) < 0)
        return -(int)err->code;
    /* A start that fails ends an attempt, and that may make room for another job. */
    if (act_start(q, now, err) < 0)
        return -(int)err->code;
    q->full = q->n_waiting > 0 && !started && !q->pending.n;
    if (q->pending.n)
        queue_wake(q);
    return commit(q, err);
}

/* True: attempts are to be looked at. */
static bool wait_for_news(struct queue *q, int timeout_ms)
{
    struct pollfd fds[2] = { { q->wake_fd, POLLIN, 0 }, { q->config.news_fd, POLLIN, 0 } };
    uint64_t n;

    if (q->full && !q->ending)
        poll(fds + 1, q->config.news_fd >= 0, FULL_MS);
    poll(fds, q->config.news_fd >= 0 ? 2 : 1, timeout_ms);
    if (fds[0].revents && read(q->wake_fd, &n, sizeof n) < 0 && errno != EAGAIN)
        return false;
    if (q->config.news_fd < 0 || !fds[1].revents)
        return false;
    q->config.news_clear();
    return true;
}

static int timeout_of(struct queue *q)
{
    double now = queue_now(q), at = act_next(q, now);

    if (at == 0)
        return 60000;
    double ms = ceil((at - now) * 1000);
    return ms < 1 ? 1 : ms > 60000 ? 60000 : (int)ms;
}

/* What jobs left that were deleted while the server died. */
static int drop_orphans(sqlite3 *db, void *arg, struct err *err)
{
    struct queue *q = arg;
    char path[4096];

    snprintf(path, sizeof path, "%s/jobs", q->server->data_dir);
    DIR *d = opendir(path);
    for (const struct dirent *e; d && (e = readdir(d));) {
        OWN_ROW r = { 0 };
        struct err none = { 0 };
        char *end;
        int64_t id = strtoll(e->d_name, &end, 10);
        if (id > 0 && !*end && job_row_of(db, id, &r, &none) == -ERR_MISSING &&
            job_path(q->server, id, 0, path, sizeof path, err) == 0)
            tree_remove(path, &none);
    }
    if (d)
        closedir(d);
    return 0;
}

/* Logged when it changes, and shown for as long as it lasts. */
static void tell_trouble(struct queue *q, const char *text)
{
    if (!strcmp(q->shown.trouble, text))
        return;                 /* nobody else writes it */
    if (*text)
        log_event(LEVEL_WARN, "scheduler.trouble", "{s:s}", "reason", text);
    else
        log_event(LEVEL_INFO, "scheduler.goes_on", "{}");
    pthread_mutex_lock(&q->lock);
    snprintf(q->shown.trouble, sizeof q->shown.trouble, "%s", text);
    pthread_mutex_unlock(&q->lock);
}

static void *run(void *arg)
{
    struct queue *q = arg;
    bool look = true;           /* at what an earlier server left */
    struct err err = { 0 };

    store_read(q->server->store, drop_orphans, q, &err);
    while (!q->ending) {
        err = (struct err){ 0 };
        int rc = round_of(q, look, &err);
        tell_trouble(q, rc < 0 ? err.text : q->trouble);
        for (int i = 0; i < q->pending.n; i++)
            json_decref(q->pending.at[i].body);
        q->pending.n = 0;
        look = wait_for_news(q, rc < 0 ? TROUBLE_MS : timeout_of(q)) || rc < 0 ||
               queue_now(q) >= q->look_at + 0.04;
    }
    return NULL;
}

/* ------------------------------------------------------------ life */

int queue_new(struct server *s, const struct queue_config *config, struct queue **out,
              struct err *err)
{
    OWN(queue) q = calloc(1, sizeof *q);
    sigset_t all, old;

    if (!q)
        return err_set(err, ERR_NOMEM, "no memory for the scheduler");
    q->server = s;
    q->wake_fd = -1;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->starter.more, NULL);
    q->config = config ? *config : (struct queue_config){ .gpus = -1, .news_fd = -1 };
    if (!q->config.driver) {
        q->config.driver = &driver_local;
        q->config.news_fd = driver_local_news();
        q->config.news_clear = driver_local_news_clear;
    }
    machine_read(&q->config, &q->machine);
    q->machine.load_limit = s->load_limit > 0 ? s->load_limit : 0.9;
    q->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (q->wake_fd < 0)
        return err_set(err, ERR_IO, "cannot wake the scheduler: %s", strerror(errno));
    if (jobs_init(s, err) < 0 || store_read(s->store, read_all, q, err) < 0 ||
        store_read(s->store, share_restore, q, err) < 0)
        return -(int)err->code;
    struct queue *const before = *out;
    *out = q;                   /* first: the thread finds itself through the server */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&q->thread, NULL, run, q);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc) {
        *out = before;
        return err_set(err, ERR_AGAIN, "cannot start the scheduler: %s", strerror(rc));
    }
    q->has_thread = true;
    q = NULL;
    return 0;
}

void queue_free(struct queue *q)
{
    if (!q)
        return;
    q->ending = true;
    if (q->has_thread) {
        queue_wake(q);
        pthread_join(q->thread, NULL);
    }
    starter_end(q);
    pthread_cond_destroy(&q->starter.more);
    if (q->wake_fd >= 0)
        close(q->wake_fd);
    entries_free(q);
    free(q->pending.at);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

void queue_wake(struct queue *q)
{
    uint64_t one = 1;

    if (write(q->wake_fd, &one, sizeof one) < 0)
        return;                 /* it is full: the scheduler has enough to wake up for */
}

json_t *queue_machine(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    json_t *doc = json_pack("{s:f, s:I, s:I, s:f, s:f, s:{s:f, s:f, s:f}, s:i, s:i, s:s}",
                            "cores", (double)q->machine.has[PLAN_CPU] / 1000,
                            "memory", (json_int_t)q->machine.has[PLAN_MEMORY],
                            "gpus", (json_int_t)q->machine.has[PLAN_GPU],
                            "load", q->shown.cpu * 1000 / (double)q->machine.has[PLAN_CPU],
                            "load_limit", q->machine.load_limit,
                            "used", "cpu", q->shown.cpu, "memory", q->shown.memory,
                            "gpu", q->shown.gpu,
                            "running", q->shown.running, "waiting", q->shown.waiting,
                            "trouble", q->shown.trouble);
    pthread_mutex_unlock(&q->lock);
    return doc;
}
