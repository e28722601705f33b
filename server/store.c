/* server/store.c - connections, transactions shared by many, statements kept
 *
 * DESIGN: a write is a `wish` on its caller's stack. Whoever finds nobody at work takes all wishes
 * that are there, runs and commits them, marks them done and wakes their callers; if others came
 * meanwhile, one of them goes on. A thread of its own would cost two wake-ups for each write.
 */
#include "server/store.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "server/store_pages.h"
#include "server/store_room.h"

/* At most so many in one transaction: the first of them waits for the last. */
enum { BATCH_MAX = 512 };

enum { KEPT_FIRST = 64, BUSY_MS = 10000, FULL_WAIT_MS = 500 };

struct kept { const char *sql; sqlite3_stmt *st; };

struct conn {
    sqlite3 *db;
    struct kept *kept;          /* a hash table by the address of the text, never full */
    size_t n_kept, cap_kept;
    int depth;                  /* of store_read inside store_read */
    struct store *store;
    struct conn *next, *prev;   /* of the store's readers */
    struct conn *outer;         /* in use on this thread before this one */
};

struct wish {
    int (*fn)(sqlite3 *db, void *arg, struct err *err);
    void *arg;
    struct err *err;
    int rc;
    bool done;
    bool last;                  /* of store_write_last */
    pthread_cond_t told;
    struct wish *next;
};

struct store {
    char *path, *log;           /* muster.db, muster.db-wal */
    struct conn writer;
    pthread_mutex_t lock;       /* of what follows */
    struct wish *first, **last;
    bool busy;                  /* somebody runs wishes */
    struct conn *readers;
    pthread_key_t mine;         /* this thread's reader */
    _Atomic uint64_t commits;
    bool full;                  /* the last transaction found no room: last wishes go alone */
    struct store_room room;
};

/* Those in use on this thread, innermost first: store_sql finds its connection here. */
static _Thread_local struct conn *in_use;

/* ------------------------------------------------------------ errors */

#define FULL_DISK "the disk is full: nothing was stored (free some space and try again)"

static int say(sqlite3 *db, struct err *err)
{
    int rc = sqlite3_extended_errcode(db);

    /* A file that may not grow is told as a failed write; of the log's index, as a failed
     * resize. */
    if ((rc & 0xff) == SQLITE_FULL || rc == SQLITE_IOERR_WRITE || rc == SQLITE_IOERR_SHMSIZE)
        return err_set(err, ERR_IO, FULL_DISK);
    if (rc == SQLITE_IOERR_DATA)
        return err_set(err, ERR_IO, "the database is damaged: %s", pages_damage());
    switch (rc & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return err_set(err, ERR_IO, "the database is damaged: %s (restore a backup; muster serve "
                       "--check lists all damage)", sqlite3_errmsg(db));
    case SQLITE_CONSTRAINT:
        return err_set(err, ERR_CONFLICT, "%s", sqlite3_errmsg(db));
    case SQLITE_NOMEM:
        return err_set(err, ERR_NOMEM, "no memory for the database");
    default:
        return err_set(err, ERR_IO, "the database: %s", sqlite3_errmsg(db));
    }
}

/* ------------------------------------------------------------ connections */

static int exec(sqlite3 *db, const char *sql, struct err *err)
{
    return sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : say(db, err);
}

static int conn_open(struct conn *c, const char *path, const char *pragmas, struct err *err)
{
    int rc = sqlite3_open_v2(path, &c->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE |
                             SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE, pages_vfs());
    if (rc == SQLITE_OK)
        pages_reserve(c->db);
    if (rc == SQLITE_IOERR_DATA)
        say(c->db, err);
    else if (rc != SQLITE_OK)
        err_set(err, rc == SQLITE_NOMEM ? ERR_NOMEM : ERR_IO, "cannot open %s: %s", path,
                c->db ? sqlite3_errmsg(c->db) : "no memory");
    else
        rc = store_room_hold(c->db, err) < 0 ? -1 : exec(c->db, pragmas, err);
    if (rc != 0) {
        sqlite3_close(c->db);
        c->db = NULL;
        return -(int)err->code;
    }
    /* Another process may hold the file for the moment of a check or backup. */
    sqlite3_busy_timeout(c->db, BUSY_MS);
    return 0;
}

static void conn_close(struct conn *c)
{
    for (size_t i = 0; i < c->cap_kept; i++)
        sqlite3_finalize(c->kept[i].st);
    free(c->kept);
    sqlite3_close(c->db);
    c->db = NULL;
    c->kept = NULL;
    c->cap_kept = c->n_kept = 0;
}

static void conn_enter(struct conn *c)
{
    c->outer = in_use;
    in_use = c;
}

static void conn_leave(struct conn *c)
{
    in_use = c->outer;
}

static void unlink_reader(struct conn *c)
{
    *(c->prev ? &c->prev->next : &c->store->readers) = c->next;
    if (c->next)
        c->next->prev = c->prev;
}

/* A thread ends: its reader goes with it. */
static void reader_ends(void *arg)
{
    struct conn *c = arg;
    struct store *s = c->store;

    pthread_mutex_lock(&s->lock);
    unlink_reader(c);
    pthread_mutex_unlock(&s->lock);
    conn_close(c);
    free(c);
}

static struct conn *reader_of(struct store *s, struct err *err)
{
    struct conn *c = pthread_getspecific(s->mine);
    if (c)
        return c;
    c = calloc(1, sizeof *c);
    if (!c) {
        err_set(err, ERR_NOMEM, "no memory for a reader of the database");
        return NULL;
    }
    c->store = s;
    if (conn_open(c, s->path, "PRAGMA cache_size=-1024; PRAGMA temp_store=MEMORY;"
                  "PRAGMA query_only=1", err) < 0) {
        free(c);
        return NULL;
    }
    pthread_mutex_lock(&s->lock);
    c->next = s->readers;
    if (c->next)
        c->next->prev = c;
    s->readers = c;
    pthread_mutex_unlock(&s->lock);
    pthread_setspecific(s->mine, c);
    return c;
}

/* ------------------------------------------------------------ statements */

static size_t place_of(const struct kept *kept, size_t cap, const char *sql)
{
    size_t at = ((uintptr_t)sql * 0x9E3779B97F4A7C15ull) >> 20 & (cap - 1);

    while (kept[at].sql && kept[at].sql != sql)
        at = (at + 1) & (cap - 1);
    return at;
}

static int make_room(struct conn *c, struct err *err)
{
    if (c->n_kept * 2 < c->cap_kept)
        return 0;
    size_t cap = c->cap_kept ? c->cap_kept * 2 : KEPT_FIRST;
    struct kept *more = calloc(cap, sizeof *more);
    if (!more)
        return err_set(err, ERR_NOMEM, "no memory for statements");
    for (size_t i = 0; i < c->cap_kept; i++)
        if (c->kept[i].sql)
            more[place_of(more, cap, c->kept[i].sql)] = c->kept[i];
    free(c->kept);
    c->kept = more;
    c->cap_kept = cap;
    return 0;
}

sqlite3_stmt *store_sql(sqlite3 *db, const char *sql, struct err *err)
{
    struct conn *c = in_use;

    while (c && c->db != db)
        c = c->outer;
    assert(c && "store_sql outside of store_read and store_write");
    if (make_room(c, err) < 0)
        return NULL;
    struct kept *k = &c->kept[place_of(c->kept, c->cap_kept, sql)];
    if (k->sql) {
        sqlite3_reset(k->st);
        sqlite3_clear_bindings(k->st);
        return k->st;
    }
    sqlite3_stmt *st;
    if (sqlite3_prepare_v3(db, sql, -1, SQLITE_PREPARE_PERSISTENT, &st, NULL) != SQLITE_OK) {
        say(db, err);
        err_add(err, "in \"%.60s\"", sql);
        return NULL;
    }
    *k = (struct kept){ sql, st };
    c->n_kept++;
    return st;
}

static int bind_all(sqlite3_stmt *st, struct err *err, const char *format, va_list ap)
{
    int rc = SQLITE_OK;

    for (int i = 1; *format && rc == SQLITE_OK; i++, format++) {
        switch (*format) {
        case 's':
            rc = sqlite3_bind_text(st, i, va_arg(ap, const char *), -1, SQLITE_TRANSIENT);
            break;
        case 'i':
            rc = sqlite3_bind_int64(st, i, va_arg(ap, int64_t));
            break;
        case 'd':
            rc = sqlite3_bind_double(st, i, va_arg(ap, double));
            break;
        case 'b': {
            const void *bytes = va_arg(ap, const void *);
            size_t n = va_arg(ap, size_t);
            rc = sqlite3_bind_blob64(st, i, bytes ? bytes : "", n, SQLITE_TRANSIENT);
            break;
        }
        default:
            rc = sqlite3_bind_null(st, i);
        }
    }
    return rc == SQLITE_OK ? 0 : say(sqlite3_db_handle(st), err);
}

int store_bind(sqlite3_stmt *st, struct err *err, const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    int rc = bind_all(st, err, format, ap);
    va_end(ap);
    return rc;
}

int store_step(sqlite3_stmt *st, struct err *err)
{
    int rc = sqlite3_step(st);

    if (rc == SQLITE_ROW)
        return 1;
    if (rc != SQLITE_DONE)
        say(sqlite3_db_handle(st), err);
    /* A statement left open would keep the snapshot, and with it the log, from being given back. */
    sqlite3_reset(st);
    return rc == SQLITE_DONE ? 0 : -(int)err->code;
}

int store_run(sqlite3 *db, struct err *err, const char *sql, const char *format, ...)
{
    sqlite3_stmt *st = store_sql(db, sql, err);
    if (!st)
        return -(int)err->code;
    va_list ap;
    va_start(ap, format);
    int rc = bind_all(st, err, format, ap);
    va_end(ap);
    while (rc == 0 && (rc = store_step(st, err)) > 0)
        rc = 0;
    return rc;
}

/* ------------------------------------------------------------ life */

static void set_up(void)
{
    /* Its statistics are a lock that all threads share. */
    sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0);
    sqlite3_initialize();
    store_room_set_up();
}

static bool has_entries(const char *dir, const char *name)
{
    OWN_BUF path = BUF_INIT;
    bool found = false;

    buf_printf(&path, "%s/%s", dir, name);
    DIR *d = path.data ? opendir(path.data) : NULL;
    for (const struct dirent *e; d && !found && (e = readdir(d));)
        found = e->d_name[0] != '.';
    if (d)
        closedir(d);
    return found;
}

/* A new database knows nothing of jobs and objects, and what nobody knows is removed. */
static int check_lost(const char *dir, const char *path, struct err *err)
{
    struct stat st;

    if ((stat(path, &st) == 0 && st.st_size > 0) ||
        (!has_entries(dir, "jobs") && !has_entries(dir, "blobs")))
        return 0;
    return err_set(err, ERR_CONFLICT, "%s is gone or empty, and there are jobs or objects beside it: "
                   "put it back, or the whole directory from a backup", path);
}

static bool is_full(int rc, const struct err *err)
{
    return rc == -ERR_IO && !strcmp(err->text, FULL_DISK);
}

/* A new database says from its first page on that it has checksums (store_pages.h). */
#define MARK_NEW "PRAGMA application_id=1836282994;"
_Static_assert(PAGES_APPLICATION == 1836282994, "MARK_NEW says another");

/* The index of the log is made anew, also on a full disk. Sorting and savepoints need no file. Nothing
 * spills: a page of a transaction that goes on must not be read back from the log, whose sums are right
 * only when it is committed. */
static int open_writer(struct store *s, const char *dir, struct err *err)
{
    const int pages = store_room_log_pages(dir);
    struct err why = { 0 };
    struct stat st;
    const bool is_new = stat(s->path, &st) < 0 || st.st_size == 0;
    char pragmas[640];
    int rc;

    snprintf(pragmas, sizeof pragmas, "%s PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
             "PRAGMA wal_autocheckpoint=%d; PRAGMA journal_size_limit=%d;"
             "PRAGMA cache_size=-8192; PRAGMA cache_spill=0; PRAGMA foreign_keys=0;"
             "PRAGMA temp_store=MEMORY;"
             "CREATE TABLE IF NOT EXISTS schema (module TEXT PRIMARY KEY, version INTEGER) "
             "WITHOUT ROWID", is_new ? MARK_NEW : "", pages, 4 * 4096 * pages);
    do
        rc = conn_open(&s->writer, s->path, pragmas, &why);
    while (is_full(rc, &why) && store_room_give(&s->room, 0));
    if (rc < 0) {
        *err = why;
        return err_add(err, "%s", s->path);
    }
    store_room_log(s->log);
    store_room_take(&s->room);
    return 0;
}

int store_open(const char *dir, struct store **out, struct err *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, set_up);

    struct store *s = calloc(1, sizeof *s);
    if (!s || asprintf(&s->path, "%s/muster.db", dir) < 0 ||
        asprintf(&s->log, "%s-wal", s->path) < 0 || pthread_key_create(&s->mine, reader_ends) != 0) {
        if (s) {
            free(s->path);
            free(s->log);
        }
        free(s);
        return err_set(err, ERR_NOMEM, "no memory for the database");
    }
    pthread_mutex_init(&s->lock, NULL);
    s->last = &s->first;
    store_room_open(&s->room, dir);
    if (check_lost(dir, s->path, err) < 0 || pages_check_log(s->path, err) < 0 ||
        open_writer(s, dir, err) < 0) {
        store_free(s);
        return -(int)err->code;
    }
    *out = s;
    return 0;
}

void store_free(struct store *s)
{
    if (!s)
        return;
    pthread_key_delete(s->mine);
    while (s->readers) {
        struct conn *c = s->readers;
        unlink_reader(c);
        conn_close(c);
        free(c);
    }
    const bool opened = s->writer.db != NULL;
    conn_close(&s->writer);     /* the last one out empties the log into the file */
    if (opened)
        store_room_log(s->log);
    store_room_close(&s->room);
    pthread_mutex_destroy(&s->lock);
    free(s->path);
    free(s->log);
    free(s);
}

/* ------------------------------------------------------------ writing */

static void fail_from(struct wish *first, const struct wish *end, const struct err *why)
{
    for (struct wish *w = first; w != end; w = w->next)
        if (w->rc >= 0) {
            *w->err = *why;
            w->rc = -(int)why->code;
        }
}

static void grant(sqlite3 *db, struct wish *w)
{
    struct err ignore = { 0 };

    w->rc = store_run(db, w->err, "SAVEPOINT wish", "");
    if (w->rc < 0)
        return;
    w->rc = w->fn(db, w->arg, w->err);
    if (sqlite3_get_autocommit(db))
        return;                 /* the disk was full: the whole transaction is undone */
    if (w->rc < 0)
        store_run(db, &ignore, "ROLLBACK TO wish", "");
    if (store_run(db, &ignore, "RELEASE wish", "") < 0 && w->rc >= 0) {
        *w->err = ignore;
        w->rc = -(int)ignore.code;
    }
}

/* Before the commit: what is in the log must fit into the file, or it could never be emptied. */
static int need_pages(sqlite3 *db, const struct wish *begun, struct err *err)
{
    sqlite3_stmt *st = store_sql(db, "PRAGMA page_count", err);
    bool last = true;

    if (!st || store_step(st, err) < 0)
        return -(int)err->code;
    const sqlite3_int64 pages = sqlite3_column_int64(st, 0);
    sqlite3_reset(st);
    for (const struct wish *w = begun; w; w = w->next)
        last = last && (w->last || w->rc < 0);
    return store_room_pages(db, pages, last) ? 0 : err_set(err, ERR_IO, FULL_DISK);
}

/* Empties the log, so that it begins again in the blocks that it has. Readers of it are waited for;
 * those who come read the file. */
static void note_room(struct store *s, bool full)
{
    s->full = full;
    if (!full)
        return;
    sqlite3_busy_timeout(s->writer.db, FULL_WAIT_MS);
    sqlite3_wal_checkpoint_v2(s->writer.db, NULL, SQLITE_CHECKPOINT_RESTART, NULL, NULL);
    sqlite3_busy_timeout(s->writer.db, BUSY_MS);
}

/* One transaction for all of a list. */
static void grant_all(struct store *s, struct wish *first)
{
    sqlite3 *db = s->writer.db;
    struct err err = { 0 };
    struct wish *begun = first;         /* of the transaction that is open */
    bool full = false;

    conn_enter(&s->writer);
    store_point("store.begin");
    for (struct wish *w = first; w; w = w->next) {
        if (sqlite3_get_autocommit(db) && store_run(db, &err, "BEGIN IMMEDIATE", "") < 0) {
            fail_from(w, NULL, &err);
            note_room(s, is_full(-(int)err.code, &err));
            conn_leave(&s->writer);
            return;
        }
        grant(db, w);
        if (sqlite3_get_autocommit(db)) {
            if (w->rc >= 0)
                w->rc = err_set(w->err, ERR_IO, FULL_DISK);
            full = true;
            fail_from(begun, w, w->err);
            begun = w->next;
        }
    }
    store_point("store.commit");
    if (!sqlite3_get_autocommit(db) &&
        (need_pages(db, begun, &err) < 0 || store_run(db, &err, "COMMIT", "") < 0)) {
        struct err ignore;
        fail_from(begun, NULL, &err);
        full = full || is_full(-(int)err.code, &err);
        if (!sqlite3_get_autocommit(db))
            store_run(db, &ignore, "ROLLBACK", "");
    } else {
        s->commits++;
    }
    note_room(s, full);
    store_point("store.committed");
    conn_leave(&s->writer);
}

/* Under the lock: takes wishes off the list and runs them. On a full disk ordinary ones and last ones
 * do not share a transaction: those would fail these. */
static void serve_some(struct store *s)
{
    struct wish *batch = s->first, **end = &s->first;

    for (int n = 0; n < BATCH_MAX && *end && !(s->full && (*end)->last != batch->last); n++)
        end = &(*end)->next;
    s->first = *end;
    *end = NULL;
    if (!s->first)
        s->last = &s->first;
    pthread_mutex_unlock(&s->lock);
    grant_all(s, batch);
    pthread_mutex_lock(&s->lock);
    for (struct wish *w = batch, *next; w; w = next) {
        next = w->next;         /* once it is told, its caller may be gone */
        w->done = true;
        pthread_cond_signal(&w->told);
    }
}

static int write_once(struct store *s, int (*fn)(sqlite3 *db, void *arg, struct err *err), void *arg,
                      bool last, struct err *err)
{
    struct wish w = { .fn = fn, .arg = arg, .err = err, .last = last,
                      .told = PTHREAD_COND_INITIALIZER };

    pthread_mutex_lock(&s->lock);
    *s->last = &w;
    s->last = &w.next;
    while (!w.done && s->busy)
        pthread_cond_wait(&w.told, &s->lock);
    if (!w.done) {
        s->busy = true;
        while (!w.done)
            serve_some(s);
        s->busy = false;
        if (s->first)
            pthread_cond_signal(&s->first->told);
    }
    pthread_mutex_unlock(&s->lock);
    pthread_cond_destroy(&w.told);
    return w.rc < 0 ? w.rc : 0;
}

int store_write(struct store *s, int (*fn)(sqlite3 *db, void *arg, struct err *err), void *arg,
                struct err *err)
{
    int rc = write_once(s, fn, arg, false, err);

    if (rc == 0)
        store_reclaim(s);
    return rc;
}

int store_write_last(struct store *s, int (*fn)(sqlite3 *db, void *arg, struct err *err),
                     void *arg, struct err *err)
{
    struct err why = { 0 };
    int rc = write_once(s, fn, arg, true, &why);

    /* First in the room that the log and the file have; then from the reserve, step by step. */
    if (is_full(rc, &why))
        rc = write_once(s, fn, arg, true, &why);
    while (is_full(rc, &why) && store_room_give(&s->room, ROOM_START))
        rc = write_once(s, fn, arg, true, &why);
    if (rc == 0)
        store_reclaim(s);
    else
        *err = why;
    return rc;
}

void store_reclaim(struct store *s)
{
    if (s && s->room.held < ROOM_RESERVE)
        store_room_take(&s->room);
}

bool store_release(struct store *s)
{
    return store_room_give(&s->room, 0);
}

/* ------------------------------------------------------------ reading */

/* One that a function left in the middle of its rows would hold on to the snapshot: later reads of
 * this thread would not see what was written since. */
static void end_statements(sqlite3 *db)
{
    for (sqlite3_stmt *st = NULL; (st = sqlite3_next_stmt(db, st));)
        if (sqlite3_stmt_busy(st))
            sqlite3_reset(st);
}

int store_read(struct store *s, int (*fn)(sqlite3 *db, void *arg, struct err *err), void *arg,
               struct err *err)
{
    struct conn *c = reader_of(s, err);
    struct err ignore;

    if (!c)
        return -(int)err->code;
    if (c->depth > 0)
        return fn(c->db, arg, err);
    conn_enter(c);
    c->depth++;
    int rc = store_run(c->db, err, "BEGIN", "");
    if (rc == 0) {
        rc = fn(c->db, arg, err);
        end_statements(c->db);
        store_run(c->db, &ignore, "COMMIT", "");
    }
    c->depth--;
    conn_leave(c);
    return rc;
}

struct since {
    const char *sql;
    int64_t after, *last;
    int (*row)(void *arg, sqlite3_stmt *st);
    void *arg;
};

static int read_since(sqlite3 *db, void *arg, struct err *err)
{
    const struct since *l = arg;
    sqlite3_stmt *st = store_sql(db, l->sql, err);
    int64_t last = l->after;
    int rc;

    if (!st || store_bind(st, err, "i", l->after) < 0)
        return -(int)err->code;
    while ((rc = store_step(st, err)) > 0) {
        if (l->row(l->arg, st)) {
            sqlite3_reset(st);
            break;
        }
        last = sqlite3_column_int64(st, 0);
    }
    if (rc < 0)
        return rc;
    *l->last = last;
    return 0;
}

int store_read_since(struct store *s, const char *sql, int64_t after,
                     int (*row)(void *arg, sqlite3_stmt *st), void *arg, int64_t *out_last,
                     struct err *err)
{
    return store_read(s, read_since, &(struct since){ sql, after, out_last, row, arg }, err);
}

/* ------------------------------------------------------------ the whole file */

struct migration { const char *module; const char *const *schema; };

static int migrate(sqlite3 *db, void *arg, struct err *err)
{
    const struct migration *m = arg;
    sqlite3_stmt *st = store_sql(db, "SELECT version FROM schema WHERE module = ?", err);
    int64_t have = 0, want = 0;

    if (!st || store_bind(st, err, "s", m->module) < 0)
        return -(int)err->code;
    int rc = store_step(st, err);
    if (rc < 0)
        return rc;
    if (rc > 0)
        have = sqlite3_column_int64(st, 0);
    sqlite3_reset(st);
    while (m->schema[want])
        want++;
    if (have > want)
        return err_set(err, ERR_CONFLICT,
                       "the data directory was used by a newer muster (its %s has "
                       "version %lld, this program knows %lld): use that one",
                       m->module, (long long)have, (long long)want);
    for (int64_t v = have; v < want; v++)
        if (exec(db, m->schema[v], err) < 0)
            return err_add(err, "making %s version %lld", m->module, (long long)v + 1);
    if (have == want)
        return 0;
    return store_run(db, err, "INSERT OR REPLACE INTO schema (module, version) VALUES (?, ?)", "si",
                     m->module, want);
}

int store_schema(struct store *s, const char *module, const char *const *schema, struct err *err)
{
    struct migration m = { module, schema };

    /* On a full disk, too: it changes nothing then, unless the program is a newer one. */
    return store_write_last(s, migrate, &m, err);
}

static int sync_and_rename(const char *from, const char *to, struct err *err)
{
    OWN_FD int fd = open(from, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || fsync(fd) < 0 || rename(from, to) < 0)
        return err_set(err, ERR_IO, "cannot write %s: %s", to, strerror(errno));
    return 0;
}

int store_backup(struct store *s, const char *path, struct err *err)
{
    OWN_BUF part = BUF_INIT;
    struct conn *c = reader_of(s, err);
    sqlite3_stmt *st = NULL;

    buf_printf(&part, "%s.part", path);
    if (!c || buf_ok(&part, err) < 0)
        return -(int)err->code;
    unlink(part.data);
    /* It only reads, but its target is a database as well. */
    int rc = exec(c->db, "PRAGMA query_only=0", err);
    if (rc == 0 && sqlite3_prepare_v2(c->db, "VACUUM INTO ?", -1, &st, NULL) != SQLITE_OK)
        rc = say(c->db, err);
    if (rc == 0)
        rc = store_bind(st, err, "s", part.data);
    if (rc == 0)
        rc = store_step(st, err);
    sqlite3_finalize(st);
    exec(c->db, "PRAGMA query_only=1", &(struct err){ 0 });
    if (rc >= 0)
        rc = sync_and_rename(part.data, path, err);
    if (rc < 0)
        unlink(part.data);
    return rc;
}

struct findings {
    void (*each)(void *arg, const char *text);
    void *arg;
};

static int check(sqlite3 *db, void *arg, struct err *err)
{
    const struct findings *f = arg;
    sqlite3_stmt *st = store_sql(db, "PRAGMA integrity_check(1000)", err);
    int rc;

    if (!st)
        return -(int)err->code;
    while ((rc = store_step(st, err)) > 0) {
        const char *found = (const char *)sqlite3_column_text(st, 0);
        OWN_BUF text = BUF_INIT;
        if (found && !strcmp(found, "ok"))
            continue;
        buf_printf(&text, "muster.db: %s", found ? found : "no memory");
        f->each(f->arg, text.data ? text.data : "muster.db is damaged");
    }
    return rc;
}

int store_check(struct store *s, void (*each)(void *arg, const char *text), void *arg,
                struct err *err)
{
    struct findings f = { each, arg };
    struct err why = { 0 };
    int64_t pages;

    if (pages_check(s->path, each, arg, &pages, err) < 0)
        return -(int)err->code;
    if (store_read(s, check, &f, &why) < 0)
        each(arg, why.text);
    return 0;
}

int store_upgrade(const char *dir, struct err *err)
{
    OWN_BUF path = BUF_INIT;

    buf_printf(&path, "%s/muster.db", dir);
    return buf_ok(&path, err) < 0 ? -(int)err->code : pages_upgrade(path.data, err);
}

/* ------------------------------------------------------------ failure points */

static pthread_once_t fault_once = PTHREAD_ONCE_INIT;
static char fault_name[64];             /* "": any */
static long fault_at;                   /* 0: none */
static atomic_long fault_count;

void store_fault(const char *text)
{
    const char *colon = strrchr(text, ':');

    snprintf(fault_name, sizeof fault_name, "%.*s", colon ? (int)(colon - text) : 0, text);
    fault_at = strtol(colon ? colon + 1 : text, NULL, 10);
    fault_count = 0;
}

static void read_fault(void)
{
    const char *text = getenv("MUSTER_STORE_FAULT");

    if (text)
        store_fault(text);
}

void store_point(const char *name)
{
    pthread_once(&fault_once, read_fault);
    if (fault_at <= 0 || (*fault_name && strcmp(fault_name, name)))
        return;
    if (atomic_fetch_add(&fault_count, 1) + 1 == fault_at)
        kill(getpid(), SIGKILL);
}

uint64_t store_commits(const struct store *s)
{
    return s->commits;
}
