/* data/blocks.c - what the blocks of a file must be, so that each can be checked by itself */
#include "data/blocks.h"

#include <stdlib.h>
#include <string.h>

enum { PACKED_HEAD = 8 + 4 + 4 + SHA256_BYTES };

static void sum_of(const void *bytes, size_t n, uint8_t out[SHA256_BYTES])
{
    struct sha256 sha;

    sha256_start(&sha);
    sha256_add(&sha, bytes, n);
    sha256_finish(&sha, out);
}

/* Counts the blocks; false: such a file cannot be. */
static int lay_out(struct blocks *b)
{
    if (b->row < 1 || b->row > INT32_MAX || b->head > b->size || b->size - b->head > INT32_MAX ||
        (b->size - b->head) % b->row)
        return 0;
    const long rows = (long)((b->size - b->head) / b->row);
    b->rows_in_block = (BLOCKS_BYTES + b->row - 1) / b->row;
    b->n = (rows + b->rows_in_block - 1) / b->rows_in_block;
    return 1;
}

static int make(const struct blocks *like, struct blocks **out, struct err *err)
{
    OWN(blocks) b = calloc(1, sizeof *b);

    if (b) {
        *b = *like;
        b->sum = calloc((size_t)b->n + 1, sizeof *b->sum);
    }
    if (!b || !b->sum)
        return err_set(err, ERR_NOMEM, "no memory for the list of %ld blocks", like->n);
    *out = TAKE(b);
    return 0;
}

int blocks_of(const void *file, uint64_t size, uint32_t head, uint32_t row, const uint8_t *labels,
              struct blocks **out, struct err *err)
{
    struct blocks like = { .size = size, .head = head, .row = row };

    if (!lay_out(&like))
        return err_set(err, ERR_INVALID, "rows of %u bytes do not fill a file of %llu", row,
                       (unsigned long long)size);
    OWN(blocks) b = NULL;
    if (make(&like, &b, err) < 0)
        return -(int)err->code;
    blocks_sum_labels(labels, labels ? (long)((size - head) / row) : 0, b->labels);
    sum_of(file, head, b->sum[0]);
    for (long i = 0; i < b->n; i++) {
        uint64_t at;
        size_t n = blocks_place(b, i, &at);
        sum_of((const char *)file + at, n, b->sum[i + 1]);
    }
    *out = TAKE(b);
    return 0;
}

void blocks_free(struct blocks *b)
{
    if (!b)
        return;
    free(b->sum);
    free(b);
}

size_t blocks_place(const struct blocks *b, long i, uint64_t *out_at)
{
    const uint64_t whole = (uint64_t)b->rows_in_block * b->row;

    *out_at = b->head + (uint64_t)i * whole;
    return (size_t)(b->size - *out_at < whole ? b->size - *out_at : whole);
}

int blocks_match(const struct blocks *b, long i, const void *bytes)
{
    uint8_t sum[SHA256_BYTES];
    uint64_t at;

    sum_of(bytes, i < 0 ? b->head : blocks_place(b, i, &at), sum);
    return memcmp(sum, b->sum[i + 1], sizeof sum) == 0;
}

void blocks_sum_labels(const uint8_t *labels, long n, uint8_t out[SHA256_BYTES])
{
    sum_of(n ? (const void *)labels : "", (size_t)n, out);
}

static void put_number(struct buf *out, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        buf_append(out, &(char){ (char)(v >> 8 * i) }, 1);
}

static uint64_t take_number(const uint8_t *p, int bytes)
{
    uint64_t v = 0;

    for (int i = 0; i < bytes; i++)
        v |= (uint64_t)p[i] << 8 * i;
    return v;
}

void blocks_pack(const struct blocks *b, struct buf *out)
{
    put_number(out, b->size, 8);
    put_number(out, b->head, 4);
    put_number(out, b->row, 4);
    buf_append(out, b->labels, sizeof b->labels);
    buf_append(out, b->sum, ((size_t)b->n + 1) * sizeof *b->sum);
}

int blocks_unpack(const void *bytes, size_t n, size_t *out_used, struct blocks **out,
                  struct err *err)
{
    const uint8_t *p = bytes;
    struct blocks like = { 0 };

    if (n < PACKED_HEAD)
        return err_set(err, ERR_INVALID, "a list of blocks that is cut off");
    like.size = take_number(p, 8);
    like.head = (uint32_t)take_number(p + 8, 4);
    like.row = (uint32_t)take_number(p + 12, 4);
    memcpy(like.labels, p + 16, sizeof like.labels);
    if (!lay_out(&like))
        return err_set(err, ERR_INVALID, "a damaged list of blocks");
    const size_t sums = ((size_t)like.n + 1) * sizeof *like.sum;
    if (n - PACKED_HEAD < sums)
        return err_set(err, ERR_INVALID, "a list of %ld blocks that is cut off", like.n);
    OWN(blocks) b = NULL;
    if (make(&like, &b, err) < 0)
        return -(int)err->code;
    memcpy(b->sum, p + PACKED_HEAD, sums);
    *out_used = PACKED_HEAD + sums;
    *out = TAKE(b);
    return 0;
}
