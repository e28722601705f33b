/* tests/unit/csv_test.c - does the CSV reader keep its header's word? */
#include "data/csv.h"

#include <locale.h>
#include <math.h>
#include <zlib.h>

#include "data/csv_int.h"
#include "tests/check.h"
#include "tests/csv_dump.h"

static char dir[] = "/tmp/muster-csv-XXXXXX";
static const char *const isas[] = { "scalar", "avx2", "avx512" };

static char *put(const char *name, const char *text, size_t n)
{
    char *path;

    if (strstr(dir, "XXXXXX") && !mkdtemp(dir))
        fail_msg("no temporary folder");
    assert_true(asprintf(&path, "%s/%s", dir, name) > 0);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
    return path;
}

/* The dump of a text, the same on every instruction set, block size and number of threads. */
static void check_text(const char *text, size_t n, struct csv_options o, const char *types,
                       const char *want)
{
    static const size_t sizes[] = { 0, 1, 7, 64, 100 };
    OWN_MEM char *path = put("t.csv", text, n);
    const char *paths[] = { path };

    for (int isa = 0; isa < 3; isa++)
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
            for (o.threads = 1; o.threads <= 3; o.threads++) {
                o.block_bytes = sizes[s];
                setenv("MUSTER_ISA", isas[isa], 1);
                OWN_MEM char *got = csv_dump(paths, 1, &o, types);
                assert_string_equal(got, want);
            }
    unsetenv("MUSTER_ISA");
    unlink(path);
}

#define CHECK(text, types, want) CHECK_WITH(((struct csv_options){ 0 }), text, types, want)
#define CHECK_WITH(options, text, types, want) \
    check_text(text, sizeof(text) - 1, options, types, want)

static void rows_end_with_lf_or_crlf_and_the_last_may_end_with_neither(void **state)
{
    (void)state;
    CHECK("a,b\n1,2\n3,4\n", "it", "a|b|\n1:1|2|\n2:3|4|\n");
    CHECK("a,b\r\n1,2\r\n3,4\r\n", "it", "a|b|\n1:1|2|\n2:3|4|\n");
    CHECK("a,b\r\n1,2\n3,4", "id", "a|b|\n1:1|2|\n2:3|4|\n");
    CHECK("a,b\r\n1,2\r\n3,\r\n", "id", "a|b|\n1:1|2|\n2:3|~|\n");
}

static void a_byte_order_mark_and_empty_lines_are_no_data(void **state)
{
    (void)state;
    CHECK("\xef\xbb\xbf" "a,b\n\n1,2\n\r\n\n3,4\n\n", "ii", "a|b|\n1:1|2|\n2:3|4|\n");
    CHECK("\n\r\na\n1\n\n2\n\"\"\n", "i", "a|\n1:1|\n2:2|\n3:~|\n");
}

static void quotes_hold_delimiters_newlines_and_doubled_quotes(void **state)
{
    (void)state;
    CHECK("\"x,\"\"y\"\"\",b\n\"1,2\",\"3\"\n\"a\nb\r\nc\",\"-4.5\"\n\"\",\"\"\"\"\"\"\n", "td",
          "x,\"y\"|b|\n1:1,2|3|\n2:a\nb\r\nc|-4.5|\n"
          "! t.csv: row 3 (line 6), column \"b\": \"\"\"\"\"\"\"\" is not a number\n3:bad|~|~|\n");
    CHECK("a,b\n\"p\",\"q\"\"r\"\r\n\"s\"\"\",\"t\nu\"\n", "cc",
          "a|b|\n1:0=p|0=q\"r|\n2:1=s\"|1=t\nu|\n");
}

static void quoted_numbers_are_numbers_and_quoted_nothing_is_missing(void **state)
{
    (void)state;
    CHECK("a,b,c\n\"1\",\"-2.5\",\"3e2\"\r\n\"\",\" 4\",\"\"\r\n7,\"12345678901234567\",\"-\"\n"
          "\"8\",1,\"9\"\r\n\"1\",\"2\",\"3\"\n\"4\",\"5\",\"6\"\n"
          "\"7\",\"8\",\"9\"\n\"-1\",\".5\",\"5.\"\n",
          "idf",
          "a|b|c|\n1:1|-2.5|300|\n2:~|4|~|\n"
          "! t.csv: row 3 (line 4), column \"c\": \"\"-\"\" is not a number\n"
          "3:bad|7|12345678901234568|~|\n4:8|1|9|\n5:1|2|3|\n6:4|5|6|\n7:7|8|9|\n8:-1|0.5|5|\n");
}

static void a_quote_inside_a_bare_field_is_a_character(void **state)
{
    (void)state;
    CHECK("a,b\n5\" disk,x\n6,y\"z\"\n\"7\",w\n", "tt",
          "a|b|\n1:5\" disk|x|\n2:6|y\"z\"|\n3:7|w|\n");
}

static void text_after_a_closing_quote_makes_the_field_bad_and_only_it(void **state)
{
    (void)state;
    CHECK("a,b\n\"x\"y,1\n\"x\" ,2\nz,3\n\"p\"\"q\"\"\"r\"s,4\n", "ti",
          "a|b|\n"
          "! t.csv: row 1 (line 2), column \"a\": \"\"x\"y\" has text after its closing quote\n"
        "1:bad|~|1|\n! t.csv: row 2 (line 3), column \"a\": \"\"x\" \" has text after its closing "
        "quote\n"
          "2:bad|~|2|\n3:z|3|\n"
        "! t.csv: row 4 (line 5), column \"a\": \"\"p\"\"q\"\"\"r\"s\" has text after its closing "
        "quote\n"
          "4:bad|~|4|\n");
}

static void a_ragged_row_is_named_and_left_out(void **state)
{
    (void)state;
    CHECK("a,b,c\n1,2,3\n4,5\n6,7,8,9\n\"u\nv\"\n1,x,3\n", "iii",
          "a|b|c|\n1:1|2|3|\n! t.csv: row 2 (line 3) has 2 fields, the header has 3\n"
          "! t.csv: row 3 (line 4) has 4 fields, the header has 3\n"
          "! t.csv: row 4 (line 5) has 1 fields, the header has 3\n"
          "! t.csv: row 5 (line 7), column \"b\": \"x\" is not a number\n5:bad|1|~|3|\n");
    CHECK("a,b\n1\n2\n", "ii",
          "a|b|\n! t.csv: row 1 (line 2) has 1 fields, the header has 2\n"
          "! t.csv: row 2 (line 3) has 1 fields, the header has 2\n");
}

static void missing_texts_are_the_callers(void **state)
{
    (void)state;
    static const char *const na[] = {
        "NA", "?", "a very long way to say that nothing is known about this value at all"
    };
    struct csv_options o = { .missing = na, .n_missing = 3 };
    CHECK("a,b,c\n,,\n", "itc", "a|b|c|\n1:~|~|~|\n");
    CHECK_WITH(o,
               "a,b,c\nNA,?,\"NA\"\n1,,\n2,NAN,a very long way to say that nothing is known about "
               "this value at all\n,x,y\n",
               "itc",
               "a|b|c|\n1:~|~|~|\n2:1||0=|\n3:2|NAN|~|\n"
               "! t.csv: row 4 (line 5), column \"a\": \"\" is not a number\n4:bad|~|x|1=y|\n");
}

static void names_delimiter_and_skipped_lines_are_options(void **state)
{
    (void)state;
    static const char *const names[] = { "x", "y" };
    CHECK_WITH(((struct csv_options){ .no_header = 1 }), "1;2,5\n", "tt", "1|2|\n1:1;2|5|\n");
    CHECK_WITH(((struct csv_options){ .no_header = 1, .delimiter = ';' }), "1;2,5\n3;4\n", "tt",
               "1|2|\n1:1|2,5|\n2:3|4|\n");
    CHECK_WITH(((struct csv_options){ .no_header = 1, .names = names, .n_names = 2 }), "1,2\n3\n",
               "ii", "x|y|\n1:1|2|\n! t.csv: row 2 (line 2) has 1 fields, the first row has 2\n");
    CHECK_WITH(((struct csv_options){ .skip = 2, .delimiter = '\t' }), "# \"one\n\n\na\tb\n1\tx\n",
               "ii",
               "a|b|\n! t.csv: row 1 (line 5), column \"b\": \"x\" is not a number\n1:bad|1|~|\n");
    CHECK_WITH(((struct csv_options){ .no_header = 1, .names = names, .n_names = 1 }), "1,2\n",
               "ii", "! t.csv: has 2 columns, and 1 names are given for them\n");
    CHECK_WITH(((struct csv_options){ .skip = 4 }), "a\nb\nc\n", "i",
               "! t.csv: has 3 lines, of which 4 are to be skipped (\"skip\")\n");
    CHECK_WITH(((struct csv_options){ .delimiter = '-' }), "a-b\n-\n1-2\n", "id",
               "a|b|\n1:~|~|\n2:1|2|\n");
}

static void an_empty_file_and_an_open_quote_are_one_sentence_each(void **state)
{
    (void)state;
    CHECK("", "i", "! t.csv: is empty\n");
    CHECK("\n\n", "i", "! t.csv: is empty after its first lines\n");
    CHECK("a\n", "i", "a|\n");
    CHECK("\"a\nb", "i", "! t.csv:1: the quote in the first row is never closed\n");
    CHECK("a,b\n1,2\n3,\"4\n5,6\n", "ii",
          "a|b|\n1:1|2|\n! t.csv: row 2 (line 3): a quote is opened and never closed\n");
}

static void a_row_beyond_the_limit_is_refused_not_swallowed(void **state)
{
    (void)state;
    struct csv_options o = { 0 };
    size_t n = CSV_ROW_MAX + (2 << 20);
    OWN_MEM char *text = malloc(n);
    memset(text, 'x', n);
    memcpy(text, "a\n1\n\"", 5);
    OWN_MEM char *path = put("t.csv", text, n);
    const char *paths[] = { path };
    OWN_MEM char *got = csv_dump(paths, 1, &o, "t");
    assert_string_equal(
        got, "a|\n1:1|\n! t.csv: row 2 (line 3) is longer than 16 MiB (is a quote left open?)\n");
    unlink(path);
}

static void numbers_that_are_none_are_told_apart(void **state)
{
    (void)state;
    CHECK("a\n1e400\n-inf\nNaN\nInfinity\nx\n1.2.3\n-\n.\n1e\n0x10\n1_0\n--1\n+-1\n", "d",
          "a|\n"
          "! t.csv: row 1 (line 2), column \"a\": \"1e400\" is not a finite number\n1:bad|~|\n"
          "! t.csv: row 2 (line 3), column \"a\": \"-inf\" is not a finite number\n2:bad|~|\n"
          "! t.csv: row 3 (line 4), column \"a\": \"NaN\" is not a finite number\n3:bad|~|\n"
          "! t.csv: row 4 (line 5), column \"a\": \"Infinity\" is not a finite number\n4:bad|~|\n"
          "! t.csv: row 5 (line 6), column \"a\": \"x\" is not a number\n5:bad|~|\n"
          "! t.csv: row 6 (line 7), column \"a\": \"1.2.3\" is not a number\n6:bad|~|\n"
          "! t.csv: row 7 (line 8), column \"a\": \"-\" is not a number\n7:bad|~|\n"
          "! t.csv: row 8 (line 9), column \"a\": \".\" is not a number\n8:bad|~|\n"
          "! t.csv: row 9 (line 10), column \"a\": \"1e\" is not a number\n9:bad|~|\n"
          "! t.csv: row 10 (line 11), column \"a\": \"0x10\" is not a number\n10:bad|~|\n"
          "! t.csv: row 11 (line 12), column \"a\": \"1_0\" is not a number\n11:bad|~|\n"
          "! t.csv: row 12 (line 13), column \"a\": \"--1\" is not a number\n12:bad|~|\n"
          "! t.csv: row 13 (line 14), column \"a\": \"+-1\" is not a number\n13:bad|~|\n");
    CHECK_WITH(((struct csv_options){ .allow_nonfinite = 1 }),
               "a,b\ninf,-Inf\n-nan,+infinity\n1e400,1e39\n", "df",
               "a|b|\n1:inf|-inf|\n2:nan|inf|\n3:inf|inf|\n");
    CHECK("a,b\n 1 ,\t2.5\n+3,4.\n.5,-.5\n-0,-0.0\n1e3,25e-1\n", "df",
          "a|b|\n1:1|2.5|\n2:3|4|\n3:0.5|-0.5|\n4:-0|-0|\n5:1000|2.5|\n");
}

static void integers_are_exact_or_refused(void **state)
{
    (void)state;
    CHECK(
        "a\n9223372036854775807\n-9223372036854775808\n9223372036854775808\n12.0\n12.5\n1e3\n-"
        "7\n9999999999999999\n0.000\n1e19\n12000e-3\n",
          "i",
          "a|\n1:9223372036854775807|\n2:-9223372036854775808|\n"
        "! t.csv: row 3 (line 4), column \"a\": \"9223372036854775808\" is not an "
        "integer\n3:bad|~|\n4:12|\n"
        "! t.csv: row 5 (line 6), column \"a\": \"12.5\" is not an "
        "integer\n5:bad|~|\n6:1000|\n7:-7|\n"
          "8:9999999999999999|\n9:0|\n"
          "! t.csv: row 10 (line 11), column \"a\": \"1e19\" is not an integer\n"
          "10:bad|~|\n11:12|\n");
}

static uint64_t next_random(uint64_t *s)
{
    *s += 0x9e3779b97f4a7c15;
    uint64_t z = *s;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* Decimals of all lengths and scales, shortest and longest doubles, and points half way between
 * two neighbours. */
static void random_number(uint64_t *s, char *out, size_t size)
{
    uint64_t kind = next_random(s) % 6, r = next_random(s);
    double d;

    memcpy(&d, &r, sizeof d);
    if (kind == 0)
        snprintf(out, size, "%.*g", (int)(next_random(s) % 20) + 1, isfinite(d) ? d : 1.0);
    else if (kind == 1)
        snprintf(out, size, "%lld.%0*llu", (long long)(int64_t)r >> next_random(s) % 64,
                 (int)(next_random(s) % 18) + 1,
                 (unsigned long long)(next_random(s) >> next_random(s) % 64));
    else if (kind == 2)
        snprintf(out, size, "%llue%d", (unsigned long long)r, (int)(next_random(s) % 80) - 60);
    else if (kind == 3)         /* half way between two floats, to the last digit or beyond it */
        snprintf(out, size, "%.*f", (int)(next_random(s) % 40),
                 ldexp((double)((r & 0xffffff) * 2 + 1), (int)(next_random(s) % 40) - 30));
    else if (kind == 4)         /* the same for doubles: 54 bits */
        snprintf(out, size, "%llu%s", (unsigned long long)((r >> 10 | 1ULL << 53) | 1),
                 next_random(s) & 1 ? "" : ".00000000000000000000001");
    else
        snprintf(out, size, "%s%llu.%llu", r & 1 ? "-" : "", (unsigned long long)(r >> 54),
                 (unsigned long long)(next_random(s) >> (24 + next_random(s) % 40)));
}

static void numbers_are_correctly_rounded_on_every_instruction_set(void **state)
{
    (void)state;
    enum { N = 20000 };
    struct err err = { 0 };
    uint64_t seed = 7;
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    static char number[N][128];
    char *text;
    size_t size;
    FILE *f = open_memstream(&text, &size);

    fprintf(f, "a,b\n");
    for (int i = 0; i < N; i++) {
        random_number(&seed, number[i], sizeof number[i]);
        fprintf(f, "%s,%s\n", number[i], number[i]);
    }
    fclose(f);
    OWN_MEM char *path = put("n.csv", text, size);
    free(text);
    for (int isa = 0; isa < 3; isa++) {
        const char *paths[] = { path };
        struct csv_options o = { .allow_nonfinite = 1, .threads = 2 };
        OWN(csv) c = NULL;
        struct csv_block *b;
        setenv("MUSTER_ISA", isas[isa], 1);
        assert_ok(csv_open(paths, 1, &o, &c, &err));
        csv_select(c, 0, CSV_F64);
        csv_select(c, 1, CSV_F32);
        while (csv_next(c, &b, &err) == 0 && b) {
            for (long r = 0; r < b->rows; r++) {
                double d = strtod_l(number[b->first + r], NULL, c_locale);
                float s = strtof_l(number[b->first + r], NULL, c_locale);
                if (memcmp(&d, &b->column[0].f64[r], 8) != 0 ||
                    memcmp(&s, &b->column[1].f32[r], 4) != 0)
                    fail_msg("%s: %s is read as %a and %a, not %a and %a", isas[isa],
                             number[b->first + r], b->column[0].f64[r], (double)b->column[1].f32[r],
                             d, (double)s);
            }
            csv_block_free(c, b);
        }
    }
    unsetenv("MUSTER_ISA");
    freelocale(c_locale);
    unlink(path);
}

static void thousands_of_digits_still_decide_the_rounding(void **state)
{
    (void)state;
    /* 1 + 2^-53 is half way between two doubles; a digit far behind it tips the scale. */
    const char *half = "1.00000000000000011102230246251565404236316680908203125";
    char text[8000];
    double d;
    float s;

    for (int zeros = 0; zeros < 3000; zeros += 61) {
        int n = snprintf(text, sizeof text, "%s%0*d", half, zeros + 1, 0);
        assert_int_equal(csv_parse_f64(text, (size_t)n, &d), CSV_NUMBER);
        assert_true(d == 1);
        text[n - 1] = '1';
        assert_int_equal(csv_parse_f64(text, (size_t)n, &d), CSV_NUMBER);
        assert_true(d == 1 + 0x1p-52);
        n = snprintf(text, sizeof text, "-%0*d1%0*de-%d", zeros + 1, 0, zeros + 1, 0, zeros);
        assert_int_equal(csv_parse_f64(text, (size_t)n, &d), CSV_NUMBER);
        assert_true(d == -10);
        assert_int_equal(csv_parse_f32(text, (size_t)n, &s), CSV_NUMBER);
        assert_true(s == -10);
    }
    assert_int_equal(csv_parse_f64("1e99999999999999999999", 22, &d), CSV_NONFINITE);
    assert_int_equal(csv_parse_f64("1e-99999999999999999999", 23, &d), CSV_NUMBER);
    assert_true(d == 0);
}

static void scanners_agree_on_any_text(void **state)
{
    (void)state;
    static const char letters[] = "\"\",,\n\r\nab\"";
    enum { N = 300 };
    uint64_t seed = 3;
    char buffer[N + 2 * CSV_PAD] = { 0 }, *text = buffer + CSV_PAD;
    uint32_t plain[N + CSV_PAD], fast[N + CSV_PAD];

    for (int turn = 0; turn < 20000; turn++) {
        size_t n = next_random(&seed) % N;
        for (size_t i = 0; i < n; i++)
            text[i] = letters[next_random(&seed) % (sizeof letters - 1)];
        struct csv_marks want = { .at = plain, .room = N + CSV_PAD };
        csv_scan(CSV_SCALAR, text, n, ',', &want);
        setenv("MUSTER_ISA", "avx512", 1);
        for (enum csv_isa isa = CSV_AVX2; isa <= csv_isa_pick(); isa++) {
            struct csv_marks got = { .at = fast, .room = N + CSV_PAD };
            csv_scan(isa, text, n, ',', &got);
            assert_int_equal(got.n, want.n);
            assert_memory_equal(fast, plain, want.n * sizeof *plain);
            assert_int_equal(got.newlines, want.newlines);
            assert_int_equal(got.open, want.open);
        }
    }
    unsetenv("MUSTER_ISA");
}

/* A file of many blocks with everything in it. */
static char *long_file(int rows)
{
    uint64_t seed = 11;
    char *text;
    size_t size;
    FILE *f = open_memstream(&text, &size);

    fprintf(f, "n,x,name,word\n");
    for (int i = 0; i < rows; i++) {
        uint64_t r = next_random(&seed);
        if (r % 97 == 0)
            fprintf(f, "%s", r & 1024 ? "\n" : "1,2\n");
        else
            fprintf(f, "%d,%s%.9f,\"n%d \"\"q\"\"\n\",w%d%s", i, r % 5 ? "" : "-",
                    (double)(r >> 40) / 1e4, (int)(r >> 32 & 255) * (i / 1000),
                    (int)(r % 3 ? r >> 8 & 63 : 0), i % 7 ? "\n" : "\r\n");
    }
    fclose(f);
    char *path = put("long.csv", text, size);
    free(text);
    return path;
}

static void blocks_threads_and_instruction_sets_leave_no_trace(void **state)
{
    (void)state;
    OWN_MEM char *path = long_file(6000);
    const char *paths[] = { path };
    OWN_MEM char *want = NULL;

    for (int isa = 0; isa < 3; isa++)
        for (int threads = 1; threads <= 4; threads++)
            for (size_t size = 900; size <= 300000; size = size * 17) {
                struct csv_options o = { .threads = threads, .block_bytes = size };
                setenv("MUSTER_ISA", isas[isa], 1);
                char *got = csv_dump(paths, 1, &o, "idcc");
                if (want) {
                    if (strcmp(got, want) != 0)
                        fail_msg("%s, %d threads, %zu bytes: another table", isas[isa], threads,
                                 size);
                    free(got);
                } else {
                    want = got;
                }
            }
    unsetenv("MUSTER_ISA");
    unlink(path);
}

static void a_reader_rewinds_keeps_its_codes_and_can_stop_early(void **state)
{
    (void)state;
    OWN_MEM char *path = long_file(4000);
    const char *paths[] = { path };
    struct csv_options o = { .threads = 2, .block_bytes = 2000 };
    struct err err = { 0 };
    OWN(csv) c = NULL;
    struct csv_block *b, *held[3];
    long rows[3] = { 0 };
    uint32_t first[3];
    int column;

    assert_ok(csv_open(paths, 1, &o, &c, &err));
    assert_ok(csv_find(c, "word", &column, &err));
    assert_fails(csv_find(c, "words", &column, &err), ERR_MISSING);
    assert_non_null(strstr(err.text, "(there are: n, x, name, word)"));
    for (int pass = 0; pass < 3; pass++) {
        csv_select(c, column, CSV_DICT);
        csv_select(c, 2, pass == 1 ? CSV_TEXT : CSV_SKIP);
        /* Several blocks held at once stay as they are. */
        for (int i = 0; i < 3; i++) {
            assert_ok(csv_next(c, &held[i], &err));
            assert_non_null(held[i]);
        }
        first[pass] = held[2]->column[column].code[0];
        if (pass == 1)
            assert_memory_equal(held[0]->column[2].text[1].p, "n0 \"q\"\n", 7);
        for (int i = 0; i < 3; i++) {
            rows[pass] += held[i]->rows;
            csv_block_free(c, held[i]);
        }
        while (pass == 1 && csv_next(c, &b, &err) == 0 && b)
            csv_block_free(c, b);
        assert_ok(csv_rewind(c, &err));
    }
    assert_int_equal(rows[0], rows[1]);
    assert_int_equal(first[0], first[1]);
    assert_int_equal(first[0], first[2]);
    unlink(path);
}

static void several_files_are_one_table_if_their_headers_agree(void **state)
{
    (void)state;
    struct csv_options o = { .threads = 2 };
    OWN_MEM char *a = put("a.csv", "x,y\n1,u\n2,v", 11),
                 *b = put("b.csv", "\"x\",y\r\n3,v\nq,u\n", 15);
    OWN_MEM char *d = put("d.csv", "x,z\n1,2\n", 8), *e = put("e.csv", "", 0);
    const char *ab[] = { a, b }, *ad[] = { a, d }, *ae[] = { a, e };
    OWN_MEM char *one = csv_dump(ab, 2, &o, "ic");
    assert_string_equal(one, "x|y|\n1:1|0=u|\n2:2|1=v|\n1:3|1=v|\n"
                             "! b.csv: row 2 (line 3), column \"x\": \"q\" is not a number\n"
                             "2:bad|~|0=u|\n");
    OWN_MEM char *two = csv_dump(ad, 2, &o, "ic");
    assert_string_equal(two, "x|y|\n1:1|0=u|\n2:2|1=v|\n"
                             "! d.csv: column 2 of its header is \"z\", in the first file \"y\"\n");
    OWN_MEM char *three = csv_dump(ae, 2, &o, "ic");
    assert_string_equal(three, "x|y|\n1:1|0=u|\n2:2|1=v|\n! e.csv: is empty\n");
    for (int i = 0; i < 2; i++)
        unlink(ab[i]);
    unlink(d);
    unlink(e);
}

static void gzip_is_read_like_the_text_and_a_cut_one_says_where(void **state)
{
    (void)state;
    OWN_MEM char *plain = long_file(5000), *zipped = put("long.csv.gz", "", 0);
    struct csv_options o = { .threads = 2, .block_bytes = 5000 };
    const char *p[] = { plain }, *z[] = { zipped };
    char buffer[4096];
    size_t n;
    FILE *f = fopen(plain, "rb");
    gzFile g = gzopen(zipped, "wb");

    while ((n = fread(buffer, 1, sizeof buffer, f)) > 0)
        gzwrite(g, buffer, (unsigned)n);
    fclose(f);
    gzclose(g);
    OWN_MEM char *want = csv_dump(p, 1, &o, "idcc"), *got = csv_dump(z, 1, &o, "idcc");
    for (char *at = want; (at = strstr(at, "! long.csv:"));)
        memcpy(at, "! long.cs_:", 11);
    for (char *at = got; (at = strstr(at, "! long.csv.gz:"));)
        memmove(memcpy(at, "! long.cs_", 10) + 10, at + 13, strlen(at + 13) + 1);
    assert_string_equal(got, want);

    assert_int_equal(truncate(zipped, 20000), 0);
    OWN_MEM char *cut = csv_dump(z, 1, &o, "idcc");
    char *last = strrchr(cut, '!');
    assert_string_equal(
        last,
        "! long.csv.gz: the gzip file is cut off at byte 20000 (download or compress it again)\n");
    assert_true(last - cut > 10000);    /* what could be read was delivered */
    unlink(plain);
    unlink(zipped);
    rmdir(dir);
}

CHECK_MAIN(rows_end_with_lf_or_crlf_and_the_last_may_end_with_neither,
           a_byte_order_mark_and_empty_lines_are_no_data,
           quoted_numbers_are_numbers_and_quoted_nothing_is_missing,
           quotes_hold_delimiters_newlines_and_doubled_quotes,
           a_quote_inside_a_bare_field_is_a_character,
           text_after_a_closing_quote_makes_the_field_bad_and_only_it,
           a_ragged_row_is_named_and_left_out, missing_texts_are_the_callers,
           names_delimiter_and_skipped_lines_are_options,
           an_empty_file_and_an_open_quote_are_one_sentence_each,
           a_row_beyond_the_limit_is_refused_not_swallowed, numbers_that_are_none_are_told_apart,
           integers_are_exact_or_refused, numbers_are_correctly_rounded_on_every_instruction_set,
           thousands_of_digits_still_decide_the_rounding, scanners_agree_on_any_text,
           blocks_threads_and_instruction_sets_leave_no_trace,
           a_reader_rewinds_keeps_its_codes_and_can_stop_early,
           several_files_are_one_table_if_their_headers_agree,
           gzip_is_read_like_the_text_and_a_cut_one_says_where)
