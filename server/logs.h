/* server/logs.h - what jobs print, line by line
 *
 * The keeper writes DIR/log.N (drivers/journal.h has the format); a new file N+1 begins at 16 MB,
 * and where a log may not grow further the oldest go. A cursor is (N, offset) of the start of a
 * line; {0, 0} is the beginning. Where that is gone, a line of the system's own says how many
 * lines there were, and reading goes on with what is left.
 *
 * What has changed on the disk is not shown: the sum behind each span of lines tells it, and a line
 * of the system's own says how many bytes are missing there.
 *
 * Threads: any; nothing is kept between calls. Memory does not depend on the size of the log.
 */
#ifndef MUSTER_SERVER_LOGS_H
#define MUSTER_SERVER_LOGS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct log_cursor {
    int file;
    int64_t offset;
};

struct log_line {
    double t;                   /* Unix time */
    char stream;                /* o, e or m */
    int worker;
    const char *text;           /* not NUL-terminated; until `each` returns */
    size_t n;
    struct log_cursor at;       /* where the line begins: a stable name for it */
    struct log_cursor next;     /* and where the next one would */
};

/* Lines from the cursor on: `each` non-zero stops before that line is counted. Moves the cursor
 * past what was given. `search` NULL: all; else only lines that contain it (ASCII letters of
 * either case). A line that is still being written is left for the next call. Returns how many;
 * no log yet: 0. One call looks at LOGS_SCAN_BYTES at most, so a search that finds nothing may
 * have more to look at: it has reached the end when the cursor no longer moves. */
enum { LOGS_SCAN_BYTES = 32 << 20 };
long logs_read(const char *dir, struct log_cursor *c, const char *search,
               int (*each)(void *arg, const struct log_line *l), void *arg, struct err *err);

/* A cursor at the first line at or after time t. */
int logs_seek_time(const char *dir, double t, struct log_cursor *out, struct err *err);

/* A cursor so many lines before the end; the beginning when there are not as many. */
int logs_seek_tail(const char *dir, long lines, struct log_cursor *out, struct err *err);

/* Calls `each` with a sentence for each span that is not what was written, to the end. */
int logs_check(const char *dir, void (*each)(void *arg, const char *text), void *arg,
               int64_t *out_lines, struct err *err);

/* Bytes of all its files. */
int64_t logs_size(const char *dir);

#endif
