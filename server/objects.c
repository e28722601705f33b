/* server/objects.c - buckets, their names, and the life of it all */
#include "server/objects.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/text.h"
#include "server/objects_int.h"

static const char *const schema[] = {
    "CREATE TABLE buckets (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE,"
    "  project TEXT NOT NULL, created REAL NOT NULL, updated REAL NOT NULL,"
    "  metageneration INTEGER NOT NULL, doc TEXT NOT NULL);"
    "CREATE INDEX buckets_of_project ON buckets (project, name);"
    "CREATE TABLE objects (bucket INTEGER NOT NULL, name TEXT NOT NULL, generation INTEGER NOT "
    "NULL,"
    "  metageneration INTEGER NOT NULL, size INTEGER NOT NULL, type TEXT NOT NULL,"
    "  sha256 BLOB NOT NULL, md5 BLOB NOT NULL, crc32c INTEGER NOT NULL, created REAL NOT NULL,"
    "  updated REAL NOT NULL, deleted REAL NOT NULL, doc TEXT,"
    "  PRIMARY KEY (bucket, name, generation)) WITHOUT ROWID;"
    "CREATE TABLE contents (sha256 BLOB NOT NULL UNIQUE, size INTEGER NOT NULL,"
    "  refs INTEGER NOT NULL, bytes BLOB);"
    "CREATE INDEX contents_unused ON contents (refs) WHERE refs = 0;"
    "CREATE TABLE uploads (id TEXT PRIMARY KEY, project TEXT NOT NULL, bucket TEXT NOT NULL,"
    "  body TEXT NOT NULL, touched REAL NOT NULL, synced INTEGER NOT NULL,"
    "  generation INTEGER NOT NULL) WITHOUT ROWID",
    /* crc32c: of the bytes that are synced; NULL: of an upload from before. */
    "CREATE TABLE content_sums (sha256 BLOB NOT NULL, part INTEGER NOT NULL, sums BLOB NOT NULL,"
    "  PRIMARY KEY (sha256, part)) WITHOUT ROWID;"
    "CREATE INDEX contents_files ON contents (sha256) WHERE bytes IS NULL;"
    "ALTER TABLE uploads ADD COLUMN crc32c INTEGER",
    NULL
};

/* ------------------------------------------------------------ names */

static int bad_bucket(const char *name, const char *why, struct err *err)
{
    return err_set(err, ERR_INVALID, "Invalid bucket name: '%.230s' (%s)", name, why);
}

static bool is_address(const char *name)
{
    int a, b, c, d, n = 0;

    return sscanf(name, "%3d.%3d.%3d.%3d%n", &a, &b, &c, &d, &n) == 4 && !name[n];
}

int bucket_name_check(const char *name, struct err *err)
{
    size_t n = strlen(name), part = 0;

    if (n < 3 || n > OBJECTS_BUCKET_MAX)
        return bad_bucket(name, "3 to 63 characters, up to 222 with dots", err);
    if (strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != n)
        return bad_bucket(name, "lower-case letters, digits, '-', '_' and '.' only", err);
    if (!isalnum((unsigned char)name[0]) || !isalnum((unsigned char)name[n - 1]))
        return bad_bucket(name, "it begins and ends with a letter or a digit", err);
    for (size_t i = 0; i < n; i++) {
        bool dot = name[i] == '.';
        if (dot && (name[i - 1] == '.' || name[i - 1] == '-' || name[i + 1] == '-'))
            return bad_bucket(name, "no dot beside another or a '-'", err);
        part = dot ? 0 : part + 1;
        if (part > 63)
            return bad_bucket(name, "63 characters at most between two dots", err);
    }
    if (is_address(name))
        return bad_bucket(name, "it looks like an IP address", err);
    if (!strncmp(name, "goog", 4) || strstr(name, "google") || strstr(name, "g00gle"))
        return bad_bucket(name, "it may not begin with \"goog\" or contain \"google\"", err);
    return 0;
}

static bool is_utf8(const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p;) {
        int more = *p < 0x80 ? 0 : *p >= 0xc2 && *p < 0xe0 ? 1 : *p >= 0xe0 && *p < 0xf0 ? 2
                   : *p >= 0xf0 && *p < 0xf5 ? 3 : -1;
        if (more < 0 || (*p == 0xe0 && p[1] < 0xa0) || (*p == 0xed && p[1] > 0x9f) ||
            (*p == 0xf0 && p[1] < 0x90) || (*p == 0xf4 && p[1] > 0x8f))
            return false;
        for (p++; more; more--, p++)
            if ((*p & 0xc0) != 0x80)
                return false;
    }
    return true;
}

int object_name_check(const char *name, struct err *err)
{
    size_t n = strlen(name);

    if (n < 1 || n > OBJECTS_NAME_MAX)
        return err_set(err, ERR_INVALID, "The name of an object has 1 to %d bytes, not %zu",
                       OBJECTS_NAME_MAX, n);
    if (!is_utf8(name) || text_has_control(name, true))
        return err_set(err, ERR_INVALID,
                       "The name of an object is UTF-8 without line ends or other "
                       "control characters");
    if (!strcmp(name, ".") || !strcmp(name, "..") ||
        !strncmp(name, ".well-known/acme-challenge/", 27))
        return err_set(err, ERR_INVALID, "An object cannot be named \"%s\"", name);
    return 0;
}

/* ------------------------------------------------------------ rows of buckets */

#define BUCKET_COLUMNS "id, name, project, created, updated, metageneration, doc"

void bucket_done(struct bucket *b)
{
    json_decref(b->doc);
    b->doc = NULL;
}

static bool has_versions(const json_t *doc)
{
    return json_is_true(json_object_get(json_object_get(doc, "versioning"), "enabled"));
}

static int bucket_of_row(sqlite3_stmt *st, struct bucket *out, struct err *err)
{
    struct bucket b = { .id = sqlite3_column_int64(st, 0) };
    const char *doc = (const char *)sqlite3_column_text(st, 6);

    snprintf(b.name, sizeof b.name, "%s", (const char *)sqlite3_column_text(st, 1));
    snprintf(b.project, sizeof b.project, "%s", (const char *)sqlite3_column_text(st, 2));
    b.created = sqlite3_column_double(st, 3);
    b.updated = sqlite3_column_double(st, 4);
    b.metageneration = sqlite3_column_int64(st, 5);
    b.doc = doc && strcmp(doc, "{}") ? json_loads(doc, 0, NULL) : json_object();
    if (!b.doc)
        return err_set(err, ERR_NOMEM, "no memory for a bucket");
    b.versioning = has_versions(b.doc);
    *out = b;
    return 0;
}

int bucket_find(sqlite3 *db, const char *project, const char *name, struct bucket *out,
                struct err *err)
{
    sqlite3_stmt *st = store_sql(db, "SELECT " BUCKET_COLUMNS " FROM buckets WHERE name = ?", err);
    struct bucket b;

    if (!st || store_bind(st, err, "s", name) < 0)
        return -(int)err->code;
    int rc = store_step(st, err);
    if (rc < 0)
        return rc;
    if (rc == 0)
        return err_set(err, ERR_MISSING, "The specified bucket does not exist: %.222s", name);
    rc = bucket_of_row(st, &b, err);
    sqlite3_reset(st);
    if (rc < 0)
        return rc;
    if (project && strcmp(project, b.project)) {
        bucket_done(&b);
        return err_set(err, ERR_DENIED,
                       "This token does not reach the bucket %.222s (it belongs to "
                       "another project)",
                       name);
    }
    *out = b;
    return 0;
}

struct bucket_call {
    const char *project, *name;
    const struct objects_when *when;
    const json_t *patch;
    bool replace;
    struct bucket out;
};

static int insert(sqlite3 *db, void *arg, struct err *err)
{
    struct bucket_call *c = arg;
    OWN_MEM char *doc = json_dumps(c->out.doc, JSON_COMPACT);
    struct err none = { 0 };
    struct bucket there;

    if (!doc)
        return err_set(err, ERR_NOMEM, "no memory for a bucket");
    if (bucket_find(db, NULL, c->name, &there, &none) == 0) {
        bool ours = !strcmp(there.project, c->project);
        bucket_done(&there);
        return err_set(err, ERR_CONFLICT, ours
            ? "Your previous request to create the named bucket succeeded and you already own it."
            : "The requested bucket name is not available: the names of buckets are shared by all "
              "projects of this server. Choose another one.");
    }
    int rc = store_run(db, err,
                       "INSERT INTO buckets (name, project, created, updated, "
                       "metageneration, doc) VALUES (?, ?, ?, ?, 1, ?)",
                       "ssdds", c->name, c->project, c->out.created, c->out.updated, doc);
    c->out.id = sqlite3_last_insert_rowid(db);
    return rc;
}

static int doc_check(const json_t *doc, struct err *err)
{
    OWN_MEM char *text = json_dumps(doc, JSON_COMPACT);

    if (!text || strlen(text) > OBJECTS_DOC_MAX)
        return err_set(err, ERR_INVALID, "what is said of the bucket is longer than %d bytes",
                       OBJECTS_DOC_MAX);
    return 0;
}

/* What the server and its commands keep for a project is in buckets that are named after it;
 * another project's bucket of such a name would be in the way. */
static int own_name_check(const char *project, const char *name, struct err *err)
{
    static const char *const prefixes[] = { "artifacts-", "images-", "muster-packages-" };

    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        size_t n = strlen(prefixes[i]);
        if (!strncmp(name, prefixes[i], n) && strcmp(name + n, project))
            return err_set(err, ERR_CONFLICT, "a bucket whose name begins with %s is that of a "
                           "project, here %s%s; take another name", prefixes[i], prefixes[i],
                           project);
    }
    return 0;
}

int buckets_insert(struct server *s, const char *project, const char *name, const json_t *doc,
                   struct bucket *out, struct err *err)
{
    struct bucket_call c = { .project = project, .name = name };

    if (bucket_name_check(name, err) < 0 || own_name_check(project, name, err) < 0 ||
        (doc && doc_check(doc, err) < 0))
        return -(int)err->code;
    snprintf(c.out.name, sizeof c.out.name, "%s", name);
    snprintf(c.out.project, sizeof c.out.project, "%s", project);
    c.out.metageneration = 1;
    c.out.created = c.out.updated = clock_wall();
    c.out.doc = doc ? json_deep_copy(doc) : json_object();
    c.out.versioning = has_versions(c.out.doc);
    if (store_write(s->store, insert, &c, err) < 0) {
        bucket_done(&c.out);
        return -(int)err->code;
    }
    *out = c.out;
    return 0;
}

static int bucket_when(const struct objects_when *w, const struct bucket *b, struct err *err)
{
    struct object as = { .metageneration = b->metageneration };
    struct objects_when meta = OBJECTS_WHENEVER;

    if (!w)
        return 0;
    meta.metageneration = w->metageneration;
    meta.not_metageneration = w->not_metageneration;
    meta.unmet = w->unmet;
    return when_holds(&meta, &as, err);
}

static int get(sqlite3 *db, void *arg, struct err *err)
{
    struct bucket_call *c = arg;
    int rc = bucket_find(db, c->project, c->name, &c->out, err);

    if (rc == 0 && (rc = bucket_when(c->when, &c->out, err)) < 0)
        bucket_done(&c->out);
    return rc;
}

int buckets_get(struct server *s, const char *project, const char *name,
                const struct objects_when *when, struct bucket *out, struct err *err)
{
    struct bucket_call c = { .project = project, .name = name, .when = when };

    if (store_read(s->store, get, &c, err) < 0)
        return -(int)err->code;
    *out = c.out;
    return 0;
}

struct bucket_list {
    const char *project, *prefix, *after;
    int (*each)(void *arg, const struct bucket *b);
    void *arg;
};

static int list(sqlite3 *db, void *arg, struct err *err)
{
    const struct bucket_list *l = arg;
    const char *prefix = l->prefix ? l->prefix : "", *after = l->after ? l->after : "";
    sqlite3_stmt *st = l->project
        ? store_sql(db, "SELECT " BUCKET_COLUMNS " FROM buckets WHERE name >= ? AND name > ? AND "
                    "project = ? ORDER BY name", err)
        : store_sql(db, "SELECT " BUCKET_COLUMNS " FROM buckets WHERE name >= ? AND name > ? "
                    "ORDER BY name", err);
    int rc, stop = 0;

    if (!st || (l->project ? store_bind(st, err, "sss", prefix, after, l->project)
                           : store_bind(st, err, "ss", prefix, after)) < 0)
        return -(int)err->code;
    while (!stop && (rc = store_step(st, err)) > 0) {
        struct bucket b;
        if ((rc = bucket_of_row(st, &b, err)) < 0)
            break;
        stop = strncmp(b.name, prefix, strlen(prefix)) || l->each(l->arg, &b);
        bucket_done(&b);
    }
    sqlite3_reset(st);
    return rc < 0 ? rc : 0;
}

int buckets_list(struct server *s, const char *project, const char *prefix, const char *after,
                 int (*each)(void *arg, const struct bucket *b), void *arg, struct err *err)
{
    struct bucket_list l = { project, prefix, after, each, arg };

    return store_read(s->store, list, &l, err);
}

static int patch(sqlite3 *db, void *arg, struct err *err)
{
    struct bucket_call *c = arg;
    struct bucket *b = &c->out;
    int rc = get(db, c, err);

    if (rc < 0)
        return rc;
    if (c->replace)
        json_object_clear(b->doc);
    rc = doc_merge(b->doc, c->patch) < 0 ? err_set(err, ERR_NOMEM, "no memory for a bucket")
                                         : doc_check(b->doc, err);
    OWN_MEM char *doc = rc == 0 ? json_dumps(b->doc, JSON_COMPACT) : NULL;
    b->metageneration++;
    b->updated = clock_wall();
    b->versioning = has_versions(b->doc);
    if (rc == 0)
        rc = store_run(db, err, "UPDATE buckets SET metageneration = ?, updated = ?, doc = ? WHERE "
                       "id = ?", "idsi", b->metageneration, b->updated, doc, b->id);
    if (rc < 0)
        bucket_done(b);
    return rc;
}

int buckets_patch(struct server *s, const char *project, const char *name, const json_t *change,
                  bool replace, const struct objects_when *when, struct bucket *out,
                  struct err *err)
{
    struct bucket_call c = { .project = project, .name = name, .when = when, .patch = change,
                             .replace = replace };

    if (store_write(s->store, patch, &c, err) < 0)
        return -(int)err->code;
    *out = c.out;
    return 0;
}

static int delete(sqlite3 *db, void *arg, struct err *err)
{
    struct bucket_call *c = arg;
    int rc = get(db, c, err);

    if (rc < 0)
        return rc;
    int64_t id = c->out.id;
    bucket_done(&c->out);
    sqlite3_stmt *st = store_sql(db, "SELECT 1 FROM objects WHERE bucket = ? LIMIT 1", err);
    if (!st || store_bind(st, err, "i", id) < 0 || (rc = store_step(st, err)) < 0)
        return -(int)err->code;
    sqlite3_reset(st);
    if (rc > 0)
        return err_set(err, ERR_CONFLICT, "The bucket you tried to delete is not empty.");
    return store_run(db, err, "DELETE FROM buckets WHERE id = ?", "i", id);
}

int buckets_delete(struct server *s, const char *project, const char *name,
                   const struct objects_when *when, struct err *err)
{
    struct bucket_call c = { .project = project, .name = name, .when = when };

    return store_write_last(s->store, delete, &c, err);
}

/* ------------------------------------------------------------ for the rest of the server */

int objects_stat(struct server *s, const char *project, const char *bucket, const char *name,
                 struct object *out, struct err *err)
{
    return objects_get(s, project, bucket, name, 0, NULL, out, err);
}

int objects_open(struct server *s, const char *project, const char *bucket, const char *name,
                 int *out_fd, int64_t *out_size, struct err *err)
{
    struct object o;
    OWN_MEM char *bytes = NULL;
    OWN(reader) r = NULL;
    OWN_FD int fd = -1;

    /* Between the row and its file the object may be replaced: then look again. */
    for (int tries = 0; ; tries++) {
        if (objects_stat(s, project, bucket, name, &o, err) < 0)
            return -(int)err->code;
        object_done(&o);
        int rc = objects_content(s, &o, &r, &bytes, err);
        if (rc == 0)
            break;
        if (err->code != ERR_MISSING || tries == 3)
            return rc;
    }
    if (bytes) {
        fd = memfd_create("object", MFD_CLOEXEC);
        if (fd < 0)
            return err_set(err, ERR_IO, "no file in memory: %s", strerror(errno));
        if (write_all(fd, bytes, (size_t)o.size, "an object in memory", err) < 0)
            return -(int)err->code;
        lseek(fd, 0, SEEK_SET);
    } else if (reader_check(r, err) < 0) {
        return -(int)err->code;
    } else {
        fd = reader_take_fd(r);
    }
    *out_size = o.size;
    *out_fd = fd;
    fd = -1;
    return 0;
}

int objects_put(struct server *s, const char *project, const char *bucket, const char *name,
                const char *type, const void *bytes, size_t n, struct err *err)
{
    OWN(content) c = content_new(s);
    struct objects_put p = { .project = project, .bucket = bucket, .name = name, .type = type,
                             .when = OBJECTS_WHENEVER };
    struct object o;

    if (!c)
        return err_set(err, ERR_NOMEM, "no memory for an upload");
    if (content_add(c, bytes, n, err) < 0 || content_put(c, &p, &o, err) < 0)
        return -(int)err->code;
    object_done(&o);
    return 0;
}

/* ------------------------------------------------------------ life */

int objects_new(struct server *s, struct objects **out, struct err *err)
{
    static const char *const folders[] = { "blobs", "uploads" };
    OWN(objects) o = calloc(1, sizeof *o);
    char path[PATH_MAX];

    if (!o)
        return err_set(err, ERR_NOMEM, "no memory for buckets");
    o->server = s;
    if ((size_t)snprintf(o->dir, sizeof o->dir, "%s", s->data_dir) >= sizeof o->dir)
        return err_set(err, ERR_INVALID, "the data directory's path is too long");
    cache_init(o);
    helper_init(&o->helper);
    pthread_mutex_init(&o->damage_lock, NULL);
    pthread_mutex_init(&o->pins_lock, NULL);
    pthread_mutex_init(&o->sessions_lock, NULL);
    pthread_mutex_init(&o->sweep_lock, NULL);
    pthread_condattr_t steady;
    pthread_condattr_init(&steady);
    pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);        /* its waits outlast a clock that is set */
    pthread_cond_init(&o->sweep_wake, &steady);
    pthread_condattr_destroy(&steady);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        snprintf(path, sizeof path, "%s/%s", o->dir, folders[i]);
        if (mkdir(path, 0700) < 0 && errno != EEXIST)
            return err_set(err, ERR_IO, "cannot make %s: %s", path, strerror(errno));
    }
    if (store_schema(s->store, "objects", schema, err) < 0 || sweeper_start(o, err) < 0)
        return -(int)err->code;
    *out = TAKE(o);
    return 0;
}

void objects_free(struct objects *o)
{
    if (!o)
        return;
    sweeper_stop(o);
    sessions_free(o);
    helper_done(&o->helper);
    cache_done(o);
    pthread_mutex_destroy(&o->damage_lock);
    pthread_mutex_destroy(&o->pins_lock);
    pthread_mutex_destroy(&o->sessions_lock);
    pthread_mutex_destroy(&o->sweep_lock);
    pthread_cond_destroy(&o->sweep_wake);
    free(o);
}
