/* data/example_write.c - tf.example in protobuf's wire format, framed as TFRecord */
#include "data/example_write.h"

#include <string.h>

#include "data/tfrecord.h"

void example_writer_init(struct example_writer *w)
{
    buf_init(&w->features);
    buf_init(&w->entry);
    buf_init(&w->list);
}

void example_writer_done(struct example_writer *w)
{
    buf_done(&w->features);
    buf_done(&w->entry);
    buf_done(&w->list);
}

static void put_varint(struct buf *b, uint64_t v)
{
    uint8_t bytes[10];
    size_t n = 0;
    do {
        bytes[n++] = (uint8_t)((v & 127) | (v > 127 ? 128 : 0));
        v >>= 7;
    } while (v);
    buf_append(b, bytes, n);
}

/* A field of bytes: its key, its length; the bytes follow. */
static void put_field(struct buf *b, int number, size_t n)
{
    put_varint(b, (uint64_t)number << 3 | 2);
    put_varint(b, n);
}

static size_t varint_bytes(uint64_t v)
{
    size_t n = 1;
    while (v >>= 7)
        n++;
    return n;
}

static void put_little(struct buf *b, uint64_t v, int n)
{
    uint8_t bytes[8];
    for (int i = 0; i < n; i++)
        bytes[i] = (uint8_t)(v >> 8 * i);
    buf_append(b, bytes, (size_t)n);
}

/* `list` holds the one field `value` of the list: entry { key, Feature { list } }. */
static void add_entry(struct example_writer *w, const char *name, enum example_kind kind)
{
    size_t name_n = strlen(name), list_n = w->list.n;
    size_t feature_n = 1 + varint_bytes(list_n) + list_n;
    buf_clear(&w->entry);
    put_field(&w->entry, 1, name_n);
    buf_append(&w->entry, name, name_n);
    put_field(&w->entry, 2, feature_n);
    put_field(&w->entry, (int)kind, list_n);
    buf_append(&w->entry, w->list.data, list_n);
    put_field(&w->features, 1, w->entry.n);
    buf_append(&w->features, w->entry.data, w->entry.n);
}

void example_begin(struct example_writer *w)
{
    buf_clear(&w->features);
}

void example_add_floats(struct example_writer *w, const char *name, const float *v, size_t n)
{
    buf_clear(&w->list);
    put_field(&w->list, 1, 4 * n);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &v[i], sizeof bits);
        put_little(&w->list, bits, 4);
    }
    add_entry(w, name, EXAMPLE_FLOAT);
}

void example_add_ints(struct example_writer *w, const char *name, const int64_t *v, size_t n)
{
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += varint_bytes((uint64_t)v[i]);
    buf_clear(&w->list);
    put_field(&w->list, 1, bytes);
    for (size_t i = 0; i < n; i++)
        put_varint(&w->list, (uint64_t)v[i]);
    add_entry(w, name, EXAMPLE_INT64);
}

void example_add_text(struct example_writer *w, const char *name, const char *text, size_t n)
{
    buf_clear(&w->list);
    put_field(&w->list, 1, n);
    buf_append(&w->list, text, n);
    add_entry(w, name, EXAMPLE_BYTES);
}

int example_end(struct example_writer *w, struct buf *out, struct err *err)
{
    if (buf_ok(&w->features, err) < 0 || buf_ok(&w->entry, err) < 0 || buf_ok(&w->list, err) < 0)
        return -(int)err->code;
    struct buf *head = &w->list;        /* Example { features = 1 } */
    buf_clear(head);
    put_field(head, 1, w->features.n);
    buf_append(head, w->features.data, w->features.n);

    size_t start = out->n;
    put_little(out, head->n, 8);
    if (out->failed)
        return buf_ok(out, err);
    put_little(out, tfrecord_masked(out->data + start, 8), 4);
    buf_append(out, head->data, head->n);
    put_little(out, tfrecord_masked(head->data, head->n), 4);
    return buf_ok(head, err) < 0 ? -(int)err->code : buf_ok(out, err);
}
