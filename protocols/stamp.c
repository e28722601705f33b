/* protocols/stamp.c - times as Google's APIs write them */
#include "protocols/stamp.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const int64_t SECOND = 1000000000;

int64_t stamp_of(double seconds)
{
    return llround(seconds * 1e6) * 1000;
}

void stamp_format(int64_t ns, char out[STAMP_SIZE])
{
    time_t s = (time_t)(ns / SECOND);
    int64_t rest = ns % SECOND;
    if (rest < 0) {
        rest += SECOND;
        s--;
    }
    struct tm tm = { 0 };
    gmtime_r(&s, &tm);
    size_t n = strftime(out, STAMP_SIZE, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out + n, STAMP_SIZE - n, ".%06dZ", (int)(rest / 1000));
}

/* Exactly n digits; -1: not there. */
static int digits(const char **p, int n)
{
    int v = 0;
    for (int i = 0; i < n; i++, (*p)++) {
        if (!isdigit((unsigned char)**p))
            return -1;
        v = v * 10 + (**p - '0');
    }
    return v;
}

static int skip(const char **p, const char *of)
{
    if (!**p || !strchr(of, **p))
        return -1;
    (*p)++;
    return 0;
}

static int parse_date(const char **p, struct tm *tm)
{
    static const int days[] = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };
    int y = digits(p, 4);
    if (y < 1678 || y > 2261 || skip(p, "-") < 0)
        return -1;
    int m = digits(p, 2);
    if (m < 1 || m > 12 || skip(p, "-") < 0)
        return -1;
    int d = digits(p, 2), leap = m == 2 && (y % 4 == 0 && (y % 100 || y % 400 == 0));
    if (d < 1 || d > days[m - 1] + leap)
        return -1;
    *tm = (struct tm){ .tm_year = y - 1900, .tm_mon = m - 1, .tm_mday = d };
    return 0;
}

static int parse_clock(const char **p, struct tm *tm, int64_t *ns)
{
    if (skip(p, "Tt ") < 0 || (tm->tm_hour = digits(p, 2)) < 0 || skip(p, ":") < 0 ||
        (tm->tm_min = digits(p, 2)) < 0 || skip(p, ":") < 0 || (tm->tm_sec = digits(p, 2)) < 0)
        return -1;
    if (tm->tm_hour > 23 || tm->tm_min > 59 || tm->tm_sec > 60)
        return -1;
    if (**p == '.') {
        (*p)++;
        if (!isdigit((unsigned char)**p))
            return -1;
        for (int64_t unit = SECOND / 10; isdigit((unsigned char)**p); (*p)++, unit /= 10)
            *ns += unit * (**p - '0');
    }
    return 0;
}

int stamp_parse(const char *text, int64_t *out_ns)
{
    const char *p = text;
    struct tm tm;
    int64_t ns = 0;
    long offset = 0;
    if (parse_date(&p, &tm) < 0)
        return -1;
    if (*p) {
        if (parse_clock(&p, &tm, &ns) < 0)
            return -1;
        if (*p == '+' || *p == '-') {
            int sign = *p++ == '-' ? -1 : 1, h = digits(&p, 2);
            if (*p == ':')
                p++;
            int m = digits(&p, 2);
            if (h < 0 || h > 23 || m < 0 || m > 59)
                return -1;
            offset = sign * (h * 3600L + m * 60L);
        } else if (skip(&p, "Zz") < 0) {
            return -1;
        }
    }
    if (*p)
        return -1;
    *out_ns = ((int64_t)timegm(&tm) - offset) * SECOND + ns;
    return 0;
}
