/* base/crc32c.h - CRC-32C, as TFRecord frames, TensorBoard files and buckets use it */
#ifndef MUSTER_BASE_CRC32C_H
#define MUSTER_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

uint32_t crc32c(const void *data, size_t n);

/* In pieces: begin with 0 and pass on what comes back. */
uint32_t crc32c_add(uint32_t crc, const void *data, size_t n);

/* The slow twin, for tests: never the processor's own instruction. */
uint32_t crc32c_by_table(const void *data, size_t n);

/* TFRecord stores it rotated and offset, so that a CRC of data that holds CRCs is no trap. */
static inline uint32_t crc32c_masked(const void *data, size_t n)
{
    uint32_t crc = crc32c(data, n);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

#endif
