/* data/dataset_like.c - rows of another file, read as the training rows were
 *
 * The description has every statistic and vocabulary, so nothing is learnt and rows come in file
 * order. Without a target the columns that only the target and the weight need are not looked for.
 */
#include "data/dataset_int.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/files.h"
#include "data/source.h"

OWN_DEFINE(dataset)

/* Larger files pass through a window instead of being resident. */
enum { RESIDENT_BYTES_MAX = 64 << 20 };

static const struct { const char *word; int format; } formats[] = {
    { "csv", ROWS_CSV }, { "json", ROWS_JSON }, { "tfrecord", ROWS_TFRECORD }, { "idx", PLACE_IDX },
};

static const struct { const char *end; int format; } endings[] = {
    { ".csv", ROWS_CSV },           { ".tsv", ROWS_CSV },      { ".txt", ROWS_CSV },
    { ".json", ROWS_JSON },         { ".jsonl", ROWS_JSON },   { ".ndjson", ROWS_JSON },
    { ".tfrecord", ROWS_TFRECORD }, { ".tfrecords", ROWS_TFRECORD },
    { "-ubyte", PLACE_IDX },        { ".idx", PLACE_IDX },
};

static int ends_with(const char *text, size_t n, const char *end)
{
    size_t m = strlen(end);
    return n >= m && !strncasecmp(text + n - m, end, m);
}

static int find_format(const char *path, const char *format, int *out, struct err *err)
{
    if (format) {
        for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
            if (!strcmp(formats[i].word, format)) {
                *out = formats[i].format;
                return 0;
            }
        return err_set(err, ERR_INVALID, "format \"%s\" is not csv, json, tfrecord or idx", format);
    }
    size_t n = strlen(path);
    n -= ends_with(path, n, ".gz") ? 3 : 0;
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++)
        if (ends_with(path, n, endings[i].end)) {
            *out = endings[i].format;
            return 0;
        }
    return err_set(
        err, ERR_INVALID,
        "%s: its name does not tell its format (say --format csv, json, tfrecord or idx)", path);
}

/* "images" or "images,labels"; labels may be left out where they lie beside, named as usual. */
static int idx_paths(const char *path, int with_target, struct place *p, struct err *err)
{
    char *comma = strchr(path, ',');
    if (!(p->path = calloc(2, sizeof *p->path)))
        return err_set(err, ERR_NOMEM, "no memory for file names");
    p->n = 1;
    OWN_MEM char *images = comma ? strndup(path, (size_t)(comma - path)) : strdup(path);
    OWN_MEM char *labels = comma ? strdup(comma + 1) : NULL;
    char *kind = images ? strstr(images, "images-idx3") : NULL;
    if (!labels && kind && asprintf(&labels, "%.*slabels-idx1%s", (int)(kind - images), images,
                                    kind + strlen("images-idx3")) < 0)
        labels = NULL;
    if (!images || !(p->path[0] = files_resolve(NULL, images)))
        return err_set(err, ERR_NOMEM, "no memory for file names");
    if (!with_target)
        return 0;
    if (!labels)
        return err_set(err, ERR_INVALID, "%s: where are its labels? (write IMAGES,LABELS)", path);
    if (!(p->path[1] = files_resolve(NULL, labels)))
        return err_set(err, ERR_NOMEM, "no memory for file names");
    p->n = 2;
    return 0;
}

static int find_place(const char *path, int format, int with_target, struct place *p,
                      struct err *err)
{
    *p = (struct place){ .format = format, .end = -1, .limit = -1 };
    if (format == PLACE_IDX)
        return idx_paths(path, with_target, p, err);
    if (!(p->path = calloc(1, sizeof *p->path)) ||
        !(p->path[0] = strcmp(path, "-") ? files_resolve(NULL, path) : strdup(path)))
        return err_set(err, ERR_NOMEM, "no memory for file names");
    p->n = 1;
    return 0;
}

/* The description without what only the target needs; caller frees. */
static json_t *strip_target(const json_t *description, const struct place *p)
{
    json_t *d = json_copy((json_t *)description);
    const char *target = json_string_value(json_object_get(description, "target"));
    if (!d)
        return NULL;
    json_object_del(d, "weight");
    json_object_del(d, "target");
    /* Names are given and the file has one column less: it is the target that is not there. */
    const json_t *names = json_object_get(d, "header");
    struct csv_options o = { .delimiter = ',', .no_header = 1 };
    const char *delimiter = json_string_value(json_object_get(d, "delimiter"));
    if (delimiter && *delimiter)
        o.delimiter = *delimiter;
    o.skip = (long)json_integer_value(json_object_get(d, "skip"));
    OWN(csv) c = NULL;
    struct err err;
    if (!target || !json_is_array(names) || p->format != ROWS_CSV || !strcmp(p->path[0], "-") ||
        csv_open((const char *const *)p->path, 1, &o, &c, &err) < 0 ||
        csv_columns(c) + 1 != (int)json_array_size(names))
        return d;
    json_t *fewer = json_array();
    size_t i;
    json_t *name;
    json_array_foreach((json_t *)names, i, name)
        if (strcmp(json_string_value(name), target))
            json_array_append(fewer, name);
    if (json_object_set_new(d, "header", fewer) < 0) {
        json_decref(d);
        return NULL;
    }
    return d;
}

int dataset_begin_like(const json_t *description, const char *path, const char *format,
                       int with_target, struct dataset **out, struct err *err)
{
    OWN(dataset) d = calloc(1, sizeof *d);
    const char *kind = json_string_value(json_object_get(description, "kind"));
    int image = kind && !strcmp(kind, "image"), place_format = ROWS_CSV;
    if (!d)
        return err_set(err, ERR_NOMEM, "no memory for a dataset");
    if (find_format(path, format, &place_format, err) < 0 ||
        find_place(path, place_format, with_target, &d->place, err) < 0)
        return -(int)err->code;
    if ((place_format == PLACE_IDX) != image && !(image && place_format != ROWS_CSV))
        return err_set(err, ERR_INVALID,
                       image
                           ? "%s: the model reads images (IDX, JSON lines or TFRecord), not CSV"
                           : "%s: the model reads tables (CSV, JSON lines or TFRecord), not images",
                       path);
    OWN_JSON json_t *own = with_target ? json_incref((json_t *)description)
                                       : strip_target(description, &d->place);
    if (!own)
        return err_set(err, ERR_NOMEM, "no memory for the description of the data");
    if (schema_parse(own, "data", image, &d->schema, err) < 0)
        return err_add(err, "the model's description of its data");
    d->rows = -1;
    d->batch = 1;
    d->part = SPLIT_TRAIN;
    d->split.end = -1;
    *out = TAKE(d);
    return 0;
}

int dataset_open_like(const json_t *description, const char *path, const char *format,
                      int with_target, struct dataset **out, struct err *err)
{
    OWN(dataset) d = NULL;
    int rc = dataset_begin_like(description, path, format, with_target, &d, err);
    if (rc < 0)
        return rc;
    if (d->place.format == PLACE_IDX)
        rc = resident_load_images(d, NULL, err);
    else if (d->schema->image)
        rc = resident_load_lists(d, with_target, err);
    else if (source_bytes(d->place.path[0]) > RESIDENT_BYTES_MAX)
        rc = stream_open(d, err);
    else
        rc = resident_load(d, NULL, err);
    if (rc < 0)
        return rc;
    *out = TAKE(d);
    return 0;
}
