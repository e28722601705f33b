/* data/rows_csv.c - rows of CSV files
 *
 * A column that is wanted as a number or as text is the reader's own array. One that is wanted as
 * both is read as text, and the numbers are made of it here.
 */
#include "data/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* More threads than this do not help: one thread makes the records of all of them. */
enum { PARSE_THREADS_MAX = 4 };

struct selected {
    int column, as;
    double *number;             /* of a column that is both */
    uint64_t *missing;
    long cap;
};

struct rows_csv {
    struct csv *csv;
    struct csv_block *block;
    struct selected *sel;
    struct rows_column *column;
    int n;
    uint64_t *bad;              /* the reader's and those of the columns that are both */
    long bad_cap;
    long file_first;            /* rows before the current file */
    struct rows_block out;
};

static int csv_rows_open(struct rows *r, const char *const *paths, int n,
                         const struct csv_options *o, struct err *err)
{
    struct rows_csv *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(err, ERR_NOMEM, "no memory to read %s", paths[0]);
    r->own = c;
    struct csv_options options = *o;
    if (!options.threads) {
        long cores = sysconf(_SC_NPROCESSORS_ONLN);
        options.threads = cores < 1                   ? 1
                          : cores > PARSE_THREADS_MAX ? PARSE_THREADS_MAX
                                                      : (int)cores;
    }
    return csv_open(paths, n, &options, &c->csv, err);
}

static void csv_rows_free(struct rows *r)
{
    struct rows_csv *c = r->own;
    if (!c)
        return;
    if (c->csv)
        csv_block_free(c->csv, c->block);
    csv_free(c->csv);
    for (int i = 0; i < c->n; i++) {
        free(c->sel[i].number);
        free(c->sel[i].missing);
    }
    free(c->sel);
    free(c->column);
    free(c->bad);
    free(c);
}

static int csv_rows_columns(const struct rows *r)
{
    return csv_columns(((struct rows_csv *)r->own)->csv);
}

static const char *csv_rows_name(const struct rows *r, int column)
{
    return csv_name(((struct rows_csv *)r->own)->csv, column);
}

static int csv_rows_select(struct rows *r, const char *name, int as, int width, struct err *err)
{
    struct rows_csv *c = r->own;
    int column;
    if (width != 1)
        return err_set(err, ERR_INVALID, "\"%s\": a field of a CSV file holds one value, not %d",
                       name, width);
    if (csv_find(c->csv, name, &column, err) < 0)
        return -err->code;
    struct selected *sel = realloc(c->sel, (size_t)(c->n + 1) * sizeof *sel);
    if (sel)
        c->sel = sel;
    struct rows_column *columns = realloc(c->column, (size_t)(c->n + 1) * sizeof *columns);
    if (columns)
        c->column = columns;
    if (!sel || !columns)
        return err_set(err, ERR_NOMEM, "no memory for column \"%s\"", name);
    sel[c->n++] = (struct selected){ .column = column, .as = as };
    csv_select(c->csv, column, as & ROWS_TEXT ? CSV_TEXT : CSV_F64);
    return 0;
}

/* Numbers of a column that is read as text. Returns -1 when out of memory. */
static int make_numbers(struct rows_csv *c, struct selected *s, const struct csv_column *from,
                        long rows)
{
    size_t words = (size_t)(rows + 63) / 64;
    if (rows > s->cap) {
        free(s->number);
        free(s->missing);
        s->number = malloc((size_t)rows * sizeof *s->number);
        s->missing = malloc(words * sizeof *s->missing);
        s->cap = s->number && s->missing ? rows : 0;
        if (!s->cap)
            return -1;
    }
    memcpy(s->missing, from->missing, words * sizeof *s->missing);
    for (long i = 0; i < rows; i++) {
        s->number[i] = NAN;
        if (csv_bit(from->missing, i))
            continue;
        double v;
        if (rows_number(from->text[i].p, from->text[i].n, &v) < 0 || !isfinite(v)) {
            s->missing[i >> 6] |= 1ull << (i & 63);
            c->bad[i >> 6] |= 1ull << (i & 63);
        } else {
            s->number[i] = v;
        }
    }
    return 0;
}

static int csv_rows_next(struct rows *r, const struct rows_block **out, struct err *err)
{
    struct rows_csv *c = r->own;
    csv_block_free(c->csv, c->block);
    c->block = NULL;
    if (csv_next(c->csv, &c->block, err) < 0)
        return -err->code;
    struct csv_block *b = c->block;
    if (!b) {
        *out = NULL;
        return 0;
    }
    size_t words = (size_t)(b->rows + 63) / 64;
    if (b->rows > c->bad_cap) {
        free(c->bad);
        c->bad = malloc(words * sizeof *c->bad);
        c->bad_cap = c->bad ? b->rows : 0;
        if (!c->bad)
            return err_set(err, ERR_NOMEM, "no memory for a block of %ld rows", b->rows);
    }
    memcpy(c->bad, b->bad, words * sizeof *c->bad);
    for (int i = 0; i < c->n; i++) {
        const struct csv_column *from = &b->column[c->sel[i].column];
        struct rows_column *to = &c->column[i];
        *to = (struct rows_column){ .missing = from->missing };
        if (from->type == CSV_F64)
            to->number = from->f64;
        else
            to->text = from->text;
        if (from->type == CSV_TEXT && c->sel[i].as & ROWS_NUMBER) {
            if (make_numbers(c, &c->sel[i], from, b->rows) < 0)
                return err_set(err, ERR_NOMEM, "no memory for a block of %ld rows", b->rows);
            to->number = c->sel[i].number;
        }
    }
    if (c->out.path != b->path)
        c->file_first = b->first;
    c->out = (struct rows_block){ b->path, b->first, b->first - c->file_first, b->rows, b->ragged,
                                  c->column, c->bad };
    *out = &c->out;
    return 0;
}

static int csv_rows_rewind(struct rows *r, struct err *err)
{
    struct rows_csv *c = r->own;
    csv_block_free(c->csv, c->block);
    c->block = NULL;
    c->out.path = NULL;
    return csv_rewind(c->csv, err);
}

static int csv_rows_say(const struct rows *r, const struct rows_block *b, long slot,
                        struct err *err)
{
    const struct rows_csv *c = r->own;
    for (int i = 0; i < c->block->n_errors; i++) {
        const struct csv_error *e = &c->block->error[i];
        if (slot < 0 ? e->kind == CSV_BAD_FIELDS : e->kind != CSV_BAD_FIELDS && e->slot == slot)
            return csv_error_say(c->csv, c->block, e, err);
    }
    if (slot < 0)
        return err_set(err, ERR_INVALID,
                       "%s: after row %ld, %ld rows do not have as many fields as the header",
                       b->path, b->first_in_file, b->broken);
    for (int i = 0; i < c->n; i++)
        if (c->sel[i].number && csv_bit(c->sel[i].missing, slot) &&
            !csv_bit(c->column[i].missing, slot))
            return err_set(err, ERR_INVALID,
                           "%s: row %ld, column \"%s\": \"%.*s\" is not a finite number", b->path,
                           csv_block_row(c->block, slot), csv_name(c->csv, c->sel[i].column),
                           (int)(c->column[i].text[slot].n > 40 ? 40 : c->column[i].text[slot].n),
                           c->column[i].text[slot].p);
    return err_set(err, ERR_INVALID, "%s: row %ld has a value that is not readable", b->path,
                   csv_block_row(c->block, slot));
}

static long csv_rows_row(const struct rows *r, const struct rows_block *b, long slot)
{
    (void)b;
    return csv_block_row(((struct rows_csv *)r->own)->block, slot);
}

static long csv_rows_broken(const struct rows *r, const struct rows_block *b, long i,
                            struct err *why)
{
    const struct rows_csv *c = r->own;
    long row, slot = csv_block_ragged(c->block, i, &row);

    for (int k = 0; k < c->block->n_errors; k++) {
        const struct csv_error *e = &c->block->error[k];
        if (e->kind == CSV_BAD_FIELDS && e->row == row) {
            csv_error_say(c->csv, c->block, e, why);
            return slot;
        }
    }
    err_set(why, ERR_INVALID, "%s: row %ld does not have as many fields as the header", b->path, row);
    return slot;
}

const struct rows_ops rows_csv_ops = {
    csv_rows_open, csv_rows_columns, csv_rows_name, csv_rows_select, csv_rows_next,
    csv_rows_rewind, csv_rows_say,   csv_rows_row,  csv_rows_broken, csv_rows_free,
};
