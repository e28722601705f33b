/* drivers/journal.c - writes what a job prints: lines with times, in files of 16 MB
 *
 * Lines are gathered in `out` with the time at which their bytes were read and go to the file
 * in one write. If that fails, the file is cut back to the last whole line and the rest are
 * counted as lost. A full disk is tried again with every batch: what is lost is what was
 * printed meanwhile.
 */
#include "drivers/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "spec/yaml.h"

enum {
    FILE_BYTES = 16 << 20,
    LINE_BYTES = 64 << 10,
    BATCH_BYTES = 256 << 10,
};

struct stream {
    char name;
    char part[LINE_BYTES];      /* of a line without its end yet */
    size_t n;
    bool after_return;          /* a newline now belongs to the carriage return before it */
};

struct journal {
    char dir[4096];
    int fd, file;
    long long size;             /* of the file: whole lines */
    struct timespec last;
    char when[40];              /* the same, as text */
    struct buf out;
    long long batch;            /* lines in `out` */
    long long lines, dropped, told;
    struct stream streams[2];
};

static int open_file(struct journal *j, int number)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/log.%d", j->dir, number);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -1;
    if (j->fd >= 0)
        close(j->fd);
    j->fd = fd;
    j->file = number;
    j->size = lseek(fd, 0, SEEK_END);
    return 0;
}

int journal_open(const char *dir, struct journal **out, struct err *err)
{
    OWN(journal) j = calloc(1, sizeof *j);
    if (!j)
        return err_set(err, ERR_NOMEM, "no memory for a log");
    snprintf(j->dir, sizeof j->dir, "%s", dir);
    j->fd = -1;
    j->streams[0].name = 'o';
    j->streams[1].name = 'e';
    char path[4200];
    int number = 0;
    do
        snprintf(path, sizeof path, "%s/log.%d", dir, number + 1);
    while (access(path, F_OK) == 0 && ++number);
    j->file = number;           /* opened by the first line */
    *out = TAKE(j);
    return 0;
}

void journal_free(struct journal *j)
{
    if (!j)
        return;
    journal_end_lines(j);
    journal_flush(j);
    if (j->fd >= 0)
        close(j->fd);
    buf_done(&j->out);
    free(j);
}

long long journal_lines(const struct journal *j)
{
    return j->lines;
}

long long journal_dropped(const struct journal *j)
{
    return j->dropped;
}

/* ------------------------------------------------------------------ lines */

/* The calendar's clock may be set back; a log's times are not. */
static void look_at_clock(struct journal *j)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (now.tv_sec < j->last.tv_sec ||
        (now.tv_sec == j->last.tv_sec && now.tv_nsec < j->last.tv_nsec))
        now = j->last;
    j->last = now;
    snprintf(j->when, sizeof j->when, "%lld.%06ld", (long long)now.tv_sec, now.tv_nsec / 1000);
}

static void put_head(struct journal *j, char stream)
{
    char head[] = " ? 0 ";
    head[1] = stream;
    buf_text(&j->out, j->when);
    buf_append(&j->out, head, sizeof head - 1);
}

static bool is_plain(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < 0x20 || (unsigned char)text[i] >= 0x7f)
            return false;
    return true;
}

/* Readers put lines into JSON: what is no UTF-8 becomes U+FFFD, control characters '?'. */
static void put_text(struct buf *out, const char *text, size_t n)
{
    if (is_plain(text, n)) {
        buf_append(out, text, n);
        return;
    }
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)text[i];
        size_t length = c < 0x80 ? 1 : yaml_utf8_length(text + i, n - i);
        if (!length)
            buf_text(out, "\xef\xbf\xbd");
        else if (c < 0x80 && ((c < 0x20 && c != '\t' && c != 0x1b) || c == 0x7f))
            buf_text(out, "?");
        else
            buf_append(out, text + i, length);
        i += length ? length : 1;
    }
}

static void put_line(struct journal *j, char stream, const char *text, size_t n, bool cut)
{
    put_head(j, stream);
    put_text(&j->out, text, n);
    buf_text(&j->out, cut ? "\\\n" : "\n");
    j->batch++;
    if (j->out.n >= BATCH_BYTES || j->out.failed)
        journal_flush(j);
}

/* How much of a line that is too long goes into one piece: not through the middle of a
 * character. */
static size_t piece_of(const char *text, size_t n)
{
    size_t at = n;
    while (at > n - 4 && ((unsigned char)text[at - 1] & 0xc0) == 0x80)
        at--;
    return at > n - 4 && ((unsigned char)text[at - 1] & 0x80) ? at - 1 : n;
}

static void add_part(struct journal *j, struct stream *s, const char *text, size_t n)
{
    while (n) {
        if (s->n == LINE_BYTES) {
            size_t piece = piece_of(s->part, s->n);
            put_line(j, s->name, s->part, piece, true);
            memmove(s->part, s->part + piece, s->n - piece);
            s->n -= piece;
        }
        size_t fits = LINE_BYTES - s->n < n ? LINE_BYTES - s->n : n;
        memcpy(s->part + s->n, text, fits);
        s->n += fits;
        text += fits;
        n -= fits;
    }
}

static void end_line(struct journal *j, struct stream *s, const char *text, size_t n)
{
    if (!s->n && n <= LINE_BYTES) {
        put_line(j, s->name, text, n, false);
        return;
    }
    add_part(j, s, text, n);
    put_line(j, s->name, s->part, s->n, false);
    s->n = 0;
}

void journal_feed(struct journal *j, char stream, const char *bytes, size_t n)
{
    struct stream *s = &j->streams[stream == 'e'];
    const char *end = bytes + n;

    look_at_clock(j);           /* once for many lines: they came in one read */
    while (bytes < end) {
        if (s->after_return) {
            s->after_return = false;
            if (*bytes == '\n') {
                bytes++;
                continue;
            }
        }
        const char *line_end = memchr(bytes, '\n', (size_t)(end - bytes));
        const char *stop = line_end ? line_end : end;
        const char *carriage = memchr(bytes, '\r', (size_t)(stop - bytes));
        if (carriage)
            stop = carriage;
        if (!carriage && !line_end) {
            add_part(j, s, bytes, (size_t)(end - bytes));
            return;
        }
        end_line(j, s, bytes, (size_t)(stop - bytes));
        s->after_return = carriage != NULL;
        bytes = stop + 1;
    }
}

void journal_end_lines(struct journal *j)
{
    look_at_clock(j);
    for (int i = 0; i < 2; i++)
        if (j->streams[i].n)
            end_line(j, &j->streams[i], "", 0);
}

void journal_say(struct journal *j, const char *fmt, ...)
{
    char text[1024];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    look_at_clock(j);
    put_line(j, 'm', text, strlen(text), false);
}

/* ------------------------------------------------------------------ the file */

/* Returns how many bytes of whole lines are in the file for good. */
static size_t write_lines(struct journal *j)
{
    size_t at = 0;
    while (at < j->out.n) {
        ssize_t n = write(j->fd, j->out.data + at, j->out.n - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        at += (size_t)n;
    }
    if (at < j->out.n) {
        /* Readers take whole lines only, so nobody has seen what is cut off here. */
        const char *end = memrchr(j->out.data, '\n', at);
        at = end ? (size_t)(end + 1 - j->out.data) : 0;
        if (ftruncate(j->fd, j->size + (long long)at) < 0)
            open_file(j, j->file + 1);
    }
    return at;
}

static long long count_lines(const char *text, size_t n)
{
    long long lines = 0;
    for (const char *p = text; (p = memchr(p, '\n', n - (size_t)(p - text))); p++)
        lines++;
    return lines;
}

void journal_flush(struct journal *j)
{
    if (!j->batch && j->dropped == j->told)
        return;
    /* Said before the lines that follow the gap. */
    bool tells = j->dropped > j->told;
    if (tells) {
        OWN_BUF lines = j->out;
        buf_init(&j->out);
        put_head(j, 'm');
        buf_printf(&j->out, "%lld lines were lost here: the disk was full\n", j->dropped - j->told);
        buf_append(&j->out, lines.data, lines.n);
        j->out.failed |= lines.failed;
    }
    bool is_open = j->fd >= 0 || open_file(j, j->file) == 0;
    size_t n = j->out.failed || !is_open ? 0 : write_lines(j);
    long long kept = n ? count_lines(j->out.data, n) - tells : 0;
    j->size += (long long)n;
    if (n)
        j->told = j->dropped;
    j->lines += kept;
    j->dropped += j->batch - kept;
    j->batch = 0;
    if (j->out.failed)
        buf_done(&j->out);
    else
        buf_clear(&j->out);
    if (j->size >= FILE_BYTES)
        open_file(j, j->file + 1);
}
