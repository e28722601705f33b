/* runtime/torture.h - disturbs a running job in every way it must stand
 *
 * What is done, when and to whom is drawn from a seed before the job starts; the times are step
 * numbers, so that a run that goes slower is disturbed as often. The processes are those of a job
 * that `muster train --workers MIN..MAX` keeps going: nothing but the children of that process is
 * ever signalled.
 */
#ifndef MUSTER_RUNTIME_TORTURE_H
#define MUSTER_RUNTIME_TORTURE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

enum torture_kind {
    TORTURE_KILL,               /* kill -9 of a worker */
    TORTURE_STOP,               /* SIGSTOP for longer than a worker may be silent, then SIGCONT */
    TORTURE_SLOW,               /* the same for a moment */
    TORTURE_PARTITION,          /* a worker and the coordinator do not hear each other for a bit */
    TORTURE_JOIN,               /* one worker more */
    TORTURE_LEAVE,              /* one fewer */
    TORTURE_COORDINATOR,        /* kill -9 of the coordinator */
    TORTURE_KINDS,
};

struct torture_event {
    enum torture_kind kind;
    long due;                   /* fires when the job has committed this step */
    uint32_t pick;              /* whom, of those who are there then */
    int pause_ms;               /* TORTURE_STOP, TORTURE_SLOW */
    int size;                   /* TORTURE_JOIN, TORTURE_LEAVE: workers from then on */
    /* what came of it */
    bool fired;
    double at, took;            /* by the wall clock; seconds, for an answer */
    long step;                  /* the last one that was known to be committed */
    long id, pid;               /* whom */
    double seen;                /* seconds until the coordinator noted it; < 0: never, or no need */
    double step_after;          /* seconds until the first step with the new list; < 0: none */
};

struct torture {
    const char *dir;            /* of the run */
    pid_t job;                  /* muster train --workers */
    int min, max;
    struct torture_event *event;
    int n;
    /* NULL, or told several times a second: events fired so far, the job's status (may be NULL). */
    void (*tell)(void *arg, int fired, const json_t *status);
    void *arg;
    volatile const int *stop;   /* non-zero: give up */
    double silence_s;           /* no step for so long is a hang */
};

const char *torture_name(enum torture_kind kind);

/* Draws n events for the first `steps` of a run that has `max` workers at first. */
void torture_draw(uint64_t seed, long steps, int min, int max, struct torture_event *out, int n);

/* Until the process `job` has ended, which is then reaped: 0 when it ended well, ERR_AGAIN when
 * asked to stop, ERR_CONFLICT for a hang or when it ended before all events were fired. Other ends
 * of the job are ERR_IO. Unless 0, what was left of the job is killed and not yet reaped. */
int torture_run(struct torture *t, struct err *err);

/* Fills in `seen` and `step_after` from roster.jsonl. *out_generations: lists that got to work. */
int torture_review(const char *dir, struct torture_event *event, int n, long *out_generations,
                   struct err *err);

#endif
