/* data/csv_column.c - the fields of one column to typed values
 *
 * A column at a time: the loop keeps its type, its constants and its branch history. Numbers go
 * through csv_quick.c first; what is here takes every spelling.
 */
#include <math.h>

#include "data/csv_int.h"

static const uint64_t ONES = UINT64_C(0x0101010101010101), HIGHS = UINT64_C(0x8080808080808080);

int csv_found_add(struct csv_found_list *l, struct csv_found f)
{
    if (l->n == l->room) {
        size_t room = l->room ? 2 * l->room : 64;
        struct csv_found *item = realloc(l->item, room * sizeof *item);
        if (!item)
            return -ERR_NOMEM;
        l->item = item;
        l->room = room;
    }
    l->item[l->n++] = f;
    return 0;
}

/* The closing quote of a field that begins after its opening one; NULL: text follows it, or there
 * is none. *out_doubled counts the pairs before it. */
static char *closing_quote(char *p, const char *end, size_t *out_doubled)
{
    *out_doubled = 0;
    while (p < end) {
        char *quote = memchr(p, '"', (size_t)(end - p));
        if (!quote || quote + 1 == end)
            return quote;
        if (quote[1] != '"')
            return NULL;
        ++*out_doubled;
        p = quote + 2;
    }
    return NULL;
}

int csv_unquote(char **p, size_t *n)
{
    size_t doubled;
    char *begin = *p + 1, *to = begin;
    char *end = closing_quote(begin, *p + *n, &doubled);

    if (!end)
        return 0;
    if (doubled)
        for (char *from = begin; from < end; from += *from == '"' ? 2 : 1)
            *to++ = *from;
    else
        to = end;
    /* What the text shrank by becomes quotes: no newline is added or lost, and lines can still be
     * counted. */
    memset(to, '"', (size_t)(end - to));
    *p = begin;
    *n = (size_t)(to - begin);
    return 1;
}

static int is_missing(const struct csv_missing *m, const char *p, size_t n)
{
    if (!(m->lens >> (n < 63 ? n : 63) & 1))
        return 0;
    for (int i = 0; i < m->n; i++)
        if (m->len[i] == n && memcmp(m->text[i], p, n) == 0)
            return 1;
    return 0;
}

static void set_missing(struct csv_column *out, long row)
{
    out->missing[row >> 6] |= 1ULL << (row & 63);
    out->n_missing++;
}

static int report(const struct csv_convert *v, const struct csv_fields *f, long row,
                  enum csv_error_kind kind)
{
    size_t n;
    const char *p = csv_field(f, row, &n);

    return csv_found_add(v->found, (struct csv_found){ (uint32_t)row, v->column, kind,
                                                       (uint32_t)(p - f->text), (uint32_t)n });
}

/* Unquoted text of a field: 1, or 0 for no value (missing, or bad and reported); < 0: no memory.
 * Shared by all slow ways. */
static int take_text(const struct csv_convert *v, const struct csv_fields *f, long row,
                     char **out_p, size_t *out_n)
{
    char *p = csv_field(f, row, out_n);

    if (*out_n && *p == '"' && !csv_unquote(&p, out_n)) {
        int rc = report(v, f, row, CSV_BAD_QUOTE);
        return rc < 0 ? rc : 0;
    }
    *out_p = p;
    return !is_missing(v->missing, p, *out_n);
}

static enum csv_number parse(enum csv_type type, const char *p, size_t n, struct csv_column *out,
                             long row)
{
    if (type == CSV_F64)
        return csv_parse_f64(p, n, &out->f64[row]);
    if (type == CSV_F32)
        return csv_parse_f32(p, n, &out->f32[row]);
    return csv_parse_i64(p, n, &out->i64[row]);
}

static void put_none(struct csv_column *out, long row)
{
    set_missing(out, row);
    switch (out->type) {
    case CSV_F64: out->f64[row] = NAN; break;
    case CSV_F32: out->f32[row] = NAN; break;
    case CSV_I64: out->i64[row] = 0; break;
    case CSV_TEXT: out->text[row] = (struct csv_text){ "", 0 }; break;
    case CSV_DICT: out->code[row] = CSV_NO_CODE; break;
    case CSV_SKIP: break;
    }
}

int csv_put_number(const struct csv_convert *v, const struct csv_fields *f, struct csv_column *out,
                   long row)
{
    size_t n;
    char *p;
    int some = take_text(v, f, row, &p, &n);

    if (some < 0)
        return some;
    if (some) {
        enum csv_number kind = parse(out->type, p, n, out, row);
        if (kind == CSV_NUMBER ||
            (kind == CSV_NONFINITE && v->allow_nonfinite && out->type != CSV_I64))
            return 0;
        int rc = report(v, f, row, kind == CSV_NOT_NUMBER  ? CSV_BAD_NUMBER
                                   : out->type == CSV_I64 ? CSV_BAD_INTEGER
                                                          : CSV_BAD_FINITE);
        if (rc < 0)
            return rc;
    }
    put_none(out, row);
    return 0;
}

/* Copies 16 bytes a turn, up to 15 beyond the end: both sides are padded. */
static void copy_padded(char *to, const char *from, size_t n)
{
    for (size_t i = 0; i < n; i += 16)
        memcpy(to + i, from + i, 16);
}

/* All bytes are ASCII and none is zero: UTF-8 for certain. */
static bool is_plain(const char *p, size_t n)
{
    uint64_t odd[4] = { 0 }, word[4];
    size_t i = 0;

    for (; i + sizeof word <= n; i += sizeof word) {
        memcpy(word, p + i, sizeof word);
        for (int k = 0; k < 4; k++)
            odd[k] |= (word[k] - ONES) | word[k];
    }
    for (; i < n; i++)          /* not utf8_check: two fields might make one character */
        odd[0] |= (signed char)p[i] > 0 ? 0 : HIGHS;
    return !((odd[0] | odd[1] | odd[2] | odd[3]) & HIGHS);
}

/* Not UTF-8: told, and no value. */
static int refuse_text(const struct csv_convert *v, const struct csv_fields *f,
                       struct csv_column *out, long row)
{
    put_none(out, row);
    return report(v, f, row, CSV_BAD_TEXT);
}

/* Texts are copied: a block that is held then keeps its texts alone, and the worker reads the next
 * chunk into a buffer that is still in its cache. */
static int texts(struct csv_convert *v, const struct csv_fields *f, struct csv_column *out)
{
    const char *begin = v->heap;

    for (long row = 0; row < f->rows; row++) {
        size_t n;
        char *p;
        int some = take_text(v, f, row, &p, &n);
        if (some < 0)
            return some;
        if (!some) {
            put_none(out, row);
            continue;
        }
        copy_padded(v->heap, p, n);
        out->text[row] = (struct csv_text){ v->heap, n };
        v->heap += n;
    }
    /* The texts of a column lie one after the other: one look at all of them is mostly enough. */
    if (is_plain(begin, (size_t)(v->heap - begin)))
        return 0;
    for (long row = 0; row < f->rows; row++) {
        const struct csv_text *t = &out->text[row];
        if (utf8_check(t->p, t->n) < t->n && refuse_text(v, f, out, row) < 0)
            return -ERR_NOMEM;
    }
    return 0;
}

static int codes(struct csv_convert *v, const struct csv_fields *f, struct csv_column *out)
{
    for (long row = 0; row < f->rows; row++) {
        size_t n;
        char *p;
        int some = take_text(v, f, row, &p, &n);
        if (some < 0)
            return some;
        if (!some) {
            put_none(out, row);
            continue;
        }
        int rc = csv_dict_code(v->dict, p, n, &out->code[row]);
        if (rc > 0)
            rc = refuse_text(v, f, out, row);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int csv_convert_column(struct csv_convert *v, const struct csv_fields *f, struct csv_column *out)
{
    static int (*const ways[])(struct csv_convert *, const struct csv_fields *,
                               struct csv_column *) = {
        [CSV_F64] = csv_quick_numbers, [CSV_F32] = csv_quick_numbers, [CSV_I64] = csv_quick_numbers,
        [CSV_TEXT] = texts,            [CSV_DICT] = codes,
    };
    return ways[out->type](v, f, out);
}
