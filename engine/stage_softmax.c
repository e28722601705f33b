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

INLINE v16 live_lanes(const struct tensor *t, int c, v16 v)
{
    return t->c - c >= 16 ? v : v_pick((mask16)((1u << (t->c - c)) - 1), v, v_zero());
}

static void softmax_position(const struct tensor *t, const float *x, float *y, bool log)
{
    float most = x[0];
    v16 sum = v_zero();

    for (int c = 1; c < t->c; c++)
        most = x[c] > most ? x[c] : most;       /* NaN comes back through the sum */
    for (int c = 0; c < t->cp; c += 16) {
        v16 e = v_exp(v_sub(v_load_part(x + c, t->cp - c), v_set1(most)));
        e = live_lanes(t, c, e);
        sum = v_add(sum, e);
        if (!log)
            v_store_part(y + c, e, t->cp - c);
    }
    float total = v_sum(sum);
    v16 rest = v_set1(log ? f_log(total) : total);
    for (int c = 0; c < t->cp; c += 16) {
        v16 v = log ? v_sub(v_sub(v_load_part(x + c, t->cp - c), v_set1(most)), rest)
                    : v_div(v_load_part(y + c, t->cp - c), rest);
        v_store_part(y + c, live_lanes(t, c, v), t->cp - c);
    }
}

static void forward(struct stage *s, struct member *m)
{
    const struct tensor *in = s->in[0], *out = s->out;

    for (int n = m->n0; n < m->n1; n++)
        for (long i = 0; i < in->size; i += in->cp)
            softmax_position(in, sample_data(m, in, n) + i, out->data + out->size * n + i,
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
        grad_put(dx + c, live_lanes(t, c, d), t->cp - c, first);
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
