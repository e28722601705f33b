/* base/crc32c.c - CRC-32C: by the processor's own instruction where there is one, else eight bytes
 * at a time from tables that are made on first use
 */
#include "base/crc32c.h"

#include <pthread.h>
#include <string.h>

static uint32_t table[8][256];
static uint32_t (*update)(uint32_t crc, const unsigned char *p, size_t n);
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint32_t update_by_table(uint32_t crc, const unsigned char *p, size_t n)
{
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t lo, hi;
        memcpy(&lo, p, 4);
        memcpy(&hi, p + 4, 4);
        lo ^= crc;
        crc = table[7][lo & 255] ^ table[6][lo >> 8 & 255] ^ table[5][lo >> 16 & 255] ^
              table[4][lo >> 24] ^ table[3][hi & 255] ^ table[2][hi >> 8 & 255] ^
              table[1][hi >> 16 & 255] ^ table[0][hi >> 24];
    }
    for (; n; n--, p++)
        crc = crc >> 8 ^ table[0][(crc ^ *p) & 255];
    return crc;
}

#ifdef __x86_64__
/* The instruction has its answer three cycles later and takes a new one in each: three stretches of
 * STRETCH bytes are computed side by side, then joined. lane[i][b] is what byte i of a checksum, of
 * value b, becomes by STRETCH bytes of zeros behind it. */
enum { STRETCH = 1024 };
static uint32_t lane[4][256];

__attribute__((target("sse4.2")))
static uint64_t words(uint64_t c, const unsigned char *p, size_t n)
{
    for (; n; n -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        c = __builtin_ia32_crc32di(c, word);
    }
    return c;
}

static uint64_t shifted(uint64_t c)
{
    return lane[0][c & 255] ^ lane[1][c >> 8 & 255] ^ lane[2][c >> 16 & 255] ^ lane[3][c >> 24 & 255];
}

__attribute__((target("sse4.2")))
static uint32_t update_by_instruction(uint32_t crc, const unsigned char *p, size_t n)
{
    uint64_t c = crc;

    for (; n >= 3 * STRETCH; n -= 3 * STRETCH, p += 3 * STRETCH) {
        uint64_t d = 0, e = 0;
        for (size_t i = 0; i < STRETCH; i += 8) {
            uint64_t x, y, z;
            memcpy(&x, p + i, 8);
            memcpy(&y, p + STRETCH + i, 8);
            memcpy(&z, p + 2 * STRETCH + i, 8);
            c = __builtin_ia32_crc32di(c, x);
            d = __builtin_ia32_crc32di(d, y);
            e = __builtin_ia32_crc32di(e, z);
        }
        c = shifted(shifted(c) ^ d) ^ e;
    }
    c = words(c, p, n & ~(size_t)7);
    p += n & ~(size_t)7;
    for (n &= 7; n; n--, p++)
        c = __builtin_ia32_crc32qi((uint32_t)c, *p);
    return (uint32_t)c;
}

static void make_lanes(void)
{
    static const unsigned char zeros[STRETCH];

    /* Of one bit by the instruction, of more by adding those up. */
    for (int i = 0; i < 4; i++)
        for (uint32_t b = 1; b < 256; b++)
            lane[i][b] = b & (b - 1) ? lane[i][b & (b - 1)] ^ lane[i][b & -b]
                                     : (uint32_t)words(b << 8 * i, zeros, STRETCH);
}
#endif

static void make_tables(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
        table[0][i] = crc;
    }
    for (int t = 1; t < 8; t++)
        for (int i = 0; i < 256; i++)
            table[t][i] = table[t - 1][i] >> 8 ^ table[0][table[t - 1][i] & 255];
}

static void choose(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("sse4.2")) {
        make_lanes();
        update = update_by_instruction;
        return;
    }
#endif
    make_tables();
    update = update_by_table;
}

uint32_t crc32c_add(uint32_t crc, const void *data, size_t n)
{
    pthread_once(&once, choose);
    return ~update(~crc, data, n);
}

uint32_t crc32c(const void *data, size_t n)
{
    return crc32c_add(0, data, n);
}

uint32_t crc32c_by_table(const void *data, size_t n)
{
    static pthread_once_t made = PTHREAD_ONCE_INIT;

    pthread_once(&once, choose);
    pthread_once(&made, make_tables);
    return ~update_by_table(~0u, data, n);
}
