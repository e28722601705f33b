/* tests/unit/math_test.c - exp, log and the rest: close to the truth, the same on every machine */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "engine/plan.h"
#include "tests/check.h"

typedef void lanes_fn(int f, const float *x, const float *b, float *y, long n);
lanes_fn math_lanes_scalar, math_lanes_avx2, math_lanes_avx512;

enum { N = 1 << 16 };
static float x[N], b[N], y[N], other[N];

static double rsqrt(double v) { return 1 / sqrt(v); }
static double sigmoid(double v) { return 1 / (1 + exp(-v)); }

/* Bounds in units of the last place (ulp), a little above the worst that a sweep of all floats in the
 * range showed. */
static const struct fn {
    const char *name;
    double (*truth)(double v);
    float low, high;
    double bound;
    double least;               /* below it the error is measured absolutely, as ulp of this */
} fns[] = {
    { "exp", exp, -87, 88.5f, 1.5, 0 },
    { "log", log, 1e-38f, 1e38f, 1.5, 0 },
    { "tanh", tanh, -10, 10, 2, 0 },
    { "erf", erf, -5, 5, 2, 0 },
    { "rsqrt", rsqrt, 1e-38f, 1e38f, 1.5, 0 },
    { "sin", sin, -100, 100, 2, 1e-2 },
    { "cos", cos, -100, 100, 2, 1e-2 },
    { "sigmoid", sigmoid, -80, 80, 2.5, 0 },
};
enum { FNS = sizeof fns / sizeof *fns, POW = FNS };

/* Even in the logarithm where the range is all positive, else even. */
static float sample(const struct fn *f, uint64_t i)
{
    float u = rng_uniform(3, 1, i);

    if (f->low > 0)
        return (float)(f->low * pow((double)f->high / f->low, u));
    return f->low + (f->high - f->low) * u;
}

static double ulps(float got, double want, double least)
{
    int e;

    frexp(fabs(want) > least ? want : least, &e);
    return fabs(got - want) / ldexp(1, e - 24);
}

static void results_are_within_two_units_of_the_last_place(void **state)
{
    (void)state;
    for (int f = 0; f < FNS; f++) {
        double worst = 0;
        float at = 0;
        for (int i = 0; i < N; i++)
            x[i] = sample(&fns[f], (uint64_t)i);
        math_lanes_scalar(f, x, b, y, N);
        for (int i = 0; i < N; i++) {
            double u = ulps(y[i], fns[f].truth(x[i]), fns[f].least);
            if (!(u <= worst)) {
                worst = u;
                at = x[i];
            }
        }
        if (!(worst <= fns[f].bound))
            fail_msg("%s(%.9g) is off by %.2f ulp, more than %.1f", fns[f].name, (double)at, worst,
                     fns[f].bound);
    }
}

static void a_power_is_within_two_units_where_accumulators_live(void **state)
{
    double worst = 0;
    int at = 0;

    (void)state;
    for (int i = 0; i < N; i++) {
        x[i] = 1e-6f * (float)pow(1e12, rng_uniform(3, 2, (uint64_t)i));
        b[i] = 2 * rng_uniform(3, 3, (uint64_t)i) - 1;
    }
    math_lanes_scalar(POW, x, b, y, N);
    for (int i = 0; i < N; i++) {
        double u = ulps(y[i], pow(x[i], b[i]), 0);
        if (!(u <= worst)) {
            worst = u;
            at = i;
        }
    }
    if (!(worst <= 2))
        fail_msg("pow(%.9g, %.9g) is off by %.2f ulp", (double)x[at], (double)b[at], worst);
}

static void edges_are_those_of_c(void **state)
{
    (void)state;
    static const struct { int f; float x, want; } edges[] = {
        { 0, 0, 1 }, { 0, 1000, INFINITY }, { 0, -1000, 0 }, { 0, INFINITY, INFINITY },
        { 0, -INFINITY, 0 }, { 1, 1, 0 }, { 1, 0, -INFINITY }, { 1, INFINITY, INFINITY },
        { 2, 0, 0 }, { 2, 100, 1 }, { 2, -INFINITY, -1 }, { 3, 0, 0 }, { 3, 100, 1 },
        { 3, -INFINITY, -1 }, { 5, 0, 0 }, { 6, 0, 1 }, { 7, 0, 0.5f }, { 7, -1000, 0 },
    };

    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
        for (int k = 0; k < 16; k++)
            x[k] = edges[i].x;
        math_lanes_scalar(edges[i].f, x, b, y, 16);
        if (y[0] != edges[i].want)
            fail_msg("%s(%g) is %g, not %g", fns[edges[i].f].name, (double)edges[i].x, (double)y[0],
                     (double)edges[i].want);
    }
}

static void not_a_number_stays_so(void **state)
{
    (void)state;
    for (int k = 0; k < 16; k++)
        x[k] = b[k] = NAN;
    for (int f = 0; f <= POW; f++) {
        math_lanes_scalar(f, x, b, y, 16);
        if (!isnan(y[0]))
            fail_msg("function %d of NaN is %g", f, (double)y[0]);
    }
    x[0] = -1;
    math_lanes_scalar(1, x, b, y, 16);
    assert_true(isnan(y[0]));
}

/* Any bits at all, denormals and infinities included. */
static void instruction_sets_agree_on_every_bit(void **state)
{
    static lanes_fn *const sets[] = { math_lanes_scalar, math_lanes_avx2, math_lanes_avx512 };

    (void)state;
    unsetenv("MUSTER_ISA");
    for (int f = 0; f <= POW; f++)
        for (int round = 0; round < 2; round++) {
            for (int i = 0; i < N; i++) {
                uint32_t bits = rng_word(5, (uint64_t)f, (uint64_t)i);
                if (round == 0)
                    memcpy(&x[i], &bits, 4);
                else
                    x[i] = 20 * rng_unit(bits) - 10;
                b[i] = 4 * rng_uniform(6, (uint64_t)f, (uint64_t)i) - 2;
            }
            math_lanes_scalar(f, x, b, y, N);
            for (int s = 1; s <= (int)isa_best(); s++) {
                sets[s](f, x, b, other, N);
                for (int i = 0; i < N; i++)
                    if (memcmp(&y[i], &other[i], 4) != 0 && !(isnan(y[i]) && isnan(other[i])))
                        fail_msg("function %d of %.9g (%.9g) is %.9g with %s, %.9g with scalar", f,
                                 (double)x[i], (double)b[i], (double)other[i],
                                 isa_name((enum isa)s), (double)y[i]);
            }
        }
}

CHECK_MAIN(results_are_within_two_units_of_the_last_place,
           a_power_is_within_two_units_where_accumulators_live, edges_are_those_of_c,
           not_a_number_stays_so, instruction_sets_agree_on_every_bit)
