/* spec/sense.c - what concerns two keys of a spec at once */
#include "spec/sense.h"

#include <stdio.h>
#include <string.h>

#include "base/own.h"
#include "spec/keys.h"
#include "spec/spec.h"

static int no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "no memory for the spec");
}

static int put(json_t *map, const char *key, json_t *value, struct err *err)
{
    return json_object_set_new(map, key, value) < 0 ? no_memory(err) : 0;
}


/* A job without a name is called after its file; "train.yaml" after its folder. */
static int make_name(json_t *doc, const char *file, struct err *err)
{
    char name[64] = "job";
    const char *slash = strrchr(file, '/'), *from = slash ? slash + 1 : file;
    size_t n = strcspn(from, ".");

    if (json_object_get(doc, "name"))
        return 0;
    if (slash && slash > file && n == 5 && strncmp(from, "train", 5) == 0) {
        for (from = slash; from > file && from[-1] != '/';)
            from--;
        n = (size_t)(slash - from);
    }
    while (n && (*from == '.' || *from == '-')) {
        from++;
        n--;
    }
    if (n)
        snprintf(name, sizeof name, "%.*s", (int)n, from);
    for (char *c = name; *c; c++)
        if (!key_is_name((char[]){ 'a', *c, 0 }))
            *c = '-';
    if (name[0] == '-')
        name[0] = '_';
    return put(doc, "name", json_string(name), err);
}

/* The table's order again, after keys were added. */
static int sort_keys(json_t *doc, struct err *err)
{
    OWN_JSON json_t *all = json_copy(doc);

    /* json_copy does not tell when it had no memory for an item. */
    if (!all || json_object_size(all) != json_object_size(doc))
        return no_memory(err);
    json_object_clear(doc);
    for (const struct key *k = key_next("", NULL); k; k = key_next("", k)) {
        json_t *value = json_object_get(all, k->name);
        if (value && json_object_set(doc, k->name, value) < 0)
            return no_memory(err);
    }
    return 0;
}

/* The layer's own map, and its kind. */
static json_t *layer_body(json_t *layer, const char **out_kind)
{
    const char *key;
    json_t *body;

    json_object_foreach(layer, key, body) {
        const struct key *k = key_find("node", key);
        if (k && (k->flags & KEY_HEAD)) {
            *out_kind = key;
            return body;
        }
    }
    return NULL;
}

static int fill_stride(json_t *body, const char *kind, struct err *err)
{
    if (!key_is_word("maxpool|avgpool", kind) || json_object_get(body, "stride"))
        return 0;
    const json_t *kernel = json_object_get(body, "kernel");
    OWN_JSON json_t *padding = json_incref(json_object_get(body, "padding"));
    json_object_del(body, "padding");           /* kernel, stride, padding: the table's order */
    json_t *stride = json_pack("[O, O]", json_array_get(kernel, 0), json_array_get(kernel, 1));
    if (put(body, "stride", stride, err) < 0 || json_object_set(body, "padding", padding) < 0)
        return no_memory(err);
    return 0;
}

/* Names that are given, to refuse a second use and to keep counted names off them. */
static int take_given_name(json_t *taken, const json_t *body, const char *path, struct err *err)
{
    const char *name = json_string_value(json_object_get(body, "name"));

    if (!name)
        return 0;
    const char *other = json_string_value(json_object_get(taken, name));
    if (other)
        return err_set(err, ERR_INVALID, "%s.name: \"%s\" is the name of %s already", path, name,
                       other);
    return put(taken, name, json_string(path), err);
}

/* "conv3" for the third conv2d, whether the two before it were named or counted. */
static int count_name(json_t *taken, json_t *counts, json_t *body, const char *kind,
                      struct err *err)
{
    const struct key *k = key_flagged(kind, KEY_NAME);
    int count = (int)json_integer_value(json_object_get(counts, kind));
    char name[64];

    if (!k)
        return 0;
    if (json_object_get(body, "name"))
        return put(counts, kind, json_integer(count + 1), err);
    do
        snprintf(name, sizeof name, "%s%d", k->value, ++count);
    while (json_object_get(taken, name));
    if (put(taken, name, json_string(kind), err) < 0 ||
        put(counts, kind, json_integer(count), err) < 0)
        return -(int)err->code;
    return put(body, "name", json_string(name), err);
}

static int make_layers(json_t *model, struct err *err)
{
    OWN_JSON json_t *taken = json_object();
    OWN_JSON json_t *counts = json_object();
    size_t i;
    json_t *layer;
    char path[64];
    const char *kind;

    if (!taken || !counts)
        return no_memory(err);
    json_array_foreach(model, i, layer) {
        json_t *body = layer_body(layer, &kind);
        snprintf(path, sizeof path, "model[%zu].%s", i, kind);
        if (take_given_name(taken, body, path, err) < 0 || fill_stride(body, kind, err) < 0)
            return -(int)err->code;
    }
    json_array_foreach(model, i, layer) {
        json_t *body = layer_body(layer, &kind);
        if (count_name(taken, counts, body, kind, err) < 0)
            return -(int)err->code;
    }
    return 0;
}

static int make_from(json_t *node, const char *kind, const char *before, struct err *err)
{
    if (json_object_get(node, "from"))
        return 0;
    const json_t *body = json_object_get(node, kind);
    if (strcmp(kind, "embedding") == 0 && json_object_get(body, "of"))
        return put(node, "from", json_array(), err);
    return put(node, "from", json_pack("[s]", before), err);
}

static int make_graph(json_t *model, struct err *err)
{
    json_t *nodes = json_object_get(model, "nodes"), *node;
    OWN_JSON json_t *taken = json_object();
    const char *name, *kind, *before = "input";
    char path[200];

    if (!taken)
        return no_memory(err);
    json_object_foreach(nodes, name, node) {
        json_t *body = layer_body(node, &kind);
        snprintf(path, sizeof path, "model.nodes.%.60s.%s", name, kind);
        if (strcmp(name, "input") == 0)
            return err_set(err, ERR_INVALID, "model.nodes.input: \"input\" is the data; give the "
                           "node another name");
        if (!key_is_name(name))
            return err_set(err, ERR_INVALID, "model.nodes.%.100s: a node's name has up to 63 "
                           "letters, digits, \"_\", \".\" or \"-\"", name);
        if (key_flagged(kind, KEY_NAME) && !json_object_get(body, "name") &&
            put(body, "name", json_string(name), err) < 0)
            return -(int)err->code;
        if (take_given_name(taken, body, path, err) < 0 || fill_stride(body, kind, err) < 0 ||
            make_from(node, kind, before, err) < 0)
            return -(int)err->code;
        before = name;
    }
    const char *output = json_string_value(json_object_get(model, "output"));
    if (!output)
        return put(model, "output", json_string(before), err);
    if (!json_object_get(nodes, output))
        return err_set(err, ERR_INVALID, "model.output: no node \"%.60s\"", output);
    return 0;
}

static int make_model(json_t *model, struct err *err)
{
    if (json_is_array(model))
        return make_layers(model, err);
    return json_object_get(model, "nodes") ? make_graph(model, err) : 0;
}

/* A class, a word or a metric is there once. */
static int check_once(const json_t *list, const char *path, struct err *err)
{
    OWN_JSON json_t *seen = json_object();
    const json_t *item;
    size_t i;

    if (!seen)
        return no_memory(err);
    json_array_foreach(json_is_array(list) ? list : NULL, i, item) {
        const char *text = json_string_value(item);
        if (json_object_get(seen, text))
            return err_set(err, ERR_INVALID, "%.150s[%zu]: \"%.60s\" is there twice", path, i,
                           text);
        if (put(seen, text, json_true(), err) < 0)
            return -(int)err->code;
    }
    return 0;
}

/* Keys of a feature that only make sense together: `key` is for the head `of`. */
static int check_pair(const json_t *feature, const char *name, const char *of, const char *key,
                      int both, struct err *err)
{
    const json_t *head = json_object_get(feature, of), *beside = json_object_get(feature, key);

    if (beside && !head)
        return err_set(err, ERR_INVALID, "data.features.%.100s.%s: only \"%s\" has it", name, key,
                       of);
    if (both && head && !beside)
        return err_set(err, ERR_INVALID, "data.features.%.100s: \"%s\" needs \"%s\"", name, of,
                       key);
    return 0;
}

static int check_boundaries(const json_t *list, const char *name, struct err *err)
{
    for (size_t i = 1; i < json_array_size(list); i++)
        if (json_real_value(json_array_get(list, i)) <=
            json_real_value(json_array_get(list, i - 1)))
            return err_set(err, ERR_INVALID, "data.features.%.100s.boundaries[%zu]: expected more "
                           "than the boundary before it", name, i);
    return 0;
}

static int check_numeric(const json_t *numeric, const char *name, struct err *err)
{
    const char *scale = json_string_value(json_object_get(numeric, "scale"));
    int mean = json_object_get(numeric, "mean") != NULL;

    if (!numeric || strcmp(scale, "none") == 0)
        return 0;
    if (strcmp(scale, "standard") == 0 && mean != (json_object_get(numeric, "variance") != NULL))
        return err_set(err, ERR_INVALID, "data.features.%.100s.numeric: \"mean\" and \"variance\" "
                       "come together", name);
    if (strcmp(scale, "range") == 0 && (mean != (json_object_get(numeric, "min") != NULL) ||
                                        mean != (json_object_get(numeric, "max") != NULL)))
        return err_set(err, ERR_INVALID, "data.features.%.100s.numeric: \"mean\", \"min\" and "
                       "\"max\" come together", name);
    return 0;
}

static int make_features(const json_t *features, struct err *err)
{
    const json_t *feature;
    const char *name;
    char path[160];

    json_object_foreach((json_t *)features, name, feature) {
        snprintf(path, sizeof path, "data.features.%.100s.vocabulary", name);
        if (check_pair(feature, name, "bucketize", "boundaries", 1, err) < 0 ||
            check_pair(feature, name, "cross", "buckets", 0, err) < 0 ||
            check_boundaries(json_object_get(feature, "boundaries"), name, err) < 0 ||
            check_numeric(json_object_get(feature, "numeric"), name, err) < 0 ||
            check_once(json_object_get(feature, "vocabulary"), path, err) < 0)
            return -(int)err->code;
    }
    return 0;
}

static int make_data(const json_t *data, struct err *err)
{
    const char *delimiter = json_string_value(json_object_get(data, "delimiter"));

    if (json_object_get(data, "test") && json_object_get(data, "split"))
        return err_set(err, ERR_INVALID, "data.split: data.test has the test rows already (remove "
                       "one of the two)");
    if (json_is_true(json_object_get(data, "stream")) &&
        json_is_true(json_object_get(data, "shuffle")))
        return err_set(err, ERR_INVALID, "data.stream: a stream cannot be shuffled as a whole "
                       "(set data.shuffle to a number of rows, or to false)");
    if (delimiter && (strlen(delimiter) != 1 || strchr("\"\r\n", delimiter[0])))
        return err_set(err, ERR_INVALID, "data.delimiter: expected one character such as \",\", "
                       "got \"%.20s\"", delimiter);
    if (check_once(json_object_get(data, "labels"), "data.labels", err) < 0)
        return -(int)err->code;
    return make_features(json_object_get(data, "features"), err);
}

static int check_sgd(const json_t *optimizer, const char *path, struct err *err)
{
    const json_t *sgd = json_object_get(optimizer, "sgd");

    if (json_is_true(json_object_get(sgd, "nesterov")) &&
        json_real_value(json_object_get(sgd, "momentum")) <= 0)
        return err_set(err, ERR_INVALID, "%s.sgd.nesterov: needs a momentum above 0", path);
    return 0;
}

static int make_optimizer(const json_t *doc, struct err *err)
{
    const json_t *optimizer = json_object_get(doc, "optimizer");
    const json_t *part[] = { json_object_get(optimizer, "wide"),
                             json_object_get(optimizer, "deep") };
    static const char *const path[] = { "optimizer.wide", "optimizer.deep" };

    if (!part[0] && !part[1])
        return check_sgd(optimizer, "optimizer", err);
    if (!part[0] || !part[1] || json_object_size(optimizer) != 2)
        return err_set(err, ERR_INVALID, "optimizer: \"wide\" and \"deep\" come together and "
                       "alone");
    if (!json_object_get(json_object_get(doc, "model"), "wide_and_deep"))
        return err_set(err, ERR_INVALID, "optimizer: only a wide_and_deep model has parts");
    for (int i = 0; i < 2; i++) {
        if (json_object_get(part[i], "wide") || json_object_get(part[i], "deep"))
            return err_set(err, ERR_INVALID, "%s: a part has one optimizer, without parts",
                           path[i]);
        if (check_sgd(part[i], path[i], err) < 0)
            return -(int)err->code;
    }
    return 0;
}

/* A monitored metric has to be computed at all: the loss always is. */
static int check_monitor(const json_t *doc, const char *path, const char *monitor, struct err *err)
{
    const json_t *metrics = json_object_get(doc, "metrics"), *metric;
    size_t i;

    if (strcmp(monitor, "test_loss") == 0 || strcmp(monitor, "none") == 0)
        return 0;
    json_array_foreach(metrics, i, metric)
        if (strcmp(json_string_value(metric), monitor + 5) == 0)
            return 0;
    return err_set(err, ERR_INVALID, "%s: \"%s\" is not among the metrics (add it to metrics)",
                   path, monitor + 5);
}

static int has_tests(const json_t *doc)
{
    const json_t *data = json_object_get(doc, "data");
    const json_t *every = json_object_get(json_object_get(doc, "test"), "every");

    return (json_object_get(data, "test") || json_object_get(data, "split")) &&
           strcmp(json_string_value(every), "never") != 0;
}

static int make_run(json_t *doc, int tests, struct err *err)
{
    const json_t *stop = json_object_get(doc, "stop"), *rule;
    json_t *checkpoint = json_object_get(doc, "checkpoint");
    const char *name;
    char path[80];

    json_object_foreach((json_t *)stop, name, rule) {
        if (!tests)
            return err_set(err, ERR_INVALID, "stop.%.40s: there are no tests to stop after (give "
                           "data.test or data.split)", name);
        snprintf(path, sizeof path, "stop.%.40s", name);
        if (strcmp(name, "patience") != 0 && check_monitor(doc, path, name, err) < 0)
            return -(int)err->code;
    }
    if (json_object_size(stop) > STOP_MAX / 2 + 1)
        return err_set(err, ERR_INVALID, "stop: at most %d rules", STOP_MAX / 2);
    if (json_array_size(json_object_get(doc, "metrics")) > METRIC_MAX)
        return err_set(err, ERR_INVALID, "metrics: at most %d", METRIC_MAX);
    if (check_once(json_object_get(doc, "metrics"), "metrics", err) < 0)
        return -(int)err->code;
    const char *best = json_string_value(json_object_get(checkpoint, "best"));
    const char *saves = json_string_value(json_object_get(checkpoint, "every"));
    if (!best) {
        int kept = strcmp(saves, "never") != 0 || json_object_get(stop, "patience");
        return put(checkpoint, "best", json_string(tests && kept ? "test_loss" : "none"), err);
    }
    if (!tests && strcmp(best, "none") != 0)
        return err_set(err, ERR_INVALID, "checkpoint.best: there are no tests to tell the best by "
                       "(give data.test or data.split)");
    return check_monitor(doc, "checkpoint.best", best, err);
}

static int make_schedule(json_t *doc, int tests, struct err *err)
{
    json_t *schedule = json_object_get(doc, "schedule");
    json_t *cosine = json_object_get(schedule, "cosine");
    const json_t *plateau = json_object_get(schedule, "plateau");

    if (cosine && !json_object_get(cosine, "epochs")) {
        OWN_JSON json_t *min = json_incref(json_object_get(cosine, "min"));
        json_object_clear(cosine);
        if (json_object_set(cosine, "epochs", json_object_get(doc, "epochs")) < 0 ||
            json_object_set(cosine, "min", min) < 0)
            return no_memory(err);
    }
    if (!plateau)
        return 0;
    if (!tests)
        return err_set(err, ERR_INVALID, "schedule.plateau: there are no tests to watch (give "
                       "data.test or data.split)");
    return check_monitor(doc, "schedule.plateau.metric",
                         json_string_value(json_object_get(plateau, "metric")), err);
}

static int make_shards(json_t *doc, struct err *err)
{
    int batch = (int)json_integer_value(json_object_get(doc, "batch")), shards = 1;

    if (json_object_get(doc, "shards"))
        return 0;
    while (shards * 2 <= batch && shards < 8)
        shards *= 2;
    return put(doc, "shards", json_integer(shards), err);
}

static int make_native(json_t *doc, struct err *err)
{
    static const char *const needed[] = { "data", "model", "loss", "optimizer" };

    if (json_object_get(doc, "image"))
        return err_set(err, ERR_INVALID, "image: only a program of your own (python, command) runs "
                       "in an image");
    for (int i = 0; i < 4; i++)
        if (!json_object_get(doc, needed[i]))
            return err_set(err, ERR_INVALID, "%s: a spec needs this key: %s", needed[i],
                           key_find("", needed[i])->why);
    if (make_data(json_object_get(doc, "data"), err) < 0 ||
        make_model(json_object_get(doc, "model"), err) < 0 || make_optimizer(doc, err) < 0 ||
        make_run(doc, has_tests(doc), err) < 0 || make_schedule(doc, has_tests(doc), err) < 0)
        return -(int)err->code;
    return make_shards(doc, err);
}

/* A program of the user's own: nothing of native training stands beside it, nor its defaults. */
static int make_program(json_t *doc, const struct value *root, const char *kind, struct err *err)
{
    for (const struct key *k = key_next("", NULL); k; k = key_next("", k)) {
        if (!(k->flags & KEY_NATIVE))
            continue;
        if (value_find(root, k->name))
            return err_set(err, ERR_INVALID, "%s: has no place beside \"%s\", which is a program "
                           "of your own", k->name, kind);
        json_object_del(doc, k->name);
    }
    if (strcmp(kind, "python") == 0 && json_object_get(doc, "command"))
        return err_set(err, ERR_INVALID, "command: \"python\" is given too; a job has one program");
    if (json_object_get(doc, "command") && !json_array_size(json_object_get(doc, "command")))
        return err_set(err, ERR_INVALID, "command: expected a program and its arguments, got an "
                       "empty list");
    return 0;
}

int sense_make(json_t *doc, const struct value *root, const char *file, struct err *err)
{
    const char *program = json_object_get(doc, "python")    ? "python"
                          : json_object_get(doc, "command") ? "command" : NULL;

    if (make_name(doc, file, err) < 0)
        return -(int)err->code;
    if (program ? make_program(doc, root, program, err) < 0 : make_native(doc, err) < 0)
        return -(int)err->code;
    return sort_keys(doc, err);
}
