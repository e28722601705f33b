/* data/csv_input.c - files to chunks of whole rows
 *
 * Reading is serial (the next chunk begins where the last row of this one ended), converting is
 * not. So as little as possible happens here: a chunk without quotes is cut at its last newline;
 * one with quotes is scanned, and the marks go along with it so that nobody scans it again. The
 * row that is cut in two waits in `tail` and opens the next chunk.
 */
#include "data/csv_int.h"
#include "data/source.h"

enum { HEAD_BYTES = 64 << 10 };

int csv_buffer_grow(struct csv_buffer *b, size_t room)
{
    if (b->text && b->room >= room)
        return 0;
    char *grown = malloc(room + 2 * CSV_PAD);
    if (!grown)
        return -ERR_NOMEM;
    memset(grown, 0, CSV_PAD);
    if (b->text)
        memcpy(grown + CSV_PAD, b->text, b->room);
    csv_buffer_done(b);
    b->text = grown + CSV_PAD;
    b->room = room;
    return 0;
}

void csv_buffer_done(struct csv_buffer *b)
{
    if (b->text)
        free(b->text - CSV_PAD);
    *b = (struct csv_buffer){ 0 };
}

static void marks_done(struct csv_marks *m)
{
    if (m->at)
        free(m->at - 1);
    *m = (struct csv_marks){ 0 };
}

/* One more mark fits before the first: csv_fill puts the end of "the row before" there. */
static int marks_grow(struct csv_marks *m, size_t n)
{
    if (m->room >= n + CSV_PAD)
        return 0;
    marks_done(m);
    uint32_t *at = malloc((n + CSV_PAD + 1) * sizeof *at);
    if (!at)
        return -ERR_NOMEM;
    m->at = at + 1;
    m->room = n + CSV_PAD;
    return 0;
}

void csv_chunk_done(struct csv_chunk *k)
{
    csv_buffer_done(&k->buffer);
    marks_done(&k->marks);
}

static int no_memory(const struct csv_input *in, struct err *err)
{
    return err_set(err, ERR_NOMEM, "%s: no memory to read it", source_path(in->source));
}

/* `want`, or less where the rest of the file is known to be shorter: small files get small buffers.
 * One byte more than the rest, so that the read that takes it also sees the end. */
static size_t bounded(const struct csv_input *in, size_t held, size_t want)
{
    int64_t rest = source_size(in->source) - (int64_t)source_offset(in->source);

    return rest >= 0 && held + (uint64_t)rest < want ? held + (size_t)rest + 1 : want;
}

/* Makes the tail at least twice as long, or HEAD_BYTES, unless the file ends. */
static int tail_more(struct csv_input *in, struct err *err)
{
    size_t held = in->tail_n - in->tail_at, got;
    size_t want = bounded(in, held, held < HEAD_BYTES / 2 ? HEAD_BYTES : 2 * held);

    if (in->tail_at)
        memmove(in->tail.text, in->tail.text + in->tail_at, held);
    in->tail_at = 0;
    in->tail_n = held;
    if (csv_buffer_grow(&in->tail, want + 1) < 0)       /* + 1: a newline that the file lacks */
        return no_memory(in, err);
    if (source_read(in->source, in->tail.text + held, want - held, &got, err) < 0)
        return -(int)err->code;
    in->tail_n += got;
    in->file_ended = got < want - held;
    return 0;
}

static int skip_lines(struct csv_input *in, struct err *err)
{
    for (long left = in->skip; left > 0;) {
        const char *p = in->tail.text + in->tail_at;
        size_t n = in->tail_n - in->tail_at;
        const char *end = n ? memchr(p, '\n', n) : NULL;
        if (end) {
            in->tail_at += (size_t)(end - p) + 1;
            in->line++;
            left--;
        } else if (in->file_ended) {
            return err_set(err, ERR_INVALID,
                           "%s: has %ld lines, of which %ld are to be skipped (\"skip\")",
                           source_path(in->source), in->line - (n == 0), in->skip);
        } else {
            in->tail_at = in->tail_n;
            if (tail_more(in, err) < 0)
                return -(int)err->code;
        }
    }
    return 0;
}

/* Finds the end of the first row that is not empty: `marks` then hold its fields. */
static int find_first_row(struct csv_input *in, struct csv_marks *marks, struct err *err)
{
    while (1) {
        char *p = in->tail.text + in->tail_at;
        size_t n = in->tail_n - in->tail_at;
        if (in->file_ended && n && p[n - 1] != '\n') {
            p[n++] = '\n';
            in->tail_n++;
        }
        while (n && (*p == '\n' || (n > 1 && *p == '\r' && p[1] == '\n'))) {
            size_t blank = *p == '\n' ? 1 : 2;
            p += blank;
            n -= blank;
            in->tail_at += blank;
            in->line++;
        }
        if (marks_grow(marks, n) < 0)
            return no_memory(in, err);
        csv_scan(CSV_SCALAR, p, n, in->delimiter, marks);
        for (size_t i = 0; i < marks->n; i++)
            if (p[marks->at[i]] == '\n') {
                marks->n = i + 1;
                return 0;
            }
        if (in->file_ended && n == 0)
            return err_set(err, ERR_INVALID, "%s: is empty%s", source_path(in->source),
                           in->line > 1 ? " after its first lines" : "");
        if (in->file_ended)
            return err_set(err, ERR_INVALID, "%s:%ld: the quote in the first row is never closed",
                           source_path(in->source), in->line);
        if (n > CSV_ROW_MAX)
            return err_set(err, ERR_INVALID,
                           "%s:%ld: the first row is longer than %d MiB (is it a CSV file?)",
                           source_path(in->source), in->line, CSV_ROW_MAX >> 20);
        if (tail_more(in, err) < 0)
            return -(int)err->code;
    }
}

/* A copy of header field i, unquoted. */
static char *header_name(const char *text, const struct csv_marks *m, size_t i)
{
    size_t from = i ? m->at[i - 1] + 1 : 0, n = m->at[i] - from;

    n -= i + 1 == m->n && n && text[from + n - 1] == '\r';
    char *copy = strndup(text + from, n);
    if (copy && copy[0] == '"') {
        char *p = copy;
        n = strlen(copy);
        if (csv_unquote(&p, &n)) {
            memmove(copy, p, n);
            copy[n] = 0;
        }
    }
    return copy;
}

/* Names become part of model.json. */
static int check_name(const struct csv_input *in, const char *text, const struct csv_marks *m,
                      size_t i, struct err *err)
{
    size_t from = i ? m->at[i - 1] + 1 : 0, n = m->at[i] - from;
    size_t at = utf8_check(text + from, n);
    char why[UTF8_WHY];

    if (at == n)
        return 0;
    utf8_say(text + from, n, at, why);
    return err_set(err, ERR_INVALID, "%s:%ld: the name of column %zu %s", source_path(in->source),
                   in->line, i + 1, why);
}

static int take_names(struct csv_input *in, const struct csv_marks *m, struct err *err)
{
    const char *text = in->tail.text + in->tail_at;

    if (m->n > CSV_COLUMNS_MAX)
        return err_set(err, ERR_INVALID, "%s: has %zu columns; at most %d can be read",
                       source_path(in->source), m->n, CSV_COLUMNS_MAX);
    in->name = calloc(m->n, sizeof *in->name);
    if (!in->name)
        return no_memory(in, err);
    in->n_names = (int)m->n;
    for (int i = 0; i < in->n_names; i++) {
        if (!in->no_header && check_name(in, text, m, (size_t)i, err) < 0)
            return -(int)err->code;
        if (!in->no_header)
            in->name[i] = header_name(text, m, (size_t)i);
        else if (asprintf(&in->name[i], "%d", i + 1) < 0)
            in->name[i] = NULL;
        if (!in->name[i])
            return no_memory(in, err);
    }
    return 0;
}

/* The header of a later file says the same as the first one's. */
static int check_names(const struct csv_input *in, const struct csv_marks *m, struct err *err)
{
    const char *text = in->tail.text + in->tail_at;

    if (m->n != (size_t)in->n_names)
        return err_set(err, ERR_INVALID,
                       "%s: its header has %zu fields, that of the first file has %d",
                       source_path(in->source), m->n, in->n_names);
    for (int i = 0; i < in->n_names; i++) {
        OWN_MEM char *name = header_name(text, m, (size_t)i);
        if (!name)
            return no_memory(in, err);
        if (strcmp(name, in->name[i]) != 0)
            return err_set(err, ERR_INVALID,
                           "%s: column %d of its header is \"%.60s\", in the first file \"%.60s\"",
                           source_path(in->source), i + 1, name, in->name[i]);
    }
    return 0;
}

static int start_with(struct csv_input *in, struct csv_marks *marks, struct err *err)
{
    in->tail_at = in->tail_n = 0;
    in->file_ended = 0;
    in->starts = 1;
    in->line = 1;
    if (tail_more(in, err) < 0)
        return -(int)err->code;
    const char *other = utf8_sniff(in->tail.text, in->tail_n);
    if (other)
        return err_set(err, ERR_INVALID, "%s: is %s; only UTF-8 is read (iconv -f %s -t utf-8 FILE > "
                       "NEW)", source_path(in->source), other, other);
    if (in->tail_n >= 3 && memcmp(in->tail.text, "\xef\xbb\xbf", 3) == 0)
        in->tail_at = 3;
    if (skip_lines(in, err) < 0 || find_first_row(in, marks, err) < 0)
        return -(int)err->code;
    if (!in->name ? take_names(in, marks, err) < 0
                  : !in->no_header && check_names(in, marks, err) < 0)
        return -(int)err->code;
    if (!in->no_header) {
        size_t n = marks->at[marks->n - 1] + 1;
        in->line += (long)csv_count_lines(in->tail.text + in->tail_at, n);
        in->tail_at += n;
    }
    return 0;
}

int csv_input_start(struct csv_input *in, struct err *err)
{
    struct csv_marks marks = { 0 };
    int rc = start_with(in, &marks, err);

    marks_done(&marks);
    return rc;
}

static void fail(struct csv_chunk *k, enum csv_end end)
{
    k->end = end;
    k->n = 0;
}

/* Where the last whole row of the chunk's n bytes ends; 0: there is none. < 0: no memory. */
static long cut(const struct csv_input *in, struct csv_chunk *k, size_t n)
{
    const char *text = k->buffer.text;

    k->scanned = 0;
    if (!n || !memchr(text, '"', n)) {
        const char *last = n ? memrchr(text, '\n', n) : NULL;
        return last ? last - text + 1 : 0;
    }
    if (marks_grow(&k->marks, n) < 0)
        return -ERR_NOMEM;
    csv_scan(in->isa, text, n, in->delimiter, &k->marks);
    while (k->marks.n && text[k->marks.at[k->marks.n - 1]] != '\n')
        k->marks.n--;
    k->scanned = 1;
    return k->marks.n ? (long)k->marks.at[k->marks.n - 1] + 1 : 0;
}

/* Reads until the chunk holds a whole row. Its text is n bytes, of which *out_whole are rows. */
static int gather(struct csv_input *in, struct csv_chunk *k, size_t *out_n, size_t *out_whole)
{
    size_t n = in->tail_n - in->tail_at, got;
    size_t want = bounded(in, n, in->block_bytes);

    if (csv_buffer_grow(&k->buffer, (n > want ? n : want) + 1) < 0)
        return no_memory(in, &k->err);
    if (n)
        memcpy(k->buffer.text, in->tail.text + in->tail_at, n);
    while (1) {
        if (!in->file_ended && n < want) {
            if (source_read(in->source, k->buffer.text + n, want - n, &got, &k->err) < 0)
                return -(int)k->err.code;
            in->file_ended = got < want - n;
            n += got;
        }
        if (in->file_ended && n && k->buffer.text[n - 1] != '\n')
            k->buffer.text[n++] = '\n';
        long whole = cut(in, k, n);
        if (whole < 0)
            return no_memory(in, &k->err);
        if (whole || in->file_ended || n > CSV_ROW_MAX) {
            *out_n = n;
            *out_whole = (size_t)whole;
            return 0;
        }
        want = 2 * (n > want ? n : want);
        if (csv_buffer_grow(&k->buffer, want + 1) < 0)
            return no_memory(in, &k->err);
    }
}

void csv_input_chunk(struct csv_input *in, struct csv_chunk *k)
{
    size_t n = 0, whole = 0;
    int more = 1;

    k->end = CSV_MORE;
    while (1) {
        if (gather(in, k, &n, &whole) < 0) {
            fail(k, CSV_FAILED);
            return;
        }
        if (n)
            break;
        if (source_next(in->source, &more, &k->err) < 0
            || (more && csv_input_start(in, &k->err) < 0)) {
            fail(k, CSV_FAILED);
            return;
        }
        if (!more) {
            fail(k, CSV_END);
            return;
        }
    }
    k->file = source_file(in->source);
    k->starts = in->starts;
    k->line = in->line;
    k->n = whole;
    in->starts = 0;
    if (!whole) {
        fail(k, n > CSV_ROW_MAX ? CSV_TOO_LONG : CSV_UNCLOSED);
        return;
    }
    if (csv_buffer_grow(&in->tail, n - whole + 1) < 0) {
        no_memory(in, &k->err);
        fail(k, CSV_FAILED);
        return;
    }
    memcpy(in->tail.text, k->buffer.text + whole, n - whole);
    in->tail_at = 0;
    in->tail_n = n - whole;
    if (!k->scanned && marks_grow(&k->marks, k->n) < 0) {
        no_memory(in, &k->err);
        fail(k, CSV_FAILED);
    }
}

void csv_input_done(struct csv_input *in)
{
    for (int i = 0; in->name && i < in->n_names; i++)
        free(in->name[i]);
    free(in->name);
    csv_buffer_done(&in->tail);
    source_free(in->source);
}
