/* pipelines/graph_dag.c - dags: which tasks are ready, which cannot be, how a dag ends
 *
 * A task waits for the number of tasks before it that have not ended. Where one of them failed and
 * nothing says to go on, it is omitted at once; a `depends` is evaluated when all of them ended.
 *
 * A dag's phase is that of its targets, the tasks that nobody comes after: a task that did not run
 * stands for the worst of those before it, one that ran for itself. So a failure that a task of
 * `depends: a.Failed` took care of does not fail the dag. In kfp's pipelines any failure does.
 */
#include <stdlib.h>
#include <string.h>

#include "pipelines/graph_int.h"

void dag_free(struct dag *d)
{
    if (!d)
        return;
    free(d->slots);
    free(d->groups);
    free(d->queue);
    free(d);
}

void dag_begin(struct run_graph *g, struct vertex *v)
{
    const struct tmpl *t = v->tmpl;
    struct dag *d = v->dag = graph_alloc(g, 1, sizeof *d);
    if (!d)
        return;
    d->slots = graph_alloc(g, (size_t)t->n, sizeof *d->slots);
    d->groups = graph_alloc(g, (size_t)t->n_groups, sizeof *d->groups);
    if (!d->slots || !d->groups)
        return;
    d->left = t->n;
    for (int i = 0; i < t->n_groups; i++)
        d->groups[i] = (struct group){ NULL, t->group_sizes[i], NODE_PENDING };
    for (int i = 0; i < t->n; i++) {
        d->slots[i].unmet = t->tasks[i].n_after;
        if (!t->tasks[i].n_after)
            graph_do(g, DO_TASK, v, i);
    }
    v->n.phase = NODE_RUNNING;
    v->n.started = g->now;
    if (!t->n)
        vertex_end(g, v, NODE_SUCCEEDED, NULL);
}

/* ------------------------------------------------------------ places */

bool dag_full(const struct vertex *v)
{
    return v->tmpl->limit && v->dag->active >= v->tmpl->limit;
}

void dag_queue(struct run_graph *g, struct vertex *v, int slot)
{
    struct dag *d = v->dag;
    if (d->queue_n == d->queue_cap) {
        int cap = d->queue_cap ? 2 * d->queue_cap : 16;
        int *more = graph_alloc(g, (size_t)cap, sizeof *more);
        if (!more)
            return;
        for (int i = 0; i < d->queue_n; i++)
            more[i] = d->queue[(d->queue_at + i) % d->queue_cap];
        g->bytes -= (size_t)d->queue_cap * sizeof *more;
        free(d->queue);
        d->queue = more;
        d->queue_at = 0;
        d->queue_cap = cap;
    }
    d->queue[(d->queue_at + d->queue_n++) % d->queue_cap] = slot;
}

/* A place is free: the first that waits takes it. */
void dag_pump(struct run_graph *g, struct vertex *v)
{
    struct dag *d = v->dag;
    while (d->queue_n && !dag_full(v)) {
        int slot = d->queue[d->queue_at];
        struct vertex *begun = d->slots[slot].v;
        d->queue_at = (d->queue_at + 1) % d->queue_cap;
        d->queue_n--;
        g->work++;
        if (begun && begun->loop) {
            begun->loop->queued = false;
            loop_begin(g, begun);
        } else if (d->slots[slot].state == SLOT_QUEUED) {
            task_begin(g, v, slot);
        }
    }
}

/* ------------------------------------------------------------ ready */

/* The group of steps that a task belongs to is its parent; the dag itself where there are none. */
struct vertex *dag_group(struct run_graph *g, struct vertex *v, int slot)
{
    const struct tmpl *t = v->tmpl;
    if (!t->n_groups)
        return v;
    int i = t->tasks[slot].group;
    if (!v->dag->groups[i].v) {
        char *name = NULL;
        if (asprintf(&name, "%s[%d]", v->n.name, i) < 0)
            name = NULL;
        struct vertex *group = vertex_make(g, v, name, NODE_STEP_GROUP);
        if (!group)
            return NULL;
        group->home = v;
        group->n.phase = NODE_RUNNING;
        group->n.started = g->now;
        vertex_inputs(group, json_incref(g->nothing));
        v->dag->groups[i].v = group;
    }
    return v->dag->groups[i].v;
}

void dag_omit(struct run_graph *g, struct vertex *v, int slot, const char *message)
{
    const struct task *k = &v->tmpl->tasks[slot];
    struct vertex *parent = dag_group(g, v, slot);
    char *name = NULL;
    if (!parent || asprintf(&name, "%s.%s", parent->n.name, k->name) < 0)
        return;
    struct vertex *omitted = vertex_make(g, parent, name, NODE_SKIPPED_TASK);
    if (!omitted)
        return;
    omitted->home = v;
    omitted->slot = slot;
    omitted->tmpl = k->tmpl;
    omitted->n.task = k->name;
    omitted->n.template_name = k->template_name;
    omitted->n.body = k->tmpl->body;
    vertex_inputs(omitted, json_incref(g->nothing));
    v->dag->slots[slot].v = omitted;
    v->dag->slots[slot].state = SLOT_BEGUN;
    vertex_end(g, omitted, NODE_OMITTED, message);
}

/* "a-b.Succeeded" of a `depends`; without a word: it went well enough. */
static json_t *depends_get(void *arg, const char *path)
{
    const struct vertex *dag = arg;
    const struct tmpl *t = dag->tmpl;
    const char *dot = strrchr(path, '.');
    const json_t *index = json_object_get(t->index, path);
    if (index || !dot)
        dot = NULL;
    else {
        OWN_MEM char *name = strndup(path, (size_t)(dot - path));
        index = name ? json_object_get(t->index, name) : NULL;
    }
    if (!index)
        return NULL;
    int i = (int)json_integer_value(index);
    const struct task *k = &t->tasks[i];
    const struct vertex *v = dag->dag->slots[i].v;
    enum node_phase p = v ? v->n.phase : NODE_OMITTED;
    const struct loop *l = v ? v->loop : NULL;
    static const struct { const char *word; enum node_phase phase; } words[] = {
        { "Succeeded", NODE_SUCCEEDED }, { "Failed", NODE_FAILED }, { "Errored", NODE_ERROR },
        { "Skipped", NODE_SKIPPED }, { "Omitted", NODE_OMITTED },
    };
    if (!dot)
        return json_boolean(p == NODE_SUCCEEDED || p == NODE_SKIPPED ||
                            (p == NODE_FAILED && k->go_failed) || (p == NODE_ERROR && k->go_error));
    for (size_t w = 0; w < sizeof words / sizeof words[0]; w++)
        if (!strcmp(dot + 1, words[w].word))
            return json_boolean(p == words[w].phase);
    if (!strcmp(dot + 1, "Daemoned"))
        return json_false();
    if (!strcmp(dot + 1, "AnySucceeded"))
        return json_boolean(l && l->succeeded > 0);
    if (!strcmp(dot + 1, "AllFailed"))
        return json_boolean(l && l->n && l->failed == l->n);
    return NULL;
}

static void task_error(struct run_graph *g, struct vertex *v, int slot, const char *message)
{
    dag_omit(g, v, slot, NULL);
    struct vertex *made = v->dag->slots[slot].v;
    if (made) {
        made->n.phase = NODE_ERROR;
        vertex_message(made, message);
    }
}

void dag_task_ready(struct run_graph *g, struct vertex *v, int slot)
{
    struct dag *d = v->dag;
    const struct task *k = &v->tmpl->tasks[slot];
    struct flow_scope s = { depends_get, v };
    struct err err = { 0 };
    OWN_JSON json_t *met = NULL;
    bool is = true;

    if (d->slots[slot].state != SLOT_WAITING || node_phase_ended(v->n.phase))
        return;
    if (v->stopped && !k->always) {
        d->cut = true;
        dag_omit(g, v, slot, "omitted: it was stopped before");
    } else if (d->failing && !k->always) {
        dag_omit(g, v, slot, "omitted: a task failed before");
    } else if (k->depends && (flow_expr_eval(k->depends, &s, &met, &err) < 0 ||
                              flow_expr_truth(met, &is, &err) < 0)) {
        task_error(g, v, slot, err.text);
    } else if (!is) {
        dag_omit(g, v, slot, "omitted: depends condition not met");
    } else if (dag_full(v) && !k->loop) {
        d->slots[slot].state = SLOT_QUEUED;
        dag_queue(g, v, slot);
    } else {
        task_begin(g, v, slot);
    }
}

/* ------------------------------------------------------------ ended */

/* Targets decide; in kfp's pipelines every task, by its own phase. */
static enum node_phase target_phase(const struct run_graph *g, const struct vertex *v, int i)
{
    const struct task *k = &v->tmpl->tasks[i];
    const struct slot *s = &v->dag->slots[i];
    enum node_phase p = g->ir ? (s->v ? s->v->n.phase : NODE_OMITTED) : (enum node_phase)s->branch;
    if (!k->target || !node_failed(p))
        return NODE_SUCCEEDED;
    return (p == NODE_FAILED && k->go_failed) || (p == NODE_ERROR && k->go_error) ? NODE_SUCCEEDED
                                                                                  : p;
}

static const struct vertex *first_failure(const struct vertex *v)
{
    for (int i = 0; i < v->tmpl->n; i++) {
        const struct vertex *k = v->dag->slots[i].v;
        if (k && node_failed(k->n.phase) && k->n.message &&
            !dag_goes_on(&v->tmpl->tasks[i], k->n.phase))
            return k;
    }
    return NULL;
}

void dag_finish(struct run_graph *g, struct vertex *v)
{
    enum node_phase phase = NODE_SUCCEEDED;
    struct err err = { 0 };
    json_t *outputs = NULL;

    for (int i = 0; i < v->tmpl->n && phase == NODE_SUCCEEDED; i++)
        phase = target_phase(g, v, i);
    if (v->dag->cut && phase == NODE_SUCCEEDED)
        phase = NODE_FAILED;
    if (phase != NODE_SUCCEEDED) {
        vertex_blame(v, first_failure(v));
        vertex_end(g, v, phase, NULL);
        return;
    }
    if (dag_outputs(g, v, &outputs, &err) < 0) {
        vertex_end(g, v, NODE_ERROR, err.text);
        return;
    }
    vertex_outputs(v, outputs);
    vertex_end(g, v, NODE_SUCCEEDED, NULL);
}

static void group_ended(struct run_graph *g, struct vertex *v, int slot, enum node_phase phase)
{
    const struct task *k = &v->tmpl->tasks[slot];
    struct group *group = v->tmpl->n_groups ? &v->dag->groups[k->group] : NULL;
    bool fine = k->hook || (phase == NODE_FAILED && k->go_failed) ||
                (phase == NODE_ERROR && k->go_error);
    if (!group)
        return;
    if (fine)
        phase = NODE_SUCCEEDED;
    if (node_failed(phase) || !node_failed(group->worst))
        group->worst = (unsigned char)(group->worst == NODE_SUCCEEDED && !node_failed(phase)
                                           ? NODE_SUCCEEDED : phase);
    if (!--group->left && group->v)
        vertex_end(g, group->v, group->worst, NULL);
}

/* Nothing new begins once a target cannot succeed any more. */
static void fail_fast(struct run_graph *g, struct vertex *v)
{
    struct dag *d = v->dag;
    d->failing = true;
    for (int i = 0; i < v->tmpl->n; i++) {
        g->work++;
        bool begun = d->slots[i].state != SLOT_WAITING && d->slots[i].state != SLOT_QUEUED;
        if (!begun && !v->tmpl->tasks[i].always)
            dag_omit(g, v, i, "omitted: a task failed before");
    }
}

bool dag_goes_on(const struct task *k, enum node_phase p)
{
    return p == NODE_SUCCEEDED || p == NODE_SKIPPED || (p == NODE_FAILED && k->go_failed) ||
           (p == NODE_ERROR && k->go_error) || k->hook;
}

void dag_task_ended(struct run_graph *g, struct vertex *v, int slot)
{
    struct dag *d = v->dag;
    struct slot *s = &d->slots[slot];
    const struct task *k = &v->tmpl->tasks[slot];
    enum node_phase phase = s->v->n.phase;

    if (s->state == SLOT_ENDED)
        return;
    s->state = SLOT_ENDED;
    s->branch = (unsigned char)phase;
    if (phase == NODE_SKIPPED || phase == NODE_OMITTED) {
        s->branch = NODE_SUCCEEDED;
        for (int i = 0; i < k->n_after; i++) {
            enum node_phase before = d->slots[k->after[i]].branch;
            g->work++;
            if (node_failed(before) && !dag_goes_on(&v->tmpl->tasks[k->after[i]], before))
                s->branch = (unsigned char)before;
        }
    }
    d->left--;
    group_ended(g, v, slot, phase);
    for (int i = 0; i < k->n_next; i++) {
        int next = k->next[i];
        const struct task *after = &v->tmpl->tasks[next];
        g->work++;
        d->slots[next].unmet--;
        if (d->slots[next].state != SLOT_WAITING)
            continue;
        if (!after->depends && !after->always && !dag_goes_on(k, phase))
            dag_omit(g, v, next, "omitted: depends condition not met");
        else if (!d->slots[next].unmet)
            graph_do(g, DO_TASK, v, next);
    }
    if (v->tmpl->fail_fast && !d->failing && node_failed(target_phase(g, v, slot)))
        fail_fast(g, v);
    if (!d->left)
        dag_finish(g, v);
}
