/* tests/unit/files_test.c - paths, whole reads, and writes that cannot half-happen */
#include "base/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "tests/check.h"

static char dir[64];

static const char *fresh_dir(void)
{
    snprintf(dir, sizeof dir, "/tmp/muster-files-XXXXXX");
    assert_non_null(mkdtemp(dir));
    return dir;
}

static char *in_dir(const char *name)
{
    char *p;
    assert_true(asprintf(&p, "%s/%s", dir, name) > 0);
    return p;
}

static int entries(void)
{
    DIR *d = opendir(dir);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void remove_dir(const char *only_file)
{
    if (only_file)
        unlink(only_file);
    assert_int_equal(rmdir(dir), 0);
}

static void paths_expand_home_and_data_and_start_at_the_given_directory(void **state)
{
    (void)state;
    static const struct {
        const char *dir, *path, *want;
    } rows[] = {
        { "/spec", "a.csv", "/spec/a.csv" },        { "/spec/", "a.csv", "/spec/a.csv" },
        { "/spec", "/a.csv", "/a.csv" },            { NULL, "a.csv", "a.csv" },
        { "", "a.csv", "a.csv" },                   { "/spec", "~", "/h" },
        { "/spec", "~/a.csv", "/h/a.csv" },         { "/spec", "~bob/a", "/spec/~bob/a" },
        { "/spec", "$MUSTER_DATA/a", "/d/a" },      { "/spec", "${MUSTER_DATA}/a", "/d/a" },
        { "/s", "$MUSTER_DATABASE/a", "/s/$MUSTER_DATABASE/a" },
    };
    setenv("HOME", "/h", 1);
    setenv("MUSTER_DATA", "/d", 1);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        OWN_MEM char *got = files_resolve(rows[i].dir, rows[i].path);
        assert_string_equal(got, rows[i].want);
    }
}

static void the_data_directory_has_a_default_in_the_cache(void **state)
{
    (void)state;
    setenv("HOME", "/h", 1);
    unsetenv("MUSTER_DATA");
    unsetenv("XDG_CACHE_HOME");
    OWN_MEM char *plain = files_resolve("/s", "$MUSTER_DATA/x");
    assert_string_equal(plain, "/h/.cache/muster/data/x");
    setenv("XDG_CACHE_HOME", "/c", 1);
    OWN_MEM char *xdg = files_resolve("/s", "$MUSTER_DATA/x");
    assert_string_equal(xdg, "/c/muster/data/x");
}

static void a_file_is_read_back_whole_and_ends_in_nul(void **state)
{
    (void)state;
    struct err err = { 0 };
    fresh_dir();
    OWN_MEM char *path = in_dir("f"), *got = NULL, *empty = NULL;
    size_t n = 0;
    assert_ok(files_write(path, "a\0b", 3, &err));
    assert_ok(files_read(path, 100, &got, &n, &err));
    assert_int_equal(n, 3);
    assert_memory_equal(got, "a\0b", 4);
    assert_ok(files_write(path, "", 0, &err));
    assert_ok(files_read(path, 0, &empty, NULL, &err));
    assert_string_equal(empty, "");
    remove_dir(path);
}

static void a_file_longer_than_allowed_is_refused_and_one_of_that_length_is_not(void **state)
{
    (void)state;
    struct err err = { 0 };
    fresh_dir();
    OWN_MEM char *path = in_dir("f"), *got = NULL;
    assert_ok(files_write(path, "12345", 5, &err));
    assert_fails(files_read(path, 4, &got, NULL, &err), ERR_INVALID);
    assert_null(got);
    assert_ok(files_read(path, 5, &got, NULL, &err));
    assert_string_equal(got, "12345");
    remove_dir(path);
}

static void what_cannot_be_read_is_named(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN_MEM char *got = NULL;
    assert_fails(files_read("/nonexistent/f", 9, &got, NULL, &err), ERR_MISSING);
    assert_non_null(strstr(err.text, "/nonexistent/f"));
    assert_fails(files_read("/", 9, &got, NULL, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "directory"));
}

static void directories_are_made_with_parents_and_twice(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct stat st;
    fresh_dir();
    OWN_MEM char *deep = in_dir("a/b//c/"), *a = in_dir("a"), *b = in_dir("a/b");
    OWN_MEM char *c = in_dir("a/b/c"), *file = in_dir("a/b/c/f"), *under = in_dir("a/b/c/f/g");
    assert_ok(files_mkdir(deep, &err));
    assert_ok(files_mkdir(deep, &err));
    assert_int_equal(stat(c, &st), 0);
    assert_ok(files_write(file, "x", 1, &err));
    assert_fails(files_mkdir(file, &err), ERR_CONFLICT);
    assert_fails(files_mkdir(under, &err), ERR_CONFLICT);
    unlink(file);
    rmdir(c);
    rmdir(b);
    rmdir(a);
    remove_dir(NULL);
}

static void pieces_appear_only_with_the_commit(void **state)
{
    (void)state;
    struct err err = { 0 };
    fresh_dir();
    OWN_MEM char *path = in_dir("f"), *got = NULL;
    enum { BIG = 200000 };
    OWN_MEM char *big = malloc(BIG);
    memset(big, 'x', BIG);

    struct file_writer *w = NULL;
    assert_ok(file_writer_open(path, &w, &err));
    assert_ok(file_writer_write(w, "head", 4, &err));
    assert_ok(file_writer_write(w, big, BIG, &err));
    assert_ok(file_writer_write(w, "tail", 4, &err));
    assert_int_equal(access(path, F_OK), -1);
    assert_ok(file_writer_commit(w, &err));
    file_writer_free(w);

    size_t n;
    assert_ok(files_read(path, 1 << 20, &got, &n, &err));
    assert_int_equal(n, BIG + 8);
    assert_memory_equal(got, "headx", 5);
    assert_memory_equal(got + n - 5, "xtail", 5);

    w = NULL;
    assert_ok(file_writer_open(path, &w, &err));
    assert_ok(file_writer_write(w, "other", 5, &err));
    file_writer_free(w);                /* taken back: the first file stays, alone */
    assert_int_equal(entries(), 1);
    remove_dir(path);
}

/* Every call of a replacement fails in turn; the file is always whole, the directory clean. */
static void whichever_call_fails_the_file_is_whole_and_nothing_is_left(void **state)
{
    (void)state;
    struct err err = { 0 };
    fresh_dir();
    OWN_MEM char *path = in_dir("f");
    enum { NEW = 150000 };
    OWN_MEM char *fresh = malloc(NEW);
    memset(fresh, 'n', NEW);
    int failures = 0;

    for (long n = 1;; n++) {
        files_fault(NULL, 0);
        assert_ok(files_write(path, "old", 3, &err));
        files_fault("any", n);
        int rc = files_write(path, fresh, NEW, &err);
        files_fault(NULL, 0);

        OWN_MEM char *got = NULL;
        size_t got_n;
        assert_ok(files_read(path, 1 << 20, &got, &got_n, &err));
        assert_int_equal(entries(), 1);
        if (rc == 0) {
            assert_int_equal(got_n, NEW);
            break;
        }
        failures++;
        assert_true(rc == -ERR_IO);
        assert_true(got_n == 3 || got_n == NEW);
    }
    assert_in_range(failures, 5, 20);           /* open, write, fsync, rename, fsync */
    remove_dir(path);
}

static void what_a_killed_writer_left_is_in_nobodys_way(void **state)
{
    (void)state;
    enum { LEFT = 500 };        /* as many as this process may have written by now */
    struct err err = { 0 };
    fresh_dir();
    OWN_MEM char *path = in_dir("f");
    char left[PATH_MAX];
    for (int i = 0; i < LEFT; i++) {    /* in a sandbox process numbers come again */
        snprintf(left, sizeof left, "%s.tmp-%d-%d", path, (int)getpid(), i);
        int fd = open(left, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        assert_true(fd >= 0);
        close(fd);
    }
    assert_ok(files_write(path, "x", 1, &err));
    assert_int_equal(entries(), LEFT + 1);
    for (int i = 0; i < LEFT; i++) {
        snprintf(left, sizeof left, "%s.tmp-%d-%d", path, (int)getpid(), i);
        unlink(left);
    }
    OWN_MEM char *text = NULL;
    assert_ok(files_read(path, 10, &text, NULL, &err));
    assert_string_equal(text, "x");
    remove_dir(path);
}

static void a_full_disk_is_said_and_stays_full(void **state)
{
    (void)state;
    struct err err = { 0 };
    fresh_dir();
    OWN_MEM char *path = in_dir("f");
    files_fault("write", 1);
    assert_fails(files_write(path, "x", 1, &err), ERR_IO);
    assert_non_null(strstr(err.text, "disk is full"));
    assert_fails(files_write(path, "x", 1, &err), ERR_IO);
    files_fault(NULL, 0);
    assert_ok(files_write(path, "x", 1, &err));
    remove_dir(path);
}

CHECK_MAIN(paths_expand_home_and_data_and_start_at_the_given_directory,
           the_data_directory_has_a_default_in_the_cache,
           a_file_is_read_back_whole_and_ends_in_nul,
           a_file_longer_than_allowed_is_refused_and_one_of_that_length_is_not,
           what_cannot_be_read_is_named, directories_are_made_with_parents_and_twice,
           pieces_appear_only_with_the_commit,
           whichever_call_fails_the_file_is_whole_and_nothing_is_left,
           what_a_killed_writer_left_is_in_nobodys_way, a_full_disk_is_said_and_stays_full)
