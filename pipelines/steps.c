/* pipelines/steps.c - a leaf of a graph -> the document of a job */
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "pipelines/pip.h"
#include "pipelines/runs_int.h"
#include "pipelines/steps_ir.h"
#include "server/auth.h"
#include "server/server.h"

/* Where the text of a script is, as Argo has it. */
#define SCRIPT_PATH "/argo/staging/script"

/* A step that asks for nothing gets so much of a core: several small ones run beside each other. */
#define CPU_DEFAULT 0.5

/* ------------------------------------------------------------ secrets and config maps */

/* How a value is kept: NAME.KEY, or NAME alone where somebody keeps one value under it. */
static int value_name(struct server *s, enum auth_kind kind, const char *project, const char *name,
                      const char *key, char *out, size_t size, char **out_value, struct err *err)
{
    char both[2 * AUTH_NAME + 300];
    struct err none = { 0 };
    OWN_MEM char *value = NULL;

    snprintf(both, sizeof both, "%s.%s", name, key);
    if (auth_value_get(s->auth, kind, project, both, &value, &none) < 0) {
        snprintf(both, sizeof both, "%s", name);
        if (auth_value_get(s->auth, kind, project, both, &value, &none) < 0)
            return err_set(err, ERR_MISSING, "there is no %s \"%.100s.%.100s\" in project \"%s\" "
                           "(muster %s set %.100s.%.100s)",
                           kind == AUTH_SECRET ? "secret" : "config value", name, key, project,
                           kind == AUTH_SECRET ? "secret" : "config", name, key);
    }
    if (out)
        snprintf(out, size, "%s", both);
    if (out_value)
        *out_value = TAKE(value);
    return 0;
}

int step_config(struct server *s, const char *project, const char *name, const char *key,
                char **out, struct err *err)
{
    return value_name(s, AUTH_CONFIG, project, name, key, NULL, 0, out, err);
}

/* ------------------------------------------------------------ the environment */

struct making {
    struct server *server;
    const struct live *live;
    const struct node *node;
    const json_t *order, *step;
    json_t *env, *secrets;      /* name to text; name to a secret's name */
    json_t *files, *mounts, *outputs;
};

/* fieldRef and the like: what a pod would know of itself. */
static const char *field_of(const struct making *m, const char *field)
{
    char key[256];

    if (!strcmp(field, "metadata.name") || !strcmp(field, "metadata.uid"))
        return m->node->id;
    if (!strcmp(field, "metadata.namespace"))
        return m->live->project;
    if (!strcmp(field, "spec.nodeName"))
        return "localhost";
    if (!strcmp(field, "spec.serviceAccountName"))
        return text_of(m->live->doc, "service_account");
    if (!strcmp(field, "status.podIP") || !strcmp(field, "status.hostIP"))
        return "127.0.0.1";
    if (sscanf(field, "metadata.labels['%255[^']", key) == 1) {
        if (!strcmp(key, "workflows.argoproj.io/workflow"))
            return text_of(m->live->doc, "workflow");
        if (!strcmp(key, "pipeline/runid"))
            return m->live->id;
        return text_of(json_object_get(m->order, "labels"), key);
    }
    if (sscanf(field, "metadata.annotations['%255[^']", key) == 1) {
        if (!strcmp(key, "workflows.argoproj.io/node-name"))
            return m->node->name;
        return text_of(json_object_get(m->order, "annotations"), key);
    }
    return NULL;
}

/* resourceFieldRef: cores and bytes as whole numbers. */
static json_t *resource_of(const json_t *step, const char *which)
{
    const json_t *r = json_object_get(step, "resources");
    char text[32];

    snprintf(text, sizeof text, "%.0f",
             json_number_value(json_object_get(r, strstr(which, "cpu") ? "cpu" : "memory")));
    return json_string(text);
}

/* `ref`: {"name", "key", "optional"}. */
static int env_value(struct making *m, const char *name, enum auth_kind kind, const json_t *ref,
                     struct err *err)
{
    OWN_MEM char *value = NULL;
    char kept[2 * AUTH_NAME + 300];
    int rc = value_name(m->server, kind, m->live->project, text_of(ref, "name"),
                        text_of(ref, "key"), kept, sizeof kept, &value, err);

    if (rc == -ERR_MISSING && json_is_true(json_object_get(ref, "optional")))
        return 0;
    if (rc < 0)
        return err_add(err, "env %.64s", name);
    if (kind == AUTH_SECRET)
        json_object_set_new(m->secrets, name, json_string(kept));
    else
        json_object_set_new(m->env, name, json_string(value));
    return 0;
}

/* All keys of a Secret or ConfigMap, `each` with its key and the name it is kept under. */
static int each_key(struct making *m, enum auth_kind kind, const char *name,
                    int (*each)(struct making *m, const char *key, const char *kept,
                                const char *value, void *arg), void *arg, int *out_n,
                    struct err *err)
{
    OWN_JSON json_t *rows = NULL;
    size_t i, n = strlen(name);
    json_t *row;

    if (auth_value_list(m->server->auth, kind, m->live->project, &rows, err) < 0)
        return -(int)err->code;
    *out_n = 0;
    json_array_foreach(rows, i, row) {
        const char *kept = text_of(row, "name");
        if (strncmp(kept, name, n) || kept[n] != '.')
            continue;
        ++*out_n;
        if (each(m, kept + n + 1, kept, text_of(row, "value"), arg) < 0)
            return err_set(err, ERR_NOMEM, "no memory for a step");
    }
    return 0;
}

struct from {
    const char *prefix;
    enum auth_kind kind;
};

static int env_key(struct making *m, const char *key, const char *kept, const char *value, void *arg)
{
    const struct from *f = arg;
    char name[512];

    snprintf(name, sizeof name, "%s%s", f->prefix, key);
    return f->kind == AUTH_SECRET ? json_object_set_new(m->secrets, name, json_string(kept))
                                  : json_object_set_new(m->env, name, json_string(value));
}

static int env_from(struct making *m, const json_t *list, struct err *err)
{
    size_t i;
    json_t *item;

    json_array_foreach((json_t *)list, i, item) {
        bool secret = json_object_get(item, "secret") != NULL;
        struct from f = { text_of(item, "prefix"), secret ? AUTH_SECRET : AUTH_CONFIG };
        const char *name = text_of(item, secret ? "secret" : "config");
        int n;
        if (each_key(m, f.kind, name, env_key, &f, &n, err) < 0)
            return -(int)err->code;
        if (n == 0 && !json_is_true(json_object_get(item, "optional")))
            return err_set(err, ERR_MISSING, "there is no %s \"%.100s\" in project \"%s\" (its values "
                           "are kept as %.100s.KEY)", secret ? "secret" : "config map", name,
                           m->live->project, name);
    }
    return 0;
}

static int make_env(struct making *m, const json_t *step, struct err *err)
{
    size_t i;
    json_t *item;

    if (env_from(m, json_object_get(step, "env_from"), err) < 0)
        return -(int)err->code;
    json_array_foreach(json_object_get(step, "env"), i, item) {
        const char *name = text_of(item, "name"), *field = text_of(item, "field");
        const json_t *secret = json_object_get(item, "secret");
        const json_t *config = json_object_get(item, "config");
        if (secret || config) {
            if (env_value(m, name, secret ? AUTH_SECRET : AUTH_CONFIG, secret ? secret : config,
                          err) < 0)
                return -(int)err->code;
        } else if (*field) {
            const char *value = field_of(m, field);
            if (!value)
                return err_set(err, ERR_INVALID, "env %.64s: there is no field \"%.100s\" here", name,
                               field);
            json_object_set_new(m->env, name, json_string(value));
        } else if (json_object_get(item, "resource")) {
            json_object_set_new(m->env, name, resource_of(step, text_of(item, "resource")));
        } else {
            json_object_set_new(m->env, name, json_string(text_of(item, "value")));
        }
    }
    return 0;
}

/* ------------------------------------------------------------ what it runs */

/* $(NAME) of the environment is filled in, as Kubernetes does; $$(NAME) stays $(NAME). */
static json_t *expand(const json_t *env, const char *text)
{
    OWN_BUF out = BUF_INIT;

    for (const char *p = text; *p;) {
        size_t n = strcspn(p, "$");
        buf_append(&out, p, n);
        p += n;
        if (!*p)
            break;
        const char *end = p[1] == '(' ? strchr(p, ')') : NULL;
        char name[256];
        if (p[1] == '$' && p[2] == '(') {
            buf_text(&out, "$");
            p += 2;
            continue;
        }
        if (end && end - p - 2 < (long)sizeof name) {
            snprintf(name, sizeof name, "%.*s", (int)(end - p - 2), p + 2);
            const char *value = json_string_value(json_object_get(env, name));
            if (value) {
                buf_text(&out, value);
                p = end + 1;
                continue;
            }
        }
        buf_append(&out, p++, 1);
    }
    OWN_MEM char *filled = buf_take(&out);
    return filled ? json_string(filled) : NULL;
}

static void add_words(json_t *out, const json_t *env, const json_t *words)
{
    size_t i;
    json_t *word;

    json_array_foreach((json_t *)words, i, word) {
        OWN_MEM char *other = json_is_string(word) ? NULL : json_dumps(word, JSON_ENCODE_ANY);
        json_array_append_new(out, expand(env, json_is_string(word) ? json_string_value(word)
                                                                    : other ? other : ""));
    }
}

static json_t *make_command(const struct making *m, const json_t *step)
{
    json_t *command = json_array();

    add_words(command, m->env, json_object_get(step, "command"));
    if (json_object_get(step, "script"))
        json_array_append_new(command, json_string(SCRIPT_PATH));
    add_words(command, m->env, json_object_get(step, "args"));
    return command;
}

/* ------------------------------------------------------------ files and volumes */

static int add_artifact(struct making *m, const json_t *item, const json_t *art, struct err *err)
{
    const json_t *raw = json_object_get(art, "raw"), *mode = json_object_get(item, "mode");
    const char *uri = text_of(art, "uri"), *name = text_of(item, "name");
    const char *path = text_of(item, "path");
    bool dir = json_is_true(json_object_get(art, "dir"));

    if (mode && dir)
        return err_set(err, ERR_INVALID, "artifact %.64s: is a directory; a mode is for files", name);
    if (raw)
        json_array_append_new(m->files, json_pack("{s:s, s:O, s:O*}", "path", path, "text", raw,
                                                  "mode", mode));
    else if (!strncmp(uri, "gs://", 5))
        json_array_append_new(m->files, json_pack("{s:s, s:s, s:b, s:O*}", "path", path, "object",
                                                  uri, "dir", dir, "mode", mode));
    else
        return err_set(err, ERR_INVALID, "artifact %.64s: \"%.200s\" is not in a bucket of this "
                       "server (gs://BUCKET/NAME)", name, uri);
    return 0;
}

static int make_files(struct making *m, struct err *err)
{
    const json_t *artifacts = json_object_get(json_object_get(m->order, "inputs"), "artifacts");
    json_t *item, *script = json_object_get(m->step, "script");
    size_t i;

    json_array_foreach((json_t *)artifacts, i, item) {
        const json_t *art = json_object_get(item, "value");
        if (*text_of(item, "path") && json_is_object(art) && add_artifact(m, item, art, err) < 0)
            return -(int)err->code;
    }
    if (script)
        json_array_append_new(m->files, json_pack("{s:s, s:O}", "path", SCRIPT_PATH, "text",
                                                  script));
    return 0;
}

static const json_t *find_volume(const struct making *m, const char *name)
{
    const json_t *const lists[] = { json_object_get(m->step, "volumes"),
                                    json_object_get(m->order, "volumes") };
    size_t i;
    json_t *v;

    for (int l = 0; l < 2; l++)
        json_array_foreach((json_t *)lists[l], i, v)
            if (!strcmp(text_of(v, "name"), name))
                return v;
    return NULL;
}

/* Keys of a Secret or ConfigMap as files of a directory. */
struct as_files {
    const char *path, *sub;
    const json_t *items;        /* [{"key", "path"}]; NULL: all */
    enum auth_kind kind;
};

static int file_key(struct making *m, const char *key, const char *kept, const char *value,
                    void *arg)
{
    const struct as_files *f = arg;
    const char *at = f->items ? NULL : key;
    char path[1024];

    for (size_t i = 0; i < json_array_size(f->items); i++)
        if (!strcmp(text_of(json_array_get(f->items, i), "key"), key))
            at = text_of(json_array_get(f->items, i), "path");
    if (!at || (*f->sub && strcmp(at, f->sub)))
        return 0;
    snprintf(path, sizeof path, *f->sub ? "%s" : "%s/%s", f->path, at);
    return json_array_append_new(m->files, f->kind == AUTH_SECRET
        ? json_pack("{s:s, s:s}", "path", path, "secret", kept)
        : json_pack("{s:s, s:s}", "path", path, "text", value));
}

static int add_values(struct making *m, const json_t *volume, const char *path, const char *sub,
                      struct err *err)
{
    const json_t *secret = json_object_get(volume, "secret");
    const json_t *of = secret ? secret : json_object_get(volume, "config");
    const char *name = text_of(of, "name");
    struct as_files f = { path, sub, json_object_get(of, "items"),
                          secret ? AUTH_SECRET : AUTH_CONFIG };
    int n;

    if (each_key(m, f.kind, name, file_key, &f, &n, err) < 0)
        return -(int)err->code;
    if (n == 0 && !json_is_true(json_object_get(of, "optional")))
        return err_set(err, ERR_MISSING, "volume %.64s: there is no %s \"%.100s\" in project \"%s\" "
                       "(its values are kept as %.100s.KEY)", text_of(volume, "name"),
                       secret ? "secret" : "config map", name, m->live->project, name);
    return 0;
}

static int make_mounts(struct making *m, const json_t *step, struct err *err)
{
    size_t i;
    json_t *item;

    json_array_foreach(json_object_get(step, "mounts"), i, item) {
        const char *name = text_of(item, "volume"), *path = text_of(item, "path");
        const char *sub = text_of(item, "sub");
        const json_t *v = find_volume(m, name);
        OWN_MEM char *from = NULL;
        int n = -1;
        if (!v)
            return err_set(err, ERR_INVALID, "mount %.100s: there is no volume \"%.64s\"", path, name);
        if (json_object_get(v, "secret") || json_object_get(v, "config")) {
            if (add_values(m, v, path, sub, err) < 0)
                return -(int)err->code;
            continue;
        }
        if (json_object_get(v, "claim"))
            n = asprintf(&from, "volume:%s", text_of(v, "claim"));
        else if (json_object_get(v, "host"))
            n = asprintf(&from, "host:%s", text_of(v, "host"));
        else
            n = asprintf(&from, "empty:%s", name);
        if (n < 0)
            return err_set(err, ERR_NOMEM, "no memory for a step");
        if (json_object_get(v, "host") &&
            !json_is_true(json_object_get(m->live->doc, "host_files")))
            return err_set(err, ERR_DENIED, "volume %.64s: directories of this machine are for runs "
                           "of the server's own token", name);
        json_array_append_new(m->mounts, json_pack("{s:s, s:s, s:s*, s:b}", "path", path, "from",
                                                   from, "sub", *sub ? sub : NULL, "read_only",
                                                   json_is_true(json_object_get(item,
                                                                                "read_only"))));
    }
    return 0;
}

/* An artifact whose name says of no kind of file is likely a directory. */
static bool is_likely_dir(const char *kind, const char *path)
{
    const char *name = strrchr(path, '/');
    return !strcmp(kind, "artifacts") && !strchr(name ? name : path, '.');
}

static void make_outputs(struct making *m)
{
    static const char *const kinds[] = { "parameters", "artifacts" };
    const json_t *outputs = json_object_get(m->order, "outputs");
    size_t i;
    json_t *item;

    for (int k = 0; k < 2; k++)
        json_array_foreach(json_object_get(outputs, kinds[k]), i, item)
            if (json_object_get(item, "path"))
                json_array_append_new(m->outputs, json_pack("{s:O, s:b}", "path",
                                                            json_object_get(item, "path"), "dir",
                                                            is_likely_dir(kinds[k],
                                                                          text_of(item, "path"))));
}

/* ------------------------------------------------------------ others beside it */

static int make_beside(struct making *m, const char *key, json_t *out, struct err *err)
{
    size_t i;
    json_t *item;

    json_array_foreach(json_object_get(m->step, key), i, item) {
        struct making of = *m;
        OWN_JSON json_t *env = json_object();
        OWN_JSON json_t *secrets = json_object();
        of.env = env;
        of.secrets = secrets;
        if (make_env(&of, item, err) < 0 || make_mounts(&of, item, err) < 0)
            return err_add(err, "%s %.64s", key, text_of(item, "name"));
        if (json_object_get(item, "script"))
            return err_set(err, ERR_INVALID, "%s %.64s: a script runs as a step of its own", key,
                           text_of(item, "name"));
        OWN_JSON json_t *command = make_command(&of, item);
        if (json_array_size(command) == 0)
            return err_set(err, ERR_INVALID, "%s %.64s: needs a command", key,
                           text_of(item, "name"));
        /* Its secrets are those of the job: the values reach the keeper through memory alone. */
        json_object_update_missing(m->secrets, secrets);
        json_array_append_new(out, json_pack("{s:O, s:O, s:O?, s:O}", "name",
                                             json_object_get(item, "name"), "command", command,
                                             "image", json_object_get(item, "image"), "env", env));
    }
    return 0;
}

/* Mounts of the step and of those beside it name the same volume at the same place once. */
static void unite_mounts(json_t *mounts)
{
    for (size_t i = 0; i < json_array_size(mounts); i++)
        for (size_t j = json_array_size(mounts); --j > i;)
            if (!strcmp(text_of(json_array_get(mounts, i), "path"),
                        text_of(json_array_get(mounts, j), "path")))
                json_array_remove(mounts, j);
}

static json_t *make_resources(const json_t *step)
{
    const json_t *asked = json_object_get(step, "resources");
    json_t *out = json_object();
    double cpu = json_number_value(json_object_get(asked, "cpu"));
    double memory = json_number_value(json_object_get(asked, "memory"));
    double gpu = json_number_value(json_object_get(asked, "gpu"));

    json_object_set_new(out, "cpu", json_real(cpu > 0 ? cpu : CPU_DEFAULT));
    if (memory > 0)
        json_object_set_new(out, "memory", json_integer((json_int_t)memory));
    if (gpu > 0)
        json_object_set_new(out, "gpu", json_integer((json_int_t)gpu));
    return out;
}

int step_fill(const struct live *l, const struct node *n, json_t *order, struct err *err)
{
    char bucket[128];
    const struct steps_ir of = { l->project, l->id, text_of(l->doc, "workflow"), n->id,
                                 n->task && *n->task ? n->task : n->name, bucket,
                                 number_of(l->doc, "created") };

    snprintf(bucket, sizeof bucket, "artifacts-%s", l->project);
    return steps_ir_fill(&of, order, err);
}

/* Packages that the step's own pip would install: its environment has them already. */
static void add_requirements(json_t *doc)
{
    OWN_MEM char *lines = pip_requirements(json_object_get(doc, "command"));

    if (lines)
        json_object_set_new(doc, "python", json_pack("{s:s}", "requirements", lines));
}

int step_job(struct server *s, const struct live *l, const struct node *n, const json_t *order,
             json_t **out, struct err *err)
{
    OWN_JSON json_t *env = json_object(), *secrets = json_object(), *files = json_array(),
                    *mounts = json_array(), *outputs = json_array(), *init = json_array(),
                    *sidecars = json_array();
    const json_t *step = json_object_get(order, "step");
    struct making m = { s, l, n, order, step, env, secrets, files, mounts, outputs };

    if (make_env(&m, step, err) < 0 || make_files(&m, err) < 0 || make_mounts(&m, step, err) < 0 ||
        make_beside(&m, "init", init, err) < 0 || make_beside(&m, "sidecars", sidecars, err) < 0)
        return -(int)err->code;
    make_outputs(&m);
    unite_mounts(mounts);
    const char *cwd = text_of(step, "cwd"), *image = text_of(step, "image");
    double limit = json_number_value(json_object_get(order, "deadline_s"));
    OWN_JSON json_t *doc = json_pack(
        "{s:s, s:o, s:s*, s:O, s:O, s:o, s:b, s:b, s:{s:s, s:s}, s:{s:O, s:O, s:O, s:s*, s:O, s:O, "
        "s:b}}", "kind", "command", "command", make_command(&m, step), "image",
        *image ? image : NULL, "env", env, "secrets", secrets, "resources", make_resources(step),
        "network", 1, "host_files", json_is_true(json_object_get(l->doc, "host_files")), "labels",
        "run", l->id, "node", n->id, "step", "files", files, "mounts", mounts, "outputs", outputs,
        "cwd", *cwd ? cwd : NULL, "init", init, "sidecars", sidecars, "result",
        l->wants_result);
    if (!doc)
        return err_set(err, ERR_INVALID, "a value of the step is not UTF-8");
    add_requirements(doc);
    /* Half a core is what it counts for; of what nobody else uses it may have more. */
    if (!json_object_get(json_object_get(step, "resources"), "cpu"))
        json_object_set_new(json_object_get(doc, "step"), "share", json_true());
    if (limit > 0)
        json_object_set_new(doc, "time_limit_s", json_real(limit));
    *out = TAKE(doc);
    return 0;
}
