/* tests/unit/dense_small_test.c - chains of linear and relu at batches below 16 */
#include "tests/check.h"
#include "tests/unit/chain.h"

#define FC(n) "{\"linear\": {\"out\": " #n "}}"
#define RELU ", {\"relu\": {}}, "
#define FLAT "[{\"flatten\": {}}, "
#define CONV(out, k) \
    "[{\"conv2d\": {\"out\": " #out ", \"kernel\": " #k "}}, {\"tanh\": {}}, {\"flatten\": {}}, "

static const struct chain chains[] = {
    /* LeNet's three: outputs cut, inputs cut, replicated; a gradient goes on into the input */
    { CONV(16, 2) FC(120) RELU FC(84) RELU FC(10) "]", "dense_small", 5, 5, 1, 10, 4, 4, 22, NULL },
    /* four parts and an odd number of outputs; inputs that are no multiple of 16; two pairs */
    { CONV(6, 2) FC(131) RELU FC(65) RELU FC(70) "," FC(66) RELU FC(7) "]", "dense_small", 6, 4, 1,
      7, 8, 8, 30, NULL },
    /* a last layer that is cut, more than one sample a shard */
    { CONV(3, 2) FC(67) RELU FC(9) RELU FC(600) "]", "dense_small", 4, 4, 2, 600, 6, 2, 16, NULL },
    /* small layers only, no bias, relu at the end, fewer samples than shards in the last batch */
    { CONV(1, 2) "{\"linear\": {\"out\": 12, \"bias\": false}}" RELU FC(5) ", {\"relu\": {}}]",
      "dense_small", 4, 5, 1, 5, 8, 8, 19, "{\"adam\": {\"lr\": 0.01}}" },
    /* nobody wants the input's gradient; one shard, then one sample; two; fifteen */
    { FLAT FC(100) RELU FC(3) "]", "dense_small", 7, 9, 1, 3, 3, 1, 10, NULL },
    { FLAT FC(100) RELU FC(1) "," FC(3) "]", "dense_small", 7, 7, 3, 3, 2, 2, 9, NULL },
    { FLAT FC(520) RELU FC(3) "]", "dense_small", 7, 9, 1, 3, 15, 8, 33,
      "{\"sgd\": {\"lr\": 0.1, \"momentum\": 0.9, \"nesterov\": true, \"weight_decay\": 0.01}}" },
};

CHAIN_TESTS(chains)

CHECK_MAIN(agrees_with_its_twin_in_double_precision, gives_the_same_bits_everywhere)
