/* drivers/sandbox_room.c - places for paths that this machine does not have
 *
 * A step of a pipeline wants an output at /opt/results, where here is nothing, and /opt is read-only.
 * A directory of the machine in which such a place is missing is put together anew: an empty one of
 * memory, in which every entry of the old one is bound under its name, and the missing one is made.
 * That is done before the whole is made read-only, and only for directories that everybody may
 * pass: what
 * is below another one is covered later (drivers/sandbox_mount.c), so that nothing there shows.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "drivers/sandbox_int.h"

enum { ROOM_ENTRIES = 512 };    /* each is a descriptor for a moment */

struct entry {
    char name[NAME_MAX + 1];
    int fd;
    mode_t mode;
};

static int list_entries(const char *target, struct entry *list)
{
    DIR *d = opendir(target);
    int n = 0;

    for (struct dirent *e = d ? readdir(d) : NULL; e && n < ROOM_ENTRIES; e = readdir(d)) {
        struct stat st;
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        int fd = openat(dirfd(d), e->d_name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
            continue;
        fstat(fd, &st);
        list[n].fd = fd;
        list[n].mode = st.st_mode;
        snprintf(list[n++].name, sizeof list[0].name, "%s", e->d_name);
    }
    if (d)
        closedir(d);
    return d ? n : -1;
}

/* What cannot be bound is missing inside, as if it were not there. */
static void put_entry(const char *target, const struct entry *e)
{
    char path[PATH_MAX + NAME_MAX + 16], link[PATH_MAX];

    snprintf(path, sizeof path, "%s/%s", target, e->name);
    if (S_ISLNK(e->mode)) {
        ssize_t n = readlinkat(e->fd, "", link, sizeof link - 1);
        link[n > 0 ? n : 0] = '\0';
        (void)!symlink(link, path);
        return;
    }
    if (S_ISDIR(e->mode))
        (void)!mkdir(path, 0755);
    else
        close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
    sandbox_bind(e->fd, path, 0, 0);
}

static int rebuild(const char *target, const struct stat *st)
{
    struct entry *list = calloc(ROOM_ENTRIES, sizeof *list);
    int n = list ? list_entries(target, list) : -1, rc = -1;
    char options[64];

    snprintf(options, sizeof options, "mode=%o,size=4m", (unsigned)st->st_mode & 07777);
    if (n >= 0 && n < ROOM_ENTRIES &&
        mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, options) == 0) {
        rc = chown(target, st->st_uid, st->st_gid) < 0 && geteuid() == 0 ? -1 : 0;
        for (int i = 0; i < n; i++)
            put_entry(target, &list[i]);
    }
    int error = n == ROOM_ENTRIES ? E2BIG : errno;
    for (int i = 0; i < n; i++)
        close(list[i].fd);
    free(list);
    errno = error;
    return rc;
}

/* Those are other directories inside, and what is missing there is made then. */
static bool is_own_place(const struct sandbox *s, const char *path)
{
    const char *const places[] = { "/tmp", "/var/tmp", "/run", "/dev", "/proc", s->hide[0],
                                   s->hide[1] };

    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        size_t n = places[i] ? strlen(places[i]) : 0;
        if (n && !strncmp(path, places[i], n) && (!path[n] || path[n] == '/'))
            return true;
    }
    return false;
}

/* The end of the part of `path` that is there: 0 for "/"; -1 when a part of it is not to be
 * passed. */
static long existing(const char *path, struct stat *out)
{
    char target[PATH_MAX + 8];
    long end = 0;

    if (lstat(SANDBOX_NEW, out) < 0)
        return -1;
    for (const char *at = path; *at; end = at - path) {
        struct stat st;
        at += strcspn(at + 1, "/") + 1;
        snprintf(target, sizeof target, SANDBOX_NEW "%.*s", (int)(at - path), path);
        if (lstat(target, &st) < 0)
            break;
        if (!S_ISDIR(st.st_mode) || (geteuid() == 0 && !(st.st_mode & S_IXOTH)))
            return -1;
        *out = st;
    }
    return end;
}

static int make_place(const char *path, bool is_dir)
{
    char target[PATH_MAX + 8];

    for (const char *at = path; *at;) {
        at += strcspn(at + 1, "/") + 1;
        snprintf(target, sizeof target, SANDBOX_NEW "%.*s", (int)(at - path), path);
        if (*at || is_dir) {
            if (mkdir(target, 0755) < 0 && errno != EEXIST)
                return -1;
        } else {
            int fd = open(target, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
            if (fd < 0)
                return -1;
            close(fd);
        }
    }
    return 0;
}

const char *sandbox_room(const struct sandbox *s, const int *fds)
{
    struct stat root;

    if (lstat(SANDBOX_NEW, &root) < 0)
        return "the new root";
    for (int i = 0; i < s->n_paths; i++) {
        const char *path = s->paths[i].path;
        char target[PATH_MAX + 8];
        struct stat st, source;

        snprintf(target, sizeof target, SANDBOX_NEW "%s", path);
        if (is_own_place(s, path) || lstat(target, &st) == 0)
            continue;
        long end = existing(path, &st);
        if (end < 0 || st.st_dev == root.st_dev)
            continue;           /* in the root itself places can be made at any time */
        snprintf(target, sizeof target, SANDBOX_NEW "%.*s", (int)end, path);
        if (rebuild(target, &st) < 0 || fstat(fds[i], &source) < 0 ||
            make_place(path, S_ISDIR(source.st_mode)) < 0)
            return path;
    }
    return NULL;
}
