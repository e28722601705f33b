/* runtime/group_member.c - one worker of a group: its environment, its process, its lines */
#include "runtime/group_int.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "base/own.h"

enum {
    LINE_MAX_BYTES = 1 << 20,   /* a longer line is cut in two: memory has an end */
    KEEPER_MAX = 8192,          /* process groups; twice what a spec may ask for */
};

/* ------------------------------------------------------------------ environment */

extern char **environ;

struct env { char **item; size_t n, cap; };

static void env_done(struct env *e)
{
    for (size_t i = 0; i < e->n; i++)
        free(e->item[i]);
    free(e->item);
}

static void env_drop(struct env *e, const char *name, size_t len)
{
    for (size_t i = 0; i < e->n; i++)
        if (!strncmp(e->item[i], name, len) && e->item[i][len] == '=') {
            free(e->item[i]);
            e->item[i--] = e->item[--e->n];
        }
}

/* "NAME=value", in the place of one that is there. The last entry stays NULL. */
static int env_add(struct env *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int env_add(struct env *e, const char *fmt, ...)
{
    va_list args;
    char *text;

    va_start(args, fmt);
    int rc = vasprintf(&text, fmt, args);
    va_end(args);
    if (rc < 0)
        return -1;
    env_drop(e, text, strcspn(text, "="));
    if (e->n + 1 >= e->cap) {
        size_t cap = e->cap ? 2 * e->cap : 64;
        char **item = realloc(e->item, cap * sizeof *item);
        if (!item) {
            free(text);
            return -1;
        }
        e->item = item;
        e->cap = cap;
    }
    e->item[e->n++] = text;
    e->item[e->n] = NULL;
    return 0;
}

/* What the user may have decided for himself. */
static int env_add_missing(struct env *e, const struct start *s)
{
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1, rc = 0;

    if (s->job->threads)
        rc |= env_add(e, "OMP_NUM_THREADS=%d", s->job->threads);
    else if (!getenv("OMP_NUM_THREADS"))
        rc |= env_add(e, "OMP_NUM_THREADS=%d", cores > s->size ? cores / s->size : 1);
    if (!getenv("PYTHONUNBUFFERED"))
        rc |= env_add(e, "PYTHONUNBUFFERED=1");
    if (s->job->python_path) {
        const char *more = getenv("PYTHONPATH");
        rc |= env_add(e, "PYTHONPATH=%s%s%s", s->job->python_path, more && *more ? ":" : "",
                      more ? more : "");
    }
    return rc;
}

static int env_fill(struct env *e, const struct start *s, int rank)
{
    int rc = 0;

    for (char **v = environ; *v && !rc; v++)
        if (strchr(*v, '=') && strncmp(*v, "MUSTER_TOKEN", 12) != 0)
            rc = env_add(e, "%s", *v);
    rc |= env_add(e, "RANK=%d", rank);
    rc |= env_add(e, "LOCAL_RANK=%d", rank);
    rc |= env_add(e, "WORLD_SIZE=%d", s->size);
    rc |= env_add(e, "LOCAL_WORLD_SIZE=%d", s->size);
    rc |= env_add(e, "GROUP_RANK=0");
    rc |= env_add(e, "GROUP_WORLD_SIZE=1");
    rc |= env_add(e, "MASTER_ADDR=127.0.0.1");
    rc |= env_add(e, "MASTER_PORT=%d", s->port);
    rc |= env_add(e, "TORCHELASTIC_RESTART_COUNT=%d", s->count);
    rc |= env_add(e, "TORCHELASTIC_MAX_RESTARTS=%d", s->job->max_restarts);
    rc |= env_add(e, "TORCHELASTIC_RUN_ID=%s", s->job->name);
    rc |= env_add(e, "MUSTER_RESTART_COUNT=%d", s->count);
    rc |= env_add(e, "MUSTER_RUN=%s", s->run);
    /* Left by a torchrun around this one it would send rank 0 to a store that is not there. */
    env_drop(e, "TORCHELASTIC_USE_AGENT_STORE", strlen("TORCHELASTIC_USE_AGENT_STORE"));
    return rc | env_add_missing(e, s);
}

/* ------------------------------------------------------------------ the process */

void member_init(struct member *m, int rank)
{
    *m = (struct member){ .rank = rank, .log = -1, .stream = { { .fd = -1 }, { .fd = -1 } } };
}

void member_done(struct member *m)
{
    for (int i = 0; i < 2; i++) {
        if (m->stream[i].fd >= 0)
            close(m->stream[i].fd);
        m->stream[i].fd = -1;
        buf_done(&m->stream[i].part);
    }
    if (m->log >= 0)
        close(m->log);
    m->log = -1;
}

static int write_all(int fd, const char *data, size_t n)
{
    while (n) {
        ssize_t done = write(fd, data, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return -1;
        data += done;
        n -= (size_t)done;
    }
    return 0;
}

static int write_log(struct member *m, const char *data, size_t n, struct err *err)
{
    if (write_all(m->log, data, n) < 0)
        return err_set(err, ERR_IO, "the log of worker %d cannot be written: %s", m->rank,
                       strerror(errno));
    return 0;
}

static char *log_path(const struct start *s, int rank)
{
    char *path;

    return asprintf(&path, "%s/logs/worker-%d.log", s->run, rank) < 0 ? NULL : path;
}

void member_forget(struct member *m, const struct start *s)
{
    OWN_MEM char *path = log_path(s, m->rank);

    if (!path)
        return;
    unlink(path);
    *strrchr(path, '/') = '\0';
    rmdir(path);                /* when there is nothing else in it */
}

static int open_log(struct member *m, const struct start *s, struct err *err)
{
    OWN_MEM char *path = log_path(s, m->rank);
    char line[160], when[32];
    time_t now = time(NULL);
    struct tm tm;

    if (!path)
        return err_set(err, ERR_NOMEM, "no memory for a path");
    m->log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (m->log < 0)
        return err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
    int n = snprintf(line, sizeof line, "--- start %d: worker %d of %d, port %d, %s\n", s->count,
                     m->rank, s->size, s->port, when);
    return write_log(m, line, (size_t)n, err);
}

/* What a child that cannot run its program says before it ends. */
struct excuse { int in_dir, number; };

__attribute__((noreturn))
static void run_child(const struct start *s, char *const *env, const int out[2], int report,
                      pid_t parent)
{
    struct excuse why = { 0 };
    pid_t self = getpid();
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || write(s->keeper, &self, sizeof self) < 0)
        _exit(127);             /* it was killed before this one asked to go with it */
    if (dup2(null, 0) == 0 && dup2(out[0], 1) == 1 && dup2(out[1], 2) == 2) {
        signal(SIGPIPE, SIG_DFL);
        sigprocmask(SIG_SETMASK, s->mask, NULL);
        why.in_dir = s->job->dir && chdir(s->job->dir) < 0;
        if (!why.in_dir)
            execvpe(s->job->argv[0], s->job->argv, env);
    }
    why.number = errno;
    _exit(write(report, &why, sizeof why) == sizeof why ? 127 : 126);
}

/* Waits until the child's program runs, which closes the pipe, or the child has said why not. */
static int hear_child(const struct start *s, int report, struct err *err)
{
    struct excuse why;
    ssize_t n;

    while ((n = read(report, &why, sizeof why)) < 0 && errno == EINTR)
        ;
    if (n != sizeof why)
        return 0;
    if (why.in_dir)
        return err_set(err, ERR_MISSING, "%s: %s", s->job->dir, strerror(why.number));
    return err_set(err, why.number == ENOENT ? ERR_MISSING : ERR_INVALID, "cannot run \"%s\": %s",
                   s->job->argv[0], strerror(why.number));
}

static int spawn(struct member *m, const struct start *s, char *const *env, struct err *err)
{
    int out[2] = { -1, -1 }, report[2] = { -1, -1 }, rc = 0;
    pid_t parent = getpid();

    for (int i = 0; i < 2 && rc == 0; i++) {
        int ends[2];
        rc = pipe2(ends, O_CLOEXEC);
        if (rc == 0) {
            m->stream[i].fd = ends[0];
            out[i] = ends[1];
            fcntl(ends[0], F_SETFL, O_NONBLOCK);
        }
    }
    if (rc == 0)
        rc = pipe2(report, O_CLOEXEC);
    m->pid = rc == 0 ? fork() : -1;
    if (m->pid == 0)
        run_child(s, env, out, report[1], parent);
    if (m->pid < 0)
        rc = err_set(err, ERR_AGAIN, "worker %d of %d cannot be started: %s", m->rank, s->size,
                     strerror(errno));
    for (int i = 0; i < 2; i++)
        if (out[i] >= 0)
            close(out[i]);
    if (report[1] >= 0)
        close(report[1]);
    if (rc == 0) {
        setpgid(m->pid, m->pid);        /* both do it: whoever comes first */
        m->alive = true;
        rc = hear_child(s, report[0], err);
    }
    if (report[0] >= 0)
        close(report[0]);
    return rc;
}

int member_start(struct member *m, const struct start *s, struct err *err)
{
    struct env env = { 0 };
    int rc = open_log(m, s, err);

    if (rc == 0 && env_fill(&env, s, m->rank) != 0)
        rc = err_set(err, ERR_NOMEM, "no memory for the environment of worker %d", m->rank);
    if (rc == 0)
        rc = spawn(m, s, env.item, err);
    env_done(&env);
    return rc;
}

/* ------------------------------------------------------------------ lines */

static int give_line(struct member *m, int which, const char *text, size_t n, char end,
                     line_fn *tell, void *arg, struct err *err)
{
    struct group_event e = { .kind = GROUP_LINE, .rank = m->rank, .stream = which + 1, .text = text,
                             .n = n, .end = end };

    if (write_log(m, text, n, err) < 0 || write_log(m, &end, 1, err) < 0)
        return -(int)err->code;
    return tell(arg, &e, err);
}

/* Gives the whole lines of a stream, keeps the rest. */
static int give_lines(struct member *m, int which, bool all, line_fn *tell, void *arg,
                      struct err *err)
{
    struct buf *b = &m->stream[which].part;
    size_t from = 0;
    int rc = 0;

    for (size_t i = 0; i < b->n && rc == 0; i++) {
        char c = b->data[i];
        if (c == '\r' && i + 1 == b->n && !all)
            break;                      /* "\r\n" may have come in two pieces */
        if (c != '\n' && c != '\r' && i - from < LINE_MAX_BYTES)
            continue;
        size_t n = i - from, skip = 1;
        if (c == '\r' && i + 1 < b->n && b->data[i + 1] == '\n') {
            c = '\n';
            skip = 2;
        } else if (c != '\n' && c != '\r') {
            c = '\n';
            skip = 0;
        }
        rc = give_line(m, which, b->data + from, n, c, tell, arg, err);
        from = i + skip;
        i = from - 1;
    }
    if (rc == 0 && all && from < b->n) {
        rc = give_line(m, which, b->data + from, b->n - from, '\n', tell, arg, err);
        from = b->n;
    }
    if (from) {
        memmove(b->data, b->data + from, b->n - from);
        b->n -= from;
        b->data[b->n] = '\0';
    }
    return rc;
}

int member_read(struct member *m, int which, line_fn *tell, void *arg, struct err *err)
{
    struct stream *s = &m->stream[which];
    char *at = buf_reserve(&s->part, 65536);

    if (!at)
        return err_set(err, ERR_NOMEM, "no memory for the output of worker %d", m->rank);
    ssize_t n = read(s->fd, at, 65536);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n <= 0) {
        close(s->fd);
        s->fd = -1;
        return give_lines(m, which, true, tell, arg, err);
    }
    s->part.n += (size_t)n;
    s->part.data[s->part.n] = '\0';
    return give_lines(m, which, false, tell, arg, err);
}

int member_flush(struct member *m, line_fn *tell, void *arg, struct err *err)
{
    int rc = 0;

    for (int i = 0; i < 2 && rc == 0; i++)
        if (m->stream[i].part.n)
            rc = give_lines(m, i, true, tell, arg, err);
    return rc;
}

/* ------------------------------------------------------------------ the keeper */

__attribute__((noreturn))
static void keep(int from, const char *run)
{
    static pid_t group[KEEPER_MAX];
    bool well = false;
    int n = 0;
    pid_t pid;

    /* Out of reach of the terminal, with nothing open that another might wait to see closed. */
    setsid();
    prctl(PR_SET_NAME, "muster-keeper");
    dup2(from, 0);
    close_range(1, ~0U, 0);
    for (int sig = 1; sig < NSIG; sig++)
        signal(sig, SIG_IGN);
    for (;;) {
        ssize_t got = read(0, &pid, sizeof pid);
        if (got < 0 && errno == EINTR)
            continue;
        if (got != sizeof pid)
            break;
        well = pid == 0;
        for (int i = 0; i < n; i++)
            if (group[i] == abs(pid))
                group[i--] = group[--n];
        if (pid > 0 && n < KEEPER_MAX)
            group[n++] = pid;
    }
    for (int i = 0; i < n; i++)
        kill(-group[i], SIGKILL);
    if (!well)
        orphans_find(run);
    _exit(0);
}

int keeper_start(const char *run, pid_t *out_pid, int *out_fd, struct err *err)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) < 0)
        return err_set(err, ERR_AGAIN, "no pipe for the group's keeper: %s", strerror(errno));
    pid_t pid = fork();
    if (pid == 0) {
        close(ends[1]);
        keep(ends[0], run);
    }
    close(ends[0]);
    if (pid < 0) {
        close(ends[1]);
        return err_set(err, ERR_AGAIN, "the group's keeper cannot be started: %s", strerror(errno));
    }
    *out_pid = pid;
    *out_fd = ends[1];
    return 0;
}
