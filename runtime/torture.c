/* runtime/torture.c - disturbs a running job in every way it must stand
 *
 * DESIGN. One thread watches the job and keeps its newest status; the caller's thread fires what is
 * due, continues what was stopped, and looks whether the job has ended. An event that cannot be
 * fired now (the coordinator is on its way back, a worker has just gone) is tried again until it
 * can be, so that the number of events is the one that was asked for.
 */
#include "runtime/torture.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/own.h"
#include "base/rng.h"
#include "runtime/watch.h"

enum {
    START_MS = 60000,           /* for the first coordinator to come */
    AWAY_MS = 500,              /* of the watcher, between two looks whether it is over */
    LOOK_US = 5000,
    STOP_MS = 600,              /* at least; a worker may be silent for 500 ms */
    SLOW_MS = 20,
    PAUSED_MAX = 64,
    PATH_SIZE = 4096 + 32,
};

/* A worker that is lost later than this was lost by another event. */
static const double LOST_SECONDS = 2;

static const char *const names[TORTURE_KINDS] = {
    "kill", "stop", "slow", "partition", "join", "leave", "coordinator",
};

/* The line of roster.jsonl that says the coordinator has noticed; NULL: it does not have to. */
static const char *const noted_as[TORTURE_KINDS] = {
    "lost", "lost", NULL, "lost", "join", "leave", "start",
};

const char *torture_name(enum torture_kind kind) { return names[kind]; }

/* ------------------------------------------------------------------ the plan */

static int by_due(const void *a, const void *b)
{
    const struct torture_event *x = a, *y = b;

    return x->due < y->due ? -1 : x->due > y->due;
}

/* Joins and leaves must be possible when their turn comes: the size is followed from the start. */
static void draw_sizes(int min, int max, struct torture_event *out, int n)
{
    int size = max;

    for (int i = 0; i < n; i++) {
        struct torture_event *e = &out[i];
        if (e->kind != TORTURE_JOIN && e->kind != TORTURE_LEAVE)
            continue;
        if (min == max) {
            e->kind = TORTURE_KILL;
            continue;
        }
        if (size == max)
            e->kind = TORTURE_LEAVE;
        else if (size == min)
            e->kind = TORTURE_JOIN;
        size += e->kind == TORTURE_JOIN ? 1 : -1;
        e->size = size;
    }
}

void torture_draw(uint64_t seed, long steps, int min, int max, struct torture_event *out, int n)
{
    const uint64_t last = steps > 1 ? (uint64_t)steps : 1;

    for (int i = 0; i < n; i++) {
        uint32_t word[4], more[4];
        rng_philox(seed, 0, (uint64_t)i, word);
        rng_philox(seed, 1, (uint64_t)i, more);
        struct torture_event *e = &out[i];
        const uint64_t far = ((uint64_t)word[1] << 32) | word[2];
        *e = (struct torture_event){ .kind = (enum torture_kind)(word[0] % TORTURE_KINDS),
                                     .due = (long)(1 + far % last), .pick = word[3], .seen = -1,
                                     .step_after = -1 };
        e->pause_ms = e->kind == TORTURE_STOP ? STOP_MS + (int)(more[0] % 600)
                                              : SLOW_MS + (int)(more[0] % 280);
    }
    qsort(out, (size_t)n, sizeof *out, by_due);
    draw_sizes(min, max, out, n);
}

/* ------------------------------------------------------------------ the watcher */

struct watcher {
    pthread_mutex_t lock;
    json_t *status;             /* the newest; NULL: none yet */
    bool over;
    struct job_desk desk;
};

static int keep_status(void *arg, const json_t *status)
{
    struct watcher *w = arg;

    pthread_mutex_lock(&w->lock);
    json_decref(w->status);
    w->status = json_deep_copy(status);
    bool over = w->over;
    pthread_mutex_unlock(&w->lock);
    return over;
}

static void *watch(void *arg)
{
    struct watcher *w = arg;
    struct err ignored;

    for (bool over = false; !over;) {
        watch_job(&w->desk, AWAY_MS, keep_status, w, &ignored);
        pthread_mutex_lock(&w->lock);
        over = w->over;
        pthread_mutex_unlock(&w->lock);
        usleep(LOOK_US);
    }
    return NULL;
}

static json_t *newest(struct watcher *w)
{
    pthread_mutex_lock(&w->lock);
    json_t *status = json_incref(w->status);
    w->status = NULL;
    pthread_mutex_unlock(&w->lock);
    return status;
}

/* ------------------------------------------------------------------ processes */

struct paused {
    pid_t pid;                  /* 0: a free place */
    double until;
};

struct run {
    struct torture *t;
    struct watcher watcher;
    json_t *status;
    struct paused paused[PAUSED_MAX];
    int next;                   /* event */
    long step;
    double moved;               /* when the step last changed */
};

/* A pid may be another's by now; only children of the job are touched. */
static bool is_child(pid_t pid, pid_t parent)
{
    char path[64];
    OWN_MEM char *text = NULL;
    struct err ignored;
    int of = 0;
    char state = 0;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (pid <= 0 || files_read(path, 4096, &text, NULL, &ignored) < 0)
        return false;
    const char *end = strrchr(text, ')');
    return end && sscanf(end + 1, " %c %d", &state, &of) == 2 && of == (int)parent && state != 'Z';
}

static bool send_to_worker(struct run *r, struct torture_event *e, int sig)
{
    const json_t *workers = json_object_get(r->status, "workers");
    size_t n = json_array_size(workers);

    if (!n)
        return false;
    const json_t *w = json_array_get(workers, e->pick % n);
    e->pid = whole_of(w, "pid");
    e->id = whole_of(w, "id");
    return is_child((pid_t)e->pid, r->t->job) && kill((pid_t)e->pid, sig) == 0;
}

static bool pause_worker(struct run *r, struct torture_event *e)
{
    if (!send_to_worker(r, e, SIGSTOP))
        return false;
    struct paused *free_one = NULL;
    for (int i = 0; i < PAUSED_MAX; i++) {
        if (r->paused[i].pid == (pid_t)e->pid) {
            free_one = &r->paused[i];
            break;
        }
        if (!r->paused[i].pid)
            free_one = &r->paused[i];
    }
    if (!free_one) {
        kill((pid_t)e->pid, SIGCONT);
        return false;
    }
    *free_one = (struct paused){ (pid_t)e->pid, clock_seconds() + e->pause_ms / 1e3 };
    return true;
}

static void continue_paused(struct run *r, bool all)
{
    for (int i = 0; i < PAUSED_MAX; i++) {
        struct paused *p = &r->paused[i];
        if (!p->pid || (!all && clock_seconds() < p->until))
            continue;
        if (is_child(p->pid, r->t->job))
            kill(p->pid, SIGCONT);
        p->pid = 0;
    }
}

static bool kill_worker(struct run *r, struct torture_event *e)
{
    return send_to_worker(r, e, SIGKILL);
}

static bool cut_off(struct run *r, struct torture_event *e)
{
    return send_to_worker(r, e, SIGUSR1);
}

static bool resize(struct run *r, struct torture_event *e)
{
    OWN_JSON json_t *question = json_pack("{s:[i, i]}", "resize", r->t->min, e->size);
    OWN_JSON json_t *status = NULL;
    struct err ignored;

    return watch_ask(&r->watcher.desk, question, &status, &ignored) == 0;
}

static bool kill_coordinator(struct run *r, struct torture_event *e)
{
    char path[PATH_SIZE];
    OWN_MEM char *text = NULL;
    struct err ignored;

    snprintf(path, sizeof path, "%s/job.json", r->t->dir);
    if (files_read(path, 1 << 16, &text, NULL, &ignored) < 0)
        return false;
    OWN_JSON json_t *doc = json_loads(text, 0, NULL);
    e->pid = whole_of(doc, "pid");
    return is_child((pid_t)e->pid, r->t->job) && kill((pid_t)e->pid, SIGKILL) == 0;
}

/* ------------------------------------------------------------------ the run */

static void look(struct run *r)
{
    json_t *status = newest(&r->watcher);

    if (!status)
        return;
    json_decref(r->status);
    r->status = status;
    if (whole_of(status, "step") != r->step) {
        r->step = whole_of(status, "step");
        r->moved = clock_seconds();
    }
}

static void fire(struct run *r)
{
    static bool (*const act[TORTURE_KINDS])(struct run *r, struct torture_event *e) = {
        [TORTURE_KILL] = kill_worker, [TORTURE_STOP] = pause_worker, [TORTURE_SLOW] = pause_worker,
        [TORTURE_PARTITION] = cut_off, [TORTURE_JOIN] = resize, [TORTURE_LEAVE] = resize,
        [TORTURE_COORDINATOR] = kill_coordinator,
    };
    struct torture_event *e = &r->t->event[r->next];

    if (r->next == r->t->n || r->step < e->due)
        return;
    e->at = clock_wall();
    e->step = r->step;
    if (!act[e->kind](r, e))
        return;
    e->took = clock_wall() - e->at;
    e->fired = true;
    r->next++;
}

static int ended(const struct run *r, int status, struct err *err)
{
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return WIFSIGNALED(status) ?
               err_set(err, ERR_IO, "the disturbed run was killed by signal %d", WTERMSIG(status)) :
               err_set(err, ERR_IO, "the disturbed run ended with exit code %d",
                       WEXITSTATUS(status));
    if (r->next < r->t->n)
        return err_set(err, ERR_CONFLICT, "the run was over after %d of %d events (ask for fewer, "
                       "or for more steps)", r->next, r->t->n);
    return 0;
}

static int go_on(struct run *r, struct err *err)
{
    double told = 0;
    int status;

    r->moved = clock_seconds();
    for (;;) {
        look(r);
        fire(r);
        continue_paused(r, false);
        double now = clock_seconds();
        pid_t pid = waitpid(r->t->job, &status, WNOHANG);
        if (pid == r->t->job)
            return ended(r, status, err);
        if (r->t->stop && *r->t->stop)
            return err_set(err, ERR_AGAIN, "stopped");
        if (now - r->moved > r->t->silence_s)
            return err_set(err, ERR_CONFLICT, "the job hangs: no step since %ld for %.0f s, after "
                           "%d events, the last one \"%s\"", r->step, now - r->moved, r->next,
                           r->next ? names[r->t->event[r->next - 1].kind] : "none");
        if (r->t->tell && now - told > 0.1) {
            told = now;
            r->t->tell(r->t->arg, r->next, r->status);
        }
        usleep(LOOK_US);
    }
}

/* The job's desk appears when its first coordinator runs. */
static int find_job(struct run *r, struct err *err)
{
    double until = clock_seconds() + START_MS / 1e3;
    int status;

    while (job_find(r->t->dir, &r->watcher.desk, err) < 0) {
        if (waitpid(r->t->job, &status, WNOHANG) == r->t->job)
            return ended(r, status, err);
        if (r->t->stop && *r->t->stop)
            return err_set(err, ERR_AGAIN, "stopped");
        if (clock_seconds() > until)
            return -(int)err->code;
        usleep(LOOK_US);
    }
    return 0;
}

int torture_run(struct torture *t, struct err *err)
{
    OWN_MEM struct run *r = calloc(1, sizeof *r);
    pthread_t thread;

    if (!r)
        return err_set(err, ERR_NOMEM, "no memory for a run");
    r->t = t;
    if (find_job(r, err) < 0)
        return -(int)err->code;
    pthread_mutex_init(&r->watcher.lock, NULL);
    if (pthread_create(&thread, NULL, watch, &r->watcher) != 0)
        return err_set(err, ERR_NOMEM, "no memory for a thread");
    int rc = go_on(r, err);
    continue_paused(r, true);
    if (rc < 0)
        kill(t->job, SIGKILL);          /* workers and coordinator with it; the watcher's call ends */
    pthread_mutex_lock(&r->watcher.lock);
    r->watcher.over = true;
    pthread_mutex_unlock(&r->watcher.lock);
    pthread_join(thread, NULL);
    pthread_mutex_destroy(&r->watcher.lock);
    json_decref(r->watcher.status);
    json_decref(r->status);
    return rc;
}

/* ------------------------------------------------------------------ afterwards */

static bool is_event(const json_t *line, const char *name)
{
    const char *event = json_string_value(json_object_get(line, "event"));

    return event && strcmp(event, name) == 0;
}

/* Whether `line`, so many seconds after `e`, says that it was noticed. Somebody leaves while the
 * asker still waits for the answer, or not at all: there were no more than the new size. */
static bool notes(const json_t *line, double after, const struct torture_event *e)
{
    if (!noted_as[e->kind] || !is_event(line, noted_as[e->kind]))
        return false;
    if (e->kind == TORTURE_LEAVE)
        return after <= e->took;
    return strcmp(noted_as[e->kind], "lost") != 0 ||
           (whole_of(line, "id") == e->id && after < e->pause_ms / 1e3 + LOST_SECONDS);
}

static void review_event(const json_t *lines, struct torture_event *e)
{
    const json_t *line;
    bool seen = false;
    size_t i;

    json_array_foreach(lines, i, line) {
        double after = json_number_value(json_object_get(line, "t")) - e->at;
        if (after < 0)
            continue;
        if (!seen && notes(line, after, e)) {
            seen = true;
            e->seen = after;
        } else if (seen && is_event(line, "step")) {
            e->step_after = after;
            return;
        }
    }
}

int torture_review(const char *dir, struct torture_event *event, int n, long *out_generations,
                   struct err *err)
{
    char path[PATH_SIZE];
    OWN_MEM char *text = NULL;
    OWN_JSON json_t *lines = json_array();
    long generations = 0;

    snprintf(path, sizeof path, "%s/roster.jsonl", dir);
    if (files_read(path, (size_t)1 << 30, &text, NULL, err) < 0)
        return -(int)err->code;
    for (char *at = text, *end; (end = strchr(at, '\n')); at = end + 1) {
        json_t *line = json_loadb(at, (size_t)(end - at), 0, NULL);
        generations += is_event(line, "go");
        if (line)
            json_array_append_new(lines, line);
    }
    for (int i = 0; i < n; i++)
        if (event[i].fired)
            review_event(lines, &event[i]);
    *out_generations = generations;
    return 0;
}
