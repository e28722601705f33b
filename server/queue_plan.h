/* server/queue_plan.h - who runs, and with how many workers: the decision alone
 *
 * A pure function of what runs, what waits and what the machine has. In order:
 *   1. a job waits its turn: higher priority first, then the project that has used least, then the
 *      older one. It starts when all of its `min` workers fit on the machine at once;
 *   2. where they would fit without the workers that others have beyond their min, those are taken
 *      back, one by one, from the job with the largest (n - min) / (max - min); the job starts when
 *      they have left;
 *   3. one that does not fit may be overtaken by others that do, but not for longer than patience_s:
 *      from then on what it is short of is kept for it;
 *   4. what is idle then is handed out, one worker at a time, to the job with the smallest
 *      (n - min) / (max - min), while the load stays within load_limit. Above the limit, workers are
 *      taken back.
 * A worker that was told to leave counts until it has left. A project may have a quota: the jobs that
 * run in it stay within it together. A job that does not fit into it waits, whoever overtakes it, and
 * nothing is kept for it; workers that other jobs of the project have beyond their min are taken back.
 */
#ifndef MUSTER_SERVER_QUEUE_PLAN_H
#define MUSTER_SERVER_QUEUE_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum plan_resource { PLAN_CPU, PLAN_MEMORY, PLAN_GPU, PLAN_RESOURCES };

struct plan_machine {
    int64_t has[PLAN_RESOURCES];        /* thousandths of a core, bytes, pieces */
    double load_limit;                  /* of the cores, for growing */
};

/* What a job that waits is short of in its project's quota. */
enum plan_short { PLAN_SHORT_OF_NOTHING, PLAN_SHORT_CPU, PLAN_SHORT_MEMORY, PLAN_SHORT_GPU,
                  PLAN_SHORT_PROCESSES, PLAN_SHORT_JOBS };

/* What the jobs of a project that run may have together; 0: no limit. */
struct plan_quota {
    int64_t has[PLAN_RESOURCES], processes, jobs;
    int64_t held[PLAN_RESOURCES], soon[PLAN_RESOURCES];         /* plan_decide's own */
    int64_t n_processes, n_jobs;
};

struct plan_job {
    int64_t id;
    int project;                /* a number of the caller's */
    int priority;
    int min, max;               /* workers */
    bool elastic;               /* between min and max while it runs; else it has min */
    int64_t each[PLAN_RESOURCES];       /* what a worker needs */
    int64_t memory, processes;  /* what all of it may use beside that: of its project's quota */
    double since;               /* waiting: since when */
    bool settled;               /* running: it can be resized now */
    int n, now;                 /* running: told to have; there are */
    int want;                   /* out. Running: to have from now on. Waiting: start it with so many;
                                   0: not yet */
    enum plan_short shorts;     /* out. Waiting */
};

struct plan {
    struct plan_machine machine;
    struct plan_job *running, *waiting;
    int n_running, n_waiting;
    double *share;              /* of each project: what it has used; changed */
    double now, patience_s;
    struct plan_quota *quotas;  /* of each project; changed. NULL: no project has one */
};
void plan_decide(struct plan *p);

/* ERR_INVALID with a sentence when it can never run on this machine. */
int plan_possible(const struct plan_machine *m, const struct plan_job *j, struct err *err);

#endif
