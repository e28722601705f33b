/* tests/unit/keeper_test.c - jobs are started once, watched, limited, stopped whole, and found again */
#include "drivers/driver.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/own.h"
#include "server/logs.h"
#include "tests/check.h"

static char data[] = "/tmp/muster-keeper-XXXXXX";
static char dir[64];
static int attempts;

static void set_up(void)
{
    char exe[PATH_MAX], path[PATH_MAX + 16];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    assert_true(n > 0);
    exe[n] = '\0';
    for (int i = 0; i < 2; i++)
        *strrchr(exe, '/') = '\0';
    snprintf(path, sizeof path, "%s/muster", exe);
    driver_local_program(path);
    if (strstr(data, "XXXXXX"))
        assert_non_null(mkdtemp(data));
    snprintf(dir, sizeof dir, "%s/%d", data, ++attempts);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}

static json_t *command(const char *script)
{
    return json_pack("{s:s, s:[s, s, s]}", "kind", "command", "command", "sh", "-c", script);
}

/* Takes the reference. */
static void start(json_t *spec)
{
    struct err err = { 0 };
    OWN_JSON json_t *s = spec, *env = json_pack("{s:s}", "SECRET", "swordfish");
    const struct order o = { .dir = dir, .data_dir = data, .spec = s, .env = env, .workers = 1 };
    assert_ok(driver_local.start(&o, &err));
}

static struct run_state look(void)
{
    struct err err = { 0 };
    struct run_state s;
    assert_ok(driver_local.look(dir, &s, &err));
    return s;
}

/* Until the phase is `phase` or later, by news alone. */
static struct run_state wait_for(enum run_phase phase)
{
    double until = clock_seconds() + 30;
    struct run_state s;
    for (;;) {
        driver_local_news_clear();
        s = look();
        if (s.phase >= phase)
            return s;
        struct pollfd p = { .fd = driver_local_news(), .events = POLLIN };
        poll(&p, 1, 20000);
        if (clock_seconds() > until)
            fail_msg("phase %d after 30 s", s.phase);
    }
}

static int add_line(void *arg, const struct log_line *l)
{
    buf_printf(arg, "%.6f %c %d %.*s\n", l->t, l->stream, l->worker, (int)l->n, l->text);
    return 0;
}

/* "TIME STREAM WORKER TEXT\n" of each line. */
static char *log_text(void)
{
    struct err err = { 0 };
    struct log_cursor c = { 0 };
    struct buf b = BUF_INIT;
    buf_text(&b, "");
    assert_true(logs_read(dir, &c, NULL, add_line, &b, &err) >= 0);
    return buf_take(&b);
}

static bool is_there(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

/* Processes that sleep for this many seconds: a number that no other test uses. */
static int sleepers(const char *seconds)
{
    DIR *proc = opendir("/proc");
    struct dirent *e;
    int n = 0;
    while ((e = readdir(proc))) {
        char path[300], line[64] = "";
        snprintf(path, sizeof path, "/proc/%s/cmdline", e->d_name);
        int fd = open(path, O_RDONLY);
        ssize_t got = fd < 0 ? 0 : read(fd, line, sizeof line - 1);
        if (fd >= 0)
            close(fd);
        if (got > 6 && !strcmp(line, "sleep") && !strcmp(line + 6, seconds))
            n++;
    }
    closedir(proc);
    return n;
}

static void wait_for_no_sleepers(const char *seconds)
{
    for (int i = 0; sleepers(seconds) && i < 500; i++)
        usleep(10000);
    assert_int_equal(sleepers(seconds), 0);
}

/* ------------------------------------------------------------------ how jobs end */

static void a_job_is_kept_with_its_output_and_its_end(void **state)
{
    (void)state;
    set_up();
    start(command("echo out; echo err >&2; echo $SECRET; exit 3"));
    struct run_state s = wait_for(RUN_ENDED);
    assert_int_equal(s.phase, RUN_ENDED);
    assert_int_equal(s.code, 3);
    assert_string_equal(s.reason, "exit code 3");
    assert_false(s.stopped);
    OWN_MEM char *text = log_text();
    assert_non_null(strstr(text, " o 0 out\n"));
    assert_non_null(strstr(text, " e 0 err\n"));
    assert_non_null(strstr(text, " o 0 swordfish\n"));
}

static void a_command_that_is_not_there_is_named(void **state)
{
    (void)state;
    set_up();
    start(json_pack("{s:s, s:[s]}", "kind", "command", "command", "no-such-program"));
    struct run_state s = wait_for(RUN_ENDED);
    assert_int_equal(s.code, 127);
    assert_string_equal(s.reason, "command not found: no-such-program");
}

static void a_signal_is_named(void **state)
{
    (void)state;
    set_up();
    start(command("kill -SEGV $$"));
    struct run_state s = wait_for(RUN_ENDED);
    assert_int_equal(s.signal, SIGSEGV);
    assert_string_equal(s.reason, "killed by signal 11 (Segmentation fault)");
}

static void a_job_that_takes_too_long_is_ended(void **state)
{
    (void)state;
    set_up();
    json_t *spec = command("sleep 7101");
    json_object_set_new(spec, "time_limit_s", json_real(0.2));
    start(spec);
    struct run_state s = wait_for(RUN_ENDED);
    assert_string_equal(s.reason, "ran longer than its limit of 0.2 s");
    assert_int_equal(sleepers("7101"), 0);
}

static void a_job_that_writes_more_than_its_disk_is_ended_and_one_that_writes_less_is_not(void **state)
{
    (void)state;
    set_up();
    json_t *spec = command("while :; do head -c 1000000 /dev/zero >>f; done");
    json_object_set_new(spec, "resources", json_pack("{s:i}", "disk", 20 << 20));
    start(spec);
    struct run_state s = wait_for(RUN_ENDED);
    assert_int_equal(strncmp(s.reason, "killed: wrote more than its 20 MB of disk (", 43), 0);
    assert_false(s.stopped);
    assert_int_equal(s.signal, SIGKILL);
    set_up();
    spec = command("head -c 1000000 /dev/zero >f; sleep 0.2");
    json_object_set_new(spec, "resources", json_pack("{s:i}", "disk", 400 << 20));
    start(spec);
    assert_int_equal(wait_for(RUN_ENDED).code, 0);
}

static void a_job_whose_project_has_no_disk_left_is_ended_with_that_reason(void **state)
{
    (void)state;
    struct err err = { 0 };
    char path[128];
    set_up();
    start(command("sleep 60"));
    wait_for(RUN_RUNNING);
    snprintf(path, sizeof path, "%s/full", dir);
    assert_ok(files_write(path, "killed: none left", 17, &err));
    assert_string_equal(wait_for(RUN_ENDED).reason, "killed: none left");
}

static void a_job_that_needs_too_much_memory_is_told_so(void **state)
{
    (void)state;
    if (access("/sys/fs/cgroup/memory", W_OK) < 0 && access("/sys/fs/cgroup/cgroup.procs", W_OK) < 0)
        skip();
    set_up();
    json_t *spec = command("x=$(head -c 300000000 /dev/zero | tr '\\0' x); echo ${#x}");
    json_object_set_new(spec, "resources", json_pack("{s:i}", "memory", 64 << 20));
    start(spec);
    struct run_state s = wait_for(RUN_ENDED);
    assert_string_equal(s.reason, "killed: needed more than its 64 MB of memory");
}

static void what_a_job_leaves_behind_dies_with_it(void **state)
{
    (void)state;
    set_up();
    start(command("(setsid sleep 7102 >/dev/null 2>&1 &) ; setsid sleep 7102 & sleep 0.1; exit 0"));
    struct run_state s = wait_for(RUN_ENDED);
    assert_int_equal(s.code, 0);
    assert_int_equal(sleepers("7102"), 0);
}

/* ------------------------------------------------------------------ starting */

static void a_second_start_finds_the_first(void **state)
{
    (void)state;
    set_up();
    for (int i = 0; i < 5; i++)
        start(command("echo ran; sleep 0.2"));
    wait_for(RUN_ENDED);
    start(command("echo ran again"));
    OWN_MEM char *text = log_text();
    char *first = strstr(text, "ran\n");
    assert_non_null(first);
    assert_null(strstr(first + 1, "ran"));
}

static void a_start_that_was_cut_short_is_made_again(void **state)
{
    (void)state;
    char path[128];
    set_up();
    assert_int_equal(look().phase, RUN_NOT_STARTED);
    assert_int_equal(mkdir(dir, 0700), 0);
    assert_int_equal(look().phase, RUN_NOT_STARTED);
    snprintf(path, sizeof path, "%s/lock", dir);
    close(open(path, O_CREAT | O_RDWR, 0600));          /* the server died here */
    assert_int_equal(look().phase, RUN_NOT_STARTED);
    start(command("echo ran"));
    assert_int_equal(wait_for(RUN_ENDED).code, 0);
}

static int greps;
static int grep_secret(const char *path, const struct stat *st, int type, struct FTW *at)
{
    struct err err = { 0 };
    char *text = NULL;
    size_t n;
    (void)st, (void)at;
    if (type == FTW_F && !strstr(path, "/log.") && files_read(path, 1 << 20, &text, &n, &err) == 0)
        greps += memmem(text, n, "swordfish", 9) != NULL;
    free(text);
    return 0;
}

static void secrets_are_in_no_file_and_on_no_command_line(void **state)
{
    (void)state;
    char path[64];
    set_up();
    start(command("test ${#SECRET} = 9 && sleep 7103"));
    struct run_state s = wait_for(RUN_RUNNING);
    assert_int_equal(s.phase, RUN_RUNNING);
    greps = 0;
    nftw(dir, grep_secret, 8, FTW_PHYS);
    assert_int_equal(greps, 0);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "/proc/%d/%s", s.keeper, i ? "cmdline" : "environ");
        struct err err = { 0 };
        OWN_MEM char *text = NULL;
        size_t n = 0;
        if (files_read(path, 1 << 20, &text, &n, &err) == 0)
            assert_null(memmem(text, n, "swordfish", 9));
    }
    struct err err = { 0 };
    assert_ok(driver_local.stop(dir, 0, &err));
    wait_for(RUN_ENDED);
}

/* ------------------------------------------------------------------ dying and stopping */

static void a_killed_keeper_takes_its_job_with_it(void **state)
{
    (void)state;
    struct err err = { 0 };
    set_up();
    start(command("(setsid sleep 7104 &); sleep 7104"));
    struct run_state s = wait_for(RUN_RUNNING);
    usleep(50000);
    assert_true(sleepers("7104") > 0);
    kill(s.keeper, SIGKILL);
    assert_int_equal(wait_for(RUN_LOST).phase, RUN_LOST);
    wait_for_no_sleepers("7104");
    /* It is not run a second time by mistake. */
    OWN_JSON json_t *spec = command("echo again");
    const struct order o = { .dir = dir, .data_dir = data, .spec = spec };
    assert_fails(driver_local.start(&o, &err), ERR_CONFLICT);
}

static void a_stop_ends_the_whole_tree(void **state)
{
    (void)state;
    struct err err = { 0 };
    set_up();
    start(command("trap 'echo asked; exit 0' TERM; (setsid sleep 7105 &); (trap '' TERM; sleep 7105) & "
                  "while :; do sleep 0.05; done"));
    wait_for(RUN_RUNNING);
    usleep(100000);
    assert_ok(driver_local.stop(dir, 5000, &err));
    struct run_state s = wait_for(RUN_ENDED);
    assert_true(s.stopped);
    assert_string_equal(s.reason, "stopped on request");
    assert_int_equal(sleepers("7105"), 0);
    OWN_MEM char *text = log_text();
    assert_non_null(strstr(text, " o 0 asked\n"));
    assert_ok(driver_local.stop(dir, 5000, &err));      /* twice is fine */
}

static void a_job_that_does_not_listen_is_killed_when_its_time_is_up(void **state)
{
    (void)state;
    struct err err = { 0 };
    set_up();
    start(command("trap '' TERM; while :; do sleep 0.05; done"));
    wait_for(RUN_RUNNING);
    usleep(100000);
    double t = clock_seconds();
    assert_ok(driver_local.stop(dir, 300, &err));
    assert_true(wait_for(RUN_ENDED).stopped);
    assert_true(clock_seconds() - t >= 0.29);
}

static void a_stop_before_the_start_holds(void **state)
{
    (void)state;
    struct err err = { 0 };
    char none[160];
    set_up();
    snprintf(none, sizeof none, "%s/of a job/that never began", dir);
    assert_ok(driver_local.stop(none, 0, &err));
    assert_ok(driver_local.stop(dir, 0, &err));
    assert_int_equal(look().phase, RUN_NOT_STARTED);
    start(command("echo ran"));
    struct run_state s = wait_for(RUN_ENDED);
    assert_true(s.stopped);
    OWN_MEM char *text = log_text();
    assert_null(strstr(text, "ran\n"));
}

static void a_stop_at_any_moment_of_the_start_ends_it(void **state)
{
    (void)state;
    struct err err = { 0 };
    for (int delay_us = 0; delay_us < 20000; delay_us = delay_us * 3 / 2 + 200) {
        set_up();
        start(command("sleep 7106"));
        usleep((useconds_t)delay_us);
        assert_ok(driver_local.stop(dir, 2000, &err));
        assert_true(wait_for(RUN_ENDED).stopped);
    }
    assert_int_equal(sleepers("7106"), 0);
}

/* ------------------------------------------------------------------ what a job left */

static void a_link_in_the_work_directory_leads_nowhere(void **state)
{
    (void)state;
    struct err err = { 0 };
    char work[128];
    int fd;
    set_up();
    start(command("ln -s /etc/hostname a; ln -s / d; mkfifo f; mkdir s; echo x >s/plain; "
                  "ln -s ../../1/order.json s/b"));
    wait_for(RUN_ENDED);
    assert_true(is_there("work/s/plain"));
    snprintf(work, sizeof work, "%s/work", dir);
    static const char *const bad[] = { "a", "d/etc/hostname", "f", "s/b", "../order.json", "/etc/hostname",
                                       "s" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_fails(driver_open_below(work, bad[i], &fd, &err), ERR_DENIED);
    assert_fails(driver_open_below(work, "none", &fd, &err), ERR_MISSING);
    assert_ok(driver_open_below(work, "s/plain", &fd, &err));
    close(fd);
    nftw(data, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

CHECK_MAIN(a_job_is_kept_with_its_output_and_its_end, a_command_that_is_not_there_is_named,
           a_signal_is_named, a_job_that_takes_too_long_is_ended,
           a_job_that_writes_more_than_its_disk_is_ended_and_one_that_writes_less_is_not,
           a_job_whose_project_has_no_disk_left_is_ended_with_that_reason,
           a_job_that_needs_too_much_memory_is_told_so, what_a_job_leaves_behind_dies_with_it,
           a_second_start_finds_the_first, a_start_that_was_cut_short_is_made_again,
           secrets_are_in_no_file_and_on_no_command_line, a_killed_keeper_takes_its_job_with_it,
           a_stop_ends_the_whole_tree, a_job_that_does_not_listen_is_killed_when_its_time_is_up,
           a_stop_before_the_start_holds, a_stop_at_any_moment_of_the_start_ends_it,
           a_link_in_the_work_directory_leads_nowhere)
