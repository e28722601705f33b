/* engine/stage_input.c - a field of the data set as a tensor */
#include "engine/stage.h"

struct input {
    float value[4][256];        /* of a byte, by channel: one division each, as PyTorch has it */
};

static int match(const struct plan *p, const struct graph *g, int at)
{
    (void)p;
    return match_op(g, at, OP_INPUT);
}

static int build(struct stage *s, struct plan *p, struct err *err)
{
    const struct field *f = &p->field[s->node->field];
    struct input *own = plan_alloc(p, struct input);

    if (f->type == DTYPE_U8 && f->c > 4)
        return err_set(err, ERR_INVALID, "field \"%s\": an image of bytes has up to 4 channels, not "
                       "%d", f->name, f->c);
    for (int c = 0; f->type == DTYPE_U8 && c < f->c; c++)
        for (int b = 0; b < 256; b++)
            own->value[c][b] = ((float)b / 255.0f - f->mean[c]) / f->std[c];
    s->own = own;
    s->out = plan_tensor(p, s->node->h, s->node->w, s->node->c);
    return 0;
}

static void from_bytes(float *to, const uint8_t *from, const struct tensor *t,
                       const struct input *own)
{
    for (long i = 0; i < (long)t->h * t->w; i++)
        for (int c = 0; c < t->c; c++)
            to[i * t->cp + c] = own->value[c][from[i * t->c + c]];
}

static void from_floats(float *to, const float *from, const struct tensor *t)
{
    for (long i = 0; i < (long)t->h * t->w; i++)
        memcpy(to + i * t->cp, from + i * t->c, (size_t)t->c * sizeof *to);
}

static void from_ints(float *to, const int32_t *from, const struct tensor *t)
{
    for (long i = 0; i < (long)t->h * t->w; i++)
        for (int c = 0; c < t->c; c++)
            to[i * t->cp + c] = (float)from[i * t->c + c];
}

static void forward(struct stage *s, struct member *m)
{
    const struct tensor *t = s->out;
    int field = s->node->field;

    for (int n = m->n0; n < m->n1; n++) {
        const void *row = member_row(m, field, n);
        float *to = member_data(m, t) + t->size * n;
        switch (m->plan->field[field].type) {
        case DTYPE_U8: from_bytes(to, row, t, s->own); break;
        case DTYPE_F32: from_floats(to, row, t); break;
        case DTYPE_I32: from_ints(to, row, t); break;
        }
    }
}

const struct stage_ops ISA_FN(input_stage) = {
    .name = "input", .match = match, .build = build, .run = { forward },
};
