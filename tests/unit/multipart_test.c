/* tests/unit/multipart_test.c - multipart bodies, calls of a batch, selections of fields */
#include "protocols/multipart.h"

#include <string.h>

#include "base/own.h"
#include "protocols/batch.h"
#include "protocols/fields.h"
#include "tests/check.h"

static int on_part(void *arg, const char *head, struct err *err)
{
    char type[32];

    (void)err;
    multipart_header(head, "content-type", type, sizeof type);
    buf_printf(arg, "[%s]", type);
    return 0;
}

static int on_data(void *arg, const char *bytes, size_t n, struct err *err)
{
    (void)err;
    buf_append(arg, bytes, n);
    return 0;
}

static int on_end(void *arg, struct err *err)
{
    (void)err;
    buf_text(arg, ";");
    return 0;
}

static const struct multipart_sink sink = { on_part, on_data, on_end };

/* In pieces of every length up to 9, and whole. */
static void tells(const char *type, const char *body, const char *want)
{
    struct err err = { 0 };
    size_t n = strlen(body);

    for (size_t step = 1; step <= 10; step++) {
        struct multipart m;
        OWN_BUF got = BUF_INIT;
        size_t piece = step < 10 ? step : n;
        assert_ok(multipart_init(&m, type, &err));
        for (size_t at = 0; at < n; at += piece)
            assert_ok(multipart_feed(&m, body + at, n - at < piece ? n - at : piece, &sink, &got,
                                     &err));
        assert_string_equal(got.data ? got.data : "", want);
        assert_true(multipart_ended(&m));
        multipart_done(&m);
    }
}

static void clients_write_it_in_their_own_ways(void **state)
{
    (void)state;
    tells("multipart/related; boundary=\"==1==\"",
          "--==1==\r\ncontent-type: a/b\r\n\r\n{}\r\n--==1==\r\nContent-Type:c/d\r\n\r\n"
          "x\r\n--==1=\r\n\r\n--==1==--\r\nafter", "[a/b]{};[c/d]x\r\n--==1=\r\n;");
    tells("multipart/related; boundary='=2='; charset=x",
          "\n--=2=\nCONTENT-TYPE:  a/b  \n\n{}\n--=2=\n\nends in CR\r\n--=2=--",
          "[a/b]{};[]ends in CR\r;");
    tells("multipart/mixed;boundary=b", "before\r\n--bb\r\n--b \r\n\r\n\r\n--b\r\nx: y\r\n\r\n--b--",
          "[];[];");
}

static void what_is_no_multipart_body_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = { NULL, "", "text/plain", "multipart/related; boundary=",
                                       "multipart/related; boundary=\"open",
                                       "multipart/related; xboundary=b" };
    struct multipart m;
    struct err err = { 0 };
    OWN_BUF got = BUF_INIT, body = BUF_INIT;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(multipart_init(&m, bad[i], &err), ERR_INVALID);
    assert_ok(multipart_init(&m, "x; boundary=b", &err));
    buf_text(&body, "--b\r\nx: ");
    for (int i = 0; i < MULTIPART_HEAD_MAX; i++)
        buf_text(&body, "y");
    assert_fails(multipart_feed(&m, body.data, body.n, &sink, &got, &err), ERR_INVALID);
    assert_false(multipart_ended(&m));
    multipart_done(&m);
}

static void a_call_of_a_batch_is_cut_up(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct batch_call c;
    char whole[] = "PATCH http://h:1/k/T/storage/v1/b/B/o/a%2Fb?x=1&y HTTP/1.1\r\nA: b\r\n\r\n{}";
    char plain[] = "GET /storage/v1/b HTTP/1.1\n";
    char none[] = "GET http://host HTTP/1.1\r\n", line[] = "GET", junk[] = "\n";

    assert_ok(batch_parse(whole, strlen(whole), &c, &err));
    assert_string_equal(c.method, "PATCH");
    assert_string_equal(c.path, "/storage/v1/b/B/o/a%2Fb");
    assert_string_equal(c.query, "x=1&y");
    assert_string_equal(c.body, "{}");
    assert_ok(batch_parse(plain, strlen(plain), &c, &err));
    assert_string_equal(c.path, "/storage/v1/b");
    assert_null(c.query);
    assert_int_equal(c.n_body, 0);
    assert_fails(batch_parse(none, strlen(none), &c, &err), ERR_INVALID);
    assert_fails(batch_parse(line, strlen(line), &c, &err), ERR_INVALID);
    assert_fails(batch_parse(junk, strlen(junk), &c, &err), ERR_INVALID);
    OWN_MEM char *text = batch_decoded("a%2Fb+%C3%A9", 12, true);
    assert_string_equal(text, "a/b \xc3\xa9");
    assert_null(batch_decoded("%00", 3, true));
    assert_null(batch_decoded("%4", 2, true));
    assert_null(batch_decoded("%ff", 3, true));
}

static void selects(const char *fields, const char *want)
{
    struct err err = { 0 };
    OWN_JSON json_t *doc = json_pack("{s:s, s:[{s:s, s:s}, {s:s}], s:{s:i}}", "kind", "k", "items",
                                     "name", "a", "size", "1", "name", "b", "o", "x", 1);
    OWN_JSON json_t *part = NULL;

    assert_ok(fields_select(doc, fields, &part, &err));
    OWN_MEM char *text = json_dumps(part, JSON_COMPACT | JSON_SORT_KEYS);
    assert_string_equal(text, want);
}

static void fields_leave_what_they_name(void **state)
{
    (void)state;
    static const char *const bad[] = { ",", "a,", "a(", "a()", "a)", "a/", "/a", "a(b" };
    struct err err = { 0 };
    OWN_JSON json_t *doc = json_object();
    json_t *part;

    selects("kind", "{\"kind\":\"k\"}");
    selects("items/name,kind", "{\"items\":[{\"name\":\"a\"},{\"name\":\"b\"}],\"kind\":\"k\"}");
    selects("items(name,size)", "{\"items\":[{\"name\":\"a\",\"size\":\"1\"},{\"name\":\"b\"}]}");
    selects("items/name,items/size", "{\"items\":[{\"name\":\"a\",\"size\":\"1\"},{\"name\":\"b\"}]}");
    selects("*/x", "{\"items\":[{},{}],\"kind\":\"k\",\"o\":{\"x\":1}}");
    selects("none", "{}");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(fields_select(doc, bad[i], &part, &err), ERR_INVALID);
}

CHECK_MAIN(clients_write_it_in_their_own_ways, what_is_no_multipart_body_is_refused,
           a_call_of_a_batch_is_cut_up, fields_leave_what_they_name)
