/* pipelines/ir_task.c - dags of kfp 2: their tasks, what these wait for, what the dag gives */
#include <stdlib.h>
#include <string.h>

#include "pipelines/expr.h"
#include "pipelines/ir_int.h"

const struct value *ir_component_of(struct ir *c, const struct value *task)
{
    const struct value *ref;
    const char *name;
    if (task->kind != VALUE_MAP) {
        ir_refuse(c, task, "must be a map");
        return NULL;
    }
    if (ir_map(c, task, "componentRef", &ref) < 0 || !ref) {
        ir_refuse(c, task, "componentRef: is missing");
        return NULL;
    }
    if (ir_word(c, ref, "name", &name) < 0)
        return NULL;
    const struct value *found = c->components ? value_find(c->components, name) : NULL;
    if (!found)
        ir_refuse(c, ref, "there is no component \"%.64s\"", name);
    return found;
}

/* ------------------------------------------------------------ loops */

static int put_loop(struct ir *c, const struct ir_dag *d, const struct value *t, json_t *task,
                    json_t *after)
{
    const struct value *of_values = ir_get(t, "parameterIterator");
    const struct value *of_artifacts = ir_get(t, "artifactIterator");
    const struct value *it = of_values ? of_values : of_artifacts, *items;
    const struct value *policy = ir_get(t, "iteratorPolicy");
    const struct value *inputs = ir_get(ir_get(t, "inputs"),
                                        of_values ? "parameters" : "artifacts");
    const char *item, *from;
    json_t *value = NULL;

    if (!it)
        return 0;
    if (ir_keys(c, it, "itemInput items", "") < 0 || ir_map(c, it, "items", &items) < 0 ||
        ir_word(c, it, "itemInput", &item) < 0 ||
        (policy && ir_keys(c, policy, "parallelismLimit", "") < 0))
        return -(int)c->err->code;
    json_t *loop = json_pack("{s:s}", "item", item);
    ir_put(c, task, "loop", loop);
    const struct value *raw = ir_get(items, "raw");
    const char *named = of_values ? "inputParameter" : "inputArtifact";
    if (raw && of_values) {
        json_t *list = raw->kind == VALUE_SCALAR ? json_loads(raw->text, 0, NULL) : NULL;
        if (!json_is_array(list)) {
            json_decref(list);
            return ir_refuse(c, raw, "must be the text of a JSON list");
        }
        if (ir_constant(c, d, t, raw, list, after, &value) < 0)
            return -(int)c->err->code;
    } else {
        if (!items || ir_word(c, items, named, &from) < 0)
            return items ? -(int)c->err->code : ir_refuse(c, it, "items: is missing");
        const struct value *input = inputs ? value_find(inputs, from) : NULL;
        if (!input)
            return ir_refuse(c, items, "the task has no input \"%.64s\"", from);
        if ((of_values ? ir_parameter(c, d, t, input, after, &value)
                       : ir_artifact(c, d, input, after, &value)) < 0)
            return -(int)c->err->code;
    }
    ir_put(c, loop, of_values ? "items" : "artifacts", value);
    double limit = ir_number(policy, "parallelismLimit", 0);
    if (limit > 0)
        ir_put(c, loop, "parallelism", json_integer((json_int_t)limit));
    return 0;
}

/* ------------------------------------------------------------ a task */

/* In texts that are put together (f"{item.a}") the SDK speaks of an item one level too early: a
 * loop is given its own item's part, and the item of a loop within it, as inputs that there are
 * not. */
static bool too_early(const struct ir_dag *d, const struct value *v)
{
    const struct value *from = ir_get(v, "componentInputParameter");
    const char *key = v->key;
    return !strncmp(key, "pipelinechannel--", 17) && strstr(key, "loop-item") && from &&
           from->kind == VALUE_SCALAR &&
           (!strcmp(from->text, key) || !strcmp(from->text, key + 17)) &&
           !ir_declared(d->component, "inputDefinitions", "parameters", from->text);
}

/* What such an input is meant to be; NULL: the loop within gives it. */
static json_t *meant(const struct value *t, const char *key)
{
    const struct value *item = ir_get(ir_get(t, "parameterIterator"), "itemInput");
    size_t n = item && item->kind == VALUE_SCALAR ? strlen(item->text) : 0;
    if (!n || strncmp(key, item->text, n) || strncmp(key + n, "-subvar-", 8))
        return NULL;
    return json_pack("{s:s, s:[s]}", "item", "", "path", key + n + 8);
}

static int put_arguments(struct ir *c, const struct ir_dag *d, const struct value *t, json_t *task,
                         json_t *after)
{
    const struct value *inputs, *parameters, *artifacts;
    json_t *ps = json_object(), *as = json_object();

    ir_put(c, task, "parameters", ps);
    ir_put(c, task, "artifacts", as);
    if (ir_map(c, t, "inputs", &inputs) < 0 ||
        (inputs && ir_keys(c, inputs, "parameters artifacts", "") < 0) ||
        ir_map(c, inputs, "parameters", &parameters) < 0 ||
        ir_map(c, inputs, "artifacts", &artifacts) < 0)
        return -(int)c->err->code;
    for (const struct value *p = parameters ? parameters->child : NULL; p; p = p->next) {
        json_t *value = NULL;
        if (too_early(d, p)) {
            if ((value = meant(t, p->key)))
                ir_put(c, ps, p->key, value);
            continue;
        }
        if (ir_parameter(c, d, t, p, after, &value) < 0)
            return -(int)c->err->code;
        ir_put(c, ps, p->key, value);
    }
    for (const struct value *a = artifacts ? artifacts->child : NULL; a; a = a->next) {
        json_t *value = NULL;
        if (ir_artifact(c, d, a, after, &value) < 0)
            return -(int)c->err->code;
        ir_put(c, as, a->key, value);
    }
    return ir_platform_task(c, d, t, ps, after);
}

/* What the component needs it is given. */
static int check_arguments(struct ir *c, const struct ir_dag *d, const struct value *t,
                           const struct value *component, const json_t *task)
{
    const struct value *said = ir_get(ir_get(t, "inputs"), "parameters");
    static const char *const kinds[] = { "parameters", "artifacts" };
    const char *item = json_string_value(json_object_get(json_object_get(task, "loop"), "item"));
    for (int k = 0; k < 2; k++) {
        const struct value *all = ir_get(ir_get(component, "inputDefinitions"), kinds[k]);
        const json_t *given = json_object_get(task, kinds[k]);
        for (const struct value *p = all ? all->child : NULL; p; p = p->next) {
            const struct value *argument = said && k == 0 ? value_find(said, p->key) : NULL;
            if (!json_object_get(given, p->key) && !ir_true(p, "isOptional") &&
                !ir_get(p, "defaultValue") && (!item || strcmp(item, p->key)) &&
                !(argument && too_early(d, argument)))
                return ir_refuse(c, t, "is not given its input \"%.64s\"", p->key);
        }
    }
    return 0;
}

static int put_trigger(struct ir *c, const struct value *t, json_t *task)
{
    const struct value *policy = ir_get(t, "triggerPolicy");
    const struct value *when = ir_get(policy, "condition"), *how = ir_get(policy, "strategy");
    OWN(flow_expr) e = NULL;
    struct err why = { 0 };

    if (policy && ir_keys(c, policy, "condition strategy", "") < 0)
        return -(int)c->err->code;
    if (when) {
        if (when->kind != VALUE_SCALAR ||
            flow_expr_parse(when->text, strlen(when->text), &e, &why) < 0)
            return ir_refuse(c, when, "%.200s", *why.text ? why.text : "must be a text");
        ir_put(c, task, "when", json_string(when->text));
    }
    const char *word = how && how->kind == VALUE_SCALAR ? how->text : "";
    if (!strcmp(word, "ALL_UPSTREAM_TASKS_COMPLETED"))
        ir_put(c, task, "always", json_true());
    else if (how && strcmp(word, "ALL_UPSTREAM_TASKS_SUCCEEDED") &&
             strcmp(word, "TRIGGER_STRATEGY_UNSPECIFIED"))
        return ir_refuse(c, how, "\"%.64s\" is not supported", word);
    return 0;
}

static int put_task(struct ir *c, const struct ir_dag *d, const struct value *t, json_t *tasks)
{
    const struct value *component = ir_component_of(c, t), *info = ir_get(t, "taskInfo"), *needs;
    const struct value *display = ir_get(info, "name");
    json_t *task = json_pack("{s:s, s:i}", "name", t->key, "line", t->key_line);
    json_t *after = json_array();
    const char *template = NULL;

    ir_add(c, tasks, task);
    ir_put(c, task, "after", after);
    if (!component)
        return -(int)c->err->code;
    if (ir_keys(c, t, "cachingOptions componentRef dependentTasks inputs taskInfo triggerPolicy "
                      "parameterIterator artifactIterator iteratorPolicy retryPolicy", "") < 0 ||
        ir_list(c, t, "dependentTasks", &needs) < 0)
        return -(int)c->err->code;
    for (const struct value *n = needs ? needs->child : NULL; n; n = n->next) {
        if (n->kind != VALUE_SCALAR || !value_find(d->tasks, n->text))
            return ir_refuse(c, n, "there is no task \"%.64s\" here", n->text ? n->text : "");
        ir_add(c, after, json_string(n->text));
    }
    if (display && display->kind == VALUE_SCALAR && *display->text &&
        strcmp(display->text, t->key))
        ir_put(c, task, "display", json_string(display->text));
    if (put_arguments(c, d, t, task, after) < 0 || put_loop(c, d, t, task, after) < 0 ||
        check_arguments(c, d, t, component, task) < 0 || put_trigger(c, t, task) < 0 ||
        ir_template(c, component->key, t, t, &template) < 0)
        return -(int)c->err->code;
    ir_put(c, task, "template", json_string(template));
    return 0;
}

/* ------------------------------------------------------------ nothing waits for itself */


/* Kahn's way: what is never ready waits for itself. Edges are looked at from their end, so that
 * each task's list is walked once for every task before it. */
static int check_order(struct ir *c, const struct ir_dag *d, const json_t *tasks)
{
    size_t n = json_array_size(tasks), i, j, reached = 0, edges = 0;
    OWN_JSON json_t *index = json_object();
    json_t *task, *name;

    json_array_foreach((json_t *)tasks, i, task) {
        ir_put(c, index, json_string_value(json_object_get(task, "name")),
               json_integer((json_int_t)i));
        edges += json_array_size(json_object_get(task, "after"));
    }
    OWN_MEM size_t *first = calloc(n + 2, sizeof *first), *edge = calloc(edges + 1, sizeof *edge);
    OWN_MEM size_t *unmet = calloc(n + 1, sizeof *unmet), *ready = calloc(n + 1, sizeof *ready);
    if (!first || !edge || !unmet || !ready || c->failed)
        return err_set(c->err, ERR_NOMEM, "no memory for the tasks of a dag");
    for (int pass = 0; pass < 2; pass++) {
        json_array_foreach((json_t *)tasks, i, task)
            json_array_foreach(json_object_get(task, "after"), j, name) {
                size_t from = (size_t)json_integer_value(
                    json_object_get(index, json_string_value(name)));
                if (pass)
                    edge[first[from]++] = i;
                else
                    first[from + 1]++;
                unmet[i] += pass == 0;
            }
        for (i = 1; i <= n && !pass; i++)
            first[i] += first[i - 1];
    }
    for (i = 0; i < n; i++)
        if (!unmet[i])
            ready[reached++] = i;
    for (i = 0; i < reached; i++)
        for (j = ready[i] ? first[ready[i] - 1] : 0; j < first[ready[i]]; j++)
            if (!--unmet[edge[j]])
                ready[reached++] = edge[j];
    for (i = 0; i < n && reached < n; i++)
        if (unmet[i]) {
            const char *at = json_string_value(json_object_get(json_array_get(tasks, i), "name"));
            return ir_refuse(c, value_find(d->tasks, at), "waits for itself");
        }
    return 0;
}

/* ------------------------------------------------------------ what a dag gives */

static json_t *find_output(const json_t *body, const char *kind, const char *name)
{
    const json_t *list = json_object_get(json_object_get(body, "outputs"), kind);
    size_t i;
    json_t *o;
    json_array_foreach((json_t *)list, i, o)
        if (!strcmp(json_string_value(json_object_get(o, "name")), name))
            return o;
    return NULL;
}

/* One of several tasks, the first that ran: a list of where it may come from. */
static int put_first(struct ir *c, const struct ir_dag *d, const struct value *list,
                     const char *kind, json_t *out)
{
    OWN_JSON json_t *first = json_array();
    for (const struct value *s = list->child; s; s = s->next) {
        json_t *value = NULL;
        if (ir_output(c, d, s, kind, &value) < 0)
            return -(int)c->err->code;
        ir_add(c, first, value);
    }
    if (json_array_size(first) == 1)
        ir_put(c, out, "value", json_incref(json_array_get(first, 0)));
    else
        ir_put(c, out, "first", json_incref(first));
    return 0;
}

static int put_output(struct ir *c, const struct ir_dag *d, const struct value *v,
                      const char *kind, json_t *out)
{
    const struct value *one = ir_get(v, "valueFromParameter"), *any = ir_get(v, "valueFromOneof");
    const struct value *list = NULL;
    json_t *value = NULL;

    if (!out)
        return ir_refuse(c, v, "is no output of the component");
    if (ir_keys(c, v, "valueFromParameter valueFromOneof artifactSelectors", "") < 0)
        return -(int)c->err->code;
    if (*kind == 'a') {
        if (ir_list(c, v, "artifactSelectors", &list) < 0)
            return -(int)c->err->code;
    } else if (any) {
        if (ir_keys(c, any, "parameterSelectors", "") < 0 ||
            ir_list(c, any, "parameterSelectors", &list) < 0)
            return -(int)c->err->code;
    } else if (one) {
        if (ir_output(c, d, one, kind, &value) < 0)
            return -(int)c->err->code;
        ir_put(c, out, "value", value);
        return 0;
    }
    return list ? put_first(c, d, list, kind, out)
                : ir_refuse(c, v, "says not where it comes from");
}

int ir_dag(struct ir *c, const struct value *component, const char *name, json_t *body)
{
    static const char *const kinds[] = { "parameters", "artifacts" };
    const struct value *dag, *outputs, *all;
    struct ir_dag d = { .component = component, .name = name };
    json_t *tasks = json_array();

    ir_put(c, body, "dag", json_pack("{s:o, s:b}", "tasks", tasks, "fail_fast", 0));
    if (ir_map(c, component, "dag", &dag) < 0 || ir_keys(c, dag, "tasks outputs", "") < 0 ||
        ir_map(c, dag, "tasks", &d.tasks) < 0 || ir_map(c, dag, "outputs", &outputs) < 0 ||
        (outputs && ir_keys(c, outputs, "parameters artifacts", "") < 0))
        return -(int)c->err->code;
    for (const struct value *t = d.tasks ? d.tasks->child : NULL; t; t = t->next)
        if (put_task(c, &d, t, tasks) < 0)
            return -(int)c->err->code;
    if (check_order(c, &d, tasks) < 0)
        return -(int)c->err->code;
    for (int k = 0; k < 2; k++) {
        if (ir_map(c, outputs, kinds[k], &all) < 0)
            return -(int)c->err->code;
        for (const struct value *o = all ? all->child : NULL; o; o = o->next)
            if (put_output(c, &d, o, kinds[k], find_output(body, kinds[k], o->key)) < 0)
                return -(int)c->err->code;
    }
    return 0;
}
