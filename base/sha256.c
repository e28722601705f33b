/* base/sha256.c - SHA-256 in pieces, and as hex */
#include "base/sha256.h"

void sha256_start(struct sha256 *s)
{
    sha256_init(&s->ctx);
}

void sha256_add(struct sha256 *s, const void *data, size_t n)
{
    sha256_update(&s->ctx, n, data);
}

void sha256_finish(struct sha256 *s, uint8_t out[SHA256_BYTES])
{
    sha256_digest(&s->ctx, SHA256_BYTES, out);
}

void sha256_hex(const uint8_t raw[SHA256_BYTES], char out[SHA256_HEX])
{
    static const char digits[] = "0123456789abcdef";

    for (int i = 0; i < SHA256_BYTES; i++) {
        out[2 * i] = digits[raw[i] >> 4];
        out[2 * i + 1] = digits[raw[i] & 15];
    }
    out[2 * SHA256_BYTES] = '\0';
}

void sha256_finish_hex(struct sha256 *s, char out[SHA256_HEX])
{
    uint8_t raw[SHA256_BYTES];

    sha256_finish(s, raw);
    sha256_hex(raw, out);
}

void sha256_hex_of(const void *data, size_t n, char out[SHA256_HEX])
{
    struct sha256 s;
    sha256_start(&s);
    sha256_add(&s, data, n);
    sha256_finish_hex(&s, out);
}
