/* runtime/mesh_link.c - TCP links between workers
 *
 * There is one between any two workers. After the challenge of wire.h it begins with
 *
 *     caller -> listener    HELLO    who I am and whom I mean, where my region is
 *     listener -> caller    WELCOME  where mine is, and whether I read yours by TCP; or REFUSED
 *     caller -> listener    READY    whether I read yours by TCP
 *     listener -> caller    READY
 *
 * and goes on with GO (I have entered this generation, with this link), POST (a part of a region;
 * with the last one the post number), STATE (a part of a copy) and BEAT. The link's thread reads;
 * it also calls, so that nobody else waits for a peer that does not answer. Links that
 * carry posts have a beat. Where both sides read shared memory the link is silent, and tells by its
 * end that the process at the other side has ended.
 *
 * A POST's body begins with 8 bytes: the offset in the region, and flags (mesh_int.h). What is sent
 * when is in mesh_send.c.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "runtime/mesh_int.h"

enum { PENDING_MAX = 64, PENDING_MS = 5000, CALL_SLICE_MS = 1000 };
#define STATE_MOST (UINT64_C(1) << 36)

/* ------------------------------------------------------------ what the two sides say first */

struct greeting {
    uint64_t id, to;
    char host[80];
    struct region_name name;
    long floats, board;
    int shards;
};

static void hex_of(const unsigned char *in, int n, char *out)
{
    for (int i = 0; i < n; i++)
        snprintf(out + 2 * i, 3, "%02x", in[i]);
}

static int hex_read(const char *in, unsigned char *out, int n)
{
    unsigned v;
    if (strlen(in) != 2 * (size_t)n)
        return -1;
    for (int i = 0; i < n; i++) {
        if (sscanf(in + 2 * i, "%2x", &v) != 1)
            return -1;
        out[i] = (unsigned char)v;
    }
    return 0;
}

/* malloced; NULL: no memory. `tcp` < 0: not known yet. */
static char *greeting_text(const struct mesh *m, uint64_t id, uint64_t to, int tcp)
{
    char nonce[2 * MESH_NONCE + 1];

    hex_of(m->name.nonce, MESH_NONCE, nonce);
    OWN_JSON json_t *j = json_pack("{sI sI ss sI si ss sI sI si}", "id", (json_int_t)id, "to",
                                   (json_int_t)to, "host", m->host, "pid",
                                   (json_int_t)m->name.pid, "fd", m->name.fd, "nonce", nonce,
                                   "floats", (json_int_t)m->config.floats, "board",
                                   (json_int_t)m->config.board, "shards", m->config.shards);
    if (!j || (tcp >= 0 && json_object_set_new(j, "tcp", json_boolean(tcp)) < 0))
        return NULL;
    return json_dumps(j, JSON_COMPACT);
}

/* `out_tcp` (NULL: not wanted) is what the peer says about itself. */
static int greeting_read(const char *text, struct greeting *g, int *out_tcp, struct err *err)
{
    OWN_JSON json_t *j = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    json_int_t id, to, pid, floats, board = 0;
    const char *host, *nonce;
    int tcp = 0;

    *g = (struct greeting){ 0 };
    if (!j || json_unpack(j, "{sI sI ss sI si ss sI s?I si s?b}", "id", &id, "to", &to, "host",
                          &host, "pid", &pid, "fd", &g->name.fd, "nonce", &nonce, "floats", &floats,
                          "board", &board, "shards", &g->shards, "tcp", &tcp) < 0 ||
        strlen(host) >= sizeof g->host || hex_read(nonce, g->name.nonce, MESH_NONCE) < 0)
        return err_set(err, ERR_INVALID, "a peer's greeting makes no sense");
    g->id = (uint64_t)id;
    g->to = (uint64_t)to;
    g->name.pid = (long)pid;
    g->floats = (long)floats;
    g->board = (long)board;
    snprintf(g->host, sizeof g->host, "%s", host);
    if (out_tcp)
        *out_tcp = tcp;
    return 0;
}

static int greeting_check(const struct mesh *m, const struct greeting *g, struct err *err)
{
    if (g->floats != m->config.floats || g->board != m->config.board ||
        g->shards != m->config.shards)
        return err_set(err, ERR_CONFLICT,
                       "worker %" PRIu64 " has %ld + %ld floats in %d shards, worker %" PRIu64
                       " %ld + %ld in %d (they run different specs)", g->id, g->floats, g->board,
                       g->shards, atomic_load(&m->id), m->config.floats, m->config.board,
                       m->config.shards);
    return 0;
}

/* Where we read the peer: its memory, or a mirror. NULL: no memory. */
static struct region *open_peer(const struct mesh *m, const struct greeting *g, bool *out_tcp)
{
    struct region *r = NULL;

    if (!m->config.no_shared_memory && strcmp(g->host, m->host) == 0)
        r = region_open(&g->name, m->shape);
    *out_tcp = !r;
    return r ? r : region_mirror(m->shape);
}

/* ------------------------------------------------------------ the link's thread: receiving */

static bool has_beat(const struct link *l)
{
    return l->they_read_tcp || l->we_read_tcp;
}

/* What has come, at most n bytes. Where there are beats: 0 when nothing came for one. */
static ssize_t receive_some(struct link *l, void *to, size_t n, struct err *err)
{
    const int beat_ms = l->mesh->beat_ms;
    ssize_t got = recv(l->fd, to, n, 0);
    const int why = errno;

    if (got == 0)
        return err_set(err, ERR_IO, "worker %" PRIu64 " closed its link", l->id);
    if (got < 0 && why != EAGAIN && why != EWOULDBLOCK && why != EINTR)
        return err_set(err, ERR_IO, "link to worker %" PRIu64 ": %s", l->id, strerror(why));
    if (!has_beat(l))
        return got < 0 ? 0 : got;
    int64_t now = mesh_now_ms();
    if (now - atomic_load_explicit(&l->sent_ms, memory_order_relaxed) >= beat_ms)
        link_beat(l);
    /* Counted in looks that found nothing, not by the clock: when we did not run ourselves, what
     * came meanwhile is there at the next look. */
    l->quiet = got > 0 ? 0 : l->quiet + (why != EINTR);
    if (l->quiet >= MESH_SILENT)
        return err_set(err, ERR_AGAIN, "worker %" PRIu64 " was silent for %d ms", l->id,
                       MESH_SILENT * beat_ms);
    return got < 0 ? 0 : got;
}

/* All n bytes. Beats go out in time; where there are beats, silence ends it. Small things are taken
 * from a buffer: a message with what belongs to it is one call of the system. */
static int receive(struct link *l, void *to, size_t n, struct err *err)
{
    char *at = to;

    while (n > 0) {
        size_t held = l->in_to - l->in_from;
        if (held) {
            size_t take = held < n ? held : n;
            memcpy(at, l->in + l->in_from, take);
            l->in_from += take;
            at += take;
            n -= take;
            continue;
        }
        bool direct = n >= sizeof l->in;
        ssize_t got = receive_some(l, direct ? at : l->in, direct ? n : sizeof l->in, err);
        if (got < 0)
            return (int)got;
        if (direct) {
            at += got;
            n -= (size_t)got;
        } else {
            l->in_from = 0;
            l->in_to = (size_t)got;
        }
    }
    return 0;
}

static int discard(struct link *l, uint64_t n, struct err *err)
{
    char waste[4096];
    int rc = 0;

    for (; n > 0 && rc == 0; n -= n < sizeof waste ? n : sizeof waste)
        rc = receive(l, waste, n < sizeof waste ? (size_t)n : sizeof waste, err);
    return rc;
}

static int take_post(struct link *l, const struct wire_header *h, struct err *err)
{
    struct mesh *m = l->mesh;
    unsigned char prefix[POST_PREFIX];
    uint64_t offset = 0, generation = atomic_load(&m->generation);
    int rc;

    if (h->length < POST_PREFIX || h->length > POST_PREFIX + MESH_CHUNK || !l->we_read_tcp)
        return err_set(err, ERR_INVALID, "worker %" PRIu64 " posts what nobody reads", l->id);
    size_t n = (size_t)h->length - POST_PREFIX;
    if ((rc = receive(l, prefix, POST_PREFIX, err)) < 0)
        return rc;
    if (h->generation < generation)
        return discard(l, n, err);
    for (int i = 0; i < POST_PREFIX; i++)
        offset |= (uint64_t)prefix[i] << 8 * i;
    const uint64_t flags = offset & POST_FLAGS;
    offset &= ~POST_FLAGS;
    /* Nothing comes of a generation that we have not entered: the peer goes on when it has seen us
     * there. */
    bool inside = n == 0 || (offset >= REGION_PAGE &&
                             offset <= region_bytes(m->shape) - n);
    if (h->generation != generation || !inside)
        return err_set(err, ERR_INVALID, "worker %" PRIu64 " posts out of turn", l->id);
    /* Pairs with publish() in mesh_reduce.c: what the caller has read there was read before. */
    atomic_load_explicit(&m->posted, memory_order_acquire);
    if (n > 0 && (rc = receive(l, (char *)l->region + offset, n, err)) < 0)
        return rc;
    const uint64_t word = word_of(h->generation, h->number);
    if (flags & POST_OWES)
        atomic_store_explicit(&l->owed, word, memory_order_release);
    if (flags & POST_LAST)
        region_post(l->region, word);
    if (flags & POST_LAID)
        word_store(&l->laid, word);
    return 0;
}

static void arrival_free(struct arrival *a)
{
    if (a)
        free(a->bytes);
    free(a);
}

/* Memory follows the bytes that come, not those that were announced. */
static int arrival_grow(struct arrival *a, size_t need)
{
    size_t cap = 2 * a->cap > need ? 2 * a->cap : need;

    if (a->bytes && need <= a->cap)
        return 0;
    cap = cap < a->n ? cap : a->n;
    char *bytes = realloc(a->bytes, cap ? cap : 1);
    if (!bytes)
        return -1;
    a->bytes = bytes;
    a->cap = cap;
    return 0;
}

/* `number` of a STATE is the size of the whole. */
static int take_state(struct link *l, const struct wire_header *h, struct err *err)
{
    struct mesh *m = l->mesh;
    struct arrival *a = l->arriving;
    int rc;

    if (a && (a->generation != h->generation || a->n != h->number)) {
        arrival_free(a);        /* its sender has given it up */
        a = l->arriving = NULL;
    }
    if (h->generation < atomic_load(&m->generation))
        return discard(l, h->length, err);
    if (h->number > STATE_MOST)
        return err_set(err, ERR_INVALID, "worker %" PRIu64 " sends a state of %" PRIu64 " bytes",
                       l->id, h->number);
    if (!a) {
        a = l->arriving = calloc(1, sizeof *a);
        if (!a)
            return err_set(err, ERR_NOMEM, "no memory for a state");
        a->generation = h->generation;
        a->n = (size_t)h->number;
    }
    if (h->length > a->n - a->got || h->length > MESH_STATE_CHUNK)
        return err_set(err, ERR_INVALID, "worker %" PRIu64 " sends more than it said", l->id);
    if (arrival_grow(a, a->got + (size_t)h->length) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a state of %" PRIu64 " bytes", h->number);
    if ((rc = receive(l, a->bytes + a->got, (size_t)h->length, err)) < 0)
        return rc;
    a->got += (size_t)h->length;
    if (a->got < a->n)
        return 0;
    l->arriving = NULL;
    pthread_mutex_lock(&m->lock);
    struct arrival **end = &l->arrivals;
    while (*end)
        end = &(*end)->next;
    *end = a;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    return 0;
}

int link_enter(struct link *l, uint64_t generation, struct err *err)
{
    link_quiet(l);
    return link_send(l, &(struct wire_header){ WIRE_GO, generation, 0, 0 }, NULL, 0, err);
}

static int take_enter(struct link *l, const struct wire_header *h, struct err *err)
{
    struct mesh *m = l->mesh;

    if (l->we_read_tcp && h->generation >= atomic_load(&m->generation))
        region_post(l->region, word_of(h->generation, POST_ENTER));
    pthread_mutex_lock(&m->lock);
    if (h->generation > l->entered)
        l->entered = h->generation;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    return discard(l, h->length, err);
}

static int read_on(struct link *l, struct err *err)
{
    unsigned char head[WIRE_HEADER];
    struct wire_header h;
    int rc;

    for (;;) {
        if ((rc = receive(l, head, WIRE_HEADER, err)) < 0 || (rc = wire_unpack(head, &h, err)) < 0)
            return rc;
        rc = h.kind == WIRE_POST    ? take_post(l, &h, err)
             : h.kind == WIRE_STATE ? take_state(l, &h, err)
             : h.kind == WIRE_GO    ? take_enter(l, &h, err)
                                    : discard(l, h.length, err);
        if (rc < 0)
            return rc;
    }
}

static void link_died(struct link *l, const struct err *why)
{
    struct mesh *m = l->mesh;

    pthread_mutex_lock(&m->lock);
    bool tell = l->active && !l->closing;
    l->state = LINK_DEAD;
    l->why = *why;
    atomic_store(&l->dead, true);
    if (l->fd >= 0)
        link_cut(l);            /* whoever is sending stops */
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    if (tell && m->config.lost)
        m->config.lost(m->config.arg, l->id);
}

/* ------------------------------------------------------------ the link's thread: calling */

static int say(int fd, enum wire_kind kind, const char *text, int ms, struct err *err)
{
    struct wire_header h = { .kind = kind, .length = text ? strlen(text) : 0 };
    return wire_send(fd, &h, text, ms, err);
}

static int hear(int fd, enum wire_kind kind, struct buf *body, int ms, struct err *err)
{
    struct wire_header h;
    int rc = wire_receive(fd, &h, body, ms, err);

    if (rc < 0)
        return rc;
    if (h.kind == WIRE_REFUSED)
        return err_set(err, ERR_CONFLICT, "%.200s", body->data);
    if (h.kind != kind)
        return err_set(err, ERR_INVALID, "a message %s in place of %s", wire_kind_name(h.kind),
                       wire_kind_name(kind));
    return 0;
}

/* In slices, so that one who closes the link need not wait long. */
static int dial(struct link *l, int64_t until, int *out_fd, struct err *err)
{
    for (;;) {
        int64_t ms = until - mesh_now_ms();
        ms = ms < 1 ? 1 : ms > CALL_SLICE_MS ? CALL_SLICE_MS : ms;
        int rc = wire_connect(l->address, l->mesh->token, (int)ms, out_fd, err);
        pthread_mutex_lock(&l->mesh->lock);
        bool closing = l->closing;
        pthread_mutex_unlock(&l->mesh->lock);
        if (rc != -ERR_AGAIN || closing || mesh_now_ms() >= until)
            return rc;
    }
}

static int call(struct link *l, struct err *err)
{
    struct mesh *m = l->mesh;
    int64_t until = mesh_now_ms() + l->timeout_ms;
    OWN_BUF body = BUF_INIT;
    OWN_MEM char *hello = greeting_text(m, l->to, l->id, -1);
    struct greeting g;
    int fd = -1, tcp = 0, rc;

    if (!hello)
        return err_set(err, ERR_NOMEM, "no memory for a link");
    if ((rc = dial(l, until, &fd, err)) < 0)
        return rc;
    pthread_mutex_lock(&m->lock);
    l->fd = fd;                 /* from here on closing the link can end the waits below */
    bool closing = l->closing;
    pthread_mutex_unlock(&m->lock);
    if (closing)
        return err_set(err, ERR_AGAIN, "the link is closed");

    int ms = (int)(until > mesh_now_ms() ? until - mesh_now_ms() : 1);
    if ((rc = wire_prove(fd, m->token, ms, err)) < 0 ||
        (rc = say(fd, WIRE_HELLO, hello, ms, err)) < 0 ||
        (rc = hear(fd, WIRE_WELCOME, &body, ms, err)) < 0 ||
        (rc = greeting_read(body.data, &g, &tcp, err)) < 0 ||
        (rc = greeting_check(m, &g, err)) < 0)
        return rc;
    l->they_read_tcp = tcp;
    if (!(l->region = open_peer(m, &g, &l->we_read_tcp)))
        return err_set(err, ERR_NOMEM, "no memory for a link");
    if ((rc = say(fd, WIRE_READY, l->we_read_tcp ? "{\"tcp\":true}" : "{\"tcp\":false}", ms,
                  err)) < 0)
        return rc;
    return hear(fd, WIRE_READY, &body, ms, err);
}

static void *run_link(void *arg)
{
    struct link *l = arg;
    struct mesh *m = l->mesh;
    struct err err = { 0 };
    int rc = l->address[0] ? call(l, &err) : 0;

    if (rc == 0) {
        pthread_mutex_lock(&m->lock);
        l->state = LINK_UP;
        pthread_cond_broadcast(&m->changed);
        pthread_mutex_unlock(&m->lock);
        atomic_store(&l->sent_ms, mesh_now_ms());
        link_tune(l);
        const int ms = m->beat_ms;
        struct timeval beat_time = { ms / 1000, ms % 1000 * 1000 };
        if (has_beat(l))
            setsockopt(l->fd, SOL_SOCKET, SO_RCVTIMEO, &beat_time, sizeof beat_time);
        read_on(l, &err);
    } else {
        err_add(&err, "calling worker %" PRIu64, l->id);
    }
    link_died(l, &err);
    return NULL;
}

/* ------------------------------------------------------------ life of a link */

/* On the list, its thread running; under the lock. NULL: not, and nothing is left of it. */
static struct link *link_begin(struct mesh *m, const struct link *as)
{
    struct link *l = malloc(sizeof *l);

    if (!l)
        return NULL;
    *l = *as;
    l->mesh = m;
    l->since = clock_seconds();
    pthread_mutex_init(&l->sending, NULL);
    outbox_init(&l->box);
    if (pthread_create(&l->thread, NULL, run_link, l) != 0) {
        outbox_done(&l->box);
        pthread_mutex_destroy(&l->sending);
        free(l);
        return NULL;
    }
    for (struct link *old = m->links; old; old = old->next)
        if (old->id == l->id && !old->replaced) {
            old->replaced = true;
            if (old->fd >= 0)
                link_cut(old);
        }
    l->next = m->links;
    m->links = l;
    return l;
}

struct link *link_call(struct mesh *m, uint64_t id, uint64_t self_id, const char *address,
                       int timeout_ms)
{
    struct link l = { .id = id, .to = self_id, .timeout_ms = timeout_ms, .fd = -1,
                      .state = LINK_CALLING };

    snprintf(l.address, sizeof l.address, "%s", address);
    return link_begin(m, &l);
}

void link_close(struct link *l)
{
    struct mesh *m = l->mesh;

    pthread_mutex_lock(&m->lock);
    l->closing = true;
    if (l->fd >= 0)
        link_cut(l);
    pthread_mutex_unlock(&m->lock);
    pthread_join(l->thread, NULL);
    outbox_done(&l->box);
    if (l->fd >= 0)
        close(l->fd);
    region_close(l->region, m->shape);
    arrival_free(l->arriving);
    for (struct arrival *a = l->arrivals, *next; a; a = next) {
        next = a->next;
        arrival_free(a);
    }
    pthread_mutex_destroy(&l->sending);
    free(l);
}

/* ------------------------------------------------------------ the listening thread */

/* Someone who has called and is not a link yet. */
struct pending {
    int fd;
    struct wire_in *in;
    int64_t until_ms;
    bool greeted;
    struct greeting g;
    struct region *region;
    bool we_read_tcp;
};

static void pending_done(struct mesh *m, struct pending *p)
{
    if (p->fd >= 0)
        close(p->fd);
    wire_in_free(p->in);
    region_close(p->region, m->shape);
}

/* What we send before a link is up is small and fits the fresh socket; else the caller is odd. */
static int flush(int fd, struct buf *out)
{
    size_t n = out->n;
    bool sent = n == 0 || (!out->failed &&
                           send(fd, out->data, n, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)n);
    buf_clear(out);
    return sent ? 0 : -1;
}

static int take_hello(struct mesh *m, struct pending *p, const char *text, struct buf *reply)
{
    struct err err = { 0 };
    uint64_t self = atomic_load(&m->id);

    if (greeting_read(text, &p->g, NULL, &err) < 0 || greeting_check(m, &p->g, &err) < 0 ||
        (p->g.to < self &&     /* a greater one we may be about to be given */
         err_set(&err, ERR_CONFLICT, "this is worker %" PRIu64 ", not %" PRIu64, self,
                 p->g.to) < 0)) {
        wire_append(reply, &(struct wire_header){ .kind = WIRE_REFUSED,
                                                  .length = strlen(err.text) }, err.text);
        return -1;
    }
    p->region = open_peer(m, &p->g, &p->we_read_tcp);
    OWN_MEM char *welcome = greeting_text(m, p->g.to, p->g.id, p->we_read_tcp);
    if (!p->region || !welcome)
        return -1;
    wire_append(reply, &(struct wire_header){ .kind = WIRE_WELCOME, .length = strlen(welcome) },
                welcome);
    p->greeted = true;
    return 0;
}

static int take_ready(struct mesh *m, struct pending *p, const char *text, struct buf *reply)
{
    OWN_JSON json_t *j = json_loads(text, 0, NULL);
    int tcp = 0;

    if (!j || json_unpack(j, "{sb}", "tcp", &tcp) < 0)
        return -1;
    wire_append(reply, &(struct wire_header){ .kind = WIRE_READY }, NULL);
    /* Before the link is there for the caller's thread, which may post at once. */
    if (flush(p->fd, reply) < 0)
        return -1;
    struct link l = { .id = p->g.id, .to = p->g.to, .fd = p->fd, .state = LINK_UP,
                      .they_read_tcp = tcp, .we_read_tcp = p->we_read_tcp, .region = p->region };
    pthread_mutex_lock(&m->lock);
    bool begun = link_begin(m, &l) != NULL;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    if (begun) {
        p->fd = -1;
        p->region = NULL;
    }
    return -1;                  /* either way it is not pending any more */
}

/* -1: done with it, one way or the other. */
static int pending_read(struct mesh *m, struct pending *p)
{
    char bytes[4096];
    OWN_BUF reply = BUF_INIT;
    struct wire_header h;
    const char *body;
    struct err err = { 0 };
    ssize_t n = recv(p->fd, bytes, wire_in_proved(p->in) ? sizeof bytes : WIRE_HELLO_BYTES,
                     MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    int rc = n <= 0 ? -1 : wire_in_feed(p->in, bytes, (size_t)n, &reply, &err);
    while (rc == 0 && wire_in_next(p->in, &h, &body)) {
        if (h.kind == WIRE_HELLO && !p->greeted)
            rc = take_hello(m, p, body, &reply);
        else if (h.kind == WIRE_READY && p->greeted)
            return take_ready(m, p, body, &reply);
        else
            rc = -1;
    }
    return flush(p->fd, &reply) < 0 ? -1 : rc;
}

static void pending_add(struct mesh *m, struct pending *p, int *n)
{
    OWN_BUF first = BUF_INIT;
    struct pending new = { .fd = wire_accept(m->listener, m->address, m->token) };

    if (new.fd < 0)
        return;
    new.until_ms = mesh_now_ms() + PENDING_MS;
    new.in = wire_in_new(m->token, &first);
    if (!new.in || flush(new.fd, &first) < 0) {
        pending_done(m, &new);
        return;
    }
    if (*n == PENDING_MAX) {    /* too many strangers: the first who came has had time enough */
        pending_done(m, &p[0]);
        memmove(p, p + 1, sizeof *p * (size_t)--*n);
    }
    p[(*n)++] = new;
}

static void *listen_on(void *arg)
{
    struct mesh *m = arg;
    struct pending p[PENDING_MAX];
    struct pollfd f[2 + PENDING_MAX];
    int n = 0;

    for (;;) {
        f[0] = (struct pollfd){ m->stop, POLLIN, 0 };
        f[1] = (struct pollfd){ m->listener, POLLIN, 0 };
        for (int i = 0; i < n; i++)
            f[2 + i] = (struct pollfd){ p[i].fd, POLLIN, 0 };
        poll(f, (nfds_t)(2 + n), n ? 200 : -1);
        if (f[0].revents)
            break;
        int kept = 0;
        int64_t now = mesh_now_ms();
        for (int i = 0; i < n; i++) {
            bool gone = f[2 + i].revents ? pending_read(m, &p[i]) < 0 : now > p[i].until_ms;
            if (gone)
                pending_done(m, &p[i]);
            else
                p[kept++] = p[i];
        }
        n = kept;
        if (f[1].revents)
            pending_add(m, p, &n);
    }
    for (int i = 0; i < n; i++)
        pending_done(m, &p[i]);
    return NULL;
}

int links_start(struct mesh *m, struct err *err)
{
    int rc = wire_listen(m->config.listen, &m->listener, m->address, sizeof m->address, err);

    if (rc < 0)
        return rc;
    m->stop = eventfd(0, EFD_CLOEXEC);
    if (m->stop < 0 || pthread_create(&m->listening, NULL, listen_on, m) != 0)
        return err_set(err, ERR_NOMEM, "no thread to listen on %s", m->address);
    m->listens = true;
    return 0;
}

void links_stop(struct mesh *m)
{
    uint64_t one = 1;

    if (m->listens && write(m->stop, &one, sizeof one) == sizeof one)
        pthread_join(m->listening, NULL);
    if (m->listener >= 0)
        close(m->listener);
    if (m->stop >= 0)
        close(m->stop);
}
