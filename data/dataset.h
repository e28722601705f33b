/* data/dataset.h - rows by number, in typed fields
 *
 * A dataset is a table of rows. Its columns are gathered into fields that the engine can use as
 * they are: an image (U8), a matrix of numbers (F32, already normalised), one field of ids (I32)
 * for each categorical feature, the target, the weight. The engine reads sample p of a stretch at
 * base + order[p] * stride; it does not know whether the rows are resident or a window that a
 * reader thread refills.
 *
 * Sample order depends on (seed, epoch) alone: the whole epoch is permuted, or each block of
 * `shuffle` rows, or nothing. A stretch is a run of positions that are all readable at once: the
 * whole epoch when resident, whole batches of the next blocks when streaming. Row errors follow
 * the spec's policy; `skipped` counts the rows left out.
 *
 * Threads: one caller. A streaming dataset runs a reader thread of its own.
 */
#ifndef MUSTER_DATA_DATASET_H
#define MUSTER_DATA_DATASET_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum dtype { DTYPE_F32, DTYPE_U8, DTYPE_I32 };

enum { FIELD_MAX = 64 };

/* One field of every row. `c` counts elements of a flat field; an image has h, w > 1. */
struct field {
    char name[64];
    enum dtype type;
    int h, w, c;                /* (H, W, C) of a sample, channels last */
    int ids;                    /* I32: valid ids are 0..ids-1; 0 when the field holds no ids */
    float mean[4], std[4];      /* U8: value = (byte / 255 - mean[channel]) / std[channel] */
    const void *base;           /* of slot 0 */
    size_t stride;              /* bytes from a slot to the next */
};

/* A run of positions, all readable until the next call of dataset_stretch or _rewind. */
struct stretch {
    const struct field *field;
    int n_fields;
    const uint32_t *order;      /* (n) slot of each position */
    long n;
    int last;                   /* the epoch ends with it */
};

struct dataset;
struct blocks;                  /* data/blocks.h */
struct parts;                   /* data/parts.h */

/* What part of the spec's data section to open. */
enum dataset_part { DATASET_TRAIN, DATASET_TEST };

/* `data` is the normalised data section, `dir` what relative paths start from. For DATASET_TEST
 * `train` is the opened training set, whose statistics and vocabularies it shares; for
 * DATASET_TRAIN it is NULL. `batch` tells a streaming set how long whole batches are. */
int dataset_open(const json_t *data, const char *dir, enum dataset_part part,
                 const struct dataset *train, uint64_t seed, int batch, struct dataset **out,
                 struct err *err);

/* The same for one of several workers: a file that is among `parts` (NULL: none are) is not read,
 * but its rows are brought to memory before the stretch that has them is handed out. The parts must
 * outlive the data set. */
int dataset_open_parts(const json_t *data, const char *dir, enum dataset_part part,
                       const struct dataset *train, uint64_t seed, int batch,
                       const struct parts *parts, struct dataset **out, struct err *err);
/* From the next rewind on only shards from..to of each batch are looked at: of n samples, shard i
 * begins with sample n * i / shards. Other rows need not be there. At the start: all are. */
void dataset_share(struct dataset *d, int shards, int from, int to);
/* What others need to read the rows by part; *out is NULL where they cannot: the rows have no place
 * that is known beforehand. Of a set that was opened whole. */
int dataset_blocks(const struct dataset *d, struct blocks **out, struct err *err);
/* Gives the memory of resident rows back, for one who only wants to know about them from then on:
 * no stretch can be had any more, also not of a set that shares them. */
void dataset_drop_rows(struct dataset *d);

/* For predict and evaluate: rows of `path` by the stored description (see dataset_describe), with
 * or without a target column. `format` is "csv", "json", "tfrecord", "idx" or NULL: by name. */
int dataset_open_like(const json_t *description, const char *path, const char *format,
                      int with_target, struct dataset **out, struct err *err);
void dataset_free(struct dataset *d);

/* Fields in a fixed order: inputs first ("image", or "numeric" and one a categorical feature),
 * then "target", then "weight" where there is one. Valid before the first stretch; base then is
 * only meaningful in a stretch. */
const struct field *dataset_fields(const struct dataset *d, int *out_n);

/* Rows in an epoch; -1 while a stream has not been read to its end once. */
long dataset_rows(const struct dataset *d);
long dataset_skipped(const struct dataset *d);
int dataset_classes(const struct dataset *d);           /* 0: a regression */
const char *dataset_label(const struct dataset *d, int class);     /* NULL: no names */

/* Starts an epoch. `order_file` (NULL: none) replaces the shuffle by rows from a file of uint32.
 * The first stretch begins with position `from`: a resumed run continues inside an epoch. */
int dataset_rewind(struct dataset *d, int epoch, long from, struct err *err);
int dataset_set_order(struct dataset *d, const char *order_file, struct err *err);

/* The next stretch; n is a multiple of `batch` unless it is the last of the epoch. n == 0: end. */
int dataset_stretch(struct dataset *d, struct stretch *out, struct err *err);

/* All that a model needs to read rows again: columns, statistics, vocabularies, labels, scale. */
json_t *dataset_describe(const struct dataset *d);      /* caller frees */

/* The fields that a data set by this description has, without opening one; `field` has room for
 * FIELD_MAX. */
int dataset_fields_of(const json_t *description, int with_target, struct field *field, int *out_n,
                      int *out_classes, struct err *err);

/* A digest of the rows as read (identity of a run): SHA-256 over the input files' bytes. They are read
 * when it is first asked for, so ask before a long run: files may go meanwhile. */
int dataset_digest(struct dataset *d, char out_hex[65], struct err *err);

#endif
