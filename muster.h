/* muster.h - train and use a model from C
 *
 * The words are those of a spec (docs/spec.md): a reader is its data section, a net its model, and
 * any key that has no function of its own is set by name, its value written as in YAML. A model
 * trained here has the same bits as one that `muster train` makes from the same words.
 *
 *     struct muster_reader *reader = muster_read_csv("houses.csv");
 *     muster_reader_set(reader, "target", "price");
 *     muster_reader_batch(reader, 20);
 *     struct muster_net *net = muster_net_new();
 *     muster_linear(net, 1);
 *     struct muster_trainer *trainer = muster_trainer_new(net, "squared_error", "sgd: {lr: 0.001}");
 *     if (muster_train(trainer, reader, 100, NULL, NULL) < 0)
 *         fprintf(stderr, "%s\n", muster_error());
 *
 * Failure: a function that returns int gives 0, or a negative number; one that returns a pointer
 * gives NULL. muster_error then has a sentence. Setters may be called without a check: what was
 * wrong in them is said by muster_train.
 *
 * Ownership: what _new, _read_ and _load return is yours, until the _free of its kind (which takes NULL).
 * Texts are copied. Readers and nets may be freed once the trainer is done with them.
 *
 * Threads: an object belongs to one thread at a time; muster_stop may be called from any.
 */
#ifndef MUSTER_H
#define MUSTER_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MUSTER_API __attribute__((visibility("default")))

/* The last failure in this thread; never NULL, valid until the next. */
MUSTER_API const char *muster_error(void);
MUSTER_API const char *muster_version(void);

/* --- readers: rows of a file --- */

struct muster_reader;

MUSTER_API struct muster_reader *muster_read_csv(const char *path);
MUSTER_API struct muster_reader *muster_read_json(const char *path);     /* an object a line */
MUSTER_API struct muster_reader *muster_read_tfrecord(const char *path); /* tf.example */
MUSTER_API struct muster_reader *muster_read_idx(const char *images, const char *labels);
MUSTER_API void muster_reader_free(struct muster_reader *r);

/* Rows first..end-1 only; end -1: to the last. */
MUSTER_API int muster_reader_rows(struct muster_reader *r, long first, long end);
/* The order of an epoch: permutes each block of `buffer` rows; 0: as they come, -1: all rows. */
MUSTER_API int muster_reader_shuffle(struct muster_reader *r, long buffer);
MUSTER_API int muster_reader_batch(struct muster_reader *r, int size);
/* Any key of a spec's data section: "target", "features", "scale", "labels", "skip", ... */
MUSTER_API int muster_reader_set(struct muster_reader *r, const char *key, const char *value);

/* --- nets: layers, one after another --- */

struct muster_net;

MUSTER_API struct muster_net *muster_net_new(void);
MUSTER_API void muster_net_free(struct muster_net *n);
MUSTER_API int muster_linear(struct muster_net *n, int outputs);
MUSTER_API int muster_conv2d(struct muster_net *n, int channels, int kernel);
MUSTER_API int muster_maxpool(struct muster_net *n, int size);
MUSTER_API int muster_relu(struct muster_net *n);
MUSTER_API int muster_flatten(struct muster_net *n);
/* Any layer of a spec: muster_layer(n, "dropout", "0.5"), ("batchnorm", NULL). */
MUSTER_API int muster_layer(struct muster_net *n, const char *kind, const char *value);

/* --- training --- */

struct muster_trainer;

enum muster_event_kind { MUSTER_END_STEP, MUSTER_END_EPOCH };

struct muster_event {
    enum muster_event_kind kind;
    int epoch;                  /* 0, 1, ... */
    long step;                  /* within the epoch: 0, 1, ... */
    long steps;                 /* done since the start */
    double loss;                /* mean over the samples since the last multiple of 100 steps, as in
                                 * metrics.jsonl of muster train (docs/spec.md, "loss") */
    double batch_loss;          /* of this step's batch alone */
};

/* Called after each step and epoch; may test, save and stop. */
typedef void (*muster_handler)(struct muster_trainer *t, const struct muster_event *event,
                               void *arg);

/* `loss` and `optimizer` as in a spec: "cross_entropy", "adam: {lr: 0.001}". */
MUSTER_API struct muster_trainer *muster_trainer_new(const struct muster_net *n, const char *loss,
                                                     const char *optimizer);
MUSTER_API void muster_trainer_free(struct muster_trainer *t);
/* Any other key of a spec: "seed", "clip", "schedule", "shards", "threads", "init", ... */
MUSTER_API int muster_trainer_set(struct muster_trainer *t, const char *key, const char *value);

/* Trains to the end of `epochs`, or until muster_stop. What muster_save was asked for last is on
 * disk when this returns 0. */
MUSTER_API int muster_train(struct muster_trainer *t, const struct muster_reader *r, int epochs,
                            muster_handler handler, void *arg);
/* The mean loss over the rows of another reader, whose features are scaled as in training. */
MUSTER_API int muster_test(struct muster_trainer *t, const struct muster_reader *r,
                           double *out_loss);
MUSTER_API void muster_stop(struct muster_trainer *t);
/* The model as it is now, to a directory that muster_load, `muster predict` and `muster export`
 * take. From a handler it may be called at each step: saves coalesce, at most one a second is written
 * while training goes on, and the latest is durable when muster_train returns. */
MUSTER_API int muster_save(struct muster_trainer *t, const char *dir);

/* --- using a model --- */

struct muster_model;

MUSTER_API struct muster_model *muster_load(const char *dir);
MUSTER_API void muster_model_free(struct muster_model *m);
MUSTER_API int muster_model_outputs(const struct muster_model *m);
MUSTER_API int muster_model_classes(const struct muster_model *m);      /* 0: it gives numbers */
/* The name of a class; its number as text when it has none. NULL: no such class. */
MUSTER_API const char *muster_model_label(const struct muster_model *m, int class_number);

/* One row: the features in the spec's order, as they stand in a file (numbers, and ids for
 * categories); `n` says how many. `out` gets muster_model_outputs floats: a value, or one
 * probability a class. */
MUSTER_API int muster_infer(struct muster_model *m, const double *features, int n, float *out);
/* One image: height x width x channels bytes, as in an IDX file; `n` is their product. */
MUSTER_API int muster_infer_image(struct muster_model *m, const unsigned char *pixels, size_t n,
                                  float *out);

#ifdef __cplusplus
}
#endif

#endif
