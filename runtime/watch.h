/* runtime/watch.h - looking at a running job, and asking something of it */
#ifndef MUSTER_RUNTIME_WATCH_H
#define MUSTER_RUNTIME_WATCH_H

#include <jansson.h>

#include "base/err.h"
#include "runtime/job.h"

/* Calls `tell` with each status (several a second, and at each change) until it returns non-zero,
 * the job has ended, or nobody answers for `patience_ms`: a coordinator may be on its way back. A
 * status has name, phase, generation, min, max, step, epoch, epochs, steps_in_epoch, loss,
 * samples_per_s and workers: id, pid, address, from, to, step, bytes_per_step. */
int watch_job(const struct job_desk *desk, int patience_ms,
              int (*tell)(void *arg, const json_t *status), void *arg, struct err *err);

/* One question, as {"resize": [2, 8]} or {"stop": true}; *out (caller frees) is the status
 * after. */
int watch_ask(const struct job_desk *desk, const json_t *question, json_t **out, struct err *err);

#endif
