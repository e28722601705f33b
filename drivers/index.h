/* drivers/index.h - package indexes for builders, without the server's credentials
 *
 * pip and uv run code of the packages that they build, with all that is in their environment. So a
 * builder is told only settings that hold no secret. Where an index or a proxy of the server's has
 * a user or password in its URL, or is on loopback, the builder is told the address of a relay in
 * its place: a process outside the sandbox, with the server's credentials, that fetches pages and
 * files of exactly those indexes.
 *
 *   GET /N/PATH                     a page of index N, its links rewritten to the next form
 *   GET /f/MAC/N/URL/FILENAME       a file that a page of index N named; URL is base64,
 *                                   without its padding
 *   GET /f/MAC/N/URL/FILENAME.metadata      the same with ".metadata" behind the URL (PEP 658)
 *
 * Invariants:
 *   1. the relay fetches what is below an index, or what a page of it named (the MAC says so), and
 *      nothing else: a builder cannot use it to reach this machine;
 *   2. credentials go to the scheme, host and port of their own index, and to no other.
 */
#ifndef MUSTER_DRIVERS_INDEX_H
#define MUSTER_DRIVERS_INDEX_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/own.h"

struct index;

/* From the settings of pip and uv in `environ`. */
int index_new(char *const *environ_, struct index **out, struct err *err);
void index_free(struct index *x);       /* ends the relay */
OWN_DEFINE(index)

/* Does one of the settings hold credentials, or lead to loopback of this machine, which a builder
 * does not reach (drivers/network.h)? */
bool index_wants_relay(const struct index *x);

/* Starts the relay on a socket that listens at 127.0.0.1:`port` of the builder; the socket stays
 * the caller's. Only where index_wants_relay. The caller has one thread. */
int index_serve(struct index *x, int listener, int port, struct err *err);

/* Calls `set` for each variable that the builder gets. After index_serve, where that is needed. */
void index_settings(const struct index *x, void (*set)(void *arg, const char *name,
                                                       const char *value), void *arg);

/* The first answer of an index that was neither a page nor "no such package", as a sentence: pip and uv
 * do not tell. NULL: none. Borrowed. */
const char *index_trouble(const struct index *x);

/* A URL with a user or password before its host, such as proxies have. */
bool index_has_credentials(const char *url);

/* ------------------------------------------------------------------ pages */

/* Appends a page of `base` (a URL) to `out`, each link replaced by what `link` makes of its absolute
 * URL (without its fragment, which stays). */
typedef void index_link(void *arg, const char *url, struct buf *out);
void index_rewrite(const char *html, size_t n, const char *base, index_link *link, void *arg,
                   struct buf *out);

/* What `link` means on a page of `base`; NULL: no memory, or it is no http(s) URL. Caller frees. */
char *index_resolve(const char *base, const char *link);

/* Same scheme, host and port? */
bool index_same_origin(const char *a, const char *b);

#endif
