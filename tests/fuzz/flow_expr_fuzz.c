/* tests/fuzz/flow_expr_fuzz.c - any bytes as an expression, a `depends`, a `when` and a text with
 * tags; what is accepted is evaluated over names that are all known, then over none */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "pipelines/expr.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static json_t *known(void *arg, const char *path)
{
    assert(path[0] || !arg);
    if (strlen(path) > 200)
        return NULL;
    switch (strlen(path) % 5) {
    case 0:
        return json_string("12");
    case 1:
        return json_string("[1, {\"a\": \"b\"}]");
    case 2:
        return json_integer(3);
    case 3:
        return json_pack("{s:[i,i,s], s:b}", "a", 1, 2, "x", "b", 1);
    default:
        return json_true();
    }
}

static json_t *unknown(void *arg, const char *path)
{
    (void)arg;
    (void)path;
    return NULL;
}

static int name(void *arg, const char *path)
{
    assert(path);
    return ++*(int *)arg > 1000;
}

static int tag(void *arg, const char *text, bool expression)
{
    (void)expression;
    assert(text);
    return ++*(int *)arg > 1000;
}

static bool keep(const char *text)
{
    return text[0] == 'k';
}

static void evaluate(const struct flow_expr *e)
{
    const struct flow_scope scopes[] = { { known, NULL }, { unknown, NULL } };
    int count = 0;
    flow_expr_names(e, name, &count);
    for (int i = 0; i < 2; i++) {
        struct err err = { 0 };
        OWN_JSON json_t *v = NULL;
        bool is;
        if (flow_expr_eval(e, &scopes[i], &v, &err) < 0) {
            assert(!v && err.text[0]);
            continue;
        }
        OWN_MEM char *text = flow_expr_text(v);
        assert(text);
        flow_expr_truth(v, &is, &err);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct err err = { 0 };
    OWN(flow_expr) e = NULL;
    OWN(flow_expr) depends = NULL;
    OWN_MEM char *text = strndup((const char *)bytes, n);
    const struct flow_scope scope = { known, NULL };
    OWN_BUF filled = BUF_INIT;
    int count = 0;
    bool is;

    if (flow_expr_parse((const char *)bytes, n, &e, &err) == 0)
        evaluate(e);
    else
        assert(!e && err.text[0]);
    if (flow_expr_parse_depends(text, &depends, &err) == 0)
        evaluate(depends);
    flow_expr_when(text, &scope, &is, &err);
    flow_expr_check_when(text, &err);
    flow_expr_tags(text, tag, &count, &err);
    flow_expr_fill(text, &scope, keep, &filled, &err);
    return 0;
}
