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
#include "drivers/users.h"

enum {
    BLOCK = 64 << 10,
    METADATA_MAX = 1 << 20,
    CHECK_SECONDS = 60,
    CHECK_BYTES = 512 << 20,
    TAKE_MEMBERS_MAX = 1000,    /* of an archive that one text is wanted of */
};

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

static int reader_open(int fd, const void *bytes, size_t n, const char *name, struct archive **out,
                       struct err *err)
{
    if (load(err) < 0)
        return -(int)err->code;
    struct archive *a = lib.archive_read_new();
    if (!a)
        return err_set(err, ERR_NOMEM, "no memory to read %s", name);
    lib.archive_read_support_filter_gzip(a);
    lib.archive_read_support_filter_bzip2(a);
    lib.archive_read_support_filter_xz(a);
    lib.archive_read_support_format_tar(a);
    lib.archive_read_support_format_zip(a);
    int rc = bytes ? lib.archive_read_open_memory(a, bytes, n)
                   : lib.archive_read_open_fd(a, fd, BLOCK);
    if (rc == ARCHIVE_OK) {
        *out = a;
        return 0;
    }
    err_set(err, ERR_INVALID, "%s: is no .tar.gz, .zip or .whl (%s)", name,
            lib.archive_error_string(a));
    lib.archive_read_free(a);
    return -(int)err->code;
}

static int check(int fd, const void *bytes, size_t n, const char *name, struct archive_facts *out,
                 struct err *err)
{
    struct checking c = { .file = name, .packed = (int64_t)n };

    if (reader_open(fd, bytes, n, name, &c.a, err) < 0)
        return -(int)err->code;
    int rc = check_open(&c, out, err);
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

/* ------------------------------------------------------------------ one text of it */

struct taking {
    struct archive *a;
    const char *file, *name;
    size_t max, unpacked;
    struct buf text, other;     /* of the member of that name; of the only one with that ending */
    bool found;
    int others;
};

static int take_member(struct taking *t, const char *name, struct err *err)
{
    const char *slash = strrchr(name, '/'), *base = slash ? slash + 1 : name;
    bool wanted = !strcmp(base, t->name) && !t->found;
    bool other = ends_with(name, ".yaml") || ends_with(name, ".yml");
    char block[BLOCK];
    la_ssize_t n;

    t->found |= wanted;
    t->others += other && !wanted;
    while ((n = lib.archive_read_data(t->a, block, sizeof block)) > 0) {
        t->unpacked += (size_t)n;
        if (t->unpacked > t->max)
            return err_set(err, ERR_INVALID, "%s: unpacks to more than %zu MB", t->file,
                           t->max >> 20);
        if (wanted || (other && t->others == 1))
            buf_append(wanted ? &t->text : &t->other, block, (size_t)n);
    }
    if (n < 0)
        return err_set(err, ERR_INVALID, "%s: member \"%.100s\" is damaged (%s)", t->file, name,
                       lib.archive_error_string(t->a));
    return 0;
}

static int take_members(struct taking *t, struct err *err)
{
    struct archive_entry *e;
    int rc, members = 0;

    while ((rc = lib.archive_read_next_header(t->a, &e)) == ARCHIVE_OK || rc == ARCHIVE_WARN) {
        const char *name = lib.archive_entry_pathname(e);
        char copy[512];
        if (++members > TAKE_MEMBERS_MAX)
            return err_set(err, ERR_INVALID, "%s: has more than %d members", t->file,
                           TAKE_MEMBERS_MAX);
        if (check_name(t->file, name, err) < 0 || check_kind(t->file, e, name, err) < 0)
            return -(int)err->code;
        snprintf(copy, sizeof copy, "%s", name);
        if (take_member(t, copy, err) < 0)
            return -(int)err->code;
    }
    if (rc != ARCHIVE_EOF)
        return err_set(err, ERR_INVALID, "%s: is damaged or no archive (%s)", t->file,
                       lib.archive_error_string(t->a));
    if (!t->found && t->others != 1)
        return err_set(err, ERR_INVALID, "%s: has no member %s%s", t->file, t->name,
                       t->others ? ", and more than one other .yaml" : ", nor another .yaml");
    return 0;
}

int archive_take_bytes(const void *bytes, size_t n, const char *file, const char *name, size_t max,
                       struct buf *out, struct err *err)
{
    struct taking t = { .file = file, .name = name, .max = max };

    if (reader_open(-1, bytes, n, file, &t.a, err) < 0)
        return -(int)err->code;
    int rc = take_members(&t, err);
    lib.archive_read_free(t.a);
    struct buf *text = t.found ? &t.text : &t.other;
    if (rc == 0 && (rc = buf_ok(text, err)) == 0)
        buf_append(out, text->data ? text->data : "", text->n);
    buf_done(&t.text);
    buf_done(&t.other);
    return rc;
}

/* ------------------------------------------------------------------ in a process of its own */

struct answer {
    struct err err;
    int rc;
    bool pyproject, has_requirements;
    size_t n;                   /* of the requirements or the text, which follow */
};

/* Bytes of address space that this process has: of a server, more than it uses. */
static rlim_t space_used(void)
{
    char text[64] = "";
    OWN_FD int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);

    if (fd < 0 || read(fd, text, sizeof text - 1) < 0)
        return 0;
    return (rlim_t)strtoull(text, NULL, 10) * (rlim_t)sysconf(_SC_PAGESIZE);
}

static void give_up_rights(void)
{
    rlim_t room = space_used() + CHECK_BYTES;
    uid_t user = users_helper();
    struct rlimit memory = { room, room }, seconds = { CHECK_SECONDS, CHECK_SECONDS };

    setrlimit(RLIMIT_AS, &memory);
    setrlimit(RLIMIT_CPU, &seconds);
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (geteuid() == 0 && (setgroups(0, NULL) < 0 ||
                           setresgid(user, user, user) < 0 ||
                           setresuid(user, user, user) < 0))
        _exit(1);
}

static void write_all(int fd, const char *from, size_t n)
{
    for (ssize_t put; n && ((put = write(fd, from, n)) > 0 || errno == EINTR);)
        if (put > 0)
            from += put, n -= (size_t)put;
}

__attribute__((noreturn))
static void check_without_rights(int fd, size_t size, const char *name, int to)
{
    struct answer a = { .rc = 0 };
    struct archive_facts facts = { 0 };

    if ((a.rc = load(&a.err)) == 0) {
        give_up_rights();
        a.rc = check(fd, NULL, size, name, &facts, &a.err);
    }
    a.pyproject = facts.pyproject;
    a.has_requirements = facts.requirements != NULL;
    a.n = facts.requirements ? strlen(facts.requirements) : 0;
    write_all(to, (const char *)&a, sizeof a);
    write_all(to, facts.requirements, a.n);
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

/* What the child `pid` (-1: none) says, and the text after it. Caller frees the text. */
static int hear(pid_t pid, int from, const char *name, size_t max, struct answer *a,
                char **out_text, struct err *err)
{
    bool whole = pid > 0 && read_all(from, a, sizeof *a) && a->n <= max;
    char *text = whole ? calloc(1, a->n + 1) : NULL;

    whole = text && read_all(from, text, a->n);
    if (pid > 0) {
        if (!whole)
            kill(pid, SIGKILL);         /* it may wait for us to read the rest */
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    if (!whole)
        err_set(err, ERR_INVALID, "%s: cannot be read within %d s and %d MB of memory", name,
                CHECK_SECONDS, CHECK_BYTES >> 20);
    else if (a->rc < 0)
        *err = a->err;
    if (whole && a->rc == 0) {
        *out_text = text;
        return 0;
    }
    free(text);
    return -(int)err->code;
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
    OWN_MEM char *text = NULL;
    if (hear(pid, from, name, METADATA_MAX, &a, &text, err) < 0)
        return -(int)err->code;
    out->pyproject = a.pyproject;
    out->requirements = a.has_requirements ? TAKE(text) : NULL;
    return 0;
}

int archive_take(const void *bytes, size_t n, const char *file, const char *name, size_t max,
                 struct buf *out, struct err *err)
{
    struct answer a = { .rc = 0 };
    int pipes[2];

    if (pipe2(pipes, O_CLOEXEC) < 0)
        return err_set(err, ERR_AGAIN, "no pipe to read %s", file);
    pid_t pid = fork();
    if (pid == 0) {
        struct buf text = BUF_INIT;
        if ((a.rc = load(&a.err)) == 0) {
            give_up_rights();
            a.rc = archive_take_bytes(bytes, n, file, name, max, &text, &a.err);
        }
        a.n = a.rc == 0 ? text.n : 0;
        write_all(pipes[1], (const char *)&a, sizeof a);
        write_all(pipes[1], text.data, a.n);
        _exit(0);
    }
    close(pipes[1]);
    OWN_FD int from = pipes[0];
    OWN_MEM char *text = NULL;
    if (hear(pid, from, file, max, &a, &text, err) < 0)
        return -(int)err->code;
    buf_append(out, text, a.n);
    return buf_ok(out, err);
}
