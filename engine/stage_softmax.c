/* engine/stage_softmax.c - softmax and its logarithm over the channels of each position */
#include "engine/math.h"
#include "engine/stage.h"

static int match(const struct plan *p, const struct graph *g, int at)
{
    (void)p;
    return match_op(g, at, OP_SOFTMAX) || match_op(g, at, OP_LOG_SOFTMAX);
}

static int build(struct stage *s, struct plan *p, struct err *err)
{
    const struct tensor *in = s->in[0];

    (void)err;
    s->out = plan_tensor(p, in->h, in->w, in->c);
    stage_sync_inputs(s);
    return 0;
}

/* The first n lanes, zero beyond. */
INLINE v16 live_lanes(int n, v16 v)
{
    return n >= 16 ? v : v_pick((mask16)((1u << n) - 1), v, v_zero());
}

/* Of n values, stored as np. */
static void softmax_row(const float *x, int n, int np, float *y, bool log)
{
    float most = x[0];
    v16 sum = v_zero();

    for (int c = 1; c < n; c++)
        most = x[c] > most ? x[c] : most;       /* NaN comes back through the sum */
    for (int c = 0; c < np; c += 16) {
        v16 e = v_exp(v_sub(v_load_part(x + c, np - c), v_set1(most)));
        e = live_lanes(n - c, e);
        sum = v_add(sum, e);
        if (!log)
            v_store_part(y + c, e, np - c);
    }
    float total = v_sum(sum);
    v16 rest = v_set1(log ? f_log(total) : total);
    for (int c = 0; c < np; c += 16) {
        v16 v = log ? v_sub(v_sub(v_load_part(x + c, np - c), v_set1(most)), rest)
                    : v_div(v_load_part(y + c, np - c), rest);
        v_store_part(y + c, live_lanes(n - c, v), np - c);
    }
}

void ISA_FN(softmax)(const float *x, int n, float *y)
{
    softmax_row(x, n, n, y, false);
}

static void forward(struct stage *s, struct member *m)
{
    const struct tensor *in = s->in[0], *out = s->out;

    for (int n = m->n0; n < m->n1; n++)
        for (long i = 0; i < in->size; i += in->cp)
            softmax_row(sample_data(m, in, n) + i, in->c, in->cp, out->data + out->size * n + i,
                        s->node->op == OP_LOG_SOFTMAX);
}

/* softmax: dx = y (dy - sum(dy y)); its logarithm: dx = dy - exp(y) sum(dy) */
static void grad_position(const struct tensor *t, const float *y, const float *dy, float *dx,
                          bool log, bool first)
{
    v16 sum = v_zero();

    for (int c = 0; c < t->cp; c += 16) {
        v16 g = v_load_part(dy + c, t->cp - c);
        sum = log ? v_add(sum, g) : v_fma(g, v_load_part(y + c, t->cp - c), sum);
    }
    v16 total = v_set1(v_sum(sum));
    for (int c = 0; c < t->cp; c += 16) {
        v16 g = v_load_part(dy + c, t->cp - c), p = v_load_part(y + c, t->cp - c);
        v16 d = log ? v_fma(v_neg(v_exp(p)), total, g) : v_mul(p, v_sub(g, total));
        grad_put(dx + c, live_lanes(t->c - c, d), t->cp - c, first);
    }
}

static void backward(struct stage *s, struct member *m)
{
    const struct tensor *in = s->in[0], *out = s->out;
    int from, to;

    if (!in->grad)
        return;
    member_span(m, in, &from, &to);
    for (int n = from; n < to; n++)
        for (long i = 0; i < in->size; i += in->cp)
            grad_position(in, out->data + out->size * n + i, out->grad + out->size * n + i,
                          sample_grad(m, in, n) + i, s->node->op == OP_LOG_SOFTMAX,
                          stage_grad_first(s, 0));
}

const struct stage_ops ISA_FN(softmax_stage) = {
    .name = "softmax", .match = match, .build = build, .run = { forward, backward },
};
