/* engine/schedule.c - the learning rate over time */
#include "engine/schedule.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "engine/metrics.h"

static double number(const json_t *of, const char *key, double otherwise)
{
    const json_t *v = json_object_get(of, key);
    return v ? json_number_value(v) : otherwise;
}

int schedule_parse(const json_t *spec, int epochs, double lr, struct schedule *out, struct err *err)
{
    const json_t *step = json_object_get(spec, "step");
    const json_t *cosine = json_object_get(spec, "cosine");
    const json_t *plateau = json_object_get(spec, "plateau");

    *out = (struct schedule){ .factor = 1, .best = NAN, .lr = lr };
    out->warmup = (long)number(json_object_get(spec, "warmup"), "steps", 0);
    if (step) {
        out->kind = SCHEDULE_STEP;
        out->every = (long)number(step, "every", 1);
        out->gamma = number(step, "gamma", 0.1);
        if (out->every < 1)
            return err_set(err, ERR_INVALID, "schedule.step.every: wants a number from 1");
    } else if (cosine) {
        out->kind = SCHEDULE_COSINE;
        out->every = (long)number(cosine, "epochs", epochs);
        out->min = number(cosine, "min", 0);
        if (out->every < 1)
            return err_set(err, ERR_INVALID, "schedule.cosine.epochs: wants a number from 1");
    } else if (plateau) {
        const char *metric = json_string_value(json_object_get(plateau, "metric"));
        out->kind = SCHEDULE_PLATEAU;
        out->gamma = number(plateau, "factor", 0.1);
        out->patience = (int)number(plateau, "patience", 10);
        snprintf(out->metric, sizeof out->metric, "%s", metric ? metric : "test_loss");
    }
    return 0;
}

/* cos by libm would differ between machines in the last bit, and with it every step after: a series in
 * plain double arithmetic has one value. x in [0, pi]; the error is below 1e-15. */
static double cosine(double x)
{
    /* cos x = -cos(pi - x): stay below pi/2, where the series needs few terms. */
    double sign = 1, half = 1.5707963267948966;
    if (x > half) {
        x = 2 * half - x;
        sign = -1;
    }
    double term = 1, sum = 1;
    for (int k = 1; k <= 12; k++) {
        term *= -x * x / (double)((2 * k - 1) * (2 * k));
        sum += term;
    }
    return sign * sum;
}

double schedule_epoch(struct schedule *s, int epoch)
{
    double factor = 1;

    if (s->kind == SCHEDULE_STEP)
        for (long i = 0; i < epoch / s->every; i++)
            factor *= s->gamma;
    else if (s->kind == SCHEDULE_COSINE) {
        double part = epoch < s->every ? (double)epoch / (double)s->every : 1;
        double low = s->lr > 0 ? s->min / s->lr : 0;
        factor = low + (1 - low) * (1 + cosine(3.141592653589793 * part)) / 2;
    } else if (s->kind == SCHEDULE_PLATEAU)
        factor = s->factor;
    s->factor = factor;
    return factor;
}

/* PyTorch's ReduceLROnPlateau: better by one part in ten thousand, `patience` tests of grace. */
double schedule_test(struct schedule *s, double value)
{
    const char *metric = strncmp(s->metric, "test_", 5) == 0 ? s->metric + 5 : s->metric;
    const double threshold = 1e-4;

    if (s->kind != SCHEDULE_PLATEAU)
        return s->factor;
    bool better = isnan(s->best) ||
                  (metrics_larger_is_better(metric) ? value > s->best * (1 + threshold)
                                                    : value < s->best * (1 - threshold));
    if (better) {
        s->best = value;
        s->waited = 0;
    } else if (++s->waited > s->patience) {
        s->factor *= s->gamma;
        s->waited = 0;
    }
    return s->factor;
}
