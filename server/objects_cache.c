/* server/objects_cache.c - live objects that are asked for often, kept in memory
 *
 * DESIGN. Entries are counted: the cache holds one reference, each answer on its way another, so
 * what is thrown out goes when the last answer has. Each shard has a lock, a table and a queue; a
 * full shard drops from the old end, passing over (once) what was used since it was last looked
 * at.
 *
 * Coherence. A write takes the name out before its transaction and lets nobody put it back until it
 * is done: while marks[i].begun != .ended, all who ask read the database, which shows the old row
 * up to the commit and the new one from then on. A reader that began before a write and is done
 * after it finds the mark moved, and keeps nothing.
 */
#include <string.h>

#include "server/objects_int.h"

struct kept {
    struct hot hot;             /* first: a pointer to one is a pointer to the other */
    struct objects *owner;
    atomic_int refs;
    uint64_t hash;
    bool in_cache, used;
    size_t cost;
    struct kept *next;          /* in its slot */
    struct kept *older, *newer;
    _Atomic(void *) faces[HOT_FACES];
    char bytes[];
};

static uint64_t hash_of(const char *bucket, const char *name)
{
    uint64_t h = 0xcbf29ce484222325ull;

    for (const char *p = bucket; *p; p++)
        h = (h ^ (unsigned char)*p) * 0x100000001b3ull;
    h = (h ^ '/') * 0x100000001b3ull;
    for (const char *p = name; *p; p++)
        h = (h ^ (unsigned char)*p) * 0x100000001b3ull;
    return h ^ h >> 29;
}

static struct cache_shard *shard_of(struct objects *o, uint64_t hash)
{
    return &o->shards[hash % CACHE_SHARDS];
}

static struct cache_mark *mark_of(struct objects *o, uint64_t hash)
{
    return &o->marks[hash / CACHE_SHARDS % CACHE_MARKS];
}

static struct kept **slot_of(struct cache_shard *s, uint64_t hash)
{
    return &s->slots[hash / CACHE_SHARDS % CACHE_SLOTS];
}

void hot_unref(void *hot)
{
    struct kept *k = hot;

    if (!k || atomic_fetch_sub(&k->refs, 1) > 1)
        return;
    object_done(&k->hot.object);
    for (int i = 0; i < HOT_FACES; i++)
        free(k->faces[i]);
    free(k);
}

struct hot *hot_ref(struct hot *h)
{
    atomic_fetch_add(&((struct kept *)h)->refs, 1);
    return h;
}

void *hot_face(struct hot *h, int slot)
{
    return ((struct kept *)h)->faces[slot];
}

/* ------------------------------------------------------------ under a shard's lock */

static struct kept *find(struct cache_shard *s, uint64_t hash, const char *bucket, const char *name)
{
    for (struct kept *k = *slot_of(s, hash); k; k = k->next)
        if (k->hash == hash && !strcmp(k->hot.object.name, name) &&
            !strcmp(k->hot.object.bucket, bucket))
            return k;
    return NULL;
}

static void queue_remove(struct cache_shard *s, struct kept *k)
{
    *(k->older ? &k->older->newer : &s->oldest) = k->newer;
    *(k->newer ? &k->newer->older : &s->newest) = k->older;
    k->older = k->newer = NULL;
}

static void queue_add(struct cache_shard *s, struct kept *k)
{
    k->older = s->newest;
    *(s->newest ? &s->newest->newer : &s->oldest) = k;
    s->newest = k;
}

static void take_out(struct cache_shard *s, struct kept *k)
{
    struct kept **at = slot_of(s, k->hash);

    while (*at != k)
        at = &(*at)->next;
    *at = k->next;
    queue_remove(s, k);
    s->bytes -= k->cost;
    k->in_cache = false;
    hot_unref(k);
}

static void make_room(struct cache_shard *s)
{
    while (s->bytes > OBJECTS_CACHE / CACHE_SHARDS && s->oldest) {
        struct kept *k = s->oldest;
        if (k->used) {
            k->used = false;
            queue_remove(s, k);
            queue_add(s, k);
            continue;
        }
        take_out(s, k);
    }
}

/* ------------------------------------------------------------ verbs */

void *hot_keep(struct hot *h, int slot, void *face, size_t n)
{
    struct kept *k = (struct kept *)h;
    void *there = NULL;

    if (!atomic_compare_exchange_strong(&k->faces[slot], &there, face)) {
        free(face);
        return there;
    }
    struct cache_shard *s = shard_of(k->owner, k->hash);
    pthread_mutex_lock(&s->lock);
    if (k->in_cache) {
        k->cost += n;
        s->bytes += n;
        k->used = true;
        make_room(s);
    }
    pthread_mutex_unlock(&s->lock);
    return face;
}

struct load {
    struct objects *objects;
    const char *bucket, *name;
    struct kept *out;
};

static int load(sqlite3 *db, void *arg, struct err *err)
{
    struct load *l = arg;
    struct bucket b = { 0 };
    struct object o = { 0 };

    if (bucket_find(db, NULL, l->bucket, &b, err) < 0)
        return -(int)err->code;
    int rc = object_find(db, &b, l->name, 0, &o, err);
    size_t room = rc == 0 && o.size <= OBJECTS_SMALL ? (size_t)o.size : 0;
    struct kept *k = rc == 0 ? calloc(1, sizeof *k + room) : NULL;
    if (k && o.size <= OBJECTS_SMALL) {
        k->hot.bytes = k->bytes;
        rc = content_load(db, &o, k->bytes, err);
    }
    if (rc == 0 && !k)
        rc = err_set(err, ERR_NOMEM, "no memory for an object");
    if (rc == 0) {
        k->owner = l->objects;
        k->refs = 1;
        k->cost = sizeof *k + room + (o.doc ? 1024 : 0);
        k->hot.object = o;
        snprintf(k->hot.project, sizeof k->hot.project, "%s", b.project);
        l->out = k;
    } else {
        free(k);
        object_done(&o);
    }
    bucket_done(&b);
    return rc;
}

int objects_hot(struct server *s, const char *bucket, const char *name, struct hot **out,
                struct err *err)
{
    struct objects *o = s->objects;
    uint64_t hash = hash_of(bucket, name);
    struct cache_shard *shard = shard_of(o, hash);
    struct cache_mark *mark = mark_of(o, hash);

    pthread_mutex_lock(&shard->lock);
    struct kept *k = find(shard, hash, bucket, name);
    if (k) {
        k->used = true;
        hot_ref(&k->hot);
        shard->hits++;
    } else {
        shard->misses++;
    }
    unsigned begun = mark->begun, ended = mark->ended;
    pthread_mutex_unlock(&shard->lock);
    if (k) {
        *out = &k->hot;
        return 0;
    }

    struct load l = { o, bucket, name, NULL };
    if (store_read(s->store, load, &l, err) < 0)
        return -(int)err->code;
    k = l.out;
    k->hash = hash;
    pthread_mutex_lock(&shard->lock);
    if (begun == ended && mark->begun == begun && !find(shard, hash, bucket, name)) {
        struct kept **slot = slot_of(shard, hash);
        k->next = *slot;
        *slot = k;
        k->in_cache = k->used = true;
        hot_ref(&k->hot);
        queue_add(shard, k);
        shard->bytes += k->cost;
        make_room(shard);
    }
    pthread_mutex_unlock(&shard->lock);
    *out = &k->hot;
    return 0;
}

void cache_write_begins(struct objects *o, const char *bucket, const char *name)
{
    uint64_t hash = hash_of(bucket, name);
    struct cache_shard *s = shard_of(o, hash);

    pthread_mutex_lock(&s->lock);
    atomic_fetch_add(&mark_of(o, hash)->begun, 1);
    struct kept *k = find(s, hash, bucket, name);
    if (k)
        take_out(s, k);
    pthread_mutex_unlock(&s->lock);
}

void cache_write_ends(struct objects *o, const char *bucket, const char *name)
{
    atomic_fetch_add(&mark_of(o, hash_of(bucket, name))->ended, 1);
}

void cache_init(struct objects *o)
{
    for (int i = 0; i < CACHE_SHARDS; i++)
        pthread_mutex_init(&o->shards[i].lock, NULL);
}

void cache_done(struct objects *o)
{
    for (int i = 0; i < CACHE_SHARDS; i++) {
        while (o->shards[i].oldest)
            take_out(&o->shards[i], o->shards[i].oldest);
        pthread_mutex_destroy(&o->shards[i].lock);
    }
}
