/* tests/unit/run_graph_test.c - the graph of a run: which leaves are wanted when,
    with which values */
#include <string.h>

#include "tests/unit/play.h"

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

static void an_exit_handler_of_a_task_runs_however_it_ended_and_decides_nothing(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "argo", "", ONE "," J("main": {"dag": {"tasks": [
        {"name": "a", "template": "one"},
        {"name": "a.onExit", "template": "one", "hook": true, "after": ["a"],
         "depends": "a.Succeeded || a.Failed || a.Errored"},
        {"name": "b", "template": "one", "after": ["a", "a.onExit"]},
        {"name": "b.onExit", "template": "one", "hook": true, "after": ["b"],
         "depends": "b.Succeeded || b.Failed || b.Errored"},
        {"name": "s", "template": "one", "when": "1 == 2"},
        {"name": "s.onExit", "template": "one", "hook": true, "after": ["s"],
         "depends": "s.Succeeded || s.Failed || s.Errored"},
        {"name": "t", "template": "one", "after": ["s", "s.onExit"]}]}}), "");
    assert_string_equal(wanted(&p), "main.a main.t");
    assert_string_equal(phase(&p, "main.s.onExit"), "Omitted");
    ends(&p, "main.a");
    ends(&p, "main.t");
    assert_string_equal(wanted(&p), "main.a.onExit");
    fails(&p, "main.a.onExit");
    assert_string_equal(wanted(&p), "main.b");
    fails(&p, "main.b");
    assert_string_equal(wanted(&p), "main.b.onExit");
    assert_string_equal(result(&p), "Running");
    ends(&p, "main.b.onExit");
    assert_string_equal(result(&p), "Failed");
    apply(&p, "run.retry", json_object());
    assert_string_equal(wanted(&p), "main.a.onExit");
    ends(&p, "main.a.onExit");
    assert_string_equal(wanted(&p), "main.b");
    ends(&p, "main.b");
    assert_string_equal(wanted(&p), "main.b.onExit");   /* again, with its task */
    ends(&p, "main.b.onExit");
    assert_string_equal(result(&p), "Succeeded");
}

static void an_exit_handler_of_a_step_is_in_its_group(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "argo", "", ONE "," J("main": {"dag": {"style": "steps", "tasks": [
        {"name": "a", "template": "one"},
        {"name": "a.onExit", "template": "one", "hook": true, "after": ["a"],
         "depends": "a.Succeeded || a.Failed || a.Errored"},
        {"name": "b", "template": "one", "after": ["a", "a.onExit"]}]}}), "");
    assert_string_equal(wanted(&p), "main[0].a");
    ends(&p, "main[0].a");
    assert_string_equal(wanted(&p), "main[0].a.onExit");
    assert_string_equal(phase(&p, "main[0]"), "Running");
    fails(&p, "main[0].a.onExit");
    assert_string_equal(phase(&p, "main[0]"), "Succeeded");
    assert_string_equal(wanted(&p), "main[1].b");
    ends(&p, "main[1].b");
    assert_string_equal(result(&p), "Succeeded");
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
        {"name": "bad", "template": "one", "after": ["a-1"],
        "depends": "a-1.Failed || a-1.Errored"},
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
        {"name": "h", "template": "one", "after": ["flip"],
        "when": "{{tasks.flip.outputs.result}} == heads"},
        {"name": "t", "template": "one", "after": ["flip"],
        "when": "{{tasks.flip.outputs.result}} == tails"},
        {"name": "x", "template": "one", "after": ["flip"],
        "when": "{{tasks.gone.outputs.result}} == 1",
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

/* clang-format off */
#define PRINT J("print": {"inputs": {"parameters": [{"name": "m"},                        \
    {"name": "n", "default": "dflt"}]},                                                   \
    "step": {"image": {"text": "img:{{inputs.parameters.n}}"}, "command": ["echo"],       \
             "args": [{"text": "{{inputs.parameters.m}}"}, "{{not a tag}}"], "env":       \
             [{"name": "E", "value": {"text": "{{workflow.name}}/{{pod.name}}"}}]}})
/* clang-format on */

static void values_pass_from_task_to_task(void **state)
{
    PLAY(p);
    struct err err = { 0 };
    OWN_JSON json_t *order = NULL;
    (void)state;
    play_of(&p, "argo", J("inputs": [{"name": "who", "type": "STRING", "default": "me"},
                                     {"name": "n", "type": "STRING"}]),
            J("gen": {"outputs": {"parameters": [{"name": "x", "path": "/tmp/x"}],
                                  "artifacts": [{"name": "art", "path": "/tmp/a"}]},
                                  "step": {"image": "i"}}) ","
            PRINT "," J("use": {"inputs": {"artifacts": [{"name": "in", "path": "/in"},
                {"name": "maybe", "path": "/m", "optional": true}, {"name": "raw", "path": "/r",
                "raw": "text"}]},
                "step": {"image": "i", "args": [{"text": "{{inputs.artifacts.in.path}}"}]}}) ","
            J("main": {"inputs": {"parameters": [{"name": "n"}]}, "outputs": {"parameters": [
                {"name": "got", "value": {"text": "{{tasks.gen.outputs.parameters.x}}"}},
                {"name": "either", "first": [{"task": "skip", "output": "x"}, {"task": "gen",
                "output": "x"}]},
                {"name": "none", "value": {"text": "{{tasks.skip.outputs.parameters.x}}"},
                "default": "d"}],
                "artifacts": [{"name": "art",
                "value": {"text": "{{tasks.gen.outputs.artifacts.art}}"}}]},
            "dag": {"tasks": [
            {"name": "gen", "template": "gen"}, {"name": "skip", "template": "gen",
            "when": "false"},
            {"name": "p", "template": "print", "after": ["gen"], "parameters": {
                "m": {"text":
                    "{{tasks.gen.outputs.parameters.x}}-{{workflow.parameters.who}}-{{=1 + 41}}"}}},
            {"name": "q", "template": "print", "after": ["skip"], "parameters": {
                "n": {"text": "{{tasks.skip.outputs.parameters.x}}"}, "m": {"json": 5}}},
            {"name": "r", "template": "print", "after": ["skip"], "continue_on": {"error": true},
             "parameters": {"m": {"text": "{{tasks.skip.outputs.parameters.x}}"}}},
            {"name": "u", "template": "use", "after": ["gen"], "artifacts": {
                "in": {"text": "{{tasks.gen.outputs.artifacts.art}}"}}}]}}), J({"n": 41}));
    wanted(&p);
    ends_with(&p, "main.gen", "Succeeded", J({"parameters": {"x": "X"},
                                              "artifacts": {"art": {"uri": "gs://b/k",
                                              "size": 1}}}));
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
        "{\"artifacts\":[{\"name\":\"in\",\"path\":\"/in\",\"value\":{\"size\":1,"
        "\"uri\":\"gs://b/k\"}},"
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
    play_of(&p, "argo", J("labels": {"l": "L-{{workflow.name}}"}, "inputs": [{"name": "a",
        "default": "1"}]),
            ONE "," PRINT "," J("main": {"dag": {"tasks": [{"name": "a", "template": "one"},
            {"name": "p", "template": "print", "after": ["a"], "parameters": {"m": {"text":
             "{{workflow.uid}} {{workflow.namespace}} {{workflow.creationTimestamp}}"},
             "n": {"text":
             "{{workflow.creationTimestamp.Y}} {{workflow.labels.l}} {{workflow.parameters}}"}}},
            {"name": "q", "template": "print", "after": ["a"], "parameters": {"m": {"text":
             "{{tasks.a.status}} {{tasks.a.exitCode}} {{tasks.a.startedAt}}"}}}]}}), "");
    wanted(&p);
    ends(&p, "main.a");
    assert_string_equal(input(&p, "main.p", "m"), "\"run-id proj 2018-08-23T05:42:49Z\"");
    assert_string_equal(input(&p, "main.p", "n"), "\"2018 L-wf [{\\\"name\\\":\\\"a\\\",\\\"value"
                                                  "\\\":\\\"1\\\"}]\"");
    assert_string_equal(input(&p, "main.q", "m"), "\"Succeeded 0 2018-08-23T05:42:51Z\"");
}

static void artifacts_come_from_expressions_raw_texts_and_the_run(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "argo", J("artifacts": [{"name": "top", "raw": {"text": "of {{workflow.name}}"}}]),
            J("gen": {"outputs": {"artifacts": [{"name": "a", "path": "/a"}]}, "step": {}},
              "use": {"inputs": {"artifacts": [{"name": "in", "path": "/in"}]}, "step": {}},
              "main": {"inputs": {"artifacts": [{"name": "top"}]}, "dag": {"tasks": [
                {"name": "x", "template": "gen"}, {"name": "y", "template": "gen", "when": "false"},
                {"name": "u", "template": "use", "after": ["x", "y"], "artifacts": {"in": {"text":
                  "{{=tasks.y.status == 'Skipped' ? tasks.x.outputs.artifacts.a : nil}}"}}},
                {"name": "v", "template": "use", "artifacts": {"in": {"raw": "words"}}},
                {"name": "w", "template": "use", "artifacts": {"in": {"input": "top"}}},
                {"name": "z", "template": "use", "after": ["y"], "continue_on": {"error": true},
                 "artifacts": {"in": {"task": "y", "output": "a"}}}]}}), "");
    wanted(&p);
    ends_with(&p, "main.x", "Succeeded", J({"artifacts": {"a": {"uri": "gs://b/x"}}}));
    assert_string_equal(shown(&p, node(&p, "main.u")->inputs),
                        "{\"artifacts\":{\"in\":{\"uri\":\"gs://b/x\"}},\"parameters\":{}}");
    assert_string_equal(shown(&p, node(&p, "main.v")->inputs),
                        "{\"artifacts\":{\"in\":{\"raw\":\"words\"}},\"parameters\":{}}");
    assert_string_equal(shown(&p, node(&p, "main.w")->inputs),
                        "{\"artifacts\":{\"in\":{\"raw\":\"of wf\"}},\"parameters\":{}}");
    assert_string_equal(phase(&p, "main.z"), "Error");
}

static int config_name(void *arg, const char *map, const char *key, bool optional)
{
    buf_printf(arg, "%s.%s%s ", map, key, optional ? "?" : "");
    return 0;
}

static void config_maps_give_inputs_and_templates_say_how_they_are_shown(void **state)
{
    PLAY(p);
    (void)state;
    p.configs = json_pack("{s:{s:s, s:s}}", "cm", "k", "from map", "top", "T");
    play_of(&p, "argo", J("inputs": [{"name": "t", "config": {"name": "cm", "key": "top"}}]),
            J("s": {"display": {"text": "Say {{inputs.parameters.a}}"}, "inputs": {"parameters": [
                {"name": "a", "config": {"name": "cm", "key": "k"}}, {"name": "b", "default": "d",
                 "config": {"name": "none", "key": "k"}}]}, "step": {}},
              "main": {"dag": {"tasks": [{"name": "x", "template": "s"},
                {"name": "y", "template": "s",
                "parameters": {"a": {"text": "{{workflow.parameters.t}}"}}}
                ]}}), "");
    assert_string_equal(input(&p, "main.x", "a"), "\"from map\"");
    assert_string_equal(input(&p, "main.x", "b"), "\"d\"");
    assert_string_equal(input(&p, "main.y", "a"), "\"T\"");
    assert_string_equal(node(&p, "main.x")->display, "Say from map");
    OWN_BUF names = BUF_INIT;
    assert_int_equal(run_graph_configs(p.flow, config_name, &names), 0);
    assert_string_equal(names.data, "cm.top cm.k none.k? ");
}

static void a_config_map_that_a_step_made_or_changed_is_read_from_then_on(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "argo", "", ONE "," J("s": {"inputs": {"parameters": [
        {"name": "a", "config": {"name": {"text": "cm-{{workflow.name}}"}, "key": "k"}}]},
        "step": {}},
        "main": {"dag": {"tasks": [{"name": "early", "template": "s"},
          {"name": "make", "template": "one"},
          {"name": "x", "template": "s", "after": ["make"]},
          {"name": "y", "template": "s", "after": ["x"]}], "fail_fast": false}}), "");
    assert_string_equal(phase(&p, "main.early"), "Error");
    assert_non_null(strstr(node(&p, "main.early")->message, "config map \"cm-wf\" has no \"k\""));
    apply(&p, "node.ended", json_pack("{s:s, s:s, s:{s:{s:s}}}", "node", "main.make", "phase",
                                      "Succeeded", "configs", "cm-wf", "k", "one"));
    assert_string_equal(input(&p, "main.x", "a"), "\"one\"");
    apply(&p, "node.ended", json_pack("{s:s, s:s, s:{s:{s:s}}}", "node", "main.x", "phase",
                                      "Succeeded", "configs", "cm-wf", "k", "two"));
    assert_string_equal(input(&p, "main.y", "a"), "\"two\"");
    ends(&p, "main.y");
    apply(&p, "run.retry", json_pack("{s:{s:{s:s}}}", "configs", "cm-wf", "k", "three"));
    assert_string_equal(input(&p, "main.early", "a"), "\"three\"");
}

static void outputs_with_a_global_name_are_known_to_all(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "argo", "", PRINT "," J("gen": {"outputs": {"parameters": [{"name": "x",
        "path": "/x",
            "global": "everywhere"}]}, "step": {}}, "main": {"dag": {"tasks": [
            {"name": "g", "template": "gen"}, {"name": "p", "template": "print", "after": ["g"],
             "parameters": {"m": {"text": "{{workflow.outputs.parameters.everywhere}}"}}}]}}), "");
    wanted(&p);
    ends_with(&p, "main.g", "Succeeded", J({"parameters": {"x": "7"}}));
    assert_string_equal(input(&p, "main.p", "m"), "\"7\"");
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
         "parameters": {"m": {"text": "{{tasks.l.outputs.parameters.o}}"},
         "n": {"text": "{{tasks.l.outputs.result}}"}}},
        {"name": "each", "template": "print", "after": ["l"],
        "loop": {"items": {"text": "{{tasks.l.outputs.result}}"}},
         "parameters": {"m": {"text": "{{item}}"}}}]}}), "");
    assert_string_equal(wanted(&p),
        "main.l(0:a) main.l(1:2) main.l(2:b:1,k:v) main.l(3:[1]) main.m(1:k:y)");
    assert_string_equal(phase(&p, "main.m(0:k:x)"), "Skipped");
    assert_string_equal(input(&p, "main.l(2:b:1,k:v)", "m"),
        "\"{\\\"b\\\":1,\\\"k\\\":\\\"v\\\"}!\"");
    assert_string_equal(node(&p, "main.l(0:a)")->display, "l(0:a)");
    assert_string_equal(node(&p, "main.l(0:a)")->parent->name, "main.l");
    ends_with(&p, "main.l(1:2)", "Succeeded", J({"parameters": {"o": "two"}, "result": "2"}));
    ends_with(&p, "main.l(0:a)", "Succeeded", J({"parameters": {"o": "one"}, "result": "one"}));
    ends_with(&p, "main.l(3:[1])", "Succeeded", J({"parameters": {"o": "4"}, "result": "4"}));
    ends_with(&p, "main.l(2:b:1,k:v)", "Succeeded", J({"parameters": {"o": "3"},
        "result": "{\"q\":1}"}));
    ends(&p, "main.m(1:k:y)");
    assert_string_equal(input(&p, "main.all", "m"),
        "\"[\\\"one\\\",\\\"two\\\",\\\"3\\\",\\\"4\\\"]\"");
    assert_string_equal(input(&p, "main.all", "n"), "\"[\\\"one\\\",2,{\\\"q\\\":1},4]\"");
    assert_string_equal(wanted(&p),
        "main.each(0:one) main.each(1:2) main.each(2:q:1) main.each(3:4) main.all");
}

static void a_loop_of_which_all_is_skipped_gives_empty_lists(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "argo", "", PRINT "," J("g": {"outputs": {"parameters": [{"name": "o",
        "path": "/o"}]}, "step": {}}, "main": {"dag": {"tasks": [
        {"name": "l", "template": "g", "loop": {"items": ["a", "b"]}, "when": "{{item}} == c"},
        {"name": "p", "template": "print", "after": ["l"], "parameters": {
         "m": {"text": "{{tasks.l.outputs.parameters.o}} {{tasks.l.outputs.result}} "},
         "n": {"text": "{{tasks.l.outputs.parameters}}"}}},
        {"name": "none", "template": "print", "after": ["l"], "loop": {"items":
         {"text": "{{tasks.l.outputs.result}}"}}}]}}), "");
    assert_string_equal(input(&p, "main.p", "m"), "\"[] [] \"");
    assert_string_equal(input(&p, "main.p", "n"), "\"[]\"");
    assert_string_equal(phase(&p, "main.none"), "Skipped");
}

static void sequences_count_up_and_down(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "argo", J("inputs": [{"name": "n", "default": "3"}]),
        PRINT "," J("main": {"dag": {"tasks": [
        {"name": "a", "template": "print", "parameters": {"m": {"text": "{{item}}"}},
         "loop": {"sequence": {"count": {"text": "{{workflow.parameters.n}}"}, "format": "u%02X"}}},
        {"name": "b", "template": "print", "parameters": {"m": {"text": "{{item}}"}},
         "loop": {"sequence": {"start": "2", "end": {"json": "0"}}}},
        {"name": "none", "template": "print", "loop": {"sequence": {"count": "0"}}},
        {"name": "bad", "template": "print", "loop": {"sequence": {"count": "x"}},
        "continue_on": {"error": true}},
        {"name": "huge", "template": "print", "loop": {"sequence": {"count": "1000000000"}},
        "continue_on": {"error": true}},
        {"name": "fmt", "template": "print", "loop": {"sequence": {"count": "1", "format": "%s%n"}},
        "continue_on": {"error": true}}
        ]}}), "");
    assert_string_equal(wanted(&p),
        "main.a(0:u00) main.a(1:u01) main.a(2:u02) main.b(0:2) main.b(1:1) main.b(2:0)");
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
        "outputs": {"parameters": [{"name": "all",
        "value": {"text": "{{tasks.in.outputs.parameters.r}}"}}]},
        "dag": {"tasks": [{"name": "in", "template": "print", "loop": {"items": ["x", "y"]},
            "parameters": {"m": {"text": "{{inputs.parameters.o}}{{item}}"}}}]}}) ","
        J("main": {"dag": {"tasks": [
        {"name": "out", "template": "inner", "loop": {"items": ["1", "2"]},
        "parameters": {"o": {"text": "{{item}}"}}},
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
    assert_string_equal(input(&p, "main.end", "m"),
        "\"[[\\\"a\\\",\\\"b\\\"],[\\\"c\\\",\\\"d\\\"]]\"");
}

/* A few hundred bytes ask for 10^12 nodes: what does not fit is not begun. */
static void loops_in_loops_end_at_the_most_that_a_run_has(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "argo", "", J(
        "main": {"dag": {"tasks": [{"name": "l", "template": "b", "loop": {"sequence": {"count": "100"}}}]}},
        "b": {"dag": {"tasks": [{"name": "l", "template": "c",
            "loop": {"sequence": {"count": "100000"}}}]}},
        "c": {"dag": {"tasks": [{"name": "l", "template": "d",
            "loop": {"sequence": {"count": "100000"}}}]}},
        "d": {"step": {}}), "{}");
    assert_true(run_graph_count(p.g) <= 200000 + 10);
    assert_non_null(strstr(node(&p, "main.l(99:99).l")->message, "more than 200,000 nodes"));
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
            {"name": "l", "template": "one", "loop": {"items": ["a", "b", "c"]}}, {"name": "x",
            "template": "one"}]}}), "");
        assert_string_equal(wanted(&p), "main.l(0:a) main.l(1:b)");
        ends(&p, "main.l(1:b)");
        assert_string_equal(wanted(&p), "main.l(2:c)");
        ends(&p, "main.l(0:a)");
        assert_string_equal(wanted(&p), "main.x");
    }
    {
        PLAY(p);
        play_of(&p, "argo", "", ONE "," J("main": {"parallelism": 2, "dag": {"tasks": [
            {"name": "l", "template": "one", "loop": {"items": ["a", "b", "c"]}}, {"name": "x",
            "template": "one"},
            {"name": "s", "template": "one", "when": "false"}, {"name": "y", "template": "one"}]}}),
            "");
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
            {"name": "l", "template": "one", "loop": {"items": {"json": [1, 2, 3]},
            "parallelism": 1}}]}}), "");
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
        {"name": "again", "template": "main", "after": ["f"],
        "when": "{{tasks.f.outputs.result}} == t"}]}});
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

/* ------------------------------------------------------------ kfp */

static void kfp_values_are_typed_and_conditions_see_inputs(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "ir", J("inputs": [{"name": "n", "type": "NUMBER_INTEGER"}, {"name": "l",
        "type": "LIST", "default": [1, 2]},
        {"name": "o", "type": "STRING", "optional": true}]),
        J("s": {"inputs": {"parameters": [{"name": "x", "type": "NUMBER_INTEGER"}, {"name": "d",
            "type": "STRING", "default": "z"}]}, "step": {"image": "i"}},
        "cond": {"inputs": {"parameters": [{"name": "c", "type": "NUMBER_INTEGER"}]},
        "dag": {"tasks": [{"name": "in", "template": "s", "parameters": {"x": {"input": "c"}}}]}},
        "main": {"inputs": {"parameters": [{"name": "n", "type": "NUMBER_INTEGER"}, {"name": "l",
        "type": "LIST"}, {"name": "o", "type": "STRING"}]},
        "outputs": {"parameters": [{"name": "all", "value": {"collected": "loop", "output": "y"}},
                                   {"name": "one", "first": [{"task": "no", "output": "q"},
                                   {"task": "yes", "output": "q"}]}]},
        "dag": {"tasks": [
        {"name": "loop", "template": "s", "loop": {"items": {"input": "l"}, "item": "x"},
        "parameters": {}},
        {"name": "yes", "template": "cond", "parameters": {"c": {"input": "n"}},
        "when": "int(inputs.parameter_values['c']) > 4"},
        {"name": "no", "template": "cond", "parameters": {"c": {"input": "n"}},
        "when": "!(int(inputs.parameter_values['c']) > 4)"}]}}),
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
    play_of(&p, "ir", "", ONE "," J("bye": {"inputs": {"parameters": [{"name": "s",
        "type": "STRUCT"}]}, "step": {"image": "i"}},
        "guarded": {"dag": {"tasks": [{"name": "a", "template": "one"}, {"name": "b",
        "template": "one", "after": ["a"]}]}},
        "main": {"dag": {"tasks": [{"name": "exit-handler-1", "template": "guarded"},
        {"name": "other", "template": "one", "after": ["exit-handler-1"]},
        {"name": "bye", "template": "bye", "after": ["exit-handler-1"], "always": true,
        "parameters": {"s": {"status": "exit-handler-1"}}}]}}), "");
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
        { J({"dialect": "argo", "entry": "m", "inputs": [{"name": "x"}],
        "templates": {"m": {"step": {}}}}), J({}), "\"x\"" },
        { J({"dialect": "ir", "entry": "m", "inputs": [{"name": "x", "type": "NUMBER_INTEGER"}],
        "templates": {"m": {"step": {}}}}),
          J({"x": "a"}), "is no NUMBER_INTEGER" },
        { J({"dialect": "ir", "entry": "m", "templates": {"m": {"step": {}}}}), J({"y": 1}),
        "no parameter \"y\"" },
        { J({"dialect": "argo", "entry": "m", "templates": {"m": {"dag": {"tasks": [{"name": "a",
        "template": "m", "after": ["b"]},
          {"name": "b", "template": "m", "after": ["a"]}]}}}}), J({}), "wait for one another" },
        { J({"dialect": "argo", "entry": "m", "templates": {"m": {"dag": {"tasks": [{"name": "a",
        "template": "x"}]}}}}), J({}), "\"x\"" },
        { J({"dialect": "argo", "entry": "m", "templates": {"m": {"dag": {"tasks": [{"name": "a",
        "template": "m", "after": ["b"]}]}}}}), J({}), "\"b\"" },
        { J({"dialect": "argo", "entry": "m",
        "templates": {"m": {"inputs": {"parameters": [{"name": "q"}]}, "step": {}}}}), J({}),
        "\"q\"" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        OWN_JSON json_t *flow = json_loads(rows[i].flow, 0, NULL);
        OWN_JSON json_t *parameters = json_loads(rows[i].parameters, 0, NULL);
        struct graph_run run = { .id = "r", .name = "wf", .project = "p",
            .parameters = parameters };
        struct run_graph *g = NULL;
        struct err err = { 0 };
        assert_non_null(flow);
        assert_fails(run_graph_new(flow, &run, &g, &err), ERR_INVALID);
        if (!strstr(err.text, rows[i].says))
            fail_msg("\"%s\" does not say \"%s\"", err.text, rows[i].says);
    }
}

CHECK_MAIN(an_exit_handler_of_a_task_runs_however_it_ended_and_decides_nothing,
           an_exit_handler_of_a_step_is_in_its_group,
           tasks_begin_when_all_before_them_ended, what_comes_after_a_failure_is_omitted,
           a_dag_that_fails_fast_begins_nothing_new, continue_on_goes_on_after_a_failure,
           depends_chooses_by_result, a_skipped_task_counts_as_done, steps_come_in_groups,
           values_pass_from_task_to_task, names_of_the_run_and_its_tasks_are_known,
           artifacts_come_from_expressions_raw_texts_and_the_run,
           config_maps_give_inputs_and_templates_say_how_they_are_shown,
           a_config_map_that_a_step_made_or_changed_is_read_from_then_on,
           outputs_with_a_global_name_are_known_to_all, loops_run_over_items_and_gather_outputs,
           a_loop_of_which_all_is_skipped_gives_empty_lists, sequences_count_up_and_down,
           nested_loops_and_dags_end_as_a_whole, loops_in_loops_end_at_the_most_that_a_run_has,
           a_loop_fails_when_all_have_ended, parallelism_of_run_template_and_loop_is_kept,
           templates_call_themselves_until_a_when_ends_it,
           kfp_values_are_typed_and_conditions_see_inputs,
           a_kfp_exit_task_runs_after_a_failure_and_sees_it, a_wrong_flow_or_parameter_is_refused)
