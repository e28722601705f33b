/* tests/check.h - cmocka, and two checks for struct err
 *
 * A test file lists its tests once: CHECK_MAIN(a_sentence_of_behaviour, another).
 */
#ifndef MUSTER_TESTS_CHECK_H
#define MUSTER_TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/err.h"

/* Both read `err` of the calling test. */
#define assert_ok(call)                                                                 \
    do {                                                                                \
        if ((call) < 0)                                                                 \
            fail_msg("%s: %s", #call, err.text);                                        \
    } while (0)
#define assert_fails(call, want)                                                        \
    do {                                                                                \
        err = (struct err){ 0 };                                                        \
        int rc_ = (call);                                                               \
        if (rc_ != -(int)(want))                                                        \
            fail_msg("%s: returned %d, not %d (%s)", #call, rc_, -(int)(want), err.text); \
    } while (0)

/* For functions that tell what they find: counts, and keeps the last sentence. */
static char check_told[1024] __attribute__((unused));
static inline void check_count(void *arg, const char *text)
{
    snprintf(check_told, sizeof check_told, "%s", text);
    ++*(int *)arg;
}

#define CHECK_MAIN(...)                                                                 \
    int main(void)                                                                      \
    {                                                                                   \
        void (*const fns[])(void **) = { __VA_ARGS__ };                                 \
        struct CMUnitTest tests[sizeof fns / sizeof fns[0]];                            \
        static char names[sizeof fns / sizeof fns[0]][100];                             \
        const char *list = #__VA_ARGS__;                                                \
        for (size_t i = 0; i < sizeof fns / sizeof fns[0]; i++) {                       \
            size_t n = 0;                                                               \
            for (; *list && *list != ','; list++)                                       \
                if (*list != ' ' && *list != '\n' && n < sizeof names[i] - 1)           \
                    names[i][n++] = *list;                                              \
            list += *list == ',';                                                       \
            tests[i] = (struct CMUnitTest){ names[i], fns[i], NULL, NULL, NULL };       \
        }                                                                               \
        return cmocka_run_group_tests(tests, NULL, NULL);                               \
    }

#endif
