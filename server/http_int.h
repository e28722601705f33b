/* server/http_int.h - inside the HTTP server; for http*.c only
 *
 * DESIGN. Each loop thread has an epoll and the connections that were handed to it; a connection
 * never changes its loop. Sockets are registered once, edge-triggered: `readable` and `writable` say
 * what is known, so that a request out of memory costs one recv and one send. A connection is a
 * small machine:
 *
 *     HEAD -> BODY -> (BUSY ->) SEND -> HEAD ...        BUSY: a thread of the pool has the request
 *                                 `-> STREAM            and the loop keeps its hands off
 *                                 `-> LINGER            the client still sends what is not wanted
 *
 * Only the loop thread reads, writes, closes and frees. A pool thread touches the request and the
 * buffers of one BUSY connection, then puts it on the loop's `done` list.
 *
 * The parser is strict, since what two readers of a request understand differently is how requests are
 * smuggled: lines end in CRLF, no folded lines, no blank before a colon, one Host, one Content-Length,
 * never beside Transfer-Encoding, which is "chunked" or refused; escapes are whole, text is UTF-8.
 * What is not understood is answered by 400 and the connection is closed.
 */
#ifndef MUSTER_SERVER_HTTP_INT_H
#define MUSTER_SERVER_HTTP_INT_H

#include <pthread.h>
#include <stdatomic.h>
#include <netinet/in.h>

#include "server/auth.h"
#include "server/http.h"
#include "server/server.h"

enum {
    HEADERS_MAX = 100, QUERIES_MAX = 64, ARGS_MAX = 12, SEGMENTS_MAX = 24,
    TOKEN_MAX = 128,
    READ_SMALL = 4096, READ_LARGE = 256 << 10,
    KEEP_BUFFER = 64 << 10,     /* a buffer grown past this is given back after the request */
    CONNS_RESERVE = 256,        /* connections beyond the limit, until it is known who they are */
};

/* Of every answer, whoever makes it. What users put into buckets is shown on the console's own origin:
 * it may not act there, and nobody else is told the address, which may hold a token. */
#define SAFE_HEADERS                                                                               \
    "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"                          \
    "Cross-Origin-Resource-Policy: same-origin\r\n"
#define SAFE_POLICY                                                                                \
    "Content-Security-Policy: default-src 'none'; frame-ancestors 'none'; sandbox\r\n"

/* ------------------------------------------------------------ http_parse.c */

struct pair { const char *name, *value; };

struct head {
    const char *method;
    char *target;               /* path and query, as sent */
    int minor;                  /* HTTP/1.minor */
    const char *host;           /* "" for 1.0 without one */
    struct pair headers[HEADERS_MAX];
    int n_headers;
    int64_t length;             /* of the body; 0: none */
    bool chunked, keep_alive, expects_continue;
};

/* The bytes of a head including its empty line, or 0: not whole yet. `from` is where the last look
 * ended. */
size_t head_end(const char *bytes, size_t n, size_t *from);
/* Cuts the head up in place. 0, or the status to refuse it with and a sentence in `why`. */
int head_parse(char *bytes, size_t n, struct head *out, const char **why);
const char *head_find(const struct head *h, const char *name);

bool utf8_valid(const char *text, size_t n);
/* "a=1&b=2", decoded into out (2 * strlen + 2 bytes). How many, the first `max` of them; -1: as
 * above. */
int queries_parse(const char *text, char *out, struct pair *pairs, int max);

/* A body in chunks, decoded in place piece by piece. */
struct chunks {
    enum { CHUNK_SIZE, CHUNK_EXTENSION, CHUNK_SIZE_LF, CHUNK_DATA, CHUNK_DATA_CR, CHUNK_DATA_LF,
           CHUNK_TRAILER, CHUNK_TRAILER_LINE, CHUNK_TRAILER_LF, CHUNK_END_LF, CHUNK_DONE } state;
    uint64_t left;
    int digits, extra;
};
/* Takes bytes from the front: returns how many it used, *out and *out_n are the data among them
 * (may be none). -1: this is no chunked body. */
long chunks_take(struct chunks *c, char *bytes, size_t n, char **out, size_t *out_n);

/* Is this Host header one of ours? Loopback's names, an address of 127/8, or one of `names`. */
bool host_allowed(const char *host, const char *const *names);

/* ------------------------------------------------------------ http_route.c */

struct router;
struct route_match {
    const struct http_route *route;     /* NULL: none */
    const struct protocol *protocol;    /* the nearest, also when there is no route; NULL: none */
    struct pair args[ARGS_MAX];
    int n_args;
    char allow[64];             /* methods there are for this path, "GET, POST" */
};
int router_new(const struct protocol *const *protocols, struct router **out, struct err *err);
void router_free(struct router *r);
OWN_DEFINE(router)
/* `path` without query; `scratch` of 2 * n + SEGMENTS_MAX + 2 bytes takes the decoded text. -1: the
 * path is malformed. */
int router_find(const struct router *r, const char *method, const char *path, size_t n,
                char *scratch, struct route_match *out);

/* ------------------------------------------------------------ requests and connections */

enum answer_kind { ANSWER_NONE, ANSWER_BYTES, ANSWER_SHARED, ANSWER_FILE, ANSWER_READER, ANSWER_STREAM };

struct request {
    struct conn *conn;
    struct head head;
    const char *path;           /* without prefix and query */
    char *query_text;
    struct pair queries[QUERIES_MAX];
    int n_queries;
    struct route_match match;
    char *scratch;              /* what is decoded lives here */
    char *head_mem;             /* the head's bytes, when c->in went on without them */
    char *base;
    struct buf body;
    struct auth_who who;
    char token[TOKEN_MAX];
    bool by_prefix, by_header, by_session, known, no_token, too_long;
    void *kept;
    void (*free_kept)(void *);

    enum answer_kind answer;
    int status;
    struct buf extra;           /* headers of the handler's */
    bool own_policy, own_cache; /* among them */
    const char *type;
    const char *bytes;          /* SHARED */
    uint64_t n, at;             /* of bytes or file */
    void (*release)(void *);
    void *release_arg;
    int fd;
    uint64_t offset;
    long (*read)(void *arg, uint64_t at, const char **out);
    long (*more)(void *arg, char *out, size_t max);
    double began;
};

enum conn_state { CONN_HANDSHAKE, CONN_HEAD, CONN_BODY, CONN_BUSY, CONN_SEND, CONN_STREAM,
                  CONN_LINGER };

struct conn {
    struct conn *next, *prev;           /* of the loop */
    struct conn *queued;                /* in the pool's queue, the loop's done or new list */
    struct loop *loop;
    int fd;
    void *tls;
    enum conn_state state;
    bool readable, writable, hung_up, eof, broken, close_after, stalled, again, body_failed, body_ended;
    double deadline, body_began;
    struct in6_addr peer;
    enum { OVER_NONE, OVER_HOST, OVER_ALL } over;       /* which limit it came in beyond */
    int hops;                           /* loops that found nothing to close in its place */
    bool probation;                     /* in the reserve: only some requests are answered */
    bool condemned;                     /* closed at the end of this round */
    char *in;                           /* bytes that came: [0, in_n), of them used up to in_at */
    size_t in_n, in_at, in_cap, scanned;
    struct buf out;
    size_t out_at;
    int64_t body_left;
    struct chunks chunks;
    char *piece;                        /* BUSY with a piece of a streamed body */
    size_t piece_n;
    uint64_t body_n;
    char good_token[TOKEN_MAX];         /* checked before, this epoch, */
    bool good_header, good_session;     /* from there, a session's, */
    struct auth_who good;               /* with this outcome */
    unsigned good_epoch;
    struct err err;
    struct request q;
};

struct loop {
    struct http *http;
    int number;
    pthread_t thread;
    int epoll, event;
    struct conn *first, *last;          /* the newest, the oldest */
    pthread_mutex_t lock;               /* of the lists that others put into */
    struct conn *done, *fresh;
    atomic_bool wake;
    int n_stalled, n_again, n_busy, n_condemned;
    double next_full;                   /* when to say again that connections are dropped */
    double next_sweep, next_look;       /* when to close what is late, to ask streams for more */
    double now;
    char date[40];
    long date_s;
    _Atomic uint64_t by_status[6], latency[HTTP_BUCKETS], latency_us, bytes_in, bytes_out;
};

struct http {
    struct server *server;
    struct http_config config;
    char *tls_cert, *tls_key;
    void *tls;
    struct router *router;
    struct tickets *tickets;
    struct loop *loops;
    int n_loops, n_started;
    unsigned next_loop;
    atomic_bool draining, stopping;
    double accept_after;                /* out of descriptors: try again then */
    struct ways *ways;                  /* of jobs; http_ways.c */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    int n_conns;
    _Atomic uint64_t n_all, n_dropped, n_streams;
    struct peer { struct in6_addr address; int n; } *peers;     /* sorted by nothing; few */
    int n_peers, cap_peers;

    pthread_mutex_t pool_lock;
    pthread_cond_t pool_news, pool_gone;
    struct conn *pool_first, *pool_last;
    int pool_threads, pool_idle, pool_queued;
    pthread_t *pool_ended;              /* to be joined */
    int n_pool_ended;
};

/* http_conn.c */
struct conn *conn_new(struct loop *l, int fd, const struct in6_addr *peer);
void conn_start(struct conn *c);        /* on its loop */
/* Goes on as far as it can. Frees the connection when it is over. */
void conn_go(struct conn *c);
void conn_close(struct conn *c);
void conn_back(struct conn *c);         /* on its loop: the pool is done with it */
void conn_run(struct conn *c);          /* on a pool thread: the piece, or the request */

/* http_admit.c */
void accept_all(struct loop *l);
void http_conn_gone(struct http *h, const struct in6_addr *peer);
/* A connection that came in beyond a limit takes the place of another of this loop, or is handed to
 * the next loop (false: it is not this loop's any more), or stays on probation. */
bool loop_make_room(struct conn *c);
/* Its request is whole: may it be answered? */
bool conn_may_stay(struct conn *c);
void loop_close_condemned(struct loop *l);

/* http_auth.c */
/* Cuts /k/TOKEN off and keeps it; returns where the path begins. */
char *token_cut_prefix(struct request *q, char *target);
int token_check(struct conn *c);        /* sets q->who; fails where the route needs more than it has */
bool token_still_good(struct conn *c);  /* of a stream that goes on */

/* http_reply.c */
void request_done(struct request *q);   /* frees what belongs to it */
void reply_begin(struct conn *c);       /* c->out from the answer */
void reply_plain(struct request *q, int status, const char *text);

/* http.c */
void loop_sweep_by(struct loop *l, double when);
void pool_give(struct http *h, struct conn *c);

/* http_ways.c */
int ways_start(struct http *h, struct err *err);        /* before the loops run */
void ways_stop(struct http *h);         /* accepts no more */
void ways_free(struct http *h);         /* also one that did not start */
/* The next connection of the server's own socket or of a job's, as accept4. On the first loop. */
int ways_accept(struct http *h, struct sockaddr_storage *from, socklen_t *n);

/* http_tls.c */
int tls_open(const char *cert, const char *key, void **out, struct err *err);
void tls_close(void *tls);
void *tls_session(void *tls, int fd);
int tls_handshake(void *session);       /* 1 done, 0 again, -1 broken */
long tls_recv(void *session, void *out, size_t n);      /* -2: again; -1: broken; 0: end */
long tls_send(void *session, const void *bytes, size_t n);
void tls_end(void *session);

#endif
