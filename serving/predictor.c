/* serving/predictor.c - a model directory to answers */
#include "serving/predictor.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "data/inputs.h"
#include "data/record.h"
#include "engine/kernels.h"
#include "engine/model.h"
#include "engine/test.h"
#include "serving/answers.h"

enum { JSON_MAX = 64 << 20 };

struct predictor {
    char dir[4096];
    json_t *doc;
    struct field field[FIELD_MAX];
    int n_fields;
    int classes;
    json_t *labels;             /* borrowed; NULL: no names */
    char (*number)[16];         /* (classes) names of classes without labels */
    struct graph *graph;
    struct plan *plan;
    struct record *row;         /* for predictor_features; NULL: not asked yet */
};

/* ------------------------------------------------------------------ opening */

static int read_document(struct predictor *p, struct err *err)
{
    char path[4096 + 32];
    OWN_MEM char *text = NULL;
    json_error_t why;
    size_t n;

    snprintf(path, sizeof path, "%s/model.json", p->dir);
    if (files_read(path, JSON_MAX, &text, &n, err) < 0)
        return err->code == ERR_MISSING ?
               err_set(err, ERR_MISSING, "%s: is not a model (it has no model.json)", p->dir) :
               -(int)err->code;
    p->doc = json_loadb(text, n, 0, &why);
    if (!json_is_object(p->doc))
        return err_set(err, ERR_INVALID, "%s:%d: %s", path, why.line, why.text);
    int numerics = (int)json_integer_value(json_object_get(p->doc, "numerics"));
    if (numerics != NUMERICS_VERSION)
        return err_set(err, ERR_CONFLICT, "%s: made by numerics version %d, this is %d (use the "
                       "version of muster that made it, or train again)", path, numerics,
                       NUMERICS_VERSION);
    if (!json_is_object(json_object_get(p->doc, "data")))
        return err_set(err, ERR_INVALID, "%s: has no description of its data", path);
    return 0;
}

/* Field shapes come with the description, so no row is needed to plan. */
static int make_plan(struct predictor *p, int batch, int threads, bool with_loss, struct err *err)
{
    const json_t *data = json_object_get(p->doc, "data");

    if (dataset_fields_of(data, with_loss, p->field, &p->n_fields, &p->classes, err) < 0 ||
        graph_build(json_object_get(p->doc, "model"), p->field, p->n_fields, p->classes, &p->graph,
                    err) < 0)
        return err_add(err, "%s/model.json", p->dir);
    int stored = (int)json_integer_value(json_object_get(p->doc, "batch"));
    struct plan_config config = {
        .batch = batch ? batch : stored, .threads = threads,
        .shards = batch ? 1 : (int)json_integer_value(json_object_get(p->doc, "shards")),
        .loss = with_loss ? json_object_get(p->doc, "loss") : NULL,
    };
    if (config.batch < 1)
        return err_set(err, ERR_INVALID, "%s/model.json: has no batch size", p->dir);
    return plan_new(p->graph, p->field, p->n_fields, &config, &p->plan, err);
}

int predictor_load(struct predictor *p, const char *weights, struct err *err)
{
    OWN(safetensors) s = NULL;

    if (safetensors_open(weights, &s, err) < 0)
        return -(int)err->code;
    return model_load(p->plan, s, weights, false, err);
}

static int load_weights(struct predictor *p, struct err *err)
{
    char path[4096 + 32];

    snprintf(path, sizeof path, "%s/weights.safetensors", p->dir);
    return predictor_load(p, path, err);
}

static int name_classes(struct predictor *p, struct err *err)
{
    p->labels = json_object_get(json_object_get(p->doc, "data"), "labels");
    p->number = calloc((size_t)p->classes + 1, sizeof *p->number);
    if (!p->number)
        return err_set(err, ERR_NOMEM, "no memory for %d classes", p->classes);
    for (int i = 0; i < p->classes; i++)
        snprintf(p->number[i], sizeof p->number[i], "%d", i);
    return 0;
}

int predictor_open(const char *dir, int batch, int threads, bool with_loss, struct predictor **out,
                   struct err *err)
{
    OWN(predictor) p = calloc(1, sizeof *p);

    if (!p)
        return err_set(err, ERR_NOMEM, "no memory for a predictor");
    snprintf(p->dir, sizeof p->dir, "%s", dir);
    if (read_document(p, err) < 0 || make_plan(p, batch, threads, with_loss, err) < 0 ||
        load_weights(p, err) < 0 || name_classes(p, err) < 0)
        return -(int)err->code;
    *out = TAKE(p);
    return 0;
}

void predictor_free(struct predictor *p)
{
    if (!p)
        return;
    plan_free(p->plan);
    graph_free(p->graph);
    record_free(p->row);
    free(p->number);
    json_decref(p->doc);
    free(p);
}

/* Of its data. */
static const json_t *description(const struct predictor *p)
{
    return json_object_get(p->doc, "data");
}

struct plan *predictor_plan(struct predictor *p) { return p->plan; }
int predictor_classes(const struct predictor *p) { return p->classes; }
int predictor_outputs(const struct predictor *p) { return p->plan->output->c; }

const char *predictor_label(const struct predictor *p, int class)
{
    const char *name = json_string_value(json_array_get(p->labels, (size_t)class));
    return name ? name : p->number[class];
}

/* ------------------------------------------------------------------ answers */

/* One output for two classes is a logit; several are logits, log-probabilities or, when the model
 * ends with softmax, probabilities already. Softmax of log-probabilities gives them back. */
int predictor_answer(const struct predictor *p, const float *output, float *probabilities)
{
    int n = p->plan->output->c, best = 0;

    if (p->classes == 0) {
        memcpy(probabilities, output, (size_t)n * sizeof *output);
        return 0;
    }
    if (n == 1) {
        probabilities[1] = (float)(1 / (1 + exp(-(double)output[0])));
        probabilities[0] = 1 - probabilities[1];
        return output[0] > 0;
    }
    for (int i = 1; i < n; i++)
        if (output[i] > output[best])
            best = i;
    if (p->graph->node[p->graph->output].op == OP_SOFTMAX) {
        memcpy(probabilities, output, (size_t)n * sizeof *output);
        return best;
    }
    kernels_of(p->plan->isa)->softmax(output, n, probabilities);
    return best;
}

/* A batch of rows on its way out: write_batch is told of its readable rows, in order, and writes
 * those before that are not. */
struct writing {
    struct predictor *p;
    struct answers *answers;
    const struct inputs_batch *batch;
    long at;                    /* rows of the batch that are written */
    struct predict_told *told;
    struct err *err;
    int rc;
};

static void write_unread(struct writing *w)
{
    while (w->rc == 0 && w->at < w->batch->n && w->batch->row[w->at].slot < 0) {
        const struct inputs_row *row = &w->batch->row[w->at++];
        if (w->told->unread++ == 0)
            snprintf(w->told->first, sizeof w->told->first, "%s", row->why);
        w->rc = answers_add(w->answers, NULL, row->why, row->kept, w->err);
    }
}

static int write_batch(void *arg, const struct step_result *r)
{
    struct writing *w = arg;

    for (int i = 0; i < r->n && w->rc == 0; i++) {
        write_unread(w);
        if (w->rc == 0)
            w->rc = answers_add(w->answers, plan_output(w->p->plan, i), NULL,
                                w->batch->row[w->at++].kept, w->err);
    }
    return w->rc != 0;
}

int predictor_file(struct predictor *p, const struct predict_ask *ask, FILE *to,
                   struct predict_told *out, struct err *err)
{
    OWN(inputs) in = NULL;
    OWN(answers) answers = NULL;
    struct inputs_batch batch = { .n = 1 };
    const char *as = ask->as ? ask->as : ask->format ? ask->format : answers_format(ask->path);

    *out = (struct predict_told){ 0 };
    if (inputs_open(description(p), ask->path, ask->format, ask->on_error, ask->keep, ask->n_keep,
                    &in, err) < 0 ||
        answers_new(p, as, ask->keep, ask->n_keep, inputs_may_fail(in), to, &answers, err) < 0)
        return -(int)err->code;
    struct writing w = { .p = p, .answers = answers, .batch = &batch, .told = out, .err = err };
    while (w.rc == 0 && batch.n > 0) {
        if (inputs_next(in, &batch, err) < 0)
            return -(int)err->code;
        w.at = 0;
        if (batch.stretch.n)
            plan_eval(p->plan, &batch.stretch, 0, batch.stretch.n, NULL, write_batch, &w);
        write_unread(&w);
        assert(w.rc < 0 || w.at == batch.n);
        out->rows += batch.n;
    }
    if (w.rc == 0 && out->rows == 0)
        return err_set(err, ERR_INVALID, "%s: no rows", ask->path);
    return w.rc < 0 ? w.rc : answers_end(answers, err);
}

int predictor_evaluate(struct predictor *p, const char *path, const char *format,
                       struct metrics **out, long *out_samples, long *out_left_out,
                       struct err *err)
{
    const json_t *names = json_object_get(p->doc, "metrics");
    const char *name[METRICS_MAX];
    int n = 0;
    struct dataset *data = NULL;
    OWN(metrics) m = NULL;

    for (size_t i = 0; i < json_array_size(names) && n < METRICS_MAX; i++)
        name[n++] = json_string_value(json_array_get(names, i));
    if (metrics_new(name, n, p->classes, p->plan->output->c, &m, err) < 0 ||
        dataset_open_like(description(p), path, format, 1, &data, err) < 0)
        return -(int)err->code;
    int rc = plan_test(p->plan, data, m, out_samples, err);
    *out_left_out = dataset_skipped(data);
    dataset_free(data);
    if (rc == 0)
        *out = TAKE(m);
    return rc;
}

/* ------------------------------------------------------------------ one row from memory */

static void run_row(struct predictor *p, float *out)
{
    static const uint32_t first = 0;
    const struct stretch s = { .field = p->field, .n_fields = p->n_fields, .order = &first, .n = 1,
                               .last = 1 };

    plan_eval(p->plan, &s, 0, 1, NULL, NULL, NULL);
    memcpy(out, plan_output(p->plan, 0), (size_t)p->plan->output->c * sizeof *out);
}

int predictor_image(struct predictor *p, const unsigned char *pixels, size_t n, float *out,
                    struct err *err)
{
    struct field *f = &p->field[0];

    if (f->type != DTYPE_U8 || n != (size_t)f->h * (size_t)f->w * (size_t)f->c)
        return err_set(err, ERR_INVALID, "%s: reads %s, got an image of %zu bytes", p->dir,
                       f->type == DTYPE_U8 ? "images of another size" : "features, not images", n);
    f->base = pixels;
    f->stride = 0;
    run_row(p, out);
    return 0;
}

int predictor_features(struct predictor *p, const double *features, int n, float *out,
                       struct err *err)
{
    if (!p->row && record_new(description(p), &p->row, err) < 0)
        return err_add(err, "%s", p->dir);
    if (record_fill(p->row, features, n, p->field, p->n_fields, err) < 0)
        return err_add(err, "%s", p->dir);
    run_row(p, out);
    return 0;
}
