/* data/record.h - one row from memory, by a model's description */
#ifndef MUSTER_DATA_RECORD_H
#define MUSTER_DATA_RECORD_H

#include <jansson.h>

#include "base/err.h"
#include "base/own.h"
#include "data/dataset.h"

struct record;

/* `description` as dataset_describe gave it, of a table (not of images). */
int record_new(const json_t *description, struct record **out, struct err *err);
void record_free(struct record *r);
OWN_DEFINE(record)

/* Scales the numbers, settles the ids and points field[].base at the result; it is good until the
 * next call. `n` must be the number of features that are read. */
int record_fill(struct record *r, const double *features, int n, struct field *field, int n_fields,
                struct err *err);

#endif
