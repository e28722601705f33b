/* pipelines/catalog.c - pipelines, versions, experiments: made, changed, removed */
#include "pipelines/catalog.h"

#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "pipelines/flow.h"
#include "pipelines/package.h"
#include "server/server.h"

enum { NAME_MAX_BYTES = 512, TEXT_MAX_BYTES = 64 << 10 };

static int check_texts(const char *what, const char *name, const char *description, struct err *err)
{
    if (!name || !*name || strlen(name) > NAME_MAX_BYTES)
        return err_set(err, ERR_INVALID, "the name of a %s has 1 to %d bytes", what,
                       NAME_MAX_BYTES);
    for (const char *p = name; *p; p++)
        if ((unsigned char)*p < ' ')
            return err_set(err, ERR_INVALID, "the name of a %s has no control characters", what);
    if (description && strlen(description) > TEXT_MAX_BYTES)
        return err_set(err, ERR_INVALID, "the description of a %s has at most %d bytes", what,
                       TEXT_MAX_BYTES);
    return 0;
}

/* ------------------------------------------------------------ packages */

struct compiled {
    struct buf text;
    json_t *flow;
    char *flow_text;
};

static void compiled_done(struct compiled *c)
{
    buf_done(&c->text);
    json_decref(c->flow);
    free(c->flow_text);
}
#define OWN_COMPILED __attribute__((cleanup(compiled_done))) struct compiled

static int compile(const struct catalog_entry *e, struct compiled *out, struct err *err)
{
    const char *file = e->file && *e->file ? e->file : "pipeline.yaml";

    if (package_read(e->package, e->package_n, file, &out->text, err) < 0 ||
        flow_compile(file, out->text.data, out->text.n, &out->flow, err) < 0)
        return -(int)err->code;
    out->flow_text = json_dumps(out->flow, JSON_COMPACT);
    return out->flow_text ? 0 : err_set(err, ERR_NOMEM, "no memory for a pipeline");
}

/* A name that the package gives itself: a prefix of runs' names ends in '-'. */
static void own_name(const json_t *flow, char *out, size_t size)
{
    snprintf(out, size, "%s", text_of(flow, "name"));
    for (size_t n = strlen(out); n > 1 && out[n - 1] == '-'; n--)
        out[n - 1] = 0;
}

/* ------------------------------------------------------------ pipelines and versions */

static json_t *entry_json(const struct catalog_entry *e, const char *project, const char *name,
                          const json_t *flow, double now)
{
    char id[ROWS_ID];

    rows_new_id(id);
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:f, s:f, s:O?}", "id", id, "project", project,
                     "name", name, "display", e->display && *e->display ? e->display : name,
                     "description",
                     e->description ? e->description : text_of(flow, "description"), "created",
                     now, "updated", now, "tags", (json_t *)e->tags);
}

static json_t *version_json(const struct catalog_entry *e, const json_t *pipeline,
                            const char *name, const struct compiled *c, double now)
{
    json_t *doc = entry_json(e, text_of(pipeline, "project"), name, c->flow, now);
    OWN_JSON json_t *more = json_pack("{s:s, s:s, s:O, s:s}", "pipeline", text_of(pipeline, "id"),
                                      "dialect", text_of(c->flow, "dialect"), "inputs",
                                      json_object_get(c->flow, "inputs"), "url",
                                      e->url ? e->url : "");

    if (json_object_update(doc, more) < 0) {
        json_decref(doc);
        return NULL;
    }
    return doc;
}

struct creation {
    const struct compiled *compiled;    /* NULL: a pipeline without versions yet */
    json_t *pipeline, *version;
    bool is_new;                /* the pipeline */
};

static int create(sqlite3 *db, void *arg, struct err *err)
{
    struct creation *c = arg;
    char digest[65];

    if (c->version) {
        if (rows_text_put(db, c->compiled->text.data, c->compiled->text.n, c->compiled->flow_text,
                          digest, err) < 0)
            return -(int)err->code;
        json_object_set_new(c->version, "digest", json_string(digest));
        json_object_set(c->pipeline, "default_version", json_object_get(c->version, "id"));
    }
    if (c->is_new && rows_insert(db, &rows_pipelines, c->pipeline, err) < 0)
        return -(int)err->code;
    if (!c->version)
        return 0;
    if (!c->is_new) {
        /* Who removed it meanwhile has; what else changed stays. */
        OWN_JSON json_t *now = NULL;
        if (rows_read(db, &rows_pipelines, NULL, text_of(c->pipeline, "id"), &now, err) < 0)
            return -(int)err->code;
        json_object_set(now, "default_version", json_object_get(c->version, "id"));
        json_object_set(now, "updated", json_object_get(c->version, "created"));
        if (rows_update(db, &rows_pipelines, now, err) < 0)
            return -(int)err->code;
    }
    return rows_insert(db, &rows_versions, c->version, err);
}

int pipelines_create(struct server *s, const struct catalog_entry *e, json_t **out,
                     struct err *err)
{
    OWN_COMPILED c = { BUF_INIT, NULL, NULL };
    char own[256] = "";
    double now = clock_wall();

    if (e->package && compile(e, &c, err) < 0)
        return -(int)err->code;
    own_name(c.flow, own, sizeof own);
    const char *name = e->name && *e->name ? e->name : own;
    if (check_texts("pipeline", name, e->description, err) < 0)
        return -(int)err->code;
    OWN_JSON json_t *pipeline = entry_json(e, e->project, name, c.flow, now);
    json_object_set_new(pipeline, "default_version", json_string(""));
    OWN_JSON json_t *version = c.flow ? version_json(e, pipeline, name, &c, now) : NULL;
    if (!pipeline || (c.flow && !version))
        return err_set(err, ERR_NOMEM, "no memory for a pipeline");
    struct creation creation = { &c, pipeline, version, true };
    if (store_write(s->store, create, &creation, err) < 0)
        return -(int)err->code;
    if (version)
        json_object_set(pipeline, "version", version);
    *out = TAKE(pipeline);
    return 0;
}

int versions_create(struct server *s, const char *pipeline, const struct catalog_entry *e,
                    json_t **out, struct err *err)
{
    OWN_COMPILED c = { BUF_INIT, NULL, NULL };
    OWN_JSON json_t *of = NULL;
    char own[256];

    if (rows_get(s, &rows_pipelines, e->project, pipeline, &of, err) < 0)
        return -(int)err->code;
    if (!e->package)
        return err_set(err, ERR_INVALID, "a version needs a package");
    if (compile(e, &c, err) < 0)
        return -(int)err->code;
    own_name(c.flow, own, sizeof own);
    const char *name = e->name && *e->name ? e->name : own;
    if (check_texts("version", name, e->description, err) < 0)
        return -(int)err->code;
    OWN_JSON json_t *version = version_json(e, of, name, &c, clock_wall());
    if (!version)
        return err_set(err, ERR_NOMEM, "no memory for a version");
    struct creation creation = { &c, of, version, false };
    if (store_write(s->store, create, &creation, err) < 0)
        return -(int)err->code;
    *out = TAKE(version);
    return 0;
}

int pipelines_get(struct server *s, const char *project, const char *id, json_t **out,
                  struct err *err)
{
    return rows_get(s, &rows_pipelines, project, id, out, err);
}

int versions_get(struct server *s, const char *project, const char *pipeline, const char *id,
                 json_t **out, struct err *err)
{
    OWN_JSON json_t *of = NULL;
    OWN_JSON json_t *doc = NULL;

    if (!id || !*id) {
        if (rows_get(s, &rows_pipelines, project, pipeline, &of, err) < 0)
            return -(int)err->code;
        id = text_of(of, "default_version");
        if (!*id)
            return err_set(err, ERR_MISSING, "pipeline \"%.200s\" has no version yet (upload one)",
                           text_of(of, "name"));
    }
    if (rows_get(s, &rows_versions, project, id, &doc, err) < 0)
        return -(int)err->code;
    if (pipeline && *pipeline && strcmp(pipeline, text_of(doc, "pipeline")))
        return err_set(err, ERR_MISSING, "there is no version \"%.64s\" of this pipeline", id);
    *out = TAKE(doc);
    return 0;
}

struct texts {
    const char *project, *id;
    char *text, *flow;
    size_t n;
    bool want_flow;
};

static int read_texts(sqlite3 *db, void *arg, struct err *err)
{
    struct texts *t = arg;
    OWN_JSON json_t *doc = NULL;

    if (rows_read(db, &rows_versions, t->project, t->id, &doc, err) < 0)
        return -(int)err->code;
    return rows_text_get(db, text_of(doc, "digest"), &t->text, &t->n,
                         t->want_flow ? &t->flow : NULL, err);
}

int versions_text(struct server *s, const char *project, const char *id, char **out_text,
                  size_t *out_n, json_t **out_flow, struct err *err)
{
    struct texts t = { project, id, NULL, NULL, 0, out_flow != NULL };
    int rc = store_read(s->store, read_texts, &t, err);

    if (rc == 0 && out_flow && !(*out_flow = json_loads(t.flow, 0, NULL)))
        rc = err_set(err, ERR_NOMEM, "no memory for a pipeline");
    if (rc == 0 && out_text)
        *out_text = TAKE(t.text);
    if (rc == 0 && out_n)
        *out_n = t.n;
    free(t.text);
    free(t.flow);
    return rc;
}

/* ------------------------------------------------------------ changes */

struct change {
    const struct rows_kind *kind;
    const char *project, *id;
    const json_t *patch;
    const char *version;        /* the new default of a pipeline */
    json_t *doc;
};

static const char *const patched[] = { "display", "description", "tags", NULL };

static int change(sqlite3 *db, void *arg, struct err *err)
{
    struct change *c = arg;
    OWN_JSON json_t *version = NULL;

    if (rows_read(db, c->kind, c->project, c->id, &c->doc, err) < 0)
        return -(int)err->code;
    for (int i = 0; patched[i]; i++) {
        json_t *v = json_object_get(c->patch, patched[i]);
        if (v)
            json_object_set(c->doc, patched[i], v);
    }
    if (c->version) {
        if (rows_read(db, &rows_versions, c->project, c->version, &version, err) < 0)
            return -(int)err->code;
        if (strcmp(text_of(version, "pipeline"), c->id))
            return err_set(err, ERR_INVALID, "version \"%.200s\" is of another pipeline",
                           text_of(version, "name"));
        json_object_set_new(c->doc, "default_version", json_string(c->version));
    }
    json_object_set_new(c->doc, "updated", json_real(clock_wall()));
    return rows_update(db, c->kind, c->doc, err);
}

static int changed(struct server *s, struct change *c, json_t **out, struct err *err)
{
    int rc = store_write(s->store, change, c, err);

    if (rc == 0 && out)
        *out = json_incref(c->doc);
    json_decref(c->doc);
    return rc;
}

int pipelines_patch(struct server *s, const char *project, const char *id, const json_t *patch,
                    json_t **out, struct err *err)
{
    return changed(s, &(struct change){ &rows_pipelines, project, id, patch, NULL, NULL }, out,
                   err);
}

int versions_patch(struct server *s, const char *project, const char *id, const json_t *patch,
                   json_t **out, struct err *err)
{
    return changed(s, &(struct change){ &rows_versions, project, id, patch, NULL, NULL }, out, err);
}

int pipelines_default(struct server *s, const char *project, const char *id, const char *version,
                      struct err *err)
{
    return changed(s, &(struct change){ &rows_pipelines, project, id, NULL, version, NULL }, NULL,
                   err);
}

/* ------------------------------------------------------------ removal */

struct removal {
    const char *project, *id;
};

/* Ids of the versions of a pipeline, newest first. */
static int version_ids(sqlite3 *db, const char *pipeline, json_t *out, struct err *err)
{
    sqlite3_stmt *st = store_sql(db, "SELECT id FROM pipeline_versions WHERE parent = ? "
                                 "ORDER BY created DESC, seq DESC", err);
    int rc;

    if (!st || store_bind(st, err, "s", pipeline) < 0)
        return -(int)err->code;
    while ((rc = store_step(st, err)) > 0)
        json_array_append_new(out, json_string((const char *)sqlite3_column_text(st, 0)));
    return rc;
}

static int remove_pipeline(sqlite3 *db, void *arg, struct err *err)
{
    const struct removal *r = arg;
    OWN_JSON json_t *doc = NULL;
    OWN_JSON json_t *ids = json_array();
    const json_t *id;
    size_t i;

    if (rows_read(db, &rows_pipelines, r->project, r->id, &doc, err) < 0 ||
        version_ids(db, r->id, ids, err) < 0)
        return -(int)err->code;
    json_array_foreach(ids, i, id)
        if (rows_remove(db, &rows_versions, json_string_value(id), err) < 0)
            return -(int)err->code;
    return rows_remove(db, &rows_pipelines, r->id, err);
}

int pipelines_delete(struct server *s, const char *project, const char *id, struct err *err)
{
    return store_write_last(s->store, remove_pipeline, &(struct removal){ project, id }, err);
}

static int remove_version(sqlite3 *db, void *arg, struct err *err)
{
    const struct removal *r = arg;
    OWN_JSON json_t *doc = NULL;
    OWN_JSON json_t *of = NULL;
    OWN_JSON json_t *ids = json_array();

    if (rows_read(db, &rows_versions, r->project, r->id, &doc, err) < 0 ||
        rows_read(db, &rows_pipelines, r->project, text_of(doc, "pipeline"), &of, err) < 0 ||
        rows_remove(db, &rows_versions, r->id, err) < 0)
        return -(int)err->code;
    if (strcmp(text_of(of, "default_version"), r->id))
        return 0;
    if (version_ids(db, text_of(of, "id"), ids, err) < 0)
        return -(int)err->code;
    const char *next = json_string_value(json_array_get(ids, 0));
    json_object_set_new(of, "default_version", json_string(next ? next : ""));
    return rows_update(db, &rows_pipelines, of, err);
}

int versions_delete(struct server *s, const char *project, const char *id, struct err *err)
{
    return store_write_last(s->store, remove_version, &(struct removal){ project, id }, err);
}

/* ------------------------------------------------------------ experiments */

static json_t *experiment_json(const char *project, const char *name, const char *description)
{
    double now = clock_wall();
    char id[ROWS_ID];

    rows_new_id(id);
    return json_pack("{s:s, s:s, s:s, s:s, s:f, s:f, s:b, s:f}", "id", id, "project", project,
                     "name", name, "description", description ? description : "", "created", now,
                     "updated", now, "archived", 0, "last_run", 0.0);
}

static int insert_experiment(sqlite3 *db, void *arg, struct err *err)
{
    return rows_insert(db, &rows_experiments, arg, err);
}

int experiments_create(struct server *s, const char *project, const char *name,
                       const char *description, json_t **out, struct err *err)
{
    if (check_texts("experiment", name, description, err) < 0)
        return -(int)err->code;
    OWN_JSON json_t *doc = experiment_json(project, name, description);
    if (!doc)
        return err_set(err, ERR_INVALID, "the name or description is not UTF-8");
    if (store_write(s->store, insert_experiment, doc, err) < 0)
        return -(int)err->code;
    *out = TAKE(doc);
    return 0;
}

int experiments_get(struct server *s, const char *project, const char *id, json_t **out,
                    struct err *err)
{
    return rows_get(s, &rows_experiments, project, id, out, err);
}

int experiments_default(struct server *s, const char *project, json_t **out, struct err *err)
{
    struct err none = { 0 };

    for (;;) {
        int rc = rows_find(s, &rows_experiments, project, "", "Default", out, &none);
        if (rc != -ERR_MISSING)
            return rc < 0 ? err_set(err, none.code, "%s", none.text) : 0;
        rc = experiments_create(s, project, "Default",
                                "Runs that name no experiment.", out, err);
        if (rc != -ERR_CONFLICT)        /* somebody else was faster: it is there now */
            return rc;
    }
}

struct archival {
    const char *project, *id;
    bool archive;
};

/* One key of all documents of a kind below an experiment. */
static int set_below(sqlite3 *db, const struct rows_kind *k, const char *experiment,
                     const char *sql, const char *key, json_t *value, struct err *err)
{
    OWN_JSON json_t *ids = json_array();
    OWN_JSON json_t *taken = value;
    sqlite3_stmt *st = store_sql(db, sql, err);
    const json_t *id;
    size_t i;
    int rc;

    if (!st || store_bind(st, err, "s", experiment) < 0)
        return -(int)err->code;
    while ((rc = store_step(st, err)) > 0)
        json_array_append_new(ids, json_string((const char *)sqlite3_column_text(st, 0)));
    if (rc < 0)
        return rc;
    json_array_foreach(ids, i, id) {
        OWN_JSON json_t *doc = NULL;
        if (rows_read(db, k, NULL, json_string_value(id), &doc, err) < 0)
            return -(int)err->code;
        json_object_set(doc, key, taken);
        if (rows_update(db, k, doc, err) < 0)
            return -(int)err->code;
    }
    return 0;
}

static int archive(sqlite3 *db, void *arg, struct err *err)
{
    const struct archival *a = arg;
    OWN_JSON json_t *doc = NULL;

    if (rows_read(db, &rows_experiments, a->project, a->id, &doc, err) < 0)
        return -(int)err->code;
    json_object_set_new(doc, "archived", json_boolean(a->archive));
    if (rows_update(db, &rows_experiments, doc, err) < 0)
        return -(int)err->code;
    if (!a->archive)
        return 0;
    if (set_below(db, &rows_runs, a->id, "SELECT id FROM runs WHERE parent = ?", "archived",
                  json_true(), err) < 0)
        return -(int)err->code;
    return set_below(db, &rows_recurring, a->id, "SELECT id FROM recurring WHERE parent = ?",
                     "state", json_string("disabled"), err);
}

int experiments_archive(struct server *s, const char *project, const char *id, bool to,
                        struct err *err)
{
    return store_write(s->store, archive, &(struct archival){ project, id, to }, err);
}

static int remove_experiment(sqlite3 *db, void *arg, struct err *err)
{
    const struct removal *r = arg;
    OWN_JSON json_t *doc = NULL;

    if (rows_read(db, &rows_experiments, r->project, r->id, &doc, err) < 0)
        return -(int)err->code;
    return rows_remove(db, &rows_experiments, r->id, err);
}

int experiments_delete(struct server *s, const char *project, const char *id, struct err *err)
{
    return store_write_last(s->store, remove_experiment, &(struct removal){ project, id }, err);
}
