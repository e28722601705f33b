/* server/volumes.c - directories that outlive the steps that mount them */
#include "server/volumes.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/own.h"
#include "base/sealed.h"
#include "base/tree.h"
#include "drivers/sandbox.h"
#include "server/jobs_int.h"
#include "server/server.h"

static int check_name(const char *name, struct err *err)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.");

    if (n == 0 || n > 253 || name[n] || name[0] == '.')
        return err_set(err, ERR_INVALID, "\"%.100s\" is no name of a volume (letters, digits, '-', "
                       "'_', '.')", name);
    return 0;
}

static int path_of(struct server *s, const char *project, const char *name, const char *file,
                   char out[PATH_MAX], struct err *err)
{
    if (check_name(name, err) < 0)
        return -(int)err->code;
    if (snprintf(out, PATH_MAX, "%s/volumes/%s/%s%s%s", s->data_dir, project, name,
                 *file ? "/" : "", file) >= PATH_MAX)
        return err_set(err, ERR_INVALID, "%.100s: the path is too long", name);
    return 0;
}

static int missing(const char *name, struct err *err)
{
    return err_set(err, ERR_MISSING, "there is no volume %.253s", name);
}

/* ------------------------------------------------------------ those that are to go */

/* False: a step still has it. */
static bool remove_now(const char *dir)
{
    char lock[PATH_MAX + 8], gone[PATH_MAX + 8];
    struct err err;

    snprintf(lock, sizeof lock, "%s/lock", dir);
    OWN_FD int fd = open(lock, O_RDWR | O_CLOEXEC);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0)
        return false;
    snprintf(gone, sizeof gone, "%s.gone", dir);
    return (rename(dir, gone) == 0 || errno == ENOENT) && tree_remove(gone, &err) == 0;
}

static bool is_deleted(const char *dir)
{
    char path[PATH_MAX + 16];

    snprintf(path, sizeof path, "%s/deleted", dir);
    return access(path, F_OK) == 0;
}

/* ------------------------------------------------------------ one */

static int fill(const char *dir, const json_t *doc, struct err *err)
{
    char path[PATH_MAX + 64];
    OWN_JSON json_t *all = json_copy((json_t *)doc);
    OWN_MEM char *text = NULL;

    snprintf(path, sizeof path, "%s/data", dir);
    if (files_mkdir(path, err) < 0)
        return -(int)err->code;
    if (chmod(path, 0777) < 0 ||
        (geteuid() == 0 && lchown(path, SANDBOX_USER, SANDBOX_USER) < 0))
        return err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    if (!all || json_object_set_new(all, "created", json_real(clock_wall())) < 0 ||
        !(text = sealed_text(all)))
        return err_set(err, ERR_NOMEM, "no memory for a volume");
    static const char *const marks[] = { "lock", "fresh" };
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, marks[i]);
        if (files_write(path, "", 0, err) < 0)
            return -(int)err->code;
    }
    snprintf(path, sizeof path, "%s/volume.json", dir);
    return files_write(path, text, strlen(text), err);
}

static int sync_dir(const char *path, struct err *err)
{
    OWN_FD int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    return fd < 0 || fsync(fd) < 0 ? err_set(err, ERR_IO, "%s: %s", path, strerror(errno)) : 0;
}

int volumes_create(struct server *s, const char *project, const char *name, const json_t *doc,
                   struct err *err)
{
    char dir[PATH_MAX], making[PATH_MAX + 32], parent[PATH_MAX];

    if (path_of(s, project, name, "", dir, err) < 0)
        return -(int)err->code;
    if (is_deleted(dir) && !remove_now(dir))
        return err_set(err, ERR_CONFLICT, "the volume %s was deleted and a step still has it; take "
                       "another name", name);
    if (access(dir, F_OK) == 0)
        return err_set(err, ERR_CONFLICT, "there is a volume %s already", name);
    snprintf(parent, sizeof parent, "%.*s", (int)(strrchr(dir, '/') - dir), dir);
    snprintf(making, sizeof making, "%s.%d.tmp", dir, (int)gettid());
    struct err none;
    tree_remove(making, &none);     /* of a server that was killed */
    OWN_JSON json_t *empty = json_object();
    if (fill(making, doc ? doc : empty, err) < 0 || sync_dir(making, err) < 0) {
        tree_remove(making, &none);
        return -(int)err->code;
    }
    if (rename(making, dir) < 0) {
        int why = errno;
        tree_remove(making, &none);
        return why == ENOTEMPTY || why == EEXIST
                   ? err_set(err, ERR_CONFLICT, "there is a volume %s already", name)
                   : err_set(err, ERR_IO, "%s: %s", dir, strerror(why));
    }
    return sync_dir(parent, err);
}

int volumes_get(struct server *s, const char *project, const char *name, json_t **out,
                struct err *err)
{
    char path[PATH_MAX], dir[PATH_MAX];
    json_t *doc = NULL;

    if (path_of(s, project, name, "", dir, err) < 0 ||
        path_of(s, project, name, "volume.json", path, err) < 0)
        return -(int)err->code;
    if (is_deleted(dir) || (sealed_load(path, &doc, err) < 0 && err->code == ERR_MISSING))
        return missing(name, err);
    if (!doc)
        return -(int)err->code;
    json_object_set_new(doc, "name", json_string(name));
    *out = doc;
    return 0;
}

int volumes_set(struct server *s, const char *project, const char *name, const json_t *doc,
                struct err *err)
{
    char path[PATH_MAX];
    OWN_JSON json_t *there = NULL;

    if (volumes_get(s, project, name, &there, err) < 0 ||
        path_of(s, project, name, "volume.json", path, err) < 0)
        return -(int)err->code;
    OWN_MEM char *text = sealed_text(doc);
    return text ? files_write(path, text, strlen(text), err)
                : err_set(err, ERR_NOMEM, "no memory for a volume");
}

int volumes_path(struct server *s, const char *project, const char *name, char *out, size_t size,
                 struct err *err)
{
    char path[PATH_MAX];
    OWN_JSON json_t *doc = NULL;

    if (volumes_get(s, project, name, &doc, err) < 0 ||
        path_of(s, project, name, "data", path, err) < 0)
        return -(int)err->code;
    return snprintf(out, size, "%s", path) < (int)size
               ? 0 : err_set(err, ERR_INVALID, "%s: the path is too long", name);
}

/* A second name of its lock: that needs neither a block nor an inode, which a full disk has not. */
static int mark_deleted(const char *dir, struct err *err)
{
    char lock[PATH_MAX + 16], mark[PATH_MAX + 16];

    snprintf(lock, sizeof lock, "%s/lock", dir);
    snprintf(mark, sizeof mark, "%s/deleted", dir);
    if (link(lock, mark) < 0 && errno != EEXIST)
        return err_set(err, ERR_IO, "%s: %s", mark, strerror(errno));
    return sync_dir(dir, err);
}

int volumes_delete(struct server *s, const char *project, const char *name, struct err *err)
{
    char dir[PATH_MAX];
    OWN_JSON json_t *doc = NULL;

    if (volumes_get(s, project, name, &doc, err) < 0 ||
        path_of(s, project, name, "", dir, err) < 0 || mark_deleted(dir, err) < 0)
        return -(int)err->code;
    remove_now(dir);
    store_reclaim(s->store);
    return 0;
}

/* ------------------------------------------------------------ all */

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

int volumes_list(struct server *s, const char *project, json_t **out, struct err *err)
{
    char parent[PATH_MAX], dir[PATH_MAX];
    struct dirent **entry = NULL;
    struct err none;
    json_t *list = json_array();

    snprintf(parent, sizeof parent, "%s/volumes/%s", s->data_dir, project);
    int n = list ? scandir(parent, &entry, NULL, by_name) : 0;
    for (int i = 0; i < n; i++) {
        json_t *doc = NULL;
        const char *name = entry[i]->d_name;
        const char *end = strrchr(name, '.');
        if (end && !strcmp(end, ".gone")) {
            snprintf(dir, sizeof dir, "%.2000s/%s", parent, name);
            tree_remove(dir, &none);
        } else if (name[0] != '.' && path_of(s, project, name, "", dir, &none) == 0) {
            if (is_deleted(dir))
                remove_now(dir);
            else if (volumes_get(s, project, name, &doc, &none) == 0)
                json_array_append_new(list, doc);
        }
        free(entry[i]);
    }
    free(entry);
    if (!list)
        return err_set(err, ERR_NOMEM, "no memory for a list of volumes");
    *out = list;
    return 0;
}
