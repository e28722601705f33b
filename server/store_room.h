/* server/store_room.h - the room that the store keeps from before, so that a full disk stops nobody
 * from reading, cancelling and deleting
 *
 * What must be written on a full disk is written in place, into blocks that the store already has.
 * They never pass through the pool of free blocks, where another program could take them:
 *   1. SQLite's log (muster.db-wal) has ROOM_LOG bytes of blocks from the start, outlives a clean
 *      stop, and begins again at its first byte after a checkpoint;
 *   2. the file (muster.db) never shrinks, and is as long as all pages of a transaction before that
 *      is committed: a checkpoint needs no new block. Ordinary transactions leave ROOM_PAGES free
 *      in it; only those of store_write_last use these;
 *   3. the index of the log (muster.db-shm), which is made anew at each start, is made in place.
 * DIR/reserve (ROOM_RESERVE bytes) is for all else, such as a transaction that is longer than the log.
 * It is given up in steps, the last one (ROOM_START) only by a start, and is taken again as soon as
 * there is room.
 */
#ifndef MUSTER_SERVER_STORE_ROOM_H
#define MUSTER_SERVER_STORE_ROOM_H

#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/err.h"

/* Some hundred changes of a job each, and the files that go with them. */
enum {
    ROOM_LOG = 1 << 20,
    ROOM_PAGES = 512 << 10,
    ROOM_RESERVE = 1 << 20,
    ROOM_STEP = ROOM_RESERVE / 4,
    ROOM_START = ROOM_STEP,
};

struct store_room {
    pthread_mutex_t lock;
    int fd;                     /* DIR/reserve; -1: there is none */
    _Atomic int held;           /* bytes of it that have blocks */
};

/* Before SQLite is used. */
void store_room_set_up(void);

/* Never fails: what cannot be had now is taken later. */
void store_room_open(struct store_room *r, const char *dir);
void store_room_close(struct store_room *r);

/* As much of the reserve as there is room for. */
void store_room_take(struct store_room *r);
/* Gives a step of it to whoever writes next. False: it would be less than `least` then. */
bool store_room_give(struct store_room *r, int least);

/* For every connection: its file never shrinks, its log is not removed, and the index of its log has
 * all its blocks before it is written (a full disk is an error, not a SIGBUS). */
int store_room_hold(sqlite3 *db, struct err *err);
/* Blocks for the log at `path`, as far as there are any. It may be in use. */
void store_room_log(const char *path);
/* After how many pages the log is emptied into the file. */
int store_room_log_pages(const char *dir);
/* Inside a transaction: true when the file has a block for each of its pages, and, unless it is a
 * `last` one, ROOM_PAGES more. Makes the file longer when it has to. */
bool store_room_pages(sqlite3 *db, sqlite3_int64 pages, bool last);

#endif
