/* server/queue_int.h - what the scheduler knows: a job in memory for each that has not ended
 *
 * A `struct entry` holds what the log says of a job (copied from its row, never changed otherwise)
 * and what the driver said last. Those that wait are in order, by project; those that have an attempt
 * are in `live`; those that wait for their next attempt's time are in `later`.
 */
#ifndef MUSTER_SERVER_QUEUE_INT_H
#define MUSTER_SERVER_QUEUE_INT_H

#include <pthread.h>

#include "base/clock.h"
#include "server/jobs_int.h"
#include "server/queue.h"
#include "server/queue_plan.h"

struct project;

enum place { PLACE_NONE, PLACE_WAITING, PLACE_LATER, PLACE_LIVE };

struct entry {
    struct plan_job plan;       /* id, priority, min, max, each, since */
    struct project *project;
    enum job_state state;
    enum place place;
    int attempt, retries, logged_now;
    unsigned user;              /* of the attempt that is live; 0: none */
    int user_fd;                /* reserves it (drivers/users.h); 0: nothing is reserved */
    int processes;              /* that it asks for; 0: it does not say */
    enum plan_short told;       /* why it waits, as its reason says */
    bool live, train;
    double retry_at;
    double retry_row;           /* the same as it was stored: a new one replaces it */
    /* Of the attempt, since this server runs: */
    enum run_phase phase;
    bool asked;                 /* start was called */
    bool starting;              /* by the thread aside, just now */
    bool stopped;               /* stop was called */
    double not_before;          /* of the next start or stop that failed */
};

struct list { struct entry **at; int n, cap; };

struct project {
    char name[64];
    struct list waiting;        /* priority, then age */
    double used;                /* thousandths of core seconds, fading */
    int index;                  /* in a plan */
    struct project *next;
};

/* Events that are to be appended together. */
struct pending { struct job_event *at; int n, cap; };

/* An attempt that is to be started, then what came of it. */
struct starting {
    struct job_row row;
    json_t *spec;               /* owned */
    int workers;
    int rc;
    struct err why;
    struct starting *next;
};
void starting_free(struct starting *s);
OWN_DEFINE(starting)

struct starter {
    pthread_t thread;
    bool has_thread;
    pthread_cond_t more;
    struct starting *todo, *done;       /* under the queue's lock */
};

struct queue {
    struct server *server;
    struct queue_config config;
    struct plan_machine machine;
    struct list all;            /* by id */
    struct list live, later;
    struct project *projects;
    int n_waiting;
    int64_t seen;               /* the last event that was read */
    struct pending pending;
    double last_use, look_at;
    struct clock_watch clock;
    bool no_user;               /* a job could begin but for that: all users run jobs */
    uint64_t user_turn;         /* of the last user that was given (queue_users.c) */
    bool full;                  /* jobs wait, and the last round could do nothing for them */
    char trouble[512];          /* a job that cannot be started just now */

    struct starter starter;
    int wake_fd;
    pthread_t thread;
    bool has_thread;
    _Atomic bool ending;
    pthread_mutex_t lock;       /* of what others read: */
    struct { double cpu; double memory, gpu; int running, waiting; char trouble[512]; } shown;
};

/* queue_entries.c */
double queue_now(const struct queue *q);
struct entry *entries_find(struct queue *q, int64_t id);
int entries_update(struct queue *q, const struct job_row *r, struct err *err);
/* The clock was set by so much: what waits waits as long as before. */
void entries_clock_set(struct queue *q, double by);
void entries_drop(struct queue *q, int64_t id);
void entries_free(struct queue *q);
void entries_wake_later(struct queue *q, double now);   /* whose time has come waits with the others */
int list_add(struct list *l, int at, struct entry *e, struct err *err);
void list_remove(struct list *l, int at);

/* The project of this name, made when there is none yet; NULL: no memory. */
struct project *entries_project(struct queue *q, const char *name);

/* queue_share.c: what projects used before this server was started. For store_read. */
int share_restore(sqlite3 *db, void *queue, struct err *err);
enum { SHARE_HALF_S = 3600 };           /* what was used so long ago counts half */

/* queue_users.c: the user of the next attempt, reserved for e; 0: it needs none. ERR_AGAIN: all run
 * jobs. */
int users_next(struct queue *q, struct entry *e, unsigned *out, struct err *err);
void users_release(struct entry *e);

/* queue_act.c: what a state calls for. Errors of single jobs become events. */
int pending_add(struct queue *q, int64_t job, const char *type, json_t *body, struct err *err);
int act_look(struct queue *q, double now, struct err *err);     /* driver -> events */
int act_cancel(struct queue *q, double now, struct err *err);
int act_plan(struct queue *q, double now, struct err *err);     /* -> events, resizes */
int act_start(struct queue *q, double now, struct err *err);
double act_next(struct queue *q, double now);           /* when something is due; 0: only by news */

/* queue_start.c */
void start_now(struct queue *q, struct starting *s);    /* sets rc and why */
bool start_is_slow(const struct starting *s);
int start_aside(struct queue *q, struct starting *s, struct err *err);  /* takes s */
struct starting *start_done(struct queue *q);           /* one that was; NULL: none. Yours */
void starter_end(struct queue *q);

void machine_read(const struct queue_config *c, struct plan_machine *out);

#endif
