/* tests/unit/optim_test.c - optimizers (recorded steps: numeric/fixtures_test.c) */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "engine/kernels.h"
#include "tests/check.h"

enum { N = 64, STEPS = 20 };

static const char *const specs[] = {
    "{\"sgd\": {\"lr\": 0.1}}",
    "{\"sgd\": {\"lr\": 0.1, \"momentum\": 0.9}}",
    "{\"sgd\": {\"lr\": 0.1, \"momentum\": 0.9, \"nesterov\": true, \"weight_decay\": 0.01}}",
    "{\"adam\": {\"lr\": 0.01, \"weight_decay\": 0.1}}",
    "{\"adamw\": {\"lr\": 0.01}}",
    "{\"adagrad\": {\"lr\": 0.1, \"lr_decay\": 0.01}}",
    "{\"rmsprop\": {\"lr\": 0.01, \"momentum\": 0.5, \"centered\": true}}",
    "{\"ftrl\": {\"lr\": 0.1, \"l1\": 0.01, \"l2\": 0.1}}",
    "{\"ftrl\": {\"lr\": 0.1, \"lr_power\": -0.7}}",
};
enum { SPECS = sizeof specs / sizeof *specs };

static struct optim parse(const char *text)
{
    struct err err = { 0 };
    struct optim o;
    json_t *spec = json_loads(text, 0, NULL);

    assert_ok(optim_parse(spec, &o, &err));
    json_decref(spec);
    return o;
}

struct weights {
    _Alignas(64) float w[N], s[OPTIM_STATES][N], g[N];
};

static void start(struct weights *x, const struct optim *o)
{
    for (int i = 0; i < N; i++) {
        x->w[i] = 2 * rng_uniform(1, 1, (uint64_t)i) - 1;
        for (int k = 0; k < OPTIM_STATES; k++)
            x->s[k][i] = o->state_init[k];
    }
}

static void step(struct weights *x, struct optim *o, enum isa isa, uint64_t t)
{
    float *s[OPTIM_STATES] = { x->s[0], x->s[1], x->s[2] };

    optim_begin(o, t, 1);
    kernels_of(isa)->optim_pass(o, x->w, s, x->g, N, 1);
}

static void draw_gradient(struct weights *x, uint64_t t)
{
    for (int i = 0; i < N; i++)
        x->g[i] = 2 * rng_uniform(2, t, (uint64_t)i) - 1;
}

static void instruction_sets_agree_on_every_bit(void **state)
{
    (void)state;
    unsetenv("MUSTER_ISA");
    for (int k = 0; k < SPECS; k++) {
        struct weights first, other;
        for (int isa = 0; isa <= (int)isa_best(); isa++) {
            struct optim o = parse(specs[k]);
            struct weights *x = isa ? &other : &first;
            start(x, &o);
            for (uint64_t t = 1; t <= STEPS; t++) {
                draw_gradient(x, t);
                step(x, &o, (enum isa)isa, t);
            }
            if (isa && memcmp(&first, &other, sizeof first) != 0)
                fail_msg("%s: %s gives other bits than scalar", specs[k], isa_name((enum isa)isa));
        }
    }
}

static void what_is_zero_and_has_no_gradient_stays_zero(void **state)
{
    (void)state;
    for (int k = 0; k < SPECS; k++) {           /* so padding does */
        struct optim o = parse(specs[k]);
        struct weights x = { 0 };
        for (int i = 0; i < OPTIM_STATES; i++)
            for (int j = 0; j < N; j++)
                x.s[i][j] = o.state_init[i];
        for (uint64_t t = 1; t <= 3; t++)
            step(&x, &o, ISA_SCALAR_ID, t);
        for (int i = 0; i < N; i++)
            if (x.w[i] != 0)
                fail_msg("%s: makes %g of nothing", specs[k], (double)x.w[i]);
    }
}

static void a_gradient_that_is_not_a_number_is_not_hidden(void **state)
{
    (void)state;
    for (int k = 0; k < SPECS; k++) {
        struct optim o = parse(specs[k]);
        struct weights x = { 0 };
        o.clip_value = 0.5f;
        start(&x, &o);
        draw_gradient(&x, 1);
        x.g[3] = NAN;
        step(&x, &o, isa_best(), 1);
        if (!isnan(x.w[3]) || isnan(x.w[4]))
            fail_msg("%s: NaN gives %g", specs[k], (double)x.w[3]);
    }
}

static void a_learning_rate_of_zero_changes_no_weight(void **state)
{
    (void)state;
    for (int k = 0; k < SPECS; k++) {
        struct optim o = parse(specs[k]);
        struct weights x = { 0 };
        float *s[OPTIM_STATES] = { x.s[0], x.s[1], x.s[2] };
        start(&x, &o);
        for (uint64_t t = 1; t <= 3; t++) {
            draw_gradient(&x, t);
            step(&x, &o, isa_best(), t);
        }
        float before[N];
        memcpy(before, x.w, sizeof before);
        /* cosine ends a rounding error below 0; a step schedule of many epochs underflows */
        static const double factors[] = { 0, -1.1e-16, 1e-300 };
        for (uint64_t t = 4; t <= 9; t++) {
            draw_gradient(&x, t);
            optim_begin(&o, t, factors[t % 3]);
            kernels_of(isa_best())->optim_pass(&o, x.w, s, x.g, N, 1);
            for (int i = 0; i < N; i++)
                if (memcmp(&x.w[i], &before[i], sizeof(float)) != 0 &&
                    fabsf(x.w[i] - before[i]) > 1e-12f)
                    fail_msg("%s: at rate %g a weight of %g becomes %g", specs[k],
                             o.lr * factors[t % 3], (double)before[i], (double)x.w[i]);
        }
        draw_gradient(&x, 10);          /* and it learns again when the rate comes back */
        step(&x, &o, isa_best(), 10);
        for (int i = 0; i < N; i++)
            assert_true(isfinite(x.w[i]));
        assert_memory_not_equal(x.w, before, sizeof before);
    }
}

static void an_eps_of_zero_leaves_weights_without_gradients_as_they_are(void **state)
{
    (void)state;
    static const char *const without[] = {
        "{\"adam\": {\"lr\": 0.01, \"eps\": 0}}",
        "{\"adamw\": {\"lr\": 0.01, \"eps\": 0, \"weight_decay\": 0}}",
        "{\"adagrad\": {\"lr\": 0.1, \"eps\": 0}}",
        "{\"rmsprop\": {\"lr\": 0.01, \"eps\": 0}}",
        "{\"rmsprop\": {\"lr\": 0.01, \"eps\": 0, \"centered\": true, \"momentum\": 0.5}}",
        "{\"ftrl\": {\"lr\": 0.1, \"initial_accumulator\": 0.1}}",
    };
    for (size_t k = 0; k < sizeof without / sizeof *without; k++)
        for (int isa = 0; isa <= (int)isa_best(); isa++) {
            struct optim o = parse(without[k]);
            struct weights x = { 0 };
            start(&x, &o);
            if (o.kind == OPTIM_FTRL)
                memset(x.w, 0, sizeof x.w);
            const float kept = x.w[5];
            for (uint64_t t = 1; t <= 3; t++) {
                draw_gradient(&x, t);
                x.g[5] = 0;
                step(&x, &o, (enum isa)isa, t);
            }
            for (int i = 0; i < N; i++)
                if (!isfinite(x.w[i]))
                    fail_msg("%s, %s: weight %d is %g", without[k], isa_name((enum isa)isa), i,
                             (double)x.w[i]);
            assert_true(x.w[5] == kept);
        }
}

static void a_constant_gradient_keeps_centered_rmsprop_finite(void **state)
{
    (void)state;
    for (int isa = 0; isa <= (int)isa_best(); isa++) {
        struct optim o = parse("{\"rmsprop\": {\"lr\": 1e-12, \"alpha\": 0.5, \"centered\": true}}");
        struct weights x = { 0 };
        start(&x, &o);
        draw_gradient(&x, 1);           /* the same in every step: square = mean^2 in the end */
        for (uint64_t t = 1; t <= 200; t++) {
            step(&x, &o, (enum isa)isa, t);
            for (int i = 0; i < N; i++)
                if (!isfinite(x.w[i]))
                    fail_msg("%s: weight %d is %g after step %d", isa_name((enum isa)isa), i,
                             (double)x.w[i], (int)t);
        }
    }
}

static void clipping_by_value_bounds_each_gradient(void **state)
{
    (void)state;
    struct optim o = parse(specs[0]);
    struct weights x = { 0 };

    o.clip_value = 0.5f;
    x.g[0] = 3;
    x.g[1] = -3;
    x.g[2] = 0.25f;
    step(&x, &o, isa_best(), 1);
    assert_true(x.w[0] == -0.05f);
    assert_true(x.w[1] == 0.05f);
    assert_true(x.w[2] == -0.025f);
}

/* Adam in double, as the paper has it. */
static void adam_follows_its_paper(void **state)
{
    (void)state;
    struct optim o = parse("{\"adam\": {\"lr\": 0.01}}");
    struct weights x = { 0 };
    double w[N], m[N] = { 0 }, v[N] = { 0 };

    start(&x, &o);
    for (int i = 0; i < N; i++)
        w[i] = x.w[i];
    for (uint64_t t = 1; t <= STEPS; t++) {
        draw_gradient(&x, t);
        step(&x, &o, isa_best(), t);
        for (int i = 0; i < N; i++) {
            m[i] = 0.9 * m[i] + 0.1 * x.g[i];
            v[i] = 0.999 * v[i] + 0.001 * x.g[i] * x.g[i];
            w[i] -= 0.01 * (m[i] / (1 - pow(0.9, (double)t))) /
                    (sqrt(v[i] / (1 - pow(0.999, (double)t))) + 1e-8);
        }
    }
    for (int i = 0; i < N; i++)
        if (fabs(x.w[i] - w[i]) > 1e-6)
            fail_msg("weight %d is %.9g, not %.9g", i, (double)x.w[i], w[i]);
}

static void the_rate_is_scaled_by_the_schedule(void **state)
{
    (void)state;
    struct optim o = parse("{\"sgd\": {\"lr\": 0.5}}");

    optim_begin(&o, 1, 0.1);
    assert_true(o.k[0] == -0.05f);
    o = parse("{\"ftrl\": {\"lr\": 0.5}}");
    optim_begin(&o, 1, 0);
    assert_true(isfinite(o.k[1]));              /* a schedule may end at rate 0 */
}

static void settings_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "{\"sgd\": {\"lr\": 0.1, \"nesterov\": true}}", "{\"sgd\": {\"lr\": -1}}",
        "{\"ftrl\": {\"lr\": 0}}", "{\"ftrl\": {\"lr\": 1, \"lr_power\": 0.5}}", "{\"sdg\": {}}",
    };

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct err err = { 0 };
        struct optim o;
        json_t *spec = json_loads(wrong[i], 0, NULL);
        assert_fails(optim_parse(spec, &o, &err), ERR_INVALID);
        json_decref(spec);
    }
}

CHECK_MAIN(instruction_sets_agree_on_every_bit, what_is_zero_and_has_no_gradient_stays_zero,
           a_gradient_that_is_not_a_number_is_not_hidden, a_learning_rate_of_zero_changes_no_weight,
           an_eps_of_zero_leaves_weights_without_gradients_as_they_are,
           a_constant_gradient_keeps_centered_rmsprop_finite,
           clipping_by_value_bounds_each_gradient,
           adam_follows_its_paper, the_rate_is_scaled_by_the_schedule,
           settings_that_make_no_sense_are_refused)
