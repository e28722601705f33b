/* drivers/sandbox_mount.c - the file system that a job sees (drivers/sandbox.c says how it is
 * made) */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/own.h"
#include "drivers/sandbox_int.h"
#include "drivers/users.h"

#define NEW SANDBOX_NEW

enum { PLAIN_DEVICES = 6, COVERED_MAX = 16 };

static const struct { const char *name; unsigned major, minor; } devices[PLAIN_DEVICES] = {
    { "null", 1, 3 }, { "zero", 1, 5 }, { "full", 1, 7 },
    { "random", 1, 8 }, { "urandom", 1, 9 }, { "tty", 5, 0 },
};

int sandbox_bind_at(int fd, int target, int ns, unsigned long long attributes)
{
    OWN_FD int tree = users_mount(fd, ns, attributes);

    if (tree < 0 && ns > 0 && errno == EINVAL)  /* a file system that cannot be mapped: as it is */
        tree = users_mount(fd, 0, attributes);
    return tree < 0 ? -1
                    : (int)syscall(SYS_move_mount, tree, "", target, "",
                                   MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
}

int sandbox_bind(int fd, const char *target, int ns, unsigned long long attributes)
{
    OWN_FD int at = open(target, O_PATH | O_CLOEXEC | O_NOFOLLOW);
    return at < 0 ? -1 : sandbox_bind_at(fd, at, ns, attributes);
}

static int restrict_mount(const char *target, int recursive, unsigned long long attributes)
{
    struct mount_attr attr = { .attr_set = attributes };
    return (int)syscall(SYS_mount_setattr, AT_FDCWD, target, recursive, &attr, sizeof attr);
}

static int new_tmpfs(const char *target, const char *options)
{
    return mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, options);
}

/* One that the job may fill: that far. In whole pages; 0 would be "as much as there is". */
static int new_scratch(const char *target, long long bytes)
{
    char options[64];
    snprintf(options, sizeof options, "mode=1777,size=%lldk", bytes < 65536 ? 64 : bytes >> 10);
    return new_tmpfs(target, options);
}

/* ------------------------------------------------------------------ /dev */

static int make_device(int i, int fd)
{
    char target[64];
    snprintf(target, sizeof target, NEW "/dev/%s", devices[i].name);
    if (mknod(target, S_IFCHR | 0666, makedev(devices[i].major, devices[i].minor)) == 0)
        return chmod(target, 0666);
    /* In a user namespace nodes cannot be made, but bound they can be. */
    int made = open(target, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (made >= 0)
        close(made);
    return fd < 0 ? 0 : sandbox_bind(fd, target, 0, 0);
}

static const char *mount_dev(const struct sandbox *s, const int fds[PLAIN_DEVICES])
{
    /* Not nodev: these are the only nodes, and none of them is a way out. */
    if (mount("tmpfs", NEW "/dev", "tmpfs", MS_NOSUID, "mode=755,size=64k") < 0)
        return "/dev";
    for (int i = 0; i < PLAIN_DEVICES; i++)
        if (make_device(i, fds[i]) < 0)
            return devices[i].name;
    if (mkdir(NEW "/dev/shm", 0755) < 0 || new_scratch(NEW "/dev/shm", s->scratch / 4) < 0)
        return "/dev/shm";
    if (mkdir(NEW "/dev/pts", 0755) == 0 &&
        mount("devpts", NEW "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC,
              "newinstance,ptmxmode=0666,mode=620") == 0)
        (void)!symlink("pts/ptmx", NEW "/dev/ptmx");
    static const char *const links[][2] = {
        { "/proc/self/fd", NEW "/dev/fd" }, { "/proc/self/fd/0", NEW "/dev/stdin" },
        { "/proc/self/fd/1", NEW "/dev/stdout" }, { "/proc/self/fd/2", NEW "/dev/stderr" } };
    for (size_t i = 0; i < sizeof links / sizeof links[0]; i++)
        (void)!symlink(links[i][0], links[i][1]);
    return NULL;
}

/* ------------------------------------------------------------------ exposed paths */

struct covers {
    char path[COVERED_MAX][PATH_MAX];   /* directories that are empty ones of ours */
    int n;
};

static bool is_covered(const struct covers *c, const char *path)
{
    for (int i = 0; i < c->n; i++)
        if (!strcmp(c->path[i], path))
            return true;
    return false;
}

/* `target` is where `path` is now. */
static int cover(struct covers *c, const char *target, const char *path)
{
    if (c->n == COVERED_MAX) {
        errno = ENOSPC;
        return -1;
    }
    if (new_tmpfs(target, "mode=755,size=1m") < 0)
        return -1;
    snprintf(c->path[c->n++], PATH_MAX, "%s", path);
    return 0;
}

/* Never over a link: what is in a volume is anybody's, and until the root is changed an absolute
 * link leads to the machine's own. */
static int open_below(int dir, const char *name, int flags)
{
    struct open_how how = { .flags = (unsigned)(O_PATH | O_CLOEXEC | flags),
                            .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS |
                                       RESOLVE_NO_MAGICLINKS };
    return (int)syscall(SYS_openat2, dir, name, &how, sizeof how);
}

static const char *path_of(int fd, char out[40])
{
    snprintf(out, 40, "/proc/self/fd/%d", fd);
    return out;
}

/* Makes every directory on the way exist and passable inside; the last of them, opened. */
static int make_way(struct covers *c, const char *path)
{
    char part[PATH_MAX], name[NAME_MAX + 1], link[40];
    int at = open(NEW, O_PATH | O_DIRECTORY | O_CLOEXEC);

    for (const char *from = path + 1, *slash; at >= 0 && (slash = strchr(from, '/'));
         from = slash + 1) {
        struct stat st;
        snprintf(part, sizeof part, "%.*s", (int)(slash - path), path);
        snprintf(name, sizeof name, "%.*s", (int)(slash - from), from);
        bool there = fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
        int next = there || mkdirat(at, name, 0755) == 0 ? open_below(at, name, O_DIRECTORY) : -1;
        bool passable = !there || (st.st_mode & S_IXOTH) || geteuid() != 0;
        if (next >= 0 && !passable && !is_covered(c, part)) {
            int covered = cover(c, path_of(next, link), part);
            close(next);
            next = covered < 0 ? -1 : open_below(at, name, O_DIRECTORY);
        }
        int error = errno;
        close(at);
        errno = error;
        at = next;
    }
    return at;
}

static int expose_in(const struct sandbox *s, int way, const char *name, bool writable, int fd)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return -1;
    if (S_ISDIR(st.st_mode)) {
        if (mkdirat(way, name, 0755) < 0 && errno != EEXIST && errno != EROFS)
            return -1;
    } else {
        int made = openat(way, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
        if (made >= 0)
            close(made);
    }
    OWN_FD int target = open_below(way, name, 0);
    return target < 0 ? -1
                      : sandbox_bind_at(fd, target, s->user_ns,
                                        MOUNT_ATTR_NOSUID | (writable ? 0 : MOUNT_ATTR_RDONLY) |
                                            (S_ISCHR(st.st_mode) ? 0 : MOUNT_ATTR_NODEV));
}

static int expose(const struct sandbox *s, struct covers *c, const struct sandbox_path *p, int fd)
{
    OWN_FD int way = make_way(c, p->path);

    return way < 0 ? -1 : expose_in(s, way, strrchr(p->path, '/') + 1, p->writable, fd);
}

/* ------------------------------------------------------------------ the machine's own */

/* Programs, their settings and what the kernel tells of the machine. All else (/home, /root, /srv,
 * /mnt, /var ...) holds people's and services' data, and is empty inside. */
static const char *const shown[] = { "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64",
                                     "/libx32", "/etc", "/opt", "/sys", "/nix", "/gnu" };
enum { SHOWN = sizeof shown / sizeof shown[0] };

bool sandbox_shows(const char *path)
{
    for (int i = 0; i < SHOWN; i++) {
        size_t n = strlen(shown[i]);
        if (!strncmp(path, shown[i], n) && (!path[n] || path[n] == '/'))
            return true;
    }
    return false;
}

/* A link (/bin to usr/bin) is the same link inside, unless it leads to what is not there. */
static int show(const char *path)
{
    char target[64], link[PATH_MAX];
    struct stat st;

    snprintf(target, sizeof target, NEW "%s", path);
    if (lstat(path, &st) < 0)
        return 0;
    OWN_MEM char *real = realpath(path, NULL);
    if (S_ISLNK(st.st_mode) && real && sandbox_shows(real)) {
        ssize_t n = readlink(path, link, sizeof link - 1);
        link[n > 0 ? n : 0] = '\0';
        return symlink(link, target);
    }
    OWN_FD int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? 0 : mkdir(target, 0755) < 0 ? -1 : sandbox_bind(fd, target, 0, 0);
}

static const char *show_machine(void)
{
    /* Those that follow /dev are there, and empty, since programs expect them. */
    static const char *const own[] = { "/tmp", "/var", "/var/tmp", "/run", "/proc", "/dev", "/home",
                                       "/root", "/srv", "/mnt", "/media" };
    char target[64];

    if (new_tmpfs(NEW, "mode=755,size=8m") < 0)
        return "an empty root";
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        snprintf(target, sizeof target, NEW "%s", own[i]);
        if (mkdir(target, 0755) < 0)
            return own[i];
    }
    (void)!symlink("/run", NEW "/var/run");
    for (int i = 0; i < SHOWN; i++)
        if (show(shown[i]) < 0)
            return shown[i];
    return NULL;
}

static const char *seal_machine(void)
{
    for (int i = 0; i < SHOWN; i++) {
        char target[64];
        struct stat st;
        snprintf(target, sizeof target, NEW "%s", shown[i]);
        if (lstat(target, &st) == 0 && S_ISDIR(st.st_mode) &&
            restrict_mount(target, AT_RECURSIVE,
                           MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV) < 0)
            return "making it read-only (Linux 5.12 is needed)";
    }
    return NULL;
}

/* ------------------------------------------------------------------ the whole */

static const char *mount_own_places(const struct sandbox *s, struct covers *c)
{
    struct stat st;

    if (new_scratch(NEW "/tmp", s->scratch - s->scratch / 4) < 0)
        return "/tmp";
    if (mount(NEW "/tmp", NEW "/var/tmp", NULL, MS_BIND, NULL) < 0)
        return "/var/tmp";
    if (new_tmpfs(NEW "/run", "mode=755,size=1m") < 0)
        return "/run";
    if (mount("proc", NEW "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
        return "/proc of the sandbox";
    for (int i = 0; i < 2; i++) {
        char target[PATH_MAX + 8];
        if (!s->hide[i])
            continue;
        snprintf(target, sizeof target, NEW "%s", s->hide[i]);
        if (lstat(target, &st) == 0 && !is_covered(c, s->hide[i]) &&
            cover(c, target, s->hide[i]) < 0)
            return s->hide[i];
    }
    return NULL;
}

static const char *mount_all(const struct sandbox *s, const int *fds, const int *device_fds,
                             const struct sandbox_path *names, int names_fd)
{
    struct covers *c = calloc(1, sizeof *c);
    if (!c)
        return "memory";
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return "keeping mounts to itself";
    const char *what = show_machine();
    if (!what)
        what = sandbox_room(s, fds);
    if (!what)
        what = seal_machine();
    if (!what)
        what = mount_dev(s, device_fds);
    if (!what)
        what = mount_own_places(s, c);
    if (what)
        return what;
    if (names_fd >= 0 && expose(s, c, names, names_fd) < 0)
        return names->path;
    for (int i = 0; i < s->n_paths; i++)
        if (expose(s, c, &s->paths[i], fds[i]) < 0)
            return s->paths[i].path;
    free(c);
    if (restrict_mount(NEW, 0, MOUNT_ATTR_RDONLY) < 0)
        return "sealing the root";
    if (chdir(NEW) < 0 || syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0)
        return "changing the root";
    return chdir("/") < 0 ? "/" : NULL;
}

/* What /etc/resolv.conf is a link to, where that is not shown. systemd replaces the file: its
 * folder is taken. */
static int open_names(struct sandbox_path *out, char path[PATH_MAX])
{
    static const char systemd[] = "/run/systemd/resolve";

    if (!realpath("/etc/resolv.conf", path) || sandbox_shows(path))
        return -1;
    if (!strncmp(path, systemd, sizeof systemd - 1))
        snprintf(path, PATH_MAX, "%s", systemd);
    *out = (struct sandbox_path){ .path = path };
    return open(path, O_PATH | O_CLOEXEC);
}

/* The same in this mount namespace: only what belongs to it can be bound. Its path may lead
 * elsewhere by now, which is found out. */
static int open_again(int fd)
{
    char link[40], path[PATH_MAX];
    struct stat was, is;

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    int again = open(path, O_PATH | O_CLOEXEC | O_NOFOLLOW);
    if (again >= 0 && fstat(fd, &was) == 0 && fstat(again, &is) == 0 &&
        was.st_dev == is.st_dev && was.st_ino == is.st_ino)
        return again;
    if (again >= 0) {
        close(again);
        errno = ESTALE;
    }
    return -1;
}

const char *sandbox_mount(const struct sandbox *s)
{
    int fds[SANDBOX_PATHS_MAX], device_fds[PLAIN_DEVICES];

    umask(022);                 /* what is made on the way must be passable */
    /* Before anything covers them. */
    for (int i = 0; i < s->n_paths; i++) {
        const char *from = s->paths[i].from ? s->paths[i].from : s->paths[i].path;
        fds[i] = s->paths[i].fd > 0 ? open_again(s->paths[i].fd)
                                    : open(from, O_PATH | O_CLOEXEC | O_NOFOLLOW);
        if (fds[i] < 0)
            return s->paths[i].path;
    }
    for (int i = 0; i < PLAIN_DEVICES; i++) {
        char path[32];
        snprintf(path, sizeof path, "/dev/%s", devices[i].name);
        device_fds[i] = open(path, O_PATH | O_CLOEXEC);
    }
    struct sandbox_path names;
    char names_path[PATH_MAX];
    int names_fd = open_names(&names, names_path);
    const char *what = mount_all(s, fds, device_fds, &names, names_fd);
    int error = errno;
    for (int i = 0; i < s->n_paths; i++)
        close(fds[i]);
    for (int i = 0; i < PLAIN_DEVICES; i++)
        if (device_fds[i] >= 0)
            close(device_fds[i]);
    if (names_fd >= 0)
        close(names_fd);
    errno = error;
    return what;
}
