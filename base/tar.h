/* base/tar.h - a directory as one stream of bytes
 *
 * The POSIX form (ustar, with extended headers for long names), which every tar reads. Names are in
 * order, without times and owners, so the same content is always the same bytes and has one digest.
 * Files, directories and symbolic links (as links) are in it, of the rest nothing. Nothing that
 * somebody else puts into the directory meanwhile leads out of it.
 */
#ifndef MUSTER_BASE_TAR_H
#define MUSTER_BASE_TAR_H

#include <stddef.h>

#include "base/err.h"

/* Takes the bytes in order; a failure ends it with that. `bytes` NULL: a file of n bytes follows. */
typedef int tar_sink(void *arg, const void *bytes, size_t n, struct err *err);

/* The content of the directory that is open as `dir`, which stays open; "./" is its first entry. */
int tar_write(int dir, tar_sink *put, void *arg, struct err *err);

#endif
