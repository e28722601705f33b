/* cli/serve_data.c - muster serve --backup
 *
 * A backup begins with a snapshot of the database. Content is named by its digest and never
 * changes, so that it may be copied after; only the sweeper can be faster, when an object was
 * deleted meanwhile: then a newer snapshot does not name it any more, and one is taken.
 */
#include "cli/serve_data.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/files.h"
#include "base/own.h"
#include "base/sha256.h"
#include "server/server.h"

enum { SNAPSHOTS = 5, PATH_SIZE = 4096 };

int serve_open_store(const char *dir, struct server *s, struct err *err)
{
    char path[PATH_SIZE];

    *s = (struct server){ .data_dir = dir };
    snprintf(path, sizeof path, "%s/muster.db", dir);
    if (access(path, F_OK) < 0)
        return err_set(err, ERR_MISSING,
                       "%s is no data directory of muster serve: it has no muster.db", dir);
    return store_open(dir, &s->store, err);
}

/* ------------------------------------------------------------ content */

struct contents {
    const char *dir;
    int (*each)(struct contents *c, const char *path, const char *sha256, int64_t size,
                struct err *err);
    const char *to;
    int64_t n, bytes, damaged;
};

static int has_table(sqlite3 *db, struct err *err)
{
    sqlite3_stmt *st = store_sql(db, "SELECT 1 FROM sqlite_master WHERE name = 'contents'", err);
    int rc = st ? store_step(st, err) : -(int)err->code;

    if (rc > 0)
        sqlite3_reset(st);
    return rc;
}

/* Calls `each` for every content that lies in a file. */
static int walk_contents(sqlite3 *db, void *arg, struct err *err)
{
    struct contents *c = arg;
    int rc = has_table(db, err);

    if (rc <= 0)
        return rc;
    sqlite3_stmt *st = store_sql(db,
                                 "SELECT sha256, size FROM contents WHERE refs > 0 AND bytes IS "
                                 "NULL",
                                 err);
    if (!st)
        return -(int)err->code;
    while ((rc = store_step(st, err)) > 0) {
        char sha256[65], path[PATH_SIZE];
        if (sqlite3_column_bytes(st, 0) != 32) {
            rc = err_set(err, ERR_IO,
                         "the database is damaged: a digest of content has not 32 bytes");
            break;
        }
        sha256_hex(sqlite3_column_blob(st, 0), sha256);
        snprintf(path, sizeof path, "blobs/%.2s/%s", sha256, sha256 + 2);
        rc = c->each(c, path, sha256, sqlite3_column_int64(st, 1), err);
        if (rc < 0)
            break;
        c->n++;
    }
    sqlite3_reset(st);
    return rc;
}

/* ------------------------------------------------------------ copies */

/* The same blocks where the disk can share them. As a system call. */
static int copy_piece(int in, int out, off_t at, off_t end)
{
    char bytes[65536];
    off_t to = at;
    ssize_t n = 1;

    while (at < end && (n = copy_file_range(in, &at, out, &to, (size_t)(end - at), 0)) > 0)
        continue;
    while (n < 0 && at < end) {
        ssize_t got = pread(in, bytes, sizeof bytes, at);
        if (got <= 0)
            return (int)got;
        if (pwrite(out, bytes, (size_t)got, at) != got)
            return -1;
        at += got;
    }
    return 0;
}

/* What is nothing but zeros takes no room there either. */
static int copy_data(int in, int out)
{
    struct stat st;

    if (fstat(in, &st) < 0 || ftruncate(out, st.st_size) < 0)
        return -1;
    for (off_t at = 0, end; (at = lseek(in, at, SEEK_DATA)) >= 0; at = end)
        if ((end = lseek(in, at, SEEK_HOLE)) < 0 || copy_piece(in, out, at, end) < 0)
            return -1;
    return errno == ENXIO ? 0 : -1;     /* no data from there on */
}

static int copy_file(const char *from, const char *to, mode_t mode, struct err *err)
{
    OWN_FD int in = open(from, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (in < 0)
        return err_set(err, errno == ENOENT ? ERR_MISSING : ERR_IO, "cannot read %s: %s", from,
                       strerror(errno));
    OWN_FD int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    if (out < 0)
        return err_set(err, ERR_IO, "cannot write %s: %s", to, strerror(errno));
    if (fchmod(out, mode) < 0 || copy_data(in, out) < 0 || fsync(out) < 0)
        return err_set(err, ERR_IO, "cannot copy %s to %s: %s", from, to, strerror(errno));
    return 0;
}

/* The copy: what was read is what is compared. */
static bool is_content(const char *path, const char *sha256)
{
    unsigned char bytes[65536];
    char found[65];
    struct sha256 h;
    ssize_t n = -1;

    OWN_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    sha256_start(&h);
    while (fd >= 0 && (n = read(fd, bytes, sizeof bytes)) > 0)
        sha256_add(&h, bytes, (size_t)n);
    sha256_finish_hex(&h, found);
    return n == 0 && !strcmp(found, sha256);
}

static int copy_content(struct contents *c, const char *path, const char *sha256, int64_t size,
                        struct err *err)
{
    char from[PATH_SIZE * 2], to[PATH_SIZE * 2], folder[PATH_SIZE * 2];

    snprintf(from, sizeof from, "%s/%s", c->dir, path);
    snprintf(to, sizeof to, "%s/%s", c->to, path);
    snprintf(folder, sizeof folder, "%s/blobs/%.2s", c->to, sha256);
    struct stat st;
    if (stat(to, &st) == 0 && st.st_size == size)
        return 0;               /* of a snapshot before */
    c->bytes += size;
    if (files_mkdir(folder, err) < 0 || copy_file(from, to, 0600, err) < 0)
        return -(int)err->code;
    if (!is_content(to, sha256)) {
        printf("%s has changed on the disk: the content of an object is damaged\n", from);
        c->damaged++;
    }
    return 0;
}

/* nftw has no argument of its own. */
static struct { const char *from, *to; struct err *err; long n; } tree;

/* Of a server that is root: steps, which are not, go on writing to their volumes. */
static int keep_owner(const char *to, const struct stat *st)
{
    return geteuid() == 0 && lchown(to, st->st_uid, st->st_gid) < 0
        ? err_set(tree.err, ERR_IO, "cannot give %s its owner: %s", to, strerror(errno)) : 0;
}

static int copy_entry(const char *path, const struct stat *st, int flag, struct FTW *at)
{
    char to[PATH_SIZE * 2], target[PATH_SIZE];

    (void)at;
    snprintf(to, sizeof to, "%s%s", tree.to, path + strlen(tree.from));
    if (flag == FTW_D) {
        if (mkdir(to, st->st_mode & 07777) < 0 && errno != EEXIST)
            return err_set(tree.err, ERR_IO, "cannot make %s: %s", to, strerror(errno));
        chmod(to, st->st_mode & 07777);
        return keep_owner(to, st);
    }
    if (flag == FTW_SL) {
        ssize_t n = readlink(path, target, sizeof target - 1);
        target[n > 0 ? n : 0] = '\0';
        return n > 0 && symlink(target, to) < 0 && errno != EEXIST
            ? err_set(tree.err, ERR_IO, "cannot make %s: %s", to, strerror(errno)) : 0;
    }
    if (flag != FTW_F || !S_ISREG(st->st_mode))
        return 0;
    int rc = copy_file(path, to, st->st_mode & 07777, tree.err);
    tree.n += rc == 0;
    if (rc < 0)
        return rc == -ERR_MISSING ? 0 : rc;     /* a job that runs may remove its own */
    return keep_owner(to, st);
}

static int copy_tree(const char *from, const char *to, struct err *err)
{
    tree.from = from;
    tree.to = to;
    tree.err = err;
    tree.n = 0;
    if (access(from, F_OK) < 0)
        return 0;
    int rc = nftw(from, copy_entry, 32, FTW_PHYS);
    if (rc == -1)
        return err_set(err, ERR_IO, "cannot copy %s: %s", from, strerror(errno));
    return rc;
}

static int make_empty(const char *to, struct err *err)
{
    if (files_mkdir(to, err) < 0)
        return -(int)err->code;
    DIR *d = opendir(to);
    int n = 0;
    for (const struct dirent *e; d && (e = readdir(d));)
        n += strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
    if (d)
        closedir(d);
    if (n)
        return err_set(err, ERR_CONFLICT, "%s is not empty: a backup takes a new directory", to);
    if (chmod(to, 0700) < 0)
        return err_set(err, ERR_IO, "cannot keep %s to its owner: %s", to, strerror(errno));
    return 0;
}

/* The database and what it names. */
static int copy_snapshot(struct server *s, const char *dir, const char *to, struct contents *c,
                         struct err *err)
{
    char path[PATH_SIZE];

    snprintf(path, sizeof path, "%s/muster.db", to);
    for (int i = 1;; i++) {
        OWN(store) copy = NULL;
        unlink(path);
        *c = (struct contents){ .dir = dir, .to = to, .each = copy_content };
        if (store_backup(s->store, path, err) < 0 || store_open(to, &copy, err) < 0)
            return -(int)err->code;
        int rc = store_read(copy, walk_contents, c, err);
        if (rc != -ERR_MISSING || i == SNAPSHOTS)
            return rc;
    }
}

int serve_backup(const char *dir, const char *to, struct err *err)
{
    struct server s;
    struct contents c;
    char from_path[PATH_SIZE], to_path[PATH_SIZE];

    if (serve_open_store(dir, &s, err) < 0)
        return -(int)err->code;
    OWN(store) store = s.store;
    (void)store;                /* closed at the end */
    umask(077);                 /* the database and what it names are its owner's alone */
    if (make_empty(to, err) < 0 || copy_snapshot(&s, dir, to, &c, err) < 0)
        return -(int)err->code;
    /* Not secrets.key: a backup alone must not give secrets away (server/vault.h). */
    static const char *const files[] = { "token", "runtimes.yaml", NULL };
    for (int i = 0; files[i]; i++) {
        snprintf(from_path, sizeof from_path, "%s/%s", dir, files[i]);
        snprintf(to_path, sizeof to_path, "%s/%s", to, files[i]);
        int rc = copy_file(from_path, to_path, 0600, err);
        if (rc < 0 && rc != -ERR_MISSING)
            return rc;
    }
    snprintf(from_path, sizeof from_path, "%s/jobs", dir);
    snprintf(to_path, sizeof to_path, "%s/jobs", to);
    if (copy_tree(from_path, to_path, err) < 0)
        return -(int)err->code;
    const long jobs = tree.n;
    snprintf(from_path, sizeof from_path, "%s/volumes", dir);
    snprintf(to_path, sizeof to_path, "%s/volumes", to);
    if (copy_tree(from_path, to_path, err) < 0)
        return -(int)err->code;
    const int64_t damaged = c.damaged + serve_check_logs(to);
    if (damaged)
        return err_set(err, ERR_IO, "%s is a copy of what there is, and %lld part%s of it %s damaged "
                       "(muster serve --check --data-dir %s lists all damage)", to,
                       (long long)damaged, damaged == 1 ? "" : "s", damaged == 1 ? "is" : "are", to);
    printf("%s holds the database, %lld contents, %ld files of jobs and %ld of volumes (muster "
           "serve --data-dir %s goes on from there)\n", to, (long long)c.n, jobs, tree.n, to);
    snprintf(from_path, sizeof from_path, "%s/secrets.key", dir);
    if (access(from_path, F_OK) == 0)
        printf("it does not hold the key of secrets: keep a copy of %s elsewhere\n", from_path);
    return 0;
}
