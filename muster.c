/* muster.c - the C API: its calls write a spec, and the runtime does the rest */
#include "muster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/own.h"
#include "engine/model.h"
#include "engine/test.h"
#include "runtime/rundir.h"
#include "runtime/trainer.h"
#include "serving/predictor.h"
#include "spec/spec.h"

/* A save that is asked for while training waits until the last one is this old. */
static const double SAVE_SECONDS = 1;

static _Thread_local struct err last;

const char *muster_error(void)
{
    return last.text;
}

const char *muster_version(void)
{
    return MUSTER_VERSION;
}

static void *no_memory(void)
{
    err_set(&last, ERR_NOMEM, "no memory");
    return NULL;
}

/* A text as YAML takes it whatever is in it. */
static void put_quoted(struct buf *b, const char *text)
{
    OWN_JSON json_t *j = json_string(text);
    OWN_MEM char *quoted = j ? json_dumps(j, JSON_ENCODE_ANY) : NULL;

    if (quoted)
        buf_text(b, quoted);
    else
        buf_text(b, "\"\xef\xbf\xbd\"");
}

/* ------------------------------------------------------------------ readers */

struct muster_reader {
    struct buf source;          /* "csv: \"path\"" */
    struct buf keys;            /* lines of the data section */
    long first, end;
    int batch;
};

static struct muster_reader *reader_new(const char *format, const char *path, const char *second)
{
    struct muster_reader *r = calloc(1, sizeof *r);

    if (!r)
        return no_memory();
    r->end = -1;
    r->batch = 32;
    buf_printf(&r->source, "%s: [", format);
    put_quoted(&r->source, path);
    if (second) {
        buf_text(&r->source, ", ");
        put_quoted(&r->source, second);
    }
    buf_text(&r->source, "]");
    return r;
}

struct muster_reader *muster_read_csv(const char *path) { return reader_new("csv", path, NULL); }
struct muster_reader *muster_read_json(const char *path) { return reader_new("json", path, NULL); }
struct muster_reader *muster_read_tfrecord(const char *path)
{
    return reader_new("tfrecord", path, NULL);
}
struct muster_reader *muster_read_idx(const char *images, const char *labels)
{
    return reader_new("idx", images, labels);
}

void muster_reader_free(struct muster_reader *r)
{
    if (!r)
        return;
    buf_done(&r->source);
    buf_done(&r->keys);
    free(r);
}

int muster_reader_rows(struct muster_reader *r, long first, long end)
{
    r->first = first;
    r->end = end;
    return 0;
}

int muster_reader_batch(struct muster_reader *r, int size)
{
    r->batch = size;
    return 0;
}

int muster_reader_set(struct muster_reader *r, const char *key, const char *value)
{
    buf_printf(&r->keys, "  %s: %s\n", key, value);
    return buf_ok(&r->keys, &last);
}

int muster_reader_shuffle(struct muster_reader *r, long buffer)
{
    char text[32];

    snprintf(text, sizeof text, "%ld", buffer);
    return muster_reader_set(r, "shuffle", buffer < 0 ? "true" : buffer ? text : "false");
}

static void put_source(struct buf *b, const char *part, const struct muster_reader *r)
{
    buf_printf(b, "  %s: {%s", part, r->source.data);
    if (r->first || r->end >= 0) {
        buf_printf(b, ", rows: %ld..", r->first);
        if (r->end >= 0)
            buf_printf(b, "%ld", r->end);
    }
    buf_text(b, "}\n");
}

/* ------------------------------------------------------------------ nets */

struct muster_net {
    struct buf layers;
};

struct muster_net *muster_net_new(void)
{
    struct muster_net *n = calloc(1, sizeof *n);
    return n ? n : no_memory();
}

void muster_net_free(struct muster_net *n)
{
    if (!n)
        return;
    buf_done(&n->layers);
    free(n);
}

int muster_layer(struct muster_net *n, const char *kind, const char *value)
{
    if (value)
        buf_printf(&n->layers, "  - %s: %s\n", kind, value);
    else
        buf_printf(&n->layers, "  - %s\n", kind);
    return buf_ok(&n->layers, &last);
}

static int layer_of(struct muster_net *n, const char *kind, const char *fmt, int a, int b)
{
    char value[64];

    snprintf(value, sizeof value, fmt, a, b);
    return muster_layer(n, kind, value);
}

int muster_linear(struct muster_net *n, int outputs)
{
    return layer_of(n, "linear", "{out: %d}", outputs, 0);
}
int muster_conv2d(struct muster_net *n, int channels, int kernel)
{
    return layer_of(n, "conv2d", "{out: %d, kernel: %d}", channels, kernel);
}
int muster_maxpool(struct muster_net *n, int size)
{
    return layer_of(n, "maxpool", "{kernel: %d}", size, 0);
}
int muster_relu(struct muster_net *n) { return muster_layer(n, "relu", NULL); }
int muster_flatten(struct muster_net *n) { return muster_layer(n, "flatten", NULL); }

/* ------------------------------------------------------------------ trainers */

/* A save that waits: where to, and what. */
struct pending {
    char dir[4096];
    struct snapshot *copy;
    bool waits;
    double written;             /* time of the last one */
};

struct muster_trainer {
    struct buf model, loss, optimizer, keys;
    const struct muster_reader *reader; /* while training */
    struct job_spec *spec;
    struct trainer *trainer;
    struct metrics *metrics;            /* for muster_test */
    struct job_spec *test_spec;         /* of the reader that was tested last */
    const struct muster_reader *test_reader;
    struct dataset *test_data;
    struct pending pending;
    muster_handler handler;
    void *arg;
};

struct muster_trainer *muster_trainer_new(const struct muster_net *n, const char *loss,
                                          const char *optimizer)
{
    struct muster_trainer *t = calloc(1, sizeof *t);

    if (!t)
        return no_memory();
    buf_append(&t->model, n->layers.data ? n->layers.data : "", n->layers.n);
    buf_text(&t->loss, loss);
    buf_text(&t->optimizer, optimizer);
    return t;
}

static void close_test(struct muster_trainer *t)
{
    dataset_free(t->test_data);
    spec_free(t->test_spec);
    t->test_data = NULL;
    t->test_spec = NULL;
    t->test_reader = NULL;
}

void muster_trainer_free(struct muster_trainer *t)
{
    if (!t)
        return;
    close_test(t);
    metrics_free(t->metrics);
    snapshot_free(t->pending.copy);
    trainer_free(t->trainer);
    spec_free(t->spec);
    buf_done(&t->model);
    buf_done(&t->loss);
    buf_done(&t->optimizer);
    buf_done(&t->keys);
    free(t);
}

int muster_trainer_set(struct muster_trainer *t, const char *key, const char *value)
{
    buf_printf(&t->keys, "%s: %s\n", key, value);
    return buf_ok(&t->keys, &last);
}

/* `scale_over: all` means every row of the file, while a reader may be told to read a part: the rest
 * of it is made the test set, which lends its rows to the statistics. */
static bool rest_of(const struct muster_reader *r, struct muster_reader *out)
{
    if (!r->keys.data || !strstr(r->keys.data, "  scale_over: all\n") ||
        (r->first > 0) == (r->end >= 0))
        return false;
    *out = *r;
    out->first = r->first > 0 ? 0 : r->end;
    out->end = r->first > 0 ? r->first : -1;
    return true;
}

/* The spec that the calls have said so far. */
static int make_spec(const struct muster_trainer *t, const struct muster_reader *train,
                     const struct muster_reader *test, int epochs, struct job_spec **out)
{
    OWN_BUF b = BUF_INIT;

    buf_text(&b, "name: program\ndata:\n");
    put_source(&b, "train", train);
    if (test)
        put_source(&b, "test", test);
    buf_append(&b, train->keys.data ? train->keys.data : "", train->keys.n);
    buf_printf(&b, "model:\n%sloss: %s\noptimizer: {%s}\n", t->model.data, t->loss.data,
               t->optimizer.data);
    buf_printf(&b, "batch: %d\nepochs: %d\ntest: {every: never}\ncheckpoint: {every: never}\n",
               train->batch, epochs);
    buf_append(&b, t->keys.data ? t->keys.data : "", t->keys.n);
    if (buf_ok(&b, &last) < 0)
        return -(int)last.code;
    return spec_parse(b.data, b.n, "program", NULL, 0, out, &last);
}

static int write_pending(struct muster_trainer *t, struct err *err)
{
    struct pending *p = &t->pending;

    if (!p->waits)
        return 0;
    p->waits = false;
    p->written = clock_seconds();
    return rundir_save_copy(p->dir, t->trainer, p->copy, err);
}

int muster_save(struct muster_trainer *t, const char *dir)
{
    struct pending *p = &t->pending;

    if (!t->trainer)
        return err_set(&last, ERR_CONFLICT, "there is nothing to save before muster_train");
    if (!p->copy && !(p->copy = snapshot_new(trainer_plan(t->trainer))))
        return err_set(&last, ERR_NOMEM, "no memory for a copy of the model");
    if (p->waits && strcmp(p->dir, dir) != 0 && write_pending(t, &last) < 0)
        return -(int)last.code;
    snprintf(p->dir, sizeof p->dir, "%s", dir);
    snapshot_take(p->copy, trainer_plan(t->trainer));
    p->waits = true;
    if (t->handler && clock_seconds() - p->written < SAVE_SECONDS)
        return 0;
    return write_pending(t, &last);
}

static int open_test(struct muster_trainer *t, const struct muster_reader *r)
{
    if (t->test_reader == r)
        return 0;
    close_test(t);
    if (make_spec(t, t->reader, r, 1, &t->test_spec) < 0)
        return -(int)last.code;
    if (dataset_open(t->test_spec->data, t->test_spec->dir, DATASET_TEST, trainer_data(t->trainer),
                     t->test_spec->seed, t->test_spec->batch, &t->test_data, &last) < 0)
        return spec_locate(t->test_spec, &last);
    t->test_reader = r;
    if (t->metrics)
        return 0;
    return metrics_new(NULL, 0, dataset_classes(trainer_data(t->trainer)),
                       trainer_plan(t->trainer)->output->c, &t->metrics, &last);
}

int muster_test(struct muster_trainer *t, const struct muster_reader *r, double *out_loss)
{
    long samples;

    if (!t->trainer)
        return err_set(&last, ERR_CONFLICT, "there is nothing to test before muster_train");
    if (open_test(t, r) < 0 ||
        plan_test(trainer_plan(t->trainer), t->test_data, t->metrics, &samples, &last) < 0)
        return -(int)last.code;
    *out_loss = metrics_value(t->metrics, 0);
    return 0;
}

void muster_stop(struct muster_trainer *t)
{
    if (t->trainer)
        trainer_stop(t->trainer);
}

static int on_event(void *arg, struct trainer *trainer, const struct train_event *e)
{
    struct muster_trainer *t = arg;
    struct muster_event event = { .epoch = e->epoch, .step = e->epoch_steps - 1, .steps = e->step };

    (void)trainer;
    if (e->kind == EVENT_STEPS) {
        event.kind = MUSTER_END_STEP;
        event.loss = e->results[e->n_results - 1].reported;
        event.batch_loss = e->results[e->n_results - 1].loss;
    } else if (e->kind == EVENT_EPOCH) {
        event.kind = MUSTER_END_EPOCH;
    } else {
        return 0;
    }
    t->handler(t, &event, t->arg);
    return 0;
}

int muster_train(struct muster_trainer *t, const struct muster_reader *r, int epochs,
                 muster_handler handler, void *arg)
{
    struct fit_result fit;

    close_test(t);
    trainer_free(TAKE(t->trainer));
    spec_free(TAKE(t->spec));
    struct muster_reader rest;
    t->reader = r;
    t->handler = handler;
    t->arg = arg;
    if (make_spec(t, r, rest_of(r, &rest) ? &rest : NULL, epochs, &t->spec) < 0 ||
        trainer_new(t->spec, 0, &t->trainer, &last) < 0)
        return -(int)last.code;
    if (handler)
        trainer_every_step(t->trainer);
    t->pending.written = clock_seconds();
    int rc = trainer_fit(t->trainer, handler ? on_event : NULL, t, &fit, &last);
    t->handler = NULL;
    /* A run that diverged still keeps what was saved before. */
    struct err err = { 0 };
    if (write_pending(t, &err) < 0 && rc == 0) {
        last = err;
        rc = -(int)err.code;
    }
    return rc;
}

/* ------------------------------------------------------------------ models */

struct muster_model {
    struct predictor *p;
    float *output;
};

struct muster_model *muster_load(const char *dir)
{
    struct muster_model *m = calloc(1, sizeof *m);

    if (!m)
        return no_memory();
    if (predictor_open(dir, 1, 1, false, &m->p, &last) < 0) {
        free(m);
        return NULL;
    }
    m->output = calloc((size_t)predictor_outputs(m->p) + 1, sizeof *m->output);
    if (!m->output) {
        muster_model_free(m);
        return no_memory();
    }
    return m;
}

void muster_model_free(struct muster_model *m)
{
    if (!m)
        return;
    predictor_free(m->p);
    free(m->output);
    free(m);
}

/* A single logit for two classes becomes two probabilities. */
int muster_model_outputs(const struct muster_model *m)
{
    int classes = predictor_classes(m->p);
    return classes ? classes : predictor_outputs(m->p);
}

int muster_model_classes(const struct muster_model *m)
{
    return predictor_classes(m->p);
}

const char *muster_model_label(const struct muster_model *m, int class_number)
{
    if (class_number < 0 || class_number >= predictor_classes(m->p))
        return NULL;
    return predictor_label(m->p, class_number);
}

int muster_infer(struct muster_model *m, const double *features, int n, float *out)
{
    if (predictor_features(m->p, features, n, m->output, &last) < 0)
        return -(int)last.code;
    predictor_answer(m->p, m->output, out);
    return 0;
}

int muster_infer_image(struct muster_model *m, const unsigned char *pixels, size_t n, float *out)
{
    if (predictor_image(m->p, pixels, n, m->output, &last) < 0)
        return -(int)last.code;
    predictor_answer(m->p, m->output, out);
    return 0;
}
