/* tests/unit/steps_ir_test.c - what a component of kfp 2 is told, and what is made of its answer */
#include "pipelines/steps_ir.h"

#include <string.h>

#include "base/json.h"
#include "base/own.h"
#include "tests/check.h"

static const struct steps_ir of = { "p", "R", "wf-x", "N", "train", "artifacts-p", 0 };

static const char order_text[] =
    "{\"kind\": \"step\", \"step\": {\"image\": \"python:3.9\", \"executor\": {}, \"command\": [\"sh\", "
    "{\"format\": \"{{$.inputs.parameters['n']}}/{{$.outputs.parameters['o'].output_file}}\"}], "
    "\"args\": [\"--executor_input\", \"{{$}}\", \"{{$.inputs.artifacts['d'].path}}\", "
    "\"{{$.outputs.artifacts['m'].uri}}\", \"{{$.pipeline_task_name}}\", "
    "\"{\\\"Concat\\\": [\\\"a=\\\", \\\"{{$.inputs.parameters['s']}}\\\"]}\", "
    "\"{\\\"IfPresent\\\": {\\\"InputName\\\": \\\"s\\\", \\\"Then\\\": [\\\"--s\\\", \\\"1\\\"]}}\", "
    "\"{\\\"IfPresent\\\": {\\\"InputName\\\": \\\"no\\\", \\\"Then\\\": [\\\"--no\\\"]}}\"], "
    "\"env\": [{\"name\": \"E\", \"value\": \"{{$.inputs.parameters['s']}}\"}]}, \"inputs\": "
    "{\"parameters\": [{\"name\": \"n\", \"value\": [1, 2]}, {\"name\": \"s\", \"value\": \"t\"}, "
    "{\"name\": \"no\", \"value\": null}], \"artifacts\": [{\"name\": \"d\", \"value\": {\"uri\": "
    "\"gs://b/k\", \"sha256\": \"aa\", \"size\": 1, \"dir\": false, \"type\": \"system.Dataset\", "
    "\"metadata\": {\"rows\": 3}}}]}, \"outputs\": {\"parameters\": [{\"name\": \"o\", \"type\": "
    "\"NUMBER_INTEGER\"}], \"artifacts\": [{\"name\": \"m\", \"type\": \"system.Model\"}]}}";

static const char *arg(const json_t *order, size_t i)
{
    return json_string_value(json_array_get(json_object_get(json_object_get(order, "step"), "args"),
                                            i));
}

static void placeholders_are_filled_and_paths_are_those_of_the_sdk(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN_JSON json_t *order = json_loads(order_text, 0, NULL);

    assert_non_null(order);
    assert_ok(steps_ir_fill(&of, order, &err));
    const json_t *step = json_object_get(order, "step");
    assert_string_equal(json_string_value(json_array_get(json_object_get(step, "command"), 1)),
                        "[1,2]/" STEPS_IR_DIR "/o");
    assert_string_equal(arg(order, 2), "/gcs/b/k");
    assert_string_equal(arg(order, 3), "gs://artifacts-p/R/N/m");
    assert_string_equal(arg(order, 4), "train");
    assert_string_equal(arg(order, 5), "a=t");
    assert_string_equal(arg(order, 6), "--s");
    assert_string_equal(arg(order, 7), "1");
    assert_null(arg(order, 8));
    assert_string_equal(text_of(json_array_get(json_object_get(step, "env"), 0), "value"), "t");
    OWN_JSON json_t *input = json_loads(arg(order, 1), 0, NULL);
    OWN_JSON json_t *want = json_pack(
        "{s:{s:{s:[i, i], s:s}, s:{s:{s:[{s:s, s:s, s:{s:s, s:s}, s:{s:i}}]}}}, s:{s:{s:{s:s}}, "
        "s:{s:{s:[{s:s, s:s, s:{s:s, s:s}, s:{}}]}}, s:s}}", "inputs", "parameterValues", "n", 1, 2,
        "s", "t", "artifacts", "d", "artifacts", "name", "d", "uri", "gs://b/k", "type",
        "schemaTitle", "system.Dataset", "schemaVersion", "0.0.1", "metadata", "rows", 3, "outputs",
        "parameters", "o", "outputFile", STEPS_IR_DIR "/o", "artifacts", "m", "artifacts", "name",
        "m", "uri", "gs://artifacts-p/R/N/m", "type", "schemaTitle", "system.Model",
        "schemaVersion", "0.0.1", "metadata", "outputFile", STEPS_IR_SAID);
    assert_non_null(want);
    assert_true(json_equal(input, want));
    const json_t *outputs = json_object_get(order, "outputs");
    assert_string_equal(text_of(json_array_get(json_object_get(outputs, "artifacts"), 0), "path"),
                        "/gcs/artifacts-p/R/N/m");
}

static void a_placeholder_that_names_nothing_is_told(void **state)
{
    (void)state;
    static const char *const wrong[] = { "{{$.inputs.parameters['zzz']}}",
        "{{$.inputs.artifacts['d'].nothing}}", "{{$.outputs.artifacts['zzz'].path}}", "{{$.what}}",
        "{{$.outputs.parameters['zzz'].output_file}}" };

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct err err = { 0 };
        OWN_JSON json_t *order = json_loads(order_text, 0, NULL);
        json_array_append_new(json_object_get(json_object_get(order, "step"), "args"),
                              json_string(wrong[i]));
        assert_fails(steps_ir_fill(&of, order, &err), ERR_INVALID);
        assert_non_null(strstr(err.text, "{{$."));
    }
}

static void parameters_have_their_types(void **state)
{
    (void)state;
    static const struct { const char *type, *text, *want; } values[] = {
        { "STRING", "12", "\"12\"" }, { "NUMBER_INTEGER", "12", "12" }, { "BOOLEAN", "True", "true" },
        { "NUMBER_DOUBLE", "0.5", "0.5" }, { "LIST", "[1]", "[1]" }, { "STRUCT", "{}", "{}" },
        { "BOOLEAN", "false", "false" },
    };
    json_t *v;

    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        struct err err = { 0 };
        assert_ok(steps_ir_value(values[i].type, values[i].text, strlen(values[i].text), &v, &err));
        OWN_MEM char *got = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
        assert_string_equal(got, values[i].want);
        json_decref(v);
    }
    struct err err = { 0 };
    assert_fails(steps_ir_value("NUMBER_INTEGER", "many", 4, &v, &err), ERR_INVALID);
}

static void what_is_said_of_artifacts_is_kept_also_without_a_file(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN_JSON json_t *order = json_loads(order_text, 0, NULL), *artifacts = json_object();
    OWN_JSON json_t *said = json_pack("{s:{s:{s:[{s:s, s:s, s:{s:f}}]}}}", "artifacts", "m",
                                      "artifacts", "name", "m", "uri", "gs://x/y", "metadata",
                                      "accuracy", 0.5);

    assert_ok(steps_ir_fill(&of, order, &err));
    steps_ir_artifacts(&of, order, said, artifacts);
    const json_t *m = json_object_get(artifacts, "m");
    assert_string_equal(text_of(m, "uri"), "gs://x/y");
    assert_string_equal(text_of(m, "type"), "system.Model");
    assert_true(number_of(json_object_get(m, "metadata"), "accuracy") == 0.5);
}

CHECK_MAIN(placeholders_are_filled_and_paths_are_those_of_the_sdk,
           a_placeholder_that_names_nothing_is_told, parameters_have_their_types,
           what_is_said_of_artifacts_is_kept_also_without_a_file)
