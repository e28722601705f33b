/* serving/export_torch.c - a state dict for torch.load(weights_only=True)
 *
 * The file is a zip of stored members: data.pkl, a pickle of an OrderedDict of tensors whose
 * storages are named by number, and data/0, data/1, ... with the values. Values are aligned to 64
 * bytes, as PyTorch's own files are, by padding in the members' extra field.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/buf.h"
#include "base/files.h"
#include "engine/model.h"
#include "serving/export.h"

enum { ALIGN_TO = 64, MEMBERS_EXTRA = 3 };

/* ------------------------------------------------------------------ pickle, protocol 2 */

static void pickle_text(struct buf *b, const char *text)
{
    uint32_t n = (uint32_t)strlen(text);

    buf_append(b, "X", 1);
    buf_append(b, &n, 4);
    buf_append(b, text, n);
}

static void pickle_int(struct buf *b, long value)
{
    int64_t wide = value;
    int32_t narrow = (int32_t)value;

    if (narrow == value) {
        buf_append(b, "J", 1);
        buf_append(b, &narrow, 4);
    } else {
        buf_append(b, "\x8a\x08", 2);
        buf_append(b, &wide, 8);
    }
}

/* rebuild_tensor_v2(storage, 0, shape, strides, False, OrderedDict()) */
static void pickle_tensor(struct buf *b, const struct param *q, int key)
{
    char name[16];

    snprintf(name, sizeof name, "%d", key);
    pickle_text(b, q->name);
    buf_text(b, "ctorch._utils\n_rebuild_tensor_v2\n((");
    pickle_text(b, "storage");
    buf_text(b, "ctorch\nFloatStorage\n");
    pickle_text(b, name);
    pickle_text(b, "cpu");
    pickle_int(b, q->count);
    buf_text(b, "tQ");
    pickle_int(b, 0);
    buf_text(b, "(");
    for (int i = 0; i < q->nd; i++)
        pickle_int(b, q->dim[i]);
    buf_text(b, "t(");
    for (int i = 0; i < q->nd; i++) {
        long stride = 1;
        for (int k = i + 1; k < q->nd; k++)
            stride *= q->dim[k];
        pickle_int(b, stride);
    }
    buf_text(b, "t\x89" "ccollections\nOrderedDict\n)RtR");
}

static void pickle_dict(struct buf *b, const struct plan *p)
{
    buf_append(b, "\x80\x02", 2);
    buf_text(b, "ccollections\nOrderedDict\n)R(");
    for (int i = 0; i < p->n_params; i++)
        pickle_tensor(b, p->param[i], i);
    buf_text(b, "u.");
}

/* ------------------------------------------------------------------ zip, stored */

struct zip_member {
    char name[64];
    uint32_t crc, size, at;
};

struct zip {
    struct file_writer *out;
    uint64_t at;
    struct zip_member *member;
    int n;
};

static void put16(struct buf *b, unsigned v)
{
    unsigned char p[2] = { (unsigned char)v, (unsigned char)(v >> 8) };
    buf_append(b, p, 2);
}

static void put32(struct buf *b, uint32_t v)
{
    put16(b, v & 0xffff);
    put16(b, v >> 16);
}

/* The fields that a local header and the central directory share, from "version needed" on. */
static void put_common(struct buf *b, const struct zip_member *m, unsigned extra)
{
    put16(b, 20);
    put16(b, 0);
    put16(b, 0);                /* stored */
    put32(b, 0x00210000);       /* 1980-01-01: the same bytes from the same model */
    put32(b, m->crc);
    put32(b, m->size);
    put32(b, m->size);
    put16(b, (unsigned)strlen(m->name));
    put16(b, extra);
}

static int zip_write(struct zip *z, const void *data, size_t n, struct err *err)
{
    z->at += n;
    if (z->at > UINT32_MAX)
        return err_set(err, ERR_INVALID,
                       "the model is larger than a 4 GB zip (export safetensors)");
    return file_writer_write(z->out, data, n, err);
}

static int zip_add(struct zip *z, const char *name, const void *data, size_t n, struct err *err)
{
    static const char zeros[ALIGN_TO];
    struct zip_member *m = &z->member[z->n++];
    OWN_BUF head = BUF_INIT;

    snprintf(m->name, sizeof m->name, "archive/%s", name);
    m->crc = (uint32_t)crc32_z(0, data, n);
    m->size = (uint32_t)n;
    m->at = (uint32_t)z->at;
    size_t start = z->at + 30 + strlen(m->name) + 4;    /* 4: head of the extra field */
    unsigned pad = (unsigned)(-start & (ALIGN_TO - 1));
    put32(&head, 0x04034b50);
    put_common(&head, m, pad + 4);
    buf_text(&head, m->name);
    put16(&head, 0x4246);
    put16(&head, pad);
    buf_append(&head, zeros, pad);
    if (buf_ok(&head, err) < 0 || zip_write(z, head.data, head.n, err) < 0)
        return -(int)err->code;
    return zip_write(z, data, n, err);
}

static int zip_end(struct zip *z, struct err *err)
{
    OWN_BUF b = BUF_INIT;
    uint32_t start = (uint32_t)z->at;

    for (int i = 0; i < z->n; i++) {
        put32(&b, 0x02014b50);
        put16(&b, 20);
        put_common(&b, &z->member[i], 0);
        put16(&b, 0);
        put16(&b, 0);
        put16(&b, 0);
        put32(&b, 0);
        put32(&b, z->member[i].at);
        buf_text(&b, z->member[i].name);
    }
    uint32_t size = (uint32_t)b.n;
    put32(&b, 0x06054b50);
    put32(&b, 0);
    put16(&b, (unsigned)z->n);
    put16(&b, (unsigned)z->n);
    put32(&b, size);
    put32(&b, start);
    put16(&b, 0);
    if (buf_ok(&b, err) < 0)
        return -(int)err->code;
    return zip_write(z, b.data, b.n, err);
}

static int add_values(struct zip *z, const struct plan *p, struct err *err)
{
    for (int i = 0; i < p->n_params; i++) {
        const struct param *q = p->param[i];
        char name[32];
        OWN_MEM float *values = malloc((size_t)q->count * sizeof *values + 1);
        if (!values)
            return err_set(err, ERR_NOMEM, "no memory for %s", q->name);
        plan_get(p, q, 0, values);
        snprintf(name, sizeof name, "data/%d", i);
        if (zip_add(z, name, values, (size_t)q->count * sizeof *values, err) < 0)
            return -(int)err->code;
    }
    return 0;
}

static int export_torch(const struct plan *p, struct file_writer *to, struct err *err)
{
    OWN_BUF pickle = BUF_INIT;
    OWN_MEM struct zip_member *member = calloc((size_t)p->n_params + MEMBERS_EXTRA, sizeof *member);

    if (!member)
        return err_set(err, ERR_NOMEM, "no memory to write a model");
    pickle_dict(&pickle, p);
    if (buf_ok(&pickle, err) < 0)
        return -(int)err->code;
    struct zip z = { .out = to, .member = member };
    if (zip_add(&z, "data.pkl", pickle.data, pickle.n, err) < 0 ||
        zip_add(&z, "byteorder", "little", 6, err) < 0 || add_values(&z, p, err) < 0 ||
        zip_add(&z, "version", "3\n", 2, err) < 0 || zip_end(&z, err) < 0)
        return -(int)err->code;
    return 0;
}

/* ------------------------------------------------------------------ the table of formats */

static int export_safetensors(const struct plan *p, struct file_writer *to, struct err *err)
{
    return model_put(p, to, false, NULL, err);
}

export_fn export_find(const char *format)
{
    static const struct { const char *name; export_fn fn; } formats[] = {
        { "safetensors", export_safetensors },
        { "torch", export_torch },
        { "onnx", export_onnx },
    };

    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (strcmp(formats[i].name, format) == 0)
            return formats[i].fn;
    return NULL;
}
