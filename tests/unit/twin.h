/* tests/unit/twin.h - a chain of layers in double precision, written for reading
 *
 * The slow, clear twin that fast stages are judged by: conv2d, batchnorm, relu, tanh, maxpool,
 * flatten and linear over one U8 image, then cross entropy. Values are (N, C, H, W) as PyTorch has
 * them; parameters come from a plan, in logical order, by name.
 */
#ifndef MUSTER_TESTS_TWIN_H
#define MUSTER_TESTS_TWIN_H

#include "engine/plan.h"

struct twin;

/* Takes the plan's present weights. `g` is a chain; both must outlive the twin. */
struct twin *twin_new(const struct plan *p, const struct graph *g);
void twin_free(struct twin *t);

/* Forward over rows order[0..n) of a U8 field and its U8 labels; in training also backward. Returns
 * the mean loss. */
double twin_run(struct twin *t, const struct field *image, const struct field *label,
                const uint32_t *order, int n, bool train);
/* After twin_run: the gradient of a parameter, (count); NULL: it has none of that name. For a
 * running statistic: its new value. */
const double *twin_grad(const struct twin *t, const char *name);
/* After twin_run: output of sample i. */
const double *twin_output(const struct twin *t, int i);

#endif
