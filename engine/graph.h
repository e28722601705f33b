/* engine/graph.h - a model as a list of operations
 *
 * Nodes are in topological order; node 0.. are inputs, one for each field of the data set that the
 * model reads. Shapes are of one sample, (H, W, C); a flat feature vector has h = w = 1 (after
 * `flatten` too: `flat_h`, `flat_w` then remember what was flattened, since memory stays channels
 * last while PyTorch's order is channels first).
 */
#ifndef MUSTER_ENGINE_GRAPH_H
#define MUSTER_ENGINE_GRAPH_H

#include <jansson.h>

#include "base/err.h"
#include "data/dataset.h"

/*     op           word in a spec */
#define GRAPH_OPS(X)            \
    X(INPUT,       "input")     \
    X(CONV2D,      "conv2d")    \
    X(LINEAR,      "linear")    \
    X(MAXPOOL,     "maxpool")   \
    X(AVGPOOL,     "avgpool")   \
    X(BATCHNORM,   "batchnorm") \
    X(LAYERNORM,   "layernorm") \
    X(RELU,        "relu")      \
    X(LEAKY_RELU,  "leaky_relu")\
    X(GELU,        "gelu")      \
    X(SIGMOID,     "sigmoid")   \
    X(TANH,        "tanh")      \
    X(SOFTMAX,     "softmax")   \
    X(LOG_SOFTMAX, "log_softmax") \
    X(DROPOUT,     "dropout")   \
    X(EMBEDDING,   "embedding") \
    X(CONCAT,      "concat")    \
    X(ADD,         "add")       \
    X(FLATTEN,     "flatten")   \
    X(IDENTITY,    "identity")

enum op {
#define X(name, word) OP_##name,
    GRAPH_OPS(X)
#undef X
    OP_COUNT
};

enum { NODE_IN_MAX = 64, NODE_NAME = 64, NODE_CROSS_MAX = 4 };

struct node {
    char name[NODE_NAME];       /* of its parameters: "conv1" owns conv1.weight */
    enum op op;
    int in[NODE_IN_MAX], n_in;
    int uses;                   /* how many nodes read it */
    int h, w, c;                /* of its output */
    int flat_h, flat_w;         /* FLATTEN and what follows elementwise: c = flat_h*flat_w*C; else 1 */
    int field;                  /* INPUT, EMBEDDING: index into the data set's fields */
    int group;                  /* optimizer: 0, or 1 for the wide part */
    /* what the op needs of these */
    int kernel[2], stride[2], padding[2], dilation[2], groups, bias;
    int rows, dim;              /* EMBEDDING */
    int cross[NODE_CROSS_MAX];  /* EMBEDDING of several fields: id = ((i0 * ids1 + i1) * ids2 ..) % rows */
    int n_cross;
    float spread;               /* EMBEDDING: deviation of the first weights; 0: zeros */
    int per_shard;              /* BATCHNORM */
    int approximate;            /* GELU by tanh */
    float eps, momentum, slope, p;
};

struct graph {
    struct node *node;
    int n;
    int output;                 /* the node whose value the loss sees */
};

/* `model` is the normalised model section. Errors begin with a path: "model[3].conv2d: ...", and
 * show both shapes where two do not fit. `classes` is what the target needs (0: regression,
 * as many outputs as the target has values; 1: one score, for bce_with_logits); a last layer of
 * another width is refused, but for 1 where there are 2 classes (bce_with_logits). wide_and_deep
 * gets its width from it: 1 for 2 classes. */
int graph_build(const json_t *model, const struct field *fields, int n_fields, int classes,
                struct graph **out, struct err *err);
void graph_free(struct graph *g);

const char *graph_word(enum op op);

#endif
