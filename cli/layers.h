/* cli/layers.h - a model as a table for people */
#ifndef MUSTER_CLI_LAYERS_H
#define MUSTER_CLI_LAYERS_H

#include <stdio.h>

#include "engine/graph.h"
#include "engine/plan.h"

/* Layer, kind, output shape, parameters; the totals and the memory under it. */
void layers_print(const struct graph *g, const struct plan *p, FILE *to);

#endif
