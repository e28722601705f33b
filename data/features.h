/* data/features.h - rows to records
 *
 * A row becomes a record in two steps, so that the statistics may be learnt between them:
 *   1. features_read takes the columns to raw values, one double a feature: a number, or an id;
 *      then the target and the weight. It is here that a wrong row is found.
 *   2. features_write scales the numbers, settles the ids, makes the crosses and puts all of it in
 *      the record, whose layout is fixed by the schema: what fields there are and where.
 * Between them, features_learn is shown the raw values of each training row, in order, and
 * features_settle completes the schema. Resident and streaming reading do the same steps on the
 * same values in the same order, so they give the same bits.
 *
 * Threads: reading and writing a complete schema may be done by many; learning by one.
 */
#ifndef MUSTER_DATA_FEATURES_H
#define MUSTER_DATA_FEATURES_H

#include <stddef.h>

#include "base/err.h"
#include "base/own.h"
#include "data/dataset.h"
#include "data/rows.h"
#include "data/schema.h"

/* Where the fields of a record are. */
struct layout {
    struct field field[FIELD_MAX];      /* stride is `bytes`; base is not set */
    size_t offset[FIELD_MAX];
    int n;
    size_t bytes;
};

/* ERR_INVALID: more fields than FIELD_MAX. Call again after features_settle: ids may have grown. */
int features_layout(const struct schema *s, struct layout *out, struct err *err);

/* The fields of a row that is an image, with its label or without. */
void features_layout_image(const struct schema *s, int labelled, struct layout *out);

/* Doubles that features_read fills. */
int features_raw(const struct schema *s);

/* FEATURES_LEFT_OUT: the policy says to leave the row out. With `learning`, texts that are new to a
 * vocabulary that is learnt are added to it. */
enum { FEATURES_OK, FEATURES_LEFT_OUT };

/* Broken rows of a block: ERR_INVALID where the policy is to stop. */
int features_check(const struct schema *s, const struct rows *r, const struct rows_block *b,
                   struct err *err);
int features_read(struct schema *s, int learning, const struct rows *r, const struct rows_block *b,
                  long slot, double *raw, struct err *err);

struct learnt;
struct learnt *features_learn_new(const struct schema *s);      /* NULL: no memory */
void learnt_free(struct learnt *l);
OWN_DEFINE(learnt)
int features_learn(struct learnt *l, const struct schema *s, const double *raw, struct err *err);
int features_settle(struct schema *s, const struct learnt *l, struct err *err);

/* A class that no training row had: ERR_INVALID where the policy is to stop, else left out. The
 * place of the row is for the message: `path` and `row` from 1. */
int features_write(const struct schema *s, const struct layout *l, const double *raw,
                   const char *path, long row, void *record, struct err *err);

#endif
