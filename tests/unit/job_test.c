/* tests/unit/job_test.c - who starts a job ends it, too
 *
 * job_run starts its workers by /proc/self/exe, which is this program: a worker of the tests says
 * that it is there, then waits, and says when it was asked to go. */
#include "runtime/job.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files.h"
#include "base/own.h"
#include "tests/check.h"

static char dir[64];

static void touch(const char *name)
{
    char path[256];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
}

static bool is_there(const char *name)
{
    char path[256];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

static void on_term(int sig)
{
    (void)sig;
    touch("asked");
    if (!getenv("MUSTER_TEST_STUBBORN"))
        _exit(0);
}

/* Before main: as `muster worker --join ADDRESS ...` it is no test. */
__attribute__((constructor)) static void be_worker(int argc, char **argv)
{
    const char *where = getenv("MUSTER_TEST_DIR");
    sigset_t none;

    if (argc < 2 || strcmp(argv[1], "worker") != 0 || !where)
        return;
    snprintf(dir, sizeof dir, "%s", where);
    signal(SIGTERM, on_term);
    touch("up");
    sigemptyset(&none);
    for (;;)
        sigsuspend(&none);
}

/* A coordinator whose job is over as soon as the worker is started, long before it has joined. */
static int end_early(void *arg, const struct job_desk *desk, struct err *err)
{
    (void)arg;
    (void)err;
    while (!is_there("up"))
        usleep(1000);
    atomic_store(desk->over, true);
    return 0;
}

/* One that is killed when it has said that the job is over: the next one finds that taken back. */
static int die_once(void *arg, const struct job_desk *desk, struct err *err)
{
    if (!is_there("died")) {
        touch("died");
        atomic_store(desk->over, true);
        raise(SIGKILL);
    }
    if (atomic_load(desk->over))
        touch("still over");
    return end_early(arg, desk, err);
}

static void run(int (*coordinate)(void *, const struct job_desk *, struct err *))
{
    struct err err = { 0 };
    struct job_desk desk;

    snprintf(dir, sizeof dir, "/tmp/muster-job-XXXXXX");
    assert_non_null(mkdtemp(dir));
    setenv("MUSTER_TEST_DIR", dir, 1);
    unsetenv("MUSTER_TOKEN");
    assert_ok(job_open(NULL, 1, &desk, &err));
    const struct job_config config = { .dir = dir, .desk = &desk, .max = 1, .threads = 1,
                                       .coordinate = coordinate };
    assert_ok(job_run(&config, &err));
    close(desk.listener);
}

static void clean(void)
{
    char command[96];

    snprintf(command, sizeof command, "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
}

static void a_worker_that_never_joined_is_asked_to_go_at_the_end(void **state)
{
    (void)state;
    run(end_early);
    assert_true(is_there("asked"));
    clean();
}

static void one_that_does_not_go_is_not_left_behind(void **state)
{
    (void)state;
    setenv("MUSTER_TEST_STUBBORN", "1", 1);
    run(end_early);             /* it waits for all its children */
    unsetenv("MUSTER_TEST_STUBBORN");
    assert_true(is_there("asked"));
    clean();
}

static void a_coordinator_that_dies_at_the_end_gets_workers_again(void **state)
{
    (void)state;
    run(die_once);
    assert_true(is_there("died") && is_there("up"));
    assert_false(is_there("still over"));
    clean();
}

CHECK_MAIN(a_worker_that_never_joined_is_asked_to_go_at_the_end,
           one_that_does_not_go_is_not_left_behind,
           a_coordinator_that_dies_at_the_end_gets_workers_again)
