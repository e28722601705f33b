/* pipelines/graph_fill.c - constants of kfp 2 with placeholders, and parts of values
 *
 * {"fill": constant, "with": {name: VALUE}}: {{$.inputs.parameters['name']}} in any of its texts is
 * replaced; a text that is one placeholder and nothing else becomes the value with its type.
 * "with": true stands for the inputs of the leaf itself. What speaks of the run is replaced, what
 * speaks of the step stays for the step (steps_ir.c).
 */
#include <string.h>

#include "pipelines/graph_int.h"
#include "pipelines/ir_int.h"

static json_t *ref_value(const struct scope *s, const json_t *with, const struct ir_ref *ref)
{
    json_t *v = NULL;
    struct err none = { 0 };

    if (ref->kind == IR_PARAMETER && json_is_true(with))
        return json_incref(json_object_get(json_object_get(s->inputs, "parameters"), ref->name));
    if (ref->kind == IR_PARAMETER) {
        const json_t *value = json_object_get(with, ref->name);
        return value && value_get(s, value, &v, &none) == 0 ? v : NULL;
    }
    if (ref->kind == IR_OF_RUN && !strcmp(ref->key, "pipeline_job_name"))
        return json_string(s->g->run_name);
    if (ref->kind == IR_OF_RUN && (!strcmp(ref->key, "pipeline_job_uuid") ||
                                   !strcmp(ref->key, "pipeline_job_resource_name")))
        return json_string(s->g->run_id);
    return NULL;
}

static json_t *fill_text(const struct scope *s, const json_t *with, const char *text)
{
    OWN_BUF b = BUF_INIT;
    const char *p;
    size_t n;

    for (const char *from = text;; from = p + n) {
        struct ir_ref ref = { 0 };
        p = ir_next(from, &n);
        buf_append(&b, from, p ? (size_t)(p - from) : strlen(from));
        if (!p)
            break;
        bool known = ir_ref(p, n, &ref);
        OWN_JSON json_t *v = known ? ref_value(s, with, &ref) : NULL;
        if (v && p == text && !p[n])
            return TAKE(v);
        OWN_MEM char *shown = v ? flow_expr_text(v) : NULL;
        if (shown)
            buf_text(&b, shown);
        else if (!known || ref.kind != IR_PARAMETER)
            buf_append(&b, p, n);
    }
    return json_stringn(b.data ? b.data : "", b.n);
}

static json_t *fill(const struct scope *s, const json_t *with, const json_t *constant)
{
    const char *key;
    size_t i;
    json_t *each;

    if (json_is_string(constant))
        return fill_text(s, with, json_string_value(constant));
    if (!json_is_object(constant) && !json_is_array(constant))
        return json_incref((json_t *)constant);
    json_t *made = json_is_object(constant) ? json_object() : json_array();
    json_array_foreach ((json_t *)constant, i, each)
        json_array_append_new(made, fill(s, with, each));
    json_object_foreach ((json_t *)constant, key, each)
        json_object_set_new(made, key, fill(s, with, each));
    return made;
}

int value_fill(const struct scope *s, const json_t *value, json_t **out, struct err *err)
{
    *out = fill(s, json_object_get(value, "with"), json_object_get(value, "fill"));
    return *out ? 0 : err_set(err, ERR_NOMEM, "no memory for a value");
}

/* `v` is taken over; texts on the way are read as JSON. NULL: there is nothing. */
json_t *value_below(json_t *v, const json_t *path)
{
    size_t i;
    json_t *key;

    json_array_foreach ((json_t *)path, i, key) {
        OWN_JSON json_t *whole = v;
        OWN_JSON json_t *read = json_is_string(whole)
                                    ? json_loads(json_string_value(whole), 0, NULL) : NULL;
        const json_t *at = read ? read : whole;
        v = json_is_string(key) ? json_object_get(at, json_string_value(key))
                                : json_array_get(at, (size_t)json_integer_value(key));
        json_incref(v);
    }
    return v;
}
