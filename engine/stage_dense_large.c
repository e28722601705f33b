/* engine/stage_dense_large.c - chains of linear [relu] at batches from 16 up
 *
 * DESIGN. Weights are stored (O, ld), a row for each output. The lanes are chosen so that no
 * operand is packed: forward puts samples into lanes and keeps its outputs as h (O, samples); the
 * gradients dh have the same form and serve as a broadcast operand both ways. Work is split by
 * output forward and by input column backward, so that each weight is read, and updated, by one
 * core: a panel of 32 columns gives dx, then dw by the shard tree in registers, then the update,
 * while it is in L2.
 *
 * The order of each sum: forward bias, then inputs as stored, ascending; dx over outputs ascending;
 * dw and db over samples by shard, then the tree.
 *
 * Letters: I inputs as stored, O outputs, N samples.
 */
#include "engine/mac.h"
#include "engine/optim_step.h"
#include "engine/plan.h"
#include "engine/vec_move.h"

enum { BATCH_MIN = 16 };
enum { PANEL = 32 };            /* input columns a member takes at once */
enum { OUT_TILE = 8 };          /* outputs are padded to it */
/* Inputs a forward block takes: 32 samples of them are 26 KB and stay in L1 beside the weights. */
enum { BLOCK = 208 };
/* Outputs of a dw tile: with 2 vectors, 8 sums and two levels of the tree stay in registers. */
enum { DW_ROWS = 4 };

struct layer {
    const struct node *node;
    bool relu;
    int O, op;                  /* op: O up to a multiple of OUT_TILE */
    long I, ip, ld;             /* ip: I up to a multiple of 16; ld: from weight row to row */
    struct param *w, *b;        /* b: NULL without */
    const float *x;             /* (N, ldx) input, a sample a row */
    long ldx;
    const float *xt;            /* samples in lanes, in groups of 32: [group][ip][32] or (ip, NS) */
    long xt_group, xt_ld;
    float *h, *dh;              /* (O up to a multiple of 16, NS) */
    float *y;                   /* (N, ldy) output, a sample a row: x of the next layer */
    long ldy;
};

struct dense {
    int n;
    struct layer *layer;
    long NS;                    /* batch, up to a multiple of 16 */
    float *xt;                  /* of the first layer, (NS / 32, ip, 32) */
    float *wide;                /* (N, ip) copy of an input with other row lengths; NULL: none */
    float *wide_grad;
    float *panel;               /* (NS, PANEL) a member's */
};

static long round_to(long n, long unit) { return (n + unit - 1) / unit * unit; }

/* ------------------------------------------------------------------ match, build */

/* Nodes of the layer at `at`: linear, or linear and relu. */
static int match_layer(const struct graph *g, int at)
{
    const struct node *n = &g->node[at];

    if (at >= g->n || n->op != OP_LINEAR)
        return 0;
    return 1 + (at + 1 < g->n && n->uses == 1 && n[1].op == OP_RELU && n[1].in[0] == at);
}

static int match(const struct plan *p, const struct graph *g, int at)
{
    const struct node *first = &g->node[at];

    if (p->batch < BATCH_MIN || first->op != OP_LINEAR)
        return 0;
    const struct tensor *in = p->value[first->in[0]];
    if (!in || in->replica)
        return 0;
    int next = at + match_layer(g, at);
    while (next < g->n && g->node[next - 1].uses == 1 && g->node[next].n_in == 1 &&
           g->node[next].in[0] == next - 1 && match_layer(g, next))
        next += match_layer(g, next);
    return next - at;
}

/* (O, C*H*W) to (O, ld), a row being (H, W, Cp) */
static long weight_at(const struct param *q, long i)
{
    const long values = q->dim[1], pixels = q->geom[0], cp = q->geom[1], ld = q->geom[2];
    long o = i / values, k = i % values;

    return o * ld + k % pixels * cp + k / pixels;
}

static float *take_floats(struct plan *p, long n)
{
    return plan_take(p, (size_t)n * sizeof(float));
}

static void build_layer(struct layer *l, struct plan *p, const struct node *node, long values,
                        long pixels, long cp, long NS)
{
    const long O = node->c, dim[2] = { O, values };

    l->node = node;
    l->O = node->c;
    l->op = (int)round_to(O, OUT_TILE);
    l->I = pixels * cp;
    l->ip = l->ld = round_to(l->I, 16);
    /* Rows a multiple of 1 KB apart would all fall into a few sets of the cache. */
    while (l->ld % 256 == 0)
        l->ld += 16;
    l->w = plan_param(p, node, "weight", 2, dim, l->op * l->ld, false);
    l->w->at = weight_at;
    l->w->geom[0] = pixels;
    l->w->geom[1] = cp;
    l->w->geom[2] = l->ld;
    if (node->bias)
        l->b = plan_param(p, node, "bias", 1, &O, round_to(O, 16), false);
    /* The next layer reads whole vectors of them. */
    l->h = take_floats(p, round_to(O, 16) * NS);
    if (p->train)
        l->dh = take_floats(p, round_to(O, 16) * NS);
}

static void build_input(struct dense *d, struct plan *p, const struct tensor *in)
{
    struct layer *l = &d->layer[0];

    d->xt = take_floats(p, round_to(d->NS, 32) * l->ip);
    l->xt = d->xt;
    l->xt_group = 32 * l->ip;
    l->xt_ld = 32;
    l->x = in->data;
    l->ldx = l->I;
    if (l->ip == l->I)
        return;
    d->wide = take_floats(p, p->batch * l->ip);
    if (p->train && in->grad)
        d->wide_grad = take_floats(p, p->batch * l->ip);
    l->x = d->wide;
    l->ldx = l->ip;
}

static int build(struct stage *s, struct plan *p, struct err *err)
{
    struct dense *d = plan_alloc(p, struct dense);
    const struct tensor *in = s->in[0];
    long values = (long)in->h * in->w * in->c, pixels = (long)in->h * in->w, cp = in->cp;

    (void)err;
    s->own = d;
    d->NS = round_to(p->batch, 16);
    d->layer = plan_take(p, (size_t)s->n_nodes * sizeof *d->layer);
    for (const struct node *n = s->node; n < s->node + s->n_nodes; n++) {
        struct layer *l = &d->layer[d->n];
        if (n->op == OP_RELU) {
            l[-1].relu = true;
            continue;
        }
        build_layer(l, p, n, values, pixels, cp, d->NS);
        if (d->n > 0) {
            l->x = l[-1].y = take_floats(p, p->batch * l->ip);
            l->ldx = l[-1].ldy = l->ip;
            l->xt = l[-1].h;
            l->xt_group = 32;
            l->xt_ld = d->NS;
        }
        d->n++;
        values = cp = n->c;
        pixels = 1;
    }
    build_input(d, p, in);
    struct layer *last = &d->layer[d->n - 1];
    s->out = plan_tensor(p, 1, 1, last->O);
    last->y = s->out->data;
    last->ldy = s->out->cp;
    if (p->train)
        d->panel = take_floats(p, p->threads * d->NS * PANEL);
    s->sync[PHASE_FORWARD] = s->sync[PHASE_BACKWARD] = SYNC_AFTER;
    return 0;
}

/* ------------------------------------------------------------------ forward */

/* dst[k * ldd + n] = src[n * lds + k] for 16 samples n, `cols` columns k. */
INLINE void transpose16(float *dst, long ldd, const float *src, long lds, long cols)
{
    long k = 0;

    for (; k + 4 <= cols; k += 4) {
        v16 r[4];
        v_load_columns4(r, src + k, lds);
        UNROLL
        for (int i = 0; i < 4; i++)
            v_store(dst + (k + i) * ldd, r[i]);
    }
    for (; k < cols; k++)
        for (int n = 0; n < 16; n++)
            dst[k * ldd + n] = src[n * lds + k];
}

/* The own samples into lanes. */
KERNEL void put_lanes(const struct dense *d, const struct member *m)
{
    const struct layer *l = &d->layer[0];

    for (int n = m->n0; n < m->n1;) {
        float *to = d->xt + n / 32 * l->xt_group + n % 32;
        const float *from = l->x + n * l->ldx;
        if (n % 16 == 0 && n + 16 <= m->n1) {
            transpose16(to, 32, from, l->ldx, l->ip);
            n += 16;
            continue;
        }
        for (long k = 0; k < l->ip; k++)
            to[32 * k] = from[k];
        n++;
    }
}

static void widen_input(const struct dense *d, const struct stage *s, const struct member *m)
{
    const struct layer *l = &d->layer[0];
    const float *x = member_data(m, s->in[0]);

    for (int n = m->n0; n < m->n1; n++)
        memcpy(d->wide + n * l->ip, x + n * l->I, (size_t)l->I * sizeof *x);
}

/* relu, and h as rows for whoever comes next: outputs [o0, o1). */
KERNEL void put_rows(const struct layer *l, long NS, int n_all, long o0, long o1)
{
    for (long o = o0; o < o1; o += OUT_TILE)
        for (int n = 0; n < n_all; n += 16) {
            v16 c[OUT_TILE];
            float *h = l->h + o * NS + n;
            UNROLL
            for (int i = 0; i < OUT_TILE; i++) {
                c[i] = v_load(h + i * NS);
                if (l->relu) {
                    c[i] = v_relu(c[i]);
                    v_store(h + i * NS, c[i]);
                }
            }
            if (n + 16 <= n_all && o + OUT_TILE <= l->ldy) {
                v_store_rows8(l->y + n * l->ldy + o, l->ldy, c);
                continue;
            }
            for (int k = n; k < n + 16 && k < n_all; k++)
                for (long i = 0; i < OUT_TILE && o + i < l->ldy; i++)
                    l->y[k * l->ldy + o + i] = h[i * NS + k - n];
        }
}

static void layer_forward(const struct layer *l, const struct member *m, long NS)
{
    const long blocks = (l->ip + BLOCK - 1) / BLOCK;
    long o0, o1;

    member_part(m, l->op, OUT_TILE, &o0, &o1);
    if (o0 == o1)
        return;
    for (long k = 0; k < blocks; k++) {
        const long from = l->ip * k / blocks, to = l->ip * (k + 1) / blocks;
        for (long n = 0; n < m->n; n += 32) {
            struct mac g = { .a = l->w->w + o0 * l->ld + from, .ars = l->ld, .aks = 1,
                             .b = l->xt + n / 32 * l->xt_group + from * l->xt_ld,
                             .ldb = l->xt_ld, .c = l->h + o0 * NS + n, .ldc = NS, .K = to - from,
                             .start = k ? MAC_ADD : l->b ? MAC_SCALARS : MAC_ZERO,
                             .bias = l->b ? l->b->w + o0 : NULL, .times = 1 };
            int vecs = n + 16 < m->n ? 2 : 1;
            if ((int)MAC_ROWS >= (int)OUT_TILE) {
                g.times = (int)((o1 - o0) / OUT_TILE);
                g.at = OUT_TILE * l->ld;
                g.ct = OUT_TILE * NS;
                ISA_FN(mac_tile)(&g, OUT_TILE, vecs);
            } else {
                ISA_FN(mac_rows)(&g, (int)(o1 - o0), vecs);
            }
        }
    }
    put_rows(l, NS, m->n, o0, o1);
}

static void forward(struct stage *s, struct member *m)
{
    const struct dense *d = s->own;

    if (d->wide)
        widen_input(d, s, m);
    put_lanes(d, m);
    for (int i = 0; i < d->n; i++) {
        member_barrier(m);
        layer_forward(&d->layer[i], m, d->NS);
    }
}

/* ------------------------------------------------------------------ backward: dx */

/* dh of the last layer from the output's gradient, own samples. */
static void take_grad(const struct dense *d, const struct stage *s, const struct member *m)
{
    const struct layer *l = &d->layer[d->n - 1];
    const long cols = l->op < l->ldy ? l->op : l->ldy;

    for (int n = m->n0; n < m->n1; n++) {
        const float *g = s->out->grad + n * l->ldy;
        for (long o = 0; o < cols; o++) {
            bool on = !l->relu || l->h[o * d->NS + n] > 0;
            l->dh[o * d->NS + n] = on ? g[o] : 0;
        }
    }
}

/* dh of the layer before: columns [from, to) of the weights. */
static void hidden_dx(const struct layer *l, const struct member *m, long NS, long from, long to)
{
    const struct layer *before = l - 1;

    for (long n = 0; n < m->n; n += 32) {
        int vecs = n + 16 < m->n ? 2 : 1;
        struct mac g = { .a = l->w->w + from, .ars = 1, .aks = l->ld, .b = l->dh + n, .ldb = NS,
                         .c = before->dh + from * NS + n, .ldc = NS, .K = l->O, .times = 1 };
        ISA_FN(mac_rows)(&g, (int)(to - from), vecs);
        for (long k = from; before->relu && k < to; k++)
            for (int j = 0; j < 16 * vecs; j += 16) {
                float *p = before->dh + k * NS + n + j;
                v_store(p, v_sel_gt(v_load(before->h + k * NS + n + j), v_zero(), v_load(p),
                                    v_zero()));
            }
    }
}

/* ------------------------------------------------------------------ backward: dw and update */

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

struct dw {
    struct apply apply;
    const float *dh;
    long NS;
    const float *panel;         /* (samples, PANEL) */
    const float *next;          /* the input columns of the next panel, ldx apart */
    long ldx;
    int samples;
    long at, ld;                /* first weight, from row to row */
    int rows;
    int first[SHARDS_MAX + 1];  /* sample of each shard, and where the last one ends */
    unsigned filled;
};

/* Momentum soon, the next panel of the weights later: strided panels get no help from hardware. */
INLINE void dw_prefetch(const int nv, const bool keep, const struct dw *g, int tile, long e)
{
    const float *w = g->apply.w + e + PANEL;

    if (tile < g->samples) {
        prefetch_l2(g->next + tile * g->ldx);
        prefetch_l2(g->next + tile * g->ldx + 16);
    }

    for (int i = 0; i < DW_ROWS; i++, w += g->ld)
        UNROLL
        for (int j = 0; j < nv; j++)
            prefetch_l2(w + 16 * j);
    for (int s = 0; s < (keep ? 1 : g->apply.o->states); s++) {
        const float *state = (keep ? g->apply.keep : g->apply.s[s]) + e + 8 * g->ld;
        for (int i = 0; i < DW_ROWS; i++, state += g->ld)
            UNROLL
            for (int j = 0; j < nv; j++)
                prefetch_write(state + 16 * j);
    }
}

/* SGD with momentum, not by apply16: a call of optim16, even one that never comes, would push the
 * sums out of their registers. */
INLINE void put_momentum(const int nv, const struct dw *g, long e, const v16 *sum)
{
    const float k[2] = { g->apply.o->k[0], g->apply.o->k[1] };
    float *w = g->apply.w, *speed = g->apply.s[0];

    UNROLL
    for (int i = 0; i < DW_ROWS; i++, e += g->ld)
        UNROLL
        for (int j = 0; j < nv; j++)
            momentum16(k, w + e + 16 * j, speed + e + 16 * j, sum[i * nv + j]);
}

INLINE void put_keep(const int nv, const struct dw *g, long e, const v16 *sum)
{
    UNROLL
    for (int i = 0; i < DW_ROWS; i++, e += g->ld)
        UNROLL
        for (int j = 0; j < nv; j++)
            v_store(g->apply.keep + e + 16 * j, sum[i * nv + j]);
}

KERNEL void put_any(int nv, const struct dw *g, long e, const float *sum)
{
    for (int i = 0; i < DW_ROWS; i++, e += g->ld)
        for (int j = 0; j < nv; j++)
            apply16(&g->apply, e + 16 * j, v_load(sum + (i * nv + j) * 16));
}

/* Every shard has samples. `keep`: the gradient is left where the apply says. */
INLINE void dw_tiles(const int nv, const int shards, const bool keep, const struct dw *g)
{
    const bool momentum = g->apply.plain_momentum && !g->apply.keep;

    for (int o = 0; o < g->rows; o += DW_ROWS) {
        long e = g->at + o * g->ld;
        const float *dh = g->dh + o * g->NS;
        v16 part[4][DW_ROWS * MAC_VECS];

        dw_prefetch(nv, keep, g, o / DW_ROWS, e);
        __asm__ volatile("" ::: "memory");      /* keep loads of the panel inside the loop */
        UNROLL
        for (int s = 0; s < shards; s++) {
            v16 sum[DW_ROWS * MAC_VECS];
            const int n = g->first[s], end = g->first[s + 1];
            acc_zero(DW_ROWS * nv, sum);
            mac(DW_ROWS, nv, sum, dh + n, g->NS, 1, g->panel + n * PANEL, PANEL, end - n);
            tree_add(DW_ROWS * nv, part, s, sum);
        }
        const v16 *total = part[__builtin_ctz((unsigned)shards)];
        if (keep) {
            put_keep(nv, g, e, total);
        } else if (momentum) {
            put_momentum(nv, g, e, total);
        } else {
            ALIGNED float sum[DW_ROWS * MAC_VECS * 16];
            acc_store(DW_ROWS, nv, total, sum, 16 * nv);
            put_any(nv, g, e, sum);
        }
    }
}

#define DW(nv, shards)                                                                         \
    KERNEL void dw_##nv##_##shards(const struct dw *g) { dw_tiles(nv, shards, false, g); }     \
    KERNEL void keep_##nv##_##shards(const struct dw *g) { dw_tiles(nv, shards, true, g); }
DW(1, 1) DW(1, 2) DW(1, 4) DW(1, 8)
#if defined ISA_AVX512
DW(2, 1) DW(2, 2) DW(2, 4) DW(2, 8)
#endif

/* By vectors, then by the logarithm of the shards. */
static void (*const dw_of[MAC_VECS][4])(const struct dw *g) = {
    { dw_1_1, dw_1_2, dw_1_4, dw_1_8 },
#if defined ISA_AVX512
    { dw_2_1, dw_2_2, dw_2_4, dw_2_8 },
#endif
};
static void (*const keep_of[MAC_VECS][4])(const struct dw *g) = {
    { keep_1_1, keep_1_2, keep_1_4, keep_1_8 },
#if defined ISA_AVX512
    { keep_2_1, keep_2_2, keep_2_4, keep_2_8 },
#endif
};

static void dw_full(const struct dw *g, const struct plan *p, int vecs)
{
    if (!p->shared) {
        dw_of[vecs - 1][__builtin_ctz((unsigned)p->shards)](g);
        return;
    }
    for (int r = 0; r < p->n_roots; r++) {
        struct dw of = *g;
        of.apply = apply_root(&g->apply, &p->root[r]);
        memcpy(of.first, g->first + p->root[r].first,
               (size_t)(p->root[r].width + 1) * sizeof of.first[0]);
        keep_of[vecs - 1][__builtin_ctz((unsigned)p->root[r].width)](&of);
    }
}

/* A short last batch may leave shards empty. */
static void dw_sparse(const struct dw *g, int shards)
{
    for (int o = 0; o < g->rows; o++) {
        v16 sum[SHARDS_MAX];
        for (int s = 0; s < shards; s++) {
            acc_zero(1, &sum[s]);
            mac(1, 1, &sum[s], g->dh + o * g->NS + g->first[s], g->NS, 1,
                g->panel + g->first[s] * PANEL, PANEL, g->first[s + 1] - g->first[s]);
        }
        apply_tree(&g->apply, g->at + o * g->ld, sum, shards, g->filled);
    }
}

/* Columns [from, to), at most PANEL of them. */
static void dw_panel(const struct layer *l, const struct member *m, long NS, float *panel,
                     const struct dw *all, long from, long to)
{
    const struct plan *p = m->plan;
    struct dw g = *all;

    for (int n = 0; n < m->n; n++)
        for (long j = 0; j < to - from; j += 16)
            v_store(panel + n * PANEL + j, v_load(l->x + n * l->ldx + from + j));
    g.dh = l->dh;
    g.NS = NS;
    g.next = l->x + from + PANEL;
    g.ldx = l->ldx;
    g.samples = m->n;
    for (long j = 0; j < to - from;) {
        g.at = from + j;
        g.panel = panel + j;
        if (g.filled != (1u << p->to) - (1u << p->from)) {
            dw_sparse(&g, p->shards);
            j += 16;
            continue;
        }
        int vecs = to - from - j >= 16 * MAC_VECS ? MAC_VECS : 1;
        dw_full(&g, p, vecs);
        j += 16 * vecs;
    }
}

/* db: lanes of dh are samples, so these are sums of scalars. */
static void update_bias(const struct layer *l, const struct member *m, long NS)
{
    const int shards = m->plan->shards;
    const struct apply a = apply_begin(m, l->b);
    const unsigned filled = member_filled(m);
    long from, to;

    member_part(m, round_to(l->O, 16), 16, &from, &to);
    for (long o = from; o < to; o += 16) {
        v16 sum[SHARDS_MAX];
        for (int s = 0; s < shards; s++) {
            const int n0 = member_first(m, s), n1 = member_first(m, s + 1);
            ALIGNED float f[16] = { 0 };
            for (int i = 0; i < 16; i++)
                for (int n = n0; n < n1; n++)
                    f[i] = n == n0 ? l->dh[(o + i) * NS + n] : f[i] + l->dh[(o + i) * NS + n];
            sum[s] = v_load(f);
        }
        apply_tree(&a, o, sum, shards, filled);
    }
}

static void input_dx(const struct dense *d, struct stage *s, const struct member *m, long from,
                     long to)
{
    const struct layer *l = &d->layer[0];
    float *grad = d->wide_grad ? d->wide_grad : s->in[0]->grad;
    struct mac g = { .a = l->dh, .ars = 1, .aks = d->NS, .b = l->w->w + from, .ldb = l->ld,
                     .c = grad + from, .ldc = l->ldx, .K = l->O, .times = 1,
                     .start = d->wide || stage_grad_first(s, 0) ? MAC_ZERO : MAC_ADD };

    ISA_FN(mac_rows)(&g, m->n, (int)(to - from) / 16);
}

static void layer_backward(const struct dense *d, int i, struct stage *s, const struct member *m)
{
    const struct layer *l = &d->layer[i];
    const int shards = m->plan->shards;
    struct dw g = { .apply = apply_begin(m, l->w), .ld = l->ld, .rows = l->op,
                    .filled = member_filled(m) };
    long from, to;

    if (!m->n)          /* a shared plan without samples */
        return;
    for (int k = 0; k <= shards; k++)
        g.first[k] = member_first(m, k);
    if (l->b)
        update_bias(l, m, d->NS);
    member_part(m, l->ip, PANEL, &from, &to);
    for (long k = from; k < to; k += PANEL) {
        long end = k + PANEL < to ? k + PANEL : to;
        if (i > 0)
            hidden_dx(l, m, d->NS, k, end);
        else if (s->in[0]->grad)
            input_dx(d, s, m, k, end);
        dw_panel(l, m, d->NS, d->panel + m->id * d->NS * PANEL, &g, k, end);
    }
}

/* Own samples of an input whose rows are no multiple of 16. */
static void narrow_grad(const struct dense *d, struct stage *s, const struct member *m)
{
    const struct layer *l = &d->layer[0];
    const bool first = stage_grad_first(s, 0);

    for (int n = m->n0; n < m->n1; n++) {
        float *to = s->in[0]->grad + n * l->I;
        const float *from = d->wide_grad + n * l->ip;
        for (long k = 0; k < l->I; k++)
            to[k] = first ? from[k] : to[k] + from[k];
    }
}

static void backward(struct stage *s, struct member *m)
{
    const struct dense *d = s->own;

    take_grad(d, s, m);
    for (int i = d->n - 1; i >= 0; i--) {
        member_barrier(m);
        layer_backward(d, i, s, m);
    }
    if (d->wide_grad) {
        member_barrier(m);
        narrow_grad(d, s, m);
    }
}

const struct stage_ops ISA_FN(dense_large_stage) = {
    .name = "linear-large",
    .match = match,
    .build = build,
    .run = { forward, backward, NULL },
};
