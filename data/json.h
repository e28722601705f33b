/* data/json.h - one JSON object a line
 *
 * A small reader for flat rows: {"fare": 12.5, "company": "Flash Cab", "tips": null}. Strings and
 * numbers keep the text they are written with, so that 12 in JSON and 12 in CSV are the same value
 * of a vocabulary or a hash. Values of other kinds are taken only where a list of numbers is
 * wanted; depth and length are bounded.
 *
 * Threads: any; json_object keeps nothing.
 */
#ifndef MUSTER_DATA_JSON_H
#define MUSTER_DATA_JSON_H

#include <stddef.h>

#include "base/err.h"

enum { JSON_LINE_MAX = 16 << 20, JSON_NEST_MAX = 64 };

enum json_kind {
    JSON_KIND_NULL,
    JSON_KIND_BOOL,
    JSON_KIND_NUMBER,
    JSON_KIND_STRING,
    JSON_KIND_LIST,
    JSON_KIND_OBJECT
};

/* A value of the object. `text` is the decoded string, or the number as written; for a list, its
 * source text, [ and ] included. */
struct json_value {
    enum json_kind kind;
    const char *text;
    size_t n;
};

/* Calls `member` for each member of the object in text[0..n), in order. Strings are decoded in
 * place, so the text is changed. ERR_INVALID says what is wrong at which character. */
int json_object_read(char *text, size_t n,
                     int (*member)(void *ctx, const char *key, size_t key_n,
                                   const struct json_value *value, struct err *err),
                     void *ctx, struct err *err);

/* The numbers of a list's source text, nested lists one after the other. Returns how many, at most
 * `most` of them stored; -1 when something in it is not a number. */
long json_list_numbers(const char *text, size_t n, double *out, long most);

#endif
