/* engine/plan_int.h - the plan's private half: lowering and the list of calls */
#ifndef MUSTER_ENGINE_PLAN_INT_H
#define MUSTER_ENGINE_PLAN_INT_H

#include "engine/kernels.h"
#include "engine/plan.h"

/* One call of every member's list. */
struct call {
    void (*run)(struct stage *s, struct member *m);
    struct stage *stage;
    bool barrier;               /* all members arrive before it */
    long ready;                 /* by then the gradient vector is final from here; -1: no matter */
};

/* param.order counts by node and so many suffixes. */
enum { PARAM_SUFFIXES = 8 };
static inline int param_node(const struct param *q) { return q->order / PARAM_SUFFIXES; }

/* Memory beyond this is a mistake in a spec, not a model; it is address space only until used. */
static const size_t PLAN_RESERVE = (size_t)64 << 30;

struct plan_int {
    const struct kernels *kernels;
    bool plain;                 /* no fused chains */
    char *block;                /* one reservation; `used` of it are in use */
    size_t used;
    bool full;                  /* a request did not fit */
    struct call *forward;       /* inference and tests */
    int n_forward;
    struct call *train;         /* forward, backward, update */
    int n_train;
    struct call *early;         /* the same for plan_share.ready: an update after its backward */
    int n_early;
    bool loss_settled;          /* a barrier of `train` comes after the loss is computed */
    bool no_grad;               /* tensors taken now need no gradient */
    const struct stage *building;
    double clip_norm;           /* 0: none */
    double *square;             /* (n_params) sums of squares, for clip_norm */
    struct plan_share share;    /* hooks are NULL while the plan has all shards to itself */
    int side;                   /* of share.root, for this step */
    int board_side;             /* of boards; changes when the step is over */
    long turn;                  /* steps since plan_set_share */
    bool reduced;               /* of this step: it cannot be abandoned any more */
    bool sure;                  /* all who are near know that of each other */
    struct split_rest {         /* of a part that did not come: pieces, and panels done of each */
        int n;
        long done[TEAM_MAX];
    } rest;
    uint64_t here;              /* see member_wait */
    float *alone;               /* its root then */
    struct grad_segment all;
    const struct grad_segment *segment; /* of this step's gradient vector */
    int n_segments;
    bool abandoned;             /* written by member 0 between two barriers */
    double loss[SHARDS_MAX][2]; /* of this step, see loss_by_shard */
    bool keep_chain;
    uint64_t chain;
    struct member_hash *hash;   /* (threads) */
};

/* A member's share of the hash of all parameters; two lines, as a core fetches them. */
struct member_hash {
    uint64_t sum, part;         /* part: of what is split */
    uint64_t gap[14];
};

/* Fills p->stage and p->value from the graph. */
int plan_lower(struct plan *p, struct err *err);
/* Fills the two lists of calls. */
void plan_list(struct plan *p);

/* Sum of losses and of weights of each shard; of one that is another plan's, zeros. */
void loss_by_shard(const struct member *m, double sum[SHARDS_MAX][2]);

/* --- share.c --- */

/* Once stages and parameters are there. */
void share_init(struct plan *p);
/* Member 0, when all have passed a barrier: the vector is final from `from` on. */
void share_ready(const struct member *m, long from);
/* All members: makes the gradients of the batch of everybody's. False: the step is abandoned. */
bool share_reduce(struct member *m);
/* The gradient of q from `from` on, up to *to, which may come nearer. `room` has room for it. */
const float *share_gradient(const struct plan *p, const struct param *q, long from, long *to,
                            float *room);
/* This member's share in the hash of `n` weights, of which the first has this place. */
uint64_t member_hash(const struct member *m, const float *w, long n, long place);
/* The same in the update of weights [from, to) of q by the gradient g; it hashes them too. */
void member_update(struct member *m, const struct param *q, long from, long to, const float *g);
/* Member 0, while the others wait: the step is over. */
void share_over(struct plan *p);
/* Member 0: one more step, from everybody's hash. */
uint64_t share_chain(struct plan *p);

/* --- split.c --- */

/* Array `which` of a split parameter as it is now (0: weights, then the states). */
void split_get(const struct plan *p, const struct param *q, int which, void *out);
/* What is in the plan's own memory counts. */
void split_forget(struct plan *p);
/* The share has changed. */
void split_begin(struct plan *p);

#endif
