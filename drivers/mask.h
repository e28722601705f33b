/* drivers/mask.h - words that must not show in a log: they are written as "***"
 *
 * A secret is masked whole, and each line of one that has several. Lines of fewer than MASK_LEAST
 * bytes are left alone: hiding every "1" of a log tells the secret as well. Encoded forms of a
 * secret (base64, percent) are other words and are not found.
 */
#ifndef MUSTER_DRIVERS_MASK_H
#define MUSTER_DRIVERS_MASK_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/own.h"

enum { MASK_LEAST = 4, MASK_MOST = 4096 };      /* bytes of a word; a longer one is cut up */

struct mask;

struct mask *mask_new(void);    /* NULL: no memory */
void mask_free(struct mask *m);
OWN_DEFINE(mask)

/* False: no memory. */
bool mask_add(struct mask *m, const char *secret);

/* Bytes of the longest word; 0: there is none. */
size_t mask_longest(const struct mask *m);

/* NULL for m is fine: nothing is found. */
bool mask_finds(const struct mask *m, const char *text, size_t n);
/* Appends the text, masked. Words that begin at `until` or behind it are left for later: of a text
 * that goes on, they may be the beginning of longer ones. */
void mask_apply(const struct mask *m, const char *text, size_t n, size_t until, struct buf *out);

#endif
