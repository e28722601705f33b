/* tests/unit/buf_test.c - a byte buffer that grows */
#include "base/buf.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"

static void bytes_and_text_follow_each_other(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN_BUF b = BUF_INIT;
    buf_append(&b, "a\0b", 3);
    buf_text(&b, "cd");
    buf_printf(&b, "%d-%s", 7, "x");
    assert_int_equal(b.n, 8);
    assert_memory_equal(b.data, "a\0bcd7-x", 9);
    assert_ok(buf_ok(&b, &err));
}

static void it_grows_past_any_first_size(void **state)
{
    (void)state;
    OWN_BUF b = BUF_INIT;
    for (int i = 0; i < 10000; i++)
        buf_printf(&b, "%04d", i);
    assert_int_equal(b.n, 40000);
    assert_memory_equal(b.data + 4 * 1234, "1234", 4);
    assert_int_equal(b.data[b.n], '\0');
}

static void taken_bytes_are_the_callers_even_when_empty(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    char *empty = buf_take(&b);
    assert_string_equal(empty, "");
    free(empty);
    buf_text(&b, "x");
    char *x = buf_take(&b);
    assert_string_equal(x, "x");
    assert_null(b.data);
    free(x);
}

static void a_size_that_cannot_be_is_remembered_as_a_failure(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN_BUF b = BUF_INIT;
    buf_text(&b, "kept");
    assert_null(buf_reserve(&b, SIZE_MAX - 3));
    buf_text(&b, "dropped");
    assert_string_equal(b.data, "kept");
    assert_fails(buf_ok(&b, &err), ERR_NOMEM);
    buf_clear(&b);
    assert_ok(buf_ok(&b, &err));
}

CHECK_MAIN(bytes_and_text_follow_each_other, it_grows_past_any_first_size,
           taken_bytes_are_the_callers_even_when_empty,
           a_size_that_cannot_be_is_remembered_as_a_failure)
