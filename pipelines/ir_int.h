/* pipelines/ir_int.h - what the files of the compiler of kfp 2's PipelineSpec share (ir*.c)
 *
 * ir.c reads the whole and its components, ir_task.c the tasks of a dag, ir_step.c what a component
 * executes, ir_platform.c what the second document says of it (volumes, secrets), ir_value.c where
 * values come from. Placeholders are filled when a step begins (steps_ir.c).
 *
 * Every function that can fail returns 0 or a negative code and has set c->err. JSON is put
 * together by ir_put*, which remember that memory ran out; ir_compile asks once, at the end.
 */
#ifndef MUSTER_PIPELINES_IR_INT_H
#define MUSTER_PIPELINES_IR_INT_H

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"
#include "base/own.h"
#include "spec/yaml.h"

enum { IR_DEPTH_MAX = 64 };     /* components within components */

struct ir {
    const char *name;           /* of the text */
    struct err *err;
    const struct value *components, *executors, *platform;      /* maps, or NULL */
    json_t *templates, *made;   /* made: template -> how its task wants it, as a text */
    int depth;
    bool failed;                /* no memory */
};

/* "name:line: path: sentence"; returns the code. */
int ir_refuse(struct ir *c, const struct value *at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Every key of the map is one of `known` (words with a space between) or of `idle`, which have no
 * meaning here. */
int ir_keys(struct ir *c, const struct value *map, const char *known, const char *idle);
/* NULL when it is absent or null. */
const struct value *ir_get(const struct value *map, const char *key);
/* The map, or list, of a key; NULL when it is absent. Refused when it is something else. */
int ir_map(struct ir *c, const struct value *map, const char *key, const struct value **out);
int ir_list(struct ir *c, const struct value *map, const char *key, const struct value **out);
/* A text of a key; refused when there is none. */
int ir_word(struct ir *c, const struct value *map, const char *key, const char **out);
bool ir_true(const struct value *map, const char *key);
double ir_number(const struct value *map, const char *key, double fallback);

void ir_put(struct ir *c, json_t *object, const char *key, json_t *value);
void ir_add(struct ir *c, json_t *array, json_t *value);                /* both take the value */

/* ir_value.c. What a value is by its looks: numbers that are whole are whole. */
json_t *ir_json(const struct value *v);

/* A placeholder, {{$...}}: what is between the braces. */
enum ir_ref_kind {
    IR_EXECUTOR_INPUT, IR_PARAMETER, IR_ARTIFACT_PATH, IR_ARTIFACT_URI, IR_ARTIFACT_NAME,
    IR_ARTIFACT_METADATA, IR_OUTPUT_PARAMETER, IR_OUTPUT_PATH, IR_OUTPUT_URI, IR_OUTPUT_NAME,
    IR_OF_RUN,
};
struct ir_ref {
    enum ir_ref_kind kind;
    char name[256], key[256];   /* key: of metadata, of the run */
};
bool ir_ref(const char *text, size_t n, struct ir_ref *out);
/* The next placeholder at or after `text`: its beginning, or NULL; *n: its length with braces. */
const char *ir_next(const char *text, size_t *n);

/* What of a dag a task may speak of. */
struct ir_dag {
    const struct value *component, *tasks;
    const char *name;           /* of the component */
};
const struct value *ir_component_of(struct ir *c, const struct value *task);
/* The declared input or output of a component ("inputDefinitions", "parameters", name), or NULL. */
const struct value *ir_declared(const struct value *component, const char *where, const char *kind,
                                const char *name);
/* A VALUE from a spec of a task's input; tasks it speaks of are added to `after`. */
int ir_parameter(struct ir *c, const struct ir_dag *d, const struct value *task,
                 const struct value *v, json_t *after, json_t **out);
int ir_artifact(struct ir *c, const struct ir_dag *d, const struct value *v, json_t *after,
                json_t **out);
/* What a dag gives: of one of its tasks. */
int ir_output(struct ir *c, const struct ir_dag *d, const struct value *v, const char *kind,
              json_t **out);
/* A constant that may have placeholders of the task's inputs. */
int ir_constant(struct ir *c, const struct ir_dag *d, const struct value *task,
                const struct value *at, json_t *constant, json_t *after, json_t **out);

/* ir.c. The template of a component, as a task wants it ("retry", "cache"), under *out: borrowed
 * from c->templates. */
int ir_template(struct ir *c, const char *component, const struct value *at,
                const struct value *task, const char **out);
/* ir_task.c */
int ir_dag(struct ir *c, const struct value *component, const char *name, json_t *body);
/* ir_step.c: what an executor does, into the body. */
int ir_executor(struct ir *c, const struct value *component, const struct value *task,
                json_t *body);
/* ir_platform.c: into a step; values that its task has to give go into its parameters. */
int ir_platform_step(struct ir *c, const char *label, json_t *body, json_t *step);
int ir_platform_task(struct ir *c, const struct ir_dag *d, const struct value *task,
                     json_t *parameters, json_t *after);

#endif
