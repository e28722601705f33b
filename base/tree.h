/* base/tree.h - directories with all that is in them
 *
 * What is removed here was written by programs that are not ours and may still run. Hence:
 *   1. a link is removed, never followed, also one that takes a directory's place meanwhile: each
 *      directory is opened from its parent's descriptor, and by its own name alone;
 *   2. what is mounted in the tree stays, with the directories that lead there;
 *   3. however deep the tree, few descriptors are open;
 *   4. a directory of ours that we may not read or change is made so.
 *
 * Threads: any.
 */
#ifndef MUSTER_BASE_TREE_H
#define MUSTER_BASE_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Removes all it can, and says why the first thing that stayed did. A tree that is not there is
 * fine. The directories above `path` are trusted. */
int tree_remove(const char *path, struct err *err);

/* Bytes of the disk that it takes, by what can be seen: links are not followed, what is mounted in it
 * does not count. *out_whole (NULL: nobody asks): false where a part could not be read (closed to us,
 * or 200 directories deep). 0 for one that is not there. */
int64_t tree_bytes(const char *path, bool *out_whole);

/* Makes a directory for a while, ${TMPDIR:-/tmp}/NAME-XXXXXX; *out is empty after a failure. */
int tree_scratch(const char *name, char *out, size_t size, struct err *err);

#endif
