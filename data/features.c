/* data/features.c - columns to values, values to fields */
#include "data/features.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/elementary.h"

static const char *const way_out = "(correct the row, or set data.on_error to skip or fill)";
static const char *const way_out_target = "(correct the row, or set data.on_error to skip)";

void features_layout_image(const struct schema *s, int labelled, struct layout *out)
{
    struct field image = { .name = "image", .type = DTYPE_U8, .h = s->h, .w = s->w, .c = s->c,
                           .stride = (size_t)s->h * (size_t)s->w * (size_t)s->c };

    memcpy(image.mean, s->mean, sizeof s->mean);
    memcpy(image.std, s->std, sizeof s->std);
    out->n = 0;
    out->field[out->n++] = image;
    if (labelled)
        out->field[out->n++] = (struct field){ .name = "target", .type = DTYPE_I32, .h = 1, .w = 1,
                                               .c = 1, .ids = s->classes, .stride = 4 };
}

int features_raw(const struct schema *s)
{
    return s->n_features + 2;
}

/* A row in hand. */
struct reading {
    struct schema *s;
    int learning;
    const struct rows *rows;
    const struct rows_block *b;
    long slot;
    double derived[DERIVED_MAX];
    struct err *err;
};

static const char *column_name(const struct schema *s, int column)
{
    return column >= SCHEMA_DERIVED ? s->derived[column - SCHEMA_DERIVED].name
                                    : s->column[column].name;
}

/* Stops with the sentence, or leaves the row out. `what` ends the sentence. */
static int wrong(struct reading *r, int column, const char *what, const char *way)
{
    if (r->s->on_error != ON_ERROR_STOP)
        return FEATURES_LEFT_OUT;
    return err_set(r->err, ERR_INVALID, "%s: row %ld, column \"%s\" %s %s", r->b->path,
                   rows_row(r->rows, r->b, r->slot), column_name(r->s, column), what, way);
}

static double number_of(const struct reading *r, int column)
{
    return column >= SCHEMA_DERIVED ? r->derived[column - SCHEMA_DERIVED]
                                    : r->b->column[column].number[r->slot];
}

static int derive(struct reading *r)
{
    const struct schema *s = r->s;
    for (int i = 0; i < s->n_derived; i++) {
        const struct derived *d = &s->derived[i];
        double value[EXPR_COLUMNS_MAX];
        int n = expr_n_columns(d->expr), missing = 0;
        for (int k = 0; k < n; k++) {
            value[k] = number_of(r, d->arg[k]);
            missing |= isnan(value[k]);
        }
        r->derived[i] = missing ? NAN : expr_eval(d->expr, value);
        if (!missing && !isfinite(r->derived[i])) {
            r->derived[i] = NAN;
            if (s->on_error == ON_ERROR_FILL)
                continue;
            char what[160];
            snprintf(what, sizeof what, "is not finite: %.100s", d->text);
            return wrong(r, SCHEMA_DERIVED + i, what, way_out);
        }
    }
    return FEATURES_OK;
}

static int read_numeric(struct reading *r, const struct feature *f, double *out)
{
    double x = number_of(r, f->column);
    if (isnan(x)) {
        *out = x;
        return r->s->on_error == ON_ERROR_FILL ? FEATURES_OK
                                               : wrong(r, f->column, "has no value", way_out);
    }
    if (f->log && !(x > -1)) {
        *out = NAN;
        return r->s->on_error == ON_ERROR_FILL
                   ? FEATURES_OK
                   : wrong(r, f->column, "is -1 or less, which has no log(1 + x)", way_out);
    }
    *out = f->log ? elementary_log1p(x) : x;
    return FEATURES_OK;
}

/* Text of a column; of a derived one, its number as it would be written. */
static int text_of(const struct reading *r, int column, char buf[32], struct csv_text *out)
{
    if (column >= SCHEMA_DERIVED) {
        double x = r->derived[column - SCHEMA_DERIVED];
        if (isnan(x))
            return 0;
        *out = (struct csv_text){ buf, (size_t)snprintf(buf, 32, "%.15g", x) };
        return 1;
    }
    const struct rows_column *c = &r->b->column[column];
    if (csv_bit(c->missing, r->slot))
        return 0;
    *out = c->text[r->slot];
    return 1;
}

static int read_vocabulary(struct reading *r, const struct feature *f, double *out)
{
    char buf[32];
    struct csv_text t;
    *out = -1;
    if (!text_of(r, f->column, buf, &t))
        return FEATURES_OK;
    int id = vocab_find(f->vocab, t.p, t.n);
    if (id < 0 && r->learning && !f->known) {
        id = vocab_add(f->vocab, t.p, t.n);
        if (id < 0)
            return err_set(r->err, ERR_INVALID,
                           "data.features.%s.vocabulary: more than %d values (use hash: N instead)",
                           f->name, VOCAB_MAX);
    }
    *out = id;
    return FEATURES_OK;
}

static int read_identity(struct reading *r, const struct feature *f, double *out)
{
    double x = number_of(r, f->column);
    int inside = x >= 0 && x < f->ids - 1;      /* false for a NaN */
    if (inside && x != floor(x)) {
        *out = f->ids - 1;
        return r->s->on_error == ON_ERROR_FILL
                   ? FEATURES_OK
                   : wrong(r, f->column, "is not a whole number", way_out);
    }
    *out = inside ? x : f->ids - 1;
    return FEATURES_OK;
}

static int read_hash(struct reading *r, const struct feature *f, double *out)
{
    char buf[32];
    struct csv_text t;
    *out = text_of(r, f->column, buf, &t) ? (double)(vocab_hash(t.p, t.n) % (uint64_t)f->buckets)
                                          : f->ids - 1;
    return FEATURES_OK;
}

static int read_bucketize(struct reading *r, const struct feature *f, double *out)
{
    double x = number_of(r, f->column);
    int id = 0;
    while (id < f->n_bounds && f->bound[id] <= x)
        id++;
    *out = isnan(x) ? f->ids - 1 : id;
    return FEATURES_OK;
}

/* Made of ids, by features_write. */
static int read_cross(struct reading *r, const struct feature *f, double *out)
{
    (void)r;
    (void)f;
    *out = 0;
    return FEATURES_OK;
}

static int (*const readers[])(struct reading *r, const struct feature *f, double *out) = {
    [FEATURE_NUMERIC] = read_numeric,     [FEATURE_VOCABULARY] = read_vocabulary,
    [FEATURE_IDENTITY] = read_identity,   [FEATURE_HASH] = read_hash,
    [FEATURE_BUCKETIZE] = read_bucketize, [FEATURE_CROSS] = read_cross,
};

static int label_outside(struct reading *r, const char *text, size_t n)
{
    const struct schema *s = r->s;
    if (s->on_error != ON_ERROR_STOP)
        return FEATURES_LEFT_OUT;
    double x;
    if (rows_number(text, n, &x) == 0)
        return err_set(r->err, ERR_INVALID, "%s: row %ld: label %.*s is outside 0..%d %s",
                       r->b->path, rows_row(r->rows, r->b, r->slot), (int)(n > 40 ? 40 : n), text,
                       s->classes - 1, way_out_target);
    return err_set(r->err, ERR_INVALID,
                   "%s: row %ld: label \"%.*s\" is not one of the %d in data.labels %s", r->b->path,
                   rows_row(r->rows, r->b, r->slot), (int)(n > 40 ? 40 : n), text, s->classes,
                   way_out_target);
}

/* The raw value of a class that has no id among the labels that were learnt. */
static double raw_class(double x)
{
    return -2 - x;
}

/* Classes: the class itself or, where labels are learnt, an id among them, which features_write
 * settles. */
static int read_class(struct reading *r, double *out)
{
    struct schema *s = r->s;
    char buf[32];
    struct csv_text t;
    if (!text_of(r, s->target, buf, &t))
        return wrong(r, s->target, "has no value", way_out_target);
    int id = s->labels ? vocab_find(s->labels, t.p, t.n) : -1;
    if (id < 0 && s->learn_labels && r->learning &&
        (id = vocab_add(s->labels, t.p, t.n)) < 0)
        return err_set(r->err, ERR_INVALID,
                       "data.target: column \"%s\" has more than %d values (is it a regression?)",
                       s->target_name, VOCAB_MAX);
    *out = id;
    if (id >= 0)
        return FEATURES_OK;
    double x;
    if (rows_number(t.p, t.n, &x) < 0 || !(x >= 0 && x < s->classes) || x != floor(x))
        return label_outside(r, t.p, t.n);
    *out = s->learn_labels ? raw_class(x) : x;
    return FEATURES_OK;
}

static int read_target(struct reading *r, double *out)
{
    struct schema *s = r->s;
    *out = 0;
    if (s->target < 0)
        return FEATURES_OK;
    if (s->task == TASK_CLASSIFICATION)
        return read_class(r, out);
    *out = number_of(r, s->target);
    return isnan(*out) ? wrong(r, s->target, "has no value", way_out_target) : FEATURES_OK;
}

static int read_weight(struct reading *r, double *out)
{
    const struct schema *s = r->s;
    *out = 1;
    if (s->weight < 0)
        return FEATURES_OK;
    *out = number_of(r, s->weight);
    return *out >= 0 ? FEATURES_OK
                     : wrong(r, s->weight, "is no weight of 0 or more", way_out_target);
}

static int say_way_out(struct err *err, const char *way)
{
    size_t n = strlen(err->text);
    snprintf(err->text + n, sizeof err->text - n, " %s", way);
    return -(int)err->code;
}

int features_check(const struct schema *s, const struct rows *r, const struct rows_block *b,
                   struct err *err)
{
    if (!b->broken || s->on_error != ON_ERROR_STOP)
        return 0;
    rows_say(r, b, -1, err);
    return say_way_out(err, way_out_target);
}

int features_read(struct schema *s, int learning, const struct rows *rows,
                  const struct rows_block *b, long slot, double *raw, struct err *err)
{
    struct reading r = {
        .s = s, .learning = learning, .rows = rows, .b = b, .slot = slot, .err = err
    };

    if (csv_bit(b->bad, slot) && s->on_error != ON_ERROR_FILL) {
        if (s->on_error == ON_ERROR_SKIP)
            return FEATURES_LEFT_OUT;
        rows_say(rows, b, slot, err);
        return say_way_out(err, way_out);
    }
    int rc = derive(&r);
    for (int i = 0; rc == FEATURES_OK && i < s->n_features; i++)
        rc = readers[s->feature[i].kind](&r, &s->feature[i], &raw[i]);
    if (rc == FEATURES_OK)
        rc = read_target(&r, &raw[s->n_features]);
    if (rc == FEATURES_OK)
        rc = read_weight(&r, &raw[s->n_features + 1]);
    return rc;
}

static void add_field(struct layout *l, const char *name, enum dtype type, int c, int ids)
{
    struct field *f = &l->field[l->n];
    *f = (struct field){ .type = type, .h = 1, .w = 1, .c = c, .ids = ids };
    snprintf(f->name, sizeof f->name, "%s", name);
    l->offset[l->n++] = l->bytes;
    l->bytes += (size_t)c * 4;
}

int features_layout(const struct schema *s, struct layout *out, struct err *err)
{
    int fields = (s->n_numeric > 0) + s->n_features - s->n_numeric + 2;
    if (fields > FIELD_MAX)
        return err_set(err, ERR_INVALID, "data.features: %d categorical features, at most %d fit",
                       s->n_features - s->n_numeric, FIELD_MAX - 3);
    struct layout l = { .n = 0 };
    if (s->n_numeric)
        add_field(&l, "numeric", DTYPE_F32, s->n_numeric, 0);
    for (int i = 0; i < s->n_features; i++)
        if (s->feature[i].kind != FEATURE_NUMERIC)
            add_field(&l, s->feature[i].name, DTYPE_I32, 1, s->feature[i].ids);
    if (s->target >= 0) {
        if (s->task == TASK_CLASSIFICATION)
            add_field(&l, "target", DTYPE_I32, 1, s->classes);
        else
            add_field(&l, "target", DTYPE_F32, 1, 0);
    }
    if (s->weight >= 0)
        add_field(&l, "weight", DTYPE_F32, 1, 0);
    for (int i = 0; i < l.n; i++)
        l.field[i].stride = l.bytes;
    *out = l;
    return 0;
}

static float scaled(const struct feature *f, double x)
{
    if (isnan(x))
        x = f->mean;
    double over = f->scale == SCALE_STANDARD ? sqrt(f->variance)
                : f->scale == SCALE_RANGE    ? f->max - f->min
                                             : 1;
    if (f->scale == SCALE_NONE)
        return (float)x;
    return (float)((x - f->mean) / (over > 0 ? over : 1));
}

/* The same mixing whatever the machine; 0x9e37... keeps (1, 2) and (2, 1) apart. */
static int32_t crossed(const struct feature *f, const int32_t *id)
{
    uint64_t h = 0x6d75737465720001u;
    for (int i = 0; i < f->n_parts; i++) {
        h ^= (uint64_t)(uint32_t)id[f->part[i]] + 0x9e3779b97f4a7c15u + (h << 6) + (h >> 2);
        h *= 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    return (int32_t)(h % (uint64_t)f->buckets);
}

int features_write(const struct schema *s, const struct layout *l, const double *raw,
                   const char *path, long row, void *record, struct err *err)
{
    int32_t id[s->n_features + 1];
    float *number = record;
    int32_t *ids = (int32_t *)record + s->n_numeric;

    for (int i = 0; i < s->n_features; i++) {
        const struct feature *f = &s->feature[i];
        if (f->kind == FEATURE_NUMERIC) {
            *number++ = scaled(f, raw[i]);
            continue;
        }
        id[i] = (int32_t)raw[i];
        if (f->kind == FEATURE_VOCABULARY)
            id[i] = id[i] < 0 ? f->ids - 1 : f->remap ? f->remap[id[i]] : id[i];
        else if (f->kind == FEATURE_CROSS)
            id[i] = crossed(f, id);
        *ids++ = id[i];
    }
    double target = raw[s->n_features];
    if (s->target >= 0 && s->task == TASK_CLASSIFICATION) {
        if (s->learn_labels)
            target = target < -1 ? raw_class(target) : s->label_remap[(int)target];
        if (target < 0) {
            if (s->on_error != ON_ERROR_STOP)
                return FEATURES_LEFT_OUT;
            return err_set(
                err, ERR_INVALID,
                "%s: row %ld: its label is none of the %d that the training rows have %s", path,
                row, s->classes, way_out_target);
        }
        *ids++ = (int32_t)target;
    } else if (s->target >= 0) {
        *(float *)ids++ = (float)target;
    }
    if (s->weight >= 0)
        *(float *)ids = (float)raw[s->n_features + 1];
    (void)l;
    return FEATURES_OK;
}
