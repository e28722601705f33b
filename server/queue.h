/* server/queue.h - the scheduler: what a job's state calls for is done here
 *
 * One thread reads the log of events (server/jobs.h), decides (server/queue_plan.h) and acts through
 * the driver. It is woken by whoever appends an event and by the driver's news. All that it does may
 * be done twice: a server that was killed starts again, looks at every job that has not ended, adopts
 * what runs, ends what ended meanwhile and starts what was about to be started.
 *
 * Invariants:
 *   1. an attempt is on record (job.preparing with its number) before it is started;
 *   2. the next attempt begins only after the one before is on record as ended.
 * There is one scheduler a data directory (the server's lock sees to it).
 */
#ifndef MUSTER_SERVER_QUEUE_H
#define MUSTER_SERVER_QUEUE_H

#include <jansson.h>
#include <stdint.h>

#include "base/err.h"
#include "base/own.h"
#include "drivers/driver.h"

struct queue;
struct server;

struct queue_config {
    const struct driver *driver;        /* NULL: driver_local */
    int news_fd;                        /* readable when an attempt may have changed; -1: none */
    void (*news_clear)(void);
    double (*now)(void);                /* unix seconds; NULL: clock_wall */
    double cores;                       /* 0: of this machine, as far as the server may use them */
    int64_t memory;                     /* bytes; 0: of this machine */
    int gpus;                           /* -1: of this machine */
    int unconfined;                     /* jobs without a sandbox */
};

/* Makes the tables of jobs, too, and begins. `config` NULL: this machine, driver_local. */
int queue_new(struct server *s, const struct queue_config *config, struct queue **out,
              struct err *err);
void queue_free(struct queue *q);       /* jobs that run go on */
OWN_DEFINE(queue)

/* There is something new in the log. Any thread. */
void queue_wake(struct queue *q);

/* {"cores","memory","gpus","load","load_limit","used":{"cpu","memory","gpu"},"running","waiting",
 * "trouble"}; the last is "" or a sentence: why the scheduler cannot go on just now. Yours; NULL: no
 * memory. Any thread. */
json_t *queue_machine(struct queue *q);

#endif
