/* tests/unit/rng_test.c - Philox4x32-10 against its authors' vectors, and what is built on it */
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"

/* kat_vectors of Random123 1.14: counter, key, answer. */
static void the_authors_vectors_come_out(void **state)
{
    (void)state;
    static const struct {
        uint32_t c[4], k[2], want[4];
    } rows[] = {
        { { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { { ~0u, ~0u, ~0u, ~0u }, { ~0u, ~0u },
          { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 }, { 0xa4093822, 0x299f31d0 },
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const uint32_t *c = rows[i].c, *k = rows[i].k;
        uint32_t got[4];
        rng_philox((uint64_t)k[1] << 32 | k[0], (uint64_t)c[3] << 32 | c[2],
                   (uint64_t)c[1] << 32 | c[0], got);
        assert_memory_equal(got, rows[i].want, sizeof got);
    }
}

static void a_word_is_the_same_alone_or_in_its_block(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 40; i++) {
        uint32_t block[4];
        rng_philox(5, 6, i / 4, block);
        assert_int_equal(rng_word(5, 6, i), block[i % 4]);
    }
    assert_int_not_equal(rng_word(5, 6, 0), rng_word(5, 7, 0));
    assert_int_not_equal(rng_word(5, 6, 0), rng_word(UINT64_C(5) << 32 | 5, 6, 0));
}

static void floats_fill_zero_to_one_evenly(void **state)
{
    (void)state;
    assert_true(rng_unit(0) == 0.0f);
    assert_true(rng_unit(UINT32_MAX) < 1.0f);
    double sum = 0, squares = 0;
    enum { N = 100000 };
    for (int i = 0; i < N; i++) {
        double u = rng_uniform(1, 2, (uint64_t)i);
        sum += u;
        squares += u * u;
    }
    assert_true(fabs(sum / N - 0.5) < 0.005);
    assert_true(fabs(squares / N - 1.0 / 3) < 0.005);
}

static void a_permutation_holds_each_number_once(void **state)
{
    (void)state;
    static const uint32_t sizes[] = { 0, 1, 2, 3, 255, 256, 257, 10007 };
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        uint32_t n = sizes[s], *p = malloc((n + 1) * sizeof *p);
        char *seen = calloc(n + 1, 1);
        p[n] = 77;
        rng_permute(p, n, 9, s);
        for (uint32_t i = 0; i < n; i++) {
            assert_true(p[i] < n);
            assert_int_equal(seen[p[i]]++, 0);
        }
        assert_int_equal(p[n], 77);
        free(seen);
        free(p);
    }
}

/* Committed, so that a change of the order, which is a change of every trained model, is seen. */
static void the_order_of_a_seed_is_fixed(void **state)
{
    (void)state;
    static const uint32_t want[10] = { 0, 7, 5, 6, 1, 8, 3, 9, 4, 2 };
    uint32_t p[10];
    rng_permute(p, 10, 1, RNG_ORDER);
    assert_memory_equal(p, want, sizeof p);
    rng_permute(p, 10, 1, RNG_ORDER + 1);
    assert_memory_not_equal(p, want, sizeof p);
}

static void every_place_is_equally_likely(void **state)
{
    (void)state;
    enum { N = 5, ROUNDS = 20000 };
    int count[N][N] = { 0 };
    for (uint64_t s = 0; s < ROUNDS; s++) {
        uint32_t p[N];
        rng_permute(p, N, 3, s);
        for (int i = 0; i < N; i++)
            count[i][p[i]]++;
    }
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            assert_in_range(count[i][j], ROUNDS / N - 300, ROUNDS / N + 300);     /* 5 sigma */
}

CHECK_MAIN(the_authors_vectors_come_out, a_word_is_the_same_alone_or_in_its_block,
           floats_fill_zero_to_one_evenly, a_permutation_holds_each_number_once,
           the_order_of_a_seed_is_fixed, every_place_is_equally_likely)
