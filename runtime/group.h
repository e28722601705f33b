/* runtime/group.h - the processes of a user's own distributed program, as one group
 *
 * A program that reads what torch.distributed reads is started once for each rank on this machine
 * and watched. When a worker is lost (a signal, an exit code other than 0) the others, who wait for
 * it in some collective, are ended, and the whole group is started again: with a fresh port and a
 * restart count one higher. The group ends when every worker has ended with 0, when it was lost
 * once more than `max_restarts`, or when this process is asked to stop.
 *
 * How many: the first start has `max` workers, and so has the first restart, since whatever took a
 * worker may have been an accident; from the second restart on each has one fewer than the one
 * before, but at least `min`. The wait before a restart doubles from `backoff_s` on.
 *
 * Environment of a worker: that of this process without MUSTER_TOKEN, and
 *   RANK LOCAL_RANK           0 .. WORLD_SIZE-1
 *   WORLD_SIZE LOCAL_WORLD_SIZE  workers of this start
 *   GROUP_RANK GROUP_WORLD_SIZE  0 and 1: this machine is the only node
 *   MASTER_ADDR MASTER_PORT   127.0.0.1 and a port that was free just before the start
 *   TORCHELASTIC_RESTART_COUNT MUSTER_RESTART_COUNT  0, then one more with each restart
 *   TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID
 *   MUSTER_RUN                the run's directory, absolute: kept over restarts
 *   OMP_NUM_THREADS           cores / workers, at least 1, where the user has not set it
 *   PYTHONUNBUFFERED          1 where the user has not set it, so that lines come as they are made
 *
 * Nobody is left behind: each worker leads a process group of its own, which is ended as a whole
 * (SIGTERM, after the grace SIGKILL), also what remains of it when the worker itself has ended; and
 * when all have, whatever they started that left its group is killed. When this process is killed
 * the kernel kills the workers at once, and a keeper, a process that does nothing but wait for
 * that, their process groups and what else has the run in its environment. The calling process has
 * no other children meanwhile.
 *
 * Output is taken line by line, so that two workers never share one; each line goes to the worker's
 * log (RUN/logs/worker-RANK.log, to which every start appends) and to the caller.
 *
 * Threads: one caller at a time. While it runs SIGINT, SIGTERM and SIGHUP (unless ignored) mean
 * "stop", a second one, half a second later or more, "at once"; the caller's own handlers are as
 * before afterwards.
 */
#ifndef MUSTER_RUNTIME_GROUP_H
#define MUSTER_RUNTIME_GROUP_H

#include <stddef.h>

#include "base/err.h"

struct group_job {
    const char *name;           /* TORCHELASTIC_RUN_ID */
    char *const *argv;          /* program (looked up in PATH) and arguments, NULL at the end */
    const char *dir;            /* where it is started; NULL: here */
    const char *python_path;    /* put before PYTHONPATH; NULL: nothing */
    const char *run;            /* run directory; it exists */
    int min, max;               /* workers */
    int max_restarts;
    int threads;                /* OMP_NUM_THREADS, whatever the user has set; 0: see above */
    double grace_s;             /* between SIGTERM and SIGKILL */
    double backoff_s;           /* before the first restart */
};

/* How a worker ended. `signal` 0: by itself, with `code`. */
struct group_end { int rank, code, signal; };

enum group_event_kind {
    GROUP_STARTED,              /* start, size, port */
    GROUP_LINE,                 /* rank, stream, text, n, end */
    GROUP_LOST,                 /* start, size, lost, next_size, wait_s: it will be started again */
    GROUP_STOPPING,             /* signal: workers were asked to end */
};

struct group_event {
    enum group_event_kind kind;
    int start;                  /* 0: the first; otherwise the number of restarts */
    int size, port;
    int rank, stream;           /* 1: stdout, 2: stderr */
    const char *text;           /* a line without its end, no NUL after it */
    size_t n;
    char end;                   /* '\n', or '\r' where a program draws over its line */
    struct group_end lost;
    int next_size;
    double wait_s;
    int signal;
};

/* A failure ends the group as a signal would, and is what group_run returns. */
typedef int group_fn(void *arg, const struct group_event *e, struct err *err);

struct group_result {
    int size;                   /* of the last start */
    int restarts;
    int stopped;                /* the signal that this process was stopped by; 0: none */
    int failed;                 /* 1: lost once too often; `lost` says how */
    struct group_end lost;
    double seconds;
};

/* 0 also when the program failed or was stopped: *out says so. Fails when it cannot be started, or
 * its output cannot be kept. */
int group_run(const struct group_job *job, group_fn *tell, void *arg, struct group_result *out,
              struct err *err);

/* "worker 1 was killed by signal 9 (Killed)", "worker 0 ended with exit code 3". */
void group_say(const struct group_end *e, char *out, size_t size);


#endif
