/* runtime/worker.h - one of the processes that train a model together
 *
 * A worker has a full copy of the model and computes the shards that the roster gives it. It has
 * two threads of its own: the main one trains; the other talks to the coordinator, so that beats go
 * out however long a step takes, and a coordinator that died costs nothing: steps go on while it
 * is looked for. Workers that the coordinator took out (paused, cut off) come back as newcomers.
 */
#ifndef MUSTER_RUNTIME_WORKER_H
#define MUSTER_RUNTIME_WORKER_H

#include <stdbool.h>

#include "base/err.h"
#include "data/parts.h"
#include "spec/spec.h"

struct worker_config {
    const char *join;           /* "HOST:PORT" of the coordinator, as wire.h has addresses */
    const char *listen;         /* where other workers reach this one; NULL: as this host is seen
                                   from the coordinator, any port */
    const char *token;
    const struct job_spec *spec;        /* NULL: the job's own */
    const struct parts *parts;          /* files that it reads by part; NULL: none */
    int threads;
    bool no_shared_memory;
    bool *sent_away;            /* set when the job has enough workers; NULL: of no interest */
    int patience_ms;            /* how long a coordinator may be away (default 30 s) */
};

/* For muster torture, which is in the environment of its workers (MUSTER_TORTURE=STEPS_PER_S): they
 * go no faster than that, and SIGUSR1 cuts a worker off from its coordinator for a moment. With
 * MUSTER_TORTURE=STEPS_PER_S,FILE the pace is lifted when there is such a file; until then it is a
 * few steps a second after the first dozens, so that a job does not end before its test is done
 * with it. */

/* Until the job has ended or this worker was sent away. ERR_DENIED, ERR_CONFLICT: refused. */
int worker_run(const struct worker_config *c, struct err *err);

/* A proved connection to the coordinator; for a while, as the job may be about to start. */
int worker_reach(const char *join, const char *token, int *out_fd, struct err *err);

/* The job's spec from its coordinator; the caller frees it with spec_free. */
int worker_fetch_spec(const char *join, const char *token, struct job_spec **out, struct err *err);

#endif
