/* protocols/kfp_argo.c - a run as the Workflow that Argo's controller would have left
 *
 * The manifest as it came, with the run's name and arguments, and .status.nodes. Clients and pages
 * made for Kubeflow draw the graph from `children`: there a node's children are those that begin
 * after it, while here they are those inside it. So each task's followers become children of the
 * nodes that the task ends with, as Argo has them.
 */
#include <string.h>

#include "base/json.h"
#include "pipelines/runs.h"
#include "protocols/kfp_int.h"

/* A task that ends in more nodes than this has its followers itself: edges are a product. */
enum { ENDS_MAX = 500, DEPTH_MAX = 64 };

struct workflow {
    const json_t *flow;
    json_t *by_id;              /* id -> node */
    json_t *by_task;            /* "parent id/task" -> node */
    json_t *next;               /* id -> [ids that follow] */
    json_t *ends;               /* id -> [ids that it ends with], once it was asked for */
};

static bool is(const json_t *node, const char *kind)
{
    return !strcmp(text_of(node, "kind"), kind);
}

static const json_t *tasks_of(const struct workflow *w, const json_t *node)
{
    const json_t *t = json_object_get(json_object_get(w->flow, "templates"),
                                      text_of(node, "template"));

    return json_object_get(json_object_get(t, "dag"), "tasks");
}

static const json_t *task_node(const struct workflow *w, const json_t *dag, const char *task)
{
    OWN_MEM char *key = NULL;

    if (asprintf(&key, "%s/%s", text_of(dag, "id"), task) < 0)
        return NULL;
    return json_object_get(w->by_task, key);
}

/* ------------------------------------------------------------ what a node ends with */

static void ends_of(const struct workflow *w, const json_t *node, int depth, json_t *out);

static void ends_of_dag(const struct workflow *w, const json_t *dag, int depth, json_t *out)
{
    const json_t *tasks = tasks_of(w, dag);
    OWN_JSON json_t *followed = json_object();
    size_t i, j;
    json_t *task, *name;

    json_array_foreach((json_t *)tasks, i, task)
        json_array_foreach(json_object_get(task, "after"), j, name)
            json_object_set_new(followed, json_string_value(name), json_true());
    json_array_foreach((json_t *)tasks, i, task) {
        const json_t *n = task_node(w, dag, text_of(task, "name"));
        if (n && !json_object_get(followed, text_of(task, "name")))
            ends_of(w, n, depth + 1, out);
    }
}

static const json_t *child_of(const struct workflow *w, const json_t *children, size_t i)
{
    return json_object_get(w->by_id, json_string_value(json_array_get(children, i)));
}

/* Adds the ids of the nodes after whose end the node has ended. */
static void ends_of(const struct workflow *w, const json_t *node, int depth, json_t *out)
{
    const json_t *children = json_object_get(node, "children");
    const size_t before = json_array_size(out), n = json_array_size(children);

    if (depth < DEPTH_MAX && before < ENDS_MAX) {
        if (is(node, "DAG"))
            ends_of_dag(w, node, depth, out);
        else if (n && is(node, "Retry"))
            json_array_append(out, json_array_get(children, n - 1));
        else if (n && is(node, "Steps"))
            ends_of(w, child_of(w, children, n - 1), depth + 1, out);
        else if (is(node, "TaskGroup") || is(node, "StepGroup"))
            for (size_t i = 0; i < n; i++)
                ends_of(w, child_of(w, children, i), depth + 1, out);
    }
    if (json_array_size(out) == before)
        json_array_append(out, json_object_get(node, "id"));
}

/* ------------------------------------------------------------ who follows whom */

static void follow(struct workflow *w, const char *id, json_t *follower)
{
    json_t *list = json_object_get(w->next, id);

    if (!list)
        json_object_set_new(w->next, id, list = json_array());
    json_array_append(list, follower);
}

static void follow_node(struct workflow *w, const json_t *node, json_t *follower)
{
    json_t *ends = json_object_get(w->ends, text_of(node, "id"));
    size_t i;
    json_t *id;

    if (!ends) {
        json_object_set_new(w->ends, text_of(node, "id"), ends = json_array());
        ends_of(w, node, 0, ends);
    }
    if (json_array_size(ends) > ENDS_MAX) {
        follow(w, text_of(node, "id"), follower);
        return;
    }
    json_array_foreach(ends, i, id)
        follow(w, json_string_value(id), follower);
}

static void link_dag(struct workflow *w, const json_t *dag)
{
    size_t i, j;
    json_t *task, *name;

    json_array_foreach((json_t *)tasks_of(w, dag), i, task) {
        const json_t *n = task_node(w, dag, text_of(task, "name"));
        const json_t *after = json_object_get(task, "after");
        if (!n)
            continue;
        if (json_array_size(after) == 0)
            follow(w, text_of(dag, "id"), json_object_get(n, "id"));
        json_array_foreach((json_t *)after, j, name) {
            const json_t *before = task_node(w, dag, json_string_value(name));
            if (before)
                follow_node(w, before, json_object_get(n, "id"));
        }
    }
}

static void link_node(struct workflow *w, const json_t *node)
{
    const json_t *children = json_object_get(node, "children");
    const json_t *before = NULL;
    size_t i;
    json_t *id;

    if (is(node, "DAG")) {
        link_dag(w, node);
        return;
    }
    json_array_foreach((json_t *)children, i, id) {
        if (!is(node, "Steps") || !before)
            follow(w, text_of(node, "id"), id);
        else
            follow_node(w, before, id);
        before = json_object_get(w->by_id, json_string_value(id));
    }
}

/* ------------------------------------------------------------ a node */

/* The dag or series of steps that it is in. */
static const char *boundary_of(const struct workflow *w, const json_t *node)
{
    const json_t *p = node;

    while ((p = json_object_get(w->by_id, text_of(p, "parent"))))
        if (is(p, "DAG") || is(p, "Steps"))
            return text_of(p, "id");
    return NULL;
}

static json_t *text_json(const json_t *value)
{
    OWN_MEM char *text = json_is_string(value) ? NULL
        : json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);

    return json_string(text ? text : json_string_value(value));
}

/* Our {"parameters": {}, "artifacts": {name: ART}} as lists with names. */
static json_t *sides_json(const json_t *sides)
{
    json_t *parameters = json_array(), *artifacts = json_array(), *out = json_object();
    const char *name;
    json_t *value;

    json_object_foreach(json_object_get(sides, "parameters"), name, value)
        json_array_append_new(parameters, json_pack("{s:s, s:o}", "name", name, "value",
                                                    text_json(value)));
    json_object_foreach(json_object_get(sides, "artifacts"), name, value) {
        const char *uri = text_of(value, "uri");
        const char *slash = !strncmp(uri, "gs://", 5) ? strchr(uri + 5, '/') : NULL;
        json_t *a = json_pack("{s:s}", "name", name);
        if (slash)
            json_object_set_new(a, "gcs",
                                json_pack("{s:s%, s:s}", "bucket", uri + 5,
                                          (size_t)(slash - uri - 5), "key", slash + 1));
        json_array_append_new(artifacts, a);
    }
    if (json_array_size(parameters) > 0)
        json_object_set(out, "parameters", parameters);
    if (json_array_size(artifacts) > 0)
        json_object_set(out, "artifacts", artifacts);
    json_decref(parameters);
    json_decref(artifacts);
    return out;
}

static json_t *node_json(const struct workflow *w, const json_t *n)
{
    const json_t *outputs = json_object_get(n, "outputs");
    const json_t *code = json_object_get(outputs, "code");
    const char *message = text_of(n, "message"), *template_name = text_of(n, "template");
    json_t *doc = json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:s*, s:s*, s:s*, s:o*, s:o*, s:O*}", "id", text_of(n, "id"),
        "name", text_of(n, "name"), "displayName", text_of(n, "display"), "type",
        text_of(n, "kind"), "phase", text_of(n, "phase"), "templateName",
        *template_name ? template_name : NULL, "boundaryID", boundary_of(w, n), "message",
        *message ? message : NULL, "startedAt", kfp_time(number_of(n, "started")), "finishedAt",
        kfp_time(number_of(n, "ended")), "children", json_object_get(w->next, text_of(n, "id")));
    OWN_JSON json_t *in = sides_json(json_object_get(n, "inputs"));
    OWN_JSON json_t *out = sides_json(outputs);

    if (json_object_get(outputs, "result"))
        json_object_set_new(out, "result", text_json(json_object_get(outputs, "result")));
    if (json_is_number(code))
        json_object_set_new(out, "exitCode", text_json(code));
    if (json_object_size(in) > 0)
        json_object_set(doc, "inputs", in);
    if (json_object_size(out) > 0)
        json_object_set(doc, "outputs", out);
    if (json_is_true(json_object_get(n, "cached")))
        json_object_set_new(doc, "memoizationStatus",
                            json_pack("{s:b, s:s, s:s}", "hit", 1, "key", "", "cacheName", ""));
    return doc;
}

static json_t *nodes_json(const json_t *flow, const json_t *nodes)
{
    OWN_JSON json_t *by_id = json_object(), *by_task = json_object(), *next = json_object();
    OWN_JSON json_t *ends = json_object();
    struct workflow w = { flow, by_id, by_task, next, ends };
    json_t *out = json_object();
    size_t i;
    json_t *n;

    json_array_foreach((json_t *)nodes, i, n) {
        OWN_MEM char *key = NULL;
        json_object_set(by_id, text_of(n, "id"), n);
        if (asprintf(&key, "%s/%s", text_of(n, "parent"), text_of(n, "task")) >= 0 &&
            !json_object_get(by_task, key))
            json_object_set(by_task, key, n);
    }
    json_array_foreach((json_t *)nodes, i, n)
        link_node(&w, n);
    json_array_foreach((json_t *)nodes, i, n)
        json_object_set_new(out, text_of(n, "id"), node_json(&w, n));
    return out;
}

/* ------------------------------------------------------------ the whole */

/* spec.arguments.parameters with the values of this run. */
static void set_arguments(json_t *spec, const json_t *given)
{
    json_t *arguments = json_object_get(spec, "arguments");
    json_t *list = json_object_get(arguments, "parameters");
    size_t i;
    json_t *p;

    json_array_foreach(list, i, p) {
        const json_t *value = json_object_get(given, text_of(p, "name"));
        if (value)
            json_object_set_new(p, "value", text_json(value));
    }
}

static void set_metadata(json_t *doc, const json_t *run)
{
    json_t *meta = json_object_get(doc, "metadata");
    const bool ended = number_of(run, "ended") > 0;

    if (!json_is_object(meta))
        json_object_set_new(doc, "metadata", meta = json_object());
    if (!json_is_object(json_object_get(meta, "labels")))
        json_object_set_new(meta, "labels", json_object());
    json_t *labels = json_object_get(meta, "labels");
    json_object_set(meta, "name", json_object_get(run, "workflow"));
    json_object_set(meta, "namespace", json_object_get(run, "project"));
    json_object_set(meta, "uid", json_object_get(run, "id"));
    json_object_set_new(meta, "creationTimestamp", kfp_time(number_of(run, "created")));
    json_object_set(labels, "pipeline/runid", json_object_get(run, "id"));
    json_object_set(labels, "workflows.argoproj.io/phase", json_object_get(run, "phase"));
    json_object_set_new(labels, "workflows.argoproj.io/completed",
                        json_string(ended ? "true" : "false"));
}

int kfp_workflow(struct request *q, const json_t *run, char **out, struct err *err)
{
    OWN_JSON json_t *doc = NULL, *flow = NULL, *nodes = NULL;
    OWN_MEM char *text = NULL;
    const char *id = text_of(run, "id"), *message = text_of(run, "message");
    size_t n;

    if (runs_text(request_server(q), NULL, id, &text, &n, &flow, err) < 0 ||
        runs_nodes(request_server(q), NULL, id, &nodes, err) < 0)
        return -(int)err->code;
    if (!strcmp(text_of(run, "dialect"), "argo")) {
        OWN_JSON json_t *docs = NULL;
        if (kfp_parse(text, n, &docs, err) < 0)
            return -(int)err->code;
        doc = json_incref(json_is_array(docs) ? json_array_get(docs, 0) : docs);
    } else {
        doc = json_pack("{s:s, s:s, s:{}, s:{}}", "apiVersion", "argoproj.io/v1alpha1", "kind",
                        "Workflow", "metadata", "spec");
    }
    set_metadata(doc, run);
    set_arguments(json_object_get(doc, "spec"), json_object_get(run, "parameters"));
    json_object_set_new(doc, "status", json_pack(
        "{s:s, s:o*, s:o*, s:s*, s:o}", "phase", text_of(run, "phase"), "startedAt",
        kfp_time(number_of(run, "started")), "finishedAt", kfp_time(number_of(run, "ended")),
        "message", *message ? message : NULL, "nodes", nodes_json(flow, nodes)));
    *out = json_dumps(doc, JSON_COMPACT);
    return *out ? 0 : err_set(err, ERR_NOMEM, "no memory for the workflow of a run");
}
