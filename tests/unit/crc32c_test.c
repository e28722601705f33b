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

CHECK_MAIN(known_values)
