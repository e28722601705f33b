/* pipelines/steps_ir.h - what a component of kfp 2 is told, and what it tells
 *
 * A component's command has placeholders that only its start can fill: {{$}} is all of its inputs and
 * outputs as JSON (the SDK's --executor_input), {{$.inputs.parameters['x']}} one of them. An artifact
 * is at the path that the SDK makes of its URI: gs://BUCKET/KEY is /gcs/BUCKET/KEY. A parameter that
 * it returns is a file below STEPS_IR_DIR; what it says of its artifacts (metadata, metrics) is the
 * file STEPS_IR_SAID.
 *
 * Threads: any; nothing is kept.
 */
#ifndef MUSTER_PIPELINES_STEPS_IR_H
#define MUSTER_PIPELINES_STEPS_IR_H

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"

#define STEPS_IR_DIR "/tmp/kfp_outputs"
#define STEPS_IR_SAID STEPS_IR_DIR "/executor_output.json"

/* Inputs whose names begin so are for the step's volumes; its program is not told of them. */
#define STEPS_IR_HIDDEN "platform:"

/* Which step of which run. All is borrowed. */
struct steps_ir {
    const char *project, *run, *workflow;       /* run: its id */
    const char *node, *task;    /* node: its id */
    const char *bucket;         /* of artifacts */
    double created;             /* the run */
};

/* Gives an order (run_graph_order) the paths of its artifacts and outputs and fills the placeholders
 * of its command, arguments and environment. What it changes is the order's own. ERR_INVALID: a
 * placeholder names nothing. An order whose step has no "executor" stays as it is. */
int steps_ir_fill(const struct steps_ir *of, json_t *order, struct err *err);

/* A parameter's file as a value of its type. ERR_INVALID. */
int steps_ir_value(const char *type, const char *text, size_t n, json_t **out, struct err *err);

/* Takes an output parameter's value from what the component said; false: it said nothing of it. */
bool steps_ir_said(const json_t *said, const json_t *output, json_t *parameters);

/* Adds to outputs.artifacts what the component said of them (`said`: the content of STEPS_IR_SAID,
 * may be NULL) and those that it left no file for: they are what is said of them. */
void steps_ir_artifacts(const struct steps_ir *of, const json_t *order, const json_t *said,
                        json_t *artifacts);

#endif
