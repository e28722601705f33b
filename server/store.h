/* server/store.h - SQLite: what was acknowledged is on disk
 *
 * Writes are committed together: of those who ask at the same time one runs everybody's function,
 * each in a savepoint of its own, then one COMMIT (WAL, synchronous=FULL), then everybody is told.
 * Who comes meanwhile is in the next transaction. So there is one writer at a time, no thread waits
 * for another to be woken when it is alone, and a sync of the disk is shared by all who wait.
 * Readers have a connection a thread, and never wait for a writer. Invariants:
 *   1. store_write returned 0: what fn wrote is there after any crash;
 *   2. it returned an error: nothing of what fn wrote is there, now or later;
 *   3. fn of a write runs once, on some thread, with no other write beside it;
 *   4. what is read is what was written: a page that has changed on the disk fails by ERR_IO, "the
 *      database is damaged" (store_pages.h).
 *
 * Threads: any. Inside fn: no store_write (it would wait for itself); store_read inside store_read
 * sees the same snapshot.
 */
#ifndef MUSTER_SERVER_STORE_H
#define MUSTER_SERVER_STORE_H

#include <sqlite3.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/own.h"

struct store;

/* Opens or makes DIR/muster.db; the directory is there. */
int store_open(const char *dir, struct store **out, struct err *err);
void store_free(struct store *s);       /* nobody uses it any more */
OWN_DEFINE(store)

/* Tables are made by each module's own list of statements, run in order, each once: schema[i] leads
 * to version i + 1; NULL-terminated. ERR_CONFLICT when the file is of a newer version. */
int store_schema(struct store *s, const char *module, const char *const *schema, struct err *err);

/* Runs fn in the next transaction; returns when that is durable. fn's failure undoes what fn did,
 * and only that. ERR_IO when the disk is full or fails: nothing was written, a later try may work. */
int store_write(struct store *s, int (*fn)(sqlite3 *db, void *arg, struct err *err), void *arg,
                struct err *err);

/* The same for what must be possible on a full disk: to record how a job ended, to cancel, to delete,
 * to log in. It uses the room that the store keeps from before (server/store_room.h), and may run fn
 * more than once: each time but the last one is undone. */
int store_write_last(struct store *s, int (*fn)(sqlite3 *db, void *arg, struct err *err),
                     void *arg, struct err *err);
/* Gives up a step of the reserve, for a file that has to be written. False: nothing is left. */
bool store_release(struct store *s);
/* Takes the reserve again as far as there is room: after files were removed. Each write does. NULL is
 * fine. */
void store_reclaim(struct store *s);

/* Runs fn on this thread's read connection, in one snapshot. */
int store_read(struct store *s, int (*fn)(sqlite3 *db, void *arg, struct err *err), void *arg,
               struct err *err);

/* Takes the rows past `after`, until `row` returns non-zero: that one and those behind it are for
 * the next time. `sql` is "SELECT seq, ... WHERE seq > ? ORDER BY seq"; *out_last is the seq of the
 * last one that was taken, or `after`. */
int store_read_since(struct store *s, const char *sql, int64_t after,
                     int (*row)(void *arg, sqlite3_stmt *st), void *arg, int64_t *out_last,
                     struct err *err);

/* A prepared statement of this connection, kept for the next time; reset and ready to bind. NULL
 * with err set. `sql` is a literal (compared by address). Only inside fn of a read or write. */
sqlite3_stmt *store_sql(sqlite3 *db, const char *sql, struct err *err);

/* Binds by a format: s text (NULL: null), i int64_t, d double, b (const void *, size_t) blob, n
 * null. What is bound is copied. */
int store_bind(sqlite3_stmt *st, struct err *err, const char *format, ...);

/* 1: a row, 0: done, < 0: failed. ERR_CONFLICT for a broken constraint. */
int store_step(sqlite3_stmt *st, struct err *err);

/* Statement, bind and step to the end. */
int store_run(sqlite3 *db, struct err *err, const char *sql, const char *format, ...);

/* A consistent copy of the database, while it is in use; nothing is at `path` before it is whole. */
int store_backup(struct store *s, const char *path, struct err *err);

/* Calls `each` with a sentence for all that is not sound in the file, to its end. */
int store_check(struct store *s, void (*each)(void *arg, const char *text), void *arg,
                struct err *err);

/* DIR/muster.db of a muster that knew no checksums of pages gets them (store_pages.h). Before it is
 * opened, by its only user. 1: done, 0: nothing to do. */
int store_upgrade(const char *dir, struct err *err);

/* How many transactions reached the disk since it was opened. */
uint64_t store_commits(const struct store *s);

/* A failure point, for tests: around every commit and file operation of the server. The process is
 * killed (SIGKILL) at the N-th one that it passes with MUSTER_STORE_FAULT=N, at the N-th of that
 * name with MUSTER_STORE_FAULT=NAME:N. */
void store_point(const char *name);
void store_fault(const char *text);     /* the same from a test, before the first point or after */

#endif
