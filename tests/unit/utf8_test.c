/* tests/unit/utf8_test.c - is a text UTF-8, and if not, what is it? */
#include "base/utf8.h"

#include <stdlib.h>

#include "tests/check.h"

/* By the table of the standard (Unicode 15, 3-7), written out. */
static size_t length_of(const unsigned char *s, size_t n)
{
    static const struct { int first, to, low, high, n; } table[] = {
        { 0x00, 0x7f, 0, 0, 1 },          { 0xc2, 0xdf, 0x80, 0xbf, 2 },
        { 0xe0, 0xe0, 0xa0, 0xbf, 3 },    { 0xe1, 0xec, 0x80, 0xbf, 3 },
        { 0xed, 0xed, 0x80, 0x9f, 3 },    { 0xee, 0xef, 0x80, 0xbf, 3 },
        { 0xf0, 0xf0, 0x90, 0xbf, 4 },    { 0xf1, 0xf3, 0x80, 0xbf, 4 },
        { 0xf4, 0xf4, 0x80, 0x8f, 4 },
    };

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (s[0] < table[i].first || s[0] > table[i].to)
            continue;
        if ((size_t)table[i].n > n)
            return 0;
        for (int k = 1; k < table[i].n; k++) {
            int low = k == 1 ? table[i].low : 0x80, high = k == 1 ? table[i].high : 0xbf;
            if (s[k] < low || s[k] > high)
                return 0;
        }
        return (size_t)table[i].n;
    }
    return 0;
}

static void every_sequence_is_judged_as_the_standard_does(void **state)
{
    (void)state;
    for (unsigned v = 0; v < 1u << 24; v += v < 0xc20000 ? 251 : 1) {
        unsigned char s[5] = { (unsigned char)(v >> 16), (unsigned char)(v >> 8), (unsigned char)v,
                               0x80, 'x' };
        if (utf8_length((char *)s, 5) != length_of(s, 5))
            fail_msg("%02x %02x %02x 80: %zu, not %zu", s[0], s[1], s[2],
                     utf8_length((char *)s, 5), length_of(s, 5));
    }
}

static void the_first_wrong_byte_is_found_wherever_it_is(void **state)
{
    (void)state;
    char text[40];

    for (size_t n = 1; n <= sizeof text; n++)
        for (size_t at = 0; at < n; at++) {
            memset(text, 'a', sizeof text);
            assert_int_equal(utf8_check(text, n), n);
            text[at] = '\xfc';
            assert_int_equal(utf8_check(text, n), at);
            text[at] = 0;
            assert_int_equal(utf8_check(text, n), at);
        }
    assert_int_equal(utf8_check("12345678\xc3\xa4" "78", 12), 12);
    assert_int_equal(utf8_check("1234567\xc3", 8), 7);
}

static void what_is_wrong_is_said(void **state)
{
    (void)state;
    char why[UTF8_WHY];

    utf8_say("M\xfcnchen", 7, 1, why);
    assert_string_equal(why, "is not UTF-8: byte 2 is 0xfc (if the file is Latin-1: iconv -f latin1 "
                             "-t utf-8 FILE > NEW)");
    utf8_say("a\0b", 3, 1, why);
    assert_non_null(strstr(why, "zero byte"));
    utf8_say("\xed\xa0\xbd", 3, 0, why);
    assert_non_null(strstr(why, "surrogate"));
}

static void wide_encodings_are_known_by_mark_or_zeros(void **state)
{
    (void)state;
    static const struct { const char *bytes; size_t n; const char *want; } cases[] = {
        { "\xff\xfe" "a\0", 4, "UTF-16LE" },       { "\xfe\xff\0a", 4, "UTF-16BE" },
        { "\xff\xfe\0\0" "a\0\0\0", 8, "UTF-32LE" }, { "\0\0\xfe\xff\0\0\0a", 8, "UTF-32BE" },
        { "a\0,\0b\0\n\0", 8, "UTF-16LE" },        { "\0a\0,\0b\0\n", 8, "UTF-16BE" },
        { "a,b\n1,2\n", 8, NULL },                 { "\xef\xbb\xbf" "a,b\n", 7, NULL },
        { "a,b\n\0,2\n", 8, NULL },                { "", 0, NULL },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *got = utf8_sniff(cases[i].bytes, cases[i].n);
        if (!cases[i].want)
            assert_null(got);
        else
            assert_string_equal(got ? got : "none", cases[i].want);
    }
}

CHECK_MAIN(every_sequence_is_judged_as_the_standard_does,
           the_first_wrong_byte_is_found_wherever_it_is, what_is_wrong_is_said,
           wide_encodings_are_known_by_mark_or_zeros)
