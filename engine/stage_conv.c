/* engine/stage_conv.c - convolution with any stride, padding, dilation and groups
 *
 * Letters: a tap is (ky, kx); G groups of Cg input and Og output channels; O outputs, Op = O
 * rounded up to 16. Weights are stored (taps, Cg, Op), so that lanes are output channels: an output
 * is one chain over taps, then channels of its group, that starts with the bias; taps outside the
 * image are left out. With groups the lanes of a vector read different input channels (`base`).
 */
#include <math.h>

#include "engine/stage.h"

struct conv {
    struct param *w, *b;        /* b: NULL without a bias */
    long Op;
    int Cg, Og;
    int *base;                  /* (Op) first input channel of each output's group */
    bool grouped;
};

static int match(const struct plan *p, const struct graph *g, int at)
{
    (void)p;
    return match_op(g, at, OP_CONV2D);
}

/* Logical (O, Cg, kh, kw). */
static long weight_at(const struct param *q, long k)
{
    const long *g = q->geom;    /* taps, Cg, Op */
    long tap = k % g[0], c = k / g[0] % g[1], o = k / g[0] / g[1];
    return (tap * g[1] + c) * g[2] + o;
}

static int build(struct stage *s, struct plan *p, struct err *err)
{
    const struct node *node = s->node;
    struct conv *own = plan_alloc(p, struct conv);
    long O = node->c, kh = node->kernel[0], kw = node->kernel[1];

    (void)err;
    own->Cg = s->in[0]->c / node->groups;
    own->Og = node->c / node->groups;
    own->Op = round_up16(O);
    own->grouped = node->groups > 1;
    own->base = plan_take(p, (size_t)own->Op * sizeof *own->base);
    for (int o = 0; o < O; o++)
        own->base[o] = o / own->Og * own->Cg;
    float bound = 1 / sqrtf((float)(own->Cg * kh * kw));
    own->w = plan_param(p, node, "weight", 4, (long[]){ O, own->Cg, kh, kw },
                        kh * kw * own->Cg * own->Op, false);
    own->w->at = weight_at;
    memcpy(own->w->geom, (long[]){ kh * kw, own->Cg, own->Op }, 3 * sizeof(long));
    own->w->init = INIT_UNIFORM;
    own->w->bound = bound;
    if (node->bias) {
        own->b = plan_param(p, node, "bias", 1, &O, own->Op, false);
        own->b->init = INIT_UNIFORM;
        own->b->bound = bound;
    }
    s->own = own;
    s->out = plan_tensor(p, node->h, node->w, node->c);
    stage_sync_inputs(s);
    stage_sync_update(s, p);
    return 0;
}

/* Outputs [*a, *b) along one axis for which tap k falls inside the image. */
INLINE void valid_outputs(const struct node *n, int axis, int k, int size, int out, int *a, int *b)
{
    int at = k * n->dilation[axis] - n->padding[axis], stride = n->stride[axis];
    int lo = at < 0 ? (-at + stride - 1) / stride : 0;
    int hi = size - 1 - at < 0 ? 0 : (size - 1 - at) / stride + 1;

    *a = lo;
    *b = hi < out ? hi : out;
}

/* Channel c of each lane's group at one pixel. */
INLINE v16 lanes_of(const struct conv *l, const float *pixel, int c, long o)
{
    ALIGNED float a[16];

    if (!l->grouped)
        return v_set1(pixel[c]);
    for (int i = 0; i < 16; i++)
        a[i] = pixel[l->base[o + i] + c];
    return v_load(a);
}

/* ------------------------------------------------------------------ forward */

/* R outputs in a row from (oy, ox) on, all of whose taps are inside the image's columns, or R = 1
 * where they need not be. */
#define FORWARD_TILE(R)                                                                            \
    static void forward_##R(const struct stage *s, const float *x, float *y, int oy, int ox, long o) \
    {                                                                                              \
        const struct conv *l = s->own;                                                             \
        const struct node *n = s->node;                                                            \
        const struct tensor *in = s->in[0], *out = s->out;                                         \
        const long step = (long)n->stride[1] * in->cp;                                             \
        v16 acc[R];                                                                                \
        for (int r = 0; r < R; r++)                                                                \
            acc[r] = l->b ? v_load(l->b->w + o) : v_zero();                                        \
        for (int ky = 0; ky < n->kernel[0]; ky++) {                                                \
            int iy = oy * n->stride[0] - n->padding[0] + ky * n->dilation[0];                      \
            if (iy < 0 || iy >= in->h)                                                             \
                continue;                                                                          \
            for (int kx = 0; kx < n->kernel[1]; kx++) {                                            \
                int ix = ox * n->stride[1] - n->padding[1] + kx * n->dilation[1];                  \
                if (R == 1 && (ix < 0 || ix >= in->w))                                             \
                    continue;                                                                      \
                const float *pixel = x + ((long)iy * in->w + ix) * in->cp;                         \
                const float *w = l->w->w + (long)(ky * n->kernel[1] + kx) * l->Cg * l->Op + o;     \
                for (int c = 0; c < l->Cg; c++) {                                                  \
                    v16 wc = v_load(w + c * l->Op);                                                \
                    UNROLL for (int r = 0; r < R; r++)                                             \
                        acc[r] = v_fma(lanes_of(l, pixel + r * step, c, o), wc, acc[r]);           \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
        for (int r = 0; r < R; r++)                                                                \
            v_store_part(y + ((long)oy * out->w + ox + r) * out->cp + o, acc[r], out->cp - o);     \
    }
FORWARD_TILE(6)
FORWARD_TILE(1)

static void forward(struct stage *s, struct member *m)
{
    const struct conv *l = s->own;
    const struct node *node = s->node;
    const struct tensor *in = s->in[0], *out = s->out;
    int a, b, last_a, last_b;

    /* columns whose taps are all inside: from the first tap's first to the last tap's last */
    valid_outputs(node, 1, 0, in->w, out->w, &a, &b);
    valid_outputs(node, 1, node->kernel[1] - 1, in->w, out->w, &last_a, &last_b);
    for (int n = m->n0; n < m->n1; n++) {
        const float *x = sample_data(m, in, n);
        float *y = out->data + out->size * n;
        for (int oy = 0; oy < out->h; oy++)
            for (long o = 0; o < l->Op; o += 16)
                for (int ox = 0; ox < out->w;) {
                    if (!l->grouped && ox >= a && ox + 6 <= last_b) {
                        forward_6(s, x, y, oy, ox, o);
                        ox += 6;
                    } else {
                        forward_1(s, x, y, oy, ox, o);
                        ox++;
                    }
                }
    }
}

/* ------------------------------------------------------------------ backward */

/* The output along one axis that reads input i through tap k, or -1. */
INLINE int output_of(const struct node *n, int axis, int i, int k, int out)
{
    int at = i + n->padding[axis] - k * n->dilation[axis];

    if (at < 0 || at % n->stride[axis] || at / n->stride[axis] >= out)
        return -1;
    return at / n->stride[axis];
}

/* 4 input channels of one pixel, or as many as there are: dot products over the outputs. */
static void backward_pixel(const struct stage *s, const float *dy, int iy, int ix, int c, v16 acc[4])
{
    const struct conv *l = s->own;
    const struct node *n = s->node;
    const struct tensor *out = s->out;
    const int more = l->Cg - c < 4 ? l->Cg - c : 4;

    for (int r = 0; r < 4; r++)
        acc[r] = v_zero();
    for (int ky = 0; ky < n->kernel[0]; ky++) {
        int oy = output_of(n, 0, iy, ky, out->h);
        for (int kx = 0; oy >= 0 && kx < n->kernel[1]; kx++) {
            int ox = output_of(n, 1, ix, kx, out->w);
            if (ox < 0)
                continue;
            const float *g = dy + ((long)oy * out->w + ox) * out->cp;
            const float *w = l->w->w + ((long)(ky * n->kernel[1] + kx) * l->Cg + c) * l->Op;
            for (long o = 0; o < l->Op; o += 16) {
                v16 go = v_load_part(g + o, out->cp - o);
                for (int r = 0; r < more; r++)
                    acc[r] = v_fma(go, v_load(w + r * l->Op + o), acc[r]);
            }
        }
    }
}

/* One input channel with groups: the outputs of its group, one after the other. */
static float backward_grouped(const struct stage *s, const float *dy, int iy, int ix, int c)
{
    const struct conv *l = s->own;
    const struct node *n = s->node;
    const struct tensor *out = s->out;
    const int o0 = c / l->Cg * l->Og;
    float acc = 0;

    for (int ky = 0; ky < n->kernel[0]; ky++) {
        int oy = output_of(n, 0, iy, ky, out->h);
        for (int kx = 0; oy >= 0 && kx < n->kernel[1]; kx++) {
            int ox = output_of(n, 1, ix, kx, out->w);
            if (ox < 0)
                continue;
            const float *g = dy + ((long)oy * out->w + ox) * out->cp;
            const float *w = l->w->w +
                             ((long)(ky * n->kernel[1] + kx) * l->Cg + c % l->Cg) * l->Op;
            for (int o = o0; o < o0 + l->Og; o++)
                acc = fmaf(g[o], w[o], acc);
        }
    }
    return acc;
}

static void backward(struct stage *s, struct member *m)
{
    const struct conv *l = s->own;
    const struct tensor *in = s->in[0], *out = s->out;
    int from, to;

    if (!in->grad)
        return;
    bool first = stage_grad_first(s, 0);
    member_span(m, in, &from, &to);
    for (int n = from; n < to; n++) {
        const float *dy = out->grad + out->size * n;
        float *dx = sample_grad(m, in, n);
        for (int iy = 0; iy < in->h; iy++)
            for (int ix = 0; ix < in->w; ix++, dx += in->cp)
                for (int c = 0; c < in->c; c++) {
                    v16 acc[4];
                    if (l->grouped) {
                        float g = backward_grouped(s, dy, iy, ix, c);
                        dx[c] = first ? g : dx[c] + g;
                    } else if (c % 4 == 0) {
                        backward_pixel(s, dy, iy, ix, c, acc);
                        for (int r = 0; r < 4 && c + r < in->c; r++)
                            dx[c + r] = first ? v_sum(acc[r]) : dx[c + r] + v_sum(acc[r]);
                    }
                }
    }
}

/* ------------------------------------------------------------------ update */

/* Adds to acc[R] one sample's gradient of R input channels at one tap for 16 outputs. */
#define SAMPLE_GRADIENT(R)                                                                         \
    static void sample_gradient_##R(const struct stage *s, const float *x, const float *dy, int ky, \
                                    int kx, int c, long o, v16 *shard)                             \
    {                                                                                              \
        const struct conv *l = s->own;                                                             \
        const struct node *n = s->node;                                                            \
        const struct tensor *in = s->in[0], *out = s->out;                                         \
        int y0, y1, x0, x1;                                                                        \
        v16 acc[R];                                                                                \
        valid_outputs(n, 0, ky, in->h, out->h, &y0, &y1);                                          \
        valid_outputs(n, 1, kx, in->w, out->w, &x0, &x1);                                          \
        for (int r = 0; r < R; r++)                                                                \
            acc[r] = v_zero();                                                                     \
        for (int oy = y0; oy < y1; oy++) {                                                         \
            long iy = oy * n->stride[0] - n->padding[0] + ky * n->dilation[0];                     \
            for (int ox = x0; ox < x1; ox++) {                                                     \
                long ix = ox * n->stride[1] - n->padding[1] + kx * n->dilation[1];                 \
                const float *pixel = x + (iy * in->w + ix) * in->cp;                               \
                v16 g = v_load_part(dy + ((long)oy * out->w + ox) * out->cp + o, out->cp - o);     \
                UNROLL for (int r = 0; r < R; r++)                                                 \
                    acc[r] = v_fma(lanes_of(l, pixel, c + r, o), g, acc[r]);                       \
            }                                                                                      \
        }                                                                                          \
        for (int r = 0; r < R; r++)                                                                \
            shard[r] = v_add(shard[r], acc[r]);                                                    \
    }
SAMPLE_GRADIENT(8)
SAMPLE_GRADIENT(1)

/* R input channels of one tap, 16 outputs, the whole batch. */
INLINE void update_tile(struct stage *s, struct member *m, const struct apply *a, int tap, int c,
                        long o, unsigned filled, int R)
{
    const struct conv *l = s->own;
    const struct tensor *in = s->in[0], *out = s->out;
    const int shards = m->plan->shards, kw = s->node->kernel[1];
    v16 sum[SHARDS_MAX][8];

    for (int k = 0; k < shards; k++) {
        for (int r = 0; r < R; r++)
            sum[k][r] = v_zero();
        for (int n = member_first(m, k); n < member_first(m, k + 1); n++) {
            const float *x = sample_data(m, in, n), *dy = out->grad + out->size * n;
            if (R == 8)
                sample_gradient_8(s, x, dy, tap / kw, tap % kw, c, o, sum[k]);
            else
                sample_gradient_1(s, x, dy, tap / kw, tap % kw, c, o, sum[k]);
        }
    }
    for (int r = 0; r < R; r++) {
        v16 of[SHARDS_MAX];
        for (int k = 0; k < shards; k++)
            of[k] = sum[k][r];
        apply_tree(a, ((long)tap * l->Cg + c + r) * l->Op + o, of, shards, filled);
    }
}

static void update_bias(struct stage *s, struct member *m, unsigned filled)
{
    const struct conv *l = s->own;
    const struct tensor *out = s->out;
    const struct apply a = apply_begin(m, l->b);
    const int shards = m->plan->shards;
    long from, to;

    member_part(m, l->Op, 16, &from, &to);
    for (long o = from; o < to; o += 16) {
        v16 sum[SHARDS_MAX];
        for (int k = 0; k < shards; k++) {
            sum[k] = v_zero();
            for (int n = member_first(m, k); n < member_first(m, k + 1); n++) {
                const float *dy = out->grad + out->size * n + o;
                v16 acc = v_zero();
                for (long i = 0; i < (long)out->h * out->w; i++)
                    acc = v_add(acc, v_load_part(dy + i * out->cp, out->cp - o));
                sum[k] = v_add(sum[k], acc);
            }
        }
        apply_tree(&a, o, sum, shards, filled);
    }
}

static void update(struct stage *s, struct member *m)
{
    const struct conv *l = s->own;
    const struct apply a = apply_begin(m, l->w);
    const unsigned filled = member_filled(m);
    long taps = (long)s->node->kernel[0] * s->node->kernel[1], from, to;

    /* a unit is a tap and 16 outputs */
    member_part(m, taps * (l->Op / 16), 1, &from, &to);
    for (long u = from; u < to; u++) {
        int tap = (int)(u % taps), c = 0;
        long o = u / taps * 16;
        for (; c + 8 <= l->Cg; c += 8)
            update_tile(s, m, &a, tap, c, o, filled, 8);
        for (; c < l->Cg; c++)
            update_tile(s, m, &a, tap, c, o, filled, 1);
    }
    if (l->b)
        update_bias(s, m, filled);
}

const struct stage_ops ISA_FN(conv_stage) = {
    .name = "conv", .match = match, .build = build, .run = { forward, backward, update },
};
