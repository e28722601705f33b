/* pipelines/graph_node.c - nodes: made, found by name, ended; and the leaves that are wanted */
#include <stdlib.h>
#include <string.h>

#include "pipelines/graph_int.h"

static const char *const phase_words[] = {
#define X(name, word) [NODE_##name] = word,
    NODE_PHASES(X)
#undef X
};

static const char *const kind_words[] = {
#define X(name, word) [NODE_##name] = word,
    NODE_KINDS(X)
#undef X
};

const char *node_phase_name(enum node_phase p)
{
    return phase_words[p];
}

bool node_phase_ended(enum node_phase p)
{
    return p >= NODE_SUCCEEDED;
}

const char *node_kind_name(enum node_kind k)
{
    return kind_words[k];
}

bool node_kind_leaf(enum node_kind k)
{
    return k >= NODE_STEP && k <= NODE_IMPORTER;
}

bool node_failed(enum node_phase p)
{
    return p == NODE_FAILED || p == NODE_ERROR;
}

void *graph_alloc(struct run_graph *g, size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    if (!p)
        g->failed = true;
    else
        g->bytes += n * size;
    return p;
}

void graph_do(struct run_graph *g, enum agenda_what what, struct vertex *v, int slot)
{
    if (g->agenda_at == g->agenda_n)
        g->agenda_at = g->agenda_n = 0;
    if (g->agenda_n == g->agenda_cap) {
        int cap = g->agenda_cap ? 2 * g->agenda_cap : 64;
        struct agenda *more = realloc(g->agenda, (size_t)cap * sizeof *more);
        if (!more) {
            g->failed = true;
            return;
        }
        g->bytes += (size_t)(cap - g->agenda_cap) * sizeof *more;
        g->agenda = more;
        g->agenda_cap = cap;
    }
    g->agenda[g->agenda_n++] = (struct agenda){ v, slot, what };
}

/* ------------------------------------------------------------ by name */

static uint64_t fnv1a(const char *text)
{
    uint64_t h = 14695981039346656037u;
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 1099511628211u;
    return h;
}

/* Names differ in their last digits, and their hashes in few bits: mixed once more. */
static size_t table_at(const struct run_graph *g, uint64_t hash)
{
    return (size_t)((hash ^ hash >> 32) * 0x9E3779B97F4A7C15u >> 20) & (g->table_size - 1);
}

static struct vertex *table_find(const struct run_graph *g, uint64_t hash, const char *name,
                                 const char *id)
{
    if (!g->table_size)
        return NULL;
    for (size_t i = table_at(g, hash);; i = (i + 1) & (g->table_size - 1)) {
        struct vertex *v = g->table[i];
        ((struct run_graph *)g)->work++;
        if (!v || (v->hash == hash && (name ? !strcmp(v->n.name, name) : !strcmp(v->n.id, id))))
            return v;
    }
}

struct vertex *vertex_find(const struct run_graph *g, const char *id_or_name)
{
    struct vertex *v = table_find(g, fnv1a(id_or_name), id_or_name, NULL);
    size_t prefix = strlen(g->run_name);
    if (!v && !strcmp(id_or_name, g->run_name))
        v = g->root;
    if (!v && !strncmp(id_or_name, g->run_name, prefix) && id_or_name[prefix] == '-')
        v = table_find(g, strtoull(id_or_name + prefix + 1, NULL, 10), NULL, id_or_name);
    return v && !v->dead ? v : NULL;
}

static void table_put(struct run_graph *g, struct vertex *v)
{
    size_t i = table_at(g, v->hash);
    while (g->table[i])
        i = (i + 1) & (g->table_size - 1);
    g->table[i] = v;
}

/* Room for one more node: half of the table stays empty. */
static bool table_grow(struct run_graph *g)
{
    if ((size_t)g->n * 2 >= g->table_size) {
        size_t size = g->table_size ? 2 * g->table_size : 64;
        struct vertex **table = calloc(size, sizeof *table);
        if (!table)
            return false;
        g->bytes += (size - g->table_size) * sizeof *table;
        free(g->table);
        g->table = table;
        g->table_size = size;
        for (int i = 0; i < g->n; i++)
            table_put(g, g->nodes[i]);
    }
    if (g->n == g->nodes_cap) {
        int cap = g->nodes_cap ? 2 * g->nodes_cap : 64;
        struct vertex **nodes = realloc(g->nodes, (size_t)cap * sizeof *nodes);
        if (!nodes)
            return false;
        g->bytes += (size_t)(cap - g->nodes_cap) * sizeof *nodes;
        g->nodes = nodes;
        g->nodes_cap = cap;
    }
    return true;
}

/* ------------------------------------------------------------ making */

static bool list_child(struct run_graph *g, struct vertex *parent, struct vertex *v)
{
    const struct node **children = (const struct node **)parent->n.children;
    if (v->listed)
        return true;
    if (parent->n.n_children == parent->children_cap) {
        int cap = parent->children_cap ? 2 * parent->children_cap : 4;
        children = realloc(children, (size_t)cap * sizeof *children);
        if (!children)
            return false;
        g->bytes += (size_t)(cap - parent->children_cap) * sizeof *children;
        parent->n.children = children;
        parent->children_cap = cap;
    }
    children[parent->n.n_children++] = &v->n;
    v->listed = true;
    return true;
}

static void vertex_clear(struct vertex *v)
{
    json_decref((json_t *)v->n.inputs);
    json_decref((json_t *)v->n.outputs);
    free((char *)v->n.message);
    free((char *)v->n.job);
    if (v->own_display)
        free((char *)v->n.display);
    dag_free(v->dag);
    loop_free(v->loop);
    v->n.inputs = v->n.outputs = NULL;
    v->n.message = v->n.job = v->n.display = NULL;
    v->own_display = false;
    v->dag = NULL;
    v->loop = NULL;
}

void vertex_free(struct vertex *v)
{
    if (!v)
        return;
    vertex_clear(v);
    free((char *)v->n.name);
    free((void *)v->n.children);
    free(v);
}

/* A node that was there before (omitted and wanted after a run.retry; of the exit handler's first
 * life) begins anew at the same address; what ran there has a higher attempt. */
static void vertex_again(struct run_graph *g, struct vertex *v)
{
    vertex_place(g, v, PLACE_NONE);
    vertex_clear(v);
    v->n.attempt += node_kind_leaf(v->n.kind);
    v->n.phase = NODE_PENDING;
    v->n.started = v->n.ended = 0;
    v->n.cached = false;
    v->at = 0;
    v->retry_base = 0;
    v->admitted = v->counted = v->given = v->stopped = v->dead = v->transient = false;
    v->redo = false;
}

static struct vertex *vertex_new(struct run_graph *g, const char *name)
{
    uint64_t hash = fnv1a(name);
    size_t n = strlen(name) + 1, m = strlen(g->run_name) + 24;
    struct vertex *v = table_find(g, hash, name, NULL);
    if (v) {
        vertex_again(g, v);
        return v;
    }
    v = table_grow(g) ? calloc(1, sizeof *v) : NULL;
    char *both = v ? malloc(n + m) : NULL;
    if (!both) {
        free(v);
        return NULL;
    }
    memcpy(both, name, n);
    if (g->n)
        snprintf(both + n, m, "%s-%llu", g->run_name, (unsigned long long)hash);
    else
        snprintf(both + n, m, "%s", g->run_name);       /* the root */
    g->bytes += sizeof *v + n + m;
    v->n.name = both;
    v->n.id = both + n;
    v->hash = hash;
    g->nodes[g->n++] = v;
    table_put(g, v);
    return v;
}

/* The name without its path; an iteration's or attempt's begins with its parent's. */
static void display_set(struct vertex *v, const struct vertex *parent)
{
    size_t n = parent ? strlen(parent->n.name) : 0;
    bool inner = parent && (parent->n.kind == NODE_RETRY || parent->n.kind == NODE_TASK_GROUP);
    const char *of = inner ? parent->n.display : NULL;
    char *made = NULL;

    if (inner && of >= parent->n.name && of <= parent->n.name + n) {
        v->n.display = v->n.name + (of - parent->n.name);
    } else if (inner && asprintf(&made, "%s%s", of, v->n.name + n) >= 0) {
        v->n.display = made;
        v->own_display = true;
    } else {
        v->n.display = v->n.name + n + (parent && v->n.name[n] == '.');
    }
}

struct vertex *vertex_make(struct run_graph *g, struct vertex *parent, char *name,
                           enum node_kind kind)
{
    OWN_MEM char *own = name;
    struct vertex *v = own ? vertex_new(g, own) : NULL;
    if (!v || (parent && !list_child(g, parent, v))) {
        g->failed = true;
        return NULL;
    }
    v->n.parent = parent ? &parent->n : NULL;
    v->n.kind = kind;
    v->n.task = "";
    v->n.template_name = "";
    display_set(v, parent);
    v->index = -1;
    v->slot = -1;
    return v;
}

void vertex_message(struct vertex *v, const char *message)
{
    v->blames = false;
    free((char *)v->n.message);
    v->n.message = message && *message ? strdup(message) : NULL;
}

/* Why it failed: the name of what failed in it, however deep, and what that said. */
void vertex_blame(struct vertex *v, const struct vertex *below)
{
    OWN_BUF why = BUF_INIT;
    if (v->n.message || !below || !below->n.message)
        return;
    if (!below->blames)
        buf_printf(&why, "%.200s: ", below->n.name);
    buf_printf(&why, "%.600s", below->n.message);
    vertex_message(v, why.data);
    v->blames = true;
}

void vertex_inputs(struct vertex *v, json_t *inputs)
{
    json_decref((json_t *)v->n.inputs);
    v->n.inputs = inputs;
}

void vertex_outputs(struct vertex *v, json_t *outputs)
{
    json_decref((json_t *)v->n.outputs);
    v->n.outputs = outputs;
}

void vertex_bury(struct run_graph *g, struct vertex *v)
{
    for (int i = 0; i < v->n.n_children; i++)
        vertex_bury(g, vertex_of(v->n.children[i]));    /* as deep as templates are */
    v->n.n_children = 0;
    v->dead = true;
    v->listed = false;
    vertex_place(g, v, PLACE_NONE);
}

void vertex_end(struct run_graph *g, struct vertex *v, enum node_phase phase, const char *message)
{
    if (!v || node_phase_ended(v->n.phase))
        return;
    v->n.phase = phase;
    if (message)
        vertex_message(v, message);
    if (v->n.started == 0)
        v->n.started = g->now;
    v->n.ended = g->now;
    leaf_leave(g, v);
    graph_do(g, DO_ENDED, v, 0);
}

/* ------------------------------------------------------------ leaves */

void vertex_place(struct run_graph *g, struct vertex *v, enum place place)
{
    if (v->place) {
        struct list *from = &g->lists[v->place];
        *(v->prev ? &v->prev->next : &from->first) = v->next;
        *(v->next ? &v->next->prev : &from->last) = v->prev;
        v->prev = v->next = NULL;
    }
    v->place = place;
    if (place) {
        struct list *to = &g->lists[place];
        v->prev = to->last;
        *(to->last ? &to->last->next : &to->first) = v;
        to->last = v;
    }
}

static void leaf_admit(struct run_graph *g, struct vertex *v)
{
    v->admitted = true;
    g->active += v->n.kind != NODE_SUSPEND;
    vertex_place(g, v, PLACE_GIVE);
}

/* A suspended leaf takes no place of those that run. */
void leaf_want(struct run_graph *g, struct vertex *v, double at)
{
    v->at = at;
    v->wait = at > g->now ? at - g->now : 0;
    v->n.phase = NODE_PENDING;
    if (v->n.kind != NODE_SUSPEND && g->limit && g->active >= g->limit)
        vertex_place(g, v, PLACE_WAIT);
    else
        leaf_admit(g, v);
}

void leaf_leave(struct run_graph *g, struct vertex *v)
{
    vertex_place(g, v, PLACE_NONE);
    if (!v->admitted)
        return;
    v->admitted = false;
    g->active -= v->n.kind != NODE_SUSPEND;
    while (g->lists[PLACE_WAIT].first && g->active < g->limit) {
        g->work++;
        leaf_admit(g, g->lists[PLACE_WAIT].first);
    }
}
