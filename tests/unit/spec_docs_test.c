/* tests/unit/spec_docs_test.c - docs/spec.md says what spec/keys.c says
 *
 * Its tables stand between <!-- keys MAP --> and <!-- end -->.
 */
#include "spec/spec.h"
#include "tests/check.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/files.h"
#include "base/own.h"
#include "spec/keys.h"

static void doc_path(char *out, size_t size)
{
    const char *root = getenv("MUSTER_ROOT");

    snprintf(out, size, "%s/docs/spec.md", root ? root : ".");
}

static void write_cell(struct buf *b, const char *text)
{
    buf_text(b, "| ");
    for (; *text; text++)
        buf_printf(b, *text == '|' ? "\\%c" : "%c", *text);
    buf_text(b, " ");
}

/* What docs/spec.md says about a map: a line for each row of the table. */
static void write_reference(struct buf *b, const char *map)
{
    char cell[300];

    buf_text(b, "| key | value | default | |\n|---|---|---|---|\n");
    for (const struct key *k = key_next(map, NULL); k; k = key_next(map, k)) {
        if (strcmp(map, "node") == 0 && strcmp(k->map, "node") != 0)
            continue;
        snprintf(cell, sizeof cell, "`%s`%s", k->name, k->flags & KEY_SHORT ? " (*short*)" : "");
        write_cell(b, cell);
        key_expected(k, cell, sizeof cell);
        if (k->kind == KEY_MAP && !key_next(k->of, NULL))
            snprintf(cell, sizeof cell, "nothing");
        write_cell(b, cell);
        if (k->flags & KEY_NAME && k->value)
            snprintf(cell, sizeof cell, "%s1, %s2, ...", k->value, k->value);
        else if (k->value)
            snprintf(cell, sizeof cell, "`%s`", k->value);
        else
            snprintf(cell, sizeof cell, "%s", k->flags & KEY_REQUIRED ? "required" : "");
        write_cell(b, cell);
        snprintf(cell, sizeof cell, "%s", k->why);
        if (k->when) {
            char formats[64];
            key_word_list(k->when, formats, sizeof formats);
            snprintf(cell, sizeof cell, "%s (%s only)", k->why,
                     strchr(k->when, '|') ? "tables" : formats);
        }
        write_cell(b, cell);
        buf_text(b, "|\n");
    }
}

/* MUSTER_WRITE_DOCS=1 writes the tables anew instead of comparing them. */
static void the_reference_tells_what_the_table_tells(void **state)
{
    (void)state;
    OWN_MEM char *text = NULL;
    OWN_BUF want = BUF_INIT;
    char path[4096], map[64];
    struct err err = { 0 };
    int n;

    doc_path(path, sizeof path);
    assert_ok(files_read(path, 1 << 24, &text, NULL, &err));
    const char *at = text;
    for (const char *mark; (mark = strstr(at, "<!-- keys")); at = strstr(mark, "<!-- end -->")) {
        map[0] = 0;
        sscanf(mark, "<!-- keys %60[a-z0-9_]", map);
        mark = strchr(mark, '\n') + 1;
        buf_append(&want, at, (size_t)(mark - at));
        write_reference(&want, map);
    }
    buf_text(&want, at);
    if (getenv("MUSTER_WRITE_DOCS"))
        assert_ok(files_write(path, want.data, want.n, &err));
    else if (strcmp(text, want.data) != 0)
        fail_msg("docs/spec.md is not what spec/keys.c says: run this test with "
                 "MUSTER_WRITE_DOCS=1");
    const struct key *keys = key_table(&n);
    for (int i = 0; i < n; i++) {
        snprintf(map, sizeof map, "<!-- keys%s%s -->", *keys[i].map ? " " : "", keys[i].map);
        if (!strstr(text, map))
            fail_msg("docs/spec.md has no table of \"%s\"", keys[i].map);
    }
}

static void the_whole_specs_of_the_reference_are_right(void **state)
{
    (void)state;
    OWN_MEM char *text = NULL;
    char path[4096];
    struct err err = { 0 };
    int n = 0;

    doc_path(path, sizeof path);
    assert_ok(files_read(path, 1 << 24, &text, NULL, &err));
    for (const char *at = text; (at = strstr(at, "```yaml\nname:")); n++) {
        OWN(job_spec) s = NULL;
        at += strlen("```yaml\n");
        assert_ok(spec_parse(at, (size_t)(strstr(at, "```") - at), "spec.md", NULL, 0, &s, &err));
    }
    assert_int_equal(n, 2);
}

CHECK_MAIN(the_reference_tells_what_the_table_tells, the_whole_specs_of_the_reference_are_right)
