/* server/store_pages.h - a checksum in each page of muster.db, and of its write-ahead log
 *
 * SQLite trusts what it reads: of a byte that changed on the disk it notices nothing. So the
 * database is opened through a layer of our own between SQLite and the file (a VFS):
 *   1. the last 4 bytes of each page are the CRC-32C of the page's number and the bytes before
 *      them; they are written with the page and compared whenever the page is read;
 *   2. a page that is read from the write-ahead log is compared with the checksum of its frame,
 *      which SQLite itself looks at only after a crash. It has its own checksum there, too;
 *   3. muster.db-mark says how far the log was synced, for SQLite takes a damaged frame as the end
 *      of the log and forgets what was committed behind it. It is 32 bytes, written after each
 *      sync of the log without one of its own: after a power cut it may be behind, never ahead.
 * Another program may read the database (sqlite3 muster.db). What it writes has no checksums, and is
 * refused: to change something by hand, make a new file (.dump), which has none and gets them.
 *
 * A page that is not what was written is SQLITE_IOERR_DATA: the statement fails, nothing is answered.
 *
 * A database without checksums (of a muster before they were) is read as it is; pages_upgrade
 * makes one with checksums of it. Which of the two a file is, its first page says twice: by
 * the bytes it reserves and by its application id.
 *
 * Threads: any.
 */
#ifndef MUSTER_SERVER_STORE_PAGES_H
#define MUSTER_SERVER_STORE_PAGES_H

#include <sqlite3.h>
#include <stdint.h>

#include "base/err.h"

enum { PAGES_SIZE = 4096, PAGES_RESERVE = 4, PAGES_APPLICATION = 0x6d737472 };

/* The name of the VFS; made by the first call. NULL: SQLite has no memory. */
const char *pages_vfs(void);

/* What the last SQLITE_IOERR_DATA of this thread was about: a sentence. */
const char *pages_damage(void);

/* For a connection that was just opened: new databases and copies of this one get checksums. */
void pages_reserve(sqlite3 *db);

/* ERR_IO where the log does not hold what was committed. Before the database is opened, or beside
 * a process that uses it. */
int pages_check_log(const char *path, struct err *err);

/* Calls `each` for every page of the file that is not what was written; it goes on to the end.
 * *out_pages: how many there are; 0: the file has no checksums. */
int pages_check(const char *path, void (*each)(void *arg, const char *text), void *arg,
                int64_t *out_pages, struct err *err);

/* A database without checksums gets them: as a copy that takes its place. Nobody else uses it. 1: it
 * was done, 0: there was nothing to do. On failure the old one is there as before. */
int pages_upgrade(const char *path, struct err *err);

#endif
