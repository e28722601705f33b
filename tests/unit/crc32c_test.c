#include "base/crc32c.h"

#include <string.h>

#include "tests/check.h"

/* The check values of RFC 3720, B.4. */
static void known_values(void **state)
{
    (void)state;
    unsigned char bytes[32];

    assert_int_equal(crc32c("123456789", 9), 0xe3069283u);
    memset(bytes, 0, sizeof bytes);
    assert_int_equal(crc32c(bytes, 32), 0x8a9136aau);
    memset(bytes, 0xff, sizeof bytes);
    assert_int_equal(crc32c(bytes, 32), 0x62a8ab43u);
    for (int i = 0; i < 32; i++)
        bytes[i] = (unsigned char)i;
    assert_int_equal(crc32c(bytes, 32), 0x46dd794eu);
    assert_int_equal(crc32c("", 0), 0);
}

static void pieces_and_the_slow_twin_agree(void **state)
{
    (void)state;
    unsigned char bytes[10000];    /* more than three stretches that are computed at a time */

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 97 >> 2);
    for (size_t n = 0; n < sizeof bytes; n += 7) {
        uint32_t whole = crc32c(bytes, n);
        assert_int_equal(crc32c_by_table(bytes, n), whole);
        assert_int_equal(crc32c_add(crc32c(bytes, n / 3), bytes + n / 3, n - n / 3), whole);
    }
}

CHECK_MAIN(known_values, pieces_and_the_slow_twin_agree)
