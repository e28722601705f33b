/* base/rng.c - a permutation from random words that are a pure function of (key, counter) */
#include "base/rng.h"

enum { BATCH = 64 };    /* blocks at a time: enough to vectorise, and 1 KB of stack */

/* Words of a stream in order, made many at a time: philox has no dependence between blocks. */
struct words {
    uint64_t seed, stream, next;
    int at;
    uint32_t word[4 * BATCH];
};

static void refill(struct words *w)
{
    for (int i = 0; i < BATCH; i++)
        rng_philox(w->seed, w->stream, w->next + (uint64_t)i, w->word + 4 * i);
    w->next += BATCH;
    w->at = 0;
}

static inline uint32_t next_word(struct words *w)
{
    if (w->at == 4 * BATCH)
        refill(w);
    return w->word[w->at++];
}

/* Uniform in 0..n-1 without bias (Lemire 2019): a word that would favour low numbers is drawn
 * again, which for the sizes here happens once in thousands of permutations. */
static inline uint32_t below(struct words *w, uint32_t n)
{
    uint64_t m = (uint64_t)next_word(w) * n;
    if ((uint32_t)m < n) {
        uint32_t least = -n % n;
        while ((uint32_t)m < least)
            m = (uint64_t)next_word(w) * n;
    }
    return (uint32_t)(m >> 32);
}

void rng_permute(uint32_t *p, uint32_t n, uint64_t seed, uint64_t stream)
{
    struct words w = { .seed = seed, .stream = stream, .at = 4 * BATCH };

    /* Inside out: p[0..i] is a permutation of 0..i after each round. */
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = below(&w, i + 1);
        p[i] = i;
        p[i] = p[j];
        p[j] = i;
    }
}
