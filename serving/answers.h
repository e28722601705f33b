/* serving/answers.h - predictions, written as CSV, JSON lines or TFRecord */
#ifndef MUSTER_SERVING_ANSWERS_H
#define MUSTER_SERVING_ANSWERS_H

#include <stdio.h>

#include "base/err.h"
#include "base/own.h"
#include "data/csv.h"

struct predictor;
struct answers;

/* By the ending of a file's name: "csv", "json" or "tfrecord". Images are answered in CSV. */
const char *answers_format(const char *path);

/* `keep` names columns whose texts come with each answer, borrowed for as long as `out` lives.
 * `may_fail`: CSV has a last column "error", as a row may have a reason in place of an answer.
 * ERR_INVALID: a column to keep has a name that answers have themselves. */
int answers_new(const struct predictor *p, const char *format, const char *const *keep, int n_keep,
                int may_fail, FILE *to, struct answers **out, struct err *err);
void answers_free(struct answers *a);
OWN_DEFINE(answers)

/* The outputs of one sample, or NULL and the reason why there are none: then the answer is empty
 * (CSV), null (JSON) or not there (TFRecord), and "error" has the reason. `kept`: a text for each
 * column to keep. */
int answers_add(struct answers *a, const float *output, const char *why,
                const struct csv_text *kept, struct err *err);
int answers_end(struct answers *a, struct err *err);

#endif
