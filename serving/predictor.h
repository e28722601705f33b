/* serving/predictor.h - a model directory to answers
 *
 * Opens what a run left behind (model.json, weights.safetensors) for inference. Rows come from a
 * file by the stored description, or one at a time from memory. Answers are the model's outputs as
 * a person wants them: a class with its probability (softmax, or a sigmoid for one output), or a
 * number.
 */
#ifndef MUSTER_SERVING_PREDICTOR_H
#define MUSTER_SERVING_PREDICTOR_H

#include <jansson.h>
#include <stdio.h>

#include "base/err.h"
#include "base/own.h"
#include "engine/metrics.h"
#include "engine/plan.h"

struct predictor;

/* `batch` 0: as in training. `with_loss`: for evaluate, whose rows have targets. */
int predictor_open(const char *dir, int batch, int threads, bool with_loss, struct predictor **out,
                   struct err *err);
/* The parameters of another file, such as a checkpoint's, in place of the model's own. */
int predictor_load(struct predictor *p, const char *weights, struct err *err);
void predictor_free(struct predictor *p);
OWN_DEFINE(predictor)

struct plan *predictor_plan(struct predictor *p);
int predictor_classes(const struct predictor *p);       /* 0: numbers */
int predictor_outputs(const struct predictor *p);       /* floats an answer */
const char *predictor_label(const struct predictor *p, int class);      /* never NULL */

/* The outputs of one sample as probabilities (classes) or as they are; returns the class, or 0. */
int predictor_answer(const struct predictor *p, const float *output, float *probabilities);

/* What is asked of predictor_file; zeros are fine but for `path`. */
struct predict_ask {
    const char *path, *format;  /* as for dataset_open_like */
    const char *as;             /* "csv", "json" or "tfrecord"; NULL: as it came in */
    const char *on_error;       /* "stop", "skip" or "fill"; NULL: as in training */
    const char *const *keep;    /* columns that come with each answer */
    int n_keep;
};

struct predict_told {
    long rows;                  /* answers written, one a row */
    long unread;                /* of them: rows that could not be read */
    char first[512];            /* the reason of the first such row */
};

/* An answer for every row, in order, to `to` (serving/answers.h). */
int predictor_file(struct predictor *p, const struct predict_ask *ask, FILE *to,
                   struct predict_told *out, struct err *err);

/* The metrics of model.json on the rows of `path`; `out_left_out` counts the rows that
 * data.on_error left out. */
int predictor_evaluate(struct predictor *p, const char *path, const char *format,
                       struct metrics **out, long *out_samples, long *out_left_out,
                       struct err *err);

/* One row from memory; `out` gets predictor_outputs floats. ERR_INVALID when `n` is not what the
 * model reads. Features are in the description's order, as they stand in a file; an image is its
 * bytes. The plan must have been opened for a batch of 1 or more. */
int predictor_features(struct predictor *p, const double *features, int n, float *out,
                       struct err *err);
int predictor_image(struct predictor *p, const unsigned char *pixels, size_t n, float *out,
                    struct err *err);

#endif
