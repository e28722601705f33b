/* tests/unit/near_test.c - the nearest word */
#include "base/near.h"

#include <string.h>

#include "tests/check.h"

static const char *const words[] = { "train", "evaluate", "predict", "export", "verify", NULL };

static void letters_dropped_added_replaced_and_swapped_count_one_each(void **state)
{
    (void)state;
    assert_int_equal(near_distance("train", "train"), 0);
    assert_int_equal(near_distance("trin", "train"), 1);
    assert_int_equal(near_distance("traain", "train"), 1);
    assert_int_equal(near_distance("trein", "train"), 1);
    assert_int_equal(near_distance("trian", "train"), 1);
    assert_int_equal(near_distance("", "train"), 5);
    assert_int_equal(near_distance("kitten", "sitting"), 3);
}

static void case_and_dashes_are_free(void **state)
{
    (void)state;
    assert_int_equal(near_distance("Cross-Entropy", "cross_entropy"), 0);
}

static void a_slip_finds_its_word(void **state)
{
    (void)state;
    assert_string_equal(near_word("trian", words), "train");
    assert_string_equal(near_word("evalute", words), "evaluate");
    assert_string_equal(near_word("EXPORT", words), "export");
}

static void a_word_far_from_all_finds_none(void **state)
{
    (void)state;
    assert_null(near_word("deploy", words));
    assert_null(near_word("", words));
}

static void very_long_words_are_cut_not_overrun(void **state)
{
    (void)state;
    char a[300], b[300];
    memset(a, 'a', sizeof a);
    memset(b, 'b', sizeof b);
    a[299] = b[299] = '\0';
    assert_int_equal(near_distance(a, b), 63);
}

CHECK_MAIN(letters_dropped_added_replaced_and_swapped_count_one_each, case_and_dashes_are_free,
           a_slip_finds_its_word, a_word_far_from_all_finds_none,
           very_long_words_are_cut_not_overrun)
