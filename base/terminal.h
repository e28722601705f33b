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

/* Of the terminal at `fd`, which 80 by 24 stands for where it is none or does not say. */
void terminal_size(int fd, int *out_rows, int *out_columns);
/* Cuts a line, in place, to so many characters: one that is drawn over must not fill a second. */
void terminal_cut(char *line, int columns);

/* Writes it: as it is, or as above where `to` is a terminal. */
void terminal_write(FILE *to, const char *text, size_t n);

#endif
