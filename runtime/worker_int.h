/* runtime/worker_int.h - what a worker's two threads share */
#ifndef MUSTER_RUNTIME_WORKER_INT_H
#define MUSTER_RUNTIME_WORKER_INT_H

#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "runtime/mesh.h"
#include "runtime/results.h"
#include "runtime/trainer.h"
#include "runtime/wire.h"
#include "runtime/worker.h"

/* One message to the coordinator, in a list. */
struct letter {
    struct wire_header head;
    long after;                 /* results of the steps before this one go first */
    struct buf body;
    struct letter *next;
};

struct worker {
    const struct worker_config *config;
    struct trainer *trainer;
    struct mesh *mesh;
    char host[80], address[256], data[65], mark[65];

    /* --- under the lock --- */
    pthread_mutex_t lock;
    pthread_cond_t news;
    uint64_t id;                        /* 0: not yet welcome */
    bool fresh;                         /* was let in with nothing: start over */
    uint64_t running;                   /* generation that the main thread is in; 0: none */
    uint64_t listed;                    /* of the newest list */
    struct mesh_peer peer[MESH_MAX];
    int n_peers, self;
    uint64_t go;                        /* generation of the newest go; acted on when == listed */
    long go_step, logged, tested, report_every;
    bool go_settled;
    int source;
    uint64_t behind;
    struct buf loaded;                  /* a checkpoint's state that the coordinator sent */
    uint64_t loaded_for;                /* generation; 0: none */
    struct letter *first, **last;       /* to be sent */
    bool connected;                     /* else letters are not even kept */
    struct results results;
    struct results_place place;
    bool leads;
    bool bye;
    struct err failed;                  /* of the connection, for good */

    int wake;                           /* eventfd: something is to be sent */
    atomic_long step;
    _Atomic double bytes_per_step;
    atomic_bool over;                   /* the main thread has ended */
    double pace;                        /* steps a second at most; 0: no limit */
    const char *pace_until;             /* a file; NULL: the pace holds to the end */
    pthread_t talker;
};

/* Set by SIGUSR1 under muster torture: the talker hears and says nothing for DEAF_MS. */
enum { DEAF_MS = 900 };
extern volatile sig_atomic_t worker_deaf;

/* Sends a message soon; the body is copied. Without a connection it is forgotten: the next one
 * begins with a new list, after which everything that counts is told again. Any thread. */
void worker_post(struct worker *w, enum wire_kind kind, uint64_t generation, uint64_t number,
                 const void *body, size_t n);
void worker_post_json(struct worker *w, enum wire_kind kind, uint64_t generation, json_t *doc);
void worker_poke(struct worker *w);

/* The second thread. */
int worker_talk(struct worker *w, struct err *err);     /* starts it, after the first welcome */
void worker_hush(struct worker *w);                     /* ends it: what is posted is sent first */

#endif
