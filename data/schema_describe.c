/* data/schema_describe.c - a complete schema as JSON, in the words of the spec
 *
 * schema_parse reads it back. Every pack that fails for memory leaves NULL, which jansson's
 * *_new functions refuse; the one check is at the end, by `failed`.
 */
#include "data/schema.h"

#include <string.h>

struct describing {
    json_t *root;
    int failed;
};

static void put(struct describing *d, json_t *object, const char *key, json_t *value)
{
    d->failed |= json_object_set_new(object, key, value) < 0;
}

static json_t *texts(struct describing *d, char *const *text, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        d->failed |= json_array_append_new(list, json_string(text[i])) < 0;
    return list;
}

/* The texts of a vocabulary in the order of their final ids. */
static json_t *vocab_texts(struct describing *d, const struct vocab *v, const int *remap, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        d->failed |= json_array_append_new(list, json_string("")) < 0;
    for (int i = 0; i < vocab_size(v); i++) {
        int id = remap ? remap[i] : i;
        size_t len;
        const char *text = vocab_text(v, i, &len);
        if (id >= 0 && id < n)
            d->failed |= json_array_set_new(list, (size_t)id, json_stringn_nocheck(text, len)) < 0;
    }
    return list;
}

static json_t *describe_numeric(struct describing *d, const struct feature *f)
{
    static const char *const scales[] = { "standard", "range", "none" };
    json_t *v = json_object();
    put(d, v, "scale", json_string(scales[f->scale]));
    put(d, v, "log", json_boolean(f->log));
    if (f->known) {
        put(d, v, "mean", json_real(f->mean));
        put(d, v, "variance", json_real(f->variance));
        put(d, v, "min", json_real(f->min));
        put(d, v, "max", json_real(f->max));
    }
    return v;
}

static json_t *describe_feature(struct describing *d, const struct schema *s,
                                const struct feature *f)
{
    json_t *body = json_object(), *list = json_array();
    switch (f->kind) {
    case FEATURE_NUMERIC:
        put(d, body, "numeric", describe_numeric(d, f));
        break;
    case FEATURE_VOCABULARY:
        put(d, body, "vocabulary", vocab_texts(d, f->vocab, f->remap, f->ids - 1));
        break;
    case FEATURE_IDENTITY:
        put(d, body, "identity", json_integer(f->ids - 1));
        break;
    case FEATURE_HASH:
        put(d, body, "hash", json_integer(f->buckets));
        break;
    case FEATURE_BUCKETIZE:
        for (int i = 0; i < f->n_bounds; i++)
            d->failed |= json_array_append_new(list, json_real(f->bound[i])) < 0;
        put(d, body, "bucketize", json_string(f->column >= SCHEMA_DERIVED
                                                  ? s->derived[f->column - SCHEMA_DERIVED].name
                                                  : s->column[f->column].name));
        put(d, body, "boundaries", json_incref(list));
        break;
    case FEATURE_CROSS:
        for (int i = 0; i < f->n_parts; i++)
            d->failed |= json_array_append_new(list, json_string(s->feature[f->part[i]].name)) < 0;
        put(d, body, "cross", json_incref(list));
        put(d, body, "buckets", json_integer(f->buckets));
        break;
    }
    json_decref(list);
    return body;
}

static json_t *describe_channels(struct describing *d, const float *v, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        d->failed |= json_array_append_new(list, json_real(v[i])) < 0;
    return list;
}

static void describe_image(struct describing *d, const struct schema *s)
{
    int n = s->n_scale ? s->n_scale : 1;
    json_t *image = json_object(), *scale = json_object();
    put(d, image, "h", json_integer(s->h));
    put(d, image, "w", json_integer(s->w));
    put(d, image, "c", json_integer(s->c));
    put(d, d->root, "image", image);
    put(d, scale, "mean", describe_channels(d, s->mean, n));
    put(d, scale, "std", describe_channels(d, s->std, n));
    put(d, d->root, "scale", scale);
}

static const char *const policy_names[] = { "stop", "skip", "fill" };

static void describe_table(struct describing *d, const struct schema *s)
{
    json_t *features = json_object(), *order = json_array(), *derived = json_object();
    for (int i = 0; i < s->n_features; i++) {
        put(d, features, s->feature[i].name, describe_feature(d, s, &s->feature[i]));
        d->failed |= json_array_append_new(order, json_string(s->feature[i].name)) < 0;
    }
    put(d, d->root, "features", features);
    put(d, d->root, "feature_order", order);
    for (int i = 0; i < s->n_derived; i++)
        put(d, derived, s->derived[i].name, json_string(s->derived[i].text));
    put(d, d->root, "derived", derived);
    if (s->target_name)
        put(d, d->root, "target", json_string(s->target_name));
    if (s->weight_name)
        put(d, d->root, "weight", json_string(s->weight_name));

    char delimiter[2] = { s->delimiter, 0 };
    put(d, d->root, "on_error", json_string(policy_names[s->on_error]));
    put(d, d->root, "delimiter", json_string(delimiter));
    put(d, d->root, "skip", json_integer(s->skip));
    put(d, d->root, "header",
        s->n_names ? texts(d, s->names, s->n_names) : json_boolean(!s->no_header));
    if (s->missing)
        put(d, d->root, "missing", texts(d, s->missing, s->n_missing));
}

json_t *schema_describe(const struct schema *s)
{
    struct describing d = { json_object(), 0 };
    put(&d, d.root, "kind", json_string(s->image ? "image" : "tabular"));
    put(&d, d.root, "task",
        json_string(s->task == TASK_REGRESSION ? "regression" : "classification"));
    if (s->task == TASK_CLASSIFICATION)
        put(&d, d.root, "classes", json_integer(s->classes));
    if (s->labels && s->classes && !s->labels_are_numbers)
        put(&d, d.root, "labels", vocab_texts(&d, s->labels, s->label_remap, s->classes));
    if (s->image && s->on_error != ON_ERROR_STOP)
        put(&d, d.root, "on_error", json_string(policy_names[s->on_error]));
    if (s->image)
        describe_image(&d, s);
    else
        describe_table(&d, s);
    if (d.failed) {
        json_decref(d.root);
        return NULL;
    }
    return d.root;
}
