/* pipelines/cache.c - keys of steps, and what was found under them */
#include "pipelines/cache.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/own.h"
#include "server/objects.h"
#include "server/server.h"

/* Raised when what a key is made of changes: keys of before are then of nothing. */
enum { CACHE_VERSION = 1 };

static const char *const schema[] = {
    "CREATE TABLE step_cache (project TEXT NOT NULL, key TEXT NOT NULL, t REAL NOT NULL, "
    "run TEXT NOT NULL, node TEXT NOT NULL, outputs TEXT NOT NULL, PRIMARY KEY (project, key, "
    "run)) "
    "WITHOUT ROWID;"
    "CREATE INDEX step_cache_run ON step_cache (run)",
    NULL
};

int step_cache_init(struct server *s, struct err *err)
{
    return store_schema(s->store, "cache", schema, err);
}

/* ------------------------------------------------------------ keys */

/* The volume of a mount; NULL: none of that name. */
static const json_t *volume_of(const json_t *order, const json_t *step, const char *name)
{
    const json_t *const lists[] = { json_object_get(step, "volumes"),
                                    json_object_get(order, "volumes") };

    for (int l = 0; l < 2; l++)
        for (size_t i = 0; i < json_array_size(lists[l]); i++) {
            const json_t *v = json_array_get(lists[l], i);
            const char *of = json_string_value(json_object_get(v, "name"));
            if (of && name && !strcmp(of, name))
                return v;
        }
    return NULL;
}

/* An artifact counts by its content, not by where it is. */
static json_t *art_digest(const json_t *art)
{
    if (json_is_array(art)) {
        json_t *list = json_array();
        for (size_t i = 0; i < json_array_size(art); i++)
            json_array_append_new(list, art_digest(json_array_get(art, i)));
        return list;
    }
    json_t *sum = json_object_get(art, "sha256");
    return sum ? json_pack("{s:O, s:O?, s:O?}", "sha256", sum, "dir", json_object_get(art, "dir"),
                           "metadata", json_object_get(art, "metadata"))
               : json_deep_copy(art);
}

bool step_cache_key(const json_t *order, const char *image_digest, char out[SHA256_HEX],
               char *out_why, size_t size)
{
    static const char *const taken[] = { "command", "args", "script", "cwd", "env", "env_from",
                                         "mounts", "volumes", "init", "sidecars", "resources",
                                         "executor", NULL };
    const json_t *step = json_object_get(order, "step");
    const json_t *mounts = json_object_get(step, "mounts");
    const json_t *inputs = json_object_get(order, "inputs");

    for (size_t i = 0; i < json_array_size(mounts); i++) {
        const json_t *m = json_array_get(mounts, i);
        const char *name = json_string_value(json_object_get(m, "volume"));
        const json_t *v = volume_of(order, step, name);
        if (!json_is_true(json_object_get(m, "read_only")) && !json_object_get(v, "empty") &&
            !json_object_get(v, "secret") && !json_object_get(v, "config")) {
            snprintf(out_why, size, "it may write to the volume \"%.100s\"", name ? name : "");
            return false;
        }
        if (json_object_get(v, "claim") || json_object_get(v, "host") || !v) {
            snprintf(out_why, size, "it reads the volume \"%.100s\", whose content may change",
                     name ? name : "");
            return false;
        }
    }
    OWN_JSON json_t *doc = json_pack("{s:i, s:s, s:O?, s:O?}", "version", CACHE_VERSION, "image",
                                     image_digest, "parameters",
                                     json_object_get(inputs, "parameters"), "outputs",
                                     json_object_get(order, "outputs"));
    OWN_JSON json_t *arts = json_array();
    for (int i = 0; taken[i]; i++)
        if (json_object_get(step, taken[i]))
            json_object_set(doc, taken[i], json_object_get(step, taken[i]));
    for (size_t i = 0; i < json_array_size(json_object_get(inputs, "artifacts")); i++) {
        const json_t *a = json_array_get(json_object_get(inputs, "artifacts"), i);
        json_array_append_new(arts, json_pack("{s:O?, s:O?, s:O*, s:o?}", "name",
                                              json_object_get(a, "name"), "path",
                                              json_object_get(a, "path"), "mode",
                                              json_object_get(a, "mode"), "value",
                                              art_digest(json_object_get(a, "value"))));
    }
    json_object_set(doc, "artifacts", arts);
    OWN_MEM char *text = json_dumps(doc, JSON_COMPACT | JSON_SORT_KEYS);
    if (!text) {
        snprintf(out_why, size, "there was no memory for its key");
        return false;
    }
    sha256_hex_of(text, strlen(text), out);
    return true;
}

/* ------------------------------------------------------------ found again */

struct find {
    const char *project, *key;
    json_t *found;
};

static int find(sqlite3 *db, void *arg, struct err *err)
{
    struct find *f = arg;
    sqlite3_stmt *st = store_sql(db,
                                 "SELECT run, node, outputs, t FROM step_cache WHERE project = ? "
                                 "AND key = ? ORDER BY t DESC LIMIT 1",
                                 err);

    if (!st || store_bind(st, err, "ss", f->project, f->key) < 0)
        return -(int)err->code;
    int rc = store_step(st, err);
    if (rc <= 0)
        return rc < 0 ? rc : err_set(err, ERR_MISSING, "no step with the same image, command and "
                                     "inputs has been run");
    f->found = json_pack("{s:s, s:s, s:o?, s:f}", "run", (const char *)sqlite3_column_text(st, 0),
                         "node", (const char *)sqlite3_column_text(st, 1), "outputs",
                         json_loads((const char *)sqlite3_column_text(st, 2), 0, NULL), "t",
                         sqlite3_column_double(st, 3));
    sqlite3_reset(st);
    return f->found ? 0 : err_set(err, ERR_NOMEM, "no memory for the cache");
}

/* Where an artifact is: its bucket, and the object's name (borrowed); NULL: not in a bucket
 * here. */
static const char *place_of(const json_t *art, char bucket[OBJECTS_BUCKET_MAX + 1])
{
    const char *uri = text_of(art, "uri");
    const char *slash = !strncmp(uri, "gs://", 5) ? strchr(uri + 5, '/') : NULL;

    if (!slash || slash - uri - 5 > OBJECTS_BUCKET_MAX)
        return NULL;
    snprintf(bucket, OBJECTS_BUCKET_MAX + 1, "%.*s", (int)(slash - uri - 5), uri + 5);
    return slash + 1;
}

static int check_art(struct server *s, const char *project, const char *name, const json_t *art,
                     struct err *err)
{
    const char *sum = json_string_value(json_object_get(art, "sha256"));
    struct object o = { 0 };
    struct err none = { 0 };
    char bucket[OBJECTS_BUCKET_MAX + 1];

    if (!sum)
        return 0;               /* of another store: an importer's */
    const char *object = place_of(art, bucket);
    if (!object)
        return err_set(err, ERR_MISSING, "its output \"%.64s\" is not where it was", name);
    if (objects_stat(s, project, bucket, object, &o, &none) < 0)
        return err_set(err, ERR_MISSING,
                       "a step with the same key was run, but its output \"%.64s\" "
                       "is not there any more",
                       name);
    bool same = !strcmp(o.sha256, sum);
    object_done(&o);
    return same ? 0 : err_set(err, ERR_MISSING, "a step with the same key was run, but its output "
                              "\"%.64s\" has been changed since", name);
}

int step_cache_find(struct server *s, const char *project, const char *key, double staleness_s,
               json_t **out, struct err *err)
{
    struct find f = { project, key, NULL };

    if (store_read(s->store, find, &f, err) < 0)
        return -(int)err->code;
    OWN_JSON json_t *found = f.found;
    double age = clock_wall() - json_number_value(json_object_get(found, "t"));
    if (staleness_s > 0 && age < -1)
        return err_set(err, ERR_MISSING, "a step with the same key was run, but the clock was set back "
                       "since: nobody knows how old that is");
    if (staleness_s > 0 && age > staleness_s)
        return err_set(err, ERR_MISSING,
                       "a step with the same key was run %.0f s ago, longer than its "
                       "cache may be old",
                       age);
    const char *name;
    json_t *art;
    json_object_foreach (json_object_get(json_object_get(found, "outputs"), "artifacts"), name,
                         art) {
        for (size_t i = 0; json_is_array(art) && i < json_array_size(art); i++)
            if (check_art(s, project, name, json_array_get(art, i), err) < 0)
                return -(int)err->code;
        if (!json_is_array(art) && check_art(s, project, name, art, err) < 0)
            return -(int)err->code;
    }
    *out = TAKE(found);
    return 0;
}

static int take_art(struct server *s, const char *project, const char *name, json_t *art,
                    const char *run, const char *node, struct err *err)
{
    char bucket[OBJECTS_BUCKET_MAX + 1], key[OBJECTS_NAME_MAX + 1];
    const char *object = place_of(art, bucket);
    struct object o = { 0 };

    if (!object || !json_object_get(art, "sha256"))
        return 0;
    snprintf(key, sizeof key, "%s/%s/%s", run, node, name);
    struct objects_copy c = { .project = project, .bucket = bucket, .name = object,
                              .when = OBJECTS_WHENEVER, .to_bucket = bucket, .to_name = key,
                              .to_when = OBJECTS_WHENEVER };
    if (objects_copy(s, &c, &o, err) < 0)
        return -(int)err->code;
    object_done(&o);
    return json_object_set_new(art, "uri", json_sprintf("gs://%s/%s", bucket, key)) < 0
        ? err_set(err, ERR_NOMEM, "no memory for an artifact") : 0;
}

int step_cache_take(struct server *s, const char *project, json_t *outputs, const char *run,
                    const char *node, struct err *err)
{
    const char *name;
    json_t *art;

    json_object_foreach(json_object_get(outputs, "artifacts"), name, art)
        if (json_is_object(art) && take_art(s, project, name, art, run, node, err) < 0)
            return -(int)err->code;
    return 0;
}

int step_cache_put(sqlite3 *db, const char *run, const json_t *entry, struct err *err)
{
    OWN_MEM char *outputs = json_dumps(json_object_get(entry, "outputs"), JSON_COMPACT);
    const char *project = json_string_value(json_object_get(entry, "project"));
    const char *key = json_string_value(json_object_get(entry, "key"));
    const char *node = json_string_value(json_object_get(entry, "node"));

    if (!outputs || !project || !key)
        return err_set(err, ERR_NOMEM, "no memory for the cache");
    return store_run(db, err, "INSERT OR REPLACE INTO step_cache VALUES (?, ?, ?, ?, ?, ?)",
                     "ssdsss", project, key, clock_wall(), run, node ? node : "", outputs);
}

int step_cache_forget(sqlite3 *db, const char *run, struct err *err)
{
    return store_run(db, err, "DELETE FROM step_cache WHERE run = ?", "s", run);
}
