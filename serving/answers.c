/* serving/answers.c - predictions, written as CSV, JSON lines or TFRecord
 *
 * Classes:  label, its probability, then the probability of each class by name.
 * Numbers:  value (or value_0, value_1, ...).
 */
#include "serving/answers.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "data/example_write.h"
#include "serving/predictor.h"

struct answers {
    const struct predictor *p;
    FILE *to;
    void (*write)(struct answers *a, int class, const float *p);
    float *probabilities;
    int n;                      /* probabilities or values */
    long rows;
    struct example_writer example;      /* TFRecord alone */
    bool failed;                /* no memory for a record */
};

/* ------------------------------------------------------------------ CSV */

static void put_csv_text(FILE *to, const char *prefix, const char *text)
{
    if (!strpbrk(text, ",\"\r\n")) {
        fprintf(to, "%s%s", prefix, text);
        return;
    }
    fprintf(to, "\"%s", prefix);
    for (; *text; text++) {
        if (*text == '"')
            fputc('"', to);
        fputc(*text, to);
    }
    fputc('"', to);
}

static void csv_header(struct answers *a)
{
    if (predictor_classes(a->p)) {
        fputs("label,probability", a->to);
        for (int i = 0; i < a->n; i++) {
            fputc(',', a->to);
            put_csv_text(a->to, "p_", predictor_label(a->p, i));
        }
    } else if (a->n == 1) {
        fputs("value", a->to);
    } else {
        for (int i = 0; i < a->n; i++)
            fprintf(a->to, "%svalue_%d", i ? "," : "", i);
    }
    fputc('\n', a->to);
}

static void write_csv(struct answers *a, int class, const float *p)
{
    if (a->rows == 0)
        csv_header(a);
    if (predictor_classes(a->p)) {
        put_csv_text(a->to, "", predictor_label(a->p, class));
        fprintf(a->to, ",%.9g", (double)p[class]);
    }
    for (int i = 0; i < a->n; i++)
        fprintf(a->to, "%s%.9g", i || predictor_classes(a->p) ? "," : "", (double)p[i]);
    fputc('\n', a->to);
}

/* ------------------------------------------------------------------ JSON lines */

static void write_json(struct answers *a, int class, const float *p)
{
    OWN_JSON json_t *line = json_object();

    if (predictor_classes(a->p)) {
        json_t *all = json_object();
        for (int i = 0; i < a->n; i++)
            json_object_set_new(all, predictor_label(a->p, i), json_real(p[i]));
        json_object_set_new(line, "label", json_string(predictor_label(a->p, class)));
        json_object_set_new(line, "probability", json_real(p[class]));
        json_object_set_new(line, "probabilities", all);
    } else if (a->n == 1) {
        json_object_set_new(line, "value", json_real(p[0]));
    } else {
        json_t *values = json_array();
        for (int i = 0; i < a->n; i++)
            json_array_append_new(values, json_real(p[i]));
        json_object_set_new(line, "values", values);
    }
    json_dumpf(line, a->to, JSON_COMPACT | JSON_REAL_PRECISION(9));
    fputc('\n', a->to);
}

/* ------------------------------------------------------------------ TFRecord of tf.example */

static void write_tfrecord(struct answers *a, int class, const float *p)
{
    struct example_writer *w = &a->example;
    OWN_BUF record = BUF_INIT;
    struct err err;

    example_begin(w);
    if (predictor_classes(a->p)) {
        const char *label = predictor_label(a->p, class);
        example_add_text(w, "label", label, strlen(label));
        example_add_floats(w, "probability", &p[class], 1);
        example_add_floats(w, "probabilities", p, (size_t)a->n);
    } else {
        example_add_floats(w, "value", p, (size_t)a->n);
    }
    if (example_end(w, &record, &err) < 0)
        a->failed = true;
    else
        fwrite(record.data, 1, record.n, a->to);
}

/* ------------------------------------------------------------------ any of them */

static const struct {
    const char *name;
    void (*write)(struct answers *a, int class, const float *p);
} formats[] = {
    { "csv", write_csv },
    { "json", write_json },
    { "tfrecord", write_tfrecord },
    { "idx", write_csv },
};

const char *answers_format(const char *path)
{
    if (strstr(path, ".tfrecord") || strstr(path, ".tfrec"))
        return "tfrecord";
    return strstr(path, ".json") ? "json" : "csv";
}

int answers_new(const struct predictor *p, const char *format, FILE *to, struct answers **out,
                struct err *err)
{
    OWN(answers) a = calloc(1, sizeof *a);

    if (!a)
        return err_set(err, ERR_NOMEM, "no memory for answers");
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (strcmp(formats[i].name, format) == 0)
            a->write = formats[i].write;
    if (!a->write)
        return err_set(err, ERR_INVALID, "format \"%s\" is not known (csv, json or tfrecord)",
                       format);
    a->p = p;
    a->to = to;
    example_writer_init(&a->example);
    a->n = predictor_classes(p) ? predictor_classes(p) : predictor_outputs(p);
    a->probabilities = calloc((size_t)a->n + 2, sizeof *a->probabilities);
    if (!a->probabilities)
        return err_set(err, ERR_NOMEM, "no memory for %d classes", a->n);
    *out = TAKE(a);
    return 0;
}

void answers_free(struct answers *a)
{
    if (!a)
        return;
    example_writer_done(&a->example);
    free(a->probabilities);
    free(a);
}

int answers_add(struct answers *a, const float *output, struct err *err)
{
    int class = predictor_answer(a->p, output, a->probabilities);

    a->write(a, class, a->probabilities);
    a->rows++;
    if (a->failed)
        return err_set(err, ERR_NOMEM, "no memory for a prediction");
    if (ferror(a->to))
        return err_set(err, ERR_IO, "cannot write predictions: %s", strerror(errno));
    return 0;
}

int answers_end(struct answers *a, struct err *err)
{
    if (fflush(a->to) != 0 || ferror(a->to))
        return err_set(err, ERR_IO, "cannot write predictions: %s", strerror(errno));
    return 0;
}
