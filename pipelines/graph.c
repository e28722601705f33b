/* pipelines/graph.c - a run's life: begun, events applied, what is wanted now, how it ends */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pipelines/graph_int.h"

/* ------------------------------------------------------------ agenda */

static void vertex_ended(struct run_graph *g, struct vertex *v)
{
    struct vertex *parent = vertex_parent(v), *dag = v->home;

    bool counted = v->counted;
    take_globals(g, v);
    if (counted) {
        v->counted = false;
        dag->dag->active--;
        if (parent->loop)
            parent->loop->active--;
    }
    if (!parent)
        return;
    if (counted && dag->tmpl->halt && node_failed(v->n.phase))
        graph_halt(g, dag);
    if (parent->n.kind == NODE_RETRY) {
        retry_ended(g, parent, v);
    } else if (parent->n.kind == NODE_TASK_GROUP) {
        loop_ended(g, parent, v);
    } else if (v->n.kind != NODE_STEP_GROUP && dag->dag->slots[v->slot].v == v) {
        dag_task_ended(g, dag, v->slot);
    }
    if (dag && dag->dag->queue_n)
        dag_pump(g, dag);
}

static bool over(const struct run_graph *g)
{
    return !g->root || node_phase_ended(g->root->n.phase);
}

/* Arguments of the exit handler: its own, else the parameters of the run by name. */
static int exit_inputs(struct run_graph *g, const struct tmpl *t, json_t **out, struct err *err)
{
    struct scope s = { .g = g };
    const json_t *arguments = json_object_get(g->flow, "exit_arguments");
    OWN_JSON json_t *given = json_copy(g->parameters);
    const char *key;
    json_t *value;
    json_object_foreach (json_object_get(arguments, "parameters"), key, value) {
        json_t *v = NULL;
        if (value_get(&s, value, &v, err) < 0)
            return err_add(err, "parameter \"%s\"", key);
        if (v)
            json_object_set_new(given, key, v);
    }
    return inputs_get(&s, given, json_object_get(arguments, "artifacts"), t, NULL, out, err);
}

/* The root has ended: the exit handler's turn. */
static void exit_begin(struct run_graph *g)
{
    const char *name = json_string_value(json_object_get(g->flow, "exit"));
    const struct tmpl *t = name ? graph_template(g, name) : NULL;
    struct err err = { 0 };
    json_t *inputs = NULL;
    char *own = NULL;

    g->exit_done = true;
    if (!t || asprintf(&own, "%s.onExit", g->root->n.name) < 0)
        return;
    if (exit_inputs(g, t, &inputs, &err) < 0) {
        struct vertex *v = vertex_make(g, NULL, own, NODE_SKIPPED_TASK);
        if (!v)
            return;
        g->exit = v;
        v->tmpl = t;
        v->n.template_name = t->name;
        v->n.body = t->body;
        vertex_inputs(v, json_incref(g->nothing));
        vertex_end(g, v, NODE_ERROR, err.text);
        return;
    }
    template_enter(g, NULL, own, NULL, -1, -1, t, inputs);
}

static void settle(struct run_graph *g)
{
    for (;;) {
        while (g->agenda_at < g->agenda_n && !g->failed) {
            struct agenda a = g->agenda[g->agenda_at++];
            g->work++;
            if (a.what == DO_TASK)
                dag_task_ready(g, a.v, a.slot);
            else
                vertex_ended(g, a.v);
        }
        if (g->failed || g->exit_done || !over(g))
            return;
        exit_begin(g);
    }
}

/* ------------------------------------------------------------ life */

static char *copy(const char *text)
{
    return strdup(text ? text : "");
}

/* All but begun: *out_inputs are those of the template that it begins with, *out_t. */
static int prepare(const json_t *flow, const struct graph_run *run, struct run_graph **out,
                   const struct tmpl **out_t, json_t **out_inputs, struct err *err)
{
    OWN(run_graph) g = calloc(1, sizeof *g);
    const char *entry = json_string_value(json_object_get(flow, "entry"));
    const char *dialect = json_string_value(json_object_get(flow, "dialect"));
    if (!g)
        return err_set(err, ERR_NOMEM, "no memory for a run");
    g->flow = flow;
    g->ir = dialect && !strcmp(dialect, "ir");
    g->run = *run;
    g->run_id = copy(run->id);
    g->run_name = copy(run->name);
    g->run_project = copy(run->project);
    g->now = run->created;
    g->nothing = json_pack("{s:{}, s:{}}", "parameters", "artifacts");
    g->globals = json_pack("{s:{}, s:{}}", "parameters", "artifacts");
    g->configs = run->configs ? json_deep_copy(run->configs) : json_object();
    g->bytes = sizeof *g;
    if (!g->run_id || !g->run_name || !g->run_project || !g->nothing || !g->globals ||
        !g->configs)
        return err_set(err, ERR_NOMEM, "no memory for a run");
    if (graph_take_parameters(g, run->parameters, err) < 0 || graph_compile(g, err) < 0)
        return -(int)err->code;
    const struct tmpl *t = graph_template(g, entry);
    if (!t)
        return err_set(err, ERR_INVALID, "the pipeline begins with template \"%s\", which there is "
                                         "not", entry ? entry : "");
    struct scope s = { .g = g };
    if (inputs_get(&s, g->parameters, NULL, t, NULL, out_inputs, err) < 0)
        return -(int)err->code;
    *out_t = t;
    *out = TAKE(g);
    return 0;
}

int run_graph_new(const json_t *flow, const struct graph_run *run, struct run_graph **out,
                  struct err *err)
{
    OWN(run_graph) g = NULL;
    const struct tmpl *t;
    json_t *inputs = NULL;

    if (prepare(flow, run, &g, &t, &inputs, err) < 0)
        return -(int)err->code;
    template_enter(g, NULL, copy(t->name), NULL, -1, -1, t, inputs);
    if (g->root)
        g->root->n.display = g->run_name;
    settle(g);
    if (g->failed)
        return err_set(err, ERR_NOMEM, "no memory for a run");
    *out = TAKE(g);
    return 0;
}

/* Something of the type, for what has no default. */
static json_t *any_value(const json_t *input, bool ir)
{
    const json_t *first = json_array_get(json_object_get(input, "enum"), 0);
    const char *type = ir ? json_string_value(json_object_get(input, "type")) : NULL;

    return first ? json_incref((json_t *)first)
         : !type || !strcmp(type, "STRING") ? json_string("")
         : !strcmp(type, "BOOLEAN") ? json_false()
         : !strcmp(type, "LIST") ? json_array()
         : !strcmp(type, "STRUCT") ? json_object() : json_integer(0);
}

static int any_config(void *arg, const char *map, const char *key, bool optional)
{
    json_t *in = map ? json_object_get(arg, map) : NULL;

    (void)optional;
    if (map && !in)
        json_object_set_new(arg, map, in = json_object());
    if (map)
        json_object_set_new(in, key, json_string(""));
    return !map;                /* a tag names it: nobody knows which before the run */
}

int run_graph_check(const json_t *flow, struct err *err)
{
    OWN_JSON json_t *given = json_object();
    OWN_JSON json_t *configs = json_object();
    OWN_JSON json_t *inputs = NULL;
    OWN(run_graph) g = NULL;
    const struct tmpl *t;
    const char *dialect = json_string_value(json_object_get(flow, "dialect"));
    bool ir = dialect && !strcmp(dialect, "ir");
    size_t i;
    json_t *in;

    if (run_graph_configs(flow, any_config, configs))
        return 0;
    json_array_foreach (json_object_get(flow, "inputs"), i, in)
        if (!json_object_get(in, "default"))
            json_object_set_new(given, json_string_value(json_object_get(in, "name")),
                                any_value(in, ir));
    const struct graph_run run = { .id = "check", .name = "check", .project = "check",
                                   .parameters = given, .configs = configs, .created = 1 };
    return prepare(flow, &run, &g, &t, &inputs, err);
}

void run_graph_free(struct run_graph *g)
{
    if (!g)
        return;
    for (int i = 0; i < g->n; i++)
        vertex_free(g->nodes[i]);
    graph_compile_free(g);
    json_decref(g->parameters);
    json_decref(g->nothing);
    json_decref(g->globals);
    json_decref(g->configs);
    json_decref(g->failures);
    free(g->run_id);
    free(g->run_name);
    free(g->run_project);
    free(g->nodes);
    free(g->table);
    free(g->agenda);
    free(g->stop_message);
    free(g->over_message);
    free(g);
}

/* ------------------------------------------------------------ events */

static const char *text_at(const json_t *doc, const char *key)
{
    return json_string_value(json_object_get(doc, key));
}

static double number_at(const json_t *doc, const char *key, double fallback)
{
    const json_t *v = json_object_get(doc, key);
    return json_is_number(v) ? json_number_value(v) : fallback;
}

static struct vertex *node_at(const struct run_graph *g, const json_t *body)
{
    const char *name = text_at(body, "node");
    return name ? vertex_find(g, name) : NULL;
}

static bool phase_at(const json_t *body, enum node_phase *out)
{
    const char *word = text_at(body, "phase");
    for (int p = NODE_SUCCEEDED; word && p <= NODE_OMITTED; p++)
        if (!strcmp(word, node_phase_name((enum node_phase)p))) {
            *out = (enum node_phase)p;
            return true;
        }
    return false;
}

/* What a leaf gave, with the defaults of what it did not give. */
static json_t *leaf_outputs(const struct run_graph *g, const struct vertex *v, const json_t *body,
                            bool defaults)
{
    const json_t *given = json_object_get(body, "outputs"), *code = json_object_get(body, "code");
    const json_t *declared = json_object_get(json_object_get(v->n.body, "outputs"), "parameters");
    OWN_JSON json_t *missing = json_object();
    size_t i;
    json_t *p;

    json_array_foreach ((json_t *)declared, i, p) {
        const char *name = text_at(p, "name");
        json_t *fallback = json_object_get(p, "default");
        if (!defaults || !name || !fallback ||
            json_object_get(json_object_get(given, "parameters"), name))
            continue;
        struct scope s = { .g = g, .home = v, .inputs = v->n.inputs };
        struct err none = { 0 };
        json_t *value = NULL;
        if (value_get(&s, fallback, &value, &none) == 0 && value)
            json_object_set_new(missing, name, value);
    }
    if (!code && !json_object_size(missing))
        return json_incref((json_t *)given);
    json_t *all = given ? json_copy((json_t *)given) : json_object();
    if (code)
        json_object_set(all, "code", (json_t *)code);
    if (json_object_size(missing)) {
        json_t *old = json_object_get(all, "parameters");
        json_t *merged = old ? json_copy(old) : json_object();
        json_object_update(merged, missing);
        json_object_set_new(all, "parameters", merged);
    }
    return all;
}

/* Config maps as they are from now on, each a whole. */
static void take_configs(struct run_graph *g, const json_t *body)
{
    const json_t *maps = json_object_get(body, "configs");

    if (maps && json_object_update(g->configs, (json_t *)maps) < 0)
        g->failed = true;
}

static void node_ended(struct run_graph *g, const json_t *body)
{
    struct vertex *v = node_at(g, body);
    enum node_phase phase;
    const char *job = text_at(body, "job");

    if (!v || !node_kind_leaf(v->n.kind) || node_phase_ended(v->n.phase) ||
        !phase_at(body, &phase) ||
        (int)number_at(body, "attempt", v->n.attempt) != v->n.attempt)
        return;
    take_configs(g, body);
    vertex_outputs(v, leaf_outputs(g, v, body, phase == NODE_SUCCEEDED));
    v->n.started = number_at(body, "started", v->n.started > 0 ? v->n.started : g->now);
    v->n.cached = json_is_object(json_object_get(body, "cached")) ||
                  json_is_true(json_object_get(body, "cached"));
    v->transient = json_is_true(json_object_get(body, "transient"));
    if (job) {
        free((char *)v->n.job);
        v->n.job = strdup(job);
    }
    const char *message = text_at(body, "message");
    if (!message && !node_failed(phase))
        vertex_message(v, NULL);        /* that it was to be stopped: it ended before that */
    vertex_end(g, v, phase, message);
    v->n.ended = number_at(body, "ended", g->now);
}

static void resume(struct run_graph *g, struct vertex *v, const json_t *body)
{
    enum node_phase phase = NODE_SUCCEEDED;
    const json_t *given = json_object_get(body, "parameters");
    const json_t *none = json_object_get(g->nothing, "parameters");
    if (v->n.kind != NODE_SUSPEND || node_phase_ended(v->n.phase))
        return;
    phase_at(body, &phase);
    OWN_JSON json_t *outputs = json_pack("{s:{s:O, s:{}}}", "outputs", "parameters",
                                         given ? given : none, "artifacts");
    vertex_outputs(v, leaf_outputs(g, v, outputs, true));
    vertex_end(g, v, phase, text_at(body, "message"));
}

static void node_resumed(struct run_graph *g, const json_t *body)
{
    struct vertex *v = node_at(g, body);
    if (v)
        resume(g, v, body);
    for (int i = 0; i < g->n && !text_at(body, "node"); i++)
        if (!g->nodes[i]->dead)
            resume(g, g->nodes[i], body);
}

static void node_deadline(struct run_graph *g, const json_t *body)
{
    struct vertex *v = node_at(g, body);
    const char *message = text_at(body, "message");
    if (v)
        graph_stop(g, v, message ? message : "it took longer than its template's deadline", false);
}

static void stop_run(struct run_graph *g, const char *message, bool all)
{
    if (!g->stop_message)
        g->stop_message = strdup(message);
    graph_stop(g, g->root, message, all);
    if (all)
        graph_stop(g, g->exit, message, all);
}

static void run_terminate(struct run_graph *g, const json_t *body)
{
    OWN_BUF why = BUF_INIT;
    const char *by = text_at(body, "by");
    buf_printf(&why, by ? "terminated by %s" : "terminated%s", by ? by : "");
    /* Who says so again means what still runs: the exit handler. */
    bool all = g->stop_message || over(g) || json_is_true(json_object_get(body, "all"));
    stop_run(g, why.data ? why.data : "terminated", all);
}

static void run_deadline(struct run_graph *g, const json_t *body)
{
    (void)body;
    stop_run(g, "the run took longer than its deadline", false);
}

static void run_retry(struct run_graph *g, const json_t *body)
{
    if (!over(g) || (g->exit && !node_phase_ended(g->exit->n.phase)))
        return;
    if (!node_failed(g->root->n.phase) && !(g->exit && node_failed(g->exit->n.phase)))
        return;
    g->over = false;
    take_configs(g, body);
    free(TAKE(g->stop_message));
    free(TAKE(g->over_message));
    json_decref(TAKE(g->failures));
    if (g->exit)
        vertex_bury(g, g->exit);
    g->exit = NULL;
    g->exit_done = false;
    if (node_failed(g->root->n.phase))
        graph_reopen(g, g->root);
}

static void run_ended(struct run_graph *g, const json_t *body)
{
    enum node_phase phase;
    const char *message = text_at(body, "message");
    if (g->over || !phase_at(body, &phase))
        return;
    g->over = true;
    g->over_phase = phase;
    g->over_message = message ? strdup(message) : NULL;
}

int run_graph_apply(struct run_graph *g, const char *type, const json_t *body, double t,
                    struct err *err)
{
    static const struct { const char *type; void (*apply)(struct run_graph *, const json_t *); }
    types[] = {
        { "node.ended", node_ended }, { "node.resumed", node_resumed },
        { "node.deadline", node_deadline }, { "run.terminate", run_terminate },
        { "run.deadline", run_deadline }, { "run.retry", run_retry },
        { "run.ended", run_ended },
    };
    if (!json_is_object(body))
        return err_set(err, ERR_INVALID, "an event of a run has no body");
    g->now = t;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (!strcmp(types[i].type, type)) {
            types[i].apply(g, body);
            settle(g);
            break;
        }
    return g->failed ? err_set(err, ERR_NOMEM, "no memory for a run") : 0;
}

/* ------------------------------------------------------------ what is wanted */

static struct vertex *first_of(struct run_graph *g, enum place place)
{
    struct vertex *v = g->lists[place].first;
    if (v)
        vertex_place(g, v, PLACE_NONE);
    return v;
}

const struct node *run_graph_next(struct run_graph *g, double *at)
{
    struct vertex *v = first_of(g, PLACE_GIVE);
    if (!v)
        return NULL;
    v->given = true;
    *at = v->at;
    return &v->n;
}

double run_graph_wait(const struct node *n)
{
    return vertex_of(n)->wait;
}

const struct node *run_graph_unwanted(struct run_graph *g)
{
    struct vertex *v = first_of(g, PLACE_STOP);
    return v ? &v->n : NULL;
}

const struct node *run_graph_timed(struct run_graph *g, double *at)
{
    for (struct vertex *v; (v = first_of(g, PLACE_TIMED));)
        if (!node_phase_ended(v->n.phase)) {
            *at = v->at;
            return &v->n;
        }
    return NULL;
}

void run_graph_running(struct run_graph *g, const struct node *n, const char *job, double started)
{
    struct vertex *v = vertex_of(n);
    (void)g;
    if (node_phase_ended(v->n.phase) || !node_kind_leaf(v->n.kind))
        return;
    if (job && (!v->n.job || strcmp(v->n.job, job))) {
        free((char *)v->n.job);
        v->n.job = strdup(job);
    }
    if (started > 0) {
        v->n.started = started;
        v->n.phase = NODE_RUNNING;
    }
}

/* ------------------------------------------------------------ how it stands */

enum node_phase run_graph_phase(const struct run_graph *g, const char **out_message)
{
    const char *message = NULL;
    enum node_phase phase = g->root->n.phase;
    if (g->over) {
        phase = g->over_phase;
        message = g->over_message;
    } else if (!over(g) || (g->exit && !node_phase_ended(g->exit->n.phase))) {
        phase = NODE_RUNNING;
    } else {
        bool exit = g->exit && node_failed(g->exit->n.phase) && !node_failed(phase);
        message = g->stop_message && !exit ? g->stop_message
                  : exit ? g->exit->n.message : g->root->n.message;
        phase = exit ? g->exit->n.phase : phase;
    }
    if (out_message)
        *out_message = message;
    return phase;
}

const struct node *run_graph_root(const struct run_graph *g)
{
    return &g->root->n;
}

const struct node *run_graph_exit(const struct run_graph *g)
{
    return g->exit ? &g->exit->n : NULL;
}

const struct node *run_graph_find(const struct run_graph *g, const char *id_or_name)
{
    struct vertex *v = vertex_find(g, id_or_name);
    return v ? &v->n : NULL;
}

int run_graph_each(const struct run_graph *g, int (*each)(void *arg, const struct node *n),
                   void *arg)
{
    for (int i = 0; i < g->n; i++) {
        int rc = g->nodes[i]->dead ? 0 : each(arg, &g->nodes[i]->n);
        if (rc)
            return rc;
    }
    return 0;
}

const json_t *run_graph_outputs(const struct run_graph *g)
{
    return g->root->n.outputs;
}

size_t run_graph_bytes(const struct run_graph *g)
{
    return g->bytes;
}

int run_graph_count(const struct run_graph *g)
{
    return g->n;
}

uint64_t run_graph_work(const struct run_graph *g)
{
    return g->work;
}
