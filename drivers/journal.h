/* drivers/journal.h - writes what a job prints: lines with times, in files of 16 MB
 *
 * The format is in server/logs.h. A stream's bytes come in any pieces; a line is written when
 * its end is there (newline, or a carriage return alone, as progress bars have it). Memory is
 * bounded whatever is printed. When the disk is full lines are dropped and counted, the job
 * goes on, and a line says how many were lost as soon as there is room again. What is in a file
 * is whole lines, always.
 */
#ifndef MUSTER_DRIVERS_JOURNAL_H
#define MUSTER_DRIVERS_JOURNAL_H

#include <stddef.h>

#include "base/err.h"
#include "base/own.h"

struct journal;

/* Goes on with the files that are in `dir`. */
int journal_open(const char *dir, struct journal **out, struct err *err);
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
