/* pipelines/graph_flow.c - a flow document made ready: tasks by number, what comes after what */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pipelines/graph_int.h"

static const char *text_at(const json_t *doc, const char *key)
{
    return json_string_value(json_object_get(doc, key));
}

static double number_at(const json_t *doc, const char *key, double fallback)
{
    const json_t *v = json_object_get(doc, key);
    return json_is_number(v) ? json_number_value(v) : fallback;
}

static int limit_at(const json_t *doc, const char *key)
{
    double d = number_at(doc, key, 0);
    return d > 0 && d < 1e9 ? (int)d : 0;
}

const struct tmpl *graph_template(const struct run_graph *g, const char *name)
{
    const json_t *i = name ? json_object_get(g->template_index, name) : NULL;
    return i ? &g->templates[json_integer_value(i)] : NULL;
}

/* ------------------------------------------------------------ tasks */

static int task_number(const struct tmpl *t, const char *name)
{
    const json_t *i = json_object_get(t->index, name);
    return i ? (int)json_integer_value(i) : -1;
}

static int task_after(struct tmpl *t, struct task *k, struct err *err)
{
    const json_t *after = json_object_get(k->doc, "after");
    size_t n = json_array_size(after);
    k->after = calloc(n ? n : 1, sizeof *k->after);
    if (!k->after)
        return err_set(err, ERR_NOMEM, "no memory for the tasks of a run");
    for (size_t i = 0; i < n; i++) {
        const char *name = json_string_value(json_array_get(after, i));
        int at = name ? task_number(t, name) : -1;
        if (at < 0)
            return err_set(err, ERR_INVALID, "template \"%s\": task \"%s\" comes after \"%s\", "
                           "which there is not", t->name, k->name, name ? name : "");
        bool twice = false;
        for (int j = 0; j < k->n_after && n < 64; j++)
            twice |= k->after[j] == at;
        if (!twice)
            k->after[k->n_after++] = at;
    }
    return 0;
}

static int mentions_item(void *arg, const char *tag, bool expression)
{
    const char *at = expression ? strstr(tag, "item") : strncmp(tag, "item", 4) ? NULL : tag;
    *(bool *)arg |= at != NULL;
    return 0;
}

static int task_compile(struct run_graph *g, struct tmpl *t, struct task *k, struct err *err)
{
    const json_t *go = json_object_get(k->doc, "continue_on");
    const char *depends = text_at(k->doc, "depends");
    k->template_name = text_at(k->doc, "template");
    k->tmpl = graph_template(g, k->template_name);
    if (!k->tmpl)
        return err_set(err, ERR_INVALID, "template \"%s\": task \"%s\" runs template \"%s\", which "
                                         "there is not", t->name, k->name,
                       k->template_name ? k->template_name : "");
    k->when = text_at(k->doc, "when");
    k->loop = json_object_get(k->doc, "loop");
    k->loop_limit = limit_at(k->loop, "parallelism");
    k->hook = json_object_get(k->doc, "hook");
    k->always = k->hook || json_is_true(json_object_get(k->doc, "always"));
    k->go_failed = json_is_true(json_object_get(go, "failed"));
    k->go_error = json_is_true(json_object_get(go, "error"));
    if (k->when && k->loop && !g->ir &&
        flow_expr_tags(k->when, mentions_item, &k->when_item, err) < 0)
        return err_add(err, "template \"%s\": task \"%s\"", t->name, k->name);
    if (depends && flow_expr_parse_depends(depends, &k->depends, err) < 0)
        return err_add(err, "template \"%s\": task \"%s\": depends", t->name, k->name);
    return task_after(t, k, err);
}

/* next: what comes after each; and whether all can ever be reached (no cycles). */
static int tasks_link(struct tmpl *t, struct err *err)
{
    int reached = 0, *unmet = calloc((size_t)t->n + 1, sizeof *unmet);
    int *ready = calloc((size_t)t->n + 1, sizeof *ready);
    int ok = unmet && ready ? 0 : -1;

    for (int i = 0; i < t->n; i++)
        for (int j = 0; j < t->tasks[i].n_after; j++)
            t->tasks[t->tasks[i].after[j]].n_next++;
    for (int i = 0; i < t->n && ok == 0; i++) {
        struct task *k = &t->tasks[i];
        k->next = calloc((size_t)k->n_next + 1, sizeof *k->next);
        k->n_next = 0;
        ok = k->next ? 0 : -1;
    }
    for (int i = 0; i < t->n && ok == 0; i++) {
        unmet[i] = t->tasks[i].n_after;
        if (!unmet[i])
            ready[reached++] = i;
        for (int j = 0; j < t->tasks[i].n_after; j++) {
            struct task *before = &t->tasks[t->tasks[i].after[j]];
            before->next[before->n_next++] = i;
        }
    }
    for (int i = 0; i < reached && ok == 0; i++) {
        struct task *k = &t->tasks[ready[i]];
        for (int j = 0; j < k->n_after; j++)
            if (k->group < t->tasks[k->after[j]].group + !k->hook)
                k->group = t->tasks[k->after[j]].group + !k->hook;
        if (k->group + 1 > t->n_groups)
            t->n_groups = k->group + 1;
        for (int j = 0; j < k->n_next; j++)
            if (!--unmet[k->next[j]])
                ready[reached++] = k->next[j];
    }
    free(unmet);
    free(ready);
    if (ok < 0)
        return err_set(err, ERR_NOMEM, "no memory for the tasks of a run");
    if (reached < t->n)
        return err_set(err, ERR_INVALID, "template \"%s\": its tasks wait for one another",
                       t->name);
    return 0;
}

/* Those that nobody comes after, or those that "target" names; it may have tags of the run. */
static int tasks_target(const struct run_graph *g, struct tmpl *t, struct err *err)
{
    const json_t *doc = json_object_get(json_object_get(t->body, "dag"), "target");
    const struct scope s = { .g = g };
    OWN_JSON json_t *value = NULL;
    if (doc && value_get(&s, doc, &value, err) < 0)
        return err_add(err, "target of template \"%s\"", t->name);
    const char *target = json_string_value(value);
    for (int i = 0; i < t->n; i++) {
        const struct task *k = &t->tasks[i];
        int others = 0;         /* an exit handler of a task decides nothing */
        for (int j = 0; j < k->n_next; j++)
            others += !t->tasks[k->next[j]].hook;
        t->tasks[i].target = g->ir || (!target && !others && !k->hook);
    }
    while (target && *target) {
        size_t n = strcspn(target, " ,");
        OWN_MEM char *name = strndup(target, n);
        int at = name ? task_number(t, name) : -1;
        if (at >= 0)
            t->tasks[at].target = true;
        else if (name && *name)
            return err_set(err, ERR_INVALID, "target \"%s\" is no task of template \"%s\"", name,
                           t->name);
        target += n + strspn(target + n, " ,");
    }
    return 0;
}

static int dag_compile(struct run_graph *g, struct tmpl *t, struct err *err)
{
    const json_t *dag = json_object_get(t->body, "dag"), *doc;
    const json_t *list = json_object_get(dag, "tasks"), *fast = json_object_get(dag, "fail_fast");
    const char *style = text_at(dag, "style");
    size_t i, n = json_array_size(list);

    if (!style)
        style = text_at(t->body, "style");
    t->fail_fast = !json_is_false(fast);
    t->tasks = calloc(n ? n : 1, sizeof *t->tasks);
    t->index = json_object();
    if (!t->tasks || !t->index)
        return err_set(err, ERR_NOMEM, "no memory for the tasks of a run");
    json_array_foreach ((json_t *)list, i, doc) {
        const char *name = text_at(doc, "name");
        if (!name || json_object_get(t->index, name))
            return err_set(err, ERR_INVALID, "template \"%s\": task %zu has %s", t->name, i + 1,
                           name ? "the name of another" : "no name");
        t->tasks[i].doc = doc;
        t->tasks[i].name = name;
        json_object_set_new(t->index, name, json_integer((json_int_t)i));
        t->n++;
    }
    for (int k = 0; k < t->n; k++)
        if (task_compile(g, t, &t->tasks[k], err) < 0)
            return -(int)err->code;
    if (tasks_link(t, err) < 0 || tasks_target(g, t, err) < 0)
        return -(int)err->code;
    if (!style || strcmp(style, "steps")) {
        t->n_groups = 0;
        return 0;
    }
    t->kind = NODE_STEPS;
    t->group_sizes = calloc((size_t)t->n_groups + 1, sizeof *t->group_sizes);
    for (int k = 0; k < t->n && t->group_sizes; k++)
        t->group_sizes[t->tasks[k].group]++;
    return t->group_sizes ? 0 : err_set(err, ERR_NOMEM, "no memory for the tasks of a run");
}

/* ------------------------------------------------------------ templates */

int graph_compile(struct run_graph *g, struct err *err)
{
    static const struct { const char *key; enum node_kind kind; } kinds[] = {
        { "dag", NODE_DAG }, { "step", NODE_STEP }, { "resource", NODE_RESOURCE },
        { "suspend", NODE_SUSPEND }, { "importer", NODE_IMPORTER },
    };
    const json_t *all = json_object_get(g->flow, "templates");
    const char *name;
    json_t *body;

    g->limit = limit_at(g->flow, "parallelism");
    g->template_index = json_object();
    g->templates = calloc(json_object_size(all) + 1, sizeof *g->templates);
    if (!g->template_index || !g->templates)
        return err_set(err, ERR_NOMEM, "no memory for the templates of a run");
    json_object_foreach ((json_t *)all, name, body) {
        struct tmpl *t = &g->templates[g->n_templates];
        const json_t *retry = json_object_get(body, "retry");
        size_t k = 0, count = sizeof kinds / sizeof kinds[0];
        while (k < count && !json_object_get(body, kinds[k].key))
            k++;
        if (k == count)
            return err_set(err, ERR_INVALID, "template \"%s\" has nothing to run", name);
        *t = (struct tmpl){ .name = name, .body = body, .kind = kinds[k].kind,
                            .limit = limit_at(body, "parallelism"),
                            .halt = json_is_true(json_object_get(body, "fail_fast")),
                            .deadline_s = number_at(body, "deadline_s", 0) };
        t->retry = json_is_object(retry) ? retry : NULL;
        json_object_set_new(g->template_index, name, json_integer(g->n_templates++));
    }
    for (int i = 0; i < g->n_templates; i++)
        if (g->templates[i].kind == NODE_DAG && dag_compile(g, &g->templates[i], err) < 0)
            return -(int)err->code;
    return 0;
}

void graph_compile_free(struct run_graph *g)
{
    for (int i = 0; i < g->n_templates; i++) {
        struct tmpl *t = &g->templates[i];
        for (int k = 0; t->tasks && k < t->n; k++) {
            flow_expr_free(t->tasks[k].depends);
            free(t->tasks[k].after);
            free(t->tasks[k].next);
        }
        free(t->tasks);
        free(t->group_sizes);
        json_decref(t->index);
    }
    free(g->templates);
    json_decref(g->template_index);
}

/* ------------------------------------------------------------ parameters */

json_t *graph_typed(const char *type, json_t *value)
{
    const char *text = json_string_value(value);
    if (!type || !value)
        return value;
    if (!strcmp(type, "STRING") && !text && !json_is_null(value)) {
        OWN_MEM char *shown = flow_expr_text(value);
        json_decref(value);
        return shown ? json_string(shown) : NULL;
    }
    if (strcmp(type, "STRING") && text) {
        json_t *read = json_loads(text, JSON_DECODE_ANY, NULL);
        bool bools = !strcmp(type, "BOOLEAN") && !read;
        if (bools && (!strcasecmp(text, "true") || !strcasecmp(text, "false")))
            read = json_boolean(!strcasecmp(text, "true"));
        if (read) {
            json_decref(value);
            value = read;
        }
    }
    if (!strcmp(type, "NUMBER_INTEGER") && json_is_real(value)) {
        double d = json_real_value(value);
        if (d == floor(d) && fabs(d) < 9e15) {
            json_decref(value);
            value = json_integer((json_int_t)d);
        }
    }
    return value;
}

static bool fits(const char *type, const json_t *v)
{
    return !type ? true
           : !strcmp(type, "STRING")         ? json_is_string(v)
           : !strcmp(type, "NUMBER_INTEGER") ? json_is_integer(v)
           : !strcmp(type, "NUMBER_DOUBLE")  ? json_is_number(v)
           : !strcmp(type, "BOOLEAN")        ? json_is_boolean(v)
           : !strcmp(type, "LIST")           ? json_is_array(v)
           : !strcmp(type, "STRUCT")         ? json_is_object(v)
                                             : true;
}

static int configs_of(const json_t *inputs,
                      int (*each)(void *arg, const char *map, const char *key, bool optional),
                      void *arg)
{
    const json_t *doc;
    size_t i;
    json_array_foreach ((json_t *)inputs, i, doc) {
        const json_t *config = json_object_get(doc, "config");
        const char *map = text_at(config, "name"), *key = text_at(config, "key");
        bool optional = json_is_true(json_object_get(config, "optional")) ||
                        json_object_get(doc, "default");
        int rc = config ? each(arg, map && key ? map : NULL, key, optional) : 0;
        if (rc)
            return rc;
    }
    return 0;
}

int run_graph_configs(const json_t *flow,
                      int (*each)(void *arg, const char *map, const char *key, bool optional),
                      void *arg)
{
    const char *name;
    json_t *body;
    int rc = configs_of(json_object_get(flow, "inputs"), each, arg);
    json_object_foreach (json_object_get(flow, "templates"), name, body)
        if (!rc)
            rc = configs_of(json_object_get(json_object_get(body, "inputs"), "parameters"), each,
                            arg);
    return rc;
}

int config_missing(const char *map, const char *key, struct err *err)
{
    return err_set(err, ERR_INVALID, "config map \"%.100s\" has no \"%.100s\" (muster apply -f a "
                   "ConfigMap, or muster config set %.100s.%.100s)", map, key, map, key);
}

int graph_take_parameters(struct run_graph *g, const json_t *given, struct err *err)
{
    const json_t *list = json_object_get(g->flow, "inputs"), *doc;
    size_t i;
    const char *key;
    json_t *v;

    g->parameters = json_object();
    json_array_foreach ((json_t *)list, i, doc) {
        const char *name = text_at(doc, "name"), *type = g->ir ? text_at(doc, "type") : "STRING";
        v = name ? json_object_get(given, name) : NULL;
        if (!v || json_is_null(v))
            v = json_object_get(doc, "default");
        const json_t *config = v ? NULL : json_object_get(doc, "config");
        const char *map = text_at(config, "name"), *word = text_at(config, "key");
        if (map && word)
            v = json_object_get(json_object_get(g->configs, map), word);
        if (!v && (json_is_true(json_object_get(doc, "optional")) ||
                   json_is_true(json_object_get(config, "optional"))))
            continue;
        if (name && !v && map && word)
            return config_missing(map, word, err), err_add(err, "parameter \"%s\"", name);
        if (!name || !v)
            return err_set(err, ERR_INVALID, "the run has no value for its parameter \"%s\"",
                           name ? name : "");
        v = graph_typed(type, json_incref(v));
        if (!json_is_null(v) && !fits(type, v)) {
            json_decref(v);
            return err_set(err, ERR_INVALID, "the parameter \"%s\" of the run is no %s", name,
                           type);
        }
        json_object_set_new(g->parameters, name, v);
    }
    json_object_foreach ((json_t *)given, key, v) {
        if (json_object_get(g->parameters, key))
            continue;
        if (g->ir && !json_is_null(v))
            return err_set(err, ERR_INVALID, "the pipeline has no parameter \"%s\"", key);
        if (!g->ir)             /* as in Argo: workflow.parameters.X */
            json_object_set_new(g->parameters, key, graph_typed("STRING", json_incref(v)));
    }
    return 0;
}
