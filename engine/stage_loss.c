/* engine/stage_loss.c - what the model's output costs, and the gradient it starts from
 *
 * One pass for each sample: its loss goes to plan->sample_loss, and in training the gradient of the
 * batch's mean loss goes to the input's gradient, so this stage needs no backward phase. The mean is
 * sum(w l) / sum(w) where rows have weights. A loss that is not a number stays visible: sums and
 * exponentials carry NaN, no comparison drops it.
 */
#include <math.h>

#include "engine/math.h"
#include "engine/stage.h"

struct loss {
    /* One sample: x (cp floats), what is wanted, the gradient's scale; dx NULL: no gradient. */
    float (*fn)(const struct loss *l, const float *x, const void *row, float scale, float *dx);
    int c, cp;
    enum dtype target;
    float delta;                /* huber */
    double *weights;            /* (SHARDS_MAX) sums of the batch, in a shared plan */
};

/* ------------------------------------------------------------------ elementwise losses */

/* Lanes that hold values, from lane block i on. */
INLINE mask16 live(const struct loss *l, int i)
{
    return l->c - i >= 16 ? 0xffff : (mask16)((1u << (l->c - i)) - 1);
}

INLINE v16 wanted(const struct loss *l, const void *row, int i)
{
    if (l->target == DTYPE_F32)
        return v_load_part((const float *)row + i, l->c - i);
    return v_set1(l->target == DTYPE_U8 ? (float)*(const uint8_t *)row
                                        : (float)*(const int32_t *)row);
}

/* V is the loss of an element and G its derivative, both expressions of x and t; the sample's loss
 * is the mean over its elements. */
#define ELEMENTWISE(name, V, G)                                                                    \
    static float name(const struct loss *l, const float *in, const void *row, float scale,         \
                      float *dx)                                                                   \
    {                                                                                              \
        const v16 s = v_set1(scale / (float)l->c);                                                 \
        v16 sum = v_zero();                                                                        \
        for (int i = 0; i < l->c; i += 16) {                                                       \
            v16 x = v_load_part(in + i, l->cp - i), t = wanted(l, row, i);                         \
            sum = v_add(sum, v_pick(live(l, i), V, v_zero()));                                     \
            if (dx)                                                                                \
                v_store_part(dx + i, v_pick(live(l, i), v_mul(G, s), v_zero()), l->cp - i);        \
        }                                                                                          \
        return v_sum(sum) / (float)l->c;                                                           \
    }

INLINE v16 square(v16 d) { return v_mul(d, d); }
/* -1, 0, 1, or NaN */
INLINE v16 sign(v16 d) { return v_keep_nan(d, v_sel_eq(d, v_zero(), d, v_copysign(v_set1(1), d))); }

INLINE v16 huber_value(v16 d, v16 delta)
{
    v16 a = v_abs(d), half = v_set1(0.5f);
    return v_sel_gt(delta, a, v_mul(v_mul(half, a), a),
                    v_mul(delta, v_sub(a, v_mul(half, delta))));
}
INLINE v16 huber_slope(v16 d, v16 delta)
{
    return v_sel_gt(delta, v_abs(d), d, v_mul(sign(d), delta));
}

/* log(1 + exp(-|x|)) + max(-x, 0) + (1 - t) x; the quotient restores what 1 + e rounds away */
INLINE v16 bce_value(v16 x, v16 t)
{
    v16 one = v_set1(1), e = v_exp(v_neg(v_abs(x))), u = v_add(one, e), gone = v_sub(u, one);
    v16 log1p = v_sel_eq(gone, v_zero(), e, v_mul(v_log(u), v_div(e, gone)));
    return v_add(v_fma(v_sub(one, t), x, v_relu(v_neg(x))), log1p);
}

ELEMENTWISE(squared_error, square(v_sub(x, t)), v_mul(v_set1(2), v_sub(x, t)))
ELEMENTWISE(l1, v_abs(v_sub(x, t)), sign(v_sub(x, t)))
ELEMENTWISE(huber, huber_value(v_sub(x, t), v_set1(l->delta)),
            huber_slope(v_sub(x, t), v_set1(l->delta)))
ELEMENTWISE(bce_with_logits, bce_value(x, t), v_sub(v_sigmoid(x), t))

/* ------------------------------------------------------------------ losses of a class */

INLINE int class_of(const struct loss *l, const void *row)
{
    if (l->target == DTYPE_U8)
        return *(const uint8_t *)row;
    return l->target == DTYPE_I32 ? *(const int32_t *)row : (int)*(const float *)row;
}

/* log(sum(exp x)) - x[class] */
static float cross_entropy(const struct loss *l, const float *x, const void *row, float scale,
                           float *dx)
{
    int class = class_of(l, row);
    float most = x[0];
    v16 sum = v_zero();

    if (class < 0 || class >= l->c)
        return NAN;
    for (int i = 1; i < l->c; i++)
        most = x[i] > most ? x[i] : most;       /* NaN comes back through the sum */
    for (int i = 0; i < l->c; i += 16) {
        v16 e = v_exp(v_sub(v_load_part(x + i, l->cp - i), v_set1(most)));
        sum = v_add(sum, v_pick(live(l, i), e, v_zero()));
    }
    float total = v_sum(sum);
    for (int i = 0; dx && i < l->c; i += 16) {
        v16 e = v_exp(v_sub(v_load_part(x + i, l->cp - i), v_set1(most)));
        e = v_mul(v_div(e, v_set1(total)), v_set1(scale));
        v_store_part(dx + i, v_pick(live(l, i), e, v_zero()), l->cp - i);
    }
    if (dx)
        dx[class] -= scale;
    return f_log(total) + (most - x[class]);
}

static float nll(const struct loss *l, const float *x, const void *row, float scale, float *dx)
{
    int class = class_of(l, row);

    if (class < 0 || class >= l->c)
        return NAN;
    if (dx) {
        memset(dx, 0, (size_t)l->cp * sizeof *dx);
        dx[class] = -scale;
    }
    return -x[class];
}

/* ------------------------------------------------------------------ the stage */

static const struct loss_kind {
    const char *name;
    float (*fn)(const struct loss *l, const float *x, const void *row, float scale, float *dx);
    bool of_class;              /* the target is the number of a class */
} kinds[] = {
    { "squared_error", squared_error, false },
    { "l1", l1, false },
    { "huber", huber, false },
    { "bce_with_logits", bce_with_logits, false },
    { "cross_entropy", cross_entropy, true },
    { "nll", nll, true },
};

static int check(const struct loss_kind *k, const struct tensor *in, const struct field *t,
                 struct err *err)
{
    if (k->of_class && t->c != 1)
        return err_set(err, ERR_INVALID, "loss.%s: the target has %d values, not one class", k->name,
                       t->c);
    if (k->of_class && t->ids > 0 && in->c != t->ids)
        return err_set(err, ERR_INVALID, "loss.%s: the model gives %d values, the target has %d "
                       "classes", k->name, in->c, t->ids);
    if (k->of_class && t->type == DTYPE_F32 && t->ids == 0)
        return err_set(err, ERR_INVALID, "loss.%s: the target is a number, not a class (task: "
                       "classification, or another loss)", k->name);
    if (!k->of_class && t->type != DTYPE_F32 && in->c != 1)
        return err_set(err, ERR_INVALID, "loss.%s: the model gives %d values, the target is one "
                       "class (a last layer with 1 output, or cross_entropy)", k->name, in->c);
    if (!k->of_class && t->type == DTYPE_F32 && in->c != t->c)
        return err_set(err, ERR_INVALID, "loss.%s: the model gives %d values, the target has %d",
                       k->name, in->c, t->c);
    if (k->fn == bce_with_logits && t->ids > 2)
        return err_set(err, ERR_INVALID, "loss.%s: the target has %d classes, not two", k->name,
                       t->ids);
    return 0;
}

static int build(struct stage *s, struct plan *p, struct err *err)
{
    const struct field *t = &p->field[p->target_field];
    const struct tensor *in = s->in[0];
    const struct loss_kind *kind = NULL;
    const json_t *args = NULL;
    struct loss *l = plan_alloc(p, struct loss);

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !args; i++) {
        kind = &kinds[i];
        args = json_object_get(p->loss_spec, kind->name);
    }
    if (!args)
        return err_set(err, ERR_INVALID, "loss: none of squared_error, l1, huber, cross_entropy, "
                       "nll, bce_with_logits is named");
    if (check(kind, in, t, err) < 0)
        return -(int)err->code;
    const json_t *delta = json_object_get(args, "delta");
    *l = (struct loss){ .fn = kind->fn, .c = in->c, .cp = in->cp, .target = t->type,
                        .delta = delta ? (float)json_number_value(delta) : 1,
                        .weights = plan_take(p, SHARDS_MAX * sizeof(double)) };
    /* The plan leaves out a last log_softmax under nll: then the input is what it would read. */
    if (kind->fn == nll && s->at != p->graph->output)
        l->fn = cross_entropy;
    s->own = l;
    s->out = s->in[0];
    return 0;
}

/* What a sample's loss is multiplied by in the mean: 1 / n, or its share of the weights, whose sum
 * is taken by shard and tree. */
static double weight_sum(const struct loss *l, struct member *m)
{
    const int shards = m->plan->shards;
    double sum[SHARDS_MAX] = { 0 };

    if (m->plan->weight_field < 0)
        return m->whole;
    for (int k = 0; k < shards; k++)
        for (int i = member_first(m, k); i < member_first(m, k + 1); i++)
            sum[k] += *(const float *)member_row(m, m->plan->weight_field, i);
    if (m->train && m->plan->shared) {
        if (m->id == 0)
            memcpy(l->weights, sum, sizeof sum);
        member_gather(m, (float *)l->weights, 2, 2);
        memcpy(sum, l->weights, sizeof sum);
    }
    for (int width = 1; width < shards; width *= 2)
        for (int k = 0; k < shards; k += 2 * width)
            sum[k] += sum[k + width];
    return sum[0];
}

static void forward(struct stage *s, struct member *m)
{
    const struct loss *l = s->own;
    const struct tensor *in = s->in[0];
    struct plan *p = m->plan;
    const double weights = weight_sum(l, m);
    int from, to;

    member_span(m, in, &from, &to);
    for (int n = from; n < to; n++) {
        double w = p->weight_field < 0 ? 1 : *(const float *)member_row(m, p->weight_field, n);
        float scale = weights > 0 ? (float)(w / weights) : 0;
        float value = l->fn(l, sample_data(m, in, n), member_row(m, p->target_field, n), scale,
                            m->train && in->grad ? sample_grad(m, in, n) : NULL);
        if (n >= m->n0 && n < m->n1)
            p->sample_loss[n] = value;
    }
}

const struct stage_ops ISA_FN(loss_stage) = {
    .name = "loss", .build = build, .run = { forward },
};
