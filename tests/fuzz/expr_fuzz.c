/* tests/fuzz/expr_fuzz.c - any bytes as an expression; what is accepted is evaluated */
#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "data/expr.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct err err = { 0 };
    OWN(expr) e = NULL;
    OWN_MEM char *text = strndup((const char *)bytes, n);
    if (expr_parse(text, &e, &err) < 0) {
        assert(!e && err.text[0]);
        return 0;
    }
    double value[EXPR_COLUMNS_MAX];
    assert(expr_n_columns(e) <= EXPR_COLUMNS_MAX);
    for (int i = 0; i < expr_n_columns(e); i++) {
        assert(expr_column(e, i)[0]);
        value[i] = (i + 1) * 0.75;
    }
    double v = expr_eval(e, value);
    if (expr_is_boolean(e))
        assert(v == 0 || v == 1 || isnan(v));
    return 0;
}
