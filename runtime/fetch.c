/* runtime/fetch.c - a job's files for a worker whose host does not have them */
#include "runtime/fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/http.h"
#include "base/own.h"
#include "base/sha256.h"
#include "runtime/wire.h"
#include "runtime/worker.h"

enum { PATH_SIZE = 4096 + 256, ANSWER_MS = 20000 };
/* How long a coordinator may be away that rows come from: as long as for a worker's beats. */
static const double PATIENCE_SECONDS = 30;

/* ------------------------------------------------------------------ which files */

/* The k-th text in the lists of a part of the data: {"csv": ["a.csv", "b.csv"], "limit": 10}. */
static const char *name_in(const json_t *part, int *k)
{
    const char *key;
    json_t *list, *item;
    size_t i;

    json_object_foreach((json_t *)part, key, list)
        if (strcmp(key, "idx") == 0 || strcmp(key, "csv") == 0 || strcmp(key, "json") == 0 ||
            strcmp(key, "tfrecord") == 0)
            json_array_foreach(list, i, item)
                if ((*k)-- == 0)
                    return json_string_value(item);
    return NULL;
}

/* The path of file number `k` as the spec has it; NULL: there are no more. */
static const char *file_name(const struct job_spec *spec, int k)
{
    const char *more[] = { spec->init, spec->order };
    const char *name = name_in(json_object_get(spec->data, "train"), &k);

    if (!name)
        name = name_in(json_object_get(spec->data, "test"), &k);
    for (int i = 0; i < 2 && !name; i++)
        if (more[i] && k-- == 0)
            name = more[i];
    return name;
}

/* ------------------------------------------------------------------ the coordinator's side */

int fetch_piece(const struct job_spec *spec, int k, int64_t at, size_t want, struct buf *out,
                int64_t *out_size, struct err *err)
{
    const char *name = k >= 0 && k < FETCH_FILES ? file_name(spec, k) : NULL;
    struct stat st;

    if (!name || at < 0)
        return err_set(err, ERR_MISSING, "the spec names no file %d", k);
    OWN_MEM char *path = files_resolve(spec->dir, name);
    OWN_FD int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (want == 0 || want > FETCH_PIECE)
        want = FETCH_PIECE;
    char *to = buf_reserve(out, want);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || !to)
        return err_set(err, ERR_MISSING, "the job's own copy cannot be read");
    ssize_t n = pread(fd, to, want, at);
    if (n < 0)
        return err_set(err, ERR_IO, "the job's own copy: %s", strerror(errno));
    out->n += (size_t)n;
    *out_size = st.st_size;
    return 0;
}

static int add_offer(int k, const struct dataset *d, struct buf *out, struct err *err)
{
    OWN(blocks) b = NULL;

    if (dataset_blocks(d, &b, err) < 0)
        return -(int)err->code;
    if (!b)
        return 0;
    for (int i = 0; i < 4; i++)
        buf_append(out, &(char){ (char)(k >> 8 * i) }, 1);
    blocks_pack(b, out);
    return buf_ok(out, err);
}

int fetch_make_offer(const struct job_spec *spec, const struct dataset *train,
                     const struct dataset *test, struct buf *out, struct err *err)
{
    int first_test = 0, k;

    if (add_offer(0, train, out, err) < 0)
        return -(int)err->code;
    while (k = first_test, name_in(json_object_get(spec->data, "train"), &k))
        first_test++;
    if (!out->n || !test || !json_is_object(json_object_get(spec->data, "test")) ||
        strcmp(file_name(spec, 0), file_name(spec, first_test)) == 0)
        return 0;
    return add_offer(first_test, test, out, err);
}

/* ------------------------------------------------------------------ the worker's side */

/* Where a file of the spec goes below the worker's own directory; false: it cannot. */
static bool place_below(const char *name, char *out, size_t size)
{
    static const char *const data[] = { "${MUSTER_DATA}/", "$MUSTER_DATA/" };
    const char *rest = name, *folder = "spec";

    for (int i = 0; i < 2; i++)
        if (strncmp(name, data[i], strlen(data[i])) == 0) {
            rest = name + strlen(data[i]);
            folder = "data";
        }
    if (rest[0] == '/' || rest[0] == '~' || strstr(rest, "..") || strlen(rest) > 1024)
        return false;
    snprintf(out, size, "%s/%s", folder, rest);
    return true;
}

/* What is behind a URL is read by each worker from there. */
static bool is_here(const char *path)
{
    return http_is_url(path) || access(path, R_OK) == 0;
}

/* A piece of file k, appended to `body`. */
static int ask_piece(int fd, int k, int64_t at, size_t n, struct buf *body, int64_t *out_size,
                     struct err *err)
{
    char ask[96];
    struct wire_header h = { .kind = WIRE_ASK };

    h.length = (uint64_t)snprintf(ask, sizeof ask, "{\"file\":%d,\"at\":%lld,\"n\":%zu}", k,
                                  (long long)at, n);
    if (wire_send(fd, &h, ask, ANSWER_MS, err) < 0 ||
        wire_receive(fd, &h, body, ANSWER_MS, err) < 0)
        return -(int)err->code;
    if (h.kind == WIRE_REFUSED)
        return err_set(err, (enum err_code)h.number, "%s", body->data);
    if (h.kind != WIRE_STATE || body->n > n)
        return err_set(err, ERR_IO, "the coordinator did not send the file");
    *out_size = (int64_t)h.number;
    return 0;
}

/* ------------------------------------------------------------------ rows by part */

static bool offer_has(const struct fetch_offer *o, int k)
{
    for (int i = 0; i < o->n; i++)
        if (o->file[i] == k)
            return true;
    return false;
}

void fetch_offer_done(struct fetch_offer *o)
{
    for (int i = 0; i < o->n; i++)
        blocks_free(o->blocks[i]);
    o->n = 0;
}

int fetch_read_offer(const void *bytes, size_t n, struct fetch_offer *out, struct err *err)
{
    const unsigned char *p = bytes;
    struct fetch_offer o = { 0 };
    size_t used;
    int rc = 0;

    for (size_t at = 0; at < n && rc == 0; at += used) {
        if (o.n == PARTS_MAX || n - at < 4) {
            rc = err_set(err, ERR_INVALID, "a damaged offer of rows");
            break;
        }
        const uint32_t k = p[at] | (uint32_t)p[at + 1] << 8 | (uint32_t)p[at + 2] << 16 |
                           (uint32_t)p[at + 3] << 24;
        rc = blocks_unpack(p + at + 4, n - at - 4, &used, &o.blocks[o.n], err);
        if (rc < 0)
            break;
        used += 4;
        o.file[o.n++] = k < FETCH_FILES ? (int)k : -1;
    }
    if (rc < 0)
        fetch_offer_done(&o);
    else
        *out = o;
    return rc;
}

static bool is_packed(const char *path)
{
    unsigned char two[2] = { 0 };
    OWN_FD int fd = open(path, O_RDONLY | O_CLOEXEC);

    return fd >= 0 && read(fd, two, 2) == 2 && two[0] == 0x1f && two[1] == 0x8b;
}

/* False where the job cannot offer rows by part, as can be told from here. */
static bool may_be_offered(const struct job_spec *spec)
{
    const json_t *idx = json_object_get(json_object_get(spec->data, "train"), "idx");
    const char *name = idx ? file_name(spec, 0) : NULL;
    OWN_MEM char *path = name ? files_resolve(spec->dir, name) : NULL;

    return path && !is_packed(path);
}

static int ask_offer(const char *join, const char *token, struct fetch_offer *out,
                     char out_digest[SHA256_HEX], struct err *err)
{
    static const char ask[] = "{\"offer\":true}";
    struct wire_header h = { WIRE_ASK, 0, 0, sizeof ask - 1 };
    OWN_BUF body = BUF_INIT;
    OWN_FD int fd = -1;

    if (worker_reach(join, token, &fd, err) < 0 || wire_send(fd, &h, ask, ANSWER_MS, err) < 0 ||
        wire_receive(fd, &h, &body, ANSWER_MS, err) < 0)
        return -(int)err->code;
    if (h.kind != WIRE_STATE)
        return err_set(err, ERR_IO, "the coordinator did not say which rows can be had");
    if (fetch_read_offer(body.data, body.n, out, err) < 0)
        return -(int)err->code;
    sha256_hex_of(body.n ? body.data : "", body.n, out_digest);
    return 0;
}

/* A file of the job's own, from its coordinator. */
struct desk {
    const char *join, *token;
    int file, fd;
    atomic_bool stop;
};

/* One try: a connection is made where there is none, and closed when it fails. */
static int try_desk(struct desk *d, uint64_t at, size_t n, struct buf *body, struct err *err)
{
    int64_t size;

    if ((d->fd < 0 && (wire_connect(d->join, d->token, ANSWER_MS, &d->fd, err) < 0 ||
                       wire_prove(d->fd, d->token, ANSWER_MS, err) < 0)) ||
        ask_piece(d->fd, d->file, (int64_t)at, n, body, &size, err) < 0) {
        if (d->fd >= 0)
            close(d->fd);
        d->fd = -1;
        return -(int)err->code;
    }
    return 0;
}

static int read_desk(void *arg, uint64_t at, void *to, size_t n, struct err *err)
{
    struct desk *d = arg;
    OWN_BUF body = BUF_INIT;
    double until = clock_seconds() + PATIENCE_SECONDS;

    for (size_t got = 0; got < n;) {
        const size_t want = n - got < FETCH_PIECE ? n - got : FETCH_PIECE;
        buf_clear(&body);
        if (try_desk(d, at + got, want, &body, err) < 0) {
            if ((err->code != ERR_IO && err->code != ERR_AGAIN) || clock_seconds() > until ||
                atomic_load(&d->stop))
                return err_add(err, "rows from the job");
            usleep(50000);
            continue;
        }
        if (body.n == 0)
            return err_set(err, ERR_CONFLICT, "the job's own copy is shorter than it was when the "
                           "job began (put it back, or start the job again)");
        memcpy((char *)to + got, body.data, body.n);
        got += body.n;
        until = clock_seconds() + PATIENCE_SECONDS;
    }
    return 0;
}

static void stop_desk(void *arg)
{
    atomic_store(&((struct desk *)arg)->stop, true);
}

static void close_desk(void *arg)
{
    struct desk *d = arg;

    if (d->fd >= 0)
        close(d->fd);
    free(d);
}

/* `join` and `token` are borrowed for as long as the parts are used. */
static int open_desk(const char *join, const char *token, int file, struct part_source *out,
                     struct err *err)
{
    struct desk *d = calloc(1, sizeof *d);

    if (!d)
        return err_set(err, ERR_NOMEM, "no memory to read rows from the job");
    d->join = join;
    d->token = token;
    d->file = file;
    d->fd = -1;
    *out = (struct part_source){ read_desk, stop_desk, close_desk, d };
    return 0;
}

/* ------------------------------------------------------------------ whole files */

static int fetch_file(int fd, int k, const char *path, struct err *err)
{
    OWN(file_writer) w = NULL;
    OWN_BUF body = BUF_INIT;
    int64_t size = 0, at = 0;
    struct stat st;
    OWN_MEM char *dir = strdup(path);

    if (!dir)
        return err_set(err, ERR_NOMEM, "no memory to fetch %s", path);
    *strrchr(dir, '/') = 0;
    if (ask_piece(fd, k, 0, FETCH_PIECE, &body, &size, err) < 0)
        return -(int)err->code;
    if (stat(path, &st) == 0 && st.st_size == size)
        return 0;
    if (files_mkdir(dir, err) < 0 || file_writer_open(path, &w, err) < 0)
        return -(int)err->code;
    while (body.n) {
        if (file_writer_write(w, body.data, body.n, err) < 0)
            return -(int)err->code;
        at += (int64_t)body.n;
        if (at < size && ask_piece(fd, k, at, FETCH_PIECE, &body, &size, err) < 0)
            return -(int)err->code;
        if (at >= size)
            break;
    }
    if (at != size)
        return err_set(err, ERR_IO, "%s: %lld of %lld bytes came", path, (long long)at,
                       (long long)size);
    return file_writer_commit(w, err);
}

static int fetch_all(struct job_spec *spec, int fd, const char *root,
                     const struct fetch_offer *offer, struct err *err)
{
    char below[1200], path[PATH_SIZE + 1200];
    const char *name;

    for (int k = 0; (name = file_name(spec, k)); k++) {
        if (http_is_url(name) || offer_has(offer, k))
            continue;
        if (!place_below(name, below, sizeof below))
            return err_set(
                err, ERR_MISSING,
                "%s: is not on this host, and only paths in $MUSTER_DATA "
                "or beside the spec come from the job (put the file there, or change the "
                "path)",
                name);
        snprintf(path, sizeof path, "%s/%s", root, below);
        if (fetch_file(fd, k, path, err) < 0)
            return err_add(err, "%s", name);
    }
    return 0;
}

/* One directory for each set of names, so that jobs do not mix. */
static int own_root(const struct job_spec *spec, char *out, size_t size, struct err *err)
{
    OWN_MEM char *text = json_dumps(spec->data, JSON_COMPACT | JSON_SORT_KEYS);
    OWN_MEM char *cache = files_resolve(NULL, "$MUSTER_DATA/../fetched");
    char hex[SHA256_HEX];

    if (!text || !cache)
        return err_set(err, ERR_NOMEM, "no memory to fetch the job's files");
    sha256_hex_of(text, strlen(text), hex);
    snprintf(out, size, "%.4000s/%.16s", cache, hex);
    return 0;
}

/* Fetches what is neither here nor offered, and lets the spec point to it. */
static int fetch_whole(struct job_spec *spec, const char *join, const char *token,
                       const struct fetch_offer *offer, struct err *err)
{
    char root[PATH_SIZE], data[PATH_SIZE + 8];
    const char *name;
    bool all = true;
    OWN_FD int fd = -1;

    for (int k = 0; (name = file_name(spec, k)); k++) {
        OWN_MEM char *path = files_resolve(spec->dir, name);
        all &= offer_has(offer, k) || (path && is_here(path));
    }
    if (all)
        return 0;
    if (own_root(spec, root, sizeof root, err) < 0 ||
        wire_connect(join, token, ANSWER_MS, &fd, err) < 0 ||
        wire_prove(fd, token, ANSWER_MS, err) < 0 ||
        fetch_all(spec, fd, root, offer, err) < 0)
        return -(int)err->code;
    snprintf(data, sizeof data, "%s/data", root);
    setenv("MUSTER_DATA", data, 1);
    snprintf(spec->dir, sizeof spec->dir, "%.4000s/spec", root);
    return 0;
}

/* Where each offered file is read from, before the spec points elsewhere. */
static int open_parts(const struct job_spec *spec, const char *join, const char *token,
                      struct fetch_offer *offer, struct parts *out, struct err *err)
{
    for (int i = 0; i < offer->n; i++) {
        struct part_source source = { 0 };
        const char *name = file_name(spec, offer->file[i]);
        OWN_MEM char *path = name ? files_resolve(spec->dir, name) : NULL;
        if (!path)
            return err_set(err, ERR_INVALID, "the job offers rows of file %d, which its spec does "
                           "not name", offer->file[i]);
        if ((is_here(path) ? part_source_open(path, offer->blocks[i]->size, &source, err)
                           : open_desk(join, token, offer->file[i], &source, err)) < 0 ||
            part_new(is_here(path) ? path : name, TAKE(offer->blocks[i]), &source,
                     &out->file[out->n].part, err) < 0)
            return -(int)err->code;
        out->n++;
    }
    return 0;
}

static int fetch(struct job_spec *spec, const char *join, const char *token,
                 struct fetch_offer *offer, struct parts *out, struct err *err)
{
    if (may_be_offered(spec) && ask_offer(join, token, offer, out->digest, err) < 0)
        return -(int)err->code;
    if (open_parts(spec, join, token, offer, out, err) < 0 ||
        fetch_whole(spec, join, token, offer, err) < 0)
        return -(int)err->code;
    for (int i = 0; i < out->n; i++)
        if (!(out->file[i].path = files_resolve(spec->dir, file_name(spec, offer->file[i]))))
            return err_set(err, ERR_NOMEM, "no memory for the names of the job's files");
    return 0;
}

int fetch_missing(struct job_spec *spec, const char *join, const char *token, struct parts *out,
                  struct err *err)
{
    struct fetch_offer offer = { 0 };
    struct parts parts = { 0 };
    int rc = fetch(spec, join, token, &offer, &parts, err);

    fetch_offer_done(&offer);
    if (rc < 0)
        parts_done(&parts);
    else
        *out = parts;
    return rc;
}
