/* server/queue_act.c - what a state calls for: looking at attempts, ending them, planning, starting
 *
 * Each function adds events to q->pending; the loop appends them in one transaction, reads the log
 * and only then goes on, so that nothing is done that is not on record. When the transaction fails
 * (a full disk) the same events come again in the next round.
 */
#include <math.h>
#include <string.h>

#include "server/queue_int.h"
#include "server/quota.h"
#include "server/server.h"

/* SIGTERM to SIGKILL: enough for a checkpoint of a small model. */
enum { GRACE_MS = 5000 };
/* Of a project's jobs that wait, so many are considered: others may overtake within them. */
enum { AHEAD = 32 };
/* How long the first in turn may be overtaken. */
static const double PATIENCE_S = 30;
static const double AGAIN_S = 1;
/* Before the first retry at least, and before any at most: it doubles in between. */
static const double BACKOFF_MIN_S = 0.1, BACKOFF_MAX_S = 3600;
static const double LOOK_S = 1, LOOK_WORKERS_S = 0.05;

int pending_add(struct queue *q, int64_t job, const char *type, json_t *body, struct err *err)
{
    struct pending *p = &q->pending;

    if (p->n == p->cap) {
        int cap = p->cap ? p->cap * 2 : 16;
        struct job_event *more = realloc(p->at, (size_t)cap * sizeof *more);
        if (!more) {
            json_decref(body);
            return err_set(err, ERR_NOMEM, "no memory for %d events", cap);
        }
        p->at = more;
        p->cap = cap;
    }
    if (!body)
        return err_set(err, ERR_NOMEM, "no memory for an event");
    p->at[p->n++] = (struct job_event){ job, type, body };
    return 0;
}

/* ------------------------------------------------------------ the end of an attempt */

struct spec_read { int64_t id; json_t *spec; struct job_row *row; };

static int read_spec(sqlite3 *db, void *arg, struct err *err)
{
    struct spec_read *r = arg;

    if (r->row && job_row_of(db, r->id, r->row, err) < 0)
        return -(int)err->code;
    return job_spec_of(db, r->id, &r->spec, err);
}

static double number_in(const json_t *spec, const char *object, const char *key, double fallback)
{
    const json_t *v = json_object_get(json_object_get(spec, object), key);
    return json_is_number(v) ? json_number_value(v) : fallback;
}

static json_t *end_body(const char *state, const char *reason)
{
    return json_pack("{s:s, s:s}", "state", state, "reason", reason);
}

/* A failed attempt: once more, or the end. */
static int after_failure(struct queue *q, const struct entry *e, const char *reason, double now,
                         struct err *err)
{
    struct spec_read r = { .id = e->plan.id };

    if (store_read(q->server->store, read_spec, &r, err) < 0)
        return -(int)err->code;
    OWN_JSON json_t *spec = r.spec;
    if (e->retries >= (int)number_in(spec, "retries", "limit", 0))
        return pending_add(q, e->plan.id, "job.ended", end_body("failed", reason), err);
    double wait = fmin(BACKOFF_MAX_S,
                       fmax(number_in(spec, "retries", "backoff_s", 10), BACKOFF_MIN_S) *
                           exp2(fmin(e->retries, 30)));
    return pending_add(q, e->plan.id, "job.retrying",
                       json_pack("{s:f, s:f}", "at", now + wait, "wait_s", wait), err);
}

static int attempt_ended(struct queue *q, const struct entry *e, const struct run_state *run,
                         double now, struct err *err)
{
    char reason[256];
    bool good = run->phase == RUN_ENDED && run->code == 0 && run->signal == 0;

    if (*run->reason || good)
        snprintf(reason, sizeof reason, "%s", run->reason);
    else if (run->phase == RUN_LOST)
        snprintf(reason, sizeof reason, "lost: the process that kept it was killed");
    else if (run->signal)
        snprintf(reason, sizeof reason, "killed by signal %d (%s)", run->signal,
                 strsignal(run->signal));
    else
        snprintf(reason, sizeof reason, "exit code %d", run->code);
    json_t *body = json_pack("{s:i, s:i, s:i, s:s}", "attempt", e->attempt, "code",
                             run->phase == RUN_ENDED ? run->code : -1, "signal", run->signal,
                             "reason", reason);
    if (pending_add(q, e->plan.id, "attempt.ended", body, err) < 0)
        return -(int)err->code;
    if (e->state == JOB_CANCELLING)
        return pending_add(q, e->plan.id, "job.ended", end_body("cancelled", "cancelled"), err);
    if (good)
        return pending_add(q, e->plan.id, "job.ended", end_body("succeeded", reason), err);
    return after_failure(q, e, reason, now, err);
}

/* ------------------------------------------------------------ looking */

static int path_of(struct queue *q, const struct entry *e, char out[4096], struct err *err)
{
    return job_path(q->server, e->plan.id, e->attempt, out, 4096, err);
}

static int workers_are(struct queue *q, struct entry *e, int now, struct err *err)
{
    e->plan.now = now;
    if (e->plan.n < e->plan.min)
        e->plan.n = e->plan.min;
    if (now == e->logged_now)
        return 0;
    return pending_add(q, e->plan.id, now > e->logged_now ? "worker.joined" : "worker.left",
                       json_pack("{s:i}", "workers", now), err);
}

/* On record, once. */
static int has_started(struct queue *q, struct entry *e, const char *dir,
                       const struct run_state *run, struct err *err)
{
    if (e->state != JOB_PREPARING)
        return 0;
    json_t *body = json_pack("{s:i, s:i, s:s, s:i}", "attempt", e->attempt, "pid", (int)run->keeper,
                             "dir", dir, "workers", e->train ? run->workers : e->plan.min);
    if (run->started > 0)
        json_object_set_new(body, "at", json_real(run->started));
    if (e->train)
        e->logged_now = run->workers;
    return pending_add(q, e->plan.id, "attempt.started", body, err);
}

static int look_at(struct queue *q, struct entry *e, double now, struct err *err)
{
    struct run_state run = { 0 };
    struct err none = { 0 };
    char dir[4096];

    if (e->starting)
        return 0;
    if (path_of(q, e, dir, err) < 0)
        return -(int)err->code;
    if (q->config.driver->look(dir, &run, &none) < 0)
        return 0;               /* looked at again before long */
    e->phase = run.phase;
    switch (run.phase) {
    case RUN_NOT_STARTED:
        /* It is on record that it ran, and its directory knows nothing: a power cut took both. */
        if (e->state == JOB_RUNNING) {
            run.phase = RUN_LOST;
            snprintf(run.reason, sizeof run.reason, "lost: the machine went down while it ran");
            return attempt_ended(q, e, &run, now, err);
        }
        if (e->asked) {         /* it was made and came to nothing: once more */
            e->asked = false;
            e->not_before = now + AGAIN_S;
        }
        return 0;
    case RUN_PREPARING:
        return 0;
    case RUN_ENDED:
        /* One that was over before anybody looked has run all the same. */
        if (run.started > 0 && has_started(q, e, dir, &run, err) < 0)
            return -(int)err->code;
        return attempt_ended(q, e, &run, now, err);
    case RUN_LOST:
        /* What it left behind is ended before another attempt may begin. */
        q->config.driver->stop(dir, 0, &none);
        return attempt_ended(q, e, &run, now, err);
    case RUN_RUNNING:
        break;
    }
    if (has_started(q, e, dir, &run, err) < 0)
        return -(int)err->code;
    if (!e->train)
        return 0;
    e->plan.settled = run.workers > 0;
    return run.workers > 0 || e->logged_now > 0 ? workers_are(q, e, run.workers, err) : 0;
}

int act_look(struct queue *q, double now, struct err *err)
{
    for (int i = 0; i < q->live.n; i++)
        if (look_at(q, q->live.at[i], now, err) < 0)
            return -(int)err->code;
    q->look_at = now;
    return 0;
}

/* ------------------------------------------------------------ cancelling */

int act_cancel(struct queue *q, double now, struct err *err)
{
    char dir[4096];

    for (int i = 0; i < q->later.n; i++)
        if (q->later.at[i]->state == JOB_CANCELLING &&
            pending_add(q, q->later.at[i]->plan.id, "job.ended",
                        end_body("cancelled", "cancelled before it ran"), err) < 0)
            return -(int)err->code;
    for (int i = 0; i < q->live.n; i++) {
        struct entry *e = q->live.at[i];
        struct err none = { 0 };
        if (e->state != JOB_CANCELLING || e->starting || now < e->not_before)
            continue;
        if (path_of(q, e, dir, err) < 0)
            return -(int)err->code;
        if (!e->stopped && q->config.driver->stop(dir, GRACE_MS, &none) < 0) {
            snprintf(q->trouble, sizeof q->trouble, "cancelling a job: %.300s", none.text);
            e->not_before = now + AGAIN_S;
            continue;
        }
        e->stopped = true;
        /* One that was never started, or whose start came to nothing, has nobody to tell how it
         * ended. */
        if (e->phase == RUN_NOT_STARTED && !e->asked) {
            struct run_state run = { .phase = RUN_ENDED, .code = -1 };
            snprintf(run.reason, sizeof run.reason, "cancelled before it ran");
            if (attempt_ended(q, e, &run, now, err) < 0)
                return -(int)err->code;
        }
    }
    return 0;
}

/* ------------------------------------------------------------ planning */

static void count_use(struct queue *q, double now)
{
    double dt = q->last_use > 0 && now > q->last_use ? now - q->last_use : 0;

    q->last_use = now;
    for (struct project *p = q->projects; p; p = p->next)
        p->used *= exp2(-dt / SHARE_HALF_S);
    for (int i = 0; i < q->live.n; i++) {
        const struct entry *e = q->live.at[i];
        e->project->used += dt * (double)e->plan.each[PLAN_CPU] * e->plan.n;
    }
}

/* The first of each project; those that can never run are ended. */
static int gather(struct queue *q, struct plan *p, struct entry **who, struct err *err)
{
    int n_projects = 0;

    for (struct project *pr = q->projects; pr; pr = pr->next) {
        pr->index = n_projects;
        p->share[n_projects++] = pr->used;
        for (int i = 0, taken = 0; i < pr->waiting.n && taken < AHEAD; i++) {
            struct entry *e = pr->waiting.at[i];
            struct err why = { 0 };
            if (plan_possible(&q->machine, &e->plan, &why) < 0) {
                if (pending_add(q, e->plan.id, "job.ended", end_body("failed", why.text), err) < 0)
                    return -(int)err->code;
                continue;
            }
            e->plan.project = pr->index;
            who[p->n_waiting] = e;
            p->waiting[p->n_waiting++] = e->plan;
            taken++;
        }
    }
    return 0;
}

static int resize(struct queue *q, struct entry *e, int want, struct err *err)
{
    struct err none = { 0 };
    char dir[4096];

    if (want == e->plan.n)
        return 0;
    if (path_of(q, e, dir, err) < 0)
        return -(int)err->code;
    int min = e->plan.min < want ? e->plan.min : want;
    if (q->config.driver->resize(dir, min, want, &none) < 0)
        return 0;               /* asked again in the next round */
    e->plan.n = want;
    return pending_add(q, e->plan.id, "job.scaled", json_pack("{s:i}", "workers", want), err);
}

static int begin(struct queue *q, struct entry *e, int want, struct err *err)
{
    struct err why = { 0 };
    unsigned user;

    if (users_next(q, e, &user, &why) < 0) {       /* it waits until there is one */
        snprintf(q->trouble, sizeof q->trouble, "%s", why.text);
        q->no_user = true;
        return 0;
    }
    json_t *body = json_pack("{s:i, s:i, s:s}", "attempt", e->attempt + 1, "workers", want, "what",
                             "starting");
    if (body && user)
        json_object_set_new(body, "user", json_integer(user));
    e->plan.want = want;        /* for act_start, once it is on record */
    return pending_add(q, e->plan.id, "job.preparing", body, err);
}

static void show(struct queue *q)
{
    double used[PLAN_RESOURCES] = { 0 };

    for (int i = 0; i < q->live.n; i++) {
        const struct plan_job *j = &q->live.at[i]->plan;
        for (int r = 0; r < PLAN_RESOURCES; r++)
            used[r] += (double)j->each[r] * (j->n > j->now ? j->n : j->now);
    }
    pthread_mutex_lock(&q->lock);
    q->shown.cpu = used[PLAN_CPU] / 1000;
    q->shown.memory = used[PLAN_MEMORY];
    q->shown.gpu = used[PLAN_GPU];
    q->shown.running = q->live.n;
    q->shown.waiting = q->n_waiting + q->later.n;
    pthread_mutex_unlock(&q->lock);
}

/* What of its project's quota a job takes as a whole: memory and processes that it does not ask for
 * are those that it is given (queue_start.c). */
static void take_of_project(const struct quota_limits *job, const struct entry *e,
                            struct plan_job *out)
{
    out->project = e->project->index;
    out->memory = e->plan.each[PLAN_MEMORY] > 0 ? 0 : (int64_t)job->memory;
    out->processes = e->processes > 0 ? e->processes : (int64_t)job->processes;
}

/* False: no project has one. */
static bool read_quotas(struct queue *q, struct plan *p, struct plan_quota *quotas,
                        struct entry *const *who)
{
    bool some = false;

    for (struct project *pr = q->projects; pr; pr = pr->next) {
        struct plan_quota *to = &quotas[pr->index];
        struct quota_limits job, all;
        quota_of(q->server->quota, pr->name, &job, NULL, &all);
        to->has[PLAN_CPU] = llround(all.cpu * 1000);
        to->has[PLAN_MEMORY] = (int64_t)all.memory;
        to->processes = (int64_t)all.processes;
        to->jobs = (int64_t)all.jobs;
        if (!to->has[PLAN_CPU] && !to->has[PLAN_MEMORY] && !to->processes && !to->jobs)
            continue;
        some = true;
        for (int i = 0; i < p->n_running; i++)
            if (q->live.at[i]->project == pr)
                take_of_project(&job, q->live.at[i], &p->running[i]);
        for (int i = 0; i < p->n_waiting; i++)
            if (who[i]->project == pr)
                take_of_project(&job, who[i], &p->waiting[i]);
    }
    return some;
}

/* The reason of a job that waits is its project's, as long as that is so. */
static int say_short(struct queue *q, struct entry *e, const struct plan_job *j, struct err *err)
{
    static const char *const of[] = { "", "cores", "memory", "GPUs", "processes", "jobs" };
    char reason[256] = "";

    if (j->want || e->told == j->shorts)
        return 0;
    if (j->shorts)
        snprintf(reason, sizeof reason, "waits: the jobs of project \"%.64s\" that run have all the "
                 "%s that it may use at once (limits in runtimes.yaml)", e->project->name,
                 of[j->shorts]);
    e->told = j->shorts;
    return pending_add(q, e->plan.id, "job.waiting", json_pack("{s:s}", "reason", reason), err);
}

int act_plan(struct queue *q, double now, struct err *err)
{
    int n_projects = 0;

    count_use(q, now);
    show(q);
    q->no_user = false;
    for (struct project *p = q->projects; p; p = p->next)
        n_projects++;
    OWN_MEM double *share = calloc((size_t)n_projects + 1, sizeof *share);
    OWN_MEM struct plan_quota *quotas = calloc((size_t)n_projects + 1, sizeof *quotas);
    OWN_MEM struct entry **who = calloc((size_t)n_projects * AHEAD + 1, sizeof(struct entry *));
    OWN_MEM struct plan_job *waiting = calloc((size_t)n_projects * AHEAD + 1, sizeof *waiting);
    OWN_MEM struct plan_job *running = calloc((size_t)q->live.n + 1, sizeof *running);
    if (!share || !quotas || !who || !waiting || !running)
        return err_set(err, ERR_NOMEM, "no memory for a plan");
    struct plan p = { .machine = q->machine, .running = running, .waiting = waiting,
                      .n_running = q->live.n, .share = share, .now = now,
                      .patience_s = PATIENCE_S };
    for (int i = 0; i < q->live.n; i++)
        running[i] = q->live.at[i]->plan;
    if (gather(q, &p, who, err) < 0)
        return -(int)err->code;
    if (q->server->quota && read_quotas(q, &p, quotas, who))
        p.quotas = quotas;
    plan_decide(&p);
    for (int i = 0; i < p.n_running; i++)
        if (resize(q, q->live.at[i], running[i].want, err) < 0)
            return -(int)err->code;
    for (int i = 0; i < p.n_waiting; i++)
        if (say_short(q, who[i], &waiting[i], err) < 0 ||
            (waiting[i].want && begin(q, who[i], waiting[i].want, err) < 0))
            return -(int)err->code;
    return 0;
}

/* ------------------------------------------------------------ starting */

/* What came of a start; a machine that cannot just now is asked again. */
static int was_started(struct queue *q, struct entry *e, const struct starting *s, double now,
                       struct err *err)
{
    e->starting = false;
    if (s->rc == -ERR_AGAIN || s->rc == -ERR_NOMEM || s->rc == -ERR_IO) {
        e->asked = false;
        e->phase = RUN_NOT_STARTED;
        e->not_before = now + AGAIN_S;
        snprintf(q->trouble, sizeof q->trouble, "job \"%s\": %.300s", s->row.name, s->why.text);
        return 0;
    }
    if (s->rc == 0)
        return 0;
    struct run_state run = { .phase = RUN_ENDED, .code = -1 };
    snprintf(run.reason, sizeof run.reason, "%.250s", s->why.text);
    return attempt_ended(q, e, &run, now, err);
}

static int start_one(struct queue *q, struct entry *e, double now, struct err *err)
{
    OWN(starting) s = calloc(1, sizeof *s);
    if (!s)
        return err_set(err, ERR_NOMEM, "no memory for a job");
    struct spec_read r = { .id = e->plan.id, .row = &s->row };

    if (store_read(q->server->store, read_spec, &r, err) < 0)
        return -(int)err->code;
    s->spec = r.spec;
    s->workers = e->plan.want > e->plan.min ? e->plan.want : e->plan.min;
    e->plan.n = s->workers;
    e->asked = true;
    e->phase = RUN_PREPARING;
    if (start_is_slow(s)) {
        e->starting = true;
        return start_aside(q, TAKE(s), err);
    }
    start_now(q, s);
    return was_started(q, e, s, now, err);
}

static int take_started(struct queue *q, double now, struct err *err)
{
    for (struct starting *next; (next = start_done(q));) {
        OWN(starting) s = next;
        struct entry *e = entries_find(q, s->row.id);
        if (e && e->starting && e->attempt == s->row.attempt && was_started(q, e, s, now, err) < 0)
            return -(int)err->code;
    }
    return 0;
}

int act_start(struct queue *q, double now, struct err *err)
{
    bool trouble = q->no_user;

    if (take_started(q, now, err) < 0)
        return -(int)err->code;
    for (int i = 0; i < q->live.n; i++)
        trouble |= q->live.at[i]->not_before > now;
    if (!trouble)
        q->trouble[0] = '\0';
    for (int i = 0; i < q->live.n; i++) {
        struct entry *e = q->live.at[i];
        if (e->phase == RUN_NOT_STARTED && !e->asked && now >= e->not_before &&
            e->state != JOB_CANCELLING && start_one(q, e, now, err) < 0)
            return -(int)err->code;
    }
    return 0;
}

/* ------------------------------------------------------------ time */

static void sooner(double *at, double t)
{
    if (*at == 0 || t < *at)
        *at = t;
}

double act_next(struct queue *q, double now)
{
    double at = 0;

    if (q->no_user)             /* another server's job may have one, and its end is no news here */
        sooner(&at, now + AGAIN_S);
    for (int i = 0; i < q->later.n; i++)
        sooner(&at, q->later.at[i]->retry_at > now ? q->later.at[i]->retry_at : now + AGAIN_S);
    for (int i = 0; i < q->live.n; i++) {
        const struct entry *e = q->live.at[i];
        /* News tells of beginnings and ends; of single workers nobody does. */
        sooner(&at, q->look_at + (e->train && e->plan.now != e->plan.n ? LOOK_WORKERS_S : LOOK_S));
        if (e->not_before > now)
            sooner(&at, e->not_before);
    }
    for (struct project *p = q->projects; p; p = p->next)
        if (p->waiting.n && p->waiting.at[0]->plan.since + PATIENCE_S > now)
            sooner(&at, p->waiting.at[0]->plan.since + PATIENCE_S);
    return at;
}
