/* engine/stage_pool.c - the largest or the mean value of a window, as PyTorch defines them
 *
 * Max: padding never wins, a tie goes to the first in row order, NaN wins. The winner is found again
 * in backward instead of being kept. Mean: padding counts as zeros, also in the divisor, but only
 * as far as the padded image reaches.
 */
#include "engine/stage.h"

/* A window's rows and columns inside the image. */
struct window {
    int y0, y1, x0, x1;
    int area;                   /* with padding */
};

static int match(const struct plan *p, const struct graph *g, int at)
{
    (void)p;
    return match_op(g, at, OP_MAXPOOL) || match_op(g, at, OP_AVGPOOL);
}

static int build(struct stage *s, struct plan *p, struct err *err)
{
    (void)err;
    s->out = plan_tensor(p, s->node->h, s->node->w, s->node->c);
    stage_sync_inputs(s);
    return 0;
}

INLINE int max_int(int a, int b) { return a > b ? a : b; }
INLINE int min_int(int a, int b) { return a < b ? a : b; }

INLINE struct window window_at(const struct node *node, const struct tensor *in, int oy, int ox)
{
    int y = oy * node->stride[0] - node->padding[0], x = ox * node->stride[1] - node->padding[1];
    int ye = min_int(y + node->kernel[0], in->h + node->padding[0]);
    int xe = min_int(x + node->kernel[1], in->w + node->padding[1]);

    return (struct window){ max_int(y, 0), min_int(ye, in->h), max_int(x, 0), min_int(xe, in->w),
                            (ye - y) * (xe - x) };
}

/* Index in the image of the winner of each lane, as a float, and its value. */
INLINE v16 winner(const float *x, const struct tensor *in, const struct window *w, int c, v16 *value)
{
    long first = (long)w->y0 * in->w + w->x0;
    v16 best = v_load_part(x + first * in->cp + c, in->cp - c), index = v_set1((float)first);

    for (int y = w->y0; y < w->y1; y++)
        for (int xx = w->x0; xx < w->x1; xx++) {
            long i = (long)y * in->w + xx;
            v16 v = v_load_part(x + i * in->cp + c, in->cp - c), at = v_set1((float)i);
            index = v_sel_eq(v, v, v_sel_gt(v, best, at, index), at);
            best = v_sel_eq(v, v, v_sel_gt(v, best, v, best), v);
        }
    *value = best;
    return index;
}

INLINE v16 mean(const float *x, const struct tensor *in, const struct window *w, int c)
{
    v16 sum = v_zero();

    for (int y = w->y0; y < w->y1; y++)
        for (int xx = w->x0; xx < w->x1; xx++)
            sum = v_add(sum, v_load_part(x + ((long)y * in->w + xx) * in->cp + c, in->cp - c));
    return v_div(sum, v_set1((float)w->area));
}

static void forward(struct stage *s, struct member *m)
{
    const struct tensor *in = s->in[0], *out = s->out;
    const bool max = s->node->op == OP_MAXPOOL;

    for (int n = m->n0; n < m->n1; n++) {
        const float *x = sample_data(m, in, n);
        float *y = out->data + out->size * n;
        for (int oy = 0; oy < out->h; oy++)
            for (int ox = 0; ox < out->w; ox++, y += out->cp) {
                struct window w = window_at(s->node, in, oy, ox);
                for (int c = 0; c < in->cp; c += 16) {
                    v16 v;
                    if (max)
                        winner(x, in, &w, c, &v);
                    else
                        v = mean(x, in, &w, c);
                    v_store_part(y + c, v, in->cp - c);
                }
            }
    }
}

INLINE void spread(float *dx, const float *x, v16 g, const struct tensor *in,
                   const struct window *w, int c, bool max)
{
    v16 value, index = max ? winner(x, in, w, c, &value) : v_zero();

    for (int y = w->y0; y < w->y1; y++)
        for (int xx = w->x0; xx < w->x1; xx++) {
            long i = (long)y * in->w + xx;
            float *to = dx + i * in->cp + c;
            v16 part = max ? v_sel_eq(index, v_set1((float)i), g, v_zero()) : g;
            v_store_part(to, v_add(v_load_part(to, in->cp - c), part), in->cp - c);
        }
}

static void backward(struct stage *s, struct member *m)
{
    const struct tensor *in = s->in[0], *out = s->out;
    const bool max = s->node->op == OP_MAXPOOL;
    int from, to;

    if (!in->grad)
        return;
    member_span(m, in, &from, &to);
    for (int n = from; n < to; n++) {
        const float *x = sample_data(m, in, n), *dy = out->grad + out->size * n;
        float *dx = sample_grad(m, in, n);
        if (stage_grad_first(s, 0))
            memset(dx, 0, (size_t)in->size * sizeof *dx);
        for (int oy = 0; oy < out->h; oy++)
            for (int ox = 0; ox < out->w; ox++, dy += out->cp) {
                struct window w = window_at(s->node, in, oy, ox);
                for (int c = 0; c < in->cp; c += 16) {
                    v16 g = v_load_part(dy + c, in->cp - c);
                    if (!max)
                        g = v_div(g, v_set1((float)w.area));
                    spread(dx, x, g, in, &w, c, max);
                }
            }
    }
}

const struct stage_ops ISA_FN(pool_stage) = {
    .name = "pool", .match = match, .build = build, .run = { forward, backward },
};
