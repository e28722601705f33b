/* pipelines/argo_task.c - the tasks of a dag, and groups of steps as a dag */
#include <stdio.h>
#include <string.h>

#include "pipelines/argo_int.h"
#include "pipelines/expr.h"
#include "spec/json.h"

/* ------------------------------------------------------------------ arguments */

static int put_parameters(struct argo *c, json_t *object, const struct value *first)
{
    for (const struct value *v = first; v; v = v->next) {
        const char *name;
        if (argo_check_map(c, v, ARGO_PARAMETER) < 0 || argo_name(c, v, true, &name) < 0)
            return -(int)c->err->code;
        if (json_object_get(object, name))
            return argo_refuse(c, v, "parameter \"%s\" is given twice", name);
        const struct value *value = value_find(v, "value"), *from = argo_get(v, "valueFrom"), *x;
        if (!value && from && (x = argo_get(from, "expression"))) {
            argo_put(c, object, name, argo_expression(c, x));
            continue;
        }
        if (!value && from && (x = argo_get(from, "parameter")))
            value = x;
        if (!value)
            value = value_find(v, "default");
        if (!value)
            return argo_refuse(c, v, "needs a value");
        if (argo_put_value(c, object, name, value) < 0)
            return -(int)c->err->code;
    }
    return 0;
}

static int put_artifacts(struct argo *c, json_t *object, const struct value *first)
{
    for (const struct value *v = first; v; v = v->next) {
        const char *name;
        bool optional = false;
        json_t *source;
        if (argo_check_map(c, v, ARGO_ARTIFACT) < 0 || argo_name(c, v, true, &name) < 0 ||
            argo_bool(c, v, "optional", &optional) < 0 || argo_refuse_mode(c, v) < 0 ||
            argo_artifact_source(c, v, &source) < 0)
            return -(int)c->err->code;
        if (!source && optional)
            continue;
        if (!source)
            return argo_refuse(c, v, "says not where artifact \"%s\" comes from: from, raw or "
                               "gcs", name);
        if (json_object_get(object, name)) {
            json_decref(source);
            return argo_refuse(c, v, "artifact \"%s\" is given twice", name);
        }
        argo_put(c, object, name, source);
    }
    return 0;
}

int argo_put_arguments(struct argo *c, json_t *object, const struct value *arguments)
{
    json_t *parameters = json_object(), *artifacts = json_object();
    const struct value *first;

    argo_put(c, object, "parameters", parameters);
    argo_put(c, object, "artifacts", artifacts);
    if (!arguments)
        return 0;
    if (argo_check_map(c, arguments, ARGO_ARGUMENTS) < 0 ||
        argo_list(c, arguments, "parameters", &first) < 0 ||
        put_parameters(c, parameters, first) < 0 ||
        argo_list(c, arguments, "artifacts", &first) < 0)
        return -(int)c->err->code;
    return put_artifacts(c, artifacts, first);
}

/* ------------------------------------------------------------------ loops */

static int put_items(struct argo *c, json_t *loop, const struct value *v)
{
    if (v->kind != VALUE_LIST && !(v->kind == VALUE_SCALAR && argo_has_tags(v->text)))
        return argo_refuse(c, v, "must be a list");
    if (v->kind == VALUE_SCALAR)
        return argo_put_value(c, loop, "items", v);
    OWN_JSON json_t *items = value_json(v);
    OWN_MEM char *text = items ? json_dumps(items, JSON_COMPACT) : NULL;
    if (text && argo_has_tags(text))
        return argo_put_value(c, loop, "items", v);     /* its tags are filled, then it is read */
    argo_put(c, loop, "items", json_pack("{s:O}", "json", items));
    return 0;
}

static int put_param(struct argo *c, json_t *loop, const struct value *v)
{
    if (v->kind == VALUE_LIST)
        return put_items(c, loop, v);
    if (v->kind != VALUE_SCALAR)
        return argo_refuse(c, v, "must be a JSON list, or a tag that comes to one");
    if (argo_has_tags(v->text))
        return argo_put_value(c, loop, "items", v);
    json_t *items = json_loads(v->text, 0, NULL);
    if (!json_is_array(items)) {
        json_decref(items);
        return argo_refuse(c, v, "\"%.60s\" is no JSON list", v->text);
    }
    argo_put(c, loop, "items", json_pack("{s:o}", "json", items));
    return 0;
}

static int put_sequence(struct argo *c, json_t *loop, const struct value *v)
{
    json_t *s = json_object();

    argo_put(c, loop, "sequence", s);
    if (argo_check_map(c, v, ARGO_SEQUENCE) < 0)
        return -(int)c->err->code;
    if (!argo_get(v, "count") == !argo_get(v, "end"))
        return argo_refuse(c, v, "needs one of count and end");
    static const char *const keys[] = { "start", "end", "count" };
    for (int i = 0; i < 3; i++) {
        const struct value *x = argo_get(v, keys[i]);
        long long n;
        if (x && !(x->kind == VALUE_SCALAR && argo_has_tags(x->text)) && argo_whole(c, x, &n) < 0)
            return -(int)c->err->code;
        if (argo_put_value(c, s, keys[i], x) < 0)
            return -(int)c->err->code;
    }
    return argo_put_text(c, s, "format", argo_get(v, "format"));
}

static int put_loop(struct argo *c, json_t *task, const struct value *v)
{
    static const struct {
        const char *key;
        int (*put)(struct argo *, json_t *, const struct value *);
    } forms[] = {
        { "withItems", put_items }, { "withParam", put_param }, { "withSequence", put_sequence },
    };
    json_t *loop = NULL;

    for (int i = 0; i < 3; i++) {
        const struct value *x = argo_get(v, forms[i].key);
        if (!x)
            continue;
        if (loop)
            return argo_refuse(c, x, "a task has one loop");
        argo_put(c, task, "loop", loop = json_object());
        if (forms[i].put(c, loop, x) < 0)
            return -(int)c->err->code;
    }
    return 0;
}

/* ------------------------------------------------------------------ one task */

static int put_template(struct argo *c, json_t *task, const struct value *v, const char *name)
{
    const struct value *template = argo_get(v, "template");
    struct value *in = value_find(v, "inline");
    char made[200];

    if (in && template)
        return argo_refuse(c, in, "a task has a template or an inline one, not both");
    if (!in && argo_get(v, "templateRef"))
        return argo_refuse(c, argo_get(v, "templateRef"), "not supported");
    if (!in && !template)
        return argo_refuse(c, v, "needs \"template\"");
    if (!in)
        return argo_put_text(c, task, "template", template);
    snprintf(made, sizeof made, "%.150s-inline-%d", name, ++c->inlined);
    argo_put(c, task, "template", json_string(made));
    return argo_template(c, in, made);
}

static int put_continue(struct argo *c, json_t *task, const struct value *v)
{
    const struct value *on = argo_get(v, "continueOn");
    bool failed = false, error = false;

    if (!on)
        return 0;
    if (on->kind != VALUE_MAP)
        return argo_refuse(c, on, "must be a map");
    if (argo_bool(c, on, "failed", &failed) < 0 || argo_bool(c, on, "error", &error) < 0)
        return -(int)c->err->code;
    argo_put(c, task, "continue_on", json_pack("{s:b, s:b}", "failed", failed, "error", error));
    return 0;
}

static int put_when(struct argo *c, json_t *task, const struct value *v)
{
    const struct value *when = argo_get(v, "when");

    if (!when)
        return 0;
    if (when->kind != VALUE_SCALAR)
        return argo_refuse(c, when, "must be a text");
    argo_note(c, ARGO_WHEN, when, when->text);
    return argo_put_text(c, task, "when", when);
}

/* A task without what it comes after. `tasks` gets it. */
static int put_task(struct argo *c, json_t *tasks, const struct value *v, enum argo_map kind,
                    json_t **out)
{
    const char *name;

    if (argo_check_map(c, v, kind) < 0 || argo_name(c, v, false, &name) < 0)
        return -(int)c->err->code;
    json_t *task = json_pack("{s:s, s:i}", "name", name, "line", v->line);
    argo_put_item(c, tasks, task);
    int rc = put_template(c, task, v, name);
    c->task = task;
    if (rc == 0)
        rc = argo_put_arguments(c, task, argo_get(v, "arguments"));
    if (rc == 0)
        rc = put_when(c, task, v);
    if (rc == 0)
        rc = put_loop(c, task, v);
    if (rc == 0)
        rc = put_continue(c, task, v);
    c->task = NULL;
    *out = task;
    return rc;
}

/* hooks.exit, called onExit before there were hooks: a template that runs when the task has ended.
 * `name` gets "TASK.onExit", or "" where there is none. Another task in `tasks`: flow.h, hook. */
static int put_exit(struct argo *c, json_t *tasks, const struct value *v, const char *task,
                    char *name, size_t size)
{
    const struct value *hooks = argo_get(v, "hooks"), *on = argo_get(v, "onExit"), *h = NULL, *x;
    const char *template;

    *name = 0;
    if (hooks && hooks->kind != VALUE_MAP)
        return argo_refuse(c, hooks, "must be a map");
    for (x = hooks ? hooks->child : NULL; x; x = x->next)
        if (strcmp(x->key, "exit") != 0 || on)
            return argo_refuse(c, x, "not supported: of hooks only \"exit\" is run, and one of it; "
                               "use a task with depends (\"a.Succeeded || a.Failed\")");
        else
            h = x;
    if (!h && !on)
        return 0;
    if (h ? argo_check_map(c, h, ARGO_HOOK) < 0 || argo_word(c, h, "template", &template) < 0
          : argo_word(c, v, "onExit", &template) < 0)
        return -(int)c->err->code;
    snprintf(name, size, "%s.onExit", task);
    json_t *made =
        json_pack("{s:s, s:i, s:s, s:[s], s:b}", "name", name, "line", (h ? h : on)->key_line,
                  "template", template, "after", task, "hook", 1);
    argo_put(c, made, "depends", json_sprintf("%s.Succeeded || %s.Failed || %s.Errored", task, task,
                                              task));
    argo_put_item(c, tasks, made);
    c->task = made;
    int rc = argo_put_arguments(c, made, h ? argo_get(h, "arguments") : NULL);
    if (rc == 0 && (x = argo_get(h, "expression"))) {
        rc = x->kind == VALUE_SCALAR ? 0 : argo_refuse(c, x, "must be an expression");
        if (rc == 0) {
            argo_note(c, ARGO_EXPRESSION, x, x->text);
            argo_put(c, made, "when", json_sprintf("{{=%s}}", x->text));
        }
    }
    c->task = NULL;
    return rc;
}

/* ------------------------------------------------------------------ dags */

struct names {
    struct argo *c;
    json_t *after;
};

static int add_name(void *arg, const char *path)
{
    struct names *n = arg;
    char name[200];

    snprintf(name, sizeof name, "%.*s", (int)strcspn(path, "."), path);
    size_t i;
    json_t *word;
    json_array_foreach(n->after, i, word)
        if (strcmp(json_string_value(word), name) == 0)
            return 0;
    argo_put_item(n->c, n->after, json_string(name));
    return 0;
}

static int put_depends(struct argo *c, json_t *task, const struct value *v)
{
    struct names names = { c, json_array() };
    struct err err = { 0 };

    argo_put(c, task, "after", names.after);
    if (v->kind != VALUE_SCALAR)
        return argo_refuse(c, v, "must be a text such as \"a && b.Failed\"");
    OWN(flow_expr) e = NULL;
    if (flow_expr_parse_depends(v->text, &e, &err) < 0)
        return argo_refuse(c, v, "%s", err.text);
    flow_expr_names(e, add_name, &names);
    return argo_put_text(c, task, "depends", v);
}

static int put_after(struct argo *c, json_t *task, const struct value *v)
{
    const struct value *depends = argo_get(v, "depends"), *d = argo_get(v, "dependencies");

    if (depends && d)
        return argo_refuse(c, d, "a task has depends or dependencies, not both");
    if (depends && argo_get(v, "continueOn"))
        return argo_refuse(c, argo_get(v, "continueOn"), "cannot be used with depends; say it "
                           "there (\"a.Succeeded || a.Failed\")");
    if (depends)
        return put_depends(c, task, depends);
    if (!d)
        return 0;
    if (d->kind != VALUE_LIST)
        return argo_refuse(c, d, "must be a list of tasks");
    struct names names = { c, json_array() };
    argo_put(c, task, "after", names.after);
    for (const struct value *name = d->child; name; name = name->next) {
        if (name->kind != VALUE_SCALAR || !*name->text || strchr(name->text, '.'))
            return argo_refuse(c, name, "must be the name of a task");
        add_name(&names, name->text);
    }
    return 0;
}

/* What comes after a task comes after its exit handler. */
static void wait_for_hooks(struct argo *c, json_t *tasks, const json_t *hooks)
{
    size_t i, n;
    json_t *task;

    json_array_foreach(tasks, i, task) {
        json_t *after = json_object_get(task, "after");
        n = json_object_get(task, "hook") ? 0 : json_array_size(after);
        for (size_t j = 0; j < n; j++) {
            json_t *hook = json_object_get(hooks, json_string_value(json_array_get(after, j)));
            if (hook)
                argo_put_item(c, after, json_incref(hook));
        }
    }
}

int argo_dag(struct argo *c, json_t *body, const struct value *t, const struct value *form)
{
    const struct value *first;
    json_t *dag, *tasks = json_array(), *task;
    bool fast = true;

    (void)t;
    argo_put(c, body, "dag", dag = json_object());
    argo_put(c, dag, "tasks", tasks);
    if (argo_check_map(c, form, ARGO_DAG) < 0 || argo_bool(c, form, "failFast", &fast) < 0 ||
        argo_list(c, form, "tasks", &first) < 0 ||
        argo_put_value(c, dag, "target", argo_get(form, "target")) < 0)
        return -(int)c->err->code;
    argo_put(c, dag, "fail_fast", json_boolean(fast));
    if (!first)
        return argo_refuse(c, form, "needs tasks");
    OWN_JSON json_t *hooks = json_object();     /* task -> its exit handler */
    for (const struct value *v = first; v; v = v->next) {
        char hook[200];
        if (put_task(c, tasks, v, ARGO_TASK, &task) < 0 || put_after(c, task, v) < 0)
            return -(int)c->err->code;
        const char *name = json_string_value(json_object_get(task, "name"));
        if (put_exit(c, tasks, v, name, hook, sizeof hook) < 0)
            return -(int)c->err->code;
        if (*hook)
            argo_put(c, hooks, name, json_string(hook));
    }
    if (json_object_size(hooks))
        wait_for_hooks(c, tasks, hooks);
    return 0;
}

/* Steps that run together, after those of `before` (NULL: none); `names` gets theirs. */
static int put_group(struct argo *c, json_t *tasks, const struct value *group, json_t *before,
                     json_t *names)
{
    json_t *task;

    if (group->kind != VALUE_LIST)
        return argo_refuse(c, group, "must be a list of steps; write \"- - name: ...\"");
    for (const struct value *v = group->child; v; v = v->next) {
        if (put_task(c, tasks, v, ARGO_STEP_TASK, &task) < 0)
            return -(int)c->err->code;
        char hook[200];
        argo_put_item(c, names, json_incref(json_object_get(task, "name")));
        if (before)
            argo_put(c, task, "after", json_incref(before));
        if (put_exit(c, tasks, v, json_string_value(json_object_get(task, "name")), hook,
                     sizeof hook) < 0)
            return -(int)c->err->code;
        if (*hook)
            argo_put_item(c, names, json_string(hook));
    }
    return 0;
}

int argo_steps(struct argo *c, json_t *body, const struct value *t, const struct value *form)
{
    json_t *dag = json_pack("{s:b, s:s}", "fail_fast", 1, "style", "steps"), *tasks = json_array();
    OWN_JSON json_t *before = NULL;

    (void)t;
    argo_put(c, body, "dag", dag);
    argo_put(c, dag, "tasks", tasks);
    if (form->kind != VALUE_LIST || !form->child)
        return argo_refuse(c, form, "must be a list of groups, each a list of steps");
    for (const struct value *group = form->child; group; group = group->next) {
        OWN_JSON json_t *names = json_array();
        if (put_group(c, tasks, group, before, names) < 0)
            return -(int)c->err->code;
        if (json_array_size(names)) {           /* an empty group orders nothing */
            json_decref(before);
            before = TAKE(names);
        }
    }
    return 0;
}
