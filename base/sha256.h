/* base/sha256.h - SHA-256 in pieces, and as hex (nettle does the work) */
#ifndef MUSTER_BASE_SHA256_H
#define MUSTER_BASE_SHA256_H

#include <nettle/sha2.h>
#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32, SHA256_HEX = 65 };    /* hex with its NUL */

struct sha256 {
    struct sha256_ctx ctx;
};

void sha256_start(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *data, size_t n);
void sha256_finish(struct sha256 *s, uint8_t out[SHA256_BYTES]);        /* then start again */
void sha256_hex(const uint8_t raw[SHA256_BYTES], char out[SHA256_HEX]);
void sha256_finish_hex(struct sha256 *s, char out[SHA256_HEX]);

/* Of one stretch of bytes. */
void sha256_hex_of(const void *data, size_t n, char out[SHA256_HEX]);

#endif
