/* data/stream.c - rows that are never all in memory
 *
 * DESIGN. A window holds two chunks of records and, before them, room for one batch less a row:
 *
 *     [ carry: batch slots | chunk 0 | chunk 1 ]
 *
 * The reader thread fills one chunk while the caller works on the other. A chunk is a whole number
 * of shuffle blocks, so that the order of its positions is known when it is full. Positions that do
 * not fill a batch stay behind when a chunk is given back: their records are copied to the carry,
 * and the next stretch begins with them. Each chunk changes hands under the lock, by `full`:
 *
 *     reader: wait !full, write records, set full      caller: wait full, read, clear full
 *
 * The thread lives for one epoch. An error of the reader travels in the chunk where it happened, so
 * that the rows before it are still delivered.
 */
#include "data/dataset_int.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A chunk is worth waking a thread for, and small against the memory of a program. */
enum { CHUNK_BYTES = 1 << 20, CHUNK_ROWS_MIN = 256, CHUNK_ROWS_MAX = 65536 };

struct chunk {
    int full;
    int last;                   /* nothing follows */
    int failed;
    long n;
    struct err err;
};

struct stream {
    struct rows *rows;          /* the thread's while it runs */
    char *window;
    long carry_rows, chunk_rows;
    uint32_t *order;            /* (carry_rows + chunk_rows) */
    double *raw;

    pthread_t thread;
    int running;
    pthread_mutex_t lock;
    pthread_cond_t turn;
    int stop;                   /* the caller wants the thread to end */
    struct chunk chunk[2];
    long skipped;               /* by the thread, read after the last chunk */

    /* The caller's. */
    int epoch;
    long from;                  /* positions of the epoch to leave out */
    long taken;                 /* chunks that were taken */
    int holding;                /* the chunk of the last stretch is still ours */
    long carried;               /* records in the carry */
    long spare;                 /* positions at order[spare_at] that the last stretch left over */
    long spare_at;
    int ended;
};

/* What the thread needs of the dataset, none of which changes while it runs. */
struct reader {
    struct dataset *d;
    const struct rows_block *b;
    long at;                    /* in the block */
    long delivered;
};

/* The next record of the part; 1, or 0 at the end. */
static int read_record(struct reader *r, void *record, struct err *err)
{
    struct dataset *d = r->d;
    struct stream *s = d->stream;
    for (;;) {
        if (r->delivered == d->place.limit)
            return 0;
        if (!r->b || r->at == r->b->n) {
            if (rows_next(s->rows, &r->b, err) < 0)
                return -(int)err->code;
            if (!r->b)
                return 0;
            if (features_check(d->schema, s->rows, r->b, err) < 0)
                return -(int)err->code;
            s->skipped += d->part == SPLIT_TRAIN ? r->b->broken : 0;
            r->at = 0;
            continue;
        }
        long slot = r->at++, row = r->b->first + slot;
        if (d->split.end >= 0 && row >= d->split.end)
            return 0;
        if (split_of(&d->split, row) != d->part)
            continue;
        int rc = features_read(d->schema, 0, s->rows, r->b, slot, s->raw, err);
        if (rc == FEATURES_OK)
            rc = features_write(d->schema, &d->layout, s->raw, r->b->path,
                                rows_row(s->rows, r->b, slot), record, err);
        if (rc < 0)
            return rc;
        if (rc == FEATURES_OK) {
            r->delivered++;
            return 1;
        }
        s->skipped++;
    }
}

static char *chunk_at(const struct dataset *d, int i)
{
    const struct stream *s = d->stream;
    return s->window + (size_t)(s->carry_rows + i * s->chunk_rows) * d->layout.bytes;
}

static void *read_chunks(void *arg)
{
    struct dataset *d = arg;
    struct stream *s = d->stream;
    struct reader r = { .d = d };
    for (long k = 0;; k++) {
        struct chunk *c = &s->chunk[k & 1];
        pthread_mutex_lock(&s->lock);
        while (c->full && !s->stop)
            pthread_cond_wait(&s->turn, &s->lock);
        int stop = s->stop;
        pthread_mutex_unlock(&s->lock);
        if (stop)
            return NULL;

        struct chunk next = { .full = 1 };
        char *record = chunk_at(d, (int)(k & 1));
        int rc = 1;
        while (next.n < s->chunk_rows && (rc = read_record(&r, record, &next.err)) == 1) {
            record += d->layout.bytes;
            next.n++;
        }
        next.last = rc == 0;
        next.failed = rc < 0;
        pthread_mutex_lock(&s->lock);
        *c = next;
        pthread_cond_signal(&s->turn);
        pthread_mutex_unlock(&s->lock);
        if (rc != 1)
            return NULL;
    }
}

static void stop_thread(struct stream *s)
{
    if (!s->running)
        return;
    pthread_mutex_lock(&s->lock);
    s->stop = 1;
    pthread_cond_signal(&s->turn);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    s->running = s->stop = 0;
}

void stream_free(struct stream *s)
{
    if (!s)
        return;
    stop_thread(s);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->turn);
    rows_free(s->rows);
    free(s->window);
    free(s->order);
    free(s->raw);
    free(s);
}

int stream_open(struct dataset *d, struct err *err)
{
    if (features_layout(d->schema, &d->layout, err) < 0)
        return -(int)err->code;
    struct stream *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(err, ERR_NOMEM, "no memory for a stream");
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->turn, NULL);
    d->stream = s;

    size_t bytes = d->layout.bytes;
    long unit = d->shuffle > 0 ? d->shuffle : 1, want = (long)(CHUNK_BYTES / bytes);
    want = want < CHUNK_ROWS_MIN ? CHUNK_ROWS_MIN : want > CHUNK_ROWS_MAX ? CHUNK_ROWS_MAX : want;
    want = want < d->batch ? d->batch : want;
    s->chunk_rows = (want + unit - 1) / unit * unit;
    s->carry_rows = d->batch;
    s->window = malloc((size_t)(s->carry_rows + 2 * s->chunk_rows) * bytes);
    s->order = malloc((size_t)(s->carry_rows + s->chunk_rows) * sizeof *s->order);
    s->raw = malloc((size_t)features_raw(d->schema) * sizeof *s->raw);
    if (!s->window || !s->order || !s->raw)
        return err_set(err, ERR_NOMEM, "no memory for a window of %ld rows (lower data.shuffle)",
                       2 * s->chunk_rows);
    for (int i = 0; i < d->layout.n; i++)
        d->layout.field[i].base = s->window + d->layout.offset[i];
    return rows_for(d->schema, &d->place, &s->rows, err) < 0 ? -(int)err->code
                                                             : stream_rewind(d, 0, 0, err);
}

int stream_rewind(struct dataset *d, int epoch, long from, struct err *err)
{
    struct stream *s = d->stream;
    int fresh = !s->running && s->taken == 0 && !s->ended;
    stop_thread(s);
    if (!fresh && rows_rewind(s->rows, err) < 0)
        return -(int)err->code;
    memset(s->chunk, 0, sizeof s->chunk);
    s->epoch = epoch;
    s->from = from;
    s->taken = s->carried = s->spare = 0;
    s->holding = s->ended = 0;
    s->skipped = 0;
    int rc = pthread_create(&s->thread, NULL, read_chunks, d);
    if (rc)
        return err_set(err, ERR_AGAIN, "no thread to read %s: %s", d->place.path[0], strerror(rc));
    s->running = 1;
    return 0;
}

/* Gives the held chunk back; what was left over of it moves to the carry. */
static void give_back(struct dataset *d)
{
    struct stream *s = d->stream;
    size_t bytes = d->layout.bytes;
    /* Those that lie in the carry already come first and never move up, so none is overwritten. */
    for (long i = 0; i < s->spare; i++)
        memmove(s->window + (size_t)i * bytes,
                s->window + (size_t)s->order[s->spare_at + i] * bytes, bytes);
    s->carried = s->spare;
    s->spare = 0;
    if (!s->holding)
        return;
    s->holding = 0;
    pthread_mutex_lock(&s->lock);
    s->chunk[(s->taken - 1) & 1].full = 0;
    pthread_cond_signal(&s->turn);
    pthread_mutex_unlock(&s->lock);
}

static struct chunk take_chunk(struct stream *s)
{
    struct chunk *c = &s->chunk[s->taken & 1];
    pthread_mutex_lock(&s->lock);
    while (!c->full)
        pthread_cond_wait(&s->turn, &s->lock);
    struct chunk got = *c;
    pthread_mutex_unlock(&s->lock);
    s->taken++;
    s->holding = 1;
    return got;
}

/* The order of a chunk that has just been taken, after what is carried. Returns positions. */
static long order_chunk(struct dataset *d, long n)
{
    struct stream *s = d->stream;
    long k = s->taken - 1, first = k * s->chunk_rows;
    uint32_t base = (uint32_t)(s->carry_rows + (k & 1) * s->chunk_rows);
    for (long i = 0; i < s->carried; i++)
        s->order[i] = (uint32_t)i;
    uint32_t *to = s->order + s->carried;
    long unit = d->shuffle > 0 ? d->shuffle : s->chunk_rows;
    for (long at = 0; at < n; at += unit) {
        uint32_t len = (uint32_t)(n - at < unit ? n - at : unit);
        if (d->shuffle > 0)
            shuffle_block(to + at, len, d->seed, s->epoch, (first + at) / unit);
        for (uint32_t i = 0; i < len; i++)
            to[at + i] = (d->shuffle > 0 ? to[at + i] : i) + base + (uint32_t)at;
    }
    long drop = s->from - first;        /* only before the first stretch, when nothing is carried */
    drop = drop < 0 ? 0 : drop > n ? n : drop;
    memmove(to, to + drop, (size_t)(n - drop) * sizeof *to);
    return s->carried + n - drop;
}

int stream_stretch(struct dataset *d, struct stretch *out, struct err *err)
{
    struct stream *s = d->stream;
    *out = (struct stretch){ d->layout.field, d->layout.n, s->order, 0, 1 };
    while (!s->ended) {
        give_back(d);
        struct chunk c = take_chunk(s);
        long have = order_chunk(d, c.n);
        s->ended = c.last || c.failed;
        if (c.failed) {
            *err = c.err;
            return -(int)c.err.code;
        }
        out->last = c.last;
        out->n = c.last ? have : have / d->batch * d->batch;
        s->spare = have - out->n;
        s->spare_at = out->n;
        if (c.last) {
            d->rows = (s->taken - 1) * s->chunk_rows + c.n;
            d->skipped = s->skipped;
        }
        if (out->n || c.last)
            return 0;
    }
    return 0;
}

/* Rows of the range, by reading no column. */
static int count_rows(struct dataset *d, struct err *err)
{
    struct csv_options o = schema_csv(d->schema);
    OWN(rows) rows = NULL;
    const struct rows_block *b;
    if (rows_open((enum rows_format)d->place.format, (const char *const *)d->place.path, d->place.n,
                  &o, &rows, err) < 0)
        return -(int)err->code;
    long total = 0;
    while (rows_next(rows, &b, err) == 0 && b)
        total = b->first + b->n;
    if (err->code)
        return -(int)err->code;
    if (d->split.end >= 0 && d->split.end < total)
        total = d->split.end;
    d->split.total = total > d->split.first ? total - d->split.first : 0;
    return 0;
}

static int learn_rows(const struct dataset *d, int all, struct learnt *l, long *out_rows,
                      struct err *err)
{
    OWN(rows) rows = NULL;
    OWN_MEM double *raw = malloc((size_t)features_raw(d->schema) * sizeof *raw);
    const struct rows_block *b;
    long n = 0;
    if (!raw)
        return err_set(err, ERR_NOMEM, "no memory for a row");
    if (rows_for(d->schema, &d->place, &rows, err) < 0)
        return -(int)err->code;
    while (rows_next(rows, &b, err) == 0 && b && (all || n != d->place.limit)) {
        if (features_check(d->schema, rows, b, err) < 0)
            return -(int)err->code;
        for (long i = 0; i < b->n; i++) {
            int part = split_of(&d->split, b->first + i);
            if (part == SPLIT_NEITHER || (!all && (part != d->part || n == d->place.limit)))
                continue;
            int rc = features_read(d->schema, 1, rows, b, i, raw, err);
            if (rc < 0 || (rc == FEATURES_OK && features_learn(l, d->schema, raw, err) < 0))
                return -(int)err->code;
            n += rc == FEATURES_OK && part == d->part;
        }
    }
    if (err->code)
        return -(int)err->code;
    *out_rows = n;
    return 0;
}

int stream_learn(struct dataset *d, const struct dataset *test, struct err *err)
{
    struct schema *s = d->schema;
    *err = (struct err){ 0 };
    if (d->split.test > 0 && !d->split.random && count_rows(d, err) < 0)
        return -(int)err->code;
    if (schema_complete(s))
        return 0;
    OWN(learnt) l = features_learn_new(s);
    long rows = -1, more;
    if (!l)
        return err_set(err, ERR_NOMEM, "no memory for the statistics");
    if (learn_rows(d, s->scale_over_all, l, &rows, err) < 0 ||
        (test && learn_rows(test, 1, l, &more, err) < 0))
        return -(int)err->code;
    if (!rows)
        return err_set(err, ERR_INVALID, "%s: no rows for the training part", d->place.path[0]);
    if (features_settle(s, l, err) < 0)
        return -(int)err->code;
    d->rows = d->place.limit >= 0 && rows > d->place.limit ? d->place.limit : rows;
    return 0;
}
