/* runtime/coordinator_int.h - the coordinator's parts: connections and loop, records */
#ifndef MUSTER_RUNTIME_COORDINATOR_INT_H
#define MUSTER_RUNTIME_COORDINATOR_INT_H

#include <jansson.h>

#include "base/buf.h"
#include "runtime/coordinator.h"
#include "runtime/results.h"
#include "runtime/roster.h"
#include "runtime/wire.h"

enum { CALLERS_MAX = 128 };

enum caller_kind { CALLER_NEW, CALLER_WORKER, CALLER_WATCHER };

struct caller {
    int fd;                     /* -1: a free place */
    enum caller_kind kind;
    uint64_t id;                /* of a worker */
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
    uint64_t suspects;          /* id of a worker that it cannot reach; 0: none */
    double suspected_at;
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
    double store_at;            /* when storing the roster is tried again; 0: it did not fail */
    int history;                /* file descriptor of roster.jsonl */
    char data[65], mark[65];    /* digests that a worker must have too */
    bool ended, stopping;
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

#endif
