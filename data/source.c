/* data/source.c - bytes of files and URLs, one after another, gzip or not
 *
 * One descriptor is open at a time; what is known of a URL stays, so that its later passes read the
 * same version. `raw` holds bytes as they lie in the file: the first two, read
 * to tell gzip from plain, and then the input of zlib. A plain file empties what is left in `raw`
 * and from then on reads straight into the caller's buffer.
 */
#include "data/source.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <zlib.h>

#include "base/http.h"
#include "base/sha256.h"

enum { RAW_BYTES = 128 << 10 };

struct source {
    char **path;
    struct http_file **web;     /* (n) of those that are URLs, once reached */
    int n, at;
    int fd;
    struct sha256 sha;          /* of all that has been read of URLs, file after file ... */
    int hashing;                /* ... in the first pass, while nothing is left out */
    int hashed;                 /* to the end of the current file */
    int kept;                   /* the digest of the whole list is known */
    int raw_only;               /* gzip is not looked for */
    int gzip;
    int member;                 /* gzip: inside a member, so the end of the file is too early */
    uint64_t offset;            /* delivered of the current file */
    uint64_t raw_offset;        /* read of the current file */
    int64_t size;               /* as stat says; -1: not a regular file */
    unsigned char *raw;         /* (RAW_BYTES) */
    size_t raw_at, raw_n;
    z_stream z;
};

static void close_file(struct source *s)
{
    if (s->gzip)
        inflateEnd(&s->z);
    if (s->fd > 0)
        close(s->fd);
    s->gzip = 0;
    s->fd = -1;
}

static struct http_file *web_of(const struct source *s)
{
    return s->web ? s->web[s->at] : NULL;
}

void source_free(struct source *s)
{
    if (!s)
        return;
    close_file(s);
    for (int i = 0; s->path && i < s->n; i++)
        free(s->path[i]);
    for (int i = 0; s->web && i < s->n; i++)
        http_file_free(s->web[i]);
    free(s->web);
    free(s->path);
    free(s->raw);
    free(s);
}

/* ------------------------------------------------------------------ digests of what was read
 *
 * URLs that have been read to the end are not fetched once more for their digest: the state of the
 * hash after the last one is kept under their names.
 */

struct seen {
    struct seen *next;
    struct sha256 sha;
    int n;
    char *name[];
};
static struct seen *seen;
static pthread_mutex_t seen_lock = PTHREAD_MUTEX_INITIALIZER;

static struct seen *find_seen(char *const *names, int n)
{
    for (struct seen *k = seen; k; k = k->next) {
        int i = 0;
        while (k->n == n && i < n && strcmp(k->name[i], names[i]) == 0)
            i++;
        if (i == n)
            return k;
    }
    return NULL;
}

static struct seen *add_seen(char *const *names, int n)
{
    struct seen *k = calloc(1, sizeof *k + (size_t)n * sizeof *k->name);

    for (int i = 0; k && i < n; i++)
        if (!(k->name[k->n++] = strdup(names[i]))) {
            while (k->n)
                free(k->name[--k->n]);
            free(k);
            return NULL;
        }
    if (k) {
        k->next = seen;
        seen = k;
    }
    return k;
}

/* Without memory nothing is kept, and the digest reads the files again. */
static void remember(struct source *s)
{
    pthread_mutex_lock(&seen_lock);
    struct seen *k = find_seen(s->path, s->n);
    if (k || (k = add_seen(s->path, s->n)))
        k->sha = s->sha;
    pthread_mutex_unlock(&seen_lock);
    s->kept = 1;
    s->hashing = 0;
}

/* The same for a URL; what comes is added to the digest. */
static int read_web(struct source *s, void *buf, size_t n, size_t *out_n, struct err *err)
{
    if (http_file_read(web_of(s), s->raw_offset, buf, n, out_n, err) < 0)
        return -(int)err->code;
    s->raw_offset += *out_n;
    if (!s->hashing)
        return 0;
    sha256_add(&s->sha, buf, *out_n);
    s->hashed = *out_n < n;
    if (s->hashed && s->at + 1 == s->n)
        remember(s);
    return 0;
}

/* Reads exactly n bytes unless the file ends. */
static int read_raw(struct source *s, void *buf, size_t n, size_t *out_n, struct err *err)
{
    size_t got = 0;

    if (web_of(s))
        return read_web(s, buf, n, out_n, err);
    while (got < n) {
        ssize_t k = read(s->fd, (char *)buf + got, n - got);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return err_set(err, errno == EISDIR ? ERR_INVALID : ERR_IO,
                           "%s: reading at byte %llu: %s", source_path(s),
                           (unsigned long long)(s->raw_offset + got), strerror(errno));
        if (k == 0)
            break;
        got += (size_t)k;
    }
    s->raw_offset += got;
    *out_n = got;
    return 0;
}

static int refill(struct source *s, struct err *err)
{
    s->raw_at = 0;
    s->raw_n = 0;
    return read_raw(s, s->raw, RAW_BYTES, &s->raw_n, err);
}

static int is_gzip_start(const struct source *s)
{
    return s->raw_n - s->raw_at >= 2 && s->raw[s->raw_at] == 0x1f && s->raw[s->raw_at + 1] == 0x8b;
}

static int open_web(struct source *s, struct err *err)
{
    if (!s->web && !(s->web = calloc((size_t)s->n, sizeof *s->web)))
        return err_set(err, ERR_NOMEM, "no memory to read a URL");
    if (!s->web[s->at] && http_file_open(s->path[s->at], &s->web[s->at], err) < 0)
        return -(int)err->code;
    s->size = http_file_size(s->web[s->at]);
    return 0;
}

static int open_local(struct source *s, struct err *err)
{
    const char *path = source_path(s);
    struct stat st;

    s->fd = strcmp(path, "-") == 0 ? 0 : open(path, O_RDONLY | O_CLOEXEC);
    if (s->fd < 0) {
        enum err_code code = errno == ENOENT || errno == ENOTDIR ? ERR_MISSING
                             : errno == EACCES                   ? ERR_DENIED
                                                                 : ERR_IO;
        return err_set(err, code, "%s: %s", path,
                       code == ERR_MISSING ? "no such file" : strerror(errno));
    }
    if (fstat(s->fd, &st) < 0)
        return err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return err_set(err, ERR_INVALID, "%s: is a folder, not a file", path);
    s->size = S_ISREG(st.st_mode) ? st.st_size : -1;
    return 0;
}

static int open_file(struct source *s, struct err *err)
{
    const char *path = source_path(s);
    const int url = http_is_url(path);

    if (s->at == 0)
        sha256_start(&s->sha);
    s->hashing = url && !s->raw_only && !s->kept && (s->at == 0 || (s->hashing && s->hashed));
    s->hashed = 0;
    if ((url ? open_web(s, err) : open_local(s, err)) < 0)
        return -(int)err->code;
    s->offset = s->raw_offset = 0;
    s->raw_at = s->raw_n = 0;

    if (s->raw_only)
        return 0;
    /* Two bytes tell; the rest of a plain file goes to the caller without a copy. */
    if (read_raw(s, s->raw, 2, &s->raw_n, err) < 0)
        return -(int)err->code;
    if (is_gzip_start(s)) {
        memset(&s->z, 0, sizeof s->z);
        if (inflateInit2(&s->z, 15 + 16) != Z_OK)
            return err_set(err, ERR_NOMEM, "%s: no memory to decompress it", path);
        s->gzip = 1;
        s->member = 1;
    }
    return 0;
}

static int open_list(const char *const *paths, int n, int raw_only, struct source **out,
                     struct err *err)
{
    OWN(source) s = calloc(1, sizeof *s);

    if (s) {
        s->fd = -1;
        s->raw_only = raw_only;
        s->path = calloc((size_t)n, sizeof *s->path);
        s->raw = malloc(RAW_BYTES);
    }
    if (!s || !s->path || !s->raw)
        return err_set(err, ERR_NOMEM, "%s: no memory to read it", paths[0]);
    for (s->n = 0; s->n < n; s->n++)
        if (!(s->path[s->n] = strdup(paths[s->n])))
            return err_set(err, ERR_NOMEM, "%s: no memory to read it", paths[0]);
    if (open_file(s, err) < 0)
        return -(int)err->code;
    *out = TAKE(s);
    return 0;
}

int source_open(const char *const *paths, int n, struct source **out, struct err *err)
{
    return open_list(paths, n, 0, out, err);
}

static int read_plain(struct source *s, char *buf, size_t n, size_t *out_n, struct err *err)
{
    size_t kept = s->raw_n - s->raw_at, got;

    if (kept > n)
        kept = n;
    memcpy(buf, s->raw + s->raw_at, kept);
    if (read_raw(s, buf + kept, n - kept, &got, err) < 0)
        return -(int)err->code;
    s->raw_at += kept;
    *out_n = kept + got;
    return 0;
}

static int say_cut_off(struct source *s, struct err *err)
{
    return err_set(err, ERR_INVALID,
                   "%s: the gzip file is cut off at byte %llu (download or compress it again)",
                   source_path(s), (unsigned long long)s->raw_offset);
}

/* After the end of a member: another one, the end of the file, or bytes that are neither. Zero
 * bytes that pad a tape block are let pass, as gzip does. */
static int next_member(struct source *s, struct err *err)
{
    while (1) {
        while (s->raw_at < s->raw_n && s->raw[s->raw_at] == 0)
            s->raw_at++;
        if (s->raw_n - s->raw_at >= 2)
            break;
        size_t kept = s->raw_n - s->raw_at, got;
        if (kept)
            s->raw[0] = s->raw[s->raw_at];
        if (read_raw(s, s->raw + kept, RAW_BYTES - kept, &got, err) < 0)
            return -(int)err->code;
        s->raw_at = 0;
        s->raw_n = kept + got;
        if (got == 0)
            break;
    }
    if (s->raw_at == s->raw_n)
        return 0;
    if (!is_gzip_start(s))
        return err_set(err, ERR_INVALID,
                       "%s: has bytes after the gzip data, before byte %llu (compress it again)",
                       source_path(s), (unsigned long long)s->raw_offset);
    inflateReset(&s->z);
    s->member = 1;
    return 0;
}

static int read_gzip(struct source *s, char *buf, size_t n, size_t *out_n, struct err *err)
{
    size_t got = 0;

    while (got < n && s->member) {
        if (s->raw_at == s->raw_n) {
            if (refill(s, err) < 0)
                return -(int)err->code;
            if (s->raw_n == 0)
                return say_cut_off(s, err);
        }
        size_t room = n - got < (1u << 30) ? n - got : 1u << 30;
        s->z.next_in = s->raw + s->raw_at;
        s->z.avail_in = (unsigned)(s->raw_n - s->raw_at);
        s->z.next_out = (unsigned char *)buf + got;
        s->z.avail_out = (unsigned)room;
        int rc = inflate(&s->z, Z_NO_FLUSH);
        s->raw_at = s->raw_n - s->z.avail_in;
        got += room - s->z.avail_out;
        if (rc == Z_STREAM_END) {
            s->member = 0;
            if (next_member(s, err) < 0)
                return -(int)err->code;
        } else if (rc == Z_MEM_ERROR) {
            return err_set(err, ERR_NOMEM, "%s: no memory to decompress it", source_path(s));
        } else if (rc != Z_OK && rc != Z_BUF_ERROR) {
            return err_set(err, ERR_INVALID,
                           "%s: the gzip data is damaged before byte %llu: %s (download it again)",
                           source_path(s),
                           (unsigned long long)(s->raw_offset - s->raw_n + s->raw_at),
                           s->z.msg ? s->z.msg : "wrong checksum");
        }
    }
    *out_n = got;
    return 0;
}

int source_read(struct source *s, void *buf, size_t n, size_t *out_n, struct err *err)
{
    size_t got = 0;
    int rc = s->gzip ? read_gzip(s, buf, n, &got, err) : read_plain(s, buf, n, &got, err);

    if (rc < 0)
        return rc;
    s->offset += got;
    *out_n = got;
    return 0;
}

int source_next(struct source *s, int *out_more, struct err *err)
{
    if (s->at + 1 >= s->n) {
        *out_more = 0;
        return 0;
    }
    close_file(s);
    if (web_of(s))
        http_file_rest(web_of(s));
    s->at++;
    if (open_file(s, err) < 0)
        return -(int)err->code;
    *out_more = 1;
    return 0;
}

int source_rewind(struct source *s, struct err *err)
{
    for (int i = 0; i <= s->at; i++)
        if (strcmp(s->path[i], "-") == 0)
            return err_set(err, ERR_INVALID,
                           "the standard input cannot be read twice (write it to a file first)");
    close_file(s);
    if (s->at > 0 && web_of(s))
        http_file_rest(web_of(s));
    s->at = 0;
    return open_file(s, err);
}

const char *source_path(const struct source *s)
{
    return s->path[s->at];
}

int source_file(const struct source *s)
{
    return s->at;
}

uint64_t source_offset(const struct source *s)
{
    return s->offset;
}

int64_t source_size(const struct source *s)
{
    return s->gzip ? -1 : s->size;
}

int source_slurp(const char *path, size_t max, char **out, size_t *out_n, int *out_packed,
                 struct err *err)
{
    OWN(source) s = NULL;
    OWN_MEM char *all = NULL;
    size_t n = 0, got;

    if (source_open(&path, 1, &s, err) < 0)
        return -(int)err->code;
    const int packed = s->gzip;
    /* A plain file is read in one piece; the size of any other is found by doubling. */
    size_t room = source_size(s) > 0 ? (size_t)source_size(s) + 1 : 1 << 16;
    do {
        if (room > max)
            room = max + 1;     /* one more than allowed: tells a file that is too long */
        char *more = realloc(all, room + 1);
        if (!more)
            return err_set(err, ERR_NOMEM, "%s: no memory for its %zu bytes", path, room);
        all = more;
        if (source_read(s, all + n, room - n, &got, err) < 0)
            return -(int)err->code;
        n += got;
        if (n > max)
            return err_set(err, ERR_INVALID, "%s: is longer than %zu bytes", path, max);
        if (n < room)
            break;
        room = room <= SIZE_MAX / 2 ? 2 * room : SIZE_MAX;
    } while (1);
    all[n] = 0;
    *out = TAKE(all);
    *out_n = n;
    if (out_packed)
        *out_packed = packed;
    return 0;
}

int source_digest(const char *const *paths, int n, char out_hex[SHA256_HEX], struct err *err)
{
    OWN(source) s = NULL;
    const struct seen *k = NULL;
    struct sha256 sha;
    int done = n, more = n > 0;
    size_t got;

    for (int i = 0; i < n; i++)
        if (strcmp(paths[i], "-") == 0)
            return err_set(err, ERR_INVALID,
                           "the standard input has no digest (write it to a file first)");
    sha256_start(&sha);
    pthread_mutex_lock(&seen_lock);
    while (done > 0 && !(k = find_seen((char *const *)paths, done)))
        done--;
    if (k)
        sha = k->sha;
    pthread_mutex_unlock(&seen_lock);
    if (done < n && open_list(paths + done, n - done, 1, &s, err) < 0)
        return -(int)err->code;
    while (s && more) {
        if (read_raw(s, s->raw, RAW_BYTES, &got, err) < 0)
            return -(int)err->code;
        sha256_add(&sha, s->raw, got);
        if (got < RAW_BYTES && source_next(s, &more, err) < 0)
            return -(int)err->code;
    }
    sha256_finish_hex(&sha, out_hex);
    return 0;
}

int64_t source_bytes(const char *path)
{
    OWN(source) s = NULL;
    struct err ignored;

    if (strcmp(path, "-") == 0 || open_list(&path, 1, 1, &s, &ignored) < 0)
        return -1;
    return s->size;
}
