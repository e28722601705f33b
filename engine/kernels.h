/* engine/kernels.h - what one instruction set offers
 *
 * engine/kernels.c is built three times; the plan holds a pointer to one of the tables and calls
 * nothing of a kernel source by name.
 */
#ifndef MUSTER_ENGINE_KERNELS_H
#define MUSTER_ENGINE_KERNELS_H

#include "engine/optim.h"
#include "engine/plan.h"

struct kernels {
    const struct stage_ops *const *stages;      /* in order of preference; NULL ends */
    const struct stage_ops *const *plain;       /* those of them that run one op each */
    const struct stage_ops *loss;               /* the last stage of a plan that has targets */
    /* weights and state of [0, n) from a gradient that is scaled by `scale` first; n % 16 == 0 */
    void (*optim_pass)(const struct optim *o, float *w, float *const *state, const float *g, long n,
                       float scale);
    /* The same where -0.0 marks what the batch did not name: left as it is (struct param). */
    void (*optim_named)(const struct optim *o, float *w, float *const *state, const float *g,
                        long n, float scale);
    /* to = a + b; n % 16 == 0 */
    void (*add)(float *to, const float *a, const float *b, long n);
    /* A hash of n floats as bits, of which the first is float `place` of all: values of different
     * parts add up to that of the whole. n and place are multiples of 16. */
    uint64_t (*hash)(const float *w, long n, long place);
    /* y = softmax of n values; y may be x */
    void (*softmax)(const float *x, int n, float *y);
    /* sum of squares by 16 lanes and the fixed tree of v_sum, in double across blocks of 4096 */
    double (*sum_squares)(const float *g, long n);
};

extern const struct kernels kernels_scalar, kernels_avx2, kernels_avx512;

const struct kernels *kernels_of(enum isa isa);

#endif
