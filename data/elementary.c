/* data/elementary.c - log and exp by range reduction and a short series */
#include "data/elementary.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* ln 2 in two parts: the first has 32 zero bits at its end, so k * LN2_HI is exact. */
static const double LN2_HI = 6.93147180369123816490e-01;
static const double LN2_LO = 1.90821492927058770002e-10;

/* 2 atanh(s) = 2 (s + s^3/3 + s^5/5 + ...); |s| <= 0.1716 where x is in [1/sqrt 2, sqrt 2]. */
static double atanh_twice(double s)
{
    double z = s * s, sum = 0;
    for (int k = 21; k >= 3; k -= 2)
        sum = (sum + 1.0 / k) * z;
    return 2 * s + 2 * s * sum;
}

double elementary_log(double x)
{
    if (!(x > 0))
        return x == 0 ? -INFINITY : NAN;
    if (isinf(x))
        return x;
    int k;
    double m = frexp(x, &k);            /* m in [0.5, 1) */
    if (m < 0.70710678118654752440) {
        m *= 2;
        k--;
    }
    double l = atanh_twice((m - 1) / (m + 1));
    return k * LN2_HI + (l + k * LN2_LO);
}

double elementary_log1p(double x)
{
    if (x > -0.25 && x < 0.4)           /* 1 + x would lose the low bits of x */
        return atanh_twice(x / (2 + x));
    return elementary_log(1 + x);
}

double elementary_exp(double x)
{
    if (isnan(x))
        return x;
    if (x > 709.782712893384)
        return INFINITY;
    if (x < -745.2)
        return 0;
    double k = floor(x * 1.44269504088896340736 + 0.5);
    double r = (x - k * LN2_HI) - k * LN2_LO;           /* |r| <= 0.347 */
    double sum = 0;
    for (int i = 14; i >= 1; i--)
        sum = (1 + sum) * (r / i);
    return ldexp(1 + sum, (int)k);
}
