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
void ISA_FN(softmax)(const float *x, int n, float *y);     /* stage_softmax.c */

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

/* Lanes that are not -0.0: a sum of what a batch named never is, since it starts from +0.0. */
static mask16 v_named(v16 v)
{
    ALIGNED float f[16];
    mask16 named = 0;

    v_store(f, v);
    for (int i = 0; i < 16; i++) {
        uint32_t bits;
        memcpy(&bits, &f[i], sizeof bits);
        named |= (mask16)((bits != 0x80000000u) << i);
    }
    return named;
}

/* Floats asked for ahead: what another worker wrote comes from its core's cache, page by page. */
enum { AHEAD = 512 };

static void optim_pass(const struct optim *o, float *w, float *const *state, const float *g, long n,
                       float scale)
{
    if (optim_is_plain(o)) {
        const float k[2] = { o->k[0], o->k[1] };
        for (long i = 0; i < n; i += 16) {
            __builtin_prefetch(g + i + AHEAD);
            momentum16(k, w + i, state[0] + i, v_mul(v_load(g + i), v_set1(scale)));
        }
        return;
    }
    for (long i = 0; i < n; i += 16)
        ISA_FN(optim16)(o, w, state, i, v_mul(v_load(g + i), v_set1(scale)));
}

static void add(float *to, const float *a, const float *b, long n)
{
    for (long i = 0; i < n; i += 16) {
        __builtin_prefetch(a + i + AHEAD);
        __builtin_prefetch(b + i + AHEAD);
        v_store(to + i, v_add(v_load(a + i), v_load(b + i)));
    }
}

static void optim_named(const struct optim *o, float *w, float *const *state, const float *g,
                        long n, float scale)
{
    for (long i = 0; i < n; i += 16) {
        v16 sum = v_load(g + i), old = v_load(w + i);
        mask16 named = v_named(sum);
        if (!named)
            continue;
        ISA_FN(optim16)(o, w, state, i, v_mul(v_add(sum, v_zero()), v_set1(scale)));
        v_store(w + i, v_pick(named, v_load(w + i), old));
    }
}

/* Each pair of neighbours is a product of 64 bits, with a number of its place added to both: no
 * bit of a float is without effect on most bits of the sum, and places cannot be exchanged. */
static const uint32_t place_key[16] = {
    0x9e3779b9, 0x7f4a7c15, 0xbf58476d, 0x1ce4e5b9, 0x94d049bb, 0x133111eb, 0xd2511f53, 0xcd9e8d57,
    0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19, 0x428a2f98,
};
enum { PLACE_STEP = 0x2545f491 };       /* from one vector to the next */

static uint64_t hash(const float *w, long n, long place)
{
    const uint32_t first = (uint32_t)(place / 16) * PLACE_STEP;
    uint64_t lane[8] = { 0 };

#if defined ISA_AVX512
    const __m512i step = _mm512_set1_epi32(PLACE_STEP);
    __m512i key = _mm512_add_epi32(_mm512_loadu_si512(place_key), _mm512_set1_epi32((int)first));
    __m512i sum = _mm512_setzero_si512();
    for (long i = 0; i < n; i += 16, key = _mm512_add_epi32(key, step)) {
        __m512i x = _mm512_add_epi32(_mm512_loadu_si512(w + i), key);
        sum = _mm512_add_epi64(sum, _mm512_mul_epu32(x, _mm512_srli_epi64(x, 32)));
    }
    _mm512_storeu_si512(lane, sum);
#else
    for (long i = 0; i < n; i += 16) {
        const uint32_t at = first + (uint32_t)(i / 16) * PLACE_STEP;
        uint32_t x[16];
        memcpy(x, w + i, sizeof x);
        for (int k = 0; k < 8; k++)
            lane[k] += (uint64_t)(x[2 * k] + place_key[2 * k] + at) *
                       (x[2 * k + 1] + place_key[2 * k + 1] + at);
    }
#endif
    uint64_t all = 0;
    for (int k = 0; k < 8; k++)
        all += lane[k];
    return all;
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
    .add = add,
    .optim_named = optim_named,
    .hash = hash,
    .softmax = ISA_FN(softmax),
    .sum_squares = sum_squares,
};
