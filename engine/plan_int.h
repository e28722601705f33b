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
};

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
    bool loss_settled;          /* a barrier of `train` comes after the loss is computed */
    bool no_grad;               /* tensors taken now need no gradient */
    const struct stage *building;
    double clip_norm;           /* 0: none */
    double *square;             /* (n_params) sums of squares, for clip_norm */
};

/* Fills p->stage and p->value from the graph. */
int plan_lower(struct plan *p, struct err *err);
/* Fills the two lists of calls. */
void plan_list(struct plan *p);

#endif
