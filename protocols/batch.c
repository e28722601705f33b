/* protocols/batch.c - one call of a batch as text */
#include "protocols/batch.h"

#include <string.h>

#include "base/own.h"
#include "server/http.h"

char *batch_decoded(const char *text, size_t n, bool plus)
{
    OWN_MEM char *out = malloc(n + 1);

    return out && percent_decode(text, n, plus, out) >= 0 ? TAKE(out) : NULL;
}

/* "http://host/k/TOKEN/storage/v1/..." becomes "/storage/v1/..." */
static char *cut_address(char *target)
{
    char *scheme = strstr(target, "://");

    if (scheme && scheme - target <= 5) {
        target = strchr(scheme + 3, '/');
        if (!target)
            return NULL;
    }
    if (!strncmp(target, "/k/", 3)) {
        target = strchr(target + 3, '/');
        if (!target)
            return NULL;
    }
    return target;
}

int batch_parse(char *text, size_t n, struct batch_call *out, struct err *err)
{
    struct batch_call c = { 0 };
    char *line = memchr(text, '\n', n);

    if (memchr(text, 0, n) || !line)
        return err_set(err, ERR_INVALID, "a part of the batch has no request line");
    *line = '\0';
    line[-(line > text && line[-1] == '\r')] = '\0';
    c.method = text;
    char *target = strchr(text, ' ');
    char *version = target ? strchr(target + 1, ' ') : NULL;
    if (!version || strncmp(version + 1, "HTTP/", 5))
        return err_set(err, ERR_INVALID, "a part of the batch begins with METHOD ADDRESS HTTP/1.1");
    *target++ = '\0';
    *version = '\0';
    if (!(c.path = cut_address(target)) || *c.path != '/')
        return err_set(err, ERR_INVALID, "the address of a part of the batch has no path");
    if ((c.query = strchr(c.path, '?')))
        *c.query++ = '\0';
    /* Its headers say nothing that matters; the body comes after the empty line. */
    char *p = line + 1, *end = text + n;
    while (p < end) {
        char *next = memchr(p, '\n', (size_t)(end - p));
        size_t length = next ? (size_t)(next - p) : (size_t)(end - p);
        bool empty = length == 0 || (length == 1 && *p == '\r');
        p += length + (next != NULL);
        if (empty)
            break;
    }
    c.body = p;
    c.n_body = (size_t)(end - p);
    *out = c;
    return 0;
}
