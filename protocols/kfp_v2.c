/* protocols/kfp_v2.c - v2beta1: health, pipelines and their versions, experiments */
#include <string.h>

#include "base/json.h"
#include "pipelines/catalog.h"
#include "protocols/kfp_int.h"
#include "protocols/native.h"

#define BASE "/apis/v2beta1"

static const struct kfp_key pipelines_keys[] = {
    { "pipeline_id", "id", KFP_TEXT }, { "id", "id", KFP_TEXT }, { "name", "name", KFP_TEXT },
    { "display_name", "display", KFP_TEXT }, { "created_at", "created", KFP_TIME },
    { "description", "description", KFP_TEXT }, { "namespace", "project", KFP_TEXT }, { 0 }
};
static const struct kfp_key versions_keys[] = {
    { "pipeline_version_id", "id", KFP_TEXT }, { "id", "id", KFP_TEXT },
    { "pipeline_id", "pipeline", KFP_TEXT }, { "name", "name", KFP_TEXT },
    { "display_name", "display", KFP_TEXT }, { "created_at", "created", KFP_TIME },
    { "description", "description", KFP_TEXT }, { 0 }
};
static const struct kfp_key experiments_keys[] = {
    { "experiment_id", "id", KFP_TEXT }, { "id", "id", KFP_TEXT }, { "name", "name", KFP_TEXT },
    { "display_name", "name", KFP_TEXT }, { "created_at", "created", KFP_TIME },
    { "last_run_created_at", "last_run", KFP_TIME }, { "description", "description", KFP_TEXT },
    { "namespace", "project", KFP_TEXT }, { "storage_state", "archived", KFP_STORAGE }, { 0 }
};
static const struct kfp_kind pipelines_kind = { &rows_pipelines, pipelines_keys };
static const struct kfp_kind versions_kind = { &rows_versions, versions_keys };
static const struct kfp_kind experiments_kind = { &rows_experiments, experiments_keys };

static int get_health(struct request *q, struct err *err)
{
    (void)err;
    return respond_json(q, 200, json_pack("{s:b, s:s}", "multi_user", 0, "pipeline_store",
                                          "database"));
}

/* ------------------------------------------------------------ documents */

static json_t *tags_json(const json_t *doc)
{
    json_t *tags = json_object_get(doc, "tags");

    return json_is_object(tags) ? json_incref(tags) : NULL;
}

static json_t *pipeline_json(struct request *q, const json_t *p)
{
    (void)q;
    return json_pack("{s:s, s:s, s:s, s:s, s:o*, s:s, s:o*}", "pipeline_id", text_of(p, "id"),
                     "display_name", text_of(p, "display"), "name", text_of(p, "name"),
                     "description", text_of(p, "description"), "created_at",
                     kfp_time(number_of(p, "created")), "namespace", text_of(p, "project"), "tags",
                     tags_json(p));
}

/* Of a package with two documents, both, as the SDK sends them. */
json_t *kfp_spec_json(const char *text, size_t n)
{
    OWN_JSON json_t *docs = NULL;
    struct err none = { 0 };

    if (kfp_parse(text, n, &docs, &none) < 0)
        return NULL;
    if (!json_is_array(docs))
        return json_incref(docs);
    return json_pack("{s:O, s:O}", "pipeline_spec", json_array_get(docs, 0), "platform_spec",
                     json_array_get(docs, 1));
}

static json_t *version_json(struct request *q, const json_t *v)
{
    const char *url = text_of(v, "url");
    OWN_MEM char *text = NULL;
    json_t *spec = NULL;
    struct err none = { 0 };
    size_t n;

    if (versions_text(request_server(q), NULL, text_of(v, "id"), &text, &n, NULL, &none) == 0)
        spec = kfp_spec_json(text, n);
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:o*, s:s*, s:o*, s:o*}", "pipeline_id",
                     text_of(v, "pipeline"), "pipeline_version_id", text_of(v, "id"),
                     "display_name", text_of(v, "display"), "name", text_of(v, "name"),
                     "description", text_of(v, "description"), "created_at",
                     kfp_time(number_of(v, "created")), "code_source_url", *url ? url : NULL,
                     "pipeline_spec", spec, "tags", tags_json(v));
}

static json_t *experiment_json(struct request *q, const json_t *e)
{
    (void)q;
    return json_pack("{s:s, s:s, s:s, s:o*, s:s, s:s, s:o*}", "experiment_id", text_of(e, "id"),
                     "display_name", text_of(e, "name"), "description", text_of(e, "description"),
                     "created_at", kfp_time(number_of(e, "created")), "namespace",
                     text_of(e, "project"), "storage_state",
                     json_is_true(json_object_get(e, "archived")) ? "ARCHIVED" : "AVAILABLE",
                     "last_run_created_at", kfp_time(number_of(e, "last_run")));
}

/* ------------------------------------------------------------ uploads */

/* {"key": "value"} as JSON text, as the SDK sends it. */
static int read_tags(const struct request *q, json_t **out, struct err *err)
{
    const char *text = request_query(q, "tags");

    if (!text || !*text)
        return 0;
    if (http_json(text, strlen(text), out, err) < 0)
        return err_add(err, "tags");
    return json_is_object(*out) ? 0 : err_set(err, ERR_INVALID, "tags: takes an object of texts");
}

static const char *first(const char *a, const char *b, const char *c)
{
    return a && *a ? a : b && *b ? b : c;
}

static int upload_pipeline(struct request *q, struct err *err)
{
    OWN_UPLOAD u = { BUF_INIT, "" };
    OWN_JSON json_t *made = NULL, *tags = NULL;
    const char *name = request_query(q, "name"), *display = request_query(q, "display_name");
    const char *project;

    if (native_project(q, request_query(q, "namespace"), &project, err) < 0 ||
        read_tags(q, &tags, err) < 0 || kfp_upload_read(q, &u, err) < 0)
        return -(int)err->code;
    const struct catalog_entry e = { .project = project, .name = first(name, display, u.file),
                                     .display = first(display, name, NULL), .tags = tags,
                                     .description = request_query(q, "description"),
                                     .package = u.bytes.data ? u.bytes.data : "",
                                     .package_n = u.bytes.n, .file = u.file };
    if (pipelines_create(request_server(q), &e, &made, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, pipeline_json(q, made));
}

static int upload_version(struct request *q, struct err *err)
{
    OWN_UPLOAD u = { BUF_INIT, "" };
    OWN_JSON json_t *made = NULL, *tags = NULL;
    const char *of = request_query(q, "pipelineid");
    const char *name = request_query(q, "name"), *display = request_query(q, "display_name");

    if (!of || !*of)
        return err_set(err, ERR_INVALID, "pipelineid is missing: a version of which pipeline?");
    if (read_tags(q, &tags, err) < 0 || kfp_upload_read(q, &u, err) < 0)
        return -(int)err->code;
    const struct catalog_entry e = { .project = request_project(q),
                                     .name = first(name, display, u.file),
                                     .display = first(display, name, NULL), .tags = tags,
                                     .description = request_query(q, "description"),
                                     .package = u.bytes.data ? u.bytes.data : "",
                                     .package_n = u.bytes.n, .file = u.file };
    if (versions_create(request_server(q), of, &e, &made, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, version_json(q, made));
}

/* What is kept of a body as it is has the types that clients expect of it later. */
static int check_body(const json_t *doc, struct err *err)
{
    static const char *const texts[] = { "name", "display_name", "description", NULL };
    const json_t *tags = json_object_get(doc, "tags");
    const char *key;
    json_t *value;

    for (int i = 0; texts[i]; i++) {
        const json_t *text = json_object_get(doc, texts[i]);
        if (text && !json_is_string(text))
            return err_set(err, ERR_INVALID, "%s: takes a text", texts[i]);
    }
    if (tags && !json_is_object(tags))
        return err_set(err, ERR_INVALID, "tags: takes an object of texts");
    json_object_foreach((json_t *)tags, key, value)
        if (!json_is_string(value))
            return err_set(err, ERR_INVALID, "tags: \"%.64s\" is no text", key);
    return 0;
}

/* A pipeline of a body; `version`: the one to make with it, NULL: none yet. */
static int make_pipeline(struct request *q, const json_t *doc, const json_t *version,
                         json_t **out, struct err *err)
{
    OWN_UPLOAD u = { BUF_INIT, "" };
    const char *project, *name = text_of(doc, "name"), *display = text_of(doc, "display_name");

    if (check_body(doc, err) < 0 ||
        native_project(q, text_of(doc, "namespace"), &project, err) < 0)
        return -(int)err->code;
    if (version &&
        kfp_upload_url(q, project, text_of(json_object_get(version, "package_url"), "pipeline_url"),
                       &u, err) < 0)
        return -(int)err->code;
    const struct catalog_entry e = { .project = project, .name = first(name, display, u.file),
                                     .display = first(display, name, NULL),
                                     .description = text_of(doc, "description"),
                                     .url = text_of(version, "code_source_url"),
                                     .tags = json_object_get(doc, "tags"), .package = u.bytes.data,
                                     .package_n = u.bytes.n, .file = u.file };
    return pipelines_create(request_server(q), &e, out, err);
}

static int create_pipeline(struct request *q, struct err *err)
{
    OWN_JSON json_t *doc = NULL, *made = NULL;

    if (request_json(q, &doc, err) < 0 || make_pipeline(q, doc, NULL, &made, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, pipeline_json(q, made));
}

static int create_both(struct request *q, struct err *err)
{
    OWN_JSON json_t *doc = NULL, *made = NULL;

    if (request_json(q, &doc, err) < 0)
        return -(int)err->code;
    if (!json_is_object(json_object_get(doc, "pipeline")) ||
        !json_is_object(json_object_get(doc, "pipeline_version")))
        return err_set(err, ERR_INVALID, "the body is {\"pipeline\": {...}, \"pipeline_version\": "
                       "{...}}");
    if (make_pipeline(q, json_object_get(doc, "pipeline"), json_object_get(doc, "pipeline_version"),
                      &made, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, pipeline_json(q, made));
}

/* ------------------------------------------------------------ pipelines */

static int list_pipelines(struct request *q, struct err *err)
{
    return kfp_list(q, &(struct kfp_listing){ &pipelines_kind, request_query(q, "namespace"), NULL,
                                              "pipelines", pipeline_json }, err);
}

static int get_pipeline(struct request *q, struct err *err)
{
    return kfp_get(q, pipelines_get, pipeline_json, err);
}

static int get_by_name(struct request *q, struct err *err)
{
    OWN_JSON json_t *doc = NULL;
    const char *project;

    if (native_project(q, request_query(q, "namespace"), &project, err) < 0 ||
        rows_find(request_server(q), &rows_pipelines, project, "", request_arg(q, "name"), &doc,
                  err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, pipeline_json(q, doc));
}

/* display_name, description and tags of a body as catalog.h names them. */
static int read_patch(struct request *q, json_t **out, struct err *err)
{
    OWN_JSON json_t *doc = NULL;

    if (request_json(q, &doc, err) < 0 || check_body(doc, err) < 0)
        return -(int)err->code;
    *out = json_pack("{s:O*, s:O*, s:O*}", "display", json_object_get(doc, "display_name"),
                     "description", json_object_get(doc, "description"), "tags",
                     json_object_get(doc, "tags"));
    return *out ? 0 : err_set(err, ERR_NOMEM, "no memory for a change");
}

static int patch_pipeline(struct request *q, struct err *err)
{
    OWN_JSON json_t *patch = NULL, *doc = NULL;

    if (read_patch(q, &patch, err) < 0 ||
        pipelines_patch(request_server(q), request_project(q), request_arg(q, "id"), patch, &doc,
                        err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, pipeline_json(q, doc));
}

/* ------------------------------------------------------------ versions */

static int create_version(struct request *q, struct err *err)
{
    OWN_UPLOAD u = { BUF_INIT, "" };
    OWN_JSON json_t *doc = NULL, *of = NULL, *made = NULL;

    if (request_json(q, &doc, err) < 0 || check_body(doc, err) < 0 ||
        pipelines_get(request_server(q), request_project(q), request_arg(q, "id"), &of, err) < 0 ||
        kfp_upload_url(q, text_of(of, "project"),
                       text_of(json_object_get(doc, "package_url"), "pipeline_url"), &u, err) < 0)
        return -(int)err->code;
    const char *name = text_of(doc, "name"), *display = text_of(doc, "display_name");
    const struct catalog_entry e = { .project = text_of(of, "project"),
                                     .name = first(name, display, u.file),
                                     .display = first(display, name, NULL),
                                     .description = text_of(doc, "description"),
                                     .url = text_of(doc, "code_source_url"),
                                     .tags = json_object_get(doc, "tags"), .package = u.bytes.data,
                                     .package_n = u.bytes.n, .file = u.file };
    if (versions_create(request_server(q), request_arg(q, "id"), &e, &made, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, version_json(q, made));
}

static int list_versions(struct request *q, struct err *err)
{
    OWN_JSON json_t *of = NULL;
    const char *id = request_arg(q, "id");

    if (pipelines_get(request_server(q), request_project(q), id, &of, err) < 0)
        return -(int)err->code;
    return kfp_list(q, &(struct kfp_listing){ &versions_kind, text_of(of, "project"), id,
                                              "pipeline_versions", version_json }, err);
}

/* Of the pipeline that the path names, and of no other. */
static int version_of(struct request *q, json_t **out, struct err *err)
{
    OWN_JSON json_t *doc = NULL;

    if (versions_get(request_server(q), request_project(q), request_arg(q, "id"),
                     request_arg(q, "version"), &doc, err) < 0)
        return -(int)err->code;
    *out = TAKE(doc);
    return 0;
}

static int get_version(struct request *q, struct err *err)
{
    OWN_JSON json_t *doc = NULL;

    if (version_of(q, &doc, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, version_json(q, doc));
}

static int patch_version(struct request *q, struct err *err)
{
    OWN_JSON json_t *patch = NULL, *found = NULL, *doc = NULL;

    if (read_patch(q, &patch, err) < 0 || version_of(q, &found, err) < 0 ||
        versions_patch(request_server(q), request_project(q), text_of(found, "id"), patch, &doc,
                       err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, version_json(q, doc));
}

static int delete_version(struct request *q, struct err *err)
{
    OWN_JSON json_t *doc = NULL;

    if (version_of(q, &doc, err) < 0)
        return -(int)err->code;
    return kfp_done(q, versions_delete(request_server(q), request_project(q), text_of(doc, "id"),
                                       err));
}

/* ------------------------------------------------------------ experiments */

static int create_experiment(struct request *q, struct err *err)
{
    OWN_JSON json_t *doc = NULL, *made = NULL;
    const char *project;

    if (request_json(q, &doc, err) < 0 ||
        native_project(q, text_of(doc, "namespace"), &project, err) < 0 ||
        experiments_create(request_server(q), project, text_of(doc, "display_name"),
                           text_of(doc, "description"), &made, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, experiment_json(q, made));
}

static int list_experiments(struct request *q, struct err *err)
{
    return kfp_list(q, &(struct kfp_listing){ &experiments_kind, request_query(q, "namespace"),
                                              NULL, "experiments", experiment_json }, err);
}

static int get_experiment(struct request *q, struct err *err)
{
    return kfp_get(q, experiments_get, experiment_json, err);
}

static const struct http_route routes[] = {
    { "GET", BASE "/healthz", HTTP_OPEN, get_health, NULL },
    { "POST", BASE "/pipelines/upload", HTTP_WAITS, upload_pipeline, NULL },
    { "POST", BASE "/pipelines/upload_version", HTTP_WAITS, upload_version, NULL },
    { "POST", BASE "/pipelines/create", HTTP_WAITS, create_both, NULL },
    { "GET", BASE "/pipelines/names/{name}", HTTP_WAITS, get_by_name, NULL },
    { "GET", BASE "/pipelines", HTTP_WAITS, list_pipelines, NULL },
    { "POST", BASE "/pipelines", HTTP_WAITS, create_pipeline, NULL },
    { "GET", BASE "/pipelines/{id}", HTTP_WAITS, get_pipeline, NULL },
    { "PATCH", BASE "/pipelines/{id}", HTTP_WAITS, patch_pipeline, NULL },
    { "DELETE", BASE "/pipelines/{id}", HTTP_WAITS, kfp_pipeline_delete, NULL },
    { "GET", BASE "/pipelines/{id}/versions", HTTP_WAITS, list_versions, NULL },
    { "POST", BASE "/pipelines/{id}/versions", HTTP_WAITS, create_version, NULL },
    { "GET", BASE "/pipelines/{id}/versions/{version}", HTTP_WAITS, get_version, NULL },
    { "PATCH", BASE "/pipelines/{id}/versions/{version}", HTTP_WAITS, patch_version, NULL },
    { "DELETE", BASE "/pipelines/{id}/versions/{version}", HTTP_WAITS, delete_version, NULL },
    { "GET", BASE "/experiments", HTTP_WAITS, list_experiments, NULL },
    { "POST", BASE "/experiments", HTTP_WAITS, create_experiment, NULL },
    { "GET", BASE "/experiments/{id}", HTTP_WAITS, get_experiment, NULL },
    { "DELETE", BASE "/experiments/{id}", HTTP_WAITS, kfp_experiment_delete, NULL },
    { "POST", BASE "/experiments/{id}:archive", HTTP_WAITS, kfp_experiment_archive, NULL },
    { "POST", BASE "/experiments/{id}:unarchive", HTTP_WAITS, kfp_experiment_unarchive, NULL },
    { 0 }
};

const struct protocol protocol_kfp_v2 = { "kfp-v2", routes, kfp_error };
