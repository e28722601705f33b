/* engine/optim_step.h - the arithmetic of the optimizers, for kernels
 *
 * A kernel that has sixteen gradient sums in a register hands them to apply16, which updates the
 * weights and their state in place, or leaves the gradient in q->g when the plan keeps gradients.
 * Each optimizer is one order of operations, that of the framework it is named after.
 */
#ifndef MUSTER_ENGINE_OPTIM_STEP_H
#define MUSTER_ENGINE_OPTIM_STEP_H

#include "engine/optim.h"
#include "engine/plan.h"
#include "engine/vec.h"

struct apply {
    const struct optim *o;
    float *w, *s[OPTIM_STATES];
    float *keep;                /* where the gradient goes instead; NULL: update */
    bool discard;               /* keeps gradients, and another member writes this one */
    const struct plan *roots;   /* several roots of a shared plan, a sum for each; NULL: one sum */
    long grad_at;               /* of the parameter in the gradient vector */
    bool plain_momentum;        /* SGD with momentum and nothing else: the common case, inline */
};

/* SGD with momentum and nothing else. */
INLINE bool optim_is_plain(const struct optim *o)
{
    return o->kind == OPTIM_SGD && o->momentum != 0 && o->weight_decay == 0 && !o->nesterov &&
           o->clip_value == 0;
}

/* A shared plan's gradient goes to its roots. One without a shard has no gradient to leave. */
INLINE void apply_shared(struct apply *a, const struct member *m, const struct param *q)
{
    const struct plan *p = m->plan;

    if (q->grad_at < 0) {
        a->keep = q->g;
        return;
    }
    a->grad_at = q->grad_at;
    a->discard = p->n_roots == 0;
    a->keep = p->n_roots ? p->root[0].at + q->grad_at : q->w;
    a->roots = p->n_roots > 1 ? p : NULL;
}

/* One parameter, one member: its replica where there are replicas. */
INLINE struct apply apply_begin(const struct member *m, const struct param *q)
{
    const struct optim *o = &m->optim[q->group];
    long own = q->replica * m->id;
    struct apply a = { .o = o, .w = q->w + own };

    for (int i = 0; i < o->states; i++)
        a.s[i] = q->state[i] + own;
    if (m->plan->shared)
        apply_shared(&a, m, q);
    else if (m->plan->keep_grads)
        a.keep = q->g;
    a.discard |= a.keep && q->replica && m->id;
    a.plain_momentum = optim_is_plain(o);
    return a;
}

/* Any optimizer; not inlined into kernels (engine/kernels.c). */
void ISA_FN(optim16)(const struct optim *o, float *w, float *const s[OPTIM_STATES], long i, v16 g);

/* The case of plain_momentum. k[0] is -lr, k[1] the momentum. */
INLINE void momentum16(const float k[2], float *w, float *speed, v16 g)
{
    v16 v = v_fma(v_set1(k[1]), v_load(speed), g);

    v_store(speed, v);
    v_store(w, v_fma(v_set1(k[0]), v, v_load(w)));
}

INLINE void apply16(const struct apply *a, long i, v16 g)
{
    if (a->plain_momentum && !a->keep) {
        momentum16(a->o->k, a->w + i, a->s[0] + i, g);
    } else if (!a->keep) {
        ISA_FN(optim16)(a->o, a->w, a->s, i, g);
    } else if (!a->discard) {
        v_store(a->keep + i, g);
    }
}

/* ------------------------------------------------------------ sums over shards */

/* Pairwise over the shard index; empty[i] marks a shard without samples, which passes its sibling
 * on. sum[] is used up. With every shard filled this is ((0+1)+(2+3))+((4+5)+(6+7)). */
INLINE v16 shard_tree(v16 *sum, int shards, unsigned filled)
{
    for (int width = 1; width < shards; width *= 2)
        for (int i = 0; i < shards; i += 2 * width) {
            bool a = filled >> i & 1, b = filled >> (i + width) & 1;
            if (a && b)
                sum[i] = v_add(sum[i], sum[i + width]);
            else if (b)
                sum[i] = sum[i + width], filled |= 1u << i;
        }
    return sum[0];
}

/* Leaves the sum of each root; `sum` has one value a shard. */
void ISA_FN(apply_roots)(const struct apply *a, long i, v16 *sum, unsigned filled);
/* For a kernel that does one root at a time, as if its shards were all. */
INLINE struct apply apply_root(const struct apply *a, const struct root *root)
{
    struct apply of = *a;

    of.keep = root->at + a->grad_at;
    of.roots = NULL;
    return of;
}

/* The tree over the plan's own shards; sum[] is used up. */
INLINE void apply_tree(const struct apply *a, long i, v16 *sum, int shards, unsigned filled)
{
    if (a->roots)
        ISA_FN(apply_roots)(a, i, sum, filled);
    else
        apply16(a, i, shard_tree(sum, shards, filled));
}

/* g holds one gradient a shard in `filled`, `stride` floats apart: sum by the tree and apply
 * [from, to). */
INLINE void apply_shards(const struct member *m, const struct param *q, const float *g,
                         long stride, unsigned filled, long from, long to)
{
    const struct apply a = apply_begin(m, q);
    const int shards = m->plan->shards;

    for (long i = from; i < to; i += 16) {
        v16 sum[SHARDS_MAX] = { v_load(g + i) };
        for (int s = 1; s < shards; s++)
            sum[s] = v_load(g + s * stride + i);
        apply_tree(&a, i, sum, shards, filled);
    }
}

#endif
