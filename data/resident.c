/* data/resident.c - all rows in memory
 *
 * Rows are read once, to raw values in chunks. When the last one is in, the split is known and so
 * are the statistics; the chunks then become records, and each is freed as soon as it has. A split
 * of one file is one table with two lists of slots.
 */
#include "data/dataset_int.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    HUGE = 2 << 20,
    CHUNK_FIRST = 128 << 10,    /* a small file pays for a small chunk */
    CHUNK_BYTES = 1 << 20,
};

/* Raw rows: features_raw doubles and the row's number in the files. */
struct chunk {
    struct chunk *next;
    long n;
    double value[];
};

struct raw_rows {
    struct chunk *first, **end, *last;
    long chunk_rows, n;
    int width;
    const char **path;          /* of the file a row came from: (n_files) with its first row */
    long *path_first;
    int n_files;
    long *left_out;             /* numbers of rows that were */
    long n_left_out, cap_left_out;
    long broken;                /* rows that were none, counted to the part that owns the file */
    long total;                 /* rows seen, up to the end of the range */
};

static void raw_done(struct raw_rows *w)
{
    for (struct chunk *c = w->first, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(w->path);
    free(w->path_first);
    free(w->left_out);
}

static int raw_leave_out(struct raw_rows *w, long row, struct err *err)
{
    if (w->n_left_out == w->cap_left_out) {
        long cap = 2 * w->cap_left_out + 64;
        long *rows = realloc(w->left_out, (size_t)cap * sizeof *rows);
        if (!rows)
            return err_set(err, ERR_NOMEM, "no memory to count rows that are left out");
        w->left_out = rows;
        w->cap_left_out = cap;
    }
    w->left_out[w->n_left_out++] = row;
    return 0;
}

static double *raw_slot(struct raw_rows *w, struct err *err)
{
    if (!w->last || w->last->n == w->chunk_rows) {
        w->chunk_rows = (w->last ? CHUNK_BYTES : CHUNK_FIRST) / (8 * w->width) + 1;
        struct chunk *c = malloc(sizeof *c + (size_t)w->chunk_rows * (size_t)w->width * 8);
        if (!c) {
            err_set(err, ERR_NOMEM, "no memory for %ld rows (set data.stream: true)", w->n);
            return NULL;
        }
        c->next = NULL;
        c->n = 0;
        *w->end = w->last = c;
        w->end = &c->next;
    }
    return w->last->value + w->last->n * w->width;
}

/* Remembers from which row on a file is read, for messages at writing time. */
static int raw_file(struct raw_rows *w, const struct rows_block *b, struct err *err)
{
    if (w->n_files && w->path[w->n_files - 1] == b->path)
        return 0;
    const char **path = realloc(w->path, (size_t)(w->n_files + 1) * sizeof *path);
    if (path)
        w->path = path;
    long *first = realloc(w->path_first, (size_t)(w->n_files + 1) * sizeof *first);
    if (first)
        w->path_first = first;
    if (!path || !first)
        return err_set(err, ERR_NOMEM, "no memory for the list of files");
    path[w->n_files] = b->path;
    first[w->n_files++] = b->first - b->first_in_file;
    return 0;
}

/* `most`: stop after so many rows; -1: all. */
static int raw_read(struct raw_rows *w, struct schema *s, struct rows *rows,
                    const struct split *split, long most, struct err *err)
{
    const struct rows_block *b;
    w->width = features_raw(s) + 1;
    w->end = &w->first;
    for (;;) {
        if (rows_next(rows, &b, err) < 0)
            return -(int)err->code;
        if (!b)
            return 0;
        if (raw_file(w, b, err) < 0 || features_check(s, rows, b, err) < 0)
            return -(int)err->code;
        w->broken += b->broken;
        for (long i = 0; i < b->n; i++) {
            long row = b->first + i;
            if (row < split->first)
                continue;
            if ((split->end >= 0 && row >= split->end) || w->n == most)
                return 0;
            double *raw = raw_slot(w, err);
            if (!raw)
                return -(int)err->code;
            int rc = features_read(s, 1, rows, b, i, raw, err);
            if (rc < 0 || (rc == FEATURES_LEFT_OUT && raw_leave_out(w, row, err) < 0))
                return -(int)err->code;
            w->total = row - split->first + 1;
            if (rc != FEATURES_OK)
                continue;
            raw[w->width - 1] = (double)row;
            w->last->n++;
            if (++w->n >= UINT32_MAX)
                return err_set(err, ERR_INVALID,
                               "%s has more rows than fit in memory (set data.stream: true)",
                               b->path);
        }
    }
}

static int raw_learn(const struct raw_rows *w, const struct schema *s, struct learnt *l,
                     const struct split *split, int part, long limit, struct err *err)
{
    long seen = 0;
    for (const struct chunk *c = w->first; c; c = c->next)
        for (long i = 0; i < c->n; i++) {
            const double *raw = c->value + i * w->width;
            if (part && split_of(split, (long)raw[w->width - 1]) != part)
                continue;
            if (limit >= 0 && seen++ >= limit)
                return 0;
            if (features_learn(l, s, raw, err) < 0)
                return -(int)err->code;
        }
    return 0;
}

/* Aligned to huge pages where there is one to fill: the engine reads rows in random order. */
static struct table *table_new(size_t bytes)
{
    struct table *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->refs = 1;
    t->bytes = bytes ? bytes : 1;
    if (bytes < HUGE) {
        t->block = aligned_alloc(64, (t->bytes + 63) & ~(size_t)63);
    } else if (posix_memalign(&t->block, HUGE, bytes) == 0) {
        madvise(t->block, bytes, MADV_HUGEPAGE);
    } else {
        t->block = NULL;
    }
    if (!t->block) {
        free(t);
        return NULL;
    }
    return t;
}

static void free_rows(struct table *t)
{
    free(TAKE(t->block));
    idx_free(TAKE(t->image));
    free(TAKE(t->label));
}

void table_free(struct table *t)
{
    if (!t || __atomic_sub_fetch(&t->refs, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    free_rows(t);
    free(t);
}

void dataset_drop_rows(struct dataset *d)
{
    if (d->table)
        free_rows(d->table);
    for (int i = 0; i < d->layout.n; i++)
        d->layout.field[i].base = NULL;
}

/* Makes records of the rows, in order, and frees the raw ones behind it. */
static int raw_write(struct raw_rows *w, const struct dataset *d, struct table *t, long *row_of,
                     struct err *err)
{
    char *to = t->block;
    long out = 0;
    int file = 0;
    for (struct chunk *c; (c = w->first);) {
        for (long i = 0; i < c->n; i++) {
            const double *raw = c->value + i * w->width;
            long row = (long)raw[w->width - 1];
            while (file + 1 < w->n_files && row >= w->path_first[file + 1])
                file++;
            int rc = features_write(d->schema, &d->layout, raw, w->path[file],
                                    row - w->path_first[file] + 1, to, err);
            if (rc < 0 || (rc == FEATURES_LEFT_OUT && raw_leave_out(w, row, err) < 0))
                return -(int)err->code;
            if (rc == FEATURES_OK) {
                row_of[out++] = row;
                to += d->layout.bytes;
            }
        }
        w->first = c->next;
        free(c);
    }
    w->n = out;
    return 0;
}

/* Gives a part its rows of the table. */
static int take_part(struct dataset *d, struct table *t, const struct raw_rows *w,
                     const long *row_of, struct err *err)
{
    d->table = t;
    t->refs++;
    for (int i = 0; i < d->layout.n; i++)
        d->layout.field[i].base = (char *)t->block + d->layout.offset[i];
    OWN_MEM uint32_t *slot = malloc(((size_t)w->n + 1) * sizeof *slot);
    if (!slot)
        return err_set(err, ERR_NOMEM, "no memory for the order of %ld rows", w->n);
    long n = 0;
    for (long i = 0; i < w->n && n != d->place.limit; i++)
        if (split_of(&d->split, row_of[i]) == d->part)
            slot[n++] = (uint32_t)i;
    d->skipped = d->part == SPLIT_TRAIN ? w->broken : 0;
    for (long i = 0; i < w->n_left_out; i++)
        d->skipped += split_of(&d->split, w->left_out[i]) == d->part;
    d->rows = n;
    if (n && slot[n - 1] != n - 1)
        d->slot = TAKE(slot);
    if (!n)
        return err_set(err, ERR_INVALID, "%s: no rows for the %s part%s", d->place.path[0],
                       d->part == SPLIT_TRAIN ? "training" : "test",
                       d->skipped ? " (each one was left out by data.on_error)" : "");
    return 0;
}

static int finish(struct dataset *d, struct dataset *other, struct raw_rows *w, struct err *err)
{
    OWN(table) t = table_new((size_t)w->n * d->layout.bytes);
    OWN_MEM long *row_of = malloc(((size_t)w->n + 1) * sizeof *row_of);
    if (!t || !row_of)
        return err_set(err, ERR_NOMEM, "no memory for %ld rows (set data.stream: true)", w->n);
    if (raw_write(w, d, t, row_of, err) < 0 || take_part(d, t, w, row_of, err) < 0)
        return -(int)err->code;
    return other ? take_part(other, t, w, row_of, err) : 0;
}

static int load(struct dataset *d, struct dataset *test, struct raw_rows *w, struct raw_rows *wt,
                struct err *err)
{
    struct schema *s = d->schema;
    int shared = test && place_same(&d->place, &test->place) && d->split.test > 0;
    OWN(rows) rows = NULL;
    OWN(rows) test_rows = NULL;
    if (rows_for(s, &d->place, &rows, err) < 0 ||
        raw_read(w, s, rows, &d->split, shared || d->split.test > 0 ? -1 : d->place.limit, err) < 0)
        return -(int)err->code;
    d->split.total = w->total;
    if (shared)
        test->split.total = w->total;
    if (test && !shared &&
        (rows_for(s, &test->place, &test_rows, err) < 0 ||
         raw_read(wt, s, test_rows, &test->split, test->place.limit, err) < 0))
        return -(int)err->code;
    if (!w->n)
        return err_set(err, ERR_INVALID, "%s: no rows%s", d->place.path[0],
                       w->n_left_out + w->broken ? " (each one was left out by data.on_error)"
                                                 : "");
    if (!schema_complete(s)) {
        OWN(learnt) l = features_learn_new(s);
        if (!l)
            return err_set(err, ERR_NOMEM, "no memory for the statistics");
        int all = s->scale_over_all;
        if (raw_learn(w, s, l, &d->split, all ? 0 : d->part, all ? -1 : d->place.limit, err) < 0 ||
            (all && !shared && test && raw_learn(wt, s, l, &test->split, 0, -1, err) < 0) ||
            features_settle(s, l, err) < 0)
            return -(int)err->code;
    }
    if (features_layout(s, &d->layout, err) < 0)
        return -(int)err->code;
    if (test)
        test->layout = d->layout;
    if (finish(d, shared ? test : NULL, w, err) < 0)
        return -(int)err->code;
    return test && !shared ? finish(test, NULL, wt, err) : 0;
}

int resident_load(struct dataset *d, struct dataset *test, struct err *err)
{
    struct raw_rows w = { 0 }, wt = { 0 };
    int rc = load(d, test, &w, &wt, err);
    raw_done(&w);
    raw_done(&wt);
    return rc;
}
