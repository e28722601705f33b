/* protocols/filter.h - the filters of Google's list calls: jobId:census* AND state=FAILED
 *
 *     expression := any { [AND] any }        two terms side by side are both meant
 *     any        := term { OR term }         OR binds closer than AND, as it does there
 *     term       := { NOT | - } ( "(" expression ")" | path op value | path op "(" values ")" )
 *     op         := = != > >= < <= :       ":" is "has": a part of a text; x* its beginning, * any
 *     value      := word | "text with \" in it"
 *
 * A filter is parsed once and asked about many things. What a path means is the asker's: `get`
 * fills in a value, or leaves it FILTER_NONE, and then only != and NOT are true of it. The constant
 * on the right is read as the left side calls for: as a text, a number, a time, a severity.
 *
 * Not taken, and said so: regular expressions (=~, !~), a word alone, functions. Limits: 20,000
 * bytes (as there), 1,000 terms, 32 deep. Threads: parsed, it never changes.
 */
#ifndef MUSTER_PROTOCOLS_FILTER_H
#define MUSTER_PROTOCOLS_FILTER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/own.h"

enum { FILTER_BYTES_MAX = 20000, FILTER_TERMS_MAX = 1000, FILTER_DEPTH_MAX = 32 };

enum filter_kind { FILTER_NONE, FILTER_TEXT, FILTER_NUMBER, FILTER_TIME, FILTER_SEVERITY };
struct filter_value {
    enum filter_kind kind;
    const char *text; /* FILTER_TEXT: borrowed while it is compared */
    double number; /* FILTER_NUMBER; FILTER_SEVERITY: filter_severity of it */
    int64_t time; /* FILTER_TIME: nanoseconds (protocols/stamp.h) */
};

struct filter;
/* "" and NULL match everything. ERR_INVALID says where: "filter, at character 12: ...". */
int filter_parse(const char *text, struct filter **out, struct err *err);
void filter_free(struct filter *f);
OWN_DEFINE(filter)

bool filter_match(const struct filter *f,
                  void (*get)(void *arg, const char *path, struct filter_value *out), void *arg);

/* What has to be true of all that matches, for those who can look it up: the text that `path`
 * equals (or has, when out_part is set to true), NULL when the filter does not say. Borrowed. */
const char *filter_wants(const struct filter *f, const char *path, bool *out_part);
/* Nothing outside of [*from, *to) matches by its time `path`; INT64_MIN, INT64_MAX: no bound. */
void filter_times(const struct filter *f, const char *path, int64_t *from, int64_t *to);

/* DEFAULT 0, DEBUG 100 ... EMERGENCY 800; -1: no such word. */
int filter_severity(const char *word);

#endif
