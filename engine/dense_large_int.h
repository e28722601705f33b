/* engine/dense_large_int.h - what stage_dense_large.c and its kernels share */
#ifndef MUSTER_ENGINE_DENSE_LARGE_INT_H
#define MUSTER_ENGINE_DENSE_LARGE_INT_H

#include "engine/mac.h"
#include "engine/optim_step.h"
#include "engine/plan.h"

enum { PANEL = 32 };            /* input columns a member takes at once */

/* The gradient of some outputs' weights, and what becomes of it: the update in place, or from the
 * old weights to new ones where old_w is given, or it is left for each root. */
struct dw {
    struct apply apply;
    const float *dh[SHARDS_MAX];        /* of output 0, of each shard's first sample */
    long ldh;                   /* from output to output */
    const float *panel;         /* (samples, PANEL) */
    const float *const *row;    /* inputs of each sample */
    long ahead;                 /* columns to the next panel, < 0 where it is before this one */
    int samples;
    long at, ld;                /* first column, from row to row */
    int from, to;               /* outputs: weights, state and `give` begin with the first */
    int first[SHARDS_MAX + 1];  /* sample of each shard, and where the last one ends */
    unsigned filled, full;      /* shards with samples; those there are */
    bool roots;                 /* a sum for each root */
    /* For an update to another place; NULL: in place. */
    const float *old_w, *old_s[OPTIM_STATES];
    float *give;                /* where the gradient goes as well; NULL: nowhere */
    long give_ld;
};

/* Columns [from, to), at most PANEL of them; `panel` is the member's own room for them. */
void ISA_FN(dw_panel)(const struct plan *p, float *panel, const struct dw *all, long from, long to);

#endif
