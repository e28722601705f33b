/* engine/stage_pointwise.c - relu, leaky_relu, gelu, sigmoid, tanh: one value in, one out */
#include "engine/math.h"
#include "engine/stage.h"

/* y from x, and the gradient dx from dy, x and y, for n floats. `add`: to what is there. */
struct pointwise {
    void (*forward)(float *y, const float *x, long n, const struct node *node);
    void (*backward)(float *dx, const float *dy, const float *x, const float *y, long n,
                     const struct node *node, bool add);
};

/* Y is an expression of v16 x; D one of x, y and g, the gradient of y. */
#define POINTWISE(name, Y, D)                                                                      \
    static void name##_forward(float *to, const float *from, long n, const struct node *node)      \
    {                                                                                              \
        (void)node;                                                                                \
        for (long i = 0; i < n; i += 16) {                                                         \
            v16 x = v_load_part(from + i, n - i);                                                  \
            v_store_part(to + i, Y, n - i);                                                        \
        }                                                                                          \
    }                                                                                              \
    static void name##_backward(float *dx, const float *dy, const float *in, const float *out,     \
                                long n, const struct node *node, bool add)                         \
    {                                                                                              \
        (void)node;                                                                                \
        for (long i = 0; i < n; i += 16) {                                                         \
            v16 x = v_load_part(in + i, n - i), y = v_load_part(out + i, n - i);                   \
            v16 g = v_load_part(dy + i, n - i);                                                    \
            (void)x, (void)y;                                                                      \
            grad_put(dx + i, D, n - i, !add);                                                      \
        }                                                                                          \
    }

/* 0.5 x (1 + erf(x / sqrt 2)); the gradient is Phi(x) + x phi(x). */
INLINE v16 gelu(v16 x)
{
    v16 e = v_erf(v_mul(x, v_set1(0.70710678f)));
    return v_mul(v_mul(v_set1(0.5f), x), v_add(v_set1(1), e));
}
INLINE v16 gelu_slope(v16 x)
{
    v16 below = v_mul(v_set1(0.5f), v_add(v_set1(1), v_erf(v_mul(x, v_set1(0.70710678f)))));
    v16 density = v_mul(v_set1(0.39894228f), v_exp(v_mul(v_mul(v_set1(-0.5f), x), x)));
    return v_fma(x, density, below);
}

/* 0.5 x (1 + tanh(u)), u = sqrt(2 / pi) (x + 0.044715 x^3). */
INLINE v16 gelu_inner(v16 x)
{
    v16 cube = v_mul(v_mul(x, x), x);
    return v_mul(v_set1(0.79788456f), v_fma(v_set1(0.044715f), cube, x));
}
INLINE v16 gelu_tanh(v16 x)
{
    return v_mul(v_mul(v_set1(0.5f), x), v_add(v_set1(1), v_tanh(gelu_inner(x))));
}
INLINE v16 gelu_tanh_slope(v16 x)
{
    v16 t = v_tanh(gelu_inner(x));
    v16 du = v_mul(v_set1(0.79788456f), v_fma(v_set1(3 * 0.044715f), v_mul(x, x), v_set1(1)));
    v16 right = v_mul(v_mul(v_mul(v_set1(0.5f), x), v_fma(v_neg(t), t, v_set1(1))), du);
    return v_fma(v_set1(0.5f), v_add(v_set1(1), t), right);
}

POINTWISE(relu, v_relu(x), v_sel_gt(x, v_zero(), g, v_zero()))
POINTWISE(leaky_relu, v_sel_gt(x, v_zero(), x, v_mul(x, v_set1(node->slope))),
          v_sel_gt(x, v_zero(), g, v_mul(g, v_set1(node->slope))))
POINTWISE(gelu_erf, gelu(x), v_mul(g, gelu_slope(x)))
POINTWISE(gelu_fast, gelu_tanh(x), v_mul(g, gelu_tanh_slope(x)))
POINTWISE(sigmoid, v_sigmoid(x), v_mul(g, v_mul(y, v_sub(v_set1(1), y))))
POINTWISE(tanh, v_tanh(x), v_mul(g, v_fma(v_neg(y), y, v_set1(1))))

static const struct pointwise kinds[OP_COUNT] = {
    [OP_RELU] = { relu_forward, relu_backward },
    [OP_LEAKY_RELU] = { leaky_relu_forward, leaky_relu_backward },
    [OP_GELU] = { gelu_erf_forward, gelu_erf_backward },
    [OP_SIGMOID] = { sigmoid_forward, sigmoid_backward },
    [OP_TANH] = { tanh_forward, tanh_backward },
};
static const struct pointwise gelu_by_tanh = { gelu_fast_forward, gelu_fast_backward };

static int match(const struct plan *p, const struct graph *g, int at)
{
    (void)p;
    return kinds[g->node[at].op].forward != NULL;
}

static int build(struct stage *s, struct plan *p, struct err *err)
{
    const struct tensor *in = s->in[0];
    const struct node *node = s->node;
    const struct pointwise **own = plan_take(p, sizeof *own);

    (void)err;
    *own = node->op == OP_GELU && node->approximate ? &gelu_by_tanh : &kinds[node->op];
    s->own = own;
    s->out = plan_tensor(p, in->h, in->w, in->c);
    stage_sync_inputs(s);
    return 0;
}

/* sigmoid(0) is not 0, and padding must be. */
static void clear_padding(float *y, const struct tensor *t, long samples)
{
    for (long i = 0; i < samples * t->h * t->w; i++)
        for (int c = t->c; c < t->cp; c++)
            y[i * t->cp + c] = 0;
}

static void forward(struct stage *s, struct member *m)
{
    const struct pointwise *const *kind = s->own;
    long size = s->out->size, n = m->n1 - m->n0;
    float *y = s->out->data + size * m->n0;

    (*kind)->forward(y, sample_data(m, s->in[0], m->n0), size * n, s->node);
    if (s->node->op == OP_SIGMOID && s->out->c < s->out->cp)
        clear_padding(y, s->out, n);
}

static void backward(struct stage *s, struct member *m)
{
    const struct pointwise *const *kind = s->own;
    const struct tensor *in = s->in[0], *out = s->out;
    int from, to;

    if (!in->grad)
        return;
    member_span(m, in, &from, &to);
    (*kind)->backward(sample_grad(m, in, from), out->grad + out->size * from,
                      sample_data(m, in, from), out->data + out->size * from,
                      out->size * (to - from), s->node, !stage_grad_first(s, 0));
}

const struct stage_ops ISA_FN(pointwise_stage) = {
    .name = "pointwise", .match = match, .build = build, .run = { forward, backward },
};
