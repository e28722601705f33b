/* drivers/environment_keep.c - which environments are in use, and which have been for nobody
 *
 * DESIGN. DATA/envs/KEY.use is flocked, shared, by every keeper whose job uses KEY, for as long as
 * it lives, and by its init, which shares the open file; taking it sets the file's time. A layer is
 * looked for after it was locked. Who removes one locks the file alone, without waiting, renames
 * KEY to KEY.gone and unlinks KEY.use before the lock goes: whoever comes then finds another file
 * under the name, or none, and a layer that is not there and is built. What a crash leaves is a
 * KEY.gone, or the KEY.tmp of a builder whose lock nobody holds; both go with the next collection.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/own.h"
#include "base/sha256.h"
#include "base/tree.h"
#include "drivers/environment.h"

enum { LAYERS_MAX = 20000, DAY_S = 86400 };

static double counted;          /* a keeper, and a child of the server, has one thread */

static int count_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)path, (void)type, (void)at;
    counted += (double)st->st_blocks * 512;
    return 0;
}

static double size_of(const char *path)
{
    counted = 0;
    nftw(path, count_one, 32, FTW_PHYS | FTW_MOUNT);
    return counted;
}

/* ------------------------------------------------------------------ locks */

int environment_lock(const char *path, int how)
{
    for (;;) {
        struct stat st;
        OWN_FD int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0 || flock(fd, how) < 0 || fstat(fd, &st) < 0)
            return -1;
        if (st.st_nlink > 0) {
            int mine = fd;
            fd = -1;
            return mine;
        }                       /* removed before it was ours: there is another by now */
    }
}

int environment_hold(const char *layer, struct err *err)
{
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s.use", layer);
    int fd = environment_lock(path, LOCK_SH);
    if (fd < 0)
        return err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    futimens(fd, NULL);
    return 0;                   /* open until the keeper ends */
}

/* ------------------------------------------------------------------ collection */

struct found {
    char key[SHA256_HEX];
    double used, bytes;         /* when, Unix time; how much of the disk */
};

static bool is_key(const char *name)
{
    return strlen(name) == SHA256_HEX - 1 && strspn(name, "0123456789abcdef") == SHA256_HEX - 1;
}

static bool ends_in(const char *name, const char *end)
{
    return strlen(name) == SHA256_HEX - 1 + strlen(end) && !strcmp(name + SHA256_HEX - 1, end);
}

static double last_use(const char *layer)
{
    char path[PATH_MAX + 16];
    struct stat st;
    snprintf(path, sizeof path, "%s.use", layer);
    if (stat(path, &st) < 0 && stat(layer, &st) < 0)
        return 0;
    return (double)st.st_mtim.tv_sec;
}

/* False: it is in use. */
static bool remove_layer(const char *envs, const char *key)
{
    char layer[PATH_MAX], use[PATH_MAX + 8], gone[PATH_MAX + 8];
    struct err none = { 0 };            /* what stays is the next collection's */
    snprintf(layer, sizeof layer, "%s/%s", envs, key);
    snprintf(use, sizeof use, "%s.use", layer);
    snprintf(gone, sizeof gone, "%s.gone", layer);
    OWN_FD int fd = environment_lock(use, LOCK_EX | LOCK_NB);
    if (fd < 0)
        return false;
    tree_remove(gone, &none);           /* of one that was killed */
    if (rename(layer, gone) < 0)
        return false;
    unlink(use);
    close(fd);
    fd = -1;
    tree_remove(gone, &none);
    return true;
}

/* What builders and collectors that were killed left. */
static void remove_rest(const char *envs, const char *name)
{
    char path[PATH_MAX], lock[PATH_MAX];
    struct err none = { 0 };
    snprintf(path, sizeof path, "%s/%.100s", envs, name);
    if (ends_in(name, ".gone")) {
        tree_remove(path, &none);
    } else if (ends_in(name, ".tmp")) {
        snprintf(lock, sizeof lock, "%s/%.64s.lock", envs, name);
        OWN_FD int fd = environment_lock(lock, LOCK_EX | LOCK_NB);
        if (fd >= 0)
            tree_remove(path, &none);
    }
}

static int oldest_first(const void *a, const void *b)
{
    const struct found *x = a, *y = b;
    return x->used < y->used ? -1 : x->used > y->used;
}

static int list(const char *envs, struct found **out, bool clean)
{
    struct found *all = calloc(LAYERS_MAX, sizeof *all);
    DIR *d = all ? opendir(envs) : NULL;
    int n = 0;

    for (struct dirent *e; d && (e = readdir(d)) && n < LAYERS_MAX;) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%.100s", envs, e->d_name);
        if (clean)
            remove_rest(envs, e->d_name);
        if (!is_key(e->d_name))
            continue;
        snprintf(all[n].key, sizeof all[n].key, "%.64s", e->d_name);
        all[n].used = last_use(path);
        all[n++].bytes = size_of(path);
    }
    if (d)
        closedir(d);
    *out = all;
    return n;
}

int environment_collect(const char *data_dir, int *out_removed, struct err *err)
{
    char envs[PATH_MAX - 200];
    struct found *raw = NULL;
    double days, most, total = 0;

    *out_removed = 0;
    if (snprintf(envs, sizeof envs, "%s/envs", data_dir) >= (int)sizeof envs)
        return err_set(err, ERR_INVALID, "%s: the path is too long", data_dir);
    if (runtimes_keep(data_dir, &days, &most, err) < 0)
        return -(int)err->code;
    int n = list(envs, &raw, true);
    OWN_MEM struct found *all = raw;
    if (!all)
        return err_set(err, ERR_NOMEM, "no memory to look at environments");
    qsort(all, (size_t)n, sizeof *all, oldest_first);
    for (int i = 0; i < n; i++)
        total += all[i].bytes;
    double now = clock_wall();
    for (int i = 0; i < n; i++) {
        bool old = days > 0 && now - all[i].used > days * DAY_S;
        if ((old || (most > 0 && total > most)) && remove_layer(envs, all[i].key)) {
            total -= all[i].bytes;
            ++*out_removed;
        }
    }
    return 0;
}

int environment_check(const char *data_dir, int *out_n, double *out_bytes, struct err *err)
{
    char envs[PATH_MAX - 200], path[PATH_MAX];
    struct found *raw = NULL;

    *out_bytes = 0;
    snprintf(envs, sizeof envs, "%.*s/envs", (int)sizeof envs - 16, data_dir);
    *out_n = list(envs, &raw, false);
    OWN_MEM struct found *all = raw;
    for (int i = 0; i < *out_n; i++) {
        struct stat st;
        *out_bytes += all[i].bytes;
        snprintf(path, sizeof path, "%s/%s/bin/python", envs, all[i].key);
        bool base = lstat(path, &st) == 0;
        snprintf(path, sizeof path, "%s/%s/site", envs, all[i].key);
        if (!base && lstat(path, &st) < 0)
            return err_set(err, ERR_IO,
                           "envs/%s: holds neither a Python nor packages (remove it: it is built "
                           "again when a job needs it)", all[i].key);
    }
    return 0;
}
