/* engine/stage.h - what the stages of single ops share
 *
 * These stages are the general case: any shape, any batch, one node each, split by sample and
 * vectorised over channels. The fused chains are faster; these are their slow, clear twins.
 *
 * Weight gradients are taken in the update phase, after every member has finished backward: split
 * by weight, each weight's sum by shard and tree. A replicated input (a fast chain's) has every
 * sample in every member's copy, so its gradient is worked out by each member for all samples.
 *
 * Included by kernel sources only.
 */
#ifndef MUSTER_ENGINE_STAGE_H
#define MUSTER_ENGINE_STAGE_H

#include "engine/optim_step.h"
#include "engine/plan.h"
#include "engine/vec.h"

/* The first n lanes, zero beyond; n >= 16 is a plain load. Lanes beyond n are not touched. */
#if defined ISA_AVX512
INLINE __mmask16 v_lanes(long n) { return n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1); }
INLINE v16 v_load_part(const float *p, long n) { return _mm512_maskz_loadu_ps(v_lanes(n), p); }
INLINE void v_store_part(float *p, v16 a, long n) { _mm512_mask_storeu_ps(p, v_lanes(n), a); }
#elif defined ISA_AVX2
INLINE __m256i v8_lanes(long n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(n < 0 ? 0 : n > 8 ? 8 : n)), lane);
}
INLINE v16 v_load_part(const float *p, long n)
{
    if (n >= 16)
        return v_load(p);
    return (v16){ _mm256_maskload_ps(p, v8_lanes(n)), _mm256_maskload_ps(p + 8, v8_lanes(n - 8)) };
}
INLINE void v_store_part(float *p, v16 a, long n)
{
    if (n >= 16) {
        v_store(p, a);
        return;
    }
    _mm256_maskstore_ps(p, v8_lanes(n), a.l);
    _mm256_maskstore_ps(p + 8, v8_lanes(n - 8), a.h);
}
#else
INLINE v16 v_load_part(const float *p, long n) { return v_load_n(p, (int)(n < 16 ? n : 16)); }
INLINE void v_store_part(float *p, v16 a, long n) { v_store_n(p, a, (int)(n < 16 ? n : 16)); }
#endif

INLINE long round_up16(long n) { return (n + 15) / 16 * 16; }

/* The samples that this member works on where it writes t. */
INLINE void member_span(const struct member *m, const struct tensor *t, int *a, int *b)
{
    *a = t->replica ? 0 : m->n0;
    *b = t->replica ? m->n : m->n1;
}

INLINE const float *sample_data(const struct member *m, const struct tensor *t, int n)
{
    return member_data(m, t) + t->size * n;
}
INLINE float *sample_grad(const struct member *m, const struct tensor *t, int n)
{
    return member_grad(m, t) + t->size * n;
}

/* True when node `at` is of this op: a stage that runs one node. */
INLINE int match_op(const struct graph *g, int at, enum op op) { return g->node[at].op == op; }

/* A gradient of a replicated input needs the gradients of everybody's samples. */
INLINE void stage_sync_inputs(struct stage *s)
{
    for (int i = 0; i < s->n_in; i++)
        if (s->in[i]->replica)
            s->sync[PHASE_BACKWARD] |= SYNC_BEFORE;
}

/* For a stage with weights: one barrier before the first update of the list, when every gradient
 * is there and every old weight has been read, and one after the last. */
INLINE void stage_sync_update(struct stage *s, struct plan *p)
{
    bool first = true;

    for (int i = 0; i < p->n_stages; i++) {
        struct stage *earlier = &p->stage[i];
        if (earlier->sync[PHASE_UPDATE] == 0)
            continue;
        first &= !(earlier->sync[PHASE_UPDATE] & SYNC_BEFORE);
        earlier->sync[PHASE_UPDATE] &= ~(unsigned)SYNC_AFTER;
    }
    s->sync[PHASE_UPDATE] = SYNC_AFTER | (first ? SYNC_BEFORE : 0);
}

/* Adds or sets, as stage_grad_first says. */
INLINE void grad_put(float *to, v16 g, long n, bool first)
{
    v_store_part(to, first ? g : v_add(v_load_part(to, n), g), n);
}

#endif
