/* drivers/runtimes_sandbox.c - what every job's sandbox has of this machine
 *
 * It is asked for at each start of a job, which takes less time than to read the table: what was
 * read last is kept, and read again when the file is another one.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/own.h"
#include "drivers/runtimes_int.h"

static struct {
    pthread_mutex_t lock;
    char path[PATH_MAX];
    struct stat st;
    struct runtimes_sandbox last;
} kept = { .lock = PTHREAD_MUTEX_INITIALIZER };

static int read_users(const struct value *row, const char *path, struct users_range *out,
                      struct err *err)
{
    static const char *const keys[] = { "first", "last" };
    struct users_range r = USERS_DEFAULT;

    for (int i = 0; row && i < 2; i++) {
        const struct value *v = value_find(row, keys[i]);
        double n = v && v->text ? runtimes_bytes(v->text) : -1;
        if (v && (n < 0 || n > UINT32_MAX))
            return err_set(err, ERR_INVALID, "%s:%d: %s: takes the number of a user", path, v->line,
                           keys[i]);
        if (v)
            *(i ? &r.last : &r.first) = (uint32_t)n;
    }
    if (users_check(&r, err) < 0)
        return err_add(err, "%s:%d", path, row ? row->line : 0);
    *out = r;
    return 0;
}

static int read_expose(const struct value *list, const char *path, json_t *out, struct err *err)
{
    if (list && list->kind != VALUE_LIST && !value_is_null(list))
        return err_set(err, ERR_INVALID, "%s:%d: expose: takes a list of paths", path, list->line);
    for (const struct value *v = list && list->kind == VALUE_LIST ? list->child : NULL; v;
         v = v->next) {
        if (!v->text || v->text[0] != '/' || !v->text[1])
            return err_set(err, ERR_INVALID, "%s:%d: expose: \"%.100s\" is no path from the root, "
                           "below it", path, v->line, v->text ? v->text : "");
        json_array_append_new(out, json_string(v->text));
    }
    return 0;
}

static bool is_same(const char *path, const struct stat *st)
{
    return kept.last.expose && !strcmp(path, kept.path) && st->st_ino == kept.st.st_ino &&
           st->st_dev == kept.st.st_dev && st->st_size == kept.st.st_size &&
           st->st_mtim.tv_sec == kept.st.st_mtim.tv_sec &&
           st->st_mtim.tv_nsec == kept.st.st_mtim.tv_nsec;
}

/* With the lock held. */
static int read_again(const char *data_dir, struct err *err)
{
    char path[PATH_MAX];
    OWN(value) table = NULL;
    OWN_JSON json_t *expose = json_array();
    struct runtimes_sandbox now;
    struct stat st;

    snprintf(path, sizeof path, "%.*s/runtimes.yaml", PATH_MAX - 32, data_dir);
    if (stat(path, &st) == 0 && is_same(path, &st))
        return 0;
    if (!expose)
        return err_set(err, ERR_NOMEM, "no memory for a table");
    if (runtimes_read(data_dir, path, &table, err) < 0 ||
        read_users(value_find(table, "users"), path, &now.users, err) < 0 ||
        read_expose(value_find(table, "expose"), path, expose, err) < 0)
        return -(int)err->code;
    json_decref(kept.last.expose);
    now.expose = TAKE(expose);
    kept.last = now;
    /* Changed while it was read: it will be read again. */
    if (stat(path, &kept.st) == 0 && st.st_mtim.tv_nsec == kept.st.st_mtim.tv_nsec)
        snprintf(kept.path, sizeof kept.path, "%s", path);
    else
        kept.path[0] = '\0';
    return 0;
}

int runtimes_sandbox(const char *data_dir, struct runtimes_sandbox *out, struct err *err)
{
    pthread_mutex_lock(&kept.lock);
    int rc = read_again(data_dir, err);
    if (rc == 0) {
        out->users = kept.last.users;
        out->expose = json_deep_copy(kept.last.expose);
        if (!out->expose)
            rc = err_set(err, ERR_NOMEM, "no memory for a table");
    }
    pthread_mutex_unlock(&kept.lock);
    return rc;
}
