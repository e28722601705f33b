/* tests/unit/graph_test.c - models from the words of a spec */
#include <stdlib.h>
#include <string.h>

#include "engine/graph.h"
#include "tests/check.h"

static const struct field image[] = {
    { .name = "image", .type = DTYPE_U8, .h = 28, .w = 28, .c = 1 },
    { .name = "target", .type = DTYPE_I32, .h = 1, .w = 1, .c = 1, .ids = 10 },
};
static const struct field table[] = {
    { .name = "numeric", .type = DTYPE_F32, .h = 1, .w = 1, .c = 4 },
    { .name = "day", .type = DTYPE_I32, .h = 1, .w = 1, .c = 1, .ids = 7 },
    { .name = "hour", .type = DTYPE_I32, .h = 1, .w = 1, .c = 1, .ids = 24 },
    { .name = "target", .type = DTYPE_I32, .h = 1, .w = 1, .c = 1, .ids = 2 },
};
static const struct field numbers[] = {
    { .name = "numeric", .type = DTYPE_F32, .h = 1, .w = 1, .c = 4 },
    { .name = "target", .type = DTYPE_F32, .h = 1, .w = 1, .c = 1 },
};

static int build(const char *text, const struct field *f, int n, int classes, struct graph **out,
                 struct err *err)
{
    json_t *model = json_loads(text, 0, NULL);
    assert_non_null(model);
    int rc = graph_build(model, f, n, classes, out, err);
    json_decref(model);
    return rc;
}

#define LENET                                                                                      \
    "[{\"conv2d\": {\"out\": 6, \"kernel\": 5}}, {\"relu\": {}}, {\"maxpool\": {\"kernel\": 2}},"  \
    " {\"conv2d\": {\"out\": 16, \"kernel\": [5, 5]}}, {\"relu\": {}}, {\"maxpool\": {\"kernel\": 2}}," \
    " {\"flatten\": {}}, {\"linear\": {\"out\": 120}}, {\"relu\": {}}, {\"linear\": {\"out\": 10, "  \
    "\"name\": \"head\"}}]"

static void a_list_gets_shapes_and_names(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct graph *g = NULL;

    assert_ok(build(LENET, image, 2, 10, &g, &err));
    assert_int_equal(g->n, 11);
    assert_int_equal(g->output, 10);
    assert_string_equal(g->node[1].name, "conv1");
    assert_string_equal(g->node[4].name, "conv2");
    assert_string_equal(g->node[8].name, "fc1");
    assert_string_equal(g->node[10].name, "head");
    assert_int_equal(g->node[1].h, 24);
    assert_int_equal(g->node[6].h, 4);
    assert_int_equal(g->node[7].c, 256);
    assert_int_equal(g->node[3].stride[0], 2);
    assert_int_equal(g->node[1].uses, 1);
    assert_int_equal(g->node[10].uses, 0);
    graph_free(g);
}

static void what_only_linear_layers_read_stays_in_place(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct graph *g = NULL;

    assert_ok(build(LENET, image, 2, 10, &g, &err));
    assert_int_equal(g->node[7].flat_h, 4);
    assert_int_equal(g->node[7].flat_w, 4);
    graph_free(g);
    assert_ok(build("[{\"flatten\": {}}, {\"relu\": {}}, {\"linear\": {\"out\": 10}}]", image, 2, 10,
                    &g, &err));
    assert_int_equal(g->node[2].flat_h, 28);
    graph_free(g);
}

static void what_anything_else_reads_is_copied(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct graph *g = NULL;

    assert_ok(build("[{\"flatten\": {}}, {\"relu\": {}}, {\"layernorm\": {}}, {\"linear\": {\"out\": "
                    "10}}]", image, 2, 10, &g, &err));
    assert_int_equal(g->node[1].flat_h, 1);
    assert_int_equal(g->node[2].flat_h, 1);
    graph_free(g);
    const struct field wide[] = { image[0], { .name = "target", .type = DTYPE_F32, .h = 1, .w = 1,
                                              .c = 784 } };
    assert_ok(build("[{\"flatten\": {}}]", wide, 2, 0, &g, &err));
    assert_int_equal(g->node[1].flat_h, 1);
    assert_int_equal(g->node[1].flat_w, 1);
    graph_free(g);
}

/* Each: a model, its data, classes, and what the message must say. */
static void what_does_not_fit_is_said_with_both_sizes(void **state)
{
    (void)state;
    static const struct { const char *model; const struct field *f; int n, classes; const char *says; }
    wrong[] = {
        { "[{\"linear\": {\"out\": 10}}]", image, 2, 10, "model[0].linear fc1: got 1x28x28 = 784" },
        { "[{\"conv2d\": {\"out\": 2, \"kernel\": 31}}]", image, 2, 10,
          "model[0].conv2d conv1: got 1x28x28 = 784 values, which with padding 0 is smaller than the "
          "window of 31" },
        { "[{\"conv2d\": {\"out\": 3, \"kernel\": 3, \"groups\": 2}}]", image, 2, 10,
          "1 input and 3 output channels do not divide into 2" },
        { "[{\"maxpool\": {\"kernel\": 2, \"padding\": 2}}]", image, 2, 10, "more than half" },
        { "[{\"flatten\": {}}, {\"linear\": {\"out\": 9}}]", image, 2, 10,
          "the last layer gives 9 values, the data has 10 classes" },
        { "[{\"conv2d\": {\"out\": 10, \"kernel\": 3}}]", image, 2, 10, "ends with 10x26x26" },
        { "[{\"linear\": {\"out\": 2}}]", numbers, 2, 0, "gives 2 values, the target has 1" },
        { "[{\"linear\": {\"out\": 1}}]", table, 4, 2, "\"day\" is categorical" },
        { "[]", numbers, 2, 0, "has no layers" },
        { "[{\"linear\": {\"out\": 1e12}}]", numbers, 2, 0, "\"out\" is 1e+12, not from 0 to" },
        { "[{\"conv2d\": {\"out\": 16000000, \"kernel\": 1, \"padding\": 1000}}]", image, 2, 10,
          "gives 16000000x2028x2028 values, more than" },
        { "[{\"linear\": {\"out\": 3, \"name\": \"a\"}}, {\"linear\": {\"out\": 1, \"name\": "
          "\"a\"}}]", numbers, 2, 0, "model[1].linear: the name \"a\" is used twice" },
        { "[{\"add\": {}}]", numbers, 2, 0, "needs several inputs" },
        { "[{\"dropout\": {\"p\": 1}}]", numbers, 2, 0, "p is 1, not within" },
        { "{\"nodes\": {\"e\": {\"embedding\": {\"rows\": 5, \"dim\": 2, \"of\": \"day\"}}}}", table,
          4, 2, "model.nodes.e.embedding e: has 5 rows, but \"day\" has ids 0..6" },
        { "{\"nodes\": {\"e\": {\"embedding\": {\"rows\": 5, \"dim\": 2, \"of\": \"numeric\"}}}}",
          table, 4, 2, "\"numeric\" holds no ids" },
        { "{\"nodes\": {\"a\": {\"linear\": {\"out\": 2}, \"from\": [\"day\"]}}}", table, 4, 2,
          "\"day\" holds ids, which only an embedding reads" },
        { "{\"nodes\": {\"a\": {\"relu\": {}, \"from\": [\"b\"]}, \"b\": {\"relu\": {}, \"from\": "
          "[\"a\"]}}}", numbers, 2, 0, "in a circle" },
        { "{\"nodes\": {\"a\": {\"relu\": {}, \"from\": [\"nobody\"]}}}", numbers, 2, 0,
          "no node or feature \"nobody\"" },
        { "{\"nodes\": {\"a\": {\"relu\": {}, \"from\": [\"numeric\"]}, \"b\": {\"linear\": {\"out\":"
          " 1}, \"from\": [\"numeric\"]}}}", numbers, 2, 0, "model.nodes.a: is read by no node" },
        { "{\"nodes\": {\"a\": {\"linear\": {\"out\": 3}, \"from\": [\"numeric\"]}, \"b\": {\"add\": "
          "{}, \"from\": [\"a\", \"numeric\"]}}}", numbers, 2, 0,
          "\"a\" has 3 values, but \"numeric\" has 4 values" },
        { "{\"nodes\": {\"a\": {\"linear\": {\"out\": 1}, \"from\": [\"numeric\"]}}, \"output\": "
          "\"z\"}", numbers, 2, 0, "model.output: there is no node \"z\"" },
        { "{\"wide_and_deep\": {\"hidden\": [4], \"cross\": [[\"day\", \"numeric\"]]}}", table, 4, 2,
          "\"numeric\" is no categorical feature" },
    };

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct err err = { 0 };
        struct graph *g = NULL;
        assert_fails(build(wrong[i].model, wrong[i].f, wrong[i].n, wrong[i].classes, &g, &err),
                     ERR_INVALID);
        if (!strstr(err.text, wrong[i].says))
            fail_msg("\"%s\" does not say \"%s\"", err.text, wrong[i].says);
        assert_null(g);
    }
}

static void nodes_may_come_in_any_order(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct graph *g = NULL;

    assert_ok(build("{\"nodes\": {\"sum\": {\"add\": {}, \"from\": [\"b\", \"a\"]}, \"b\": {\"relu\": "
                    "{}, \"from\": [\"a\"]}, \"a\": {\"linear\": {\"out\": 1}, \"from\": "
                    "[\"numeric\"]}}, \"output\": \"sum\"}", numbers, 2, 0, &g, &err));
    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < g->node[i].n_in; k++)
            assert_true(g->node[i].in[k] < i);
    assert_string_equal(g->node[g->output].name, "sum");
    assert_int_equal(g->node[1].uses, 2);
    graph_free(g);
}

static void a_node_reads_the_one_before_by_default(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct graph *g = NULL;

    assert_ok(build("{\"nodes\": {\"a\": {\"linear\": {\"out\": 3}}, \"b\": {\"linear\": {\"out\": "
                    "1}}}}", numbers, 2, 0, &g, &err));
    assert_int_equal(g->n, 3);
    assert_string_equal(g->node[g->node[2].in[0]].name, "a");
    graph_free(g);
}

static const struct node *find(const struct graph *g, const char *name)
{
    for (int i = 0; i < g->n; i++)
        if (strcmp(g->node[i].name, name) == 0)
            return &g->node[i];
    fail_msg("there is no node %s", name);
    return NULL;
}

static void wide_and_deep_has_two_groups_and_one_score_for_two_classes(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct graph *g = NULL;

    assert_ok(build("{\"wide_and_deep\": {\"hidden\": [16, 8], \"embedding\": 3, \"cross\": [["
                    "\"day\", \"hour\"]], \"cross_buckets\": 50, \"dropout\": 0.1}}", table, 4, 2, &g,
                    &err));
    assert_int_equal(g->node[g->output].c, 1);
    assert_int_equal(find(g, "wide.day")->group, 1);
    assert_int_equal(find(g, "wide.day")->rows, 7);
    assert_true(find(g, "wide.day")->spread == 0);
    assert_int_equal(find(g, "wide.day-hour")->rows, 50);
    assert_int_equal(find(g, "wide.day-hour")->n_cross, 2);
    assert_int_equal(find(g, "wide.numeric")->group, 1);
    assert_int_equal(find(g, "deep.hour")->group, 0);
    assert_int_equal(find(g, "deep.hour")->dim, 3);
    assert_int_equal(find(g, "deep.input")->c, 4 + 3 + 3);
    assert_int_equal(find(g, "deep.fc2")->c, 8);
    graph_free(g);
}

CHECK_MAIN(a_list_gets_shapes_and_names, what_only_linear_layers_read_stays_in_place,
           what_anything_else_reads_is_copied, what_does_not_fit_is_said_with_both_sizes,
           nodes_may_come_in_any_order, a_node_reads_the_one_before_by_default,
           wide_and_deep_has_two_groups_and_one_score_for_two_classes)
