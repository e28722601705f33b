/* runtime/group.c - the processes of a user's own distributed program, as one group
 *
 * DESIGN. One loop, no thread: poll over the workers' pipes and a signalfd, which brings SIGCHLD
 * and the wish to stop. A start is over when no worker is alive. Until then the group is either
 * whole, or `ending`: somebody was lost, or the caller wants to stop, and the others were sent
 * SIGTERM; at `kill_at` they are sent SIGKILL. A worker is looked at before it is reaped, and its
 * process group killed while its number cannot be another's. When no worker is alive, neither is
 * what left their process groups (group_orphans.c).
 */
#include "runtime/group.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/own.h"
#include "runtime/group_int.h"

/* What left its worker's process group may hold a pipe open; it is not waited for longer. */
static const double DRAIN_SECONDS = 0.5;
static const double BACKOFF_MOST_SECONDS = 30;
/* Two signals within this time are one: timeout(1), for one, signals both the process and its
 * group. */
static const double TWICE_SECONDS = 0.5;

struct group {
    struct start start;
    group_fn *tell;
    void *arg;
    struct member *member;      /* start.size of them */
    struct pollfd *poll;        /* the signalfd, then two for each member */
    int n_alive;
    bool ending, killed;
    double kill_at;
    int stopped;                /* signal that asked for it */
    double stopped_at;
    bool has_lost;
    struct group_end lost;
    int signals;                /* signalfd */
    pid_t keeper;
    sigset_t old_mask;
    struct sigaction old_chld, old_pipe;
    struct err err;             /* the first failure to keep or tell output */
};

/* ------------------------------------------------------------------ words and numbers */

void group_say(const struct group_end *e, char *out, size_t size)
{
    const char *what = e->signal ? sigdescr_np(e->signal) : NULL;

    if (e->signal)
        snprintf(out, size, "worker %d was killed by signal %d (%s)", e->rank, e->signal,
                 what ? what : "unknown");
    else
        snprintf(out, size, "worker %d ended with exit code %d", e->rank, e->code);
}

/* How many workers the start after the `restarts`-th has, when that had `size`. */
static int next_size(const struct group_job *job, int size, int restarts)
{
    return restarts > 0 && size > job->min ? size - 1 : size;
}

static double backoff(const struct group_job *job, int restarts)
{
    double wait = job->backoff_s;

    for (int i = 0; i < restarts && wait < BACKOFF_MOST_SECONDS; i++)
        wait *= 2;
    return wait < BACKOFF_MOST_SECONDS ? wait : BACKOFF_MOST_SECONDS;
}

/* A port that nobody has now, and not `last`: workers of the last start may still be known
 * there. */
static int free_port(int last, int *out, struct err *err)
{
    for (;;) {
        OWN_FD int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        struct sockaddr_in a = { .sin_family = AF_INET,
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        socklen_t n = sizeof a;
        if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) < 0 ||
            getsockname(fd, (struct sockaddr *)&a, &n) < 0)
            return err_set(err, ERR_AGAIN, "no free port on 127.0.0.1 for the workers to meet: %s",
                           strerror(errno));
        *out = ntohs(a.sin_port);
        if (*out != last)
            return 0;
    }
}

/* ------------------------------------------------------------------ ending */

static void signal_all(struct group *g, int sig)
{
    for (int i = 0; i < g->start.size; i++)
        if (g->member[i].alive) {
            kill(-g->member[i].pid, sig);
            kill(-g->member[i].pid, SIGCONT);   /* one that is stopped hears nothing else */
        }
}

static void end_now(struct group *g)
{
    g->ending = g->killed = true;
    signal_all(g, SIGKILL);
}

static void end_soon(struct group *g)
{
    if (g->ending)
        return;
    g->ending = true;
    g->kill_at = clock_seconds() + g->start.job->grace_s;
    signal_all(g, SIGTERM);
}

/* What tells may fail; that ends the group, and the first failure is kept. */
static void told(struct group *g, int rc, const struct err *err)
{
    if (rc >= 0)
        return;
    if (!g->err.code)
        g->err = *err;
    end_soon(g);
}

static void tell(struct group *g, struct group_event e)
{
    struct err err = { 0 };

    e.start = g->start.count;
    e.size = g->start.size;
    e.port = g->start.port;
    if (!g->err.code)
        told(g, g->tell(g->arg, &e, &err), &err);
}

static int tell_line(void *arg, const struct group_event *e, struct err *err)
{
    struct group *g = arg;
    struct group_event line = *e;

    line.start = g->start.count;
    line.size = g->start.size;
    line.port = g->start.port;
    return g->err.code ? 0 : g->tell(g->arg, &line, err);
}

static void ask_to_stop(struct group *g, int sig)
{
    if (g->stopped) {
        if (clock_seconds() - g->stopped_at > TWICE_SECONDS)
            end_now(g);
        return;
    }
    g->stopped = sig;
    g->stopped_at = clock_seconds();
    end_soon(g);
    tell(g, (struct group_event){ .kind = GROUP_STOPPING, .signal = sig });
}

/* ------------------------------------------------------------------ watching */

/* Of those that are found dead together the one that was killed is the cause: the others died of
 * a connection that it no longer answers. */
static void note_loss(struct group *g, int rank, int status, bool *found)
{
    struct group_end e = { .rank = rank, .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0,
                           .code = WIFEXITED(status) ? WEXITSTATUS(status) : 0 };

    if (status == 0 || (g->has_lost && (!*found || g->lost.signal || !e.signal)))
        return;
    g->has_lost = *found = true;
    g->lost = e;
}

static void reap(struct group *g)
{
    bool was_ending = g->ending, found = false;

    for (int i = 0; i < g->start.size; i++) {
        struct member *m = &g->member[i];
        siginfo_t info = { 0 };
        int status;
        pid_t forget = -m->pid;

        if (!m->alive || waitid(P_PID, (id_t)m->pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0 ||
            !info.si_pid)
            continue;
        kill(-m->pid, SIGKILL);
        if (waitpid(m->pid, &status, 0) < 0)
            status = 0;
        if (write(g->start.keeper, &forget, sizeof forget) < 0)
            errno = 0;          /* a keeper that is gone has nothing to forget */
        m->alive = false;
        g->n_alive--;
        if (!was_ending)
            note_loss(g, i, status, &found);
    }
    orphans_reap(g->member, g->start.size);
    if (found)
        end_soon(g);
}

static void take_signals(struct group *g)
{
    struct signalfd_siginfo s;

    while (read(g->signals, &s, sizeof s) == sizeof s)
        if (s.ssi_signo != SIGCHLD)
            ask_to_stop(g, (int)s.ssi_signo);
    reap(g);
}

/* Waits for at most `ms` (-1: as long as it takes) and takes what there is; returns how much. */
static int take_events(struct group *g, int ms)
{
    int n = 1 + 2 * g->start.size;

    g->poll[0] = (struct pollfd){ .fd = g->signals, .events = POLLIN };
    for (int i = 1; i < n; i++)
        g->poll[i] = (struct pollfd){ .fd = g->member[(i - 1) / 2].stream[(i - 1) % 2].fd,
                                      .events = POLLIN };
    int ready = poll(g->poll, (nfds_t)n, ms);
    if (ready <= 0)
        return 0;
    for (int i = 1; i < n; i++)
        if (g->poll[i].revents) {
            struct err err = { 0 };
            told(g, member_read(&g->member[(i - 1) / 2], (i - 1) % 2, tell_line, g, &err), &err);
        }
    if (g->poll[0].revents)
        take_signals(g);
    return ready;
}

static int until_kill_ms(const struct group *g)
{
    double left = g->kill_at - clock_seconds();

    if (!g->ending || g->killed)
        return -1;
    return left <= 0 ? 0 : (int)(left * 1000) + 1;
}

/* Until no worker is alive and what they wrote is told. */
static void watch(struct group *g)
{
    struct err err = { 0 };

    while (g->n_alive > 0) {
        take_events(g, until_kill_ms(g));
        if (g->ending && !g->killed && clock_seconds() >= g->kill_at)
            end_now(g);
    }
    orphans_end(g->keeper);
    double end = clock_seconds() + DRAIN_SECONDS;
    while (take_events(g, 0) > 0 && clock_seconds() < end)
        ;
    for (int i = 0; i < g->start.size; i++)
        told(g, member_flush(&g->member[i], tell_line, g, &err), &err);
}

/* ------------------------------------------------------------------ starting */

static void forget_members(struct group *g)
{
    for (int i = 0; g->member && i < g->start.size; i++)
        member_done(&g->member[i]);
    free(g->member);
    free(g->poll);
    g->member = NULL;
    g->poll = NULL;
}

static int start_all(struct group *g, struct err *err)
{
    int n = g->start.size, rc = free_port(g->start.port, &g->start.port, err);

    if (rc < 0)
        return rc;
    g->member = calloc((size_t)n, sizeof *g->member);
    g->poll = calloc(1 + 2 * (size_t)n, sizeof *g->poll);
    if (!g->member || !g->poll) {
        free(TAKE(g->member));
        return err_set(err, ERR_NOMEM, "no memory for %d workers", n);
    }
    g->ending = g->killed = g->has_lost = false;
    for (int i = 0; i < n; i++)
        member_init(&g->member[i], i);
    tell(g, (struct group_event){ .kind = GROUP_STARTED });
    for (int i = 0; i < n && rc == 0; i++) {
        rc = member_start(&g->member[i], &g->start, err);
        g->n_alive += g->member[i].alive;
        if (rc < 0 && i == 0 && g->start.count == 0)
            member_forget(&g->member[0], &g->start);    /* nothing ran: leave nothing */
    }
    if (rc < 0)
        end_now(g);
    return rc;
}

/* One start from beginning to end. */
static int run_once(struct group *g, struct err *err)
{
    int rc = start_all(g, err);

    if (g->member)
        watch(g);
    forget_members(g);
    if (rc == 0 && g->err.code) {
        *err = g->err;
        rc = -(int)err->code;
    }
    return rc;
}

/* Between two starts: nothing but a signal can happen. */
static void rest(struct group *g, double seconds)
{
    double end = clock_seconds() + seconds, left;
    struct signalfd_siginfo s;

    while (!g->stopped && (left = end - clock_seconds()) > 0) {
        struct pollfd p = { .fd = g->signals, .events = POLLIN };
        poll(&p, 1, (int)(left * 1000) + 1);
        while (read(g->signals, &s, sizeof s) == sizeof s)
            if (s.ssi_signo != SIGCHLD)
                g->stopped = (int)s.ssi_signo;
    }
}

static int run_all(struct group *g, struct group_result *r, struct err *err)
{
    const struct group_job *job = g->start.job;

    for (;;) {
        int rc = run_once(g, err);
        r->size = g->start.size;
        r->restarts = g->start.count;
        r->lost = g->lost;
        if (rc < 0)
            return rc;
        if (g->stopped || !g->has_lost)
            break;
        if (g->start.count >= job->max_restarts) {
            r->failed = 1;
            break;
        }
        struct group_event e = { .kind = GROUP_LOST, .lost = g->lost,
                                 .next_size = next_size(job, g->start.size, g->start.count),
                                 .wait_s = backoff(job, g->start.count) };
        tell(g, e);
        rest(g, e.wait_s);
        if (g->stopped)
            break;
        g->start.count++;
        g->start.size = e.next_size;
    }
    r->stopped = g->stopped;
    return 0;
}

/* ------------------------------------------------------------------ life */

static int take_over_signals(struct group *g, struct err *err)
{
    struct sigaction dfl = { .sa_handler = SIG_DFL }, ign = { .sa_handler = SIG_IGN }, hup;
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    if (sigaction(SIGHUP, NULL, &hup) == 0 && hup.sa_handler != SIG_IGN)
        sigaddset(&set, SIGHUP);        /* under nohup it is ignored, and stays so */
    g->signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (g->signals < 0)
        return err_set(err, ERR_AGAIN, "no signalfd to watch the workers by: %s", strerror(errno));
    sigaction(SIGCHLD, &dfl, &g->old_chld);     /* ignored, children would leave no status */
    sigaction(SIGPIPE, &ign, &g->old_pipe);     /* a closed terminal is an error of tell() */
    sigprocmask(SIG_BLOCK, &set, &g->old_mask);
    g->start.mask = &g->old_mask;
    return 0;
}

static void give_signals_back(struct group *g)
{
    struct signalfd_siginfo s;

    while (read(g->signals, &s, sizeof s) == sizeof s)
        ;                               /* one that came late would end the caller */
    close(g->signals);
    sigprocmask(SIG_SETMASK, &g->old_mask, NULL);
    sigaction(SIGCHLD, &g->old_chld, NULL);
    sigaction(SIGPIPE, &g->old_pipe, NULL);
}

int group_run(const struct group_job *job, group_fn *tell_fn, void *arg, struct group_result *out,
              struct err *err)
{
    struct group g = { .tell = tell_fn, .arg = arg,
                       .start = { .job = job, .size = job->max, .keeper = -1 } };
    struct group_result r = { 0 };
    OWN_MEM char *run = realpath(job->run, NULL), *logs = NULL;
    double from = clock_seconds();
    int before = 0;

    if (!run)
        return err_set(err, ERR_IO, "%s: %s", job->run, strerror(errno));
    if (asprintf(&logs, "%s/logs", run) < 0) {
        logs = NULL;
        return err_set(err, ERR_NOMEM, "no memory for a path");
    }
    if (files_mkdir(logs, err) < 0 || take_over_signals(&g, err) < 0)
        return -(int)err->code;
    g.start.run = run;
    prctl(PR_GET_CHILD_SUBREAPER, &before);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    int rc = keeper_start(run, &g.keeper, &g.start.keeper, err);
    if (rc == 0) {
        const pid_t well = 0;
        rc = run_all(&g, &r, err);
        if (write(g.start.keeper, &well, sizeof well) < 0)
            errno = 0;          /* it is gone, and has nothing to do */
        close(g.start.keeper);
        waitpid(g.keeper, NULL, 0);
    }
    prctl(PR_SET_CHILD_SUBREAPER, before);
    give_signals_back(&g);
    r.seconds = clock_seconds() - from;
    if (rc == 0)
        *out = r;
    return rc;
}
