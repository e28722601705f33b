/* data/source.h - bytes of files and URLs, one after another, gzip or not
 *
 * A source reads a list of files in order. Whether a file is gzip is told by its first two bytes,
 * never by its name. The end of a file is visible (a read never crosses it), so that a reader
 * above can finish a row and look for the next header. "-" is the standard input; what a URL may
 * be is in base/http.h. All passes of one source see one version of what is behind a URL, or fail.
 *
 * Plain files are read, not mapped: a file that somebody cuts short meanwhile is then a sentence
 * and not a SIGBUS, and the resident size of a 5 GB pass stays the size of the buffers.
 *
 * Not thread safe; a caller with threads reads under its own lock.
 */
#ifndef MUSTER_DATA_SOURCE_H
#define MUSTER_DATA_SOURCE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/own.h"
#include "base/sha256.h"

struct source;

/* Opens the first of `paths` (copied; at least one). ERR_MISSING: no such file; ERR_DENIED: may
 * not be read; ERR_INVALID: a folder. A later file's trouble shows when it is reached. */
int source_open(const char *const *paths, int n, struct source **out, struct err *err);
void source_free(struct source *s);
OWN_DEFINE(source)

/* Fills `buf` with up to `n` bytes of the current file and tells how many in *out_n; fewer than
 * `n` only at the end of the file, 0 when it has been read already. A gzip file that is cut off
 * or damaged: ERR_INVALID with the offset in the compressed file. */
int source_read(struct source *s, void *buf, size_t n, size_t *out_n, struct err *err);

/* Goes on with the next file. *out_more is 0, and the state as before, when there is none. */
int source_next(struct source *s, int *out_more, struct err *err);

/* Starts again at the first byte of the first file. ERR_INVALID for the standard input. */
int source_rewind(struct source *s, struct err *err);

const char *source_path(const struct source *s);        /* of the current file */
int source_file(const struct source *s);                /* 0.. */
uint64_t source_offset(const struct source *s);         /* bytes delivered of the current file */
int64_t source_size(const struct source *s);            /* the same; -1: gzip or a pipe */

/* The whole of one file. The caller frees *out; a zero byte, not counted, follows the last one.
 * *out_packed (may be NULL): it was gzip. Longer than `max` bytes: ERR_INVALID. */
int source_slurp(const char *path, size_t max, char **out, size_t *out_n, int *out_packed,
                 struct err *err);

/* SHA-256, in hex, of the bytes of all files as they lie there. URLs that some source of this process
 * has read from beginning to end are not fetched again: the digest is of the bytes that it read. */
int source_digest(const char *const *paths, int n, char out_hex[SHA256_HEX], struct err *err);

/* How long a file is as it lies there; -1: not known, or not to be had. */
int64_t source_bytes(const char *path);

#endif
