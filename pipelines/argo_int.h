/* pipelines/argo_int.h - what the files of the Argo compiler share (argo*.c)
 *
 * argo.c reads the Workflow, argo_template.c a template, argo_task.c the tasks of a dag and the
 * groups of steps, argo_step.c a container, argo_value.c scalars of all kinds, argo_keys.c says of
 * each key what is done with it; argo_check.c looks at the whole at last. A text with tags is noted
 * when it is read (argo_note) and looked at when all templates are known.
 *
 * Every function that can fail returns 0 or a negative code and has set c->err. JSON is made by
 * argo_put* below, which remember that memory ran out; argo_compile asks once, at the end.
 */
#ifndef MUSTER_PIPELINES_ARGO_INT_H
#define MUSTER_PIPELINES_ARGO_INT_H

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"
#include "base/own.h"
#include "spec/yaml.h"

/* How a noted text is read. */
enum argo_use_kind { ARGO_TEXT, ARGO_EXPRESSION, ARGO_WHEN, ARGO_FROM,
                     ARGO_PLACE /* of a mount: the map that it is in names the volume */ };

/* A template, and its tasks as numbers once all are known (argo_check.c). */
struct argo_scope {
    json_t *template;           /* borrowed */
    const char *name;           /* borrowed from `templates` */
    json_t *index;              /* task -> number */
    int n, *first, *edge;       /* task i comes after edge[first[i]] .. edge[first[i + 1] - 1] */
    int *seen, mark;
    struct argo_scope *next;
};

struct argo_use {
    enum argo_use_kind kind;
    const struct value *at;     /* where it stands */
    const char *text;           /* borrowed from the tree */
    struct argo_scope *scope;   /* the template in which it stands; NULL: of the run itself */
    json_t *task;               /* NULL: not of a task. Borrowed */
    bool retry;                 /* lastRetry is known there */
};

struct argo {
    const char *name;           /* of the text */
    struct err *err;
    const struct value *spec, *defaults;        /* defaults: templateDefaults, may be NULL */
    const struct value *artifacts;              /* of the run: the first, or NULL */
    json_t *flow, *templates;
    struct argo_scope *scopes, *last;
    struct argo_scope *scope;   /* being compiled */
    json_t *task;               /* being compiled; borrowed */
    bool retry, failed;         /* failed: no memory */
    int inlined;                /* templates that had no name of their own */
    struct argo_use *use;
    int n_uses, cap;
};

/* "name:line: path: sentence"; returns the code. */
int argo_refuse(struct argo *c, const struct value *at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* ------------------------------------------------------------------ argo_keys.c */

/* Kinds of maps; each has a table that says of every key of Argo what is done with it. */
enum argo_map {
    ARGO_WORKFLOW, ARGO_METADATA, ARGO_SPEC, ARGO_TEMPLATE, ARGO_DAG, ARGO_TASK, ARGO_STEP_TASK,
    ARGO_CONTAINER, ARGO_SCRIPT, ARGO_SIDECAR, ARGO_RESOURCE, ARGO_SUSPEND, ARGO_RETRY,
    ARGO_BACKOFF, ARGO_INPUTS, ARGO_OUTPUTS, ARGO_ARGUMENTS, ARGO_PARAMETER, ARGO_VALUE_FROM,
    ARGO_ARTIFACT, ARGO_ENV, ARGO_ENV_FROM_VALUE, ARGO_ENV_SOURCE, ARGO_KEY_REF, ARGO_MOUNT,
    ARGO_VOLUME, ARGO_SEQUENCE, ARGO_HOOK, ARGO_RESOURCES, ARGO_TEMPLATE_METADATA, ARGO_TTL,
    ARGO_MAPS,
};
/* `map` is a map, and each of its keys has a meaning or none here; else refused by name. */
int argo_check_map(struct argo *c, const struct value *map, enum argo_map kind);

/* ------------------------------------------------------------------ argo_value.c */

void argo_put(struct argo *c, json_t *object, const char *key, json_t *value);
void argo_put_item(struct argo *c, json_t *array, json_t *value);       /* both take the value */

/* The value of a key, NULL when it is absent or null. */
const struct value *argo_get(const struct value *map, const char *key);
/* The list of a key: its first item, or NULL; refused when it is no list. */
int argo_list(struct argo *c, const struct value *map, const char *key, const struct value **out);

/* A scalar's text as Argo has it (yes -> "true"). Caller frees; NULL: no memory. */
char *argo_text(const struct value *v);
/* Refused unless it is a scalar that is not empty. Borrowed. */
int argo_word(struct argo *c, const struct value *map, const char *key, const char **out);
/* A name: letters, digits, - and _ (first a letter or digit; of a parameter also - and _). */
int argo_name(struct argo *c, const struct value *map, bool parameter, const char **out);
int argo_bool(struct argo *c, const struct value *map, const char *key, bool *out);
int argo_whole(struct argo *c, const struct value *v, long long *out);

bool argo_has_tags(const char *text);
/* A VALUE: a constant text, or {"text"} noted for the check. Lists and maps are their JSON. */
int argo_value(struct argo *c, const struct value *v, json_t **out);
/* The same, and put into `object`; nothing when `v` is NULL. */
int argo_put_value(struct argo *c, json_t *object, const char *key, const struct value *v);
int argo_put_values(struct argo *c, json_t *object, const char *key, const struct value *list);
/* A text that has no tags as it is. */
int argo_put_text(struct argo *c, json_t *object, const char *key, const struct value *v);
/* {name: text} of a map. */
int argo_put_labels(struct argo *c, json_t *object, const char *key, const struct value *map);

/* An expression as a VALUE or ARTREF, noted for the check. */
json_t *argo_expression(struct argo *c, const struct value *v);

void argo_note(struct argo *c, enum argo_use_kind kind, const struct value *at, const char *text);

/* "30", "30s", "1h30m" -> seconds; a VALUE when there are tags in it. */
int argo_put_seconds(struct argo *c, json_t *object, const char *key, const struct value *v);
/* "P1DT2H" -> seconds */
int argo_iso_duration(const char *text, double *out);           /* 1: it is one */

/* An absolute path without ".." and with a name at its end. May have tags. */
int argo_path(struct argo *c, const struct value *v, const char *what);

/* ------------------------------------------------------------------ the other files */

/* Gives a template what templateDefaults has for it, and reads the text of its podSpecPatch. */
int argo_fill(struct argo *c, struct value *t);
/* Compiles one template into c->templates under `name`. */
int argo_template(struct argo *c, struct value *t, const char *name);
int argo_put_inputs(struct argo *c, json_t *body, const struct value *t);
int argo_put_outputs(struct argo *c, json_t *body, const struct value *t);
/* Where an artifact comes from, as an ARTREF; *out is NULL when nothing is said. */
int argo_artifact_source(struct argo *c, const struct value *a, json_t **out);
/* What an artifact that is given or left cannot say. */
int argo_refuse_mode(struct argo *c, const struct value *a);
/* {"name", "key", "optional"?} of a secretKeyRef or configMapKeyRef. */
int argo_key_ref(struct argo *c, const struct value *ref, json_t **out);

/* `t` is the template, `form` its dag or steps. */
int argo_dag(struct argo *c, json_t *body, const struct value *t, const struct value *form);
int argo_steps(struct argo *c, json_t *body, const struct value *t, const struct value *form);
/* {"parameters", "artifacts"} of `arguments` into `object`. */
int argo_put_arguments(struct argo *c, json_t *object, const struct value *arguments);

/* `t`: the template (volumes, sidecars, initContainers); `main`: its container or script. */
int argo_step(struct argo *c, json_t *body, const struct value *t, const struct value *main,
              bool script);
int argo_put_volumes(struct argo *c, json_t *object, const struct value *owner);

/* Names are names of something, nothing waits for itself, what is needed is given. */
int argo_check(struct argo *c);
void argo_free_scopes(struct argo *c);

#endif
