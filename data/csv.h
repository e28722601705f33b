/* data/csv.h - delimited text to typed columns, in blocks
 *
 *     open ─► (names known) ─► select a type for each column ─► next, next, ... ─► free
 *
 * A reader goes through one or several files and hands out blocks of rows in file order. A block
 * holds, for each selected column, an array of values of the type that was asked for and a bitmap
 * of rows that have none. Memory is bounded by the blocks in flight (a block comes from about
 * 256 KiB of text), never by the file. With 2 or more threads the text is cut at row ends, and
 * blocks are filled side by side; what comes out does not depend on the number of threads, nor on
 * the instruction set (MUSTER_ISA=scalar|avx2|avx512 forces one), bit for bit.
 *
 * The text (RFC 4180, and what people write):
 *   - rows end with LF or CRLF; a UTF-8 byte order mark is skipped; gzip is recognised;
 *   - a field that begins with " ends with the " that is not doubled; delimiters, newlines and ""
 *     in it are text. Anything after the closing quote makes the field bad. A " inside a field
 *     that does not begin with one is an ordinary character;
 *   - empty lines are no rows; write "" for the missing value of a one-column file;
 *   - every file of a list has the same header;
 *   - texts and the names in the header are UTF-8, without zero bytes; a file in UTF-16 is refused
 *     by name;
 *   - numbers: decimal, correctly rounded, blanks around them ignored; "nan", "inf", "infinity" in
 *     any case are recognised and are bad values unless `allow_nonfinite`.
 *
 * A bad value never stops the reader: it is flagged like a missing one, its row is marked in
 * `bad`, and an error record says what and where. What to do (stop, skip, fill) is the caller's
 * choice. A ragged row (too few or too many fields) has no place in the columns: it is left out of
 * the block, counted in `ragged`, and has an error record. What makes csv_next itself fail: reading
 * (a damaged gzip), a quote that is never closed, a row longer than CSV_ROW_MAX, no memory.
 *
 * Threads: one caller; the reader's own threads start with the first csv_next of a file that is
 * worth them.
 */
#ifndef MUSTER_DATA_CSV_H
#define MUSTER_DATA_CSV_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/own.h"
#include "base/utf8.h"

enum {
    CSV_ROW_MAX = 16 << 20,     /* bytes; a stray quote must not swallow a 5 GB file */
    CSV_COLUMNS_MAX = 65536,
    CSV_ERRORS_MAX = 256,       /* records kept a block; the counts go on */
    CSV_DICT_MAX = 1 << 24,     /* distinct texts of a CSV_DICT column */
};
#define CSV_NO_CODE UINT32_MAX

enum csv_type {
    CSV_SKIP,           /* not read; the default of every column */
    CSV_F64,            /* missing: NaN */
    CSV_F32,            /* correctly rounded from the text, not by way of double; missing: NaN */
    CSV_I64,            /* "12.0" is 12, "12.5" is bad; missing: 0 */
    CSV_TEXT,           /* views into the block; missing: n = 0 */
    CSV_DICT,           /* codes 0.. in order of first appearance in the file, see csv_dict;
                         * missing: CSV_NO_CODE */
};

struct csv_options {
    char delimiter;             /* 0: comma */
    int no_header;              /* 1: the first row is data; columns are named "1", "2", ... */
    const char *const *names;   /* no_header: names instead of numbers; borrowed for csv_open */
    int n_names;
    long skip;                  /* lines before the header, of each file */
    const char *const *missing; /* texts that mean "no value", compared with the unquoted field;
                                 * NULL: only the empty one. Borrowed for csv_open */
    int n_missing;
    int allow_nonfinite;        /* NaN and Inf are values */
    int threads;                /* 0 or 1: in csv_next itself */
    size_t block_bytes;         /* text in a block; 0: 256 KiB */
};

/* A view; not ended by a zero byte. */
struct csv_text {
    const char *p;
    size_t n;
};

enum csv_error_kind {
    CSV_BAD_NUMBER,     /* the text is no number */
    CSV_BAD_FINITE,     /* NaN or Inf, spelled out or by overflow */
    CSV_BAD_INTEGER,    /* a number, but not an integer of 64 bits */
    CSV_BAD_QUOTE,      /* text after the closing quote */
    CSV_BAD_TEXT,       /* bytes that are not UTF-8, or a zero, in a column that is read as text */
    CSV_BAD_FIELDS,     /* a ragged row; `column` is -1, `slot` that of the row after it */
};

struct csv_error {
    enum csv_error_kind kind;
    int column;         /* index in the file, or -1 */
    long slot;          /* row of the block */
    long row;           /* of the file, from 1; the header is not counted */
    long line;          /* of the file, from 1; where the row begins */
    long fields;        /* CSV_BAD_FIELDS: how many the row has */
    char text[48];      /* of the field, cut */
    char why[UTF8_WHY]; /* CSV_BAD_TEXT: the end of the sentence */
};

struct csv_column {
    enum csv_type type;
    union {             /* (rows) by type; all NULL for CSV_SKIP */
        double *f64;
        float *f32;
        int64_t *i64;
        struct csv_text *text;
        uint32_t *code;
    };
    uint64_t *missing;  /* bit r % 64 of word r / 64: row r has no value here (missing or bad) */
    long n_missing;
};

struct csv_block {
    const char *path;           /* of the file; borrowed until csv_free */
    long first;                 /* rows delivered before this block, over all files */
    long rows;                  /* 0 only where all of them were ragged */
    int n_columns;              /* of the file; column[i] is the file's column i */
    struct csv_column *column;
    uint64_t *bad;              /* bit r: row r has an error; what was skipped or filled */
    long n_bad;                 /* rows marked so */
    long ragged;                /* rows left out */
    struct csv_error *error;    /* by slot, then column; the first CSV_ERRORS_MAX */
    int n_errors;
};

struct csv;

/* Opens the files and reads the header (`options` NULL: all zero). ERR_INVALID: an empty file, an
 * empty header, names that do not fit the first row. */
int csv_open(const char *const *paths, int n, const struct csv_options *options, struct csv **out,
             struct err *err);
void csv_free(struct csv *c);   /* after the last csv_block_free */
OWN_DEFINE(csv)

int csv_columns(const struct csv *c);
const char *csv_name(const struct csv *c, int column);  /* borrowed until csv_free */

/* The index of a column. ERR_MISSING names the columns there are; ERR_INVALID: named twice. */
int csv_find(const struct csv *c, const char *name, int *out, struct err *err);

/* Before the first csv_next (or after csv_rewind). */
void csv_select(struct csv *c, int column, enum csv_type type);

/* The next block, in file order, or NULL in *out after the last. It is yours until you give it
 * back; several may be held. */
int csv_next(struct csv *c, struct csv_block **out, struct err *err);
void csv_block_free(struct csv *c, struct csv_block *b);        /* NULL is fine */

/* Back to the first row. Blocks may still be held. Dictionaries keep their codes. */
int csv_rewind(struct csv *c, struct err *err);

/* Texts of a CSV_DICT column seen in the blocks delivered so far: code i is (*out_texts)[i].
 * Borrowed until the next csv_next. */
long csv_dict(const struct csv *c, int column, const struct csv_text **out_texts);

/* Puts the sentence for an error of block `b` into `err` (ERR_INVALID) and returns -ERR_INVALID:
 *     taxi.csv: row 1,234 (line 1,235) has 17 fields, the header has 18
 *     taxi.csv: row 1,234 (line 1,235), column "fare": "abc" is not a number
 *     taxi.csv: row 1,234 (line 1,235), column "city": "M\xfcnchen" is not UTF-8: ... */
int csv_error_say(const struct csv *c, const struct csv_block *b, const struct csv_error *e,
                  struct err *err);

/* The number of row `slot` in its file, as error records count: from 1, ragged rows included. */
long csv_block_row(const struct csv_block *b, long slot);

/* The i-th ragged row of the block, from 0: the slot of the row after it; *out_row is its number. */
long csv_block_ragged(const struct csv_block *b, long i, long *out_row);

static inline int csv_bit(const uint64_t *bits, long row)
{
    return bits[row >> 6] >> (row & 63) & 1;
}

#endif
