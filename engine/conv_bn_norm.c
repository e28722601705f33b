/* engine/conv_bn_norm.c - batch norm, relu and pool of convolution blocks
 *
 * Statistics: mean and squared deviations of each sample in two passes over cached data, then over
 * the batch by shards and their tree: M2 = sum of (m2_s + P * (mean_s - mean)^2). Robust and cheap.
 *
 * Pixels are the outer loop and channels the inner one, up to four vectors held in registers, so
 * that memory is read in order.
 */
#include "engine/conv_bn_int.h"

/* Runs fn(nv, ..., j) for the channels from j on, 64 at a time; nv is a constant in each. */
#define BY_VECTORS(fn, ...)                                                                    \
    for (int j = 0; j < b->cop; j += 64)                                                       \
        switch (b->cop - j < 64 ? (b->cop - j) / 16 : 4) {                                     \
        case 1: fn(1, j, __VA_ARGS__); break;                                                  \
        case 2: fn(2, j, __VA_ARGS__); break;                                                  \
        case 3: fn(3, j, __VA_ARGS__); break;                                                  \
        default: fn(4, j, __VA_ARGS__); break;                                                 \
        }

INLINE void load_n(const int nv, v16 *v, const float *p)
{
    UNROLL
    for (int i = 0; i < nv; i++)
        v[i] = v_load(p + 16 * i);
}

INLINE void store_n(const int nv, float *p, const v16 *v)
{
    UNROLL
    for (int i = 0; i < nv; i++)
        v_store(p + 16 * i, v[i]);
}

INLINE void zero_n(const int nv, v16 *v)
{
    UNROLL
    for (int i = 0; i < nv; i++)
        v[i] = v_zero();
}

/* ------------------------------------------------------------------ statistics */

INLINE void sample_n(const int nv, int j, const struct block *b, int n, const float *y)
{
    const int P = b->ho * b->wo, c = b->cop;
    const long at = (long)n * c + j;
    v16 s[4], mean[4];

    y += j;
    zero_n(nv, s);
    for (int i = 0; i < P; i++)
        UNROLL
        for (int k = 0; k < nv; k++)
            s[k] = v_add(s[k], v_load(y + (long)i * c + 16 * k));
    UNROLL
    for (int k = 0; k < nv; k++)
        mean[k] = v_mul(s[k], v_set1(1.0f / (float)P));
    store_n(nv, b->mean_s + at, mean);
    zero_n(nv, s);
    for (int i = 0; i < P; i++)
        UNROLL
        for (int k = 0; k < nv; k++) {
            v16 d = v_sub(v_load(y + (long)i * c + 16 * k), mean[k]);
            s[k] = v_fma(d, d, s[k]);
        }
    store_n(nv, b->m2_s + at, s);
}

void bn_sample(const struct block *b, int n, const float *y)
{
    BY_VECTORS(sample_n, b, n, y)
}

/* The sum over a shard of one value a sample. */
INLINE v16 shard_sum(const struct member *m, int s, const float *p, long stride)
{
    int n = member_first(m, s), end = member_first(m, s + 1);
    v16 sum = n < end ? v_load(p + n * stride) : v_zero();

    for (n++; n < end; n++)
        sum = v_add(sum, v_load(p + n * stride));
    return sum;
}

/* The same of m2_s + P * (mean_s - mean)^2. */
INLINE v16 shard_m2(const struct member *m, int s, const struct block *b, int j, v16 mean)
{
    const v16 P = v_set1((float)(b->ho * b->wo));
    v16 sum = v_zero();

    for (int n = member_first(m, s); n < member_first(m, s + 1); n++) {
        long at = (long)n * b->cop + j;
        v16 d = v_sub(v_load(b->mean_s + at), mean);
        sum = v_add(sum, v_fma(v_mul(d, d), P, v_load(b->m2_s + at)));
    }
    return sum;
}

/* Rows that have been gathered, by the tree. */
static v16 tree_of(const struct member *m, const struct block *b, enum row i, int j)
{
    const int shards = m->plan->shards;
    v16 sum[SHARDS_MAX];

    for (int s = 0; s < shards; s++)
        sum[s] = v_load(block_row(b, i) + s * row_stride(b) + j);
    return shard_tree(sum, shards, shards_filled(m->whole, shards));
}

/* The sum over the batch of one value a sample. */
static v16 batch_sum(const struct member *m, const struct block *b, enum row i, const float *p,
                     int j)
{
    const int shards = m->plan->shards;
    v16 sum[SHARDS_MAX];

    if (m->plan->shared)
        return tree_of(m, b, i, j);
    for (int s = 0; s < shards; s++)
        sum[s] = shard_sum(m, s, p + j, b->cop);
    return shard_tree(sum, shards, member_filled(m));
}

static v16 batch_m2(const struct member *m, const struct block *b, int j, v16 mean)
{
    const int shards = m->plan->shards;
    v16 sum[SHARDS_MAX];

    if (m->plan->shared)
        return tree_of(m, b, ROW_M2, j);
    for (int s = 0; s < shards; s++)
        sum[s] = shard_m2(m, s, b, j, mean);
    return shard_tree(sum, shards, member_filled(m));
}

INLINE v16 mean_of(const struct member *m, const struct block *b, int j)
{
    return v_mul(batch_sum(m, b, ROW_MEAN, b->mean_s, j), v_set1(1.0f / (float)m->whole));
}

/* Shared plans: the own shards' rows, and then everybody's. */
static void gather_stats(const struct block *b, struct member *m)
{
    const long stride = row_stride(b);

    for (int s = m->s0; s < m->s1; s++)
        for (int j = 0; j < b->cop; j += 16)
            v_store(block_row(b, ROW_MEAN) + s * stride + j,
                    shard_sum(m, s, b->mean_s + j, b->cop));
    member_gather(m, block_row(b, ROW_MEAN), stride, b->cop);
    for (int s = m->s0; s < m->s1; s++)
        for (int j = 0; j < b->cop; j += 16)
            v_store(block_row(b, ROW_M2) + s * stride + j, shard_m2(m, s, b, j, mean_of(m, b, j)));
    member_gather(m, block_row(b, ROW_M2), stride, b->cop);
}

static void gather_back(const struct block *b, struct member *m)
{
    const long stride = row_stride(b);

    for (int s = m->s0; s < m->s1; s++)
        for (int j = 0; j < b->cop; j += 16) {
            v_store(block_row(b, ROW_S1) + s * stride + j, shard_sum(m, s, b->s1 + j, b->cop));
            v_store(block_row(b, ROW_S2) + s * stride + j, shard_sum(m, s, b->s2 + j, b->cop));
        }
    member_gather(m, block_row(b, ROW_S1), stride, 2l * b->cop);
}

static void keep_running(const struct block *b, int j, v16 mean, v16 m2, long count)
{
    v16 t = v_set1(b->bn->momentum);
    v16 unbiased = v_mul(m2, v_set1(1.0f / (float)(count > 1 ? count - 1 : 1)));
    v16 rm = v_load(b->mean->w + j), rv = v_load(b->var->w + j);

    v_store(b->mean->w + j, v_fma(t, v_sub(mean, rm), rm));
    v_store(b->var->w + j, v_fma(t, v_sub(unbiased, rv), rv));
}

void bn_stats(const struct block *b, struct member *m)
{
    const long count = (long)m->whole * b->ho * b->wo;

    if (m->train && m->plan->shared)
        gather_stats(b, m);
    else if (m->train)
        member_barrier(m);
    for (int j = 0; j < b->cop; j += 16) {
        v16 mean, var;
        if (m->train) {
            mean = mean_of(m, b, j);
            v16 m2 = batch_m2(m, b, j, mean);
            var = v_mul(m2, v_set1(1.0f / (float)count));
            if (m->id == 0 && !m->plan->shared)
                keep_running(b, j, mean, m2, count);
        } else {
            mean = v_load(b->mean->w + j);
            var = v_load(b->var->w + j);
        }
        v16 inv = v_div(v_set1(1), v_sqrt(v_add(var, v_set1(b->bn->eps))));
        v16 scale = v_mul(v_load(b->gamma->w + j), inv);
        v_store(block_coef(b, m, BN_MEAN) + j, mean);
        v_store(block_coef(b, m, BN_INV) + j, inv);
        v_store(block_coef(b, m, BN_SCALE) + j, scale);
        v_store(block_coef(b, m, BN_SHIFT) + j, v_sub(v_load(b->beta->w + j), v_mul(mean, scale)));
    }
}

void bn_keep(const struct block *b, const struct member *m)
{
    long from, to;

    member_part(m, b->cop, 16, &from, &to);
    for (int j = (int)from; j < to; j += 16)
        keep_running(b, j, v_load(block_coef(b, m, BN_MEAN) + j), tree_of(m, b, ROW_M2, j),
                     (long)m->whole * b->ho * b->wo);
}

void bn_back(const struct block *b, struct member *m)
{
    const v16 share = v_set1(1.0f / (float)((long)m->whole * b->ho * b->wo));

    if (m->plan->shared)
        gather_back(b, m);
    else
        member_barrier(m);
    for (int j = 0; j < b->cop; j += 16) {
        v16 inv = v_load(block_coef(b, m, BN_INV) + j);
        v16 scale = v_load(block_coef(b, m, BN_SCALE) + j);
        v16 mean = v_load(block_coef(b, m, BN_MEAN) + j);
        v16 dbeta = batch_sum(m, b, ROW_S1, b->s1, j);
        v16 dgamma = v_mul(batch_sum(m, b, ROW_S2, b->s2, j), inv);
        v16 slope = v_mul(v_mul(v_mul(scale, inv), v_mul(dgamma, share)), v_set1(-1));
        v16 t = v_fma(v_mul(scale, dbeta), share, v_mul(slope, mean));
        v_store(block_coef(b, m, BN_A) + j, scale);
        v_store(block_coef(b, m, BN_B) + j, slope);
        v_store(block_coef(b, m, BN_C) + j, v_sub(v_zero(), t));
        v_store(block_coef(b, m, BN_DBETA) + j, dbeta);
        v_store(block_coef(b, m, BN_DGAMMA) + j, dgamma);
    }
}

/* ------------------------------------------------------------------ pixel by pixel */

INLINE void relu_n(const int nv, int j, const struct block *b, const struct member *m,
                   const float *y, float *out, long row)
{
    const long c = b->cop;
    v16 scale[4], shift[4];

    load_n(nv, scale, block_coef(b, m, BN_SCALE) + j);
    load_n(nv, shift, block_coef(b, m, BN_SHIFT) + j);
    for (int h = 0; h < b->ho; h++) {
        const float *from = y + h * b->wo * c + j;
        float *to = out + h * row + j;
        for (int w = 0; w < b->wo; w++, from += c, to += c)
            UNROLL
            for (int k = 0; k < nv; k++)
                v_store(to + 16 * k, v_relu(v_fma(v_load(from + 16 * k), scale[k], shift[k])));
    }
}

void bn_relu(const struct block *b, const struct member *m, const float *y, float *out, long row)
{
    BY_VECTORS(relu_n, b, m, y, out, row)
}

INLINE void mask_n(const int nv, int j, const struct block *b, const struct member *m, int n,
                   const float *y, const float *da, long row, float *dz)
{
    const long c = b->cop;
    v16 scale[4], shift[4], mean[4], s1[4], s2[4];

    load_n(nv, scale, block_coef(b, m, BN_SCALE) + j);
    load_n(nv, shift, block_coef(b, m, BN_SHIFT) + j);
    load_n(nv, mean, block_coef(b, m, BN_MEAN) + j);
    zero_n(nv, s1);
    zero_n(nv, s2);
    for (int h = 0; h < b->ho; h++) {
        const float *from = da + h * row + j, *v = y + h * b->wo * c + j;
        float *to = dz + h * b->wo * c + j;
        for (int w = 0; w < b->wo; w++, from += c, v += c, to += c)
            UNROLL
            for (int k = 0; k < nv; k++) {
                v16 yv = v_load(v + 16 * k), z = v_fma(yv, scale[k], shift[k]);
                v16 t = v_sel_gt(z, v_zero(), v_load(from + 16 * k), v_zero());
                v_store(to + 16 * k, t);
                s1[k] = v_add(s1[k], t);
                s2[k] = v_fma(t, v_sub(yv, mean[k]), s2[k]);
            }
    }
    store_n(nv, b->s1 + (long)n * c + j, s1);
    store_n(nv, b->s2 + (long)n * c + j, s2);
}

void bn_mask_sums(const struct block *b, const struct member *m, int n, const float *da, long row,
                  float *dz)
{
    const float *y = b->y + n * y_size(b);
    BY_VECTORS(mask_n, b, m, n, y, da, row, dz)
}

/* dy's map of four vectors, and its sum so far. */
struct dy_map {
    v16 a[4], b[4], c[4], sum[4];
};

INLINE void dy_begin(const int nv, int j, struct dy_map *g, const struct block *b,
                     const struct member *m, const float *gb, bool first)
{
    load_n(nv, g->a, block_coef(b, m, BN_A) + j);
    load_n(nv, g->b, block_coef(b, m, BN_B) + j);
    load_n(nv, g->c, block_coef(b, m, BN_C) + j);
    if (first)
        zero_n(nv, g->sum);
    else
        load_n(nv, g->sum, gb + j);
}

INLINE void dy_n(const int nv, int j, const struct block *b, const struct member *m,
                 const float *dz, const float *y, float *e, float *gb, bool first)
{
    const long c = b->cop;
    struct dy_map g;

    dy_begin(nv, j, &g, b, m, gb, first);
    for (int h = 0; h < b->ho; h++) {
        const float *d = dz + h * b->wo * c + j, *v = y + h * b->wo * c + j;
        float *to = e + ((h + b->et) * b->ew + b->el) * c + j;
        for (int w = 0; w < b->wo; w++, d += c, v += c, to += c)
            UNROLL
            for (int k = 0; k < nv; k++) {
                v16 t = v_fma(g.a[k], v_load(d + 16 * k),
                              v_fma(g.b[k], v_load(v + 16 * k), g.c[k]));
                v_store(to + 16 * k, t);
                g.sum[k] = v_add(g.sum[k], t);
            }
    }
    store_n(nv, gb + j, g.sum);
}

void bn_dy(const struct block *b, const struct member *m, const float *dz, const float *y, float *e,
           float *gb, bool first)
{
    BY_VECTORS(dy_n, b, m, dz, y, e, gb, first)
}

/* ------------------------------------------------------------------ 2x2 pool */

INLINE void pool_n(const int nv, int j, const struct block *b, const struct member *m,
                   const float *y, float *x, float *ymax)
{
    const long c = b->cop, row = b->wo * c, off[3] = { c, row, row + c };
    v16 scale[4], shift[4];

    load_n(nv, scale, block_coef(b, m, BN_SCALE) + j);
    load_n(nv, shift, block_coef(b, m, BN_SHIFT) + j);
    for (int h = 0; h < b->ho / 2; h++)
        for (int w = 0; w < b->wo / 2; w++) {
            const float *s = y + 2 * h * row + 2 * w * c + j;
            long to = (h * (b->wo / 2) + w) * c + j;
            UNROLL
            for (int k = 0; k < nv; k++) {
                v16 best = v_load(s + 16 * k), z = v_fma(best, scale[k], shift[k]);
                UNROLL
                for (int i = 0; i < 3; i++) {
                    v16 v = v_load(s + off[i] + 16 * k), t = v_fma(v, scale[k], shift[k]);
                    best = v_sel_gt(t, z, v, best);
                    z = v_sel_gt(t, z, t, z);
                }
                v_store(x + to + 16 * k, v_relu(z));
                v_store(ymax + to + 16 * k, best);
            }
        }
}

void pool_forward(const struct block *b, const struct member *m, const float *y, float *x,
                  float *ymax)
{
    BY_VECTORS(pool_n, b, m, y, x, ymax)
}

INLINE void pool_sums_n(const int nv, int j, const struct block *b, const struct member *m, int n,
                        const float *x, const float *ymax, const float *gx)
{
    const long c = b->cop, size = (b->ho / 2) * (b->wo / 2) * c;
    v16 s1[4], s2[4], mean[4];

    load_n(nv, mean, block_coef(b, m, BN_MEAN) + j);
    zero_n(nv, s1);
    zero_n(nv, s2);
    for (long i = j; i < size; i += c)
        UNROLL
        for (int k = 0; k < nv; k++) {
            v16 t = v_sel_gt(v_load(x + i + 16 * k), v_zero(), v_load(gx + i + 16 * k), v_zero());
            s1[k] = v_add(s1[k], t);
            s2[k] = v_fma(t, v_sub(v_load(ymax + i + 16 * k), mean[k]), s2[k]);
        }
    store_n(nv, b->s1 + n * c + j, s1);
    store_n(nv, b->s2 + n * c + j, s2);
}

void pool_sums(const struct block *b, const struct member *m, int n, const float *x,
               const float *ymax, const float *gx)
{
    BY_VECTORS(pool_sums_n, b, m, n, x, ymax, gx)
}

/* A pixel that no window covers (the last row or column of an odd size): dz is 0. */
INLINE void outside_n(const int nv, struct dy_map *g, const float *y, float *e)
{
    UNROLL
    for (int k = 0; k < nv; k++) {
        v16 t = v_fma(g->b[k], v_load(y + 16 * k), g->c[k]);
        v_store(e + 16 * k, t);
        g->sum[k] = v_add(g->sum[k], t);
    }
}

/* The gradient goes to the first maximum; everything else gets b*y + c. */
INLINE void window_n(const int nv, struct dy_map *g, const float *y, long row, const float *x,
                     const float *ymax, const float *gx, float *e, long erow, long c)
{
    const long off[4] = { 0, c, row, row + c }, eoff[4] = { 0, c, erow, erow + c };

    UNROLL
    for (int k = 0; k < nv; k++) {
        v16 top = v_load(ymax + 16 * k);
        v16 t = v_sel_gt(v_load(x + 16 * k), v_zero(), v_mul(g->a[k], v_load(gx + 16 * k)),
                         v_zero());
        UNROLL
        for (int i = 0; i < 4; i++) {
            v16 v = v_load(y + off[i] + 16 * k);
            v16 d = v_add(v_fma(g->b[k], v, g->c[k]), v_sel_eq(v, top, t, v_zero()));
            t = v_sel_eq(v, top, v_zero(), t);
            v_store(e + eoff[i] + 16 * k, d);
            g->sum[k] = v_add(g->sum[k], d);
        }
    }
}

INLINE void pool_dy_n(const int nv, int j, const struct block *b, const struct member *m,
                      const float *y, const float *x, const float *ymax, const float *gx, float *e,
                      float *gb, bool first)
{
    const long c = b->cop, row = b->wo * c, erow = b->ew * c;
    struct dy_map g;

    y += j;
    e += (b->et * b->ew + b->el) * c + j;
    dy_begin(nv, j, &g, b, m, gb, first);
    for (int h = 0; h < b->ho / 2; h++) {
        long at = h * (b->wo / 2) * c + j;
        for (int w = 0; w < b->wo / 2; w++, at += c)
            window_n(nv, &g, y + 2 * h * row + 2 * w * c, row, x + at, ymax + at, gx + at,
                     e + 2 * h * erow + 2 * w * c, erow, c);
    }
    for (int h = 0; h < b->ho; h++)
        for (int w = h < b->ho / 2 * 2 ? b->wo / 2 * 2 : 0; w < b->wo; w++)
            outside_n(nv, &g, y + h * row + w * c, e + h * erow + w * c);
    store_n(nv, gb + j, g.sum);
}

void pool_dy(const struct block *b, const struct member *m, const float *y, const float *x,
             const float *ymax, const float *gx, float *e, float *gb, bool first)
{
    BY_VECTORS(pool_dy_n, b, m, y, x, ymax, gx, e, gb, first)
}
