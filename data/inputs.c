/* data/inputs.c - the rows of a file that wants answers: every one of them, in order */
#include "data/inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "data/dataset_int.h"

enum { KEEP_MAX = 64 };

struct inputs {
    struct dataset *d;          /* its place and schema; of an IDX file, its rows too */
    enum on_error policy;
    struct rows *rows;          /* NULL: an IDX file */
    int ended;
    double *raw;
    int keep[KEEP_MAX];         /* columns of a block */
    int n_keep;

    /* The batch in hand. */
    char *record;               /* (cap) records */
    uint32_t *order;            /* (cap) 0, 1, 2, ... */
    struct inputs_row *row;     /* (cap) */
    struct csv_text *kept;      /* (cap, n_keep) */
    long cap;
    long readable, n;
    struct buf why;             /* reasons, each ended by a NUL; inputs_row.why is an offset first */
};

void inputs_free(struct inputs *in)
{
    if (!in)
        return;
    rows_free(in->rows);
    dataset_free(in->d);
    free(in->raw);
    free(in->record);
    free(in->order);
    free(in->row);
    free(in->kept);
    buf_done(&in->why);
    free(in);
}

int inputs_may_fail(const struct inputs *in)
{
    return in->rows && in->policy != ON_ERROR_STOP;
}

/* ------------------------------------------------------------------ opening */

/* Caller frees. */
static json_t *with_policy(const json_t *description, const char *policy, struct err *err)
{
    if (policy && strcmp(policy, "stop") && strcmp(policy, "skip") && strcmp(policy, "fill")) {
        err_set(err, ERR_INVALID, "--on-error %s is not known (stop, skip or fill)", policy);
        return NULL;
    }
    json_t *d = json_copy((json_t *)description);
    if (!d || (policy && json_object_set_new(d, "on_error", json_string(policy)) < 0)) {
        err_set(err, ERR_NOMEM, "no memory for the description of the data");
        json_decref(d);
        return NULL;
    }
    return d;
}

/* A column that the schema reads already is read as text too; another one is added. */
static int keep_columns(struct inputs *in, const char *const *keep, struct err *err)
{
    struct schema *s = in->d->schema;
    int next = s->image ? 1 : s->n_columns;

    for (int i = 0; i < in->n_keep; i++) {
        in->keep[i] = -1;
        for (int k = 0; !s->image && k < s->n_columns; k++)
            if (!strcmp(s->column[k].name, keep[i])) {
                s->column[k].as |= ROWS_TEXT;
                in->keep[i] = k;
            }
    }
    struct csv_options none = { 0 };
    const struct place *p = &in->d->place;
    if (!s->image && rows_for(s, p, &in->rows, err) < 0)
        return -(int)err->code;
    if (s->image &&
        (rows_open((enum rows_format)p->format, (const char *const *)p->path, p->n, &none,
                   &in->rows, err) < 0 ||
         rows_select_list(in->rows, "image", s->h * s->w * s->c, err) < 0))
        return -(int)err->code;
    for (int i = 0; i < in->n_keep; i++) {
        for (int k = 0; k < i && in->keep[i] < 0; k++)
            if (!strcmp(keep[k], keep[i]))
                in->keep[i] = in->keep[k];
        if (in->keep[i] >= 0)
            continue;
        if (rows_select(in->rows, keep[i], ROWS_TEXT, err) < 0)
            return err_add(err, "--id %s", keep[i]);
        in->keep[i] = next++;
    }
    return 0;
}

static int prepare(struct inputs *in, const char *const *keep, struct err *err)
{
    struct dataset *d = in->d;
    struct schema *s = d->schema;

    if (d->place.format == PLACE_IDX) {
        if (in->n_keep)
            return err_set(err, ERR_INVALID, "%s: an IDX file has no column \"%s\" (--id is for CSV,"
                           " JSON lines and TFRecord)", d->place.path[0], keep[0]);
        return resident_load_images(d, NULL, err) < 0 ? -(int)err->code
                                                      : dataset_rewind(d, 0, 0, err);
    }
    if (s->image && (s->h < 1 || s->w < 1 || s->c < 1 || (long)s->h * s->w * s->c > 1 << 24))
        return err_set(err, ERR_INVALID, "the model does not say how large its images are");
    if (!s->image && !schema_complete(s))
        return err_set(err, ERR_INVALID, "the model has no values to fill in (it was trained "
                       "without data.on_error: fill; use --on-error skip)");
    in->policy = s->on_error;
    if (s->on_error == ON_ERROR_SKIP)
        s->on_error = ON_ERROR_STOP;    /* features then say what is wrong with a row */
    if (s->image) {
        features_layout_image(s, 0, &d->layout);
        d->layout.bytes = d->layout.field[0].stride;
    } else if (features_layout(s, &d->layout, err) < 0) {
        return -(int)err->code;
    }
    if (!s->image && !(in->raw = malloc((size_t)features_raw(s) * sizeof *in->raw)))
        return err_set(err, ERR_NOMEM, "no memory for a row");
    return keep_columns(in, keep, err);
}

int inputs_open(const json_t *description, const char *path, const char *format, const char *policy,
                const char *const *keep, int n_keep, struct inputs **out, struct err *err)
{
    OWN_JSON json_t *own = with_policy(description, policy, err);
    OWN(inputs) in = calloc(1, sizeof *in);

    if (!own)
        return -(int)err->code;
    if (!in)
        return err_set(err, ERR_NOMEM, "no memory to read %s", path);
    if (n_keep > KEEP_MAX)
        return err_set(err, ERR_INVALID, "%d columns are too many to keep (at most %d)", n_keep,
                       KEEP_MAX);
    in->n_keep = n_keep;
    if (dataset_begin_like(own, path, format, 0, &in->d, err) < 0 || prepare(in, keep, err) < 0)
        return -(int)err->code;
    *out = TAKE(in);
    return 0;
}

/* ------------------------------------------------------------------ rows */

/* Room for the rows of a block. */
static int make_room(struct inputs *in, long n, struct err *err)
{
    if (n <= in->cap)
        return 0;
    free(TAKE(in->record));
    free(TAKE(in->order));
    free(TAKE(in->row));
    free(TAKE(in->kept));
    in->cap = 0;
    size_t bytes = in->d->layout.bytes, rows = (size_t)n;
    in->record = aligned_alloc(64, (rows * bytes + 64) / 64 * 64);
    in->order = malloc(rows * sizeof *in->order);
    in->row = malloc(rows * sizeof *in->row);
    in->kept = malloc((rows * (size_t)in->n_keep + 1) * sizeof *in->kept);
    if (!in->record || !in->order || !in->row || !in->kept)
        return err_set(err, ERR_NOMEM, "no memory for %ld rows", n);
    for (long i = 0; i < n; i++)
        in->order[i] = (uint32_t)i;
    for (int i = 0; i < in->d->layout.n; i++)
        in->d->layout.field[i].base = in->record + in->d->layout.offset[i];
    in->cap = n;
    return 0;
}

static int write_image(struct inputs *in, const struct rows_block *b, long slot, uint8_t *to,
                       struct err *err)
{
    const struct schema *s = in->d->schema;
    size_t size = (size_t)s->h * (size_t)s->w * (size_t)s->c;
    const double *x = b->column[0].number + (size_t)slot * size;

    if (csv_bit(b->bad, slot))
        return rows_say(in->rows, b, slot, err);
    int good = !csv_bit(b->column[0].missing, slot);
    for (size_t k = 0; good && k < size; k++) {
        good = x[k] >= 0 && x[k] <= 255 && x[k] == floor(x[k]);
        to[k] = good ? (uint8_t)x[k] : 0;
    }
    return good ? 0 : err_set(err, ERR_INVALID,
                              "%s: row %ld: \"image\" should be %zu bytes from 0 to 255", b->path,
                              rows_row(in->rows, b, slot), size);
}

/* A record of a row of the block; ERR_INVALID: it cannot be read. */
static int write_record(struct inputs *in, const struct rows_block *b, long slot, void *to,
                        struct err *err)
{
    struct schema *s = in->d->schema;

    if (s->image)
        return write_image(in, b, slot, to, err);
    if (features_read(s, 0, in->rows, b, slot, in->raw, err) < 0)
        return -(int)err->code;
    return features_write(s, &in->d->layout, in->raw, b->path, rows_row(in->rows, b, slot), to, err);
}

/* `why` without its way out, which is for training. */
static int add_unread(struct inputs *in, struct err *why, struct err *err)
{
    char *way = strstr(why->text, " (correct the row");

    if (way)
        *way = '\0';
    if (in->policy == ON_ERROR_STOP)
        return err_set(err, ERR_INVALID,
                       "%.400s (correct the row, or use --on-error skip, or fill)", why->text);
    /* An offset until the batch is whole: the buffer moves as it grows. */
    in->row[in->n] = (struct inputs_row){ .slot = -1, .why = (const char *)in->why.n };
    buf_append(&in->why, why->text, strlen(why->text) + 1);
    return 0;
}

static void keep_texts(struct inputs *in, const struct rows_block *b, long slot)
{
    struct csv_text *to = in->kept + in->n * in->n_keep;

    in->row[in->n].kept = to;
    for (int i = 0; i < in->n_keep; i++)
        to[i] = slot < 0 ? (struct csv_text){ NULL, 0 } : b->column[in->keep[i]].text[slot];
    in->n++;
}

static int add_broken(struct inputs *in, const struct rows_block *b, long *broken, long before,
                      struct err *err)
{
    for (struct err why; *broken < b->broken; ++*broken) {
        if (rows_broken(in->rows, b, *broken, &why) > before)
            return 0;
        if (add_unread(in, &why, err) < 0)
            return -(int)err->code;
        keep_texts(in, b, -1);
    }
    return 0;
}

static int take_block(struct inputs *in, const struct rows_block *b, struct err *err)
{
    size_t bytes = in->d->layout.bytes;
    long broken = 0;

    if (make_room(in, b->n + b->broken, err) < 0)
        return -(int)err->code;
    in->n = in->readable = 0;
    buf_clear(&in->why);
    for (long i = 0; i < b->n; i++) {
        struct err why = { 0 };
        if (add_broken(in, b, &broken, i, err) < 0)
            return -(int)err->code;
        int rc = write_record(in, b, i, in->record + (size_t)in->readable * bytes, &why);
        if (rc < 0 && why.code != ERR_INVALID) {
            *err = why;
            return rc;
        }
        if (rc == 0)
            in->row[in->n] = (struct inputs_row){ .slot = in->readable++ };
        else if (add_unread(in, &why, err) < 0)
            return -(int)err->code;
        keep_texts(in, b, i);
    }
    if (add_broken(in, b, &broken, b->n, err) < 0)
        return -(int)err->code;
    for (long i = 0; i < in->n; i++)
        if (in->row[i].slot < 0)
            in->row[i].why = in->why.data + (size_t)in->row[i].why;
    return buf_ok(&in->why, err);
}

/* The rows of an IDX file: a stretch of them, all readable. */
static int next_images(struct inputs *in, struct inputs_batch *out, struct err *err)
{
    struct dataset *d = in->d;

    if (in->ended)
        return 0;
    if (dataset_stretch(d, &out->stretch, err) < 0)
        return -(int)err->code;
    in->ended = out->stretch.last;
    free(in->row);
    if (!(in->row = malloc(((size_t)out->stretch.n + 1) * sizeof *in->row)))
        return err_set(err, ERR_NOMEM, "no memory for %ld rows", out->stretch.n);
    for (long i = 0; i < out->stretch.n; i++)
        in->row[i] = (struct inputs_row){ .slot = i };
    out->row = in->row;
    out->n = out->stretch.n;
    return 0;
}

int inputs_next(struct inputs *in, struct inputs_batch *out, struct err *err)
{
    struct dataset *d = in->d;
    const struct rows_block *b;

    *out = (struct inputs_batch){ 0 };
    if (!in->rows)
        return next_images(in, out, err);
    do {
        if (rows_next(in->rows, &b, err) < 0)
            return -(int)err->code;
        if (!b)
            return 0;
        if (take_block(in, b, err) < 0)
            return -(int)err->code;
    } while (in->n == 0);
    out->stretch = (struct stretch){ d->layout.field, d->layout.n, in->order, in->readable, 0 };
    out->row = in->row;
    out->n = in->n;
    return 0;
}
