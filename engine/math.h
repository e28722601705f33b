/* engine/math.h - exp, log, tanh, erf, pow, rsqrt, sin, cos with the same bits everywhere
 *
 * libm picks variants by processor, so kernels use these: sixteen lanes, made of the operations of
 * engine/vec.h alone. Within 2 units of the last place of the true value (tests/unit/math_test.c
 * has the bounds), NaN in gives NaN out, no flags are kept. Polynomials are those of the Cephes
 * library (Moshier), evaluated with fused multiply-adds.
 *
 * f_NAME(x) is one lane of v_NAME. A source outside the kernels says `#define ISA scalar` and
 * `#define ISA_SCALAR` before it includes this.
 */
#ifndef MUSTER_ENGINE_MATH_H
#define MUSTER_ENGINE_MATH_H

#include "engine/vec.h"

/* x = m * 2^e with m in [sqrt(1/2), sqrt(2)), for normal x > 0. Returns e. */
#if defined ISA_AVX512
INLINE v16 v_split(v16 x, v16 *m)
{
    __m512i bits = _mm512_castps_si512(x);
    __m512i e = _mm512_srai_epi32(_mm512_sub_epi32(bits, _mm512_set1_epi32(0x3f3504f3)), 23);
    *m = _mm512_castsi512_ps(_mm512_sub_epi32(bits, _mm512_slli_epi32(e, 23)));
    return _mm512_cvtepi32_ps(e);
}
INLINE v16 v_abs(v16 x)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x),
                                                _mm512_set1_epi32(0x7fffffff)));
}
/* |a| with the sign of s, for a >= 0 */
INLINE v16 v_copysign(v16 a, v16 s)
{
    __m512i sign = _mm512_and_si512(_mm512_castps_si512(s), _mm512_set1_epi32((int)0x80000000));
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(a), sign));
}
#elif defined ISA_AVX2
INLINE __m256 v8_split(__m256 x, __m256 *m)
{
    __m256i bits = _mm256_castps_si256(x);
    __m256i e = _mm256_srai_epi32(_mm256_sub_epi32(bits, _mm256_set1_epi32(0x3f3504f3)), 23);
    *m = _mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_slli_epi32(e, 23)));
    return _mm256_cvtepi32_ps(e);
}
INLINE v16 v_split(v16 x, v16 *m)
{
    v16 e;
    e.l = v8_split(x.l, &m->l);
    e.h = v8_split(x.h, &m->h);
    return e;
}
INLINE v16 v_abs(v16 x)
{
    const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return (v16){ _mm256_and_ps(x.l, mask), _mm256_and_ps(x.h, mask) };
}
INLINE v16 v_copysign(v16 a, v16 s)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return (v16){ _mm256_or_ps(a.l, _mm256_and_ps(s.l, sign)),
                  _mm256_or_ps(a.h, _mm256_and_ps(s.h, sign)) };
}
#else
INLINE v16 v_split(v16 x, v16 *m)
{
    v16 r;
    for (int i = 0; i < 16; i++) {
        uint32_t bits;
        memcpy(&bits, &x.f[i], 4);
        int32_t e = (int32_t)(bits - 0x3f3504f3u) >> 23;
        bits -= (uint32_t)e << 23;
        memcpy(&m->f[i], &bits, 4);
        r.f[i] = (float)e;
    }
    return r;
}
INLINE v16 v_abs(v16 x) { LANES(fabsf(x.f[i])); }
INLINE v16 v_copysign(v16 a, v16 s) { LANES(copysignf(a.f[i], s.f[i])); }
#endif

INLINE v16 v_neg(v16 x) { return v_sub(v_set1(-0.0f), x); }
/* a where x is a number, else x */
INLINE v16 v_keep_nan(v16 x, v16 a) { return v_sel_eq(x, x, a, x); }
/* To the nearest whole number, ties to even, for |x| < 2^22. */
INLINE v16 v_round(v16 x) { return v_sub(v_add(x, v_set1(12582912)), v_set1(12582912)); }

/* c[0] x^(n-1) + ... + c[n-1] */
INLINE v16 v_poly(v16 x, const float *c, int n)
{
    v16 r = v_set1(c[0]);
    for (int i = 1; i < n; i++)
        r = v_fma(r, x, v_set1(c[i]));
    return r;
}

/* e^r * 2^n with |r| <= 0.35. Two factors, since 2^n alone may be out of range where the product
 * is not. */
INLINE v16 v_exp_scaled(v16 r, v16 n)
{
    static const float c[] = { 1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                               4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f };
    v16 p = v_fma(v_poly(r, c, 6), v_mul(r, r), r);
    v16 half = v_round(v_mul(n, v_set1(0.5f)));

    p = v_add(p, v_set1(1));
    return v_mul(v_mul(p, v_pow2(half)), v_pow2(v_sub(n, half)));
}

INLINE v16 v_exp(v16 x)
{
    v16 y = v_sel_gt(x, v_set1(89), v_set1(89), x);
    y = v_sel_gt(v_set1(-104), y, v_set1(-104), y);
    y = v_sel_eq(x, x, y, v_zero());
    v16 n = v_round(v_mul(y, v_set1(1.44269504f)));
    v16 r = v_fma(n, v_set1(-0.693359375f), y);
    r = v_fma(n, v_set1(2.12194440e-4f), r);
    return v_keep_nan(x, v_exp_scaled(r, n));
}

/* The polynomial part of log(1 + f), -0.3 <= f <= 0.42: log = f - f^2 / 2 + f^3 P(f). */
INLINE v16 v_log_tail(v16 f)
{
    static const float c[] = { 7.0376836292e-2f, -1.1514610310e-1f, 1.1676998740e-1f,
                               -1.2420140846e-1f, 1.4249322787e-1f, -1.6668057665e-1f,
                               2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f };
    return v_mul(v_mul(v_mul(f, f), f), v_poly(f, c, 9));
}

/* What log gives outside the positive numbers: log 0 = -inf, log inf = inf, else NaN. */
INLINE v16 v_log_edges(v16 x, v16 log)
{
    log = v_sel_eq(x, v_set1(INFINITY), x, log);
    log = v_sel_eq(x, v_zero(), v_set1(-INFINITY), log);
    log = v_sel_gt(v_zero(), x, v_set1(NAN), log);
    return v_keep_nan(x, log);
}

INLINE v16 v_log(v16 x)
{
    mask16 tiny = v_gt(v_set1(0x1p-126f), x);
    v16 m, e = v_split(v_pick(tiny, v_mul(x, v_set1(0x1p25f)), x), &m);
    v16 f = v_sub(m, v_set1(1));

    e = v_pick(tiny, v_sub(e, v_set1(25)), e);
    v16 y = v_fma(e, v_set1(-2.12194440e-4f), v_log_tail(f));
    y = v_fma(v_set1(-0.5f), v_mul(f, f), y);
    return v_log_edges(x, v_fma(e, v_set1(0.693359375f), v_add(f, y)));
}

/* x^y for x >= 0; exact to 2 units while |y log x| < 20, the range of an accumulator's root. The
 * logarithm is carried as a sum of two floats. */
INLINE v16 v_pow(v16 x, v16 y)
{
    mask16 tiny = v_gt(v_set1(0x1p-126f), x);
    v16 m, e = v_split(v_pick(tiny, v_mul(x, v_set1(0x1p25f)), x), &m);
    v16 f = v_sub(m, v_set1(1));

    e = v_pick(tiny, v_sub(e, v_set1(25)), e);
    /* log x = a + b + c: a = e ln2 (upper bits, exact), b = f, c = the rest with its own error */
    v16 a = v_mul(e, v_set1(0.693359375f));
    v16 sq = v_mul(f, f), sq_low = v_fma(f, f, v_neg(sq));
    v16 c = v_fma(e, v_set1(-2.12194440e-4f), v_fma(v_set1(-0.5f), sq_low, v_log_tail(f)));
    v16 b = v_fma(v_set1(-0.5f), sq, f);
    c = v_add(c, v_sub(v_sub(f, b), v_mul(v_set1(0.5f), sq)));
    v16 s = v_add(a, b), t = v_sub(s, a);
    v16 low = v_add(v_add(v_sub(a, v_sub(s, t)), v_sub(b, t)), c);
    v16 hi = v_add(s, low);
    low = v_add(v_sub(s, hi), low);

    v16 p = v_mul(hi, y), p_low = v_fma(low, y, v_fma(hi, y, v_neg(p)));
    p = v_sel_gt(p, v_set1(89), v_set1(89), p);
    p = v_sel_gt(v_set1(-104), p, v_set1(-104), p);
    p = v_sel_eq(p, p, p, v_zero());
    v16 n = v_round(v_mul(p, v_set1(1.44269504f)));
    v16 r = v_fma(n, v_set1(2.12194440e-4f), v_fma(n, v_set1(-0.693359375f), p));
    v16 z = v_exp_scaled(v_add(r, p_low), n);

    z = v_sel_eq(x, v_zero(), v_sel_gt(y, v_zero(), v_zero(), v_set1(INFINITY)), z);
    z = v_sel_eq(y, v_zero(), v_set1(1), z);
    z = v_sel_gt(v_zero(), x, v_set1(NAN), z);
    return v_keep_nan(y, v_keep_nan(x, z));
}

INLINE v16 v_rsqrt(v16 x) { return v_div(v_set1(1), v_sqrt(x)); }
INLINE v16 v_sigmoid(v16 x) { return v_div(v_set1(1), v_add(v_set1(1), v_exp(v_neg(x)))); }

INLINE v16 v_tanh(v16 x)
{
    static const float c[] = { -5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f,
                               1.33314422036e-1f, -3.33332819422e-1f };
    v16 a = v_abs(x), z = v_mul(x, x);
    v16 near = v_fma(v_mul(v_poly(z, c, 5), z), x, x);
    v16 far = v_sub(v_set1(1), v_div(v_set1(2), v_add(v_exp(v_add(a, a)), v_set1(1))));

    return v_keep_nan(x, v_sel_gt(v_set1(0.625f), a, near, v_copysign(far, x)));
}

INLINE v16 v_erf(v16 x)
{
    static const float t[] = { 7.853861353153693e-5f, -8.010193625184903e-4f, 5.188327685732524e-3f,
                               -2.685381193529856e-2f, 1.128358514861418e-1f,
                               -3.761262582423300e-1f, 0.128379165726710f };
    static const float p[] = { 2.326819970068386e-2f, -1.387039388740657e-1f, 3.687424674597105e-1f,
                               -5.824733027278666e-1f, 6.210004621745983e-1f,
                               -4.944515323274145e-1f, 3.404879937665872e-1f,
                               -2.741127028184656e-1f, 5.638259427386472e-1f };
    static const float r[] = { -1.047766399936249e+1f, 1.297719955372516e+1f,
                               -7.495518717768503f, 2.921019019210786f, -1.015265279202700f,
                               4.218463358204948e-1f, -2.820767439740514e-1f,
                               5.641895067754075e-1f };
    v16 a = v_abs(x), z = v_mul(x, x);
    v16 near = v_fma(x, v_poly(z, t, 7), x);
    v16 i = v_div(v_set1(1), a), q = v_mul(i, i);
    v16 tail = v_sel_gt(v_set1(2), a, v_poly(q, p, 9), v_poly(q, r, 8));
    tail = v_mul(v_mul(v_exp(v_neg(z)), i), tail);

    return v_keep_nan(x, v_sel_gt(v_set1(1), a, near, v_copysign(v_sub(v_set1(1), tail), x)));
}

/* sin and cos of x and, for quarter = 1, of x + pi/2. |x| up to 8192: beyond it the remainder
 * loses bits. */
INLINE v16 v_sin_quarter(v16 x, float quarter)
{
    static const float s[] = { -1.9515295891e-4f, 8.3321608736e-3f, -1.6666654611e-1f };
    static const float c[] = { 2.443315711809948e-5f, -1.388731625493765e-3f,
                               4.166664568298827e-2f };
    v16 n = v_round(v_mul(x, v_set1(0.636619772f)));
    v16 r = v_fma(n, v_set1(-1.5703125f), x);
    r = v_fma(n, v_set1(-4.837512969970703125e-4f), r);
    r = v_fma(n, v_set1(-7.54978995489188216e-8f), r);
    v16 z = v_mul(r, r);
    v16 sine = v_fma(v_mul(v_poly(z, s, 3), z), r, r);
    v16 cosine = v_fma(v_mul(z, z), v_poly(z, c, 3), v_fma(v_set1(-0.5f), z, v_set1(1)));
    /* the quadrant: 0 sin, 1 cos, 2 -sin, 3 -cos; in [-2, 2] before it is made positive */
    v16 k = v_add(n, v_set1(quarter));
    v16 quadrant = v_fma(v_set1(-4), v_round(v_mul(k, v_set1(0.25f))), k);
    quadrant = v_sel_gt(v_zero(), quadrant, v_add(quadrant, v_set1(4)), quadrant);
    v16 odd = v_sub(quadrant, v_sel_gt(quadrant, v_set1(1.5f), v_set1(2), v_zero()));
    v16 y = v_sel_gt(odd, v_set1(0.5f), cosine, sine);

    return v_keep_nan(x, v_sel_gt(quadrant, v_set1(1.5f), v_neg(y), y));
}
INLINE v16 v_sin(v16 x) { return v_sin_quarter(x, 0); }
INLINE v16 v_cos(v16 x) { return v_sin_quarter(x, 1); }

INLINE float f_lane(v16 v)
{
    ALIGNED float a[16];
    v_store(a, v);
    return a[0];
}
INLINE float f_exp(float x) { return f_lane(v_exp(v_set1(x))); }
INLINE float f_log(float x) { return f_lane(v_log(v_set1(x))); }
INLINE float f_pow(float x, float y) { return f_lane(v_pow(v_set1(x), v_set1(y))); }
INLINE float f_rsqrt(float x) { return f_lane(v_rsqrt(v_set1(x))); }
INLINE float f_tanh(float x) { return f_lane(v_tanh(v_set1(x))); }
INLINE float f_sigmoid(float x) { return f_lane(v_sigmoid(v_set1(x))); }
INLINE float f_erf(float x) { return f_lane(v_erf(v_set1(x))); }
INLINE float f_sin(float x) { return f_lane(v_sin(v_set1(x))); }
INLINE float f_cos(float x) { return f_lane(v_cos(v_set1(x))); }

#endif
