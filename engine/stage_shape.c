/* engine/stage_shape.c - flatten and identity: the same values, perhaps in another order */
#include "engine/stage.h"

static int match(const struct plan *p, const struct graph *g, int at)
{
    (void)p;
    return match_op(g, at, OP_FLATTEN) || match_op(g, at, OP_IDENTITY);
}

static bool is_copy(const struct stage *s)
{
    return s->out != s->in[0];
}

/* What stays in place is the same tensor under another name; the graph decided which does. */
static int build(struct stage *s, struct plan *p, struct err *err)
{
    const struct node *node = s->node;
    struct tensor *in = s->in[0];

    (void)err;
    s->out = in;
    if (node->op == OP_FLATTEN && in->h * in->w > 1 && node->flat_h * node->flat_w == 1) {
        s->out = plan_tensor(p, 1, 1, node->c);
        stage_sync_inputs(s);
    }
    return 0;
}

/* (H, W, C) to (C, H, W) */
static void forward(struct stage *s, struct member *m)
{
    const struct tensor *in = s->in[0], *out = s->out;
    int hw = in->h * in->w;

    for (int n = m->n0; is_copy(s) && n < m->n1; n++) {
        const float *x = sample_data(m, in, n);
        float *y = out->data + out->size * n;
        for (int c = 0; c < in->c; c++)
            for (int i = 0; i < hw; i++)
                y[(long)c * hw + i] = x[(long)i * in->cp + c];
    }
}

static void backward(struct stage *s, struct member *m)
{
    const struct tensor *in = s->in[0], *out = s->out;
    int hw = in->h * in->w, from, to;

    if (!is_copy(s) || !in->grad)
        return;
    bool first = stage_grad_first(s, 0);
    member_span(m, in, &from, &to);
    for (int n = from; n < to; n++) {
        const float *dy = out->grad + out->size * n;
        float *dx = sample_grad(m, in, n);
        for (int i = 0; i < hw; i++)
            for (int c = 0; c < in->cp; c++) {
                float g = c < in->c ? dy[(long)c * hw + i] : 0;
                float *to_grad = &dx[(long)i * in->cp + c];
                *to_grad = first ? g : *to_grad + g;
            }
    }
}

const struct stage_ops ISA_FN(shape_stage) = {
    .name = "shape", .match = match, .build = build, .run = { forward, backward },
};
