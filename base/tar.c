/* base/tar.c - a directory as one stream of bytes
 *
 * DESIGN. An entry is a header of 512 bytes, its content, and zeros up to a multiple of 512; two
 * empty headers end the stream. A name or link of more than 100 bytes comes in an extended header
 * before ("LENGTH path=NAME\n"). Each directory is read whole, sorted, and left before the next is
 * entered at the same level, so open descriptors are as many as it is deep.
 */
#include "base/tar.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/own.h"

enum { BLOCK = 512, PIECE = 1 << 16, DEPTH_MAX = 200 };

struct header {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], sum[8], type, link[100];
    char magic[6], version[2], user[32], group[32], major[8], minor[8], prefix[155], pad[12];
};
_Static_assert(sizeof(struct header) == BLOCK, "a header is a block");

struct tar {
    tar_sink *put;
    void *arg;
    char *piece;                /* PIECE */
    int depth;
};

static int put_padding(struct tar *t, size_t n, struct err *err)
{
    static const char zeros[BLOCK];

    return n % BLOCK ? t->put(t->arg, zeros, BLOCK - n % BLOCK, err) : 0;
}

static int put_header(struct tar *t, char type, const char *name, const char *link, unsigned mode,
                      unsigned long long size, struct err *err)
{
    struct header h = { .type = type, .magic = "ustar", .version = { '0', '0' } };
    unsigned sum = 0;

    memcpy(h.name, name, strnlen(name, sizeof h.name));
    memcpy(h.link, link, strnlen(link, sizeof h.link));
    snprintf(h.mode, sizeof h.mode, "%07o", mode);
    snprintf(h.uid, sizeof h.uid, "%07o", 0);
    snprintf(h.gid, sizeof h.gid, "%07o", 0);
    snprintf(h.mtime, sizeof h.mtime, "%011o", 0);
    if (size < 1ULL << 33) {
        snprintf(h.size, sizeof h.size, "%011llo", size);
    } else {                    /* GNU's form, in bytes; all readers know it */
        h.size[0] = (char)0x80;
        for (int i = 0; i < 8; i++)
            h.size[11 - i] = (char)(size >> 8 * i);
    }
    memset(h.sum, ' ', sizeof h.sum);
    for (size_t i = 0; i < BLOCK; i++)
        sum += ((unsigned char *)&h)[i];
    snprintf(h.sum, sizeof h.sum, "%06o", sum);
    return t->put(t->arg, &h, BLOCK, err);
}

/* "27 path=NAME\n": the number counts itself. */
static void add_record(struct buf *b, const char *key, const char *value)
{
    size_t body = strlen(key) + strlen(value) + 3, n = body + 1;
    char digits[24];

    while ((size_t)snprintf(digits, sizeof digits, "%zu", n) + body != n)
        n++;
    buf_printf(b, "%zu %s=%s\n", n, key, value);
}

static int put_entry(struct tar *t, char type, const char *name, const char *link, unsigned mode,
                     unsigned long long size, struct err *err)
{
    OWN_BUF more = BUF_INIT;

    if (strlen(name) > 100)
        add_record(&more, "path", name);
    if (strlen(link) > 100)
        add_record(&more, "linkpath", link);
    if (more.failed)
        return err_set(err, ERR_NOMEM, "no memory for a name");
    if (more.n && (put_header(t, 'x', "././@PaxHeader", "", 0644, more.n, err) < 0 ||
                   t->put(t->arg, more.data, more.n, err) < 0 || put_padding(t, more.n, err) < 0))
        return -(int)err->code;
    return put_header(t, type, name, link, mode, size, err);
}

/* A file that grows or shrinks meanwhile has the size that it began with. */
static int put_file(struct tar *t, int fd, const struct stat *st, const char *name,
                    struct err *err)
{
    unsigned long long left = (unsigned long long)st->st_size;

    if (t->put(t->arg, NULL, (size_t)left, err) < 0 ||
        put_entry(t, '0', name, "", st->st_mode & 0100 ? 0755 : 0644, left, err) < 0)
        return -(int)err->code;
    while (left > 0) {
        size_t want = left < PIECE ? (size_t)left : PIECE;
        ssize_t n = read(fd, t->piece, want);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(err, ERR_IO, "%s: %s", name, strerror(errno));
        if (n == 0)
            memset(t->piece, 0, (size_t)(n = (ssize_t)want));
        if (t->put(t->arg, t->piece, (size_t)n, err) < 0)
            return -(int)err->code;
        left -= (unsigned long long)n;
    }
    return put_padding(t, (size_t)st->st_size, err);
}

static int put_dir(struct tar *t, int fd, const char *name, struct err *err);

static int put_one(struct tar *t, int dir, const char *entry, const char *name, struct err *err)
{
    struct stat st;
    char link[PATH_MAX];

    if (fstatat(dir, entry, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : err_set(err, ERR_IO, "%s: %s", name, strerror(errno));
    if (S_ISLNK(st.st_mode)) {
        ssize_t n = readlinkat(dir, entry, link, sizeof link - 1);
        link[n > 0 ? n : 0] = '\0';
        return n > 0 ? put_entry(t, '2', name, link, 0777, 0, err) : 0;
    }
    if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return 0;
    OWN_FD int fd = openat(dir, entry, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_set(err, ERR_IO, "%s: %s", name, strerror(errno));
    if (S_ISREG(st.st_mode))
        return put_file(t, fd, &st, name, err);
    return S_ISDIR(st.st_mode) ? put_dir(t, fd, name, err) : 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void free_names(char **names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

static int list_names(int fd, char ***out, size_t *out_n, struct err *err)
{
    int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = again >= 0 ? fdopendir(again) : NULL;
    char **names = NULL;
    size_t n = 0, cap = 0;
    bool failed = false;

    if (!d) {
        if (again >= 0)
            close(again);
        return err_set(err, ERR_IO, "a directory cannot be read: %s", strerror(errno));
    }
    for (struct dirent *e = readdir(d); e && !failed; e = readdir(d)) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        if (n == cap) {
            char **more = realloc(names, (cap = cap ? 2 * cap : 64) * sizeof *names);
            failed = !more;
            names = more ? more : names;
        }
        failed = failed || !(names[n] = strdup(e->d_name));
        n += !failed;
    }
    closedir(d);
    if (failed) {
        free_names(names, n);
        return err_set(err, ERR_NOMEM, "no memory for names");
    }
    if (n)
        qsort(names, n, sizeof *names, by_name);
    *out = names;
    *out_n = n;
    return 0;
}

static int put_dir(struct tar *t, int fd, const char *name, struct err *err)
{
    char **names = NULL;
    size_t n = 0;
    OWN_BUF path = BUF_INIT;

    buf_printf(&path, "%s/", name);
    if (++t->depth > DEPTH_MAX)
        return err_set(err, ERR_INVALID, "%.100s: more than %d directories deep", name, DEPTH_MAX);
    if (path.failed)
        return err_set(err, ERR_NOMEM, "no memory for a name");
    if (put_entry(t, '5', path.data, "", 0755, 0, err) < 0 || list_names(fd, &names, &n, err) < 0)
        return -(int)err->code;
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        buf_clear(&path);
        buf_printf(&path, "%s/%s", name, names[i]);
        rc = path.failed ? err_set(err, ERR_NOMEM, "no memory for a name")
                         : put_one(t, fd, names[i], path.data, err);
    }
    free_names(names, n);
    t->depth--;
    return rc;
}

int tar_write(int dir, tar_sink *put, void *arg, struct err *err)
{
    static const char end[2 * BLOCK];
    OWN_MEM char *piece = malloc(PIECE);
    struct tar t = { .put = put, .arg = arg, .piece = piece };

    if (!piece)
        return err_set(err, ERR_NOMEM, "no memory to pack a directory");
    return put_dir(&t, dir, ".", err) < 0 ? -(int)err->code : put(arg, end, sizeof end, err);
}
