/* engine/graph_wide.c - wide and deep: a linear model of ids and crosses, and a network, added
 *
 * wide (group 1): a weight for each id of each categorical feature and each cross of features (an
 * embedding as wide as the output, zero at first), and a linear layer on the numbers.
 * deep (group 0): the numbers and an embedding of each categorical feature side by side, then
 * hidden layers with relu, then a linear layer.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/graph_int.h"

enum { PARTS_MAX = NODE_IN_MAX };

struct parts {
    int at[PARTS_MAX], n;
};

static int part_add(struct builder *b, struct parts *p, int at, struct err *err)
{
    if (at < 0)
        return at;
    if (p->n == PARTS_MAX)
        return err_set(err, ERR_INVALID, "%s: more than %d features and crosses", b->path,
                       PARTS_MAX);
    p->at[p->n++] = at;
    return 0;
}

static int add_layer(struct builder *b, enum op op, const int *in, int n_in, int group,
                     const char *name, const json_t *args, struct err *err)
{
    int at = builder_add(b, op, in, n_in, err);
    if (at < 0)
        return at;
    b->g->node[at].group = group;
    if (builder_fill(b, at, args, name, err) < 0)
        return -(int)err->code;
    return at;
}

static int add_linear(struct builder *b, int in, int out, int group, const char *name,
                      struct err *err)
{
    json_t *args = json_pack("{s:i, s:b}", "out", out, "bias", 1);
    int at = add_layer(b, OP_LINEAR, &in, 1, group, name, args, err);
    json_decref(args);
    return at;
}

static int add_table(struct builder *b, const int *field, int n_fields, int rows, int dim,
                     int group, const char *name, struct err *err)
{
    int at = builder_add(b, OP_EMBEDDING, NULL, 0, err);
    if (at < 0)
        return at;
    struct node *n = &b->g->node[at];
    n->group = group;
    /* the wide part starts as nothing, the deep part as TensorFlow's embedding columns do */
    n->spread = group == 1 ? 0 : 1 / sqrtf((float)dim);
    n->field = field[0];
    n->n_cross = n_fields > 1 ? n_fields : 0;
    for (int i = 0; i < n->n_cross; i++)
        n->cross[i] = field[i];
    json_t *args = json_pack("{s:i, s:i}", "rows", rows, "dim", dim);
    int rc = builder_fill(b, at, args, name, err);
    json_decref(args);
    return rc < 0 ? rc : at;
}

/* One cross: the ids of its features, mixed to `rows` buckets. */
static int add_cross(struct builder *b, const json_t *names, int rows, int outputs, struct err *err)
{
    int field[NODE_CROSS_MAX], n = (int)json_array_size(names);
    char name[NODE_NAME];
    size_t used = (size_t)snprintf(name, sizeof name, "wide");

    if (n < 2 || n > NODE_CROSS_MAX)
        return err_set(err, ERR_INVALID, "%s.cross: crosses 2 to %d features, not %d", b->path,
                       NODE_CROSS_MAX, n);
    for (int i = 0; i < n; i++) {
        const char *of = json_string_value(json_array_get(names, (size_t)i));
        field[i] = of ? builder_field(b, of) : -1;
        if (field[i] < 0 || !builder_is_ids(b, field[i]))
            return err_set(err, ERR_INVALID, "%s.cross: \"%s\" is no categorical feature", b->path,
                           of ? of : "?");
        int more = snprintf(name + used, sizeof name - used, "%c%s", i ? '-' : '.', of);
        used += (size_t)more < sizeof name - used ? (size_t)more : sizeof name - used - 1;
    }
    return add_table(b, field, n, rows, outputs, 1, name, err);
}

static int build_wide(struct builder *b, const json_t *args, int outputs, struct parts *sum,
                      struct err *err)
{
    const json_t *cross = json_object_get(args, "cross");
    int buckets = (int)json_integer_value(json_object_get(args, "cross_buckets"));

    for (int i = 0; i < b->n_fields; i++) {
        char name[NODE_NAME + 8];
        int at;
        if (!builder_is_feature(b, i))
            continue;
        snprintf(name, sizeof name, "wide.%.*s", NODE_NAME - 8, b->field[i].name);
        if (builder_is_ids(b, i)) {
            at = add_table(b, &i, 1, 0, outputs, 1, name, err);
        } else {
            at = builder_input(b, i, err);
            if (at >= 0)
                at = add_linear(b, at, outputs, 1, name, err);
        }
        if (part_add(b, sum, at, err) < 0)
            return -(int)err->code;
    }
    for (size_t i = 0; i < json_array_size(cross); i++) {
        int at = add_cross(b, json_array_get(cross, i), buckets ? buckets : 1000, outputs, err);
        if (part_add(b, sum, at, err) < 0)
            return -(int)err->code;
    }
    return 0;
}

static int deep_input(struct builder *b, int dim, struct err *err)
{
    struct parts x = { .n = 0 };

    for (int i = 0; i < b->n_fields; i++) {
        char name[NODE_NAME + 8];
        if (!builder_is_feature(b, i))
            continue;
        snprintf(name, sizeof name, "deep.%.*s", NODE_NAME - 8, b->field[i].name);
        int at = builder_is_ids(b, i) ? add_table(b, &i, 1, 0, dim, 0, name, err)
                                      : builder_input(b, i, err);
        if (part_add(b, &x, at, err) < 0)
            return -(int)err->code;
    }
    if (x.n == 0)
        return err_set(err, ERR_INVALID, "%s: the data has no features", b->path);
    return x.n == 1 ? x.at[0] : add_layer(b, OP_CONCAT, x.at, x.n, 0, "deep.input", NULL, err);
}

static int build_deep(struct builder *b, const json_t *args, int outputs, struct err *err)
{
    const json_t *hidden = json_object_get(args, "hidden");
    double p = json_number_value(json_object_get(args, "dropout"));
    int dim = (int)json_integer_value(json_object_get(args, "embedding"));
    int at = deep_input(b, dim ? dim : 8, err);
    char name[NODE_NAME];

    for (size_t i = 0; at >= 0 && i < json_array_size(hidden); i++) {
        int out = (int)json_integer_value(json_array_get(hidden, i));
        snprintf(name, sizeof name, "deep.fc%zu", i + 1);
        at = add_linear(b, at, out, 0, name, err);
        if (at >= 0)
            at = add_layer(b, OP_RELU, &at, 1, 0, NULL, NULL, err);
        if (at >= 0 && p > 0) {
            json_t *drop = json_pack("{s:f}", "p", p);
            at = add_layer(b, OP_DROPOUT, &at, 1, 0, NULL, drop, err);
            json_decref(drop);
        }
    }
    return at < 0 ? at : add_linear(b, at, outputs, 0, "deep.out", err);
}

int wide_and_deep_build(struct builder *b, const json_t *args, struct err *err)
{
    struct parts sum = { .n = 0 };
    int target = builder_field(b, "target");
    int outputs = b->classes;

    snprintf(b->path, sizeof b->path, "model.wide_and_deep");
    if (outputs == 2)
        outputs = 1;            /* one score and bce_with_logits, as the estimators have it */
    if (outputs == 0)
        outputs = target >= 0 && b->field[target].type == DTYPE_F32 ? b->field[target].c : 1;
    if (build_wide(b, args, outputs, &sum, err) < 0)
        return -(int)err->code;
    if (part_add(b, &sum, build_deep(b, args, outputs, err), err) < 0)
        return -(int)err->code;
    int at = add_layer(b, OP_ADD, sum.at, sum.n, 0, "sum", NULL, err);
    if (at < 0)
        return at;
    b->g->output = at;
    return 0;
}
