/* protocols/storage_batch.c - many calls in one request: multipart/mixed of application/http */
#include <ctype.h>
#include <string.h>

#include "protocols/batch.h"
#include "protocols/multipart.h"
#include "protocols/storage_int.h"
#include "server/server.h"

enum { CALLS_MAX = 1000 };

/* ------------------------------------------------------------ which operation */

static const struct { const char *method, *path; storage_op *op; } ops[] = {
#define X(method, path, name) { method, path, storage_##name },
    STORAGE_OPS(X)
    X("GET", "/storage/v1/b/{bucket}/o/{object*}", object_get)
#undef X
};

struct arguments {
    char *bucket, *object, *to_bucket, *to_object;
};

static void arguments_done(struct arguments *a)
{
    free(a->bucket);
    free(a->object);
    free(a->to_bucket);
    free(a->to_object);
    *a = (struct arguments){ NULL, NULL, NULL, NULL };
}

static bool set_argument(struct arguments *a, const char *name, size_t n, char *value)
{
    const struct { const char *name; char **to; } all[] = {
        { "bucket", &a->bucket }, { "object", &a->object }, { "to_bucket", &a->to_bucket },
        { "to_object", &a->to_object },
    };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strlen(all[i].name) == n && !memcmp(all[i].name, name, n))
            *all[i].to = value;
    return value != NULL;
}

static bool fits(struct arguments *a, const char *pattern, const char *path)
{
    while (*pattern == '/' && *path == '/') {
        size_t n = strcspn(++pattern, "/"), m = strcspn(++path, "/");
        if (pattern[0] != '{') {
            if (n != m || memcmp(pattern, path, n))
                return false;
        } else {
            bool rest = pattern[n - 2] == '*';
            m = rest ? strlen(path) : m;
            if (m == 0 ||
                !set_argument(a, pattern + 1, n - 2 - rest, batch_decoded(path, m, false)))
                return false;
        }
        pattern += n;
        path += m;
    }
    return !*pattern && !*path;
}

static storage_op *find_op(const char *method, const char *path, struct arguments *a)
{
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        if (!strcmp(ops[i].method, method) && fits(a, ops[i].path, path))
            return ops[i].op;
        arguments_done(a);
    }
    return NULL;
}

static int read_query(struct call *c, const char *text, struct err *err)
{
    while (text && *text) {
        size_t n = strcspn(text, "&"), name_n = strcspn(text, "=&");
        OWN_MEM char *name = batch_decoded(text, name_n, true);
        OWN_MEM char *value =
            batch_decoded(text + name_n + (name_n < n), n - name_n - (name_n < n), true);
        OWN_MEM char *both = NULL;
        if (!name || !value || asprintf(&both, "%s%c%s", name, 0, value) < 0)
            return err_set(err, ERR_INVALID, "the query of a part of the batch is malformed");
        if (n && c->n_queries < CALL_QUERIES) {
            size_t at = strlen(name) + 1;
            c->queries[c->n_queries].name = TAKE(both);
            c->queries[c->n_queries].value = c->queries[c->n_queries].name + at;
            c->n_queries++;
        }
        text += n + (text[n] == '&');
    }
    return 0;
}

/* ------------------------------------------------------------ the batch */

struct batch {
    struct request *q;
    struct buf part;            /* as it comes */
    char id[256];               /* its Content-ID */
    struct buf out;
    const char *boundary;
    int n;
};

static int run(struct batch *b, struct call *c, struct err *err)
{
    struct batch_call text;
    struct arguments a = { NULL, NULL, NULL, NULL };

    if (batch_parse(b->part.data, b->part.n, &text, err) < 0 || read_query(c, text.query, err) < 0)
        return -(int)err->code;
    storage_op *op = find_op(text.method, text.path, &a);
    if (!op)
        return err_set(err, ERR_MISSING, "%.10s %.200s: a batch has no such call", text.method,
                       text.path);
    c->bucket = a.bucket;
    c->object = a.object;
    c->to_bucket = a.to_bucket;
    c->to_object = a.to_object;
    size_t blank = 0;
    while (blank < text.n_body && isspace((unsigned char)text.body[blank]))
        blank++;
    int rc = http_json(text.body + blank, text.n_body - blank, &c->body, err);
    if (rc == 0)
        rc = json_is_object(c->body) ? op(c, err)
            : err_set(err, ERR_INVALID, "the body of a part of the batch is not a JSON object");
    arguments_done(&a);
    return rc;
}

static int on_part(void *arg, const char *head, struct err *err)
{
    struct batch *b = arg;

    if (++b->n > CALLS_MAX)
        return err_set(err, ERR_INVALID, "a batch has %d calls at most", CALLS_MAX);
    buf_clear(&b->part);
    multipart_header(head, "Content-ID", b->id, sizeof b->id);
    return 0;
}

static int on_data(void *arg, const char *bytes, size_t n, struct err *err)
{
    struct batch *b = arg;

    buf_append(&b->part, bytes, n);
    return buf_ok(&b->part, err);
}

static int on_end(void *arg, struct err *err)
{
    struct batch *b = arg;
    struct call c = { .q = b->q, .server = request_server(b->q), .project = request_project(b->q),
                      .base = request_base(b->q), .part = true };
    struct err why = { 0 };

    if (!b->part.data)
        buf_text(&b->part, "");
    call_settle(&c, run(b, &c, &why), &why);
    OWN_MEM char *text = c.answer && c.status != 204 ? json_dumps(c.answer, JSON_COMPACT) : NULL;
    buf_printf(&b->out, "--%s\r\nContent-Type: application/http\r\n", b->boundary);
    if (*b->id)                 /* "<x>" is answered by "<response-x>" */
        buf_printf(&b->out, "Content-ID: <response-%s%s\r\n", b->id + (b->id[0] == '<'),
                   b->id[0] == '<' ? "" : ">");
    buf_printf(&b->out, "\r\nHTTP/1.1 %d %s\r\n", c.status, c.status < 300 ? "OK" : "Error");
    if (text)
        buf_printf(&b->out, "Content-Type: application/json; charset=UTF-8\r\n");
    buf_printf(&b->out, "Content-Length: %zu\r\n\r\n%s\r\n", text ? strlen(text) : 0,
               text ? text : "");
    call_done(&c);
    return buf_ok(&b->out, err);
}

int storage_batch(struct request *q, struct err *err)
{
    static const struct multipart_sink sink = { on_part, on_data, on_end };
    struct batch b = { .q = q, .boundary = "batch_muster_3f9c1d7a52e84b06" };
    struct multipart m;
    size_t n;
    const char *body = request_body(q, &n);

    if (multipart_init(&m, request_header(q, "content-type"), err) < 0)
        return -(int)err->code;
    int rc = multipart_feed(&m, body, n, &sink, &b, err);
    if (rc == 0 && !multipart_ended(&m))
        rc = err_set(err, ERR_INVALID, "the batch ends before its last boundary");
    multipart_done(&m);
    buf_done(&b.part);
    if (rc == 0) {
        buf_printf(&b.out, "--%s--\r\n", b.boundary);
        rc = buf_ok(&b.out, err);
    }
    if (rc == 0)
        rc = respond_bytes(q, 200, "multipart/mixed; boundary=batch_muster_3f9c1d7a52e84b06",
                           b.out.data, b.out.n);
    buf_done(&b.out);
    return rc;
}
