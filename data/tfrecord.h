/* data/tfrecord.h - TFRecord files of tf.example messages
 *
 * A record is its length (8 bytes, little-endian), the masked CRC-32C of those, the bytes, and
 * their masked CRC-32C; both sums are checked. The bytes are a tf.train.Example in protobuf's wire
 * format:
 *
 *     Example  { Features features = 1; }
 *     Features { map<string, Feature> feature = 1; }
 *     Feature  { BytesList 1 | FloatList 2 | Int64List 3 }, each with `repeated value = 1`
 *
 * The decoder is a loop over bytes that never reads past the record and nests three deep.
 *
 * Threads: any; nothing is kept.
 */
#ifndef MUSTER_DATA_TFRECORD_H
#define MUSTER_DATA_TFRECORD_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

enum { TFRECORD_MAX = 256 << 20 };      /* bytes of one record */

/* Frames `data` as a record at the end of `out`. */
void tfrecord_append(struct buf *out, const void *data, size_t n);

enum example_kind { EXAMPLE_BYTES = 1, EXAMPLE_FLOAT = 2, EXAMPLE_INT64 = 3 };

/* A feature of an example. `list` is the wire form of its values. */
struct example_feature {
    enum example_kind kind;
    const char *name;
    size_t name_n;
    const uint8_t *list;
    size_t list_n;
};

/* Calls `feature` for each feature that has a list. ERR_INVALID: not a tf.example. */
int example_read(const uint8_t *data, size_t n,
                 int (*feature)(void *ctx, const struct example_feature *f, struct err *err),
                 void *ctx, struct err *err);

/* The values of a feature: numbers (floats and integers), or texts (bytes). Returns how many there
 * are, of which the first `most` are stored; -1 when the bytes are damaged. */
long example_numbers(const struct example_feature *f, double *out, long most);
struct csv_text;
long example_texts(const struct example_feature *f, struct csv_text *out, long most);

#endif
