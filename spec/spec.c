/* spec/spec.c - what was asked for: text, tree, --set, normal form, sense, struct */
#include "spec/spec.h"

#include <stdio.h>
#include <string.h>

#include "base/files.h"
#include "base/utf8.h"
#include "spec/keys.h"
#include "spec/normal.h"
#include "spec/sense.h"
#include "spec/set.h"
#include "spec/yaml.h"

void spec_free(struct job_spec *s)
{
    if (!s)
        return;
    json_decref(s->doc);
    json_decref(s->nothing);
    value_free(s->values);
    free(s);
}

char *spec_resolve_path(const char *dir, const char *path)
{
    return files_resolve(dir, path);
}

static const char *text_of(const json_t *map, const char *key)
{
    return json_string_value(json_object_get(map, key));
}

static int whole_of(const json_t *map, const char *key)
{
    return (int)json_integer_value(json_object_get(map, key));
}

/* "10 steps" of the normal form. */
static struct every every_of(const json_t *map)
{
    const char *text = text_of(map, "every");
    struct every e = { 0, EVERY_NEVER };

    if (text && strcmp(text, "never") != 0) {
        e.n = strtol(text, NULL, 10);
        e.unit = strstr(text, "epoch") ? EVERY_EPOCHS :
                 strstr(text, "second") ? EVERY_SECONDS : EVERY_STEPS;
    }
    return e;
}

static void fill_stops(struct job_spec *s)
{
    const json_t *stop = json_object_get(s->doc, "stop"), *rule, *bound;
    const char *metric, *side;

    s->patience = whole_of(stop, "patience");
    json_object_foreach((json_t *)stop, metric, rule)
        json_object_foreach((json_t *)rule, side, bound) {
            struct stop_rule *r = &s->stop[s->n_stops++];
            snprintf(r->metric, sizeof r->metric, "%s", metric);
            r->above = strcmp(side, "above") == 0;
            r->bound = json_real_value(bound);
        }
}

static void fill_struct(struct job_spec *s)
{
    const json_t *doc = s->doc, *checkpoint = json_object_get(doc, "checkpoint"), *metric;
    size_t i;

    s->program = json_object_get(doc, "python")    ? "python"
                 : json_object_get(doc, "command") ? "command" : NULL;
    s->name = text_of(doc, "name");
    s->data = s->program ? s->nothing : json_object_get(doc, "data");
    s->model = json_object_get(doc, "model");
    s->loss = json_object_get(doc, "loss");
    s->optimizer = json_object_get(doc, "optimizer");
    s->schedule = json_object_get(doc, "schedule");
    s->clip = json_object_get(doc, "clip");
    json_array_foreach(json_object_get(doc, "metrics"), i, metric)
        s->metric[s->n_metrics++] = json_string_value(metric);
    s->batch = whole_of(doc, "batch");
    s->epochs = whole_of(doc, "epochs");
    s->shards = whole_of(doc, "shards");
    s->threads = whole_of(doc, "threads");
    s->test = every_of(json_object_get(doc, "test"));
    s->checkpoint = every_of(checkpoint);
    s->checkpoint_keep = whole_of(checkpoint, "keep");
    s->checkpoint_best = text_of(checkpoint, "best");
    if (s->checkpoint_best && strcmp(s->checkpoint_best, "none") == 0)
        s->checkpoint_best = NULL;
    fill_stops(s);
    s->seed = (uint64_t)json_integer_value(json_object_get(doc, "seed"));
    s->init = text_of(doc, "init");
    s->order = text_of(doc, "order");
    sscanf(text_of(doc, "workers"), "%d..%d", &s->workers_min, &s->workers_max);
    s->run_on = text_of(doc, "run_on");
}

/* One step of a path: the child that `*path` begins with, or NULL; `*path` then is behind it. */
static const struct value *follow(const struct value *v, const char **path)
{
    const struct value *best = NULL;
    size_t longest = 0;

    if (v->kind == VALUE_LIST && **path == '[') {
        char *end;
        long i = strtol(*path + 1, &end, 10);
        best = *end == ']' && i >= 0 && i <= VALUE_MAX ? value_item(v, (int)i) : NULL;
        *path = end + (*end == ']');
        return best;
    }
    const char *at = *path + (**path == '.');
    for (const struct value *c = v->kind == VALUE_MAP ? v->child : NULL; c; c = c->next) {
        size_t n = strlen(c->key);      /* the longest: a column's name may hold a dot */
        if (n > longest && strncmp(at, c->key, n) == 0 && strchr(".[: ,", at[n])) {
            longest = n;
            best = c;
        }
    }
    *path = at + longest;
    return best;
}

int spec_locate(const struct job_spec *s, struct err *err)
{
    char word[64], place[4200];
    size_t n = strcspn(err->text, ".[: ");

    snprintf(word, sizeof word, "%.*s", (int)(n < sizeof word ? n : 0), err->text);
    if (!s->values || !key_find("", word) || !err->text[n] || err->text[n] == ' ')
        return -(int)err->code;
    const struct value *v = s->values, *next;
    const char *path = err->text;
    while ((next = follow(v, &path)))
        v = next;
    value_place(v, s->path, v != s->values, place, sizeof place);
    return err_add(err, "%s", place);
}

static void set_paths(struct job_spec *s, const char *name)
{
    snprintf(s->path, sizeof s->path, "%s", name);
    const char *slash = strrchr(name, '/');
    snprintf(s->dir, sizeof s->dir, "%.*s", slash ? (int)(slash - name) + (slash == name) : 1,
             slash ? name : ".");
}

/* A sentence quotes what the user wrote, which may hold anything, and may have been cut inside a
 * character: what a terminal would act on becomes a blank. */
static int clean_text(struct err *err)
{
    size_t n = strlen(err->text), len;

    for (char *c = err->text; *c; c += len) {
        len = utf8_length(c, n - (size_t)(c - err->text));
        unsigned char next = len == 2 ? (unsigned char)c[1] : 0;
        int acts = (unsigned char)*c < 0x20 || *c == 0x7F ||
                   ((unsigned char)*c == 0xC2 && next < 0xA0);
        if (!len || acts) {
            len = len ? len : 1;
            memset(c, ' ', len);
        }
    }
    return -(int)err->code;
}

static int parse_into(struct job_spec *s, const char *text, size_t n, const char *const *set,
                      int n_set, struct err *err)
{
    if (yaml_parse(text, n, s->path, NULL, &s->values, err) < 0)
        return -(int)err->code;
    for (int i = 0; i < n_set; i++)
        if (set_apply(s->values, set[i], err) < 0)
            return -(int)err->code;
    if (normal_form(s->values, s->path, &s->doc, err) < 0)
        return -(int)err->code;
    if (sense_make(s->doc, s->values, s->path, err) < 0)
        return spec_locate(s, err);
    return 0;
}

int spec_parse(const char *text, size_t n, const char *name, const char *const *set, int n_set,
               struct job_spec **out, struct err *err)
{
    OWN(job_spec) s = calloc(1, sizeof *s);

    if (!s || !(s->nothing = json_object()))
        return err_set(err, ERR_NOMEM, "no memory for the spec");
    set_paths(s, name);
    if (parse_into(s, text, n, set, n_set, err) < 0)
        return clean_text(err);
    fill_struct(s);
    *out = TAKE(s);
    return 0;
}

int spec_read(const char *path, const char *const *set, int n_set, struct job_spec **out,
              struct err *err)
{
    OWN_MEM char *text = NULL;
    size_t n;

    if (files_read(path, YAML_BYTES_MAX, &text, &n, err) < 0)
        return -(int)err->code;
    return spec_parse(text, n, path, set, n_set, out, err);
}

json_t *spec_identity(const struct job_spec *s)
{
    static const char *const free_to_differ[] = { "name", "workers", "resources", "run_on",
                                                  "threads", "network" };
    json_t *doc = json_deep_copy(s->doc);

    if (doc && !json_equal(doc, s->doc)) {      /* it does not tell when memory ran out half-way */
        json_decref(doc);
        return NULL;
    }
    for (size_t i = 0; doc && i < sizeof free_to_differ / sizeof free_to_differ[0]; i++)
        json_object_del(doc, free_to_differ[i]);
    return doc;
}
