/* data/shuffle.h - which rows are whose, and in which order they come
 *
 * Both are pure functions of the seed, the epoch and the row's number, so they are the same on any
 * machine, for a resident set and for a stream, and after a resume.
 */
#ifndef MUSTER_DATA_SHUFFLE_H
#define MUSTER_DATA_SHUFFLE_H

#include <stdint.h>

/* The order of one block of n positions: 0..n-1, permuted. A shuffle of the whole epoch is that of
 * block 0 with all its rows. */
void shuffle_block(uint32_t *out, uint32_t n, uint64_t seed, int epoch, long block);

/* The order of an epoch of n rows: blocks of `rows` each (the last may be shorter); 0: unchanged,
 * SHUFFLE_ALL: one block. */
enum { SHUFFLE_NONE = 0, SHUFFLE_ALL = -1 };
void shuffle_epoch(uint32_t *out, uint32_t n, long rows, uint64_t seed, int epoch);

/* Rows of a file by number, from 0, bad ones counted. */
struct split {
    long first, end;            /* `rows:`; end -1: to the last */
    double test;                /* share of the test part; 0: no split */
    int random;                 /* by seed and row; else the last ones are the test part */
    long total;                 /* rows in first..end; needed by a split that is not random */
    uint64_t seed;
};

enum { SPLIT_NEITHER, SPLIT_TRAIN, SPLIT_TEST };

/* Without a split every row in range is SPLIT_TRAIN: the file's own part. */
int split_of(const struct split *s, long row);

/* Rows 0..split_cut-1 of `total` are the training part: all but the test share, rounded down. */
long split_cut(const struct split *s);

#endif
