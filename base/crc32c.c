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
__attribute__((target("sse4.2")))
static uint32_t update_by_instruction(uint32_t crc, const unsigned char *p, size_t n)
{
    uint64_t c = crc;

    for (; n >= 8; n -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        c = __builtin_ia32_crc32di(c, word);
    }
    for (; n; n--, p++)
        c = __builtin_ia32_crc32qi((uint32_t)c, *p);
    return (uint32_t)c;
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
