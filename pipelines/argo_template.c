/* pipelines/argo_template.c - a template: inputs, outputs, how it is retried, and what it is */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "pipelines/argo_int.h"

#define KFP "pipelines.kubeflow.org/"

/* ------------------------------------------------------------------ parameters */

int argo_key_ref(struct argo *c, const struct value *ref, json_t **out)
{
    const char *name, *key;
    bool optional = false;

    if (argo_check_map(c, ref, ARGO_KEY_REF) < 0 || argo_word(c, ref, "name", &name) < 0 ||
        argo_word(c, ref, "key", &key) < 0 || argo_bool(c, ref, "optional", &optional) < 0)
        return -(int)c->err->code;
    json_t *json = json_object();
    if (argo_put_value(c, json, "name", value_find(ref, "name")) < 0 ||
        argo_put_value(c, json, "key", value_find(ref, "key")) < 0) {
        json_decref(json);
        return -(int)c->err->code;
    }
    if (optional)
        argo_put(c, json, "optional", json_true());
    *out = json;
    return 0;
}

static int put_config(struct argo *c, json_t *p, const struct value *from)
{
    const struct value *ref = argo_get(from, "configMapKeyRef");
    json_t *config;

    if (!ref)
        return 0;
    if (argo_key_ref(c, ref, &config) < 0)
        return -(int)c->err->code;
    argo_put(c, p, "config", config);
    return 0;
}

static int put_enum(struct argo *c, json_t *p, const struct value *v)
{
    const struct value *words = argo_get(v, "enum");
    json_t *list = words ? json_array() : NULL;

    if (!words)
        return 0;
    argo_put(c, p, "enum", list);
    if (words->kind != VALUE_LIST || !words->child)
        return argo_refuse(c, words, "must be a list of the values that may be chosen");
    for (const struct value *w = words->child; w; w = w->next) {
        OWN_MEM char *text = argo_text(w);
        argo_put_item(c, list, text ? json_string(text) : NULL);
    }
    return 0;
}

/* What Argo calls `value` of an input is what it has when no argument is given. */
static int put_input(struct argo *c, json_t *list, const struct value *v)
{
    const char *name;

    if (argo_check_map(c, v, ARGO_PARAMETER) < 0 || argo_name(c, v, true, &name) < 0)
        return -(int)c->err->code;
    json_t *p = json_pack("{s:s}", "name", name);
    argo_put_item(c, list, p);
    const struct value *from = argo_get(v, "valueFrom"), *given = value_find(v, "value");
    if (!given)
        given = value_find(v, "default");
    if (given && value_is_null(given))
        given = NULL;
    if (argo_put_value(c, p, "default", given) < 0 || put_enum(c, p, v) < 0)
        return -(int)c->err->code;
    if (!from)
        return 0;
    static const char *const outs[] = { "path", "jsonPath", "parameter", "expression" };
    for (int i = 0; i < 4; i++)
        if (argo_get(from, outs[i]))
            return argo_refuse(c, argo_get(from, outs[i]), "is for outputs; an input has a "
                               "value, a default or a configMapKeyRef");
    if (argo_check_map(c, from, ARGO_VALUE_FROM) < 0 || put_config(c, p, from) < 0)
        return -(int)c->err->code;
    return argo_put_value(c, p, "default", value_find(from, "default"));
}

static int put_output(struct argo *c, json_t *list, const struct value *v)
{
    const char *name;

    if (argo_check_map(c, v, ARGO_PARAMETER) < 0 || argo_name(c, v, true, &name) < 0)
        return -(int)c->err->code;
    json_t *p = json_pack("{s:s}", "name", name);
    argo_put_item(c, list, p);
    if (argo_put_text(c, p, "global", argo_get(v, "globalName")) < 0 ||
        argo_put_value(c, p, "value", value_find(v, "value")) < 0)
        return -(int)c->err->code;
    const struct value *from = argo_get(v, "valueFrom"), *x;
    if (!from && value_find(v, "value"))
        return 0;
    if (!from)
        return argo_refuse(c, v, "needs valueFrom: where the value is taken from");
    if (argo_check_map(c, from, ARGO_VALUE_FROM) < 0)
        return -(int)c->err->code;
    if ((x = argo_get(from, "path")) && argo_path(c, x, "an output") < 0)
        return -(int)c->err->code;
    if ((x = argo_get(from, "configMapKeyRef")))
        return argo_refuse(c, x, "is for inputs; an output is made by the template");
    if ((x = argo_get(from, "expression")))
        argo_put(c, p, "value", argo_expression(c, x));
    if (argo_put_value(c, p, "path", argo_get(from, "path")) < 0 ||
        argo_put_value(c, p, "json_path", argo_get(from, "jsonPath")) < 0 ||
        argo_put_value(c, p, "value", argo_get(from, "parameter")) < 0 ||
        argo_put_value(c, p, "default", value_find(from, "default")) < 0)
        return -(int)c->err->code;
    if (argo_get(from, "supplied"))
        argo_put(c, p, "supplied", json_true());
    if (json_object_size(p) < 2)
        return argo_refuse(c, from, "says not where the value is taken from: path, jsonPath, "
                           "parameter, expression or supplied");
    return 0;
}

/* ------------------------------------------------------------------ artifacts */

/* {{tasks.T.outputs.artifacts.NAME}} and {{inputs.artifacts.NAME}}, taken apart; others stay. */
static json_t *from_tag(const char *text)
{
    char task[160], name[160], rest, kind[8];

    if (sscanf(text, " {{ %7[a-z].%159[-a-zA-Z0-9_].outputs.artifacts.%159[-a-zA-Z0-9_] }} %c",
               kind, task, name, &rest) == 3 &&
        (strcmp(kind, "tasks") == 0 || strcmp(kind, "steps") == 0))
        return json_pack("{s:s, s:s}", "task", task, "output", name);
    if (sscanf(text, " {{ inputs.artifacts.%159[-a-zA-Z0-9_] }} %c", name, &rest) == 1)
        return json_pack("{s:s}", "input", name);
    return json_pack("{s:s}", "text", text);
}

static int source_uri(struct argo *c, const struct value *at, json_t **out)
{
    const char *url, *key;

    if (at->kind != VALUE_MAP)
        return argo_refuse(c, at, "must be a map");
    if (argo_word(c, at, "bucket", &url) < 0 || argo_word(c, at, "key", &key) < 0)
        return -(int)c->err->code;
    OWN_MEM char *uri = NULL;
    if (asprintf(&uri, "gs://%s/%s", url, key) < 0) {
        uri = NULL;
        c->failed = true;
        *out = json_object();
    } else if (argo_has_tags(uri)) {
        argo_note(c, ARGO_TEXT, at, url);
        argo_note(c, ARGO_TEXT, at, key);
        *out = json_pack("{s:{s:s}}", "uri", "text", uri);
    } else {
        *out = json_pack("{s:s}", "uri", uri);
    }
    return 0;
}

int argo_artifact_source(struct argo *c, const struct value *a, json_t **out)
{
    const struct value *v;
    int rc = 0;

    *out = NULL;
    if ((v = argo_get(a, "s3")))
        return argo_refuse(c, v, "not supported: artifacts of this kind are not read or written; "
                           "use gcs or raw to read");
    if ((v = argo_get(a, "http")))
        return argo_refuse(c, v, "not supported: the server fetches nothing; let the program itself "
                           "do it, or put it into a bucket (muster storage cp) and use gcs");
    if ((v = argo_get(a, "from"))) {
        if (v->kind != VALUE_SCALAR || !argo_has_tags(v->text))
            return argo_refuse(c, v, "must be a tag such as {{tasks.a.outputs.artifacts.b}}");
        argo_note(c, ARGO_FROM, v, v->text);
        *out = from_tag(v->text);
    } else if ((v = argo_get(a, "fromExpression"))) {
        *out = argo_expression(c, v);
    } else if ((v = argo_get(a, "raw"))) {
        *out = json_object();
        const struct value *data = value_find(v, "data");
        rc = data ? argo_put_value(c, *out, "raw", data) : argo_refuse(c, v, "needs \"data\"");
    } else if ((v = argo_get(a, "gcs"))) {
        rc = source_uri(c, v, out);
    }
    if (rc < 0) {
        json_decref(*out);
        *out = NULL;
    }
    return rc;
}

static int put_archive(struct argo *c, json_t *a, const struct value *v)
{
    const struct value *archive = argo_get(v, "archive"), *gc = argo_get(v, "artifactGC");

    if (archive && value_find(archive, "none"))
        argo_put(c, a, "archive", json_false());
    const struct value *strategy = gc ? argo_get(gc, "strategy") : NULL;
    if (strategy && strategy->kind == VALUE_SCALAR &&
        strcmp(strategy->text, "OnWorkflowCompletion") == 0)
        return argo_refuse(c, strategy, "not supported: artifacts stay as long as their run");
    return 0;
}

int argo_refuse_mode(struct argo *c, const struct value *a)
{
    const struct value *mode = argo_get(a, "mode");
    return mode ? argo_refuse(c, mode, "is for an input of a template: who reads a file says which "
                              "rights it has there") : 0;
}

/* The rights of a file: 0755, which YAML 1.1 takes as octal, or the same number as others write it. */
static int put_mode(struct argo *c, json_t *a, const struct value *v)
{
    const struct value *mode = argo_get(v, "mode");
    char *end = NULL;

    if (!mode)
        return 0;
    const char *text = mode->kind == VALUE_SCALAR ? mode->text : "";
    bool octal = text[0] == '0' && text[1] == 'o';
    unsigned long n = strtoul(text + (octal ? 2 : 0), &end, octal || text[0] == '0' ? 8 : 10);
    if (!*text || text[0] == '-' || *end || n < 1 || n > 0777)
        return argo_refuse(c, mode, "must be the rights of a file, such as 0755");
    argo_put(c, a, "mode", json_integer((json_int_t)n));
    return 0;
}

static int put_artifact(struct argo *c, json_t *list, const struct value *v, bool output)
{
    const struct value *path = argo_get(v, "path"), *s3 = argo_get(v, "s3");
    const char *name;
    bool optional = false;
    json_t *source = NULL;

    if (argo_check_map(c, v, ARGO_ARTIFACT) < 0 || argo_name(c, v, true, &name) < 0 ||
        argo_bool(c, v, "optional", &optional) < 0 ||
        (path && argo_path(c, path, "an artifact") < 0))
        return -(int)c->err->code;
    json_t *a = json_pack("{s:s}", "name", name);
    argo_put_item(c, list, a);
    if ((output ? argo_refuse_mode(c, v) : put_mode(c, a, v)) < 0 ||
        argo_put_value(c, a, "path", path) < 0 || put_archive(c, a, v) < 0 ||
        argo_put_text(c, a, "global", argo_get(v, "globalName")) < 0)
        return -(int)c->err->code;
    if (optional)
        argo_put(c, a, "optional", json_true());
    /* Where the server keeps an output is its own business, unless a store is named. */
    if (output && s3 && s3->n == 1 && argo_get(s3, "key"))
        return 0;
    if (output && (argo_get(v, "http") || argo_get(v, "gcs")))
        return argo_refuse(c, argo_get(v, argo_get(v, "http") ? "http" : "gcs"), "not supported: "
                           "outputs are kept by the server; let the program itself upload it");
    if (argo_artifact_source(c, v, &source) < 0)
        return -(int)c->err->code;
    const char *key;
    json_t *value;
    if (output && source)
        argo_put(c, a, "value", source);
    else if (source) {
        json_object_foreach(source, key, value)
            argo_put(c, a, key, json_incref(value));
        json_decref(source);
    }
    if (output && !path && !source)
        return argo_refuse(c, v, "needs a path, from or fromExpression");
    return 0;
}

/* ------------------------------------------------------------------ inputs and outputs */

static int refuse_twins(struct argo *c, const struct value *first)
{
    for (const struct value *v = first; v; v = v->next)
        for (const struct value *w = first; w != v; w = w->next) {
            const struct value *a = value_find(v, "name"), *b = value_find(w, "name");
            if (a && b && a->kind == VALUE_SCALAR && b->kind == VALUE_SCALAR &&
                strcmp(a->text, b->text) == 0)
                return argo_refuse(c, a, "\"%.60s\" is there twice (first in line %d)", a->text,
                                   b->line);
        }
    return 0;
}

static int put_both(struct argo *c, json_t *body, const struct value *t, bool output)
{
    const char *side = output ? "outputs" : "inputs";
    const struct value *map = argo_get(t, side), *v;
    json_t *parameters = json_array(), *artifacts = json_array();

    json_t *both = json_object();
    argo_put(c, body, side, both);
    argo_put(c, both, "parameters", parameters);
    argo_put(c, both, "artifacts", artifacts);
    if (!map)
        return 0;
    if (argo_check_map(c, map, output ? ARGO_OUTPUTS : ARGO_INPUTS) < 0 ||
        argo_list(c, map, "parameters", &v) < 0 || refuse_twins(c, v) < 0)
        return -(int)c->err->code;
    for (; v; v = v->next)
        if ((output ? put_output(c, parameters, v) : put_input(c, parameters, v)) < 0)
            return -(int)c->err->code;
    if (argo_list(c, map, "artifacts", &v) < 0 || refuse_twins(c, v) < 0)
        return -(int)c->err->code;
    for (; v; v = v->next)
        if (put_artifact(c, artifacts, v, output) < 0)
            return -(int)c->err->code;
    return 0;
}

int argo_put_inputs(struct argo *c, json_t *body, const struct value *t)
{
    return put_both(c, body, t, false);
}

int argo_put_outputs(struct argo *c, json_t *body, const struct value *t)
{
    return put_both(c, body, t, true);
}

/* A directory that every machine has: it is no output of a step. */
static bool is_machines(const char *path)
{
    static const char *const dirs[] = {
        "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/media", "/mnt", "/opt", "/proc", "/root",
        "/run", "/sbin", "/srv", "/sys", "/usr", "/usr/bin", "/usr/lib", "/usr/local",
        "/usr/local/bin", "/usr/local/lib", "/usr/sbin", "/usr/share", "/var", "/var/lib",
        "/var/log", "/var/tmp",
    };
    size_t n = strlen(path);

    n -= n > 1 && path[n - 1] == '/';
    for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++)
        if (strlen(dirs[i]) == n && strncmp(dirs[i], path, n) == 0)
            return true;
    return strncmp(path, "/proc/", 6) == 0 || strncmp(path, "/sys/", 5) == 0;
}

static bool is_mounted(const json_t *body, const char *path)
{
    size_t i;
    json_t *m;

    json_array_foreach(json_object_get(json_object_get(body, "step"), "mounts"), i, m) {
        const char *at = json_string_value(json_object_get(m, "path"));
        size_t n = at ? strlen(at) : 0;
        if (!at || (strncmp(path, at, n) == 0 && (!path[n] || path[n] == '/' || at[n - 1] == '/')))
            return true;        /* one that a tag names may be there */
    }
    return false;
}

/* When the step and its mounts are read. */
static int check_outputs(struct argo *c, const json_t *body, const struct value *t)
{
    const struct value *out = argo_get(t, "outputs");
    const struct value *lists[] = { argo_get(out, "parameters"), argo_get(out, "artifacts") };

    for (int i = 0; i < 2 && json_object_get(body, "step"); i++)
        for (const struct value *v = lists[i] ? lists[i]->child : NULL; v; v = v->next) {
            const struct value *path = argo_get(i ? v : argo_get(v, "valueFrom"), "path");
            if (path && path->kind == VALUE_SCALAR && !argo_has_tags(path->text) &&
                is_machines(path->text) && !is_mounted(body, path->text))
                return argo_refuse(c, path, "\"%.100s\" is the machine's own: a step leaves its "
                                   "outputs below /tmp, in a volume, or where nothing is",
                                   path->text);
        }
    return 0;
}

/* ------------------------------------------------------------------ retries, deadlines, labels */

static int put_backoff(struct argo *c, json_t *retry, const struct value *b)
{
    const struct value *v;
    long long factor;

    if (!b)
        return 0;
    if (argo_check_map(c, b, ARGO_BACKOFF) < 0 ||
        argo_put_seconds(c, retry, "backoff_s", argo_get(b, "duration")) < 0 ||
        argo_put_seconds(c, retry, "max_s", argo_get(b, "maxDuration")) < 0 ||
        argo_put_seconds(c, retry, "cap_s", argo_get(b, "cap")) < 0)
        return -(int)c->err->code;
    if (!(v = argo_get(b, "factor")))
        return 0;
    if (argo_whole(c, v, &factor) < 0)
        return -(int)c->err->code;
    argo_put(c, retry, "factor", json_integer(factor));
    return 0;
}

static int put_retry(struct argo *c, json_t *body, const struct value *r)
{
    static const char *const policies[] = { "Always", "OnFailure", "OnError", "OnTransientError" };
    const struct value *v;
    long long limit = -1;

    if (!r)
        return 0;
    if (argo_check_map(c, r, ARGO_RETRY) < 0)
        return -(int)c->err->code;
    json_t *retry = json_pack("{s:i, s:s, s:i, s:i, s:i}", "limit", -1, "policy",
                              argo_get(r, "expression") ? "Always" : "OnFailure", "backoff_s", 0,
                              "factor", 1, "max_s", 0);
    argo_put(c, body, "retry", retry);
    if ((v = argo_get(r, "limit"))) {
        if (argo_whole(c, v, &limit) < 0)
            return -(int)c->err->code;
        argo_put(c, retry, "limit", json_integer(limit));
    }
    if ((v = argo_get(r, "retryPolicy"))) {
        int i = 0;
        while (i < 4 && strcmp(v->text ? v->text : "", policies[i]) != 0)
            i++;
        if (i == 4)
            return argo_refuse(c, v, "must be Always, OnFailure, OnError or OnTransientError");
        argo_put(c, retry, "policy", json_string(policies[i]));
    }
    if ((v = argo_get(r, "expression"))) {
        c->retry = true;
        argo_note(c, ARGO_EXPRESSION, v, v->text ? v->text : "");
        c->retry = false;
        if (argo_put_text(c, retry, "expression", v) < 0)
            return -(int)c->err->code;
    }
    return put_backoff(c, retry, argo_get(r, "backoff"));
}

/* What kfp says of a step in labels and annotations. */
static int put_kfp(struct argo *c, json_t *body, const struct value *labels,
                   const struct value *annotations)
{
    const struct value *enable = argo_get(labels, KFP "enable_caching");
    const struct value *stale = argo_get(annotations, KFP "max_cache_staleness");
    const struct value *display = argo_get(annotations, KFP "task_display_name");
    double seconds;

    if (!display)
        display = argo_get(annotations, "workflows.argoproj.io/display-name");
    if (enable || stale) {
        json_t *cache = json_object();
        argo_put(c, body, "cache", cache);
        bool off = enable && enable->kind == VALUE_SCALAR && strcmp(enable->text, "false") == 0;
        argo_put(c, cache, "enabled", json_boolean(!off));
        if (stale && (stale->kind != VALUE_SCALAR || !argo_iso_duration(stale->text, &seconds)))
            return argo_refuse(c, stale, "is no duration: write P0D, P30D or PT1H");
        if (stale)
            argo_put(c, cache, "staleness_s", json_real(seconds));
    }
    return argo_put_value(c, body, "display", display);
}

static int put_labels(struct argo *c, json_t *body, const struct value *t)
{
    const struct value *m = argo_get(t, "metadata"), *labels, *annotations;

    if (argo_put_labels(c, body, "annotations", argo_get(t, "annotations")) < 0)
        return -(int)c->err->code;
    if (!m)
        return put_kfp(c, body, NULL, argo_get(t, "annotations"));
    if (argo_check_map(c, m, ARGO_TEMPLATE_METADATA) < 0)
        return -(int)c->err->code;
    labels = argo_get(m, "labels");
    annotations = argo_get(m, "annotations");
    if (argo_put_labels(c, body, "labels", labels) < 0 ||
        argo_put_labels(c, body, "annotations", annotations) < 0)
        return -(int)c->err->code;
    return put_kfp(c, body, labels, annotations);
}

static int put_limits(struct argo *c, json_t *body, const struct value *t)
{
    const struct value *timeout = argo_get(t, "timeout"), *v;
    long long n;
    bool fast = false;

    if (!timeout)
        timeout = argo_get(t, "activeDeadlineSeconds");
    if (argo_put_seconds(c, body, "deadline_s", timeout) < 0)
        return -(int)c->err->code;
    if (json_is_object(json_object_get(body, "deadline_s")) &&
        (argo_get(t, "dag") || argo_get(t, "steps")))
        return argo_refuse(c, timeout, "not supported: of dag and steps the timeout is a number");
    if ((v = argo_get(t, "parallelism"))) {
        if (argo_whole(c, v, &n) < 0)
            return -(int)c->err->code;
        if (n < 0)
            return argo_refuse(c, v, "must be 0 (no limit) or more");
        argo_put(c, body, "parallelism", json_integer(n));
    }
    if (argo_bool(c, t, "failFast", &fast) < 0)
        return -(int)c->err->code;
    if (fast)
        argo_put(c, body, "fail_fast", json_true());
    return put_retry(c, body, argo_get(t, "retryStrategy"));
}

/* ------------------------------------------------------------------ resource and suspend */

static const char *const kinds[] = {
    "PersistentVolumeClaim", "ConfigMap", "Secret", "TrainingJob", NULL,
};

/* Before tags are filled a manifest may be no YAML yet. Its first key `kind`, at the beginning of a
 * line or within the braces of one, is that of the resource. */
static int check_manifest(struct argo *c, const struct value *v)
{
    char kind[80] = "";

    for (const char *p = v->text; p && (p = strstr(p, "kind")) && !*kind; p += strlen("kind")) {
        const char *after = p + strlen("kind");
        if (p > v->text && !strchr("\n{,\"' ", p[-1]))
            continue;
        after += strspn(after, "\"'");
        if (*after == ':')
            sscanf(after + 1 + strspn(after + 1, " \"'"), "%79[A-Za-z]", kind);
    }
    if (!*kind && argo_has_tags(v->text))
        return 0;                               /* it comes from a tag */
    for (int i = 0; kinds[i]; i++)
        if (strcmp(kinds[i], kind) == 0)
            return 0;
    return argo_refuse(c, v, "not supported: a resource of %s%s; the kinds here are "
                       "PersistentVolumeClaim, ConfigMap, Secret and TrainingJob",
                       *kind ? "kind " : "no kind", kind);
}

static int put_resource(struct argo *c, json_t *body, const struct value *t, const struct value *v)
{
    static const char *const actions[] = {
        "create", "get", "patch", "delete", "apply", "replace", NULL,
    };
    const struct value *manifest = argo_get(v, "manifest"), *merge = argo_get(v, "mergeStrategy");
    const char *action;
    int i = 0;

    (void)t;
    if (argo_check_map(c, v, ARGO_RESOURCE) < 0 || argo_word(c, v, "action", &action) < 0)
        return -(int)c->err->code;
    while (actions[i] && strcmp(actions[i], action) != 0)
        i++;
    if (!actions[i])
        return argo_refuse(c, argo_get(v, "action"), "must be create, get, patch, delete, apply or "
                           "replace");
    if (!manifest || manifest->kind != VALUE_SCALAR)
        return argo_refuse(c, manifest ? manifest : v, "needs \"manifest\", a text");
    if (merge && merge->kind == VALUE_SCALAR && strcmp(merge->text, "json") == 0)
        return argo_refuse(c, merge, "not supported: write a patch as the part that changes");
    if (check_manifest(c, manifest) < 0)
        return -(int)c->err->code;
    json_t *r = json_pack("{s:s}", "action", action);
    argo_put(c, body, "resource", r);
    if (argo_put_value(c, r, "manifest", manifest) < 0 ||
        argo_put_text(c, r, "success", argo_get(v, "successCondition")) < 0 ||
        argo_put_text(c, r, "failure", argo_get(v, "failureCondition")) < 0)
        return -(int)c->err->code;
    return 0;
}

static int put_suspend(struct argo *c, json_t *body, const struct value *t, const struct value *v)
{
    json_t *s = json_object();

    (void)t;
    argo_put(c, body, "suspend", s);
    if (v->kind != VALUE_MAP)
        return v->kind == VALUE_SCALAR && !*v->text ? 0 : argo_refuse(c, v, "must be a map");
    if (argo_check_map(c, v, ARGO_SUSPEND) < 0)
        return -(int)c->err->code;
    return argo_put_seconds(c, s, "seconds", argo_get(v, "duration"));
}

/* ------------------------------------------------------------------ the template */

static int put_container(struct argo *c, json_t *body, const struct value *t,
                         const struct value *form)
{
    return argo_step(c, body, t, form, false);
}

static int put_script(struct argo *c, json_t *body, const struct value *t, const struct value *form)
{
    return argo_step(c, body, t, form, true);
}

static int put_body(struct argo *c, json_t *body, const struct value *t)
{
    static const struct {
        const char *key;
        int (*put)(struct argo *, json_t *, const struct value *, const struct value *);
    } forms[] = {
        { "container", put_container }, { "script", put_script },     { "dag", argo_dag },
        { "steps", argo_steps },        { "resource", put_resource }, { "suspend", put_suspend },
    };
    const struct value *form = NULL;
    size_t which = 0;

    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        const struct value *v = value_find(t, forms[i].key);
        if (!v || (value_is_null(v) && forms[i].put != put_suspend))    /* "suspend:" says it all */
            continue;
        if (form)
            return argo_refuse(c, v, "a template is one thing, and this one has \"%s\" already",
                               form->key);
        form = v;
        which = i;
    }
    if (!form)
        return argo_refuse(c, t, "needs one of container, script, dag, steps, resource, suspend");
    return forms[which].put(c, body, t, form);
}

int argo_template(struct argo *c, struct value *t, const char *name)
{
    if (argo_fill(c, t) < 0 || argo_check_map(c, t, ARGO_TEMPLATE) < 0)
        return -(int)c->err->code;
    json_t *body = json_pack("{s:i}", "line", t->line), *task = c->task;
    struct argo_scope *scope = calloc(1, sizeof *scope), *outer = c->scope;

    argo_put(c, c->templates, name, body);
    if (!scope)
        return err_set(c->err, ERR_NOMEM, "%s: no memory for the pipeline", c->name);
    scope->template = body;
    scope->name = json_object_iter_key(json_object_iter_at(c->templates, name));
    if (c->last)
        c->last->next = scope;
    else
        c->scopes = scope;
    c->last = c->scope = scope;
    c->task = NULL;
    int rc = argo_put_inputs(c, body, t);
    if (rc == 0)
        rc = put_limits(c, body, t);
    if (rc == 0)
        rc = put_labels(c, body, t);
    if (rc == 0)
        rc = put_body(c, body, t);
    if (rc == 0)
        rc = argo_put_outputs(c, body, t);
    if (rc == 0)
        rc = check_outputs(c, body, t);
    c->scope = outer;
    c->task = task;
    return rc;
}
