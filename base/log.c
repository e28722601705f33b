/* base/log.c - what a server says about itself, a line an event */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/own.h"
#include "base/text.h"

static enum log_format log_as = LOG_TEXT;
static enum log_level log_most = LEVEL_INFO;
static char hidden[128];
static const char *const names[] = { "error", "warn", "info", "debug" };

void log_open(enum log_format format, enum log_level most)
{
    log_as = format;
    log_most = most;
}

int log_wants(enum log_level level)
{
    return log_as != LOG_NONE && level <= log_most;
}

static void add_text(struct buf *line, double t, const char *level, const char *event,
                     const json_t *doc)
{
    const char *key;
    json_t *value;
    char stamp[40];
    time_t s = (time_t)t;
    struct tm tm;

    strftime(stamp, sizeof stamp, "%H:%M:%S", localtime_r(&s, &tm));
    buf_printf(line, "%s %s %s", stamp, level, event);
    json_object_foreach((json_t *)doc, key, value) {
        OWN_MEM char *text = json_is_string(value) ? NULL
            : json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
        buf_printf(line, "  %s: %s", key, text ? text : json_string_value(value));
    }
}

void log_hide(const char *secret)
{
    snprintf(hidden, sizeof hidden, "%s", secret);
}

static void hide(char *line)
{
    const size_t n = strlen(hidden);

    for (char *at = line; n > 3 && (at = strstr(at, hidden));) {
        memcpy(at, "***", 3);
        memmove(at + 3, at + n, strlen(at + n) + 1);
    }
}

void log_event(enum log_level level, const char *event, const char *fmt, ...)
{
    const double now = clock_wall();
    json_error_t why;
    OWN_BUF line = BUF_INIT;
    va_list args;

    if (!log_wants(level))
        return;
    va_start(args, fmt);
    OWN_JSON json_t *doc = json_vpack_ex(&why, 0, fmt, args);
    va_end(args);
    if (log_as == LOG_JSON) {
        OWN_JSON json_t *all =
            json_pack("{s:f, s:s, s:s}", "t", now, "level", names[level], "event", event);
        if (doc)
            json_object_update(all, doc);
        OWN_MEM char *text = all ? json_dumps(all, JSON_COMPACT | JSON_REAL_PRECISION(16)) : NULL;
        buf_text(&line, text ? text : "{}");
    } else {
        add_text(&line, now, names[level], event, doc);
    }
    buf_text(&line, "\n");
    if (!line.failed) {
        text_hide_tokens(line.data, false);
        hide(line.data);
        line.n = strlen(line.data);
    }
    if (!line.failed && write(STDERR_FILENO, line.data, line.n) < 0)
        return;                 /* there is nobody to tell */
}
