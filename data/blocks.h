/* data/blocks.h - what the blocks of a file must be, so that each can be checked by itself
 *
 * The digest of a file needs all of its bytes. Who reads only some of them gets a list instead: the
 * SHA-256 of the head and of each block, and of the labels that belong to the rows. The list is
 * made by one who has read everything, and its own digest stands for the whole.
 *
 * Only files whose rows have a place that is known without reading what is before them have such a
 * list: IDX files of images that are not compressed. A block is a whole number of rows and has at
 * least BLOCKS_BYTES where it is not the last one: a large row is read alone, small ones that
 * are neighbours come together.
 *
 * Packed, little endian: size (8), head (4), row (4), the labels' sum (32), then n + 1 sums.
 */
#ifndef MUSTER_DATA_BLOCKS_H
#define MUSTER_DATA_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/own.h"
#include "base/sha256.h"

enum { BLOCKS_BYTES = 32 << 10 };

struct blocks {
    uint64_t size;              /* of the file */
    uint32_t head;              /* bytes before the first row */
    uint32_t row;               /* bytes of a row */
    uint32_t rows_in_block;
    long n;                     /* blocks; the head is none */
    uint8_t labels[SHA256_BYTES];
    uint8_t (*sum)[SHA256_BYTES];       /* (n + 1): of the head, then of each block */
};

/* Of a file that is in memory; head + a whole number of rows are its bytes. `labels` has one byte a
 * row, NULL: there are none. */
int blocks_of(const void *file, uint64_t size, uint32_t head, uint32_t row, const uint8_t *labels,
              struct blocks **out, struct err *err);
void blocks_free(struct blocks *b);
OWN_DEFINE(blocks)

/* Block i of the file lies at *out_at. */
size_t blocks_place(const struct blocks *b, long i, uint64_t *out_at);

/* True when the bytes are those of block i; of the head for i == -1. */
int blocks_match(const struct blocks *b, long i, const void *bytes);

void blocks_sum_labels(const uint8_t *labels, long n, uint8_t out[SHA256_BYTES]);

void blocks_pack(const struct blocks *b, struct buf *out);
/* *out_used of the bytes are the list. ERR_INVALID: they are none, or it is cut off. */
int blocks_unpack(const void *bytes, size_t n, size_t *out_used, struct blocks **out,
                  struct err *err);

#endif
