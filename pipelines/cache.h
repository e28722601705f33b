/* pipelines/cache.h - a step that was run with the same inputs is not run again
 *
 * The key of a step is the SHA-256 of all that its outputs may depend on: the digest of its image,
 * command, arguments, script, environment (secrets and config values by name, not by value), values
 * of input parameters, digests of input artifacts, and which outputs it has. A hit is taken only when
 * every object that its outputs name is there and has the digest that it had. A step that mounts a
 * volume it may write to depends on more than that and is never taken from here.
 *
 * Threads: any; those that take a `db` are for inside store_write.
 */
#ifndef MUSTER_PIPELINES_CACHE_H
#define MUSTER_PIPELINES_CACHE_H

#include <jansson.h>
#include <sqlite3.h>
#include <stdbool.h>

#include "base/err.h"
#include "base/sha256.h"

struct server;

int step_cache_init(struct server *s, struct err *err);

/* The key of an order (run_graph_order). False: it is never cached, and out_why says why: a sentence. */
bool step_cache_key(const json_t *order, const char *image_digest, char out[SHA256_HEX],
                    char *out_why, size_t size);

/* The newest step of that key which is not older than `staleness_s` (0: whatever age), its outputs
 * looked at. *out: {"run", "node", "outputs", "t"}; yours. ERR_MISSING: none, and why. */
int step_cache_find(struct server *s, const char *project, const char *key, double staleness_s,
               json_t **out, struct err *err);

/* Gives these outputs to a node of a run: the same content under names of its own, so that it stays
 * when the run that made it is removed. */
int step_cache_take(struct server *s, const char *project, json_t *outputs, const char *run,
                    const char *node, struct err *err);

/* `entry`: {"project", "key", "node", "outputs"}. */
int step_cache_put(sqlite3 *db, const char *run, const json_t *entry, struct err *err);
/* What a run left goes with it. */
int step_cache_forget(sqlite3 *db, const char *run, struct err *err);

#endif
