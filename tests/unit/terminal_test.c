/* tests/unit/terminal_test.c - what a program printed does nothing to a terminal but colour it */
#include "base/terminal.h"

#include <stdlib.h>
#include <string.h>

#include "tests/check.h"

static void check_shown(const char *text, size_t n, const char *want)
{
    OWN_BUF out = BUF_INIT;

    terminal_show(&out, text, n);
    assert_string_equal(out.data ? out.data : "", want);
}
#define SHOWN(text, want) check_shown(text, sizeof text - 1, want)

static void text_tabs_and_colours_stay(void **state)
{
    (void)state;
    SHOWN("", "");
    SHOWN("a\tb\nc\n", "a\tb\nc\n");
    SHOWN("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80\n", "gr\xc3\xbc\xc3\x9f \xe2\x82\xac "
          "\xf0\x9f\x98\x80\n");
    SHOWN("\033[1;31mred\033[0m \033[m\033[38:5:1mx", "\033[1;31mred\033[0m \033[m\033[38:5:1mx");
    SHOWN("dos\r\nend\r\n", "dos\nend\n");
}

static void what_a_terminal_would_obey_is_shown(void **state)
{
    (void)state;
    SHOWN("\033[2Jgone\033[A", "^[[2Jgone^[[A");
    SHOWN("\033]0;title\007", "^[]0;title^G");
    SHOWN("50%\rover\b\b", "50%^Mover^H^H");
    SHOWN("a\0b\177", "a^@b^?");
    SHOWN("\xc2\x9b" "2J", "\\xc2\\x9b2J");
    SHOWN("\x9b" "2J\xff", "\\x9b2J\\xff");
    SHOWN("\033[31", "^[[31");
    SHOWN("\033", "^[");
    SHOWN("\xe2\x82", "\\xe2\\x82");
    SHOWN("\xe2\033[2J", "\\xe2^[[2J");
    SHOWN("\033[\0m", "^[[^@m");
}

static void no_bytes_at_all_come_through_that_act(void **state)
{
    (void)state;
    srand(7);
    for (int round = 0; round < 2000; round++) {
        char text[64];
        OWN_BUF out = BUF_INIT;
        for (size_t i = 0; i < sizeof text; i++)
            text[i] = rand() % 3 ? "\033[0;m]\r\n\x9b\xc2\xe2\x82 a"[rand() % 13] : (char)rand();
        terminal_show(&out, text, sizeof text);
        for (size_t i = 0; i < out.n; i++) {
            unsigned char c = (unsigned char)out.data[i];
            if (c == '\033')            /* only a colour: ESC [ digits m */
                assert_int_equal(out.data[i + 1 + strspn(out.data + i + 1, "[0123456789;:")], 'm');
            else
                assert_true(c >= ' ' ? c != 0x7f : c == '\t' || c == '\n');
        }
    }
}

static void a_line_is_cut_between_characters(void **state)
{
    (void)state;
    char plain[] = "abcdef", wide[] = "gr\xc3\xbc\xc3\x9f dich";

    terminal_cut(plain, 6);
    assert_string_equal(plain, "abcdef");
    terminal_cut(plain, 3);
    assert_string_equal(plain, "abc");
    terminal_cut(wide, 3);
    assert_string_equal(wide, "gr\xc3\xbc");
    terminal_cut(wide, 0);
    assert_string_equal(wide, "");
}

CHECK_MAIN(text_tabs_and_colours_stay, what_a_terminal_would_obey_is_shown,
           no_bytes_at_all_come_through_that_act, a_line_is_cut_between_characters)
