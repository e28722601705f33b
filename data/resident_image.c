/* data/resident_image.c - images in memory, as bytes: a training set of 60,000 is 47 MB, not 188 */
#include "data/dataset_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* The engine reads images in random order: large pages keep them in reach of its address cache. */
static void prefer_huge_pages(void *data, size_t n)
{
    enum { HUGE = 2 << 20 };
    uintptr_t first = ((uintptr_t)data + HUGE - 1) & ~(uintptr_t)(HUGE - 1);
    uintptr_t end = ((uintptr_t)data + n) & ~(uintptr_t)(HUGE - 1);
    if (end > first)
        madvise((void *)first, end - first, MADV_HUGEPAGE);
}

/* A row of the file is what the list of blocks says, and so are its labels. */
static int check_part(const struct part *part, const struct idx *image, const struct idx *label,
                      struct err *err)
{
    const struct blocks *b = part_blocks(part);
    uint8_t sum[SHA256_BYTES];

    if (b->head != image->head || b->row != (uint32_t)(image->h * image->w))
        return err_set(err, ERR_INVALID, "%s: the job's list of its rows is of another file",
                       part_name(part));
    blocks_sum_labels(label ? label->data : NULL, label ? label->n : 0, sum);
    if (memcmp(sum, b->labels, sizeof sum) != 0)
        return err_set(err, ERR_CONFLICT, "%s: its labels are not the job's: this worker reads "
                       "other data than the job", part_name(part));
    return 0;
}

static int read_file(const char *path, struct part *part, struct idx **out, struct err *err)
{
    return part ? idx_over(part_name(part), part_data(part), (size_t)part_blocks(part)->size, out,
                           err)
                : idx_read(path, out, err);
}

/* Both files of an IDX place in a table; labels are 0 where there is no file of them. */
static int read_images(const struct place *p, struct schema *s, struct part *part,
                       struct table **out, struct err *err)
{
    const char *images = p->path[0], *labels = p->n > 1 ? p->path[1] : NULL;
    OWN(table) t = calloc(1, sizeof *t);
    OWN(idx) label = NULL;
    if (!t)
        return err_set(err, ERR_NOMEM, "no memory for %s", images);
    t->refs = 1;
    t->part = part;
    if (read_file(images, part, &t->image, err) < 0 ||
        (labels && idx_read(labels, &label, err) < 0))
        return -(int)err->code;
    if (t->image->dims < 2)
        return err_set(err, ERR_INVALID,
                       "%s holds labels, not images (data: idx: [images, labels])", images);
    if (label && (label->dims != 1 || label->n != t->image->n))
        return err_set(err, ERR_INVALID, "%s has %ld images, %s has %ld labels", images,
                       t->image->n, labels, label->dims == 1 ? label->n : 0);
    if (s->h && (s->h != t->image->h || s->w != t->image->w))
        return err_set(err, ERR_INVALID, "%s has images of %d x %d, the model wants %d x %d",
                       images, t->image->h, t->image->w, s->h, s->w);
    if (part && check_part(part, t->image, label, err) < 0)
        return -(int)err->code;
    s->h = t->image->h;
    s->w = t->image->w;
    s->c = 1;
    if (!(t->label = calloc((size_t)t->image->n + 1, sizeof *t->label)))
        return err_set(err, ERR_NOMEM, "no memory for %ld labels", t->image->n);
    for (long i = 0; label && i < label->n; i++)
        t->label[i] = label->data[i];
    t->labelled = label != NULL;
    if (!part || part_is_dense(part))
        prefer_huge_pages(t->image->data, (size_t)t->image->n * (size_t)s->h * (size_t)s->w);
    *out = TAKE(t);
    return 0;
}

/* The fields over a table of images. */
static void lay_out(struct dataset *d)
{
    const struct table *t = d->table;
    struct field *field = d->layout.field;

    features_layout_image(d->schema, t->labelled, &d->layout);
    field[0].base = t->image->data;
    if (t->labelled)
        field[1].base = t->label;
}

/* Rows of the part whose label is among the classes. */
static int choose_images(struct dataset *d, uint32_t *slot, struct err *err)
{
    const struct schema *s = d->schema;
    long kept = 0;
    for (long i = 0; i < d->table->image->n && kept != d->place.limit; i++) {
        if (split_of(&d->split, i) != d->part)
            continue;
        if (d->table->label[i] < s->classes || !d->table->labelled) {
            slot[kept++] = (uint32_t)i;
        } else if (s->on_error == ON_ERROR_STOP) {
            return err_set(
                err, ERR_INVALID,
                "%s: row %ld: label %d is outside 0..%d (correct the row or data.labels, "
                "or set data.on_error to skip)",
                d->place.path[1], i + 1, d->table->label[i], s->classes - 1);
        } else {
            d->skipped++;
        }
    }
    d->rows = kept;
    return kept ? 0 : err_set(err, ERR_INVALID, "%s: no rows for the %s part", d->place.path[0],
                              d->part == SPLIT_TRAIN ? "training" : "test");
}

int resident_load_images(struct dataset *d, const struct dataset *with, struct err *err)
{
    struct schema *s = d->schema;
    if (with && with->table && place_same(&d->place, &with->place)) {
        d->table = with->table;
        __atomic_add_fetch(&d->table->refs, 1, __ATOMIC_RELAXED);
    } else if (read_images(&d->place, s, parts_find(d->parts, d->place.path[0]), &d->table, err) <
               0) {
        return -(int)err->code;
    }
    const struct table *t = d->table;
    long n = t->image->n;
    OWN_MEM uint32_t *slot = malloc(((size_t)n + 1) * sizeof *slot);
    if (!slot)
        return err_set(err, ERR_NOMEM, "no memory for the order of %ld rows", n);
    d->split.total = (d->split.end >= 0 && d->split.end < n ? d->split.end : n) - d->split.first;
    if (!s->classes && t->labelled)
        for (long i = 0; i < n; i++)
            if (split_of(&d->split, i) == d->part && t->label[i] >= s->classes)
                s->classes = t->label[i] + 1;
    if (choose_images(d, slot, err) < 0)
        return -(int)err->code;
    lay_out(d);
    /* Nearly all of small rows will be wanted: who joins with them keeps nobody waiting. */
    if (t->part && !with && part_is_dense(t->part) && part_need(t->part, slot, d->rows, err) < 0)
        return -(int)err->code;
    if (slot[d->rows - 1] != d->rows - 1)
        d->slot = TAKE(slot);
    return 0;
}

/* A block's images into the table, which grows to hold them. */
static int add_lists(struct dataset *d, const struct rows *rows, const struct rows_block *b,
                     long *cap, struct err *err)
{
    const struct schema *s = d->schema;
    struct table *t = d->table;
    size_t size = (size_t)s->h * (size_t)s->w * (size_t)s->c;
    if (t->image->n + b->n > *cap) {
        long more = 2 * *cap + b->n;
        uint8_t *data = realloc(t->image->block, (size_t)more * size);
        if (data)
            t->image->block = t->image->data = data;
        int32_t *label = realloc(t->label, (size_t)more * sizeof *label);
        if (label)
            t->label = label;
        if (!data || !label)
            return err_set(err, ERR_NOMEM, "no memory for %ld images", more);
        *cap = more;
    }
    for (long i = 0; i < b->n; i++) {
        const double *x = b->column[0].number + (size_t)i * size;
        uint8_t *to = t->image->data + (size_t)t->image->n * size;
        double label = t->labelled ? b->column[1].number[i] : 0;
        int good = !csv_bit(b->bad, i) && !csv_bit(b->column[0].missing, i) && label >= 0 &&
                   label == floor(label) && (!t->labelled || label < s->classes);
        for (size_t k = 0; good && k < size; k++) {
            good = x[k] >= 0 && x[k] <= 255 && x[k] == floor(x[k]);
            to[k] = good ? (uint8_t)x[k] : 0;
        }
        if (good)
            t->label[t->image->n++] = (int32_t)label;
        else if (s->on_error != ON_ERROR_STOP)
            d->skipped++;
        else if (csv_bit(b->bad, i))
            return rows_say(rows, b, i, err);
        else
            return err_set(err, ERR_INVALID,
                           "%s: row %ld: \"image\" should be %zu bytes from 0 to 255%s", b->path,
                           rows_row(rows, b, i), size,
                           t->labelled ? ", and \"label\" the number of a class" : "");
    }
    return 0;
}

int resident_load_lists(struct dataset *d, int with_target, struct err *err)
{
    const struct schema *s = d->schema;
    struct csv_options none = { 0 };
    long cap = 0;
    OWN(rows) rows = NULL;
    if (s->h < 1 || s->w < 1 || s->c < 1 || (long)s->h * s->w * s->c > 1 << 24)
        return err_set(err, ERR_INVALID, "the model does not say how large its images are");
    if (!(d->table = calloc(1, sizeof *d->table)) ||
        !(d->table->image = calloc(1, sizeof *d->table->image)))
        return err_set(err, ERR_NOMEM, "no memory for %s", d->place.path[0]);
    d->table->refs = 1;
    d->table->labelled = with_target;
    if (rows_open((enum rows_format)d->place.format, (const char *const *)d->place.path, d->place.n,
                  &none, &rows, err) < 0 ||
        rows_select_list(rows, "image", s->h * s->w * s->c, err) < 0 ||
        (with_target && rows_select(rows, "label", ROWS_NUMBER, err) < 0))
        return -(int)err->code;
    for (const struct rows_block *b;;) {
        if (rows_next(rows, &b, err) < 0)
            return -(int)err->code;
        if (!b)
            break;
        if (features_check(s, rows, b, err) < 0 || add_lists(d, rows, b, &cap, err) < 0)
            return -(int)err->code;
        d->skipped += b->broken;
    }
    d->rows = d->table->image->n;
    if (!d->rows)
        return err_set(err, ERR_INVALID, "%s: no rows", d->place.path[0]);
    lay_out(d);
    return 0;
}
