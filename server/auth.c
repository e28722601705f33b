/* server/auth.c - who may do what: tokens, projects, and the values that jobs are given
 *
 * What auth_check needs is in memory: the hash of every token and session. Changes are made in the
 * store first and then read again from there. A job's token holds its uid and a MAC of it; whether
 * the job still runs is asked of the store each time, so that there is nothing to forget at its
 * end.
 */
#include "server/auth_int.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/text.h"
#include "server/jobs_int.h"
#include "server/server.h"

static const char *const schema[] = {
    "CREATE TABLE projects (name TEXT PRIMARY KEY, created REAL NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE tokens (hash TEXT PRIMARY KEY, project TEXT NOT NULL, label TEXT NOT NULL,"
    "  created REAL NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE project_values (kind INTEGER, project TEXT, name TEXT, value TEXT NOT NULL,"
    "  updated REAL NOT NULL, PRIMARY KEY (kind, project, name)) WITHOUT ROWID;"
    "INSERT INTO projects VALUES ('default', unixepoch());",
    "CREATE TABLE sessions (hash TEXT PRIMARY KEY, parent TEXT NOT NULL, expires REAL NOT NULL) "
    "WITHOUT ROWID;",
    "DELETE FROM sessions;",    /* they were in a cookie, which every port of the host is sent */
    NULL
};

enum { ID_LETTERS = 12 };

struct holder {
    uint8_t hash[SHA256_BYTES];
    char project[AUTH_NAME];    /* "": the server's own */
    double until;               /* a session's end, by clock_seconds; 0: a token */
};

/* ------------------------------------------------------------ tokens as text */

static const char letters[] = "abcdefghijklmnopqrstuvwxyz234567";

/* The prefix and 40 letters of 5 bits each. */
static void spell(const char *prefix, const uint8_t bytes[40], char out[AUTH_TOKEN])
{
    int n = snprintf(out, AUTH_TOKEN, "%s", prefix);

    for (int i = 0; i < 40; i++)
        out[n++] = letters[bytes[i] & 31];
    out[n] = 0;
}

int auth_random(const char *prefix, char out[AUTH_TOKEN], struct err *err)
{
    uint8_t bytes[40];

    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return err_set(err, ERR_IO, "the system gives no random bytes: %s", strerror(errno));
    spell(prefix, bytes, out);
    return 0;
}

static void hash_of(const char *token, uint8_t out[SHA256_BYTES])
{
    struct sha256 s;

    sha256_start(&s);
    sha256_add(&s, token, strlen(token));
    sha256_finish(&s, out);
}

void auth_job_token(struct auth *a, int64_t uid, char out[AUTH_TOKEN])
{
    struct hmac_sha256_ctx ctx;
    uint8_t digest[32], bytes[40];
    char prefix[AUTH_TOKEN - 40];

    snprintf(prefix, sizeof prefix, "job_%" PRId64 "_", uid);
    for (int half = 0; half < 2; half++) {
        hmac_sha256_set_key(&ctx, strlen(a->root), (const uint8_t *)a->root);
        hmac_sha256_update(&ctx, 1, (const uint8_t *)(half ? "2" : "1"));
        hmac_sha256_update(&ctx, strlen(prefix), (const uint8_t *)prefix);
        hmac_sha256_digest(&ctx, sizeof digest, digest);
        memcpy(bytes + 20 * half, digest, 20);
    }
    spell(prefix, bytes, out);
}

static int read_token_file(struct auth *a, struct err *err)
{
    OWN_MEM char *text = NULL;
    size_t n;

    if (files_read(a->file, 4096, &text, &n, err) < 0)
        return -(int)err->code;
    n = strcspn(text, " \t\r\n");
    if (n < 16 || n >= AUTH_TOKEN)
        return err_set(err, ERR_INVALID,
                       "%s holds no token (remove it, and the next start makes a new "
                       "one)",
                       a->file);
    memcpy(a->root, text, n);
    a->root[n] = 0;
    return chmod(a->file, 0600) == 0 ? 0
        : err_set(err, ERR_IO, "cannot keep %s to its owner: %s", a->file, strerror(errno));
}

static int open_token_file(struct auth *a, struct err *err)
{
    char line[AUTH_TOKEN + 1];
    OWN_MEM char *fresh = NULL;

    if (access(a->file, F_OK) == 0)
        return read_token_file(a, err);
    if (auth_random("muster_", a->root, err) < 0)
        return -(int)err->code;
    if (asprintf(&fresh, "%s.new", a->file) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a path");
    int n = snprintf(line, sizeof line, "%s\n", a->root);
    unlink(fresh);
    OWN_FD int fd = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, line, (size_t)n) != n || fsync(fd) < 0 || rename(fresh, a->file) < 0)
        return err_set(err, ERR_IO, "cannot write %s: %s", a->file, strerror(errno));
    return 0;
}

/* ------------------------------------------------------------ who holds what */

/* All are looked at, each whole: the time says nothing of which was near. */
static const struct holder *find_holder(const struct auth *a, const uint8_t hash[SHA256_BYTES],
                                        bool session)
{
    const struct holder *found = NULL;

    for (size_t i = 0; i < a->n; i++)
        if (memeql_sec(a->holders[i].hash, hash, SHA256_BYTES) &&
            (a->holders[i].until > 0) == session)
            found = &a->holders[i];
    return found;
}

static int add_holder(struct auth *a, const uint8_t *hash, const char *project, double until,
                      struct err *err)
{
    if (a->n == a->cap) {
        size_t cap = a->cap ? 2 * a->cap : 16;
        struct holder *grown = realloc(a->holders, cap * sizeof *grown);
        if (!grown)
            return err_set(err, ERR_NOMEM, "no memory for tokens");
        a->holders = grown;
        a->cap = cap;
    }
    struct holder *h = &a->holders[a->n++];
    memcpy(h->hash, hash, SHA256_BYTES);
    snprintf(h->project, sizeof h->project, "%s", project);
    h->until = until;
    return 0;
}

static bool hex_bytes(const char *hex, uint8_t out[SHA256_BYTES])
{
    for (int i = 0; i < SHA256_BYTES; i++) {
        unsigned byte;
        if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
            return false;
        out[i] = (uint8_t)byte;
    }
    return true;
}

/* Those whose token is still good. */
static int read_sessions(sqlite3 *db, struct auth *a, struct err *err)
{
    sqlite3_stmt *st = store_sql(db, "SELECT hash, parent, expires FROM sessions", err);
    int rc = st ? 1 : -(int)err->code;

    while (rc > 0 && (rc = store_step(st, err)) > 0) {
        uint8_t hash[SHA256_BYTES], parent[SHA256_BYTES];
        if (!hex_bytes((const char *)sqlite3_column_text(st, 0), hash)
            || !hex_bytes((const char *)sqlite3_column_text(st, 1), parent))
            continue;
        const struct holder *h = find_holder(a, parent, false);
        char project[AUTH_NAME];
        snprintf(project, sizeof project, "%s", h ? h->project : "");
        /* By the steady clock, and no longer than a new one: the calendar's may be set back. */
        const double left = fmin(sqlite3_column_double(st, 2) - clock_wall(), AUTH_SESSION_S);
        if (h && left > 0 && add_holder(a, hash, project, clock_seconds() + left, err) < 0)
            return -(int)err->code;
    }
    return rc;
}

static int read_holders(sqlite3 *db, void *arg, struct err *err)
{
    struct auth *a = arg;
    uint8_t hash[SHA256_BYTES];
    int rc;

    a->n = 0;
    hash_of(a->root, hash);
    if (add_holder(a, hash, "", 0, err) < 0)
        return -(int)err->code;
    sqlite3_stmt *st = store_sql(db, "SELECT hash, project FROM tokens", err);
    if (!st)
        return -(int)err->code;
    while ((rc = store_step(st, err)) > 0)
        if (hex_bytes((const char *)sqlite3_column_text(st, 0), hash)
            && add_holder(a, hash, (const char *)sqlite3_column_text(st, 1), 0, err) < 0)
            return -(int)err->code;
    return rc < 0 ? rc : read_sessions(db, a, err);
}

static int reload(struct auth *a, struct err *err)
{
    pthread_rwlock_wrlock(&a->lock);
    int rc = store_read(a->store, read_holders, a, err);
    atomic_fetch_add(&a->epoch, 1);
    pthread_rwlock_unlock(&a->lock);
    return rc;
}

static bool check(struct auth *a, const char *token, bool session, struct auth_who *out)
{
    uint8_t hash[SHA256_BYTES];
    struct auth_who who = { .until = INFINITY };

    hash_of(token, hash);
    pthread_rwlock_rdlock(&a->lock);
    const struct holder *h = find_holder(a, hash, session);
    if (h) {
        memcpy(who.project, h->project, AUTH_NAME);
        who.until = session ? h->until : INFINITY;
    }
    pthread_rwlock_unlock(&a->lock);
    if (!h || who.until <= clock_seconds())
        return false;
    who.root = !who.project[0];
    *out = who;
    return true;
}

struct asked_job { int64_t uid; struct auth_who *out; };

static int find_job(sqlite3 *db, void *arg, struct err *err)
{
    const struct asked_job *j = arg;
    OWN_ROW row = { 0 };

    if (job_row_of(db, j->uid, &row, err) < 0)
        return -(int)err->code;
    if (job_state_ended(row.state))
        return err_set(err, ERR_DENIED, "the job has ended, and its token with it");
    snprintf(j->out->project, sizeof j->out->project, "%s", row.project);
    snprintf(j->out->job, sizeof j->out->job, "%s", row.name);
    return 0;
}

static bool check_job(struct auth *a, const char *token, struct auth_who *out)
{
    struct auth_who who = { 0 };
    struct asked_job job = { strtoll(token + 4, NULL, 10), &who };
    char good[AUTH_TOKEN];
    struct err err = { 0 };

    auth_job_token(a, job.uid, good);
    if (strlen(token) != strlen(good) || !memeql_sec(token, good, strlen(good))
        || store_read(a->store, find_job, &job, &err) < 0)
        return false;
    *out = who;
    return true;
}

bool auth_check(struct auth *a, const char *token, struct auth_who *out)
{
    return strncmp(token, "job_", 4) ? check(a, token, false, out) : check_job(a, token, out);
}

bool auth_session_check(struct auth *a, const char *session, struct auth_who *out)
{
    return check(a, session, true, out);
}

unsigned auth_epoch(struct auth *a)
{
    return atomic_load(&a->epoch);
}

const char *auth_root_token(const struct auth *a)
{
    return a->root;
}

const char *auth_token_file(const struct auth *a)
{
    return a->file;
}

int auth_new(struct server *s, struct auth **out, struct err *err)
{
    OWN(auth) a = calloc(1, sizeof *a);

    if (!a || asprintf(&a->file, "%s/token", s->data_dir) < 0)
        return err_set(err, ERR_NOMEM, "no memory for tokens");
    pthread_rwlock_init(&a->lock, NULL);
    a->store = s->store;
    if (vault_new(s->data_dir, &a->vault, err) < 0 || open_token_file(a, err) < 0
        || store_schema(a->store, "auth", schema, err) < 0 || reload(a, err) < 0)
        return -(int)err->code;
    auth_values_seal(a);
    log_hide(a->root);
    *out = TAKE(a);
    return 0;
}

void auth_free(struct auth *a)
{
    if (!a)
        return;
    free(a->holders);
    free(a->file);
    vault_free(a->vault);
    free(a);
}

/* ------------------------------------------------------------ names */

int auth_name_check(const char *what, const char *name, struct err *err)
{
    size_t n = strlen(name);
    bool ok = n >= 3 && n <= 63 && islower((unsigned char)name[0]) && name[n - 1] != '-';

    for (const char *p = name; *p; p++)
        ok = ok && (islower((unsigned char)*p) || isdigit((unsigned char)*p) || *p == '-');
    return ok ? 0 : err_set(err, ERR_INVALID, "%s \"%.64s\": a name is 3 to 63 lower-case letters, "
                            "digits and '-', a letter first", what, name);
}

/* ------------------------------------------------------------ changes */

struct change {
    const char *project, *name, *value;
    double now;
    int64_t count;
};

int auth_need_project(sqlite3 *db, const char *project, struct err *err)
{
    sqlite3_stmt *st = store_sql(db, "SELECT 1 FROM projects WHERE name = ?", err);

    if (!st || store_bind(st, err, "s", project) < 0)
        return -(int)err->code;
    int rc = store_step(st, err);
    return rc < 0 ? rc : rc > 0 ? 0
        : err_set(err, ERR_MISSING, "there is no project \"%.64s\" (muster project list)", project);
}

static int find_project(sqlite3 *db, void *arg, struct err *err)
{
    return auth_need_project(db, arg, err);
}

bool auth_project_exists(struct auth *a, const char *project)
{
    struct err err = { 0 };
    return store_read(a->store, find_project, (void *)project, &err) == 0;
}

static int add_project(sqlite3 *db, void *arg, struct err *err)
{
    const struct change *c = arg;
    int rc = store_run(db, err, "INSERT INTO projects VALUES (?, ?)", "sd", c->project, c->now);

    return rc == -ERR_CONFLICT
        ? err_set(err, ERR_CONFLICT, "the project \"%s\" is there already", c->project) : rc;
}

int auth_project_add(struct auth *a, const char *project, struct err *err)
{
    struct change c = { .project = project, .now = clock_wall() };

    if (auth_name_check("project", project, err) < 0
        || store_write(a->store, add_project, &c, err) < 0)
        return -(int)err->code;
    return reload(a, err);
}

static int remove_project(sqlite3 *db, void *arg, struct err *err)
{
    const struct change *c = arg;

    if (auth_need_project(db, c->project, err) < 0
        || store_run(db, err, "DELETE FROM projects WHERE name = ?", "s", c->project) < 0
        || store_run(db, err, "DELETE FROM tokens WHERE project = ?", "s", c->project) < 0)
        return -(int)err->code;
    return store_run(db, err, "DELETE FROM project_values WHERE project = ?", "s", c->project);
}

int auth_project_remove(struct auth *a, const char *project, struct err *err)
{
    struct change c = { .project = project };

    if (!strcmp(project, "default"))
        return err_set(err, ERR_CONFLICT, "the project \"default\" stays");
    if (store_write_last(a->store, remove_project, &c, err) < 0)
        return -(int)err->code;
    return reload(a, err);
}

static int add_token(sqlite3 *db, void *arg, struct err *err)
{
    const struct change *c = arg;

    if (auth_need_project(db, c->project, err) < 0)
        return -(int)err->code;
    return store_run(db, err, "INSERT INTO tokens VALUES (?, ?, ?, ?)", "sssd", c->value,
                     c->project, c->name, c->now);
}

int auth_token_add(struct auth *a, const char *project, const char *label,
                   char out_token[AUTH_TOKEN], char out_id[16], struct err *err)
{
    char token[AUTH_TOKEN], hash[SHA256_HEX];
    struct change c = { .project = project, .name = label, .value = hash, .now = clock_wall() };

    if (strlen(label) > 128)
        return err_set(err, ERR_INVALID, "the label of a token has at most 128 letters");
    if (text_has_control(label, false))
        return err_set(err, ERR_INVALID, "the label of a token is one line, without control "
                       "characters");
    if (auth_random("muster_", token, err) < 0)
        return -(int)err->code;
    sha256_hex_of(token, strlen(token), hash);
    if (store_write(a->store, add_token, &c, err) < 0 || reload(a, err) < 0)
        return -(int)err->code;
    memcpy(out_token, token, AUTH_TOKEN);
    snprintf(out_id, 16, "%.*s", ID_LETTERS, hash);
    return 0;
}

static int remove_token(sqlite3 *db, void *arg, struct err *err)
{
    struct change *c = arg;
    int rc = store_run(db, err, "DELETE FROM tokens WHERE project = ? AND substr(hash, 1, 12) = ?",
                       "ss", c->project, c->name);
    c->count = sqlite3_changes(db);
    return rc;
}

int auth_token_remove(struct auth *a, const char *project, const char *id, struct err *err)
{
    struct change c = { .project = project, .name = id };

    if (store_write_last(a->store, remove_token, &c, err) < 0)
        return -(int)err->code;
    if (!c.count)
        return err_set(err, ERR_MISSING,
                       "project \"%s\" has no token \"%.64s\" (muster project token "
                       "list shows them)",
                       project, id);
    return reload(a, err);
}

/* ------------------------------------------------------------ sessions of browsers */

static int add_session(sqlite3 *db, void *arg, struct err *err)
{
    const struct change *c = arg;

    if (store_run(db, err, "DELETE FROM sessions WHERE expires < ?", "d", c->now) < 0
        || store_run(db, err, "DELETE FROM sessions WHERE hash IN (SELECT hash FROM sessions "
                     "ORDER BY expires DESC LIMIT -1 OFFSET ?)", "i",
                     (int64_t)AUTH_SESSIONS_MAX - 1) < 0)
        return -(int)err->code;
    return store_run(db, err, "INSERT INTO sessions VALUES (?, ?, ?)", "ssd", c->value, c->name,
                     c->now + AUTH_SESSION_S);
}

int auth_session_add(struct auth *a, const char *token, char out_session[AUTH_TOKEN],
                     struct err *err)
{
    char session[AUTH_TOKEN], hash[SHA256_HEX], parent[SHA256_HEX];
    struct auth_who who;
    struct change c = { .name = parent, .value = hash, .now = clock_wall() };

    if (!auth_check(a, token, &who) || who.job[0])
        return err_set(err, ERR_DENIED,
                       "this link's token is not known here (muster serve prints a "
                       "good one)");
    if (auth_random("web_", session, err) < 0)
        return -(int)err->code;
    sha256_hex_of(session, strlen(session), hash);
    sha256_hex_of(token, strlen(token), parent);
    /* On a full disk, too: who deletes in the console has to log in. */
    if (store_write_last(a->store, add_session, &c, err) < 0 || reload(a, err) < 0)
        return -(int)err->code;
    memcpy(out_session, session, AUTH_TOKEN);
    return 0;
}

static int remove_session(sqlite3 *db, void *arg, struct err *err)
{
    return store_run(db, err, "DELETE FROM sessions WHERE hash = ?", "s", (const char *)arg);
}

int auth_session_remove(struct auth *a, const char *session, struct err *err)
{
    char hash[SHA256_HEX];

    sha256_hex_of(session, strlen(session), hash);
    return store_write_last(a->store, remove_session, hash, err) < 0 ? -(int)err->code : reload(a, err);
}

/* ------------------------------------------------------------ lists */

struct listing {
    const char *project;
    json_t *rows;
};

static int list_projects(sqlite3 *db, void *arg, struct err *err)
{
    struct listing *l = arg;
    sqlite3_stmt *st = store_sql(db, "SELECT name, created FROM projects ORDER BY name", err);
    int rc = st ? 1 : -(int)err->code;

    while (rc > 0 && (rc = store_step(st, err)) > 0)
        json_array_append_new(l->rows, json_pack("{s:s, s:f}", "name", sqlite3_column_text(st, 0),
                                                 "created", sqlite3_column_double(st, 1)));
    return rc;
}

static int list_tokens(sqlite3 *db, void *arg, struct err *err)
{
    struct listing *l = arg;
    sqlite3_stmt *st = store_sql(db,
                                 "SELECT substr(hash, 1, 12), project, label, created FROM tokens "
                                 "WHERE ?1 IS NULL OR project = ?1 ORDER BY project, created",
                                 err);
    int rc = st ? store_bind(st, err, "s", l->project) : -(int)err->code;

    for (rc = rc < 0 ? rc : 1; rc > 0 && (rc = store_step(st, err)) > 0;)
        json_array_append_new(l->rows, json_pack("{s:s, s:s, s:s, s:f}",
            "id", sqlite3_column_text(st, 0), "project", sqlite3_column_text(st, 1),
            "label", sqlite3_column_text(st, 2), "created", sqlite3_column_double(st, 3)));
    return rc;
}

static int list(struct auth *a, int (*fn)(sqlite3 *, void *, struct err *), struct listing *l,
                json_t **out, struct err *err)
{
    OWN_JSON json_t *rows = json_array();

    l->rows = rows;
    if (!rows)
        return err_set(err, ERR_NOMEM, "no memory for a list");
    if (store_read(a->store, fn, l, err) < 0)
        return -(int)err->code;
    *out = TAKE(rows);
    return 0;
}

int auth_project_list(struct auth *a, json_t **out, struct err *err)
{
    return list(a, list_projects, &(struct listing){ 0 }, out, err);
}

int auth_token_list(struct auth *a, const char *project, json_t **out, struct err *err)
{
    return list(a, list_tokens, &(struct listing){ .project = project }, out, err);
}
