/* data/expr.h - a derived column: "tips > 0.2 * fare"
 *
 * An expression over columns, numbers and a few functions, compiled once and evaluated for each
 * row. Values are doubles; a missing value is a NaN and makes everything that reads it missing.
 * Comparisons and logic give 1 or 0.
 *
 *   lowest   ||    &&    == != < <= > >=    + -    * / %    - ! (prefix)   highest
 *   min(a, b)  max(a, b)  abs(a)  log(a)  exp(a)  sqrt(a)  floor(a)
 *
 * A column whose name is not a plain word is written in backquotes: `trip miles`.
 * The result does not depend on the machine (data/elementary.h).
 *
 * Threads: an expression does not change after expr_parse and may be evaluated by many.
 */
#ifndef MUSTER_DATA_EXPR_H
#define MUSTER_DATA_EXPR_H

#include <stddef.h>

#include "base/err.h"
#include "base/own.h"

enum { EXPR_DEPTH_MAX = 64, EXPR_COLUMNS_MAX = 64, EXPR_LENGTH_MAX = 4096 };

struct expr;

/* ERR_INVALID names the position in the text and what was expected there. */
int expr_parse(const char *text, struct expr **out, struct err *err);
void expr_free(struct expr *e);
OWN_DEFINE(expr)

/* The columns that it reads, each once, in the order of their first use; borrowed. */
int expr_n_columns(const struct expr *e);
const char *expr_column(const struct expr *e, int i);

/* value[i] belongs to expr_column(i). */
double expr_eval(const struct expr *e, const double *value);

/* True where the outermost operator is a comparison or logic: the values are 0 and 1. */
int expr_is_boolean(const struct expr *e);

#endif
