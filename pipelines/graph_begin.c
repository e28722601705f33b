/* pipelines/graph_begin.c - a task begins: its `when`, its loop, its inputs, its attempts */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pipelines/graph_int.h"

/* Names a vertex after a task; `name` is taken over. */
static struct vertex *task_vertex(struct run_graph *g, struct vertex *parent, char *name,
                                  enum node_kind kind, struct vertex *home, int slot, int index)
{
    const struct task *k = &home->tmpl->tasks[slot];
    struct vertex *v = vertex_make(g, parent, name, kind);
    const char *display = json_string_value(json_object_get(k->doc, "display"));
    if (!v)
        return NULL;
    v->home = home;
    v->slot = slot;
    v->index = index;
    v->depth = home->depth + 1;
    v->tmpl = k->tmpl;
    v->n.task = k->name;
    v->n.template_name = k->template_name;
    v->n.body = k->tmpl->body;
    if (display && index < 0 && parent->n.kind != NODE_RETRY && strcmp(display, k->name)) {
        char *own = strdup(display);
        if (own) {
            v->n.display = own;
            v->own_display = true;
        }
    }
    return v;
}

/* A task that enters no template: skipped, or wrong in itself. */
static struct vertex *task_over(struct run_graph *g, struct vertex *parent, char *name,
                                struct vertex *home, int slot, int index, enum node_phase phase,
                                const char *message)
{
    struct vertex *v = task_vertex(g, parent, name, NODE_SKIPPED_TASK, home, slot, index);
    if (!v)
        return NULL;
    vertex_inputs(v, json_incref(g->nothing));
    if (index < 0)
        home->dag->slots[slot].v = v;
    vertex_end(g, v, phase, message);
    return v;
}

/* ------------------------------------------------------------ conditions */

/* kfp's conditions see the inputs of the task, Argo's the tasks before it. */
static int task_when(const struct scope *s, const struct task *k, const json_t *inputs, bool *out,
                     struct err *err)
{
    struct scope own = *s;
    struct flow_scope f = { scope_get, &own };
    if (!s->g->ir)
        return flow_expr_when(k->when, &f, out, err);
    OWN(flow_expr) e = NULL;
    OWN_JSON json_t *v = NULL;
    own.inputs = inputs;
    if (flow_expr_parse(k->when, strlen(k->when), &e, err) < 0 ||
        flow_expr_eval(e, &f, &v, err) < 0 || flow_expr_truth(v, out, err) < 0)
        return err_add(err, "condition \"%.100s\"", k->when);
    return 0;
}

/* ------------------------------------------------------------ how many */

static const char TOO_MANY[] = "the run would have more than 200,000 nodes, which is the most";

static int nodes_within(const struct tmpl *t)
{
    return t->n + t->n_groups;
}

/* What a dag or a loop is going to have is counted when it begins: those that have begun at the limit
 * could make many times as many, were each to find out for itself. Once something did not fit, nothing
 * more does. */
static bool nodes_promise(struct run_graph *g, int n)
{
    bool fits = n <= GRAPH_NODES_MAX - g->promised;
    g->promised = fits ? g->promised + n : GRAPH_NODES_MAX;
    return fits;
}

/* ------------------------------------------------------------ one instance */

/* One run of a task: the whole of it, or an iteration of its loop. */
static struct vertex *instance_begin(struct run_graph *g, struct vertex *dag, int slot,
                                     struct vertex *parent, char *name, int index,
                                     const json_t *item)
{
    const struct task *k = &dag->tmpl->tasks[slot];
    struct scope s = { .g = g, .home = dag, .inputs = dag->n.inputs, .item = item };
    struct err err = { 0 };
    OWN_JSON json_t *inputs = NULL;
    bool is = true, when = k->when && (index < 0 || k->when_item);
    const char *item_name = json_string_value(json_object_get(k->loop, "item"));

    if ((when && !g->ir && task_when(&s, k, NULL, &is, &err) < 0) ||
        (is && inputs_get(&s, json_object_get(k->doc, "parameters"),
                          json_object_get(k->doc, "artifacts"), k->tmpl,
                          index < 0 ? NULL : item_name, &inputs, &err) < 0) ||
        (when && g->ir && task_when(&s, k, inputs, &is, &err) < 0))
        return task_over(g, parent, name, dag, slot, index, NODE_ERROR, err.text);
    if (!is) {
        OWN_BUF why = BUF_INIT;
        buf_printf(&why, "when '%.200s' evaluated false", k->when);
        return task_over(g, parent, name, dag, slot, index, NODE_SKIPPED, why.data);
    }
    if (dag->depth + 1 > GRAPH_DEPTH_MAX)
        return task_over(g, parent, name, dag, slot, index, NODE_ERROR,
                         "templates are nested deeper than 100: does a `when` end the recursion?");
    if (!nodes_promise(g, !!k->tmpl->retry + nodes_within(k->tmpl)))
        return task_over(g, parent, name, dag, slot, index, NODE_ERROR, TOO_MANY);
    return template_enter(g, parent, name, dag, slot, index, k->tmpl, TAKE(inputs));
}

static void count_active(struct vertex *v)
{
    v->counted = true;
    v->home->dag->active++;
    if (v->index >= 0 && vertex_parent(v)->loop)
        vertex_parent(v)->loop->active++;
}

/* ------------------------------------------------------------ loops */

void loop_free(struct loop *l)
{
    if (!l)
        return;
    json_decref(l->items);
    free(l->redo);
    free(l);
}

/* "name(3:item)" with what of the item can stand in a name; maps as "key:value,key:value". */
static char *iteration_name(const struct vertex *group, int index, const json_t *item)
{
    OWN_BUF b = BUF_INIT;
    OWN_BUF shown = BUF_INIT;
    const char *key;
    json_t *v;

    if (json_object_get(item, "uri") && json_object_get(item, "name")) {
        buf_text(&shown, json_string_value(json_object_get(item, "name")));     /* an artifact */
    } else if (json_is_object(item)) {
        /* jansson keeps the order of insertion: sorted by writing and reading it */
        OWN_MEM char *dump = json_dumps(item, JSON_COMPACT | JSON_SORT_KEYS);
        OWN_JSON json_t *again = dump ? json_loads(dump, 0, NULL) : NULL;
        json_object_foreach (again, key, v) {
            OWN_MEM char *text = flow_expr_text(v);
            buf_printf(&shown, "%s%s:%s", shown.n ? "," : "", key, text ? text : "");
        }
    } else {
        OWN_MEM char *text = flow_expr_text(item);
        buf_text(&shown, text ? text : "");
    }
    buf_printf(&b, "%s(%d:", group->n.name, index);
    size_t n = 0;
    for (const char *p = shown.data ? shown.data : ""; *p; p++) {
        bool first = (*p & 0xc0) != 0x80;
        if (first && n >= GRAPH_ITEM_SHOWN)
            break;
        if (*p == '(' || *p == ')')
            continue;
        buf_append(&b, (unsigned char)*p < ' ' ? " " : p, 1);
        n++;
    }
    buf_text(&b, ")");
    return buf_take(&b);
}

/* After a run.retry: an iteration that failed goes on where it was, or begins anew. */
static void iteration_begin(struct run_graph *g, struct vertex *group, int index)
{
    const json_t *item = json_array_get(group->loop->items, (size_t)index);
    char *name = iteration_name(group, index, item);
    struct vertex *v = name ? vertex_find(g, name) : NULL;
    if (v && v->redo) {
        free(name);
        graph_reopen(g, v);
    } else {
        v = instance_begin(g, group->home, group->slot, group, name, index, item);
    }
    if (v)
        count_active(v);
}

void loop_begin(struct run_graph *g, struct vertex *group)
{
    struct loop *l = group->loop;
    struct vertex *dag = group->home;
    int limit = dag->tmpl->tasks[group->slot].loop_limit;

    while ((l->redo_n || l->next < l->n) && !group->stopped && !g->failed &&
           (!limit || l->active < limit)) {
        if (dag_full(dag)) {
            if (!l->queued)
                dag_queue(g, dag, group->slot);
            l->queued = true;
            return;
        }
        iteration_begin(g, group, l->redo_n ? l->redo[--l->redo_n] : l->next++);
    }
}

void loop_ended(struct run_graph *g, struct vertex *group, struct vertex *iteration)
{
    struct loop *l = group->loop;
    enum node_phase p = iteration->n.phase;

    l->left--;
    l->succeeded += p == NODE_SUCCEEDED;
    l->failed += node_failed(p);
    if (node_failed(p) && iteration->index >= l->worst_index) {
        l->worst_index = iteration->index;
        l->worst = (unsigned char)p;
    }
    loop_begin(g, group);
    if (l->left)
        return;
    vertex_outputs(group, loop_outputs(g, group));
    vertex_blame(group, l->failed ? vertex_of(group->n.children[l->worst_index]) : NULL);
    vertex_end(g, group, l->failed ? (enum node_phase)l->worst : group->stopped ? NODE_FAILED
                                                                                : NODE_SUCCEEDED,
               NULL);
}

static void loop_task(struct run_graph *g, struct vertex *dag, int slot, struct vertex *parent,
                      char *name)
{
    const struct task *k = &dag->tmpl->tasks[slot];
    struct scope s = { .g = g, .home = dag, .inputs = dag->n.inputs };
    struct err err = { 0 };
    OWN_JSON json_t *items = NULL;
    OWN_JSON json_t *inputs = NULL;
    bool is = true;
    const char *item_name = json_string_value(json_object_get(k->loop, "item"));

    if (k->when && g->ir) {
        OWN_JSON json_t *without = json_copy((json_t *)json_object_get(k->doc, "parameters"));
        struct err none = { 0 };
        if (item_name)
            json_object_del(without, item_name);
        inputs_get(&s, without, NULL, NULL, NULL, &inputs, &none);
    }
    if (k->when && !k->when_item && task_when(&s, k, inputs, &is, &err) < 0) {
        task_over(g, parent, name, dag, slot, -1, NODE_ERROR, err.text);
        return;
    }
    if (!is) {
        OWN_BUF why = BUF_INIT;
        buf_printf(&why, "when '%.200s' evaluated false", k->when);
        task_over(g, parent, name, dag, slot, -1, NODE_SKIPPED, why.data);
        return;
    }
    if (!nodes_promise(g, 1)) {         /* before its items are made, which is most of the work */
        task_over(g, parent, name, dag, slot, -1, NODE_ERROR, TOO_MANY);
        return;
    }
    if (loop_items(&s, k->loop, &items, &err) < 0) {
        task_over(g, parent, name, dag, slot, -1, NODE_ERROR, err.text);
        return;
    }
    if (!json_array_size(items)) {
        struct vertex *v = task_over(g, parent, name, dag, slot, -1, NODE_SKIPPED,
                                     "Skipped, empty params");
        if (v && g->ir)         /* what is collected from it are empty lists */
            vertex_outputs(v, loop_outputs(g, v));
        return;
    }
    if (!nodes_promise(g, (int)json_array_size(items))) {
        task_over(g, parent, name, dag, slot, -1, NODE_ERROR, TOO_MANY);
        return;
    }
    struct vertex *group = task_vertex(g, parent, name, NODE_TASK_GROUP, dag, slot, -1);
    struct loop *l = group ? graph_alloc(g, 1, sizeof *l) : NULL;
    if (!l)
        return;
    group->loop = l;
    group->n.phase = NODE_RUNNING;
    group->n.started = g->now;
    vertex_inputs(group, json_incref(g->nothing));
    l->n = l->left = (int)json_array_size(items);
    l->items = TAKE(items);
    dag->dag->slots[slot].v = group;
    loop_begin(g, group);
}

void task_begin(struct run_graph *g, struct vertex *dag, int slot)
{
    const struct task *k = &dag->tmpl->tasks[slot];
    struct vertex *parent = dag_group(g, dag, slot);
    char *name = NULL;

    dag->dag->slots[slot].state = SLOT_BEGUN;
    if (dag->dag->slots[slot].v && dag->dag->slots[slot].v->redo) {
        struct vertex *v = dag->dag->slots[slot].v;
        graph_reopen(g, v);
        if (!v->loop)
            count_active(v);
        return;
    }
    if (!parent || asprintf(&name, "%s.%s", parent->n.name, k->name) < 0) {
        g->failed = true;
    } else if (k->loop) {
        loop_task(g, dag, slot, parent, name);
    } else {
        struct vertex *v = instance_begin(g, dag, slot, parent, name, -1, NULL);
        if (v)
            count_active(v);
    }
}

/* ------------------------------------------------------------ templates, attempts */

void body_enter(struct run_graph *g, struct vertex *v, double at)
{
    const json_t *seconds = json_object_get(json_object_get(v->tmpl->body, "suspend"), "seconds");
    if (v->tmpl->kind == NODE_DAG || v->tmpl->kind == NODE_STEPS) {
        dag_begin(g, v);
        return;
    }
    if (v->tmpl->kind != NODE_SUSPEND) {
        leaf_want(g, v, at);
        return;
    }
    struct scope s = { .g = g, .home = v, .inputs = v->n.inputs, .leaf = v };
    struct err err = { 0 };
    OWN_JSON json_t *value = NULL;
    OWN_MEM char *text = NULL;
    double wait = INFINITY;
    v->n.started = g->now;
    if (seconds && value_get(&s, seconds, &value, &err) < 0) {
        vertex_end(g, v, NODE_ERROR, err.text);
        return;
    }
    if (value && !json_is_null(value)) {
        char *end = NULL;
        text = flow_expr_text(value);
        wait = text ? strtod(text, &end) : 0;
        static const struct { const char *unit; double s; } units[] = {
            { "", 1 }, { "s", 1 }, { "m", 60 }, { "h", 3600 }, { "d", 86400 },
        };
        double unit = 0;
        for (size_t i = 0; text && i < sizeof units / sizeof units[0]; i++)
            unit += end != text && !strcmp(end, units[i].unit) ? units[i].s : 0;
        if (!(unit > 0 && wait >= 0)) {
            vertex_end(g, v, NODE_ERROR, "a suspend template waits for a number of seconds");
            return;
        }
        wait *= unit;
    }
    leaf_want(g, v, g->now + wait);
    v->n.phase = NODE_RUNNING;
}

/* A template may say how its nodes are called, with its inputs in the text. */
static void show_as(struct run_graph *g, struct vertex *v)
{
    const json_t *display = json_object_get(v->n.body, "display");
    struct scope s = { .g = g, .home = v, .inputs = v->n.inputs };
    struct err none = { 0 };
    OWN_JSON json_t *value = NULL;
    if (!display || v->own_display || value_get(&s, display, &value, &none) < 0)
        return;
    char *own = json_is_string(value) ? strdup(json_string_value(value)) : NULL;
    if (own) {
        v->n.display = own;
        v->own_display = true;
    }
}

/* `inputs` and `name` are taken over. */
struct vertex *template_enter(struct run_graph *g, struct vertex *parent, char *name,
                              struct vertex *home, int slot, int index, const struct tmpl *t,
                              json_t *inputs)
{
    enum node_kind kind = t->retry ? NODE_RETRY : t->kind;
    struct vertex *v;

    if (home) {
        v = task_vertex(g, parent, name, kind, home, slot, index);
        if (v && index < 0)
            home->dag->slots[slot].v = v;
    } else {
        v = vertex_make(g, NULL, name, kind);
        if (v) {
            v->tmpl = t;
            v->n.template_name = t->name;
            v->n.body = t->body;
            *(g->root ? &g->exit : &g->root) = v;
        }
    }
    if (!v) {
        json_decref(inputs);
        return NULL;
    }
    vertex_inputs(v, inputs);
    show_as(g, v);
    if (t->deadline_s > 0 && !node_kind_leaf(t->kind)) {      /* a leaf: of each attempt */
        v->at = g->now + t->deadline_s;
        v->wait = t->deadline_s;
        vertex_place(g, v, PLACE_TIMED);
    }
    if (!t->retry) {
        body_enter(g, v, 0);
        return v;
    }
    v->n.phase = NODE_RUNNING;
    v->n.started = g->now;
    retry_attempt(g, v, 0);
    return v;
}

void retry_attempt(struct run_graph *g, struct vertex *v, double at)
{
    int i = v->n.n_children;
    char *name = NULL;
    if (asprintf(&name, "%s(%d)", v->n.name, i) < 0)
        name = NULL;
    struct vertex *a = vertex_make(g, v, name, v->tmpl->kind);
    if (!a)
        return;
    a->home = v->home;
    a->slot = v->slot;
    a->index = i;
    a->depth = v->depth;
    a->tmpl = v->tmpl;
    a->n.task = v->n.task;
    a->n.template_name = v->n.template_name;
    a->n.body = v->n.body;
    if (a->n.attempt < i)
        a->n.attempt = i;
    vertex_inputs(a, json_incref((json_t *)v->n.inputs));
    body_enter(g, a, at);
}

static double number_at(const json_t *doc, const char *key, double fallback)
{
    const json_t *v = json_object_get(doc, key);
    return json_is_number(v) ? json_number_value(v) : fallback;
}

/* retry.expression: over lastRetry.*; tags are filled first where it has any. */
static int retry_wanted(struct run_graph *g, const struct vertex *v, const char *text, bool *out,
                        struct err *err)
{
    struct scope s = { .g = g, .home = v, .inputs = v->n.inputs, .retry = v };
    struct flow_scope f = { scope_get, &s };
    OWN_BUF b = BUF_INIT;
    OWN(flow_expr) e = NULL;
    OWN_JSON json_t *value = NULL;
    if (strstr(text, "{{")) {
        if (flow_expr_fill(text, &f, NULL, &b, err) < 0)
            return -(int)err->code;
        text = b.data ? b.data : "";
    }
    if (flow_expr_parse(text, strlen(text), &e, err) < 0 ||
        flow_expr_eval(e, &f, &value, err) < 0)
        return -(int)err->code;
    return flow_expr_truth(value, out, err);
}

/* Whether the attempt's phase is one that the policy retries. */
static bool policy_allows(const json_t *retry, const struct vertex *attempt)
{
    const char *policy = json_string_value(json_object_get(retry, "policy"));
    bool failed = attempt->n.phase == NODE_FAILED;
    if (!policy || !strcmp(policy, "OnFailure"))
        return failed;
    if (!strcmp(policy, "OnError"))
        return !failed;
    return !strcmp(policy, "OnTransientError") ? attempt->transient : true;
}

/* How long to wait before the next attempt; false: no longer worth it. */
static bool retry_wait(const struct run_graph *g, const struct vertex *v, int tried, double *out)
{
    const json_t *retry = v->tmpl->retry;
    double wait = number_at(retry, "backoff_s", 0), factor = number_at(retry, "factor", 0);
    double max = number_at(retry, "max_s", 0), cap = number_at(retry, "cap_s", 0);
    const struct node *first = v->n.children[v->retry_base];
    double began = first->started > 0 ? first->started : v->n.started;

    if (factor > 0)
        wait *= pow(factor, tried - 1);
    if (g->ir && max > 0)
        cap = cap > 0 ? fmin(cap, max) : max;   /* kfp: of one wait; Argo: of all attempts */
    if (cap > 0)
        wait = fmin(wait, cap);
    *out = fmin(wait, 1e9);
    return g->ir || max <= 0 || g->now + wait <= began + max;
}

/* A number, or a value that comes to one. */
static double retry_limit(const struct run_graph *g, const struct vertex *v)
{
    struct scope s = { .g = g, .home = v, .inputs = v->n.inputs };
    struct err none = { 0 };
    OWN_JSON json_t *value = NULL;
    const json_t *limit = json_object_get(v->tmpl->retry, "limit");
    if (json_is_number(limit) || !limit || value_get(&s, limit, &value, &none) < 0)
        return json_is_number(limit) ? json_number_value(limit) : -1;
    OWN_MEM char *text = value ? flow_expr_text(value) : NULL;
    return text ? strtod(text, NULL) : -1;
}

void retry_ended(struct run_graph *g, struct vertex *v, struct vertex *attempt)
{
    const json_t *retry = v->tmpl->retry;
    const char *expression = json_string_value(json_object_get(retry, "expression"));
    double limit = retry_limit(g, v), wait = 0;
    int tried = v->n.n_children - v->retry_base;
    enum node_phase p = attempt->n.phase;
    struct err err = { 0 };
    bool is = true;

    if (attempt != vertex_of(v->n.children[v->n.n_children - 1]))
        return;
    vertex_outputs(v, json_incref((json_t *)attempt->n.outputs));
    if (!node_failed(p))
        vertex_end(g, v, p, attempt->n.message);
    else if (v->stopped || !policy_allows(retry, attempt))
        vertex_end(g, v, p, attempt->n.message);
    else if (limit >= 0 && tried > limit)
        vertex_end(g, v, p, "No more retries left");
    else if (!retry_wait(g, v, tried, &wait))
        vertex_end(g, v, p, "Max duration limit exceeded");
    else if (expression && retry_wanted(g, v, expression, &is, &err) < 0)
        vertex_end(g, v, NODE_ERROR, err.text);
    else if (!is)
        vertex_end(g, v, p, "retryStrategy.expression evaluated to false");
    else if (!nodes_promise(g, 1 + nodes_within(v->tmpl)))
        vertex_end(g, v, NODE_ERROR, TOO_MANY);
    else
        retry_attempt(g, v, wait > 0 ? g->now + wait : 0);
}
