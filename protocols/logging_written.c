/* protocols/logging_written.c - entries that clients wrote themselves: kept, and read again */
#include "protocols/logging_int.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/own.h"
#include "protocols/aiplatform_int.h"
#include "protocols/google.h"
#include "protocols/logging.h"
#include "protocols/stamp.h"
#include "server/auth.h"
#include "server/server.h"

enum { ENTRIES_MAX = 1000, ENTRY_BYTES_MAX = 256 << 10 }; /* of one request, as there */

static const char *const schema[] = {
    "CREATE TABLE log_entries (seq INTEGER PRIMARY KEY AUTOINCREMENT, project TEXT NOT NULL, "
    "t INTEGER NOT NULL, body TEXT NOT NULL)",
    "CREATE INDEX log_entries_by_time ON log_entries (project, t, seq)",
    NULL,
};
static const char sql_add[] = "INSERT INTO log_entries (project, t, body) VALUES (?, ?, ?)";
static const char sql_trim[] =
    "DELETE FROM log_entries WHERE project = ?1 AND seq <= (SELECT max(seq) FROM log_entries WHERE "
    "project = ?1) - ?2";
static const char sql_up[] =
    "SELECT seq, t, body FROM log_entries WHERE project = ?1 AND t >= ?2 AND t < ?3 AND "
    "(t, seq) > (?4, ?5) ORDER BY t, seq";
static const char sql_down[] =
    "SELECT seq, t, body FROM log_entries WHERE project = ?1 AND t >= ?2 AND t < ?3 AND "
    "(t, seq) < (?4, ?5) ORDER BY t DESC, seq DESC";

static int ready(struct server *s, struct err *err)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static const struct store *made;
    pthread_mutex_lock(&lock);
    int rc = made == s->store ? 0 : store_schema(s->store, "logging", schema, err);
    if (rc == 0)
        made = s->store;
    pthread_mutex_unlock(&lock);
    return rc;
}

/* ------------------------------------------------------------ write */

struct writing {
    const json_t *body;
    const struct request *q;
};

/* "projects/P/logs/L" of an entry, or of the request. */
static int project_of(const struct writing *w, const json_t *entry, char *out, size_t size,
                      struct err *err)
{
    const char *log = json_string_value(json_object_get(entry, "logName"));
    if (!log)
        log = json_string_value(json_object_get(w->body, "logName"));
    const char *end = log ? strstr(log, "/logs/") : NULL;
    if (!end || strncmp(log, "projects/", 9) || end <= log + 9 || (size_t)(end - log - 9) >= size)
        return err_set(err, ERR_INVALID,
                       "Field: logName Error: projects/PROJECT/logs/NAME is wanted.");
    snprintf(out, size, "%.*s", (int)(end - log - 9), log + 9);
    if (request_allows(w->q, out, err) < 0)
        return -(int)err->code;
    if (!auth_project_exists(request_server(w->q)->auth, out))
        return err_set(err, ERR_MISSING, "there is no project \"%.64s\" here", out);
    return 0;
}

static void fill(const struct writing *w, json_t *entry, int64_t *out_t)
{
    static const char *const from_request[] = { "logName", "resource", "labels", NULL };
    char now[STAMP_SIZE];
    int64_t t = stamp_of(clock_wall());
    const char *when = json_string_value(json_object_get(entry, "timestamp"));
    stamp_format(t, now);
    for (int i = 0; from_request[i]; i++) {
        json_t *v = json_object_get(w->body, from_request[i]);
        if (v && !json_object_get(entry, from_request[i]))
            json_object_set(entry, from_request[i], v);
    }
    json_object_set_new(entry, "receiveTimestamp", json_string(now));
    if (!when || stamp_parse(when, out_t) < 0) {
        json_object_set_new(entry, "timestamp", json_string(now));
        *out_t = t;
    }
}

static int add_entries(sqlite3 *db, void *arg, struct err *err)
{
    const struct writing *w = arg;
    const json_t *entries = json_object_get(w->body, "entries");
    char project[AUTH_NAME] = "";
    size_t i;
    json_t *given;
    json_array_foreach ((json_t *)entries, i, given) {
        int64_t t;
        OWN_JSON json_t *entry = json_copy(given);
        if (!json_is_object(entry))
            return err_set(err, ERR_INVALID, "Field: entries[%zu] Error: This is to be an object.",
                           i);
        if (project_of(w, entry, project, sizeof project, err) < 0)
            return -(int)err->code;
        fill(w, entry, &t);
        OWN_MEM char *text = json_dumps(entry, JSON_COMPACT);
        if (!text || strlen(text) > ENTRY_BYTES_MAX)
            return err_set(err, ERR_INVALID, "Field: entries[%zu] Error: It is longer than 256 kB.",
                           i);
        if (store_run(db, err, sql_add, "sis", project, t, text) < 0)
            return -(int)err->code;
    }
    return *project ? store_run(db, err, sql_trim, "si", project, (int64_t)LOGGING_KEPT) : 0;
}

int logging_write(struct request *q, struct err *err)
{
    OWN_JSON json_t *body = NULL;
    if (request_json(q, &body, err) < 0 || ready(request_server(q), err) < 0)
        return -(int)err->code;
    if (!json_is_array(json_object_get(body, "entries")) ||
        json_array_size(json_object_get(body, "entries")) > ENTRIES_MAX)
        return err_set(err, ERR_INVALID,
                       "Field: entries Error: A list of 1,000 at most is wanted.");
    if (store_write(request_server(q)->store, add_entries, &(struct writing){ body, q }, err) < 0)
        return -(int)err->code;
    return respond_json(q, 200, json_object());
}

/* ------------------------------------------------------------ read */

static void written_field(void *arg, const char *path, struct filter_value *out)
{
    aiplatform_field(arg, path, out);
    if (out->kind != FILTER_TEXT)
        return;
    if (!strcmp(path, "severity")) {
        int rank = filter_severity(out->text);
        *out = (struct filter_value){ .kind = FILTER_SEVERITY, .number = rank < 0 ? 0 : rank };
    } else if (!strcmp(path, "timestamp") && stamp_parse(out->text, &out->time) == 0) {
        out->kind = FILTER_TIME;
    }
}

struct search {
    const struct logging_query *query;
    int64_t t, seq; /* the last one of the page before */
    json_t *out;
    struct buf *next;
};

static int find_entries(sqlite3 *db, void *arg, struct err *err)
{
    struct search *f = arg;
    const struct logging_query *query = f->query;
    sqlite3_stmt *st =
        query->descending ? store_sql(db, sql_down, err) : store_sql(db, sql_up, err);
    if (!st ||
        store_bind(st, err, "siiii", query->project, query->from, query->to, f->t, f->seq) < 0)
        return -(int)err->code;
    int rc;
    while ((rc = store_step(st, err)) == 1) {
        OWN_JSON json_t *entry = json_loads((const char *)sqlite3_column_text(st, 2), 0, NULL);
        if (!entry || !filter_match(query->filter, written_field, entry))
            continue;
        if ((int)json_array_size(f->out) == query->size) {
            buf_printf(f->next, "w%" PRId64 ".%" PRId64, f->t, f->seq);
            break;
        }
        f->seq = sqlite3_column_int64(st, 0);
        f->t = sqlite3_column_int64(st, 1);
        if (!json_object_get(entry, "insertId")) {
            char id[32];
            snprintf(id, sizeof id, "%016" PRId64, f->seq);
            json_object_set_new(entry, "insertId", json_string(id));
        }
        json_array_append(f->out, entry);
    }
    sqlite3_reset(st);
    return rc < 0 ? rc : 0;
}

int logging_read_written(struct server *s, const struct logging_query *query, const char *token,
                         json_t *out, struct buf *next, struct err *err)
{
    struct search f = { query, INT64_MIN, INT64_MIN, out, next };
    char end;
    if (query->descending)
        f.t = f.seq = INT64_MAX;
    if (*token && sscanf(token, "w%" SCNd64 ".%" SCNd64 "%c", &f.t, &f.seq, &end) != 2)
        return err_set(err, ERR_INVALID, "Field: pageToken Error: It is none that was given out.");
    if (ready(s, err) < 0)
        return -(int)err->code;
    return store_read(s->store, find_entries, &f, err);
}
