/* drivers/local.c - jobs on this machine: keepers, and how they are found again
 *
 * DESIGN. The lock says who is alive. It is taken here, before the keeper is made, and handed
 * to it: a flock belongs to the open file, which both then share, so at no moment is a job
 * under way without it. The first thing that a keeper does is to write its number there; a lock
 * that nobody holds is thus either empty (nobody ran anything) or names a keeper that is dead.
 *
 * News. Every lock is watched by inotify: a keeper that writes its phase or dies touches it.
 */
#include "drivers/driver.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/own.h"
#include "base/sealed.h"
#include "drivers/container.h"
#include "drivers/environment.h"
#include "drivers/keeper.h"
#include "drivers/network.h"
#include "drivers/runtimes.h"
#include "drivers/sandbox.h"

enum { SPAWN_STACK = 64 << 10, SMALL_FILE = 1 << 20 };

static char program[PATH_MAX] = "/proc/self/exe";

void driver_local_program(const char *path)
{
    snprintf(program, sizeof program, "%s", path);
}

static char server[160];

void driver_local_server(const char *url)
{
    snprintf(server, sizeof server, "%s", url);
}

static int path_in(const char *dir, const char *name, char *out, struct err *err)
{
    if (snprintf(out, PATH_MAX, "%s/%s", dir, name) >= PATH_MAX)
        return err_set(err, ERR_INVALID, "%s: the path is too long", dir);
    return 0;
}

/* ------------------------------------------------------------------ news */

static int news_fd = -1;

static void open_news(void)
{
    news_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
}

int driver_local_news(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_news);
    return news_fd;
}

void driver_local_news_clear(void)
{
    char events[4096];
    while (read(driver_local_news(), events, sizeof events) > 0)
        ;
}

/* Watching twice is one watch. */
static void watch_lock(const char *lock)
{
    inotify_add_watch(driver_local_news(), lock, IN_MODIFY | IN_CLOSE_WRITE);
}

static void unwatch_lock(const char *lock)
{
    /* Found by asking for it again: the number of a watch that is there. */
    int wd = inotify_add_watch(driver_local_news(), lock, IN_MODIFY);
    if (wd >= 0)
        inotify_rm_watch(driver_local_news(), wd);
}

/* ------------------------------------------------------------------ making a keeper */

struct spawn {
    const char *program, *dir, *server;
    int lock, env_fd;
    char *const *env;
    int error;                  /* of the grandchild, which shares our memory */
    char *stack;
};

/* Shares memory with the server, whose thread waits until exec: system calls only. */
static int spawn_keeper(void *arg)
{
    struct spawn *s = arg;
    char *const argv[] = { "muster", "keeper", (char *)s->dir, (char *)s->server, NULL };
    sigset_t none;

    int lock = fcntl(s->lock, F_DUPFD, 10), env = fcntl(s->env_fd, F_DUPFD, 10);
    int null = open("/dev/null", O_RDWR);
    if (lock < 0 || env < 0 || null < 0)
        goto failed;
    for (int fd = 0; fd < 3; fd++)
        dup2(null, fd);
    dup2(lock, KEEPER_LOCK_FD);
    dup2(env, KEEPER_ENV_FD);
    syscall(SYS_close_range, 5, ~0u, 0);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execve(s->program, argv, s->env);
failed:
    s->error = errno;
    _exit(127);
}

/* Between the two: its end makes the keeper an orphan, which nobody here has to reap. */
static int spawn_between(void *arg)
{
    struct spawn *s = arg;
    setsid();
    if (clone(spawn_keeper, s->stack + SPAWN_STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, s) < 0)
        s->error = errno;
    _exit(0);
}

/* What the keeper may know of the server's environment: where programs, caches and packages
 * are, nothing else. */
static bool may_know(const char *variable)
{
    static const char *const names[] = { "PATH=", "HOME=", "XDG_", "MUSTER_DATA=",
                                         "MUSTER_FAULT=", "MUSTER_GPU_ROOT=",
                                         "LD_LIBRARY_PATH=", "PIP_", "UV_", "SSL_CERT_",
                                         "CONTAINERS_", "DBUS_SESSION_BUS_ADDRESS=",
                                         "REQUESTS_CA_BUNDLE=", "http_proxy=", "https_proxy=",
                                         "no_proxy=" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strncmp(variable, names[i], strlen(names[i])))
            return true;
    return false;
}

static void pick_env(char **out, int max)
{
    int n = 0;
    for (char **p = environ; *p && n < max - 1; p++)
        if (may_know(*p))
            out[n++] = *p;
    out[n] = NULL;
}

/* `dir` "-" with a socket for the lock: one that waits for its job. */
static int make_keeper(const char *dir, int lock, int env_fd, struct err *err)
{
    char *env[64];
    sigset_t all, before;
    OWN_MEM char *stacks = malloc(2 * SPAWN_STACK);
    struct spawn s = { .program = program, .dir = dir, .lock = lock, .env_fd = env_fd, .env = env };

    if (!strcmp(dir, "-") && server[0] && !network_missing())
        s.server = server;

    if (!stacks)
        return err_set(err, ERR_AGAIN, "no memory to start a job");
    s.stack = stacks + SPAWN_STACK;
    pick_env(env, 64);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t pid = clone(spawn_between, stacks + SPAWN_STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, &s);
    int error = pid < 0 ? errno : s.error;
    if (pid > 0)
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error ? err_set(err, ERR_AGAIN, "cannot start a keeper: %s", strerror(error)) : 0;
}

/* ------------------------------------------------------------------ keepers ahead */

/* To start a program costs more than all that a keeper does before its job runs, and its network
 * takes longer still; so some stand ready. One alone would not have its network up when the next
 * job follows at once. They end when the server does: their sockets close. */
enum { SPARES = 3 };
static int spares[SPARES];      /* the oldest first */
static int n_spares;
static pthread_mutex_t spare_lock = PTHREAD_MUTEX_INITIALIZER;

static void make_spare(void)
{
    struct err none;
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return;
    pthread_mutex_lock(&spare_lock);
    if (n_spares < SPARES && make_keeper("-", pair[1], pair[1], &none) == 0) {
        spares[n_spares++] = pair[0];
        pair[0] = -1;
    }
    pthread_mutex_unlock(&spare_lock);
    close(pair[1]);
    if (pair[0] >= 0)
        close(pair[0]);
}

/* The oldest; -1: there is none. */
static int take_spare(void)
{
    pthread_mutex_lock(&spare_lock);
    const int fd = n_spares ? spares[0] : -1;
    if (n_spares)
        memmove(spares, spares + 1, (size_t)--n_spares * sizeof spares[0]);
    pthread_mutex_unlock(&spare_lock);
    return fd;
}

/* False: there is none, or it has died. If it dies later with the message unread, the lock is
 * free again and empty: not started. */
static bool use_spare(const char *dir, int lock, int env_fd)
{
    char control[CMSG_SPACE(2 * sizeof(int))] = { 0 };
    struct iovec text = { .iov_base = (char *)dir, .iov_len = strlen(dir) };
    struct msghdr m = { .msg_iov = &text, .msg_iovlen = 1, .msg_control = control,
                        .msg_controllen = sizeof control };
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    const int fds[2] = { lock, env_fd };

    int fd = take_spare();
    if (fd < 0)
        return false;
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fds);
    memcpy(CMSG_DATA(c), fds, sizeof fds);
    ssize_t n = sendmsg(fd, &m, MSG_NOSIGNAL);
    close(fd);
    return n == (ssize_t)text.iov_len;
}

/* ------------------------------------------------------------------ start */

enum { EXIT_BYTES = 4096 };

/* A full disk, or a user's share of it: there may be room later. */
static enum err_code code_of(int error)
{
    return error == ENOSPC || error == EDQUOT ? ERR_AGAIN : ERR_IO;
}

static int write_text(const char *path, const json_t *doc, struct err *err)
{
    OWN_MEM char *text = sealed_text(doc);

    if (!text)
        return err_set(err, ERR_NOMEM, "no memory for %s", path);
    OWN_FD int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));
    int error = n < 0 ? errno : ENOSPC;
    if (n == (ssize_t)strlen(text))
        return 0;
    unlink(path);
    return err_set(err, code_of(error), "%s: %s", path, strerror(error));
}

/* For what a keeper may read at any moment: the old text or the new one. */
static int put_small(const char *dir, const char *name, const json_t *doc, struct err *err)
{
    char path[PATH_MAX], before[PATH_MAX + 8];

    if (path_in(dir, name, path, err) < 0)
        return -(int)err->code;
    snprintf(before, sizeof before, "%s.tmp", path);
    if (write_text(before, doc, err) < 0)
        return -(int)err->code;
    return rename(before, path) < 0
        ? err_set(err, ERR_IO, "%s: %s", path, strerror(errno)) : 0;
}

static int put_order(const struct order *o, struct err *err)
{
    OWN_JSON json_t *doc =
        json_pack("{s:O, s:s, s:i, s:b}", "spec", o->spec, "data_dir", o->data_dir, "workers",
                  o->workers, "unconfined", o->unconfined);
    if (!doc)
        return err_set(err, ERR_NOMEM, "no memory for an order");
    if (o->packages)
        json_object_set(doc, "packages", (json_t *)o->packages);
    if (o->user)
        json_object_set_new(doc, "user", json_integer(o->user));
    if (json_array_size(o->expose))
        json_object_set(doc, "expose", (json_t *)o->expose);
    json_object_set_new(doc, "limits",
                        json_pack("{s:I, s:I, s:I}", "memory", (json_int_t)o->limits.memory,
                                  "processes", (json_int_t)o->limits.processes, "disk",
                                  (json_int_t)o->limits.disk));
    if (network_missing())
        json_object_set_new(doc, "no_outside", json_string(network_missing()));
    if (o->log_limit > 0)
        json_object_set_new(doc, "log_limit", json_integer(o->log_limit));
    /* Nobody reads it before it is whole: the lock is ours, and the keeper does not exist yet. */
    char path[PATH_MAX];
    return path_in(o->dir, "order.json", path, err) < 0 ? -(int)err->code
                                                        : write_text(path, doc, err);
}

/* Room for how it will end, before it begins: a job may fill the disk in its first moments. */
static int reserve_exit(const char *dir, struct err *err)
{
    char path[PATH_MAX];

    if (path_in(dir, "exit.json.tmp", path, err) < 0)
        return -(int)err->code;
    OWN_FD int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    const int error = fd < 0 ? errno : posix_fallocate(fd, 0, EXIT_BYTES);
    return error ? err_set(err, code_of(error), "%s: %s", path, strerror(error)) : 0;
}

static int memory_of(const json_t *env, int *out_fd, struct err *err)
{
    OWN_MEM char *text = env ? json_dumps(env, JSON_COMPACT) : strdup("{}");
    OWN_FD int fd = memfd_create("job-environment", MFD_CLOEXEC);
    size_t n = text ? strlen(text) : 0;

    if (fd < 0 || !text || write(fd, text, n) != (ssize_t)n)
        return err_set(err, ERR_AGAIN, "no memory for the environment of a job");
    *out_fd = fd;
    fd = -1;
    return 0;
}

static int start(const struct order *o, struct err *err)
{
    char lock_path[PATH_MAX], exit_path[PATH_MAX];
    struct stat st;

    if (path_in(o->dir, "lock", lock_path, err) < 0 ||
        path_in(o->dir, "exit.json", exit_path, err) < 0)
        return -(int)err->code;
    if (mkdir(o->dir, 0700) < 0 && errno != EEXIST)
        return err_set(err, code_of(errno), "%s: %s", o->dir, strerror(errno));
    OWN_FD int lock = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (lock < 0 || fstat(lock, &st) < 0)
        return err_set(err, code_of(errno), "%s: %s", lock_path, strerror(errno));
    watch_lock(lock_path);
    if (flock(lock, LOCK_EX | LOCK_NB) < 0 || access(exit_path, F_OK) == 0)
        return 0;               /* under way, or over */
    if (fstat(lock, &st) == 0 && st.st_size > 0)
        return err_set(err, ERR_CONFLICT,
                       "%s: it was started before and lost; a new attempt needs a "
                       "new directory",
                       o->dir);
    OWN_FD int env = -1;
    if (put_order(o, err) < 0 || reserve_exit(o->dir, err) < 0 || memory_of(o->env, &env, err) < 0)
        return -(int)err->code;
    if (!use_spare(o->dir, lock, env) && make_keeper(o->dir, lock, env, err) < 0)
        return -(int)err->code;
    for (int i = 0; i < 2; i++)         /* in place of this one, and one more while there are few */
        make_spare();
    return 0;
}

/* ------------------------------------------------------------------ look */

static int read_exit(const char *dir, struct run_state *out)
{
    char path[PATH_MAX];
    const char *reason = "", *cause = "";
    OWN_JSON json_t *doc = NULL;
    struct err err;

    if (path_in(dir, "exit.json", path, &err) < 0)
        return -1;
    if (sealed_load(path, &doc, &err) < 0 ||
        json_unpack(doc, "{s:i, s:i, s:s, s:s, s:F, s:F}", "code", &out->code, "signal",
                    &out->signal, "reason", &reason, "cause", &cause, "started", &out->started,
                    "ended", &out->ended) < 0)
        return -1;
    out->phase = RUN_ENDED;
    out->stopped = !strcmp(cause, "stopped");
    snprintf(out->reason, sizeof out->reason, "%s", reason);
    return 0;
}

/* The roster of a run is written by the job: it is read with care and believed for a number
 * only. */
static int count_workers(const char *dir)
{
    char work[PATH_MAX], text[64 << 10];
    struct err err;
    int fd;
    json_error_t wrong;

    if (path_in(dir, "work", work, &err) < 0 ||
        driver_open_below(work, "run/roster.json", &fd, &err) < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof text);
    close(fd);
    OWN_JSON json_t *doc = n > 0 ? json_loadb(text, (size_t)n, 0, &wrong) : NULL;
    return (int)json_array_size(json_object_get(doc, "workers"));
}

static int look(const char *dir, struct run_state *out, struct err *err)
{
    char path[PATH_MAX], text[64] = "", phase[32] = "";
    struct run_state s = { .phase = RUN_NOT_STARTED };
    int pid = 0;

    if (path_in(dir, "lock", path, err) < 0)
        return -(int)err->code;
    OWN_FD int lock = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (lock >= 0 && read_exit(dir, &s) < 0) {
        watch_lock(path);
        bool alive = flock(lock, LOCK_SH | LOCK_NB) < 0;
        ssize_t n = pread(lock, text, sizeof text - 1, 0);
        if (n > 0 && sscanf(text, "%d %31s", &pid, phase) >= 1)
            s.keeper = pid;
        if (alive)
            s.phase = !strcmp(phase, "running") || !strcmp(phase, "ended") ? RUN_RUNNING
                                                                           : RUN_PREPARING;
        else if (read_exit(dir, &s) < 0)        /* it may just have ended */
            s.phase = n > 0 ? RUN_LOST : RUN_NOT_STARTED;
        if (s.phase == RUN_RUNNING)
            s.workers = count_workers(dir);
    }
    if (s.phase == RUN_ENDED || s.phase == RUN_LOST)
        unwatch_lock(path);
    *out = s;
    return 0;
}

/* ------------------------------------------------------------------ stop, resize */

/* A signal to the keeper; none where there is no living one. Its number cannot be another
 * process's: the lock is looked at while we hold its pidfd. */
static int signal_keeper(const char *dir, int signal)
{
    struct run_state s;
    struct err err;

    if (look(dir, &s, &err) < 0 || (s.phase != RUN_PREPARING && s.phase != RUN_RUNNING) ||
        !s.keeper)
        return -1;
    OWN_FD int fd = (int)syscall(SYS_pidfd_open, s.keeper, 0);
    pid_t before = s.keeper;
    if (fd < 0 || look(dir, &s, &err) < 0 || s.keeper != before ||
        (s.phase != RUN_PREPARING && s.phase != RUN_RUNNING))
        return -1;
    return (int)syscall(SYS_pidfd_send_signal, fd, signal, NULL, 0);
}

static int stop(const char *dir, int grace_ms, struct err *err)
{
    if (mkdir(dir, 0700) < 0 && errno == ENOENT)
        return 0;               /* its job has no directory yet: nothing was ever started */
    if (access(dir, F_OK) < 0)
        return err_set(err, ERR_IO, "%s: %s", dir, strerror(errno));
    OWN_JSON json_t *doc = json_pack("{s:i}", "grace_ms", grace_ms);
    /* The file first: a keeper that has not yet come to listen for signals finds it. One that runs
     * hears the signal, also when the disk is full of what it wrote. */
    int rc = put_small(dir, "stop", doc, err);
    signal_keeper(dir, SIGTERM);
    return rc == -ERR_AGAIN ? 0 : rc;
}

static int resize(const char *dir, int min, int max, struct err *err)
{
    struct run_state s;
    OWN_JSON json_t *doc = json_pack("{s:i, s:i}", "min", min, "max", max);

    if (look(dir, &s, err) < 0)
        return -(int)err->code;
    if (s.phase != RUN_RUNNING)
        return err_set(err, ERR_AGAIN, "%s: it does not run (yet)", dir);
    if (put_small(dir, "resize", doc, err) < 0)
        return -(int)err->code;
    signal_keeper(dir, SIGUSR1);
    return 0;
}

const struct driver driver_local = {
    .name = "local",
    .start = start,
    .stop = stop,
    .resize = resize,
    .look = look,
};

/* A sandbox is made by a process with one thread: a child's. */
static int check_in_child(struct err *err)
{
    struct err said = { .code = ERR_IO, .text = "a sandbox could not be tried" };
    int pipes[2];

    if (pipe2(pipes, O_CLOEXEC) < 0)
        return err_set(err, ERR_AGAIN, "no pipe to try a sandbox: %s", strerror(errno));
    pid_t pid = fork();
    if (pid == 0) {
        said = (struct err){ 0 };
        sandbox_check(&said);
        ssize_t n = write(pipes[1], &said, sizeof said);
        _exit(n != (ssize_t)sizeof said);
    }
    close(pipes[1]);
    ssize_t n = pid < 0 ? 0 : read(pipes[0], &said, sizeof said);
    close(pipes[0]);
    if (pid > 0)
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
    if (n == (ssize_t)sizeof said && said.code == ERR_OK)
        return 0;
    *err = said;
    return -(int)said.code;
}

/* What nobody uses any more; nobody waits for that. */
static void clean_aside(const char *data_dir)
{
    pid_t pid = fork();
    if (pid == 0) {
        syscall(SYS_close_range, 3, ~0u, 0);
        if (fork() == 0) {
            struct err none;
            int removed;
            setsid();
            container_sweep();
            environment_collect(data_dir, &removed, &none);
        }
        _exit(0);
    }
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

/* A number for the server's own processes without rights, as long as it lives. */
static void take_helper(const char *data_dir)
{
    static int held = -1;
    struct runtimes_sandbox sandbox;
    struct err none;
    uid_t user;

    if (geteuid() != 0 || held >= 0 || runtimes_sandbox(data_dir, &sandbox, &none) < 0)
        return;
    json_decref(sandbox.expose);
    if (users_pick(&sandbox.users, &user, &held, &none) == 0)
        users_set_helper(user);
}

int driver_local_check(const char *data_dir, struct err *err)
{
    if (check_in_child(err) < 0 || runtimes_write(data_dir, err) < 0)
        return -(int)err->code;
    take_helper(data_dir);
    limits_sweep();
    clean_aside(data_dir);
    make_spare();
    return 0;
}

/* ------------------------------------------------------------------ files that a job wrote */

int driver_open_below(const char *work, const char *path, int *out_fd, struct err *err)
{
    struct open_how how = { .flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY,
                            .resolve =
                                RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS };
    struct stat st;

    OWN_FD int dir = open(work, O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (dir < 0)
        return err_set(err, errno == ENOENT ? ERR_MISSING : ERR_IO, "%s: %s", work,
                       strerror(errno));
    OWN_FD int fd = (int)syscall(SYS_openat2, dir, path, &how, sizeof how);
    if (fd < 0 && errno == ENOENT)
        return err_set(err, ERR_MISSING, "%s: there is no such file", path);
    if (fd < 0)
        return err_set(err, errno == ELOOP || errno == EXDEV ? ERR_DENIED : ERR_IO, "%s: %s", path,
                       errno == ELOOP || errno == EXDEV ? "leads out of the job's directory"
                                                        : strerror(errno));
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return err_set(err, ERR_DENIED, "%s: is not a file", path);
    *out_fd = fd;
    fd = -1;
    return 0;
}
