/* tests/csv_dump.h - all that a CSV reader says about a file, as one text to compare
 *
 * One line a row: its number, then the values with all their digits, "~" for none. An error record
 * is a line that begins with "! ", and so is the sentence with which the reader stopped. Blocks
 * leave no trace: the text is the same for every block size, number of threads, instruction set.
 */
#ifndef MUSTER_TESTS_CSV_DUMP_H
#define MUSTER_TESTS_CSV_DUMP_H

#include "data/csv.h"

/* The type of column i is by the letter types[i % strlen]: d f i t c, all else: skip. */
static inline enum csv_type csv_dump_type(char letter)
{
    static const struct {
        char letter;
        enum csv_type type;
    } types[] = {
        { 'd', CSV_F64 }, { 'f', CSV_F32 }, { 'i', CSV_I64 }, { 't', CSV_TEXT }, { 'c', CSV_DICT }
    };

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (types[i].letter == letter)
            return types[i].type;
    return CSV_SKIP;
}

static inline void csv_dump_value(FILE *f, struct csv *c, const struct csv_block *b, int column,
                                  long row)
{
    const struct csv_column *k = &b->column[column];
    const struct csv_text *texts;

    if (csv_bit(k->missing, row)) {
        fprintf(f, "~|");
        return;
    }
    switch (k->type) {
    case CSV_F64: fprintf(f, "%.17g|", k->f64[row]); break;
    case CSV_F32: fprintf(f, "%.9g|", (double)k->f32[row]); break;
    case CSV_I64: fprintf(f, "%lld|", (long long)k->i64[row]); break;
    case CSV_TEXT: fwrite(k->text[row].p, 1, k->text[row].n, f); fputc('|', f); break;
    case CSV_DICT:
        csv_dict(c, column, &texts);
        fprintf(f, "%u=", k->code[row]);
        fwrite(texts[k->code[row]].p, 1, texts[k->code[row]].n, f);
        fputc('|', f);
        break;
    case CSV_SKIP: break;
    }
}

static inline void csv_dump_block(FILE *f, struct csv *c, const struct csv_block *b)
{
    struct err said;
    int e = 0;

    for (long row = 0; row <= b->rows; row++) {
        for (; e < b->n_errors && b->error[e].slot <= row; e++) {
            csv_error_say(c, b, &b->error[e], &said);
            const char *name = strrchr(b->path, '/');
            fprintf(f, "! %s\n", said.text + (name ? name + 1 - b->path : 0));
        }
        if (row == b->rows)
            break;
        fprintf(f, "%ld:%s", csv_block_row(b, row), csv_bit(b->bad, row) ? "bad|" : "");
        for (int i = 0; i < b->n_columns; i++)
            if (b->column[i].type != CSV_SKIP)
                csv_dump_value(f, c, b, i, row);
        fputc('\n', f);
    }
}

/* Names, rows, errors; caller frees. */
static inline char *csv_dump(const char *const *paths, int n, const struct csv_options *o,
                             const char *types)
{
    struct err err = { 0 };
    struct csv *c = NULL;
    struct csv_block *b = NULL;
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    int rc = csv_open(paths, n, o, &c, &err);

    if (rc == 0) {
        for (int i = 0; i < csv_columns(c); i++) {
            fprintf(f, "%s|", csv_name(c, i));
            csv_select(c, i, csv_dump_type(types[(size_t)i % strlen(types)]));
        }
        fputc('\n', f);
        while ((rc = csv_next(c, &b, &err)) == 0 && b) {
            csv_dump_block(f, c, b);
            csv_block_free(c, b);
        }
    }
    if (rc < 0) {
        const char *slash = strrchr(err.text, '/');
        fprintf(f, "! %s\n", slash ? slash + 1 : err.text);
    }
    csv_free(c);
    fclose(f);
    return text;
}

#endif
