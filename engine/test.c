/* engine/test.c - a plan's answers on a data set */
#include "engine/test.h"

#include <limits.h>

struct pass {
    struct plan *plan;
    struct metrics *metrics;
    const struct stretch *data;
    long pos;
};

static double number_at(const struct stretch *s, int field, long pos)
{
    const struct field *f = &s->field[field];
    const void *row = (const char *)f->base + (size_t)s->order[pos] * f->stride;

    return f->type == DTYPE_I32 ? *(const int32_t *)row : *(const float *)row;
}

static int add_batch(void *arg, const struct step_result *r)
{
    struct pass *pass = arg;
    struct plan *p = pass->plan;

    for (int i = 0; i < r->n; i++) {
        double weight = p->weight_field < 0 ? 1 :
                        number_at(pass->data, p->weight_field, pass->pos + i);
        metrics_add(pass->metrics, plan_output(p, i),
                    number_at(pass->data, p->target_field, pass->pos + i), p->sample_loss[i],
                    weight);
    }
    pass->pos += r->n;
    return 0;
}

int plan_test(struct plan *p, struct dataset *data, struct metrics *metrics, long *out_samples,
              struct err *err)
{
    struct stretch s;
    long samples = 0;

    metrics_reset(metrics);
    if (dataset_rewind(data, 0, 0, err) < 0)
        return -(int)err->code;
    do {
        if (dataset_stretch(data, &s, err) < 0)
            return -(int)err->code;
        struct pass pass = { p, metrics, &s, 0 };
        plan_eval(p, &s, 0, LONG_MAX, NULL, add_batch, &pass);
        samples += s.n;
    } while (s.n && !s.last);
    *out_samples = samples;
    return 0;
}
