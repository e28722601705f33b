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
    char name[256] = "job";
    const char *slash = strrchr(file, '/'), *base = slash ? slash + 1 : file;
    size_t n = strcspn(base, ".");

    if (json_object_get(doc, "name"))
        return 0;
    if (slash && n == 5 && strncmp(base, "train", 5) == 0) {
        const char *end = slash;
        while (slash > file && slash[-1] != '/')
            slash--;
        if (end > slash && *slash != '.')
            snprintf(name, sizeof name, "%.*s", (int)(end - slash), slash);
    } else if (n && *base != '-') {
        snprintf(name, sizeof name, "%.*s", (int)n, base);
    }
    json_t *text = json_string(name);
    OWN_JSON json_t *rest = json_copy(doc);
    if (!text || !rest) {
        json_decref(text);
        return no_memory(err);
    }
    json_object_clear(doc);     /* so that it comes first, as in the table */
    if (put(doc, "name", text, err) < 0 || json_object_update(doc, rest) < 0)
        return no_memory(err);
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
    json_t *padding = json_incref(json_object_get(body, "padding"));
    json_object_del(body, "padding");           /* kernel, stride, padding: the table's order */
    if (put(body, "stride", json_deep_copy(json_object_get(body, "kernel")), err) < 0 ||
        put(body, "padding", padding, err) < 0)
        return -(int)err->code;
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

static int count_name(json_t *taken, json_t *body, const char *kind, int *count, struct err *err)
{
    const struct key *k = key_flagged(kind, KEY_NAME);
    char name[64];

    if (!k || json_object_get(body, "name"))
        return 0;
    do
        snprintf(name, sizeof name, "%s%d", k->value, ++*count);
    while (json_object_get(taken, name));
    if (put(taken, name, json_string(kind), err) < 0)
        return -(int)err->code;
    return put(body, "name", json_string(name), err);
}

static int *counter_of(const char *kind, int counters[5])
{
    static const char *const kinds[] = { "conv2d", "linear", "batchnorm", "layernorm", "embedding" };

    for (int i = 0; i < 5; i++)
        if (strcmp(kinds[i], kind) == 0)
            return &counters[i];
    return NULL;
}

static int make_layers(json_t *model, struct err *err)
{
    OWN_JSON json_t *taken = json_object();
    int counters[5] = { 0 };
    size_t i;
    json_t *layer;
    char path[64];
    const char *kind;

    if (!taken)
        return no_memory(err);
    json_array_foreach(model, i, layer) {
        json_t *body = layer_body(layer, &kind);
        snprintf(path, sizeof path, "model[%zu].%s", i, kind);
        if (take_given_name(taken, body, path, err) < 0 || fill_stride(body, kind, err) < 0)
            return -(int)err->code;
    }
    json_array_foreach(model, i, layer) {
        json_t *body = layer_body(layer, &kind);
        int *count = counter_of(kind, counters);
        if (!count)
            continue;
        if (json_object_get(body, "name"))
            ++*count;           /* conv2d, conv2d named "x", conv2d: conv1, x, conv3 */
        else if (count_name(taken, body, kind, count, err) < 0)
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
        if (strlen(name) > 63)
            return err_set(err, ERR_INVALID, "model.nodes.%.200s: a name has at most 63 letters",
                           name);
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

static int make_data(const json_t *data, struct err *err)
{
    const json_t *features = json_object_get(data, "features"), *feature;
    const char *name, *delimiter = json_string_value(json_object_get(data, "delimiter"));

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
    json_object_foreach((json_t *)features, name, feature) {
        const json_t *numeric = json_object_get(feature, "numeric");
        if (!json_object_get(feature, "bucketize") != !json_object_get(feature, "boundaries"))
            return err_set(err, ERR_INVALID, "data.features.%.100s: bucketize and boundaries come "
                           "together", name);
        if (!json_object_get(numeric, "mean") != !json_object_get(numeric, "variance"))
            return err_set(err, ERR_INVALID, "data.features.%.100s.numeric: mean and variance come "
                           "together", name);
    }
    return 0;
}

static int make_optimizer(const json_t *doc, struct err *err)
{
    const json_t *optimizer = json_object_get(doc, "optimizer"), *part;
    const json_t *wide = json_object_get(optimizer, "wide"), *deep = json_object_get(optimizer, "deep");
    const char *name;

    if (!wide != !deep || (wide && json_object_size(optimizer) != 2))
        return err_set(err, ERR_INVALID, "optimizer: wide and deep come together and alone");
    if (wide && !json_object_get(json_object_get(doc, "model"), "wide_and_deep"))
        return err_set(err, ERR_INVALID, "optimizer: only a wide_and_deep model has parts");
    if (wide && (json_object_get(wide, "wide") || json_object_get(deep, "wide")))
        return err_set(err, ERR_INVALID, "optimizer: a part has one optimizer");
    json_object_foreach((json_t *)(wide ? optimizer : NULL), name, part)
        if (json_object_size(part) != 1)
            return err_set(err, ERR_INVALID, "optimizer.%s: a part has one optimizer", name);
    const json_t *sgd = json_object_get(optimizer, "sgd");
    if (json_is_true(json_object_get(sgd, "nesterov")) &&
        json_real_value(json_object_get(sgd, "momentum")) <= 0)
        return err_set(err, ERR_INVALID, "optimizer.sgd.nesterov: needs a momentum above 0");
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
    return err_set(err, ERR_INVALID, "%s: \"%s\" is not among the metrics (add it to metrics)", path,
                   monitor + 5);
}

static int make_run(json_t *doc, struct err *err)
{
    const json_t *data = json_object_get(doc, "data"), *stop = json_object_get(doc, "stop"), *rule;
    json_t *checkpoint = json_object_get(doc, "checkpoint");
    const json_t *every = json_object_get(json_object_get(doc, "test"), "every");
    int tests = (json_object_get(data, "test") || json_object_get(data, "split")) &&
                strcmp(json_string_value(every), "never") != 0;
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
    const char *best = json_string_value(json_object_get(checkpoint, "best"));
    const char *saves = json_string_value(json_object_get(checkpoint, "every"));
    if (!best)
        return put(checkpoint, "best",
                   json_string(tests && strcmp(saves, "never") != 0 ? "test_loss" : "none"), err);
    if (!tests && strcmp(best, "none") != 0)
        return err_set(err, ERR_INVALID, "checkpoint.best: there are no tests to tell the best by "
                       "(give data.test or data.split)");
    return check_monitor(doc, "checkpoint.best", best, err);
}

static int make_schedule(json_t *doc, struct err *err)
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

    for (int i = 0; i < 4; i++)
        if (!json_object_get(doc, needed[i])) {
            const struct key *k = key_find("", needed[i]);
            return err_set(err, ERR_INVALID, "a spec needs \"%s\": %s", k->name, k->why);
        }
    if (make_data(json_object_get(doc, "data"), err) < 0 ||
        make_model(json_object_get(doc, "model"), err) < 0 || make_optimizer(doc, err) < 0 ||
        make_run(doc, err) < 0 || make_schedule(doc, err) < 0)
        return -(int)err->code;
    return make_shards(doc, err);
}

/* A program of the user's own: nothing of native training may stand beside it. */
static int make_program(json_t *doc, const char *kind, struct err *err)
{
    static const char *const native[] = { "data", "model", "loss", "optimizer", "clip", "schedule",
                                          "stop", "init", "order" };

    for (size_t i = 0; i < sizeof native / sizeof native[0]; i++)
        if (json_object_get(doc, native[i]))
            return err_set(err, ERR_INVALID, "%s: has no place beside \"%s\", which is a program "
                           "of your own", native[i], kind);
    if (strcmp(kind, "python") == 0 && json_object_get(doc, "command"))
        return err_set(err, ERR_INVALID, "command: \"python\" is given too; a job has one program");
    return put(doc, "data", json_object(), err);
}

int sense_make(json_t *doc, const char *file, struct err *err)
{
    if (make_name(doc, file, err) < 0)
        return -(int)err->code;
    if (json_object_get(doc, "python"))
        return make_program(doc, "python", err);
    if (json_object_get(doc, "command"))
        return make_program(doc, "command", err);
    return make_native(doc, err);
}
