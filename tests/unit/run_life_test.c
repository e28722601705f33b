/* tests/unit/run_life_test.c - a run from attempts to its end: what is stopped, what goes on,
    what it
 * costs, and that a replay gives the same */
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "tests/unit/play.h"

/* ------------------------------------------------------------ attempts */

static void a_failed_template_is_tried_again(void **state)
{
    PLAY(p);
    struct err err = { 0 };
    OWN_JSON json_t *order = NULL;
    double at;
    (void)state;
    play_of(&p, "argo", "", J("r": {"retry": {"limit": 2, "policy": "OnFailure", "backoff_s": 10,
        "factor": 2},
        "step": {"image": "i",
        "args": [{"text": "{{retries}} {{lastRetry.exitCode}} {{lastRetry.status}}"}]}},
        "main": {"dag": {"tasks": [{"name": "a", "template": "r"}, {"name": "b",
        "template": "r"}]}}), "");
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
    play_of(&p, "argo", "", J("lim": {"retry": {"limit": 1, "policy": "Always"},
        "step": {"image": "i"}},
        "exp": {"retry": {"limit": -1, "policy": "Always",
        "expression": "asInt(lastRetry.exitCode) != 3"}, "step": {"image": "i"}},
        "max": {"retry": {"limit": -1, "policy": "Always", "backoff_s": 60, "max_s": 30},
        "step": {"image": "i"}},
        "tra": {"retry": {"limit": -1, "policy": "OnTransientError"}, "step": {"image": "i"}},
        "main": {"dag": {"fail_fast": false, "tasks": [{"name": "l", "template": "lim"},
        {"name": "e", "template": "exp"},
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
    apply(&p, "node.ended", json_pack("{s:s, s:i, s:s, s:b}", "node", "main.t(0)", "attempt", 0,
        "phase",
                                      "Error", "transient", 1));
    assert_string_equal(wanted(&p), "main.t(1)");
    fails(&p, "main.t(1)");
    assert_string_equal(result(&p), "Failed");
}

static void a_dag_may_be_tried_again_as_a_whole(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "argo", "", ONE "," J("sub": {"retry": {"limit": 1, "policy": "Always"},
        "dag": {"tasks": [
        {"name": "a", "template": "one"}]}}, "main": {"dag": {"tasks": [{"name": "s",
        "template": "sub"}]}}), "");
    assert_string_equal(wanted(&p), "main.s(0).a");
    fails(&p, "main.s(0).a");
    assert_string_equal(wanted(&p), "main.s(1).a");
    ends(&p, "main.s(1).a");
    assert_string_equal(result(&p), "Succeeded");
}

/* ------------------------------------------------------------ stopping, exit, suspend */

static void the_exit_handler_runs_whatever_happened(void **state)
{
    PLAY(p);
    struct err err = { 0 };
    OWN_JSON json_t *order = NULL;
    (void)state;
    play_of(&p, "argo", J("exit": "bye"), ONE "," J("bye": {"step": {"image": "i", "args": [
        {"text": "{{workflow.status}} {{workflow.failures}}"}]}},
        "main": {"dag": {"tasks": [{"name": "a", "template": "one"}]}}), "");
    wanted(&p);
    apply(&p, "node.ended", json_pack("{s:s, s:i, s:s, s:s}", "node", "main.a", "attempt", 0,
        "phase", "Failed",
                                      "message", "boom"));
    assert_string_equal(wanted(&p), "main.onExit");
    assert_string_equal(result(&p), "Running");
    assert_ok(run_graph_order(p.g, run_graph_exit(p.g), &order, &err));
    const char *args = shown(&p, json_object_get(json_object_get(order, "step"), "args"));
    assert_non_null(strstr(args, "Failed [{\\\"displayName\\\":\\\"a\\\""));
    assert_non_null(strstr(args, "boom"));
    ends(&p, "main.onExit");
    assert_string_equal(result(&p), "Failed");
    assert_string_equal(node(&p, "main")->message, "main.a: boom");
}

static void a_terminated_run_stops_its_leaves_and_still_says_good_bye(void **state)
{
    PLAY(p);
    const char *message = NULL;
    (void)state;
    play_of(&p, "argo", J("exit": "one", "parallelism": 3), J("r": {"retry": {"limit": 5,
        "policy": "Always"}, "step": {"image": "i"}},
        "wait": {"suspend": {}}) "," ONE ","
        J("main": {"dag": {"tasks": [{"name": "a", "template": "one"}, {"name": "w",
            "template": "wait"}, {"name": "r", "template": "r"},
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

static void who_terminates_twice_stops_the_exit_handler_too(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "ir", J("exit": "one"), ONE "," J("main": {"dag": {"tasks": [
        {"name": "a", "template": "one"},
        {"name": "z", "template": "one", "after": ["a"], "always": true}]}}), "");
    wanted(&p);
    apply(&p, "run.terminate", json_object());
    assert_string_equal(unwanted(&p), "main.a");
    fails(&p, "main.a");
    assert_string_equal(wanted(&p), "main.z");
    ends(&p, "main.z");
    assert_string_equal(wanted(&p), "main.onExit");
    apply(&p, "run.terminate", json_object());
    assert_string_equal(unwanted(&p), "main.onExit");
    fails(&p, "main.onExit");
    assert_string_equal(result(&p), "Failed");
}

static void a_dag_past_its_deadline_fails(void **state)
{
    PLAY(p);
    double at;
    (void)state;
    play_of(&p, "argo", "", ONE "," J("sub": {"deadline_s": 60, "dag": {"tasks": [{"name": "a",
        "template": "one"},
        {"name": "b", "template": "one", "after": ["a"]}]}},
        "main": {"dag": {"tasks": [{"name": "s", "template": "sub"},
        {"name": "c", "template": "one", "after": ["s"], "depends": "s.Failed"}]}}), "");
    wanted(&p);
    assert_string_equal(run_graph_timed(p.g, &at)->name, "main.s");
    assert_true(at == PLAY_CREATED + 60);
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
    play_of(&p, "argo", J("inputs": [{"name": "s", "default": "20"}]),
        ONE "," J("ask": {"suspend": {},
        "outputs": {"parameters": [{"name": "ok", "default": "NO"}]}},
        "nap": {"suspend": {"seconds": {"text": "{{workflow.parameters.s}}"}}},
        "main": {"dag": {"tasks": [{"name": "ask", "template": "ask"}, {"name": "nap",
        "template": "nap"},
        {"name": "a", "template": "one", "after": ["ask"],
        "when": "{{tasks.ask.outputs.parameters.ok}} == YES"}]}}), "");
    const struct node *n = run_graph_next(p.g, &at);
    assert_string_equal(n->name, "main.ask");
    assert_true(isinf(at));
    assert_int_equal(n->phase, NODE_RUNNING);
    n = run_graph_next(p.g, &at);
    assert_string_equal(n->name, "main.nap");
    assert_true(at == PLAY_CREATED + 20);
    apply(&p, "node.resumed", json_pack("{s:s}", "node", "main.nap"));
    apply(&p, "node.resumed", json_pack("{s:s, s:{s:s}}", "node", node(&p, "main.ask")->id,
        "parameters",
                                        "ok", "YES"));
    assert_string_equal(wanted(&p), "main.a");
    ends(&p, "main.a");
    assert_string_equal(result(&p), "Succeeded");
}

static void a_failed_run_goes_on_where_it_failed(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "argo", J("exit": "one"), ONE "," J("r": {"retry": {"limit": 0, "policy": "Always"},
        "step": {"image": "i"}},
        "sub": {"dag": {"tasks": [{"name": "ok", "template": "one"}, {"name": "bad",
        "template": "one", "after": ["ok"]}]}},
        "main": {"parallelism": 2, "dag": {"fail_fast": false, "tasks": [{"name": "a",
        "template": "one"}, {"name": "s", "template": "sub"},
        {"name": "l", "template": "one", "loop": {"items": ["x", "y"]}}, {"name": "r",
        "template": "r"},
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

static void a_template_that_fails_fast_begins_no_more_iterations(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "argo", "", ONE "," J("main": {"parallelism": 1, "fail_fast": true, "dag": {
        "style": "steps", "tasks": [{"name": "l", "template": "one", "loop": {"items": ["a", "b",
        "c"]}},
        {"name": "z", "template": "one", "after": ["l"]}]}}), "");
    assert_string_equal(wanted(&p), "main[0].l(0:a)");
    ends(&p, "main[0].l(0:a)");
    fails(&p, "main[0].l(1:b)");
    assert_null(run_graph_find(p.g, "main[0].l(2:c)"));
    assert_string_equal(phase(&p, "main[0].l"), "Failed");
    assert_string_equal(result(&p), "Failed");
    apply(&p, "run.retry", json_object());
    while (wanted(&p)[0])
        ;
    ends(&p, "main[0].l(1:b)");
    ends(&p, "main[0].l(2:c)");
    ends(&p, "main[1].z");
    assert_string_equal(result(&p), "Succeeded");
}

static void the_exit_handler_has_its_own_arguments(void **state)
{
    PLAY(p);
    (void)state;
    play_of(&p, "argo", J("exit": "bye", "inputs": [{"name": "b", "default": "B"}],
        "exit_arguments":
        {"parameters": {"a": {"text": "{{workflow.status}}"}}}), ONE "," J("bye": {"inputs": {
        "parameters": [{"name": "a"}, {"name": "b"}]}, "step": {}}, "main": {"step": {}}), "");
    assert_string_equal(wanted(&p), "main");
    ends(&p, "main");
    assert_string_equal(input(&p, "main.onExit", "a"), "\"Succeeded\"");
    assert_string_equal(input(&p, "main.onExit", "b"), "\"B\"");
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
        json_array_append_new(tasks, json_pack("{s:s, s:s, s:o}", "name", "end", "template", "one",
            "after",
                                               after));
    }
    *p = (struct play){ .parameters = json_object(), .events = json_array(), .t = PLAY_CREATED };
    p->flow = json_pack("{s:s, s:s, s:{s:{s:{s:s}}, s:{s:{s:o}}}}", "dialect", "argo", "entry",
        "main",
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
    json_t *tasks = json_object_get(json_object_get(json_object_get(json_object_get(p.flow,
        "templates"),
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
    buf_printf(arg, "%s %s %s %d %s %s %s %g %g\n", n->name, n->id, node_phase_name(n->phase),
        n->attempt,
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
                     json_string_value(json_array_get(after, 0)),
                         json_string_value(json_array_get(after, 0)));
            json_object_set_new(t, "depends", json_string(depends));
        }
        json_object_set_new(t, "after", after);
        if (rng_below(r, 3) == 0)
            json_object_set_new(t, "loop", json_pack("{s:{s:s}}", "sequence", "count", "4"));
        if (rng_below(r, 6) == 0)
            json_object_set_new(t, "when", json_string(rng_below(r, 2) ? "a == a" : "a == b"));
        if (rng_below(r, 8) == 0)
            json_object_set_new(t, "always", json_true());
        if (rng_below(r, 5) == 0)
            json_object_set_new(t, "continue_on", json_pack("{s:b}", "failed", 1));
        json_array_append_new(tasks, t);
    }
    play_of(p, "argo", J("exit": "leaf", "inputs": [{"name": "m", "default": "q"}]),
        J("leaf": {"inputs": {"parameters": [{"name": "m"}]}, "step": {"image": "i"}},
          "wait": {"suspend": {}},
          "again": {"inputs": {"parameters": [{"name": "m"}]}, "retry": {"limit": 2,
          "policy": "Always", "backoff_s": 1}, "step": {"image": "i"}},
          "sub": {"parallelism": 2, "inputs": {"parameters": [{"name": "m"}]},
          "outputs": {"parameters": [{"name": "o",
          "value": {"text": "{{tasks.l.outputs.parameters.o}}"}}]},
            "dag": {"tasks": [{"name": "l", "template": "leaf",
            "parameters": {"m": {"text": "{{inputs.parameters.m}}{{item}}"}}, "loop": {"items": [1,
            2, 3]}}]}},
          "main": {"step": {"image": "i"}}), "");
    run_graph_free(p->g);
    if (rng_below(r, 2))
        json_object_set_new(p->flow, "parallelism", json_integer(1 + rng_below(r, 4)));
    json_object_set_new(json_object_get(p->flow, "templates"), "main",
                        json_pack("{s:i, s:b, s:{s:b, s:o}}", "parallelism", (int)rng_below(r, 4),
                                  "fail_fast", rng_below(r, 4) == 0, "dag",
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
    OWN_MEM char *name = json_array_size(given) ? strdup(json_string_value(json_array_get(given,
        k))) : NULL;
    if (!name || rng_below(r, 60) == 0) {
        apply(p, rng_below(r, 2) ? "run.terminate" : "run.retry", json_object());
        return;
    }
    if (rng_below(r, 40) == 0) {        /* too late, for what it is in or for itself */
        const struct node *late = node(p, name);
        late = late->parent && rng_below(r, 2) ? late->parent : late;
        apply(p, "node.deadline", json_pack("{s:s}", "node", late->name));
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
            for (int twice = 0; twice < 1 + (strncmp(json_string_value(json_object_get(e, "type")),
                "node", 4) == 0); twice++)
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

CHECK_MAIN(a_failed_template_is_tried_again, retries_end_by_limit_expression_and_time,
           a_dag_may_be_tried_again_as_a_whole, the_exit_handler_runs_whatever_happened,
           a_terminated_run_stops_its_leaves_and_still_says_good_bye,
           who_terminates_twice_stops_the_exit_handler_too,
           a_dag_past_its_deadline_fails, suspended_tasks_wait_for_a_word_or_a_time,
           a_failed_run_goes_on_where_it_failed,
           a_template_that_fails_fast_begins_no_more_iterations,
           the_exit_handler_has_its_own_arguments, the_last_of_10000_costs_no_more_than_the_first,
           a_loop_of_10000_with_few_places_costs_the_same_each,
           ten_thousand_skipped_tasks_are_no_deeper_than_one, a_replay_gives_the_same_nodes)
