/* data/rows_build.c - blocks of rows, built value by value */
#include "data/rows_build.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

static int out_of_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "no memory for a block of rows");
}

int build_init(struct build *b, const struct csv_options *o, struct err *err)
{
    b->names = vocab_new();
    b->missing = vocab_new();
    if (!b->names || !b->missing)
        return out_of_memory(err);
    buf_init(&b->texts);
    if (!o->missing && vocab_add(b->missing, "", 0) < 0)
        return out_of_memory(err);
    for (int i = 0; i < o->n_missing; i++)
        if (vocab_add(b->missing, o->missing[i], strlen(o->missing[i])) < 0)
            return out_of_memory(err);
    return 0;
}

void build_done(struct build *b)
{
    for (int i = 0; i < b->n; i++) {
        free(b->column[i].number);
        free(b->column[i].text);
    }
    free(b->column);
    free(b->view);
    vocab_free(b->names);
    vocab_free(b->missing);
    buf_done(&b->texts);
    buf_done(&b->broken);
}

int build_select(struct build *b, const char *name, int as, int width, struct err *err)
{
    struct build_column *column = realloc(b->column, (size_t)(b->n + 1) * sizeof *column);
    if (column)
        b->column = column;
    struct rows_column *view = realloc(b->view, (size_t)(b->n + 1) * sizeof *view);
    if (view)
        b->view = view;
    if (!column || !view || vocab_add(b->names, name, strlen(name)) < 0)
        return out_of_memory(err);
    struct build_column *c = &column[b->n++];
    *c = (struct build_column){ .as = as, .width = width };
    if (as & ROWS_NUMBER)
        c->number = malloc((size_t)BUILD_ROWS * (size_t)width * sizeof *c->number);
    if (as & ROWS_TEXT)
        c->text = malloc(BUILD_ROWS * sizeof *c->text);
    return (as & ROWS_NUMBER && !c->number) || (as & ROWS_TEXT && !c->text) ? out_of_memory(err)
                                                                            : 0;
}

int build_find(const struct build *b, const char *name, size_t n)
{
    return vocab_find(b->names, name, n);
}

void build_start(struct build *b, const char *path, long first, long first_in_file)
{
    buf_clear(&b->texts);
    buf_clear(&b->broken);
    buf_reserve(&b->texts, 1);          /* texts of no length point here */
    memset(b->bad, 0, sizeof b->bad);
    for (int i = 0; i < b->n; i++)
        memset(b->column[i].missing, 0, sizeof b->column[i].missing);
    b->out = (struct rows_block){ .path = path, .first = first, .first_in_file = first_in_file };
}

int build_full(const struct build *b)
{
    /* The second bound is for rows of very long texts. */
    return b->out.n == BUILD_ROWS || b->texts.n > 8 << 20;
}

static void set_missing(struct build *b, int column)
{
    struct build_column *c = &b->column[column];
    long slot = b->out.n - 1;
    c->missing[slot >> 6] |= 1ull << (slot & 63);
    for (int i = 0; c->number && i < c->width; i++)
        c->number[slot * c->width + i] = NAN;
    if (c->text)
        c->text[slot] = (struct csv_text){ NULL, 0 };
}

static void set_there(struct build *b, int column)
{
    long slot = b->out.n - 1;
    b->column[column].missing[slot >> 6] &= ~(1ull << (slot & 63));
}

void build_row(struct build *b, long row)
{
    b->line[b->out.n++] = row;
    for (int i = 0; i < b->n; i++)
        set_missing(b, i);
}

void build_drop(struct build *b, const char *unit, const char *why)
{
    b->out.n--;
    const struct build_broken row = { b->out.n, b->texts.n };
    buf_append(&b->broken, &row, sizeof row);
    buf_printf(&b->texts, "%s: %s %ld: %.300s", b->out.path, unit, b->line[b->out.n], why);
    buf_append(&b->texts, "", 1);
    b->bad[b->out.n >> 6] &= ~(1ull << (b->out.n & 63));
    for (int i = 0; i < b->n; i++)
        b->column[i].missing[b->out.n >> 6] &= ~(1ull << (b->out.n & 63));
    b->out.broken++;
}

void build_wrong(struct build *b, int column, const char *what)
{
    long slot = b->out.n - 1;
    set_missing(b, column);
    if (csv_bit(b->bad, slot))
        return;
    b->bad[slot >> 6] |= 1ull << (slot & 63);
    b->why[slot] = (uint32_t)b->texts.n;
    buf_printf(&b->texts, "%s: row %ld, \"%s\"%s", b->out.path, b->line[slot],
               vocab_text(b->names, column, NULL), what);
    buf_append(&b->texts, "", 1);
}

static void set_text(struct build *b, int column, const char *text, size_t n)
{
    struct build_column *c = &b->column[column];
    if (!c->text)
        return;
    c->text[b->out.n - 1] = (struct csv_text){ (const char *)b->texts.n, n };
    buf_append(&b->texts, text, n);
}

static void wrong_number(struct build *b, int column, const char *text, size_t n)
{
    char what[128];
    snprintf(what, sizeof what, ": \"%.*s\" is not a finite number", (int)(n > 40 ? 40 : n), text);
    build_wrong(b, column, what);
}

void build_text(struct build *b, int column, const char *text, size_t n)
{
    struct build_column *c = &b->column[column];
    if (c->width != 1) {
        build_wrong(b, column, " is no list of numbers");
        return;
    }
    if (vocab_find(b->missing, text, n) >= 0)
        return;
    double x = NAN;
    int number = !(c->as & ROWS_NUMBER) || (rows_number(text, n, &x) == 0 && isfinite(x));
    if (!number) {
        wrong_number(b, column, text, n);
        if (!c->text)
            return;
    }
    size_t at = c->text ? utf8_check(text, n) : n;
    if (at < n) {
        char why[UTF8_WHY], what[UTF8_WHY + 2];
        utf8_say(text, n, at, why);
        snprintf(what, sizeof what, " %s", why);
        build_wrong(b, column, what);
        return;
    }
    set_there(b, column);
    set_text(b, column, text, n);
    if (c->number)
        c->number[b->out.n - 1] = number ? x : NAN;
}

void build_number(struct build *b, int column, double x, const char *text, size_t n)
{
    struct build_column *c = &b->column[column];
    if (c->width != 1) {
        build_list(b, column, &x, 1);
        return;
    }
    if (!isfinite(x)) {
        wrong_number(b, column, text, n);
        return;
    }
    set_there(b, column);
    set_text(b, column, text, n);
    if (c->number)
        c->number[b->out.n - 1] = x;
}

void build_list(struct build *b, int column, const double *x, long n)
{
    struct build_column *c = &b->column[column];
    char what[96];
    if (n != c->width) {
        snprintf(what, sizeof what, " has %ld values, not %d", n, c->width);
        build_wrong(b, column, what);
        return;
    }
    for (long i = 0; i < n; i++)
        if (!isfinite(x[i])) {
            snprintf(what, sizeof what, "[%ld] is not a finite number", i);
            build_wrong(b, column, what);
            return;
        }
    set_there(b, column);
    if (c->number)
        memcpy(c->number + (b->out.n - 1) * c->width, x, (size_t)n * sizeof *x);
}

int build_finish(struct build *b, const struct rows_block **out, struct err *err)
{
    if (b->texts.failed || b->broken.failed)
        return out_of_memory(err);
    for (int i = 0; i < b->n; i++) {
        struct build_column *c = &b->column[i];
        for (long r = 0; c->text && r < b->out.n; r++)
            c->text[r].p = b->texts.data + (size_t)c->text[r].p;
        b->view[i] = (struct rows_column){ c->number, c->text, c->missing };
    }
    b->out.column = b->view;
    b->out.bad = b->bad;
    *out = &b->out;
    return 0;
}

int build_say(const struct build *b, long slot, struct err *err)
{
    if (slot >= 0)
        return err_set(err, ERR_INVALID, "%s", b->texts.data + b->why[slot]);
    build_broken(b, 0, err);
    return -(int)err->code;
}

long build_broken(const struct build *b, long i, struct err *why)
{
    struct build_broken row;

    memcpy(&row, b->broken.data + (size_t)i * sizeof row, sizeof row);
    err_set(why, ERR_INVALID, "%s", b->texts.data + row.why);
    return row.slot;
}
