/* cli/storage_copy.c - muster storage cp: files to buckets, back, and from bucket to bucket */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/files.h"
#include "base/http.h"
#include "cli/storage.h"

/* Up to so much in one request: a broken connection repeats no more than this. */
enum { PIECE = 8 << 20, TRIES = 6 };

static const struct { const char *ending, *type; } types[] = {
    { ".csv", "text/csv" },          { ".txt", "text/plain" },
    { ".json", "application/json" }, { ".html", "text/html" },
    { ".py", "text/x-python" },      { ".md", "text/markdown" },
    { ".yaml", "application/yaml" }, { ".yml", "application/yaml" },
    { ".png", "image/png" },         { ".jpg", "image/jpeg" },
    { ".jpeg", "image/jpeg" },       { ".gif", "image/gif" },
    { ".svg", "image/svg+xml" },     { ".pdf", "application/pdf" },
    { ".gz", "application/gzip" },   { ".zip", "application/zip" },
    { ".tar", "application/x-tar" },
};

static const char *type_of(const struct storage *s, const char *name)
{
    const char *dot = strrchr(name, '.');

    if (s->args.type)
        return s->args.type;
    for (size_t i = 0; dot && i < sizeof types / sizeof types[0]; i++)
        if (!strcasecmp(dot, types[i].ending))
            return types[i].type;
    return "application/octet-stream";
}

/* ------------------------------------------------------------ the progress line */

struct progress {
    const struct storage *storage;
    const char *name;
    int64_t total;              /* -1: not known */
    double began, told;
};

static void progress_tell(struct progress *p, int64_t done, bool end)
{
    double now = clock_seconds();

    if (!p->storage->cli->err_is_terminal || p->storage->args.quiet ||
        (!end && now - p->told < 0.1))
        return;
    p->told = now;
    double s = now - p->began;
    fprintf(stderr, "\r\033[K%s  %.1f", p->name, (double)done / 1e6);
    if (p->total >= 0)
        fprintf(stderr, "/%.1f", (double)p->total / 1e6);
    fprintf(stderr, " MB  %.0f MB/s%s", s > 0 ? (double)done / 1e6 / s : 0.0, end ? "\n" : "");
    fflush(stderr);
}

/* ------------------------------------------------------------ a file into a bucket */

struct upload {
    struct storage *storage;
    const char *bucket, *name;
    int fd;
    struct progress progress;
    char location[1024];        /* of the session */
    int64_t here;               /* bytes that the server has */
    uint32_t crc32c;            /* of them */
};

static void crc_text(uint32_t crc, char out[16])
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint64_t bits = (uint64_t)crc << 4;         /* 32 bits in six letters */

    for (int i = 0; i < 6; i++)
        out[i] = letters[bits >> (30 - 6 * i) & 63];
    memcpy(out + 6, "==", 3);
}

static int refused(const struct http_response *r, struct err *err)
{
    OWN_JSON json_t *doc = r->body.n ? json_loadb(r->body.data, r->body.n, 0, NULL) : NULL;
    const char *text = doc_text(json_object_get(doc, "error"), "message");
    struct err of_status = { 0 };

    http_say_status("the server", r->status, &of_status);
    return err_set(err, of_status.code, "%s", *text ? text : of_status.text);
}

/* One request of an upload, with the token. */
static int send_piece(struct upload *u, const char *method, const char *url, const char *header,
                      const void *bytes, size_t n, struct http_response *out, struct err *err)
{
    OWN_MEM char *token = NULL, *type = NULL;

    if (asprintf(&token, "Authorization: Bearer %s", u->storage->client->token) < 0)
        token = NULL;
    if (asprintf(&type, "Content-Type: %s", type_of(u->storage, u->name)) < 0)
        type = NULL;
    if (!token || !type)
        return err_set(err, ERR_NOMEM, "no memory for a request");
    char hash[48] = "X-Goog-Hash: crc32c=";
    crc_text(u->crc32c, hash + strlen(hash));
    const char *const headers[] = { token, type, hash, header, NULL };
    return http_call(method, url, headers, bytes, n, 1 << 20, out, err);
}

static char *upload_url(const struct upload *u, const char *kind)
{
    OWN_BUF b = BUF_INIT;

    buf_printf(&b, "%s/upload/storage/v1/b/", u->storage->client->server);
    http_escape(&b, u->bucket);
    buf_printf(&b, "/o?uploadType=%s&name=", kind);
    http_escape(&b, u->name);
    return buf_take(&b);
}

static int upload_small(struct upload *u, const char *bytes, size_t n, struct err *err)
{
    OWN_MEM char *url = upload_url(u, "media");
    struct http_response r = { 0 };

    if (!url)
        return err_set(err, ERR_NOMEM, "no memory for a request");
    u->crc32c = crc32c(bytes, n);
    if (send_piece(u, "POST", url, NULL, bytes, n, &r, err) < 0)
        return -(int)err->code;
    int rc = r.status == 200 ? 0 : refused(&r, err);
    http_response_done(&r);
    return rc;
}

static int session_begin(struct upload *u, struct err *err)
{
    OWN_MEM char *url = upload_url(u, "resumable"), *type = NULL;
    struct http_response r = { 0 };

    if (asprintf(&type, "X-Upload-Content-Type: %s", type_of(u->storage, u->name)) < 0)
        type = NULL;
    if (!url || !type)
        return err_set(err, ERR_NOMEM, "no memory for a request");
    OWN_MEM char *token = NULL;
    if (asprintf(&token, "Authorization: Bearer %s", u->storage->client->token) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a request");
    const char *const headers[] = { token, type, "Content-Type: application/json", NULL };
    if (http_call("POST", url, headers, "{}", 2, 1 << 20, &r, err) < 0)
        return -(int)err->code;
    int rc = r.status != 200 ? refused(&r, err) : *r.location ? 0
        : err_set(err, ERR_IO, "the server began an upload and did not say where");
    snprintf(u->location, sizeof u->location, "%s", r.location);
    http_response_done(&r);
    return rc;
}

/* What the server has: "bytes=0-99" of a 308; no header: nothing. */
static int64_t range_end(const char *range)
{
    long long last = -1;

    return sscanf(range, "bytes=0-%lld", &last) == 1 ? last + 1 : 0;
}

/* One piece; `total` -1: more comes. 1: the object is there. */
static int session_send(struct upload *u, const char *bytes, size_t n, int64_t total,
                        struct err *err)
{
    char range[128], of[24] = "*";
    struct http_response r = { 0 };
    uint32_t before = u->crc32c;

    if (total >= 0)
        snprintf(of, sizeof of, "%lld", (long long)total);
    if (n)
        snprintf(range, sizeof range, "Content-Range: bytes %lld-%lld/%s", (long long)u->here,
                 (long long)u->here + (long long)n - 1, of);
    else
        snprintf(range, sizeof range, "Content-Range: bytes */%s", of);
    u->crc32c = crc32c_add(before, bytes, n);
    int rc = send_piece(u, "PUT", u->location, range, bytes, n, &r, err);
    if (rc == 0 && r.status == 308) {
        int64_t end = range_end(r.range);
        if (end == u->here + (int64_t)n)
            u->here = end;
        else
            rc = err_set(err, ERR_AGAIN, "the server took a part of a piece");
    } else if (rc == 0 && r.status == 200) {
        u->here += (int64_t)n;
        rc = 1;
    } else if (rc == 0) {
        rc = refused(&r, err);
    }
    if (rc < 0)
        u->crc32c = before;
    http_response_done(&r);
    return rc;
}

/* How far is it? 1: the object is there. The checksum is kept at pieces' ends alone, so a part of a
 * piece that came is sent once more: the server passes over it. */
static int session_ask(struct upload *u, int64_t total, struct err *err)
{
    char range[64];
    struct http_response r = { 0 };

    if (total >= 0)
        snprintf(range, sizeof range, "Content-Range: bytes */%lld", (long long)total);
    else
        snprintf(range, sizeof range, "Content-Range: bytes */*");
    if (send_piece(u, "PUT", u->location, range, NULL, 0, &r, err) < 0)
        return -(int)err->code;
    int rc = r.status == 200 ? 1 : r.status == 308 ? 0 : refused(&r, err);
    if (rc == 0 && range_end(r.range) < u->here)
        rc = err_set(err, ERR_IO, "the server lost what it had confirmed of gs://%s/%s", u->bucket,
                     u->name);
    http_response_done(&r);
    return rc;
}

static int session_piece(struct upload *u, const char *bytes, size_t n, int64_t total,
                         struct err *err)
{
    int rc = session_send(u, bytes, n, total, err);

    for (int tries = 1; rc < 0 && err->code == ERR_AGAIN && tries < TRIES; tries++) {
        struct timespec pause = { .tv_nsec = 0, .tv_sec = 0 };
        long ms = 100L << tries;
        pause.tv_sec = ms / 1000;
        pause.tv_nsec = ms % 1000 * 1000000;
        nanosleep(&pause, NULL);
        rc = session_ask(u, total, err);
        if (rc == 0)
            rc = session_send(u, bytes, n, total, err);
    }
    return rc;
}

static int read_piece(int fd, char *into, size_t *out, struct err *err)
{
    size_t n = 0;

    while (n < PIECE) {
        ssize_t k = read(fd, into + n, PIECE - n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return err_set(err, ERR_IO, "cannot read: %s", strerror(errno));
        if (k == 0)
            break;
        n += (size_t)k;
    }
    *out = n;
    return 0;
}

static int upload_all(struct upload *u, struct err *err)
{
    OWN_MEM char *piece = malloc(PIECE), *next = malloc(PIECE);
    size_t n, after;

    if (!piece || !next)
        return err_set(err, ERR_NOMEM, "no memory to copy a file");
    if (read_piece(u->fd, piece, &n, err) < 0)
        return -(int)err->code;
    if (n < PIECE) {
        int rc = upload_small(u, piece, n, err);
        if (rc == 0)
            progress_tell(&u->progress, (int64_t)n, true);
        return rc;
    }
    if (session_begin(u, err) < 0)
        return -(int)err->code;
    for (;;) {
        /* The last piece is known by there being none after it. */
        if (read_piece(u->fd, next, &after, err) < 0)
            return -(int)err->code;
        int rc = session_piece(u, piece, n, after ? -1 : u->here + (int64_t)n, err);
        if (rc < 0)
            return rc;
        progress_tell(&u->progress, u->here, !after);
        if (!after)
            return rc == 1 ? 0 : err_set(err, ERR_IO, "the server wants more than the file has");
        char *swap = piece;
        piece = next;
        next = swap;
        n = after;
    }
}

static int put_file(struct storage *s, const char *path, const char *bucket, const char *name,
                    struct err *err)
{
    struct upload u = { .storage = s, .bucket = bucket, .name = name };
    struct stat st;
    bool in = !strcmp(path, "-");
    OWN_FD int fd = in ? -1 : open(path, O_RDONLY | O_CLOEXEC);

    if (!in && (fd < 0 || fstat(fd, &st) < 0))
        return err_set(err, errno == ENOENT ? ERR_MISSING : ERR_IO, "%.300s: %s", path,
                       strerror(errno));
    if (!in && S_ISDIR(st.st_mode))
        return err_set(err, ERR_INVALID, "%.300s is a folder (-r copies it)", path);
    u.fd = in ? STDIN_FILENO : fd;
    u.progress = (struct progress){ s, in ? name : path, in ? -1 : st.st_size, clock_seconds(), 0 };
    if (upload_all(&u, err) < 0)
        return err_add(err, "%.200s", path);
    return 0;
}

/* ------------------------------------------------------------ an object onto this disk */

struct sink {
    struct file_writer *writer; /* NULL: standard output */
    uint32_t crc32c;
};

static int sink_add(struct sink *k, const char *bytes, size_t n, struct err *err)
{
    k->crc32c = crc32c_add(k->crc32c, bytes, n);
    if (k->writer)
        return file_writer_write(k->writer, bytes, n, err);
    return fwrite(bytes, 1, n, stdout) == n ? 0
        : err_set(err, ERR_IO, "cannot write to standard output: %s", strerror(errno));
}

static int read_object(struct storage *s, const char *bucket, const char *name, struct sink *k,
                       struct err *err)
{
    enum { BLOCK = 1 << 20 };
    OWN_MEM char *url = NULL, *block = malloc(BLOCK);
    OWN(http_file) f = NULL;
    size_t n = BLOCK;

    if (asprintf(&url, "gs://%s/%s", bucket, name) < 0)
        url = NULL;
    if (!url || !block)
        return err_set(err, ERR_NOMEM, "no memory to copy an object");
    if (http_file_open(url, &f, err) < 0)
        return -(int)err->code;
    struct progress p = { s, url, http_file_size(f), clock_seconds(), 0 };
    int64_t at = 0;
    for (; n == BLOCK; at += (int64_t)n) {
        if (http_file_read(f, (uint64_t)at, block, BLOCK, &n, err) < 0 ||
            sink_add(k, block, n, err) < 0)
            return -(int)err->code;
        if (k->writer)
            progress_tell(&p, at, false);
    }
    if (k->writer)
        progress_tell(&p, at, true);
    return 0;
}

int storage_fetch(struct storage *s, const char *bucket, const char *name, const char *path,
                  struct err *err)
{
    OWN_MEM char *about = object_path("/storage/v1", bucket, name, "");
    OWN_JSON json_t *doc = NULL;
    OWN(file_writer) w = NULL;
    struct sink k = { NULL, 0 };
    char crc[16];

    if (!about)
        return err_set(err, ERR_NOMEM, "no memory for a path");
    if (client_call(s->client, "GET", about, NULL, &doc, err) < 0)
        return -(int)err->code;
    if (path && file_writer_output(path, &w, err) < 0)
        return -(int)err->code;
    k.writer = w;
    if (doc_number(doc, "size") > 0 && read_object(s, bucket, name, &k, err) < 0)
        return -(int)err->code;
    crc_text(k.crc32c, crc);
    if (strcmp(crc, doc_text(doc, "crc32c")))
        return err_set(err, ERR_AGAIN,
                       "gs://%.222s/%.300s did not arrive as it is in the bucket, or was "
                       "replaced meanwhile (try again)",
                       bucket, name);
    return w ? file_writer_commit(w, err) : 0;
}

/* ------------------------------------------------------------ where to */

static const char *last_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

static bool is_folder(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* A name from a bucket becomes a path under the target only if it cannot climb out of it. */
static int safe_name(const char *name, struct err *err)
{
    for (const char *p = name; ; ) {
        size_t n = strcspn(p, "/");
        if (n == 0 || (n == 1 && *p == '.') || (n == 2 && !strncmp(p, "..", 2)))
            return err_set(
                err, ERR_INVALID,
                "object \"%.300s\" has no place on this disk: its name "
                "leads out of the folder or is none of a file (copy it by itself, to a name "
                "of your choice)",
                name);
        if (!p[n])
            return 0;
        p += n + 1;
    }
}

static int fetch_to(struct storage *s, const char *bucket, const char *name, const char *folder,
                    const char *under, struct err *err)
{
    OWN_BUF path = BUF_INIT;

    if (safe_name(under, err) < 0)
        return -(int)err->code;
    buf_printf(&path, "%s/%s", folder, under);
    if (buf_ok(&path, err) < 0)
        return -(int)err->code;
    char *slash = strrchr(path.data, '/');
    *slash = '\0';
    if (files_mkdir(path.data, err) < 0)
        return -(int)err->code;
    *slash = '/';
    return storage_fetch(s, bucket, name, path.data, err);
}

struct target {
    struct storage *storage;
    const char *path;           /* on this disk; NULL: in a bucket */
    struct gs_place place;
    bool folder;                /* names are put under it */
    long tried, failed;         /* of many */
    bool over;                  /* the rest is not tried */
    struct err first;           /* how the first one failed */
};

/* One of many did not go: it is told at the end, and the others are tried. Not so where the same
 * would happen to each: the server is gone, or does not know us. */
static int go_on(struct target *t, int rc, struct err *err)
{
    t->tried++;
    if (rc == 0)
        return 0;
    if (!t->failed++)
        t->first = *err;
    for (char *p = err->text; *p; p++)          /* of a name: it may hold anything */
        *p = (unsigned char)*p < ' ' || *p == 0x7f ? '?' : *p;
    buf_printf(&t->storage->failures, "not copied: %s\n", err->text);
    t->over = err->code == ERR_AGAIN || err->code == ERR_DENIED;
    if (t->over)
        return rc;
    *err = (struct err){ 0 };
    return 0;
}

/* One object to the target, under this name where that is a folder. */
static int take_object(struct target *t, const char *bucket, const char *name, const char *under,
                       struct err *err)
{
    struct storage *s = t->storage;
    OWN_BUF to = BUF_INIT;

    if (t->path)
        return t->folder
                   ? fetch_to(s, bucket, name, t->path, under, err)
                   : storage_fetch(s, bucket, name, strcmp(t->path, "-") ? t->path : NULL, err);
    size_t n = strlen(t->place.name);
    buf_printf(&to, "%s%s%s", t->place.name,
               t->folder && n && t->place.name[n - 1] != '/' ? "/" : "", t->folder ? under : "");
    OWN_MEM char *from = object_path("/storage/v1", bucket, name, "/rewriteTo");
    OWN_MEM char *path = from && to.data ? object_path(from, t->place.bucket, to.data, "") : NULL;
    if (!path)
        return err_set(err, ERR_NOMEM, "no memory for a path");
    return client_call(s->client, "POST", path, NULL, NULL, err);
}

struct walk {
    struct target *target;
    const char *bucket;
    size_t skip;                /* of a name: the folders above what is copied */
    long n;
};

static int take_item(void *arg, const json_t *item, struct err *err)
{
    struct walk *w = arg;
    const char *name = doc_text(item, "name");
    size_t n = strlen(name);

    w->n++;
    if (w->target->path && n && name[n - 1] == '/')
        return 0;               /* stands for a folder; folders come with their files */
    int rc = take_object(w->target, w->bucket, name, name + w->skip, err);
    if (rc < 0)
        err_add(err, "gs://%s/%.200s", w->bucket, name);
    return go_on(w->target, rc, err);
}

static int from_bucket(struct target *t, const char *source, struct err *err)
{
    struct storage *s = t->storage;
    OWN_GS p = { 0 };
    OWN_BUF folder = BUF_INIT;

    if (gs_parse(source, &p, err) < 0)
        return -(int)err->code;
    size_t n = strlen(p.name);
    struct walk w = { .target = t, .bucket = p.bucket };
    struct storage_query q = { .bucket = p.bucket };
    if (has_glob(p.name)) {
        q.glob = p.name;
        w.skip = (size_t)(last_of(p.name) - p.name);
        if (strpbrk(p.name, "*?[") < p.name + w.skip)
            w.skip = 0;
    } else if (s->args.recursive) {
        buf_printf(&folder, "%s%s", p.name, n && p.name[n - 1] != '/' ? "/" : "");
        q.prefix = folder.data;
        if (n && p.name[n - 1] == '/')
            p.name[n - 1] = '\0';
        w.skip = (size_t)(last_of(p.name) - p.name);
    } else {
        if (!n || p.name[n - 1] == '/')
            return err_set(err, ERR_INVALID, "%.300s is a folder (-r copies it)", source);
        return take_object(t, p.bucket, p.name, last_of(p.name), err);
    }
    t->folder = true;
    if (storage_each(s, &q, take_item, &w, err) < 0)
        return -(int)err->code;
    if (w.n == 0 && !has_glob(p.name))  /* -r of one object */
        return take_object(t, p.bucket, p.name, last_of(p.name), err);
    return w.n ? 0 : err_set(err, ERR_MISSING, "%.300s: there is nothing of this name", source);
}

/* nftw has no argument of its own. */
static struct {
    struct target *target;
    size_t skip;
    struct err *err;
    int rc;
} tree;

static int put_under(struct target *t, const char *path, const char *under, struct err *err)
{
    OWN_BUF name = BUF_INIT;
    size_t n = strlen(t->place.name);

    buf_printf(&name, "%s%s%s", t->place.name,
               t->folder && n && t->place.name[n - 1] != '/' ? "/" : "", t->folder ? under : "");
    if (buf_ok(&name, err) < 0)
        return -(int)err->code;
    return put_file(t->storage, path, t->place.bucket, name.data, err);
}

static int on_file(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)ftw;
    if (kind == FTW_DNR || kind == FTW_NS)
        return go_on(tree.target, err_set(tree.err, ERR_IO, "%.300s cannot be read", path),
                     tree.err);
    if (kind != FTW_F || !S_ISREG(st->st_mode))
        return 0;
    int rc = put_under(tree.target, path, path + tree.skip, tree.err);
    tree.rc = go_on(tree.target, rc, tree.err);
    return tree.rc < 0;
}

static int from_disk(struct target *t, char *source, struct err *err)
{
    size_t n = strlen(source);

    if (t->path)
        return err_set(err, ERR_INVALID,
                       "neither \"%.200s\" nor \"%.200s\" is in a bucket (gs://...)", source,
                       t->path);
    if (!strcmp(source, "-") && t->folder)
        return err_set(err, ERR_INVALID,
                       "what comes from standard input needs a name in the bucket");
    if (!t->storage->args.recursive || !is_folder(source))
        return put_under(t, source, last_of(source), err);
    while (n > 1 && source[n - 1] == '/')
        source[--n] = '\0';
    t->folder = true;
    tree.target = t;
    /* "data" keeps its name in the bucket; of "." and ".." there is none to keep. */
    const char *last = last_of(source);
    tree.skip = !strcmp(last, ".") || !strcmp(last, "..") ? n + 1 : (size_t)(last - source);
    tree.err = err;
    tree.rc = 0;
    if (nftw(source, on_file, 32, FTW_PHYS) < 0 && tree.rc == 0)
        return err_set(err, ERR_IO, "%.300s: %s", source, strerror(errno));
    return tree.rc;
}

static int tell_failed(struct target *t, int rc, struct err *err)
{
    struct buf *list = &t->storage->failures;

    if (!t->failed)
        return rc;
    fwrite(list->data, 1, list->n, stderr);
    buf_done(list);
    return err_set(err, t->first.code, rc < 0
                   ? "%ld of the first %ld were not copied, and the rest was not tried"
                   : "%ld of %ld were not copied", t->failed, t->tried);
}

int storage_copy(struct storage *s, int n, char **paths, struct err *err)
{
    char *last = paths[n - 1];
    struct target t = { .storage = s };
    size_t length = strlen(last);

    if (is_gs(last)) {
        if (gs_parse(last, &t.place, err) < 0)
            return -(int)err->code;
        t.folder = !*t.place.name || last[length - 1] == '/' || n > 2;
    } else {
        t.path = last;
        t.folder = is_folder(last) || (length && last[length - 1] == '/') || n > 2;
    }
    int rc = 0;
    for (int i = 0; i < n - 1 && rc == 0; i++) {
        const long before = t.tried;
        rc = is_gs(paths[i]) ? from_bucket(&t, paths[i], err) : from_disk(&t, paths[i], err);
        if (n > 2 && !t.over && (rc < 0 || t.tried == before))
            rc = go_on(&t, rc, err);
    }
    gs_done(&t.place);
    return tell_failed(&t, rc, err);
}
