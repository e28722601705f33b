/* tests/unit/run_graph_test.c - the graph of a run: what is wanted when, how it ends, and what it
 * costs. Each feature has a flow document of a few lines, written here as JSON. */
#include <math.h>
#include <string.h>

#include "base/buf.h"
#include "base/rng.h"
#include "pipelines/graph.h"
#include "tests/check.h"

#define J(...) #__VA_ARGS__
#define STEP J("step": {"image": "i", "command": ["true"], "args": [], "env": []})
#define ONE J("one": {"step": {"image": "i", "command": ["true"], "args": [], "env": []}})

struct play {
    json_t *flow, *parameters, *events;
    struct run_graph *g;
    double t;
    char text[4096];
};

static const struct graph_run run_of = { .id = "run-id", .name = "wf", .project = "proj",
                                         .created = 1535002969 };

static struct run_graph *graph_of(const struct play *p)
{
    struct err err = { 0 };
    struct graph_run run = run_of;
    struct run_graph *g = NULL;
    run.parameters = p->parameters;
    assert_ok(run_graph_new(p->flow, &run, &g, &err));
    return g;
}

/* `more`: further keys of the flow document; `templates`: what is in "templates". */
static void play_of(struct play *p, const char *dialect, const char *more, const char *templates,
                    const char *parameters)
{
    json_error_t why;
    OWN_BUF b = BUF_INIT;
    buf_printf(&b, "{\"dialect\": \"%s\", \"name\": \"t\", \"entry\": \"main\", %s%s \"templates\": "
               "{%s}}", dialect, more, *more ? "," : "", templates);
    *p = (struct play){ .flow = json_loads(b.data, 0, &why), .events = json_array(), .t = 1535002970 };
    if (!p->flow)
        fail_msg("flow: %s at %d: %s", why.text, why.position, b.data);
    p->parameters = *parameters ? json_loads(parameters, 0, &why) : json_object();
    assert_non_null(p->parameters);
    p->g = graph_of(p);
}

static void play_done(struct play *p)
{
    run_graph_free(p->g);
    json_decref(p->flow);
    json_decref(p->parameters);
    json_decref(p->events);
}

#define PLAY(p) __attribute__((cleanup(play_done))) struct play p

static void apply(struct play *p, const char *type, json_t *body)
{
    struct err err = { 0 };
    p->t += 1;
    json_array_append_new(p->events, json_pack("{s:s, s:O, s:f}", "type", type, "body", body, "t",
                                               p->t));
    assert_ok(run_graph_apply(p->g, type, body, p->t, &err));
    json_decref(body);
}

/* The names of all leaves that are wanted now and were not asked for before. */
static const char *wanted(struct play *p)
{
    double at;
    size_t n = 0;
    const struct node *v;
    p->text[0] = '\0';
    while ((v = run_graph_next(p->g, &at)) && n < sizeof p->text)
        n += (size_t)snprintf(p->text + n, sizeof p->text - n, "%s%s", n ? " " : "", v->name);
    return p->text;
}

static const struct node *node(struct play *p, const char *name)
{
    const struct node *n = run_graph_find(p->g, name);
    if (!n)
        fail_msg("there is no node \"%s\"", name);
    return n;
}

static void ends_with(struct play *p, const char *name, const char *phase, const char *outputs)
{
    json_t *out = json_loads(outputs, 0, NULL);
    assert_non_null(out);
    apply(p, "node.ended", json_pack("{s:s, s:i, s:s, s:o, s:i}", "node", name, "attempt",
                                     node(p, name)->attempt, "phase", phase, "outputs", out, "code",
                                     strcmp(phase, "Succeeded") ? 3 : 0));
}

static void ends(struct play *p, const char *name)
{
    ends_with(p, name, "Succeeded", "{}");
}

static void fails(struct play *p, const char *name)
{
    ends_with(p, name, "Failed", "{}");
}

static const char *phase(struct play *p, const char *name)
{
    return node_phase_name(node(p, name)->phase);
}

static const char *result(struct play *p)
{
    return node_phase_name(run_graph_phase(p->g, NULL));
}

static const char *shown(struct play *p, const json_t *v)
{
    OWN_MEM char *text = v ? json_dumps(v, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY) : NULL;
    snprintf(p->text, sizeof p->text, "%s", text ? text : "none");
    return p->text;
}

static const char *input(struct play *p, const char *name, const char *parameter)
{
    return shown(p, json_object_get(json_object_get(node(p, name)->inputs, "parameters"),
                                    parameter));
}

static const char *output(struct play *p, const char *name, const char *parameter)
{
    return shown(p, json_object_get(json_object_get(node(p, name)->outputs, "parameters"),
                                    parameter));
}

/* ------------------------------------------------------------ dags */

static void tasks_begin_when_all_before_them_ended(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "argo", "", ONE "," J("main": {"dag": {"tasks": [
        {"name": "a", "template": "one"}, {"name": "b", "template": "one", "after": ["a"]},
        {"name": "c", "template": "one", "after": ["a"]},
        {"name": "d", "template": "one", "after": ["b", "c"]}]}}), "");
    assert_string_equal(wanted(&p), "main.a");
    assert_string_equal(wanted(&p), "");
    ends(&p, "main.a");
    assert_string_equal(wanted(&p), "main.b main.c");
    ends(&p, "main.b");
    ends(&p, "main.b");
    assert_string_equal(wanted(&p), "");
    ends(&p, "main.c");
    assert_string_equal(wanted(&p), "main.d");
    assert_string_equal(result(&p), "Running");
    ends(&p, "main.d");
    assert_string_equal(result(&p), "Succeeded");
    assert_string_equal(run_graph_root(p.g)->id, "wf");
    assert_string_equal(node(&p, "main.a")->display, "a");
    assert_ptr_equal(run_graph_find(p.g, node(&p, "main.c")->id), node(&p, "main.c"));
    assert_int_equal(run_graph_root(p.g)->n_children, 4);
}

static void what_comes_after_a_failure_is_omitted(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "argo", "", ONE "," J("main": {"dag": {"fail_fast": false, "tasks": [
        {"name": "a", "template": "one"}, {"name": "b", "template": "one"},
        {"name": "c", "template": "one", "after": ["a", "b"]},
        {"name": "d", "template": "one", "after": ["b"]}]}}), "");
    assert_string_equal(wanted(&p), "main.a main.b");
    fails(&p, "main.a");
    assert_string_equal(phase(&p, "main.c"), "Omitted");
    ends(&p, "main.b");
    assert_string_equal(wanted(&p), "main.d");
    ends(&p, "main.d");
    assert_string_equal(result(&p), "Failed");
}

static void a_dag_that_fails_fast_begins_nothing_new(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "argo", "", ONE "," J("main": {"parallelism": 2, "dag": {"tasks": [
        {"name": "a", "template": "one"}, {"name": "b", "template": "one"},
        {"name": "c", "template": "one"}, {"name": "d", "template": "one", "after": ["b"]}]}}), "");
    assert_string_equal(wanted(&p), "main.a main.b");
    fails(&p, "main.a");
    assert_string_equal(phase(&p, "main.c"), "Omitted");
    assert_string_equal(phase(&p, "main.d"), "Omitted");
    assert_string_equal(result(&p), "Running");
    ends(&p, "main.b");
    assert_string_equal(result(&p), "Failed");
    assert_string_equal(wanted(&p), "");
}

static void continue_on_goes_on_after_a_failure(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "argo", "", ONE "," J("main": {"dag": {"tasks": [
        {"name": "a", "template": "one", "continue_on": {"failed": true}},
        {"name": "b", "template": "one", "after": ["a"]},
        {"name": "c", "template": "one", "continue_on": {"error": true}}]}}), "");
    wanted(&p);
    fails(&p, "main.a");
    assert_string_equal(wanted(&p), "main.b");
    ends(&p, "main.b");
    ends_with(&p, "main.c", "Error", "{}");
    assert_string_equal(result(&p), "Succeeded");
}

static void depends_chooses_by_result(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "argo", "", ONE "," J("main": {"dag": {"tasks": [
        {"name": "a-1", "template": "one"},
        {"name": "ok", "template": "one", "after": ["a-1"], "depends": "a-1.Succeeded"},
        {"name": "bad", "template": "one", "after": ["a-1"], "depends": "a-1.Failed || a-1.Errored"},
        {"name": "end", "template": "one", "after": ["ok", "bad"],
         "depends": "(ok.Omitted || ok) && bad"}]}}), "");
    wanted(&p);
    fails(&p, "main.a-1");
    assert_string_equal(wanted(&p), "main.bad");
    assert_string_equal(phase(&p, "main.ok"), "Omitted");
    ends(&p, "main.bad");
    assert_string_equal(wanted(&p), "main.end");
    ends(&p, "main.end");
    assert_string_equal(result(&p), "Succeeded");       /* the failure was taken care of */
}

static void a_skipped_task_counts_as_done(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "argo", "", J("flip": {"outputs": {"parameters": []}, "step": {"image": "i"}}) ","
            ONE "," J("main": {"dag": {"tasks": [
        {"name": "flip", "template": "flip"},
        {"name": "h", "template": "one", "after": ["flip"], "when": "{{tasks.flip.outputs.result}} == heads"},
        {"name": "t", "template": "one", "after": ["flip"], "when": "{{tasks.flip.outputs.result}} == tails"},
        {"name": "x", "template": "one", "after": ["flip"], "when": "{{tasks.gone.outputs.result}} == 1",
         "continue_on": {"error": true}},
        {"name": "end", "template": "one", "after": ["h", "t"]}]}}), "");
    wanted(&p);
    ends_with(&p, "main.flip", "Succeeded", J({"result": "tails"}));
    assert_string_equal(wanted(&p), "main.t");
    assert_string_equal(phase(&p, "main.h"), "Skipped");
    assert_string_equal(node(&p, "main.h")->message,
                        "when '{{tasks.flip.outputs.result}} == heads' evaluated false");
    assert_string_equal(phase(&p, "main.x"), "Error");
    ends(&p, "main.t");
    assert_string_equal(wanted(&p), "main.end");
    ends(&p, "main.end");
    assert_string_equal(result(&p), "Succeeded");
}

static void steps_come_in_groups(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "argo", "", ONE "," J("main": {"dag": {"style": "steps", "tasks": [
        {"name": "a", "template": "one"}, {"name": "b", "template": "one"},
        {"name": "c", "template": "one", "after": ["a", "b"]}]}}), "");
    assert_string_equal(wanted(&p), "main[0].a main[0].b");
    ends(&p, "main[0].a");
    assert_string_equal(phase(&p, "main[0]"), "Running");
    ends(&p, "main[0].b");
    assert_string_equal(phase(&p, "main[0]"), "Succeeded");
    assert_string_equal(wanted(&p), "main[1].c");
    ends(&p, "main[1].c");
    assert_string_equal(result(&p), "Succeeded");
    assert_int_equal(node(&p, "main")->kind, NODE_STEPS);
    assert_string_equal(node(&p, "main[1].c")->display, "c");
}

/* ------------------------------------------------------------ values */

#define PRINT J("print": {"inputs": {"parameters": [{"name": "m"}, {"name": "n", "default": "dflt"}]}, \
    "step": {"image": {"text": "img:{{inputs.parameters.n}}"}, "command": ["echo"],                    \
             "args": [{"text": "{{inputs.parameters.m}}"}, "{{not a tag}}"],                            \
             "env": [{"name": "E", "value": {"text": "{{workflow.name}}/{{pod.name}}"}}]}})

static void values_pass_from_task_to_task(void **state)
{
    PLAY(p);
    struct err err = { 0 };
    OWN_JSON json_t *order = NULL;
    (void)state;
    play_of(&p, "argo", J("inputs": [{"name": "who", "type": "STRING", "default": "me"},
                                     {"name": "n", "type": "STRING"}]),
            J("gen": {"outputs": {"parameters": [{"name": "x", "path": "/tmp/x"}],
                                  "artifacts": [{"name": "art", "path": "/tmp/a"}]}, "step": {"image": "i"}}) ","
            PRINT "," J("use": {"inputs": {"artifacts": [{"name": "in", "path": "/in"},
                {"name": "maybe", "path": "/m", "optional": true}, {"name": "raw", "path": "/r", "raw": "text"}]},
                "step": {"image": "i", "args": [{"text": "{{inputs.artifacts.in.path}}"}]}}) ","
            J("main": {"inputs": {"parameters": [{"name": "n"}]}, "outputs": {"parameters": [
                {"name": "got", "value": {"text": "{{tasks.gen.outputs.parameters.x}}"}},
                {"name": "either", "first": [{"task": "skip", "output": "x"}, {"task": "gen", "output": "x"}]},
                {"name": "none", "value": {"text": "{{tasks.skip.outputs.parameters.x}}"}, "default": "d"}],
                "artifacts": [{"name": "art", "value": {"text": "{{tasks.gen.outputs.artifacts.art}}"}}]},
            "dag": {"tasks": [
            {"name": "gen", "template": "gen"}, {"name": "skip", "template": "gen", "when": "false"},
            {"name": "p", "template": "print", "after": ["gen"], "parameters": {
                "m": {"text": "{{tasks.gen.outputs.parameters.x}}-{{workflow.parameters.who}}-{{=asInt(inputs.parameters.n) + 1}}"}}},
            {"name": "q", "template": "print", "after": ["skip"], "parameters": {
                "n": {"text": "{{tasks.skip.outputs.parameters.x}}"}, "m": {"json": 5}}},
            {"name": "r", "template": "print", "after": ["skip"], "continue_on": {"error": true},
             "parameters": {"m": {"text": "{{tasks.skip.outputs.parameters.x}}"}}},
            {"name": "u", "template": "use", "after": ["gen"], "artifacts": {
                "in": {"text": "{{tasks.gen.outputs.artifacts.art}}"}}}]}}), J({"n": 41}));
    wanted(&p);
    ends_with(&p, "main.gen", "Succeeded", J({"parameters": {"x": "X"},
                                              "artifacts": {"art": {"uri": "gs://b/k", "size": 1}}}));
    assert_string_equal(input(&p, "main.p", "m"), "\"X-me-42\"");
    assert_string_equal(input(&p, "main.p", "n"), "\"dflt\"");
    assert_string_equal(input(&p, "main.q", "n"), "\"dflt\"");  /* the argument is absent */
    assert_string_equal(input(&p, "main.q", "m"), "\"5\"");
    assert_string_equal(phase(&p, "main.r"), "Error");
    assert_non_null(strstr(node(&p, "main.r")->message, "no default"));
    assert_ok(run_graph_order(p.g, node(&p, "main.p"), &order, &err));
    assert_string_equal(shown(&p, json_object_get(order, "step")),
        "{\"args\":[\"X-me-42\",\"{{not a tag}}\"],\"command\":[\"echo\"],\"env\":[{\"name\":\"E\","
        "\"value\":\"wf/wf-12271247354192543814\"}],\"image\":\"img:dflt\"}");
    json_decref(TAKE(order));
    assert_ok(run_graph_order(p.g, node(&p, "main.u"), &order, &err));
    assert_string_equal(shown(&p, json_object_get(order, "inputs")),
        "{\"artifacts\":[{\"name\":\"in\",\"path\":\"/in\",\"value\":{\"size\":1,\"uri\":\"gs://b/k\"}},"
        "{\"name\":\"raw\",\"path\":\"/r\",\"value\":{\"raw\":\"text\"}}],\"parameters\":[]}");
    ends(&p, "main.p");
    ends(&p, "main.q");
    ends(&p, "main.u");
    assert_string_equal(result(&p), "Succeeded");
    assert_string_equal(output(&p, "main", "got"), "\"X\"");
    assert_string_equal(output(&p, "main", "either"), "\"X\"");
    assert_string_equal(output(&p, "main", "none"), "\"d\"");
    assert_string_equal(shown(&p, json_object_get(run_graph_outputs(p.g), "artifacts")),
                        "{\"art\":{\"size\":1,\"uri\":\"gs://b/k\"}}");
}

static void names_of_the_run_and_its_tasks_are_known(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "argo", J("labels": {"l": "L-{{workflow.name}}"}, "inputs": [{"name": "a", "default": "1"}]),
            ONE "," PRINT "," J("main": {"dag": {"tasks": [{"name": "a", "template": "one"},
            {"name": "p", "template": "print", "after": ["a"], "parameters": {"m": {"text":
             "{{workflow.uid}} {{workflow.namespace}} {{workflow.creationTimestamp}} {{workflow.creationTimestamp.Y}} {{workflow.labels.l}} {{workflow.parameters}} {{tasks.a.status}} {{tasks.a.exitCode}} {{tasks.a.startedAt}} {{workflow.mainEntrypoint}}"}}}]}}), "");
    wanted(&p);
    ends(&p, "main.a");
    assert_string_equal(input(&p, "main.p", "m"),
        "\"run-id proj 2018-08-23T05:42:49Z 2018 L-wf [{\\\"name\\\":\\\"a\\\",\\\"value\\\":\\\"1\\\"}] "
        "Succeeded 0 2018-08-23T05:42:51Z main\"");
}

/* ------------------------------------------------------------ loops */

static void loops_run_over_items_and_gather_outputs(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "argo", "", PRINT "," J("main": {"dag": {"tasks": [
        {"name": "l", "template": "print", "parameters": {"m": {"text": "{{item}}!"}},
         "loop": {"items": {"json": ["a", 2, {"k": "v", "b": 1}, [1]]}}},
        {"name": "m", "template": "print", "parameters": {"m": {"text": "{{item.k}}"}},
         "loop": {"items": [{"k": "x"}, {"k": "y"}]}, "when": "{{item.k}} == y"},
        {"name": "all", "template": "print", "after": ["l", "m"],
         "parameters": {"m": {"text": "{{tasks.l.outputs.parameters.o}}"}, "n": {"text": "{{tasks.l.outputs.result}}"}}},
        {"name": "each", "template": "print", "after": ["l"], "loop": {"items": {"text": "{{tasks.l.outputs.result}}"}},
         "parameters": {"m": {"text": "{{item}}"}}}]}}), "");
    assert_string_equal(wanted(&p), "main.l(0:a) main.l(1:2) main.l(2:b:1,k:v) main.l(3:[1]) main.m(1:k:y)");
    assert_string_equal(phase(&p, "main.m(0:k:x)"), "Skipped");
    assert_string_equal(input(&p, "main.l(2:b:1,k:v)", "m"), "\"{\\\"b\\\":1,\\\"k\\\":\\\"v\\\"}!\"");
    assert_string_equal(node(&p, "main.l(0:a)")->display, "l(0:a)");
    assert_string_equal(node(&p, "main.l(0:a)")->parent->name, "main.l");
    ends_with(&p, "main.l(1:2)", "Succeeded", J({"parameters": {"o": "two"}, "result": "2"}));
    ends_with(&p, "main.l(0:a)", "Succeeded", J({"parameters": {"o": "one"}, "result": "one"}));
    ends_with(&p, "main.l(3:[1])", "Succeeded", J({"parameters": {"o": "4"}, "result": "4"}));
    ends_with(&p, "main.l(2:b:1,k:v)", "Succeeded", J({"parameters": {"o": "3"}, "result": "{\"q\":1}"}));
    ends(&p, "main.m(1:k:y)");
    assert_string_equal(input(&p, "main.all", "m"), "\"[\\\"one\\\",\\\"two\\\",\\\"3\\\",\\\"4\\\"]\"");
    assert_string_equal(input(&p, "main.all", "n"), "\"[\\\"one\\\",2,{\\\"q\\\":1},4]\"");
    assert_string_equal(wanted(&p), "main.each(0:one) main.each(1:2) main.each(2:q:1) main.each(3:4) main.all");
}

static void sequences_count_up_and_down(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "argo", J("inputs": [{"name": "n", "default": "3"}]), PRINT "," J("main": {"dag": {"tasks": [
        {"name": "a", "template": "print", "parameters": {"m": {"text": "{{item}}"}},
         "loop": {"sequence": {"count": {"text": "{{workflow.parameters.n}}"}, "format": "u%02X"}}},
        {"name": "b", "template": "print", "parameters": {"m": {"text": "{{item}}"}},
         "loop": {"sequence": {"start": "2", "end": {"json": "0"}}}},
        {"name": "none", "template": "print", "loop": {"sequence": {"count": "0"}}},
        {"name": "bad", "template": "print", "loop": {"sequence": {"count": "x"}}, "continue_on": {"error": true}},
        {"name": "huge", "template": "print", "loop": {"sequence": {"count": "1000000000"}}, "continue_on": {"error": true}},
        {"name": "fmt", "template": "print", "loop": {"sequence": {"count": "1", "format": "%s%n"}}, "continue_on": {"error": true}}
        ]}}), "");
    assert_string_equal(wanted(&p), "main.a(0:u00) main.a(1:u01) main.a(2:u02) main.b(0:2) main.b(1:1) main.b(2:0)");
    assert_string_equal(phase(&p, "main.none"), "Skipped");
    assert_string_equal(phase(&p, "main.bad"), "Error");
    assert_string_equal(phase(&p, "main.huge"), "Error");
    assert_string_equal(phase(&p, "main.fmt"), "Error");
}

static void nested_loops_and_dags_end_as_a_whole(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "argo", "", PRINT "," J("inner": {"inputs": {"parameters": [{"name": "o"}]},
        "outputs": {"parameters": [{"name": "all", "value": {"text": "{{tasks.in.outputs.parameters.r}}"}}]},
        "dag": {"tasks": [{"name": "in", "template": "print", "loop": {"items": ["x", "y"]},
            "parameters": {"m": {"text": "{{inputs.parameters.o}}{{item}}"}}}]}}) ","
        J("main": {"dag": {"tasks": [
        {"name": "out", "template": "inner", "loop": {"items": ["1", "2"]}, "parameters": {"o": {"text": "{{item}}"}}},
        {"name": "end", "template": "print", "after": ["out"],
         "parameters": {"m": {"text": "{{tasks.out.outputs.parameters.all}}"}}}]}}), "");
    assert_string_equal(wanted(&p), "main.out(0:1).in(0:x) main.out(0:1).in(1:y) "
                                    "main.out(1:2).in(0:x) main.out(1:2).in(1:y)");
    assert_string_equal(input(&p, "main.out(1:2).in(0:x)", "m"), "\"2x\"");
    ends_with(&p, "main.out(0:1).in(0:x)", "Succeeded", J({"parameters": {"r": "a"}}));
    ends_with(&p, "main.out(0:1).in(1:y)", "Succeeded", J({"parameters": {"r": "b"}}));
    assert_string_equal(phase(&p, "main.out(0:1)"), "Succeeded");
    assert_string_equal(phase(&p, "main.out"), "Running");
    ends_with(&p, "main.out(1:2).in(0:x)", "Succeeded", J({"parameters": {"r": "c"}}));
    ends_with(&p, "main.out(1:2).in(1:y)", "Succeeded", J({"parameters": {"r": "d"}}));
    assert_string_equal(input(&p, "main.end", "m"), "\"[[\\\"a\\\",\\\"b\\\"],[\\\"c\\\",\\\"d\\\"]]\"");
}

static void a_loop_fails_when_all_have_ended(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "argo", "", ONE "," J("main": {"dag": {"tasks": [
        {"name": "l", "template": "one", "loop": {"items": ["a", "b"]}},
        {"name": "any", "template": "one", "after": ["l"], "depends": "l.AnySucceeded"},
        {"name": "all", "template": "one", "after": ["l"], "depends": "l.AllFailed"}]}}), "");
    wanted(&p);
    fails(&p, "main.l(0:a)");
    assert_string_equal(phase(&p, "main.l"), "Running");
    ends(&p, "main.l(1:b)");
    assert_string_equal(phase(&p, "main.l"), "Failed");
    assert_string_equal(wanted(&p), "main.any");
    assert_string_equal(phase(&p, "main.all"), "Omitted");
}

static void parallelism_of_run_template_and_loop_is_kept(void **state)
{
    (void)state;
    {
        PLAY(p);
        play_of(&p, "argo", J("parallelism": 2), ONE "," J("main": {"dag": {"tasks": [
            {"name": "l", "template": "one", "loop": {"items": ["a", "b", "c"]}}, {"name": "x", "template": "one"}]}}), "");
        assert_string_equal(wanted(&p), "main.l(0:a) main.l(1:b)");
        ends(&p, "main.l(1:b)");
        assert_string_equal(wanted(&p), "main.l(2:c)");
        ends(&p, "main.l(0:a)");
        assert_string_equal(wanted(&p), "main.x");
    }
    {
        PLAY(p);
        play_of(&p, "argo", "", ONE "," J("main": {"parallelism": 2, "dag": {"tasks": [
            {"name": "l", "template": "one", "loop": {"items": ["a", "b", "c"]}}, {"name": "x", "template": "one"},
            {"name": "s", "template": "one", "when": "false"}, {"name": "y", "template": "one"}]}}), "");
        assert_string_equal(wanted(&p), "main.l(0:a) main.l(1:b)");
        ends(&p, "main.l(0:a)");
        assert_string_equal(wanted(&p), "main.l(2:c)");
        ends(&p, "main.l(1:b)");
        ends(&p, "main.l(2:c)");
        assert_string_equal(wanted(&p), "main.x main.y");
        ends(&p, "main.x");
        ends(&p, "main.y");
        assert_string_equal(result(&p), "Succeeded");
    }
    {
        PLAY(p);
        play_of(&p, "ir", "", ONE "," J("main": {"dag": {"tasks": [
            {"name": "l", "template": "one", "loop": {"items": {"json": [1, 2, 3]}, "parallelism": 1}}]}}), "");
        assert_string_equal(wanted(&p), "main.l(0:1)");
        ends(&p, "main.l(0:1)");
        assert_string_equal(wanted(&p), "main.l(1:2)");
        ends(&p, "main.l(1:2)");
        ends(&p, "main.l(2:3)");
        assert_string_equal(result(&p), "Succeeded");
    }
}

static void templates_call_themselves_until_a_when_ends_it(void **state)
{
    (void)state;
    static const char *flip = J("flip": {"step": {"image": "i"}}, "main": {"dag": {"tasks": [
        {"name": "f", "template": "flip"},
        {"name": "again", "template": "main", "after": ["f"], "when": "{{tasks.f.outputs.result}} == t"}]}});
    PLAY(p);
    play_of(&p, "argo", "", flip, "");
    assert_string_equal(wanted(&p), "main.f");
    ends_with(&p, "main.f", "Succeeded", J({"result": "t"}));
    assert_string_equal(wanted(&p), "main.again.f");
    ends_with(&p, "main.again.f", "Succeeded", J({"result": "h"}));
    assert_string_equal(result(&p), "Succeeded");

    PLAY(q);
    play_of(&q, "argo", "", J("main": {"dag": {"tasks": [{"name": "m", "template": "main"}]}}), "");
    assert_string_equal(result(&q), "Error");
}

/* ------------------------------------------------------------ attempts */

static void a_failed_template_is_tried_again(void **state)
{
    PLAY(p);
    struct err err = { 0 };
    OWN_JSON json_t *order = NULL;
    double at;
    (void)state;
    play_of(&p, "argo", "", J("r": {"retry": {"limit": 2, "policy": "OnFailure", "backoff_s": 10, "factor": 2},
        "step": {"image": "i", "args": [{"text": "{{retries}} {{lastRetry.exitCode}} {{lastRetry.status}}"}]}},
        "main": {"dag": {"tasks": [{"name": "a", "template": "r"}, {"name": "b", "template": "r"}]}}), "");
    assert_string_equal(wanted(&p), "main.a(0) main.b(0)");
    fails(&p, "main.a(0)");
    const struct node *n = run_graph_next(p.g, &at);
    assert_string_equal(n->name, "main.a(1)");
    assert_string_equal(n->display, "a(1)");
    assert_int_equal(n->attempt, 1);
    assert_true(at == p.t + 10);
    assert_ok(run_graph_order(p.g, n, &order, &err));
    assert_string_equal(shown(&p, json_object_get(json_object_get(order, "step"), "args")),
                        "[\"1 3 Failed\"]");
    fails(&p, "main.a(1)");
    n = run_graph_next(p.g, &at);
    assert_true(at == p.t + 20);
    ends_with(&p, "main.a(2)", "Succeeded", J({"result": "R"}));
    assert_string_equal(phase(&p, "main.a"), "Succeeded");
    assert_string_equal(shown(&p, json_object_get(node(&p, "main.a")->outputs, "result")), "\"R\"");
    ends_with(&p, "main.b(0)", "Error", "{}");          /* the policy is OnFailure */
    assert_string_equal(phase(&p, "main.b"), "Error");
    assert_string_equal(result(&p), "Error");
}

static void retries_end_by_limit_expression_and_time(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "argo", "", J("lim": {"retry": {"limit": 1, "policy": "Always"}, "step": {"image": "i"}},
        "exp": {"retry": {"limit": -1, "policy": "Always", "expression": "asInt(lastRetry.exitCode) != 3"}, "step": {"image": "i"}},
        "max": {"retry": {"limit": -1, "policy": "Always", "backoff_s": 60, "max_s": 30}, "step": {"image": "i"}},
        "tra": {"retry": {"limit": -1, "policy": "OnTransientError"}, "step": {"image": "i"}},
        "main": {"dag": {"fail_fast": false, "tasks": [{"name": "l", "template": "lim"}, {"name": "e", "template": "exp"},
          {"name": "m", "template": "max"}, {"name": "t", "template": "tra"}]}}), "");
    wanted(&p);
    ends_with(&p, "main.l(0)", "Error", "{}");
    assert_string_equal(wanted(&p), "main.l(1)");
    fails(&p, "main.l(1)");
    assert_string_equal(node(&p, "main.l")->message, "No more retries left");
    fails(&p, "main.e(0)");
    assert_string_equal(node(&p, "main.e")->message, "retryStrategy.expression evaluated to false");
    fails(&p, "main.m(0)");
    assert_string_equal(node(&p, "main.m")->message, "Max duration limit exceeded");
    apply(&p, "node.ended", json_pack("{s:s, s:i, s:s, s:b}", "node", "main.t(0)", "attempt", 0, "phase",
                                      "Error", "transient", 1));
    assert_string_equal(wanted(&p), "main.t(1)");
    fails(&p, "main.t(1)");
    assert_string_equal(result(&p), "Failed");
}

static void a_dag_may_be_tried_again_as_a_whole(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "argo", "", ONE "," J("sub": {"retry": {"limit": 1, "policy": "Always"}, "dag": {"tasks": [
        {"name": "a", "template": "one"}]}}, "main": {"dag": {"tasks": [{"name": "s", "template": "sub"}]}}), "");
    assert_string_equal(wanted(&p), "main.s(0).a");
    fails(&p, "main.s(0).a");
    assert_string_equal(wanted(&p), "main.s(1).a");
    ends(&p, "main.s(1).a");
    assert_string_equal(result(&p), "Succeeded");
}

/* ------------------------------------------------------------ stopping, exit, suspend */

static const char *unwanted(struct play *p)
{
    size_t n = 0;
    const struct node *v;
    p->text[0] = '\0';
    while ((v = run_graph_unwanted(p->g)))
        n += (size_t)snprintf(p->text + n, sizeof p->text - n, "%s%s", n ? " " : "", v->name);
    return p->text;
}

static void the_exit_handler_runs_whatever_happened(void **state)
{
    PLAY(p);
    struct err err = { 0 };
    OWN_JSON json_t *order = NULL;
    (void)state;
    play_of(&p, "argo", J("exit": "bye"), ONE "," J("bye": {"step": {"image": "i", "args": [
        {"text": "{{workflow.status}} {{workflow.failures}}"}]}}, "main": {"dag": {"tasks": [{"name": "a", "template": "one"}]}}), "");
    wanted(&p);
    apply(&p, "node.ended", json_pack("{s:s, s:i, s:s, s:s}", "node", "main.a", "attempt", 0, "phase", "Failed",
                                      "message", "boom"));
    assert_string_equal(wanted(&p), "main.onExit");
    assert_string_equal(result(&p), "Running");
    assert_ok(run_graph_order(p.g, run_graph_exit(p.g), &order, &err));
    const char *args = shown(&p, json_object_get(json_object_get(order, "step"), "args"));
    assert_non_null(strstr(args, "Failed [{\\\"displayName\\\":\\\"a\\\""));
    assert_non_null(strstr(args, "boom"));
    ends(&p, "main.onExit");
    assert_string_equal(result(&p), "Failed");
}

static void a_terminated_run_stops_its_leaves_and_still_says_good_bye(void **state)
{
    PLAY(p);
    const char *message = NULL;
    (void)state;
    play_of(&p, "argo", J("exit": "one", "parallelism": 3), J("r": {"retry": {"limit": 5, "policy": "Always"}, "step": {"image": "i"}},
        "wait": {"suspend": {}}) "," ONE ","
        J("main": {"dag": {"tasks": [{"name": "a", "template": "one"}, {"name": "w", "template": "wait"}, {"name": "r", "template": "r"},
        {"name": "l", "template": "one", "loop": {"items": ["x", "y"]}},
        {"name": "b", "template": "one", "after": ["a"]}]}}), "");
    assert_string_equal(wanted(&p), "main.a main.w main.r(0) main.l(0:x)");
    apply(&p, "run.terminate", json_pack("{s:s}", "by", "eva"));
    assert_string_equal(unwanted(&p), "main.a main.r(0) main.l(0:x)");
    assert_string_equal(phase(&p, "main.w"), "Failed");
    assert_string_equal(phase(&p, "main.l(1:y)"), "Failed");
    assert_string_equal(phase(&p, "main.b"), "Omitted");
    assert_string_equal(result(&p), "Running");
    ends(&p, "main.a");         /* it had ended before it was stopped */
    fails(&p, "main.r(0)");
    fails(&p, "main.l(0:x)");
    assert_string_equal(phase(&p, "main.r"), "Failed");
    assert_string_equal(wanted(&p), "main.onExit");
    ends(&p, "main.onExit");
    assert_int_equal(run_graph_phase(p.g, &message), NODE_FAILED);
    assert_string_equal(message, "terminated by eva");
}

static void a_dag_past_its_deadline_fails(void **state)
{
    PLAY(p);
    double at;
    (void)state;
    play_of(&p, "argo", "", ONE "," J("sub": {"deadline_s": 60, "dag": {"tasks": [{"name": "a", "template": "one"},
        {"name": "b", "template": "one", "after": ["a"]}]}},
        "main": {"dag": {"tasks": [{"name": "s", "template": "sub"},
        {"name": "c", "template": "one", "after": ["s"], "depends": "s.Failed"}]}}), "");
    wanted(&p);
    assert_string_equal(run_graph_timed(p.g, &at)->name, "main.s");
    assert_true(at == run_of.created + 60);
    assert_null(run_graph_timed(p.g, &at));
    apply(&p, "node.deadline", json_pack("{s:s}", "node", "main.s"));
    assert_string_equal(unwanted(&p), "main.s.a");
    fails(&p, "main.s.a");
    assert_string_equal(phase(&p, "main.s"), "Failed");
    assert_string_equal(phase(&p, "main.s.b"), "Omitted");
    assert_string_equal(wanted(&p), "main.c");
    ends(&p, "main.c");
    assert_string_equal(result(&p), "Succeeded");
}

static void suspended_tasks_wait_for_a_word_or_a_time(void **state)
{
    PLAY(p);
    double at;
    (void)state;
    play_of(&p, "argo", J("inputs": [{"name": "s", "default": "20"}]), ONE "," J("ask": {"suspend": {},
        "outputs": {"parameters": [{"name": "ok", "default": "NO"}]}},
        "nap": {"suspend": {"seconds": {"text": "{{workflow.parameters.s}}"}}},
        "main": {"dag": {"tasks": [{"name": "ask", "template": "ask"}, {"name": "nap", "template": "nap"},
        {"name": "a", "template": "one", "after": ["ask"], "when": "{{tasks.ask.outputs.parameters.ok}} == YES"}]}}), "");
    const struct node *n = run_graph_next(p.g, &at);
    assert_string_equal(n->name, "main.ask");
    assert_true(isinf(at));
    assert_int_equal(n->phase, NODE_RUNNING);
    n = run_graph_next(p.g, &at);
    assert_string_equal(n->name, "main.nap");
    assert_true(at == run_of.created + 20);
    apply(&p, "node.resumed", json_pack("{s:s}", "node", "main.nap"));
    apply(&p, "node.resumed", json_pack("{s:s, s:{s:s}}", "node", node(&p, "main.ask")->id, "parameters",
                                        "ok", "YES"));
    assert_string_equal(wanted(&p), "main.a");
    ends(&p, "main.a");
    assert_string_equal(result(&p), "Succeeded");
}

static void a_failed_run_goes_on_where_it_failed(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "argo", J("exit": "one"), ONE "," J("r": {"retry": {"limit": 0, "policy": "Always"}, "step": {"image": "i"}},
        "sub": {"dag": {"tasks": [{"name": "ok", "template": "one"}, {"name": "bad", "template": "one", "after": ["ok"]}]}},
        "main": {"parallelism": 2, "dag": {"fail_fast": false, "tasks": [{"name": "a", "template": "one"}, {"name": "s", "template": "sub"},
        {"name": "l", "template": "one", "loop": {"items": ["x", "y"]}}, {"name": "r", "template": "r"},
        {"name": "z", "template": "one", "after": ["a", "s", "l", "r"]}]}}), "");
    assert_string_equal(wanted(&p), "main.a main.s.ok");
    ends(&p, "main.a");
    ends(&p, "main.s.ok");
    fails(&p, "main.s.bad");
    ends(&p, "main.l(0:x)");
    fails(&p, "main.l(1:y)");
    fails(&p, "main.r(0)");
    assert_string_equal(phase(&p, "main.z"), "Omitted");
    ends(&p, "main.onExit");
    assert_string_equal(result(&p), "Failed");
    apply(&p, "run.ended", json_pack("{s:s}", "phase", "Failed"));
    while (wanted(&p)[0])
        ;
    apply(&p, "run.retry", json_object());
    assert_string_equal(result(&p), "Running");
    assert_string_equal(wanted(&p), "main.l(1:y) main.s.bad");
    assert_int_equal(node(&p, "main.s.bad")->attempt, 1);
    assert_null(run_graph_exit(p.g));
    ends(&p, "main.s.bad");
    assert_string_equal(wanted(&p), "main.r(1)");
    ends(&p, "main.l(1:y)");
    ends(&p, "main.r(1)");
    assert_string_equal(phase(&p, "main.l"), "Succeeded");
    assert_string_equal(wanted(&p), "main.z");
    ends(&p, "main.z");
    assert_string_equal(wanted(&p), "main.onExit");
    assert_int_equal(run_graph_exit(p.g)->attempt, 1);
    ends(&p, "main.onExit");
    assert_string_equal(result(&p), "Succeeded");
    assert_int_equal(node(&p, "main.a")->attempt, 0);
}

/* ------------------------------------------------------------ kfp */

static void kfp_values_are_typed_and_conditions_see_inputs(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "ir", J("inputs": [{"name": "n", "type": "NUMBER_INTEGER"}, {"name": "l", "type": "LIST", "default": [1, 2]},
        {"name": "o", "type": "STRING", "optional": true}]),
        J("s": {"inputs": {"parameters": [{"name": "x", "type": "NUMBER_INTEGER"}, {"name": "d", "type": "STRING", "default": "z"}]}, "step": {"image": "i"}},
        "cond": {"inputs": {"parameters": [{"name": "c", "type": "NUMBER_INTEGER"}]}, "dag": {"tasks": [{"name": "in", "template": "s", "parameters": {"x": {"input": "c"}}}]}},
        "main": {"inputs": {"parameters": [{"name": "n", "type": "NUMBER_INTEGER"}, {"name": "l", "type": "LIST"}, {"name": "o", "type": "STRING"}]},
        "outputs": {"parameters": [{"name": "all", "value": {"collected": "loop", "output": "y"}},
                                   {"name": "one", "first": [{"task": "no", "output": "q"}, {"task": "yes", "output": "q"}]}]},
        "dag": {"tasks": [
        {"name": "loop", "template": "s", "loop": {"items": {"input": "l"}, "item": "x"}, "parameters": {}},
        {"name": "yes", "template": "cond", "parameters": {"c": {"input": "n"}}, "when": "int(inputs.parameter_values['c']) > 4"},
        {"name": "no", "template": "cond", "parameters": {"c": {"input": "n"}}, "when": "!(int(inputs.parameter_values['c']) > 4)"}]}}),
        J({"n": "5"}));
    assert_string_equal(wanted(&p), "main.loop(0:1) main.loop(1:2) main.yes.in");
    assert_string_equal(input(&p, "main.loop(1:2)", "x"), "2");
    assert_string_equal(input(&p, "main.yes.in", "x"), "5");
    assert_string_equal(phase(&p, "main.no"), "Skipped");
    ends_with(&p, "main.loop(0:1)", "Succeeded", J({"parameters": {"y": 1.5}}));
    ends_with(&p, "main.loop(1:2)", "Succeeded", J({"parameters": {"y": {"k": 1}}}));
    ends(&p, "main.yes.in");
    assert_string_equal(result(&p), "Succeeded");
    assert_string_equal(output(&p, "main", "all"), "[1.5,{\"k\":1}]");
    assert_string_equal(output(&p, "main", "one"), "none");
}

static void a_kfp_exit_task_runs_after_a_failure_and_sees_it(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "ir", "", ONE "," J("bye": {"inputs": {"parameters": [{"name": "s", "type": "STRUCT"}]}, "step": {"image": "i"}},
        "guarded": {"dag": {"tasks": [{"name": "a", "template": "one"}, {"name": "b", "template": "one", "after": ["a"]}]}},
        "main": {"dag": {"tasks": [{"name": "exit-handler-1", "template": "guarded"}, {"name": "other", "template": "one", "after": ["exit-handler-1"]},
        {"name": "bye", "template": "bye", "after": ["exit-handler-1"], "always": true, "parameters": {"s": {"status": "exit-handler-1"}}}]}}), "");
    wanted(&p);
    fails(&p, "main.exit-handler-1.a");
    assert_string_equal(wanted(&p), "main.bye");
    assert_string_equal(phase(&p, "main.other"), "Omitted");
    assert_string_equal(input(&p, "main.bye", "s"),
        "{\"error\":{\"code\":1,\"message\":\"it failed\"},\"pipelineJobResourceName\":\"run-id\","
        "\"pipelineTaskName\":\"exit-handler-1\",\"state\":\"FAILED\"}");
    ends(&p, "main.bye");
    assert_string_equal(result(&p), "Failed");
}

/* ------------------------------------------------------------ refusals */

static void a_wrong_flow_or_parameter_is_refused(void **state)
{
    static const struct { const char *flow, *parameters, *says; } rows[] = {
        { J({"dialect": "argo", "entry": "none", "templates": {}}), J({}), "which there is not" },
        { J({"dialect": "argo", "entry": "m", "inputs": [{"name": "x"}], "templates": {"m": {"step": {}}}}), J({}), "\"x\"" },
        { J({"dialect": "ir", "entry": "m", "inputs": [{"name": "x", "type": "NUMBER_INTEGER"}], "templates": {"m": {"step": {}}}}),
          J({"x": "a"}), "is no NUMBER_INTEGER" },
        { J({"dialect": "ir", "entry": "m", "templates": {"m": {"step": {}}}}), J({"y": 1}), "no parameter \"y\"" },
        { J({"dialect": "argo", "entry": "m", "templates": {"m": {"dag": {"tasks": [{"name": "a", "template": "m", "after": ["b"]},
          {"name": "b", "template": "m", "after": ["a"]}]}}}}), J({}), "wait for one another" },
        { J({"dialect": "argo", "entry": "m", "templates": {"m": {"dag": {"tasks": [{"name": "a", "template": "x"}]}}}}), J({}), "\"x\"" },
        { J({"dialect": "argo", "entry": "m", "templates": {"m": {"dag": {"tasks": [{"name": "a", "template": "m", "after": ["b"]}]}}}}), J({}), "\"b\"" },
        { J({"dialect": "argo", "entry": "m", "templates": {"m": {"inputs": {"parameters": [{"name": "q"}]}, "step": {}}}}), J({}), "\"q\"" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        OWN_JSON json_t *flow = json_loads(rows[i].flow, 0, NULL);
        OWN_JSON json_t *parameters = json_loads(rows[i].parameters, 0, NULL);
        struct graph_run run = run_of;
        struct run_graph *g = NULL;
        struct err err = { 0 };
        assert_non_null(flow);
        run.parameters = parameters;
        assert_fails(run_graph_new(flow, &run, &g, &err), ERR_INVALID);
        if (!strstr(err.text, rows[i].says))
            fail_msg("\"%s\" does not say \"%s\"", err.text, rows[i].says);
    }
}

/* ------------------------------------------------------------ costs */

static void flow_chain(struct play *p, int n, bool chain)
{
    json_t *tasks = json_array();
    char name[32], before[32];
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "t%d", i);
        json_t *t = json_pack("{s:s, s:s}", "name", name, "template", "one");
        snprintf(before, sizeof before, "t%d", i - 1);
        if (chain && i)
            json_object_set_new(t, "after", json_pack("[s]", before));
        json_array_append_new(tasks, t);
    }
    if (!chain) {
        json_t *after = json_array(), *t;
        size_t i;
        json_array_foreach (tasks, i, t)
            json_array_append(after, json_object_get(t, "name"));
        json_array_append_new(tasks, json_pack("{s:s, s:s, s:o}", "name", "end", "template", "one", "after",
                                               after));
    }
    *p = (struct play){ .parameters = json_object(), .events = json_array(), .t = 1e9 };
    p->flow = json_pack("{s:s, s:s, s:{s:{s:{s:s}}, s:{s:{s:o}}}}", "dialect", "argo", "entry", "main",
                        "templates", "one", "step", "image", "i", "main", "dag", "tasks", tasks);
    p->g = graph_of(p);
}

static void the_last_of_10000_costs_no_more_than_the_first(void **state)
{
    enum { N = 10000 };
    char name[32];
    double at;
    (void)state;
    for (int chain = 0; chain < 2; chain++) {
        PLAY(p);
        flow_chain(&p, N, chain);
        uint64_t first = 0, last = 0;   /* of 1,000 events each */
        for (int i = 0; i < N; i++) {
            uint64_t before = run_graph_work(p.g);
            const struct node *n = run_graph_next(p.g, &at);
            snprintf(name, sizeof name, "main.t%d", i);
            assert_non_null(n);
            assert_string_equal(n->name, name);
            ends(&p, name);
            uint64_t cost = run_graph_work(p.g) - before;
            first += i < 1000 ? cost : 0;
            last += i >= N - 1000 ? cost : 0;
            if (cost > 80)      /* a name may take some steps to find among those of like hashes */
                fail_msg("event %d took %d steps", i, (int)cost);
        }
        if (last > first + first / 2)
            fail_msg("the last 1,000 took %d steps, the first %d", (int)last, (int)first);
        if (!chain)
            ends(&p, "main.end");
        assert_string_equal(result(&p), "Succeeded");
        assert_true(run_graph_bytes(p.g) / (size_t)run_graph_count(p.g) < 700);
    }
}

static void a_loop_of_10000_with_few_places_costs_the_same_each(void **state)
{
    enum { N = 10000 };
    PLAY(p);
    uint64_t first = 0, last = 0;
    double at;
    char name[40];
    (void)state;
    play_of(&p, "argo", "", ONE "," J("main": {"parallelism": 3, "dag": {"tasks": [
        {"name": "l", "template": "one", "loop": {"sequence": {"count": "10000"}}},
        {"name": "z", "template": "one", "after": ["l"]}]}}), "");
    for (int i = 0; i < N; i++) {
        uint64_t before = run_graph_work(p.g);
        assert_non_null(run_graph_next(p.g, &at));
        snprintf(name, sizeof name, "main.l(%d:%d)", i, i);
        ends(&p, name);
        uint64_t cost = run_graph_work(p.g) - before;
        first += i < 1000 ? cost : 0;
        last += i >= N - 1001 && i < N - 1 ? cost : 0;
    }
    if (last > first + first / 2)
        fail_msg("the last 1,000 took %d steps, the first %d", (int)last, (int)first);
    assert_string_equal(wanted(&p), "main.z");
}

static void ten_thousand_skipped_tasks_are_no_deeper_than_one(void **state)
{
    PLAY(p);
    (void)state;
    flow_chain(&p, 10000, true);
    run_graph_free(p.g);
    json_t *tasks = json_object_get(json_object_get(json_object_get(json_object_get(p.flow, "templates"),
                                    "main"), "dag"), "tasks"), *t;
    size_t i;
    json_array_foreach (tasks, i, t)
        if (i)
            json_object_set_new(t, "when", json_string("a == b"));
    p.g = graph_of(&p);
    ends(&p, "main.t0");
    assert_string_equal(phase(&p, "main.t9999"), "Skipped");
    assert_string_equal(result(&p), "Succeeded");
}

/* ------------------------------------------------------------ replay */

struct rng {
    uint64_t seed, i;
};

static uint32_t rng_below(struct rng *r, uint32_t n)
{
    return rng_word(r->seed, 0, r->i++) % n;
}

static int describe(void *arg, const struct node *n)
{
    OWN_MEM char *in = json_dumps(n->inputs, JSON_COMPACT | JSON_SORT_KEYS);
    OWN_MEM char *out = n->outputs ? json_dumps(n->outputs, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    buf_printf(arg, "%s %s %s %d %s %s %s %g %g\n", n->name, n->id, node_phase_name(n->phase), n->attempt,
               in, out ? out : "-", n->message ? n->message : "-",
               node_phase_ended(n->phase) ? n->started : 0, n->ended);
    return 0;
}

static char *described(const struct run_graph *g)
{
    OWN_BUF b = BUF_INIT;
    run_graph_each(g, describe, &b);
    return buf_take(&b);
}

/* A dag of random tasks: leaves, loops, sub-dags, retries, conditions, `depends`. */
static void random_flow(struct play *p, struct rng *r)
{
    json_t *tasks = json_array();
    int n = 3 + (int)rng_below(r, 12);
    for (int i = 0; i < n; i++) {
        static const char *const templates[] = { "leaf", "again", "sub", "leaf", "wait" };
        char name[16], before[16];
        snprintf(name, sizeof name, "t%d", i);
        json_t *t = json_pack("{s:s, s:s, s:{s:{s:s}}}", "name", name, "template",
                              templates[rng_below(r, 5)], "parameters", "m", "text",
                              "{{workflow.name}}");
        json_t *after = json_array();
        for (int k = 0; k < i && k < 3; k++)
            if (rng_below(r, 2)) {
                snprintf(before, sizeof before, "t%d", (int)rng_below(r, (uint32_t)i));
                json_array_append_new(after, json_string(before));
            }
        if (json_array_size(after) && rng_below(r, 4) == 0) {
            char depends[64];
            snprintf(depends, sizeof depends, "%s.Failed || %s.Succeeded",
                     json_string_value(json_array_get(after, 0)), json_string_value(json_array_get(after, 0)));
            json_object_set_new(t, "depends", json_string(depends));
        }
        json_object_set_new(t, "after", after);
        if (rng_below(r, 3) == 0)
            json_object_set_new(t, "loop", json_pack("{s:{s:s}}", "sequence", "count", "4"));
        if (rng_below(r, 6) == 0)
            json_object_set_new(t, "when", json_string(rng_below(r, 2) ? "a == a" : "a == b"));
        if (rng_below(r, 5) == 0)
            json_object_set_new(t, "continue_on", json_pack("{s:b}", "failed", 1));
        json_array_append_new(tasks, t);
    }
    play_of(p, "argo", J("exit": "leaf", "inputs": [{"name": "m", "default": "q"}]),
        J("leaf": {"inputs": {"parameters": [{"name": "m"}]}, "step": {"image": "i"}},
          "wait": {"suspend": {}},
          "again": {"inputs": {"parameters": [{"name": "m"}]}, "retry": {"limit": 2, "policy": "Always", "backoff_s": 1}, "step": {"image": "i"}},
          "sub": {"parallelism": 2, "inputs": {"parameters": [{"name": "m"}]}, "outputs": {"parameters": [{"name": "o", "value": {"text": "{{tasks.l.outputs.parameters.o}}"}}]},
            "dag": {"tasks": [{"name": "l", "template": "leaf", "parameters": {"m": {"text": "{{inputs.parameters.m}}{{item}}"}}, "loop": {"items": [1, 2, 3]}}]}},
          "main": {"step": {"image": "i"}}), "");
    run_graph_free(p->g);
    if (rng_below(r, 2))
        json_object_set_new(p->flow, "parallelism", json_integer(1 + rng_below(r, 4)));
    json_object_set_new(json_object_get(p->flow, "templates"), "main",
                        json_pack("{s:i, s:{s:b, s:o}}", "parallelism", (int)rng_below(r, 4), "dag",
                                  "fail_fast", (int)rng_below(r, 2), "tasks", tasks));
    p->g = graph_of(p);
}

static void random_event(struct play *p, struct rng *r, json_t *given)
{
    double at;
    const struct node *n;
    while ((n = run_graph_next(p->g, &at)))
        json_array_append_new(given, json_string(n->name));
    while ((n = run_graph_unwanted(p->g))) {
        size_t i;
        json_t *each;
        bool there = false;
        json_array_foreach (given, i, each)
            there |= !strcmp(json_string_value(each), n->name);
        if (!there)
            json_array_append_new(given, json_string(n->name));
    }
    for (size_t i = json_array_size(given); i-- > 0;)   /* ended by being stopped */
        if (node_phase_ended(node(p, json_string_value(json_array_get(given, i)))->phase))
            json_array_remove(given, i);
    if (!json_array_size(given) && run_graph_phase(p->g, NULL) == NODE_RUNNING)
        fail_msg("the run goes on and nothing is wanted");
    size_t k = json_array_size(given) ? rng_below(r, (uint32_t)json_array_size(given)) : 0;
    OWN_MEM char *name = json_array_size(given) ? strdup(json_string_value(json_array_get(given, k))) : NULL;
    if (!name || rng_below(r, 60) == 0) {
        apply(p, rng_below(r, 2) ? "run.terminate" : "run.retry", json_object());
        return;
    }
    json_array_remove(given, k);
    if (node(p, name)->kind == NODE_SUSPEND)
        apply(p, "node.resumed", json_pack("{s:s}", "node", name));
    else
        ends_with(p, name, rng_below(r, 4) ? "Succeeded" : rng_below(r, 2) ? "Failed" : "Error",
                  J({"parameters": {"o": "v"}, "result": "r"}));
}

static void a_replay_gives_the_same_nodes(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct rng r = { seed, 0 };
        PLAY(p);
        random_flow(&p, &r);
        OWN_JSON json_t *given = json_array();
        int events = 0;
        while (events++ < 400 && (run_graph_phase(p.g, NULL) == NODE_RUNNING || rng_below(&r, 3)))
            random_event(&p, &r, given);
        struct run_graph *again = graph_of(&p);
        size_t i;
        json_t *e;
        json_array_foreach (p.events, i, e) {
            struct err err = { 0 };
            for (int twice = 0; twice < 1 + (strncmp(json_string_value(json_object_get(e, "type")), "node", 4) == 0); twice++)
                assert_ok(run_graph_apply(again, json_string_value(json_object_get(e, "type")),
                                          json_object_get(e, "body"),
                                          json_number_value(json_object_get(e, "t")), &err));
        }
        OWN_MEM char *one = described(p.g);
        OWN_MEM char *two = described(again);
        if (strcmp(one, two))
            fail_msg("seed %d:\n%s\n---\n%s", (int)seed, one, two);
        run_graph_free(again);
    }
}

CHECK_MAIN(tasks_begin_when_all_before_them_ended, what_comes_after_a_failure_is_omitted,
           a_dag_that_fails_fast_begins_nothing_new, continue_on_goes_on_after_a_failure,
           depends_chooses_by_result, a_skipped_task_counts_as_done, steps_come_in_groups,
           values_pass_from_task_to_task, names_of_the_run_and_its_tasks_are_known,
           loops_run_over_items_and_gather_outputs, sequences_count_up_and_down,
           nested_loops_and_dags_end_as_a_whole, a_loop_fails_when_all_have_ended,
           parallelism_of_run_template_and_loop_is_kept, templates_call_themselves_until_a_when_ends_it,
           a_failed_template_is_tried_again, retries_end_by_limit_expression_and_time,
           a_dag_may_be_tried_again_as_a_whole, the_exit_handler_runs_whatever_happened,
           a_terminated_run_stops_its_leaves_and_still_says_good_bye, a_dag_past_its_deadline_fails,
           suspended_tasks_wait_for_a_word_or_a_time, a_failed_run_goes_on_where_it_failed,
           kfp_values_are_typed_and_conditions_see_inputs,
           a_kfp_exit_task_runs_after_a_failure_and_sees_it, a_wrong_flow_or_parameter_is_refused,
           the_last_of_10000_costs_no_more_than_the_first,
           a_loop_of_10000_with_few_places_costs_the_same_each,
           ten_thousand_skipped_tasks_are_no_deeper_than_one, a_replay_gives_the_same_nodes)
