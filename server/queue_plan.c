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

static struct plan_job *who_gives(struct plan *p)
{
    struct plan_job *best = NULL;

    for (int i = 0; i < p->n_running; i++) {
        struct plan_job *j = &p->running[i];
        if (!may_give(j))
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

static void give(struct sums *s, struct plan_job *j)
{
    j->want--;
    add(s->soon, j, -1);
    /* One that was asked for but has not come yet is free at once. */
    if (j->want >= j->now)
        add(s->held, j, -1);
}

/* Takes workers back until the job fits; gives them all back when it would not. */
static bool make_room(struct plan *p, struct sums *s, const struct plan_job *j)
{
    int before[p->n_running + 1];
    struct sums old = *s;
    struct plan_job *from;

    for (int i = 0; i < p->n_running; i++)
        before[i] = p->running[i].want;
    while (!fits(p, s->soon, j, j->min) && (from = who_gives(p)))
        give(s, from);
    if (fits(p, s->soon, j, j->min))
        return true;
    for (int i = 0; i < p->n_running; i++)
        p->running[i].want = before[i];
    *s = old;
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
    if (leaves_what_is_kept(p, s, j)) {
        bool now = fits(p, s->held, j, j->min);
        if (now || make_room(p, s, j)) {
            /* Also when it has to wait for others to leave: nobody else gets their place. */
            add(s->held, j, j->min);
            add(s->soon, j, j->min);
            p->share[j->project] += (double)j->min * (double)j->each[PLAN_CPU];
            if (now)
                j->want = j->min;
            return;
        }
    }
    if (p->now - j->since >= p->patience_s)
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
    return fits(p, s->held, j, more);
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
        if (best->want >= best->now)
            add(s->held, best, 1);
        add(s->soon, best, 1);
        best->want++;
    }
}

void plan_decide(struct plan *p)
{
    struct sums s = { 0 };
    struct plan_job *from;

    for (int i = 0; i < p->n_running; i++) {
        struct plan_job *j = &p->running[i];
        j->want = j->elastic && j->settled && j->n > j->max ? j->max : j->n;
        add(s.held, j, held_by(j));
        add(s.soon, j, j->want);
    }
    for (int i = 0; i < p->n_waiting; i++)
        p->waiting[i].want = p->waiting[i].now = 0;
    place_all(p, &s);
    while (s.soon[PLAN_CPU] > limit(p) && (from = who_gives(p)))
        give(&s, from);
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
