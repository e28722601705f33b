/* tests/unit/play.h - a run of a pipeline, played event by event
 *
 * A flow document is written as JSON between the parentheses of J(...), which makes a text of it.
 * The functions fail the test where something is not as it should be.
 */
#ifndef MUSTER_TESTS_UNIT_PLAY_H
#define MUSTER_TESTS_UNIT_PLAY_H

#include "base/buf.h"
#include "pipelines/graph.h"
#include "tests/check.h"

#define J(...) #__VA_ARGS__
#define ONE J("one": {"step": {"image": "i", "command": ["true"], "args": [], "env": []}})

enum { PLAY_CREATED = 1535002969 };     /* 2018-08-23T05:42:49Z; each event is a second later */

struct play {
    json_t *flow, *parameters, *events, *configs;
    struct run_graph *g;
    double t;
    char text[4096];            /* of the function that last gave a text */
};

/* `more`: further keys of the flow document; `templates`: what is in "templates", with "main". */
void play_of(struct play *p, const char *dialect, const char *more, const char *templates,
             const char *parameters);
void play_done(struct play *p);
#define PLAY(p) __attribute__((cleanup(play_done))) struct play p = { 0 }

/* A new graph of the same run, without its events. Caller frees. */
struct run_graph *graph_of(const struct play *p);

void apply(struct play *p, const char *type, json_t *body);     /* takes the body */
void ends_with(struct play *p, const char *name, const char *phase, const char *outputs);
void ends(struct play *p, const char *name);
void fails(struct play *p, const char *name);           /* with code 3 */

/* Names of all leaves that are wanted now, or not any more, and were not asked for before. */
const char *wanted(struct play *p);
const char *unwanted(struct play *p);

const struct node *node(struct play *p, const char *name);
const char *phase(struct play *p, const char *name);
const char *result(struct play *p);                     /* phase of the run */
const char *shown(struct play *p, const json_t *v);     /* compact JSON, or "none" */
const char *input(struct play *p, const char *name, const char *parameter);
const char *output(struct play *p, const char *name, const char *parameter);

#endif
