/* runtime/roster.h - who is in the job now
 *
 * The roster is the agreed list of workers, oldest first. Each change raises `generation`, in two
 * phases: first everybody hears of the new list, gives up the step it is at and says which state
 * it has (ready); when all have, everybody is told where to go on (go): at the furthest state
 * among them, which those behind copy from the one who has it. Being deterministic, a step that
 * is done again cannot differ.
 *
 * Invariants, asserted after each change:
 *   1. a generation never repeats, also across a restart: it is stored before it is told;
 *   2. ids never repeat and the list is sorted by them, so that the first moves only if it leaves;
 *   3. own shards are contiguous, in the order of the list, and cover 0..shards-1 exactly;
 *   4. a state counts only from a worker that has been on every list since it got it: one that was
 *      taken out and wakes up later may have read what others were writing anew, so it comes back
 *      with nothing. The list is stored with the generation, so this holds across a restart.
 *
 * A pure machine: it does no I/O and has no clock. The caller reports what happened, then asks
 * roster_next what to do until there is nothing. Owned by the coordinator's loop; not thread safe.
 */
#ifndef MUSTER_RUNTIME_ROSTER_H
#define MUSTER_RUNTIME_ROSTER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/own.h"

enum { ROSTER_MAX = 64 };

/* What a worker says of itself. */
struct roster_who {
    char address[256];          /* of its listener, for other workers */
    char host[80];              /* equal: the same machine */
    long pid;
};

struct roster_worker {
    uint64_t id;
    struct roster_who who;
    int from, to;               /* shards; from == to: stands by */
    bool leaving;               /* asked to go, or going by itself */
    bool ready;                 /* has answered in this generation */
    long step;                  /* the state it has, by its answer */
    bool settled;                /* and what is due at that step is done */
};

enum roster_phase {
    ROSTER_WAITING,             /* too few workers */
    ROSTER_GATHERING,           /* the list is told; not all have answered */
    ROSTER_RUNNING,             /* told to go */
};

/* What the caller must do next, in the order in which they are handed out. */
enum roster_act {
    ROSTER_NOTHING,
    ROSTER_STORE,               /* write generation, next id and list to disk; then roster_stored */
    ROSTER_TELL,                /* tell everybody the list */
    ROSTER_LOAD,                /* nobody has the stored state: send it to all, they are ready anew */
    ROSTER_GO,                  /* tell everybody to go on */
};

struct roster;

/* `generation`, `next_id` and the ids `known` are what the disk has (0, 1 and none at first);
 * `stored_step` is the step of the newest checkpoint, 0 without one. NULL: no memory. */
struct roster *roster_new(int shards, int min, uint64_t generation, uint64_t next_id,
                          const uint64_t *known, int n_known, long stored_step);
void roster_free(struct roster *r);
OWN_DEFINE(roster)

/* A worker knocks; `id` is what it was before the connection broke, 0 for a newcomer. It keeps the
 * id and its state counts (*out_fresh false) when it is on the last list that was stored, by this
 * process or the one before. Returns its id, 0 when the roster is full. */
uint64_t roster_join(struct roster *r, const struct roster_who *who, uint64_t id, bool *out_fresh);
/* How many of those on the disk's list have not come back; a restarted coordinator gives them a
 * moment before it asks for what is next. */
int roster_missing(const struct roster *r);
/* It is gone, or was silent for too long. Unknown ids are ignored: news may come twice. */
void roster_lost(struct roster *r, uint64_t id);
/* It shall go, or wants to: left out of the next list, which is made at once. */
void roster_leave(struct roster *r, uint64_t id);
/* Its answer: it has given up its step and has the state of `step`, before or after the test that
 * was due there: of two who stand at the same step one may have heard the result and the other not.
 * Old generations are ignored. */
void roster_ready(struct roster *r, uint64_t id, uint64_t generation, long step, bool settled);
/* A newer checkpoint is on disk. */
void roster_checkpoint(struct roster *r, long step);
void roster_stored(struct roster *r);
void roster_set_min(struct roster *r, int min);

enum roster_act roster_next(struct roster *r);

enum roster_phase roster_phase(const struct roster *r);
uint64_t roster_generation(const struct roster *r);
uint64_t roster_next_id(const struct roster *r);
/* Those of the current list, and of ROSTER_WAITING those who wait. */
int roster_size(const struct roster *r);
const struct roster_worker *roster_at(const struct roster *r, int place);
const struct roster_worker *roster_find(const struct roster *r, uint64_t id);   /* NULL: not in it */
/* Of ROSTER_GO: where to go on, who has that state, and who (a bit a place) lacks it. */
long roster_step(const struct roster *r);
bool roster_settled(const struct roster *r);
int roster_source(const struct roster *r);
uint64_t roster_behind(const struct roster *r);

#endif
