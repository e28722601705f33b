/* base/terminal.h - text of others on a terminal
 *
 * What a program printed may hold bytes that a terminal obeys: they move the cursor over what was
 * printed, change the title, answer as if somebody typed. On a terminal they are shown instead, as
 * `^[` and the like; colours (ESC [ ... m), tabs and ends of lines stay. What goes to a file or a
 * pipe is left as it is, which is the caller's to know.
 */
#ifndef MUSTER_BASE_TERMINAL_H
#define MUSTER_BASE_TERMINAL_H

#include <stddef.h>
#include <stdio.h>

#include "base/buf.h"

/* Appends what may be printed of `text`, whole lines of it. */
void terminal_show(struct buf *out, const char *text, size_t n);

/* Writes it: as it is, or as above where `to` is a terminal. */
void terminal_write(FILE *to, const char *text, size_t n);

#endif
