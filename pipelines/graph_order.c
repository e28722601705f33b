/* pipelines/graph_order.c - what a leaf runs, with all its values resolved */
#include <string.h>

#include "pipelines/flow.h"
#include "pipelines/graph_int.h"
#include "spec/scan.h"

static const char *text_at(const json_t *doc, const char *key)
{
    return json_string_value(json_object_get(doc, key));
}

/* An object of one key that says where a value comes from. */
static bool is_value(const json_t *doc)
{
    static const char *const keys[] = { "text", "json", "input", "item", "status" };
    if (!json_is_object(doc))
        return false;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (json_object_size(doc) == 1 && json_object_get(doc, keys[i]))
            return true;
    if (json_object_size(doc) != 2)
        return false;
    return (json_object_get(doc, "output") &&
            (json_object_get(doc, "task") || json_object_get(doc, "collected"))) ||
           (json_object_get(doc, "fill") && json_object_get(doc, "with"));
}

/* What the step itself reads: handed on as it is. */
static bool opaque(const char *key)
{
    return !strcmp(key, "executor");
}

/* A copy of `doc` with each VALUE in it as what it comes to. */
static int resolve(const struct scope *s, const json_t *doc, json_t **out, struct err *err)
{
    const char *key;
    size_t i;
    json_t *each;

    if (is_value(doc)) {
        json_t *v = NULL;
        if (value_get(s, doc, &v, err) < 0)
            return -(int)err->code;
        *out = v ? v : json_null();
        return 0;
    }
    if (!json_is_object(doc) && !json_is_array(doc)) {
        *out = json_incref((json_t *)doc);
        return 0;
    }
    OWN_JSON json_t *made = json_is_object(doc) ? json_object() : json_array();
    json_array_foreach ((json_t *)doc, i, each) {
        json_t *v = NULL;
        if (resolve(s, each, &v, err) < 0)
            return -(int)err->code;
        json_array_append_new(made, v);
    }
    json_object_foreach ((json_t *)doc, key, each) {
        json_t *v = NULL;
        if (opaque(key))
            v = json_incref(each);
        else if (resolve(s, each, &v, err) < 0)
            return err_add(err, "%s", key);
        json_object_set_new(made, key, v);
    }
    *out = TAKE(made);
    return 0;
}

/* Amounts that came from tags are texts such as "1Gi": as numbers. */
static int amounts(json_t *resources, struct err *err)
{
    const char *key;
    json_t *each;
    void *next;
    double n;

    json_object_foreach_safe (resources, next, key, each) {
        if (json_is_object(each) && amounts(each, err) < 0)
            return -(int)err->code;
        if (!json_is_string(each))
            continue;
        if (!scan_quantity(json_string_value(each), &n))
            return err_set(err, ERR_INVALID, "resources: %s is \"%.40s\", no amount such as 500m or "
                           "1Gi", key, json_string_value(each));
        json_object_set_new(resources, key, json_real(n));
    }
    return 0;
}

/* Declared inputs in their order, with the values that this node has. */
static int order_inputs(const struct scope *s, const struct vertex *v, const char *kind,
                        json_t *to, struct err *err)
{
    const json_t *list = json_object_get(json_object_get(v->n.body, "inputs"), kind), *doc;
    OWN_JSON json_t *made = json_array();
    size_t i;
    json_array_foreach ((json_t *)list, i, doc) {
        const char *name = text_at(doc, "name");
        json_t *value = name ? json_object_get(json_object_get(v->n.inputs, kind), name) : NULL;
        OWN_JSON json_t *row = NULL;
        OWN_JSON json_t *plain = json_copy((json_t *)doc);
        json_object_del(plain, "default");
        json_object_del(plain, "raw");
        json_object_del(plain, "uri");
        if (resolve(s, plain, &row, err) < 0)
            return -(int)err->code;
        if (value)
            json_object_set(row, "value", value);
        if (value || !strcmp(kind, "parameters"))
            json_array_append(made, row);
    }
    json_object_set(to, kind, made);
    return 0;
}

int run_graph_order(const struct run_graph *g, const struct node *n, json_t **out, struct err *err)
{
    static const char *const kinds[] = { "step", "resource", "suspend", "importer" };
    static const char *const others[] = { "outputs", "cache", "deadline_s", "labels",
                                          "annotations" };
    const struct vertex *v = vertex_of(n);
    struct scope s = { .g = g, .home = v, .inputs = n->inputs, .leaf = v };
    OWN_JSON json_t *order = json_object();
    json_t *inputs = json_object(), *part = NULL;

    json_object_set_new(order, "inputs", inputs);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const json_t *doc = json_object_get(n->body, kinds[i]);
        if (!doc)
            continue;
        if (resolve(&s, doc, &part, err) < 0)
            return err_add(err, "node \"%s\"", n->name);
        json_object_set_new(order, "kind", json_string(kinds[i]));
        json_object_set_new(order, kinds[i], part);
        if (amounts(json_object_get(part, "resources"), err) < 0)
            return err_add(err, "node \"%s\"", n->name);
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        const json_t *doc = json_object_get(n->body, others[i]);
        if (doc && resolve(&s, doc, &part, err) < 0)
            return err_add(err, "node \"%s\"", n->name);
        double seconds;
        if (doc && json_is_string(part) && !strcmp(others[i], "deadline_s")) {
            if (!flow_seconds(json_string_value(part), &seconds))
                return err_set(err, ERR_INVALID, "node \"%s\": \"%.40s\" is no duration", n->name,
                               json_string_value(part));
            json_decref(part);
            part = json_real(seconds);
        }
        if (doc)
            json_object_set_new(order, others[i], part);
    }
    if (order_inputs(&s, v, "parameters", inputs, err) < 0 ||
        order_inputs(&s, v, "artifacts", inputs, err) < 0)
        return err_add(err, "node \"%s\"", n->name);
    *out = TAKE(order);
    return 0;
}

int run_graph_volumes(const struct run_graph *g, json_t **out, struct err *err)
{
    static const char *const kinds[] = { "volumes", "claims" };
    struct scope s = { .g = g };
    OWN_JSON json_t *all = json_object();
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const json_t *doc = json_object_get(g->flow, kinds[i]);
        json_t *part = NULL;
        if (doc && resolve(&s, doc, &part, err) < 0)
            return err_add(err, "%s", kinds[i]);
        json_object_set_new(all, kinds[i], part ? part : json_array());
    }
    *out = TAKE(all);
    return 0;
}
