/* drivers/runtimes_check.c - a key of runtimes.yaml that nobody reads is a mistake, and is told
 * with its line */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/near.h"
#include "drivers/runtimes_int.h"

enum type { BOOL, TEXT, TEXTS, SIZE, USER, SHARE, WHO };
static const char *const takes[] = { "true or false", "a text", "a list of texts",
                                     "a number, 0 or more", "\"image\"",
                                     "a size (2Gi), or a share of the machine's (90%)",
                                     "owner, anyone or nobody" };

static const struct key { const char *name; enum type type; } runtime_keys[] = {
    { "python", TEXT }, { "system", BOOL }, { "requirements", TEXTS }, { 0 } },
  image_keys[] = {
    { "python", TEXT }, { "system", BOOL }, { "requirements", TEXTS }, { "plain", BOOL },
    { "pull", BOOL }, { "container", BOOL }, { "user", USER }, { 0 } },
  environment_keys[] = { { "days", SIZE }, { "size", SIZE }, { 0 } },
  user_keys[] = { { "first", SIZE }, { "last", SIZE }, { 0 } },
  network_keys[] = { { "host", WHO }, { 0 } },
  jobs_keys[] = { { "days", SIZE }, { "size", SHARE }, { 0 } },
  job_keys[] = { { "memory", SHARE }, { "processes", SIZE }, { "disk", SHARE }, { 0 } },
  job_max_keys[] = { { "memory", SHARE }, { "cpu", SIZE }, { "processes", SIZE },
                     { "disk", SHARE }, { 0 } },
  project_keys[] = { { "memory", SHARE }, { "cpu", SIZE }, { "processes", SIZE },
                     { "jobs", SIZE }, { "disk", SHARE }, { 0 } };

/* Tiers and folders are looked at where they are read (runtimes_tiers, runtimes_sandbox). */
struct part {
    const char *name, *row;
    const struct key *keys;
    bool rows;                  /* the part is a map of names to rows; else one row */
    const struct part *parts;   /* it is a map of parts, the last of which has no name */
};
static const struct part limit_parts[] = {
    { "job", "limits.job", job_keys, false, NULL },
    { "job_max", "limits.job_max", job_max_keys, false, NULL },
    { "project", "limits.project", project_keys, false, NULL },
    { "projects", "limits of a project", project_keys, true, NULL }, { 0 } };
static const struct part parts[] = {
    { "runtimes", "a runtime", runtime_keys, true, NULL },
    { "images", "an image", image_keys, true, NULL }, { "tiers", NULL, NULL, true, NULL },
    { "environments", "environments", environment_keys, false, NULL },
    { "users", "users", user_keys, false, NULL }, { "expose", NULL, NULL, false, NULL },
    { "network", "network", network_keys, false, NULL },
    { "limits", "limits", NULL, false, limit_parts },
    { "jobs", "jobs", jobs_keys, false, NULL }, { 0 } };

double runtimes_share(const char *text, double of)
{
    size_t n = strlen(text);
    char number[32];

    if (n < 2 || n >= sizeof number || text[n - 1] != '%')
        return runtimes_bytes(text);
    snprintf(number, sizeof number, "%.*s", (int)n - 1, text);
    double percent = strspn(number, "0123456789.") == n - 1 ? runtimes_bytes(number) : -1;
    return percent >= 0 && percent <= 100 ? percent / 100 * of : -1;
}

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
           : type == SHARE ? runtimes_share(v->text, 1) >= 0
           : type == USER ? !strcmp(v->text, "image")
           : type == WHO  ? !strcmp(v->text, "owner") || !strcmp(v->text, "anyone") ||
                                !strcmp(v->text, "nobody")
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

static int check_part(const struct value *v, const struct part *list, const char *of,
                      const char *path, struct err *err)
{
    struct near near = near_to(v->key);
    const struct part *p = list;

    for (; p->name && strcmp(p->name, v->key); p++)
        near_try(&near, p->name);
    if (!p->name)
        return no_such_key(v, of, near.word, path, err);
    if (!p->keys && !p->parts)
        return 0;
    if (p->keys && !p->rows)
        return check_row(v, p, path, err);
    if (v->kind != VALUE_MAP && !value_is_null(v))
        return err_set(err, ERR_INVALID, "%s:%d: %s: takes a map of %s", path, v->line, v->key,
                       p->parts ? "parts, such as {job: ...}" : "names to rows");
    for (const struct value *row = v->kind == VALUE_MAP ? v->child : NULL; row; row = row->next)
        if ((p->parts ? check_part(row, p->parts, p->row, path, err)
                      : check_row(row, p, path, err)) < 0)
            return -(int)err->code;
    return 0;
}

int runtimes_check_table(const struct value *table, const char *path, struct err *err)
{
    if (table->kind != VALUE_MAP && !value_is_null(table))
        return err_set(err, ERR_INVALID, "%s:%d: the table is a map: runtimes, images, tiers, "
                       "environments, users, expose, network, limits, jobs", path, table->line);
    for (const struct value *v = table->kind == VALUE_MAP ? table->child : NULL; v; v = v->next)
        if (check_part(v, parts, "the table", path, err) < 0)
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
