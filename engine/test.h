/* engine/test.h - a plan's answers on a data set */
#ifndef MUSTER_ENGINE_TEST_H
#define MUSTER_ENGINE_TEST_H

#include "base/err.h"
#include "data/dataset.h"
#include "engine/metrics.h"
#include "engine/plan.h"

/* Goes through `data` once, in order; `metrics` is reset first. */
int plan_test(struct plan *p, struct dataset *data, struct metrics *metrics, long *out_samples,
              struct err *err);

#endif
