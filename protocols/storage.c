/* protocols/storage.c - Cloud Storage's JSON API: the routes, and objects on their way out
 *
 * DESIGN. What is asked for most, an object's metadata and the bytes of a small one, is answered on
 * the loop thread out of server/objects.h's memory: beside the object lie its answers as bytes (its
 * "faces"), made by whoever asked first. The links in the metadata repeat the address a client
 * came by, so a face is good for that address only; for another one the answer is made again.
 */
#include "protocols/storage.h"

#include <string.h>

#include "protocols/storage_int.h"
#include "server/server.h"

/* ------------------------------------------------------------ operations */

static int answer_call(struct request *q, storage_op *op, struct err *err)
{
    struct call c = {
        .q = q, .server = request_server(q), .project = request_project(q),
        .base = request_base(q), .bucket = request_arg(q, "bucket"),
        .object = request_arg(q, "object"), .to_bucket = request_arg(q, "to_bucket"),
        .to_object = request_arg(q, "to_object"),
    };
    int rc = request_json(q, &c.body, err);

    if (rc == 0 && !json_is_object(c.body))
        rc = err_set(err, ERR_INVALID, "the body is a JSON object");
    if (rc == 0)
        rc = op(&c, err);
    call_settle(&c, rc, err);
    if (c.answer && c.status != 204)
        respond_json(q, c.status, json_incref(c.answer));
    else
        respond_empty(q, c.status);
    call_done(&c);
    return 0;
}

#define X(method, path, name)                                                   \
    static int handle_##name(struct request *q, struct err *err)                \
    {                                                                           \
        return answer_call(q, storage_##name, err);                             \
    }
STORAGE_OPS(X)
#undef X

/* ------------------------------------------------------------ metadata, quickly */

enum { FACE_DOC, FACE_HEADERS };

struct face {
    size_t n_base, n;
    char text[];                /* the base, NUL, the answer */
};

static struct face *make_face(const char *base, const char *text, size_t n)
{
    size_t n_base = strlen(base);
    struct face *f = malloc(sizeof *f + n_base + 1 + n + 1);

    if (!f)
        return NULL;
    *f = (struct face){ n_base, n };
    memcpy(f->text, base, n_base + 1);
    memcpy(f->text + n_base + 1, text, n);
    f->text[n_base + 1 + n] = '\0';
    return f;
}

static const char *face_bytes(const struct face *f)
{
    return f->text + f->n_base + 1;
}

static int get_hot(struct request *q, struct err *err)
{
    struct hot *h;
    const char *base = request_base(q);

    if (objects_hot(request_server(q), request_arg(q, "bucket"), request_arg(q, "object"), &h,
                    err) < 0)
        return -(int)err->code;
    if (request_allows(q, h->project, err) < 0) {
        hot_unref(h);
        return -(int)err->code;
    }
    struct face *f = hot_face(h, FACE_DOC);
    if (!f || strcmp(f->text, base)) {
        OWN_JSON json_t *doc = storage_object_doc(base, &h->object);
        OWN_MEM char *text = json_dumps(doc, JSON_COMPACT);
        struct face *mine = text ? make_face(base, text, strlen(text)) : NULL;
        if (f || !mine) {       /* kept for another address */
            hot_unref(h);
            free(mine);
            return respond_json(q, 200, json_incref(doc));
        }
        f = hot_keep(h, FACE_DOC, mine, sizeof *mine + mine->n_base + mine->n);
        if (strcmp(f->text, base)) {
            hot_unref(h);
            return respond_json(q, 200, json_incref(doc));
        }
    }
    return respond_shared(q, 200, "application/json; charset=UTF-8", face_bytes(f), f->n, hot_unref,
                          h);
}

/* A query that changes nothing of the answer. */
static bool is_plain(const struct request *q)
{
    static const char *const matter[] = { "generation", "fields", "ifGenerationMatch",
                                          "ifGenerationNotMatch", "ifMetagenerationMatch",
                                          "ifMetagenerationNotMatch" };

    if (!*request_query_text(q))
        return true;
    for (size_t i = 0; i < sizeof matter / sizeof *matter; i++)
        if (request_query(q, matter[i]))
            return false;
    return true;
}

/* ------------------------------------------------------------ downloads */

struct range {
    int64_t first, last;        /* of the bytes that are sent */
    int status;                 /* 200, 206, 416 */
};

/* One range; of anything else the whole is sent, as the rules have it. */
static struct range range_of(const char *text, int64_t size)
{
    struct range all = { 0, size - 1, 200 };
    char *end;

    if (!text || strncmp(text, "bytes=", 6) || strchr(text, ','))
        return all;
    text += 6;
    if (*text == '-') {
        int64_t n = strtoll(text + 1, &end, 10);
        if (end == text + 1 || *end || n < 0)
            return all;
        if (n == 0 || size == 0)
            return (struct range){ 0, -1, 416 };
        return (struct range){ n < size ? size - n : 0, size - 1, 206 };
    }
    int64_t first = strtoll(text, &end, 10), last = size - 1;
    if (end == text || *end != '-' || first < 0)
        return all;
    if (end[1]) {
        const char *second = end + 1;
        last = strtoll(second, &end, 10);
        if (*end || last < first)
            return all;
    }
    if (first >= size)
        return (struct range){ 0, -1, 416 };
    return (struct range){ first, last < size ? last : size - 1, 206 };
}

static void add_header(struct buf *b, const char *name, const char *value)
{
    if (value)
        buf_printf(b, "%s: %.*s\r\n", name, (int)strcspn(value, "\r\n"), value);
}

static const char *said(const struct object *o, const char *key)
{
    return json_string_value(json_object_get(o->doc, key));
}

/* What is the same for every answer with this object's bytes. */
static void object_headers(const struct object *o, struct buf *b)
{
    char etag[48];

    storage_etag(o, etag);
    add_header(b, "Content-Type", o->type);
    add_header(b, "ETag", etag);
    buf_printf(b, "X-Goog-Generation: %lld\r\nX-Goog-Metageneration: %lld\r\n"
               "X-Goog-Stored-Content-Length: %lld\r\n", (long long)o->generation,
               (long long)o->metageneration, (long long)o->size);
    add_header(b, "X-Goog-Stored-Content-Encoding", said(o, "contentEncoding") ? : "identity");
    add_header(b, "Content-Encoding", said(o, "contentEncoding"));
    add_header(b, "Content-Disposition", said(o, "contentDisposition"));
    add_header(b, "Content-Language", said(o, "contentLanguage"));
    buf_text(b, "X-Goog-Storage-Class: STANDARD\r\nAccept-Ranges: bytes\r\n");
}

static struct range begin_download(struct request *q, const struct object *o, const char *headers,
                                   size_t n)
{
    struct range r = range_of(request_header(q, "range"), o->size);
    char text[96];

    if (r.status == 416) {
        snprintf(text, sizeof text, "bytes */%lld", (long long)o->size);
        respond_header(q, "Content-Range", text);
        return r;
    }
    respond_headers(q, headers, n);
    if (said(o, "cacheControl"))
        respond_header(q, "Cache-Control", said(o, "cacheControl"));
    if (r.status == 206) {
        snprintf(text, sizeof text, "bytes %lld-%lld/%lld", (long long)r.first, (long long)r.last,
                 (long long)o->size);
        respond_header(q, "Content-Range", text);
    } else {    /* of the whole object: with a part of it, old clients take it for damage */
        snprintf(text, sizeof text, "crc32c=%s,md5=%s", o->crc32c, o->md5);
        respond_header(q, "X-Goog-Hash", text);
    }
    return r;
}

static int answer_416(struct request *q)
{
    return respond_json(q, 416, storage_error_doc(416, "The requested range cannot be satisfied."));
}

static long read_more(void *reader, uint64_t at, const char **out)
{
    struct err said;            /* by the reader, to the log: the head of the answer is gone */

    return reader_at(reader, (int64_t)at, out, &said);
}

static void free_reader(void *reader)
{
    reader_free(reader);
}

/* Takes the reader or the bytes. */
static int send_rest(struct request *q, const struct object *o, struct reader *taken, char *bytes,
                     const char *headers, size_t n, struct err *err)
{
    OWN(reader) r = taken;
    struct range range = range_of(request_header(q, "range"), o->size);
    const char *first;

    /* The first of it before the head: while it can still be said that it is damaged. */
    if (r && range.status != 416 && reader_at(r, range.first, &first, err) < 0)
        return -(int)err->code;
    range = begin_download(q, o, headers, n);
    const size_t length = (size_t)(range.last - range.first + 1);
    if (range.status == 416) {
        free(bytes);
        return answer_416(q);
    }
    if (r)
        return respond_reader(q, range.status, NULL, (uint64_t)range.first, length, read_more,
                              TAKE(r), free_reader);
    return respond_shared(q, range.status, NULL, bytes + range.first, length, free, bytes);
}

static int download_hot(struct request *q, struct err *err)
{
    struct hot *h;
    struct server *s = request_server(q);
    OWN(reader) r = NULL;
    char *none = NULL;

    /* Between the row and its file the object may be replaced: then look again. */
    for (int tries = 0; ; tries++) {
        if (objects_hot(s, request_arg(q, "bucket"), request_arg(q, "object"), &h, err) < 0)
            return -(int)err->code;
        if (request_allows(q, h->project, err) < 0) {
            hot_unref(h);
            return -(int)err->code;
        }
        if (h->bytes || objects_content(s, &h->object, &r, &none, err) == 0)
            break;
        hot_unref(h);
        if (err->code != ERR_MISSING || tries == 3)
            return -(int)err->code;
    }
    struct face *f = hot_face(h, FACE_HEADERS);
    if (!f) {
        OWN_BUF b = BUF_INIT;
        object_headers(&h->object, &b);
        f = b.failed ? NULL : make_face("", b.data, b.n);
        if (!f) {
            hot_unref(h);
            return err_set(err, ERR_NOMEM, "no memory for an answer");
        }
        f = hot_keep(h, FACE_HEADERS, f, sizeof *f + f->n);
    }
    if (r) {
        int rc = send_rest(q, &h->object, TAKE(r), NULL, face_bytes(f), f->n, err);
        hot_unref(h);
        return rc;
    }
    struct range range = begin_download(q, &h->object, face_bytes(f), f->n);
    if (range.status == 416) {
        hot_unref(h);
        return answer_416(q);
    }
    return respond_shared(q, range.status, NULL, h->bytes + range.first,
                          (size_t)(range.last - range.first + 1), hot_unref, h);
}

/* A generation of its own, or conditions. */
static int download_one(struct request *q, struct err *err)
{
    struct call c = { .q = q };
    struct objects_when when;
    struct object o;
    int64_t generation;
    OWN_BUF headers = BUF_INIT;
    char *bytes = NULL;
    OWN(reader) r = NULL;
    struct server *s = request_server(q);

    if (call_when(&c, false, &when, err) < 0 ||
        call_number(&c, "generation", 0, &generation, err) < 0)
        return -(int)err->code;
    if (objects_get(s, request_project(q), request_arg(q, "bucket"), request_arg(q, "object"),
                    generation, &when, &o, err) < 0) {
        if (!c.unmet)
            return -(int)err->code;
        call_settle(&c, -(int)err->code, err);
        return c.answer ? respond_json(q, c.status, c.answer) : respond_empty(q, c.status);
    }
    int rc = objects_content(s, &o, &r, &bytes, err);
    if (rc == 0) {
        object_headers(&o, &headers);
        rc = send_rest(q, &o, TAKE(r), bytes, headers.data, headers.n, err);
    }
    object_done(&o);
    return rc;
}

static int download(struct request *q, struct err *err)
{
    return is_plain(q) ? download_hot(q, err) : download_one(q, err);
}

static int get(struct request *q, struct err *err)
{
    const char *alt = *request_query_text(q) ? request_query(q, "alt") : NULL;

    if (alt && !strcmp(alt, "media"))
        return download(q, err);
    return is_plain(q) ? get_hot(q, err) : answer_call(q, storage_object_get, err);
}

/* ------------------------------------------------------------ routes */

#define UPLOAD_ROUTES(prefix)                                                                   \
    { "POST", prefix "/storage/v1/b/{bucket}/o", HTTP_STREAMED | HTTP_WAITS | HTTP_JOB,         \
      storage_upload, storage_upload_body },                                                    \
    { "PUT", prefix "/storage/v1/b/{bucket}/o", HTTP_STREAMED | HTTP_WAITS | HTTP_JOB,          \
      storage_upload, storage_upload_body },                                                    \
    { "DELETE", prefix "/storage/v1/b/{bucket}/o", HTTP_WAITS | HTTP_JOB,                       \
      storage_upload_cancel, NULL },

#define X(method, path, name) { method, path, HTTP_WAITS | HTTP_JOB, handle_##name, NULL },
static const struct http_route routes[] = {
    { "GET", "/storage/v1/b/{bucket}/o/{object*}", HTTP_JOB, get, NULL },
    { "GET", "/download/storage/v1/b/{bucket}/o/{object*}", HTTP_JOB, download, NULL },
    UPLOAD_ROUTES("/upload")
    UPLOAD_ROUTES("/resumable/upload")  /* gcloud's, for large files */
    { "POST", "/batch/storage/v1", HTTP_WAITS | HTTP_JOB, storage_batch, NULL },
    { "POST", "/batch", HTTP_WAITS | HTTP_JOB, storage_batch, NULL },
    STORAGE_OPS(X)
    { 0 }
};
#undef X

const struct protocol protocol_storage = { "storage", routes, storage_error };
