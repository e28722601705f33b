/* tests/unit/ir_test.c - PipelineSpecs of kfp 2: what they become, and how a wrong one is told */
#include "pipelines/flow.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/own.h"
#include "pipelines/pip.h"
#include "tests/flow_check.h"

#define HEAD "schemaVersion: 2.1.0\nsdkVersion: kfp-2.17.0\npipelineInfo: {name: p}\n"
/* A component that takes `x` and gives `y` and the data set `d`. */
#define LEAF                                                                            \
    "components:\n"                                                                     \
    "  leaf:\n"                                                                         \
    "    executorLabel: run\n"                                                          \
    "    inputDefinitions:\n"                                                           \
    "      parameters:\n"                                                               \
    "        x: {parameterType: NUMBER_INTEGER, defaultValue: 3.0, isOptional: true}\n" \
    "    outputDefinitions:\n"                                                          \
    "      parameters: {y: {parameterType: STRING}}\n"                                  \
    "      artifacts: {d: {artifactType: {schemaTitle: system.Dataset}}}\n"
#define RUN                                                                             \
    "deploymentSpec:\n"                                                                 \
    "  executors:\n"                                                                    \
    "    run:\n"                                                                        \
    "      container:\n"                                                                \
    "        image: alpine\n"                                                           \
    "        command: [prog]\n"                                                         \
    "        args: [\"{{$.inputs.parameters['x']}}\", plain]\n"
#define ROOT "root:\n  dag:\n    tasks:\n"
#define A "      a: {componentRef: {name: leaf}}\n"
#define B "      b:\n        componentRef: {name: leaf}\n"

static void a_component_is_a_template(void **state)
{
    (void)state;
    OWN_JSON json_t *flow = flow_of(HEAD LEAF RUN ROOT A
        "  inputDefinitions:\n    parameters:\n"
        "      n: {parameterType: NUMBER_INTEGER, defaultValue: 2.0, description: how many}\n"
        "      o: {parameterType: STRING, isOptional: true}\n"
        "      l: {parameterType: LIST, defaultValue: [1.0, 2.5, 'x', true, null]}\n");

    check_part(flow, "dialect", "'ir'");
    check_part(flow, "name", "'p'");
    check_part(flow, "inputs 0",
               "{'default':2,'description':'how many','name':'n','type':'NUMBER_INTEGER'}");
    check_part(flow, "inputs 1", "{'name':'o','optional':true,'type':'STRING'}");
    check_part(flow, "inputs 2 default", "[1,2.5,'x',true,null]");
    check_part(flow, "templates leaf inputs parameters",
               "[{'default':{'json':3},'name':'x','optional':true,'type':'NUMBER_INTEGER'}]");
    check_part(flow, "templates leaf outputs",
               "{'artifacts':[{'name':'d','type':'system.Dataset'}],"
               "'parameters':[{'name':'y','type':'STRING'}]}");
    check_part(flow, "templates leaf step args",
               "[{'format':'{{$.inputs.parameters['x']}}'},'plain']");
    check_part(flow, "templates leaf cache", "{'enabled':false}");
}

static void tasks_say_where_values_come_from(void **state)
{
    (void)state;
    OWN_JSON json_t *flow = flow_of(HEAD LEAF RUN ROOT A B
        "        dependentTasks: [a]\n"
        "        cachingOptions: {enableCache: true}\n"
        "        retryPolicy: {maxRetryCount: 2, backoffDuration: 5s, backoffFactor: 3.0,"
        " backoffMaxDuration: 60s}\n"
        "        taskInfo: {name: shown}\n"
        "        inputs: {parameters: {x: {taskOutputParameter: {producerTask: a,"
        " outputParameterKey: y}, parameterExpressionSelector: 'parseJson(string_value)"
        "[\"k\"][0]'}}}\n"
        "      c:\n        componentRef: {name: leaf}\n"
        "        inputs: {parameters: {q: {componentInputParameter: n},"
        " x: {runtimeValue: {constant: [\"{{$.inputs.parameters['q']}}\", 1.0]}}}}\n"
        "        triggerPolicy: {condition: \"int(inputs.parameter_values['q']) > 2\"}\n"
        "      e:\n        componentRef: {name: leaf}\n"
        "        inputs: {parameters: {x: {taskFinalStatus: {producerTask: b}}}}\n"
        "        triggerPolicy: {strategy: ALL_UPSTREAM_TASKS_COMPLETED}\n"
        "  inputDefinitions: {parameters: {n: {parameterType: NUMBER_INTEGER}}}\n");

    check_part(flow, "templates root dag tasks 1 parameters x",
               "{'output':'y','path':['k',0],'task':'a'}");
    check_part(flow, "templates root dag tasks 1 after", "['a','a']");
    check_part(flow, "templates root dag tasks 1 display", "'shown'");
    check_part(flow, "templates root dag tasks 1 template", "'leaf@2'");
    check_part(flow, "templates leaf@2 cache", "{'enabled':true}");
    check_part(flow, "templates leaf@2 retry",
               "{'backoff_s':5.0,'factor':3.0,'limit':2.0,'max_s':60.0,'policy':'Always'}");
    check_part(flow, "templates root dag tasks 2 parameters x",
               "{'fill':['{{$.inputs.parameters['q']}}',1],'with':{'q':{'input':'n'}}}");
    check_part(flow, "templates root dag tasks 2 when",
               "'int(inputs.parameter_values['q']) > 2'");
    check_part(flow, "templates root dag tasks 3 always", "true");
    check_part(flow, "templates root dag tasks 3 parameters x", "{'status':'b'}");
}

#define LOOP                                                                            \
    "  loop:\n"                                                                         \
    "    dag:\n"                                                                        \
    "      tasks:\n"                                                                    \
    "        t: {componentRef: {name: leaf}, inputs: {parameters: {x:"                  \
    " {componentInputParameter: i}}}}\n"                                                \
    "        u: {componentRef: {name: leaf}}\n"                                         \
    "      outputs:\n"                                                                  \
    "        parameters:\n"                                                             \
    "          all: {valueFromParameter: {producerSubtask: t, outputParameterKey: y}}\n" \
    "          one: {valueFromOneof: {parameterSelectors: [{producerSubtask: t,"        \
    " outputParameterKey: y}, {producerSubtask: u, outputParameterKey: y}]}}\n"         \
    "        artifacts:\n"                                                              \
    "          ds: {artifactSelectors: [{producerSubtask: u, outputArtifactKey: d}]}\n" \
    "    inputDefinitions: {parameters: {i: {parameterType: NUMBER_INTEGER}}}\n"        \
    "    outputDefinitions:\n"                                                          \
    "      parameters: {all: {parameterType: LIST}, one: {parameterType: STRING}}\n"    \
    "      artifacts: {ds: {artifactType: {schemaTitle: system.Dataset},"               \
    " isArtifactList: true}}\n"

static void loops_have_items_and_lists_of_outputs(void **state)
{
    (void)state;
    OWN_JSON json_t *flow = flow_of(HEAD LEAF LOOP RUN ROOT
        "      l:\n        componentRef: {name: loop}\n"
        "        iteratorPolicy: {parallelismLimit: 2}\n"
        "        parameterIterator: {itemInput: i, items: {raw: '[1, 2]'}}\n"
        "      m:\n        componentRef: {name: loop}\n"
        "        inputs: {parameters: {list: {taskOutputParameter: {producerTask: l,"
        " outputParameterKey: all}}}}\n"
        "        parameterIterator: {itemInput: i, items: {inputParameter: list}}\n");

    check_part(flow, "templates root dag tasks 0 loop",
               "{'item':'i','items':{'json':[1,2]},'parallelism':2}");
    check_part(flow, "templates root dag tasks 1 loop",
               "{'item':'i','items':{'output':'all','task':'l'}}");
    check_part(flow, "templates loop outputs parameters",
               "[{'name':'all','type':'LIST','value':{'output':'y','task':'t'}},"
               "{'first':[{'output':'y','task':'t'},{'output':'y','task':'u'}],'name':'one',"
               "'type':'STRING'}]");
    check_part(flow, "templates loop outputs artifacts 0 value", "{'output':'d','task':'u'}");
}

static void volumes_are_named_by_tasks(void **state)
{
    (void)state;
    OWN_JSON json_t *flow = flow_of(HEAD LEAF
        "  make:\n    executorLabel: make\n"
        "    inputDefinitions: {parameters: {pvc_name: {parameterType: STRING},"
        " size: {parameterType: STRING}, access_modes: {parameterType: LIST}}}\n"
        "    outputDefinitions: {parameters: {name: {parameterType: STRING}}}\n"
        RUN "    make: {container: {image: argostub/createpvc}}\n" ROOT
        "      v:\n        componentRef: {name: make}\n"
        "        inputs: {parameters: {pvc_name: {runtimeValue: {constant: z}}, size:"
        " {runtimeValue: {constant: 1Gi}}, access_modes: {runtimeValue: {constant: [x]}}}}\n" A
        "---\n"
        "platforms:\n  kubernetes:\n    deploymentSpec:\n      executors:\n        run:\n"
        "          pvcMount: [{mountPath: /m, subPath: s, pvcNameParameter: {taskOutputParameter:"
        " {producerTask: v, outputParameterKey: name}}}]\n"
        "          secretAsEnv: [{secretName: s, keyToEnv: [{secretKey: k, envVar: E}]}]\n"
        "          emptyDirMounts: [{volumeName: w, mountPath: /w}]\n"
        "          activeDeadlineSeconds: '20'\n"
        "          imagePullPolicy: Always\n");

    check_part(flow, "templates root dag tasks 1 parameters",
               "{'platform:0':{'output':'name','task':'v'}}");
    check_part(flow, "templates root dag tasks 1 after", "['v']");
    check_part(flow, "templates leaf step mounts",
               "[{'path':'/m','sub':'s','volume':'platform-0'},"
               "{'path':'/w','volume':'platform-2'}]");
    check_part(flow, "templates leaf step volumes 0",
               "{'claim':{'input':'platform:0'},'name':'platform-0'}");
    check_part(flow, "templates leaf step env",
               "[{'name':'E','secret':{'key':'k','name':'s','optional':false}}]");
    check_part(flow, "templates leaf deadline_s", "20.0");
    check_part(flow, "templates make resource action", "'create'");
    check_part(flow, "templates make outputs parameters 0 json_path", "'{.metadata.name}'");
}

static void what_is_wrong_is_told_by_name_and_line(void **state)
{
    (void)state;
    static const struct flow_wrong cases[] = {
        { HEAD ROOT "      a: {componentRef: {name: nobody}}\n",
          "p.yaml:7: root.dag.tasks.a.componentRef: there is no component \"nobody\"" },
        { HEAD LEAF RUN ROOT B "        dependentTasks: [z]\n", "there is no task \"z\" here" },
        { HEAD LEAF RUN ROOT B "        dependentTasks: [b]\n", "tasks.b: waits for itself" },
        { HEAD LEAF RUN ROOT A B "        inputs: {parameters: {x: {taskOutputParameter:"
          " {producerTask: a, outputParameterKey: z}}}}\n",
          "task \"a\" has no output parameter \"z\"" },
        { HEAD LEAF RUN ROOT B "        inputs: {parameters: {x: {componentInputParameter: z}}}\n",
          "the component has no input parameter of this name" },
        { HEAD LEAF RUN ROOT B "        triggerPolicy: {condition: '1 +'}\n", "condition" },
        { HEAD LEAF RUN ROOT B "        triggerPolicy: {strategy: SOME}\n",
          "\"SOME\" is not supported" },
        { HEAD LEAF RUN ROOT B "        parameterIterator: {itemInput: x, items: {raw: '{'}}\n",
          "must be the text of a JSON list" },
        { HEAD LEAF RUN ROOT B "        magic: 1\n", "p.yaml:25: root.dag.tasks.b.magic: is not "
                                                      "supported" },
        { HEAD LEAF RUN "        lifecycle: {}\n" ROOT A, "lifecycle: is not supported" },
        { HEAD LEAF ROOT A, "there is no executor \"run\"" },
        { HEAD LEAF "deploymentSpec: {executors: {run: {customJob: {}}}}\n" ROOT A,
          "customJob: is not supported" },
        { HEAD LEAF "deploymentSpec: {executors: {run: {container: {image: i, args:"
          " [\"{{$.inputs.parameters['z']}}\"]}}}}\n" ROOT A, "has no input \"z\"" },
        { HEAD LEAF "deploymentSpec: {executors: {run: {container: {image: i, args:"
          " [\"{{$.magic}}\"]}}}}\n" ROOT A, "is no placeholder that is known here" },
        { HEAD LEAF "  need: {executorLabel: run, inputDefinitions: {artifacts: {in:"
          " {artifactType: {schemaTitle: system.Model}}}}}\n" RUN ROOT
          "      a: {componentRef: {name: need}}\n", "is not given its input \"in\"" },
        { "schemaVersion: 3.0.0\npipelineInfo: {name: p}\nroot: {dag: {}}\n", "schemaVersion" },
        { HEAD "root: {}\n", "root.dag: is missing" },
        { HEAD "components: {c: {dag: {tasks: {t: {componentRef: {name: c}, cachingOptions:"
          " {maxCacheStaleness: x}}}}}}\n" ROOT "      a: {componentRef: {name: c}}\n",
          "must be a duration" },
        { HEAD LEAF RUN ROOT A "---\nplatforms: {kubernetes: {deploymentSpec: {executors: {run:"
          " {genericEphemeralVolume: []}}}}}\n", "genericEphemeralVolume: is not supported" },
        { HEAD LEAF RUN ROOT A "---\nplatforms: {kubernetes: {deploymentSpec: {executors: {run:"
          " {emptyDirMounts: [{volumeName: w, mountPath: /etc}]}}}}}\n",
          "emptyDirMounts[0].mountPath: /etc is the system's own" },
        { HEAD LEAF RUN ROOT A "---\nplatforms: {kubernetes: {deploymentSpec: {executors: {run:"
          " {emptyDirMounts: [{volumeName: w, mountPath: /a/../b}]}}}}}\n",
          "is no path from the root" },
        /* What no run could be made of is not kept either. */
        { HEAD LEAF RUN ROOT A "  inputDefinitions: {parameters: {n: {parameterType: "
          "NUMBER_INTEGER, defaultValue: many}}}\n",
          "p.yaml: the parameter \"n\" of the run is no NUMBER_INTEGER" },
    };

    CHECK_WRONG(cases);
}

static void a_wrapped_spec_is_the_same(void **state)
{
    (void)state;
    OWN_JSON json_t *flow = flow_of("{\"pipeline_spec\": {\"schemaVersion\": \"2.1.0\", "
        "\"pipelineInfo\": {\"name\": \"w\"}, \"root\": {\"dag\": {\"tasks\": {}}}}, "
        "\"platform_spec\": {\"platforms\": {\"kubernetes\": {}}}}");
    check_part(flow, "name", "'w'");
}

static void what_pip_would_install_is_known(void **state)
{
    (void)state;
    static const struct { const char *word, *want; } cases[] = {
        { "PIP_X=1 python3 -m pip install --quiet 'kfp==2.17.0' '--no-deps' "
          "'typing-extensions>=3.7.4,<5; python_version<\"3.9\"' && python3 -m pip install "
          "--index-url https://x/y \"pandas\" requests[socks]==2.0 && \"$0\" \"$@\"",
          "kfp==2.17.0 --no-deps\n"
          "typing-extensions>=3.7.4,<5; python_version<\"3.9\" --no-deps\n"
          "pandas\nrequests[socks]==2.0\n" },
        { "(python3 -m pip install -q 'a==1' || python3 -m pip install -q 'a==1' --user) && x",
          "a==1\n" },
        { "pip install -r wishes.txt git+https://h/x ./here $NAME", NULL },
        { "echo you may pip install nothing; true", NULL },
        { "cd x && pip install b", "b\n" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        OWN_JSON json_t *command = json_pack("[s, s, s, s]", "/bin/sh", "-ec",
                                             cases[i].word, "python -m pip install not-this");
        OWN_MEM char *got = pip_requirements(command);
        if (cases[i].want ? !got || strcmp(got, cases[i].want) : got != NULL)
            fail_msg("case %zu: %s", i, got ? got : "(nothing)");
    }
}

CHECK_MAIN(a_component_is_a_template, tasks_say_where_values_come_from,
           loops_have_items_and_lists_of_outputs, volumes_are_named_by_tasks,
           what_is_wrong_is_told_by_name_and_line, a_wrapped_spec_is_the_same,
           what_pip_would_install_is_known)
