/* tests/unit/options_test.c - the options of a command, as one table */
#include "cli/options.h"

#include <string.h>

#include "tests/check.h"

struct args {
    const char *out;
    long threads;
    int json;
    struct option_list set;
};

static const struct option options[] = {
    { "out", 'o', "DIR", "put the run there", OPTION_TEXT, offsetof(struct args, out) },
    { "threads", 0, "N", "0: all cores", OPTION_INT, offsetof(struct args, threads) },
    { "json", 0, NULL, "one object a line", OPTION_FLAG, offsetof(struct args, json) },
    { "set", 0, "KEY=VALUE", "change the spec", OPTION_LIST, offsetof(struct args, set) },
    { 0 }
};

/* Parses a copy of a NULL-terminated list; argv is rearranged in place. */
static int parse(char **argv, struct args *a, struct err *err)
{
    int argc = 0;
    while (argv[argc])
        argc++;
    return options_parse(options, argc, argv, a, err);
}
#define ARGV(...) ((char *[]){ __VA_ARGS__, NULL })

static void every_form_of_an_option_lands_in_its_field(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct args a = { .threads = 7 };
    char **argv = ARGV("--out", "d", "spec", "--json", "--set=a=1", "--set", "b=2", "more");
    assert_int_equal(parse(argv, &a, &err), 2);
    assert_string_equal(argv[0], "spec");
    assert_string_equal(argv[1], "more");
    assert_string_equal(a.out, "d");
    assert_int_equal(a.json, 1);
    assert_int_equal(a.set.n, 2);
    assert_string_equal(a.set.item[0], "a=1");
    assert_string_equal(a.set.item[1], "b=2");
    assert_int_equal(a.threads, 7);             /* a default stays */

    assert_int_equal(parse(ARGV("-o", "x", "--threads=-3"), &a, &err), 0);
    assert_string_equal(a.out, "x");
    assert_int_equal(a.threads, -3);
    assert_int_equal(parse(ARGV("-oy"), &a, &err), 0);
    assert_string_equal(a.out, "y");
    assert_int_equal(parse(ARGV("--out="), &a, &err), 0);
    assert_string_equal(a.out, "");
}

static void a_dash_and_what_follows_two_dashes_are_arguments(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct args a = { 0 };
    char **argv = ARGV("-", "--", "--json", "-o");
    assert_int_equal(parse(argv, &a, &err), 3);
    assert_string_equal(argv[0], "-");
    assert_string_equal(argv[1], "--json");
    assert_string_equal(argv[2], "-o");
    assert_int_equal(a.json, 0);
}

static void a_wrong_option_is_told_the_nearest(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct args a = { 0 };
    assert_fails(parse(ARGV("--thread=2"), &a, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "--thread;"));
    assert_non_null(strstr(err.text, "did you mean --threads?"));
    assert_fails(parse(ARGV("--zzzzzz"), &a, &err), ERR_INVALID);
    assert_null(strstr(err.text, "did you mean"));
    assert_fails(parse(ARGV("-x"), &a, &err), ERR_INVALID);
    assert_fails(options_parse(NULL, 1, ARGV("--any"), &a, &err), ERR_INVALID);
}

static void values_are_checked(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct args a = { 0 };
    assert_fails(parse(ARGV("--threads", "two"), &a, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "two"));
    assert_fails(parse(ARGV("--threads", "99999999999999999999"), &a, &err), ERR_INVALID);
    assert_fails(parse(ARGV("--threads", ""), &a, &err), ERR_INVALID);
    assert_fails(parse(ARGV("--out"), &a, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "--out DIR"));
    assert_fails(parse(ARGV("--json=1"), &a, &err), ERR_INVALID);
}

static void a_list_has_an_end(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct args a = { 0 };
    char *argv[OPTION_LIST_MAX + 2] = { 0 };
    for (int i = 0; i <= OPTION_LIST_MAX; i++)
        argv[i] = "--set=k=v";
    assert_fails(parse(argv, &a, &err), ERR_INVALID);
    assert_int_equal(a.set.n, OPTION_LIST_MAX);
}

static void workers_are_a_number_or_a_range(void **state)
{
    (void)state;
    struct err err = { 0 };
    int min = -1, max = -1;
    assert_ok(workers_parse("3", &min, &max, &err));
    assert_int_equal(min, 3);
    assert_int_equal(max, 3);
    assert_ok(workers_parse("2..8", &min, &max, &err));
    assert_int_equal(min, 2);
    assert_int_equal(max, 8);
    const char *const wrong[] = { "0", "-1", "0..2", "8..2", "2..", "..2", "two", "", "2.5", "5000",
                                  "1..99999999999999999999" };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_fails(workers_parse(wrong[i], &min, &max, &err), ERR_INVALID);
        assert_non_null(strstr(err.text, "workers: "));
    }
    assert_int_equal(min, 2);
    assert_int_equal(max, 8);
}

CHECK_MAIN(every_form_of_an_option_lands_in_its_field,
           a_dash_and_what_follows_two_dashes_are_arguments, a_wrong_option_is_told_the_nearest,
           values_are_checked, a_list_has_an_end,
           workers_are_a_number_or_a_range)
