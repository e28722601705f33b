/* data/csv_quick.c - numbers of the usual spellings, without a branch that depends on the text
 *
 * Takes fields of up to 16 characters, [-]digits[.digits], and empty ones. The 16 bytes that end
 * with the field are loaded, what is before it is masked, the point is squeezed out, and the digits
 * are added up in pairs, fours, eights. The value w / 10^k is exact before it is rounded, for the
 * same reason as case 1 of csv_number.c. Whatever does not fit (exponents, blanks, quotes, words,
 * more digits) is left to csv_put_number, so the instruction set never shows in a result.
 *
 * AVX2 takes one field a turn, AVX-512 eight: their 16 bytes lie in the four lanes of two vectors,
 * rows 0 2 4 6 and 1 3 5 7, which the pack instructions then bring into order.
 */
#include <math.h>

#include "data/csv_int.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt")))
#define AVX512 \
    __attribute__((target("avx2,avx512f,avx512bw,avx512vl,avx512dq,bmi,bmi2,lzcnt,popcnt")))

enum { EXACT = 53 };            /* bits: integers up to 2^53 are doubles */

/* keep + n: the mask whose last n of 16 bytes are set. */
static const uint8_t keep[32] = { 0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,
                                  0,   0,   0,   0,   0,   255, 255, 255, 255, 255, 255,
                                  255, 255, 255, 255, 255, 255, 255, 255, 255, 255 };

/* By digits after the point, modulo 16: 16 of them stands for "no point". */
static const double scale[16] = { 1e0, 1e1, 1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                  1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15 };

struct quick {
    uint64_t w;         /* the digits */
    int after;          /* digits after the point; 16: there is none */
    int negative;
    int ok;             /* 0: not one for us. An empty field is, with w = 0 */
};

AVX2 static inline struct quick take_one(const char *p, size_t n)
{
    struct quick k;
    k.negative = *p == '-';     /* an empty field has its delimiter there; '-' then fails below */
    size_t len = n - (size_t)k.negative;
    __m128i bytes = _mm_loadu_si128((const __m128i *)(p + n - 16));
    __m128i mask = _mm_loadu_si128((const __m128i *)(keep + (len <= 16 ? len : 0)));
    __m128i digits = _mm_and_si128(_mm_sub_epi8(bytes, _mm_set1_epi8('0')), mask);
    __m128i points = _mm_and_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('.')), mask);
    /* Of several points the last is taken out; the others are no digits and fail below. */
    int at = 31 - (int)_lzcnt_u32((uint32_t)_mm_movemask_epi8(points));
    const __m128i iota = _mm_set_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    __m128i behind = _mm_cmpgt_epi8(iota, _mm_set1_epi8((char)at));
    digits = _mm_blendv_epi8(_mm_slli_si128(digits, 1), digits, behind);
    k.after = 15 - at;

    __m128i nine = _mm_set1_epi8(9);
    int all = _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_max_epu8(digits, nine), nine)) == 0xffff;
    size_t count = len - (at >= 0);
    k.ok = all & (n <= 16) & (len <= n) & ((count > 0) | (n == 0));

    __m128i pairs = _mm_maddubs_epi16(digits, _mm_set1_epi16(10 | 1 << 8));
    __m128i fours = _mm_madd_epi16(pairs, _mm_set1_epi32(100 | 1 << 16));
    __m128i packed = _mm_packus_epi32(fours, fours);
    uint64_t eights = (uint64_t)_mm_cvtsi128_si64(
        _mm_madd_epi16(packed, _mm_set1_epi32(10000 | 1 << 16)));
    k.w = (eights & 0xffffffff) * 100000000 + (eights >> 32);
    return k;
}

/* The field without a pair of quotes around it. What is quoted inside is no number and is left, as
 * a whole, to csv_put_number. */
static inline char *bare_field(const struct csv_fields *f, long row, size_t *n)
{
    char *p = csv_field(f, row, n);

    if (f->quoted && *n > 1 && p[0] == '"' && p[*n - 1] == '"') {
        p++;
        *n -= 2;
    }
    return p;
}

/* Each stores a value and says whether that was exact. */
AVX2 static inline int put_f64(struct csv_column *out, long row, struct quick k, int gone)
{
    double d = (double)(int64_t)k.w / scale[k.after & 15];

    out->f64[row] = gone ? NAN : k.negative ? -d : d;
    return k.w <= 1ULL << EXACT;
}

AVX2 static inline int put_f32(struct csv_column *out, long row, struct quick k, int gone)
{
    double d = (double)(int64_t)k.w / scale[k.after & 15];
    uint64_t bits;

    memcpy(&bits, &d, sizeof bits);
    out->f32[row] = gone ? NAN : (float)(k.negative ? -d : d);
    /* Half way between two floats: rounding twice might go wrong. Denormal floats do not come this
     * way: nothing smaller than 1e-15 fits into 16 characters. */
    return (k.w <= 1ULL << EXACT) & ((bits & 0x1fffffff) != 0x10000000);
}

AVX2 static inline int put_i64(struct csv_column *out, long row, struct quick k, int gone)
{
    (void)gone;
    out->i64[row] = k.negative ? -(int64_t)k.w : (int64_t)k.w;
    return k.after == 16;
}

/* Rows from `from` on, one a turn. Missing bits go out a word at a time. */
#define DEFINE_NUMBERS(name, PUT)                                                       \
    AVX2 static int name(const struct csv_convert *v, const struct csv_fields *f, long from, \
                         struct csv_column *out)                                        \
    {                                                                                   \
        const int empty = v->missing->empty;                                            \
        for (long base = from; base < f->rows; base = (base | 63) + 1) {                \
            long stop = (base | 63) + 1 < f->rows ? (base | 63) + 1 : f->rows;          \
            uint64_t none = 0, slow = 0;                                                \
            for (long row = base; row < stop; row++) {                                  \
                size_t n;                                                               \
                char *p = bare_field(f, row, &n);                                       \
                struct quick k = take_one(p, n);                                        \
                int gone = n == 0;                                                      \
                int ok = k.ok & (empty | !gone) & PUT(out, row, k, gone);               \
                none |= (uint64_t)(gone & ok) << (row & 63);                            \
                slow |= (uint64_t)!ok << (row & 63);                                    \
            }                                                                           \
            out->missing[base >> 6] |= none;                                            \
            out->n_missing += __builtin_popcountll(none);                               \
            for (; slow; slow &= slow - 1) {                                            \
                int rc = csv_put_number(v, f, out, (base & ~63L) + __builtin_ctzll(slow)); \
                if (rc < 0)                                                             \
                    return rc;                                                          \
            }                                                                           \
        }                                                                               \
        return 0;                                                                       \
    }

DEFINE_NUMBERS(numbers_f64_avx2, put_f64)
DEFINE_NUMBERS(numbers_f32_avx2, put_f32)
DEFINE_NUMBERS(numbers_i64_avx2, put_i64)

/* Eight fields; bit r of each mask is row r. */
struct quick8 {
    __m512i w;          /* (8) u64: the digits */
    __m512i point;      /* (8) u64: 0, or 1 + the place of the point among the 16 characters */
    __mmask8 negative, gone, ok;
};

/* Digits of four fields in the lanes of `bytes`, right-aligned, the point squeezed out. `n` has the
 * length in every byte of the lane. */
AVX512 static inline __m512i squeeze(__m512i bytes, __m512i n, __m512i *out_point,
                                     __m512i *out_minus)
{
    const __m512i place = _mm512_broadcast_i32x4(
        _mm_set_epi8(16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1));
    const __m512i from_end = _mm512_broadcast_i32x4(
        _mm_set_epi8(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16));
    __mmask64 field = _mm512_cmple_epu8_mask(from_end, n);
    __mmask64 first = _mm512_cmpeq_epu8_mask(from_end, n);
    __mmask64 minus = _mm512_mask_cmpeq_epu8_mask(first, bytes, _mm512_set1_epi8('-'));
    __mmask64 points = _mm512_mask_cmpeq_epu8_mask(field, bytes, _mm512_set1_epi8('.'));
    __m512i digits = _mm512_maskz_sub_epi8(field & ~minus, bytes, _mm512_set1_epi8('0'));
    /* The sum of one place is that place; of several, some point stays in and is no digit. */
    __m512i sum = _mm512_sad_epu8(_mm512_maskz_mov_epi8(points, place), _mm512_setzero_si512());
    __m512i point = _mm512_add_epi64(sum, _mm512_shuffle_epi32(sum, _MM_PERM_BADC));
    __mmask64 behind =
        _mm512_cmpgt_epu8_mask(place, _mm512_shuffle_epi8(point, _mm512_setzero_si512()));
    *out_point = point;
    *out_minus = _mm512_movm_epi8(minus);
    return _mm512_mask_mov_epi8(_mm512_bslli_epi128(digits, 1), behind, digits);
}

/* Bit r: any byte of row r is not zero; even rows are the lanes of a, odd rows those of b. */
AVX512 static inline __mmask8 rows_with(__m512i a, __m512i b)
{
    unsigned in_a = _mm512_test_epi64_mask(a, a), in_b = _mm512_test_epi64_mask(b, b);

    return (__mmask8)(((in_a | in_a >> 1) & 0x55) | ((in_b | in_b << 1) & 0xaa));
}

/* (end of the field before, end of the field) without a CR and a pair of quotes: the two rare
 * trims, for columns that may need them. */
static inline uint64_t trim_pair(const struct csv_fields *f, uint64_t both)
{
    uint32_t start = (uint32_t)both + 1, end = (uint32_t)(both >> 32);

    end -= f->last && end > start && f->text[end - 1] == '\r';
    if (f->quoted && end - start > 1 && f->text[start] == '"' && f->text[end - 1] == '"') {
        start++;
        end--;
    }
    return (uint64_t)end << 32 | (uint32_t)(start - 1);
}

/* `trim` is a constant at both calls: the loop that needs none does not pay for it. */
AVX512 __attribute__((always_inline)) static inline struct quick8
take_eight(const struct csv_fields *f, long row, int trim)
{
    const char *text = f->text;
    const uint32_t *pair = f->prev + (size_t)row * f->end_step;
    const __m512i even = _mm512_set_epi32(6, 6, 6, 6, 4, 4, 4, 4, 2, 2, 2, 2, 0, 0, 0, 0);
    const __m512i odd = _mm512_set_epi32(7, 7, 7, 7, 5, 5, 5, 5, 3, 3, 3, 3, 1, 1, 1, 1);
    uint64_t both[8];
    struct quick8 k;

    for (int i = 0; i < 8; i++) {
        memcpy(&both[i], pair + (size_t)i * f->end_step, 8);
        if (trim)
            both[i] = trim_pair(f, both[i]);
    }
#define FIELD(i) _mm_loadu_si128((const __m128i *)(text + (both[i] >> 32)) - 1)
#define TWO(i) _mm256_inserti128_si256(_mm256_castsi128_si256(FIELD(i)), FIELD(i + 2), 1)
#define FOUR(i) _mm512_inserti64x4(_mm512_castsi256_si512(TWO(i)), TWO(i + 4), 1)
    __m512i a = FOUR(0), b = FOUR(1);
#undef FOUR
#undef TWO
#undef FIELD
    __m512i pairs = _mm512_set_epi64((long long)both[7], (long long)both[6], (long long)both[5],
                                     (long long)both[4], (long long)both[3], (long long)both[2],
                                     (long long)both[1], (long long)both[0]);
    __m512i length = _mm512_sub_epi32(_mm512_srli_epi64(pairs, 32), pairs);
    __m256i n = _mm256_sub_epi32(_mm512_cvtepi64_epi32(length), _mm256_set1_epi32(1));
    __mmask8 fits = _mm256_cmple_epu32_mask(n, _mm256_set1_epi32(16));
    __m512i bytes_n = _mm512_castsi256_si512(
        _mm256_mullo_epi32(_mm256_maskz_mov_epi32(fits, n), _mm256_set1_epi32(0x01010101)));

    __m512i point_a, point_b, minus_a, minus_b, nine = _mm512_set1_epi8(9);
    a = squeeze(a, _mm512_permutexvar_epi32(even, bytes_n), &point_a, &minus_a);
    b = squeeze(b, _mm512_permutexvar_epi32(odd, bytes_n), &point_b, &minus_b);
    k.point = _mm512_mask_mov_epi64(point_a, 0xaa, point_b);
    k.negative = rows_with(minus_a, minus_b);
    k.gone = _mm256_cmpeq_epi32_mask(n, _mm256_setzero_si256());
    __mmask8 wrong = rows_with(_mm512_subs_epu8(a, nine), _mm512_subs_epu8(b, nine));
    /* At least one digit: a sign and a point are not enough. */
    __m256i signs = _mm256_maskz_set1_epi32(k.negative, 1);
    __mmask8 some = _mm256_cmpgt_epi32_mask(
        n, _mm256_mask_add_epi32(signs, _mm512_test_epi64_mask(k.point, k.point), signs,
                                 _mm256_set1_epi32(1)));
    k.ok = (__mmask8)(fits & ~wrong & (some | k.gone));

    const __m512i tens = _mm512_set1_epi16(10 | 1 << 8),
                  hundreds = _mm512_set1_epi32(100 | 1 << 16);
    __m512i fours = _mm512_packus_epi32(_mm512_madd_epi16(_mm512_maddubs_epi16(a, tens), hundreds),
                                        _mm512_madd_epi16(_mm512_maddubs_epi16(b, tens), hundreds));
    __m512i eights = _mm512_madd_epi16(fours, _mm512_set1_epi32(10000 | 1 << 16));
    k.w = _mm512_add_epi64(_mm512_mul_epu32(eights, _mm512_set1_epi64(100000000)),
                           _mm512_srli_epi64(eights, 32));
    return k;
}

AVX512 static inline __m512d value8(struct quick8 k)
{
    __m512i after = _mm512_sub_epi64(_mm512_set1_epi64(16), k.point);
    __m512d by = _mm512_permutex2var_pd(_mm512_loadu_pd(scale), after, _mm512_loadu_pd(scale + 8));
    __m512d d = _mm512_div_pd(_mm512_cvtepi64_pd(k.w), by);

    d = _mm512_mask_xor_pd(d, k.negative, d, _mm512_set1_pd(-0.0));
    return _mm512_mask_mov_pd(d, k.gone, _mm512_set1_pd(NAN));
}

AVX512 static inline __mmask8 exact8(struct quick8 k)
{
    return _mm512_cmple_epu64_mask(k.w, _mm512_set1_epi64(1LL << EXACT));
}

AVX512 static inline __mmask8 put8_f64(struct csv_column *out, long row, struct quick8 k)
{
    _mm512_storeu_pd(out->f64 + row, value8(k));
    return exact8(k);
}

AVX512 static inline __mmask8 put8_f32(struct csv_column *out, long row, struct quick8 k)
{
    __m512d d = value8(k);
    __m512i cut = _mm512_and_epi64(_mm512_castpd_si512(d), _mm512_set1_epi64(0x1fffffff));

    _mm256_storeu_ps(out->f32 + row, _mm512_cvtpd_ps(d));
    return exact8(k) & _mm512_cmpneq_epi64_mask(cut, _mm512_set1_epi64(0x10000000));
}

AVX512 static inline __mmask8 put8_i64(struct csv_column *out, long row, struct quick8 k)
{
    __m512i w = _mm512_mask_sub_epi64(k.w, k.negative, _mm512_setzero_si512(), k.w);

    _mm512_storeu_si512(out->i64 + row, w);
    return (__mmask8)~_mm512_test_epi64_mask(k.point, k.point);
}

#define DEFINE_NUMBERS8(name, PUT, rest)                                                \
    AVX512 static int name(const struct csv_convert *v, const struct csv_fields *f, long from, \
                           struct csv_column *out)                                      \
    {                                                                                   \
        const __mmask8 empty = v->missing->empty ? 0xff : 0;                            \
        const struct csv_fields own = *f;       /* a copy that no store can change */   \
        const int trim = f->last | f->quoted;                                           \
        /* The starts of a ragged chunk's rows lie elsewhere. */                        \
        long stop = f->prev + 1 == f->end && f->prev_step == f->end_step ? f->rows & ~7L : 0; \
        for (; from < stop; from += 8) {                                                \
            struct quick8 k = trim ? take_eight(&own, from, 1) : take_eight(&own, from, 0); \
            unsigned ok = k.ok & (empty | ~k.gone) & PUT(out, from, k);                 \
            unsigned none = k.gone & ok, slow = ~ok & 0xff;                             \
            out->missing[from >> 6] |= (uint64_t)none << (from & 63);                   \
            out->n_missing += __builtin_popcount(none);                                 \
            for (; __builtin_expect(slow, 0); slow &= slow - 1) {                       \
                int rc = csv_put_number(v, f, out, from + __builtin_ctz(slow));         \
                if (rc < 0)                                                             \
                    return rc;                                                          \
            }                                                                           \
        }                                                                               \
        return rest(v, f, from, out);                                                   \
    }

DEFINE_NUMBERS8(numbers_f64_avx512, put8_f64, numbers_f64_avx2)
DEFINE_NUMBERS8(numbers_f32_avx512, put8_f32, numbers_f32_avx2)
DEFINE_NUMBERS8(numbers_i64_avx512, put8_i64, numbers_i64_avx2)

#endif

/* All there is without vectors, and the twin that the tests compare the others with. */
static int numbers_plain(const struct csv_convert *v, const struct csv_fields *f, long from,
                         struct csv_column *out)
{
    for (long row = from; row < f->rows; row++) {
        int rc = csv_put_number(v, f, out, row);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int csv_quick_numbers(struct csv_convert *v, const struct csv_fields *f, struct csv_column *out)
{
    static int (*const ways[][3])(const struct csv_convert *, const struct csv_fields *, long,
                                  struct csv_column *) = {
        [CSV_SCALAR] = { numbers_plain, numbers_plain, numbers_plain },
#if defined(__x86_64__)
        [CSV_AVX2] = { numbers_f64_avx2, numbers_f32_avx2, numbers_i64_avx2 },
        [CSV_AVX512] = { numbers_f64_avx512, numbers_f32_avx512, numbers_i64_avx512 },
#endif
    };
    return ways[v->isa][out->type - CSV_F64](v, f, 0, out);
}
