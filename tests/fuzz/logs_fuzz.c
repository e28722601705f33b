/* tests/fuzz/logs_fuzz.c - any bytes as a log: a power cut may leave them
 *
 * Wherever reading begins it ends, at the last end of a line, and lines lie within the file.
 */
#include "server/logs.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int each(void *arg, const struct log_line *l)
{
    volatile char last = l->n ? l->text[l->n - 1] : 0;
    (void)last;
    assert(l->at.offset < l->next.offset && l->next.offset <= *(int64_t *)arg);
    return 0;
}

static void read_from(const char *dir, struct log_cursor c, int64_t n)
{
    struct err err = { 0 };
    int64_t before;

    do {
        before = c.offset;
        assert(logs_read(dir, &c, NULL, each, &n, &err) >= 0);
        assert(c.file == 0 && c.offset >= before);
    } while (c.offset != before);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static char dir[] = "/tmp/logs-fuzz-XXXXXX", path[sizeof dir + 8];
    struct log_cursor c;
    struct err err = { 0 };

    if (!*path) {
        if (!mkdtemp(dir))
            abort();
        snprintf(path, sizeof path, "%s/log.0", dir);
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, bytes, n) != (ssize_t)n || close(fd) < 0)
        abort();
    for (size_t i = 0; i < 8; i++)
        read_from(dir, (struct log_cursor){ 0, (int64_t)(n * i / 7) }, (int64_t)n);
    assert(logs_seek_tail(dir, 3, &c, &err) == 0);
    read_from(dir, c, (int64_t)n);
    assert(logs_seek_time(dir, 1794764590.5, &c, &err) == 0);
    read_from(dir, c, (int64_t)n);
    unlink(path);
    rmdir(dir);
    *path = 0;
    snprintf(dir, sizeof dir, "/tmp/logs-fuzz-XXXXXX");
    return 0;
}
