/* tests/unit/gpus_test.c - which graphics processors there are, and who has them */
#include "drivers/gpus.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files.h"
#include "tests/check.h"

static char root[64], data[64];

static void set_up(void)
{
    snprintf(root, sizeof root, "/tmp/muster-gpus-XXXXXX");
    snprintf(data, sizeof data, "/tmp/muster-gpus-XXXXXX");
    assert_non_null(mkdtemp(root));
    assert_non_null(mkdtemp(data));
}

static void put(const char *name, const char *text)
{
    struct err err = { 0 };
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", root, name);
    *strrchr(path, '/') = '\0';
    assert_ok(files_mkdir(path, &err));
    path[strlen(path)] = '/';
    assert_ok(files_write(path, text, strlen(text), &err));
}

static void put_gpu(const char *bus, int minor, const char *uuid)
{
    char name[128], text[256];
    snprintf(name, sizeof name, "proc/driver/nvidia/gpus/%s/information", bus);
    snprintf(text, sizeof text, "Model: \t\t NVIDIA H200\nIRQ:   \t\t 61\nGPU UUID: \t %s\n"
             "Device Minor: \t %d\nGPU Excluded:\t No\n", uuid, minor);
    put(name, text);
}

static void those_that_have_a_node_count_in_the_order_of_the_bus(void **state)
{
    (void)state;
    struct gpus all;
    set_up();
    gpus_list(root, &all);
    assert_int_equal(all.n, 0);
    put_gpu("0000:b1:00.0", 0, "GPU-b");
    put_gpu("0000:17:00.0", 3, "GPU-a");
    put_gpu("0000:ca:00.0", 1, "GPU-without-node");
    put("proc/driver/nvidia/gpus/0000:cb:00.0/information", "Model: \t\t none says which\n");
    put("dev/nvidia0", "");
    put("dev/nvidia3", "");
    gpus_list(root, &all);
    assert_int_equal(all.n, 2);
    assert_int_equal(all.at[0].minor, 3);
    assert_string_equal(all.at[0].uuid, "GPU-a");
    assert_string_equal(all.at[1].bus, "0000:b1:00.0");
}

static void nodes_count_where_the_driver_lists_nothing(void **state)
{
    (void)state;
    struct gpus all;
    set_up();
    put("dev/nvidiactl", "");
    put("dev/nvidia2", "");
    gpus_list(root, &all);
    assert_int_equal(all.n, 1);
    assert_int_equal(all.at[0].minor, 2);
    assert_string_equal(all.at[0].uuid, "");
}

static void no_two_have_the_same_one(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct gpus a, b, c;
    set_up();
    for (int i = 0; i < 3; i++) {
        char node[32];
        snprintf(node, sizeof node, "dev/nvidia%d", i);
        put(node, "");
    }
    assert_ok(gpus_take(root, data, 2, &a, &err));
    assert_int_equal(a.at[0].minor + a.at[1].minor, 1);
    assert_fails(gpus_take(root, data, 2, &b, &err), ERR_AGAIN);
    assert_string_equal(err.text, "it asks for 2 GPUs, and 1 of 3 is free now");
    assert_ok(gpus_take(root, data, 1, &b, &err));      /* the one that was free still is */
    assert_int_equal(b.at[0].minor, 2);
    assert_int_equal(b.index[0], 2);
    gpus_release(&a);
    gpus_release(&a);
    assert_ok(gpus_take(root, data, 2, &c, &err));
    gpus_release(&b);
    gpus_release(&c);
}

static void a_job_needs_its_own_nodes_and_those_of_the_driver(void **state)
{
    (void)state;
    struct gpus g = { .n = 1, .at = { { .minor = 7 } } }, none = { 0 };
    assert_string_equal(gpus_node(&g, 0), "/dev/nvidia7");
    assert_string_equal(gpus_node(&g, 1), "/dev/nvidiactl");
    assert_string_equal(gpus_node(&g, 3), "/dev/nvidia-uvm-tools");
    assert_null(gpus_node(&g, 4));
    assert_null(gpus_node(&none, 0));
    assert_null(gpus_node(NULL, 0));
}

CHECK_MAIN(those_that_have_a_node_count_in_the_order_of_the_bus,
           nodes_count_where_the_driver_lists_nothing, no_two_have_the_same_one,
           a_job_needs_its_own_nodes_and_those_of_the_driver)
