/* pipelines/steps_out.c - what a step left: parameters from files, artifacts as objects
 *
 * DESIGN. Everything below a job's directory was written by a program that is not trusted: it is
 * opened by descriptor, and no link is followed out of the output that it is in. A directory becomes
 * a tar (base/tar.h), so that the same content has the same digest.
 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/tar.h"
#include "drivers/step.h"
#include "pipelines/runs_int.h"
#include "pipelines/steps_ir.h"
#include "server/jobs.h"
#include "server/logs.h"
#include "server/objects.h"
#include "server/server.h"

enum { PARAMETER_MAX = 1 << 20, RESULT_MAX = 256 << 10, METRICS_MAX = 1 << 20, SAID_MAX = 16 << 20,
       CHUNK = 256 << 10 };

/* ------------------------------------------------------------ artifacts */

int step_bucket(struct server *s, const char *project, char *out, size_t size, struct err *err)
{
    struct bucket b = { 0 };
    struct err none = { 0 };

    snprintf(out, size, "artifacts-%s", project);
    int rc = buckets_get(s, project, out, NULL, &b, &none);
    if (rc == -ERR_MISSING) {
        rc = buckets_insert(s, project, out, NULL, &b, err);
        if (rc == -ERR_CONFLICT)        /* somebody else was faster */
            return 0;
    } else if (rc < 0) {
        return err_set(err, none.code, "%s", none.text);
    }
    if (rc == 0)
        bucket_done(&b);
    return rc;
}

/* An artifact on its way into the store. */
struct carried {
    struct server *server;
    const struct leaf *leaf;
    struct content *content;
};

/* Its size is known before its bytes: a file of holes is as large as it wants, and costs nothing
 * until it is copied. */
static int fits(struct carried *c, int64_t n, struct err *err)
{
    struct err none = { 0 };

    return objects_room(c->server, n, &none) == 0 ? 0
        : err_set(err, ERR_IO, "is %.3g MB, and the disk is full or has no room for so much",
                  (double)n / 1e6);
}

static int put(void *arg, const void *bytes, size_t n, struct err *err)
{
    struct carried *c = arg;

    if (c->leaf->leave)
        return err_set(err, ERR_AGAIN, "terminated");
    return bytes ? content_add(c->content, bytes, n, err) : fits(c, (int64_t)n, err);
}

static int put_file(struct carried *c, int fd, struct err *err)
{
    OWN_MEM char *chunk = malloc(CHUNK);
    struct stat st;

    if (!chunk)
        return err_set(err, ERR_NOMEM, "no memory for an artifact");
    if (fstat(fd, &st) == 0 && fits(c, st.st_size, err) < 0)
        return -(int)err->code;
    for (;;) {
        ssize_t n = read(fd, chunk, CHUNK);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(err, ERR_IO, "cannot read an artifact: %s", strerror(errno));
        if (n == 0)
            return 0;
        if (put(c, chunk, (size_t)n, err) < 0)
            return -(int)err->code;
    }
}

static int keep_artifact(struct server *s, const struct leaf *f, const char *bucket,
                         const json_t *output, int fd, bool dir, json_t **out, struct err *err)
{
    OWN(content) c = content_new(s);
    const char *name = text_of(output, "name");
    struct object o = { 0 };
    char key[OBJECTS_NAME_MAX + 1];

    if (!c)
        return err_set(err, ERR_NOMEM, "no memory for an artifact");
    struct carried carried = { s, f, c };
    if ((dir ? tar_write(fd, put, &carried, err) : put_file(&carried, fd, err)) < 0)
        return -(int)err->code;
    snprintf(key, sizeof key, "%s/%s/%s", f->run->id, f->node->id, name);
    struct objects_put as = { .project = f->run->project, .bucket = bucket, .name = key,
                               .type = dir ? "application/x-tar" : NULL,
                               .when = OBJECTS_WHENEVER };
    if (content_put(c, &as, &o, err) < 0)
        return -(int)err->code;
    char uri[OBJECTS_NAME_MAX + OBJECTS_BUCKET_MAX + 8];
    snprintf(uri, sizeof uri, "gs://%s/%s", bucket, key);
    json_t *art = json_pack("{s:s, s:s, s:s, s:I, s:b, s:O*}", "name", name, "uri", uri, "sha256",
                            o.sha256, "size", (json_int_t)o.size, "dir", dir, "type",
                            json_object_get(output, "type"));
    object_done(&o);
    if (!art)
        return err_set(err, ERR_NOMEM, "no memory for an artifact");
    *out = art;
    return 0;
}

static int artifact_of(struct server *s, const struct leaf *f, const struct step_place *at,
                       const json_t *output, json_t *out, struct err *err)
{
    const char *name = text_of(output, "name"), *path = text_of(output, "path");
    char bucket[128];
    json_t *art = NULL;
    bool dir;
    OWN_FD int fd = -1;

    int rc = step_output_open(at, path, &fd, &dir, err);
    if (rc == -ERR_MISSING && (json_is_true(json_object_get(output, "optional")) || !f->good))
        return 0;
    if (rc < 0 || step_bucket(s, f->run->project, bucket, sizeof bucket, err) < 0 ||
        keep_artifact(s, f, bucket, output, fd, dir, &art, err) < 0)
        return err_add(err, "output artifact \"%.64s\"", name);
    json_object_set_new(out, name, art);
    return 0;
}

/* ------------------------------------------------------------ parameters and the result */

static int read_text(int fd, size_t max, struct buf *out, struct err *err)
{
    for (;;) {
        char *at = buf_reserve(out, 4096);
        if (!at)
            return err_set(err, ERR_NOMEM, "no memory for a parameter");
        ssize_t n = read(fd, at, 4096);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(err, ERR_IO, "cannot read it: %s", strerror(errno));
        if (n == 0)
            break;
        out->n += (size_t)n;
        if (out->n > max)
            return err_set(err, ERR_INVALID, "is larger than %zu kB (make it an artifact)",
                           max >> 10);
    }
    buf_append(out, "", 0);
    return buf_ok(out, err);
}

static int parameter_of(const struct leaf *f, const struct step_place *at, const json_t *output,
                        bool typed, json_t *out, struct err *err)
{
    const char *name = text_of(output, "name"), *path = text_of(output, "path");
    json_t *given = json_object_get(output, "default");
    OWN_BUF text = BUF_INIT;
    OWN_FD int fd = -1;
    bool dir;

    int rc = step_output_open(at, path, &fd, &dir, err);
    if (rc == -ERR_MISSING && (given || !f->good)) {
        if (given)
            json_object_set(out, name, given);
        return 0;
    }
    if (rc == 0 && dir)
        rc = err_set(err, ERR_INVALID, "%.200s is a directory; a parameter is a file", path);
    if (rc < 0 || read_text(fd, PARAMETER_MAX, &text, err) < 0)
        return err_add(err, "output parameter \"%.64s\"", name);
    json_t *value = NULL;
    if (typed) {
        if (steps_ir_value(text_of(output, "type"), text.data, text.n, &value, err) < 0)
            return err_add(err, "output parameter \"%.64s\"", name);
        json_object_set_new(out, name, value);
        return 0;
    }
    if (text.n && text.data[text.n - 1] == '\n')        /* one, for what echo writes */
        text.n--;
    value = json_stringn(text.data, text.n);
    if (!value)
        return err_set(err, ERR_INVALID, "output parameter \"%.64s\" is not UTF-8 (make it an "
                       "artifact)", name);
    json_object_set_new(out, name, value);
    return 0;
}

static int add_line(void *arg, const struct log_line *l)
{
    struct buf *b = arg;
    bool part = l->n && l->text[l->n - 1] == '\\' && l->n >= 64 << 10;

    if (l->stream != 'o')
        return 0;
    buf_append(b, l->text, part ? l->n - 1 : l->n);
    if (!part)
        buf_append(b, "\n", 1);
    return b->n > RESULT_MAX;
}

/* What it printed to its standard output, from the beginning, without the last newline. */
static json_t *result_of(const char *dir)
{
    OWN_BUF text = BUF_INIT;
    struct log_cursor at = { 0, 0 }, before;
    struct err none;

    do {
        before = at;
        logs_read(dir, &at, NULL, add_line, &text, &none);
    } while (text.n <= RESULT_MAX && (at.file != before.file || at.offset != before.offset));
    if (text.n > RESULT_MAX)
        text.n = RESULT_MAX;
    while (text.n && text.data[text.n - 1] == '\n')
        text.n--;
    json_t *result = json_stringn(text.data ? text.data : "", text.n);
    return result ? result : json_string("");
}

/* What a component of kfp 2 said of its outputs; NULL: nothing. */
static json_t *read_said(const struct step_place *at)
{
    OWN_BUF text = BUF_INIT;
    OWN_FD int fd = -1;
    struct err none = { 0 };
    bool dir = false;

    return step_output_open(at, STEPS_IR_SAID, &fd, &dir, &none) == 0 && !dir &&
                   read_text(fd, SAID_MAX, &text, &none) == 0
               ? json_loadb(text.data, text.n, 0, NULL) : NULL;
}

static void add_said(const struct leaf *f, const json_t *said, const json_t *order,
                     json_t *artifacts)
{
    char bucket[128];

    snprintf(bucket, sizeof bucket, "artifacts-%s", f->run->project);
    steps_ir_artifacts(&(struct steps_ir){ .project = f->run->project, .run = f->run->id,
                                           .node = f->node->id, .bucket = bucket },
                       order, said, artifacts);
}

int step_outputs(struct server *s, const struct leaf *f, const json_t *order, json_t **out,
                 struct err *err)
{
    const json_t *wanted = json_object_get(order, "outputs");
    bool typed = json_object_get(json_object_get(order, "step"), "executor") != NULL;
    OWN_JSON json_t *parameters = json_object(), *artifacts = json_object(), *job = NULL;
    char dir[4096];
    size_t i;
    json_t *item;

    if (json_object_get(order, "resource"))
        return resource_outputs(s, f, order, out, err);
    if (jobs_dir(s, f->run->project, f->job, dir, sizeof dir, err) < 0 ||
        jobs_get(s, f->run->project, f->job, &job, err) < 0)
        return -(int)err->code;
    const struct step_place at = { dir, s->data_dir, f->run->project,
                                   json_object_get(json_object_get(job, "spec"), "step") };
    OWN_JSON json_t *said = typed ? read_said(&at) : NULL;
    json_array_foreach(json_object_get(wanted, "parameters"), i, item)
        if (json_object_get(item, "path") && !steps_ir_said(said, item, parameters) &&
            parameter_of(f, &at, item, typed, parameters, err) < 0)
            return -(int)err->code;
    json_array_foreach(json_object_get(wanted, "artifacts"), i, item)
        if (json_object_get(item, "path") && artifact_of(s, f, &at, item, artifacts, err) < 0)
            return -(int)err->code;
    if (typed)
        add_said(f, said, order, artifacts);
    *out = json_pack("{s:O, s:O}", "parameters", parameters, "artifacts", artifacts);
    if (*out && f->run->wants_result)
        json_object_set_new(*out, "result", result_of(dir));
    return *out ? 0 : err_set(err, ERR_NOMEM, "no memory for outputs");
}

/* ------------------------------------------------------------ how a leaf ended */

/* kfp 1.x: an artifact of this name holds numbers to be shown with the run. */
static json_t *metrics_of(struct server *s, const struct leaf *f, const json_t *outputs)
{
    const json_t *art = json_object_get(json_object_get(outputs, "artifacts"),
                                        "mlpipeline-metrics");
    const char *uri = text_of(art, "uri");
    const char *slash = *uri ? strchr(uri + 5, '/') : NULL;
    OWN_JSON json_t *list = json_array();
    OWN_BUF text = BUF_INIT;
    OWN_FD int fd = -1;
    struct err none = { 0 };
    char bucket[128];
    int64_t size;

    if (!slash || json_is_true(json_object_get(art, "dir")))
        return NULL;
    snprintf(bucket, sizeof bucket, "%.*s", (int)(slash - uri - 5), uri + 5);
    if (objects_open(s, f->run->project, bucket, slash + 1, &fd, &size, &none) < 0 ||
        read_text(fd, METRICS_MAX, &text, &none) < 0)
        return NULL;
    OWN_JSON json_t *doc = json_loadb(text.data, text.n, 0, NULL);
    size_t i;
    json_t *m;
    json_array_foreach(json_object_get(doc, "metrics"), i, m) {
        const json_t *value = json_object_get(m, "numberValue");
        const char *format = text_of(m, "format");
        if (json_is_number(value) && *text_of(m, "name"))
            json_array_append_new(list, json_pack("{s:s, s:s, s:f, s:s}", "name",
                                                  text_of(m, "name"), "node", f->node->id, "value",
                                                  json_number_value(value), "format",
                                                  *format ? format : "RAW"));
    }
    return json_array_size(list) ? TAKE(list) : NULL;
}

void leaf_collect(struct server *s, struct leaf *f, const json_t *order)
{
    struct err err = { 0 };
    OWN_JSON json_t *outputs = NULL;
    const char *phase = f->good ? "Succeeded" : f->lost ? "Error" : "Failed";
    char message[600] = "";

    if (!f->cancelled && step_outputs(s, f, order, &outputs, &err) < 0 && f->good) {
        phase = f->leave ? "Failed" : "Error";
        snprintf(message, sizeof message, "%s", f->leave ? "terminated" : err.text);
    } else if (!f->good) {
        snprintf(message, sizeof message, "%s", f->reason);
    }
    f->body = json_pack("{s:s, s:i, s:s, s:s*, s:i, s:s, s:f, s:f, s:O*, s:b}", "node", f->name,
                        "attempt", f->attempt, "phase", phase, "message",
                        *message ? message : NULL, "code",
                        f->code ? f->code : f->signal ? 128 + f->signal : 0, "job", f->job,
                        "started", f->started, "ended", f->ended, "outputs", outputs, "transient",
                        f->lost);
    bool good = f->good && !strcmp(phase, "Succeeded");
    if (f->cache && good)
        json_object_set(f->cache, "outputs", outputs);
    if (f->cache && f->body)
        json_object_set_new(f->body, "cache", json_pack("{s:O*, s:O*}", "key",
                                                        json_object_get(f->cache, "key"), "why",
                                                        json_object_get(f->cache, "why")));
    if (f->cache && (!good || !json_object_get(f->cache, "key"))) {
        json_decref(f->cache);
        f->cache = NULL;
    }
    if (good)
        f->metrics = metrics_of(s, f, outputs);
}
