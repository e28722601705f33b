/* pipelines/schedule.c - cron lines and periods: when is it due next? */
#include "pipelines/schedule.h"

#include <ctype.h>
#include <math.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/err.h"

/* ------------------------------------------------------------ cron lines */

static const char *const month_names[] = { "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug",
                                           "sep", "oct", "nov", "dec", NULL };
static const char *const day_names[] = { "sun", "mon", "tue", "wed", "thu", "fri", "sat", NULL };

struct field {
    const char *name;
    int min, max;
    const char *const *names;   /* of min, min + 1 ... */
};
static const struct field fields[] = {
    { "second", 0, 59, NULL },
    { "minute", 0, 59, NULL },
    { "hour", 0, 23, NULL },
    { "day of the month", 1, 31, NULL },
    { "month", 1, 12, month_names },
    { "day of the week", 0, 7, day_names },     /* 7 is Sunday, too */
};
enum { FIELDS = sizeof fields / sizeof fields[0] };

static const struct { const char *name, *line; } nicknames[] = {
    { "@yearly", "0 0 0 1 1 *" },  { "@annually", "0 0 0 1 1 *" }, { "@monthly", "0 0 0 1 * *" },
    { "@weekly", "0 0 0 * * 0" },  { "@daily", "0 0 0 * * *" },    { "@midnight", "0 0 0 * * *" },
    { "@hourly", "0 0 * * * *" },
};
enum { NICKNAMES = sizeof nicknames / sizeof nicknames[0] };

/* A number or a name at *p, which moves past it; -1: neither. */
static int number_at(const struct field *f, const char **p)
{
    if (isdigit((unsigned char)**p)) {
        long n = 0;
        while (isdigit((unsigned char)**p) && n < 1000)
            n = 10 * n + *(*p)++ - '0';
        return (int)n;
    }
    for (int i = 0; f->names && f->names[i]; i++)
        if (!strncasecmp(*p, f->names[i], 3) && !isalpha((unsigned char)(*p)[3])) {
            *p += 3;
            return f->min + i;
        }
    return -1;
}

static int field_error(const struct field *f, const char *text, size_t n, struct err *err)
{
    return err_set(err, ERR_INVALID, "cron: \"%.*s\" is no %s (%d to %d; *, 1-5, 1,2 and */15 are "
                   "fine)", (int)(n < 64 ? n : 64), text, f->name, f->min, f->max);
}

/* One field: a list of ranges with steps. *out_any: it says nothing. */
static int field_parse(const struct field *f, const char *text, size_t n, uint64_t *out,
                       bool *out_any, struct err *err)
{
    const char *p = text, *end = text + n;
    uint64_t set = 0;

    *out_any = *text == '*' || *text == '?';
    while (p < end) {
        int from = f->min, to = f->max, step = 1;
        bool open = *p == '*' || *p == '?';
        if (open) {
            p++;
        } else {
            from = to = number_at(f, &p);
            if (p < end && *p == '-') {
                p++;
                to = number_at(f, &p);
            } else if (p < end && *p == '/') {
                to = f->max;    /* "5/15": from 5 on */
            }
        }
        if (p < end && *p == '/') {
            p++;
            step = isdigit((unsigned char)*p) ? number_at(f, &p) : 0;
        }
        if (from < f->min || to > f->max || from > to || step < 1 || (p < end && *p != ','))
            return field_error(f, text, n, err);
        for (int i = from; i <= to; i += step)
            set |= UINT64_C(1) << i;
        if (p < end && ++p == end)
            return field_error(f, text, n, err);
    }
    *out = set;
    return 0;
}

/* "1h30m", "90s"; as Go writes spans of time, whole seconds. 0: it is none. */
static int64_t span_parse(const char *p)
{
    double s = 0;

    if (!*p)
        return 0;
    while (*p) {
        char *end;
        double n = strtod(p, &end);
        if (end == p || !(n >= 0) || n > 1e9)
            return 0;
        bool ms = end[0] == 'm' && end[1] == 's';
        double unit = ms ? 0.001 : *end == 'h' ? 3600 : *end == 'm' ? 60 : *end == 's' ? 1 : 0;
        if (unit == 0)
            return 0;
        s += n * unit;
        p = end + 1 + ms;
    }
    return s < 1 ? 1 : (int64_t)s;
}

int cron_parse(const char *text, struct cron *out, struct err *err)
{
    const char *at[FIELDS];
    size_t size[FIELDS];
    uint64_t set[FIELDS] = { 0 };
    bool any[FIELDS] = { false };
    int n = 0;

    text += strspn(text, " \t\r\n");
    if (!strncmp(text, "@every ", 7)) {
        *out = (struct cron){ .every_s = span_parse(text + 7) };
        return out->every_s ? 0 : err_set(err, ERR_INVALID, "cron: \"%.64s\" names no span of time "
                                          "(@every 1h30m)", text);
    }
    for (int i = 0; i < NICKNAMES; i++)
        if (!strcmp(text, nicknames[i].name))
            text = nicknames[i].line;
    for (const char *p = text; *p; p += strspn(p, " \t\r\n")) {
        if (n == FIELDS)
            return err_set(err, ERR_INVALID, "cron: \"%.100s\" has more than six fields", text);
        at[n] = p;
        size[n] = strcspn(p, " \t\r\n");
        p += size[n++];
    }
    if (n < FIELDS - 1)
        return err_set(err, ERR_INVALID, "cron: \"%.100s\" has %d fields; there are five (minute, "
                       "hour, day, month, weekday) or six (second first)", text, n);
    const int first = FIELDS - n;       /* five fields: at second 0 */
    set[0] = 1;
    for (int i = first; i < FIELDS; i++)
        if (field_parse(&fields[i], at[i - first], size[i - first], &set[i], &any[i], err) < 0)
            return -(int)err->code;
    uint64_t weekdays = (set[5] | set[5] >> 7) & 0x7f;
    *out = (struct cron){ .seconds = set[0], .minutes = set[1], .hours = (uint32_t)set[2],
                          .days = (uint32_t)set[3], .months = (uint32_t)set[4],
                          .weekdays = (uint32_t)weekdays, .any_day = any[3],
                          .any_weekday = any[5] };
    return 0;
}

static bool day_matches(const struct cron *c, const struct tm *t)
{
    bool day = c->days >> t->tm_mday & 1, weekday = c->weekdays >> t->tm_wday & 1;

    return c->any_day || c->any_weekday ? day && weekday : day || weekday;
}

/* The first number of the set from `from` on; -1: none. */
static int next_in(uint64_t set, int from)
{
    set = from > 63 ? 0 : set >> from << from;
    return set ? __builtin_ctzll(set) : -1;
}

/* The first time of this day from `second` of the day on; -1: none. */
static int next_of_day(const struct cron *c, int second)
{
    for (int h = next_in(c->hours, second / 3600); h >= 0; h = next_in(c->hours, h + 1)) {
        int rest = second - 3600 * h;
        rest = rest < 0 ? 0 : rest;
        for (int m = next_in(c->minutes, rest / 60); m >= 0; m = next_in(c->minutes, m + 1)) {
            int s = next_in(c->seconds, rest > 60 * m ? rest - 60 * m : 0);
            if (s >= 0)
                return 3600 * h + 60 * m + s;
        }
    }
    return -1;
}

enum { DAY_S = 86400, YEARS_MAX = 9 };  /* from a 29 February to the next, over a century's end */

int64_t cron_next(const struct cron *c, int64_t after)
{
    if (c->every_s)
        return after + c->every_s;
    int64_t t = after + 1;
    int64_t day = t / DAY_S * DAY_S;
    for (const int64_t end = day + YEARS_MAX * 366LL * DAY_S; day < end; day += DAY_S) {
        struct tm tm;
        time_t at = (time_t)day;
        if (!gmtime_r(&at, &tm))
            return 0;
        if (!(c->months >> (tm.tm_mon + 1) & 1) || !day_matches(c, &tm))
            continue;
        int s = next_of_day(c, day < t ? (int)(t - day) : 0);
        if (s >= 0)
            return day + s;
    }
    return 0;
}

/* ------------------------------------------------------------ triggers */

static const double TIME_MAX = 1e11;    /* some three thousand years: a time in seconds */

int trigger_parse(const json_t *doc, struct trigger *out, struct err *err)
{
    const json_t *t = json_object_get(doc, "trigger");
    const char *cron = json_string_value(json_object_get(t, "cron"));
    double interval = json_number_value(json_object_get(t, "interval_s"));
    double start = json_number_value(json_object_get(t, "start"));
    double end = json_number_value(json_object_get(t, "end"));
    struct trigger s = {
        .is_cron = cron != NULL, .no_catchup = json_is_true(json_object_get(doc, "no_catchup")),
    };

    if (cron && cron_parse(cron, &s.cron, err) < 0)
        return -(int)err->code;
    if (!cron && !(interval >= 1 && interval <= 1e9))
        return err_set(err, ERR_INVALID,
                       "trigger: takes a cron line, or a period of 1 second or more");
    if (!(fabs(start) <= TIME_MAX && fabs(end) <= TIME_MAX))
        return err_set(err, ERR_INVALID, "trigger: start and end are seconds since 1970");
    if (!cron)
        s.interval_s = (int64_t)interval;
    s.start = (int64_t)start;
    s.end = (int64_t)end;
    if (s.end && s.end < s.start)
        return err_set(err, ERR_INVALID, "trigger: ends before it begins");
    *out = s;
    return 0;
}

static int64_t one_after(const struct trigger *s, int64_t t)
{
    return s->is_cron ? cron_next(&s->cron, t) : t + s->interval_s;
}

/* The last time that is due by `now`, when `first` already is. */
static int64_t last_by(const struct trigger *s, int64_t first, int64_t now)
{
    int64_t every = s->is_cron ? s->cron.every_s : s->interval_s;

    if (every)
        return first + (now - first) / every * every;
    /* Back from now in steps that grow until something is due between. */
    for (int64_t back = 60; now - back > first; back *= 4) {
        int64_t t = cron_next(&s->cron, now - back);
        if (t == 0 || t > now)
            continue;
        for (int64_t next; (next = cron_next(&s->cron, t)) != 0 && next <= now;)
            t = next;
        return t;
    }
    for (int64_t next; (next = cron_next(&s->cron, first)) != 0 && next <= now;)
        first = next;
    return first;
}

int64_t trigger_next(const struct trigger *s, int64_t created, int64_t last, int64_t now)
{
    int64_t from = last;

    if (!last) {
        from = created > s->start ? created : s->start;
        if (s->is_cron && !s->cron.every_s && s->start >= created)
            from = s->start - 1;        /* its first second counts */
    }
    int64_t t = one_after(s, from);
    int64_t until = s->end && s->end < now ? s->end : now;
    if (t && s->no_catchup && t < until)
        t = last_by(s, t, until);
    return s->end && t > s->end ? 0 : t;
}
