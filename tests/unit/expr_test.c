#include "data/expr.h"

#include <math.h>
#include <string.h>

#include "data/elementary.h"
#include "tests/check.h"

/* The value over columns a = 6, b = 4, c = missing. */
static double eval(const char *text)
{
    struct err err = { 0 };
    struct expr *e = NULL;
    double value[EXPR_COLUMNS_MAX];

    assert_ok(expr_parse(text, &e, &err));
    for (int i = 0; i < expr_n_columns(e); i++)
        value[i] = !strcmp(expr_column(e, i), "a") ? 6 : !strcmp(expr_column(e, i), "b") ? 4 : NAN;
    double v = expr_eval(e, value);
    expr_free(e);
    return v;
}

static void operators_bind_as_in_c(void **state)
{
    (void)state;
    static const struct { const char *text; double value; } cases[] = {
        { "1 + 2 * 3", 7 },         { "(1 + 2) * 3", 9 },       { "a - b - 1", 1 },
        { "a / b / 2", 0.75 },      { "a % b", 2 },             { "-a + b", -2 },
        { "--a", 6 },               { "!a", 0 },                { "!(a > b)", 0 },
        { "a > b", 1 },             { "a < b || b < a", 1 },    { "a < b && b < a", 0 },
        { "1 || 0 && 0", 1 },       { "a == 6", 1 },            { "a != 6", 0 },
        { "a >= 6", 1 },            { "a <= 5", 0 },            { "min(a, b) + max(a, b)", 10 },
        { "abs(b - a)", 2 },        { "sqrt(b)", 2 },           { "floor(a / b)", 1 },
        { "1.5e2", 150 },           { "2 < 3 == 1", 1 },        { ".5", 0.5 },
        { "b > 0.2 * a", 1 },       { " a\t+\nb ", 10 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (eval(cases[i].text) != cases[i].value)
            fail_msg("%s is %g, not %g", cases[i].text, eval(cases[i].text), cases[i].value);
}

static void a_missing_value_makes_all_that_reads_it_missing(void **state)
{
    (void)state;
    static const char *const texts[] = { "c", "c + 1", "c > 1", "!c", "c == c", "0 && c", "1 || c",
                                         "min(a, c)", "max(c, a)", "log(c)" };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (!isnan(eval(texts[i])))
            fail_msg("%s is %g", texts[i], eval(texts[i]));
}

static void a_wrong_text_is_refused_where_it_is_wrong(void **state)
{
    (void)state;
    static const struct { const char *text, *says; } cases[] = {
        { "", "ends where a number" },          { "a +", "ends where a number" },
        { "(a", "closing parenthesis" },        { "a b", "at character 3" },
        { "a = b", "an operator" },             { "log a", "an operator" },
        { "tan(a)", "min max abs log" },        { "min(a)", "a comma" },
        { "min(a, b, c)", "closing parenthesis" }, { "1e999", "a number" },
        { "1.2.3", "a number" },                { "`a", "backquotes" },
        { "a & b", "an operator" },             { "$a", "a number, a column" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err = { 0 };
        struct expr *e = NULL;
        assert_fails(expr_parse(cases[i].text, &e, &err), ERR_INVALID);
        assert_null(e);
        if (!strstr(err.text, cases[i].says))
            fail_msg("%s: \"%s\" does not say \"%s\"", cases[i].text, err.text, cases[i].says);
    }
}

static void nesting_and_length_have_bounds(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct expr *e = NULL;
    static char text[EXPR_LENGTH_MAX + 100];

    memset(text, '(', 200);
    assert_fails(expr_parse(text, &e, &err), ERR_INVALID);
    memset(text, '-', 200);
    assert_fails(expr_parse(text, &e, &err), ERR_INVALID);
    memset(text, ' ', sizeof text - 1);
    assert_fails(expr_parse(text, &e, &err), ERR_INVALID);
    /* As deep as is allowed, with an operand waiting on every level of every depth. */
    size_t n = 0;
    for (int i = 0; i < EXPR_DEPTH_MAX - 7; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "a||a&&a<a+a*(");
    n += (size_t)snprintf(text + n, sizeof text - n, "a");
    for (int i = 0; i < EXPR_DEPTH_MAX - 7; i++)
        text[n++] = ')';
    text[n] = 0;
    assert_true(eval(text) == 1);
}

static void columns_are_listed_once_and_may_be_quoted(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct expr *e = NULL;

    assert_ok(expr_parse("b + `trip miles` * b > a.x", &e, &err));
    assert_int_equal(expr_n_columns(e), 3);
    assert_string_equal(expr_column(e, 0), "b");
    assert_string_equal(expr_column(e, 1), "trip miles");
    assert_string_equal(expr_column(e, 2), "a.x");
    assert_true(expr_is_boolean(e));
    expr_free(e);
    assert_ok(expr_parse("a > b + 1 * (a > b)", &e, &err));
    assert_true(expr_is_boolean(e));
    expr_free(e);
    assert_ok(expr_parse("1 + (a > b)", &e, &err));
    assert_false(expr_is_boolean(e));
    expr_free(e);
}

static double off(double got, double want)
{
    return want == 0 ? fabs(got) : fabs(got / want - 1);
}

static void log_and_exp_are_those_of_libm_to_two_units(void **state)
{
    (void)state;
    double worst = 0;
    for (int i = 1; i < 20000; i++) {
        double x = i * 0.0137, y = (i - 10000) * 0.0313;
        worst = fmax(worst, off(elementary_log(x), log(x)));
        worst = fmax(worst, off(elementary_log(1 / x), log(1 / x)));
        worst = fmax(worst, off(elementary_log1p(x / 100), log1p(x / 100)));
        worst = fmax(worst, off(elementary_log1p(-x / 300), log1p(-x / 300)));
        worst = fmax(worst, off(elementary_exp(y), exp(y)));
    }
    if (worst > 4.5e-16)
        fail_msg("off by %g", worst);
    assert_true(isinf(elementary_log(0)) && isnan(elementary_log(-1)));
    assert_true(elementary_log(1) == 0 && elementary_exp(0) == 1);
    assert_true(isinf(elementary_exp(1000)) && elementary_exp(-1000) == 0);
    assert_true(elementary_log1p(1e-300) == 1e-300);
    assert_true(off(elementary_log(5e-324), log(5e-324)) < 1e-15);
}

/* Recorded: a change of these is a change of every model that uses them. */
static void log_and_exp_keep_their_bits(void **state)
{
    (void)state;
    assert_true(elementary_log(10) == 0x1.26bb1bbb55516p+1);
    assert_true(elementary_exp(1) == 0x1.5bf0a8b14576ap+1);
}

CHECK_MAIN(operators_bind_as_in_c, a_missing_value_makes_all_that_reads_it_missing,
           a_wrong_text_is_refused_where_it_is_wrong, nesting_and_length_have_bounds,
           columns_are_listed_once_and_may_be_quoted, log_and_exp_are_those_of_libm_to_two_units,
           log_and_exp_keep_their_bits)
