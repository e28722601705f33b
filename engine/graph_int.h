/* engine/graph_int.h - building a graph node by node; for graph*.c only */
#ifndef MUSTER_ENGINE_GRAPH_INT_H
#define MUSTER_ENGINE_GRAPH_INT_H

#include "engine/graph.h"

struct builder {
    struct graph *g;
    int room;                   /* nodes that fit in g->node */
    const struct field *field;
    int n_fields;
    int classes;
    int named[OP_COUNT];        /* how many of an op have a default name already */
    char path[200];             /* of the layer being built, for messages */
};

/* Appends a node that reads `in`; its shape is still to be set. Returns its index or -code. */
int builder_add(struct builder *b, enum op op, const int *in, int n_in, struct err *err);
/* Reads the op's arguments, names the node and works out its shape from what it reads. */
int builder_fill(struct builder *b, int at, const json_t *args, const char *name, struct err *err);
/* The input node of a field, made on first use. */
int builder_input(struct builder *b, int field, struct err *err);
int builder_field(const struct builder *b, const char *name);  /* index, or -1 */
/* The features: every field but target and weight. */
int builder_is_feature(const struct builder *b, int field);
int builder_is_ids(const struct builder *b, int field);

/* {"wide_and_deep": {...}}: the wide part is group 1, the deep part group 0. */
int wide_and_deep_build(struct builder *b, const json_t *args, struct err *err);

#endif
