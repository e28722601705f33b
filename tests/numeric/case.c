/* tests/numeric/case.c - recorded cases and plans for them */
#include "tests/numeric/case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"

static const char *fixture_path(const char *name, const char *ending, char *out, size_t size)
{
    const char *root = getenv("MUSTER_ROOT");
    snprintf(out, size, "%s/tests/numeric/fixtures/%s%s", root ? root : ".", name, ending);
    return out;
}

json_t *cases_read(void)
{
    char path[512];
    json_error_t e;
    json_t *doc = json_load_file(fixture_path("cases", ".json", path, sizeof path), 0, &e);

    if (!doc) {
        fprintf(stderr, "%s: %s\n", path, e.text);
        exit(1);
    }
    return doc;
}

static char *read_all(const char *path, size_t *out_size)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("%s: cannot be opened", path);
    fseek(f, 0, SEEK_END);
    size_t size = (size_t)ftell(f);
    rewind(f);
    char *bytes = malloc(size + 1);
    if (!bytes || fread(bytes, 1, size, f) != size)
        fail_msg("%s: cannot be read", path);
    fclose(f);
    *out_size = size;
    return bytes;
}

void case_read(struct fixture *f, const json_t *doc)
{
    char path[512];
    size_t size, head = 0;
    const char *key;
    json_t *value;

    *f = (struct fixture){ .doc = doc, .name = json_string_value(json_object_get(doc, "name")) };
    f->bytes = read_all(fixture_path(f->name, ".safetensors", path, sizeof path), &size);
    memcpy(&head, f->bytes, 8);
    json_t *header = json_loadb(f->bytes + 8, head, 0, NULL);
    if (!header)
        fail_msg("%s: has no header", path);
    json_object_foreach(header, key, value) {
        const json_t *at = json_object_get(value, "data_offsets");
        if (!at)
            continue;
        long from = (long)json_integer_value(json_array_get(at, 0));
        long to = (long)json_integer_value(json_array_get(at, 1));
        struct blob *b = &f->blob[f->n_blobs++];
        snprintf(b->name, sizeof b->name, "%s", key);
        b->ints = strcmp(json_string_value(json_object_get(value, "dtype")), "I32") == 0;
        b->count = (to - from) / 4;
        b->data = f->bytes + 8 + head + from;
    }
    json_decref(header);
}

const struct blob *case_find(const struct fixture *f, const char *name)
{
    for (int i = 0; i < f->n_blobs; i++)
        if (strcmp(f->blob[i].name, name) == 0)
            return &f->blob[i];
    return NULL;
}

static int int_of(const json_t *o, const char *key)
{
    return (int)json_integer_value(json_object_get(o, key));
}

static void read_fields(struct fixture *f)
{
    const json_t *fields = json_object_get(f->doc, "fields");

    for (size_t i = 0; i < json_array_size(fields); i++) {
        const json_t *d = json_array_get(fields, i);
        struct field *to = &f->field[f->n_fields++];
        const struct blob *b = case_find(f, json_string_value(json_object_get(d, "tensor")));
        if (!b)
            fail_msg("%s: field %zu has no rows", f->name, i);
        snprintf(to->name, sizeof to->name, "%s", json_string_value(json_object_get(d, "name")));
        to->type = b->ints ? DTYPE_I32 : DTYPE_F32;
        to->h = int_of(d, "h");
        to->w = int_of(d, "w");
        to->c = int_of(d, "c");
        to->ids = int_of(d, "ids");
        to->base = b->data;
        to->stride = (size_t)(to->h * to->w * to->c) * 4;
    }
}

void case_open(struct fixture *f, const json_t *doc)
{
    struct err err = { 0 };

    case_read(f, doc);
    read_fields(f);
    f->batch = int_of(doc, "batch");
    f->rows = int_of(doc, "rows");
    f->steps = int_of(doc, "steps");
    f->tol = json_number_value(json_object_get(doc, "tol"));
    f->order = malloc((size_t)f->steps * (size_t)f->batch * sizeof *f->order);
    for (long i = 0; i < f->steps * f->batch; i++)
        f->order[i] = (uint32_t)(i % f->rows);
    const struct field *target = &f->field[f->n_fields - 1];
    if (graph_build(json_object_get(doc, "model"), f->field, f->n_fields,
                    target->type == DTYPE_I32 ? target->ids : 0, &f->graph, &err) < 0)
        fail_msg("%s: %s", f->name, err.text);
}

void case_close(struct fixture *f)
{
    graph_free(f->graph);
    free(f->order);
    free(f->bytes);
}

static int default_shards(int batch)
{
    int s = 1;
    while (2 * s <= batch && 2 * s <= SHARDS_MAX)
        s *= 2;
    return s;
}

struct plan *case_plan(const struct fixture *f, struct way way)
{
    struct err err = { 0 };
    struct plan *p = NULL;
    struct plan_config config = {
        .batch = f->batch, .shards = way.shards ? way.shards : default_shards(f->batch),
        .threads = way.threads, .train = true, .keep_grads = way.keep_grads, .plain = way.plain,
        .seed = 1, .loss = json_object_get(f->doc, "loss"),
        .optimizer = json_object_get(f->doc, "optimizer"), .clip = json_object_get(f->doc, "clip"),
    };

    if (way.isa)
        setenv("MUSTER_ISA", way.isa, 1);
    else
        unsetenv("MUSTER_ISA");
    if (plan_new(f->graph, f->field, f->n_fields, &config, &p, &err) < 0)
        fail_msg("%s: %s", f->name, err.text);
    plan_init(p);
    for (int i = 0; i < f->n_blobs; i++) {
        if (strncmp(f->blob[i].name, "init.", 5) != 0)
            continue;
        struct param *q = plan_find(p, f->blob[i].name + 5);
        if (!q || q->count != f->blob[i].count)
            fail_msg("%s: the plan has no %s of %ld values", f->name, f->blob[i].name + 5,
                     f->blob[i].count);
        plan_set(p, q, 0, f->blob[i].data);
    }
    plan_derive(p);
    return p;
}

struct stretch case_stretch(const struct fixture *f)
{
    return (struct stretch){ .field = f->field, .n_fields = f->n_fields, .order = f->order,
                             .n = f->steps * f->batch, .last = 1 };
}

double distance(const float *got, const float *want, long n, double scale)
{
    double worst = 0;

    for (long i = 0; i < n; i++)
        scale = fabs(want[i]) > scale ? fabs(want[i]) : scale;
    for (long i = 0; i < n; i++) {
        double d = fabs((double)got[i] - want[i]) / scale;
        if (isnan(d))
            return INFINITY;
        worst = d > worst ? d : worst;
    }
    return worst;
}

uint64_t bits_of(uint64_t hash, const float *v, long n)
{
    for (long i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &v[i], 4);
        hash = (hash ^ bits) * UINT64_C(1099511628211);
    }
    return hash;
}
