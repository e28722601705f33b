/* engine/graph.c - from the words of a spec to nodes with shapes */
#include "engine/graph.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/own.h"
#include "engine/graph_int.h"

OWN_DEFINE(graph)

static const char *const words[] = {
#define X(name, word) [OP_##name] = word,
    GRAPH_OPS(X)
#undef X
};

const char *graph_word(enum op op)
{
    return words[op];
}

void graph_free(struct graph *g)
{
    if (!g)
        return;
    free(g->node);
    free(g);
}

/* ------------------------------------------------------------------ arguments */

enum arg_kind { ARG_INT, ARG_PAIR, ARG_FLOAT };

/* What each op reads; a key that is absent has the default. */
struct arg {
    enum op op;
    const char *key;
    enum arg_kind kind;
    size_t at;                  /* in struct node */
    double otherwise;           /* < 0: it must be there */
};

#define AT(member) offsetof(struct node, member)
static const struct arg args_of[] = {
    { OP_CONV2D, "out", ARG_INT, AT(c), -1 },
    { OP_CONV2D, "kernel", ARG_PAIR, AT(kernel), -1 },
    { OP_CONV2D, "stride", ARG_PAIR, AT(stride), 1 },
    { OP_CONV2D, "padding", ARG_PAIR, AT(padding), 0 },
    { OP_CONV2D, "dilation", ARG_PAIR, AT(dilation), 1 },
    { OP_CONV2D, "groups", ARG_INT, AT(groups), 1 },
    { OP_CONV2D, "bias", ARG_INT, AT(bias), 1 },
    { OP_LINEAR, "out", ARG_INT, AT(c), -1 },
    { OP_LINEAR, "bias", ARG_INT, AT(bias), 1 },
    { OP_MAXPOOL, "kernel", ARG_PAIR, AT(kernel), -1 },
    { OP_MAXPOOL, "stride", ARG_PAIR, AT(stride), 0 },  /* 0: the kernel */
    { OP_MAXPOOL, "padding", ARG_PAIR, AT(padding), 0 },
    { OP_AVGPOOL, "kernel", ARG_PAIR, AT(kernel), -1 },
    { OP_AVGPOOL, "stride", ARG_PAIR, AT(stride), 0 },
    { OP_AVGPOOL, "padding", ARG_PAIR, AT(padding), 0 },
    { OP_BATCHNORM, "eps", ARG_FLOAT, AT(eps), 1e-5 },
    { OP_BATCHNORM, "momentum", ARG_FLOAT, AT(momentum), 0.1 },
    { OP_BATCHNORM, "per_shard", ARG_INT, AT(per_shard), 0 },
    { OP_LAYERNORM, "eps", ARG_FLOAT, AT(eps), 1e-5 },
    { OP_LEAKY_RELU, "slope", ARG_FLOAT, AT(slope), 0.01 },
    { OP_DROPOUT, "p", ARG_FLOAT, AT(p), 0.5 },
    { OP_EMBEDDING, "rows", ARG_INT, AT(rows), 0 },     /* 0: as many as the field has ids */
    { OP_EMBEDDING, "dim", ARG_INT, AT(dim), -1 },
};
#undef AT

enum { COUNT_MAX = 1 << 28, VALUES_MAX = 1 << 28 };     /* of rows and channels; of one sample */

static double number_of(const json_t *v)
{
    return json_is_boolean(v) ? json_is_true(v) : json_number_value(v);
}

/* A whole number that products of a few cannot overflow. */
static int count_of(const json_t *v, const char *key, int *out, struct err *err)
{
    double n = number_of(v);

    if (!(n >= 0 && n <= COUNT_MAX))
        return err_set(err, ERR_INVALID, "\"%s\" is %g, not from 0 to %d", key, n, COUNT_MAX);
    *out = (int)n;
    return 0;
}

static int read_arg(struct node *n, const struct arg *a, const json_t *args, struct err *err)
{
    const json_t *v = json_object_get(args, a->key);
    void *to = (char *)n + a->at;

    if (!v && a->otherwise < 0)
        return err_set(err, ERR_INVALID, "\"%s\" is missing", a->key);
    if (a->kind == ARG_FLOAT) {
        *(float *)to = (float)(v ? number_of(v) : a->otherwise);
        return 0;
    }
    for (int i = 0; i < (a->kind == ARG_PAIR ? 2 : 1); i++) {
        const json_t *e = json_is_array(v) ? json_array_get(v, (size_t)i) : v;
        ((int *)to)[i] = (int)a->otherwise;
        if (e && count_of(e, a->key, (int *)to + i, err) < 0)
            return -(int)err->code;
    }
    return 0;
}

static int read_args(struct node *n, const json_t *args, struct err *err)
{
    for (size_t i = 0; i < sizeof args_of / sizeof *args_of; i++)
        if (args_of[i].op == n->op && read_arg(n, &args_of[i], args, err) < 0)
            return -(int)err->code;
    for (int i = 0; i < 2; i++)
        if ((n->op == OP_MAXPOOL || n->op == OP_AVGPOOL) && n->stride[i] == 0)
            n->stride[i] = n->kernel[i];
    if (n->op == OP_GELU) {
        const char *form = json_string_value(json_object_get(args, "approximate"));
        if (!form)
            form = json_string_value(json_object_get(args, "form"));
        n->approximate = form && strcmp(form, "tanh") == 0;
    }
    return 0;
}

/* ------------------------------------------------------------------ shapes */

/* "16x4x4" as PyTorch orders it, or "256 values". */
static const char *shape_text(const struct node *n, char *out, size_t size)
{
    if (n->h * n->w == 1)
        snprintf(out, size, "%d values", n->c);
    else
        snprintf(out, size, "%dx%dx%d = %ld values", n->c, n->h, n->w, (long)n->h * n->w * n->c);
    return out;
}

static int check_size(const struct node *n, struct err *err)
{
    if ((double)n->h * n->w * n->c > VALUES_MAX)
        return err_set(err, ERR_INVALID, "gives %dx%dx%d values, more than %d", n->c, n->h, n->w,
                       VALUES_MAX);
    return 0;
}

static int like_input(struct builder *b, struct node *n, const struct node *in, struct err *err)
{
    (void)b, (void)err;
    n->h = in->h;
    n->w = in->w;
    n->c = in->c;
    n->flat_h = in->flat_h;
    n->flat_w = in->flat_w;
    return 0;
}

static int window_shape(struct builder *b, struct node *n, const struct node *in, struct err *err)
{
    const int size[2] = { in->h, in->w };
    int out[2];
    char got[64];

    (void)b;
    for (int i = 0; i < 2; i++) {
        int dilation = n->op == OP_CONV2D ? n->dilation[i] : 1;
        long span = (long)dilation * (n->kernel[i] - 1) + 1;
        long room = size[i] + 2L * n->padding[i] - span;
        if (n->kernel[i] < 1 || n->stride[i] < 1 || n->padding[i] < 0 || dilation < 1)
            return err_set(err, ERR_INVALID, "kernel, stride and dilation must be at least 1, "
                           "padding at least 0");
        if (room < 0)
            return err_set(err, ERR_INVALID, "got %s, which with padding %d is smaller than the "
                           "window of %ld", shape_text(in, got, sizeof got), n->padding[i], span);
        if (n->op != OP_CONV2D && 2 * n->padding[i] > n->kernel[i])
            return err_set(err, ERR_INVALID, "padding %d is more than half of the window of %d",
                           n->padding[i], n->kernel[i]);
        out[i] = (int)(room / n->stride[i]) + 1;
    }
    n->h = out[0];
    n->w = out[1];
    return 0;
}

static int conv_shape(struct builder *b, struct node *n, const struct node *in, struct err *err)
{
    if (n->c < 1 || n->groups < 1)
        return err_set(err, ERR_INVALID, "out and groups must be at least 1");
    if (in->c % n->groups || n->c % n->groups)
        return err_set(err, ERR_INVALID, "%d input and %d output channels do not divide into %d "
                       "groups", in->c, n->c, n->groups);
    return window_shape(b, n, in, err);
}

static int pool_shape(struct builder *b, struct node *n, const struct node *in, struct err *err)
{
    n->c = in->c;
    return window_shape(b, n, in, err);
}

static int linear_shape(struct builder *b, struct node *n, const struct node *in, struct err *err)
{
    char got[64];

    (void)b;
    if (in->h * in->w > 1)
        return err_set(err, ERR_INVALID, "got %s as an image (put a flatten before it)",
                       shape_text(in, got, sizeof got));
    if (n->c < 1)
        return err_set(err, ERR_INVALID, "out must be at least 1");
    n->h = n->w = 1;
    return 0;
}

/* Memory stays as it was when only linear layers read it; settle_flat decides. */
static int flatten_shape(struct builder *b, struct node *n, const struct node *in, struct err *err)
{
    (void)b, (void)err;
    n->h = n->w = 1;
    n->c = in->h * in->w * in->c;
    n->flat_h = in->h * in->flat_h;
    n->flat_w = in->w * in->flat_w;
    return 0;
}

static int dropout_shape(struct builder *b, struct node *n, const struct node *in, struct err *err)
{
    if (!(n->p >= 0 && n->p < 1))
        return err_set(err, ERR_INVALID, "p is %g, not within 0 and 1", (double)n->p);
    return like_input(b, n, in, err);
}

static int embedding_shape(struct builder *b, struct node *n, const struct node *in,
                           struct err *err)
{
    const struct field *f = &b->field[n->field];

    (void)in;
    if (n->rows == 0 && n->n_cross < 2)
        n->rows = f->ids;
    if (n->n_cross < 2 && n->rows < f->ids)
        return err_set(err, ERR_INVALID, "has %d rows, but \"%s\" has ids 0..%d", n->rows, f->name,
                       f->ids - 1);
    if (n->rows < 1 || n->dim < 1)
        return err_set(err, ERR_INVALID, "rows and dim must be at least 1");
    n->h = n->w = 1;
    n->c = n->dim;
    return 0;
}

static int join_shape(struct builder *b, struct node *n, const struct node *in, struct err *err)
{
    char one[64], two[64];

    like_input(b, n, in, err);
    n->flat_h = n->flat_w = 1;
    for (int i = 1; i < n->n_in; i++) {
        const struct node *other = &b->g->node[n->in[i]];
        bool fits = other->h == in->h && other->w == in->w &&
                    (n->op == OP_CONCAT || other->c == in->c);
        if (!fits)
            return err_set(err, ERR_INVALID, "\"%s\" has %s, but \"%s\" has %s", in->name,
                           shape_text(in, one, sizeof one), other->name,
                           shape_text(other, two, sizeof two));
        if (n->op == OP_CONCAT)
            n->c += other->c;
        if (check_size(n, err) < 0)
            return -(int)err->code;
    }
    return 0;
}

/* One row an op: how its parameters are called by default, and its shape. */
static const struct op_rule {
    const char *prefix;         /* NULL: it has no parameters */
    int (*shape)(struct builder *b, struct node *n, const struct node *in, struct err *err);
    bool elementwise;           /* does not care where in memory an element lies */
} rules[OP_COUNT] = {
    [OP_CONV2D] = { "conv", conv_shape, false },
    [OP_LINEAR] = { "fc", linear_shape, false },
    [OP_MAXPOOL] = { NULL, pool_shape, false },
    [OP_AVGPOOL] = { NULL, pool_shape, false },
    [OP_BATCHNORM] = { "bn", like_input, false },
    [OP_LAYERNORM] = { "ln", like_input, false },
    [OP_RELU] = { NULL, like_input, true },
    [OP_LEAKY_RELU] = { NULL, like_input, true },
    [OP_GELU] = { NULL, like_input, true },
    [OP_SIGMOID] = { NULL, like_input, true },
    [OP_TANH] = { NULL, like_input, true },
    [OP_SOFTMAX] = { NULL, like_input, false },
    [OP_LOG_SOFTMAX] = { NULL, like_input, false },
    [OP_DROPOUT] = { NULL, dropout_shape, true },
    [OP_EMBEDDING] = { "emb", embedding_shape, false },
    [OP_CONCAT] = { NULL, join_shape, false },
    [OP_ADD] = { NULL, join_shape, false },
    [OP_FLATTEN] = { NULL, flatten_shape, true },
    [OP_IDENTITY] = { NULL, like_input, true },
};

/* ------------------------------------------------------------------ nodes */

int builder_add(struct builder *b, enum op op, const int *in, int n_in, struct err *err)
{
    struct graph *g = b->g;

    if (n_in > NODE_IN_MAX)
        return err_set(err, ERR_INVALID, "%s: reads %d values, more than %d", b->path, n_in,
                       NODE_IN_MAX);
    if (g->n == b->room) {
        int room = b->room ? 2 * b->room : 16;
        struct node *node = realloc(g->node, (size_t)room * sizeof *node);
        if (!node)
            return err_set(err, ERR_NOMEM, "no memory for %d layers", room);
        g->node = node;
        b->room = room;
    }
    struct node *n = &g->node[g->n];
    *n = (struct node){ .op = op, .n_in = n_in, .flat_h = 1, .flat_w = 1, .field = -1 };
    for (int i = 0; i < n_in; i++)
        n->in[i] = in[i];
    return g->n++;
}

static int name_taken(const struct graph *g, int at, const char *name)
{
    for (int i = 0; i < at; i++)
        if (strcmp(g->node[i].name, name) == 0)
            return 1;
    return 0;
}

static int name_node(struct builder *b, int at, const json_t *args, const char *name,
                     struct err *err)
{
    struct node *n = &b->g->node[at];
    const char *asked = json_string_value(json_object_get(args, "name"));

    if (asked)
        name = asked;
    if (name && strlen(name) >= sizeof n->name)
        return err_set(err, ERR_INVALID, "the name \"%s\" is longer than %zu letters", name,
                       sizeof n->name - 1);
    if (name) {
        snprintf(n->name, sizeof n->name, "%s", name);
        if (name_taken(b->g, at, name))
            return err_set(err, ERR_INVALID, "the name \"%s\" is used twice", name);
    }
    while (!name) {     /* a number that a layer with a name of its own has not taken */
        const char *prefix = rules[n->op].prefix ? rules[n->op].prefix : words[n->op];
        snprintf(n->name, sizeof n->name, "%s%d", prefix, ++b->named[n->op]);
        if (!name_taken(b->g, at, n->name))
            break;
    }
    return 0;
}

int builder_fill(struct builder *b, int at, const json_t *args, const char *name, struct err *err)
{
    struct node *n = &b->g->node[at];
    const struct node *in = n->n_in ? &b->g->node[n->in[0]] : NULL;

    if (read_args(n, args, err) < 0 || name_node(b, at, args, name, err) < 0)
        return err_add(err, "%s", b->path);
    if (rules[n->op].shape(b, n, in, err) < 0 || check_size(n, err) < 0)
        return rules[n->op].prefix ? err_add(err, "%s %s", b->path, n->name)
                                   : err_add(err, "%s", b->path);
    return 0;
}

/* ------------------------------------------------------------------ fields */

int builder_field(const struct builder *b, const char *name)
{
    for (int i = 0; i < b->n_fields; i++)
        if (strcmp(b->field[i].name, name) == 0)
            return i;
    return -1;
}

int builder_is_feature(const struct builder *b, int field)
{
    return strcmp(b->field[field].name, "target") != 0 &&
           strcmp(b->field[field].name, "weight") != 0;
}

int builder_is_ids(const struct builder *b, int field)
{
    return b->field[field].type == DTYPE_I32 && builder_is_feature(b, field);
}

int builder_input(struct builder *b, int field, struct err *err)
{
    const struct field *f = &b->field[field];

    for (int i = 0; i < b->g->n; i++)
        if (b->g->node[i].op == OP_INPUT && b->g->node[i].field == field)
            return i;
    if (builder_is_ids(b, field))
        return err_set(err, ERR_INVALID, "%s: \"%s\" holds ids, which only an embedding reads",
                       b->path, f->name);
    int at = builder_add(b, OP_INPUT, NULL, 0, err);
    if (at < 0)
        return at;
    struct node *n = &b->g->node[at];
    snprintf(n->name, sizeof n->name, "%s", f->name);
    n->field = field;
    n->h = f->h > 0 ? f->h : 1;
    n->w = f->w > 0 ? f->w : 1;
    n->c = f->c;
    return at;
}

/* The embedding's field: what `of` names, or the only field of ids. */
static int embedding_field(const struct builder *b, const char *of, struct err *err)
{
    int only = -1, n = 0;

    if (of) {
        int field = builder_field(b, of);
        if (field < 0)
            return err_set(err, ERR_INVALID, "%s: the data has no feature \"%s\"", b->path, of);
        if (!builder_is_ids(b, field))
            return err_set(err, ERR_INVALID, "%s: \"%s\" holds no ids (make it a vocabulary, "
                           "identity, hash or bucketize feature)", b->path, of);
        return field;
    }
    for (int i = 0; i < b->n_fields; i++)
        if (builder_is_ids(b, i))
            only = i, n++;
    if (n == 1)
        return only;
    return err_set(err, ERR_INVALID, "%s: needs \"of\", the feature whose ids it reads", b->path);
}

/* ------------------------------------------------------------------ a layer in the spec */

static int op_of_word(const char *word)
{
    for (int i = 0; i < OP_COUNT; i++)
        if (i != OP_INPUT && strcmp(words[i], word) == 0)
            return i;
    return -1;
}

/* {"conv2d": {...}} or, in a graph, with "from" beside it: the op and its arguments. */
static int layer_op(struct builder *b, const json_t *item, const json_t **out_args, struct err *err)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)item, key, value) {
        int op = op_of_word(key);
        if (strcmp(key, "from") == 0)
            continue;
        if (op < 0)
            return err_set(err, ERR_INVALID, "%s: no layer is called \"%s\"", b->path, key);
        size_t used = strlen(b->path);
        snprintf(b->path + used, sizeof b->path - used, ".%s", key);
        *out_args = value;
        return op;
    }
    return err_set(err, ERR_INVALID, "%s: says no layer", b->path);
}

/* `from` is what a named node reads: it may say the field instead of "of". */
static int add_embedding(struct builder *b, const json_t *args, const char *from, const char *name,
                         struct err *err)
{
    const char *of = json_string_value(json_object_get(args, "of"));
    int field = embedding_field(b, of ? of : from, err);
    if (field < 0)
        return field;
    int at = builder_add(b, OP_EMBEDDING, NULL, 0, err);
    if (at < 0)
        return at;
    b->g->node[at].field = field;
    b->g->node[at].spread = 1;
    if (builder_fill(b, at, args, name, err) < 0)
        return -(int)err->code;
    return at;
}

/* ------------------------------------------------------------------ a list */

/* The field that the first layer reads. */
static int list_input(struct builder *b, struct err *err)
{
    int found = -1;

    snprintf(b->path, sizeof b->path, "model");
    for (int i = 0; i < b->n_fields; i++) {
        if (!builder_is_feature(b, i))
            continue;
        if (builder_is_ids(b, i))
            return err_set(err, ERR_INVALID, "model: a list reads one field of numbers, but \"%s\" "
                           "is categorical (use wide_and_deep, or nodes with an embedding of it)",
                           b->field[i].name);
        if (found >= 0)
            return err_set(err, ERR_INVALID, "model: a list reads one field, but the data has "
                           "\"%s\" and \"%s\" (use nodes)", b->field[found].name, b->field[i].name);
        found = i;
    }
    if (found < 0)
        return err_set(err, ERR_INVALID, "model: the data has no feature to read");
    return builder_input(b, found, err);
}

static int build_list(struct builder *b, const json_t *list, struct err *err)
{
    int last = -1;
    size_t n = json_array_size(list);

    if (n == 0)
        return err_set(err, ERR_INVALID, "model: has no layers");
    for (size_t i = 0; i < n; i++) {
        const json_t *args = NULL;
        snprintf(b->path, sizeof b->path, "model[%zu]", i);
        int op = layer_op(b, json_array_get(list, i), &args, err);
        if (op < 0)
            return op;
        if (op == OP_CONCAT || op == OP_ADD)
            return err_set(err, ERR_INVALID, "%s: needs several inputs (use nodes)", b->path);
        if (op == OP_EMBEDDING && i > 0)
            return err_set(err, ERR_INVALID, "%s: reads ids, so it can only come first (use nodes)",
                           b->path);
        if (op == OP_EMBEDDING) {
            last = add_embedding(b, args, NULL, NULL, err);
        } else {
            char path[sizeof b->path];
            memcpy(path, b->path, sizeof path);
            if (i == 0 && (last = list_input(b, err)) < 0)
                return last;
            memcpy(b->path, path, sizeof path);
            last = builder_add(b, (enum op)op, &last, 1, err);
            if (last >= 0 && builder_fill(b, last, args, NULL, err) < 0)
                return -(int)err->code;
        }
        if (last < 0)
            return last;
    }
    b->g->output = last;
    return 0;
}

/* ------------------------------------------------------------------ named nodes */

struct named {
    const char *name;
    const json_t *item;
    const char *from[NODE_IN_MAX];
    int n_from;
    int at;                     /* in the graph; -1: not yet */
};

static int named_find(const struct named *list, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(list[i].name, name) == 0)
            return i;
    return -1;
}

/* What a node reads: "from", or the node before it, or for the first the only field. */
static int read_from(struct named *list, int i, struct err *err)
{
    struct named *d = &list[i];
    const json_t *from = json_object_get(d->item, "from");

    if (json_is_string(from)) {
        d->from[d->n_from++] = json_string_value(from);
    } else if (json_is_array(from) && json_array_size(from) > 0) {
        if (json_array_size(from) > NODE_IN_MAX)
            return err_set(err, ERR_INVALID, "model.nodes.%s.from: names more than %d nodes",
                           d->name, NODE_IN_MAX);
        for (size_t k = 0; k < json_array_size(from); k++)
            d->from[d->n_from++] = json_string_value(json_array_get(from, k));
    } else if (!json_object_get(d->item, "embedding")) {
        d->from[d->n_from++] = i > 0 ? list[i - 1].name : "input";
    }
    for (int k = 0; k < d->n_from; k++)
        if (!d->from[k])
            return err_set(err, ERR_INVALID, "model.nodes.%s.from: is not a list of names", d->name);
    return 0;
}

/* The index of what `name` means to a node: another node, a field, or "input". -1: not built yet. */
static int resolve(struct builder *b, struct named *list, int n, const char *reader,
                   const char *name, struct err *err)
{
    int i = named_find(list, n, name);
    if (i >= 0)
        return list[i].at;
    snprintf(b->path, sizeof b->path, "model.nodes.%s.from", reader);
    int field = builder_field(b, name);
    if (field >= 0 && builder_is_feature(b, field))
        return builder_input(b, field, err);
    if (strcmp(name, "input") == 0)
        return list_input(b, err);
    return err_set(err, ERR_INVALID, "%s: there is no node or feature \"%s\"", b->path, name);
}

/* 1: built, 0: what it reads is not there yet. */
static int build_named(struct builder *b, struct named *list, int n, struct named *d,
                       struct err *err)
{
    int in[NODE_IN_MAX], n_in = d->n_from;
    const json_t *args = NULL;

    snprintf(b->path, sizeof b->path, "model.nodes.%s", d->name);
    int op = layer_op(b, d->item, &args, err);
    if (op < 0)
        return op;
    char path[sizeof b->path];
    memcpy(path, b->path, sizeof path);
    if (op == OP_EMBEDDING) {
        d->at = add_embedding(b, args, n_in == 1 ? d->from[0] : NULL, d->name, err);
        return d->at < 0 ? d->at : 1;
    }
    for (int k = 0; k < n_in; k++) {
        in[k] = resolve(b, list, n, d->name, d->from[k], err);
        if (in[k] < 0)
            return err->code ? -(int)err->code : 0;
    }
    memcpy(b->path, path, sizeof path);
    if (n_in != 1 && op != OP_CONCAT && op != OP_ADD)
        return err_set(err, ERR_INVALID, "%s: reads one node, not %d", b->path, n_in);
    int at = builder_add(b, (enum op)op, in, n_in, err);
    if (at < 0)
        return at;
    if (builder_fill(b, at, args, d->name, err) < 0)
        return -(int)err->code;
    d->at = at;
    return 1;
}

/* A node waits until what it reads is built; when no node can be built any more, the rest reads
 * itself in a circle. */
static int build_all(struct builder *b, struct named *list, int n, struct err *err)
{
    for (int built = 0, before = -1; built < n;) {
        if (built == before) {
            for (int i = 0; i < n; i++)
                if (list[i].at < 0)
                    return err_set(err, ERR_INVALID, "model.nodes.%s: reads its own output in a "
                                   "circle", list[i].name);
        }
        before = built;
        for (int i = 0; i < n; i++) {
            if (list[i].at >= 0)
                continue;
            int rc = build_named(b, list, n, &list[i], err);
            if (rc < 0)
                return rc;
            built += rc;
        }
    }
    return 0;
}

static int build_nodes(struct builder *b, const json_t *model, struct err *err)
{
    const json_t *nodes = json_object_get(model, "nodes");
    const char *output = json_string_value(json_object_get(model, "output"));
    size_t n = json_object_size(nodes);
    OWN_MEM struct named *list = calloc(n + 1, sizeof *list);
    const char *key;
    json_t *value;
    int i = 0;

    if (!list)
        return err_set(err, ERR_NOMEM, "no memory for %zu nodes", n);
    if (n == 0)
        return err_set(err, ERR_INVALID, "model.nodes: has no nodes");
    json_object_foreach((json_t *)nodes, key, value) {
        list[i] = (struct named){ .name = key, .item = value, .at = -1 };
        if (builder_field(b, key) >= 0)
            return err_set(err, ERR_INVALID, "model.nodes.%s: has the name of a field of the data",
                           key);
        if (read_from(list, i, err) < 0)
            return -(int)err->code;
        i++;
    }
    if (build_all(b, list, (int)n, err) < 0)
        return -(int)err->code;
    int last = output ? named_find(list, (int)n, output) : (int)n - 1;
    if (last < 0)
        return err_set(err, ERR_INVALID, "model.output: there is no node \"%s\"", output);
    b->g->output = list[last].at;
    return 0;
}

/* ------------------------------------------------------------------ the whole */

static int count_uses(struct graph *g, struct err *err)
{
    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < g->node[i].n_in; k++)
            g->node[g->node[i].in[k]].uses++;
    for (int i = 0; i < g->n; i++)
        if (g->node[i].uses == 0 && i != g->output)
            return err_set(err, ERR_INVALID, "model.nodes.%s: is read by no node and is not the "
                           "output", g->node[i].name);
    return 0;
}

/* A flattened image keeps its place in memory where linear layers alone read it, perhaps through
 * elementwise ops; everywhere else it is copied into PyTorch's order. */
static int settle_flat(struct graph *g, struct err *err)
{
    OWN_MEM int *moved = calloc((size_t)g->n, sizeof *moved);
    if (!moved)
        return err_set(err, ERR_NOMEM, "no memory for %d layers", g->n);
    moved[g->output] = 1;
    for (int i = g->n - 1; i >= 0; i--)         /* readers come after what they read */
        for (int k = 0; k < g->node[i].n_in; k++)
            if (rules[g->node[i].op].elementwise ? moved[i] : g->node[i].op != OP_LINEAR)
                moved[g->node[i].in[k]] = 1;
    for (int i = 0; i < g->n; i++) {
        struct node *n = &g->node[i];
        if (n->op != OP_FLATTEN && n->n_in && rules[n->op].elementwise && moved[n->in[0]])
            moved[i] = 1;
        if (moved[i])
            n->flat_h = n->flat_w = 1;
    }
    return 0;
}

static int check_output(const struct builder *b, struct err *err)
{
    const struct node *out = &b->g->node[b->g->output];
    int target = builder_field(b, "target");
    char got[64];

    if (out->h * out->w > 1)
        return err_set(err, ERR_INVALID, "model: ends with %s as an image (add flatten, linear)",
                       shape_text(out, got, sizeof got));
    if (b->classes > 0 && out->c != b->classes && !(b->classes == 2 && out->c == 1))
        return err_set(err, ERR_INVALID, "model: the last layer gives %d values, the data has %d "
                       "classes", out->c, b->classes);
    if (b->classes == 0 && target >= 0 && b->field[target].type == DTYPE_F32 &&
        out->c != b->field[target].c)
        return err_set(err, ERR_INVALID, "model: the last layer gives %d values, the target has %d",
                       out->c, b->field[target].c);
    return 0;
}

static int build_any(struct builder *b, const json_t *model, struct err *err)
{
    if (json_is_array(model))
        return build_list(b, model, err);
    if (json_object_get(model, "nodes"))
        return build_nodes(b, model, err);
    if (json_object_get(model, "wide_and_deep"))
        return wide_and_deep_build(b, json_object_get(model, "wide_and_deep"), err);
    return err_set(err, ERR_INVALID, "model: is neither a list, nor nodes, nor wide_and_deep");
}

/* Not inlined: where gcc 12 sees the graph's calloc and this in one function, at -O3 it takes
 * g->node for empty and drops what is written to it (tests/unit/graph_test.c notices). */
static __attribute__((noinline)) int finish(const struct builder *b, struct err *err)
{
    if (count_uses(b->g, err) < 0 || check_output(b, err) < 0 || settle_flat(b->g, err) < 0)
        return -(int)err->code;
    return 0;
}

int graph_build(const json_t *model, const struct field *fields, int n_fields, int classes,
                struct graph **out, struct err *err)
{
    OWN(graph) g = calloc(1, sizeof *g);
    struct builder b = { .g = g, .field = fields, .n_fields = n_fields, .classes = classes };

    if (!g)
        return err_set(err, ERR_NOMEM, "no memory for a model");
    err->code = ERR_OK;
    if (build_any(&b, model, err) < 0 || finish(&b, err) < 0)
        return -(int)err->code;
    *out = TAKE(g);
    return 0;
}
