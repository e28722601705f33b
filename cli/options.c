/* cli/options.c - the options of a command, as one table */
#include "cli/options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/near.h"
#include "spec/keys.h"
#include "spec/scan.h"

static const struct option none[] = { { 0 } };

static const struct option *find(const struct option *table, const char *name, size_t n)
{
    for (; table->name; table++)
        if (strlen(table->name) == n && !memcmp(table->name, name, n))
            return table;
    return NULL;
}

static const struct option *find_letter(const struct option *table, char letter)
{
    for (; table->name; table++)
        if (table->letter == letter)
            return table;
    return NULL;
}

static int unknown(const struct option *table, const char *arg, struct err *err)
{
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(arg + 2, "="), arg + 2);
    struct near near = near_to(name);
    for (; table->name; table++)
        near_try(&near, table->name);
    if (near.word)
        return err_set(err, ERR_INVALID, "there is no option --%s; did you mean --%s?", name,
                       near.word);
    return err_set(err, ERR_INVALID, "there is no option --%s (--help lists them)", name);
}

static int put(const struct option *o, const char *value, void *into, struct err *err)
{
    void *at = (char *)into + o->offset;

    switch (o->type) {
    case OPTION_FLAG:
        *(int *)at = 1;
        return 0;
    case OPTION_TEXT:
        *(const char **)at = value;
        return 0;
    case OPTION_INT: {
        char *end;
        errno = 0;
        long n = strtol(value, &end, 10);
        if (end == value || *end || errno)
            return err_set(err, ERR_INVALID, "--%s takes a whole number, not \"%s\"", o->name,
                           value);
        *(long *)at = n;
        return 0;
    }
    case OPTION_LIST: {
        struct option_list *list = at;
        if (list->n == OPTION_LIST_MAX)
            return err_set(err, ERR_INVALID, "--%s is given more than %d times", o->name,
                           OPTION_LIST_MAX);
        list->item[list->n++] = value;
        return 0;
    }
    }
    return 0;
}

/* The value after '=' or the letter, or else the next argument. */
static int put_with_value(const struct option *o, const char *joined, int *i, int argc,
                          char **argv, void *into, struct err *err)
{
    if (o->type == OPTION_FLAG) {
        if (joined)
            return err_set(err, ERR_INVALID, "--%s takes no value", o->name);
        return put(o, "", into, err);
    }
    if (!joined) {
        if (*i + 1 >= argc)
            return err_set(err, ERR_INVALID, "--%s needs a value: --%s %s", o->name, o->name,
                           o->value);
        joined = argv[++*i];
    }
    return put(o, joined, into, err);
}

int options_parse(const struct option *table, int argc, char **argv, void *into, struct err *err)
{
    int n = 0, rc = 0;
    table = table ? table : none;

    for (int i = 0; i < argc && rc == 0; i++) {
        char *arg = argv[i];
        if (arg[0] != '-' || !arg[1]) {
            argv[n++] = arg;
        } else if (!strcmp(arg, "--")) {
            while (++i < argc)
                argv[n++] = argv[i];
        } else if (arg[1] == '-') {
            size_t len = strcspn(arg + 2, "=");
            const struct option *o = find(table, arg + 2, len);
            if (!o)
                return unknown(table, arg, err);
            rc = put_with_value(o, arg[2 + len] ? arg + 3 + len : NULL, &i, argc, argv, into, err);
        } else {
            const struct option *o = find_letter(table, arg[1]);
            if (!o)
                return err_set(err, ERR_INVALID, "there is no option %s (--help lists them)", arg);
            rc = put_with_value(o, arg[2] ? arg + 2 : NULL, &i, argc, argv, into, err);
        }
    }
    return rc < 0 ? rc : n;
}

int workers_parse(const char *text, int *out_min, int *out_max, struct err *err)
{
    const struct key *k = key_find("", "workers");
    long long a, b;

    if (scan_whole(text, &a))
        b = a;
    else if (!scan_range(text, &a, &b) || a < 0 || b < 0)
        return err_set(err, ERR_INVALID, "workers: a number or a range such as 2..8 is wanted, not "
                       "\"%s\"", text);
    if (b < a)
        return err_set(err, ERR_INVALID, "workers: %s: the most is less than the least (write "
                       "%lld..%lld)", text, b, a);
    if (a < (long long)k->min || b > (long long)k->max)
        return err_set(err, ERR_INVALID, "workers: %s: a job has from %g to %g workers", text,
                       k->min, k->max);
    *out_min = (int)a;
    *out_max = (int)b;
    return 0;
}

void options_print(const struct option *table, FILE *to)
{
    for (; table && table->name; table++) {
        char left[80];
        snprintf(left, sizeof left, "%c%c%s--%s%s%s", table->letter ? '-' : ' ',
                 table->letter ? table->letter : ' ', table->letter ? ", " : "  ", table->name,
                 table->value ? " " : "", table->value ? table->value : "");
        fprintf(to, "  %-28s %s\n", left, table->help);
    }
}
