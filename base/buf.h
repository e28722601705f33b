/* base/buf.h - a byte buffer that grows
 *
 *     struct buf b = BUF_INIT;
 *     buf_printf(&b, "%d rows", n);
 *     ... b.data, b.n ...
 *     buf_done(&b);
 * Invariant: data[n] is NUL whenever data is not NULL, so that text needs no care. A buffer that
 * could not grow sets `failed`, drops what did not fit and keeps taking calls: check once, at the
 * end (buf_ok, or buf_take). Not thread safe.
 */
#ifndef MUSTER_BASE_BUF_H
#define MUSTER_BASE_BUF_H

#include <stdarg.h>
#include <stddef.h>

#include "base/err.h"

struct buf {
    char *data;
    size_t n, cap;
    int failed;
};
#define BUF_INIT { NULL, 0, 0, 0 }
#define OWN_BUF __attribute__((cleanup(buf_done))) struct buf

void buf_init(struct buf *b);
void buf_done(struct buf *b);           /* frees; the buffer is empty and usable again */
void buf_clear(struct buf *b);          /* forgets the bytes, keeps the memory */

/* Returns where `n` more bytes may be written (then add them to b->n), NULL: no memory. */
char *buf_reserve(struct buf *b, size_t n);
void buf_append(struct buf *b, const void *data, size_t n);
void buf_text(struct buf *b, const char *text);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ERR_NOMEM when anything was dropped. */
int buf_ok(const struct buf *b, struct err *err);

/* Hands the bytes over (never NULL when nothing failed) and empties the buffer; NULL: failed. */
char *buf_take(struct buf *b);

#endif
