/* data/json.c - one JSON object a line, and rows made of them
 *
 * The scanner is a cursor over bytes with an end; every step checks the end first. A string that
 * has escapes is decoded to where it stands, which is never longer than what was written.
 */
#include "data/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "data/rows_build.h"
#include "data/source.h"

struct cursor {
    char *start, *at, *end;
    struct err *err;
};

static int wrong(const struct cursor *c, const char *want)
{
    if (c->at >= c->end)
        return err_set(c->err, ERR_INVALID, "the line ends where %s should be", want);
    return err_set(c->err, ERR_INVALID, "at character %ld %s should be",
                   (long)(c->at - c->start) + 1, want);
}

static void skip_blanks(struct cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\r' || *c->at == '\n'))
        c->at++;
}

static int hex4(const char *p, unsigned *out)
{
    unsigned v = 0;
    for (int i = 0; i < 4; i++) {
        char h = p[i];
        int d = h >= '0' && h <= '9' ? h - '0' : h >= 'a' && h <= 'f' ? h - 'a' + 10
              : h >= 'A' && h <= 'F' ? h - 'A' + 10 : -1;
        if (d < 0)
            return -1;
        v = v << 4 | (unsigned)d;
    }
    *out = v;
    return 0;
}

static char *put_utf8(char *to, unsigned v)
{
    if (v < 0x80) {
        *to++ = (char)v;
    } else if (v < 0x800) {
        *to++ = (char)(0xc0 | v >> 6);
        *to++ = (char)(0x80 | (v & 63));
    } else if (v < 0x10000) {
        *to++ = (char)(0xe0 | v >> 12);
        *to++ = (char)(0x80 | (v >> 6 & 63));
        *to++ = (char)(0x80 | (v & 63));
    } else {
        *to++ = (char)(0xf0 | v >> 18);
        *to++ = (char)(0x80 | (v >> 12 & 63));
        *to++ = (char)(0x80 | (v >> 6 & 63));
        *to++ = (char)(0x80 | (v & 63));
    }
    return to;
}

/* After the backslash; writes what it stands for at *to. */
static int unescape(struct cursor *c, char **to)
{
    static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
    if (c->at >= c->end)
        return wrong(c, "an escape");
    const char *k = *c->at ? strchr(from, *c->at) : NULL;
    if (k) {
        *(*to)++ = into[k - from];
        c->at++;
        return 0;
    }
    unsigned v, low;
    if (*c->at != 'u' || c->end - c->at < 5 || hex4(c->at + 1, &v) < 0)
        return wrong(c, "an escape such as \\n or \\u00e9");
    c->at += 5;
    if (v >= 0xd800 && v < 0xdc00 && c->end - c->at >= 6 && c->at[0] == '\\' && c->at[1] == 'u' &&
        hex4(c->at + 2, &low) == 0 && low >= 0xdc00 && low < 0xe000) {
        v = 0x10000 + ((v - 0xd800) << 10) + (low - 0xdc00);
        c->at += 6;
    }
    /* Half a pair stands for no character: its bytes are no UTF-8, which build_text refuses. */
    *to = put_utf8(*to, v);
    return 0;
}

static int read_string(struct cursor *c, const char **out, size_t *out_n)
{
    char *first = ++c->at, *to = first;
    while (c->at < c->end && *c->at != '"') {
        if (*c->at == '\\') {
            c->at++;
            if (unescape(c, &to) < 0)
                return -(int)c->err->code;
        } else {
            *to++ = *c->at++;
        }
    }
    if (c->at >= c->end)
        return wrong(c, "a closing quote");
    c->at++;
    *out = first;
    *out_n = (size_t)(to - first);
    return 0;
}

/* Over a list or an object, to its end; strings in it are left as they are. */
static int skip_nested(struct cursor *c)
{
    int depth = 0, in_string = 0;
    for (; c->at < c->end; c->at++) {
        char ch = *c->at;
        if (in_string) {
            if (ch == '\\' && c->at + 1 < c->end)
                c->at++;
            else if (ch == '"')
                in_string = 0;
        } else if (ch == '"') {
            in_string = 1;
        } else if (ch == '[' || ch == '{') {
            if (++depth > JSON_NEST_MAX)
                return wrong(c, "less nesting");
        } else if ((ch == ']' || ch == '}') && --depth == 0) {
            c->at++;
            return 0;
        }
    }
    return wrong(c, "a closing bracket");
}

static int read_word(struct cursor *c, struct json_value *v)
{
    static const struct { const char *word; enum json_kind kind; } words[] = {
        { "null", JSON_KIND_NULL }, { "true", JSON_KIND_BOOL }, { "false", JSON_KIND_BOOL },
    };
    v->text = c->at;
    while (c->at < c->end && !strchr(",:]} \t\r\n\"", *c->at))
        c->at++;
    v->n = (size_t)(c->at - v->text);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (v->n == strlen(words[i].word) && !memcmp(words[i].word, v->text, v->n)) {
            v->kind = words[i].kind;
            return 0;
        }
    /* Python writes NaN and Infinity for numbers that JSON has no word for. */
    double x;
    if (rows_number(v->text, v->n, &x) < 0) {
        c->at = (char *)v->text;
        return wrong(c, "a value");
    }
    v->kind = JSON_KIND_NUMBER;
    return 0;
}

static int read_value(struct cursor *c, struct json_value *v)
{
    skip_blanks(c);
    if (c->at >= c->end)
        return wrong(c, "a value");
    v->text = c->at;
    if (*c->at == '"') {
        v->kind = JSON_KIND_STRING;
        return read_string(c, &v->text, &v->n);
    }
    if (*c->at == '[' || *c->at == '{') {
        v->kind = *c->at == '[' ? JSON_KIND_LIST : JSON_KIND_OBJECT;
        if (skip_nested(c) < 0)
            return -(int)c->err->code;
        v->n = (size_t)(c->at - v->text);
        return 0;
    }
    return read_word(c, v);
}

int json_object_read(char *text, size_t n,
                     int (*member)(void *ctx, const char *key, size_t key_n,
                                   const struct json_value *value, struct err *err),
                     void *ctx, struct err *err)
{
    struct cursor c = { text, text, text + n, err };
    skip_blanks(&c);
    if (c.at >= c.end || *c.at != '{')
        return wrong(&c, "an object, {...}, on a line of its own,");
    c.at++;
    skip_blanks(&c);
    if (c.at < c.end && *c.at == '}')
        c.at++;
    else
        for (;;) {
            const char *key;
            size_t key_n;
            struct json_value v;
            skip_blanks(&c);
            if (c.at >= c.end || *c.at != '"')
                return wrong(&c, "a name in quotes");
            if (read_string(&c, &key, &key_n) < 0)
                return -(int)err->code;
            skip_blanks(&c);
            if (c.at >= c.end || *c.at != ':')
                return wrong(&c, "a colon");
            c.at++;
            if (read_value(&c, &v) < 0 || member(ctx, key, key_n, &v, err) < 0)
                return -(int)err->code;
            skip_blanks(&c);
            if (c.at >= c.end || (*c.at != ',' && *c.at != '}'))
                return wrong(&c, "a comma or }");
            if (*c.at++ == '}')
                break;
        }
    skip_blanks(&c);
    return c.at == c.end ? 0 : wrong(&c, "the end of the line");
}

long json_list_numbers(const char *text, size_t n, double *out, long most)
{
    const char *at = text, *end = text + n;
    long count = 0;
    while (at < end) {
        if (strchr("[], \t\r\n", *at) && *at) {
            at++;
            continue;
        }
        const char *first = at;
        while (at < end && *at && !strchr("[], \t\r\n", *at))
            at++;
        double x;
        if (at == first || rows_number(first, (size_t)(at - first), &x) < 0)
            return -1;
        if (count < most)
            out[count] = x;
        count++;
    }
    return count;
}

/* Rows of JSON lines. */

struct rows_json {
    struct build build;
    struct source *source;
    char *buf;                  /* text read and not used yet: buf[at..n) */
    size_t at, n, cap;
    int file_ended, ended;
    long rows, rows_in_file, line;
    double *list;
    long list_max;
};

static int json_rows_open(struct rows *r, const char *const *paths, int n,
                          const struct csv_options *o, struct err *err)
{
    struct rows_json *j = calloc(1, sizeof *j);
    if (!j)
        return err_set(err, ERR_NOMEM, "no memory to read %s", paths[0]);
    r->own = j;
    return build_init(&j->build, o, err) < 0 ? -(int)err->code
                                             : source_open(paths, n, &j->source, err);
}

static void json_rows_free(struct rows *r)
{
    struct rows_json *j = r->own;
    if (!j)
        return;
    build_done(&j->build);
    source_free(j->source);
    free(j->buf);
    free(j->list);
    free(j);
}

static int json_rows_select(struct rows *r, const char *name, int as, int width, struct err *err)
{
    struct rows_json *j = r->own;
    if (width > j->list_max) {
        double *list = realloc(j->list, (size_t)width * sizeof *list);
        if (!list)
            return err_set(err, ERR_NOMEM, "no memory for lists of %d numbers", width);
        j->list = list;
        j->list_max = width;
    }
    return build_select(&j->build, name, as, width, err);
}

/* The next line, without its end; NULL at the end of the file. */
static int next_line(struct rows_json *j, char **out, size_t *out_n, struct err *err)
{
    size_t searched = j->at;
    for (;;) {
        char *nl = j->n > searched ? memchr(j->buf + searched, '\n', j->n - searched) : NULL;
        if (nl || (j->file_ended && j->n > j->at)) {
            *out = j->buf + j->at;
            *out_n = (size_t)((nl ? nl : j->buf + j->n) - *out);
            j->at += *out_n + (nl != NULL);
            j->line++;
            return 0;
        }
        *out = NULL;
        if (j->file_ended)
            return 0;
        if (j->n - j->at > JSON_LINE_MAX)
            return err_set(
                err, ERR_INVALID,
                "%s: line %ld is longer than %d bytes; JSON lines have one object a line",
                source_path(j->source), j->line + 1, JSON_LINE_MAX);
        if (j->at)
            memmove(j->buf, j->buf + j->at, j->n - j->at);
        j->n -= j->at;
        j->at = 0;
        searched = j->n;
        if (j->n == j->cap) {
            size_t cap = j->cap ? 2 * j->cap : 256 << 10;
            char *buf = realloc(j->buf, cap);
            if (!buf)
                return err_set(err, ERR_NOMEM, "no memory for line %ld of %s", j->line + 1,
                               source_path(j->source));
            j->buf = buf;
            j->cap = cap;
        }
        size_t got, want = j->cap - j->n;
        if (source_read(j->source, j->buf + j->n, want, &got, err) < 0)
            return -(int)err->code;
        j->n += got;
        j->file_ended = got < want;
    }
}

static int set_member(void *ctx, const char *key, size_t key_n, const struct json_value *v,
                      struct err *err)
{
    struct rows_json *j = ctx;
    struct build *b = &j->build;
    int column = build_find(b, key, key_n);
    double x = 0;
    (void)err;
    if (column < 0 || v->kind == JSON_KIND_NULL)
        return 0;
    if (v->kind == JSON_KIND_STRING) {
        build_text(b, column, v->text, v->n);
    } else if (v->kind == JSON_KIND_NUMBER) {
        rows_number(v->text, v->n, &x);
        build_number(b, column, x, v->text, v->n);
    } else if (v->kind == JSON_KIND_BOOL) {
        build_number(b, column, v->n == 4, v->text, v->n);
    } else if (v->kind == JSON_KIND_LIST && b->column[column].as == ROWS_NUMBER) {
        long n = json_list_numbers(v->text, v->n, j->list, j->list_max);
        if (n < 0)
            build_wrong(b, column, " has something in its list that is not a number");
        else
            build_list(b, column, j->list, n);
    } else {
        build_wrong(b, column, " is not a single value");
    }
    return 0;
}

static int next_file(struct rows_json *j, struct err *err)
{
    int more = 0;
    if (source_next(j->source, &more, err) < 0)
        return -(int)err->code;
    j->ended = !more;
    j->at = j->n = 0;
    j->file_ended = 0;
    j->rows_in_file = j->line = 0;
    return 0;
}

static int json_rows_next(struct rows *r, const struct rows_block **out, struct err *err)
{
    struct rows_json *j = r->own;
    struct build *b = &j->build;
    *out = NULL;
    while (!j->ended) {
        build_start(b, source_path(j->source), j->rows, j->rows_in_file);
        char *line = NULL;
        size_t n = 0;
        while (!build_full(b)) {
            if (next_line(j, &line, &n, err) < 0)
                return -(int)err->code;
            if (!line)
                break;
            const char *other = j->line == 1 ? utf8_sniff(line, (size_t)(j->buf + j->n - line))
                                             : NULL;
            if (other)
                return err_set(err, ERR_INVALID, "%s: is %s; only UTF-8 is read (iconv -f %s -t "
                               "utf-8 FILE > NEW)", source_path(j->source), other, other);
            if (j->line == 1 && n >= 3 && !memcmp(line, "\xef\xbb\xbf", 3)) {
                line += 3;
                n -= 3;
            }
            size_t blank = 0;
            while (blank < n && strchr(" \t\r", line[blank]) && line[blank])
                blank++;
            if (blank == n)
                continue;
            struct err why = { 0 };
            build_row(b, j->line);
            if (json_object_read(line, n, set_member, j, &why) < 0) {
                build_drop(b, "line", why.text);
            }
        }
        j->rows += b->out.n;
        j->rows_in_file += b->out.n;
        if (!line && next_file(j, err) < 0)
            return -(int)err->code;
        if (b->out.n || b->out.broken)
            return build_finish(b, out, err);
    }
    return 0;
}

static int json_rows_rewind(struct rows *r, struct err *err)
{
    struct rows_json *j = r->own;
    if (source_rewind(j->source, err) < 0)
        return -(int)err->code;
    j->at = j->n = 0;
    j->file_ended = j->ended = 0;
    j->rows = j->rows_in_file = j->line = 0;
    return 0;
}

static int json_rows_say(const struct rows *r, const struct rows_block *b, long slot,
                         struct err *err)
{
    (void)b;
    return build_say(&((struct rows_json *)r->own)->build, slot, err);
}

static long json_rows_row(const struct rows *r, const struct rows_block *b, long slot)
{
    (void)b;
    return ((struct rows_json *)r->own)->build.line[slot];
}

static long json_rows_broken(const struct rows *r, const struct rows_block *b, long i,
                             struct err *why)
{
    (void)b;
    return build_broken(&((struct rows_json *)r->own)->build, i, why);
}

const struct rows_ops rows_json_ops = {
    .open = json_rows_open,
    .select = json_rows_select,
    .next = json_rows_next,
    .rewind = json_rows_rewind,
    .say = json_rows_say,
    .row = json_rows_row,
    .broken = json_rows_broken,
    .free = json_rows_free,
};
