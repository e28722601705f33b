/* What is a request to the server and what is not, and who answers it. */
#include <string.h>

#include "server/http_int.h"
#include "tests/check.h"

/* ------------------------------------------------------------ heads */

static int parse(const char *text, struct head *out)
{
    static char bytes[8192];
    const char *why = NULL;
    size_t from = 0, n = strlen(text);

    memcpy(bytes, text, n + 1);
    size_t end = head_end(bytes, n, &from);
    if (!end)
        return -1;
    int status = head_parse(bytes, end, out, &why);
    assert_true(status == 0 || (why && *why));
    return status;
}

#define HOST "Host: localhost\r\n"

static void a_plain_request_is_understood(void **state)
{
    (void)state;
    struct head h;

    assert_int_equal(parse("POST /a/b?c=d HTTP/1.1\r\n" HOST "X-One:  two words \r\n"
                           "content-length: 12\r\nConnection: Keep-Alive, Close\r\n\r\n", &h), 0);
    assert_string_equal(h.method, "POST");
    assert_string_equal(h.target, "/a/b?c=d");
    assert_string_equal(head_find(&h, "x-one"), "two words");
    assert_null(head_find(&h, "x-on"));
    assert_int_equal(h.length, 12);
    assert_false(h.keep_alive);
    assert_int_equal(parse("GET http://localhost:1/x HTTP/1.0\r\n\r\n", &h), 0);
    assert_string_equal(h.target, "/x");
    assert_false(h.keep_alive);
}

static void what_two_readers_could_read_differently_is_refused(void **state)
{
    (void)state;
    static const struct { const char *head; int status; } bad[] = {
        { "GET / HTTP/1.1\r\n" HOST "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400 },
        { "GET / HTTP/1.1\r\n" HOST "Content-Length: 3\r\nContent-Length: 3\r\n\r\n", 400 },
        { "GET / HTTP/1.1\r\n" HOST "Content-Length: 3, 3\r\n\r\n", 400 },
        { "GET / HTTP/1.1\r\n" HOST "Content-Length: +3\r\n\r\n", 400 },
        { "GET / HTTP/1.1\r\n" HOST "Content-Length: -1\r\n\r\n", 400 },
        { "GET / HTTP/1.1\r\n" HOST "Content-Length: 0x3\r\n\r\n", 400 },
        { "GET / HTTP/1.1\r\n" HOST "Content-Length: \r\n\r\n", 400 },
        { "GET / HTTP/1.1\r\n" HOST "Content-Length: 9999999999999999999\r\n\r\n", 400 },
        { "GET / HTTP/1.1\r\n" HOST "Transfer-Encoding: gzip, chunked\r\n\r\n", 501 },
        { "GET / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n", 400 },
        { "GET / HTTP/1.0\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n", 400 },
        { "GET / HTTP/1.1\r\n" HOST "A: b\r\n c\r\n\r\n", 400 },         /* folded */
        { "GET / HTTP/1.1\r\n" HOST "A : b\r\n\r\n", 400 },
        { "GET / HTTP/1.1\r\n" HOST ": b\r\n\r\n", 400 },
        { "GET / HTTP/1.1\r\n" HOST "A b\r\n\r\n", 400 },
        { "GET / HTTP/1.1\r\n" HOST "A: b\rC: d\r\n\r\n", 400 },         /* a lone CR */
        { "GET / HTTP/1.1\r\n" HOST "A: b\nC: d\r\n\r\n", 400 },         /* a lone LF */
        { "GET / HTTP/1.1\r\n" HOST "A: b\001\r\n\r\n", 400 },
        { "GET / HTTP/1.1\n" HOST "\r\n\r\n", 400 },
        { "GET / HTTP/1.1\r\n\r\n", 400 },                               /* no Host */
        { "GET / HTTP/1.1\r\n" HOST HOST "\r\n", 400 },
        { "GET  / HTTP/1.1\r\n" HOST "\r\n", 400 },
        { "GET / HTTP/1.1 \r\n" HOST "\r\n", 505 },
        { "GET / HTTP/2.0\r\n" HOST "\r\n", 505 },
        { "GET / FTP/1.1\r\n" HOST "\r\n", 400 },
        { "get / HTTP/1.1\r\n" HOST "\r\n", 400 },
        { "GET /#x HTTP/1.1\r\n" HOST "\r\n", 400 },
        { "GET x HTTP/1.1\r\n" HOST "\r\n", 400 },
        { "\r\n\r\n", 400 },
        { "GET / HTTP/1.1\r\n" HOST "Expect: rain\r\n\r\n", 417 },
    };
    struct head h;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (parse(bad[i].head, &h) != bad[i].status)
            fail_msg("head %zu: %d, not %d: %s", i, parse(bad[i].head, &h), bad[i].status,
                     bad[i].head);
}

static void a_head_is_found_wherever_it_is_cut(void **state)
{
    (void)state;
    const char *text = "GET / HTTP/1.1\r\nA: b\r\n\r\nbody";
    const size_t want = strlen(text) - 4;

    for (size_t cut = 0; cut <= strlen(text); cut++) {
        size_t from = 0;
        size_t first = head_end(text, cut, &from);
        assert_int_equal(first, cut >= want ? want : 0);
        assert_int_equal(first ? first : head_end(text, strlen(text), &from), want);
    }
}

/* ------------------------------------------------------------ escapes, chunks, hosts */

static void escapes_are_whole_and_utf8(void **state)
{
    (void)state;
    char out[64];

    assert_int_equal(percent_decode("a%2Fb+c%C3%A4", 13, false, out), 7);
    assert_string_equal(out, "a/b+cä");
    assert_int_equal(percent_decode("a+b", 3, true, out), 3);
    assert_string_equal(out, "a b");
    static const char *const bad[] = { "%", "%2", "a%2", "%zz", "%00", "%c3", "%ff", "%C0%AF",
                                       "%ed%a0%80", "%f5%80%80%80" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(percent_decode(bad[i], strlen(bad[i]), false, out), -1);
}

static void queries_are_cut_at_their_signs(void **state)
{
    (void)state;
    struct pair p[3];
    char out[64];

    assert_int_equal(queries_parse("a=1&&b&c=%26+x&d=4", out, p, 3), 3);
    assert_string_equal(p[0].value, "1");
    assert_string_equal(p[1].name, "b");
    assert_string_equal(p[1].value, "");
    assert_string_equal(p[2].value, "& x");
    assert_int_equal(queries_parse("a=%", out, p, 3), -1);
}

static long dechunk(const char *text, size_t piece, char *out)
{
    struct chunks c = { 0 };
    char bytes[256];
    size_t n = strlen(text), made = 0;

    for (size_t at = 0; at < n && c.state != CHUNK_DONE;) {
        size_t take = n - at < piece ? n - at : piece, got;
        char *data;
        memcpy(bytes, text + at, take);
        long used = chunks_take(&c, bytes, take, &data, &got);
        if (used < 0)
            return -1;
        memcpy(out + made, data, got);
        made += got;
        at += (size_t)used;
    }
    out[made] = 0;
    return c.state == CHUNK_DONE ? (long)made : -2;
}

static void chunks_are_the_same_however_they_come(void **state)
{
    (void)state;
    char out[256];
    const char *good = "4;x=y\r\nWiki\r\n00A\r\npedia in c\r\n0\r\nTrailer: x\r\n\r\n";

    for (size_t piece = 1; piece < 60; piece++) {
        assert_int_equal(dechunk(good, piece, out), 14);
        assert_string_equal(out, "Wikipedia in c");
    }
    static const char *const bad[] = { "\r\n", "x\r\n", "4\nWiki\r\n0\r\n\r\n", "4\r\nWikix\r\n0\r\n\r\n",
                                       "4\r\nWiki\n0\r\n\r\n", "-1\r\n", "0x4\r\nWiki\r\n",
                                       "fffffffffffff\r\n", " 4\r\nWiki\r\n", "0\r\n\n" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(dechunk(bad[i], 7, out), -1);
    assert_int_equal(dechunk("4\r\nWiki\r\n0\r\n", 7, out), -2);
}

static void only_our_own_names_are_hosts(void **state)
{
    (void)state;
    const char *names[] = { "gpu.example", NULL };

    assert_true(host_allowed("localhost", NULL));
    assert_true(host_allowed("LocalHost:8470", NULL));
    assert_true(host_allowed("127.0.0.1:1", NULL));
    assert_true(host_allowed("127.8.0.1", NULL));
    assert_true(host_allowed("[::1]:80", NULL));
    assert_true(host_allowed("gpu.example:443", names));
    static const char *const bad[] = { "", "evil.example", "localhost.evil.example", "127.0.0.1.evil",
                                       "10.0.0.1", "localhost:80:90", "localhost:8x", "[::1", "[::2]",
                                       "localhost@evil", "127.0.0.1:80/x", "0x7f.1" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (host_allowed(bad[i], names))
            fail_msg("%s is no name of ours", bad[i]);
}

/* ------------------------------------------------------------ routes */

static int nothing(struct request *q, struct err *err)
{
    (void)q;
    (void)err;
    return 0;
}

#define ROUTE(method, path) { method, path, 0, nothing, NULL }
static const struct http_route routes_a[] = {
    ROUTE("GET", "/"), ROUTE("GET", "/v1/{project}/jobs"), ROUTE("POST", "/v1/{project}/jobs"),
    ROUTE("GET", "/v1/{project}/jobs/{job}"), ROUTE("POST", "/v1/{project}/jobs/{job}:cancel"),
    ROUTE("GET", "/v1/all/jobs"), ROUTE("POST", "/v2/entries:list"), { 0 }
};
static const struct http_route routes_b[] = {
    ROUTE("GET", "/b/{bucket}/o/{object*}"), ROUTE("POST", "/b/{bucket}/o/{from}/copyTo/b/{to}/o/{object*}"),
    ROUTE("GET", "/b/{bucket}/o"), { 0 }
};
static const struct protocol a = { "a", routes_a, NULL }, b = { "b", routes_b, NULL };
static const struct protocol *const both[] = { &a, &b, NULL };

static char scratch[4096];

static const char *found(const struct router *r, const char *method, const char *path,
                         struct route_match *m)
{
    if (router_find(r, method, path, strlen(path), scratch, m) < 0)
        return "malformed";
    return m->route ? m->route->path : "";
}

static const char *arg(const struct route_match *m, const char *name)
{
    for (int i = 0; i < m->n_args; i++)
        if (!strcmp(m->args[i].name, name))
            return m->args[i].value;
    return "-";
}

static void the_longer_literal_wins_and_arguments_are_decoded(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct route_match m;
    OWN(router) r = NULL;

    assert_ok(router_new(both, &r, &err));
    assert_string_equal(found(r, "GET", "/", &m), "/");
    assert_string_equal(found(r, "GET", "/v1/all/jobs", &m), "/v1/all/jobs");
    assert_string_equal(found(r, "GET", "/v1/al%6C/jobs", &m), "/v1/all/jobs");
    assert_string_equal(found(r, "HEAD", "/v1/p/jobs", &m), "/v1/{project}/jobs");
    assert_string_equal(arg(&m, "project"), "p");
    assert_string_equal(found(r, "POST", "/v1/all/jobs", &m), "/v1/{project}/jobs");
    assert_string_equal(found(r, "POST", "/v1/p/jobs/j:1:cancel", &m),
                        "/v1/{project}/jobs/{job}:cancel");
    assert_string_equal(arg(&m, "job"), "j:1");
    assert_string_equal(found(r, "GET", "/v1/p/jobs/j:cancel", &m), "/v1/{project}/jobs/{job}");
    assert_string_equal(arg(&m, "job"), "j:cancel");
    assert_string_equal(found(r, "POST", "/v2/entries:list", &m), "/v2/entries:list");
}

static void an_escaped_slash_stays_inside_its_name(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct route_match m;
    OWN(router) r = NULL;

    assert_ok(router_new(both, &r, &err));
    assert_string_equal(found(r, "GET", "/b/x/o/a%2Fb/../c", &m), "/b/{bucket}/o/{object*}");
    assert_string_equal(arg(&m, "object"), "a/b/../c");
    assert_string_equal(found(r, "GET", "/b/x/o//a", &m), "/b/{bucket}/o/{object*}");
    assert_string_equal(arg(&m, "object"), "/a");
    assert_string_equal(found(r, "POST", "/b/x/o/a%2Fb/copyTo/b/y/o/c/d", &m), routes_b[1].path);
    assert_string_equal(arg(&m, "from"), "a/b");
    assert_string_equal(arg(&m, "bucket"), "x");
    assert_string_equal(arg(&m, "object"), "c/d");
    assert_ptr_equal(m.protocol, &b);
}

static void no_route_is_told_from_no_method(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct route_match m;
    OWN(router) r = NULL;

    assert_ok(router_new(both, &r, &err));
    assert_string_equal(found(r, "DELETE", "/v1/p/jobs", &m), "");
    assert_non_null(strstr(m.allow, "GET"));
    assert_non_null(strstr(m.allow, "POST"));
    static const char *const none[] = { "/v1", "/v1/", "/v1//jobs", "/v1/p/jobs/", "/b/x/o/", "/x",
                                        "/v1/p/jobs/j/k" };
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        if (*found(r, "GET", none[i], &m))
            fail_msg("%s is %s", none[i], m.route->path);
        assert_string_equal(m.allow, "");
    }
    assert_string_equal(found(r, "GET", "/v1/%/jobs", &m), "malformed");
    assert_string_equal(found(r, "GET", "/b/x/o/%ff", &m), "malformed");
}

static void a_route_that_is_there_twice_is_refused(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct router *r = NULL;
    const struct protocol again = { "again", routes_b, NULL };

    assert_fails(router_new((const struct protocol *const[]){ &a, &b, &again, NULL }, &r, &err),
                 ERR_CONFLICT);
}

CHECK_MAIN(a_plain_request_is_understood, what_two_readers_could_read_differently_is_refused,
           a_head_is_found_wherever_it_is_cut, escapes_are_whole_and_utf8,
           queries_are_cut_at_their_signs, chunks_are_the_same_however_they_come,
           only_our_own_names_are_hosts, the_longer_literal_wins_and_arguments_are_decoded,
           an_escaped_slash_stays_inside_its_name, no_route_is_told_from_no_method,
           a_route_that_is_there_twice_is_refused)
