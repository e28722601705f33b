/* engine/conv_pool_backward.c - back through pool, relu and convolution (see conv_pool_int.h)
 *
 * Only the winner of a pooling window has a gradient, and only if it passed the relu. It reaches one
 * window of the input, so both gradients are loops over live winners: one scalar, one window.
 */
#include "engine/conv_pool_int.h"

/* ------------------------------------------------------------------ first block: weights only */

/* Output channel o, input channel c: k rows of 8 lanes, k of use. */
INLINE void first_weight(const struct conv_block *b, int k, const float *rows, const float *dout,
                         const uint16_t *at, const uint16_t *live, const struct conv_sum *sum,
                         long to, float *db)
{
    const long row = b->row, op = b->op;
    v8 acc[CONV_POOL_KERNEL];
    float bias = *db;

    UNROLL for (int r = 0; r < k; r++)
        acc[r] = sum->from ? v8_load(sum->from + to + 8 * r) : v8_set1(0);
    for (int word = 0; word < b->words; word += 4, at += 64, dout += 64 * op) {
        uint64_t bits;
        memcpy(&bits, live + word, sizeof bits);
        for (; bits; bits &= bits - 1) {
            const long p = __builtin_ctzll(bits);
            const float *x = rows + at[p], d = dout[p * op];
            UNROLL for (int r = 0; r < k; r++, x += row)
                acc[r] = v8_fma(v8_set1(d), v8_load(x), acc[r]);
            bias += d;
        }
    }
    UNROLL for (int r = 0; r < k; r++) {
        v8 g = v8_first(acc[r], k);
        v8_store(sum->out + to + 8 * r, sum->plus ? v8_add(v8_load(sum->plus + to + 8 * r), g) : g);
    }
    *db = bias;
}

INLINE void first_weights(const struct conv_block *b, int k, const float *rows, const float *dout,
                          const uint16_t *at, const uint16_t *live, const struct conv_sum *sum)
{
    for (int o = 0; o < b->o; o++) {
        float *out = sum->out + b->grad_bias + o, db = 0;
        for (int c = 0; c < b->c; c++) {
            db = sum->from ? sum->from[b->grad_bias + o] : 0;
            first_weight(b, k, rows + (long)c * b->h * b->row, dout + o, at + o * 16L * b->words,
                         live + o * ((b->words + 3) & ~3), sum,
                         b->grad_weight + ((long)o * b->c + c) * k * 8, &db);
        }
        *out = sum->plus ? sum->plus[b->grad_bias + o] + db : db;
    }
}

#define FIRST_KERNEL(k)                                                                     \
    KERNEL void first_weights_##k(const struct conv_block *b, const float *rows,               \
                                  const float *dout, const uint16_t *at, const uint16_t *live, \
                                  const struct conv_sum *sum)                                  \
    {                                                                                       \
        first_weights(b, k, rows, dout, at, live, sum);                                       \
    }
CONV_SIZES(FIRST_KERNEL)

void ISA_FN(conv_first_backward)(const struct conv_block *b, const float *rows, const float *dout,
                                 const uint16_t *at, const uint16_t *live, struct conv_sum sum)
{
#define FIRST_ROW(k) [k] = first_weights_##k,
    static void (*const kernels[CONV_POOL_KERNEL + 1])(const struct conv_block *, const float *,
        const float *, const uint16_t *, const uint16_t *, const struct conv_sum *) = {
        CONV_SIZES(FIRST_ROW)
    };
    kernels[b->k](b, rows, dout, at, live, &sum);
}

/* ------------------------------------------------------------------ later blocks */

struct later_back {
    const struct conv_block *b;
    const float *in, *w, *dout;
    const uint16_t *at, *live, *corner;
    float *din;
    struct conv_sum sum;
};

/* The most vectors of two overlapping windows that are held at once, and for each kernel size how many
 * of its rows that makes. */
#if defined ISA_AVX512
enum { WINDOW_MAX = 30 };
#define WINDOW_SIZES(X) X(1, 1) X(2, 2) X(3, 3) X(4, 4) X(5, 5) X(6, 4) X(7, 3)
#else
enum { WINDOW_MAX = 12 };
#define WINDOW_SIZES(X) X(1, 1) X(2, 2) X(3, 3) X(4, 2) X(5, 2) X(6, 1) X(7, 1)
#endif

#define V v8
#define VN 8
#define W(name) name##_by8
#define VLOAD v8_load
#define VSTORE v8_store
#define VSET1 v8_set1
#define VFMA v8_fma
#define VADD v8_add
#include "engine/conv_pool_window.h"

#if defined ISA_AVX512
#define V v16
#define VN 16
#define W(name) name##_by16
#define VLOAD v_load
#define VSTORE v_store
#define VSET1 v_set1
#define VFMA v_fma
#define VADD v_add
#include "engine/conv_pool_window.h"
#endif

/* Live gradients by position; what is not live adds nothing. */
static void later_bias(const struct later_back *f)
{
    const struct conv_block *b = f->b;

    for (int g = 0; g < b->lanes / 16; g++) {
        const long to = b->grad_bias + 16 * g;
        const int width = b->op - 16 * g;
        v16 db = f->sum.from ? v_load(f->sum.from + to) : v_zero();
        for (int p = 0; p < b->positions; p++) {
            const uint16_t *c = f->corner + ((long)p * (b->lanes / 16) + g) * 4;
            const float *d = f->dout + (long)p * b->op + 16 * g;
            v16 v = width >= 16 ? v_load(d) : v_load_n(d, width);
            db = v_add(db, v_pick((mask16)(c[0] | c[1] | c[2] | c[3]), v, v_zero()));
        }
        v_store(f->sum.out + to, f->sum.plus ? v_add(v_load(f->sum.plus + to), db) : db);
    }
}

void ISA_FN(conv_later_backward)(const struct conv_block *b, const float *in, const float *w,
                                 const float *dout, const uint16_t *at, const uint16_t *live,
                                 const uint16_t *corner, float *din, struct conv_sum sum)
{
    const struct later_back f = { b, in, w, dout, at, live, corner, din, sum };

    memset(din, 0, (size_t)b->h * b->w * b->cp * sizeof *din);
#if defined ISA_AVX512
    if (b->cp != 8)
        later_by16(&f);
    else
#endif
        later_by8(&f);
    later_bias(&f);
}
