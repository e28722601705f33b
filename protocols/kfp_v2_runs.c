/* protocols/kfp_v2_runs.c - v2beta1: runs with their tasks, recurring runs */
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "pipelines/catalog.h"
#include "pipelines/runs.h"
#include "pipelines/schedule.h"
#include "protocols/kfp_int.h"

#define BASE "/apis/v2beta1"

static const struct kfp_key runs_keys[] = {
    { "run_id", "id", KFP_TEXT }, { "id", "id", KFP_TEXT }, { "name", "name", KFP_TEXT },
    { "display_name", "name", KFP_TEXT }, { "created_at", "created", KFP_TIME },
    { "scheduled_at", "scheduled", KFP_TIME }, { "finished_at", "ended", KFP_TIME },
    { "description", "description", KFP_TEXT }, { "state", "state", KFP_STATE },
    { "storage_state", "archived", KFP_STORAGE }, { "experiment_id", "experiment", KFP_TEXT },
    { "pipeline_version_id", "version", KFP_TEXT }, { "pipeline_id", "pipeline", KFP_TEXT },
    { "workflow_name", "workflow", KFP_TEXT }, /* ours */
    { "recurring_run_id", "recurring", KFP_TEXT },
    { "service_account", "service_account", KFP_TEXT }, { 0 }
};
static const struct kfp_key recurring_keys[] = {
    { "recurring_run_id", "id", KFP_TEXT }, { "id", "id", KFP_TEXT }, { "name", "name", KFP_TEXT },
    { "display_name", "name", KFP_TEXT }, { "created_at", "created", KFP_TIME },
    { "updated_at", "updated", KFP_TIME }, { "description", "description", KFP_TEXT },
    { "status", "state", KFP_STATE }, { "experiment_id", "experiment", KFP_TEXT }, { 0 }
};
static const struct kfp_kind runs_kind = { &rows_runs, runs_keys };
static const struct kfp_kind recurring_kind = { &rows_recurring, recurring_keys };

/* ------------------------------------------------------------ states */

static const struct { const char *ours, *theirs; } states[] = {
    { "pending", "PENDING" }, { "running", "RUNNING" }, { "succeeded", "SUCCEEDED" },
    { "failed", "FAILED" }, { "error", "FAILED" }, { "terminating", "CANCELING" },
    { "terminated", "FAILED" },         /* the SDK's wait never ends on CANCELED */
    /* phases of nodes */
    { "Pending", "PENDING" }, { "Running", "RUNNING" }, { "Succeeded", "SUCCEEDED" },
    { "Failed", "FAILED" }, { "Error", "FAILED" }, { "Skipped", "SKIPPED" },
    { "Omitted", "SKIPPED" },
};

static const char *state_of(const char *ours)
{
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++)
        if (!strcmp(states[i].ours, ours))
            return states[i].theirs;
    return "RUNTIME_STATE_UNSPECIFIED";
}

/* gRPC's ABORTED when somebody asked for it, else INTERNAL. */
static json_t *error_json(const json_t *doc, const char *state)
{
    const char *message = text_of(doc, "message");
    const bool terminated = !strcmp(text_of(doc, "state"), "terminated");

    if (strcmp(state, "FAILED"))
        return NULL;
    return json_pack("{s:i, s:s}", "code", terminated ? 10 : 13, "message",
                     *message ? message : terminated ? "The run was terminated." : "It failed.");
}

/* What it has been through, as far as times tell. */
static json_t *history_json(double created, double started, double ended, const char *state)
{
    json_t *list = json_array();

    if (created > 0)
        json_array_append_new(list, json_pack("{s:o, s:s}", "update_time", kfp_time(created),
                                              "state", "PENDING"));
    if (started > 0)
        json_array_append_new(list, json_pack("{s:o, s:s}", "update_time", kfp_time(started),
                                              "state", "RUNNING"));
    if (ended > 0)
        json_array_append_new(list, json_pack("{s:o, s:s}", "update_time", kfp_time(ended),
                                              "state", state));
    return list;
}

/* ------------------------------------------------------------ runs as documents */

/* {name: {"artifact_ids": [its address]}} */
static json_t *artifacts_json(const json_t *sides)
{
    json_t *out = json_object(), *art;
    const char *name;

    json_object_foreach(json_object_get(sides, "artifacts"), name, art) {
        json_t *ids = json_array(), *one;
        size_t i;
        if (json_is_array(art)) {
            json_array_foreach(art, i, one)
                json_array_append_new(ids, json_string(text_of(one, "uri")));
        } else {
            json_array_append_new(ids, json_string(text_of(art, "uri")));
        }
        json_object_set_new(out, name, json_pack("{s:o}", "artifact_ids", ids));
    }
    return out;
}

static json_t *task_json(const json_t *run, const json_t *n)
{
    const char *state = state_of(text_of(n, "phase")), *parent = text_of(n, "parent");
    const char *job = text_of(n, "job");
    double started = number_of(n, "started"), ended = number_of(n, "ended");
    OWN_JSON json_t *children = json_array();
    size_t i;
    json_t *id;

    json_array_foreach(json_object_get(n, "children"), i, id)
        json_array_append_new(children, json_pack("{s:O}", "task_id", id));
    return json_pack(
        "{s:s, s:s, s:s, s:o*, s:o*, s:o*, s:o*, s:s, s:o*, s:o, s:o, s:s*, s:o, s:s*, s:O}",
        "run_id", text_of(run, "id"), "task_id", text_of(n, "id"), "display_name",
        text_of(n, "display"), "create_time", kfp_time(started), "start_time", kfp_time(started),
        "end_time", kfp_time(ended), "executor_detail",
        *job ? json_pack("{s:s}", "main_job", job) : NULL, "state", state, "error",
        error_json(n, state), "inputs", artifacts_json(json_object_get(n, "inputs")), "outputs",
        artifacts_json(json_object_get(n, "outputs")), "parent_task_id", *parent ? parent : NULL,
        "state_history", history_json(0, started, ended, state), "pod_name", *job ? job : NULL,
        "child_tasks", children);
}

static json_t *run_json(struct request *q, const json_t *r)
{
    const char *state = state_of(text_of(r, "state")), *recurring = text_of(r, "recurring");
    const char *version = text_of(r, "version"), *account = text_of(r, "service_account");
    json_t *reference = *version
        ? json_pack("{s:s, s:s}", "pipeline_id", text_of(r, "pipeline"), "pipeline_version_id",
                    version) : NULL;

    (void)q;
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:o*, s:{s:O}, s:s*, s:o*, s:o*, s:o*, s:s, s:o*, s:s*, s:o}",
        "experiment_id", text_of(r, "experiment"), "run_id", text_of(r, "id"), "display_name",
        text_of(r, "name"), "storage_state",
        json_is_true(json_object_get(r, "archived")) ? "ARCHIVED" : "AVAILABLE", "description",
        text_of(r, "description"), "pipeline_version_reference", reference, "runtime_config",
        "parameters", json_object_get(r, "parameters"), "service_account",
        *account ? account : NULL, "created_at", kfp_time(number_of(r, "created")),
        "scheduled_at", kfp_time(number_of(r, "scheduled")), "finished_at",
        kfp_time(number_of(r, "ended")), "state", state, "error", error_json(r, state),
        "recurring_run_id", *recurring ? recurring : NULL, "state_history",
        history_json(number_of(r, "created"), number_of(r, "started"), number_of(r, "ended"),
                     state));
}

/* The whole: with its spec, where it came with its own, and with its tasks. */
static int answer_run(struct request *q, const json_t *run, struct err *err)
{
    OWN_JSON json_t *nodes = NULL, *tasks = json_array();
    OWN_MEM char *text = NULL;
    const char *id = text_of(run, "id");
    size_t n, i;
    json_t *node;

    if (runs_nodes(request_server(q), NULL, id, &nodes, err) < 0)
        return -(int)err->code;
    json_array_foreach(nodes, i, node)
        json_array_append_new(tasks, task_json(run, node));
    json_t *doc = run_json(q, run);
    json_object_set_new(doc, "run_details", json_pack("{s:O}", "task_details", tasks));
    if (!*text_of(run, "version") &&
        runs_text(request_server(q), NULL, id, &text, &n, NULL, err) == 0) {
        json_t *spec = kfp_spec_json(text, n);
        if (spec)
            json_object_set_new(doc, "pipeline_spec", spec);
    }
    return respond_json(q, 200, doc);
}

/* ------------------------------------------------------------ what to run */

struct source {
    const char *experiment, *pipeline, *version;
    json_t *parameters, *found;
    struct buf text;
};

static void source_done(struct source *s)
{
    json_decref(s->parameters);
    json_decref(s->found);
    buf_done(&s->text);
}
#define OWN_SOURCE __attribute__((cleanup(source_done))) struct source

static void add_document(struct buf *to, const json_t *doc)
{
    OWN_MEM char *text = json_dumps(doc, JSON_COMPACT);

    buf_text(to, text ? text : "");
    buf_text(to, "\n");
}

/* JSON is YAML: one document, or two with "---" between them. */
static void write_spec(const json_t *spec, struct buf *to)
{
    const json_t *inner = json_object_get(spec, "pipeline_spec");
    const json_t *platform = json_object_get(spec, "platform_spec");

    add_document(to, json_is_object(inner) ? inner : spec);
    if (json_is_object(inner) && json_is_object(platform)) {
        buf_text(to, "---\n");
        add_document(to, platform);
    }
}

static const char *given(const json_t *doc, const char *key)
{
    const char *text = text_of(doc, key);

    return *text ? text : NULL;
}

static int read_source(struct request *q, const char *project, const json_t *doc,
                       struct source *out, struct err *err)
{
    const json_t *reference = json_object_get(doc, "pipeline_version_reference");
    const json_t *spec = json_object_get(doc, "pipeline_spec");
    const json_t *parameters = json_object_get(json_object_get(doc, "runtime_config"),
                                               "parameters");
    const char *asked = request_query(q, "experiment_id");

    out->experiment = given(doc, "experiment_id");
    if (!out->experiment && asked && *asked)
        out->experiment = asked;
    out->pipeline = given(reference, "pipeline_id");
    out->version = given(reference, "pipeline_version_id");
    if (!out->version)
        out->version = given(doc, "pipeline_version_id");
    if (parameters && !json_is_object(parameters) && !json_is_null(parameters))
        return err_set(err, ERR_INVALID, "runtime_config.parameters: takes an object");
    if (!out->pipeline && !out->version) {
        if (!json_is_object(spec))
            return err_set(err, ERR_INVALID, "takes a pipeline_version_reference, or a "
                           "pipeline_spec");
        write_spec(spec, &out->text);
        return buf_ok(&out->text, err) < 0
            ? -(int)err->code
            : kfp_parameters_of(parameters, "pipeline_spec", out->text.data, out->text.n,
                                &out->parameters, err);
    }
    if (versions_get(request_server(q), project, out->pipeline,
                     out->version ? out->version : "", &out->found, err) < 0)
        return -(int)err->code;
    return kfp_parameters(parameters, text_of(out->found, "dialect"),
                          json_object_get(out->found, "inputs"), &out->parameters, err);
}

/* ------------------------------------------------------------ runs */

static int create_run(struct request *q, struct err *err)
{
    OWN_JSON json_t *doc = NULL, *made = NULL;
    OWN_SOURCE from = { .text = BUF_INIT };
    char project[KFP_PROJECT];

    if (request_json(q, &doc, err) < 0 ||
        kfp_project(q, NULL, text_of(doc, "experiment_id"), project, err) < 0 ||
        read_source(q, project, doc, &from, err) < 0)
        return -(int)err->code;
    const struct run_request r = {
        .project = project, .name = given(doc, "display_name"),
        .description = text_of(doc, "description"), .experiment = from.experiment,
        .pipeline = from.pipeline, .version = from.version, .parameters = from.parameters,
        .text = from.text.data, .text_n = from.text.n, .file = "pipeline_spec",
        .service_account = text_of(doc, "service_account"), .api = "v2beta1",
        .host_files = !request_project(q),
    };
    if (runs_create(request_server(q), &r, &made, err) < 0)
        return -(int)err->code;
    return answer_run(q, made, err);
}

static int list_runs(struct request *q, struct err *err)
{
    return kfp_list(q, &(struct kfp_listing){ &runs_kind, request_query(q, "namespace"),
                                              request_query(q, "experiment_id"), "runs",
                                              run_json }, err);
}

static int get_run(struct request *q, struct err *err)
{
    OWN_JSON json_t *run = NULL;

    if (runs_get(request_server(q), request_project(q), request_arg(q, "id"), &run, err) < 0)
        return -(int)err->code;
    return answer_run(q, run, err);
}

/* ------------------------------------------------------------ recurring runs */

static json_t *recurring_json(struct request *q, const json_t *j)
{
    const bool on = !strcmp(text_of(j, "state"), "enabled");
    const char *message = text_of(j, "message"), *pipeline = text_of(j, "pipeline");
    const char *version = text_of(j, "version"), *account = text_of(j, "service_account");
    json_t *reference = *pipeline || *version
        ? json_pack("{s:s, s:s*}", "pipeline_id", pipeline, "pipeline_version_id",
                    *version ? version : NULL) : NULL;
    char concurrency[24];

    (void)q;
    snprintf(concurrency, sizeof concurrency, "%ld", whole_of(j, "max_concurrency"));
    return json_pack(
        "{s:s, s:s, s:s, s:o*, s:{s:O?}, s:s*, s:s, s:o, s:s, s:o*, s:o*, s:s, s:o*, s:b, s:s, "
        "s:s}",
        "recurring_run_id", text_of(j, "id"), "display_name", text_of(j, "name"), "description",
        text_of(j, "description"), "pipeline_version_reference", reference, "runtime_config",
        "parameters", json_object_get(j, "parameters"), "service_account",
        *account ? account : NULL, "max_concurrency", concurrency, "trigger", kfp_trigger(j),
        "mode", on ? "ENABLE" : "DISABLE", "created_at", kfp_time(number_of(j, "created")),
        "updated_at", kfp_time(number_of(j, "updated")), "status", on ? "ENABLED" : "DISABLED",
        "error", *message ? json_pack("{s:i, s:s}", "code", 13, "message", message) : NULL,
        "no_catchup", json_is_true(json_object_get(j, "no_catchup")), "namespace",
        text_of(j, "project"), "experiment_id", text_of(j, "experiment"));
}

static int create_recurring(struct request *q, struct err *err)
{
    OWN_JSON json_t *doc = NULL, *trigger = NULL, *made = NULL;
    OWN_SOURCE from = { .text = BUF_INIT };
    char project[KFP_PROJECT];

    if (request_json(q, &doc, err) < 0 ||
        kfp_project(q, text_of(doc, "namespace"), text_of(doc, "experiment_id"), project,
                    err) < 0 ||
        kfp_trigger_read(json_object_get(doc, "trigger"), &trigger, err) < 0 ||
        read_source(q, project, doc, &from, err) < 0)
        return -(int)err->code;
    const struct recurring_request r = {
        .project = project, .name = text_of(doc, "display_name"),
        .description = text_of(doc, "description"), .experiment = from.experiment,
        .pipeline = from.pipeline, .version = from.version, .text = from.text.data,
        .text_n = from.text.n, .parameters = from.parameters, .trigger = trigger,
        .service_account = text_of(doc, "service_account"), .api = "v2beta1",
        .max_concurrency = (int)kfp_whole(doc, "max_concurrency"),
        .no_catchup = json_is_true(json_object_get(doc, "no_catchup")),
        .disabled = !strcmp(text_of(doc, "mode"), "DISABLE"), .host_files = !request_project(q),
    };
    if (recurring_create(request_server(q), &r, &made, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, recurring_json(q, made));
}

static int list_recurring(struct request *q, struct err *err)
{
    return kfp_list(q, &(struct kfp_listing){ &recurring_kind, request_query(q, "namespace"),
                                              request_query(q, "experiment_id"), "recurringRuns",
                                              recurring_json }, err);
}

static int get_recurring(struct request *q, struct err *err)
{
    return kfp_get(q, recurring_get, recurring_json, err);
}

static const struct http_route routes[] = {
    { "GET", BASE "/runs", HTTP_WAITS, list_runs, NULL },
    { "POST", BASE "/runs", HTTP_WAITS, create_run, NULL },
    { "GET", BASE "/runs/{id}", HTTP_WAITS, get_run, NULL },
    { "DELETE", BASE "/runs/{id}", HTTP_WAITS, kfp_run_delete, NULL },
    { "POST", BASE "/runs/{id}:terminate", HTTP_WAITS, kfp_run_terminate, NULL },
    { "POST", BASE "/runs/{id}:retry", HTTP_WAITS, kfp_run_retry, NULL },
    { "POST", BASE "/runs/{id}:archive", HTTP_WAITS, kfp_run_archive, NULL },
    { "POST", BASE "/runs/{id}:unarchive", HTTP_WAITS, kfp_run_unarchive, NULL },
    { "GET", BASE "/recurringruns", HTTP_WAITS, list_recurring, NULL },
    { "POST", BASE "/recurringruns", HTTP_WAITS, create_recurring, NULL },
    { "GET", BASE "/recurringruns/{id}", HTTP_WAITS, get_recurring, NULL },
    { "DELETE", BASE "/recurringruns/{id}", HTTP_WAITS, kfp_recurring_delete, NULL },
    { "POST", BASE "/recurringruns/{id}:enable", HTTP_WAITS, kfp_recurring_enable, NULL },
    { "POST", BASE "/recurringruns/{id}:disable", HTTP_WAITS, kfp_recurring_disable, NULL },
    { 0 }
};

const struct protocol protocol_kfp_v2_runs = { "kfp-v2-runs", routes, kfp_error };
