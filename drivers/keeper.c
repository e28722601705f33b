/* drivers/keeper.c - the process that looks after one attempt of a job
 *
 * DESIGN. One loop (`watch`) for every program that is run: those that prepare, then the
 * user's. It waits for output, for what init says (drivers/sandbox.h), for signals and for the
 * clock, whichever is first. Output is read before anything else is believed: init's last word
 * comes after the last write of the program, but the pipe may still hold it.
 *
 * A power cut. exit.json is on the disk, and the way to it, before the attempt counts as ended: a
 * server never hears of an end that could be taken back. The lock with our number is synced as soon
 * as the program runs, beside it: one that was cut off is found lost, not as one to be started. In
 * front of the program nothing is synced: a sync would cost more than the rest of the start, and
 * what a cut takes within that millisecond is the order alone, which the server writes anew.
 */
#include "drivers/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/own.h"
#include "base/sealed.h"
#include "drivers/container.h"
#include "drivers/environment.h"
#include "drivers/gpus.h"
#include "drivers/guard.h"
#include "drivers/journal.h"
#include "drivers/keeper_network.h"
#include "drivers/mask.h"
#include "drivers/sandbox.h"
#include "drivers/step.h"
#include "drivers/task.h"
#include "drivers/users.h"

enum {
    READ_BYTES = 256 << 10,
    PIPE_BYTES = 1 << 20,       /* a job that prints much is not woken for every 64 kB */
    GRACE_MS = 5000,            /* from SIGTERM to SIGKILL, unless DIR/stop says otherwise */
    DRAIN_MS = 2000,            /* for output of a dead program: somebody else may hold its pipe */
    RESIZE_AGAIN_MS = 200,      /* the coordinator of a run is not up at once */
    ORDER_BYTES = 64 << 20,
    GPU_WAIT_S = 30, GPU_AGAIN_MS = 20, USER_WAIT_S = 30,
    AHEAD_MS = 5,
};

enum cause { ENDED_ITSELF, STOPPED, OUT_OF_TIME, OUT_OF_DISK, NO_PROGRAM, NOT_SET_UP };
static const char *const cause_names[] = { "exit", "stopped", "time", "disk", "not found",
                                           "set-up" };

/* How a program ended. */
struct outcome {
    enum cause cause;
    int status;                 /* of wait */
    int error;                  /* NO_PROGRAM: errno */
    double started, ended, cpu_s;       /* Unix time */
    char text[200];             /* OUT_OF_DISK, NOT_SET_UP */
};

struct keeper {
    char dir[PATH_MAX];
    int lock, signals, exit_file;
    json_t *order, *env;
    struct task_order task_order;
    struct gpus gpus;
    int user_lock;              /* its user is ours as long as it is open */
    struct journal *journal;
    bool stopping;
    bool building;              /* a step of the preparation runs */
    double kill_at;             /* of the monotonic clock, as all below; 0: not yet */
    double deadline, resize_at;
    struct sandbox_run run;
    struct limits_group *limits;        /* of the job's program while it runs; borrowed */
    struct guard *guard;        /* of the disk, while a program runs; borrowed */
    char *bytes;                /* READ_BYTES */
};

/* ------------------------------------------------------------------ the directory: we are in it */

static void set_phase(const struct keeper *k, const char *phase)
{
    char text[64];
    int n = snprintf(text, sizeof text, "%-10d %-10s\n", (int)getpid(), phase);
    ssize_t done = pwrite(k->lock, text, (size_t)n, 0);
    (void)done;                 /* a full disk: the phase is news, not a promise */
}

static json_t *read_json(const char *name)
{
    struct err ignore;
    json_t *doc;
    return sealed_load(name, &doc, &ignore) < 0 ? NULL : doc;
}

static int take_lock(struct keeper *k, struct err *err)
{
    struct stat mine, handed;

    if (stat("lock", &mine) == 0 && fstat(KEEPER_LOCK_FD, &handed) == 0 &&
        mine.st_ino == handed.st_ino && mine.st_dev == handed.st_dev) {
        k->lock = KEEPER_LOCK_FD;
        fcntl(k->lock, F_SETFD, FD_CLOEXEC);
        return 0;
    }
    k->lock = open("lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (k->lock < 0)
        return err_set(err, ERR_IO, "%s/lock: %s", k->dir, strerror(errno));
    if (flock(k->lock, LOCK_EX | LOCK_NB) < 0)
        return err_set(err, ERR_CONFLICT, "%s: another keeper has it", k->dir);
    return 0;
}

/* The environment that the server left in memory; {} when there is none. Called before anything
 * is opened: whatever has the descriptor's number then came with us. */
static json_t *read_env(void)
{
    struct stat st;
    json_error_t wrong;
    json_t *env = NULL;

    if (fcntl(KEEPER_ENV_FD, F_GET_SEALS) < 0)
        return json_object();   /* no memory file: started by hand */
    if (fstat(KEEPER_ENV_FD, &st) == 0 && st.st_size > 0 && st.st_size < ORDER_BYTES) {
        OWN_MEM char *text = malloc((size_t)st.st_size);
        if (text && pread(KEEPER_ENV_FD, text, (size_t)st.st_size, 0) == st.st_size)
            env = json_loadb(text, (size_t)st.st_size, 0, &wrong);
    }
    close(KEEPER_ENV_FD);
    return env ? env : json_object();
}

/* The values of its secrets and its token; none of them may show in the log. */
static struct mask *read_mask(const json_t *env)
{
    struct mask *m = mask_new();
    const json_t *files = json_object_get(env, " files"), *value;
    const char *path;
    size_t i;
    bool whole = m != NULL;

    json_array_foreach((json_t *)json_object_get(env, " secrets"), i, value)
        if (json_is_string(value) && json_is_string(json_object_get(env, json_string_value(value))))
            whole = whole && mask_add(m, json_string_value(
                                             json_object_get(env, json_string_value(value))));
    json_object_foreach((json_t *)files, path, value)
        whole = whole && (!json_is_string(value) || mask_add(m, json_string_value(value)));
    if ((value = json_object_get(env, "MUSTER_TOKEN")))
        whole = whole && mask_add(m, json_string_value(value));
    if (whole)
        return m;
    mask_free(m);
    return NULL;
}

static int make_work(struct keeper *k, struct err *err)
{
    struct task_order *o = &k->task_order;

    if (snprintf(o->work, sizeof o->work, "%s/work", k->dir) >= (int)sizeof o->work)
        return err_set(err, ERR_INVALID, "%s: the path is too long", k->dir);
    if (mkdir(o->work, 0700) < 0 && errno != EEXIST)
        return err_set(err, ERR_IO, "%s: %s", o->work, strerror(errno));
    if (o->confined && geteuid() == 0 && lchown(o->work, SANDBOX_USER, SANDBOX_USER) < 0)
        return err_set(err, ERR_IO, "%s: %s", o->work, strerror(errno));
    return 0;
}

/* All attempts of the job together may keep so much: what earlier ones left may have half of it,
 * and this one has the rest. */
static void limit_log(struct keeper *k, long long bytes)
{
    long long others = 0;
    int number = (int)strtol(strrchr(k->dir, '/') + 1, NULL, 10);

    if (bytes <= 0)
        return;
    for (int i = number - 1; i > 0; i--) {
        char before[32];
        snprintf(before, sizeof before, "../%d", i);
        others += journal_trim(before, bytes / 2 - others);
    }
    journal_limit(k->journal, bytes - others);
}

static int read_order(struct keeper *k, struct err *err)
{
    struct task_order *o = &k->task_order;

    k->order = read_json("order.json");
    if (!k->order)
        return err_set(err, ERR_MISSING, "%s/order.json: there is none, or it is damaged", k->dir);
    snprintf(o->dir, sizeof o->dir, "%s", k->dir);
    const char *data = json_string_value(json_object_get(k->order, "data_dir"));
    OWN_MEM char *real = realpath(data ? data : k->dir, NULL);
    snprintf(o->data_dir, sizeof o->data_dir, "%s", real ? real : k->dir);
    o->spec = json_object_get(k->order, "spec");
    o->packages = json_object_get(k->order, "packages");
    o->env = k->env;
    o->limits = json_object_get(k->order, "limits");
    o->workers = (int)json_integer_value(json_object_get(k->order, "workers"));
    o->confined = !json_is_true(json_object_get(k->order, "unconfined"));
    o->user = SANDBOX_USER;
    o->expose = json_object_get(k->order, "expose");
    o->journal = k->journal;
    limit_log(k, json_integer_value(json_object_get(k->order, "log_limit")));
    return make_work(k, err);
}

/* ------------------------------------------------------------------ stop and resize */

static void begin_stop(struct keeper *k, struct outcome *o, enum cause cause, int grace_ms)
{
    double kill_at = clock_seconds() + grace_ms * 1e-3;

    if (!k->stopping) {
        k->stopping = true;
        k->kill_at = kill_at;
        o->cause = cause;
        if (k->run.init > 0)
            sandbox_ask_to_end(&k->run);
    } else if (kill_at < k->kill_at) {
        k->kill_at = kill_at;
    }
}

static bool wants_stop(int *out_grace_ms)
{
    OWN_JSON json_t *stop = read_json("stop");
    const json_t *grace = json_object_get(stop, "grace_ms");
    *out_grace_ms = json_is_integer(grace) ? (int)json_integer_value(grace) : GRACE_MS;
    return stop != NULL;
}

static void take_signals(struct keeper *k, struct outcome *o)
{
    struct signalfd_siginfo got;
    int grace_ms;

    while (read(k->signals, &got, sizeof got) == sizeof got) {
        if (got.ssi_signo == SIGTERM || got.ssi_signo == SIGINT) {
            wants_stop(&grace_ms);
            begin_stop(k, o, STOPPED, grace_ms);
        } else if (got.ssi_signo == SIGUSR1) {
            k->resize_at = clock_seconds();
        }
    }
}

/* Asked of the run inside; init starts it there, where its network and files are. */
static void ask_to_resize(struct keeper *k)
{
    OWN_JSON json_t *wish = read_json("resize");
    int min, max;

    k->resize_at = 0;
    if (wish && json_unpack(wish, "{s:i, s:i}", "min", &min, "max", &max) == 0 && k->run.init > 0) {
        /* What a worker may use, as many times as there may be workers now. */
        const json_t *each =
            json_object_get(json_object_get(k->task_order.spec, "resources"), "cpu");
        if (k->limits && json_is_number(each))
            limits_set_cpu(k->limits, json_number_value(each) * max);
        sandbox_resize(&k->run, min, max);
    }
}

/* ------------------------------------------------------------------ running a program */

struct pipes {
    int from[2];                /* read ends of standard output and error; -1: ended */
    int to[2];
};

static int open_pipes(struct pipes *p)
{
    for (int i = 0; i < 2; i++) {
        int fds[2];
        if (pipe2(fds, O_CLOEXEC) < 0)
            return -1;
        fcntl(fds[0], F_SETFL, O_NONBLOCK);
        fcntl(fds[0], F_SETPIPE_SZ, PIPE_BYTES);
        p->from[i] = fds[0];
        p->to[i] = fds[1];
    }
    return 0;
}

static void close_all(int fds[2])
{
    for (int i = 0; i < 2; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
        fds[i] = -1;
    }
}

/* What is there now, one read each; true when there was something. */
static bool read_output(struct keeper *k, struct pipes *p)
{
    bool some = false;
    for (int i = 0; i < 2; i++) {
        ssize_t n = p->from[i] < 0 ? -1 : read(p->from[i], k->bytes, READ_BYTES);
        if (n > 0) {
            /* Installers tell their progress on stderr; it is no complaint of the program's. */
            journal_feed(k->journal, i && !k->building ? 'e' : 'o', k->bytes, (size_t)n);
            some = true;
        } else if (p->from[i] >= 0 && (n == 0 || (errno != EAGAIN && errno != EINTR))) {
            close(p->from[i]);
            p->from[i] = -1;
        }
    }
    journal_flush(k->journal);
    return some;
}

static void drain_output(struct keeper *k, struct pipes *p)
{
    double until = clock_seconds() + DRAIN_MS * 1e-3;
    while ((p->from[0] >= 0 || p->from[1] >= 0) && clock_seconds() < until) {
        struct pollfd fds[] = { { .fd = p->from[0], .events = POLLIN },
                                { .fd = p->from[1], .events = POLLIN } };
        if (!read_output(k, p))
            poll(fds, 2, 10);
    }
    journal_end_lines(k->journal);
    journal_flush(k->journal);
}

static int next_timeout_ms(const struct keeper *k)
{
    const double times[] = { k->kill_at, k->stopping ? 0 : k->deadline, k->resize_at,
                             k->guard ? guard_next(k->guard) : 0 };
    double first = 0, now = clock_seconds();
    for (int i = 0; i < 4; i++)
        if (times[i] > 0 && (first == 0 || times[i] < first))
            first = times[i];
    if (first == 0)
        return -1;
    return first <= now ? 0 : (int)((first - now) * 1e3) + 1;
}

/* True when the program has ended. */
static bool take_word(struct keeper *k, struct outcome *o, const struct task *t)
{
    struct sandbox_message m;
    ssize_t n = recv(k->run.talk, &m, sizeof m, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n != (ssize_t)sizeof m) {       /* init is dead: killed from outside, or with its memory */
        o->status = SIGKILL;
        return true;
    }
    if (m.kind == SANDBOX_STARTED) {
        o->started = clock_wall();
        if (t->time_limit_s > 0)
            k->deadline = clock_seconds() + t->time_limit_s;
        return false;
    }
    if (m.kind == SANDBOX_RESIZED) {
        if (m.value)
            k->resize_at = clock_seconds() + RESIZE_AGAIN_MS * 1e-3;
        return false;
    }
    o->cpu_s = m.cpu_s;
    o->status = m.value;
    if (m.kind == SANDBOX_NO_PROGRAM) {
        o->cause = NO_PROGRAM;
        o->error = m.value;
    } else if (m.kind == SANDBOX_FAILED) {
        o->cause = NOT_SET_UP;
        snprintf(o->text, sizeof o->text, "%s", m.text);
    }
    return true;
}

/* The disk is looked at as soon as the program runs, and when it is time to. */
static void look_at_disk(struct keeper *k, struct outcome *o, bool begins, double now)
{
    char reason[sizeof o->text];

    if (k->guard && begins)
        guard_begin(k->guard, now);
    if (!k->guard || guard_next(k->guard) == 0 || now < guard_next(k->guard) ||
        !guard_look(k->guard, k->run.init, now, reason, sizeof reason))
        return;
    k->guard = NULL;            /* its owner frees it: once is enough */
    if (!k->stopping)
        memcpy(o->text, reason, sizeof reason);
    begin_stop(k, o, OUT_OF_DISK, 0);
}

static void watch(struct keeper *k, struct pipes *p, const struct task *t, struct outcome *o,
                  void (*started)(struct keeper *k))
{
    for (bool ended = false; !ended;) {
        struct pollfd fds[] = { { .fd = k->run.talk, .events = POLLIN },
                                { .fd = k->signals, .events = POLLIN },
                                { .fd = p->from[0], .events = POLLIN },
                                { .fd = p->from[1], .events = POLLIN },
                                { .fd = keeper_network_fd(), .events = POLLIN } };
        bool before = o->started > 0;
        poll(fds, 5, next_timeout_ms(k));
        if (fds[2].revents || fds[3].revents)
            read_output(k, p);
        if (fds[0].revents)
            ended = take_word(k, o, t);
        if (fds[4].revents)
            keeper_network_look();
        if (started && !before && o->started > 0)
            started(k);
        take_signals(k, o);
        double now = clock_seconds();
        if (ended)
            break;              /* by itself: no limit comes after that */
        look_at_disk(k, o, !before && o->started > 0, now);
        if (k->resize_at > 0 && now >= k->resize_at)
            ask_to_resize(k);
        if (k->deadline > 0 && now >= k->deadline && !k->stopping)
            begin_stop(k, o, OUT_OF_TIME, GRACE_MS);
        if (k->kill_at > 0 && now >= k->kill_at) {
            o->status = SIGKILL;
            ended = true;
        }
    }
}

/* The job's directory, and the folders outside of it that the program may write. A step of the
 * preparation makes what others use, too: it may fill no disk, and has no limit of its own. */
static struct guard *make_guard(const struct keeper *k, const struct task *t, bool is_job)
{
    char home[PATH_MAX];

    snprintf(home, sizeof home, "%.*s", (int)(strrchr(k->dir, '/') - k->dir), k->dir);
    struct guard *g = guard_new(home, is_job ? t->disk : 0);
    if (g)
        guard_add(g, t->paths);
    return g;
}

/* `started` NULL: a step of the preparation. Fails only when nothing could be run. */
static int run_program(struct keeper *k, struct task *t, struct limits_group *limits,
                       void (*started)(struct keeper *k), struct outcome *out, struct err *err)
{
    struct pipes p = { { -1, -1 }, { -1, -1 } };
    struct sandbox s;
    struct outcome o = { .cause = ENDED_ITSELF };
    int rc = 0;

    if (task_fill(t, &k->task_order, &s, err) < 0)
        return -(int)err->code;
    if (open_pipes(&p) < 0)
        rc = err_set(err, ERR_AGAIN, "no pipes for a job: %s", strerror(errno));
    s.out = p.to[0];
    s.err = p.to[1];
    s.limits = t->outside ? NULL : limits;
    OWN(guard) guard = make_guard(k, t, started != NULL);
    if (rc == 0)
        rc = sandbox_start(&s, &k->run, err);
    close_all(p.to);
    if (rc == 0) {
        k->deadline = 0;
        k->guard = guard;
        watch(k, &p, t, &o, started);
        k->guard = NULL;
        /* A stop that came between two programs must still be seen by the next. */
        sandbox_end(&k->run, s.confined);
        drain_output(k, &p);
        o.ended = clock_wall();
        *out = o;
    }
    close_all(p.from);
    return rc;
}

static void group_name(const struct keeper *k, char *out, size_t size)
{
    const char *attempt = strrchr(k->dir, '/');
    const char *job = attempt;
    while (job > k->dir && job[-1] != '/')
        job--;
    snprintf(out, size, "muster-%.*s-%.60s-%d",
             (int)(attempt - job) > 100 ? 100 : (int)(attempt - job), job, attempt + 1,
             (int)getpid());
}

static int run_step(void *arg, struct task *step, int *out_code, struct err *err)
{
    struct keeper *k = arg;
    struct outcome o;
    char name[200];
    OWN(limits_group) limits = NULL;

    if (k->stopping)
        return err_set(err, ERR_CONFLICT, "stopped before it began");
    group_name(k, name, sizeof name);
    k->building = true;
    int rc = limits_open(name, &step->limits, &limits, err);
    if (rc == 0)
        rc = run_program(k, step, limits, NULL, &o, err);
    k->building = false;
    if (rc < 0)
        return rc;
    if (o.cause == STOPPED)
        return err_set(err, ERR_CONFLICT, "stopped while its environment was being made");
    if (o.cause == OUT_OF_TIME)
        return err_set(err, ERR_INVALID, "its environment took longer than %g s to build",
                       step->time_limit_s);
    if (o.cause == OUT_OF_DISK)
        return err_set(err, ERR_INVALID, "while its environment was made: %s", o.text);
    if (o.cause == NOT_SET_UP)
        return err_set(err, ERR_IO, "its sandbox could not be made: %s", o.text);
    if (o.cause == NO_PROGRAM)
        return err_set(err, ERR_MISSING, "command not found: %s", step->argv_list[0]);
    *out_code = WIFEXITED(o.status) ? WEXITSTATUS(o.status) : 128 + WTERMSIG(o.status);
    return 0;
}

/* ------------------------------------------------------------------ how it ended */

static void say_reason(const struct task *t, const struct outcome *o,
                       bool out_of_memory, char *out, size_t size)
{
    char bytes[32];

    if (o->cause == STOPPED)
        snprintf(out, size, o->started > 0 ? "stopped on request" : "stopped before it began");
    else if (o->cause == OUT_OF_TIME)
        snprintf(out, size, "ran longer than its limit of %g s", t->time_limit_s);
    else if (o->cause == OUT_OF_DISK)
        snprintf(out, size, "%s", o->text);
    else if (o->cause == NO_PROGRAM &&
             (o->error == ENOENT || (o->error == EACCES && !strchr(t->argv_list[0], '/'))))
        snprintf(out, size, "command not found: %s", t->argv_list[0]);
    else if (o->cause == NO_PROGRAM)
        snprintf(out, size, "cannot run %s: %s", t->argv_list[0], strerror(o->error));
    else if (o->cause == NOT_SET_UP)
        snprintf(out, size, "its %s could not be made: %s",
                 t->container[0] ? "container" : "sandbox", o->text);
    else if (out_of_memory && !(WIFEXITED(o->status) && WEXITSTATUS(o->status) == 0)) {
        limits_print_bytes(t->limits.memory, bytes, sizeof bytes);
        snprintf(out, size, "killed: needed more than its %s of memory", bytes);
    } else if (WIFSIGNALED(o->status))
        snprintf(out, size, "killed by signal %d (%s)", WTERMSIG(o->status),
                 strsignal(WTERMSIG(o->status)));
    else if (WEXITSTATUS(o->status))
        snprintf(out, size, "exit code %d", WEXITSTATUS(o->status));
    else
        out[0] = '\0';
}

/* The server made it with room in it, before the job began: a disk that is full by now does not lose
 * how a job ended. */
static void open_exit(struct keeper *k)
{
    k->exit_file = open("exit.json.tmp", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
}

/* The directory's entries, and that there is the directory: in DATA/jobs/ID/ATTEMPT. */
static void sync_way(void)
{
    static const char *const dirs[] = { ".", "..", "../.." };

    for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++) {
        OWN_FD int fd = open(dirs[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0)
            fsync(fd);
    }
}

static void write_exit(struct keeper *k, json_t *doc)
{
    static const char from[] = "exit.json.tmp";
    OWN_MEM char *text = sealed_text(doc);
    size_t n = text ? strlen(text) : 0;

    json_decref(doc);
    gpus_release(&k->gpus);     /* nothing runs any more; the next job may look for one at once */
    if (k->exit_file < 0)
        open_exit(k);
    /* For as long as it takes: until it is written the job has not ended, and says so by the
     * lock. */
    while (k->exit_file < 0 || pwrite(k->exit_file, text, n, 0) != (ssize_t)n ||
           ftruncate(k->exit_file, (off_t)n) < 0 || fsync(k->exit_file) < 0 ||
           rename(from, "exit.json") < 0) {
        sleep(1);
        if (access(k->dir, F_OK) < 0)
            return;             /* the job was deleted */
        if (k->exit_file < 0)
            open_exit(k);
    }
    sync_way();
    set_phase(k, "ended");
}

static json_t *describe(const struct keeper *k, const struct outcome *o, const char *reason,
                        const char *cause, long long peak)
{
    bool signaled = WIFSIGNALED(o->status);
    int code = o->cause == NO_PROGRAM ? 127 : o->cause == NOT_SET_UP ? 125
             : signaled ? 128 + WTERMSIG(o->status) : WEXITSTATUS(o->status);

    return json_pack("{s:i, s:i, s:s, s:s, s:f, s:f, s:f, s:I, s:I, s:I}", "code", code, "signal",
                     signaled && o->started > 0 ? WTERMSIG(o->status) : 0, "reason", reason,
                     "cause", cause, "started", o->started, "ended", o->ended, "cpu_s", o->cpu_s,
                     "memory_peak", (json_int_t)peak, "lines",
                     (json_int_t)journal_lines(k->journal), "lines_dropped",
                     (json_int_t)journal_dropped(k->journal));
}

/* A job that never ran: `err` says why. */
static void end_unrun(struct keeper *k, const struct err *err)
{
    bool stopped = k->stopping || err->code == ERR_CONFLICT;
    struct outcome o = { .cause = stopped ? STOPPED : NOT_SET_UP, .ended = clock_wall() };

    journal_say(k->journal, "%s", err->text);
    journal_flush(k->journal);
    o.status = stopped ? SIGTERM : 0;
    write_exit(k, describe(k, &o, err->text, cause_names[o.cause], -1));
}

/* ------------------------------------------------------------------ the whole */

static void tell_running(struct keeper *k)
{
    set_phase(k, "running");
    /* Not before: the program is not to wait for it. */
    fsync(k->lock);
    sync_way();
}

/* What a protocol took in place of what it was asked for. */
static void say_notes(struct keeper *k)
{
    size_t i;
    json_t *note;
    json_array_foreach(json_object_get(k->task_order.spec, "notes"), i, note)
        if (json_is_string(note))
            journal_say(k->journal, "%s", json_string_value(note));
    journal_flush(k->journal);
}

/* What podman knows better than its own exit code. True: there was no memory left for it. */
static bool take_container_end(const struct task *t, const struct limits_group *limits,
                               struct outcome *o)
{
    struct container_end e;

    container_end(t, &e);
    if (e.started)
        o->started = e.at;
    if (o->cause != ENDED_ITSELF)
        return false;
    if (!e.started) {
        o->cause = NOT_SET_UP;
        o->started = 0;
        snprintf(o->text, sizeof o->text, "the log's last lines say why");
        return false;
    }
    o->status = e.code > 128 && e.code < 128 + NSIG ? e.code - 128 : (e.code & 255) << 8;
    return e.out_of_memory ||
           (WIFSIGNALED(o->status) && WTERMSIG(o->status) == SIGKILL &&
            limits_out_of_memory(limits));
}

/* What the log could not say. */
static void say_lost(const struct keeper *k, char *reason, size_t size)
{
    long long lost = journal_dropped(k->journal);
    size_t n = strlen(reason);

    if (lost)
        snprintf(reason + n, size - n, "%s%lld lines of its log were lost: the disk was full",
                 n ? "; " : "", lost);
}

/* The scheduler has counted them: they are free, or will be in a moment, when what had them before
 * is gone. */
static int take_gpus(struct keeper *k, struct err *err)
{
    struct task_order *o = &k->task_order;
    const json_t *each = json_object_get(json_object_get(o->spec, "resources"), "gpu");
    int n = (int)json_number_value(each) * (o->workers > 0 ? o->workers : 1), rc, grace_ms;
    double until = clock_seconds() + GPU_WAIT_S;

    if (n <= 0)
        return 0;
    while ((rc = gpus_take(gpus_root(), o->data_dir, n, &k->gpus, err)) == -ERR_AGAIN &&
           clock_seconds() < until) {
        if (wants_stop(&grace_ms)) {
            k->stopping = true;
            return err_set(err, ERR_CONFLICT, "stopped before it began");
        }
        usleep(GPU_AGAIN_MS * 1000);
    }
    if (rc < 0)
        return rc;
    for (int i = 0; i < k->gpus.n; i++)
        journal_say(k->journal, "GPU %d of this machine%s%s", k->gpus.index[i],
                    k->gpus.at[i].uuid[0] ? ": " : "", k->gpus.at[i].uuid);
    o->gpus = &k->gpus;
    return 0;
}

/* The one that the server has chosen for it; started by hand, any that is free. */
static int hold_user(struct keeper *k, uid_t *out, struct err *err)
{
    const json_t *chosen = json_object_get(k->order, "user");
    const struct users_range any = USERS_DEFAULT;
    double until = clock_seconds() + USER_WAIT_S;
    int rc, grace_ms;

    if (!json_is_integer(chosen))
        return users_pick(&any, out, &k->user_lock, err);
    *out = (uid_t)json_integer_value(chosen);
    while ((rc = users_hold(*out, &k->user_lock, err)) == -ERR_AGAIN && clock_seconds() < until) {
        if (wants_stop(&grace_ms)) {
            k->stopping = true;
            return err_set(err, ERR_CONFLICT, "stopped before it began");
        }
        usleep(GPU_AGAIN_MS * 1000);
    }
    return rc;
}

/* A user of its own (drivers/users.h). Where that cannot be had it is nobody, as others may be: the
 * server has said so at its start, and the log says it. */
static int take_user(struct keeper *k, struct err *err)
{
    struct task_order *o = &k->task_order;
    struct err why = { 0 };
    uid_t user;
    int ns;

    if (geteuid() != 0 || !o->confined)
        return 0;
    int rc = hold_user(k, &user, &why);
    if (rc == -ERR_AGAIN || rc == -ERR_CONFLICT) {
        *err = why;
        return rc;
    }
    if (rc == 0)
        users_set_helper(user);
    if (rc == 0 && users_namespace(user, &ns, &why) == 0) {
        if (users_fits(o->work, ns)) {
            o->user = user;
            o->user_ns = ns;
            return 0;
        }
        close(ns);
        err_set(&why, ERR_DENIED, "the file system of the data directory has no ID-mapped mounts");
    }
    journal_say(k->journal, "it runs as user %d, as other jobs do: %s", SANDBOX_USER, why.text);
    return 0;
}

static int run_job(struct keeper *k, struct err *err)
{
    OWN(limits_group) limits = NULL;
    struct task t = { 0 };
    struct container container;
    struct outcome o;
    char name[200], reason[256];
    int grace_ms;

    if (wants_stop(&grace_ms)) {
        k->stopping = true;
        return err_set(err, ERR_CONFLICT, "stopped before it began");
    }
    if (take_user(k, err) < 0)
        return -(int)err->code;
    if (keeper_network_take(&k->task_order, k->order, err) < 0 ||
        container_choose(&k->task_order, run_step, k, &container, err) < 0 ||
        take_gpus(k, err) < 0)
        return -(int)err->code;
    k->task_order.container = &container;
    say_notes(k);
    if (task_make(&k->task_order, run_step, k, &t, err) < 0)
        return -(int)err->code;
    group_name(k, name, sizeof name);
    int rc = limits_open(name, &t.limits, &limits, err);
    k->limits = limits;
    if (rc == 0 && t.container[0])
        container_limit(&t, &k->task_order, limits);
    if (rc == 0)
        rc = run_program(k, &t, limits, tell_running, &o, err);
    k->limits = NULL;
    step_forget(k->dir);
    if (rc == 0) {
        bool out_of_memory = t.container[0] ? take_container_end(&t, limits, &o)
                                            : limits_out_of_memory(limits);
        say_reason(&t, &o, out_of_memory, reason, sizeof reason);
        if (*reason)
            journal_say(k->journal, "%s", reason);
        journal_flush(k->journal);
        say_lost(k, reason, sizeof reason);
        write_exit(k, describe(k, &o, reason, out_of_memory && o.cause == ENDED_ITSELF
                               ? "memory" : cause_names[o.cause], limits_memory_peak(limits)));
    }
    task_done(&t);
    return rc;
}

static int prepare_process(struct keeper *k, struct err *err)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_SETMASK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_DFL);
    umask(077);
    prctl(PR_SET_NAME, "muster-keeper", 0, 0, 0);
    k->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    k->bytes = malloc(READ_BYTES);
    if (k->signals < 0 || !k->bytes)
        return err_set(err, ERR_NOMEM, "no memory for a keeper");
    return 0;
}

/* What the job would wait for: random numbers for JSON, the names of users. */
static void warm_up(void)
{
    json_object_seed(0);
    if (getuid())
        getpwuid(getuid());
}

int keeper_wait(const char *server, char *out_dir, size_t size, struct err *err)
{
    char control[CMSG_SPACE(2 * sizeof(int))] = { 0 };
    struct iovec text = { .iov_base = out_dir, .iov_len = size - 1 };
    struct msghdr m = { .msg_iov = &text, .msg_iovlen = 1, .msg_control = control,
                        .msg_controllen = sizeof control };
    ssize_t n;
    int fds[2];

    prctl(PR_SET_NAME, "muster-keeper", 0, 0, 0);
    warm_up();
    /* Not while the job that another keeper was just given is being started. */
    if (server && poll(&(struct pollfd){ .fd = KEEPER_LOCK_FD, .events = POLLIN }, 1,
                       AHEAD_MS) == 0)
        keeper_network_ahead(server);
    while ((n = recvmsg(KEEPER_LOCK_FD, &m, 0)) < 0 && errno == EINTR)
        ;
    const struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;
    if (!c || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof fds)) {
        keeper_network_end();
        return err_set(err, ERR_MISSING, "no job came");
    }
    memcpy(fds, CMSG_DATA(c), sizeof fds);
    out_dir[n] = '\0';
    /* Both are above the two numbers, which have been taken since the beginning. */
    dup2(fds[0], KEEPER_LOCK_FD);
    dup2(fds[1], KEEPER_ENV_FD);
    close(fds[0]);
    close(fds[1]);
    return 0;
}

int keeper_run(const char *dir, struct err *err)
{
    struct keeper k = { .lock = -1, .signals = -1, .exit_file = -1, .user_lock = -1,
                        .run = { .talk = -1 } };
    OWN_MEM char *real = realpath(dir, NULL);

    if (!real || snprintf(k.dir, sizeof k.dir, "%s", real) >= (int)sizeof k.dir || chdir(real) < 0)
        return err_set(err, ERR_MISSING, "%s: %s", dir, strerror(errno));
    k.env = read_env();
    if (take_lock(&k, err) < 0)
        return -(int)err->code;
    set_phase(&k, "preparing");
    OWN(mask) mask = read_mask(k.env);
    if (!mask)
        return err_set(err, ERR_NOMEM, "no memory for a keeper");
    if (prepare_process(&k, err) < 0 || journal_open(k.dir, &k.journal, err) < 0)
        return -(int)err->code;
    journal_mask(k.journal, mask);
    if (read_order(&k, err) < 0 || run_job(&k, err) < 0) {
        step_forget(k.dir);
        end_unrun(&k, err);
    }
    journal_free(k.journal);
    json_decref(k.order);
    json_decref(k.env);
    free(k.bytes);
    close(k.signals);
    if (k.exit_file >= 0)
        close(k.exit_file);
    if (k.user_lock >= 0)
        close(k.user_lock);
    close(k.lock);              /* until now the attempt is ours */
    /* Its network ends with this process, which slirp4netns notices: the kernel takes some 25 ms to
     * take a network device away, and nobody waits for that. */
    environment_done(k.task_order.data_dir);
    return 0;
}
