/* pipelines/rows.c - tables of JSON documents, listed with filters, order and pages */
#include "pipelines/rows.h"

#include <ctype.h>
#include <string.h>
#include <sys/random.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/sha256.h"
#include "server/server.h"

enum { LIST_DEFAULT = 20, LIST_MAX = 1000, PREDICATES_MAX = 20, VALUES_MAX = 200 };

const struct rows_kind rows_pipelines = { "pipelines", "pipeline", NULL };
const struct rows_kind rows_versions = { "pipeline_versions", "version", "pipeline" };
const struct rows_kind rows_experiments = { "experiments", "experiment", NULL };
const struct rows_kind rows_runs = { "runs", "run", "experiment" };
const struct rows_kind rows_recurring = { "recurring", "recurring run", "experiment" };

#define TABLE(name)                                                                              \
    "CREATE TABLE " name " (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, "    \
    "project TEXT NOT NULL, parent TEXT NOT NULL, name TEXT NOT NULL, created REAL NOT NULL, "   \
    "state TEXT NOT NULL, archived INTEGER NOT NULL, digest TEXT NOT NULL, doc TEXT NOT NULL);"  \
    "CREATE INDEX " name "_created ON " name " (project, created, seq);"                         \
    "CREATE INDEX " name "_parent ON " name " (parent, created, seq);"                           \
    "CREATE INDEX " name "_state ON " name " (state, seq);"                                      \
    "CREATE INDEX " name "_digest ON " name " (digest);"
#define UNIQUE(name) "CREATE UNIQUE INDEX " name "_name ON " name " (project, parent, name);"
#define NAMES(name) "CREATE INDEX " name "_name ON " name " (project, name);"

static const char *const schema[] = {
    TABLE("pipelines") UNIQUE("pipelines")
    TABLE("pipeline_versions") UNIQUE("pipeline_versions")
    TABLE("experiments") UNIQUE("experiments")
    TABLE("runs") NAMES("runs")
    TABLE("recurring") NAMES("recurring")
    "CREATE TABLE pipeline_texts (digest TEXT PRIMARY KEY, text BLOB NOT NULL, flow TEXT NOT NULL)",
    NULL
};

int rows_init(struct server *s, struct err *err)
{
    return store_schema(s->store, "pipelines", schema, err);
}

void rows_new_id(char out[ROWS_ID])
{
    unsigned char b[16];

    if (getrandom(b, sizeof b, 0) != (ssize_t)sizeof b)
        abort();                /* never after the kernel has started */
    b[6] = (unsigned char)((b[6] & 0x0f) | 0x40);
    b[8] = (unsigned char)((b[8] & 0x3f) | 0x80);
    snprintf(out, ROWS_ID, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12],
             b[13], b[14], b[15]);
}

/* ------------------------------------------------------------ statements made of parts */

/* A statement of this text, which names a kind's table: made once a call, since it is not a
 * literal. */
static int prepare(sqlite3 *db, const char *sql, sqlite3_stmt **out, struct err *err)
{
    if (sqlite3_prepare_v2(db, sql, -1, out, NULL) != SQLITE_OK)
        return err_set(err, ERR_IO, "the database: %s", sqlite3_errmsg(db));
    return 0;
}

static void finalize(sqlite3_stmt **st)
{
    sqlite3_finalize(*st);
}
#define OWN_STMT __attribute__((cleanup(finalize))) sqlite3_stmt *

static int bind_doc(sqlite3_stmt *st, const struct rows_kind *k, const json_t *doc, struct err *err)
{
    OWN_MEM char *text = json_dumps(doc, JSON_COMPACT);

    if (!text)
        return err_set(err, ERR_NOMEM, "no memory for a %s", k->what);
    return store_bind(st, err, "ssssdsiss", text_of(doc, "id"), text_of(doc, "project"),
                      k->parent ? text_of(doc, k->parent) : "", text_of(doc, "name"),
                      json_number_value(json_object_get(doc, "created")), text_of(doc, "state"),
                      (int64_t)json_is_true(json_object_get(doc, "archived")),
                      text_of(doc, "digest"), text);
}

int rows_insert(sqlite3 *db, const struct rows_kind *k, const json_t *doc, struct err *err)
{
    OWN_STMT st = NULL;
    char sql[256];

    snprintf(sql, sizeof sql,
             "INSERT INTO %s (id, project, parent, name, created, state, archived, "
             "digest, doc) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
             k->table);
    if (prepare(db, sql, &st, err) < 0 || bind_doc(st, k, doc, err) < 0)
        return -(int)err->code;
    int rc = store_step(st, err);
    if (rc == -ERR_CONFLICT)
        return err_set(err, ERR_CONFLICT, "there is a %s \"%.200s\" already (choose another name)",
                       k->what, text_of(doc, "name"));
    return rc;
}

int rows_update(sqlite3 *db, const struct rows_kind *k, const json_t *doc, struct err *err)
{
    OWN_STMT st = NULL;
    char sql[256];

    snprintf(sql, sizeof sql, "UPDATE %s SET project = ?2, parent = ?3, name = ?4, created = ?5, "
             "state = ?6, archived = ?7, digest = ?8, doc = ?9 WHERE id = ?1", k->table);
    if (prepare(db, sql, &st, err) < 0 || bind_doc(st, k, doc, err) < 0)
        return -(int)err->code;
    return store_step(st, err);
}

static int read_one(sqlite3_stmt *st, const struct rows_kind *k, const char *named, json_t **out,
                    struct err *err)
{
    int rc = store_step(st, err);

    if (rc < 0)
        return rc;
    if (rc == 0)
        return err_set(err, ERR_MISSING, "there is no %s \"%.200s\"", k->what, named);
    json_t *doc = json_loads((const char *)sqlite3_column_text(st, 0), 0, NULL);
    if (!doc)
        return err_set(err, ERR_NOMEM, "no memory for a %s", k->what);
    *out = doc;
    return 0;
}

int rows_read(sqlite3 *db, const struct rows_kind *k, const char *project, const char *id,
              json_t **out, struct err *err)
{
    OWN_STMT st = NULL;
    char sql[160];

    snprintf(sql, sizeof sql, "SELECT doc FROM %s WHERE id = ?1 AND (?2 IS NULL OR project = ?2)",
             k->table);
    if (prepare(db, sql, &st, err) < 0 || store_bind(st, err, "ss", id ? id : "", project) < 0)
        return -(int)err->code;
    return read_one(st, k, id ? id : "", out, err);
}

static int read_named(sqlite3 *db, const struct rows_kind *k, const char *project,
                      const char *parent, const char *name, json_t **out, struct err *err)
{
    OWN_STMT st = NULL;
    char sql[256];

    snprintf(sql, sizeof sql, "SELECT doc FROM %s WHERE name = ?1 AND (?2 IS NULL OR project = ?2) "
             "AND (?3 IS NULL OR parent = ?3) ORDER BY seq DESC LIMIT 1", k->table);
    if (prepare(db, sql, &st, err) < 0 || store_bind(st, err, "sss", name, project, parent) < 0)
        return -(int)err->code;
    return read_one(st, k, name, out, err);
}

int rows_remove(sqlite3 *db, const struct rows_kind *k, const char *id, struct err *err)
{
    OWN_STMT st = NULL;
    char sql[64];

    snprintf(sql, sizeof sql, "DELETE FROM %s WHERE id = ?", k->table);
    if (prepare(db, sql, &st, err) < 0 || store_bind(st, err, "s", id) < 0 ||
        store_step(st, err) < 0)
        return -(int)err->code;
    return store_run(db, err, "DELETE FROM pipeline_texts WHERE digest NOT IN "
                     "(SELECT digest FROM pipeline_versions UNION SELECT digest FROM runs "
                     "UNION SELECT digest FROM recurring)", "");
}

/* ------------------------------------------------------------ one of them */

struct get {
    const struct rows_kind *kind;
    const char *project, *parent, *key;
    bool named;
    json_t **out;
};

static int get(sqlite3 *db, void *arg, struct err *err)
{
    const struct get *g = arg;

    return g->named
        ? read_named(db, g->kind, g->project, g->parent, g->key, g->out, err)
        : rows_read(db, g->kind, g->project, g->key, g->out, err);
}

int rows_get(struct server *s, const struct rows_kind *k, const char *project, const char *id,
             json_t **out, struct err *err)
{
    return store_read(s->store, get, &(struct get){ k, project, NULL, id, false, out }, err);
}

int rows_find(struct server *s, const struct rows_kind *k, const char *project,
              const char *parent, const char *name, json_t **out, struct err *err)
{
    return store_read(s->store, get, &(struct get){ k, project, parent, name, true, out }, err);
}

/* ------------------------------------------------------------ lists */

/* What a statement's ? stand for, in order. */
struct values {
    const json_t *at[VALUES_MAX];
    int n;
};

static int add_value(struct values *v, const json_t *x, struct err *err)
{
    if (v->n == VALUES_MAX)
        return err_set(err, ERR_INVALID, "filter: more than %d values", VALUES_MAX);
    if (!json_is_string(x) && !json_is_number(x) && !json_is_boolean(x))
        return err_set(err, ERR_INVALID, "filter: a value is a text or a number");
    v->at[v->n++] = x;
    return 0;
}

static int bind_values(sqlite3_stmt *st, int from, const struct values *v, struct err *err)
{
    int rc = SQLITE_OK;

    for (int i = 0; i < v->n && rc == SQLITE_OK; i++) {
        const json_t *x = v->at[i];
        if (json_is_string(x))
            rc = sqlite3_bind_text(st, from + i, json_string_value(x),
                                   (int)json_string_length(x), SQLITE_TRANSIENT);
        else if (json_is_real(x))
            rc = sqlite3_bind_double(st, from + i, json_real_value(x));
        else
            rc = sqlite3_bind_int64(st, from + i, json_is_integer(x) ? json_integer_value(x)
                                                                     : json_is_true(x));
    }
    return rc == SQLITE_OK ? 0 : err_set(err, ERR_NOMEM, "no memory for a filter");
}

static bool is_key(const char *key, size_t n)
{
    if (n == 0 || n > 40)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!islower((unsigned char)key[i]) && key[i] != '_')
            return false;
    return true;
}

/* A key of the documents as SQL: a column where there is one. */
static void key_sql(const struct rows_kind *k, const char *key, size_t n, struct buf *out)
{
    static const char *const columns[] = { "id", "project", "name", "created", "state",
                                           "archived", NULL };

    for (int i = 0; columns[i]; i++)
        if (strlen(columns[i]) == n && !strncmp(columns[i], key, n)) {
            buf_text(out, columns[i]);
            return;
        }
    if (k->parent && strlen(k->parent) == n && !strncmp(k->parent, key, n))
        buf_text(out, "parent");
    else
        buf_printf(out, "coalesce(json_extract(doc, '$.%.*s'), '')", (int)n, key);
}

static const struct { const char *name, *sql; } ops[] = {
    { "EQUALS", " = ?" },
    { "NOT_EQUALS", " <> ?" },
    { "GREATER_THAN", " > ?" },
    { "GREATER_THAN_EQUALS", " >= ?" },
    { "LESS_THAN", " < ?" },
    { "LESS_THAN_EQUALS", " <= ?" },
    { "IN", " IN (" },
    { "IS_SUBSTRING", NULL },
};
enum { OPS = sizeof ops / sizeof ops[0], OP_IN = 6, OP_SUBSTRING = 7 };

static int predicate_sql(const struct rows_kind *k, const json_t *p, struct buf *out,
                         struct values *v, struct err *err)
{
    const char *key = json_string_value(json_object_get(p, "key"));
    const char *name = json_string_value(json_object_get(p, "op"));
    const json_t *value = json_object_get(p, "value");
    int op = 0;

    if (!key || !is_key(key, strlen(key)))
        return err_set(err, ERR_INVALID, "filter: \"%.64s\" is no key of a %s", key ? key : "",
                       k->what);
    while (op < OPS && (!name || strcmp(ops[op].name, name)))
        op++;
    if (op == OPS)
        return err_set(err, ERR_INVALID, "filter: there is no operation \"%.64s\"",
                       name ? name : "");
    buf_text(out, op == OP_SUBSTRING ? " AND instr(lower(" : " AND ");
    key_sql(k, key, strlen(key), out);
    if (op == OP_SUBSTRING) {
        buf_text(out, "), lower(?)) > 0");
        return add_value(v, value, err);
    }
    buf_text(out, ops[op].sql);
    if (op != OP_IN)
        return add_value(v, value, err);
    if (!json_is_array(value) || json_array_size(value) == 0)
        return err_set(err, ERR_INVALID, "filter: IN takes a list of values");
    for (size_t i = 0; i < json_array_size(value); i++) {
        buf_text(out, i ? ", ?" : "?");
        if (add_value(v, json_array_get(value, i), err) < 0)
            return -(int)err->code;
    }
    buf_text(out, ")");
    return 0;
}

static int where_sql(const struct rows_kind *k, const struct rows_query *q, const json_t *own,
                     struct buf *out, struct values *v, struct err *err)
{
    buf_text(out, " WHERE 1");
    for (size_t i = 0; i < json_array_size(own); i++)
        if (predicate_sql(k, json_array_get(own, i), out, v, err) < 0)
            return -(int)err->code;
    if (q->filter && !json_is_array(q->filter))
        return err_set(err, ERR_INVALID, "filter: takes a list of predicates");
    if (json_array_size(q->filter) > PREDICATES_MAX)
        return err_set(err, ERR_INVALID, "filter: more than %d predicates", PREDICATES_MAX);
    for (size_t i = 0; i < json_array_size(q->filter); i++)
        if (predicate_sql(k, json_array_get(q->filter, i), out, v, err) < 0)
            return -(int)err->code;
    return 0;
}

/* The query's own fields as predicates. */
static json_t *own_predicates(const struct rows_kind *k, const struct rows_query *q)
{
    json_t *own = json_array();

    if (q->project)
        json_array_append_new(own, json_pack("{s:s, s:s, s:s}", "key", "project", "op", "EQUALS",
                                             "value", q->project));
    if (q->parent && k->parent)
        json_array_append_new(own, json_pack("{s:s, s:s, s:s}", "key", k->parent, "op", "EQUALS",
                                             "value", q->parent));
    if (q->text && *q->text)
        json_array_append_new(own, json_pack("{s:s, s:s, s:s}", "key", "name", "op",
                                             "IS_SUBSTRING", "value", q->text));
    if (q->archived >= 0)
        json_array_append_new(own, json_pack("{s:s, s:s, s:i}", "key", "archived", "op", "EQUALS",
                                             "value", q->archived));
    return own;
}

struct order {
    struct buf key;
    bool down;
};

static int order_of(const struct rows_kind *k, const char *sort, struct order *out,
                    struct err *err)
{
    const char *text = sort && *sort ? sort : "created desc";
    size_t n = strcspn(text, " ");
    const char *way = text + n + strspn(text + n, " ");

    if (!is_key(text, n) || (*way && strcasecmp(way, "asc") && strcasecmp(way, "desc")))
        return err_set(err, ERR_INVALID,
                       "sort: \"%.80s\" is no key of a %s, with or without asc or "
                       "desc",
                       text, k->what);
    key_sql(k, text, n, &out->key);
    out->down = !strcasecmp(way, "desc");
    return 0;
}

/* Tokens are [value, seq] as JSON, in hex. */
static int token_read(const char *token, json_t **out, struct err *err)
{
    size_t n = strlen(token) / 2;
    OWN_MEM char *text = calloc(1, n + 1);

    for (size_t i = 0; text && i < n; i++) {
        unsigned byte;
        if (sscanf(token + 2 * i, "%2x", &byte) != 1)
            break;
        text[i] = (char)byte;
    }
    OWN_JSON json_t *doc = text ? json_loads(text, 0, NULL) : NULL;
    const json_t *at = json_array_get(doc, 0);
    if (!json_is_integer(json_array_get(doc, 1)) || (!json_is_string(at) && !json_is_number(at)))
        return err_set(err, ERR_INVALID, "page token: \"%.40s\" is none of this list", token);
    *out = TAKE(doc);
    return 0;
}

static char *token_write(sqlite3_stmt *row)
{
    OWN_BUF out = BUF_INIT;
    json_t *key = sqlite3_column_type(row, 2) == SQLITE_TEXT
        ? json_string((const char *)sqlite3_column_text(row, 2))
        : sqlite3_column_type(row, 2) == SQLITE_FLOAT
            ? json_real(sqlite3_column_double(row, 2))
            : json_integer(sqlite3_column_int64(row, 2));
    OWN_JSON json_t *doc = json_pack("[o, I]", key, (json_int_t)sqlite3_column_int64(row, 1));
    OWN_MEM char *text = doc ? json_dumps(doc, JSON_COMPACT) : NULL;

    for (const char *p = text; p && *p; p++)
        buf_printf(&out, "%02x", (unsigned char)*p);
    return text ? buf_take(&out) : NULL;
}

struct list {
    const struct rows_kind *kind;
    const struct rows_query *q;
    json_t *out;
    char *token;
    int64_t *total;
};

static int list_total(sqlite3 *db, const struct list *l, const struct buf *where,
                      const struct values *v, struct err *err)
{
    OWN_STMT st = NULL;
    OWN_BUF sql = BUF_INIT;

    buf_printf(&sql, "SELECT count(*) FROM %s%s", l->kind->table, where->data);
    if (buf_ok(&sql, err) < 0 || prepare(db, sql.data, &st, err) < 0 ||
        bind_values(st, 1, v, err) < 0 || store_step(st, err) < 0)
        return -(int)err->code;
    *l->total = sqlite3_column_int64(st, 0);
    return 0;
}

static int list_rows(sqlite3_stmt *st, struct list *l, int limit, struct err *err)
{
    OWN_MEM char *last = NULL;
    int rc, n = 0;

    while ((rc = store_step(st, err)) > 0) {
        if (n++ == limit) {
            l->token = TAKE(last);
            return 0;
        }
        json_t *doc = json_loads((const char *)sqlite3_column_text(st, 0), 0, NULL);
        if (!doc || json_array_append_new(l->out, doc) < 0)
            return err_set(err, ERR_NOMEM, "no memory for a list");
        if (n == limit && !(last = token_write(st)))
            return err_set(err, ERR_NOMEM, "no memory for a list");
    }
    return rc;
}

static int list(sqlite3 *db, void *arg, struct err *err)
{
    struct list *l = arg;
    const struct rows_query *q = l->q;
    int limit = q->limit <= 0 ? LIST_DEFAULT : q->limit < LIST_MAX ? q->limit : LIST_MAX;
    OWN_JSON json_t *own = own_predicates(l->kind, q);
    OWN_JSON json_t *after = NULL;
    OWN_BUF where = BUF_INIT;
    OWN_BUF sql = BUF_INIT;
    OWN_STMT st = NULL;
    struct values v = { .n = 0 };
    struct order order = { BUF_INIT, false };

    if (where_sql(l->kind, q, own, &where, &v, err) < 0)
        return -(int)err->code;
    if (buf_ok(&where, err) < 0 || (l->total && list_total(db, l, &where, &v, err) < 0))
        return -(int)err->code;
    int rc = order_of(l->kind, q->sort, &order, err);
    if (rc == 0 && q->token && *q->token)
        rc = token_read(q->token, &after, err);
    if (rc == 0) {
        const char *key = order.key.data, *way = order.down ? "DESC" : "ASC";
        buf_printf(&sql, "SELECT doc, seq, %s FROM %s%s", key, l->kind->table, where.data);
        if (after)
            buf_printf(&sql, " AND (%s, seq) %s (?, ?)", key, order.down ? "<" : ">");
        buf_printf(&sql, " ORDER BY %s %s, seq %s LIMIT %d", key, way, way, limit + 1);
        rc = buf_ok(&sql, err);
    }
    buf_done(&order.key);
    if (rc < 0)
        return rc;
    if (after && (add_value(&v, json_array_get(after, 0), err) < 0 ||
                  add_value(&v, json_array_get(after, 1), err) < 0))
        return -(int)err->code;
    if (prepare(db, sql.data, &st, err) < 0 || bind_values(st, 1, &v, err) < 0)
        return -(int)err->code;
    return list_rows(st, l, limit, err);
}

int rows_list(struct server *s, const struct rows_kind *k, const struct rows_query *q,
              json_t **out, char **out_token, int64_t *out_total, struct err *err)
{
    OWN_JSON json_t *array = json_array();
    struct list l = { k, q, array, NULL, out_total };

    if (!array)
        return err_set(err, ERR_NOMEM, "no memory for a list");
    int rc = store_read(s->store, list, &l, err);
    if (rc == 0 && !l.token && !(l.token = strdup("")))
        rc = err_set(err, ERR_NOMEM, "no memory for a list");
    if (rc < 0) {
        free(l.token);
        return rc;
    }
    *out = TAKE(array);
    *out_token = l.token;
    return 0;
}

/* ------------------------------------------------------------ texts */

int rows_text_put(sqlite3 *db, const char *text, size_t n, const char *flow, char out_digest[65],
                  struct err *err)
{
    char digest[SHA256_HEX];

    sha256_hex_of(text, n, digest);
    if (store_run(db, err, "INSERT OR REPLACE INTO pipeline_texts VALUES (?, ?, ?)", "sbs", digest,
                  (const void *)text, n, flow) < 0)
        return -(int)err->code;
    snprintf(out_digest, 65, "%s", digest);
    return 0;
}

int rows_text_get(sqlite3 *db, const char *digest, char **out_text, size_t *out_n, char **out_flow,
                  struct err *err)
{
    sqlite3_stmt *st = store_sql(db, "SELECT text, flow FROM pipeline_texts WHERE digest = ?", err);

    if (!st || store_bind(st, err, "s", digest) < 0)
        return -(int)err->code;
    int rc = store_step(st, err);
    if (rc <= 0)
        return rc < 0 ? rc
                      : err_set(err, ERR_MISSING, "there is no text %.16s of a pipeline", digest);
    size_t n = (size_t)sqlite3_column_bytes(st, 0);
    OWN_MEM char *text = malloc(n + 1);
    OWN_MEM char *flow = strdup((const char *)sqlite3_column_text(st, 1));
    if (text && n)
        memcpy(text, sqlite3_column_blob(st, 0), n);
    sqlite3_reset(st);
    if (!text || !flow)
        return err_set(err, ERR_NOMEM, "no memory for a pipeline");
    text[n] = 0;
    if (out_text)
        *out_text = TAKE(text);
    if (out_n)
        *out_n = n;
    if (out_flow)
        *out_flow = TAKE(flow);
    return 0;
}
