/* tests/unit/roster_model_int.h - the model's value, for roster_model*.c alone */
#ifndef MUSTER_TESTS_ROSTER_MODEL_INT_H
#define MUSTER_TESTS_ROSTER_MODEL_INT_H

#include <stdint.h>
#include <string.h>

#include "tests/unit/roster_model.h"

enum {
    SLOTS = 4,                  /* processes that there ever are */
    PLACES = SLOTS + 2,         /* of a list: a connection may not be known to be closed yet */
    GENERATIONS = 16,
    IDS = 16,
    DOWN_MAX = 10, UP_MAX = 8,
    SHARDS = 4,
    STACK_MAX = 600,
};

enum message_kind {
    M_WELCOME, M_ROSTER, M_LOAD, M_GO, M_BYE, M_CLOSED, /* from the coordinator */
    M_READY, M_CHECKPOINT, M_END,                       /* to it */
};

struct message {
    uint8_t kind, generation;
    uint8_t step;               /* WELCOME: the id */
    uint8_t bad;                /* WELCOME: fresh; GO: source */
    uint8_t behind;
};

/* Where the main thread of a worker is (runtime/worker.c). */
enum place_at {
    AT_LIST, AT_GO, AT_ENTERED, AT_COPY, AT_ROOTS, AT_SUMS,
};

struct model_worker {
    uint8_t alive, used;        /* used: there is or was a process */
    /* The connection. */
    uint8_t conn;               /* 0 none, 1 called, 2 welcome */
    uint8_t open;               /* the coordinator's end of it is */
    uint8_t as;                 /* the id that the coordinator knows this end by */
    uint8_t member_from;        /* and the generation from which on it believes what it hears */
    uint8_t stale;              /* id of one before, whose end it has not noticed */
    uint8_t n_down, n_up;
    struct message down[DOWN_MAX], up[UP_MAX];
    /* What the talking thread has heard. */
    uint8_t id, fresh, listed, self, go, go_step, go_source, go_behind;
    uint8_t loaded_for, loaded_step, running, aborted;
    /* The main thread: its turn, and where it is in a step. */
    uint8_t at, generation, turn_self, turn_step, turn_source, turn_behind;
    uint8_t peer, reading, sum_bad;
    /* The parameters. */
    uint8_t step, bad;
    /* The region: the word that others wait for, and what lies in its two parts. */
    uint8_t word_generation, word_step, word_post;
    struct { uint8_t generation, step, bad; } part[2];
    struct { uint8_t generation, step; } arrival;
};

struct list { uint8_t n, id[PLACES], slot[PLACES]; };

struct model {
    uint8_t left[6], left_all;  /* disturbances that may still come */
    uint8_t ended, up;
    /* On disk. */
    uint8_t disk_generation, disk_next, disk_n, disk_id[PLACES], disk_step;
    uint8_t unwritten;          /* MISTAKE_STORE_LATE */
    /* The roster, packed. */
    uint8_t generation, next_id, stored_step, phase, flags, n, n_known, go_step, source;
    struct { uint8_t id, slot, from, to, flags, step; } place[PLACES];
    uint8_t known[PLACES];
    /* For the checks alone. */
    uint8_t last_generation, owner[IDS];      /* owner: who is on a list by this id, + 1 */
    struct list list[GENERATIONS];
    struct model_worker worker[SLOTS];
};

extern const struct model_setup *setup;

static inline bool is(enum mistake m) { return setup->mistake == m; }
/* The first thing that is not right ends the search. */
void expect(bool right, const char *what);

/* --- queues --- */

static inline struct message take(struct message *queue, uint8_t *n)
{
    struct message first = queue[0];

    memmove(queue, queue + 1, sizeof *queue * (size_t)--*n);
    queue[*n] = (struct message){ 0 };
    return first;
}

static inline void clear_queues(struct model_worker *w)
{
    memset(w->down, 0, sizeof w->down);
    memset(w->up, 0, sizeof w->up);
    w->n_down = w->n_up = 0;
}

/* --- events of a worker (roster_model_worker.c); false: cannot happen now --- */

bool listen_down(struct model *m, int slot);    /* its talking thread takes a message */
bool break_off(struct model *m, int slot);      /* or finds the connection closed before it */
bool go_on(struct model *m, int slot);          /* its main thread does the next thing */
bool give_up(struct model *m, int slot);
void die(struct model_worker *w);               /* what others can still see of it stays */

#endif
