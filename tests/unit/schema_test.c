#include "data/schema.h"

#include <string.h>

#include "data/rows.h"
#include "tests/check.h"
#include "tests/quoted.h"

static struct schema *parse(const char *text)
{
    struct err err = { 0 };
    struct schema *s = NULL;
    OWN_JSON json_t *j = json_quoted(text);
    assert_ok(schema_parse(j, "data", 0, &s, &err));
    return s;
}

static void only_columns_that_are_needed_are_read(void **state)
{
    (void)state;
    struct schema *s = parse(
        "{'target': 'tip', 'weight': 'w', 'derived': {'tip': 'tips > 0.2 * fare', 'unused': 'z'},"
        "'features': {'fare': 'numeric', 'hour': {'vocabulary': ['1', 2]},"
        " 'band': {'bucketize': 'hour', 'boundaries': [6, 12]}}}");
    assert_int_equal(s->n_columns, 4);
    assert_string_equal(s->column[0].name, "tips");
    assert_string_equal(s->column[1].name, "fare");
    assert_string_equal(s->column[2].name, "w");
    assert_string_equal(s->column[3].name, "hour");
    assert_int_equal(s->column[3].as, ROWS_TEXT | ROWS_NUMBER);
    assert_int_equal(s->n_derived, 1);
    assert_int_equal(s->task, TASK_CLASSIFICATION);
    assert_int_equal(s->classes, 2);
    assert_int_equal(s->feature[1].ids, 3);
    assert_int_equal(s->feature[2].ids, 4);
    assert_false(schema_complete(s));
    schema_free(s);
}

static void derived_columns_may_read_derived_columns(void **state)
{
    (void)state;
    struct schema *s = parse(
        "{'target': 'c', 'derived': {'c': 'b * 2', 'b': 'a + 1'}, 'features': {'x': 'numeric'}}");
    assert_int_equal(s->n_derived, 2);
    assert_string_equal(s->derived[0].name, "b");       /* before what reads it */
    assert_int_equal(s->derived[1].arg[0], SCHEMA_DERIVED);
    assert_int_equal(s->task, TASK_REGRESSION);
    schema_free(s);
}

static void the_task_follows_from_the_target(void **state)
{
    (void)state;
    static const struct { const char *text; enum task_kind task; int classes;
    } cases[] = {
        { "{'target': 'y', 'features': {'x': 'numeric'}}", TASK_REGRESSION, 0 },
        { "{'target': 'y', 'labels': ['a', 'b', 'c'], 'features': {'x': 'numeric'}}",
          TASK_CLASSIFICATION, 3 },
        { "{'target': 'y', 'task': 'classification', 'features': {'x': 'numeric'}}",
          TASK_CLASSIFICATION, 0 },
        { "{'target': 'y', 'derived': {'y': '!a'}, 'features': {'x': 'numeric'}}",
          TASK_CLASSIFICATION, 2 },
        { "{'target': 'y', 'derived': {'y': '!a'}, 'task': 'regression', 'features': {'x': "
          "'numeric'}}",
          TASK_REGRESSION, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct schema *s = parse(cases[i].text);
        assert_int_equal(s->task, cases[i].task);
        assert_int_equal(s->classes, cases[i].classes);
        schema_free(s);
    }
}

static void what_is_wrong_is_named_by_its_path(void **state)
{
    (void)state;
    static const struct { const char *text, *says;
    } cases[] = {
        { "{'features': {'x': 'numerical'}}", "data.features.x: one of numeric" },
        { "{'features': {'x': {'numeric': {'scale': 'rage'}}}}",
          "data.features.x.numeric.scale: \"rage\" is not a "
          "choice here (did you mean \"range\"?)" },
        { "{'features': {'x': {'numeric': {'mean': 1}}}}", "mean and variance are given together" },
        { "{'features': {'x': {'numeric': {'mean': 1, 'variance': -1}}}}", "not a negative one" },
        { "{'features': {'x': {'vocabulary': 'all'}}}", "data.features.x.vocabulary" },
        { "{'features': {'x': {'vocabulary': ['a', 'a']}}}", "\"a\" is there already" },
        { "{'features': {'x': {'vocabulary': []}}}", "an empty list" },
        { "{'features': {'x': {'identity': 0}}}", "data.features.x.identity" },
        { "{'features': {'x': {'hash': 1.5}}}", "data.features.x.hash" },
        { "{'features': {'x': {'bucketize': 'y'}}}", "boundaries" },
        { "{'features': {'x': {'bucketize': 'y', 'boundaries': [1, 1]}}}",
          "boundaries[1]: numbers that rise" },
        { "{'features': {'x': {'cross': ['a', 'b']}}}",
          "cross[0]: \"a\" is not a categorical feature" },
        { "{'derived': {'a': 'b +'}}", "data.derived.a: expression" },
        { "{'derived': {'a': 'b', 'b': 'a'}, 'target': 'a'}", "reads itself" },
        { "{'derived': {'a': 1}}", "data.derived.a: an expression" },
        { "{'on_error': 'fil'}", "did you mean \"fill\"" },
        { "{'delimiter': ',,'}", "data.delimiter" },
        { "{'target': 'x', 'features': {'x': 'numeric'}}", "is the target too" },
        { "{'labels': ['a', 'a'], 'target': 'y'}", "data.labels[1]" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err = { 0 };
        struct schema *s = NULL;
        OWN_JSON json_t *j = json_quoted(cases[i].text);
        assert_fails(schema_parse(j, "data", 0, &s, &err), ERR_INVALID);
        assert_null(s);
        if (!strstr(err.text, cases[i].says))
            fail_msg("%s: \"%s\" does not say \"%s\"", cases[i].text, err.text, cases[i].says);
    }
}

static void a_description_reads_back_as_itself(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct schema *s = parse(
        "{'target': 't', 'weight': 'w', 'labels': ['no', 'yes'], 'on_error': 'fill', 'skip': 2,"
        "'delimiter': ';', 'header': ['z', 'a', 't', 'w'], 'missing': ['', '?'],"
        "'derived': {'d': 'log(a) + 1'}, 'features': {"
        " 'z': {'numeric': {'mean': 0.1, 'variance': 2.5, 'log': true}},"
        " 'a': {'vocabulary': ['x', 'y']}, 'd': {'identity': 7}, 'h': {'hash': 10},"
        " 'b': {'bucketize': 'd', 'boundaries': [0.5, 1.5]},"
        " 'c': {'cross': ['a', 'b'], 'buckets': 50}}}");
    assert_true(schema_complete(s));
    OWN_JSON json_t *once = schema_describe(s);
    /* As a file that was sorted on the way. */
    OWN_MEM char *text = json_dumps(once, JSON_SORT_KEYS);
    OWN_JSON json_t *sorted = json_loads(text, 0, NULL);
    struct schema *t = NULL;
    assert_ok(schema_parse(sorted, "data", 0, &t, &err));
    OWN_JSON json_t *twice = schema_describe(t);
    if (!json_equal(once, twice))
        fail_msg("%s\n%s", text, json_dumps(twice, JSON_SORT_KEYS));
    for (int i = 0; i < s->n_features; i++)
        assert_string_equal(s->feature[i].name, t->feature[i].name);
    assert_true(t->feature[0].mean == 0.1);
    schema_free(s);
    schema_free(t);
}

CHECK_MAIN(only_columns_that_are_needed_are_read, derived_columns_may_read_derived_columns,
           the_task_follows_from_the_target, what_is_wrong_is_named_by_its_path,
           a_description_reads_back_as_itself)
