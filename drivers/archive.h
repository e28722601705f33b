/* drivers/archive.h - what is in a package, before anything unpacks it
 *
 * An sdist or a wheel comes from outside. It is read whole once, in a process of its own that
 * has given up its rights, and refused by name when a member climbs out of the archive, is a
 * link or a device, or when it is larger than any package has a reason to be. libarchive does
 * the reading; it is loaded when the first package comes, so that nothing else pays for it.
 */
#ifndef MUSTER_DRIVERS_ARCHIVE_H
#define MUSTER_DRIVERS_ARCHIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

enum {
    ARCHIVE_MEMBERS_MAX = 20000,
    ARCHIVE_RATIO_MAX = 200,            /* unpacked to packed; deflate reaches 1000 on zeros */
    ARCHIVE_RATIO_FREE = 16 << 20,      /* unpacked bytes below which the ratio does not matter */
};
#define ARCHIVE_BYTES_MAX (2LL << 30)   /* unpacked: PyTorch's own wheel has 1.5 GB */

struct archive_facts {
    char *requirements;         /* one a line, from its metadata; NULL: it has none to read */
    bool pyproject;             /* is built as its pyproject.toml says */
};

/* ERR_INVALID with the member. The caller frees requirements. */
int archive_check(const char *path, struct archive_facts *out, struct err *err);

/* The same on bytes at hand, in this process, for tests. */
int archive_check_bytes(const void *bytes, size_t n, const char *name, struct archive_facts *out,
                        struct err *err);

/* One text of an archive, appended to `out`: that of the member `name`, else of the only member
 * that ends in .yaml or .yml. All members together unpack to at most `max` bytes. The archive is
 * read in a process of its own, as above. */
int archive_take(const void *bytes, size_t n, const char *file, const char *name, size_t max,
                 struct buf *out, struct err *err);
/* The same in this process, for tests. */
int archive_take_bytes(const void *bytes, size_t n, const char *file, const char *name, size_t max,
                       struct buf *out, struct err *err);

/* The names that a package needs, from "requires.txt" of an egg-info or from METADATA: appended
 * to `out`, one a line, without those of extras. */
void archive_read_requires(const char *text, struct buf *out);
void archive_read_metadata(const char *text, struct buf *out);

#endif
