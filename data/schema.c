/* data/schema.c - the data section and the stored description, read and written */
#include "data/schema.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/near.h"
#include "data/rows.h"

/* What is being read, and what messages call it. */
struct reading {
    struct schema *s;
    const char *path;
    int depth;                  /* of derived columns that read derived columns */
    struct err *err;
};

static int out_of_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "no memory for the columns of the data");
}

/* One of the words of a list that ends in NULL, as its index. */
static int word_index(const struct reading *r, const char *key, const json_t *v,
                      const char *const *words, int *out)
{
    const char *text = json_string_value(v);
    for (int i = 0; text && words[i]; i++)
        if (!strcmp(words[i], text)) {
            *out = i;
            return 0;
        }
    const char *near = text ? near_word(text, words) : NULL;
    return err_set(r->err, ERR_INVALID, "%s.%s: \"%s\" is not a choice here (did you mean \"%s\"?)",
                   r->path, key, text ? text : "this", near ? near : words[0]);
}

/* A list of texts; a single text counts as a list of one, numbers as they are written. */
static int read_texts(const struct reading *r, const char *key, const json_t *v, char ***out,
                      int *out_n)
{
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    char **texts = calloc(n + 1, sizeof *texts);
    if (!texts)
        return out_of_memory(r->err);
    *out = texts;
    *out_n = (int)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_array(v) ? json_array_get(v, i) : v;
        if (json_is_string(item))
            texts[i] = strdup(json_string_value(item));
        else if (json_is_number(item))
            texts[i] = json_dumps(item, JSON_ENCODE_ANY);
        else if (json_is_boolean(item))
            texts[i] = strdup(json_is_true(item) ? "true" : "false");
        else
            return err_set(r->err, ERR_INVALID, "%s.%s[%zu]: a text should be here", r->path, key,
                           i);
        if (!texts[i])
            return out_of_memory(r->err);
    }
    return 0;
}

static int read_vocab(const struct reading *r, const char *key, const json_t *v, struct vocab **out)
{
    char **text = NULL;
    int n = 0, rc = read_texts(r, key, v, &text, &n);
    OWN(vocab) vocab = vocab_new();
    if (rc == 0 && !vocab)
        rc = out_of_memory(r->err);
    for (int i = 0; rc == 0 && i < n; i++)
        if (vocab_add(vocab, text[i], strlen(text[i])) != i)
            rc = err_set(r->err, ERR_INVALID, "%s.%s[%d]: \"%s\" is there already", r->path, key, i,
                         text[i]);
    if (rc == 0 && n == 0)
        rc = err_set(r->err, ERR_INVALID, "%s.%s: an empty list", r->path, key);
    for (int i = 0; text && i < n; i++)
        free(text[i]);
    free(text);
    if (rc == 0)
        *out = TAKE(vocab);
    return rc;
}

/* The number of a column, plain or derived; adds it when it is new. */
static int find_column(struct reading *r, const char *name, int as, int *out);

static int add_derived(struct reading *r, const char *name, const json_t *text, int *out)
{
    struct schema *s = r->s;
    if (s->n_derived + r->depth >= DERIVED_MAX)
        return err_set(r->err, ERR_INVALID, "%s.derived.%s: reads itself, or more than %d columns",
                       r->path, name, DERIVED_MAX);
    struct derived d = { 0 };
    if (expr_parse(json_string_value(text), &d.expr, r->err) < 0)
        return err_add(r->err, "%s.derived.%s", r->path, name);
    int n = expr_n_columns(d.expr), rc = 0;
    d.arg = calloc((size_t)n + 1, sizeof *d.arg);
    d.name = strdup(name);
    d.text = strdup(json_string_value(text));
    if (!d.arg || !d.name || !d.text)
        rc = out_of_memory(r->err);
    r->depth++;
    for (int i = 0; rc == 0 && i < n; i++)
        rc = find_column(r, expr_column(d.expr, i), ROWS_NUMBER, &d.arg[i]);
    r->depth--;
    if (rc < 0 || s->n_derived == DERIVED_MAX) {
        expr_free(d.expr);
        free(d.arg);
        free(d.name);
        free(d.text);
        return rc < 0 ? rc : err_set(r->err, ERR_INVALID, "%s.derived: more than %d", r->path,
                                     DERIVED_MAX);
    }
    s->derived[s->n_derived] = d;
    *out = SCHEMA_DERIVED + s->n_derived++;
    return 0;
}

static int find_column(struct reading *r, const char *name, int as, int *out)
{
    struct schema *s = r->s;
    for (int i = 0; i < s->n_derived; i++)
        if (!strcmp(s->derived[i].name, name)) {
            *out = SCHEMA_DERIVED + i;
            return 0;
        }
    const json_t *text = json_object_get(s->derivations, name);
    if (text)
        return add_derived(r, name, text, out);
    for (int i = 0; i < s->n_columns; i++)
        if (!strcmp(s->column[i].name, name)) {
            s->column[i].as |= as;
            *out = i;
            return 0;
        }
    struct column *column = realloc(s->column, (size_t)(s->n_columns + 1) * sizeof *column);
    if (!column)
        return out_of_memory(r->err);
    s->column = column;
    column[s->n_columns] = (struct column){ .name = strdup(name), .as = as };
    if (!column[s->n_columns].name)
        return out_of_memory(r->err);
    *out = s->n_columns++;
    return 0;
}

/* A number inside a feature; `least` and above. */
static int read_count(struct reading *r, const char *feature, const char *key, const json_t *v,
                      long least, long *out)
{
    long n = json_is_integer(v) ? (long)json_integer_value(v) : -1;
    if (n < least || n >= SCHEMA_IDS_MAX)
        return err_set(r->err, ERR_INVALID,
                       "%s.features.%s.%s: a whole number from %ld to %d should be here", r->path,
                       feature, key, least, SCHEMA_IDS_MAX - 1);
    *out = n;
    return 0;
}

static int read_numeric(struct reading *r, struct feature *f, const json_t *body, const json_t *v)
{
    static const char *const scales[] = { "standard", "range", "none", NULL };
    (void)body;
    const json_t *scale = json_object_get(v, "scale");
    int kind = SCALE_STANDARD;
    if (scale) {
        OWN_MEM char *key = NULL;
        if (asprintf(&key, "features.%s.numeric.scale", f->name) < 0)
            return out_of_memory(r->err);
        if (word_index(r, key, scale, scales, &kind) < 0)
            return -r->err->code;
    }
    f->scale = (enum scale_kind)kind;
    f->log = json_is_true(json_object_get(v, "log"));

    static const char *const keys[] = { "mean", "variance", "min", "max" };
    double *const to[] = { &f->mean, &f->variance, &f->min, &f->max };
    int given[4];
    for (int i = 0; i < 4; i++) {
        const json_t *n = json_object_get(v, keys[i]);
        given[i] = n && !json_is_null(n);
        if (!given[i])
            continue;
        *to[i] = json_number_value(n);
        if (!json_is_number(n) || !isfinite(*to[i]) || (i == 1 && *to[i] < 0))
            return err_set(r->err, ERR_INVALID,
                           "%s.features.%s.numeric.%s: a number should be here%s", r->path, f->name,
                           keys[i], i == 1 ? ", not a negative one" : "");
    }
    if (f->scale == SCALE_STANDARD && given[0] != given[1])
        return err_set(r->err, ERR_INVALID,
                       "%s.features.%s.numeric: mean and variance are given together", r->path,
                       f->name);
    /* Without scaling the mean is only needed to fill a gap. */
    f->known = f->scale == SCALE_STANDARD ? given[0] && given[1]
             : f->scale == SCALE_RANGE    ? given[0] && given[2] && given[3]
                                          : given[0] || r->s->on_error != ON_ERROR_FILL;
    return find_column(r, f->name, ROWS_NUMBER, &f->column);
}

static int read_vocabulary(struct reading *r, struct feature *f, const json_t *body,
                           const json_t *v)
{
    (void)body;
    const char *word = json_string_value(v);
    if (!json_is_array(v) && !(word && !strcmp(word, "auto")) && !json_is_null(v))
        return err_set(r->err, ERR_INVALID,
                       "%s.features.%s.vocabulary: a list of values, or auto, should be here",
                       r->path, f->name);
    if (json_is_array(v)) {
        OWN_MEM char *key = NULL;
        if (asprintf(&key, "features.%s.vocabulary", f->name) < 0)
            return out_of_memory(r->err);
        if (read_vocab(r, key, v, &f->vocab) < 0)
            return -r->err->code;
        f->known = 1;
        f->ids = vocab_size(f->vocab) + 1;
    } else if (!(f->vocab = vocab_new())) {
        return out_of_memory(r->err);
    }
    return find_column(r, f->name, ROWS_TEXT, &f->column);
}

static int read_identity(struct reading *r, struct feature *f, const json_t *body, const json_t *v)
{
    (void)body;
    long n = 0;
    if (read_count(r, f->name, "identity", v, 1, &n) < 0)
        return -r->err->code;
    f->ids = (int)n + 1;
    f->known = 1;
    return find_column(r, f->name, ROWS_NUMBER, &f->column);
}

static int read_hash(struct reading *r, struct feature *f, const json_t *body, const json_t *v)
{
    (void)body;
    if (read_count(r, f->name, "hash", v, 1, &f->buckets) < 0)
        return -r->err->code;
    f->ids = (int)f->buckets + 1;
    f->known = 1;
    return find_column(r, f->name, ROWS_TEXT, &f->column);
}

static int read_bucketize(struct reading *r, struct feature *f, const json_t *body, const json_t *v)
{
    const json_t *bounds = json_object_get(body, "boundaries");
    size_t n = json_array_size(bounds);
    if (!json_is_string(v) || !n)
        return err_set(r->err, ERR_INVALID,
                       "%s.features.%s: {bucketize: COLUMN, boundaries: [numbers]} should be here",
                       r->path, f->name);
    if (!(f->bound = calloc(n, sizeof *f->bound)))
        return out_of_memory(r->err);
    for (size_t i = 0; i < n; i++) {
        f->bound[i] = json_number_value(json_array_get(bounds, i));
        if (!json_is_number(json_array_get(bounds, i)) || (i && f->bound[i] <= f->bound[i - 1]))
            return err_set(r->err, ERR_INVALID,
                           "%s.features.%s.boundaries[%zu]: numbers that rise should be here",
                           r->path, f->name, i);
    }
    f->n_bounds = (int)n;
    f->ids = (int)n + 2;
    f->known = 1;
    return find_column(r, json_string_value(v), ROWS_NUMBER, &f->column);
}

static int read_cross(struct reading *r, struct feature *f, const json_t *body, const json_t *v)
{
    size_t n = json_array_size(v);
    if (n < 2 || n > CROSS_PARTS_MAX)
        return err_set(r->err, ERR_INVALID,
                       "%s.features.%s.cross: two to %d names of features should be here", r->path,
                       f->name, CROSS_PARTS_MAX);
    f->buckets = 1000;
    if (json_object_get(body, "buckets") &&
        read_count(r, f->name, "buckets", json_object_get(body, "buckets"), 1, &f->buckets) < 0)
        return -r->err->code;
    for (size_t i = 0; i < n; i++) {
        const char *name = json_string_value(json_array_get(v, i));
        int k = r->s->n_features;
        while (name && --k >= 0 && strcmp(r->s->feature[k].name, name))
            ;
        if (!name || k < 0 || r->s->feature[k].kind == FEATURE_NUMERIC ||
            r->s->feature[k].kind == FEATURE_CROSS)
            return err_set(r->err, ERR_INVALID,
                           "%s.features.%s.cross[%zu]: \"%s\" is not a categorical feature that "
                           "stands before it (give it a vocabulary, identity, hash or boundaries)",
                           r->path, f->name, i, name ? name : "?");
        f->part[i] = k;
    }
    f->n_parts = (int)n;
    f->column = -1;
    f->ids = (int)f->buckets;
    f->known = 1;
    return 0;
}

static const struct kind_row {
    const char *word;
    int (*read)(struct reading *r, struct feature *f, const json_t *body, const json_t *v);
} kinds[] = {
    [FEATURE_NUMERIC] = { "numeric", read_numeric },
    [FEATURE_VOCABULARY] = { "vocabulary", read_vocabulary },
    [FEATURE_IDENTITY] = { "identity", read_identity },
    [FEATURE_HASH] = { "hash", read_hash },
    [FEATURE_BUCKETIZE] = { "bucketize", read_bucketize },
    [FEATURE_CROSS] = { "cross", read_cross },
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static int add_feature(struct reading *r, const char *name, const json_t *body)
{
    struct schema *s = r->s;
    if (strlen(name) > SCHEMA_NAME_MAX)
        return err_set(r->err, ERR_INVALID,
                       "%s.features.%.40s...: a name has at most %d characters", r->path, name,
                       SCHEMA_NAME_MAX);
    const char *word = json_string_value(body);
    int k = 0;
    while (k < KINDS && !(word ? !strcmp(word, kinds[k].word)
                               : json_object_get(body, kinds[k].word) != NULL))
        k++;
    if (k == KINDS)
        return err_set(r->err, ERR_INVALID,
                       "%s.features.%s: one of numeric, vocabulary, identity, hash, bucketize, "
                       "cross should be here",
                       r->path, name);
    struct feature *feature = realloc(s->feature, (size_t)(s->n_features + 1) * sizeof *feature);
    if (!feature)
        return out_of_memory(r->err);
    s->feature = feature;
    struct feature *f = &feature[s->n_features++];
    *f = (struct feature){ .kind = (enum feature_kind)k };
    memcpy(f->name, name, strlen(name) + 1);
    s->n_numeric += k == FEATURE_NUMERIC;
    OWN_JSON json_t *null = json_null();
    int rc = kinds[k].read(r, f, body, word ? null : json_object_get(body, kinds[k].word));
    if (rc == 0 && f->column == r->s->target && f->kind != FEATURE_CROSS)
        return err_set(r->err, ERR_INVALID,
                       "%s.features.%s: is the target too; the model would only copy it", r->path,
                       name);
    return rc;
}

/* In the order of `feature_order`, which a description has: JSON objects may have lost theirs. */
static int read_features(struct reading *r, const json_t *data)
{
    const json_t *features = json_object_get(data, "features");
    const json_t *order = json_object_get(data, "feature_order");
    size_t n = json_object_size(features);
    if (!n && !order) {
        r->s->all_numeric = 1;
        return 0;
    }
    if (order) {
        for (size_t i = 0; i < json_array_size(order); i++) {
            const char *name = json_string_value(json_array_get(order, i));
            const json_t *body = name ? json_object_get(features, name) : NULL;
            if (!body)
                return err_set(r->err, ERR_INVALID, "%s.feature_order[%zu]: names no feature",
                               r->path, i);
            if (add_feature(r, name, body) < 0)
                return -r->err->code;
        }
        return 0;
    }
    const char *name;
    json_t *body;
    json_object_foreach((json_t *)features, name, body)
        if (add_feature(r, name, body) < 0)
            return -r->err->code;
    return 0;
}

/* A column by its name; that of a file without header is its number, from 1. */
static int read_column_key(struct reading *r, const json_t *data, const char *key, int as,
                           char **out_name, int *out)
{
    const json_t *v = json_object_get(data, key);
    *out = -1;
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_string(v))
        return err_set(r->err, ERR_INVALID, "%s.%s: the name of a column should be here", r->path,
                       key);
    if (!(*out_name = strdup(json_string_value(v))))
        return out_of_memory(r->err);
    return find_column(r, *out_name, as, out);
}

static int read_target(struct reading *r, const json_t *data)
{
    static const char *const tasks[] = { "unknown", "classification", "regression", NULL };
    struct schema *s = r->s;
    const json_t *task = json_object_get(data, "task"), *labels = json_object_get(data, "labels");
    const json_t *classes = json_object_get(data, "classes");
    int kind = TASK_UNKNOWN;

    if (task && !json_is_null(task) && word_index(r, "task", task, tasks, &kind) < 0)
        return -r->err->code;
    s->task = (enum task_kind)kind;
    if (labels && !json_is_null(labels) && json_array_size(labels)) {
        if (read_vocab(r, "labels", labels, &s->labels) < 0)
            return -r->err->code;
        s->classes = vocab_size(s->labels);
    } else if (classes) {
        s->classes = (int)json_integer_value(classes);
        if (s->classes < 0)
            return err_set(r->err, ERR_INVALID, "%s.classes: a number of classes should be here",
                           r->path);
    }
    if (s->image) {
        s->task = TASK_CLASSIFICATION;
        return 0;
    }
    if (read_column_key(r, data, "target", 0, &s->target_name, &s->target) < 0 ||
        read_column_key(r, data, "weight", ROWS_NUMBER, &s->weight_name, &s->weight) < 0)
        return -r->err->code;
    int derived = s->target >= SCHEMA_DERIVED;
    int boolean = derived && expr_is_boolean(s->derived[s->target - SCHEMA_DERIVED].expr);
    if (s->task == TASK_UNKNOWN)
        s->task = s->labels || s->classes || boolean ? TASK_CLASSIFICATION : TASK_REGRESSION;
    if (s->task == TASK_REGRESSION) {
        s->classes = 0;
    } else if (boolean && !s->classes) {
        s->classes = 2;
    }
    if (s->target >= 0 && !derived)
        s->column[s->target].as |= s->task == TASK_CLASSIFICATION ? ROWS_TEXT : ROWS_NUMBER;
    s->learn_labels = s->target >= 0 && s->task == TASK_CLASSIFICATION && !s->classes;
    if (s->learn_labels && !(s->labels = vocab_new()))
        return out_of_memory(r->err);
    return 0;
}

static int read_format(struct reading *r, const json_t *data)
{
    static const char *const policies[] = { "stop", "skip", "fill", NULL };
    struct schema *s = r->s;
    const json_t *v;
    int policy = ON_ERROR_STOP;

    if ((v = json_object_get(data, "on_error")) &&
        word_index(r, "on_error", v, policies, &policy) < 0)
        return -r->err->code;
    s->on_error = (enum on_error)policy;
    s->delimiter = ',';
    if ((v = json_object_get(data, "delimiter"))) {
        const char *text = json_string_value(v);
        if (text && !strcmp(text, "\\t"))
            text = "\t";
        if (!text || strlen(text) != 1 || *text == '"' || *text == '\n')
            return err_set(r->err, ERR_INVALID, "%s.delimiter: one character should be here",
                           r->path);
        s->delimiter = *text;
    }
    if ((v = json_object_get(data, "skip")) && json_is_integer(v))
        s->skip = (long)json_integer_value(v);
    v = json_object_get(data, "header");
    s->no_header = json_is_false(v) || json_is_array(v);
    if (json_is_array(v) && read_texts(r, "header", v, &s->names, &s->n_names) < 0)
        return -r->err->code;
    if ((v = json_object_get(data, "missing")) &&
        read_texts(r, "missing", v, &s->missing, &s->n_missing) < 0)
        return -r->err->code;
    if ((v = json_object_get(data, "scale_over"))) {
        static const char *const over[] = { "train", "all", NULL };
        if (word_index(r, "scale_over", v, over, &s->scale_over_all) < 0)
            return -r->err->code;
    }
    return 0;
}

/* Numbers for each channel; one number counts for all four. */
static int read_channels(struct reading *r, const json_t *scale, const char *key, float *out)
{
    const json_t *v = json_object_get(scale, key);
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (!v)
        return 0;
    if (n < 1 || n > 4)
        return err_set(r->err, ERR_INVALID, "%s.scale.%s: one to four numbers should be here",
                       r->path, key);
    for (size_t i = 0; i < 4; i++) {
        const json_t *x = json_is_array(v) ? json_array_get(v, i < n ? i : n - 1) : v;
        out[i] = (float)json_number_value(x);
        if (!json_is_number(x) || (!strcmp(key, "std") && !(out[i] > 0)))
            return err_set(r->err, ERR_INVALID, "%s.scale.%s: %s should be here", r->path, key,
                           strcmp(key, "std") ? "a number" : "a number above 0");
    }
    r->s->n_scale = (int)n > r->s->n_scale ? (int)n : r->s->n_scale;
    return 0;
}

static int read_image(struct reading *r, const json_t *data)
{
    struct schema *s = r->s;
    const json_t *scale = json_object_get(data, "scale"), *image = json_object_get(data, "image");
    for (int i = 0; i < 4; i++)
        s->std[i] = 1;
    if (read_channels(r, scale, "mean", s->mean) < 0 || read_channels(r, scale, "std", s->std) < 0)
        return -r->err->code;
    s->h = (int)json_integer_value(json_object_get(image, "h"));
    s->w = (int)json_integer_value(json_object_get(image, "w"));
    s->c = (int)json_integer_value(json_object_get(image, "c"));
    return 0;
}

/* Syntax of what nothing reads is checked too: it was written to be read. */
static int read_derivations(struct reading *r, const json_t *data)
{
    const json_t *derived = json_object_get(data, "derived");
    const char *name;
    json_t *text;
    json_object_foreach((json_t *)derived, name, text) {
        OWN(expr) e = NULL;
        if (!json_is_string(text))
            return err_set(r->err, ERR_INVALID, "%s.derived.%s: an expression should be here",
                           r->path, name);
        if (expr_parse(json_string_value(text), &e, r->err) < 0)
            return err_add(r->err, "%s.derived.%s", r->path, name);
    }
    r->s->derivations = json_is_object(derived) ? json_deep_copy(derived) : json_object();
    return r->s->derivations ? 0 : out_of_memory(r->err);
}

int schema_parse(const json_t *data, const char *path, int image, struct schema **out,
                 struct err *err)
{
    OWN(schema) s = calloc(1, sizeof *s);
    if (!s)
        return out_of_memory(err);
    s->refs = 1;
    s->target = s->weight = -1;
    s->image = image;
    struct reading r = { s, path, 0, err };
    if (read_format(&r, data) < 0 || read_derivations(&r, data) < 0 || read_target(&r, data) < 0)
        return -err->code;
    if (image ? read_image(&r, data) < 0 : read_features(&r, data) < 0)
        return -err->code;
    *out = TAKE(s);
    return 0;
}

int schema_use_all(struct schema *s, const char *const *names, int n, struct err *err)
{
    struct reading r = { s, "data", 0, err };
    int used = s->n_columns;            /* by the target and the weight */
    OWN_JSON json_t *numeric = json_string("numeric");
    if (!numeric)
        return out_of_memory(err);
    for (int i = 0; i < n; i++) {
        int taken = 0;
        for (int k = 0; k < used; k++)
            taken |= !strcmp(s->column[k].name, names[i]);
        if (!taken && add_feature(&r, names[i], numeric) < 0)
            return -err->code;
    }
    if (!s->n_features)
        return err_set(err, ERR_INVALID, "data.features: no column is left to learn from");
    return 0;
}

struct schema *schema_ref(struct schema *s)
{
    __atomic_add_fetch(&s->refs, 1, __ATOMIC_RELAXED);
    return s;
}

static void free_texts(char **text, int n)
{
    for (int i = 0; text && i < n; i++)
        free(text[i]);
    free(text);
}

void schema_free(struct schema *s)
{
    if (!s || __atomic_sub_fetch(&s->refs, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    for (int i = 0; i < s->n_columns; i++)
        free(s->column[i].name);
    free(s->column);
    for (int i = 0; i < s->n_derived; i++) {
        free(s->derived[i].name);
        free(s->derived[i].text);
        free(s->derived[i].arg);
        expr_free(s->derived[i].expr);
    }
    for (int i = 0; i < s->n_features; i++) {
        vocab_free(s->feature[i].vocab);
        free(s->feature[i].remap);
        free(s->feature[i].bound);
    }
    free(s->feature);
    json_decref(s->derivations);
    free(s->target_name);
    free(s->weight_name);
    vocab_free(s->labels);
    free(s->label_remap);
    free_texts(s->names, s->n_names);
    free_texts(s->missing, s->n_missing);
    free(s);
}

int schema_complete(const struct schema *s)
{
    for (int i = 0; i < s->n_features; i++)
        if (!s->feature[i].known)
            return 0;
    return s->target < 0 || s->task == TASK_REGRESSION || s->classes > 0;
}

void schema_who_reads(const struct schema *s, int column, char *out, size_t n)
{
    snprintf(out, n, "data");
    for (int i = 0; i < s->n_derived; i++)
        for (int k = 0; k < expr_n_columns(s->derived[i].expr); k++)
            if (s->derived[i].arg[k] == column)
                snprintf(out, n, "data.derived.%s", s->derived[i].name);
    for (int i = 0; i < s->n_features; i++)
        if (s->feature[i].column == column)
            snprintf(out, n, "data.features.%s", s->feature[i].name);
    if (s->weight == column)
        snprintf(out, n, "data.weight");
    if (s->target == column)
        snprintf(out, n, "data.target");
}

struct csv_options schema_csv(const struct schema *s)
{
    return (struct csv_options){
        .delimiter = s->delimiter,
        .no_header = s->no_header,
        .names = (const char *const *)s->names,
        .n_names = s->n_names,
        .skip = s->skip,
        .missing = (const char *const *)s->missing,
        .n_missing = s->n_missing,
    };
}
