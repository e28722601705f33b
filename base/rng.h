/* base/rng.h - random numbers that are a pure function of (key, counter)
 *
 * Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): no state, so
 * any thread can ask for number i of a stream and gets the same one on any machine. A stream is
 * (seed, stream): the seed of the run, and what it is used for; two uses never share a stream:
 *
 *     sample order of an epoch   stream = RNG_ORDER + epoch
 *     split into train and test  stream = RNG_SPLIT
 *     first weights of a tensor  stream = RNG_INIT + index of the tensor
 *     drop-out of a layer        stream = RNG_DROPOUT + (index of the layer << 40) + step; i says place
 */
#ifndef MUSTER_BASE_RNG_H
#define MUSTER_BASE_RNG_H

#include <stdint.h>

/* Uses, far enough apart for any index to be added. */
#define RNG_ORDER   (UINT64_C(1) << 56)
#define RNG_SPLIT   (UINT64_C(2) << 56)
#define RNG_INIT    (UINT64_C(3) << 56)
#define RNG_DROPOUT (UINT64_C(4) << 56)

/* Block i of (seed, stream): four words. The counter's halves are i and the stream. */
static inline void rng_philox(uint64_t seed, uint64_t stream, uint64_t i, uint32_t out[4])
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)i, c1 = (uint32_t)(i >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);

    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Word i of (seed, stream): word i % 4 of block i / 4. */
static inline uint32_t rng_word(uint64_t seed, uint64_t stream, uint64_t i)
{
    uint32_t block[4];
    rng_philox(seed, stream, i >> 2, block);
    return block[i & 3];
}

/* The upper 24 bits, exact in a float: in [0, 1). */
static inline float rng_unit(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

static inline float rng_uniform(uint64_t seed, uint64_t stream, uint64_t i)
{
    return rng_unit(rng_word(seed, stream, i));
}

/* Fills p with 0..n-1 in an order that (n, seed, stream) alone decide. */
void rng_permute(uint32_t *p, uint32_t n, uint64_t seed, uint64_t stream);

#endif
