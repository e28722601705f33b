/* server/tfevents.h - reads TensorBoard's event files as they grow
 *
 * A file is a row of records: length, its checksum, an Event message, its checksum. The last
 * record may be half written: it is left for the next time. A wrong checksum ends the file for
 * good, since nothing says where the next record begins. Scalars are taken out of
 * `simple_value` and out of tensors with one number, which is how TensorFlow 2 writes them;
 * everything else is passed over.
 */
#ifndef MUSTER_SERVER_TFEVENTS_H
#define MUSTER_SERVER_TFEVENTS_H

#include <stddef.h>
#include <stdint.h>

struct tfevents_scalar {
    const char *tag;            /* not NUL-terminated; borrowed from the bytes */
    size_t tag_n;
    double time, value;
    int64_t step;
};

/* Calls `each` for every scalar of every whole record. Returns the bytes that were used up (a
 * record's end), or -1: the bytes from there on are no event file. */
int64_t tfevents_read(const uint8_t *bytes, size_t n,
                      void (*each)(void *arg, const struct tfevents_scalar *s), void *arg);

/* One Event message, without its frame. */
void tfevents_read_event(const uint8_t *bytes, size_t n,
                         void (*each)(void *arg, const struct tfevents_scalar *s), void *arg);

#endif
