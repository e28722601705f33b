/* engine/stage_dropout.c - zeroes at random, the rest scaled up
 *
 * Whether an element is kept is a pure function of (seed, step, layer, position in the batch,
 * element as stored), so no mask is kept: backward draws it again. Philox with the stream
 * RNG_DROPOUT + (layer, step) and the counter (position, element / 4).
 */
#include "base/rng.h"
#include "engine/stage.h"

enum { BLOCKS = 16, CHUNK = 4 * BLOCKS };       /* elements drawn at a time */

static int match(const struct plan *p, const struct graph *g, int at)
{
    (void)p;
    return match_op(g, at, OP_DROPOUT);
}

static int build(struct stage *s, struct plan *p, struct err *err)
{
    const struct tensor *in = s->in[0];

    (void)err;
    s->out = s->in[0];          /* nothing to do in a plan that only predicts */
    if (p->train && s->node->p > 0) {
        s->out = plan_tensor(p, in->h, in->w, in->c);
        stage_sync_inputs(s);
    }
    return 0;
}

/* Factors of CHUNK elements from `from` on: 0 or 1 / (1 - p). rng_philox sixteen times abreast. */
static void draw(const struct stage *s, const struct member *m, int n, long from, float *factor)
{
    const uint64_t stream = RNG_DROPOUT + ((uint64_t)s->at << 40) +
                            (m->step & ((UINT64_C(1) << 40) - 1));
    const uint64_t seed = m->plan->seed;
    const uint32_t limit = (uint32_t)((double)s->node->p * 4294967296.0);
    const float keep = 1 / (1 - s->node->p);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0[BLOCKS], c1[BLOCKS], c2[BLOCKS], c3[BLOCKS];

    for (int i = 0; i < BLOCKS; i++) {
        c0[i] = (uint32_t)(from / 4 + i);
        c1[i] = (uint32_t)(m->base + n);
        c2[i] = (uint32_t)stream;
        c3[i] = (uint32_t)(stream >> 32);
    }
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < BLOCKS; i++) {
            uint64_t p0 = (uint64_t)0xD2511F53u * c0[i], p1 = (uint64_t)0xCD9E8D57u * c2[i];
            c0[i] = (uint32_t)(p1 >> 32) ^ c1[i] ^ k0;
            c1[i] = (uint32_t)p1;
            c2[i] = (uint32_t)(p0 >> 32) ^ c3[i] ^ k1;
            c3[i] = (uint32_t)p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < BLOCKS; i++) {
        factor[4 * i] = c0[i] >= limit ? keep : 0;
        factor[4 * i + 1] = c1[i] >= limit ? keep : 0;
        factor[4 * i + 2] = c2[i] >= limit ? keep : 0;
        factor[4 * i + 3] = c3[i] >= limit ? keep : 0;
    }
}

/* to = from * factor, set or added, for one sample */
static void drop(const struct stage *s, const struct member *m, int n, float *to, const float *from,
                 bool first)
{
    const long size = s->out->size;
    ALIGNED float factor[CHUNK];

    for (long at = 0; at < size; at += CHUNK) {
        draw(s, m, n, at, factor);
        for (long i = at; i < size && i < at + CHUNK; i += 16) {
            v16 v = v_mul(v_load_part(from + i, size - i), v_load(factor + (i - at)));
            grad_put(to + i, v, size - i, first);
        }
    }
}

static void forward(struct stage *s, struct member *m)
{
    const struct tensor *in = s->in[0], *out = s->out;

    for (int n = m->n0; out != in && n < m->n1; n++) {
        const float *x = sample_data(m, in, n);
        float *y = out->data + out->size * n;
        if (m->train)
            drop(s, m, n, y, x, true);
        else
            memcpy(y, x, (size_t)out->size * sizeof *y);
    }
}

static void backward(struct stage *s, struct member *m)
{
    const struct tensor *in = s->in[0], *out = s->out;
    int from, to;

    if (!in->grad || out == in)
        return;
    member_span(m, in, &from, &to);
    for (int n = from; n < to; n++)
        drop(s, m, n, sample_grad(m, in, n), out->grad + out->size * n, stage_grad_first(s, 0));
}

const struct stage_ops ISA_FN(dropout_stage) = {
    .name = "dropout", .match = match, .build = build, .run = { forward, backward },
};
