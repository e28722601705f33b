/* tests/unit/queue_test.c - what a job's state calls for is done, once, whatever dies meanwhile */
#include "server/queue.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/tree.h"
#include "server/jobs.h"
#include "server/jobs_int.h"
#include "server/server.h"
#include "tests/check.h"

/* ------------------------------------------------------------ a driver and a clock */

struct run {
    char dir[128];
    struct run_state state;
    int starts, stops, min, max;
};
enum { RUNS = 64 };
static struct run runs[RUNS];
static _Atomic int n_runs;
static int fail_starts;         /* so many starts are refused, "not now" */
static const char *never;       /* a start of a job of this name fails for good */
static _Atomic bool hold;       /* starts of jobs with packages take as long */
static int news_fd = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic double ahead;    /* of the clock */

static double now(void)
{
    return clock_wall() + ahead;
}

static struct run *run_of(const char *dir, bool make)
{
    for (int i = 0; i < n_runs; i++)
        if (!strcmp(runs[i].dir, dir))
            return &runs[i];
    if (!make)
        return NULL;
    struct run *r = &runs[n_runs++];
    *r = (struct run){ 0 };
    snprintf(r->dir, sizeof r->dir, "%s", dir);
    return r;
}

static void tell(void)
{
    uint64_t one = 1;
    assert_int_equal(write(news_fd, &one, sizeof one), sizeof one);
}

static int fake_start(const struct order *o, struct err *err)
{
    const char *name = json_string_value(json_object_get(o->spec, "name"));
    while (hold && json_object_get(o->spec, "python"))
        usleep(1000);
    pthread_mutex_lock(&lock);
    int rc = 0;
    if (fail_starts > 0) {
        fail_starts--;
        rc = err_set(err, ERR_AGAIN, "no processes left");
    } else if (never && name && !strcmp(name, never)) {
        rc = err_set(err, ERR_INVALID, "there is no such program");
    } else {
        struct run *r = run_of(o->dir, true);
        if (!r->starts) {       /* idempotent */
            r->state = (struct run_state){ .phase = RUN_RUNNING, .keeper = 1 };
            r->state.workers = o->workers;
        }
        r->starts++;
        tell();
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

static int fake_stop(const char *dir, int grace_ms, struct err *err)
{
    (void)err;
    (void)grace_ms;
    pthread_mutex_lock(&lock);
    struct run *r = run_of(dir, true);
    r->stops++;
    if (r->state.phase == RUN_RUNNING)
        r->state = (struct run_state){ .phase = RUN_ENDED, .signal = 15, .stopped = true };
    tell();
    pthread_mutex_unlock(&lock);
    return 0;
}

static int fake_resize(const char *dir, int min, int max, struct err *err)
{
    (void)err;
    pthread_mutex_lock(&lock);
    struct run *r = run_of(dir, true);
    r->min = min;
    r->max = r->state.workers = max;
    tell();
    pthread_mutex_unlock(&lock);
    return 0;
}

static int fake_look(const char *dir, struct run_state *out, struct err *err)
{
    (void)err;
    pthread_mutex_lock(&lock);
    struct run *r = run_of(dir, false);
    *out = r ? r->state : (struct run_state){ .phase = RUN_NOT_STARTED };
    pthread_mutex_unlock(&lock);
    return 0;
}

static const struct driver fake = { "fake", fake_start, fake_stop, fake_resize, fake_look };

static void clear_news(void)
{
    uint64_t n;
    assert_true(read(news_fd, &n, sizeof n) >= 0);
}

/* ------------------------------------------------------------ a server of it */

struct fixture {
    struct server server;
    char dir[64];
};

static void up(struct fixture *f)
{
    struct err err = { 0 };
    struct queue_config c = { .driver = &fake, .news_fd = news_fd, .news_clear = clear_news,
                              .now = now, .cores = 2, .memory = 4000000000, .gpus = 0 };
    assert_ok(store_open(f->dir, &f->server.store, &err));
    assert_ok(queue_new(&f->server, &c, &f->server.queue, &err));
}

static void down(struct fixture *f)
{
    queue_free(TAKE(f->server.queue));
    store_free(TAKE(f->server.store));
}

static void begin(struct fixture *f)
{
    n_runs = fail_starts = 0;
    never = NULL;
    ahead = 0;
    if (news_fd < 0)
        news_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    snprintf(f->dir, sizeof f->dir, "/tmp/queue_test.XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    f->server = (struct server){ .data_dir = f->dir, .load_limit = 0.9 };
    up(f);
}

static void end(struct fixture *f)
{
    struct err err = { 0 };
    int64_t n;
    int found = 0;
    assert_ok(jobs_check(&f->server, check_count, &found, &n, &err));
    assert_int_equal(found, 0);
    down(f);
    assert_ok(tree_remove(f->dir, &err));
}

static void submit(struct fixture *f, const char *name, const char *more)
{
    struct err err = { 0 };
    OWN_JSON json_t *spec = json_pack("{s:s, s:s, s:[s]}", "name", name, "kind", "command",
                                      "command", "true");
    OWN_JSON json_t *extra = json_loads(more, 0, NULL);
    assert_non_null(extra);
    json_object_update(spec, extra);
    assert_ok(jobs_submit(&f->server, "p", name, spec, NULL, &err));
}

/* Of whatever project: a name is used once in a test. */
static json_t *job(struct fixture *f, const char *name)
{
    static const char *const projects[] = { "q", "r", "p" };
    struct err err = { 0 };
    json_t *doc = NULL;
    for (int i = 0; i < 3 && !doc; i++)
        jobs_get(&f->server, projects[i], name, &doc, &err);
    if (!doc)
        fail_msg("%s", err.text);
    return doc;
}

static void until(struct fixture *f, const char *name, const char *state)
{
    char last[32] = "";
    for (int i = 0; i < 3000; i++) {
        OWN_JSON json_t *doc = job(f, name);
        snprintf(last, sizeof last, "%s", json_string_value(json_object_get(doc, "state")));
        if (!strcmp(last, state))
            return;
        usleep(1000);
    }
    fail_msg("job %s is %s, not %s", name, last, state);
}

static void says(struct fixture *f, const char *name, const char *text)
{
    OWN_JSON json_t *doc = job(f, name);
    const char *reason = json_string_value(json_object_get(doc, "reason"));
    if (!strstr(reason, text))
        fail_msg("job %s: \"%s\" does not say \"%s\"", name, reason, text);
}

static struct run *attempt(struct fixture *f, const char *name, int n)
{
    char path[160];
    OWN_JSON json_t *doc = job(f, name);
    snprintf(path, sizeof path, "%s/jobs/%lld/%d", f->dir,
             (long long)json_integer_value(json_object_get(doc, "uid")), n);
    return run_of(path, false);
}

static void ends(struct fixture *f, const char *name, int n, struct run_state how)
{
    pthread_mutex_lock(&lock);
    struct run *r = attempt(f, name, n);
    assert_non_null(r);
    r->state = how;
    tell();
    pthread_mutex_unlock(&lock);
}

static const struct run_state good = { .phase = RUN_ENDED };
static const struct run_state bad = { .phase = RUN_ENDED, .code = 3 };

/* ------------------------------------------------------------ tests */

static void a_job_is_started_runs_and_ends(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f);
    submit(&f, "a", "{}");
    until(&f, "a", "running");
    assert_int_equal(attempt(&f, "a", 1)->starts, 1);
    ends(&f, "a", 1, good);
    until(&f, "a", "succeeded");
    submit(&f, "b", "{}");
    until(&f, "b", "running");
    ends(&f, "b", 1, bad);
    until(&f, "b", "failed");
    says(&f, "b", "exit code 3");
    end(&f);
}

static void a_failed_attempt_is_begun_again_after_its_pause(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f);
    submit(&f, "a", "{\"retries\": {\"limit\": 2, \"backoff_s\": 100}}");
    until(&f, "a", "running");
    ends(&f, "a", 1, bad);
    until(&f, "a", "queued");
    usleep(20000);
    assert_null(attempt(&f, "a", 2));
    ahead = 101;
    queue_wake(f.server.queue);
    until(&f, "a", "running");
    ends(&f, "a", 2, (struct run_state){ .phase = RUN_LOST });
    until(&f, "a", "queued");
    ahead = 202;                /* twice as long now */
    queue_wake(f.server.queue);
    usleep(20000);
    assert_null(attempt(&f, "a", 3));
    ahead = 302;
    queue_wake(f.server.queue);
    until(&f, "a", "running");
    ends(&f, "a", 3, bad);
    until(&f, "a", "failed");
    end(&f);
}

static void a_clock_that_is_set_back_keeps_no_retry_waiting(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f);
    submit(&f, "a", "{\"retries\": {\"limit\": 2, \"backoff_s\": 1}}");
    until(&f, "a", "running");
    ends(&f, "a", 1, bad);
    until(&f, "a", "queued");
    ahead = -5 * 86400;         /* while it waits */
    queue_wake(f.server.queue);
    until(&f, "a", "running");
    ends(&f, "a", 2, bad);
    until(&f, "a", "queued");
    down(&f);
    ahead = -10 * 86400;        /* while no server runs */
    up(&f);
    until(&f, "a", "running");
    ends(&f, "a", 3, bad);
    until(&f, "a", "failed");
    end(&f);
}

static void what_can_never_fit_and_what_cannot_be_started_fail_with_a_sentence(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f);
    never = "b";
    submit(&f, "a", "{\"resources\": {\"cpu\": 3}}");
    until(&f, "a", "failed");
    says(&f, "a", "it asks for 3 cores, and the machine has 2 cores");
    submit(&f, "b", "{}");
    until(&f, "b", "failed");
    says(&f, "b", "there is no such program");
    fail_starts = 1;
    submit(&f, "c", "{}");
    usleep(30000);
    OWN_JSON json_t *machine = queue_machine(f.server.queue);
    assert_non_null(strstr(json_string_value(json_object_get(machine, "trouble")), "no processes"));
    ahead = 2;
    queue_wake(f.server.queue);
    until(&f, "c", "running");
    ends(&f, "c", 1, good);
    until(&f, "c", "succeeded");
    end(&f);
}

static void cancel_ends_what_waits_and_stops_what_runs(void **state)
{
    (void)state;
    struct fixture f;
    struct err err = { 0 };
    begin(&f);
    submit(&f, "a", "{\"resources\": {\"cpu\": 2}}");
    submit(&f, "b", "{\"resources\": {\"cpu\": 2}}");
    until(&f, "a", "running");
    until(&f, "b", "queued");
    assert_ok(jobs_cancel(&f.server, "p", "b", "me", &err));
    until(&f, "b", "cancelled");
    assert_null(attempt(&f, "b", 1));
    assert_ok(jobs_cancel(&f.server, "p", "a", "me", &err));
    until(&f, "a", "cancelled");
    assert_int_equal(attempt(&f, "a", 1)->stops, 1);
    end(&f);
}

static void one_whose_start_came_to_nothing_is_cancelled_too(void **state)
{
    (void)state;
    struct fixture f;
    struct err err = { 0 };
    begin(&f);
    submit(&f, "a", "{\"resources\": {\"cpu\": 2}}");
    until(&f, "a", "running");
    ends(&f, "a", 1, (struct run_state){ .phase = RUN_PREPARING });
    assert_ok(jobs_cancel(&f.server, "p", "a", "me", &err));
    until(&f, "a", "cancelling");
    for (int i = 0; i < 10000 && !attempt(&f, "a", 1)->stops; i++)
        usleep(1000);
    assert_int_equal(attempt(&f, "a", 1)->stops, 1);
    ends(&f, "a", 1, (struct run_state){ .phase = RUN_NOT_STARTED });
    ahead = 2;
    queue_wake(f.server.queue);
    until(&f, "a", "cancelled");
    ahead = 0;
    end(&f);
}

static void a_new_server_adopts_ends_and_starts_what_is_there(void **state)
{
    (void)state;
    struct fixture f;
    struct err err = { 0 };
    begin(&f);
    submit(&f, "runs", "{\"resources\": {\"cpu\": 0.2}}");
    submit(&f, "over", "{\"resources\": {\"cpu\": 0.2}}");
    submit(&f, "lost", "{\"resources\": {\"cpu\": 0.2}, \"retries\": {\"limit\": 1, "
           "\"backoff_s\": 0}}");
    submit(&f, "stopped", "{\"resources\": {\"cpu\": 0.2}}");
    for (int i = 0; i < 4; i++)
        until(&f, (const char *[]){ "runs", "over", "lost", "stopped" }[i], "running");
    down(&f);

    assert_ok(store_open(f.dir, &f.server.store, &err));
    /* Recorded by a server that died before it started them. */
    submit(&f, "begun", "{\"resources\": {\"cpu\": 0.2}}");
    assert_ok(jobs_append(&f.server, "p", "begun", "job.preparing", json_pack("{s:i}", "attempt", 1),
                          &err));
    submit(&f, "begun-cancelled", "{\"resources\": {\"cpu\": 0.2}}");
    assert_ok(jobs_append(&f.server, "p", "begun-cancelled", "job.preparing",
                          json_pack("{s:i}", "attempt", 1), &err));
    assert_ok(jobs_cancel(&f.server, "p", "begun-cancelled", "me", &err));
    assert_ok(jobs_cancel(&f.server, "p", "stopped", "me", &err));
    ends(&f, "over", 1, good);
    ends(&f, "lost", 1, (struct run_state){ .phase = RUN_LOST });
    store_free(TAKE(f.server.store));

    up(&f);
    until(&f, "over", "succeeded");
    until(&f, "lost", "running");
    until(&f, "begun", "running");
    until(&f, "stopped", "cancelled");
    until(&f, "begun-cancelled", "cancelled");
    until(&f, "runs", "running");
    assert_int_equal(attempt(&f, "runs", 1)->starts, 1);
    assert_null(attempt(&f, "runs", 2));
    assert_int_equal(attempt(&f, "lost", 2)->starts, 1);
    assert_int_equal(attempt(&f, "begun", 1)->starts, 1);
    assert_null(attempt(&f, "begun", 2));
    ends(&f, "runs", 1, good);
    until(&f, "runs", "succeeded");
    end(&f);
}

static void the_files_of_a_job_that_is_gone_are_removed_at_the_next_start(void **state)
{
    (void)state;
    struct fixture f;
    char path[128];
    begin(&f);
    down(&f);
    snprintf(path, sizeof path, "%s/jobs", f.dir);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/jobs/99", f.dir);
    assert_int_equal(mkdir(path, 0700), 0);
    up(&f);
    for (int i = 0; i < 1000 && access(path, F_OK) == 0; i++)
        usleep(1000);
    assert_int_equal(access(path, F_OK), -1);
    end(&f);
}

#define TRAIN "{\"kind\": \"train\", \"train\": {\"spec\": \"x\"}, \"resources\": {\"cpu\": 0.2}, " \
    "\"workers\": {\"min\": 1, \"max\": %d}}"

static int workers(struct fixture *f, const char *name)
{
    OWN_JSON json_t *doc = job(f, name);
    return (int)json_integer_value(json_object_get(json_object_get(doc, "workers"), "now"));
}

static void until_workers(struct fixture *f, const char *name, int n)
{
    for (int i = 0; i < 3000 && workers(f, name) != n; i++)
        usleep(1000);
    if (workers(f, name) != n)
        fail_msg("job %s has %d workers, not %d", name, workers(f, name), n);
}

static void elastic_jobs_share_the_machine_without_a_restart(void **state)
{
    (void)state;
    struct fixture f;
    struct err err = { 0 };
    char spec[256];
    begin(&f);
    snprintf(spec, sizeof spec, TRAIN, 10);
    submit(&f, "example", spec);
    until_workers(&f, "example", 9);
    submit(&f, "example2", spec);       /* one place is free above the limit; then back to it */
    until_workers(&f, "example2", 1);
    until_workers(&f, "example", 8);
    submit(&f, "wide", "{\"workers\": {\"min\": 5, \"max\": 5}, \"resources\": {\"cpu\": 0.2}}");
    until(&f, "wide", "running");
    until_workers(&f, "example", 3);
    until_workers(&f, "example2", 1);
    ends(&f, "wide", 1, good);
    until(&f, "wide", "succeeded");
    until_workers(&f, "example", 5);    /* 4/9 each, the older one first */
    until_workers(&f, "example2", 4);
    assert_ok(jobs_resize(&f.server, "p", "example", 1, 2, &err));
    until_workers(&f, "example", 2);
    until_workers(&f, "example2", 7);
    assert_int_equal(attempt(&f, "example", 1)->starts, 1);
    assert_int_equal(attempt(&f, "example2", 1)->starts, 1);
    ends(&f, "example", 1, good);
    ends(&f, "example2", 1, good);
    until(&f, "example2", "succeeded");
    end(&f);
}

static void a_slow_start_keeps_nobody_waiting_and_can_be_cancelled(void **state)
{
    (void)state;
    struct fixture f;
    struct err err = { 0 };
    const char *slow = "{\"kind\": \"python\", \"python\": {\"module\": \"m\", \"packages\": "
                       "[\"gs://b/p.tar.gz\"]}, \"resources\": {\"cpu\": 0.1}}";
    begin(&f);
    hold = true;
    submit(&f, "slow", slow);
    submit(&f, "slow2", slow);
    until(&f, "slow2", "preparing");
    submit(&f, "quick", "{}");
    until(&f, "quick", "running");
    assert_ok(jobs_cancel(&f.server, "p", "slow2", "me", &err));
    usleep(20000);
    until(&f, "slow2", "cancelling");
    hold = false;
    until(&f, "slow", "running");
    until(&f, "slow2", "cancelled");
    assert_int_equal(attempt(&f, "slow2", 1)->starts, 1);
    hold = true;
    submit(&f, "left", slow);
    until(&f, "left", "preparing");
    hold = false;
    end(&f);
}

static void a_submit_reaches_the_driver_within_a_millisecond_or_so(void **state)
{
    (void)state;
    struct fixture f;
    double best = 1;
    begin(&f);
    for (int i = 0; i < 50; i++) {
        char name[16];
        snprintf(name, sizeof name, "j%d", i);
        submit(&f, name, "{}");
        double start = clock_seconds();
        while (n_runs == i)
            sched_yield();
        double took = clock_seconds() - start;
        if (took < best)
            best = took;
        until(&f, name, "running");
        ends(&f, name, 1, good);
        until(&f, name, "succeeded");
    }
    print_message("from the commit to the driver: %.2f ms at best\n", best * 1000);
    assert_true(best < 0.05);
    end(&f);
}

static void submit_to(struct fixture *f, const char *project, const char *name)
{
    struct err err = { 0 };
    OWN_JSON json_t *spec = json_pack("{s:s, s:[s], s:{s:i}}", "kind", "command", "command", "true",
                                      "resources", "cpu", 2);
    assert_ok(jobs_submit(&f->server, project, name, spec, NULL, &err));
}

/* What a project used an hour ago still counts after a restart: the other's younger job goes first. */
static void what_projects_used_is_known_after_a_restart(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f);
    submit_to(&f, "p", "used");
    until(&f, "used", "running");
    usleep(20000);
    ends(&f, "used", 1, good);
    until(&f, "used", "succeeded");
    submit_to(&f, "r", "blocks");
    until(&f, "blocks", "running");
    submit_to(&f, "p", "older");
    submit_to(&f, "q", "younger");
    down(&f);
    up(&f);
    until(&f, "blocks", "running");
    ends(&f, "blocks", 1, good);
    until(&f, "blocks", "succeeded");
    until(&f, "younger", "running");
    until(&f, "older", "queued");
    end(&f);
}

/* The log says that it ran; its directory was never written to the disk. */
static void an_attempt_that_a_power_cut_took_is_lost_and_not_run_again(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f);
    submit(&f, "a", "{}");
    until(&f, "a", "running");
    down(&f);
    n_runs = 0;                 /* nothing is left of it */
    up(&f);
    until(&f, "a", "failed");
    says(&f, "a", "lost: the machine went down while it ran");
    assert_int_equal(n_runs, 0);
    end(&f);
}

/* Each waits twice as long as the one before, the first a tenth of a second at least. */
static void retries_without_a_pause_do_not_spin(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct fixture f;
    OWN_JSON json_t *events = NULL;
    json_t *e;
    size_t i;
    double before = 0.05;
    begin(&f);
    submit(&f, "a", "{\"retries\": {\"limit\": 3, \"backoff_s\": 0}}");
    for (int n = 1; n <= 4; n++) {
        for (int w = 0; w < 3000 && !attempt(&f, "a", n); w++) {
            ahead = ahead + 0.01;
            usleep(1000);
        }
        until(&f, "a", "running");
        ends(&f, "a", n, bad);
        until(&f, "a", n == 4 ? "failed" : "queued");
    }
    assert_ok(jobs_events(&f.server, "p", "a", 0, &events, &err));
    json_array_foreach(events, i, e) {
        const char *type = json_string_value(json_object_get(e, "type"));
        if (strcmp(type, "job.retrying"))
            continue;
        double wait = json_number_value(json_object_get(e, "wait_s"));
        assert_true(wait > 1.99 * before && wait < 2.01 * before);
        before = wait;
    }
    assert_true(before > 0.39 && before < 0.41);
    end(&f);
}

CHECK_MAIN(a_job_is_started_runs_and_ends, a_failed_attempt_is_begun_again_after_its_pause,
           a_clock_that_is_set_back_keeps_no_retry_waiting,
           what_can_never_fit_and_what_cannot_be_started_fail_with_a_sentence,
           cancel_ends_what_waits_and_stops_what_runs,
           one_whose_start_came_to_nothing_is_cancelled_too,
           a_new_server_adopts_ends_and_starts_what_is_there,
           the_files_of_a_job_that_is_gone_are_removed_at_the_next_start,
           elastic_jobs_share_the_machine_without_a_restart,
           a_slow_start_keeps_nobody_waiting_and_can_be_cancelled,
           a_submit_reaches_the_driver_within_a_millisecond_or_so,
           what_projects_used_is_known_after_a_restart,
           an_attempt_that_a_power_cut_took_is_lost_and_not_run_again,
           retries_without_a_pause_do_not_spin)
