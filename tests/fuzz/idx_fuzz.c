/* tests/fuzz/idx_fuzz.c - any bytes as an IDX file, gzip or not */
#include <assert.h>
#include <stdint.h>
#include <sys/mman.h>

#include "data/idx.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static char path[64];
    static int fd = -1;
    struct err err = { 0 };
    OWN(idx) x = NULL;

    if (fd < 0) {
        fd = memfd_create("idx", 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    assert(fd >= 0 && ftruncate(fd, 0) == 0);
    assert(pwrite(fd, bytes, n, 0) == (ssize_t)n);
    if (idx_read(path, &x, &err) < 0) {
        assert(err.text[0] && !x);
        return 0;
    }
    /* Every byte that the dimensions promise is there. */
    unsigned sum = 0;
    for (long i = 0; i < x->n * x->h * x->w; i++)
        sum += x->data[i];
    assert(sum <= 255u * (size_t)(x->n * x->h * x->w));
    return 0;
}
