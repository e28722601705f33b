/* data/record.c - one row from memory, by a model's description */
#include "data/record.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/features.h"

struct record {
    struct schema *schema;
    struct layout layout;
    double *raw;
    void *bytes;
};

static int is_image(const json_t *description)
{
    const char *kind = json_string_value(json_object_get(description, "kind"));
    return kind && strcmp(kind, "image") == 0;
}

/* The description without what the rows in hand do not have. */
static json_t *without_target(const json_t *description)
{
    json_t *d = json_copy((json_t *)description);

    json_object_del(d, "target");
    json_object_del(d, "weight");
    return d;
}

static int parse(const json_t *description, int with_target, struct schema **out, struct err *err)
{
    OWN_JSON json_t *own = with_target ? json_incref((json_t *)description)
                                       : without_target(description);
    if (!own)
        return err_set(err, ERR_NOMEM, "no memory for the description of the data");
    return schema_parse(own, "data", is_image(description), out, err);
}

int dataset_fields_of(const json_t *description, int with_target, struct field *field, int *out_n,
                      int *out_classes, struct err *err)
{
    OWN(schema) s = NULL;
    OWN(schema) full = NULL;    /* the classes are known by the target */
    struct layout l;

    if (parse(description, with_target, &s, err) < 0 || parse(description, 1, &full, err) < 0)
        return -(int)err->code;
    if (is_image(description))
        features_layout_image(s, with_target, &l);
    else if (features_layout(s, &l, err) < 0)
        return -(int)err->code;
    memcpy(field, l.field, (size_t)l.n * sizeof *field);
    *out_n = l.n;
    *out_classes = full->classes;
    return 0;
}

int record_new(const json_t *description, struct record **out, struct err *err)
{
    OWN(record) r = calloc(1, sizeof *r);

    if (!r)
        return err_set(err, ERR_NOMEM, "no memory for a row");
    if (is_image(description))
        return err_set(err, ERR_INVALID, "the model reads images, not features");
    if (parse(description, 0, &r->schema, err) < 0 ||
        features_layout(r->schema, &r->layout, err) < 0)
        return -(int)err->code;
    r->raw = calloc((size_t)features_raw(r->schema), sizeof *r->raw);
    r->bytes = calloc(1, r->layout.bytes + sizeof(float));
    if (!r->raw || !r->bytes)
        return err_set(err, ERR_NOMEM, "no memory for a row");
    *out = TAKE(r);
    return 0;
}

void record_free(struct record *r)
{
    if (!r)
        return;
    schema_free(r->schema);
    free(r->raw);
    free(r->bytes);
    free(r);
}

/* A number stays one; a bucket is found for it; an id outside its range is the unknown one. */
static double raw_value(const struct feature *f, double x)
{
    if (f->kind == FEATURE_NUMERIC)
        return x;
    if (f->kind == FEATURE_BUCKETIZE) {
        int id = 0;
        while (id < f->n_bounds && f->bound[id] <= x)
            id++;
        return id;
    }
    return x >= 0 && x < f->ids && x == floor(x) ? x : f->ids - 1;
}

int record_fill(struct record *r, const double *features, int n, struct field *field, int n_fields,
                struct err *err)
{
    const struct schema *s = r->schema;
    int used = 0;

    for (int i = 0; i < s->n_features; i++) {
        if (s->feature[i].kind == FEATURE_CROSS)
            continue;
        if (used < n)
            r->raw[i] = raw_value(&s->feature[i], features[used]);
        used++;
    }
    if (used != n)
        return err_set(err, ERR_INVALID, "reads %d features, got %d", used, n);
    if (features_write(s, &r->layout, r->raw, "memory", 1, r->bytes, err) < 0)
        return -(int)err->code;
    for (int i = 0; i < n_fields && i < r->layout.n; i++) {
        field[i].base = (char *)r->bytes + r->layout.offset[i];
        field[i].stride = 0;
    }
    return 0;
}
