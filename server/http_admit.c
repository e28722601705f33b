/* server/http_admit.c - who is connected, and who has to go when too many are
 *
 * DESIGN. A new connection is always let in, since only its request tells who it is. Beyond a limit
 * (of its address, or of all) it takes the place of another, found on its loop or the next, in this
 * order:
 *   1. one without a good token so far, the oldest first: it is idle, sends its head byte by byte, is
 *      in a TLS handshake, or asks for what needs no token;
 *   2. one that has shown a good token and is between two requests, the longest idle first.
 * Where every connection has a request of somebody known, the new one is on probation: it stays in the
 * reserve (CONNS_RESERVE) until its head is there. Then the server's own token and HTTP_ALWAYS are
 * answered; a project's token ends a job's request to be answered; the others get 503. While it has
 * sent no head, a connection on probation is of the first kind above, so the reserve never fills with
 * silent ones.
 *
 * A connection is closed by its own loop and after the events of a round, never amid them: an event of
 * the same round may point to it.
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "server/http_int.h"

enum { ACCEPTS = 64, FULL_NOTE_S = 60 };        /* in a round; between two lines in the log */

/* ------------------------------------------------------------ counts */

/* The share of an IPv6 host is that of its network: it has 2^64 addresses there. */
static struct in6_addr address_of(const struct sockaddr_storage *from)
{
    static const uint8_t none[8];
    struct in6_addr out = { 0 };

    if (from->ss_family == AF_INET6)
        out = ((const struct sockaddr_in6 *)from)->sin6_addr;
    else if (from->ss_family == AF_INET)
        memcpy(&out.s6_addr[12], &((const struct sockaddr_in *)from)->sin_addr, 4);
    if (memcmp(out.s6_addr, none, 8) != 0)
        memset(&out.s6_addr[8], 0, 8);
    return out;
}

/* Counts it. False: not even the reserve has room, or there is no memory. */
static bool admit(struct http *h, const struct in6_addr *peer, int *out_over)
{
    const int most = h->config.connections;
    bool ok = false;
    int i = 0;

    pthread_mutex_lock(&h->lock);
    while (i < h->n_peers && memcmp(&h->peers[i].address, peer, sizeof *peer))
        i++;
    if (i == h->n_peers && h->n_peers == h->cap_peers) {
        int cap = h->cap_peers ? 2 * h->cap_peers : 16;
        struct peer *grown = realloc(h->peers, (size_t)cap * sizeof *grown);
        if (grown) {
            h->peers = grown;
            h->cap_peers = cap;
        }
    }
    if (h->n_conns < most + CONNS_RESERVE && i < h->cap_peers) {
        if (i == h->n_peers)
            h->peers[h->n_peers++] = (struct peer){ *peer, 0 };
        *out_over = h->peers[i].n >= h->config.per_host ? OVER_HOST
            : h->n_conns >= most ? OVER_ALL : OVER_NONE;
        h->peers[i].n++;
        h->n_conns++;
        ok = true;
    }
    pthread_mutex_unlock(&h->lock);
    return ok;
}

void http_conn_gone(struct http *h, const struct in6_addr *peer)
{
    pthread_mutex_lock(&h->lock);
    for (int i = 0; i < h->n_peers; i++)
        if (!memcmp(&h->peers[i].address, peer, sizeof *peer)) {
            if (--h->peers[i].n == 0)
                h->peers[i] = h->peers[--h->n_peers];
            break;
        }
    h->n_conns--;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

/* ------------------------------------------------------------ who goes */

/* The lower, the sooner it is closed. */
enum rank { RANK_STRANGER, RANK_IDLE, RANK_JOB, RANK_STAYS };

static enum rank rank_of(const struct conn *c)
{
    if (c->state == CONN_BUSY || c->condemned)
        return RANK_STAYS;
    if (c->state == CONN_HANDSHAKE || c->state == CONN_HEAD || c->state == CONN_LINGER)
        return c->good_token[0] ? RANK_IDLE : RANK_STRANGER;
    return !c->q.known ? RANK_STRANGER : c->q.who.job[0] ? RANK_JOB : RANK_STAYS;
}

/* The first to go to make room for another, of those up to this rank; NULL: there is none. */
static struct conn *find_least(const struct conn *for_whom, enum rank most)
{
    const struct loop *l = for_whom->loop;
    const struct in6_addr *peer = for_whom->over == OVER_HOST ? &for_whom->peer : NULL;
    struct conn *found = NULL;
    enum rank lowest = RANK_STAYS;

    for (struct conn *c = l->last; c && lowest != RANK_STRANGER; c = c->prev) {
        if (c == for_whom || (peer && memcmp(&c->peer, peer, sizeof *peer)))
            continue;
        const enum rank rank = rank_of(c);
        if (rank <= most && (rank < lowest || (rank == lowest && c->deadline < found->deadline))) {
            found = c;
            lowest = rank;
        }
    }
    return found;
}

static void note_full(struct loop *l)
{
    struct http *h = l->http;

    atomic_fetch_add(&h->n_dropped, 1);
    if (l->now < l->next_full)
        return;
    l->next_full = l->now + FULL_NOTE_S;
    log_event(LEVEL_WARN, "http.full", "{s:i, s:i, s:s}", "connections", h->config.connections,
              "per_host", h->config.per_host, "done", "connections without a request are closed");
}

static void condemn(struct conn *c)
{
    c->condemned = true;
    c->loop->n_condemned++;
    note_full(c->loop);
}

void loop_close_condemned(struct loop *l)
{
    for (struct conn *c = l->first, *next; c && l->n_condemned; c = next) {
        next = c->next;
        if (c->condemned && c->state != CONN_BUSY)
            conn_close(c);
    }
}

static void hand_to(struct loop *to, struct conn *c, bool tell)
{
    c->loop = to;
    pthread_mutex_lock(&to->lock);
    c->queued = to->fresh;
    to->fresh = c;
    pthread_mutex_unlock(&to->lock);
    if (tell && eventfd_write(to->event, 1) < 0)
        abort();
}

bool loop_make_room(struct conn *c)
{
    struct loop *l = c->loop;
    struct http *h = l->http;
    struct conn *least = find_least(c, RANK_IDLE);

    if (least) {
        note_full(l);
        conn_close(least);
    } else if (++c->hops < h->n_loops && !atomic_load(&h->draining)) {
        hand_to(&h->loops[(l->number + 1) % h->n_loops], c, true);
        return false;
    } else {
        c->probation = true;
    }
    return true;
}

bool conn_may_stay(struct conn *c)
{
    const struct request *q = &c->q;

    if ((q->known && q->who.root) || (q->match.route->flags & HTTP_ALWAYS))
        return true;
    struct conn *least = q->known && !q->who.job[0] ? find_least(c, RANK_JOB) : NULL;
    if (least)
        condemn(least);
    return least != NULL;
}

/* ------------------------------------------------------------ new ones */

static void turn_away(struct loop *l, int fd)
{
    static const char full[] = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n"
        SAFE_HEADERS SAFE_POLICY "Cache-Control: no-store\r\n"
        "Content-Length: 0\r\nConnection: close\r\n\r\n";

    if (!l->http->tls && send(fd, full, sizeof full - 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        errno = 0;              /* it is closed in any case */
    close(fd);
    atomic_fetch_add(&l->by_status[0], 1);
}

/* No descriptor is left: room is made, or it is tried again in a moment. */
static void wait_for_room(struct loop *l)
{
    struct http *h = l->http;
    struct conn *least = find_least(&(struct conn){ .loop = l }, RANK_IDLE);

    if (least) {
        condemn(least);
        return;
    }
    epoll_ctl(l->epoll, EPOLL_CTL_DEL, h->config.listen_fd, NULL);
    h->accept_after = l->now + 0.1;
    loop_sweep_by(l, h->accept_after);
}

/* Connections go to the loops in turn. */
void accept_all(struct loop *l)
{
    struct http *h = l->http;

    for (int i = 0; i < ACCEPTS; i++) {
        struct sockaddr_storage from;
        socklen_t n = sizeof from;
        int over = OVER_NONE;
        int fd = ways_accept(h, &from, &n);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM))
            wait_for_room(l);
        if (fd < 0)
            return;
        struct in6_addr peer = address_of(&from);
        if (!admit(h, &peer, &over)) {
            turn_away(l, fd);
            continue;
        }
        atomic_fetch_add(&h->n_all, 1);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
        struct loop *to = &h->loops[h->next_loop++ % (unsigned)h->n_loops];
        struct conn *c = conn_new(to, fd, &peer);
        if (!c) {
            close(fd);
            http_conn_gone(h, &peer);
            continue;
        }
        c->over = over;
        hand_to(to, c, to != l);
    }
}
