/* tests/unit/roster_model.h - the roster and the commit protocol, in every order of events
 *
 * The coordinator is runtime/roster.c itself; its loop, its disk, the connections, the regions of
 * shared memory and the workers are a model. All of it is one small value (`struct model`), so
 * that a search can try every event in every state and meet no state twice. What is in the model
 * and what is not: docs/design/roster-model.md.
 *
 * A state of the parameters is its step and whether it is what an undisturbed run has there: steps
 * are deterministic, so that everything else would follow from these two.
 *
 * What a search shows, or says how it fails:
 *   1. nothing but the right state is ever stored, sent to another worker or gone on from;
 *   2. generations and ids only rise, whatever is lost in a crash of the coordinator;
 *   3. every list covers all shards once;
 *   4. every order of events ends with the job done, as long as `min` workers live: there is no
 *      state in which nothing can happen, and no way round in a circle;
 *   5. a step that a worker has is not redone while that worker stays on every list.
 */
#ifndef MUSTER_TESTS_ROSTER_MODEL_H
#define MUSTER_TESTS_ROSTER_MODEL_H

#include <stdbool.h>

/* Mistakes that can be made on purpose; a search must find each. */
enum mistake {
    MISTAKE_NONE,
    MISTAKE_TRUST_FENCED,       /* a worker that was taken out keeps its state, and it counts */
    MISTAKE_STORE_LATE,         /* the list is told before it is on disk */
    MISTAKE_SAME_GENERATION,    /* a restarted coordinator makes the disk's generation again */
    MISTAKE_GO_EARLY,           /* go is told before all have given up their step */
    MISTAKE_FORGET_FRESH,       /* a second welcome undoes the first one's "start over" */
    MISTAKE_OLD_NEWS,           /* a checkpoint of an older generation is stored */
    MISTAKE_CLAIM_EARLY,        /* a worker that has to start over claims an id all the same */
    MISTAKE_FOLLOW_NOBODY,      /* the furthest state is not looked for: the first one's is taken */
    MISTAKE_NO_EOF,             /* a closed connection is not noticed */
    MISTAKES
};

struct model_setup {
    int workers;                /* at the start */
    int min;
    int steps;                  /* of the whole job */
    int checkpoint;             /* every so many steps; 0: never */
    bool warm;                  /* the first generation runs already */
    int kill, lose, cut, join, leave, crash;    /* how often each at most */
    int disturbances;           /* of all of them together */
    enum mistake mistake;
    long states_max;            /* the search ends there; 0: does not */
};

struct model_outcome {
    long states, moves;
    int depth;
    long ends;                  /* states in which the job is done */
    bool whole;                 /* all there is was seen */
    char why[160];              /* "": nothing is wrong */
    char trace[8192];           /* how it came to that, an event a line */
};

void model_search(const struct model_setup *setup, struct model_outcome *out);

#endif
