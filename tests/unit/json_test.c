#include "data/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "data/rows.h"
#include "tests/check.h"

/* Members as "key=kind:text|". */
static int note(void *ctx, const char *key, size_t key_n, const struct json_value *v,
                struct err *err)
{
    static const char kinds[] = "zbnslo";
    char *to = (char *)ctx + strlen(ctx);
    (void)err;
    snprintf(to, 200, "%.*s=%c:%.*s|", (int)key_n, key, kinds[v->kind], (int)v->n, v->text);
    return 0;
}

static int read_line(const char *text, char out[1000], struct err *err)
{
    size_t n = strlen(text);
    OWN_MEM char *exact = malloc(n ? n : 1);    /* so that a read past the end is seen */
    memcpy(exact, text, n);
    *out = 0;
    return json_object_read(exact, n, note, out, err);
}

static void an_object_gives_its_members_in_order(void **state)
{
    (void)state;
    static const struct { const char *text, *members;
    } cases[] = {
        { "{}", "" },
        { " { } ", "" },
        { "{\"a\":1}", "a=n:1|" },
        { "{\"a\": -1.50e3, \"b\": \"x\"}", "a=n:-1.50e3|b=s:x|" },
        { "{\"a\":null,\"b\":true,\"c\":false}", "a=z:null|b=b:true|c=b:false|" },
        { "{\"a\":[1,[2,3]],\"b\":{\"c\":\"]}\"},\"d\":0}",
          "a=l:[1,[2,3]]|b=o:{\"c\":\"]}\"}|d=n:0|" },
        { "{\"a\\u00e9\":\"\\\"\\\\\\/\\n\\u20ac\\ud83d\\ude00\"}", "aé=s:\"\\/\n€😀|" },
        { "{\"a\":\"\\ud83d!\"}", "a=s:\xed\xa0\xbd!|" },
        { "{\"a\":NaN,\"b\":-Infinity}", "a=n:NaN|b=n:-Infinity|" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err = { 0 };
        char got[1000];
        if (read_line(cases[i].text, got, &err) < 0)
            fail_msg("%s: %s", cases[i].text, err.text);
        assert_string_equal(got, cases[i].members);
    }
}

static void what_is_not_an_object_is_refused_where_it_is_wrong(void **state)
{
    (void)state;
    static const struct { const char *text, *says; } cases[] = {
        { "", "ends where an object" },         { "[1]", "at character 1 an object" },
        { "{", "a name in quotes" },            { "{\"a\"}", "a colon" },
        { "{\"a\":}", "a value" },              { "{\"a\":1", "a comma or }" },
        { "{\"a\":1,}", "a name in quotes" },   { "{\"a\":1} x", "the end of the line" },
        { "{\"a\":tru}", "a value" },           { "{\"a\":\"x}", "a closing quote" },
        { "{\"a\":\"\\x\"}", "an escape" },     { "{\"a\":\"\\u12g4\"}", "an escape" },
        { "{\"a\":[1,2", "a closing bracket" }, { "{\"a\":\"\\", "an escape" },
        { "{'a':1}", "a name in quotes" },      { "{\"a\":0x10}", "a value" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err = { 0 };
        char got[1000];
        assert_fails(read_line(cases[i].text, got, &err), ERR_INVALID);
        if (!strstr(err.text, cases[i].says))
            fail_msg("%s: \"%s\" does not say \"%s\"", cases[i].text, err.text, cases[i].says);
    }
    struct err err = { 0 };
    char deep[300] = "{\"a\":", got[1000];
    memset(deep + 5, '[', 200);
    assert_fails(read_line(deep, got, &err), ERR_INVALID);
}

static void a_list_gives_its_numbers(void **state)
{
    (void)state;
    double x[4];
    assert_int_equal(json_list_numbers("[1, [2.5,3], []]", 16, x, 4), 3);
    assert_true(x[0] == 1 && x[1] == 2.5 && x[2] == 3);
    assert_int_equal(json_list_numbers("[1,2,3,4,5,6]", 13, x, 2), 6);
    assert_int_equal(json_list_numbers("[1,\"2\"]", 7, x, 4), -1);
    assert_int_equal(json_list_numbers("[null]", 6, x, 4), -1);
    assert_int_equal(json_list_numbers("[]", 2, x, 4), 0);
}

static void rows_have_the_members_that_were_asked_for(void **state)
{
    (void)state;
    static const char text[] = "\xef\xbb\xbf{\"x\":1.5,\"s\":\"A\",\"other\":[1]}\r\n"
                               "\n"
                               "{\"s\":7,\"x\":\"2\",\"l\":[1,2]}\n"
                               "not json\n"
                               "{\"x\":\"abc\",\"s\":null}\n"
                               "{\"x\":NaN,\"s\":\"NA\",\"l\":[1,2,3]}";
    struct err err = { 0 };
    char path[] = "json-test-XXXXXX";
    int fd = mkstemp(path);
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    close(fd);

    const char *const paths[] = { path }, *const missing[] = { "", "NA" };
    struct csv_options o = { .missing = missing, .n_missing = 2 };
    struct rows *r = NULL;
    const struct rows_block *b;
    assert_ok(rows_open(ROWS_JSON, paths, 1, &o, &r, &err));
    assert_ok(rows_select(r, "x", ROWS_NUMBER, &err));
    assert_ok(rows_select(r, "s", ROWS_TEXT, &err));
    assert_ok(rows_select_list(r, "l", 2, &err));
    for (int pass = 0; pass < 2; pass++) {
        assert_ok(rows_next(r, &b, &err));
        assert_non_null(b);
        assert_int_equal(b->n, 4);
        assert_int_equal(b->broken, 1);
        assert_true(b->column[0].number[0] == 1.5 && b->column[0].number[1] == 2);
        assert_true(isnan(b->column[0].number[2]) && isnan(b->column[0].number[3]));
        assert_memory_equal(b->column[1].text[0].p, "A", 1);
        assert_memory_equal(b->column[1].text[1].p, "7", 1);
        assert_true(csv_bit(b->column[1].missing, 2) && csv_bit(b->column[1].missing, 3));
        assert_true(b->column[2].number[2] == 1 && b->column[2].number[3] == 2);
        assert_true(csv_bit(b->column[2].missing, 0));
        assert_false(csv_bit(b->bad, 0) || csv_bit(b->bad, 1));
        assert_true(csv_bit(b->bad, 2) && csv_bit(b->bad, 3));
        assert_int_equal(rows_row(r, b, 2), 5);
        assert_fails(rows_say(r, b, 2, &err), ERR_INVALID);
        assert_non_null(strstr(err.text, "row 5, \"x\": \"abc\" is not a finite number"));
        assert_fails(rows_say(r, b, -1, &err), ERR_INVALID);
        assert_non_null(strstr(err.text, "line 4: at character 1 an object"));
        assert_ok(rows_next(r, &b, &err));
        assert_null(b);
        assert_ok(rows_rewind(r, &err));
    }
    rows_free(r);
    unlink(path);
}

static void long_lines_and_many_rows_cross_blocks(void **state)
{
    (void)state;
    struct err err = { 0 };
    char path[] = "json-test-XXXXXX";
    FILE *f = fdopen(mkstemp(path), "w");
    for (int i = 0; i < 5000; i++) {
        fprintf(f, "{\"i\": %d, \"pad\": \"", i);
        for (int k = 0; k < (i == 3000 ? 700000 : 20); k++)
            fputc('p', f);
        fprintf(f, "\"}\n");
    }
    fclose(f);
    const char *const paths[] = { path, path };
    struct csv_options o = { 0 };
    struct rows *r = NULL;
    const struct rows_block *b;
    long n = 0;
    assert_ok(rows_open(ROWS_JSON, paths, 2, &o, &r, &err));
    assert_ok(rows_select(r, "i", ROWS_NUMBER, &err));
    for (;;) {
        assert_ok(rows_next(r, &b, &err));
        if (!b)
            break;
        assert_int_equal(b->first, n);
        assert_int_equal(b->first_in_file, n % 5000);
        for (long i = 0; i < b->n; i++, n++)
            assert_true(b->column[0].number[i] == n % 5000);
    }
    assert_int_equal(n, 10000);
    rows_free(r);
    unlink(path);
}

CHECK_MAIN(an_object_gives_its_members_in_order, what_is_not_an_object_is_refused_where_it_is_wrong,
           a_list_gives_its_numbers, rows_have_the_members_that_were_asked_for,
           long_lines_and_many_rows_cross_blocks)
