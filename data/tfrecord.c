/* data/tfrecord.c - the frames of a TFRecord file and the examples in them, as rows */
#include "data/tfrecord.h"

#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "data/rows_build.h"
#include "data/source.h"

static void put_little(struct buf *b, uint64_t v, int n)
{
    uint8_t bytes[8];

    for (int i = 0; i < n; i++)
        bytes[i] = (uint8_t)(v >> 8 * i);
    buf_append(b, bytes, (size_t)n);
}

void tfrecord_append(struct buf *out, const void *data, size_t n)
{
    uint8_t length[8];

    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)((uint64_t)n >> 8 * i);
    buf_append(out, length, sizeof length);
    put_little(out, crc32c_masked(length, sizeof length), 4);
    buf_append(out, data, n);
    put_little(out, crc32c_masked(data, n), 4);
}

/* A cursor over wire bytes. */
struct wire {
    const uint8_t *at, *end;
};

static int varint(struct wire *w, uint64_t *out)
{
    uint64_t v = 0;
    for (int shift = 0; shift < 64 && w->at < w->end; shift += 7) {
        uint8_t b = *w->at++;
        v |= (uint64_t)(b & 127) << shift;
        if (!(b & 128)) {
            *out = v;
            return 0;
        }
    }
    return -1;
}

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

struct wire_field {
    uint32_t number;
    int type;
    uint64_t value;             /* varint */
    const uint8_t *data;        /* bytes, 64 and 32 bits */
    size_t n;
};

/* The next field: 1, 0 at the end, -1 damaged. */
static int wire_next(struct wire *w, struct wire_field *f)
{
    uint64_t key, n = 0;
    if (w->at == w->end)
        return 0;
    if (varint(w, &key) < 0 || key >> 3 == 0 || key >> 3 > 0x1fffffff)
        return -1;
    *f = (struct wire_field){ .number = (uint32_t)(key >> 3), .type = (int)(key & 7) };
    if (f->type == WIRE_VARINT)
        return varint(w, &f->value) < 0 ? -1 : 1;
    if (f->type == WIRE_BYTES ? varint(w, &n) < 0 : f->type != WIRE_64 && f->type != WIRE_32)
        return -1;
    n = f->type == WIRE_64 ? 8 : f->type == WIRE_32 ? 4 : n;
    if (n > (uint64_t)(w->end - w->at))
        return -1;
    f->data = w->at;
    f->n = (size_t)n;
    w->at += n;
    return 1;
}

/* An entry of the map: key = 1, value = 2. */
static int read_entry(const struct wire_field *entry, struct example_feature *out)
{
    struct wire w = { entry->data, entry->data + entry->n }, value = { NULL, NULL };
    struct wire_field f;
    int rc;
    *out = (struct example_feature){ .name = "" };
    while ((rc = wire_next(&w, &f)) == 1) {
        if (f.number == 1 && f.type == WIRE_BYTES) {
            out->name = (const char *)f.data;
            out->name_n = f.n;
        } else if (f.number == 2 && f.type == WIRE_BYTES) {
            value = (struct wire){ f.data, f.data + f.n };
        }
    }
    if (rc < 0)
        return -1;
    while ((rc = value.at ? wire_next(&value, &f) : 0) == 1)
        if (f.type == WIRE_BYTES && f.number >= EXAMPLE_BYTES && f.number <= EXAMPLE_INT64) {
            out->kind = (enum example_kind)f.number;
            out->list = f.data;
            out->list_n = f.n;
        }
    return rc;
}

int example_read(const uint8_t *data, size_t n,
                 int (*feature)(void *ctx, const struct example_feature *f, struct err *err),
                 void *ctx, struct err *err)
{
    struct wire w = { data, n ? data + n : data };
    struct wire_field features = { 0 }, entry = { 0 };
    int rc, inner = 0;
    if (!n)
        return 0;               /* an example without features; data may be NULL */
    while ((rc = wire_next(&w, &features)) == 1) {
        if (features.number != 1 || features.type != WIRE_BYTES)
            continue;
        struct wire map = { features.data, features.data + features.n };
        while ((inner = wire_next(&map, &entry)) == 1) {
            struct example_feature f;
            if (entry.number != 1 || entry.type != WIRE_BYTES)
                continue;
            if (read_entry(&entry, &f) < 0)
                return err_set(err, ERR_INVALID, "its bytes are not a tf.example");
            if (f.kind && feature(ctx, &f, err) < 0)
                return -(int)err->code;
        }
        if (inner < 0)
            break;
    }
    return rc < 0 || inner < 0 ? err_set(err, ERR_INVALID, "its bytes are not a tf.example") : 0;
}

static double float_at(const uint8_t *p)
{
    uint32_t bits = p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

long example_numbers(const struct example_feature *f, double *out, long most)
{
    struct wire w = { f->list, f->list + f->list_n };
    struct wire_field v;
    long n = 0;
    int rc;
    while ((rc = wire_next(&w, &v)) == 1) {
        if (v.number != 1)
            continue;
        if (f->kind == EXAMPLE_FLOAT) {
            if ((v.type != WIRE_BYTES && v.type != WIRE_32) || v.n % 4)
                return -1;
            for (size_t i = 0; i < v.n; i += 4, n++)
                if (n < most)
                    out[n] = float_at(v.data + i);
        } else if (v.type == WIRE_VARINT) {
            if (n < most)
                out[n] = (double)(int64_t)v.value;
            n++;
        } else if (v.type == WIRE_BYTES) {
            struct wire packed = { v.data, v.data + v.n };
            for (uint64_t x; packed.at < packed.end; n++) {
                if (varint(&packed, &x) < 0)
                    return -1;
                if (n < most)
                    out[n] = (double)(int64_t)x;
            }
        } else {
            return -1;
        }
    }
    return rc < 0 ? -1 : n;
}

long example_texts(const struct example_feature *f, struct csv_text *out, long most)
{
    struct wire w = { f->list, f->list + f->list_n };
    struct wire_field v;
    long n = 0;
    int rc;
    while ((rc = wire_next(&w, &v)) == 1) {
        if (v.number != 1 || v.type != WIRE_BYTES)
            return -1;
        if (n < most)
            out[n] = (struct csv_text){ (const char *)v.data, v.n };
        n++;
    }
    return rc < 0 ? -1 : n;
}

/* Rows of TFRecord files. */

struct rows_tfrecord {
    struct build build;
    struct source *source;
    uint8_t *record;
    size_t cap;
    int ended;
    long rows, rows_in_file, number;    /* number: records read of the file */
    double *list;
    long list_max;
};

static int tf_open(struct rows *r, const char *const *paths, int n, const struct csv_options *o,
                   struct err *err)
{
    struct rows_tfrecord *t = calloc(1, sizeof *t);
    if (!t)
        return err_set(err, ERR_NOMEM, "no memory to read %s", paths[0]);
    r->own = t;
    return build_init(&t->build, o, err) < 0 ? -(int)err->code
                                             : source_open(paths, n, &t->source, err);
}

static void tf_free(struct rows *r)
{
    struct rows_tfrecord *t = r->own;
    if (!t)
        return;
    build_done(&t->build);
    source_free(t->source);
    free(t->record);
    free(t->list);
    free(t);
}

static int tf_select(struct rows *r, const char *name, int as, int width, struct err *err)
{
    struct rows_tfrecord *t = r->own;
    if (width >= t->list_max) {
        double *list = realloc(t->list, ((size_t)width + 1) * sizeof *list);
        if (!list)
            return err_set(err, ERR_NOMEM, "no memory for lists of %d numbers", width);
        t->list = list;
        t->list_max = width + 1;
    }
    return build_select(&t->build, name, as, width, err);
}

static uint64_t little(const uint8_t *p, int n)
{
    uint64_t v = 0;
    for (int i = n - 1; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

static int damaged(const struct rows_tfrecord *t, const char *what, struct err *err)
{
    return err_set(err, ERR_INVALID, "%s: record %ld: %s (the file is damaged or is no TFRecord)",
                   source_path(t->source), t->number + 1, what);
}

/* The bytes of the next record; *out_n is -1 at the end of the file. */
static int next_record(struct rows_tfrecord *t, long *out_n, struct err *err)
{
    uint8_t head[12], tail[4];
    size_t got;
    if (source_read(t->source, head, sizeof head, &got, err) < 0)
        return -(int)err->code;
    *out_n = -1;
    if (got == 0)
        return 0;
    if (got < sizeof head)
        return damaged(t, "the file ends inside its length", err);
    uint64_t n = little(head, 8);
    if (crc32c_masked(head, 8) != little(head + 8, 4))
        return damaged(t, "the checksum of its length is wrong", err);
    if (n > TFRECORD_MAX)
        return damaged(t, "it is longer than 256 MiB", err);
    if (n > t->cap) {
        /* Not all at once: a length can claim more than the file has. */
        uint8_t *record = realloc(t->record, n + n / 2);
        if (!record)
            return err_set(err, ERR_NOMEM, "no memory for a record of %llu bytes",
                           (unsigned long long)n);
        t->record = record;
        t->cap = n + n / 2;
    }
    if (n && source_read(t->source, t->record, n, &got, err) < 0)
        return -(int)err->code;
    if (n && got < n)
        return damaged(t, "the file ends inside it", err);
    if (source_read(t->source, tail, sizeof tail, &got, err) < 0)
        return -(int)err->code;
    if (got < sizeof tail)
        return damaged(t, "the file ends inside its checksum", err);
    if (crc32c_masked(t->record, n) != little(tail, 4))
        return damaged(t, "its checksum is wrong", err);
    t->number++;
    *out_n = (long)n;
    return 0;
}

static void set_bytes(struct rows_tfrecord *t, int column, const struct example_feature *f)
{
    struct build *b = &t->build;
    struct csv_text text = { NULL, 0 };
    long n = example_texts(f, &text, 1);
    int width = b->column[column].width;
    if (n == 1 && width > 1) {
        /* One string of bytes where a list is wanted: an image, a byte an element. */
        for (size_t i = 0; i < text.n && i < (size_t)width; i++)
            t->list[i] = (unsigned char)text.p[i];
        build_list(b, column, t->list, (long)text.n);
    } else if (n == 1) {
        build_text(b, column, text.p, text.n);
    } else if (n != 0) {
        build_wrong(b, column, n < 0 ? " is damaged" : " has several values, one is wanted");
    }
}

static int set_feature(void *ctx, const struct example_feature *f, struct err *err)
{
    struct rows_tfrecord *t = ctx;
    struct build *b = &t->build;
    int column = build_find(b, f->name, f->name_n);
    (void)err;
    if (column < 0)
        return 0;
    if (f->kind == EXAMPLE_BYTES) {
        set_bytes(t, column, f);
        return 0;
    }
    long n = example_numbers(f, t->list, t->list_max);
    if (n < 0) {
        build_wrong(b, column, " is damaged");
    } else if (n > 0 && b->column[column].width > 1) {
        build_list(b, column, t->list, n);
    } else if (n == 1) {
        char text[32];
        int len =
            snprintf(text, sizeof text, f->kind == EXAMPLE_FLOAT ? "%.9g" : "%.0f", t->list[0]);
        build_number(b, column, t->list[0], text, (size_t)len);
    } else if (n > 1) {
        build_wrong(b, column, " has several values, one is wanted");
    }
    return 0;
}

static int tf_next_file(struct rows_tfrecord *t, struct err *err)
{
    int more = 0;
    if (source_next(t->source, &more, err) < 0)
        return -(int)err->code;
    t->ended = !more;
    t->rows_in_file = t->number = 0;
    return 0;
}

static int tf_next(struct rows *r, const struct rows_block **out, struct err *err)
{
    struct rows_tfrecord *t = r->own;
    struct build *b = &t->build;
    *out = NULL;
    while (!t->ended) {
        build_start(b, source_path(t->source), t->rows, t->rows_in_file);
        long n = 0;
        while (n >= 0 && !build_full(b)) {
            if (next_record(t, &n, err) < 0)
                return -(int)err->code;
            if (n < 0)
                break;
            struct err why = { 0 };
            build_row(b, t->number);
            if (example_read(t->record, (size_t)n, set_feature, t, &why) < 0) {
                build_drop(b, "record", why.text);
            }
        }
        t->rows += b->out.n;
        t->rows_in_file += b->out.n;
        if (n < 0 && tf_next_file(t, err) < 0)
            return -(int)err->code;
        if (b->out.n || b->out.broken)
            return build_finish(b, out, err);
    }
    return 0;
}

static int tf_rewind(struct rows *r, struct err *err)
{
    struct rows_tfrecord *t = r->own;
    if (source_rewind(t->source, err) < 0)
        return -(int)err->code;
    t->ended = 0;
    t->rows = t->rows_in_file = t->number = 0;
    return 0;
}

static int tf_say(const struct rows *r, const struct rows_block *b, long slot, struct err *err)
{
    (void)b;
    return build_say(&((struct rows_tfrecord *)r->own)->build, slot, err);
}

static long tf_row(const struct rows *r, const struct rows_block *b, long slot)
{
    (void)b;
    return ((struct rows_tfrecord *)r->own)->build.line[slot];
}

static long tf_broken(const struct rows *r, const struct rows_block *b, long i, struct err *why)
{
    (void)b;
    return build_broken(&((struct rows_tfrecord *)r->own)->build, i, why);
}

const struct rows_ops rows_tfrecord_ops = {
    .open = tf_open,
    .select = tf_select,
    .next = tf_next,
    .rewind = tf_rewind,
    .say = tf_say,
    .row = tf_row,
    .broken = tf_broken,
    .free = tf_free,
};
