/* server/objects_list.c - the objects of a bucket in pages, folders made out of names; and all of
 * them */
#include <errno.h>
#include <fcntl.h>
#include <nettle/base64.h>
#include <string.h>
#include <sys/stat.h>

#include "server/objects_int.h"

/* ------------------------------------------------------------ globs */

/* A class at `p` (past the '['): the byte after its ']', or NULL: there is none. */
static const char *class_end(const char *p)
{
    p += *p == '!' || *p == '^';
    p += *p == ']';
    return strchr(p, ']');
}

static bool in_class(const char *p, const char *end, char c)
{
    bool not = *p == '!' || *p == '^', in = false;

    for (p += not; p < end; p++) {
        if (p + 2 < end && p[1] == '-') {
            in |=
                (unsigned char)p[0] <= (unsigned char)c && (unsigned char)c <= (unsigned char)p[2];
            p += 2;
        } else {
            in |= *p == c;
        }
    }
    return in != not;
}

/* A glob of many stars would else take for ever, and nest as deep. */
enum { GLOB_STARS = 24, GLOB_STEPS = 20 * 1000 * 1000 };

static int glob_check(const char *g, struct err *err)
{
    int stars = 0;

    for (const char *p = g; *p; p++)
        stars += *p == '*' || *p == '{';
    if (strlen(g) > OBJECTS_NAME_MAX || stars > 2 * GLOB_STARS)
        return err_set(err, ERR_INVALID, "Invalid matchGlob: %d bytes and %d stars at most",
                       OBJECTS_NAME_MAX, GLOB_STARS);
    return 0;
}

static bool glob(const char *g, const char *text, long *steps);

/* {a,b}: each with what comes after it. */
static bool glob_either(const char *g, const char *text, long *steps)
{
    const char *end = strchr(g, '}');
    char rest[OBJECTS_NAME_MAX + 1];

    for (const char *p = g + 1; end && p <= end;) {
        size_t n = strcspn(p, ",}");
        if ((size_t)snprintf(rest, sizeof rest, "%.*s%s", (int)n, p, end + 1) < sizeof rest &&
            glob(rest, text, steps))
            return true;
        p += n + 1;
    }
    return false;
}

/* At a star: what comes after it fits somewhere further on. "**" goes over slashes. */
static bool glob_star(const char *g, const char *text, long *steps)
{
    bool all = g[1] == '*';

    g += all ? 2 : 1;
    if (all && *g == '/' && glob(g + 1, text, steps))   /* "**" and "/" also stand for nothing */
        return true;
    for (;; text++) {
        if (glob(g, text, steps))
            return true;
        if (!*text || (!all && *text == '/') || *steps < 0)
            return false;
    }
}

static bool glob(const char *g, const char *text, long *steps)
{
    for (; *g; g++, text++) {
        if (--*steps < 0)
            return false;
        if (*g == '*')
            return glob_star(g, text, steps);
        if (*g == '{')
            return glob_either(g, text, steps);
        const char *end = *g == '[' ? class_end(g + 1) : NULL;
        if (!*text || (end ? *text == '/' || !in_class(g + 1, end, *text)
                           : *g == '?' ? *text == '/' : *g != *text))
            return false;
        g = end ? end : g;
    }
    return !*text;
}

/* ------------------------------------------------------------ pages */

struct page {
    const struct objects_query *q;
    int (*each)(void *arg, const struct object *o);
    void *arg;
    json_t *prefixes;
    struct buf *token;
    /* Rows after these are still to come. */
    char after[OBJECTS_NAME_MAX + 2];
    int64_t generation;
    int count, limit;
    long steps;                 /* of the glob, left */
};

/* The place as text: the name, NUL, the generation, in base64. */
static void token_write(const struct page *p)
{
    char raw[OBJECTS_NAME_MAX + 32], text[BASE64_ENCODE_RAW_LENGTH(sizeof raw) + 1];
    int n = snprintf(raw, sizeof raw, "%s", p->after);

    n += 1 + snprintf(raw + n + 1, sizeof raw - (size_t)n - 1, "%lld", (long long)p->generation);
    base64_text(raw, (size_t)n, text);
    for (char *c = text; *c; c++)       /* in a URL as it is */
        *c = *c == '+' ? '-' : *c == '/' ? '_' : *c;
    buf_text(p->token, text);
}

static int token_read(struct page *p, const char *token, struct err *err)
{
    size_t n = strlen(token), got;
    char text[BASE64_ENCODE_RAW_LENGTH(OBJECTS_NAME_MAX + 32) + 1];
    uint8_t raw[sizeof text];
    struct base64_decode_ctx ctx;

    if (n >= sizeof text)
        return err_set(err, ERR_INVALID, "Invalid pageToken");
    for (size_t i = 0; i <= n; i++)
        text[i] = token[i] == '-' ? '+' : token[i] == '_' ? '/' : token[i];
    base64_decode_init(&ctx);
    got = sizeof raw - 1;
    if (!base64_decode_update(&ctx, &got, raw, n, text) || !base64_decode_final(&ctx))
        return err_set(err, ERR_INVALID, "Invalid pageToken");
    raw[got] = '\0';
    size_t name = strlen((char *)raw);
    if (name >= got || name >= sizeof p->after)
        return err_set(err, ERR_INVALID, "Invalid pageToken");
    memcpy(p->after, raw, name + 1);
    p->generation = strtoll((char *)raw + name + 1, NULL, 10);
    return 0;
}

/* The first row that a page may hold: the largest of all that say where to begin. */
static int place(struct page *p, struct err *err)
{
    const struct objects_query *q = p->q;

    p->generation = -1;
    if (q->token && *q->token && token_read(p, q->token, err) < 0)
        return -(int)err->code;
    const char *starts[] = { q->prefix, q->start };
    for (int i = 0; i < 2; i++)
        if (starts[i] && strcmp(starts[i], p->after) > 0) {
            if (strlen(starts[i]) > OBJECTS_NAME_MAX)
                return err_set(err, ERR_INVALID, "a name has %d bytes at most", OBJECTS_NAME_MAX);
            snprintf(p->after, sizeof p->after, "%s", starts[i]);
            p->generation = -1;
        }
    return 0;
}

/* The folder that `name` is in below the prefix: its length, 0: none. */
static size_t folder_of(const struct objects_query *q, const char *name)
{
    size_t prefix = q->prefix ? strlen(q->prefix) : 0;

    if (!q->delimiter || !*q->delimiter)
        return 0;
    const char *at = strstr(name + prefix, q->delimiter);
    return at ? (size_t)(at - name) + strlen(q->delimiter) : 0;
}

enum { PAGE_NEXT, PAGE_SEEK, PAGE_END };

static int page_folder(struct page *p, const char *name, size_t n, bool item)
{
    if (p->count + (item ? 2 : 1) > p->limit && p->count > 0) {
        token_write(p);
        return PAGE_END;
    }
    json_array_append_new(p->prefixes, json_stringn(name, n));
    p->count++;
    /* Past all names of the folder: its last byte plus one (UTF-8 has no 0xff). */
    snprintf(p->after, sizeof p->after, "%.*s", (int)n, name);
    p->after[n - 1]++;
    p->generation = -1;
    return PAGE_SEEK;
}

static int page_row(struct page *p, sqlite3_stmt *st, struct err *err)
{
    const struct objects_query *q = p->q;
    const char *name = (const char *)sqlite3_column_text(st, 0);
    struct object o;

    if (!name)
        return err_set(err, ERR_NOMEM, "no memory for a list of objects");
    if ((q->prefix && strncmp(name, q->prefix, strlen(q->prefix))) ||
        (q->end && *q->end && strcmp(name, q->end) >= 0))
        return PAGE_END;
    if (!q->versions && sqlite3_column_double(st, 10) > 0)
        return PAGE_NEXT;
    if (q->glob && *q->glob && !glob(q->glob, name, &p->steps))
        return p->steps >= 0 ? PAGE_NEXT
            : err_set(err, ERR_INVALID, "matchGlob takes too long (give a prefix, fewer stars)");
    size_t folder = folder_of(q, name);
    bool item = folder && q->trailing && !name[folder];
    if (folder && !item)
        return page_folder(p, name, folder, false);
    if (p->count + (item ? 2 : 1) > p->limit && p->count > 0) {
        token_write(p);
        return PAGE_END;
    }
    if (object_of_row(st, q->bucket, &o, err) < 0)
        return -(int)err->code;
    int rc = p->each(p->arg, &o);
    p->count++;
    if (item)
        rc = rc ? rc : page_folder(p, name, folder, true);
    snprintf(p->after, sizeof p->after, "%s", o.name);
    p->generation = o.generation;
    if (item) {
        p->after[folder - 1]++;
        p->generation = -1;
    }
    object_done(&o);
    return rc < 0 ? err_set(err, ERR_NOMEM, "no memory for a list of objects")
                  : item ? PAGE_SEEK : PAGE_NEXT;
}

static int list(sqlite3 *db, void *arg, struct err *err)
{
    struct page *p = arg;
    struct bucket b;
    int rc = PAGE_SEEK;

    if (bucket_find(db, p->q->project, p->q->bucket, &b, err) < 0)
        return -(int)err->code;
    bucket_done(&b);
    while (rc == PAGE_SEEK) {
        sqlite3_stmt *st = store_sql(db,
                                     "SELECT " OBJECT_COLUMNS " FROM objects WHERE bucket = ? AND "
                                     "(name, generation) > (?, ?) ORDER BY name, generation",
                                     err);
        if (!st || store_bind(st, err, "isi", b.id, p->after, p->generation) < 0)
            return -(int)err->code;
        rc = PAGE_NEXT;
        int more = 0;
        while (rc == PAGE_NEXT && (more = store_step(st, err)) > 0)
            rc = page_row(p, st, err);
        sqlite3_reset(st);
        if (more < 0)
            return more;
    }
    return rc < 0 ? rc : 0;
}

int objects_list(struct server *s, const struct objects_query *q,
                 int (*each)(void *arg, const struct object *o), void *arg, json_t *prefixes,
                 struct buf *out_token, struct err *err)
{
    struct page p = { .q = q, .each = each, .arg = arg, .prefixes = prefixes, .token = out_token,
                      .limit = q->limit > 0 ? q->limit : 1000, .steps = GLOB_STEPS };

    if ((q->glob && glob_check(q->glob, err) < 0) || place(&p, err) < 0
        || store_read(s->store, list, &p, err) < 0)
        return -(int)err->code;
    return buf_ok(out_token, err);
}

/* ------------------------------------------------------------ all of it */

static int count(sqlite3 *db, void *arg, struct err *err)
{
    struct objects_stats *out = arg;
    sqlite3_stmt *st = store_sql(db, "SELECT (SELECT count(*) FROM buckets), (SELECT count(*) FROM "
                                 "objects WHERE deleted = 0), (SELECT total(size) FROM contents "
                                 "WHERE refs > 0)", err);

    if (!st || store_step(st, err) < 0)
        return -(int)err->code;
    out->buckets = sqlite3_column_int64(st, 0);
    out->objects = sqlite3_column_int64(st, 1);
    out->bytes = (int64_t)sqlite3_column_double(st, 2);
    sqlite3_reset(st);
    return 0;
}

int objects_stats(struct server *s, struct objects_stats *out, struct err *err)
{
    struct objects_stats found = { 0 };

    if (store_read(s->store, count, &found, err) < 0)
        return -(int)err->code;
    for (int i = 0; i < CACHE_SHARDS; i++) {
        struct cache_shard *shard = &s->objects->shards[i];
        pthread_mutex_lock(&shard->lock);
        found.cache_bytes += (int64_t)shard->bytes;
        found.hits += (int64_t)shard->hits;
        found.misses += (int64_t)shard->misses;
        pthread_mutex_unlock(&shard->lock);
    }
    *out = found;
    return 0;
}
