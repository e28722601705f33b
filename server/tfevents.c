/* server/tfevents.c - reads TensorBoard's event files as they grow
 *
 * Event { double wall_time = 1; int64 step = 2; Summary summary = 5; }
 * Summary { repeated Value value = 1; }
 * Value { string tag = 1; float simple_value = 2; TensorProto tensor = 8; }
 * TensorProto { DataType dtype = 1; bytes tensor_content = 4; repeated float float_val = 5;
 *               repeated double double_val = 6; }
 */
#include "server/tfevents.h"

#include <stdbool.h>
#include <string.h>

#include "base/crc32c.h"

enum {
    RECORD_MAX = 256 << 20,     /* pictures are records too, and passed over */
    TAG_MAX = 512,
    DT_FLOAT = 1, DT_DOUBLE = 2,
};

/* ------------------------------------------------------------------ protobuf */

struct cursor {
    const uint8_t *at, *end;
};

struct field {
    uint32_t number;
    int wire;                   /* 0 varint, 1 eight bytes, 2 bytes, 5 four bytes */
    uint64_t value;             /* of 0, 1 and 5 */
    struct cursor bytes;        /* of 2 */
};

static bool read_varint(struct cursor *c, uint64_t *out)
{
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && c->at < c->end; shift += 7) {
        uint8_t byte = *c->at++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            *out = value;
            return true;
        }
    }
    return false;
}

static uint64_t little(const uint8_t *p, int n)
{
    uint64_t v = 0;
    for (int i = 0; i < n; i++)
        v |= (uint64_t)p[i] << 8 * i;
    return v;
}

static bool read_field(struct cursor *c, struct field *f)
{
    uint64_t key, n;

    if (!read_varint(c, &key))
        return false;
    f->number = (uint32_t)(key >> 3);
    f->wire = (int)(key & 7);
    if (f->wire == 0)
        return read_varint(c, &f->value);
    if (f->wire == 2) {
        if (!read_varint(c, &n) || n > (uint64_t)(c->end - c->at))
            return false;
        f->bytes = (struct cursor){ c->at, c->at + n };
        c->at += n;
        return true;
    }
    int size = f->wire == 1 ? 8 : f->wire == 5 ? 4 : 0;
    if (!size || c->end - c->at < size)
        return false;
    f->value = little(c->at, size);
    c->at += size;
    return true;
}

static double as_double(uint64_t bits)
{
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static double as_float(uint64_t bits)
{
    uint32_t low = (uint32_t)bits;
    float v;
    memcpy(&v, &low, sizeof v);
    return (double)v;
}

/* ------------------------------------------------------------------ messages */

/* One number, however it is stored. */
static bool read_tensor(struct cursor c, double *out)
{
    struct field f;
    uint64_t type = DT_FLOAT;
    struct cursor content = { NULL, NULL };
    bool found = false;

    while (read_field(&c, &f)) {
        if (f.number == 1 && f.wire == 0)
            type = f.value;
        else if (f.number == 4 && f.wire == 2)
            content = f.bytes;
        else if (f.number == 5 && f.wire == 5)
            *out = as_float(f.value), found = true;
        else if (f.number == 5 && f.wire == 2 && f.bytes.end - f.bytes.at == 4)
            *out = as_float(little(f.bytes.at, 4)), found = true;
        else if (f.number == 6 && f.wire == 1)
            *out = as_double(f.value), found = true;
        else if (f.number == 6 && f.wire == 2 && f.bytes.end - f.bytes.at == 8)
            *out = as_double(little(f.bytes.at, 8)), found = true;
    }
    if (content.at && type == DT_FLOAT && content.end - content.at == 4)
        *out = as_float(little(content.at, 4)), found = true;
    if (content.at && type == DT_DOUBLE && content.end - content.at == 8)
        *out = as_double(little(content.at, 8)), found = true;
    return found;
}

static bool read_value(struct cursor c, struct tfevents_scalar *s)
{
    struct field f;
    bool has_value = false;

    s->tag = NULL;
    while (read_field(&c, &f)) {
        if (f.number == 1 && f.wire == 2) {
            s->tag = (const char *)f.bytes.at;
            s->tag_n = (size_t)(f.bytes.end - f.bytes.at);
        } else if (f.number == 2 && f.wire == 5) {
            s->value = as_float(f.value);
            has_value = true;
        } else if (f.number == 8 && f.wire == 2) {
            has_value |= read_tensor(f.bytes, &s->value);
        }
    }
    return has_value && s->tag && s->tag_n > 0 && s->tag_n <= TAG_MAX;
}

void tfevents_read_event(const uint8_t *bytes, size_t n,
                         void (*each)(void *arg, const struct tfevents_scalar *s), void *arg)
{
    struct cursor c = { bytes, bytes + n };
    struct tfevents_scalar s = { 0 };
    struct field f, value;

    /* Time and step first: a message's fields come in any order. */
    while (read_field(&c, &f)) {
        if (f.number == 1 && f.wire == 1)
            s.time = as_double(f.value);
        else if (f.number == 2 && f.wire == 0)
            s.step = (int64_t)f.value;
    }
    c = (struct cursor){ bytes, bytes + n };
    while (read_field(&c, &f)) {
        if (f.number != 5 || f.wire != 2)
            continue;
        while (read_field(&f.bytes, &value))
            if (value.number == 1 && value.wire == 2 && read_value(value.bytes, &s))
                each(arg, &s);
    }
}

/* ------------------------------------------------------------------ records */

int64_t tfevents_read(const uint8_t *bytes, size_t n,
                      void (*each)(void *arg, const struct tfevents_scalar *s), void *arg)
{
    size_t at = 0;

    while (n - at >= 12) {
        uint64_t length = little(bytes + at, 8);
        if (crc32c_masked(bytes + at, 8) != (uint32_t)little(bytes + at + 8, 4) ||
            length > RECORD_MAX)
            return -1;
        if (n - at - 12 < length || n - at - 12 - length < 4)
            break;              /* half written */
        const uint8_t *event = bytes + at + 12;
        if (crc32c_masked(event, (size_t)length) != (uint32_t)little(event + length, 4))
            return -1;
        tfevents_read_event(event, (size_t)length, each, arg);
        at += 12 + (size_t)length + 4;
    }
    return (int64_t)at;
}
