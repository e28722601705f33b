/* pipelines/graph.h - a run: the fold of a flow document and its events
 *
 * Pure: no clock, disk or thread. What happens depends on the flow document, the parameters and
 * the events in order, so that a replay gives the same nodes with the same ids and inputs. An event
 * that changes nothing is fine twice.
 *
 * Nodes are named as Argo names them: the root after the entry template, "main.train", iterations
 * "main.loop(0:a)", groups of steps "main[0]" with "main[0].hello" in them, attempts of a template
 * with a retry strategy "main.train(0)", the exit handler "main.onExit". Ids follow from the names.
 *
 * Costs: applying an event is in proportion to what it makes ready, not to the size of the run: the
 * last step of 10,000 costs no more than the first.
 *
 * Not thread safe. Nodes live as long as the graph and keep their address.
 */
#ifndef MUSTER_PIPELINES_GRAPH_H
#define MUSTER_PIPELINES_GRAPH_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/own.h"

/*     phase      word */
#define NODE_PHASES(X)          \
    X(PENDING,   "Pending")     \
    X(RUNNING,   "Running")     \
    X(SUCCEEDED, "Succeeded")   \
    X(FAILED,    "Failed")      \
    X(ERROR,     "Error")       \
    X(SKIPPED,   "Skipped")     \
    X(OMITTED,   "Omitted")

enum node_phase {
#define X(name, word) NODE_##name,
    NODE_PHASES(X)
#undef X
};
const char *node_phase_name(enum node_phase p);
bool node_phase_ended(enum node_phase p);

/*     kind          word (argo's types of nodes) */
#define NODE_KINDS(X)                                                   \
    X(DAG,          "DAG")                                              \
    X(STEPS,        "Steps")        /* a dag of style "steps" */        \
    X(TASK_GROUP,   "TaskGroup")    /* a loop */                        \
    X(STEP_GROUP,   "StepGroup")                                        \
    X(RETRY,        "Retry")        /* its children are attempts */     \
    X(STEP,         "Pod")          /* leaves from here on */           \
    X(RESOURCE,     "Pod")                                              \
    X(SUSPEND,      "Suspend")                                          \
    X(IMPORTER,     "Pod")                                              \
    X(SKIPPED_TASK, "Skipped")      /* skipped or omitted: no template was entered */

enum node_kind {
#define X(name, word) NODE_##name,
    NODE_KINDS(X)
#undef X
};
const char *node_kind_name(enum node_kind k);
bool node_kind_leaf(enum node_kind k);

struct node {
    const char *name, *id, *display;
    const char *task;           /* in the dag; "" for the root and the exit handler */
    const char *template_name;
    const struct node *parent;  /* NULL: the root, the exit handler */
    const struct node *const *children; /* in order of making */
    const json_t *inputs;       /* {"parameters": {}, "artifacts": {}} */
    const json_t *outputs;      /* the same, also "result", "code"; NULL: none (yet) */
    const json_t *body;         /* the template */
    const char *message;        /* NULL: none */
    const char *job;            /* NULL: none yet */
    double started, ended;      /* as the events say; 0: not yet */
    int n_children;
    int attempt;                /* of a leaf: 0, 1 ... */
    enum node_kind kind;
    enum node_phase phase;
    bool cached;
};

struct run_graph;

struct graph_run {
    const char *id, *name;      /* name: of the workflow, unique */
    const char *project;
    const json_t *parameters;
    const json_t *configs;      /* config maps that inputs read, {"map": {"key": text}}, as they were
                                   when the run was created, or NULL */
    double created;
};

/* The values of config maps that inputs of the flow read, for graph_run.configs: each is asked for,
 * also twice; `map` NULL: a tag names it, so it may be any. `each` returns 0 to go on; what it
 * returns else is returned. */
int run_graph_configs(const json_t *flow,
                      int (*each)(void *arg, const char *map, const char *key, bool optional),
                      void *arg);

/* Would a run of it begin, were all its parameters given? For who keeps it: what no run can do is
 * refused before there is one. */
int run_graph_check(const json_t *flow, struct err *err);

/* `flow` and what `run` points to are borrowed and outlive the graph. ERR_INVALID: a parameter is
 * missing, not known or of the wrong type. The run has begun: leaves are wanted. */
int run_graph_new(const json_t *flow, const struct graph_run *run, struct run_graph **out,
                  struct err *err);
void run_graph_free(struct run_graph *g);
OWN_DEFINE(run_graph)

/*  type            body
 *  run.created     anything; nothing is done
 *  node.ended      {"node": name or id, "attempt", "phase", "message"?, "code"?, "started"?,
 *                   "ended"?, "outputs"?: {"parameters", "artifacts", "result"?}, "cached"?,
 *                   "job"?, "transient"?: bool (for retries of OnTransientError),
 *                   "configs"?: {map: {key: text}}, config maps that the step changed, whole}
 *  node.resumed    {"node"} of a suspend node; or {} for all that wait; "phase"?, "message"?, and
 *                   "parameters"?: its outputs
 *  node.deadline   {"node", "message"?}: the template's deadline has passed; what runs in it is not
 *                   wanted any more, and it fails
 *  run.terminate   {"by"?, "all"?}: nothing new begins but the exit handler (and tasks that run
 *                   whatever happens); "all": true, or a second time, stops these too
 *  run.deadline    {}
 *  run.retry       {"configs"?}: the failed leaves are wanted anew, with a higher attempt
 *  run.ended       {"phase", "message"?}: the run is over whatever the nodes say
 * An event of an unknown type, for an unknown node or an earlier attempt is no error: nothing is
 * done. ERR_INVALID: a body that is not an object. */
int run_graph_apply(struct run_graph *g, const char *type, const json_t *body, double t,
                    struct err *err);

/* A leaf that is wanted and was not given yet; NULL: none (now). It is given once in the life of
 * this struct: whoever replays asks again and finds by name and attempt that it was begun. `at`:
 * not before this time (back-off; 0: now). Of a suspend node `at` is when it ends by itself, by a
 * node.resumed that the caller then applies; INFINITY: only when somebody says so. */
const struct node *run_graph_next(struct run_graph *g, double *at);

/* A leaf that is not wanted any more (terminated, deadline): stop it, and say by node.ended that it
 * ended; each once. NULL: none. After a replay it may be one that was given in an earlier life
 * only, or never: where there is no job of it, say so at once. */
const struct node *run_graph_unwanted(struct run_graph *g);

/* Says that a leaf's job runs (no event; lost in replay, and found again by looking). */
void run_graph_running(struct run_graph *g, const struct node *n, const char *job, double started);

/* A dag (or series of attempts) that began and whose template has a deadline: at `at` the caller
 * applies node.deadline, unless it has ended by then; each once. NULL: none. The deadline of a leaf
 * is in its order. */
const struct node *run_graph_timed(struct run_graph *g, double *at);

/* How long a wait the `at` of either ended, by the time of the event that began it. The clock may have
 * been set back since: who waits now waits no longer than that. */
double run_graph_wait(const struct node *n);

/* NODE_RUNNING until all is over, the exit handler included. `out_message` may be NULL. */
enum node_phase run_graph_phase(const struct run_graph *g, const char **out_message);

const struct node *run_graph_root(const struct run_graph *g);
const struct node *run_graph_exit(const struct run_graph *g);   /* NULL: none (yet) */
const struct node *run_graph_find(const struct run_graph *g, const char *id_or_name);

/* Parents before children; `each` returns 0 to go on, what it returns else is returned. */
int run_graph_each(const struct run_graph *g, int (*each)(void *arg, const struct node *n),
                   void *arg);

/* What a leaf runs, all values resolved: {"kind": "step"|"resource"|"suspend"|"importer", that
 * kind's object as in the template with each VALUE as what it comes to, "inputs": {"parameters":
 * [{"name", "value"?, "type"?}], "artifacts": [{"name", "path"?, "value": ART | [ART...] | {"raw":
 * text} | {"uri": text}}]}, "outputs": as in the template, "cache"?, "deadline_s"?, "labels"?,
 * "annotations"?}. A value with "format" stays as it is for the step to resolve. New reference.
 * ERR_INVALID: a tag names nothing; the caller then ends the leaf with phase "Error" and that
 * sentence. */
int run_graph_order(const struct run_graph *g, const struct node *n, json_t **out, struct err *err);

/* The run's volumes ("volumes", "claims") with their values resolved. New reference. */
int run_graph_volumes(const struct run_graph *g, json_t **out, struct err *err);

/* The run's own outputs: of the root. NULL: none yet. */
const json_t *run_graph_outputs(const struct run_graph *g);

size_t run_graph_bytes(const struct run_graph *g);      /* memory held, but for JSON of leaves */
int run_graph_count(const struct run_graph *g);         /* nodes */
uint64_t run_graph_work(const struct run_graph *g);     /* nodes and edges looked at so far */

#endif
