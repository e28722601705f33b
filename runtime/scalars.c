/* runtime/scalars.c - numbers over time, in the files that TensorBoard reads
 *
 * Event { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5; }
 * Summary { repeated Value value = 1; }  Value { string tag = 1; float simple_value = 2; }
 */
#include "runtime/scalars.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/crc32c.h"

/* Records wait until there are this many bytes, or a flush. */
enum { GATHER = 32 << 10, TAG_MAX = 200 };

struct scalars {
    int fd;
    struct buf wait;
    char path[4096];
};

/* ------------------------------------------------------------------ protobuf, as much as needed */

static size_t put_varint(unsigned char *p, uint64_t v)
{
    size_t n = 0;

    for (; v > 127; v >>= 7)
        p[n++] = (unsigned char)(v | 128);
    p[n++] = (unsigned char)v;
    return n;
}

static size_t put_bytes(unsigned char *p, int field, const void *data, size_t n)
{
    size_t at = put_varint(p, (uint64_t)field << 3 | 2);

    at += put_varint(p + at, n);
    memcpy(p + at, data, n);
    return at + n;
}

static size_t put_double(unsigned char *p, int field, double v)
{
    p[0] = (unsigned char)(field << 3 | 1);
    memcpy(p + 1, &v, 8);
    return 9;
}

static size_t put_float(unsigned char *p, int field, float v)
{
    p[0] = (unsigned char)(field << 3 | 5);
    memcpy(p + 1, &v, 4);
    return 5;
}

static double wall_time(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_REALTIME, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* ------------------------------------------------------------------ records */

static void put_le(unsigned char *p, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        p[i] = (unsigned char)(v >> 8 * i);
}

static int add_record(struct scalars *s, const unsigned char *data, size_t n, struct err *err)
{
    unsigned char head[12], tail[4];

    put_le(head, n, 8);
    put_le(head + 8, crc32c_masked(head, 8), 4);
    put_le(tail, crc32c_masked(data, n), 4);
    buf_append(&s->wait, head, sizeof head);
    buf_append(&s->wait, data, n);
    buf_append(&s->wait, tail, sizeof tail);
    return s->wait.n < GATHER ? 0 : scalars_flush(s, err);
}

int scalars_flush(struct scalars *s, struct err *err)
{
    if (buf_ok(&s->wait, err) < 0)
        return -(int)err->code;
    for (size_t at = 0; at < s->wait.n;) {
        ssize_t n = write(s->fd, s->wait.data + at, s->wait.n - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(err, ERR_IO, "%s: %s", s->path, strerror(errno));
        at += (size_t)n;
    }
    buf_clear(&s->wait);
    return 0;
}

int scalars_open(const char *dir, struct scalars **out, struct err *err)
{
    OWN(scalars) s = calloc(1, sizeof *s);
    char host[256] = "localhost";
    unsigned char event[64];

    if (!s)
        return err_set(err, ERR_NOMEM, "no memory for an events file");
    gethostname(host, sizeof host - 1);
    snprintf(s->path, sizeof s->path, "%s/events.out.tfevents.%ld.%d.%s", dir, (long)time(NULL),
             (int)getpid(), host);
    s->fd = open(s->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (s->fd < 0)
        return err_set(err, ERR_IO, "%s: %s", s->path, strerror(errno));
    size_t n = put_double(event, 1, wall_time());
    n += put_bytes(event + n, 3, "brain.Event:2", 13);
    if (add_record(s, event, n, err) < 0)
        return -(int)err->code;
    *out = TAKE(s);
    return 0;
}

void scalars_free(struct scalars *s)
{
    struct err err;

    if (!s)
        return;
    if (s->fd >= 0) {
        scalars_flush(s, &err);
        close(s->fd);
    }
    buf_done(&s->wait);
    free(s);
}

int scalars_add(struct scalars *s, const char *tag, long step, double value, struct err *err)
{
    unsigned char val[TAG_MAX + 32], summary[TAG_MAX + 48], event[TAG_MAX + 96];
    size_t length = strnlen(tag, TAG_MAX);

    size_t n = put_bytes(val, 1, tag, length);
    n += put_float(val + n, 2, (float)value);
    n = put_bytes(summary, 1, val, n);
    size_t at = put_double(event, 1, wall_time());
    event[at++] = 2 << 3;
    at += put_varint(event + at, (uint64_t)step);
    at += put_bytes(event + at, 5, summary, n);
    return add_record(s, event, at, err);
}
