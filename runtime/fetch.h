/* runtime/fetch.h - a job's files for a worker whose host does not have them
 *
 * The files that a spec names (rows, initial weights, an order) are numbered in the order of the
 * document. Where one of them is not on this host, all come from the coordinator, piece by piece,
 * into the cache: under data/ what the spec has in $MUSTER_DATA, under spec/ what is relative to
 * it. A file that is there whole is not fetched again. What a URL names, each worker reads by
 * itself. Whether the bytes are right is decided by the digest of the data, which every worker
 * shows when it joins.
 */
#ifndef MUSTER_RUNTIME_FETCH_H
#define MUSTER_RUNTIME_FETCH_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "spec/spec.h"

enum { FETCH_FILES = 256, FETCH_PIECE = 1 << 20 };

/* For the coordinator: up to FETCH_PIECE bytes of file k from `at` on, and its size. */
int fetch_piece(const struct job_spec *spec, int k, int64_t at, struct buf *out, int64_t *out_size,
                struct err *err);

/* For a worker: makes sure that all are here, and lets `spec` (and $MUSTER_DATA) point to them. */
int fetch_missing(struct job_spec *spec, const char *join, const char *token, struct err *err);

#endif
