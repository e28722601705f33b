/* engine/stage_linear.c - y = W x + b for any batch
 *
 * Letters: I inputs as stored (padding included), O outputs, Op = O rounded up to 16. Weights are
 * stored (I, Op), so that lanes are outputs: each output is one chain over the inputs in stored
 * order that starts with the bias. An input gradient is a dot product over 16 lanes and their tree.
 */
#include <math.h>

#include "engine/stage.h"

struct linear {
    struct param *w, *b;        /* b: NULL without a bias */
    long I, Op;
};

static int match(const struct plan *p, const struct graph *g, int at)
{
    (void)p;
    return match_op(g, at, OP_LINEAR);
}

/* Logical (o, i), i in PyTorch's order: channels first where an image was flattened in place. */
static long weight_at(const struct param *q, long k)
{
    const long *g = q->geom;    /* values, h * w, channels as stored, Op */
    long o = k / g[0], i = k % g[0];
    long stored = i % g[1] * g[2] + i / g[1];
    return stored * g[3] + o;
}

static int build(struct stage *s, struct plan *p, struct err *err)
{
    const struct node *node = s->node;
    const struct tensor *in = s->in[0];
    struct linear *own = plan_alloc(p, struct linear);
    long values = (long)in->h * in->w * in->c, O = node->c;
    float bound = 1 / sqrtf((float)values);

    (void)err;
    own->I = in->size;
    own->Op = round_up16(O);
    own->w = plan_param(p, node, "weight", 2, (long[]){ O, values }, own->I * own->Op, false);
    own->w->at = weight_at;
    memcpy(own->w->geom, (long[]){ values, (long)in->h * in->w, in->cp, own->Op },
           4 * sizeof(long));
    own->w->init = INIT_UNIFORM;
    own->w->bound = bound;
    if (node->bias) {
        own->b = plan_param(p, node, "bias", 1, &O, own->Op, false);
        own->b->init = INIT_UNIFORM;
        own->b->bound = bound;
    }
    s->own = own;
    s->out = plan_tensor(p, 1, 1, (int)O);
    stage_sync_inputs(s);
    stage_sync_update(s, p);
    return 0;
}

/* ------------------------------------------------------------------ forward */

/* R samples, 16 outputs from o on. */
#define FORWARD_TILE(R)                                                                            \
    static void forward_##R(const struct linear *l, const struct tensor *out, const float *x,      \
                            float *y, long o)                                                      \
    {                                                                                              \
        const float *w = l->w->w + o;                                                              \
        v16 acc[R];                                                                                \
        for (int r = 0; r < R; r++)                                                                \
            acc[r] = l->b ? v_load(l->b->w + o) : v_zero();                                        \
        for (long i = 0; i < l->I; i++) {                                                          \
            v16 wi = v_load(w + i * l->Op);                                                        \
            UNROLL for (int r = 0; r < R; r++)                                                     \
                acc[r] = v_fma(v_set1(x[r * l->I + i]), wi, acc[r]);                               \
        }                                                                                          \
        for (int r = 0; r < R; r++)                                                                \
            v_store_part(y + r * out->size + o, acc[r], out->cp - o);                              \
    }
FORWARD_TILE(8)
FORWARD_TILE(1)

static void forward(struct stage *s, struct member *m)
{
    const struct linear *l = s->own;
    const struct tensor *in = s->in[0], *out = s->out;

    for (long o = 0; o < l->Op; o += 16) {
        int n = m->n0;
        for (; n + 8 <= m->n1; n += 8)
            forward_8(l, out, sample_data(m, in, n), out->data + out->size * n, o);
        for (; n < m->n1; n++)
            forward_1(l, out, sample_data(m, in, n), out->data + out->size * n, o);
    }
}

/* ------------------------------------------------------------------ backward */

static void backward(struct stage *s, struct member *m)
{
    const struct linear *l = s->own;
    const struct tensor *in = s->in[0], *out = s->out;
    bool first = stage_grad_first(s, 0);
    int from, to;

    if (!in->grad)
        return;
    member_span(m, in, &from, &to);
    for (int n = from; n < to; n++) {
        const float *dy = out->grad + out->size * n;
        float *dx = sample_grad(m, in, n);
        for (long i = 0; i < l->I; i++) {
            v16 acc = v_zero();
            for (long o = 0; o < l->Op; o += 16)
                acc = v_fma(v_load_part(dy + o, out->cp - o), v_load(l->w->w + i * l->Op + o), acc);
            dx[i] = first ? v_sum(acc) : dx[i] + v_sum(acc);
        }
    }
}

/* Weights of R inputs, 16 outputs: each shard's samples in order, then the tree. */
#define UPDATE_TILE(R)                                                                             \
    static void update_##R(struct stage *s, struct member *m, const struct apply *a, long i,       \
                           long o, unsigned filled)                                                \
    {                                                                                              \
        const struct linear *l = s->own;                                                           \
        const struct tensor *in = s->in[0], *out = s->out;                                         \
        const int shards = m->plan->shards;                                                        \
        v16 sum[R][SHARDS_MAX];                                                                    \
        for (int k = 0; k < shards; k++) {                                                         \
            v16 acc[R];                                                                            \
            for (int r = 0; r < R; r++)                                                            \
                acc[r] = v_zero();                                                                 \
            for (int n = member_first(m, k); n < member_first(m, k + 1); n++) {                    \
                v16 dy = v_load_part(out->grad + out->size * n + o, out->cp - o);                  \
                const float *x = sample_data(m, in, n) + i;                                        \
                UNROLL for (int r = 0; r < R; r++)                                                 \
                    acc[r] = v_fma(v_set1(x[r]), dy, acc[r]);                                      \
            }                                                                                      \
            for (int r = 0; r < R; r++)                                                            \
                sum[r][k] = acc[r];                                                                \
        }                                                                                          \
        for (int r = 0; r < R; r++)                                                                \
            apply_tree(a, (i + r) * l->Op + o, sum[r], shards, filled);                            \
    }
UPDATE_TILE(4)
UPDATE_TILE(1)

static void update_bias(struct stage *s, struct member *m, unsigned filled)
{
    const struct linear *l = s->own;
    const struct tensor *out = s->out;
    const struct apply a = apply_begin(m, l->b);
    const int shards = m->plan->shards;
    long from, to;

    member_part(m, l->Op, 16, &from, &to);
    for (long o = from; o < to; o += 16) {
        v16 sum[SHARDS_MAX];
        for (int k = 0; k < shards; k++) {
            sum[k] = v_zero();
            for (int n = member_first(m, k); n < member_first(m, k + 1); n++)
                sum[k] = v_add(sum[k], v_load_part(out->grad + out->size * n + o, out->cp - o));
        }
        apply_tree(&a, o, sum, shards, filled);
    }
}

static void update(struct stage *s, struct member *m)
{
    const struct linear *l = s->own;
    const struct apply a = apply_begin(m, l->w);
    const unsigned filled = member_filled(m);
    long from, to;

    member_part(m, l->I, 4, &from, &to);
    for (long o = 0; o < l->Op; o += 16) {
        long i = from;
        for (; i + 4 <= to; i += 4)
            update_4(s, m, &a, i, o, filled);
        for (; i < to; i++)
            update_1(s, m, &a, i, o, filled);
    }
    if (l->b)
        update_bias(s, m, filled);
}

const struct stage_ops ISA_FN(linear_stage) = {
    .name = "linear", .match = match, .build = build, .run = { forward, backward, update },
};
