/* runtime/job.h - a job of many workers on this machine, kept going
 *
 * The one who starts a job: it holds the coordinator's listener, starts the coordinator and the
 * workers, and starts them again when they die. It computes nothing and keeps nothing: the
 * coordinator's state is on disk, the model is with the workers. When it dies, so do they all, and
 * the run goes on from its last checkpoint with --resume.
 */
#ifndef MUSTER_RUNTIME_JOB_H
#define MUSTER_RUNTIME_JOB_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/err.h"

enum { JOB_ADDRESS = 256, JOB_TOKEN = 128 };

/* What a coordinator needs to run; the rest is the caller's own. */
struct job_desk {
    int listener;
    char address[JOB_ADDRESS];
    char token[JOB_TOKEN];
    bool stopping;              /* the one before was killed when it had been asked to stop */
    atomic_bool *over;          /* it sets this when it sends the workers away for good */
};

struct job_config {
    const char *dir;            /* of the run; must be there */
    const struct job_desk *desk;        /* from job_open */
    int max;                    /* workers to start here; roster.json may change it */
    int threads;                /* of each */
    /* Runs the coordinator, in a process of its own; ends with it. */
    int (*coordinate)(void *arg, const struct job_desk *desk, struct err *err);
    void *arg;
};

/* What can be known before there is a run: that there may be so many processes, the token, which is
 * that of the environment (MUSTER_TOKEN) or a new one, and the listener, which the caller closes.
 * `listen` NULL: 127.0.0.1, any port. */
int job_open(const char *listen, int max, struct job_desk *out, struct err *err);

/* Until the coordinator has ended by itself; the error is its own. The token lies in DIR/token for
 * this user alone. A second SIGINT or SIGTERM, a while after the first, ends it at once. */
int job_run(const struct job_config *c, struct err *err);

/* Where the job of a run directory is: address and token. ERR_MISSING: none has been started, or
 * it has ended. */
int job_find(const char *dir, struct job_desk *out, struct err *err);
/* What it means that the job found there did not answer, or not to this token: `err` is what came
 * of it, and becomes a sentence about the run. Returns -code. */
int job_explain(const char *dir, const struct job_desk *desk, struct err *err);
bool job_ended(const char *dir);        /* what it made is there */

#endif
