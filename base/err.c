/* base/err.c - one way to fail */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

static const struct {
    int http, exit;
} codes[] = {
    [ERR_OK] = { 200, 0 },
#define X(name, http, exit) [ERR_##name] = { http, exit },
    ERR_CODES(X)
#undef X
};

/* A text that did not fit ends in "..." so that nobody takes it for whole. An error is printed, logged
 * and stored with a job: no token goes that way. */
static void finish(char *text, size_t size, int wanted)
{
    const bool cut = wanted >= (int)size;

    if (cut)
        memcpy(text + size - 4, "...", 4);
    text_hide_tokens(text, cut);
}

int err_set(struct err *e, enum err_code code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    int n = vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    finish(e->text, sizeof e->text, n);
    e->code = code;
    return -(int)code;
}

int err_add(struct err *e, const char *fmt, ...)
{
    char inner[sizeof e->text], outer[sizeof e->text];
    va_list ap;

    memcpy(inner, e->text, sizeof inner);
    va_start(ap, fmt);
    vsnprintf(outer, sizeof outer, fmt, ap);
    va_end(ap);
    int n = snprintf(e->text, sizeof e->text, "%s: %s", outer, inner);
    finish(e->text, sizeof e->text, n);
    return -(int)e->code;
}

int err_http(enum err_code code)
{
    return codes[code].http;
}

int err_exit(enum err_code code)
{
    return codes[code].exit;
}
