/* data/csv_scan.c - where fields and rows end
 *
 * Three instruction sets, one result. The vector ones take 64 bytes a turn as bit masks: Q quotes,
 * D delimiters, N newlines. Prefix-xor of Q gives the bytes inside quotes; D and N outside are the
 * marks. That holds only where quotes stand as RFC 4180 wants: an opening one after a mark (or as
 * the second of a pair), a closing one before a mark. The masks check this as they go; a text that
 * breaks the rule is scanned again by the plain state machine, which is also the scalar twin.
 */
#include <assert.h>

#include "data/csv_int.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define HAVE_X86 1
#endif

enum csv_isa csv_isa_pick(void)
{
    static const char *const names[] = { "scalar", "avx2", "avx512" };
    enum csv_isa best = CSV_SCALAR;
    const char *want = getenv("MUSTER_ISA");

#if HAVE_X86
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2")
        && __builtin_cpu_supports("pclmul"))
        best = CSV_AVX2;
    if (best == CSV_AVX2 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")
        && __builtin_cpu_supports("avx512dq"))
        best = CSV_AVX512;
#endif
    for (int i = 0; want && i < (int)best; i++)
        if (strcmp(want, names[i]) == 0)
            return (enum csv_isa)i;
    return best;
}

size_t csv_count_lines(const char *text, size_t n)
{
    size_t count = 0;

    for (size_t i = 0; i < n; i++)
        count += text[i] == '\n';
    return count;
}

static void scan_plain(const char *text, size_t n, char delimiter, struct csv_marks *marks)
{
    enum { START, BARE, QUOTED, CLOSED } state = START;
    uint32_t *at = marks->at;
    size_t newlines = 0;

    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (state == QUOTED) {
            if (c == '"')
                state = CLOSED;
        } else if (c == delimiter || c == '\n') {
            *at++ = (uint32_t)i;
            newlines += c == '\n';
            state = START;
        } else if (c == '"' && state != BARE) {
            /* Opens a field, or is the second of a pair inside one. */
            state = QUOTED;
        } else {
            /* After a closing quote too: the rest of that field is bare, and bad. */
            state = BARE;
        }
    }
    marks->n = (size_t)(at - marks->at);
    marks->newlines = newlines;
    marks->open = state == QUOTED;
}

#if HAVE_X86

struct masks {
    uint64_t quote, delimiter, newline, cr;
};

/* What a turn hands to the next about quotes. */
struct quotes {
    uint64_t inside;            /* all ones: the last byte was inside quotes */
    uint64_t may_open;          /* 1: the last byte lets a quote open */
    uint64_t closed;            /* 1: the last byte was a closing quote */
    uint64_t strange;           /* not 0: quotes stand where the masks cannot judge them */
};

#define AVX2 __attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt,pclmul")))
#define AVX512 \
    __attribute__((target("avx2,avx512f,avx512bw,avx512vl,avx512dq,bmi,bmi2,lzcnt,popcnt," \
                          "pclmul")))

/* Clears the marks inside quotes. `valid` has a bit for each byte of the text. */
AVX2 static inline uint64_t outside_quotes(struct masks m, uint64_t valid, struct quotes *q)
{
    __m128i ones = _mm_set1_epi8(-1);
    uint64_t inside = (uint64_t)_mm_cvtsi128_si64(
        _mm_clmulepi64_si128(_mm_set_epi64x(0, (long long)m.quote), ones, 0));

    inside ^= q->inside;
    uint64_t marks = (m.delimiter | m.newline) & ~inside;
    uint64_t opens = m.quote & inside, closes = m.quote & ~inside;
    uint64_t may_open = (marks | closes) << 1 | q->may_open;
    uint64_t after_close = (closes << 1 | q->closed) & valid;
    q->strange |= (opens & ~may_open) | (after_close & ~(marks | m.quote | m.cr));
    q->inside = (uint64_t)((int64_t)inside >> 63);
    q->may_open = (marks | closes) >> 63;
    q->closed = closes >> 63;
    return marks;
}

AVX2 static inline struct masks masks_avx2(const char *p, __m256i delimiter, int with_quotes)
{
    __m256i a = _mm256_loadu_si256((const __m256i *)p);
    __m256i b = _mm256_loadu_si256((const __m256i *)(p + 32));
#define MASK(c)                                                                         \
    ((uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(a, c))                            \
     | (uint64_t)(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(b, c)) << 32)
    struct masks m = { 0, MASK(delimiter), MASK(_mm256_set1_epi8('\n')), 0 };
    if (with_quotes) {
        m.quote = MASK(_mm256_set1_epi8('"'));
        m.cr = MASK(_mm256_set1_epi8('\r'));
    }
#undef MASK
    return m;
}

AVX512 static inline struct masks masks_avx512(const char *p, __m512i delimiter, int with_quotes)
{
    __m512i a = _mm512_loadu_si512(p);
    struct masks m = { 0, _mm512_cmpeq_epi8_mask(a, delimiter),
                       _mm512_cmpeq_epi8_mask(a, _mm512_set1_epi8('\n')), 0 };
    if (with_quotes) {
        m.quote = _mm512_cmpeq_epi8_mask(a, _mm512_set1_epi8('"'));
        m.cr = _mm512_cmpeq_epi8_mask(a, _mm512_set1_epi8('\r'));
    }
    return m;
}

/* Positions of the bits of `mask`; eight are written whatever their number, since a wrong guess of
 * the count costs more than the stores. */
AVX2 static inline uint32_t *emit_avx2(uint32_t *at, uint64_t mask, uint32_t base)
{
    int n = __builtin_popcountll(mask);

    for (int i = 0; i < n; i += 8)
        for (int k = 0; k < 8; k++) {
            at[i + k] = base + (uint32_t)_tzcnt_u64(mask);
            mask = _blsr_u64(mask);
        }
    return at + n;
}

AVX512 static inline uint32_t *emit_avx512(uint32_t *at, uint64_t mask, uint32_t base)
{
    const __m512i iota = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);

    for (int k = 0; k < 4; k++, mask >>= 16, base += 16) {
        __m512i where = _mm512_add_epi32(iota, _mm512_set1_epi32((int)base));
        _mm512_storeu_si512(at, _mm512_maskz_compress_epi32((__mmask16)mask, where));
        at += __builtin_popcountll(mask & 0xffff);
    }
    return at;
}

/* The same loop for both: `ISA`, its vector of delimiters, whether quotes occur at all. Returns 0
 * when the text must be scanned by the state machine. */
#define DEFINE_SCAN(name, ISA, vector, set1, load, emit, with_quotes)                   \
    ISA static int name(const char *text, size_t n, char delimiter, struct csv_marks *marks) \
    {                                                                                   \
        const vector d = set1(delimiter);                                               \
        struct quotes q = { .may_open = 1 };                                            \
        uint32_t *at = marks->at;                                                       \
        size_t newlines = 0;                                                            \
                                                                                        \
        for (size_t i = 0; i < n; i += 64) {                                            \
            uint64_t valid = n - i >= 64 ? ~0ULL : ~0ULL >> (64 - (n - i));             \
            struct masks m = load(text + i, d, with_quotes);                            \
            m.quote &= valid;                                                           \
            m.delimiter &= valid;                                                       \
            m.newline &= valid;                                                         \
            uint64_t bits = with_quotes ? outside_quotes(m, valid, &q) : m.delimiter | m.newline; \
            newlines += (size_t)__builtin_popcountll(m.newline & bits);                 \
            at = emit(at, bits, (uint32_t)i);                                           \
        }                                                                               \
        marks->n = (size_t)(at - marks->at);                                            \
        marks->newlines = newlines;                                                     \
        marks->open = q.inside != 0;                                                    \
        return q.strange == 0;                                                          \
    }

DEFINE_SCAN(scan_avx2, AVX2, __m256i, _mm256_set1_epi8, masks_avx2, emit_avx2, 0)
DEFINE_SCAN(scan_quotes_avx2, AVX2, __m256i, _mm256_set1_epi8, masks_avx2, emit_avx2, 1)
DEFINE_SCAN(scan_avx512, AVX512, __m512i, _mm512_set1_epi8, masks_avx512, emit_avx512, 0)
DEFINE_SCAN(scan_quotes_avx512, AVX512, __m512i, _mm512_set1_epi8, masks_avx512, emit_avx512, 1)

#endif

void csv_scan(enum csv_isa isa, const char *text, size_t n, char delimiter, struct csv_marks *marks)
{
    assert(marks->room >= n + CSV_PAD);
#if HAVE_X86
    static int (*const scans[][2])(const char *, size_t, char, struct csv_marks *) = {
        [CSV_AVX2] = { scan_avx2, scan_quotes_avx2 },
        [CSV_AVX512] = { scan_avx512, scan_quotes_avx512 },
    };
    if (isa != CSV_SCALAR && scans[isa][n && memchr(text, '"', n)](text, n, delimiter, marks))
        return;
#else
    (void)isa;
#endif
    scan_plain(text, n, delimiter, marks);
}
