/* tests/unit/play.c - a run of a pipeline, played event by event */
#include <string.h>

#include "tests/unit/play.h"

struct run_graph *graph_of(const struct play *p)
{
    struct err err = { 0 };
    struct graph_run run = { .id = "run-id", .name = "wf", .project = "proj",
                             .parameters = p->parameters, .configs = p->configs,
                             .created = PLAY_CREATED };
    struct run_graph *g = NULL;
    assert_ok(run_graph_new(p->flow, &run, &g, &err));
    return g;
}

void play_of(struct play *p, const char *dialect, const char *more, const char *templates,
                    const char *parameters)
{
    json_error_t why;
    OWN_BUF b = BUF_INIT;
    buf_printf(&b,
        "{\"dialect\": \"%s\", \"name\": \"t\", \"entry\": \"main\", %s%s \"templates\": "
               "{%s}}", dialect, more, *more ? "," : "", templates);
    p->flow = json_loads(b.data, 0, &why);
    p->events = json_array();
    p->t = PLAY_CREATED + 1;
    if (!p->flow)
        fail_msg("flow: %s at %d: %s", why.text, why.position, b.data);
    p->parameters = *parameters ? json_loads(parameters, 0, &why) : json_object();
    assert_non_null(p->parameters);
    p->g = graph_of(p);
}

void play_done(struct play *p)
{
    run_graph_free(p->g);
    json_decref(p->flow);
    json_decref(p->parameters);
    json_decref(p->events);
    json_decref(p->configs);
}

void apply(struct play *p, const char *type, json_t *body)
{
    struct err err = { 0 };
    p->t += 1;
    json_array_append_new(p->events, json_pack("{s:s, s:O, s:f}", "type", type, "body", body, "t",
                                               p->t));
    assert_ok(run_graph_apply(p->g, type, body, p->t, &err));
    json_decref(body);
}

const char *wanted(struct play *p)
{
    double at;
    size_t n = 0;
    const struct node *v;
    p->text[0] = '\0';
    while ((v = run_graph_next(p->g, &at)) && n < sizeof p->text)
        n += (size_t)snprintf(p->text + n, sizeof p->text - n, "%s%s", n ? " " : "", v->name);
    return p->text;
}

const char *unwanted(struct play *p)
{
    size_t n = 0;
    const struct node *v;
    p->text[0] = '\0';
    while ((v = run_graph_unwanted(p->g)) && n < sizeof p->text)
        n += (size_t)snprintf(p->text + n, sizeof p->text - n, "%s%s", n ? " " : "", v->name);
    return p->text;
}

const struct node *node(struct play *p, const char *name)
{
    const struct node *n = run_graph_find(p->g, name);
    if (!n)
        fail_msg("there is no node \"%s\"", name);
    return n;
}

void ends_with(struct play *p, const char *name, const char *phase, const char *outputs)
{
    json_t *out = json_loads(outputs, 0, NULL);
    assert_non_null(out);
    apply(p, "node.ended", json_pack("{s:s, s:i, s:s, s:o, s:i}", "node", name, "attempt",
                                     node(p, name)->attempt, "phase", phase, "outputs", out, "code",
                                     strcmp(phase, "Succeeded") ? 3 : 0));
}

void ends(struct play *p, const char *name)
{
    ends_with(p, name, "Succeeded", "{}");
}

void fails(struct play *p, const char *name)
{
    ends_with(p, name, "Failed", "{}");
}

const char *phase(struct play *p, const char *name)
{
    return node_phase_name(node(p, name)->phase);
}

const char *result(struct play *p)
{
    return node_phase_name(run_graph_phase(p->g, NULL));
}

const char *shown(struct play *p, const json_t *v)
{
    OWN_MEM char *text = v ? json_dumps(v, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY) : NULL;
    snprintf(p->text, sizeof p->text, "%s", text ? text : "none");
    return p->text;
}

const char *input(struct play *p, const char *name, const char *parameter)
{
    return shown(p, json_object_get(json_object_get(node(p, name)->inputs, "parameters"),
                                    parameter));
}

const char *output(struct play *p, const char *name, const char *parameter)
{
    return shown(p, json_object_get(json_object_get(node(p, name)->outputs, "parameters"),
                                    parameter));
}
