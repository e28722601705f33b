/* engine/stage_dense_large.c - chains of linear [relu] at batches from 16 up
 *
 * DESIGN. Weights are stored (O, ld), a row for each output. The lanes are chosen so that no
 * operand is packed: forward puts samples into lanes and keeps its outputs as h (O, samples); the
 * gradients dh have the same form and serve as a broadcast operand both ways. Work is split by
 * output forward and by input column backward, so that each weight is read, and updated, by one
 * core: a panel of 32 columns gives dx, then dw by the shard tree in registers, then the update,
 * while it is in L2.
 *
 * Where several plans train a model, a layer whose gradient is many times larger than its inputs
 * and deltas of the whole batch is split: each plan puts its samples' inputs and deltas on its
 * board, and when the step is sure to count makes the gradient of some of the outputs from all of
 * them, with the update. A part that does not come a plan makes itself. Where the weights are then,
 * split.c says.
 *
 * The order of each sum: forward bias, then inputs as stored, ascending; dx over outputs ascending;
 * dw and db over samples by shard, then the tree.
 *
 * Letters: I inputs as stored, O outputs, N samples.
 */
#include "engine/dense_large_int.h"
#include "engine/vec_move.h"

enum { BATCH_MIN = 16 };
enum { OUT_TILE = 8 };          /* outputs are padded to it */
/* Inputs a forward block takes: 32 samples of them are 26 KB and stay in L1 beside the weights. */
enum { BLOCK = 208 };
/* Outputs that the input's gradient takes at once where no dw runs beside it: the next ones'
 * weights are asked for meanwhile. */
enum { DX_ROWS = 256 };
/* What a layer's gradient is, at least, to be split: so many floats, and so many times the inputs
 * and deltas of a batch. Below that the exchange costs more than it saves. */
enum { SPLIT_FLOATS = 1 << 16, SPLIT_TIMES = 4 };

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
    /* Split between plans. On a board, for each of two sides and each shard: x (per, ip), then dh
     * (op, per). */
    bool split;
    int per;                    /* samples that a shard has at most */
    long board, block;          /* where it begins; floats of a shard */
};

struct dense {
    int n;
    struct layer *layer;
    long NS;                    /* batch, up to a multiple of 16 */
    float *xt;                  /* of the first layer, (NS / 32, ip, 32) */
    float *wide;                /* (N, ip) copy of an input with other row lengths; NULL: none */
    float *wide_grad;
    float *panel;               /* (NS, PANEL) a member's */
    const float **row;          /* (batch) a member's: inputs of each sample */
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

static void build_split(struct layer *l, struct plan *p)
{
    const long grad = l->op * l->ld;

    if (!p->shared || p->keep_grads || grad < SPLIT_FLOATS ||
        grad < SPLIT_TIMES * p->batch * (l->ip + l->op))
        return;
    l->split = true;
    l->per = (p->batch + p->shards - 1) / p->shards;
    l->block = round_to(l->per * (l->ip + l->op), 16);
    const struct split_shape shape = { l->op, l->ip, l->ld, OUT_TILE, PANEL };
    l->board = plan_split(p, l->w, shape, 2 * p->shards * l->block);
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
    if (!p->train)
        return;
    l->dh = take_floats(p, round_to(O, 16) * NS);
    build_split(l, p);
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
    if (p->train) {
        d->panel = take_floats(p, p->threads * d->NS * PANEL);
        d->row = plan_take(p, (size_t)p->threads * (size_t)p->batch * sizeof *d->row);
    }
    s->sync[PHASE_FORWARD] = s->sync[PHASE_BACKWARD] = SYNC_AFTER;
    return 0;
}

/* The weights of output `o`; up to *end those of others follow, *ld apart. */
static const float *weight_rows(const struct layer *l, const struct plan *p, long o, long *end,
                                long *ld)
{
    struct split_part part = { .to = l->op, .ld = l->ld, .w = l->w->w };

    if (l->split)
        part = split_now(p, l->w, split_owner(p, l->w, o));
    *end = part.to;
    *ld = part.ld;
    return part.w + (o - part.from) * part.ld;
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

/* Outputs [o0, o1), whose weights begin at `w`. */
static void forward_rows(const struct layer *l, const struct member *m, long NS, const float *w,
                         long ld, long o0, long o1)
{
    const long blocks = (l->ip + BLOCK - 1) / BLOCK;

    for (long k = 0; k < blocks; k++) {
        const long from = l->ip * k / blocks, to = l->ip * (k + 1) / blocks;
        for (long n = 0; n < m->n; n += 32) {
            struct mac g = { .a = w + from, .ars = ld, .aks = 1,
                             .b = l->xt + n / 32 * l->xt_group + from * l->xt_ld,
                             .ldb = l->xt_ld, .c = l->h + o0 * NS + n, .ldc = NS, .K = to - from,
                             .start = k ? MAC_ADD : l->b ? MAC_SCALARS : MAC_ZERO,
                             .bias = l->b ? l->b->w + o0 : NULL, .times = 1 };
            int vecs = n + 16 < m->n ? 2 : 1;
            if ((int)MAC_ROWS >= (int)OUT_TILE) {
                g.times = (int)((o1 - o0) / OUT_TILE);
                g.at = OUT_TILE * ld;
                g.ct = OUT_TILE * NS;
                ISA_FN(mac_tile)(&g, OUT_TILE, vecs);
            } else {
                ISA_FN(mac_rows)(&g, (int)(o1 - o0), vecs);
            }
        }
    }
    put_rows(l, NS, m->n, o0, o1);
}

static void layer_forward(const struct layer *l, const struct member *m, long NS)
{
    long o0, o1, ld;

    member_part(m, l->op, OUT_TILE, &o0, &o1);
    for (long end; o0 < o1; o0 = end) {
        const float *w = weight_rows(l, m->plan, o0, &end, &ld);
        end = end < o1 ? end : o1;
        forward_rows(l, m, NS, w, ld, o0, end);
    }
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
        for (long o = 0, end, ld; o < l->O; o = end) {
            const float *w = weight_rows(l, m->plan, o, &end, &ld);
            end = end < l->O ? end : l->O;
            struct mac g = { .a = w + from, .ars = 1, .aks = ld, .b = l->dh + o * NS + n,
                             .ldb = NS, .c = before->dh + from * NS + n, .ldc = NS, .K = end - o,
                             .start = o ? MAC_ADD : MAC_ZERO, .times = 1 };
            ISA_FN(mac_rows)(&g, (int)(to - from), vecs);
        }
        for (long k = from; before->relu && k < to; k++)
            for (int j = 0; j < 16 * vecs; j += 16) {
                float *p = before->dh + k * NS + n + j;
                v_store(p, v_sel_gt(v_load(before->h + k * NS + n + j), v_zero(), v_load(p),
                                    v_zero()));
            }
    }
}

/* ------------------------------------------------------------------ backward: dw and update */

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

/* Asks for a panel's columns from `at` on, of some outputs from `o` on. */
static void dx_prefetch(const struct layer *l, const struct plan *p, long o, long at)
{
    long end, ld;
    const float *w = weight_rows(l, p, o, &end, &ld) + at;

    for (long i = 0; i < DX_ROWS && i < end - o; i++, w += ld) {
        prefetch_l2(w);
        prefetch_l2(w + 16);
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

    if (!l->split) {            /* dw has asked for the panel, a tile at a time */
        ISA_FN(mac_rows)(&g, m->n, (int)(to - from) / 16);
        return;
    }
    for (long o = 0, end; o < l->O; o += g.K) {
        g.b = weight_rows(l, m->plan, o, &end, &g.ldb) + from;
        end = end < l->O ? end : l->O;
        g.K = end - o < DX_ROWS ? end - o : DX_ROWS;
        dx_prefetch(l, m->plan, o + g.K < l->O ? o + g.K : 0, o + g.K < l->O ? from : to);
        ISA_FN(mac_rows)(&g, m->n, (int)(to - from) / 16);
        g.a += g.K * d->NS;
        g.start = MAC_ADD;
    }
}

/* What the plan has itself. */
static struct dw own_samples(const struct dense *d, const struct layer *l, const struct member *m)
{
    const struct plan *p = m->plan;
    const float **row = d->row + m->id * p->batch;
    struct dw g = { .apply = apply_begin(m, l->w), .ldh = d->NS, .row = row, .samples = m->n,
                    .ahead = PANEL, .ld = l->ld, .to = l->op, .filled = member_filled(m),
                    .full = (1u << p->to) - (1u << p->from), .roots = p->shared };

    for (int k = 0; k <= p->shards; k++)
        g.first[k] = member_first(m, k);
    for (int k = 0; k < p->shards; k++)
        g.dh[k] = l->dh + g.first[k];
    for (int n = 0; n < m->n; n++)
        row[n] = l->x + n * l->ldx;
    return g;
}

static void layer_backward(const struct dense *d, int i, struct stage *s, const struct member *m)
{
    const struct layer *l = &d->layer[i];
    const struct dw g = own_samples(d, l, m);
    long from, to;

    if (!m->n)          /* a shared plan without samples */
        return;
    if (l->b)
        update_bias(l, m, d->NS);
    member_part(m, l->ip, PANEL, &from, &to);
    for (long k = from; k < to; k += PANEL) {
        long end = k + PANEL < to ? k + PANEL : to;
        if (i > 0)
            hidden_dx(l, m, d->NS, k, end);
        else if (s->in[0]->grad)
            input_dx(d, s, m, k, end);
        if (!l->split)
            ISA_FN(dw_panel)(m->plan, d->panel + m->id * d->NS * PANEL, &g, k, end);
    }
}

/* ------------------------------------------------------------------ split between plans */

/* The own samples' inputs and deltas on the board. */
static void give_samples(const struct dense *d, const struct layer *l, struct member *m)
{
    const struct plan *p = m->plan;
    const long at = l->board + share_side(p) * p->shards * l->block;
    float *board = share_own_board(p) + at;

    for (int k = m->s0; k < m->s1; k++) {
        const int first = member_first(m, k), n = member_first(m, k + 1) - first;
        float *x = board + k * l->block, *dh = x + l->per * l->ip;
        for (int i = 0; i < n; i++)
            memcpy(x + i * l->ip, l->x + (first + i) * l->ldx, (size_t)l->ip * sizeof *x);
        for (int o = 0; o < l->op; o++)
            for (int i = 0; i < n; i++)
                dh[o * l->per + i] = l->dh[o * d->NS + first + i];
    }
    member_post(m, at + p->from * l->block, (p->to - p->from) * l->block);
}

/* What all plans have of the batch; of one that is alone, where it is. */
static struct dw all_samples(const struct dense *d, const struct layer *l, const struct member *m)
{
    const struct plan *p = m->plan;
    const float **row = d->row + m->id * p->batch;
    int self;

    if (share_places(p, &self) == 1)
        return own_samples(d, l, m);
    struct dw g = { .ld = l->ld, .row = row, .samples = m->whole, .ldh = l->per,
                    .filled = shards_filled(m->whole, p->shards), .full = (1u << p->shards) - 1 };
    for (int k = 0; k < p->shards; k++) {
        const float *x = share_board(p, share_owner(p, k)) + l->board +
                         (share_side(p) * p->shards + k) * l->block;
        g.first[k] = shard_first(m->whole, p->shards, k);
        g.first[k + 1] = shard_first(m->whole, p->shards, k + 1);
        g.dh[k] = x + l->per * l->ip;
        for (int n = g.first[k]; n < g.first[k + 1]; n++, x += l->ip)
            row[n] = x;
    }
    return g;
}

/* A piece of a part: gradient and update. */
static void make_part(const struct dense *d, const struct layer *l, struct member *m,
                      const struct split_work *work)
{
    const struct split_part *old = &work->old, *new = &work->new;
    const long below = (work->from - new->from) * new->ld;
    struct dw g = all_samples(d, l, m);

    g.apply = apply_begin(m, l->w);
    g.roots = false;
    g.from = (int)work->from;
    g.to = (int)work->to;
    g.ld = new->ld;
    g.ahead = work->down ? -PANEL : PANEL;
    g.give_ld = l->ld;
    g.give = work->give ? work->give + (work->from - new->from) * l->ld : NULL;
    g.old_w = old->w + below;
    g.apply.w = new->w + below;
    for (int i = 0; i < g.apply.o->states; i++) {
        g.old_s[i] = old->state[i] + below;
        g.apply.s[i] = new->state[i] + below;
    }
    for (long i = work->done; i < work->panels && g.from < g.to; i++) {
        const long k = (work->down ? work->panels - 1 - i : i) * PANEL;
        ISA_FN(dw_panel)(m->plan, d->panel + m->id * d->NS * PANEL, &g, k,
                 k + PANEL < l->ip ? k + PANEL : l->ip);
        split_panel_done(work, i + 1);
    }
    if (g.from == g.to)
        split_panel_done(work, work->panels);
}

static void reduced(struct stage *s, struct member *m)
{
    const struct dense *d = s->own;

    for (int i = d->n - 1; i >= 0; i--) {
        const struct layer *l = &d->layer[i];
        if (!l->split)
            continue;
        const struct split_work work = member_begin_part(m, l->w);
        make_part(d, l, m, &work);
        member_give_part(m, l->w);
    }
}

static void settled(struct stage *s, struct member *m)
{
    const struct dense *d = s->own;
    int self, places = share_places(m->plan, &self);

    for (int i = d->n - 1; i >= 0; i--) {
        const struct layer *l = &d->layer[i];
        if (!l->split)
            continue;
        const uint64_t here = member_take_parts(m, l->w);
        for (int k = 0; k < places; k++) {
            if (k == self || here >> k & 1)
                continue;
            const int n = member_miss_part(m, l->w, k);
            for (int j = 0; j < n; j++) {
                const struct split_work work = member_rest(m, l->w, k, j);
                make_part(d, l, m, &work);
            }
        }
        member_settle_parts(m, l->w, here);
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
    int self, places = share_places(m->plan, &self);

    take_grad(d, s, m);
    for (int i = d->n - 1; i >= 0; i--) {
        member_barrier(m);
        if (d->layer[i].split && places > 1)
            give_samples(d, &d->layer[i], m);
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
    .reduced = reduced,
    .settled = settled,
};
