/* engine/optim.c - optimizers from the spec, and the constants of a step */
#include "engine/optim.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* Which settings an optimizer has and what they are when the spec is silent: PyTorch's defaults,
 * TensorFlow's for FTRL. */
struct setting {
    enum optim_kind kind;
    const char *key;
    size_t at;                  /* a double in struct optim */
    double otherwise;
};

#define AT(member) offsetof(struct optim, member)
static const struct setting settings[] = {
    { OPTIM_SGD, "lr", AT(lr), 0.001 },
    { OPTIM_SGD, "momentum", AT(momentum), 0 },
    { OPTIM_SGD, "weight_decay", AT(weight_decay), 0 },
    { OPTIM_ADAM, "lr", AT(lr), 0.001 },
    { OPTIM_ADAM, "eps", AT(eps), 1e-8 },
    { OPTIM_ADAM, "weight_decay", AT(weight_decay), 0 },
    { OPTIM_ADAMW, "lr", AT(lr), 0.001 },
    { OPTIM_ADAMW, "eps", AT(eps), 1e-8 },
    { OPTIM_ADAMW, "weight_decay", AT(weight_decay), 0.01 },
    { OPTIM_ADAGRAD, "lr", AT(lr), 0.01 },
    { OPTIM_ADAGRAD, "lr_decay", AT(lr_decay), 0 },
    { OPTIM_ADAGRAD, "eps", AT(eps), 1e-10 },
    { OPTIM_ADAGRAD, "weight_decay", AT(weight_decay), 0 },
    { OPTIM_RMSPROP, "lr", AT(lr), 0.01 },
    { OPTIM_RMSPROP, "alpha", AT(alpha), 0.99 },
    { OPTIM_RMSPROP, "eps", AT(eps), 1e-8 },
    { OPTIM_RMSPROP, "momentum", AT(momentum), 0 },
    { OPTIM_RMSPROP, "weight_decay", AT(weight_decay), 0 },
    { OPTIM_FTRL, "lr", AT(lr), 0.001 },
    { OPTIM_FTRL, "l1", AT(l1), 0 },
    { OPTIM_FTRL, "l2", AT(l2), 0 },
    { OPTIM_FTRL, "lr_power", AT(lr_power), -0.5 },
};
#undef AT

static const char *const names[OPTIM_KINDS] = {
    [OPTIM_SGD] = "sgd",         [OPTIM_ADAM] = "adam",       [OPTIM_ADAMW] = "adamw",
    [OPTIM_ADAGRAD] = "adagrad", [OPTIM_RMSPROP] = "rmsprop", [OPTIM_FTRL] = "ftrl",
};

static double number_or(const json_t *args, const char *key, double otherwise)
{
    const json_t *v = json_object_get(args, key);
    return json_is_number(v) ? json_number_value(v) : otherwise;
}

/* Arrays beside the weights: SGD momentum; Adam m, v; Adagrad sum; RMSprop square, then mean when
 * centered, then momentum; FTRL n, z. */
static int states_of(const struct optim *o)
{
    switch (o->kind) {
    case OPTIM_SGD: return o->momentum != 0;
    case OPTIM_ADAGRAD: return 1;
    case OPTIM_RMSPROP: return 1 + o->centered + (o->momentum != 0);
    default: return 2;
    }
}

static int check(const struct optim *o, struct err *err)
{
    if (!(o->lr >= 0))
        return err_set(err, ERR_INVALID, "optimizer.%s.lr: is %g, not a rate", names[o->kind],
                       o->lr);
    if (o->nesterov && o->momentum == 0)
        return err_set(err, ERR_INVALID, "optimizer.%s.nesterov: needs a momentum",
                       names[o->kind]);
    if (o->kind == OPTIM_FTRL && (o->lr == 0 || o->lr_power > 0))
        return err_set(err, ERR_INVALID, "optimizer.ftrl: needs lr above 0 and lr_power not above "
                       "0, not %g and %g", o->lr, o->lr_power);
    return 0;
}

int optim_parse(const json_t *spec, struct optim *out, struct err *err)
{
    struct optim o = { .kind = OPTIM_KINDS };
    const json_t *args = NULL;

    for (int k = 0; k < OPTIM_KINDS; k++)
        if ((args = json_object_get(spec, names[k]))) {
            o.kind = (enum optim_kind)k;
            break;
        }
    if (!args)
        return err_set(err, ERR_INVALID, "optimizer: none of sgd, adam, adamw, adagrad, rmsprop, "
                       "ftrl is named");
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (settings[i].kind == o.kind)
            *(double *)((char *)&o + settings[i].at) =
                number_or(args, settings[i].key, settings[i].otherwise);
    o.nesterov = json_is_true(json_object_get(args, "nesterov"));
    o.centered = json_is_true(json_object_get(args, "centered"));
    if (o.kind == OPTIM_ADAM || o.kind == OPTIM_ADAMW) {
        const json_t *betas = json_object_get(args, "betas");
        o.beta1 = betas ? json_number_value(json_array_get(betas, 0)) : 0.9;
        o.beta2 = betas ? json_number_value(json_array_get(betas, 1)) : 0.999;
    }
    if (o.kind == OPTIM_ADAGRAD || o.kind == OPTIM_FTRL)
        o.state_init[0] = (float)number_or(args, "initial_accumulator",
                                           o.kind == OPTIM_FTRL ? 0.1 : 0);
    if (check(&o, err) < 0)
        return -(int)err->code;
    o.states = states_of(&o);
    optim_begin(&o, 1, 1);
    *out = o;
    return 0;
}

/* By squaring, in plain multiplications: libm's pow has variants by processor. */
static double power(double x, uint64_t n)
{
    double r = 1;

    for (; n; n >>= 1, x *= x)
        if (n & 1)
            r *= x;
    return r;
}

void optim_begin(struct optim *o, uint64_t t, double lr_factor)
{
    double lr = o->lr * lr_factor;
    float *k = o->k;

    k[0] = (float)-lr;
    switch (o->kind) {
    case OPTIM_SGD:
        k[1] = (float)o->momentum;
        k[2] = (float)o->weight_decay;
        break;
    case OPTIM_ADAM:
    case OPTIM_ADAMW:
        k[0] = (float)-(lr / (1 - power(o->beta1, t)));
        k[1] = (float)(1 - o->beta1);
        k[2] = (float)o->beta2;
        k[3] = (float)(1 - o->beta2);
        k[4] = (float)sqrt(1 - power(o->beta2, t));
        k[5] = (float)o->eps;
        k[6] = (float)(o->kind == OPTIM_ADAM ? o->weight_decay : 1 - lr * o->weight_decay);
        break;
    case OPTIM_ADAGRAD:
        k[0] = (float)-(lr / (1 + (double)(t - 1) * o->lr_decay));
        k[1] = (float)o->eps;
        k[2] = (float)o->weight_decay;
        break;
    case OPTIM_RMSPROP:
        k[1] = (float)o->alpha;
        k[2] = (float)(1 - o->alpha);
        k[3] = (float)o->eps;
        k[4] = (float)o->momentum;
        k[5] = (float)o->weight_decay;
        break;
    case OPTIM_FTRL:
        /* A schedule may end at zero, where 1 / lr is infinite and the update would set every
         * weight to 0 or NaN. 0 here: the step changes nothing, as with the other optimizers. */
        k[1] = lr > 1e-30 ? (float)(1 / lr) : 0;
        k[2] = (float)o->l1;
        k[3] = (float)(2 * o->l2);
        k[4] = (float)-o->lr_power;
        break;
    case OPTIM_KINDS:
        break;
    }
}
