/* server/server.h - the parts of a running server
 *
 * server_start opens them in the order of the fields, server_stop ends them the other way round. A
 * part keeps the pointer it was made with and finds the others through it; those after it are not
 * there yet while it is made.
 */
#ifndef MUSTER_SERVER_SERVER_H
#define MUSTER_SERVER_SERVER_H

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"
#include "server/http.h"
#include "server/store.h"

struct auth;
struct objects;
struct queue;
struct quota;
struct retention;
struct runs;
struct server_part;

struct server {
    const char *data_dir;
    struct store *store;
    struct auth *auth;          /* tokens, projects, secrets, config values */
    struct quota *quota;        /* what jobs and projects may use; NULL: no limits */
    struct objects *objects;    /* buckets */
    struct retention *retention;        /* files of ended jobs, and what projects take of the disk */
    struct queue *queue;        /* the scheduler's thread */
    struct runs *runs;          /* of pipelines; NULL where there are none (pipelines/runs.h) */
    const struct server_part *const *more;      /* what was handed in, and started */
    int heard_fd;               /* an eventfd for who waits for jobs to end; 0: nobody ever does */
    _Atomic bool hears;         /* it is written after events of jobs */
    struct http *_Atomic http;
    char address[128];          /* "http://127.0.0.1:8470": what jobs are told */
    double load_limit;          /* of the cores; 0.9 */
    int64_t log_limit;          /* bytes of log that a job may keep */
    double started;             /* unix seconds */
    int lock_fd;                /* DATA/server.lock, held while it runs */
    int no_sandbox;             /* jobs run as the server itself */
    int strict;                 /* nothing that a job is promised may be missing */
    json_t *broken;             /* what cannot be kept here (drivers/promises.h) */
    int passed;                 /* somebody else keeps its socket open, and starts it again */
};

enum { SERVER_PORT = 8470 };

/* A part that a folder above this one brings; started after those of the server, before the first
 * request, and ended before them. `stop` is called also when `start` failed or never was called. */
struct server_part {
    const char *name;
    int (*start)(struct server *s, struct err *err);
    void (*stop)(struct server *s);
    /* Will something of this part still read the files of this job, which has ended? Any thread, also
     * before `start`. NULL: never. */
    bool (*in_use)(struct server *s, const char *project, const json_t *spec);
};

struct server_config {
    const char *data_dir;
    const char *listen;         /* an address or name; NULL: 127.0.0.1. Beyond loopback: with TLS */
    int port;                   /* -1: SERVER_PORT; 0: any free one */
    int listen_fd;              /* a socket that somebody opened for it (systemd); -1: none */
    double load_limit;          /* 0: 0.9 */
    int64_t log_limit;          /* bytes; 0: 10 GB, or a tenth of the disk where that is less */
    int no_sandbox;             /* jobs run as the server itself */
    int strict;                 /* do not start where a promise to jobs cannot be kept */
    const struct server_part *const *parts;     /* NULL-terminated, NULL: none; outlives it */
    struct http_config http;    /* limits, names, TLS */
};

/* Opens the data directory (made when it is not there, for its owner alone), starts all parts and
 * answers requests when it returns; DATA/server.json then says where, and whether its socket is kept
 * open for the next one. ERR_CONFLICT: another server has this data directory. The config is read
 * during the call alone, but for http.names. */
int server_start(struct server *s, const struct server_config *config,
                 const struct protocol *const *protocols, struct err *err);

/* A part of it (server/promises.c): tries what jobs are promised, says what cannot be kept. */
int server_try_promises(struct server *s, struct err *err);
void server_drop_promises(struct server *s);
/* Sentences: what a job with this document is promised and does not have here; yours, NULL: no
 * memory. */
json_t *server_not_kept(const struct server *s, const json_t *spec);

/* Lets requests end, up to so long, then ends all parts. Jobs go on. */
void server_stop(struct server *s, int drain_ms);

#endif
