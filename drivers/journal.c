/* drivers/journal.c - writes what a job prints: lines with times, in files of 16 MB
 *
 * Lines are gathered in `out` with the time at which their bytes were read and go to the file
 * in one write. If that fails, the file is cut back to the last whole span and the rest are
 * counted as lost. A full disk is tried again with every batch: what is lost is what was
 * printed meanwhile.
 */
#include "drivers/journal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/crc32c.h"
#include "base/files.h"
#include "base/room.h"
#include "base/utf8.h"

enum {
    FILE_BYTES = 16 << 20,
    FILE_LEAST = 64 << 10,      /* where little may be kept */
    LINE_BYTES = 64 << 10,
    BATCH_BYTES = 256 << 10,
    FULL_BYTES = 16 << 10,      /* of lines between two full ones */
    SPAN_BYTES = 32 << 10,      /* a sum after so many */
    NEAR_US = 1 << 24,          /* four digits of base 64 */
    KEPT = 32,                  /* of the disk, half as much as uploads leave (base/room.h) */
};

struct stream {
    char name;
    char part[LINE_BYTES];      /* of a line without its end yet */
    size_t n;
    bool after_return;          /* a newline now belongs to the carriage return before it */
};

/* What the last line's head said. */
struct head {
    int64_t base;               /* time of the last full one; 0: the next has to be full */
    int64_t us;
    char stream;
    size_t bytes;               /* of lines since the full one */
};

struct journal {
    char dir[4096];
    int fd, first, file;        /* `file` is written; fd -1: by the first line */
    long long size;             /* of the file: whole lines */
    long long before;           /* bytes of the files before it */
    long long limit, file_bytes;
    long long written;          /* lines of all files there ever were */
    int64_t now_us;
    struct head head;
    struct buf out;
    size_t span;                /* where in it the span begins that has no sum yet */
    long long batch;            /* lines in `out` */
    long long lines, dropped, told;
    const struct mask *mask;
    bool masks;                 /* what was fed holds a masked word, or a line began before it */
    struct stream streams[2];
};

static void path_of(const struct journal *j, int number, char *out, size_t size)
{
    snprintf(out, size, "%s/log.%d", j->dir, number);
}

/* The oldest files go until the next fits. */
static void make_room(struct journal *j)
{
    char path[4200];
    struct stat st;

    while (j->limit > 0 && j->first < j->file && j->before + j->file_bytes > j->limit) {
        path_of(j, j->first, path, sizeof path);
        if (stat(path, &st) == 0 && unlink(path) == 0)
            j->before -= st.st_size;
        j->first++;
    }
}

/* ------------------------------------------------------------------ sums */

static void write_sum(const char *bytes, size_t n, char out[JOURNAL_SUM_BYTES])
{
    uint32_t crc = crc32c(bytes, n);

    out[0] = JOURNAL_SUM;
    for (int i = 6; i >= 1; i--, crc >>= 6)
        out[i] = (char)(JOURNAL_DIGIT + (crc & 63));
    out[7] = '\n';
}

const char *journal_sum_from(const char *p, const char *end)
{
    for (; (p = memchr(p, JOURNAL_SUM, (size_t)(end - p))); p++)
        if (end - p >= JOURNAL_SUM_BYTES && p[7] == '\n')
            return p;
    return NULL;
}

bool journal_sum_right(const char *p, const char *sum)
{
    char made[JOURNAL_SUM_BYTES];

    write_sum(p, (size_t)(sum - p), made);
    return !memcmp(made, sum, sizeof made);
}

/* Of the lines since the last one. The next line is a full one. */
static void put_sum(struct journal *j)
{
    char sum[JOURNAL_SUM_BYTES];

    if (j->out.failed || j->out.n == j->span)
        return;
    write_sum(j->out.data + j->span, j->out.n - j->span, sum);
    buf_append(&j->out, sum, sizeof sum);
    j->span = j->out.n;
    j->head.base = 0;
}

/* ------------------------------------------------------------------ files */

/* Untouched on failure: what is open is written on. */
static int open_file(struct journal *j, int number)
{
    char path[4200], lines[32 + JOURNAL_SUM_BYTES];
    int n = snprintf(lines, 32, "%c%lld\n", JOURNAL_HEAD, j->written);

    write_sum(lines, (size_t)n, lines + n);
    n += JOURNAL_SUM_BYTES;

    path_of(j, number, path, sizeof path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -1;
    if (write(fd, lines, (size_t)n) != n) {
        close(fd);
        unlink(path);
        return -1;
    }
    if (j->fd >= 0) {
        close(j->fd);
        j->before += j->size;
    }
    j->fd = fd;
    j->file = number;
    j->size = n;
    j->head.base = 0;
    make_room(j);
    return 0;
}

static long long count_lines(const char *text, size_t n)
{
    long long lines = 0;
    for (const char *p = text; (p = memchr(p, '\n', n - (size_t)(p - text))); p++)
        lines++;
    for (const char *p = text; (p = memchr(p, JOURNAL_SUM, n - (size_t)(p - text))); p++)
        lines--;
    return lines;
}

/* What another keeper left here: the numbers of its files, how many bytes they have. */
static void find_files(struct journal *j)
{
    DIR *d = opendir(j->dir);
    char path[4200], rest;
    struct stat st;
    int number;

    j->first = INT_MAX;
    for (const struct dirent *e; d && (e = readdir(d));) {
        if (sscanf(e->d_name, "log.%d%c", &number, &rest) != 1 || number < 0)
            continue;
        j->first = number < j->first ? number : j->first;
        j->file = number >= j->file ? number + 1 : j->file;
        path_of(j, number, path, sizeof path);
        j->before += stat(path, &st) == 0 ? st.st_size : 0;
    }
    if (d)
        closedir(d);
    if (j->first == INT_MAX)
        j->first = 0;
}

/* How many lines there were up to here: the last file says it, and has the rest of them. */
static int find_written(struct journal *j, struct err *err)
{
    OWN_MEM char *text = NULL;
    char path[4200];
    size_t n;

    if (j->file == 0)
        return 0;
    path_of(j, j->file - 1, path, sizeof path);
    if (files_read(path, 1 << 30, &text, &n, err) < 0)
        return -(int)err->code;
    if (n && (text[0] == JOURNAL_HEAD || text[0] == JOURNAL_LINES))
        j->written = strtoll(text + 1, NULL, 10) + count_lines(text, n) - 1;
    return 0;
}

static struct journal *journal_new(const char *dir)
{
    struct journal *j = calloc(1, sizeof *j);
    if (!j)
        return NULL;
    snprintf(j->dir, sizeof j->dir, "%s", dir);
    j->fd = -1;
    j->file_bytes = FILE_BYTES;
    j->streams[0].name = 'o';
    j->streams[1].name = 'e';
    find_files(j);
    return j;
}

int journal_open(const char *dir, struct journal **out, struct err *err)
{
    OWN(journal) j = journal_new(dir);
    if (!j)
        return err_set(err, ERR_NOMEM, "no memory for a log");
    if (find_written(j, err) < 0)
        return -(int)err->code;
    *out = TAKE(j);
    return 0;
}

void journal_limit(struct journal *j, long long bytes)
{
    j->limit = bytes;
    j->file_bytes = bytes <= 0 || bytes / 4 > FILE_BYTES ? FILE_BYTES
                  : bytes / 4 > FILE_LEAST ? bytes / 4 : FILE_LEAST;
}

long long journal_trim(const char *dir, long long bytes)
{
    OWN(journal) j = journal_new(dir);

    if (!j)
        return 0;
    j->limit = bytes > 0 ? bytes : 1;
    j->file_bytes = 0;
    make_room(j);
    return j->before;
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
    int64_t us = (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
    if (us > j->now_us)
        j->now_us = us;
}

static void put_head(struct journal *j, char stream)
{
    struct head *h = &j->head;
    int64_t since = j->now_us - h->base;

    if (!h->base || since >= NEAR_US || h->bytes >= FULL_BYTES) {
        buf_printf(&j->out, "%c%c0 %lld.%06lld ", JOURNAL_FULL, stream,
                   (long long)(j->now_us / 1000000), (long long)(j->now_us % 1000000));
        h->base = j->now_us;
        h->bytes = 0;
    } else if (j->now_us != h->us || stream != h->stream) {
        char near[6] = { JOURNAL_NEAR, stream };
        for (int i = 5; i >= 2; i--, since >>= 6)
            near[i] = (char)(JOURNAL_DIGIT + (since & 63));
        buf_append(&j->out, near, sizeof near);
    }
    h->us = j->now_us;
    h->stream = stream;
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
        size_t length = c < 0x80 ? 1 : utf8_length(text + i, n - i);
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
    size_t before = j->out.n;
    OWN_BUF masked = BUF_INIT;

    if (j->masks && mask_finds(j->mask, text, n)) {
        mask_apply(j->mask, text, n, n, &masked);
        text = masked.data ? masked.data : "";
        n = masked.n;
    }
    put_head(j, stream);
    put_text(&j->out, text, n);
    buf_text(&j->out, cut ? "\\\n" : "\n");
    j->head.bytes += j->out.n - before;
    j->batch++;
    if (j->out.n - j->span >= SPAN_BYTES)
        put_sum(j);
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

/* What is masked takes less room than what was there. A word that may go on stays for the next
 * piece; returns how many bytes are to be kept for that. */
static size_t hide(struct journal *j, struct stream *s)
{
    OWN_BUF masked = BUF_INIT;
    size_t longest = mask_longest(j->mask), kept = longest ? longest - 1 : 0;

    if (!mask_finds(j->mask, s->part, s->n))
        return kept;
    mask_apply(j->mask, s->part, s->n, s->n - kept, &masked);
    s->n = masked.failed ? 0 : masked.n;
    memcpy(s->part, masked.data, s->n);
    return kept;
}

static void add_part(struct journal *j, struct stream *s, const char *text, size_t n)
{
    while (n) {
        if (s->n == LINE_BYTES) {
            size_t kept = hide(j, s);
            size_t piece = s->n > kept + 4 ? piece_of(s->part, s->n - kept) : 0;
            if (!piece)
                continue;
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
    bool masks = j->masks;
    j->masks = true;            /* the line is put together of what was fed before */
    put_line(j, s->name, s->part, s->n, false);
    j->masks = masks;
    s->n = 0;
}

void journal_feed(struct journal *j, char stream, const char *bytes, size_t n)
{
    struct stream *s = &j->streams[stream == 'e'];
    const char *end = bytes + n;

    look_at_clock(j);           /* once for many lines: they came in one read */
    j->masks = mask_finds(j->mask, bytes, n);
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
    j->masks = true;
    put_line(j, 'm', text, strlen(text), false);
}

void journal_mask(struct journal *j, const struct mask *m)
{
    j->mask = m;
}

/* ------------------------------------------------------------------ the file */

/* Of n bytes that were written: as many as are whole spans. */
static size_t whole_spans(const struct journal *j, size_t n)
{
    const char *sum = memrchr(j->out.data, JOURNAL_SUM, n);

    while (sum && (size_t)(sum - j->out.data) + JOURNAL_SUM_BYTES > n)
        sum = memrchr(j->out.data, JOURNAL_SUM, (size_t)(sum - j->out.data));
    return sum ? (size_t)(sum - j->out.data) + JOURNAL_SUM_BYTES : 0;
}

/* Returns how many bytes of whole spans are in the file for good. */
static size_t write_lines(struct journal *j)
{
    size_t at = 0;
    bool fits = room_left(j->fd, KEPT) >= (int64_t)j->out.n;
    while (fits && at < j->out.n) {
        ssize_t n = write(j->fd, j->out.data + at, j->out.n - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        at += (size_t)n;
    }
    if (at < j->out.n) {
        /* Readers take whole spans only, so nobody has seen what is cut off here. */
        at = whole_spans(j, at);
        if (ftruncate(j->fd, j->size + (long long)at) < 0)
            open_file(j, j->file + 1);
    }
    return at;
}

void journal_flush(struct journal *j)
{
    if (!j->batch && j->dropped == j->told)
        return;
    put_sum(j);
    /* Said before the lines that follow the gap. */
    bool tells = j->dropped > j->told;
    if (tells) {
        OWN_BUF lines = j->out;
        buf_init(&j->out);
        j->span = 0;
        j->head.base = 0;
        put_head(j, 'm');
        buf_printf(&j->out, "%lld lines were lost here: the disk was full\n", j->dropped - j->told);
        put_sum(j);
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
    j->written += kept + (n && tells);
    j->dropped += j->batch - kept;
    if (kept < j->batch || !n)
        j->head.base = 0;       /* the line that the next one would build on is not there */
    j->batch = 0;
    if (j->out.failed)
        buf_done(&j->out);
    else
        buf_clear(&j->out);
    j->span = 0;
    if (j->size >= j->file_bytes)
        open_file(j, j->file + 1);
}
