/* protocols/aiplatform.c - AI Platform's training API: jobs */
#include "protocols/aiplatform.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/own.h"
#include "protocols/aiplatform_int.h"
#include "protocols/filter.h"
#include "protocols/google.h"
#include "protocols/stamp.h"
#include "protocols/training.h"
#include "server/jobs.h"
#include "server/objects.h"
#include "server/queue.h"
#include "server/server.h"
#include "server/tiers.h"

/* ------------------------------------------------------------ create */

/* What one job may have: its load limit of the cores, as the queue gives it. */
static struct training_here machine(struct server *s)
{
    OWN_JSON json_t *m = queue_machine(s->queue);
    double cores = json_number_value(json_object_get(m, "cores")) * s->load_limit;
    return (struct training_here){
        .cpus = cores >= 1 ? (int)floor(cores) : 1,
        .gpus = (int)json_number_value(json_object_get(m, "gpus")),
        .memory_bytes = (int64_t)json_number_value(json_object_get(m, "memory")),
    };
}

/* As the service does: a package that is not there is told now and not by a job that fails. */
static int check_packages(struct server *s, const char *project, const json_t *spec,
                          struct err *err)
{
    const json_t *uris = json_object_get(json_object_get(spec, "python"), "packages");
    size_t i;
    json_t *uri;
    json_array_foreach ((json_t *)uris, i, uri) {
        const char *text = json_string_value(uri) + strlen("gs://");
        size_t n = strcspn(text, "/");
        char bucket[OBJECTS_BUCKET_MAX + 1];
        struct object object = { 0 };
        snprintf(bucket, sizeof bucket, "%.*s", (int)n, text);
        int rc = objects_stat(s, project, bucket, text + n + 1, &object, err);
        object_done(&object);
        if (rc == -ERR_MISSING || rc == -ERR_DENIED)
            return err_set(err, ERR_INVALID,
                           "Field: trainingInput.packageUris[%zu] Error: gs://%.300s "
                           "cannot be read: %s.",
                           i, text,
                           rc == -ERR_MISSING ? "there is no such object"
                                              : "it is another project's");
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int create_job(struct request *q, struct err *err)
{
    struct server *s = request_server(q);
    const char *project;
    OWN_JSON json_t *body = NULL, *spec = NULL, *record = NULL, *tiers = NULL;
    if (google_project(q, &project, err) < 0 || request_json(q, &body, err) < 0)
        return -(int)err->code;
    const char *unbuilt = training_unbuilt(body);
    if (unbuilt)
        return google_refuse(q, 400, "UNIMPLEMENTED", "%s", unbuilt);
    if (server_tiers(s, &tiers, err) < 0)
        return -(int)err->code;
    struct training_here here = machine(s);
    here.tiers = tiers;
    if (training_read(body, &here, &spec, err) < 0 || check_packages(s, project, spec, err) < 0)
        return -(int)err->code;
    const char *name = json_string_value(json_object_get(spec, "name"));
    int rc = jobs_submit(s, project, name, spec, &record, err);
    if (rc == -ERR_CONFLICT)
        return google_refuse(q, 409, "ALREADY_EXISTS",
                             "Field: job.jobId Error: A job with this id already exists.");
    return rc < 0 ? rc : respond_json(q, 200, training_show(record));
}

/* ------------------------------------------------------------ get, list */

/* gcloud prints a log five seconds behind it, and stops when two looks found nothing new and the
 * job has an endTime. Told of it at once, it would never print the last lines of a job that was
 * silent for a while; so, while it follows, it is told when it has seen them all. */
static bool told_too_soon(const struct request *q, const json_t *record)
{
    enum { BEHIND_S = 6 };
    const char *agent = request_header(q, "User-Agent");
    double ended = json_number_value(json_object_get(record, "ended"));
    bool follows = agent && strstr(agent, "gcloud/") &&
                   (strstr(agent, ".jobs.submit.") || strstr(agent, ".jobs.stream-logs"));
    const double ago = clock_wall() - ended;

    return follows && ended > 0 && ago > -1 && ago < BEHIND_S;  /* the clock may have been set back */
}

static int get_job(struct request *q, struct err *err)
{
    const char *project;
    OWN_JSON json_t *record = NULL;
    if (google_project(q, &project, err) < 0 ||
        jobs_get(request_server(q), project, request_arg(q, "job"), &record, err) < 0)
        return -(int)err->code;
    json_t *job = training_show(record);
    if (told_too_soon(q, record))
        json_object_del(job, "endTime");
    return respond_json(q, 200, job);
}

/* What a filter may ask of a job: any field by its path, times as times. */
void aiplatform_field(void *arg, const char *path, struct filter_value *out)
{
    const json_t *v = arg;
    const char *rest = path, *key = path;
    while (v && *rest) {
        size_t n = strcspn(rest, ".");
        char name[128];
        snprintf(name, sizeof name, "%.*s", (int)n, rest);
        key = rest;
        v = json_object_get(v, name);
        rest += n + (rest[n] == '.');
    }
    if (json_is_number(v)) {
        *out = (struct filter_value){ .kind = FILTER_NUMBER, .number = json_number_value(v) };
    } else if (json_is_boolean(v)) {
        *out = (struct filter_value){ .kind = FILTER_TEXT,
                                      .text = json_is_true(v) ? "true" : "false" };
    } else if (json_is_string(v)) {
        size_t n = strlen(key);
        *out = (struct filter_value){ .kind = FILTER_TEXT, .text = json_string_value(v) };
        if (n > 4 && !strcmp(key + n - 4, "Time") && stamp_parse(out->text, &out->time) == 0)
            out->kind = FILTER_TIME;
    }
}

/* A filter that names a state, or a part of the name, is answered by the list itself. */
static void narrow(const struct filter *filter, struct jobs_query *query)
{
    bool part;
    const char *state = filter_wants(filter, "state", &part);
    if (state)
        query->state = training_state_name(state);
    query->text = filter_wants(filter, "jobId", &part);
}

/* Adds those of one page of the list that match. */
static int add_matches(struct server *s, const char *project, const json_t *page,
                       const struct filter *filter, json_t *out, struct err *err)
{
    size_t i;
    json_t *row;
    json_array_foreach ((json_t *)page, i, row) {
        OWN_JSON json_t *record = NULL, *job = NULL;
        int rc =
            jobs_get(s, project, json_string_value(json_object_get(row, "name")), &record, err);
        if (rc == -ERR_MISSING) /* deleted meanwhile */
            continue;
        if (rc < 0)
            return rc;
        job = training_show(record);
        if (filter_match(filter, aiplatform_field, job))
            json_array_append(out, job);
    }
    return 0;
}

static int list_jobs(struct request *q, struct err *err)
{
    /* A page may be short, or empty, and lead to a next one: so that a filter which matches little
     * does not hold a thread for the whole list. */
    enum { LOOKS = 20, AT_ONCE = 100 };
    struct server *s = request_server(q);
    const char *project, *text = request_query(q, "filter"), *token = request_query(q, "pageToken");
    char from[JOB_TOKEN], next[JOB_TOKEN] = "";
    int size;
    OWN(filter) filter = NULL;
    OWN_JSON json_t *jobs = json_array();
    if (google_project(q, &project, err) < 0 || google_page_size(q, 20, AT_ONCE, &size, err) < 0 ||
        filter_parse(text, &filter, err) < 0)
        return -(int)err->code;
    snprintf(next, sizeof next, "%s", token ? token : "");
    for (int look = 0; look < LOOKS; look++) {
        struct jobs_query query = { .project = project,
                                    .token = from,
                                    .limit = size - (int)json_array_size(jobs) };
        OWN_JSON json_t *page = NULL;
        snprintf(from, sizeof from, "%s", next);
        narrow(filter, &query);
        if (jobs_list(s, &query, &page, next, err) < 0 ||
            add_matches(s, project, page, filter, jobs, err) < 0)
            return -(int)err->code;
        if (!*next || (int)json_array_size(jobs) >= size)
            break;
    }
    json_t *answer = json_object();
    if (json_array_size(jobs))
        json_object_set(answer, "jobs", jobs);
    if (*next)
        json_object_set_new(answer, "nextPageToken", json_string(next));
    return respond_json(q, 200, answer);
}

/* ------------------------------------------------------------ cancel, patch */

static int cancel_job(struct request *q, struct err *err)
{
    const char *project, *job = request_arg(q, "job");
    if (google_project(q, &project, err) < 0)
        return -(int)err->code;
    int rc = jobs_cancel(request_server(q), project, job, "aiplatform", err);
    if (rc == -ERR_CONFLICT)
        return google_refuse(q, 400, "FAILED_PRECONDITION",
                             "Cannot cancel job \"%.128s\": it has ended.", job);
    return rc < 0 ? rc : respond_json(q, 200, json_object());
}

static int check_mask(const char *mask, struct err *err)
{
    char word[64];
    if (!mask || !*mask)
        return err_set(err, ERR_INVALID, "Field: updateMask Error: Say what to update (labels).");
    for (const char *p = mask; *p; p += *p == ',') {
        size_t n = strcspn(p, ",");
        snprintf(word, sizeof word, "%.*s", (int)n, p);
        if (strcmp(word, "labels") && strcmp(word, "etag"))
            return err_set(err, ERR_INVALID,
                           "Field: updateMask Error: \"%.60s\" cannot be updated; labels "
                           "can.",
                           word);
        p += n;
    }
    return 0;
}

static int patch_job(struct request *q, struct err *err)
{
    struct server *s = request_server(q);
    const char *project, *job = request_arg(q, "job");
    OWN_JSON json_t *body = NULL, *record = NULL, *none = json_object();
    char etag[TRAINING_ETAG_SIZE];
    if (google_project(q, &project, err) < 0 || request_json(q, &body, err) < 0 ||
        check_mask(request_query(q, "updateMask"), err) < 0 ||
        jobs_get(s, project, job, &record, err) < 0)
        return -(int)err->code;
    if (!json_is_object(body))
        return err_set(err, ERR_INVALID, "the body is to be an object");
    const json_t *labels = json_object_get(body, "labels");
    const char *known = json_string_value(json_object_get(body, "etag"));
    training_etag(record, etag);
    if (known && strcmp(known, etag))
        return google_refuse(q, 409, "ABORTED",
                             "Field: job.etag Error: The job was changed meanwhile; read "
                             "it again.");
    if (training_check_labels(labels, err) < 0 ||
        jobs_patch_labels(s, project, job, json_is_object(labels) ? labels : none, err) < 0)
        return -(int)err->code;
    json_decref(TAKE(record));
    if (jobs_get(s, project, job, &record, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, training_show(record));
}

/* ------------------------------------------------------------ about a project */

static int get_config(struct request *q, struct err *err)
{
    const char *project;
    if (google_project(q, &project, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200,
                        json_pack("{s:s, s:s, s:{}}", "serviceAccount", "muster@localhost",
                                  "serviceAccountProject", "0", "config"));
}

static int list_locations(struct request *q, struct err *err)
{
    const char *project;
    char name[160];
    if (google_project(q, &project, err) < 0)
        return -(int)err->code;
    snprintf(name, sizeof name, "projects/%s/locations/local", project);
    return respond_json(q, 200, json_pack("{s:[{s:s}]}", "locations", "name", name));
}

static int no_prediction(struct request *q, struct err *err)
{
    (void)err;
    return google_refuse(q, 400, "UNIMPLEMENTED", "Online prediction is not built here.");
}

static const struct http_route routes[] = {
    { "POST", "/v1/projects/{project}/jobs", HTTP_WAITS, create_job, NULL },
    { "GET", "/v1/projects/{project}/jobs", HTTP_WAITS, list_jobs, NULL },
    { "GET", "/v1/projects/{project}/jobs/{job}", HTTP_WAITS, get_job, NULL },
    { "PATCH", "/v1/projects/{project}/jobs/{job}", HTTP_WAITS, patch_job, NULL },
    { "POST", "/v1/projects/{project}/jobs/{job}:cancel", HTTP_WAITS, cancel_job, NULL },
    { "GET", "/v1/projects/{project}:getConfig", HTTP_WAITS, get_config, NULL },
    { "GET", "/v1/projects/{project}/locations", HTTP_WAITS, list_locations, NULL },

    { "POST", "/v1/projects/{project}/models", HTTP_WAITS, aiplatform_create_model, NULL },
    { "GET", "/v1/projects/{project}/models", HTTP_WAITS, aiplatform_list_models, NULL },
    { "GET", "/v1/projects/{project}/models/{model}", HTTP_WAITS, aiplatform_get, NULL },
    { "PATCH", "/v1/projects/{project}/models/{model}", HTTP_WAITS, aiplatform_patch, NULL },
    { "DELETE", "/v1/projects/{project}/models/{model}", HTTP_WAITS, aiplatform_delete, NULL },
    { "POST", "/v1/projects/{project}/models/{model}:predict", HTTP_WAITS, no_prediction, NULL },
    { "POST", "/v1/projects/{project}/models/{model}/versions", HTTP_WAITS,
      aiplatform_create_version, NULL },
    { "GET", "/v1/projects/{project}/models/{model}/versions", HTTP_WAITS, aiplatform_list_versions,
      NULL },
    { "GET", "/v1/projects/{project}/models/{model}/versions/{version}", HTTP_WAITS, aiplatform_get,
      NULL },
    { "PATCH", "/v1/projects/{project}/models/{model}/versions/{version}", HTTP_WAITS,
      aiplatform_patch, NULL },
    { "DELETE", "/v1/projects/{project}/models/{model}/versions/{version}", HTTP_WAITS,
      aiplatform_delete, NULL },
    { "POST", "/v1/projects/{project}/models/{model}/versions/{version}:setDefault", HTTP_WAITS,
      aiplatform_set_default, NULL },
    { "POST", "/v1/projects/{project}/models/{model}/versions/{version}:predict", HTTP_WAITS,
      no_prediction, NULL },
    { "GET", "/v1/projects/{project}/operations", HTTP_WAITS, aiplatform_list_operations, NULL },
    { "GET", "/v1/projects/{project}/operations/{operation}", HTTP_WAITS, aiplatform_get, NULL },
    { "POST", "/v1/projects/{project}/operations/{operation}:cancel", HTTP_WAITS,
      aiplatform_cancel_operation, NULL },
    { 0 },
};

const struct protocol protocol_aiplatform = { "aiplatform", routes, google_error };
