/* server/objects.h - buckets: names to content
 *
 * Content is found by its SHA-256: up to OBJECTS_SMALL bytes in the database, more in
 * blobs/ab/cdef..., once however many names lead to it. A name (bucket, object name, generation)
 * is a row; names are never part of a path. Invariants:
 *   1. an acknowledged write is there after any crash: content synced and renamed first, then its
 *      row in one transaction, then the answer;
 *   2. what a row names is whole: bytes that do not have the announced checksum never get a row;
 *   3. content that no row names goes: the sweeper removes it, also what a crash left between the
 *      rename and the row (after an hour), and uploads that nobody went on with (after a week);
 *   4. the last 64 MB of the disk (of a small one a sixteenth) are not for buckets: jobs and their
 *      events go on when buckets are full. Uploads that nobody goes on with make room first;
 *   5. who was told of a write sees it: rows and small contents that are read often are kept in
 *      memory (OBJECTS_CACHE bytes), and a write takes its name out of there before it begins;
 *   6. bytes that changed on the disk are not given to anybody: each OBJECTS_BLOCK bytes of a file
 *      have a CRC-32C in the database, which is compared before they leave this module, whoever
 *      asks. Damage is ERR_IO with the object's name, and a line in the log; it is never "no such
 *      object". Writing the same bytes again, under any name, mends it.
 *
 * A bucket belongs to a project; its name is unique in the server. `project` NULL: any (the
 * server's own token); else a bucket of another one is ERR_DENIED.
 *
 * Threads: any; what changes something waits for the disk.
 */
#ifndef MUSTER_SERVER_OBJECTS_H
#define MUSTER_SERVER_OBJECTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/own.h"

enum {
    OBJECTS_SMALL = 16 << 10,
    OBJECTS_CACHE = 4 << 20,
    OBJECTS_NAME_MAX = 1024, OBJECTS_BUCKET_MAX = 222,
    OBJECTS_DOC_MAX = 64 << 10,         /* of metadata, as JSON */
    OBJECTS_COMPOSE_MAX = 32,
    OBJECTS_SESSION = 33,               /* a session's name with its NUL */
};

struct objects;
struct server;

/* Makes its tables and folders and starts the sweeper. */
int objects_new(struct server *s, struct objects **out, struct err *err);
void objects_free(struct objects *o);
OWN_DEFINE(objects)

/* ------------------------------------------------------------ buckets */

struct bucket {
    int64_t id;
    char name[OBJECTS_BUCKET_MAX + 1], project[64];
    int64_t metageneration;
    double created, updated;
    bool versioning;            /* old generations are kept */
    json_t *doc;                /* what else the client said: labels, location ...; an object */
};
void bucket_done(struct bucket *b);

/* What must hold for a call to go on; OBJECTS_ANY where nothing was asked. */
enum { OBJECTS_ANY = -1 };
struct objects_when {
    int64_t generation, not_generation;         /* generation 0: there is none */
    int64_t metageneration, not_metageneration;
    int *unmet; /* set to 1 (2: a "not" condition) when the call fails for it, by ERR_CONFLICT */
};
#define OBJECTS_WHENEVER { OBJECTS_ANY, OBJECTS_ANY, OBJECTS_ANY, OBJECTS_ANY, NULL }

/* Google's rules for names. */
int bucket_name_check(const char *name, struct err *err);
int object_name_check(const char *name, struct err *err);

/* ERR_CONFLICT: the name is taken. `doc` is not taken. */
int buckets_insert(struct server *s, const char *project, const char *name, const json_t *doc,
                   struct bucket *out, struct err *err);
int buckets_get(struct server *s, const char *project, const char *name,
                const struct objects_when *when, struct bucket *out, struct err *err);
/* By name, those after `after`; `each` returning non-zero ends it. */
int buckets_list(struct server *s, const char *project, const char *prefix, const char *after,
                 int (*each)(void *arg, const struct bucket *b), void *arg, struct err *err);
/* `patch` is merged (null removes a key), or takes the place of all there was. */
int buckets_patch(struct server *s, const char *project, const char *name, const json_t *patch,
                  bool replace, const struct objects_when *when, struct bucket *out,
                  struct err *err);
/* ERR_CONFLICT: not empty. */
int buckets_delete(struct server *s, const char *project, const char *name,
                   const struct objects_when *when, struct err *err);

/* ------------------------------------------------------------ objects */

struct object {
    char bucket[OBJECTS_BUCKET_MAX + 1];
    char name[OBJECTS_NAME_MAX + 1];
    int64_t generation, metageneration, size;
    char type[128];             /* content type */
    char sha256[65], md5[25], crc32c[9];        /* hex, base64, base64 */
    double created, updated;
    double deleted;             /* 0: the live one */
    json_t *metadata;           /* the user's own keys, borrowed from doc; NULL: none */
    json_t *doc;                /* "metadata", "cacheControl" ...; NULL: none */
};
void object_done(struct object *o);

/* For other parts of the server (packages of jobs, previews): */
int objects_stat(struct server *s, const char *project, const char *bucket, const char *name,
                 struct object *out, struct err *err);
/* The file, all of it compared. */
int objects_open(struct server *s, const char *project, const char *bucket, const char *name,
                 int *out_fd, int64_t *out_size, struct err *err);
int objects_put(struct server *s, const char *project, const char *bucket, const char *name,
                const char *type, const void *bytes, size_t n, struct err *err);

/* One of its generations; 0: the live one. ERR_MISSING. */
int objects_get(struct server *s, const char *project, const char *bucket, const char *name,
                int64_t generation, const struct objects_when *when, struct object *out,
                struct err *err);

/* The content: a reader, or a small one's bytes; the caller's to free. ERR_MISSING: deleted since. */
struct reader;
int objects_content(struct server *s, const struct object *o, struct reader **out,
                    char **out_bytes, struct err *err);
/* Some of what is at `at`, compared with its checksum; borrowed until the next call. Returns how many
 * bytes, 1 or more; ERR_IO: damaged. */
enum { OBJECTS_BLOCK = 64 << 10,
       READER_BYTES = OBJECTS_BLOCK };   /* at a time: more would leave the processor's cache */
long reader_at(struct reader *r, int64_t at, const char **out, struct err *err);
int reader_check(struct reader *r, struct err *err);    /* all of it */
int reader_take_fd(struct reader *r);   /* the file, at its beginning; the caller's */
void reader_free(struct reader *r);
OWN_DEFINE(reader)
/* That the content is what it was when it was stored: reads all of it. */
int objects_verify(struct server *s, const struct object *o, struct err *err);

struct objects_query {
    const char *project, *bucket;
    const char *prefix, *delimiter;     /* NULL or "": none */
    const char *start, *end;            /* names from `start` on, before `end` */
    const char *glob;                   /* * ? [...] {a,b} and ** over slashes; NULL: all */
    const char *token;                  /* of the page before */
    int limit;                          /* of objects and prefixes together */
    bool versions;                      /* old generations, too */
    bool trailing;                      /* "a/" is an object as well as a prefix */
};
/* In the order of names, byte by byte, then generations. `prefixes` is an array that is added to;
 * out_token is empty at the end. */
int objects_list(struct server *s, const struct objects_query *q,
                 int (*each)(void *arg, const struct object *o), void *arg, json_t *prefixes,
                 struct buf *out_token, struct err *err);

/* Changes the document ("contentType", "metadata", "cacheControl" ...); metageneration grows. */
int objects_patch(struct server *s, const char *project, const char *bucket, const char *name,
                  int64_t generation, const json_t *patch, bool replace,
                  const struct objects_when *when, struct object *out, struct err *err);
/* generation 0: the live one (kept as an old one when the bucket has versions), else that one, for
 * good. */
int objects_delete(struct server *s, const char *project, const char *bucket, const char *name,
                   int64_t generation, const struct objects_when *when, struct err *err);

/* The same content under another name. `doc` NULL: the source's document and type. */
struct objects_copy {
    const char *project;
    const char *bucket, *name;          /* from */
    int64_t generation;
    struct objects_when when;
    const char *to_bucket, *to_name;
    struct objects_when to_when;
    const char *type;                   /* with doc; NULL: the source's */
    const json_t *doc;
    bool move;                          /* the source goes, in the same transaction */
};
int objects_copy(struct server *s, const struct objects_copy *c, struct object *out,
                 struct err *err);

/* ------------------------------------------------------------ writing content */

/* Bytes on their way in: small ones in memory, more in a file of uploads/. */
struct content;
struct content *content_new(struct server *s);  /* NULL: no memory */
void content_free(struct content *c);           /* with the file, when it was not put */
OWN_DEFINE(content)
int content_add(struct content *c, const void *bytes, size_t n, struct err *err);

/* Fails by ERR_IO, "the disk is full ...", where n bytes more do not fit: before they are sent. */
int objects_room(struct server *s, int64_t n, struct err *err);

struct objects_put {
    const char *project, *bucket, *name;
    const char *type;                   /* NULL: application/octet-stream */
    const json_t *doc;                  /* NULL: none; not taken */
    const char *crc32c, *md5;           /* base64, what the client says it is; NULL: nothing */
    struct objects_when when;
    const char *session;                /* ends it; NULL: none */
};
/* Durable when it returns. ERR_INVALID: not the bytes that were announced. */
int content_put(struct content *c, const struct objects_put *p, struct object *out,
                struct err *err);

/* ------------------------------------------------------------ uploads in several requests
 *
 * A session is a row and a file of uploads/, and outlives the server; the file may go when the disk is
 * short, and then it is at its beginning again. Of two requests that send to
 * the same one at a time the later has it; the earlier fails by ERR_CONFLICT at its next byte.
 */
struct session;
/* `order` is whatever the caller wants back: name, type, conditions. Durable when it returns. */
int session_begin(struct server *s, const char *project, const char *bucket, const json_t *order,
                  char out_id[OBJECTS_SESSION], struct err *err);
/* ERR_MISSING: no such session of this project (a week after its last byte they go). */
int session_open(struct server *s, const char *project, const char *id, struct session **out,
                 struct err *err);
void session_free(struct session *u);   /* what came stays */
OWN_DEFINE(session)
const json_t *session_order(const struct session *u);
const char *session_bucket(const struct session *u);
int64_t session_size(const struct session *u);          /* bytes that are here */
int64_t session_done(const struct session *u);          /* the object's generation; 0: not yet */
/* What does not fit the disk empties the session: it may be begun anew when there is room. */
int session_add(struct session *u, const void *bytes, size_t n, struct err *err);
int session_room(struct session *u, int64_t n, struct err *err);        /* the same, beforehand */
int session_sync(struct session *u, struct err *err);   /* what is here stays here */
/* Makes it an object; as content_put, `p->session` is this one. */
int session_put(struct session *u, struct objects_put *p, struct object *out, struct err *err);
int session_cancel(struct session *u, struct err *err);

/* ------------------------------------------------------------ what is asked for often */

/* A live object, shared and never changed. `face` is the asker's: whatever it made of it. */
struct hot {
    struct object object;
    char project[64];
    const char *bytes;          /* of a small one; NULL: in a file */
};
/* From memory, or read and kept there. */
int objects_hot(struct server *s, const char *bucket, const char *name, struct hot **out,
                struct err *err);
struct hot *hot_ref(struct hot *h);
void hot_unref(void *hot);
/* What was kept for `key`, or NULL; borrowed as long as the reference. hot_keep takes `face` unless
 * it returns another that was there first; n: its bytes, for the cache's limit. */
void *hot_face(struct hot *h, int slot);
void *hot_keep(struct hot *h, int slot, void *face, size_t n);  /* freed by free() */
enum { HOT_FACES = 2 };

/* ------------------------------------------------------------ housekeeping */

struct objects_stats {
    int64_t buckets, objects, bytes;    /* of content, each once */
    int64_t cache_bytes, hits, misses;
};
int objects_stats(struct server *s, struct objects_stats *out, struct err *err);

/* One round of the sweeper, as at the time `now`; how many files it removed. */
int objects_sweep(struct objects *o, double now, int *out_removed, struct err *err);

/* Calls `each` with a sentence for every content that is not there or not what it says, to the end;
 * for `serve --check`. Of the server only data_dir and store are needed. */
int objects_check(struct server *s, void (*each)(void *arg, const char *text), void *arg,
                  int64_t *out_contents, int64_t *out_bytes, struct err *err);

#endif
