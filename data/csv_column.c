/* data/csv_column.c - the fields of one column to typed values
 *
 * A column at a time: the loop keeps its type, its constants and its branch history. The fast way
 * for numbers takes up to 16 characters of [-]digits[.digits] without a branch that depends on
 * the text: load the 16 bytes that end with the field, mask what is before it, squeeze the point
 * out, add the digits up in pairs. Its result is exact for the same reason as case 1 of
 * csv_number.c. Whatever it does not take (exponents, blanks, quotes, words, other lengths) goes
 * through the slow way below, which is also all there is in the scalar build.
 */
#include <math.h>

#include "data/csv_int.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define HAVE_X86 1
#endif

int csv_found_add(struct csv_found_list *l, struct csv_found f)
{
    if (l->n == l->room) {
        size_t room = l->room ? 2 * l->room : 64;
        struct csv_found *item = realloc(l->item, room * sizeof *item);
        if (!item)
            return -ERR_NOMEM;
        l->item = item;
        l->room = room;
    }
    l->item[l->n++] = f;
    return 0;
}

int csv_unquote(char **p, size_t *n)
{
    char *from = *p + 1, *end = *p + *n, *to = from, *begin = from;

    while (from < end) {
        char *quote = memchr(from, '"', (size_t)(end - from));
        if (!quote)
            return 0;
        if (to != from)
            memmove(to, from, (size_t)(quote - from));
        to += quote - from;
        if (quote + 1 == end) {
            /* What the text shrank by becomes quotes: no newline is added or lost, and lines can
             * still be counted. */
            memset(to, '"', (size_t)(end - to));
            *p = begin;
            *n = (size_t)(to - begin);
            return 1;
        }
        if (quote[1] != '"')
            return 0;
        *to++ = '"';
        from = quote + 2;
    }
    return 0;
}

static int is_missing(const struct csv_missing *m, const char *p, size_t n)
{
    if (!(m->lens >> (n < 63 ? n : 63) & 1))
        return 0;
    for (int i = 0; i < m->n; i++)
        if (m->len[i] == n && memcmp(m->text[i], p, n) == 0)
            return 1;
    return 0;
}

static void set_missing(struct csv_column *out, long row)
{
    out->missing[row >> 6] |= 1ULL << (row & 63);
    out->n_missing++;
}

/* Field of a row: where it begins and ends. */
static inline char *field(const struct csv_fields *f, long row, size_t *n)
{
    char *p = f->text + (uint32_t)(f->prev[(size_t)row * f->prev_step] + 1);
    char *end = f->text + f->end[(size_t)row * f->end_step];

    end -= f->last && end > p && end[-1] == '\r';
    *n = (size_t)(end - p);
    return p;
}

static int report(const struct csv_convert *v, const struct csv_fields *f, long row,
                  enum csv_error_kind kind)
{
    size_t n;
    const char *p = field(f, row, &n);

    return csv_found_add(v->found, (struct csv_found){ (uint32_t)row, v->column, kind,
                                                       (uint32_t)(p - f->text), (uint32_t)n });
}

/* Unquoted text of a field: 1, or 0 for no value (missing, or bad and reported); < 0: no memory.
 * Shared by all slow ways. */
static int take_text(const struct csv_convert *v, const struct csv_fields *f, long row, char **out_p,
                     size_t *out_n)
{
    char *p = field(f, row, out_n);

    if (*out_n && *p == '"' && !csv_unquote(&p, out_n)) {
        int rc = report(v, f, row, CSV_BAD_QUOTE);
        return rc < 0 ? rc : 0;
    }
    *out_p = p;
    return !is_missing(v->missing, p, *out_n);
}

static enum csv_number parse(enum csv_type type, const char *p, size_t n, struct csv_column *out, long row)
{
    if (type == CSV_F64)
        return csv_parse_f64(p, n, &out->f64[row]);
    if (type == CSV_F32)
        return csv_parse_f32(p, n, &out->f32[row]);
    return csv_parse_i64(p, n, &out->i64[row]);
}

static void put_none(struct csv_column *out, long row)
{
    set_missing(out, row);
    switch (out->type) {
    case CSV_F64: out->f64[row] = NAN; break;
    case CSV_F32: out->f32[row] = NAN; break;
    case CSV_I64: out->i64[row] = 0; break;
    case CSV_TEXT: out->text[row] = (struct csv_text){ "", 0 }; break;
    case CSV_DICT: out->code[row] = CSV_NO_CODE; break;
    case CSV_SKIP: break;
    }
}

/* The slow way for one number of any spelling. */
static int put_number(const struct csv_convert *v, const struct csv_fields *f, struct csv_column *out, long row)
{
    size_t n;
    char *p;
    int some = take_text(v, f, row, &p, &n);

    if (some < 0)
        return some;
    if (some) {
        enum csv_number kind = parse(out->type, p, n, out, row);
        if (kind == CSV_NUMBER || (kind == CSV_NONFINITE && v->allow_nonfinite && out->type != CSV_I64))
            return 0;
        int rc = report(v, f, row, kind == CSV_NOT_NUMBER  ? CSV_BAD_NUMBER
                                   : out->type == CSV_I64 ? CSV_BAD_INTEGER
                                                          : CSV_BAD_FINITE);
        if (rc < 0)
            return rc;
    }
    put_none(out, row);
    return 0;
}

static int numbers_plain(const struct csv_convert *v, const struct csv_fields *f, struct csv_column *out)
{
    for (long row = 0; row < f->rows; row++) {
        int rc = put_number(v, f, out, row);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int texts(const struct csv_convert *v, const struct csv_fields *f, struct csv_column *out)
{
    for (long row = 0; row < f->rows; row++) {
        size_t n;
        char *p;
        int some = take_text(v, f, row, &p, &n);
        if (some < 0)
            return some;
        if (some)
            out->text[row] = (struct csv_text){ p, n };
        else
            put_none(out, row);
    }
    return 0;
}

static int codes(const struct csv_convert *v, const struct csv_fields *f, struct csv_column *out)
{
    for (long row = 0; row < f->rows; row++) {
        size_t n;
        char *p;
        int some = take_text(v, f, row, &p, &n);
        if (some < 0)
            return some;
        if (!some) {
            put_none(out, row);
            continue;
        }
        int rc = csv_dict_code(v->dict, p, n, &out->code[row]);
        if (rc < 0)
            return rc;
    }
    return 0;
}

#if HAVE_X86

#define AVX2 __attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt")))

/* keep + n: the mask whose last n of 16 bytes are set. */
static const uint8_t keep[32] = { 0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,
                                  0,   0,   0,   0,   0,   255, 255, 255, 255, 255, 255,
                                  255, 255, 255, 255, 255, 255, 255, 255, 255, 255 };

/* By digits after the point; 16 stands for "no point". */
static const double scale[17] = { 1e0, 1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7, 1e8,
                                  1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e0 };

struct quick {
    uint64_t w;         /* the digits */
    int after;          /* digits after the point; 16: there is none */
    int negative;
    int ok;             /* 0: take the slow way. An empty field is ok, with w = 0 */
};

/* The field p[0..n), any n: the caller's buffer is padded on both sides. */
AVX2 static inline struct quick take_quick(const char *p, size_t n)
{
    struct quick k;
    k.negative = *p == '-' && n;
    size_t len = n - (size_t)k.negative;
    size_t held = len <= 16 ? len : 0;
    __m128i bytes = _mm_loadu_si128((const __m128i *)(p + n - 16));
    __m128i mask = _mm_loadu_si128((const __m128i *)(keep + held));
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
    k.ok = all & (len <= 16) & ((count > 0) | (n == 0));

    /* 16 digits to 8 pairs, 4 fours, 2 eights. */
    __m128i pairs = _mm_maddubs_epi16(digits, _mm_set1_epi16(10 | 1 << 8));
    __m128i fours = _mm_madd_epi16(pairs, _mm_set1_epi32(100 | 1 << 16));
    __m128i packed = _mm_packus_epi32(fours, fours);
    uint64_t eights = (uint64_t)_mm_cvtsi128_si64(
        _mm_madd_epi16(packed, _mm_set1_epi32(10000 | 1 << 16)));
    k.w = (eights & 0xffffffff) * 100000000 + (eights >> 32);
    return k;
}

/* Loop over the rows of a numeric column: the quick way, and the slow one where it says no. `PUT`
 * stores k and says whether that was exact. Missing bits go out a word at a time. */
#define DEFINE_NUMBERS(name, PUT, NONE)                                                 \
    AVX2 static int name(const struct csv_convert *v, const struct csv_fields *f,       \
                         struct csv_column *out)                                        \
    {                                                                                   \
        const int empty = v->missing->empty;                                            \
        for (long base = 0; base < f->rows; base += 64) {                               \
            long stop = base + 64 < f->rows ? base + 64 : f->rows;                      \
            uint64_t none = 0;                                                          \
            for (long row = base; row < stop; row++) {                                  \
                size_t n;                                                               \
                char *p = field(f, row, &n);                                            \
                struct quick k = take_quick(p, n);                                      \
                int gone = n == 0;                                                      \
                int ok = k.ok & (empty | !gone);                                        \
                ok &= PUT(out, row, k, gone);                                           \
                none |= (uint64_t)gone << (row - base);                                 \
                if (__builtin_expect(!ok, 0)) {                                         \
                    none &= ~(1ULL << (row - base));                                    \
                    int rc = put_number(v, f, out, row);                                \
                    if (rc < 0)                                                         \
                        return rc;                                                      \
                }                                                                       \
            }                                                                           \
            out->missing[base >> 6] |= none;                                            \
            out->n_missing += __builtin_popcountll(none);                               \
        }                                                                               \
        return 0;                                                                       \
    }

static const double none_f64[2] = { 0, NAN };

AVX2 static inline int put_f64(struct csv_column *out, long row, struct quick k, int gone)
{
    double d = (double)(int64_t)k.w / scale[k.after];

    /* The sign as a bit: -0 keeps it. A missing value adds NaN. */
    uint64_t bits, none;
    memcpy(&bits, &d, sizeof bits);
    memcpy(&none, &none_f64[gone], sizeof none);
    bits |= (uint64_t)k.negative << 63 | none;
    memcpy(&out->f64[row], &bits, sizeof bits);
    return k.w <= 1ULL << 53;
}

AVX2 static inline int put_f32(struct csv_column *out, long row, struct quick k, int gone)
{
    double d = (double)(int64_t)k.w / scale[k.after];
    uint64_t bits;
    memcpy(&bits, &d, sizeof bits);
    float s = (float)d;

    s = k.negative ? -s : s;
    out->f32[row] = gone ? NAN : s;
    /* Half way between two floats: rounding twice might be wrong. Smaller than 1e-15 nothing
     * comes this way, so floats are not denormal here. */
    return (k.w <= 1ULL << 53) & ((bits & 0x1fffffff) != 0x10000000);
}

AVX2 static inline int put_i64(struct csv_column *out, long row, struct quick k, int gone)
{
    (void)gone;
    out->i64[row] = k.negative ? -(int64_t)k.w : (int64_t)k.w;
    return k.after == 16;
}

DEFINE_NUMBERS(numbers_f64, put_f64, NAN)
DEFINE_NUMBERS(numbers_f32, put_f32, NAN)
DEFINE_NUMBERS(numbers_i64, put_i64, 0)

#endif

int csv_convert_column(const struct csv_convert *v, const struct csv_fields *f, struct csv_column *out)
{
    int (*const plain[])(const struct csv_convert *, const struct csv_fields *, struct csv_column *) = {
        [CSV_F64] = numbers_plain, [CSV_F32] = numbers_plain, [CSV_I64] = numbers_plain,
        [CSV_TEXT] = texts,        [CSV_DICT] = codes,
    };
#if HAVE_X86
    int (*const quick[])(const struct csv_convert *, const struct csv_fields *, struct csv_column *) = {
        [CSV_F64] = numbers_f64, [CSV_F32] = numbers_f32, [CSV_I64] = numbers_i64,
        [CSV_TEXT] = texts,      [CSV_DICT] = codes,
    };
    if (v->isa != CSV_SCALAR)
        return quick[out->type](v, f, out);
#endif
    return plain[out->type](v, f, out);
}
