/* server/objects_blob.c - content: on its way in, under its checksum, and out again
 *
 * A file is written to uploads/, synced, renamed to blobs/ab/REST, the folder synced: then its row
 * may say that it is there. From before the rename until after the row the content is pinned, so
 * that the sweeper does not take it for something that nobody names.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "server/objects_int.h"

/* ------------------------------------------------------------ files */

void blob_path(const struct objects *o, const char *sha256, char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%s/blobs/%.2s/%s", o->dir, sha256, sha256 + 2);
}

static int file_error(const char *what, struct err *err)
{
    if (errno == ENOSPC || errno == EDQUOT)
        return room_none(err);
    return err_set(err, ERR_IO, "%s: %s", what, strerror(errno));
}

int write_all(int fd, const void *bytes, size_t n, const char *what, struct err *err)
{
    for (const char *p = bytes; n;) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return file_error(what, err);
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

int sync_folder(const char *path, struct err *err)
{
    OWN_FD int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0 || fsync(fd) < 0)
        return file_error("syncing a folder", err);
    return 0;
}

static int rename_blob(struct objects *o, const char *path, const char *sha256, struct err *err)
{
    char to[PATH_MAX], folder[PATH_MAX], parent[PATH_MAX];

    blob_path(o, sha256, to);
    snprintf(folder, sizeof folder, "%s", to);
    *strrchr(folder, '/') = '\0';
    if (mkdir(folder, 0700) == 0) {
        snprintf(parent, sizeof parent, "%s", folder);
        *strrchr(parent, '/') = '\0';
        if (sync_folder(parent, err) < 0)
            return -(int)err->code;
    } else if (errno != EEXIST) {
        return file_error("making a folder of blobs", err);
    }
    store_point("objects.rename");
    if (rename(path, to) < 0)
        return file_error("naming a blob", err);
    store_point("objects.renamed");
    return sync_folder(folder, err);
}

static void pin_add(struct objects *o, struct pin *p)
{
    pthread_mutex_lock(&o->pins_lock);
    p->next = o->pins;
    o->pins = p;
    pthread_mutex_unlock(&o->pins_lock);
}

bool blob_pinned(const struct objects *o, const uint8_t sha256[SHA256_BYTES])
{
    for (const struct pin *p = o->pins; p; p = p->next)
        if (!memcmp(p->sha256, sha256, SHA256_BYTES))
            return true;
    return false;
}

/* `failed`: the row did not come about; the file goes at once, unless others name it. */
static void pin_remove(struct objects *o, struct pin *p, const char *sha256, bool failed)
{
    char path[PATH_MAX];

    pthread_mutex_lock(&o->pins_lock);
    struct pin **at = &o->pins;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    if (failed && !blob_pinned(o, p->sha256) && !blob_named(o, p->sha256)) {
        blob_path(o, sha256, path);
        unlink(path);
    }
    pthread_mutex_unlock(&o->pins_lock);
}

int blob_publish(struct objects *o, int fd, const char *path, const struct digests *d,
                 struct object *object, const struct objects_put *p, struct err *err)
{
    struct pin pin;
    OWN_BUF sums = BUF_INIT;
    struct new_row row = { p, NULL, object, generation_next(o), false, &sums };

    if (digests_blocks(d, &sums, err) < 0)
        return -(int)err->code;
    store_point("objects.sync");
    if (fsync(fd) < 0)
        return file_error("syncing an upload", err);
    hex_bytes(object->sha256, pin.sha256);
    pin_add(o, &pin);
    int rc = rename_blob(o, path, object->sha256, err);
    if (rc == 0) {
        damage_forget(o, object->sha256);
        rc = row_put(o, &row, err);
    }
    pin_remove(o, &pin, object->sha256, rc < 0);
    return rc;
}

/* ------------------------------------------------------------ on its way in */

struct content {
    struct objects *objects;
    struct digests digests;
    int64_t size;
    struct buf small;           /* while it fits */
    int fd;                     /* -1: in memory */
    char path[PATH_MAX];        /* "": nothing to remove */
};

struct content *content_new(struct server *s)
{
    struct content *c = calloc(1, sizeof *c);

    if (!c)
        return NULL;
    c->objects = s->objects;
    c->fd = -1;
    digests_start(&c->digests);
    return c;
}

void content_free(struct content *c)
{
    if (!c)
        return;
    if (c->fd >= 0)
        close(c->fd);
    if (*c->path)
        unlink(c->path);
    buf_done(&c->small);
    digests_done(&c->digests);
    free(c);
}

static int spill(struct content *c, struct err *err)
{
    static atomic_uint count;
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s/uploads/t-%d-%u", c->objects->dir, (int)getpid(), count++);
    store_point("objects.create");
    c->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (c->fd < 0)
        return file_error("making a file for an upload", err);
    memcpy(c->path, path, sizeof path);
    int rc = write_all(c->fd, c->small.data, c->small.n, "writing an upload", err);
    buf_done(&c->small);
    return rc;
}

int content_add(struct content *c, const void *bytes, size_t n, struct err *err)
{
    digests_add(&c->objects->helper, &c->digests, bytes, n);
    c->size += (int64_t)n;
    if (c->fd < 0 && c->size <= OBJECTS_SMALL) {
        buf_append(&c->small, bytes, n);
        return buf_ok(&c->small, err);
    }
    if (room_need(c->objects, (int64_t)n, err) < 0 || (c->fd < 0 && spill(c, err) < 0))
        return -(int)err->code;
    return write_all(c->fd, bytes, n, "writing an upload", err);
}

/* The document and type of a new object. */
int object_describe(struct object *o, const struct objects_put *p, int64_t size, struct err *err)
{
    if (object_name_check(p->name, err) < 0)
        return -(int)err->code;
    o->size = size;
    snprintf(o->type, sizeof o->type, "%s", p->type && *p->type ? p->type
                                                                : "application/octet-stream");
    o->doc = p->doc && json_object_size(p->doc) ? json_deep_copy(p->doc) : NULL;
    if (o->doc)
        doc_clean(o->doc);
    o->metadata = json_object_get(o->doc, "metadata");
    return 0;
}

int content_put(struct content *c, const struct objects_put *p, struct object *out,
                struct err *err)
{
    struct object o = { .size = 0 };

    digests_finish(&c->digests, &o);
    if (digests_compare(&o, p, err) < 0 || object_describe(&o, p, c->size, err) < 0)
        return -(int)err->code;
    int rc;
    if (c->fd >= 0) {
        rc = blob_publish(c->objects, c->fd, c->path, &c->digests, &o, p, err);
    } else {
        struct new_row row = { p, c->small.data ? c->small.data : "", &o,
                               generation_next(c->objects), false, NULL };
        rc = row_put(c->objects, &row, err);
    }
    if (rc < 0) {
        object_done(&o);
        return rc;
    }
    *c->path = '\0';
    *out = o;
    return 0;
}
