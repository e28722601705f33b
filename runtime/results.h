/* runtime/results.h - results of steps and tests on their way from a worker to the coordinator
 *
 * Every worker remembers the last of them, so that whoever is first on the list can tell what the
 * coordinator has not written down yet, also one that was not first a moment ago.
 */
#ifndef MUSTER_RUNTIME_RESULTS_H
#define MUSTER_RUNTIME_RESULTS_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "engine/metrics.h"
#include "engine/plan.h"

enum { RESULTS_KEPT = 16384, RESULTS_SENT = 8192, TESTS_KEPT = 256 };

/* Where the run was when they were told. */
struct results_place {
    int64_t epoch, steps_in_epoch;
    double samples_per_s;
};

struct told_test {
    int64_t step, epoch, n;
    double value[METRICS_MAX];
};

struct results {
    struct step_result kept[RESULTS_KEPT];      /* by step % RESULTS_KEPT */
    long first, next;                           /* steps [first, next) are kept */
    struct told_test test[TESTS_KEPT];          /* by number % TESTS_KEPT, in the order of steps */
    long tests;                                 /* that there were */
};

void results_add(struct results *r, const struct step_result *result, long n);
void results_add_test(struct results *r, const struct told_test *test);
void results_clear(struct results *r);
/* The first test after a step that is kept; NULL: none. How many of them there are. */
const struct told_test *results_test_after(const struct results *r, long step);
int results_tests_after(const struct results *r, long step);
/* Steps from `from` on (or the first that is kept) to before `until`, at most RESULTS_SENT; returns
 * the step after the last one. */
long results_pack(const struct results *r, long from, long until, const struct results_place *place,
                  struct buf *out);
/* Back; *out is malloced, the caller's. ERR_INVALID: not what results_pack writes. */
int results_unpack(const void *bytes, size_t n, struct results_place *place,
                   struct step_result **out, long *out_n, struct err *err);
/* All tests that are kept, for a worker that has none yet. */
void results_pack_tests(const struct results *r, struct buf *out);
int results_unpack_tests(struct results *r, const void *bytes, size_t n, struct err *err);

#endif
