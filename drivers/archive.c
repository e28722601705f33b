/* drivers/archive.c - what is in a package, before anything unpacks it */
#include "drivers/archive.h"

#include <archive.h>
#include <archive_entry.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/own.h"
#include "drivers/sandbox.h"

enum { BLOCK = 64 << 10, METADATA_MAX = 1 << 20, CHECK_SECONDS = 60 };

/* ------------------------------------------------------------------ libarchive */

#define CALLS(X)                                                                        \
    X(archive_read_new) X(archive_read_support_filter_gzip) X(archive_read_support_filter_bzip2)  \
    X(archive_read_support_filter_xz) X(archive_read_support_format_tar)                \
    X(archive_read_support_format_zip) X(archive_read_open_fd) X(archive_read_open_memory)        \
    X(archive_read_next_header) X(archive_read_data) X(archive_read_free) X(archive_error_string) \
    X(archive_filter_bytes) X(archive_entry_pathname) X(archive_entry_filetype)         \
    X(archive_entry_hardlink) X(archive_entry_symlink)

static struct {
#define X(name) __typeof__(name) *name;
    CALLS(X)
#undef X
} lib;

static int load(struct err *err)
{
    static bool loaded;
    if (loaded)
        return 0;
    void *so = dlopen("libarchive.so.13", RTLD_NOW | RTLD_LOCAL);
    if (!so)
        return err_set(err, ERR_MISSING, "packages cannot be read: %s (install libarchive13)",
                       dlerror());
#define X(name)                                                                         \
    lib.name = (__typeof__(name) *)dlsym(so, #name);                                    \
    if (!lib.name)                                                                      \
        return err_set(err, ERR_MISSING, "packages cannot be read: libarchive has no %s", #name);
    CALLS(X)
#undef X
    loaded = true;
    return 0;
}

/* ------------------------------------------------------------------ metadata */

static size_t line_length(const char *p)
{
    return strcspn(p, "\n");
}

static void append_trimmed(struct buf *out, const char *p, size_t n, const char *marker,
                           size_t marker_n)
{
    while (n && (*p == ' ' || *p == '\t'))
        p++, n--;
    while (n && (p[n - 1] == ' ' || p[n - 1] == '\t' || p[n - 1] == '\r'))
        n--;
    if (!n || *p == '#')
        return;
    buf_append(out, p, n);
    if (marker_n)
        buf_printf(out, "; %.*s", (int)marker_n, marker);
    buf_text(out, "\n");
}

void archive_read_requires(const char *text, struct buf *out)
{
    const char *marker = "";
    size_t marker_n = 0;
    bool extra = false;

    for (const char *p = text; *p;) {
        size_t n = line_length(p);
        if (*p == '[') {        /* [extra], [extra:marker] or [:marker] */
            size_t end = strcspn(p, "]\n");
            extra = p[1] != ':';
            marker = p + 2;
            marker_n = extra || end < 2 ? 0 : end - 2;
        } else if (!extra) {
            append_trimmed(out, p, n, marker, marker_n);
        }
        p += n + (p[n] == '\n');
    }
}

void archive_read_metadata(const char *text, struct buf *out)
{
    static const char key[] = "Requires-Dist:";

    for (const char *p = text; *p && *p != '\n';) {     /* an empty line ends the headers */
        size_t n = line_length(p);
        if (n > sizeof key && !strncasecmp(p, key, sizeof key - 1) &&
            !memmem(p, n, "extra ==", 8) && !memmem(p, n, "extra==", 7))
            append_trimmed(out, p + sizeof key - 1, n - (sizeof key - 1), NULL, 0);
        p += n + (p[n] == '\n');
    }
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

/* ------------------------------------------------------------------ members */

static int check_name(const char *file, const char *name, struct err *err)
{
    if (!name || !*name)
        return err_set(err, ERR_INVALID, "%s: a member has no name", file);
    if (name[0] == '/' || name[0] == '\\' || (name[0] && name[1] == ':'))
        return err_set(err, ERR_INVALID, "%s: member \"%.100s\" has an absolute path", file, name);
    for (const char *p = name; *p; p += strcspn(p, "/\\"), p += *p != '\0')
        if (!strncmp(p, "..", 2) && (!p[2] || p[2] == '/' || p[2] == '\\'))
            return err_set(err, ERR_INVALID, "%s: member \"%.100s\" climbs out of the archive",
                           file, name);
    return 0;
}

static int check_kind(const char *file, struct archive_entry *e, const char *name, struct err *err)
{
    unsigned type = (unsigned)lib.archive_entry_filetype(e);
    if (lib.archive_entry_symlink(e) || lib.archive_entry_hardlink(e))
        return err_set(err, ERR_INVALID, "%s: member \"%.100s\" is a link; packages may hold none",
                       file, name);
    if (type != AE_IFREG && type != AE_IFDIR)
        return err_set(err, ERR_INVALID, "%s: member \"%.100s\" is neither a file nor a folder",
                       file, name);
    return 0;
}

struct checking {
    const char *file;
    struct archive *a;
    int64_t packed, unpacked;
    int members;
    struct buf requires, metadata;      /* what was found of each */
    bool has_requires, has_metadata, pyproject;
};

static int check_size(const struct checking *c, struct err *err)
{
    if (c->unpacked > ARCHIVE_BYTES_MAX)
        return err_set(err, ERR_INVALID, "%s: unpacks to more than %lld GB", c->file,
                       (long long)(ARCHIVE_BYTES_MAX >> 30));
    if (c->unpacked > ARCHIVE_RATIO_FREE && c->unpacked / ARCHIVE_RATIO_MAX > c->packed)
        return err_set(err, ERR_INVALID, "%s: unpacks to more than %d times its size: a bomb",
                       c->file, ARCHIVE_RATIO_MAX);
    return 0;
}

/* Read through, since a header may lie about the size. */
static int read_member(struct checking *c, const char *name, struct buf *keep, struct err *err)
{
    char block[BLOCK];
    la_ssize_t n;
    while ((n = lib.archive_read_data(c->a, block, sizeof block)) > 0) {
        c->unpacked += n;
        if (check_size(c, err) < 0)
            return -(int)err->code;
        if (keep && keep->n + (size_t)n <= METADATA_MAX)
            buf_append(keep, block, (size_t)n);
    }
    if (n < 0)
        return err_set(err, ERR_INVALID, "%s: member \"%.100s\" is damaged (%s)", c->file, name,
                       lib.archive_error_string(c->a));
    return 0;
}

/* The outermost metadata alone: a package may carry others inside it. */
static struct buf *kept(struct checking *c, const char *name)
{
    int depth = 0;
    for (const char *p = name; (p = strchr(p, '/')); p++)
        depth++;
    if (ends_with(name, ".egg-info/requires.txt") && !c->has_requires)
        return c->has_requires = true, &c->requires;
    if ((ends_with(name, ".dist-info/METADATA") || (ends_with(name, "/PKG-INFO") && depth == 1)) &&
        depth == 1 && !c->has_metadata)
        return c->has_metadata = true, &c->metadata;
    if (ends_with(name, "/pyproject.toml") && depth == 1)
        c->pyproject = true;
    return NULL;
}

static int check_members(struct checking *c, struct err *err)
{
    struct archive_entry *e;
    int rc;

    while ((rc = lib.archive_read_next_header(c->a, &e)) == ARCHIVE_OK || rc == ARCHIVE_WARN) {
        const char *name = lib.archive_entry_pathname(e);
        if (++c->members > ARCHIVE_MEMBERS_MAX)
            return err_set(err, ERR_INVALID, "%s: has more than %d members", c->file,
                           ARCHIVE_MEMBERS_MAX);
        if (check_name(c->file, name, err) < 0 || check_kind(c->file, e, name, err) < 0)
            return -(int)err->code;
        char copy[512];
        snprintf(copy, sizeof copy, "%s", name);
        if (read_member(c, copy, kept(c, copy), err) < 0)
            return -(int)err->code;
    }
    if (rc != ARCHIVE_EOF)
        return err_set(err, ERR_INVALID, "%s: is damaged or no archive (%s)", c->file,
                       lib.archive_error_string(c->a));
    if (!c->members)
        return err_set(err, ERR_INVALID, "%s: is empty", c->file);
    return 0;
}

static int check_open(struct checking *c, struct archive_facts *out, struct err *err)
{
    OWN_BUF names = BUF_INIT;

    if (check_members(c, err) < 0)
        return -(int)err->code;
    if (c->requires.data)
        archive_read_requires(c->requires.data, &names);
    else if (c->metadata.data)
        archive_read_metadata(c->metadata.data, &names);
    if (buf_ok(&names, err) < 0)
        return -(int)err->code;
    out->pyproject = c->pyproject;
    /* An sdist of setuptools without requirements has no requires.txt, but says nothing else
     * either. */
    out->requirements = c->has_requires || c->has_metadata ? names.n ? buf_take(&names) : strdup("")
                                                           : NULL;
    return 0;
}

static int check(int fd, const void *bytes, size_t n, const char *name, struct archive_facts *out,
                 struct err *err)
{
    struct checking c = { .file = name, .packed = (int64_t)n };

    if (load(err) < 0)
        return -(int)err->code;
    c.a = lib.archive_read_new();
    if (!c.a)
        return err_set(err, ERR_NOMEM, "no memory to read %s", name);
    lib.archive_read_support_filter_gzip(c.a);
    lib.archive_read_support_filter_bzip2(c.a);
    lib.archive_read_support_filter_xz(c.a);
    lib.archive_read_support_format_tar(c.a);
    lib.archive_read_support_format_zip(c.a);
    int rc = bytes ? lib.archive_read_open_memory(c.a, bytes, n)
                   : lib.archive_read_open_fd(c.a, fd, BLOCK);
    rc = rc == ARCHIVE_OK ? check_open(&c, out, err)
       : err_set(err, ERR_INVALID, "%s: is no .tar.gz, .zip or .whl (%s)", name,
                 lib.archive_error_string(c.a));
    lib.archive_read_free(c.a);
    buf_done(&c.requires);
    buf_done(&c.metadata);
    return rc;
}

int archive_check_bytes(const void *bytes, size_t n, const char *name, struct archive_facts *out,
                        struct err *err)
{
    return check(-1, bytes, n, name, out, err);
}

/* ------------------------------------------------------------------ in a process of its own */

struct answer {
    struct err err;
    int rc;
    bool pyproject, has_requirements;
    size_t n;                   /* of the requirements, which follow */
};

__attribute__((noreturn))
static void check_without_rights(int fd, size_t size, const char *name, int to)
{
    struct answer a = { .rc = 0 };
    struct archive_facts facts = { 0 };
    struct rlimit memory = { 512 << 20, 512 << 20 }, seconds = { CHECK_SECONDS, CHECK_SECONDS };

    if ((a.rc = load(&a.err)) == 0) {
        setrlimit(RLIMIT_AS, &memory);
        setrlimit(RLIMIT_CPU, &seconds);
        prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if (geteuid() == 0 && (setgroups(0, NULL) < 0 ||
                               setresgid(SANDBOX_USER, SANDBOX_USER, SANDBOX_USER) < 0 ||
                               setresuid(SANDBOX_USER, SANDBOX_USER, SANDBOX_USER) < 0))
            _exit(1);
        a.rc = check(fd, NULL, size, name, &facts, &a.err);
    }
    a.pyproject = facts.pyproject;
    a.has_requirements = facts.requirements != NULL;
    a.n = facts.requirements ? strlen(facts.requirements) : 0;
    if (write(to, &a, sizeof a) == (ssize_t)sizeof a && a.n) {
        ssize_t n = write(to, facts.requirements, a.n);
        (void)n;
    }
    _exit(0);
}

static bool read_all(int fd, void *to, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t got = read(fd, (char *)to + at, n - at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        at += (size_t)got;
    }
    return true;
}

int archive_check(const char *path, struct archive_facts *out, struct err *err)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    struct answer a;
    struct stat st;
    int pipes[2];

    OWN_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return err_set(err, ERR_MISSING, "package %s: %s", name, strerror(fd < 0 ? errno : EINVAL));
    if (pipe2(pipes, O_CLOEXEC) < 0)
        return err_set(err, ERR_AGAIN, "no pipe to check %s", name);
    pid_t pid = fork();
    if (pid == 0)
        check_without_rights(fd, (size_t)st.st_size, name, pipes[1]);
    close(pipes[1]);
    OWN_FD int from = pipes[0];
    bool whole = pid > 0 && read_all(from, &a, sizeof a) && a.n <= METADATA_MAX;
    OWN_MEM char *text = whole ? calloc(1, a.n + 1) : NULL;
    whole = text && read_all(from, text, a.n);
    if (pid > 0)
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
    if (!whole)
        return err_set(err, ERR_INVALID, "%s: cannot be read within %d s and 512 MB of memory",
                       name, CHECK_SECONDS);
    if (a.rc < 0) {
        *err = a.err;
        return a.rc;
    }
    out->pyproject = a.pyproject;
    out->requirements = a.has_requirements ? TAKE(text) : NULL;
    return 0;
}
