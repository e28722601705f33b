/* tests/unit/chain.h - two questions to a fast stage: is it right, is it the same everywhere?
 *
 * A chain is a sequential model over a small U8 image with random weights, images and labels.
 */
#ifndef MUSTER_TESTS_CHAIN_H
#define MUSTER_TESTS_CHAIN_H

struct chain {
    const char *model;          /* JSON */
    const char *stage;          /* one that has to run it, or the test tests nothing */
    int h, w, c;                /* of the image */
    int classes;
    int batch, shards;
    int rows;                   /* not a multiple of batch: the last batch is short */
    const char *optimizer;      /* JSON; NULL: SGD with momentum */
};

/* Loss, gradients, running statistics and the output of a test agree with the double-precision
 * twin, for a whole batch and for a short one; a plan for inference alone gives the same output. */
void chain_is_right(const struct chain *c);
/* Weights and state after an epoch have the same bits on every instruction set and with 1, 2, 3, 4
 * and 8 threads, with the update fused or apart. */
void chain_is_same(const struct chain *c);
/* A sample alone on one thread has the outputs that it has in a batch, to the bit, on every
 * instruction set. Not for batches of 16 and more: those add up in another order. */
void chain_is_same_alone(const struct chain *c);

/* The two tests that every table of chains has. */
#define CHAIN_TESTS(chains)                                                             \
    static void agrees_with_its_twin_in_double_precision(void **state)                  \
    {                                                                                   \
        (void)state;                                                                    \
        for (size_t i = 0; i < sizeof chains / sizeof chains[0]; i++)                   \
            chain_is_right(&chains[i]);                                                 \
    }                                                                                   \
    static void gives_the_same_bits_everywhere(void **state)                            \
    {                                                                                   \
        (void)state;                                                                    \
        for (size_t i = 0; i < sizeof chains / sizeof chains[0]; i++)                   \
            chain_is_same(&chains[i]);                                                  \
    }

#endif
