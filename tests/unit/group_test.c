/* tests/unit/group_test.c - the processes of a user's own distributed program, as one group */
#include "runtime/group.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/files.h"
#include "base/own.h"
#include "tests/check.h"

static char dir[] = "/tmp/muster-group-XXXXXX";

struct heard { char text[4096]; int starts, losses, stops, sizes[8], ports[8], fail_at; };

static int hear(void *arg, const struct group_event *e, struct err *err)
{
    struct heard *h = arg;

    if (e->kind == GROUP_STARTED) {
        h->sizes[h->starts] = e->size;
        h->ports[h->starts++] = e->port;
    }
    h->losses += e->kind == GROUP_LOST;
    h->stops += e->kind == GROUP_STOPPING;
    if (e->kind == GROUP_LINE) {
        size_t n = strlen(h->text);
        snprintf(h->text + n, sizeof h->text - n, "%d%d%.*s|", e->rank, e->stream, (int)e->n,
                 e->text);
        if (h->fail_at == e->rank)
            return err_set(err, ERR_IO, "no more of it");
    }
    return 0;
}

/* `script` by sh, in a run of its own. */
static int run(const char *script, int min, int max, int restarts, struct heard *h,
               struct group_result *r, struct err *err)
{
    char path[64], *argv[] = { "sh", "-c", (char *)script, NULL };
    static int count;

    if (count == 0 && !mkdtemp(dir))
        return err_set(err, ERR_IO, "no folder for the test");
    snprintf(path, sizeof path, "%s/%d", dir, count++);
    if (files_mkdir(path, err) < 0)
        return -(int)err->code;
    struct group_job job = { .name = "test", .argv = argv, .run = path, .min = min, .max = max,
                             .max_restarts = restarts, .grace_s = 5, .backoff_s = 0.01 };
    return group_run(&job, hear, h, r, err);
}

static void every_rank_runs_and_is_heard(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct heard h = { .fail_at = -1 };
    struct group_result r;

    assert_ok(run("echo $WORLD_SIZE; echo e >&2; printf end", 3, 3, 0, &h, &r, &err));
    assert_int_equal(r.size, 3);
    assert_int_equal(r.failed + r.stopped + r.restarts, 0);
    for (int rank = 0; rank < 3; rank++) {
        char want[3][16];
        snprintf(want[0], 16, "%d13|", rank);
        snprintf(want[1], 16, "%d2e|", rank);
        snprintf(want[2], 16, "%d1end|", rank);
        for (int i = 0; i < 3; i++)
            assert_non_null(strstr(h.text, want[i]));
    }
}

static void the_group_shrinks_after_the_first_restart_and_gives_up_at_last(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct heard h = { .fail_at = -1 };
    struct group_result r;

    assert_ok(run("[ $RANK = 0 ] && exit 7; sleep 60", 2, 3, 3, &h, &r, &err));
    assert_int_equal(r.failed, 1);
    assert_int_equal(r.restarts, 3);
    assert_int_equal(r.lost.rank, 0);
    assert_int_equal(r.lost.code, 7);
    assert_int_equal(h.starts, 4);
    assert_int_equal(h.losses, 3);
    const int sizes[] = { 3, 3, 2, 2 };
    for (int i = 0; i < 4; i++)
        assert_int_equal(h.sizes[i], sizes[i]);
    for (int i = 1; i < 4; i++)
        assert_int_not_equal(h.ports[i], h.ports[i - 1]);
}

static void a_killed_worker_is_told_by_its_signal(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct heard h = { .fail_at = -1 };
    struct group_result r;
    char why[100];

    assert_ok(run("[ $RANK = 1 ] && [ $MUSTER_RESTART_COUNT = 0 ] && kill -9 $$; exit 0", 2, 2, 1, &h,
                  &r, &err));
    assert_int_equal(r.failed, 0);
    assert_int_equal(r.restarts, 1);
    assert_int_equal(r.lost.signal, SIGKILL);
    group_say(&r.lost, why, sizeof why);
    assert_string_equal(why, "worker 1 was killed by signal 9 (Killed)");
    group_say(&(struct group_end){ .rank = 0, .code = 3 }, why, sizeof why);
    assert_string_equal(why, "worker 0 ended with exit code 3");
}

static void a_caller_that_cannot_keep_a_line_ends_the_group(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct heard h = { .fail_at = 1 };
    struct group_result r;

    assert_fails(run("echo x; sleep 60", 2, 2, 3, &h, &r, &err), ERR_IO);
    assert_string_equal(err.text, "no more of it");
    assert_int_equal(h.starts, 1);
}

static void a_signal_to_this_process_stops_the_group_and_nothing_else(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct heard h = { .fail_at = -1 };
    struct group_result r;
    sigset_t after;

    assert_ok(run("kill -TERM $PPID; sleep 60", 1, 1, 3, &h, &r, &err));
    assert_int_equal(r.stopped, SIGTERM);
    assert_int_equal(h.stops, 1);
    sigprocmask(SIG_BLOCK, NULL, &after);
    assert_int_equal(sigismember(&after, SIGTERM) + sigismember(&after, SIGINT) +
                     sigismember(&after, SIGCHLD), 0);
}

static void a_program_that_is_not_there_is_an_error(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct heard h = { .fail_at = -1 };
    struct group_result r;
    char *argv[] = { "no-such-program", NULL };
    struct group_job job = { .name = "test", .argv = argv, .run = dir, .min = 2, .max = 2,
                             .max_restarts = 3, .grace_s = 5, .backoff_s = 0.01 };

    assert_fails(group_run(&job, hear, &h, &r, &err), ERR_MISSING);
    assert_non_null(strstr(err.text, "no-such-program"));
    job.run = "/no/such/folder";
    assert_fails(group_run(&job, hear, &h, &r, &err), ERR_IO);
}

static void nothing_is_left_to_wait_for(void **state)
{
    (void)state;
    char command[64];

    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);   /* no child, no keeper */
    snprintf(command, sizeof command, "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
}

CHECK_MAIN(every_rank_runs_and_is_heard,
           the_group_shrinks_after_the_first_restart_and_gives_up_at_last,
           a_killed_worker_is_told_by_its_signal, a_caller_that_cannot_keep_a_line_ends_the_group,
           a_signal_to_this_process_stops_the_group_and_nothing_else,
           a_program_that_is_not_there_is_an_error, nothing_is_left_to_wait_for)
