/* engine/optim_step.c - one step of every optimizer, sixteen weights at a time
 *
 * The order of operations is PyTorch's (its single-tensor loops), TensorFlow's for FTRL; a multiply
 * and an add that follow each other are fused. k[] is filled in by optim_begin.
 */
#include "engine/optim_step.h"

#include "engine/math.h"

/* a / below. With an eps of 0 the denominator of a weight that has had no gradient is 0, and 0 / 0
 * is no step: such a weight stays. */
INLINE v16 ratio(v16 a, v16 below, float eps)
{
    v16 q = v_div(a, below);
    return eps != 0 ? q : v_pick(v_eq(a, v_zero()) & v_eq(below, v_zero()), v_zero(), q);
}

/* g + decay w */
INLINE v16 decayed(v16 g, float decay, v16 w)
{
    return decay != 0 ? v_fma(v_set1(decay), w, g) : g;
}

static void sgd16(const struct optim *o, float *w, float *const *s, long i, v16 g)
{
    const float *k = o->k;      /* -lr, momentum, decay */
    v16 x = v_load(w + i);

    g = decayed(g, k[2], x);
    if (o->momentum != 0) {
        v16 v = v_fma(v_set1(k[1]), v_load(s[0] + i), g);
        v_store(s[0] + i, v);
        g = o->nesterov ? v_fma(v_set1(k[1]), v, g) : v;
    }
    v_store(w + i, v_fma(v_set1(k[0]), g, x));
}

/* k: -lr / (1 - beta1^t), 1 - beta1, beta2, 1 - beta2, sqrt(1 - beta2^t), eps, then decay (Adam) or
 * 1 - lr decay (AdamW) */
static void adam16(const struct optim *o, float *w, float *const *s, long i, v16 g)
{
    const float *k = o->k;
    v16 x = v_load(w + i), m = v_load(s[0] + i), v = v_load(s[1] + i);

    if (o->kind == OPTIM_ADAM)
        g = decayed(g, k[6], x);
    else
        x = v_mul(x, v_set1(k[6]));
    m = v_fma(v_sub(g, m), v_set1(k[1]), m);
    v = v_fma(v_mul(v_set1(k[3]), g), g, v_mul(v, v_set1(k[2])));
    v_store(s[0] + i, m);
    v_store(s[1] + i, v);
    v16 below = v_add(v_div(v_sqrt(v), v_set1(k[4])), v_set1(k[5]));
    v_store(w + i, v_fma(v_set1(k[0]), ratio(m, below, k[5]), x));
}

static void adagrad16(const struct optim *o, float *w, float *const *s, long i, v16 g)
{
    const float *k = o->k;      /* -rate, eps, decay */
    v16 x = v_load(w + i);

    g = decayed(g, k[2], x);
    v16 sum = v_fma(g, g, v_load(s[0] + i));
    v_store(s[0] + i, sum);
    v_store(w + i, v_fma(v_set1(k[0]), ratio(g, v_add(v_sqrt(sum), v_set1(k[1])), k[1]), x));
}

static void rmsprop16(const struct optim *o, float *w, float *const *s, long i, v16 g)
{
    const float *k = o->k;      /* -lr, alpha, 1 - alpha, eps, momentum, decay */
    v16 x = v_load(w + i);

    g = decayed(g, k[5], x);
    v16 square = v_fma(v_mul(v_set1(k[2]), g), g, v_mul(v_load(s[0] + i), v_set1(k[1])));
    v16 spread = square;
    v_store(s[0] + i, square);
    if (o->centered) {
        v16 mean = v_load(s[1] + i);
        mean = v_fma(v_sub(g, mean), v_set1(k[2]), mean);
        v_store(s[1] + i, mean);
        spread = v_fma(v_neg(mean), mean, square);
        spread = v_sel_gt(v_zero(), spread, v_zero(), spread);  /* below 0 by rounding alone */
    }
    v16 step = ratio(g, v_add(v_sqrt(spread), v_set1(k[3])), k[3]);
    if (o->momentum != 0) {
        float *momentum = s[1 + o->centered];
        step = v_fma(v_set1(k[4]), v_load(momentum + i), step);
        v_store(momentum + i, step);
    }
    v_store(w + i, v_fma(v_set1(k[0]), step, x));
}

/* n^-power; the square root is the common case */
INLINE v16 ftrl_root(v16 n, float power)
{
    return power == 0.5f ? v_sqrt(n) : v_pow(n, v_set1(power));
}

static void ftrl16(const struct optim *o, float *w, float *const *s, long i, v16 g)
{
    const float *k = o->k;      /* -, 1 / lr (0: the rate is 0), l1, 2 l2, -lr_power */

    if (k[1] == 0)
        return;
    v16 x = v_load(w + i), n = v_load(s[0] + i), z = v_load(s[1] + i);
    v16 n2 = v_fma(g, g, n), l1 = v_set1(k[2]);
    v16 root = v_mul(ftrl_root(n2, k[4]), v_set1(k[1]));
    v16 sigma = v_sub(root, v_mul(ftrl_root(n, k[4]), v_set1(k[1])));

    z = v_add(z, v_fma(v_neg(sigma), x, g));
    v16 moved = v_div(v_sub(v_copysign(l1, z), z), v_add(root, v_set1(k[3])));
    v_store(s[0] + i, n2);
    v_store(s[1] + i, z);
    /* written so that NaN stays NaN: a weight is zero only where |z| <= l1 holds */
    mask16 out = v_gt(v_abs(z), l1) | (mask16)~v_eq(z, z);
    v_store(w + i, v_pick(out, moved, v_zero()));
}

static void (*const steps[OPTIM_KINDS])(const struct optim *, float *, float *const *, long, v16) = {
    [OPTIM_SGD] = sgd16,         [OPTIM_ADAM] = adam16,       [OPTIM_ADAMW] = adam16,
    [OPTIM_ADAGRAD] = adagrad16, [OPTIM_RMSPROP] = rmsprop16, [OPTIM_FTRL] = ftrl16,
};

void ISA_FN(optim16)(const struct optim *o, float *w, float *const s[OPTIM_STATES], long i, v16 g)
{
    if (o->clip_value > 0) {    /* NaN is kept: both comparisons are false */
        v16 c = v_set1(o->clip_value);
        g = v_sel_gt(g, c, c, g);
        g = v_sel_gt(v_neg(c), g, v_neg(c), g);
    }
    steps[o->kind](o, w, s, i, g);
}

void ISA_FN(apply_roots)(const struct apply *a, long i, v16 *sum, unsigned filled)
{
    const struct plan *p = a->roots;

    for (int r = 0; r < p->n_roots && !a->discard; r++) {
        const struct root *of = &p->root[r];
        v_store(of->at + a->grad_at + i, shard_tree(sum + of->first, of->width,
                                                    filled >> of->first));
    }
}
