/* data/parts.c - files of which a process reads the blocks that it needs
 *
 * DESIGN. A block is missing, coming (one of the two threads reads it) or here; states are under
 * `lock`, the source is under `io`. Both threads read by the same loop: mark a run of missing
 * blocks as coming, read it, check it, say that it is here, or missing again. Who needs blocks
 * reads those that are missing, waits for those that are coming, and looks again. The thread that
 * reads ahead stops before its next run while somebody needs something, and for good when it is
 * told something else.
 */
#include "data/parts.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/http.h"

enum {
    RUN_BYTES = 2 << 20,        /* read in one piece at most: what somebody else may wait for */
    DENSE_ROWS = 8,             /* one worker of two wants 255 of 256 blocks of so many rows */
};

enum state { MISSING, COMING, HERE };

struct part {
    char *name;
    struct blocks *blocks;
    struct part_source source;
    uint8_t *data;
    size_t mapped;
    atomic_uint_least64_t bytes;
    atomic_int failed;

    pthread_mutex_t io;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint8_t *state;             /* (blocks) */
    int needed;                 /* somebody waits in part_need */
    uint8_t *ahead;             /* (blocks) to be read ahead, not yet taken up; NULL: nothing */
    int running, closing;
    pthread_t thread;
};

/* ------------------------------------------------------------------ sources */

struct local {
    int fd;
    char path[];
};

static int read_local(void *arg, uint64_t at, void *to, size_t n, struct err *err)
{
    const struct local *f = arg;

    for (size_t got = 0; got < n;) {
        ssize_t k = pread(f->fd, (char *)to + got, n - got, (off_t)(at + got));
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return err_set(err, ERR_IO, "%s: reading at byte %llu: %s", f->path,
                           (unsigned long long)(at + got), strerror(errno));
        if (k == 0)
            return err_set(err, ERR_CONFLICT, "%s: is shorter than it was when the job began (put "
                           "it back, or start the job again)", f->path);
        got += (size_t)k;
    }
    return 0;
}

static void close_local(void *arg)
{
    struct local *f = arg;

    close(f->fd);
    free(f);
}

static int read_web(void *arg, uint64_t at, void *to, size_t n, struct err *err)
{
    size_t got;

    if (http_file_read(arg, at, to, n, &got, err) < 0)
        return -(int)err->code;
    return got == n ? 0 : err_set(err, ERR_CONFLICT, "it ends at byte %llu",
                                  (unsigned long long)(at + got));
}

static void close_web(void *arg)
{
    http_file_free(arg);
}

static int check_size(const char *path, int64_t size, uint64_t want, struct err *err)
{
    if (size == (int64_t)want)
        return 0;
    return err_set(err, ERR_CONFLICT, "%s: has %lld bytes, the job's has %llu: this worker reads "
                   "other data than the job", path, (long long)size, (unsigned long long)want);
}

static int open_web(const char *url, uint64_t size, struct part_source *out, struct err *err)
{
    OWN(http_file) f = NULL;

    if (http_file_open_sparse(url, &f, err) < 0 ||
        (http_file_size(f) >= 0 && check_size(url, http_file_size(f), size, err) < 0))
        return -(int)err->code;
    *out = (struct part_source){ read_web, NULL, close_web, TAKE(f) };
    return 0;
}

int part_source_open(const char *path, uint64_t size, struct part_source *out, struct err *err)
{
    struct stat st;

    if (http_is_url(path))
        return open_web(path, size, out, err);
    OWN_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_set(err, errno == ENOENT ? ERR_MISSING : ERR_IO, "%s: %s", path,
                       strerror(errno));
    if (check_size(path, st.st_size, size, err) < 0)
        return -(int)err->code;
    struct local *f = malloc(sizeof *f + strlen(path) + 1);
    if (!f)
        return err_set(err, ERR_NOMEM, "no memory to read %s", path);
    memcpy(f->path, path, strlen(path) + 1);
    f->fd = fd;
    fd = -1;
    *out = (struct part_source){ read_local, NULL, close_local, f };
    return 0;
}

/* ------------------------------------------------------------------ reading */

static int say_other(const struct part *p, long first, struct err *err)
{
    const struct blocks *b = p->blocks;

    if (first < 0)
        return err_set(err, ERR_CONFLICT, "%s: its first bytes are not those of the job's file: "
                       "this worker reads other data than the job", p->name);
    return err_set(err, ERR_CONFLICT, "%s: its rows from %llu on are not those of the job's file "
                   "(it was changed: put it back, or start the job again)", p->name,
                   (unsigned long long)first * b->rows_in_block + 1);
}

/* Blocks first..end (-1: the head), to their place, all of them right. */
static int read_run(struct part *p, long first, long end, struct err *err)
{
    const struct blocks *b = p->blocks;
    uint64_t at = 0, last = 0;
    size_t n = b->head;

    if (first >= 0) {
        blocks_place(b, first, &at);
        n = blocks_place(b, end - 1, &last);
        n += (size_t)(last - at);
    }
    pthread_mutex_lock(&p->io);
    int rc = p->source.read(p->source.arg, at, p->data + at, n, err);
    pthread_mutex_unlock(&p->io);
    if (rc < 0)
        return rc;
    atomic_fetch_add(&p->bytes, n);
    for (long i = first; i < end; i++) {
        if (i >= 0)
            blocks_place(b, i, &at);
        if (!blocks_match(b, i, p->data + at))
            return say_other(p, i, err);
    }
    return 0;
}

/* The next run of blocks from `at` on that are wanted and missing, marked as coming; false: there
 * is none. Under the lock. */
static int take_run(struct part *p, const uint8_t *want, long at, long *first, long *end)
{
    const struct blocks *b = p->blocks;
    const long most = RUN_BYTES / ((long)b->rows_in_block * b->row) + 1;

    while (at < b->n && !(want[at] && p->state[at] == MISSING))
        at++;
    for (*first = at; at < b->n && at - *first < most && want[at] && p->state[at] == MISSING; at++)
        p->state[at] = COMING;
    *end = at;
    return *end > *first;
}

/* All that is wanted and missing; `behind`: as the thread does. */
static int read_wanted(struct part *p, const uint8_t *want, int behind, struct err *err)
{
    long first, end = 0;

    for (;;) {
        pthread_mutex_lock(&p->lock);
        while (behind && p->needed && !p->closing && !p->ahead)
            pthread_cond_wait(&p->changed, &p->lock);
        const int more = !(behind && (p->closing || p->ahead)) && take_run(p, want, end, &first,
                                                                           &end);
        pthread_mutex_unlock(&p->lock);
        if (!more)
            return 0;
        int rc = read_run(p, first, end, err);
        pthread_mutex_lock(&p->lock);
        memset(p->state + first, rc < 0 ? MISSING : HERE, (size_t)(end - first));
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
        if (rc < 0)
            return rc;
    }
}

/* True when all that is wanted is here; waits while nothing of it is missing. */
static int wait_wanted(struct part *p, const uint8_t *want)
{
    long at = 0;

    pthread_mutex_lock(&p->lock);
    while (at < p->blocks->n && !(want[at] && p->state[at] == MISSING)) {
        if (want[at] && p->state[at] == COMING)
            pthread_cond_wait(&p->changed, &p->lock);
        else
            at++;
    }
    pthread_mutex_unlock(&p->lock);
    return at == p->blocks->n;
}

/* (blocks) which of them the rows lie in; NULL: no memory. */
static uint8_t *blocks_with(const struct part *p, const uint32_t *row, long n)
{
    uint8_t *want = calloc((size_t)p->blocks->n + 1, 1);

    for (long i = 0; want && i < n; i++)
        want[row[i] / p->blocks->rows_in_block] = 1;
    return want;
}

static void need(struct part *p, int more)
{
    pthread_mutex_lock(&p->lock);
    p->needed += more;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

int part_need(struct part *p, const uint32_t *row, long n, struct err *err)
{
    OWN_MEM uint8_t *want = blocks_with(p, row, n);
    int rc = 0;

    need(p, 1);
    do {
        rc = want ? read_wanted(p, want, 0, err)
                  : err_set(err, ERR_NOMEM, "no memory to read %s", p->name);
    } while (rc == 0 && !wait_wanted(p, want));
    need(p, -1);
    if (rc == 0)
        return 0;
    atomic_store(&p->failed, 1);
    /* Its source has tried more than once: whoever wants it cannot have it. */
    if (err->code != ERR_CONFLICT && err->code != ERR_NOMEM)
        err->code = ERR_MISSING;
    return -(int)err->code;
}

/* ------------------------------------------------------------------ ahead */

static void *read_ahead(void *arg)
{
    struct part *p = arg;
    struct err ignored;

    pthread_mutex_lock(&p->lock);
    while (!p->closing) {
        uint8_t *want = TAKE(p->ahead);
        if (!want) {
            pthread_cond_wait(&p->changed, &p->lock);
            continue;
        }
        pthread_mutex_unlock(&p->lock);
        read_wanted(p, want, 1, &ignored);
        free(want);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static int is_missing(struct part *p, const uint8_t *want)
{
    long at = 0;

    pthread_mutex_lock(&p->lock);
    while (at < p->blocks->n && !(want[at] && p->state[at] == MISSING))
        at++;
    pthread_mutex_unlock(&p->lock);
    return at < p->blocks->n;
}

void part_ahead(struct part *p, const uint32_t *row, long n)
{
    uint8_t *want = blocks_with(p, row, n);

    if (!want || !is_missing(p, want)) {
        free(want);
        return;
    }
    if (!p->running && pthread_create(&p->thread, NULL, read_ahead, p) != 0) {
        free(want);             /* then it is read when it is needed */
        return;
    }
    p->running = 1;
    pthread_mutex_lock(&p->lock);
    free(p->ahead);
    p->ahead = want;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

/* ------------------------------------------------------------------ life */

static int make(struct part *p, const char *name, struct err *err)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);

    pthread_mutex_init(&p->io, NULL);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    p->name = strdup(name);
    p->state = calloc((size_t)p->blocks->n + 1, 1);
    p->mapped = ((size_t)p->blocks->size / page + 1) * page;
    p->data = mmap(NULL, p->mapped, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p->data == MAP_FAILED)
        p->data = NULL;
    if (!p->name || !p->state || !p->data)
        return err_set(err, ERR_NOMEM, "no memory for the %zu bytes of %s", p->mapped, name);
    /* A large page would be there whole for the one row in it. */
    if (!part_is_dense(p))
        madvise(p->data, p->mapped, MADV_NOHUGEPAGE);
    return read_run(p, -1, 0, err);
}

int part_new(const char *name, struct blocks *blocks, const struct part_source *source,
             struct part **out, struct err *err)
{
    OWN(part) p = calloc(1, sizeof *p);

    if (!p) {
        blocks_free(blocks);
        if (source->close)
            source->close(source->arg);
        return err_set(err, ERR_NOMEM, "no memory to read %s", name);
    }
    p->blocks = blocks;
    p->source = *source;
    if (make(p, name, err) < 0)
        return -(int)err->code;
    *out = TAKE(p);
    return 0;
}

void part_free(struct part *p)
{
    if (!p)
        return;
    if (p->running) {
        if (p->source.stop)
            p->source.stop(p->source.arg);
        pthread_mutex_lock(&p->lock);
        p->closing = 1;
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
        pthread_join(p->thread, NULL);
    }
    if (p->source.close)
        p->source.close(p->source.arg);
    if (p->data)
        munmap(p->data, p->mapped);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->io);
    blocks_free(p->blocks);
    free(p->ahead);
    free(p->state);
    free(p->name);
    free(p);
}

int part_is_dense(const struct part *p) { return p->blocks->rows_in_block > DENSE_ROWS; }
const struct blocks *part_blocks(const struct part *p) { return p->blocks; }
const char *part_name(const struct part *p) { return p->name; }
uint8_t *part_data(struct part *p) { return p->data; }

/* ------------------------------------------------------------------ those of a job */

void parts_done(struct parts *p)
{
    for (int i = 0; i < p->n; i++) {
        part_free(p->file[i].part);
        free(p->file[i].path);
    }
    p->n = 0;
}

struct part *parts_find(const struct parts *p, const char *path)
{
    for (int i = 0; p && i < p->n; i++)
        if (strcmp(p->file[i].path, path) == 0)
            return p->file[i].part;
    return NULL;
}

uint64_t parts_bytes(const struct parts *p)
{
    uint64_t n = 0;

    for (int i = 0; p && i < p->n; i++)
        n += atomic_load(&p->file[i].part->bytes);
    return n;
}

int parts_failed(const struct parts *p)
{
    int failed = 0;

    for (int i = 0; p && i < p->n; i++)
        failed |= atomic_load(&p->file[i].part->failed);
    return failed;
}
