/* protocols/storage_upload.c - objects on their way in: in one request, or in several
 *
 * DESIGN. `body` is called with the bytes as they come and keeps a struct upload with the request;
 * `handle` is called when all have come, ends it and answers. A client that goes away midway takes
 * its struct upload with it: of a whole upload nothing stays, of a session what came.
 *
 * A request of a session says by Content-Range where its bytes belong: what is here already is
 * passed over; bytes beyond a gap are dropped, and the answer says how far it is, as one to "bytes
 * *" does. An upload ends when as many bytes are here as the Content-Range says there are; without
 * one the request is all of it.
 *
 * Where the disk is full the rest of the request is taken and dropped, and then refused: a client
 * whose connection breaks while it sends never sees the answer, and tries again for minutes.
 */
#include <string.h>

#include "base/http.h"
#include "protocols/multipart.h"
#include "protocols/storage_int.h"
#include "server/quota.h"
#include "server/server.h"

enum { META_MAX = OBJECTS_DOC_MAX };

enum upload_kind { UPLOAD_MEDIA, UPLOAD_MULTIPART, UPLOAD_BEGIN, UPLOAD_SESSION };

struct upload {
    enum upload_kind kind;
    struct call call;           /* for its query */
    struct content *content;
    struct buf meta;            /* the JSON part */
    json_t *doc;                /* what it says */

    struct multipart multipart;
    int part;                   /* 1: the metadata, 2: the content */
    char type[128];             /* of the content's part */

    struct session *session;
    struct http_range range;
    int64_t skip;               /* bytes that are here already */
    bool gap;                   /* bytes before these are missing: none is taken */
    struct err full;            /* the disk is: what comes is dropped */
};

static void upload_free(void *state)
{
    struct upload *u = state;

    content_free(u->content);
    session_free(u->session);
    multipart_done(&u->multipart);
    buf_done(&u->meta);
    json_decref(u->doc);
    free(u);
}

/* ------------------------------------------------------------ the parts of a multipart body */

static int on_part(void *arg, const char *head, struct err *err)
{
    struct upload *u = arg;
    char encoding[32];

    if (++u->part > 2)
        return err_set(err, ERR_INVALID, "a multipart upload has two parts: metadata and content");
    multipart_header(head, "Content-Transfer-Encoding", encoding, sizeof encoding);
    if (!strcasecmp(encoding, "base64") || !strcasecmp(encoding, "quoted-printable"))
        return err_set(err, ERR_INVALID, "a part in %s: send it as it is (binary)", encoding);
    if (u->part == 2)
        multipart_header(head, "Content-Type", u->type, sizeof u->type);
    return 0;
}

static int on_data(void *arg, const char *bytes, size_t n, struct err *err)
{
    struct upload *u = arg;

    if (u->part == 2)
        return content_add(u->content, bytes, n, err);
    if (u->meta.n + n > META_MAX)
        return err_set(err, ERR_INVALID, "the metadata is longer than %d bytes", META_MAX);
    buf_append(&u->meta, bytes, n);
    return buf_ok(&u->meta, err);
}

static int on_end(void *arg, struct err *err)
{
    (void)arg;
    (void)err;
    return 0;
}

static const struct multipart_sink sink = { on_part, on_data, on_end };

/* ------------------------------------------------------------ the beginning */

/* What the bucket's project may still store (server/quota.h). */
static int room_in_project(struct request *q, int64_t n, struct err *err)
{
    struct bucket b;

    if (buckets_get(request_server(q), request_project(q), request_arg(q, "bucket"), NULL, &b,
                    err) < 0)
        return -(int)err->code;
    bucket_done(&b);
    return quota_room(request_server(q)->quota, b.project, n, err);
}

static int begin_session(struct upload *u, struct request *q, const char *id, struct err *err)
{
    const char *range = request_header(q, "content-range");

    u->kind = UPLOAD_SESSION;
    if (session_open(request_server(q), request_project(q), id, &u->session, err) < 0)
        return -(int)err->code;
    if (strcmp(session_bucket(u->session), request_arg(q, "bucket")))
        return err_set(err, ERR_MISSING, "There is no upload of this name in this bucket");
    u->range = (struct http_range){ 0, -1, -1 };
    if (!range)
        return 0;
    if (!strcmp(range, "bytes */*"))
        u->range.first = -1;
    else
        u->range = http_parse_range(range);
    if (u->range.first == -2)
        return err_set(err, ERR_INVALID, "Invalid Content-Range: \"%.100s\"", range);
    int64_t here = session_size(u->session);
    u->gap = u->range.first > here;
    u->skip = u->range.first >= 0 ? here - u->range.first : 0;
    /* What is announced and does not fit is refused before it comes. */
    if (u->range.first >= 0 && u->range.total > here && !u->gap && !session_done(u->session) &&
        room_in_project(q, u->range.total, err) < 0)
        return -(int)err->code;
    if (u->range.first >= 0 && u->range.total > here && !u->gap && !session_done(u->session))
        return session_room(u->session, u->range.total - here, err);
    return 0;
}

static int begin(struct upload *u, struct request *q, struct err *err)
{
    const char *kind = request_query(q, "uploadType"), *id = request_query(q, "upload_id");
    const char *type = request_header(q, "content-type");
    struct bucket b;

    u->call = (struct call){ .q = q, .server = request_server(q), .project = request_project(q),
                             .base = request_base(q), .bucket = request_arg(q, "bucket") };
    if (id && *id)
        return begin_session(u, q, id, err);
    /* Who may not write is told before 64 MB have come. */
    if (buckets_get(u->call.server, u->call.project, u->call.bucket, NULL, &b, err) < 0)
        return -(int)err->code;
    bucket_done(&b);
    if (request_length(q) > 0 &&
        (quota_room(u->call.server->quota, b.project, request_length(q), err) < 0 ||
         objects_room(u->call.server, request_length(q), err) < 0))
        return -(int)err->code;
    if (kind && !strcmp(kind, "resumable")) {
        u->kind = UPLOAD_BEGIN;
        return 0;
    }
    if (!(u->content = content_new(u->call.server)))
        return err_set(err, ERR_NOMEM, "no memory for an upload");
    if (kind && !strcmp(kind, "media")) {
        u->kind = UPLOAD_MEDIA;
        snprintf(u->type, sizeof u->type, "%s", type ? type : "");
        return 0;
    }
    if (kind && strcmp(kind, "multipart"))
        return err_set(err, ERR_INVALID,
                       "uploadType is media, multipart or resumable, not \"%.40s\"", kind);
    u->kind = UPLOAD_MULTIPART;
    return multipart_init(&u->multipart, type, err);
}

static int upload_of(struct request *q, struct upload **out, struct err *err)
{
    struct upload *u = request_kept(q);

    if (!u) {
        if (!(u = calloc(1, sizeof *u)))
            return err_set(err, ERR_NOMEM, "no memory for an upload");
        request_keep(q, u, upload_free);
        if (begin(u, q, err) < 0)
            return -(int)err->code;
    }
    *out = u;
    return 0;
}

static int take(struct upload *u, const void *bytes, size_t n, struct err *err)
{
    switch (u->kind) {
    case UPLOAD_MEDIA:
        return content_add(u->content, bytes, n, err);
    case UPLOAD_MULTIPART:
        return multipart_feed(&u->multipart, bytes, n, &sink, u, err);
    case UPLOAD_BEGIN:
        return on_data(u, bytes, n, err);
    case UPLOAD_SESSION:
        break;
    }
    if (u->gap || session_done(u->session))
        return 0;
    if (u->skip >= (int64_t)n) {
        u->skip -= (int64_t)n;
        return 0;
    }
    int rc = session_add(u->session, (const char *)bytes + u->skip, n - (size_t)u->skip, err);
    u->skip = 0;
    return rc;
}

int storage_upload_body(struct request *q, const void *bytes, size_t n, struct err *err)
{
    struct upload *u = request_kept(q);

    if (u && u->full.code)
        return 0;
    int rc = upload_of(q, &u, err);
    if (rc == 0)
        rc = take(u, bytes, n, err);
    u = request_kept(q);
    if (rc == 0 || !u || request_error_status(q, err) != 507)
        return rc;
    u->full = *err;
    return 0;
}

/* ------------------------------------------------------------ the end */

/* "crc32c=AAAA==,md5=BBBB==" of the headers: into two texts. */
static void read_hash(const struct request *q, char crc32c[32], char md5[32])
{
    const char *text = request_header(q, "x-goog-hash");

    crc32c[0] = md5[0] = '\0';
    for (; text && *text; text += strspn(text, ", ")) {
        size_t n = strcspn(text, ", ");
        if (!strncmp(text, "crc32c=", 7))
            snprintf(crc32c, 32, "%.*s", (int)n - 7, text + 7);
        else if (!strncmp(text, "md5=", 4))
            snprintf(md5, 32, "%.*s", (int)n - 4, text + 4);
        text += n;
    }
}

static const char *said(const json_t *doc, const char *key)
{
    return json_string_value(json_object_get(doc, key));
}

/* A header's checksum before the document's, which may be of an earlier state. */
static const char *checksum(const char *header, const json_t *doc, const char *key)
{
    return *header ? header : said(doc, key);
}

static int read_meta(struct upload *u, struct err *err)
{
    if (http_json(u->meta.data, u->meta.n, &u->doc, err) < 0)
        return err_add(err, "the metadata");
    return json_is_object(u->doc) ? 0
        : err_set(err, ERR_INVALID, "the metadata is not a JSON object");
}

/* Of the query, or of the document. */
static int read_name(const struct upload *u, const char **out, struct err *err)
{
    const char *name = call_query(&u->call, "name");

    if (!name || !*name)
        name = said(u->doc, "name");
    if (!name || !*name)
        return err_set(err, ERR_INVALID, "Required: the object's \"name\"");
    *out = name;
    return object_name_check(name, err);
}

/* Type and document: contentType is a column of its own. */
static int read_fields(const struct upload *u, const char *type, const char **out_type,
                       json_t **out_doc, struct err *err)
{
    const char *encoding = call_query(&u->call, "contentEncoding");

    if (storage_object_fields(u->doc, out_doc, err) < 0)
        return -(int)err->code;
    const char *own = said(u->doc, "contentType");
    *out_type = own && *own ? own : type;
    json_object_del(*out_doc, "contentType");
    if (encoding && *encoding)
        json_object_set_new(*out_doc, "contentEncoding", json_string(encoding));
    return 0;
}

static int answer(struct upload *u, struct request *q, int rc, struct object *o, struct err *err)
{
    struct call *c = &u->call;

    if (rc == 0) {
        c->answer = storage_object_doc(c->base, o);
        object_done(o);
    }
    call_settle(c, rc, err);
    rc = c->answer ? respond_json(q, c->status, c->answer) : respond_empty(q, c->status);
    c->answer = NULL;
    return rc;
}

static int end_whole(struct upload *u, struct request *q, struct err *err)
{
    struct objects_put p = { .project = u->call.project, .bucket = u->call.bucket };
    OWN_JSON json_t *doc = NULL;
    char crc32c[32], md5[32];
    struct object o;

    if (u->kind == UPLOAD_MULTIPART && (!multipart_ended(&u->multipart) || u->part != 2))
        return err_set(err, ERR_INVALID,
                       "the multipart body ends before its last boundary, or does "
                       "not have two parts");
    read_hash(q, crc32c, md5);
    if (read_meta(u, err) < 0 || read_name(u, &p.name, err) < 0 ||
        read_fields(u, u->type, &p.type, &doc, err) < 0 ||
        call_when(&u->call, false, &p.when, err) < 0)
        return -(int)err->code;
    p.doc = doc;
    p.crc32c = checksum(crc32c, u->doc, "crc32c");
    p.md5 = checksum(md5, u->doc, "md5Hash");
    int rc = content_put(u->content, &p, &o, err);
    return answer(u, q, rc, &o, err);
}

/* ------------------------------------------------------------ sessions */

static int end_begin(struct upload *u, struct request *q, struct err *err)
{
    struct objects_when w;
    OWN_JSON json_t *doc = NULL, *order = NULL;
    const char *name, *type, *upload_type = request_header(q, "x-upload-content-type");
    char id[OBJECTS_SESSION], crc32c[32], md5[32];
    OWN_BUF location = BUF_INIT;

    read_hash(q, crc32c, md5);
    if (read_meta(u, err) < 0 || read_name(u, &name, err) < 0 ||
        read_fields(u, upload_type ? upload_type : "", &type, &doc, err) < 0 ||
        call_when(&u->call, false, &w, err) < 0)
        return -(int)err->code;
    const char *crc = checksum(crc32c, u->doc, "crc32c"), *sum = checksum(md5, u->doc, "md5Hash");
    order = json_pack("{s:s, s:s, s:O, s:s, s:s, s:[I, I, I, I]}", "name", name, "type", type,
                      "doc", doc, "crc32c", crc ? crc : "", "md5", sum ? sum : "", "when",
                      (json_int_t)w.generation, (json_int_t)w.not_generation,
                      (json_int_t)w.metageneration, (json_int_t)w.not_metageneration);
    if (!order)
        return err_set(err, ERR_NOMEM, "no memory for an upload");
    if (session_begin(u->call.server, u->call.project, u->call.bucket, order, id, err) < 0)
        return -(int)err->code;
    buf_printf(&location, "%s/upload/storage/v1/b/%s/o?uploadType=resumable&upload_id=%s",
               u->call.base, u->call.bucket, id);
    respond_header(q, "Location", location.data ? location.data : "");
    respond_header(q, "X-GUploader-UploadID", id);
    return respond_empty(q, 200);
}

static int answer_308(struct upload *u, struct request *q, struct err *err)
{
    char range[48];

    if (session_sync(u->session, err) < 0)
        return -(int)err->code;
    int64_t here = session_size(u->session);
    if (here > 0) {
        snprintf(range, sizeof range, "bytes=0-%lld", (long long)here - 1);
        respond_header(q, "Range", range);
    }
    return respond_empty(q, 308);
}

static int64_t condition(const json_t *order, size_t i)
{
    return json_integer_value(json_array_get(json_object_get(order, "when"), i));
}

static int make_object(struct upload *u, struct request *q, struct object *out, struct err *err)
{
    const json_t *order = session_order(u->session);
    char crc32c[32], md5[32];

    read_hash(q, crc32c, md5);
    struct objects_put p = {
        .project = u->call.project,
        .bucket = session_bucket(u->session),
        .name = said(order, "name"),
        .type = said(order, "type"),
        .doc = json_object_get(order, "doc"),
        .crc32c = checksum(crc32c, order, "crc32c"),
        .md5 = checksum(md5, order, "md5"),
        .when = { condition(order, 0), condition(order, 1), condition(order, 2),
                  condition(order, 3), &u->call.unmet },
    };
    int rc = session_put(u->session, &p, out, err);
    /* What can never become right is not kept for a week. */
    if (rc < 0 && (u->call.unmet || err->code == ERR_INVALID))
        session_cancel(u->session, &(struct err){ 0 });
    return rc;
}

static int end_session(struct upload *u, struct request *q, struct err *err)
{
    const json_t *order = session_order(u->session);
    int64_t done = session_done(u->session), here = session_size(u->session);
    int64_t total = request_header(q, "content-range") ? u->range.total : here;
    struct object o;

    if (done) {                 /* its answer was lost, and the client asks again */
        int rc = objects_get(u->call.server, u->call.project, u->call.bucket, said(order, "name"),
                             done, NULL, &o, err);
        return answer(u, q, rc, &o, err);
    }
    if (total >= 0 && here > total)
        return err_set(err, ERR_INVALID, "%lld bytes have come, %lld were announced",
                       (long long)here, (long long)total);
    if (u->gap || total < 0 || here < total)
        return answer_308(u, q, err);
    int rc = make_object(u, q, &o, err);
    return answer(u, q, rc, &o, err);
}

int storage_upload(struct request *q, struct err *err)
{
    struct upload *u;

    if (upload_of(q, &u, err) < 0)
        return -(int)err->code;
    if (u->full.code) {
        *err = u->full;
        return -(int)err->code;
    }
    return u->kind == UPLOAD_SESSION ? end_session(u, q, err)
           : u->kind == UPLOAD_BEGIN ? end_begin(u, q, err) : end_whole(u, q, err);
}

int storage_upload_cancel(struct request *q, struct err *err)
{
    OWN(session) u = NULL;
    const char *id = request_query(q, "upload_id");

    if (session_open(request_server(q), request_project(q), id ? id : "", &u, err) < 0 ||
        session_cancel(u, err) < 0)
        return -(int)err->code;
    return respond_empty(q, 499);       /* what Cloud Storage answers */
}
