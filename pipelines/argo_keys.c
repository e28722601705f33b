/* pipelines/argo_keys.c - what is done with each key of a Workflow
 *
 * Three lists a map: keys that are read; keys that are taken and have no meaning here, since they
 * say how a pod is placed or cleaned up; keys that are refused, each with its reason. A key in none
 * of them is refused too: a misspelt one must not be lost. docs/design/pipelines-argo.md is written
 * from these lists.
 */
#include <stdio.h>
#include <string.h>

#include "base/near.h"
#include "pipelines/argo_int.h"

struct refusal {
    const char *key, *why;
};

struct keys {
    const char *used, *idle;    /* words between spaces */
    const struct refusal *refused;
};

#define NO_PODS "there are no pods here; "

/* Of any template that runs a program, and of the Workflow: about its pod. */
#define POD_IDLE                                                                        \
    "affinity automountServiceAccountToken executor hostAliases nodeSelector priority " \
    "priorityClassName schedulerName securityContext serviceAccountName tolerations "

static const struct refusal none[] = { { NULL, NULL } };

static const struct refusal spec_refused[] = {
    { "podSpecPatch", NO_PODS "say in the container what it needs" },
    { "workflowTemplateRef", "there are no WorkflowTemplates here; write its templates into this "
                             "Workflow" },
    { "synchronization", "mutexes and semaphores between workflows are not kept; use parallelism, "
                         "or order the tasks" },
    { "executorPlugins", "plugins of Argo's executor do not run here" },
    { "metrics", "no Prometheus is told; a step may report metrics, or leave them out" },
    { "resourceClaims", NO_PODS "use resources.limits" },
    { "shutdown", "stop a run when it runs" },
    { "suspend", "a run begins when it is made; begin with a suspend template instead" },
    { NULL, NULL },
};
static const struct refusal template_refused[] = {
    { "containerSet", "several containers of one step are not run; use sidecars, or one task "
                      "each" },
    { "daemon", "steps that go on beside later ones are not run; use sidecars" },
    { "data", "data templates are not run; list the objects in a script" },
    { "http", "http templates are not run; call curl in a container" },
    { "memoize", "memoize is not read; steps of kfp are cached by what they run "
                 "(label pipelines.kubeflow.org/enable_caching)" },
    { "metrics", "no Prometheus is told; a step may report metrics, or leave them out" },
    { "plugin", "plugins of Argo's executor do not run here" },
    { "resourceClaims", NO_PODS "use resources.limits" },
    { "synchronization", "mutexes and semaphores between workflows are not kept; use parallelism, "
                         "or order the tasks" },
    { "templateRef", "there are no WorkflowTemplates here; write the template into this Workflow" },
    { NULL, NULL },
};
static const struct refusal task_refused[] = {
    { "templateRef", "there are no WorkflowTemplates here; write the template into this Workflow" },
    { NULL, NULL },
};
static const struct refusal container_refused[] = {
    { "restartPolicy", "a container is started once; use retryStrategy" },
    { "volumeDevices", "raw devices are not given to steps" },
    { "lifecycle", "hooks of a container are not run; put them into its command" },
    { NULL, NULL },
};
static const struct refusal resource_refused[] = {
    { "flags", "no kubectl is run; name the resource in the manifest" },
    { "manifestFrom", "a manifest is read from \"manifest\" only" },
    { NULL, NULL },
};
static const struct refusal value_from_refused[] = {
    { "jqFilter", "jq is not run; use jsonPath, or an expression" },
    { "event", "there are no events to take a value from" },
    { NULL, NULL },
};

/* Where artifacts may be kept that are not reached from here. */
#define NOT_REACHED(name) \
    { name, "artifacts of this kind are not read or written; use gcs or raw to read, and " \
            "a step's own program for the rest" }
static const struct refusal artifact_refused[] = {
    NOT_REACHED("artifactory"), NOT_REACHED("azure"), NOT_REACHED("git"), NOT_REACHED("hdfs"),
    NOT_REACHED("oss"), NOT_REACHED("plugin"),
    { "recurseMode", "a mode is for a file; a directory has the rights that it was left with" },
    { "subPath", "an artifact is handed on whole; take the part in the step" },
    { NULL, NULL },
};
static const struct refusal env_source_refused[] = {
    { "resourceFieldRef", "write the number itself" },
    { "fileKeyRef", "write the value itself" },
    { NULL, NULL },
};
static const struct refusal mount_refused[] = {
    { "subPathExpr", "use subPath with a tag" },
    { NULL, NULL },
};
#define NO_VOLUME(name) \
    { name, "volumes of this kind are not there; use persistentVolumeClaim, emptyDir, hostPath, " \
            "secret or configMap" }
static const struct refusal volume_refused[] = {
    NO_VOLUME("awsElasticBlockStore"), NO_VOLUME("azureDisk"), NO_VOLUME("azureFile"),
    NO_VOLUME("cephfs"), NO_VOLUME("cinder"), NO_VOLUME("csi"), NO_VOLUME("downwardAPI"),
    NO_VOLUME("ephemeral"), NO_VOLUME("fc"), NO_VOLUME("flexVolume"), NO_VOLUME("flocker"),
    NO_VOLUME("gcePersistentDisk"), NO_VOLUME("gitRepo"), NO_VOLUME("glusterfs"),
    NO_VOLUME("image"), NO_VOLUME("iscsi"), NO_VOLUME("nfs"), NO_VOLUME("photonPersistentDisk"),
    NO_VOLUME("portworxVolume"), NO_VOLUME("projected"), NO_VOLUME("quobyte"), NO_VOLUME("rbd"),
    NO_VOLUME("scaleIO"), NO_VOLUME("storageos"), NO_VOLUME("vsphereVolume"),
    { NULL, NULL },
};
static const struct refusal hook_refused[] = {
    { "templateRef", "there are no WorkflowTemplates here; write the template into this Workflow" },
    { NULL, NULL },
};
static const struct refusal resources_refused[] = {
    { "claims", NO_PODS "use resources.limits" },
    { NULL, NULL },
};

#define CONTAINER_USED "args command env envFrom image resources securityContext volumeMounts " \
    "workingDir name "
#define CONTAINER_IDLE \
    "imagePullPolicy livenessProbe ports readinessProbe startupProbe stdin stdinOnce " \
    "terminationMessagePath terminationMessagePolicy tty resizePolicy "
#define TASK_USED \
    "arguments continueOn hooks inline name onExit template when withItems withParam withSequence "

static const struct keys tables[ARGO_MAPS] = {
    [ARGO_WORKFLOW] = { "apiVersion kind metadata spec", "status", none },
    [ARGO_METADATA] = { "name generateName labels annotations",
        "creationTimestamp finalizers generation managedFields namespace ownerReferences "
        "resourceVersion selfLink uid", none },
    [ARGO_SPEC] = { "activeDeadlineSeconds arguments artifactGC entrypoint hooks onExit "
        "parallelism podResources retryStrategy templateDefaults templates ttlStrategy "
        "volumeClaimTemplates volumes workflowMetadata nodeSelector",
        POD_IDLE "archiveLogs artifactRepositoryRef dnsConfig dnsPolicy hostNetwork "
        "imagePullSecrets podDisruptionBudget podGC podMetadata podPriority podPriorityClassName "
        "volumeClaimGC", spec_refused },
    [ARGO_TEMPLATE] = { "activeDeadlineSeconds annotations container dag failFast initContainers "
        "inputs metadata name outputs parallelism podResources podSpecPatch resource retryStrategy "
        "script sidecars steps suspend timeout volumes nodeSelector",
        POD_IDLE "archiveLocation", template_refused },
    [ARGO_DAG] = { "failFast target tasks", "", none },
    [ARGO_TASK] = { TASK_USED "dependencies depends", "", task_refused },
    [ARGO_STEP_TASK] = { TASK_USED, "", task_refused },
    [ARGO_CONTAINER] = { CONTAINER_USED, CONTAINER_IDLE, container_refused },
    [ARGO_SCRIPT] = { CONTAINER_USED "source", CONTAINER_IDLE, container_refused },
    [ARGO_SIDECAR] = { CONTAINER_USED "mirrorVolumeMounts", CONTAINER_IDLE, container_refused },
    [ARGO_RESOURCE] = { "action failureCondition manifest mergeStrategy successCondition",
        "setOwnerReference", resource_refused },
    [ARGO_SUSPEND] = { "duration", "", none },
    [ARGO_RETRY] = { "backoff expression limit retryPolicy", "affinity", none },
    [ARGO_BACKOFF] = { "cap duration factor maxDuration", "", none },
    [ARGO_INPUTS] = { "artifacts parameters", "", none },
    [ARGO_OUTPUTS] = { "artifacts parameters", "exitCode result", none },
    [ARGO_ARGUMENTS] = { "artifacts parameters", "", none },
    [ARGO_PARAMETER] = { "default description enum globalName name value valueFrom", "", none },
    [ARGO_VALUE_FROM] = { "configMapKeyRef default expression jsonPath parameter path supplied", "",
        value_from_refused },
    [ARGO_ARTIFACT] = { "archive artifactGC from fromExpression gcs globalName http mode "
        "name optional path raw s3", "archiveLogs deleted", artifact_refused },
    [ARGO_ENV] = { "name value valueFrom", "", none },
    [ARGO_ENV_SOURCE] = { "configMapKeyRef fieldRef secretKeyRef", "", env_source_refused },
    [ARGO_ENV_FROM_VALUE] = { "configMapRef prefix secretRef", "", none },
    [ARGO_KEY_REF] = { "key name optional", "", none },
    [ARGO_MOUNT] = { "mountPath name readOnly subPath", "mountPropagation recursiveReadOnly",
        mount_refused },
    [ARGO_VOLUME] = { "configMap emptyDir hostPath name persistentVolumeClaim secret", "",
        volume_refused },
    [ARGO_SEQUENCE] = { "count end format start", "", none },
    [ARGO_HOOK] = { "arguments expression template", "", hook_refused },
    [ARGO_RESOURCES] = { "limits requests", "", resources_refused },
    [ARGO_TEMPLATE_METADATA] = { "annotations labels", "", none },
    [ARGO_TTL] = { "secondsAfterCompletion secondsAfterFailure secondsAfterSuccess", "", none },
};

static bool has_word(const char *words, const char *word)
{
    size_t n = strlen(word);

    for (const char *p = words; *p; p += strspn(p, " ")) {
        size_t length = strcspn(p, " ");
        if (length == n && strncmp(p, word, n) == 0)
            return true;
        p += length;
    }
    return false;
}

/* A key that nobody knows: the nearest one that is read, in a sentence. */
static int unknown(struct argo *c, const struct value *v, const struct keys *k)
{
    char words[24][32];
    struct near near = near_to(v->key);
    int n = 0;

    for (const char *p = k->used; *p && n < 24; p += strspn(p, " ")) {
        size_t length = strcspn(p, " ");
        snprintf(words[n], sizeof words[n], "%.*s", (int)length, p);
        near_try(&near, words[n++]);
        p += length;
    }
    if (near.word)
        return argo_refuse(c, v, "no key of Argo; did you mean \"%s\"?", near.word);
    return argo_refuse(c, v, "no key of Argo that is known here; remove it");
}

int argo_check_map(struct argo *c, const struct value *map, enum argo_map kind)
{
    const struct keys *k = &tables[kind];

    if (map->kind != VALUE_MAP)
        return argo_refuse(c, map, "must be a map");
    for (const struct value *v = map->child; v; v = v->next) {
        if (value_is_null(v))
            continue;
        const struct refusal *r = k->refused;
        while (r->key && strcmp(r->key, v->key) != 0)
            r++;
        /* Some are used to say that they are not wanted: "daemon: false". */
        if (r->key && v->kind == VALUE_SCALAR && strcmp(v->text, "false") == 0)
            continue;
        if (r->key)
            return argo_refuse(c, v, "not supported: %s", r->why);
        if (!has_word(k->used, v->key) && !has_word(k->idle, v->key))
            return unknown(c, v, k);
    }
    return 0;
}
