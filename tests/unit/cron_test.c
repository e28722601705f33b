/* tests/unit/cron_test.c - when is a cron line or a period due next? */
#include "pipelines/schedule.h"

#include <string.h>
#include <time.h>

#include "tests/check.h"

static int64_t at(const char *text)
{
    struct tm tm = { 0 };

    assert_non_null(strptime(text, "%Y-%m-%d %H:%M:%S", &tm));
    return (int64_t)timegm(&tm);
}

static void assert_next(const char *line, const char *after, const char *want)
{
    struct err err = { 0 };
    struct cron c;
    char got[32];
    struct tm tm;

    assert_ok(cron_parse(line, &c, &err));
    time_t t = (time_t)cron_next(&c, at(after));
    strftime(got, sizeof got, "%Y-%m-%d %H:%M:%S", gmtime_r(&t, &tm));
    assert_string_equal(got, want);
}

static void six_fields_begin_with_the_second_and_five_with_the_minute(void **state)
{
    (void)state;
    assert_next("0 0 9 * * *", "2026-11-15 08:00:00", "2026-11-15 09:00:00");
    assert_next("0 9 * * *", "2026-11-15 09:00:00", "2026-11-16 09:00:00");
    assert_next("*/10 * * * * *", "2026-11-15 08:00:59", "2026-11-15 08:01:00");
    assert_next("30 5/20 * * * ?", "2026-11-15 08:05:30", "2026-11-15 08:25:30");
    assert_next("* * * * *", "2026-12-31 23:59:30", "2027-01-01 00:00:00");
}

static void names_lists_and_ranges_are_understood(void **state)
{
    (void)state;
    assert_next("0 12 * * MON-FRI", "2026-11-13 12:00:00", "2026-11-16 12:00:00");
    assert_next("0 0 1 jan,Jul *", "2026-02-01 00:00:00", "2026-07-01 00:00:00");
    assert_next("0 0 * * 7", "2026-11-16 00:00:00", "2026-11-22 00:00:00");
    assert_next("@weekly", "2026-11-16 00:00:00", "2026-11-22 00:00:00");
    assert_next("@every 1h30m", "2026-11-16 00:00:10", "2026-11-16 01:30:10");
}

static void a_day_of_the_month_or_one_of_the_week_is_enough_when_both_are_named(void **state)
{
    (void)state;
    assert_next("0 0 13 * FRI", "2026-11-07 00:00:00", "2026-11-13 00:00:00");
    assert_next("0 0 13 * FRI", "2026-11-13 00:00:00", "2026-11-20 00:00:00");
    assert_next("0 0 13 * *", "2026-11-13 00:00:00", "2026-12-13 00:00:00");
}

static void leap_days_are_found_and_days_that_never_come_are_not(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct cron c;

    assert_next("0 0 29 2 *", "2026-11-15 00:00:00", "2028-02-29 00:00:00");
    assert_next("0 0 29 2 *", "2096-03-01 00:00:00", "2104-02-29 00:00:00");
    assert_ok(cron_parse("0 0 30 2 *", &c, &err));
    assert_int_equal(cron_next(&c, at("2026-11-15 00:00:00")), 0);
}

static void what_is_no_cron_line_is_refused_with_its_field(void **state)
{
    (void)state;
    static const char *const wrong[] = { "", "* * *", "60 * * * *", "* 24 * * *", "1- * * * *",
        "*/0 * * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "1,, * * * *", "5-1 * * * *",
        "* * * * * * *", "x * * * *", "@every", "@every x", "@sometimes", "99999999999999 * * * *",
        "1,", "* * * * MONDAYS" };
    struct cron c;

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct err err = { 0 };
        assert_fails(cron_parse(wrong[i], &c, &err), ERR_INVALID);
        assert_non_null(strstr(err.text, "cron: "));
    }
}

static void every_time_that_cron_gives_matches_its_line(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct cron c;
    int64_t t = at("2026-01-01 00:00:00");

    assert_ok(cron_parse("15 10-50/20 3,17 */5 2-11/3 *", &c, &err));
    for (int i = 0; i < 1000; i++) {
        int64_t next = cron_next(&c, t);
        assert_true(next > t);
        struct tm tm;
        time_t when = (time_t)next;
        gmtime_r(&when, &tm);
        assert_int_equal(tm.tm_sec, 15);
        assert_true(tm.tm_min == 10 || tm.tm_min == 30 || tm.tm_min == 50);
        assert_true(tm.tm_hour == 3 || tm.tm_hour == 17);
        assert_int_equal((tm.tm_mday - 1) % 5, 0);
        assert_int_equal((tm.tm_mon + 1 - 2) % 3, 0);
        t = next;
    }
}

static struct trigger trigger_of(const char *json)
{
    struct err err = { 0 };
    struct trigger s;
    json_t *doc = json_loads(json, 0, NULL);

    assert_non_null(doc);
    assert_ok(trigger_parse(doc, &s, &err));
    json_decref(doc);
    return s;
}

static void a_period_counts_from_its_start_and_catches_up_one_by_one(void **state)
{
    (void)state;
    struct trigger s = trigger_of("{\"trigger\": {\"interval_s\": 60}}");

    assert_int_equal(trigger_next(&s, 1000, 0, 1000), 1060);
    assert_int_equal(trigger_next(&s, 1000, 1060, 5000), 1120);
    s.start = 2000;
    assert_int_equal(trigger_next(&s, 1000, 0, 1000), 2060);
    s.end = 2100;
    assert_int_equal(trigger_next(&s, 1000, 2060, 2070), 0);
}

static void without_catch_up_only_the_last_time_that_was_missed_is_due(void **state)
{
    (void)state;
    struct trigger s = trigger_of("{\"trigger\": {\"interval_s\": 60}, \"no_catchup\": true}");
    struct trigger c = trigger_of("{\"trigger\": {\"cron\": \"0 0 * * *\"}, "
                                    "\"no_catchup\": true}");

    assert_int_equal(trigger_next(&s, 1000, 1060, 5000), 4960);
    assert_int_equal(trigger_next(&s, 1000, 4960, 5000), 5020);
    assert_int_equal(trigger_next(&c, at("2026-01-01 10:00:00"), 0, at("2026-03-05 12:00:00")),
                     at("2026-03-05 00:00:00"));
    assert_int_equal(trigger_next(&c, 0, at("2026-03-05 00:00:00"), at("2026-03-05 12:00:00")),
                     at("2026-03-06 00:00:00"));
    c.end = at("2026-02-01 12:00:00");
    assert_int_equal(trigger_next(&c, at("2026-01-01 10:00:00"), 0, at("2026-03-05 12:00:00")),
                     at("2026-02-01 00:00:00"));
}

static void a_trigger_says_cron_or_a_period(void **state)
{
    (void)state;
    static const char *const wrong[] = { "{}", "{\"trigger\": {}}",
        "{\"trigger\": {\"interval_s\": 0}}", "{\"trigger\": {\"cron\": \"x\"}}",
        "{\"trigger\": {\"interval_s\": 5, \"start\": 10, \"end\": 5}}" };
    struct trigger s;

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct err err = { 0 };
        json_t *doc = json_loads(wrong[i], 0, NULL);
        assert_fails(trigger_parse(doc, &s, &err), ERR_INVALID);
        json_decref(doc);
    }
}

CHECK_MAIN(six_fields_begin_with_the_second_and_five_with_the_minute,
           names_lists_and_ranges_are_understood,
           a_day_of_the_month_or_one_of_the_week_is_enough_when_both_are_named,
           leap_days_are_found_and_days_that_never_come_are_not,
           what_is_no_cron_line_is_refused_with_its_field,
           every_time_that_cron_gives_matches_its_line,
           a_period_counts_from_its_start_and_catches_up_one_by_one,
           without_catch_up_only_the_last_time_that_was_missed_is_due,
           a_trigger_says_cron_or_a_period)
