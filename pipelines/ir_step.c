/* pipelines/ir_step.c - what a component of kfp 2 executes: containers, imports, volumes */
#include <stdlib.h>
#include <string.h>

#include "pipelines/flow.h"
#include "pipelines/ir_int.h"
#include "spec/scan.h"

/* ------------------------------------------------------------ texts with placeholders */

static int check_text(struct ir *c, const struct value *component, const struct value *v)
{
    static const struct { enum ir_ref_kind kind; const char *where, *what; } in[] = {
        { IR_PARAMETER, "inputDefinitions", "parameters" },
        { IR_ARTIFACT_PATH, "inputDefinitions", "artifacts" },
        { IR_ARTIFACT_URI, "inputDefinitions", "artifacts" },
        { IR_ARTIFACT_NAME, "inputDefinitions", "artifacts" },
        { IR_ARTIFACT_METADATA, "inputDefinitions", "artifacts" },
        { IR_OUTPUT_PARAMETER, "outputDefinitions", "parameters" },
        { IR_OUTPUT_PATH, "outputDefinitions", "artifacts" },
        { IR_OUTPUT_URI, "outputDefinitions", "artifacts" },
        { IR_OUTPUT_NAME, "outputDefinitions", "artifacts" },
    };
    size_t n;

    for (const char *p = v->text; (p = ir_next(p, &n)); p += n) {
        struct ir_ref ref = { 0 };
        if (!ir_ref(p, n, &ref))
            return ir_refuse(c, v, "\"%.*s\" is no placeholder that is known here",
                             n < 200 ? (int)n : 200, p);
        for (size_t i = 0; i < sizeof in / sizeof in[0]; i++)
            if (in[i].kind == ref.kind &&
                !ir_declared(component, in[i].where, in[i].what, ref.name))
                return ir_refuse(c, v, "the component has no %s \"%.64s\"",
                                 in[i].where[0] == 'i' ? "input" : "output", ref.name);
    }
    return 0;
}

static bool structured(const char *text)
{
    return !strncmp(text, "{\"Concat\"", 9) || !strncmp(text, "{\"IfPresent\"", 12);
}

static int put_text(struct ir *c, const struct value *component, const struct value *v,
                    bool word, json_t **out)
{
    if (v->kind != VALUE_SCALAR)
        return ir_refuse(c, v, "must be a text");
    if (check_text(c, component, v) < 0)
        return -(int)c->err->code;
    *out = strstr(v->text, "{{$") || (word && structured(v->text))
               ? json_pack("{s:s}", "format", v->text) : json_string(v->text);
    c->failed |= !*out;
    return 0;
}

static int put_words(struct ir *c, const struct value *component, const struct value *from,
                     const char *key, json_t *step)
{
    const struct value *list;
    json_t *words = json_array();

    ir_put(c, step, key, words);
    if (ir_list(c, from, key, &list) < 0)
        return -(int)c->err->code;
    for (const struct value *w = list ? list->child : NULL; w; w = w->next) {
        json_t *word = NULL;
        if (put_text(c, component, w, true, &word) < 0)
            return -(int)c->err->code;
        ir_add(c, words, word);
    }
    return 0;
}

/* ------------------------------------------------------------ resources */

/* "500m", "2Gi" of the new keys, else numbers of the old ones (cores, and 1e9 bytes). */
static int put_quantity(struct ir *c, const struct value *r, const char *text_key,
                        const char *number_key, double unit, json_t *out, const char *to)
{
    const struct value *text = ir_get(r, text_key);
    double n = ir_number(r, number_key, 0) * unit;

    if (text && (text->kind != VALUE_SCALAR || strstr(text->text, "{{") ||
                 !scan_quantity(text->text, &n)))
        return ir_refuse(c, text, "must be a quantity, such as 2 or 512Mi");
    if (n > 0)
        ir_put(c, out, to, json_real(n));
    return 0;
}

static int put_resources(struct ir *c, const struct value *from, json_t *step)
{
    const struct value *r, *gpu;
    json_t *most = json_object(), *asks = json_object();

    ir_put(c, step, "resources", most);
    ir_put(c, most, "requests", asks);
    if (ir_map(c, from, "resources", &r) < 0 || ir_map(c, r, "accelerator", &gpu) < 0)
        return -(int)c->err->code;
    if (r && ir_keys(c, r, "cpuLimit memoryLimit cpuRequest memoryRequest accelerator "
                           "resourceCpuLimit resourceMemoryLimit resourceCpuRequest "
                           "resourceMemoryRequest", "") < 0)
        return -(int)c->err->code;
    if (put_quantity(c, r, "resourceCpuLimit", "cpuLimit", 1, most, "cpu") < 0 ||
        put_quantity(c, r, "resourceMemoryLimit", "memoryLimit", 1e9, most, "memory") < 0 ||
        put_quantity(c, r, "resourceCpuRequest", "cpuRequest", 1, asks, "cpu") < 0 ||
        put_quantity(c, r, "resourceMemoryRequest", "memoryRequest", 1e9, asks, "memory") < 0 ||
        put_quantity(c, gpu, "resourceCount", "count", 1, most, "gpu") < 0)
        return -(int)c->err->code;
    return 0;
}

/* ------------------------------------------------------------ containers */

static int put_env(struct ir *c, const struct value *component, const struct value *from,
                   json_t *step)
{
    const struct value *list;
    json_t *env = json_array();

    ir_put(c, step, "env", env);
    if (ir_list(c, from, "env", &list) < 0)
        return -(int)c->err->code;
    for (const struct value *e = list ? list->child : NULL; e; e = e->next) {
        const struct value *v = ir_get(e, "value");
        const char *name;
        json_t *value = NULL;
        if (ir_keys(c, e, "name value", "") < 0 || ir_word(c, e, "name", &name) < 0 ||
            (v && put_text(c, component, v, false, &value) < 0))
            return -(int)c->err->code;
        ir_add(c, env, json_pack("{s:s, s:o}", "name", name, "value",
                                 value ? value : json_string("")));
    }
    return 0;
}

static int put_container(struct ir *c, const struct value *component, const struct value *from,
                         const char *label, json_t *body)
{
    const struct value *image = ir_get(from, "image");
    json_t *step = json_pack("{s:{}}", "executor"), *value = NULL;

    ir_put(c, body, "step", step);
    if (!image)
        return ir_refuse(c, from, "image: is missing");
    if (ir_keys(c, from, "image command args env resources", "") < 0 ||
        put_text(c, component, image, false, &value) < 0)
        return -(int)c->err->code;
    ir_put(c, step, "image", value);
    if (put_words(c, component, from, "command", step) < 0 ||
        put_words(c, component, from, "args", step) < 0 ||
        put_env(c, component, from, step) < 0 || put_resources(c, from, step) < 0 ||
        ir_platform_step(c, label, body, step) < 0)
        return -(int)c->err->code;
    return 0;
}

/* ------------------------------------------------------------ imports */

static int put_importer(struct ir *c, const struct value *from, json_t *body)
{
    const struct value *uri = ir_get(from, "artifactUri"), *type = ir_get(from, "typeSchema");
    const struct value *title = ir_get(type, "schemaTitle"), *metadata = ir_get(from, "metadata");
    const struct value *constant = ir_get(uri, "constant");
    const struct value *named = ir_get(uri, "runtimeParameter");
    json_t *value = NULL;

    if (ir_keys(c, from, "artifactUri typeSchema metadata reimport", "") < 0)
        return -(int)c->err->code;
    if (!uri || uri->kind != VALUE_MAP || (!constant && !named))
        return ir_refuse(c, uri ? uri : from, "artifactUri: says not where the artifact is");
    const struct value *at = constant ? constant : named;
    if (at->kind != VALUE_SCALAR)
        return ir_refuse(c, at, "must be a text");
    size_t n;
    struct ir_ref ref;
    const char *p = constant ? ir_next(constant->text, &n) : NULL;
    if (p && (p != constant->text || p[n] || !ir_ref(p, n, &ref) || ref.kind != IR_PARAMETER))
        return ir_refuse(c, constant, "must be an address or an input");
    value = named ? json_pack("{s:s}", "input", named->text)
            : p   ? json_pack("{s:s}", "input", ref.name)
                  : json_pack("{s:s}", "json", constant->text);
    json_t *doc = json_pack("{s:o, s:s}", "uri", value, "type",
                            title && title->kind == VALUE_SCALAR ? title->text
                                                                 : "system.Artifact");
    ir_put(c, body, "importer", doc);
    if (metadata)
        ir_put(c, doc, "metadata", json_pack("{s:o, s:b}", "fill", ir_json(metadata), "with", 1));
    ir_put(c, body, "cache", json_pack("{s:b}", "enabled", 0));
    return 0;
}

/* ------------------------------------------------------------ volumes */

/* kfp-kubernetes' CreatePVC and DeletePVC are containers whose image is a word for the server. */
static int put_volume(struct ir *c, const struct value *component, const struct value *task,
                      const char *image, json_t *body)
{
    bool create = !strcmp(image, "argostub/createpvc");
    const struct value *given = ir_get(ir_get(task, "inputs"), "parameters");
    bool whole = given && value_find(given, "pvc_name");

    if (!create && strcmp(image, "argostub/deletepvc"))
        return ir_refuse(c, component, "\"%.64s\" is not known here", image);
    if (create && !whole && !(given && value_find(given, "pvc_name_suffix")))
        return ir_refuse(c, task, "needs pvc_name or pvc_name_suffix");
    static const char head[] = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata:\n  name: ";
    char manifest[600];
    snprintf(manifest, sizeof manifest, "%s\"%s\"\n%s", head,
             whole ? "{{inputs.parameters.pvc_name}}"
                   : "{{workflow.name}}{{inputs.parameters.pvc_name_suffix}}",
             create ? "spec:\n  accessModes: {{inputs.parameters.access_modes}}\n"
                      "  resources:\n    requests:\n      storage: "
                      "\"{{inputs.parameters.size}}\"\n" : "");
    ir_put(c, body, "resource", json_pack("{s:s, s:{s:s}}", "action", create ? "create" : "delete",
                                          "manifest", "text", manifest));
    json_t *name = json_array_get(json_object_get(json_object_get(body, "outputs"), "parameters"),
                                  0);
    if (create && name)
        ir_put(c, name, "json_path", json_string("{.metadata.name}"));
    ir_put(c, body, "cache", json_pack("{s:b}", "enabled", 0));
    return 0;
}

int ir_executor(struct ir *c, const struct value *component, const struct value *task,
                json_t *body)
{
    const char *label;
    if (ir_word(c, component, "executorLabel", &label) < 0)
        return -(int)c->err->code;
    const struct value *e = c->executors ? value_find(c->executors, label) : NULL;
    if (!e)
        return ir_refuse(c, component, "there is no executor \"%.64s\"", label);
    if (ir_keys(c, e, "container importer", "") < 0)
        return -(int)c->err->code;
    const struct value *container = ir_get(e, "container"), *import = ir_get(e, "importer");
    const struct value *image = ir_get(container, "image");
    if (import)
        return put_importer(c, import, body);
    if (!container)
        return ir_refuse(c, e, "has neither a container nor an importer");
    if (image && image->kind == VALUE_SCALAR && !strncmp(image->text, "argostub/", 9))
        return put_volume(c, component, task, image->text, body);
    return put_container(c, component, container, label, body);
}
