/* drivers/network.h - the network of a job: the world outside, without this machine's own loopback
 *
 * Three words of a job document (`network`):
 *
 *   outside   a network namespace of its own. Its loopback is its own; what is beyond this machine
 *             it reaches through slirp4netns, a user-space TCP/IP stack that runs in the machine's
 *             namespace without rights. The server is reached by its usual address: a socket
 *             listens there inside, and the server accepts from it (drivers/way.h).
 *   none      a network namespace with loopback alone; no server either.
 *   host      this machine's network.
 *
 * `true` is another word for outside, `false` for none. Invariants:
 *   1. slirp4netns ends with its keeper, however that ends: it watches a pipe that only the keeper
 *      and its init hold;
 *   2. slirp4netns never runs as root: a server that is root gives it a user number of its own;
 *   3. the namespace belongs to a user namespace in which the job has no rights.
 *
 * A keeper that waits for its job makes the namespace ahead: slirp4netns takes some 10 ms to start.
 */
#ifndef MUSTER_DRIVERS_NETWORK_H
#define MUSTER_DRIVERS_NETWORK_H

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"

enum network_mode { NETWORK_OUTSIDE, NETWORK_NONE, NETWORK_HOST };

/* What the document asks for; one that says nothing asks for the outside. */
enum network_mode network_mode(const json_t *spec);
/* The word of a mode. */
const char *network_word(enum network_mode mode);

/* slirp4netns' resolver inside: it asks the machine's own. */
#define NETWORK_RESOLVER "10.0.2.3"

enum { NETWORK_WAYS = 4 };

struct network {
    int net, user;              /* namespaces; -1: there is none. user: of a server without root */
    int ways[NETWORK_WAYS];     /* sockets that listen inside at the server's addresses */
    int n_ways;
    int life, ready;            /* pipes: slirp4netns ends with the first, says it is up by the
                                   second */
    pid_t slirp;
    char server[160];           /* whose addresses those are */
};
#define NETWORK_INIT { .net = -1, .user = -1, .life = -1, .ready = -1 }

/* Makes a namespace and starts slirp4netns for it. `server` is a URL, "" where there is none. The
 * caller has one thread. */
int network_make(const char *server, struct network *out, struct err *err);
/* Waits until slirp4netns is up. */
int network_wait(struct network *n, struct err *err);
/* A socket that listens at a free port of 127.0.0.1 inside (n NULL: of this machine), yours; -1
 * with errno. */
int network_listen(const struct network *n, int *out_port);
/* Ends slirp4netns and lets go of the namespace. Twice is fine. */
void network_end(struct network *n);

/* Writes a resolv.conf for inside to `path` where the machine's own names a resolver on loopback,
 * which a job does not reach; out_at is then what the job must see it as (PATH_MAX bytes). False:
 * the machine's own does. */
bool network_resolver(const char *path, char *out_at);

/* Tries all of it, once, and keeps the result for network_missing. For the server, at its start. */
void network_check(void);
/* Why jobs have this machine's network in place of the outside alone: a sentence; NULL: nothing is
 * missing. */
const char *network_missing(void);

#endif
