/* engine/safetensors.c - named tensors in a file */
#include "engine/safetensors.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "base/sha256.h"

/* A header of a million tensors is some 100 MB; ours has dozens. */
enum { HEADER_MAX = 64 << 20 };
static const size_t FILE_MAX_BYTES = (size_t)16 << 30;

static const char values_note[] = "values_sha256";

struct safetensors {
    char *bytes;
    json_t *header;
    struct saved_tensor *tensor;
    int n;
};

static uint64_t read_le64(const unsigned char *p)
{
    uint64_t v = 0;

    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

/* Reads the shape and checks that it fills `bytes`. */
static int read_shape(const json_t *shape, size_t bytes, struct saved_tensor *t)
{
    size_t nd = json_array_size(shape);
    uint64_t count = 1;

    if (!json_is_array(shape) || nd > TENSOR_DIMS)
        return -1;
    for (size_t i = 0; i < nd; i++) {
        json_int_t d = json_integer_value(json_array_get(shape, i));
        if (!json_is_integer(json_array_get(shape, i)) || d < 0 || d > LONG_MAX / 8 ||
            (d > 0 && count > (uint64_t)LONG_MAX / 8 / (uint64_t)d))
            return -1;
        count *= (uint64_t)d;
        t->dim[i] = (long)d;
    }
    t->nd = (int)nd;
    t->count = (long)count;
    return count * 4 == bytes ? 0 : -1;
}

static int read_entry(const char *name, const json_t *entry, const char *data, size_t size,
                      const char *file, struct saved_tensor *t, struct err *err)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *offsets = json_object_get(entry, "data_offsets");
    json_int_t from = json_integer_value(json_array_get(offsets, 0));
    json_int_t to = json_integer_value(json_array_get(offsets, 1));

    if (!dtype || json_array_size(offsets) != 2 || from < 0 || to < from || (uint64_t)to > size ||
        from % 4)
        return err_set(err, ERR_INVALID, "%s: tensor \"%.60s\" lies outside the file (it is cut off "
                       "or damaged)", file, name);
    if (strcmp(dtype, "F32") != 0)
        return err_set(err, ERR_INVALID, "%s: tensor \"%.60s\" is %.10s, not F32 (convert it to "
                       "float32 first)", file, name, dtype);
    *t = (struct saved_tensor){ .name = name, .data = (const float *)(const void *)(data + from) };
    if (read_shape(json_object_get(entry, "shape"), (size_t)(to - from), t) < 0)
        return err_set(err, ERR_INVALID, "%s: the shape of tensor \"%.60s\" does not fit its %lld "
                       "bytes", file, name, (long long)(to - from));
    return 0;
}

/* A file that says what its values are must have those. */
static int check_values(const struct safetensors *s, const char *values, size_t n, const char *file,
                        struct err *err)
{
    const char *said = safetensors_note(s, values_note);
    char hex[SHA256_HEX];

    if (!said)
        return 0;
    sha256_hex_of(values, n, hex);
    if (strcmp(said, hex) != 0)
        return err_set(err, ERR_INVALID, "%s: its values are not those that were written (sha256 "
                       "%.16s..., it says %.16s...): it is damaged", file, hex, said);
    return 0;
}

static int read_header(struct safetensors *s, size_t n, const char *file, struct err *err)
{
    json_error_t why;
    uint64_t head = n >= 8 ? read_le64((unsigned char *)s->bytes) : 0;

    if (n < 8 || head > n - 8 || head > HEADER_MAX)
        return err_set(err, ERR_INVALID, "%s: not a safetensors file (%zu bytes%s)", file, n,
                       n < 8 ? "" : ", header longer than the file");
    s->header = json_loadb(s->bytes + 8, (size_t)head, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(s->header))
        return err_set(err, ERR_INVALID, "%s: not a safetensors file (header: %s)", file,
                       s->header ? "no object" : why.text);
    s->tensor = calloc(json_object_size(s->header) + 1, sizeof *s->tensor);
    if (!s->tensor)
        return err_set(err, ERR_NOMEM, "no memory for the header of %s", file);

    const char *name;
    json_t *entry;
    /* Values start on a multiple of 8 bytes in every file that we write; a header of another
     * length would leave floats unaligned, so move them down to where they are aligned. */
    size_t start = 8 + (size_t)head;
    if (start % 4) {
        memmove(s->bytes + start - start % 4, s->bytes + start, n - start);
        start -= start % 4;
        n -= (8 + (size_t)head) % 4;
    }
    json_object_foreach(s->header, name, entry) {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        if (read_entry(name, entry, s->bytes + start, n - start, file, &s->tensor[s->n], err) < 0)
            return -(int)err->code;
        s->n++;
    }
    return check_values(s, s->bytes + start, n - start, file, err);
}

/* Takes over `bytes`. */
static int parse_owned(char *bytes, size_t n, const char *file, struct safetensors **out,
                       struct err *err)
{
    OWN(safetensors) s = calloc(1, sizeof *s);

    if (!s) {
        free(bytes);
        return err_set(err, ERR_NOMEM, "no memory to read %s", file);
    }
    s->bytes = bytes;
    if (read_header(s, n, file, err) < 0)
        return -(int)err->code;
    *out = TAKE(s);
    return 0;
}

int safetensors_open(const char *path, struct safetensors **out, struct err *err)
{
    char *bytes;
    size_t n;

    if (files_read(path, FILE_MAX_BYTES, &bytes, &n, err) < 0)
        return -(int)err->code;
    return parse_owned(bytes, n, path, out, err);
}

int safetensors_parse(const void *bytes, size_t n, const char *name, struct safetensors **out,
                      struct err *err)
{
    char *copy = malloc(n + 1);

    if (!copy)
        return err_set(err, ERR_NOMEM, "no memory to read %s", name);
    memcpy(copy, bytes, n);
    return parse_owned(copy, n, name, out, err);
}

void safetensors_free(struct safetensors *s)
{
    if (!s)
        return;
    json_decref(s->header);
    free(s->tensor);
    free(s->bytes);
    free(s);
}

int safetensors_count(const struct safetensors *s)
{
    return s->n;
}

const struct saved_tensor *safetensors_at(const struct safetensors *s, int i)
{
    return &s->tensor[i];
}

const struct saved_tensor *safetensors_find(const struct safetensors *s, const char *name)
{
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->tensor[i].name, name) == 0)
            return &s->tensor[i];
    return NULL;
}

const char *safetensors_note(const struct safetensors *s, const char *key)
{
    return json_string_value(json_object_get(json_object_get(s->header, "__metadata__"), key));
}

/* ------------------------------------------------------------------ writing */

/* Of all values, in the order in which they are written. */
static int digest_values(const struct tensor_source *src, int n, char out[SHA256_HEX])
{
    struct sha256 sum;

    sha256_start(&sum);
    for (int i = 0; i < n; i++) {
        OWN_MEM float *values = malloc((size_t)src[i].count * sizeof *values + 1);
        if (!values)
            return -1;
        src[i].fill(src[i].of, values);
        sha256_add(&sum, values, (size_t)src[i].count * sizeof *values);
    }
    sha256_finish_hex(&sum, out);
    return 0;
}

/* Only a file with notes, a checkpoint, says what its values are: it is read after accidents. */
static json_t *make_header(const struct tensor_source *src, int n, const json_t *notes)
{
    json_t *header = json_object();
    json_int_t at = 0;
    char hex[SHA256_HEX];

    if (notes && digest_values(src, n, hex) == 0) {
        json_t *all = json_deep_copy(notes);
        json_object_set_new(all, values_note, json_string(hex));
        json_object_set_new(header, "__metadata__", all);
    }
    for (int i = 0; i < n; i++) {
        json_t *shape = json_array();
        for (int d = 0; d < src[i].nd; d++)
            json_array_append_new(shape, json_integer(src[i].dim[d]));
        json_int_t end = at + (json_int_t)src[i].count * 4;
        json_object_set_new(header, src[i].name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", "F32", "shape", shape,
                                      "data_offsets", at, end));
        at = end;
    }
    return header;
}

static int write_values(struct file_writer *w, const struct tensor_source *src, int n,
                        struct err *err)
{
    for (int i = 0; i < n; i++) {
        OWN_MEM float *values = malloc((size_t)src[i].count * sizeof *values + 1);
        if (!values)
            return err_set(err, ERR_NOMEM, "no memory to write %s", src[i].name);
        src[i].fill(src[i].of, values);
        if (file_writer_write(w, values, (size_t)src[i].count * sizeof *values, err) < 0)
            return -(int)err->code;
    }
    return 0;
}

int safetensors_put(struct file_writer *to, const struct tensor_source *src, int n,
                    const json_t *notes, struct err *err)
{
    OWN_JSON json_t *header = make_header(src, n, notes);
    OWN_MEM char *text = json_dumps(header, JSON_COMPACT);

    if (!text)
        return err_set(err, ERR_NOMEM, "no memory to write %d tensors", n);
    size_t length = strlen(text), padded = (length + 7) / 8 * 8;
    unsigned char head[8];
    for (int i = 0; i < 8; i++)
        head[i] = (unsigned char)(padded >> 8 * i);
    if (file_writer_write(to, head, 8, err) < 0 || file_writer_write(to, text, length, err) < 0 ||
        file_writer_write(to, "        ", padded - length, err) < 0)
        return -(int)err->code;
    return write_values(to, src, n, err);
}

int safetensors_write(const char *path, const struct tensor_source *src, int n, const json_t *notes,
                      struct err *err)
{
    OWN(file_writer) w = NULL;

    if (file_writer_open(path, &w, err) < 0)
        return -(int)err->code;
    if (safetensors_put(w, src, n, notes, err) < 0)
        return err->code == ERR_NOMEM ? err_add(err, "%s", path) : -(int)err->code;
    return file_writer_commit(w, err);
}
