/* base/files.c - whole files: read them, and replace them so that no crash or full disk hurts */
#include "base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/xattr.h>

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
                struct stat link;
                if (e == EEXIST && lstat(part, &link) == 0 && S_ISLNK(link.st_mode))
                    return err_set(err, ERR_MISSING,
                                   "cannot create directory %s: it is a symbolic link to something "
                                   "that is not there (create that, or remove the link)", part);
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
    char *path, *tmp;           /* tmp NULL: written through, `path` is for messages alone */
    char *shown;                /* how messages call it */
    int fd;
    int committed;
    size_t used;
    struct err failed;          /* of a write through file_writer_stream; code 0: none */
    char gathered[GATHER_BYTES];
};

/* A failed write, with what it means for what was there before. */
static int say_write(struct file_writer *w, struct err *err)
{
    if (w->tmp)
        return say(err, "write", w->shown);
    return err_set(err, errno == EACCES || errno == EPERM ? ERR_DENIED : ERR_IO,
                   "cannot write %s: %s", w->shown, strerror(errno));
}

static int flush_bytes(struct file_writer *w, const char *p, size_t n, struct err *err)
{
    while (n) {
        ssize_t put = faulty(CALL_WRITE) ? -1 : write(w->fd, p, n);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0 && errno == EAGAIN) {       /* a descriptor that we were given may not block */
            poll(&(struct pollfd){ .fd = w->fd, .events = POLLOUT }, 1, -1);
            continue;
        }
        if (put < 0)
            return say_write(w, err);
        p += put;
        n -= (size_t)put;
    }
    return 0;
}

/* `shown` NULL: as `path`. */
static int writer_new(const char *path, const char *shown, struct file_writer **out,
                      struct err *err)
{
    OWN(file_writer) w = calloc(1, sizeof *w);
    if (w) {
        w->fd = -1;
        w->path = strdup(path);
        w->shown = strdup(shown ? shown : path);
    }
    if (!w || !w->path || !w->shown)
        return err_set(err, ERR_NOMEM, "no memory to write %s", path);
    *out = TAKE(w);
    return 0;
}

enum { TRIES_MAX = 1000, TMP_NAME_MAX = 200 };

/* The new file beside the old one. */
static int open_beside(struct file_writer *w, mode_t mode)
{
    static _Atomic unsigned count;      /* two writers of one path do not share a file */
    const char *slash = strrchr(w->path, '/');
    size_t name = slash ? (size_t)(slash - w->path) + 1 : 0;
    size_t n = strlen(w->path + name);

    /* A writer that was killed may have left such a file, under a number that is ours now: in a
     * sandbox numbers begin anew. A long name is cut, for the number to fit behind it. */
    n = name + (n < TMP_NAME_MAX ? n : TMP_NAME_MAX);
    for (int tries = 0; w->fd < 0 && tries < TRIES_MAX; tries++) {
        free(w->tmp);
        if (asprintf(&w->tmp, "%.*s.tmp-%d-%u", (int)n, w->path, (int)getpid(), count++) < 0) {
            w->tmp = NULL;
            errno = ENOMEM;
            return -1;
        }
        w->fd = faulty(CALL_OPEN) ? -1
                                  : open(w->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (w->fd < 0 && errno != EEXIST)
            break;
    }
    return w->fd < 0 ? -1 : 0;
}

int file_writer_open(const char *path, struct file_writer **out, struct err *err)
{
    OWN(file_writer) w = NULL;
    if (writer_new(path, NULL, &w, err) < 0)
        return -(int)err->code;
    if (open_beside(w, 0666) < 0)
        return say(err, "write", path);
    *out = TAKE(w);
    return 0;
}

/* Paths that a user names. */

enum { LINKS_MAX = 40 };        /* as many as the kernel follows */

/* Whether `path` is one of the links /proc/PID/fd/N; *out_fd is N where PID is this process, else
 * -1. Such a link leads to an open file, which may have no name: it is not followed by name. */
static int is_descriptor(const char *path, int *out_fd)
{
    char dir[PATH_MAX], self[32], own[64];
    const char *slash = strrchr(path, '/');
    char *end;

    *out_fd = -1;
    if (!slash || !slash[1] || strspn(slash + 1, "0123456789") != strlen(slash + 1))
        return 0;
    OWN_MEM char *parent = strndup(path, (size_t)(slash - path));
    if (!parent || !realpath(*parent ? parent : "/", dir) || strncmp(dir, "/proc/", 6))
        return 0;
    size_t n = strlen(dir);
    if (n < 3 || strcmp(dir + n - 3, "/fd"))
        return 0;
    /* "self" is the number in the name space of this /proc, which getpid need not give. */
    ssize_t length = readlink("/proc/self", self, sizeof self - 1);
    self[length > 0 ? length : 0] = '\0';
    snprintf(own, sizeof own, "/proc/%s/", self);
    long fd = strtol(slash + 1, &end, 10);
    if (!strncmp(dir, own, strlen(own)) && fd >= 0 && fd <= INT_MAX)
        *out_fd = (int)fd;
    return 1;
}

/* The path behind the links of `path`. Returns 1 where that is a link of /proc/PID/fd, else 0, or
 * -1 with errno. What it leads to need not exist. */
static int follow_links(const char *path, char at[PATH_MAX], int *out_fd)
{
    char link[PATH_MAX], dir[PATH_MAX];
    struct stat st;

    *out_fd = -1;
    /* The kernel's rule for links in /tmp and the like (fs.protected_symlinks) holds here, too. */
    if (stat(path, &st) < 0 && errno == EACCES)
        return -1;
    if ((size_t)snprintf(at, PATH_MAX, "%s", path) >= PATH_MAX) {
        errno = ENAMETOOLONG;
        return -1;
    }
    for (int i = 0; i <= LINKS_MAX; i++) {
        ssize_t n = readlink(at, link, sizeof link - 1);
        if (n < 0)
            return errno == EINVAL || errno == ENOENT ? 0 : -1;
        link[n] = '\0';
        if (is_descriptor(at, out_fd))
            return 1;
        const char *slash = strrchr(at, '/');
        size_t keep = link[0] == '/' || !slash ? 0 : (size_t)(slash - at) + 1;
        memcpy(dir, at, keep);
        dir[keep] = '\0';
        if ((size_t)snprintf(at, PATH_MAX, "%s%s", dir, link) >= PATH_MAX) {
            errno = ENAMETOOLONG;
            return -1;
        }
    }
    errno = ELOOP;
    return -1;
}

static int connect_to(const char *path)
{
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    if ((size_t)snprintf(to.sun_path, sizeof to.sun_path, "%s", path) >= sizeof to.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) < 0) {
        int e = errno;
        close(fd);
        errno = e;
        return -1;
    }
    return fd;
}

/* POSIX access lists and what users attached; a file system without them has none. */
static void keep_attributes(const char *from, int to)
{
    char names[4096], value[4096];
    ssize_t n = listxattr(from, names, sizeof names);

    for (const char *name = names; n > 0 && name < names + n; name += strlen(name) + 1) {
        if (strncmp(name, "user.", 5) && strcmp(name, "system.posix_acl_access"))
            continue;
        ssize_t size = getxattr(from, name, value, sizeof value);
        if (size >= 0 && fsetxattr(to, name, value, (size_t)size, 0) < 0)
            continue;           /* it stays without */
    }
}

/* What the old file was to others, the new one is. Only root may give a file to another owner; who
 * cannot keep the group gives the new group no more than everybody has. */
static int keep_owner(const struct file_writer *w, const struct stat *was)
{
    mode_t mode = was->st_mode & 0777;
    struct stat now;

    if (fstat(w->fd, &now) < 0)
        return -1;
    if ((now.st_uid != was->st_uid || now.st_gid != was->st_gid) &&
        fchown(w->fd, was->st_uid, was->st_gid) < 0 && fchown(w->fd, (uid_t)-1, was->st_gid) < 0)
        mode = (mode & 0707) | (mode & 07) << 3;
    if (fchmod(w->fd, mode) < 0)
        return -1;
    keep_attributes(w->path, w->fd);
    return 0;
}

/* A regular file, or none yet: the new one is made in its directory. */
static int output_replace(struct file_writer *w, const struct stat *was, struct err *err)
{
    if (was && faccessat(AT_FDCWD, w->path, W_OK, AT_EACCESS) < 0)
        return say(err, "write", w->shown);
    if (open_beside(w, was ? 0600 : 0666) < 0) {
        int e = errno;
        if (was && (e == EACCES || e == EPERM || e == EROFS))
            return err_set(err, ERR_DENIED,
                           "cannot write %s: a file is replaced whole, and its directory takes no "
                           "new file: %s (choose another directory, or write to standard output)",
                           w->shown, strerror(e));
        return say(err, "write", w->shown);
    }
    return was && keep_owner(w, was) < 0 ? say(err, "write", w->shown) : 0;
}

/* Anything else: `of_fd` where it is a descriptor of ours, -1: by its name. */
static int output_through(struct file_writer *w, const struct stat *is, int of_fd, struct err *err)
{
    if (of_fd >= 0)
        w->fd = fcntl(of_fd, F_DUPFD_CLOEXEC, 3);
    else if (is && S_ISSOCK(is->st_mode))
        w->fd = connect_to(w->path);
    else                        /* a file that another process has open is added to */
        w->fd = open(w->path, O_WRONLY | O_NOCTTY | O_CLOEXEC | (is ? 0 : O_APPEND));
    return w->fd < 0 ? say(err, "write", w->shown) : 0;
}

int file_writer_output(const char *path, struct file_writer **out, struct err *err)
{
    OWN(file_writer) w = NULL;
    OWN_MEM char *shown = NULL;
    char at[PATH_MAX] = "-";
    int fd = STDOUT_FILENO, through = 1;
    struct stat st;

    if (strcmp(path, "-") && (through = follow_links(path, at, &fd)) < 0)
        return say(err, "write", path);
    int there = !through && stat(at, &st) == 0;
    if (!through && !there && errno != ENOENT)
        return say(err, "write", path);
    if (there && S_ISDIR(st.st_mode))
        return err_set(err, ERR_INVALID, "%s is a directory; the name of a file is needed", path);

    if (!strcmp(path, "-"))
        shown = strdup("standard output");
    else if (strcmp(path, at) && asprintf(&shown, "%s (a link to %s)", path, at) < 0)
        shown = NULL;
    if (writer_new(at, shown, &w, err) < 0)
        return -(int)err->code;
    if (through || (there && !S_ISREG(st.st_mode)))
        through = output_through(w, there ? &st : NULL, fd, err);
    else
        through = output_replace(w, there ? &st : NULL, err);
    if (through < 0)
        return through;
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

static ssize_t stream_write(void *cookie, const char *data, size_t n)
{
    struct file_writer *w = cookie;
    struct err err = { 0 };

    if (!w->failed.code && file_writer_write(w, data, n, &err) < 0)
        w->failed = err;
    if (!w->failed.code)
        return (ssize_t)n;
    errno = EIO;
    return 0;                   /* how a cookie says that it failed */
}

FILE *file_writer_stream(struct file_writer *w)
{
    return fopencookie(w, "w", (cookie_io_functions_t){ .write = stream_write });
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

/* Devices, pipes and sockets know no fsync. */
static int commit_through(struct file_writer *w, struct err *err)
{
    if (fsync(w->fd) < 0 && errno != EINVAL && errno != EROFS && errno != ENOTSUP)
        return say_write(w, err);
    w->committed = 1;
    return 0;
}

int file_writer_commit(struct file_writer *w, struct err *err)
{
    if (w->failed.code) {
        *err = w->failed;
        return -(int)err->code;
    }
    int rc = flush_bytes(w, w->gathered, w->used, err);
    if (rc < 0)
        return rc;
    w->used = 0;
    if (!w->tmp)
        return commit_through(w, err);

    /* A directory that may be written but not listed cannot be opened for fsync; its whole file
     * system can be synced instead. */
    OWN_FD int dir = open_parent(w->path);
    int by_file_system = dir < 0 && errno == EACCES;
    if ((dir < 0 && !by_file_system) || faulty(CALL_FSYNC) || fsync(w->fd) < 0 ||
        faulty(CALL_RENAME) || rename(w->tmp, w->path) < 0)
        return say(err, "write", w->shown);
    w->committed = 1;

    /* The new file is in place and whole; only its name may not survive a power cut. */
    if (faulty(CALL_FSYNC) || (by_file_system ? syncfs(w->fd) : fsync(dir)) < 0)
        return err_set(err, ERR_IO, "wrote %s, but its directory cannot be made durable: %s",
                       w->shown, strerror(errno));
    return 0;
}

void file_writer_free(struct file_writer *w)
{
    if (!w)
        return;
    if (w->fd >= 0) {
        close(w->fd);
        if (!w->committed && w->tmp)
            unlink(w->tmp);
    }
    free(w->tmp);
    free(w->path);
    free(w->shown);
    free(w);
}

/* Takes the writer. */
static int write_whole(struct file_writer *taken, const void *data, size_t n, struct err *err)
{
    OWN(file_writer) w = taken;
    int rc = file_writer_write(w, data, n, err);

    return rc < 0 ? rc : file_writer_commit(w, err);
}

int files_write(const char *path, const void *data, size_t n, struct err *err)
{
    struct file_writer *w = NULL;
    int rc = file_writer_open(path, &w, err);
    return rc < 0 ? rc : write_whole(w, data, n, err);
}

int files_output(const char *path, const void *data, size_t n, struct err *err)
{
    struct file_writer *w = NULL;
    int rc = file_writer_output(path, &w, err);
    return rc < 0 ? rc : write_whole(w, data, n, err);
}
