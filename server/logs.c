/* server/logs.c - what jobs print, line by line */
#include "server/logs.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/own.h"

/* Two of the longest lines: 64 kB of text, three times that where every byte was replaced, and
 * a head. */
enum { BLOCK = 512 << 10, TAIL_BLOCK = 64 << 10 };

static int open_log(const char *dir, int file)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/log.%d", dir, file) >= (int)sizeof path)
        return -1;
    return open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
}

static int64_t size_of(int fd)
{
    struct stat st;
    return fstat(fd, &st) < 0 ? 0 : (int64_t)st.st_size;
}

int64_t logs_size(const char *dir)
{
    int64_t sum = 0;
    for (int file = 0;; file++) {
        OWN_FD int fd = open_log(dir, file);
        if (fd < 0)
            return sum;
        sum += size_of(fd);
    }
}

/* ------------------------------------------------------------------ one line */

/* "1794764590.664083": digits only, so by hand, ten times as fast as strtod. */
static const char *read_time(const char *p, const char *end, double *out)
{
    int64_t whole = 0, micros = 0;
    for (; p < end && isdigit((unsigned char)*p) && whole < INT64_MAX / 100; p++)
        whole = 10 * whole + (*p - '0');
    if (p < end && *p == '.')
        for (p++; p < end && isdigit((unsigned char)*p) && micros < 1000000; p++)
            micros = 10 * micros + (*p - '0');
    *out = (double)whole + 1e-6 * (double)micros;
    return p;
}

/* False: not a line of ours; it is passed over. */
static bool parse_line(const char *p, const char *end, struct log_line *out)
{
    p = read_time(p, end, &out->t);
    if (end - p < 4 || p[0] != ' ' || p[2] != ' ')
        return false;
    out->stream = p[1];
    out->worker = 0;
    for (p += 3; p < end && isdigit((unsigned char)*p) && out->worker < 1000000; p++)
        out->worker = 10 * out->worker + (*p - '0');
    if (p == end || *p != ' ')
        return false;
    out->text = p + 1;
    out->n = (size_t)(end - out->text);
    return true;
}

static bool contains(const char *text, size_t n, const char *word, size_t word_n)
{
    if (!word_n)
        return true;
    int low = tolower((unsigned char)*word), high = toupper((unsigned char)*word);
    for (size_t i = 0; i + word_n <= n; i++)
        if ((text[i] == low || text[i] == high) && !strncasecmp(text + i, word, word_n))
            return true;
    return false;
}

/* ------------------------------------------------------------------ forward */

struct reading {
    const char *search;
    size_t search_n;
    int (*each)(void *arg, const struct log_line *l);
    void *arg;
    long count;
    bool stop;
};

/* Whole lines of a block that begins at the cursor; returns the bytes that were used up. */
static size_t read_block(struct reading *r, const char *block, size_t n, const struct log_cursor *c)
{
    size_t at = 0;
    while (at < n) {
        const char *end = memchr(block + at, '\n', n - at);
        struct log_line l = { .at = { c->file, c->offset + (int64_t)at } };
        if (!end)
            break;
        if (parse_line(block + at, end, &l) && contains(l.text, l.n, r->search, r->search_n)) {
            r->stop = r->each(r->arg, &l) != 0;
            if (r->stop)
                break;
            r->count++;
        }
        at = (size_t)(end + 1 - block);
    }
    return at;
}

/* One file, from the cursor to what is there of it now. */
static int read_file(struct reading *r, int fd, char *block, struct log_cursor *c, int64_t *budget)
{
    while (!r->stop && *budget > 0) {
        ssize_t n = pread(fd, block, BLOCK, c->offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        size_t used = read_block(r, block, (size_t)n, c);
        /* A block without an end of line is no line of ours: not waited for. */
        if (!used && n == BLOCK && !r->stop)
            used = BLOCK;
        c->offset += (int64_t)used;
        *budget -= (int64_t)used;
        if (!used)
            return 0;
    }
    return 0;
}

long logs_read(const char *dir, struct log_cursor *c, const char *search,
               int (*each)(void *arg, const struct log_line *l), void *arg, struct err *err)
{
    struct reading r = { .search = search, .search_n = search ? strlen(search) : 0, .each = each,
                         .arg = arg };
    int64_t budget = LOGS_SCAN_BYTES;
    OWN_FD int fd = open_log(dir, c->file);
    OWN_MEM char *block = fd < 0 ? NULL : malloc(BLOCK);

    if (fd < 0)
        return errno == ENOENT ? 0 : err_set(err, ERR_IO, "%s/log.%d: %s", dir, c->file,
                                             strerror(errno));
    if (!block)
        return err_set(err, ERR_NOMEM, "no memory to read a log");
    while (!r.stop && budget > 0) {
        /* Asked before the file is read to its end: once there is a next one, this one grows no
         * more. */
        int next = open_log(dir, c->file + 1);
        if (read_file(&r, fd, block, c, &budget) < 0) {
            if (next >= 0)
                close(next);
            return err_set(err, ERR_IO, "%s/log.%d: %s", dir, c->file, strerror(errno));
        }
        if (next < 0)
            break;
        if (r.stop || budget <= 0) {
            close(next);
            break;
        }
        close(fd);
        fd = next;
        *c = (struct log_cursor){ c->file + 1, 0 };
    }
    return r.count;
}

/* ------------------------------------------------------------------ by time */

/* The first line that begins at or after `offset` (0, or anywhere in a line): where, and its
 * time. */
static bool line_from(int fd, char *block, int64_t offset, int64_t *out_at, double *out_t)
{
    int64_t from = offset ? offset - 1 : 0;     /* so that a line that begins at `offset` counts */
    ssize_t n = pread(fd, block, BLOCK, from);
    const char *line = block, *end = block + (n > 0 ? n : 0);

    if (offset) {
        line = n > 0 ? memchr(block, '\n', (size_t)n) : NULL;
        line = line ? line + 1 : end;
    }
    for (struct log_line l; line < end;) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        if (!stop)
            return false;
        if (parse_line(line, stop, &l)) {
            *out_at = from + (line - block);
            *out_t = l.t;
            return true;
        }
        line = stop + 1;
    }
    return false;
}

int logs_seek_time(const char *dir, double t, struct log_cursor *out, struct err *err)
{
    OWN_MEM char *block = malloc(BLOCK);
    OWN_FD int fd = open_log(dir, 0);
    int64_t at;
    double when;
    int file = 0;

    if (!block)
        return err_set(err, ERR_NOMEM, "no memory to read a log");
    /* The last file that begins before t. */
    while (fd >= 0) {
        int next = open_log(dir, file + 1);
        if (next < 0 || !line_from(next, block, 0, &at, &when) || when >= t) {
            if (next >= 0)
                close(next);
            break;
        }
        close(fd);
        fd = next;
        file++;
    }
    /* Lines before `low` are before t; the one from `high` on is not, or there is none. */
    int64_t low = 0, high = fd < 0 ? 0 : size_of(fd);
    while (low < high) {
        int64_t mid = low + (high - low) / 2;
        if (line_from(fd, block, mid, &at, &when) && when < t)
            low = at + 1;
        else
            high = mid;
    }
    if (fd >= 0 && line_from(fd, block, low, &at, &when))
        low = at;
    else if (fd >= 0)
        low = size_of(fd);
    *out = (struct log_cursor){ file, low };
    return 0;
}

/* ------------------------------------------------------------------ from the end */

/* Goes back over `*lines` ends of lines of a file; the offset after the last of them. */
static int64_t back_in(int fd, char *block, long *lines)
{
    int64_t end = size_of(fd);
    bool last = true; /* the newline at the very end ends the first line that is counted */

    for (int64_t at = end; at > 0;) {
        int64_t from = at > TAIL_BLOCK ? at - TAIL_BLOCK : 0;
        ssize_t n = pread(fd, block, (size_t)(at - from), from);
        if (n <= 0)
            return end;
        for (ssize_t i = n; i-- > 0;) {
            if (block[i] != '\n')
                continue;
            if (!last)
                --*lines;
            last = false;
            if (*lines <= 0)
                return from + i + 1;
        }
        at = from;
    }
    if (!last)
        --*lines;               /* the first line has no newline before it */
    return 0;
}

int logs_seek_tail(const char *dir, long lines, struct log_cursor *out, struct err *err)
{
    OWN_MEM char *block = malloc(TAIL_BLOCK);
    int file = 0;

    if (!block)
        return err_set(err, ERR_NOMEM, "no memory to read a log");
    for (int fd; (fd = open_log(dir, file + 1)) >= 0; file++)
        close(fd);
    struct log_cursor c = { file, 0 };
    for (; file >= 0; file--) {
        OWN_FD int fd = open_log(dir, file);
        if (fd < 0)
            break;
        c = (struct log_cursor){ file, back_in(fd, block, &lines) };
        if (lines <= 0)
            break;
    }
    *out = c;
    return 0;
}
