/* tests/unit/conv_bn_test.c - chains of convolution, batch norm and relu */
#include "tests/check.h"
#include "tests/unit/chain.h"

#define CONV(args) "{\"conv2d\": {" args "}}, {\"batchnorm\": {}}, {\"relu\": {}}, "
#define END "{\"flatten\": {}}, {\"linear\": {\"out\": 4}}]"
#define POOL "{\"maxpool\": {\"kernel\": 2}}, "
#define ADAM "{\"adam\": {\"lr\": 0.01}}"

/* The shapes of the five systems' ConvBlock, then what tiles, panels and borders get wrong. */
static const struct chain chains[] = {
    { "[" CONV("\"out\": 16, \"kernel\": 3, \"stride\": 2, \"padding\": 1")
      CONV("\"out\": 32, \"kernel\": 3, \"padding\": 1")
      CONV("\"out\": 64, \"kernel\": 1") POOL END,
      "conv-bn-relu", 12, 12, 1, 4, 16, 8, 41, NULL },
    /* Winograd with odd sizes, channels that are no multiple of 16, three panels, no bias */
    { "[" CONV("\"out\": 20, \"kernel\": 3")
      CONV("\"out\": 72, \"kernel\": 3, \"padding\": 1, \"bias\": false")
      CONV("\"out\": 17, \"kernel\": 3, \"padding\": 2") END,
      "conv-bn-relu", 9, 8, 3, 4, 8, 4, 19, ADAM },
    /* kernels of unlike sides, strides that leave pixels out, a pool of odd sizes */
    { "[" CONV("\"out\": 5, \"kernel\": [5, 2], \"padding\": [2, 0]")
      CONV("\"out\": 24, \"kernel\": [2, 3], \"stride\": [3, 2], \"padding\": [0, 1]")
      CONV("\"out\": 9, \"kernel\": 2, \"stride\": 1") POOL END,
      "conv-bn-relu", 21, 18, 2, 4, 10, 2, 23, NULL },
    /* 1x1 with a stride: dx of most pixels is 0; few channels at both ends */
    { "[" CONV("\"out\": 6, \"kernel\": 1") CONV("\"out\": 34, \"kernel\": 1, \"stride\": 2")
      CONV("\"out\": 3, \"kernel\": 1") END,
      "conv-bn-relu", 7, 9, 4, 4, 9, 1, 13, NULL },
    /* starts from a tensor that needs a gradient: 8 floats a pixel, then 32 */
    { "[{\"conv2d\": {\"out\": 6, \"kernel\": 3}}, {\"tanh\": {}}, "
      CONV("\"out\": 20, \"kernel\": 3, \"padding\": 1") POOL END,
      "conv-bn-relu", 10, 9, 1, 4, 8, 8, 13, NULL },
    { "[{\"conv2d\": {\"out\": 20, \"kernel\": 3}}, {\"tanh\": {}}, "
      CONV("\"out\": 16, \"kernel\": 3, \"padding\": 1") END,
      "conv-bn-relu", 8, 8, 1, 4, 8, 8, 11, NULL },
};

CHAIN_TESTS(chains)

CHECK_MAIN(agrees_with_its_twin_in_double_precision, gives_the_same_bits_everywhere)
