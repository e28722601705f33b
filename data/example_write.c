/* data/example_write.c - tf.example in protobuf's wire format, framed as TFRecord
 *
 * Example { Features features = 1; }  Features { map<string, Feature> feature = 1; }
 * Feature { BytesList 1 | FloatList 2 | Int64List 3 }, each with value = 1, numbers packed.
 */
#include "data/example_write.h"

#include "base/proto.h"
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

/* `list` holds the one field `value` of the list: entry { key, Feature { list } }. */
static void add_entry(struct example_writer *w, const char *name, enum example_kind kind)
{
    OWN_BUF feature = BUF_INIT;

    proto_message(&feature, (int)kind, &w->list);
    proto_text(&w->entry, 1, name);
    proto_message(&w->entry, 2, &feature);
    proto_message(&w->features, 1, &w->entry);
}

void example_begin(struct example_writer *w)
{
    buf_clear(&w->features);
}

void example_add_floats(struct example_writer *w, const char *name, const float *v, size_t n)
{
    proto_bytes(&w->list, 1, v, n * sizeof *v);
    add_entry(w, name, EXAMPLE_FLOAT);
}

void example_add_ints(struct example_writer *w, const char *name, const int64_t *v, size_t n)
{
    OWN_BUF packed = BUF_INIT;

    for (size_t i = 0; i < n; i++)
        proto_varint(&packed, (uint64_t)v[i]);
    proto_message(&w->list, 1, &packed);
    add_entry(w, name, EXAMPLE_INT64);
}

void example_add_text(struct example_writer *w, const char *name, const char *text, size_t n)
{
    proto_bytes(&w->list, 1, text, n);
    add_entry(w, name, EXAMPLE_BYTES);
}

int example_end(struct example_writer *w, struct buf *out, struct err *err)
{
    proto_message(&w->list, 1, &w->features);   /* Example { features = 1 } */
    if (buf_ok(&w->list, err) < 0)
        return -(int)err->code;
    tfrecord_append(out, w->list.data, w->list.n);
    buf_clear(&w->list);
    return buf_ok(out, err);
}
