/* server/objects_sums.c - content in files, compared with its checksums as it is read
 *
 * DESIGN. Each block of OBJECTS_BLOCK bytes has a CRC-32C, made as the content came in and kept in
 * content_sums, PART of them in a row, in the order of the file. A reader takes blocks into memory,
 * compares them, and gives out that memory: what was compared is what is sent. So a range costs
 * its blocks, and nothing is believed because it was right a moment ago. Reading a file that is in the
 * page cache costs one copy and some 15 GB/s of CRC.
 *
 * Content without checksums (stored by a muster that kept none) is compared with its SHA-256 as a
 * whole, once, and gets them: by the sweeper's thread at the start, or by its first reader.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/crc32c.h"
#include "base/log.h"
#include "server/objects_int.h"

enum { PART = 512 };            /* 2 kB of a row: 32 MB of content */

/* ------------------------------------------------------------ damage */

static bool damage_known(struct objects *o, const char *sha256, bool add, bool remove)
{
    bool known = false;

    pthread_mutex_lock(&o->damage_lock);
    for (int i = 0; i < o->n_damaged && !known; i++)
        if (!strcmp(o->damaged[i], sha256)) {
            known = true;
            if (remove)
                memcpy(o->damaged[i], o->damaged[--o->n_damaged], SHA256_HEX);
        }
    if (add && !known)
        memcpy(o->damaged[o->n_damaged < DAMAGED_MAX ? o->n_damaged++ : 0], sha256, SHA256_HEX);
    pthread_mutex_unlock(&o->damage_lock);
    return known;
}

void damage_forget(struct objects *o, const char *sha256)
{
    damage_known(o, sha256, false, true);
}

int content_damaged(const struct object *o, const char *what, struct err *err)
{
    return err_set(err, ERR_IO, "the content of gs://%s/%.300s %s: it is damaged (upload it again, "
                   "or restore a backup)", o->bucket, o->name, what);
}

/* ------------------------------------------------------------ rows */

int sums_insert(sqlite3 *db, const uint8_t sha256[SHA256_BYTES], const struct buf *sums,
                struct err *err)
{
    const size_t row = PART * sizeof(uint32_t);

    for (size_t at = 0; at < sums->n; at += row)
        if (store_run(db, err,
                      "INSERT OR REPLACE INTO content_sums (sha256, part, sums) VALUES (?, ?, ?)",
                      "bib", sha256, (size_t)SHA256_BYTES, (int64_t)(at / row), sums->data + at,
                      sums->n - at < row ? sums->n - at : row) < 0)
            return -(int)err->code;
    return 0;
}

int sums_delete(sqlite3 *db, const uint8_t sha256[SHA256_BYTES], struct err *err)
{
    return store_run(db, err, "DELETE FROM content_sums WHERE sha256 = ?", "b", sha256,
                     (size_t)SHA256_BYTES);
}

/* ------------------------------------------------------------ a reader */

struct reader {
    struct objects *objects;
    struct object object;       /* without its document */
    uint8_t sha256[SHA256_BYTES];
    int fd;
    int64_t part;               /* whose checksums are in `sums`; -1: none */
    int n_sums;
    uint32_t sums[PART];
    int64_t at;                 /* of what is in `bytes` */
    size_t n;
    char *bytes;                /* READER_BYTES */
};

static int load_sums(sqlite3 *db, void *arg, struct err *err)
{
    struct reader *r = arg;
    sqlite3_stmt *st =
        store_sql(db, "SELECT sums FROM content_sums WHERE sha256 = ? AND part = ?", err);

    if (!st || store_bind(st, err, "bi", r->sha256, sizeof r->sha256, r->part) < 0)
        return -(int)err->code;
    int rc = store_step(st, err);
    if (rc < 0)
        return rc;
    size_t n = rc ? (size_t)sqlite3_column_bytes(st, 0) : 0;
    r->n_sums = n <= sizeof r->sums ? (int)(n / sizeof *r->sums) : 0;
    if (r->n_sums)
        memcpy(r->sums, sqlite3_column_blob(st, 0), n);
    sqlite3_reset(st);
    return 0;
}

struct named {
    const uint8_t *sha256;
    bool found;
};

static int find_named(sqlite3 *db, void *arg, struct err *err)
{
    struct named *n = arg;
    sqlite3_stmt *st = store_sql(db, "SELECT 1 FROM contents WHERE sha256 = ? AND refs > 0", err);

    if (!st || store_bind(st, err, "b", n->sha256, (size_t)SHA256_BYTES) < 0)
        return -(int)err->code;
    int rc = store_step(st, err);
    sqlite3_reset(st);
    n->found = rc > 0;
    return rc < 0 ? rc : 0;
}

/* A file that is not there: deleted since its row was read, or lost. */
static int no_file(struct reader *r, struct err *err)
{
    struct named n = { r->sha256, false };

    if (store_read(r->objects->server->store, find_named, &n, err) < 0)
        return -(int)err->code;
    if (!n.found)
        return err_set(err, ERR_MISSING, "No such object: %s/%s", r->object.bucket,
                       r->object.name);
    return content_damaged(&r->object, "is not on the disk", err);
}

/* Logged when it is found, not each time that somebody asks. */
static int found_damage(struct reader *r, const char *what, struct err *err)
{
    content_damaged(&r->object, what, err);
    if (!damage_known(r->objects, r->object.sha256, true, false))
        log_event(LEVEL_ERROR, "objects.damaged", "{s:s, s:s, s:s, s:s}", "bucket",
                  r->object.bucket, "object", r->object.name, "sha256", r->object.sha256, "error",
                  err->text);
    return -(int)err->code;
}

static int read_blocks(struct reader *r, int64_t at, size_t n, struct err *err)
{
    for (size_t got = 0; got < n;) {
        ssize_t k = pread(r->fd, r->bytes + got, n - got, at + (int64_t)got);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return found_damage(r, "cannot be read from the disk", err);
        if (k == 0)
            return found_damage(r, "is shorter on the disk than it was", err);
        got += (size_t)k;
    }
    r->at = at;
    r->n = n;
    return 0;
}

struct made {
    struct reader *reader;
    struct buf *sums;
};

static int store_sums(sqlite3 *db, void *arg, struct err *err)
{
    const struct made *m = arg;
    struct named n = { m->reader->sha256, false };

    if (find_named(db, &n, err) < 0)
        return -(int)err->code;
    return n.found ? sums_insert(db, m->reader->sha256, m->sums, err) : 0;
}

/* The whole content, compared with its SHA-256; its checksums are stored for all who come. */
static int make_sums(struct reader *r, struct err *err)
{
    struct digests d = { .n = 0 };
    struct object found = { .size = 0 };
    OWN_BUF sums = BUF_INIT;
    int rc = 0;

    digests_start(&d);
    for (int64_t at = 0, left; (left = r->object.size - at) > 0 && rc == 0; at += (int64_t)r->n) {
        rc = read_blocks(r, at, left < READER_BYTES ? (size_t)left : READER_BYTES, err);
        if (rc == 0)
            digests_add(&r->objects->helper, &d, r->bytes, r->n);
    }
    if (rc == 0) {
        digests_finish(&d, &found);
        rc = strcmp(found.sha256, r->object.sha256)
            ? found_damage(r, "has changed on the disk", err) : digests_blocks(&d, &sums, err);
    }
    digests_done(&d);
    r->n = 0;
    if (rc < 0)
        return rc;
    return store_write(r->objects->server->store, store_sums, &(struct made){ r, &sums }, err);
}

static int need_part(struct reader *r, int64_t part, struct err *err)
{
    if (r->part == part)
        return 0;
    r->part = part;
    int rc = store_read(r->objects->server->store, load_sums, r, err);
    if (rc == 0 && !r->n_sums && (rc = make_sums(r, err)) == 0) {
        r->part = part;
        rc = store_read(r->objects->server->store, load_sums, r, err);
    }
    if (rc < 0)
        r->part = -1;
    return rc;
}

long reader_at(struct reader *r, int64_t at, const char **out, struct err *err)
{
    if (at < r->at || at >= r->at + (int64_t)r->n) {
        int64_t first = at / OBJECTS_BLOCK * OBJECTS_BLOCK, left = r->object.size - first;
        int64_t block = first / OBJECTS_BLOCK, room = (PART - block % PART) * OBJECTS_BLOCK;
        size_t n = left < READER_BYTES ? (size_t)left : READER_BYTES;
        if ((int64_t)n > room)
            n = (size_t)room;
        r->n = 0;
        if (need_part(r, block / PART, err) < 0 || read_blocks(r, first, n, err) < 0)
            return -(int)err->code;
        for (size_t i = 0; i < n; i += OBJECTS_BLOCK, block++) {
            size_t k = n - i < OBJECTS_BLOCK ? n - i : OBJECTS_BLOCK;
            if (block % PART >= r->n_sums ||
                crc32c(r->bytes + i, k) != r->sums[block % PART]) {
                r->n = 0;
                return found_damage(r, "has changed on the disk", err);
            }
        }
    }
    *out = r->bytes + (at - r->at);
    return (long)(r->at + (int64_t)r->n - at);
}

int reader_check(struct reader *r, struct err *err)
{
    const char *bytes;
    struct stat st;

    if (fstat(r->fd, &st) < 0 || st.st_size != r->object.size)
        return found_damage(r, "has another size on the disk", err);
    for (int64_t at = 0; at < r->object.size;) {
        long n = reader_at(r, at, &bytes, err);
        if (n < 0)
            return (int)n;
        at += n;
    }
    damage_forget(r->objects, r->object.sha256);
    return 0;
}

int reader_take_fd(struct reader *r)
{
    int fd = r->fd;

    r->fd = -1;
    return fd;
}

void reader_free(struct reader *r)
{
    if (!r)
        return;
    if (r->fd >= 0)
        close(r->fd);
    free(r->bytes);
    free(r);
}

static int reader_new(struct objects *objects, const struct object *o, struct reader **out,
                      struct err *err)
{
    char path[PATH_MAX];
    OWN(reader) r = malloc(sizeof *r);

    if (!r)
        return err_set(err, ERR_NOMEM, "no memory to read an object");
    r->objects = objects;
    r->object = *o;
    r->object.doc = r->object.metadata = NULL;
    r->part = -1;
    r->at = 0;
    r->n = 0;
    hex_bytes(o->sha256, r->sha256);
    r->bytes = malloc(o->size < READER_BYTES ? (size_t)o->size : READER_BYTES);
    blob_path(objects, o->sha256, path);
    r->fd = r->bytes ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (!r->bytes)
        return err_set(err, ERR_NOMEM, "no memory to read an object");
    if (r->fd < 0)
        return errno == ENOENT ? no_file(r, err)
                               : err_set(err, ERR_IO, "opening %s: %s", path, strerror(errno));
    *out = TAKE(r);
    return 0;
}

int objects_content(struct server *s, const struct object *o, struct reader **out,
                    char **out_bytes, struct err *err)
{
    OWN(reader) r = NULL;

    if (o->size <= OBJECTS_SMALL)
        return content_read_small(s, o, out_bytes, err);
    if (reader_new(s->objects, o, &r, err) < 0)
        return -(int)err->code;
    /* After the first finding the answer was broken off: from then on it is known beforehand. */
    if (damage_known(s->objects, o->sha256, false, false) && reader_check(r, err) < 0)
        return -(int)err->code;
    *out = TAKE(r);
    *out_bytes = NULL;
    return 0;
}

int objects_verify(struct server *s, const struct object *o, struct err *err)
{
    OWN_MEM char *bytes = NULL;
    OWN(reader) r = NULL;

    if (objects_content(s, o, &r, &bytes, err) < 0)
        return -(int)err->code;
    return r ? reader_check(r, err) : 0;
}

/* ------------------------------------------------------------ content from before */

enum { AT_ONCE = 64 };

struct bare {
    int n;
    struct object list[AT_ONCE];
    char after[SHA256_BYTES];
};

static int list_bare(sqlite3 *db, void *arg, struct err *err)
{
    struct bare *b = arg;
    sqlite3_stmt *st = store_sql(db,
        "SELECT c.sha256, c.size, k.name, o.name FROM contents c JOIN objects o ON o.sha256 = c.sha256 "
        "JOIN buckets k ON k.id = o.bucket WHERE c.refs > 0 AND c.bytes IS NULL AND c.sha256 > ? AND NOT "
        "EXISTS (SELECT 1 FROM content_sums s WHERE s.sha256 = c.sha256 AND s.part = 0) "
        "GROUP BY c.sha256 ORDER BY c.sha256 LIMIT ?", err);
    int rc;

    if (!st || store_bind(st, err, "bi", b->after, sizeof b->after,
                          (int64_t)AT_ONCE) < 0)
        return -(int)err->code;
    for (b->n = 0; b->n < AT_ONCE && (rc = store_step(st, err)) > 0; b->n++) {
        struct object *o = &b->list[b->n];
        memcpy(b->after, sqlite3_column_blob(st, 0), SHA256_BYTES);
        sha256_hex(sqlite3_column_blob(st, 0), o->sha256);
        o->size = sqlite3_column_int64(st, 1);
        snprintf(o->bucket, sizeof o->bucket, "%s", (const char *)sqlite3_column_text(st, 2));
        snprintf(o->name, sizeof o->name, "%s", (const char *)sqlite3_column_text(st, 3));
    }
    sqlite3_reset(st);
    return 0;
}

static int any_bare(sqlite3 *db, void *arg, struct err *err)
{
    sqlite3_stmt *st = store_sql(db,
        "SELECT 1 FROM contents c WHERE refs > 0 AND bytes IS NULL AND NOT EXISTS (SELECT 1 FROM "
        "content_sums s WHERE s.sha256 = c.sha256 AND s.part = 0) LIMIT 1", err);

    if (!st)
        return -(int)err->code;
    int rc = store_step(st, err);
    sqlite3_reset(st);
    *(bool *)arg = rc > 0;
    return rc < 0 ? rc : 0;
}

void sums_complete(struct objects *o)
{
    struct err err = { 0 };
    bool any = false;

    if (store_read(o->server->store, any_bare, &any, &err) < 0 || !any)
        return;
    OWN_MEM struct bare *b = calloc(1, sizeof *b);
    do {
        if (!b || store_read(o->server->store, list_bare, b, &err) < 0)
            return;
        for (int i = 0; i < b->n && !o->stop; i++) {
            OWN(reader) r = NULL;
            /* What is damaged is logged by the reader, and refused to all who ask. */
            if (reader_new(o, &b->list[i], &r, &err) == 0)
                need_part(r, 0, &err);
        }
    } while (b->n == AT_ONCE && !o->stop);
}
