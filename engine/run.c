/* engine/run.c - steps
 *
 * DESIGN. A run is one call of team_run: every member goes through the batches by itself, executes
 * the plan's list of calls for each, and meets the others only at the list's barriers. Member 0
 * also writes down each step's loss. With a hook, all wait for it at a barrier after each step; without
 * one a member may be a few calls ahead of another.
 */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "engine/plan_int.h"

void member_part(const struct member *m, long n, long unit, long *a, long *b)
{
    long units = (n + unit - 1) / unit;
    long from = units * m->id / m->count * unit, to = units * (m->id + 1) / m->count * unit;

    *a = from < n ? from : n;
    *b = to < n ? to : n;
}

void member_barrier(struct member *m)
{
    team_barrier(m->plan->team, m->id);
}

/* ------------------------------------------------------------------ kept gradients */

/* The factor that brings the norm of all gradients down to the limit. Each member sums the
 * parameters that are its own, all add up the sums in one order. */
static float clip_factor(struct member *m)
{
    struct plan *p = m->plan;
    struct plan_int *own = p->own;

    if (own->clip_norm <= 0)
        return 1;
    for (int i = m->id; i < p->n_params; i += m->count)
        own->square[i] = p->param[i]->trained ?
                         own->kernels->sum_squares(p->param[i]->g, p->param[i]->size) : 0;
    member_barrier(m);
    double sum = 0;
    for (int i = 0; i < p->n_params; i++)
        sum += own->square[i];
    double factor = own->clip_norm / (sqrt(sum) + 1e-6);
    return factor < 1 ? (float)factor : 1;
}

/* Floats that are updated at a time, so that the hash finds them in the cache. */
enum { UPDATE_FLOATS = 4096 };

/* Weights [from, to) of this member's copy of q. `given` (NULL: it is where the plan has it) is
 * the gradient from element `from` on. */
static void update_part(struct member *m, const struct param *q, long from, long to,
                        const float *given, float scale)
{
    const struct plan *p = m->plan;
    const struct kernels *k = p->own->kernels;
    _Alignas(64) float room[UPDATE_FLOATS];
    const long begin = from;

    for (long end; from < to; from = end) {
        end = to - from < UPDATE_FLOATS ? to : from + UPDATE_FLOATS;
        const float *g = given ? given + (from - begin) : share_gradient(p, q, from, &end, room);
        float *w = member_w(m, q) + from, *state[OPTIM_STATES];
        for (int s = 0; s < OPTIM_STATES; s++)
            state[s] = q->state[s] ? q->state[s] + q->replica * m->id + from : NULL;
        (q->sparse ? k->optim_named : k->optim_pass)(&m->optim[q->group], w, state, g, end - from,
                                                     scale);
        if (p->own->keep_chain && !q->replica)
            p->own->hash[m->id].sum += k->hash(w, end - from, q->place + from);
    }
}

static void hash_part(struct member *m, const struct param *q)
{
    m->plan->own->hash[m->id].sum += member_hash(m, member_w(m, q), q->size, q->place);
}

void member_update(struct member *m, const struct param *q, long from, long to, const float *g)
{
    long a, b;

    member_part(m, to - from, 16, &a, &b);
    update_part(m, q, from + a, from + b, g + a, 1);
}

uint64_t member_hash(const struct member *m, const float *w, long n, long place)
{
    long from, to;

    member_part(m, n, 16, &from, &to);
    return m->plan->own->kernels->hash(w + from, to - from, place + from);
}

static void apply_kept(struct member *m)
{
    struct plan *p = m->plan;

    member_barrier(m);
    float scale = clip_factor(m);
    p->own->hash[m->id].sum = 0;
    for (int i = 0; i < p->n_params; i++) {
        struct param *q = p->param[i];
        long from = 0, to = q->size;
        if (!q->replica)
            member_part(m, q->size, 16, &from, &to);
        if (q->split)
            continue;
        if (q->trained)
            update_part(m, q, from, to, NULL, scale);
        if (p->own->keep_chain && (q->replica || !q->trained))
            hash_part(m, q);
    }
    for (int i = 0; i < p->n_stages; i++)
        if (p->stage[i].ops->settled)
            p->stage[i].ops->settled(&p->stage[i], m);
    member_barrier(m);
    for (int i = 0; i < p->n_stages; i++)
        if (p->stage[i].ops->derive)
            p->stage[i].ops->derive(&p->stage[i], m);
    if (m->id == 0)
        share_over(p);
    member_barrier(m);
}

/* ------------------------------------------------------------------ a run */

struct run {
    struct plan *plan;
    const struct stretch *data;
    long pos, steps;
    uint64_t first_step;
    bool train;
    struct step_result *results;
    int (*hook)(void *arg, const struct step_result *r);
    void *arg;
    long done;
    atomic_int stop;
};

static void set_batch(struct member *m, const struct run *r, long i)
{
    const struct plan *p = m->plan;
    long pos = r->pos + i * p->batch, left = r->data->n - pos;

    m->whole = left < p->batch ? (int)left : p->batch;
    m->base = m->train ? shard_first(m->whole, p->shards, p->from) : 0;
    m->n = m->train ? shard_first(m->whole, p->shards, p->to) - m->base : m->whole;
    m->pos = pos + m->base;
    m->step = r->first_step + (uint64_t)i;
    m->n0 = member_first(m, m->s0);
    m->n1 = member_first(m, m->s1);
    if (!m->train)
        return;
    double factor = p->lr_factor;
    if ((uint64_t)p->warmup > m->step)
        factor *= (double)(m->step + 1) / (double)p->warmup;
    for (int g = 0; g < 2; g++)
        optim_begin(&m->optim[g], m->step + 1, factor);
}

void loss_by_shard(const struct member *m, double sum[SHARDS_MAX][2])
{
    const struct plan *p = m->plan;

    memset(sum, 0, SHARDS_MAX * sizeof *sum);
    for (int s = 0; s < p->shards; s++)
        for (int i = member_first(m, s); i < member_first(m, s + 1); i++) {
            double w = p->weight_field < 0 ? 1 :
                       *(const float *)member_row(m, p->weight_field, i);
            sum[s][0] += w * p->sample_loss[i];
            sum[s][1] += w;
        }
}

/* The mean of the batch by the shard tree; with instance weights the weighted mean. */
static double batch_loss(const struct member *m)
{
    const struct plan *p = m->plan;
    double sum[SHARDS_MAX][2];

    if (p->shared && m->train)
        memcpy(sum, p->own->loss, sizeof sum);
    else
        loss_by_shard(m, sum);
    for (int width = 1; width < p->shards; width *= 2)
        for (int s = 0; s < p->shards; s += 2 * width) {
            sum[s][0] += sum[s + width][0];
            sum[s][1] += sum[s + width][1];
        }
    return sum[0][1] > 0 ? sum[0][0] / sum[0][1] : 0;
}

/* A step is abandoned between two barriers of a call, so all members leave after the same one. */
static void run_calls(struct member *m, const struct call *call, int n)
{
    const struct plan *p = m->plan;
    long told = p->grad_floats;         /* of the vector, from here on; each member counts along */

    for (int i = 0; i < n && !(m->train && p->own->abandoned); i++) {
        const bool tell = call[i].ready >= 0 &&
                          told - call[i].ready >= p->own->share.ready_floats;
        if (call[i].barrier || tell)
            member_barrier(m);
        if (tell) {
            told = call[i].ready;
            if (m->id == 0)
                share_ready(m, told);
        }
        call[i].run(call[i].stage, m);
    }
}

/* What follows the calls of a training step. False: the step is abandoned. */
static bool finish_step(struct member *m)
{
    struct plan *p = m->plan;

    if (p->own->abandoned || (p->shared && !share_reduce(m)))
        return false;
    if (p->shared || p->keep_grads) {
        apply_kept(m);
    } else if (p->own->keep_chain) {
        member_barrier(m);
        p->own->hash[m->id].sum = 0;
        for (int i = 0; i < p->n_params; i++)
            hash_part(m, p->param[i]);
        member_barrier(m);
    }
    return true;
}

/* Member 0. */
static void note_result(const struct member *m, struct run *r, long i)
{
    struct plan *p = m->plan;
    struct step_result result = { .step = (long)m->step, .n = m->whole };

    if (r->train && p->own->keep_chain)
        result.chain = share_chain(p);
    r->done = i + 1;
    if (!r->results && !r->hook)
        return;
    if (p->loss_spec)
        result.loss = batch_loss(m);
    if (r->results)
        r->results[i] = result;
    if (r->hook && r->hook(r->arg, &result))
        atomic_store_explicit(&r->stop, 1, memory_order_relaxed);
}

static void own_shards(struct member *m)
{
    const struct plan *p = m->plan;
    const int from = m->train ? p->from : 0, n = (m->train ? p->to : p->shards) - from;
    const int owners = p->threads < n ? p->threads : n;

    /* Whole shards; members beyond the shards have none. */
    m->s0 = m->id < owners ? from + n * m->id / owners : from + n;
    m->s1 = m->id < owners ? from + n * (m->id + 1) / owners : from + n;
}

static void run_member(int id, void *arg)
{
    struct run *r = arg;
    struct plan *p = r->plan;
    struct plan_int *own = p->own;
    struct member m = { .id = id, .count = p->threads, .plan = p, .train = r->train };
    const bool early = p->shared && own->share.ready;
    const struct call *list = !r->train ? own->forward : early ? own->early : own->train;
    int n = !r->train ? own->n_forward : early ? own->n_early : own->n_train;
    bool settle = r->hook || (r->results && !(r->train && own->loss_settled));

    m.optim[0] = p->optim[0];
    m.optim[1] = p->optim[1];
    own_shards(&m);
    for (long i = 0; i < r->steps && !atomic_load_explicit(&r->stop, memory_order_relaxed); i++) {
        set_batch(&m, r, i);
        run_calls(&m, list, n);
        if (r->train && !finish_step(&m))
            break;
        if (settle)
            member_barrier(&m);
        if (id == 0)
            note_result(&m, r, i);
        if (settle)
            member_barrier(&m);
    }
}

static long run_steps(struct run *r)
{
    struct plan *p = r->plan;
    long left = r->data->n - r->pos, most = (left + p->batch - 1) / p->batch;

    if (r->steps > most)
        r->steps = most;
    if (r->steps <= 0)
        return 0;
    p->field = r->data->field;
    p->n_fields = r->data->n_fields;
    p->order = r->data->order;
    p->n_order = r->data->n;
    if (r->train)
        p->own->abandoned = false;
    team_run(p->team, run_member, r);
    return r->done;
}

long plan_train(struct plan *p, const struct stretch *data, long pos, long steps, uint64_t first_step,
                struct step_result *results, int (*hook)(void *, const struct step_result *),
                void *arg)
{
    struct run r = { .plan = p, .data = data, .pos = pos, .steps = steps, .first_step = first_step,
                     .train = true, .results = results, .hook = hook, .arg = arg };
    return run_steps(&r);
}

long plan_eval(struct plan *p, const struct stretch *data, long pos, long steps,
               struct step_result *results, int (*hook)(void *, const struct step_result *),
               void *arg)
{
    struct run r = { .plan = p, .data = data, .pos = pos, .steps = steps, .results = results,
                     .hook = hook, .arg = arg };
    return run_steps(&r);
}
