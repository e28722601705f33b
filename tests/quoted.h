/* tests/quoted.h - JSON in the text of a test, without a backslash before each quote */
#ifndef MUSTER_TESTS_QUOTED_H
#define MUSTER_TESTS_QUOTED_H

#include <jansson.h>
#include <string.h>

#include "base/own.h"
#include "tests/check.h"

/* Single quotes stand for double ones. Yours. */
static inline json_t *json_quoted(const char *text)
{
    OWN_MEM char *copy = strdup(text);
    json_error_t e;

    for (char *c = copy; *c; c++)
        *c = *c == '\'' ? '"' : *c;
    json_t *j = json_loads(copy, 0, &e);
    if (!j)
        fail_msg("%s: %s", text, e.text);
    return j;
}

#endif
