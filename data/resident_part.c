/* data/resident_part.c - rows of which a worker reads those of its own shards
 *
 * The order of an epoch is known, and so are the rows that the next batches will want. A stretch is
 * some batches whose rows are there; those of the next one are read meanwhile. Stretches begin with
 * a single batch, so that a worker that has just been given shards makes its first step at once,
 * and double until their rows take WINDOW_BYTES.
 */
#include "data/dataset_int.h"

#include <stdlib.h>
#include <string.h>

enum { WINDOW_BYTES = 8 << 20 };

void dataset_share(struct dataset *d, int shards, int from, int to)
{
    d->shards = shards;
    d->from = from;
    d->to = to;
}

/* The first sample of shard i in a batch of n: as the engine cuts it (shard_first). */
static long begin_of(const struct dataset *d, long n, int i)
{
    return d->shards ? n * i / d->shards : i ? n : 0;
}

/* Slots of the positions at..end whose rows are wanted; how many. */
static long wanted(const struct dataset *d, long at, long end, long total, uint32_t *slot)
{
    const int from = d->shards ? d->from : 0, to = d->shards ? d->to : 1;
    long n = 0;

    for (; at < end; at += d->batch) {
        const long whole = total - at < d->batch ? total - at : d->batch;
        for (long i = begin_of(d, whole, from); i < begin_of(d, whole, to); i++)
            slot[n++] = d->order[at + i];
    }
    return n;
}

/* Where a stretch of `window` batches from `at` on ends. */
static long end_of(const struct dataset *d, long at, long window, long total)
{
    return (total - at) / d->batch >= window ? at + window * d->batch : total;
}

int resident_stretch_part(struct dataset *d, long total, struct stretch *out, struct err *err)
{
    struct part *part = d->table->part;
    const size_t row = part_blocks(part)->row;
    const long most = WINDOW_BYTES / (long)(row * (size_t)d->batch) + 1;
    const long at = d->at < total ? d->at : total, window = d->window < most ? d->window : most;
    const long end = end_of(d, at, window, total), next = 2 * window < most ? 2 * window : most;
    const long after = end_of(d, end, next, total);
    const long longest = end - at > after - end ? end - at : after - end;

    OWN_MEM uint32_t *slot = malloc(((size_t)longest + 1) * sizeof *slot);
    if (!slot)
        return err_set(err, ERR_NOMEM, "no memory for the rows of %ld batches", next);
    if (part_need(part, slot, wanted(d, at, end, total, slot), err) < 0)
        return -(int)err->code;
    part_ahead(part, slot, wanted(d, end, after, total, slot));
    *out = (struct stretch){ d->layout.field, d->layout.n, d->order + (end > at ? at : 0), end - at,
                             end == total };
    d->at = end;
    d->window = next;
    return 0;
}

int dataset_blocks(const struct dataset *d, struct blocks **out, struct err *err)
{
    const struct table *t = d->table;
    const struct idx *image = t ? t->image : NULL;

    if (!image || image->packed || !image->block || !image->n || d->place.format != PLACE_IDX ||
        strcmp(d->place.path[0], "-") == 0) {
        *out = NULL;
        return 0;
    }
    OWN_MEM uint8_t *label = t->labelled ? malloc((size_t)image->n) : NULL;
    if (t->labelled && !label)
        return err_set(err, ERR_NOMEM, "no memory for %ld labels", image->n);
    for (long i = 0; label && i < image->n; i++)
        label[i] = (uint8_t)t->label[i];
    const size_t row = (size_t)image->h * (size_t)image->w;
    return blocks_of(image->block, image->head + (size_t)image->n * row, (uint32_t)image->head,
                     (uint32_t)row, label, out, err);
}
