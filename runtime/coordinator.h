/* runtime/coordinator.h - keeps the roster of a job of many workers, and its records
 *
 * The coordinator computes nothing and no step waits for it: workers exchange gradients among
 * themselves. It hears who is there (a closed connection at once, a silent one after five beats),
 * makes generations (roster.h), writes down what the first worker of the list reports (losses,
 * tests, checkpoints, the end) and answers watchers. Its own state is small and on disk, so it can
 * be killed at any moment: whoever started it starts it again with the same listener, the workers
 * come back to it, and nobody else notices.
 *
 * In the run directory, beside what rundir.h lists:
 *   roster.json     generation, next id, ids on the list: written before it is told
 *   roster.jsonl    a line for each change: start, join, unable (to have its rows), lost, leave,
 *                   refused, go, step (the first one of a generation), checkpoint, end
 *   job.json        address and pid of the coordinator, for muster top and muster resize, until the end
 */
#ifndef MUSTER_RUNTIME_COORDINATOR_H
#define MUSTER_RUNTIME_COORDINATOR_H

#include <stdatomic.h>

#include "runtime/rundir.h"
#include "runtime/trainer.h"

struct coordinator_config {
    struct trainer *trainer;    /* of the same spec, shared; never trains: it writes files */
    const char *data;           /* digest of its data, which every worker must have too */
    const struct buf *offer;    /* what they may read by part instead (runtime/fetch.h) ... */
    const char *offered;        /* ... and its digest; "": nothing */
    struct rundir *dir;
    const char *token;
    int listener;               /* bound; stays open for the next coordinator */
    const char *address;        /* of the listener, as workers reach it */
    int min, max;               /* workers */
    int beat_ms;
    long logged, tested;        /* the last steps that metrics.jsonl has */
    atomic_bool *over;          /* set when workers are sent away for good: none is to be started */
    train_handler handler;      /* told of events as a trainer tells them */
    void *arg;
};

/* Until the job has ended, or coordinator_stop: then everything is saved and `out->stopped` says
 * so. The error is that of the workers when they all failed the same way. */
int coordinator_run(const struct coordinator_config *c, struct fit_result *out, char out_digest[65],
                    struct err *err);
/* From a signal handler. */
void coordinator_stop(void);

#endif
