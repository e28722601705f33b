/* tests/unit/upload_test.c - packages of pipelines: which bytes are read, which are refused */
#include "pipelines/package.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/own.h"
#include "tests/check.h"

static const char text[] = "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\n";

/* Appends a member to a tar; `type` '2' is a symbolic link. */
static void tar_add(struct buf *tar, const char *name, char type, const void *data, size_t n)
{
    char head[512] = "";
    unsigned sum = 0;

    snprintf(head, 100, "%s", name);
    snprintf(head + 100, 8, "%07o", 0644);
    snprintf(head + 108, 8, "%07o", 0);
    snprintf(head + 116, 8, "%07o", 0);
    snprintf(head + 124, 12, "%011o", (unsigned)n);
    snprintf(head + 136, 12, "%011o", 0);
    memset(head + 148, ' ', 8);
    head[156] = type;
    if (type == '2')
        snprintf(head + 157, 100, "/etc/passwd");
    memcpy(head + 257, "ustar\00000", 8);
    for (int i = 0; i < 512; i++)
        sum += (unsigned char)head[i];
    snprintf(head + 148, 8, "%06o", sum);
    buf_append(tar, head, 512);
    buf_append(tar, data, n);
    static const char zeros[1024];
    buf_append(tar, zeros, (512 - n % 512) % 512);
}

static void tar_end(struct buf *tar)
{
    static const char zeros[1024];
    buf_append(tar, zeros, 1024);
}

static void gzip(struct buf *b)
{
    OWN_BUF out = BUF_INIT;
    z_stream z = { 0 };

    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, 31, 9, Z_DEFAULT_STRATEGY), Z_OK);
    size_t room = deflateBound(&z, b->n) + 64;
    z.next_out = (unsigned char *)buf_reserve(&out, room);
    z.avail_out = (unsigned)room;
    z.next_in = (unsigned char *)b->data;
    z.avail_in = (unsigned)b->n;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    out.n = z.total_out;
    deflateEnd(&z);
    buf_clear(b);
    buf_append(b, out.data, out.n);
}

static void little(struct buf *b, unsigned long n, int bytes)
{
    for (int i = 0; i < bytes; i++, n >>= 8)
        buf_append(b, &(char){ (char)(n & 255) }, 1);
}

/* One stored member. */
static void zip(struct buf *b, const char *name, const void *data, size_t n)
{
    unsigned long crc = crc32(0, data, (unsigned)n), at = 0;

    for (int central = 0; central < 2; central++) {
        if (central)
            at = b->n;
        buf_append(b, central ? "PK\x01\x02\x14\0" : "PK\x03\x04", central ? 6 : 4);
        little(b, 20, 2), little(b, 0, 2), little(b, 0, 2), little(b, 0, 4), little(b, crc, 4);
        little(b, n, 4), little(b, n, 4), little(b, strlen(name), 2), little(b, 0, 2);
        if (central)
            little(b, 0, 6), little(b, 0, 4), little(b, 0, 4);
        buf_text(b, name);
        if (!central)
            buf_append(b, data, n);
    }
    size_t size = b->n - at;
    buf_append(b, "PK\x05\x06", 4);
    little(b, 0, 4), little(b, 1, 2), little(b, 1, 2), little(b, size, 4), little(b, at, 4);
    little(b, 0, 2);
}

static int read_all(const struct buf *b, struct buf *out, struct err *err)
{
    return package_read(b->data, b->n, "p", out, err);
}

static void text_of_an_archive_is_that_of_pipeline_yaml(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN_BUF tar = BUF_INIT, out = BUF_INIT;

    tar_add(&tar, "other.yaml", '0', "a: 1\n", 5);
    tar_add(&tar, "pipeline.yaml", '0', text, sizeof text - 1);
    tar_end(&tar);
    assert_ok(read_all(&tar, &out, &err));
    assert_string_equal(out.data, text);
    buf_clear(&out);
    gzip(&tar);
    assert_ok(read_all(&tar, &out, &err));
    assert_string_equal(out.data, text);
}

static void the_only_yaml_of_an_archive_is_taken(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN_BUF packed = BUF_INIT, out = BUF_INIT;

    zip(&packed, "train.yaml", text, sizeof text - 1);
    assert_ok(read_all(&packed, &out, &err));
    assert_string_equal(out.data, text);

    OWN_BUF two = BUF_INIT;
    tar_add(&two, "a.yaml", '0', text, sizeof text - 1);
    tar_add(&two, "b.yml", '0', text, sizeof text - 1);
    tar_end(&two);
    assert_fails(read_all(&two, &out, &err), ERR_INVALID);
    assert_string_equal(err.text, "p: has no member pipeline.yaml, and more than one other .yaml");

    OWN_BUF none = BUF_INIT;
    tar_add(&none, "readme.txt", '0', text, sizeof text - 1);
    tar_end(&none);
    assert_fails(read_all(&none, &out, &err), ERR_INVALID);
    assert_string_equal(err.text, "p: has no member pipeline.yaml, nor another .yaml");
}

static void plain_text_is_taken_as_it_is(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN_BUF out = BUF_INIT;

    assert_ok(package_read(text, sizeof text - 1, "p", &out, &err));
    assert_string_equal(out.data, text);
    assert_fails(package_read("", 0, "p", &out, &err), ERR_INVALID);
}

static void links_and_paths_that_climb_are_refused(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN_BUF out = BUF_INIT, link = BUF_INIT, climb = BUF_INIT, absolute = BUF_INIT;

    tar_add(&link, "pipeline.yaml", '2', "", 0);
    tar_end(&link);
    assert_fails(read_all(&link, &out, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "is a link"));
    tar_add(&climb, "../pipeline.yaml", '0', text, sizeof text - 1);
    tar_end(&climb);
    assert_fails(read_all(&climb, &out, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "climbs out of the archive"));
    tar_add(&absolute, "/pipeline.yaml", '0', text, sizeof text - 1);
    tar_end(&absolute);
    assert_fails(read_all(&absolute, &out, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "absolute path"));
}

/* 50 MB as they come, and 40 MB of zeros packed into some 40 kB. */
static void large_packages_and_bombs_are_refused(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN_BUF out = BUF_INIT, bomb = BUF_INIT;
    OWN_MEM char *large = calloc(1, 50 << 20);

    assert_non_null(large);
    memset(large, '#', 50 << 20);
    assert_fails(package_read(large, 50 << 20, "p", &out, &err), ERR_INVALID);
    assert_string_equal(err.text, "p: 50 MB; a package has at most 32 MB");
    assert_fails(package_read(large, 20 << 20, "p", &out, &err), ERR_INVALID);
    assert_string_equal(err.text, "p: 20 MB; a pipeline's text has at most 16 MB");
    tar_add(&bomb, "pipeline.yaml", '0', large, 40 << 20);
    tar_end(&bomb);
    gzip(&bomb);
    assert_true(bomb.n < 1 << 20);
    assert_fails(read_all(&bomb, &out, &err), ERR_INVALID);
    assert_string_equal(err.text, "p: unpacks to more than 16 MB");
    assert_int_equal(out.n, 0);
}

static void a_damaged_archive_is_refused(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN_BUF tar = BUF_INIT, out = BUF_INIT;

    tar_add(&tar, "pipeline.yaml", '0', text, sizeof text - 1);
    tar_end(&tar);
    gzip(&tar);
    for (size_t n = 2; n < tar.n; n += 7) {
        err = (struct err){ 0 };
        if (package_read(tar.data, n, "p", &out, &err) < 0)
            assert_true(err.text[0]);
    }
    assert_fails(package_read(tar.data, tar.n / 2, "p", &out, &err), ERR_INVALID);
}

CHECK_MAIN(text_of_an_archive_is_that_of_pipeline_yaml, the_only_yaml_of_an_archive_is_taken,
           plain_text_is_taken_as_it_is, links_and_paths_that_climb_are_refused,
           large_packages_and_bombs_are_refused, a_damaged_archive_is_refused)
