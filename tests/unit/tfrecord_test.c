#include "data/tfrecord.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/files.h"
#include "data/example_write.h"
#include "data/rows.h"
#include "tests/check.h"

static void the_checksum_is_crc32c(void **state)
{
    (void)state;
    assert_int_equal(crc32c("123456789", 9), 0xe3069283u);
    assert_int_equal(crc32c("", 0), 0);
    static const uint8_t zeros[32];
    assert_int_equal(crc32c(zeros, 32), 0x8a9136aau);
    static const uint8_t length[8] = { 12 };
    assert_int_equal(crc32c_masked(length, 8), 0x0afec8f4u);
}

static void add(struct example_writer *w, struct buf *out, float x, int64_t i, const char *s)
{
    struct err err = { 0 };
    example_begin(w);
    example_add_floats(w, "x", &x, 1);
    example_add_ints(w, "i", &i, 1);
    if (s)
        example_add_text(w, "s", s, strlen(s));
    example_add_floats(w, "l", (const float[]){ 1, 2, x }, 3);
    assert_ok(example_end(w, out, &err));
}

static void three_records(struct buf *out)
{
    struct example_writer w;
    example_writer_init(&w);
    add(&w, out, 0.5f, 7, "Cash");
    add(&w, out, 0.1f, -3, NULL);
    add(&w, out, NAN, 1ll << 40, "x");
    example_writer_done(&w);
}

static void save(char path[32], const void *data, size_t n)
{
    memcpy(path, "tfrecord-test-XXXXXX", 21);
    int fd = mkstemp(path);
    assert_int_equal(write(fd, data, n), n);
    close(fd);
}

static struct rows *open_rows(const char *path)
{
    struct err err = { 0 };
    struct rows *r = NULL;
    struct csv_options o = { 0 };
    assert_ok(rows_open(ROWS_TFRECORD, &path, 1, &o, &r, &err));
    assert_ok(rows_select(r, "x", ROWS_NUMBER, &err));
    assert_ok(rows_select(r, "i", ROWS_NUMBER | ROWS_TEXT, &err));
    assert_ok(rows_select(r, "s", ROWS_TEXT, &err));
    assert_ok(rows_select_list(r, "l", 3, &err));
    return r;
}

static void what_is_written_is_read(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN_BUF out = BUF_INIT;
    char path[32];
    const struct rows_block *b;
    three_records(&out);
    save(path, out.data, out.n);
    struct rows *r = open_rows(path);
    for (int pass = 0; pass < 2; pass++) {
        assert_ok(rows_next(r, &b, &err));
        assert_int_equal(b->n, 3);
        assert_true(b->column[0].number[0] == 0.5 && b->column[0].number[1] == (double)0.1f);
        assert_true(b->column[1].number[1] == -3 && b->column[1].number[2] == 0x1p40);
        assert_memory_equal(b->column[1].text[2].p, "1099511627776", 13);
        assert_memory_equal(b->column[2].text[0].p, "Cash", 4);
        assert_true(csv_bit(b->column[2].missing, 1));
        assert_true(b->column[3].number[0] == 1 && b->column[3].number[5] == (double)0.1f);
        assert_true(csv_bit(b->bad, 2) && !csv_bit(b->bad, 0));
        assert_fails(rows_say(r, b, 2, &err), ERR_INVALID);
        assert_non_null(strstr(err.text, "row 3, \"x\": \"nan\" is not a finite number"));
        assert_ok(rows_next(r, &b, &err));
        assert_null(b);
        assert_ok(rows_rewind(r, &err));
    }
    rows_free(r);
    unlink(path);
}

/* Whatever byte is changed, wherever the file is cut: said, and no byte of it believed. */
static void damage_is_found(void **state)
{
    (void)state;
    OWN_BUF out = BUF_INIT;
    three_records(&out);
    for (size_t i = 0; i < 2 * out.n; i++) {
        struct err err = { 0 };
        char path[32];
        const struct rows_block *b;
        int cut = i >= out.n;
        OWN_MEM char *bytes = malloc(out.n);
        memcpy(bytes, out.data, out.n);
        if (!cut)
            bytes[i] ^= 0x10;
        save(path, bytes, cut ? i - out.n : out.n);
        struct rows *r = open_rows(path);
        int rc = rows_next(r, &b, &err);
        /* A cut between two records leaves a right file. */
        if (rc == 0 && !(cut && (!b || b->n < 3)))
            fail_msg("byte %zu%s: not found", i, cut ? " cut" : "");
        if (rc < 0)
            assert_non_null(strstr(err.text, "record "));
        rows_free(r);
        unlink(path);
    }
}

static int count_feature(void *ctx, const struct example_feature *f, struct err *err)
{
    (void)err;
    (void)f;
    ++*(int *)ctx;
    return 0;
}

static void unpacked_lists_and_unknown_fields_are_read(void **state)
{
    (void)state;
    /* Example { features { feature { key: "x" value { float_list { value: 0.5 value: 2 } } } } },
     * not packed, with an unknown varint field 15 in the example and one in the map entry. */
    static const uint8_t bytes[] = { 0x78, 0x01, 0x0a, 0x17, 0x0a, 0x15, 0x0a, 0x01, 'x',
                                     0x18, 0x05, 0x12, 0x0e, 0x12, 0x0c, 0x0d, 0,    0,
                                     0,    0x3f, 0x0d, 0,    0,    0,    0x40, 0x18, 0x00 };
    struct err err = { 0 };
    int n = 0;
    assert_ok(example_read(bytes, sizeof bytes, count_feature, &n, &err));
    assert_int_equal(n, 1);
    struct example_feature f = { EXAMPLE_FLOAT, "x", 1, bytes + 15, 10 };
    double x[2];
    assert_int_equal(example_numbers(&f, x, 2), 2);
    assert_true(x[0] == 0.5 && x[1] == 2);
    f.list_n = 9;
    assert_int_equal(example_numbers(&f, x, 2), -1);
    for (size_t cut = 0; cut < sizeof bytes; cut++)
        example_read(bytes, cut, count_feature, &n, &err);
}

CHECK_MAIN(the_checksum_is_crc32c, what_is_written_is_read, damage_is_found,
           unpacked_lists_and_unknown_fields_are_read)
