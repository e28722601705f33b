/* base/proto.h - writing protobuf messages
 *
 * Enough for the messages that we write: a nested message is written into a buffer of its own and
 * added as bytes. Fields may come in any order, as the format allows.
 */
#ifndef MUSTER_BASE_PROTO_H
#define MUSTER_BASE_PROTO_H

#include <stdint.h>

#include "base/buf.h"

void proto_int(struct buf *b, int field, int64_t value);
void proto_bytes(struct buf *b, int field, const void *data, size_t n);
void proto_text(struct buf *b, int field, const char *text);
void proto_float(struct buf *b, int field, float value);
void proto_double(struct buf *b, int field, double value);
/* The bare number, for packed lists. */
void proto_varint(struct buf *b, uint64_t value);
/* Adds `inner` as a field and empties it. */
void proto_message(struct buf *b, int field, struct buf *inner);

#endif
