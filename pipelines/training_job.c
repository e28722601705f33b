/* pipelines/training_job.c - a TrainingJob that a `resource` step creates: a job, and the step
 * waits for it
 *
 * DESIGN. What a TrainingJob's trainer runs becomes a job of the server under the name that the
 * step's job would have, so it is found again after a crash as steps are. The step ends when the
 * job does. One trainer does the work: a program of the user's own cannot be joined, so
 * min-instance above 1, parameter servers and a master have no meaning here, and the job's log says
 * so in its first line.
 */
#include <string.h>

#include "base/json.h"
#include "pipelines/runs_int.h"
#include "server/jobs.h"
#include "server/server.h"
#include "spec/scan.h"

/* "500m" cores, "2Gi" bytes; 0: it is none. */
static double quantity(const json_t *v)
{
    const char *text = json_string_value(v);
    double n = 0;

    return !text ? json_number_value(v) : scan_quantity(text, &n) ? n : 0;
}

static json_t *resources_of(const json_t *trainer)
{
    const json_t *r = json_object_get(trainer, "resources");
    const json_t *asked = json_object_get(r, "requests");
    const json_t *of = asked ? asked : json_object_get(r, "limits");
    double cpu = quantity(json_object_get(of, "cpu"));
    double memory = quantity(json_object_get(of, "memory"));
    json_t *out = json_object();

    json_object_set_new(out, "cpu", json_real(cpu > 0 ? cpu : 1));
    if (memory > 0)
        json_object_set_new(out, "memory", json_integer((json_int_t)memory));
    return out;
}

int training_job(const struct live *l, const struct node *n, const json_t *manifest, json_t **out,
                 struct err *err)
{
    const json_t *spec = json_object_get(manifest, "spec");
    const json_t *trainer = json_object_get(spec, "trainer");
    const char *entry = text_of(trainer, "entrypoint"), *where = text_of(trainer, "workspace");
    const char *image = text_of(spec, "image");
    const char *name = text_of(json_object_get(manifest, "metadata"), "name");

    if (!*entry)
        return err_set(err, ERR_INVALID, "spec.trainer.entrypoint: is missing");
    OWN_JSON json_t *doc = json_pack(
        "{s:s, s:[s, s, s], s:s*, s:o, s:b, s:b, s:{s:s, s:s, s:s}, s:{s:s*}, s:[s]}", "kind",
        "command", "command", "sh", "-c", entry, "image", *image ? image : NULL, "resources",
        resources_of(trainer), "network", 1, "host_files",
        json_is_true(json_object_get(l->doc, "host_files")), "labels", "run", l->id, "node", n->id,
        "training-job", name, "step", "cwd", *where == '/' ? where : NULL, "notes",
        "one trainer runs; instances beyond it, parameter servers and a master have no meaning "
        "here");
    if (!doc)
        return err_set(err, ERR_INVALID, "the manifest is not UTF-8");
    *out = TAKE(doc);
    return 0;
}

/* The words of EDL's own controller. */
static const char *phase_of(const char *state)
{
    return !strcmp(state, "succeeded") ? "Succeed" : !strcmp(state, "queued") ? "Creating"
        : !strcmp(state, "failed") || !strcmp(state, "cancelled") ? "Failed" : "Running";
}

int training_job_find(struct server *s, const char *project, const char *name, json_t **out,
                      struct err *err)
{
    const struct jobs_query q = { .project = project, .label_key = "training-job",
                                  .label_value = name, .limit = 1 };
    char token[JOB_TOKEN];
    OWN_JSON json_t *jobs = NULL;

    if (jobs_list(s, &q, &jobs, token, err) < 0)
        return -(int)err->code;
    const json_t *job = json_array_get(jobs, 0);
    if (!job)
        return err_set(err, ERR_MISSING, "there is no TrainingJob \"%.100s\"", name);
    *out = json_pack("{s:s, s:s, s:{s:s}, s:{s:s, s:s, s:s}}", "apiVersion", "paddlepaddle.org/v1",
                     "kind", "TrainingJob", "metadata", "name", name, "status", "phase",
                     phase_of(text_of(job, "state")), "reason", text_of(job, "reason"), "job",
                     text_of(job, "name"));
    return *out ? 0 : err_set(err, ERR_NOMEM, "no memory for a job");
}

/* Keys of `patch` below `path` but those in `known` (words between spaces) are refused. */
static int check_patch(const json_t *patch, const char *path, const char *known, struct err *err)
{
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)patch, key, v) {
        char word[64];
        snprintf(word, sizeof word, " %.60s ", key);
        if (!strstr(known, word))
            return err_set(err, ERR_INVALID, "%s%.64s: of a TrainingJob labels and the workers "
                           "(spec.trainer.min-instance, max-instance) can be changed", path, key);
    }
    return 0;
}

static int patch_labels(struct server *s, const char *project, const char *job,
                        const json_t *given, struct err *err)
{
    OWN_JSON json_t *doc = NULL;
    const char *key;
    json_t *v;

    if (json_object_size(given) == 0)
        return 0;
    if (jobs_get(s, project, job, &doc, err) < 0)
        return -(int)err->code;
    json_t *labels = json_object_get(doc, "labels");
    json_object_foreach((json_t *)given, key, v) {
        if (!strcmp(key, "run") || !strcmp(key, "node") || !strcmp(key, "training-job"))
            return err_set(err, ERR_INVALID, "metadata.labels.%s: is the server's own", key);
        if (json_is_null(v))
            json_object_del(labels, key);
        else
            json_object_set(labels, key, v);
    }
    return jobs_patch_labels(s, project, job, labels, err);
}

int training_job_patch(struct server *s, const char *project, const char *name,
                       const json_t *patch, struct err *err)
{
    const json_t *meta = json_object_get(patch, "metadata");
    const json_t *spec = json_object_get(patch, "spec");
    const json_t *trainer = json_object_get(spec, "trainer");
    const json_t *min = json_object_get(trainer, "min-instance");
    const json_t *max = json_object_get(trainer, "max-instance");
    OWN_JSON json_t *there = NULL;

    if (training_job_find(s, project, name, &there, err) < 0 ||
        check_patch(patch, "", " apiVersion kind metadata spec ", err) < 0 ||
        check_patch(meta, "metadata.", " name namespace labels ", err) < 0 ||
        check_patch(spec, "spec.", " trainer ", err) < 0 ||
        check_patch(trainer, "spec.trainer.", " min-instance max-instance ", err) < 0)
        return -(int)err->code;
    const char *job = text_of(json_object_get(there, "status"), "job");
    if (patch_labels(s, project, job, json_object_get(meta, "labels"), err) < 0)
        return -(int)err->code;
    if (!min && !max)
        return 0;
    int from = (int)json_integer_value(min ? min : max);
    int to = (int)json_integer_value(max ? max : min);
    return jobs_resize(s, project, job, min ? from : 1, to, err);
}

int training_job_stop(struct server *s, const char *project, const char *name, struct err *err)
{
    OWN_JSON json_t *there = NULL;
    struct err why = { 0 };

    if (training_job_find(s, project, name, &there, &why) < 0)
        return why.code == ERR_MISSING ? 0 : err_set(err, why.code, "%s", why.text);
    const char *job = text_of(json_object_get(there, "status"), "job");
    if (jobs_cancel(s, project, job, "run", &why) < 0 && why.code != ERR_CONFLICT &&
        why.code != ERR_MISSING)        /* it has ended: its log stays with the run's */
        return err_set(err, why.code, "%s", why.text);
    return 0;
}
