/* spec/scan.c - what a scalar's text says, when its key wants a number, a range, a metric */
#include "spec/scan.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "spec/keys.h"

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

int scan_bool(const struct value *v, int *out)
{
    if (v->kind != VALUE_SCALAR || !v->plain)
        return 0;
    *out = strcmp(v->text, "true") == 0;
    return *out || strcmp(v->text, "false") == 0;
}

int scan_whole(const char *text, long long *out)
{
    const char *s = text + (*text == '-' || *text == '+');

    if (!is_digit(*s) || (*s == '0' && s[1]))
        return 0;
    for (const char *c = s; *c; c++)
        if (!is_digit(*c))
            return 0;
    errno = 0;
    *out = strtoll(text, NULL, 10);
    return errno == 0;
}

int scan_number(const char *text, locale_t c, double *out)
{
    const char *s = text + (*text == '-' || *text == '+');
    int digits = 0;

    for (; is_digit(*s); s++)
        digits++;
    if (*s == '.')
        for (s++; is_digit(*s); s++)
            digits++;
    if (!digits)
        return 0;
    if (*s == 'e' || *s == 'E') {
        s += 1 + (s[1] == '-' || s[1] == '+');
        if (!is_digit(*s))
            return 0;
        while (is_digit(*s))
            s++;
    }
    if (*s)
        return 0;
    *out = strtod_l(text, NULL, c);
    return isfinite(*out);
}

int scan_quantity(const char *text, double *out)
{
    static const struct { const char *word; double factor; } suffixes[] = {
        { "", 1 }, { "n", 1e-9 }, { "u", 1e-6 }, { "m", 1e-3 }, { "k", 1e3 }, { "K", 1e3 },
        { "M", 1e6 }, { "G", 1e9 }, { "T", 1e12 }, { "P", 1e15 }, { "E", 1e18 },
        { "Ki", 0x1p10 }, { "Mi", 0x1p20 }, { "Gi", 0x1p30 }, { "Ti", 0x1p40 }, { "Pi", 0x1p50 },
        { "Ei", 0x1p60 },
    };
    static locale_t c;          /* made once; a second one made at the same time is only lost */
    size_t n = strspn(text, "0123456789.");
    char digits[32];
    double number;

    if (!c)
        c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (scan_number(text, c, &number)) {
        *out = number;
        return number >= 0;
    }
    if (!n || n >= sizeof digits)
        return 0;
    snprintf(digits, sizeof digits, "%.*s", (int)n, text);
    if (!scan_number(digits, c, &number))
        return 0;
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++)
        if (strcmp(text + n, suffixes[i].word) == 0) {
            *out = number * suffixes[i].factor;
            return 1;
        }
    return 0;
}

int scan_range(const char *text, long long *out_a, long long *out_b)
{
    char low[24], high[24];
    const char *dots = strstr(text, "..");

    if (!dots || dots - text > 20 || strlen(dots + 2) > 20 || !(dots[2] || dots > text))
        return 0;
    snprintf(low, sizeof low, "%.*s", (int)(dots - text), text);
    snprintf(high, sizeof high, "%s", dots + 2);
    *out_a = *out_b = -1;
    return (!*low || (scan_whole(low, out_a) && *out_a >= 0)) &&
           (!*high || (scan_whole(high, out_b) && *out_b >= 0));
}

static int scan_count(const char *text, const char *units, long long *out_n, const char **out_unit)
{
    char count[24] = "", unit[16] = "", rest;

    if (sscanf(text, "%20[0-9] %10[a-z]%c", count, unit, &rest) != 2 ||
        !scan_whole(count, out_n) || *out_n < 1 || *out_n > 1000000000 ||
        !key_is_word(units, unit))
        return 0;
    *out_unit = unit[0] == 'e' ? "epoch" : unit[1] == 't' ? "step" : "second";
    return 1;
}

int scan_every(const char *text, long long *out_n, const char **out_unit)
{
    return scan_count(text, "step|steps|epoch|epochs", out_n, out_unit);
}

int scan_when(const char *text, long long *out_n, const char **out_unit)
{
    return scan_count(text, "step|steps|second|seconds|epoch|epochs", out_n, out_unit);
}

int scan_metric(const char *text)
{
    long long n;

    if (strncmp(text, "top_", 4) == 0)
        return is_digit(text[4]) && scan_whole(text + 4, &n) && n >= 1 && n <= 1000000;
    return key_is_word(key_metrics, text);
}

int scan_monitor(const char *text, char *near, size_t size)
{
    char words[128];
    int prefixed = strncmp(text, "test_", 5) == 0;
    const char *metric = prefixed ? text + 5 : text;

    if (prefixed && scan_metric(metric))
        return 1;
    const char *word = scan_metric(metric)
                           ? metric
                           : key_near_word(key_metrics, metric, words, sizeof words);
    snprintf(near, size, "%s%.40s", word ? "test_" : "", word ? word : "");
    return 0;
}
