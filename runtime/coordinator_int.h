/* runtime/coordinator_int.h - the coordinator's parts: connections and loop, desk, records, end */
#ifndef MUSTER_RUNTIME_COORDINATOR_INT_H
#define MUSTER_RUNTIME_COORDINATOR_INT_H

#include <jansson.h>
#include <signal.h>

#include "base/buf.h"
#include "runtime/coordinator.h"
#include "runtime/results.h"
#include "runtime/roster.h"
#include "runtime/wire.h"

enum { CALLERS_MAX = 3 * ROSTER_MAX };         /* each worker, what it reads, and some more */

enum caller_kind { CALLER_NEW, CALLER_WORKER, CALLER_WATCHER };

struct caller {
    int fd;                     /* -1: a free place */
    enum caller_kind kind;
    uint64_t id;                /* of a worker */
    struct roster_who who;
    uint64_t member_from;       /* the generation since which its state counts */
    struct wire_in *in;
    struct buf out;
    size_t sent;                /* bytes of `out` */
    double heard;               /* when it last said something */
    double since;               /* when it came, or was told all: its time runs from there */
    bool closing;               /* when `out` is empty */
    bool told_all;              /* nothing more is sent, nothing read: until it closes too */
    long step;                  /* by its last beat */
    double bytes_per_step;
    int64_t read;               /* bytes of files that it reads by part */
    uint64_t suspects;          /* id of a worker that it cannot reach; 0: none */
    double suspected_at;
};

/* A worker whose connection is gone and who may call again. */
struct absent {
    struct roster_who who;      /* pid 0: a free place */
    double since;
};

struct coordinator {
    const struct coordinator_config *config;
    struct roster *roster;
    struct caller caller[CALLERS_MAX];
    int min, max;
    bool resized;               /* since the job was started: `max` is for all, not to start with */
    double beat;                /* seconds */
    double started, back_until; /* workers of before a restart may come back until then */
    double told;                /* when watchers were last told */
    long logged, tested;        /* last step in metrics.jsonl, last test */
    long step;                  /* the furthest committed step that was reported */
    bool first_step;            /* of this generation, not yet noted */
    double loss, samples_per_s;
    int epoch;
    long steps_in_epoch;
    struct buf state;           /* the last one received, and its step */
    long state_step;
    int files;                  /* descriptors that callers may have; the rest is for the disk */
    double accept_at;           /* when callers are let in again; 0: nothing is against it */
    double store_at;            /* when storing the roster is tried again; 0: it did not fail */
    int history;                /* file descriptor of roster.jsonl */
    char data[65], mark[65];    /* digests that a worker must have too */
    bool ended, stopping;
    bool over;                  /* all that is left is to tell everybody (coordinator_end.c) */
    double over_since;
    struct absent absent[ROSTER_MAX];
    struct fit_result fit;
    char digest[65];
    struct err failed;          /* what the workers failed with; code 0: nothing */
    struct { long pid; char host[80]; double until; int times; } penalty[ROSTER_MAX];
};

/* --- callers (coordinator.c) --- */

/* What waits in the caller's buffer until it can be sent. */
void caller_put(struct caller *k, enum wire_kind kind, uint64_t generation, uint64_t number,
                const void *body, size_t n);
void caller_put_json(struct caller *k, enum wire_kind kind, uint64_t generation, const json_t *doc);
struct caller *caller_find(struct coordinator *c, uint64_t id);         /* NULL: no worker has it */
void caller_drop(struct caller *k);
void caller_refuse(struct coordinator *c, struct caller *k, const struct err *why);

/* One round of reading and writing, at most so long. */
void callers_poll(struct coordinator *c, int timeout_ms);

/* --- the desk (coordinator_desk.c) --- */

const char *desk_text(const json_t *doc, const char *key);      /* "" where there is none */
void desk_hello(struct coordinator *c, struct caller *k, const json_t *hello);
void desk_ask(struct coordinator *c, struct caller *k, const json_t *ask);
void desk_tell(struct coordinator *c);          /* watchers, how it goes */
/* One that others could not reach waits before it is let in again, longer each time. */
void desk_penalise(struct coordinator *c, const struct roster_who *who);

/* --- records (coordinator_record.c) --- */

/* Appends a line to roster.jsonl; `line` is taken. */
void record_change(struct coordinator *c, const char *event, json_t *line);
/* What the first worker of the list reports. `current`: it was told what is not on record yet, so
 * what it leaves out nobody has. */
int record_results(struct coordinator *c, bool current, const char *body, size_t n,
                   struct err *err);
int record_event(struct coordinator *c, const json_t *event, struct err *err);
/* Writes generation, next id and list. */
int record_roster(struct coordinator *c, struct err *err);
/* Reads them, all 0 where there are none. ERR_INVALID: they cannot be what was written. */
struct stored {
    uint64_t generation, next_id, id[ROSTER_MAX];
    int n;                      /* ids on the list */
    int min, max;               /* 0: as the job was started */
};
int record_restore(const struct coordinator *c, struct stored *out, struct err *err);

/* --- the end (coordinator_end.c) --- */

/* Until every worker has heard that the job is over, those too whose connection is gone; bounded.
 * `*hurry` becomes true when somebody does not want to wait for that any longer. */
void end_tell(struct coordinator *c, const volatile sig_atomic_t *hurry);
/* What is said to a coordinator that is over. */
void end_message(struct coordinator *c, struct caller *k, const struct wire_header *h,
                 const json_t *doc);
/* A worker's connection is gone; it is back. */
void end_absent(struct coordinator *c, const struct roster_who *who);
void end_present(struct coordinator *c, const struct roster_who *who);

#endif
