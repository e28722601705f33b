/* pipelines/expr.h - expressions of the languages of pipelines: `when`, `depends` and {{=...}} of
 * Argo, trigger conditions of kfp 2
 *
 * One grammar, lowest binding first:
 *     a ? b : c    a ?? b    || or    && and    not
 *     == != < <= > >= in contains startsWith endsWith matches =~ !~
 *     + -    * / %    **    ! - + (prefix)    a.field a['field'] a[i] a[i:j] f(a, b) a | f(b)
 * Literals: numbers, "texts", 'texts', true, false, nil (null), [lists], {maps: values}. A closure
 * is the last argument of filter, map, all, any, one, none, count, find: {# > 1}, {.size == 1}. A
 * call written as a method, x.f(a), is f(x, a) where no name x.f is known.
 *
 * Values are JSON. Functions are a table (expr_calls.c), those of sprig too as far as Argo's own
 * examples use them.
 *
 * An expression comes from outside: its depth, the steps that an evaluation takes and the size of
 * what it makes have limits, and ERR_INVALID says which was passed.
 *
 * Threads: an expression does not change after it was read and may be evaluated by many.
 */
#ifndef MUSTER_PIPELINES_EXPR_H
#define MUSTER_PIPELINES_EXPR_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/own.h"

enum {
    FLOW_EXPR_LENGTH_MAX = 64 << 10,    /* bytes of an expression */
    FLOW_EXPR_DEPTH_MAX = 100,          /* of parentheses, prefixes, lists */
    FLOW_EXPR_STEPS_MAX = 1 << 20,      /* of one evaluation */
    FLOW_EXPR_MADE_MAX = 8 << 20,       /* bytes of values that one evaluation makes */
};

struct flow_expr;

/* ERR_INVALID names the position in the text and what was expected there. */
int flow_expr_parse(const char *text, size_t n, struct flow_expr **out, struct err *err);
void flow_expr_free(struct flow_expr *e);
OWN_DEFINE(flow_expr)

/* Argo's `depends`: && || ! ( ) over names of tasks, "a-b" or "a-b.Succeeded". Each is one name, as
 * it stands. */
int flow_expr_parse_depends(const char *text, struct flow_expr **out, struct err *err);

/* Value of a name. `path` is dotted, also where the text has brackets: tasks['a'].outputs.result is
 * "tasks.a.outputs.result". The longest path is asked for first, then shorter ones, whose value the
 * rest is looked up in. Returns a new reference; NULL: not known (an error, but for nil where ?? or
 * a comparison with nil follows). */
struct flow_scope {
    json_t *(*get)(void *arg, const char *path);
    void *arg;
};
int flow_expr_eval(const struct flow_expr *e, const struct flow_scope *s, json_t **out,
                   struct err *err);

/* A value as a condition: a boolean, or a text "true" or "false"; ERR_INVALID for others. */
int flow_expr_truth(const json_t *value, bool *out, struct err *err);

/* Every name that occurs, whole ("tasks.a.outputs.result"; up to the first index that is not a
 * constant), for validation. `each` returns 0 to go on; what it returns else is returned. */
int flow_expr_names(const struct flow_expr *e, int (*each)(void *arg, const char *path), void *arg);

/* A value as the text that stands for it: a JSON text as it is, others as compact JSON. Caller
 * frees; NULL: no memory. */
char *flow_expr_text(const json_t *value);

/* Appends the text with each {{tag}} and {{=expression}} replaced by its value's text. A tag whose
 * name is not known is an error, but those that `keep` (NULL: none) accepts stay as they are. */
int flow_expr_fill(const char *text, const struct flow_scope *s, bool (*keep)(const char *tag),
                   struct buf *out, struct err *err);

/* Each tag of a text in order, for validation: trimmed, of an expression what follows the "=".
 * `each` returns 0 to go on; what it returns else is returned. */
int flow_expr_tags(const char *text, int (*each)(void *arg, const char *tag, bool expression),
                   void *arg, struct err *err);

/* Argo's `when`: tags are filled first (texts unquoted, as they are), then the whole is evaluated,
 * where bare words are texts: `heads == heads`. A text that reads as a number compares as a number
 * with a number. */
int flow_expr_when(const char *text, const struct flow_scope *s, bool *out, struct err *err);

/* Whether the text can be a `when` (tags stand for words); for validation. */
int flow_expr_check_when(const char *text, struct err *err);

#endif
