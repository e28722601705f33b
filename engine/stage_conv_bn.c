/* engine/stage_conv_bn.c - chains of [conv2d, batchnorm, relu], the last one with a 2x2 maxpool
 *
 * DESIGN. Members own samples, so a convolution needs no barrier; batch norm's statistics need one
 * each way. Forward: for each block, convolve the own samples, with the block before brought
 * through its batch norm and relu on the way in; barrier; every member computes the statistics for
 * itself.
 * Backward runs the blocks in reverse: dy from dz and the statistics' gradient, then dx and dw of a
 * sample while both are in cache. Weight gradients are kept one a shard, summed by the tree in the
 * update, which splits the weights among members and renews their copies for dx.
 */
#include "engine/conv_bn_int.h"
#include "engine/stage.h"
#include "engine/winograd.h"

/* Below this batch a stage that splits a sample among members does better. */
enum { BATCH_MIN = 8 };
/* From so many channels in and out, Winograd's transforms cost less than they save. */
enum { WINO_CHANNELS = 16 };
/* One gradient a shard may take so many floats; larger convolutions are not this stage's. */
static const long GRADIENTS_MAX = 1l << 26;
/* Rows of taps shorter than this use the kernel that takes all taps together. */
enum { TAPS_ROW = 8 };

static int round16(int c) { return (c + 15) / 16 * 16; }

/* ------------------------------------------------------------------ match */

/* Nodes of the block that begins at `at`: 0 or 3. */
static int match_block(const struct plan *p, const struct graph *g, int at, int cis)
{
    const struct node *c = &g->node[at];

    if (at + 3 > g->n || c->op != OP_CONV2D || c[1].op != OP_BATCHNORM || c[2].op != OP_RELU)
        return 0;
    for (int i = 0; i < 2; i++)
        if (c[i].uses != 1 || c[i + 1].n_in != 1 || c[i + 1].in[0] != at + i)
            return 0;
    long taps = (long)c->kernel[0] * c->kernel[1];
    if (c->groups != 1 || c->dilation[0] != 1 || c->dilation[1] != 1 || c[1].per_shard ||
        taps * cis * round16(c->c) * p->shards > GRADIENTS_MAX)
        return 0;
    return 3;
}

static bool is_pool2(const struct graph *g, int at)
{
    const struct node *n = &g->node[at];

    return at < g->n && n->op == OP_MAXPOOL && n->n_in == 1 && n->in[0] == at - 1 &&
           n[-1].uses == 1 && n->kernel[0] == 2 && n->kernel[1] == 2 && n->stride[0] == 2 &&
           n->stride[1] == 2 && n->padding[0] == 0 && n->padding[1] == 0;
}

static int match(const struct plan *p, const struct graph *g, int at)
{
    const struct node *first = &g->node[at];
    int next = at, cis;

    if (p->batch < BATCH_MIN)
        return 0;
    if (first->op == OP_INPUT) {
        if (p->field[first->field].type != DTYPE_U8 || first->uses != 1 || at + 1 >= g->n ||
            g->node[at + 1].n_in != 1 || g->node[at + 1].in[0] != at)
            return 0;
        cis = first->c;
        next++;
    } else {
        const struct tensor *in = first->op == OP_CONV2D ? p->value[first->in[0]] : NULL;
        if (!in || in->replica)
            return 0;
        cis = tensor_pad(g->node[first->in[0]].c);
    }
    int blocks = 0;
    for (;; blocks++) {
        bool chained = !blocks || (g->node[next - 1].uses == 1 && next < g->n &&
                                   g->node[next].n_in == 1 && g->node[next].in[0] == next - 1);
        int n = chained ? match_block(p, g, next, cis) : 0;
        if (!n)
            break;
        next += n;
        cis = round16(g->node[next - 1].c);
    }
    if (!blocks)
        return 0;
    return next - at + (next < g->n && is_pool2(g, next));
}

/* ------------------------------------------------------------------ build */

/* (O, C, KH, KW) to [panel][ky][kx][ci][PANEL] */
static long weight_at(const struct param *p, long i)
{
    const long kw = p->dim[3], kh = p->dim[2], c = p->dim[1], cis = p->geom[0], cop = p->geom[1];
    long x = i % kw, y = i / kw % kh, ci = i / (kw * kh) % c, o = i / (kw * kh * c);
    long panel = o / PANEL * PANEL, width = panel_width((int)cop, (int)panel);

    return panel * kh * kw * cis + ((y * kw + x) * cis + ci) * width + o - panel;
}

static void build_params(struct block *b, struct plan *p)
{
    const long c = b->co, dim[4] = { c, b->ci, b->kh, b->kw };

    b->w = plan_param(p, b->conv, "weight", 4, dim, (long)b->kh * b->kw * b->cis * b->cop, false);
    b->w->at = weight_at;
    b->w->geom[0] = b->cis;
    b->w->geom[1] = b->cop;
    if (b->conv->bias)
        b->b = plan_param(p, b->conv, "bias", 1, &c, b->cop, false);
    b->gamma = plan_param(p, b->bn, "weight", 1, &c, b->cop, false);
    b->beta = plan_param(p, b->bn, "bias", 1, &c, b->cop, false);
    b->mean = plan_param(p, b->bn, "running_mean", 1, &c, b->cop, false);
    b->var = plan_param(p, b->bn, "running_var", 1, &c, b->cop, false);
    plan_known(p, b->gamma);
    plan_known(p, b->beta);
    if (b->wino) {      /* what is summed over the batch is the transformed gradient */
        plan_known(p, b->w);
        b->w->grad_size = 16l * b->cis * b->cop;
    }
}

static int max_int(int a, int b) { return a > b ? a : b; }

/* hi, wi, ci, cis and dx are set. */
static void build_shape(struct block *b, const struct node *conv, bool dense)
{
    b->conv = conv;
    b->bn = conv + 1;
    b->ho = conv->h;
    b->wo = conv->w;
    b->co = conv->c;
    b->cop = round16(b->co);
    b->cip = round16(b->cis);
    b->kh = conv->kernel[0];
    b->kw = conv->kernel[1];
    b->sh = conv->stride[0];
    b->sw = conv->stride[1];
    b->ph = conv->padding[0];
    b->pw = conv->padding[1];
    b->hp = b->hi + 2 * b->ph;
    b->wp = b->wi + 2 * b->pw;
    b->wino = dense && b->kh == 3 && b->kw == 3 && b->sh == 1 && b->sw == 1 &&
              b->ci >= WINO_CHANNELS && b->co >= WINO_CHANNELS && b->cis % 16 == 0;
    if (b->wino) {
        b->th = (b->ho + 1) / 2;
        b->tw = (b->wo + 1) / 2;
        b->hp = 2 * b->th + 2;
        b->wp = 2 * b->tw + 2;
        b->eh = 2 * b->th;
        b->ew = 2 * b->tw;
    } else if (b->dx) {
        /* dx at pixel i reads dy at (i + p - k) / s, for every k that divides. */
        b->et = max_int(0, (b->kh - 1 - b->ph + b->sh - 1) / b->sh);
        b->el = max_int(0, (b->kw - 1 - b->pw + b->sw - 1) / b->sw);
        b->eh = b->et + max_int(b->ho, (b->hi - 1 + b->ph) / b->sh + 1);
        b->ew = b->el + max_int(b->wo, (b->wi - 1 + b->pw) / b->sw + 1);
    } else {
        b->eh = b->ho;
        b->ew = b->wo;
    }
    bool flat = b->kh == 1 && b->kw == 1 && b->sh == 1 && b->sw == 1 && b->ph == 0 && b->pw == 0;
    b->fh = flat ? 1 : b->ho;
    b->fw = flat ? b->ho * b->wo : b->wo;
}

static void build_phase(struct block *b, struct plan *p, struct dx_phase *f, int y, int x)
{
    bool flat = b->fh == 1 && b->fw != b->wo;

    f->y = y;
    f->x = x;
    f->rows = flat ? 1 : (b->hi - y + b->sh - 1) / b->sh;
    f->cols = flat ? b->hi * b->wi : (b->wi - x + b->sw - 1) / b->sw;
    f->run = plan_take(p, (size_t)b->kh * b->kw * sizeof *f->run);
    for (int ky = b->kh - 1; ky >= 0; ky--)
        for (int kx = b->kw - 1; kx >= 0; kx--) {
            int dy = y + b->ph - ky, dx = x + b->pw - kx;
            if (dy % b->sh || dx % b->sw)
                continue;
            long pixel = (long)(dy / b->sh + b->et) * b->ew + dx / b->sw + b->el;
            f->run[f->runs++] = (struct mac_run){ pixel * b->cop,
                                                  ((long)ky * b->kw + kx) * b->cop };
        }
}

/* Where the kernels of conv_bn_mac.c begin each run of their sums. */
static void build_runs(struct block *b, struct plan *p)
{
    const long row = (long)b->wp * b->cis;

    b->forward = plan_take(p, (size_t)b->kh * sizeof *b->forward);
    b->dw = plan_take(p, (size_t)b->fh * sizeof *b->dw);
    for (int i = 0; i < b->kh; i++)
        b->forward[i] = (struct mac_run){ i * row, (long)i * b->kw * b->cis };
    for (int i = 0; i < b->fh; i++)
        b->dw[i] = (struct mac_run){ i * b->sh * row, (long)i * b->ew };
    if (b->kw * b->cis < TAPS_ROW && b->kh > 1) {
        b->tap = plan_take(p, (size_t)b->kh * b->kw * b->cis * sizeof *b->tap);
        for (int i = 0; i < b->kh * b->kw * b->cis; i++)
            b->tap[i] = i / (b->kw * b->cis) * row + i % (b->kw * b->cis);
    }
    if (!b->dx || b->wino)
        return;
    b->phase = plan_take(p, (size_t)b->sh * b->sw * sizeof *b->phase);
    for (int y = 0; y < b->sh && y < b->hi; y++)
        for (int x = 0; x < b->sw && x < b->wi; x++)
            build_phase(b, p, &b->phase[b->phases++], y, x);
}

static float *take_floats(struct plan *p, long n)
{
    return plan_take(p, (size_t)n * sizeof(float));
}

static void build_memory(struct block *b, struct plan *p, bool pooled, int copies)
{
    const long N = p->batch, members = p->threads, taps = (long)b->kh * b->kw;

    b->xp = take_floats(p, copies * xp_size(b));
    b->y = take_floats(p, N * y_size(b));
    b->mean_s = take_floats(p, N * b->cop);
    b->m2_s = take_floats(p, N * b->cop);
    b->coef = take_floats(p, members * BN_COEFS * b->cop);
    if (b->wino)
        b->u = take_floats(p, 16l * b->cis * b->cop);
    if (!p->train)
        return;
    if (b->wino)
        b->ut = take_floats(p, 16l * b->cis * b->cop);
    else if (b->dx)
        b->wt = take_floats(p, taps * b->cop * b->cip);
    if (!pooled)
        b->d = take_floats(p, N * y_size(b));
    b->s1 = take_floats(p, N * b->cop);
    b->s2 = take_floats(p, N * b->cop);
    b->e = take_floats(p, members * e_size(b));
    if (b->dx)
        b->dxp = take_floats(p, members * dx_size(b));
    b->gw_size = (b->wino ? 16 : taps) * b->cis * b->cop;
    b->gw = take_floats(p, p->shards * b->gw_size);
    b->gb = take_floats(p, p->shards * b->cop);
    if (p->shared)
        b->rows = take_floats(p, p->shards * ROW_KINDS * b->cop);
}

/* value = (byte / 255 - mean) / std */
static float *build_lut(struct plan *p, const struct field *f)
{
    float *lut = take_floats(p, 256l * f->c);

    for (int c = 0; c < f->c; c++)
        for (int i = 0; i < 256; i++)
            lut[256 * c + i] = ((float)i / 255.0f - f->mean[c & 3]) / f->std[c & 3];
    return lut;
}

static void build_output(struct stage *s, struct plan *p, struct conv_bn *cb)
{
    const struct block *last = &cb->block[cb->n - 1];
    const struct node *node = s->node + s->n_nodes - 1;

    s->out = plan_tensor(p, node->h, node->w, node->c);
    cb->ho = node->h;
    cb->wo = node->w;
    cb->cs = last->cop;
    cb->x = s->out->data;
    cb->gx = s->out->grad;
    long size = (long)p->batch * cb->ho * cb->wo * cb->cs;
    if (s->out->cp != cb->cs) {
        cb->x = take_floats(p, size);
        cb->gx = p->train ? take_floats(p, size) : NULL;
    }
    if (cb->pool)
        cb->ymax = take_floats(p, size);
}

static int build(struct stage *s, struct plan *p, struct err *err)
{
    struct conv_bn *cb = plan_alloc(p, struct conv_bn);
    const struct node *node = s->node;
    int hi, wi, ci, cis;

    (void)err;
    s->own = cb;
    cb->field = node->op == OP_INPUT ? node->field : -1;
    cb->pool = node[s->n_nodes - 1].op == OP_MAXPOOL;
    cb->n = s->n_nodes / 3;
    cb->block = plan_take(p, (size_t)cb->n * sizeof *cb->block);
    if (cb->field >= 0) {
        hi = node->h, wi = node->w, ci = cis = node->c;
        cb->lut = build_lut(p, &p->field[cb->field]);
        node++;
    } else {
        const struct tensor *in = s->in[0];
        hi = in->h, wi = in->w, ci = in->c, cis = in->cp;
    }
    for (int i = 0; i < cb->n; i++, node += 3) {
        struct block *b = &cb->block[i];
        *b = (struct block){ .hi = hi, .wi = wi, .ci = ci, .cis = cis };
        b->dx = p->train && (i > 0 || (cb->field < 0 && s->in[0]->grad));
        build_shape(b, node, i > 0 || cb->field < 0);
        build_params(b, p);
        build_runs(b, p);
        build_memory(b, p, cb->pool && i == cb->n - 1,
                     i == 0 && cb->field >= 0 ? p->batch : p->threads);
        long floats = conv_wino_floats(b);
        cb->wino_size = floats > cb->wino_size ? floats : cb->wino_size;
        hi = b->ho, wi = b->wo, ci = b->co, cis = b->cop;
    }
    cb->wino = take_floats(p, p->threads * cb->wino_size);
    build_output(s, p, cb);
    stage_sync_update(s, p);
    return 0;
}

/* ------------------------------------------------------------------ input of a block */

static void read_image(const struct conv_bn *cb, const struct member *m, int n, float *xp)
{
    const struct block *b = &cb->block[0];
    const uint8_t *from = member_row(m, cb->field, n);
    const int c = b->cis;

    for (int h = 0; h < b->hi; h++) {
        float *to = xp + ((long)(h + b->ph) * b->wp + b->pw) * c;
        if (c == 1)
            for (int w = 0; w < b->wi; w++)
                *to++ = cb->lut[*from++];
        else
            for (int w = 0; w < b->wi; w++)
                for (int k = 0; k < c; k++)
                    *to++ = cb->lut[256 * k + *from++];
    }
}

/* The padded input of block i for sample n. `again`: it has been asked for in this step. */
static const float *block_input(const struct conv_bn *cb, int i, const struct stage *s,
                                const struct member *m, int n, bool again)
{
    const struct block *b = &cb->block[i];
    float *xp = b->xp + m->id * xp_size(b);
    const long row = (long)b->wp * b->cis, first = b->ph * row + (long)b->pw * b->cis;

    if (i > 0) {
        const struct block *before = b - 1;
        bn_relu(before, m, before->y + n * y_size(before), xp + first, row);
        return xp;
    }
    if (cb->field >= 0) {
        xp = b->xp + n * xp_size(b);
        if (!again)
            read_image(cb, m, n, xp);
        return xp;
    }
    const float *x = member_data(m, s->in[0]) + n * s->in[0]->size;
    if (b->hp == b->hi && b->wp == b->wi)
        return x;
    const long width = (long)b->wi * b->cis;
    for (int h = 0; h < b->hi; h++)
        memcpy(xp + first + h * row, x + h * width, (size_t)width * sizeof *x);
    return xp;
}

/* ------------------------------------------------------------------ forward */

static void ahead_forward(const struct conv_bn *cb, int i, const struct member *m, int n,
                          struct ahead *ahead)
{
    const struct block *b = &cb->block[i];

    ahead->n = 0;
    if (n + 1 >= m->n1)
        return;
    long tiles = conv_tiles_forward(b);
    if (i > 0)
        ahead_add(ahead, b[-1].y + (n + 1) * y_size(b - 1), y_size(b - 1), tiles);
    else if (cb->field >= 0)
        ahead_add(ahead, member_row(m, cb->field, n + 1), (long)b->hi * b->wi * b->ci / 4, tiles);
}

/* Copies (pixels, cs) to a tensor of fewer floats a pixel. */
static void narrow(float *to, int cp, const float *from, int cs, long pixels)
{
    for (long i = 0; i < pixels; i++)
        memcpy(to + i * cp, from + i * cs, (size_t)cp * sizeof *to);
}

static void put_output(struct stage *s, const struct conv_bn *cb, const struct member *m)
{
    const struct block *b = &cb->block[cb->n - 1];
    const long pixels = (long)cb->ho * cb->wo, size = pixels * cb->cs;

    for (int n = m->n0; n < m->n1; n++) {
        const float *y = b->y + n * y_size(b);
        if (cb->pool)
            pool_forward(b, m, y, cb->x + n * size, cb->ymax + n * size);
        else
            bn_relu(b, m, y, cb->x + n * size, (long)b->wo * b->cop);
        if (cb->x != s->out->data)
            narrow(s->out->data + n * s->out->size, s->out->cp, cb->x + n * size, cb->cs, pixels);
    }
}

static void forward(struct stage *s, struct member *m)
{
    const struct conv_bn *cb = s->own;
    float *wino = cb->wino + m->id * cb->wino_size;

    for (int i = 0; i < cb->n; i++) {
        const struct block *b = &cb->block[i];
        for (int n = m->n0; n < m->n1; n++) {
            struct ahead ahead;
            float *y = b->y + n * y_size(b);
            ahead_forward(cb, i, m, n, &ahead);
            conv_forward(b, block_input(cb, i, s, m, n, false), y, wino, &ahead);
            if (m->train)
                bn_sample(b, n, y);
        }
        bn_stats(b, m);
    }
    put_output(s, cb, m);
}

/* ------------------------------------------------------------------ backward */

static void last_sums(struct stage *s, const struct conv_bn *cb, const struct member *m)
{
    const struct block *b = &cb->block[cb->n - 1];
    const long pixels = (long)cb->ho * cb->wo, size = pixels * cb->cs;
    const int cp = s->out->cp;

    for (int n = m->n0; n < m->n1; n++) {
        float *gx = cb->gx + n * size;
        if (gx != s->out->grad + n * s->out->size)
            for (long i = 0; i < pixels; i++)
                memcpy(gx + i * cb->cs, s->out->grad + n * s->out->size + i * cp,
                       (size_t)cp * sizeof *gx);
        if (cb->pool)
            pool_sums(b, m, n, cb->x + n * size, cb->ymax + n * size, gx);
        else
            bn_mask_sums(b, m, n, gx, (long)b->wo * b->cop, b->d + n * y_size(b));
    }
}

/* The gradient of an input tensor, from (hi, wi, cip). */
static void put_input_grad(struct stage *s, const struct block *b, const struct member *m, int n,
                           const float *dx)
{
    struct tensor *in = s->in[0];
    float *g = member_grad(m, in) + n * in->size;
    const bool first = stage_grad_first(s, 0);

    dx += dx_first(b);
    for (int h = 0; h < b->hi; h++, dx += dx_row(b))
        for (int w = 0; w < b->wi; w++, g += in->cp)
            for (int c = 0; c < in->cp; c++)
                g[c] = first ? dx[w * b->cip + c] : g[c] + dx[w * b->cip + c];
}

static void ahead_backward(const struct conv_bn *cb, int i, const struct member *m, int n,
                           struct ahead *ahead)
{
    const struct block *b = &cb->block[i];

    long tiles = conv_tiles_backward(b), size = (long)cb->ho * cb->wo * cb->cs;

    ahead->n = 0;
    if (i > 0)  /* written when this sample is done */
        ahead_add(ahead, b[-1].d + n * y_size(b - 1), y_size(b - 1), tiles);
    if (n + 1 >= m->n1)
        return;
    ahead_add(ahead, b->y + (n + 1) * y_size(b), y_size(b), tiles);
    if (i > 0)
        ahead_add(ahead, b[-1].y + (n + 1) * y_size(b - 1), y_size(b - 1), tiles);
    if (b->d) {
        ahead_add(ahead, b->d + (n + 1) * y_size(b), y_size(b), tiles);
    } else {
        ahead_add(ahead, cb->x + (n + 1) * size, size, tiles);
        ahead_add(ahead, cb->ymax + (n + 1) * size, size, tiles);
        ahead_add(ahead, cb->gx + (n + 1) * size, size, tiles);
    }
}

static void backward_sample(struct stage *s, const struct conv_bn *cb, int i,
                            const struct member *m, int shard, int n, bool first)
{
    const struct block *b = &cb->block[i];
    float *e = b->e + m->id * e_size(b), *gb = b->gb + (long)shard * b->cop;
    float *dx = b->dx ? b->dxp + m->id * dx_size(b) : NULL;
    const float *y = b->y + n * y_size(b), *xp = block_input(cb, i, s, m, n, true);
    const long size = (long)cb->ho * cb->wo * cb->cs;
    struct ahead ahead;

    if (b->d)
        bn_dy(b, m, b->d + n * y_size(b), y, e, gb, first);
    else
        pool_dy(b, m, y, cb->x + n * size, cb->ymax + n * size, cb->gx + n * size, e, gb, first);
    ahead_backward(cb, i, m, n, &ahead);
    conv_dx_dw(b, xp, e, dx, b->gw + shard * b->gw_size, first, cb->wino + m->id * cb->wino_size,
               &ahead);
    if (i > 0)
        bn_mask_sums(b - 1, m, n, dx + dx_first(b), dx_row(b), b[-1].d + n * y_size(b - 1));
    else if (b->dx)
        put_input_grad(s, b, m, n, dx);
}

static void backward(struct stage *s, struct member *m)
{
    const struct conv_bn *cb = s->own;

    last_sums(s, cb, m);
    for (int i = cb->n - 1; i >= 0; i--) {
        bn_back(&cb->block[i], m);
        for (int k = m->s0; k < m->s1; k++) {
            int from = member_first(m, k), to = member_first(m, k + 1);
            for (int n = from; n < to; n++)
                backward_sample(s, cb, i, m, k, n, n == from);
        }
    }
}

/* ------------------------------------------------------------------ update */

/* Copies of the weights [t][ci][16 output channels from o on] for dx. */
static void derive_direct(const struct block *b, int t, int ci, int o, const float *w)
{
    if (!b->wt)
        return;
    const int panel = ci / PANEL * PANEL, width = panel_width(b->cip, panel);
    float *to = b->wt + (long)panel * b->kh * b->kw * b->cop +
                ((long)t * b->cop + o) * width + ci - panel;

    for (int i = 0; i < 16; i++)
        to[i * width] = w[i];
}

static void derive_wino(const struct block *b, int ci, int o)
{
    const int panel = o / PANEL * PANEL, width = panel_width(b->cop, panel);
    const int cpanel = ci / PANEL * PANEL, cwidth = panel_width(b->cis, cpanel);
    const float *w = b->w->w + (long)panel * 9 * b->cis + (long)ci * width + o - panel;
    float *u = b->u + (long)panel * 16 * b->cis + (long)ci * width + o - panel;
    v16 t[16];

    wino_w(w, (long)b->cis * width, t);
    for (int p = 0; p < 16; p++) {
        ALIGNED float f[16];
        v_store(u + (long)p * b->cis * width, t[p]);
        if (!b->ut)
            continue;
        float *to = b->ut + (long)cpanel * 16 * b->cop + ((long)p * b->cop + o) * cwidth +
                    ci - cpanel;
        v_store(f, t[p]);
        for (int i = 0; i < 16; i++)
            to[i * cwidth] = f[i];
    }
}

INLINE void load_shards(const struct block *b, const struct member *m, long at, v16 *sum)
{
    sum[0] = v_load(b->gw + at);
    for (int s = 1; s < m->plan->shards; s++)
        sum[s] = v_load(b->gw + s * b->gw_size + at);
}

/* Vector k of a panel (k counts floats): all nine taps of one input and 16 output channels. */
static void update_wino(const struct block *b, const struct member *m, const struct apply *a,
                        unsigned filled, long panel, int width, long k)
{
    const long plane = (long)b->cis * width;
    v16 sum[SHARDS_MAX], u[16], w[9];

    for (int p = 0; p < 16; p++) {
        const long at = panel * 16 * b->cis + p * plane + k;
        load_shards(b, m, at, sum);
        if (m->plan->shared)
            apply_tree(a, at, sum, m->plan->shards, filled);
        else
            u[p] = shard_tree(sum, m->plan->shards, filled);
    }
    if (m->plan->shared)
        return;
    wino_dw(u, w);
    for (int t = 0; t < 9; t++)
        apply16(a, panel * 9 * b->cis + t * plane + k, w[t]);
}

static void update_direct(const struct block *b, const struct member *m, const struct apply *a,
                          unsigned filled, long at)
{
    v16 sum[SHARDS_MAX];

    load_shards(b, m, at, sum);
    apply_tree(a, at, sum, m->plan->shards, filled);
}

/* This member's part of the weights, a vector (tap, ci, 16 co) at a time; Winograd's taps go
 * together. Updates them (a == NULL: does not) and renews their copies. A shared plan does first
 * the one and then, with a == NULL, the other. */
static void each_vector(const struct block *b, const struct member *m, const struct apply *a)
{
    const unsigned filled = member_filled(m);
    const bool renew = !a || !m->plan->shared;
    const long taps = b->wino ? 1 : (long)b->kh * b->kw, rows = taps * b->cis;
    long from, to;

    member_part(m, rows * b->cop / 16, 1, &from, &to);
    for (long i = from; i < to; i++) {
        /* Vectors of a row lie together, rows of a panel follow each other, then panels. */
        const long panel = i * 16 / (rows * PANEL) * PANEL;
        const int width = panel_width(b->cop, (int)panel);
        const long k = i * 16 - panel * rows, row = k / width, o = panel + k % width;
        if (b->wino) {
            if (a)
                update_wino(b, m, a, filled, panel, width, k);
            if (renew)
                derive_wino(b, (int)row, (int)o);
        } else {
            if (a)
                update_direct(b, m, a, filled, i * 16);
            if (renew)
                derive_direct(b, (int)(row / b->cis), (int)(row % b->cis), (int)o,
                              b->w->w + i * 16);
        }
    }
}

static void update(struct stage *s, struct member *m)
{
    const struct conv_bn *cb = s->own;

    for (int i = 0; i < cb->n; i++) {
        const struct block *b = &cb->block[i];
        const struct apply w = apply_begin(m, b->w);
        const struct apply gamma = apply_begin(m, b->gamma), beta = apply_begin(m, b->beta);
        long from, to;

        each_vector(b, m, &w);
        member_part(m, b->cop, 16, &from, &to);
        if (b->b)
            apply_shards(m, b->b, b->gb, b->cop, member_filled(m), from, to);
        for (long j = from; j < to; j += 16) {
            apply16(&gamma, j, v_load(block_coef(b, m, BN_DGAMMA) + j));
            apply16(&beta, j, v_load(block_coef(b, m, BN_DBETA) + j));
        }
    }
}

/* Winograd's weight gradient from the sums over the batch, this member's part of input channels. */
static void transform_sums(const struct block *b, struct member *m)
{
    long from, to;

    member_part(m, b->w->grad_size, 16, &from, &to);
    share_copy(m->plan, b->w, from, to, b->gw + from);
    member_barrier(m);
    member_part(m, (long)b->cis * b->cop, 16, &from, &to);
    for (long i = from; i < to; i += 16) {
        const long panel = i / ((long)b->cis * PANEL) * PANEL, k = i - panel * b->cis;
        const long plane = (long)b->cis * panel_width(b->cop, (int)panel);
        v16 u[16], w[9];
        for (int p = 0; p < 16; p++)
            u[p] = v_load(b->gw + panel * 16 * b->cis + p * plane + k);
        wino_dw(u, w);
        for (int t = 0; t < 9; t++)
            v_store(b->w->g + panel * 9 * b->cis + t * plane + k, w[t]);
    }
}

static void reduced(struct stage *s, struct member *m)
{
    const struct conv_bn *cb = s->own;

    for (int i = 0; i < cb->n; i++) {
        bn_keep(&cb->block[i], m);
        if (cb->block[i].wino)
            transform_sums(&cb->block[i], m);
    }
}

static void derive(struct stage *s, struct member *m)
{
    const struct conv_bn *cb = s->own;

    for (int i = 0; i < cb->n; i++)
        each_vector(&cb->block[i], m, NULL);
}

const struct stage_ops ISA_FN(conv_bn_stage) = {
    .name = "conv-bn-relu",
    .match = match,
    .build = build,
    .run = { forward, backward, update },
    .derive = derive,
    .reduced = reduced,
};
