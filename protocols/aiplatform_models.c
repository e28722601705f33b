/* protocols/aiplatform_models.c - AI Platform's models, versions and operations: kept documents
 *
 * One table: a document by project and name ("models/M", "models/M/versions/V", "operations/N").
 * What changes something is done when it is answered, so every operation is done from its first
 * moment on.
 */
#include "protocols/aiplatform_int.h"

#include <ctype.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/own.h"
#include "protocols/google.h"
#include "protocols/stamp.h"
#include "protocols/training.h"
#include "server/server.h"

enum { NAME_SIZE = 320 };

static const char *const schema[] = {
    "CREATE TABLE ml_documents (project TEXT NOT NULL, name TEXT NOT NULL, body TEXT NOT NULL, "
    "PRIMARY KEY (project, name)) WITHOUT ROWID",
    NULL,
};
static const char sql_get[] = "SELECT body FROM ml_documents WHERE project = ? AND name = ?";
static const char sql_add[] = "INSERT INTO ml_documents (project, name, body) VALUES (?, ?, ?)";
static const char sql_set[] = "UPDATE ml_documents SET body = ?3 WHERE project = ?1 AND name = ?2";
static const char sql_remove[] = "DELETE FROM ml_documents WHERE project = ? AND name = ?";
/* '/' + 1 is '0': all names that begin with a prefix that ends in '/'. */
static const char sql_list[] =
    "SELECT name, body FROM ml_documents WHERE project = ? AND name > ? AND name < ? ORDER BY name";
static const char sql_last[] = "SELECT name FROM ml_documents WHERE project = ? AND name LIKE "
                               "'operations/%' ORDER BY name DESC";

/* The table is made when it is first asked for: most servers never are. */
static int ready(struct server *s, struct err *err)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static const struct store *made;
    pthread_mutex_lock(&lock);
    int rc = made == s->store ? 0 : store_schema(s->store, "aiplatform", schema, err);
    if (rc == 0)
        made = s->store;
    pthread_mutex_unlock(&lock);
    return rc;
}

static int begin(struct request *q, const char **project, struct err *err)
{
    if (google_project(q, project, err) < 0)
        return -(int)err->code;
    return ready(request_server(q), err);
}

/* "models/M/versions/V" of the request's path. */
static void name_of(const struct request *q, char out[NAME_SIZE])
{
    const char *model = request_arg(q, "model"), *version = request_arg(q, "version");
    if (!model)
        snprintf(out, NAME_SIZE, "operations/%.128s", request_arg(q, "operation"));
    else if (!version)
        snprintf(out, NAME_SIZE, "models/%.128s", model);
    else
        snprintf(out, NAME_SIZE, "models/%.128s/versions/%.128s", model, version);
}

/* ------------------------------------------------------------ the table */

static int find(sqlite3 *db, const char *project, const char *name, json_t **out, struct err *err)
{
    sqlite3_stmt *st = store_sql(db, sql_get, err);
    if (!st || store_bind(st, err, "ss", project, name) < 0)
        return -(int)err->code;
    int rc = store_step(st, err);
    if (rc < 0)
        return rc;
    if (rc == 0)
        return err_set(err, ERR_MISSING, "Field: name Error: projects/%s/%.200s is not there.",
                       project, name);
    *out = json_loads((const char *)sqlite3_column_text(st, 0), 0, NULL);
    sqlite3_reset(st);
    return *out ? 0 : err_set(err, ERR_IO, "the document of %.200s cannot be read", name);
}

static int save(sqlite3 *db, const char *sql, const char *project, const char *name,
                const json_t *body, struct err *err)
{
    OWN_MEM char *text = json_dumps(body, JSON_COMPACT);
    return text ? store_run(db, err, sql, "sss", project, name, text)
                : err_set(err, ERR_NOMEM, "no memory for a document");
}

struct task {
    const char *project;
    char name[NAME_SIZE];
    json_t *body; /* in: what to write; out: what is there */
    const char *kind; /* of the operation that says so; NULL: none */
    json_t *operation; /* out */
};

static json_t *stamp_now(void)
{
    char text[STAMP_SIZE];
    stamp_format(stamp_of(clock_wall()), text);
    return json_string(text);
}

/* Its number is one more than the last one's, in the same transaction; zeros keep them in order. */
static int add_operation(sqlite3 *db, struct task *t, const json_t *response, struct err *err)
{
    sqlite3_stmt *st = store_sql(db, sql_last, err);
    int64_t n = 0;
    if (!t->kind)
        return 0;
    if (!st || store_bind(st, err, "s", t->project) < 0)
        return -(int)err->code;
    int rc = store_step(st, err);
    if (rc < 0)
        return rc;
    if (rc == 1)
        sscanf((const char *)sqlite3_column_text(st, 0), "operations/op_%" SCNd64, &n);
    sqlite3_reset(st);
    char name[64], whole[NAME_SIZE + 80];
    snprintf(name, sizeof name, "operations/op_%012" PRId64, n + 1);
    snprintf(whole, sizeof whole, "projects/%s/%s", t->project, name);
    json_t *now = stamp_now();
    t->operation = json_pack(
        "{s:s, s:b, s:{s:s, s:s, s:O, s:O, s:o}, s:O}", "name", whole, "done", 1, "metadata",
        "@type", "type.googleapis.com/google.cloud.ml.v1.OperationMetadata", "operationType",
        t->kind, "createTime", now, "startTime", now, "endTime", now, "response", response);
    return save(db, sql_add, t->project, name, t->operation, err);
}

static int add_fn(sqlite3 *db, void *arg, struct err *err)
{
    struct task *t = arg;
    char model[NAME_SIZE];
    json_t *found = NULL;
    snprintf(model, sizeof model, "%s", t->name);
    char *versions = strstr(model, "/versions/");
    if (versions) { /* its model is there, and has the first version for its default */
        *versions = 0;
        if (find(db, t->project, model, &found, err) < 0)
            return -(int)err->code;
        bool first = !json_object_get(found, "defaultVersion");
        if (first) {
            json_object_set_new(t->body, "isDefault", json_true());
            json_object_set(found, "defaultVersion", t->body);
        }
        int rc = first ? save(db, sql_set, t->project, model, found, err) : 0;
        json_decref(found);
        if (rc < 0)
            return rc;
    }
    int rc = save(db, sql_add, t->project, t->name, t->body, err);
    if (rc == -ERR_CONFLICT)
        return err_set(err, ERR_CONFLICT, "Field: name Error: %.200s exists already.", t->name);
    return rc < 0 ? rc : add_operation(db, t, t->body, err);
}

static int get_fn(sqlite3 *db, void *arg, struct err *err)
{
    struct task *t = arg;
    return find(db, t->project, t->name, &t->body, err);
}

/* ------------------------------------------------------------ create */

static int check_name(const char *name, struct err *err)
{
    bool good = name && isalpha((unsigned char)*name) && strlen(name) <= 128;
    for (const char *p = name; good && *p; p++)
        good = isalnum((unsigned char)*p) || *p == '_';
    return good ? 0
                : err_set(err, ERR_INVALID,
                          "Field: name Error: A letter, then letters, digits and "
                          "underscores, 128 at most, are needed.");
}

static int read_body(struct request *q, struct task *t, struct err *err)
{
    if (request_json(q, &t->body, err) < 0)
        return -(int)err->code;
    if (!json_is_object(t->body))
        return err_set(err, ERR_INVALID, "the body is to be an object");
    if (training_check_labels(json_object_get(t->body, "labels"), err) < 0)
        return -(int)err->code;
    return check_name(json_string_value(json_object_get(t->body, "name")), err);
}

static void task_done(struct task *t)
{
    json_decref(t->body);
    json_decref(t->operation);
}
#define OWN_TASK __attribute__((cleanup(task_done))) struct task

int aiplatform_create_model(struct request *q, struct err *err)
{
    OWN_TASK t = { 0 };
    if (begin(q, &t.project, err) < 0 || read_body(q, &t, err) < 0)
        return -(int)err->code;
    char whole[NAME_SIZE + 80];
    snprintf(t.name, sizeof t.name, "models/%s",
             json_string_value(json_object_get(t.body, "name")));
    snprintf(whole, sizeof whole, "projects/%s/%s", t.project, t.name);
    json_object_set_new(t.body, "name", json_string(whole));
    json_object_set_new(t.body, "etag", json_string("AAAAAAAAAAE="));
    json_object_del(t.body, "defaultVersion");
    if (store_write(request_server(q)->store, add_fn, &t, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, json_incref(t.body));
}

int aiplatform_create_version(struct request *q, struct err *err)
{
    OWN_TASK t = { .kind = "CREATE_VERSION" };
    if (begin(q, &t.project, err) < 0 || read_body(q, &t, err) < 0)
        return -(int)err->code;
    char whole[NAME_SIZE + 80];
    snprintf(t.name, sizeof t.name, "models/%.128s/versions/%s", request_arg(q, "model"),
             json_string_value(json_object_get(t.body, "name")));
    snprintf(whole, sizeof whole, "projects/%s/%s", t.project, t.name);
    json_object_set_new(t.body, "name", json_string(whole));
    json_object_set_new(t.body, "state", json_string("READY"));
    json_object_set_new(t.body, "createTime", stamp_now());
    json_object_set_new(t.body, "etag", json_string("AAAAAAAAAAE="));
    json_object_del(t.body, "isDefault");
    if (store_write(request_server(q)->store, add_fn, &t, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, json_incref(t.operation));
}

/* ------------------------------------------------------------ get, list */

/* What the path names, looked at by store_read or changed by store_write. */
static int run_named(struct request *q, struct task *t,
                     int (*run)(struct store *, int (*)(sqlite3 *, void *, struct err *), void *,
                                struct err *),
                     int (*fn)(sqlite3 *, void *, struct err *), struct err *err)
{
    if (begin(q, &t->project, err) < 0)
        return -(int)err->code;
    name_of(q, t->name);
    return run(request_server(q)->store, fn, t, err);
}

int aiplatform_get(struct request *q, struct err *err)
{
    OWN_TASK t = { 0 };
    if (run_named(q, &t, store_read, get_fn, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, json_incref(t.body));
}

struct listing {
    const char *project, *prefix, *token;
    const struct filter *filter;
    int size;
    json_t *out;
    char next[NAME_SIZE]; /* the last name given, when there are more */
};

static int list_fn(sqlite3 *db, void *arg, struct err *err)
{
    struct listing *l = arg;
    char from[NAME_SIZE], to[NAME_SIZE], last[NAME_SIZE] = "";
    size_t n = strlen(l->prefix);
    snprintf(from, sizeof from, "%s",
             l->token && !strncmp(l->token, l->prefix, n) ? l->token : l->prefix);
    snprintf(to, sizeof to, "%.*s0", (int)n - 1, l->prefix);
    sqlite3_stmt *st = store_sql(db, sql_list, err);
    if (!st || store_bind(st, err, "sss", l->project, from, to) < 0)
        return -(int)err->code;
    int rc;
    while ((rc = store_step(st, err)) == 1) {
        const char *name = (const char *)sqlite3_column_text(st, 0);
        if (strchr(name + n, '/')) /* of something below */
            continue;
        OWN_JSON json_t *body = json_loads((const char *)sqlite3_column_text(st, 1), 0, NULL);
        if (!body || !filter_match(l->filter, aiplatform_field, body))
            continue;
        if ((int)json_array_size(l->out) == l->size) {
            snprintf(l->next, sizeof l->next, "%s", last);
            break;
        }
        json_array_append(l->out, body);
        snprintf(last, sizeof last, "%s", name);
    }
    sqlite3_reset(st);
    return rc < 0 ? rc : 0;
}

static int list(struct request *q, const char *prefix, const char *key, struct err *err)
{
    struct listing l = { .prefix = prefix, .token = request_query(q, "pageToken") };
    OWN(filter) filter = NULL;
    OWN_JSON json_t *out = json_array();
    if (begin(q, &l.project, err) < 0 || google_page_size(q, 20, 100, &l.size, err) < 0 ||
        filter_parse(request_query(q, "filter"), &filter, err) < 0)
        return -(int)err->code;
    l.filter = filter;
    l.out = out;
    if (store_read(request_server(q)->store, list_fn, &l, err) < 0)
        return -(int)err->code;
    json_t *answer = json_object();
    if (json_array_size(out))
        json_object_set(answer, key, out);
    if (*l.next)
        json_object_set_new(answer, "nextPageToken", json_string(l.next));
    return respond_json(q, 200, answer);
}

int aiplatform_list_models(struct request *q, struct err *err)
{
    return list(q, "models/", "models", err);
}

int aiplatform_list_versions(struct request *q, struct err *err)
{
    char prefix[NAME_SIZE];
    snprintf(prefix, sizeof prefix, "models/%.128s/versions/", request_arg(q, "model"));
    return list(q, prefix, "versions", err);
}

int aiplatform_list_operations(struct request *q, struct err *err)
{
    return list(q, "operations/", "operations", err);
}

/* ------------------------------------------------------------ change, delete */

static int patch_fn(sqlite3 *db, void *arg, struct err *err)
{
    struct task *t = arg;
    OWN_JSON json_t *found = NULL;
    if (find(db, t->project, t->name, &found, err) < 0)
        return -(int)err->code;
    static const char *const may[] = { "description",
                                       "labels",
                                       "onlinePredictionLogging",
                                       "onlinePredictionConsoleLogging",
                                       "requestLoggingConfig",
                                       "autoScaling",
                                       "manualScaling",
                                       NULL };
    for (int i = 0; may[i]; i++)
        if (json_object_get(t->body, may[i]))
            json_object_set(found, may[i], json_object_get(t->body, may[i]));
    if (save(db, sql_set, t->project, t->name, found, err) < 0)
        return -(int)err->code;
    return add_operation(db, t, found, err);
}

int aiplatform_patch(struct request *q, struct err *err)
{
    OWN_TASK t = { .kind = request_arg(q, "version") ? "UPDATE_VERSION" : "UPDATE_MODEL" };
    if (begin(q, &t.project, err) < 0 || request_json(q, &t.body, err) < 0 ||
        training_check_labels(json_object_get(t.body, "labels"), err) < 0)
        return -(int)err->code;
    name_of(q, t.name);
    if (store_write(request_server(q)->store, patch_fn, &t, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, json_incref(t.operation));
}

/* A model goes when it has no versions. */
static int check_empty(sqlite3 *db, const struct task *t, struct err *err)
{
    char from[NAME_SIZE + 16], to[NAME_SIZE + 16];
    snprintf(from, sizeof from, "%s/versions/", t->name);
    snprintf(to, sizeof to, "%s/versions0", t->name);
    sqlite3_stmt *st = store_sql(db, sql_list, err);
    if (!st || store_bind(st, err, "sss", t->project, from, to) < 0)
        return -(int)err->code;
    int rc = store_step(st, err);
    sqlite3_reset(st);
    return rc <= 0 ? rc
                   : err_set(err, ERR_INVALID,
                             "Field: name Error: %.200s has versions; delete them "
                             "first.",
                             t->name);
}

/* The model forgets a default that goes. */
static int forget_default(sqlite3 *db, const struct task *t, const json_t *version, struct err *err)
{
    OWN_JSON json_t *model = NULL;
    char name[NAME_SIZE];
    if (!json_is_true(json_object_get(version, "isDefault")))
        return 0;
    snprintf(name, sizeof name, "%.*s", (int)(strstr(t->name, "/versions/") - t->name), t->name);
    if (find(db, t->project, name, &model, err) < 0)
        return -(int)err->code;
    json_object_del(model, "defaultVersion");
    return save(db, sql_set, t->project, name, model, err);
}

static int delete_fn(sqlite3 *db, void *arg, struct err *err)
{
    struct task *t = arg;
    OWN_JSON json_t *found = NULL, *none = json_object();
    if (find(db, t->project, t->name, &found, err) < 0)
        return -(int)err->code;
    int rc =
        strstr(t->name, "/versions/") ? forget_default(db, t, found, err) : check_empty(db, t, err);
    if (rc < 0)
        return rc;
    if (store_run(db, err, sql_remove, "ss", t->project, t->name) < 0)
        return -(int)err->code;
    return add_operation(db, t, none, err);
}

int aiplatform_delete(struct request *q, struct err *err)
{
    OWN_TASK t = { .kind = request_arg(q, "version") ? "DELETE_VERSION" : "DELETE_MODEL" };
    if (run_named(q, &t, store_write, delete_fn, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, json_incref(t.operation));
}

static int default_fn(sqlite3 *db, void *arg, struct err *err)
{
    struct task *t = arg;
    OWN_JSON json_t *model = NULL, *before = NULL;
    char name[NAME_SIZE];
    if (find(db, t->project, t->name, &t->body, err) < 0)
        return -(int)err->code;
    snprintf(name, sizeof name, "%.*s", (int)(strstr(t->name, "/versions/") - t->name), t->name);
    if (find(db, t->project, name, &model, err) < 0)
        return -(int)err->code;
    const char *old =
        json_string_value(json_object_get(json_object_get(model, "defaultVersion"), "name"));
    const char *path = old ? strstr(old, "models/") : NULL;
    if (path && find(db, t->project, path, &before, err) == 0) {
        json_object_del(before, "isDefault");
        if (save(db, sql_set, t->project, path, before, err) < 0)
            return -(int)err->code;
    }
    json_object_set_new(t->body, "isDefault", json_true());
    json_object_set(model, "defaultVersion", t->body);
    if (save(db, sql_set, t->project, t->name, t->body, err) < 0)
        return -(int)err->code;
    return save(db, sql_set, t->project, name, model, err);
}

int aiplatform_set_default(struct request *q, struct err *err)
{
    OWN_TASK t = { 0 };
    if (run_named(q, &t, store_write, default_fn, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, json_incref(t.body));
}

int aiplatform_cancel_operation(struct request *q, struct err *err)
{
    OWN_TASK t = { 0 };
    if (run_named(q, &t, store_read, get_fn, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, json_object()); /* it was done already, as all of them are */
}
