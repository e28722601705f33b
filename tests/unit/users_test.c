/* tests/unit/users_test.c - a user of its own for each job */
#include "drivers/users.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/check.h"

/* Numbers of these tests alone. */
static const struct users_range few = { 1999000001, 1999000003 };

static void numbers_are_given_in_turn_and_the_first_follows_the_last(void **state)
{
    (void)state;
    assert_int_equal(users_nth(&few, 0), few.first);
    assert_int_equal(users_nth(&few, 2), few.last);
    assert_int_equal(users_nth(&few, 3), few.first);
    const struct users_range all = USERS_DEFAULT;
    assert_int_equal(users_nth(&all, (uint64_t)1 << 28), all.first);
}

static void a_range_with_numbers_of_others_is_refused(void **state)
{
    (void)state;
    struct err err = { 0 };
    const struct users_range wrong[] = { { 0, 10 }, { 10, 9 }, { 65534, 65534 }, { 1, 70000 },
                                         { 4000000000u, 4294967295u } };
    const struct users_range right = USERS_DEFAULT;

    assert_ok(users_check(&right, &err));
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_fails(users_check(&wrong[i], &err), ERR_INVALID);
}

static void two_never_hold_the_same_number(void **state)
{
    (void)state;
    struct err err = { 0 };
    int one = -1, other = -1, fds[3];
    uid_t users[3];

    if (geteuid() != 0)
        skip();
    assert_ok(users_hold(few.first, &one, &err));
    assert_true(users_taken(few.first));
    assert_false(users_taken(few.last));
    assert_fails(users_hold(few.first, &other, &err), ERR_AGAIN);
    close(one);
    assert_false(users_taken(few.first));
    for (int i = 0; i < 3; i++)
        assert_ok(users_pick(&few, &users[i], &fds[i], &err));
    assert_true(users[0] != users[1] && users[1] != users[2] && users[0] != users[2]);
    assert_fails(users_pick(&few, &users[0], &one, &err), ERR_AGAIN);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
}

static void a_reserved_number_may_be_held_by_its_job_and_by_no_other_server(void **state)
{
    (void)state;
    struct err err = { 0 };
    int reserved = -1, other = -1, held = -1;

    if (geteuid() != 0)
        skip();
    assert_ok(users_reserve(few.first, &reserved, &err));
    assert_fails(users_reserve(few.first, &other, &err), ERR_AGAIN);
    assert_ok(users_hold(few.first, &held, &err));      /* its keeper */
    close(reserved);            /* the server was killed */
    assert_fails(users_reserve(few.first, &other, &err), ERR_AGAIN);
    close(held);
    assert_ok(users_reserve(few.first, &other, &err));
    close(other);
}

static void a_number_is_held_until_the_last_process_that_has_it_is_dead(void **state)
{
    (void)state;
    struct err err = { 0 };
    int fd = -1, ready[2];
    char c;

    if (geteuid() != 0)
        skip();
    assert_int_equal(pipe(ready), 0);
    assert_ok(users_hold(few.first, &fd, &err));
    pid_t pid = fork();
    if (pid == 0) {
        close(ready[1]);
        _exit(read(ready[0], &c, 1) != 0);      /* until the test lets go */
    }
    close(fd);                  /* a keeper that was killed: its init lives on */
    assert_true(users_taken(few.first));
    close(ready[1]);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_false(users_taken(few.first));
    close(ready[0]);
}

static void a_file_of_nobodys_is_the_jobs_own_in_a_mapped_mount(void **state)
{
    (void)state;
    struct err err = { 0 };
    char dir[] = "/tmp/muster-users-XXXXXX";
    struct stat st;
    int ns = -1;

    if (geteuid() != 0)
        skip();
    assert_non_null(mkdtemp(dir));
    assert_int_equal(chown(dir, 65534, 65534), 0);
    if (users_namespace(few.last, &ns, &err) < 0 || !users_fits(dir, ns)) {
        rmdir(dir);
        skip();
    }
    int fd = open(dir, O_PATH), tree = users_mount(fd, ns, 0);
    assert_true(tree >= 0);
    assert_int_equal(fstat(tree, &st), 0);
    assert_int_equal(st.st_uid, few.last);
    assert_int_equal(st.st_gid, few.last);
    assert_int_equal(mkdirat(tree, "roots", 0755), 0);
    assert_int_equal(fstatat(tree, "roots", &st, 0), 0);
    assert_int_equal(st.st_uid, 0);     /* the others are themselves */
    unlinkat(tree, "roots", AT_REMOVEDIR);
    close(tree);
    close(fd);
    close(ns);
    rmdir(dir);
}

CHECK_MAIN(numbers_are_given_in_turn_and_the_first_follows_the_last,
           a_range_with_numbers_of_others_is_refused, two_never_hold_the_same_number,
           a_reserved_number_may_be_held_by_its_job_and_by_no_other_server,
           a_number_is_held_until_the_last_process_that_has_it_is_dead,
           a_file_of_nobodys_is_the_jobs_own_in_a_mapped_mount)
