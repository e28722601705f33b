/* tests/unit/runtimes_test.c - the table of runtimes, images and scale tiers that a user may edit */
#include "drivers/runtimes.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/files.h"
#include "base/json.h"
#include "base/own.h"
#include "drivers/limits.h"
#include "tests/check.h"

static char data[] = "/tmp/muster-runtimes-XXXXXX";
static char path[64];

static void put(const char *text)
{
    struct err err = { 0 };
    if (strstr(data, "XXXXXX"))
        assert_non_null(mkdtemp(data));
    snprintf(path, sizeof path, "%s/runtimes.yaml", data);
    unlink(path);
    if (text)
        assert_ok(files_write(path, text, strlen(text), &err));
}

static double tier(const char *name, const char *key)
{
    struct err err = { 0 };
    OWN_JSON json_t *tiers = NULL;
    assert_ok(runtimes_tiers(data, &tiers, &err));
    const json_t *row = json_object_get(tiers, name);
    return row ? number_of(row, key) : -1;
}

static struct runtime_image image(const char *name)
{
    struct err err = { 0 };
    struct runtime_image row;
    assert_ok(runtimes_image(data, name, &row, &err));
    return row;
}

static void the_table_is_written_with_its_defaults(void **state)
{
    (void)state;
    put(NULL);
    assert_int_equal(tier("BASIC", "workers"), 1);
    assert_int_equal(tier("STANDARD_1", "workers"), 5);
    assert_int_equal(tier("PREMIUM_1", "workers"), 20);
    assert_int_equal(tier("BASIC_GPU", "gpu"), 1);
    assert_int_equal(tier("CUSTOM", "workers"), 0);
    assert_true(tier("BASIC_TPU", "workers") == -1);
    assert_int_equal(access(path, F_OK), 0);
    struct runtime_image row = image("gcr.io/cloud-ml-public/training/pytorch-cpu.1-4");
    assert_true(row.has_row && !row.pull && !row.never && !row.own_user);
    assert_false(image("mine:1").has_row);
}

static void a_table_without_tiers_has_the_default_ones(void **state)
{
    (void)state;
    put("runtimes: {}\nimages: {}\n");
    assert_int_equal(tier("STANDARD_1", "workers"), 5);
}

static void tiers_are_edited(void **state)
{
    (void)state;
    put("tiers:\n  BASIC: {workers: 2, cpu: 0.5, memory: 2Gi}\n  OURS:\n");
    assert_int_equal(tier("BASIC", "workers"), 2);
    assert_int_equal(1000 * tier("BASIC", "cpu"), 500);
    assert_true(tier("BASIC", "memory") == 2147483648.0);
    assert_int_equal(tier("OURS", "workers"), 0);
    assert_true(tier("STANDARD_1", "workers") == -1);
}

static void a_wrong_tier_is_told_with_its_line(void **state)
{
    (void)state;
    static const struct { const char *text, *said; } cases[] = {
        { "tiers:\n  A: {workers: many}\n", ":2: workers: takes a number from 1 to 1000" },
        { "tiers:\n  A: {workers: 0}\n", ":2: workers: takes a number from 1 to 1000" },
        { "tiers:\n  A: {cores: 3}\n", ":2: \"cores\": a tier has workers, cpu, memory and gpu" },
        { "tiers:\n  A: [3]\n", ":2: a tier is a map" },
        { "tiers: 3\n", ":1: tiers: takes a map" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err = { 0 };
        OWN_JSON json_t *tiers = NULL;
        put(cases[i].text);
        assert_fails(runtimes_tiers(data, &tiers, &err), ERR_INVALID);
        if (!strstr(err.text, cases[i].said))
            fail_msg("%s: %s", cases[i].text, err.text);
    }
}

static void a_key_that_nobody_reads_is_told_with_its_line(void **state)
{
    (void)state;
    static const struct { const char *text, *said; } cases[] = {
        { "runtimes: {}\nimage: {}\n",
          ":2: \"image\": the table has no such key; did you mean \"images\"?" },
        { "runtimes:\n  '1.15':\n    pyhton: python3.9\n",
          ":3: \"pyhton\": a runtime has no such key; did you mean \"python\"?" },
        { "runtimes:\n  '1.15': {pull: true}\n", ":2: \"pull\": a runtime has no such key" },
        { "images:\n  a: {requirement: [torch]}\n", "did you mean \"requirements\"?" },
        { "images:\n  a: {requirements: torch}\n", ":2: requirements: takes a list of texts" },
        { "images:\n  a: {requirements: [{torch: 1}]}\n",
          ":2: requirements: takes a list of texts" },
        { "images:\n  a: {pull: yes}\n", ":2: pull: takes true or false" },
        { "images:\n  a: {user: root}\n", ":2: user: takes \"image\"" },
        { "images:\n  a: 3\n", ":2: a: takes a map of keys" },
        { "images: [a]\n", ":1: images: takes a map of names to rows" },
        { "tiers:\n  A: {worker: 3}\n", ":2: \"worker\": a tier has workers" },
        { "environments: {day: 3}\n", ":1: \"day\": environments has no such key; did you mean" },
        { "environments: {days: -3}\n", ":1: days: takes a number, 0 or more" },
        { "environments: 3\n", ":1: environments: takes a map of keys" },
        { "- runtimes\n", ":1: the table is a map" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err = { 0 };
        put(cases[i].text);
        assert_fails(runtimes_check(data, &err), ERR_INVALID);
        if (!strstr(err.text, cases[i].said) || !strstr(err.text, path))
            fail_msg("%s: %s", cases[i].text, err.text);
    }
    struct err err = { 0 };
    put(NULL);
    assert_ok(runtimes_check(data, &err));
    assert_ok(runtimes_write(data, &err));
    assert_ok(runtimes_check(data, &err));      /* the defaults themselves */
    put("runtimes:\n  '1.15':\nimages:\n");
    assert_ok(runtimes_check(data, &err));
}

static void an_image_goes_by_its_longest_row(void **state)
{
    (void)state;
    put("images:\n  a/: {pull: true}\n  a/b: {container: false, user: image}\n  a/b/c:\n");
    assert_true(image("a/x").pull && !image("a/x").never);
    assert_true(image("a/b:1").never && image("a/b:1").own_user && !image("a/b:1").pull);
    struct runtime_image plain = image("a/b/c");
    assert_true(plain.has_row && !plain.pull && !plain.never);
    assert_false(image("b").has_row);
}

static double limit(const char *part, const char *key)
{
    struct err err = { 0 };
    OWN_JSON json_t *limits = NULL;
    assert_ok(runtimes_limits(data, &limits, &err));
    const json_t *row = strchr(part, '.') ? json_object_get(json_object_get(limits, "projects"),
                                                            strchr(part, '.') + 1)
                                          : json_object_get(limits, part);
    return json_object_get(row, key) ? number_of(row, key) : -1;
}

static void limits_have_defaults_that_a_table_changes_one_by_one(void **state)
{
    (void)state;
    double memory = (double)limits_machine_memory();
    put("images: {}\n");        /* a table that says nothing of limits */
    assert_true(limit("job", "memory") == memory * 0.9);
    assert_int_equal(limit("job", "processes"), 4096);
    assert_true(limit("job", "disk") > 0);
    assert_int_equal(limit("job_max", "processes"), 32768);
    assert_int_equal(limit("job_max", "memory"), 0);
    assert_int_equal(limit("project", "jobs"), 0);
    assert_int_equal(limit("jobs", "days"), 365);
    put("limits:\n  job: {memory: 50%}\n  project: {jobs: 3}\n  projects: {a: {disk: 2Gi}}\n"
        "jobs: {days: 7}\n");
    assert_true(limit("job", "memory") == memory * 0.5);
    assert_int_equal(limit("job", "processes"), 4096);
    assert_int_equal(limit("project", "jobs"), 3);
    assert_true(limit("projects.a", "disk") == 2.0 * (1 << 30));
    assert_true(limit("projects.a", "jobs") == -1);
    assert_int_equal(limit("jobs", "days"), 7);
    assert_true(limit("jobs", "size") > 0);
}

static void a_wrong_limit_is_told_with_its_line(void **state)
{
    (void)state;
    static const struct { const char *text, *said; } cases[] = {
        { "limits: {job: {memory: 101%}}\n", ":1: memory: takes a size (2Gi), or a share of the" },
        { "limits: {job: {memory: -5}}\n", ":1: memory: takes a size" },
        { "limits: {job: {memory: x%}}\n", ":1: memory: takes a size" },
        { "limits: {job: {processes: 10%}}\n", ":1: processes: takes a number, 0 or more" },
        { "limits: {job: {cpu: 1}}\n", ":1: \"cpu\": limits.job has no such key" },
        { "limits: [1]\n", ":1: limits: takes a map of parts" },
        { "limits: {projects: {a: 3}}\n", ":1: a: takes a map of keys" },
        { "limits:\n  projectss: {}\n", ":2: \"projectss\": limits has no such key; did you mean "
          "\"projects\"?" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err = { 0 };
        put(cases[i].text);
        assert_fails(runtimes_check(data, &err), ERR_INVALID);
        if (!strstr(err.text, cases[i].said))
            fail_msg("%s is not in: %s", cases[i].said, err.text);
    }
}

static void cleared(void **state)
{
    (void)state;
    put(NULL);
    rmdir(data);
}

CHECK_MAIN(the_table_is_written_with_its_defaults, a_table_without_tiers_has_the_default_ones,
           tiers_are_edited, a_wrong_tier_is_told_with_its_line,
           a_key_that_nobody_reads_is_told_with_its_line, an_image_goes_by_its_longest_row,
           limits_have_defaults_that_a_table_changes_one_by_one,
           a_wrong_limit_is_told_with_its_line, cleared)
