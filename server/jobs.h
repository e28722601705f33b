/* server/jobs.h - a job is its events
 *
 * Every change of a job is an event, appended to a log and never changed after. A row of the table
 * `jobs` is the fold of a job's events, kept for listing and written in the same transaction as the
 * event; it holds nothing that the events do not say (jobs_check proves it). Invariants:
 *   1. an event that changes nothing (a second cancel, the same attempt started twice) is not stored;
 *   2. nothing but labels changes once a job has ended, and that its files were removed;
 *   3. `uid` is the number of the job's first event: no other job ever has it, nor its directory.
 *
 * Types: job.submitted {project, name, spec}; job.preparing {attempt, workers, user, what}, before
 * that attempt is started (user: the number it runs under, where the server is root);
 * attempt.started {attempt, pid, dir, workers, at}; worker.joined and worker.left {workers: how
 * many there are now}; job.scaled {workers: how many it may have from now on}; attempt.ended
 * {attempt, code, signal, reason}; job.retrying {at, wait_s}; job.cancel_requested {by};
 * job.resized {workers: {min, max}}; job.patched {labels}; job.ended {state, reason}; job.waiting
 * {reason}, of one that its project's limits hold back; job.files_removed {reason, bytes}
 * (server/retention.h).
 *
 * Threads: any. What changes something waits for the disk.
 */
#ifndef MUSTER_SERVER_JOBS_H
#define MUSTER_SERVER_JOBS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct server;

enum job_state {
    JOB_QUEUED,
    JOB_PREPARING,              /* an attempt is about to run: its environment is being made */
    JOB_RUNNING,
    JOB_CANCELLING,
    JOB_SUCCEEDED,
    JOB_FAILED,
    JOB_CANCELLED
};
const char *job_state_name(enum job_state s);           /* "queued" ... */
bool job_state_ended(enum job_state s);

enum { JOB_NAME_MAX = 128, JOB_TOKEN = 64 };

/* Makes the tables. queue_new calls it; twice is fine. */
int jobs_init(struct server *s, struct err *err);

/* Durable when it returns. `name` (unique in its project; NULL: made from spec.name and a number) is
 * the job's name; ERR_CONFLICT when taken, ERR_INVALID with the key when the spec is wrong. The
 * reference to spec is not taken. *out_job (may be NULL) as of jobs_get. */
int jobs_submit(struct server *s, const char *project, const char *name, const json_t *spec,
                json_t **out_job, struct err *err);

/* {"name","project","state","reason","spec","labels","priority","kind","created","started","ended"
 * (unix seconds, 0: not yet),"attempt","workers":{"min","max","now"},"uid": n,"user": of the
 * attempt, 0: none,"files_removed": when and why, of one whose files are gone}; yours.
 * ERR_MISSING. */
int jobs_get(struct server *s, const char *project, const char *name, json_t **out,
             struct err *err);

struct jobs_query {
    const char *project;        /* NULL: all */
    const char *state;          /* NULL: all; "running" ... or "active" */
    const char *text;           /* part of the name, whatever case; NULL: all */
    const char *label_key, *label_value;        /* value NULL: any */
    const char *token;          /* of the page before; NULL or "": the first */
    int limit;                  /* 0: 100; at most 1000 */
};
/* Newest first. *out: array of the above without "spec"; out_token "" at the end. */
int jobs_list(struct server *s, const struct jobs_query *q, json_t **out,
              char out_token[JOB_TOKEN], struct err *err);

/* Asks; idempotent. ERR_MISSING; ERR_CONFLICT when it has ended. */
int jobs_cancel(struct server *s, const char *project, const char *name, const char *by,
                struct err *err);
/* `labels` takes the place of all there were; its values are texts. */
int jobs_patch_labels(struct server *s, const char *project, const char *name,
                      const json_t *labels, struct err *err);
/* Of native training; ERR_INVALID for other kinds, ERR_CONFLICT for one that runs as one process. */
int jobs_resize(struct server *s, const char *project, const char *name, int min, int max,
                struct err *err);
/* An ended one, with logs and work. */
int jobs_delete(struct server *s, const char *project, const char *name, struct err *err);

/* Events after `seq`: [{"seq","t","type",...body}] */
int jobs_events(struct server *s, const char *project, const char *name, int64_t after,
                json_t **out, struct err *err);

/* A number that grows with every event of any job; http_wake is called when it has. */
int64_t jobs_clock(struct server *s);

/* Every event of any job after `after`, in order; `each` non-zero ends it before that one. *out_last:
 * the last that was given. `job` is a job's uid; what is pointed to lives until `each` returns. */
struct job_news {
    int64_t seq, job;
    double t;
    const char *type, *body;    /* body: JSON */
};
int jobs_news(struct server *s, int64_t after, int (*each)(void *arg, const struct job_news *n),
              void *arg, int64_t *out_last, struct err *err);

/* The directory of the job's newest attempt ("" when there is none): logs are there. ERR_MISSING with
 * a sentence when its files were removed (server/retention.h). */
int jobs_dir(struct server *s, const char *project, const char *name, char *out, size_t size,
             struct err *err);
/* Removes what a job that has ended left in its directories; its log stays. */
int jobs_clear(struct server *s, const char *project, const char *name, struct err *err);

/* An event of the system's own, folded and stored; `body` is taken (NULL: empty). ERR_CONFLICT when
 * the job has ended. */
int jobs_append(struct server *s, const char *project, const char *name, const char *type,
                json_t *body, struct err *err);

/* {"queued": n, ...}: how many there are of each state; project NULL: all. */
int jobs_count(struct server *s, const char *project, json_t **out, struct err *err);

/* Is every row the fold of its events? `each` gets a sentence for those that are not; *out_n: how many
 * jobs there are. */
int jobs_check(struct server *s, void (*each)(void *arg, const char *text), void *arg,
               int64_t *out_n, struct err *err);

#endif
