/* base/http_file.c - a file behind a URL, read by ranges
 *
 * DESIGN. The first request asks for the first block and learns size and version. With ranges, two
 * slots hold blocks: one is the reader's (`held`), into the other the thread fetches what `ask`
 * says: a block that the reader waits for, or the next one. Without ranges the thread writes the
 * whole to a file, and the reader waits until `have` is far enough. A sparse file with ranges has
 * neither thread nor slots: each read is a request. The reader never touches the
 * handle once there is a thread; the thread never touches the held slot. All else is under `lock`.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/http_int.h"

enum {
    TRIES = 5,                  /* in a row, without a byte between them */
    TRIES_A_BLOCK = 64,         /* in all: a server that sends a byte a connection is no server */
    RETRY_AFTER_S_MAX = 10,
    VERSION_MAX = 256,
    PAGE_MAX = 1 << 20,         /* of an error page, then nobody listens any more */
    SPARSE_FIRST = 64,          /* asked for to learn size and version */
};
static const int pause_ms[TRIES] = { 0, 100, 400, 1000, 2500 };

struct slot {
    int64_t index;              /* of the block; -1: none */
    size_t n;
    char *data;                 /* (HTTP_BLOCK) */
};

struct http_file {
    struct http_target target;
    CURL *curl;
    int64_t size;               /* -1: not known */
    char etag[VERSION_MAX], modified[VERSION_MAX];
    int known;                  /* size and version are those of an answer */
    int ranges;
    int sparse;                 /* blocks are neither kept nor fetched ahead */

    pthread_t thread;
    int running;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    _Atomic int closing;

    struct slot slot[2];
    int held;
    int64_t ask;                /* block for the thread; -1: none */
    int64_t last;               /* block that was read last */
    int64_t failed;             /* block that could not be had, and why; -1: none */
    struct err why;

    int spool;                  /* descriptor; -1: there is none */
    uint64_t have;
    int spooled;                /* the thread is done, well or (why.code) not */
};

/* One request: what is asked for, what has come. */
struct transfer {
    struct http_file *f;
    uint64_t first, want;       /* want 0: all */
    char *into;                 /* NULL: into the spool */
    uint64_t got;
    uint64_t skip;              /* spool: bytes that are there already */
    uint64_t other;             /* bytes of an error page */
    int looked;                 /* the head of the answer is in order */
    int fatal;                  /* err says why */
    struct err *err;
};

enum outcome { DONE, BROKEN, REFUSED, NO_RANGES };

struct http_range http_parse_range(const char *text)
{
    struct http_range r = { -2, -2, -2 };
    int n = -1;

    /* Up to fifteen digits: a petabyte. What is longer does not fit the pattern. */
    sscanf(text, "bytes %15" SCNd64 "-%15" SCNd64 "/%15" SCNd64 "%n", &r.first, &r.last, &r.total,
           &n);
    if (n > 0 && !text[n] && r.first >= 0 && r.last >= r.first && r.total > r.last)
        return r;
    n = -1;
    sscanf(text, "bytes %15" SCNd64 "-%15" SCNd64 "/*%n", &r.first, &r.last, &n);
    if (n > 0 && !text[n] && r.first >= 0 && r.last >= r.first)
        return (struct http_range){ r.first, r.last, -1 };
    n = -1;
    sscanf(text, "bytes */%15" SCNd64 "%n", &r.total, &n);
    if (n > 0 && !text[n] && r.total >= 0)
        return (struct http_range){ -1, -1, r.total };
    return (struct http_range){ -2, -2, -2 };
}

static int say_changed(struct http_file *f, struct err *err)
{
    return err_set(err, ERR_CONFLICT, "%s: changed while it was being read (start again when it "
                   "no longer changes)", f->target.name);
}

/* ------------------------------------------------------------------ one request */

/* Remembers the version of the first answer, compares that of every other one. */
static int check_version(struct http_file *f, int64_t size, struct err *err)
{
    char etag[VERSION_MAX], modified[VERSION_MAX];

    http_header(f->curl, "ETag", etag, sizeof etag);
    http_header(f->curl, "Last-Modified", modified, sizeof modified);
    if (!f->known) {
        memcpy(f->etag, etag, sizeof etag);
        memcpy(f->modified, modified, sizeof modified);
        f->size = size;
        f->known = 1;
        return 0;
    }
    /* A date alone decides where there is no ETag: it is coarser, and all there is. */
    if (size != f->size || strcmp(etag, f->etag) || (!*etag && strcmp(modified, f->modified)))
        return say_changed(f, err);
    return 0;
}

/* The head of an answer to a request for a range. */
static int look_at_range(struct transfer *t)
{
    struct http_file *f = t->f;
    char text[128];

    http_header(f->curl, "Content-Range", text, sizeof text);
    struct http_range r = http_parse_range(text);
    if (r.first != (int64_t)t->first || r.last - r.first >= (int64_t)t->want)
        return err_set(t->err, ERR_IO, "%s: the server sends another range (\"%s\") than was asked "
                       "for", f->target.name, text);
    return check_version(f, r.total, t->err);
}

static int64_t length_of(struct http_file *f)
{
    const struct http_curl *api;
    struct err ignored;
    curl_off_t n = -1;

    if (http_curl(&api, &ignored) == 0)
        api->easy_getinfo(f->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &n);
    return n;
}

static int look(struct transfer *t)
{
    if (t->looked)
        return 0;
    t->looked = 1;
    return t->into ? look_at_range(t) : check_version(t->f, length_of(t->f), t->err);
}

static size_t fail(struct transfer *t)
{
    t->fatal = 1;
    return 0;           /* fewer than were offered: libcurl gives up */
}

/* Appends to the spool what is not there yet. */
static int keep(struct transfer *t, const char *data, size_t n)
{
    struct http_file *f = t->f;
    size_t done = t->skip < n ? (size_t)t->skip : n;

    t->skip -= done;
    while (done < n) {
        ssize_t k = pwrite(f->spool, data + done, n - done, (off_t)f->have);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return err_set(t->err, ERR_IO,
                           "%s: cannot be kept in $TMPDIR: %s (free some space, or put "
                           "the file on a server that knows ranges)",
                           f->target.name, strerror(errno));
        done += (size_t)k;
        pthread_mutex_lock(&f->lock);
        f->have += (uint64_t)k;
        pthread_cond_broadcast(&f->changed);
        pthread_mutex_unlock(&f->lock);
    }
    return 0;
}

static size_t take_bytes(char *data, size_t one, size_t n, void *arg)
{
    struct transfer *t = arg;
    const struct http_curl *api;
    long status = 0;

    (void)one;
    if (http_curl(&api, t->err) < 0)
        return fail(t);
    api->easy_getinfo(t->f->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status != (t->into ? 206 : 200)) {
        t->other += n;          /* a whole file in place of a range is not waited for */
        return status == 200 || t->other > PAGE_MAX ? 0 : n;
    }
    if (look(t) < 0)
        return fail(t);
    if (!t->into && keep(t, data, n) < 0)
        return fail(t);
    if (t->into && n > t->want - t->got) {
        err_set(t->err, ERR_IO, "%s: the server sends more than was asked for", t->f->target.name);
        return fail(t);
    }
    if (t->into)
        memcpy(t->into + t->got, data, n);
    t->got += n;
    return n;
}

static int stop_asked(void *arg, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)a, (void)b, (void)c, (void)d;
    return ((struct http_file *)arg)->closing;
}

static struct curl_slist *headers_of(const struct http_file *f, const struct http_curl *api,
                                     struct transfer *t)
{
    /* A bucket unpacks what is stored packed, unless asked not to; no other server packs
     * unasked. */
    const char *plain = f->target.is_gs ? "Accept-Encoding: gzip" : "Accept-Encoding: identity";
    const char *version = *f->etag && strncmp(f->etag, "W/", 2) ? f->etag : NULL;
    struct curl_slist *list = api->slist_append(NULL, plain);
    char line[VERSION_MAX + 16];

    if (list && f->target.authorization && !api->slist_append(list, f->target.authorization))
        return api->slist_free_all(list), NULL;
    snprintf(line, sizeof line, "If-Range: %s", version ? version : "");
    if (list && t->into && f->known && version && !api->slist_append(list, line))
        return api->slist_free_all(list), NULL;
    return list;
}

/* What it means that a range was asked for and the whole is offered. */
static enum outcome judge_whole(struct transfer *t)
{
    struct http_file *f = t->f;

    if (!f->known)
        return check_version(f, length_of(f), t->err) < 0 ? REFUSED : NO_RANGES;
    if (check_version(f, length_of(f), t->err) < 0)
        return REFUSED;
    err_set(t->err, ERR_IO, "%s: the server gives no ranges any more", f->target.name);
    return BROKEN;
}

/* Tells what an answer means; BROKEN and REFUSED with a sentence in t->err. */
static enum outcome judge(struct transfer *t, CURLcode code, long status)
{
    struct http_file *f = t->f;
    char text[128];

    if (t->fatal)
        return REFUSED;
    if (code != CURLE_OK && code != CURLE_WRITE_ERROR) {
        http_say_curl(&f->target, code, t->err);
        /* Nobody there at the start is an answer; in the middle it is a server that restarts. */
        if (f->known && code == CURLE_COULDNT_CONNECT)
            return BROKEN;
        return http_may_pass(code) ? BROKEN : REFUSED;
    }
    if (t->into && status == 200)
        return judge_whole(t);
    if (t->into && status == 416) {
        http_header(f->curl, "Content-Range", text, sizeof text);
        if (!f->known && t->first == 0 && http_parse_range(text).total == 0)
            return check_version(f, 0, t->err) < 0 ? REFUSED : DONE;
        say_changed(f, t->err);
        return REFUSED;
    }
    if (status != (t->into ? 206 : 200)) {
        if (http_say_status(f->target.name, status, t->err) == 0)
            err_set(t->err, ERR_IO, "%s: the server answers %ld to a plain request", f->target.name,
                    status);
        return http_status_may_pass(status) ? BROKEN : REFUSED;
    }
    return look(t) < 0 ? REFUSED : DONE;        /* an empty body has not been looked at */
}

static enum outcome request(struct transfer *t, long *out_after_s)
{
    struct http_file *f = t->f;
    const struct http_curl *api;
    char range[64];
    long status = 0;
    curl_off_t after = 0;

    if (http_curl(&api, t->err) < 0)
        return REFUSED;
    struct curl_slist *list = headers_of(f, api, t);
    if (!list)
        return err_set(t->err, ERR_NOMEM, "no memory to read %s", f->target.name), REFUSED;
    snprintf(range, sizeof range, "%" PRIu64 "-%" PRIu64, t->first, t->first + t->want - 1);
    api->easy_setopt(f->curl, CURLOPT_RANGE, t->into ? range : NULL);
    api->easy_setopt(f->curl, CURLOPT_HTTPHEADER, list);
    api->easy_setopt(f->curl, CURLOPT_WRITEFUNCTION, take_bytes);
    api->easy_setopt(f->curl, CURLOPT_WRITEDATA, t);
    api->easy_setopt(f->curl, CURLOPT_NOPROGRESS, 0L);
    api->easy_setopt(f->curl, CURLOPT_XFERINFOFUNCTION, stop_asked);
    api->easy_setopt(f->curl, CURLOPT_XFERINFODATA, f);
    CURLcode code = api->easy_perform(f->curl);
    api->easy_getinfo(f->curl, CURLINFO_RESPONSE_CODE, &status);
    api->easy_getinfo(f->curl, CURLINFO_RETRY_AFTER, &after);
    api->easy_setopt(f->curl, CURLOPT_HTTPHEADER, NULL);
    api->slist_free_all(list);
    *out_after_s = after < RETRY_AFTER_S_MAX ? (long)after : RETRY_AFTER_S_MAX;
    return judge(t, code, status);
}

/* ------------------------------------------------------------------ again and again */

struct patience {
    int in_a_row, in_all;
};

/* Sleeps before another try; false: that was the last, and err says so. */
static int may_try_again(struct http_file *f, struct patience *p, int came, long after_s,
                         struct err *err)
{
    p->in_a_row = came ? 1 : p->in_a_row + 1;
    if (f->closing)
        return 0;
    if (p->in_a_row >= TRIES || ++p->in_all >= TRIES_A_BLOCK) {
        err_add(err, "after %d tries", p->in_a_row >= TRIES ? TRIES : TRIES_A_BLOCK);
        return 0;
    }
    double end = clock_seconds() + pause_ms[p->in_a_row] / 1e3;
    if (after_s * 1e3 > pause_ms[p->in_a_row])
        end = clock_seconds() + (double)after_s;
    while (clock_seconds() < end && !f->closing)
        usleep(20000);
    return !f->closing;
}

/* Bytes first .. first + want of the file, or to its end when that comes sooner. */
static enum outcome fetch(struct http_file *f, uint64_t first, size_t want, char *into,
                          size_t *out_n, struct err *err)
{
    struct patience patience = { 0 };
    struct err why = { 0 };     /* of a try: *err stays untouched when another one succeeds */
    size_t n = 0;
    long after;

    while (1) {
        if (f->known && f->size >= 0 && first + want > (uint64_t)f->size)
            want = (uint64_t)f->size > first ? (size_t)((uint64_t)f->size - first) : 0;
        if (n >= want)
            break;
        struct transfer t = { .f = f, .first = first + n, .want = want - n, .into = into + n,
                              .err = &why };
        enum outcome o = request(&t, &after);
        n += (size_t)t.got;
        if (o == NO_RANGES || (o == DONE && f->size == 0))
            return *out_n = 0, o;
        if (o == DONE && t.got == 0) {
            err_set(&why, ERR_IO, "%s: the server sends an empty range", f->target.name);
            o = BROKEN;
        }
        if (o == BROKEN && !may_try_again(f, &patience, t.got > 0, after, &why))
            o = REFUSED;
        if (o == REFUSED) {
            *err = why;
            return o;
        }
    }
    *out_n = n;
    return DONE;
}

/* ------------------------------------------------------------------ the thread */

static void *fetch_blocks(void *arg)
{
    struct http_file *f = arg;

    pthread_mutex_lock(&f->lock);
    while (!f->closing) {
        if (f->ask < 0) {
            pthread_cond_wait(&f->changed, &f->lock);
            continue;
        }
        const int64_t index = f->ask;
        struct slot *s = &f->slot[!f->held];
        struct err why = { 0 };
        s->index = -1;
        pthread_mutex_unlock(&f->lock);
        enum outcome o = REFUSED;
        if (!s->data && !(s->data = malloc(HTTP_BLOCK)))
            err_set(&why, ERR_NOMEM, "no memory to read %s", f->target.name);
        else
            o = fetch(f, (uint64_t)index * HTTP_BLOCK, HTTP_BLOCK, s->data, &s->n, &why);
        pthread_mutex_lock(&f->lock);
        if (o == DONE) {
            s->index = index;
        } else {
            f->failed = index;
            f->why = why;
        }
        f->ask = -1;
        pthread_cond_broadcast(&f->changed);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

static void *fetch_whole(void *arg)
{
    struct http_file *f = arg;
    struct patience patience = { 0 };
    struct err why = { 0 };
    enum outcome o;

    do {
        const uint64_t before = f->have;
        struct transfer t = { .f = f, .skip = before, .err = &why };
        long after;
        o = request(&t, &after);
        if (o == DONE && f->size >= 0 && f->have != (uint64_t)f->size) {
            say_changed(f, &why);
            o = REFUSED;
        }
        /* Without a version nobody can tell that what comes now continues what came. */
        if (o == BROKEN && before < f->have && !*f->etag && !*f->modified) {
            err_add(&why, "byte %" PRIu64 ", and the server has neither ranges nor versions",
                    f->have);
            o = REFUSED;
        }
        if (o == BROKEN && !may_try_again(f, &patience, f->have > before, after, &why))
            o = REFUSED;
    } while (o == BROKEN);
    pthread_mutex_lock(&f->lock);
    f->spooled = 1;
    if (o != DONE)
        f->why = why;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

static int start(struct http_file *f, struct err *err)
{
    if (f->running)
        return 0;
    if (!f->curl && http_handle_take(&f->target, &f->curl, err) < 0)
        return -(int)err->code;
    int rc = pthread_create(&f->thread, NULL, f->ranges ? fetch_blocks : fetch_whole, f);
    if (rc)
        return err_set(err, ERR_AGAIN, "no thread to read %s: %s", f->target.name, strerror(rc));
    f->running = 1;
    return 0;
}

/* ------------------------------------------------------------------ life cycle */

static int open_spool(struct http_file *f, struct err *err)
{
    const char *dir = getenv("TMPDIR");
    char path[4096];

    if (!dir || !*dir)
        dir = "/tmp";
    f->spool = open(dir, O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600);
    if (f->spool < 0) {         /* some file systems cannot */
        snprintf(path, sizeof path, "%.4000s/muster-XXXXXX", dir);
        f->spool = mkostemp(path, O_CLOEXEC);
        if (f->spool >= 0)
            unlink(path);
    }
    if (f->spool < 0)
        return err_set(err, ERR_IO,
                       "%s: comes whole, and cannot be kept in %.200s: %s (set TMPDIR)",
                       f->target.name, dir, strerror(errno));
    return 0;
}

static int open_file(const char *url, const char *authorization, int sparse,
                     struct http_file **out, struct err *err)
{
    OWN(http_file) f = calloc(1, sizeof *f);
    const size_t first = sparse ? SPARSE_FIRST : HTTP_BLOCK;

    if (!f)
        return err_set(err, ERR_NOMEM, "no memory to read %.200s", url);
    f->sparse = sparse;
    f->spool = -1;
    f->ask = f->failed = f->last = f->slot[0].index = f->slot[1].index = -1;
    f->size = -1;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->changed, NULL);
    if (http_target_init(&f->target, url, err) < 0)
        return -(int)err->code;
    if (authorization && !f->target.authorization &&
        asprintf(&f->target.authorization, "Authorization: %s", authorization) < 0) {
        f->target.authorization = NULL;
        return err_set(err, ERR_NOMEM, "no memory to read %s", f->target.name);
    }
    if (http_handle_take(&f->target, &f->curl, err) < 0)
        return -(int)err->code;
    if (!(f->slot[0].data = malloc(first)))
        return err_set(err, ERR_NOMEM, "no memory to read %s", f->target.name);

    enum outcome o = fetch(f, 0, first, f->slot[0].data, &f->slot[0].n, err);
    if (o == REFUSED)
        return -(int)err->code;
    if (o == DONE && f->size < 0)
        return err_set(err, ERR_IO, "%s: the server gives ranges and does not tell the size",
                       f->target.name);
    f->ranges = o == DONE;
    if (f->ranges && !sparse) {
        f->slot[0].index = 0;
    } else {
        free(TAKE(f->slot[0].data));
    }
    if (!f->ranges) {
        http_note("%s: the server gives no ranges, so all of it is fetched, into $TMPDIR",
                  f->target.name);
        if (open_spool(f, err) < 0 || start(f, err) < 0)
            return -(int)err->code;
    }
    *out = TAKE(f);
    return 0;
}

int http_file_open(const char *url, struct http_file **out, struct err *err)
{
    return open_file(url, NULL, 0, out, err);
}

int http_file_open_as(const char *url, const char *authorization, struct http_file **out,
                      struct err *err)
{
    return open_file(url, authorization, 0, out, err);
}

int http_file_open_sparse(const char *url, struct http_file **out, struct err *err)
{
    return open_file(url, NULL, 1, out, err);
}

void http_file_rest(struct http_file *f)
{
    if (f->running) {
        f->closing = 1;
        pthread_mutex_lock(&f->lock);
        pthread_cond_broadcast(&f->changed);
        pthread_mutex_unlock(&f->lock);
        pthread_join(f->thread, NULL);
        f->closing = 0;
        f->running = 0;
    }
    for (int i = 0; i < 2; i++) {
        free(TAKE(f->slot[i].data));
        f->slot[i].index = -1;
    }
    http_handle_put(TAKE(f->curl));
    if (f->spool >= 0)
        close(f->spool);
    f->spool = -1;
    f->have = 0;
    f->spooled = 0;
    f->ask = f->failed = f->last = -1;
    f->why = (struct err){ 0 };
}

void http_file_free(struct http_file *f)
{
    if (!f)
        return;
    http_file_rest(f);
    http_target_done(&f->target);
    pthread_mutex_destroy(&f->lock);
    pthread_cond_destroy(&f->changed);
    free(f);
}

/* ------------------------------------------------------------------ reading */

/* Makes block `index` the held one, and asks for the next when blocks are read in order. */
static int hold(struct http_file *f, int64_t index, uint64_t at, struct err *err)
{
    struct err ignored;
    int rc = 0;

    pthread_mutex_lock(&f->lock);
    while (f->slot[f->held].index != index && rc == 0) {
        if (f->slot[!f->held].index == index) {
            f->held = !f->held;
        } else if (f->failed == index) {
            *err = f->why;
            f->failed = -1;     /* who asks again gets another try */
            rc = -(int)err->code;
        } else {
            if ((rc = start(f, err)) < 0)
                break;
            if (f->ask < 0) {
                f->ask = index;
                pthread_cond_broadcast(&f->changed);
            }
            pthread_cond_wait(&f->changed, &f->lock);
        }
    }
    /* The first block alone tells nothing; who has read half of it will read on. */
    const int in_order = index == f->last + 1 ? index > 0 : at % HTTP_BLOCK >= HTTP_BLOCK / 2;
    if (rc == 0 && in_order && f->ask < 0 && (index + 1) * HTTP_BLOCK < f->size &&
        f->slot[!f->held].index != index + 1 && f->failed != index + 1 && start(f, &ignored) == 0) {
        f->ask = index + 1;
        pthread_cond_broadcast(&f->changed);
    }
    f->last = index;
    pthread_mutex_unlock(&f->lock);
    return rc;
}

static int read_spool(struct http_file *f, uint64_t at, char *buf, size_t n, size_t *out_n,
                      struct err *err)
{
    size_t got = 0;

    if (f->spool < 0 && (open_spool(f, err) < 0 || start(f, err) < 0))
        return -(int)err->code;
    pthread_mutex_lock(&f->lock);
    while (f->have < at + n && !f->spooled)
        pthread_cond_wait(&f->changed, &f->lock);
    const uint64_t have = f->have;
    const int failed = f->why.code && have < at + n;
    if (failed)
        *err = f->why;
    pthread_mutex_unlock(&f->lock);
    if (failed)
        return -(int)err->code;
    if (have < at + n)
        n = have > at ? (size_t)(have - at) : 0;
    while (got < n) {
        ssize_t k = pread(f->spool, buf + got, n - got, (off_t)(at + got));
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return err_set(err, ERR_IO, "%s: what was kept in $TMPDIR cannot be read: %s",
                           f->target.name, k < 0 ? strerror(errno) : "it is shorter than it was");
        got += (size_t)k;
    }
    *out_n = n;
    return 0;
}

static int read_range(struct http_file *f, uint64_t at, char *buf, size_t n, size_t *out_n,
                      struct err *err)
{
    size_t got = 0;

    if (!f->curl && http_handle_take(&f->target, &f->curl, err) < 0)
        return -(int)err->code;
    if (fetch(f, at, n, buf, &got, err) != DONE)
        return -(int)err->code;
    *out_n = got;
    return 0;
}

int http_file_read(struct http_file *f, uint64_t at, void *buf, size_t n, size_t *out_n,
                   struct err *err)
{
    size_t got = 0;

    if (!f->ranges)
        return read_spool(f, at, buf, n, out_n, err);
    if (f->sparse)
        return read_range(f, at, buf, n, out_n, err);
    while (got < n && at + got < (uint64_t)f->size) {
        const int64_t index = (int64_t)((at + got) / HTTP_BLOCK);
        const size_t from = (size_t)((at + got) % HTTP_BLOCK);
        if (hold(f, index, at + got, err) < 0)
            return -(int)err->code;
        const struct slot *s = &f->slot[f->held];
        size_t k = s->n - from < n - got ? s->n - from : n - got;
        memcpy((char *)buf + got, s->data + from, k);
        got += k;
    }
    *out_n = got;
    return 0;
}

int64_t http_file_size(const struct http_file *f)
{
    return f->known ? f->size : -1;
}

int http_read(const char *url, size_t max, char **out, size_t *out_n, struct err *err)
{
    OWN(http_file) f = NULL;

    return http_file_open(url, &f, err) < 0 ? -(int)err->code
                                            : http_file_read_all(f, max, out, out_n, err);
}

int http_file_read_all(struct http_file *f, size_t max, char **out, size_t *out_n, struct err *err)
{
    OWN_MEM char *text = NULL;
    size_t n = 0, got;
    size_t cap = http_file_size(f) >= 0 ? (size_t)http_file_size(f) + 1 : 1 << 16;
    while (1) {
        if (cap > max)
            cap = max + 1;
        char *more = realloc(text, cap + 1);
        if (!more)
            return err_set(err, ERR_NOMEM, "no memory to read %s", f->target.name);
        text = more;
        if (http_file_read(f, n, text + n, cap - n, &got, err) < 0)
            return -(int)err->code;
        n += got;
        if (n > max)
            return err_set(err, ERR_INVALID, "%s: is longer than %zu bytes", f->target.name, max);
        if (n < cap)
            break;
        cap = cap < max / 2 ? cap * 2 : max + 1;
    }
    text[n] = 0;
    *out = TAKE(text);
    if (out_n)
        *out_n = n;
    return 0;
}
