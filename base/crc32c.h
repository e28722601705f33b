/* base/crc32c.h - CRC-32C, as TFRecord frames and TensorBoard files use it */
#ifndef MUSTER_BASE_CRC32C_H
#define MUSTER_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

uint32_t crc32c(const void *data, size_t n);

/* TFRecord stores it rotated and offset, so that a CRC of data that holds CRCs is no trap. */
static inline uint32_t crc32c_masked(const void *data, size_t n)
{
    uint32_t crc = crc32c(data, n);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

#endif
