/* pipelines/runs_log.c - the log of runs: events appended, read, folded */
#include <string.h>

#include "base/clock.h"
#include "pipelines/cache.h"
#include "pipelines/runs_int.h"
#include "server/server.h"

static const char *const schema[] = {
    "CREATE TABLE run_events (seq INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL, "
    "t REAL NOT NULL, type TEXT NOT NULL, body TEXT NOT NULL);"
    "CREATE INDEX run_events_run ON run_events (run, seq);"
    "CREATE INDEX runs_workflow ON runs (project, json_extract(doc, '$.workflow'))",
    NULL
};

int runs_log_init(struct server *s, struct err *err)
{
    return store_schema(s->store, "runs", schema, err);
}

void record_done(struct record *e)
{
    json_decref(e->body);
    json_decref(e->patch);
    json_decref(e->cache);
    e->body = e->patch = e->cache = NULL;
}

static int patch_doc(sqlite3 *db, const struct record *e, struct err *err)
{
    OWN_JSON json_t *doc = NULL;
    const char *key;
    json_t *value;
    int rc = 0;

    if (rows_read(db, &rows_runs, NULL, e->run, &doc, err) < 0)
        return -(int)err->code;
    json_object_foreach(e->patch, key, value)
        rc |= !strcmp(key, "+metrics") ? json_array_extend(json_object_get(doc, "metrics"), value)
                                       : json_object_set(doc, key, value);
    if (rc)
        return err_set(err, ERR_NOMEM, "no memory for a run");
    return rows_update(db, &rows_runs, doc, err);
}

int runs_log_add(sqlite3 *db, const struct record *e, struct err *err)
{
    if (e->type) {
        OWN_MEM char *body = e->body ? json_dumps(e->body, JSON_COMPACT) : strdup("{}");
        if (!body)
            return err_set(err, ERR_NOMEM, "no memory for an event");
        if (store_run(db, err, "INSERT INTO run_events (run, t, type, body) VALUES (?, ?, ?, ?)",
                      "sdss", e->run, clock_wall(), e->type, body) < 0)
            return -(int)err->code;
    }
    if (e->cache && step_cache_put(db, e->run, e->cache, err) < 0)
        return -(int)err->code;
    return e->patch ? patch_doc(db, e, err) : 0;
}

struct batch {
    struct record *at;
    int n;
};

static int write_batch(sqlite3 *db, void *arg, struct err *err)
{
    const struct batch *b = arg;

    for (int i = 0; i < b->n; i++) {
        int rc = runs_log_add(db, &b->at[i], err);
        if (rc < 0 && rc != -ERR_MISSING)       /* a run that was removed has no log */
            return rc;
    }
    return 0;
}

int runs_log_write(struct server *s, struct record *entries, int n, struct err *err)
{
    struct batch b = { entries, n };
    int rc = n ? store_write_last(s->store, write_batch, &b, err) : 0;

    for (int i = 0; rc == 0 && i < n; i++)
        record_done(&entries[i]);
    return rc;
}

/* ------------------------------------------------------------ reading */

struct reader {
    int (*each)(void *arg, const struct run_news *n);
    void *arg;
};

static int read_row(void *arg, sqlite3_stmt *st)
{
    const struct reader *r = arg;

    return r->each(r->arg, &(struct run_news){ sqlite3_column_int64(st, 0),
                                               sqlite3_column_double(st, 1),
                                               (const char *)sqlite3_column_text(st, 2),
                                               (const char *)sqlite3_column_text(st, 3),
                                               (const char *)sqlite3_column_text(st, 4) });
}

int runs_log_read(struct server *s, int64_t after, int (*each)(void *arg, const struct run_news *n),
                  void *arg, int64_t *out_last, struct err *err)
{
    return store_read_since(s->store,
                            "SELECT seq, t, run, type, body FROM run_events WHERE seq > ? "
                            "ORDER BY seq",
                            after, read_row, &(struct reader){ each, arg }, out_last, err);
}

static int apply_all(sqlite3 *db, const char *run, struct run_graph *g, int64_t *last,
                     struct err *err)
{
    sqlite3_stmt *st = store_sql(db, "SELECT t, type, body, seq FROM run_events WHERE run = ? "
                                 "ORDER BY seq", err);
    int rc;

    if (!st || store_bind(st, err, "s", run) < 0)
        return -(int)err->code;
    while ((rc = store_step(st, err)) > 0) {
        OWN_JSON json_t *body = json_loads((const char *)sqlite3_column_text(st, 2), 0, NULL);
        if (run_graph_apply(g, (const char *)sqlite3_column_text(st, 1), body,
                            sqlite3_column_double(st, 0), err) < 0) {
            sqlite3_reset(st);
            return -(int)err->code;
        }
        *last = sqlite3_column_int64(st, 3);
    }
    return rc;
}

int runs_fold(sqlite3 *db, const json_t *doc, const json_t *flow, struct run_graph **out,
              int64_t *out_last, struct err *err)
{
    OWN(run_graph) g = NULL;
    int64_t last = 0;
    const struct graph_run run = {
        .id = json_string_value(json_object_get(doc, "id")),
        .name = json_string_value(json_object_get(doc, "workflow")),
        .project = json_string_value(json_object_get(doc, "project")),
        .parameters = json_object_get(doc, "parameters"),
        .configs = json_object_get(doc, "configs"),
        .created = json_number_value(json_object_get(doc, "created")),
    };

    if (run_graph_new(flow, &run, &g, err) < 0 || apply_all(db, run.id, g, &last, err) < 0)
        return -(int)err->code;
    if (out_last)
        *out_last = last;
    *out = TAKE(g);
    return 0;
}
