/* drivers/sandbox.c - runs a program that sees little, can change less, and leaves nothing behind
 *
 * DESIGN. keeper -> clone(namespaces) -> init -> vfork -> exec of the program. init and the
 * keeper talk over one socket.
 *
 * Mounts. An empty directory of memory is mounted over /tmp; the machine's programs and settings
 * are bound in it, read-only, and what the job is to see; then it becomes the root (pivot_root) and
 * the old one goes.
 * Sources are opened before anything is covered, so that a data directory below /tmp is found.
 * A directory on the way to an exposed path that the inner user could not pass (/root of a
 * server that is root) is covered by an empty one, so that the path works and nothing else
 * there shows.
 *
 * Rights. Under a server that is root, init sets up as root, then enters the user namespace of the
 * job (drivers/users.h) and becomes 65534 there, which is a number of the job's own outside. Else
 * init has a user namespace in which the server's user is 65534. Either way no_new_privs is set and
 * the bounding set is empty before exec.
 */
#include "drivers/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "drivers/sandbox_int.h"

/* What init knows. It is a copy of the keeper's memory, so pointers of `s` hold. */
struct init {
    const struct sandbox *s;
    int talk;
    bool drop_user;             /* by setuid: no user namespace */
    pid_t program, resizer;
};

static void tell(const struct init *in, const struct sandbox_message *m)
{
    ssize_t n = send(in->talk, m, sizeof *m, MSG_NOSIGNAL);
    (void)n;                    /* the keeper is gone: so are we, at once */
}

__attribute__((noreturn, format(printf, 2, 3)))
static void give_up(const struct init *in, const char *fmt, ...)
{
    struct sandbox_message m = { .kind = SANDBOX_FAILED };
    int error = errno;
    va_list args;

    va_start(args, fmt);
    int n = vsnprintf(m.text, sizeof m.text, fmt, args);
    va_end(args);
    if (n >= 0 && n < (int)sizeof m.text)
        snprintf(m.text + n, sizeof m.text - (size_t)n, ": %s", strerror(error));
    tell(in, &m);
    _exit(125);
}

/* ------------------------------------------------------------------ rights */

static int put_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));
    if (fd >= 0)
        close(fd);
    return n == (ssize_t)strlen(text) ? 0 : -1;
}

static int map_user(uid_t uid, gid_t gid)
{
    char text[64];
    put_file("/proc/self/setgroups", "deny");
    snprintf(text, sizeof text, "%d %u 1", SANDBOX_USER, (unsigned)gid);
    if (put_file("/proc/self/gid_map", text) < 0)
        return -1;
    snprintf(text, sizeof text, "%d %u 1", SANDBOX_USER, (unsigned)uid);
    return put_file("/proc/self/uid_map", text);
}

static void drop_rights(const struct init *in)
{
    /* First: whoever enters a user namespace has all capabilities in it. */
    if (in->drop_user && in->s->user_ns > 0 && setns(in->s->user_ns, CLONE_NEWUSER) < 0)
        give_up(in, "the job's user namespace");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        give_up(in, "no_new_privs");
    for (int cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
        prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
    if (in->drop_user && (setgroups(0, NULL) < 0 ||
                          setresgid(SANDBOX_USER, SANDBOX_USER, SANDBOX_USER) < 0 ||
                          setresuid(SANDBOX_USER, SANDBOX_USER, SANDBOX_USER) < 0))
        give_up(in, "becoming user %d", SANDBOX_USER);
    struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
    struct __user_cap_data_struct none[2] = { 0 };
    if (syscall(SYS_capset, &head, none) < 0)
        give_up(in, "dropping capabilities");
    if (sandbox_filter(in->s->user_namespaces) < 0)
        give_up(in, "closing doors of the kernel (seccomp)");
    /* The death of the parent must still reach us: changing user forgot it. */
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
}

static void bring_up_loopback(void)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq r = { .ifr_flags = IFF_UP };
    snprintf(r.ifr_name, sizeof r.ifr_name, "lo");
    if (fd >= 0) {
        ioctl(fd, SIOCSIFFLAGS, &r);
        close(fd);
    }
}

/* ------------------------------------------------------------------ the program */

/* In a child that shares our memory: system calls only. */
__attribute__((noreturn))
static void become_program(const struct sandbox *s, volatile int *error)
{
    sigset_t none;

    setsid();                   /* no terminal to push characters into */
    dup2(s->out, STDOUT_FILENO);
    dup2(s->err, STDERR_FILENO);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    syscall(SYS_close_range, 3, ~0u, 0);
    umask(022);
    execvpe(s->argv[0], s->argv, s->env);
    *error = errno;
    _exit(127);
}

static pid_t start_program(const struct init *in)
{
    volatile int error = 0;
    environ = (char **)in->s->env;      /* the program is looked up on its own path, not on ours */
    pid_t pid = vfork();        /* copies no page tables, and tells whether exec worked */
    if (pid == 0)
        become_program(in->s, &error);
    if (pid < 0)
        give_up(in, "a process");
    struct sandbox_message m = { .kind = error ? SANDBOX_NO_PROGRAM : SANDBOX_STARTED,
                                 .value = error };
    tell(in, &m);
    /* The keeper reads until all writers are gone. */
    close(in->s->out);
    if (in->s->err != in->s->out)
        close(in->s->err);
    return pid;
}

/* ------------------------------------------------------------------ init */

static double seconds_of(const struct rusage *u)
{
    return (double)u->ru_utime.tv_sec + 1e-6 * (double)u->ru_utime.tv_usec +
           (double)u->ru_stime.tv_sec + 1e-6 * (double)u->ru_stime.tv_usec;
}

/* Reaps what has ended; true when the program is among it. */
static bool reap(const struct init *in, int *out_status)
{
    int status;
    pid_t pid;
    bool ended = false;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        if (pid == in->program) {
            *out_status = status;
            ended = true;
        } else if (pid == in->resizer) {
            tell(in, &(struct sandbox_message){ .kind = SANDBOX_RESIZED, .value = status });
        }
    return ended;
}

/* `range` is "2..8": the desk of a run is reached from where the run is. */
static pid_t start_resizer(const struct sandbox *s, const char *range)
{
    const char *const argv[] = { s->resize[0], s->resize[1], s->resize[2], range, NULL };
    pid_t pid = s->resize[0] ? fork() : -1;
    if (pid)
        return pid;
    int null = open("/dev/null", O_RDWR);
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    execve(argv[0], (char *const *)argv, s->env);
    _exit(127);
}

__attribute__((noreturn))
static void finish(const struct init *in, int status)
{
    struct sandbox_message m = { .kind = SANDBOX_ENDED, .value = status };
    struct rusage used;

    if (!in->s->confined)
        tree_kill_below(getpid());
    if (getrusage(RUSAGE_CHILDREN, &used) == 0)
        m.cpu_s = seconds_of(&used);
    tell(in, &m);
    _exit(0);
}

/* The keeper is dead. */
__attribute__((noreturn))
static void clean_up(const struct init *in)
{
    if (in->s->abandoned) {
        tree_kill_below(getpid());
        pid_t pid = fork();
        if (pid == 0) {
            sigset_t none;
            int null = open("/dev/null", O_RDWR);
            for (int fd = 0; fd < 3; fd++)
                dup2(null, fd);
            syscall(SYS_close_range, 3, ~0u, 0);
            sigemptyset(&none);
            sigprocmask(SIG_SETMASK, &none, NULL);
            execve(in->s->abandoned[0], (char *const *)in->s->abandoned, in->s->env);
            _exit(127);
        }
        while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    finish(in, SIGKILL);
}

__attribute__((noreturn))
static void watch_program(struct init *in, int signals)
{
    struct pollfd fds[] = { { .fd = signals, .events = POLLIN },
                            { .fd = in->talk, .events = POLLIN } };

    for (;;) {
        int status = 0;
        if (reap(in, &status))
            finish(in, status);
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            finish(in, SIGKILL);
        struct signalfd_siginfo got;
        while (read(signals, &got, sizeof got) == sizeof got)
            if (got.ssi_signo == SIGTERM)       /* not confined: the keeper is dead */
                clean_up(in);
        char word[64] = "";
        ssize_t n = recv(in->talk, word, sizeof word - 1, MSG_DONTWAIT);
        if (n == 0)
            clean_up(in);
        if (word[0] == 'K')
            finish(in, SIGKILL);
        if (word[0] == 'R')
            in->resizer = start_resizer(in->s, word + 1);
        else if (word[0] == 'T' && in->s->resize[0])
            kill(in->program, SIGTERM);         /* it ends its workers itself, after a checkpoint */
        else if (word[0] == 'T' && in->s->confined)
            kill(-1, SIGTERM);
        else if (word[0] == 'T')
            tree_signal_below(getpid(), SIGTERM);
    }
}

__attribute__((noreturn))
static void be_init(struct init *in, uid_t uid, gid_t gid)
{
    const struct sandbox *s = in->s;
    sigset_t set;

    prctl(PR_SET_PDEATHSIG, s->confined ? SIGKILL : SIGTERM, 0, 0, 0);
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_SETMASK, &set, NULL);
    int signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals < 0)
        give_up(in, "a signal descriptor");
    if (s->limits && limits_join(s->limits) < 0)
        give_up(in, "joining the job's control group");
    put_file("/proc/self/oom_score_adj", "300");        /* a job goes before the server does */
    if (s->confined) {
        if (!in->drop_user && map_user(uid, gid) < 0)
            give_up(in, "mapping the user of the sandbox");
        if (!s->network)
            bring_up_loopback();
        const char *what = sandbox_mount(s);
        if (what)
            give_up(in, "%s", what);
        drop_rights(in);
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);     /* the program may not look into us */
    } else {
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    }
    if (chdir(s->cwd) < 0)
        give_up(in, "%s", s->cwd);
    struct rlimit no_core = { 0, 0 };
    setrlimit(RLIMIT_CORE, &no_core);
    in->program = start_program(in);
    watch_program(in, signals);
}

int sandbox_start(const struct sandbox *s, struct sandbox_run *out, struct err *err)
{
    unsigned long flags = s->confined ? CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC : 0;
    struct init in = { .s = s, .drop_user = geteuid() == 0 };
    int talk[2];

    if (s->confined && !s->network)
        flags |= CLONE_NEWNET;
    if (s->confined && !in.drop_user)
        flags |= CLONE_NEWUSER;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, talk) < 0)
        return err_set(err, ERR_AGAIN, "no socket for a sandbox: %s", strerror(errno));
    const bool below = s->confined && s->user_fd > 0;   /* where we are 0 (drivers/network.c) */
    uid_t uid = below ? 0 : geteuid();
    gid_t gid = below ? 0 : getegid();
    pid_t pid = sandbox_clone(flags, s);
    if (pid == 0) {
        close(talk[0]);
        in.talk = talk[1];
        be_init(&in, uid, gid);
    }
    int error = errno;
    close(talk[1]);
    if (pid < 0) {
        close(talk[0]);
        bool denied = error == EPERM || error == ENOSYS || error == ENOSPC || error == EINVAL;
        return denied
            ? err_set(err, ERR_DENIED, "this system lets nobody but root make a sandbox (user "
                      "namespaces: %s); allow them (sysctl kernel.unprivileged_userns_clone=1, "
                      "user.max_user_namespaces), run the server as root, or start it with "
                      "--no-sandbox", strerror(error))
            : err_set(err, ERR_AGAIN, "no process for a sandbox: %s", strerror(error));
    }
    *out = (struct sandbox_run){ .init = pid, .talk = talk[0] };
    return 0;
}

void sandbox_resize(const struct sandbox_run *r, int min, int max)
{
    char text[64];
    int n = snprintf(text, sizeof text, "R%d..%d", min, max);
    ssize_t sent = send(r->talk, text, (size_t)n, MSG_NOSIGNAL);
    (void)sent;
}

void sandbox_ask_to_end(const struct sandbox_run *r)
{
    ssize_t n = send(r->talk, "T", 1, MSG_NOSIGNAL);
    (void)n;
}

void sandbox_end(struct sandbox_run *r, bool confined)
{
    if (r->init > 0) {
        /* Only init can find what an unconfined program started; a sandbox dies with its init. */
        if (confined)
            kill(r->init, SIGKILL);
        else
            send(r->talk, "K", 1, MSG_NOSIGNAL);
        while (waitpid(r->init, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    if (r->talk >= 0)
        close(r->talk);
    *r = (struct sandbox_run){ .init = 0, .talk = -1 };
}

int sandbox_check(struct err *err)
{
    char *const argv[] = { "true", NULL };
    char *const env[] = { "PATH=/usr/bin:/bin", NULL };
    struct sandbox s = { .argv = argv, .env = env, .cwd = "/", .confined = true, .network = true };
    struct sandbox_run run;
    struct sandbox_message m = { 0 };

    OWN_FD int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    s.out = s.err = null;
    if (sandbox_start(&s, &run, err) < 0)
        return -(int)err->code;
    ssize_t n = recv(run.talk, &m, sizeof m, 0);
    sandbox_end(&run, true);
    if (n == (ssize_t)sizeof m && m.kind != SANDBOX_FAILED)
        return 0;
    return err_set(err, ERR_DENIED,
                   "a sandbox for jobs cannot be made here (%s); run the server as "
                   "root, or start it with --no-sandbox",
                   n > 0 ? m.text : "it died");
}
