/* tests/fuzz/tfrecord_fuzz.c - any bytes as a tf.example, framed rightly, and as a TFRecord file
 *
 * The checksums would keep a fuzzer out, so the bytes are first one example by themselves, then one
 * in a frame that is right, then a file as they are.
 */
#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "base/own.h"
#include "data/rows.h"
#include "base/crc32c.h"
#include "data/tfrecord.h"

static int feature(void *ctx, const struct example_feature *f, struct err *err)
{
    double x[4];
    struct csv_text t[2];
    volatile char last = f->name_n ? f->name[f->name_n - 1] : 0;
    (void)ctx;
    (void)err;
    (void)last;
    if (f->kind == EXAMPLE_BYTES)
        assert(example_texts(f, t, 2) >= -1);
    else
        assert(example_numbers(f, x, 4) >= -1);
    return 0;
}

static void read_rows(const char *path)
{
    struct err err = { 0 };
    OWN(rows) r = NULL;
    struct csv_options o = { 0 };
    const struct rows_block *b;
    if (rows_open(ROWS_TFRECORD, &path, 1, &o, &r, &err) < 0)
        return;
    if (rows_select(r, "x", ROWS_NUMBER, &err) < 0 || rows_select(r, "s", ROWS_TEXT, &err) < 0 ||
        rows_select(r, "i", ROWS_NUMBER | ROWS_TEXT, &err) < 0 ||
        rows_select_list(r, "l", 3, &err) < 0)
        return;
    int rc;
    while ((rc = rows_next(r, &b, &err)) == 0 && b)
        for (long i = 0; i < b->n; i++) {
            assert(csv_bit(b->column[0].missing, i) == !!isnan(b->column[0].number[i]));
            if (csv_bit(b->bad, i))
                assert(rows_say(r, b, i, &err) < 0 && err.text[0]);
        }
    assert(rc == 0 || err.text[0]);
}

static void put_little(uint8_t *to, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        to[i] = (uint8_t)(v >> 8 * i);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct err err = { 0 };
    if (example_read(bytes, n, feature, NULL, &err) < 0)
        assert(err.text[0]);

    static int fd = -1;
    if (fd < 0)
        fd = memfd_create("tfrecord", 0);
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    OWN_MEM uint8_t *file = malloc(n + 16);
    put_little(file, n, 8);
    put_little(file + 8, crc32c_masked(file, 8), 4);
    if (n)
        memcpy(file + 12, bytes, n);
    put_little(file + 12 + n, crc32c_masked(bytes, n), 4);
    if (ftruncate(fd, 0) == 0 && pwrite(fd, file, n + 16, 0) == (ssize_t)(n + 16))
        read_rows(path);
    if (ftruncate(fd, 0) == 0 && pwrite(fd, bytes, n, 0) == (ssize_t)n)
        read_rows(path);
    return 0;
}
