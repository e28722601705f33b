/* data/schema.h - what the columns of a row mean
 *
 * The data section of a spec, or the description that a model keeps, as structs: which columns are
 * read, which are derived from them, what each feature makes of its column, what the target and the
 * weight are, and what happens to a row that is wrong. Both are the same vocabulary; a description
 * has the statistics and the vocabularies filled in, so that nothing is left to learn.
 *
 * A column is referred to by its number: 0.. is column[i], read from the file; SCHEMA_DERIVED + i
 * is derived[i]. Only what a feature, the target or the weight needs is in either.
 *
 * Errors begin with the path of the wrong value ("data.features.fare"), for the spec to locate.
 *
 * Threads: shared read-only between datasets once it is complete, by reference count.
 */
#ifndef MUSTER_DATA_SCHEMA_H
#define MUSTER_DATA_SCHEMA_H

#include <jansson.h>

#include "base/err.h"
#include "base/own.h"
#include "data/csv.h"
#include "data/expr.h"
#include "data/vocab.h"

enum feature_kind {
    FEATURE_NUMERIC, FEATURE_VOCABULARY, FEATURE_IDENTITY, FEATURE_HASH, FEATURE_BUCKETIZE,
    FEATURE_CROSS,
};
enum scale_kind { SCALE_STANDARD, SCALE_RANGE, SCALE_NONE };
enum task_kind { TASK_UNKNOWN, TASK_CLASSIFICATION, TASK_REGRESSION };
enum on_error { ON_ERROR_STOP, ON_ERROR_SKIP, ON_ERROR_FILL };

enum {
    CROSS_PARTS_MAX = 8,
    SCHEMA_NAME_MAX = 63,
    SCHEMA_IDS_MAX = 1 << 26,   /* ids of one feature */
    SCHEMA_DERIVED = 1 << 24,
    DERIVED_MAX = 64,
};

struct feature {
    char name[SCHEMA_NAME_MAX + 1];
    enum feature_kind kind;
    int column;                 /* -1: a cross */

    enum scale_kind scale;      /* numeric */
    int log;                    /* log(1 + x) before anything else */
    int known;                  /* mean and variance (and the range) need no pass over the rows */
    double mean, variance, min, max;

    int ids;                    /* the last id is for what is missing or not known */
    struct vocab *vocab;        /* vocabulary: final ids when known */
    int *remap;                 /* vocabulary: auto: id in vocab to final id; NULL: the same */
    double *bound;              /* bucketize: (n_bounds) ascending; id = bounds <= x */
    int n_bounds;
    long buckets;               /* hash, cross */
    int part[CROSS_PARTS_MAX];  /* cross: features */
    int n_parts;
};

struct column {
    char *name;
    int as;                     /* ROWS_NUMBER | ROWS_TEXT */
};

struct derived {
    char *name;
    struct expr *expr;
    int *arg;                   /* (expr_n_columns) columns, derived ones only from before it */
    char *text;
};

struct schema {
    int refs;
    int image; /* rows are images and labels: only labels, classes and scale count */
    int h, w, c;
    float mean[4], std[4];
    int n_scale;                /* channels given in scale; 0: none */

    struct column *column;
    int n_columns;
    struct derived derived[DERIVED_MAX];
    int n_derived;
    struct feature *feature;
    int n_features;
    int n_numeric;
    int all_numeric;            /* `features` was absent: schema_use_all completes it */
    json_t *derivations;        /* all of `derived`, also what nothing reads */

    enum task_kind task;
    int target, weight;         /* columns; -1: none */
    char *target_name, *weight_name;
    struct vocab *labels;       /* NULL: classes have no names */
    int *label_remap;           /* labels that were learnt: id in labels to class */
    int learn_labels;           /* none are given: they are the training rows' own */
    int labels_are_numbers;     /* those that were learnt: classes then have no names */
    int classes;                /* 0: a regression, or not known yet */
    int scale_over_all;

    enum on_error on_error;
    char delimiter;
    int no_header;
    long skip;
    char **names;               /* header: [names] */
    int n_names;
    char **missing;
    int n_missing;
};

/* `path` is what messages begin with: "data". With `image` only the image keys are read. */
int schema_parse(const json_t *data, const char *path, int image, struct schema **out,
                 struct err *err);
struct schema *schema_ref(struct schema *s);
void schema_free(struct schema *s);     /* takes one reference back */
OWN_DEFINE(schema)

/* Makes every column of the file but the target, the weight and what those are derived from a
 * numeric feature. */
int schema_use_all(struct schema *s, const char *const *names, int n, struct err *err);

/* True when rows can be written without a pass over the training rows first. */
int schema_complete(const struct schema *s);

/* The path of what reads a column of the file: "data.target", "data.features.fare". */
void schema_who_reads(const struct schema *s, int column, char *out, size_t n);

/* How the CSV files are written; borrows from the schema. */
struct csv_options schema_csv(const struct schema *s);

json_t *schema_describe(const struct schema *s);        /* caller frees; NULL: no memory */

#endif
