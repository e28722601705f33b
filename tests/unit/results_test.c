/* tests/unit/results_test.c - results of steps and tests, remembered and handed on */
#include "runtime/results.h"

#include <stdlib.h>

#include "base/own.h"
#include "tests/check.h"

static struct results *results_of(long steps, long every)
{
    struct results *r = calloc(1, sizeof *r);

    assert_non_null(r);
    for (long step = 0; step < steps; step++) {
        results_add(r, &(struct step_result){ .step = step, .n = 4, .loss = (double)step }, 1);
        if ((step + 1) % every == 0)
            results_add_test(r, &(struct told_test){ .step = step + 1, .n = 1,
                                                     .value = { (double)step } });
    }
    return r;
}

static void tests_are_found_by_the_step_they_follow(void **state)
{
    (void)state;
    OWN_MEM struct results *r = results_of(60, 10);

    assert_int_equal(results_tests_after(r, 0), 6);
    assert_int_equal(results_test_after(r, 0)->step, 10);
    assert_int_equal(results_test_after(r, 10)->step, 20);
    assert_int_equal(results_tests_after(r, 55), 1);
    assert_null(results_test_after(r, 60));
}

static void a_test_that_is_done_again_is_there_once(void **state)
{
    (void)state;
    OWN_MEM struct results *r = results_of(60, 10);

    results_add_test(r, &(struct told_test){ .step = 50, .n = 1 });
    assert_int_equal(results_tests_after(r, 0), 5);
    assert_int_equal(results_test_after(r, 40)->step, 50);
    assert_null(results_test_after(r, 50));
}

static void the_last_ones_are_kept(void **state)
{
    (void)state;
    OWN_MEM struct results *r = results_of(TESTS_KEPT + 100, 1);

    assert_int_equal(results_tests_after(r, 0), TESTS_KEPT);
    assert_int_equal(results_test_after(r, 0)->step, 101);
    results_clear(r);
    assert_null(results_test_after(r, 0));
}

static void a_copy_has_the_same_tests(void **state)
{
    (void)state;
    OWN_MEM struct results *r = results_of(TESTS_KEPT + 7, 1), *copy = results_of(0, 1);
    OWN_BUF bytes = BUF_INIT;
    struct err err;

    results_pack_tests(r, &bytes);
    assert_ok(results_unpack_tests(copy, bytes.data, bytes.n, &err));
    assert_int_equal(results_tests_after(copy, 0), TESTS_KEPT);
    for (long step = 0; step < TESTS_KEPT + 6; step++)
        assert_memory_equal(results_test_after(copy, step), results_test_after(r, step),
                            sizeof(struct told_test));
    assert_fails(results_unpack_tests(copy, bytes.data, bytes.n - 1, &err), ERR_INVALID);
    ((struct told_test *)bytes.data)->n = METRICS_MAX + 1;
    assert_fails(results_unpack_tests(copy, bytes.data, bytes.n, &err), ERR_INVALID);
}

CHECK_MAIN(tests_are_found_by_the_step_they_follow, a_test_that_is_done_again_is_there_once,
           the_last_ones_are_kept, a_copy_has_the_same_tests)
