/* spec/normal.c - from the tree of a spec to its normal form
 *
 * One function a kind of value (the table `readers` at the end); each is given the row of the
 * vocabulary and the value, and makes the JSON of the normal form or an error with the place.
 */
#include "spec/normal.h"

#include <stdio.h>
#include <string.h>

#include "spec/normal_int.h"
#include "spec/scan.h"

static int read_key(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                    struct err *err);
static int read_map(struct reader *r, const char *map, const struct value *v, json_t **out,
                    struct err *err);

static int no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "no memory for the spec");
}

/* Hands `made` out; NULL is a failed allocation. */
static int give(json_t *made, json_t **out, struct err *err)
{
    if (!made)
        return no_memory(err);
    *out = made;
    return 0;
}

static int in_range(const struct key *k, double x)
{
    return (k->flags & KEY_OPEN ? x > k->min : x >= k->min) &&
           (k->flags & KEY_BELOW ? x < k->max : x <= k->max);
}

static int read_text(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                     struct err *err)
{
    if (v->kind != VALUE_SCALAR || (v->plain && !*v->text))
        return normal_wrong_key(r, k, v, err);
    if ((k->flags & KEY_NAME) && !key_is_name(v->text))
        return normal_wrong(r, v,
                            "a name: up to 63 letters, digits, \"_\", \".\" or \"-\", a letter or "
                            "digit first", err);
    return give(json_string(v->text), out, err);
}

static int read_path(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                     struct err *err)
{
    if (v->kind != VALUE_SCALAR || !*v->text)
        return normal_wrong_key(r, k, v, err);
    return give(json_string(v->text), out, err);
}

static int read_word(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                     struct err *err)
{
    char words[256];

    if (v->kind == VALUE_SCALAR && key_is_word(k->of, v->text))
        return give(json_string(v->text), out, err);
    const char *near = v->kind == VALUE_SCALAR
                           ? key_near_word(k->of, v->text, words, sizeof words) : NULL;
    normal_wrong_key(r, k, v, err);
    size_t n = strlen(err->text);
    if (near)
        snprintf(err->text + n, sizeof err->text - n, " (did you mean \"%s\"?)", near);
    return -(int)err->code;
}

static int read_bool(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                     struct err *err)
{
    int yes;

    if (!scan_bool(v, &yes))
        return normal_wrong_key(r, k, v, err);
    return give(json_boolean(yes), out, err);
}

static int read_whole(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                      struct err *err)
{
    long long n;

    if (v->kind != VALUE_SCALAR || !v->plain || !scan_whole(v->text, &n) ||
        !in_range(k, (double)n))
        return normal_wrong_key(r, k, v, err);
    return give(json_integer(n), out, err);
}

static int read_number(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                       struct err *err)
{
    double x;

    if (v->kind != VALUE_SCALAR || !v->plain || !scan_number(v->text, r->c, &x) || !in_range(k, x))
        return normal_wrong_key(r, k, v, err);
    return give(json_real(x), out, err);
}

/* Reads one value of a list by `read`; a scalar alone is a list of one where `alone`. */
static int read_list(struct reader *r, const struct key *k, const struct value *v, int alone,
                     int (*read)(struct reader *, const struct key *, const struct value *,
                                 json_t **, struct err *),
                     json_t **out, struct err *err)
{
    OWN_JSON json_t *list = json_array();
    struct key item = *k;

    item.count = 0;
    if (!list)
        return no_memory(err);
    if (v->kind == VALUE_MAP || value_is_null(v) || (v->kind == VALUE_SCALAR && !alone))
        return normal_wrong_key(r, k, v, err);
    for (const struct value *c = v->kind == VALUE_LIST ? v->child : v; c;
         c = v->kind == VALUE_LIST ? c->next : NULL) {
        json_t *made = NULL;
        if (read(r, &item, c, &made, err) < 0)
            return -(int)err->code;
        if (json_array_append_new(list, made) < 0)
            return no_memory(err);
    }
    if (k->count && json_array_size(list) != (size_t)k->count)
        return normal_wrong_key(r, k, v, err);
    *out = TAKE(list);
    return 0;
}

static int read_numbers(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                        struct err *err)
{
    if (v->kind == VALUE_LIST && !v->n)
        return normal_wrong_key(r, k, v, err);
    struct key item = *k;
    item.kind = KEY_NUMBER;
    if (v->kind != VALUE_LIST || (k->count && v->n != k->count))
        item.kind = KEY_NUMBERS;
    return read_list(r, &item, v, !k->count, read_number, out, err);
}

static int read_wholes(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                       struct err *err)
{
    if (v->kind != VALUE_LIST)
        return normal_wrong_key(r, k, v, err);
    struct key item = *k;
    item.kind = KEY_WHOLE;
    return read_list(r, &item, v, 0, read_whole, out, err);
}

static int read_pair(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                     struct err *err)
{
    json_t *list;

    if (v->kind == VALUE_MAP || (v->kind == VALUE_LIST && v->n != 2))
        return normal_wrong_key(r, k, v, err);
    struct key item = *k;
    if (v->kind == VALUE_LIST)
        item.kind = KEY_WHOLE;
    if (read_list(r, &item, v, 1, read_whole, &list, err) < 0)
        return -(int)err->code;
    if (json_array_size(list) == 1 && json_array_append(list, json_array_get(list, 0)) < 0) {
        json_decref(list);
        return no_memory(err);
    }
    *out = list;
    return 0;
}

static int read_texts(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                      struct err *err)
{
    struct key item = *k;

    if (v->kind == VALUE_LIST)
        item.kind = KEY_TEXT;
    return read_list(r, &item, v, 1, read_text, out, err);
}

static int read_paths(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                      struct err *err)
{
    if ((v->kind == VALUE_LIST && (!v->n || (k->count && v->n != k->count))) ||
        (v->kind == VALUE_SCALAR && k->count > 1))
        return normal_wrong_key(r, k, v, err);
    struct key item = *k;
    if (v->kind == VALUE_LIST)
        item.kind = KEY_PATH;
    return read_list(r, &item, v, 1, read_path, out, err);
}

static int read_group(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                      struct err *err)
{
    if (v->kind != VALUE_LIST || v->n < 2)
        return normal_wrong(r, v, "a list of two names or more", err);
    return read_texts(r, k, v, out, err);
}

static int read_groups(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                       struct err *err)
{
    return read_list(r, k, v, 0, read_group, out, err);
}

static int read_header(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                       struct err *err)
{
    if (v->kind == VALUE_LIST && v->n)
        return read_texts(r, k, v, out, err);
    return read_bool(r, k, v, out, err);
}

static int read_shuffle(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                        struct err *err)
{
    int yes;

    if (scan_bool(v, &yes))
        return give(json_boolean(yes), out, err);
    return read_whole(r, k, v, out, err);
}

static int read_vocabulary(struct reader *r, const struct key *k, const struct value *v,
                           json_t **out, struct err *err)
{
    int word = v->kind == VALUE_SCALAR && strcmp(v->text, "auto") == 0;

    if (v->kind == VALUE_LIST && v->n)
        return read_texts(r, k, v, out, err);
    if (!word && !value_is_null(v))     /* null: "payment: vocabulary" */
        return normal_wrong_key(r, k, v, err);
    return give(json_string("auto"), out, err);
}

static int read_rows(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                     struct err *err)
{
    const struct value *low = value_item(v, 0), *high = value_item(v, 1);
    long long a, b = -1;

    if (v->kind == VALUE_LIST) {        /* the normal form: [0, 404] or [404, null] */
        if (v->n != 2 || low->kind != VALUE_SCALAR || !scan_whole(low->text, &a) || a < 0 ||
            (!value_is_null(high) &&
             (high->kind != VALUE_SCALAR || !scan_whole(high->text, &b) || b < 0)))
            return normal_wrong_key(r, k, v, err);
    } else if (v->kind != VALUE_SCALAR || !scan_range(v->text, &a, &b)) {
        return normal_wrong_key(r, k, v, err);
    }
    if (a < 0)
        a = 0;
    if (b >= 0 && b <= a)
        return normal_wrong(r, v, "a range whose end is beyond its start", err);
    return give(b < 0 ? json_pack("[I, n]", (json_int_t)a)
                      : json_pack("[I, I]", (json_int_t)a, (json_int_t)b), out, err);
}

static int read_range(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                      struct err *err)
{
    long long a, b;
    char text[80];

    if (v->kind != VALUE_SCALAR)
        return normal_wrong_key(r, k, v, err);
    if (scan_whole(v->text, &a))
        b = a;
    else if (!scan_range(v->text, &a, &b))
        return normal_wrong_key(r, k, v, err);
    if (a < k->min || b > k->max || b < a) {
        snprintf(text, sizeof text, "a number or a range from %g to %g", k->min, k->max);
        return normal_wrong(r, v, text, err);
    }
    snprintf(text, sizeof text, "%lld..%lld", a, b);
    return give(json_string(text), out, err);
}

/* KEY_EVERY and KEY_WHEN. */
static int read_every(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                      struct err *err)
{
    const int timed = k->kind == KEY_WHEN;
    const char *unit;
    long long n;
    char text[48];

    if (v->kind == VALUE_SCALAR && strcmp(v->text, "never") == 0)
        return give(json_string("never"), out, err);
    if (v->kind != VALUE_SCALAR || !(timed ? scan_when : scan_every)(v->text, &n, &unit))
        return normal_wrong_key(r, k, v, err);
    snprintf(text, sizeof text, "%lld %s%s", n, unit, n > 1 ? "s" : "");
    return give(json_string(text), out, err);
}

static int read_size(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                     struct err *err)
{
    double bytes;

    if (v->kind != VALUE_SCALAR || !scan_quantity(v->text, &bytes) || bytes < 1 || bytes > 1e15)
        return normal_wrong_key(r, k, v, err);
    return give(json_string(v->text), out, err);
}

static int read_metric(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                       struct err *err)
{
    char words[128];

    if (v->kind != VALUE_SCALAR || !*v->text)
        return normal_wrong_key(r, k, v, err);
    if (!scan_metric(v->text))
        return normal_unknown_word(r, v, "metric",
                                   key_near_word(key_metrics, v->text, words, sizeof words), err);
    return give(json_string(v->text), out, err);
}

static int read_metrics(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                        struct err *err)
{
    return read_list(r, k, v, 1, read_metric, out, err);
}

static int read_monitor(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                        struct err *err)
{
    char near[64];

    if (v->kind != VALUE_SCALAR || !*v->text)
        return normal_wrong_key(r, k, v, err);
    int none = strcmp(k->name, "best") == 0 && strcmp(v->text, "none") == 0;
    if (!none && !scan_monitor(v->text, near, sizeof near))
        return normal_unknown_word(r, v, "metric", *near ? near : NULL, err);
    return give(json_string(v->text), out, err);
}

static int read_stop(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                     struct err *err)
{
    OWN_JSON json_t *map = json_object();

    if (!map)
        return no_memory(err);
    if (v->kind != VALUE_MAP)
        return normal_wrong_key(r, k, v, err);
    for (const struct value *c = v->child; c; c = c->next) {
        const struct key *own = key_find("stop", c->key);
        json_t *made = NULL;
        char near[64];
        if (!own && !scan_monitor(c->key, near, sizeof near)) {
            const char *word = key_near("stop", c->key);
            return normal_unknown_key(r, c, "stop", word ? word : *near ? near : NULL, err);
        }
        if (!own && (c->kind != VALUE_MAP || !c->n))
            return normal_wrong(r, c, "{below: NUMBER} or {above: NUMBER}", err);
        if (own ? read_key(r, own, c, &made, err) < 0 : read_map(r, "rule", c, &made, err) < 0)
            return -(int)err->code;
        if (json_object_set_new(map, c->key, made) < 0)
            return no_memory(err);
    }
    *out = TAKE(map);
    return 0;
}

static int read_map_key(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                        struct err *err)
{
    return read_map(r, k->of, v, out, err);
}

static int read_named(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                      struct err *err)
{
    OWN_JSON json_t *map = json_object();

    if (!map)
        return no_memory(err);
    if (v->kind != VALUE_MAP || !v->n)
        return normal_wrong_key(r, k, v, err);
    for (const struct value *c = v->child; c; c = c->next) {
        json_t *made = NULL;
        if (normal_check_name(r, c, err) < 0 || read_map(r, k->of, c, &made, err) < 0)
            return -(int)err->code;
        if (json_object_set_new(map, c->key, made) < 0)
            return no_memory(err);
    }
    *out = TAKE(map);
    return 0;
}

static int read_text_map(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                         struct err *err)
{
    OWN_JSON json_t *map = json_object();
    struct key item = *k;

    item.kind = KEY_TEXT;
    if (!map)
        return no_memory(err);
    if (v->kind != VALUE_MAP)
        return normal_wrong_key(r, k, v, err);
    for (const struct value *c = v->child; c; c = c->next) {
        json_t *made = NULL;
        if (normal_check_name(r, c, err) < 0 || read_text(r, &item, c, &made, err) < 0)
            return -(int)err->code;
        if (json_object_set_new(map, c->key, made) < 0)
            return no_memory(err);
    }
    *out = TAKE(map);
    return 0;
}

static int read_layer(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                      struct err *err)
{
    (void)k;
    return read_map(r, "layer", v, out, err);
}

static int read_model(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                      struct err *err)
{
    if (v->kind != VALUE_LIST)
        return read_map(r, "model", v, out, err);
    if (!v->n)
        return normal_wrong(r, v, "at least one layer", err);
    return read_list(r, k, v, 0, read_layer, out, err);
}

/* A value that stands for the key `k` in a map that was written as `v`: the child of that name;
 * all of `v` when it is short for `k`; `nothing` when the map is the head's name alone. */
static const struct value *given(const struct value *v, const struct key *k,
                                 const struct value *nothing)
{
    if (v->kind == VALUE_MAP)
        return value_find(v, k->name);
    if (value_is_null(v))
        return NULL;
    if (k->flags & KEY_SHORT)
        return v;
    if ((k->flags & KEY_HEAD) && v->kind == VALUE_SCALAR && strcmp(v->text, k->name) == 0)
        return nothing;
    return NULL;
}

/* A map that was not written as one: is it a head's name, or short for a key? */
static int check_bare(const struct reader *r, const char *map, const struct value *v,
                      struct err *err)
{
    if (value_is_null(v) || v->kind == VALUE_MAP || key_flagged(map, KEY_SHORT))
        return 0;
    const struct key *k = v->kind == VALUE_SCALAR ? key_find(map, v->text) : NULL;
    if (k && (k->flags & KEY_HEAD))
        return 0;
    if (!key_flagged(map, KEY_HEAD))
        return normal_wrong(r, v, "a map", err);
    if (v->kind == VALUE_SCALAR && strcmp(map, "layer") == 0 && key_find("node", v->text))
        return normal_wants_graph(r, v, v->text, err);
    const char *near = v->kind == VALUE_SCALAR ? key_near(map, v->text) : NULL;
    return near ? normal_unknown_word(r, v, map, near, err) : normal_wrong_head(r, map, v, err);
}

static int check_keys(const struct reader *r, const char *map, const struct value *v,
                      struct err *err)
{
    const struct key *first = NULL;
    int heads = 0, alone = 0;

    if (v->kind != VALUE_MAP && !value_is_null(v))
        return 0;
    for (const struct value *c = v->child; c; c = c->next) {
        const struct key *k = key_find(map, c->key);
        if (!k)
            return normal_unknown_key(r, c, map, key_near(map, c->key), err);
        alone |= k->flags & KEY_ALONE;
        if (!(k->flags & KEY_HEAD))
            continue;
        if (heads++)
            return normal_two_heads(r, c, first, err);
        first = k;
    }
    if (heads || alone || !key_flagged(map, KEY_HEAD))
        return 0;
    return normal_wrong_head(r, map, v, err);
}

static int fill_default(struct reader *r, const struct key *k, json_t **out, struct err *err)
{
    OWN(value) v = NULL;

    if (strchr("[{\"", k->value[0])) {
        if (yaml_parse(k->value, strlen(k->value), "a default", NULL, &v, err) < 0)
            return -(int)err->code;
    } else if (!(v = value_scalar(k->value, 1))) {
        return no_memory(err);
    }
    return read_key(r, k, v, out, err);
}

static int read_map(struct reader *r, const char *map, const struct value *v, json_t **out,
                    struct err *err)
{
    OWN_JSON json_t *object = json_object();
    /* stands for what is not written below a head's name alone, `relu` */
    struct value nothing = { .kind = VALUE_SCALAR, .plain = 1, .text = (char[]){ "" },
                             .line = v->line, .column = v->column, .set = v->set,
                             .parent = (struct value *)v };

    if (!object)
        return no_memory(err);
    if (check_bare(r, map, v, err) < 0 || check_keys(r, map, v, err) < 0)
        return -(int)err->code;
    for (const struct key *k = key_next(map, NULL); k; k = key_next(map, k)) {
        nothing.key = (char *)k->name;
        const struct value *c = given(v, k, &nothing);
        int fits = !k->when || (r->format && key_is_word(k->when, r->format));
        json_t *made = NULL;
        if (c && !fits && r->format)
            return normal_misplaced(r, k, c, err);
        if (!c && fits && (k->flags & KEY_REQUIRED))
            return normal_missing(r, map, k, v, err);
        if (c ? read_key(r, k, c, &made, err) < 0
              : fits && k->value && !(k->flags & KEY_NAME) && fill_default(r, k, &made, err) < 0)
            return -(int)err->code;
        if (made && json_object_set_new(object, k->name, made) < 0)
            return no_memory(err);
    }
    *out = TAKE(object);
    return 0;
}

static int (*const readers[KEY_KIND_COUNT])(struct reader *, const struct key *,
                                            const struct value *, json_t **, struct err *) = {
    [KEY_TEXT] = read_text,
    [KEY_PATH] = read_path,
    [KEY_WORD] = read_word,
    [KEY_BOOL] = read_bool,
    [KEY_WHOLE] = read_whole,
    [KEY_NUMBER] = read_number,
    [KEY_NUMBERS] = read_numbers,
    [KEY_WHOLES] = read_wholes,
    [KEY_PAIR] = read_pair,
    [KEY_TEXTS] = read_texts,
    [KEY_PATHS] = read_paths,
    [KEY_GROUP] = read_group,
    [KEY_GROUPS] = read_groups,
    [KEY_HEADER] = read_header,
    [KEY_SHUFFLE] = read_shuffle,
    [KEY_VOCABULARY] = read_vocabulary,
    [KEY_ROWS] = read_rows,
    [KEY_RANGE] = read_range,
    [KEY_EVERY] = read_every,
    [KEY_WHEN] = read_every,
    [KEY_SIZE] = read_size,
    [KEY_METRICS] = read_metrics,
    [KEY_MONITOR] = read_monitor,
    [KEY_MAP] = read_map_key,
    [KEY_NAMED] = read_named,
    [KEY_TEXT_MAP] = read_text_map,
    [KEY_MODEL] = read_model,
    [KEY_STOP] = read_stop,
};

static int read_key(struct reader *r, const struct key *k, const struct value *v, json_t **out,
                    struct err *err)
{
    return readers[k->kind](r, k, v, out, err);
}

/* The head of data.train, which decides what other keys of data make sense. */
static const char *find_format(const struct value *root)
{
    const struct value *train = value_find(value_find(root, "data"), "train");

    if (!train || train->kind != VALUE_MAP)
        return NULL;
    for (const struct value *c = train->child; c; c = c->next) {
        const struct key *k = key_find("source", c->key);
        if (k && (k->flags & KEY_HEAD))
            return k->name;
    }
    return NULL;
}

int normal_form(const struct value *root, const char *file, json_t **out, struct err *err)
{
    struct reader r = { .file = file, .format = find_format(root) };

    if (value_is_null(root))
        return err_set(err, ERR_INVALID, "%s: empty; a spec begins with data, model, loss", file);
    if (root->kind != VALUE_MAP)
        return normal_wrong(&r, root, "a map of keys such as data, model, loss", err);
    r.c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!r.c)
        return no_memory(err);
    int rc = read_map(&r, "", root, out, err);
    freelocale(r.c);
    return rc;
}
