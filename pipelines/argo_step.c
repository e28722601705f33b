/* pipelines/argo_step.c - a container or script with its volumes, sidecars and init containers */
#include <stdint.h>
#include <string.h>

#include "pipelines/argo_int.h"
#include "pipelines/flow.h"
#include "spec/scan.h"

/* ------------------------------------------------------------------ environment */

static int put_env(struct argo *c, json_t *list, const struct value *v)
{
    const struct value *from = argo_get(v, "valueFrom"), *x;
    const char *name;
    json_t *ref;

    if (argo_check_map(c, v, ARGO_ENV) < 0 || argo_word(c, v, "name", &name) < 0)
        return -(int)c->err->code;
    if (strchr(name, '='))
        return argo_refuse(c, v, "\"%.60s\" is no name of a variable", name);
    json_t *e = json_pack("{s:s}", "name", name);
    argo_put_item(c, list, e);
    if (!from) {
        x = argo_get(v, "value");
        if (!x)
            argo_put(c, e, "value", json_string(""));
        return argo_put_value(c, e, "value", x);
    }
    if (argo_check_map(c, from, ARGO_ENV_SOURCE) < 0)
        return -(int)c->err->code;
    if ((x = argo_get(from, "fieldRef")))
        return argo_get(x, "fieldPath")
                   ? argo_put_text(c, e, "field", argo_get(x, "fieldPath"))
                   : argo_refuse(c, x, "needs \"fieldPath\"");
    bool secret = (x = argo_get(from, "secretKeyRef")) != NULL;
    if (!x && !(x = argo_get(from, "configMapKeyRef")))
        return argo_refuse(c, from, "needs secretKeyRef, configMapKeyRef or fieldRef");
    if (argo_key_ref(c, x, &ref) < 0)
        return -(int)c->err->code;
    argo_put(c, e, secret ? "secret" : "config", ref);
    return 0;
}

static int put_env_from(struct argo *c, json_t *list, const struct value *v)
{
    const struct value *ref;
    const char *name;
    bool optional = false;

    if (argo_check_map(c, v, ARGO_ENV_FROM_VALUE) < 0)
        return -(int)c->err->code;
    bool secret = (ref = argo_get(v, "secretRef")) != NULL;
    if (!ref && !(ref = argo_get(v, "configMapRef")))
        return argo_refuse(c, v, "needs secretRef or configMapRef");
    if (argo_word(c, ref, "name", &name) < 0 || argo_bool(c, ref, "optional", &optional) < 0)
        return -(int)c->err->code;
    json_t *e = json_object();
    argo_put_item(c, list, e);
    if (optional)
        argo_put(c, e, "optional", json_true());
    if (argo_put_value(c, e, secret ? "secret" : "config", argo_get(ref, "name")) < 0)
        return -(int)c->err->code;
    return argo_put_text(c, e, "prefix", argo_get(v, "prefix"));
}

/* ------------------------------------------------------------------ resources */

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* The key of a flow document for a resource of Kubernetes; NULL: there is none, "": no matter. */
static const char *amount_key(const char *name)
{
    return strcmp(name, "cpu") == 0 || strcmp(name, "memory") == 0 ? name
         : ends_with(name, "nvidia.com/gpu") ? "gpu"
         : strcmp(name, "ephemeral-storage") == 0 ? "" : NULL;
}

static int put_amounts(struct argo *c, json_t *object, const struct value *amounts)
{
    if (!amounts)
        return 0;
    if (amounts->kind != VALUE_MAP)
        return argo_refuse(c, amounts, "must be a map");
    for (const struct value *v = amounts->child; v; v = v->next) {
        const char *key = amount_key(v->key);
        double n;
        if (value_is_null(v))
            continue;
        if (key && *key && v->kind == VALUE_SCALAR && argo_has_tags(v->text)) {
            if (argo_put_value(c, object, key, v) < 0)
                return -(int)c->err->code;
            continue;
        }
        if (v->kind != VALUE_SCALAR || !scan_quantity(v->text, &n))
            return argo_refuse(c, v, "\"%.40s\" is no amount: write 2, 500m or 1Gi",
                               v->text ? v->text : "");
        if (!key && n > 0)
            return argo_refuse(c, v, "not supported: of resources there are cpu, memory and "
                               "nvidia.com/gpu");
        if (key && *key)
            argo_put(c, object, key, *key == 'c' ? json_real(n)
                                     : json_integer(n < 9e18 ? (json_int_t)n : INT64_MAX));
    }
    return 0;
}

/* What is asked for and what it may use at most: the second is what a step's job has. */
static int put_resources(struct argo *c, json_t *step, const struct value *r)
{
    if (!r)
        return 0;
    if (argo_check_map(c, r, ARGO_RESOURCES) < 0)
        return -(int)c->err->code;
    json_t *resources = json_object_get(step, "resources");
    if (!resources)
        argo_put(c, step, "resources", resources = json_object());
    json_t *requests = json_object_get(resources, "requests");
    if (!requests && argo_get(r, "requests"))
        argo_put(c, resources, "requests", requests = json_object());
    return put_amounts(c, requests, argo_get(r, "requests")) < 0
               ? -(int)c->err->code : put_amounts(c, resources, argo_get(r, "limits"));
}

/* kfp 1.x patches the pod where a limit is a parameter of the pipeline. Of patches that is all. */
static int put_patch(struct argo *c, json_t *step, const struct value *patch)
{
    const struct value *v;

    if (!patch)
        return 0;
    if (patch->kind != VALUE_MAP)
        return argo_refuse(c, patch, "must be a map, as JSON or YAML");
    for (v = patch->child; v; v = v->next)
        if (strcmp(v->key, "containers") != 0 && strcmp(v->key, "nodeSelector") != 0)
            return argo_refuse(c, v, "not supported: there are no pods here; of a patch resources "
                               "of the main container are read");
    if (argo_list(c, patch, "containers", &v) < 0)
        return -(int)c->err->code;
    for (; v; v = v->next) {
        const char *name;
        if (v->kind != VALUE_MAP || argo_word(c, v, "name", &name) < 0 ||
            strcmp(name, "main") != 0 || v->n > 2 || (v->n == 2 && !value_find(v, "resources")))
            return argo_refuse(c, v, "not supported: of a patch resources of the container "
                               "\"main\" are read");
        if (put_resources(c, step, argo_get(v, "resources")) < 0)
            return -(int)c->err->code;
    }
    return 0;
}

/* ------------------------------------------------------------------ volumes */

static int put_mounts(struct argo *c, json_t *mounts, const struct value *list)
{
    if (list && list->kind != VALUE_LIST)
        return argo_refuse(c, list, "must be a list");
    for (const struct value *v = list ? list->child : NULL; v; v = v->next) {
        const char *name, *path;
        bool read_only = false;
        if (argo_check_map(c, v, ARGO_MOUNT) < 0 || argo_word(c, v, "name", &name) < 0 ||
            argo_word(c, v, "mountPath", &path) < 0 ||
            argo_path(c, argo_get(v, "mountPath"), "a mount") < 0 ||
            argo_bool(c, v, "readOnly", &read_only) < 0)
            return -(int)c->err->code;
        const struct value *sub = argo_get(v, "subPath");
        if (sub && sub->text && flow_climbs(sub->text))
            return argo_refuse(c, sub, "\"%.100s\" climbs out of the volume", sub->text);
        if (!argo_has_tags(path))
            argo_note(c, ARGO_PLACE, argo_get(v, "mountPath"), path);
        json_t *m = json_pack("{s:s}", "volume", name);
        argo_put_item(c, mounts, m);
        if (read_only)
            argo_put(c, m, "read_only", json_true());
        if (argo_put_value(c, m, "path", argo_get(v, "mountPath")) < 0 ||
            argo_put_value(c, m, "sub", sub) < 0)
            return -(int)c->err->code;
    }
    return 0;
}

/* The volume of a secret or config map: which of its keys are files, and where. */
static int put_keyed(struct argo *c, json_t *volume, const char *key, const struct value *v,
                     const char *name_key)
{
    const char *name;
    bool optional = false;
    const struct value *item;
    json_t *keyed = json_object();

    argo_put(c, volume, key, keyed);
    if (argo_word(c, v, name_key, &name) < 0 || argo_bool(c, v, "optional", &optional) < 0 ||
        argo_put_value(c, keyed, "name", argo_get(v, name_key)) < 0 ||
        argo_list(c, v, "items", &item) < 0)
        return -(int)c->err->code;
    if (optional)
        argo_put(c, keyed, "optional", json_true());
    json_t *items = item ? json_array() : NULL;
    if (items)
        argo_put(c, keyed, "items", items);
    for (; item; item = item->next) {
        const char *from, *path;
        if (argo_word(c, item, "key", &from) < 0 || argo_word(c, item, "path", &path) < 0)
            return -(int)c->err->code;
        if (flow_climbs(path))
            return argo_refuse(c, item, "\"%.100s\" climbs out of the volume", path);
        argo_put_item(c, items, json_pack("{s:s, s:s}", "key", from, "path", path));
    }
    return 0;
}

static int put_volume(struct argo *c, json_t *list, const struct value *v)
{
    const struct value *x;
    const char *name, *word;

    if (argo_check_map(c, v, ARGO_VOLUME) < 0 || argo_word(c, v, "name", &name) < 0)
        return -(int)c->err->code;
    json_t *volume = json_pack("{s:s}", "name", name);
    argo_put_item(c, list, volume);
    if ((x = argo_get(v, "persistentVolumeClaim")))
        return argo_word(c, x, "claimName", &word) < 0
                   ? -(int)c->err->code
                   : argo_put_value(c, volume, "claim", argo_get(x, "claimName"));
    if ((x = argo_get(v, "hostPath")))
        return argo_word(c, x, "path", &word) < 0 ||
                       argo_path(c, argo_get(x, "path"), "a hostPath") < 0
                   ? -(int)c->err->code
                   : argo_put_value(c, volume, "host", argo_get(x, "path"));
    if ((x = argo_get(v, "secret")))
        return put_keyed(c, volume, "secret", x, "secretName");
    if ((x = argo_get(v, "configMap")))
        return put_keyed(c, volume, "config", x, "name");
    argo_put(c, volume, "empty", json_true());  /* emptyDir, also what Kubernetes takes for none */
    return 0;
}

int argo_put_volumes(struct argo *c, json_t *object, const struct value *owner)
{
    const struct value *v;

    if (argo_list(c, owner, "volumes", &v) < 0)
        return -(int)c->err->code;
    json_t *list = v ? json_array() : NULL;
    if (list)
        argo_put(c, object, "volumes", list);
    for (; v; v = v->next)
        if (put_volume(c, list, v) < 0)
            return -(int)c->err->code;
    return 0;
}

/* ------------------------------------------------------------------ containers */

static int check_rights(struct argo *c, const struct value *v)
{
    const struct value *s = argo_get(v, "securityContext");
    bool privileged = false;

    if (s && s->kind == VALUE_MAP && argo_bool(c, s, "privileged", &privileged) < 0)
        return -(int)c->err->code;
    if (privileged)
        return argo_refuse(c, argo_get(s, "privileged"), "not supported: a step runs in a sandbox, "
                           "never with the rights of the machine");
    return 0;
}

static int put_all(struct argo *c, json_t *step, const struct value *v, const char *key,
                   const char *as, int (*each)(struct argo *, json_t *, const struct value *))
{
    const struct value *item;

    if (argo_list(c, v, key, &item) < 0)
        return -(int)c->err->code;
    json_t *list = item || strcmp(as, "env") == 0 ? json_array() : NULL;
    if (list)
        argo_put(c, step, as, list);
    for (; item; item = item->next)
        if (each(c, list, item) < 0)
            return -(int)c->err->code;
    return 0;
}

static int put_container(struct argo *c, json_t *step, const struct value *v, enum argo_map kind)
{
    const char *image;

    if (argo_check_map(c, v, kind) < 0 || argo_word(c, v, "image", &image) < 0 ||
        check_rights(c, v) < 0 || argo_put_value(c, step, "image", argo_get(v, "image")) < 0 ||
        argo_put_values(c, step, "command", argo_get(v, "command")) < 0 ||
        argo_put_values(c, step, "args", argo_get(v, "args")) < 0 ||
        argo_put_value(c, step, "cwd", argo_get(v, "workingDir")) < 0 ||
        put_all(c, step, v, "env", "env", put_env) < 0 ||
        put_all(c, step, v, "envFrom", "env_from", put_env_from) < 0 ||
        put_resources(c, step, argo_get(v, "resources")) < 0)
        return -(int)c->err->code;
    const struct value *mounts = argo_get(v, "volumeMounts");
    json_t *list = mounts ? json_array() : NULL;
    if (list)
        argo_put(c, step, "mounts", list);
    return put_mounts(c, list, mounts);
}

/* Sidecars and init containers; some see what the main one has mounted. */
static int put_beside(struct argo *c, json_t *step, const struct value *t, const char *key,
                      const char *as)
{
    const struct value *v;

    if (argo_list(c, t, key, &v) < 0)
        return -(int)c->err->code;
    json_t *list = v ? json_array() : NULL;
    if (list)
        argo_put(c, step, as, list);
    for (; v; v = v->next) {
        bool mirror = false;
        const char *name;
        json_t *beside = json_object();
        argo_put_item(c, list, beside);
        if (put_container(c, beside, v, ARGO_SIDECAR) < 0 || argo_name(c, v, false, &name) < 0 ||
            argo_bool(c, v, "mirrorVolumeMounts", &mirror) < 0)
            return -(int)c->err->code;
        argo_put(c, beside, "name", json_string(name));
        json_t *mounts = json_object_get(beside, "mounts"), *main = json_object_get(step, "mounts");
        if (!mirror || !main)
            continue;
        if (!mounts)
            argo_put(c, beside, "mounts", mounts = json_array());
        if (json_array_extend(mounts, main) < 0)
            c->failed = true;
    }
    return 0;
}

int argo_step(struct argo *c, json_t *body, const struct value *t, const struct value *main,
              bool script)
{
    json_t *step = json_object();

    argo_put(c, body, "step", step);
    if (put_container(c, step, main, script ? ARGO_SCRIPT : ARGO_CONTAINER) < 0)
        return -(int)c->err->code;
    if (script) {
        if (!argo_get(main, "source"))
            return argo_refuse(c, main, "needs \"source\"");
        if (argo_put_value(c, step, "script", argo_get(main, "source")) < 0)
            return -(int)c->err->code;
    }
    if (!json_object_get(step, "resources")) {
        const struct value *pod = argo_get(t, "podResources");
        if (put_resources(c, step, pod ? pod : argo_get(c->spec, "podResources")) < 0)
            return -(int)c->err->code;
    }
    if (put_patch(c, step, argo_get(t, "podSpecPatch")) < 0 || argo_put_volumes(c, step, t) < 0 ||
        put_beside(c, step, t, "initContainers", "init") < 0)
        return -(int)c->err->code;
    return put_beside(c, step, t, "sidecars", "sidecars");
}
