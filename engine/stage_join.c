/* engine/stage_join.c - concat (channels side by side) and add */
#include "engine/stage.h"

static int match(const struct plan *p, const struct graph *g, int at)
{
    (void)p;
    return match_op(g, at, OP_CONCAT) || match_op(g, at, OP_ADD);
}

static int build(struct stage *s, struct plan *p, struct err *err)
{
    (void)err;
    s->out = plan_tensor(p, s->node->h, s->node->w, s->node->c);
    stage_sync_inputs(s);
    return 0;
}

static void concat(const struct stage *s, const struct member *m, int n)
{
    const struct tensor *out = s->out;
    long positions = (long)out->h * out->w;
    int offset = 0;

    for (int k = 0; k < s->n_in; k++) {
        const struct tensor *in = s->in[k];
        const float *x = sample_data(m, in, n);
        float *y = out->data + out->size * n + offset;
        for (long i = 0; i < positions; i++)
            memcpy(y + i * out->cp, x + i * in->cp, (size_t)in->c * sizeof *y);
        offset += in->c;
    }
}

static void add(const struct stage *s, const struct member *m, int n)
{
    const struct tensor *out = s->out;
    float *y = out->data + out->size * n;

    for (long i = 0; i < out->size; i += 16) {
        v16 sum = v_load_part(sample_data(m, s->in[0], n) + i, out->size - i);
        for (int k = 1; k < s->n_in; k++)
            sum = v_add(sum, v_load_part(sample_data(m, s->in[k], n) + i, out->size - i));
        v_store_part(y + i, sum, out->size - i);
    }
}

static void forward(struct stage *s, struct member *m)
{
    for (int n = m->n0; n < m->n1; n++) {
        if (s->node->op == OP_CONCAT)
            concat(s, m, n);
        else
            add(s, m, n);
    }
}

/* The part of the gradient that input k had: its channels, from `offset` on. */
static void split(const struct stage *s, const struct member *m, int k, int n, int offset)
{
    const struct tensor *in = s->in[k], *out = s->out;
    const float *dy = out->grad + out->size * n + offset;
    float *dx = sample_grad(m, in, n);
    bool first = stage_grad_first(s, k);

    for (long i = 0; i < (long)in->h * in->w; i++, dx += in->cp, dy += out->cp) {
        for (int c = 0; c < in->c; c++)
            dx[c] = first ? dy[c] : dx[c] + dy[c];
        for (int c = in->c; first && c < in->cp; c++)
            dx[c] = 0;
    }
}

static void pass_on(const struct stage *s, const struct member *m, int k, int n)
{
    const struct tensor *in = s->in[k], *out = s->out;
    const float *dy = out->grad + out->size * n;
    float *dx = sample_grad(m, in, n);
    bool first = stage_grad_first(s, k);

    for (long i = 0; i < out->size; i += 16)
        grad_put(dx + i, v_load_part(dy + i, out->size - i), out->size - i, first);
}

static void backward(struct stage *s, struct member *m)
{
    int offset = 0;

    for (int k = 0; k < s->n_in; k++) {
        const struct tensor *in = s->in[k];
        int from, to;
        member_span(m, in, &from, &to);
        for (int n = from; in->grad && n < to; n++) {
            if (s->node->op == OP_CONCAT)
                split(s, m, k, n, offset);
            else
                pass_on(s, m, k, n);
        }
        offset += in->c;
    }
}

const struct stage_ops ISA_FN(join_stage) = {
    .name = "join", .match = match, .build = build, .run = { forward, backward },
};
