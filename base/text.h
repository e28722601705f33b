/* base/text.h - what a text may hold, and what it may not */
#ifndef MUSTER_BASE_TEXT_H
#define MUSTER_BASE_TEXT_H

#include <stdbool.h>
#include <string.h>

/* A line break or another character that acts on a terminal rather than being shown: names and labels
 * are printed in lists, where it would make a second line or hide the first. UTF-8. `tab`: that one
 * is fine. */
static inline bool text_has_control(const char *text, bool tab)
{
    const unsigned char *p = (const unsigned char *)text;

    for (; *p; p++)
        if ((*p < 0x20 && !(tab && *p == '\t')) || *p == 0x7f ||
            (*p == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0))
            return true;
    return false;
}

/* Tokens, sessions and tickets (server/auth.h) are a word, '_' and 40 letters: wherever a text goes that
 * is kept or shown, each becomes "word_***". In place. `cut`: the text's end is missing, perhaps within
 * one. */
static inline void text_hide_tokens(char *text, bool cut)
{
    enum { LETTERS = 40 };
    char *to = text;

    for (const char *at = text; *at;) {
        const char c = *at++;
        *to++ = c;
        if (c != '_')
            continue;
        const size_t n = strspn(at, "abcdefghijklmnopqrstuvwxyz234567");
        if (n >= LETTERS || (cut && n > 3 && (!at[n] || !strcmp(at + n, "...")))) {
            memcpy(to, "***", 3);
            to += 3;
            at += n;
        }
    }
    *to = 0;
}

#endif
