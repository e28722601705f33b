/* tests/fuzz/multipart_fuzz.c - any bytes as a multipart body, a batch's calls, a selection of
 * fields
 *
 * The first line is the Content-Type, the rest the body. It is parsed whole and byte by byte: both
 * ways have to tell the same.
 */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "base/own.h"
#include "protocols/batch.h"
#include "protocols/fields.h"
#include "protocols/multipart.h"

struct told {
    struct buf text;            /* heads and data, with marks between them */
    struct buf part;
};

static int on_part(void *arg, const char *head, struct err *err)
{
    struct told *t = arg;
    char value[64];

    (void)err;
    multipart_header(head, "Content-Type", value, sizeof value);
    multipart_header(head, "x", value, sizeof value);
    buf_printf(&t->text, "<%s>", head);
    buf_clear(&t->part);
    return 0;
}

static int on_data(void *arg, const char *bytes, size_t n, struct err *err)
{
    struct told *t = arg;

    (void)err;
    assert(n > 0);
    buf_append(&t->text, bytes, n);
    buf_append(&t->part, bytes, n);
    return 0;
}

static int on_end(void *arg, struct err *err)
{
    struct told *t = arg;
    struct batch_call call;
    struct err why = { 0 };

    (void)err;
    buf_text(&t->text, "<end>");
    if (!t->part.data)
        buf_text(&t->part, "");
    if (batch_parse(t->part.data, t->part.n, &call, &why) == 0) {
        assert(call.path[0] == '/' && strlen(call.method) + strlen(call.path) <= t->part.n);
        assert(call.body + call.n_body == t->part.data + t->part.n);
    } else {
        assert(why.text[0]);
    }
    return 0;
}

static const struct multipart_sink sink = { on_part, on_data, on_end };

static int parse(const char *type, const uint8_t *bytes, size_t n, size_t step, struct told *out)
{
    struct multipart m;
    struct err err = { 0 };
    int rc = multipart_init(&m, type, &err);

    for (size_t at = 0; rc == 0 && at < n; at += step)
        rc = multipart_feed(&m, bytes + at, n - at < step ? n - at : step, &sink, out, &err);
    buf_printf(&out->text, "%d %d", rc < 0 ? (int)err.code : 0, rc == 0 && multipart_ended(&m));
    multipart_done(&m);
    buf_done(&out->part);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    const uint8_t *line = memchr(bytes, '\n', n);
    size_t head = line ? (size_t)(line - bytes) : n;
    OWN_MEM char *type = strndup((const char *)bytes, head);
    struct told whole = { BUF_INIT, BUF_INIT }, pieces = { BUF_INIT, BUF_INIT };
    struct err err = { 0 };

    size_t skip = head + (line != NULL);
    parse(type, bytes + skip, n - skip, n ? n : 1, &whole);
    parse(type, bytes + skip, n - skip, 1, &pieces);
    assert(whole.text.n == pieces.text.n &&
           !memcmp(whole.text.data, pieces.text.data, whole.text.n));
    buf_done(&whole.text);
    buf_done(&pieces.text);

    OWN_JSON json_t *doc = json_pack("{s:s, s:[{s:s, s:{s:s}}]}", "kind", "k", "items", "name", "n",
                                     "metadata", "a", "b"), *part = NULL;
    if (fields_select(doc, type, &part, &err) < 0)
        assert(err.text[0]);
    else
        assert(json_is_object(part));
    return 0;
}
