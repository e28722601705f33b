/* tests/unit/argo_test.c - Workflows of Argo: what they become, and how a wrong one is told */
#include "pipelines/flow.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/own.h"
#include "tests/flow_check.h"

#define HEAD                                                                            \
    "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata: {generateName: w-}\nspec:\n"
/* A leaf that other templates run; it takes `x` and gives `y` and the file `f`. */
#define LEAF                                                                            \
    "  - name: leaf\n"                                                                  \
    "    inputs: {parameters: [{name: x, value: d}]}\n"                                 \
    "    outputs:\n"                                                                    \
    "      parameters: [{name: y, valueFrom: {path: /tmp/y}}]\n"                        \
    "      artifacts: [{name: f, path: /tmp/f}]\n"                                      \
    "    container: {image: i, command: [c], args: ['{{inputs.parameters.x}}']}\n"

/* ------------------------------------------------------------------ what it becomes */

static void what_kfp_writes_is_read(void **state)
{
    (void)state;
    OWN_JSON json_t *flow = flow_of(
        "apiVersion: argoproj.io/v1alpha1\n"
        "kind: Workflow\n"
        "metadata:\n"
        "  generateName: train-\n"
        "  annotations: {pipelines.kubeflow.org/pipeline_spec: '{\"description\": \"Trains\n"
        "      it.\", \"inputs\": [{\"name\": \"n\", \"type\": \"Integer\", \"default\": \"3\"},\n"
        "      {\"name\": \"on\", \"type\": \"Bool\"}]}'}\n"
        "spec:\n"
        "  entrypoint: train\n"
        "  parallelism: 0\n"
        "  arguments:\n"
        "    parameters:\n"
        "    - {name: n, value: '3'}\n"
        "    - {name: \"on\"}\n"
        "  serviceAccountName: pipeline-runner\n"
        "  templates:\n"
        "  - name: train\n"
        "    inputs: {parameters: [{name: n}]}\n"
        "    dag:\n"
        "      tasks:\n"
        "      - {name: vol, template: vol}\n"
        "      - name: step\n"
        "        template: step\n"
        "        dependencies: [vol]\n"
        "        arguments:\n"
        "          parameters:\n"
        "          - {name: v, value: '{{tasks.vol.outputs.parameters.name}}'}\n"
        "  - name: vol\n"
        "    resource:\n"
        "      action: create\n"
        "      manifest: |\n"
        "        kind: PersistentVolumeClaim\n"
        "        metadata: {name: '{{workflow.name}}-pvc'}\n"
        "    outputs:\n"
        "      parameters:\n"
        "      - {name: name, valueFrom: {jsonPath: '{.metadata.name}'}}\n"
        "  - name: step\n"
        "    inputs: {parameters: [{name: v}]}\n"
        "    container:\n"
        "      image: python:3.9\n"
        "      command: [python, -c]\n"
        "      args: ['{{workflow.parameters.n}}', 10]\n"
        "      imagePullPolicy: IfNotPresent\n"
        "      resources: {limits: {cpu: 500m, memory: 1Gi, nvidia.com/gpu: 1}}\n"
        "      volumeMounts: [{mountPath: /workspace, name: vol}]\n"
        "    metadata:\n"
        "      labels: {pipelines.kubeflow.org/enable_caching: \"true\"}\n"
        "      annotations:\n"
        "        pipelines.kubeflow.org/max_cache_staleness: P1DT1H\n"
        "        pipelines.kubeflow.org/task_display_name: Trains\n"
        "    volumes:\n"
        "    - name: vol\n"
        "      persistentVolumeClaim: {claimName: '{{inputs.parameters.v}}'}\n");

    check_part(flow, "name", "'train-'");
    check_part(flow, "generate", "true");
    check_part(flow, "entry", "'train'");
    check_part(flow, "description", "'Trains it.'");
    check_part(flow, "inputs", "[{'default':'3','name':'n','type':'NUMBER_INTEGER'},"
                               "{'name':'on','type':'BOOLEAN'}]");
    check_part(flow, "templates train dag tasks 1",
               "{'after':['vol'],'artifacts':{},'line':22,'name':'step','parameters':{"
               "'v':{'text':'{{tasks.vol.outputs.parameters.name}}'}},'template':'step'}");
    check_part(flow, "templates vol resource action", "'create'");
    check_part(flow, "templates vol outputs parameters 0",
               "{'json_path':'{.metadata.name}','name':'name'}");
    check_part(flow, "templates step cache", "{'enabled':true,'staleness_s':90000.0}");
    check_part(flow, "templates step display", "'Trains'");
    check_part(flow, "templates step step args", "[{'text':'{{workflow.parameters.n}}'},'10']");
    check_part(flow, "templates step step resources",
               "{'cpu':0.5,'gpu':1,'memory':1073741824}");
    check_part(flow, "templates step step mounts", "[{'path':'/workspace','volume':'vol'}]");
    check_part(flow, "templates step step volumes",
               "[{'claim':{'text':'{{inputs.parameters.v}}'},'name':'vol'}]");
}

static void steps_come_after_the_group_before(void **state)
{
    (void)state;
    OWN_JSON json_t *flow = flow_of(HEAD
        "  entrypoint: main\n"
        "  templates:\n"
        "  - name: main\n"
        "    steps:\n"
        "    - - {name: a, template: leaf}\n"
        "      - {name: b, template: leaf, continueOn: {failed: true}}\n"
        "    - - name: c\n"
        "        template: leaf\n"
        "        arguments: {parameters: [{name: x, value: '{{steps.a.outputs.parameters.y}}'}]}\n"
        "        when: '{{steps.a.status}} == Succeeded'\n" LEAF);

    check_part(flow, "templates main dag style", "'steps'");
    check_part(flow, "templates main dag tasks 1 continue_on", "{'error':false,'failed':true}");
    check_part(flow, "templates main dag tasks 2 after", "['a','b']");
    check_part(flow, "templates main dag tasks 2 when", "'{{steps.a.status}} == Succeeded'");
    check_part(flow, "templates leaf outputs parameters", "[{'name':'y','path':'/tmp/y'}]");
}

static void loops_have_their_three_forms(void **state)
{
    (void)state;
    OWN_JSON json_t *flow = flow_of(HEAD
        "  entrypoint: main\n"
        "  arguments: {parameters: [{name: list, value: '[1]'}]}\n"
        "  templates:\n"
        "  - name: main\n"
        "    dag:\n"
        "      tasks:\n"
        "      - name: items\n"
        "        template: leaf\n"
        "        withItems: [1, two, {lr: 0.5, on: yes}]\n"
        "        arguments: {parameters: [{name: x, value: '{{item}}'}]}\n"
        "      - {name: tags, template: leaf, withItems: ['{{workflow.parameters.list}}']}\n"
        "      - {name: param, template: leaf, withParam: '{{workflow.parameters.list}}'}\n"
        "      - {name: constant, template: leaf, withParam: '[1, 2]'}\n"
        "      - name: count\n"
        "        template: leaf\n"
        "        withSequence: {start: '1', end: 5, format: 'a%02d'}\n"
        LEAF);

    check_part(flow, "templates main dag tasks 0 loop",
               "{'items':{'json':[1,'two',{'lr':0.5,'on':true}]}}");
    check_part(flow, "templates main dag tasks 1 loop",
               "{'items':{'text':'[\\'{{workflow.parameters.list}}\\']'}}");
    check_part(flow, "templates main dag tasks 2 loop",
               "{'items':{'text':'{{workflow.parameters.list}}'}}");
    check_part(flow, "templates main dag tasks 3 loop", "{'items':{'json':[1,2]}}");
    check_part(flow, "templates main dag tasks 4 loop",
               "{'sequence':{'end':'5','format':'a%02d','start':'1'}}");
}

static void what_a_task_depends_on_is_found_in_its_text(void **state)
{
    (void)state;
    OWN_JSON json_t *flow = flow_of(HEAD
        "  entrypoint: main\n"
        "  onExit: leaf\n"
        "  templates:\n"
        "  - name: main\n"
        "    dag:\n"
        "      failFast: false\n"
        "      tasks:\n"
        "      - {name: a-1, template: leaf}\n"
        "      - {name: b, template: leaf}\n"
        "      - {name: c, template: leaf, depends: 'a-1.Failed && (b || a-1.Errored)'}\n" LEAF);

    check_part(flow, "exit", "'leaf'");
    check_part(flow, "templates main dag fail_fast", "false");
    check_part(flow, "templates main dag tasks 2 after", "['a-1','b']");
    check_part(flow, "templates main dag tasks 2 depends",
               "'a-1.Failed && (b || a-1.Errored)'");
}

static void an_exit_handler_of_a_task_is_a_task_that_others_wait_for(void **state)
{
    (void)state;
    OWN_JSON json_t *flow = flow_of(
        HEAD "  entrypoint: main\n"
        "  templates:\n"
        "  - name: main\n"
        "    dag:\n"
        "      tasks:\n"
        "      - {name: a, template: leaf, onExit: leaf}\n"
        "      - {name: b, template: leaf, depends: a.Failed}\n"
        "  - name: steps\n"
        "    steps:\n"
        "    - - name: s-1\n"
        "        template: leaf\n"
        "        hooks: {exit: {template: say, expression: 'steps[\"s-1\"].status == \"Failed\"',\n"
        "          arguments: {parameters: [{name: m, value: '{{steps.s-1.status}}'}]}}}\n"
        "    - - {name: s-2, template: leaf}\n"
        "  - {name: say, inputs: {parameters: [{name: m}]}, container: {image: i}}\n"
        "  - {name: leaf, container: {image: i}}\n");
    check_part(flow, "templates main dag tasks 1",
               "{'after':['a'],'artifacts':{},'depends':'a.Succeeded || a.Failed || a.Errored',"
               "'hook':true,'line':10,'name':'a.onExit','parameters':{},'template':'leaf'}");
    check_part(flow, "templates main dag tasks 2 after", "['a','a.onExit']");
    check_part(flow, "templates steps dag tasks 1 parameters",
               "{'m':{'text':'{{steps.s-1.status}}'}}");
    check_part(flow, "templates steps dag tasks 1 when",
               "'{{=steps[\\'s-1\\'].status == \\'Failed\\'}}'");
    check_part(flow, "templates steps dag tasks 2 after", "['s-1','s-1.onExit']");
}

static void artifacts_say_where_they_come_from(void **state)
{
    (void)state;
    OWN_JSON json_t *flow = flow_of(HEAD
        "  entrypoint: main\n"
        "  arguments: {artifacts: [{name: seed, raw: {data: abc}}]}\n"
        "  templates:\n"
        "  - name: main\n"
        "    inputs: {artifacts: [{name: seed}]}\n"
        "    outputs: {artifacts: [{name: o, from: '{{tasks.a.outputs.artifacts.f}}'}]}\n"
        "    dag:\n"
        "      tasks:\n"
        "      - {name: a, template: leaf}\n"
        "      - name: b\n"
        "        template: use\n"
        "        dependencies: [a]\n"
        "        arguments:\n"
        "          artifacts:\n"
        "          - {name: one, from: '{{ tasks.a.outputs.artifacts.f }}'}\n"
        "          - {name: two, from: '{{inputs.artifacts.seed}}'}\n"
        "  - name: use\n"
        "    inputs:\n"
        "      artifacts:\n"
        "      - {name: one, path: /in/one}\n"
        "      - {name: two, path: /in/two}\n"
        "      - {name: page, path: /in/page, gcs: {bucket: h, key: p}}\n"
        "      - {name: object, path: /in/o, gcs: {bucket: b, key: k/x}}\n"
        "      - {name: maybe, path: /in/m, optional: true}\n"
        "    outputs: {artifacts: [{name: t, path: /o/t, archive: {none: {}}, globalName: g}]}\n"
        "    script: {image: i, command: [sh], source: 'cat {{inputs.artifacts.one.path}}'}\n"
        LEAF);

    check_part(flow, "templates main inputs artifacts", "[{'name':'seed','raw':'abc'}]");
    check_part(flow, "templates main outputs artifacts",
               "[{'name':'o','value':{'output':'f','task':'a'}}]");
    check_part(flow, "templates main dag tasks 1 artifacts",
               "{'one':{'output':'f','task':'a'},'two':{'input':'seed'}}");
    check_part(flow, "templates use inputs artifacts 1",
               "{'name':'two','path':'/in/two'}");
    check_part(flow, "templates use inputs artifacts 2",
               "{'name':'page','path':'/in/page','uri':'gs://h/p'}");
    check_part(flow, "templates use inputs artifacts 3",
               "{'name':'object','path':'/in/o','uri':'gs://b/k/x'}");
    check_part(flow, "templates use outputs artifacts",
               "[{'archive':false,'global':'g','name':'t','path':'/o/t'}]");
    check_part(flow, "templates use step script",
               "{'text':'cat {{inputs.artifacts.one.path}}'}");
}

static void a_template_says_how_it_is_retried_and_how_long_it_may_take(void **state)
{
    (void)state;
    OWN_JSON json_t *flow = flow_of(HEAD
        "  entrypoint: a\n"
        "  activeDeadlineSeconds: 60\n"
        "  ttlStrategy: {secondsAfterCompletion: 5, secondsAfterFailure: 9}\n"
        "  templateDefaults: {timeout: 1h30m, container: {image: i, command: [c]}}\n"
        "  templates:\n"
        "  - name: a\n"
        "    timeout: 90s\n"
        "    retryStrategy:\n"
        "      limit: '3'\n"
        "      retryPolicy: Always\n"
        "      backoff: {duration: 1m, factor: 2, maxDuration: '10m'}\n"
        "      expression: asInt(lastRetry.exitCode) > 1\n"
        "    container: {command: [d]}\n"
        "  - {name: b, container: {}, retryStrategy: {}}\n"
        "  - {name: s, suspend: {duration: '20'}}\n"
        "  - {name: t, suspend: }\n");

    check_part(flow, "deadline_s", "60");
    check_part(flow, "ttl", "{'failed':9,'succeeded':5}");
    check_part(flow, "templates a deadline_s", "90");
    check_part(flow, "templates a retry",
               "{'backoff_s':60,'expression':'asInt(lastRetry.exitCode) > 1','factor':2,"
               "'limit':3,'max_s':600,'policy':'Always'}");
    check_part(flow, "templates a step command", "['d']");
    check_part(flow, "templates a step image", "'i'");
    check_part(flow, "templates b deadline_s", "5400");
    check_part(flow, "templates b retry limit", "-1");
    check_part(flow, "templates b retry policy", "'OnFailure'");
    check_part(flow, "templates s suspend", "{'seconds':20}");
    check_part(flow, "templates t suspend", "{}");
}

static void a_step_has_environment_volumes_and_others_beside_it(void **state)
{
    (void)state;
    OWN_JSON json_t *flow = flow_of(HEAD
        "  entrypoint: a\n"
        "  volumes: [{name: all, emptyDir: {}}]\n"
        "  volumeClaimTemplates:\n"
        "  - metadata: {name: work}\n"
        "    spec: {resources: {requests: {storage: 1Gi}}}\n"
        "  templates:\n"
        "  - name: a\n"
        "    container:\n"
        "      image: i\n"
        "      workingDir: /w\n"
        "      env:\n"
        "      - {name: A, value: yes}\n"
        "      - {name: B, valueFrom: {secretKeyRef: {name: s, key: k, optional: true}}}\n"
        "      - {name: C, valueFrom: {fieldRef: {fieldPath: metadata.name}}}\n"
        "      envFrom: [{configMapRef: {name: m}, prefix: P_}]\n"
        "      volumeMounts:\n"
        "      - {name: all, mountPath: /a}\n"
        "      - {name: work, mountPath: /w, subPath: s}\n"
        "    volumes: [{name: keys, secret: {secretName: s, items: [{key: k, path: f}]}}]\n"
        "    initContainers: [{name: first, image: j, command: [c], mirrorVolumeMounts: true}]\n"
        "    sidecars: [{name: beside, image: k, args: [x],\n"
        "                volumeMounts: [{name: keys, mountPath: /k, readOnly: true}]}]\n");

    check_part(flow, "claims", "[{'name':'work','size':1073741824}]");
    check_part(flow, "templates a step env",
               "[{'name':'A','value':'true'},{'name':'B','secret':{'key':'k','name':"
               "'s','optional':true}},{'field':'metadata.name','name':'C'}]");
    check_part(flow, "templates a step env_from", "[{'config':'m','prefix':'P_'}]");
    check_part(flow, "templates a step volumes",
               "[{'name':'keys','secret':{'items':[{'key':'k','path':'f'}],"
               "'name':'s'}}]");
    check_part(flow, "templates a step init 0 mounts 1",
               "{'path':'/w','sub':'s','volume':'work'}");
    check_part(flow, "templates a step sidecars 0",
               "{'args':['x'],'command':[],'env':[],'image':'k','mounts':[{'path':'/k',"
               "'read_only':true,'volume':'keys'}],'name':'beside'}");
}

/* As kfp writes it where a limit is a parameter of the pipeline. */
static void amounts_may_be_parameters(void **state)
{
    (void)state;
    OWN_JSON json_t *flow = flow_of(HEAD
        "  entrypoint: a\n"
        "  arguments: {parameters: [{name: mem, value: 1Gi}]}\n"
        "  templates:\n"
        "  - name: a\n"
        "    inputs: {parameters: [{name: mem}]}\n"
        "    container: {image: i, resources: {limits: {cpu: 1}, requests: {cpu: 500m}}}\n"
        "    podSpecPatch: '{\"containers\": [{\"name\": \"main\", \"resources\": {\"limits\":\n"
        "      {\"memory\": \"{{inputs.parameters.mem}}\"}}}]}'\n");

    check_part(flow, "templates a step resources",
               "{'cpu':1.0,'memory':{'text':'{{inputs.parameters.mem}}'},'requests':{'cpu':0.5}}");
}

static void outputs_are_taken_from_files_parameters_and_expressions(void **state)
{
    (void)state;
    OWN_JSON json_t *flow = flow_of(HEAD
        "  entrypoint: main\n"
        "  templates:\n"
        "  - name: main\n"
        "    steps: [[{name: a, template: leaf}]]\n"
        "    outputs:\n"
        "      parameters:\n"
        "      - name: p\n"
        "        valueFrom: {parameter: '{{steps.a.outputs.parameters.y}}', default: d}\n"
        "      - {name: q, valueFrom: {expression: \"steps.a.outputs.parameters.y ?? 'z'\"}}\n"
        "  - name: ask\n"
        "    suspend: {}\n"
        "    outputs: {parameters: [{name: r, valueFrom: {supplied: {}}}]}\n" LEAF);

    check_part(flow, "templates main outputs parameters",
               "[{'default':'d','name':'p','value':{'text':'{{steps.a.outputs.parameters.y}}"
               "'}},{'name':'q','value':{'text':'{{=steps.a.outputs.parameters.y ?? 'z'}}'}}]");
    check_part(flow, "templates ask outputs parameters", "[{'name':'r','supplied':true}]");
}

static void json_is_read_with_characters_outside_the_first_plane(void **state)
{
    (void)state;
    OWN_JSON json_t *flow = flow_of(
        "{\"apiVersion\": \"argoproj.io/v1alpha1\", \"kind\": \"Workflow\", \"metadata\": "
        "{\"name\": \"w\"}, \"spec\": {\"entrypoint\": \"a\", \"templates\": [{\"name\": \"a\", "
        "\"container\": {\"image\": \"i\", \"args\": [\"\\ud83d\\ude00 \\\\ud83d \\u00e9\"]}}]}}");

    check_part(flow, "generate", "false");
    check_part(flow, "templates a step args", "['\xF0\x9F\x98\x80 \\\\ud83d \xC3\xA9']");
}

static void tags_of_others_stay(void **state)
{
    (void)state;
    OWN_JSON json_t *flow = flow_of(HEAD
        "  entrypoint: a\n"
        "  templates: [{name: a, container: {image: i, args: ['{{ .Values.x }} {{user}}']}}]\n");

    check_part(flow, "templates a step args", "[{'text':'{{ .Values.x }} {{user}}'}]");
}

/* ------------------------------------------------------------------ what is wrong with it */

#define ONE(body) HEAD "  entrypoint: a\n  templates:\n  - name: a\n" body
#define DAG(tasks) HEAD "  entrypoint: a\n  templates:\n  - name: a\n    dag:\n      tasks:\n" \
    tasks LEAF

static void wrong_graphs_are_refused(void **state)
{
    (void)state;
    static const struct flow_wrong cases[] = {
        { DAG("      - {name: p, template: leaf, dependencies: [r]}\n"
              "      - {name: q, template: leaf, dependencies: [p]}\n"
              "      - {name: r, template: leaf, dependencies: [q]}\n"),
          "p.yaml:10: template \"a\", task \"p\": comes after itself: its dependencies form a "
          "cycle" },
        { DAG("      - {name: p, template: leaf, dependencies: [p]}\n"), "comes after itself" },
        { DAG("      - {name: p, template: leav}\n"),
          "p.yaml:10: template \"a\", task \"p\": there is no template \"leav\"; did you mean "
          "\"leaf\"?" },
        { DAG("      - {name: p, template: leaf, dependencies: [nobody]}\n"),
          "comes after \"nobody\", and there is no such task" },
        { DAG("      - {name: p, template: leaf}\n      - {name: p, template: leaf}\n"),
          "p.yaml:11: template \"a\", task \"p\": there is another task of this name (line 10)" },
        { DAG("      - {name: p, template: a}\n"), "which it is part of, and no \"when\" ends it" },
        { DAG("      - {name: p, template: leaf, depends: 'q &&'}\n"), "p.yaml:10: templates[0]" },
        { DAG("      - {name: p, template: leaf, depends: q, dependencies: [q]}\n"), "not both" },
        { DAG("      - {name: p.q, template: leaf}\n"), "\"p.q\" is no name" },
        { ONE("    dag: {target: z, tasks: [{name: p, template: a, when: 'x == y'}]}\n"),
          "target \"z\" is no task of it" },
        { HEAD "  entrypoint: b\n  templates: [{name: a, container: {image: i}}]\n",
          "p.yaml:5: entrypoint: there is no template \"b\"" },
        { HEAD "  entrypoint: a\n  onExit: e\n  templates: [{name: a, container: {image: i}}]\n",
          "p.yaml:6: onExit: there is no template \"e\"" },
        { HEAD "  entrypoint: a\n  templates: [{name: a, container: {image: i}}, "
               "{name: a, container: {image: i}}]\n", "a template \"a\" is there already" },
        { ONE("    steps: [{name: x, template: a}]\n"), "must be a list of steps" },
        { ONE("    container: {image: i}\n    suspend: {}\n"), "a template is one thing" },
        { ONE("    inputs: {}\n"), "needs one of container, script, dag" },
    };
    CHECK_WRONG(cases);
}

static void what_is_needed_and_not_given_is_told(void **state)
{
    (void)state;
    static const struct flow_wrong cases[] = {
        { HEAD "  entrypoint: a\n  templates:\n  - name: a\n    steps: [[{name: s, template: b}]]\n"
               "  - {name: b, inputs: {parameters: [{name: x}]}, container: {image: i}}\n",
          "p.yaml:8: template \"a\", task \"s\": template \"b\" needs parameter \"x\"" },
        { HEAD "  entrypoint: a\n  templates:\n  - name: a\n    steps: [[{name: s, template: b}]]\n"
               "  - {name: b, inputs: {artifacts: [{name: x, path: /x}]}, container: {image: i}}\n",
          "template \"b\" needs artifact \"x\"" },
        { HEAD "  entrypoint: a\n  templates:\n"
               "  - {name: a, inputs: {parameters: [{name: x}]}, container: {image: i}}\n",
          "p.yaml:5: entrypoint: template \"a\" needs parameter \"x\", which is none of "
          "spec.arguments" },
        { ONE("    container: {command: [c]}\n"), "needs \"image\"" },
        { ONE("    script: {image: i, command: [c]}\n"), "needs \"source\"" },
        { ONE("    outputs: {parameters: [{name: x}]}\n    container: {image: i}\n"),
          "needs valueFrom" },
        { ONE("    container: {image: i, volumeMounts: [{name: v, mountPath: /v}]}\n"),
          "there is no volume \"v\"" },
        { DAG("      - {name: p, template: leaf, arguments: {parameters: [{name: x}]}}\n"),
          "needs a value" },
        { "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata: {labels: {a: b}}\n"
          "spec: {entrypoint: a}\n", "p.yaml:3: metadata: a Workflow needs a name" },
    };
    CHECK_WRONG(cases);
}

static void names_that_nothing_has_are_refused(void **state)
{
    (void)state;
    static const struct flow_wrong cases[] = {
        { ONE("    container: {image: i, args: ['{{inputs.parameters.z}}']}\n"),
          "p.yaml:8: templates[0].container.args[0]: {{inputs.parameters.z}}: this template has no "
          "such input \"z\"" },
        { ONE("    container: {image: i, args: ['{{workflow.parameters.z}}']}\n"),
          "\"z\" is no parameter of the run" },
        { ONE("    container: {image: i, args: ['{{workflow.nam}}']}\n"),
          "a Workflow has no \"nam\"" },
        { ONE("    container: {image: i, args: ['{{item}}']}\n"), "only a task with a loop" },
        { DAG("      - {name: p, template: leaf, when: '{{user}} == me'}\n"),
          "p.yaml:10: templates[0].dag.tasks[0].when: {{user}}: \"user\" is no name that is known "
          "here" },
        { ONE("    container: {image: i, args: ['{{tasks.b.outputs.result}}']}\n"),
          "\"b\" is no task of this template" },
        { ONE("    container: {image: i, args: ['{{=nothing.at.all}}']}\n"),
          "\"nothing\" is no name" },
        { ONE("    container: {image: i, args: ['{{=1 +}}']}\n"), "p.yaml:8: templates[0]" },
        { DAG("      - {name: p, template: leaf}\n"
              "      - {name: q, template: leaf, when: '{{tasks.p.outputs.result}} == 1'}\n"),
          "p.yaml:11: templates[0].dag.tasks[1].when: {{tasks.p.outputs.result}}: task \"p\" may "
          "not have run by then; depend on it" },
        { DAG("      - {name: p, template: leaf}\n"
              "      - name: q\n        template: leaf\n        dependencies: [p]\n"
              "        arguments: {parameters: [{name: x, value: "
              "'{{tasks.p.outputs.parameters.z}}'}]}\n"),
          "its template has no output parameter \"z\"" },
        { DAG("      - {name: p, template: leaf}\n"
              "      - name: q\n        template: leaf\n        dependencies: [p]\n"
              "        arguments: {artifacts: [{name: x, from: "
              "'{{tasks.p.outputs.artifacts.z}}'}]}\n"),
          "its template has no output artifact \"z\"" },
        { DAG("      - {name: p, template: leaf, when: '{{steps.p.status}} == 1'}\n"),
          "in a dag it is tasks.p" },
        { DAG("      - {name: p, template: leaf, when: '(1 == 1'}\n"), "dag.tasks[0].when: " },
    };
    CHECK_WRONG(cases);
}

static void paths_that_climb_are_refused(void **state)
{
    (void)state;
    static const struct flow_wrong cases[] = {
        { ONE("    outputs: {artifacts: [{name: x, path: /tmp/../etc/passwd}]}\n"
              "    container: {image: i}\n"),
          "p.yaml:8: templates[0].outputs.artifacts[0].path: \"/tmp/../etc/passwd\" climbs" },
        { ONE("    outputs: {parameters: [{name: x, valueFrom: {path: ../x}}]}\n"
              "    container: {image: i}\n"), "\"../x\" is not absolute" },
        { ONE("    inputs: {artifacts: [{name: x, path: /, raw: {data: a}}]}\n"
              "    container: {image: i}\n"), "is the whole file system" },
        { ONE("    container: {image: i, volumeMounts: [{name: v, mountPath: v}]}\n"),
          "is not absolute" },
        { ONE("    container:\n      image: i\n"
              "      volumeMounts: [{name: v, mountPath: /v, subPath: a/../..}]\n"
              "    volumes: [{name: v, emptyDir: {}}]\n"), "climbs out of the volume" },
        { ONE("    container: {image: i}\n    volumes: [{name: v, hostPath: {path: /a/../b}}]\n"),
          "climbs" },
        { ONE("    container: {image: i}\n"
              "    volumes: [{name: v, secret: {secretName: s, items: [{key: k, path: ../x}]}}]\n"),
          "climbs out of the volume" },
    };
    CHECK_WRONG(cases);
}

static void places_of_the_machine_are_not_written_to(void **state)
{
    (void)state;
    static const struct flow_wrong cases[] = {
        { ONE("    outputs: {parameters: [{name: x, valueFrom: {path: /etc}}]}\n"
              "    container: {image: i}\n"),
          "p.yaml:8: templates[0].outputs.parameters[0].valueFrom.path: \"/etc\" is the machine's "
          "own: a step leaves its outputs below /tmp, in a volume, or where nothing is" },
        { ONE("    outputs: {artifacts: [{name: x, path: /proc/x}]}\n"
              "    container: {image: i}\n"), "artifacts[0].path: \"/proc/x\" is the machine's" },
        { ONE("    container:\n      image: i\n"
              "      volumeMounts: [{name: v, mountPath: /etc/conf}]\n"
              "    volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]\n"),
          "p.yaml:10: templates[0].container.volumeMounts[0].mountPath: /etc/conf is the system's "
          "own; mount the volume elsewhere" },
    };
    CHECK_WRONG(cases);
    static const char *const fine[] = {
        ONE("    outputs: {artifacts: [{name: x, path: /etc/x}, {name: y, path: /mnt}]}\n"
            "    container: {image: i, volumeMounts: [{name: v, mountPath: /mnt},\n"
            "      {name: s, mountPath: /etc/secret}]}\n"
            "    volumes: [{name: v, emptyDir: {}}, {name: s, secret: {secretName: s}}]\n"),
        ONE("    outputs: {artifacts: [{name: x, path: /tmp}, {name: y, path: /tmp/}]}\n"
            "    container: {image: i}\n"),
    };
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++)
        json_decref(flow_of(fine[i]));
}

static void what_is_not_there_is_refused_by_name(void **state)
{
    (void)state;
    static const struct flow_wrong cases[] = {
        { ONE("    daemon: true\n    container: {image: i}\n"),
          "p.yaml:8: templates[0].daemon: not supported: " },
        { ONE("    http: {url: u}\n"), "templates[0].http: not supported" },
        { ONE("    container: {image: i}\n    memoize: {key: k}\n"), "memoize: not supported" },
        { ONE("    container: {image: i}\n    synchronization: {mutex: {name: m}}\n"),
          "synchronization: not supported" },
        { ONE("    container: {image: i}\n    podSpecPatch: '{\"hostPID\": true}'\n"),
          "p.yaml:9: templates[0].podSpecPatch.hostPID: not supported" },
        { ONE("    container: {image: i}\n    podSpecPatch: '{'\n"), "podSpecPatch: the patch:" },
        { ONE("    container: {image: i}\n"
              "    podSpecPatch: '{\"containers\": [{\"name\": \"wait\"}]}'\n"),
          "of a patch resources of the container \"main\" are read" },
        { HEAD "  entrypoint: a\n  podSpecPatch: x\n", "podSpecPatch: not supported" },
        { ONE("    container: {image: i, securityContext: {privileged: true}}\n"),
          "privileged: not supported" },
        { ONE("    inputs: {artifacts: [{name: x, path: /x, s3: {key: k}}]}\n"
              "    container: {image: i}\n"), "artifacts[0].s3: not supported" },
        { ONE("    inputs: {artifacts: [{name: x, path: /x, git: {repo: k}}]}\n"
              "    container: {image: i}\n"), "artifacts[0].git: not supported" },
        { ONE("    container: {image: i}\n    volumes: [{name: v, nfs: {server: s}}]\n"),
          "volumes[0].nfs: not supported" },
        { ONE("    container: {image: i}\n    retries: 3\n"),
          "p.yaml:9: templates[0].retries: no key of Argo" },
        { ONE("    container: {image: i, comand: [x]}\n"), "did you mean \"command\"?" },
        { ONE("    resource: {action: create, manifest: 'kind: Pod'}\n"),
          "a resource of kind Pod; the kinds here are" },
        { ONE("    resource: {action: patch, manifest: 'a: b'}\n"), "a resource of no kind" },
        { ONE("    resource: {action: patch, manifest: '{\"a\": 1, \"kind\": \"Pod\"}'}\n"),
          "a resource of kind Pod" },
        { ONE("    resource: {action: get, manifest: 'mankind: Secret'}\n"),
          "a resource of no kind" },
        { ONE("    resource: {action: delete, flags: [pod, x]}\n"), "flags: not supported" },
        { ONE("    resource: {action: make, manifest: 'kind: Secret'}\n"), "must be create, get" },
        { DAG("      - {name: p, templateRef: {name: n, template: t}}\n"),
          "tasks[0].templateRef: not supported: there are no WorkflowTemplates" },
        { DAG("      - {name: p, template: leaf, hooks: {running: {template: leaf}}}\n"),
          "tasks[0].hooks.running: not supported: of hooks only \"exit\" is run" },
        { ONE("    inputs: {artifacts: [{name: x, path: /x, raw: {data: a}, mode: u+x}]}\n"
              "    container: {image: i}\n"), "artifacts[0].mode: must be the rights of a file" },
        { ONE("    outputs: {artifacts: [{name: x, path: /tmp/x, mode: 0755}]}\n"
              "    container: {image: i}\n"), "artifacts[0].mode: is for an input of a template" },
        { ONE("    inputs: {artifacts: [{name: x, path: /x, raw: {data: a}, subPath: b}]}\n"
              "    container: {image: i}\n"), "artifacts[0].subPath: not supported" },
        { ONE("    inputs: {artifacts: [{name: x, path: /x, raw: {data: a}, recurseMode: true}]}\n"
              "    container: {image: i}\n"), "artifacts[0].recurseMode: not supported" },
        { "apiVersion: argoproj.io/v1alpha1\nkind: CronWorkflow\n",
          "p.yaml:2: a CronWorkflow is not read" },
        { "apiVersion: argoproj.io/v1alpha1\nkind: WorkflowTemplate\n", "is not run by itself" },
        { "apiVersion: v1\nkind: ConfigMap\n", "a ConfigMap is no pipeline" },
        { "apiVersion: paddlepaddle.org/v1\nkind: TrainingJob\n", "p.yaml:2: a TrainingJob is run by "
          "a step" },
        { "a: b\n", "this is no pipeline" },
        { "- a\n", "this is no pipeline" },
        { "", "this is no pipeline" },
    };
    CHECK_WRONG(cases);
}

static void wrong_values_are_refused(void **state)
{
    (void)state;
    static const struct flow_wrong cases[] = {
        { ONE("    container: {image: i}\n    timeout: soon\n"), "\"soon\" is no duration" },
        { ONE("    container: {image: i, resources: {limits: {cpu: many}}}\n"),
          "\"many\" is no amount" },
        { ONE("    container: {image: i}\n    retryStrategy: {limit: few}\n"),
          "must be a whole number" },
        { ONE("    container: {image: i}\n    retryStrategy: {retryPolicy: Never}\n"),
          "must be Always" },
        { ONE("    container: {image: i}\n    parallelism: -1\n"), "0 (no limit) or more" },
        { DAG("      - {name: p, template: leaf, withParam: 'a b'}\n"), "is no JSON list" },
        { DAG("      - {name: p, template: leaf, withItems: 3}\n"), "must be a list" },
        { DAG("      - {name: p, template: leaf, withSequence: {start: 1}}\n"),
          "needs one of count and end" },
        { DAG("      - {name: p, template: leaf, withItems: [1], withSequence: {count: 1}}\n"),
          "a task has one loop" },
        { HEAD "  entrypoint: a\n  templates: 3\n", "needs a list of templates" },
        { HEAD "  entrypoint: a\n  templateDefaults: [x]\n", "templateDefaults: must be a map" },
        { ONE("    inputs: {artifacts: [{name: x, path: /x, gcs: [y]}]}\n"
              "    container: {image: i}\n"), "gcs: must be a map" },
        { ONE("    inputs: {artifacts: [{name: x, path: /x, http: {url: 'http://h/p'}}]}\n"
              "    container: {image: i}\n"), "http: not supported: the server fetches nothing" },
        { HEAD "  entrypoint: a\n  entrypoint: a\n", "key \"entrypoint\" is given twice" },
        { "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata: {name: My Flow}\n",
          "p.yaml:3: metadata.name: \"My Flow\" is no name" },
        { ONE("    metadata: {annotations: {pipelines.kubeflow.org/max_cache_staleness: 3 days}}\n"
              "    container: {image: i}\n"), "is no duration: write P0D" },
    };
    CHECK_WRONG(cases);
}

/* Nine lists, each of nine aliases of the one before: a billion values. */
static void an_alias_bomb_is_refused(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN_BUF text = BUF_INIT;
    json_t *flow = NULL;

    buf_text(&text, "a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for (int i = 1; i < 10; i++) {
        buf_printf(&text, "a%d: &a%d [", i, i);
        for (int k = 0; k < 9; k++)
            buf_printf(&text, "%s*a%d", k ? ", " : "", i - 1);
        buf_text(&text, "]\n");
    }
    assert_fails(flow_compile("p.yaml", text.data, text.n, &flow, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "p.yaml:"));
    assert_non_null(strstr(err.text, "too many values (aliases count once for each use)"));
}

/* Aliases as people use them, and several documents of which some are empty. */
static void aliases_are_followed(void **state)
{
    (void)state;
    OWN_JSON json_t *flow = flow_of("---\n---\n" HEAD
        "  entrypoint: a\n"
        "  templates:\n"
        "  - {name: a, container: &c {image: i, command: [x]}}\n"
        "  - {name: b, container: *c}\n"
        "---\n");

    check_part(flow, "templates b step command", "['x']");
}

static void ten_thousand_tasks_are_read_in_proportion(void **state)
{
    (void)state;
    OWN_BUF text = BUF_INIT;

    buf_text(&text, HEAD "  entrypoint: a\n  templates:\n" LEAF "  - name: a\n    dag:\n"
                         "      tasks:\n      - {name: t0, template: leaf}\n");
    for (int i = 1; i < 10000; i++)
        buf_printf(&text, "      - name: t%d\n        template: leaf\n        dependencies: [t%d]\n"
                   "        arguments: {parameters: [{name: x, value: "
                   "'{{tasks.t%d.outputs.parameters.y}}'}]}\n", i, i - 1, i > 5 ? i - 5 : 0);
    OWN_JSON json_t *flow = flow_of(text.data);
    check_part(flow, "templates a dag tasks 9999 after", "['t9998']");
}

CHECK_MAIN(what_kfp_writes_is_read, steps_come_after_the_group_before, loops_have_their_three_forms,
           what_a_task_depends_on_is_found_in_its_text,
           an_exit_handler_of_a_task_is_a_task_that_others_wait_for, artifacts_say_where_they_come_from,
           a_template_says_how_it_is_retried_and_how_long_it_may_take,
           a_step_has_environment_volumes_and_others_beside_it,
           amounts_may_be_parameters, outputs_are_taken_from_files_parameters_and_expressions,
           json_is_read_with_characters_outside_the_first_plane, tags_of_others_stay,
           wrong_graphs_are_refused, what_is_needed_and_not_given_is_told,
           names_that_nothing_has_are_refused, paths_that_climb_are_refused,
           places_of_the_machine_are_not_written_to,
           what_is_not_there_is_refused_by_name, wrong_values_are_refused, an_alias_bomb_is_refused,
           aliases_are_followed, ten_thousand_tasks_are_read_in_proportion)
