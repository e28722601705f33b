/* protocols/kfp_v1_runs.c - v1beta1: runs, their metrics and artifacts, recurring runs ("jobs") */
#include <errno.h>
#include <nettle/base64.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

#include "base/buf.h"
#include "base/json.h"
#include "pipelines/catalog.h"
#include "pipelines/runs.h"
#include "pipelines/schedule.h"
#include "protocols/kfp_int.h"

#define BASE "/apis/v1beta1"

enum { ARTIFACT_MAX = 64 << 20, BLOCK = 512 };

static const struct kfp_key runs_keys[] = {
    { "id", "id", KFP_TEXT }, { "name", "name", KFP_TEXT }, { "created_at", "created", KFP_TIME },
    { "scheduled_at", "scheduled", KFP_TIME }, { "finished_at", "ended", KFP_TIME },
    { "description", "description", KFP_TEXT }, { "status", "phase", KFP_TEXT },
    { "storage_state", "archived", KFP_STORAGE },
    { "service_account", "service_account", KFP_TEXT }, { 0 }
};
static const struct kfp_key jobs_keys[] = {
    { "id", "id", KFP_TEXT }, { "name", "name", KFP_TEXT }, { "created_at", "created", KFP_TIME },
    { "updated_at", "updated", KFP_TIME }, { "description", "description", KFP_TEXT },
    { "status", "state", KFP_STATE }, { 0 }
};
static const struct kfp_kind runs_kind = { &rows_runs, runs_keys };
static const struct kfp_kind jobs_kind = { &rows_recurring, jobs_keys };

/* ------------------------------------------------------------ documents */

static void add_reference(json_t *list, struct request *q, const struct rows_kind *k,
                          const char *type, const char *id, const char *relationship)
{
    OWN_JSON json_t *of = NULL;
    struct err none = { 0 };

    if (!*id)
        return;
    const char *name = rows_get(request_server(q), k, NULL, id, &of, &none) == 0
        ? text_of(of, "name") : NULL;
    json_array_append_new(list, json_pack("{s:{s:s, s:s}, s:s*, s:s}", "key", "type", type, "id",
                                          id, "name", name, "relationship", relationship));
}

static json_t *references_json(struct request *q, const json_t *doc)
{
    json_t *list = json_array();

    add_reference(list, q, &rows_experiments, "EXPERIMENT", text_of(doc, "experiment"), "OWNER");
    add_reference(list, q, &rows_versions, "PIPELINE_VERSION", text_of(doc, "version"), "CREATOR");
    add_reference(list, q, &rows_recurring, "JOB", text_of(doc, "recurring"), "CREATOR");
    return list;
}

static json_t *parameters_json(const json_t *given)
{
    json_t *list = json_array();
    const char *name;
    json_t *value;

    json_object_foreach((json_t *)given, name, value) {
        OWN_MEM char *text = json_is_string(value) ? NULL
            : json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
        json_array_append_new(list, json_pack("{s:s, s:s}", "name", name, "value",
                                              text ? text : json_string_value(value)));
    }
    return list;
}

static json_t *spec_json(struct request *q, const json_t *doc)
{
    OWN_JSON json_t *pipeline = NULL;
    const char *id = text_of(doc, "pipeline");
    struct err none = { 0 };
    const char *name = *id && pipelines_get(request_server(q), NULL, id, &pipeline, &none) == 0
        ? text_of(pipeline, "name") : NULL;

    return json_pack("{s:s*, s:s*, s:o}", "pipeline_id", *id ? id : NULL, "pipeline_name", name,
                     "parameters", parameters_json(json_object_get(doc, "parameters")));
}

static json_t *metrics_json(const json_t *metrics)
{
    json_t *list = json_array();
    size_t i;
    json_t *m;

    json_array_foreach((json_t *)metrics, i, m)
        json_array_append_new(list, json_pack("{s:s, s:s, s:f, s:s}", "name", text_of(m, "name"),
                                              "node_id", text_of(m, "node"), "number_value",
                                              number_of(m, "value"), "format",
                                              text_of(m, "format")));
    return list;
}

static json_t *run_json(struct request *q, const json_t *r)
{
    const char *message = text_of(r, "message"), *account = text_of(r, "service_account");
    const bool failed = number_of(r, "ended") > 0 && strcmp(text_of(r, "state"), "succeeded");

    return json_pack(
        "{s:s, s:s, s:s, s:s, s:o, s:o, s:s*, s:o*, s:o*, s:o*, s:s, s:s*, s:o}", "id",
        text_of(r, "id"), "name", text_of(r, "name"), "storage_state",
        json_is_true(json_object_get(r, "archived")) ? "STORAGESTATE_ARCHIVED"
                                                     : "STORAGESTATE_AVAILABLE",
        "description", text_of(r, "description"), "pipeline_spec", spec_json(q, r),
        "resource_references", references_json(q, r), "service_account",
        *account ? account : NULL, "created_at", kfp_time(number_of(r, "created")),
        "scheduled_at", kfp_time(number_of(r, "scheduled")), "finished_at",
        kfp_time(number_of(r, "ended")), "status",
        strcmp(text_of(r, "state"), "terminating") ? text_of(r, "phase") : "Terminating", "error",
        failed && *message ? message : NULL, "metrics",
        metrics_json(json_object_get(r, "metrics")));
}

static int answer_run(struct request *q, const json_t *run, struct err *err)
{
    OWN_MEM char *manifest = NULL, *text = NULL;
    const bool argo = !strcmp(text_of(run, "dialect"), "argo");
    json_t *runtime;
    size_t n;

    if (kfp_workflow(q, run, &manifest, err) < 0 ||
        runs_text(request_server(q), NULL, text_of(run, "id"), &text, &n, NULL, err) < 0)
        return -(int)err->code;
    json_t *doc = run_json(q, run);
    json_object_set_new(json_object_get(doc, "pipeline_spec"),
                        argo ? "workflow_manifest" : "pipeline_manifest", json_stringn(text, n));
    runtime = json_pack("{s:s}", "workflow_manifest", manifest);
    if (!argo)
        json_object_set_new(runtime, "pipeline_manifest", json_stringn(text, n));
    return respond_json(q, 200, json_pack("{s:o, s:o}", "run", doc, "pipeline_runtime", runtime));
}

/* ------------------------------------------------------------ what to run */

/* What the bodies of runs and jobs have in common; borrowed from the body but for `parameters` and
 * `version`. */
struct source {
    const char *experiment, *pipeline, *version, *text;
    size_t text_n;
    json_t *parameters, *found;
};

static void source_done(struct source *s)
{
    json_decref(s->parameters);
    json_decref(s->found);
}
#define OWN_SOURCE __attribute__((cleanup(source_done))) struct source

static const char *reference(const json_t *doc, const char *type)
{
    size_t i;
    json_t *r;

    json_array_foreach(json_object_get(doc, "resource_references"), i, r)
        if (!strcmp(text_of(json_object_get(r, "key"), "type"), type))
            return text_of(json_object_get(r, "key"), "id");
    return NULL;
}

static json_t *given_parameters(const json_t *spec)
{
    json_t *out = json_object();
    size_t i;
    json_t *p;

    json_array_foreach(json_object_get(spec, "parameters"), i, p)
        json_object_set_new(out, text_of(p, "name"), json_string(text_of(p, "value")));
    return out;
}

static int read_source(struct request *q, const char *project, const json_t *doc,
                       struct source *out, struct err *err)
{
    const json_t *spec = json_object_get(doc, "pipeline_spec");
    const json_t *text = json_object_get(spec, "workflow_manifest");
    OWN_JSON json_t *given = given_parameters(spec);
    const char *pipeline = text_of(spec, "pipeline_id");

    if (!json_string_length(text))
        text = json_object_get(spec, "pipeline_manifest");
    out->experiment = reference(doc, "EXPERIMENT");
    out->version = reference(doc, "PIPELINE_VERSION");
    out->pipeline = *pipeline ? pipeline : reference(doc, "PIPELINE");
    if (out->version && !*out->version)
        out->version = NULL;
    /* A version is of whichever pipeline it is; the two need not be told apart by the client. */
    if (out->version)
        out->pipeline = NULL;
    if (!out->version && !out->pipeline) {
        out->text = json_string_length(text) ? json_string_value(text) : NULL;
        out->text_n = json_string_length(text);
        if (!out->text)
            return err_set(err, ERR_INVALID, "pipeline_spec: takes a pipeline_id, a "
                           "workflow_manifest, or a reference to a version");
        return kfp_parameters_of(given, "workflow_manifest", out->text, out->text_n,
                                 &out->parameters, err);
    }
    if (versions_get(request_server(q), project, out->pipeline,
                     out->version ? out->version : "", &out->found, err) < 0)
        return -(int)err->code;
    return kfp_parameters(given, text_of(out->found, "dialect"),
                          json_object_get(out->found, "inputs"), &out->parameters, err);
}

/* ------------------------------------------------------------ runs */

static int create_run(struct request *q, struct err *err)
{
    OWN_JSON json_t *doc = NULL, *made = NULL;
    OWN_SOURCE from = { 0 };
    char project[KFP_PROJECT];

    if (request_json(q, &doc, err) < 0 ||
        kfp_project(q, reference(doc, "NAMESPACE"), reference(doc, "EXPERIMENT"), project,
                    err) < 0 ||
        read_source(q, project, doc, &from, err) < 0)
        return -(int)err->code;
    const char *name = text_of(doc, "name");
    const struct run_request r = {
        .project = project, .name = *name ? name : NULL,
        .description = text_of(doc, "description"), .experiment = from.experiment,
        .pipeline = from.pipeline, .version = from.version, .parameters = from.parameters,
        .text = from.text, .text_n = from.text_n, .file = "workflow_manifest",
        .service_account = text_of(doc, "service_account"), .api = "v1beta1",
        .host_files = !request_project(q),
    };
    if (runs_create(request_server(q), &r, &made, err) < 0)
        return -(int)err->code;
    return answer_run(q, made, err);
}

static const char *asked(const struct request *q, const char *wanted)
{
    const char *type = request_query(q, "resource_reference_key.type");
    const char *id = request_query(q, "resource_reference_key.id");

    return type && id && !strcmp(type, wanted) ? id : "";
}

static int list_runs(struct request *q, struct err *err)
{
    return kfp_list(q, &(struct kfp_listing){ &runs_kind, asked(q, "NAMESPACE"),
                                              asked(q, "EXPERIMENT"), "runs", run_json }, err);
}

static int get_run(struct request *q, struct err *err)
{
    OWN_JSON json_t *run = NULL;

    if (runs_get(request_server(q), request_project(q), request_arg(q, "id"), &run, err) < 0)
        return -(int)err->code;
    return answer_run(q, run, err);
}

/* ------------------------------------------------------------ metrics */

/* Kubeflow's rule, [a-z]([-a-z0-9]{0,62}[a-z0-9])?, and a number. */
static const char *metric_wrong(const json_t *m)
{
    static const char chars[] = "abcdefghijklmnopqrstuvwxyz0123456789-";
    const char *name = text_of(m, "name");
    size_t n = strlen(name);

    if (n < 1 || n > 64 || !(*name >= 'a' && *name <= 'z') || strspn(name, chars) != n ||
        name[n - 1] == '-')
        return "a name has 1 to 64 of a-z, 0-9 and -, and begins with a letter";
    if (!json_is_number(json_object_get(m, "number_value")) &&
        json_object_get(m, "number_value"))
        return "number_value is no number";
    if (!*text_of(m, "node_id"))
        return "node_id is missing";
    return NULL;
}

static bool is_known(const json_t *known, const json_t *m)
{
    size_t i;
    json_t *k;

    json_array_foreach((json_t *)known, i, k)
        if (!strcmp(text_of(k, "name"), text_of(m, "name")) &&
            !strcmp(text_of(k, "node"), text_of(m, "node_id")))
            return true;
    return false;
}

static int report_metrics(struct request *q, struct err *err)
{
    OWN_JSON json_t *doc = NULL, *known = NULL, *good = json_array();
    json_t *results = json_array();
    const json_t *given;
    size_t i;
    json_t *m;
    int rc = request_json(q, &doc, err);

    given = json_object_get(doc, "metrics");
    json_array_foreach((json_t *)given, i, m) {
        const char *format = text_of(m, "format");
        if (!metric_wrong(m))
            json_array_append_new(good, json_pack("{s:s, s:s, s:f, s:s}", "name",
                text_of(m, "name"), "node", text_of(m, "node_id"), "value",
                number_of(m, "number_value"), "format",
                !strcmp(format, "PERCENTAGE") ? format : "RAW"));
    }
    if (rc == 0)
        rc = runs_metrics(request_server(q), request_project(q), request_arg(q, "id"), good,
                          &known, err);
    json_array_foreach((json_t *)given, i, m) {
        const char *why = metric_wrong(m);
        const bool twice = !why && is_known(known, m);
        json_array_append_new(results, json_pack(
            "{s:s, s:s, s:s, s:s*}", "metric_name", text_of(m, "name"), "metric_node_id",
            text_of(m, "node_id"), "status",
            why ? "INVALID_ARGUMENT" : twice ? "DUPLICATE_REPORTING" : "OK", "message",
            why ? why : twice ? "it was reported before, and stays as it was" : NULL));
    }
    if (rc == 0)
        return respond_json(q, 200, json_pack("{s:o}", "results", results));
    json_decref(results);
    return rc;
}

/* ------------------------------------------------------------ artifacts */

static void add_tar(struct buf *out, const char *name, const char *bytes, size_t n)
{
    char head[BLOCK] = { 0 };
    static const char zeros[2 * BLOCK];
    unsigned sum = 0;

    snprintf(head, 100, "%.99s", name);
    snprintf(head + 100, 8, "%07o", 0644u);
    snprintf(head + 108, 8, "%07o", 0u);
    snprintf(head + 116, 8, "%07o", 0u);
    snprintf(head + 124, 12, "%011lo", (unsigned long)n);
    snprintf(head + 136, 12, "%011o", 0u);
    memset(head + 148, ' ', 8);
    head[156] = '0';
    memcpy(head + 257, "ustar\0" "00", 8);
    for (int i = 0; i < BLOCK; i++)
        sum += (unsigned char)head[i];
    snprintf(head + 148, 8, "%06o", sum);
    buf_append(out, head, BLOCK);
    buf_append(out, bytes, n);
    if (n % BLOCK)
        buf_append(out, zeros, BLOCK - n % BLOCK);
    buf_append(out, zeros, sizeof zeros);
}

static int add_gzip(struct buf *out, const struct buf *from, struct err *err)
{
    z_stream z = { 0 };

    if (deflateInit2(&z, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        return err_set(err, ERR_NOMEM, "no memory for an artifact");
    size_t bound = deflateBound(&z, from->n);
    char *to = buf_reserve(out, bound);
    z.next_in = (Bytef *)from->data;
    z.avail_in = (uInt)from->n;
    z.next_out = (Bytef *)to;
    z.avail_out = (uInt)bound;
    int rc = to ? deflate(&z, Z_FINISH) : Z_MEM_ERROR;
    out->n += z.total_out;
    deflateEnd(&z);
    return rc == Z_STREAM_END ? 0 : err_set(err, ERR_NOMEM, "no memory for an artifact");
}

static int read_all(int fd, struct buf *out, struct err *err)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return err_set(err, ERR_IO, "cannot read the artifact: %s", strerror(errno));
    if (st.st_size > ARTIFACT_MAX)
        return err_set(err, ERR_INVALID, "the artifact has %lld MB, more than the %d that this "
                       "call answers with: read it from its bucket", (long long)st.st_size >> 20,
                       ARTIFACT_MAX >> 20);
    char *to = buf_reserve(out, (size_t)st.st_size + 1);
    ssize_t n = to ? pread(fd, to, (size_t)st.st_size, 0) : -1;
    if (n != st.st_size)
        return err_set(err, ERR_IO, "cannot read the artifact");
    out->n = (size_t)n;
    to[n] = 0;
    return 0;
}

/* As Argo stores it: a .tgz with one file, or with the directory; a log as it is. */
static int read_artifact(struct request *q, struct err *err)
{
    const char *name = request_arg(q, "name");
    OWN_JSON json_t *art = NULL;
    OWN_BUF bytes = BUF_INIT;
    OWN_BUF tar = BUF_INIT;
    OWN_BUF tgz = BUF_INIT;
    OWN_FD int fd = -1;

    if (runs_artifact(request_server(q), request_project(q), request_arg(q, "id"),
                      request_arg(q, "node"), name, &art, &fd, err) < 0 ||
        read_all(fd, &bytes, err) < 0)
        return -(int)err->code;
    const bool is_log = !strcmp(name, "main-logs");
    const bool is_dir = json_is_true(json_object_get(art, "dir"));
    if (!is_log && !is_dir)
        add_tar(&tar, name, bytes.data, bytes.n);
    if (!is_log && (buf_ok(&tar, err) < 0 || add_gzip(&tgz, is_dir ? &bytes : &tar, err) < 0))
        return -(int)err->code;
    const struct buf *from = is_log ? &bytes : &tgz;
    OWN_MEM char *text = malloc(BASE64_ENCODE_RAW_LENGTH(from->n) + 1);
    if (!text)
        return err_set(err, ERR_NOMEM, "no memory for an artifact");
    base64_encode_raw(text, from->n, (const uint8_t *)from->data);
    return respond_json(q, 200, json_pack("{s:s%}", "data", text,
                                          (size_t)BASE64_ENCODE_RAW_LENGTH(from->n)));
}

/* ------------------------------------------------------------ recurring runs */

static json_t *job_json(struct request *q, const json_t *j)
{
    const bool on = !strcmp(text_of(j, "state"), "enabled");
    const char *message = text_of(j, "message"), *account = text_of(j, "service_account");
    char concurrency[24];

    snprintf(concurrency, sizeof concurrency, "%ld", whole_of(j, "max_concurrency"));
    return json_pack(
        "{s:s, s:s, s:s, s:o, s:o, s:s*, s:s, s:o, s:s, s:o*, s:o*, s:s, s:s*, s:b, s:b}", "id",
        text_of(j, "id"), "name", text_of(j, "name"), "description", text_of(j, "description"),
        "pipeline_spec", spec_json(q, j), "resource_references", references_json(q, j),
        "service_account", *account ? account : NULL, "max_concurrency", concurrency, "trigger",
        kfp_trigger(j), "mode", on ? "ENABLED" : "DISABLED", "created_at",
        kfp_time(number_of(j, "created")), "updated_at", kfp_time(number_of(j, "updated")),
        "status", on ? "Enabled" : "Disabled", "error", *message ? message : NULL, "enabled", on,
        "no_catchup", json_is_true(json_object_get(j, "no_catchup")));
}

static int create_job(struct request *q, struct err *err)
{
    OWN_JSON json_t *doc = NULL, *trigger = NULL, *made = NULL;
    OWN_SOURCE from = { 0 };
    char project[KFP_PROJECT];

    if (request_json(q, &doc, err) < 0 ||
        kfp_project(q, reference(doc, "NAMESPACE"), reference(doc, "EXPERIMENT"), project,
                    err) < 0 ||
        kfp_trigger_read(json_object_get(doc, "trigger"), &trigger, err) < 0 ||
        read_source(q, project, doc, &from, err) < 0)
        return -(int)err->code;
    const bool on = json_is_true(json_object_get(doc, "enabled")) ||
                    !strcmp(text_of(doc, "mode"), "ENABLED");
    const struct recurring_request r = {
        .project = project, .name = text_of(doc, "name"),
        .description = text_of(doc, "description"), .experiment = from.experiment,
        .pipeline = from.pipeline, .version = from.version, .text = from.text,
        .text_n = from.text_n, .parameters = from.parameters, .trigger = trigger,
        .service_account = text_of(doc, "service_account"), .api = "v1beta1",
        .max_concurrency = (int)kfp_whole(doc, "max_concurrency"),
        .no_catchup = json_is_true(json_object_get(doc, "no_catchup")), .disabled = !on,
        .host_files = !request_project(q),
    };
    if (recurring_create(request_server(q), &r, &made, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, job_json(q, made));
}

static int list_jobs(struct request *q, struct err *err)
{
    return kfp_list(q, &(struct kfp_listing){ &jobs_kind, asked(q, "NAMESPACE"),
                                              asked(q, "EXPERIMENT"), "jobs", job_json }, err);
}

static int get_job(struct request *q, struct err *err)
{
    return kfp_get(q, recurring_get, job_json, err);
}

static const struct http_route routes[] = {
    { "GET", BASE "/runs", HTTP_WAITS, list_runs, NULL },
    { "POST", BASE "/runs", HTTP_WAITS, create_run, NULL },
    { "GET", BASE "/runs/{id}", HTTP_WAITS, get_run, NULL },
    { "DELETE", BASE "/runs/{id}", HTTP_WAITS, kfp_run_delete, NULL },
    { "POST", BASE "/runs/{id}/terminate", HTTP_WAITS, kfp_run_terminate, NULL },
    { "POST", BASE "/runs/{id}/retry", HTTP_WAITS, kfp_run_retry, NULL },
    { "POST", BASE "/runs/{id}:archive", HTTP_WAITS, kfp_run_archive, NULL },
    { "POST", BASE "/runs/{id}:unarchive", HTTP_WAITS, kfp_run_unarchive, NULL },
    { "POST", BASE "/runs/{id}:reportMetrics", HTTP_WAITS, report_metrics, NULL },
    { "GET", BASE "/runs/{id}/nodes/{node}/artifacts/{name}:read", HTTP_WAITS, read_artifact,
      NULL },
    { "GET", BASE "/jobs", HTTP_WAITS, list_jobs, NULL },
    { "POST", BASE "/jobs", HTTP_WAITS, create_job, NULL },
    { "GET", BASE "/jobs/{id}", HTTP_WAITS, get_job, NULL },
    { "DELETE", BASE "/jobs/{id}", HTTP_WAITS, kfp_recurring_delete, NULL },
    { "POST", BASE "/jobs/{id}/enable", HTTP_WAITS, kfp_recurring_enable, NULL },
    { "POST", BASE "/jobs/{id}/disable", HTTP_WAITS, kfp_recurring_disable, NULL },
    { 0 }
};

const struct protocol protocol_kfp_v1_runs = { "kfp-v1-runs", routes, kfp_error };
