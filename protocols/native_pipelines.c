/* protocols/native_pipelines.c - /api/pipelines, /api/experiments, /api/resources, /api/volumes:
 * what was uploaded, what runs belong to and what their steps share */
#include <string.h>

#include "base/json.h"
#include "pipelines/catalog.h"
#include "pipelines/resources.h"
#include "protocols/native.h"
#include "protocols/native_logs.h"
#include "server/server.h"
#include "server/volumes.h"

/* What the path names, when the token may see it. */
struct entry_name { const char *project, *id; };

static int entry_of(const struct request *q, struct entry_name *out, struct err *err)
{
    *out = (struct entry_name){ request_arg(q, "project"), request_arg(q, "id") };
    return request_allows(q, out->project, err);
}

/* {KEY: a page of documents, "next", "total"} */
static int list(struct request *q, const struct rows_kind *kind, const char *key,
                const char *parent, struct err *err)
{
    const char *named = request_query(q, "project"), *archived = request_query(q, "archived");
    struct rows_query query = {
        .project = named && *named ? named : request_project(q), .parent = parent,
        .text = request_query(q, "text"), .sort = request_query(q, "sort"),
        .token = request_query(q, "token"), .archived = archived && !strcmp(archived, "true"),
    };
    OWN_MEM char *next = NULL;
    json_t *rows;
    int64_t total;
    long limit = 100;

    if (request_arg(q, "project"))
        query.project = request_arg(q, "project");
    if ((query.project && request_allows(q, query.project, err) < 0) ||
        native_number(q, "limit", 1, 1000, &limit, err) < 0)
        return -(int)err->code;
    query.limit = (int)limit;
    if (rows_list(request_server(q), kind, &query, &rows, &next, &total, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, json_pack("{s:o, s:s, s:I}", key, rows, "next", next, "total",
                                          (json_int_t)total));
}

/* ------------------------------------------------------------ pipelines and versions */

static int list_pipelines(struct request *q, struct err *err)
{
    return list(q, &rows_pipelines, "pipelines", NULL, err);
}

static int list_versions(struct request *q, struct err *err)
{
    return list(q, &rows_versions, "versions", request_arg(q, "id"), err);
}

/* The body is the package as it is; ?name, ?description and ?file say the rest. */
static struct catalog_entry uploaded(const struct request *q, const char *project)
{
    const char *name = request_query(q, "name"), *file = request_query(q, "file");
    const char *description = request_query(q, "description");
    struct catalog_entry e = { .project = project, .name = name && *name ? name : NULL,
                               .description = description && *description ? description : NULL,
                               .file = file && *file ? file : "pipeline.yaml" };

    e.package = request_body(q, &e.package_n);
    return e;
}

static int upload_pipeline(struct request *q, struct err *err)
{
    const char *project;
    json_t *doc;

    if (native_project(q, request_query(q, "project"), &project, err) < 0)
        return -(int)err->code;
    const struct catalog_entry e = uploaded(q, project);
    if (pipelines_create(request_server(q), &e, &doc, err) < 0)
        return -(int)err->code;
    return respond_json(q, 201, doc);
}

static int upload_version(struct request *q, struct err *err)
{
    OWN_JSON json_t *pipeline = NULL;
    struct entry_name n;
    json_t *doc;

    if (entry_of(q, &n, err) < 0 ||
        pipelines_get(request_server(q), n.project, n.id, &pipeline, err) < 0)
        return -(int)err->code;
    const struct catalog_entry e = uploaded(q, n.project);
    if (versions_create(request_server(q), n.id, &e, &doc, err) < 0)
        return -(int)err->code;
    return respond_json(q, 201, doc);
}

static int get_pipeline(struct request *q, struct err *err)
{
    struct entry_name n;
    json_t *doc;

    if (entry_of(q, &n, err) < 0 ||
        pipelines_get(request_server(q), n.project, n.id, &doc, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, doc);
}

static int delete_pipeline(struct request *q, struct err *err)
{
    struct entry_name n;

    if (entry_of(q, &n, err) < 0 ||
        pipelines_delete(request_server(q), n.project, n.id, err) < 0)
        return -(int)err->code;
    return respond_empty(q, 204);
}

/* {"version": id} */
static int set_default(struct request *q, struct err *err)
{
    OWN_JSON json_t *doc = NULL;
    struct entry_name n;

    if (entry_of(q, &n, err) < 0 || request_json(q, &doc, err) < 0 ||
        pipelines_default(request_server(q), n.project, n.id, text_of(doc, "version"), err) < 0)
        return -(int)err->code;
    return get_pipeline(q, err);
}

static int delete_version(struct request *q, struct err *err)
{
    struct entry_name n;

    if (entry_of(q, &n, err) < 0 ||
        versions_delete(request_server(q), n.project, request_arg(q, "version"), err) < 0)
        return -(int)err->code;
    return respond_empty(q, 204);
}

static int get_version_text(struct request *q, struct err *err)
{
    OWN_MEM char *text = NULL;
    struct entry_name n;
    size_t size;

    if (entry_of(q, &n, err) < 0 ||
        versions_text(request_server(q), n.project, request_arg(q, "version"), &text, &size, NULL,
                      err) < 0)
        return -(int)err->code;
    return respond_bytes(q, 200, "text/plain; charset=utf-8", text, size);
}

static int get_version_flow(struct request *q, struct err *err)
{
    struct entry_name n;
    json_t *flow;

    if (entry_of(q, &n, err) < 0 ||
        versions_text(request_server(q), n.project, request_arg(q, "version"), NULL, NULL, &flow,
                      err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, flow);
}

/* ------------------------------------------------------------ experiments */

static int list_experiments(struct request *q, struct err *err)
{
    return list(q, &rows_experiments, "experiments", NULL, err);
}

static int create_experiment(struct request *q, struct err *err)
{
    OWN_JSON json_t *doc = NULL;
    const char *project;
    json_t *made;

    if (request_json(q, &doc, err) < 0 ||
        native_project(q, json_string_value(json_object_get(doc, "project")), &project, err) < 0 ||
        experiments_create(request_server(q), project, text_of(doc, "name"),
                           text_of(doc, "description"), &made, err) < 0)
        return -(int)err->code;
    return respond_json(q, 201, made);
}

static int get_experiment(struct request *q, struct err *err)
{
    struct entry_name n;
    json_t *doc;

    if (entry_of(q, &n, err) < 0 ||
        experiments_get(request_server(q), n.project, n.id, &doc, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, doc);
}

static int delete_experiment(struct request *q, struct err *err)
{
    struct entry_name n;

    if (entry_of(q, &n, err) < 0 ||
        experiments_delete(request_server(q), n.project, n.id, err) < 0)
        return -(int)err->code;
    return respond_empty(q, 204);
}

static int archive(struct request *q, bool to, struct err *err)
{
    struct entry_name n;

    if (entry_of(q, &n, err) < 0 ||
        experiments_archive(request_server(q), n.project, n.id, to, err) < 0)
        return -(int)err->code;
    return get_experiment(q, err);
}

static int archive_experiment(struct request *q, struct err *err)
{
    return archive(q, true, err);
}

static int unarchive_experiment(struct request *q, struct err *err)
{
    return archive(q, false, err);
}

/* ------------------------------------------------------------ volumes */

static int list_volumes(struct request *q, struct err *err)
{
    const char *project = request_arg(q, "project");
    json_t *volumes;

    if (request_allows(q, project, err) < 0 ||
        volumes_list(request_server(q), project, &volumes, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, json_pack("{s:o}", "volumes", volumes));
}

static int delete_volume(struct request *q, struct err *err)
{
    struct entry_name n;

    if (entry_of(q, &n, err) < 0 ||
        volumes_delete(request_server(q), n.project, n.id, err) < 0)
        return -(int)err->code;
    return respond_empty(q, 204);
}

/* ------------------------------------------------------------ resources */

static int apply_resources(struct request *q, struct err *err)
{
    OWN_JSON json_t *doc = NULL;
    const char *project;
    json_t *done;

    if (request_json(q, &doc, err) < 0 ||
        native_project(q, json_string_value(json_object_get(doc, "project")), &project, err) < 0)
        return -(int)err->code;
    const json_t *text = json_object_get(doc, "text");
    const char *file = text_of(doc, "file");
    if (!json_is_string(text))
        return err_set(err, ERR_INVALID, "text: is missing (ConfigMaps, Secrets, "
                       "PersistentVolumeClaims)");
    if (resources_apply(request_server(q), project, *file ? file : "resources.yaml",
                        json_string_value(text), json_string_length(text), &done, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, json_pack("{s:o}", "resources", done));
}

#define PIPELINE "/api/pipelines/{project}/{id}"
#define EXPERIMENT "/api/experiments/{project}/{id}"

static const struct http_route routes[] = {
    { "GET", "/api/pipelines", HTTP_WAITS, list_pipelines, NULL },
    { "POST", "/api/pipelines", HTTP_WAITS, upload_pipeline, NULL },
    { "GET", PIPELINE, HTTP_WAITS, get_pipeline, NULL },
    { "DELETE", PIPELINE, HTTP_WAITS, delete_pipeline, NULL },
    { "POST", PIPELINE "/default", HTTP_WAITS, set_default, NULL },
    { "GET", PIPELINE "/versions", HTTP_WAITS, list_versions, NULL },
    { "POST", PIPELINE "/versions", HTTP_WAITS, upload_version, NULL },
    { "DELETE", PIPELINE "/versions/{version}", HTTP_WAITS, delete_version, NULL },
    { "GET", PIPELINE "/versions/{version}/text", HTTP_WAITS, get_version_text, NULL },
    { "GET", PIPELINE "/versions/{version}/flow", HTTP_WAITS, get_version_flow, NULL },
    { "GET", "/api/experiments", HTTP_WAITS, list_experiments, NULL },
    { "POST", "/api/experiments", HTTP_WAITS, create_experiment, NULL },
    { "GET", EXPERIMENT, HTTP_WAITS, get_experiment, NULL },
    { "DELETE", EXPERIMENT, HTTP_WAITS, delete_experiment, NULL },
    { "POST", EXPERIMENT "/archive", HTTP_WAITS, archive_experiment, NULL },
    { "POST", EXPERIMENT "/unarchive", HTTP_WAITS, unarchive_experiment, NULL },
    { "POST", "/api/resources", HTTP_WAITS, apply_resources, NULL },
    { "GET", "/api/volumes/{project}", HTTP_WAITS, list_volumes, NULL },
    { "DELETE", "/api/volumes/{project}/{id}", HTTP_WAITS, delete_volume, NULL },
    { 0 }
};

const struct protocol protocol_native_pipelines = { "pipelines", routes, native_error };
