/* tests/unit/source_test.c - does the byte source keep its header's word? */
#include "data/source.h"

#include <sys/stat.h>
#include <zlib.h>

#include "tests/check.h"

static char dir[] = "/tmp/muster-source-XXXXXX";

static char *in_dir(const char *name)
{
    char *path;

    if (strstr(dir, "XXXXXX"))
        assert_non_null(mkdtemp(dir));
    assert_true(asprintf(&path, "%s/%s", dir, name) > 0);
    return path;
}

/* mode as for gzopen: "wbT" plain, "wb" gzip, "ab" one more member. */
static char *put(const char *name, const char *mode, const char *text)
{
    char *path = in_dir(name);
    gzFile g = gzopen(path, mode);

    assert_non_null(g);
    gzwrite(g, text, (unsigned)strlen(text));
    gzclose(g);
    return path;
}

static void add_raw(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "ab");
    fwrite(bytes, 1, n, f);
    fclose(f);
}

/* Everything, read by `step` bytes; "#" at the end of each file, "! " and the text of an error. */
static char *read_all(const char *const *paths, int n, size_t step)
{
    struct err err = { 0 };
    OWN(source) s = NULL;
    char *text, buffer[64];
    size_t size, got;
    FILE *f = open_memstream(&text, &size);
    int more = 1, rc = source_open(paths, n, &s, &err);

    while (rc == 0 && more) {
        while ((rc = source_read(s, buffer, step, &got, &err)) == 0 && got) {
            fwrite(buffer, 1, got, f);
            if (got < step) {
                assert_ok(source_read(s, buffer, step, &got, &err));
                assert_int_equal(got, 0);
                break;
            }
        }
        if (rc == 0) {
            fputc('#', f);
            rc = source_next(s, &more, &err);
        }
    }
    if (rc < 0)
        fprintf(f, "! %s", strrchr(err.text, '/') ? strrchr(err.text, '/') + 1 : err.text);
    fclose(f);
    return text;
}

static void reads(const char *const *paths, int n, const char *want)
{
    for (size_t step = 1; step <= 64; step = step * 3 + 1) {
        OWN_MEM char *got = read_all(paths, n, step);
        assert_string_equal(got, want);
    }
}

static void plain_and_gzip_files_follow_one_another(void **state)
{
    (void)state;
    OWN_MEM char *a = put("a", "wbT", "plain text"), *b = put("b.txt", "wb", "zipped text");
    OWN_MEM char *e = put("e", "wbT", ""), *one = put("one", "wbT", "1"), *z = put("z", "wb", "");
    reads((const char *[]){ a, b, e, one, z, a }, 6, "plain text#zipped text##1##plain text#");
    struct err err = { 0 };
    OWN(source) s = NULL;
    char buffer[6];
    size_t n;
    assert_ok(source_open((const char *[]){ a, b }, 2, &s, &err));
    assert_int_equal(source_size(s), 10);
    assert_ok(source_read(s, buffer, 6, &n, &err));
    assert_int_equal(source_offset(s), 6);
    int more;
    assert_ok(source_next(s, &more, &err));
    assert_int_equal(source_offset(s), 0);
    assert_int_equal(source_size(s), -1);
    assert_int_equal(source_file(s), 1);
    assert_string_equal(source_path(s), b);
    assert_ok(source_next(s, &more, &err));
    assert_int_equal(more, 0);
    assert_ok(source_rewind(s, &err));
    assert_ok(source_read(s, buffer, 6, &n, &err));
    assert_memory_equal(buffer, "plain ", 6);
}

static void gzip_members_and_zero_padding_are_one_text(void **state)
{
    (void)state;
    OWN_MEM char *p = put("members", "wb", "one,");
    free(put("members", "ab", "two"));
    reads((const char *[]){ p }, 1, "one,two#");
    add_raw(p, "\0\0\0", 3);
    reads((const char *[]){ p }, 1, "one,two#");
    add_raw(p, "x", 1);
    OWN_MEM char *got = read_all((const char *[]){ p }, 1, 64);
    assert_non_null(strstr(got, "! members: has bytes after the gzip data"));
}

static void damage_is_one_sentence(void **state)
{
    (void)state;
    OWN_MEM char *p = put("cut", "wb", "some text that is long enough to be cut");
    struct stat st;
    assert_int_equal(stat(p, &st), 0);
    for (off_t n = st.st_size - 1; n >= 2; n--) {
        char want[100];
        assert_int_equal(truncate(p, n), 0);
        snprintf(want, sizeof want,
                 "! cut: the gzip file is cut off at byte %d (download or compress it again)",
                 (int)n);
        OWN_MEM char *got = read_all((const char *[]){ p }, 1, 64);
        assert_string_equal(strchr(got, '!'), want);
    }
    OWN_MEM char *q = put("bad", "wb", "some text that is long enough to be damaged");
    FILE *f = fopen(q, "rb+");
    fseek(f, -6, SEEK_END);
    fputc('?', f);
    fclose(f);
    OWN_MEM char *got = read_all((const char *[]){ q }, 1, 64);
    assert_non_null(strstr(got, "! bad: the gzip data is damaged before byte"));
    assert_non_null(strstr(got, "(download it again)"));
}

static void a_folder_and_a_missing_file_say_so(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN(source) s = NULL;
    OWN_MEM char *none = in_dir("none"), *a = put("a", "wbT", "x");

    assert_fails(source_open((const char *[]){ none }, 1, &s, &err), ERR_MISSING);
    assert_non_null(strstr(err.text, "none: no such file"));
    assert_fails(source_open((const char *[]){ dir }, 1, &s, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, ": is a folder, not a file"));
    reads((const char *[]){ a, none }, 2, "x#! none: no such file");
}

static void a_whole_file_comes_at_once_up_to_a_limit(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN_MEM char *big = malloc(300001);
    memset(big, 'x', 300000);
    big[300000] = 0;
    for (int gzip = 0; gzip < 2; gzip++) {
        OWN_MEM char *p = put("big", gzip ? "wb" : "wbT", big), *all = NULL, *none = NULL;
        size_t n;
        assert_ok(source_slurp(p, 300000, &all, &n, NULL, &err));
        assert_int_equal(n, 300000);
        assert_string_equal(all, big);
        assert_fails(source_slurp(p, 299999, &none, &n, NULL, &err), ERR_INVALID);
        assert_non_null(strstr(err.text, "is longer than 299999 bytes"));
    }
    OWN_MEM char *left = NULL;
    assert_true(asprintf(&left, "rm -r %s", dir) > 0);
    assert_int_equal(system(left), 0);
}

CHECK_MAIN(plain_and_gzip_files_follow_one_another, gzip_members_and_zero_padding_are_one_text,
           damage_is_one_sentence, a_folder_and_a_missing_file_say_so,
           a_whole_file_comes_at_once_up_to_a_limit)
