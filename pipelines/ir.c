/* pipelines/ir.c - a PipelineSpec of kfp 2 (schema 2.1.0) -> a flow document
 *
 * DESIGN. A component is a template of its own; a task that wants it otherwise than another (its
 * retries, its cache) gets a copy under another name. Values keep their types: a number that is
 * whole is whole, as the SDK writes 3 as 3.0. What a component executes stays a text with
 * placeholders until the step begins (steps_ir.c), since they speak of files of that step.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipelines/flow.h"
#include "pipelines/ir_int.h"

/* ------------------------------------------------------------ small things */

int ir_refuse(struct ir *c, const struct value *at, const char *fmt, ...)
{
    char path[200], text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    value_path(at, path, sizeof path);
    return err_set(c->err, ERR_INVALID, "%s:%d: %s: %s", c->name,
                   at->key && at->key_line ? at->key_line : at->line, path, text);
}

static bool has_word(const char *words, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = words; *p; p += strspn(p, " ")) {
        size_t m = strcspn(p, " ");
        if (m == n && !memcmp(p, word, n))
            return true;
        p += m;
    }
    return false;
}

int ir_keys(struct ir *c, const struct value *map, const char *known, const char *idle)
{
    if (map->kind != VALUE_MAP)
        return ir_refuse(c, map, "must be a map");
    for (const struct value *k = map->child; k; k = k->next)
        if (!has_word(known, k->key) && !has_word(idle, k->key) && !value_is_null(k))
            return ir_refuse(c, k, "is not supported");
    return 0;
}

const struct value *ir_get(const struct value *map, const char *key)
{
    const struct value *v = map && map->kind == VALUE_MAP ? value_find(map, key) : NULL;
    return v && !value_is_null(v) ? v : NULL;
}

static int of_kind(struct ir *c, const struct value *map, const char *key, enum value_kind kind,
                   const struct value **out)
{
    *out = ir_get(map, key);
    if (*out && (*out)->kind != kind)
        return ir_refuse(c, *out, kind == VALUE_MAP ? "must be a map" : "must be a list");
    return 0;
}

int ir_map(struct ir *c, const struct value *map, const char *key, const struct value **out)
{
    return of_kind(c, map, key, VALUE_MAP, out);
}

int ir_list(struct ir *c, const struct value *map, const char *key, const struct value **out)
{
    return of_kind(c, map, key, VALUE_LIST, out);
}

int ir_word(struct ir *c, const struct value *map, const char *key, const char **out)
{
    const struct value *v = ir_get(map, key);
    if (!v || v->kind != VALUE_SCALAR || !*v->text)
        return ir_refuse(c, v ? v : map, v ? "must be a text" : "%s: is missing", key);
    *out = v->text;
    return 0;
}

bool ir_true(const struct value *map, const char *key)
{
    const struct value *v = ir_get(map, key);
    return v && v->kind == VALUE_SCALAR && !strcmp(v->text, "true");
}

double ir_number(const struct value *map, const char *key, double fallback)
{
    const struct value *v = ir_get(map, key);
    return v && v->kind == VALUE_SCALAR ? strtod(v->text, NULL) : fallback;
}

void ir_put(struct ir *c, json_t *object, const char *key, json_t *value)
{
    c->failed |= json_object_set_new(object, key, value) < 0;
}

void ir_add(struct ir *c, json_t *array, json_t *value)
{
    c->failed |= json_array_append_new(array, value) < 0;
}

/* ------------------------------------------------------------ inputs and outputs */

/* A name becomes part of a path. */
static int check_name(struct ir *c, const struct value *v)
{
    size_t n = strlen(v->key);
    if (!n || n > 200 || strpbrk(v->key, "/'\"\n") || *v->key == '.')
        return ir_refuse(c, v, "is no name of an input or output");
    return 0;
}

static int put_parameters(struct ir *c, const struct value *map, bool input, json_t *out)
{
    static const char types[] = "STRING NUMBER_INTEGER NUMBER_DOUBLE BOOLEAN LIST STRUCT "
                                "TASK_FINAL_STATUS TASK_CONFIG";
    for (const struct value *p = map ? map->child : NULL; p; p = p->next) {
        const struct value *type = ir_get(p, "parameterType"), *given = ir_get(p, "defaultValue");
        json_t *doc = json_pack("{s:s}", "name", p->key);
        ir_add(c, out, doc);
        if (check_name(c, p) < 0 ||
            ir_keys(c, p, "parameterType defaultValue isOptional description literals", "type") < 0)
            return -(int)c->err->code;
        if (type && (type->kind != VALUE_SCALAR || !has_word(types, type->text)))
            return ir_refuse(c, type, "is no type of a parameter that is known here");
        if (type && strncmp(type->text, "TASK_", 5))
            ir_put(c, doc, "type", json_string(type->text));
        if (input && given)
            ir_put(c, doc, "default", json_pack("{s:o}", "json", ir_json(given)));
        if (input && ir_true(p, "isOptional"))
            ir_put(c, doc, "optional", json_true());
    }
    return 0;
}

static int put_artifacts(struct ir *c, const struct value *map, bool input, json_t *out)
{
    for (const struct value *a = map ? map->child : NULL; a; a = a->next) {
        const struct value *type = ir_get(a, "artifactType");
        const struct value *title = ir_get(type, "schemaTitle");
        json_t *doc = json_pack("{s:s, s:s}", "name", a->key, "type",
                                title && title->kind == VALUE_SCALAR ? title->text
                                                                     : "system.Artifact");
        ir_add(c, out, doc);
        if (check_name(c, a) < 0 ||
            ir_keys(c, a, "artifactType isArtifactList isOptional description metadata "
                          "properties customProperties", "") < 0 ||
            (type && ir_keys(c, type, "schemaTitle schemaVersion instanceSchema", "") < 0))
            return -(int)c->err->code;
        if (ir_true(a, "isArtifactList"))
            ir_put(c, doc, "list", json_true());
        if (input && ir_true(a, "isOptional"))
            ir_put(c, doc, "optional", json_true());
    }
    return 0;
}

static int put_definitions(struct ir *c, const struct value *component, const char *key,
                           const char *to, json_t *body)
{
    const struct value *map, *parameters, *artifacts;
    json_t *ps = json_array(), *as = json_array();
    bool input = *to == 'i';

    ir_put(c, body, to, json_pack("{s:o, s:o}", "parameters", ps, "artifacts", as));
    if (ir_map(c, component, key, &map) < 0 ||
        (map && ir_keys(c, map, "parameters artifacts", "") < 0) ||
        ir_map(c, map, "parameters", &parameters) < 0 ||
        ir_map(c, map, "artifacts", &artifacts) < 0)
        return -(int)c->err->code;
    if (put_parameters(c, parameters, input, ps) < 0)
        return -(int)c->err->code;
    return put_artifacts(c, artifacts, input, as);
}

/* ------------------------------------------------------------ components */

static int put_component(struct ir *c, const struct value *component, const char *name,
                         const struct value *task, json_t *body)
{
    if (ir_keys(c, component, "dag executorLabel inputDefinitions outputDefinitions",
                "singlePlatformSpecs platformSpecs taskConfigPassthroughs") < 0)
        return -(int)c->err->code;
    ir_put(c, body, "line", json_integer(component->line));
    if (put_definitions(c, component, "inputDefinitions", "inputs", body) < 0 ||
        put_definitions(c, component, "outputDefinitions", "outputs", body) < 0)
        return -(int)c->err->code;
    if (ir_get(component, "dag"))
        return ir_dag(c, component, name, body);
    return ir_executor(c, component, task, body);
}

static int seconds_of(struct ir *c, const struct value *map, const char *key, json_t *retry,
                      const char *to)
{
    const struct value *v = ir_get(map, key);
    double seconds = 0;
    if (!v)
        return 0;
    if (v->kind != VALUE_SCALAR || !flow_seconds(v->text, &seconds))
        return ir_refuse(c, v, "must be a duration, such as 30s");
    ir_put(c, retry, to, json_real(seconds));
    return 0;
}

/* What the task says of how its template is to run. */
static int task_manner(struct ir *c, const struct value *task, json_t *body)
{
    const struct value *retry = ir_get(task, "retryPolicy");
    const struct value *cache = ir_get(task, "cachingOptions");
    const struct value *age = ir_get(cache, "maxCacheStaleness");

    if (retry) {
        double limit = ir_number(retry, "maxRetryCount", 0);
        json_t *doc = json_pack("{s:f, s:s, s:f}", "limit", limit, "policy", "Always", "factor",
                                ir_number(retry, "backoffFactor", 2));
        if (limit > 0)
            ir_put(c, body, "retry", json_incref(doc));
        OWN_JSON json_t *own = doc;
        if (ir_keys(c, retry, "maxRetryCount backoffDuration backoffFactor backoffMaxDuration",
                    "") < 0 ||
            seconds_of(c, retry, "backoffDuration", own, "backoff_s") < 0 ||
            seconds_of(c, retry, "backoffMaxDuration", own, "max_s") < 0)
            return -(int)c->err->code;
    }
    if (cache && ir_keys(c, cache, "enableCache maxCacheStaleness cacheKey", "") < 0)
        return -(int)c->err->code;
    json_t *doc = json_pack("{s:b}", "enabled", cache && ir_true(cache, "enableCache"));
    ir_put(c, body, "cache", doc);
    return age ? seconds_of(c, cache, "maxCacheStaleness", doc, "staleness_s") : 0;
}

int ir_template(struct ir *c, const char *component, const struct value *at,
                const struct value *task, const char **out)
{
    const struct value *found = c->components ? value_find(c->components, component) : NULL;
    OWN_JSON json_t *body = json_object();

    if (!found)
        return ir_refuse(c, at, "there is no component \"%.64s\"", component);
    if (task_manner(c, task, body) < 0)
        return -(int)c->err->code;
    bool volume = false;        /* CreatePVC: what it does, its task's arguments say */
    const struct value *label = ir_get(found, "executorLabel");
    const struct value *e = label && label->kind == VALUE_SCALAR && c->executors
                                ? value_find(c->executors, label->text) : NULL;
    const struct value *image = ir_get(ir_get(e, "container"), "image");
    volume = image && image->kind == VALUE_SCALAR && !strncmp(image->text, "argostub/", 9);
    OWN_MEM char *manner = json_dumps(body, JSON_COMPACT | JSON_SORT_KEYS);
    for (int i = 1;; i++) {
        char name[300];
        snprintf(name, sizeof name, i > 1 ? "%.200s@%d" : "%.200s", component, i);
        const char *made = json_string_value(json_object_get(c->made, name));
        if (made && (volume || strcmp(made, manner ? manner : "")))
            continue;
        bool known = made != NULL;
        if (!known) {
            ir_put(c, c->made, name, json_string(manner ? manner : ""));
            ir_put(c, c->templates, name, json_incref(body));
        }
        *out = json_object_iter_key(json_object_iter_at(c->templates, name));
        if (known)
            return 0;
        if (++c->depth > IR_DEPTH_MAX)
            return ir_refuse(c, found, "components are nested deeper than %d", IR_DEPTH_MAX);
        int rc = put_component(c, found, component, task, body);
        c->depth--;
        return rc;
    }
}

/* ------------------------------------------------------------ the whole */

static void put_run_inputs(struct ir *c, const struct value *root, const json_t *body,
                           json_t *flow)
{
    const json_t *list = json_object_get(json_object_get(body, "inputs"), "parameters");
    json_t *inputs = json_array(), *p;
    size_t i;

    ir_put(c, flow, "inputs", inputs);
    json_array_foreach((json_t *)list, i, p) {
        const char *name = json_string_value(json_object_get(p, "name"));
        const struct value *v = ir_declared(root, "inputDefinitions", "parameters", name);
        const struct value *text = ir_get(v, "description"), *words = ir_get(v, "literals");
        json_t *type = json_object_get(p, "type");
        json_t *given = json_object_get(json_object_get(p, "default"), "json");
        json_t *doc = json_pack("{s:s, s:o, s:O*, s:O*}", "name", name, "type",
                                type ? json_incref(type) : json_string("STRING"), "default", given,
                                "optional", json_object_get(p, "optional"));
        ir_add(c, inputs, doc);
        if (text && text->kind == VALUE_SCALAR)
            ir_put(c, doc, "description", json_string(text->text));
        if (words)
            ir_put(c, doc, "enum", ir_json(words));
    }
}

static int find_platform(struct ir *c, const struct value *doc)
{
    const struct value *all, *one, *deployment;
    if (!doc)
        return 0;
    if (ir_keys(c, doc, "platforms", "") < 0 || ir_map(c, doc, "platforms", &all) < 0 ||
        (all && ir_keys(c, all, "kubernetes", "") < 0) || ir_map(c, all, "kubernetes", &one) < 0 ||
        (one && ir_keys(c, one, "deploymentSpec", "pipelineConfig config") < 0) ||
        ir_map(c, one, "deploymentSpec", &deployment) < 0 ||
        (deployment && ir_keys(c, deployment, "executors", "") < 0) ||
        ir_map(c, deployment, "executors", &c->platform) < 0)
        return -(int)c->err->code;
    return 0;
}

static int compile(struct ir *c, const struct value *spec, json_t *flow)
{
    const struct value *info, *root, *deployment;
    const struct value *version = ir_get(spec, "schemaVersion");
    const char *name;
    json_t *body = json_object();

    ir_put(c, c->templates, "root", body);
    ir_put(c, c->made, "root", json_string(""));
    if (ir_keys(c, spec, "components deploymentSpec pipelineInfo root schemaVersion sdkVersion "
                         "defaultPipelineRoot", "") < 0)
        return -(int)c->err->code;
    if (!version || version->kind != VALUE_SCALAR || strncmp(version->text, "2.", 2))
        return ir_refuse(c, version ? version : spec, "schemaVersion: must be 2.0.0 or 2.1.0");
    if (ir_map(c, spec, "pipelineInfo", &info) < 0 || ir_map(c, spec, "root", &root) < 0 ||
        ir_map(c, spec, "components", &c->components) < 0 ||
        ir_map(c, spec, "deploymentSpec", &deployment) < 0 ||
        (deployment && ir_keys(c, deployment, "executors", "") < 0) ||
        ir_map(c, deployment, "executors", &c->executors) < 0)
        return -(int)c->err->code;
    if (!info || !root || !ir_get(root, "dag"))
        return ir_refuse(c, root ? root : spec, info ? "root.dag: is missing"
                                                     : "pipelineInfo: is missing");
    if (ir_keys(c, info, "name description displayName", "") < 0 ||
        ir_word(c, info, "name", &name) < 0 || put_component(c, root, "root", NULL, body) < 0)
        return -(int)c->err->code;
    ir_put(c, flow, "dialect", json_string("ir"));
    ir_put(c, flow, "name", json_string(name));
    const struct value *text = ir_get(info, "description");
    if (text && text->kind == VALUE_SCALAR)
        ir_put(c, flow, "description", json_string(text->text));
    ir_put(c, flow, "generate", json_true());
    ir_put(c, flow, "entry", json_string("root"));
    ir_put(c, flow, "parallelism", json_integer(0));
    ir_put(c, flow, "deadline_s", json_integer(0));
    put_run_inputs(c, root, body, flow);
    return 0;
}

int ir_compile(struct value *spec, struct value *platform, const char *name, json_t **out,
               struct err *err)
{
    OWN_JSON json_t *templates = json_object(), *made = json_object(), *flow = json_object();
    struct ir c = { .name = name, .err = err, .templates = templates, .made = made };
    static const char *const wraps[][2] = { { "pipeline_spec", "platform_spec" },
                                            { "pipelineSpec", "platformSpec" } };

    for (int i = 0; i < 2; i++)
        if (ir_get(spec, wraps[i][0])) {
            platform = (struct value *)ir_get(spec, wraps[i][1]);
            spec = (struct value *)ir_get(spec, wraps[i][0]);
        }
    if (find_platform(&c, platform) < 0 || compile(&c, spec, flow) < 0)
        return -(int)err->code;
    json_object_set(flow, "templates", templates);
    if (c.failed)
        return err_set(err, ERR_NOMEM, "%s: no memory for the pipeline", name);
    *out = TAKE(flow);
    return 0;
}
