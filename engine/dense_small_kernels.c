/* engine/dense_small_kernels.c - dot products, and gradient with update (see dense_small_int.h) */
#include "engine/dense_small_int.h"

/* ------------------------------------------------------------------ forward */

/* r rows by n samples, both constants, r * n <= 16. acc[r * sample + row]. */
INLINE void dot_tile(const float *w, long ld, int cols, const float *x, long xs, int r, int n,
                     v16 *acc)
{
    UNROLL for (int k = 0; k < r * n; k++) acc[k] = v_zero();
    for (int i = 0; i < cols; i += 16) {
        v16 xv[4];
        UNROLL for (int b = 0; b < n; b++) xv[b] = v_load(x + b * xs + i);
        UNROLL for (int k = 0; k < r; k++) {
            v16 wv = v_load(w + k * ld + i);
            UNROLL for (int b = 0; b < n; b++)
                acc[r * b + k] = v_fma(wv, xv[b], acc[r * b + k]);
        }
    }
}

/* Four rows by one sample. */
INLINE void dot_4x1(const struct dense_rows *w, int o, const float *x, float *z)
{
    v16 acc[4];

    dot_tile(w->w + o * w->ld, w->ld, w->cols, x, 0, 4, 1, acc);
    v_sum4(z + o, acc);
}

#if defined ISA_AVX512
KERNEL void forward_4(const struct dense_rows *w, const float *x, long xs, float *z, long zs)
{
    for (int o = 0; o < w->rows; o += 4) {
        v16 acc[16];
        dot_tile(w->w + o * w->ld, w->ld, w->cols, x, xs, 4, 4, acc);
        v_store_quarters(z + o, zs, v_sum16(acc));
    }
}

KERNEL void forward_2(const struct dense_rows *w, const float *x, long xs, float *z, long zs)
{
    int o = 0;

    for (; o + 8 <= w->rows; o += 8) {
        v16 acc[16];
        dot_tile(w->w + o * w->ld, w->ld, w->cols, x, xs, 8, 2, acc);
        v16 sum = v_sum16(acc);
        _mm256_storeu_ps(z + o, _mm512_castps512_ps256(sum));
        _mm256_storeu_ps(z + zs + o, _mm512_extractf32x8_ps(sum, 1));
    }
    for (; o < w->rows; o += 4)
        for (int b = 0; b < 2; b++)
            dot_4x1(w, o, x + b * xs, z + b * zs);
}

/* Eight rows at a time: sixteen are more streams than the prefetcher follows, and a single sample is
 * bound by the weights' way from the L2 cache. */
KERNEL void forward_1(const struct dense_rows *w, const float *x, float *z)
{
    int o = 0;

    for (; o + 8 <= w->rows; o += 8) {
        v16 acc[8];
        dot_tile(w->w + o * w->ld, w->ld, w->cols, x, 0, 8, 1, acc);
        v_sum4(z + o, acc);
        v_sum4(z + o + 4, acc + 4);
    }
    for (; o < w->rows; o += 4)
        dot_4x1(w, o, x, z);
}
#else
KERNEL void forward_1(const struct dense_rows *w, const float *x, float *z)
{
    for (int o = 0; o < w->rows; o += 4)
        dot_4x1(w, o, x, z);
}
#endif

void ISA_FN(dense_forward)(struct dense_rows w, const float *x, long xs, float *z, long zs, int n)
{
    int b = 0;

#if defined ISA_AVX512
    for (; b + 4 <= n; b += 4)
        forward_4(&w, x + b * xs, xs, z + b * zs, zs);
    for (; b + 2 <= n; b += 2)
        forward_2(&w, x + b * xs, xs, z + b * zs, zs);
#endif
    for (; b < n; b++)
        forward_1(&w, x + b * xs, z + b * zs);
}

/* The sums of r rows that begin with `sum` over the first `from` columns. */
INLINE void finish_rows(const struct dense_rows *w, const float *x, const float *sum, int from,
                        int o, int r, float *z)
{
    v16 acc[8];

    UNROLL for (int k = 0; k < r; k++) acc[k] = v_load(sum + 16 * (o + k));
    for (int i = from; i < w->cols; i += 16) {
        v16 xv = v_load(x + i);
        UNROLL for (int k = 0; k < r; k++)
            acc[k] = v_fma(v_load(w->w + (o + k) * w->ld + i), xv, acc[k]);
    }
    for (int k = 0; k < r; k += 4) v_sum4(z + o + k, acc + k);
}

void ISA_FN(dense_finish)(struct dense_rows w, const float *x, const float *sum, int from, float *z)
{
    int o = 0;

    for (; o + 8 <= w.rows; o += 8)
        finish_rows(&w, x, sum, from, o, 8, z);
    for (; o < w.rows; o += 4)
        finish_rows(&w, x, sum, from, o, 4, z);
}

/* ------------------------------------------------------------------ backward and update */

/* As many lanes as a register has: with four samples a pair of AVX2 registers a vector is too much. */
#if defined ISA_AVX512
typedef v16 vr;
enum { VR = 16 };
#define R(name) v_##name
#else
typedef v8 vr;
enum { VR = 8 };
#define R(name) v8_##name
#endif

/* n samples in n shards, both known to the compiler, under SGD with momentum: one multiplication a
 * sample for the gradient, one for dx. `wide` vectors of columns at a time. `keep`: the gradient is
 * left instead. */
INLINE void step_columns(const struct dense_back *k, int n, int wide, bool keep, long i)
{
    const float *d = k->d;
    float *w = k->apply->w + k->from + i;
    float *v = (keep ? k->apply->keep : k->apply->s[0]) + k->from + i;
    const long ld = k->ld, ds = k->ds, xs = k->xs, dxs = k->dxs;
    const bool want_dx = k->dx;
    float *dx = want_dx ? k->dx + i : NULL;
    const int rows = k->rows;
    const vr rate = R(set1)(k->apply->o->k[0]), momentum = R(set1)(k->apply->o->k[1]);
    vr x[8][2], acc[8][2];

    UNROLL for (int b = 0; b < n; b++)
        UNROLL for (int j = 0; j < wide; j++) {
            x[b][j] = R(load)(k->x + b * xs + i + VR * j);
            acc[b][j] = R(set1)(0);
            if (want_dx)
                v_claim(dx + b * dxs + VR * j);
        }
    for (int o = rows; o > 0; o--, w += ld, v += ld, d++) {
        vr dv[8];
        UNROLL for (int b = 0; b < n; b++) dv[b] = R(set1)(d[b * ds]);
        UNROLL for (int j = 0; j < wide; j++) {
            vr wv = R(load)(w + VR * j), g[8];
            UNROLL for (int b = 0; b < n; b++) acc[b][j] = R(fma)(dv[b], wv, acc[b][j]);
            UNROLL for (int b = 0; b < n; b++) g[b] = R(mul)(dv[b], x[b][j]);
            UNROLL for (int s = 1; s < n; s *= 2)
                UNROLL for (int b = 0; b < n; b += 2 * s) g[b] = R(add)(g[b], g[b + s]);
            vr speed = keep ? g[0] : R(fma)(momentum, R(load)(v + VR * j), g[0]);
            R(store)(v + VR * j, speed);
            if (!keep)
                R(store)(w + VR * j, R(fma)(rate, speed, wv));
        }
    }
    if (want_dx)
        UNROLL for (int b = 0; b < n; b++)
            UNROLL for (int j = 0; j < wide; j++) R(store)(dx + b * dxs + VR * j, acc[b][j]);
}

INLINE void step(const struct dense_back *k, int n, int wide, bool keep)
{
    long i = 0;

    for (; i + VR * wide <= k->cols; i += VR * wide)
        step_columns(k, n, wide, keep, i);
    for (; i < k->cols; i += VR)
        step_columns(k, n, 1, keep, i);
}
#if defined ISA_AVX512
enum { WIDE = 2 };
#else
enum { WIDE = 1 };
#endif
KERNEL void step_1(const struct dense_back *k) { step(k, 1, WIDE, false); }
KERNEL void step_2(const struct dense_back *k) { step(k, 2, WIDE, false); }
KERNEL void step_4(const struct dense_back *k) { step(k, 4, WIDE, false); }
KERNEL void step_8(const struct dense_back *k) { step(k, 8, 1, false); }
KERNEL void keep_1(const struct dense_back *k) { step(k, 1, WIDE, true); }
KERNEL void keep_2(const struct dense_back *k) { step(k, 2, WIDE, true); }
KERNEL void keep_4(const struct dense_back *k) { step(k, 4, WIDE, true); }
KERNEL void keep_8(const struct dense_back *k) { step(k, 8, 1, true); }

/* The same sums for any batch, shards and optimizer: row o, 16 columns from i on. */
INLINE void apply_any(const struct dense_back *k, const int *first, unsigned filled, int o, long i)
{
    const int shards = k->m->plan->shards;
    const float *d = k->d + o, *x = k->x + i;
    v16 sum[SHARDS_MAX];

    for (int s = 0; s < shards; s++) {
        sum[s] = v_zero();
        for (int b = first[s]; b < first[s + 1]; b++) {
            v16 xv = v_load(x + b * k->xs), dv = v_set1(d[b * k->ds]);
            sum[s] = b == first[s] ? v_mul(dv, xv) : v_fma(dv, xv, sum[s]);
        }
    }
    apply_tree(k->apply, k->from + o * k->ld + i, sum, shards, filled);
}

KERNEL void step_any(const struct dense_back *k)
{
    const unsigned filled = member_filled(k->m);
    const float *w = k->apply->w + k->from;
    int first[SHARDS_MAX + 1];

    for (int s = 0; s <= k->m->plan->shards; s++)
        first[s] = member_first(k->m, s);
    for (long i = 0; i < k->cols; i += 16) {
        for (int b = 0; k->dx && b < k->m->n; b++) {
            v16 acc = v_zero();
            for (int o = 0; o < k->rows; o++)
                acc = v_fma(v_set1(k->d[b * k->ds + o]), v_load(w + o * k->ld + i), acc);
            v_store(k->dx + b * k->dxs + i, acc);
        }
        for (int o = 0; o < k->rows; o++)
            apply_any(k, first, filled, o, i);
    }
}

/* A shared plan with one sample a shard: the samples of a root are as a batch of their own. */
static void step_roots(const struct dense_back *k)
{
    static void (*const kernels[SHARDS_MAX + 1])(const struct dense_back *) = {
        [1] = keep_1, [2] = keep_2, [4] = keep_4, [8] = keep_8,
    };
    const struct plan *p = k->m->plan;

    for (int r = 0; r < p->n_roots; r++) {
        const struct apply a = apply_root(k->apply, &p->root[r]);
        const long b = p->root[r].first - p->from;
        struct dense_back of = *k;
        of.apply = &a;
        of.x += b * k->xs;
        of.d += b * k->ds;
        if (of.dx)
            of.dx += b * k->dxs;
        kernels[p->root[r].width](&of);
    }
}

void ISA_FN(dense_backward)(const struct dense_back *k)
{
    static void (*const kernels[DENSE_BATCH + 1])(const struct dense_back *) = {
        [1] = step_1, [2] = step_2, [4] = step_4, [8] = step_8,
    };
    const struct apply *a = k->apply;
    const int n = k->m->n;
    const bool one_each = k->m->whole == k->m->plan->shards;

    if (one_each && kernels[n] && a->plain_momentum && !a->keep)
        kernels[n](k);
    else if (one_each && k->m->plan->shared && !a->discard)
        step_roots(k);
    else
        step_any(k);
}

/* n samples in n shards, n known to the compiler. */
INLINE void bias_step(const struct apply *a, long from, long count, const float *d, long ds, int n)
{
    for (long i = 0; i < count; i += 16) {
        v16 g[8];
        UNROLL for (int b = 0; b < n; b++) g[b] = v_load(d + b * ds + i);
        UNROLL for (int s = 1; s < n; s *= 2)
            UNROLL for (int b = 0; b < n; b += 2 * s) g[b] = v_add(g[b], g[b + s]);
        apply16(a, from + i, g[0]);
    }
}

KERNEL void bias_any(const struct apply *a, long from, long count, const float *d, long ds,
                     const struct member *m)
{
    const int shards = m->plan->shards;
    const unsigned filled = member_filled(m);

    for (long i = 0; i < count; i += 16) {
        v16 sum[SHARDS_MAX];
        for (int s = 0; s < shards; s++) {
            int b = member_first(m, s), end = member_first(m, s + 1);
            sum[s] = b < end ? v_load(d + b * ds + i) : v_zero();
            for (b++; b < end; b++)
                sum[s] = v_add(sum[s], v_load(d + b * ds + i));
        }
        apply_tree(a, from + i, sum, shards, filled);
    }
}

void ISA_FN(dense_bias)(const struct apply *a, long from, long count, const float *d, long ds,
                        const struct member *m)
{
    const bool single = m->n == m->plan->shards && !m->plan->shared;

    if (single && m->n == 4)
        bias_step(a, from, count, d, ds, 4);
    else if (single && m->n == 1)
        bias_step(a, from, count, d, ds, 1);
    else
        bias_any(a, from, count, d, ds, m);
}
