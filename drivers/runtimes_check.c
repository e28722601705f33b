/* drivers/runtimes_check.c - a key of runtimes.yaml that nobody reads is a mistake, and is told
 * with its line */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/near.h"
#include "drivers/runtimes_int.h"

enum type { BOOL, TEXT, TEXTS, SIZE, USER };
static const char *const takes[] = { "true or false", "a text", "a list of texts",
                                     "a number, 0 or more", "\"image\"" };

static const struct key { const char *name; enum type type; } runtime_keys[] = {
    { "python", TEXT }, { "system", BOOL }, { "requirements", TEXTS }, { 0 } },
  image_keys[] = {
    { "python", TEXT }, { "system", BOOL }, { "requirements", TEXTS }, { "plain", BOOL },
    { "pull", BOOL }, { "container", BOOL }, { "user", USER }, { 0 } },
  environment_keys[] = { { "days", SIZE }, { "size", SIZE }, { 0 } },
  user_keys[] = { { "first", SIZE }, { "last", SIZE }, { 0 } };

/* Tiers and folders are looked at where they are read (runtimes_tiers, runtimes_sandbox). */
static const struct part { const char *name, *row; const struct key *keys; bool rows; } parts[] = {
    { "runtimes", "a runtime", runtime_keys, true }, { "images", "an image", image_keys, true },
    { "tiers", NULL, NULL, true }, { "environments", "environments", environment_keys, false },
    { "users", "users", user_keys, false }, { "expose", NULL, NULL, false } };
enum { PARTS = sizeof parts / sizeof parts[0] };

static bool fits(const struct value *v, enum type type)
{
    if (type == TEXTS) {
        for (const struct value *item = v->child; item; item = item->next)
            if (!item->text)
                return false;
        return v->kind == VALUE_LIST || value_is_null(v);
    }
    if (v->kind != VALUE_SCALAR || !v->text)
        return false;
    return type == BOOL   ? !strcmp(v->text, "true") || !strcmp(v->text, "false")
           : type == SIZE ? runtimes_bytes(v->text) >= 0
           : type == USER ? !strcmp(v->text, "image")
                          : v->text[0] != '\0';
}

static int no_such_key(const struct value *v, const char *of, const char *near, const char *path,
                       struct err *err)
{
    return near ? err_set(err, ERR_INVALID, "%s:%d: \"%.40s\": %s has no such key; did you mean "
                          "\"%s\"?", path, v->key_line, v->key, of, near)
                : err_set(err, ERR_INVALID, "%s:%d: \"%.40s\": %s has no such key", path,
                          v->key_line, v->key, of);
}

static int check_row(const struct value *row, const struct part *p, const char *path,
                     struct err *err)
{
    for (const struct value *v = row->kind == VALUE_MAP ? row->child : NULL; v; v = v->next) {
        struct near near = near_to(v->key);
        const struct key *k = p->keys;
        for (; k->name && strcmp(k->name, v->key); k++)
            near_try(&near, k->name);
        if (!k->name)
            return no_such_key(v, p->row, near.word, path, err);
        if (!fits(v, k->type))
            return err_set(err, ERR_INVALID, "%s:%d: %s: takes %s", path, v->line, k->name,
                           takes[k->type]);
    }
    return row->kind == VALUE_MAP || value_is_null(row) ? 0
        : err_set(err, ERR_INVALID, "%s:%d: %.60s: takes a map of keys, such as {%s: ...}", path,
                  row->line, row->key, p->keys->name);
}

static int check_part(const struct value *v, const char *path, struct err *err)
{
    struct near near = near_to(v->key);
    int i = 0;

    for (; i < PARTS && strcmp(parts[i].name, v->key); i++)
        near_try(&near, parts[i].name);
    if (i == PARTS)
        return no_such_key(v, "the table", near.word, path, err);
    if (!parts[i].keys)
        return 0;
    if (!parts[i].rows)
        return check_row(v, &parts[i], path, err);
    if (v->kind != VALUE_MAP && !value_is_null(v))
        return err_set(err, ERR_INVALID, "%s:%d: %s: takes a map of names to rows", path, v->line,
                       v->key);
    for (const struct value *row = v->kind == VALUE_MAP ? v->child : NULL; row; row = row->next)
        if (check_row(row, &parts[i], path, err) < 0)
            return -(int)err->code;
    return 0;
}

int runtimes_check_table(const struct value *table, const char *path, struct err *err)
{
    if (table->kind != VALUE_MAP && !value_is_null(table))
        return err_set(err, ERR_INVALID, "%s:%d: the table is a map: runtimes, images, tiers, "
                       "environments, users, expose", path, table->line);
    for (const struct value *v = table->kind == VALUE_MAP ? table->child : NULL; v; v = v->next)
        if (check_part(v, path, err) < 0)
            return -(int)err->code;
    return 0;
}

int runtimes_check(const char *data_dir, struct err *err)
{
    char path[PATH_MAX];
    json_t *tiers = NULL;
    double days, bytes;

    if (snprintf(path, sizeof path, "%s/runtimes.yaml", data_dir) >= (int)sizeof path ||
        access(path, F_OK) < 0)
        return 0;
    if (runtimes_tiers(data_dir, &tiers, err) < 0)      /* reads, and so looks at, all of it */
        return -(int)err->code;
    json_decref(tiers);
    struct runtimes_sandbox sandbox;
    if (runtimes_sandbox(data_dir, &sandbox, err) < 0)
        return -(int)err->code;
    json_decref(sandbox.expose);
    return runtimes_keep(data_dir, &days, &bytes, err);
}
