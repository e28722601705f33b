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
#include "base/clock.h"
#include "base/proto.h"
#include "data/tfrecord.h"

/* Records wait until there are this many bytes, or a flush. */
enum { GATHER = 32 << 10 };

struct scalars {
    int fd;
    struct buf wait;
    char path[4096];
};

/* ------------------------------------------------------------------ records */

static int add_record(struct scalars *s, const struct buf *event, struct err *err)
{
    if (buf_ok(event, err) < 0)
        return -(int)err->code;
    tfrecord_append(&s->wait, event->data, event->n);
    return s->wait.n < GATHER ? 0 : scalars_flush(s, err);
}

int scalars_flush(struct scalars *s, struct err *err)
{
    if (buf_ok(&s->wait, err) < 0)
        return -(int)err->code;
    while (s->wait.n) {
        ssize_t n = write(s->fd, s->wait.data, s->wait.n);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(err, ERR_IO, "%s: %s", s->path,
                           errno == ENOSPC ? "the disk is full" : strerror(errno));
        s->wait.n -= (size_t)n;         /* what is written is not written again after a failure */
        memmove(s->wait.data, s->wait.data + n, s->wait.n);
    }
    return 0;
}

int scalars_open(const char *dir, struct scalars **out, struct err *err)
{
    OWN(scalars) s = calloc(1, sizeof *s);
    char host[256] = "localhost";
    OWN_BUF event = BUF_INIT;

    if (!s)
        return err_set(err, ERR_NOMEM, "no memory for an events file");
    gethostname(host, sizeof host - 1);
    snprintf(s->path, sizeof s->path, "%s/events.out.tfevents.%ld.%d.%s", dir, (long)time(NULL),
             (int)getpid(), host);
    s->fd = open(s->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (s->fd < 0)
        return err_set(err, ERR_IO, "%s: %s", s->path, strerror(errno));
    proto_double(&event, 1, clock_wall());
    proto_text(&event, 3, "brain.Event:2");
    if (add_record(s, &event, err) < 0)
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
    OWN_BUF val = BUF_INIT, summary = BUF_INIT, event = BUF_INIT;

    proto_text(&val, 1, tag);
    proto_float(&val, 2, (float)value);
    proto_message(&summary, 1, &val);
    proto_double(&event, 1, clock_wall());
    proto_int(&event, 2, step);
    proto_message(&event, 5, &summary);
    return add_record(s, &event, err);
}
