/* engine/plan.h - a model made ready to run: memory, stages, steps
 *
 * plan_new lowers a graph to stages. A stage runs one or several nodes (a fused chain) in three
 * phases: forward, backward, update. It is chosen by shape alone, never by machine or threads, since
 * the order of its sums is part of the result. All memory is taken once, from one block.
 *
 * Every member of the team runs the same list of calls. What a call may touch without waiting:
 * its own samples [n0, n1) and its own replicas. A stage says in `sync` where all members must
 * have arrived before or after its phase; the plan puts barriers there and nowhere else.
 *
 * The order of sums ("same bits"): a value of one sample is one fixed chain. A sum over the batch
 * (weight gradients, statistics, losses) is taken per shard in sample order, then by a pairwise
 * tree over the shard index: shard i of S holds samples [i*n/S, (i+1)*n/S) of the n in the batch,
 * an empty shard passes its sibling on. A stage may cut one sample's sum into parts by shape (say,
 * two halves of a hidden layer); never by thread.
 *
 * Layout: an activation is (N, H, W, Cp), channels last, C padded to Cp with zeros (tensor_pad). A
 * parameter has a logical shape, PyTorch's, and a physical one that its stage likes; `at` maps
 * one to the other. Optimizer state is laid out as the parameter is. Neither depends on threads or
 * instruction set.
 *
 * Several plans may train one model, each with some of the shards (struct plan_share): they
 * exchange sums by shard and by complete subtrees of shards, and so make the same sums.
 */
#ifndef MUSTER_ENGINE_PLAN_H
#define MUSTER_ENGINE_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/err.h"
#include "data/dataset.h"
#include "engine/graph.h"
#include "engine/optim.h"
#include "engine/team.h"

enum { SHARDS_MAX = 8, PARAM_NAME = 80 };
/* Complete subtrees that a range of shards may have at most: 1, 2-3, 4-5, 6. */
enum { SHARE_ROOTS = 4 };
/* The most floats a shard that one call of plan_share.gather has. */
enum { SHARE_GATHER = 1024 };
/* Plans that may train one model. */
enum { SHARE_PLACES = 64 };

/* Raise when, and only when, a change alters the bits of a trained model on purpose. */
enum { NUMERICS_VERSION = 1 };

enum isa { ISA_SCALAR_ID, ISA_AVX2_ID, ISA_AVX512_ID };
enum isa isa_best(void);                /* of this machine, or what MUSTER_ISA names */
const char *isa_name(enum isa isa);

/* Dot products of a sample with rows of weights, begun by the stage that makes the sample: the
 * weights' way from the L2 cache takes longer than the arithmetic, and hides behind a convolution's.
 * The maker offers it, the first reader that can use it fills in what it wants. */
struct dots {
    int rows;                   /* 0: nobody wants them */
    const float *const *row;    /* each row's weights, in the order of the sample's floats */
    float *sum;                 /* (rows, 16): 16 lanes each, over the first `done` floats */
    long done;
};

struct tensor {
    int h, w, c, cp;
    long size;                  /* floats of one sample: h * w * cp */
    float *data;                /* (N, H, W, Cp) */
    float *grad;                /* the same; NULL when nobody needs it */
    long replica;               /* floats from a member's copy to the next; 0: one, shared */
    struct dots *dots;          /* NULL: not offered */
};

/* Channels as they are stored: 1 stays 1, up to 8 become 8, else a multiple of 16. */
int tensor_pad(int channels);

struct param {
    char name[PARAM_NAME];      /* "conv1.weight" */
    int nd;
    long dim[4];                /* logical, as PyTorch has it */
    long count;                 /* product of dim */
    bool trained;               /* false: state such as running_mean */
    int group;                  /* optimizer group */
    int order;                  /* by node, then weight, bias, ...: the same for any stage */
    enum { INIT_UNIFORM, INIT_NORMAL, INIT_ONE, INIT_ZERO } init;
    float bound;                /* UNIFORM: -bound..bound; NORMAL: standard deviation */
    long size;                  /* floats as stored, a multiple of 16; padding stays zero */
    float *w;                   /* replica 0 */
    float *state[OPTIM_STATES]; /* optimizer state, laid out like w, replicated like w */
    float *g;                   /* gradient; only where the plan keeps gradients, else NULL */
    /* In a shared plan: where its sums begin in the gradient vector and how many floats they are;
     * -1: `g` is worked out by every plan from sums that all have. Where both are there the stage
     * makes g of the sums (stage_ops.reduced). */
    long grad_at, grad_size;
    long place;                 /* floats of the parameters before it, for the chain */
    bool sparse;                /* where a shared sum is -0.0 the batch did not name the row */
    struct split *split;        /* shared: its stage updates it, a part in each plan; NULL: not */
    long replica;               /* floats from a member's copy to the next; 0: one, shared */
    long (*at)(const struct param *p, long i);  /* logical to stored index; NULL: the same */
    long geom[8];               /* for `at` */
};

/* Of a parameter that is split between plans, see split.c. */
enum { SPLIT_OWN = -1 };        /* a part is in the plan's own memory */
struct split_shape {
    long rows, cols, ld;        /* cols: what is used of the ld floats of a row */
    long unit;                  /* rows that stay together */
    long panel;                 /* columns that a step does at once */
};
struct split {
    struct split_shape shape;
    long ld;                    /* of a row on a board */
    long room;                  /* floats that a part has there at most */
    long at, grad, hash, marks; /* where its arrays begin there, and what is behind them */
    signed char side[SHARE_PLACES];     /* of its maker's board, where each part is now */
};

struct plan;
struct stage;

/* A member of the team inside a run: which samples and shards are its own. */
struct member {
    int id, count;
    struct plan *plan;
    long pos;                   /* of sample 0 in the stretch */
    int n;                      /* samples that this plan works on */
    int whole;                  /* samples of the batch; more than n where others have some */
    int base;                   /* place of sample 0 in the batch */
    int s0, s1;                 /* own shards */
    int n0, n1;                 /* own samples: those of the own shards */
    bool train;
    uint64_t step;              /* since the start of the run, from 0: keys drop-out */
    struct optim optim[2];      /* by group, with this step's constants */
};

/* First sample of shard i when n samples are spread over s shards. */
static inline int shard_first(int n, int s, int i) { return (int)((long)n * i / s); }
/* The shards that have samples, a bit each. */
static inline unsigned shards_filled(int n, int s)
{
    unsigned filled = 0;
    for (int i = 0; i < s; i++)
        filled |= (unsigned)(shard_first(n, s, i) < shard_first(n, s, i + 1)) << i;
    return filled;
}

enum phase { PHASE_FORWARD, PHASE_BACKWARD, PHASE_UPDATE, PHASES };
enum { SYNC_NONE = 0, SYNC_BEFORE = 1, SYNC_AFTER = 2 };

struct stage_ops {
    const char *name;
    /* How many nodes from `at` on this stage can run as one (0: it cannot). The nodes at+1.. each
     * read the one before and are read by nobody else. */
    int (*match)(const struct plan *p, const struct graph *g, int at);
    /* Sizes and takes memory: s->out, parameters (plan_param), scratch (plan_take). Sets s->sync. */
    int (*build)(struct stage *s, struct plan *p, struct err *err);
    /* Any of these may be NULL. run[PHASE_UPDATE] applies gradients that backward left behind. */
    void (*run[PHASES])(struct stage *s, struct member *m);
    /* After weights came from outside (initialisation, load): make derived copies. May be NULL.
     * Called once for each member's replica. */
    void (*derive)(struct stage *s, struct member *m);
    /* Shared plans, once the sums of the batch are there for good: moves running statistics, makes
     * gradients of sums that are none yet (share_copy), makes this plan's part of what is split
     * between plans. May be NULL. */
    void (*reduced)(struct stage *s, struct member *m);
    /* Shared plans, after the update of all other parameters: the parts that others have made of
     * what is split. May be NULL. */
    void (*settled)(struct stage *s, struct member *m);
};

struct stage {
    const struct stage_ops *ops;
    const struct node *node;    /* its first node; n_nodes in a row */
    int n_nodes;
    int at;                     /* index of the first node in the graph */
    struct tensor *in[NODE_IN_MAX];
    int n_in;
    struct tensor *out;         /* of its last node */
    unsigned sync[PHASES];
    void *own;                  /* the stage's own struct, from plan_alloc */
};

/* One batch's results, readable in a hook. */
struct step_result {
    long step;
    int n;
    double loss;                /* mean over the batch (weighted where there are weights) */
    double reported;            /* what is shown as "loss" after this step; set by the trainer */
    uint64_t chain;             /* see plan_chain; 0 where the plan keeps none */
};

/* A stretch of the gradient vector: sum[0] is element `from`. Both ends are multiples of 16. Where
 * only two sums are left to add, the update does it: the gradient is sum + plus. */
struct grad_segment {
    long from, to;
    const float *sum, *plus;    /* plus NULL: nothing to add */
};

/* One of the plans as the others see it. */
struct plan_place {
    int from, to;               /* shards */
    const float *board;
    bool near;                  /* the board is its maker's own memory, and stays readable when the
                                 * maker is gone */
    bool reader;                /* it reads the own board so; not always both or none of the two */
};

/* A plan's part in a model that several train: it computes the shards [from, to) of every batch.
 * What is not its own to make comes through the hooks, called on the caller's thread while the
 * other members wait. All plans call them in the same order, one that has no shard too. A hook
 * that returns non-zero up to `reduce` abandons the step: nothing has changed. After that the step
 * is done, whatever becomes of the others. */
struct plan_share {
    int from, to;               /* from == to: none; follows along */
    /* All plans in an order that all agree on; place[self] is this one. 0: it is alone. */
    struct plan_place place[SHARE_PLACES];
    int n_places, self;
    /* Where the gradient of each root goes, plan->grad_floats each: of the first step to root[0], of
     * the next to root[1], and so on in turn, since others may be reading one while the next step
     * writes. */
    float *root[2][SHARE_ROOTS];
    /* rows[k * stride]: `count` floats of shard k, up to SHARE_GATHER. Own rows are given, the
     * others are filled in. Any bits: not all are numbers. */
    int (*gather)(void *arg, float *rows, long stride, long count);
    /* During the backward pass: from element `from` on, every root of this step that has samples is
     * final; `filled` as in reduce. `from` falls from call to call of a step; whatever is not
     * announced is final at the reduce. Must not wait. Members meet before it, so it is called for
     * `ready_floats` new ones at the least. NULL: never. */
    void (*ready)(void *arg, unsigned filled, long from);
    long ready_floats;
    /* The roots are complete. Leaves in *out, in ascending order, where the sums of the batch are:
     * of each element, by the tree over the shards in `filled` (a bit each). */
    int (*reduce)(void *arg, unsigned filled, const struct grad_segment **out, int *out_n);
    /* A board has plan->board_floats, all zero at first, that one plan writes and all read. `post`:
     * [from, from + n) of the own one may be read from now on, and what else those who are near
     * know of. `wait`: until the one in `place` has made as many posts
     * as this plan, reduces among them; non-zero: it will not. What a step has posted is read by
     * others until they have made their next reduce. */
    float *board;
    bool far;                   /* somebody reads the own board, and is not near */
    int (*post)(void *arg, long from, long n);
    int (*wait)(void *arg, int place);
    void *arg;
};

/* A complete subtree of shards, and where its sums go. */
struct root {
    int first, width;
    float *at;
};

struct plan {
    const struct graph *graph;
    const struct field *field;          /* of the current stretch */
    int n_fields;
    const uint32_t *order;
    long n_order;                       /* positions in it: what a kernel may look ahead to */
    int batch;                          /* the most samples of a step */
    int shards;
    bool train;                         /* has backward stages */
    bool keep_grads;                    /* backward leaves p->g; the update is a pass of its own */
    bool shared;                        /* can be one of several */
    long grad_floats;                   /* of the gradient vector; 0 unless shared */
    long board_floats;                  /* that the others read besides; 0: nothing is split */
    struct root root[SHARE_ROOTS];      /* of the own shards, left to right */
    int n_roots;
    int from, to;                       /* own shards; all of them unless shared */
    enum isa isa;
    uint64_t seed;
    struct team *team;
    int threads;
    struct stage *stage;
    int n_stages;
    struct tensor **value;              /* value[i]: output tensor of node i; NULL inside a chain */
    struct param **param;
    int n_params;
    struct optim optim[2];              /* by group; a member's copy has the step's constants */
    double lr_factor;                   /* of the schedule; set between runs, 1 at first */
    long warmup;                        /* steps over which the rate grows from 0; 0: none */
    const json_t *loss_spec;
    float *sample_loss;                 /* (batch) of the last step */
    struct tensor *output;              /* what the model says: logits before a fused (log-)softmax */
    int target_field, weight_field;     /* -1: none */
    struct plan_int *own;
};

/* What to plan for. */
struct plan_config {
    int batch, shards;
    int threads;                /* 0: as many as help */
    bool train;
    bool keep_grads;            /* gradients are wanted (tests, clipping by norm) */
    bool plain;                 /* one stage for each op, no fused chains: the slow twin, for tests */
    bool shared;                /* able to be one of several (plan_set_share) */
    bool chain;                 /* keep plan_chain; a shared plan always does */
    uint64_t seed;
    const json_t *loss;         /* normalised; NULL: inference */
    const json_t *optimizer;    /* normalised; NULL: inference */
    const json_t *clip;         /* NULL: none */
};

/* `graph` and `fields` stay the caller's and must outlive the plan. */
int plan_new(const struct graph *graph, const struct field *fields, int n_fields,
             const struct plan_config *config, struct plan **out, struct err *err);
void plan_free(struct plan *p);
size_t plan_bytes(const struct plan *p);        /* the one block */

/* PyTorch's initial values from the plan's seed. Call once, or load weights, before a step. */
void plan_init(struct plan *p);
struct param *plan_find(const struct plan *p, const char *name);
/* Logical order, as PyTorch has it. `which` 0: weights, 1..: optimizer state, -1: gradient. Set
 * must be followed by plan_derive; before get, one of several plans needs plan_collect. */
void plan_get(const struct plan *p, const struct param *q, int which, float *out);
void plan_set(struct plan *p, struct param *q, int which, const float *in);
void plan_derive(struct plan *p);

/* Runs `steps` batches of the stretch from position `pos` on (the last may be short). `hook` (NULL:
 * none) is called on the caller's thread after each step, with the outputs in place; it returns
 * non-zero to stop there. Training: parameters are updated; each step's loss is in results[i].
 * Returns how many steps ran. */
long plan_train(struct plan *p, const struct stretch *data, long pos, long steps, uint64_t first_step,
                struct step_result *results,
                int (*hook)(void *arg, const struct step_result *r), void *arg);
/* The same without updates: drop-out off, running statistics. */
long plan_eval(struct plan *p, const struct stretch *data, long pos, long steps,
               struct step_result *results,
               int (*hook)(void *arg, const struct step_result *r), void *arg);

/* --- several plans, one model --- */

/* The roots of shards [from, to): the largest complete subtrees of the tree over `shards`, left to
 * right. Returns how many. */
int share_roots(int shards, int from, int to, int first[SHARE_ROOTS], int width[SHARE_ROOTS]);

/* Between runs, for a shared plan; until then it has all shards to itself. `share` is copied, the
 * memory behind root[] stays the caller's; it is zeroed here, so nobody may be reading it for a
 * step that could still count. */
void plan_set_share(struct plan *p, const struct plan_share *share);
/* Between runs: brings in what is on boards; before others, or a plan_set_share, may write to them
 * for something else. */
void plan_collect(struct plan *p);
/* True after plan_train when a hook abandoned a step; that step has changed nothing. */
bool plan_abandoned(const struct plan *p);

/* A value that covers the parameters after every step so far: of one step and the same steps before
 * it, whoever ran them. It starts from 0. */
uint64_t plan_chain(const struct plan *p);
void plan_set_chain(struct plan *p, uint64_t chain);

/* Parameters and optimizer state as they are stored, for a plan of the same spec: a plain copy. */
size_t plan_state_bytes(const struct plan *p);
void plan_state_get(const struct plan *p, void *out);
void plan_state_set(struct plan *p, const void *in);
/* The parameters alone, as they are stored, one after the other: a copy that outlives the steps to
 * come. plan_copied finds one of them in such a copy; `out` gets q->count floats. */
size_t plan_copy_bytes(const struct plan *p);
void plan_copy(const struct plan *p, float *out);
void plan_copied(const struct plan *p, const struct param *q, const float *copy, float *out);
void plan_copy_set(const struct plan *p, const struct param *q, float *copy, const float *in);

/* Output of sample i of the last batch, of those the plan worked on: `c` floats. */
const float *plan_output(const struct plan *p, int i);

/* --- for stages --- */

/* Zeroed memory of the plan's block, 64-byte aligned, never freed singly. */
void *plan_take(struct plan *p, size_t bytes);
/* A struct of the stage's, zeroed. */
#define plan_alloc(p, type) ((type *)plan_take((p), sizeof(type)))
struct tensor *plan_tensor(struct plan *p, int h, int w, int c);        /* data and, in training, grad */
/* `size` floats as stored; `replicated`: a copy for each member, each updated by its owner. What a
 * parameter starts from follows from the node and the suffix (weight, bias, running_mean,
 * running_var), as in PyTorch. */
struct param *plan_param(struct plan *p, const struct node *node, const char *suffix, int nd,
                         const long *dim, long size, bool replicated);

/* First sample, counted from the plan's own, of shard k; a shard of another plan is empty. */
static inline int member_first(const struct member *m, int k)
{
    int at = shard_first(m->whole, m->plan->shards, k) - m->base;
    return at < 0 ? 0 : at < m->n ? at : m->n;
}
/* The own shards that have samples, a bit each. */
static inline unsigned member_filled(const struct member *m)
{
    unsigned filled = 0;
    for (int k = 0; k < m->plan->shards; k++)
        filled |= (unsigned)(member_first(m, k) < member_first(m, k + 1)) << k;
    return filled;
}

/* The row of sample i in a field. */
static inline const void *member_row(const struct member *m, int field, int i)
{
    const struct field *f = &m->plan->field[field];
    return (const char *)f->base + (size_t)m->plan->order[m->pos + i] * f->stride;
}
static inline float *member_w(const struct member *m, const struct param *q)
{
    return q->w + q->replica * m->id;
}
static inline float *member_data(const struct member *m, const struct tensor *t)
{
    return t->data + t->replica * m->id;
}
static inline float *member_grad(const struct member *m, const struct tensor *t)
{
    return t->grad + t->replica * m->id;
}
/* This member's part [*a, *b) of `n` items in units of `unit`. */
void member_part(const struct member *m, long n, long unit, long *a, long *b);
void member_barrier(struct member *m);

/* All members: rows[k * stride] has `count` floats of each own shard k; waits for everybody's, in a
 * shared plan for those of the other plans too. */
void member_gather(struct member *m, float *rows, long stride, long count);
/* Shared plans: every plan works out q's gradient, to q->g, from sums that all have. */
void plan_known(struct plan *p, struct param *q);
/* Shared plans, once the vector is reduced: elements [from, to) of q's part of it. */
void share_copy(const struct plan *p, const struct param *q, long from, long to, float *out);

/* Shared plans: the gradient of q is no part of the vector; each plan updates a part of its rows.
 * The stage makes the gradient by means of boards, of which it takes `floats`. Returns where they
 * begin. */
long plan_split(struct plan *p, struct param *q, struct split_shape shape, long floats);
/* How many plans there are, and which part [*a, *b) of n items in units of `unit` is whose. */
int share_places(const struct plan *p, int *out_self);
void share_part(const struct plan *p, int place, long n, long unit, long *a, long *b);
/* A place's board, to read; the own one. */
const float *share_board(const struct plan *p, int place);
float *share_own_board(const struct plan *p);
int share_owner(const struct plan *p, int shard);       /* its place */
/* What is posted before the reduce has two sides, in turn, as roots have: that of this step. */
int share_side(const struct plan *p);
/* All members, all plans: [from, from + n) of the own board is complete, in every member. */
void member_post(struct member *m, long from, long n);
/* All members: until everybody has posted what this plan has. The places that have, a bit each. */
uint64_t member_wait(struct member *m);

/* A part of a split parameter: rows [from, to), and where the first is. */
struct split_part {
    long from, to, ld;
    float *w, *state[OPTIM_STATES];
};
/* As it is now, to read. */
struct split_part split_now(const struct plan *p, const struct param *q, int place);
/* The place whose part a row is in. */
int split_owner(const struct plan *p, const struct param *q, long row);

/* A member's share in the update of a part: rows [from, to), panel by panel, the last columns first
 * where it goes down. `old` and `new` may be the same memory; else it is told of each panel that it
 * is done, before the next one is begun. */
struct split_work {
    struct split_part old, new;
    long from, to;
    long panels, done;          /* done: as many are, already */
    bool down;
    float *give;                /* where the gradient of the part goes besides, laid out as the
                                 * plan's own memory is; NULL: nobody wants it */
    _Atomic uint64_t *mark;
    uint64_t step;
};
static inline void split_panel_done(const struct split_work *work, long panels)
{
    if (!work->mark)
        return;
    atomic_store_explicit(work->mark, work->step | (uint64_t)panels, memory_order_release);
    atomic_thread_fence(memory_order_release);
}

/* All members, in this order. `reduced`: the own part is begun; it is made, in every member.
 * `settled`: the parts that come, a bit each, the own one too; of each other part, how many pieces
 * of it are to be made, and each piece; all parts are there. */
struct split_work member_begin_part(struct member *m, struct param *q);
void member_give_part(struct member *m, struct param *q);
uint64_t member_take_parts(struct member *m, struct param *q);
int member_miss_part(struct member *m, struct param *q, int place);
struct split_work member_rest(struct member *m, const struct param *q, int place, int i);
void member_settle_parts(struct member *m, struct param *q, uint64_t here);

/* True when this stage is the first, in backward order, to write the gradient of input i: it sets;
 * later ones add. */
bool stage_grad_first(const struct stage *s, int i);

#endif
