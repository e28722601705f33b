/* data/idx.h - IDX files: images and labels, gzip or not
 *
 * The format of MNIST: two zero bytes, a type, the number of dimensions, each dimension as a
 * 32-bit big-endian number, then the elements. Only unsigned bytes (type 0x08) of one to three
 * dimensions are read; the length of the file must be what the dimensions say, to the byte.
 */
#ifndef MUSTER_DATA_IDX_H
#define MUSTER_DATA_IDX_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/own.h"

struct idx {
    int dims;           /* 1: labels (n); 2: (n, w); 3: images (n, h, w) */
    long n;
    int h, w;           /* 1 where there is no such dimension */
    uint8_t *data;      /* (n, h, w) */
    size_t head;        /* bytes of the file before it */
    int packed;         /* it was gzip */
    void *block;        /* what `data` lies in, from the file's byte 0 on; NULL: another's memory */
};

/* ERR_INVALID, in a sentence: empty, not IDX, another type, cut off, longer than it should be. */
int idx_read(const char *path, struct idx **out, struct err *err);
/* The same over a file that is in memory already, plain, and stays there; all but its head may
 * still have to come. */
int idx_over(const char *path, uint8_t *file, size_t size, struct idx **out, struct err *err);
void idx_free(struct idx *x);
OWN_DEFINE(idx)

#endif
