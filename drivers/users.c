/* drivers/users.c - a user of its own for each job of a server that is root */
#include "drivers/users.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/own.h"
#include "drivers/sandbox.h"

enum { PICK_TRIES = 1000, STACK_BYTES = 16 << 10 };
static const off_t RESERVED = (off_t)1 << 32;   /* beyond every number */

int users_check(const struct users_range *r, struct err *err)
{
    if (r->first == 0 || r->last < r->first || r->last > UINT32_MAX - 2)
        return err_set(err, ERR_INVALID, "users: first: %u, last: %u: takes two numbers from 1 to "
                       "%u, the first one not above the last", r->first, r->last, UINT32_MAX - 2);
    if (r->first <= SANDBOX_USER && r->last >= SANDBOX_USER)
        return err_set(err, ERR_INVALID, "users: %u..%u: holds %d (nobody), which other programs "
                       "use; take another range", r->first, r->last, SANDBOX_USER);
    return 0;
}

uid_t users_nth(const struct users_range *r, uint64_t turn)
{
    return (uid_t)(r->first + turn % ((uint64_t)r->last - r->first + 1));
}

/* ------------------------------------------------------------------ who has which */

/* Root's alone: a lock of somebody else's would keep jobs from starting. */
static int open_lock(void)
{
    return open(USERS_LOCK, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
}

bool users_taken(uid_t user)
{
    struct flock l = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = user, .l_len = 1 };
    OWN_FD int fd = open_lock();

    return fd >= 0 && fcntl(fd, F_OFD_GETLK, &l) == 0 && l.l_type != F_UNLCK;
}

static int lock_byte(uid_t user, off_t place, int *out_fd, struct err *err)
{
    struct flock l = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = place, .l_len = 1 };
    OWN_FD int fd = open_lock();

    if (fd < 0)
        return err_set(err, ERR_IO, USERS_LOCK ": %s", strerror(errno));
    if (fcntl(fd, F_OFD_SETLK, &l) < 0)
        return errno == EAGAIN || errno == EACCES
                   ? err_set(err, ERR_AGAIN, "user %u is that of another job that runs", user)
                   : err_set(err, ERR_IO, USERS_LOCK ": %s", strerror(errno));
    *out_fd = fd;
    fd = -1;
    return 0;
}

int users_hold(uid_t user, int *out_fd, struct err *err)
{
    return lock_byte(user, user, out_fd, err);
}

int users_reserve(uid_t user, int *out_fd, struct err *err)
{
    int fd;

    if (lock_byte(user, (off_t)user + RESERVED, &fd, err) < 0)
        return -(int)err->code;
    if (users_taken(user)) {
        close(fd);
        return err_set(err, ERR_AGAIN, "user %u is that of another job that runs", user);
    }
    *out_fd = fd;
    return 0;
}

int users_pick(const struct users_range *r, uid_t *out, int *out_fd, struct err *err)
{
    uint64_t turn = 0;

    if (getrandom(&turn, sizeof turn, 0) < 0)
        turn = (uint64_t)getpid();
    for (int i = 0; i < PICK_TRIES; i++, turn++) {
        int rc = users_hold(users_nth(r, turn), out_fd, err);
        if (rc == 0)
            *out = users_nth(r, turn);
        if (rc != -ERR_AGAIN)
            return rc;
    }
    return err_set(err, ERR_AGAIN, "the users %u..%u all run jobs (users in runtimes.yaml)",
                   r->first, r->last);
}

static _Atomic uid_t helper = SANDBOX_USER;

void users_set_helper(uid_t user)
{
    helper = user;
}

uid_t users_helper(void)
{
    return helper;
}

/* ------------------------------------------------------------------ its namespace */

/* Shares our memory, and stays until it is killed: system calls only. What is left of it then goes
 * with this process. */
static int stand_still(void *arg)
{
    (void)arg;
    while (pause() < 0)
        ;
    return 0;
}

static int put_map(pid_t pid, const char *name, const char *text)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    OWN_FD int fd = open(path, O_WRONLY | O_CLOEXEC);
    return fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) ? 0 : -1;
}

/* Lines of "inside outside count": all are themselves, but for the two. */
static void print_map(uint32_t user, char *out, size_t size)
{
    uint32_t a = user < SANDBOX_USER ? user : SANDBOX_USER;
    uint32_t b = user < SANDBOX_USER ? SANDBOX_USER : user;

    if (a == b) {
        snprintf(out, size, "0 0 %u\n", UINT32_MAX);
        return;
    }
    int n = snprintf(out, size, "0 0 %u\n%u %u 1\n%u %u 1\n%u %u %u\n", a, a, b, b, a, b + 1, b + 1,
                     UINT32_MAX - 1 - b);
    if (b > a + 1)
        snprintf(out + n, size - (size_t)n, "%u %u %u\n", a + 1, a + 1, b - a - 1);
}

int users_namespace(uid_t user, int *out_fd, struct err *err)
{
    static char stack[STACK_BYTES] __attribute__((aligned(16)));
    char map[256], path[64];

    print_map(user, map, sizeof map);
    pid_t pid = clone(stand_still, stack + STACK_BYTES, CLONE_VM | CLONE_NEWUSER, NULL);
    if (pid < 0)
        return err_set(err, ERR_DENIED, "this system makes no user namespaces (%s; sysctl "
                       "user.max_user_namespaces)", strerror(errno));
    snprintf(path, sizeof path, "/proc/%d/ns/user", (int)pid);
    int mapped = put_map(pid, "uid_map", map) < 0 ? -1 : put_map(pid, "gid_map", map);
    int fd = mapped < 0 ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    int error = errno;
    kill(pid, SIGKILL);         /* not waited for: on a busy machine its turn to die comes late */
    if (fd < 0)
        return err_set(err, ERR_DENIED, "user %u cannot be had here (%s): is the server in a "
                       "container that has few users?", user, strerror(error));
    *out_fd = fd;
    return 0;
}

int users_mount(int fd, int ns, unsigned long long attributes)
{
    struct mount_attr attr = { .attr_set = attributes };
    OWN_FD int tree = (int)syscall(SYS_open_tree, fd, "", AT_EMPTY_PATH | AT_RECURSIVE |
                                   OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);

    if (ns > 0) {
        attr.attr_set |= MOUNT_ATTR_IDMAP;
        attr.userns_fd = (uint64_t)ns;
    }
    if (tree < 0 || (attr.attr_set && syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH |
                                              AT_RECURSIVE, &attr, sizeof attr) < 0))
        return -1;
    int out = tree;
    tree = -1;
    return out;
}

bool users_fits(const char *dir, int ns)
{
    OWN_FD int fd = open(dir, O_PATH | O_CLOEXEC);
    OWN_FD int tree = fd < 0 ? -1 : users_mount(fd, ns, 0);
    return tree >= 0;
}
