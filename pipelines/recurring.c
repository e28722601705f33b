/* pipelines/recurring.c - recurring runs: kept, and begun when they are due */
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "pipelines/catalog.h"
#include "pipelines/flow.h"
#include "pipelines/runs_int.h"
#include "pipelines/schedule.h"
#include "server/server.h"

enum { CONCURRENCY_MAX = 10 };

/* Of a number with or without a fraction. */
static int64_t whole(const json_t *doc, const char *key)
{
    return (int64_t)number_of(doc, key);
}

static void schedule_changed(struct server *s)
{
    if (s->runs)
        s->runs->schedule_changed = true;
    runs_wake(s);
}

/* ------------------------------------------------------------ kept */

struct creation {
    const struct recurring_request *q;
    const char *flow_text;
    json_t *doc;
};

static int create(sqlite3 *db, void *arg, struct err *err)
{
    struct creation *c = arg;
    char digest[65];

    if (c->flow_text) {
        if (rows_text_put(db, c->q->text, c->q->text_n, c->flow_text, digest, err) < 0)
            return -(int)err->code;
        json_object_set_new(c->doc, "digest", json_string(digest));
    }
    return rows_insert(db, &rows_recurring, c->doc, err);
}

static json_t *recurring_json(const struct recurring_request *q, const char *experiment,
                              const char *dialect, const char *host_version)
{
    double now = clock_wall();
    char id[ROWS_ID];
    OWN_JSON json_t *none = json_object();
    int most = q->max_concurrency > 0 ? q->max_concurrency : 1;

    rows_new_id(id);
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:O, s:s, s:i, s:b, s:s, s:O, s:f, s:f, "
                     "s:f, s:i, s:i, "
                     "s:s, s:s, s:s, s:s, s:b, s:b, s:s}",
                     "id", id, "project", q->project, "name", q->name, "description",
                     q->description ? q->description : "", "experiment", experiment, "pipeline",
                     q->pipeline ? q->pipeline : "", "version", q->version ? q->version : "",
                     "parameters", q->parameters ? (json_t *)q->parameters : none, "state",
                     q->disabled ? "disabled" : "enabled", "max_concurrency",
                     most < CONCURRENCY_MAX ? most : CONCURRENCY_MAX, "no_catchup", q->no_catchup,
                     "service_account", q->service_account ? q->service_account : "", "trigger",
                     (json_t *)q->trigger, "created", now, "updated", now, "since", now, "last", 0,
                     "index", 0, "digest", "", "dialect", dialect, "message", "", "api",
                     q->api ? q->api : "", "no_cache", q->no_cache, "host_files", q->host_files,
                     "host_version", host_version);
}

enum { SET_BACK_S = 60 };

static void set_next(json_t *doc, double now)
{
    struct trigger t;
    struct err none = { 0 };
    int64_t next = 0;

    if (!strcmp(text_of(doc, "state"), "enabled") && trigger_parse(doc, &t, &none) == 0)
        next = trigger_next(&t, whole(doc, "since"), whole(doc, "last"), (int64_t)now);
    json_object_set_new(doc, "next", json_integer(next));
}

int recurring_create(struct server *s, const struct recurring_request *q, json_t **out,
                     struct err *err)
{
    OWN_JSON json_t *experiment = NULL, *version = NULL, *flow = NULL;
    OWN_MEM char *flow_text = NULL;
    struct trigger t;

    if (!q->name || !*q->name || !json_is_object(q->trigger))
        return err_set(err, ERR_INVALID, "a recurring run needs a name and a trigger");
    if (!q->text && !(q->pipeline && *q->pipeline) && !(q->version && *q->version))
        return err_set(err, ERR_INVALID, "a recurring run needs a pipeline, or the text of one");
    if ((q->experiment && *q->experiment
             ? experiments_get(s, q->project, q->experiment, &experiment, err)
             : experiments_default(s, q->project, &experiment, err)) < 0)
        return -(int)err->code;
    if (q->text) {
        if (flow_compile("pipeline.yaml", q->text, q->text_n, &flow, err) < 0)
            return -(int)err->code;
        if (!(flow_text = json_dumps(flow, JSON_COMPACT)))
            return err_set(err, ERR_NOMEM, "no memory for a pipeline");
    } else if (versions_get(s, q->project, q->pipeline, q->version, &version, err) < 0) {
        return -(int)err->code;
    }
    OWN_JSON json_t *doc = recurring_json(q, text_of(experiment, "id"),
                                          text_of(flow ? flow : version, "dialect"),
                                          text_of(version, "id"));
    if (!doc)
        return err_set(err, ERR_INVALID, "a text of it is not UTF-8");
    if (trigger_parse(doc, &t, err) < 0)
        return -(int)err->code;
    set_next(doc, clock_wall());
    struct creation c = { q, flow_text, doc };
    if (store_write(s->store, create, &c, err) < 0)
        return -(int)err->code;
    schedule_changed(s);
    *out = TAKE(doc);
    return 0;
}

int recurring_get(struct server *s, const char *project, const char *id, json_t **out,
                  struct err *err)
{
    return rows_get(s, &rows_recurring, project, id, out, err);
}

struct change {
    const char *project, *id;
    bool enable, remove;
};

static int change(sqlite3 *db, void *arg, struct err *err)
{
    const struct change *c = arg;
    OWN_JSON json_t *doc = NULL;
    double now = clock_wall();

    if (rows_read(db, &rows_recurring, c->project, c->id, &doc, err) < 0)
        return -(int)err->code;
    if (c->remove)
        return rows_remove(db, &rows_recurring, c->id, err);
    if (c->enable && strcmp(text_of(doc, "state"), "enabled")) {
        json_object_set_new(doc, "since", json_real(now));
        json_object_set_new(doc, "last", json_integer(0));
    }
    json_object_set_new(doc, "state", json_string(c->enable ? "enabled" : "disabled"));
    json_object_set_new(doc, "updated", json_real(now));
    set_next(doc, now);
    return rows_update(db, &rows_recurring, doc, err);
}

int recurring_enable(struct server *s, const char *project, const char *id, bool enable,
                     struct err *err)
{
    struct change c = { project, id, enable, false };
    int rc = (enable ? store_write : store_write_last)(s->store, change, &c, err);

    schedule_changed(s);
    return rc;
}

int recurring_delete(struct server *s, const char *project, const char *id, struct err *err)
{
    return store_write_last(s->store, change, &(struct change){ project, id, false, true }, err);
}

/* ------------------------------------------------------------ what parameters say of the time */

/* Go's layout of a time -> that time. */
static void put_time(struct buf *out, const char *layout, size_t n, int64_t t)
{
    static const struct { const char *go, *c; } parts[] = {
        { "2006", "%Y" }, { "01", "%m" }, { "02", "%d" }, { "15", "%H" }, { "04", "%M" },
        { "05", "%S" },
    };
    time_t at = (time_t)t;
    struct tm tm;
    char text[32];

    gmtime_r(&at, &tm);
    for (size_t i = 0; i < n;) {
        size_t p = 0;
        while (p < sizeof parts / sizeof parts[0] &&
               strncmp(layout + i, parts[p].go, strlen(parts[p].go)))
            p++;
        if (p == sizeof parts / sizeof parts[0]) {
            buf_append(out, layout + i++, 1);
            continue;
        }
        strftime(text, sizeof text, parts[p].c, &tm);
        buf_text(out, text);
        i += strlen(parts[p].go);
    }
}

struct moment {
    int64_t due, now, index;
    const char *uuid;
};

static void put_word(struct buf *out, const char *word, size_t n, const struct moment *m)
{
    size_t name = 0;

    while (name < n && word[name] != '.')
        name++;
    bool dot = name < n;
    const char *layout = dot ? word + name + 1 : "20060102150405";
    size_t layout_n = dot ? n - name - 1 : strlen(layout);
    if (name == 13 && !strncmp(word, "ScheduledTime", 13))
        put_time(out, layout, layout_n, m->due);
    else if (name == 11 && !strncmp(word, "CurrentTime", 11))
        put_time(out, layout, layout_n, m->now);
    else if (n == 5 && !strncmp(word, "Index", 5))
        buf_printf(out, "%lld", (long long)m->index);
    else if (n == 7 && !strncmp(word, "RunUUID", 7))
        buf_text(out, m->uuid);
    else
        buf_printf(out, "[[%.*s]]", (int)n, word);
}

static json_t *fill_text(const char *text, const struct moment *m)
{
    OWN_BUF out = BUF_INIT;

    while (*text) {
        const char *at = strstr(text, "[["), *end = at ? strstr(at, "]]") : NULL;
        if (!end) {
            buf_text(&out, text);
            break;
        }
        buf_append(&out, text, (size_t)(at - text));
        put_word(&out, at + 2, (size_t)(end - at - 2), m);
        text = end + 2;
    }
    OWN_MEM char *filled = buf_take(&out);
    return filled ? json_string(filled) : NULL;
}

static json_t *fill_parameters(const json_t *parameters, const struct moment *m)
{
    json_t *out = json_object();
    const char *name;
    json_t *v;

    json_object_foreach((json_t *)parameters, name, v)
        json_object_set_new(out, name, json_is_string(v) ? fill_text(json_string_value(v), m)
                                                         : json_incref(v));
    return out;
}

/* ------------------------------------------------------------ begun when due */

struct due {
    json_t *docs;               /* of those that are enabled */
};

static int read_enabled(sqlite3 *db, void *arg, struct err *err)
{
    struct due *d = arg;
    sqlite3_stmt *st = store_sql(db, "SELECT doc FROM recurring WHERE state = 'enabled' "
                                 "ORDER BY seq", err);
    int rc;

    if (!st)
        return -(int)err->code;
    while ((rc = store_step(st, err)) > 0)
        json_array_append_new(d->docs, json_loads((const char *)sqlite3_column_text(st, 0), 0,
                                                  NULL));
    return rc;
}

struct active {
    const char *id;
    int64_t n;
    char *text;                 /* of the recurring run itself */
    size_t text_n;
    const char *digest;
};

static int count_active(sqlite3 *db, void *arg, struct err *err)
{
    struct active *a = arg;
    sqlite3_stmt *st = store_sql(db,
                                 "SELECT count(*) FROM runs WHERE state IN ('pending', 'running', "
                                 "'terminating') AND json_extract(doc, '$.recurring') = ?",
                                 err);

    if (!st || store_bind(st, err, "s", a->id) < 0 || store_step(st, err) < 0)
        return -(int)err->code;
    a->n = sqlite3_column_int64(st, 0);
    sqlite3_reset(st);
    return *a->digest ? rows_text_get(db, a->digest, &a->text, &a->text_n, NULL, err) : 0;
}

struct begun {
    const char *id, *message;
    int64_t due, index;
};

/* That this was the one for that time, in the transaction of the run itself. */
static int note_begun(sqlite3 *db, void *arg, const json_t *run, struct err *err)
{
    const struct begun *b = arg;
    OWN_JSON json_t *doc = NULL;

    (void)run;
    if (rows_read(db, &rows_recurring, NULL, b->id, &doc, err) < 0)
        return -(int)err->code;
    if (strcmp(text_of(doc, "state"), "enabled") || whole(doc, "last") >= b->due)
        return err_set(err, ERR_CONFLICT, "it is not due any more");
    json_object_set_new(doc, "last", json_integer(b->due));
    json_object_set_new(doc, "index", json_integer(b->index));
    json_object_set_new(doc, "message", json_string(b->message));
    set_next(doc, clock_wall());
    return rows_update(db, &rows_recurring, doc, err);
}

static int note_failed(sqlite3 *db, void *arg, struct err *err)
{
    return note_begun(db, arg, NULL, err);
}

static int begin_one(struct server *s, const json_t *doc, int64_t due, double now,
                     const struct active *a, struct err *err)
{
    struct begun b = { text_of(doc, "id"), "", due, whole(doc, "index") + 1 };
    char id[ROWS_ID], name[600];
    struct err why = { 0 };

    rows_new_id(id);
    struct moment m = { due, (int64_t)now, b.index, id };
    OWN_JSON json_t *parameters = fill_parameters(json_object_get(doc, "parameters"), &m);
    snprintf(name, sizeof name, "%s-%lld", text_of(doc, "name"), (long long)b.index);
    const char *pipeline = text_of(doc, "pipeline"), *version = text_of(doc, "version");
    struct run_request q = {
        .project = text_of(doc, "project"), .name = name, .experiment = text_of(doc, "experiment"),
        .pipeline = *pipeline ? pipeline : NULL, .version = *version ? version : NULL,
        .recurring = b.id, .service_account = text_of(doc, "service_account"),
        .parameters = parameters, .text = a->text, .text_n = a->text_n, .api = text_of(doc, "api"),
        .scheduled = (double)due, .no_cache = json_is_true(json_object_get(doc, "no_cache")),
        .host_files = json_is_true(json_object_get(doc, "host_files")),
        .host_version = text_of(doc, "host_version"),
    };
    int rc = runs_create_with(s, &q, note_begun, &b, NULL, &why);
    if (rc == 0 || rc == -ERR_IO || rc == -ERR_NOMEM || rc == -ERR_AGAIN)
        return rc < 0 ? err_set(err, why.code, "%s", why.text) : 0;
    /* It cannot be begun: that time is over, and its sentence says why. */
    log_event(LEVEL_WARN, "recurring.failed", "{s:s, s:s}", "recurring", b.id, "reason", why.text);
    b.message = why.text;
    rc = store_write(s->store, note_failed, &b, err);
    return rc == -ERR_CONFLICT || rc == -ERR_MISSING ? 0 : rc;
}

/* The clock was set back since a run of it began: the next one comes after now, not after days that
 * were there before. By less than SET_BACK_S it is no such thing: a moment would come twice. */
static bool is_ahead(const json_t *doc, double now)
{
    return (double)whole(doc, "last") > now + SET_BACK_S ||
           (double)whole(doc, "since") > now + SET_BACK_S;
}

struct reset { const char *id; double now; json_t **doc; };

static int note_clock(sqlite3 *db, void *arg, struct err *err)
{
    const struct reset *r = arg;
    OWN_JSON json_t *doc = NULL;

    if (rows_read(db, &rows_recurring, NULL, r->id, &doc, err) < 0)
        return -(int)err->code;
    if ((double)whole(doc, "last") > r->now)
        json_object_set_new(doc, "last", json_integer((json_int_t)r->now));
    if ((double)whole(doc, "since") > r->now)
        json_object_set_new(doc, "since", json_real(r->now));
    set_next(doc, r->now);
    json_object_update(*r->doc, doc);
    return rows_update(db, &rows_recurring, doc, err);
}

int recurring_begin(struct server *s, double now, double *out_next, struct err *err)
{
    OWN_JSON json_t *docs = json_array();
    struct due d = { docs };
    double soonest = 0;
    size_t i;
    json_t *doc;

    if (store_read(s->store, read_enabled, &d, err) < 0)
        return -(int)err->code;
    json_array_foreach(docs, i, doc) {
        struct active a = { text_of(doc, "id"), 0, NULL, 0, text_of(doc, "digest") };
        struct trigger t;
        struct err none = { 0 };
        if (trigger_parse(doc, &t, &none) < 0)
            continue;
        if (is_ahead(doc, now) &&
            store_write_last(s->store, note_clock, &(struct reset){ a.id, now, &doc }, err) < 0)
            return -(int)err->code;
        int64_t due = trigger_next(&t, whole(doc, "since"), whole(doc, "last"),
                                   (int64_t)now);
        if (due == 0)
            continue;
        if ((double)due > now) {
            soonest = soonest == 0 || (double)due < soonest ? (double)due : soonest;
            continue;
        }
        int rc = store_read(s->store, count_active, &a, err);
        /* When so many run as may, the end of one is waited for. */
        if (rc == 0 && a.n < whole(doc, "max_concurrency")) {
            rc = begin_one(s, doc, due, now, &a, err);
            soonest = now;      /* there may be more that it missed */
        }
        free(a.text);
        if (rc < 0)
            return rc;
    }
    *out_next = soonest;
    return 0;
}
