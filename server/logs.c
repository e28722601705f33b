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
enum { BLOCK = 2 * JOURNAL_SPAN_MAX, TAIL_BLOCK = 64 << 10, SUM_BEFORE = JOURNAL_SUM_BYTES - 1 };

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
    else if (!c->stream || (p < end && (*p == JOURNAL_LINES || *p == JOURNAL_HEAD)))
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
    void (*damage)(void *arg, const char *text);        /* for logs_check; NULL: a line says it */
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

/* Bytes that are not what was written are told, never shown; also to a search. */
static void give_damage(struct reading *r, int fd, int file, int64_t from, int64_t to)
{
    char text[160];
    struct stat st;
    struct log_line l = { .stream = 'm', .at = { file, from }, .next = { file, to } };

    l.t = r->context.us ? (double)r->context.us / 1e6
        : fstat(fd, &st) == 0 ? (double)st.st_mtim.tv_sec : 0;
    l.n = (size_t)snprintf(text, sizeof text,
                           "%lld bytes of the log are damaged here: they have changed on the disk "
                           "and are not shown (restore a backup)", (long long)(to - from));
    l.text = text;
    if (r->damage) {
        char where[256];
        snprintf(where, sizeof where, "log.%d: %lld bytes from byte %lld on have changed on the disk",
                 file, (long long)(to - from), (long long)from);
        r->damage(r->arg, where);
        return;
    }
    r->stop = r->each(r->arg, &l) != 0;
    r->count += !r->stop;
}

/* Whole lines of a block that begins at `c`, from `from` on; returns the bytes that were used up. */
static size_t read_block(struct reading *r, const char *block, size_t n, const struct log_cursor *c,
                         int64_t from)
{
    size_t at = 0;
    while (at < n) {
        const char *end = memchr(block + at, '\n', n - at);
        struct log_line l = { .at = { c->file, c->offset + (int64_t)at } };
        if (!end)
            break;
        l.next = (struct log_cursor){ c->file, c->offset + (end + 1 - block) };
        if (parse_line(block + at, end, &r->context, &l) && l.at.offset >= from)
            give(r, &l);
        if (r->stop)
            break;
        at = (size_t)(end + 1 - block);
    }
    return at;
}

/* One file without sums, from the cursor to what is there of it now. */
static int read_unchecked(struct reading *r, int fd, char *block, struct log_cursor *c,
                          int64_t *budget)
{
    while (!r->stop && *budget > 0) {
        ssize_t n = pread(fd, block, BLOCK, c->offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        size_t used = read_block(r, block, (size_t)n, c, c->offset);
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

/* ------------------------------------------------------------------ spans */

/* False: a file of before there were sums. It takes two bytes to make one look like the other. */
static bool is_checked(int fd, char *block)
{
    if (pread(fd, block, 1, 0) == 1 && *block == JOURNAL_HEAD)
        return true;
    ssize_t n = pread(fd, block, BLOCK, 0);
    return n > 0 && memchr(block, JOURNAL_SUM, (size_t)n);
}

/* What is behind the last sum is being written at this moment, or has lost its own. */
static bool is_at_rest(int fd)
{
    struct timespec now;
    struct stat st;

    clock_gettime(CLOCK_REALTIME, &now);
    return fstat(fd, &st) == 0 && llabs((long long)now.tv_sec - st.st_mtim.tv_sec) > 2;
}

/* Where the span begins that `offset` is in. */
static int64_t span_start(int fd, char *block, int64_t offset)
{
    int64_t from = offset > JOURNAL_SPAN_MAX ? offset - JOURNAL_SPAN_MAX : 0;
    ssize_t n = pread(fd, block, (size_t)(offset - from) + JOURNAL_SUM_BYTES, from);
    const char *end = block + (n > 0 ? n : 0), *at = NULL;

    if (n > offset - from)      /* a sum that begins before it and ends after it is before it */
        end = block + (n < offset - from + JOURNAL_SUM_BYTES ? n
                                                             : offset - from + JOURNAL_SUM_BYTES);
    for (const char *p = block; (p = journal_sum_from(p, end)) && p < block + (offset - from); p++)
        at = p;
    return at ? from + (at - block) + JOURNAL_SUM_BYTES : from;
}

/* The spans of a block that is at `at` of the file; returns the bytes that were used up. `c` is where
 * the caller is. `whole`: nothing will come behind it. */
static size_t read_spans(struct reading *r, int fd, const char *block, size_t n, int64_t at,
                         struct log_cursor *c, bool whole)
{
    const char *p = block, *end = block + n;

    while (p < end && !r->stop) {
        const char *sum = journal_sum_from(p, end), *next = sum ? sum + JOURNAL_SUM_BYTES : end;
        struct log_cursor start = { c->file, at + (p - block) };
        if (!sum && n == BLOCK && p > block)
            break;              /* the rest of it is in the next block */
        if (!sum && n < BLOCK && !whole)
            break;              /* not written yet */
        if (sum && journal_sum_right(p, sum)) {
            size_t used = read_block(r, p, (size_t)(sum - p), &start, c->offset);
            if (r->stop) {
                c->offset = start.offset + (int64_t)used;
                return (size_t)(p - block);
            }
        } else {
            /* A sum may be cut in two by the end of the block. */
            if (!sum && n == BLOCK)
                next = end - JOURNAL_SUM_BYTES;
            give_damage(r, fd, c->file, start.offset, at + (next - block));
            r->context = (struct context){ .us = r->context.us };
            if (r->stop) {
                if (start.offset > c->offset)
                    c->offset = start.offset;
                return (size_t)(p - block);
            }
        }
        p = next;
        if (at + (p - block) > c->offset)
            c->offset = at + (p - block);
    }
    return (size_t)(p - block);
}

static int read_checked(struct reading *r, int fd, char *block, struct log_cursor *c,
                        int64_t *budget, bool last)
{
    int64_t at = span_start(fd, block, c->offset);

    if (at > c->offset)
        c->offset = at;         /* it was within a sum */
    while (!r->stop && *budget > 0) {
        bool rests = !last || is_at_rest(fd);           /* asked before it is read */
        ssize_t n = pread(fd, block, BLOCK, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        size_t used = read_spans(r, fd, block, (size_t)n, at, c, rests);
        at += (int64_t)used;
        *budget -= (int64_t)used;
        if (!used)
            return 0;
    }
    return 0;
}

/* ------------------------------------------------------------------ files */

/* What lines at the cursor build on, in a file without sums: goes back to a full one. A cursor within
 * a line is moved to the next. False: there is nothing there yet. */
static bool enter(int fd, char *block, struct log_cursor *c, struct context *out)
{
    const int64_t offset = c->offset;
    struct log_line l;
    const char *at = NULL, *end = block;

    *out = (struct context){ 0 };
    if (offset == 0 || is_checked(fd, block))
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

/* One file, from the cursor to what is there of it now. `last`: there was none behind it. */
static int read_file(struct reading *r, int fd, char *block, struct log_cursor *c, int64_t *budget,
                     bool last)
{
    return is_checked(fd, block) ? read_checked(r, fd, block, c, budget, last)
                                 : read_unchecked(r, fd, block, c, budget);
}

/* The files up to this one are gone: a line says so, in their place. */
static void tell_gone(struct reading *r, int fd, char *block, int file)
{
    char text[160];
    struct context c = { 0 };
    ssize_t n = pread(fd, block, TAIL_BLOCK, 0);
    const char *end = block + (n > 0 ? n : 0), *line = block;
    const char *sum = journal_sum_from(block, end);
    bool told = end > block && (sum ? *block == JOURNAL_HEAD && journal_sum_right(block, sum)
                                    : *block == JOURNAL_LINES);
    long long lines = told ? strtoll(block + 1, NULL, 10) : 0;
    struct log_line l = { .stream = 'm', .at = { file - 1, 0 }, .next = { file, 0 } }, first;

    for (const char *stop; (stop = memchr(line, '\n', (size_t)(end - line))); line = stop + 1)
        if (parse_line(line, stop, &c, &first)) {
            l.t = first.t;
            break;
        }
    char count[32] = "some";
    if (told)
        snprintf(count, sizeof count, "%lld", lines);
    l.n = (size_t)snprintf(text, sizeof text,
                           "%s lines were dropped here: the log has outgrown what a job may keep",
                           count);
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
        if (read_file(r, fd, block, c, &budget, next < 0) < 0)
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

/* The first span from `offset` on that is right: where, and the time of its first line. */
static bool span_from(int fd, char *block, int64_t offset, int64_t *out_at, int64_t *out_us)
{
    for (;;) {
        int64_t at = span_start(fd, block, offset);
        ssize_t n = pread(fd, block, BLOCK, at);
        const char *end = block + (n > 0 ? n : 0);
        const char *p = block, *sum;
        struct context c;
        for (; (sum = journal_sum_from(p, end)); p = sum + JOURNAL_SUM_BYTES)
            if (p < sum && *p == JOURNAL_FULL && at + (p - block) >= offset &&
                journal_sum_right(p, sum) && read_full(p + 1, sum, &c)) {
                *out_at = at + (p - block);
                *out_us = c.us;
                return true;
            }
        if (n < BLOCK)
            return false;
        offset = at + n;
    }
}

/* The first full line that begins at or after `offset`: where, and its time. */
static bool full_from(int fd, char *block, int64_t offset, int64_t *out_at, int64_t *out_us)
{
    if (is_checked(fd, block))
        return span_from(fd, block, offset, out_at, out_us);
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
        /* With some of what is before it: a newline may be that of a sum, which is no line. */
        int64_t more = from > SUM_BEFORE ? SUM_BEFORE : from;
        ssize_t n = pread(fd, block, (size_t)(at - from + more), from - more);
        if (n <= more)
            return end;
        for (ssize_t i = n; i-- > more;) {
            if (block[i] != '\n' || (i >= SUM_BEFORE && block[i - SUM_BEFORE] == JOURNAL_SUM))
                continue;
            if (!last)
                --*lines;
            last = false;
            if (*lines <= 0)
                return from - more + i + 1;
        }
        at = from;
    }
    return 0;                   /* the first line has one before it: that of how many were before */
}

int logs_seek_tail(const char *dir, long lines, struct log_cursor *out, struct err *err)
{
    OWN_MEM char *block = malloc(TAIL_BLOCK + SUM_BEFORE);
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

/* ------------------------------------------------------------------ is it all what was written? */

static int pass_over(void *arg, const struct log_line *l)
{
    (void)arg;
    (void)l;
    return 0;
}

int logs_check(const char *dir, void (*each)(void *arg, const char *text), void *arg,
               int64_t *out_lines, struct err *err)
{
    struct reading r = { .each = pass_over, .arg = arg, .damage = each };
    OWN_MEM char *block = malloc(BLOCK);
    int first, last;

    if (!block)
        return err_set(err, ERR_NOMEM, "no memory to read a log");
    *out_lines = 0;
    if (!files_of(dir, &first, &last))
        return 0;
    for (int file = first; file <= last; file++) {
        OWN_FD int fd = open_log(dir, file);
        struct log_cursor c = { file, 0 };
        int64_t budget = INT64_MAX;
        r.context = (struct context){ 0 };
        if (fd < 0 || read_file(&r, fd, block, &c, &budget, file == last) < 0) {
            char text[64];
            snprintf(text, sizeof text, "log.%d: %s", file, strerror(errno));
            each(arg, text);
        }
    }
    *out_lines = r.count;
    return 0;
}
