/* pipelines/argo_check.c - a Workflow as a whole, when all of it is read
 *
 * A dag's tasks get numbers, and lists of what each comes after. A cycle is found by taking away,
 * again and again, tasks that nothing holds up. Whether a task may use another's output is asked by
 * walking back from it; what all such walks may cost has a limit, past which a use is believed: the
 * run itself says then that there is no such output.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/near.h"
#include "drivers/step.h"
#include "pipelines/argo_int.h"
#include "pipelines/expr.h"

enum { WALK_MAX = 50000000 };           /* tasks and edges looked at, of all walks: a second */

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static int refuse_task(struct argo *c, const struct argo_scope *s, const json_t *task,
                       const char *fmt, ...) __attribute__((format(printf, 4, 5)));

static int refuse_task(struct argo *c, const struct argo_scope *s, const json_t *task,
                       const char *fmt, ...)
{
    char what[384];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return err_set(c->err, ERR_INVALID, "%s:%d: template \"%.60s\", task \"%.60s\": %s", c->name,
                   (int)json_integer_value(json_object_get(task, "line")), s->name,
                   text_of(task, "name"), what);
}

/* ------------------------------------------------------------------ tasks as numbers */

void argo_free_scopes(struct argo *c)
{
    for (struct argo_scope *s = c->scopes, *next; s; s = next) {
        next = s->next;
        json_decref(s->index);
        free(s->first);
        free(s->edge);
        free(s->seen);
        free(s);
    }
}

static const json_t *dag_of(const struct argo_scope *s)
{
    return json_object_get(s->template, "dag");
}

static json_t *tasks_of(const struct argo_scope *s)
{
    return json_object_get(dag_of(s), "tasks");
}

static int number_of(const struct argo_scope *s, const char *task)
{
    const json_t *i = json_object_get(s->index, task);
    return i ? (int)json_integer_value(i) : -1;
}

static int number_tasks(struct argo *c, struct argo_scope *s)
{
    json_t *tasks = tasks_of(s), *task;
    size_t i;

    s->n = (int)json_array_size(tasks);
    s->index = json_object();
    json_array_foreach(tasks, i, task) {
        const char *name = text_of(task, "name");
        if (json_object_get(s->index, name))
            return refuse_task(c, s, task, "there is another task of this name (line %d)",
                               (int)json_integer_value(json_object_get(
                                   json_array_get(tasks, (size_t)number_of(s, name)), "line")));
        argo_put(c, s->index, name, json_integer((json_int_t)i));
    }
    return 0;
}

static int link_tasks(struct argo *c, struct argo_scope *s)
{
    json_t *task, *name;
    size_t i, j, edges = 0;

    json_array_foreach(tasks_of(s), i, task)
        edges += json_array_size(json_object_get(task, "after"));
    s->first = calloc((size_t)s->n + 1, sizeof *s->first);
    s->edge = calloc(edges + 1, sizeof *s->edge);
    s->seen = calloc((size_t)s->n + 1, sizeof *s->seen);
    if (!s->first || !s->edge || !s->seen)
        return err_set(c->err, ERR_NOMEM, "%s: no memory for the pipeline", c->name);
    int at = 0;
    json_array_foreach(tasks_of(s), i, task) {
        s->first[i] = at;
        json_array_foreach(json_object_get(task, "after"), j, name) {
            int k = number_of(s, json_string_value(name));
            if (k < 0) {
                struct near near = near_to(json_string_value(name));
                const char *key;
                json_t *value;
                json_object_foreach(s->index, key, value)
                    near_try(&near, key);
                return refuse_task(c, s, task, "comes after \"%.60s\", and there is no such task%s"
                                   "%.60s%s", json_string_value(name),
                                   near.word ? "; did you mean \"" : "", near.word ? near.word : "",
                                   near.word ? "\"?" : "");
            }
            s->edge[at++] = k;
        }
    }
    s->first[s->n] = at;
    return 0;
}

/* A task that is on a cycle, for the message: from one that cannot start, back until it repeats. */
static int find_on_cycle(struct argo_scope *s, const int *holding, int i)
{
    s->mark++;
    while (s->seen[i] != s->mark) {
        s->seen[i] = s->mark;
        for (int e = s->first[i]; e < s->first[i + 1]; e++)
            if (holding[s->edge[e]] > 0) {
                i = s->edge[e];
                break;
            }
    }
    return i;
}

static int check_cycles(struct argo *c, struct argo_scope *s)
{
    size_t n = (size_t)s->n;
    OWN_MEM int *holding = calloc(n + 1, sizeof *holding);      /* how many hold it up */
    OWN_MEM int *start = calloc(n + 2, sizeof *start), *free_now = calloc(n + 1, sizeof *free_now);
    OWN_MEM int *after = calloc((size_t)s->first[s->n] + 1, sizeof *after);

    if (!holding || !start || !free_now || !after)
        return err_set(c->err, ERR_NOMEM, "%s: no memory for the pipeline", c->name);
    for (int e = 0; e < s->first[s->n]; e++)
        start[s->edge[e] + 1]++;
    for (int i = 0; i < s->n; i++)
        start[i + 1] += start[i];
    for (int i = 0; i < s->n; i++)
        for (int e = s->first[i]; e < s->first[i + 1]; e++) {
            after[start[s->edge[e]]++] = i;
            holding[i]++;
        }
    int n_free = 0, done = 0;
    for (int i = 0; i < s->n; i++)
        if (!holding[i])
            free_now[n_free++] = i;
    for (; done < n_free; done++) {
        int i = free_now[done];
        for (int e = i ? start[i - 1] : 0; e < start[i]; e++)
            if (--holding[after[e]] == 0)
                free_now[n_free++] = after[e];
    }
    for (int i = 0; done < s->n && i < s->n; i++)
        if (holding[i] > 0) {
            json_t *task = json_array_get(tasks_of(s), (size_t)find_on_cycle(s, holding, i));
            return refuse_task(c, s, task, "comes after itself: its dependencies form a cycle");
        }
    return 0;
}

/* ------------------------------------------------------------------ what is given to templates */

static const json_t *named(const json_t *list, const char *name)
{
    size_t i;
    json_t *item;

    json_array_foreach(list, i, item)
        if (strcmp(text_of(item, "name"), name) == 0)
            return item;
    return NULL;
}

static const json_t *part(const json_t *template, const char *side, const char *kind)
{
    return json_object_get(json_object_get(template, side), kind);
}

/* An input that nothing fills, or NULL. `parameters` and `artifacts` have what is given. */
static const char *unfilled(const json_t *template, const json_t *parameters,
                            const json_t *artifacts, const char **out_kind)
{
    size_t i;
    json_t *in;

    *out_kind = "parameter";
    json_array_foreach(part(template, "inputs", "parameters"), i, in)
        if (!json_object_get(in, "default") && !json_object_get(in, "config") &&
            !json_object_get(parameters, text_of(in, "name")))
            return text_of(in, "name");
    *out_kind = "artifact";
    json_array_foreach(part(template, "inputs", "artifacts"), i, in)
        if (!json_is_true(json_object_get(in, "optional")) && !json_object_get(in, "raw") &&
            !json_object_get(in, "uri") && !json_object_get(artifacts, text_of(in, "name")))
            return text_of(in, "name");
    return NULL;
}

static int check_call(struct argo *c, const struct argo_scope *s, const json_t *task)
{
    const char *name = text_of(task, "template"), *kind;
    const json_t *template = json_object_get(c->templates, name);

    if (!template) {
        struct near near = near_to(name);
        const char *key;
        json_t *value;
        json_object_foreach(c->templates, key, value)
            near_try(&near, key);
        return refuse_task(c, s, task, "there is no template \"%.60s\"%s%.60s%s", name,
                           near.word ? "; did you mean \"" : "", near.word ? near.word : "",
                           near.word ? "\"?" : "");
    }
    const char *missing = unfilled(template, json_object_get(task, "parameters"),
                                   json_object_get(task, "artifacts"), &kind);
    if (missing)
        return refuse_task(c, s, task, "template \"%.60s\" needs %s \"%.60s\"; give it in "
                           "arguments, or a default in the template", name, kind, missing);
    return 0;
}

static int check_target(struct argo *c, const struct argo_scope *s)
{
    const char *target = json_string_value(json_object_get(dag_of(s), "target"));
    char name[200];

    for (const char *p = target; p && *p;) {
        size_t n = strcspn(p, " ");
        snprintf(name, sizeof name, "%.*s", (int)n, p);
        if (n && number_of(s, name) < 0)
            return err_set(c->err, ERR_INVALID, "%s:%d: template \"%.60s\": target \"%.60s\" is no "
                           "task of it", c->name,
                           (int)json_integer_value(json_object_get(s->template, "line")), s->name,
                           name);
        p += n + strspn(p + n, " ");
    }
    return 0;
}

static int check_dag(struct argo *c, struct argo_scope *s)
{
    json_t *task;
    size_t i;

    if (number_tasks(c, s) < 0 || link_tasks(c, s) < 0 || check_cycles(c, s) < 0)
        return -(int)c->err->code;
    json_array_foreach(tasks_of(s), i, task)
        if (check_call(c, s, task) < 0)
            return -(int)c->err->code;
    return check_target(c, s);
}

/* ------------------------------------------------------------------ templates in templates */

/* A way back to the same template on which every task runs for sure never ends. `state`: name ->
 * false while it is walked, true when nothing is wrong below it. */
static int walk(struct argo *c, const char *name, json_t *state, int depth)
{
    const json_t *template = json_object_get(c->templates, name);
    json_t *task;
    size_t i;

    argo_put(c, state, name, json_false());
    json_array_foreach(json_object_get(json_object_get(template, "dag"), "tasks"), i, task) {
        const char *next = text_of(task, "template");
        const json_t *known = json_object_get(state, next);
        if (json_object_get(task, "when") || json_object_get(task, "loop") ||
            json_object_get(task, "depends") || json_is_true(known))
            continue;
        if (known)
            return err_set(c->err, ERR_INVALID, "%s:%d: template \"%.60s\", task \"%.60s\": runs "
                           "template \"%.60s\", which it is part of, and no \"when\" ends it",
                           c->name, (int)json_integer_value(json_object_get(task, "line")), name,
                           text_of(task, "name"), next);
        if (depth > 1000)
            return err_set(c->err, ERR_INVALID, "%s: templates call each other too deep", c->name);
        if (walk(c, next, state, depth + 1) < 0)
            return -(int)c->err->code;
    }
    argo_put(c, state, name, json_true());
    return 0;
}

static int check_ends(struct argo *c)
{
    OWN_JSON json_t *state = json_object();
    const char *name;
    json_t *template;

    json_object_foreach(c->templates, name, template)
        if (!json_object_get(state, name) && walk(c, name, state, 0) < 0)
            return -(int)c->err->code;
    return 0;
}

/* ------------------------------------------------------------------ the run's own templates */

static int check_start(struct argo *c, const char *key, const char *as)
{
    const char *name = json_string_value(json_object_get(c->flow, key)), *kind;
    const json_t *template = name ? json_object_get(c->templates, name) : NULL;
    const struct value *at = argo_get(c->spec, as);

    if (!name)
        return 0;
    if (!template)
        return argo_refuse(c, at, "there is no template \"%.60s\"", name);
    OWN_JSON json_t *parameters = json_object();
    json_t *in;
    size_t i;
    json_array_foreach(json_object_get(c->flow, "inputs"), i, in)
        argo_put(c, parameters, text_of(in, "name"), json_true());
    const json_t *given = strcmp(key, "exit") == 0 ? json_object_get(c->flow, "exit_arguments")
                                                   : NULL;
    json_object_update(parameters, json_object_get(given, "parameters"));
    const char *missing = unfilled(template, parameters, json_object_get(given, "artifacts"),
                                   &kind);
    if (missing)
        return argo_refuse(c, at, "template \"%.60s\" needs %s \"%.60s\", which is none of "
                           "spec.arguments", name, kind, missing);
    return 0;
}

/* ------------------------------------------------------------------ mounts */

static int check_mounts(struct argo *c, const struct argo_scope *s, const json_t *step,
                        const json_t *volumes)
{
    json_t *m;
    size_t i;

    json_array_foreach(json_object_get(step, "mounts"), i, m) {
        const char *name = text_of(m, "volume");
        if (!named(volumes, name) && !named(json_object_get(c->flow, "volumes"), name) &&
            !named(json_object_get(c->flow, "claims"), name))
            return err_set(c->err, ERR_INVALID, "%s:%d: template \"%.60s\": volumeMounts: there is "
                           "no volume \"%.60s\"", c->name,
                           (int)json_integer_value(json_object_get(s->template, "line")), s->name,
                           name);
    }
    return 0;
}

static int check_step(struct argo *c, const struct argo_scope *s)
{
    const json_t *step = json_object_get(s->template, "step");
    const json_t *volumes = json_object_get(step, "volumes");
    static const char *const lists[] = { "init", "sidecars" };
    json_t *beside;
    size_t i;

    if (check_mounts(c, s, step, volumes) < 0)
        return -(int)c->err->code;
    for (int l = 0; l < 2; l++)
        json_array_foreach(json_object_get(step, lists[l]), i, beside)
            if (check_mounts(c, s, beside, volumes) < 0)
                return -(int)c->err->code;
    return 0;
}

/* Values of secrets and config maps are files, which may be anywhere; a directory may not. */
static int check_place(struct argo *c, const struct argo_use *use)
{
    const struct value *name = argo_get(use->at->parent, "name");
    const json_t *step = use->scope ? json_object_get(use->scope->template, "step") : NULL;
    const json_t *volume = named(json_object_get(step, "volumes"), name->text);

    if (!volume)
        volume = named(json_object_get(c->flow, "volumes"), name->text);
    if (json_object_get(volume, "secret") || json_object_get(volume, "config") ||
        !step_is_system(use->text))
        return 0;
    return argo_refuse(c, use->at, "%.100s is the system's own; mount the volume elsewhere",
                       use->text);
}

/* ------------------------------------------------------------------ names in tags */

struct looking {
    struct argo *c;
    const struct argo_use *use;
    long *walked;
    bool from;                  /* an artifact itself is meant, not its path */
    const char *why;            /* set: the name is not known, and why */
    char what[400];
};

/* 1: task `b` has ended for sure when `a` begins. */
static int comes_before(struct looking *l, struct argo_scope *s, int a, int b)
{
    OWN_MEM int *stack = malloc(((size_t)s->n + 1) * sizeof *stack);
    int n = 0;

    if (!stack)
        return 1;
    for (int e = s->first[a]; e < s->first[a + 1]; e++)         /* nearly always */
        if (s->edge[e] == b)
            return 1;
    s->mark++;
    stack[n++] = a;
    while (n && (*l->walked)++ < WALK_MAX) {
        int i = stack[--n];
        for (int e = s->first[i]; e < s->first[i + 1]; e++, (*l->walked)++) {
            if (s->edge[e] == b)
                return 1;
            if (s->seen[s->edge[e]] != s->mark) {
                s->seen[s->edge[e]] = s->mark;
                stack[n++] = s->edge[e];
            }
        }
    }
    return n > 0;
}

/* The first part of a dotted path; `rest` is what follows its dot, or "". */
static const char *cut(const char *path, char *out, size_t size)
{
    size_t n = strcspn(path, ".");

    snprintf(out, size, "%.*s", (int)n, path);
    return path + n + (path[n] == '.');
}

static int no(struct looking *l, const char *fmt, const char *name)
{
    snprintf(l->what, sizeof l->what, fmt, name);
    l->why = l->what;
    return 1;
}

/* `rest` follows "outputs.parameters." or the like; the list has those that are there. */
static int look_in(struct looking *l, const json_t *list, const char *rest, const char *fmt)
{
    char name[160];

    cut(rest, name, sizeof name);
    return named(list, name) ? 0 : no(l, fmt, name);
}

static int look_task(struct looking *l, const char *path, bool steps)
{
    struct argo_scope *s = l->use->scope;
    const char *style = s ? json_string_value(json_object_get(dag_of(s), "style")) : NULL;
    char name[160];
    const char *rest = cut(path, name, sizeof name);

    if (strcmp(path, "name") == 0)
        return 0;
    if (!s || !dag_of(s))
        return no(l, "\"%s\" is no task of this template; pass what it made by arguments", name);
    if (steps != (style != NULL))
        return no(l, steps ? "in a dag it is tasks.%s" : "in steps it is steps.%s", name);
    int b = number_of(s, name);
    if (b < 0)
        return no(l, "there is no task \"%s\" in this template", name);
    int a = l->use->task ? number_of(s, text_of(l->use->task, "name")) : -1;
    if (a >= 0 && a != b && !comes_before(l, s, a, b))
        return no(l, "task \"%s\" may not have run by then; depend on it", name);
    if (a == b)
        return no(l, "\"%s\" is the task itself", name);
    const json_t *task = json_array_get(tasks_of(s), (size_t)b);
    const json_t *template = json_object_get(l->c->templates, text_of(task, "template"));
    if (strncmp(rest, "outputs.parameters.", 19) == 0)
        return look_in(l, part(template, "outputs", "parameters"), rest + 19,
                       "its template has no output parameter \"%s\"");
    if (strncmp(rest, "outputs.artifacts.", 18) == 0)
        return look_in(l, part(template, "outputs", "artifacts"), rest + 18,
                       "its template has no output artifact \"%s\"");
    static const char *const facts[] = {
        "outputs", "outputs.parameters", "outputs.result", "status", "exitCode", "id", "startedAt",
        "finishedAt", "hostNodeName", "",
    };
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++)
        if (strcmp(rest, facts[i]) == 0 || (i == 2 && strncmp(rest, "outputs.result.", 15) == 0))
            return 0;
    if (strcmp(rest, "ip") == 0)
        return no(l, "\"%s\" has no address of its own; steps share the machine's", name);
    return no(l, "of a task there are outputs, status, exitCode, id, startedAt and finishedAt%s",
              "");
}

static int look_workflow(struct looking *l, const char *rest)
{
    static const char *const facts[] = {
        "name", "namespace", "uid", "status", "failures", "mainEntrypoint", "serviceAccountName",
        "creationTimestamp", "priority", "duration", "scheduledTime", "parameters",
        "parameters.json", "labels.json", "annotations.json", "labels", "annotations", "",
    };
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++)
        if (strcmp(rest, facts[i]) == 0)
            return 0;
    if (strncmp(rest, "creationTimestamp.", 18) == 0)
        return 0;
    if (strncmp(rest, "parameters.", 11) == 0)
        return look_in(l, json_object_get(l->c->flow, "inputs"), rest + 11,
                       "\"%s\" is no parameter of the run (spec.arguments)");
    if (strncmp(rest, "labels.", 7) == 0)
        return json_object_get(json_object_get(l->c->flow, "labels"), rest + 7)
                   ? 0 : no(l, "the Workflow has no label \"%.100s\"", rest + 7);
    if (strncmp(rest, "annotations.", 12) == 0)
        return json_object_get(json_object_get(l->c->flow, "annotations"), rest + 12)
                   ? 0 : no(l, "the Workflow has no annotation \"%.100s\"", rest + 12);
    bool parameter = strncmp(rest, "outputs.parameters.", 19) == 0;
    if (parameter || strncmp(rest, "outputs.artifacts.", 18) == 0) {
        const char *name = rest + (parameter ? 19 : 18);
        for (const struct argo_scope *s = l->c->scopes; s; s = s->next) {
            size_t i;
            json_t *out;
            json_array_foreach(part(s->template, "outputs", parameter ? "parameters" : "artifacts"),
                               i, out)
                if (strcmp(text_of(out, "global"), name) == 0)
                    return 0;
        }
        return no(l, "no output has the globalName \"%.100s\"", name);
    }
    return no(l, "a Workflow has no \"%.100s\"", rest);
}

static int look_own(struct looking *l, const char *path, const char *side)
{
    const json_t *template = l->use->scope ? l->use->scope->template : NULL;
    bool output = strcmp(side, "outputs") == 0;
    char kind[16], name[160];
    const char *rest = cut(path, kind, sizeof kind);
    const char *tail = cut(rest, name, sizeof name);

    if (!template)
        return no(l, "there are no %s outside of a template", side);
    if (!*rest && (!*kind || strcmp(kind, "parameters") == 0))
        return 0;
    if (strcmp(kind, "parameters") != 0 && strcmp(kind, "artifacts") != 0)
        return no(l, "there are parameters and artifacts, no \"%s\"", kind);
    const json_t *item = named(part(template, side, kind), name);
    if (!item)
        return no(l, output ? "this template has no such output \"%s\""
                            : "this template has no such input \"%s\"", name);
    if (strcmp(tail, "path") == 0 && !json_object_get(item, "path"))
        return no(l, "\"%s\" has no path", name);
    if (output && strcmp(tail, "path") != 0)
        return no(l, "of an own output there is only its path: outputs.%s", rest);
    if (!output && kind[0] == 'a' && !l->from && strcmp(tail, "path") != 0)
        return no(l, "an artifact is a file; in a text there is its path: inputs.artifacts.%s.path",
                  name);
    return 0;
}

/* Names that stand for something by themselves; others in a simple tag are no tags to Argo. */
static int look(struct looking *l, const char *path, bool expression)
{
    char head[32];
    const char *rest = cut(path, head, sizeof head);

    if (strcmp(head, "inputs") == 0 || strcmp(head, "outputs") == 0)
        return look_own(l, rest, head);
    if (strcmp(head, "workflow") == 0)
        return look_workflow(l, rest);
    if (strcmp(head, "tasks") == 0 || strcmp(head, "steps") == 0)
        return look_task(l, rest, head[0] == 's');
    if (strcmp(head, "item") == 0)
        return json_object_get(l->use->task, "loop")
                   ? 0 : no(l, "only a task with a loop has an %s", "item");
    if (strcmp(path, "pod.name") == 0 || strcmp(path, "node.name") == 0)
        return 0;
    if (strcmp(head, "lastRetry") == 0)
        return l->use->retry || json_object_get(l->use->scope ? l->use->scope->template : NULL,
                                                "retry")
                   ? 0 : no(l, "%s is known only where there is a retryStrategy", "lastRetry");
    /* In a condition braces mean nothing else. */
    if (strcmp(path, "retries") == 0 || strcmp(head, "sprig") == 0 ||
        (!expression && l->use->kind != ARGO_WHEN))
        return 0;
    return no(l, "\"%s\" is no name that is known here", head);
}

static int look_name(void *arg, const char *path)
{
    struct looking *l = arg;
    return look(l, path, true);
}

static int look_expression(struct looking *l, const char *text)
{
    struct err err = { 0 };
    OWN(flow_expr) e = NULL;

    if (flow_expr_parse(text, strlen(text), &e, &err) < 0) {
        snprintf(l->what, sizeof l->what, "%.390s", err.text);
        l->why = l->what;
        return 1;
    }
    bool from = l->from;
    l->from = true;             /* what an expression does with an artifact is its own business */
    int rc = flow_expr_names(e, look_name, l);
    l->from = from;
    return rc;
}

static int look_tag(void *arg, const char *tag, bool expression)
{
    struct looking *l = arg;

    if (expression ? look_expression(l, tag) : look(l, tag, false)) {
        char why[sizeof l->what];
        snprintf(why, sizeof why, "%s", l->why);
        return argo_refuse(l->c, l->use->at, "{{%s%.80s}}: %s", expression ? "=" : "", tag, why);
    }
    return 0;
}

static int check_use(struct argo *c, const struct argo_use *use, long *walked)
{
    struct looking l = { .c = c, .use = use, .walked = walked, .from = use->kind == ARGO_FROM };
    struct err err = { 0 };

    if (use->kind == ARGO_PLACE)
        return check_place(c, use);
    if (use->kind == ARGO_EXPRESSION && !argo_has_tags(use->text))
        return look_expression(&l, use->text) ? argo_refuse(c, use->at, "%s", l.why) : 0;
    int rc = flow_expr_tags(use->text, look_tag, &l, &err);
    if (rc < 0 && err.code)
        return argo_refuse(c, use->at, "%s", err.text);
    if (rc < 0)
        return rc;
    if (use->kind == ARGO_WHEN && flow_expr_check_when(use->text, &err) < 0)
        return argo_refuse(c, use->at, "%s", err.text);
    return 0;
}

/* ------------------------------------------------------------------ all of it */

int argo_check(struct argo *c)
{
    long walked = 0;

    if (check_start(c, "entry", "entrypoint") < 0 ||
        check_start(c, "exit", argo_get(c->spec, "onExit") ? "onExit" : "hooks") < 0)
        return -(int)c->err->code;
    for (struct argo_scope *s = c->scopes; s; s = s->next)
        if ((dag_of(s) && check_dag(c, s) < 0) || check_step(c, s) < 0)
            return -(int)c->err->code;
    if (check_ends(c) < 0)
        return -(int)c->err->code;
    for (int i = 0; i < c->n_uses; i++)
        if (check_use(c, &c->use[i], &walked) < 0)
            return -(int)c->err->code;
    return 0;
}
