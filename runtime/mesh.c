/* runtime/mesh.c - what workers of one generation tell each other: life and generations
 *
 * Entering is a barrier: nobody returns from mesh_enter before everybody in the list has come to
 * it. So no post of a generation reaches a worker that is not in it yet, and nobody writes to its
 * region while one of the same list still reads what the generation before left there. One that
 * was left out of the list (it was stopped, say) may still read: see mesh_intact.
 */
#include "runtime/mesh.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "runtime/mesh_int.h"

enum { SPIN_MIN_US = 24, SPIN_MAX_US = 64, SPIN_RETRY = 64, UNCLAIMED_S = 60, LINGER_MS = 50 };

/* ------------------------------------------------------------ life */

static int cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

/* For bench/: links as slow as asked for, in place of shared memory; and nothing is shown. */
static void measure_links(struct mesh *m)
{
    const char *rate = getenv("MUSTER_LINK_RATE");

    m->rate = rate ? strtoull(rate, NULL, 10) : 0;
    m->config.no_shared_memory |= m->rate > 0;
    m->late = getenv("MUSTER_LINK_LATE") != NULL;
}

int mesh_new(const struct mesh_config *c, struct mesh **out, struct err *err)
{
    pthread_condattr_t attr;
    int rc;

    if (c->floats <= 0 || c->floats % 16 || c->board < 0 || c->board % 16 || c->shards < 1 ||
        c->shards > SHARDS_MAX || (c->shards & (c->shards - 1)))
        return err_set(err, ERR_INVALID, "a mesh for %ld floats and %ld beside them in %d shards",
                       c->floats, c->board, c->shards);
    if ((rc = wire_token_check(c->token, err)) < 0)
        return rc;
    OWN(mesh) m = calloc(1, sizeof *m);
    if (!m)
        return err_set(err, ERR_NOMEM, "no memory for a mesh");
    m->listener = m->stop = m->name.fd = -1;
    pthread_mutex_init(&m->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&m->changed, &attr);
    pthread_condattr_destroy(&attr);
    m->config = *c;
    m->shape = (struct region_shape){ c->floats, c->board };
    m->config.token = m->token = strdup(c->token);
    m->config.host = m->host = strdup(c->host);
    m->beat_ms = c->beat_ms > 0 ? c->beat_ms : 100;
    m->cores = cores();
    measure_links(m);
    if (!m->token || !m->host)
        return err_set(err, ERR_NOMEM, "no memory for a mesh");
    if ((rc = region_new(m->shape, &m->region, &m->name, err)) < 0 ||
        (rc = links_start(m, err)) < 0)
        return rc;
    m->config.listen = m->address;
    *out = TAKE(m);
    return 0;
}

static struct timespec after_ms(int ms)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += ms * 1000000L;
    t.tv_sec += t.tv_nsec / 1000000000L;
    t.tv_nsec %= 1000000000L;
    return t;
}

/* Our last posts are still on their way, and a socket that is closed with bytes unread takes them
 * back. So we only say that we are done, and let the others close. */
static void part_from_all(struct mesh *m)
{
    bool open = true;

    for (struct link *l = m->links; l; l = l->next)     /* nobody adds any now */
        link_quiet(l);
    struct timespec until = after_ms(LINGER_MS);
    pthread_mutex_lock(&m->lock);
    for (struct link *l = m->links; l; l = l->next) {
        l->closing = true;
        if (l->fd >= 0)
            shutdown(l->fd, SHUT_WR);
    }
    while (open) {
        open = false;
        for (struct link *l = m->links; l; l = l->next)
            open |= l->state == LINK_UP;
        if (open && pthread_cond_timedwait(&m->changed, &m->lock, &until) == ETIMEDOUT)
            break;
    }
    pthread_mutex_unlock(&m->lock);
}

void mesh_free(struct mesh *m)
{
    if (!m)
        return;
    links_stop(m);
    part_from_all(m);
    for (struct link *l = m->links, *next; l; l = next) {
        next = l->next;
        link_close(l);
    }
    if (m->name.fd >= 0)
        close(m->name.fd);
    region_close(m->region, m->shape);
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    if (m->token)
        explicit_bzero(m->token, strlen(m->token));
    free(m->token);
    free(m->host);
    free(m);
}

const char *mesh_address(const struct mesh *m)
{
    return m->address;
}

float *mesh_root(struct mesh *m, int side, int r)
{
    assert(r >= 0 && r < MESH_ROOTS);
    return (float *)((char *)m->region + region_root(m->config.floats, side, r));
}

int mesh_side(const struct mesh *m)
{
    return m->side;
}

float *mesh_board(struct mesh *m)
{
    return (float *)((char *)m->region + region_board(m->config.floats));
}

const float *mesh_board_of(const struct mesh *m, int place)
{
    return (const float *)((const char *)m->place[place].region + region_board(m->config.floats));
}

bool mesh_is_near(const struct mesh *m, int place, bool *far)
{
    const struct link *l = m->place[place].link;

    *far |= l && l->they_read_tcp;
    return !l || !l->we_read_tcp;
}

void mesh_set_beat(struct mesh *m, int ms)
{
    atomic_store(&m->beat_ms, ms);
}

uint64_t mesh_bytes_sent(const struct mesh *m)
{
    return atomic_load(&m->bytes_sent);
}

uint64_t mesh_bytes_early(const struct mesh *m)
{
    return atomic_load(&m->bytes_early);
}

/* ------------------------------------------------------------ waiting */

void mesh_abort(struct mesh *m, uint64_t generation)
{
    uint64_t seen = atomic_load(&m->aborted);

    while (seen < generation + 1 &&
           !atomic_compare_exchange_weak(&m->aborted, &seen, generation + 1))
        ;
}

int mesh_again(struct mesh *m, struct err *err)
{
    return err_set(err, ERR_AGAIN, "generation %" PRIu64 " is over", atomic_load(&m->generation));
}

int mesh_check(struct mesh *m, struct err *err)
{
    return m->ready && !mesh_aborted(m) ? 0 : mesh_again(m, err);
}

static bool reached(const struct region *r, uint64_t generation, uint64_t k)
{
    uint64_t word = atomic_load_explicit(&r->word, memory_order_acquire);
    return word_age(word, generation) == 0 && word_post(word) >= k;
}

/* Somebody is lost who has not made post k: it will not come, and others may wait for it too. One
 * that has made it may be gone: nobody needs more of it to make theirs. */
static bool stuck(struct mesh *m, uint64_t generation, uint64_t k)
{
    for (int i = 0; i < m->n; i++)
        if (i != m->self && atomic_load(&m->place[i].link->dead) &&
            !reached(m->place[i].region, generation, k))
            return true;
    return false;
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Spinning finds out soonest, and is right only while nobody else wants the core. Others of this
 * host were counted; what else runs here shows in spins that were for nothing. */
static void spin(struct mesh *m, const struct region *r, uint64_t generation, uint64_t k)
{
    double until = clock_seconds() + 1e-6 * m->spin_us;

    do
        for (int i = 0; i < 16; i++) {
            if (reached(r, generation, k)) {
                m->spin_us = m->spin_us * 2 < SPIN_MAX_US ? m->spin_us * 2 : SPIN_MAX_US;
                return;
            }
            relax();
        }
    while (clock_seconds() < until);
    m->spin_us = m->spin_us / 2 > SPIN_MIN_US ? m->spin_us / 2 : SPIN_MIN_US;
    if (++m->spun_out % SPIN_RETRY == 0)
        m->spin_us = SPIN_MAX_US;       /* whatever it was may be over */
}

int mesh_wait(struct mesh *m, int i, uint64_t k, struct err *err)
{
    const struct region *r = m->place[i].region;
    uint64_t generation = atomic_load_explicit(&m->generation, memory_order_relaxed);

    if (m->spins && !reached(r, generation, k))
        spin(m, r, generation, k);
    for (;;) {
        uint64_t word = atomic_load_explicit(&r->word, memory_order_acquire);
        int age = word_age(word, generation);
        if (age == 0 && word_post(word) >= k)
            return 0;
        if (age > 0 || mesh_aborted(m))
            return mesh_again(m, err);
        if (stuck(m, generation, k))
            return err_set(err, ERR_AGAIN, "a worker of generation %" PRIu64 " is lost",
                           generation);
        region_wait(r, word);
    }
}

int mesh_wait_all(struct mesh *m, uint64_t k, struct err *err)
{
    for (int d = 1; d < m->n; d++) {
        int rc = mesh_wait(m, (m->self + d) % m->n, k, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* No later load goes before the earlier ones. The thread sanitizer knows no fences. */
static inline void read_fence(void)
{
#ifdef __SANITIZE_THREAD__
    __asm__ volatile("" ::: "memory");
#else
    atomic_thread_fence(memory_order_acquire);
#endif
}

bool mesh_intact(const struct mesh *m)
{
    uint64_t generation = atomic_load_explicit(&m->generation, memory_order_relaxed);

    read_fence();
    for (int i = 0; i < m->n; i++)
        if (word_age(atomic_load(&m->place[i].region->word), generation) != 0)
            return false;
    return true;
}

/* ------------------------------------------------------------ entering a generation */

/* The largest complete subtrees of [from, to), left to right. */
static int roots_of(int shards, int from, int to, int *first, int *width)
{
    int n = 0;

    for (int i = from; i < to; i += width[n++]) {
        first[n] = i;
        width[n] = 1;
        while (i % (2 * width[n]) == 0 && i + 2 * width[n] <= to && 2 * width[n] <= shards)
            width[n] *= 2;
    }
    return n;
}

static int check_list(const struct mesh *m, const struct mesh_peer *peer, int n, int self,
                      struct err *err)
{
    unsigned seen = 0, all = (1u << m->config.shards) - 1;

    if (n < 1 || n > MESH_MAX || self < 0 || self >= n)
        return err_set(err, ERR_INVALID, "a roster of %d workers with place %d", n, self);
    for (int i = 0; i < n; i++) {
        if (peer[i].from < 0 || peer[i].to < peer[i].from || peer[i].to > m->config.shards)
            return err_set(err, ERR_INVALID, "worker %" PRIu64 " has shards %d to %d of %d",
                           peer[i].id, peer[i].from, peer[i].to, m->config.shards);
        unsigned own = (1u << peer[i].to) - (1u << peer[i].from);
        if (seen & own)
            return err_set(err, ERR_INVALID, "two workers have the same shard");
        seen |= own;
        for (int j = 0; j < i; j++)
            if (peer[j].id == peer[i].id)
                return err_set(err, ERR_INVALID, "worker %" PRIu64 " is listed twice",
                               peer[i].id);
    }
    return seen == all ? 0 : err_set(err, ERR_INVALID, "a shard has no worker");
}

static void set_places(struct mesh *m, const struct mesh_peer *peer, int n, int self)
{
    const long units = m->config.floats / 16;

    memset(m->place, 0, sizeof m->place);
    for (int i = 0; i < n; i++) {
        struct place *p = &m->place[i];
        p->peer = peer[i];
        p->from = units * i / n * 16;
        p->to = units * (i + 1) / n * 16;
        p->shown = m->config.floats;
        p->roots = roots_of(m->config.shards, peer[i].from, peer[i].to, p->first, p->width);
        p->region = m->region;          /* until there is a link */
    }
    m->n = n;
    m->self = self;
    m->ready = false;
    m->post = POST_ENTER;
    m->slots = 0;
    m->side = 0;
}

static struct place *place_of(struct mesh *m, uint64_t id)
{
    for (int i = 0; i < m->n; i++)
        if (m->place[i].peer.id == id)
            return &m->place[i];
    return NULL;
}

/* Closes the links that this generation has no use for. A call that goes nowhere is left to end by
 * itself; somebody who is not in this list may be in the next one and have called already. */
static void drop_links(struct mesh *m)
{
    struct link *drop = NULL, **at = &m->links, *l;
    const uint64_t self = m->place[m->self].peer.id;
    double now = clock_seconds();

    pthread_mutex_lock(&m->lock);
    while ((l = *at)) {
        struct place *p = place_of(m, l->id);
        bool end = l->state == LINK_DEAD || l->replaced || l->closing;
        l->active = false;
        if (p && end)
            p->missing_since = now;
        end |= l->to < self;    /* we have come back as another */
        if (!p)
            end |= l->claimed || l->address[0] || now - l->since > UNCLAIMED_S;
        if (end && l->state != LINK_CALLING) {
            *at = l->next;
            l->next = drop;
            drop = l;
            continue;
        }
        l->closing |= end;
        at = &l->next;
    }
    pthread_mutex_unlock(&m->lock);
    for (; drop; drop = l) {
        l = drop->next;
        link_close(drop);
    }
}

static bool usable(const struct link *l)
{
    return l->state != LINK_DEAD && !l->replaced && !l->closing;
}

enum found { FOUND_UP, FOUND_NOT_YET, FOUND_LOST };

/* Under the lock. */
static enum found find_link(struct mesh *m, int i, int timeout_ms, struct err *err)
{
    struct place *p = &m->place[i];
    const struct mesh_peer *self = &m->place[m->self].peer;
    const struct link *dead = NULL;
    struct link *l = m->links;

    for (; l && !(l->id == p->peer.id && l->to == self->id && usable(l)); l = l->next)
        if (l->id == p->peer.id && l->state == LINK_DEAD && !dead)
            dead = l;
    if (l && l->state == LINK_UP) {
        l->claimed = true;
        p->link = l;
        p->region = l->region;
        p->missing_since = 0;
        return FOUND_UP;
    }
    if (l)
        return FOUND_NOT_YET;
    if (i < m->self && !p->called) {
        p->called = true;
        if (link_call(m, p->peer.id, self->id, p->peer.address, timeout_ms))
            return FOUND_NOT_YET;
        err_set(err, ERR_AGAIN, "no memory to call worker %" PRIu64, p->peer.id);
        return FOUND_LOST;
    }
    if (dead && !p->missing_since)
        p->missing_since = clock_seconds();
    /* It may call again, if it finds the same end of the link; a dead one does not. */
    if (i < m->self || (p->missing_since && clock_seconds() - p->missing_since >
                                                1e-3 * MESH_SILENT * m->beat_ms)) {
        if (dead)
            err_set(err, ERR_AGAIN, "%s", dead->why.text);
        else
            err_set(err, ERR_AGAIN, "worker %" PRIu64 " has gone", p->peer.id);
        return FOUND_LOST;
    }
    return FOUND_NOT_YET;
}

/* One round: 1 when every link is up; 0 not yet, after a short wait; < 0: *out_lost is lost. */
static int find_links(struct mesh *m, int timeout_ms, int *out_missing, struct err *err)
{
    struct timespec until = after_ms(2);
    int missing = -1, rc = 1;

    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < m->n && rc >= 0; i++) {
        enum found f = i == m->self ? FOUND_UP : find_link(m, i, timeout_ms, err);
        if (f != FOUND_UP)
            missing = i;
        if (f != FOUND_UP)
            rc = f == FOUND_LOST ? -1 : 0;
    }
    if (rc == 0)
        pthread_cond_timedwait(&m->changed, &m->lock, &until);
    pthread_mutex_unlock(&m->lock);
    *out_missing = missing;
    return rc;
}

/* Says to each that we are here, by the link that we have found; 1 when all others have said so by
 * the same link. (A link may be closed at the other side and we not know: then it says nothing.) 0:
 * not yet, after a short wait. */
static int meet(struct mesh *m, uint64_t generation, int *out_missing, struct err *err)
{
    struct timespec until = after_ms(2);
    int rc = 1;

    for (int i = 0; i < m->n; i++) {
        struct link *l = m->place[i].link;
        if (i == m->self || l->told == generation)
            continue;
        if (link_enter(l, generation, err) == 0)
            l->told = generation;
    }
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < m->n && rc == 1; i++) {
        const struct link *l = m->place[i].link;
        if (i == m->self || l->entered == generation)
            continue;
        *out_missing = i;
        rc = l->entered > generation ? mesh_again(m, err) : 0;
    }
    if (rc == 0)
        pthread_cond_timedwait(&m->changed, &m->lock, &until);
    pthread_mutex_unlock(&m->lock);
    return rc;
}

/* From here on losses are told. false: one is lost already. */
static bool activate(struct mesh *m)
{
    int neighbours = 1, readers = 0;    /* on this host; threads of ours that need a core too */
    bool all = true;

    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < m->n; i++)
        all &= i == m->self || usable(m->place[i].link);
    for (int i = 0; i < m->n && all; i++)
        if (i != m->self) {
            m->place[i].link->active = true;
            neighbours += strcmp(m->place[i].peer.host, m->host) == 0;
            readers |= m->place[i].link->we_read_tcp;
        }
    pthread_mutex_unlock(&m->lock);
    m->spin_us = SPIN_MAX_US;
    m->spins = neighbours * (1 + readers) <= m->cores;
    m->ready = all;
    return all;
}

int mesh_enter(struct mesh *m, uint64_t generation, const struct mesh_peer *peer, int n, int self,
               int timeout_ms, struct err *err)
{
    int rc = check_list(m, peer, n, self, err), missing = -1;
    double until = clock_seconds() + 1e-3 * timeout_ms;

    if (rc < 0)
        return rc;
    if (generation <= atomic_load(&m->generation))
        return err_set(err, ERR_INVALID, "generation %" PRIu64 " after %" PRIu64, generation,
                       atomic_load(&m->generation));
    atomic_store(&m->generation, generation);
    atomic_store(&m->id, peer[self].id);
    set_places(m, peer, n, self);
    drop_links(m);
    if (mesh_aborted(m))
        return mesh_again(m, err);
    atomic_fetch_add_explicit(&m->posted, 1, memory_order_release);
    region_post(m->region, word_of(generation, POST_ENTER));

    for (;;) {
        rc = find_links(m, timeout_ms, &missing, err);
        if (rc < 0)
            break;
        if (rc == 1 && (rc = meet(m, generation, &missing, err)) < 0)
            return rc;
        if (rc == 1 && activate(m))
            return 0;
        if (mesh_aborted(m))
            return mesh_again(m, err);
        if (clock_seconds() > until) {
            err_set(err, ERR_AGAIN, "worker %" PRIu64 " did not come to generation %" PRIu64
                    " in %d ms", m->place[missing].peer.id, generation, timeout_ms);
            break;
        }
    }
    if (m->config.lost)
        m->config.lost(m->config.arg, m->place[missing].peer.id);
    return -ERR_AGAIN;
}
