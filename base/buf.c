/* base/buf.c - a byte buffer that grows */
#include "base/buf.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/own.h"

void buf_init(struct buf *b)
{
    *b = (struct buf)BUF_INIT;
}

void buf_done(struct buf *b)
{
    free(b->data);
    buf_init(b);
}

void buf_clear(struct buf *b)
{
    b->n = 0;
    b->failed = 0;
    if (b->data)
        b->data[0] = '\0';
}

char *buf_reserve(struct buf *b, size_t n)
{
    if (b->failed || n > SIZE_MAX / 2 - b->n - 1) {
        b->failed = 1;
        return NULL;
    }
    if (b->n + n + 1 > b->cap) {
        size_t cap = b->cap ? b->cap : 64;
        while (cap < b->n + n + 1)
            cap *= 2;
        char *data = realloc(b->data, cap);
        if (!data) {
            b->failed = 1;
            return NULL;
        }
        b->data = data;
        b->cap = cap;
    }
    b->data[b->n + n] = '\0';
    return b->data + b->n;
}

void buf_append(struct buf *b, const void *data, size_t n)
{
    char *to = buf_reserve(b, n);
    if (to && n) {
        memcpy(to, data, n);
        b->n += n;
    }
}

void buf_text(struct buf *b, const char *text)
{
    buf_append(b, text, strlen(text));
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap, again;

    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    char *to = n < 0 ? NULL : buf_reserve(b, (size_t)n);
    if (to) {
        vsnprintf(to, (size_t)n + 1, fmt, again);
        b->n += (size_t)n;
    }
    va_end(again);
    va_end(ap);
}

int buf_ok(const struct buf *b, struct err *err)
{
    return b->failed ? err_set(err, ERR_NOMEM, "no memory for a text of over %zu bytes", b->n) : 0;
}

char *buf_take(struct buf *b)
{
    if (!buf_reserve(b, 0)) {
        buf_done(b);
        return NULL;
    }
    char *data = TAKE(b->data);
    buf_init(b);
    return data;
}
