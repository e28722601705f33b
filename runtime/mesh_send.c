/* runtime/mesh_send.c - what a link sends
 *
 * A post goes from the caller's thread as far as the system takes it at once: others wait for it.
 * What is left, and what is shown before anybody waits for it, lies in the link's outbox for a thread
 * of its own, started at the first of them, that sends it chunk by chunk from the region, where it
 * stays unchanged for long enough (mesh.h); the caller goes on.
 *
 * The outbox has two queues. `bulk` is sent in order. `quick` goes before it, between two chunks: a
 * small post whose readers wait for it now, while the others have time. It is copied, since its
 * slot is used again soon. What may go before what:
 *   1. post numbers arrive in their order: while one waits in bulk, every later one goes there;
 *   2. a number arrives after all that belongs to it. Parts of roots that were shown before a
 *      reduce belong to its post, which goes to bulk behind them; a large part of a board is
 *      announced by its number as owed, and is said to have come at its end.
 * A parcel is of one generation and is thrown away when that is over. link_quiet waits until none
 * is left, so that nothing of a generation follows the word that we have entered the next.
 *
 * Locks: `sending` for the bytes of one message; the outbox's for its queues. Never both.
 */
#include <assert.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "runtime/mesh_int.h"

/* Bytes that the system holds back unsent, at most: what goes before the others waits for these. */
enum { UNSENT_BYTES = 2 * MESH_CHUNK };

struct parcel {
    struct parcel *next;
    uint64_t generation, number;
    uint64_t flags;             /* of its last message */
    size_t offset, bytes, done; /* of the own region */
    bool shown;                 /* before its reduce */
    bool copied;
    char copy[];
};

/* ------------------------------------------------------------ bytes */

void link_cut(struct link *l)
{
    shutdown(l->fd, SHUT_RDWR);         /* its thread finds out, and tells */
}

void link_tune(struct link *l)
{
    const int unsent = UNSENT_BYTES;
    const uint64_t rate = l->mesh->rate;

    setsockopt(l->fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
    if (rate)
        setsockopt(l->fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate);
}

static bool over(const struct link *l, uint64_t generation)
{
    return atomic_load(&l->mesh->aborted) > generation || atomic_load(&l->dead);
}

/* A peer that takes nothing for two silences is lost; when the generation is over, sooner. */
static int push_all(struct link *l, uint64_t generation, struct iovec *v, int n, struct err *err)
{
    struct mesh *m = l->mesh;
    int64_t since = mesh_now_ms();
    int rc;

    while ((rc = wire_push(l->fd, &v, &n)) == 0) {
        struct pollfd p = { l->fd, POLLOUT, 0 };
        if (poll(&p, 1, m->beat_ms) > 0) {
            since = mesh_now_ms();
        } else {
            int64_t beats = (mesh_now_ms() - since) / m->beat_ms;
            if (beats >= 2 * MESH_SILENT || (beats >= 2 && over(l, generation)))
                break;
        }
        if (atomic_load(&l->dead))
            break;
    }
    if (rc == 1) {
        atomic_store_explicit(&l->sent_ms, mesh_now_ms(), memory_order_relaxed);
        return 0;
    }
    link_cut(l);
    return err_set(err, ERR_AGAIN, "worker %" PRIu64 " is not to be reached", l->id);
}

int link_send(struct link *l, const struct wire_header *h, const struct wire_piece *piece, int n,
              struct err *err)
{
    unsigned char head[WIRE_HEADER];
    struct iovec v[4] = { { head, WIRE_HEADER } };

    assert(n < 4);
    wire_pack(h, head);
    for (int i = 0; i < n; i++)
        v[i + 1] = (struct iovec){ (void *)(uintptr_t)piece[i].at, piece[i].n };
    pthread_mutex_lock(&l->sending);
    int rc = push_all(l, h->generation, v, n + 1, err);
    pthread_mutex_unlock(&l->sending);
    return rc;
}

/* From the link's thread: never waits, and somebody who is sending is a sign of life himself. */
void link_beat(struct link *l)
{
    unsigned char head[WIRE_HEADER];
    struct iovec one = { head, WIRE_HEADER }, *v = &one;
    struct pollfd p = { l->fd, POLLOUT, 0 };
    struct err err;
    int n = 1;

    if (pthread_mutex_trylock(&l->sending) != 0)
        return;
    wire_pack(&(struct wire_header){ .kind = WIRE_BEAT }, head);
    if (poll(&p, 1, 0) > 0 && wire_push(l->fd, &v, &n) == 0 && one.iov_len < WIRE_HEADER)
        push_all(l, UINT64_MAX, v, n, &err);    /* half of it went */
    atomic_store_explicit(&l->sent_ms, mesh_now_ms(), memory_order_relaxed);
    pthread_mutex_unlock(&l->sending);
}

/* One POST: a chunk of p, `last` with its flags. */
static int send_chunk(struct link *l, const struct parcel *p, size_t bytes, bool last,
                      struct err *err)
{
    const char *from = p->copied ? p->copy : (const char *)l->mesh->region + p->offset;
    const uint64_t first = (p->offset + p->done) | (last ? p->flags : 0);
    unsigned char prefix[POST_PREFIX];
    struct wire_header h = { WIRE_POST, p->generation, p->number, POST_PREFIX + bytes };
    struct wire_piece piece[] = { { prefix, POST_PREFIX }, { from + p->done, bytes } };

    for (int i = 0; i < POST_PREFIX; i++)
        prefix[i] = (unsigned char)(first >> 8 * i);
    return link_send(l, &h, piece, 2, err);
}

static size_t next_chunk(const struct parcel *p)
{
    return p->bytes - p->done < MESH_CHUNK ? p->bytes - p->done : MESH_CHUNK;
}

/* From the caller's thread: all of it, or as much of a large one as does not have to wait. */
static int send_now(struct link *l, struct parcel *p, bool wait, struct err *err)
{
    struct pollfd f = { l->fd, POLLOUT, 0 };
    int rc;

    do {
        size_t bytes = next_chunk(p);
        if (over(l, p->generation))
            return mesh_again(l->mesh, err);
        if (!wait && poll(&f, 1, 0) <= 0)
            return 0;
        if ((rc = send_chunk(l, p, bytes, p->done + bytes == p->bytes, err)) < 0)
            return rc;
        p->done += bytes;
    } while (p->done < p->bytes);
    return 1;
}

/* ------------------------------------------------------------ the outbox's thread */

static void queue_put(struct parcel_queue *q, struct parcel *p)
{
    *(q->first ? &q->last->next : &q->first) = p;
    q->last = p;
    q->put++;
}

/* Under the lock. */
static void queue_drop(struct parcel_queue *q)
{
    struct parcel *p = q->first;

    q->first = p->next;
    q->done++;
    free(p);
}

/* Under the lock, which it gives up meanwhile: a chunk of the first that waits. Nobody else takes
 * anything out. */
static void send_next(struct link *l, struct parcel_queue *q)
{
    struct outbox *box = &l->box;
    struct parcel *p = q->first;
    const size_t bytes = next_chunk(p);
    const bool last = p->done + bytes == p->bytes;
    bool gone = over(l, p->generation) || p->generation != atomic_load(&l->mesh->generation);
    struct err err;

    if (!gone) {
        pthread_mutex_unlock(&box->lock);
        gone = send_chunk(l, p, bytes, last, &err) < 0;
        pthread_mutex_lock(&box->lock);
        p->done += bytes;
        if (!gone && p->shown)
            box->early += bytes;
    }
    if (gone || last) {
        box->numbers -= q == &box->bulk && (p->flags & POST_LAST) != 0;
        queue_drop(q);
        pthread_cond_broadcast(&box->changed);
    }
}

static void *run_outbox(void *arg)
{
    struct link *l = arg;
    struct outbox *box = &l->box;

    pthread_mutex_lock(&box->lock);
    while (!box->ending) {
        if (box->quick.first)
            send_next(l, &box->quick);
        else if (box->bulk.first)
            send_next(l, &box->bulk);
        else
            pthread_cond_wait(&box->changed, &box->lock);
    }
    while (box->quick.first)
        queue_drop(&box->quick);
    while (box->bulk.first)
        queue_drop(&box->bulk);
    pthread_mutex_unlock(&box->lock);
    return NULL;
}

void outbox_init(struct outbox *box)
{
    *box = (struct outbox){ 0 };
    pthread_mutex_init(&box->lock, NULL);
    pthread_cond_init(&box->changed, NULL);
}

/* The link is cut. */
void outbox_done(struct outbox *box)
{
    pthread_mutex_lock(&box->lock);
    box->ending = true;
    pthread_cond_broadcast(&box->changed);
    pthread_mutex_unlock(&box->lock);
    if (box->begun)
        pthread_join(box->thread, NULL);
    pthread_cond_destroy(&box->changed);
    pthread_mutex_destroy(&box->lock);
}

/* ------------------------------------------------------------ posting, by the caller's thread */

/* Under the outbox's lock. */
static bool idle(const struct outbox *box)
{
    return !box->quick.first && !box->bulk.first;
}

/* What cannot be put there never arrives, and what follows must not either. */
static int put(struct link *l, const struct parcel *like, bool copy, struct parcel_queue *q,
               struct err *err)
{
    struct outbox *box = &l->box;
    struct parcel *p = malloc(sizeof *p + (copy ? like->bytes : 0));

    if (p) {
        *p = *like;
        p->copied = copy;
        if (copy && p->bytes)
            memcpy(p->copy, (const char *)l->mesh->region + p->offset, p->bytes);
        pthread_mutex_lock(&box->lock);
        if (!box->begun)
            box->begun = pthread_create(&box->thread, NULL, run_outbox, l) == 0;
        if (box->begun) {
            queue_put(q, p);
            box->numbers += q == &box->bulk && (p->flags & POST_LAST) != 0;
            p = NULL;
            pthread_cond_broadcast(&box->changed);
        }
        pthread_mutex_unlock(&box->lock);
        if (!p)
            return 0;
    }
    free(p);
    link_cut(l);
    return err_set(err, ERR_AGAIN, "no memory to send to worker %" PRIu64, l->id);
}

static bool is_free(struct link *l, bool *out_numbers)
{
    struct outbox *box = &l->box;

    pthread_mutex_lock(&box->lock);
    const bool free_way = idle(box);
    *out_numbers = box->numbers > 0;
    pthread_mutex_unlock(&box->lock);
    return free_way;
}

int link_post(struct link *l, const struct part *part, int n, uint64_t post, enum post_order order,
              struct err *err)
{
    struct outbox *box = &l->box;
    struct parcel p = { .generation = atomic_load(&l->mesh->generation), .number = post };
    size_t bytes = 0;
    bool numbers, now = is_free(l, &numbers);
    int rc = 0;

    for (; n > 0 && part[n - 1].bytes == 0; n--)
        ;
    for (int i = 0; i < n; i++)
        bytes += part[i].bytes;
    const bool small = bytes <= MESH_CHUNK;
    struct parcel_queue *q = small && order != POST_LATER && !numbers ? &box->quick : &box->bulk;
    /* A number with nothing to it is a part too. */
    for (int i = 0; i < (n ? n : 1) && rc >= 0; i++) {
        const bool last = i + 1 >= n;
        p.offset = n ? part[i].offset : 0;
        p.bytes = n ? part[i].bytes : 0;
        p.done = 0;
        p.flags = last ? POST_LAST | (order == POST_OWED ? POST_OWES : 0) : 0;
        if (!last && !p.bytes)
            continue;
        now = now && (rc = send_now(l, &p, small, err)) > 0;
        if (!now && rc >= 0)
            rc = put(l, &p, small, q, err);
    }
    return rc < 0 ? rc : 0;
}

int link_lay(struct link *l, struct part part, uint64_t post, struct err *err)
{
    struct parcel p = { .generation = atomic_load(&l->mesh->generation), .number = post,
                        .flags = POST_LAID, .offset = part.offset, .bytes = part.bytes };
    bool numbers;
    int rc = 0;

    if (part.bytes <= MESH_CHUNK)
        return link_post(l, &part, 1, post, POST_NOW, err);
    if (is_free(l, &numbers) && (rc = send_now(l, &p, false, err)) > 0)
        return link_post(l, NULL, 0, post, POST_NOW, err);
    if (rc < 0 || (rc = put(l, &p, false, &l->box.bulk, err)) < 0)
        return rc;
    return link_post(l, NULL, 0, post, POST_OWED, err);
}

int link_show(struct link *l, struct part part, struct err *err)
{
    struct parcel p = { .generation = atomic_load(&l->mesh->generation), .offset = part.offset,
                        .bytes = part.bytes, .shown = true };

    return put(l, &p, false, &l->box.bulk, err);
}

uint64_t link_mark(struct link *l, uint64_t *out_early)
{
    struct outbox *box = &l->box;

    pthread_mutex_lock(&box->lock);
    uint64_t mark = box->bulk.put;
    *out_early = box->early;
    box->early = 0;
    pthread_mutex_unlock(&box->lock);
    return mark;
}

void link_wait(struct link *l, uint64_t mark)
{
    struct outbox *box = &l->box;

    pthread_mutex_lock(&box->lock);
    while (box->bulk.done < mark)
        pthread_cond_wait(&box->changed, &box->lock);
    pthread_mutex_unlock(&box->lock);
}

void link_quiet(struct link *l)
{
    struct outbox *box = &l->box;

    pthread_mutex_lock(&box->lock);
    while (!idle(box))
        pthread_cond_wait(&box->changed, &box->lock);
    pthread_mutex_unlock(&box->lock);
}
