/* engine/vec.h - sixteen floats at a time, on three instruction sets
 *
 * Kernels are written once over `v16` (and `v8`, half of it) and built three times: AVX-512, AVX2
 * (two halves) and plain C. Each operation gives the same bits on all three: one IEEE operation a
 * lane, fused multiply-add where it says fma, and comparisons that are false for NaN. A horizontal
 * sum has one fixed tree (v_sum).
 *
 * Included by kernel sources only; ISA is set by the build.
 */
#ifndef MUSTER_ENGINE_VEC_H
#define MUSTER_ENGINE_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define ISA_PASTE2(a, b) a##_##b
#define ISA_PASTE(a, b) ISA_PASTE2(a, b)
/* The name of a symbol in this build of the kernels: ISA_FN(f) is f_avx512, f_avx2 or f_scalar. */
#define ISA_FN(name) ISA_PASTE(name, ISA)

#define INLINE static inline __attribute__((always_inline))
#define KERNEL static __attribute__((noinline)) /* registers of its own; visible to a profiler */
#define ALIGNED _Alignas(64)
#if defined ISA_SCALAR
#define UNROLL                  /* bits, not speed: lanes are loops already */
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

/* Makes a pointer unknown to the compiler: else gcc carries loaded values from one round of a loop
 * to the next, runs out of registers and spills. */
#define HIDE(p) __asm__("" : "+r"(p))

typedef uint16_t mask16;        /* a bit a lane */

#if defined ISA_AVX512
#include <immintrin.h>
typedef __m512 v16;
typedef __m256 v8;
INLINE v16 v_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void v_store(float *p, v16 a) { _mm512_storeu_ps(p, a); }
INLINE v16 v_set1(float x) { return _mm512_set1_ps(x); }
INLINE v16 v_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
INLINE v16 v_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
INLINE v16 v_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
INLINE v16 v_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
INLINE v16 v_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }
INLINE v16 v_sqrt(v16 a) { return _mm512_sqrt_ps(a); }
INLINE mask16 v_gt(v16 a, v16 b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
INLINE mask16 v_eq(v16 a, v16 b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
INLINE v16 v_pick(mask16 m, v16 a, v16 b) { return _mm512_mask_blend_ps(m, b, a); }
INLINE v16 v_sel_gt(v16 x, v16 y, v16 a, v16 b) { return v_pick(v_gt(x, y), a, b); }
INLINE v16 v_sel_eq(v16 x, v16 y, v16 a, v16 b) { return v_pick(v_eq(x, y), a, b); }
INLINE v16 v_pin(v16 a) { __asm__("" : "+v"(a)); return a; }
/* 2^n for whole n in [-126, 127] held as a float */
INLINE v16 v_pow2(v16 n)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
INLINE v16 v_from_u8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p)));
}
INLINE v8 v8_load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void v8_store(float *p, v8 a) { _mm256_storeu_ps(p, a); }
INLINE v8 v8_set1(float x) { return _mm256_set1_ps(x); }
INLINE v8 v8_fma(v8 a, v8 b, v8 c) { return _mm256_fmadd_ps(a, b, c); }
INLINE v8 v8_add(v8 a, v8 b) { return _mm256_add_ps(a, b); }
#elif defined ISA_AVX2
#include <immintrin.h>
typedef struct { __m256 l, h; } v16;
typedef __m256 v8;
INLINE v16 v_load(const float *p) { return (v16){ _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8) }; }
INLINE void v_store(float *p, v16 a) { _mm256_storeu_ps(p, a.l); _mm256_storeu_ps(p + 8, a.h); }
INLINE v16 v_set1(float x) { __m256 s = _mm256_set1_ps(x); return (v16){ s, s }; }
INLINE v16 v_fma(v16 a, v16 b, v16 c)
{
    return (v16){ _mm256_fmadd_ps(a.l, b.l, c.l), _mm256_fmadd_ps(a.h, b.h, c.h) };
}
INLINE v16 v_add(v16 a, v16 b) { return (v16){ _mm256_add_ps(a.l, b.l), _mm256_add_ps(a.h, b.h) }; }
INLINE v16 v_sub(v16 a, v16 b) { return (v16){ _mm256_sub_ps(a.l, b.l), _mm256_sub_ps(a.h, b.h) }; }
INLINE v16 v_mul(v16 a, v16 b) { return (v16){ _mm256_mul_ps(a.l, b.l), _mm256_mul_ps(a.h, b.h) }; }
INLINE v16 v_div(v16 a, v16 b) { return (v16){ _mm256_div_ps(a.l, b.l), _mm256_div_ps(a.h, b.h) }; }
INLINE v16 v_sqrt(v16 a) { return (v16){ _mm256_sqrt_ps(a.l), _mm256_sqrt_ps(a.h) }; }
INLINE mask16 v_gt(v16 a, v16 b)
{
    return (mask16)(_mm256_movemask_ps(_mm256_cmp_ps(a.l, b.l, _CMP_GT_OQ)) |
                    _mm256_movemask_ps(_mm256_cmp_ps(a.h, b.h, _CMP_GT_OQ)) << 8);
}
INLINE mask16 v_eq(v16 a, v16 b)
{
    return (mask16)(_mm256_movemask_ps(_mm256_cmp_ps(a.l, b.l, _CMP_EQ_OQ)) |
                    _mm256_movemask_ps(_mm256_cmp_ps(a.h, b.h, _CMP_EQ_OQ)) << 8);
}
INLINE __m256 v8_mask(int m)
{
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(m), bit), bit));
}
INLINE v16 v_pick(mask16 m, v16 a, v16 b)
{
    return (v16){ _mm256_blendv_ps(b.l, a.l, v8_mask(m & 255)),
                  _mm256_blendv_ps(b.h, a.h, v8_mask(m >> 8)) };
}
INLINE v16 v_sel_gt(v16 x, v16 y, v16 a, v16 b)
{
    return (v16){ _mm256_blendv_ps(b.l, a.l, _mm256_cmp_ps(x.l, y.l, _CMP_GT_OQ)),
                  _mm256_blendv_ps(b.h, a.h, _mm256_cmp_ps(x.h, y.h, _CMP_GT_OQ)) };
}
INLINE v16 v_sel_eq(v16 x, v16 y, v16 a, v16 b)
{
    return (v16){ _mm256_blendv_ps(b.l, a.l, _mm256_cmp_ps(x.l, y.l, _CMP_EQ_OQ)),
                  _mm256_blendv_ps(b.h, a.h, _mm256_cmp_ps(x.h, y.h, _CMP_EQ_OQ)) };
}
INLINE v16 v_pin(v16 a) { __asm__("" : "+x"(a.l), "+x"(a.h)); return a; }
INLINE __m256 v8_pow2(__m256 n)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(
        _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
INLINE v16 v_pow2(v16 n) { return (v16){ v8_pow2(n.l), v8_pow2(n.h) }; }
INLINE v16 v_from_u8(const uint8_t *p)
{
    __m128i b = _mm_loadu_si128((const void *)p);
    return (v16){ _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(b)),
                  _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(b, 8))) };
}
INLINE v8 v8_load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void v8_store(float *p, v8 a) { _mm256_storeu_ps(p, a); }
INLINE v8 v8_set1(float x) { return _mm256_set1_ps(x); }
INLINE v8 v8_fma(v8 a, v8 b, v8 c) { return _mm256_fmadd_ps(a, b, c); }
INLINE v8 v8_add(v8 a, v8 b) { return _mm256_add_ps(a, b); }
#elif defined ISA_SCALAR
typedef struct { float f[16]; } v16;
typedef struct { float f[8]; } v8;
#define LANES(e) v16 r; for (int i = 0; i < 16; i++) r.f[i] = (e); return r
#define LANES8(e) v8 r; for (int i = 0; i < 8; i++) r.f[i] = (e); return r
INLINE v16 v_load(const float *p) { v16 r; memcpy(&r, p, sizeof r); return r; }
INLINE void v_store(float *p, v16 a) { memcpy(p, &a, sizeof a); }
INLINE v16 v_set1(float x) { LANES(x); }
INLINE v16 v_fma(v16 a, v16 b, v16 c) { LANES(fmaf(a.f[i], b.f[i], c.f[i])); }
INLINE v16 v_add(v16 a, v16 b) { LANES(a.f[i] + b.f[i]); }
INLINE v16 v_sub(v16 a, v16 b) { LANES(a.f[i] - b.f[i]); }
INLINE v16 v_mul(v16 a, v16 b) { LANES(a.f[i] * b.f[i]); }
INLINE v16 v_div(v16 a, v16 b) { LANES(a.f[i] / b.f[i]); }
INLINE v16 v_sqrt(v16 a) { LANES(sqrtf(a.f[i])); }
INLINE mask16 v_gt(v16 a, v16 b)
{
    mask16 m = 0;
    for (int i = 0; i < 16; i++) m |= (mask16)((a.f[i] > b.f[i]) << i);
    return m;
}
INLINE mask16 v_eq(v16 a, v16 b)
{
    mask16 m = 0;
    for (int i = 0; i < 16; i++) m |= (mask16)((a.f[i] == b.f[i]) << i);
    return m;
}
INLINE v16 v_pick(mask16 m, v16 a, v16 b) { LANES(m >> i & 1 ? a.f[i] : b.f[i]); }
INLINE v16 v_sel_gt(v16 x, v16 y, v16 a, v16 b) { LANES(x.f[i] > y.f[i] ? a.f[i] : b.f[i]); }
INLINE v16 v_sel_eq(v16 x, v16 y, v16 a, v16 b) { LANES(x.f[i] == y.f[i] ? a.f[i] : b.f[i]); }
INLINE v16 v_pin(v16 a) { return a; }
INLINE v16 v_pow2(v16 n)
{
    v16 r;
    for (int i = 0; i < 16; i++) {
        uint32_t bits = (uint32_t)((int32_t)n.f[i] + 127) << 23;
        memcpy(&r.f[i], &bits, 4);
    }
    return r;
}
INLINE v16 v_from_u8(const uint8_t *p) { LANES(p[i]); }
INLINE v8 v8_load(const float *p) { v8 r; memcpy(&r, p, sizeof r); return r; }
INLINE void v8_store(float *p, v8 a) { memcpy(p, &a, sizeof a); }
INLINE v8 v8_set1(float x) { LANES8(x); }
INLINE v8 v8_fma(v8 a, v8 b, v8 c) { LANES8(fmaf(a.f[i], b.f[i], c.f[i])); }
INLINE v8 v8_add(v8 a, v8 b) { LANES8(a.f[i] + b.f[i]); }
#else
#error "the build sets ISA and one of ISA_AVX512, ISA_AVX2, ISA_SCALAR"
#endif

INLINE v16 v_zero(void) { return v_set1(0); }
/* x > y ? x : y, so NaN in x gives y; a tie keeps y. This is what the processor's max does. */
#if defined ISA_AVX512
INLINE v16 v_max(v16 x, v16 y) { return _mm512_max_ps(x, y); }
#elif defined ISA_AVX2
INLINE v16 v_max(v16 x, v16 y) { return (v16){ _mm256_max_ps(x.l, y.l), _mm256_max_ps(x.h, y.h) }; }
#else
INLINE v16 v_max(v16 x, v16 y) { return v_sel_gt(x, y, x, y); }
#endif
INLINE v16 v_min(v16 x, v16 y) { return v_sel_gt(y, x, x, y); }
INLINE v16 v_relu(v16 a) { return v_max(a, v_zero()); }

/* The sum of the lanes. The tree: quad q = (a[4q] + a[4q+2]) + (a[4q+1] + a[4q+3]);
 * sum = (quad0 + quad1) + (quad2 + quad3). */
INLINE float v_sum(v16 v)
{
    ALIGNED float a[16];
    float quad[4];

    v_store(a, v);
    for (int q = 0; q < 4; q++)
        quad[q] = (a[4 * q] + a[4 * q + 2]) + (a[4 * q + 1] + a[4 * q + 3]);
    return (quad[0] + quad[1]) + (quad[2] + quad[3]);
}

/* The first n lanes from memory, zero beyond; the same to memory. For edges, not inner loops. */
INLINE v16 v_load_n(const float *p, int n)
{
    ALIGNED float a[16] = { 0 };
    memcpy(a, p, (size_t)(n < 16 ? n : 16) * sizeof *p);
    return v_load(a);
}
INLINE void v_store_n(float *p, v16 v, int n)
{
    ALIGNED float a[16];
    v_store(a, v);
    memcpy(p, a, (size_t)(n < 16 ? n : 16) * sizeof *p);
}

#endif
