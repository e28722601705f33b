/* server/store_room.c - the room that the store keeps from before */
#include "server/store_room.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/own.h"

enum { PAGE_BYTES = 4096 };

/* ------------------------------------------------------------ the reserve */

void store_room_open(struct store_room *r, const char *dir)
{
    OWN_BUF path = BUF_INIT;
    struct stat st;

    pthread_mutex_init(&r->lock, NULL);
    buf_printf(&path, "%s/reserve", dir);
    r->fd = path.data ? open(path.data, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    r->held = 0;
    /* A step that was given up is a smaller file: its length is what is held. */
    if (r->fd >= 0 && fstat(r->fd, &st) == 0)
        r->held = st.st_size < ROOM_RESERVE ? (int)st.st_size / ROOM_STEP * ROOM_STEP
                                            : ROOM_RESERVE;
}

void store_room_close(struct store_room *r)
{
    if (r->fd >= 0)
        close(r->fd);
    r->fd = -1;
    pthread_mutex_destroy(&r->lock);
}

/* Under the lock. One that failed may have got some blocks: they go back, so that the length says
 * what is held. */
static bool set_length(struct store_room *r, int n, bool more)
{
    if (r->fd < 0 || (more ? posix_fallocate(r->fd, 0, n) != 0 : ftruncate(r->fd, n) < 0)) {
        if (more && r->fd >= 0)
            (void)!ftruncate(r->fd, r->held);
        return false;
    }
    r->held = n;
    return true;
}

void store_room_take(struct store_room *r)
{
    pthread_mutex_lock(&r->lock);
    for (int n = ROOM_RESERVE; n > r->held && !set_length(r, n, true); n -= ROOM_STEP)
        ;
    pthread_mutex_unlock(&r->lock);
}

bool store_room_give(struct store_room *r, int least)
{
    pthread_mutex_lock(&r->lock);
    const int left = r->held - ROOM_STEP;
    const bool gave = left >= least && set_length(r, left, false);
    pthread_mutex_unlock(&r->lock);
    return gave;
}

/* ------------------------------------------------------------ the file and its log */

/* Those of SQLite itself; the same for each file. */
static int (*cut)(sqlite3_file *f, sqlite3_int64 size);

/* A checkpoint cuts the file off behind its last page: the blocks behind it are to stay. */
static int keep_length(sqlite3_file *f, sqlite3_int64 size)
{
    sqlite3_int64 now;

    return f->pMethods->xFileSize(f, &now) == SQLITE_OK && size < now ? SQLITE_OK : cut(f, size);
}

/* The first connection after a crash cuts the index of the log off at 3 bytes, so that nobody takes
 * what is in it for good. Zeros in its place say the same, and keep its blocks. */
static int cut_or_clear(int fd, off_t size)
{
    static const char zeros[4096];
    struct stat st;
    off_t at = 0;

    if (size != 3 || fstat(fd, &st) < 0 || st.st_size < size || st.st_size % 32768)
        return ftruncate(fd, size);
    while (at < st.st_size && pwrite(fd, zeros, sizeof zeros, at) == (ssize_t)sizeof zeros)
        at += (off_t)sizeof zeros;
    return at == st.st_size ? 0 : ftruncate(fd, size);
}

void store_room_set_up(void)
{
    sqlite3_vfs *vfs = sqlite3_vfs_find(NULL);

    if (vfs && vfs->iVersion >= 3)
        vfs->xSetSystemCall(vfs, "ftruncate", (sqlite3_syscall_ptr)cut_or_clear);
}

static int (*map)(sqlite3_file *f, int region, int size, int extend, void volatile **out);

/* SQLite has a byte written in each page of the index of its log; where blocks are smaller than
 * pages some are still missing then, and the process would be killed (SIGBUS) when it writes there
 * on a full disk. Now they are had, or it is an error like any other. */
static int map_whole(sqlite3_file *f, int region, int size, int extend, void volatile **out)
{
    int rc = map(f, region, size, extend, out);

    if (rc == SQLITE_OK && *out && madvise((void *)*out, (size_t)size, MADV_POPULATE_WRITE) < 0 &&
        errno == EFAULT) {
        *out = NULL;
        rc = SQLITE_IOERR_SHMSIZE;
    }
    return rc;
}

int store_room_hold(sqlite3 *db, struct err *err)
{
    static sqlite3_io_methods methods;
    static _Atomic int made;            /* 0: not yet, 1: somebody does it, 2: done */
    int none = 0, step = ROOM_PAGES, stays = 1;
    sqlite3_file *file = NULL;

    if (sqlite3_file_control(db, "main", SQLITE_FCNTL_FILE_POINTER, &file) != SQLITE_OK ||
        !file || !file->pMethods ||
        sqlite3_file_control(db, "main", SQLITE_FCNTL_CHUNK_SIZE, &step) != SQLITE_OK ||
        sqlite3_file_control(db, "main", SQLITE_FCNTL_PERSIST_WAL, &stays) != SQLITE_OK)
        return err_set(err, ERR_IO, "the database does not keep its room: %s", sqlite3_errmsg(db));
    if (atomic_compare_exchange_strong(&made, &none, 1)) {
        methods = *file->pMethods;
        cut = methods.xTruncate;
        methods.xTruncate = keep_length;
        map = methods.xShmMap;
        methods.xShmMap = map_whole;
        made = 2;
    }
    while (made != 2)
        usleep(100);
    file->pMethods = &methods;
    return 0;
}

void store_room_log(const char *path)
{
    OWN_FD int fd = open(path, O_RDWR | O_CLOEXEC);

    /* Not posix_fallocate: where there is no such call it writes, and SQLite may write there, too.
     * The length stays: that of the log is what SQLite wrote. */
    if (fd >= 0)
        (void)!fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, ROOM_LOG);
}

/* A checkpoint of 4,000 pages (16 MB) takes some 20 ms of one write in a thousand. A small disk is not
 * for the log: it gets a 64th of it. */
int store_room_log_pages(const char *dir)
{
    const int least = ROOM_LOG / PAGE_BYTES, most = 4000;
    struct statvfs fs;

    if (statvfs(dir, &fs) < 0)
        return most;
    const double pages = (double)fs.f_blocks * (double)fs.f_frsize / 64 / PAGE_BYTES;
    return pages < least ? least : pages > most ? most : (int)pages;
}

bool store_room_pages(sqlite3 *db, sqlite3_int64 pages, bool last)
{
    const sqlite3_int64 need = pages * PAGE_BYTES;
    sqlite3_int64 want = need + ROOM_PAGES, now = 0;
    sqlite3_file *file = NULL;

    if (sqlite3_file_control(db, "main", SQLITE_FCNTL_FILE_POINTER, &file) != SQLITE_OK ||
        file->pMethods->xFileSize(file, &now) != SQLITE_OK)
        return false;
    if (now >= want || sqlite3_file_control(db, "main", SQLITE_FCNTL_SIZE_HINT, &want) == SQLITE_OK)
        return true;
    /* One that failed made it longer by what there was. */
    return last && file->pMethods->xFileSize(file, &now) == SQLITE_OK && now >= need;
}
