/* spec/yaml.h - YAML text as a tree that remembers where each value stands
 *
 * A scalar keeps its text: what `1`, `no` or `1e-3` means is decided by the key it is the value
 * of (spec/keys.c), never guessed from its looks, so that the label `no` stays a text. Aliases are
 * copied, and every copy counts against VALUE_MAX: a document cannot grow beyond it however it is
 * written. Refused: more than one document (yaml_parse_all reads several), a key twice in a map,
 * tags, merge keys, bytes that are not UTF-8. Not thread safe; a tree is owned by its root.
 */
#ifndef MUSTER_SPEC_YAML_H
#define MUSTER_SPEC_YAML_H

#include <stddef.h>

#include "base/err.h"
#include "base/own.h"

enum {
    YAML_BYTES_MAX = 4 << 20,   /* a spec with a 100,000-word vocabulary has 2 MB */
    VALUE_MAX = 400000,         /* values in a document, copies of aliases included */
    VALUE_DEPTH_MAX = 32,       /* the vocabulary itself is 7 deep */
    VALUE_KEYS_MAX = 5000,      /* in one map; finding a second use compares each with each */
    YAML_ANCHORS_MAX = 1000,
    YAML_DIRECTIVES_MAX = 16,   /* %TAG lines, which libyaml compares each with each */
};

enum value_kind { VALUE_SCALAR, VALUE_LIST, VALUE_MAP };

struct value {
    enum value_kind kind;
    int plain;                  /* a scalar without quotes: may be a number, a bool, nothing */
    char *text;                 /* of a scalar */
    char *key;                  /* in a map: its name there */
    int line, column;           /* of the value, from 1 */
    int key_line, key_column;
    const char *set;            /* the --set argument it came from (borrowed), or NULL: the file */
    struct value *parent, *next, *child, *last;
    int n;                      /* children */
};

/* `name` stands for the text in messages: "name:line:column: ...". `set` marks every value. */
int yaml_parse(const char *text, size_t n, const char *name, const char *set, struct value **out,
               struct err *err);

/* For texts that are no specs: their own limits, and any number of documents. */
struct yaml_limits {
    const char *what;           /* "a spec": stands in messages */
    size_t bytes_max;
    int values_max;             /* of all documents together */
};

/* The documents of a text in order, as the children of a list; each is the root of its own tree
 * (its parent is NULL). */
int yaml_parse_all(const char *text, size_t n, const char *name, const struct yaml_limits *limits,
                   struct value **out, struct err *err);

struct value *value_new(enum value_kind kind);             /* NULL: no memory */
struct value *value_scalar(const char *text, int plain);
void value_free(struct value *value);                      /* with all below; NULL is fine */
OWN_DEFINE(value)

/* Borrowed; NULL: there is none. */
struct value *value_find(const struct value *map, const char *key);
struct value *value_item(const struct value *list, int i);

/* Appends `child` to a map (with a key, copied) or a list (key NULL). 0, or -1: no memory; the
 * child is taken either way. */
int value_append(struct value *parent, const char *key, struct value *child);
void value_remove(struct value *child);                   /* from its parent, and frees it */
/* Makes `value` hold what `from` holds, in the same place of the tree. Frees `from`. */
void value_replace(struct value *value, struct value *from);

int value_is_null(const struct value *value);              /* plain and empty, ~ or null */

/* "model[3].conv2d.out", cut where it does not fit. */
void value_path(const struct value *value, char *out, size_t size);
/* "file:12:5" of the value or of its key, or "--set batch=x". */
void value_place(const struct value *value, const char *file, int of_key, char *out, size_t size);

#endif
