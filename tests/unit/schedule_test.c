/* tests/unit/schedule_test.c - the learning rate over time (recorded rates: numeric/fixtures_test.c) */
#include <math.h>

#include "engine/schedule.h"
#include "tests/check.h"

static struct schedule make(const char *text, int epochs, double lr)
{
    struct err err = { 0 };
    struct schedule s;
    json_t *spec = text ? json_loads(text, 0, NULL) : NULL;

    assert_ok(schedule_parse(spec, epochs, lr, &s, &err));
    json_decref(spec);
    return s;
}

static void no_schedule_is_a_constant_rate(void **state)
{
    (void)state;
    struct schedule s = make(NULL, 5, 0.1);

    assert_true(schedule_epoch(&s, 0) == 1);
    assert_true(schedule_epoch(&s, 4) == 1);
    assert_true(schedule_test(&s, 3) == 1);
    assert_int_equal(s.warmup, 0);
}

static void an_epoch_has_its_factor_whatever_came_before(void **state)
{
    (void)state;
    struct schedule s = make("{\"step\": {\"every\": 2, \"gamma\": 0.5}}", 9, 0.1);

    assert_true(schedule_epoch(&s, 5) == 0.25); /* as after a resume */
    assert_true(schedule_epoch(&s, 1) == 1);
    assert_true(schedule_epoch(&s, 2) == 0.5);
}

static void a_cosine_ends_at_its_least_rate_and_stays(void **state)
{
    (void)state;
    struct schedule s = make("{\"cosine\": {\"epochs\": 10, \"min\": 0.02}}", 20, 0.1);

    assert_true(schedule_epoch(&s, 0) == 1);
    assert_true(fabs(schedule_epoch(&s, 5) * 0.1 - 0.06) < 1e-15);
    assert_true(fabs(schedule_epoch(&s, 10) * 0.1 - 0.02) < 1e-15);
    assert_true(fabs(schedule_epoch(&s, 15) * 0.1 - 0.02) < 1e-15);
    s = make("{\"cosine\": {}}", 20, 0.1);
    assert_int_equal(s.every, 20);              /* the whole run */
}

static void a_plateau_of_accuracy_waits_for_it_to_grow(void **state)
{
    (void)state;
    struct schedule s = make("{\"plateau\": {\"patience\": 1, \"factor\": 0.5, \"metric\": "
                             "\"test_accuracy\"}}", 9, 0.1);

    assert_true(schedule_test(&s, 0.5) == 1);
    assert_true(schedule_test(&s, 0.6) == 1);
    assert_true(schedule_test(&s, 0.6) == 1);   /* waited 1 */
    assert_true(schedule_test(&s, 0.55) == 0.5);
    assert_int_equal(s.waited, 0);
    assert_true(schedule_test(&s, NAN) == 0.5); /* no improvement, nor a crash */
    assert_int_equal(s.waited, 1);
}

static void two_kinds_at_once_are_refused(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct schedule s;
    json_t *spec = json_loads("{\"step\": {\"every\": 2}, \"cosine\": {}}", 0, NULL);

    assert_fails(schedule_parse(spec, 3, 0.1, &s, &err), ERR_INVALID);
    json_decref(spec);
}

CHECK_MAIN(no_schedule_is_a_constant_rate, an_epoch_has_its_factor_whatever_came_before,
           a_cosine_ends_at_its_least_rate_and_stays, a_plateau_of_accuracy_waits_for_it_to_grow,
           two_kinds_at_once_are_refused)
