/* engine/mac.c - the micro-kernel for sizes that are known at run time only */
#include "engine/mac.h"

#include <stddef.h>

INLINE void warm(const int mr, const int nv, const float *c, const long ldc)
{
    UNROLL
    for (int i = 0; i < mr; i++, c += ldc) {
        UNROLL
        for (int j = 0; j < nv; j++)
            prefetch_write(c + 16 * j);
        HIDE(c);
    }
}

INLINE void tile(const int mr, const int nv, const struct mac *g)
{
    static const struct mac_run whole = { 0, 0 };
    const struct mac_run *run = g->run ? g->run : &whole;
    const int runs = g->run ? g->runs : 1;
    const long ars = g->ars, aks = g->aks, ldb = g->ldb, ldc = g->ldc, K = g->K;
    const float *a = g->a, *b = g->b, *bias = g->bias;
    float *c = g->c;

    for (int t = 0; t < g->times; t++, a += g->at, b += g->bt, c += g->ct) {
        v16 acc[MAC_ROWS * MAC_VECS];

        if (g->ahead)
            ahead_tile(g->ahead);
        if (g->fresh)
            warm(mr, nv, c + g->ct, ldc);
        if (g->start == MAC_ZERO)
            acc_zero(mr * nv, acc);
        else if (g->start == MAC_ADD)
            acc_load(mr, nv, acc, c, ldc);
        else if (g->start == MAC_LANES)
            acc_load(mr, nv, acc, bias, 0);
        else {
            UNROLL
            for (int i = 0; i < mr * nv; i++)
                acc[i] = v_set1(bias[i / nv]);
            bias += mr;
        }
        for (int r = 0; r < runs; r++)
            mac(mr, nv, acc, a + run[r].a, ars, aks, b + run[r].b * ldb, ldb, K);
        acc_store(mr, nv, acc, c, ldc);
    }
}

#define TILE(mr, nv) KERNEL void tile_##mr##x##nv(const struct mac *g) { tile(mr, nv, g); }
#define TILES(X, nv) X(1, nv) X(2, nv) X(3, nv) X(4, nv) X(5, nv) X(6, nv)
#define MORE_TILES(X, nv)                                                                      \
    X(7, nv) X(8, nv) X(9, nv) X(10, nv) X(11, nv) X(12, nv) X(13, nv) X(14, nv)
#define NAME(mr, nv) [mr] = tile_##mr##x##nv,

TILES(TILE, 1)
#if defined ISA_AVX512
MORE_TILES(TILE, 1)
TILES(TILE, 2)
MORE_TILES(TILE, 2)
#endif

static void (*const tiles[MAC_VECS + 1][MAC_ROWS + 1])(const struct mac *g) = {
#if defined ISA_AVX512
    [1] = { TILES(NAME, 1) MORE_TILES(NAME, 1) },
    [2] = { TILES(NAME, 2) MORE_TILES(NAME, 2) },
#else
    [1] = { TILES(NAME, 1) },
#endif
};

void ISA_FN(mac_tile)(const struct mac *g, int rows, int vecs)
{
    tiles[vecs][rows](g);
}

/* g is changed and put back: copying what was just written field by field would stall. */
static void rows_of_vecs(struct mac *g, int rows, int vecs)
{
    const int n = (rows + MAC_ROWS - 1) / MAC_ROWS, size = rows / n, larger = rows % n;
    const float *a = g->a, *bias = g->bias;
    float *c = g->c;

    if (g->times > 1) {
        for (int i = 0; i < n; i++) {
            int mr = size + (i < larger);
            tiles[vecs][mr](g);
            g->a += mr * g->ars;
            g->c += mr * g->ldc;
        }
    } else {
        /* The tiles follow each other as `times` do. */
        g->bt = 0;
        g->at = (size + 1) * g->ars;
        g->ct = (size + 1) * g->ldc;
        if (larger) {
            g->times = larger;
            tiles[vecs][size + 1](g);
            g->a += larger * g->at;
            g->c += larger * g->ct;
            if (g->start == MAC_SCALARS)
                g->bias += larger * (size + 1);
        }
        g->times = n - larger;
        g->at -= g->ars;
        g->ct -= g->ldc;
        tiles[vecs][size](g);
        g->times = 1;
    }
    g->a = a;
    g->c = c;
    g->bias = bias;
}

void ISA_FN(mac_rows)(struct mac *g, int rows, int vecs)
{
    const float *b = g->b, *bias = g->bias;
    float *c = g->c;

    for (int j = 0; j < vecs; j += MAC_VECS) {
        rows_of_vecs(g, rows, vecs - j < MAC_VECS ? vecs - j : MAC_VECS);
        g->b += 16 * MAC_VECS;
        g->c += 16 * MAC_VECS;
        if (g->start == MAC_LANES)
            g->bias += 16 * MAC_VECS;
    }
    g->b = b;
    g->c = c;
    g->bias = bias;
}
