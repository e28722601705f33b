/* server/objects_check.c - is all content there, and what it was? */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/crc32c.h"
#include "server/objects_int.h"

struct checking {
    struct server *server;
    void (*each)(void *arg, const char *text);
    void *arg;
    bool has_sums;              /* the database has a table of them */
    int64_t contents, bytes;
};

static void tell(struct checking *c, const char *text)
{
    c->each(c->arg, text);
}

/* ------------------------------------------------------------ one content */

static bool same_sums(const struct buf *made, const char *kept, size_t n)
{
    return !n || (n == made->n && !memcmp(made->data, kept, n));
}

/* Those in the database, of all its parts; none where a muster kept none. */
static int kept_sums(sqlite3 *db, const uint8_t *sha256, struct buf *out, struct err *err)
{
    sqlite3_stmt *st =
        store_sql(db, "SELECT sums FROM content_sums WHERE sha256 = ? ORDER BY part", err);
    int rc;

    if (!st || store_bind(st, err, "b", sha256, (size_t)SHA256_BYTES) < 0)
        return -(int)err->code;
    while ((rc = store_step(st, err)) > 0)
        buf_append(out, sqlite3_column_blob(st, 0), (size_t)sqlite3_column_bytes(st, 0));
    return rc;
}

static int check_file(struct checking *c, sqlite3 *db, const uint8_t *raw, int64_t size,
                      struct err *err)
{
    enum { PIECE = OBJECTS_BLOCK };
    char path[PATH_MAX], sha256[SHA256_HEX], found[SHA256_HEX], piece[PIECE];
    OWN_BUF made = BUF_INIT, kept = BUF_INIT;
    struct sha256 sha;
    int64_t seen = 0;
    ssize_t k = 0;

    sha256_hex(raw, sha256);
    snprintf(path, sizeof path, "%s/blobs/%.2s/%s", c->server->data_dir, sha256, sha256 + 2);
    OWN_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, ERR_IO, "%s cannot be read: %s", path, strerror(errno));
    sha256_start(&sha);
    while ((k = pread(fd, piece, PIECE, seen)) > 0) {
        uint32_t sum = crc32c(piece, (size_t)k);
        sha256_add(&sha, piece, (size_t)k);
        buf_append(&made, &sum, sizeof sum);
        seen += k;
    }
    if (k < 0)
        return err_set(err, ERR_IO, "%s cannot be read: %s", path, strerror(errno));
    if (seen != size)
        return err_set(err, ERR_IO, "%s has %lld bytes, not %lld", path, (long long)seen,
                       (long long)size);
    sha256_finish_hex(&sha, found);
    if (strcmp(found, sha256))
        return err_set(err, ERR_IO, "%s has changed on the disk: its SHA-256 is %s", path, found);
    if (c->has_sums && kept_sums(db, raw, &kept, err) < 0)
        return -(int)err->code;
    if (buf_ok(&made, err) < 0 || !same_sums(&made, kept.data, kept.n))
        return err_set(err, ERR_IO, "the checksums of %s in the database are not its own", path);
    c->bytes += size;
    return 0;
}

/* The objects that it is the content of. */
static void tell_names(struct checking *c, sqlite3 *db, const uint8_t *raw)
{
    struct err ignore = { 0 };
    sqlite3_stmt *st = store_sql(db, "SELECT b.name, o.name FROM objects o JOIN buckets b ON b.id = "
                                 "o.bucket WHERE o.sha256 = ?", &ignore);
    char text[OBJECTS_NAME_MAX + OBJECTS_BUCKET_MAX + 64];

    if (!st || store_bind(st, &ignore, "b", raw, (size_t)SHA256_BYTES) < 0)
        return;
    while (store_step(st, &ignore) > 0) {
        snprintf(text, sizeof text, "  it is the content of gs://%s/%s",
                 (const char *)sqlite3_column_text(st, 0), (const char *)sqlite3_column_text(st, 1));
        tell(c, text);
    }
}

static int check_content(struct checking *c, sqlite3 *db, sqlite3_stmt *st, struct err *err)
{
    uint8_t raw[SHA256_BYTES];
    char sha256[SHA256_HEX], found[SHA256_HEX];
    const int64_t size = sqlite3_column_int64(st, 1);
    struct err why = { 0 };
    int rc = 0;

    if (sqlite3_column_bytes(st, 0) != SHA256_BYTES)
        return err_set(err, ERR_IO, "a content in the database has no SHA-256");
    memcpy(raw, sqlite3_column_blob(st, 0), sizeof raw);
    if (sqlite3_column_type(st, 2) == SQLITE_NULL) {
        rc = check_file(c, db, raw, size, &why);
    } else {
        sha256_hex(raw, sha256);
        sha256_hex_of(sqlite3_column_blob(st, 2), (size_t)sqlite3_column_bytes(st, 2), found);
        if (strcmp(found, sha256))
            rc = err_set(&why, ERR_IO, "content %s in the database is damaged", sha256);
    }
    c->contents++;
    if (rc < 0) {
        tell(c, why.text);
        tell_names(c, db, raw);
    }
    return 0;
}

/* ------------------------------------------------------------ all of them */

static int check_contents(struct checking *c, sqlite3 *db, struct err *err)
{
    sqlite3_stmt *st =
        store_sql(db, "SELECT sha256, size, bytes FROM contents WHERE refs > 0", err);
    int rc;

    if (!st)
        return -(int)err->code;
    while ((rc = store_step(st, err)) > 0)
        if (check_content(c, db, st, err) < 0)
            tell(c, err->text);
    return rc;
}

static int check_counts(struct checking *c, sqlite3 *db, struct err *err)
{
    sqlite3_stmt *st = store_sql(db, "SELECT o.name, c.refs, count(*) FROM objects o LEFT JOIN "
                                 "contents c ON c.sha256 = o.sha256 GROUP BY o.sha256 HAVING "
                                 "c.refs IS NOT count(*)", err);
    char text[OBJECTS_NAME_MAX + 128];
    int rc;

    if (!st)
        return -(int)err->code;
    while ((rc = store_step(st, err)) > 0) {
        snprintf(text, sizeof text, "the content of object \"%s\" is named %lld times and counted "
                 "%lld times", (const char *)sqlite3_column_text(st, 0),
                 (long long)sqlite3_column_int64(st, 2), (long long)sqlite3_column_int64(st, 1));
        tell(c, text);
    }
    return rc;
}

static int has_table(sqlite3 *db, const char *name, struct err *err)
{
    sqlite3_stmt *st = store_sql(db, "SELECT 1 FROM sqlite_master WHERE name = ?", err);
    int rc = st && store_bind(st, err, "s", name) == 0 ? store_step(st, err) : -(int)err->code;

    if (rc > 0)
        sqlite3_reset(st);
    return rc;
}

static int check(sqlite3 *db, void *arg, struct err *err)
{
    struct checking *c = arg;
    int rc = has_table(db, "contents", err);

    if (rc <= 0)
        return rc;              /* none was ever made */
    c->has_sums = has_table(db, "content_sums", err) > 0;
    struct err why = { 0 };
    if (check_contents(c, db, &why) < 0)
        tell(c, why.text);
    if (check_counts(c, db, &why) < 0)
        tell(c, why.text);
    return 0;
}

int objects_check(struct server *s, void (*each)(void *arg, const char *text), void *arg,
                  int64_t *out_contents, int64_t *out_bytes, struct err *err)
{
    struct checking c = { .server = s, .each = each, .arg = arg };

    if (store_read(s->store, check, &c, err) < 0)
        return -(int)err->code;
    *out_contents = c.contents;
    *out_bytes = c.bytes;
    return 0;
}
