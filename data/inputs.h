/* data/inputs.h - the rows of a file that wants answers: every one of them, in order
 *
 * Training may leave a wrong row out; whoever asks for predictions counts on one answer for each
 * row. Each row of a batch is either readable, and has a slot in the stretch that the engine reads,
 * or is not, and has the reason. Columns may be kept along as text, to know the rows by.
 *
 * Policies: INPUTS_STOP fails at the first row that cannot be read; INPUTS_SKIP hands it out with
 * its reason; INPUTS_FILL fills values in as training did, and a row that is none (a CSV line with
 * too few fields, a line that is not JSON) still comes with its reason. A row of an IDX file can
 * always be read.
 *
 * Threads: one caller.
 */
#ifndef MUSTER_DATA_INPUTS_H
#define MUSTER_DATA_INPUTS_H

#include "data/csv.h"
#include "data/dataset.h"

struct inputs_row {
    long slot;                  /* position in the stretch; -1: the row cannot be read */
    const char *why;            /* slot -1: the reason */
    const struct csv_text *kept;        /* (columns kept) p NULL: the row has none */
};

struct inputs_batch {
    struct stretch stretch;     /* n of it: readable rows; 0: none of these */
    const struct inputs_row *row;
    long n;                     /* 0: the file ended with the batch before */
};

struct inputs;

/* `description`, `path` and `format` as for dataset_open_like, without a target. `policy` NULL: the
 * one of the description; else "stop", "skip" or "fill". `keep`: names of columns, borrowed for the
 * call. ERR_MISSING: a CSV file has no such column. */
int inputs_open(const json_t *description, const char *path, const char *format, const char *policy,
                const char *const *keep, int n_keep, struct inputs **out, struct err *err);
void inputs_free(struct inputs *in);
OWN_DEFINE(inputs)

/* Whether a row may come with a reason in place of a slot. */
int inputs_may_fail(const struct inputs *in);

/* The next rows, valid until the next call. ERR_INVALID: a row cannot be read and the policy is to
 * stop. */
int inputs_next(struct inputs *in, struct inputs_batch *out, struct err *err);

#endif
