/* pipelines/argo.c - a Workflow of Argo -> a flow document
 *
 * The tree is read from the top down, once, and what is read is written into the flow document
 * (pipelines/flow.h). Names are looked up when all is read: argo_check.c.
 */
#include "pipelines/argo_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "pipelines/flow.h"
#include "spec/scan.h"

#define KFP "pipelines.kubeflow.org/"

/* ------------------------------------------------------------------ inputs of the run */

/* The types that kfp 1.x knows, as the flow document calls them. */
static const char *type_name(const json_t *type)
{
    static const struct { const char *kfp, *flow; } types[] = {
        { "String", "STRING" },       { "Integer", "NUMBER_INTEGER" }, { "Float", "NUMBER_DOUBLE" },
        { "Double", "NUMBER_DOUBLE" }, { "Bool", "BOOLEAN" },          { "Boolean", "BOOLEAN" },
        { "JsonArray", "LIST" },      { "List", "LIST" },              { "JsonObject", "STRUCT" },
        { "Dict", "STRUCT" },
    };
    const char *word = json_string_value(type);

    for (size_t i = 0; word && i < sizeof types / sizeof types[0]; i++)
        if (strcmp(types[i].kfp, word) == 0)
            return types[i].flow;
    return "STRING";
}

/* What kfp says of the inputs, by name; NULL: not written by kfp. Its JSON is only a hint. */
static json_t *kfp_spec(const struct value *metadata)
{
    const struct value *v = argo_get(argo_get(metadata, "annotations"), KFP "pipeline_spec");
    return v && v->kind == VALUE_SCALAR ? json_loads(v->text, 0, NULL) : NULL;
}

static const json_t *kfp_input(const json_t *spec, const char *name)
{
    size_t i;
    json_t *in;

    json_array_foreach(json_object_get(spec, "inputs"), i, in) {
        const char *word = json_string_value(json_object_get(in, "name"));
        if (word && strcmp(word, name) == 0)
            return in;
    }
    return NULL;
}

static int put_input(struct argo *c, json_t *inputs, const struct value *v, const json_t *kfp)
{
    const struct value *from = argo_get(v, "valueFrom"), *words = argo_get(v, "enum");
    const char *name;
    json_t *ref;

    if (argo_check_map(c, v, ARGO_PARAMETER) < 0 || argo_name(c, v, true, &name) < 0)
        return -(int)c->err->code;
    const json_t *told = kfp_input(kfp, name);
    json_t *in = json_pack("{s:s, s:s}", "name", name, "type",
                           type_name(json_object_get(told, "type")));
    argo_put_item(c, inputs, in);
    const struct value *given = value_find(v, "value");
    if (!given)
        given = value_find(v, "default");
    if (argo_put_text(c, in, "default", given && value_is_null(given) ? NULL : given) < 0)
        return -(int)c->err->code;
    if (json_object_get(told, "description"))
        argo_put(c, in, "description", json_incref(json_object_get(told, "description")));
    if (argo_put_text(c, in, "description", argo_get(v, "description")) < 0)
        return -(int)c->err->code;
    if (words) {
        json_t *list = json_array();
        argo_put(c, in, "enum", list);
        for (const struct value *w = words->child; w; w = w->next) {
            OWN_MEM char *text = argo_text(w);
            argo_put_item(c, list, text ? json_string(text) : NULL);
        }
    }
    if (!from)
        return 0;
    if (!argo_get(from, "configMapKeyRef"))
        return argo_refuse(c, from, "a parameter of the run has a value or a configMapKeyRef");
    if (argo_key_ref(c, argo_get(from, "configMapKeyRef"), &ref) < 0)
        return -(int)c->err->code;
    argo_put(c, in, "config", ref);
    return argo_put_text(c, in, "default", argo_get(from, "default"));
}

static int put_arguments(struct argo *c, const struct value *metadata)
{
    const struct value *arguments = argo_get(c->spec, "arguments"), *v;
    json_t *inputs = json_array();
    OWN_JSON json_t *kfp = kfp_spec(metadata);

    argo_put(c, c->flow, "inputs", inputs);
    if (json_is_string(json_object_get(kfp, "description")))
        argo_put(c, c->flow, "description", json_incref(json_object_get(kfp, "description")));
    if (!arguments)
        return 0;
    if (argo_check_map(c, arguments, ARGO_ARGUMENTS) < 0 ||
        argo_list(c, arguments, "parameters", &v) < 0)
        return -(int)c->err->code;
    for (; v; v = v->next)
        if (put_input(c, inputs, v, kfp) < 0)
            return -(int)c->err->code;
    if (argo_list(c, arguments, "artifacts", &v) < 0)
        return -(int)c->err->code;
    c->artifacts = v;
    return 0;
}

/* ------------------------------------------------------------------ the Workflow */

static int put_metadata(struct argo *c, const struct value *m)
{
    const struct value *name, *generate, *description;

    if (!m || m->kind != VALUE_MAP)
        return err_set(c->err, ERR_INVALID, "%s:1: metadata: a Workflow needs a name or a "
                       "generateName", c->name);
    name = argo_get(m, "name");
    generate = argo_get(m, "generateName");
    const struct value *v = name ? name : generate;
    if (argo_check_map(c, m, ARGO_METADATA) < 0)
        return -(int)c->err->code;
    if (!v || v->kind != VALUE_SCALAR || !*v->text)
        return argo_refuse(c, m, "a Workflow needs a name or a generateName");
    if (strlen(v->text) > 253 || strspn(v->text, "abcdefghijklmnopqrstuvwxyz0123456789-.") !=
                                     strlen(v->text))
        return argo_refuse(c, v, "\"%.60s\" is no name: lower-case letters, digits, - and . only",
                           v->text);
    argo_put(c, c->flow, "name", json_string(v->text));
    argo_put(c, c->flow, "generate", json_boolean(!name));
    description = argo_get(argo_get(m, "annotations"), "workflows.argoproj.io/description");
    if (argo_put_labels(c, c->flow, "labels", argo_get(m, "labels")) < 0 ||
        argo_put_labels(c, c->flow, "annotations", argo_get(m, "annotations")) < 0)
        return -(int)c->err->code;
    return argo_put_text(c, c->flow, "description", description);
}

static int put_claims(struct argo *c)
{
    const struct value *v;
    const char *name;
    double size;

    if (argo_list(c, c->spec, "volumeClaimTemplates", &v) < 0)
        return -(int)c->err->code;
    json_t *claims = v ? json_array() : NULL;
    if (claims)
        argo_put(c, c->flow, "claims", claims);
    for (; v; v = v->next) {
        const struct value *m = argo_get(v, "metadata"), *spec = argo_get(v, "spec");
        if (!m)
            return argo_refuse(c, v, "needs metadata.name");
        if (argo_word(c, m, "name", &name) < 0)
            return -(int)c->err->code;
        const struct value *storage = argo_get(argo_get(argo_get(spec, "resources"), "requests"),
                                               "storage");
        if (storage && (storage->kind != VALUE_SCALAR || !scan_quantity(storage->text, &size)))
            return argo_refuse(c, storage, "must be a size such as 1Gi");
        argo_put_item(c, claims, json_pack("{s:s, s:I}", "name", name, "size",
                                      (json_int_t)(storage && size < 9e18 ? size : 0)));
    }
    return 0;
}

static int put_whole(struct argo *c, const char *key, const struct value *v)
{
    long long n = 0;

    if (v && argo_whole(c, v, &n) < 0)
        return -(int)c->err->code;
    if (n < 0)
        return argo_refuse(c, v, "must be 0 (none) or more");
    argo_put(c, c->flow, key, json_integer(n));
    return 0;
}

/* What is said of this end counts before what is said of any. */
static int put_ttl(struct argo *c, const struct value *ttl)
{
    static const char *const keys[] = { "secondsAfterCompletion", "secondsAfterSuccess",
                                        "secondsAfterFailure" };
    json_t *out = json_object();
    long long n;

    argo_put(c, c->flow, "ttl", out);
    if (argo_check_map(c, ttl, ARGO_TTL) < 0)
        return -(int)c->err->code;
    for (int i = 0; i < 3; i++) {
        const struct value *v = argo_get(ttl, keys[i]);
        if (!v)
            continue;
        if (argo_whole(c, v, &n) < 0)
            return -(int)c->err->code;
        if (n < 0)
            return argo_refuse(c, v, "must be 0 or more");
        if (i != 2)
            argo_put(c, out, "succeeded", json_integer(n));
        if (i != 1)
            argo_put(c, out, "failed", json_integer(n));
    }
    return 0;
}

static int put_limits(struct argo *c)
{
    const struct value *ttl = argo_get(c->spec, "ttlStrategy"), *v;
    const struct value *gc = argo_get(c->spec, "artifactGC");

    if (put_whole(c, "parallelism", argo_get(c->spec, "parallelism")) < 0 ||
        put_whole(c, "deadline_s", argo_get(c->spec, "activeDeadlineSeconds")) < 0)
        return -(int)c->err->code;
    if (ttl && put_ttl(c, ttl) < 0)
        return -(int)c->err->code;
    v = gc && gc->kind == VALUE_MAP ? argo_get(gc, "strategy") : NULL;
    if (v && v->kind == VALUE_SCALAR && strcmp(v->text, "OnWorkflowCompletion") == 0)
        return argo_refuse(c, v, "not supported: artifacts stay as long as their run");
    return 0;
}

/* spec.onExit, or the hook of that name. */
static int put_exit(struct argo *c)
{
    const struct value *hooks = argo_get(c->spec, "hooks"), *on = argo_get(c->spec, "onExit");

    if (on && argo_put_text(c, c->flow, "exit", on) < 0)
        return -(int)c->err->code;
    if (!hooks)
        return 0;
    if (hooks->kind != VALUE_MAP)
        return argo_refuse(c, hooks, "must be a map");
    for (const struct value *h = hooks->child; h; h = h->next) {
        const char *template;
        if (strcmp(h->key, "exit") != 0 || on)
            return argo_refuse(c, h, "not supported: of hooks only \"exit\" is run, and one of it");
        if (argo_check_map(c, h, ARGO_HOOK) < 0 || argo_word(c, h, "template", &template) < 0)
            return -(int)c->err->code;
        if (argo_get(h, "expression"))
            return argo_refuse(c, argo_get(h, "expression"), "not supported: use \"when\" in steps "
                               "of the exit handler");
        argo_put(c, c->flow, "exit", json_string(template));
        json_t *arguments = argo_get(h, "arguments") ? json_object() : NULL;
        if (!arguments)
            continue;
        argo_put(c, c->flow, "exit_arguments", arguments);
        if (argo_put_arguments(c, arguments, argo_get(h, "arguments")) < 0)
            return -(int)c->err->code;
    }
    return 0;
}

static int put_labels_from(struct argo *c)
{
    const struct value *m = argo_get(c->spec, "workflowMetadata");

    if (!m)
        return 0;
    if (argo_get(m, "labelsFrom"))
        return argo_refuse(c, argo_get(m, "labelsFrom"), "not supported: write labels as they are");
    for (int i = 0; i < 2; i++) {
        const char *key = i ? "annotations" : "labels";
        json_t *all = json_object_get(c->flow, key);
        OWN_JSON json_t *more = json_object();
        if (argo_put_labels(c, more, key, argo_get(m, key)) < 0)
            return -(int)c->err->code;
        if (!all && json_object_get(more, key))
            argo_put(c, c->flow, key, json_incref(json_object_get(more, key)));
        else if (json_object_get(more, key) && json_object_update(all, json_object_get(more, key)))
            c->failed = true;
    }
    return 0;
}

/* ------------------------------------------------------------------ templateDefaults */

static struct value *copy_value(const struct value *from)
{
    struct value *v = from->kind == VALUE_SCALAR ? value_scalar(from->text, from->plain)
                                                 : value_new(from->kind);
    if (!v)
        return NULL;
    v->line = from->line;
    v->column = from->column;
    v->key_line = from->key_line;
    v->key_column = from->key_column;
    for (const struct value *child = from->child; child; child = child->next)
        if (value_append(v, child->key, copy_value(child)) < 0) {
            value_free(v);
            return NULL;
        }
    return v;
}

/* Keys that `map` has not are those of `defaults`. */
static void fill(struct argo *c, struct value *map, const struct value *defaults)
{
    for (const struct value *d = defaults ? defaults->child : NULL; d; d = d->next) {
        struct value *own = value_find(map, d->key);
        bool program = strcmp(d->key, "container") == 0 || strcmp(d->key, "script") == 0;
        if (own && program && own->kind == VALUE_MAP && d->kind == VALUE_MAP)
            fill(c, own, d);
        else if (!own && !program && value_append(map, d->key, copy_value(d)) < 0)
            c->failed = true;
    }
}

static void set_line(struct value *v, int line)
{
    v->line = v->key_line = line;
    for (struct value *child = v->child; child; child = child->next)
        set_line(child, line);
}

int argo_fill(struct argo *c, struct value *t)
{
    const struct value *retry = argo_get(c->spec, "retryStrategy");
    /* Small, since there may be one in every template. */
    static const struct yaml_limits limits = { "a patch", 64 << 10, 1000 };
    struct value *patch = value_find(t, "podSpecPatch");
    OWN(value) read = NULL;
    struct err err = { 0 };

    if (t->kind != VALUE_MAP)
        return 0;
    fill(c, t, c->defaults);
    if (retry && !value_find(t, "retryStrategy") && !value_find(t, "dag") &&
        !value_find(t, "steps") && value_append(t, "retryStrategy", copy_value(retry)) < 0)
        c->failed = true;
    if (!patch || patch->kind != VALUE_SCALAR)
        return 0;
    if (yaml_parse_all(patch->text, strlen(patch->text), "the patch", &limits, &read, &err) < 0)
        return argo_refuse(c, patch, "%s", err.text);
    struct value *only = read->n == 1 ? copy_value(read->child) : NULL;
    if (!only)
        return argo_refuse(c, patch, "must be one map, as JSON or YAML");
    set_line(only, patch->key_line);
    value_replace(patch, only);
    return 0;
}

/* ------------------------------------------------------------------ templates */

static int check_windows(struct argo *c, const struct value *owner)
{
    const struct value *os = argo_get(argo_get(owner, "nodeSelector"), "kubernetes.io/os");

    if (os && os->kind == VALUE_SCALAR && strcmp(os->text, "windows") == 0)
        return argo_refuse(c, os, "not supported: steps run on this machine, which is no Windows");
    return 0;
}

static int put_templates(struct argo *c, const struct value *spec)
{
    const struct value *list = argo_get(spec, "templates");
    const char *name;

    if (!list || list->kind != VALUE_LIST)
        return argo_refuse(c, list ? list : spec, "needs a list of templates");
    for (struct value *t = list->child; t; t = t->next) {
        if (t->kind != VALUE_MAP)
            return argo_refuse(c, t, "must be a map");
        if (argo_name(c, t, false, &name) < 0 || check_windows(c, t) < 0)
            return -(int)c->err->code;
        if (json_object_get(c->templates, name))
            return argo_refuse(c, t, "a template \"%s\" is there already (line %d)", name,
                               (int)json_integer_value(json_object_get(
                                   json_object_get(c->templates, name), "line")));
        if (argo_template(c, t, name) < 0)
            return -(int)c->err->code;
    }
    return 0;
}

/* Artifacts of the run are what the first template has when nothing else is given. */
static int put_run_artifacts(struct argo *c, const char *start)
{
    const json_t *inputs = json_object_get(json_object_get(c->templates, start), "inputs");
    const char *name, *key, *own;
    json_t *in, *part;
    size_t i;

    for (const struct value *v = c->artifacts; v; v = v->next) {
        json_t *from;
        if (argo_check_map(c, v, ARGO_ARTIFACT) < 0 || argo_name(c, v, true, &name) < 0 ||
            argo_refuse_mode(c, v) < 0 || argo_artifact_source(c, v, &from) < 0)
            return -(int)c->err->code;
        OWN_JSON json_t *source = from;
        if (!json_object_get(source, "raw") && !json_object_get(source, "uri"))
            return argo_refuse(c, v, "says not where artifact \"%s\" comes from: raw or gcs",
                               name);
        json_array_foreach(json_object_get(inputs, "artifacts"), i, in) {
            own = json_string_value(json_object_get(in, "name"));
            if (!own || strcmp(own, name) != 0)
                continue;
            json_object_foreach(source, key, part)
                argo_put(c, in, key, json_incref(part));
        }
    }
    return 0;
}

static int compile(struct argo *c, const struct value *doc)
{
    const struct value *spec = argo_get(doc, "spec");
    const char *entry;

    if (argo_check_map(c, doc, ARGO_WORKFLOW) < 0 || put_metadata(c, argo_get(doc, "metadata")) < 0)
        return -(int)c->err->code;
    if (!spec)
        return argo_refuse(c, doc, "needs \"spec\"");
    c->spec = spec;
    if (argo_check_map(c, spec, ARGO_SPEC) < 0 || check_windows(c, spec) < 0 ||
        argo_word(c, spec, "entrypoint", &entry) < 0)
        return -(int)c->err->code;
    c->defaults = argo_get(spec, "templateDefaults");
    if (c->defaults && c->defaults->kind != VALUE_MAP)
        return argo_refuse(c, c->defaults, "must be a map");
    argo_put(c, c->flow, "entry", json_string(entry));
    if (put_arguments(c, argo_get(doc, "metadata")) < 0 || put_limits(c) < 0 ||
        put_labels_from(c) < 0 || put_exit(c) < 0 || argo_put_volumes(c, c->flow, spec) < 0 ||
        put_claims(c) < 0 || put_templates(c, spec) < 0 || put_run_artifacts(c, entry) < 0)
        return -(int)c->err->code;
    const char *at_end = json_string_value(json_object_get(c->flow, "exit"));
    if (at_end && put_run_artifacts(c, at_end) < 0)
        return -(int)c->err->code;
    return c->failed ? 0 : argo_check(c);
}

int argo_compile(struct value *doc, const char *name, json_t **out, struct err *err)
{
    struct argo c = { .name = name, .err = err, .templates = json_object() };

    c.flow = json_pack("{s:s, s:O}", "dialect", "argo", "templates", c.templates);
    int rc = c.flow ? compile(&c, doc) : 0;
    free(c.use);
    argo_free_scopes(&c);
    json_decref(c.templates);
    if (rc == 0 && (!c.flow || c.failed))
        rc = err_set(err, ERR_NOMEM, "%s: no memory for the pipeline", name);
    if (rc < 0)
        json_decref(c.flow);
    else
        *out = c.flow;
    return rc;
}
