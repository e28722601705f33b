/* data/rows.h - rows of any tabular format, in blocks of typed columns
 *
 *     open ─► find and select columns ─► next, next, ... ─► rewind or free
 *
 * The one door through which the features of a row come in, whether the file is CSV, JSON lines or
 * TFRecord. Columns are selected by name, as numbers, as text or as both; a block holds some
 * hundred or thousand rows of each. Column k of a block is the k-th that was selected.
 *
 * A value that is not there, or is not what was asked for, is flagged in `missing`; in the second
 * case the row is flagged in `bad` too, and rows_say has the sentence. A row that is none (a CSV
 * line with too few fields, a line that is not JSON) is left out of the block and counted in
 * `broken`. Only damage that ends the reading (a cut gzip, a wrong TFRecord checksum) makes
 * rows_next fail.
 *
 * Threads: one caller.
 */
#ifndef MUSTER_DATA_ROWS_H
#define MUSTER_DATA_ROWS_H

#include "base/err.h"
#include "base/own.h"
#include "data/csv.h"

enum rows_format { ROWS_CSV, ROWS_JSON, ROWS_TFRECORD, ROWS_FORMATS };
enum { ROWS_NUMBER = 1, ROWS_TEXT = 2 };        /* what a column is wanted as */

struct rows_column {
    const double *number;               /* (n) NaN where missing; NULL: not selected as such */
    const struct csv_text *text;        /* (n) */
    const uint64_t *missing;            /* bit a row, see csv_bit */
};

struct rows_block {
    const char *path;
    long first;                 /* rows before this block, over all files */
    long first_in_file;         /* the same of this file */
    long n;                     /* 0 only where all were broken */
    long broken;
    const struct rows_column *column;
    const uint64_t *bad;
};

struct rows;

/* `o` is read for CSV only, but for its `missing` texts. */
int rows_open(enum rows_format format, const char *const *paths, int n, const struct csv_options *o,
              struct rows **out, struct err *err);
void rows_free(struct rows *r);
OWN_DEFINE(rows)

/* The columns of a CSV file. The other formats name theirs in each row: rows_columns is 0. */
int rows_columns(const struct rows *r);
const char *rows_name(const struct rows *r, int column);

/* Adds a column to those that blocks have. ERR_MISSING: a CSV file has none of that name. */
int rows_select(struct rows *r, const char *name, int as, struct err *err);

/* A column whose values are lists of `width` numbers, as JSON and TFRecord have them: `number` is
 * (n, width) then. ERR_INVALID for CSV. */
int rows_select_list(struct rows *r, const char *name, int width, struct err *err);

/* The next block, valid until the next call; NULL in *out after the last. */
int rows_next(struct rows *r, const struct rows_block **out, struct err *err);
int rows_rewind(struct rows *r, struct err *err);

/* The number of a row in its file, from 1, broken rows counted: for messages. */
long rows_row(const struct rows *r, const struct rows_block *b, long slot);

/* Says what is wrong with a row that is flagged bad; slot -1: with the first broken one. Returns
 * -ERR_INVALID. */
int rows_say(const struct rows *r, const struct rows_block *b, long slot, struct err *err);

/* The i-th broken row of a block, from 0: returns the slot of the row after it (b->n: there is none)
 * and has the sentence in `why`. */
long rows_broken(const struct rows *r, const struct rows_block *b, long i, struct err *why);

/* Text of a number, blanks around it allowed: 0, or -1 when it is none. Correctly rounded. */
int rows_number(const char *text, size_t n, double *out);

/* For what implements a format (rows_csv.c, json.c, tfrecord.c). */
struct rows_ops {
    int (*open)(struct rows *r, const char *const *paths, int n, const struct csv_options *o,
                struct err *err);
    int (*columns)(const struct rows *r);
    const char *(*name)(const struct rows *r, int column);
    int (*select)(struct rows *r, const char *name, int as, int width, struct err *err);
    int (*next)(struct rows *r, const struct rows_block **out, struct err *err);
    int (*rewind)(struct rows *r, struct err *err);
    int (*say)(const struct rows *r, const struct rows_block *b, long slot, struct err *err);
    long (*row)(const struct rows *r, const struct rows_block *b, long slot);
    long (*broken)(const struct rows *r, const struct rows_block *b, long i, struct err *why);
    void (*free)(struct rows *r);
};
extern const struct rows_ops rows_csv_ops, rows_json_ops, rows_tfrecord_ops;

struct rows {
    const struct rows_ops *ops;
    void *own;                  /* of the format */
};

#endif
