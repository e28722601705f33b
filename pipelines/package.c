/* pipelines/package.c - what a client uploads: a pipeline's text, or an archive that holds it */
#include "pipelines/package.h"

#include <stdbool.h>
#include <string.h>

#include "drivers/archive.h"

static bool begins(const void *bytes, size_t n, const char *magic, size_t length)
{
    return n >= length && memcmp(bytes, magic, length) == 0;
}

static bool is_archive(const char *bytes, size_t n)
{
    return begins(bytes, n, "\x1f\x8b", 2) || begins(bytes, n, "PK\x03\x04", 4) ||
           begins(bytes, n, "PK\x05\x06", 4) || begins(bytes, n, "BZh", 3) ||
           begins(bytes, n, "\xfd" "7zXZ", 5) ||
           (n > 262 && memcmp(bytes + 257, "ustar", 5) == 0);
}

int package_read(const void *bytes, size_t n, const char *name, struct buf *out, struct err *err)
{
    if (n > PACKAGE_BYTES_MAX)
        return err_set(err, ERR_INVALID, "%s: %zu MB; a package has at most %d MB", name, n >> 20,
                       PACKAGE_BYTES_MAX >> 20);
    if (n == 0)
        return err_set(err, ERR_INVALID, "%s: is empty", name);
    if (is_archive(bytes, n))
        return archive_take(bytes, n, name, "pipeline.yaml", PACKAGE_TEXT_MAX, out, err);
    if (n > PACKAGE_TEXT_MAX)
        return err_set(err, ERR_INVALID, "%s: %zu MB; a pipeline's text has at most %d MB", name,
                       n >> 20, PACKAGE_TEXT_MAX >> 20);
    buf_append(out, bytes, n);
    return buf_ok(out, err);
}
