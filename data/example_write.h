/* data/example_write.h - writes TFRecord files of tf.example messages
 *
 *     begin, add a feature, add a feature, ..., end: one record
 *
 * Features are written in the order they are added; numbers are packed, as TensorFlow does. Records
 * are appended to a buffer of the caller's, to be written wherever it likes.
 *
 * Threads: one writer, one thread.
 */
#ifndef MUSTER_DATA_EXAMPLE_WRITE_H
#define MUSTER_DATA_EXAMPLE_WRITE_H

#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

struct example_writer {
    struct buf features;        /* the map entries of the example in hand */
    struct buf entry, list;     /* scratch */
};

void example_writer_init(struct example_writer *w);
void example_writer_done(struct example_writer *w);

void example_begin(struct example_writer *w);
void example_add_floats(struct example_writer *w, const char *name, const float *v, size_t n);
void example_add_ints(struct example_writer *w, const char *name, const int64_t *v, size_t n);
void example_add_text(struct example_writer *w, const char *name, const char *text, size_t n);

/* Frames the example and appends the record to `out`. ERR_NOMEM when anything was dropped. */
int example_end(struct example_writer *w, struct buf *out, struct err *err);

#endif
