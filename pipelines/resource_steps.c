/* pipelines/resource_steps.c - a `resource` template as a step: manifest, conditions, outputs */
#include <string.h>

#include "base/json.h"
#include "pipelines/resources.h"
#include "pipelines/runs_int.h"
#include "spec/json.h"

/* ------------------------------------------------------------ what comes out */

/* {.status.capacity['storage']}, {.items[0].name}; {}: all. NULL: nothing is there. */
static const json_t *path_get(const json_t *object, const char *path)
{
    const char *p = path + (*path == '{');

    p += *p == '$';
    while (object && *p && *p != '}') {
        char name[256];
        size_t n;
        if (*p == '.') {
            n = strcspn(++p, ".[}");
            if (n == 0)
                continue;
            snprintf(name, sizeof name, "%.*s", (int)n, p);
            object = json_object_get(object, name);
            p += n;
        } else if (p[0] == '[' && (p[1] == '\'' || p[1] == '"')) {
            n = strcspn(p + 2, "'\"");
            snprintf(name, sizeof name, "%.*s", (int)n, p + 2);
            object = json_object_get(object, name);
            p += n + 2 + strspn(p + n + 2, "'\"]");
        } else if (*p == '[') {
            object = json_array_get(object, (size_t)strtoul(p + 1, NULL, 10));
            p += strcspn(p, "]");
            p += *p == ']';
        } else {
            return NULL;
        }
    }
    return object;
}

static json_t *as_text(const json_t *v)
{
    if (json_is_string(v))
        return json_incref((json_t *)v);
    OWN_MEM char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
    return text ? json_string(text) : NULL;
}

static int outputs_of(const json_t *order, const json_t *object, json_t **out, struct err *err)
{
    OWN_JSON json_t *parameters = json_object();
    size_t i;
    json_t *o;

    json_array_foreach(json_object_get(json_object_get(order, "outputs"), "parameters"), i, o) {
        const char *path = text_of(o, "json_path");
        if (!json_object_get(o, "json_path"))
            continue;
        const json_t *v = path_get(object, path);
        if (!v && !(v = json_object_get(o, "default")))
            return err_set(err, ERR_MISSING, "output parameter \"%.64s\": there is nothing at "
                           "%.100s", text_of(o, "name"), path);
        json_object_set_new(parameters, text_of(o, "name"), as_text(v));
    }
    *out = json_pack("{s:O, s:{}}", "parameters", parameters, "artifacts");
    return *out ? 0 : err_set(err, ERR_NOMEM, "no memory for outputs");
}

/* "status.phase == Bound, status.x > 0": do all hold? */
static bool holds(const json_t *object, const char *condition)
{
    for (const char *p = condition; *p; p += *p == ',') {
        char path[264], op[3] = "", want[256] = "";
        size_t n = strcspn(p, ",");
        OWN_MEM char *one = strndup(p, n);
        p += n;
        if (!one || sscanf(one, " %255[^ =!<>] %2[=!<>] %255[^\n]", path + 1, op, want) < 3)
            return false;
        path[0] = '.';
        const json_t *v = path_get(object, path);
        OWN_JSON json_t *text = v ? as_text(v) : json_string("");
        const char *have = json_string_value(text);
        double a = strtod(have, NULL), b = strtod(want, NULL);
        bool same = !strcmp(have, want);
        if (!((op[0] == '=' && same) || (op[0] == '!' && !same) || (op[0] == '<' && a < b) ||
              (op[0] == '>' && a > b) || (op[0] != '!' && op[1] == '=' && same)))
            return false;
    }
    return true;
}

/* ------------------------------------------------------------ manifests */

static int read_manifest(const char *text, json_t **out, struct err *err)
{
    const struct yaml_limits limits = { "a manifest", MANIFEST_MAX, 20000 };
    OWN(value) docs = NULL;

    if (yaml_parse_all(text, strlen(text), "manifest", &limits, &docs, err) < 0)
        return -(int)err->code;
    if (docs->n != 1)
        return err_set(err, ERR_INVALID, "manifest: has %d documents; a step takes one", docs->n);
    OWN_JSON json_t *doc = value_json(docs->child);
    if (!json_is_object(doc))
        return err_set(err, ERR_INVALID, "manifest: is no object");
    *out = TAKE(doc);
    return 0;
}

/* Names that begin with generateName end with a number that follows from the node. */
static void name_object(json_t *manifest, const char *by)
{
    json_t *meta = json_object_get(manifest, "metadata");
    const char *prefix = text_of(meta, "generateName"), *dash = strrchr(by, '-');
    char name[256];

    if (*text_of(meta, "name") || !*prefix)
        return;
    snprintf(name, sizeof name, "%.200s%.20s", prefix, dash ? dash + 1 : by);
    json_object_set_new(meta, "name", json_string(name));
}

static int check_conditions(const json_t *resource, const json_t *object, struct err *err)
{
    const char *failure = text_of(resource, "failure"), *success = text_of(resource, "success");

    if (*failure && holds(object, failure))
        return err_set(err, ERR_CONFLICT, "failureCondition holds: %.200s", failure);
    if (*success && !holds(object, success))
        return err_set(err, ERR_CONFLICT, "successCondition does not hold, and nothing here will "
                       "change that: %.200s", success);
    return 0;
}

bool resource_job(const struct live *l, const struct node *n, const json_t *order, json_t **out,
                  int *out_rc, struct err *err)
{
    const json_t *r = json_object_get(order, "resource");
    const char *action = text_of(r, "action");
    OWN_JSON json_t *manifest = NULL;
    struct err none = { 0 };

    if ((strcmp(action, "create") && strcmp(action, "apply")) ||
        read_manifest(text_of(r, "manifest"), &manifest, &none) < 0 ||
        strcmp(text_of(manifest, "kind"), "TrainingJob"))
        return false;
    name_object(manifest, n->id);
    *out_rc = training_job(l, n, manifest, out, err);
    return true;
}

int resource_outputs(struct server *s, const struct leaf *f, const json_t *order, json_t **out,
                     struct err *err)
{
    const json_t *r = json_object_get(order, "resource");
    OWN_JSON json_t *manifest = NULL, *there = NULL;

    if (read_manifest(text_of(r, "manifest"), &manifest, err) < 0)
        return -(int)err->code;
    name_object(manifest, f->node->id);
    if (training_job_find(s, f->run->project,
                          text_of(json_object_get(manifest, "metadata"), "name"), &there, err) < 0)
        return -(int)err->code;
    json_object_set(manifest, "status", json_object_get(there, "status"));
    if (check_conditions(r, manifest, err) < 0)
        return -(int)err->code;
    return outputs_of(order, manifest, out, err);
}

/* What the run's own inputs may read from now on: the config map that the step changed, as a whole. */
static json_t *changed_config(const json_t *manifest, const char *action, const json_t *object)
{
    const json_t *data = json_object_get(object, "data");

    if (!strcmp(action, "get") || strcmp(text_of(manifest, "kind"), "ConfigMap"))
        return NULL;
    return json_pack("{s:o}", text_of(json_object_get(manifest, "metadata"), "name"),
                     data ? json_incref((json_t *)data) : json_object());
}

int resource_do(struct server *s, const struct live *l, const struct node *n, const json_t *order,
                json_t **out, json_t **out_configs, struct err *err)
{
    const json_t *r = json_object_get(order, "resource");
    const char *action = text_of(r, "action");
    OWN_JSON json_t *manifest = NULL, *object = NULL;

    if (read_manifest(text_of(r, "manifest"), &manifest, err) < 0)
        return -(int)err->code;
    name_object(manifest, n->id);
    if (resource_act(s, l->project, n->id, action, manifest, &object, err) < 0 ||
        check_conditions(r, object, err) < 0 || outputs_of(order, object, out, err) < 0)
        return -(int)err->code;
    *out_configs = changed_config(manifest, action, object);
    return 0;
}

/* ------------------------------------------------------------ kubectl delete */

bool resource_command(struct server *s, const struct live *l, const json_t *order, json_t **out,
                      int *out_rc, struct err *err)
{
    const json_t *step = json_object_get(order, "step");
    const json_t *lists[] = { json_object_get(step, "command"), json_object_get(step, "args") };
    const char *words[4] = { NULL };
    int n = 0;

    for (int i = 0; i < 2; i++)
        for (size_t j = 0; j < json_array_size(lists[i]) && n < 4; j++) {
            const char *w = json_string_value(json_array_get(lists[i], j));
            if (w && *w != '-')
                words[n++] = w;
        }
    if (n < 4 || strcmp(words[0], "kubectl") || strcmp(words[1], "delete"))
        return false;
    const char *kind = resource_kind(words[2]);
    if (!kind)
        return false;
    *out_rc = resource_delete(s, l->project, kind, words[3], err);
    if (*out_rc == 0)
        *out = json_pack("{s:{}, s:{}, s:o}", "parameters", "artifacts", "result",
                         json_sprintf("%s/%s", kind, words[3]));
    return true;
}
