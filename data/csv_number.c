/* data/csv_number.c - decimal text to the nearest number
 *
 * Three ways, each exact where it is used:
 *   1. w * 10^q with w <= 2^53 and |q| <= 22: both are doubles, one operation rounds once (Clinger,
 *      "How to read floating point numbers accurately", 1990);
 *   2. |q| <= 55: a 64 x 128 bit product with a truncated power of five decides the rounding
 *      (Lemire, "Number parsing at a gigabyte per second", 2021). Digits beyond 19 are cut, and
 *      the result counts only if w and w + 1 round to the same;
 *   3. all else: strtod in the C locale.
 * The powers are computed on first use: 111 of them take some microseconds, and a table of 1,300
 * constants would be one more thing to trust.
 */
#include <locale.h>
#include <math.h>
#include <pthread.h>

#include "data/csv_int.h"

enum { POWER_MAX = 55, DIGITS_MAX = 19 };       /* 5^55 < 2^128; 10^19 < 2^64 */

static const double ten_to[] = { 1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                 1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22 };

__extension__ typedef unsigned __int128 u128;   /* the compiler's own type has no struct to name */

static struct {
    uint64_t hi, lo;
} five_to[2 * POWER_MAX + 1];
static locale_t c_locale;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The first 128 bits of 2^b / p, the highest of them set: long division, one bit a turn. */
static u128 first_bits_of_reciprocal(u128 p)
{
    u128 quotient = 0, rest = 1;

    while (!(quotient >> 127)) {
        int carry = rest >> 127 & 1;    /* 2 * rest may have 129 bits */
        rest <<= 1;
        quotient <<= 1;
        if (carry || rest >= p) {
            rest -= p;
            quotient |= 1;
        }
    }
    return quotient;
}

static void make_tables(void)
{
    u128 p = 1;

    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    for (int q = 0; q <= POWER_MAX; q++, p *= 5) {
        u128 up = p;
        while (!(up >> 127))
            up <<= 1;
        u128 down = first_bits_of_reciprocal(p);
        /* Up to 27 the quotient is rounded up: then the product decides every case (section 6
         * of the paper). */
        if (q > 0 && q <= 27)
            down++;
        five_to[POWER_MAX + q].hi = (uint64_t)(up >> 64);
        five_to[POWER_MAX + q].lo = (uint64_t)up;
        if (q > 0) {
            five_to[POWER_MAX - q].hi = (uint64_t)(down >> 64);
            five_to[POWER_MAX - q].lo = (uint64_t)down;
        }
    }
}

/* The double nearest to w * 10^q, w > 0, |q| <= POWER_MAX. 0: undecided. */
static int nearest(uint64_t w, int q, double *out)
{
    int zeros = __builtin_clzll(w);

    w <<= zeros;
    u128 product = (u128)w * five_to[POWER_MAX + q].hi;
    uint64_t hi = (uint64_t)(product >> 64), lo = (uint64_t)product;
    if ((hi & 0x1ff) == 0x1ff) {        /* what was cut might carry into the bits that round */
        uint64_t more = (uint64_t)((u128)w * five_to[POWER_MAX + q].lo >> 64);
        lo += more;
        hi += lo < more;
    }
    if (lo == UINT64_MAX && (q < -27 || q > 55))
        return 0;
    int upper = (int)(hi >> 63);
    uint64_t m = hi >> (upper + 9);     /* 54 bits: the mantissa and one more to round by */
    /* 2^e with e = floor(q log2 10) + 63 is the power's own exponent. */
    int64_t e = (((152170 + 65536) * (int64_t)q) >> 16) + 63 + upper - zeros + 1023;
    /* Exactly half way, which only small q can be: to even. */
    if (lo <= 1 && q >= -4 && q <= 23 && (m & 3) == 1 && m << (upper + 9) == hi)
        m &= ~1ULL;
    m += m & 1;
    m >>= 1;
    if (m >> 53) {
        m = 1ULL << 52;
        e++;
    }
    uint64_t bits = (m & ~(1ULL << 52)) | (uint64_t)e << 52;
    memcpy(out, &bits, sizeof bits);
    return 1;
}

/* A number taken apart: value = w * 10^q, or a little more where digits were cut. */
struct decimal {
    uint64_t w;
    int q;
    int negative;
    int cut;            /* digits after the 19th that are not all zero */
};

static int is_digit(char c)
{
    return (unsigned char)(c - '0') <= 9;
}

static enum csv_number take_word(const char *s, const char *end, double *out)
{
    static const struct {
        const char *name;
        double value;
    } words[] = { { "nan", NAN }, { "inf", INFINITY }, { "infinity", INFINITY } };
    int negative = s < end && *s == '-';

    s += s < end && (*s == '-' || *s == '+');
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if ((size_t)(end - s) == strlen(words[i].name)
            && strncasecmp(s, words[i].name, (size_t)(end - s)) == 0) {
            /* One NaN, whatever the sign: a bit pattern must not depend on the spelling. */
            *out = negative && !isnan(words[i].value) ? -words[i].value : words[i].value;
            return CSV_NONFINITE;
        }
    return CSV_NOT_NUMBER;
}

/* The exponent's digits, held within what no double survives. */
static int take_exponent(const char **ps, const char *end, long *out)
{
    const char *s = *ps;
    int negative = s < end && *s == '-';
    long e = 0;

    s += s < end && (*s == '-' || *s == '+');
    if (s == end || !is_digit(*s))
        return 0;
    for (; s < end && is_digit(*s); s++)
        if (e < 100000000)
            e = 10 * e + (*s - '0');
    *out = negative ? -e : e;
    *ps = s;
    return 1;
}

static void take_digit(struct decimal *d, int *count, int digit, long *dropped)
{
    if (*count < DIGITS_MAX) {
        d->w = 10 * d->w + (unsigned)digit;
        *count += d->w != 0;    /* leading zeros say nothing */
    } else {
        d->cut |= digit != 0;
        ++*dropped;
    }
}

static int take_apart(const char *s, const char *end, struct decimal *d)
{
    int count = 0, digits = 0;
    long q = 0, exponent = 0;

    *d = (struct decimal){ .negative = s < end && *s == '-' };
    s += s < end && (*s == '-' || *s == '+');
    for (; s < end && is_digit(*s); s++, digits++)
        take_digit(d, &count, *s - '0', &q);
    if (s < end && *s == '.')
        for (s++; s < end && is_digit(*s); s++, digits++) {
            long dropped = 0;
            take_digit(d, &count, *s - '0', &dropped);
            q -= 1 - dropped;
        }
    if (!digits)
        return 0;
    if (s < end && (*s == 'e' || *s == 'E')) {
        s++;
        if (!take_exponent(&s, end, &exponent))
            return 0;
    }
    if (s != end)
        return 0;
    q += exponent;
    d->q = q > 100000000 ? 100000000 : q < -100000000 ? -100000000 : (int)q;
    return 1;
}

static void trim(const char **s, const char **end)
{
    while (*s < *end && (**s == ' ' || **s == '\t'))
        ++*s;
    while (*s < *end && ((*end)[-1] == ' ' || (*end)[-1] == '\t'))
        --*end;
}

/* Asks strtod or strtof, for a number that take_apart has taken, in a form that fits on the stack:
 * digits, an exponent. A rounding is decided by at most 767 digits of a double, and beyond them by
 * whether anything follows (for which a 1 stands). */
static double ask_libc(const char *s, const char *end, int single)
{
    enum { KEPT = 800 };
    char copy[KEPT + 32];
    long q = 0, exponent = 0;
    int n = 0, digits = 0, point = 0, more = 0;

    if (*s == '-' || *s == '+')
        copy[n++] = *s++;
    for (; s < end && *s != 'e' && *s != 'E'; s++) {
        if (*s == '.') {
            point = 1;
        } else if (digits < KEPT) {
            copy[n] = *s;
            n += digits || *s != '0';
            digits += digits || *s != '0';
            q -= point;
        } else {
            more |= *s != '0';
            q += !point;
        }
    }
    if (s++ < end)
        take_exponent(&s, end, &exponent);
    q += exponent - more;
    snprintf(copy + n, sizeof copy - (size_t)n, "%se%ld", more ? "1" : digits ? "" : "0", q);
    return single ? (double)strtof_l(copy, NULL, c_locale) : strtod_l(copy, NULL, c_locale);
}

/* Without sign. 0: strtod must decide. */
static int decimal_f64(const struct decimal *d, double *out)
{
    double a, b;

    if (d->w == 0 && !d->cut) {
        *out = 0;
        return 1;
    }
    if (!d->cut && d->w <= 1ULL << 53 && d->q >= -22 && d->q <= 22) {
        *out = d->q < 0 ? (double)d->w / ten_to[-d->q] : (double)d->w * ten_to[d->q];
        return 1;
    }
    if (d->q < -POWER_MAX || d->q > POWER_MAX || !nearest(d->w, d->q, &a))
        return 0;
    if (d->cut && (!nearest(d->w + 1, d->q, &b) || a != b))
        return 0;
    *out = a;
    return 1;
}

enum csv_number csv_parse_f64(const char *s, size_t n, double *out)
{
    const char *end = s + n;
    struct decimal d;
    double v;

    pthread_once(&once, make_tables);
    trim(&s, &end);
    if (!take_apart(s, end, &d))
        return take_word(s, end, out);
    if (decimal_f64(&d, &v))
        v = d.negative ? -v : v;
    else
        v = ask_libc(s, end, 0);
    *out = v;
    return isinf(v) ? CSV_NONFINITE : CSV_NUMBER;
}

enum csv_number csv_parse_f32(const char *s, size_t n, float *out)
{
    const char *end = s + n;
    struct decimal d;
    double v;
    uint64_t bits;

    pthread_once(&once, make_tables);
    trim(&s, &end);
    if (!take_apart(s, end, &d)) {
        enum csv_number rc = take_word(s, end, &v);
        if (rc == CSV_NONFINITE)
            *out = (float)v;
        return rc;
    }
    /* The double decides unless it is half way between two floats (rounding twice could then go
     * wrong) or so small that floats are coarser there. */
    int known = decimal_f64(&d, &v);
    memcpy(&bits, &v, sizeof bits);
    if (known && (v == 0 || (v >= 0x1p-126 && (bits & 0x1fffffff) != 0x10000000)))
        *out = (float)(d.negative ? -v : v);
    else
        *out = (float)ask_libc(s, end, 1);
    return isinf(*out) ? CSV_NONFINITE : CSV_NUMBER;
}

enum csv_number csv_parse_i64(const char *s, size_t n, int64_t *out)
{
    const char *end = s + n;
    struct decimal d;
    double v;

    pthread_once(&once, make_tables);
    trim(&s, &end);
    if (!take_apart(s, end, &d))
        return take_word(s, end, &v);
    uint64_t limit = (uint64_t)INT64_MAX + (d.negative ? 1 : 0);
    if (d.cut)
        return CSV_NONFINITE;
    for (; d.q < 0 && d.w % 10 == 0 && d.w; d.q++)
        d.w /= 10;
    for (; d.q > 0 && d.w <= UINT64_MAX / 10 && d.w; d.q--)
        d.w *= 10;
    if ((d.w && d.q != 0) || d.w > limit)
        return CSV_NONFINITE;
    *out = d.negative ? (int64_t)(0 - d.w) : (int64_t)d.w;
    return CSV_NUMBER;
}
