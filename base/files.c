/* base/files.c - whole files: read them, and replace them so that no crash or full disk hurts */
#include "base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/http.h"

/* Failure injection: every call that can run out of disk passes through `faulty`. */

enum call { CALL_OPEN, CALL_WRITE, CALL_FSYNC, CALL_RENAME, CALL_ANY, CALL_KINDS };
static const char *const call_name[CALL_KINDS] = { "open", "write", "fsync", "rename", "any" };
static _Atomic int fault_kind = -1;
static _Atomic long fault_left;
static pthread_once_t fault_once = PTHREAD_ONCE_INIT;

static void fault_arm(const char *kind, size_t kind_n, long n)
{
    fault_kind = -1;
    for (int k = 0; n > 0 && k < CALL_KINDS; k++) {
        if (strlen(call_name[k]) == kind_n && !memcmp(call_name[k], kind, kind_n)) {
            fault_left = n;
            fault_kind = k;
        }
    }
}

static void fault_from_env(void)
{
    const char *env = getenv("MUSTER_FAULT");
    const char *colon = env ? strchr(env, ':') : NULL;
    if (colon)
        fault_arm(env, colon - env, strtol(colon + 1, NULL, 10));
}

void files_fault(const char *kind, long n)
{
    pthread_once(&fault_once, fault_from_env);
    fault_arm(kind ? kind : "", kind ? strlen(kind) : 0, kind ? n : 0);
}

/* True when this call has to fail; errno is set. */
static int faulty(enum call call)
{
    pthread_once(&fault_once, fault_from_env);
    int kind = fault_kind;
    if ((kind != (int)call && kind != CALL_ANY) || atomic_fetch_sub(&fault_left, 1) > 1)
        return 0;
    errno = ENOSPC;
    return 1;
}

static char *join(const char *a, const char *b, const char *c)
{
    char *s;
    return asprintf(&s, "%s%s%s", a, b, c) < 0 ? NULL : s;
}

static const char *home(void)
{
    const char *h = getenv("HOME");
    return h && *h ? h : "/";
}

static char *data_dir(void)
{
    const char *data = getenv("MUSTER_DATA"), *cache = getenv("XDG_CACHE_HOME");
    if (data && *data)
        return strdup(data);
    return cache && *cache ? join(cache, "/muster/data", "")
                           : join(home(), "/.cache/muster/data", "");
}

char *files_resolve(const char *dir, const char *path)
{
    /* Longest first, and both need a '/' or the end after them: ~user is a name like any other. */
    static const char *const data_names[] = { "${MUSTER_DATA}", "$MUSTER_DATA" };
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(data_names[i]);
        if (!strncmp(path, data_names[i], n) && (!path[n] || path[n] == '/')) {
            OWN_MEM char *data = data_dir();
            return data ? join(data, path + n, "") : NULL;
        }
    }
    if (path[0] == '~' && (!path[1] || path[1] == '/'))
        return join(home(), path + 1, "");
    if (path[0] == '/' || !dir || !*dir || http_is_url(path))
        return strdup(path);
    return join(dir, dir[strlen(dir) - 1] == '/' ? "" : "/", path);
}

/* One sentence for a failed call, with a way out where there is one. */
static int say(struct err *err, const char *verb, const char *path)
{
    int e = errno;
    if (e == ENOENT)
        return err_set(err, ERR_MISSING, "cannot %s %s: there is no such file or directory", verb,
                       path);
    if (e == EACCES || e == EPERM || e == EROFS)
        return err_set(err, ERR_DENIED, "cannot %s %s: %s", verb, path, strerror(e));
    if (e == ENOSPC || e == EDQUOT)
        return err_set(err, ERR_IO,
                       "cannot %s %s: the disk is full (what was there before is kept; free some "
                       "space and try again)", verb, path);
    return err_set(err, ERR_IO, "cannot %s %s: %s", verb, path, strerror(e));
}

int files_read(const char *path, size_t max, char **out, size_t *out_n, struct err *err)
{
    if (http_is_url(path))
        return http_read(path, max, out, out_n, err);
    int is_stdin = !strcmp(path, "-");
    const char *name = is_stdin ? "standard input" : path;
    OWN_FD int opened = is_stdin ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    int fd = is_stdin ? STDIN_FILENO : opened;
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0)
        return say(err, "read", name);
    if (S_ISDIR(st.st_mode))
        return err_set(err, ERR_INVALID, "%s is a directory, not a file", name);

    /* The size is a hint only: a pipe has none and a file may grow while it is read. */
    size_t cap = S_ISREG(st.st_mode) ? (size_t)st.st_size + 1 : 1 << 16, n = 0;
    if (cap > max)
        cap = max + 1;
    OWN_MEM char *text = malloc(cap + 1);
    while (text) {
        ssize_t got = read(fd, text + n, cap - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return say(err, "read", name);
        n += (size_t)got;
        if (n > max)
            return err_set(err, ERR_INVALID, "%s is longer than %zu bytes", name, max);
        if (!got)
            break;
        if (n == cap) {
            cap = cap < max / 2 ? cap * 2 : max + 1;
            char *more = realloc(text, cap + 1);
            if (!more)
                free(TAKE(text));
            else
                text = more;
        }
    }
    if (!text)
        return err_set(err, ERR_NOMEM, "no memory to read %s", name);
    text[n] = '\0';
    *out = TAKE(text);
    if (out_n)
        *out_n = n;
    return 0;
}

int files_mkdir(const char *path, struct err *err)
{
    OWN_MEM char *part = strdup(path);
    if (!part)
        return err_set(err, ERR_NOMEM, "no memory to create %s", path);

    for (char *p = part + 1; *part; p++) {
        char was = *p;
        if (was && was != '/')
            continue;
        *p = '\0';
        if (mkdir(part, 0777) < 0) {
            struct stat st;
            int e = errno;
            if (e != EEXIST || stat(part, &st) < 0) {
                errno = e;
                return say(err, "create directory", part);
            }
            if (!S_ISDIR(st.st_mode))
                return err_set(err, ERR_CONFLICT, "%s is a file; a directory is needed there",
                               part);
        }
        if (!was)
            break;
        *p = was;
    }
    return 0;
}

/* The writer. */

enum { GATHER_BYTES = 1 << 16 };

struct file_writer {
    char *path, *tmp;
    int fd;
    int committed;
    size_t used;
    char gathered[GATHER_BYTES];
};

static int flush_bytes(struct file_writer *w, const char *p, size_t n, struct err *err)
{
    while (n) {
        ssize_t put = faulty(CALL_WRITE) ? -1 : write(w->fd, p, n);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return say(err, "write", w->path);
        p += put;
        n -= (size_t)put;
    }
    return 0;
}

enum { TRIES_MAX = 1000 };

int file_writer_open(const char *path, struct file_writer **out, struct err *err)
{
    static _Atomic unsigned count;      /* two writers of one path do not share a file */
    OWN(file_writer) w = calloc(1, sizeof *w);
    if (!w)
        return err_set(err, ERR_NOMEM, "no memory to write %s", path);

    w->fd = -1;
    w->path = strdup(path);
    /* One that was killed may have left such a file, under a number that is ours now: in a sandbox
     * numbers begin anew. */
    for (int tries = 0; w->fd < 0 && tries < TRIES_MAX; tries++) {
        free(w->tmp);
        if (asprintf(&w->tmp, "%s.tmp-%d-%u", path, (int)getpid(), count++) < 0)
            w->tmp = NULL;
        if (!w->path || !w->tmp)
            return err_set(err, ERR_NOMEM, "no memory to write %s", path);
        w->fd = faulty(CALL_OPEN) ? -1
                                  : open(w->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (w->fd < 0 && errno != EEXIST)
            break;
    }
    if (w->fd < 0)
        return say(err, "write", path);
    *out = TAKE(w);
    return 0;
}

int file_writer_write(struct file_writer *w, const void *data, size_t n, struct err *err)
{
    int rc;

    if (n > GATHER_BYTES - w->used) {
        if ((rc = flush_bytes(w, w->gathered, w->used, err)) < 0)
            return rc;
        w->used = 0;
        if (n >= GATHER_BYTES)
            return flush_bytes(w, data, n, err);
    }
    memcpy(w->gathered + w->used, data, n);
    w->used += n;
    return 0;
}

/* Opened before the rename, so that the only thing that can fail after it is the fsync itself. */
static int open_parent(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    OWN_MEM char *dir = strndup(path, slash == path ? 1 : (size_t)(slash - path));
    return dir ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
}

int file_writer_commit(struct file_writer *w, struct err *err)
{
    int rc = flush_bytes(w, w->gathered, w->used, err);
    if (rc < 0)
        return rc;
    w->used = 0;

    OWN_FD int dir = open_parent(w->path);
    if (dir < 0 || faulty(CALL_FSYNC) || fsync(w->fd) < 0 || faulty(CALL_RENAME) ||
        rename(w->tmp, w->path) < 0)
        return say(err, "write", w->path);
    w->committed = 1;

    /* The new file is in place and whole; only its name may not survive a power cut. */
    if (faulty(CALL_FSYNC) || fsync(dir) < 0)
        return err_set(err, ERR_IO, "wrote %s, but its directory cannot be made durable: %s",
                       w->path, strerror(errno));
    return 0;
}

void file_writer_free(struct file_writer *w)
{
    if (!w)
        return;
    if (w->fd >= 0) {
        close(w->fd);
        if (!w->committed)
            unlink(w->tmp);
    }
    free(w->tmp);
    free(w->path);
    free(w);
}

int files_write(const char *path, const void *data, size_t n, struct err *err)
{
    OWN(file_writer) w = NULL;
    int rc = file_writer_open(path, &w, err);
    if (rc < 0)
        return rc;
    if ((rc = file_writer_write(w, data, n, err)) < 0)
        return rc;
    return file_writer_commit(w, err);
}
