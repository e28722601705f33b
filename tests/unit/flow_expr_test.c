/* tests/unit/flow_expr_test.c - expressions of pipelines: values, names, tags, conditions,
    limits */
#include <string.h>

#include "pipelines/expr.h"
#include "tests/check.h"

/* A scope of dotted names, as a run has. */
static json_t *scope_get(void *arg, const char *path)
{
    return json_incref(json_object_get(arg, path));
}

static json_t *names(void)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:o, s:s}",
                     "inputs.parameters.n", "7",
                     "tasks.flip-coin.outputs.result", "heads",
                     "inputs.parameters.my-int", "41",
                     "workflow.creationTimestamp", "2018-08-23T05:42:49Z",
                     "workflow.parameters.config",
                     "{\"a\": \"1\", \"b\": 2, \"employees\": [{\"name\": \"Baris\", \"age\": 43}, "
                     "{\"name\": \"Mo\", \"age\": 42}, {\"name\": \"Jai\", \"age\": 44}]}",
                     "inputs.parameter_values", json_pack("{s:i, s:s, s:b}", "x", 5, "y", "z", "b",
                     1),
                     "item.kind", "even");
}

/* The value as compact JSON; an error as its sentence. */
static const char *value(const char *text)
{
    static char shown[2048];
    struct err err = { 0 };
    OWN_JSON json_t *all = names();
    OWN_JSON json_t *v = NULL;
    OWN(flow_expr) e = NULL;
    struct flow_scope s = { scope_get, all };
    if (flow_expr_parse(text, strlen(text), &e, &err) < 0 || flow_expr_eval(e, &s, &v, &err) < 0) {
        assert_int_equal(err.code, ERR_INVALID);
        snprintf(shown, sizeof shown, "%s", err.text);
        return shown;
    }
    OWN_MEM char *dump = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_SORT_KEYS);
    snprintf(shown, sizeof shown, "%s", dump);
    return shown;
}

static void check_values(const char *const (*rows)[2])
{
    for (; (*rows)[0]; rows++)
        if (strcmp(value((*rows)[0]), (*rows)[1]))
            fail_msg("%s is %s, not %s", (*rows)[0], value((*rows)[0]), (*rows)[1]);
}

static void operators_bind_as_in_the_language(void **state)
{
    static const char *const rows[][2] = {
        { "1 + 2 * 3", "7" }, { "(1 + 2) * 3", "9" }, { "2 ** 3 ** 2", "512.0" },
        { "-2 + 5", "3" }, { "7 % 4", "3" }, { "1 / 2", "0.5" }, { "9223372036854775807 + 1",
        "9.2233720368547758e18" },
        { "1 < 2 && 2 <= 2 && !(3 > 4)", "true" }, { "not true or false", "false" },
        { "'a' + 'b' == \"ab\"", "true" }, { "true ? 1 : 2", "1" },
        { "false ? 1 : false ? 2 : 3", "3" }, { "nil ?? 4", "4" }, { "'abc' contains 'bc'",
        "true" },
        { "'abc' startsWith 'ab' and 'abc' endsWith 'c'", "true" },
        { "'a1' matches '^[a-z]\\\\d$'", "true" }, { "2 in [1, 2]", "true" },
        { "3 not in [1, 2]", "true" }, { "'k' in {k: 1}", "true" }, { "[1, 2, 3][-1]", "3" },
        { "[1, 2, 3][1:]", "[2,3]" }, { "'hello'[1:3]", "\"el\"" }, { "{a: {'b-c': 2}}.a['b-c']",
        "2" },
        { "1 == 1.0", "true" }, { "'1' == 1", "false" }, { "\"\\u00e9\\n\"", "\"\u00e9\\n\"" },
        { "1_000", "1000" }, { "1.5e3", "1500.0" }, { "[1, 2,]", "[1,2]" }, { "`a\\b`",
        "\"a\\\\b\"" },
        { NULL, NULL },
    };
    (void)state;
    check_values(rows);
}

static void names_are_looked_up_by_their_longest_path(void **state)
{
    static const char *const rows[][2] = {
        { "inputs.parameters.n", "\"7\"" }, { "inputs.parameters['my-int']", "\"41\"" },
        { "asInt(inputs.parameters['my-int']) + 1", "42" },
        { "tasks['flip-coin'].outputs.result == 'heads'", "true" },
        { "inputs.parameter_values['x'] > 4", "true" },
        { "inputs.parameter_values['b'] == true", "true" },
        { "int(inputs.parameter_values['x']) * 2", "10" },
        { "tasks.gone.outputs.result ?? 'other'", "\"other\"" },
        { "tasks.gone.outputs.result == nil", "true" },
        { "tasks.gone.outputs.result",
          "\"tasks.gone.outputs.result\" is not known here, or has no value" },
        { NULL, NULL },
    };
    (void)state;
    check_values(rows);
}

static void functions_do_what_argo_s_examples_need(void **state)
{
    static const char *const rows[][2] = {
        { "filter([1, 2, 3], {# > 1})", "[2,3]" }, { "map([1, 2], {# * 2})", "[2,4]" },
        { "toJson(filter([1, 3], {# > 1}))", "\"[3]\"" }, { "count([1, 2], {# > 1})", "1" },
        { "any([{x: 1}], {.x == 1})", "true" }, { "all([], {#})", "true" },
        { "one([1, 2], {# == 2}) && none([1], {# == 2})", "true" }, { "find([1, 2], # > 1)", "2" },
        { "asFloat('1.5')", "1.5" }, { "string(1)", "\"1\"" }, { "string(2.0)", "\"2\"" },
        { "len([1, 2]) + len('abc')", "5" }, { "upper('a') + lower('B') + trim(' c ')", "\"Abc\"" },
        { "join(split('a,b', ','), '-')", "\"a-b\"" }, { "replace('aXa', 'a', 'b')", "\"bXb\"" },
        { "'x' | upper()", "\"X\"" }, { "'abc'.startsWith('a')", "true" },
        { "sprig.trim(' a ')", "\"a\"" }, { "sprig.add(1, 2, 3)", "6" },
        { "sprig.date('2006', workflow.creationTimestamp)", "\"2018\"" },
        { "sprig.date('Jan 02, 2006 15:04', workflow.creationTimestamp)",
        "\"Aug 23, 2018 05:42\"" },
        { "sprig.default('d', '')", "\"d\"" }, { "sprig.ternary('a', 'b', false)", "\"b\"" },
        { "sprig.int('x')", "0" }, { "max(1, 3, 2) - min([4, 2])", "1" }, { "sum([1, 2])", "3" },
        { "sort(['b', 'a'])", "[\"a\",\"b\"]" }, { "uniq([1, 1, 2])", "[1,2]" },
        { "reverse([1, 2])", "[2,1]" }, { "sprig.b64dec(sprig.b64enc('any'))", "\"any\"" },
        { "keys({a: 1})", "[\"a\"]" }, { "fromJson('[1]')[0]", "1" },
        { "jsonpath(workflow.parameters.config, '$.b')", "2" },
        { "jsonpath(workflow.parameters.config, '$.employees[*].name')",
          "[\"Baris\",\"Mo\",\"Jai\"]" },
        { "jsonpath(workflow.parameters.config, '$.employees[0:1]')",
          "[{\"age\":43,\"name\":\"Baris\"}]" },
        { "jsonpath(workflow.parameters.config, '$.employees[?(@.age>42 && @.age<44)].age')",
        "[43]" },
        { "jsonpath(workflow.parameters.config, '$.employees[?(@.name==\"Baris\")].age')", "[43]" },
        { "jsonpath(workflow.parameters.config, '$..age')", "[43,42,44]" },
        { "jsonpath('[{\"value\": \"true\"}]', '$[0].value')", "\"true\"" },
        { "jsonpath('{}', '$.a')", "the JSON path \"$.a\" matches nothing" },
        { "asInt('x')", "asInt: \"x\" is no number" }, { "nothing(1)",
        "there is no function \"nothing\"" },
        { "len(1, 2)", "len takes 1 argument, not 2" }, { NULL, NULL },
    };
    (void)state;
    check_values(rows);
}

static void a_wrong_expression_is_told_with_its_place(void **state)
{
    static const char *const rows[][2] = {
        { "1 +", "expression, character 4: a value is missing at its end" },
        { "(1", "expression, character 3: a \")\" is missing at its end" },
        { "1 2", "expression, character 3: an operator is missing at \"2\"" },
        { "'a", "expression, character 1: a text that does not end at \"'a\"" },
        { "a ? b", "expression, character 6: a \":\" is missing at its end" },
        { "", "expression, character 1: a value is missing at its end" },
        { "1 / 0", "division by zero" }, { "'a' < 1", "a text and a number cannot be compared" },
        { "1 && true", "the condition comes to 1, neither true nor false" },
        { "'a' matches '(a{200}){200}'", "the pattern \"(a{200}){200}\" is too large" },
        { "'a' matches 'a+++++++++++'", "the pattern \"a+++++++++++\" is too large" },
        { "'a' matches '((((((((((a+)+)+)+)+)+)+)+)+)+)+'",
          "the pattern \"((((((((((a+)+)+)+)+)+)+)+)+)+)+\" is too large" },
        { "'ab1' matches '^([a-z]+)+[0-9]{1,3}$'", "true" },
        { NULL, NULL },
    };
    (void)state;
    check_values(rows);
}

static void what_is_too_deep_too_long_or_too_large_is_refused(void **state)
{
    struct err err = { 0 };
    OWN(flow_expr) e = NULL;
    OWN_BUF b = BUF_INIT;

    (void)state;
    for (int i = 0; i < 5000; i++)
        buf_text(&b, "(");
    assert_fails(flow_expr_parse(b.data, b.n, &e, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "too deeply"));
    buf_clear(&b);
    for (int i = 0; i < 5000; i++)
        buf_text(&b, "1+");
    buf_text(&b, "1");
    assert_fails(flow_expr_parse(b.data, b.n, &e, &err), ERR_INVALID);
    buf_clear(&b);
    for (int i = 0; i < FLOW_EXPR_LENGTH_MAX; i++)
        buf_text(&b, "  ");
    assert_fails(flow_expr_parse(b.data, b.n, &e, &err), ERR_INVALID);
    assert_non_null(strstr(value("repeat(repeat('abcdefgh', 100000), 100)"), "bytes"));
    assert_non_null(strstr(value("map(split(repeat('a,', 3000), ','), {map(split(repeat('a,', 300),"
                                 " ','), {#})})"), "more than"));
}

static int collect(void *arg, const char *path)
{
    buf_printf(arg, "%s ", path);
    return 0;
}

static int collect_tag(void *arg, const char *tag, bool expression)
{
    buf_printf(arg, "%s%s;", expression ? "=" : "", tag);
    return 0;
}

static void names_and_tags_are_listed_for_validation(void **state)
{
    struct err err = { 0 };
    OWN_BUF b = BUF_INIT;
    OWN(flow_expr) e = NULL;
    OWN(flow_expr) d = NULL;
    const char *text = "a.b['c-d'] + sprig.trim(x) + y[z].w + filter(q, {.v})[0]";

    (void)state;
    assert_ok(flow_expr_parse(text, strlen(text), &e, &err));
    assert_int_equal(flow_expr_names(e, collect, &b), 0);
    assert_string_equal(b.data, "a.b.c-d x y z q ");
    buf_clear(&b);
    assert_ok(flow_expr_parse_depends("(a-1.Succeeded || a-1.Skipped) && !b", &d, &err));
    assert_int_equal(flow_expr_names(d, collect, &b), 0);
    assert_string_equal(b.data, "a-1.Succeeded a-1.Skipped b ");
    buf_clear(&b);
    assert_ok(flow_expr_tags("x {{ a.b }} {{=map([1], {# > 1})}}{{=toJson({a: {b: 1}})}}",
        collect_tag,
                             &b, &err));
    assert_string_equal(b.data, "a.b;=map([1], {# > 1});=toJson({a: {b: 1}});");
    assert_fails(flow_expr_tags("{{a", collect_tag, &b, &err), ERR_INVALID);
    assert_fails(flow_expr_tags("{{=1 +}}", collect_tag, &b, &err), ERR_INVALID);
    OWN(flow_expr) wrong = NULL;
    assert_fails(flow_expr_parse_depends("a &&", &wrong, &err), ERR_INVALID);
    assert_fails(flow_expr_parse_depends("a b", &wrong, &err), ERR_INVALID);
}

static bool keep_pod(const char *tag)
{
    return !strcmp(tag, "pod.name");
}

static void tags_are_filled_and_those_to_keep_stay(void **state)
{
    struct err err = { 0 };
    OWN_JSON json_t *all = names();
    struct flow_scope s = { scope_get, all };
    OWN_BUF b = BUF_INIT;

    (void)state;
    assert_ok(flow_expr_fill("n={{inputs.parameters.n}} {{=asInt(inputs.parameters.n) * 10}} "
                             "{{pod.name}} {{ item.kind }} {{=[1, 'a']}} }}",
                             &s, keep_pod, &b, &err));
    assert_string_equal(b.data, "n=7 70 {{pod.name}} even [1,\"a\"] }}");
    assert_fails(flow_expr_fill("{{nobody}}", &s, keep_pod, &b, &err), ERR_INVALID);
    assert_string_equal(err.text, "{{nobody}} is not known here, or has no value");
    assert_fails(flow_expr_fill("{{=nobody.x}}", &s, NULL, &b, &err), ERR_INVALID);
    assert_fails(flow_expr_fill("{{=nil}}", &s, NULL, &b, &err), ERR_INVALID);
}

static void a_when_compares_bare_words_and_numbers(void **state)
{
    static const struct { const char *text; int want; } rows[] = {
        { "{{tasks.flip-coin.outputs.result}} == heads", 1 },
        { "{{tasks.flip-coin.outputs.result}} != heads", 0 },
        { "\"{{tasks.flip-coin.outputs.result}}\" == \"tails\"", 0 },
        { "{{inputs.parameters.n}} > 5 && {{inputs.parameters.n}} != 1", 1 },
        { "'{{inputs.parameters.n}}' > 10", 0 }, { "{{inputs.parameters.n}} == 7.0", 1 },
        { "{{tasks.flip-coin.outputs.result}} =~ hea", 1 }, { "heads !~ 'tai'", 1 },
        { "{{= asInt(inputs.parameters['n']) > 6 }}", 1 }, { "true", 1 }, { "false", 0 },
        { "!(a == b)", 1 }, { "{{item.kind}} in (even, odd)", 1 }, { "x in ('a', \"b\")", 0 },
        { "a-b-c == a-b-c || false", 1 }, { " == heads", 0 }, { "'' == ''", 1 },
        { "/a/b.txt == /a/b.txt", 1 }, { "\"true\" == true", 1 }, { "2021-01-01 == 2021-01-01", 1 },
        { "a b", -1 }, { "{{gone}} == 1", -1 }, { "heads", -1 }, { "(a == a", -1 },
    };
    OWN_JSON json_t *all = names();
    struct flow_scope s = { scope_get, all };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct err err = { 0 };
        bool is = false;
        int rc = flow_expr_when(rows[i].text, &s, &is, &err);
        int got = rc < 0 ? -1 : is;
        if (got != rows[i].want)
            fail_msg("%s: %d, not %d (%s)", rows[i].text, got, rows[i].want, err.text);
    }
    struct err err = { 0 };
    assert_ok(flow_expr_check_when("{{a}} == b && {{= c }}", &err));
    assert_fails(flow_expr_check_when("{{a}} {{b}}", &err), ERR_INVALID);
}

CHECK_MAIN(operators_bind_as_in_the_language, names_are_looked_up_by_their_longest_path,
           functions_do_what_argo_s_examples_need, a_wrong_expression_is_told_with_its_place,
           what_is_too_deep_too_long_or_too_large_is_refused,
               names_and_tags_are_listed_for_validation,
           tags_are_filled_and_those_to_keep_stay, a_when_compares_bare_words_and_numbers)
