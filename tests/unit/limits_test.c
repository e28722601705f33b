/* tests/unit/limits_test.c - groups of version 2 are made where they were handed to the server
 *
 * Over a folder that looks like the kernel's: a machine whose controllers are all of version 1 has
 * no other. What the kernel would add to a new group is not in it.
 */
#include "drivers/limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"
#include "base/tree.h"
#include "tests/check.h"

static char top[] = "/tmp/muster-limits-XXXXXX";
static char tree[64], self[64];

static void put(const char *name, const char *text)
{
    struct err err = { 0 };
    char path[300];
    snprintf(path, sizeof path, "%s/%s", tree, name);
    char *slash = strrchr(path, '/');
    *slash = '\0';
    assert_ok(files_mkdir(path, &err));
    *slash = '/';
    assert_ok(files_write(path, text, strlen(text), &err));
}

static bool is_there(const char *name)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", tree, name);
    return access(path, F_OK) == 0;
}

/* The server is in app.slice/muster.service. */
static void set_up(void)
{
    struct err err = { 0 };

    if (strstr(top, "XXXXXX"))
        assert_non_null(mkdtemp(top));
    snprintf(tree, sizeof tree, "%s/groups", top);
    snprintf(self, sizeof self, "%s/self", top);
    tree_remove(tree, &err);
    put("cgroup.controllers", "cpu memory pids\n");
    put("../self", "0::/app.slice/muster.service\n");
    put("app.slice/muster.service/cgroup.procs", "");
    limits_set_tree(tree, self);
}

/* Words that the code writes there land on the dots. */
#define HANDED_DOWN "........ cpu memory pids\n"

static void a_group_is_made_beside_that_of_a_server_to_whom_the_parent_belongs(void **state)
{
    (void)state;
    struct err err = { 0 };
    const struct limits l = { .memory = 1 << 20, .cpu = 1, .pids = 10 };
    struct limits_group *g = NULL;

    set_up();
    put("app.slice/cgroup.subtree_control", HANDED_DOWN);
    put("app.slice/cgroup.procs", "");
    assert_ok(limits_open("muster-1-1-1", &l, &g, &err));
    assert_true(limits_cgroup(g) >= 0);
    assert_true(is_there("app.slice/muster-1-1-1"));
    limits_free(g);
    assert_false(is_there("app.slice/muster-1-1-1"));
}

static void a_group_is_made_inside_where_the_servers_own_hands_controllers_down(void **state)
{
    (void)state;
    struct err err = { 0 };
    const struct limits l = { .memory = 1 << 20 };
    struct limits_group *g = NULL;

    set_up();
    put("app.slice/muster.service/cgroup.subtree_control", HANDED_DOWN);
    assert_ok(limits_open("muster-1-1-1", &l, &g, &err));
    assert_true(is_there("app.slice/muster.service/muster-1-1-1"));
    limits_free(g);
}

static void without_a_group_of_its_own_a_server_has_rlimits(void **state)
{
    (void)state;
    struct err err = { 0 };
    const struct limits l = { .memory = 1 << 20 };
    struct limits_group *g = NULL;
    struct limits_kept kept;

    set_up();
    assert_ok(limits_open("muster-1-1-1", &l, &g, &err));
    assert_int_equal(limits_cgroup(g), -1);
    limits_free(g);
    limits_try(&kept);
    assert_false(kept.memory || kept.cpu || kept.pids);
}

static void controllers_without_the_right_to_move_processes_are_of_no_use(void **state)
{
    (void)state;
    struct err err = { 0 };
    const struct limits l = { .memory = 1 << 20 };
    struct limits_group *g = NULL;

    set_up();
    put("app.slice/cgroup.subtree_control", HANDED_DOWN);       /* but no cgroup.procs to write */
    assert_ok(limits_open("muster-1-1-1", &l, &g, &err));
    assert_int_equal(limits_cgroup(g), -1);
    assert_false(is_there("app.slice/muster-1-1-1"));
    limits_free(g);
}

static void a_server_leaves_its_group_alone_that_others_are_in_too(void **state)
{
    (void)state;
    char text[64];

    set_up();
    snprintf(text, sizeof text, "%d\n%d\n", (int)getpid(), (int)getppid());
    put("app.slice/muster.service/cgroup.procs", text);
    put("app.slice/muster.service/cgroup.subtree_control", "");
    limits_delegate();
    assert_false(is_there("app.slice/muster.service/server"));
}

static void a_server_that_is_alone_in_its_group_moves_below_and_back_if_that_is_no_use(void **state)
{
    (void)state;
    struct err err = { 0 };
    char text[64], path[300], *now = NULL;
    size_t n;

    set_up();
    snprintf(text, sizeof text, "%d\n", (int)getpid());
    put("app.slice/muster.service/cgroup.procs", text);
    put("app.slice/muster.service/cgroup.subtree_control", "");
    put("app.slice/muster.service/server/cgroup.procs", "");
    limits_delegate();
    snprintf(path, sizeof path, "%s/app.slice/muster.service/server/cgroup.procs", tree);
    assert_ok(files_read(path, 100, &now, &n, &err));
    assert_string_equal(now, "0");      /* "the one who writes" */
    free(now);
    snprintf(path, sizeof path, "%s/app.slice/muster.service/cgroup.procs", tree);
    assert_ok(files_read(path, 100, &now, &n, &err));
    assert_int_equal(now[0], '0');      /* these files hand nothing down: it went back */
    free(now);
}

static void all_is_removed(void **state)
{
    (void)state;
    struct err err = { 0 };
    assert_ok(tree_remove(top, &err));
}

CHECK_MAIN(a_group_is_made_beside_that_of_a_server_to_whom_the_parent_belongs,
           a_group_is_made_inside_where_the_servers_own_hands_controllers_down,
           without_a_group_of_its_own_a_server_has_rlimits,
           controllers_without_the_right_to_move_processes_are_of_no_use,
           a_server_leaves_its_group_alone_that_others_are_in_too,
           a_server_that_is_alone_in_its_group_moves_below_and_back_if_that_is_no_use,
           all_is_removed)
