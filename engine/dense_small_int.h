/* engine/dense_small_int.h - kernels of the fully connected chain for batches below 16
 *
 * Lanes are inputs. Order of sums: an output is 16 lanes over its inputs (in the part that computes
 * it), combined by the tree of v_sum; an input gradient is one chain over the outputs; a weight
 * gradient is a chain over the samples of a shard, then the tree over shards.
 */
#ifndef MUSTER_ENGINE_DENSE_SMALL_INT_H
#define MUSTER_ENGINE_DENSE_SMALL_INT_H

#include "engine/optim_step.h"
#include "engine/plan.h"
#include "engine/vec_move.h"

enum { DENSE_BATCH = 15 };      /* beyond, lanes are better spent on outputs */

/* A matrix in memory: rows of `ld` floats. Rows of weights are a multiple of 4, columns of 16; what
 * pads them is zero. */
struct dense_rows {
    const float *w;
    long ld;
    int rows, cols;
};

/* z[b * zs + o] = w[o] . x[b * xs] */
void ISA_FN(dense_forward)(struct dense_rows w, const float *x, long xs, float *z, long zs, int n);
/* The same for one sample, where sum (rows, 16) has the lanes over the first `from` columns. */
void ISA_FN(dense_finish)(struct dense_rows w, const float *x, const float *sum, int from, float *z);

/* One pass over the weights: dx = d . w with the old weights (dx NULL: not wanted), then gradient
 * and update. `from` is where the rows begin in the parameter. */
struct dense_back {
    const struct apply *apply;
    long from, ld;
    int rows, cols;
    const float *x, *d;
    float *dx;
    long xs, ds, dxs;
    const struct member *m;     /* whose samples */
};
void ISA_FN(dense_backward)(const struct dense_back *k);

/* Bias of `count` outputs (a multiple of 16) from index `from` on. */
void ISA_FN(dense_bias)(const struct apply *a, long from, long count, const float *d, long ds,
                        const struct member *m);

#endif
