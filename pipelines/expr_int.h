/* pipelines/expr_int.h - the tree that an expression is read into; for expr*.c alone */
#ifndef MUSTER_PIPELINES_EXPR_INT_H
#define MUSTER_PIPELINES_EXPR_INT_H

#include "pipelines/expr.h"

enum expr_op {
    EXPR_VALUE,         /* value */
    EXPR_NAME,          /* text */
    EXPR_ITEM,          /* # of a closure */
    EXPR_MEMBER,        /* list[0] . text */
    EXPR_INDEX,         /* list[0] [ list[1] ] */
    EXPR_SLICE,         /* list[0] [ list[1] : list[2] ]; either may be a VALUE nil */
    EXPR_LIST,
    EXPR_MAP,           /* keys and values in turn */
    EXPR_CALL,          /* text ( list ) */
    EXPR_METHOD,        /* list[0] . text ( list[1..] ) */
    EXPR_CLOSURE,       /* { list[0] } */
    EXPR_NOT,
    EXPR_MINUS,
    EXPR_AND,           /* of all in the list */
    EXPR_OR,
    EXPR_COALESCE,
    EXPR_COND,          /* list[0] ? list[1] : list[2] */
    EXPR_EQ, EXPR_NE, EXPR_LT, EXPR_LE, EXPR_GT, EXPR_GE,
    EXPR_IN, EXPR_NOT_IN, EXPR_CONTAINS, EXPR_STARTS, EXPR_ENDS, EXPR_MATCHES, EXPR_NOT_MATCHES,
    EXPR_ADD, EXPR_SUB, EXPR_MUL, EXPR_DIV, EXPR_MOD, EXPR_POW,
};

struct expr_node {
    enum expr_op op;
    int depth;                  /* of what is below */
    int n, cap;
    json_t *value;
    char *text;
    struct expr_node **list;
    struct expr_node *next;     /* of all nodes of the expression, to free them */
};

/* How words are read: names of the expression language; texts of a `when`; tasks of a `depends`. */
enum expr_words { EXPR_WORDS_NAMES, EXPR_WORDS_TEXTS, EXPR_WORDS_TASKS };

struct flow_expr {
    struct expr_node *root, *all;
    enum expr_words words;
};

int expr_read(const char *text, size_t n, enum expr_words words, struct flow_expr **out,
              struct err *err);

struct expr_run {
    const struct flow_scope *scope;
    bool loose;                 /* `when`: texts that read as numbers compare as numbers */
    int steps;
    size_t made;
    const json_t *item;         /* #, borrowed; NULL: not in a closure */
    int depth;
    struct err *err;
};

/* Value of a node, a new reference. With `optional` a name that is not known is null. */
int expr_value(struct expr_run *r, const struct expr_node *n, bool optional, json_t **out);
int expr_step(struct expr_run *r, size_t made);         /* counts; ERR_INVALID: over a limit */
int expr_text_new(struct expr_run *r, const char *text, size_t n, json_t **out);
int expr_closure(struct expr_run *r, const struct expr_node *body, const json_t *item,
                 json_t **out);
bool expr_equal(bool loose, const json_t *a, const json_t *b);
int expr_order(struct expr_run *r, const json_t *a, const json_t *b, int *out);
int expr_matches(struct expr_run *r, const char *text, const char *pattern, bool *out);
bool expr_number(const char *text, json_t **out);       /* the whole text is a number */

/* Calls `name` (of `n` arguments; closures are not evaluated); ERR_MISSING: no such function. */
int expr_call(struct expr_run *r, const char *name, struct expr_node *const *args, int n,
              json_t *self, json_t **out);
bool expr_known_call(const char *name);

/* jsonpath: $.a.b['c'][0][1:3][*][?(@.x > 1)]..name; one match is its value, several a list. */
int expr_json_path(struct expr_run *r, const json_t *doc, const char *path, json_t **out);

#endif
