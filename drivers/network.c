/* drivers/network.c - the network of a job: the world outside, without this machine's own loopback
 *
 * DESIGN. keeper -> fork -> helper -> fork -> maker. The helper becomes slirp4netns. Before that
 * the maker, its child, makes the namespaces, brings up loopback, opens the sockets at the server's
 * addresses and hands all of it to the keeper and to the helper, as descriptors; then it ends.
 *
 * A server that is root: the helper takes a user number that nobody else has (the keeper's process
 * number above a base), and sees a /dev/net/tun of its own that this user may open.
 *
 * Loopback of the machine. slirp4netns refuses 10.0.2.2, its name for the machine. A packet to
 * 127.0.0.1 that a job sends by tap0 (SO_BINDTODEVICE needs no rights) would be delivered by it to
 * the machine's loopback; an "unreachable" route for 127.0.0.0/8 keeps it inside, since the kernel
 * then looks for a neighbour of that address, and slirp4netns does not answer for it.
 */
#include "drivers/network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netdb.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/files.h"
#include "base/own.h"
#include "drivers/runtimes.h"

#define TUN "/dev/net/tun"

enum {
    USER_BASE = 1870000000,     /* + a process number: above users, below what jobs have */
    USER_OTHERWISE = 65534,     /* where numbers so large are none (a server in a container) */
    WAIT_MS = 20000,            /* for slirp4netns on a machine that is very busy; usually 10 */
    TUN_MAJOR = 10, TUN_MINOR = 200,
    STACK_BYTES = 64 << 10,
};

/* ------------------------------------------------------------------ words */

static const char *const words[] = { "outside", "none", "host" };

enum network_mode network_mode(const json_t *spec)
{
    const json_t *asked = json_object_get(spec, "network");
    const char *word = json_string_value(asked);

    if (json_is_false(asked))
        return NETWORK_NONE;
    for (int i = 0; word && i < 3; i++)
        if (!strcmp(word, words[i]))
            return (enum network_mode)i;
    return NETWORK_OUTSIDE;
}

const char *network_word(enum network_mode mode)
{
    return words[mode];
}

/* ------------------------------------------------------------------ the server's addresses */

struct place {
    struct sockaddr_storage at;
    socklen_t n;
};

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)a)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127);
}

/* "http://127.0.0.1:8470", "https://[::1]:8470": those of its addresses that are loopback. What is
 * at another one a job reaches as it reaches the world. */
static int find_places(const char *url, struct place out[NETWORK_WAYS])
{
    const char *at = strstr(url, "://");
    char host[128] = "", port[8] = "";
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *found = NULL;
    int n = 0;

    if (!at || (sscanf(at + 3, "[%127[^]]]:%7[0-9]", host, port) != 2 &&
                sscanf(at + 3, "%127[^]:/]:%7[0-9]", host, port) != 2) ||
        getaddrinfo(host, port, &hints, &found))
        return 0;
    for (const struct addrinfo *a = found; a && n < NETWORK_WAYS; a = a->ai_next)
        if (is_loopback(a->ai_addr)) {
            memcpy(&out[n].at, a->ai_addr, a->ai_addrlen);
            out[n++].n = a->ai_addrlen;
        }
    freeaddrinfo(found);
    return n;
}

/* ------------------------------------------------------------------ descriptors between processes */

static int send_fds(int to, const int *fds, int n)
{
    char control[CMSG_SPACE((2 + NETWORK_WAYS) * sizeof(int))] = { 0 };
    struct iovec text = { .iov_base = "n", .iov_len = 1 };
    struct msghdr m = { .msg_iov = &text, .msg_iovlen = 1, .msg_control = control,
                        .msg_controllen = CMSG_SPACE((size_t)n * sizeof(int)) };
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN((size_t)n * sizeof(int));
    memcpy(CMSG_DATA(c), fds, (size_t)n * sizeof(int));
    return sendmsg(to, &m, MSG_NOSIGNAL) == 1 ? 0 : -1;
}

/* How many came; -1, with a sentence of the sender's in `why` where there is one. */
static int take_fds(int from, int fds[2 + NETWORK_WAYS], char *why, size_t size)
{
    char control[CMSG_SPACE((2 + NETWORK_WAYS) * sizeof(int))] = { 0 }, said[200] = "";
    struct iovec text = { .iov_base = said, .iov_len = sizeof said - 1 };
    struct msghdr m = { .msg_iov = &text, .msg_iovlen = 1, .msg_control = control,
                        .msg_controllen = sizeof control };
    ssize_t got;

    while ((got = recvmsg(from, &m, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR)
        ;
    const struct cmsghdr *c = got > 0 ? CMSG_FIRSTHDR(&m) : NULL;
    if (!c || c->cmsg_type != SCM_RIGHTS) {
        snprintf(why, size, "%s", got > 0 ? said : "its maker died");
        return -1;
    }
    const size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    memcpy(fds, CMSG_DATA(c), n * sizeof(int));
    return (int)n;
}

/* ------------------------------------------------------------------ the maker, in the namespace */

struct making {
    int to_keeper, to_helper;
    struct place places[NETWORK_WAYS];
    int n_places;
};

__attribute__((noreturn))
static void give_up(const struct making *m, const char *what)
{
    char text[200];
    int n = snprintf(text, sizeof text, "%s: %s", what, strerror(errno));
    ssize_t sent = send(m->to_keeper, text, (size_t)n, MSG_NOSIGNAL);
    (void)sent;
    _exit(1);
}

static int put_file(const char *path, const char *text)
{
    OWN_FD int fd = open(path, O_WRONLY | O_CLOEXEC);
    return fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) ? 0 : -1;
}

/* slirp4netns wants to be 0 in it. A sandbox makes a user namespace of its own below this one. */
static int map_self(uid_t uid, gid_t gid)
{
    char text[64];
    put_file("/proc/self/setgroups", "deny");
    snprintf(text, sizeof text, "0 %u 1", (unsigned)gid);
    if (put_file("/proc/self/gid_map", text) < 0)
        return -1;
    snprintf(text, sizeof text, "0 %u 1", (unsigned)uid);
    return put_file("/proc/self/uid_map", text);
}

static int bring_up_loopback(void)
{
    OWN_FD int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq r = { .ifr_flags = IFF_UP };
    snprintf(r.ifr_name, sizeof r.ifr_name, "lo");
    return fd < 0 ? -1 : ioctl(fd, SIOCSIFFLAGS, &r);
}

static int keep_loopback_in(void)
{
    struct {
        struct nlmsghdr head;
        struct rtmsg route;
        struct rtattr to;
        struct in_addr address;
    } ask = { .head = { .nlmsg_len = sizeof ask, .nlmsg_type = RTM_NEWROUTE,
                        .nlmsg_flags = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_ACK },
              .route = { .rtm_family = AF_INET, .rtm_dst_len = 8, .rtm_table = RT_TABLE_MAIN,
                         .rtm_protocol = RTPROT_STATIC, .rtm_type = RTN_UNREACHABLE },
              .to = { .rta_len = RTA_LENGTH(sizeof(struct in_addr)), .rta_type = RTA_DST },
              .address = { htonl(INADDR_LOOPBACK & 0xff000000) } };
    struct { struct nlmsghdr head; struct nlmsgerr how; char rest[256]; } answer;
    OWN_FD int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);

    if (fd < 0 || send(fd, &ask, sizeof ask, 0) < 0 ||
        recv(fd, &answer, sizeof answer, 0) < (ssize_t)sizeof answer.head + (ssize_t)sizeof(int))
        return -1;
    errno = -answer.how.error;
    return answer.how.error ? -1 : 0;
}

static int listen_at(const struct place *p)
{
    int fd = socket(p->at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int));
    if (p->at.ss_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &(int){ 1 }, sizeof(int));
    if (bind(fd, (const struct sockaddr *)&p->at, p->n) == 0 && listen(fd, 1024) == 0)
        return fd;
    close(fd);
    return -1;
}

__attribute__((noreturn))
static void make_inside(const struct making *m)
{
    const uid_t uid = geteuid();
    const gid_t gid = getegid();
    int fds[2 + NETWORK_WAYS], n = 2;

    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);         /* or /proc/self is root's */
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0)
        give_up(m, "a network namespace");
    if (map_self(uid, gid) < 0)
        give_up(m, "mapping the user of a network namespace");
    if (bring_up_loopback() < 0 || keep_loopback_in() < 0)
        give_up(m, "loopback of a network namespace");
    fds[0] = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    fds[1] = open("/proc/self/ns/user", O_RDONLY | O_CLOEXEC);
    if (fds[0] < 0 || fds[1] < 0)
        give_up(m, "/proc/self/ns");
    for (int i = 0; i < m->n_places; i++)
        if ((fds[n] = listen_at(&m->places[i])) >= 0)
            n++;                /* no IPv6 here: the other address does */
    if (m->n_places && n == 2)
        give_up(m, "the server's address inside a network namespace");
    if (send_fds(m->to_helper, fds, 2) < 0 || send_fds(m->to_keeper, fds, n) < 0)
        _exit(1);
    _exit(0);
}

/* ------------------------------------------------------------------ the helper: slirp4netns */

/* A mount namespace whose tun may be opened by anybody who is in it: the helper. */
static void open_tun(void)
{
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("tmpfs", "/dev/net", "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=755,size=64k") < 0 ||
        mknod(TUN, S_IFCHR | 0666, makedev(TUN_MAJOR, TUN_MINOR)) < 0 || chmod(TUN, 0666) < 0)
        return;                 /* slirp4netns will say that it cannot open it */
}

static int become_other(pid_t keeper)
{
    struct stat st;

    if (stat(TUN, &st) < 0 || (st.st_mode & 06) != 06)
        open_tun();
    if (setgroups(0, NULL) < 0)
        return -1;
    for (int i = 0; i < 2; i++) {
        uid_t user = i ? USER_OTHERWISE : (uid_t)(USER_BASE + keeper);
        if (setresgid(user, user, user) == 0 && setresuid(user, user, user) == 0)
            return 0;
    }
    return -1;
}

__attribute__((noreturn))
static void be_slirp(const char *program, int net, int user, int ready, int life)
{
    /* Its numbers; the rest of what the keeper has open is not its business. */
    enum { NET = 3, READY, LIFE };
    static const char *const argv[] = {
        "slirp4netns", "--configure", "--mtu=65520", "--disable-host-loopback", "--enable-sandbox",
        "--enable-seccomp", "--ready-fd=4", "--exit-fd=5", "--netns-type=path",
        "/proc/self/fd/3", "tap0", NULL };
    static const char *const env[] = { "PATH=/usr/sbin:/usr/bin:/sbin:/bin", NULL };
    const int fds[] = { net, ready, life };
    int high[3];
    sigset_t none;

    /* It is 0 there, and so may enter the network namespace and make its own sandbox. */
    if (setns(user, CLONE_NEWUSER) < 0)
        _exit(126);
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    for (int i = 0; i < 3; i++)
        high[i] = fcntl(fds[i], F_DUPFD, 16);
    int null = open("/dev/null", O_RDWR);
    for (int i = 0; i < 3; i++)
        dup2(null, i);
    for (int i = 0; i < 3; i++)
        dup2(high[i], NET + i);
    syscall(SYS_close_range, LIFE + 1, ~0u, 0);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    execve(program, (char *const *)argv, (char *const *)env);
    _exit(127);
}

__attribute__((noreturn))
static void help(const char *program, const char *server, int to_keeper, int ready, int life,
                 pid_t keeper)
{
    struct making m = { .to_keeper = to_keeper };
    int talk[2], fds[2 + NETWORK_WAYS];
    char why[200];

    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    m.n_places = find_places(server, m.places);
    if (geteuid() == 0 && become_other(keeper) < 0)
        give_up(&m, "a user without rights for slirp4netns");
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);  /* changing user forgot it */
    if (getppid() != keeper || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, talk) < 0)
        _exit(1);
    m.to_helper = talk[1];
    pid_t maker = fork();
    if (maker == 0)
        make_inside(&m);
    close(talk[1]);
    int n = maker < 0 ? -1 : take_fds(talk[0], fds, why, sizeof why);
    while (maker > 0 && waitpid(maker, NULL, 0) < 0 && errno == EINTR)
        ;
    if (n < 2)
        _exit(1);               /* the maker has told the keeper why */
    be_slirp(program, fds[0], fds[1], ready, life);
}

/* ------------------------------------------------------------------ the keeper's side */

static const char *find_slirp(char out[PATH_MAX])
{
    return runtimes_program("slirp4netns", out) ? out : NULL;
}

static void close_one(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void close_pairs(int a[2], int b[2])
{
    for (int i = 0; i < 2; i++) {
        close_one(&a[i]);
        close_one(&b[i]);
    }
}

void network_end(struct network *n)
{
    close_one(&n->life);
    close_one(&n->ready);
    close_one(&n->net);
    close_one(&n->user);
    while (n->n_ways > 0)
        close_one(&n->ways[--n->n_ways]);
    if (n->slirp > 0) {
        kill(n->slirp, SIGKILL);
        while (waitpid(n->slirp, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    n->slirp = 0;
}

int network_make(const char *server, struct network *out, struct err *err)
{
    struct network n = NETWORK_INIT;
    char program[PATH_MAX], why[200];
    int talk[2], life[2] = { -1, -1 }, ready[2] = { -1, -1 }, fds[2 + NETWORK_WAYS];
    const pid_t self = getpid();

    if (!find_slirp(program))
        return err_set(err, ERR_DENIED, "slirp4netns is not installed");
    if (pipe2(life, O_CLOEXEC) < 0 || pipe2(ready, O_CLOEXEC) < 0 ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, talk) < 0) {
        int error = errno;
        close_pairs(life, ready);
        return err_set(err, ERR_AGAIN, "no pipes for a network: %s", strerror(error));
    }
    n.slirp = fork();
    if (n.slirp == 0) {
        close(life[1]);
        help(program, server, talk[1], ready[1], life[0], self);
    }
    close(life[0]);
    close(ready[1]);
    close(talk[1]);
    n.life = life[1];
    n.ready = ready[0];
    int got = n.slirp < 0 ? -1 : take_fds(talk[0], fds, why, sizeof why);
    close(talk[0]);
    if (got < 2) {
        err_set(err, ERR_DENIED, "%s", n.slirp < 0 ? "no process for slirp4netns" : why);
        network_end(&n);
        return -(int)err->code;
    }
    n.net = fds[0];
    n.user = fds[1];
    if (geteuid() == 0)
        close_one(&n.user);     /* root enters the other one without it */
    for (int i = 2; i < got; i++)
        n.ways[n.n_ways++] = fds[i];
    snprintf(n.server, sizeof n.server, "%s", server);
    *out = n;
    return 0;
}

int network_wait(struct network *n, struct err *err)
{
    struct pollfd up = { .fd = n->ready, .events = POLLIN };
    char word;

    if (n->ready < 0)
        return 0;
    if (poll(&up, 1, WAIT_MS) <= 0)
        return err_set(err, ERR_AGAIN, "slirp4netns did not start in %d s", WAIT_MS / 1000);
    if (read(n->ready, &word, 1) != 1)
        return err_set(err, ERR_DENIED, access(TUN, geteuid() ? R_OK | W_OK : F_OK) < 0
                       ? "slirp4netns cannot open " TUN " (chmod 666 " TUN " lets it)"
                       : "slirp4netns ended at its start (run it by hand to see why)");
    close_one(&n->ready);
    return 0;
}

/* ------------------------------------------------------------------ sockets inside, later */

struct listening {
    const struct network *n;
    int fd, error;
};

/* In a child that shares our memory and our descriptors, but not our namespaces. */
static int listen_inside(void *arg)
{
    struct listening *l = arg;
    struct place p = { .n = sizeof(struct sockaddr_in) };

    *(struct sockaddr_in *)&p.at = (struct sockaddr_in){
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    if (!l->n || ((l->n->user < 0 || setns(l->n->user, CLONE_NEWUSER) == 0) &&
                  setns(l->n->net, CLONE_NEWNET) == 0))
        l->fd = listen_at(&p);
    l->error = errno;
    _exit(0);
}

int network_listen(const struct network *n, int *out_port)
{
    struct listening l = { .n = n, .fd = -1 };
    struct sockaddr_in at;
    socklen_t size = sizeof at;
    OWN_MEM char *stack = malloc(STACK_BYTES);
    pid_t pid = stack ? clone(listen_inside, stack + STACK_BYTES,
                              CLONE_VM | CLONE_VFORK | CLONE_FILES | SIGCHLD, &l) : -1;

    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    if (pid > 0)
        errno = l.error;
    if (l.fd < 0)
        return -1;
    if (getsockname(l.fd, (struct sockaddr *)&at, &size) < 0) {
        close(l.fd);
        return -1;
    }
    fcntl(l.fd, F_SETFL, 0);    /* its user waits for connections */
    *out_port = ntohs(at.sin_port);
    return l.fd;
}

/* ------------------------------------------------------------------ names */

static bool is_loopback_name(const char *line, size_t n)
{
    char word[64] = "";
    struct in_addr four;
    struct in6_addr six;

    snprintf(word, sizeof word, "%.*s", (int)n, line);
    char *at = word + strspn(word, " \t");
    at[strcspn(at, " \t%")] = '\0';
    if (inet_pton(AF_INET, at, &four) == 1)
        return ntohl(four.s_addr) >> 24 == 127 || four.s_addr == 0;
    return inet_pton(AF_INET6, at, &six) == 1 &&
           (IN6_IS_ADDR_LOOPBACK(&six) || IN6_IS_ADDR_UNSPECIFIED(&six));
}

/* The machine's resolv.conf with slirp4netns' resolver in place of those on loopback; false: there
 * is none of those. A file without any resolver means one on loopback. */
static bool rewrite_resolver(const char *text, struct buf *out)
{
    bool replaced = false, any = false;

    for (const char *line = text; *line;) {
        size_t n = strcspn(line, "\n");
        bool is_server = !strncmp(line, "nameserver", 10) && strchr(" \t", line[10]) && line[10];
        bool local = is_server && is_loopback_name(line + 10, n - 10);
        any |= is_server;
        if (!local)
            buf_printf(out, "%.*s\n", (int)n, line);
        else if (!replaced)
            buf_printf(out, "nameserver " NETWORK_RESOLVER "\n");
        replaced |= local;
        line += n + (line[n] == '\n');
    }
    if (!any)
        buf_printf(out, "nameserver " NETWORK_RESOLVER "\n");
    return replaced || !any;
}

bool network_resolver(const char *path, char *out_at)
{
    OWN_MEM char *text = NULL;
    OWN_BUF inside = BUF_INIT;
    struct err err;

    if (!realpath("/etc/resolv.conf", out_at) ||
        files_read(out_at, 64 << 10, &text, NULL, &err) < 0 || !rewrite_resolver(text, &inside) ||
        buf_ok(&inside, &err) < 0 || files_write(path, inside.data, inside.n, &err) < 0)
        return false;
    return chmod(path, 0644) == 0;
}

/* ------------------------------------------------------------------ can it be had? */

static char missing[256];

/* Namespaces are made by a process with one thread: a child. */
void network_check(void)
{
    struct err said = { .code = ERR_IO, .text = "it could not be tried" };
    int pipes[2];

    if (pipe2(pipes, O_CLOEXEC) < 0)
        return;
    pid_t pid = fork();
    if (pid == 0) {
        struct network n;
        said = (struct err){ 0 };
        if (network_make("", &n, &said) == 0) {
            network_wait(&n, &said);
            network_end(&n);
        }
        ssize_t sent = write(pipes[1], &said, sizeof said);
        _exit(sent != (ssize_t)sizeof said);
    }
    close(pipes[1]);
    ssize_t n = pid < 0 ? 0 : read(pipes[0], &said, sizeof said);
    close(pipes[0]);
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    missing[0] = '\0';
    if (n != (ssize_t)sizeof said || said.code)
        snprintf(missing, sizeof missing, "jobs share this machine's network, its loopback too: "
                 "%.160s", said.text);
}

const char *network_missing(void)
{
    return missing[0] ? missing : NULL;
}
