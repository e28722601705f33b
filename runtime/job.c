/* runtime/job.c - a job of many workers on this machine, kept going
 *
 * DESIGN. One thread that waits for signals: a child ended, somebody wants to stop, or 50 ms are
 * over. Children have PR_SET_PDEATHSIG, so that none outlives this process. A coordinator that was
 * killed is started again at once; one that ended by itself ends the job.
 */
#include "runtime/job.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "runtime/roster.h"
#include "runtime/wire.h"

enum {
    TICK_MS = 50,
    FAILURES_MAX = 5,           /* children in a row that fail before it is the job's fault */
    PATH_SIZE = 4096 + 32,
    FILES_OWN = 24,             /* descriptors of a process of a job beside those for each worker */
};
/* A child that fails within so many seconds never worked: loading the data takes some of them. */
static const double AT_ONCE = 10;
static const double REST = 10;          /* seconds before the next try, while others work */
/* A replacement reads data, which takes a core; those who are left go on first. */
static const double BREATH = 0.15;
/* Two signals within so many seconds are one: timeout(1), for one, signals both the process and its
 * group. Who wants to end it at once asks again after that. */
static const double TWICE = 0.5;
static const double GRACE = 1;          /* seconds between being asked to end and being killed */
/* The coordinator does next to nothing, and everybody waits for it when it does: with as many
 * workers as cores or more, each message that it sends would wake one who takes its core before the
 * next one is sent. Only who has the right can go below 0; without it, a change takes some ms
 * longer. */
enum { COORDINATOR_NICE = -10 };

#define HAS_ENDED "%s: the job has ended (its run.json says how)"

struct child {
    pid_t pid;                  /* 0: a free place */
    double started;
};

struct job {
    const struct job_config *config;
    struct job_desk desk;
    struct child worker[ROSTER_MAX];
    struct child coordinator;
    int word;                   /* the coordinator's last word, a struct err, comes from here */
    int max;
    int failures;
    double rest_until;          /* none is started before */
    double stopping_since;
    sigset_t waits;             /* signals that are waited for */
};

/* ------------------------------------------------------------------ children */

static void in_child(const struct job *j, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    sigprocmask(SIG_UNBLOCK, &j->waits, NULL);
}

static int start_coordinator(struct job *j, struct err *err)
{
    const pid_t parent = getpid();
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) < 0)
        return err_set(err, ERR_IO, "a pipe cannot be had: %s", strerror(errno));
    atomic_store(j->desk.over, false);  /* one that was killed on its way out is replaced too */
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0)
        return err_set(err, ERR_NOMEM, "a process cannot be started: %s", strerror(errno));
    if (pid == 0) {
        struct err last = { 0 };
        in_child(j, parent);
        setpriority(PRIO_PROCESS, 0, COORDINATOR_NICE);
        close(ends[0]);
        if (j->config->coordinate(j->config->arg, &j->desk, &last) >= 0)
            last = (struct err){ 0 };
        fflush(NULL);
        ssize_t n = write(ends[1], &last, sizeof last);
        _exit(n == sizeof last ? 0 : 1);
    }
    close(ends[1]);
    if (j->word >= 0)
        close(j->word);
    j->word = ends[0];
    j->coordinator = (struct child){ pid, clock_seconds() };
    return 0;
}

static void run_worker(const struct job *j, pid_t parent)
{
    char threads[16];
    char *argv[] = { "muster", "worker", "--join", (char *)j->desk.address, "--threads", threads,
                     NULL };

    in_child(j, parent);
    signal(SIGINT, SIG_IGN);    /* Ctrl-C is for the coordinator, which ends the job in order */
    snprintf(threads, sizeof threads, "%d", j->config->threads);
    /* Not MUSTER_TOKEN: what the user has there may be for a bucket (base/http.h), and this is
     * not. */
    setenv("MUSTER_JOB_TOKEN", j->desk.token, 1);
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    dup2(nothing, STDIN_FILENO);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    execv("/proc/self/exe", argv);
    _exit(127);
}

static int start_worker(struct job *j, struct err *err)
{
    const pid_t parent = getpid();

    for (int i = 0; i < ROSTER_MAX; i++) {
        if (j->worker[i].pid)
            continue;
        pid_t pid = fork();
        if (pid < 0)
            return err_set(err, ERR_NOMEM, "a worker cannot be started: %s", strerror(errno));
        if (pid == 0)
            run_worker(j, parent);
        j->worker[i] = (struct child){ pid, clock_seconds() };
        return 0;
    }
    return 0;
}

static int count_workers(const struct job *j)
{
    int n = 0;

    for (int i = 0; i < ROSTER_MAX; i++)
        n += j->worker[i].pid != 0;
    return n;
}

/* By an error or a fault of its own, not because somebody killed it. */
static bool failed_by_itself(int status)
{
    if (!WIFSIGNALED(status))
        return WEXITSTATUS(status) != 0;
    int sig = WTERMSIG(status);
    return sig == SIGSEGV || sig == SIGBUS || sig == SIGILL || sig == SIGFPE || sig == SIGABRT;
}

/* A child that was killed is replaced; one that fails by itself, again and again, is not. */
static void child_ended(struct job *j, struct child *k, int status)
{
    if (failed_by_itself(status) && clock_seconds() - k->started < AT_ONCE)
        j->failures++;
    else
        j->failures = 0;
    j->rest_until = clock_seconds() + (j->failures >= FAILURES_MAX ? REST : BREATH);
    k->pid = 0;
}

/* True when the coordinator ended by itself. */
static bool reap(struct job *j, struct err *err)
{
    int status;
    bool ended = false;

    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        if (pid == j->coordinator.pid) {
            child_ended(j, &j->coordinator, status);
            ended = read(j->word, err, sizeof *err) == sizeof *err;
            continue;
        }
        for (int i = 0; i < ROSTER_MAX; i++)
            if (j->worker[i].pid == pid)
                child_ended(j, &j->worker[i], status);
    }
    return ended;
}

/* Nobody here has anything to lose: what the job made is on disk, or is not to be had. A worker
 * that was told so is on its way out; one that is asleep has to wake up to hear it; one that reads
 * its data yet, or calls a coordinator that is gone, would not hear it for long. */
static void end_children(struct job *j)
{
    double until = clock_seconds() + GRACE;
    struct err ignored;

    for (int i = 0; i < ROSTER_MAX; i++)
        if (j->worker[i].pid) {
            kill(j->worker[i].pid, SIGTERM);
            kill(j->worker[i].pid, SIGCONT);
        }
    while (count_workers(j) && clock_seconds() < until) {
        reap(j, &ignored);
        usleep(5000);
    }
    for (int i = 0; i < ROSTER_MAX; i++)
        if (j->worker[i].pid)
            kill(j->worker[i].pid, SIGKILL);
    if (j->coordinator.pid)
        kill(j->coordinator.pid, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
        continue;
}

/* ------------------------------------------------------------------ the desk */

static int write_token(const char *dir, const char *token, struct err *err)
{
    char path[PATH_SIZE];

    snprintf(path, sizeof path, "%s/token", dir);
    mode_t old = umask(077);
    int rc = files_write(path, token, strlen(token), err);
    umask(old);
    return rc;
}

/* A run that goes on has as many workers as it is given now, whatever it was resized to before. */
static int forget_size(const char *dir, struct err *err)
{
    char path[PATH_SIZE];
    OWN_MEM char *text = NULL;
    struct err ignored;

    snprintf(path, sizeof path, "%s/roster.json", dir);
    if (files_read(path, 1 << 20, &text, NULL, &ignored) < 0)
        return 0;
    OWN_JSON json_t *doc = json_loads(text, 0, NULL);
    if (!doc)
        return 0;               /* damaged: the coordinator says so */
    json_object_del(doc, "min");
    json_object_del(doc, "max");
    OWN_MEM char *now = json_dumps(doc, JSON_COMPACT);
    return now ? files_write(path, now, strlen(now), err)
               : err_set(err, ERR_NOMEM, "no memory for roster.json");
}

/* A coordinator or a worker that runs out of them half way fails where it hurts most: when it
 * stores something. */
static int have_files(int workers, bool tls, struct err *err)
{
    struct rlimit files;
    const rlim_t need = (rlim_t)(workers * (tls ? 3 : 1) + FILES_OWN);  /* 3: runtime/tunnel.h */

    if (getrlimit(RLIMIT_NOFILE, &files) < 0)
        return 0;
    if (files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    return files.rlim_cur < need
               ? err_set(err, ERR_INVALID, "%d workers need %llu open files in each process, the "
                         "limit is %llu (ulimit -n)", workers, (unsigned long long)need,
                         (unsigned long long)files.rlim_cur)
               : 0;
}

int job_open(const char *listen, int max, struct job_desk *out, struct err *err)
{
    const char *given = getenv("MUSTER_TOKEN");
    struct job_desk d = { .listener = -1 };
    char token[WIRE_TOKEN_TEXT];

    if (have_files(max, listen && wire_is_tls(listen), err) < 0)
        return -(int)err->code;
    if (given && wire_token_check(given, err) < 0)
        return err_add(err, "MUSTER_TOKEN");
    if (given && strlen(given) >= JOB_TOKEN)
        return err_set(err, ERR_INVALID, "MUSTER_TOKEN is longer than %d characters",
                       JOB_TOKEN - 1);
    if (!given && wire_token_new(token, err) < 0)
        return -(int)err->code;
    snprintf(d.token, sizeof d.token, "%s", given ? given : token);
    listen = listen ? listen : "127.0.0.1:0";
    if (wire_listen(listen, &d.listener, d.address, sizeof d.address, err) < 0)
        return -(int)err->code;
    if (wire_is_any(d.address)) {
        close(d.listener);
        return err_set(err, ERR_INVALID,
                       "--listen %s: name the address of this host that others reach, "
                       "as in 192.168.1.5:7000 (its workers are told to others by it)",
                       listen);
    }
    *out = d;
    return 0;
}

/* What muster resize has asked for since. */
static int wanted_workers(const struct job *j)
{
    char path[PATH_SIZE];
    OWN_MEM char *text = NULL;
    struct err ignored;

    snprintf(path, sizeof path, "%s/roster.json", j->config->dir);
    if (files_read(path, 1 << 20, &text, NULL, &ignored) < 0)
        return j->max;
    OWN_JSON json_t *doc = json_loads(text, 0, NULL);
    int max = (int)json_integer_value(json_object_get(doc, "max"));
    return max > 0 && max <= ROSTER_MAX ? max : j->max;
}

bool job_ended(const char *dir)
{
    char path[PATH_SIZE];

    snprintf(path, sizeof path, "%s/run.json", dir);
    return access(path, F_OK) == 0;
}

int job_find(const char *dir, struct job_desk *out, struct err *err)
{
    char path[PATH_SIZE];
    OWN_MEM char *text = NULL, *token = NULL;

    snprintf(path, sizeof path, "%s/job.json", dir);
    if (files_read(path, 1 << 16, &text, NULL, err) < 0 && err->code != ERR_MISSING)
        return -(int)err->code;
    if (!text && job_ended(dir))
        return err_set(err, ERR_MISSING, HAS_ENDED, dir);
    if (!text)
        return err_set(err, ERR_MISSING, "%s: no job of many workers runs here (muster train SPEC "
                       "--workers N --out %s starts one)", dir, dir);
    snprintf(path, sizeof path, "%s/token", dir);
    if (files_read(path, JOB_TOKEN - 1, &token, NULL, err) < 0)
        return -(int)err->code;
    OWN_JSON json_t *doc = json_loads(text, 0, NULL);
    const char *address = json_string_value(json_object_get(doc, "address"));
    if (!address)
        return err_set(err, ERR_INVALID, "%s/job.json: is damaged", dir);
    *out = (struct job_desk){ .listener = -1 };
    snprintf(out->address, sizeof out->address, "%s", address);
    snprintf(out->token, sizeof out->token, "%s", token);
    return 0;
}

int job_explain(const char *dir, const struct job_desk *desk, struct err *err)
{
    struct job_desk again;
    char why[sizeof err->text];

    if (err->code == ERR_DENIED)
        return err_set(err, ERR_DENIED, "%s/token: is not the token of the job at %s", dir,
                       desk->address);
    if (err->code != ERR_IO && err->code != ERR_AGAIN)
        return -(int)err->code;
    snprintf(why, sizeof why, "%s", err->text);
    if (job_find(dir, &again, err) < 0)
        return -(int)err->code; /* it has ended meanwhile */
    if (job_ended(dir))
        return err_set(err, ERR_MISSING, HAS_ENDED, dir);
    return err_set(err, ERR_MISSING, "%s: its job does not answer (%s); if it was killed, muster "
                   "train SPEC --out %s --resume goes on with it", dir, why, dir);
}

/* ------------------------------------------------------------------ the loop */

static int keep_going(struct job *j, struct err *err)
{
    if (j->failures >= FAILURES_MAX && (!j->coordinator.pid || !count_workers(j)))
        return err_set(err, ERR_IO, "%d workers in a row ended as soon as they were started (their "
                       "last words are above)", j->failures);
    if (!j->coordinator.pid && start_coordinator(j, err) < 0)
        return -(int)err->code;
    if (j->desk.stopping || atomic_load(j->desk.over) || clock_seconds() < j->rest_until)
        return 0;
    for (int n = count_workers(j); n < wanted_workers(j); n++)
        if (start_worker(j, err) < 0)
            return -(int)err->code;
    return 0;
}

static int loop(struct job *j, struct err *err)
{
    const struct timespec tick = { 0, TICK_MS * 1000000L };

    for (;;) {
        if (keep_going(j, err) < 0)
            return -(int)err->code;
        int sig = sigtimedwait(&j->waits, NULL, &tick);
        if (sig == SIGINT || sig == SIGTERM) {
            if (j->desk.stopping && clock_seconds() - j->stopping_since > TWICE)
                return err_set(err, ERR_CONFLICT, "stopped at once");
            if (!j->desk.stopping) {
                j->desk.stopping = true;
                j->stopping_since = clock_seconds();
                kill(j->coordinator.pid, SIGTERM);
            }
        }
        if (reap(j, err))
            return -(int)err->code;
    }
}

int job_run(const struct job_config *config, struct err *err)
{
    OWN_MEM struct job *j = calloc(1, sizeof *j);
    sigset_t before;

    if (!j)
        return err_set(err, ERR_NOMEM, "no memory for a job");
    j->config = config;
    j->desk = *config->desk;
    j->max = config->max;
    j->word = -1;
    j->desk.over = mmap(NULL, sizeof *j->desk.over, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (j->desk.over == MAP_FAILED)
        return err_set(err, ERR_NOMEM, "no memory for a job");
    if (write_token(config->dir, j->desk.token, err) < 0 || forget_size(config->dir, err) < 0) {
        munmap(j->desk.over, sizeof *j->desk.over);
        return -(int)err->code;
    }
    sigemptyset(&j->waits);
    sigaddset(&j->waits, SIGCHLD);
    sigaddset(&j->waits, SIGINT);
    sigaddset(&j->waits, SIGTERM);
    sigprocmask(SIG_BLOCK, &j->waits, &before);
    int rc = loop(j, err);
    end_children(j);
    sigprocmask(SIG_SETMASK, &before, NULL);
    munmap(j->desk.over, sizeof *j->desk.over);
    if (j->word >= 0)
        close(j->word);
    return rc;
}
