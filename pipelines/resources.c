/* pipelines/resources.c - what is done with a manifest: volumes, config maps, secrets, training
 *
 * DESIGN. A manifest is applied by the server itself. A step may be done twice when the server was
 * killed between doing and saying so; therefore what was created with the same content, or by the
 * same node, counts as created, and what is not there as deleted. A kind that is not in the table
 * is refused by name.
 */
#include "pipelines/resources.h"

#include <nettle/base64.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/json.h"
#include "pipelines/flow.h"
#include "pipelines/runs_int.h"
#include "server/auth.h"
#include "server/server.h"
#include "server/volumes.h"
#include "spec/json.h"
#include "spec/scan.h"

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

/* As RFC 7396 has it: null removes. */
static void merge(json_t *to, const json_t *patch)
{
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)patch, key, v) {
        json_t *at = json_object_get(to, key);
        if (json_is_null(v))
            json_object_del(to, key);
        else if (json_is_object(v) && json_is_object(at))
            merge(at, v);
        else
            json_object_set(to, key, v);
    }
}

/* Of what is asked for may grow what it asks for, and labels and annotations may be any. */
static int claim_check(const json_t *old, const json_t *new, struct err *err)
{
    const json_t *before = json_object_get(old, "spec"), *after = json_object_get(new, "spec");
    const char *key;
    double was = 0, is = 0;
    json_t *v;

    json_object_foreach((json_t *)after, key, v)
        if (strcmp(key, "resources") && !json_equal(v, json_object_get(before, key)))
            return err_set(err, ERR_INVALID, "spec.%.64s: of a PersistentVolumeClaim labels, "
                           "annotations and the storage that it requests can be changed", key);
    const char *size = json_string_value(claim_size(new));
    if (!size || !scan_quantity(size, &is))
        return err_set(err, ERR_INVALID, "spec.resources.requests.storage: must be a size such as "
                       "1Gi");
    const char *had = json_string_value(claim_size(old));
    if (had && scan_quantity(had, &was) && is < was)
        return err_set(err, ERR_INVALID, "spec.resources.requests.storage: %.32s is less than the "
                       "%.32s that it has; a volume only grows", size, had);
    return 0;
}

static int claim_patch(const struct act *a, json_t **out, struct err *err)
{
    OWN_JSON json_t *doc = NULL, *old = NULL;

    if (claim_get(a, &old, err) < 0 ||
        volumes_get(a->server, a->project, a->name, &doc, err) < 0)
        return -(int)err->code;
    json_object_del(old, "status");
    OWN_JSON json_t *new = json_deep_copy(old);
    if (!new)
        return err_set(err, ERR_NOMEM, "no memory for a volume");
    merge(new, a->manifest);
    json_object_del(new, "status");
    if (!claim_size(new) && !claim_size(old))
        ;                       /* it never said how large it is to be */
    else if (claim_check(old, new, err) < 0)
        return -(int)err->code;
    if (!json_equal(new, old)) {
        json_object_set(doc, "manifest", new);
        json_object_set(doc, "size", claim_size(new));
        if (volumes_set(a->server, a->project, a->name, doc, err) < 0)
            return -(int)err->code;
    }
    return claim_get(a, out, err);
}

static int claim_apply(const struct act *a, json_t **out, struct err *err)
{
    int rc = claim_patch(a, out, err);

    return rc == -ERR_MISSING ? claim_create(a, out, err) : rc;
}

static int claim_delete(const struct act *a, struct err *err)
{
    int rc = volumes_delete(a->server, a->project, a->name, err);

    return rc == -ERR_MISSING ? 0 : rc;
}

/* ------------------------------------------------------------ ConfigMap, Secret */

/* "data" (base64 in a Secret) and "stringData" as texts; null in a patch: it is to go. */
static int values_of(const json_t *manifest, bool secret, bool patch, json_t **out,
                     struct err *err)
{
    OWN_JSON json_t *values = json_object();
    const char *key;
    json_t *v;

    if (json_object_get(manifest, "binaryData"))
        return err_set(err, ERR_INVALID, "binaryData: values are texts here");
    json_object_foreach(json_object_get(manifest, "data"), key, v) {
        const char *text = json_string_value(v);
        if (!text && !(patch && json_is_null(v)))
            return err_set(err, ERR_INVALID, "data.%.64s: takes a text", key);
        if (!secret || !text) {
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
        int rc = json_is_null(v)
            ? auth_value_remove(a->server->auth, kind, a->project, kept, err)
            : auth_value_set(a->server->auth, kind, a->project, kept, json_string_value(v), err);
        if (rc < 0 && !(json_is_null(v) && rc == -ERR_MISSING))
            return rc;
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

    if (values_of(a->manifest, kind == AUTH_SECRET, how == MERGE, &values, err) < 0 ||
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

static int training_patch(const struct act *a, json_t **out, struct err *err)
{
    if (training_job_patch(a->server, a->project, a->name, a->manifest, err) < 0)
        return -(int)err->code;
    return training_get(a, out, err);
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
      claim_get, claim_apply, NULL, claim_patch, claim_delete },
    { "ConfigMap", " cm configmap configmaps ", config_create, config_get, config_patch,
      config_replace, config_patch, config_delete },
    { "Secret", " secret secrets ", secret_create, secret_get, secret_patch, secret_replace,
      secret_patch, secret_delete },
    /* One that is created is a job, and the step waits for it: resource_job. */
    { "TrainingJob", " trainingjob trainingjobs ", NULL, training_get, NULL, NULL,
      training_patch, training_delete },
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
                : err_set(err, ERR_INVALID, "a %s is not changed by \"%s\"; patch it", k->name,
                          action);
    return err_set(err, ERR_INVALID, "there is no action \"%.32s\"", action);
}

const char *resource_kind(const char *word)
{
    const struct kind *k = find_kind(word);
    return k ? k->name : NULL;
}

int resource_act(struct server *s, const char *project, const char *by, const char *action,
                 json_t *manifest, json_t **out, struct err *err)
{
    const struct kind *k = find_kind(text_of(manifest, "kind"));
    const char *name = text_of(json_object_get(manifest, "metadata"), "name");

    if (!k)
        return err_set(err, ERR_INVALID, "kind \"%.64s\": the kinds here are "
                       "PersistentVolumeClaim, ConfigMap, Secret and TrainingJob",
                       text_of(manifest, "kind"));
    if (!*name)
        return err_set(err, ERR_INVALID, "metadata.name: is missing");
    const struct act a = { s, project, name, by, manifest };
    if (do_action(k, action, &a, out, err) < 0)
        return err_add(err, "%s %s %.100s", action, k->name, name);
    return 0;
}

int resource_delete(struct server *s, const char *project, const char *kind, const char *name,
                    struct err *err)
{
    const struct kind *k = find_kind(kind);
    const struct act a = { s, project, name, "", NULL };

    return k ? k->delete(&a, err) : err_set(err, ERR_INVALID, "there is no kind %.64s", kind);
}

/* ------------------------------------------------------------ texts of them */

static bool of_a_text(const struct value *doc)
{
    const struct value *kind = value_find(doc, "kind");
    const struct kind *k = kind && kind->kind == VALUE_SCALAR ? find_kind(kind->text) : NULL;

    return k && k->create;      /* a TrainingJob is run by a step */
}

static int read_all(const char *file, const char *text, size_t n, struct value **out,
                    struct err *err)
{
    const struct yaml_limits limits = { "a file of resources", MANIFEST_MAX, 20000 };
    return yaml_parse_all(text, n, file, &limits, out, err);
}

bool resources_only(const char *text, size_t n)
{
    OWN(value) docs = NULL;
    struct err none = { 0 };
    int found = 0;

    if (n > MANIFEST_MAX || read_all("", text, n, &docs, &none) < 0)
        return false;
    for (const struct value *d = docs->child; d; d = d->next) {
        if (!value_is_null(d) && !of_a_text(d))
            return false;
        found += !value_is_null(d);
    }
    return found > 0;
}

static int apply_one(struct server *s, const char *project, json_t *manifest, json_t *out,
                     struct err *err)
{
    const struct kind *k = find_kind(text_of(manifest, "kind"));
    const struct act a = { s, project, text_of(json_object_get(manifest, "metadata"), "name"), "",
                           manifest };
    OWN_JSON json_t *before = NULL, *after = NULL;
    struct err none = { 0 };

    int there = k->get(&a, &before, &none) == 0;
    if (resource_act(s, project, "", "apply", manifest, &after, err) < 0)
        return -(int)err->code;
    bool same = there && strcmp(k->name, "Secret") && json_equal(before, after);
    json_t *told = json_pack("{s:s, s:s, s:s}", "kind", k->name, "name", a.name, "did",
                             same ? "unchanged" : there ? "configured" : "created");
    return json_array_append_new(out, told) < 0 ? err_set(err, ERR_NOMEM, "no memory for an answer")
                                                : 0;
}

int resources_apply(struct server *s, const char *project, const char *file, const char *text,
                    size_t n, json_t **out, struct err *err)
{
    OWN(value) docs = NULL;
    OWN_JSON json_t *done = json_array();

    if (read_all(file, text, n, &docs, err) < 0)
        return -(int)err->code;
    for (const struct value *d = docs->child; d; d = d->next) {
        const struct value *meta = value_find(d, "metadata"), *name = value_find(meta, "name");
        if (value_is_null(d))
            continue;
        if (!of_a_text(d))
            return err_set(err, ERR_INVALID, "%s:%d: is no ConfigMap, Secret or "
                           "PersistentVolumeClaim; a pipeline is a file of its own", file, d->line);
        if (!name || name->kind != VALUE_SCALAR || !*name->text)
            return err_set(err, ERR_INVALID, "%s:%d: metadata.name: is missing", file, d->line);
    }
    for (const struct value *d = docs->child; d; d = d->next) {
        OWN_JSON json_t *manifest = value_is_null(d) ? NULL : value_json(d);
        if (manifest && apply_one(s, project, manifest, done, err) < 0)
            return err_add(err, "%s:%d", file, d->line);
    }
    *out = TAKE(done);
    return 0;
}
