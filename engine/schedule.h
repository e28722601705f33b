/* engine/schedule.h - the learning rate over time
 *
 * The rate of a step is lr * factor * warm-up; the factor changes between epochs (step, cosine) or
 * after a test (plateau). The state is small and plain, so that a checkpoint can hold it.
 */
#ifndef MUSTER_ENGINE_SCHEDULE_H
#define MUSTER_ENGINE_SCHEDULE_H

#include <jansson.h>

#include "base/err.h"

struct schedule {
    enum { SCHEDULE_CONSTANT, SCHEDULE_STEP, SCHEDULE_COSINE, SCHEDULE_PLATEAU } kind;
    long every;                 /* STEP: epochs; COSINE: epochs of the half wave */
    double gamma, min;          /* STEP, PLATEAU: factor; COSINE: the rate it ends with */
    double lr;                  /* the optimizer's rate, for `min` */
    int patience;
    char metric[32];            /* PLATEAU */
    long warmup;                /* steps */
    /* state */
    double factor;
    double best;
    int waited;
};

/* `spec` NULL: constant. `epochs` is the run's length, `lr` the optimizer's rate. */
int schedule_parse(const json_t *spec, int epochs, double lr, struct schedule *out, struct err *err);
/* The factor for an epoch that starts (0, 1, ...). */
double schedule_epoch(struct schedule *s, int epoch);
/* After a test: the value of s->metric. Returns the factor from now on. */
double schedule_test(struct schedule *s, double value);

#endif
