/* engine/stage_layernorm.c - layer norm over the channels of each position
 *
 * x^ = (x - mean) / sqrt(var + eps), y = x^ weight + bias; sums over channels are 16 lanes and
 * their tree.
 */
#include "engine/stage.h"

struct norm {
    struct param *w, *b;
    float *mean, *scale;        /* (N, H, W): of the last forward */
};

static int match(const struct plan *p, const struct graph *g, int at)
{
    (void)p;
    return match_op(g, at, OP_LAYERNORM);
}

static int build(struct stage *s, struct plan *p, struct err *err)
{
    const struct tensor *in = s->in[0];
    struct norm *own = plan_alloc(p, struct norm);
    size_t positions = (size_t)p->batch * (size_t)in->h * (size_t)in->w;
    long C = in->c;

    (void)err;
    own->w = plan_param(p, s->node, "weight", 1, &C, round_up16(C), false);
    own->b = plan_param(p, s->node, "bias", 1, &C, round_up16(C), false);
    own->w->init = INIT_ONE;
    own->b->init = INIT_ZERO;
    own->mean = plan_take(p, positions * sizeof(float));
    own->scale = plan_take(p, positions * sizeof(float));
    s->own = own;
    s->out = plan_tensor(p, in->h, in->w, in->c);
    stage_sync_inputs(s);
    stage_sync_update(s, p);
    return 0;
}

/* Zero beyond the last channel. */
INLINE v16 live_lanes(const struct tensor *t, int c, v16 v)
{
    return t->c - c >= 16 ? v : v_pick((mask16)((1u << (t->c - c)) - 1), v, v_zero());
}

static void norm_position(const struct stage *s, const float *x, float *y, float *mean, float *scale)
{
    const struct norm *l = s->own;
    const struct tensor *in = s->in[0];
    const float C = (float)in->c;
    v16 sum = v_zero();

    for (int c = 0; c < in->cp; c += 16)
        sum = v_add(sum, v_load_part(x + c, in->cp - c));
    *mean = v_sum(sum) / C;
    sum = v_zero();
    for (int c = 0; c < in->cp; c += 16) {
        v16 d = live_lanes(in, c, v_sub(v_load_part(x + c, in->cp - c), v_set1(*mean)));
        sum = v_fma(d, d, sum);
    }
    *scale = 1 / sqrtf(v_sum(sum) / C + s->node->eps);
    for (int c = 0; c < in->cp; c += 16) {
        v16 d = v_sub(v_load_part(x + c, in->cp - c), v_set1(*mean));
        v16 hat = live_lanes(in, c, v_mul(d, v_set1(*scale)));
        v_store_part(y + c, v_fma(hat, v_load(l->w->w + c), v_load(l->b->w + c)), in->cp - c);
    }
}

static void forward(struct stage *s, struct member *m)
{
    const struct norm *l = s->own;
    const struct tensor *in = s->in[0], *out = s->out;
    long positions = (long)in->h * in->w;

    for (int n = m->n0; n < m->n1; n++)
        for (long i = 0; i < positions; i++)
            norm_position(s, sample_data(m, in, n) + i * in->cp,
                          out->data + out->size * n + i * in->cp, l->mean + n * positions + i,
                          l->scale + n * positions + i);
}

/* dx = scale (g - mean(g) - x^ mean(g x^)), g = dy weight */
static void grad_position(const struct stage *s, const float *x, const float *dy, float *dx,
                          float mean, float scale, bool first)
{
    const struct norm *l = s->own;
    const struct tensor *in = s->in[0];
    const float C = (float)in->c;
    v16 sum = v_zero(), with_x = v_zero();

    for (int c = 0; c < in->cp; c += 16) {
        v16 g = v_mul(v_load_part(dy + c, in->cp - c), v_load(l->w->w + c));
        v16 hat = v_mul(v_sub(v_load_part(x + c, in->cp - c), v_set1(mean)), v_set1(scale));
        sum = v_add(sum, g);
        with_x = v_fma(g, hat, with_x);
    }
    v16 g_mean = v_set1(v_sum(sum) / C), gx_mean = v_set1(v_sum(with_x) / C);
    for (int c = 0; c < in->cp; c += 16) {
        v16 g = v_mul(v_load_part(dy + c, in->cp - c), v_load(l->w->w + c));
        v16 hat = v_mul(v_sub(v_load_part(x + c, in->cp - c), v_set1(mean)), v_set1(scale));
        v16 d = v_mul(v_set1(scale), v_sub(v_sub(g, g_mean), v_mul(hat, gx_mean)));
        grad_put(dx + c, live_lanes(in, c, d), in->cp - c, first);
    }
}

static void backward(struct stage *s, struct member *m)
{
    const struct norm *l = s->own;
    const struct tensor *in = s->in[0], *out = s->out;
    long positions = (long)in->h * in->w;
    int from, to;

    if (!in->grad)
        return;
    member_span(m, in, &from, &to);
    for (int n = from; n < to; n++)
        for (long i = 0; i < positions; i++)
            grad_position(s, sample_data(m, in, n) + i * in->cp,
                          out->grad + out->size * n + i * in->cp,
                          sample_grad(m, in, n) + i * in->cp, l->mean[n * positions + i],
                          l->scale[n * positions + i], stage_grad_first(s, 0));
}

/* One shard's gradients of 16 weights and biases. */
static void shard_gradient(const struct stage *s, const struct member *m, int k, int c, v16 *dw,
                           v16 *db)
{
    const struct norm *l = s->own;
    const struct tensor *in = s->in[0], *out = s->out;
    long positions = (long)in->h * in->w;

    *dw = *db = v_zero();
    for (int n = member_first(m, k); n < member_first(m, k + 1); n++) {
        const float *x = sample_data(m, in, n) + c, *dy = out->grad + out->size * n + c;
        v16 w = v_zero(), b = v_zero();
        for (long i = 0; i < positions; i++, x += in->cp, dy += in->cp) {
            v16 g = v_load_part(dy, in->cp - c);
            v16 d = v_sub(v_load_part(x, in->cp - c), v_set1(l->mean[n * positions + i]));
            w = v_fma(g, v_mul(d, v_set1(l->scale[n * positions + i])), w);
            b = v_add(b, g);
        }
        *dw = v_add(*dw, w);
        *db = v_add(*db, b);
    }
}

static void update(struct stage *s, struct member *m)
{
    const struct norm *l = s->own;
    const struct apply w = apply_begin(m, l->w), b = apply_begin(m, l->b);
    const int shards = m->plan->shards;
    const unsigned filled = member_filled(m);
    long from, to;

    member_part(m, l->w->size, 16, &from, &to);
    for (long c = from; c < to; c += 16) {
        v16 dw[SHARDS_MAX] = { v_zero() }, db[SHARDS_MAX] = { v_zero() };
        for (int k = 0; k < shards; k++)
            shard_gradient(s, m, k, (int)c, &dw[k], &db[k]);
        apply_tree(&w, c, dw, shards, filled);
        apply_tree(&b, c, db, shards, filled);
    }
}

const struct stage_ops ISA_FN(layernorm_stage) = {
    .name = "layernorm", .match = match, .build = build, .run = { forward, backward, update },
};
