/* base/terminal.c - text of others on a terminal */
#include "base/terminal.h"

#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { COLOUR_MAX = 64 };       /* bytes of a sequence that sets colours */

/* The length of a sequence that sets colours and nothing else, or 0. */
static size_t colour(const char *s, size_t n)
{
    size_t i = 2;

    if (n < 3 || s[0] != '\033' || s[1] != '[')
        return 0;
    while (i < n && i < COLOUR_MAX && s[i] && strchr("0123456789;:", s[i]))
        i++;
    return i < n && s[i] == 'm' ? i + 1 : 0;
}

/* The length of a character of UTF-8 that is no control, or 0. */
static size_t character(const char *text, size_t n)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t length = s[0] < 0x80 ? 1 : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
                    : s[0] >= 0xe0 && s[0] < 0xf0 ? 3 : s[0] >= 0xf0 && s[0] < 0xf5 ? 4 : 0;

    if (!length || length > n || s[0] == 0x7f || (s[0] < ' ' && s[0] != '\t' && s[0] != '\n') ||
        (s[0] == 0xc2 && s[1] < 0xa0))
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    return length;
}

void terminal_show(struct buf *out, const char *text, size_t n)
{
    for (size_t i = 0, step; i < n; i += step) {
        unsigned char c = (unsigned char)text[i];
        const char *from = text + i;
        if (c == '\r' && i + 1 < n && text[i + 1] == '\n') {
            step = 1;           /* of a line that ends as on Windows */
            continue;
        }
        if ((step = character(from, n - i)) || (step = colour(from, n - i))) {
            size_t plain = step;        /* nearly all of it: at once */
            while (i + plain < n && (unsigned char)text[i + plain] >= ' ' &&
                   (unsigned char)text[i + plain] < 0x7f)
                plain++;
            buf_append(out, from, step = plain);
            continue;
        }
        step = 1;
        if (c < ' ' || c == 0x7f)
            buf_printf(out, "^%c", c ^ 0x40);
        else
            buf_printf(out, "\\x%02x", c);
    }
}

void terminal_write(FILE *to, const char *text, size_t n)
{
    OWN_BUF shown = BUF_INIT;
    struct err none = { 0 };

    if (n == 0)
        return;
    if (!isatty(fileno(to))) {
        fwrite(text, 1, n, to);
        return;
    }
    terminal_show(&shown, text, n);
    if (buf_ok(&shown, &none) == 0 && shown.data)
        fwrite(shown.data, 1, shown.n, to);
}

void terminal_size(int fd, int *out_rows, int *out_columns)
{
    struct winsize w;
    bool known = ioctl(fd, TIOCGWINSZ, &w) == 0;

    *out_rows = known && w.ws_row ? w.ws_row : 24;
    *out_columns = known && w.ws_col ? w.ws_col : 80;
}

void terminal_cut(char *line, int columns)
{
    for (; *line; line++)
        if (((unsigned char)*line & 0xc0) != 0x80 && columns-- <= 0) {  /* not inside of one */
            *line = '\0';
            return;
        }
}
