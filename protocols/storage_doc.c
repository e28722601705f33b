/* protocols/storage_doc.c - buckets and objects as Cloud Storage writes them, and its errors */
#include <nettle/base64.h>
#include <string.h>

#include "base/http.h"
#include "protocols/stamp.h"
#include "protocols/storage_int.h"

static void set(json_t *doc, const char *key, const char *value)
{
    json_object_set_new(doc, key, json_string(value));
}

static void set_number(json_t *doc, const char *key, int64_t value)
{
    char text[24];

    snprintf(text, sizeof text, "%lld", (long long)value);
    set(doc, key, text);
}

static void set_time(json_t *doc, const char *key, double seconds)
{
    char text[STAMP_SIZE];

    stamp_format(stamp_of(seconds), text);
    set(doc, key, text);
}

void storage_etag(const struct object *o, char out[48])
{
    char raw[48];
    int n = snprintf(raw, 32, "%llx.%llx", (unsigned long long)o->generation,
                     (unsigned long long)o->metageneration);

    base64_encode_raw(out, (size_t)n, (const uint8_t *)raw);
    out[BASE64_ENCODE_RAW_LENGTH((size_t)n)] = '\0';
}

/* BASE/PREFIX/b/BUCKET/o/OBJECT and what comes after. */
static void set_link(json_t *doc, const char *key, const char *base, const char *prefix,
                     const struct object *o, const char *after)
{
    OWN_BUF link = BUF_INIT;

    buf_printf(&link, "%s%s/b/%s/o/", base, prefix, o->bucket);
    http_escape(&link, o->name);
    buf_text(&link, after);
    set(doc, key, link.data ? link.data : "");
}

json_t *storage_object_doc(const char *base, const struct object *o)
{
    json_t *doc = json_object();
    char etag[48], after[64];
    OWN_BUF id = BUF_INIT;

    buf_printf(&id, "%s/%s/%lld", o->bucket, o->name, (long long)o->generation);
    snprintf(after, sizeof after, "?generation=%lld&alt=media", (long long)o->generation);
    storage_etag(o, etag);
    set(doc, "kind", "storage#object");
    set(doc, "id", id.data ? id.data : "");
    set_link(doc, "selfLink", base, "/storage/v1", o, "");
    set_link(doc, "mediaLink", base, "/download/storage/v1", o, after);
    set(doc, "name", o->name);
    set(doc, "bucket", o->bucket);
    set_number(doc, "generation", o->generation);
    set_number(doc, "metageneration", o->metageneration);
    set(doc, "contentType", o->type);
    set(doc, "storageClass", "STANDARD");
    set_number(doc, "size", o->size);
    set(doc, "md5Hash", o->md5);
    set(doc, "crc32c", o->crc32c);
    set(doc, "etag", etag);
    set_time(doc, "timeCreated", o->created);
    set_time(doc, "updated", o->updated);
    set_time(doc, "timeStorageClassUpdated", o->created);
    set_time(doc, "timeFinalized", o->created);
    if (o->deleted > 0)
        set_time(doc, "timeDeleted", o->deleted);
    if (o->doc)
        json_object_update(doc, o->doc);
    return doc;
}

json_t *storage_bucket_doc(const char *base, const struct bucket *b)
{
    json_t *doc = json_pack("{s:s, s:s, s:s, s:s, s:{s:{s:b}, s:s}}", "location", "US",
                            "locationType", "multi-region", "storageClass", "STANDARD", "rpo",
                            "DEFAULT", "iamConfiguration", "uniformBucketLevelAccess", "enabled", 0,
                            "publicAccessPrevention", "inherited");
    char etag[48], raw[24];
    OWN_BUF link = BUF_INIT;

    json_object_update(doc, b->doc);
    int n = snprintf(raw, sizeof raw, "b%llx", (unsigned long long)b->metageneration);
    base64_encode_raw(etag, (size_t)n, (const uint8_t *)raw);
    etag[BASE64_ENCODE_RAW_LENGTH((size_t)n)] = '\0';
    buf_printf(&link, "%s/storage/v1/b/%s", base, b->name);
    set(doc, "kind", "storage#bucket");
    set(doc, "id", b->name);
    set(doc, "name", b->name);
    set(doc, "selfLink", link.data ? link.data : "");
    set(doc, "projectNumber", "0");
    set_number(doc, "metageneration", b->metageneration);
    set(doc, "etag", etag);
    set_time(doc, "timeCreated", b->created);
    set_time(doc, "updated", b->updated);
    return doc;
}

/* ------------------------------------------------------------ what a client may say */

static const char *const object_keys[] = {
    "cacheControl", "contentDisposition", "contentEncoding", "contentLanguage", "contentType",
    "customTime", "eventBasedHold", "metadata", "storageClass", "temporaryHold",
};

static int metadata_check(const json_t *metadata, struct err *err)
{
    const char *key;
    json_t *value;

    if (!json_is_object(metadata) && !json_is_null(metadata))
        return err_set(err, ERR_INVALID, "\"metadata\" is an object of texts");
    json_object_foreach((json_t *)metadata, key, value)
        if (!json_is_string(value) && !json_is_null(value))
            return err_set(err, ERR_INVALID, "\"metadata\": the value of \"%.100s\" is not a text",
                           key);
    return 0;
}

int storage_object_fields(const json_t *from, json_t **out, struct err *err)
{
    OWN_JSON json_t *doc = json_object();

    for (size_t i = 0; i < sizeof object_keys / sizeof *object_keys; i++) {
        const char *key = object_keys[i];
        json_t *value = json_object_get(from, key);
        if (!value)
            continue;
        if (!strcmp(key, "metadata")) {
            if (metadata_check(value, err) < 0)
                return -(int)err->code;
        } else if (strstr(key, "Hold") ? !json_is_boolean(value) && !json_is_null(value)
                                       : !json_is_string(value) && !json_is_null(value)) {
            return err_set(err, ERR_INVALID, "\"%s\" does not have a value of this kind", key);
        } else if (json_is_string(value) && strpbrk(json_string_value(value), "\r\n")) {
            return err_set(err, ERR_INVALID, "\"%s\" has a line end in it", key);
        }
        json_object_set(doc, key, value);
    }
    *out = TAKE(doc);
    return 0;
}

int storage_bucket_fields(const json_t *from, json_t **out, struct err *err)
{
    static const char *const ours[] = {
        "kind", "id", "name", "selfLink", "projectNumber", "metageneration", "etag", "timeCreated",
        "updated", "acl", "defaultObjectAcl", "owner", "generation",
    };
    OWN_JSON json_t *doc = json_copy((json_t *)from);

    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        json_object_del(doc, ours[i]);
    if (json_is_true(json_object_get(json_object_get(doc, "hierarchicalNamespace"), "enabled")))
        return err_set(err, ERR_INVALID, "buckets here have no hierarchical namespace");
    *out = TAKE(doc);
    return 0;
}

/* ------------------------------------------------------------ errors */

static const struct { int status; const char *reason; } reasons[] = {
    { 304, "notModified" },   { 400, "invalid" },         { 401, "authError" },
    { 403, "forbidden" },     { 404, "notFound" },        { 405, "methodNotAllowed" },
    { 409, "conflict" },      { 410, "gone" },            { 412, "conditionNotMet" },
    { 413, "uploadTooLarge" }, { 416, "requestedRangeNotSatisfiable" },
    { 429, "rateLimitExceeded" }, { 503, "backendError" }, { 507, "insufficientStorage" },
};

json_t *storage_error_doc(int status, const char *text)
{
    const char *reason = "internalError";

    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].status == status)
            reason = reasons[i].reason;
    return json_pack("{s:{s:i, s:s, s:[{s:s, s:s, s:s}]}}", "error", "code", status, "message",
                     text, "errors", "message", text, "domain", "global", "reason", reason);
}

void storage_error(struct request *q, const struct err *err)
{
    int status = request_error_status(q, err);

    respond_json(q, status, storage_error_doc(status, err->text));
}
