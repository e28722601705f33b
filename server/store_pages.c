/* server/store_pages.c - a checksum in each page of muster.db, and of its write-ahead log */
#include "server/store_pages.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/log.h"
#include "base/own.h"

/* SQLite's file format, sections 1.3 and 4. */
enum { RESERVE_AT = 20, APPLICATION_AT = 68, LOG_HEAD = 32, FRAME_HEAD = 24,
       FRAME = FRAME_HEAD + PAGES_SIZE };

enum kind { DATABASE, LOG };

struct synced {                 /* of a log: what muster.db-mark holds */
    uint32_t salt[2], frames, sum[2];
};

struct file {
    sqlite3_file base;          /* first: SQLite's own view of it */
    enum kind kind;
    bool known, sums;           /* DATABASE: whether its pages have checksums, once that is known */
    struct file *database;      /* LOG: whose it is */
    int64_t head_at;            /* LOG: `head` waits for its page; -1: none does */
    uint8_t head[FRAME_HEAD];
    bool pending;               /* LOG: `last` is not in the mark yet */
    struct synced last;
    int mark;                   /* LOG: -1: not open */
    char path[512];             /* LOG */
    sqlite3_file real[];
};

static sqlite3_vfs layer, *below;
static _Thread_local char damage[256];

const char *pages_damage(void)
{
    return damage;
}

static uint32_t big_32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static uint32_t page_sum(int64_t page, const uint8_t *bytes)
{
    const uint32_t number = (uint32_t)page;

    return crc32c_add(crc32c(&number, sizeof number), bytes, PAGES_SIZE - PAGES_RESERVE);
}

static bool has_sums(const uint8_t *first_page)
{
    return first_page[RESERVE_AT] == PAGES_RESERVE ||
           big_32(first_page + APPLICATION_AT) == PAGES_APPLICATION;
}

static bool page_is_right(int64_t page, const uint8_t *bytes)
{
    uint32_t said;

    memcpy(&said, bytes + PAGES_SIZE - PAGES_RESERVE, sizeof said);
    return said == page_sum(page, bytes);
}

static int damaged(const char *what, int64_t number)
{
    static _Atomic int64_t told;

    snprintf(damage, sizeof damage,
             "%s %lld of muster.db has changed on the disk: restore a backup (muster serve "
             "--check lists all damage)", what, (long long)number);
    if (atomic_exchange(&told, number + 1) != number + 1)       /* once, not for each reader */
        log_event(LEVEL_ERROR, "store.damaged", "{s:s}", "error", damage);
    return SQLITE_IOERR_DATA;
}

/* ------------------------------------------------------------ pages of the database */

static int read_page(struct file *f, uint8_t *out, int64_t page)
{
    int rc = f->real->pMethods->xRead(f->real, out, PAGES_SIZE, (page - 1) * PAGES_SIZE);

    if (rc != SQLITE_OK)
        return rc;
    if (page == 1) {
        f->sums = has_sums(out);
        f->known = true;
    }
    return !f->sums || page_is_right(page, out) ? SQLITE_OK : damaged("page", page);
}

static int read_database(struct file *f, void *out, int n, int64_t at)
{
    uint8_t first[PAGES_SIZE];

    if (n == PAGES_SIZE && at % PAGES_SIZE == 0)
        return read_page(f, out, at / PAGES_SIZE + 1);
    if (at + n > PAGES_SIZE)
        return f->known && f->sums ? damaged("page", at / PAGES_SIZE + 1)
                                   : f->real->pMethods->xRead(f->real, out, n, at);
    /* Fields of the head: only of a page that is right as a whole. */
    int rc = read_page(f, first, 1);
    if (rc == SQLITE_IOERR_SHORT_READ)
        return f->real->pMethods->xRead(f->real, out, n, at);
    if (rc == SQLITE_OK)
        memcpy(out, first + at, (size_t)n);
    return rc;
}

static void put_sum(uint8_t *page, int64_t number)
{
    uint32_t sum = page_sum(number, page);

    memcpy(page + PAGES_SIZE - PAGES_RESERVE, &sum, sizeof sum);
}

static int write_database(struct file *f, const void *bytes, int n, int64_t at)
{
    uint8_t page[PAGES_SIZE];

    if (n != PAGES_SIZE || at % PAGES_SIZE)
        return f->real->pMethods->xWrite(f->real, bytes, n, at);
    if (at == 0)
        f->sums = has_sums(bytes);
    else if (!f->known)
        f->sums = true;         /* a copy in the making: its first page may come last */
    f->known = true;
    if (!f->sums)
        return f->real->pMethods->xWrite(f->real, bytes, n, at);
    memcpy(page, bytes, PAGES_SIZE - PAGES_RESERVE);
    put_sum(page, at / PAGES_SIZE + 1);
    return f->real->pMethods->xWrite(f->real, page, n, at);
}

/* ------------------------------------------------------------ frames of the log */

/* SQLite's sum of 32-bit words, two at a time, in the order of bytes that the log's magic names. */
static void log_sum(const uint8_t *p, size_t n, bool big, uint32_t sum[2])
{
    for (; n; n -= 8, p += 8) {
        uint32_t a, b;
        memcpy(&a, p, 4);
        memcpy(&b, p + 4, 4);
        if (big != (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__)) {
            a = __builtin_bswap32(a);
            b = __builtin_bswap32(b);
        }
        sum[0] += a + sum[1];
        sum[1] += b + sum[0];
    }
}

/* `before`: where the sum of what comes before the frame is. */
static void frame_sum(const uint8_t *head, const uint8_t *page, const uint8_t *before, bool big,
                      uint32_t out[2])
{
    out[0] = big_32(before);
    out[1] = big_32(before + 4);
    log_sum(head, 8, big, out);
    log_sum(page, PAGES_SIZE, big, out);
}

static bool frame_is_right(const uint8_t *head, const uint8_t *page, const uint8_t *before,
                           bool big)
{
    uint32_t sum[2];

    frame_sum(head, page, before, big, sum);
    return sum[0] == big_32(head + 16) && sum[1] == big_32(head + 20);
}

/* The sum of what comes before the frame at `at`, and the order of bytes in sums. */
static int read_before(struct file *f, int64_t at, uint8_t before[8], bool *big)
{
    const sqlite3_io_methods *m = f->real->pMethods;
    uint8_t magic[4];
    int rc = m->xRead(f->real, magic, sizeof magic, 0);

    *big = magic[3] & 1;
    return rc != SQLITE_OK ? rc
        : m->xRead(f->real, before, 8, at == LOG_HEAD ? 24 : at - FRAME + 16);
}

static int read_log(struct file *f, void *out, int n, int64_t at)
{
    uint8_t head[FRAME_HEAD], before[8];
    const sqlite3_io_methods *m = f->real->pMethods;
    int64_t frame = (at - LOG_HEAD - FRAME_HEAD) / FRAME;
    int rc = m->xRead(f->real, out, n, at);
    bool big;

    /* All else is the log's recovery, which compares by itself. */
    if (rc != SQLITE_OK || n != PAGES_SIZE || at != LOG_HEAD + frame * FRAME + FRAME_HEAD)
        return rc;
    if ((rc = m->xRead(f->real, head, FRAME_HEAD, at - FRAME_HEAD)) != SQLITE_OK ||
        (rc = read_before(f, at - FRAME_HEAD, before, &big)) != SQLITE_OK)
        return rc;
    return frame_is_right(head, out, before, big)
        ? SQLITE_OK : damaged("frame of the write-ahead log", frame);
}

static void set_big_32(uint8_t *p, uint32_t v)
{
    for (int i = 3; i >= 0; i--, v >>= 8)
        p[i] = (uint8_t)v;
}

/* The page gets its checksum here already, so that whoever empties the log into the database (the
 * sqlite3 of the system, after a server was killed) writes it there. The sum of the frame, which SQLite
 * has made of the page without it, is made anew. */
static int write_frame(struct file *f, const void *bytes)
{
    uint8_t frame[FRAME], before[8];
    uint32_t sum[2];
    bool big;
    int rc = read_before(f, f->head_at, before, &big);

    if (rc != SQLITE_OK)
        return rc;
    memcpy(frame, f->head, FRAME_HEAD);
    memcpy(frame + FRAME_HEAD, bytes, PAGES_SIZE);
    if (f->database->sums)
        put_sum(frame + FRAME_HEAD, big_32(f->head));
    frame_sum(frame, frame + FRAME_HEAD, before, big, sum);
    set_big_32(frame + 16, sum[0]);
    set_big_32(frame + 20, sum[1]);
    rc = f->real->pMethods->xWrite(f->real, frame, FRAME, f->head_at);
    if (rc == SQLITE_OK && big_32(frame + 4)) {         /* the last of a transaction */
        f->last = (struct synced){ { big_32(frame + 8), big_32(frame + 12) },
                                   (uint32_t)((f->head_at - LOG_HEAD) / FRAME + 1),
                                   { sum[0], sum[1] } };
        f->pending = true;
    }
    f->head_at = -1;
    return rc;
}

/* SQLite writes the head of a frame, then its page. */
static int write_log(struct file *f, const void *bytes, int n, int64_t at)
{
    const uint8_t *p = bytes;

    if (n == PAGES_SIZE && f->head_at >= 0 && at == f->head_at + FRAME_HEAD)
        return write_frame(f, bytes);
    f->head_at = -1;
    if (n == FRAME_HEAD) {
        memcpy(f->head, bytes, FRAME_HEAD);
        f->head_at = at;
        return SQLITE_OK;
    }
    int rc = f->real->pMethods->xWrite(f->real, bytes, n, at);
    if (rc == SQLITE_OK && n == LOG_HEAD && at == 0) {
        f->last = (struct synced){ { big_32(p + 16), big_32(p + 20) }, 0, { 0 } };
        f->pending = true;
    }
    return rc;
}

/* ------------------------------------------------------------ muster.db-mark */

struct mark {
    char magic[8];
    struct synced synced;
    uint32_t crc;
};
static const char mark_magic[8] = { 'm', 's', 't', 'r', 'w', 'a', 'l', '1' };

static void mark_path(const char *log, char out[512])
{
    snprintf(out, 512, "%.*s-mark", (int)(strlen(log) - strlen("-wal")), log);
}

static int mark_open(const char *log)
{
    char path[512];

    mark_path(log, path);
    return open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
}

/* Of a full disk there may be no mark, or an old one; the database goes on. */
static void mark_write(int fd, const struct synced *synced)
{
    struct mark m = { .synced = *synced };

    memcpy(m.magic, mark_magic, sizeof m.magic);
    m.crc = crc32c(&m, offsetof(struct mark, crc));
    if (fd < 0 || pwrite(fd, &m, sizeof m, 0) != (ssize_t)sizeof m)
        return;
}

static bool mark_read(const char *log, struct synced *out)
{
    char path[512];
    struct mark m;

    mark_path(log, path);
    OWN_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || pread(fd, &m, sizeof m, 0) != (ssize_t)sizeof m ||
        memcmp(m.magic, mark_magic, sizeof m.magic) || m.crc != crc32c(&m, offsetof(struct mark, crc)))
        return false;
    *out = m.synced;
    return true;
}

static void mark_last(struct file *f)
{
    if (!f->pending)
        return;
    if (f->mark < 0)
        f->mark = mark_open(f->path);
    mark_write(f->mark, &f->last);
    f->pending = false;
}

/* ------------------------------------------------------------ the file, as SQLite calls it */

static int file_close(sqlite3_file *base)
{
    struct file *f = (struct file *)base;

    if (f->mark >= 0)
        close(f->mark);
    return f->real->pMethods->xClose(f->real);
}

static int file_read(sqlite3_file *base, void *out, int n, sqlite3_int64 at)
{
    struct file *f = (struct file *)base;

    return f->kind == LOG ? read_log(f, out, n, at) : read_database(f, out, n, at);
}

static int file_write(sqlite3_file *base, const void *bytes, int n, sqlite3_int64 at)
{
    struct file *f = (struct file *)base;

    return f->kind == LOG ? write_log(f, bytes, n, at) : write_database(f, bytes, n, at);
}

static int file_truncate(sqlite3_file *base, sqlite3_int64 size)
{
    struct file *f = (struct file *)base;
    int rc = f->real->pMethods->xTruncate(f->real, size);

    if (rc == SQLITE_OK && f->kind == LOG && size == 0) {
        f->last = (struct synced){ .frames = 0 };
        f->pending = true;
        mark_last(f);
    }
    return rc;
}

static int file_sync(sqlite3_file *base, int flags)
{
    struct file *f = (struct file *)base;
    int rc = f->real->pMethods->xSync(f->real, flags);

    if (rc == SQLITE_OK)
        mark_last(f);
    return rc;
}

#define REAL(base) ((struct file *)(base))->real
#define CALL(base, method, ...) REAL(base)->pMethods->method(REAL(base), ##__VA_ARGS__)

static int file_size(sqlite3_file *base, sqlite3_int64 *out)
{
    return CALL(base, xFileSize, out);
}

static int file_lock(sqlite3_file *base, int lock)
{
    return CALL(base, xLock, lock);
}

static int file_unlock(sqlite3_file *base, int lock)
{
    return CALL(base, xUnlock, lock);
}

static int file_reserved(sqlite3_file *base, int *out)
{
    return CALL(base, xCheckReservedLock, out);
}

static int file_control(sqlite3_file *base, int op, void *arg)
{
    return CALL(base, xFileControl, op, arg);
}

static int file_sector(sqlite3_file *base)
{
    return CALL(base, xSectorSize);
}

/* As SQLite takes it to be anyway: frames are not repeated to fill a sector, nor written in pieces. */
static int file_traits(sqlite3_file *base)
{
    return CALL(base, xDeviceCharacteristics) | SQLITE_IOCAP_POWERSAFE_OVERWRITE;
}

static int file_map(sqlite3_file *base, int page, int size, int extend, void volatile **out)
{
    return CALL(base, xShmMap, page, size, extend, out);
}

static int file_shared_lock(sqlite3_file *base, int offset, int n, int flags)
{
    return CALL(base, xShmLock, offset, n, flags);
}

static void file_barrier(sqlite3_file *base)
{
    CALL(base, xShmBarrier);
}

static int file_unmap(sqlite3_file *base, int remove)
{
    return CALL(base, xShmUnmap, remove);
}

/* Version 2: pages are read, never mapped into memory, where nobody would compare them. */
static const sqlite3_io_methods methods = {
    2, file_close, file_read, file_write, file_truncate, file_sync, file_size, file_lock,
    file_unlock, file_reserved, file_control, file_sector, file_traits, file_map,
    file_shared_lock, file_barrier, file_unmap, NULL, NULL
};

/* ------------------------------------------------------------ the layer */

static int layer_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *base, int flags,
                      int *out_flags)
{
    struct file *f = (struct file *)base;

    (void)vfs;
    if (!(flags & (SQLITE_OPEN_MAIN_DB | SQLITE_OPEN_WAL)))
        return below->xOpen(below, name, base, flags, out_flags);
    *f = (struct file){ .kind = flags & SQLITE_OPEN_WAL ? LOG : DATABASE, .mark = -1,
                        .head_at = -1 };
    if (name)
        snprintf(f->path, sizeof f->path, "%s", name);
    if (f->kind == LOG)
        f->database = (struct file *)sqlite3_database_file_object(name);
    int rc = below->xOpen(below, name, f->real, flags, out_flags);
    base->pMethods = rc == SQLITE_OK ? &methods : NULL;
    return rc;
}

/* The last connection has emptied the log into the database. */
static int layer_delete(sqlite3_vfs *vfs, const char *name, int sync)
{
    size_t n = strlen(name);
    int rc = below->xDelete(below, name, sync);

    (void)vfs;
    if (rc == SQLITE_OK && n > 4 && !strcmp(name + n - 4, "-wal")) {
        OWN_FD int fd = mark_open(name);
        mark_write(fd, &(struct synced){ .frames = 0 });
    }
    return rc;
}

static void make_layer(void)
{
    sqlite3_initialize();
    below = sqlite3_vfs_find(NULL);
    if (!below)
        return;
    layer = *below;             /* with pAppData: the rest of its functions are used as they are */
    layer.zName = "muster";
    layer.pNext = NULL;
    layer.szOsFile = (int)sizeof(struct file) + below->szOsFile;
    layer.xOpen = layer_open;
    layer.xDelete = layer_delete;
    if (sqlite3_vfs_register(&layer, 0) != SQLITE_OK)
        below = NULL;
}

const char *pages_vfs(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, make_layer);
    return below ? layer.zName : NULL;
}

void pages_reserve(sqlite3 *db)
{
    int n = PAGES_RESERVE;

    sqlite3_file_control(db, "main", SQLITE_FCNTL_RESERVE_BYTES, &n);
}

/* ------------------------------------------------------------ the whole log */

/* How many frames from the first on are right. */
static int64_t right_frames(int fd, const uint8_t head[LOG_HEAD], int64_t most)
{
    uint8_t frame[FRAME], before[8];
    int64_t n = 0;

    memcpy(before, head + 24, 8);
    for (; n < most; n++) {
        if (pread(fd, frame, sizeof frame, LOG_HEAD + n * FRAME) != (ssize_t)sizeof frame ||
            memcmp(frame + 8, head + 16, 8) ||
            !frame_is_right(frame, frame + FRAME_HEAD, before, head[3] & 1))
            break;
        memcpy(before, frame + 16, 8);
    }
    return n;
}

static int log_damaged(const char *log, int64_t right, uint32_t all, struct err *err)
{
    return err_set(err, ERR_IO, "%s is damaged: of the %u pages that were committed to it only the "
                   "first %lld can be read. Restore a backup (or, to go on without what was "
                   "committed last, move it and %.*s-mark away)", log, all, (long long)right,
                   (int)(strlen(log) - 4), log);
}

int pages_check_log(const char *path, struct err *err)
{
    char log[512];
    uint8_t head[LOG_HEAD];
    struct synced synced;

    snprintf(log, sizeof log, "%.500s-wal", path);
    /* First the mark: a server that runs only adds to the log behind it, or begins it anew. */
    for (int tries = 0; tries < 3; tries++) {
        if (!mark_read(log, &synced) || !synced.frames)
            return 0;
        OWN_FD int fd = open(log, O_RDONLY | O_CLOEXEC);
        if (fd < 0 && errno != ENOENT)
            return err_set(err, ERR_IO, "cannot read %s: %s", log, strerror(errno));
        ssize_t n = fd < 0 ? 0 : pread(fd, head, sizeof head, 0);
        if (n == 0)
            return 0;           /* another program has emptied it into the database */
        uint32_t sum[2] = { 0, 0 };
        log_sum(head, n == LOG_HEAD ? 24 : 0, head[3] & 1, sum);
        bool whole = n == LOG_HEAD && sum[0] == big_32(head + 24) && sum[1] == big_32(head + 28);
        bool same = whole && big_32(head + 16) == synced.salt[0] &&
                    big_32(head + 20) == synced.salt[1];
        if (whole && !same)
            return 0;           /* begun anew, which it is when all of it is in the database */
        int64_t right = same ? right_frames(fd, head, synced.frames) : 0;
        if (right == synced.frames)
            return 0;
        if (tries == 2)
            return log_damaged(log, right, synced.frames, err);
        usleep(20000);          /* a server that ends may have removed it this moment */
    }
    return 0;
}

/* ------------------------------------------------------------ the whole database */

static bool all_zero(const uint8_t *page)
{
    return !page[0] && !memcmp(page, page + 1, PAGES_SIZE - 1);
}

/* Of a page that a server writes at this moment a part may be old. */
static bool look_at_page(int fd, int64_t page)
{
    uint8_t bytes[PAGES_SIZE];

    for (int tries = 0; tries < 3; tries++) {
        ssize_t n = pread(fd, bytes, sizeof bytes, (page - 1) * PAGES_SIZE);
        /* Pages that were given back before they were ever written are holes. */
        if (n == PAGES_SIZE && (page_is_right(page, bytes) || all_zero(bytes)))
            return true;
        usleep(1000);
    }
    return false;
}

int pages_check(const char *path, void (*each)(void *arg, const char *text), void *arg,
                int64_t *out_pages, struct err *err)
{
    OWN_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    uint8_t first[PAGES_SIZE];
    struct stat st;
    char text[640];

    if (fd < 0 || fstat(fd, &st) < 0)
        return err_set(err, ERR_IO, "cannot read %s: %s", path, strerror(errno));
    *out_pages = 0;
    if (pread(fd, first, sizeof first, 0) != (ssize_t)sizeof first || !has_sums(first))
        return 0;
    for (int64_t page = 1; page <= st.st_size / PAGES_SIZE; page++)
        if (!look_at_page(fd, page)) {
            snprintf(text, sizeof text, "%.500s: page %lld has changed on the disk", path,
                     (long long)page);
            each(arg, text);
        }
    *out_pages = st.st_size / PAGES_SIZE;
    return 0;
}

/* ------------------------------------------------------------ a database from before */

static int open_and_run(const char *path, const char *sql, struct err *err)
{
    sqlite3 *db = NULL;
    int rc = 0;

    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, pages_vfs()) == SQLITE_OK)
        pages_reserve(db);
    else
        rc = -1;
    if (rc < 0 || sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        rc = err_set(err, ERR_IO, "%s: %s", path, db ? sqlite3_errmsg(db) : "no memory");
    sqlite3_close(db);
    return rc;
}

static int copy_database(const char *path, const char *part, struct err *err)
{
    char sql[640];

    snprintf(sql, sizeof sql, "PRAGMA wal_checkpoint(TRUNCATE); VACUUM INTO '%.500s'", part);
    if (open_and_run(path, sql, err) < 0)
        return -(int)err->code;
    snprintf(sql, sizeof sql, "PRAGMA application_id=%d", PAGES_APPLICATION);
    return open_and_run(part, sql, err);
}

int pages_upgrade(const char *path, struct err *err)
{
    OWN_FD int old = open(path, O_RDONLY | O_CLOEXEC);
    uint8_t first[100];
    char part[512], log[512];
    struct stat st;

    if (old < 0 || pread(old, first, sizeof first, 0) != (ssize_t)sizeof first || has_sums(first))
        return 0;
    snprintf(part, sizeof part, "%.500s.part", path);
    snprintf(log, sizeof log, "%.500s-wal", path);
    if (strchr(part, '\''))
        return err_set(err, ERR_INVALID, "%s: a path with a ' in it", path);
    unlink(part);
    if (copy_database(path, part, err) < 0) {
        unlink(part);
        return -(int)err->code;
    }
    OWN_FD int new = open(part, O_RDONLY | O_CLOEXEC);
    /* Somebody else has it open: the log is still in use. The next start is soon enough. */
    if (stat(log, &st) == 0 && st.st_size > 0) {
        unlink(part);
        return 0;
    }
    if (new < 0 || fsync(new) < 0 || rename(part, path) < 0) {
        err_set(err, ERR_IO, "cannot write %s: %s", part, strerror(errno));
        unlink(part);
        return -(int)err->code;
    }
    return 1;
}
