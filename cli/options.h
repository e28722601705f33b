/* cli/options.h - the options of a command, as one table
 *
 * Parsing, help and "did you mean" are loops over it. Values land in the command's own struct, at
 * the offset that the row gives; what was not on the command line stays as it was, so defaults are
 * the struct's initial values:
 *
 *     struct args { const char *out; long threads; int json; struct option_list set; };
 *     #define AT(field) offsetof(struct args, field)
 *     static const struct option options[] = {
 *         { "out",     'o', "DIR",       "put the run there", OPTION_TEXT, AT(out) },
 *         { "threads", 0,   "N",         "0: all cores",      OPTION_INT,  AT(threads) },
 *         { "json",    0,   NULL,        "one object a line", OPTION_FLAG, AT(json) },
 *         { "set",     0,   "KEY=VALUE", "change the spec",   OPTION_LIST, AT(set) },
 *         { 0 }
 *     };
 *
 * Accepted: --out DIR, --out=DIR, -o DIR, -oDIR, --json; options and arguments in any order; after
 * "--" everything is an argument, and so is "-" (standard input).
 */
#ifndef MUSTER_CLI_OPTIONS_H
#define MUSTER_CLI_OPTIONS_H

#include <stddef.h>
#include <stdio.h>

#include "base/err.h"

enum option_type {
    OPTION_FLAG,        /* int, set to 1 */
    OPTION_TEXT,        /* const char *, borrowed from argv; the last one wins */
    OPTION_INT,         /* long */
    OPTION_LIST,        /* struct option_list, one item each time */
};

enum { OPTION_LIST_MAX = 64 };
struct option_list {
    const char *item[OPTION_LIST_MAX];
    int n;
};

/* A table ends with a row without a name. */
struct option {
    const char *name;           /* without the dashes */
    char letter;                /* 0: no short form */
    const char *value;          /* what stands for the value in the help; NULL for a flag */
    const char *help;           /* one line, no full stop */
    enum option_type type;
    size_t offset;
};

/* Fills `into`, moves the arguments that are no options to argv[0], argv[1] ... and returns how
 * many there are, or -ERR_INVALID. `table` NULL: no options. */
int options_parse(const struct option *table, int argc, char **argv, void *into, struct err *err);

/* The value of --workers, a number or a range as for the spec's key: "3" is 3 and 3, "2..8" is 2
 * and 8. The outputs are untouched on failure. */
int workers_parse(const char *text, int *out_min, int *out_max, struct err *err);

/* The rows as two columns, for the help. */
void options_print(const struct option *table, FILE *to);

#endif
