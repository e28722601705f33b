/* base/tree.c - directories with all that is in them */
#include "base/tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/own.h"

/* A directory deeper than this is moved to the top of the tree and removed from there. */
enum { DEPTH_MAX = 32 };
/* A directory deeper than this is not counted: each level keeps a descriptor open. */
enum { BYTES_DEPTH = 200 };

struct removal {
    int top;                    /* the tree's own directory */
    dev_t dev;
    unsigned moved;
    int error;                  /* errno of the first thing that stayed; 0: all went */
};

static void note(struct removal *r)
{
    if (!r->error)
        r->error = errno;
}

/* A directory we may not read can be opened as a place only, and changed by no call but this. */
static int open_closed(int at, const char *name)
{
    char place[64];
    OWN_FD int fd = openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0)
        return -1;
    snprintf(place, sizeof place, "/proc/self/fd/%d", fd);
    if (chmod(place, S_IRWXU) < 0)
        return -1;
    return openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* -1 with errno; ENOTDIR: it is none, a link for example. */
static int open_dir(int at, const char *name)
{
    struct stat st;
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0 && errno == EACCES)
        fd = open_closed(at, name);
    if (fd < 0 && errno == ELOOP)
        errno = ENOTDIR;
    if (fd >= 0 && fstat(fd, &st) == 0 && (st.st_mode & S_IRWXU) != S_IRWXU)
        fchmod(fd, S_IRWXU);            /* where it cannot, what follows says so */
    return fd;
}

static void empty(struct removal *r, int fd, int depth);

static void remove_dir(struct removal *r, int at, const char *name, int depth)
{
    struct stat st;
    char place[48];

    if (depth == DEPTH_MAX) {
        snprintf(place, sizeof place, ".muster-deep-%d-%u", (int)getpid(), r->moved);
        if (renameat(at, name, r->top, place) < 0)
            note(r);
        else
            r->moved++;
        return;
    }
    int fd = open_dir(at, name);
    if (fd < 0) {
        /* Something else took its place, or it is gone. */
        if (errno != ENOENT && (errno != ENOTDIR || unlinkat(at, name, 0) < 0))
            note(r);
        return;
    }
    if (fstat(fd, &st) < 0 || st.st_dev != r->dev) {
        errno = EBUSY;
        note(r);
        close(fd);
        return;
    }
    empty(r, fd, depth);
    if (unlinkat(at, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
        note(r);
}

/* Takes `fd`. */
static void empty(struct removal *r, int fd, int depth)
{
    DIR *dir = fdopendir(fd);

    if (!dir) {
        note(r);
        close(fd);
        return;
    }
    for (struct dirent *e; (e = readdir(dir));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        if (unlinkat(fd, e->d_name, 0) == 0 || errno == ENOENT)
            continue;
        if (errno == EISDIR)
            remove_dir(r, fd, e->d_name, depth + 1);
        else
            note(r);
    }
    closedir(dir);
}

int tree_remove(const char *path, struct err *err)
{
    struct stat st;
    unsigned before;
    OWN_FD int top = open_dir(AT_FDCWD, path);

    if (top < 0) {
        if (errno == ENOENT || (errno == ENOTDIR && unlink(path) == 0))
            return 0;
        return err_set(err, ERR_IO, "cannot remove %s: %s", path, strerror(errno));
    }
    if (fstat(top, &st) < 0)
        return err_set(err, ERR_IO, "cannot remove %s: %s", path, strerror(errno));
    struct removal r = { .top = top, .dev = st.st_dev };
    do {
        int fd = openat(top, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        before = r.moved;
        if (fd < 0)
            note(&r);
        else
            empty(&r, fd, 0);
    } while (r.moved > before);
    if (rmdir(path) < 0 && errno != ENOENT)
        note(&r);
    return r.error ? err_set(err, ERR_IO, "cannot remove %s: %s", path, strerror(r.error)) : 0;
}

int tree_scratch(const char *name, char *out, size_t size, struct err *err)
{
    const char *tmp = getenv("TMPDIR");

    if (!tmp || !*tmp)
        tmp = "/tmp";
    if ((size_t)snprintf(out, size, "%s/%s-XXXXXX", tmp, name) >= size)
        errno = ENAMETOOLONG;
    else if (mkdtemp(out))
        return 0;
    *out = 0;
    return err_set(err, ERR_IO, "%.200s: %s (set TMPDIR)", tmp, strerror(errno));
}

/* ------------------------------------------------------------------ how much it takes */

struct sum { int64_t bytes; dev_t dev; bool whole; };

/* A file with several names counts in parts, so that all of its names together count once. */
static void add_file(struct sum *s, const struct stat *st)
{
    s->bytes += (int64_t)st->st_blocks * 512 / (st->st_nlink > 1 && !S_ISDIR(st->st_mode)
                                                    ? (int64_t)st->st_nlink : 1);
}

/* Takes fd. */
static void add_dir(struct sum *s, int fd, int depth)
{
    DIR *d = fdopendir(fd);

    if (!d) {
        close(fd);
        s->whole = false;
        return;
    }
    for (struct dirent *e; (e = readdir(d));) {
        struct stat st;
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") ||
            fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 || st.st_dev != s->dev)
            continue;
        add_file(s, &st);
        if (!S_ISDIR(st.st_mode))
            continue;
        int inner = depth < BYTES_DEPTH
            ? openat(dirfd(d), e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
        if (inner >= 0)
            add_dir(s, inner, depth + 1);
        else if (depth >= BYTES_DEPTH || (errno != ENOENT && errno != ENOTDIR && errno != ELOOP))
            s->whole = false;
    }
    closedir(d);
}

int64_t tree_bytes(const char *path, bool *out_whole)
{
    struct sum s = { .whole = true };
    struct stat st;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &st) < 0) {
        if (fd >= 0)
            close(fd);
        s.whole = errno == ENOENT;
    } else {
        s.dev = st.st_dev;
        add_file(&s, &st);
        add_dir(&s, fd, 0);
    }
    if (out_whole)
        *out_whole = s.whole;
    return s.bytes;
}
