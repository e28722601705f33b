/* cli/gcloud.c - the commands of gcloud that the AI Platform tutorials type, by muster itself */
#include "cli/gcloud.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/files.h"
#include "base/own.h"
#include "cli/client.h"
#include "cli/gcloud_int.h"
#include "spec/scan.h"
#include "spec/yaml.h"

int gcloud_open(const char *project, struct client **out, struct err *err)
{
    OWN(client) c = NULL;
    OWN_MEM char *set = NULL;
    if (client_open(&c, err) < 0)
        return -(int)err->code;
    if (!project && !getenv("MUSTER_PROJECT"))
        project = set = gcloud_property("core/project");
    if (project) {
        free(c->project);
        c->project = strdup(project);
    }
    if (!c->project)
        return err_set(err, ERR_NOMEM, "no memory for a name");
    *out = TAKE(c);
    return 0;
}

int gcloud_parse(struct cli *c, const struct option *options, int argc, char **argv, void *into,
                 int wanted, const char *usage, struct err *err)
{
    int n = options_parse(options, argc, argv, into, err);
    if (n == wanted)
        return 0;
    c->exit_code = 2;
    return n < 0 ? n : err_set(err, ERR_INVALID, "usage: gcloud %s", usage);
}

/* ------------------------------------------------------------ submit training */

struct args {
    struct gcloud_common common;
    const char *job_dir, *package_path, *packages, *module, *python, *runtime, *region, *tier,
        *staging;
    const char *config, *labels, *account, *network, *kms;
    const char *image, *machine, *accelerator;
    const char *worker_image, *worker_machine, *worker_accelerator, *ps_image, *ps_machine,
        *ps_accelerator;
    const char *chief;
    long workers, servers;
    int stream, async, web;
};
#define AT(field) offsetof(struct args, field)
static const struct option options[] = {
    GCLOUD_COMMON(struct args),
    { "job-dir", 0, "gs://...", "where packages and results go", OPTION_TEXT, AT(job_dir) },
    { "package-path", 0, "DIR", "the package, beside its setup.py", OPTION_TEXT, AT(package_path) },
    { "packages", 0, "A,B", "built packages, here or in a bucket", OPTION_TEXT, AT(packages) },
    { "module-name", 0, "M", "what python -m runs", OPTION_TEXT, AT(module) },
    { "python-version", 0, "V", "such as 3.7", OPTION_TEXT, AT(python) },
    { "runtime-version", 0, "V", "such as 1.15", OPTION_TEXT, AT(runtime) },
    { "region", 0, "R", "is kept, and changes nothing", OPTION_TEXT, AT(region) },
    { "scale-tier", 0, "T", "basic, basic-gpu, custom ...", OPTION_TEXT, AT(tier) },
    { "staging-bucket", 0, "gs://B", "where packages go instead", OPTION_TEXT, AT(staging) },
    { "config", 0, "FILE", "a job as YAML; flags go before it", OPTION_TEXT, AT(config) },
    { "labels", 0, "K=V,...", "labels of the job", OPTION_TEXT, AT(labels) },
    { "stream-logs", 0, NULL, "follow the job to its end", OPTION_FLAG, AT(stream) },
    { "async", 0, NULL, "do not (as without either)", OPTION_FLAG, AT(async) },
    { "enable-web-access", 0, NULL, "is kept, and changes nothing", OPTION_FLAG, AT(web) },
    { "master-image-uri", 0, "URI", "a container image", OPTION_TEXT, AT(image) },
    { "master-machine-type", 0, "T", "such as n1-standard-4", OPTION_TEXT, AT(machine) },
    { "master-accelerator", 0, "count=N,type=T", "graphics processors", OPTION_TEXT,
      AT(accelerator) },
    { "worker-count", 0, "N", "workers beside the master", OPTION_INT, AT(workers) },
    { "worker-machine-type", 0, "T", "of the workers", OPTION_TEXT, AT(worker_machine) },
    { "worker-image-uri", 0, "URI", "of the workers", OPTION_TEXT, AT(worker_image) },
    { "worker-accelerator", 0, "count=N,type=T", "of the workers", OPTION_TEXT,
      AT(worker_accelerator) },
    { "parameter-server-count", 0, "N", "is kept; none are started", OPTION_INT, AT(servers) },
    { "parameter-server-machine-type", 0, "T", "is kept", OPTION_TEXT, AT(ps_machine) },
    { "parameter-server-image-uri", 0, "URI", "is kept", OPTION_TEXT, AT(ps_image) },
    { "parameter-server-accelerator", 0, "count=N,type=T", "is kept", OPTION_TEXT,
      AT(ps_accelerator) },
    { "use-chief-in-tf-config", 0, "BOOL", "is kept", OPTION_TEXT, AT(chief) },
    { "service-account", 0, "A", "is kept, and changes nothing", OPTION_TEXT, AT(account) },
    { "network", 0, "N", "is kept, and changes nothing", OPTION_TEXT, AT(network) },
    { "kms-key", 0, "K", "is kept, and changes nothing", OPTION_TEXT, AT(kms) },
    { 0 }
};

/* Flags that are fields of TrainingInput as they are. */
static const struct {
    size_t at;
    const char *field;
} texts[] = {
    { AT(module), "pythonModule" },
    { AT(python), "pythonVersion" },
    { AT(runtime), "runtimeVersion" },
    { AT(region), "region" },
    { AT(job_dir), "jobDir" },
    { AT(account), "serviceAccount" },
    { AT(network), "network" },
    { AT(machine), "masterType" },
    { AT(worker_machine), "workerType" },
    { AT(ps_machine), "parameterServerType" },
    { AT(image), "masterConfig.imageUri" },
    { AT(worker_image), "workerConfig.imageUri" },
    { AT(ps_image), "parameterServerConfig.imageUri" },
    { AT(kms), "encryptionConfig.kmsKeyName" },
};
static const struct {
    size_t at;
    const char *config;
} accelerators[] = {
    { AT(accelerator), "masterConfig" },
    { AT(worker_accelerator), "workerConfig" },
    { AT(ps_accelerator), "parameterServerConfig" },
};

/* Sets "a.b.c", with the objects on the way; takes the value. */
static void set(json_t *object, const char *path, json_t *value)
{
    size_t n = strcspn(path, ".");
    OWN_MEM char *key = strndup(path, n);
    if (!path[n]) {
        json_object_set_new(object, key, value);
        return;
    }
    if (!json_is_object(json_object_get(object, key)))
        json_object_set_new(object, key, json_object());
    set(json_object_get(object, key), path + n + 1, value);
}

/* A scalar of the file: a version stays a text however it is written. */
static json_t *scalar(const struct value *v)
{
    static const char *const versions[] = { "runtimeVersion", "pythonVersion", NULL };
    long long whole;
    double number;
    int flag;
    bool text = !v->plain || (v->parent && v->parent->key && !strcmp(v->parent->key, "args"));
    for (int i = 0; versions[i]; i++)
        text |= v->key && !strcmp(v->key, versions[i]);
    if (text)
        return json_string(v->text);
    if (value_is_null(v))
        return json_null();
    if (scan_bool(v, &flag))
        return json_boolean(flag);
    if (scan_whole(v->text, &whole))
        return json_integer(whole);
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    int is_number = c && scan_number(v->text, c, &number);
    if (c)
        freelocale(c);
    return is_number ? json_real(number) : json_string(v->text);
}

static json_t *to_json(const struct value *v)
{
    if (v->kind == VALUE_SCALAR)
        return scalar(v);
    json_t *out = v->kind == VALUE_MAP ? json_object() : json_array();
    for (const struct value *child = v->child; child; child = child->next) {
        if (v->kind == VALUE_MAP)
            json_object_set_new(out, child->key, to_json(child));
        else
            json_array_append_new(out, to_json(child));
    }
    return out;
}

static int read_config(const char *path, json_t **out, struct err *err)
{
    OWN_MEM char *text = NULL;
    OWN(value) tree = NULL;
    size_t n;
    if (!path) {
        *out = json_object();
        return 0;
    }
    if (files_read(path, YAML_BYTES_MAX, &text, &n, err) < 0 ||
        yaml_parse(text, n, path, NULL, &tree, err) < 0)
        return -(int)err->code;
    if (tree->kind != VALUE_MAP)
        return err_set(err, ERR_INVALID, "%s: a map such as \"trainingInput: ...\" is wanted",
                       path);
    *out = to_json(tree);
    return 0;
}

static int add_labels(const char *text, json_t *job, struct err *err)
{
    for (const char *p = text ? text : ""; *p;) {
        size_t n = strcspn(p, ",");
        OWN_MEM char *pair = strndup(p, n);
        char *value = strchr(pair, '=');
        if (!value)
            return err_set(err, ERR_INVALID, "argument --labels: Bad syntax for dict arg: [%.60s].",
                           pair);
        *value = 0;
        if (!json_object_get(job, "labels"))
            json_object_set_new(job, "labels", json_object());
        json_object_set_new(json_object_get(job, "labels"), pair, json_string(value + 1));
        p += n + (p[n] == ',');
    }
    return 0;
}

/* count=N,type=nvidia-tesla-k80 */
static void add_accelerator(json_t *input, const char *config, const char *text)
{
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, ",");
        OWN_MEM char *pair = strndup(p, n);
        char path[80], *value = strchr(pair, '=');
        p += n + (p[n] == ',');
        if (!value)
            continue;
        *value++ = 0;
        for (char *v = value; *v; v++)
            *v = *v == '-' ? '_' : (char)toupper((unsigned char)*v);
        snprintf(path, sizeof path, "%s.acceleratorConfig.%s", config, pair);
        set(input, path, json_string(value));
    }
}

static void add_flags(const struct args *a, json_t *input)
{
    const char *base = (const char *)a;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        const char *text = *(const char *const *)(base + texts[i].at);
        if (text)
            set(input, texts[i].field, json_string(text));
    }
    for (size_t i = 0; i < sizeof accelerators / sizeof accelerators[0]; i++) {
        const char *text = *(const char *const *)(base + accelerators[i].at);
        if (text)
            add_accelerator(input, accelerators[i].config, text);
    }
    if (a->tier) {
        OWN_MEM char *tier = strdup(a->tier);
        for (char *p = tier; *p; p++)
            *p = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
        set(input, "scaleTier", json_string(tier));
    }
    if (a->workers >= 0)
        set(input, "workerCount", json_integer(a->workers));
    if (a->servers >= 0)
        set(input, "parameterServerCount", json_integer(a->servers));
    if (a->chief)
        set(input, "useChiefInTfConfig", json_boolean(!strcasecmp(a->chief, "true")));
    set(input, "enableWebAccess", json_boolean(a->web));
}

static int check_flags(const struct args *a, struct err *err)
{
    if (a->async && a->stream)
        return err_set(err, ERR_INVALID,
                       "argument --async: At most one of --async | --stream-logs can be "
                       "specified.");
    if (a->image && a->runtime)
        return err_set(err, ERR_INVALID,
                       "Only one of --master-image-uri, --runtime-version can be set.");
    if (a->tier && !strcasecmp(a->tier, "custom") && !a->machine && !a->config)
        return err_set(err, ERR_INVALID,
                       "--master-machine-type is required if scale-tier is set to "
                       "`CUSTOM`.");
    if (a->job_dir && strncmp(a->job_dir, "gs://", 5))
        return err_set(err, ERR_INVALID, "argument --job-dir: \"%.200s\" is to begin with gs://",
                       a->job_dir);
    if (a->staging && strncmp(a->staging, "gs://", 5))
        return err_set(err, ERR_INVALID,
                       "argument --staging-bucket: \"%.200s\" is to begin with gs://", a->staging);
    return 0;
}

/* Where packages go: STAGING_BUCKET/JOB, or JOB_DIR/packages. */
static char *staging_of(const struct args *a, const char *job)
{
    const char *base = a->staging ? a->staging : a->job_dir;
    char *out = NULL;
    if (!base)
        return NULL;
    size_t n = strlen(base);
    while (n > 5 && base[n - 1] == '/')
        n--;
    return asprintf(&out, "%.*s/%s", (int)n, base, a->staging ? job : "packages") < 0 ? NULL : out;
}

static int build_job(struct client *g, const struct args *a, const char *name, int n_words,
                     char **words, json_t **out, struct err *err)
{
    OWN_JSON json_t *job = NULL, *uris = json_array();
    OWN_MEM char *staging = staging_of(a, name);
    if (read_config(a->config, &job, err) < 0)
        return -(int)err->code;
    json_object_set_new(job, "jobId", json_string(name));
    if (!json_is_object(json_object_get(job, "trainingInput")))
        json_object_set_new(job, "trainingInput", json_object());
    json_t *input = json_object_get(job, "trainingInput");
    struct gcloud_staging what = { .path = a->package_path, .packages = a->packages,
                                   .staging = staging };
    if (add_labels(a->labels, job, err) < 0 || gcloud_stage(g, &what, uris, err) < 0)
        return -(int)err->code;
    add_flags(a, input);
    if (!json_object_get(input, "region")) {
        OWN_MEM char *region = gcloud_property("compute/region");
        if (region)
            set(input, "region", json_string(region));
    }
    if (json_array_size(uris))
        json_object_set(input, "packageUris", uris);
    if (n_words) {
        json_t *list = json_array();
        for (int i = 0; i < n_words; i++)
            json_array_append_new(list, json_string(words[i]));
        json_object_set_new(input, "args", list);
    }
    *out = TAKE(job);
    return 0;
}

/* The place of "--" in argv; argc: there is none. */
static int find_end(int argc, char **argv)
{
    int i = 0;
    while (i < argc && strcmp(argv[i], "--"))
        i++;
    return i;
}

int gcloud_submit(struct cli *c, int argc, char **argv, struct err *err)
{
    struct args a = { .workers = -1, .servers = -1 };
    OWN(client) g = NULL;
    OWN_JSON json_t *job = NULL, *made = NULL, *last = NULL;
    char path[300];
    int end = find_end(argc, argv), words = argc - end - 1;
    if (gcloud_parse(c, options, end, argv, &a, 1,
                     "ai-platform jobs submit training JOB [FLAGS] [-- "
                     "ARGUMENTS]",
                     err) < 0)
        return -(int)err->code;
    const char *name = argv[0];
    if (check_flags(&a, err) < 0 || gcloud_open(a.common.project, &g, err) < 0 ||
        build_job(g, &a, name, words > 0 ? words : 0, argv + end + 1, &job, err) < 0)
        return -(int)err->code;
    snprintf(path, sizeof path, "/v1/projects/%s/jobs", g->project);
    if (client_call(g, "POST", path, job, &made, err) < 0)
        return -(int)err->code;
    fprintf(stderr, "Job [%s] submitted successfully.\n", name);
    if (!a.stream) {
        gcloud_say_active(name);
        gcloud_show_job(made);
        return 0;
    }
    if (gcloud_follow(g, name, stderr, &last, err) < 0)
        return -(int)err->code;
    gcloud_show_job(last ? last : made);
    const char *state = json_string_value(json_object_get(last ? last : made, "state"));
    if (!state || strcmp(state, "SUCCEEDED"))
        c->exit_code = 1;
    return 0;
}

/* ------------------------------------------------------------ local train */

struct local {
    struct gcloud_common common;
    const char *package_path, *module, *job_dir;
    long servers, workers, evaluators, port;
    int distributed;
};
#define LOCAL(field) offsetof(struct local, field)
static const struct option local_options[] = {
    GCLOUD_COMMON(struct local),
    { "package-path", 0, "DIR", "the package", OPTION_TEXT, LOCAL(package_path) },
    { "module-name", 0, "M", "what python -m runs", OPTION_TEXT, LOCAL(module) },
    { "job-dir", 0, "DIR", "passed on as --job-dir", OPTION_TEXT, LOCAL(job_dir) },
    { "distributed", 0, NULL, "is refused", OPTION_FLAG, LOCAL(distributed) },
    { "parameter-server-count", 0, "N", "ignored", OPTION_INT, LOCAL(servers) },
    { "worker-count", 0, "N", "ignored", OPTION_INT, LOCAL(workers) },
    { "evaluator-count", 0, "N", "ignored", OPTION_INT, LOCAL(evaluators) },
    { "start-port", 0, "N", "ignored", OPTION_INT, LOCAL(port) },
    { 0 }
};

static void set_tf_config(const char *module, char **words, int n)
{
    json_t *args = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(args, json_string(words[i]));
    OWN_JSON json_t *config =
        json_pack("{s:{s:s, s:o}, s:{}, s:{}, s:s}", "job", "job_name", module, "args", args,
                  "task", "cluster", "environment", "cloud");
    OWN_MEM char *text = json_dumps(config, JSON_COMPACT);
    if (text)
        setenv("TF_CONFIG", text, 1);
}

/* Becomes the program: its output and exit code are the user's own. */
static int local_train(struct cli *c, int argc, char **argv, struct err *err)
{
    struct local a = { 0 };
    static const char usage[] = "ai-platform local train --module-name M [--package-path DIR] "
                                "[--job-dir DIR] [-- ARGUMENTS]";
    int end = find_end(argc, argv), words = argc - end - 1;
    if (gcloud_parse(c, local_options, end, argv, &a, 0, usage, err) < 0)
        return -(int)err->code;
    if (!a.module) {
        c->exit_code = 2;
        return err_set(err, ERR_INVALID, "usage: gcloud %s", usage);
    }
    if (a.distributed)
        return err_set(err, ERR_INVALID,
                       "--distributed is not built here (muster train --python --workers "
                       "N starts a group of processes)");
    OWN_MEM char *root = gcloud_package_root(a.package_path ? a.package_path : "."),
                 *python = gcloud_python();
    if (!root || !python)
        return err_set(err, ERR_MISSING,
                       root ? "there is no Python on the PATH" : "%s is no folder", a.package_path);
    words = words > 0 ? words : 0;
    char **line = calloc((size_t)words + 6, sizeof *line);
    if (!line)
        return err_set(err, ERR_NOMEM, "no memory for the arguments");
    int k = 0;
    line[k++] = python;
    line[k++] = "-m";
    line[k++] = (char *)a.module;
    for (int i = 0; i < words; i++)
        line[k++] = argv[end + 1 + i];
    if (a.job_dir) {
        line[k++] = "--job-dir";
        line[k++] = (char *)a.job_dir;
    }
    set_tf_config(a.module, line + 3, k - 3);
    if (chdir(root) == 0)
        execv(python, line);
    err_set(err, ERR_IO, "cannot run %s in %s: %s", python, root, strerror(errno));
    free(line);
    return -ERR_IO;
}

/* ------------------------------------------------------------ the table */

static int version(struct cli *c, int argc, char **argv, struct err *err)
{
    (void)c;
    (void)argc;
    (void)argv;
    (void)err;
    puts("muster " MUSTER_VERSION " (as gcloud)");
    return 0;
}

static int run_storage(struct cli *c, int argc, char **argv, struct err *err)
{
    const struct command *storage = cli_find("storage");
    return storage ? storage->run(c, argc, argv, err)
                   : err_set(err, ERR_INVALID, "this muster was built without buckets");
}

/* gcloud storage buckets create gs://B, and the rest as muster storage has it. */
static int storage(struct cli *c, int argc, char **argv, struct err *err)
{
    if (argc >= 2 && !strcmp(argv[0], "buckets")) {
        static const struct {
            const char *theirs;
            char *ours;
        } words[] = {
            { "create", "mb" },
            { "list", "ls" },
            { "delete", "rb" },
        };
        for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
            if (!strcmp(argv[1], words[i].theirs)) {
                argv[1] = words[i].ours;
                return run_storage(c, argc - 1, argv + 1, err);
            }
    }
    return run_storage(c, argc, argv, err);
}

static const struct {
    const char *words;
    int (*run)(struct cli *c, int argc, char **argv, struct err *err);
    const char *args;
    const struct option *options; /* for the help; NULL: none are listed */
} commands[] = {
    { "ai-platform jobs submit training", gcloud_submit, "JOB [FLAGS] [-- ARGUMENTS]", options },
    { "ai-platform jobs describe", gcloud_describe, "JOB", gcloud_jobs_options },
    { "ai-platform jobs list", gcloud_list, "", gcloud_jobs_options },
    { "ai-platform jobs cancel", gcloud_cancel, "JOB", gcloud_jobs_options },
    { "ai-platform jobs stream-logs", gcloud_stream_logs, "JOB", gcloud_jobs_options },
    { "ai-platform local train", local_train, "[FLAGS] [-- ARGUMENTS]", local_options },
    { "config", gcloud_config, "get-value NAME | set NAME VALUE | unset NAME | list", NULL },
    { "storage", storage, "ls | cp | cat | rm | buckets create ... (muster help storage)", NULL },
    { "version", version, "", NULL },
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

/* How many of argv's words are the command's; 0: it is another. Flags may stand between them only
 * after the last. */
static int words_of(const char *words, int argc, char **argv)
{
    int n = 0;
    while (*words) {
        size_t k = strcspn(words, " ");
        const char *own = n == 0 && argc > 0 && !strcmp(argv[0], "ml-engine") ? "ai-platform"
                          : n < argc                                          ? argv[n]
                                                                              : "";
        if (strlen(own) != k || strncmp(own, words, k))
            return 0;
        n++;
        words += k + (words[k] == ' ');
    }
    return n;
}

static void usage(FILE *to)
{
    fputs("gcloud, by muster " MUSTER_VERSION ". What it knows:\n", to);
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(to, "  gcloud %s %s\n", commands[i].words, commands[i].args);
}

/* --help before "--" asks for the help, whatever else is there. */
static int asks_for_help(int argc, char **argv)
{
    for (int i = 0; i < find_end(argc, argv); i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
            return 1;
    return 0;
}

int gcloud_is(const char *program)
{
    const char *slash = program ? strrchr(program, '/') : NULL;
    return program && !strcmp(slash ? slash + 1 : program, "gcloud");
}

int gcloud_main(struct cli *c, int argc, char **argv)
{
    struct err err = { 0 };
    char name[100] = "";
    if (argc > 0 && (!strcmp(argv[0], "beta") || !strcmp(argv[0], "alpha"))) {
        argc--;
        argv++;
    }
    if (argc == 0 || !strcmp(argv[0], "help") || !strcmp(argv[0], "--help")) {
        usage(argc ? stdout : stderr);
        return argc ? 0 : 2;
    }
    if (!strcmp(argv[0], "--version"))
        return version(c, 0, NULL, &err);
    for (int i = 0; i < N_COMMANDS; i++) {
        int n = words_of(commands[i].words, argc, argv);
        if (!n)
            continue;
        if (asks_for_help(argc - n, argv + n)) {
            printf("usage: gcloud %s %s\n", commands[i].words, commands[i].args);
            if (commands[i].options)
                options_print(commands[i].options, stdout);
            return 0;
        }
        int rc = commands[i].run(c, argc - n, argv + n, &err);
        if (rc == 0 && fflush(stdout) != 0)
            rc = err_set(&err, ERR_IO, "cannot write the output: %s", strerror(errno));
        if (rc == 0)
            return c->exit_code;
        snprintf(name, sizeof name, "%s", commands[i].words);
        for (char *p = name; *p; p++)
            *p = *p == ' ' ? '.' : *p;
        fprintf(stderr, "ERROR: (gcloud.%s) %s\n", name, err.text);
        return c->exit_code ? c->exit_code : 1;
    }
    fprintf(stderr, "ERROR: (gcloud) this gcloud is muster, and does not know \"%s%s%s\".\n",
            argv[0], argc > 1 ? " " : "", argc > 1 ? argv[1] : "");
    usage(stderr);
    return 2;
}
