/* runtime/mesh.h - what workers of one generation tell each other
 *
 * Every worker has a region: memory that it alone writes and the others read. Between workers of
 * one host it is shared memory (a memfd, opened through /proc/PID/fd, so that nothing is left
 * behind by a kill); for a worker elsewhere it is a mirror that a thread fills from a TCP link.
 * What is read and how it is waited for is the same for both.
 *
 * A region holds, in this order: a line of flags, two slots for small gathers, the sum of the own
 * segment, two sides of roots (the gradient sums of the complete subtrees of shards that the worker
 * holds), a board (what else the user of the mesh lets others read, in an order of his own).
 * A worker writes a part and then posts: post number k of a generation means the same to everybody,
 * since all run the same program. A reader waits until the owner's post number has reached k.
 * Why no part is overwritten while somebody may still read it: to make post k + 1 of a kind a
 * worker needs every other worker's post k, which they make after they have read what was before.
 *
 * The reduce of a step (mesh_reduce): each worker adds up one segment of the parameter vector, from
 * everybody's roots by the tree over the shard index, and posts it; all read all segments. Of two
 * workers each reads the other's whole root instead, and the one addition that is left is made by
 * who uses the sum: as many bytes, one wait less. That is why roots have two sides: a worker may be
 * at its next step while the other still reads. No sum depends on who arrived when.
 *
 * What a worker elsewhere needs of a root is sent as soon as it is final (mesh_ready), from where
 * it lies, while the backward pass goes on; the reduce sends the rest, and the post number after
 * all of it. Until that number has come nobody reads what was shown. When a reduce returns, all
 * that was given to a link before it has left, so that a region may be written as if everybody
 * read it in place.
 *
 * When a peer is lost, or the generation is over (mesh_abort, from another thread), a call that
 * waits returns ERR_AGAIN, and the caller waits for the next roster.
 *
 * Threads: one caller, plus mesh_abort and the counters from any thread. Links have reader
 * threads of their own.
 */
#ifndef MUSTER_RUNTIME_MESH_H
#define MUSTER_RUNTIME_MESH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/own.h"
#include "engine/plan.h"        /* SHARDS_MAX */

enum { MESH_MAX = 64, MESH_ROOTS = 4, GATHER_BYTES = 65536 };

struct mesh;

/* One worker as the roster has it, in the order of the roster. */
struct mesh_peer {
    uint64_t id;                /* never reused: a later worker has a greater one */
    char address[256];          /* of its listener */
    char host[80];              /* equal: the same machine, and shared memory is tried */
    long pid;
    int from, to;               /* shards; from == to: stands by */
};

struct mesh_config {
    const char *token;
    const char *listen;         /* "127.0.0.1:0" */
    const char *host;           /* of this machine: its boot id */
    long floats;                /* of the gradient vector, a multiple of 16 */
    long board;                 /* of the board, a multiple of 16; may be 0 */
    int shards;
    /* Called when a peer of this generation is lost: from its link's thread when the link is closed
     * or silent, from mesh_enter when it does not come. Must not wait for the caller's thread. */
    void (*lost)(void *arg, uint64_t id);
    void *arg;
    /* A link is silent after five of them (default 100). Two that read each other's memory have
     * none: they hear of a death at once, of a hang from the coordinator. */
    int beat_ms;
    bool no_shared_memory;      /* for tests: reads by TCP even on one host */
};

int mesh_new(const struct mesh_config *c, struct mesh **out, struct err *err);
void mesh_free(struct mesh *m);
OWN_DEFINE(mesh)
const char *mesh_address(const struct mesh *m);         /* of the listener */
/* In place of the config's, for links to come. Any thread. */
void mesh_set_beat(struct mesh *m, int ms);

/* Enters a generation, greater than any before: links to all peers (the later in the list calls the
 * earlier), kept from the generation before where both stayed; links to others are closed. `self`
 * is the own place in the list. The ones that stand by are linked too. Returns when everybody has
 * entered; ERR_AGAIN: aborted, or a peer cannot be reached (it was told to `lost`). */
int mesh_enter(struct mesh *m, uint64_t generation, const struct mesh_peer *peer, int n, int self,
               int timeout_ms, struct err *err);
/* Ends every wait of this generation with ERR_AGAIN, also if it is entered later. Any thread. */
void mesh_abort(struct mesh *m, uint64_t generation);
/* ERR_AGAIN when no generation is on, or the one that is has been aborted. */
int mesh_check(struct mesh *m, struct err *err);

/* Where backward leaves the gradient of root r of the own shards: of the first step of a generation
 * at side 0, of the next at side 1, and so on in turn; mesh_side says which is next. */
float *mesh_root(struct mesh *m, int side, int r);
int mesh_side(const struct mesh *m);

/* Every shard has `count` floats; rows[k * stride] of own shards are given, the others are filled
 * in. At most GATHER_BYTES in all. */
int mesh_gather(struct mesh *m, float *rows, long stride, long count, struct err *err);

/* `bytes` of the worker in place `from` reach everybody's `bytes`; n, at most GATHER_BYTES, is the
 * same for all. */
int mesh_tell(struct mesh *m, int from, void *bytes, size_t n, struct err *err);

/* From element `from` on the own roots of this step (those with samples: `filled` as in
 * mesh_reduce) are final: those who read by TCP are sent it. Does not wait. */
void mesh_ready(struct mesh *m, unsigned filled, long from);
/* Somebody reads by TCP: mesh_ready is of use. */
bool mesh_wants_ready(const struct mesh *m);

/* A step's gradient. `filled`: the shards that have samples in this batch, by bit. On success
 * segments say where the sum is; valid until the next call. */
int mesh_reduce(struct mesh *m, unsigned filled, const struct grad_segment **out, int *out_n,
                struct err *err);

/* A board: memory that the one in a place writes and all read, of which it posts parts. A post
 * waits for nobody; mesh_wait_for: until `place` has made as many posts of any kind in this
 * generation as we have. Boards stay where they are until the next generation is entered. */
float *mesh_board(struct mesh *m);
const float *mesh_board_of(const struct mesh *m, int place);
/* The board of `place` is its own memory, and stays readable here until the next generation,
 * whatever becomes of it. Sets *far when it does not read ours so. */
bool mesh_is_near(const struct mesh *m, int place, bool *far);
int mesh_post(struct mesh *m, long from, long n, struct err *err);
int mesh_wait_for(struct mesh *m, int place, struct err *err);

/* What the last calls have read was still this generation's when it was read. A worker that was
 * stopped and left out of the next generation reads, when it wakes, what the others write by then;
 * every call checks that for itself, the user of a reduce's segments checks it after the last use.
 * false: whatever was made from them is to be thrown away. */
bool mesh_intact(const struct mesh *m);

/* State for a newcomer: from the place `source` to the places in `to` (a bit each). The others
 * return at once. The receiver's bytes are malloced, its own. */
int mesh_copy(struct mesh *m, int source, uint64_t to, const void *state, size_t n, void **out,
              size_t *out_n, struct err *err);

/* Bytes of gathers and reduces that others took from here, whichever way. */
uint64_t mesh_bytes_sent(const struct mesh *m);
/* Of them, what had left by TCP before the reduce that it was for. */
uint64_t mesh_bytes_early(const struct mesh *m);

#endif
