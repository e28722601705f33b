/* pipelines/graph_names.c - what a name stands for: inputs, tasks before, the run, the attempt */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pipelines/graph_int.h"

static const char *text_at(const json_t *doc, const char *key)
{
    return json_string_value(json_object_get(doc, key));
}

/* What follows `head` in `path`: "" where it is all of it, NULL where it does not begin so. */
static const char *after(const char *path, const char *head)
{
    size_t n = strlen(head);
    if (strncmp(path, head, n) || (path[n] && path[n] != '.'))
        return NULL;
    return path[n] ? path + n + 1 : "";
}

static struct tm time_parts(double t)
{
    struct tm tm = { 0 };
    time_t s = fabs(t) < 1e15 ? (time_t)floor(t) : 0;
    gmtime_r(&s, &tm);
    return tm;
}

char *graph_time(double t)
{
    char text[64];
    struct tm tm = time_parts(t);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm);
    return strdup(text);
}

static json_t *text_time(double t)
{
    OWN_MEM char *text = t > 0 ? graph_time(t) : NULL;
    return text ? json_string(text) : NULL;
}

/* A value that is a text in Argo's world. */
static json_t *as_text(json_t *value)
{
    OWN_JSON json_t *v = value;
    OWN_MEM char *text = v ? flow_expr_text(v) : NULL;
    return text ? json_string(text) : NULL;
}

static json_t *as_json_text(const json_t *value)
{
    OWN_MEM char *text = json_dumps(value, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);
    return text ? json_string(text) : NULL;
}

/* ------------------------------------------------------------ tasks */

static const json_t *declared(const struct vertex *v, const char *kind, const char *name)
{
    const json_t *list = json_object_get(json_object_get(v->n.body, "outputs"), kind), *p;
    size_t i;
    json_array_foreach ((json_t *)list, i, p) {
        const char *own = text_at(p, "name");
        if (own && !strcmp(own, name))
            return p;
    }
    return NULL;
}

json_t *vertex_output(const struct run_graph *g, const struct vertex *v, const char *kind,
                      const char *name)
{
    (void)g;
    return json_object_get(json_object_get(v->n.outputs, kind), name);
}

const struct vertex *scope_task(const struct scope *s, const char *name, size_t n)
{
    const struct vertex *dag = s->home;
    if (!dag || !dag->dag)
        return NULL;
    OWN_MEM char *own = strndup(name, n);
    const json_t *i = own ? json_object_get(dag->tmpl->index, own) : NULL;
    return i ? dag->dag->slots[json_integer_value(i)].v : NULL;
}

/* A task that did not run has what its template gives by default, if anything. */
static json_t *default_output(const struct scope *s, const struct vertex *v, const char *name)
{
    const json_t *p = declared(v, "parameters", name), *value = json_object_get(p, "default");
    struct scope own = { .g = s->g, .home = v, .inputs = v->n.inputs };
    struct err none = { 0 };
    json_t *out = NULL;
    if (!value || value_get(&own, value, &out, &none) < 0)
        return NULL;
    return out;
}

/* All outputs of a loop's iterations: a list of maps; of a task: a map. */
static json_t *all_parameters(const struct vertex *v)
{
    if (!v->loop)
        return json_incref(json_object_get(v->n.outputs, "parameters"));
    json_t *list = json_array();
    for (int i = 0; i < v->n.n_children; i++) {
        const struct node *c = v->n.children[i];
        json_t *p = json_object_get(c->outputs, "parameters");
        if (c->phase == NODE_SUCCEEDED && json_object_size(p))
            json_array_append(list, p);
    }
    return list;
}

static json_t *task_get(const struct scope *s, const struct vertex *v, const char *rest)
{
    const char *name;
    if (!strcmp(rest, "status"))
        return json_string(node_phase_name(v->n.phase));
    if (!strcmp(rest, "id"))
        return json_string(v->n.id);
    if (!strcmp(rest, "name"))
        return json_string(v->n.task);
    if (!strcmp(rest, "message"))
        return json_string(v->n.message ? v->n.message : "");
    if (!strcmp(rest, "startedAt"))
        return text_time(v->n.started);
    if (!strcmp(rest, "finishedAt"))
        return text_time(v->n.ended);
    if (!strcmp(rest, "exitCode"))
        return as_text(json_incref(json_object_get(v->n.outputs, "code")));
    if (!strcmp(rest, "outputs.result"))
        return json_incref(json_object_get(v->n.outputs, "result"));
    if (!strcmp(rest, "outputs.parameters")) {
        OWN_JSON json_t *all = all_parameters(v);
        return all ? as_json_text(all) : NULL;
    }
    if ((name = after(rest, "outputs.parameters"))) {
        json_t *value = json_incref(vertex_output(s->g, v, "parameters", name));
        return value ? value : default_output(s, v, name);
    }
    if ((name = after(rest, "outputs.artifacts")))
        return json_incref(vertex_output(s->g, v, "artifacts", name));
    return NULL;
}

static json_t *tasks_get(const struct scope *s, const char *rest)
{
    size_t n = strcspn(rest, ".");
    if (!strcmp(rest, "name"))
        return s->leaf ? json_string(s->leaf->n.task) : NULL;
    const struct vertex *v = scope_task(s, rest, n);
    return v && rest[n] ? task_get(s, v, rest + n + 1) : NULL;
}

/* ------------------------------------------------------------ the run */

static json_t *timestamp_get(const struct scope *s, const char *rest)
{
    char format[3] = { '%', rest[0], 0 }, text[64];
    double t = s->g->run.created;
    if (!*rest || !strcmp(rest, "RFC3339"))
        return text_time(t > 0 ? t : 1e-9);
    if (rest[0] == '%')
        format[1] = rest[1];
    if (strlen(rest) != 1u + (rest[0] == '%') || !format[1] ||
        !strchr("aAbBcdefFgGhHIjklmMnpPrRsSTuUVwWxXyYzZD", format[1]))
        return NULL;
    struct tm tm = time_parts(t);
    size_t n = strftime(text, sizeof text, format, &tm);
    if (format[1] == 's')
        n = (size_t)snprintf(text, sizeof text, "%.0f", floor(t));
    if (format[1] == 'f')
        n = (size_t)snprintf(text, sizeof text, "%06.0f", floor((t - floor(t)) * 1e6));
    return json_stringn(text, n);
}

static json_t *failures_get(const struct scope *s)
{
    struct run_graph *g = (struct run_graph *)s->g;
    if (!g->failures) {
        g->failures = json_array();
        for (int i = 0; i < g->n; i++) {
            const struct vertex *v = g->nodes[i];
            if (v->dead || !node_failed(v->n.phase) ||
                !(node_kind_leaf(v->n.kind) || v->n.kind == NODE_SKIPPED_TASK))
                continue;
            OWN_MEM char *when = graph_time(v->n.ended);
            json_array_append_new(g->failures,
                json_pack("{s:s, s:s, s:s, s:s, s:s, s:s}", "displayName", v->n.display, "message",
                          v->n.message ? v->n.message : "", "templateName", v->n.template_name,
                          "phase", node_phase_name(v->n.phase), "podName", v->n.id, "finishedAt",
                          when ? when : ""));
        }
    }
    return as_json_text(g->failures);
}

/* Labels and annotations are texts that may have tags of the run. */
static json_t *labels_get(const struct scope *s, const char *kind, const char *name)
{
    const json_t *all = json_object_get(s->g->flow, kind);
    struct scope own = { .g = s->g };
    struct flow_scope f = { scope_get, &own };
    struct err none = { 0 };
    OWN_BUF b = BUF_INIT;
    if (!*name || !strcmp(name, "json"))
        return all ? as_json_text(all) : json_string("{}");
    const char *text = text_at(all, name);
    if (!text || flow_expr_fill(text, &f, NULL, &b, &none) < 0)
        return text ? json_string(text) : NULL;
    return json_string(b.data ? b.data : "");
}

/* As Argo gives them: a list of {"name", "value"}. */
static json_t *parameters_list(const json_t *parameters)
{
    OWN_JSON json_t *list = json_array();
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)parameters, key, v)
        json_array_append_new(list, json_pack("{s:s, s:O}", "name", key, "value", v));
    return as_json_text(list);
}

static json_t *workflow_get(const struct scope *s, const char *rest)
{
    const struct run_graph *g = s->g;
    const char *name, *entry = text_at(g->flow, "entry");
    char text[40];
    if ((name = after(rest, "parameters")))
        return *name && strcmp(name, "json") ? json_incref(json_object_get(g->parameters, name))
                                             : parameters_list(g->parameters);
    if ((name = after(rest, "labels")))
        return labels_get(s, "labels", name);
    if ((name = after(rest, "annotations")))
        return labels_get(s, "annotations", name);
    if ((name = after(rest, "creationTimestamp")))
        return timestamp_get(s, name);
    if ((name = after(rest, "outputs.parameters")))
        return json_incref(json_object_get(json_object_get(g->globals, "parameters"), name));
    if ((name = after(rest, "outputs.artifacts")))
        return json_incref(json_object_get(json_object_get(g->globals, "artifacts"), name));
    if (!strcmp(rest, "name"))
        return json_string(g->run_name);
    if (!strcmp(rest, "uid"))
        return json_string(g->run_id);
    if (!strcmp(rest, "namespace"))
        return json_string(g->run_project);
    if (!strcmp(rest, "status"))
        return json_string(node_phase_name(g->root ? g->root->n.phase : NODE_RUNNING));
    if (!strcmp(rest, "failures"))
        return failures_get(s);
    if (!strcmp(rest, "mainEntrypoint"))
        return entry ? json_string(entry) : NULL;
    if (!strcmp(rest, "serviceAccountName"))
        return json_string("default");
    if (!strcmp(rest, "priority"))
        return json_string("0");
    snprintf(text, sizeof text, "%.6f", g->now - g->run.created);
    return strcmp(rest, "duration") ? NULL : json_string(text);
}

/* ------------------------------------------------------------ inputs, items, attempts */

static const json_t *declared_path(const struct scope *s, const char *where, const char *kind,
                                   const char *name, size_t n)
{
    const json_t *body = s->leaf ? s->leaf->n.body : NULL, *p;
    const json_t *list = json_object_get(json_object_get(body, where), kind);
    size_t i;
    json_array_foreach ((json_t *)list, i, p) {
        const char *own = text_at(p, "name");
        if (own && strlen(own) == n && !memcmp(own, name, n))
            return json_object_get(p, "path");
    }
    return NULL;
}

/* inputs.artifacts.X.path and the like */
static json_t *path_get(const struct scope *s, const char *where, const char *kind,
                        const char *name)
{
    size_t n = strlen(name);
    if (n <= 5 || strcmp(name + n - 5, ".path"))
        return NULL;
    const json_t *path = declared_path(s, where, kind, name, n - 5);
    struct err none = { 0 };
    json_t *out = NULL;
    return path && value_get(s, path, &out, &none) == 0 ? out : NULL;
}

static json_t *inputs_name(const struct scope *s, const char *rest)
{
    const char *name;
    const json_t *parameters = json_object_get(s->inputs, "parameters");
    if ((name = after(rest, "parameters"))) {
        if (!*name && s->home)
            return parameters_list(parameters);
        return json_incref(json_object_get(parameters, name));
    }
    if ((name = after(rest, "parameter_values")))       /* kfp's conditions */
        return *name ? json_incref(json_object_get(parameters, name))
                     : json_incref((json_t *)parameters);
    if ((name = after(rest, "artifacts"))) {
        json_t *path = path_get(s, "inputs", "artifacts", name);
        return path ? path : json_incref(json_object_get(json_object_get(s->inputs, "artifacts"),
                                                         name));
    }
    return NULL;
}

static json_t *outputs_name(const struct scope *s, const char *rest)
{
    const char *name;
    if ((name = after(rest, "parameters")))
        return path_get(s, "outputs", "parameters", name);
    if ((name = after(rest, "artifacts")))
        return path_get(s, "outputs", "artifacts", name);
    return NULL;
}

static json_t *item_name(const struct scope *s, const char *rest)
{
    if (!s->item)
        return NULL;
    json_t *v = json_incref(*rest ? json_object_get(s->item, rest) : (json_t *)s->item);
    return s->g->ir ? v : as_text(v);
}

/* The attempt before this one: of a leaf the one before it, for a retry expression the last. */
static const struct node *attempt_before(const struct scope *s)
{
    const struct node *retry = s->retry ? &s->retry->n : s->leaf ? s->leaf->n.parent : NULL;
    if (!retry || retry->kind != NODE_RETRY)
        return NULL;
    int i = s->retry ? retry->n_children - 1 : s->leaf->index - 1;
    return i >= 0 ? retry->children[i] : NULL;
}

static json_t *last_retry(const struct scope *s, const char *rest)
{
    const struct node *n = attempt_before(s);
    char text[40];
    if (!strcmp(rest, "exitCode")) {
        const json_t *code = n ? json_object_get(n->outputs, "code") : NULL;
        return code ? as_text(json_incref((json_t *)code)) : json_string(n ? "-1" : "0");
    }
    if (!strcmp(rest, "status"))
        return json_string(n ? node_phase_name(n->phase) : "");
    if (!strcmp(rest, "message"))
        return json_string(n && n->message ? n->message : "");
    if (strcmp(rest, "duration"))
        return NULL;
    snprintf(text, sizeof text, "%.0f", n ? fmax(0, floor(n->ended - n->started)) : 0);
    return json_string(text);
}

static json_t *leaf_name(const struct scope *s, const char *path)
{
    const struct vertex *v = s->leaf ? s->leaf : s->retry;
    char text[16];
    if (!v)
        return NULL;
    if (!strcmp(path, "retries")) {
        snprintf(text, sizeof text, "%d", v->n.kind == NODE_RETRY ? v->n.n_children - 1
                                                                  : v->index >= 0 ? v->index : 0);
        return json_string(text);
    }
    if (!strcmp(path, "node.name"))
        return json_string(v->n.name);
    return strcmp(path, "pod.name") ? NULL : json_string(v->n.id);
}

json_t *scope_get(void *scope, const char *path)
{
    static const struct {
        const char *head;
        json_t *(*get)(const struct scope *s, const char *rest);
    } heads[] = {
        { "inputs", inputs_name }, { "outputs", outputs_name }, { "tasks", tasks_get },
        { "steps", tasks_get }, { "workflow", workflow_get }, { "item", item_name },
        { "lastRetry", last_retry },
    };
    const struct scope *s = scope;
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        const char *rest = after(path, heads[i].head);
        if (rest)
            return heads[i].get(s, rest);
    }
    return leaf_name(s, path);
}
