#include "data/shuffle.h"

#include <string.h>

#include "tests/check.h"

enum { N = 1000 };

static void every_row_comes_once_in_its_own_block(void **state)
{
    (void)state;
    static const long blocks[] = { SHUFFLE_NONE, SHUFFLE_ALL, 1, 7, 64, 999, 1000, 5000 };
    for (size_t k = 0; k < sizeof blocks / sizeof blocks[0]; k++) {
        uint32_t order[N];
        char seen[N] = { 0 };
        shuffle_epoch(order, N, blocks[k], 5, 3);
        for (uint32_t i = 0; i < N; i++) {
            assert_in_range(order[i], 0, N - 1);
            assert_int_equal(seen[order[i]]++, 0);
            if (blocks[k] > 0)
                assert_int_equal(order[i] / blocks[k], i / blocks[k]);
            if (blocks[k] == SHUFFLE_NONE)
                assert_int_equal(order[i], i);
        }
    }
}

static void seed_and_epoch_and_block_each_change_the_order(void **state)
{
    (void)state;
    uint32_t a[N], b[N];
    shuffle_epoch(a, N, SHUFFLE_ALL, 1, 0);
    shuffle_epoch(b, N, SHUFFLE_ALL, 1, 0);
    assert_memory_equal(a, b, sizeof a);
    shuffle_epoch(b, N, SHUFFLE_ALL, 2, 0);
    assert_memory_not_equal(a, b, sizeof a);
    shuffle_epoch(b, N, SHUFFLE_ALL, 1, 1);
    assert_memory_not_equal(a, b, sizeof a);
    shuffle_epoch(a, N, 500, 1, 0);
    for (int i = 0; i < 500; i++)
        a[500 + i] -= 500;
    assert_memory_not_equal(a, a + 500, 500 * sizeof *a);
    shuffle_block(b, 500, 1, 0, 1);
    assert_memory_equal(a + 500, b, 500 * sizeof *a);
}

/* Recorded: on any machine, for all time. */
static void the_order_is_the_same_everywhere(void **state)
{
    (void)state;
    uint32_t a[8];
    shuffle_epoch(a, 8, SHUFFLE_ALL, 1, 0);
    static const uint32_t want[8] = { 0, 7, 5, 6, 1, 4, 3, 2 };
    for (int i = 0; i < 8; i++)
        assert_int_equal(a[i], want[i]);
}

static void a_range_split_leaves_the_last_rows_for_the_test(void **state)
{
    (void)state;
    struct split s = { .end = -1, .test = 0.2, .total = 506 };
    assert_int_equal(split_cut(&s), 404);
    assert_int_equal(split_of(&s, 403), SPLIT_TRAIN);
    assert_int_equal(split_of(&s, 404), SPLIT_TEST);
    s = (struct split){ .end = -1, .test = 0.9, .total = 10 };
    assert_int_equal(split_cut(&s), 1);
    s = (struct split){ .first = 100, .end = 200, .test = 0.5, .total = 100 };
    assert_int_equal(split_of(&s, 99), SPLIT_NEITHER);
    assert_int_equal(split_of(&s, 100), SPLIT_TRAIN);
    assert_int_equal(split_of(&s, 149), SPLIT_TRAIN);
    assert_int_equal(split_of(&s, 150), SPLIT_TEST);
    assert_int_equal(split_of(&s, 200), SPLIT_NEITHER);
    s = (struct split){ .end = -1 };
    assert_int_equal(split_of(&s, 1 << 30), SPLIT_TRAIN);
}

static void a_random_split_depends_on_seed_and_row_alone(void **state)
{
    (void)state;
    struct split s = { .end = -1, .test = 0.2, .random = 1, .seed = 9 };
    struct split t = s;
    t.seed = 10;
    t.total = 77;
    int test = 0, differ = 0;
    for (long i = 0; i < 20000; i++) {
        test += split_of(&s, i) == SPLIT_TEST;
        differ += split_of(&s, i) != split_of(&t, i);
    }
    assert_in_range(test, 3800, 4200);
    assert_in_range(differ, 5000, 8000);
    t.seed = 9;
    for (long i = 0; i < 2000; i++)
        assert_int_equal(split_of(&s, i), split_of(&t, i));
}

CHECK_MAIN(every_row_comes_once_in_its_own_block, seed_and_epoch_and_block_each_change_the_order,
           the_order_is_the_same_everywhere, a_range_split_leaves_the_last_rows_for_the_test,
           a_random_split_depends_on_seed_and_row_alone)
