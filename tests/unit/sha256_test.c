/* tests/unit/sha256_test.c - SHA-256 against the examples of FIPS 180-4 */
#include "base/sha256.h"

#include <string.h>

#include "tests/check.h"

static void the_published_examples_come_out(void **state)
{
    (void)state;
    char hex[SHA256_HEX];
    sha256_hex_of("", 0, hex);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    sha256_hex_of("abc", 3, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

static void pieces_give_the_sum_of_the_whole(void **state)
{
    (void)state;
    char whole[SHA256_HEX], pieces[SHA256_HEX], text[1000];
    memset(text, 'a', sizeof text);
    sha256_hex_of(text, sizeof text, whole);

    struct sha256 s;
    sha256_start(&s);
    for (size_t at = 0, n = 1; at < sizeof text; at += n, n = n * 3 % 97)
        sha256_add(&s, text + at, at + n > sizeof text ? sizeof text - at : n);
    sha256_finish_hex(&s, pieces);
    assert_string_equal(pieces, whole);
}

CHECK_MAIN(the_published_examples_come_out, pieces_give_the_sum_of_the_whole)
