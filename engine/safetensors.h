/* engine/safetensors.h - named tensors in a file
 *
 * The format: eight bytes of header length, a JSON header {name: {dtype, shape, data_offsets}},
 * then the values, little endian. A file from outside is checked before a value is read: lengths
 * against the file, offsets against each other, shapes against lengths, and the values against the
 * digest in a checkpoint's notes.
 */
#ifndef MUSTER_ENGINE_SAFETENSORS_H
#define MUSTER_ENGINE_SAFETENSORS_H

#include <jansson.h>
#include <stddef.h>

#include "base/err.h"
#include "base/files.h"
#include "base/own.h"

enum { TENSOR_DIMS = 8 };

struct safetensors;

/* A tensor of a file that is open; all borrowed until it is closed. */
struct saved_tensor {
    const char *name;
    int nd;
    long dim[TENSOR_DIMS];
    long count;
    const float *data;          /* aligned to 4 */
};

/* Float tensors only (F32); others are refused by name. */
int safetensors_open(const char *path, struct safetensors **out, struct err *err);
/* The same from memory, which is copied. `name` stands for the file in messages. */
int safetensors_parse(const void *bytes, size_t n, const char *name, struct safetensors **out,
                      struct err *err);
void safetensors_free(struct safetensors *s);
OWN_DEFINE(safetensors)

int safetensors_count(const struct safetensors *s);
const struct saved_tensor *safetensors_at(const struct safetensors *s, int i);
const struct saved_tensor *safetensors_find(const struct safetensors *s, const char *name);
/* The "__metadata__" text of a key; NULL: none. */
const char *safetensors_note(const struct safetensors *s, const char *key);

/* What to write: `fill` puts `count` floats in logical order. */
struct tensor_source {
    char name[96];
    int nd;
    long dim[TENSOR_DIMS];
    long count;
    void (*fill)(const void *of, float *out);
    const void *of;
};

/* The whole file into `to`; the caller commits. `notes` is an object of strings (NULL: none). */
int safetensors_put(struct file_writer *to, const struct tensor_source *src, int n,
                    const json_t *notes, struct err *err);

/* Replaces `path` whole. */
int safetensors_write(const char *path, const struct tensor_source *src, int n, const json_t *notes,
                      struct err *err);

#endif
