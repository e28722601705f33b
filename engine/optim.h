/* engine/optim.h - what to do with a gradient
 *
 * Elementwise: new weight and state from old weight, state and gradient, sixteen at a time, in one
 * order of operations (engine/optim_step.h has the arithmetic, for kernels). `struct optim` holds
 * the constants of the current step; optim_begin fills in those that change (learning rate, bias
 * corrections).
 */
#ifndef MUSTER_ENGINE_OPTIM_H
#define MUSTER_ENGINE_OPTIM_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum { OPTIM_STATES = 3 };

enum optim_kind {
    OPTIM_SGD, OPTIM_ADAM, OPTIM_ADAMW, OPTIM_ADAGRAD, OPTIM_RMSPROP, OPTIM_FTRL, OPTIM_KINDS
};

struct optim {
    enum optim_kind kind;
    int states;                 /* arrays beside the weights */
    float state_init[OPTIM_STATES];       /* what they start from (Adagrad, FTRL accumulators) */
    /* from the spec */
    double lr, momentum, weight_decay, beta1, beta2, eps, alpha, lr_decay, l1, l2, lr_power;
    bool nesterov, centered;
    float clip_value;           /* 0: none */
    /* of this step, set by optim_begin; k[] are the constants that the kernel reads, by kind */
    float k[10];
};

/* `spec` is {"sgd": {...}} normalised. */
int optim_parse(const json_t *spec, struct optim *out, struct err *err);

/* Constants for step t (1, 2, ...) at learning rate lr * lr_factor. */
void optim_begin(struct optim *o, uint64_t t, double lr_factor);

#endif
