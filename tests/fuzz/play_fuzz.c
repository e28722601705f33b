/* tests/fuzz/play_fuzz.c - any bytes as the text of a pipeline, which is then run to its end
 *
 * Leaves end well or badly as a number that follows from the bytes says, with outputs of all kinds.
 * As long as the run has not ended something can be done about it, and its log, folded again, gives
 * as many nodes and the same end.
 */
#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/json.h"
#include "pipelines/flow.h"
#include "pipelines/graph.h"

enum { EVENTS_MAX = 300, NODES_MAX = 5000 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

struct play {
    json_t *flow, *parameters, *events;
    struct run_graph *g;
    uint32_t dice;
    bool suspended;
};

static uint32_t throw(struct play *p, uint32_t n)
{
    p->dice = p->dice * 1664525 + 1013904223;
    return (p->dice >> 8) % n;
}

static int graph_of(const struct play *p, struct run_graph **out)
{
    const struct graph_run run = { .id = "id", .name = "wf", .project = "default",
                                   .parameters = p->parameters, .created = 1000 };
    struct err err = { 0 };
    int rc = run_graph_new(p->flow, &run, out, &err);

    assert(rc == 0 || err.text[0]);
    return rc;
}

static void apply(struct play *p, const char *type, json_t *body)
{
    struct err err = { 0 };
    double t = 1001 + (double)json_array_size(p->events);

    assert(body && run_graph_apply(p->g, type, body, t, &err) == 0);
    json_array_append_new(p->events, json_pack("[s, o, f]", type, body, t));
}

static json_t *outputs_of(struct play *p, const json_t *order)
{
    static const char *const values[] = { "", "1", "[1, \"a\", {\"b\": 2}]", "text", "[]", "true" };
    json_t *parameters = json_object(), *artifacts = json_object();
    const json_t *wanted = json_object_get(order, "outputs");
    size_t i;
    json_t *one;

    json_array_foreach(json_object_get(wanted, "parameters"), i, one)
        if (throw(p, 8))
            json_object_set_new(parameters, text_of(one, "name"), json_string(values[throw(p, 6)]));
    json_array_foreach(json_object_get(wanted, "artifacts"), i, one)
        if (throw(p, 8))
            json_object_set_new(artifacts, text_of(one, "name"), json_pack(
                "{s:s, s:s, s:i, s:b}", "uri", "gs://b/k", "sha256", "00", "size", 1, "dir", 0));
    return json_pack("{s:o, s:o, s:s}", "parameters", parameters, "artifacts", artifacts, "result",
                     values[throw(p, 6)]);
}

static void end_leaf(struct play *p, const struct node *n)
{
    static const char *const bad[] = { "Failed", "Error" };
    OWN_JSON json_t *order = NULL;
    struct err err = { 0 };
    const char *phase = throw(p, 6) ? "Succeeded" : bad[throw(p, 2)];

    if (run_graph_order(p->g, n, &order, &err) < 0)
        phase = "Error";
    apply(p, "node.ended", json_pack("{s:s, s:i, s:s, s:i, s:o}", "node", n->name, "attempt",
                                     n->attempt, "phase", phase, "code",
                                     strcmp(phase, "Succeeded") ? 3 : 0, "outputs",
                                     outputs_of(p, order)));
}

/* Does one thing; false: there is none to do. */
static bool go_on(struct play *p)
{
    const struct node *n;
    double at;

    if (throw(p, 60) == 0)
        apply(p, throw(p, 2) ? "run.terminate" : "run.deadline", json_object());
    if ((n = run_graph_unwanted(p->g))) {
        apply(p, "node.ended", json_pack("{s:s, s:i, s:s}", "node", n->name, "attempt", n->attempt,
                                         "phase", "Failed"));
        return true;
    }
    if ((n = run_graph_timed(p->g, &at)) && throw(p, 3) == 0) {
        apply(p, "node.deadline", json_pack("{s:s}", "node", n->name));
        return true;
    }
    if ((n = run_graph_next(p->g, &at))) {
        if (n->kind == NODE_SUSPEND)
            p->suspended = true;
        else
            end_leaf(p, n);
        return true;
    }
    if (!p->suspended)
        return false;
    p->suspended = false;
    apply(p, "node.resumed", json_object());
    return true;
}

static void replay(const struct play *p)
{
    OWN(run_graph) again = NULL;
    size_t i;
    json_t *e;

    assert(graph_of(p, &again) == 0);
    json_array_foreach(p->events, i, e) {
        struct err err = { 0 };
        assert(run_graph_apply(again, json_string_value(json_array_get(e, 0)), json_array_get(e, 1),
                               json_real_value(json_array_get(e, 2)), &err) == 0);
    }
    assert(run_graph_count(again) == run_graph_count(p->g));
    assert(run_graph_phase(again, NULL) == run_graph_phase(p->g, NULL));
}

static void run(struct play *p)
{
    OWN_JSON json_t *volumes = NULL;
    struct err err = { 0 };

    if (graph_of(p, &p->g) < 0)
        return;
    run_graph_volumes(p->g, &volumes, &err);
    while (run_graph_phase(p->g, NULL) == NODE_RUNNING && run_graph_count(p->g) < NODES_MAX &&
           json_array_size(p->events) < EVENTS_MAX)
        if (!go_on(p)) {
            assert(!"the run waits for nothing");
            break;
        }
    if (run_graph_count(p->g) < NODES_MAX)
        replay(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct play p = { .dice = (uint32_t)n };
    struct err err = { 0 };
    size_t i;
    json_t *input;

    if (flow_compile("p.yaml", (const char *)bytes, n, &p.flow, &err) < 0)
        return 0;
    for (size_t k = 0; k < n; k++)
        p.dice = p.dice * 31 + bytes[k];
    p.parameters = json_object();
    p.events = json_array();
    json_array_foreach(json_object_get(p.flow, "inputs"), i, input)
        if (!json_object_get(input, "default"))
            json_object_set_new(p.parameters, text_of(input, "name"), json_string("2"));
    run(&p);
    run_graph_free(p.g);
    json_decref(p.flow);
    json_decref(p.parameters);
    json_decref(p.events);
    return 0;
}
