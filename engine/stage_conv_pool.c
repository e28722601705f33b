/* engine/stage_conv_pool.c - an image through blocks of convolution, relu and maxpool 2, as one stage
 *
 * For small images and few channels, where a step is a few microseconds: nothing but the pooled
 * activations leaves the registers, every member has its own copy of the weights and updates it
 * itself, so that the only meeting is the one before the gradients of all shards are added up.
 * engine/conv_pool_int.h has the layout and the order of sums.
 */
#include <math.h>

#include "engine/conv_pool_int.h"

/* ------------------------------------------------------------------ which graphs */

static bool is_next(const struct graph *g, int at, enum op op)
{
    return at < g->n && g->node[at].op == op && g->node[at].n_in == 1 &&
           g->node[at].in[0] == at - 1 && g->node[at - 1].uses == 1 && g->output != at - 1;
}

static bool all_equal(const int pair[2], int value)
{
    return pair[0] == value && pair[1] == value;
}

static bool fits_conv(const struct node *n, const struct node *in)
{
    int k = n->kernel[0];

    /* Windows are found by 16-bit offsets; a row of the first block is spread to twice its length. */
    return k >= 1 && k <= CONV_POOL_KERNEL && all_equal(n->kernel, k) && all_equal(n->stride, 1) &&
           all_equal(n->padding, 0) && all_equal(n->dilation, 1) && n->groups == 1 &&
           n->h % 2 == 0 && n->w % 2 == 0 && n->c <= 512 &&
           (long)in->h * (in->w + 16) * 2 < 65536 &&
           (in->op == OP_INPUT || (long)in->h * in->w * (tensor_pad(in->c) + 7) < 65536);
}

static bool fits_block(const struct graph *g, int at)
{
    if (!is_next(g, at, OP_CONV2D) || !is_next(g, at + 1, OP_RELU) ||
        !is_next(g, at + 2, OP_MAXPOOL))
        return false;
    const struct node *pool = &g->node[at + 2];
    return fits_conv(&g->node[at], &g->node[at - 1]) && all_equal(pool->kernel, 2) &&
           all_equal(pool->stride, 2) && all_equal(pool->padding, 0);
}

static int match(const struct plan *p, const struct graph *g, int at)
{
    const struct node *in = &g->node[at];
    int blocks = 0;

    if (in->op != OP_INPUT || p->field[in->field].type != DTYPE_U8 || in->h < 2 || in->w < 2 ||
        in->c > CONV_POOL_COLORS)
        return 0;
    while (blocks < CONV_POOL_BLOCKS && fits_block(g, at + 1 + 3 * blocks))
        blocks++;
    return blocks ? 1 + 3 * blocks : 0;
}

/* ------------------------------------------------------------------ memory */

static size_t put(size_t *end, size_t bytes)
{
    size_t at = *end;
    *end += (bytes + 63) / 64 * 64;
    return at;
}

static long at_first(const struct param *q, long i)
{
    long k = q->geom[0];        /* (o, c, ky) in rows of 8 */
    return i / k * 8 + i % k;
}

static long at_later(const struct param *q, long i)
{
    long c = q->geom[0], t = q->geom[1], cp = q->geom[2];
    return (i / (c * t) * t + i % t) * cp + i / t % c;
}

static void take_params(struct stage *s, struct plan *p, struct conv_block *b,
                        const struct node *node)
{
    const bool first = node == s->node + 1;
    const long dim[4] = { b->o, b->c, b->k, b->k };
    const long t = (long)b->k * b->k;
    const float bound = 1 / sqrtf((float)(b->c * t));

    b->weight = plan_param(p, node, "weight", 4, dim,
                           first ? (long)b->o * b->c * b->k * 8 : b->lanes * t * b->cp, true);
    b->weight->at = first ? at_first : at_later;
    if (first)
        b->weight->geom[0] = b->k;
    else
        b->weight->geom[0] = b->c, b->weight->geom[1] = t, b->weight->geom[2] = b->cp;
    b->weight->bound = bound;
    if (node->bias) {
        b->bias = plan_param(p, node, "bias", 1, dim, b->lanes, true);
        b->bias->bound = bound;
    }
}

static void set_block(struct conv_block *b, const struct node *conv, const struct node *in, int cp,
                      bool last)
{
    *b = (struct conv_block){ .k = conv->kernel[0], .h = in->h, .w = in->w, .c = in->c, .cp = cp,
                              .o = conv->c, .lanes = (conv->c + 15) / 16 * 16,
                              .ph = conv->h / 2, .pw = conv->w / 2 };
    b->positions = b->ph * b->pw;
    b->words = (b->positions + 15) / 16;
    b->op = tensor_pad(b->o);
    if (!last && b->op < 8)
        b->op = 8;
}

/* What a sample keeps of block i from the forward to the backward pass. */
static void lay_block(struct conv_pool *c, int i, bool train, size_t *end)
{
    struct conv_block *b = &c->block[i];

    if (i + 1 < c->n_blocks) {
        size_t bytes = (size_t)b->positions * b->op * sizeof(float);
        b->out = put(end, bytes);
        b->dout = train ? put(end, bytes) : 0;
    }
    if (train && i == 0) {
        b->at = put(end, (size_t)b->o * b->words * 16 * sizeof(uint16_t));
        b->live = put(end, (size_t)b->o * ((b->words + 3) & ~3) * sizeof(uint16_t));
    } else if (train) {
        b->at = put(end, (size_t)b->positions * b->lanes * sizeof(uint16_t));
        b->live = put(end, (size_t)b->words * b->lanes * sizeof(uint16_t));
        b->corner = put(end, (size_t)b->positions * b->lanes / 4 * sizeof(uint16_t));
    }
}

static void lay_image(struct conv_pool *c, bool train, size_t *end)
{
    struct conv_image *im = &c->image;
    const struct conv_block *b = &c->block[0];

    /* A block of 16 positions reads up to (k + 1) / 2 rows further; the last row's store may be 15
     * floats too long. Not a power of two: planes would fall on each other in the cache. */
    im->plane = (16L * b->words + (b->k + 1) / 2 * b->pw + 31) / 16 * 16;
    if (im->plane % 64 == 0)
        im->plane += 16;
    im->row = ((im->w - b->k) / 8 + 1) * 16;
    im->planes = put(end, (size_t)im->c * 2 * (b->k + 1) * im->plane * sizeof(float));
    im->rows = train ? put(end, ((size_t)im->c * im->h * im->row) * sizeof(float)) : 0;
}

static void take_memory(struct conv_pool *c, struct plan *p)
{
    size_t end = 0;
    long floats = 0;

    lay_image(c, p->train, &end);
    for (int i = 0; i < c->n_blocks; i++) {
        struct conv_block *b = &c->block[i];
        lay_block(c, i, p->train, &end);
        b->packed = floats;
        floats += i ? (long)b->lanes * b->k * b->k * b->c + 16 : 0;
        b->grad_weight = c->grad_floats;
        c->grad_floats += b->weight->size + 16;
        b->grad_bias = c->grad_floats;
        c->grad_floats += b->lanes + 16;
    }
    c->by_sample = p->train;
    /* Gaps, since a core's prefetcher runs ahead into what another writes. */
    c->sample_bytes = (end + 2048) / 128 * 128;
    if (c->sample_bytes % 4096 == 0)
        c->sample_bytes += 128;
    c->sample = plan_take(p, c->sample_bytes * (size_t)(c->by_sample ? p->batch : p->threads));
    c->flat = floats;
    c->member_floats = (floats + (long)c->image.h * c->image.w + 64 + 1024) / 32 * 32;
    c->member = plan_take(p, (size_t)c->member_floats * (size_t)p->threads * sizeof(float));
    if (!p->train)
        return;
    c->grad_floats = (c->grad_floats + 512) / 32 * 32;
    c->grad = plan_take(p, (size_t)c->grad_floats * 2 * (size_t)p->shards * sizeof(float));
    c->filled = plan_take(p, 128 + sizeof *c->filled * 2 * (size_t)p->shards);
    c->filled = (struct conv_filled *)(((uintptr_t)c->filled + 127) / 128 * 128);
}

/* Where the kernel window of each pooled position's first corner begins in the image's rows. */
static void set_base(struct conv_pool *c, struct plan *p)
{
    struct conv_block *b = &c->block[0];

    b->row = (int)c->image.row;
    b->base = plan_take(p, (size_t)b->words * 16 * sizeof *b->base);
    for (int i = 0; i < b->positions; i++) {
        int y = 2 * (i / b->pw), x = 2 * (i % b->pw);
        b->base[i] = (uint16_t)(y * b->row + x / 8 * 16 + x % 8);
    }
}

static int build(struct stage *s, struct plan *p, struct err *err)
{
    struct conv_pool *c = plan_alloc(p, struct conv_pool);
    const struct node *in = s->node;
    const struct field *f = &p->field[in->field];
    int cp = 1;

    (void)err;
    s->own = c;
    c->n_blocks = s->n_nodes / 3;
    c->image = (struct conv_image){ .field = in->field, .h = in->h, .w = in->w, .c = in->c };
    memcpy(c->image.mean, f->mean, sizeof c->image.mean);
    memcpy(c->image.std, f->std, sizeof c->image.std);
    for (int i = 0; i < c->n_blocks; i++) {
        struct conv_block *b = &c->block[i];
        const struct node *conv = s->node + 1 + 3 * i;
        set_block(b, conv, conv - 1, cp, i + 1 == c->n_blocks);
        take_params(s, p, b, conv);
        cp = b->op;
    }
    take_memory(c, p);
    set_base(c, p);
    const struct conv_block *last = &c->block[c->n_blocks - 1];
    s->out = plan_tensor(p, last->ph, last->pw, last->o);
    /* One sample on one thread: who makes it has nothing to wait for, nor anybody to share with. */
    if (c->n_blocks > 1 && p->batch == 1 && p->threads == 1 && !p->train &&
        ISA_FN(conv_dots_fit)(last))
        s->out->dots = plan_alloc(p, struct dots);
    s->sync[PHASE_UPDATE] = SYNC_BEFORE;
    return 0;
}

/* ------------------------------------------------------------------ runs */

static const float no_bias[512];

static const float *bias_of(const struct member *m, const struct conv_block *b)
{
    return b->bias ? member_w(m, b->bias) : no_bias;
}

/* The same place in the next batch, when the stretch goes on. */
static const uint8_t *next_image(const struct conv_pool *c, const struct member *m, int i)
{
    long batch = m->plan->batch;
    return m->pos + batch + i < m->plan->n_order ? member_row(m, c->image.field, (int)batch + i)
                                                 : NULL;
}

static void forward_sample(struct stage *s, struct member *m, int i)
{
    const struct conv_pool *c = s->own;
    char *own = c->sample + c->sample_bytes * (size_t)(c->by_sample ? i : m->id);
    float *scratch = c->member + c->member_floats * m->id;
    const float *planes = (float *)(own + c->image.planes), *in = NULL;

    ISA_FN(conv_image_read)(&c->image, &c->block[0], member_row(m, c->image.field, i),
                            scratch + c->flat, (float *)(own + c->image.planes),
                            m->train ? (float *)(own + c->image.rows) : NULL);
    for (int j = 0; j < c->n_blocks; j++) {
        const struct conv_block *b = &c->block[j];
        float *out =
            j + 1 < c->n_blocks ? (float *)(own + b->out) : s->out->data + s->out->size * i;
        uint16_t *at = m->train ? (uint16_t *)(own + b->at) : NULL;
        uint16_t *live = (uint16_t *)(own + b->live);
        if (j == 0)
            ISA_FN(conv_first_forward)(b, planes, c->image.plane, member_w(m, b->weight),
                                       bias_of(m, b), out, at, live, next_image(c, m, i));
        else
            ISA_FN(conv_later_forward)(b, in, scratch + b->packed, bias_of(m, b), out, at, live,
                                       (uint16_t *)(own + b->corner),
                                       j + 1 == c->n_blocks ? s->out->dots : NULL);
        in = out;
    }
}

static void forward(struct stage *s, struct member *m)
{
    for (int i = m->n0; i < m->n1; i++)
        forward_sample(s, m, i);
}

static void backward_sample(struct stage *s, struct member *m, int i, struct conv_sum sum)
{
    const struct conv_pool *c = s->own;
    char *own = c->sample + c->sample_bytes * (size_t)i;
    const float *dout = s->out->grad + s->out->size * i;

    for (int j = c->n_blocks - 1; j >= 0; j--) {
        const struct conv_block *b = &c->block[j];
        const uint16_t *at = (uint16_t *)(own + b->at), *live = (uint16_t *)(own + b->live);
        if (j == 0) {
            ISA_FN(conv_first_backward)(b, (float *)(own + c->image.rows), dout, at, live, sum);
            return;
        }
        const struct conv_block *before = b - 1;
        ISA_FN(conv_later_backward)(b, (float *)(own + before->out), member_w(m, b->weight), dout,
                                    at, live, (uint16_t *)(own + b->corner),
                                    (float *)(own + before->dout), sum);
        dout = (float *)(own + before->dout);
    }
}

/* A shard of ours whose left sibling is ours too is added to it on the spot: the tree is the same,
 * and half as much has to travel to the other members. */
static void backward(struct stage *s, struct member *m)
{
    const struct conv_pool *c = s->own;
    const int shards = m->plan->shards;
    const long half = (long)(m->step & 1) * shards;
    float *grad = c->grad + half * c->grad_floats;
    struct conv_filled *filled = c->filled + half;

    for (int k = m->s0; k < m->s1; k++) {
        int from = member_first(m, k), to = member_first(m, k + 1);
        bool join = k % 2 && k > m->s0 && filled[k - 1].yes;
        float *own = grad + k * c->grad_floats, *left = own - c->grad_floats;
        for (int i = from; i < to; i++) {
            bool last = i + 1 == to;
            backward_sample(s, m, i, (struct conv_sum){
                .from = i > from ? own : NULL,
                .plus = last && join ? left : NULL,
                .out = last && join ? left : own,
            });
        }
        filled[k].yes = from < to && !join;
    }
}

/* A shared plan leaves one gradient, so members take a part each. */
static void leave(const struct member *m, const struct param *q, const float *grad, long stride,
                  unsigned filled, long n)
{
    struct apply a = apply_begin(m, q);
    long from, to;

    a.discard = m->plan->n_roots == 0;
    member_part(m, n, 16, &from, &to);
    for (long i = from; i < to; i += 16) {
        v16 sum[SHARDS_MAX] = { v_zero() };
        for (int s = m->plan->from; s < m->plan->to; s++)
            sum[s] = v_load(grad + s * stride + i);
        apply_tree(&a, i, sum, m->plan->shards, filled);
    }
}

/* The sums over the filled shards of [0, n), by the tree, to the optimizer. */
static void apply(const struct member *m, const struct param *q, const float *grad, long stride,
                  unsigned filled, long n)
{
    if (m->plan->shared) {
        leave(m, q, grad, stride, filled, n);
        return;
    }
    const struct apply a = apply_begin(m, q);
    const int shards = m->plan->shards, one = __builtin_ctz(filled);
    const unsigned rest = filled & (filled - 1);

    if (!rest) {
        for (long i = 0; i < n; i += 16)
            apply16(&a, i, v_load(grad + one * stride + i));
    } else if (!(rest & (rest - 1))) {
        const float *other = grad + __builtin_ctz(rest) * stride;
        for (long i = 0; i < n; i += 16)
            apply16(&a, i, v_add(v_load(grad + one * stride + i), v_load(other + i)));
    } else {
        for (long i = 0; i < n; i += 16) {
            v16 sum[SHARDS_MAX];
            for (int s = 0; s < shards; s++)
                sum[s] = v_load(grad + s * stride + i);
            apply16(&a, i, shard_tree(sum, shards, filled));
        }
    }
}

static void derive(struct stage *s, struct member *m)
{
    const struct conv_pool *c = s->own;

    for (int i = 1; i < c->n_blocks; i++) {
        const struct conv_block *b = &c->block[i];
        ISA_FN(conv_pack)
        (b, member_w(m, b->weight), c->member + c->member_floats * m->id + b->packed);
    }
}

static void update(struct stage *s, struct member *m)
{
    const struct conv_pool *c = s->own;
    const int shards = m->plan->shards;
    const long half = (long)(m->step & 1) * shards;
    const float *grad = c->grad + half * c->grad_floats;
    unsigned filled = 0;

    for (int k = m->plan->from; k < m->plan->to; k++)
        filled |= (unsigned)c->filled[half + k].yes << k;
    for (int i = 0; i < c->n_blocks; i++) {
        const struct conv_block *b = &c->block[i];
        long rows = i ? (long)b->o * b->k * b->k * b->cp : b->weight->size;
        apply(m, b->weight, grad + b->grad_weight, c->grad_floats, filled, rows);
        if (b->bias)
            apply(m, b->bias, grad + b->grad_bias, c->grad_floats, filled, b->lanes);
    }
    if (!m->plan->shared)
        derive(s, m);
}

const struct stage_ops ISA_FN(conv_pool_stage) = {
    .name = "conv_pool",
    .match = match,
    .build = build,
    .run = { forward, backward, update },
    .derive = derive,
};
