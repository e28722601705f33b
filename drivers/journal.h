/* drivers/journal.h - writes what a job prints: lines with times, in files of 16 MB
 *
 * A stream's bytes come in any pieces; a line is written when its end is there (newline, or a
 * carriage return alone, as progress bars have it). Memory is bounded whatever is printed. When
 * the disk is full lines are dropped and counted, the job goes on, and a line says how many were
 * lost as soon as there is room again. What is in a file is whole spans, always.
 *
 * The format of DIR/log.N, which server/logs.c reads:
 *
 *     file = head span...
 *     head = 0x05 LINES-BEFORE "\n" sum           how many lines the files before it had
 *     span = line... sum                          what one write holds, or some 32 kB of it
 *     sum  = 0x04 DIGIT*6 "\n"                    CRC-32C of what is between it and the sum before
 *     line = [full | near] TEXT "\n"              neither: stream and time of the line before
 *     full = 0x01 STREAM WORKER " " SECONDS "." MICROS " "
 *     near = 0x02 STREAM DIGIT*4                  microseconds since the last full's; the worker is
 *                                                 that full's
 *
 * DIGITs are base 64 from '0' on, the highest first. STREAM is o, e, or m for the system's own words.
 * TEXT is UTF-8 without control characters but tab and escape; a line longer than 64 kB is cut into
 * pieces marked by a trailing backslash. A span begins with a full line: a reader may begin with any,
 * and what is wrong with one says nothing of the next. Lines that came in one read share a head: a
 * million of "x" take 2 MB. Times never go back.
 *
 * Files of a muster before there were sums begin with 0x03 and have none; they are read as they are.
 */
#ifndef MUSTER_DRIVERS_JOURNAL_H
#define MUSTER_DRIVERS_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/own.h"
#include "drivers/mask.h"

enum { JOURNAL_FULL = 1, JOURNAL_NEAR = 2, JOURNAL_LINES = 3, JOURNAL_SUM = 4, JOURNAL_HEAD = 5,
       JOURNAL_DIGIT = '0', JOURNAL_SUM_BYTES = 8,
       JOURNAL_SPAN_MAX = 256 << 10 };  /* with its sum; a line has 192 kB at most */

/* The first sum from p on, whole; NULL: there is none. */
const char *journal_sum_from(const char *p, const char *end);
/* Whether what is before a sum, from p on, is what was written. */
bool journal_sum_right(const char *p, const char *sum);

struct journal;

/* Goes on after the files that are in `dir`, in a new one. */
int journal_open(const char *dir, struct journal **out, struct err *err);
/* So many bytes may be kept; 0, as at the start: any. Beyond it the oldest files go; the first
 * that is left says how many lines there were before it. */
void journal_limit(struct journal *j, long long bytes);
/* Words that are masked from now on, in all that is written; borrowed. NULL, as at the start: none. */
void journal_mask(struct journal *j, const struct mask *m);
/* Of a log that nobody writes: the oldest files go until no more than so many bytes are left.
 * Returns how many are. */
long long journal_trim(const char *dir, long long bytes);
/* Writes what is left, unfinished lines too. */
void journal_free(struct journal *j);
OWN_DEFINE(journal)

/* `stream` is 'o' or 'e'. */
void journal_feed(struct journal *j, char stream, const char *bytes, size_t n);
/* A line of our own (stream 'm'). */
void journal_say(struct journal *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* To the file, so that readers see it. */
void journal_flush(struct journal *j);
/* Unfinished lines too: the stream has ended. */
void journal_end_lines(struct journal *j);

long long journal_lines(const struct journal *j);
long long journal_dropped(const struct journal *j);

#endif
