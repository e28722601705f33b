/* serving/answers.h - predictions, written as CSV, JSON lines or TFRecord */
#ifndef MUSTER_SERVING_ANSWERS_H
#define MUSTER_SERVING_ANSWERS_H

#include <stdio.h>

#include "base/err.h"
#include "base/own.h"

struct predictor;
struct answers;

/* By the ending of a file's name: "csv", "json" or "tfrecord". Images are answered in CSV. */
const char *answers_format(const char *path);

int answers_new(const struct predictor *p, const char *format, FILE *to, struct answers **out,
                struct err *err);
void answers_free(struct answers *a);
OWN_DEFINE(answers)

/* The outputs of one sample. */
int answers_add(struct answers *a, const float *output, struct err *err);
int answers_end(struct answers *a, struct err *err);

#endif
