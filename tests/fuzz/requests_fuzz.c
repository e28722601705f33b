/* tests/fuzz/requests_fuzz.c - any bytes from the other side of a connection to the server
 *
 * A head is cut up, its address routed, its query and host read; what follows it is read as chunks,
 * once in one piece and once in pieces as the last byte says: both must come to the same.
 */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "server/http_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static int nothing(struct request *q, struct err *err)
{
    (void)q;
    (void)err;
    return 0;
}

static const struct http_route routes[] = {
    { "GET", "/", 0, nothing, NULL }, { "GET", "/api/jobs/{project}/{name}", 0, nothing, NULL },
    { "POST", "/api/jobs/{project}/{name}/cancel", 0, nothing, NULL },
    { "POST", "/v1/{project}/jobs/{job}:cancel", 0, nothing, NULL },
    { "GET", "/storage/v1/b/{bucket}/o/{object*}", 0, nothing, NULL },
    { "POST", "/storage/v1/b/{bucket}/o/{from}/copyTo/b/{to}/o/{object*}", 0, nothing, NULL }, { 0 }
};
static const struct protocol protocol = { "fuzz", routes, NULL };
static struct router *router;

static void check_address(const struct head *h)
{
    struct route_match m;
    struct pair pairs[QUERIES_MAX];
    const size_t n = strlen(h->target), path = strcspn(h->target, "?");
    OWN_MEM char *scratch = malloc(2 * n + SEGMENTS_MAX + 2), *out = malloc(2 * n + 2);

    assert(scratch && out && h->target[0] == '/');
    if (router_find(router, h->method, h->target, path, scratch, &m) == 0 && m.route)
        for (int i = 0; i < m.n_args; i++)
            assert(m.args[i].value[0] && utf8_valid(m.args[i].value, strlen(m.args[i].value)));
    if (h->target[path] == '?') {
        int count = queries_parse(h->target + path + 1, out, pairs, QUERIES_MAX);
        assert(count <= QUERIES_MAX);
        for (int i = 0; i < count; i++)
            assert(utf8_valid(pairs[i].name, strlen(pairs[i].name))
                   && utf8_valid(pairs[i].value, strlen(pairs[i].value)));
    }
}

/* Returns the length of the body, -1: wrong, -2: not whole. */
static long dechunk(const uint8_t *bytes, size_t n, size_t piece, uint8_t *out)
{
    struct chunks c = { 0 };
    size_t made = 0;

    for (size_t at = 0; at < n && c.state != CHUNK_DONE;) {
        size_t take = n - at < piece ? n - at : piece, got;
        OWN_MEM char *copy = malloc(take);
        char *data;
        assert(copy);
        memcpy(copy, bytes + at, take);
        long used = chunks_take(&c, copy, take, &data, &got);
        if (used < 0)
            return -1;
        assert(used > 0 && (size_t)used <= take && got <= (size_t)used);
        memcpy(out + made, data, got);
        made += got;
        at += (size_t)used;
    }
    return c.state == CHUNK_DONE ? (long)made : -2;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct err err = { 0 };
    struct head h;
    const char *why = NULL;
    size_t from = 0;
    const char *const names[] = { "gpu.example", NULL };

    if (!router)
        assert(router_new((const struct protocol *const[]){ &protocol, NULL }, &router, &err) == 0);
    if (n < 1)
        return 0;
    const size_t piece = (size_t)bytes[n - 1] + 1;
    size_t end = head_end((const char *)bytes, --n, &from);
    if (!end)
        return 0;
    OWN_MEM char *head = malloc(end);
    assert(head);
    memcpy(head, bytes, end);
    int status = head_parse(head, end, &h, &why);
    assert(status == 0 || (status >= 400 && why));
    if (status == 0) {
        assert(h.n_headers <= HEADERS_MAX && h.length >= 0 && !(h.chunked && h.length));
        host_allowed(h.host, names);
        check_address(&h);
    }
    OWN_MEM uint8_t *one = malloc(n + 1), *two = malloc(n + 1);
    assert(one && two);
    long a = dechunk(bytes + end, n - end, n - end + 1, one);
    long b = dechunk(bytes + end, n - end, piece, two);
    assert(a == b && (a <= 0 || memcmp(one, two, (size_t)a) == 0));
    return 0;
}
