/* server/logs.c - what jobs print, line by line */
#include "server/logs.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/own.h"
#include "drivers/journal.h"

/* Two of the longest lines: 64 kB of text, three times that where every byte was replaced, and
 * a head. A full line is never further away. */
enum { BLOCK = 512 << 10, TAIL_BLOCK = 64 << 10 };

static int open_log(const char *dir, int file)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/log.%d", dir, file) >= (int)sizeof path)
        return -1;
    return open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
}

static int take_fd(int *fd)
{
    int taken = *fd;
    *fd = -1;
    return taken;
}

static int64_t size_of(int fd)
{
    struct stat st;
    return fstat(fd, &st) < 0 ? 0 : (int64_t)st.st_size;
}

/* The numbers of the first and the last file there are; false: there is none. */
static bool files_of(const char *dir, int *out_first, int *out_last)
{
    DIR *d = opendir(dir);
    int first = INT_MAX, last = -1, number;
    char rest;

    for (const struct dirent *e; d && (e = readdir(d));) {
        if (sscanf(e->d_name, "log.%d%c", &number, &rest) != 1 || number < 0)
            continue;
        first = number < first ? number : first;
        last = number > last ? number : last;
    }
    if (d)
        closedir(d);
    *out_first = first;
    *out_last = last;
    return last >= 0;
}

int64_t logs_size(const char *dir)
{
    int64_t sum = 0;
    int first, last;

    if (!files_of(dir, &first, &last))
        return 0;
    for (int file = first; file <= last; file++) {
        OWN_FD int fd = open_log(dir, file);
        sum += fd < 0 ? 0 : size_of(fd);
    }
    return sum;
}

/* ------------------------------------------------------------------ one line */

/* What the lines before said of those that say nothing themselves. */
struct context {
    char stream;                /* 0: not known; such lines are passed over */
    int worker;
    int64_t base_us, us;        /* of the last full line; of the last line */
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* "o0 1794764590.664083 ": by hand, ten times as fast as sscanf. NULL: it is none of ours. */
static const char *read_full(const char *p, const char *end, struct context *c)
{
    int64_t whole = 0, micros = 0;
    int worker = 0, digits = 0;

    c->stream = 0;
    if (end - p < 2)
        return NULL;
    char stream = *p++;
    for (; p < end && is_digit(*p) && worker < 1000000; p++)
        worker = 10 * worker + (*p - '0');
    if (p == end || *p++ != ' ')
        return NULL;
    for (; p < end && is_digit(*p) && whole < INT64_MAX / 100000000; p++)
        whole = 10 * whole + (*p - '0');
    if (p == end || *p++ != '.')
        return NULL;
    for (; p < end && is_digit(*p) && digits < 6; p++, digits++)
        micros = 10 * micros + (*p - '0');
    if (digits < 6 || p == end || *p++ != ' ')
        return NULL;
    *c = (struct context){ stream, worker, whole * 1000000 + micros, whole * 1000000 + micros };
    return p;
}

static const char *read_near(const char *p, const char *end, struct context *c)
{
    int64_t since = 0;

    if (end - p < 5 || !c->stream)
        return NULL;
    char stream = *p++;
    for (int i = 0; i < 4; i++, p++) {
        if (*p < JOURNAL_DIGIT || *p >= JOURNAL_DIGIT + 64)
            return NULL;
        since = since << 6 | (*p - JOURNAL_DIGIT);
    }
    c->stream = stream;
    c->us = c->base_us + since;
    return p;
}

/* False: not a line of a job's; it is passed over. */
static bool parse_line(const char *p, const char *end, struct context *c, struct log_line *out)
{
    if (p < end && *p == JOURNAL_FULL)
        p = read_full(p + 1, end, c);
    else if (p < end && *p == JOURNAL_NEAR)
        p = read_near(p + 1, end, c);
    else if (!c->stream || (p < end && *p == JOURNAL_LINES))
        p = NULL;
    if (!p)
        return false;
    out->t = (double)c->us / 1e6;
    out->stream = c->stream;
    out->worker = c->worker;
    out->text = p;
    out->n = (size_t)(end - p);
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
    struct context context;
    long count;
    bool stop;
};

static void give(struct reading *r, const struct log_line *l)
{
    if (!contains(l->text, l->n, r->search, r->search_n))
        return;
    r->stop = r->each(r->arg, l) != 0;
    r->count += !r->stop;
}

/* Whole lines of a block that begins at the cursor; returns the bytes that were used up. */
static size_t read_block(struct reading *r, const char *block, size_t n, const struct log_cursor *c)
{
    size_t at = 0;
    while (at < n) {
        const char *end = memchr(block + at, '\n', n - at);
        struct log_line l = { .at = { c->file, c->offset + (int64_t)at } };
        if (!end)
            break;
        l.next = (struct log_cursor){ c->file, c->offset + (end + 1 - block) };
        if (parse_line(block + at, end, &r->context, &l))
            give(r, &l);
        if (r->stop)
            break;
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

/* What lines at the cursor build on: goes back to a full one. A cursor within a line is moved to
 * the next. False: there is nothing there yet. */
static bool enter(int fd, char *block, struct log_cursor *c, struct context *out)
{
    const int64_t offset = c->offset;
    struct log_line l;
    const char *at = NULL, *end = block;

    *out = (struct context){ 0 };
    if (offset == 0)
        return true;
    /* At the end, too: what is appended while we look builds on it. */
    for (int64_t back = TAIL_BLOCK / 2, from = offset; !at && from > 0 && back <= BLOCK;
         back *= 2) {
        from = offset > back ? offset - back : 0;
        ssize_t n = pread(fd, block, (size_t)(offset - from), from);
        if (n != offset - from)
            return false;
        end = block + n;
        at = memrchr(block, JOURNAL_FULL, (size_t)n);
    }
    if (end > block && end[-1] != '\n') {
        ssize_t n = pread(fd, block, BLOCK, offset);
        const char *next = n > 0 ? memchr(block, '\n', (size_t)n) : NULL;
        if (next)
            c->offset += next + 1 - block;
        return next && enter(fd, block, c, out);
    }
    for (const char *stop; at && (stop = memchr(at, '\n', (size_t)(end - at))); at = stop + 1)
        parse_line(at, stop, out, &l);
    return true;
}

/* The files up to this one are gone: a line says so, in their place. */
static void tell_gone(struct reading *r, int fd, char *block, int file)
{
    char text[160];
    struct context c = { 0 };
    ssize_t n = pread(fd, block, TAIL_BLOCK, 0);
    const char *end = block + (n > 0 ? n : 0), *line = block;
    long long lines = end > block && *block == JOURNAL_LINES ? strtoll(block + 1, NULL, 10) : 0;
    struct log_line l = { .stream = 'm', .at = { file - 1, 0 }, .next = { file, 0 } }, first;

    for (const char *stop; (stop = memchr(line, '\n', (size_t)(end - line))); line = stop + 1)
        if (parse_line(line, stop, &c, &first)) {
            l.t = first.t;
            break;
        }
    l.n = (size_t)snprintf(text, sizeof text,
                           "%lld lines were dropped here: the log has outgrown what a job may keep",
                           lines);
    l.text = text;
    give(r, &l);
}

/* The file of the cursor, or the first there is where that is gone; -1: there is none. */
static int open_at(const char *dir, struct log_cursor *c, bool *out_gone)
{
    int first, last, fd = open_log(dir, c->file);

    *out_gone = false;
    if (fd >= 0 || errno != ENOENT)
        return fd;
    if (!files_of(dir, &first, &last) || first <= c->file) {
        errno = ENOENT;
        return -1;
    }
    fd = open_log(dir, first);
    if (fd >= 0) {
        *c = (struct log_cursor){ first, 0 };
        *out_gone = true;
    }
    return fd;
}

/* From the cursor through all files there are. Takes fd. */
static int read_files(struct reading *r, const char *dir, int taken, char *block,
                      struct log_cursor *c)
{
    OWN_FD int fd = taken;
    int64_t budget = LOGS_SCAN_BYTES;

    while (!r->stop && budget > 0) {
        /* Asked before the file is read to its end: once there is a next one, this one grows no
         * more. */
        OWN_FD int next = open_log(dir, c->file + 1);
        if (read_file(r, fd, block, c, &budget) < 0)
            return -1;
        if (next < 0 || r->stop || budget <= 0)
            break;
        close(fd);
        fd = take_fd(&next);
        *c = (struct log_cursor){ c->file + 1, 0 };
    }
    return 0;
}

long logs_read(const char *dir, struct log_cursor *c, const char *search,
               int (*each)(void *arg, const struct log_line *l), void *arg, struct err *err)
{
    struct reading r = { .search = search, .search_n = search ? strlen(search) : 0, .each = each,
                         .arg = arg };
    struct log_cursor at = *c;
    bool gone;
    OWN_FD int fd = open_at(dir, &at, &gone);
    OWN_MEM char *block = fd < 0 ? NULL : malloc(BLOCK);

    if (fd < 0)
        return errno == ENOENT ? 0 : err_set(err, ERR_IO, "%s/log.%d: %s", dir, c->file,
                                             strerror(errno));
    if (!block)
        return err_set(err, ERR_NOMEM, "no memory to read a log");
    if (gone)
        tell_gone(&r, fd, block, at.file);
    if (r.stop)
        return 0;
    *c = at;
    if (!enter(fd, block, c, &r.context))
        return r.count;
    if (read_files(&r, dir, take_fd(&fd), block, c) < 0)
        return err_set(err, ERR_IO, "%s/log.%d: %s", dir, c->file, strerror(errno));
    return r.count;
}

/* ------------------------------------------------------------------ by time */

/* The first full line that begins at or after `offset`: where, and its time. */
static bool full_from(int fd, char *block, int64_t offset, int64_t *out_at, int64_t *out_us)
{
    ssize_t n = pread(fd, block, BLOCK, offset);
    const char *end = block + (n > 0 ? n : 0);
    struct context c;

    for (const char *p = block; (p = memchr(p, JOURNAL_FULL, (size_t)(end - p))); p++)
        if (read_full(p + 1, end, &c)) {
            *out_at = offset + (p - block);
            *out_us = c.us;
            return true;
        }
    return false;
}

struct seeking { double t; struct log_cursor *out; bool found; };

static int is_from_then_on(void *arg, const struct log_line *l)
{
    struct seeking *s = arg;

    s->found = l->t >= s->t;
    if (s->found)
        *s->out = l->at;
    return s->found;
}

/* In one file: near it by halves, then line by line. */
static int seek_in(const char *dir, int file, int fd, char *block, double t,
                   struct log_cursor *out, struct err *err)
{
    int64_t low = 0, high = size_of(fd), at, us;
    struct seeking s = { .t = t, .out = out };

    /* Lines before `low` are before t; the full one from `high` on is not, or there is none. */
    while (high - low > TAIL_BLOCK) {
        int64_t mid = low + (high - low) / 2;
        if (full_from(fd, block, mid, &at, &us) && (double)us / 1e6 < t)
            low = at;
        else
            high = mid;
    }
    struct log_cursor c = { file, low }, before;
    do {
        before = c;
        if (logs_read(dir, &c, NULL, is_from_then_on, &s, err) < 0)
            return -(int)err->code;
    } while (!s.found && (c.file != before.file || c.offset != before.offset));
    if (!s.found)
        *out = c;
    return 0;
}

int logs_seek_time(const char *dir, double t, struct log_cursor *out, struct err *err)
{
    OWN_MEM char *block = malloc(BLOCK);
    int file, last;
    int64_t at, us;

    if (!block)
        return err_set(err, ERR_NOMEM, "no memory to read a log");
    if (!files_of(dir, &file, &last)) {
        *out = (struct log_cursor){ 0, 0 };
        return 0;
    }
    OWN_FD int fd = open_log(dir, file);
    /* The last file that begins before t. */
    while (fd >= 0) {
        OWN_FD int next = open_log(dir, file + 1);
        if (next < 0 || !full_from(next, block, 0, &at, &us) || (double)us / 1e6 >= t)
            break;
        close(fd);
        fd = take_fd(&next);
        file++;
    }
    if (fd >= 0)
        return seek_in(dir, file, fd, block, t, out, err);
    *out = (struct log_cursor){ file, 0 };
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
    return 0;                   /* the first line has one before it: that of how many were before */
}

int logs_seek_tail(const char *dir, long lines, struct log_cursor *out, struct err *err)
{
    OWN_MEM char *block = malloc(TAIL_BLOCK);
    int first, file;

    if (!block)
        return err_set(err, ERR_NOMEM, "no memory to read a log");
    struct log_cursor c = { 0, 0 };
    if (!files_of(dir, &first, &file))
        file = first - 1;
    for (; file >= first; file--) {
        OWN_FD int fd = open_log(dir, file);
        if (fd < 0)
            break;
        c = (struct log_cursor){ file, back_in(fd, block, &lines) };
        if (lines <= 0)
            break;
    }
    *out = lines > 0 ? (struct log_cursor){ 0, 0 } : c;
    return 0;
}
