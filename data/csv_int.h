/* data/csv_int.h - private parts of csv*.c
 *
 *     csv.c (files, threads, order) ─► csv_scan.c (where fields end) ─► csv_fill.c (a block)
 *     csv_fill.c ─► csv_column.c (typed values) ─► csv_quick.c, csv_number.c, csv_dict.c
 *
 * Text lies in buffers with CSV_PAD readable bytes before and after it, so that vectors may be
 * loaded across both ends.
 */
#ifndef MUSTER_DATA_CSV_INT_H
#define MUSTER_DATA_CSV_INT_H

#include "data/csv.h"

enum { CSV_PAD = 64 };

enum csv_isa { CSV_SCALAR, CSV_AVX2, CSV_AVX512 };

/* What this CPU has, or what MUSTER_ISA asks for if the CPU has it. Never below CSV_SCALAR. */
enum csv_isa csv_isa_pick(void);

/* Where the delimiters and newlines outside quotes are. */
struct csv_marks {
    uint32_t *at;       /* (room) positions in the text, ascending; at[-1] is writable too */
    size_t room;
    size_t n;
    size_t newlines;    /* of them */
    int open;           /* the text ends inside quotes */
};

/* Needs marks->room >= n + CSV_PAD; the text begins at the start of a row. */
void csv_scan(enum csv_isa isa, const char *text, size_t n, char delimiter,
              struct csv_marks *marks);

/* Number of newlines, quoted or not. */
size_t csv_count_lines(const char *text, size_t n);

/* Numbers, correctly rounded. Blanks around are ignored; grammar: [+-] digits [. digits]
 * [e [+-] digits] with at least one digit before the e, or nan, inf, infinity. */
enum csv_number { CSV_NUMBER, CSV_NONFINITE, CSV_NOT_NUMBER };
enum csv_number csv_parse_f64(const char *s, size_t n, double *out);
enum csv_number csv_parse_f32(const char *s, size_t n, float *out);
/* CSV_NONFINITE here: a number, but not an integer of 64 bits. */
enum csv_number csv_parse_i64(const char *s, size_t n, int64_t *out);

/* Distinct texts, numbered in order of insertion. */
struct csv_dict {
    struct csv_text *text;      /* (n), in memory that does not move */
    uint32_t n, room;
    struct dict_slot *slot;     /* (mask + 1), open addressing */
    uint32_t mask;
    struct dict_page *page;     /* the texts */
};
/* The code of a text, copied in if it is new. 1: it is not UTF-8. -ERR_NOMEM; -ERR_INVALID beyond
 * CSV_DICT_MAX. */
int csv_dict_code(struct csv_dict *d, const char *p, size_t n, uint32_t *out);
void csv_dict_done(struct csv_dict *d);

/* What a conversion reads: field f of row r is text[prev[r * prev_step] + 1 .. end[r * end_step])
 * (in 32 bits: the row before the first ends at -1).
 * A ragged tile has its row starts in an array of their own, hence two steps. */
struct csv_fields {
    char *text;                 /* quoted fields are unquoted in place */
    const uint32_t *prev, *end;
    size_t prev_step, end_step;
    long rows;
    int last;                   /* the row's last column: a CR before the end is no text */
    int quoted;                 /* fields may be quoted */
};

static inline char *csv_field(const struct csv_fields *f, long row, size_t *n)
{
    char *p = f->text + (uint32_t)(f->prev[(size_t)row * f->prev_step] + 1);
    char *end = f->text + f->end[(size_t)row * f->end_step];

    end -= f->last && end > p && end[-1] == '\r';
    *n = (size_t)(end - p);
    return p;
}

/* Texts that mean "no value". */
struct csv_missing {
    char **text;
    size_t *len;
    int n;
    int empty;                  /* "" is one of them */
    uint64_t lens;              /* bit min(len, 63) */
};

struct csv_found {              /* an error, before it is put into words */
    uint32_t slot;
    int column;
    enum csv_error_kind kind;
    uint32_t at, len;           /* of the field in the text; BAD_FIELDS: len = fields */
};

struct csv_found_list {
    struct csv_found *item;
    size_t n, room;
};
int csv_found_add(struct csv_found_list *l, struct csv_found f);        /* -ERR_NOMEM */

struct csv_convert {
    enum csv_isa isa;
    const struct csv_missing *missing;
    int allow_nonfinite;
    int column;
    struct csv_found_list *found;
    struct csv_dict *dict;      /* CSV_DICT: codes are of this one */
    char *heap;                 /* CSV_TEXT: texts are copied here, and it moves on behind them */
};
/* Fills one column (values and `missing`, which is all zero before). 0, -ERR_NOMEM, or
 * -ERR_INVALID: the dictionary is full. */
int csv_convert_column(struct csv_convert *v, const struct csv_fields *f, struct csv_column *out);

/* The parts of it: numbers of the usual spellings fast, all others by csv_put_number, which puts
 * one number of any spelling, or none and the missing bit. */
int csv_quick_numbers(struct csv_convert *v, const struct csv_fields *f, struct csv_column *out);
int csv_put_number(const struct csv_convert *v, const struct csv_fields *f, struct csv_column *out,
                   long row);

/* The inside of a quoted field, unquoted in place: *p and *n change. 0 if text follows the closing
 * quote. `p[0]` is the opening quote. */
int csv_unquote(char **p, size_t *n);

/* Text, with CSV_PAD bytes before and after. */
struct csv_buffer {
    char *text;
    size_t room;
};
int csv_buffer_grow(struct csv_buffer *b, size_t room);         /* keeps the text; -ERR_NOMEM */
void csv_buffer_done(struct csv_buffer *b);

/* A run of whole rows of one file. */
enum csv_end {
    CSV_MORE,           /* the chunk has text */
    CSV_END,            /* there was no more */
    CSV_FAILED,         /* `err` says why */
    CSV_UNCLOSED,       /* the next row has a quote that is never closed */
    CSV_TOO_LONG,       /* the next row is longer than CSV_ROW_MAX */
};
struct csv_chunk {
    struct csv_buffer buffer;
    size_t n;
    struct csv_marks marks;
    int scanned;                /* it has quotes: `marks` were needed to find the last row's end */
    int file;                   /* index of the file */
    int starts;                 /* it is the first of its file, ... */
    long line;                  /* ... which begins on this line */
    enum csv_end end;
    struct err err;
};
void csv_chunk_done(struct csv_chunk *k);

/* The side that reads: files to chunks. One thread at a time. */
struct csv_input {
    struct source *source;
    char delimiter;
    int no_header;
    long skip;
    size_t block_bytes;
    enum csv_isa isa;
    struct csv_buffer tail;     /* text read but not yet in a chunk: [tail_at, tail_n) */
    size_t tail_at, tail_n;
    int file_ended;             /* the source has no more of this file */
    int starts;                 /* no chunk of this file yet */
    long line;                  /* of the first byte of `tail`, while `starts` */
    char **name;                /* of the columns; numbers if there is no header */
    int n_names;
};
/* Goes to the first row of the current file; the first time it also finds the names. */
int csv_input_start(struct csv_input *in, struct err *err);
/* The next chunk; failures are in the chunk, since they come in order too. */
void csv_input_chunk(struct csv_input *in, struct csv_chunk *k);
void csv_input_done(struct csv_input *in);

/* A block with what the caller does not see. */
struct csv_full_block {
    struct csv_block block;     /* first: the caller's pointer is this one */
    struct csv_full_block *next;
    size_t room;                /* bytes of the whole */
    struct csv_buffer heap;     /* what CSV_TEXT views point into */
    long rows_before;           /* in the file, ragged ones included */
    uint32_t *ragged;           /* (block.ragged) slots */
    long lines;                 /* in the text */
    int worker;                 /* whose codes CSV_DICT columns hold until delivery */
    struct csv_fresh *fresh;    /* (n_columns) texts that are new in that worker's dictionaries */
};
struct csv_fresh {
    struct csv_text *text;
    uint32_t n;
};
void csv_full_block_free(struct csv_full_block *b);

/* The side that converts: one a thread. */
struct csv_worker {
    struct csv *csv;
    int id;
    struct csv_chunk chunk;
    struct csv_dict *dict;      /* (n_columns), used for CSV_DICT */
    struct csv_found_list found;
    uint32_t *prev;             /* (prev_room) row starts of a ragged chunk */
    size_t prev_room;
};

struct csv_plan {               /* what all workers read and none changes */
    int n_columns;
    enum csv_type *type;        /* (n_columns) */
    struct csv_missing missing;
    int allow_nonfinite;
    char delimiter;
    enum csv_isa isa;
};

/* A block from the worker's chunk. `recycled` (NULL: none) is used if it is large enough, freed if
 * not; it is taken in any case. */
int csv_fill(const struct csv_plan *plan, struct csv_worker *w, struct csv_full_block *recycled,
             struct csv_full_block **out, struct err *err);

#endif
