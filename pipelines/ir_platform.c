/* pipelines/ir_platform.c - the second document of a package: volumes, secrets, config maps
 *
 * It speaks of executors, but names of volumes and secrets may be outputs of tasks. Such a name is
 * an input of the step that its component does not declare, STEPS_IR_HIDDEN and a number; the task
 * gives it. Both sides walk the same lists in the same order.
 */
#include <string.h>

#include "drivers/step.h"
#include "pipelines/flow.h"
#include "pipelines/ir_int.h"
#include "pipelines/steps_ir.h"

static const char known[] =
    "pvcMount secretAsEnv secretAsVolume configMapAsEnv configMapAsVolume emptyDirMounts "
    "fieldPathAsEnv activeDeadlineSeconds";
static const char idle[] =
    "imagePullPolicy imagePullSecret nodeSelector tolerations podMetadata nodeAffinity "
    "podAffinity securityContext enabledSharedMemory";

/* Lists whose rows name something: the key of a constant, and of a value. */
static const struct {
    const char *list, *constant, *value;
} named[] = {
    { "pvcMount", "constant", "pvcNameParameter" },
    { "secretAsEnv", "secretName", "secretNameParameter" },
    { "secretAsVolume", "secretName", "secretNameParameter" },
    { "configMapAsEnv", "configMapName", "configMapNameParameter" },
    { "configMapAsVolume", "configMapName", "configMapNameParameter" },
};
enum { NAMED = sizeof named / sizeof named[0] };

static const struct value *executor_of(const struct ir *c, const char *label)
{
    return c->platform ? value_find(c->platform, label) : NULL;
}

/* Where the name of row is said; NULL: nowhere, or as a plain text under `constant`. */
static const struct value *name_value(const struct value *row, int k)
{
    const struct value *v = ir_get(row, named[k].value);
    return v ? v : ir_get(row, "taskOutputParameter") || ir_get(row, "componentInputParameter")
                       ? row : NULL;
}

static int name_of(struct ir *c, const struct value *row, int k, int number, json_t *body,
                   json_t **out)
{
    const struct value *constant = ir_get(row, named[k].constant);
    if (!name_value(row, k)) {
        if (!constant || constant->kind != VALUE_SCALAR)
            return ir_refuse(c, row, "has no name of what it speaks of");
        *out = json_string(constant->text);
        return 0;
    }
    char name[64];
    snprintf(name, sizeof name, STEPS_IR_HIDDEN "%d", number);
    ir_add(c, json_object_get(json_object_get(body, "inputs"), "parameters"),
           json_pack("{s:s, s:s}", "name", name, "type", "STRING"));
    *out = json_pack("{s:s}", "input", name);
    return 0;
}

/* ------------------------------------------------------------ the step */

static int put_env(struct ir *c, const struct value *row, bool secret, json_t *name, json_t *env)
{
    OWN_JSON json_t *own = name;
    const struct value *pairs;
    const char *key, *to;

    if (ir_list(c, row, "keyToEnv", &pairs) < 0)
        return -(int)c->err->code;
    for (const struct value *p = pairs ? pairs->child : NULL; p; p = p->next) {
        if (ir_word(c, p, secret ? "secretKey" : "configMapKey", &key) < 0 ||
            ir_word(c, p, "envVar", &to) < 0)
            return -(int)c->err->code;
        ir_add(c, env, json_pack("{s:s, s:{s:O, s:s, s:b}}", "name", to,
                                 secret ? "secret" : "config", "name", own, "key", key,
                                 "optional", ir_true(row, "optional")));
    }
    return 0;
}

static int put_mount(struct ir *c, const struct value *row, const char *kind, json_t *name,
                     int number, json_t *step)
{
    const char *path;
    const struct value *sub = ir_get(row, "subPath");
    char volume[64];
    OWN_JSON json_t *own = name;

    if (ir_word(c, row, "mountPath", &path) < 0)
        return -(int)c->err->code;
    if (path[0] != '/' || !path[1] || flow_climbs(path + 1))
        return ir_refuse(c, ir_get(row, "mountPath"), "\"%.100s\" is no path from the root without "
                         "..", path);
    if (sub && sub->kind == VALUE_SCALAR && flow_climbs(sub->text))
        return ir_refuse(c, sub, "\"%.100s\" climbs out of the volume", sub->text);
    /* Values of secrets and config maps are files, which may be anywhere. */
    if ((!strcmp(kind, "empty") || !strcmp(kind, "claim")) && step_is_system(path))
        return ir_refuse(c, ir_get(row, "mountPath"),
                         "%.100s is the system's own; mount the volume "
                         "elsewhere",
                         path);
    snprintf(volume, sizeof volume, "platform-%d", number);
    ir_add(c, json_object_get(step, "mounts"),
           json_pack("{s:s, s:s, s:s*}", "path", path, "volume", volume, "sub",
                     sub && sub->kind == VALUE_SCALAR && *sub->text ? sub->text : NULL));
    json_t *doc = !strcmp(kind, "empty") ? json_pack("{s:s, s:b}", "name", volume, "empty", 1)
                  : !strcmp(kind, "claim") ? json_pack("{s:s, s:O}", "name", volume, "claim", own)
                  : json_pack("{s:s, s:{s:O, s:b}}", "name", volume, kind, "name", own, "optional",
                              ir_true(row, "optional"));
    ir_add(c, json_object_get(step, "volumes"), doc);
    return 0;
}

static int put_named(struct ir *c, const struct value *e, json_t *body, json_t *step, int *number)
{
    for (int k = 0; k < NAMED; k++) {
        const struct value *list;
        bool secret = named[k].list[0] == 's', volume = strstr(named[k].list, "Env") == NULL;
        if (ir_list(c, e, named[k].list, &list) < 0)
            return -(int)c->err->code;
        for (const struct value *row = list ? list->child : NULL; row; row = row->next, ++*number) {
            json_t *name = NULL;
            if (ir_keys(c, row, "mountPath subPath keyToEnv optional constant secretName "
                                "configMapName pvcNameParameter secretNameParameter "
                                "configMapNameParameter taskOutputParameter "
                                "componentInputParameter", "") < 0 ||
                name_of(c, row, k, *number, body, &name) < 0 ||
                (volume ? put_mount(c, row, k == 0 ? "claim" : secret ? "secret" : "config", name,
                                    *number, step)
                        : put_env(c, row, secret, name, json_object_get(step, "env"))) < 0)
                return -(int)c->err->code;
        }
    }
    return 0;
}

int ir_platform_step(struct ir *c, const char *label, json_t *body, json_t *step)
{
    const struct value *e = executor_of(c, label), *list;
    const char *name, *path;
    int number = 0;

    if (!e)
        return 0;
    ir_put(c, step, "mounts", json_array());
    ir_put(c, step, "volumes", json_array());
    if (ir_keys(c, e, known, idle) < 0 || put_named(c, e, body, step, &number) < 0 ||
        ir_list(c, e, "emptyDirMounts", &list) < 0)
        return -(int)c->err->code;
    for (const struct value *row = list ? list->child : NULL; row; row = row->next)
        if (ir_keys(c, row, "volumeName mountPath", "sizeLimit medium") < 0 ||
            put_mount(c, row, "empty", NULL, number++, step) < 0)
            return -(int)c->err->code;
    if (ir_list(c, e, "fieldPathAsEnv", &list) < 0)
        return -(int)c->err->code;
    for (const struct value *row = list ? list->child : NULL; row; row = row->next) {
        if (ir_keys(c, row, "name fieldPath", "") < 0 || ir_word(c, row, "name", &name) < 0 ||
            ir_word(c, row, "fieldPath", &path) < 0)
            return -(int)c->err->code;
        ir_add(c, json_object_get(step, "env"), json_pack("{s:s, s:s}", "name", name, "field",
                                                          path));
    }
    double limit = ir_number(e, "activeDeadlineSeconds", 0);
    if (limit > 0)
        ir_put(c, body, "deadline_s", json_real(limit));
    return 0;
}

/* ------------------------------------------------------------ the task */

int ir_platform_task(struct ir *c, const struct ir_dag *d, const struct value *task,
                     json_t *parameters, json_t *after)
{
    const struct value *component = ir_component_of(c, task);
    const struct value *label = ir_get(component, "executorLabel");
    const struct value *e = label && label->kind == VALUE_SCALAR ? executor_of(c, label->text)
                                                                 : NULL;
    int number = 0;

    if (!component)
        return -(int)c->err->code;
    for (int k = 0; e && k < NAMED; k++) {
        const struct value *list;
        if (ir_list(c, e, named[k].list, &list) < 0)
            return -(int)c->err->code;
        for (const struct value *row = list ? list->child : NULL; row; row = row->next, number++) {
            const struct value *v = name_value(row, k);
            const struct value *of_task = ir_get(v, "taskOutputParameter");
            json_t *value = NULL;
            char name[64];
            if (!v)
                continue;
            if (v != row && ir_parameter(c, d, task, v, after, &value) < 0)
                return -(int)c->err->code;
            if (v == row && of_task) {          /* as older SDKs write it */
                const char *producer, *key;
                if (ir_word(c, of_task, "producerTask", &producer) < 0 ||
                    ir_word(c, of_task, "outputParameterKey", &key) < 0)
                    return -(int)c->err->code;
                if (!value_find(d->tasks, producer))
                    return ir_refuse(c, of_task, "there is no task \"%.64s\" here", producer);
                ir_add(c, after, json_string(producer));
                value = json_pack("{s:s, s:s}", "task", producer, "output", key);
            } else if (v == row) {
                const char *input;
                if (ir_word(c, row, "componentInputParameter", &input) < 0)
                    return -(int)c->err->code;
                value = json_pack("{s:s}", "input", input);
            }
            snprintf(name, sizeof name, STEPS_IR_HIDDEN "%d", number);
            ir_put(c, parameters, name, value);
        }
    }
    return 0;
}
