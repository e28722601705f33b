/* tests/flow_check.h - what a pipeline's text becomes, for the tests of the languages it is in */
#ifndef MUSTER_TESTS_FLOW_CHECK_H
#define MUSTER_TESTS_FLOW_CHECK_H

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/own.h"
#include "pipelines/flow.h"
#include "tests/check.h"

/* The flow of a text that is right; yours. */
static inline json_t *flow_of(const char *text)
{
    struct err err = { 0 };
    json_t *flow = NULL;

    assert_ok(flow_compile("p.yaml", text, strlen(text), &flow, &err));
    assert_non_null(flow);
    return flow;
}

/* The part of a flow at a path, compared as compact JSON that is written with ' for ". */
static inline void check_part(const json_t *flow, const char *path, const char *want)
{
    char name[80];
    const json_t *at = flow;

    for (const char *p = path; *p; p += strcspn(p, " "), p += *p == ' ') {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(p, " "), p);
        at = json_is_array(at) ? json_array_get(at, (size_t)strtoul(name, NULL, 10))
                               : json_object_get(at, name);
    }
    OWN_MEM char *text =
        at ? json_dumps(at, JSON_COMPACT | JSON_ENCODE_ANY | JSON_SORT_KEYS) : NULL;
    for (char *c = text; c && *c; c++)
        if (*c == '"')
            *c = '\'';
    if (!text || strcmp(text, want) != 0)
        fail_msg("%s is %s, not %s", path, text ? text : "(nothing)", want);
}

struct flow_wrong {
    const char *text, *want;            /* want: part of the sentence */
};

static inline void check_wrong(const struct flow_wrong *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct err err = { 0 };
        json_t *flow = NULL;
        int rc = flow_compile("p.yaml", cases[i].text, strlen(cases[i].text), &flow, &err);
        if (rc == 0)
            fail_msg("case %zu is taken, and should say: %s", i, cases[i].want);
        if (rc != -(int)ERR_INVALID || !strstr(err.text, cases[i].want))
            fail_msg("case %zu says: %s\nand not: %s", i, err.text, cases[i].want);
        assert_null(flow);
    }
}
#define CHECK_WRONG(cases) check_wrong(cases, sizeof cases / sizeof cases[0])

#endif
