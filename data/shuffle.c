/* data/shuffle.c - orders and splits from the counter-based generator */
#include "data/shuffle.h"

#include "base/rng.h"

void shuffle_block(uint32_t *out, uint32_t n, uint64_t seed, int epoch, long block)
{
    /* Epochs stay below 2^24, so that no two (epoch, block) share a stream. */
    rng_permute(out, n, seed, RNG_ORDER + ((uint64_t)block << 24) + (uint64_t)epoch);
}

void shuffle_epoch(uint32_t *out, uint32_t n, long rows, uint64_t seed, int epoch)
{
    if (rows == SHUFFLE_NONE) {
        for (uint32_t i = 0; i < n; i++)
            out[i] = i;
        return;
    }
    uint32_t size = rows == SHUFFLE_ALL || rows > (long)n ? n : (uint32_t)rows;
    for (uint32_t start = 0, block = 0; start < n; start += size, block++) {
        uint32_t len = n - start < size ? n - start : size;
        shuffle_block(out + start, len, seed, epoch, block);
        for (uint32_t i = 0; i < len; i++)
            out[start + i] += start;
    }
}

long split_cut(const struct split *s)
{
    /* 506 rows less a fifth are 404; the addend is for products such as 10 * (1 - 0.9), which
     * should be 1 and is a little less. */
    return (long)((double)s->total * (1 - s->test) + 1e-6);
}

int split_of(const struct split *s, long row)
{
    if (row < s->first || (s->end >= 0 && row >= s->end))
        return SPLIT_NEITHER;
    if (s->test <= 0)
        return SPLIT_TRAIN;
    if (s->random)
        return rng_uniform(s->seed, RNG_SPLIT, (uint64_t)row) < s->test ? SPLIT_TEST : SPLIT_TRAIN;
    return row - s->first < split_cut(s) ? SPLIT_TRAIN : SPLIT_TEST;
}
