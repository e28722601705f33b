/* engine/schedule.c - the learning rate over time */
#include "engine/schedule.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/metrics.h"

/* cos(pi x) for x in [0, 1]: sin(pi (1/2 - x)) by its series, in plain operations, since libm's
 * cos has variants by processor. The last term is below 1e-17 there. */
static double cos_pi(double x)
{
    double y = 3.14159265358979323846 * (0.5 - x), square = y * y, term = y, sum = y;

    for (int k = 1; k <= 11; k++) {
        term *= -square / (double)((2 * k) * (2 * k + 1));
        sum += term;
    }
    return sum;
}

static double number_or(const json_t *args, const char *key, double otherwise)
{
    const json_t *v = json_object_get(args, key);
    return json_is_number(v) ? json_number_value(v) : otherwise;
}

static int larger_is_better(const struct schedule *s)
{
    const char *metric = s->metric;

    if (strncmp(metric, "test_", 5) == 0)
        metric += 5;
    return metrics_larger_is_better(metric);
}

static void read_plateau(struct schedule *s, const json_t *args)
{
    const char *metric = json_string_value(json_object_get(args, "metric"));

    s->kind = SCHEDULE_PLATEAU;
    s->patience = (int)number_or(args, "patience", 10);
    s->gamma = number_or(args, "factor", 0.1);
    snprintf(s->metric, sizeof s->metric, "%s", metric ? metric : "test_loss");
    s->best = larger_is_better(s) ? -INFINITY : INFINITY;
}

int schedule_parse(const json_t *spec, int epochs, double lr, struct schedule *out, struct err *err)
{
    struct schedule s = { .kind = SCHEDULE_CONSTANT, .lr = lr, .factor = 1 };
    const json_t *step = json_object_get(spec, "step"), *cosine = json_object_get(spec, "cosine");
    const json_t *plateau = json_object_get(spec, "plateau");

    if (!!step + !!cosine + !!plateau > 1)
        return err_set(err, ERR_INVALID, "schedule: one of step, cosine and plateau, not several");
    if (step) {
        s.kind = SCHEDULE_STEP;
        s.every = (long)number_or(step, "every", 1);
        s.gamma = number_or(step, "gamma", 0.1);
    } else if (cosine) {
        s.kind = SCHEDULE_COSINE;
        s.every = (long)number_or(cosine, "epochs", epochs);
        s.min = number_or(cosine, "min", 0);
    } else if (plateau) {
        read_plateau(&s, plateau);
    }
    if (s.kind != SCHEDULE_CONSTANT && s.kind != SCHEDULE_PLATEAU && s.every < 1)
        return err_set(err, ERR_INVALID, "schedule: needs at least one epoch, not %ld", s.every);
    s.warmup = (long)number_or(json_object_get(spec, "warmup"), "steps", 0);
    *out = s;
    return 0;
}

double schedule_epoch(struct schedule *s, int epoch)
{
    if (s->kind == SCHEDULE_STEP) {
        s->factor = 1;
        for (long i = s->every; i <= epoch; i += s->every)
            s->factor *= s->gamma;
    } else if (s->kind == SCHEDULE_COSINE) {
        double x = epoch < s->every ? (double)epoch / (double)s->every : 1;
        double rate = s->min + (s->lr - s->min) * (1 + cos_pi(x)) / 2;
        s->factor = s->lr > 0 ? rate / s->lr : 1;
    }
    return s->factor;
}

/* As PyTorch's ReduceLROnPlateau: an improvement is one of more than a ten-thousandth; a cut of
 * less than 1e-8 is not worth making. */
double schedule_test(struct schedule *s, double value)
{
    const double threshold = 1e-4;
    int better;

    if (s->kind != SCHEDULE_PLATEAU)
        return s->factor;
    if (larger_is_better(s))
        better = value > s->best * (1 + threshold);
    else
        better = value < s->best * (1 - threshold);
    if (better) {
        s->best = value;
        s->waited = 0;
    } else if (++s->waited > s->patience) {
        double cut = s->factor * s->gamma;
        if (s->lr * (s->factor - cut) > 1e-8)
            s->factor = cut;
        s->waited = 0;
    }
    return s->factor;
}
