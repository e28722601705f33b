/* pipelines/graph_values.c - VALUE and ARTREF of a flow document, what templates get and give */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pipelines/graph_int.h"

static const char *text_at(const json_t *doc, const char *key)
{
    return json_string_value(json_object_get(doc, key));
}

/* Argo's values are texts. */
static json_t *in_dialect(const struct scope *s, json_t *value)
{
    return s->g->ir || !value ? value : graph_typed("STRING", value);
}

/* ------------------------------------------------------------ values */

/* The text is one tag and nothing else: its name. */
static char *only_tag(const char *text)
{
    size_t n = strlen(text);
    if (n < 5 || memcmp(text, "{{", 2) || text[2] == '=' || memcmp(text + n - 2, "}}", 2) ||
        strstr(text + 2, "{{") || strstr(text, "}}") != text + n - 2)
        return NULL;
    const char *from = text + 2, *to = text + n - 2;
    while (from < to && isspace((unsigned char)*from))
        from++;
    while (to > from && isspace((unsigned char)to[-1]))
        to--;
    return strndup(from, (size_t)(to - from));
}

/* As in Argo, a tag that begins with none of its words is no tag: another language's braces. */
static bool not_ours(const char *tag)
{
    static const char *const heads[] = {
        "inputs", "outputs", "tasks", "steps", "workflow", "item", "pod", "node", "retries",
        "lastRetry",
    };
    size_t n = strcspn(tag, ".");
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++)
        if (strlen(heads[i]) == n && !strncmp(tag, heads[i], n))
            return false;
    return true;
}

static int text_value(const struct scope *s, const char *text, json_t **out, struct err *err)
{
    struct flow_scope f = { scope_get, (void *)s };
    OWN_BUF b = BUF_INIT;
    OWN_MEM char *tag = only_tag(text);
    if (!strstr(text, "{{")) {
        *out = json_string(text);
        return 0;
    }
    /* Only an output of a task before it may be absent; any other name must be known. */
    if (tag && (!strncmp(tag, "tasks.", 6) || !strncmp(tag, "steps.", 6))) {
        json_t *v = scope_get((void *)s, tag);
        if (v && (*out = graph_typed("STRING", v)))
            return 0;
        size_t n = strcspn(tag + 6, ".");
        if (scope_task(s, tag + 6, n) && !strncmp(tag + 6 + n, ".outputs.", 9))
            return 0;
    }
    if (flow_expr_fill(text, &f, s->g->ir ? NULL : not_ours, &b, err) < 0)
        return -(int)err->code;
    *out = json_string(b.data ? b.data : "");
    return *out ? 0 : err_set(err, ERR_INVALID, "\"%.60s\" comes to what is no text", text);
}

/* kfp's PipelineTaskFinalStatus */
static json_t *final_status(const struct scope *s, const char *task)
{
    static const char *const states[] = {
        [NODE_PENDING] = "PENDING", [NODE_RUNNING] = "RUNNING", [NODE_SUCCEEDED] = "SUCCEEDED",
        [NODE_FAILED] = "FAILED", [NODE_ERROR] = "FAILED", [NODE_SKIPPED] = "SKIPPED",
        [NODE_OMITTED] = "SKIPPED",
    };
    const struct vertex *v = scope_task(s, task, strlen(task));
    if (!v)
        return NULL;
    json_t *error = json_object();
    if (node_failed(v->n.phase)) {
        json_t *code = json_object_get(v->n.outputs, "code");
        json_object_set_new(error, "code", code ? json_incref(code) : json_integer(1));
        json_object_set_new(error, "message",
                            json_string(v->n.message ? v->n.message : "it failed"));
    }
    return json_pack("{s:s, s:s, s:s, s:o}", "state", states[v->n.phase], "pipelineJobResourceName",
                     s->g->run_id, "pipelineTaskName", task, "error", error);
}

/* {"task" or "collected": T, "output": name} */
static int output_value(const struct scope *s, const char *task, const char *output,
                        const char *kind, json_t **out, struct err *err)
{
    const struct vertex *v = scope_task(s, task, strlen(task));
    if (!output)
        return err_set(err, ERR_INVALID, "an output of task \"%s\" has no name", task);
    if (!v)
        return 0;
    OWN_BUF path = BUF_INIT;
    buf_printf(&path, "tasks.%s.outputs.%s.%s", task, kind, output);
    if (buf_ok(&path, err) < 0)
        return -ERR_NOMEM;
    *out = scope_get((void *)s, path.data);
    if (!*out && !strcmp(kind, "parameters") && !strcmp(output, "result"))
        *out = json_incref(json_object_get(v->n.outputs, "result"));
    return 0;
}

int value_get(const struct scope *s, const json_t *value, json_t **out, struct err *err)
{
    const json_t *part;
    const char *text;
    json_t *v = NULL;
    int rc = 0;

    if (!json_is_object(value)) {
        v = json_incref((json_t *)value);
    } else if (json_object_get(value, "fill")) {
        rc = value_fill(s, value, &v, err);
    } else if ((part = json_object_get(value, "json"))) {
        v = json_incref((json_t *)part);
    } else if ((text = text_at(value, "text"))) {
        rc = text_value(s, text, &v, err);
    } else if ((text = text_at(value, "input"))) {
        v = json_incref(json_object_get(json_object_get(s->inputs, "parameters"), text));
    } else if ((text = text_at(value, "task")) || (text = text_at(value, "collected"))) {
        rc = output_value(s, text, text_at(value, "output"), "parameters", &v, err);
    } else if ((part = json_object_get(value, "item"))) {
        text = json_string_value(part);
        v = !s->item ? NULL
            : !text || !*text ? json_incref((json_t *)s->item)
                              : json_incref(json_object_get(s->item, text));
    } else if ((text = text_at(value, "status"))) {
        v = final_status(s, text);
    } else {
        *out = json_incref((json_t *)value);    /* "format": resolved in the step */
        return 0;
    }
    if (rc < 0)
        return rc;
    *out = in_dialect(s, value_below(v, json_object_get(value, "path")));
    return 0;
}

/* An expression over artifacts. */
static int artifact_expression(const struct scope *s, const char *text, size_t n, json_t **out,
                               struct err *err)
{
    struct flow_scope f = { scope_get, (void *)s };
    OWN(flow_expr) e = NULL;
    json_t *v = NULL;
    if (flow_expr_parse(text, n, &e, err) < 0 || flow_expr_eval(e, &f, &v, err) < 0)
        return -(int)err->code;
    if (!json_is_object(v) && !json_is_array(v)) {
        json_decref(v);
        return err_set(err, ERR_INVALID, "\"%.60s\" comes to no artifact", text);
    }
    *out = v;
    return 0;
}

static int artifact_whole(const struct scope *s, const json_t *ref, json_t **out, struct err *err)
{
    const json_t *raw = json_object_get(ref, "raw"), *uri = json_object_get(ref, "uri");
    const char *text;

    if (raw || json_is_object(uri)) {
        json_t *v = NULL;
        if (value_get(s, raw ? raw : uri, &v, err) < 0)
            return -(int)err->code;
        *out = v ? json_pack("{s:o}", raw ? "raw" : "uri", v) : NULL;
        return 0;
    }
    if ((text = text_at(ref, "input"))) {
        *out = json_incref(json_object_get(json_object_get(s->inputs, "artifacts"), text));
        return 0;
    }
    if ((text = text_at(ref, "task")) || (text = text_at(ref, "collected")))
        return output_value(s, text, text_at(ref, "output"), "artifacts", out, err);
    if ((text = text_at(ref, "expression")))
        return artifact_expression(s, text, strlen(text), out, err);
    if (!(text = text_at(ref, "text"))) {
        *out = json_incref((json_t *)ref);      /* an artifact as it is */
        return 0;
    }
    OWN_MEM char *tag = only_tag(text);
    if (tag) {
        *out = scope_get((void *)s, tag);
        return 0;
    }
    size_t n = strlen(text);
    bool tagged = n > 5 && !memcmp(text, "{{=", 3) && !memcmp(text + n - 2, "}}", 2);
    return artifact_expression(s, tagged ? text + 3 : text, tagged ? n - 5 : n, out, err);
}

/* "sub": a path below the artifact, which whoever reads it goes down. */
int artifact_get(const struct scope *s, const json_t *ref, json_t **out, struct err *err)
{
    const json_t *sub = json_object_get(ref, "sub");
    json_t *v = NULL;
    OWN_JSON json_t *below = NULL;
    if (artifact_whole(s, ref, &v, err) < 0)
        return -(int)err->code;
    if (sub && json_is_object(v) && value_get(s, sub, &below, err) < 0) {
        json_decref(v);
        return -(int)err->code;
    }
    if (below && json_is_string(below)) {
        json_t *own = json_copy(v);
        json_object_set(own, "sub", below);
        json_decref(v);
        v = own;
    }
    *out = v;
    return 0;
}

/* ------------------------------------------------------------ inputs of a template */

/* The value of a config map, as it was when the run began or one of its steps changed it. */
static int config_in(const struct scope *s, const json_t *doc, json_t **out, struct err *err)
{
    struct scope own = { .g = s->g };
    const json_t *config = json_object_get(doc, "config");
    OWN_JSON json_t *name = NULL;
    OWN_JSON json_t *key = NULL;
    if (value_get(&own, json_object_get(config, "name"), &name, err) < 0 ||
        value_get(&own, json_object_get(config, "key"), &key, err) < 0)
        return -(int)err->code;
    const char *map = json_string_value(name), *word = json_string_value(key);
    const json_t *held = json_object_get(s->g->configs, map ? map : "");
    json_t *v = json_object_get(held, word ? word : "");
    bool optional = json_is_true(json_object_get(config, "optional"));
    if (!v && !json_object_get(doc, "default") && !optional)
        return config_missing(map ? map : "", word ? word : "", err);
    *out = json_incref(v);
    return 0;
}

static int parameter_in(const struct scope *s, const json_t *arguments, const json_t *doc,
                        const struct tmpl *t, const char *item_name, json_t *to, struct err *err)
{
    const char *name = text_at(doc, "name"), *type = s->g->ir ? text_at(doc, "type") : "STRING";
    const json_t *argument = name ? json_object_get(arguments, name) : NULL;
    const json_t *fallback = json_object_get(doc, "default");
    json_t *v = NULL;

    if (!name)
        return 0;
    if (item_name && !strcmp(item_name, name) && s->item)
        v = in_dialect(s, json_incref((json_t *)s->item));
    else if (argument && s->home && value_get(s, argument, &v, err) < 0)
        return err_add(err, "parameter \"%s\"", name);
    else if (argument && !s->home)
        v = json_incref((json_t *)argument);    /* of the run: values, not VALUEs */
    if (!v && json_object_get(doc, "config") && config_in(s, doc, &v, err) < 0)
        return err_add(err, "parameter \"%s\"", name);
    if (!v && fallback) {
        struct scope own = { .g = s->g };
        if (value_get(&own, fallback, &v, err) < 0)
            return err_add(err, "default of parameter \"%s\"", name);
    }
    /* kfp: what the dag was not given itself is nothing, and goes on as that. */
    if (!v && s->g->ir && (!argument || json_object_get(argument, "input") ||
                           json_is_true(json_object_get(doc, "optional"))))
        return 0;
    if (!v)
        return err_set(err, ERR_INVALID, "parameter \"%s\" of template \"%s\" %s and has no "
                       "default", name, t->name,
                       argument ? "gets the output of a task that gave none," : "is not given");
    v = json_is_null(v) || json_object_get(v, "format") ? v : graph_typed(type, v);
    json_object_set_new(to, name, v);
    return 0;
}

/* Artifacts of the run are those of the template that it begins with, by name. */
static json_t *run_artifact(const struct scope *s, const char *name)
{
    const json_t *list = json_object_get(s->g->flow, "artifacts"), *doc;
    size_t i;
    json_array_foreach ((json_t *)list, i, doc) {
        const char *own = text_at(doc, "name");
        struct err none = { 0 };
        json_t *v = NULL;
        if (own && !strcmp(own, name) && artifact_get(s, doc, &v, &none) == 0)
            return v;
    }
    return NULL;
}

static int artifact_in(const struct scope *s, const json_t *arguments, const json_t *doc,
                       const struct tmpl *t, const char *item_name, json_t *to, struct err *err)
{
    const char *name = text_at(doc, "name");
    const json_t *ref = name ? json_object_get(arguments, name) : NULL;
    const json_t *raw = json_object_get(doc, "raw"), *uri = json_object_get(doc, "uri");
    json_t *v = NULL;
    struct err why = { 0 };
    bool optional = json_is_true(json_object_get(doc, "optional"));

    if (!name)
        return 0;
    if (item_name && !strcmp(item_name, name) && s->item)
        v = json_incref((json_t *)s->item);
    else if (ref && artifact_get(s, ref, &v, &why) < 0 && !optional) {
        *err = why;
        return err_add(err, "artifact \"%s\"", name);
    }
    if (!v && !s->home && !ref)
        v = run_artifact(s, name);
    if (!v && (raw || uri)) {
        struct scope own = { .g = s->g };
        json_t *text = NULL;
        if (value_get(&own, raw ? raw : uri, &text, err) < 0)
            return err_add(err, "artifact \"%s\"", name);
        v = json_pack("{s:o}", raw ? "raw" : "uri", text);
    }
    if (!v && !optional && !(s->g->ir && !ref) && s->home)
        return err_set(err, ERR_INVALID, "artifact \"%s\" of template \"%s\" is not there", name,
                       t->name);
    if (v)
        json_object_set_new(to, name, v);
    return 0;
}

/* `t` NULL: the parameters alone, whatever they are called. */
int inputs_get(const struct scope *s, const json_t *parameters, const json_t *artifacts,
               const struct tmpl *t, const char *item_name, json_t **out, struct err *err)
{
    const json_t *declared = t ? json_object_get(t->body, "inputs") : NULL;
    const json_t *ps = json_object_get(declared, "parameters");
    const json_t *as = json_object_get(declared, "artifacts"), *doc;
    size_t i;
    const char *key;
    json_t *value;

    if (t && !json_array_size(ps) && !json_array_size(as)) {
        *out = json_incref(s->g->nothing);
        return 0;
    }
    json_t *p = json_object(), *a = json_object();
    OWN_JSON json_t *all = json_pack("{s:o, s:o}", "parameters", p, "artifacts", a);
    if (!all)
        return err_set(err, ERR_NOMEM, "no memory for inputs");
    json_array_foreach ((json_t *)ps, i, doc)
        if (parameter_in(s, parameters, doc, t, item_name, p, err) < 0)
            return -(int)err->code;
    json_array_foreach ((json_t *)as, i, doc)
        if (artifact_in(s, artifacts, doc, t, item_name, a, err) < 0)
            return -(int)err->code;
    json_object_foreach ((json_t *)parameters, key, value) {
        json_t *v = NULL;
        if (t)
            break;
        if (value_get(s, value, &v, err) < 0)
            return -(int)err->code;
        if (v)
            json_object_set_new(p, key, v);
    }
    *out = TAKE(all);
    return 0;
}

/* ------------------------------------------------------------ outputs of a dag */

typedef int (*get_fn)(const struct scope *, const json_t *, json_t **, struct err *);

static int output_of(const struct scope *s, const json_t *doc, get_fn get, json_t **out,
                     struct err *err)
{
    const json_t *value = json_object_get(doc, "value"), *first = json_object_get(doc, "first");
    const json_t *fallback = json_object_get(doc, "default"), *each;
    struct err why = { 0 };
    size_t i;

    if (value && get(s, value, out, &why) < 0 && !fallback) {
        *err = why;
        return -(int)why.code;
    }
    json_array_foreach ((json_t *)first, i, each)
        if (!*out && get(s, each, out, &why) < 0)
            *out = NULL;
    if (!*out && fallback)
        return value_get(s, fallback, out, err);
    return 0;
}

int dag_outputs(const struct run_graph *g, const struct vertex *v, json_t **out, struct err *err)
{
    struct scope s = { .g = g, .home = v, .inputs = v->n.inputs };
    const json_t *declared = json_object_get(v->n.body, "outputs"), *doc;
    const json_t *ps = json_object_get(declared, "parameters");
    const json_t *as = json_object_get(declared, "artifacts");
    size_t i;

    if (!json_array_size(ps) && !json_array_size(as))
        return 0;
    json_t *p = json_object(), *a = json_object();
    OWN_JSON json_t *all = json_pack("{s:o, s:o}", "parameters", p, "artifacts", a);
    json_array_foreach ((json_t *)ps, i, doc) {
        const char *name = text_at(doc, "name"), *type = g->ir ? text_at(doc, "type") : NULL;
        json_t *value = NULL;
        if (!name)
            continue;
        if (output_of(&s, doc, value_get, &value, err) < 0)
            return err_add(err, "output \"%s\"", name);
        if (value)
            json_object_set_new(p, name, graph_typed(type, value));
        else if (!g->ir && !json_object_get(doc, "first"))
            return err_set(err, ERR_INVALID, "output \"%s\" is that of a task that gave none, and "
                           "has no default", name);
    }
    json_array_foreach ((json_t *)as, i, doc) {
        const char *name = text_at(doc, "name");
        json_t *value = NULL;
        if (!name)
            continue;
        bool optional = g->ir || json_is_true(json_object_get(doc, "optional")) ||
                        json_object_get(doc, "first");
        if (output_of(&s, doc, artifact_get, &value, err) < 0)
            return err_add(err, "output \"%s\"", name);
        if (!value && !optional)
            return err_set(err, ERR_INVALID, "artifact \"%s\" is that of a task that gave none",
                           name);
        if (value)
            json_object_set_new(a, name, value);
    }
    *out = TAKE(all);
    return 0;
}

/* ------------------------------------------------------------ outputs of a loop */

/* The texts of all iterations as one JSON text; where all are JSON maps or lists, as such. */
static json_t *texts_joined(const json_t *texts)
{
    OWN_JSON json_t *read = json_array();
    size_t i;
    json_t *each;
    bool structured = json_array_size(texts) > 0;
    json_array_foreach ((json_t *)texts, i, each) {
        const char *text = json_string_value(each);
        json_t *v = structured && text ? json_loads(text, 0, NULL) : NULL;
        structured = structured && v;
        if (v)
            json_array_append_new(read, v);
    }
    OWN_MEM char *dump = json_dumps(structured ? read : texts, JSON_COMPACT);
    return dump ? json_string(dump) : NULL;
}

static json_t *results_joined(const json_t *texts)
{
    OWN_JSON json_t *read = json_array();
    size_t i;
    json_t *each;
    json_array_foreach ((json_t *)texts, i, each) {
        const char *text = json_string_value(each);
        json_t *v = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
        json_array_append_new(read, v ? v : json_incref(each));
    }
    OWN_MEM char *dump = json_dumps(read, JSON_COMPACT);
    return dump ? json_string(dump) : NULL;
}

/* Lists of lists of artifacts are one list, as in kfp. */
static void gather(json_t *lists, const json_t *from, bool flat)
{
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)from, key, v) {
        json_t *list = json_object_get(lists, key);
        if (!list)
            json_object_set_new(lists, key, list = json_array());
        if (flat && json_is_array(v))
            json_array_extend(list, v);
        else
            json_array_append(list, v);
    }
}

/* Of the iterations that succeeded, in order. Argo: JSON texts; kfp: lists of values. */
json_t *loop_outputs(const struct run_graph *g, const struct vertex *group)
{
    json_t *p = json_object(), *a = json_object();
    OWN_JSON json_t *results = json_array();
    const json_t *declared = json_object_get(json_object_get(group->n.body, "outputs"),
                                             "parameters");
    const char *key;
    json_t *v;
    void *next;
    size_t k;

    json_array_foreach ((json_t *)declared, k, v)       /* an empty list where all were skipped */
        if ((key = text_at(v, "name")))
            json_object_set_new(p, key, json_array());
    for (int i = 0; i < group->n.n_children; i++) {
        const struct node *c = group->n.children[i];
        json_t *result = json_object_get(c->outputs, "result");
        if (c->phase != NODE_SUCCEEDED)
            continue;
        gather(p, json_object_get(c->outputs, "parameters"), false);
        gather(a, json_object_get(c->outputs, "artifacts"), true);
        if (result)
            json_array_append(results, result);
    }
    json_object_foreach_safe (p, next, key, v)
        if (!g->ir)
            json_object_set_new(p, key, texts_joined(v));
    json_t *all = json_pack("{s:o, s:o}", "parameters", p, "artifacts", a);
    if (all && (!g->ir || json_array_size(results)))
        json_object_set_new(all, "result", g->ir ? json_incref(results) : results_joined(results));
    return all;
}

/* ------------------------------------------------------------ items of a loop */

/* A number in the way of the format: "%02X", "host-%d". One number, no more. */
static int sequence_text(const char *format, long long n, struct buf *out, struct err *err)
{
    const char *p = strchr(format, '%');
    size_t k = p ? strspn(p + 1, "0123456789-+ #") : 0;
    if (!p || k > 6 || !p[1 + k] || !strchr("dxXocv", p[1 + k]) || strchr(p + 2 + k, '%'))
        return err_set(err, ERR_INVALID, "\"%.40s\" is no format of a sequence (such as %%02d)",
                       format);
    char spec[16], text[128];
    char verb = p[1 + k] == 'v' ? 'd' : p[1 + k];
    snprintf(spec, sizeof spec, "%%%.*s%s%c", (int)k, p + 1, verb == 'c' ? "" : "ll", verb);
    buf_append(out, format, (size_t)(p - format));
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    if (verb == 'c')
        snprintf(text, sizeof text, spec, n > 0 && n < 127 ? (int)n : '?');
    else
        snprintf(text, sizeof text, spec, n);
#pragma GCC diagnostic pop
    buf_text(out, text);
    buf_text(out, p + 2 + k);
    return buf_ok(out, err);
}

static int whole(const struct scope *s, const json_t *doc, const char *key, bool *there,
                 long long *out, struct err *err)
{
    const json_t *value = json_object_get(doc, key);
    OWN_JSON json_t *v = NULL;
    char *end = NULL;
    *there = value != NULL;
    if (!value)
        return 0;
    if (value_get(s, value, &v, err) < 0)
        return -(int)err->code;
    OWN_MEM char *text = v ? flow_expr_text(v) : NULL;
    *out = text ? strtoll(text, &end, 10) : 0;
    if (!text || end == text || *end || llabs(*out) > 1000000000000)
        return err_set(err, ERR_INVALID, "%s of the sequence is \"%.40s\", not a whole number", key,
                       text ? text : "");
    return 0;
}

static int sequence_items(const struct scope *s, const json_t *doc, json_t *to, struct err *err)
{
    long long start = 0, end = 0, count = 0;
    bool has_start, has_end, has_count;
    const char *format = text_at(doc, "format");
    if (!format && json_object_get(doc, "format"))
        format = text_at(json_object_get(doc, "format"), "text");
    if (whole(s, doc, "start", &has_start, &start, err) < 0 ||
        whole(s, doc, "end", &has_end, &end, err) < 0 ||
        whole(s, doc, "count", &has_count, &count, err) < 0)
        return -(int)err->code;
    if (has_count && count <= 0)
        return 0;
    long long last = has_count ? start + count - 1 : end, step = last < start ? -1 : 1;
    if (llabs(last - start) >= GRAPH_ITEMS_MAX)
        return err_set(err, ERR_INVALID, "the sequence has more than %d items", GRAPH_ITEMS_MAX);
    for (long long n = start;; n += step) {
        OWN_BUF b = BUF_INIT;
        if (sequence_text(format && *format ? format : "%d", n, &b, err) < 0)
            return -(int)err->code;
        json_array_append_new(to, json_string(b.data));
        if (n == last)
            return 0;
    }
}

int loop_items(const struct scope *s, const json_t *loop, json_t **out, struct err *err)
{
    const json_t *items = json_object_get(loop, "items");
    const json_t *sequence = json_object_get(loop, "sequence"), *constant;
    OWN_JSON json_t *list = NULL;

    if (sequence) {
        list = json_array();
        if (sequence_items(s, sequence, list, err) < 0)
            return -(int)err->code;
    } else if (json_object_get(loop, "artifacts")) {
        if (artifact_get(s, json_object_get(loop, "artifacts"), &list, err) < 0)
            return -(int)err->code;
        if (!json_is_array(list))
            return err_set(err, ERR_INVALID, "the loop is over what is no list of artifacts");
    } else if (json_is_array(items)) {
        list = json_incref((json_t *)items);
    } else if (json_is_array(constant = json_object_get(items, "json"))) {
        list = json_incref((json_t *)constant);
    } else {
        OWN_JSON json_t *v = NULL;
        if (!items || value_get(s, items, &v, err) < 0)
            return items ? -(int)err->code : err_set(err, ERR_INVALID, "the loop has no items");
        list = json_is_string(v) ? json_loads(json_string_value(v), 0, NULL) : json_incref(v);
        if (!json_is_array(list)) {
            OWN_MEM char *shown = v ? flow_expr_text(v) : NULL;
            return err_set(err, ERR_INVALID, "withParam value could not be parsed as a JSON list: "
                                             "%.200s", shown ? shown : "there is none");
        }
    }
    if (json_array_size(list) > GRAPH_ITEMS_MAX)
        return err_set(err, ERR_INVALID, "the loop has %zu items, %d are the most",
                       json_array_size(list), GRAPH_ITEMS_MAX);
    *out = TAKE(list);
    return 0;
}

/* ------------------------------------------------------------ outputs with a global name */

void take_globals(struct run_graph *g, const struct vertex *v)
{
    static const char *const kinds[] = { "parameters", "artifacts" };
    if (v->n.phase != NODE_SUCCEEDED || !v->n.outputs)
        return;
    for (int k = 0; k < 2; k++) {
        const json_t *list = json_object_get(json_object_get(v->n.body, "outputs"), kinds[k]), *doc;
        size_t i;
        json_array_foreach ((json_t *)list, i, doc) {
            const char *global = text_at(doc, "global"), *name = text_at(doc, "name");
            json_t *value = global && name ? vertex_output(g, v, kinds[k], name) : NULL;
            if (value)
                json_object_set(json_object_get(g->globals, kinds[k]), global, value);
        }
    }
}
