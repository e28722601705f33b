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
           a_gradient_that_is_not_a_number_is_not_hidden, clipping_by_value_bounds_each_gradient,
           adam_follows_its_paper, the_rate_is_scaled_by_the_schedule,
           settings_that_make_no_sense_are_refused)
