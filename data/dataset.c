/* data/dataset.c - opening, order and the walk over an epoch */
#include "data/dataset_int.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "data/source.h"

OWN_DEFINE(dataset)

void dataset_free(struct dataset *d)
{
    if (!d)
        return;
    stream_free(d->stream);
    dataset_free(d->test);
    table_free(d->table);
    schema_free(d->schema);
    place_done(&d->place);
    free(d->slot);
    free(d->order);
    free(d->given);
    free(d->given_path);
    free(d);
}

/* `split: {test: 0.2, by: range}`; absent: no split. */
static int read_split(const json_t *data, uint64_t seed, struct split *out, struct err *err)
{
    const json_t *split = json_object_get(data, "split");
    *out = (struct split){ .end = -1, .seed = seed };
    if (!split || json_is_null(split))
        return 0;
    const char *by = json_string_value(json_object_get(split, "by"));
    out->test = json_number_value(json_object_get(split, "test"));
    if (!(out->test > 0 && out->test < 1))
        return err_set(err, ERR_INVALID, "data.split.test: a share between 0 and 1 should be here");
    out->random = by && !strcmp(by, "random");
    if (by && !out->random && strcmp(by, "range"))
        return err_set(err, ERR_INVALID, "data.split.by: \"%s\" is not range or random", by);
    return 0;
}

static int read_shuffle(const json_t *data, int stream, long *out, struct err *err)
{
    const json_t *v = json_object_get(data, "shuffle");
    *out = SHUFFLE_ALL;
    if (json_is_false(v))
        *out = SHUFFLE_NONE;
    else if (json_is_integer(v))
        *out = (long)json_integer_value(v);
    if (json_is_integer(v) && (*out < 1 || *out > INT_MAX))
        return err_set(err, ERR_INVALID,
                       "data.shuffle: true, false or a number of rows should be here");
    if (stream && *out == SHUFFLE_ALL)
        return err_set(err, ERR_INVALID,
                       "data.shuffle: a stream cannot permute the whole epoch (give a number of "
                       "rows such as 10000, or false)");
    return 0;
}

/* The place, the split and the order of one part; the schema is not touched. */
static int read_part(const json_t *data, const char *dir, enum dataset_part part, uint64_t seed,
                     int batch, struct dataset **out, struct err *err)
{
    OWN(dataset) d = calloc(1, sizeof *d);
    if (!d)
        return err_set(err, ERR_NOMEM, "no memory for a dataset");
    const json_t *test = json_object_get(data, "test");
    int own_test = test && !json_is_null(test);
    d->rows = -1;
    d->seed = seed;
    d->batch = batch < 1 ? 1 : batch;
    if (read_split(data, seed, &d->split, err) < 0 ||
        read_shuffle(data, json_is_true(json_object_get(data, "stream")), &d->shuffle, err) < 0)
        return -(int)err->code;
    if (own_test && d->split.test > 0)
        return err_set(err, ERR_INVALID,
                       "data.split: data.test names the test rows already (drop one of them)");
    if (part == DATASET_TEST && !own_test && d->split.test <= 0)
        return err_set(err, ERR_MISSING,
                       "data: there are no test rows (give data.test or data.split)");
    int from_test = part == DATASET_TEST && own_test;
    if (place_read(json_object_get(data, from_test ? "test" : "train"),
                   from_test ? "data.test" : "data.train", dir, &d->place, err) < 0)
        return -(int)err->code;
    d->split.first = d->place.first;
    d->split.end = d->place.end;
    d->part = SPLIT_TRAIN;
    if (part == DATASET_TEST) {
        d->shuffle = SHUFFLE_NONE;
        if (!own_test) {
            d->part = SPLIT_TEST;
            d->place.limit = -1;
        }
    }
    *out = TAKE(d);
    return 0;
}

/* `features` was absent: the header of the first file says what they are. */
static int complete_schema(struct schema *s, const struct place *p, struct err *err)
{
    if (s->image || !s->all_numeric)
        return 0;
    if (p->format != ROWS_CSV)
        return err_set(err, ERR_INVALID,
                       "data.features: name them; only a CSV file has a header to take them from");
    struct csv_options o = schema_csv(s);
    OWN(rows) r = NULL;
    if (rows_open(ROWS_CSV, (const char *const *)p->path, p->n, &o, &r, err) < 0)
        return -(int)err->code;
    int n = rows_columns(r);
    OWN_MEM const char **name = calloc((size_t)n + 1, sizeof *name);
    if (!name)
        return err_set(err, ERR_NOMEM, "no memory for the names of %d columns", n);
    for (int i = 0; i < n; i++)
        name[i] = rows_name(r, i);
    return schema_use_all(s, name, n, err);
}

static int open_train(struct dataset *d, const json_t *data, const char *dir, struct err *err)
{
    int image = d->place.format == PLACE_IDX;
    if (schema_parse(data, "data", image, &d->schema, err) < 0)
        return -(int)err->code;
    if (image && !json_is_true(json_object_get(data, "stream")))
        return resident_load_images(d, NULL, err);
    if (image)
        return err_set(err, ERR_INVALID,
                       "data.stream: images of an IDX file are always resident (leave it out)");
    if (d->schema->target < 0)
        return err_set(err, ERR_INVALID, "data.target: the column to predict should be here");
    if (complete_schema(d->schema, &d->place, err) < 0)
        return -(int)err->code;

    /* Test rows are read along when they share the file, or when the statistics want them. */
    const json_t *test = json_object_get(data, "test");
    int own_test = test && !json_is_null(test);
    int stream = json_is_true(json_object_get(data, "stream"));
    OWN(dataset) t = NULL;
    if ((d->split.test > 0 && !stream) || (own_test && d->schema->scale_over_all &&
                                           !schema_complete(d->schema))) {
        if (read_part(data, dir, DATASET_TEST, d->seed, d->batch, &t, err) < 0)
            return -(int)err->code;
        t->schema = schema_ref(d->schema);
    }
    if (stream)
        return stream_learn(d, t, err) < 0 ? -(int)err->code : stream_open(d, err);
    if (resident_load(d, t, err) < 0)
        return -(int)err->code;
    d->test = TAKE(t);
    return 0;
}

/* A second handle on a test part that was read with its training part. */
static int share_test(const struct dataset *from, struct dataset *d, struct err *err)
{
    d->layout = from->layout;
    d->split = from->split;
    d->rows = from->rows;
    d->skipped = from->skipped;
    d->table = from->table;
    __atomic_add_fetch(&d->table->refs, 1, __ATOMIC_RELAXED);
    if (!from->slot)
        return 0;
    size_t bytes = (size_t)from->rows * sizeof *d->slot;
    if (!(d->slot = malloc(bytes)))
        return err_set(err, ERR_NOMEM, "no memory for the order of %ld rows", from->rows);
    memcpy(d->slot, from->slot, bytes);
    return 0;
}

static int open_test(struct dataset *d, const struct dataset *train, const json_t *data,
                     struct err *err)
{
    d->schema = schema_ref(train->schema);
    if (d->place.format == PLACE_IDX)
        return d->schema->image ? resident_load_images(d, train, err)
                                : err_set(err, ERR_INVALID,
                                          "data.test: images, but the training rows are a table");
    if (d->schema->image)
        return err_set(err, ERR_INVALID, "data.test: a table, but the training rows are images");
    if (train->test)
        return share_test(train->test, d, err);
    if (json_is_true(json_object_get(data, "stream"))) {
        d->split.total = train->split.total;
        return stream_open(d, err);
    }
    return resident_load(d, NULL, err);
}

int dataset_open(const json_t *data, const char *dir, enum dataset_part part,
                 const struct dataset *train, uint64_t seed, int batch, struct dataset **out,
                 struct err *err)
{
    return dataset_open_parts(data, dir, part, train, seed, batch, NULL, out, err);
}

int dataset_open_parts(const json_t *data, const char *dir, enum dataset_part part,
                       const struct dataset *train, uint64_t seed, int batch,
                       const struct parts *parts, struct dataset **out, struct err *err)
{
    OWN(dataset) d = NULL;
    if (read_part(data, dir, part, seed, batch, &d, err) < 0)
        return -(int)err->code;
    d->parts = parts;
    if ((train ? open_test(d, train, data, err) : open_train(d, data, dir, err)) < 0)
        return -(int)err->code;
    *out = TAKE(d);
    return 0;
}

const struct field *dataset_fields(const struct dataset *d, int *out_n)
{
    *out_n = d->layout.n;
    return d->layout.field;
}

long dataset_rows(const struct dataset *d)
{
    return d->rows;
}

long dataset_skipped(const struct dataset *d)
{
    return d->skipped;
}

int dataset_classes(const struct dataset *d)
{
    return d->schema->task == TASK_CLASSIFICATION ? d->schema->classes : 0;
}

const char *dataset_label(const struct dataset *d, int class)
{
    const struct schema *s = d->schema;
    if (!s->labels || s->labels_are_numbers || class < 0 || class >= s->classes)
        return NULL;
    if (!s->label_remap)
        return vocab_text(s->labels, class, NULL);
    for (int i = 0; i < vocab_size(s->labels); i++)
        if (s->label_remap[i] == class)
            return vocab_text(s->labels, i, NULL);
    return NULL;
}

int dataset_set_order(struct dataset *d, const char *order_file, struct err *err)
{
    if (d->stream)
        return err_set(err, ERR_INVALID,
                       "order: a stream is read in its own order (set data.stream: false)");
    char *bytes = NULL;
    size_t n = 0;
    if (files_read(order_file, (size_t)1 << 34, &bytes, &n, err) < 0)
        return -(int)err->code;
    OWN_MEM uint32_t *given = (uint32_t *)bytes;
    if (n == 0 || n % 4)
        return err_set(err, ERR_INVALID, "%s: %zu bytes are no list of 32-bit row numbers",
                       order_file, n);
    for (size_t i = 0; i < n / 4; i++) {
        const unsigned char *b = (const unsigned char *)bytes + 4 * i;
        given[i] = b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
        if (given[i] >= d->rows)
            return err_set(err, ERR_INVALID,
                           "%s: entry %zu is row %u, the training set has rows 0..%ld", order_file,
                           i, given[i], d->rows - 1);
    }
    char *path = strdup(order_file);
    if (!path)
        return err_set(err, ERR_NOMEM, "no memory for the order");
    free(d->given);
    free(d->given_path);
    d->given = TAKE(given);
    d->given_path = path;
    d->n_given = (long)(n / 4);
    return 0;
}

/* Positions in the epoch that `at` counts in: an order file may end inside one. */
static long epoch_rows(const struct dataset *d)
{
    if (!d->given)
        return d->rows;
    long left = d->n_given - (long)d->epoch * d->rows;
    return left < 0 ? 0 : left < d->rows ? left : d->rows;
}

int dataset_rewind(struct dataset *d, int epoch, long from, struct err *err)
{
    if (d->stream)
        return stream_rewind(d, epoch, from, err);
    if (!d->order && !(d->order = malloc((size_t)d->rows * sizeof *d->order)))
        return err_set(err, ERR_NOMEM, "no memory for the order of %ld rows", d->rows);
    d->epoch = epoch;
    d->at = from;
    d->window = 1;
    long n = epoch_rows(d);
    if (d->given && n == 0)
        return err_set(err, ERR_INVALID,
                       "%s: %ld rows are not enough for epoch %d of %ld rows (write more, or set "
                       "epochs to less)",
                       d->given_path, d->n_given, epoch + 1, d->rows);
    if (d->given)
        memcpy(d->order, d->given + (long)epoch * d->rows, (size_t)n * sizeof *d->order);
    else
        shuffle_epoch(d->order, (uint32_t)n, d->shuffle, d->seed, epoch);
    for (long i = 0; d->slot && i < n; i++)
        d->order[i] = d->slot[d->order[i]];
    return 0;
}

int dataset_stretch(struct dataset *d, struct stretch *out, struct err *err)
{
    if (d->stream)
        return stream_stretch(d, out, err);
    if (!d->order && dataset_rewind(d, 0, 0, err) < 0)
        return -(int)err->code;
    if (d->table->part)
        return resident_stretch_part(d, epoch_rows(d), out, err);
    long n = epoch_rows(d) - d->at;
    *out = (struct stretch){ d->layout.field, d->layout.n, d->order + (n > 0 ? d->at : 0),
                             n > 0 ? n : 0, 1 };
    d->at += out->n;
    return 0;
}

json_t *dataset_describe(const struct dataset *d)
{
    return schema_describe(d->schema);
}

int dataset_digest(struct dataset *d, char out_hex[65], struct err *err)
{
    if (!d->digest[0] &&
        source_digest((const char *const *)d->place.path, d->place.n, d->digest, err) < 0)
        return -(int)err->code;
    memcpy(out_hex, d->digest, sizeof d->digest);
    return 0;
}
