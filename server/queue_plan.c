/* server/queue_plan.c - see queue_plan.h
 *
 * Two sums are kept: `held`, what is in use now and what this plan hands out, and `soon`, the same
 * once those told to leave have left. A job starts against `held`; whether workers must be taken back
 * for it is asked of `soon`.
 */
#include "server/queue_plan.h"

#include <string.h>

struct sums {
    int64_t held[PLAN_RESOURCES], soon[PLAN_RESOURCES];
    int64_t kept[PLAN_RESOURCES];       /* for jobs that have been overtaken long enough */
};

static int held_by(const struct plan_job *j)
{
    return j->want > j->now ? j->want : j->now;
}

static void add(int64_t *sum, const struct plan_job *j, int workers)
{
    for (int r = 0; r < PLAN_RESOURCES; r++)
        sum[r] += workers * j->each[r];
}

static bool fits(const struct plan *p, const int64_t *used, const struct plan_job *j, int workers)
{
    for (int r = 0; r < PLAN_RESOURCES; r++)
        if (workers * j->each[r] > 0 && used[r] + workers * j->each[r] > p->machine.has[r])
            return false;
    return true;
}

/* ------------------------------------------------------------ quotas of projects */

static struct plan_quota *quota_of(const struct plan *p, const struct plan_job *j)
{
    return p->quotas ? &p->quotas[j->project] : NULL;
}

static void hold(struct plan *p, struct sums *s, const struct plan_job *j, int workers)
{
    struct plan_quota *q = quota_of(p, j);

    add(s->held, j, workers);
    if (q)
        add(q->held, j, workers);
}

static void expect(struct plan *p, struct sums *s, const struct plan_job *j, int workers)
{
    struct plan_quota *q = quota_of(p, j);

    add(s->soon, j, workers);
    if (q)
        add(q->soon, j, workers);
}

/* What all of a job takes, however many workers it has. */
static void take_once(struct plan *p, const struct plan_job *j)
{
    struct plan_quota *q = quota_of(p, j);

    if (!q)
        return;
    q->held[PLAN_MEMORY] += j->memory;
    q->soon[PLAN_MEMORY] += j->memory;
    q->n_processes += j->processes;
    q->n_jobs++;
}

/* For so many workers more, of a job that begins or has begun. */
static enum plan_short short_of(const struct plan *p, const struct plan_job *j, int workers,
                                bool begins, bool soon)
{
    const struct plan_quota *q = quota_of(p, j);

    if (!q)
        return PLAN_SHORT_OF_NOTHING;
    if (begins && q->jobs && q->n_jobs >= q->jobs)
        return PLAN_SHORT_JOBS;
    if (begins && q->processes && q->n_processes + j->processes > q->processes)
        return PLAN_SHORT_PROCESSES;
    for (int r = 0; r < PLAN_RESOURCES; r++) {
        int64_t more = workers * j->each[r] + (begins && r == PLAN_MEMORY ? j->memory : 0);
        if (q->has[r] && more > 0 && (soon ? q->soon : q->held)[r] + more > q->has[r])
            return (enum plan_short)(PLAN_SHORT_CPU + r);
    }
    return PLAN_SHORT_OF_NOTHING;
}

/* ------------------------------------------------------------ who gives, who begins, who grows */

/* Nothing that somebody else has waited for too long? */
static bool leaves_what_is_kept(const struct plan *p, const struct sums *s,
                                const struct plan_job *j)
{
    for (int r = 0; r < PLAN_RESOURCES; r++)
        if (j->each[r] > 0 && s->kept[r] > 0 &&
            s->soon[r] + s->kept[r] + j->min * j->each[r] > p->machine.has[r])
            return false;
    return true;
}

static double fulfilment(const struct plan_job *j)
{
    return (double)(j->want - j->min) / (j->max - j->min);
}

static bool may_give(const struct plan_job *j)
{
    return j->elastic && j->settled && j->want > j->min;
}

/* `project` -1: any. */
static struct plan_job *who_gives(struct plan *p, int project)
{
    struct plan_job *best = NULL;

    for (int i = 0; i < p->n_running; i++) {
        struct plan_job *j = &p->running[i];
        if (!may_give(j) || (project >= 0 && j->project != project))
            continue;
        /* After a resize a job may have more than its max, and even min == max. */
        if (j->want > j->max)
            return j;
        if (!best || fulfilment(j) > fulfilment(best) ||
            (fulfilment(j) == fulfilment(best) && j->id > best->id))
            best = j;
    }
    return best;
}

static void give(struct plan *p, struct sums *s, struct plan_job *j)
{
    j->want--;
    expect(p, s, j, -1);
    /* One that was asked for but has not come yet is free at once. */
    if (j->want >= j->now)
        hold(p, s, j, -1);
}

static void take_back(struct plan *p, struct sums *s, struct plan_job *j)
{
    if (j->want >= j->now)
        hold(p, s, j, 1);
    j->want++;
    expect(p, s, j, 1);
}

/* Takes workers back until the job fits, on the machine and in its project; gives them all back when
 * it would not. */
static bool make_room(struct plan *p, struct sums *s, const struct plan_job *j)
{
    int before[p->n_running + 1];
    struct plan_job *from = NULL;

    for (int i = 0; i < p->n_running; i++)
        before[i] = p->running[i].want;
    for (;;) {
        bool machine = fits(p, s->soon, j, j->min);
        bool project = !short_of(p, j, j->min, true, true);
        if (machine && project)
            return true;
        from = who_gives(p, project ? -1 : j->project);
        if (!from)
            break;
        give(p, s, from);
    }
    for (int i = 0; i < p->n_running; i++)
        while (p->running[i].want < before[i])
            take_back(p, s, &p->running[i]);
    return false;
}

static bool goes_before(const struct plan *p, const struct plan_job *a, const struct plan_job *b)
{
    if (a->priority != b->priority)
        return a->priority > b->priority;
    if (p->share[a->project] != p->share[b->project])
        return p->share[a->project] < p->share[b->project];
    if (a->since != b->since)
        return a->since < b->since;
    return a->id < b->id;
}

static void place(struct plan *p, struct sums *s, struct plan_job *j)
{
    const enum plan_short shorts = short_of(p, j, j->min, true, false);

    if (leaves_what_is_kept(p, s, j)) {
        bool now = fits(p, s->held, j, j->min) && !shorts;
        if (now || make_room(p, s, j)) {
            /* Also when it has to wait for others to leave: nobody else gets their place. */
            hold(p, s, j, j->min);
            expect(p, s, j, j->min);
            take_once(p, j);
            p->share[j->project] += (double)j->min * (double)j->each[PLAN_CPU];
            if (now)
                j->want = j->min;
            return;
        }
    }
    j->shorts = shorts;
    if (!shorts && p->now - j->since >= p->patience_s)
        add(s->kept, j, j->min);
}

static void place_all(struct plan *p, struct sums *s)
{
    bool seen[p->n_waiting + 1];

    memset(seen, 0, sizeof seen);
    for (int k = 0; k < p->n_waiting; k++) {
        int best = -1;
        for (int i = 0; i < p->n_waiting; i++)
            if (!seen[i] && (best < 0 || goes_before(p, &p->waiting[i], &p->waiting[best])))
                best = i;
        seen[best] = true;
        place(p, s, &p->waiting[best]);
    }
}

static int64_t limit(const struct plan *p)
{
    return (int64_t)((double)p->machine.has[PLAN_CPU] * p->machine.load_limit + 0.5);
}

static bool may_grow(const struct plan *p, const struct sums *s, const struct plan_job *j)
{
    int more = j->want >= j->now;       /* 0: one that was told to leave may stay */

    if (!j->elastic || j->want >= j->max)
        return false;
    if (j->want >= j->min && s->held[PLAN_CPU] + more * j->each[PLAN_CPU] > limit(p))
        return false;
    /* One that stays after all counts again in what its project will have. */
    return fits(p, s->held, j, more) && !short_of(p, j, more, false, false) &&
           !short_of(p, j, 1, false, true);
}

static void grow_all(struct plan *p, struct sums *s)
{
    for (;;) {
        struct plan_job *best = NULL;
        for (int i = 0; i < p->n_running + p->n_waiting; i++) {
            struct plan_job *j = i < p->n_running ? &p->running[i] : &p->waiting[i - p->n_running];
            bool here = i < p->n_running ? j->settled : j->want > 0;
            if (here && may_grow(p, s, j) &&
                (!best || fulfilment(j) < fulfilment(best) ||
                 (fulfilment(j) == fulfilment(best) && j->id < best->id)))
                best = j;
        }
        if (!best)
            return;
        take_back(p, s, best);
    }
}

static void clear_quota(struct plan_quota *q)
{
    if (!q)
        return;
    memset(q->held, 0, sizeof q->held);
    memset(q->soon, 0, sizeof q->soon);
    q->n_processes = q->n_jobs = 0;
}

void plan_decide(struct plan *p)
{
    struct sums s = { 0 };
    struct plan_job *from;

    for (int i = 0; i < p->n_running; i++)
        clear_quota(quota_of(p, &p->running[i]));
    for (int i = 0; i < p->n_waiting; i++)
        clear_quota(quota_of(p, &p->waiting[i]));
    for (int i = 0; i < p->n_running; i++) {
        struct plan_job *j = &p->running[i];
        j->want = j->elastic && j->settled && j->n > j->max ? j->max : j->n;
        hold(p, &s, j, held_by(j));
        expect(p, &s, j, j->want);
        take_once(p, j);
    }
    for (int i = 0; i < p->n_waiting; i++) {
        p->waiting[i].want = p->waiting[i].now = 0;
        p->waiting[i].shorts = PLAN_SHORT_OF_NOTHING;
    }
    place_all(p, &s);
    while (s.soon[PLAN_CPU] > limit(p) && (from = who_gives(p, -1)))
        give(p, &s, from);
    grow_all(p, &s);
}

static void amount(enum plan_resource r, int64_t n, char out[64])
{
    if (r == PLAN_CPU)
        snprintf(out, 64, "%g cores", (double)n / 1000);
    else if (r == PLAN_MEMORY)
        snprintf(out, 64, "%.3g GB of memory", (double)n / 1e9);
    else
        snprintf(out, 64, "%lld GPU%s", (long long)n, n == 1 ? "" : "s");
}

int plan_possible(const struct plan_machine *m, const struct plan_job *j, struct err *err)
{
    for (int r = 0; r < PLAN_RESOURCES; r++)
        if (j->min * j->each[r] > m->has[r]) {
            char asks[64], each[64], has[64];
            amount((enum plan_resource)r, j->min * j->each[r], asks);
            amount((enum plan_resource)r, j->each[r], each);
            amount((enum plan_resource)r, m->has[r], has);
            if (j->min == 1)
                return err_set(err, ERR_INVALID, "it asks for %s, and the machine has %s", asks, has);
            return err_set(err, ERR_INVALID, "it asks for %s (%d workers with %s each), and the "
                           "machine has %s", asks, j->min, each, has);
        }
    return 0;
}
