/* protocols/kfp_v1.c - v1beta1: health, pipelines and their versions, experiments */
#include <string.h>

#include "base/json.h"
#include "pipelines/catalog.h"
#include "protocols/kfp_int.h"
#include "protocols/native.h"

#define BASE "/apis/v1beta1"

static const struct kfp_key catalog_keys[] = {
    { "id", "id", KFP_TEXT }, { "name", "name", KFP_TEXT }, { "created_at", "created", KFP_TIME },
    { "description", "description", KFP_TEXT }, { "storage_state", "archived", KFP_STORAGE }, { 0 }
};
static const struct kfp_kind pipelines_kind = { &rows_pipelines, catalog_keys };
static const struct kfp_kind versions_kind = { &rows_versions, catalog_keys };
static const struct kfp_kind experiments_kind = { &rows_experiments, catalog_keys };

static int get_health(struct request *q, struct err *err)
{
    (void)err;
    return respond_json(q, 200, json_pack("{s:b}", "multi_user", 0));
}

/* ------------------------------------------------------------ documents */

static json_t *parameters_json(const json_t *inputs)
{
    json_t *out = json_array();
    size_t i;
    json_t *input;

    json_array_foreach((json_t *)inputs, i, input) {
        const json_t *value = json_object_get(input, "default");
        OWN_MEM char *text = value && !json_is_string(value)
            ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
        json_array_append_new(out, json_pack("{s:s, s:s}", "name", text_of(input, "name"), "value",
                                             text ? text : text_of(input, "default")));
    }
    return out;
}

static json_t *version_json(struct request *q, const json_t *v)
{
    (void)q;
    const char *url = text_of(v, "url");
    return json_pack("{s:s, s:s, s:o*, s:o, s:s*, s:s, s:[{s:{s:s, s:s}, s:s}]}", "id",
                     text_of(v, "id"), "name", text_of(v, "name"), "created_at",
                     kfp_time(number_of(v, "created")), "parameters",
                     parameters_json(json_object_get(v, "inputs")), "code_source_url",
                     *url ? url : NULL, "description", text_of(v, "description"),
                     "resource_references", "key", "type", "PIPELINE", "id",
                     text_of(v, "pipeline"), "relationship", "OWNER");
}

static json_t *pipeline_json(struct request *q, const json_t *p)
{
    OWN_JSON json_t *version = NULL;
    const char *id = text_of(p, "default_version");
    struct err none = { 0 };
    json_t *doc = json_pack("{s:s, s:o*, s:s, s:s}", "id", text_of(p, "id"), "created_at",
                            kfp_time(number_of(p, "created")), "name", text_of(p, "name"),
                            "description", text_of(p, "description"));

    if (*id && versions_get(request_server(q), NULL, NULL, id, &version, &none) == 0) {
        json_object_set_new(doc, "parameters",
                            parameters_json(json_object_get(version, "inputs")));
        json_object_set_new(doc, "default_version", version_json(q, version));
    }
    return doc;
}

static json_t *experiment_json(struct request *q, const json_t *e)
{
    (void)q;
    return json_pack("{s:s, s:s, s:s, s:o*, s:s}", "id", text_of(e, "id"), "name",
                     text_of(e, "name"), "description", text_of(e, "description"), "created_at",
                     kfp_time(number_of(e, "created")), "storage_state",
                     json_is_true(json_object_get(e, "archived")) ? "STORAGESTATE_ARCHIVED"
                                                                  : "STORAGESTATE_AVAILABLE");
}

/* ------------------------------------------------------------ what a request names */

/* The id of the first reference of a kind; "" when there is none. */
static const char *reference(const json_t *doc, const char *type)
{
    size_t i;
    json_t *r;

    json_array_foreach(json_object_get(doc, "resource_references"), i, r)
        if (!strcmp(text_of(json_object_get(r, "key"), "type"), type))
            return text_of(json_object_get(r, "key"), "id");
    return "";
}

static const char *asked_key(const struct request *q, const char *type, const char *id,
                             const char *wanted)
{
    const char *t = request_query(q, type), *i = request_query(q, id);

    return t && i && !strcmp(t, wanted) ? i : "";
}

static const char *asked_namespace(const struct request *q)
{
    return asked_key(q, "resource_reference_key.type", "resource_reference_key.id", "NAMESPACE");
}

/* ------------------------------------------------------------ pipelines */

static int upload_pipeline(struct request *q, struct err *err)
{
    OWN_UPLOAD u = { BUF_INIT, "" };
    OWN_JSON json_t *made = NULL;
    const char *name = request_query(q, "name"), *project;

    if (native_project(q, NULL, &project, err) < 0 || kfp_upload_read(q, &u, err) < 0)
        return -(int)err->code;
    const struct catalog_entry e = { .project = project, .name = name && *name ? name : u.file,
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
    OWN_JSON json_t *made = NULL;
    const char *name = request_query(q, "name"), *of = request_query(q, "pipelineid"), *project;

    if (!of || !*of)
        return err_set(err, ERR_INVALID, "pipelineid is missing: a version of which pipeline?");
    if (native_project(q, NULL, &project, err) < 0 || kfp_upload_read(q, &u, err) < 0)
        return -(int)err->code;
    const struct catalog_entry e = { .project = request_project(q),
                                     .name = name && *name ? name : u.file,
                                     .description = request_query(q, "description"),
                                     .package = u.bytes.data ? u.bytes.data : "",
                                     .package_n = u.bytes.n, .file = u.file };
    if (versions_create(request_server(q), of, &e, &made, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, version_json(q, made));
}

/* {"name", "description", "url": {"pipeline_url"}} */
static int create_pipeline(struct request *q, struct err *err)
{
    OWN_UPLOAD u = { BUF_INIT, "" };
    OWN_JSON json_t *doc = NULL, *made = NULL;
    const char *project;

    if (request_json(q, &doc, err) < 0 ||
        native_project(q, reference(doc, "NAMESPACE"), &project, err) < 0)
        return -(int)err->code;
    const char *url = text_of(json_object_get(doc, "url"), "pipeline_url");
    if (!*url)
        return err_set(err, ERR_INVALID, "url.pipeline_url is missing (pipelines/upload takes a "
                       "file)");
    if (kfp_upload_url(q, project, url, &u, err) < 0)
        return -(int)err->code;
    const char *name = text_of(doc, "name");
    const struct catalog_entry e = { .project = project, .name = *name ? name : u.file,
                                     .description = text_of(doc, "description"),
                                     .package = u.bytes.data, .package_n = u.bytes.n,
                                     .file = u.file };
    if (pipelines_create(request_server(q), &e, &made, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, pipeline_json(q, made));
}

static int create_version(struct request *q, struct err *err)
{
    OWN_UPLOAD u = { BUF_INIT, "" };
    OWN_JSON json_t *doc = NULL, *made = NULL;
    const char *project;

    if (request_json(q, &doc, err) < 0 || native_project(q, NULL, &project, err) < 0 ||
        kfp_upload_url(q, project, text_of(json_object_get(doc, "package_url"), "pipeline_url"),
                       &u, err) < 0)
        return -(int)err->code;
    const char *name = text_of(doc, "name");
    const struct catalog_entry e = { .project = project, .name = *name ? name : u.file,
                                     .description = text_of(doc, "description"),
                                     .url = text_of(doc, "code_source_url"),
                                     .package = u.bytes.data, .package_n = u.bytes.n,
                                     .file = u.file };
    if (versions_create(request_server(q), reference(doc, "PIPELINE"), &e, &made, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, version_json(q, made));
}

static int list_pipelines(struct request *q, struct err *err)
{
    return kfp_list(q, &(struct kfp_listing){ &pipelines_kind, asked_namespace(q), NULL,
                                              "pipelines", pipeline_json }, err);
}

static int get_pipeline(struct request *q, struct err *err)
{
    return kfp_get(q, pipelines_get, pipeline_json, err);
}

static int answer_template(struct request *q, const char *version, struct err *err)
{
    OWN_MEM char *text = NULL;
    size_t n;

    if (versions_text(request_server(q), request_project(q), version, &text, &n, NULL, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, json_pack("{s:o}", "template", json_stringn(text, n)));
}

static int get_template(struct request *q, struct err *err)
{
    OWN_JSON json_t *version = NULL;

    if (versions_get(request_server(q), request_project(q), request_arg(q, "id"), "", &version,
                     err) < 0)
        return -(int)err->code;
    return answer_template(q, text_of(version, "id"), err);
}

static int set_default(struct request *q, struct err *err)
{
    return kfp_done(q, pipelines_default(request_server(q), request_project(q),
                                         request_arg(q, "id"), request_arg(q, "version"), err));
}

/* ------------------------------------------------------------ versions */

static int list_versions(struct request *q, struct err *err)
{
    OWN_JSON json_t *pipeline = NULL;
    const char *of = asked_key(q, "resource_key.type", "resource_key.id", "PIPELINE");

    if (!*of)
        return err_set(err, ERR_INVALID, "resource_key is missing: of which pipeline?");
    if (pipelines_get(request_server(q), request_project(q), of, &pipeline, err) < 0)
        return -(int)err->code;
    return kfp_list(q, &(struct kfp_listing){ &versions_kind, text_of(pipeline, "project"), of,
                                              "versions", version_json }, err);
}

static int get_version(struct request *q, struct err *err)
{
    OWN_JSON json_t *doc = NULL;

    if (versions_get(request_server(q), request_project(q), NULL, request_arg(q, "id"), &doc,
                     err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, version_json(q, doc));
}

static int get_version_template(struct request *q, struct err *err)
{
    return answer_template(q, request_arg(q, "id"), err);
}

static int delete_version(struct request *q, struct err *err)
{
    return kfp_done(q, versions_delete(request_server(q), request_project(q),
                                       request_arg(q, "id"), err));
}

/* ------------------------------------------------------------ experiments */

static int create_experiment(struct request *q, struct err *err)
{
    OWN_JSON json_t *doc = NULL, *made = NULL;
    const char *project;

    if (request_json(q, &doc, err) < 0 ||
        native_project(q, reference(doc, "NAMESPACE"), &project, err) < 0 ||
        experiments_create(request_server(q), project, text_of(doc, "name"),
                           text_of(doc, "description"), &made, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, experiment_json(q, made));
}

static int list_experiments(struct request *q, struct err *err)
{
    return kfp_list(q, &(struct kfp_listing){ &experiments_kind, asked_namespace(q), NULL,
                                              "experiments", experiment_json }, err);
}

static int get_experiment(struct request *q, struct err *err)
{
    return kfp_get(q, experiments_get, experiment_json, err);
}

static const struct http_route routes[] = {
    { "GET", BASE "/healthz", HTTP_OPEN, get_health, NULL },
    { "POST", BASE "/pipelines/upload", HTTP_WAITS, upload_pipeline, NULL },
    { "POST", BASE "/pipelines/upload_version", HTTP_WAITS, upload_version, NULL },
    { "GET", BASE "/pipelines", HTTP_WAITS, list_pipelines, NULL },
    { "POST", BASE "/pipelines", HTTP_WAITS, create_pipeline, NULL },
    { "GET", BASE "/pipelines/{id}", HTTP_WAITS, get_pipeline, NULL },
    { "DELETE", BASE "/pipelines/{id}", HTTP_WAITS, kfp_pipeline_delete, NULL },
    { "GET", BASE "/pipelines/{id}/templates", HTTP_WAITS, get_template, NULL },
    { "POST", BASE "/pipelines/{id}/default_version/{version}", HTTP_WAITS, set_default, NULL },
    { "GET", BASE "/pipeline_versions", HTTP_WAITS, list_versions, NULL },
    { "POST", BASE "/pipeline_versions", HTTP_WAITS, create_version, NULL },
    { "GET", BASE "/pipeline_versions/{id}", HTTP_WAITS, get_version, NULL },
    { "DELETE", BASE "/pipeline_versions/{id}", HTTP_WAITS, delete_version, NULL },
    { "GET", BASE "/pipeline_versions/{id}/templates", HTTP_WAITS, get_version_template, NULL },
    { "GET", BASE "/experiments", HTTP_WAITS, list_experiments, NULL },
    { "POST", BASE "/experiments", HTTP_WAITS, create_experiment, NULL },
    { "GET", BASE "/experiments/{id}", HTTP_WAITS, get_experiment, NULL },
    { "DELETE", BASE "/experiments/{id}", HTTP_WAITS, kfp_experiment_delete, NULL },
    { "POST", BASE "/experiments/{id}:archive", HTTP_WAITS, kfp_experiment_archive, NULL },
    { "POST", BASE "/experiments/{id}:unarchive", HTTP_WAITS, kfp_experiment_unarchive, NULL },
    { 0 }
};

const struct protocol protocol_kfp_v1 = { "kfp-v1", routes, kfp_error };
