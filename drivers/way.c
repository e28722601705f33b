/* drivers/way.c - the server's way in: how a job in a network namespace of its own reaches it */
#include "drivers/way.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/own.h"

/* By the open directory: a path of any length fits. */
static struct sockaddr_un name_in(int dir, const char *name)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    snprintf(at.sun_path, sizeof at.sun_path, "/proc/self/fd/%d/%s", dir, name);
    return at;
}

/* ------------------------------------------------------------------ the keeper's side */

static int hand_over(int to, const int *sockets, int n)
{
    char control[CMSG_SPACE(WAY_SOCKETS * sizeof(int))] = { 0 };
    struct iovec text = { .iov_base = "w", .iov_len = 1 };
    struct msghdr m = { .msg_iov = &text, .msg_iovlen = 1, .msg_control = control,
                        .msg_controllen = CMSG_SPACE((size_t)n * sizeof(int)) };
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN((size_t)n * sizeof(int));
    memcpy(CMSG_DATA(c), sockets, (size_t)n * sizeof(int));
    return sendmsg(to, &m, MSG_NOSIGNAL) == 1 ? 0 : -1;
}

static bool try_connect(struct way *w)
{
    const struct sockaddr_un at = name_in(w->data_dir, "way");
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return false;
    if (connect(fd, (const struct sockaddr *)&at, sizeof at) < 0 ||
        hand_over(fd, w->sockets, w->n) < 0) {
        close(fd);
        return false;
    }
    if (w->fd >= 0)
        close(w->fd);
    w->fd = fd;
    w->connected = true;
    return true;
}

/* Watches first, then tries: a server that comes in between is not missed. */
static void wait_for_server(struct way *w)
{
    char dir[40];

    if (w->fd >= 0)
        close(w->fd);
    w->connected = false;
    w->fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    snprintf(dir, sizeof dir, "/proc/self/fd/%d", w->data_dir);
    if (w->fd >= 0)
        inotify_add_watch(w->fd, dir, IN_MOVED_TO);
    try_connect(w);
}

void way_open(struct way *w, const char *data_dir, const int *sockets, int n)
{
    if (n <= 0)
        return;
    w->sockets = sockets;
    w->n = n > WAY_SOCKETS ? WAY_SOCKETS : n;
    w->data_dir = open(data_dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (w->data_dir >= 0 && !try_connect(w))
        wait_for_server(w);
}

void way_look(struct way *w)
{
    char bytes[4096];

    if (w->connected) {
        ssize_t n = recv(w->fd, bytes, sizeof bytes, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            wait_for_server(w);
        return;
    }
    while (read(w->fd, bytes, sizeof bytes) > 0)
        ;
    try_connect(w);
}

void way_close(struct way *w)
{
    if (w->fd >= 0)
        close(w->fd);
    if (w->data_dir >= 0)
        close(w->data_dir);
    *w = (struct way)WAY_INIT;
}

/* ------------------------------------------------------------------ the server's side */

/* Under another name until it listens: who sees it by its own can connect. */
int way_listen(const char *data_dir)
{
    OWN_FD int dir = open(data_dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    OWN_FD int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (dir < 0 || fd < 0)
        return -1;
    const struct sockaddr_un at = name_in(dir, "way.tmp");
    unlinkat(dir, "way.tmp", 0);
    int rc = bind(fd, (const struct sockaddr *)&at, sizeof at);
    /* A disk without an inode left: that of the last server's socket is good for this one. */
    if (rc < 0 && (errno == ENOSPC || errno == EDQUOT) && unlinkat(dir, "way", 0) == 0)
        rc = bind(fd, (const struct sockaddr *)&at, sizeof at);
    if (rc < 0 || listen(fd, 1024) < 0 ||
        fchmodat(dir, "way.tmp", 0600, 0) < 0 || renameat(dir, "way.tmp", dir, "way") < 0)
        return -1;
    int out = fd;
    fd = -1;
    return out;
}

void way_remove(const char *data_dir)
{
    OWN_FD int dir = open(data_dir, O_PATH | O_DIRECTORY | O_CLOEXEC);

    if (dir >= 0)
        unlinkat(dir, "way", 0);
}

int way_take(int connection, int out[WAY_SOCKETS])
{
    char control[CMSG_SPACE(WAY_SOCKETS * sizeof(int))] = { 0 }, word[8];
    struct iovec text = { .iov_base = word, .iov_len = sizeof word };
    struct msghdr m = { .msg_iov = &text, .msg_iovlen = 1, .msg_control = control,
                        .msg_controllen = sizeof control };
    ssize_t got = recvmsg(connection, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);

    if (got <= 0)
        return got < 0 && (errno == EAGAIN || errno == EINTR) ? -1 : 0;
    const struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (!c || c->cmsg_type != SCM_RIGHTS)
        return -1;
    const size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    memcpy(out, CMSG_DATA(c), n * sizeof(int));
    return (int)n;
}
