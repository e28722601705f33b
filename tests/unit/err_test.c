#include "tests/check.h"

#include <string.h>

static void a_failure_reads_from_the_outside_in(void **state)
{
    (void)state;
    struct err err = { 0 };

    assert_int_equal(err_set(&err, ERR_MISSING, "no file \"%s\"", "a"), -ERR_MISSING);
    assert_int_equal(err_add(&err, "opening %d", 7), -ERR_MISSING);
    assert_string_equal(err.text, "opening 7: no file \"a\"");
    assert_int_equal(err_exit(err.code), 4);
    assert_int_equal(err_http(err.code), 404);
}

static void a_text_that_does_not_fit_says_so(void **state)
{
    (void)state;
    struct err err = { 0 };
    char long_name[600];

    memset(long_name, 'x', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = 0;
    err_set(&err, ERR_IO, "%s", long_name);
    assert_string_equal(err.text + strlen(err.text) - 4, "x...");
}

#define LETTERS "abcdefghijklmnopqrstuvwxyz234567abcdefgh"

static void no_token_is_in_a_failure(void **state)
{
    (void)state;
    struct err err = { 0 };
    char long_name[600];

    err_set(&err, ERR_IO, "http://h/k/muster_" LETTERS "/b: job_12_" LETTERS " and web_%s", LETTERS);
    assert_string_equal(err.text, "http://h/k/muster_***/b: job_12_*** and web_***");
    err_add(&err, "ticket=ticket_%s", LETTERS);
    assert_string_equal(err.text,
                        "ticket=ticket_***: http://h/k/muster_***/b: job_12_*** and web_***");
    /* One that the end of the text would have cut in two. */
    snprintf(long_name, sizeof long_name, "%480s muster_" LETTERS, "x");
    err_set(&err, ERR_IO, "%s", long_name);
    assert_string_equal(err.text + strlen(err.text) - 15, "x muster_***...");
    err_set(&err, ERR_INVALID, "no key learning_schedule, drop_out or a_%.39s", LETTERS);
    assert_string_equal(err.text + strlen(err.text) - 41, "a_abcdefghijklmnopqrstuvwxyz234567abcdefg");
}

CHECK_MAIN(a_failure_reads_from_the_outside_in, a_text_that_does_not_fit_says_so,
           no_token_is_in_a_failure)
