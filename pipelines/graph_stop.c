/* pipelines/graph_stop.c - stopping what has begun, and a failed run's second go */
#include <stdlib.h>

#include "pipelines/graph_int.h"

/* ------------------------------------------------------------ stop */

static void leaf_stop(struct run_graph *g, struct vertex *v, const char *message)
{
    /* One that was admitted may have a job, from this life or an earlier one: its end is heard of.
     * Whether it was given must not matter, or a replay would differ. */
    if (v->n.kind == NODE_SUSPEND || !v->admitted)
        vertex_end(g, v, NODE_FAILED, message);
    else if (v->place != PLACE_STOP)
        vertex_place(g, v, PLACE_STOP);
    vertex_message(v, message);
}

static void dag_stop(struct run_graph *g, struct vertex *v, const char *message, bool all)
{
    struct dag *d = v->dag;
    for (int i = 0; i < v->tmpl->n; i++) {
        struct slot *s = &d->slots[i];
        g->work++;
        if (v->tmpl->tasks[i].always && !all)
            continue;
        if (s->state == SLOT_BEGUN) {
            graph_stop(g, s->v, message, all);
        } else if (s->state != SLOT_ENDED) {
            d->cut = true;
            dag_omit(g, v, i, "omitted: it was stopped before");
        }
    }
}

/* What has not begun of a loop never does. */
static void loop_cut(struct run_graph *g, struct vertex *v)
{
    v->loop->left -= v->loop->n - v->loop->next + v->loop->redo_n;
    v->loop->redo_n = 0;
    if (!v->loop->left)
        vertex_end(g, v, v->loop->failed ? (enum node_phase)v->loop->worst : NODE_FAILED, NULL);
}

/* Nothing new begins below `v`, and its leaves are not wanted any more; but for tasks that run
 * whatever happens (`all`: those too). */
void graph_stop(struct run_graph *g, struct vertex *v, const char *message, bool all)
{
    bool again = v && v->stopped;
    if (!v || node_phase_ended(v->n.phase))
        return;
    v->stopped = true;
    if (node_kind_leaf(v->n.kind)) {
        leaf_stop(g, v, message);
        return;
    }
    vertex_message(v, message);
    if (v->dag) {
        v->dag->cut = true;
        dag_stop(g, v, message, all);
        return;
    }
    for (int i = 0; i < v->n.n_children; i++)
        graph_stop(g, vertex_of(v->n.children[i]), message, all);
    if (v->loop && !again)
        loop_cut(g, v);
}

/* Something failed in a dag whose template fails as soon as that: also its loops begin no more. */
void graph_halt(struct run_graph *g, struct vertex *dag)
{
    for (int i = 0; i < dag->tmpl->n; i++) {
        struct slot *s = &dag->dag->slots[i];
        bool begun = s->state == SLOT_BEGUN || s->state == SLOT_ENDED;
        g->work++;
        if (!begun && !dag->tmpl->tasks[i].always) {
            dag->dag->cut = true;
            dag_omit(g, dag, i, "omitted: a task failed before");
        } else if (s->state == SLOT_BEGUN && s->v && s->v->loop && !s->v->stopped) {
            s->v->stopped = true;
            loop_cut(g, s->v);
        }
    }
}

/* ------------------------------------------------------------ again */

static bool keeps(const struct vertex *v)
{
    return v->n.phase == NODE_SUCCEEDED || v->n.phase == NODE_SKIPPED;
}

/* A failed dag, loop or series of attempts goes on; leaves and what never began are made anew. */
static void mark_redo(struct vertex *v)
{
    bool inner = v->n.kind == NODE_DAG || v->n.kind == NODE_STEPS || v->n.kind == NODE_RETRY ||
                 v->n.kind == NODE_TASK_GROUP;
    v->redo = inner && node_failed(v->n.phase) && !keeps(v);
}

static void dag_reopen(struct run_graph *g, struct vertex *v)
{
    struct dag *d = v->dag;
    const struct tmpl *t = v->tmpl;

    d->failing = d->cut = false;
    d->left = d->active = d->queue_n = 0;
    for (int i = 0; i < t->n; i++) {
        struct slot *s = &d->slots[i];
        const struct vertex *of = t->tasks[i].hook ? d->slots[t->tasks[i].after[0]].v : NULL;
        bool again = of && !keeps(of);          /* with its task, which runs again */
        if (s->v && keeps(s->v) && !again)
            continue;
        if (s->v)
            mark_redo(s->v);
        s->state = SLOT_WAITING;
        s->branch = NODE_PENDING;
        d->left++;
    }
    for (int i = 0; i < t->n_groups; i++) {
        d->groups[i].left = 0;
        d->groups[i].worst = NODE_PENDING;
    }
    for (int i = 0; i < t->n; i++) {
        struct slot *s = &d->slots[i];
        s->unmet = 0;
        for (int j = 0; j < t->tasks[i].n_after; j++)
            s->unmet += d->slots[t->tasks[i].after[j]].state != SLOT_ENDED;
        if (t->n_groups && s->state != SLOT_ENDED) {
            struct group *group = &d->groups[t->tasks[i].group];
            group->left++;
            if (group->v) {
                group->v->n.phase = NODE_RUNNING;
                group->v->n.ended = 0;
            }
        }
        if (s->state == SLOT_WAITING && !s->unmet)
            graph_do(g, DO_TASK, v, i);
    }
    if (!d->left)
        dag_finish(g, v);       /* its outputs were wrong: they still are */
}

static void loop_reopen(struct run_graph *g, struct vertex *v)
{
    struct loop *l = v->loop;
    free(l->redo);
    l->redo = graph_alloc(g, (size_t)v->n.n_children, sizeof *l->redo);
    if (!l->redo)
        return;
    l->redo_n = l->active = l->failed = l->worst_index = 0;
    l->queued = false;
    l->left = l->n - l->next;
    for (int i = v->n.n_children - 1; i >= 0; i--) {
        struct vertex *each = vertex_of(v->n.children[i]);
        if (keeps(each))
            continue;
        mark_redo(each);
        l->redo[l->redo_n++] = each->index;
        l->left++;
    }
    loop_begin(g, v);
    if (!l->left)
        vertex_end(g, v, NODE_SUCCEEDED, NULL);
}

void graph_reopen(struct run_graph *g, struct vertex *v)
{
    v->redo = v->stopped = v->counted = false;
    v->n.ended = 0;
    v->n.phase = NODE_RUNNING;
    vertex_message(v, NULL);
    vertex_outputs(v, NULL);
    if (v->tmpl->deadline_s > 0 && !node_kind_leaf(v->tmpl->kind)) {
        v->at = g->now + v->tmpl->deadline_s;
        v->wait = v->tmpl->deadline_s;
        vertex_place(g, v, PLACE_TIMED);
    }
    if (v->dag) {
        dag_reopen(g, v);
    } else if (v->loop) {
        loop_reopen(g, v);
    } else if (v->n.kind == NODE_RETRY) {
        struct vertex *last = vertex_of(v->n.children[v->n.n_children - 1]);
        if (last->dag && node_failed(last->n.phase)) {
            v->retry_base = v->n.n_children - 1;
            graph_reopen(g, last);
        } else {
            v->retry_base = v->n.n_children;
            retry_attempt(g, v, 0);
        }
    } else {                    /* the root is a leaf */
        v->n.attempt++;
        v->n.started = 0;
        v->given = false;
        body_enter(g, v, 0);
    }
}
