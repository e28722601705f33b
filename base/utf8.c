/* base/utf8.c - is a text UTF-8, and if not, what is it? */
#include "base/utf8.h"

#include <stdio.h>

enum { SNIFF_BYTES = 1024 };

size_t utf8_length(const char *text, size_t n)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t len = s[0] < 0x80 ? 1 : s[0] >= 0xC2 && s[0] < 0xE0 ? 2
               : (s[0] & 0xF0) == 0xE0 ? 3 : s[0] >= 0xF0 && s[0] < 0xF5 ? 4 : 0;

    if (!len || len > n)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    if ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F) ||
        (s[0] == 0xF0 && s[1] < 0x90) || (s[0] == 0xF4 && s[1] > 0x8F))
        return 0;
    return len;
}

size_t utf8_check(const char *s, size_t n)
{
    size_t i = 0;

    while (i < n) {
        uint64_t word;
        while (n - i >= sizeof word && (memcpy(&word, s + i, sizeof word), !utf8_odd(word)))
            i += sizeof word;
        if (i == n)
            break;
        size_t len = s[i] ? utf8_length(s + i, n - i) : 0;
        if (!len)
            return i;
        i += len;
    }
    return n;
}

void utf8_say(const char *s, size_t n, size_t at, char out[UTF8_WHY])
{
    const unsigned char *p = (const unsigned char *)s + at;

    if (!*p)
        snprintf(out, UTF8_WHY, "has a zero byte at byte %zu (is it text?)", at + 1);
    else if (at + 1 < n && p[0] == 0xED && p[1] > 0x9F)
        snprintf(out, UTF8_WHY, "has half of a surrogate pair at byte %zu, which is no character",
                 at + 1);
    else
        snprintf(out, UTF8_WHY, "is not UTF-8: byte %zu is 0x%02x (if the file is Latin-1: iconv "
                 "-f latin1 -t utf-8 FILE > NEW)", at + 1, *p);
}

/* Zeros at even and at odd places of the first bytes. */
static const char *by_zeros(const unsigned char *s, size_t n)
{
    size_t zeros[2] = { 0 };

    n = (n < SNIFF_BYTES ? n : SNIFF_BYTES) & ~(size_t)1;
    for (size_t i = 0; i < n; i++)
        zeros[i & 1] += !s[i];
    if (n < 4)
        return NULL;
    if (zeros[1] > n / 4 && zeros[0] < zeros[1] / 8 + 1)
        return "UTF-16LE";
    if (zeros[0] > n / 4 && zeros[1] < zeros[0] / 8 + 1)
        return "UTF-16BE";
    return NULL;
}

const char *utf8_sniff(const char *head, size_t n)
{
    if (n >= 4 && memcmp(head, "\xff\xfe\0\0", 4) == 0)
        return "UTF-32LE";
    if (n >= 4 && memcmp(head, "\0\0\xfe\xff", 4) == 0)
        return "UTF-32BE";
    if (n >= 2 && memcmp(head, "\xff\xfe", 2) == 0)
        return "UTF-16LE";
    if (n >= 2 && memcmp(head, "\xfe\xff", 2) == 0)
        return "UTF-16BE";
    return by_zeros((const unsigned char *)head, n);
}
