/* engine/lower.c - a graph becomes stages, stages become a list of calls */
#include <stdlib.h>
#include <string.h>

#include "engine/plan_int.h"

/* Nodes that the loss computes itself: a last log_softmax under nll. */
static int nodes_to_lower(const struct plan *p)
{
    const struct graph *g = p->graph;
    const struct node *last = &g->node[g->output];

    if (p->loss_spec && json_object_get(p->loss_spec, "nll") && last->op == OP_LOG_SOFTMAX &&
        g->output == g->n - 1 && last->uses == 0)
        return g->n - 1;
    return g->n;
}

static int add_stage(struct plan *p, const struct stage_ops *ops, int at, int n_nodes,
                     struct err *err)
{
    struct stage *s = &p->stage[p->n_stages];
    const struct node *node = &p->graph->node[at];

    *s = (struct stage){ .ops = ops, .node = node, .n_nodes = n_nodes, .at = at };
    for (int i = 0; i < node->n_in; i++)
        s->in[s->n_in++] = p->value[node->in[i]];
    p->own->no_grad = node->op == OP_INPUT && n_nodes == 1;
    int rc = ops->build(s, p, err);
    p->own->no_grad = false;
    if (rc < 0)
        return rc;
    p->value[at + n_nodes - 1] = s->out;
    p->n_stages++;
    return 0;
}

static int lower_node(struct plan *p, int at, int limit, int *out_next, struct err *err)
{
    const struct kernels *k = p->own->kernels;

    for (const struct stage_ops *const *ops = p->own->plain ? k->plain : k->stages; *ops; ops++) {
        int n = (*ops)->match(p, p->graph, at);
        if (n < 1 || at + n > limit)
            continue;
        *out_next = at + n;
        return add_stage(p, *ops, at, n, err);
    }
    const struct node *node = &p->graph->node[at];
    return err_set(err, ERR_INVALID, "\"%s\" (%s) cannot be run with these settings", node->name,
                   graph_word(node->op));
}

/* The loss reads the value of the last lowered node and has no node of its own. */
static int add_loss(struct plan *p, int last, struct err *err)
{
    struct stage *s = &p->stage[p->n_stages];

    *s = (struct stage){ .ops = p->own->kernels->loss, .node = &p->graph->node[last], .at = last,
                         .n_in = 1, .in = { p->value[last] } };
    int rc = s->ops->build(s, p, err);
    if (rc == 0)
        p->n_stages++;
    return rc;
}

int plan_lower(struct plan *p, struct err *err)
{
    const struct graph *g = p->graph;
    int limit = nodes_to_lower(p);

    p->stage = calloc((size_t)g->n + 2, sizeof *p->stage);     /* the loss, and one without ops */
    p->value = calloc((size_t)g->n + 1, sizeof *p->value);
    if (!p->stage || !p->value)
        return err_set(err, ERR_NOMEM, "no memory for %d stages", g->n);
    for (int at = 0; at < limit;) {
        /* An input that no node reads (an id field that only an embedding names) has no stage. */
        if (g->node[at].op == OP_INPUT && g->node[at].uses == 0) {
            at++;
            continue;
        }
        if (lower_node(p, at, limit, &at, err) < 0)
            return -(int)err->code;
    }
    int last = limit < g->n ? limit - 1 : g->output;
    p->output = p->value[last];
    if (p->loss_spec && p->target_field >= 0)
        return add_loss(p, last, err);
    return 0;
}

bool stage_grad_first(const struct stage *s, int i)
{
    for (int j = 0; j < i; j++)
        if (s->in[j] == s->in[i])
            return false;
    /* Stages follow each other in an array that ends with one without ops. */
    for (const struct stage *later = s + 1; later->ops; later++)
        for (int j = 0; j < later->n_in; j++)
            if (later->in[j] == s->in[i])
                return false;
    return true;
}

/* ------------------------------------------------------------------ calls */

static void add_call(struct call *list, int *n, struct stage *s, enum phase phase, bool *after)
{
    if (!s->ops->run[phase])
        return;
    list[*n] = (struct call){ s->ops->run[phase], s,
                              *after || (s->sync[phase] & SYNC_BEFORE), -1 };
    *after = s->sync[phase] & SYNC_AFTER;
    (*n)++;
}

/* A list runs again and again, so what its last call leaves pending falls on its first. */
static void close_list(struct call *list, int n, bool after)
{
    if (n)
        list[0].barrier |= after;
}

/* The vector lies in the order of the nodes, as stages do: where the part of s begins. */
static long ready_from(const struct plan *p, const struct stage *s)
{
    for (int i = 0; i < p->n_params; i++)
        if (p->param[i]->grad_at >= 0 && param_node(p->param[i]) >= s->at)
            return p->param[i]->grad_at;
    return p->grad_floats;
}

/* What a stage adds up in its update reads its own gradients and its inputs, nothing that the
 * backward pass of an earlier stage writes; and in a shared plan it changes no weight. So it may
 * go at once, and what it leaves in the roots is final. */
static void list_early(struct plan *p)
{
    struct plan_int *own = p->own;
    struct call *list = own->early = calloc((size_t)p->n_stages * PHASES + 1, sizeof *list);
    long ready = p->grad_floats;
    bool after = false;

    for (int i = 0; i < p->n_stages; i++)
        add_call(list, &own->n_early, &p->stage[i], PHASE_FORWARD, &after);
    for (int i = p->n_stages - 1; i >= 0; i--) {
        const int begin = own->n_early;
        add_call(list, &own->n_early, &p->stage[i], PHASE_BACKWARD, &after);
        const int update = own->n_early;
        add_call(list, &own->n_early, &p->stage[i], PHASE_UPDATE, &after);
        if (own->n_early > update)
            list[update].barrier = true;
        if (own->n_early > begin)
            list[begin].ready = ready;
        if (p->stage[i].n_nodes)        /* the loss has none of its own */
            ready = ready_from(p, &p->stage[i]);
    }
    close_list(list, own->n_early, after);
}

void plan_list(struct plan *p)
{
    struct plan_int *own = p->own;
    bool after = false;

    own->forward = calloc((size_t)p->n_stages + 1, sizeof *own->forward);
    own->train = calloc((size_t)p->n_stages * PHASES + 1, sizeof *own->train);
    for (int i = 0; i < p->n_stages; i++)
        add_call(own->forward, &own->n_forward, &p->stage[i], PHASE_FORWARD, &after);
    close_list(own->forward, own->n_forward, after);
    if (!p->train)
        return;
    after = false;
    for (int i = 0; i < p->n_stages; i++)
        add_call(own->train, &own->n_train, &p->stage[i], PHASE_FORWARD, &after);
    int forward = own->n_train;
    for (int i = p->n_stages - 1; i >= 0; i--)
        add_call(own->train, &own->n_train, &p->stage[i], PHASE_BACKWARD, &after);
    for (int i = 0; i < p->n_stages; i++)
        add_call(own->train, &own->n_train, &p->stage[i], PHASE_UPDATE, &after);
    close_list(own->train, own->n_train, after);
    for (int i = forward; i < own->n_train; i++)
        own->loss_settled |= own->train[i].barrier;
    if (p->shared)
        list_early(p);
}
