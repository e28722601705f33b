/* server/server.h - the parts of a running server
 *
 * server_start opens them in the order of the fields, server_stop ends them the other way round. A
 * part keeps the pointer it was made with and finds the others through it; those after it are not
 * there yet while it is made.
 */
#ifndef MUSTER_SERVER_SERVER_H
#define MUSTER_SERVER_SERVER_H

#include "base/err.h"
#include "server/http.h"
#include "server/store.h"

struct auth;
struct objects;
struct queue;

struct server {
    const char *data_dir;
    struct store *store;
    struct auth *auth;          /* tokens, projects, secrets, config values */
    struct objects *objects;    /* buckets */
    struct queue *queue;        /* the scheduler's thread */
    struct http *http;
    char address[128];          /* "http://127.0.0.1:8470": what jobs are told */
    double load_limit;          /* of the cores; 0.9 */
};

#endif
