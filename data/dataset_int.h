/* data/dataset_int.h - inside a dataset; for dataset*.c, inputs.c, resident*.c and
 * stream.c only
 *
 * A dataset reads one part (training or test) of one place (a list of files of one format). The
 * rows lie in a table that is shared between the parts which were read together, or pass through
 * the window of a stream.
 */
#ifndef MUSTER_DATA_DATASET_INT_H
#define MUSTER_DATA_DATASET_INT_H

#include "data/dataset.h"
#include "data/features.h"
#include "data/idx.h"
#include "data/parts.h"
#include "data/rows.h"
#include "data/schema.h"
#include "data/shuffle.h"

enum place_format { PLACE_IDX = ROWS_FORMATS };         /* beside enum rows_format */

struct place {
    int format;
    char **path;
    int n;
    long first, end;            /* `rows:`; end -1: to the last */
    long limit;                 /* rows at most; -1: no limit */
};

/* Memory of resident rows, and who else uses it. */
struct table {
    int refs;
    void *block;
    size_t bytes;
    struct idx *image;          /* instead: rows of an IDX file */
    struct part *part;          /* what they are read by; NULL: they are all there */
    int32_t *label;
    int labelled;               /* labels were read, not only zeros in their place */
};

struct stream;

struct dataset {
    struct schema *schema;
    struct layout layout;
    struct place place;
    struct split split;
    int part;                   /* SPLIT_TRAIN or SPLIT_TEST of `split` */
    uint64_t seed;
    int batch;
    long shuffle;               /* SHUFFLE_NONE, SHUFFLE_ALL or rows of a block */

    char digest[65];            /* of the files, once it was asked for; "": not yet */
    long rows;                  /* -1: not known yet */
    long skipped;

    struct table *table;        /* NULL: a stream */
    uint32_t *slot;             /* (rows) where row i lies in the table; NULL: at i */
    uint32_t *order;            /* (rows) of this epoch */
    int epoch;
    long at;                    /* the next position */

    const struct parts *parts;  /* files that are read by part; NULL: none */
    int shards, from, to;       /* of a batch: those whose rows are wanted */
    long window;                /* batches of the next stretch by part */

    uint32_t *given;            /* an order file's content */
    long n_given;
    char *given_path;

    struct dataset *test;       /* read together with this training part; NULL: not */
    struct stream *stream;
};

void table_free(struct table *t);       /* takes one reference back */
OWN_DEFINE(table)

/* Fills in the files, range and limit of {csv: FILE, rows: [a, b], limit: n}. */
int place_read(const json_t *source, const char *path, const char *dir, struct place *out,
               struct err *err);
void place_done(struct place *p);
int place_same(const struct place *a, const struct place *b);   /* the same files */

/* The columns of a schema, selected in an opened reader. */
int rows_for(const struct schema *s, const struct place *p, struct rows **out, struct err *err);

/* dataset_open_like up to where the rows are read: `out` has its place and its schema. */
int dataset_begin_like(const json_t *description, const char *path, const char *format,
                       int with_target, struct dataset **out, struct err *err);

/* Loads the rows of `d` and learns what its schema lacks. `test` shares the file (the same place)
 * or has its own; NULL: there is none to load along. */
int resident_load(struct dataset *d, struct dataset *test, struct err *err);
/* `with` (NULL: none) may have read the same files already. */
int resident_load_images(struct dataset *d, const struct dataset *with, struct err *err);

/* The next stretch of rows that are read by part; the epoch has `total` positions. */
int resident_stretch_part(struct dataset *d, long total, struct stretch *out, struct err *err);

/* Images that are lists of bytes in JSON lines or TFRecord: "image" and, with a target, "label". */
int resident_load_lists(struct dataset *d, int with_target, struct err *err);

/* Learns over the rows as they pass, and counts them. */
int stream_learn(struct dataset *d, const struct dataset *test, struct err *err);
int stream_open(struct dataset *d, struct err *err);
void stream_free(struct stream *s);
int stream_rewind(struct dataset *d, int epoch, long from, struct err *err);
int stream_stretch(struct dataset *d, struct stretch *out, struct err *err);

#endif
