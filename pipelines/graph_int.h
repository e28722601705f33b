/* pipelines/graph_int.h - what a run's graph is made of; for graph*.c alone
 *
 * A template is compiled once (graph_flow.c). A vertex is a node and what the fold needs to know of
 * it. Nothing recurses along the graph: what follows from an event is put on an agenda and done in
 * order (graph.c), so that a chain of 10,000 skipped tasks is no deeper than one.
 *
 *     task ready -> begin (when, loop, inputs) -> enter the template -> leaf wanted | dag begun
 *     leaf ended -> its parent hears: retry, loop, group of steps, dag -> tasks ready, or it ended
 *
 * Who may begin: a dag and a loop count what is active in them, the run its leaves. What waits for
 * a place waits in the order in which it became ready. That is settled as events are applied, so
 * that a replay admits the same leaves.
 */
#ifndef MUSTER_PIPELINES_GRAPH_INT_H
#define MUSTER_PIPELINES_GRAPH_INT_H

#include "base/buf.h"
#include "pipelines/expr.h"
#include "pipelines/graph.h"

enum {
    GRAPH_DEPTH_MAX = 100,      /* templates within templates, as in Argo */
    GRAPH_NODES_MAX = 200000,
    GRAPH_ITEMS_MAX = 100000,   /* of a loop */
    GRAPH_ITEM_SHOWN = 64,      /* bytes of an item in a node's name */
};

/* ------------------------------------------------------------ compiled flow */

struct tmpl;

struct task {
    const json_t *doc;
    const char *name, *template_name;
    const struct tmpl *tmpl;
    struct flow_expr *depends;
    const char *when;
    const json_t *loop;
    int *after, *next;          /* what it comes after; what comes after it */
    int n_after, n_next;
    int group;                  /* of steps */
    int loop_limit;
    bool when_item;             /* `when` differs from iteration to iteration */
    bool always, go_failed, go_error;
    bool hook;                  /* the exit handler of the one task that it comes after */
    bool target;                /* what the dag's phase depends on */
};

struct tmpl {
    const char *name;
    const json_t *body, *retry;
    json_t *index;              /* of a dag: name of a task -> its number */
    struct task *tasks;
    int *group_sizes;
    double deadline_s;
    int n, n_groups;
    int limit;                  /* of what is active at once; 0: none */
    enum node_kind kind;
    bool fail_fast;             /* of the dag: nothing new once it must fail */
    bool halt;                  /* nor an iteration of a loop, once anything failed */
};

/* ------------------------------------------------------------ vertices */

enum slot_state { SLOT_WAITING, SLOT_QUEUED, SLOT_BEGUN, SLOT_ENDED };

struct slot {
    struct vertex *v;           /* NULL: not begun */
    int unmet;                  /* of task.after */
    unsigned char state;
    unsigned char branch;       /* enum node_phase that those after it inherit */
};

struct group {
    struct vertex *v;
    int left;
    unsigned char worst;
};

struct dag {
    struct slot *slots;
    struct group *groups;       /* of steps */
    int *queue;                 /* slots that wait for a place, a ring */
    int queue_at, queue_n, queue_cap;
    int left;                   /* slots that have not ended */
    int active;
    bool failing;               /* fail-fast: nothing new begins */
    bool cut;                   /* something was left out because it was stopped */
};

struct loop {
    json_t *items;
    int n, next, left, active;
    int succeeded, failed;
    int *redo, redo_n;          /* iterations that begin anew after a run.retry */
    int worst_index;
    unsigned char worst;
    bool queued;                /* in the dag's queue */
};

enum place { PLACE_NONE, PLACE_WAIT, PLACE_GIVE, PLACE_STOP, PLACE_TIMED, PLACE_PLACES };

struct vertex {
    struct node n;              /* first: a node is its vertex */
    struct vertex *home;        /* the dag whose task it is; NULL: the root, the exit handler */
    const struct tmpl *tmpl;
    struct dag *dag;
    struct loop *loop;
    struct vertex *prev, *next; /* in the list of its place */
    uint64_t hash;
    double at;                  /* not before */
    double wait;                /* how long that was to be waited for */
    int slot;                   /* of home */
    int index;                  /* of an iteration or attempt; -1 */
    int depth;
    int retry_base;             /* attempts that no longer count: before a run.retry */
    int children_cap;
    unsigned char place;
    bool own_display;
    bool admitted;              /* counts as an active leaf of the run */
    bool counted;               /* counts as active in its dag, and loop */
    bool given;
    bool stopped;               /* nothing new begins in it */
    bool dead;                  /* of an earlier life of the exit handler */
    bool redo;                  /* ended, and goes on after a run.retry */
    bool listed;                /* among its parent's children */
    bool blames;                /* its message is that of what failed in it */
    bool transient;             /* its failure may go away by itself */
};

enum agenda_what { DO_TASK, DO_ENDED };

struct agenda {
    struct vertex *v;
    int slot;
    enum agenda_what what;
};

struct list {
    struct vertex *first, *last;
};

struct run_graph {
    const json_t *flow;
    struct graph_run run;
    char *run_id, *run_name, *run_project;
    json_t *parameters;
    json_t *configs;            /* config maps: those of `run`, and what its steps made of them */
    json_t *nothing;            /* inputs of what has none */
    json_t *globals;            /* outputs with a global name */
    json_t *failures;
    struct tmpl *templates;
    json_t *template_index;
    int n_templates;
    struct vertex **nodes, **table;
    int n, nodes_cap;
    int promised;               /* nodes of all dags and loops that have begun, whether there yet or not */
    size_t table_size;
    struct vertex *root, *exit;
    struct list lists[PLACE_PLACES];
    struct agenda *agenda;
    int agenda_at, agenda_n, agenda_cap;
    int active, limit;          /* leaves */
    double now;                 /* time of the event */
    char *stop_message;         /* terminated, or past its deadline */
    bool ir, failed;            /* failed: no memory */
    bool over;                  /* run.ended */
    bool exit_done;
    enum node_phase over_phase;
    char *over_message;
    size_t bytes;
    uint64_t work;
};

static inline struct vertex *vertex_of(const struct node *n)
{
    return (struct vertex *)n;
}

static inline struct vertex *vertex_parent(const struct vertex *v)
{
    return vertex_of(v->n.parent);
}

/* graph_flow.c */
int graph_compile(struct run_graph *g, struct err *err);
void graph_compile_free(struct run_graph *g);
const struct tmpl *graph_template(const struct run_graph *g, const char *name);
int graph_take_parameters(struct run_graph *g, const json_t *given, struct err *err);
int config_missing(const char *map, const char *key, struct err *err);
json_t *graph_typed(const char *type, json_t *value);   /* takes, returns a reference */

/* graph_node.c. A name is taken over. */
struct vertex *vertex_make(struct run_graph *g, struct vertex *parent, char *name,
                           enum node_kind kind);
void vertex_free(struct vertex *v);
struct vertex *vertex_find(const struct run_graph *g, const char *id_or_name);
void vertex_message(struct vertex *v, const char *message);
void vertex_blame(struct vertex *v, const struct vertex *below); /* unless it has a message */
void vertex_inputs(struct vertex *v, json_t *inputs);           /* takes the reference */
void vertex_outputs(struct vertex *v, json_t *outputs);         /* takes the reference */
void vertex_end(struct run_graph *g, struct vertex *v, enum node_phase phase, const char *message);
void vertex_bury(struct run_graph *g, struct vertex *v);        /* with all below */
void vertex_place(struct run_graph *g, struct vertex *v, enum place place);
void leaf_want(struct run_graph *g, struct vertex *v, double at);
void leaf_leave(struct run_graph *g, struct vertex *v);         /* its place is another's */
void graph_do(struct run_graph *g, enum agenda_what what, struct vertex *v, int slot);
void *graph_alloc(struct run_graph *g, size_t n, size_t size);  /* zeroed; NULL: g->failed is set */
bool node_failed(enum node_phase p);

/* graph_dag.c */
void dag_begin(struct run_graph *g, struct vertex *v);
void dag_task_ready(struct run_graph *g, struct vertex *v, int slot);
void dag_task_ended(struct run_graph *g, struct vertex *v, int slot);
void dag_finish(struct run_graph *g, struct vertex *v);
void dag_pump(struct run_graph *g, struct vertex *v);
bool dag_goes_on(const struct task *k, enum node_phase p);
bool dag_full(const struct vertex *v);
void dag_queue(struct run_graph *g, struct vertex *v, int slot);
void dag_omit(struct run_graph *g, struct vertex *v, int slot, const char *message);
struct vertex *dag_group(struct run_graph *g, struct vertex *v, int slot);
void dag_free(struct dag *d);

/* graph_begin.c */
void task_begin(struct run_graph *g, struct vertex *dag, int slot);
void loop_begin(struct run_graph *g, struct vertex *group);
void loop_ended(struct run_graph *g, struct vertex *group, struct vertex *iteration);
void loop_free(struct loop *l);
struct vertex *template_enter(struct run_graph *g, struct vertex *parent, char *name,
                              struct vertex *home, int slot, int index, const struct tmpl *t,
                              json_t *inputs);
void body_enter(struct run_graph *g, struct vertex *v, double at);
void retry_ended(struct run_graph *g, struct vertex *v, struct vertex *attempt);
void retry_attempt(struct run_graph *g, struct vertex *v, double at);

/* graph_stop.c */
void graph_stop(struct run_graph *g, struct vertex *v, const char *message, bool all);
void graph_halt(struct run_graph *g, struct vertex *dag);
void graph_reopen(struct run_graph *g, struct vertex *v);

/* ------------------------------------------------------------ values */

/* Where a value is looked at from: the arguments of a task (home: the dag), the body of a leaf
 * (home: itself), the run (home NULL). */
struct scope {
    const struct run_graph *g;
    const struct vertex *home;
    const json_t *inputs;
    const json_t *item;         /* NULL: not in a loop */
    const struct vertex *leaf;  /* for `retries`, paths; NULL: no leaf */
    const struct vertex *retry; /* for lastRetry; NULL: none */
};

/* graph_names.c */
json_t *scope_get(void *scope, const char *path);
json_t *vertex_output(const struct run_graph *g, const struct vertex *v, const char *kind,
                      const char *name);       /* borrowed; NULL: none */
const struct vertex *scope_task(const struct scope *s, const char *name, size_t n);
char *graph_time(double t);     /* RFC 3339; caller frees */

/* graph_fill.c, of kfp 2: constants with placeholders, parts of values */
int value_fill(const struct scope *s, const json_t *value, json_t **out, struct err *err);
json_t *value_below(json_t *v, const json_t *path);     /* takes, returns a reference */

/* graph_values.c. *out stays NULL where the value is absent: its task gave none. */
int value_get(const struct scope *s, const json_t *value, json_t **out, struct err *err);
int artifact_get(const struct scope *s, const json_t *ref, json_t **out, struct err *err);
int inputs_get(const struct scope *s, const json_t *parameters, const json_t *artifacts,
               const struct tmpl *t, const char *item_name, json_t **out, struct err *err);
int dag_outputs(const struct run_graph *g, const struct vertex *v, json_t **out, struct err *err);
json_t *loop_outputs(const struct run_graph *g, const struct vertex *group);
int loop_items(const struct scope *s, const json_t *loop, json_t **out, struct err *err);
void take_globals(struct run_graph *g, const struct vertex *v);

#endif
