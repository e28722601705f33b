/* pipelines/resources.c - what a `resource` template does: volumes, config maps, secrets, training
 *
 * DESIGN. A manifest is applied by the server itself. A step may be done twice when the server was
 * killed between doing and saying so; therefore what was created with the same content, or by the same
 * node, counts as created, and what is not there as deleted. A kind that is not in the table is
 * refused by name.
 */
#include <nettle/base64.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/json.h"
#include "pipelines/runs_int.h"
#include "server/auth.h"
#include "server/server.h"
#include "server/volumes.h"
#include "spec/json.h"

enum { MANIFEST_MAX = 1 << 20 };

struct act {
    struct server *server;
    const char *project, *name;
    const char *by;             /* the node that does it */
    json_t *manifest;           /* with metadata.name */
};

/* ------------------------------------------------------------ PersistentVolumeClaim */

static json_t *claim_size(const json_t *manifest)
{
    const json_t *spec = json_object_get(manifest, "spec");

    return json_object_get(json_object_get(json_object_get(spec, "resources"), "requests"),
                           "storage");
}

static int claim_get(const struct act *a, json_t **out, struct err *err)
{
    OWN_JSON json_t *doc = NULL;

    if (volumes_get(a->server, a->project, a->name, &doc, err) < 0)
        return -(int)err->code;
    json_t *kept = json_object_get(doc, "manifest");
    OWN_JSON json_t *object = kept ? json_deep_copy(kept)
        : json_pack("{s:s, s:s, s:{s:s}}", "apiVersion", "v1", "kind", "PersistentVolumeClaim",
                    "metadata", "name", a->name);
    json_t *spec = json_object_get(object, "spec"), *size = claim_size(object);
    json_object_set_new(object, "status", json_pack("{s:s, s:{s:O*}, s:O*}", "phase", "Bound",
                                                    "capacity", "storage", size, "accessModes",
                                                    json_object_get(spec, "accessModes")));
    if (!object)
        return err_set(err, ERR_NOMEM, "no memory for a volume");
    *out = TAKE(object);
    return 0;
}

static int claim_create(const struct act *a, json_t **out, struct err *err)
{
    OWN_JSON json_t *doc = json_pack("{s:O*, s:O, s:s}", "size", claim_size(a->manifest),
                                     "manifest", a->manifest, "by", a->by);
    OWN_JSON json_t *there = NULL;
    struct err none = { 0 };

    int rc = volumes_create(a->server, a->project, a->name, doc, err);
    if (rc == -ERR_CONFLICT && volumes_get(a->server, a->project, a->name, &there, &none) == 0 &&
        !strcmp(text_of(there, "by"), a->by))
        rc = 0;
    return rc < 0 ? rc : claim_get(a, out, err);
}

static int claim_apply(const struct act *a, json_t **out, struct err *err)
{
    struct err none = { 0 };

    if (claim_get(a, out, &none) == 0)
        return 0;
    return claim_create(a, out, err);
}

static int claim_delete(const struct act *a, struct err *err)
{
    int rc = volumes_delete(a->server, a->project, a->name, err);

    return rc == -ERR_MISSING ? 0 : rc;
}

/* ------------------------------------------------------------ ConfigMap, Secret */

/* "data" (base64 in a Secret) and "stringData" as texts. */
static int values_of(const json_t *manifest, bool secret, json_t **out, struct err *err)
{
    OWN_JSON json_t *values = json_object();
    const char *key;
    json_t *v;

    if (json_object_get(manifest, "binaryData"))
        return err_set(err, ERR_INVALID, "binaryData: values are texts here");
    json_object_foreach(json_object_get(manifest, "data"), key, v) {
        const char *text = json_string_value(v);
        if (!text)
            return err_set(err, ERR_INVALID, "data.%.64s: takes a text", key);
        if (!secret) {
            json_object_set(values, key, v);
            continue;
        }
        struct base64_decode_ctx ctx;
        size_t n = BASE64_DECODE_LENGTH(strlen(text));
        OWN_MEM char *raw = calloc(1, n + 1);
        base64_decode_init(&ctx);
        if (!raw || !base64_decode_update(&ctx, &n, (uint8_t *)raw, strlen(text), text) ||
            !base64_decode_final(&ctx) || strlen(raw) != n ||
            json_object_set_new(values, key, json_string(raw)) < 0)
            return err_set(err, ERR_INVALID, "data.%.64s: is no text in base64", key);
    }
    json_object_foreach(json_object_get(manifest, "stringData"), key, v)
        if (!json_is_string(v))
            return err_set(err, ERR_INVALID, "stringData.%.64s: takes a text", key);
        else
            json_object_set(values, key, v);
    *out = TAKE(values);
    return 0;
}

/* What is kept as NAME.KEY: {KEY: value}, or with secrets {KEY: ""}. */
static int values_there(const struct act *a, enum auth_kind kind, json_t **out, struct err *err)
{
    OWN_JSON json_t *rows = NULL, *found = json_object();
    size_t i, n = strlen(a->name);
    json_t *row;

    if (auth_value_list(a->server->auth, kind, a->project, &rows, err) < 0)
        return -(int)err->code;
    json_array_foreach(rows, i, row) {
        const char *kept = text_of(row, "name");
        if (!strncmp(kept, a->name, n) && kept[n] == '.')
            json_object_set_new(found, kept + n + 1, json_string(text_of(row, "value")));
    }
    *out = TAKE(found);
    return 0;
}

static int values_get(const struct act *a, enum auth_kind kind, json_t **out, struct err *err)
{
    OWN_JSON json_t *there = NULL;
    bool secret = kind == AUTH_SECRET;

    if (values_there(a, kind, &there, err) < 0)
        return -(int)err->code;
    if (json_object_size(there) == 0)
        return err_set(err, ERR_MISSING, "there is no %s \"%.100s\"",
                       secret ? "Secret" : "ConfigMap", a->name);
    *out = json_pack("{s:s, s:s, s:{s:s, s:s}, s:O}", "apiVersion", "v1", "kind",
                     secret ? "Secret" : "ConfigMap", "metadata", "name", a->name, "namespace",
                     a->project, "data", there);
    return *out ? 0 : err_set(err, ERR_NOMEM, "no memory for a value");
}

static int values_set(const struct act *a, enum auth_kind kind, const json_t *values,
                      struct err *err)
{
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)values, key, v) {
        OWN_MEM char *kept = NULL;
        if (asprintf(&kept, "%s.%s", a->name, key) < 0)
            return err_set(err, ERR_NOMEM, "no memory for a value");
        if (auth_value_set(a->server->auth, kind, a->project, kept, json_string_value(v), err) < 0)
            return -(int)err->code;
    }
    return 0;
}

/* Is all that is to be created there already, as it is to be? */
static bool values_same(const struct act *a, enum auth_kind kind, const json_t *values,
                        const json_t *there)
{
    const char *key;
    json_t *v;

    if (json_object_size(values) != json_object_size(there))
        return false;
    json_object_foreach((json_t *)values, key, v) {
        OWN_MEM char *kept = NULL, *value = NULL;
        struct err none = { 0 };
        if (asprintf(&kept, "%s.%s", a->name, key) < 0 ||
            auth_value_get(a->server->auth, kind, a->project, kept, &value, &none) < 0 ||
            strcmp(value, json_string_value(v)))
            return false;
    }
    return true;
}

static int values_remove(const struct act *a, enum auth_kind kind, struct err *err)
{
    OWN_JSON json_t *there = NULL;
    const char *key;
    json_t *v;

    if (values_there(a, kind, &there, err) < 0)
        return -(int)err->code;
    json_object_foreach(there, key, v) {
        OWN_MEM char *kept = NULL;
        if (asprintf(&kept, "%s.%s", a->name, key) < 0)
            return err_set(err, ERR_NOMEM, "no memory for a value");
        int rc = auth_value_remove(a->server->auth, kind, a->project, kept, err);
        if (rc < 0 && rc != -ERR_MISSING)
            return rc;
    }
    return 0;
}

enum change { CREATE, REPLACE, MERGE };

static int values_change(const struct act *a, enum auth_kind kind, enum change how, json_t **out,
                         struct err *err)
{
    OWN_JSON json_t *values = NULL, *there = NULL;

    if (values_of(a->manifest, kind == AUTH_SECRET, &values, err) < 0 ||
        values_there(a, kind, &there, err) < 0)
        return -(int)err->code;
    if (how == CREATE && json_object_size(there) && !values_same(a, kind, values, there))
        return err_set(err, ERR_CONFLICT, "there is a %s \"%.100s\" already",
                       kind == AUTH_SECRET ? "Secret" : "ConfigMap", a->name);
    if (how == REPLACE && values_remove(a, kind, err) < 0)
        return -(int)err->code;
    if (json_object_size(values) == 0)
        return err_set(err, ERR_INVALID, "data: has no values");
    if (values_set(a, kind, values, err) < 0)
        return -(int)err->code;
    return values_get(a, kind, out, err);
}

static int config_get(const struct act *a, json_t **out, struct err *err)
{
    return values_get(a, AUTH_CONFIG, out, err);
}

static int config_create(const struct act *a, json_t **out, struct err *err)
{
    return values_change(a, AUTH_CONFIG, CREATE, out, err);
}

static int config_replace(const struct act *a, json_t **out, struct err *err)
{
    return values_change(a, AUTH_CONFIG, REPLACE, out, err);
}

static int config_patch(const struct act *a, json_t **out, struct err *err)
{
    return values_change(a, AUTH_CONFIG, MERGE, out, err);
}

static int config_delete(const struct act *a, struct err *err)
{
    return values_remove(a, AUTH_CONFIG, err);
}

static int secret_get(const struct act *a, json_t **out, struct err *err)
{
    return values_get(a, AUTH_SECRET, out, err);
}

static int secret_create(const struct act *a, json_t **out, struct err *err)
{
    return values_change(a, AUTH_SECRET, CREATE, out, err);
}

static int secret_replace(const struct act *a, json_t **out, struct err *err)
{
    return values_change(a, AUTH_SECRET, REPLACE, out, err);
}

static int secret_patch(const struct act *a, json_t **out, struct err *err)
{
    return values_change(a, AUTH_SECRET, MERGE, out, err);
}

static int secret_delete(const struct act *a, struct err *err)
{
    return values_remove(a, AUTH_SECRET, err);
}

/* ------------------------------------------------------------ TrainingJob */

static int training_get(const struct act *a, json_t **out, struct err *err)
{
    return training_job_find(a->server, a->project, a->name, out, err);
}

static int training_delete(const struct act *a, struct err *err)
{
    return training_job_stop(a->server, a->project, a->name, err);
}

/* ------------------------------------------------------------ kinds */

static const struct kind {
    const char *name, *names;   /* names: what kubectl takes for it, too */
    int (*create)(const struct act *a, json_t **out, struct err *err);
    int (*get)(const struct act *a, json_t **out, struct err *err);
    int (*apply)(const struct act *a, json_t **out, struct err *err);
    int (*replace)(const struct act *a, json_t **out, struct err *err);
    int (*patch)(const struct act *a, json_t **out, struct err *err);
    int (*delete)(const struct act *a, struct err *err);
} kinds[] = {
    { "PersistentVolumeClaim", " pvc persistentvolumeclaim persistentvolumeclaims ", claim_create,
      claim_get, claim_apply, NULL, NULL, claim_delete },
    { "ConfigMap", " cm configmap configmaps ", config_create, config_get, config_patch,
      config_replace, config_patch, config_delete },
    { "Secret", " secret secrets ", secret_create, secret_get, secret_patch, secret_replace,
      secret_patch, secret_delete },
    /* One that is created is a job, and the step waits for it: resource_job. */
    { "TrainingJob", " trainingjob trainingjobs ", NULL, training_get, NULL, NULL, NULL,
      training_delete },
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static const struct kind *find_kind(const char *name)
{
    char word[64];

    for (int i = 0; i < KINDS; i++) {
        if (!strcasecmp(kinds[i].name, name))
            return &kinds[i];
        snprintf(word, sizeof word, " %s ", name);
        if (strcasestr(kinds[i].names, word))
            return &kinds[i];
    }
    return NULL;
}

static int do_action(const struct kind *k, const char *action, const struct act *a, json_t **out,
                     struct err *err)
{
    const struct { const char *name; int (*fn)(const struct act *, json_t **, struct err *); }
    actions[] = { { "create", k->create }, { "get", k->get }, { "apply", k->apply },
                  { "replace", k->replace }, { "patch", k->patch } };

    if (!strcmp(action, "delete")) {
        *out = json_object();
        return k->delete(a, err);
    }
    for (size_t i = 0; i < sizeof actions / sizeof actions[0]; i++)
        if (!strcmp(action, actions[i].name))
            return actions[i].fn ? actions[i].fn(a, out, err)
                : err_set(err, ERR_INVALID, "a %s cannot be changed once it is there (action \"%s\")",
                          k->name, action);
    return err_set(err, ERR_INVALID, "there is no action \"%.32s\"", action);
}

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
    if (training_job_find(s, f->run->project, text_of(json_object_get(manifest, "metadata"), "name"),
                          &there, err) < 0)
        return -(int)err->code;
    json_object_set(manifest, "status", json_object_get(there, "status"));
    if (check_conditions(r, manifest, err) < 0)
        return -(int)err->code;
    return outputs_of(order, manifest, out, err);
}

int resource_do(struct server *s, const struct live *l, const struct node *n, const json_t *order,
                json_t **out, struct err *err)
{
    const json_t *r = json_object_get(order, "resource");
    const char *action = text_of(r, "action");
    OWN_JSON json_t *manifest = NULL, *object = NULL;

    if (read_manifest(text_of(r, "manifest"), &manifest, err) < 0)
        return -(int)err->code;
    const struct kind *k = find_kind(text_of(manifest, "kind"));
    if (!k)
        return err_set(err, ERR_INVALID, "kind \"%.64s\": a resource step takes a "
                       "PersistentVolumeClaim, a ConfigMap, a Secret or a TrainingJob",
                       text_of(manifest, "kind"));
    name_object(manifest, n->id);
    const char *name = text_of(json_object_get(manifest, "metadata"), "name");
    if (!*name)
        return err_set(err, ERR_INVALID, "metadata.name: is missing");
    const struct act a = { s, l->project, name, n->id, manifest };
    if (do_action(k, action, &a, &object, err) < 0)
        return err_add(err, "%s %s %.100s", action, k->name, name);
    if (check_conditions(r, object, err) < 0)
        return -(int)err->code;
    return outputs_of(order, object, out, err);
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
    const struct kind *k = find_kind(words[2]);
    if (!k)
        return false;
    const struct act a = { s, l->project, words[3], "", NULL };
    *out_rc = k->delete(&a, err);
    if (*out_rc == 0)
        *out = json_pack("{s:{}, s:{}, s:o}", "parameters", "artifacts", "result",
                         json_sprintf("%s/%s", k->name, words[3]));
    return true;
}
