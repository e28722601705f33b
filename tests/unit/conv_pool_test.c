/* tests/unit/conv_pool_test.c - blocks of convolution, relu and maxpool 2 on an image */
#include "tests/check.h"
#include "tests/unit/chain.h"

#define BLOCK(out, k) \
    "{\"conv2d\": {\"out\": " #out ", \"kernel\": " #k \
    "}}, {\"relu\": {}}, {\"maxpool\": {\"kernel\": 2}}"
#define BARE(out, k)                                                                           \
    "{\"conv2d\": {\"out\": " #out ", \"kernel\": " #k ", \"bias\": false}}, {\"relu\": {}}, "     \
    "{\"maxpool\": {\"kernel\": 2}}"
#define FC(n) "{\"flatten\": {}}, {\"linear\": {\"out\": " #n "}}]"
#define ADAM "{\"adam\": {\"lr\": 0.002}}"

static const struct chain chains[] = {
    /* LeNet's two blocks; the last batch has one sample */
    { "[" BLOCK(6, 5) ", " BLOCK(16, 5) ", " FC(5), "conv_pool", 28, 28, 1, 5, 4, 4, 21, NULL },
    /* three colours, outputs of one group and a quarter, 3 x 3, more than one sample a shard */
    { "[" BLOCK(20, 3) ", " BLOCK(8, 3) ", " FC(4), "conv_pool", 18, 14, 3, 4, 6, 2, 15, ADAM },
    /* 32 channels both ways, three blocks, a plain gradient step */
    { "[" BLOCK(32, 3) ", " BLOCK(32, 3) ", " BLOCK(3, 1) ", " FC(3), "conv_pool", 22, 22, 1, 3, 8,
      8, 27, "{\"sgd\": {\"lr\": 0.02}}" },
    /* one channel out of each block, kernels that are cut by rows */
    { "[" BLOCK(1, 7) ", " BLOCK(1, 2) ", " FC(3), "conv_pool", 20, 24, 1, 3, 3, 2, 10, NULL },
    { "[" BLOCK(3, 4) ", " BLOCK(5, 6) ", " FC(3), "conv_pool", 27, 29, 2, 3, 5, 4, 12, NULL },
    { "[" BLOCK(17, 6) ", " BLOCK(33, 7) ", " FC(3), "conv_pool", 25, 25, 1, 3, 2, 2, 5, NULL },
    /* no bias, 1 x 1, a block alone, fewer samples than shards at the end */
    { "[" BARE(7, 1) ", " FC(2), "conv_pool", 12, 12, 1, 2, 8, 8, 19, NULL },
    /* wider than two vectors; a batch that no small dense stage takes */
    { "[" BLOCK(6, 5) ", " BARE(16, 3) ", " FC(4), "conv_pool", 16, 44, 1, 4, 17, 8, 40, NULL },
};

#define WIDE(n) "{\"flatten\": {}}, {\"linear\": {\"out\": " #n "}}, {\"relu\": {}}, "
#define LAST(n) "{\"linear\": {\"out\": " #n "}}]"

/* A dense layer behind them, whose sums are begun while the last block still runs. */
static const struct chain begun[] = {
    /* as in LeNet */
    { "[" BLOCK(6, 5) ", " BLOCK(16, 5) ", " WIDE(120) LAST(10), "dense_small", 28, 28, 1,
      10, 4, 4, 10, NULL },
    /* more outputs than a tile has input channels and taps; then a single tile */
    { "[" BLOCK(3, 3) ", " BLOCK(12, 1) ", " WIDE(131) LAST(4), "dense_small", 18, 18, 1, 4, 3, 1,
      5, NULL },
    { "[" BLOCK(3, 3) ", " BLOCK(12, 1) ", " FC(4), "dense_small", 6, 18, 1, 4, 3, 1, 5, NULL },
};

static void a_sample_alone_has_the_outputs_it_has_in_a_batch(void **state)
{
    (void)state;
    for (int i = 0; i < (int)(sizeof begun / sizeof begun[0]); i++)
        chain_is_same_alone(&begun[i]);
}

CHAIN_TESTS(chains)

CHECK_MAIN(agrees_with_its_twin_in_double_precision, gives_the_same_bits_everywhere,
           a_sample_alone_has_the_outputs_it_has_in_a_batch)
