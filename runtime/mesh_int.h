/* runtime/mesh_int.h - the inside of a mesh, for mesh*.c alone
 *
 * Threads: the caller's; one that listens (mesh_link.c); one for each link, which reads; one for
 * each link that has had something large to send (mesh_send.c). `lock` guards the list of links and
 * their states; each link's `sending` keeps its messages whole.
 * What a link's thread and the caller share besides: the words of the regions, `generation`,
 * `aborted`, `posted`, all atomic.
 *
 * A word is the generation (24 bits) and the post number in it (40 bits): one store publishes both.
 * Generations are compared by their difference, so that they may wrap around.
 */
#ifndef MUSTER_RUNTIME_MESH_INT_H
#define MUSTER_RUNTIME_MESH_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "runtime/mesh.h"
#include "runtime/wire.h"

enum {
    MESH_NONCE = 16,
    MESH_CHUNK = 65536,         /* bytes of a POST: a new generation waits for one at most */
    MESH_STATE_CHUNK = 1 << 18, /* of a STATE */
    MESH_SILENT = 5,            /* beats */
    REGION_PAGE = 4096,
    POST_BITS = 40,
    POST_ENTER = 1,             /* the first of a generation */
    POST_PREFIX = 8,            /* of a POST's body: an offset in the region, and flags */
};
/* The last message of a post, which has its number. */
#define POST_LAST (UINT64_C(1) << 63)
/* A number whose part of the board is still on its way; the last message of such a part. */
#define POST_OWES (UINT64_C(1) << 62)
#define POST_LAID (UINT64_C(1) << 61)
#define POST_FLAGS (POST_LAST | POST_OWES | POST_LAID)

static inline int64_t mesh_now_ms(void)
{
    return (int64_t)(clock_seconds() * 1e3);
}

/* ------------------------------------------------------------ regions (mesh_region.c) */

/* The first page of a region; the parts follow, each on a page of its own. */
struct region {
    unsigned char nonce[MESH_NONCE];
    uint64_t bytes, floats, board;
    _Alignas(128) _Atomic uint64_t word;
};

static inline uint64_t word_of(uint64_t generation, uint64_t post)
{
    return generation << POST_BITS | post;
}
static inline uint64_t word_post(uint64_t word)
{
    return word & ((UINT64_C(1) << POST_BITS) - 1);
}
/* < 0: the word's generation is older, or it never was in one; > 0: newer. */
static inline int word_age(uint64_t word, uint64_t generation)
{
    uint32_t own = (uint32_t)(word >> POST_BITS << 8), other = (uint32_t)(generation << 8);
    return word == 0 ? -1 : (int32_t)(own - other);
}

static inline size_t region_page(size_t n)
{
    return (n + REGION_PAGE - 1) / REGION_PAGE * REGION_PAGE;
}
/* Offsets of the parts. */
static inline size_t region_slot(int slot)
{
    return REGION_PAGE + (size_t)slot * GATHER_BYTES;
}
static inline size_t region_sum(void)
{
    return region_slot(2);
}
static inline size_t region_root(long floats, int side, int root)
{
    return region_sum() + (size_t)(1 + side * MESH_ROOTS + root) *
                          region_page((size_t)floats * sizeof(float));
}
static inline size_t region_board(long floats)
{
    return region_root(floats, 1, MESH_ROOTS);
}
/* How large a region is: floats of the gradient vector, of the board. */
struct region_shape {
    long floats, board;
};
static inline size_t region_bytes(struct region_shape s)
{
    return region_board(s.floats) + region_page((size_t)s.board * sizeof(float));
}

struct region_name {            /* how another process finds it */
    long pid;
    int fd;                     /* -1: not to be had */
    unsigned char nonce[MESH_NONCE];
};
int region_new(struct region_shape shape, struct region **out, struct region_name *out_name,
               struct err *err);
/* A peer's, read only; NULL: not reachable from here. */
struct region *region_open(const struct region_name *name, struct region_shape shape);
/* Memory of the same layout for what comes by TCP; NULL: no memory. */
struct region *region_mirror(struct region_shape shape);
void region_close(struct region *r, struct region_shape shape);
void word_store(_Atomic uint64_t *at, uint64_t word);   /* and wakes */
/* Until the word differs from `seen`, a millisecond at most. */
void word_wait(const _Atomic uint64_t *at, uint64_t seen);
void region_post(struct region *r, uint64_t word);      /* of its word */
void region_wait(const struct region *r, uint64_t seen);

/* ------------------------------------------------------------ links (mesh_link.c) */

enum link_state { LINK_CALLING, LINK_UP, LINK_DEAD };

/* A state that came for us and was not asked for yet. */
struct arrival {
    struct arrival *next;
    uint64_t generation;
    size_t n, got, cap;
    char *bytes;
};

/* What waits to be sent (mesh_send.c). */
struct parcel_queue {
    struct parcel *first, *last;
    uint64_t put, done;         /* how many ever */
};
struct outbox {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool begun, ending;
    struct parcel_queue quick, bulk;
    int numbers;                /* posts that wait in bulk */
    uint64_t early;             /* bytes that were sent before the reduce they are for */
};

struct link {
    struct link *next;          /* newest first */
    struct mesh *mesh;
    uint64_t id;                /* the peer's */
    uint64_t to;                /* our own, as the caller of this link knew it */
    char address[256];          /* to call; "": it called */
    int timeout_ms;             /* of the call */
    double since;
    int fd;
    pthread_t thread;
    /* Under the mesh's lock: */
    enum link_state state;
    bool replaced;              /* the peer has called again */
    bool claimed;               /* was part of a generation */
    bool active;                /* is part of this one: its loss is told */
    bool closing;               /* by us: nobody is told */
    uint64_t entered;           /* the last generation that the peer entered with this link */
    struct err why;             /* of LINK_DEAD */
    struct arrival *arrivals;   /* complete ones, oldest first */

    _Atomic bool dead;          /* the same as LINK_DEAD, for those who wait */
    pthread_mutex_t sending;
    _Atomic int64_t sent_ms;    /* when bytes were last sent */
    bool they_read_tcp;         /* the peer wants our posts here */
    bool we_read_tcp;
    struct region *region;      /* the peer's, mapped or mirrored */
    /* Words, of the peer's board by TCP: the last part that was announced, that has come. */
    _Atomic uint64_t owed, laid;
    uint64_t told;              /* the last generation that we said we entered with this link */
    uint64_t mark;              /* what its outbox had been given when the reduce began */
    struct outbox box;
    /* Of the link's thread: */
    struct arrival *arriving;
    int quiet;                  /* beats in a row without a byte */
    size_t in_from, in_to;
    char in[4096];
};

int links_start(struct mesh *m, struct err *err);       /* begins to listen */
void links_stop(struct mesh *m);
/* A link that calls; on the list. NULL: no memory or thread. Under the lock. */
struct link *link_call(struct mesh *m, uint64_t id, uint64_t self_id, const char *address,
                       int timeout_ms);
/* Ends the thread and frees; not under the lock, off the list. */
void link_close(struct link *l);
void link_cut(struct link *l);          /* its thread ends */
void link_tune(struct link *l);
void link_beat(struct link *l);
void outbox_init(struct outbox *box);
void outbox_done(struct outbox *box);   /* ends its thread; the link is cut */
/* A whole message, or the link is dead (ERR_AGAIN). */
int link_send(struct link *l, const struct wire_header *h, const struct wire_piece *piece, int n,
              struct err *err);
/* Says that we have entered and use this link. */
int link_enter(struct link *l, uint64_t generation, struct err *err);

/* Parts of the own region, and with the last the post number, to a peer that reads by TCP. Large
 * ones are sent while the caller goes on. POST_LATER: after all that was shown. */
struct part {
    size_t offset, bytes;
};
enum post_order { POST_NOW, POST_OWED, POST_LATER };
int link_post(struct link *l, const struct part *part, int n, uint64_t post, enum post_order order,
              struct err *err);
/* A part of the board and its number, which does not wait for the part where that is large. */
int link_lay(struct link *l, struct part part, uint64_t post, struct err *err);
/* A part of a post to come, which has POST_LATER. */
int link_show(struct link *l, struct part part, struct err *err);
/* What the outbox has been given so far; the bytes of shown parts that were sent since the last
 * mark. link_wait: until as much has left it, or will never. */
uint64_t link_mark(struct link *l, uint64_t *out_early);
void link_wait(struct link *l, uint64_t mark);
void link_quiet(struct link *l);        /* until the outbox is empty */

/* ------------------------------------------------------------ the mesh */

struct place {
    struct mesh_peer peer;
    struct link *link;          /* NULL: ourselves */
    const struct region *region;
    long from, to;              /* its segment */
    long shown;                 /* of our roots in this step, what it needs from here on */
    int roots, first[MESH_ROOTS], width[MESH_ROOTS];
    double missing_since;       /* while entering; 0: not missing */
    bool called;                /* while entering: a call has been made */
};

struct mesh {
    struct mesh_config config;  /* strings are our own */
    char *token, *host;
    char address[256];
    int listener, stop;         /* stop: an eventfd */
    pthread_t listening;
    bool listens;
    int cores;

    struct region_shape shape;
    struct region *region;
    struct region_name name;
    _Atomic uint64_t generation, aborted;       /* aborted: the newest one, + 1 */
    _Atomic uint64_t posted;    /* orders the caller's reads of mirrors before their next writes */
    _Atomic uint64_t bytes_sent, bytes_early;
    uint64_t rate;              /* bytes a second and link; 0: no limit (for bench/) */
    bool late;                  /* nothing is shown (for bench/) */
    _Atomic uint64_t id;        /* our own; 0: not known yet */
    _Atomic int beat_ms;

    pthread_mutex_t lock;
    pthread_cond_t changed;     /* a link's state, an arrival */
    struct link *links;

    /* Of the caller's thread: */
    struct place place[MESH_MAX];
    int n, self;
    bool ready;                 /* entered */
    bool spins;                 /* there is a core for each worker of this host */
    int spin_us;                /* how long, as it paid lately */
    unsigned spun_out;          /* how often it did not pay */
    uint64_t post, slots;       /* posts and small gathers of this generation */
    struct grad_segment segment[MESH_MAX];
    int side;                   /* of the roots, for this step */
};

static inline bool mesh_aborted(struct mesh *m)
{
    return atomic_load_explicit(&m->aborted, memory_order_acquire) >
           atomic_load_explicit(&m->generation, memory_order_relaxed);
}
int mesh_again(struct mesh *m, struct err *err);        /* says that the generation is over */

/* Until the one in place i has made post k. */
int mesh_wait(struct mesh *m, int i, uint64_t k, struct err *err);
int mesh_wait_all(struct mesh *m, uint64_t k, struct err *err);


#endif
