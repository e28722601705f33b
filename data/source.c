/* data/source.c - bytes of files, one after another, gzip or not
 *
 * One descriptor is open at a time. `raw` holds bytes as they lie in the file: the first two, read
 * to tell gzip from plain, and then the input of zlib. A plain file empties what is left in `raw`
 * and from then on reads straight into the caller's buffer.
 */
#include "data/source.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <zlib.h>

enum { RAW_BYTES = 128 << 10 };

struct source {
    char **path;
    int n, at;
    int fd;
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

void source_free(struct source *s)
{
    if (!s)
        return;
    close_file(s);
    for (int i = 0; s->path && i < s->n; i++)
        free(s->path[i]);
    free(s->path);
    free(s->raw);
    free(s);
}

/* Reads exactly n bytes unless the file ends. */
static int read_raw(struct source *s, void *buf, size_t n, size_t *out_n, struct err *err)
{
    size_t got = 0;

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

static int open_file(struct source *s, struct err *err)
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
    s->offset = s->raw_offset = 0;
    s->raw_at = s->raw_n = 0;

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

int source_open(const char *const *paths, int n, struct source **out, struct err *err)
{
    OWN(source) s = calloc(1, sizeof *s);

    if (s) {
        s->fd = -1;
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

int source_slurp(const char *path, size_t max, char **out, size_t *out_n, struct err *err)
{
    OWN(source) s = NULL;
    OWN_MEM char *all = NULL;
    size_t n = 0, got;

    if (source_open(&path, 1, &s, err) < 0)
        return -(int)err->code;
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
    return 0;
}
