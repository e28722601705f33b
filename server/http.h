/* server/http.h - requests in, answers out: the one router
 *
 * A protocol is a table of routes. A route's path is literal but for {name} (one segment,
 * percent-decoded), {name}:verb (one segment that ends so) and a last {name*} (the rest, decoded,
 * slashes kept). Where several fit, the one with the longer literal wins, segment by segment. HEAD is
 * answered by the route of GET.
 *
 * The token is checked before a handler is called: from "Authorization: Bearer" (where a browser's
 * session is good, too), the path prefix /k/TOKEN (cut off before routing), ?key=, or a ticket
 * (server/tickets.h). What a browser sends by itself, cookies above all, counts for nothing.
 * A handler answers by exactly one respond_* and returns 0, or fails with err: then the protocol's
 * `error` answers.
 *
 * Threads: a handler runs on a loop thread, or, when its route has HTTP_WAITS, on a thread of a pool.
 * A request belongs to the thread that handles it. http_int.h says how it works inside.
 */
#ifndef MUSTER_SERVER_HTTP_H
#define MUSTER_SERVER_HTTP_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/own.h"
#include "server/auth.h"

struct http;
struct request;
struct server;

enum {
    HTTP_OPEN = 1 << 0,         /* no token needed */
    HTTP_WAITS = 1 << 1,        /* may wait for the disk or another process */
    HTTP_ROOT = 1 << 2,         /* the server's own token only, not a project's */
    HTTP_STREAMED = 1 << 3,     /* the body goes to `body` as it comes, not into memory */
    HTTP_JOB = 1 << 4,          /* also with a job's token; what is of one job: request_job */
    HTTP_ALWAYS = 1 << 5,       /* answered from the reserve when all connections are in use */
};

enum { HTTP_BODY_MAX = 64 << 20 };      /* of a body in memory; longer is answered by 413 */

struct http_route {
    const char *method, *path;
    unsigned flags;
    int (*handle)(struct request *q, struct err *err);
    /* HTTP_STREAMED: called with the bytes in order; a failure ends the request by `error`. On a
     * loop thread, or, with HTTP_WAITS, on a thread of the pool (then the client is slowed down to
     * what it takes). */
    int (*body)(struct request *q, const void *bytes, size_t n, struct err *err);
};

struct protocol {
    const char *name;
    const struct http_route *routes;    /* ends with method NULL */
    void (*error)(struct request *q, const struct err *err);    /* in this API's own form */
};

/* ------------------------------------------------------------ what was asked */

struct server *request_server(const struct request *q);
const char *request_method(const struct request *q);
const char *request_arg(const struct request *q, const char *name);     /* of the path; NULL: none */
const char *request_query(const struct request *q, const char *name);   /* decoded; NULL: none */
const char *request_query_text(const struct request *q);        /* all of it, as sent */
const char *request_header(const struct request *q, const char *name);  /* NULL: none */
const char *request_body(const struct request *q, size_t *out_n);       /* never NULL; NUL-ended */
/* Of a body that is streamed: as announced; -1: it is not known yet. */
int64_t request_length(const struct request *q);
/* Yours; ERR_INVALID with line and column; an empty body is {}. */
int request_json(const struct request *q, json_t **out, struct err *err);
/* The same for any text. What is nested deeper than HTTP_JSON_DEPTH is refused: to copy or write it
 * would take more stack than a thread has. */
enum { HTTP_JSON_DEPTH = 100 };
int http_json(const char *text, size_t n, json_t **out, struct err *err);
/* Of an address: decodes n bytes of text into out (n + 1 bytes), and how many that are. -1: an escape
 * is broken, NUL, or not UTF-8. */
long percent_decode(const char *text, size_t n, bool plus_is_blank, char *out);
/* Of the token; NULL: the server's own token, all projects. */
const char *request_project(const struct request *q);
/* The job whose token it is, of request_project; NULL: nobody's. */
const char *request_job(const struct request *q);
/* The browser's session that it came with; NULL: it came with a token. */
const char *request_session(const struct request *q);
/* A ticket for `target`, a path and query of this server, with the rights of who asks. */
int request_ticket(const struct request *q, const char *target, char out[AUTH_TOKEN],
                   struct err *err);
/* ERR_DENIED unless the token is of this project or the server's own. */
int request_allows(const struct request *q, const char *project, struct err *err);
/* "http://127.0.0.1:8080" with "/k/TOKEN" when the client came that way: for Location, mediaLink. */
const char *request_base(const struct request *q);
/* Something of the handler's own that lives as long as the request (streamed bodies). */
void request_keep(struct request *q, void *state, void (*free_state)(void *state));
void *request_kept(const struct request *q);
/* For `error`: the status to answer with. That of the code, but 401 where there was no good
 * token, 413 where the body is too long and 507 where the disk is full. */
int request_error_status(const struct request *q, const struct err *err);

/* ------------------------------------------------------------ the answer */

void respond_header(struct request *q, const char *name, const char *value);    /* before it */
/* Several that are whole already, "Name: value\r\n" each; not Cache-Control. */
void respond_headers(struct request *q, const char *lines, size_t n);
int respond_json(struct request *q, int status, json_t *doc);           /* takes the reference */
int respond_bytes(struct request *q, int status, const char *type, const void *bytes, size_t n);
/* Takes fd. */
int respond_file(struct request *q, int status, const char *type, int fd, uint64_t offset,
                 uint64_t n);
/* Bytes that `read` has ready: how many of those at `at`, and where; < 0 breaks the answer off. It is
 * called on a loop thread; the bytes stay until it is called again. */
int respond_reader(struct request *q, int status, const char *type, uint64_t offset, uint64_t n,
                   long (*read)(void *arg, uint64_t at, const char **out), void *arg,
                   void (*free_arg)(void *arg));
int respond_empty(struct request *q, int status);
/* Bytes that outlive the answer: no copy; `release` is called when done (may be NULL: static). */
int respond_shared(struct request *q, int status, const char *type, const void *bytes, size_t n,
                   void (*release)(void *arg), void *arg);
/* A stream (server-sent events, a followed log): `more` is called on a loop thread; it returns bytes
 * written, 0: nothing now (it is asked again after http_wake, or every 50 ms), -1: the end. */
int respond_stream(struct request *q, int status, const char *type,
                   long (*more)(void *arg, char *out, size_t max), void *arg,
                   void (*free_arg)(void *arg));

/* ------------------------------------------------------------ the listener */

struct http_config {
    int listen_fd;              /* taken; bound and listening */
    const char *const *names;   /* hosts it may be called by, beside loopback's; NULL: none */
    const char *tls_cert, *tls_key;     /* files (PEM); NULL: no TLS */
    int loops, waiters;         /* threads; 0: as many as help */
    /* At most; 0: 4096, 1024. Beyond them a new connection takes the place of one that has no
     * request (docs/design/http.md). */
    int connections, per_host;
    int head_timeout_ms;        /* for the head of a request, whole; 0: 10 s */
    int idle_timeout_ms;        /* between two requests, and without progress; 0: 75 s */
    size_t head_max;            /* bytes; 0: 64 kB */
};

/* Begins to answer, as s->http. `protocols` ends with NULL and outlives it. */
int http_start(struct server *s, const struct http_config *config,
               const struct protocol *const *protocols, struct err *err);
/* Takes no new connection, lets requests end (streams are ended), up to so long. */
void http_drain(struct http *h, int timeout_ms);
void http_stop(struct http *h);         /* no handler runs after it; http_wake is still fine */
void http_free(struct http *h);

/* There may be news for streams. Any thread; cheap when nobody listens. */
void http_wake(struct server *s);

enum { HTTP_BUCKETS = 12 };
extern const double http_bucket_s[HTTP_BUCKETS];        /* upper ends; the last is infinite */
struct http_stats {
    uint64_t by_status[6];      /* [2]: 2xx ...; [0]: refused before there was a request */
    uint64_t latency[HTTP_BUCKETS];     /* from the whole head to the last byte handed over */
    double latency_sum_s;
    uint64_t bytes_in, bytes_out;
    uint64_t connections_open, connections_all, connections_dropped, streams_open;
};
void http_stats(struct http *h, struct http_stats *out);

#endif
