/* protocols/training.c - AI Platform's Job and TrainingInput, to a job document and back */
#include "protocols/training.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <nettle/base64.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/own.h"
#include "protocols/stamp.h"

static int wrong(struct err *err, const char *field, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static int wrong(struct err *err, const char *field, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(err, ERR_INVALID, "Field: %s Error: %s", field, text);
}

/* ------------------------------------------------------------ the fields and their kinds */

enum kind { TEXT, TEXTS, FLAG, COUNT, OBJECT, SECONDS };
static const char *const kind_words[] = { "a text",        "a list of texts",
                                          "true or false", "a whole number of 0 or more",
                                          "an object",     "a duration such as \"3600s\"" };

static const struct field {
    const char *path;
    enum kind kind;
} fields[] = {
    { "args", TEXTS },
    { "enableWebAccess", FLAG },
    { "encryptionConfig", OBJECT },
    { "evaluatorConfig", OBJECT },
    { "evaluatorCount", COUNT },
    { "evaluatorType", TEXT },
    { "jobDir", TEXT },
    { "masterConfig", OBJECT },
    { "masterConfig.acceleratorConfig", OBJECT },
    { "masterConfig.acceleratorConfig.count", COUNT },
    { "masterConfig.acceleratorConfig.type", TEXT },
    { "masterConfig.containerArgs", TEXTS },
    { "masterConfig.containerCommand", TEXTS },
    { "masterConfig.imageUri", TEXT },
    { "masterType", TEXT },
    { "network", TEXT },
    { "packageUris", TEXTS },
    { "parameterServerConfig", OBJECT },
    { "parameterServerCount", COUNT },
    { "parameterServerType", TEXT },
    { "pythonModule", TEXT },
    { "pythonVersion", TEXT },
    { "region", TEXT },
    { "runtimeVersion", TEXT },
    { "scaleTier", TEXT },
    { "scheduling", OBJECT },
    { "scheduling.maxRunningTime", SECONDS },
    { "scheduling.maxWaitTime", SECONDS },
    { "serviceAccount", TEXT },
    { "useChiefInTfConfig", FLAG },
    { "workerConfig", OBJECT },
    { "workerCount", COUNT },
    { "workerType", TEXT },
};

/* The value at "a.b.c"; NULL: there is none, or it is null. */
static json_t *at(const json_t *object, const char *path)
{
    const json_t *v = object;
    while (v && *path) {
        size_t n = strcspn(path, ".");
        char key[64];
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        v = json_object_get(v, key);
        path += n + (path[n] == '.');
    }
    return json_is_null(v) ? NULL : (json_t *)v;
}

static const char *text_at(const json_t *object, const char *path)
{
    return json_string_value(at(object, path));
}

/* An int64 comes as a text or as a number. -1: neither. */
static int64_t count_of(const json_t *v)
{
    if (json_is_integer(v))
        return json_integer_value(v) >= 0 ? json_integer_value(v) : -1;
    if (json_is_real(v))
        return json_real_value(v) >= 0 && json_real_value(v) < 1e15 &&
                       json_real_value(v) == floor(json_real_value(v))
                   ? (int64_t)json_real_value(v)
                   : -1;
    const char *text = json_string_value(v);
    if (!text || !*text || strlen(text) > 15 || text[strspn(text, "0123456789")])
        return -1;
    return strtoll(text, NULL, 10);
}

static double seconds_of(const json_t *v)
{
    const char *text = json_string_value(v);
    char *end;
    if (!text || !isdigit((unsigned char)*text))
        return -1;
    double s = strtod(text, &end);
    return strcmp(end, "s") || !isfinite(s) || s > 1e9 ? -1 : s;
}

static bool is_kind(const json_t *v, enum kind kind)
{
    size_t i;
    json_t *item;
    switch (kind) {
    case TEXT:
        return json_is_string(v);
    case FLAG:
        return json_is_boolean(v);
    case OBJECT:
        return json_is_object(v);
    case COUNT:
        return count_of(v) >= 0;
    case SECONDS:
        return seconds_of(v) >= 0;
    default:
        if (!json_is_array(v))
            return false;
        json_array_foreach ((json_t *)v, i, item)
            if (!json_is_string(item))
                return false;
        return true;
    }
}

static int check_kinds(const json_t *input, struct err *err)
{
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const json_t *v = at(input, fields[i].path);
        char field[96];
        snprintf(field, sizeof field, "trainingInput.%s", fields[i].path);
        if (v && !is_kind(v, fields[i].kind))
            return wrong(err, field, "This is to be %s.", kind_words[fields[i].kind]);
    }
    return 0;
}

const char *training_unbuilt(const json_t *job)
{
    if (at(job, "trainingInput.hyperparameters"))
        return "Field: trainingInput.hyperparameters Error: Hyperparameter tuning is not built "
               "here.";
    if (at(job, "predictionInput"))
        return "Field: predictionInput Error: Batch prediction is not built here.";
    return NULL;
}

/* ------------------------------------------------------------ how much of the machine */

/* A scale tier, as the table of this machine has it; 0: the row does not say. */
struct tier {
    const char *name;
    int workers, gpus;
    double cpus, memory;
};

/* The old names of machines; the others carry the number of cores at their end. */
static const struct machine {
    const char *name;
    int cpus;
    double gb;
    int gpus;
} machines[] = {
    { "standard", 4, 15, 0 },
    { "large_model", 8, 52, 0 },
    { "complex_model_s", 8, 7.2, 0 },
    { "complex_model_m", 16, 14.4, 0 },
    { "complex_model_l", 32, 28.8, 0 },
    { "standard_gpu", 8, 30, 1 },
    { "complex_model_m_gpu", 8, 30, 4 },
    { "complex_model_l_gpu", 8, 30, 8 },
    { "standard_p100", 8, 30, 1 },
    { "complex_model_m_p100", 16, 60, 4 },
    { "standard_v100", 8, 30, 1 },
    { "large_model_v100", 16, 52, 1 },
    { "complex_model_m_v100", 16, 60, 4 },
    { "complex_model_l_v100", 32, 120, 8 },
};
static const struct {
    const char *part;
    double gb;
} families[] = {
    { "-standard-", 3.75 }, { "-highmem-", 6.5 }, { "-highcpu-", 0.9 },
    { "-megamem-", 15 },    { "-ultramem-", 24 }, { "-highgpu-", 7 },
};

static int find_machine(const char *name, struct machine *out)
{
    for (size_t i = 0; i < sizeof machines / sizeof machines[0]; i++)
        if (!strcmp(machines[i].name, name)) {
            *out = machines[i];
            return 0;
        }
    const char *last = strrchr(name, '-');
    for (size_t i = 0; last && i < sizeof families / sizeof families[0]; i++) {
        int cpus = 0;
        char end;
        if (strstr(name, families[i].part) && sscanf(last + 1, "%3d%c", &cpus, &end) == 1 &&
            cpus > 0) {
            *out = (struct machine){ name, cpus, cpus * families[i].gb, 0 };
            return 0;
        }
    }
    return -1;
}

static void note(json_t *notes, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void note(json_t *notes, const char *fmt, ...)
{
    char text[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    json_array_append_new(notes, json_string(text));
}

/* "BASIC, STANDARD_1, CUSTOM" */
static void list_tiers(const json_t *tiers, char *out, size_t size)
{
    const char *name;
    json_t *row;
    size_t n = 0;
    out[0] = '\0';
    json_object_foreach ((json_t *)tiers, name, row)
        if (n < size)
            n += (size_t)snprintf(out + n, size - n, "%s%.40s", n ? ", " : "", name);
}

static int read_tier(const json_t *input, const struct training_here *here, struct tier *out,
                     json_t *notes, struct err *err)
{
    const char *name = text_at(input, "scaleTier"), *machine = text_at(input, "masterType");
    char all[300];
    if (!name)
        name = machine ? "CUSTOM" : "BASIC";
    const json_t *row = json_object_get(here->tiers, name);
    bool custom = !strcmp(name, "CUSTOM");
    list_tiers(here->tiers, all, sizeof all);
    if (!row && !strcmp(name, "BASIC_TPU"))
        return wrong(err, "trainingInput.scaleTier",
                     "There are no TPUs here (use BASIC or BASIC_GPU).");
    if (!row)
        return wrong(err, "trainingInput.scaleTier", "\"%.40s\" is none of %s.", name, all);
    if (custom && !machine)
        return wrong(err, "trainingInput.masterType", "It is needed when scaleTier is CUSTOM.");
    if (!custom && machine)
        return wrong(err, "trainingInput.masterType",
                     "It may be set only when scaleTier is CUSTOM, and that is %s.", name);
    *out = (struct tier){ .name = name,
                          .workers = (int)number_of(row, "workers"),
                          .gpus = (int)number_of(row, "gpu"),
                          .cpus = number_of(row, "cpu"),
                          .memory = number_of(row, "memory") };
    if (out->workers < 1)
        out->workers = 1;
    if (text_at(input, "scaleTier") && !custom)
        note(notes, "scale tier %.40s: %d worker%s here (runtimes.yaml)", name, out->workers,
             out->workers == 1 ? "" : "s");
    return 0;
}

static int read_machine(const json_t *input, const struct tier *tier,
                        const struct training_here *here, json_t *doc, json_t *notes,
                        struct err *err)
{
    const char *name = text_at(input, "masterType");
    struct machine m = { "", 1, tier->memory / (1 << 30), tier->gpus };
    if (name && find_machine(name, &m) < 0)
        return wrong(err, "trainingInput.masterType",
                     "\"%.60s\" is no machine type that is known "
                     "(such as n1-standard-4).",
                     name);
    int64_t n = count_of(at(input, "masterConfig.acceleratorConfig.count"));
    if (n > 0)
        m.gpus = n > 64 ? 64 : (int)n;
    /* Each worker has its share of what is here: all of them are to run at once. */
    int workers = (int)json_integer_value(at(doc, "workers.max"));
    double asked = !name && tier->cpus > 0 ? tier->cpus : m.cpus;
    double share = (double)here->cpus / workers, cpus = asked > share ? share : asked;
    int gpus = m.gpus > here->gpus / workers ? here->gpus / workers : m.gpus;
    int64_t memory = (int64_t)(m.gb * (1 << 30));
    if (cpus < asked && (name || workers > 1 || tier->cpus > 0))
        note(notes, "%s%s has %.3g core%s; here %s has %.3g", name ? "machine type " : "a worker",
             name ? name : "", asked, asked == 1 ? "" : "s",
             workers > 1 ? "each worker" : "the job", cpus);
    if (memory > here->memory_bytes / workers)
        memory = 0;
    if (gpus < m.gpus)
        note(notes, "%d GPU%s asked for; %d here%s", m.gpus, m.gpus == 1 ? " was" : "s were", gpus,
             gpus ? "" : ", so it runs on the CPU");
    return json_object_set_new(
        doc, "resources",
        json_pack("{s:f, s:I, s:i}", "cpu", cpus, "memory", (json_int_t)memory, "gpu", gpus));
}

static int read_workers(const json_t *input, const struct tier *tier, json_t *doc, json_t *notes,
                        struct err *err)
{
    int64_t workers = tier->workers, more = count_of(at(input, "workerCount"));
    if (more > 0 && strcmp(tier->name, "CUSTOM"))
        return wrong(err, "trainingInput.workerCount",
                     "It may be set only when scaleTier is CUSTOM, and that is %s.", tier->name);
    if (more > 0)
        workers += more;
    if (workers > 1000)
        return wrong(err, "trainingInput.workerCount", "More than 1,000 workers are not started.");
    if (count_of(at(input, "parameterServerCount")) > 0 || tier->workers > 1)
        note(notes, "no parameter servers are started here: %d workers, as one group of processes",
             (int)workers);
    else if (workers > 1)
        note(notes, "%d workers, as one group of processes", (int)workers);
    return json_object_set_new(
        doc, "workers",
        json_pack("{s:I, s:I}", "min", (json_int_t)workers, "max", (json_int_t)workers));
}

/* ------------------------------------------------------------ what to run */

static bool is_gs(const char *uri, bool needs_object)
{
    if (strncmp(uri, "gs://", 5))
        return false;
    size_t bucket = strcspn(uri + 5, "/");
    const char *object = uri + 5 + bucket;
    return bucket >= 3 && bucket <= 63 &&
           strspn(uri + 5, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == bucket &&
           (!needs_object || (object[0] == '/' && object[1]));
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

static int check_packages(const json_t *uris, struct err *err)
{
    size_t i;
    json_t *uri;
    json_array_foreach ((json_t *)uris, i, uri) {
        const char *text = json_string_value(uri);
        char field[64];
        snprintf(field, sizeof field, "trainingInput.packageUris[%zu]", i);
        if (!is_gs(text, true))
            return wrong(err, field, "\"%.200s\" is no object in a bucket (gs://BUCKET/OBJECT).",
                         text);
        if (!ends_with(text, ".tar.gz") && !ends_with(text, ".whl") && !ends_with(text, ".zip"))
            return wrong(err, field, "\"%.200s\" is no Python package (.tar.gz, .whl or .zip).",
                         text);
    }
    return json_array_size(uris) > 100
               ? wrong(err, "trainingInput.packageUris", "More than 100 packages are not taken.")
               : 0;
}

static bool is_module(const char *name)
{
    bool start = true;
    for (; *name; name++) {
        bool letter = isalpha((unsigned char)*name) || *name == '_';
        if (start ? !letter : !letter && !isdigit((unsigned char)*name) && *name != '.')
            return false;
        start = *name == '.';
    }
    return !start;
}

/* The words of a trainer: its own, then where it may put things, as the service passes it. */
static json_t *arguments(const json_t *args, const char *job_dir)
{
    json_t *all = json_array();
    if (args)
        json_array_extend(all, (json_t *)args);
    if (job_dir) {
        json_array_append_new(all, json_string("--job-dir"));
        json_array_append_new(all, json_string(job_dir));
    }
    return all;
}

static int read_python(const json_t *input, json_t *doc, struct err *err)
{
    const char *module = text_at(input, "pythonModule"),
               *runtime = text_at(input, "runtimeVersion");
    const char *python = text_at(input, "pythonVersion");
    json_t *uris = at(input, "packageUris");
    if (!is_module(module) || strlen(module) > 255)
        return wrong(err, "trainingInput.pythonModule", "\"%.100s\" is no name of a module.",
                     module);
    if (json_array_size(uris) == 0)
        return wrong(err, "trainingInput.packageUris", "At least one package is needed.");
    int rc = check_packages(uris, err);
    if (rc < 0)
        return rc;
    json_t *p = json_pack("{s:O, s:s, s:o}", "packages", uris, "module", module, "args",
                          arguments(at(input, "args"), NULL)); /* who runs it adds --job-dir */
    if (runtime)
        json_object_set_new(p, "runtime", json_string(runtime));
    if (python)
        json_object_set_new(p, "python", json_string(python));
    json_object_set_new(doc, "kind", json_string("python"));
    return json_object_set_new(doc, "python", p);
}

static int read_program(const json_t *input, json_t *doc, struct err *err)
{
    const char *image = text_at(input, "masterConfig.imageUri");
    if (image)
        json_object_set_new(doc, "image", json_string(image));
    if (image && text_at(input, "runtimeVersion"))
        return wrong(err, "trainingInput.runtimeVersion",
                     "It may not be set together with masterConfig.imageUri.");
    if (text_at(input, "pythonModule"))
        return read_python(input, doc, err);
    if (!image)
        return wrong(err, "trainingInput.pythonModule",
                     "It is needed where no masterConfig.imageUri is given.");
    json_t *command = json_array(), *words = at(input, "masterConfig.containerArgs");
    if (json_array_size(at(input, "masterConfig.containerCommand")))
        json_array_extend(command, at(input, "masterConfig.containerCommand"));
    else                        /* the words are for the program that the image names */
        json_object_set_new(doc, "entrypoint", json_true());
    json_t *rest = arguments(words ? words : at(input, "args"), text_at(input, "jobDir"));
    json_array_extend(command, rest);
    json_decref(rest);
    json_object_set_new(doc, "kind", json_string("command"));
    return json_object_set_new(doc, "command", command);
}

/* What AI Platform tells a trainer about itself; a group of several is told by its runner. */
static void add_environment(const json_t *input, const char *job_id, json_t *doc)
{
    json_t *env = json_pack("{s:s}", "CLOUD_ML_JOB_ID", job_id);
    if (json_integer_value(at(doc, "workers.max")) == 1) {
        json_t *config = json_pack("{s:s, s:{}, s:{s:s, s:i}, s:O}", "environment", "cloud",
                                   "cluster", "task", "type", "master", "index", 0, "job", input);
        char *text = json_dumps(config, JSON_COMPACT | JSON_SORT_KEYS);
        json_object_set_new(env, "TF_CONFIG", json_string(text ? text : "{}"));
        free(text);
        json_decref(config);
    }
    json_object_set_new(doc, "env", env);
}

static int check_id(const char *id, struct err *err)
{
    bool good = id && isalpha((unsigned char)*id) && strlen(id) <= 128;
    for (const char *p = id; good && *p; p++)
        good = isalnum((unsigned char)*p) || *p == '_';
    return good ? 0
                : wrong(err, "job.jobId",
                        "A name of a letter, then letters, digits and "
                        "underscores, 128 at most, is needed.");
}

int training_check_labels(const json_t *labels, struct err *err)
{
    const char *key;
    json_t *value;
    if (!labels || json_is_null(labels))
        return 0;
    if (!json_is_object(labels) || json_object_size(labels) > 64)
        return wrong(err, "labels", "They are an object of 64 texts at most.");
    json_object_foreach ((json_t *)labels, key, value) {
        static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789-_";
        if (!islower((unsigned char)*key) || strlen(key) > 63 || key[strspn(key, allowed)])
            return wrong(err, "labels",
                         "\"%.63s\" is no key: a small letter, then small letters, digits, "
                         "- and _, 63 at most.",
                         key);
        const char *text = json_string_value(value);
        if (!text || strlen(text) > 63 || text[strspn(text, allowed)])
            return wrong(err, "labels",
                         "The value of %s is no text of small letters, digits, - and _, "
                         "63 at most.",
                         key);
    }
    return 0;
}

int training_read(const json_t *job, const struct training_here *here, json_t **out,
                  struct err *err)
{
    const json_t *input = at(job, "trainingInput");
    const char *id = text_at(job, "jobId"), *dir;
    struct tier tier = { .name = "BASIC", .workers = 1 };
    int rc = check_id(id, err);
    if (rc < 0)
        return rc;
    if (!json_is_object(input))
        return wrong(err, "trainingInput", "It is needed: what is to be run.");
    OWN_JSON json_t *doc = json_pack("{s:s, s:{s:s, s:O}, s:b}", "name", id, "origin", "api",
                                     "aiplatform", "request", job, "network", 1);
    OWN_JSON json_t *notes = json_array();
    if ((rc = check_kinds(input, err)) < 0 ||
        (rc = read_tier(input, here, &tier, notes, err)) < 0 ||
        (rc = read_workers(input, &tier, doc, notes, err)) < 0 ||
        (rc = read_machine(input, &tier, here, doc, notes, err)) < 0 ||
        (rc = training_check_labels(at(job, "labels"), err)) < 0)
        return rc;
    dir = text_at(input, "jobDir");
    if (dir && !is_gs(dir, false))
        return wrong(err, "trainingInput.jobDir", "\"%.200s\" is no place in a bucket (gs://...).",
                     dir);
    if ((rc = read_program(input, doc, err)) < 0)
        return rc;
    if (dir)
        json_object_set_new(doc, "job_dir", json_string(dir));
    if (at(job, "labels"))
        json_object_set(doc, "labels", at(job, "labels"));
    double limit = seconds_of(at(input, "scheduling.maxRunningTime"));
    if (limit > 0)
        json_object_set_new(doc, "time_limit_s", json_integer((json_int_t)ceil(limit)));
    const json_t *priority = at(input, "scheduling.priority");
    if (priority && !json_is_integer(priority))
        return wrong(err, "trainingInput.scheduling.priority", "This is to be a whole number.");
    if (priority) {
        json_int_t p = json_integer_value(priority);
        json_object_set_new(doc, "priority", json_integer(p > 100 ? 100 : p < -100 ? -100 : p));
    }
    add_environment(input, id, doc);
    if (json_array_size(notes))
        json_object_set(doc, "notes", notes);
    *out = TAKE(doc);
    return 0;
}

/* ------------------------------------------------------------ and back */

static const struct {
    const char *name, *state;
} states[] = {
    { "queued", "QUEUED" },         { "preparing", "PREPARING" }, { "running", "RUNNING" },
    { "cancelling", "CANCELLING" }, { "succeeded", "SUCCEEDED" }, { "failed", "FAILED" },
    { "cancelled", "CANCELLED" },
};

const char *training_state(const char *name)
{
    for (size_t i = 0; name && i < sizeof states / sizeof states[0]; i++)
        if (!strcmp(states[i].name, name))
            return states[i].state;
    return "STATE_UNSPECIFIED";
}

const char *training_state_name(const char *state)
{
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++)
        if (!strcmp(states[i].state, state))
            return states[i].name;
    return NULL;
}

static void set_time(json_t *job, const char *key, double seconds)
{
    char text[STAMP_SIZE];
    if (seconds <= 0)
        return;
    stamp_format(stamp_of(seconds), text);
    json_object_set_new(job, key, json_string(text));
}

void training_etag(const json_t *record, char out[TRAINING_ETAG_SIZE])
{
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    json_t *labels = json_object_get(record, "labels");
    char *text = labels ? json_dumps(labels, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    char uid[24];
    snprintf(uid, sizeof uid, "%" PRId64 ";",
             (int64_t)json_integer_value(json_object_get(record, "uid")));
    for (const char *p = uid; *p; p++)
        hash = (hash ^ (unsigned char)*p) * 1099511628211u;
    for (const char *p = text ? text : "{}"; *p; p++)
        hash = (hash ^ (unsigned char)*p) * 1099511628211u;
    free(text);
    base64_encode_raw(out, sizeof hash, (const uint8_t *)&hash);
    out[BASE64_ENCODE_RAW_LENGTH(sizeof hash)] = 0;
}

/* A job that came another way has the fields that say the same. */
static json_t *show_input(const json_t *spec)
{
    json_t *asked = at(spec, "origin.request.trainingInput");
    if (asked &&
        !strcmp(text_at(spec, "origin.api") ? text_at(spec, "origin.api") : "", "aiplatform"))
        return json_incref(asked);
    json_t *input = json_object();
    if (text_at(spec, "python.module"))
        json_object_set(input, "pythonModule", at(spec, "python.module"));
    if (at(spec, "python.packages"))
        json_object_set(input, "packageUris", at(spec, "python.packages"));
    if (at(spec, "python.args"))
        json_object_set(input, "args", at(spec, "python.args"));
    else if (at(spec, "command"))
        json_object_set(input, "args", at(spec, "command"));
    if (text_at(spec, "job_dir"))
        json_object_set(input, "jobDir", at(spec, "job_dir"));
    return input;
}

json_t *training_show(const json_t *record)
{
    const char *state = training_state(text_at(record, "state"));
    double created = json_number_value(at(record, "created")),
           ended = json_number_value(at(record, "ended"));
    char etag[TRAINING_ETAG_SIZE];
    training_etag(record, etag);
    json_t *job =
        json_pack("{s:O, s:s, s:o, s:s}", "jobId", json_object_get(record, "name"), "state", state,
                  "trainingInput", show_input(at(record, "spec")), "etag", etag);
    if (!job)
        return NULL;
    set_time(job, "createTime", created);
    set_time(job, "startTime", json_number_value(at(record, "started")));
    if (json_object_size(at(record, "labels")))
        json_object_set(job, "labels", at(record, "labels"));
    const char *name = training_state_name(state), *reason = text_at(record, "reason");
    /* A client that follows a job's log goes by endTime, so an ended job always has one. */
    if (name &&
        (!strcmp(name, "succeeded") || !strcmp(name, "failed") || !strcmp(name, "cancelled")))
        set_time(job, "endTime", ended > 0 ? ended : created);
    if (name && !strcmp(name, "failed"))
        json_object_set_new(job, "errorMessage",
                            json_string(reason && *reason ? reason : "It failed."));
    if (name && strcmp(name, "queued") && strcmp(name, "preparing"))
        json_object_set_new(job, "trainingOutput", json_object());
    return job;
}
