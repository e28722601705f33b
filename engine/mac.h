/* engine/mac.h - the one micro-kernel: rows times vectors
 *
 *   acc[i][j] = fma(a[i*ars + k*aks], b[k*ldb + 16j ..], acc[i][j])       k ascending
 *
 * Convolution rows, 1x1 convolution, dense layers, Winograd's products and all their gradients are
 * this with other strides. The number of rows and vectors is fixed where it is instantiated, so
 * that the sums live in registers; strides come at run time. The order of k is part of the result:
 * cutting it into runs, or going on with stored sums (MAC_ADD), continues the same chain.
 *
 * For kernel sources; `struct mac` with mac_rows is the same for callers that know their sizes at
 * run time only.
 */
#ifndef MUSTER_ENGINE_MAC_H
#define MUSTER_ENGINE_MAC_H

#include <stdbool.h>

#include "engine/vec.h"

/* The largest tile whose sums and operands stay in registers: 28 of 32, or 12 of 16 halves. */
#if defined ISA_AVX512
enum { MAC_ROWS = 14, MAC_VECS = 2 };
#else
enum { MAC_ROWS = 6, MAC_VECS = 1 };
#endif

INLINE void mac(const int mr, const int nv, v16 *acc, const float *a, const long ars,
                const long aks, const float *b, const long ldb, const long K)
{
    /* A pointer for each three rows: x86 reaches p, p + s and p + 2s without arithmetic. */
    const float *p[(MAC_ROWS + 2) / 3];

    UNROLL
    for (int i = 0; i < (mr + 2) / 3; i++)
        p[i] = a + 3 * i * ars;
    for (long k = 0; k < K; k++) {
        v16 bv[4];
        UNROLL
        for (int j = 0; j < nv; j++)
            bv[j] = v_pin(v_load(b + 16 * j));
        UNROLL
        for (int i = 0; i < mr; i++) {
            v16 s = v_set1(p[i / 3][i % 3 * ars]);
            UNROLL
            for (int j = 0; j < nv; j++)
                acc[i * nv + j] = v_fma(s, bv[j], acc[i * nv + j]);
        }
        UNROLL
        for (int i = 0; i < (mr + 2) / 3; i++)
            p[i] += aks;
        b += ldb;
    }
}

INLINE void acc_zero(const int n, v16 *acc)
{
    UNROLL
    for (int i = 0; i < n; i++)
        acc[i] = v_zero();
}

INLINE void acc_load(const int mr, const int nv, v16 *acc, const float *c, const long ldc)
{
    UNROLL
    for (int i = 0; i < mr; i++, c += ldc) {
        UNROLL
        for (int j = 0; j < nv; j++)
            acc[i * nv + j] = v_load(c + 16 * j);
        HIDE(c);        /* one pointer that walks; gcc would keep one for each row, on the stack */
    }
}

INLINE void acc_store(const int mr, const int nv, const v16 *acc, float *c, const long ldc)
{
    UNROLL
    for (int i = 0; i < mr; i++, c += ldc) {
        UNROLL
        for (int j = 0; j < nv; j++)
            v_store(c + 16 * j, acc[i * nv + j]);
        HIDE(c);
    }
}

/* ------------------------------------------------------------------ memory ahead of use */

INLINE void prefetch_write(const void *p) { __builtin_prefetch(p, 1, 3); }      /* to L1 */
INLINE void prefetch_l2(const void *p) { __builtin_prefetch(p, 0, 2); }

/* Arrays that the next sample will read: a few lines of each are asked for between two tiles, so
 * that the wait for L3 hides behind the arithmetic. */
enum { AHEAD_MAX = 6 };
struct ahead {
    int n;
    int lines[AHEAD_MAX];       /* a tile */
    const float *p[AHEAD_MAX], *end[AHEAD_MAX];
};

/* `floats` from p on, over `tiles` tiles. */
INLINE void ahead_add(struct ahead *h, const float *p, long floats, long tiles)
{
    h->lines[h->n] = (int)((floats + 16 * tiles - 1) / (16 * tiles));
    h->p[h->n] = p;
    h->end[h->n++] = p + floats;
}

INLINE void ahead_tile(struct ahead *h)
{
    for (int i = 0; i < h->n; i++) {
        const float *p = h->p[i], *to = p + 16 * h->lines[i];
        if (to > h->end[i])
            to = h->end[i];
        for (; p < to; p += 16)
            prefetch_l2(p);
        h->p[i] = p;
    }
}

/* ------------------------------------------------------------------ sizes at run time */

/* A stretch of K steps of the sum: where it begins, in floats of a and in rows of b (ldb apart). */
struct mac_run {
    long a, b;
};

struct mac {
    const float *a;
    long ars, aks;              /* from row to row, from k to k */
    const float *b;
    long ldb;
    float *c;
    long ldc;
    long K;
    const struct mac_run *run;  /* NULL: one, at a and b */
    int runs;
    enum { MAC_ZERO, MAC_ADD, MAC_LANES, MAC_SCALARS } start;   /* what the sums begin with */
    const float *bias;          /* LANES: 16j.. for every row; SCALARS: bias[i] for row i */
    int times;                  /* as many tiles, at, bt, ct apart; SCALARS go on through them */
    long at, bt, ct;
    struct ahead *ahead;        /* NULL: none */
    bool fresh;                 /* c is far from the cache: the next tile's is asked for */
};

/* `rows` rows (at most MAC_ROWS), `vecs` vectors (at most MAC_VECS), g->times times. */
void ISA_FN(mac_tile)(const struct mac *g, int rows, int vecs);

/* Any number of rows from 1 up, in tiles of nearly the same size. SCALARS: times must be 1. Where
 * times is 1, at, bt and ct are lost; the rest of g is as before when it returns. */
void ISA_FN(mac_rows)(struct mac *g, int rows, int vecs);

#endif
