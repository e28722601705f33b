/* server/auth_values.c - secrets and config values of a project */
#include <ctype.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/auth_int.h"

enum { LABEL = 256 };

/* What a call changes or asks for. */
struct value {
    const char *project, *name, *text;
    int kind;
    double now;
    int64_t count;
    char *plain;                /* of a config value, or of a secret that is not encrypted yet */
    struct buf sealed;          /* of a secret, in place of the text */
    json_t *rows;
};

static int value_name_check(const char *name, struct err *err)
{
    size_t n = strlen(name);
    bool ok = n >= 1 && n <= 128;

    for (const char *p = name; *p; p++)
        ok = ok && (isalnum((unsigned char)*p) || strchr("_-.", *p));
    return ok ? 0
              : err_set(err, ERR_INVALID,
                        "\"%.64s\": a name is up to 128 letters, digits, '_', '-' "
                        "and '.'",
                        name);
}

static int set_value(sqlite3 *db, void *arg, struct err *err)
{
    const struct value *c = arg;

    if (auth_need_project(db, c->project, err) < 0)
        return -(int)err->code;
    static const char sql[] = "INSERT OR REPLACE INTO project_values VALUES (?, ?, ?, ?, ?)";
    return c->sealed.n ? store_run(db, err, sql, "issbd", (int64_t)c->kind, c->project, c->name,
                                 c->sealed.data, c->sealed.n, c->now)
                     : store_run(db, err, sql, "isssd", (int64_t)c->kind, c->project, c->name,
                                 c->text, c->now);
}

/* What a sealed value is authenticated with. No part holds a '/'. */
static void label_of(const char *project, const char *name, char out[LABEL])
{
    snprintf(out, LABEL, "secret/%s/%s", project, name);
}

/* Secrets that an older version left as plain text. */
static int seal_rows(sqlite3 *db, void *arg, struct err *err)
{
    struct auth *a = arg;
    int rc;

    /* The pages that held the text are overwritten. */
    sqlite3_exec(db, "PRAGMA secure_delete = ON", NULL, NULL, NULL);
    for (;;) {
        OWN_BUF sealed = BUF_INIT;
        char label[LABEL];
        sqlite3_stmt *st = store_sql(db, "SELECT project, name, value FROM project_values "
                                     "WHERE kind = ? AND typeof(value) = 'text' LIMIT 1", err);
        if (!st || store_bind(st, err, "i", (int64_t)AUTH_SECRET) < 0)
            return -(int)err->code;
        if ((rc = store_step(st, err)) <= 0)
            return rc;
        OWN_MEM char *project = strdup((const char *)sqlite3_column_text(st, 0)),
                     *name = strdup((const char *)sqlite3_column_text(st, 1));
        if (!project || !name)
            return err_set(err, ERR_NOMEM, "no memory for a secret");
        label_of(project, name, label);
        if (vault_seal(a->vault, label, (const char *)sqlite3_column_text(st, 2), &sealed,
                       err) < 0)
            return -(int)err->code;
        sqlite3_reset(st);
        if (store_run(db, err, "UPDATE project_values SET value = ? WHERE kind = ? AND "
                      "project = ? AND name = ?", "biss", sealed.data, sealed.n,
                      (int64_t)AUTH_SECRET, project, name) < 0)
            return -(int)err->code;
    }
}

static int find_plain(sqlite3 *db, void *arg, struct err *err)
{
    sqlite3_stmt *st = store_sql(db, "SELECT 1 FROM project_values WHERE kind = ? AND "
                                 "typeof(value) = 'text' LIMIT 1", err);
    int rc = !st || store_bind(st, err, "i", (int64_t)AUTH_SECRET) < 0 ? -(int)err->code
                                                                     : store_step(st, err);
    *(bool *)arg = rc > 0;
    if (rc > 0)
        sqlite3_reset(st);
    return rc < 0 ? rc : 0;
}

void auth_values_seal(struct auth *a)
{
    struct err why = { 0 };
    bool any = false;

    if (store_read(a->store, find_plain, &any, &why) == 0 && !any)
        return;
    if (store_write(a->store, seal_rows, a, &why) < 0)
        log_event(LEVEL_WARN, "auth.secrets", "{s:s}", "error", why.text);
}

int auth_value_set(struct auth *a, enum auth_kind kind, const char *project, const char *name,
                   const char *value, struct err *err)
{
    struct value c = { .project = project, .name = name, .text = value, .kind = (int)kind,
                        .now = clock_wall() };

    if (value_name_check(name, err) < 0)
        return -(int)err->code;
    if (strlen(value) > AUTH_VALUE_MAX)
        return err_set(err, ERR_INVALID, "the value of \"%s\" is longer than %d kB", name,
                       AUTH_VALUE_MAX >> 10);
    OWN_BUF sealed = BUF_INIT;
    if (kind == AUTH_SECRET) {
        char label[LABEL];
        label_of(project, name, label);
        if (vault_seal(a->vault, label, value, &sealed, err) < 0)
            return -(int)err->code;
    }
    c.sealed = sealed;
    return store_write(a->store, set_value, &c, err);
}

static int remove_value(sqlite3 *db, void *arg, struct err *err)
{
    struct value *c = arg;
    int rc = store_run(db, err,
                       "DELETE FROM project_values WHERE kind = ? AND project = ? AND name = ?",
                       "iss", (int64_t)c->kind, c->project, c->name);
    c->count = sqlite3_changes(db);
    return rc;
}

static const char *kind_name(enum auth_kind kind)
{
    return kind == AUTH_SECRET ? "secret" : "config value";
}

int auth_value_remove(struct auth *a, enum auth_kind kind, const char *project, const char *name,
                      struct err *err)
{
    struct value c = { .project = project, .name = name, .kind = (int)kind };

    if (store_write_last(a->store, remove_value, &c, err) < 0)
        return -(int)err->code;
    return c.count ? 0 : err_set(err, ERR_MISSING, "project \"%s\" has no %s \"%.64s\"", project,
                                 kind_name(kind), name);
}

static int list_values(sqlite3 *db, void *arg, struct err *err)
{
    const struct value *l = arg;
    sqlite3_stmt *st = store_sql(db, "SELECT name, updated, value FROM project_values "
                                 "WHERE kind = ? AND project = ? ORDER BY name", err);
    int rc = st ? store_bind(st, err, "is", (int64_t)l->kind, l->project) : -(int)err->code;

    for (rc = rc < 0 ? rc : 1; rc > 0 && (rc = store_step(st, err)) > 0;) {
        json_t *row = json_pack("{s:s, s:f}", "name", sqlite3_column_text(st, 0), "updated",
                                sqlite3_column_double(st, 1));
        if (l->kind == AUTH_CONFIG)
            json_object_set_new(row, "value",
                                json_string((const char *)sqlite3_column_text(st, 2)));
        json_array_append_new(l->rows, row);
    }
    return rc;
}

int auth_value_list(struct auth *a, enum auth_kind kind, const char *project, json_t **out,
                    struct err *err)
{
    OWN_JSON json_t *rows = json_array();
    struct value v = { .project = project, .kind = (int)kind, .rows = rows };

    if (!rows)
        return err_set(err, ERR_NOMEM, "no memory for a list");
    if (store_read(a->store, list_values, &v, err) < 0)
        return -(int)err->code;
    *out = TAKE(rows);
    return 0;
}

static int get_value(sqlite3 *db, void *arg, struct err *err)
{
    struct value *l = arg;
    sqlite3_stmt *st = store_sql(db, "SELECT value FROM project_values "
                                 "WHERE kind = ? AND project = ? AND name = ?", err);

    if (!st || store_bind(st, err, "iss", (int64_t)l->kind, l->project, l->name) < 0)
        return -(int)err->code;
    int rc = store_step(st, err);
    if (rc > 0 && sqlite3_column_type(st, 0) == SQLITE_BLOB)
        buf_append(&l->sealed, sqlite3_column_blob(st, 0), (size_t)sqlite3_column_bytes(st, 0));
    else if (rc > 0 && !(l->plain = strdup((const char *)sqlite3_column_text(st, 0))))
        return err_set(err, ERR_NOMEM, "no memory for a value");
    return rc < 0 ? rc : buf_ok(&l->sealed, err);
}

int auth_value_get(struct auth *a, enum auth_kind kind, const char *project, const char *name,
                   char **out, struct err *err)
{
    struct value l = { .project = project, .name = name, .kind = (int)kind };

    int rc = store_read(a->store, get_value, &l, err);
    OWN_BUF sealed = l.sealed;
    if (rc < 0)
        return rc;
    if (sealed.n) {
        char label[LABEL];
        label_of(project, name, label);
        return vault_open(a->vault, label, sealed.data, sealed.n, out, err) < 0
                   ? err_add(err, "secret \"%.64s\" of project \"%s\"", name, project) : 0;
    }
    if (!l.plain)
        return err_set(err, ERR_MISSING, "project \"%s\" has no %s \"%.64s\" (muster %s set %s)",
                       project, kind_name(kind), name, kind == AUTH_SECRET ? "secret" : "config",
                       name);
    *out = l.plain;
    return 0;
}
