/* server/objects_rows.c - objects as rows: found, made, changed, copied, deleted */
#include <nettle/base64.h>
#include <string.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "server/objects_int.h"
#include "server/quota.h"

/* ------------------------------------------------------------ rows to structs */

void hex_bytes(const char *hex, uint8_t out[SHA256_BYTES])
{
    for (int i = 0; i < SHA256_BYTES; i++) {
        unsigned v = 0;
        for (int k = 0; k < 2; k++) {
            char c = hex[2 * i + k];
            v = v << 4 | (unsigned)(c <= '9' ? c - '0' : c - 'a' + 10);
        }
        out[i] = (uint8_t)v;
    }
}

static void bytes_hex(const uint8_t *bytes, size_t n, char *out)
{
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = "0123456789abcdef"[bytes[i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[bytes[i] & 15];
    }
    out[2 * n] = '\0';
}

void base64_text(const void *bytes, size_t n, char *out)
{
    base64_encode_raw(out, n, bytes);
    out[BASE64_ENCODE_RAW_LENGTH(n)] = '\0';
}

static void crc32c_text(uint32_t crc, char out[9])
{
    const uint8_t big[4] = { (uint8_t)(crc >> 24), (uint8_t)(crc >> 16), (uint8_t)(crc >> 8),
                             (uint8_t)crc };

    base64_text(big, sizeof big, out);
}

void object_done(struct object *o)
{
    json_decref(o->doc);
    o->doc = o->metadata = NULL;
}

static void text_of(sqlite3_stmt *st, int column, char *out, size_t size)
{
    const char *text = (const char *)sqlite3_column_text(st, column);

    snprintf(out, size, "%s", text ? text : "");
}

int object_of_row(sqlite3_stmt *st, const char *bucket, struct object *out, struct err *err)
{
    const char *doc = (const char *)sqlite3_column_text(st, 11);
    const uint8_t *sha256 = sqlite3_column_blob(st, 5), *md5 = sqlite3_column_blob(st, 6);

    if (!sha256 || !md5 || sqlite3_column_bytes(st, 5) != SHA256_BYTES ||
        sqlite3_column_bytes(st, 6) != MD5_DIGEST_SIZE)
        return err_set(err, ERR_IO, "a row of bucket \"%s\" has no checksum", bucket);
    json_t *fields = doc ? json_loads(doc, 0, NULL) : NULL;
    if (doc && !fields)
        return err_set(err, ERR_NOMEM, "no memory for an object's metadata");
    snprintf(out->bucket, sizeof out->bucket, "%s", bucket);
    text_of(st, 0, out->name, sizeof out->name);
    out->generation = sqlite3_column_int64(st, 1);
    out->metageneration = sqlite3_column_int64(st, 2);
    out->size = sqlite3_column_int64(st, 3);
    text_of(st, 4, out->type, sizeof out->type);
    bytes_hex(sha256, SHA256_BYTES, out->sha256);
    base64_text(md5, MD5_DIGEST_SIZE, out->md5);
    crc32c_text((uint32_t)sqlite3_column_int64(st, 7), out->crc32c);
    out->created = sqlite3_column_double(st, 8);
    out->updated = sqlite3_column_double(st, 9);
    out->deleted = sqlite3_column_double(st, 10);
    out->doc = fields;
    out->metadata = json_object_get(fields, "metadata");
    return 0;
}

static int missing(const char *bucket, const char *name, struct err *err)
{
    return err_set(err, ERR_MISSING, "No such object: %s/%s", bucket, name);
}

int object_find(sqlite3 *db, const struct bucket *b, const char *name, int64_t generation,
                struct object *out, struct err *err)
{
    sqlite3_stmt *st = generation
        ? store_sql(db, "SELECT " OBJECT_COLUMNS " FROM objects WHERE bucket = ? AND name = ? AND "
                    "generation = ?", err)
        : store_sql(db, "SELECT " OBJECT_COLUMNS " FROM objects WHERE bucket = ? AND name = ? "
                    "ORDER BY generation DESC LIMIT 1", err);

    if (!st || (generation ? store_bind(st, err, "isi", b->id, name, generation)
                           : store_bind(st, err, "is", b->id, name)) < 0)
        return -(int)err->code;
    int rc = store_step(st, err);
    if (rc < 0)
        return rc;
    if (rc == 0)
        return missing(b->name, name, err);
    struct object o;
    rc = object_of_row(st, b->name, &o, err);
    sqlite3_reset(st);
    if (rc == 0 && !generation && o.deleted > 0) {
        object_done(&o);
        rc = missing(b->name, name, err);
    }
    if (rc == 0)
        *out = o;
    return rc;
}

int when_holds(const struct objects_when *w, const struct object *o, struct err *err)
{
    int64_t generation = o ? o->generation : 0, meta = o ? o->metageneration : 0;
    bool not = (w->not_generation != OBJECTS_ANY && w->not_generation == generation) ||
               (w->not_metageneration != OBJECTS_ANY && w->not_metageneration == meta);

    if (!not && (w->generation == OBJECTS_ANY || w->generation == generation) &&
        (w->metageneration == OBJECTS_ANY || w->metageneration == meta))
        return 0;
    if (w->unmet)
        *w->unmet = not ? 2 : 1;
    return err_set(err, ERR_CONFLICT,
                   "At least one of the pre-conditions you specified did not hold.");
}

/* ------------------------------------------------------------ content that is named */

static int content_release(struct objects *o, sqlite3 *db, const struct object *old,
                           struct err *err)
{
    uint8_t sha256[SHA256_BYTES];

    hex_bytes(old->sha256, sha256);
    if (store_run(db, err, "UPDATE contents SET refs = refs - 1 WHERE sha256 = ?", "b", sha256,
                  sizeof sha256) < 0)
        return -(int)err->code;
    if (old->size <= OBJECTS_SMALL)
        return store_run(db, err, "DELETE FROM contents WHERE sha256 = ? AND refs = 0", "b", sha256,
                         sizeof sha256);
    /* A file goes when the row has gone for good: by the sweeper, after this transaction. */
    o->unused = true;
    return 0;
}

static int content_hold(sqlite3 *db, const struct object *new, const char *bytes,
                        const struct buf *sums, struct err *err)
{
    uint8_t sha256[SHA256_BYTES];
    bool small = new->size <= OBJECTS_SMALL;

    hex_bytes(new->sha256, sha256);
    if (small && !bytes)        /* a copy: its source holds the content */
        return store_run(db, err, "UPDATE contents SET refs = refs + 1 WHERE sha256 = ?", "b",
                         sha256, sizeof sha256);
    if (store_run(db, err,
                  "INSERT INTO contents (sha256, size, refs, bytes) VALUES (?, ?, 1, ?) "
                  "ON CONFLICT (sha256) DO UPDATE SET refs = refs + 1",
                  small ? "bib" : "bin", sha256, sizeof sha256, new->size, bytes,
                  (size_t) new->size) < 0)
        return -(int)err->code;
    return sums ? sums_insert(db, sha256, sums, err) : 0;
}

/* The live one makes way: kept as an old generation, or gone. */
static int row_retire(struct objects *o, sqlite3 *db, const struct bucket *b,
                      const struct object *old, double now, struct err *err)
{
    if (b->versioning)
        return store_run(db, err,
                         "UPDATE objects SET deleted = ? WHERE bucket = ? AND name = ? AND "
                         "generation = ?",
                         "disi", now, b->id, old->name, old->generation);
    if (store_run(db, err, "DELETE FROM objects WHERE bucket = ? AND name = ? AND generation = ?",
                  "isi", b->id, old->name, old->generation) < 0)
        return -(int)err->code;
    return content_release(o, db, old, err);
}

/* Microseconds, as Google's are; never the same twice, also when the clock is set back. */
int64_t generation_next(struct objects *o)
{
    int64_t last = o->generation, now = (int64_t)(clock_wall() * 1e6), next;

    do
        next = now > last ? now : last + 1;
    while (!atomic_compare_exchange_weak(&o->generation, &last, next));
    return next;
}

static int row_write(sqlite3 *db, const struct bucket *b, const struct object *n, struct err *err)
{
    uint8_t sha256[SHA256_BYTES], md5[MD5_DIGEST_SIZE + 3], crc[4 + 3];
    struct base64_decode_ctx ctx;
    size_t got = sizeof md5;
    OWN_MEM char *doc = n->doc ? json_dumps(n->doc, JSON_COMPACT) : NULL;

    if (n->doc && !doc)
        return err_set(err, ERR_NOMEM, "no memory for an object's metadata");
    if (doc && strlen(doc) > OBJECTS_DOC_MAX)
        return err_set(err, ERR_INVALID,
                       "the metadata of \"%.200s\" is %zu bytes long (%d at most)", n->name,
                       strlen(doc), OBJECTS_DOC_MAX);
    hex_bytes(n->sha256, sha256);
    base64_decode_init(&ctx);
    base64_decode_update(&ctx, &got, md5, strlen(n->md5), n->md5);
    base64_decode_init(&ctx);
    got = sizeof crc;
    base64_decode_update(&ctx, &got, crc, strlen(n->crc32c), n->crc32c);
    int64_t crc32c = (int64_t)crc[0] << 24 | (int64_t)crc[1] << 16 | (int64_t)crc[2] << 8 | crc[3];
    return store_run(db, err,
                     "INSERT INTO objects (bucket, " OBJECT_COLUMNS ") VALUES "
                     "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                     doc ? "isiiisbbiddds" : "isiiisbbidddn", b->id, n->name, n->generation,
                     n->metageneration, n->size, n->type, sha256, sizeof sha256, md5,
                     (size_t)MD5_DIGEST_SIZE, crc32c, n->created, n->updated, n->deleted, doc);
}

int object_insert(struct objects *objects, sqlite3 *db, const struct new_row *row, struct err *err)
{
    const struct objects_put *p = row->put;
    struct object *n = row->object, old = { 0 };
    struct bucket b = { 0 };
    struct err none = { 0 };

    if (bucket_find(db, p->project, p->bucket, &b, err) < 0)
        return -(int)err->code;
    int rc = object_find(db, &b, p->name, 0, &old, &none);
    bool there = rc == 0;
    if (rc < 0 && none.code != ERR_MISSING)
        *err = none;
    else
        rc = when_holds(&p->when, there ? &old : NULL, err);
    if (rc == 0 && !row->moves)
        rc = quota_store(objects->server->quota, db, b.project, n->size, err);
    if (rc == 0) {
        n->generation = row->generation;
        if (there && n->generation <= old.generation)   /* the clock was set back over a restart */
            n->generation = old.generation + 1;
        n->metageneration = 1;
        n->created = n->updated = clock_wall();
        n->deleted = 0;
        snprintf(n->bucket, sizeof n->bucket, "%s", b.name);
        snprintf(n->name, sizeof n->name, "%s", p->name);
        rc = content_hold(db, n, row->bytes, row->sums, err);
    }
    if (rc == 0 && there)
        rc = row_retire(objects, db, &b, &old, n->created, err);
    if (rc == 0)
        rc = row_write(db, &b, n, err);
    if (rc == 0 && p->session)
        rc = session_mark_done(db, p->session, n->generation, err);
    object_done(&old);
    bucket_done(&b);
    return rc;
}

int content_load(sqlite3 *db, const struct object *o, char *out, struct err *err)
{
    uint8_t sha256[SHA256_BYTES];
    char found[9];
    sqlite3_stmt *st = store_sql(db, "SELECT bytes FROM contents WHERE sha256 = ?", err);

    hex_bytes(o->sha256, sha256);
    if (!st || store_bind(st, err, "b", sha256, sizeof sha256) < 0)
        return -(int)err->code;
    int rc = store_step(st, err);
    if (rc < 0)
        return rc;
    const bool whole = rc > 0 && sqlite3_column_bytes(st, 0) == o->size;
    if (whole && o->size)
        memcpy(out, sqlite3_column_blob(st, 0), (size_t)o->size);
    sqlite3_reset(st);
    if (!whole)
        return content_damaged(o, "is not in the database", err);
    crc32c_text(crc32c(out, (size_t)o->size), found);
    return strcmp(found, o->crc32c)
        ? content_damaged(o, "does not have its checksum in the database", err) : 0;
}

struct small {
    const struct object *object;
    char *out;
};

static int read_small(sqlite3 *db, void *arg, struct err *err)
{
    struct small *s = arg;

    return content_load(db, s->object, s->out, err);
}

int content_read_small(struct server *s, const struct object *o, char **out_bytes,
                       struct err *err)
{
    OWN_MEM char *bytes = malloc((size_t)o->size + 1);
    struct small small = { o, bytes };

    if (!bytes)
        return err_set(err, ERR_NOMEM, "no memory for %lld bytes", (long long)o->size);
    if (store_read(s->store, read_small, &small, err) < 0)
        return -(int)err->code;
    *out_bytes = TAKE(bytes);
    return 0;
}

/* ------------------------------------------------------------ one object */

struct get {
    const char *project, *bucket, *name;
    int64_t generation;
    const struct objects_when *when;
    struct object out;
};

static int get(sqlite3 *db, void *arg, struct err *err)
{
    struct get *g = arg;
    struct bucket b = { 0 };

    if (bucket_find(db, g->project, g->bucket, &b, err) < 0)
        return -(int)err->code;
    int rc = object_find(db, &b, g->name, g->generation, &g->out, err);
    bucket_done(&b);
    if (rc == 0 && g->when && (rc = when_holds(g->when, &g->out, err)) < 0)
        object_done(&g->out);
    return rc;
}

int objects_get(struct server *s, const char *project, const char *bucket, const char *name,
                int64_t generation, const struct objects_when *when, struct object *out,
                struct err *err)
{
    struct get g = { project, bucket, name, generation, when, { .size = 0 } };

    if (store_read(s->store, get, &g, err) < 0)
        return -(int)err->code;
    *out = g.out;
    return 0;
}

/* ------------------------------------------------------------ changes */

struct change {
    struct objects *objects;
    const char *project, *bucket, *name;
    int64_t generation;
    const struct objects_when *when;
    const json_t *patch;
    bool replace;
    struct object out;
};

int doc_merge(json_t *into, const json_t *patch)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)patch, key, value) {
        json_t *there = json_object_get(into, key);
        int rc = 0;
        if (json_is_null(value))
            json_object_del(into, key);
        else if (json_is_object(value) && json_is_object(there))
            rc = doc_merge(there, value);
        else
            rc = json_object_set_new(into, key, json_deep_copy(value));
        if (rc < 0)
            return -1;
    }
    return 0;
}

void doc_clean(json_t *doc)
{
    const char *key;
    json_t *value;
    void *tmp;

    json_object_foreach_safe(doc, tmp, key, value) {
        if (json_is_null(value))
            json_object_del(doc, key);
        else if (json_is_object(value))
            doc_clean(value);
    }
}

static int apply(struct object *o, const json_t *patch, bool replace, struct err *err)
{
    json_t *doc = replace || !o->doc ? json_object() : json_incref(o->doc);
    json_t *type = NULL;

    if (doc && doc_merge(doc, patch) < 0) {
        json_decref(doc);
        doc = NULL;
    }
    if (!doc)
        return err_set(err, ERR_NOMEM, "no memory for an object's metadata");
    doc_clean(doc);
    type = json_object_get(doc, "contentType");
    if (json_is_string(type))
        snprintf(o->type, sizeof o->type, "%s", json_string_value(type));
    json_object_del(doc, "contentType");
    json_decref(o->doc);
    o->doc = doc;
    o->metadata = json_object_get(doc, "metadata");
    return 0;
}

static int change(sqlite3 *db, void *arg, struct err *err)
{
    struct change *c = arg;
    struct bucket b = { 0 };
    struct object *o = &c->out;

    if (bucket_find(db, c->project, c->bucket, &b, err) < 0)
        return -(int)err->code;
    int rc = object_find(db, &b, c->name, c->generation, o, err);
    if (rc == 0 && (rc = when_holds(c->when, o, err)) == 0)
        rc = apply(o, c->patch, c->replace, err);
    OWN_MEM char *doc = rc == 0 ? json_dumps(o->doc, JSON_COMPACT) : NULL;
    if (rc == 0 && (!doc || strlen(doc) > OBJECTS_DOC_MAX))
        rc = err_set(err, ERR_INVALID, "the metadata of \"%.200s\" is too long (%d bytes at most)",
                     o->name, OBJECTS_DOC_MAX);
    if (rc == 0) {
        o->metageneration++;
        o->updated = clock_wall();
        rc = store_run(db, err,
                       "UPDATE objects SET metageneration = ?, updated = ?, type = ?, doc = ? "
                       "WHERE bucket = ? AND name = ? AND generation = ?",
                       "idssisi", o->metageneration, o->updated, o->type, doc, b.id, o->name,
                       o->generation);
    }
    if (rc < 0)
        object_done(o);
    bucket_done(&b);
    return rc;
}

int objects_patch(struct server *s, const char *project, const char *bucket, const char *name,
                  int64_t generation, const json_t *patch, bool replace,
                  const struct objects_when *when, struct object *out, struct err *err)
{
    struct change c = { s->objects, project, bucket, name, generation, when, patch, replace,
                        { .size = 0 } };

    cache_write_begins(s->objects, bucket, name);
    int rc = store_write(s->store, change, &c, err);
    cache_write_ends(s->objects, bucket, name);
    if (rc == 0)
        *out = c.out;
    return rc;
}

static int delete(sqlite3 *db, void *arg, struct err *err)
{
    struct change *c = arg;
    struct bucket b = { 0 };
    struct object o = { 0 };

    if (bucket_find(db, c->project, c->bucket, &b, err) < 0)
        return -(int)err->code;
    int rc = object_find(db, &b, c->name, c->generation, &o, err);
    if (rc == 0 && (rc = when_holds(c->when, &o, err)) == 0) {
        if (c->generation)
            b.versioning = false;       /* named by its number, it goes for good */
        rc = row_retire(c->objects, db, &b, &o, clock_wall(), err);
    }
    object_done(&o);
    bucket_done(&b);
    return rc;
}

int objects_delete(struct server *s, const char *project, const char *bucket, const char *name,
                   int64_t generation, const struct objects_when *when, struct err *err)
{
    struct change c = { s->objects, project, bucket, name, generation, when, NULL, false,
                        { .size = 0 } };

    cache_write_begins(s->objects, bucket, name);
    int rc = store_write_last(s->store, delete, &c, err);
    cache_write_ends(s->objects, bucket, name);
    if (rc == 0)
        sweeper_wake(s->objects);
    return rc;
}

/* ------------------------------------------------------------ copies */

struct copy {
    struct objects *objects;
    const struct objects_copy *from;
    int64_t generation;
    struct object out;
};

static int copy(sqlite3 *db, void *arg, struct err *err)
{
    struct copy *c = arg;
    const struct objects_copy *f = c->from;
    struct bucket b = { 0 };
    struct object *o = &c->out;

    if (bucket_find(db, f->project, f->bucket, &b, err) < 0)
        return -(int)err->code;
    int rc = object_find(db, &b, f->name, f->generation, o, err);
    bucket_done(&b);
    if (rc < 0)
        return rc;
    rc = when_holds(&f->when, o, err);
    if (rc == 0 && f->doc)
        rc = apply(o, f->doc, true, err);
    if (rc == 0 && f->type)
        snprintf(o->type, sizeof o->type, "%s", f->type);
    struct objects_put p = { .project = f->project, .bucket = f->to_bucket, .name = f->to_name,
                             .when = f->to_when };
    struct new_row row = { &p, NULL, o, c->generation,
                           f->move && !strcmp(f->bucket, f->to_bucket), NULL };
    struct object source = *o;          /* its document is o's */
    if (rc == 0)
        rc = object_insert(c->objects, db, &row, err);
    if (rc == 0 && f->move)
        rc = row_retire(c->objects, db, &b, &source, o->created, err);
    if (rc < 0)
        object_done(o);
    return rc;
}

/* A copy is another name for the same content: one that is damaged would look like a second chance. */
static int copy_check(struct server *s, const struct objects_copy *from, struct err *err)
{
    struct object o;

    if (objects_get(s, from->project, from->bucket, from->name, from->generation, &from->when, &o,
                    err) < 0)
        return -(int)err->code;
    object_done(&o);
    return objects_verify(s, &o, err);
}

int objects_copy(struct server *s, const struct objects_copy *from, struct object *out,
                 struct err *err)
{
    struct copy c = { s->objects, from, generation_next(s->objects), { .size = 0 } };

    if (object_name_check(from->to_name, err) < 0)
        return -(int)err->code;
    if (from->move && !strcmp(from->bucket, from->to_bucket) && !strcmp(from->name, from->to_name))
        return err_set(err, ERR_INVALID, "an object cannot be moved to its own name");
    if (copy_check(s, from, err) < 0)
        return -(int)err->code;
    cache_write_begins(s->objects, from->bucket, from->name);
    cache_write_begins(s->objects, from->to_bucket, from->to_name);
    int rc = store_write(s->store, copy, &c, err);
    cache_write_ends(s->objects, from->to_bucket, from->to_name);
    cache_write_ends(s->objects, from->bucket, from->name);
    if (rc == 0)
        *out = c.out;
    sweeper_wake(s->objects);
    return rc;
}

struct put {
    struct objects *objects;
    const struct new_row *row;
};

static int put(sqlite3 *db, void *arg, struct err *err)
{
    const struct put *p = arg;

    return object_insert(p->objects, db, p->row, err);
}

int row_put(struct objects *o, const struct new_row *row, struct err *err)
{
    struct put p = { o, row };

    if (row->bytes && room_need(o, row->object->size, err) < 0)
        return -(int)err->code;
    cache_write_begins(o, row->put->bucket, row->put->name);
    int rc = store_write(o->server->store, put, &p, err);
    cache_write_ends(o, row->put->bucket, row->put->name);
    sweeper_wake(o);
    return rc;
}
