/* tests/unit/idx_test.c - does the IDX reader keep its header's word? */
#include "data/idx.h"

#include <zlib.h>

#include "tests/check.h"

static char path[] = "/tmp/muster-idx-XXXXXX";

static void put(const void *bytes, size_t n, int gzip)
{
    if (strstr(path, "XXXXXX"))
        close(mkstemp(path));
    gzFile g = gzopen(path, gzip ? "wb" : "wbT");       /* T: plain */
    assert_non_null(g);
    assert_int_equal(gzwrite(g, bytes, (unsigned)n), n);
    gzclose(g);
}

static void says(const void *bytes, size_t n, const char *want)
{
    struct err err = { 0 };
    OWN(idx) x = NULL;

    put(bytes, n, 0);
    assert_fails(idx_read(path, &x, &err), ERR_INVALID);
    assert_string_equal(err.text + strlen(path) + 2, want);
    assert_null(x);
}

static const unsigned char images[] = { 0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0,
                                        1, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6 };
static const unsigned char labels[] = { 0, 0, 8, 1, 0, 0, 0, 4, 9, 8, 7, 6 };

static void images_and_labels_are_read_from_gzip_or_plain(void **state)
{
    (void)state;
    struct err err = { 0 };

    for (int gzip = 0; gzip < 2; gzip++) {
        OWN(idx) x = NULL;
        OWN(idx) y = NULL;
        put(images, sizeof images, gzip);
        assert_ok(idx_read(path, &x, &err));
        assert_int_equal(x->dims, 3);
        assert_int_equal(x->n, 2);
        assert_int_equal(x->h, 1);
        assert_int_equal(x->w, 3);
        assert_memory_equal(x->data, images + 16, 6);
        put(labels, sizeof labels, gzip);
        assert_ok(idx_read(path, &y, &err));
        assert_int_equal(y->dims, 1);
        assert_int_equal(y->n, 4);
        assert_int_equal(y->h * y->w, 1);
        assert_memory_equal(y->data, labels + 8, 4);
    }
}

static void a_file_without_rows_is_a_file(void **state)
{
    (void)state;
    static const unsigned char none[] = { 0, 0, 8, 2, 0, 0, 0, 0, 0, 0, 0, 5 };
    struct err err = { 0 };
    OWN(idx) x = NULL;

    put(none, sizeof none, 0);
    assert_ok(idx_read(path, &x, &err));
    assert_int_equal(x->n, 0);
    assert_int_equal(x->w, 5);
}

static void what_is_wrong_is_one_sentence(void **state)
{
    (void)state;
    unsigned char b[sizeof images];

    says("", 0, "is empty (download it again)");
    says("PK\3\4", 4, "is not an IDX file (it begins with 50 4b, not 00 00)");
    says("\0\0\10", 3, "is cut off at byte 3 of 4 (download it again)");
    says("\0\0\1\1", 4, "is not an IDX file (no element type is 0x01)");
    says("\0\0\15\1", 4, "holds 32-bit floats; only IDX files of unsigned bytes are read");
    says("\0\0\10\4", 4, "has 4 dimensions; labels have 1, images 3 (n, height, width)");
    says(images, 10, "is cut off at byte 10 of 16 (download it again)");
    says(images, 21, "is cut off at byte 21 of 22 (download it again)");
    memcpy(b, images, sizeof b);
    b[7] = 1;
    says(b, sizeof b, "has 3 bytes after the 19 that its dimensions ask for");
    b[11] = 0;
    says(b, sizeof b, "dimension 2 is 0");
    memset(b + 4, 0xff, 12);
    says(b, sizeof b, "its dimensions ask for more than 2 GiB");
}

static void a_missing_file_is_missing_and_a_cut_gzip_says_where(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN(idx) x = NULL;

    assert_fails(idx_read("/nowhere/at-all.gz", &x, &err), ERR_MISSING);
    assert_string_equal(err.text, "/nowhere/at-all.gz: no such file");
    put(images, sizeof images, 1);
    assert_int_equal(truncate(path, 25), 0);
    assert_fails(idx_read(path, &x, &err), ERR_INVALID);
    assert_string_equal(err.text + strlen(path),
                        ": the gzip file is cut off at byte 25 (download or compress it again)");
    unlink(path);
}

CHECK_MAIN(images_and_labels_are_read_from_gzip_or_plain, a_file_without_rows_is_a_file,
           what_is_wrong_is_one_sentence, a_missing_file_is_missing_and_a_cut_gzip_says_where)
