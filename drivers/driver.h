/* drivers/driver.h - where jobs run: a table of functions
 *
 * An attempt of a job is named by its directory. start is idempotent: a second start of the same
 * directory finds the first (DIR/lock is flocked before the keeper is made, and by the keeper
 * for as long as it lives). Nothing here waits for the job.
 *
 *   DIR/order.json     what to run, without the values of secrets
 *   DIR/lock           "PID PHASE\n" of the keeper, who holds a flock on it; empty: none yet
 *   DIR/stop           {"grace_ms": n}: somebody wants it stopped
 *   DIR/full           a sentence: its project has no disk left, the job is to end (drivers/guard.h)
 *   DIR/log.N          what it printed (drivers/journal.h)
 *   DIR/exit.json      how it ended: {"code", "signal", "reason", "cause", "started", "ended",
 *                      "cpu_s", "memory_peak", "lines", "lines_dropped"}
 *   DIR/work/          the job's own: its current directory, and the only one that it can write
 *
 * Threads: any, but one at a time for one attempt.
 */
#ifndef MUSTER_DRIVERS_DRIVER_H
#define MUSTER_DRIVERS_DRIVER_H

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"

/* What to run. All is borrowed. */
struct order {
    const char *dir;            /* jobs/JOBID/ATTEMPT, made by start; its parent is there */
    const char *data_dir;       /* of the server: envs/, runtimes.yaml; hidden from the job */
    const json_t *spec;         /* the job document */
    const json_t *env;          /* what the server adds: STORAGE_EMULATOR_HOST, secrets' values; it
                                   reaches the keeper through memory, never through a file */
    const json_t *packages;     /* of a Python job: paths of local files, in the order of the
                                   document's; NULL: none */
    int workers;                /* to begin with (native training) */
    /* Memory and processes of a job that does not ask for them in its resources; disk: at most, also
     * for one that does. 0: no limit. */
    struct { long long memory, processes, disk; } limits;
    long long log_limit;        /* bytes that the logs of all attempts may have together; 0: any */
    bool unconfined;            /* serve --no-sandbox: runs as the server itself */
    unsigned user;              /* under root: the number under which it runs; 0: any free one */
    const json_t *expose;       /* paths of this machine that it sees, too; NULL: none */
};

enum run_phase {
    RUN_NOT_STARTED,            /* nobody has run anything: start it (again) */
    RUN_PREPARING,              /* an environment is being built */
    RUN_RUNNING,                /* the user's program is */
    RUN_ENDED,
    RUN_LOST,                   /* the keeper was killed, and with it the job */
};

struct run_state {
    enum run_phase phase;
    pid_t keeper;
    int code, signal;           /* RUN_ENDED */
    char reason[256];           /* a sentence: "killed: needed more than its 2 GB of memory"; "" for
                                   code 0, but for lines of the log that were lost */
    bool stopped;               /* RUN_ENDED because stop was called */
    int workers;                /* of a native job, now; 0: not known (yet) */
    double started, ended;      /* RUN_ENDED: of the user's program; 0: it never ran */
};

struct driver {
    const char *name;
    /* ERR_AGAIN: the machine cannot just now (memory, processes). */
    int (*start)(const struct order *o, struct err *err);
    /* The whole process tree: SIGTERM, then SIGKILL when grace_ms have passed. Returns at once;
     * twice is fine, and so is a directory that nobody has started (then it never will be). */
    int (*stop)(const char *dir, int grace_ms, struct err *err);
    /* Of native training; ERR_AGAIN while it has not begun. */
    int (*resize)(const char *dir, int min, int max, struct err *err);
    int (*look)(const char *dir, struct run_state *out, struct err *err);
};
extern const struct driver driver_local;

/* Readable when something of any attempt that was started or looked at may have changed (began
 * to run, ended, lost): the scheduler polls it, calls driver_local_news_clear, then looks. */
int driver_local_news(void);
void driver_local_news_clear(void);

/* What `start` runs as "PROGRAM keeper DIR"; default: the program itself. */
void driver_local_program(const char *path);

/* The URL that jobs know the server by: a keeper that stands by makes a way to it (drivers/way.h). */
void driver_local_server(const char *url);

/* Can jobs be confined on this machine? ERR_DENIED with a sentence that says what to do. For
 * serve, at its start: it also writes the table of runtimes and makes the first keeper stand
 * ready. */
int driver_local_check(const char *data_dir, struct err *err);

/* Opens a regular file below a directory that a job writes: nothing that the job puts there (a
 * symbolic link, a FIFO) leads out or blocks. `path` is relative. ERR_MISSING, ERR_DENIED. */
int driver_open_below(const char *work, const char *path, int *out_fd, struct err *err);

#endif
