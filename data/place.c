/* data/place.c - where rows are: files of one format, and which of their rows */
#include "data/dataset_int.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"

static const struct { const char *word; int format; } formats[] = {
    { "idx", PLACE_IDX },
    { "csv", ROWS_CSV },
    { "json", ROWS_JSON },
    { "tfrecord", ROWS_TFRECORD },
};
enum { FORMATS = sizeof formats / sizeof formats[0] };

void place_done(struct place *p)
{
    for (int i = 0; p->path && i < p->n; i++)
        free(p->path[i]);
    free(p->path);
    p->path = NULL;
}

/* [first, end], as the spec normalises it; the end is null for "404..". */
static int read_range(const json_t *v, const char *path, struct place *p, struct err *err)
{
    const json_t *a = json_array_get(v, 0), *b = json_array_get(v, 1);
    long first = json_is_integer(a) ? (long)json_integer_value(a) : -1;
    long end = json_is_integer(b) ? (long)json_integer_value(b) : -1;

    if (json_array_size(v) != 2 || first < 0 || (end <= first && !json_is_null(b)))
        return err_set(err, ERR_INVALID, "%s.rows: a range such as 0..404 should be here", path);
    p->first = first;
    p->end = end;
    return 0;
}

static int read_paths(const json_t *v, const char *path, const char *word, const char *dir,
                      struct place *p, struct err *err)
{
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n < 1 || n > 65536 || (p->format == PLACE_IDX && n > 2))
        return err_set(err, ERR_INVALID, "%s.%s: %s should be here", path, word,
                       p->format == PLACE_IDX ? "[images, labels]" : "a file or a list of files");
    if (!(p->path = calloc(n, sizeof *p->path)))
        return err_set(err, ERR_NOMEM, "no memory for %zu file names", n);
    p->n = (int)n;
    for (size_t i = 0; i < n; i++) {
        const char *text = json_string_value(json_is_array(v) ? json_array_get(v, i) : v);
        if (!text)
            return err_set(err, ERR_INVALID, "%s.%s[%zu]: a file name should be here", path, word,
                           i);
        p->path[i] = strcmp(text, "-") ? files_resolve(dir, text) : strdup(text);
        if (!p->path[i])
            return err_set(err, ERR_NOMEM, "no memory for a file name");
    }
    return 0;
}

int place_read(const json_t *source, const char *path, const char *dir, struct place *out,
               struct err *err)
{
    struct place p = { .end = -1, .limit = -1 };
    int k = 0;
    while (k < FORMATS && !json_object_get(source, formats[k].word))
        k++;
    if (k == FORMATS)
        return err_set(err, ERR_INVALID, "%s: one of idx, csv, json, tfrecord should be here",
                       path);
    p.format = formats[k].format;
    const json_t *rows = json_object_get(source, "rows"), *limit = json_object_get(source, "limit");
    int rc =
        read_paths(json_object_get(source, formats[k].word), path, formats[k].word, dir, &p, err);
    if (rc == 0 && rows && !json_is_null(rows))
        rc = read_range(rows, path, &p, err);
    if (rc == 0 && limit && !json_is_null(limit)) {
        p.limit = json_is_integer(limit) ? (long)json_integer_value(limit) : 0;
        if (p.limit < 1)
            rc = err_set(err, ERR_INVALID, "%s.limit: a number of rows from 1 up should be here",
                         path);
    }
    if (rc < 0) {
        place_done(&p);
        return rc;
    }
    *out = p;
    return 0;
}

int place_same(const struct place *a, const struct place *b)
{
    if (a->format != b->format || a->n != b->n)
        return 0;
    for (int i = 0; i < a->n; i++)
        if (strcmp(a->path[i], b->path[i]))
            return 0;
    return 1;
}

int rows_for(const struct schema *s, const struct place *p, struct rows **out, struct err *err)
{
    struct csv_options o = schema_csv(s);
    OWN(rows) r = NULL;
    if (rows_open((enum rows_format)p->format, (const char *const *)p->path, p->n, &o, &r, err) < 0)
        return -(int)err->code;
    for (int i = 0; i < s->n_columns; i++)
        if (rows_select(r, s->column[i].name, s->column[i].as, err) < 0) {
            char path[256];
            schema_who_reads(s, i, path, sizeof path);
            return err_add(err, "%s", path);
        }
    *out = TAKE(r);
    return 0;
}
