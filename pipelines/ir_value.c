/* pipelines/ir_value.c - values of kfp 2: constants, inputs, outputs of tasks, placeholders */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pipelines/ir_int.h"

/* ------------------------------------------------------------ constants */

static json_t *number(const char *text)
{
    char *end = NULL;
    if (!*text || strspn(text, "+-.0123456789eE") != strlen(text) || !strpbrk(text, "0123456789"))
        return NULL;
    double d = strtod(text, &end);
    if (*end || !isfinite(d))
        return NULL;
    if (strspn(text, "-0123456789") == strlen(text) && strlen(text) < 19)
        return json_integer(strtoll(text, NULL, 10));
    return d == floor(d) && fabs(d) < 9e15 ? json_integer((json_int_t)d) : json_real(d);
}

json_t *ir_json(const struct value *v)
{
    if (v->kind == VALUE_SCALAR) {
        json_t *n = v->plain ? number(v->text) : NULL;
        if (n)
            return n;
        if (v->plain && (!strcmp(v->text, "true") || !strcmp(v->text, "false")))
            return json_boolean(*v->text == 't');
        return value_is_null(v) ? json_null() : json_string(v->text);
    }
    json_t *all = v->kind == VALUE_MAP ? json_object() : json_array();
    for (const struct value *k = v->child; k; k = k->next) {
        json_t *each = ir_json(k);
        if (v->kind == VALUE_MAP)
            json_object_set_new(all, k->key, each);
        else
            json_array_append_new(all, each);
    }
    return all;
}

/* ------------------------------------------------------------ placeholders */

const char *ir_next(const char *text, size_t *n)
{
    const char *at = strstr(text, "{{$"), *end = at ? strstr(at, "}}") : NULL;
    if (!end)
        return NULL;
    *n = (size_t)(end + 2 - at);
    return at;
}

/* "head['name']tail": the name, and the tail. */
static const char *quoted(const char *text, const char *head, char *name, size_t size)
{
    size_t n = strlen(head);
    if (strncmp(text, head, n) || text[n] != '[' || !text[n + 1] || !strchr("'\"", text[n + 1]))
        return NULL;
    const char *from = text + n + 2, *to = strchr(from, text[n + 1]);
    if (!to || to[1] != ']' || (size_t)(to - from) >= size)
        return NULL;
    memcpy(name, from, (size_t)(to - from));
    name[to - from] = '\0';
    return to + 2;
}

static bool artifact_ref(const char *tail, const char *const *tails, enum ir_ref_kind first,
                         struct ir_ref *out)
{
    for (int i = 0; tails[i]; i++)
        if (!strcmp(tail, tails[i])) {
            out->kind = (enum ir_ref_kind)(first + i);
            return true;
        }
    return false;
}

bool ir_ref(const char *text, size_t n, struct ir_ref *out)
{
    static const char *const tails[] = { ".path", ".uri", ".name", NULL };
    static const char *const of_run[] = {
        "pipeline_job_name", "pipeline_job_uuid", "pipeline_job_resource_name",
        "pipeline_task_name", "pipeline_task_uuid", "pipeline_job_create_time_utc",
        "pipeline_job_schedule_time_utc", "pipeline_root",
    };
    OWN_MEM char *own = n > 4 ? strndup(text + 2, n - 4) : NULL;
    const char *tail;

    if (!own)
        return false;
    for (size_t m = strlen(own); m && own[m - 1] == ' '; m--)
        own[m - 1] = '\0';
    if (!strcmp(own, "$")) {
        out->kind = IR_EXECUTOR_INPUT;
        return true;
    }
    if ((tail = quoted(own, "$.inputs.parameters", out->name, sizeof out->name))) {
        out->kind = IR_PARAMETER;
        return !*tail;
    }
    if ((tail = quoted(own, "$.inputs.artifacts", out->name, sizeof out->name))) {
        const char *end = quoted(tail, ".metadata", out->key, sizeof out->key);
        out->kind = IR_ARTIFACT_METADATA;
        return end ? !*end : artifact_ref(tail, tails, IR_ARTIFACT_PATH, out);
    }
    if ((tail = quoted(own, "$.outputs.parameters", out->name, sizeof out->name))) {
        out->kind = IR_OUTPUT_PARAMETER;
        return !strcmp(tail, ".output_file");
    }
    if ((tail = quoted(own, "$.outputs.artifacts", out->name, sizeof out->name)))
        return artifact_ref(tail, tails, IR_OUTPUT_PATH, out);
    for (size_t i = 0; i < sizeof of_run / sizeof of_run[0]; i++)
        if (!strncmp(own, "$.", 2) && !strcmp(own + 2, of_run[i])) {
            out->kind = IR_OF_RUN;
            snprintf(out->key, sizeof out->key, "%s", of_run[i]);
            return true;
        }
    return false;
}

/* ------------------------------------------------------------ what a task speaks of */

const struct value *ir_declared(const struct value *component, const char *where, const char *kind,
                                const char *name)
{
    const struct value *all = ir_get(ir_get(component, where), kind);
    return all && all->kind == VALUE_MAP ? value_find(all, name) : NULL;
}

/* {"task": T, "output": key}; T is a task of the dag, and gives that. */
static int output_ref(struct ir *c, const struct ir_dag *d, const struct value *v,
                      const char *task_key, const char *output_key, const char *kind,
                      json_t *after, json_t **out)
{
    const char *task, *output;
    if (v->kind != VALUE_MAP)
        return ir_refuse(c, v, "must be a map of %s and %s", task_key, output_key);
    if (ir_keys(c, v, "producerTask producerSubtask outputParameterKey outputArtifactKey",
                "") < 0 ||
        ir_word(c, v, task_key, &task) < 0 || ir_word(c, v, output_key, &output) < 0)
        return -(int)c->err->code;
    const struct value *producer = d->tasks ? value_find(d->tasks, task) : NULL;
    if (!producer)
        return ir_refuse(c, v, "there is no task \"%.64s\" here", task);
    const struct value *component = ir_component_of(c, producer);
    if (!component)
        return -(int)c->err->code;
    if (!ir_declared(component, "outputDefinitions", kind, output))
        return ir_refuse(c, v, "task \"%.64s\" has no output %s \"%.64s\"", task,
                         *kind == 'p' ? "parameter" : "artifact", output);
    if (after)
        ir_add(c, after, json_string(task));
    *out = json_pack("{s:s, s:s}", "task", task, "output", output);
    c->failed |= !*out;
    return 0;
}

int ir_output(struct ir *c, const struct ir_dag *d, const struct value *v, const char *kind,
              json_t **out)
{
    return output_ref(c, d, v, "producerSubtask",
                      *kind == 'p' ? "outputParameterKey" : "outputArtifactKey", kind, NULL, out);
}

/* An input of the component that the dag is. */
static int input_ref(struct ir *c, const struct ir_dag *d, const struct value *v, const char *kind,
                     json_t **out)
{
    if (v->kind != VALUE_SCALAR || !ir_declared(d->component, "inputDefinitions", kind, v->text))
        return ir_refuse(c, v, "the component has no input %s of this name",
                         *kind == 'p' ? "parameter" : "artifact");
    *out = json_pack("{s:s}", "input", v->text);
    c->failed |= !*out;
    return 0;
}

int ir_artifact(struct ir *c, const struct ir_dag *d, const struct value *v, json_t *after,
                json_t **out)
{
    const struct value *of_task = ir_get(v, "taskOutputArtifact");
    const struct value *of_dag = ir_get(v, "componentInputArtifact");
    if (ir_keys(c, v, "taskOutputArtifact componentInputArtifact", "") < 0)
        return -(int)c->err->code;
    if (of_task)
        return output_ref(c, d, of_task, "producerTask", "outputArtifactKey", "artifacts", after,
                          out);
    return of_dag ? input_ref(c, d, of_dag, "artifacts", out)
                  : ir_refuse(c, v, "says not where the artifact comes from");
}

/* parseJson(string_value)["a"]["b"] -> ["a", "b"] */
static int selector(struct ir *c, const struct value *v, json_t **out)
{
    static const char head[] = "parseJson(string_value)";
    const char *p = v->kind == VALUE_SCALAR ? v->text : "";
    OWN_JSON json_t *path = json_array();

    if (strncmp(p, head, sizeof head - 1) || !p[sizeof head - 1])
        return ir_refuse(c, v, "is none that is known here (parseJson(string_value)[\"key\"])");
    for (p += sizeof head - 1; *p;) {
        char key[256];
        const char *end = quoted(p, "", key, sizeof key), *close = strchr(p, ']');
        char *stop = NULL;
        if (end) {
            ir_add(c, path, json_string(key));
            p = end;
            continue;
        }
        long i = *p == '[' ? strtol(p + 1, &stop, 10) : -1;
        if (i < 0 || stop != close || stop == p + 1)
            return ir_refuse(c, v, "is none that is known here (parseJson(string_value)[\"key\"])");
        ir_add(c, path, json_integer(i));
        p = close + 1;
    }
    *out = TAKE(path);
    return 0;
}

/* Adds to `with` the VALUE of each input of the task that a text speaks of. */
static int collect(struct ir *c, const struct ir_dag *d, const struct value *task,
                   const struct value *at, const json_t *constant, json_t *with, json_t *after,
                   bool *found)
{
    const char *text = json_string_value(constant), *key, *p;
    size_t i, n;
    json_t *each;

    json_array_foreach((json_t *)constant, i, each)
        if (collect(c, d, task, at, each, with, after, found) < 0)
            return -(int)c->err->code;
    json_object_foreach((json_t *)constant, key, each)
        if (collect(c, d, task, at, each, with, after, found) < 0)
            return -(int)c->err->code;
    for (; text && (p = ir_next(text, &n)); text = p + n) {
        struct ir_ref ref = { 0 };
        json_t *value = NULL;
        *found = true;
        if (!ir_ref(p, n, &ref) || (ref.kind != IR_PARAMETER && ref.kind != IR_OF_RUN))
            return ir_refuse(c, at, "\"%.*s\" is no placeholder that is known here", (int)n, p);
        if (ref.kind == IR_OF_RUN || json_object_get(with, ref.name))
            continue;
        const struct value *inputs = ir_get(ir_get(task, "inputs"), "parameters");
        const struct value *input = inputs ? value_find(inputs, ref.name) : NULL;
        if (!input || input == at || ir_get(input, "runtimeValue"))
            return ir_refuse(c, at, "\"%.*s\": the task has no such input", (int)n, p);
        if (ir_parameter(c, d, task, input, after, &value) < 0)
            return -(int)c->err->code;
        ir_put(c, with, ref.name, value);
    }
    return 0;
}

int ir_constant(struct ir *c, const struct ir_dag *d, const struct value *task,
                const struct value *at, json_t *constant, json_t *after, json_t **out)
{
    OWN_JSON json_t *own = constant;
    OWN_JSON json_t *with = json_object();
    bool found = false;

    if (collect(c, d, task, at, own, with, after, &found) < 0)
        return -(int)c->err->code;
    *out = found ? json_pack("{s:O, s:O}", "fill", own, "with", with)
                 : json_pack("{s:O}", "json", own);
    c->failed |= !*out;
    return 0;
}

int ir_parameter(struct ir *c, const struct ir_dag *d, const struct value *task,
                 const struct value *v, json_t *after, json_t **out)
{
    const struct value *constant = ir_get(v, "runtimeValue");
    const struct value *of_task = ir_get(v, "taskOutputParameter");
    const struct value *of_dag = ir_get(v, "componentInputParameter");
    const struct value *status = ir_get(v, "taskFinalStatus");
    const struct value *select = ir_get(v, "parameterExpressionSelector");
    const char *producer;
    OWN_JSON json_t *value = NULL;
    int rc = 0;

    if (ir_keys(c, v, "runtimeValue taskOutputParameter componentInputParameter taskFinalStatus "
                      "parameterExpressionSelector", "") < 0)
        return -(int)c->err->code;
    if (constant) {
        const struct value *k = constant->kind == VALUE_MAP ? value_find(constant, "constant")
                                                            : NULL;
        rc = k ? ir_constant(c, d, task, v, ir_json(k), after, &value)
               : ir_refuse(c, constant, "has no constant");
    } else if (of_task) {
        rc = output_ref(c, d, of_task, "producerTask", "outputParameterKey", "parameters", after,
                        &value);
    } else if (of_dag) {
        rc = input_ref(c, d, of_dag, "parameters", &value);
    } else if (status) {
        if (ir_keys(c, status, "producerTask", "") < 0 ||
            ir_word(c, status, "producerTask", &producer) < 0)
            return -(int)c->err->code;
        if (!value_find(d->tasks, producer))
            return ir_refuse(c, status, "there is no task \"%.64s\" here", producer);
        ir_add(c, after, json_string(producer));
        value = json_pack("{s:s}", "status", producer);
    } else {
        return ir_refuse(c, v, "says not where the value comes from");
    }
    json_t *path = NULL;
    if (rc < 0 || (select && selector(c, select, &path) < 0))
        return -(int)c->err->code;
    if (path)
        ir_put(c, value, "path", path);
    c->failed |= !value;
    *out = TAKE(value);
    return 0;
}
