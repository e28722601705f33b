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
    void (*write)(struct answers *a, int class, const float *p, const char *why,
                  const struct csv_text *kept);
    const char *const *keep;
    int n_keep;
    int may_fail;
    float *probabilities;
    int n;                      /* probabilities or values */
    long rows;
    struct example_writer example;      /* TFRecord alone */
    bool failed;                /* no memory for a record */
};

/* ------------------------------------------------------------------ CSV */

static void put_csv_bytes(FILE *to, const char *prefix, const char *text, size_t n)
{
    size_t special = 0;

    while (special < n && !strchr(",\"\r\n", text[special]) && text[special])
        special++;
    if (special == n) {
        fprintf(to, "%s%.*s", prefix, (int)n, text);
        return;
    }
    fprintf(to, "\"%s", prefix);
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '"')
            fputc('"', to);
        fputc(text[i], to);
    }
    fputc('"', to);
}

static void put_csv_text(FILE *to, const char *prefix, const char *text)
{
    put_csv_bytes(to, prefix, text, strlen(text));
}

static void csv_header(struct answers *a)
{
    for (int i = 0; i < a->n_keep; i++) {
        put_csv_text(a->to, "", a->keep[i]);
        fputc(',', a->to);
    }
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
    fputs(a->may_fail ? ",error\n" : "\n", a->to);
}

static void write_csv(struct answers *a, int class, const float *p, const char *why,
                      const struct csv_text *kept)
{
    const int classes = predictor_classes(a->p);

    if (a->rows == 0)
        csv_header(a);
    for (int i = 0; i < a->n_keep; i++) {
        put_csv_bytes(a->to, "", kept[i].p ? kept[i].p : "", kept[i].p ? kept[i].n : 0);
        fputc(',', a->to);
    }
    if (why) {
        for (int i = 1; i < a->n + (classes ? 2 : 0); i++)
            fputc(',', a->to);
    } else {
        if (classes) {
            put_csv_text(a->to, "", predictor_label(a->p, class));
            fprintf(a->to, ",%.9g", (double)p[class]);
        }
        for (int i = 0; i < a->n; i++)
            fprintf(a->to, "%s%.9g", i || classes ? "," : "", (double)p[i]);
    }
    if (a->may_fail) {
        fputc(',', a->to);
        put_csv_text(a->to, "", why ? why : "");
    }
    fputc('\n', a->to);
}

/* ------------------------------------------------------------------ JSON lines */

/* What is not UTF-8 has no text in JSON: null. */
static json_t *json_text(const char *text, size_t n)
{
    json_t *v = text ? json_stringn(text, n) : NULL;
    return v ? v : json_null();
}

static void write_json(struct answers *a, int class, const float *p, const char *why,
                       const struct csv_text *kept)
{
    OWN_JSON json_t *line = json_object();
    const int classes = predictor_classes(a->p);

    for (int i = 0; i < a->n_keep; i++)
        json_object_set_new(line, a->keep[i], json_text(kept[i].p, kept[i].n));
    if (classes) {
        json_t *all = why ? json_null() : json_object();
        for (int i = 0; !why && i < a->n; i++)
            json_object_set_new(all, predictor_label(a->p, i), json_real(p[i]));
        json_object_set_new(line, "label",
                            why ? json_null() : json_string(predictor_label(a->p, class)));
        json_object_set_new(line, "probability", why ? json_null() : json_real(p[class]));
        json_object_set_new(line, "probabilities", all);
    } else if (a->n == 1) {
        json_object_set_new(line, "value", why ? json_null() : json_real(p[0]));
    } else {
        json_t *values = why ? json_null() : json_array();
        for (int i = 0; !why && i < a->n; i++)
            json_array_append_new(values, json_real(p[i]));
        json_object_set_new(line, "values", values);
    }
    if (why)
        json_object_set_new(line, "error", json_text(why, strlen(why)));
    json_dumpf(line, a->to, JSON_COMPACT | JSON_REAL_PRECISION(9));
    fputc('\n', a->to);
}

/* ------------------------------------------------------------------ TFRecord of tf.example */

static void write_tfrecord(struct answers *a, int class, const float *p, const char *why,
                           const struct csv_text *kept)
{
    struct example_writer *w = &a->example;
    OWN_BUF record = BUF_INIT;
    struct err err;

    example_begin(w);
    for (int i = 0; i < a->n_keep; i++)
        if (kept[i].p)
            example_add_text(w, a->keep[i], kept[i].p, kept[i].n);
    if (why) {
        example_add_text(w, "error", why, strlen(why));
    } else if (predictor_classes(a->p)) {
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
    void (*write)(struct answers *a, int class, const float *p, const char *why,
                  const struct csv_text *kept);
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

/* The names that answers have in any format; CSV has some more, made of labels. */
static int check_names(const char *const *keep, int n, struct err *err)
{
    static const char *const taken[] = { "label", "probability", "probabilities", "value", "values",
                                         "error" };

    for (int i = 0; i < n; i++)
        for (size_t k = 0; k < sizeof taken / sizeof taken[0]; k++)
            if (!strcmp(keep[i], taken[k]))
                return err_set(err, ERR_INVALID, "--id %s: answers have a column of that name "
                               "themselves (rename the column of the file)", keep[i]);
    return 0;
}

int answers_new(const struct predictor *p, const char *format, const char *const *keep, int n_keep,
                int may_fail, FILE *to, struct answers **out, struct err *err)
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
    if (check_names(keep, n_keep, err) < 0)
        return -(int)err->code;
    a->p = p;
    a->to = to;
    a->keep = keep;
    a->n_keep = n_keep;
    a->may_fail = may_fail;
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

int answers_add(struct answers *a, const float *output, const char *why,
                const struct csv_text *kept, struct err *err)
{
    int class = output ? predictor_answer(a->p, output, a->probabilities) : 0;

    a->write(a, class, a->probabilities, output ? NULL : why, kept);
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
