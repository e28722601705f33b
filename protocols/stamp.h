/* protocols/stamp.h - times as Google's APIs write them: RFC 3339, in UTC, "...Z"
 *
 * Inside, a time is nanoseconds since 1970: a double of seconds cannot tell two of them apart that
 * a client's text can.
 */
#ifndef MUSTER_PROTOCOLS_STAMP_H
#define MUSTER_PROTOCOLS_STAMP_H

#include <stdint.h>

enum { STAMP_SIZE = 40 };

/* "2026-11-15T17:25:01.123456Z": always six digits, so that two of them compare as texts do. */
void stamp_format(int64_t ns, char out[STAMP_SIZE]);
int64_t stamp_of(double seconds); /* to the microsecond */

/* With any number of digits, and Z or an offset such as +02:00; a day alone is its first moment. 0,
 * or -1: it is no time, or one outside of the years 1678 to 2261. */
int stamp_parse(const char *text, int64_t *out_ns);

#endif
