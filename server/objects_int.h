/* server/objects_int.h - inside the buckets; for objects*.c only */
#ifndef MUSTER_SERVER_OBJECTS_INT_H
#define MUSTER_SERVER_OBJECTS_INT_H

#include <limits.h>
#include <nettle/md5.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/sha256.h"
#include "server/objects.h"
#include "server/server.h"

enum { CACHE_SHARDS = 8, CACHE_SLOTS = 256, CACHE_MARKS = 1024,
       DAMAGED_MAX = 64 };

struct pin {                    /* content that is between its rename and its row */
    uint8_t sha256[SHA256_BYTES];
    struct pin *next;
};

struct digest_helper {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool runs, stop, taken;
    struct md5_ctx *md5;        /* what to do; NULL: nothing */
    const uint8_t *bytes;
    size_t n;
};

struct kept;
struct cache_shard {
    pthread_mutex_t lock;
    struct kept *slots[CACHE_SLOTS];
    struct kept *oldest, *newest;
    size_t bytes;
    uint64_t hits, misses;
};

/* Writes of names that share a mark: begun == ended when none is on its way. */
struct cache_mark { atomic_uint begun, ended; };

struct objects {
    struct server *server;
    char dir[PATH_MAX - 300];   /* of the data; room for what comes after it */
    _Atomic int64_t generation; /* the newest given */

    struct cache_shard shards[CACHE_SHARDS];
    struct cache_mark marks[CACHE_MARKS];

    struct digest_helper helper;

    pthread_mutex_t damage_lock;
    char damaged[DAMAGED_MAX][SHA256_HEX];      /* found lately: looked at as a whole before it is sent */
    int n_damaged;

    pthread_mutex_t pins_lock;
    struct pin *pins;

    pthread_mutex_t sessions_lock;
    struct live *sessions;      /* those that this process has received bytes of */

    pthread_mutex_t sweep_lock;
    pthread_cond_t sweep_wake;
    pthread_t sweeper;
    bool sweeper_runs;
    atomic_bool stop;
    atomic_bool unused;         /* there may be content without a name */
};

/* ------------------------------------------------------------ objects_rows.c */

#define OBJECT_COLUMNS \
    "name, generation, metageneration, size, type, sha256, md5, crc32c, created, updated, " \
    "deleted, doc"

/* Of a row that begins with OBJECT_COLUMNS. */
int object_of_row(sqlite3_stmt *st, const char *bucket, struct object *out, struct err *err);
/* Inside a read or write. ERR_MISSING, ERR_DENIED. out->doc is set: bucket_done. */
int bucket_find(sqlite3 *db, const char *project, const char *name, struct bucket *out,
                struct err *err);
/* generation 0: the live one; ERR_MISSING. */
int object_find(sqlite3 *db, const struct bucket *b, const char *name, int64_t generation,
                struct object *out, struct err *err);
/* Fails unless it holds; `o` NULL: there is none. */
int when_holds(const struct objects_when *w, const struct object *o, struct err *err);

/* A new live generation of p->bucket/p->name with the content and checksums in `o`, in place of the
 * one there is; `bytes` NULL: the content is in a file or has a row already. Fills `o`. */
struct new_row {
    const struct objects_put *put;
    const char *bytes;
    struct object *object;
    int64_t generation;
    bool moves;                 /* from another name: the project holds no more than before */
    const struct buf *sums;     /* of its blocks, when it is in a file; NULL: they are there */
};
int object_insert(struct objects *objects, sqlite3 *db, const struct new_row *row, struct err *err);

/* The same in a transaction of its own. */
int row_put(struct objects *o, const struct new_row *row, struct err *err);
/* Of an old generation, or of one that is no longer the live one. */
int content_read_small(struct server *s, const struct object *o, char **out_bytes,
                       struct err *err);
/* Into room for o->size bytes, inside a read; compared with the object's checksum. */
int content_load(sqlite3 *db, const struct object *o, char *out, struct err *err);

int64_t generation_next(struct objects *o);
/* `into` becomes what `patch` makes of it: null removes a key, objects are merged. -1: no memory */
int doc_merge(json_t *into, const json_t *patch);
void doc_clean(json_t *doc);    /* nulls are taken out */
void hex_bytes(const char *hex, uint8_t out[SHA256_BYTES]);
/* Bytes to base64, as text. */
void base64_text(const void *bytes, size_t n, char *out);

/* ------------------------------------------------------------ objects_digest.c */

struct digests {
    struct sha256 sha256;
    struct md5_ctx md5;
    uint32_t crc32c;
    int64_t n;
    uint32_t block;             /* of the block that is not full yet */
    struct buf sums;            /* of those that are */
};
void digests_start(struct digests *d);
void digests_done(struct digests *d);
/* The checksums of all blocks, the last one too; an array of uint32_t. */
int digests_blocks(const struct digests *d, struct buf *out, struct err *err);
void digests_add(struct digest_helper *h, struct digests *d, const void *bytes, size_t n);
void digests_finish(struct digests *d, struct object *out);     /* of a copy: d may go on */
int digests_compare(const struct object *o, const struct objects_put *p, struct err *err);
void helper_init(struct digest_helper *h);
void helper_done(struct digest_helper *h);

/* ------------------------------------------------------------ objects_blob.c */

void blob_path(const struct objects *o, const char *sha256, char out[PATH_MAX]);
int sync_folder(const char *path, struct err *err);
int write_all(int fd, const void *bytes, size_t n, const char *what, struct err *err);
/* Syncs the file and gives it its name among the blobs; then `put` runs while the sweeper keeps
 * off. */
int blob_publish(struct objects *o, int fd, const char *path, const struct digests *d,
                 struct object *object, const struct objects_put *p, struct err *err);
/* Checks the name; fills size, type and document. */
int object_describe(struct object *o, const struct objects_put *p, int64_t size, struct err *err);

/* Both under pins_lock. Named: there is a row, or it cannot be said. */
bool blob_pinned(const struct objects *o, const uint8_t sha256[SHA256_BYTES]);
bool blob_named(struct objects *o, const uint8_t sha256[SHA256_BYTES]);

/* ------------------------------------------------------------ objects_sums.c */

/* What the disk has made of content: ERR_IO, and a line in the log, once. */
int content_damaged(const struct object *o, const char *what, struct err *err);
/* Inside a write. */
int sums_insert(sqlite3 *db, const uint8_t sha256[SHA256_BYTES], const struct buf *sums,
                struct err *err);
int sums_delete(sqlite3 *db, const uint8_t sha256[SHA256_BYTES], struct err *err);
/* Content of a muster that kept none gets them, one after the other. */
void sums_complete(struct objects *o);
/* The file was written anew. */
void damage_forget(struct objects *o, const char *sha256);

/* ------------------------------------------------------------ objects_sweep.c */

/* What buckets may still take, in bytes: some of the disk is left to jobs and their events. */
int64_t room_now(const struct objects *o);
/* ERR_IO, "the disk is full ...", unless there is room for n bytes more, made by emptying sessions at
 * rest where it has to be. */
int room_need(struct objects *o, int64_t n, struct err *err);
int room_none(struct err *err);         /* says so */

void sweeper_wake(struct objects *o);
int sweeper_start(struct objects *o, struct err *err);
void sweeper_stop(struct objects *o);

/* ------------------------------------------------------------ objects_session.c */

void sessions_free(struct objects *o);
int session_mark_done(sqlite3 *db, const char *id, int64_t generation, struct err *err);
/* Empties those that nobody has sent to for a minute, the oldest first, until there is room for n
 * bytes. */
void sessions_reclaim(struct objects *o, double now, int64_t n);
/* Those that nobody has sent to since `before`. */
int sessions_sweep(struct objects *o, double before, int *removed, struct err *err);

/* ------------------------------------------------------------ objects_cache.c */

void cache_init(struct objects *o);
void cache_done(struct objects *o);
/* Around a write of this name. */
void cache_write_begins(struct objects *o, const char *bucket, const char *name);
void cache_write_ends(struct objects *o, const char *bucket, const char *name);

#endif
