/* server/jobs_spec.c - is this a job document? */
#include <ctype.h>
#include <math.h>
#include <string.h>

#include "base/near.h"
#include "base/text.h"
#include "drivers/step.h"
#include "server/jobs_int.h"
#include "spec/scan.h"

enum type { TEXT, NUMBER, WHOLE, BOOLEAN, OBJECT, TEXTS, STRINGS, LABELS, NAME, NETWORK };

/* `STRINGS`: an object of texts; `TEXTS`: a list of texts. */
struct key {
    const char *path;           /* "resources.cpu" */
    enum type type;
    double min, max;
};

static const struct key keys[] = {
    { "name", TEXT, 0, 0 },
    { "kind", NAME, 0, 0 },
    { "train", OBJECT, 0, 0 },
    { "train.spec", TEXT, 0, 0 },
    { "train.dir", TEXT, 0, 0 },
    { "python", OBJECT, 0, 0 },
    { "python.packages", TEXTS, 0, 0 },
    { "python.module", TEXT, 0, 0 },
    { "python.args", TEXTS, 0, 0 },
    { "python.runtime", TEXT, 0, 0 },
    { "python.python", TEXT, 0, 0 },
    { "python.requirements", TEXT, 0, 0 },
    { "command", TEXTS, 0, 0 },
    { "image", TEXT, 0, 0 },
    { "entrypoint", BOOLEAN, 0, 0 },    /* `command` is for the image's own program */
    { "step", OBJECT, 0, 0 },           /* drivers/step.h */
    { "env", STRINGS, 0, 0 },
    { "secrets", STRINGS, 0, 0 },
    { "workers", OBJECT, 0, 0 },
    { "workers.min", WHOLE, 1, 4096 },
    { "workers.max", WHOLE, 1, 4096 },
    { "resources", OBJECT, 0, 0 },
    { "resources.cpu", NUMBER, 0.001, 4096 },
    { "resources.memory", WHOLE, 0, 1e15 },
    { "resources.gpu", WHOLE, 0, 1024 },
    { "resources.processes", WHOLE, 1, 4194304 },       /* all of the job's, and threads */
    { "resources.disk", WHOLE, 1, 1e15 },
    { "time_limit_s", NUMBER, 0, 1e9 },
    { "retries", OBJECT, 0, 0 },
    { "retries.limit", WHOLE, 0, 1000 },
    { "retries.backoff_s", NUMBER, 0, 1e6 },
    { "priority", WHOLE, -100, 100 },
    { "user_namespaces", BOOLEAN, 0, 0 },
    { "network", NETWORK, 0, 0 },
    { "job_dir", TEXT, 0, 0 },
    { "host_files", BOOLEAN, 0, 0 },    /* may name files of this machine: the owner asked */
    { "labels", LABELS, 0, 0 },
    { "notes", TEXTS, 0, 0 },           /* lines that its log begins with */
    { "origin", OBJECT, 0, 0 },
    { "origin.api", TEXT, 0, 0 },
    { "origin.request", OBJECT, 0, 0 },
};
enum { N_KEYS = sizeof keys / sizeof keys[0] };

static const char *const kinds[] = { "train", "python", "command", NULL };

int job_name_check(const char *name, struct err *err)
{
    size_t n = strlen(name);

    if (n == 0 || n > JOB_NAME_MAX)
        return err_set(err, ERR_INVALID, "name: a job's name has 1 to %d letters", JOB_NAME_MAX);
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)name[i]) && (i == 0 || !strchr("_-.", name[i])))
            return err_set(err, ERR_INVALID,
                           "name: \"%.130s\" is no name of a job (letters, digits, "
                           "'_', '-', '.', a letter or digit first)",
                           name);
    return 0;
}

static int number_check(const struct key *k, const json_t *v, struct err *err)
{
    double x = json_number_value(v);

    if (!json_is_number(v) || (k->type == WHOLE && x != floor(x)))
        return err_set(err, ERR_INVALID, "%s: takes a %snumber", k->path,
                       k->type == WHOLE ? "whole " : "");
    if (!(x >= k->min && x <= k->max))
        return err_set(err, ERR_INVALID, "%s: %g is not between %g and %g", k->path, x, k->min,
                       k->max);
    return 0;
}

int job_labels_check(const json_t *labels, struct err *err)
{
    const char *key;
    json_t *value;

    if (!json_is_object(labels))
        return err_set(err, ERR_INVALID, "labels: takes an object of texts");
    json_object_foreach((json_t *)labels, key, value) {
        if (!json_is_string(value))
            return err_set(err, ERR_INVALID, "labels.%.64s: takes a text", key);
        if (text_has_control(key, false) ||
            text_has_control(json_string_value(value), false))
            return err_set(err, ERR_INVALID, "labels: a label is one line, without control "
                           "characters");
    }
    return 0;
}

/* One of the three words; true and false are others for the first two (drivers/network.h). */
static int network_check_word(const json_t *v, struct err *err)
{
    static const char *const words[] = { "outside", "none", "host", NULL };
    const char *word = json_string_value(v);

    if (json_is_boolean(v))
        return 0;
    for (int i = 0; word && words[i]; i++)
        if (!strcmp(word, words[i]))
            return 0;
    const char *near = word ? near_word(word, words) : NULL;
    return err_set(err, ERR_INVALID, "network: takes outside, none or host%s%.64s%s%s%s%s",
                   word ? ", not \"" : "", word ? word : "", word ? "\"" : "",
                   near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

static int value_check(const struct key *k, const json_t *v, struct err *err)
{
    const char *name;
    const json_t *item;
    size_t i;

    switch (k->type) {
    case TEXT:
    case NAME:
        return json_is_string(v) ? 0 : err_set(err, ERR_INVALID, "%s: takes a text", k->path);
    case NUMBER:
    case WHOLE:
        return number_check(k, v, err);
    case BOOLEAN:
        return json_is_boolean(v) ? 0 : err_set(err, ERR_INVALID, "%s: takes true or false",
                                                k->path);
    case OBJECT:
        return json_is_object(v) ? 0 : err_set(err, ERR_INVALID, "%s: takes an object", k->path);
    case TEXTS:
        if (!json_is_array(v))
            return err_set(err, ERR_INVALID, "%s: takes a list of texts", k->path);
        json_array_foreach((json_t *)v, i, item)
            if (!json_is_string(item))
                return err_set(err, ERR_INVALID, "%s[%zu]: takes a text", k->path, i);
        return 0;
    case LABELS:
        return job_labels_check(v, err);
    case NETWORK:
        return network_check_word(v, err);
    case STRINGS:
        if (!json_is_object(v))
            return err_set(err, ERR_INVALID, "%s: takes an object of texts", k->path);
        json_object_foreach((json_t *)v, name, item)
            if (!json_is_string(item))
                return err_set(err, ERR_INVALID, "%s.%.64s: takes a text", k->path, name);
        return 0;
    }
    return 0;
}

static const struct key *find_key(const char *path)
{
    for (int i = 0; i < N_KEYS; i++)
        if (!strcmp(keys[i].path, path))
            return &keys[i];
    return NULL;
}

static int unknown_key(const char *path, struct err *err)
{
    struct near near = near_to(path);

    for (int i = 0; i < N_KEYS; i++)
        near_try(&near, keys[i].path);
    if (near.word)
        return err_set(err, ERR_INVALID, "%.80s: there is no such key; did you mean \"%s\"?", path,
                       near.word);
    return err_set(err, ERR_INVALID, "%.80s: there is no such key in a job", path);
}

/* Objects whose keys are in the table; others may hold anything. */
static bool has_keys(const char *path)
{
    size_t n = strlen(path);

    for (int i = 0; i < N_KEYS; i++)
        if (!strncmp(keys[i].path, path, n) && keys[i].path[n] == '.')
            return true;
    return false;
}

static int object_check(const json_t *doc, const char *prefix, struct err *err)
{
    const char *name;
    json_t *v;

    json_object_foreach((json_t *)doc, name, v) {
        char path[128];
        snprintf(path, sizeof path, "%s%s%.64s", prefix, *prefix ? "." : "", name);
        const struct key *k = find_key(path);
        if (!k)
            return unknown_key(path, err);
        if (value_check(k, v, err) < 0)
            return -(int)err->code;
        if (k->type == OBJECT && has_keys(path) && object_check(v, path, err) < 0)
            return -(int)err->code;
    }
    return 0;
}

static int kind_check(const json_t *spec, const char *kind, struct err *err)
{
    const json_t *part = json_object_get(spec, kind);

    bool own = !strcmp(kind, "command") && json_object_get(spec, "image");

    if (!part && !own)
        return err_set(err, ERR_INVALID, "%s: a job of kind \"%s\" needs it", kind, kind);
    if (!strcmp(kind, "command") && json_array_size(part) == 0 && !own)
        return err_set(err, ERR_INVALID, "command: is empty");
    if (!strcmp(kind, "train") && !json_object_get(part, "spec"))
        return err_set(err, ERR_INVALID, "train.spec: is missing (the text of the spec)");
    if (!strcmp(kind, "python") && !json_object_get(part, "module"))
        return err_set(err, ERR_INVALID, "python.module: is missing (as for python -m)");
    return 0;
}

int job_spec_amounts(const json_t *spec, json_t **out, struct err *err)
{
    static const char *const amounts[] = { "cpu", "memory", "gpu", "processes", "disk" };
    json_t *resources = json_object_get(spec, "resources");
    OWN_JSON json_t *copy = NULL;

    for (size_t i = 0; i < sizeof amounts / sizeof amounts[0]; i++) {
        const char *text = json_string_value(json_object_get(resources, amounts[i]));
        double n;
        if (!text)
            continue;
        if (!scan_quantity(text, &n))
            return err_set(err, ERR_INVALID, "resources.%s: \"%.40s\" is no amount, such as %s",
                           amounts[i], text, i == 1 || i == 4 ? "512Mi" : i ? "1" : "500m");
        if ((i == 1 || i == 4) && n >= 1)
            n = ceil(n);        /* 0.1Gi: bytes are whole */
        if (!copy)
            copy = json_deep_copy(spec);
        if (!copy || json_object_set_new(json_object_get(copy, "resources"), amounts[i],
                                         n == floor(n) && n < 1e18 ? json_integer((json_int_t)n)
                                                                   : json_real(n)) < 0)
            return err_set(err, ERR_NOMEM, "no memory for a job");
    }
    *out = copy ? TAKE(copy) : json_incref((json_t *)spec);
    return 0;
}

int job_spec_check(const json_t *spec, struct err *err)
{
    if (!json_is_object(spec))
        return err_set(err, ERR_INVALID, "a job is a JSON object");
    if (object_check(spec, "", err) < 0 ||
        (json_object_get(spec, "step") && step_check(json_object_get(spec, "step"), err) < 0))
        return -(int)err->code;
    const char *kind = json_string_value(json_object_get(spec, "kind"));
    if (!kind)
        return err_set(err, ERR_INVALID, "kind: is missing (train, python or command)");
    for (int i = 0; kinds[i]; i++)
        if (!strcmp(kind, kinds[i])) {
            const json_t *workers = json_object_get(spec, "workers");
            const json_t *min = json_object_get(workers, "min");
            const json_t *max = json_object_get(workers, "max");
            if (max && json_number_value(max) < (min ? json_number_value(min) : 1))
                return err_set(err, ERR_INVALID, "workers.max: is less than workers.min");
            return kind_check(spec, kind, err);
        }
    return err_set(err, ERR_INVALID, "kind: \"%.64s\" is not train, python or command", kind);
}
