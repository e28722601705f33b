/* pipelines/flow.h - a pipeline's text -> its flow document, the one form in which pipelines run
 *
 * Two languages are read: a Workflow of Argo (pipelines/argo.c), which kfp 1.x and people write,
 * and the PipelineSpec of kfp 2.x (pipelines/ir.c). Both become the document below, which is all
 * that pipelines/graph.h knows. It is checked as a whole: templates and tasks that are named are
 * there, nothing waits for itself, what a template needs it is given, names in tags are known,
 * paths are absolute and do not climb. What a language has and muster has not is refused by name
 * and line; keys that have a meaning only where there are pods are taken and have none here
 * (docs/design/pipelines-argo.md has the list).
 *
 * The document is JSON. `?` after a key: it may be absent.
 *
 * FLOW
 *   dialect      "argo" or "ir"
 *   name         of the pipeline; with "generate": true the beginning of each run's name
 *   description?
 *   entry        name of the template that is the run
 *   exit?        name of a template that runs at the end, whatever happened
 *   exit_arguments?  {"parameters": {}, "artifacts": {}} of that template, as in a TASK. Other
 *                inputs of these two are those of the run with the same name.
 *   inputs       of the run: [{name, type, default?, optional?, description?, enum?: [any],
 *                config?: {name: VALUE, key, optional?} (value of a config map)}]; type is STRING
 *                NUMBER_INTEGER NUMBER_DOUBLE BOOLEAN LIST STRUCT. Argo: values are texts, and
 *                the type says only what a form should ask for. optional: may stay without value
 *   parallelism  steps at once, 0: no limit;  deadline_s  0: none
 *   ttl?         {succeeded?: n, failed?: n}: so many seconds after its end a run is archived
 *   volumes?     [VOLUME] that every step may mount
 *   claims?      [{name, size}]: made when the run begins, removed when it has ended
 *   labels?, annotations?   {name: text}
 *   templates    {name: TEMPLATE}
 *
 * TEMPLATE
 *   line         in the text, for messages
 *   inputs       {parameters: [{name, default?: VALUE, type?, enum?: [text],
 *                              config?: {name: VALUE, key, optional?}}],
 *                 artifacts: [{name, path?, optional?, raw?: VALUE, uri?: VALUE, type?,
 *                              archive?: false, mode?: n (rights of the file)}]}
 *   outputs      {parameters: [{name, path | value: VALUE | first: [VALUE] | json_path |
 *                              supplied: true, default?, type?, global?: name}],
 *                 artifacts: [{name, path | value: ARTREF | first: [ARTREF], optional?, type?,
 *                              archive?: false, global?: name}]}
 *                first: the first whose task ran. supplied: by who resumes a suspended step.
 *                global: also workflow.outputs.parameters.NAME (artifacts.NAME) from then on
 *   parallelism?, labels?, annotations?, display?: VALUE
 *   fail_fast?   true: nothing more begins in it when one has failed
 *   deadline_s?  n; of leaves also a VALUE that comes to a duration
 *   retry?       {limit: n (-1: no limit), policy: OnFailure | Always | OnError |
 *                OnTransientError, backoff_s, factor, max_s, cap_s?, expression?: text}
 *   cache?       {enabled: bool, staleness_s?: n}
 *   and one of
 *   dag          {tasks: [TASK], fail_fast: bool, target?: VALUE, style?: "steps"}
 *                Steps of Argo too: a task of one group comes after all of the group before.
 *   step         STEP
 *   resource     {action: create|get|patch|delete|apply|replace, manifest: VALUE, success?: text,
 *                failure?: text}
 *   suspend      {seconds?: VALUE}
 *   importer     {uri: VALUE, type: text, metadata?: VALUE}                            (ir)
 *
 * STEP           {image: VALUE, command: [VALUE], args: [VALUE], script?: VALUE, cwd?: VALUE,
 *                 env: [{name, value: VALUE | secret: {name, key, optional} |
 *                        config: {name, key, optional} | field: text}],
 *                 env_from?: [{secret | config: name, prefix?, optional?}],
 *                 resources?: {cpu: n, memory: bytes, gpu: n: what it may use at most,
 *                              requests?: {the same: what it asks for}; each may be a VALUE that
 *                              comes to an amount},
 *                 mounts?: [{path: VALUE, volume: name, sub?: VALUE, read_only?}],
 *                 volumes?: [VOLUME], init?: [STEP], sidecars?: [STEP], name? (of these two),
 *                 executor?: {} (ir)}
 *                script: the text of a file whose path follows `command`.
 * VOLUME         {name, claim: VALUE | empty: true | secret: {name: VALUE, items?: [{key, path}],
 *                 optional?} | config: the same | host: VALUE}
 * TASK           {name, line, display?, template: name, after?: [task], depends?: text,
 *                 parameters: {name: VALUE}, artifacts: {name: ARTREF}, when?: text,
 *                 loop?: {items: VALUE | sequence: {start?, end?, count?: VALUE, format?},
 *                         | artifacts: ARTREF (a list; ir), parallelism?: n, item?: name (ir)},
 *                 continue_on?: {failed: bool, error: bool}, always?: bool (ir), hook?: true}
 *                depends: a boolean expression over task names with .Succeeded .Failed .Errored
 *                .Skipped .Omitted .Daemoned .AnySucceeded .AllFailed; `after` has the names in it.
 *                always: runs also when what it comes after failed. hook: the exit handler of the
 *                task that it comes after, called NAME.onExit: it runs when that one ran, however
 *                it ended; nothing fails with it, and what comes after that task waits for it.
 * VALUE          {"text": "of argo with {{tags}} and {{=expressions}}; comes to a text"} |
 *                {"json": constant} | {"input": name} | {"task": T, "output": name} |
 *                {"item": "" or key} | {"collected": T, "output": name} (a list, of all
 *                iterations) | {"status": T} (ir) | {"format": "of ir with {{$...}}"} |
 *                {"fill": constant with {{$...}}, "with": {name: VALUE}} (ir); also "path": [key or
 *                number], the part of the value that is meant (ir); a JSON text
 *                stands for {"json": text}. As in Argo, a tag that begins with none of inputs
 *                outputs tasks steps workflow item pod node retries lastRetry is no tag and stays.
 * ARTREF         {"input": name} | {"task": T, "output": name} | {"collected": T, "output": name} |
 *                {"text": "{{...}} of argo's from, {{=...}} of fromExpression"} | {"raw": VALUE} |
 *                {"uri": VALUE}
 */
#ifndef MUSTER_PIPELINES_FLOW_H
#define MUSTER_PIPELINES_FLOW_H

#include <stdbool.h>

#include "base/err.h"
#include "spec/yaml.h"

/* A text of one or more documents -> its flow document, a new reference. `name` stands for the
 * text in messages: "pipeline.yaml:12: templates[2].dag.tasks[0].template: ...". Which language
 * it is, its content says. ERR_INVALID: the text is wrong, or asks for what is not there. */
int flow_compile(const char *name, const char *text, size_t n, json_t **out, struct err *err);

/* Does a path below a volume lead out of it: by a part "..", or as it begins at the root? */
bool flow_climbs(const char *path);

/* A duration as people write it: "30", "30s", "1h30m". 1: it is one. */
int flow_seconds(const char *text, double *out);

/* One language each; a document is a tree that knows its lines. `platform` may be NULL. */
int argo_compile(struct value *doc, const char *name, json_t **out, struct err *err);
int ir_compile(struct value *spec, struct value *platform, const char *name,
               json_t **out, struct err *err);

#endif
