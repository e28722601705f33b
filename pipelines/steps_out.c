/* pipelines/steps_out.c - what a step left: parameters from files, artifacts as objects
 *
 * DESIGN. Everything below a job's directory was written by a program that is not trusted: it is
 * opened by descriptor, and no link is followed out of the output that it is in. A directory becomes
 * a tar of its own making (names in order, no times, no owners), so that the same content has the
 * same digest.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/buf.h"
#include "drivers/step.h"
#include "pipelines/runs_int.h"
#include "server/jobs.h"
#include "server/logs.h"
#include "server/objects.h"
#include "server/server.h"

enum { PARAMETER_MAX = 1 << 20, RESULT_MAX = 256 << 10, METRICS_MAX = 1 << 20, DEPTH_MAX = 64,
       CHUNK = 256 << 10 };

static const char *text_of(const json_t *doc, const char *key)
{
    const char *s = json_string_value(json_object_get(doc, key));

    return s ? s : "";
}

/* ------------------------------------------------------------ tar */

enum { BLOCK = 512, LONG_NAME = 100 };

static int put_block(struct content *c, const char *name, char type, unsigned mode, uint64_t size,
                     struct err *err)
{
    char b[BLOCK] = { 0 };
    unsigned sum = 8 * ' ';

    memcpy(b, name, strnlen(name, LONG_NAME));
    snprintf(b + 100, 8, "%07o", mode & 0777);
    snprintf(b + 108, 8, "%07o", 0);
    snprintf(b + 116, 8, "%07o", 0);
    if (size < UINT64_C(1) << 33) {
        snprintf(b + 124, 12, "%011llo", (unsigned long long)size);
    } else {                    /* more than 8 GB: in binary, as GNU tar writes it */
        b[124] = (char)0x80;
        for (int i = 0; i < 8; i++)
            b[135 - i] = (char)(size >> (8 * i));
    }
    snprintf(b + 136, 12, "%011o", 0);
    b[156] = type;
    memcpy(b + 257, "ustar\00000", 8);
    for (int i = 0; i < BLOCK; i++)
        if (i < 148 || i >= 156)
            sum += (unsigned char)b[i];
    snprintf(b + 148, 8, "%06o", sum);
    b[155] = ' ';
    return content_add(c, b, BLOCK, err);
}

static int put_padding(struct content *c, uint64_t n, struct err *err)
{
    static const char zeros[BLOCK];

    return n % BLOCK ? content_add(c, zeros, BLOCK - n % BLOCK, err) : 0;
}

/* The head of a member; a long name goes before it, as GNU tar does. */
static int put_head(struct content *c, const char *name, char type, unsigned mode, uint64_t size,
                    struct err *err)
{
    size_t n = strlen(name);

    if (n > LONG_NAME && (put_block(c, "././@LongLink", 'L', 0644, n + 1, err) < 0 ||
                          content_add(c, name, n + 1, err) < 0 ||
                          put_padding(c, n + 1, err) < 0))
        return -(int)err->code;
    return put_block(c, name, type, mode, size, err);
}

/* The bytes of a file that may grow or shrink meanwhile: exactly `size` of them when it is >= 0. */
static int put_bytes(struct content *c, int fd, int64_t size, struct err *err)
{
    OWN_MEM char *chunk = malloc(CHUNK);
    int64_t done = 0;

    if (!chunk)
        return err_set(err, ERR_NOMEM, "no memory for an artifact");
    while (size < 0 || done < size) {
        size_t want = size < 0 || size - done > CHUNK ? CHUNK : (size_t)(size - done);
        ssize_t n = read(fd, chunk, want);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(err, ERR_IO, "cannot read an artifact: %s", strerror(errno));
        if (n == 0)
            break;
        if (content_add(c, chunk, (size_t)n, err) < 0)
            return -(int)err->code;
        done += n;
    }
    if (size >= 0 && done < size)
        return err_set(err, ERR_IO, "an artifact became shorter while it was read");
    return 0;
}

struct walk {
    struct content *content;
    int root;
};

static int put_dir(const struct walk *w, const char *path, int depth, struct err *err);

static int put_member(const struct walk *w, const char *path, int depth, struct err *err)
{
    /* A link that stays inside counts as what it leads to. */
    struct open_how how = { .flags = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC,
                            .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS };
    OWN_FD int fd = (int)syscall(SYS_openat2, w->root, path, &how, sizeof how);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0 || (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)))
        return err_set(err, ERR_DENIED, "%.200s is a link that leads out of the artifact, a pipe or a "
                       "device", path);
    if (S_ISDIR(st.st_mode))
        return put_dir(w, path, depth + 1, err);
    if (put_head(w->content, path, '0', st.st_mode, (uint64_t)st.st_size, err) < 0 ||
        put_bytes(w->content, fd, st.st_size, err) < 0)
        return -(int)err->code;
    return put_padding(w->content, (uint64_t)st.st_size, err);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

struct names {
    char **at;
    size_t n;
};

static void names_done(struct names *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->at[i]);
    free(l->at);
}

static int read_names(int dir, struct names *out, struct err *err)
{
    DIR *d = fdopendir(dir);

    if (!d) {
        close(dir);
        return err_set(err, ERR_IO, "cannot read a directory: %s", strerror(errno));
    }
    for (const struct dirent *e; (e = readdir(d));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        char **more = out->n & (out->n - 1) ? out->at
            : realloc(out->at, (out->n ? 2 * out->n : 1) * sizeof *more);
        char *name = more ? strdup(e->d_name) : NULL;
        if (more)
            out->at = more;
        if (!name) {
            closedir(d);
            return err_set(err, ERR_NOMEM, "no memory for an artifact");
        }
        out->at[out->n++] = name;
    }
    closedir(d);
    if (out->n)
        qsort(out->at, out->n, sizeof *out->at, by_name);
    return 0;
}

/* `path` is relative to the root; "": the root itself. */
static int put_dir(const struct walk *w, const char *path, int depth, struct err *err)
{
    __attribute__((cleanup(names_done))) struct names names = { NULL, 0 };
    struct open_how how = { .flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC,
                            .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS };
    OWN_BUF name = BUF_INIT;

    if (depth > DEPTH_MAX)
        return err_set(err, ERR_DENIED, "%.200s: an artifact has at most %d levels of directories",
                       path, DEPTH_MAX);
    int fd = (int)syscall(SYS_openat2, w->root, *path ? path : ".", &how, sizeof how);
    if (fd < 0)
        return err_set(err, ERR_IO, "cannot open %.200s: %s", path, strerror(errno));
    if (read_names(fd, &names, err) < 0)
        return -(int)err->code;
    if (*path) {
        buf_printf(&name, "%s/", path);
        if (buf_ok(&name, err) < 0 || put_head(w->content, name.data, '5', 0755, 0, err) < 0)
            return -(int)err->code;
    }
    for (size_t i = 0; i < names.n; i++) {
        buf_clear(&name);
        buf_printf(&name, *path ? "%s/%s" : "%s%s", path, names.at[i]);
        if (buf_ok(&name, err) < 0 || put_member(w, name.data, depth, err) < 0)
            return -(int)err->code;
    }
    return 0;
}

static int put_tar(struct content *c, int dir, struct err *err)
{
    static const char end[2 * BLOCK];

    if (put_dir(&(struct walk){ c, dir }, "", 0, err) < 0)
        return -(int)err->code;
    return content_add(c, end, sizeof end, err);
}

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

static int keep_artifact(struct server *s, const struct leaf *f, const char *bucket,
                         const json_t *output, int fd, bool dir, json_t **out, struct err *err)
{
    OWN(content) c = content_new(s);
    const char *name = text_of(output, "name");
    struct object o = { 0 };
    char key[OBJECTS_NAME_MAX + 1];

    if (!c)
        return err_set(err, ERR_NOMEM, "no memory for an artifact");
    if ((dir ? put_tar(c, fd, err) : put_bytes(c, fd, -1, err)) < 0)
        return -(int)err->code;
    snprintf(key, sizeof key, "%s/%s/%s", f->run->id, f->node->id, name);
    struct objects_put put = { .project = f->run->project, .bucket = bucket, .name = key,
                               .type = dir ? "application/x-tar" : NULL,
                               .when = OBJECTS_WHENEVER };
    if (content_put(c, &put, &o, err) < 0)
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
    json_t *art;
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
                        json_t *out, struct err *err)
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
    if (text.n && text.data[text.n - 1] == '\n')        /* one, for what echo writes */
        text.n--;
    json_t *value = json_stringn(text.data ? text.data : "", text.n);
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

int step_outputs(struct server *s, const struct leaf *f, const json_t *order, json_t **out,
                 struct err *err)
{
    const json_t *wanted = json_object_get(order, "outputs");
    OWN_JSON json_t *parameters = json_object(), *artifacts = json_object(), *job = NULL;
    char dir[4096];
    size_t i;
    json_t *item;

    if (jobs_dir(s, f->run->project, f->job, dir, sizeof dir, err) < 0 ||
        jobs_get(s, f->run->project, f->job, &job, err) < 0)
        return -(int)err->code;
    const struct step_place at = { dir, s->data_dir, f->run->project,
                                   json_object_get(json_object_get(job, "spec"), "step") };
    json_array_foreach(json_object_get(wanted, "parameters"), i, item)
        if (json_object_get(item, "path") && parameter_of(f, &at, item, parameters, err) < 0)
            return -(int)err->code;
    json_array_foreach(json_object_get(wanted, "artifacts"), i, item)
        if (json_object_get(item, "path") && artifact_of(s, f, &at, item, artifacts, err) < 0)
            return -(int)err->code;
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
        phase = "Error";
        snprintf(message, sizeof message, "%s", err.text);
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
