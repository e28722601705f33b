/* data/rows_build.h - blocks of rows, built value by value
 *
 * For formats that come one row at a time (JSON lines, TFRecord). Between build_row and the next,
 * set the columns that the row has; those that are not set are missing. Texts are copied.
 */
#ifndef MUSTER_DATA_ROWS_BUILD_H
#define MUSTER_DATA_ROWS_BUILD_H

#include "base/buf.h"
#include "data/rows.h"
#include "data/vocab.h"

enum { BUILD_ROWS = 1024 };

struct build_column {
    int as;
    int width;                  /* numbers in a value; 1 but for lists */
    double *number;             /* (BUILD_ROWS, width) */
    struct csv_text *text;      /* while building, p is an offset into `texts` */
    uint64_t missing[BUILD_ROWS / 64];
};

struct build_broken {
    long slot;                  /* of the row after it */
    size_t why;                 /* offset of the sentence in `texts` */
};

struct build {
    struct vocab *names;        /* column i has id i */
    struct build_column *column;
    struct rows_column *view;
    int n;
    struct vocab *missing;      /* texts that mean "no value" */
    struct buf texts;
    uint64_t bad[BUILD_ROWS / 64];
    uint32_t why[BUILD_ROWS];   /* offset of the sentence for a bad row */
    long line[BUILD_ROWS];      /* number of each row in its file */
    struct buf broken;          /* struct build_broken each, in order */
    struct rows_block out;
};

int build_init(struct build *b, const struct csv_options *o, struct err *err);
void build_done(struct build *b);
int build_select(struct build *b, const char *name, int as, int width, struct err *err);
int build_find(const struct build *b, const char *name, size_t n);     /* -1: nobody wants it */

void build_start(struct build *b, const char *path, long first, long first_in_file);
int build_full(const struct build *b);
void build_row(struct build *b, long row);      /* begins row number `row`, from 1, of the file */
/* Takes the row in hand back: it is broken. `unit` is what the file's rows are: "line". */
void build_drop(struct build *b, const char *unit, const char *why);

/* Sets a value from text; one that should be a number and is none makes the row bad. */
void build_text(struct build *b, int column, const char *text, size_t n);
/* Sets a value from a number; its text is how it would be written. */
void build_number(struct build *b, int column, double x, const char *text, size_t n);
/* Sets all numbers of a list column. */
void build_list(struct build *b, int column, const double *x, long n);
/* The row has something else than a value there: `what` ends the sentence. */
void build_wrong(struct build *b, int column, const char *what);

int build_finish(struct build *b, const struct rows_block **out, struct err *err);
int build_say(const struct build *b, long slot, struct err *err);
long build_broken(const struct build *b, long i, struct err *why);

#endif
