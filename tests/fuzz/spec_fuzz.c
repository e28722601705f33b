/* tests/fuzz/spec_fuzz.c - any bytes as a spec, and as a --set argument
 *
 * Up to the first NUL the input is a --set argument for a small right spec, after it a spec (the
 * whole input when there is no NUL). What is accepted has to be printed and read back as the same
 * document; an error of any kind is fine, as long as its text is a line that a terminal can show.
 */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "base/own.h"
#include "spec/spec.h"

static const char base[] =
    "data: {train: {csv: a}, test: {csv: b}, target: y, features: {x: numeric, a.b: {hash: 3}}}\n"
    "model: [linear: 4, relu, maxpool: 2, {conv2d: {out: 1, kernel: 3}}]\n"
    "loss: l1\noptimizer: sgd\nstop: {patience: 3}\nworkers: 1..4\n";

static void check(struct job_spec *s)
{
    struct err err = { 0 };
    OWN(job_spec) back = NULL;
    OWN_MEM char *text = spec_print(s);

    assert(text);
    int rc = spec_parse(text, strlen(text), "back", NULL, 0, &back, &err);
    assert(rc == 0);
    assert(json_equal(s->doc, back->doc));
    err_set(&err, ERR_INVALID, "model[1].relu.x: y");
    spec_locate(s, &err);
    json_decref(spec_identity(s));
}

/* A sentence, on one line, in UTF-8. */
static void check_text(const struct err *err)
{
    assert(err->text[0]);
    OWN_JSON json_t *text = json_string(err->text);
    assert(text);
    for (const char *c = err->text; *c; c++)
        assert((unsigned char)*c >= 0x20 && *c != 0x7F);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    const uint8_t *end = memchr(bytes, 0, n);
    struct err err = { 0 };
    OWN(job_spec) s = NULL;

    if (!end) {
        if (spec_parse((const char *)bytes, n, "f.yaml", NULL, 0, &s, &err) < 0)
            check_text(&err);
        else
            check(s);
        return 0;
    }
    OWN_MEM char *arg = strndup((const char *)bytes, (size_t)(end - bytes));
    const char *set[] = { arg };
    size_t rest = n - (size_t)(end + 1 - bytes);
    int rc = rest ? spec_parse((const char *)end + 1, rest, "f.yaml", set, 1, &s, &err)
                  : spec_parse(base, sizeof base - 1, "f.yaml", set, 1, &s, &err);
    if (rc < 0)
        check_text(&err);
    else
        check(s);
    return 0;
}
