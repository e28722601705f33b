#include "engine/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files.h"
#include "tests/check.h"

static void fill_count(const void *of, float *out)
{
    const struct tensor_source *src = of;
    for (long i = 0; i < src->count; i++)
        out[i] = (float)i + 0.5f;
}

/* A file with the given header text, and `values` floats behind it. */
static size_t make_file(char *out, const char *header, int values)
{
    uint64_t n = strlen(header);

    memcpy(out, &n, 8);
    memcpy(out + 8, header, n);
    for (int i = 0; i < values; i++) {
        float v = (float)i;
        memcpy(out + 8 + n + 4 * (size_t)i, &v, 4);
    }
    return 8 + n + 4 * (size_t)values;
}

static int parse(const char *header, int values, struct safetensors **out, struct err *err)
{
    char file[4096];
    size_t n = make_file(file, header, values);
    return safetensors_parse(file, n, "t.safetensors", out, err);
}

static void what_is_written_reads_back(void **state)
{
    (void)state;
    struct err err = { 0 };
    char path[] = "/tmp/safetensors-test-XXXXXX";
    struct tensor_source src[2] = {
        { .name = "a.weight", .nd = 2, .dim = { 3, 5 }, .count = 15, .fill = fill_count },
        { .name = "a.bias", .nd = 1, .dim = { 3 }, .count = 3, .fill = fill_count },
    };
    json_t *notes = json_pack("{s:s}", "step", "12");
    OWN(safetensors) s = NULL;

    close(mkstemp(path));
    src[0].of = &src[0];
    src[1].of = &src[1];
    assert_ok(safetensors_write(path, src, 2, notes, &err));
    assert_ok(safetensors_open(path, &s, &err));
    assert_int_equal(safetensors_count(s), 2);
    const struct saved_tensor *t = safetensors_find(s, "a.weight");
    assert_non_null(t);
    assert_int_equal(t->nd, 2);
    assert_int_equal(t->dim[1], 5);
    assert_true(t->data[14] == 14.5f);
    assert_string_equal(safetensors_note(s, "step"), "12");
    assert_null(safetensors_find(s, "b"));
    json_decref(notes);
    unlink(path);
}

static void a_header_of_odd_length_keeps_floats_aligned(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN(safetensors) s = NULL;

    assert_ok(parse("{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}} ", 2, &s, &err));
    assert_int_equal((uintptr_t)safetensors_at(s, 0)->data % 4, 0);
    assert_true(safetensors_at(s, 0)->data[1] == 1);
}

static void what_does_not_fit_the_file_is_refused(void **state)
{
    (void)state;
    static const char *const headers[] = {
        "{\"x\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}",       /* beyond the end */
        "{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}",        /* backwards */
        "{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}",
        "{\"x\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}",        /* shape too large */
        "{\"x\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]}}",
        "{\"x\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[0,8]}}",
        "{\"x\":{\"dtype\":\"F32\",\"shape\":\"2\",\"data_offsets\":[0,8]}}",
        "{\"x\":7}",
        "[]",
        "{",
    };
    struct err err = { 0 };
    struct safetensors *s = NULL;

    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++) {
        assert_fails(parse(headers[i], 2, &s, &err), ERR_INVALID);
        assert_non_null(strstr(err.text, "t.safetensors"));
    }
    assert_fails(safetensors_parse("1234567", 7, "t.safetensors", &s, &err), ERR_INVALID);
    assert_fails(safetensors_parse("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, "t", &s, &err),
                 ERR_INVALID);
}

static void a_full_disk_leaves_the_old_file(void **state)
{
    (void)state;
    struct err err = { 0 };
    char path[] = "/tmp/safetensors-test-XXXXXX";
    struct tensor_source src = { .name = "x", .nd = 1, .dim = { 4 }, .count = 4,
                                 .fill = fill_count };
    OWN(safetensors) s = NULL;

    close(mkstemp(path));
    src.of = &src;
    assert_ok(safetensors_write(path, &src, 1, NULL, &err));
    src.count = src.dim[0] = 100000;
    static const char *const kinds[] = { "open", "write", "fsync", "rename" };
    for (int i = 0; i < 4; i++) {
        files_fault(kinds[i], 1);
        assert_fails(safetensors_write(path, &src, 1, NULL, &err), ERR_IO);
        files_fault(NULL, 0);
    }
    assert_ok(safetensors_open(path, &s, &err));
    assert_int_equal(safetensors_at(s, 0)->count, 4);
    unlink(path);
}

CHECK_MAIN(what_is_written_reads_back, a_header_of_odd_length_keeps_floats_aligned,
           what_does_not_fit_the_file_is_refused, a_full_disk_leaves_the_old_file)
