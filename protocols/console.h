/* protocols/console.h - the web console, bundled into the binary (console/build.py writes the pages) */
#ifndef MUSTER_PROTOCOLS_CONSOLE_H
#define MUSTER_PROTOCOLS_CONSOLE_H

#include <stddef.h>

#include "server/http.h"

struct console_page {
    const char *name, *type;
    const unsigned char *bytes;         /* gzip */
    size_t n;
    const char *etag;                   /* with its quotes */
};

extern const struct console_page console_pages[];       /* ends with name NULL */
extern const struct protocol protocol_console;

#endif
