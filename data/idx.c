/* data/idx.c - IDX files: images and labels, gzip or not */
#include "data/idx.h"

#include "data/source.h"

enum {
    IDX_U8 = 0x08,
    IDX_BYTES_MAX = INT32_MAX,  /* 2 GiB: forty times Fashion-MNIST, and far from any overflow */
};

static const struct {
    int code;
    const char *name;
} types[] = {
    { 0x08, "unsigned bytes" }, { 0x09, "signed bytes" },   { 0x0b, "16-bit integers" },
    { 0x0c, "32-bit integers" }, { 0x0d, "32-bit floats" }, { 0x0e, "64-bit floats" },
};

static const char *type_name(int code)
{
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (types[i].code == code)
            return types[i].name;
    return NULL;
}

static uint32_t big_endian(const unsigned char *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static int say_cut_off(const char *path, size_t at, uint64_t want, struct err *err)
{
    return err_set(err, ERR_INVALID, "%s: is cut off at byte %zu of %llu (download it again)", path,
                   at, (unsigned long long)want);
}

/* Checks the first bytes. */
static int read_head(const char *path, const unsigned char *p, size_t n, struct idx *x,
                     struct err *err)
{
    uint32_t dim[3] = { 1, 1, 1 };

    if (n == 0)
        return err_set(err, ERR_INVALID, "%s: is empty (download it again)", path);
    if (n >= 2 && (p[0] || p[1]))
        return err_set(err, ERR_INVALID,
                       "%s: is not an IDX file (it begins with %02x %02x, not 00 00)", path, p[0],
                       p[1]);
    if (n < 4)
        return say_cut_off(path, n, 4, err);
    if (!type_name(p[2]))
        return err_set(err, ERR_INVALID, "%s: is not an IDX file (no element type is 0x%02x)", path,
                       p[2]);
    if (p[2] != IDX_U8)
        return err_set(err, ERR_INVALID, "%s: holds %s; only IDX files of unsigned bytes are read",
                       path, type_name(p[2]));
    if (p[3] < 1 || p[3] > 3)
        return err_set(err, ERR_INVALID,
                       "%s: has %d dimensions; labels have 1, images 3 (n, height, width)", path,
                       p[3]);

    size_t head = 4 + 4 * (size_t)p[3];
    if (n < head)
        return say_cut_off(path, n, head, err);
    uint64_t bytes = 1;
    for (int i = 0; i < p[3]; i++) {
        dim[i] = big_endian(p + 4 + 4 * i);
        if (i > 0 && dim[i] == 0)
            return err_set(err, ERR_INVALID, "%s: dimension %d is 0", path, i + 1);
        /* No overflow: bytes stays below 2^31 here and dim below 2^32. */
        bytes *= dim[i];
        if (bytes > IDX_BYTES_MAX)
            return err_set(err, ERR_INVALID, "%s: its dimensions ask for more than 2 GiB", path);
    }
    if (n - head < bytes)
        return say_cut_off(path, n, head + bytes, err);
    if (n - head > bytes)
        return err_set(err, ERR_INVALID,
                       "%s: has %zu bytes after the %llu that its dimensions ask for", path,
                       n - head - (size_t)bytes, (unsigned long long)(head + bytes));
    x->dims = p[3];
    x->n = dim[0];
    x->h = p[3] == 3 ? (int)dim[1] : 1;
    x->w = p[3] == 1 ? 1 : (int)dim[p[3] - 1];
    x->head = head;
    return 0;
}

int idx_read(const char *path, struct idx **out, struct err *err)
{
    OWN(idx) x = calloc(1, sizeof *x);
    OWN_MEM char *all = NULL;
    size_t n;

    if (!x)
        return err_set(err, ERR_NOMEM, "%s: no memory to read it", path);
    if (source_slurp(path, (size_t)IDX_BYTES_MAX + 16, &all, &n, &x->packed, err) < 0)
        return -(int)err->code;
    if (read_head(path, (const unsigned char *)all, n, x, err) < 0)
        return -(int)err->code;
    x->data = (uint8_t *)all + x->head;
    x->block = TAKE(all);
    *out = TAKE(x);
    return 0;
}

int idx_over(const char *path, uint8_t *file, size_t size, struct idx **out, struct err *err)
{
    OWN(idx) x = calloc(1, sizeof *x);

    if (!x)
        return err_set(err, ERR_NOMEM, "%s: no memory to read it", path);
    if (read_head(path, file, size, x, err) < 0)
        return -(int)err->code;
    x->data = file + x->head;
    *out = TAKE(x);
    return 0;
}

void idx_free(struct idx *x)
{
    if (!x)
        return;
    free(x->block);
    free(x);
}
