/* server/objects_session.c - uploads in several requests
 *
 * DESIGN. The row says how far the file is synced: that much is promised to the client, and that
 * much is taken up after a restart (the checksums are computed again from the file, whose bytes have
 * to have the CRC-32C that the row says; one that has changed is emptied). While the
 * server lives, `struct live` has the checksums so far and what came since; it is shared by all
 * requests of a session. Each request draws a ticket; the last one drawn may write, so that a
 * client which lost its connection need not wait until the server has noticed, too.
 *
 * A session may be emptied: the disk was full when it wanted more, or became short while nobody
 * sent to it. Its file goes, its row stays, and to "how far is it?" the answer is: at the
 * beginning. That is where Google's clients go on from when they ask again; most begin a new
 * session.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "server/objects_int.h"

enum { IDLE_MAX = 64,           /* sessions at rest whose file stays open */
       IDLE_S = 60 };           /* a client that goes on asks sooner */

struct live {
    char id[OBJECTS_SESSION];
    int refs;                   /* under sessions_lock */
    struct live *next;

    pthread_mutex_t lock;       /* of all below */
    bool ready;                 /* the file is open, the checksums are of its bytes */
    int fd;
    int64_t size, synced, generation;
    struct digests digests;
    unsigned tickets;
};

struct session {
    struct objects *objects;
    struct live *live;
    unsigned ticket;
    char bucket[OBJECTS_BUCKET_MAX + 1];
    json_t *order;
};

/* ------------------------------------------------------------ rows */

struct row {
    const char *project, *bucket, *id, *body;
    int64_t synced, generation;
    int64_t crc32c;             /* of what is synced; -1: not known */
    char *out_body;
    char out_bucket[OBJECTS_BUCKET_MAX + 1];
};

static int row_insert(sqlite3 *db, void *arg, struct err *err)
{
    const struct row *r = arg;
    struct bucket b;

    if (bucket_find(db, r->project, r->bucket, &b, err) < 0)
        return -(int)err->code;
    int rc = store_run(db, err, "INSERT INTO uploads (id, project, bucket, body, touched, synced, "
                       "generation) VALUES (?, ?, ?, ?, ?, 0, 0)", "ssssd", r->id, b.project,
                       r->bucket, r->body, clock_wall());
    bucket_done(&b);
    return rc;
}

static int row_find(sqlite3 *db, void *arg, struct err *err)
{
    struct row *r = arg;
    sqlite3_stmt *st = store_sql(db,
                                 "SELECT project, bucket, body, synced, generation, crc32c FROM "
                                 "uploads WHERE id = ?",
                                 err);

    if (!st || store_bind(st, err, "s", r->id) < 0)
        return -(int)err->code;
    int rc = store_step(st, err);
    if (rc < 0)
        return rc;
    const char *project = rc ? (const char *)sqlite3_column_text(st, 0) : NULL;
    if (!project || (r->project && strcmp(r->project, project))) {
        sqlite3_reset(st);
        return err_set(err, ERR_MISSING, "There is no upload of this name (it was cancelled, or is "
                       "more than a week old): begin a new one");
    }
    snprintf(r->out_bucket, sizeof r->out_bucket, "%s", (const char *)sqlite3_column_text(st, 1));
    r->out_body = strdup((const char *)sqlite3_column_text(st, 2));
    r->synced = sqlite3_column_int64(st, 3);
    r->generation = sqlite3_column_int64(st, 4);
    r->crc32c = sqlite3_column_type(st, 5) == SQLITE_NULL ? -1 : sqlite3_column_int64(st, 5);
    sqlite3_reset(st);
    return r->out_body ? 0 : err_set(err, ERR_NOMEM, "no memory for an upload");
}

static int row_touch(sqlite3 *db, void *arg, struct err *err)
{
    const struct row *r = arg;

    return store_run(db, err,
                     "UPDATE uploads SET synced = ?, crc32c = ?, touched = ? WHERE id = ?", "iids",
                     r->synced, r->crc32c, clock_wall(), r->id);
}

static int row_delete(sqlite3 *db, void *arg, struct err *err)
{
    const struct row *r = arg;

    return store_run(db, err, "DELETE FROM uploads WHERE id = ?", "s", r->id);
}

int session_mark_done(sqlite3 *db, const char *id, int64_t generation, struct err *err)
{
    return store_run(db, err, "UPDATE uploads SET generation = ?, touched = ? WHERE id = ?", "ids",
                     generation, clock_wall(), id);
}

/* ------------------------------------------------------------ live ones */

static void live_free(struct live *l)
{
    if (l->fd >= 0)
        close(l->fd);
    digests_done(&l->digests);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

static struct live *live_get(struct objects *o, const char *id)
{
    pthread_mutex_lock(&o->sessions_lock);
    struct live *l = o->sessions;
    while (l && strcmp(l->id, id))
        l = l->next;
    if (!l && (l = calloc(1, sizeof *l))) {
        snprintf(l->id, sizeof l->id, "%s", id);
        pthread_mutex_init(&l->lock, NULL);
        l->fd = -1;
        l->next = o->sessions;
        o->sessions = l;
    }
    if (l)
        l->refs++;
    pthread_mutex_unlock(&o->sessions_lock);
    return l;
}

/* Of those at rest only the newest stay; the list is in the order they came. */
static void live_put(struct objects *o, struct live *mine)
{
    int idle = 0;

    pthread_mutex_lock(&o->sessions_lock);
    mine->refs--;
    for (struct live **at = &o->sessions; *at;) {
        struct live *l = *at;
        if (l->refs == 0 && (l->generation || ++idle > IDLE_MAX)) {
            *at = l->next;
            live_free(l);
        } else {
            at = &l->next;
        }
    }
    pthread_mutex_unlock(&o->sessions_lock);
}

void sessions_free(struct objects *o)
{
    while (o->sessions) {
        struct live *l = o->sessions;
        o->sessions = l->next;
        live_free(l);
    }
}

static void session_path(const struct objects *o, const char *id, char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%s/uploads/s-%s", o->dir, id);
}

static int digest_file(struct objects *o, struct live *l, int64_t n, struct err *err)
{
    enum { PIECE = 1 << 20 };
    OWN_MEM char *piece = malloc(PIECE);

    if (!piece)
        return err_set(err, ERR_NOMEM, "no memory to read an upload");
    digests_start(&l->digests);
    for (l->size = 0; l->size < n;) {
        ssize_t k =
            pread(l->fd, piece, n - l->size < PIECE ? (size_t)(n - l->size) : PIECE, l->size);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return err_set(err, ERR_IO, "cannot read an upload: %s", strerror(errno));
        if (k == 0)
            break;              /* shorter than its row says: the client goes on from there */
        digests_add(&o->helper, &l->digests, piece, (size_t)k);
        l->size += k;
    }
    return 0;
}

/* Under the lock: the bytes go at once, whatever becomes of the row. */
static void live_empty(struct objects *o, struct live *l)
{
    struct row r = { .id = l->id };
    char path[PATH_MAX];

    session_path(o, l->id, path);
    if (ftruncate(l->fd, 0) == 0)
        unlink(path);
    l->ready = false;
    l->size = l->synced = 0;
    store_write(o->server->store, row_touch, &r, &(struct err){ 0 });
}

/* Under the lock. `crc32c`: of the bytes that the row says are there; -1: not known. */
static int live_load(struct objects *o, struct live *l, int64_t crc32c, struct err *err)
{
    char path[PATH_MAX];

    if (l->ready || l->generation)
        return 0;
    if (l->fd >= 0)
        close(l->fd);
    session_path(o, l->id, path);
    store_point("objects.session-open");
    l->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (l->fd < 0)
        return err_set(err, ERR_IO, "cannot open a file for an upload: %s", strerror(errno));
    if (digest_file(o, l, l->synced, err) < 0)
        return -(int)err->code;
    if (l->synced && crc32c >= 0 && (l->size != l->synced || l->digests.crc32c != crc32c)) {
        log_event(LEVEL_ERROR, "uploads.damaged", "{s:s, s:I}", "upload", l->id, "bytes",
                  (json_int_t)l->synced);
        live_empty(o, l);
        return live_load(o, l, -1, err);
    }
    l->ready = true;
    return 0;
}

/* ------------------------------------------------------------ verbs */

int session_begin(struct server *s, const char *project, const char *bucket, const json_t *order,
                  char out_id[OBJECTS_SESSION], struct err *err)
{
    uint8_t random[16];
    char id[OBJECTS_SESSION];
    OWN_MEM char *body = json_dumps(order, JSON_COMPACT);

    if (!body)
        return err_set(err, ERR_NOMEM, "no memory for an upload");
    if (strlen(body) > OBJECTS_DOC_MAX)
        return err_set(err, ERR_INVALID, "the metadata is %zu bytes long (%d at most)",
                       strlen(body), OBJECTS_DOC_MAX);
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return err_set(err, ERR_IO, "no random numbers: %s", strerror(errno));
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(id + 2 * i, 3, "%02x", random[i]);
    struct row r = { .project = project, .bucket = bucket, .id = id, .body = body };
    if (store_write(s->store, row_insert, &r, err) < 0)
        return -(int)err->code;
    memcpy(out_id, id, sizeof id);
    return 0;
}

int session_open(struct server *s, const char *project, const char *id, struct session **out,
                 struct err *err)
{
    struct row r = { .project = project, .id = id };

    if (strlen(id) != OBJECTS_SESSION - 1 || strspn(id, "0123456789abcdef") != strlen(id))
        return err_set(err, ERR_MISSING, "There is no upload of this name");
    OWN(session) u = calloc(1, sizeof *u);
    if (!u)
        return err_set(err, ERR_NOMEM, "no memory for an upload");
    u->objects = s->objects;
    if (store_read(s->store, row_find, &r, err) < 0)
        return -(int)err->code;
    u->order = json_loads(r.out_body, 0, NULL);
    free(r.out_body);
    snprintf(u->bucket, sizeof u->bucket, "%s", r.out_bucket);
    u->live = live_get(s->objects, id);
    if (!u->order || !u->live)
        return err_set(err, ERR_NOMEM, "no memory for an upload");
    pthread_mutex_lock(&u->live->lock);
    if (!u->live->ready)
        u->live->synced = r.synced;
    if (!u->live->generation)
        u->live->generation = r.generation;
    int rc = live_load(s->objects, u->live, r.crc32c, err);
    u->ticket = ++u->live->tickets;
    pthread_mutex_unlock(&u->live->lock);
    if (rc == 0)
        *out = TAKE(u);
    return rc;
}

void session_free(struct session *u)
{
    if (!u)
        return;
    if (u->live)
        live_put(u->objects, u->live);
    json_decref(u->order);
    free(u);
}

const json_t *session_order(const struct session *u)
{
    return u->order;
}

const char *session_bucket(const struct session *u)
{
    return u->bucket;
}

int64_t session_size(const struct session *u)
{
    pthread_mutex_lock(&u->live->lock);
    int64_t size = u->live->size;
    pthread_mutex_unlock(&u->live->lock);
    return size;
}

int64_t session_done(const struct session *u)
{
    pthread_mutex_lock(&u->live->lock);
    int64_t generation = u->live->generation;
    pthread_mutex_unlock(&u->live->lock);
    return generation;
}

/* With the lock on success. */
static int take(struct session *u, struct err *err)
{
    pthread_mutex_lock(&u->live->lock);
    if (u->ticket == u->live->tickets && !u->live->generation && u->live->ready)
        return 0;
    pthread_mutex_unlock(&u->live->lock);
    return err_set(err, ERR_CONFLICT, "another request goes on with this upload");
}

int session_add(struct session *u, const void *bytes, size_t n, struct err *err)
{
    struct live *l = u->live;
    const char *p = bytes;

    if (take(u, err) < 0)
        return -(int)err->code;
    int rc = room_need(u->objects, (int64_t)n, err);
    bool full = rc < 0;
    for (size_t left = n; left && rc == 0;) {
        ssize_t k = pwrite(l->fd, p, left, l->size + (int64_t)(n - left));
        if (k < 0 && errno == EINTR)
            continue;
        full = k < 0 && (errno == ENOSPC || errno == EDQUOT);
        if (k < 0)
            rc = full ? room_none(err)
                      : err_set(err, ERR_IO, "writing an upload: the disk fails");
        else
            p += k, left -= (size_t)k;
    }
    if (rc == 0) {
        digests_add(&u->objects->helper, &l->digests, bytes, n);
        l->size += (int64_t)n;
    } else if (full) {
        live_empty(u->objects, l);
    } else if (ftruncate(l->fd, l->size) < 0) {
        l->ready = false;       /* looked at again by the next request */
    }
    pthread_mutex_unlock(&l->lock);
    return rc;
}

int session_room(struct session *u, int64_t n, struct err *err)
{
    if (take(u, err) < 0)
        return -(int)err->code;
    int rc = room_need(u->objects, n, err);
    if (rc < 0)
        live_empty(u->objects, u->live);
    pthread_mutex_unlock(&u->live->lock);
    return rc;
}

int session_sync(struct session *u, struct err *err)
{
    struct live *l = u->live;

    if (take(u, err) < 0)
        return -(int)err->code;
    struct row r = { .id = l->id, .synced = l->size, .crc32c = l->digests.crc32c };
    char folder[PATH_MAX];
    int rc = 0;
    if (l->size != l->synced) {
        store_point("objects.session-sync");
        snprintf(folder, sizeof folder, "%s/uploads", u->objects->dir);
        if (fdatasync(l->fd) < 0)
            rc = err_set(err, ERR_IO, "syncing an upload: %s", strerror(errno));
        else if (l->synced == 0)        /* its name, too, has to be there after a power cut */
            rc = sync_folder(folder, err);
        if (rc == 0)
            rc = store_write(u->objects->server->store, row_touch, &r, err);
    }
    if (rc == 0)
        l->synced = r.synced;
    pthread_mutex_unlock(&l->lock);
    return rc;
}

static int make_object(struct session *u, const struct objects_put *p, struct object *out,
                       struct err *err)
{
    struct live *l = u->live;
    struct object o = { .size = 0 };
    char path[PATH_MAX];

    digests_finish(&l->digests, &o);
    if (digests_compare(&o, p, err) < 0 || object_describe(&o, p, l->size, err) < 0)
        return -(int)err->code;
    session_path(u->objects, l->id, path);
    int rc;
    if (l->size > OBJECTS_SMALL) {
        rc = ftruncate(l->fd, l->size) < 0
            ? err_set(err, ERR_IO, "cutting an upload: %s", strerror(errno))
            : blob_publish(u->objects, l->fd, path, &l->digests, &o, p, err);
        l->ready = rc == 0 || access(path, F_OK) == 0;
    } else {
        char small[OBJECTS_SMALL];
        struct new_row row = { p, small, &o, generation_next(u->objects), false, NULL };
        rc = pread(l->fd, small, (size_t)l->size, 0) != l->size
            ? err_set(err, ERR_IO, "cannot read an upload")
            : row_put(u->objects, &row, err);
        if (rc == 0)
            unlink(path);
    }
    if (rc < 0) {
        object_done(&o);
        return rc;
    }
    l->generation = o.generation;
    *out = o;
    return 0;
}

int session_put(struct session *u, struct objects_put *p, struct object *out, struct err *err)
{
    if (take(u, err) < 0)
        return -(int)err->code;
    p->session = u->live->id;
    int rc = make_object(u, p, out, err);
    pthread_mutex_unlock(&u->live->lock);
    return rc;
}

int session_cancel(struct session *u, struct err *err)
{
    struct row r = { .id = u->live->id };
    char path[PATH_MAX];

    if (take(u, err) < 0)
        return -(int)err->code;
    /* The file first: on a full disk that is what makes room for the rest. */
    session_path(u->objects, u->live->id, path);
    if (ftruncate(u->live->fd, 0) == 0)
        unlink(path);
    u->live->ready = false;
    u->live->synced = 0;
    int rc = store_write_last(u->objects->server->store, row_delete, &r, err);
    if (rc == 0)
        u->live->generation = -1;       /* for those who still have it open */
    pthread_mutex_unlock(&u->live->lock);
    return rc;
}

/* ------------------------------------------------------------ those that nobody goes on with */

struct resting {
    char id[OBJECTS_SESSION];
    double since;
};

static int by_age(const void *a, const void *b)
{
    const double x = ((const struct resting *)a)->since, y = ((const struct resting *)b)->since;

    return x < y ? -1 : x > y;
}

/* Files that hold something and have not grown since `before`, the oldest first. */
static void list_resting(struct objects *o, double before, struct buf *out)
{
    char path[PATH_MAX];
    struct dirent *e;
    struct stat st;

    snprintf(path, sizeof path, "%s/uploads", o->dir);
    DIR *dir = opendir(path);
    while (dir && (e = readdir(dir))) {
        struct resting r = { .since = 0 };
        if (strncmp(e->d_name, "s-", 2) || strlen(e->d_name) != sizeof r.id + 1)
            continue;
        snprintf(path, sizeof path, "%s/uploads/%s", o->dir, e->d_name);
        if (stat(path, &st) < 0 || !st.st_size || (double)st.st_mtim.tv_sec > before)
            continue;
        snprintf(r.id, sizeof r.id, "%s", e->d_name + 2);
        r.since = (double)st.st_mtim.tv_sec;
        buf_append(out, &r, sizeof r);
    }
    if (dir)
        closedir(dir);
    if (out->n)
        qsort(out->data, out->n / sizeof(struct resting), sizeof(struct resting), by_age);
}

/* False: a request has it open. Nobody opens it meanwhile: that takes the same lock. */
static bool empty_resting(struct objects *o, const char *id)
{
    char path[PATH_MAX];
    bool mine = true;

    session_path(o, id, path);
    pthread_mutex_lock(&o->sessions_lock);
    struct live **at = &o->sessions;
    while (*at && strcmp((*at)->id, id))
        at = &(*at)->next;
    struct live *l = *at;
    mine = !l || l->refs == 0;
    if (mine && l) {
        *at = l->next;
        live_free(l);           /* with the descriptor, which would keep the space */
    }
    mine = mine && unlink(path) == 0;
    pthread_mutex_unlock(&o->sessions_lock);
    return mine;
}

void sessions_reclaim(struct objects *o, double now, int64_t n)
{
    OWN_BUF list = BUF_INIT;
    int emptied = 0;

    list_resting(o, now - IDLE_S, &list);
    const struct resting *r = (const struct resting *)list.data;
    for (size_t i = 0; i < list.n / sizeof *r && room_now(o) < n; i++)
        emptied += empty_resting(o, r[i].id);
    if (emptied)
        log_event(LEVEL_WARN, "uploads.emptied", "{s:i}", "sessions", emptied);
}

/* ------------------------------------------------------------ old ones */

static int delete_old(sqlite3 *db, void *arg, struct err *err)
{
    return store_run(db, err, "DELETE FROM uploads WHERE touched < ?", "d", *(double *)arg);
}

int sessions_sweep(struct objects *o, double before, int *removed, struct err *err)
{
    char path[PATH_MAX];
    struct dirent *e;

    if (store_write_last(o->server->store, delete_old, &before, err) < 0)
        return -(int)err->code;
    snprintf(path, sizeof path, "%s/uploads", o->dir);
    DIR *dir = opendir(path);
    while (dir && (e = readdir(dir))) {
        struct row r = { .id = e->d_name + 2 };
        struct err none = { 0 };
        if (strncmp(e->d_name, "s-", 2))
            continue;
        int rc = store_read(o->server->store, row_find, &r, &none);
        free(r.out_body);
        snprintf(path, sizeof path, "%s/uploads/%s", o->dir, e->d_name);
        if (rc < 0 && none.code == ERR_MISSING && unlink(path) == 0)
            ++*removed;
    }
    if (dir)
        closedir(dir);
    return 0;
}
