/* runtime/fetch.h - a job's files for a worker whose host does not have them
 *
 * The files that a spec names (rows, initial weights, an order) are numbered in the order of the
 * document. Where one of them is not on this host, all come from the coordinator, piece by piece,
 * into the cache: under data/ what the spec has in $MUSTER_DATA, under spec/ what is relative to
 * it. A file that is there whole is not fetched again. What a URL names, each worker reads by
 * itself. Whether the bytes are right is decided by the digest of the data, which every worker
 * shows when it joins.
 *
 * Images whose rows have a known place (data/blocks.h) are not fetched: a worker gets the list of
 * their blocks from the coordinator, and reads and checks the blocks that it needs, from its own
 * file, by ranges of the URL, or from the coordinator. It shows the digest of that list.
 */
#ifndef MUSTER_RUNTIME_FETCH_H
#define MUSTER_RUNTIME_FETCH_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "data/dataset.h"
#include "data/parts.h"
#include "spec/spec.h"

enum { FETCH_FILES = 256, FETCH_PIECE = 1 << 20 };

/* For the coordinator: up to n bytes (at most FETCH_PIECE; 0: so many) of file k from `at` on, and
 * its size. */
int fetch_piece(const struct job_spec *spec, int k, int64_t at, size_t n, struct buf *out,
                int64_t *out_size, struct err *err);
/* What workers may read by part, for the data sets of the spec (`test` may be NULL): for each file
 * its number (4 bytes, little endian) and its blocks. Nothing where the training rows are not of
 * that kind. */
int fetch_make_offer(const struct job_spec *spec, const struct dataset *train,
                     const struct dataset *test, struct buf *out, struct err *err);

/* For a worker: makes sure that all are here, and lets `spec` (and $MUSTER_DATA) point to them; or
 * that they can be read by part: then they are in *out, for the caller to parts_done. */
int fetch_missing(struct job_spec *spec, const char *join, const char *token, struct parts *out,
                  struct err *err);

/* What an offer's bytes say. ERR_INVALID: they are none. The caller has fetch_offer_done. */
struct fetch_offer {
    int n;
    int file[PARTS_MAX];        /* numbers; -1: of no file that there can be */
    struct blocks *blocks[PARTS_MAX];
};
int fetch_read_offer(const void *bytes, size_t n, struct fetch_offer *out, struct err *err);
void fetch_offer_done(struct fetch_offer *o);

#endif
