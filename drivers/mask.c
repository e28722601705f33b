/* drivers/mask.c - words that must not show in a log: they are written as "***" */
#include "drivers/mask.h"

#include <stdlib.h>
#include <string.h>

struct word {
    char *text;
    size_t n;
};

struct mask {
    struct word *words;
    size_t n, cap, longest;
};

struct mask *mask_new(void)
{
    return calloc(1, sizeof(struct mask));
}

void mask_free(struct mask *m)
{
    if (!m)
        return;
    for (size_t i = 0; i < m->n; i++) {
        explicit_bzero(m->words[i].text, m->words[i].n);
        free(m->words[i].text);
    }
    free(m->words);
    free(m);
}

static bool add_word(struct mask *m, const char *text, size_t n)
{
    if (m->n == m->cap) {
        size_t cap = m->cap ? 2 * m->cap : 8;
        struct word *grown = realloc(m->words, cap * sizeof *grown);
        if (!grown)
            return false;
        m->words = grown;
        m->cap = cap;
    }
    char *copy = malloc(n);
    if (!copy)
        return false;
    memcpy(copy, text, n);
    m->words[m->n++] = (struct word){ copy, n };
    if (n > m->longest)
        m->longest = n;
    return true;
}

bool mask_add(struct mask *m, const char *secret)
{
    for (const char *p = secret; *p;) {
        size_t line = strcspn(p, "\r\n");
        for (size_t at = 0; at < line; at += MASK_MOST) {
            size_t n = line - at < MASK_MOST ? line - at : MASK_MOST;
            if (n >= MASK_LEAST && !add_word(m, p + at, n))
                return false;
        }
        p += line + (p[line] != '\0');
    }
    return true;
}

size_t mask_longest(const struct mask *m)
{
    return m ? m->longest : 0;
}

/* The first word in the text, of several there the longest; NULL: none. */
static const char *find(const struct mask *m, const char *text, size_t n, size_t *out_n)
{
    const char *first = NULL;

    for (size_t i = 0; m && i < m->n; i++) {
        const struct word *w = &m->words[i];
        const char *at = n < w->n ? NULL : memmem(text, n, w->text, w->n);
        if (at && (!first || at < first || (at == first && w->n > *out_n))) {
            first = at;
            *out_n = w->n;
        }
    }
    return first;
}

bool mask_finds(const struct mask *m, const char *text, size_t n)
{
    size_t length = 0;
    return find(m, text, n, &length) != NULL;
}

void mask_apply(const struct mask *m, const char *text, size_t n, size_t until, struct buf *out)
{
    const char *end = text + n, *last = text + until;
    size_t length = 0;

    for (const char *at; (at = find(m, text, (size_t)(end - text), &length)) && at < last;
         text = at + length) {
        buf_append(out, text, (size_t)(at - text));
        buf_text(out, "***");
    }
    buf_append(out, text, (size_t)(end - text));
}
