/* server/objects_sweep.c - space comes back: content that no row names is removed
 *
 * DESIGN. Content without a name is a row with refs = 0, made by the transaction that took the last
 * name away; the sweeper removes row and file. A crash before its commit leaves the row without a
 * file, which nothing names, and which the next upload of the same bytes makes good. It looks for
 * such rows in what is committed: in its own transaction, which others share, a name may have been
 * taken away by one who has not been told yet, and whom a crash would undo. Files that never got a
 * row (a crash between rename and row) are found by walking blobs/, an hour after they were named.
 * A file is only ever removed under pins_lock, when no upload has it pinned and, looked at after
 * that, no row names it.
 */
#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/room.h"
#include "server/objects_int.h"

enum { ORPHAN_S = 3600, SESSION_S = 7 * 86400, BATCH = 500 };

static int named(sqlite3 *db, void *arg, struct err *err)
{
    sqlite3_stmt *st = store_sql(db, "SELECT 1 FROM contents WHERE sha256 = ?", err);

    if (!st || store_bind(st, err, "b", arg, (size_t)SHA256_BYTES) < 0)
        return -(int)err->code;
    int rc = store_step(st, err);
    sqlite3_reset(st);
    return rc == 0 ? err_set(err, ERR_MISSING, "no such content") : rc < 0 ? rc : 0;
}

bool blob_named(struct objects *o, const uint8_t sha256[SHA256_BYTES])
{
    struct err err = { 0 };

    return store_read(o->server->store, named, (void *)sha256, &err) == 0 ||
           err.code != ERR_MISSING;
}

/* ------------------------------------------------------------ room */

/* A submit, a cancel and the end of a job are a few kB each, and SQLite's log some MB before it is
 * taken over. */
enum { KEPT = 16 };

int64_t room_now(const struct objects *o)
{
    OWN_FD int fd = open(o->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return room_left(fd, KEPT);
}

int room_none(struct err *err)
{
    return err_set(err, ERR_IO,
                   "the disk is full (what is left of it is for jobs and their events): "
                   "make room and try again");
}

int room_need(struct objects *o, int64_t n, struct err *err)
{
    if (room_now(o) >= n)
        return 0;
    sessions_reclaim(o, clock_wall(), n);
    return room_now(o) >= n ? 0 : room_none(err);
}

int objects_room(struct server *s, int64_t n, struct err *err)
{
    return room_need(s->objects, n, err);
}

/* ------------------------------------------------------------ rows with refs = 0 */

struct unused {
    struct objects *objects;
    int removed, n;
    uint8_t list[BATCH][SHA256_BYTES];
};

static int remove_one(struct unused *u, sqlite3 *db, const uint8_t *sha256, struct err *err)
{
    struct objects *o = u->objects;
    char path[PATH_MAX], hex[SHA256_HEX];
    int rc = 0;

    sha256_hex(sha256, hex);
    blob_path(o, hex, path);
    pthread_mutex_lock(&o->pins_lock);
    if (blob_pinned(o, sha256)) {
        o->unused = true;
    } else {
        rc = store_run(db, err, "DELETE FROM contents WHERE sha256 = ? AND refs = 0", "b", sha256,
                       (size_t)SHA256_BYTES);
        const bool gone = rc == 0 && sqlite3_changes(db) > 0;
        if (gone && (rc = sums_delete(db, sha256, err)) == 0 && unlink(path) == 0)
            u->removed++;
    }
    pthread_mutex_unlock(&o->pins_lock);
    return rc;
}

static int list_unused(sqlite3 *db, void *arg, struct err *err)
{
    struct unused *u = arg;
    sqlite3_stmt *st = store_sql(db, "SELECT sha256 FROM contents WHERE refs = 0 LIMIT ?", err);
    int rc = 0;

    u->n = 0;
    if (!st || store_bind(st, err, "i", (int64_t)BATCH) < 0)
        return -(int)err->code;
    while (u->n < BATCH && (rc = store_step(st, err)) > 0)
        memcpy(u->list[u->n++], sqlite3_column_blob(st, 0), SHA256_BYTES);
    sqlite3_reset(st);
    return rc < 0 ? rc : 0;
}

static int remove_unused(sqlite3 *db, void *arg, struct err *err)
{
    struct unused *u = arg;
    int rc = 0;

    for (int i = 0; i < u->n && rc == 0; i++)
        rc = remove_one(u, db, u->list[i], err);
    return rc;
}

/* ------------------------------------------------------------ files without a row */

static bool older(const char *path, double before)
{
    struct stat st;

    return lstat(path, &st) == 0 && S_ISREG(st.st_mode) && (double)st.st_ctim.tv_sec < before;
}

static bool is_hex(const char *text, size_t n)
{
    return strlen(text) == n && strspn(text, "0123456789abcdef") == n;
}

static void sweep_orphans(struct objects *o, const char *folder, double before, int *removed)
{
    char path[PATH_MAX], hex[SHA256_HEX];
    uint8_t sha256[SHA256_BYTES];
    struct dirent *e;

    snprintf(path, sizeof path, "%s/blobs/%s", o->dir, folder);
    DIR *dir = opendir(path);
    while (dir && !o->stop && (e = readdir(dir))) {
        if (!is_hex(e->d_name, 62))
            continue;
        snprintf(path, sizeof path, "%s/blobs/%s/%s", o->dir, folder, e->d_name);
        snprintf(hex, sizeof hex, "%s%s", folder, e->d_name);
        hex_bytes(hex, sha256);
        if (!older(path, before))
            continue;
        pthread_mutex_lock(&o->pins_lock);
        if (!blob_pinned(o, sha256) && !blob_named(o, sha256) && unlink(path) == 0)
            ++*removed;
        pthread_mutex_unlock(&o->pins_lock);
    }
    if (dir)
        closedir(dir);
}

static void sweep_uploads(struct objects *o, double before, int *removed)
{
    char path[PATH_MAX];
    struct dirent *e;

    snprintf(path, sizeof path, "%s/uploads", o->dir);
    DIR *dir = opendir(path);
    while (dir && (e = readdir(dir))) {
        snprintf(path, sizeof path, "%s/uploads/%s", o->dir, e->d_name);
        if (!strncmp(e->d_name, "t-", 2) && older(path, before) && unlink(path) == 0)
            ++*removed;
    }
    if (dir)
        closedir(dir);
}

static int sweep_rows(struct objects *o, int *removed, struct err *err)
{
    OWN_MEM struct unused *u = calloc(1, sizeof *u);
    int rc = 0;

    if (!u)
        return err_set(err, ERR_NOMEM, "no memory to sweep");
    u->objects = o;
    o->unused = false;
    do {
        rc = store_read(o->server->store, list_unused, u, err);
        if (rc == 0 && u->n)
            rc = store_write_last(o->server->store, remove_unused, u, err);
    } while (rc == 0 && u->n == BATCH && !o->stop);
    *removed += u->removed;
    store_reclaim(o->server->store);
    return rc;
}

int objects_sweep(struct objects *o, double now, int *out_removed, struct err *err)
{
    int removed = 0;
    int rc = sweep_rows(o, &removed, err);

    for (int i = 0; i < 256 && rc == 0; i++) {
        char folder[3];
        snprintf(folder, sizeof folder, "%02x", i);
        sweep_orphans(o, folder, now - ORPHAN_S, &removed);
    }
    sweep_uploads(o, now - ORPHAN_S, &removed);
    if (rc == 0)
        rc = sessions_sweep(o, now - SESSION_S, &removed, err);
    *out_removed = removed;
    return rc;
}

/* ------------------------------------------------------------ its thread */

static void *sweeper(void *arg)
{
    struct objects *o = arg;
    double next = clock_seconds() + 60;    /* not while the server starts */

    sums_complete(o);
    pthread_mutex_lock(&o->sweep_lock);
    while (!o->stop) {
        struct timespec until = { .tv_sec = (time_t)next + 1 };
        while (!o->stop && !o->unused && clock_seconds() < next)
            pthread_cond_timedwait(&o->sweep_wake, &o->sweep_lock, &until);
        /* Who deletes one thing deletes more: gather for a moment. */
        until.tv_sec = (time_t)clock_seconds() + 1;
        while (!o->stop && clock_seconds() < (double)until.tv_sec)
            pthread_cond_timedwait(&o->sweep_wake, &o->sweep_lock, &until);
        if (o->stop)
            break;
        pthread_mutex_unlock(&o->sweep_lock);
        struct err err = { 0 };
        int removed = 0;
        /* What fails (a full disk) is tried again: by the next delete, or in an hour. */
        if (clock_seconds() < next) {
            sweep_rows(o, &removed, &err);
        } else {
            objects_sweep(o, clock_wall(), &removed, &err);
            next = clock_seconds() + ORPHAN_S;
        }
        pthread_mutex_lock(&o->sweep_lock);
    }
    pthread_mutex_unlock(&o->sweep_lock);
    return NULL;
}

void sweeper_wake(struct objects *o)
{
    if (!o->unused)
        return;
    pthread_mutex_lock(&o->sweep_lock);
    pthread_cond_signal(&o->sweep_wake);
    pthread_mutex_unlock(&o->sweep_lock);
}

int sweeper_start(struct objects *o, struct err *err)
{
    int removed = 0;

    o->unused = true;           /* what a crash left is looked for at once */
    sweep_uploads(o, INFINITY, &removed);       /* nobody writes to those any more */
    if (pthread_create(&o->sweeper, NULL, sweeper, o) != 0)
        return err_set(err, ERR_AGAIN, "no thread for the sweeper of buckets");
    o->sweeper_runs = true;
    return 0;
}

void sweeper_stop(struct objects *o)
{
    if (!o->sweeper_runs)
        return;
    pthread_mutex_lock(&o->sweep_lock);
    o->stop = true;
    pthread_cond_signal(&o->sweep_wake);
    pthread_mutex_unlock(&o->sweep_lock);
    pthread_join(o->sweeper, NULL);
}
