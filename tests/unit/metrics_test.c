/* tests/unit/metrics_test.c - how good a model's answers are */
#include <math.h>
#include <string.h>

#include "engine/metrics.h"
#include "tests/check.h"

static struct metrics *make(const char *name, int classes, int outputs)
{
    struct err err = { 0 };
    struct metrics *m = NULL;

    assert_ok(metrics_new(&name, 1, classes, outputs, &m, &err));
    assert_string_equal(metrics_name(m, 0), "loss");
    return m;
}

static double last(struct metrics *m)
{
    return metrics_value(m, metrics_count(m) - 1);
}

static void add_score(struct metrics *m, float score, int class, double weight)
{
    metrics_add(m, &score, class, 0, weight);
}

static void assert_near(double got, double want)
{
    if (!(fabs(got - want) < 1e-12))
        fail_msg("%.15g is not %.15g", got, want);
}

static void tied_scores_count_half(void **state)
{
    (void)state;
    struct metrics *m = make("auc", 2, 1);

    add_score(m, 1, 0, 1);
    add_score(m, 1, 1, 1);
    assert_near(last(m), 0.5);
    add_score(m, 2, 1, 1);
    assert_near(last(m), 0.75);
    assert_near(last(m), 0.75);                 /* asking changes nothing */
    metrics_free(m);
}

static void a_weight_of_two_is_the_sample_twice(void **state)
{
    (void)state;
    struct metrics *once = make("auc", 2, 1), *twice = make("auc", 2, 1);
    static const float score[] = { 0.3f, -1, 2, 0.3f, 0.1f };
    static const int class[] = { 1, 0, 1, 0, 1 };

    for (int i = 0; i < 5; i++) {
        add_score(once, score[i], class[i], i == 2 || i == 3 ? 2 : 1);
        add_score(twice, score[i], class[i], 1);
        if (i == 2 || i == 3)
            add_score(twice, score[i], class[i], 1);
    }
    assert_near(last(once), last(twice));
    metrics_free(once);
    metrics_free(twice);
}

static void a_tie_of_logits_goes_to_the_lower_class(void **state)
{
    (void)state;
    struct metrics *m = make("accuracy", 3, 3);

    metrics_add(m, (float[]){ 1, 1, 0 }, 0, 0, 1);
    metrics_add(m, (float[]){ 1, 1, 0 }, 1, 0, 1);
    assert_near(last(m), 0.5);
    metrics_free(m);
}

static void top_k_counts_the_classes_before_the_right_one(void **state)
{
    (void)state;
    struct metrics *m = make("top_2", 3, 3);

    metrics_add(m, (float[]){ 3, 2, 1 }, 1, 0, 1);
    metrics_add(m, (float[]){ 3, 2, 1 }, 2, 0, 1);
    assert_near(last(m), 0.5);
    metrics_free(m);
}

static void not_a_number_is_no_answer(void **state)
{
    (void)state;
    struct metrics *m = make("accuracy", 2, 1), *auc = make("auc", 2, 1);

    add_score(m, NAN, 0, 1);
    assert_near(last(m), 0);
    add_score(auc, NAN, 0, 1);
    add_score(auc, 1, 1, 1);
    assert_true(isnan(last(auc)));
    metrics_add(m, (float[]){ 1 }, 1, NAN, 1);
    assert_true(isnan(metrics_value(m, 0)));    /* a loss that diverged stays visible */
    metrics_free(m);
    metrics_free(auc);
}

static void the_loss_is_weighted(void **state)
{
    (void)state;
    struct metrics *m = make("mae", 0, 1);

    metrics_add(m, (float[]){ 1 }, 2, 1, 3);
    metrics_add(m, (float[]){ 5 }, 2, 9, 1);
    assert_near(metrics_value(m, 0), 3);
    assert_near(last(m), (3 * 1 + 3) / 4.0);
    metrics_free(m);
}

static void r2_of_the_mean_is_zero(void **state)
{
    (void)state;
    struct metrics *m = make("r2", 0, 1);

    for (int i = 0; i < 4; i++)
        metrics_add(m, (float[]){ 1.5f }, i, 0, 1);
    assert_near(last(m), 0);
    metrics_reset(m);
    metrics_add(m, (float[]){ 1 }, 1, 0, 1);
    assert_true(isnan(last(m)));                /* one target has no spread */
    metrics_free(m);
}

static void nothing_added_has_no_value(void **state)
{
    (void)state;
    struct metrics *m = make("accuracy", 2, 1);

    add_score(m, 1, 1, 1);
    assert_near(last(m), 1);
    metrics_reset(m);
    assert_true(isnan(last(m)));
    metrics_free(m);
}

static void a_metric_that_does_not_suit_is_refused(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct metrics *m = NULL;
    const char *name = "accuracy";

    assert_fails(metrics_new(&name, 1, 0, 1, &m, &err), ERR_INVALID);
    name = "rmse";
    assert_fails(metrics_new(&name, 1, 10, 10, &m, &err), ERR_INVALID);
    name = "acuracy";
    assert_fails(metrics_new(&name, 1, 10, 10, &m, &err), ERR_INVALID);
    name = "top_x";
    assert_fails(metrics_new(&name, 1, 10, 10, &m, &err), ERR_INVALID);
    assert_null(m);
}

static void only_errors_are_better_when_smaller(void **state)
{
    (void)state;
    assert_true(metrics_larger_is_better("auc"));
    assert_true(metrics_larger_is_better("top_5"));
    assert_true(metrics_larger_is_better("r2"));
    assert_false(metrics_larger_is_better("loss"));
    assert_false(metrics_larger_is_better("rmse"));
}

CHECK_MAIN(tied_scores_count_half, a_weight_of_two_is_the_sample_twice,
           a_tie_of_logits_goes_to_the_lower_class, top_k_counts_the_classes_before_the_right_one,
           not_a_number_is_no_answer, the_loss_is_weighted, r2_of_the_mean_is_zero,
           nothing_added_has_no_value, a_metric_that_does_not_suit_is_refused,
           only_errors_are_better_when_smaller)
