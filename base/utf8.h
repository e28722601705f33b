/* base/utf8.h - is a text UTF-8, and if not, what is it?
 *
 * What comes from outside as text is checked where it is read: everything that muster writes later
 * (model.json, answers, events) is UTF-8, and a text that is not could not be written any more. A
 * zero byte is refused with the rest: it would end the text for whoever reads it back.
 */
#ifndef MUSTER_BASE_UTF8_H
#define MUSTER_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { UTF8_WHY = 160 };

/* The length of the sequence at the start of `s` (n > 0 bytes); 0: there is none. Overlong ones,
 * halves of surrogate pairs and what is beyond U+10FFFF are none. */
size_t utf8_length(const char *s, size_t n);

/* Where the first byte is that is no part of a UTF-8 text; n: all of it is one. */
size_t utf8_check(const char *s, size_t n);

/* The end of a sentence that begins with the text's place: what is wrong at `at` (utf8_check), and
 * the way out. */
void utf8_say(const char *s, size_t n, size_t at, char out[UTF8_WHY]);

/* "UTF-16" or "UTF-32" with its byte order, when the beginning of a file shows it: by a byte order
 * mark, or by zeros where Latin letters have them. NULL: it does not. */
const char *utf8_sniff(const char *head, size_t n);

/* True when any of 8 bytes is zero or not ASCII: a look that costs next to nothing. */
static inline bool utf8_odd(uint64_t word)
{
    const uint64_t high = UINT64_C(0x8080808080808080), ones = UINT64_C(0x0101010101010101);

    return ((word - ones) | word) & high;
}

#endif
