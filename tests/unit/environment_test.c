/* tests/unit/environment_test.c - environments go when nobody has used them for long, never before */
#include "drivers/environment.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/files.h"
#include "base/own.h"
#include "base/tree.h"
#include "tests/check.h"

static char data[] = "/tmp/muster-envs-XXXXXX";

static const char *path_of(char letter, const char *end)
{
    static char path[256];
    char key[65];
    memset(key, letter, 64);
    key[64] = '\0';
    snprintf(path, sizeof path, "%s/envs/%s%s", data, key, end);
    return path;
}

static bool is_there(char letter, const char *end)
{
    return access(path_of(letter, end), F_OK) == 0;
}

static void table(const char *text)
{
    struct err err = { 0 };
    char path[64];
    snprintf(path, sizeof path, "%s/runtimes.yaml", data);
    assert_ok(files_write(path, text, strlen(text), &err));
}

/* A layer of some 64 kB that was last used so many days ago. */
static void make(char letter, int days, const char *end)
{
    struct err err = { 0 };
    static const char bytes[65536] = { 1 };
    char file[300];
    const struct timespec then[2] = { { .tv_sec = time(NULL) - days * 86400L },
                                      { .tv_sec = time(NULL) - days * 86400L } };
    if (strstr(data, "XXXXXX"))
        assert_non_null(mkdtemp(data));
    snprintf(file, sizeof file, "%s/site", path_of(letter, end));
    assert_ok(files_mkdir(file, &err));
    snprintf(file, sizeof file, "%s/site/a.py", path_of(letter, end));
    assert_ok(files_write(file, bytes, sizeof bytes, &err));
    utimensat(AT_FDCWD, path_of(letter, end), then, 0);
}

static int collect(void)
{
    struct err err = { 0 };
    int removed = -1;
    assert_ok(environment_collect(data, &removed, &err));
    return removed;
}

/* A keeper that uses it, until it is killed. */
static pid_t use(char letter)
{
    int fds[2];
    char byte;
    assert_int_equal(pipe(fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct err err;
        byte = environment_hold(path_of(letter, ""), &err) == 0;
        if (write(fds[1], &byte, 1) == 1)
            pause();
        _exit(1);
    }
    assert_int_equal(read(fds[0], &byte, 1), 1);
    assert_int_equal(byte, 1);
    close(fds[0]);
    close(fds[1]);
    return pid;
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void one_that_nobody_has_used_for_long_goes(void **state)
{
    (void)state;
    make('a', 40, "");
    make('b', 20, "");
    assert_int_equal(collect(), 1);             /* 30 days, by default */
    assert_false(is_there('a', ""));
    assert_true(is_there('b', ""));
    table("environments: {days: 10}\n");
    assert_int_equal(collect(), 1);
    assert_false(is_there('b', ""));
    assert_false(is_there('b', ".use"));
}

static void one_in_use_stays_however_old(void **state)
{
    (void)state;
    make('c', 400, "");
    pid_t user = use('c'), other = use('c');
    table("environments: {days: 1, size: 1}\n");
    assert_int_equal(collect(), 0);
    end(user);
    assert_int_equal(collect(), 0);
    assert_true(is_there('c', ""));
    end(other);
    table("environments: {days: 1, size: 0}\n");
    assert_int_equal(collect(), 0);             /* used just now */
    table("environments: {days: 0, size: 1}\n");
    assert_int_equal(collect(), 1);
    assert_false(is_there('c', ""));
}

static void those_used_longest_ago_go_first_when_there_is_no_room(void **state)
{
    (void)state;
    make('d', 3, "");
    make('e', 1, "");
    make('f', 2, "");
    table("environments: {days: 0, size: 200Ki}\n");
    assert_int_equal(collect(), 1);
    assert_false(is_there('d', ""));
    table("environments: {days: 0, size: 100Ki}\n");
    assert_int_equal(collect(), 1);
    assert_false(is_there('f', ""));
    assert_true(is_there('e', ""));
    table("environments: {days: 0, size: 0}\n");
    assert_int_equal(collect(), 0);
    table("environments: {days: 0, size: 1}\n");
    assert_int_equal(collect(), 1);
}

static void what_the_killed_left_goes_too(void **state)
{
    (void)state;
    make('1', 0, ".gone");
    make('2', 0, ".tmp");
    make('3', 0, ".tmp");
    int builder = environment_lock(path_of('3', ".lock"), LOCK_EX | LOCK_NB);
    assert_true(builder >= 0);
    assert_int_equal(collect(), 0);
    assert_false(is_there('1', ".gone"));
    assert_false(is_there('2', ".tmp"));
    assert_true(is_there('3', ".tmp"));         /* is being built */
    close(builder);
    collect();
    assert_false(is_there('3', ".tmp"));
}

static void a_check_counts_them_and_finds_a_damaged_one(void **state)
{
    (void)state;
    struct err err = { 0 };
    int n;
    double bytes;
    make('4', 0, "");
    assert_ok(environment_check(data, &n, &bytes, &err));
    assert_int_equal(n, 1);
    assert_true(bytes >= 65536);
    assert_int_equal(mkdir(path_of('5', ""), 0700), 0);
    assert_fails(environment_check(data, &n, &bytes, &err), ERR_IO);
    assert_non_null(strstr(err.text, "envs/5555"));
}

static void a_wrong_setting_is_told(void **state)
{
    (void)state;
    struct err err = { 0 };
    int removed;
    table("environments: {days: soon}\n");
    assert_fails(environment_collect(data, &removed, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "runtimes.yaml:1: days: takes a number"));
    assert_ok(tree_remove(data, &err));
}

CHECK_MAIN(one_that_nobody_has_used_for_long_goes, one_in_use_stays_however_old,
           those_used_longest_ago_go_first_when_there_is_no_room, what_the_killed_left_goes_too,
           a_check_counts_them_and_finds_a_damaged_one, a_wrong_setting_is_told)
