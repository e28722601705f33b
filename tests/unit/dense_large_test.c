/* tests/unit/dense_large_test.c - chains of linear and relu at large batches */
#include "tests/check.h"
#include "tests/unit/chain.h"

#define FC(n) "{\"linear\": {\"out\": " #n "}}"
#define RELU ", {\"relu\": {}}, "
#define FLAT "[{\"flatten\": {}}, "

static const struct chain chains[] = {
    /* flattened image: 6 channels in 8 floats, rows that are no multiple of 16 */
    { FLAT FC(40) RELU FC(19) "," FC(5) "]", "linear-large", 5, 3, 3, 5, 32, 8, 77, NULL },
    /* more inputs than a block, outputs of one panel and a half, relu at the end */
    { FLAT FC(48) RELU FC(8) ", {\"relu\": {}}]", "linear-large", 17, 16, 1, 8, 40, 4, 61,
      "{\"adamw\": {\"lr\": 0.01}}" },
    /* a gradient goes on into the input; one shard; rows of 1 KB */
    { "[{\"conv2d\": {\"out\": 16, \"kernel\": 2}}, {\"tanh\": {}}, {\"flatten\": {}}, " FC(33) RELU
      FC(3) "]", "linear-large", 5, 5, 1, 3, 48, 1, 50, NULL },
    { "[{\"conv2d\": {\"out\": 3, \"kernel\": 2}}, {\"tanh\": {}}, {\"flatten\": {}}, "
      "{\"linear\": {\"out\": 12, \"bias\": false}}]",
      "linear-large", 4, 4, 2, 12, 16, 8, 19, NULL },
    /* fewer samples than shards in the last batch */
    { FLAT FC(2) "]", "linear-large", 4, 4, 1, 2, 16, 8, 35, "{\"sgd\": {\"lr\": 0.1}}" },
};

CHAIN_TESTS(chains)

CHECK_MAIN(agrees_with_its_twin_in_double_precision, gives_the_same_bits_everywhere)
