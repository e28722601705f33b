/* console/none.c - in place of the console where it was not built */
#include "protocols/console.h"

/* "muster was built without its console: install npm, then make build", by gzip -9 */
static const unsigned char page[] = {
    31, 139, 8, 0, 0, 0, 0, 0, 2, 3, 29, 203, 209, 9, 128, 48, 12, 5,
    192, 127, 167, 120, 3, 56, 129, 219, 84, 13, 52, 152, 38, 197, 188, 208, 245, 5,
    239, 255, 70, 37, 229, 197, 106, 137, 179, 212, 136, 165, 236, 81, 132, 50, 113, 133,
    103, 152, 28, 80, 79, 54, 51, 248, 28, 59, 216, 197, 49, 218, 35, 255, 184, 183,
    15, 127, 122, 199, 164, 67, 0, 0, 0,
};

const struct console_page console_pages[] = {
    { "index.html", "text/plain; charset=utf-8", page, sizeof page, "\"none\"" },
    { 0 },
};
