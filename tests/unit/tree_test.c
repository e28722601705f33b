/* tests/unit/tree_test.c - trees that are removed, whatever was done to them */
#include "base/tree.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/check.h"

enum { NOBODY = 65534 };

/* Removal starts in a directory that a test may leave what must stay in. */
static char dir[PATH_MAX];

static void enter(void)
{
    struct err err = { 0 };
    assert_ok(tree_scratch("muster-tree", dir, sizeof dir, &err));
    assert_int_equal(chdir(dir), 0);
}

static void leave(void)
{
    struct err err = { 0 };
    assert_int_equal(chdir("/"), 0);
    assert_ok(tree_remove(dir, &err));
    assert_int_equal(access(dir, F_OK), -1);
}

static void put(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    close(fd);
}

static void a_tree_goes_with_its_links_and_not_what_they_name(void **state)
{
    (void)state;
    struct err err = { 0 };

    enter();
    assert_int_equal(mkdir("kept", 0700), 0);
    put("kept/file");
    assert_int_equal(mkdir("tree", 0700), 0);
    assert_int_equal(mkdir("tree/in", 0700), 0);
    put("tree/in/file");
    put("tree/.hidden");
    assert_int_equal(mkfifo("tree/pipe", 0600), 0);
    assert_int_equal(symlink("../kept", "tree/link"), 0);
    assert_int_equal(symlink("../../kept", "tree/in/link"), 0);
    assert_int_equal(symlink("/nowhere", "tree/dangling"), 0);
    assert_ok(tree_remove("tree", &err));
    assert_int_equal(access("tree", F_OK), -1);
    assert_int_equal(access("kept/file", F_OK), 0);

    assert_int_equal(symlink("kept", "link"), 0);
    assert_ok(tree_remove("link", &err));
    assert_int_equal(access("link", F_OK), -1);
    assert_int_equal(access("kept/file", F_OK), 0);
    assert_ok(tree_remove("kept/file", &err));
    assert_ok(tree_remove("never/was", &err));
    leave();
}

static void a_tree_deeper_than_descriptors_and_paths_go_is_removed(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct rlimit was, few;

    enter();
    for (int i = 0; i < 1100; i++) {
        put("file");
        assert_int_equal(mkdir("abc", 0700), 0);
        assert_int_equal(chdir("abc"), 0);
    }
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    few = was;
    few.rlim_cur = 64;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_int_equal(chdir("/"), 0);
    assert_ok(tree_remove(dir, &err));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    assert_int_equal(access(dir, F_OK), -1);
}

static void directories_that_their_owner_closed_are_opened(void **state)
{
    (void)state;
    struct err err = { 0 };
    uid_t was = geteuid();

    enter();
    if (was == 0)               /* whom no mode keeps out */
        assert_true(chown(dir, NOBODY, NOBODY) == 0 && seteuid(NOBODY) == 0);
    assert_int_equal(mkdir("tree", 0700), 0);
    assert_int_equal(mkdir("tree/closed", 0700), 0);
    put("tree/closed/file");
    assert_int_equal(chmod("tree/closed", 0), 0);
    assert_int_equal(mkdir("tree/fixed", 0700), 0);
    put("tree/fixed/file");
    assert_int_equal(chmod("tree/fixed", 0500), 0);
    assert_int_equal(chmod("tree", 0500), 0);
    assert_ok(tree_remove("tree", &err));
    assert_int_equal(seteuid(was), 0);
    assert_int_equal(access("tree", F_OK), -1);
    leave();
}

static void what_stays_is_told_and_the_rest_goes(void **state)
{
    (void)state;
    struct err err = { 0 };

    if (geteuid() != 0)
        skip();
    enter();
    assert_int_equal(chmod(dir, 0755), 0);
    assert_int_equal(mkdir("tree", 0777), 0);
    assert_int_equal(chmod("tree", 0777), 0);
    put("tree/file");
    assert_int_equal(mkdir("tree/mine", 0700), 0);
    put("tree/mine/file");
    assert_int_equal(seteuid(NOBODY), 0);
    assert_fails(tree_remove("tree", &err), ERR_IO);
    assert_int_equal(seteuid(0), 0);
    assert_string_equal(err.text, "cannot remove tree: Operation not permitted");
    assert_int_equal(access("tree/file", F_OK), -1);
    assert_int_equal(access("tree/mine/file", F_OK), 0);
    leave();
}

static void a_link_that_takes_a_directorys_place_meanwhile_is_not_followed(void **state)
{
    (void)state;
    struct err err = { 0 };

    enter();
    assert_int_equal(mkdir("kept", 0700), 0);
    put("kept/file");
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (child == 0)
        renameat2(AT_FDCWD, "tree/a", AT_FDCWD, "tree/b", RENAME_EXCHANGE);
    for (int i = 0; i < 100; i++) {
        mkdir("tree", 0700);
        mkdir("tree/a", 0700);
        put("tree/a/file");
        if (symlink("../kept", "tree/b") < 0 && access("tree/b", F_OK) < 0)
            fail_msg("tree/b: %s", strerror(errno));
        tree_remove("tree", &err);      /* what the other one kept from it is the next round's */
        if (access("kept/file", F_OK) < 0)
            break;
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_int_equal(access("kept/file", F_OK), 0);
    leave();
}

static void a_tree_takes_what_its_files_take_once_each(void **state)
{
    (void)state;
    static char bytes[1 << 20];
    bool whole = false;

    enter();
    assert_int_equal(mkdir("tree", 0700), 0);
    assert_int_equal(mkdir("tree/a", 0700), 0);
    int64_t empty = tree_bytes("tree", &whole);
    assert_true(whole && empty < 64 << 10);
    memset(bytes, 7, sizeof bytes);
    int fd = open("tree/a/file", O_CREAT | O_WRONLY, 0600);
    assert_int_equal(write(fd, bytes, sizeof bytes), sizeof bytes);
    fsync(fd);
    close(fd);
    int64_t one = tree_bytes("tree", &whole) - empty;
    assert_true(one >= 1 << 20 && one < (1 << 20) + (64 << 10));
    assert_int_equal(link("tree/a/file", "tree/twin"), 0);
    assert_int_equal(symlink("/", "tree/out"), 0);
    fd = open("tree/holes", O_CREAT | O_WRONLY, 0600);
    assert_int_equal(ftruncate(fd, 1LL << 40), 0);
    close(fd);
    int64_t more = tree_bytes("tree", &whole) - empty;
    assert_true(whole && more >= one && more < one + (64 << 10));
    assert_int_equal(tree_bytes("missing", &whole), 0);
    assert_true(whole);
    leave();
}

CHECK_MAIN(a_tree_goes_with_its_links_and_not_what_they_name,
           a_tree_deeper_than_descriptors_and_paths_go_is_removed,
           directories_that_their_owner_closed_are_opened, what_stays_is_told_and_the_rest_goes,
           a_link_that_takes_a_directorys_place_meanwhile_is_not_followed,
           a_tree_takes_what_its_files_take_once_each)
