/* tests/unit/filter_test.c - the filters of Google's list calls, and their times */
#include "protocols/filter.h"

#include <stdio.h>
#include <string.h>

#include "protocols/stamp.h"
#include "tests/check.h"

/* One thing to ask about: a job and a line of a log at once. */
static void get(void *arg, const char *path, struct filter_value *out)
{
    (void)arg;
    static const struct {
        const char *path;
        struct filter_value v;
    } have[] = {
        { "jobId", { .kind = FILTER_TEXT, .text = "census_7" } },
        { "state", { .kind = FILTER_TEXT, .text = "FAILED" } },
        { "labels.team", { .kind = FILTER_TEXT, .text = "red" } },
        { "n", { .kind = FILTER_NUMBER, .number = 10 } },
        { "severity", { .kind = FILTER_SEVERITY, .number = 500 } },
        { "timestamp", { .kind = FILTER_TIME, .time = 1500000000000001000 } },
        { "insertId", { .kind = FILTER_TEXT, .text = "b" } },
        { "resource.type", { .kind = FILTER_TEXT, .text = "ml_job" } },
        { "resource.labels.job_id", { .kind = FILTER_TEXT, .text = "census_7" } },
    };
    for (size_t i = 0; i < sizeof have / sizeof have[0]; i++)
        if (!strcmp(have[i].path, path))
            *out = have[i].v;
}

static int is(const char *text)
{
    struct err err = { 0 };
    OWN(filter) f = NULL;
    if (filter_parse(text, &f, &err) < 0)
        fail_msg("%s: %s", text, err.text);
    return filter_match(f, get, NULL);
}

static void terms_compare_as_their_left_side_calls_for(void **state)
{
    (void)state;
    static const char *const yes[] = {
        "",
        "  ",
        "state=FAILED",
        "state = \"FAILED\"",
        "state:FAILED",
        "jobId:census*",
        "jobId:CENSUS",
        "jobId:ensus",
        "labels.team=red",
        "labels.team:*",
        "n=10.0",
        "n>9",
        "n>=10",
        "n<1e2",
        "n!=9",
        "severity>=WARNING",
        "severity=error",
        "severity<CRITICAL",
        "other!=1",
        "NOT other=1",
        "-n=3",
        "timestamp>\"2017-07-14T02:40:00Z\"",
        "timestamp=\"2017-07-14T02:40:00.000001Z\"",
        "timestamp>=2017-07-14T04:40:00.000001+02:00",
        "timestamp<\"2017-07-15\"",
        "state=(RUNNING OR FAILED)",
        "jobId:(census AND _7)",
    };
    static const char *const no[] = {
        "state=failed",
        "state=RUNNING",
        "jobId=census*",
        "jobId:x*",
        "other=1",
        "other:*",
        "n=x",
        "n:1",
        "severity>ERROR",
        "severity=LOUD",
        "timestamp<\"2017-07-14T02:40:00.000001Z\"",
        "timestamp>yesterday",
        "NOT state=FAILED",
        "state=(RUNNING OR QUEUED)",
        "state=\"\"",
    };
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++)
        if (!is(yes[i]))
            fail_msg("%s: should match", yes[i]);
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++)
        if (is(no[i]))
            fail_msg("%s: should not match", no[i]);
}

static void or_binds_closer_than_and_and_not_closest(void **state)
{
    (void)state;
    assert_false(is("n=10 OR n=11 AND n=12")); /* (10 or 11) and 12 */
    assert_true(is("(n=10 OR (n=11 AND n=12))"));
    assert_true(is("NOT n=11 n=10")); /* side by side: both */
    assert_false(is("n=10 n=11"));
    assert_true(is("NOT n=11 OR n=12"));
    assert_true(is("NOT NOT n=10"));
    assert_true(is("((((n=10))))AND(n=10)"));
}

static void what_gcloud_asks_of_logs_is_understood(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN(filter) f = NULL;
    bool part;
    int64_t from, to;
    const char *text = "(resource.type=\"ml_job\" OR resource.type=\"cloudml_job\") AND "
                       "resource.labels.job_id=\"census_7\" AND "
                       "((timestamp=\"2017-07-14T02:40:00.000001Z\" AND insertId>\"a\") OR "
                       "timestamp>\"2017-07-14T02:40:00.000001Z\") AND "
                       "timestamp<\"2017-07-14T02:40:05.000000+00:00\"";
    assert_ok(filter_parse(text, &f, &err));
    assert_true(filter_match(f, get, NULL));
    assert_string_equal(filter_wants(f, "resource.labels.job_id", &part), "census_7");
    assert_false(part);
    assert_null(filter_wants(f, "resource.type", &part)); /* one of two */
    filter_times(f, "timestamp", &from, &to);
    assert_int_equal(from, 1500000000000001000);
    assert_int_equal(to, 1500000005000000000);
}

static void bounds_are_those_that_all_matches_share(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN(filter) f = NULL;
    bool part = false;
    int64_t from, to;
    assert_ok(filter_parse("jobId:rnn* NOT timestamp<\"2020-01-01\"", &f, &err));
    filter_times(f, "timestamp", &from, &to);
    assert_true(from == INT64_MIN && to == INT64_MAX);
    assert_string_equal(filter_wants(f, "jobId", &part), "rnn");
    assert_true(part);
    filter_free(TAKE(f));
    assert_ok(filter_parse("timestamp<\"1970-01-02\" OR timestamp<=\"1970-01-03\"", &f, &err));
    filter_times(f, "timestamp", &from, &to);
    assert_true(from == INT64_MIN);
    assert_int_equal(to, 2 * 86400000000000 + 1);
}

static void a_wrong_filter_is_refused_with_its_place(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } wrong[] = {
        { "state", "character 1: a comparison" },
        { "n=1 AND", "character 8: a name" },
        { "n=", "character 3: a value" },
        { "(n=1", "character 1: the parenthesis is not closed" },
        { "n=1)", "character 4: this parenthesis was not opened" },
        { "n=(1", "character 3: the parenthesis is not closed" },
        { "n=()", "character 3: a value" },
        { "a=\"x", "character 3: the quotes" },
        { "a=~\"x\"", "regular expressions" },
        { "regexp(a)", "functions" },
        { "= 3", "character 1: a name" },
    };
    struct err err;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        OWN(filter) f = NULL;
        assert_fails(filter_parse(wrong[i].text, &f, &err), ERR_INVALID);
        if (!strstr(err.text, wrong[i].says))
            fail_msg("%s: says \"%s\"", wrong[i].text, err.text);
    }
    char *deep = calloc(1, FILTER_BYTES_MAX + 2);
    struct filter *f = NULL;
    memset(deep, '(', 1000);
    assert_fails(filter_parse(deep, &f, &err), ERR_INVALID);
    for (int i = 0; i < 4000; i++)
        memcpy(deep + i * 4, "a=b ", 4);
    assert_fails(filter_parse(deep, &f, &err), ERR_INVALID);
    memset(deep, 'a', FILTER_BYTES_MAX + 1);
    assert_fails(filter_parse(deep, &f, &err), ERR_INVALID);
    free(deep);
}

static void times_are_read_and_written_to_the_microsecond(void **state)
{
    (void)state;
    char text[STAMP_SIZE];
    int64_t ns;
    stamp_format(1500000000000001000, text);
    assert_string_equal(text, "2017-07-14T02:40:00.000001Z");
    stamp_format(-1, text);
    assert_string_equal(text, "1969-12-31T23:59:59.999999Z");
    assert_int_equal(stamp_parse("1970-01-01T01:00:00.000000000Z", &ns), 0);
    assert_int_equal(ns, 3600000000000);
    assert_int_equal(stamp_parse("2024-02-29T00:00:00-00:30", &ns), 0);
    stamp_format(ns, text);
    assert_string_equal(text, "2024-02-29T00:30:00.000000Z");
    static const char *const none[] = { "",
                                        "now",
                                        "2023-02-29",
                                        "2024-13-01",
                                        "2024-01-01T24:00:00Z",
                                        "2024-01-01T00:00:00",
                                        "2024-01-01T00:00:00.Z",
                                        "2024-01-01T00:00:00Zx",
                                        "0001-01-01",
                                        "2024-01-01T00:00:00+2" };
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        if (stamp_parse(none[i], &ns) == 0)
            fail_msg("%s: is no time", none[i]);
    assert_int_equal(stamp_of(1.25), 1250000000);
}

CHECK_MAIN(terms_compare_as_their_left_side_calls_for, or_binds_closer_than_and_and_not_closest,
           what_gcloud_asks_of_logs_is_understood, bounds_are_those_that_all_matches_share,
           a_wrong_filter_is_refused_with_its_place, times_are_read_and_written_to_the_microsecond)
