/* engine/metrics.h - how good a model's answers are
 *
 * Answers are added in sample order, sums are kept in double, so a value does not depend on
 * threads. `loss` is the mean of the samples' losses; `auc` sorts all scores (ties count half).
 */
#ifndef MUSTER_ENGINE_METRICS_H
#define MUSTER_ENGINE_METRICS_H

#include "base/err.h"
#include "base/own.h"

enum { METRICS_MAX = 16 };

struct metrics;

/* `names` as in a spec: loss accuracy top_5 precision recall auc mae rmse r2; "loss" is always
 * there, first. `classes` 0: regression; 2 with one output: a probability by sigmoid (`logit`). */
int metrics_new(const char *const *names, int n, int classes, int outputs, struct metrics **out,
                struct err *err);
void metrics_free(struct metrics *m);
OWN_DEFINE(metrics)

void metrics_reset(struct metrics *m);
/* One sample: its outputs (logits or values), class or target value, loss, weight (1: none). */
void metrics_add(struct metrics *m, const float *output, double target, double loss, double weight);
int metrics_count(const struct metrics *m);
const char *metrics_name(const struct metrics *m, int i);
double metrics_value(struct metrics *m, int i);
/* True when larger is better (accuracy, auc, ...). */
int metrics_larger_is_better(const char *name);

#endif
