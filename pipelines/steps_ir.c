/* pipelines/steps_ir.c - placeholders of kfp 2, filled when a step starts */
#include "pipelines/steps_ir.h"

#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/own.h"

enum { NEST_MAX = 16 };

/* gs://B/K -> /gcs/B/K, as the SDK does; NULL: of no store that it knows. Caller frees. */
static char *path_of(const char *uri)
{
    static const char *const stores[][2] = { { "gs://", "/gcs/" }, { "minio://", "/minio/" },
                                             { "s3://", "/s3/" } };
    char *path = NULL;

    for (size_t i = 0; i < sizeof stores / sizeof stores[0]; i++)
        if (!strncmp(uri, stores[i][0], strlen(stores[i][0])) &&
            asprintf(&path, "%s%s", stores[i][1], uri + strlen(stores[i][0])) < 0)
            return NULL;
    return path;
}

static char *output_uri(const struct steps_ir *of, const char *name)
{
    char *uri;

    return asprintf(&uri, "gs://%s/%s/%s/%s", of->bucket, of->run, of->node, name) < 0 ? NULL : uri;
}

static json_t *find_named(const json_t *list, const char *name)
{
    size_t i;
    json_t *item;

    json_array_foreach((json_t *)list, i, item)
        if (!strcmp(text_of(item, "name"), name))
            return item;
    return NULL;
}

static json_t *part_of(const json_t *order, const char *way, const char *kind)
{
    return json_object_get(json_object_get(order, way), kind);
}

/* ------------------------------------------------------------ where things are */

/* Inputs that are one artifact get its path; a list of them becomes an entry each. */
static json_t *place_inputs(const json_t *list)
{
    json_t *out = json_array();
    size_t i, j;
    json_t *item, *art;

    json_array_foreach((json_t *)list, i, item) {
        json_t *value = json_object_get(item, "value");
        OWN_JSON json_t *one = json_is_array(value) ? json_incref(value) : json_pack("[O*]", value);
        json_array_append_new(out, json_pack("{s:O?, s:O?, s:O?}", "name",
                                             json_object_get(item, "name"), "value", value, "type",
                                             json_object_get(item, "type")));
        json_array_foreach(one, j, art) {
            OWN_MEM char *path = path_of(text_of(art, "uri"));
            /* Metrics and the like are no file: what is said of them is all there is. What was
             * imported has no size yet. */
            bool imported = !json_object_get(art, "size") &&
                            !strncmp(text_of(art, "uri"), "gs://", 5);
            if (path && (imported || json_object_get(art, "sha256")))
                json_array_append_new(out, json_pack("{s:s, s:s, s:O}", "name", "", "path", path,
                                                     "value", art));
        }
    }
    return out;
}

static json_t *place_outputs(const struct steps_ir *of, const json_t *list, bool artifacts)
{
    json_t *out = json_array();
    size_t i;
    json_t *item;

    json_array_foreach((json_t *)list, i, item) {
        const char *name = text_of(item, "name");
        OWN_MEM char *uri = output_uri(of, name), *path = NULL;
        json_t *copy = json_copy(item);
        if (artifacts)
            path = uri ? path_of(uri) : NULL;
        else if (asprintf(&path, STEPS_IR_DIR "/%s", name) < 0)
            path = NULL;
        json_object_set_new(copy, "path", json_string(path ? path : ""));
        if (artifacts)
            json_object_set_new(copy, "optional", json_true());
        json_array_append_new(out, copy);
    }
    return out;
}

/* ------------------------------------------------------------ executor input */

/* An argument may speak of the step itself: {{$.pipeline_task_uuid}} */
static int fill_own(const struct steps_ir *of, const char *text, struct buf *out);

static json_t *type_json(const char *type)
{
    return json_pack("{s:s, s:s}", "schemaTitle", *type ? type : "system.Artifact", "schemaVersion",
                     "0.0.1");
}

static json_t *runtime_artifact(const char *name, const char *uri, const char *type,
                                const json_t *metadata)
{
    OWN_JSON json_t *none = json_object();

    return json_pack("{s:s, s:s, s:o, s:O}", "name", name, "uri", uri, "type", type_json(type),
                     "metadata", metadata ? (json_t *)metadata : none);
}

static json_t *input_artifacts(const json_t *list)
{
    json_t *out = json_object();
    size_t i, j;
    json_t *item, *art;

    json_array_foreach((json_t *)list, i, item) {
        json_t *value = json_object_get(item, "value");
        OWN_JSON json_t *all = json_array();
        OWN_JSON json_t *one = json_is_array(value) ? json_incref(value) : json_pack("[O*]", value);
        if (!*text_of(item, "name"))
            continue;           /* where one of them is */
        json_array_foreach(one, j, art) {
            const char *type = text_of(art, "type"), *name = text_of(art, "name");
            json_array_append_new(all, runtime_artifact(*name ? name : text_of(item, "name"),
                                                        text_of(art, "uri"),
                                                        *type ? type : text_of(item, "type"),
                                                        json_object_get(art, "metadata")));
        }
        if (json_array_size(all))
            json_object_set_new(out, text_of(item, "name"), json_pack("{s:O}", "artifacts", all));
    }
    return out;
}

/* A parameter with its type. Names of volumes and secrets (pipelines/ir_platform.c) are none. */
static void put_value(const struct steps_ir *of, const json_t *p, json_t *values)
{
    json_t *v = json_object_get(p, "value");
    const char *name = text_of(p, "name"), *text = json_string_value(v);
    OWN_BUF filled = BUF_INIT;

    if (!v || json_is_null(v) || !strncmp(name, STEPS_IR_HIDDEN, strlen(STEPS_IR_HIDDEN)))
        return;
    if (!strcmp(text_of(p, "type"), "NUMBER_DOUBLE") && json_is_integer(v))
        json_object_set_new(values, name, json_real((double)json_integer_value(v)));
    else if (text && strstr(text, "{{$.pipeline_") && fill_own(of, text, &filled) == 0)
        json_object_set_new(values, name, json_string(filled.data));
    else
        json_object_set(values, name, v);
}

static json_t *executor_input(const struct steps_ir *of, const json_t *order)
{
    OWN_JSON json_t *values = json_object(), *files = json_object(), *arts = json_object();
    size_t i;
    json_t *p;

    json_array_foreach(part_of(order, "inputs", "parameters"), i, p)
        put_value(of, p, values);
    json_array_foreach(part_of(order, "outputs", "parameters"), i, p)
        json_object_set_new(files, text_of(p, "name"), json_pack("{s:O}", "outputFile",
                                                                 json_object_get(p, "path")));
    json_array_foreach(part_of(order, "outputs", "artifacts"), i, p) {
        OWN_MEM char *uri = output_uri(of, text_of(p, "name"));
        json_object_set_new(arts, text_of(p, "name"),
                            json_pack("{s:[o]}", "artifacts",
                                      runtime_artifact(text_of(p, "name"), uri ? uri : "",
                                                       text_of(p, "type"), NULL)));
    }
    return json_pack("{s:{s:O, s:o}, s:{s:O, s:O, s:s}}", "inputs", "parameterValues", values,
                     "artifacts", input_artifacts(part_of(order, "inputs", "artifacts")), "outputs",
                     "parameters", files, "artifacts", arts, "outputFile", STEPS_IR_SAID);
}

/* ------------------------------------------------------------ placeholders */

struct filling {
    const struct steps_ir *of;
    const json_t *order;
    json_t *input;              /* {{$}} */
};

static void put_json(struct buf *out, const json_t *v)
{
    OWN_MEM char *text = json_is_string(v) ? NULL : json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);

    buf_text(out, json_is_string(v) ? json_string_value(v) : text ? text : "");
}

/* One artifact of an input or output: "path", "uri", "name" or "metadata" of it. */
static bool put_artifact(const struct filling *f, const char *way, const char *name,
                         const char *what, struct buf *out)
{
    const json_t *of = json_object_get(json_object_get(part_of(f->input, way, "artifacts"), name),
                                       "artifacts");
    const json_t *art = json_array_get(of, 0);
    OWN_MEM char *path = path_of(text_of(art, "uri"));

    if (!art)
        return false;
    if (!strcmp(what, "path"))
        buf_text(out, path ? path : text_of(art, "uri"));
    else if (!strcmp(what, "uri") || !strcmp(what, "name"))
        buf_text(out, text_of(art, what));
    else if (!strcmp(what, "metadata"))
        put_json(out, json_object_get(art, "metadata"));
    else
        return false;
    return true;
}

static bool put_parameter(const struct filling *f, const char *way, const char *name,
                          const char *what, struct buf *out)
{
    if (!strcmp(way, "outputs")) {
        const json_t *p = json_object_get(part_of(f->input, way, "parameters"), name);
        buf_text(out, text_of(p, "outputFile"));
        return p && !strcmp(what, "output_file");
    }
    const json_t *v = json_object_get(part_of(f->input, way, "parameterValues"), name);
    if (v)
        put_json(out, v);
    /* One that is optional and was not given is nothing. */
    return v || find_named(part_of(f->order, "inputs", "parameters"), name);
}

static bool put_word(const struct filling *f, const char *word, struct buf *out)
{
    const struct { const char *name, *value; } words[] = {
        { ".pipeline_job_name", f->of->workflow }, { ".pipeline_job_uuid", f->of->run },
        { ".pipeline_job_resource_name", f->of->workflow }, { ".pipeline_task_name", f->of->task },
        { ".pipeline_task_uuid", f->of->node },
    };
    char way[16], kind[16], name[256], what[32] = "", stamp[32];
    time_t t = (time_t)f->of->created;
    struct tm tm;

    if (!*word) {
        put_json(out, f->input);
        return true;
    }
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (!strcmp(word, words[i].name)) {
            buf_text(out, words[i].value);
            return true;
        }
    if (!strcmp(word, ".pipeline_root")) {
        buf_printf(out, "gs://%s/%s", f->of->bucket, f->of->run);
        return true;
    }
    if (!strcmp(word, ".pipeline_job_create_time_utc")
        || !strcmp(word, ".pipeline_job_schedule_time_utc")) {
        strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&t, &tm));
        buf_text(out, stamp);
        return true;
    }
    int n = sscanf(word, ".%15[a-z].%15[a-z]['%255[^']'].%31[a-z_]", way, kind, name, what);
    if (n < 3 || (strcmp(way, "inputs") && strcmp(way, "outputs")))
        return false;
    if (!strcmp(kind, "artifacts"))
        return put_artifact(f, way, name, what, out);
    return !strcmp(kind, "parameters") && put_parameter(f, way, name, what, out);
}

static int fill_text(const struct filling *f, const char *text, struct buf *out, struct err *err)
{
    while (*text) {
        const char *at = strstr(text, "{{$"), *end = at ? strstr(at, "}}") : NULL;
        if (!end) {
            buf_text(out, text);
            break;
        }
        buf_append(out, text, (size_t)(at - text));
        OWN_MEM char *word = strndup(at + 3, (size_t)(end - at - 3));
        if (!word || !put_word(f, word, out))
            return err_set(err, ERR_INVALID, "placeholder {{$%.100s}} names nothing that the step has",
                           word ? word : "");
        text = end + 2;
    }
    return buf_ok(out, err);
}

static int fill_own(const struct steps_ir *of, const char *text, struct buf *out)
{
    const struct filling f = { of, NULL, NULL };
    struct err none = { 0 };
    return fill_text(&f, text, out, &none);
}

static int fill_value(const struct filling *f, const json_t *v, json_t *out, int depth,
                      struct err *err);

/* {"Concat": [parts]} is one text. */
static int fill_concat(const struct filling *f, const json_t *parts, json_t *out, int depth,
                       struct err *err)
{
    OWN_JSON json_t *all = json_array();
    OWN_BUF text = BUF_INIT;
    size_t i;
    json_t *p;

    json_array_foreach((json_t *)parts, i, p)
        if (fill_value(f, p, all, depth + 1, err) < 0)
            return -(int)err->code;
    json_array_foreach(all, i, p)
        buf_text(&text, json_string_value(p));
    if (buf_ok(&text, err) < 0)
        return -(int)err->code;
    json_array_append_new(out, json_string(text.data ? text.data : ""));
    return 0;
}

/* {"IfPresent": {"InputName", "Then", "Else"}}: no word, one or several. */
static int fill_if(const struct filling *f, const json_t *c, json_t *out, int depth,
                   struct err *err)
{
    const char *name = text_of(c, "InputName");
    bool there = json_object_get(part_of(f->input, "inputs", "parameterValues"), name) ||
                 json_object_get(part_of(f->input, "inputs", "artifacts"), name);
    const json_t *then = json_object_get(c, there ? "Then" : "Else");
    size_t i;
    json_t *p;

    if (!json_is_array(then))
        return then ? fill_value(f, then, out, depth + 1, err) : 0;
    json_array_foreach((json_t *)then, i, p)
        if (fill_value(f, p, out, depth + 1, err) < 0)
            return -(int)err->code;
    return 0;
}

/* A word of a command: appended to `out`, filled. */
static int fill_value(const struct filling *f, const json_t *v, json_t *out, int depth,
                      struct err *err)
{
    const json_t *format = json_object_get(v, "format");
    const char *text = json_string_value(format ? format : v);
    OWN_BUF filled = BUF_INIT;

    if (depth > NEST_MAX)
        return err_set(err, ERR_INVALID, "placeholders are nested more than %d deep", NEST_MAX);
    OWN_JSON json_t *parsed = text && *text == '{' && (strstr(text, "\"Concat\"") ||
                                                       strstr(text, "\"IfPresent\""))
        ? json_loads(text, 0, NULL) : NULL;
    const json_t *doc = parsed ? parsed : v;
    if (json_is_array(json_object_get(doc, "Concat")))
        return fill_concat(f, json_object_get(doc, "Concat"), out, depth, err);
    if (json_is_object(json_object_get(doc, "IfPresent")))
        return fill_if(f, json_object_get(doc, "IfPresent"), out, depth, err);
    if (!text) {
        put_json(&filled, v);
    } else if (fill_text(f, text, &filled, err) < 0) {
        return -(int)err->code;
    }
    json_t *word = json_stringn(filled.data ? filled.data : "", filled.n);
    return word && json_array_append_new(out, word) == 0
        ? 0 : err_set(err, ERR_INVALID, "a word of the command is not UTF-8");
}

static int fill_words(const struct filling *f, json_t *step, const char *key, struct err *err)
{
    OWN_JSON json_t *out = json_array();
    size_t i;
    json_t *v;

    json_array_foreach(json_object_get(step, key), i, v)
        if (fill_value(f, v, out, 0, err) < 0)
            return err_add(err, "%s[%zu]", key, i);
    json_object_set(step, key, out);
    return 0;
}

static int fill_env(const struct filling *f, json_t *step, struct err *err)
{
    OWN_JSON json_t *out = json_array();
    size_t i;
    json_t *e;

    json_array_foreach(json_object_get(step, "env"), i, e) {
        OWN_JSON json_t *copy = json_copy(e), *one = json_array();
        if (json_object_get(e, "value")) {
            if (fill_value(f, json_object_get(e, "value"), one, 0, err) < 0)
                return err_add(err, "env %.64s", text_of(e, "name"));
            json_object_set(copy, "value", json_array_get(one, 0));
        }
        json_array_append(out, copy);
    }
    json_object_set(step, "env", out);
    return 0;
}

static int fill_image(const struct filling *f, json_t *step, struct err *err)
{
    OWN_JSON json_t *one = json_array();

    if (fill_value(f, json_object_get(step, "image"), one, 0, err) < 0)
        return err_add(err, "image");
    json_object_set(step, "image", json_array_get(one, 0));
    return 0;
}

int steps_ir_fill(const struct steps_ir *of, json_t *order, struct err *err)
{
    OWN_JSON json_t *step = json_copy(json_object_get(order, "step"));
    OWN_JSON json_t *inputs = json_copy(json_object_get(order, "inputs"));
    OWN_JSON json_t *outputs = json_object();

    if (!json_object_get(step, "executor"))
        return 0;
    json_object_set_new(inputs, "artifacts", place_inputs(json_object_get(inputs, "artifacts")));
    json_object_set_new(outputs, "parameters",
                        place_outputs(of, part_of(order, "outputs", "parameters"), false));
    json_object_set_new(outputs, "artifacts",
                        place_outputs(of, part_of(order, "outputs", "artifacts"), true));
    json_object_set(order, "inputs", inputs);
    json_object_set(order, "outputs", outputs);
    json_object_set(order, "step", step);
    OWN_JSON json_t *input = executor_input(of, order);
    if (!input)
        return err_set(err, ERR_NOMEM, "no memory for a step");
    const struct filling f = { of, order, input };
    if (fill_image(&f, step, err) < 0 || fill_words(&f, step, "command", err) < 0 ||
        fill_words(&f, step, "args", err) < 0)
        return -(int)err->code;
    return fill_env(&f, step, err);
}

/* ------------------------------------------------------------ what it left */

int steps_ir_value(const char *type, const char *text, size_t n, json_t **out, struct err *err)
{
    json_t *v = !*type || !strcmp(type, "STRING") ? json_stringn(text, n)
                                                  : json_loadb(text, n, JSON_DECODE_ANY, NULL);

    /* Python's own words for a bool; and a list or a struct that is no JSON is a text. */
    if (!v && !strcmp(type, "BOOLEAN") && n >= 4 &&
        (!strncmp(text, "True", 4) || !strncmp(text, "False", 5)))
        v = json_boolean(text[0] == 'T');
    if (!v)
        return err_set(err, ERR_INVALID, "\"%.*s\" is no %s", (int)(n < 64 ? n : 64), text, type);
    *out = v;
    return 0;
}

bool steps_ir_said(const json_t *said, const json_t *output, json_t *parameters)
{
    json_t *v = json_object_get(json_object_get(said, "parameterValues"), text_of(output, "name"));

    if (!v || json_is_null(v))
        return false;
    if (!strcmp(text_of(output, "type"), "NUMBER_INTEGER") && json_is_real(v) &&
        json_real_value(v) == (double)(json_int_t)json_real_value(v))
        json_object_set_new(parameters, text_of(output, "name"),
                            json_integer((json_int_t)json_real_value(v)));
    else
        json_object_set(parameters, text_of(output, "name"), v);
    return true;
}

void steps_ir_artifacts(const struct steps_ir *of, const json_t *order, const json_t *said,
                        json_t *artifacts)
{
    size_t i;
    json_t *p;

    json_array_foreach(part_of(order, "outputs", "artifacts"), i, p) {
        const char *name = text_of(p, "name");
        const json_t *about = json_array_get(json_object_get(json_object_get(json_object_get(
            said, "artifacts"), name), "artifacts"), 0);
        json_t *art = json_object_get(artifacts, name);
        OWN_MEM char *uri = output_uri(of, name);
        if (!art) {
            art = json_pack("{s:s, s:s, s:i, s:b, s:O*}", "name", name, "uri", uri ? uri : "", "size",
                            0, "dir", 0, "type", json_object_get(p, "type"));
            json_object_set_new(artifacts, name, art);
        }
        if (json_object_size(json_object_get(about, "metadata")))
            json_object_set(art, "metadata", json_object_get(about, "metadata"));
        /* A component may say that it is elsewhere. */
        if (!json_object_get(art, "sha256") && *text_of(about, "uri"))
            json_object_set(art, "uri", json_object_get(about, "uri"));
    }
}
