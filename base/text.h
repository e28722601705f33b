/* base/text.h - what a text may hold */
#ifndef MUSTER_BASE_TEXT_H
#define MUSTER_BASE_TEXT_H

#include <stdbool.h>

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

#endif
