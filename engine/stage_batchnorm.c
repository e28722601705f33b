/* engine/stage_batchnorm.c - batch norm over the global batch, or each shard by itself
 *
 * Mean, then the variance around it: two sums over all samples and positions, each by row, sample
 * and shard, then the shard tree. Training needs everybody's sums, so a phase holds barriers. With
 * per_shard each shard has statistics of its own and the running ones get the shards' mean.
 *
 * x^ = (x - mean) / sqrt(var + eps), y = x^ weight + bias. Running variance is the unbiased one; a
 * single value has no spread, so its variance is taken as it is (PyTorch refuses the batch).
 */
#include <math.h>

#include "engine/stage.h"

struct norm {
    struct param *w, *b, *mean, *var;
    long Cp;                    /* channels, a multiple of 16 */
    /* (shards, Cp) sums of this step, and (shards, Cp) statistics: the same in every shard unless
     * per_shard. Written by the shard's owner. */
    float *sum_x, *sum_d, *sum_g, *sum_gx;
    float *mu, *scale;          /* mean and 1 / sqrt(var + eps) */
};

static int match(const struct plan *p, const struct graph *g, int at)
{
    (void)p;
    return match_op(g, at, OP_BATCHNORM);
}

static struct param *channel_param(struct plan *p, const struct stage *s, const char *suffix,
                                   bool trained, bool one)
{
    long C = s->node->c;
    struct param *q = plan_param(p, s->node, suffix, 1, &C, round_up16(C), false);

    q->trained = trained;
    q->init = one ? INIT_ONE : INIT_ZERO;
    return q;
}

static int build(struct stage *s, struct plan *p, struct err *err)
{
    const struct tensor *in = s->in[0];
    struct norm *own = plan_alloc(p, struct norm);
    size_t bytes;

    (void)err;
    own->Cp = round_up16(in->c);
    own->w = channel_param(p, s, "weight", true, true);
    own->b = channel_param(p, s, "bias", true, false);
    plan_known(p, own->w);
    plan_known(p, own->b);
    own->mean = channel_param(p, s, "running_mean", false, false);
    own->var = channel_param(p, s, "running_var", false, true);
    bytes = (size_t)own->Cp * (size_t)p->shards * sizeof(float);
    float **arrays[] = { &own->sum_x, &own->sum_d, &own->sum_g, &own->sum_gx, &own->mu,
                         &own->scale };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        *arrays[i] = plan_take(p, bytes);
    s->own = own;
    s->out = plan_tensor(p, in->h, in->w, in->c);
    stage_sync_inputs(s);
    stage_sync_update(s, p);
    return 0;
}

/* ------------------------------------------------------------------ statistics */

INLINE const float *of_shard(const struct norm *l, const float *array, int k)
{
    return array + k * l->Cp;
}

/* Sums over one shard of x (mu NULL) or of (x - mu)^2, for 16 channels from c on. */
static v16 shard_sum(const struct stage *s, const struct member *m, int k, int c, const float *mu)
{
    const struct tensor *in = s->in[0];
    const int n1 = member_first(m, k + 1);
    const v16 center = mu ? v_load(mu + c) : v_zero();
    v16 sum = v_zero();

    for (int n = member_first(m, k); n < n1; n++) {
        const float *x = sample_data(m, in, n) + c;
        v16 sample = v_zero();
        for (int y = 0; y < in->h; y++) {
            v16 row = v_zero();
            for (int i = 0; i < in->w; i++, x += in->cp) {
                v16 v = v_load_part(x, in->cp - c);
                if (mu) {
                    v16 d = v_sub(v, center);
                    row = v_fma(d, d, row);
                } else {
                    row = v_add(row, v);
                }
            }
            sample = v_add(sample, row);
        }
        sum = v_add(sum, sample);
    }
    return sum;
}

/* Values behind a statistic: of shard k alone, or of the batch (k < 0). */
INLINE float values(const struct stage *s, const struct member *m, int k)
{
    const int shards = m->plan->shards, n1 = shard_first(m->whole, shards, k + 1);
    long n = k < 0 ? m->whole : n1 - shard_first(m->whole, shards, k);
    return (float)(n * s->in[0]->h * s->in[0]->w);
}

/* The tree over the shards of 16 channels. */
INLINE v16 tree_of(const struct norm *l, const struct member *m, const float *array, long c)
{
    v16 sum[SHARDS_MAX] = { v_zero() };

    for (int k = 0; k < m->plan->shards; k++)
        sum[k] = v_load(of_shard(l, array, k) + c);
    return shard_tree(sum, m->plan->shards, shards_filled(m->whole, m->plan->shards));
}

INLINE v16 inverse_deviation(v16 var, float eps)
{
    return v_div(v_set1(1), v_sqrt(v_add(var, v_set1(eps))));
}

/* The mean of each own shard, from the batch or from the shard. */
static void set_means(const struct stage *s, struct member *m)
{
    const struct norm *l = s->own;

    for (int k = m->s0; k < m->s1; k++)
        for (long c = 0; c < l->Cp; c += 16)
            v_store(l->sum_x + k * l->Cp + c, shard_sum(s, m, k, (int)c, NULL));
    if (!s->node->per_shard)
        member_gather(m, l->sum_x, l->Cp, l->Cp);
    for (int k = m->s0; k < m->s1; k++)
        for (long c = 0; c < l->Cp; c += 16) {
            v16 sum = s->node->per_shard ? v_load(of_shard(l, l->sum_x, k) + c)
                                         : tree_of(l, m, l->sum_x, c);
            float n = values(s, m, s->node->per_shard ? k : -1);
            v_store(l->mu + k * l->Cp + c, v_div(sum, v_set1(n > 0 ? n : 1)));
        }
}

static void set_scales(const struct stage *s, struct member *m)
{
    const struct norm *l = s->own;

    for (int k = m->s0; k < m->s1; k++)
        for (long c = 0; c < l->Cp; c += 16)
            v_store(l->sum_d + k * l->Cp + c, shard_sum(s, m, k, (int)c, of_shard(l, l->mu, k)));
    member_gather(m, l->sum_d, l->Cp, l->Cp);
    if (s->node->per_shard && m->plan->shared)  /* for the running statistics */
        member_gather(m, l->sum_x, l->Cp, l->Cp);
    for (int k = m->s0; k < m->s1; k++)
        for (long c = 0; c < l->Cp; c += 16) {
            v16 sum = s->node->per_shard ? v_load(of_shard(l, l->sum_d, k) + c)
                                         : tree_of(l, m, l->sum_d, c);
            float n = values(s, m, s->node->per_shard ? k : -1);
            v_store(l->scale + k * l->Cp + c,
                    inverse_deviation(v_div(sum, v_set1(n > 0 ? n : 1)), s->node->eps));
        }
}

/* Running statistics of 16 channels of the batch, or the mean of the shards' own. */
static void batch_statistics(const struct stage *s, const struct member *m, long c, v16 *mean,
                             v16 *var)
{
    const struct norm *l = s->own;
    const unsigned filled = shards_filled(m->whole, m->plan->shards);
    float n = values(s, m, -1), shards = (float)__builtin_popcount(filled);
    v16 sum[SHARDS_MAX] = { v_zero() }, square[SHARDS_MAX] = { v_zero() };

    if (!s->node->per_shard) {
        *mean = v_div(tree_of(l, m, l->sum_x, c), v_set1(n));
        *var = v_div(tree_of(l, m, l->sum_d, c), v_set1(n > 1 ? n - 1 : 1));
        return;
    }
    for (int k = 0; k < m->plan->shards; k++) {
        float in_shard = values(s, m, k);
        sum[k] = v_div(v_load(of_shard(l, l->sum_x, k) + c), v_set1(in_shard));
        square[k] = v_div(v_load(of_shard(l, l->sum_d, k) + c),
                          v_set1(in_shard > 1 ? in_shard - 1 : 1));
    }
    *mean = v_div(shard_tree(sum, m->plan->shards, filled), v_set1(shards));
    *var = v_div(shard_tree(square, m->plan->shards, filled), v_set1(shards));
}

/* running = (1 - momentum) running + momentum new; padding channels stay zero. */
static void move_running(struct stage *s, struct member *m)
{
    const struct norm *l = s->own;
    const v16 keep = v_set1(1 - s->node->momentum), take = v_set1(s->node->momentum);
    long from, to;

    member_part(m, l->Cp, 16, &from, &to);
    for (long c = from; c < to; c += 16) {
        v16 mean, var;
        batch_statistics(s, m, c, &mean, &var);
        float *rm = l->mean->w + c, *rv = l->var->w + c;
        v_store_part(rm, v_fma(take, mean, v_mul(keep, v_load(rm))), s->node->c - c);
        v_store_part(rv, v_fma(take, var, v_mul(keep, v_load(rv))), s->node->c - c);
    }
}

/* ------------------------------------------------------------------ forward */

/* y = (x - mu) scale weight + bias for the samples [n0, n1), 16 channels from c on. */
static void normalise(const struct stage *s, const struct member *m, int n0, int n1, int c, v16 mu,
                      v16 scale)
{
    const struct norm *l = s->own;
    const struct tensor *in = s->in[0], *out = s->out;
    const v16 w = v_load(l->w->w + c), b = v_load(l->b->w + c);

    for (int n = n0; n < n1; n++) {
        const float *x = sample_data(m, in, n) + c;
        float *y = out->data + out->size * n + c;
        for (long i = 0; i < (long)in->h * in->w * in->cp; i += in->cp) {
            v16 hat = v_mul(v_sub(v_load_part(x + i, in->cp - c), mu), scale);
            v_store_part(y + i, v_fma(hat, w, b), in->cp - c);
        }
    }
}

static void forward(struct stage *s, struct member *m)
{
    const struct norm *l = s->own;

    if (!m->train) {
        for (int c = 0; c < s->in[0]->cp; c += 16)
            normalise(s, m, m->n0, m->n1, c, v_load(l->mean->w + c),
                      inverse_deviation(v_load(l->var->w + c), s->node->eps));
        return;
    }
    set_means(s, m);
    set_scales(s, m);
    if (!m->plan->shared)
        move_running(s, m);
    for (int k = m->s0; k < m->s1; k++)
        for (int c = 0; c < s->in[0]->cp; c += 16)
            normalise(s, m, member_first(m, k), member_first(m, k + 1), c,
                      v_load(of_shard(l, l->mu, k) + c), v_load(of_shard(l, l->scale, k) + c));
}

/* ------------------------------------------------------------------ backward */

/* Sums over one shard of dy and of dy x^, 16 channels from c on. */
static void gradient_sums(const struct stage *s, const struct member *m, int k, int c)
{
    const struct norm *l = s->own;
    const struct tensor *in = s->in[0], *out = s->out;
    const int n1 = member_first(m, k + 1);
    const v16 mu = v_load(of_shard(l, l->mu, k) + c), scale = v_load(of_shard(l, l->scale, k) + c);
    v16 sum = v_zero(), with_x = v_zero();

    for (int n = member_first(m, k); n < n1; n++) {
        const float *x = sample_data(m, in, n) + c, *dy = out->grad + out->size * n + c;
        v16 g_sample = v_zero(), gx_sample = v_zero();
        for (int y = 0; y < in->h; y++) {
            v16 g_row = v_zero(), gx_row = v_zero();
            for (int i = 0; i < in->w; i++, x += in->cp, dy += in->cp) {
                v16 g = v_load_part(dy, in->cp - c);
                v16 hat = v_mul(v_sub(v_load_part(x, in->cp - c), mu), scale);
                g_row = v_add(g_row, g);
                gx_row = v_fma(g, hat, gx_row);
            }
            g_sample = v_add(g_sample, g_row);
            gx_sample = v_add(gx_sample, gx_row);
        }
        sum = v_add(sum, g_sample);
        with_x = v_add(with_x, gx_sample);
    }
    v_store(l->sum_g + k * l->Cp + c, sum);
    v_store(l->sum_gx + k * l->Cp + c, with_x);
}

/* dx = weight scale (dy - mean(dy) - x^ mean(dy x^)), one shard, 16 channels. */
static void input_gradient(const struct stage *s, const struct member *m, int k, int c, bool first)
{
    const struct norm *l = s->own;
    const struct tensor *in = s->in[0], *out = s->out;
    const int n1 = member_first(m, k + 1);
    const bool alone = s->node->per_shard;
    const v16 mu = v_load(of_shard(l, l->mu, k) + c), scale = v_load(of_shard(l, l->scale, k) + c);
    const v16 count = v_set1(values(s, m, alone ? k : -1));
    const v16 g_mean = v_div(alone ? v_load(of_shard(l, l->sum_g, k) + c)
                                   : tree_of(l, m, l->sum_g, c), count);
    const v16 gx_mean = v_div(alone ? v_load(of_shard(l, l->sum_gx, k) + c)
                                    : tree_of(l, m, l->sum_gx, c), count);
    const v16 factor = v_mul(v_load(l->w->w + c), scale);

    for (int n = member_first(m, k); n < n1; n++) {
        const float *x = sample_data(m, in, n) + c, *dy = out->grad + out->size * n + c;
        float *dx = sample_grad(m, in, n) + c;
        for (long i = 0; i < (long)in->h * in->w * in->cp; i += in->cp) {
            v16 hat = v_mul(v_sub(v_load_part(x + i, in->cp - c), mu), scale);
            v16 d = v_sub(v_load_part(dy + i, in->cp - c), g_mean);
            d = v_sub(d, v_mul(hat, gx_mean));
            grad_put(dx + i, v_mul(factor, d), in->cp - c, first);
        }
    }
}

static void backward(struct stage *s, struct member *m)
{
    const struct norm *l = s->own;
    const struct tensor *in = s->in[0];
    int k0 = in->replica ? 0 : m->s0, k1 = in->replica ? m->plan->shards : m->s1;

    for (int k = m->s0; k < m->s1; k++)
        for (int c = 0; c < in->cp; c += 16)
            gradient_sums(s, m, k, c);
    member_gather(m, l->sum_g, l->Cp, l->Cp);
    if (m->plan->shared)
        member_gather(m, l->sum_gx, l->Cp, l->Cp);
    for (int k = k0; in->grad && k < k1; k++)
        for (int c = 0; c < in->cp; c += 16)
            input_gradient(s, m, k, c, stage_grad_first(s, 0));
}

static void update(struct stage *s, struct member *m)
{
    const struct norm *l = s->own;
    const unsigned filled = shards_filled(m->whole, m->plan->shards);
    long from, to;

    member_part(m, l->Cp, 16, &from, &to);
    apply_shards(m, l->w, l->sum_gx, l->Cp, filled, from, to);
    apply_shards(m, l->b, l->sum_g, l->Cp, filled, from, to);
}

const struct stage_ops ISA_FN(batchnorm_stage) = {
    .name = "batchnorm", .match = match, .build = build, .run = { forward, backward, update },
    .reduced = move_running,
};
