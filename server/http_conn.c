/* server/http_conn.c - one connection: bytes to a request, a request to its answer, and again */
#include <errno.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/http_int.h"

enum { LINGER_S = 2, LINGER_BYTES = 4 << 20, BODY_GRACE_S = 60, BODY_BYTES_PER_S = 1024,
       STREAM_PIECE = 32 << 10, SEND_PIECE = 1 << 20, STEPS = 100 };

/* ------------------------------------------------------------ the socket */

/* Bytes into `out`; 0: none now (or never again: c->eof, c->broken). */
static size_t pull(struct conn *c, char *out, size_t n)
{
    long got = c->tls ? tls_recv(c->tls, out, n) : recv(c->fd, out, n, 0);

    if (got > 0) {
        /* Less than asked for: there is no more, and the next byte will be an event. Not so the
         * end, which was told together with the bytes. */
        if (!c->tls && (size_t)got < n && !c->hung_up)
            c->readable = false;
        atomic_fetch_add_explicit(&c->loop->bytes_in, (uint64_t)got, memory_order_relaxed);
        return (size_t)got;
    }
    if (got == 0) {
        c->eof = true;
        c->readable = false;
    } else if (c->tls ? got == -2 : errno == EAGAIN) {
        c->readable = false;
    } else if (c->tls || errno != EINTR) {
        c->broken = true;
        c->readable = false;
    }
    return 0;
}

/* How many bytes went out; 0: none now, or c->broken. */
static size_t push(struct conn *c, const char *bytes, size_t n, bool more)
{
    long sent = c->tls ? tls_send(c->tls, bytes, n)
        : send(c->fd, bytes, n, MSG_NOSIGNAL | (more ? MSG_MORE : 0));

    if (sent > 0) {
        atomic_fetch_add_explicit(&c->loop->bytes_out, (uint64_t)sent, memory_order_relaxed);
        return (size_t)sent;
    }
    if (c->tls ? sent == -2 : errno == EAGAIN)
        c->writable = false;
    else if (c->tls || errno != EINTR)
        c->broken = true;
    return 0;
}

static void set_deadline(struct conn *c, double seconds)
{
    c->deadline = c->loop->now + seconds;
    loop_sweep_by(c->loop, c->deadline);
}

static double idle_s(const struct conn *c)
{
    return c->loop->http->config.idle_timeout_ms / 1000.0;
}

/* ------------------------------------------------------------ life */

struct conn *conn_new(struct loop *l, int fd, const struct in6_addr *peer)
{
    struct conn *c = calloc(1, sizeof *c);

    if (!c)
        return NULL;
    c->loop = l;
    c->fd = fd;
    c->peer = *peer;
    c->q.conn = c;
    c->state = l->http->tls ? CONN_HANDSHAKE : CONN_HEAD;
    return c;
}

void conn_start(struct conn *c)
{
    struct loop *l = c->loop;
    struct epoll_event ev = { EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, { .ptr = c } };

    if (c->over && !loop_make_room(c))
        return;
    c->next = l->first;
    if (l->first)
        l->first->prev = c;
    else
        l->last = c;
    l->first = c;
    set_deadline(c, l->http->config.head_timeout_ms / 1000.0);
    if (c->state == CONN_HANDSHAKE && !(c->tls = tls_session(l->http->tls, c->fd)))
        c->broken = true;
    if (c->broken || epoll_ctl(l->epoll, EPOLL_CTL_ADD, c->fd, &ev) < 0)
        conn_close(c);
}

void conn_close(struct conn *c)
{
    struct loop *l = c->loop;

    l->n_stalled -= c->stalled;
    l->n_again -= c->again;
    l->n_condemned -= c->condemned;
    request_done(&c->q);
    if (c->tls)
        tls_end(c->tls);
    /* Not left to close: while a child that is just being started has a copy of the descriptor,
     * events would still come, for a connection that is no more. */
    epoll_ctl(l->epoll, EPOLL_CTL_DEL, c->fd, NULL);
    close(c->fd);
    if (c->prev)
        c->prev->next = c->next;
    else
        l->first = c->next;
    if (c->next)
        c->next->prev = c->prev;
    else
        l->last = c->prev;
    http_conn_gone(l->http, &c->peer);
    free(c->in);
    buf_done(&c->out);
    free(c);
}

/* ------------------------------------------------------------ the head */

static void set_answer_state(struct conn *c)
{
    struct request *q = &c->q;

    if (q->answer == ANSWER_NONE)
        reply_plain(q, 500, "the server has no answer to this");
    /* What the client still sends would be taken for its next request. */
    if (!c->body_ended || atomic_load(&c->loop->http->draining))
        c->close_after = true;
    c->state = CONN_SEND;
    reply_begin(c);
    set_deadline(c, idle_s(c));
}

static void refuse(struct conn *c, int status, const char *text)
{
    reply_plain(&c->q, status, text);
    set_answer_state(c);
}

static void answer_error(struct conn *c)
{
    struct request *q = &c->q;

    if (!c->err.code)
        err_set(&c->err, ERR_IO, "the request failed");
    if (q->match.protocol)
        q->match.protocol->error(q, &c->err);
    else
        reply_plain(q, request_error_status(q, &c->err), c->err.text);
}

/* The line's path and query, decoded; and who answers. -1: malformed. */
static int route(struct conn *c)
{
    struct request *q = &c->q;
    char *target = token_cut_prefix(q, q->head.target);
    size_t n = strlen(target);

    q->path = target;
    if (!(q->scratch = malloc(4 * n + SEGMENTS_MAX + 16)))
        return -1;
    char *query = strchr(target, '?');
    if (query)
        *query++ = 0;
    q->query_text = query ? query : target + strlen(target);
    q->n_queries = queries_parse(q->query_text, q->scratch, q->queries, QUERIES_MAX);
    if (q->n_queries < 0) {
        q->n_queries = 0;
        return -1;
    }
    char *at = q->scratch + 2 * n + 4;  /* queries take two bytes more than they had, each */
    return router_find(c->loop->http->router, q->head.method, target, strlen(target), at,
                       &q->match);
}

static void dispatch(struct conn *c);

/* A head has come. */
static void begin_request(struct conn *c)
{
    struct http *h = c->loop->http;
    struct request *q = &c->q;

    c->err.code = ERR_OK;
    q->began = c->loop->now;
    c->body_began = c->loop->now;
    c->body_n = 0;
    c->body_left = q->head.length;
    c->chunks = (struct chunks){ 0 };
    c->body_ended = !q->head.chunked && q->head.length == 0;
    c->body_failed = false;
    c->close_after = !q->head.keep_alive || c->probation;
    if (*q->head.host && !host_allowed(q->head.host, h->config.names)) {
        refuse(c, 421, "the Host header names another server than this one");
        return;
    }
    if (route(c) < 0) {
        refuse(c, 400, "the address is malformed: an escape is broken or not UTF-8");
        return;
    }
    if (!q->match.route) {
        if (q->match.allow[0])
            respond_header(q, "Allow", q->match.allow);
        refuse(c, q->match.allow[0] ? 405 : 404, q->match.allow[0]
               ? "this address does not take that method" : "there is nothing at this address");
        return;
    }
    if (token_check(c) < 0) {
        answer_error(c);
        set_answer_state(c);
        return;
    }
    if (c->probation && !conn_may_stay(c)) {
        respond_header(q, "Retry-After", "1");
        refuse(c, 503, "all connections of the server, or of your address, are in use: try again "
               "later");
        return;
    }
    if (!(q->match.route->flags & HTTP_STREAMED) && q->head.length > HTTP_BODY_MAX) {
        q->too_long = true;
        err_set(&c->err, ERR_INVALID, "the body is longer than the %d MB that fit here",
                HTTP_BODY_MAX >> 20);
        answer_error(c);
        set_answer_state(c);
        return;
    }
    if (c->body_ended) {
        dispatch(c);
        return;
    }
    if (q->head.expects_continue && c->in_at == c->in_n) {
        static const char go[] = "HTTP/1.1 100 Continue\r\n\r\n";
        push(c, go, sizeof go - 1, false);
    }
    c->state = CONN_BODY;
    set_deadline(c, idle_s(c));
}

static bool need_room(struct conn *c, size_t cap)
{
    if (c->in_cap >= cap)
        return true;
    char *grown = realloc(c->in, cap);
    if (!grown)
        return false;
    c->in = grown;
    c->in_cap = cap;
    return true;
}

/* Returns whether there is something more to do now. */
static bool go_head(struct conn *c)
{
    struct loop *l = c->loop;
    const size_t most = l->http->config.head_max;
    const char *why;

    size_t n = head_end(c->in ? c->in : "", c->in_n, &c->scanned);
    if (n > most || (!n && c->in_n >= most)) {
        atomic_fetch_add(&l->by_status[0], 1);
        c->body_ended = false;
        c->q.head.minor = 1;
        refuse(c, 431, "the head of the request is too long");
        return true;
    }
    if (n) {
        int status = head_parse(c->in, n, &c->q.head, &why);
        c->in_at = n;
        c->scanned = 0;
        if (status) {
            atomic_fetch_add(&l->by_status[0], 1);
            c->body_ended = false;
            c->q.head.minor = 1;
            refuse(c, status, why);
        } else {
            begin_request(c);
        }
        return true;
    }
    if (!c->readable || !need_room(c, c->in_n + 1 > c->in_cap ? (c->in_cap ? 2 * c->in_cap
                                                                : READ_SMALL) : c->in_cap))
        return false;
    if (c->in_n == 0)
        set_deadline(c, l->http->config.head_timeout_ms / 1000.0);
    size_t got = pull(c, c->in + c->in_n, c->in_cap - c->in_n);
    c->in_n += got;
    return got > 0 || c->readable;
}

/* ------------------------------------------------------------ the body */

/* A piece of the body for who wants it. */
static void take_piece(struct conn *c, char *bytes, size_t n)
{
    struct request *q = &c->q;

    c->body_n += n;
    if (q->match.route->flags & HTTP_STREAMED) {
        if (q->match.route->body(q, bytes, n, &c->err) < 0)
            c->body_failed = true;
        return;
    }
    if (q->body.n + n > HTTP_BODY_MAX) {
        q->too_long = true;
        err_set(&c->err, ERR_INVALID, "the body is longer than the %d MB that fit here",
                HTTP_BODY_MAX >> 20);
        c->body_failed = true;
        return;
    }
    buf_append(&q->body, bytes, n);
    if (buf_ok(&q->body, &c->err) < 0)
        c->body_failed = true;
}

/* Bytes that are there already: -1 not a body, else whether a piece was found. */
static int next_piece(struct conn *c, char **out, size_t *out_n)
{
    size_t n = c->in_n - c->in_at;

    *out = c->in + c->in_at;
    if (!c->q.head.chunked) {
        *out_n = n < (size_t)c->body_left ? n : (size_t)c->body_left;
        c->body_left -= (int64_t)*out_n;
        c->in_at += *out_n;
        c->body_ended = c->body_left == 0;
        return *out_n > 0;
    }
    long used = chunks_take(&c->chunks, *out, n, out, out_n);
    if (used < 0)
        return -1;
    c->in_at += (size_t)used;
    c->body_ended = c->chunks.state == CHUNK_DONE;
    return *out_n > 0 || c->body_ended;
}

static bool go_body(struct conn *c)
{
    struct request *q = &c->q;
    const bool waits = (q->match.route->flags & (HTTP_STREAMED | HTTP_WAITS))
        == (HTTP_STREAMED | HTTP_WAITS);
    char *piece;
    size_t n;

    int found = next_piece(c, &piece, &n);
    if (found < 0) {
        c->body_ended = false;
        refuse(c, 400, "the body is not in chunks as it says");
        return true;
    }
    if (n && waits) {
        c->piece = piece;
        c->piece_n = n;
        c->state = CONN_BUSY;
        c->loop->n_busy++;
        pool_give(c->loop->http, c);
        return false;
    }
    if (n)
        take_piece(c, piece, n);
    if (c->body_failed) {
        answer_error(c);
        set_answer_state(c);
        return true;
    }
    if (c->body_ended) {
        dispatch(c);
        return true;
    }
    if (found)
        return true;
    if (!c->readable)
        return false;
    /* All that came is used. Further bytes go to a buffer of their own: names and values of the
     * head point into the first one. */
    if (!q->head_mem) {
        size_t cap = q->head.chunked || c->body_left > READ_SMALL ? READ_LARGE : READ_SMALL;
        char *fresh = malloc(cap);
        if (!fresh) {
            c->broken = true;
            return false;
        }
        q->head_mem = c->in;
        c->in = fresh;
        c->in_cap = cap;
    }
    c->in_at = c->in_n = 0;
    c->in_n = pull(c, c->in, c->in_cap);
    /* Slower than a kilobyte a second on the whole is not serious. */
    double most =
        c->body_began + BODY_GRACE_S + (double)c->body_n / BODY_BYTES_PER_S - c->loop->now;
    if (c->in_n)
        set_deadline(c, most < idle_s(c) ? most : idle_s(c));
    return c->in_n > 0 || c->readable;
}

/* ------------------------------------------------------------ the handler */

static void call_handler(struct conn *c)
{
    struct request *q = &c->q;

    if (q->match.route->handle(q, &c->err) < 0)
        answer_error(c);
}

static void dispatch(struct conn *c)
{
    if (c->q.match.route->flags & HTTP_WAITS) {
        c->state = CONN_BUSY;
        c->piece = NULL;
        c->loop->n_busy++;
        pool_give(c->loop->http, c);
        return;
    }
    call_handler(c);
    set_answer_state(c);
}

void conn_run(struct conn *c)
{
    if (c->piece)
        take_piece(c, c->piece, c->piece_n);
    else
        call_handler(c);
}

/* ------------------------------------------------------------ the answer */

/* The path is without its token, and the query, which may hold one, is left out. */
static void log_answer(const struct conn *c, double took)
{
    const struct request *q = &c->q;
    const bool failed = q->status == 500 || q->status == 507;

    log_event(failed ? LEVEL_ERROR : LEVEL_DEBUG, failed ? "http.failed" : "http.request",
              "{s:s, s:s, s:i, s:f, s:s?}", "method", q->head.method ? q->head.method : "",
              "path", q->path && utf8_valid(q->path, strlen(q->path)) ? q->path : "", "status",
              q->status, "ms", took * 1e3, "error", c->err.code ? c->err.text : NULL);
}

static void count_answer(struct conn *c)
{
    struct loop *l = c->loop;
    const int kind = c->q.status / 100;
    const double took = clock_seconds() - c->q.began;
    int b = 0;

    atomic_fetch_add_explicit(&l->by_status[kind >= 1 && kind <= 5 ? kind : 5], 1,
                              memory_order_relaxed);
    while (b < HTTP_BUCKETS - 1 && took > http_bucket_s[b])
        b++;
    atomic_fetch_add_explicit(&l->latency[b], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&l->latency_us, (uint64_t)(took * 1e6), memory_order_relaxed);
    if (c->q.status >= 500 || log_wants(LEVEL_DEBUG))
        log_answer(c, took);
}

/* The answer is out: the next request, or the end. */
static bool end_answer(struct conn *c)
{
    count_answer(c);
    if (c->close_after) {
        const bool unread = !c->body_ended && !c->eof;
        request_done(&c->q);
        if (!unread) {
            c->broken = true;
            return false;
        }
        /* Closed with bytes unread, the answer itself would be taken back (a reset). */
        shutdown(c->fd, SHUT_WR);
        c->state = CONN_LINGER;
        c->body_n = 0;
        set_deadline(c, LINGER_S);
        return true;
    }
    request_done(&c->q);
    c->in_n -= c->in_at;
    if (c->in_n)
        memmove(c->in, c->in + c->in_at, c->in_n);
    c->in_at = c->scanned = 0;
    if (c->in_cap > KEEP_BUFFER && !c->in_n) {
        free(c->in);
        c->in = NULL;
        c->in_cap = 0;
    }
    if (c->out.cap > 2 * KEEP_BUFFER)
        buf_done(&c->out);
    c->state = CONN_HEAD;
    c->deadline = c->loop->now + (c->in_n ? c->loop->http->config.head_timeout_ms / 1000.0
                                  : idle_s(c));
    loop_sweep_by(c->loop, c->deadline);
    return true;
}

/* Bytes of the answer beyond c->out. Returns how many went. */
static size_t push_rest(struct conn *c)
{
    struct request *q = &c->q;
    uint64_t left = q->n - q->at;

    if (q->answer == ANSWER_SHARED)
        return push(c, q->bytes + q->at, left < SEND_PIECE ? (size_t)left : SEND_PIECE, false);
    if (q->answer == ANSWER_READER) {
        const char *bytes;
        long got = q->read(q->release_arg, q->offset + q->at, &bytes);
        if (got <= 0) {
            c->broken = true;
            return 0;
        }
        return push(c, bytes, left < (uint64_t)got ? (size_t)left : (size_t)got,
                    left > (uint64_t)got);
    }
    off_t at = (off_t)(q->offset + q->at);
    if (!c->tls) {
        long sent = sendfile(c->fd, q->fd, &at, left < SEND_PIECE ? (size_t)left : SEND_PIECE);
        if (sent > 0) {
            atomic_fetch_add_explicit(&c->loop->bytes_out, (uint64_t)sent, memory_order_relaxed);
            return (size_t)sent;
        }
        if (sent < 0 && errno == EAGAIN)
            c->writable = false;
        else if (sent == 0 || errno != EINTR)
            c->broken = true;           /* also a file that is shorter than was said */
        return 0;
    }
    char piece[16 << 10];
    ssize_t got = pread(q->fd, piece, left < sizeof piece ? (size_t)left : sizeof piece, at);
    if (got <= 0) {
        c->broken = true;
        return 0;
    }
    return push(c, piece, (size_t)got, false);
}

static bool go_send(struct conn *c)
{
    struct request *q = &c->q;
    const bool rest = q->answer == ANSWER_SHARED || q->answer == ANSWER_FILE ||
                      q->answer == ANSWER_READER;

    if (c->out.failed)
        c->broken = true;
    while (c->out_at < c->out.n && c->writable && !c->broken) {
        size_t sent = push(c, c->out.data + c->out_at, c->out.n - c->out_at, rest && q->n > q->at);
        c->out_at += sent;
        if (sent)
            set_deadline(c, idle_s(c));
    }
    if (c->out_at < c->out.n)
        return false;
    if (q->answer == ANSWER_STREAM) {
        c->state = CONN_STREAM;
        return true;
    }
    if (rest && q->at < q->n) {
        size_t sent = c->writable ? push_rest(c) : 0;
        q->at += sent;
        if (sent)
            set_deadline(c, idle_s(c));
        return sent > 0 || (c->writable && !c->broken);
    }
    return end_answer(c);
}

/* ------------------------------------------------------------ streams */

static void set_stalled(struct conn *c, bool stalled)
{
    c->loop->n_stalled += (int)stalled - (int)c->stalled;
    c->stalled = stalled;
}

static bool go_stream(struct conn *c)
{
    struct request *q = &c->q;
    struct buf *b = &c->out;
    enum { HEAD_ROOM = 10 };            /* "00007fff\r\n" */

    set_stalled(c, false);
    if (c->eof || !token_still_good(c))
        c->broken = true;
    if (c->broken)
        return false;
    buf_clear(b);
    c->out_at = 0;
    char *at = buf_reserve(b, HEAD_ROOM + STREAM_PIECE + 2);
    if (!at) {
        c->broken = true;
        return false;
    }
    const bool chunked = q->head.minor > 0;
    long n = atomic_load(&c->loop->http->draining) ? -1
        : q->more(q->release_arg, at + HEAD_ROOM, STREAM_PIECE);
    if (n == 0) {
        set_stalled(c, true);
        c->deadline = 0;
        return false;
    }
    if (n < 0) {
        if (chunked)
            buf_text(b, "0\r\n\r\n");
        c->close_after |= !chunked || atomic_load(&c->loop->http->draining);
        q->release(q->release_arg);     /* as drop_answer would, and the answer is bytes now */
        q->release = NULL;
        atomic_fetch_sub(&c->loop->http->n_streams, 1);
        q->answer = ANSWER_BYTES;
    } else if (chunked) {
        char size[HEAD_ROOM + 1];
        snprintf(size, sizeof size, "%08x\r\n", (unsigned)n);
        memcpy(at, size, HEAD_ROOM);
        memcpy(at + HEAD_ROOM + n, "\r\n", 2);
        b->n = HEAD_ROOM + (size_t)n + 2;
    } else {
        memmove(at, at + HEAD_ROOM, (size_t)n);
        b->n = (size_t)n;
    }
    c->state = CONN_SEND;
    set_deadline(c, idle_s(c));
    return true;
}

/* A client that still sends what is not wanted is heard out for a moment. */
static bool go_linger(struct conn *c)
{
    char scrap[8192];

    while (c->readable && !c->broken && c->body_n < LINGER_BYTES)
        c->body_n += pull(c, scrap, sizeof scrap);
    if (c->eof || c->body_n >= LINGER_BYTES)
        c->broken = true;
    return false;
}

static bool go_handshake(struct conn *c)
{
    int done = tls_handshake(c->tls);

    c->readable = done > 0;
    if (done < 0)
        c->broken = true;
    if (done > 0)
        c->state = CONN_HEAD;
    return done > 0;
}

void conn_go(struct conn *c)
{
    static bool (*const go[])(struct conn *c) = {
        [CONN_HANDSHAKE] = go_handshake, [CONN_HEAD] = go_head, [CONN_BODY] = go_body,
        [CONN_SEND] = go_send, [CONN_STREAM] = go_stream, [CONN_LINGER] = go_linger,
    };

    c->loop->n_again -= c->again;
    c->again = false;
    for (int steps = 0; c->state != CONN_BUSY && !c->broken && go[c->state](c); steps++)
        if (steps == STEPS) {   /* who has so much to say lets the others in between */
            c->again = true;
            c->loop->n_again++;
            return;
        }
    if (c->state == CONN_BUSY)
        return;
    /* A client that is gone: nothing more can come of a head or a body. */
    if (c->broken || (c->eof && (c->state == CONN_HEAD || c->state == CONN_BODY)))
        conn_close(c);
}

/* The pool is done with it. */
void conn_back(struct conn *c)
{
    c->loop->n_busy--;
    if (!c->piece) {
        set_answer_state(c);
    } else if (c->body_failed) {
        answer_error(c);
        set_answer_state(c);
    } else if (c->body_ended) {
        dispatch(c);
    } else {
        c->state = CONN_BODY;
        set_deadline(c, idle_s(c));
    }
    conn_go(c);
}
