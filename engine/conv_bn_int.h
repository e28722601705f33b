/* engine/conv_bn_int.h - inside the stage of convolution blocks
 *
 * A block is convolution, batch norm, relu; the last may end with a 2x2 pool. Only y, the
 * convolution's output before batch norm, is stored: relu(bn(y)) is computed again by whoever needs
 * it, and a gradient dz behind the relu becomes dy = a*dz + b*y + c when the next kernel loads it.
 *
 *   conv_bn_mac.c   convolutions of one sample, three ways: forward, dx, dw
 *   conv_bn_norm.c  statistics, and everything that goes pixel by pixel
 *   stage_conv_bn.c chains, memory, the phases
 *
 * Letters: h, w pixels; c channels; the ending i is of the input, o of the output.
 */
#ifndef MUSTER_ENGINE_CONV_BN_INT_H
#define MUSTER_ENGINE_CONV_BN_INT_H

#include "engine/mac.h"
#include "engine/optim_step.h"
#include "engine/plan.h"

/* Weights are kept in panels of so many output channels, [panel][ky][kx][ci][PANEL]: what a tile
 * reads is one stretch, whatever the number of channels. The last panel may be half as wide. */
enum { PANEL = 32 };

INLINE int panel_width(int channels, int j) { return channels - j < PANEL ? channels - j : PANEL; }

/* Per channel, computed by every member for itself from the samples' sums (same bits). */
enum coef {
    BN_SCALE, BN_SHIFT,         /* z = y * scale + shift */
    BN_MEAN, BN_INV,
    BN_A, BN_B, BN_C,           /* dy = a*dz + b*y + c */
    BN_DGAMMA, BN_DBETA,
    BN_COEFS
};

/* What is summed by shard, in a shared plan. */
enum row { ROW_MEAN, ROW_M2, ROW_S1, ROW_S2, ROW_KINDS };

/* The input rows and taps that one phase of a strided convolution's dx reads. */
struct dx_phase {
    int y, x;                   /* of the first pixel */
    int rows, cols;
    struct mac_run *run;
    int runs;
};

struct block {
    const struct node *conv, *bn;
    int hi, wi, ci;
    int cis;                    /* floats a pixel of the input */
    int ho, wo, co, cop;        /* cop: co up to a multiple of 16 */
    int kh, kw, sh, sw, ph, pw;
    bool wino;
    int th, tw;                 /* Winograd tiles */
    int hp, wp;                 /* input with its border of zeros */
    int cip;                    /* cis up to a multiple of 16: floats a pixel of dx */
    int eh, ew, et, el;         /* dy with its border: size, rows above, columns left */
    int fh, fw;                 /* output pixels as the direct kernels see them: 1x1 is one row */
    bool dx;                    /* somebody wants the gradient of the input */
    struct param *w, *b, *gamma, *beta, *mean, *var;    /* b: NULL without */

    float *xp;                  /* padded input, a member's (of the first block: a sample's) */
    float *y;                   /* (N, ho, wo, cop) before batch norm */
    float *d;                   /* (N, ho, wo, cop) dz; NULL in a block that pools */
    float *mean_s, *m2_s;       /* (N, cop) mean and squared deviations of a sample */
    float *s1, *s2;             /* (N, cop) sum of dz and of dz * (y - mean) of a sample */
    float *coef;                /* (members, BN_COEFS, cop) */
    /* Shared plans: (shards, ROW_KINDS, cop), since samples of other plans are not here. */
    float *rows;
    float *e;                   /* dy with its border, a member's */
    float *dxp;                 /* dx, a member's: (hp, wp, cip) Winograd's, else (hi, wi, cip) */
    float *gw, *gb;             /* gradients by shard; Winograd's is of U */
    long gw_size;
    float *wt;                  /* weights for dx, [panel of ci][tap][cop][PANEL] */
    float *u, *ut;              /* Winograd: [panel][16][ci][PANEL], and turned like wt */
    struct mac_run *forward, *dw;
    struct dx_phase *phase;
    int phases;
    long *tap;                  /* offsets of the taps of a small kernel in xp, for dw */
};

struct conv_bn {
    int n;
    struct block *block;
    int field;                  /* U8 input; -1: a tensor */
    float *lut;                 /* (channels, 256) */
    bool pool;
    int ho, wo, cs;             /* of the output; floats a pixel of x, gx */
    float *x;                   /* relu(bn(y)), pooled: the output tensor, or a wider copy */
    float *gx;                  /* its gradient */
    float *ymax;                /* y at the maximum */
    float *wino;                /* transformed tiles, a member's */
    long wino_size;
};

INLINE float *block_coef(const struct block *b, const struct member *m, enum coef i)
{
    return b->coef + ((long)m->id * BN_COEFS + i) * b->cop;
}
INLINE float *block_row(const struct block *b, enum row i) { return b->rows + (long)i * b->cop; }
INLINE long row_stride(const struct block *b) { return (long)ROW_KINDS * b->cop; }
INLINE long xp_size(const struct block *b) { return (long)b->hp * b->wp * b->cis; }
INLINE long y_size(const struct block *b) { return (long)b->ho * b->wo * b->cop; }
INLINE long e_size(const struct block *b) { return (long)b->eh * b->ew * b->cop; }
/* Floats of dx of one sample, and where pixel (0, 0) is in it, and from row to row. */
INLINE long dx_size(const struct block *b)
{
    return b->wino ? (long)b->hp * b->wp * b->cip : (long)b->hi * b->wi * b->cip;
}
INLINE long dx_first(const struct block *b)
{
    return b->wino ? ((long)b->ph * b->wp + b->pw) * b->cip : 0;
}
INLINE long dx_row(const struct block *b) { return (long)(b->wino ? b->wp : b->wi) * b->cip; }

/* --- conv_bn_mac.c --- */
#define conv_forward ISA_FN(conv_forward)
#define conv_dx_dw ISA_FN(conv_dx_dw)
#define conv_wino_floats ISA_FN(conv_wino_floats)

/* y of one sample from its padded input. */
void conv_forward(const struct block *b, const float *xp, float *y, float *wino,
                  struct ahead *ahead);
/* dx (where wanted) and dw of one sample from b->e of this member. `first`: of its shard. */
void conv_dx_dw(const struct block *b, const float *xp, const float *e, float *dx, float *gw,
                bool first, float *wino, struct ahead *ahead);
long conv_wino_floats(const struct block *b);   /* what `wino` has to hold */
/* Tiles after which `ahead` has been asked for: forward, backward. */
#define conv_tiles_forward ISA_FN(conv_tiles_forward)
#define conv_tiles_backward ISA_FN(conv_tiles_backward)
long conv_tiles_forward(const struct block *b);
long conv_tiles_backward(const struct block *b);

/* --- conv_bn_norm.c --- */
#define bn_sample ISA_FN(bn_sample)
#define bn_stats ISA_FN(bn_stats)
#define bn_back ISA_FN(bn_back)
#define bn_keep ISA_FN(bn_keep)
#define bn_relu ISA_FN(bn_relu)
#define bn_mask_sums ISA_FN(bn_mask_sums)
#define bn_dy ISA_FN(bn_dy)
#define pool_forward ISA_FN(pool_forward)
#define pool_sums ISA_FN(pool_sums)
#define pool_dy ISA_FN(pool_dy)

/* Mean and squared deviations of sample n. */
void bn_sample(const struct block *b, int n, const float *y);
/* Statistics of the batch (or the running ones), scale and shift. Waits for all members. */
void bn_stats(const struct block *b, struct member *m);
/* Shared plans: the running statistics, which bn_stats leaves alone there. */
void bn_keep(const struct block *b, const struct member *m);
/* From the samples' sums: dgamma, dbeta and the map from dz to dy. Waits for all members. */
void bn_back(const struct block *b, struct member *m);
/* relu(bn(y)) of a sample, to rows `row` floats apart. */
void bn_relu(const struct block *b, const struct member *m, const float *y, float *out, long row);
/* dz = da where relu passed; its two sums. da has rows `row` floats apart. */
void bn_mask_sums(const struct block *b, const struct member *m, int n, const float *da, long row,
                  float *dz);
/* dy into the border of e; gb += its sum over the pixels (`first`: =). */
void bn_dy(const struct block *b, const struct member *m, const float *dz, const float *y, float *e,
           float *gb, bool first);
/* The same three with a pool between. x: pooled output, cs floats a pixel. */
void pool_forward(const struct block *b, const struct member *m, const float *y, float *x,
                  float *ymax);
void pool_sums(const struct block *b, const struct member *m, int n, const float *x,
               const float *ymax, const float *gx);
void pool_dy(const struct block *b, const struct member *m, const float *y, const float *x,
             const float *ymax, const float *gx, float *e, float *gb, bool first);

#endif
