/* engine/conv_pool_int.h - the parts of the stage "image, then (conv, relu, maxpool 2) blocks"
 *
 * Letters: a block reads (H, W, C), convolves with a K x K kernel to O channels and pools to
 * (PH, PW, O). T = K * K taps.
 *
 * The first block reads the image. Its lanes are pooled positions: the image is spread into planes
 * by column, packed to the pooled width, so that the four corners of sixteen windows are four plain
 * loads and lanes run over row ends. Later blocks read channels-last activations; their lanes are
 * output channels.
 *
 * The forward pass leaves for the backward one where each pooling window's winner has its kernel
 * window (`at`) and which winners passed the relu (`live`): only those have a gradient.
 *
 * Order of sums. Forward: bias, then, in the first block, input channel, row, column of the kernel; in
 * later blocks row, column, input channel. Input gradient: position, corner of the pooling window,
 * output channel. Weight gradient: position; samples of a shard continue one chain.
 */
#ifndef MUSTER_ENGINE_CONV_POOL_INT_H
#define MUSTER_ENGINE_CONV_POOL_INT_H

#include "engine/optim_step.h"
#include "engine/plan.h"
#include "engine/vec_move.h"

enum {
    CONV_POOL_BLOCKS = 8,
    CONV_POOL_KERNEL = 7,       /* a kernel's row is stored in 8 floats */
    CONV_POOL_COLORS = 4,       /* channels of an image, as struct field has them */
};

/* Kernels are built for each size: what is in a register must be known to the compiler. */
#define CONV_SIZES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

struct conv_block {
    int k, h, w, c;             /* kernel; input (H, W, C) */
    int cp;                     /* channels of the input as stored; 1 in the first block */
    int o, lanes;               /* output channels; rounded up to 16 */
    int op;                     /* channels of the pooled output as stored */
    int ph, pw, positions;      /* pooled output */
    int words;                  /* of 16 positions each */
    /* Weight: first block (O, C, K, 8); later (O, T, cp). Forward of later blocks reads a copy,
     * `packed` in the member's memory: [group of 16 outputs][T][C][16]. */
    struct param *weight, *bias;
    long packed;
    long grad_weight, grad_bias;        /* in a shard's gradient */
    /* In a sample's memory, in bytes from its start. Of the last block, out and dout are the
     * stage's output tensor instead. */
    size_t out, dout;
    /* First block: at (O, 16 words), live (O, 4 x words of 64 bits). Later blocks: at (positions,
     * lanes), live (words, lanes), corner (positions, lanes / 16, 4), a bit an output channel. */
    size_t at, live, corner;
    uint16_t *base;             /* first block: where the window of each position's corner 0 is */
    int row;                    /* first block: floats from a window's row to the next */
};

/* The image as the first block likes it. */
struct conv_image {
    int field, h, w, c;
    float mean[CONV_POOL_COLORS], std[CONV_POOL_COLORS];
    /* planes (C, 2, K + 1, plane): plane a, b holds pixel (2 r + a, 2 j + b) at r * PW + j */
    size_t planes;              /* in a sample's memory, in bytes */
    long plane;                 /* floats */
    /* rows (C, H, row): columns 8 i .. 8 i + 15 at 16 i: 8 floats from any column on lie in one
     * line; training only */
    size_t rows;
    long row;                   /* floats */
};

struct conv_pool {
    int n_blocks;
    struct conv_block block[CONV_POOL_BLOCKS];
    struct conv_image image;
    char *sample;               /* a piece a sample in training, a piece a member else */
    size_t sample_bytes;
    bool by_sample;
    float *member;              /* a piece a member: packed weights, then the image as floats */
    long member_floats, flat;
    /* Gradients (2, shards): of even and odd steps, since a member may begin the next step while
     * another still adds up this one's. */
    float *grad;
    long grad_floats;
    struct conv_filled *filled; /* (2, shards) */
};

/* Whether a shard's gradient holds something; a line of its own each. */
struct conv_filled {
    _Alignas(128) int yes;
};

/* Where a sample's weight gradient goes: out = plus + (chain from `from` on); NULL is zero. All
 * three point at a shard's gradient. */
struct conv_sum {
    const float *from, *plus;
    float *out;
};

/* Bytes to floats, planes and (unless NULL) rows. `flat` is scratch for (C, H, W) and 64 more. */
void ISA_FN(conv_image_read)(const struct conv_image *im, const struct conv_block *first,
                             const uint8_t *image, float *flat, float *planes, float *rows);

/* First block. `out` (positions, op); `at` and `live` NULL: inference. `next` (NULL: none) is the
 * next step's image, called to the cache along the way. */
void ISA_FN(conv_first_forward)(const struct conv_block *b, const float *planes, long plane,
                                const float *w, const float *bias, float *out, uint16_t *at,
                                uint16_t *live, const uint8_t *next);

/* Later blocks. `in` (H, W, cp); `w` packed. `dots` (NULL: none) is begun along the way, up to the
 * last tile; conv_dots_fit says whether the block can. */
void ISA_FN(conv_later_forward)(const struct conv_block *b, const float *in, const float *w,
                                const float *bias, float *out, uint16_t *at, uint16_t *live,
                                uint16_t *corner, struct dots *dots);
bool ISA_FN(conv_dots_fit)(const struct conv_block *b);
void ISA_FN(conv_pack)(const struct conv_block *b, const float *w, float *packed);

void ISA_FN(conv_first_backward)(const struct conv_block *b, const float *rows,
                                 const float *dout, const uint16_t *at, const uint16_t *live,
                                 struct conv_sum sum);
void ISA_FN(conv_later_backward)(const struct conv_block *b, const float *in, const float *w,
                                 const float *dout, const uint16_t *at, const uint16_t *live,
                                 const uint16_t *corner, float *din, struct conv_sum sum);

#endif
