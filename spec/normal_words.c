/* spec/normal_words.c - the sentences that a wrong spec gets
 *
 * Each begins with the place and mostly the path; what was found is quoted, and where it is known
 * what was meant, that is said too.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "spec/normal_int.h"
#include "spec/scan.h"

enum { PLACE = 160, PATH = 160 };      /* leaves room for the sentence in struct err */

/* "file:12:5: model[3].linear.out: " for a value, written once for all messages. */
static void where(const struct reader *r, const struct value *v, int of_key, char *out, size_t size)
{
    char place[PLACE], path[PATH];

    value_place(v, r->file, of_key, place, sizeof place);
    value_path(v, path, sizeof path);
    snprintf(out, size, "%s: %s%s", place, path, *path ? ": " : "");
}

/* What was found, for "expected ..., got ...". */
static void got(const struct value *v, char *out, size_t size)
{
    if (value_is_null(v))
        snprintf(out, size, "nothing");
    else if (v->kind != VALUE_SCALAR && !v->n)
        snprintf(out, size, "an empty %s", v->kind == VALUE_LIST ? "list" : "map");
    else if (v->kind == VALUE_LIST)
        snprintf(out, size, "a list of %d", v->n);
    else if (v->kind == VALUE_MAP)
        snprintf(out, size, "a map");
    else
        snprintf(out, size, "\"%.40s%s\"", v->text, strlen(v->text) > 40 ? "..." : "");
}

int normal_wrong(const struct reader *r, const struct value *v, const char *expected,
                 struct err *err)
{
    char at[PLACE + PATH + 8], found[64];

    where(r, v, 0, at, sizeof at);
    got(v, found, sizeof found);
    return err_set(err, ERR_INVALID, "%sexpected %s, got %s", at, expected, found);
}

/* What makes a value that looks right wrong, and how to write it. */
static void hint(const struct reader *r, const struct key *k, const struct value *v, char *out,
                 size_t size)
{
    const char *t = v->kind == VALUE_SCALAR ? v->text : "";
    size_t sign = *t == '-' || *t == '+';
    double x;

    out[0] = 0;
    if (k->kind == KEY_BOOL || k->kind == KEY_HEADER || k->kind == KEY_SHUFFLE) {
        if (key_is_word("yes|Yes|YES|on|On|ON|True|TRUE|y|Y", t))
            snprintf(out, size, " (write true)");
        else if (key_is_word("no|No|NO|off|Off|OFF|False|FALSE|n|N", t))
            snprintf(out, size, " (write false)");
        return;
    }
    int whole = k->kind == KEY_WHOLE || k->kind == KEY_PAIR || k->kind == KEY_WHOLES;
    if ((!whole && k->kind != KEY_NUMBER && k->kind != KEY_NUMBERS) || !*t)
        return;
    if (t[strspn(t + sign, "0123456789_") + sign] == 0 && strchr(t, '_'))
        snprintf(out, size, " (write it without \"_\")");
    else if (strncmp(t + sign, "0x", 2) == 0 || strncmp(t + sign, "0o", 2) == 0)
        snprintf(out, size, " (write it in decimal)");
    else if (t[strspn(t + sign, "0123456789.,") + sign] == 0 && strchr(t, ','))
        snprintf(out, size, " (write it with a point and without other marks)");
    else if (!scan_number(t, r->c, &x))
        return;
    else if (!v->plain)
        snprintf(out, size, " (write it without quotes)");
    else if (x > k->max && k->max > 1e9)        /* a limit that the sentence does not tell */
        snprintf(out, size, " (at most %.0f)", k->max);
    else if (whole && t[sign] == '0' && t[sign + 1] >= '0' && t[sign + 1] <= '9')
        snprintf(out, size, " (write it without the leading zero)");
    else if (whole && x == floor(x) && fabs(x) < 1e15 && strpbrk(t, ".eE"))
        snprintf(out, size, " (write %.0f)", x);
}

int normal_wrong_key(const struct reader *r, const struct key *k, const struct value *v,
                     struct err *err)
{
    char expected[256], more[100];

    key_expected(k, expected, sizeof expected);
    hint(r, k, v, more, sizeof more);
    normal_wrong(r, v, expected, err);
    size_t n = strlen(err->text);
    snprintf(err->text + n, sizeof err->text - n, "%s", more);
    return -(int)err->code;
}

int normal_unknown_word(const struct reader *r, const struct value *v, const char *what,
                        const char *near, struct err *err)
{
    char at[PLACE + PATH + 8];

    where(r, v, 0, at, sizeof at);
    if (near)
        return err_set(err, ERR_INVALID, "%sunknown %s \"%.40s\" (did you mean \"%s\"?)", at, what,
                       v->text, near);
    return err_set(err, ERR_INVALID, "%sunknown %s \"%.40s\"", at, what, v->text);
}

int normal_wants_graph(const struct reader *r, const struct value *v, const char *word,
                       struct err *err)
{
    char place[PLACE];

    value_place(v, r->file, 1, place, sizeof place);
    return err_set(err, ERR_INVALID, "%s: \"%s\" wants a graph, model: {nodes: {...}}, where a "
                   "node may read several others", place, word);
}

/* The head in whose map a key belongs that was written beside it: {sgd: {lr: 1}} for {lr: 1}. The
 * one that is there comes first. */
static const struct key *inner_head(const struct value *child, const char *map)
{
    const struct key *first = NULL;

    for (const struct key *k = key_next(map, NULL); k; k = key_next(map, k)) {
        if (!(k->flags & KEY_HEAD) || k->kind != KEY_MAP || !key_find(k->of, child->key))
            continue;
        if (value_find(child->parent, k->name))
            return k;
        first = first ? first : k;
    }
    return first;
}

int normal_unknown_key(const struct reader *r, const struct value *child, const char *map,
                       const char *near, struct err *err)
{
    char place[PLACE], in[80] = "";

    value_place(child, r->file, 1, place, sizeof place);
    if (*map)
        snprintf(in, sizeof in, " in %s", key_map_words(map));
    if (strcmp(map, "layer") == 0 && key_find("node", child->key))
        return normal_wants_graph(r, child, child->key, err);
    const struct key *inner = inner_head(child, map);
    if (inner)
        return err_set(err, ERR_INVALID, "%s: unknown key \"%.40s\"%s (it belongs inside: "
                       "{%s: {%s: ...}})", place, child->key, in, inner->name, child->key);
    const char *home = near ? NULL : key_home(child->key);
    if (near || home)
        return err_set(err, ERR_INVALID, near ? "%s: unknown key \"%.40s\"%s (did you mean \"%s\"?)"
                                              : "%s: unknown key \"%.40s\"%s (it belongs in %s)",
                       place, child->key, in, near ? near : home);
    return err_set(err, ERR_INVALID, "%s: unknown key \"%.40s\"%s", place, child->key, in);
}

/* "one of norm, value": the heads of a map. */
int normal_wrong_head(const struct reader *r, const char *map, const struct value *v,
                      struct err *err)
{
    char expected[400] = "one of ";
    size_t at = strlen(expected);
    const char *glue = "";

    for (const struct key *k = key_next(map, NULL); k; k = key_next(map, k))
        if ((k->flags & KEY_HEAD) && at < 300) {
            at += (size_t)snprintf(expected + at, sizeof expected - at, "%s%s", glue, k->name);
            glue = ", ";
        }
    return normal_wrong(r, v, expected, err);
}

int normal_missing(const struct reader *r, const char *map, const struct key *k,
                   const struct value *v, struct err *err)
{
    char at[PLACE + PATH + 8], expected[256];

    where(r, v, v->key != NULL, at, sizeof at);
    key_expected(k, expected, sizeof expected);
    return err_set(err, ERR_INVALID, "%s%s needs \"%s\": %s, %s", at, key_map_words(map), k->name,
                   expected, k->why);
}

int normal_misplaced(const struct reader *r, const struct key *k, const struct value *v,
                     struct err *err)
{
    char at[PLACE + PATH + 8], formats[64];

    where(r, v, 1, at, sizeof at);
    key_word_list(k->when, formats, sizeof formats);
    return err_set(err, ERR_INVALID, "%s%s data has no \"%s\" (only %s has)", at, r->format,
                   k->name, formats);
}

/* A name of the user's own, of a feature, a column or a node. */
int normal_check_name(const struct reader *r, const struct value *v, struct err *err)
{
    char place[PLACE];

    if (*v->key && strlen(v->key) <= KEY_OWN_NAME_MAX)
        return 0;
    value_place(v, r->file, 1, place, sizeof place);
    return err_set(err, ERR_INVALID, "%s: expected a name of 1 to %d bytes, got \"%.40s%s\"", place,
                   KEY_OWN_NAME_MAX, v->key, *v->key ? "..." : "");
}

int normal_two_heads(const struct reader *r, const struct value *v, const struct key *other,
                     struct err *err)
{
    char at[PLACE + PATH + 8];

    where(r, v, 1, at, sizeof at);
    return err_set(err, ERR_INVALID, "%s\"%s\" beside \"%s\": give one of them", at, v->key,
                   other->name);
}
