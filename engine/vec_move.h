/* engine/vec_move.h - vectors rearranged: sums of many, transposes, offsets
 *
 * What kernels need beside arithmetic (engine/vec.h). Each gives the same bits on every instruction
 * set: data is moved, or added in the tree that v_sum has.
 */
#ifndef MUSTER_ENGINE_VEC_MOVE_H
#define MUSTER_ENGINE_VEC_MOVE_H

#include "engine/vec.h"

/* Calls a line to be written: another core may have read it. The builtin would call it for reading,
 * unless the build asks for this old instruction, which every 64-bit processor accepts. */
INLINE void v_claim(void *p)
{
#if defined __x86_64__
    __asm__ volatile("prefetchw %0" : : "m"(*(char *)p));
#else
    __builtin_prefetch(p, 1);
#endif
}

#if defined ISA_AVX512

/* Lane j of the result is v_sum(a[j]). */
INLINE v16 v_sum16(const v16 a[16])
{
    v16 b[8], c[4], d[2];

    UNROLL for (int i = 0; i < 8; i++)
        b[i] = _mm512_add_ps(_mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]),
                             _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]));
    UNROLL for (int i = 0; i < 4; i++) {
        __m512d x = _mm512_castps_pd(b[2 * i]), y = _mm512_castps_pd(b[2 * i + 1]);
        c[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    }
    UNROLL for (int i = 0; i < 2; i++)
        d[i] = _mm512_add_ps(_mm512_shuffle_f32x4(c[2 * i], c[2 * i + 1], 0x88),
                             _mm512_shuffle_f32x4(c[2 * i], c[2 * i + 1], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(d[0], d[1], 0x88),
                         _mm512_shuffle_f32x4(d[0], d[1], 0xdd));
}

/* out[j] = v_sum(a[j]), four of them. */
INLINE void v_sum4(float *out, const v16 a[4])
{
    v16 x = _mm512_add_ps(_mm512_unpacklo_ps(a[0], a[1]), _mm512_unpackhi_ps(a[0], a[1]));
    v16 y = _mm512_add_ps(_mm512_unpacklo_ps(a[2], a[3]), _mm512_unpackhi_ps(a[2], a[3]));
    __m512d p = _mm512_castps_pd(x), q = _mm512_castps_pd(y);
    v16 c = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(p, q)),
                          _mm512_castpd_ps(_mm512_unpackhi_pd(p, q)));
    __m128 lo = _mm_add_ps(_mm512_castps512_ps128(c), _mm512_extractf32x4_ps(c, 1));
    __m128 hi = _mm_add_ps(_mm512_extractf32x4_ps(c, 2), _mm512_extractf32x4_ps(c, 3));
    _mm_storeu_ps(out, _mm_add_ps(lo, hi));
}

/* Four quarters of a to four rows. */
INLINE void v_store_quarters(float *p, long stride, v16 a)
{
    _mm_storeu_ps(p, _mm512_castps512_ps128(a));
    _mm_storeu_ps(p + stride, _mm512_extractf32x4_ps(a, 1));
    _mm_storeu_ps(p + 2 * stride, _mm512_extractf32x4_ps(a, 2));
    _mm_storeu_ps(p + 3 * stride, _mm512_extractf32x4_ps(a, 3));
}

/* Every second lane of a, then of b, from the first on. */
INLINE v16 v_even(v16 a, v16 b)
{
    const __m512i index =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_permutex2var_ps(a, index, b);
}

/* In each quarter of 4 lanes: transpose the 4x4 matrix whose rows are r[0..3]. */
INLINE void v_transpose_quarters(v16 r[4])
{
    __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(r[0], r[1]));
    __m512d b = _mm512_castps_pd(_mm512_unpacklo_ps(r[2], r[3]));
    __m512d c = _mm512_castps_pd(_mm512_unpackhi_ps(r[0], r[1]));
    __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(r[2], r[3]));
    r[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
    r[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    r[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(c, d));
    r[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(c, d));
}

/* dst[l * stride + i] = c[i] lane l, for 16 rows l and 8 columns i. */
INLINE void v_store_rows8(float *dst, long stride, const v16 c[8])
{
    const __m512i even = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i odd = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    v16 lo[4] = { c[0], c[1], c[2], c[3] }, hi[4] = { c[4], c[5], c[6], c[7] };

    v_transpose_quarters(lo);
    v_transpose_quarters(hi);
    UNROLL for (int j = 0; j < 4; j++) {
        __m512d x = _mm512_castps_pd(lo[j]), y = _mm512_castps_pd(hi[j]);
        v16 a = _mm512_castpd_ps(_mm512_permutex2var_pd(x, even, y));
        v16 b = _mm512_castpd_ps(_mm512_permutex2var_pd(x, odd, y));
        _mm256_storeu_ps(dst + stride * j, _mm512_castps512_ps256(a));
        _mm256_storeu_ps(dst + stride * (4 + j), _mm512_extractf32x8_ps(a, 1));
        _mm256_storeu_ps(dst + stride * (8 + j), _mm512_castps512_ps256(b));
        _mm256_storeu_ps(dst + stride * (12 + j), _mm512_extractf32x8_ps(b, 1));
    }
}

/* r[i] lane l = src[l * stride + i], for 16 rows l and 4 columns i. */
INLINE void v_load_columns4(v16 r[4], const float *src, long stride)
{
    UNROLL for (int j = 0; j < 4; j++) {
        const float *p = src + j * stride;
        __m512 v = _mm512_castps128_ps512(_mm_loadu_ps(p));
        v = _mm512_insertf32x4(v, _mm_loadu_ps(p + 4 * stride), 1);
        v = _mm512_insertf32x4(v, _mm_loadu_ps(p + 8 * stride), 2);
        r[j] = _mm512_insertf32x4(v, _mm_loadu_ps(p + 12 * stride), 3);
    }
    v_transpose_quarters(r);
}

/* dst[l] = base[l] + (down[l] ? row : 0) + (right[l] ? col : 0) */
INLINE void v_store_offsets(uint16_t *dst, const uint16_t *base, mask16 down, int row,
                            mask16 right, int col)
{
    __m256i o = _mm256_loadu_si256((const void *)base);
    o = _mm256_mask_add_epi16(o, down, o, _mm256_set1_epi16((short)row));
    o = _mm256_mask_add_epi16(o, right, o, _mm256_set1_epi16((short)col));
    _mm256_storeu_si256((void *)dst, o);
}
INLINE void v_fill_u16(uint16_t *dst, int value)
{
    _mm256_storeu_si256((void *)dst, _mm256_set1_epi16((short)value));
}

INLINE v8 v_low(v16 a) { return _mm512_castps512_ps256(a); }
INLINE v8 v8_mul(v8 a, v8 b) { return _mm256_mul_ps(a, b); }
INLINE v8 v8_first(v8 a, int n) { return _mm256_maskz_mov_ps((__mmask8)((1 << n) - 1), a); }

#elif defined ISA_AVX2

INLINE __m128 v8_add_halves(__m256 a)
{
    return _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
}
/* Sums of quads: lane 4q + j of the result is quad q of a[j]. */
INLINE __m256 v8_quads(__m256 a, __m256 b, __m256 c, __m256 d)
{
    __m256 x = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    __m256 y = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    __m256d p = _mm256_castps_pd(x), q = _mm256_castps_pd(y);
    return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(p, q)),
                         _mm256_castpd_ps(_mm256_unpackhi_pd(p, q)));
}
INLINE __m128 v_sum4_of(const v16 a[4])
{
    return _mm_add_ps(v8_add_halves(v8_quads(a[0].l, a[1].l, a[2].l, a[3].l)),
                      v8_add_halves(v8_quads(a[0].h, a[1].h, a[2].h, a[3].h)));
}
INLINE void v_sum4(float *out, const v16 a[4]) { _mm_storeu_ps(out, v_sum4_of(a)); }
INLINE v16 v_sum16(const v16 a[16])
{
    return (v16){ _mm256_set_m128(v_sum4_of(a + 4), v_sum4_of(a)),
                  _mm256_set_m128(v_sum4_of(a + 12), v_sum4_of(a + 8)) };
}
INLINE void v_store_quarters(float *p, long stride, v16 a)
{
    _mm_storeu_ps(p, _mm256_castps256_ps128(a.l));
    _mm_storeu_ps(p + stride, _mm256_extractf128_ps(a.l, 1));
    _mm_storeu_ps(p + 2 * stride, _mm256_castps256_ps128(a.h));
    _mm_storeu_ps(p + 3 * stride, _mm256_extractf128_ps(a.h, 1));
}
INLINE __m256 v8_even(__m256 a, __m256 b)
{
    __m256d x = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88));
    return _mm256_castpd_ps(_mm256_permute4x64_pd(x, 0xd8));
}
INLINE v16 v_even(v16 a, v16 b) { return (v16){ v8_even(a.l, a.h), v8_even(b.l, b.h) }; }

/* r[0..7] are the rows of an 8x8 matrix; afterwards its columns. */
INLINE void v8_transpose(__m256 r[8])
{
    __m256 a[8], b[8];

    UNROLL for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    UNROLL for (int i = 0; i < 2; i++) {
        b[4 * i] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0x44);
        b[4 * i + 1] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0xee);
        b[4 * i + 2] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0x44);
        b[4 * i + 3] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0xee);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(b[i], b[4 + i], 0x20);
        r[4 + i] = _mm256_permute2f128_ps(b[i], b[4 + i], 0x31);
    }
}
INLINE void v_store_rows8(float *dst, long stride, const v16 c[8])
{
    __m256 lo[8], hi[8];

    UNROLL for (int i = 0; i < 8; i++) lo[i] = c[i].l;
    v8_transpose(lo);
    UNROLL for (int i = 0; i < 8; i++) _mm256_storeu_ps(dst + stride * i, lo[i]);
    UNROLL for (int i = 0; i < 8; i++) hi[i] = c[i].h;
    v8_transpose(hi);
    UNROLL for (int i = 0; i < 8; i++) _mm256_storeu_ps(dst + stride * (8 + i), hi[i]);
}
INLINE void v_load_columns4(v16 r[4], const float *src, long stride)
{
    __m128 q[4][4];

    UNROLL for (int g = 0; g < 4; g++) {
        UNROLL for (int j = 0; j < 4; j++) q[g][j] = _mm_loadu_ps(src + (4 * g + j) * stride);
        _MM_TRANSPOSE4_PS(q[g][0], q[g][1], q[g][2], q[g][3]);
    }
    UNROLL for (int j = 0; j < 4; j++)
        r[j] = (v16){ _mm256_set_m128(q[1][j], q[0][j]), _mm256_set_m128(q[3][j], q[2][j]) };
}
INLINE __m256i mask_u16(mask16 m)
{
    const __m256i bit = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096,
                                          8192, 16384, (short)32768);
    return _mm256_cmpeq_epi16(_mm256_and_si256(_mm256_set1_epi16((short)m), bit), bit);
}
INLINE void v_store_offsets(uint16_t *dst, const uint16_t *base, mask16 down, int row,
                            mask16 right, int col)
{
    __m256i o = _mm256_loadu_si256((const void *)base);
    __m256i r = _mm256_and_si256(mask_u16(down), _mm256_set1_epi16((short)row));
    __m256i c = _mm256_and_si256(mask_u16(right), _mm256_set1_epi16((short)col));
    _mm256_storeu_si256((void *)dst, _mm256_add_epi16(o, _mm256_add_epi16(r, c)));
}
INLINE void v_fill_u16(uint16_t *dst, int value)
{
    _mm256_storeu_si256((void *)dst, _mm256_set1_epi16((short)value));
}
INLINE v8 v_low(v16 a) { return a.l; }
INLINE v8 v8_mul(v8 a, v8 b) { return _mm256_mul_ps(a, b); }
INLINE v8 v8_first(v8 a, int n) { return _mm256_and_ps(a, v8_mask((1 << n) - 1)); }

#else

INLINE void v_sum4(float *out, const v16 a[4])
{
    for (int j = 0; j < 4; j++)
        out[j] = v_sum(a[j]);
}
INLINE v16 v_sum16(const v16 a[16]) { LANES(v_sum(a[i])); }
INLINE void v_store_quarters(float *p, long stride, v16 a)
{
    for (int l = 0; l < 16; l++)
        p[l / 4 * stride + l % 4] = a.f[l];
}
INLINE v16 v_even(v16 a, v16 b) { LANES(i < 8 ? a.f[2 * i] : b.f[2 * i - 16]); }
INLINE void v_store_rows8(float *dst, long stride, const v16 c[8])
{
    for (int l = 0; l < 16; l++)
        for (int i = 0; i < 8; i++)
            dst[l * stride + i] = c[i].f[l];
}
INLINE void v_load_columns4(v16 r[4], const float *src, long stride)
{
    for (int l = 0; l < 16; l++)
        for (int i = 0; i < 4; i++)
            r[i].f[l] = src[l * stride + i];
}
INLINE void v_store_offsets(uint16_t *dst, const uint16_t *base, mask16 down, int row,
                            mask16 right, int col)
{
    for (int l = 0; l < 16; l++)
        dst[l] = (uint16_t)(base[l] + (down >> l & 1 ? row : 0) + (right >> l & 1 ? col : 0));
}
INLINE void v_fill_u16(uint16_t *dst, int value)
{
    for (int l = 0; l < 16; l++)
        dst[l] = (uint16_t)value;
}
INLINE v8 v_low(v16 a) { v8 r; memcpy(&r, &a, sizeof r); return r; }
INLINE v8 v8_mul(v8 a, v8 b) { LANES8(a.f[i] * b.f[i]); }
INLINE v8 v8_first(v8 a, int n) { LANES8(i < n ? a.f[i] : 0); }

#endif

#endif
