/* engine/kernels.c - the table of one instruction set */
#include "engine/kernels.h"

#include "engine/optim_step.h"
#include "engine/vec.h"

#define STAGE(name) extern const struct stage_ops ISA_FN(name);
#define STAGES(X)                                                                              \
    X(conv_pool_stage) X(conv_bn_stage) X(dense_small_stage) X(dense_large_stage)              \
    X(loss_stage)                                                                              \
    X(input_stage) X(conv_stage) X(linear_stage) X(pool_stage)                                 \
    X(batchnorm_stage) X(layernorm_stage) X(pointwise_stage) X(softmax_stage)                  \
    X(dropout_stage) X(embedding_stage) X(join_stage) X(shape_stage)
STAGES(STAGE)
#undef STAGE

/* One stage for each op: what no chain takes, and the chains' slow, clear twins. */
#define PLAIN                                                                                  \
    &ISA_FN(input_stage), &ISA_FN(conv_stage), &ISA_FN(linear_stage), &ISA_FN(pool_stage),     \
    &ISA_FN(batchnorm_stage), &ISA_FN(layernorm_stage), &ISA_FN(pointwise_stage),              \
    &ISA_FN(softmax_stage), &ISA_FN(dropout_stage), &ISA_FN(embedding_stage),                  \
    &ISA_FN(join_stage), &ISA_FN(shape_stage), NULL
static const struct stage_ops *const plain[] = { PLAIN };

/* First match wins: chains that have a fast kernel, then the plain stages. */
static const struct stage_ops *const stages[] = {
    &ISA_FN(conv_pool_stage), &ISA_FN(conv_bn_stage), &ISA_FN(dense_small_stage),
    &ISA_FN(dense_large_stage),
    PLAIN
};

static void optim_pass(const struct optim *o, float *w, float *const *state, const float *g, long n,
                       float scale)
{
    for (long i = 0; i < n; i += 16)
        ISA_FN(optim16)(o, w, state, i, v_mul(v_load(g + i), v_set1(scale)));
}

static double sum_squares(const float *g, long n)
{
    double sum = 0;

    for (long from = 0; from < n; from += 4096) {
        v16 s = v_zero();
        for (long i = from; i < n && i < from + 4096; i += 16)
            s = v_fma(v_load(g + i), v_load(g + i), s);
        sum += v_sum(s);
    }
    return sum;
}

const struct kernels ISA_FN(kernels) = {
    .stages = stages,
    .plain = plain,
    .loss = &ISA_FN(loss_stage),
    .optim_pass = optim_pass,
    .sum_squares = sum_squares,
};
