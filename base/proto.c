/* base/proto.c - writing protobuf messages */
#include "base/proto.h"

#include <string.h>

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

void proto_varint(struct buf *b, uint64_t v)
{
    unsigned char out[10];
    size_t n = 0;

    for (; v > 127; v >>= 7)
        out[n++] = (unsigned char)(v | 128);
    out[n++] = (unsigned char)v;
    buf_append(b, out, n);
}

static void put_tag(struct buf *b, int field, int wire)
{
    proto_varint(b, (uint64_t)field << 3 | (unsigned)wire);
}

void proto_int(struct buf *b, int field, int64_t value)
{
    put_tag(b, field, WIRE_VARINT);
    proto_varint(b, (uint64_t)value);
}

void proto_bytes(struct buf *b, int field, const void *data, size_t n)
{
    put_tag(b, field, WIRE_BYTES);
    proto_varint(b, n);
    buf_append(b, data, n);
}

void proto_text(struct buf *b, int field, const char *text)
{
    proto_bytes(b, field, text, strlen(text));
}

void proto_float(struct buf *b, int field, float value)
{
    put_tag(b, field, WIRE_32);
    buf_append(b, &value, sizeof value);
}

void proto_double(struct buf *b, int field, double value)
{
    put_tag(b, field, WIRE_64);
    buf_append(b, &value, sizeof value);
}

void proto_message(struct buf *b, int field, struct buf *inner)
{
    b->failed |= inner->failed;
    proto_bytes(b, field, inner->data ? inner->data : "", inner->n);
    buf_clear(inner);
}
