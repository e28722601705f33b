/* protocols/storage_ops.c - the operations on buckets and objects that are JSON in and JSON out */
#include <errno.h>
#include <string.h>

#include "protocols/fields.h"
#include "protocols/storage_int.h"
#include "server/auth.h"
#include "server/server.h"

/* ------------------------------------------------------------ calls */

const char *call_query(const struct call *c, const char *name)
{
    if (!c->part)
        return request_query(c->q, name);
    for (int i = 0; i < c->n_queries; i++)
        if (!strcmp(c->queries[i].name, name))
            return c->queries[i].value;
    return NULL;
}

int call_number(const struct call *c, const char *name, int64_t otherwise, int64_t *out,
                struct err *err)
{
    const char *text = call_query(c, name);
    char *end;

    if (!text || !*text) {
        *out = otherwise;
        return 0;
    }
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (*end || errno || n < 0)
        return err_set(err, ERR_INVALID, "Invalid value for %s: \"%.40s\" is not a number", name,
                       text);
    *out = n;
    return 0;
}

static bool call_flag(const struct call *c, const char *name)
{
    const char *text = call_query(c, name);

    return text && (!strcasecmp(text, "true") || !strcmp(text, "1"));
}

int call_when(struct call *c, bool source, struct objects_when *out, struct err *err)
{
    static const char *const names[2][4] = {
        { "ifGenerationMatch", "ifGenerationNotMatch", "ifMetagenerationMatch",
          "ifMetagenerationNotMatch" },
        { "ifSourceGenerationMatch", "ifSourceGenerationNotMatch", "ifSourceMetagenerationMatch",
          "ifSourceMetagenerationNotMatch" },
    };
    struct objects_when w = { .unmet = &c->unmet };

    if (call_number(c, names[source][0], OBJECTS_ANY, &w.generation, err) < 0 ||
        call_number(c, names[source][1], OBJECTS_ANY, &w.not_generation, err) < 0 ||
        call_number(c, names[source][2], OBJECTS_ANY, &w.metageneration, err) < 0 ||
        call_number(c, names[source][3], OBJECTS_ANY, &w.not_metageneration, err) < 0)
        return -(int)err->code;
    *out = w;
    return 0;
}

void call_done(struct call *c)
{
    for (int i = 0; i < c->n_queries; i++)
        free(c->queries[i].name);       /* the value is in the same piece */
    json_decref(c->body);
    json_decref(c->answer);
}

void call_settle(struct call *c, int rc, const struct err *err)
{
    const char *fields = call_query(c, "fields");
    struct err why = rc < 0 ? *err : (struct err){ 0 };
    json_t *part;

    if (rc == 0 && fields && c->answer) {
        rc = fields_select(c->answer, fields, &part, &why);
        if (rc == 0) {
            json_decref(c->answer);
            c->answer = part;
        }
    }
    if (rc == 0) {
        c->status = c->status ? c->status : 200;
        return;
    }
    json_decref(c->answer);
    c->status = c->unmet == 2 && !strcmp(request_method(c->q), "GET") ? 304
                : c->unmet ? 412 : request_error_status(c->q, &why);
    c->answer = c->status == 304 ? NULL : storage_error_doc(c->status, why.text);
}

/* ------------------------------------------------------------ buckets */

/* The project that is meant: the query's, or the token's. A client without one writes "<none>". */
static int project_of(const struct call *c, const char *otherwise, const char **out,
                      struct err *err)
{
    const char *asked = call_query(c, "project");

    if (!asked || !*asked || !strcmp(asked, "<none>") || !strcmp(asked, "None"))
        asked = c->project ? c->project : otherwise;
    else if (c->project && strcmp(asked, c->project))
        return err_set(err, ERR_DENIED, "this token is of another project than \"%.64s\"", asked);
    *out = asked;
    return 0;
}

struct bucket_page {
    struct call *call;
    json_t *items;
    int64_t limit;
    char last[OBJECTS_BUCKET_MAX + 1];
    bool more;
};

static int add_bucket(void *arg, const struct bucket *b)
{
    struct bucket_page *p = arg;

    if ((int64_t)json_array_size(p->items) == p->limit) {
        p->more = true;
        return 1;
    }
    snprintf(p->last, sizeof p->last, "%s", b->name);
    json_array_append_new(p->items, storage_bucket_doc(p->call->base, b));
    return 0;
}

int storage_bucket_list(struct call *c, struct err *err)
{
    struct bucket_page p = { .call = c };
    const char *project;

    if (project_of(c, NULL, &project, err) < 0 ||
        call_number(c, "maxResults", 1000, &p.limit, err) < 0)
        return -(int)err->code;
    if (p.limit < 1 || p.limit > 1000)
        p.limit = 1000;
    c->answer = json_pack("{s:s, s:[]}", "kind", "storage#buckets", "items");
    p.items = json_object_get(c->answer, "items");
    if (buckets_list(c->server, project, call_query(c, "prefix"), call_query(c, "pageToken"),
                     add_bucket, &p, err) < 0)
        return -(int)err->code;
    if (p.more)
        json_object_set_new(c->answer, "nextPageToken", json_string(p.last));
    if (!json_array_size(p.items))
        json_object_del(c->answer, "items");
    return 0;
}

int storage_bucket_insert(struct call *c, struct err *err)
{
    const char *name = json_string_value(json_object_get(c->body, "name")), *project;
    OWN_JSON json_t *doc = NULL;
    struct bucket b;

    if (!name)
        return err_set(err, ERR_INVALID, "Required: the bucket's \"name\"");
    if (project_of(c, "default", &project, err) < 0 ||
        storage_bucket_fields(c->body, &doc, err) < 0)
        return -(int)err->code;
    if (!auth_project_exists(c->server->auth, project))
        return err_set(err, ERR_INVALID,
                       "there is no project \"%.64s\" here (muster project add NAME "
                       "makes one; \"default\" is always there)",
                       project);
    if (buckets_insert(c->server, project, name, doc, &b, err) < 0)
        return -(int)err->code;
    c->answer = storage_bucket_doc(c->base, &b);
    bucket_done(&b);
    return 0;
}

int storage_bucket_get(struct call *c, struct err *err)
{
    struct objects_when when;
    struct bucket b;

    if (call_when(c, false, &when, err) < 0 ||
        buckets_get(c->server, c->project, c->bucket, &when, &b, err) < 0)
        return -(int)err->code;
    c->answer = storage_bucket_doc(c->base, &b);
    bucket_done(&b);
    return 0;
}

static int change_bucket(struct call *c, bool replace, struct err *err)
{
    struct objects_when when;
    OWN_JSON json_t *doc = NULL;
    struct bucket b;

    if (call_when(c, false, &when, err) < 0 || storage_bucket_fields(c->body, &doc, err) < 0 ||
        buckets_patch(c->server, c->project, c->bucket, doc, replace, &when, &b, err) < 0)
        return -(int)err->code;
    c->answer = storage_bucket_doc(c->base, &b);
    bucket_done(&b);
    return 0;
}

int storage_bucket_patch(struct call *c, struct err *err)
{
    return change_bucket(c, false, err);
}

int storage_bucket_update(struct call *c, struct err *err)
{
    return change_bucket(c, true, err);
}

int storage_bucket_delete(struct call *c, struct err *err)
{
    struct objects_when when;

    c->status = 204;
    if (call_when(c, false, &when, err) < 0)
        return -(int)err->code;
    return buckets_delete(c->server, c->project, c->bucket, &when, err);
}

int storage_bucket_layout(struct call *c, struct err *err)
{
    struct bucket b;

    if (buckets_get(c->server, c->project, c->bucket, NULL, &b, err) < 0)
        return -(int)err->code;
    c->answer = json_pack("{s:s, s:s, s:s, s:s, s:{s:b}}", "kind", "storage#storageLayout",
                          "bucket", b.name, "location", "US", "locationType", "multi-region",
                          "hierarchicalNamespace", "enabled", 0);
    bucket_done(&b);
    return 0;
}

/* Who has a token of the project may do everything in it. */
int storage_bucket_policy(struct call *c, struct err *err)
{
    struct bucket b;

    if (buckets_get(c->server, c->project, c->bucket, NULL, &b, err) < 0)
        return -(int)err->code;
    c->answer = json_pack("{s:s, s:s+, s:i, s:s, s:[{s:s, s:[s+]}]}", "kind", "storage#policy",
                          "resourceId", "projects/_/buckets/", b.name, "version", 1, "etag", "CAE=",
                          "bindings", "role", "roles/storage.admin", "members", "projectOwner:",
                          b.project);
    bucket_done(&b);
    return 0;
}

int storage_bucket_permissions(struct call *c, struct err *err)
{
    struct bucket b;
    const char *asked = call_query(c, "permissions");

    if (buckets_get(c->server, c->project, c->bucket, NULL, &b, err) < 0)
        return -(int)err->code;
    bucket_done(&b);
    c->answer =
        json_pack("{s:s, s:[]}", "kind", "storage#testIamPermissionsResponse", "permissions");
    if (asked)
        json_array_append_new(json_object_get(c->answer, "permissions"), json_string(asked));
    return 0;
}

/* ------------------------------------------------------------ objects */

struct object_page {
    struct call *call;
    json_t *items;
};

static int add_object(void *arg, const struct object *o)
{
    struct object_page *p = arg;

    return json_array_append_new(p->items, storage_object_doc(p->call->base, o));
}

int storage_object_list(struct call *c, struct err *err)
{
    struct object_page p = { c, NULL };
    struct objects_query q = {
        .project = c->project, .bucket = c->bucket, .prefix = call_query(c, "prefix"),
        .delimiter = call_query(c, "delimiter"), .start = call_query(c, "startOffset"),
        .end = call_query(c, "endOffset"), .glob = call_query(c, "matchGlob"),
        .token = call_query(c, "pageToken"), .versions = call_flag(c, "versions"),
        .trailing = call_flag(c, "includeTrailingDelimiter"),
    };
    int64_t limit;
    OWN_BUF token = BUF_INIT;

    if (call_number(c, "maxResults", 1000, &limit, err) < 0)
        return -(int)err->code;
    q.limit = limit < 1 || limit > 1000 ? 1000 : (int)limit;
    c->answer = json_pack("{s:s, s:[], s:[]}", "kind", "storage#objects", "items", "prefixes");
    p.items = json_object_get(c->answer, "items");
    json_t *prefixes = json_object_get(c->answer, "prefixes");
    if (objects_list(c->server, &q, add_object, &p, prefixes, &token, err) < 0)
        return -(int)err->code;
    if (token.n)
        json_object_set_new(c->answer, "nextPageToken", json_string(token.data));
    if (!json_array_size(prefixes))
        json_object_del(c->answer, "prefixes");
    if (!json_array_size(p.items))
        json_object_del(c->answer, "items");
    return 0;
}

static int answer_object(struct call *c, struct object *o)
{
    c->answer = storage_object_doc(c->base, o);
    object_done(o);
    return 0;
}

int storage_object_get(struct call *c, struct err *err)
{
    struct objects_when when;
    int64_t generation;
    struct object o;

    if (call_when(c, false, &when, err) < 0 ||
        call_number(c, "generation", 0, &generation, err) < 0 ||
        objects_get(c->server, c->project, c->bucket, c->object, generation, &when, &o, err) < 0)
        return -(int)err->code;
    return answer_object(c, &o);
}

static int change_object(struct call *c, bool replace, struct err *err)
{
    struct objects_when when;
    int64_t generation;
    OWN_JSON json_t *doc = NULL;
    struct object o;

    if (call_when(c, false, &when, err) < 0 ||
        call_number(c, "generation", 0, &generation, err) < 0 ||
        storage_object_fields(c->body, &doc, err) < 0 ||
        objects_patch(c->server, c->project, c->bucket, c->object, generation, doc, replace, &when,
                      &o, err) < 0)
        return -(int)err->code;
    return answer_object(c, &o);
}

int storage_object_patch(struct call *c, struct err *err)
{
    return change_object(c, false, err);
}

int storage_object_update(struct call *c, struct err *err)
{
    return change_object(c, true, err);
}

int storage_object_delete(struct call *c, struct err *err)
{
    struct objects_when when;
    int64_t generation;

    c->status = 204;
    if (call_when(c, false, &when, err) < 0 ||
        call_number(c, "generation", 0, &generation, err) < 0)
        return -(int)err->code;
    return objects_delete(c->server, c->project, c->bucket, c->object, generation, &when, err);
}

/* ------------------------------------------------------------ copies */

static int copy(struct call *c, bool move, struct object *out, struct err *err)
{
    struct objects_copy f = { .project = c->project, .bucket = c->bucket, .name = c->object,
                              .to_bucket = c->to_bucket ? c->to_bucket : c->bucket,
                              .to_name = c->to_object, .move = move };
    OWN_JSON json_t *doc = NULL;

    if (call_when(c, true, &f.when, err) < 0 || call_when(c, false, &f.to_when, err) < 0 ||
        call_number(c, "sourceGeneration", 0, &f.generation, err) < 0 ||
        storage_object_fields(c->body, &doc, err) < 0)
        return -(int)err->code;
    if (json_object_size(doc))
        f.doc = doc;
    return objects_copy(c->server, &f, out, err);
}

int storage_object_copy(struct call *c, struct err *err)
{
    struct object o;

    return copy(c, false, &o, err) < 0 ? -(int)err->code : answer_object(c, &o);
}

/* Always done in one step: no byte moves. */
int storage_object_rewrite(struct call *c, struct err *err)
{
    struct object o;
    char size[24];

    if (copy(c, false, &o, err) < 0)
        return -(int)err->code;
    snprintf(size, sizeof size, "%lld", (long long)o.size);
    c->answer = json_pack("{s:s, s:s, s:s, s:b, s:o}", "kind", "storage#rewriteResponse",
                          "totalBytesRewritten", size, "objectSize", size, "done", 1, "resource",
                          storage_object_doc(c->base, &o));
    object_done(&o);
    return 0;
}

int storage_object_move(struct call *c, struct err *err)
{
    struct object o;

    return copy(c, true, &o, err) < 0 ? -(int)err->code : answer_object(c, &o);
}

/* ------------------------------------------------------------ compose */

static int add_content(struct content *to, struct reader *r, int64_t size, struct err *err)
{
    const char *bytes;

    for (int64_t at = 0; at < size;) {
        long n = reader_at(r, at, &bytes, err);
        if (n < 0 || content_add(to, bytes, (size_t)n, err) < 0)
            return -(int)err->code;
        at += n;
    }
    return 0;
}

static int64_t number_of(const json_t *value, int64_t otherwise)
{
    if (json_is_integer(value))
        return json_integer_value(value);
    return json_is_string(value) ? strtoll(json_string_value(value), NULL, 10) : otherwise;
}

static int add_source(struct call *c, struct content *to, const json_t *source, char type[128],
                      struct err *err)
{
    const char *name = json_string_value(json_object_get(source, "name"));
    const json_t *conditions = json_object_get(source, "objectPreconditions");
    struct objects_when when = OBJECTS_WHENEVER;
    struct object o;
    OWN(reader) r = NULL;
    OWN_MEM char *bytes = NULL;

    if (!name)
        return err_set(err, ERR_INVALID, "\"sourceObjects\": each has a \"name\"");
    when.generation = number_of(json_object_get(conditions, "ifGenerationMatch"), OBJECTS_ANY);
    when.unmet = &c->unmet;
    if (objects_get(c->server, c->project, c->bucket, name,
                    number_of(json_object_get(source, "generation"), 0), &when, &o, err) < 0)
        return -(int)err->code;
    object_done(&o);
    if (!*type)
        snprintf(type, 128, "%s", o.type);
    if (objects_content(c->server, &o, &r, &bytes, err) < 0)
        return -(int)err->code;
    return bytes ? content_add(to, bytes, (size_t)o.size, err) : add_content(to, r, o.size, err);
}

int storage_object_compose(struct call *c, struct err *err)
{
    json_t *sources = json_object_get(c->body, "sourceObjects"), *source;
    OWN(content) all = content_new(c->server);
    OWN_JSON json_t *doc = NULL;
    struct objects_put p = { .project = c->project, .bucket = c->bucket, .name = c->object };
    struct object o;
    char type[128] = "";
    size_t i, n = json_array_size(sources);

    if (!all)
        return err_set(err, ERR_NOMEM, "no memory to compose objects");
    if (n < 1 || n > OBJECTS_COMPOSE_MAX)
        return err_set(err, ERR_INVALID,
                       "The number of source components provided (%zu) is not 1 to "
                       "%d",
                       n, OBJECTS_COMPOSE_MAX);
    if (call_when(c, false, &p.when, err) < 0 ||
        storage_object_fields(json_object_get(c->body, "destination"), &doc, err) < 0)
        return -(int)err->code;
    json_array_foreach(sources, i, source)
        if (add_source(c, all, source, type, err) < 0)
            return -(int)err->code;
    const char *said = json_string_value(json_object_get(doc, "contentType"));
    if (said)
        snprintf(type, sizeof type, "%s", said);
    json_object_del(doc, "contentType");
    p.type = type;
    p.doc = doc;
    if (content_put(all, &p, &o, err) < 0)
        return -(int)err->code;
    return answer_object(c, &o);
}
