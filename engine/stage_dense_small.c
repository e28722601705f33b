/* engine/stage_dense_small.c - linear (+ relu) layers in a row, for batches below 16
 *
 * A batch of four is too little to share out by sample, so a layer is shared out by weight, in parts
 * fixed by its shape. The cut alternates: outputs of one layer, inputs of the next. What lies between
 * them never leaves its part's owner, and two layers need one exchange: the partial sums of the
 * second. Weights of a part belong to one member for good. Small layers are replicated: every member
 * computes all of them on its own copy, which costs less than meeting.
 *
 * Barriers inside a phase: one for each pair of cut layers, after its partial sums.
 */
#include <math.h>

#include "engine/dense_small_int.h"

enum {
    LAYERS_MAX = 16,
    PARTS_MAX = 8,
    PART_ROWS = 32, /* outputs that a part has at least: below, its sums cost too much */
    REPLICATED_MAX = 4096, /* weights of a layer that every member may compute */
    /* Between what two members write: a core's prefetcher runs ahead, into the other's lines. */
    GAP_ROWS = 16,
    GAP = 256,
};

enum cut { CUT_NONE, CUT_OUTPUTS, CUT_INPUTS };

struct layer {
    enum cut cut;
    int inputs, outputs;
    bool relu;
    struct param *w, *b;        /* b: NULL without a bias */
    long ld;                    /* floats from a row of w to the next */
    int rows, cols;             /* of w in one part: a multiple of 4, of 16 */
    long step;                  /* floats from a part of w to the next */
    int parts;
    long width; /* of an activation in a.. or z..: outputs (of a part) rounded up to 16 */
    long part;                  /* floats from a part's activations to the next's */
    float *act, *dact;          /* CUT_OUTPUTS: (parts, n, width); else (members, n, width) */
    float *partial;             /* CUT_INPUTS: (parts, n, width), sums to be added up */
    float *dpartial;            /* CUT_OUTPUTS: (parts, n, cols), the same of the input gradient */
    long dpart;
};

struct dense {
    int n_layers;
    struct layer layer[LAYERS_MAX];
    float *x; /* (members, n, cols): the input, where it must be padded; or NULL */
    float *dx; /* (members, n, cols): its gradient, where the first layer is replicated */
    long x_member;
    struct dots *dots;          /* the first layer's, begun by who makes the input; or NULL */
};

/* ------------------------------------------------------------------ which graphs */

static bool is_next(const struct graph *g, int at, enum op op)
{
    return at < g->n && g->node[at].op == op && g->node[at].n_in == 1 &&
           g->node[at].in[0] == at - 1 && g->node[at - 1].uses == 1 && g->output != at - 1;
}

static int match(const struct plan *p, const struct graph *g, int at)
{
    const struct node *node = &g->node[at];
    int n = 0, layers = 0;

    if (p->batch > DENSE_BATCH || node->op != OP_LINEAR || !p->value[node->in[0]] ||
        p->value[node->in[0]]->replica)
        return 0;
    while (layers < LAYERS_MAX && (n == 0 || is_next(g, at + n, OP_LINEAR))) {
        n++;
        layers++;
        if (is_next(g, at + n, OP_RELU))
            n++;
    }
    return n;
}

/* ------------------------------------------------------------------ memory */

static long round_up(long n, long unit)
{
    return (n + unit - 1) / unit * unit;
}

static float *take_floats(struct plan *p, long n)
{
    return plan_take(p, (size_t)n * sizeof(float));
}

/* Logical (o, i) to where it is stored. Inputs of a first layer are channels last while PyTorch's
 * order is channels first; those of a layer cut by inputs lie part by part. */
static long at_weight(const struct param *q, long k)
{
    /* inputs, h * w, cp, ld, inputs of a part (0: all), floats of a part, outputs of a part */
    const long *g = q->geom;
    long o = k / g[0], i = k % g[0];

    if (g[4])
        return i / g[4] * g[5] + o * g[3] + i % g[4];
    return o / g[6] * g[5] + o % g[6] * g[3] + i % g[1] * g[2] + i / g[1];
}

static long at_bias(const struct param *q, long o)
{
    return o / q->geom[0] * q->geom[1] + o % q->geom[0];
}

/* How many parts a layer of this many outputs is cut in: a power of two. */
static int count_parts(int outputs)
{
    int parts = 1;

    while (parts < PARTS_MAX && outputs >= 2 * parts * PART_ROWS)
        parts *= 2;
    return parts;
}

/* Decides the cut of layer i and its shape; `cols` is the stored width of a first layer's input. */
static void set_shape(struct dense *d, int i, long cols)
{
    struct layer *l = &d->layer[i], *before = i ? l - 1 : NULL;
    int parts = count_parts(l->outputs);

    l->parts = 1;
    l->rows = (int)round_up(l->outputs, 4);
    l->cols = (int)(before ? before->width : round_up(cols, 16));
    if (before && before->cut == CUT_OUTPUTS) {
        l->cut = CUT_INPUTS;
        l->parts = before->parts;
    } else if (parts > 1 && (long)l->inputs * l->outputs > REPLICATED_MAX) {
        l->cut = CUT_OUTPUTS;
        l->parts = parts;
        l->rows = (int)round_up((l->outputs + parts - 1) / parts, 4);
    }
    l->width = round_up(l->cut == CUT_OUTPUTS ? l->rows : l->outputs, 16);
    /* One vector more than needed: rows a power of two apart fall on each other in the cache. */
    l->ld = l->cols + 16;
    l->step = (l->rows + (l->parts > 1 ? GAP_ROWS : 0)) * l->ld;
}

static void take_params(struct layer *l, struct plan *p, const struct node *node,
                        const struct tensor *in)
{
    const bool replicated = l->cut == CUT_NONE;
    const float bound = 1 / sqrtf((float)l->inputs);
    const long dim[2] = { l->outputs, l->inputs };

    l->w = plan_param(p, node, "weight", 2, dim, l->parts * l->step, replicated);
    l->w->at = at_weight;
    l->w->init = INIT_UNIFORM;
    l->w->bound = bound;
    long geom[7] = { l->inputs, 1, 1, l->ld, 0, l->step, l->rows };
    if (in) {
        geom[1] = (long)in->h * in->w;
        geom[2] = in->cp;
    } else if (l->cut == CUT_INPUTS) {
        geom[4] = l[-1].rows;
    }
    memcpy(l->w->geom, geom, sizeof geom);
    if (!node->bias)
        return;
    l->b =
        plan_param(p, node, "bias", 1, dim, l->cut == CUT_OUTPUTS ? l->parts * l->width : l->width,
                   l->cut != CUT_OUTPUTS);
    l->b->init = INIT_UNIFORM;
    l->b->bound = bound;
    if (l->cut == CUT_OUTPUTS) {
        l->b->at = at_bias;
        l->b->geom[0] = l->rows;
        l->b->geom[1] = l->width;
    }
}

static void take_memory(struct layer *l, struct plan *p)
{
    const long n = p->batch;
    const int copies = l->cut == CUT_OUTPUTS ? l->parts : p->threads;

    l->part = n * l->width + GAP;
    l->dpart = n * l->cols + GAP;
    l->act = take_floats(p, l->part * copies);
    l->dact = p->train ? take_floats(p, l->part * copies) : NULL;
    if (l->cut == CUT_INPUTS)
        l->partial = take_floats(p, l->part * l->parts);
    if (l->cut == CUT_OUTPUTS && p->train)
        l->dpartial = take_floats(p, l->dpart * l->parts);
}

/* A last layer cut by outputs leaves its rows in one shared tensor; any other, a copy in each
 * member's replica. */
static void take_output(struct stage *s, struct plan *p, const struct layer *last)
{
    s->out = plan_tensor(p, 1, 1, last->outputs);
    if (last->cut == CUT_OUTPUTS) {
        s->sync[PHASE_FORWARD] |= SYNC_AFTER;
        s->sync[PHASE_BACKWARD] |= SYNC_BEFORE;
        return;
    }
    s->out->replica = s->out->size * p->batch + GAP;
    s->out->data = take_floats(p, s->out->replica * p->threads);
    if (s->out->grad)
        s->out->grad = take_floats(p, s->out->replica * p->threads);
}

/* All rows of the first layer, part by part, if nobody else has asked. */
static void ask_dots(struct dense *d, struct plan *p, struct dots *dots)
{
    const struct layer *l = &d->layer[0];
    const int rows = l->parts * l->rows;
    const float **row = plan_take(p, (size_t)(rows) * sizeof *row);

    for (int o = 0; o < rows; o++)
        row[o] = l->w->w + o / l->rows * l->step + o % l->rows * l->ld;
    *dots = (struct dots){ .rows = rows, .row = row, .sum = take_floats(p, 16L * rows) };
    d->dots = dots;
}

static int build(struct stage *s, struct plan *p, struct err *err)
{
    struct dense *d = plan_alloc(p, struct dense);
    const struct tensor *in = s->in[0];

    (void)err;
    s->own = d;
    for (int i = 0; i < s->n_nodes; i++) {
        const struct node *node = s->node + i;
        if (node->op == OP_RELU) {
            d->layer[d->n_layers - 1].relu = true;
            continue;
        }
        struct layer *l = &d->layer[d->n_layers];
        l->inputs = d->n_layers ? l[-1].outputs : in->h * in->w * in->c;
        l->outputs = node->c;
        set_shape(d, d->n_layers, in->size);
        take_params(l, p, node, d->n_layers ? NULL : in);
        take_memory(l, p);
        d->n_layers++;
    }
    const struct layer *first = &d->layer[0];
    d->x_member = (long)p->batch * first->cols + GAP;
    if (in->size % 16)
        d->x = take_floats(p, d->x_member * p->threads);
    if (in->grad && first->cut == CUT_NONE)
        d->dx = take_floats(p, d->x_member * p->threads);
    /* Everybody's samples are read, up to the last barrier inside the phase; where there is none
     * before they may be written again, one must follow. */
    s->sync[PHASE_FORWARD] = SYNC_BEFORE;
    if (first->cut == CUT_NONE) {
        s->sync[PHASE_FORWARD] |= SYNC_AFTER;
        s->sync[PHASE_BACKWARD] |= SYNC_AFTER;
    }
    take_output(s, p, &d->layer[d->n_layers - 1]);
    if (in->dots && !in->dots->rows)
        ask_dots(d, p, in->dots);
    return 0;
}

/* ------------------------------------------------------------------ forward */

static float *own_act(const struct layer *l, const struct member *m)
{
    return l->act + l->part * m->id;
}

static float *own_dact(const struct layer *l, const struct member *m)
{
    return l->dact + l->part * m->id;
}

/* a = relu(sum of the partial sums, in order, + bias) */
INLINE void finish(const float *z, long part, int parts, const float *bias, bool relu, long width,
                   int n, float *a)
{
    for (int b = 0; b < n; b++)
        for (long i = b * width, j = 0; j < width; i += 16, j += 16) {
            v16 v = v_load(z + i);
            for (int k = 1; k < parts; k++)
                v = v_add(v, v_load(z + k * part + i));
            if (bias)
                v = v_add(v, v_load(bias + j));
            v_store(a + i, relu ? v_relu(v) : v);
        }
}

/* The input as rows of cols floats. */
static const float *input_rows(const struct stage *s, const struct member *m, long *out_stride)
{
    const struct dense *d = s->own;
    const struct tensor *in = s->in[0];

    if (!d->x) {
        *out_stride = in->size;
        return in->data;
    }
    float *x = d->x + d->x_member * m->id;
    *out_stride = d->layer[0].cols;
    for (int b = 0; b < m->n; b++)
        memcpy(x + b * *out_stride, in->data + b * in->size, (size_t)in->size * sizeof *x);
    return x;
}

static struct dense_rows part_rows(const struct layer *l, const struct member *m, int part)
{
    return (struct dense_rows){ member_w(m, l->w) + part * l->step, l->ld, l->rows,
                                l->cols };
}

/* z = w . x of a part of layer i. */
static void multiply(const struct dense *d, const struct member *m, int i, int part, const float *x,
                     long xs, float *z)
{
    const struct layer *l = &d->layer[i];
    const struct dense_rows w = part_rows(l, m, part);

    if (i == 0 && d->dots)
        ISA_FN(dense_finish)(w, x, d->dots->sum + 16L * part * l->rows, (int)d->dots->done, z);
    else
        ISA_FN(dense_forward)(w, x, xs, z, l->width, m->n);
}

/* A layer cut by outputs and, for the same part, the next one. */
static void forward_part(const struct dense *d, const struct member *m, int i, int part,
                         const float *x, long xs)
{
    const struct layer *l = &d->layer[i], *next = i + 1 < d->n_layers ? l + 1 : NULL;
    float *a = l->act + part * l->part;

    multiply(d, m, i, part, x, xs, a);
    finish(a, 0, 1, l->b ? l->b->w + part * l->width : NULL, l->relu, l->width, m->n, a);
    if (next)
        multiply(d, m, i + 1, part, a, l->width, next->partial + part * next->part);
}

/* A part's rows of the last layer to the shared output. */
static void put_part(const struct stage *s, const struct member *m, const struct layer *l, int part)
{
    const float *a = l->act + part * l->part;
    int first = part * l->rows, count = l->outputs - first < l->rows ? l->outputs - first : l->rows;

    for (int b = 0; b < m->n && count > 0; b++)
        memcpy(s->out->data + b * s->out->size + first, a + b * l->width,
               (size_t)count * sizeof *a);
}

static void put_all(const struct stage *s, const struct member *m, const struct layer *l)
{
    float *out = member_data(m, s->out);

    for (int b = 0; b < m->n; b++)
        memcpy(out + b * s->out->size, own_act(l, m) + b * l->width,
               (size_t)s->out->size * sizeof *out);
}

static void forward(struct stage *s, struct member *m)
{
    const struct dense *d = s->own;
    const struct layer *last = &d->layer[d->n_layers - 1];
    long xs, from, to;
    const float *x = input_rows(s, m, &xs);

    for (int i = 0; i < d->n_layers; i++) {
        const struct layer *l = &d->layer[i];
        if (l->cut == CUT_NONE) {
            multiply(d, m, i, 0, x, xs, own_act(l, m));
            finish(own_act(l, m), 0, 1, l->b ? member_w(m, l->b) : NULL, l->relu, l->width, m->n,
                   own_act(l, m));
        } else {
            member_part(m, l->parts, 1, &from, &to);
            for (long part = from; part < to; part++)
                forward_part(d, m, i, (int)part, x, xs);
            if (l == last) {
                for (long part = from; part < to; part++)
                    put_part(s, m, l, (int)part);
                return;
            }
            member_barrier(m);
            l = &d->layer[++i];
            finish(l->partial, l->part, l->parts, l->b ? member_w(m, l->b) : NULL, l->relu,
                   l->width, m->n, own_act(l, m));
        }
        x = own_act(l, m);
        xs = l->width;
    }
    put_all(s, m, last);
}

/* ------------------------------------------------------------------ backward and update */

/* d = 0 where the activation is not positive. */
INLINE void relu_back(float *d, const float *a, long count)
{
    for (long i = 0; i < count; i += 16)
        v_store(d + i, v_sel_gt(v_load(a + i), v_zero(), v_load(d + i), v_zero()));
}

/* The gradient of the last layer's output, from the columns [first, first + count) of the tensor. */
static void take_grad(const struct stage *s, const struct member *m, const struct layer *l,
                      long first, long count, const float *act, float *d)
{
    const float *from = member_grad(m, s->out) + first;

    for (int b = 0; b < m->n && count > 0; b++)
        memcpy(d + b * l->width, from + b * s->out->size, (size_t)count * sizeof *d);
    if (l->relu)
        relu_back(d, act, m->n * l->width);
}

/* dst = the sum of the parts of an input gradient, in order. */
INLINE void add_parts(const float *z, long part, int parts, long count, float *dst)
{
    for (long i = 0; i < count; i += 16) {
        v16 v = v_load(z + i);
        for (int k = 1; k < parts; k++)
            v = v_add(v, v_load(z + k * part + i));
        v_store(dst + i, v);
    }
}

/* Own samples of the stage's input gradient, from `parts` partial sums. */
static void put_input_grad(const struct stage *s, const struct member *m, const float *z, long part,
                           int parts)
{
    const struct dense *d = s->own;
    const struct tensor *in = s->in[0];
    const long cols = d->layer[0].cols;
    const bool set = stage_grad_first(s, 0);

    for (int b = m->n0; b < m->n1; b++)
        for (long i = 0; i < in->size; i += 16) {
            const float *from = z + b * cols + i;
            float *to = in->grad + b * in->size + i;
            int n = (int)(in->size - i < 16 ? in->size - i : 16);
            v16 v = v_load(from);
            for (int k = 1; k < parts; k++)
                v = v_add(v, v_load(from + k * part));
            if (!set)
                v = v_add(n < 16 ? v_load_n(to, n) : v_load(to), v);
            if (n < 16)
                v_store_n(to, v, n);
            else
                v_store(to, v);
        }
}

static struct dense_back back_of(const struct layer *l, const struct member *m,
                                 const struct apply *a, int part)
{
    return (struct dense_back){ .apply = a, .from = part * l->step, .ld = l->ld,
                                .cols = l->cols, .m = m };
}

static void back_bias(const struct layer *l, const struct member *m, long from, const float *d)
{
    if (!l->b)
        return;
    const struct apply a = apply_begin(m, l->b);
    ISA_FN(dense_bias)(&a, from, l->width, d, l->width, m);
}

/* A replicated layer: gradient dact of its output to that of its input (dx NULL: not wanted). */
static void back_whole(const struct layer *l, const struct member *m, const float *x, long xs,
                       float *dx, long dxs)
{
    const struct apply a = apply_begin(m, l->w);
    struct dense_back k = back_of(l, m, &a, 0);

    k.rows = l->outputs;
    k.x = x, k.xs = xs;
    k.d = own_dact(l, m), k.ds = l->width;
    k.dx = dx, k.dxs = dxs;
    back_bias(l, m, 0, k.d);
    ISA_FN(dense_backward)(&k);
}

/* One part of layer i, cut by outputs, after the same part of the next layer. */
static void back_part(const struct dense *d, const struct member *m, int i, int part,
                      const float *x, long xs, bool want_dx)
{
    const struct layer *l = &d->layer[i], *next = i + 1 < d->n_layers ? l + 1 : NULL;
    float *act = l->act + part * l->part, *dact = l->dact + part * l->part;
    const int rows = l->outputs - part * l->rows;

    if (next) {
        const struct apply a = apply_begin(m, next->w);
        struct dense_back k = back_of(next, m, &a, part);
        k.rows = next->outputs;
        k.x = act, k.xs = l->width;
        k.d = own_dact(next, m), k.ds = next->width;
        k.dx = dact, k.dxs = l->width;
        ISA_FN(dense_backward)(&k);
        if (l->relu)
            relu_back(dact, act, m->n * l->width);
    }
    const struct apply a = apply_begin(m, l->w);
    struct dense_back k = back_of(l, m, &a, part);
    k.rows = rows < 0 ? 0 : rows < l->rows ? rows : l->rows;
    k.x = x, k.xs = xs;
    k.d = dact, k.ds = l->width;
    k.dx = want_dx ? l->dpartial + part * l->dpart : NULL, k.dxs = l->cols;
    ISA_FN(dense_backward)(&k);
    back_bias(l, m, part * l->width, dact);
}

/* Layer i, cut by outputs: all parts of this member, then the sum over everybody's. */
static void back_cut(struct stage *s, struct member *m, int i, const float *x, long xs)
{
    const struct dense *d = s->own;
    const struct layer *l = &d->layer[i];
    const bool want_dx = i > 0 || s->in[0]->grad;
    long from, to;

    member_part(m, l->parts, 1, &from, &to);
    for (long part = from; part < to; part++) {
        if (i + 1 == d->n_layers)
            take_grad(s, m, l, part * l->rows,
                      l->outputs - part * l->rows < l->rows ? l->outputs - part * l->rows : l->rows,
                      l->act + part * l->part, l->dact + part * l->part);
        back_part(d, m, i, (int)part, x, xs, want_dx);
    }
    member_barrier(m);
    if (i > 0)
        add_parts(l->dpartial, l->dpart, l->parts, m->n * (long)l->cols, own_dact(l - 1, m));
    else if (want_dx)
        put_input_grad(s, m, l->dpartial, l->dpart, l->parts);
}

static void backward(struct stage *s, struct member *m)
{
    const struct dense *d = s->own;
    int i = d->n_layers - 1;
    const struct layer *last = &d->layer[i];

    if (!m->n)          /* a shared plan without samples */
        return;
    if (last->cut != CUT_OUTPUTS)
        take_grad(s, m, last, 0, last->outputs, own_act(last, m), own_dact(last, m));
    for (; i >= 0; i--) {
        const struct layer *l = &d->layer[i];
        long xs;
        if (l->cut == CUT_INPUTS) {
            back_bias(l, m, 0, own_dact(l, m));
            l = &d->layer[--i];
        }
        const float *x = i ? own_act(l - 1, m) : input_rows(s, m, &xs);
        if (i)
            xs = l[-1].width;
        if (l->cut == CUT_OUTPUTS)
            back_cut(s, m, i, x, xs);
        else if (i)
            back_whole(l, m, x, xs, own_dact(l - 1, m), xs);
        else
            back_whole(l, m, x, xs, d->dx ? d->dx + d->x_member * m->id : NULL, l->cols);
        if (i && l[-1].relu)
            relu_back(own_dact(l - 1, m), own_act(l - 1, m), m->n * xs);
    }
    if (d->dx)
        put_input_grad(s, m, d->dx + d->x_member * m->id, 0, 1);
}

const struct stage_ops ISA_FN(dense_small_stage) = {
    .name = "dense_small",
    .match = match,
    .build = build,
    .run = { forward, backward, NULL },
};
