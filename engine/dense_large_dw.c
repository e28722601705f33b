/* engine/dense_large_dw.c - gradient and update of a panel of weights (see dense_large_int.h)
 *
 * Samples are summed by shard, then by the tree, in registers; what becomes of the sum is decided
 * when the kernel is compiled.
 */
#include "engine/dense_large_int.h"

/* Outputs of a dw tile: with 2 vectors, 8 sums and two levels of the tree stay in registers. */
enum { DW_ROWS = 4 };

/* Adds shard s's sums to a binary counter of partial sums: level i holds 2^i shards. */
INLINE void tree_add(const int n, v16 part[4][DW_ROWS * MAC_VECS], const int s, v16 *sum)
{
    int level = 0;

    UNROLL
    for (int b = s; b & 1; b >>= 1, level++)
        UNROLL
        for (int i = 0; i < n; i++)
            sum[i] = v_add(part[level][i], sum[i]);
    UNROLL
    for (int i = 0; i < n; i++)
        part[level][i] = sum[i];
}

/* What becomes of a gradient: the update in place, it is left where the apply says, or the update
 * from the old weights to new ones. */
enum put { PUT_UPDATE, PUT_KEEP, PUT_MOVE };

INLINE void prefetch_tile(const int nv, const struct dw *g, const float *at, const bool write)
{
    for (int i = 0; i < DW_ROWS; i++, at += g->ld)
        UNROLL
        for (int j = 0; j < nv; j++)
            write ? prefetch_write(at + 16 * j) : prefetch_l2(at + 16 * j);
}

/* What is written soon, the next panel of the weights later: strided panels get no help from
 * hardware. */
INLINE void dw_prefetch(const int nv, const enum put put, const struct dw *g, int tile, long e)
{
    const long soon = e + 8 * g->ld;

    if (tile < g->samples) {
        prefetch_l2(g->row[tile] + g->at + g->ahead);
        prefetch_l2(g->row[tile] + g->at + g->ahead + 16);
    }
    prefetch_tile(nv, g, (put == PUT_MOVE ? g->old_w : g->apply.w) + e + g->ahead, false);
    if (put == PUT_KEEP) {
        prefetch_tile(nv, g, g->apply.keep + soon, true);
        return;
    }
    for (int s = 0; s < g->apply.o->states; s++)
        prefetch_tile(nv, g, (put == PUT_MOVE ? g->old_s[s] : g->apply.s[s]) + soon, true);
}

/* SGD with momentum, not by apply16: a call of optim16, even one that never comes, would push the
 * sums out of their registers. */
INLINE void put_momentum(const int nv, const struct dw *g, const float *old_w,
                         const float *old_speed, long e, const v16 *sum)
{
    const v16 rate = v_set1(g->apply.o->k[0]), momentum = v_set1(g->apply.o->k[1]);
    float *w = g->apply.w, *speed = g->apply.s[0];

    UNROLL
    for (int i = 0; i < DW_ROWS; i++, e += g->ld)
        UNROLL
        for (int j = 0; j < nv; j++) {
            const long at = e + 16 * j;
            v16 v = v_fma(momentum, v_load(old_speed + at), sum[i * nv + j]);
            v_store(speed + at, v);
            v_store(w + at, v_fma(rate, v, v_load(old_w + at)));
        }
}

INLINE void put_keep(const int nv, float *to, long ld, const v16 *sum)
{
    UNROLL
    for (int i = 0; i < DW_ROWS; i++, to += ld)
        UNROLL
        for (int j = 0; j < nv; j++)
            v_store(to + 16 * j, sum[i * nv + j]);
}

/* Sixteen weights and their state to where they are updated in place. */
INLINE void move16(const struct dw *g, long e)
{
    v_store(g->apply.w + e, v_load(g->old_w + e));
    for (int s = 0; s < g->apply.o->states; s++)
        v_store(g->apply.s[s] + e, v_load(g->old_s[s] + e));
}

KERNEL void put_any(int nv, enum put put, const struct dw *g, long e, const float *sum)
{
    for (int i = 0; i < DW_ROWS; i++, e += g->ld)
        for (int j = 0; j < nv; j++) {
            if (put == PUT_MOVE)
                move16(g, e + 16 * j);
            apply16(&g->apply, e + 16 * j, v_load(sum + (i * nv + j) * 16));
        }
}

/* Every shard has samples. */
INLINE void dw_tiles(const int nv, const int shards, const enum put put, const struct dw *g)
{
    const bool momentum = g->apply.plain_momentum && !g->apply.keep;
    const float *old_w = put == PUT_MOVE ? g->old_w : g->apply.w;
    const float *old_speed = put == PUT_MOVE ? g->old_s[0] : g->apply.s[0];

    for (int o = g->from; o < g->to; o += DW_ROWS) {
        long e = g->at + (o - g->from) * g->ld;
        const long dh = o * g->ldh;
        v16 part[4][DW_ROWS * MAC_VECS];

        dw_prefetch(nv, put, g, (o - g->from) / DW_ROWS, e);
        __asm__ volatile("" ::: "memory");      /* keep loads of the panel inside the loop */
        UNROLL
        for (int s = 0; s < shards; s++) {
            v16 sum[DW_ROWS * MAC_VECS];
            const int n = g->first[s], end = g->first[s + 1];
            acc_zero(DW_ROWS * nv, sum);
            mac(DW_ROWS, nv, sum, g->dh[s] + dh, g->ldh, 1, g->panel + n * PANEL, PANEL, end - n);
            tree_add(DW_ROWS * nv, part, s, sum);
        }
        const v16 *total = part[__builtin_ctz((unsigned)shards)];
        if (put == PUT_MOVE && g->give)
            put_keep(nv, g->give + g->at + (o - g->from) * g->give_ld, g->give_ld, total);
        if (put == PUT_KEEP) {
            put_keep(nv, g->apply.keep + e, g->ld, total);
        } else if (momentum) {
            put_momentum(nv, g, old_w, old_speed, e, total);
        } else {
            ALIGNED float sum[DW_ROWS * MAC_VECS * 16];
            acc_store(DW_ROWS, nv, total, sum, 16 * nv);
            put_any(nv, put, g, e, sum);
        }
    }
}

#define DW(nv, shards)                                                                          \
    KERNEL void dw_##nv##_##shards(const struct dw *g) { dw_tiles(nv, shards, PUT_UPDATE, g); } \
    KERNEL void keep_##nv##_##shards(const struct dw *g) { dw_tiles(nv, shards, PUT_KEEP, g); } \
    KERNEL void move_##nv##_##shards(const struct dw *g) { dw_tiles(nv, shards, PUT_MOVE, g); }
DW(1, 1) DW(1, 2) DW(1, 4) DW(1, 8)
#if defined ISA_AVX512
DW(2, 1) DW(2, 2) DW(2, 4) DW(2, 8)
#endif

#define NAMES(put, nv) { put##_##nv##_1, put##_##nv##_2, put##_##nv##_4, put##_##nv##_8 }

/* By vectors, then by the logarithm of the shards. */
static void (*const dw_of[3][MAC_VECS][4])(const struct dw *g) = {
#if defined ISA_AVX512
    [PUT_UPDATE] = { NAMES(dw, 1), NAMES(dw, 2) },
    [PUT_KEEP] = { NAMES(keep, 1), NAMES(keep, 2) },
    [PUT_MOVE] = { NAMES(move, 1), NAMES(move, 2) },
#else
    [PUT_UPDATE] = { NAMES(dw, 1) },
    [PUT_KEEP] = { NAMES(keep, 1) },
    [PUT_MOVE] = { NAMES(move, 1) },
#endif
};

static void dw_full(const struct dw *g, const struct plan *p, int vecs)
{
    if (!g->roots) {
        const enum put put = g->old_w ? PUT_MOVE : PUT_UPDATE;
        dw_of[put][vecs - 1][__builtin_ctz((unsigned)p->shards)](g);
        return;
    }
    for (int r = 0; r < p->n_roots; r++) {
        const int first = p->root[r].first, width = p->root[r].width;
        struct dw of = *g;
        of.apply = apply_root(&g->apply, &p->root[r]);
        memcpy(of.first, g->first + first, (size_t)(width + 1) * sizeof of.first[0]);
        memcpy(of.dh, g->dh + first, (size_t)width * sizeof of.dh[0]);
        dw_of[PUT_KEEP][vecs - 1][__builtin_ctz((unsigned)width)](&of);
    }
}

/* A short last batch may leave shards empty. */
static void dw_sparse(const struct dw *g, int shards)
{
    for (int o = g->from; o < g->to; o++) {
        const long e = g->at + (o - g->from) * g->ld;
        v16 sum[SHARDS_MAX];
        for (int s = 0; s < shards; s++) {
            acc_zero(1, &sum[s]);
            mac(1, 1, &sum[s], g->dh[s] + o * g->ldh, g->ldh, 1, g->panel + g->first[s] * PANEL,
                PANEL, g->first[s + 1] - g->first[s]);
        }
        if (g->old_w) {
            sum[0] = shard_tree(sum, shards, g->filled);
            if (g->give)
                v_store(g->give + g->at + (o - g->from) * g->give_ld, sum[0]);
            move16(g, e);
            apply16(&g->apply, e, sum[0]);
        } else {
            apply_tree(&g->apply, e, sum, shards, g->filled);
        }
    }
}

void ISA_FN(dw_panel)(const struct plan *p, float *panel, const struct dw *all, long from, long to)
{
    struct dw g = *all;

    for (int n = 0; n < g.samples; n++)
        for (long j = 0; j < to - from; j += 16)
            v_store(panel + n * PANEL + j, v_load(g.row[n] + from + j));
    for (long j = 0; j < to - from;) {
        g.at = from + j;
        g.panel = panel + j;
        if (g.filled != g.full) {
            dw_sparse(&g, p->shards);
            j += 16;
            continue;
        }
        int vecs = to - from - j >= 16 * MAC_VECS ? MAC_VECS : 1;
        dw_full(&g, p, vecs);
        j += 16 * vecs;
    }
}
