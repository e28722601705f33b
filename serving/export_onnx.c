/* serving/export_onnx.c - a model as an ONNX graph, opset 17
 *
 * A node of ours is one or a few ONNX nodes; its value is named vN, N its number. Parameters keep
 * their names. Drop-out is nothing at inference and left out.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/files.h"
#include "base/proto.h"
#include "serving/export.h"

enum { ONNX_IR = 8, ONNX_OPSET = 17 };
enum { ONNX_FLOAT = 1, ONNX_INT64 = 7 };
enum { ATTR_FLOAT = 1, ATTR_INT = 2, ATTR_INTS = 7 };

/* Field numbers of the messages that we write. */
enum { GRAPH_NODE = 1, GRAPH_NAME = 2, GRAPH_INITIALIZER = 5, GRAPH_INPUT = 11, GRAPH_OUTPUT = 12 };
enum { NODE_INPUT = 1, NODE_OUTPUT = 2, NODE_OP = 4, NODE_ATTR = 5 };

struct onnx {
    const struct plan *p;
    const struct graph *g;
    struct buf graph, node;
    int extra;                  /* counts values inside one of our nodes */
};

/* ------------------------------------------------------------------ pieces */

static const char *value_name(const struct onnx *o, int i, char *out, size_t size)
{
    const struct node *n = &o->g->node[i];

    while (n->op == OP_DROPOUT || n->op == OP_IDENTITY) {
        i = n->in[0];
        n = &o->g->node[i];
    }
    if (n->op == OP_INPUT)
        snprintf(out, size, "%s", o->p->field[n->field].name);
    else
        snprintf(out, size, "v%d", i);
    return out;
}

static void node_begin(struct onnx *o, const char *op)
{
    proto_text(&o->node, NODE_OP, op);
}
static void node_input(struct onnx *o, const char *name)
{
    proto_text(&o->node, NODE_INPUT, name);
}
static void node_end(struct onnx *o, const char *output)
{
    proto_text(&o->node, NODE_OUTPUT, output);
    proto_message(&o->graph, GRAPH_NODE, &o->node);
}

static void attr_int(struct onnx *o, const char *name, long value)
{
    OWN_BUF a = BUF_INIT;

    proto_text(&a, 1, name);
    proto_int(&a, 3, value);
    proto_int(&a, 20, ATTR_INT);
    proto_message(&o->node, NODE_ATTR, &a);
}

static void attr_float(struct onnx *o, const char *name, double value)
{
    OWN_BUF a = BUF_INIT;

    proto_text(&a, 1, name);
    proto_float(&a, 2, (float)value);
    proto_int(&a, 20, ATTR_FLOAT);
    proto_message(&o->node, NODE_ATTR, &a);
}

static void attr_ints(struct onnx *o, const char *name, const int *value, int n)
{
    OWN_BUF a = BUF_INIT;

    proto_text(&a, 1, name);
    for (int i = 0; i < n; i++)
        proto_int(&a, 8, value[i]);
    proto_int(&a, 20, ATTR_INTS);
    proto_message(&o->node, NODE_ATTR, &a);
}

/* A constant of the graph; returns its name. */
static const char *constant(struct onnx *o, const char *name, int nd, const long *dim,
                            const float *values, long count)
{
    OWN_BUF t = BUF_INIT;

    for (int i = 0; i < nd; i++)
        proto_int(&t, 1, dim[i]);
    proto_int(&t, 2, ONNX_FLOAT);
    proto_text(&t, 8, name);
    proto_bytes(&t, 9, values, (size_t)count * sizeof *values);
    proto_message(&o->graph, GRAPH_INITIALIZER, &t);
    return name;
}

static bool param_input(struct onnx *o, const struct node *n, const char *suffix)
{
    char name[PARAM_NAME];

    snprintf(name, sizeof name, "%s.%s", n->name, suffix);
    if (!plan_find(o->p, name))
        return false;
    node_input(o, name);
    return true;
}

/* name = op(a, b); b NULL: of one. Returns the name of the value, in `out`. */
static const char *small(struct onnx *o, const char *op, const char *a, const char *b, char *out,
                         size_t size)
{
    node_begin(o, op);
    node_input(o, a);
    if (b)
        node_input(o, b);
    snprintf(out, size, "t%d", o->extra++);
    node_end(o, out);
    return out;
}

static const char *scalar(struct onnx *o, float value, char *out, size_t size)
{
    snprintf(out, size, "k%d", o->extra++);
    return constant(o, out, 0, NULL, &value, 1);
}

/* ------------------------------------------------------------------ one op each */

typedef void (*emit_fn)(struct onnx *o, const struct node *n, const char *const *in,
                        const char *out);

static void emit_conv(struct onnx *o, const struct node *n, const char *const *in, const char *out)
{
    const int pads[4] = { n->padding[0], n->padding[1], n->padding[0], n->padding[1] };

    node_begin(o, "Conv");
    node_input(o, in[0]);
    param_input(o, n, "weight");
    param_input(o, n, "bias");
    attr_ints(o, "kernel_shape", n->kernel, 2);
    attr_ints(o, "strides", n->stride, 2);
    attr_ints(o, "pads", pads, 4);
    attr_ints(o, "dilations", n->dilation, 2);
    attr_int(o, "group", n->groups);
    node_end(o, out);
}

static void emit_pool(struct onnx *o, const struct node *n, const char *const *in, const char *out)
{
    const int pads[4] = { n->padding[0], n->padding[1], n->padding[0], n->padding[1] };

    node_begin(o, n->op == OP_MAXPOOL ? "MaxPool" : "AveragePool");
    node_input(o, in[0]);
    attr_ints(o, "kernel_shape", n->kernel, 2);
    attr_ints(o, "strides", n->stride, 2);
    attr_ints(o, "pads", pads, 4);
    if (n->op == OP_AVGPOOL)
        attr_int(o, "count_include_pad", 1);
    node_end(o, out);
}

static void emit_linear(struct onnx *o, const struct node *n, const char *const *in,
                        const char *out)
{
    node_begin(o, "Gemm");
    node_input(o, in[0]);
    param_input(o, n, "weight");
    param_input(o, n, "bias");
    attr_int(o, "transB", 1);
    node_end(o, out);
}

static void emit_batchnorm(struct onnx *o, const struct node *n, const char *const *in,
                           const char *out)
{
    node_begin(o, "BatchNormalization");
    node_input(o, in[0]);
    param_input(o, n, "weight");
    param_input(o, n, "bias");
    param_input(o, n, "running_mean");
    param_input(o, n, "running_var");
    attr_float(o, "epsilon", n->eps);
    node_end(o, out);
}

static void emit_layernorm(struct onnx *o, const struct node *n, const char *const *in,
                           const char *out)
{
    node_begin(o, "LayerNormalization");
    node_input(o, in[0]);
    param_input(o, n, "weight");
    param_input(o, n, "bias");
    attr_int(o, "axis", 1);
    attr_float(o, "epsilon", n->eps);
    node_end(o, out);
}

/* An op of the same meaning, with no more than one attribute. */
static void emit_same(struct onnx *o, const struct node *n, const char *const *in, const char *out)
{
    static const char *const names[OP_COUNT] = {
        [OP_RELU] = "Relu", [OP_LEAKY_RELU] = "LeakyRelu", [OP_SIGMOID] = "Sigmoid",
        [OP_TANH] = "Tanh", [OP_SOFTMAX] = "Softmax", [OP_LOG_SOFTMAX] = "LogSoftmax",
        [OP_CONCAT] = "Concat", [OP_ADD] = "Sum", [OP_FLATTEN] = "Flatten",
    };

    node_begin(o, names[n->op]);
    for (int i = 0; i < n->n_in; i++)
        node_input(o, in[i]);
    if (n->op == OP_LEAKY_RELU)
        attr_float(o, "alpha", n->slope);
    if (n->op == OP_SOFTMAX || n->op == OP_LOG_SOFTMAX || n->op == OP_CONCAT || n->op == OP_FLATTEN)
        attr_int(o, "axis", 1);
    node_end(o, out);
}

/* x/2 (1 + erf(x/sqrt 2)), or x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). */
static void emit_gelu(struct onnx *o, const struct node *n, const char *const *in, const char *out)
{
    char a[16], b[16], k[16];
    const char *x = in[0];

    if (n->approximate) {
        small(o, "Mul", x, x, a, sizeof a);
        small(o, "Mul", a, x, b, sizeof b);
        small(o, "Mul", b, scalar(o, 0.044715f, k, sizeof k), a, sizeof a);
        small(o, "Add", a, x, b, sizeof b);
        small(o, "Mul", b, scalar(o, (float)sqrt(2 / M_PI), k, sizeof k), a, sizeof a);
        small(o, "Tanh", a, NULL, b, sizeof b);
    } else {
        small(o, "Mul", x, scalar(o, (float)M_SQRT1_2, k, sizeof k), a, sizeof a);
        small(o, "Erf", a, NULL, b, sizeof b);
    }
    small(o, "Add", b, scalar(o, 1, k, sizeof k), a, sizeof a);
    small(o, "Mul", a, x, b, sizeof b);
    node_begin(o, "Mul");
    node_input(o, b);
    node_input(o, scalar(o, 0.5f, k, sizeof k));
    node_end(o, out);
}

static void emit_embedding(struct onnx *o, const struct node *n, const char *const *in,
                           const char *out)
{
    (void)in;
    node_begin(o, "Gather");
    param_input(o, n, "weight");
    node_input(o, n->n_cross ? n->name : o->p->field[n->field].name);
    node_end(o, out);
}

static const emit_fn emit[OP_COUNT] = {
    [OP_CONV2D] = emit_conv, [OP_LINEAR] = emit_linear, [OP_MAXPOOL] = emit_pool,
    [OP_AVGPOOL] = emit_pool, [OP_BATCHNORM] = emit_batchnorm, [OP_LAYERNORM] = emit_layernorm,
    [OP_RELU] = emit_same, [OP_LEAKY_RELU] = emit_same, [OP_GELU] = emit_gelu,
    [OP_SIGMOID] = emit_same, [OP_TANH] = emit_same, [OP_SOFTMAX] = emit_same,
    [OP_LOG_SOFTMAX] = emit_same, [OP_EMBEDDING] = emit_embedding, [OP_CONCAT] = emit_same,
    [OP_ADD] = emit_same, [OP_FLATTEN] = emit_same,
};

/* ------------------------------------------------------------------ the graph */

/* Inputs and outputs: the first dimension is the batch, "N". */
static void add_value(struct onnx *o, int field, const char *name, int type, int nd, const int *dim)
{
    OWN_BUF d = BUF_INIT, shape = BUF_INIT, tensor = BUF_INIT, t = BUF_INIT, value = BUF_INIT;

    proto_text(&d, 2, "N");
    proto_message(&shape, 1, &d);
    for (int i = 0; i < nd; i++) {
        proto_int(&d, 1, dim[i]);
        proto_message(&shape, 1, &d);
    }
    proto_int(&tensor, 1, type);
    proto_message(&tensor, 2, &shape);
    proto_message(&t, 1, &tensor);
    proto_text(&value, 1, name);
    proto_message(&value, 2, &t);
    proto_message(&o->graph, field, &value);
}

static void add_inputs(struct onnx *o)
{
    bool seen[FIELD_MAX] = { false };

    for (int i = 0; i < o->g->n; i++) {
        const struct node *n = &o->g->node[i];
        if (n->op == OP_EMBEDDING && n->n_cross) {
            add_value(o, GRAPH_INPUT, n->name, ONNX_INT64, 0, NULL);
        } else if (n->op == OP_EMBEDDING && !seen[n->field]) {
            seen[n->field] = true;
            add_value(o, GRAPH_INPUT, o->p->field[n->field].name, ONNX_INT64, 0, NULL);
        } else if (n->op == OP_INPUT && n->uses) {
            int dim[3] = { n->c, n->h, n->w };
            add_value(o, GRAPH_INPUT, o->p->field[n->field].name, ONNX_FLOAT,
                      n->h * n->w > 1 ? 3 : 1, dim);
        }
    }
}

static int add_params(struct onnx *o, struct err *err)
{
    for (int i = 0; i < o->p->n_params; i++) {
        const struct param *q = o->p->param[i];
        OWN_MEM float *values = malloc((size_t)q->count * sizeof *values + 1);
        if (!values)
            return err_set(err, ERR_NOMEM, "no memory for %s", q->name);
        plan_get(o->p, q, 0, values);
        constant(o, q->name, q->nd, q->dim, values, q->count);
    }
    return 0;
}

static void add_nodes(struct onnx *o)
{
    char name[NODE_IN_MAX][NODE_NAME], out[NODE_NAME];
    const char *in[NODE_IN_MAX];

    for (int i = 0; i < o->g->n; i++) {
        const struct node *n = &o->g->node[i];
        if (!emit[n->op])
            continue;
        for (int k = 0; k < n->n_in; k++)
            in[k] = value_name(o, n->in[k], name[k], sizeof name[k]);
        emit[n->op](o, n, in, value_name(o, i, out, sizeof out));
    }
}

/* The answer gets a name of its own. */
static void add_output(struct onnx *o)
{
    const struct node *n = &o->g->node[o->g->output];
    char name[NODE_NAME];
    int dim[3] = { n->c, n->h, n->w };

    node_begin(o, "Identity");
    node_input(o, value_name(o, o->g->output, name, sizeof name));
    node_end(o, "output");
    add_value(o, GRAPH_OUTPUT, "output", ONNX_FLOAT, n->h * n->w > 1 ? 3 : 1, dim);
}

int export_onnx(const struct plan *p, struct file_writer *to, struct err *err)
{
    OWN_BUF model = BUF_INIT, opset = BUF_INIT;
    struct onnx o = { .p = p, .g = p->graph, .graph = BUF_INIT, .node = BUF_INIT };

    int rc = add_params(&o, err);
    if (rc == 0) {
        add_nodes(&o);
        add_output(&o);
        add_inputs(&o);
        proto_text(&o.graph, GRAPH_NAME, "muster");
        proto_int(&model, 1, ONNX_IR);
        proto_text(&model, 2, "muster");
        proto_text(&model, 3, MUSTER_VERSION);
        proto_message(&model, 7, &o.graph);
        proto_text(&opset, 1, "");
        proto_int(&opset, 2, ONNX_OPSET);
        proto_message(&model, 8, &opset);
        rc = buf_ok(&model, err);
    }
    if (rc == 0)
        rc = file_writer_write(to, model.data, model.n, err);
    buf_done(&o.graph);
    buf_done(&o.node);
    return rc;
}
