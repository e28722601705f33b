/* drivers/journal.h - writes what a job prints: lines with times, in files of 16 MB
 *
 * A stream's bytes come in any pieces; a line is written when its end is there (newline, or a
 * carriage return alone, as progress bars have it). Memory is bounded whatever is printed. When
 * the disk is full lines are dropped and counted, the job goes on, and a line says how many were
 * lost as soon as there is room again. What is in a file is whole lines, always.
 *
 * The format of DIR/log.N, which server/logs.c reads:
 *
 *     file = 0x03 LINES-BEFORE "\n" line...       how many lines the files before it had
 *     line = [full | near] TEXT "\n"              neither: stream and time of the line before
 *     full = 0x01 STREAM WORKER " " SECONDS "." MICROS " "
 *     near = 0x02 STREAM DIGIT DIGIT DIGIT DIGIT  microseconds since the last full's, base 64
 *                                                 from '0' on; the worker is that full's
 *
 * STREAM is o, e, or m for the system's own words. TEXT is UTF-8 without control characters but tab
 * and escape; a line longer than 64 kB is cut into pieces marked by a trailing backslash. The first
 * line of a file is a full one, and so is one in every 16 kB, so that a reader may begin anywhere.
 * Lines that came in one read share a head: a million of "x" take 2 MB. Times never go back.
 */
#ifndef MUSTER_DRIVERS_JOURNAL_H
#define MUSTER_DRIVERS_JOURNAL_H

#include <stddef.h>

#include "base/err.h"
#include "base/own.h"
#include "drivers/mask.h"

enum { JOURNAL_FULL = 1, JOURNAL_NEAR = 2, JOURNAL_LINES = 3, JOURNAL_DIGIT = '0' };

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
