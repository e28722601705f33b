/* tests/unit/files_test.c - paths, whole reads, and writes that cannot half-happen */
#include "base/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/xattr.h>

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

/* ------------------------------------------------------------ paths that a user names */

static void assert_content(const char *path, const char *want)
{
    struct err err = { 0 };
    OWN_MEM char *text = NULL;
    assert_ok(files_read(path, 1 << 20, &text, NULL, &err));
    assert_string_equal(text, want);
}

static void a_link_stays_and_the_file_that_it_leads_to_is_replaced_in_its_own_directory(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct stat st;
    fresh_dir();
    OWN_MEM char *sub = in_dir("sub"), *file = in_dir("sub/f"), *link = in_dir("l");
    OWN_MEM char *second = in_dir("sub/l2"), *other = in_dir("sub/hard");
    assert_int_equal(mkdir(sub, 0777), 0);
    assert_ok(files_write(file, "old", 3, &err));
    assert_int_equal(symlink("f", second), 0);          /* relative to the link, not to us */
    assert_int_equal(symlink("sub/l2", link), 0);
    assert_int_equal(linkat(AT_FDCWD, file, AT_FDCWD, other, 0), 0);

    assert_ok(files_output(link, "new", 3, &err));
    assert_int_equal(lstat(link, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(lstat(second, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_content(file, "new");
    assert_content(other, "old");               /* a hard link keeps the old file */

    unlink(file);                               /* now the link leads to nothing yet */
    assert_ok(files_output(link, "made", 4, &err));
    assert_content(file, "made");
    unlink(second);
    assert_int_equal(symlink("none/f", second), 0);
    assert_fails(files_output(link, "x", 1, &err), ERR_MISSING);
    assert_non_null(strstr(err.text, "none/f"));
    unlink(second);
    assert_int_equal(symlink("l2", second), 0); /* to itself */
    assert_fails(files_output(link, "x", 1, &err), ERR_IO);
    unlink(second);
    unlink(other);
    unlink(file);
    rmdir(sub);
    remove_dir(link);
}

static void a_replaced_file_keeps_its_mode_and_a_new_one_gets_the_usual(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct stat st;
    fresh_dir();
    OWN_MEM char *path = in_dir("f");
    const mode_t before = umask(022);
    assert_ok(files_output(path, "a", 1, &err));
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0644);
    assert_int_equal(chmod(path, 0600), 0);
    int owned = geteuid() == 0 && chown(path, 1234, 4321) == 0;
    int marked = setxattr(path, "user.note", "kept", 4, 0) == 0;
    assert_ok(files_output(path, "b", 1, &err));
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    if (owned) {
        assert_int_equal(st.st_uid, 1234);
        assert_int_equal(st.st_gid, 4321);
    }
    char note[8] = "";
    if (marked)
        assert_int_equal(getxattr(path, "user.note", note, sizeof note), 4);
    assert_content(path, "b");
    umask(before);
    remove_dir(path);
}

/* What comes out of `fd` until its end, checked. */
static void assert_reads(int fd, const char *want)
{
    char got[64] = "";
    ssize_t n = read(fd, got, sizeof got - 1);
    assert_true(n >= 0);
    assert_string_equal(got, want);
}

static void what_is_no_regular_file_is_written_through_and_stays(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct stat was, now;
    fresh_dir();

    /* Root may replace a device: nodes of the test's own. Others have the machine's, and cannot. */
    const int root = geteuid() == 0;
    OWN_MEM char *null = root ? in_dir("null") : strdup("/dev/null");
    OWN_MEM char *full = root ? in_dir("full") : strdup("/dev/full");
    const int nodes = !root || (mknod(null, S_IFCHR | 0666, makedev(1, 3)) == 0 &&
                                mknod(full, S_IFCHR | 0666, makedev(1, 7)) == 0);
    if (nodes) {                /* in a container without CAP_MKNOD there are none */
        assert_int_equal(stat(null, &was), 0);
        assert_ok(files_output(null, "x", 1, &err));
        assert_int_equal(stat(null, &now), 0);
        assert_true(S_ISCHR(now.st_mode));
        assert_int_equal(now.st_ino, was.st_ino);
        assert_fails(files_output(full, "x", 1, &err), ERR_IO);
        assert_null(strstr(err.text, "kept"));  /* nothing was there before */
    }
    if (root) {
        unlink(null);
        unlink(full);
    }

    OWN_MEM char *fifo = in_dir("fifo"), *link = in_dir("l");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(symlink("fifo", link), 0);
    int reader = open(fifo, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    assert_true(reader >= 0);
    assert_ok(files_output(link, "piped", 5, &err));
    assert_reads(reader, "piped");
    close(reader);
    unlink(link);
    unlink(fifo);

    OWN_MEM char *name = in_dir("socket");
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    snprintf(at.sun_path, sizeof at.sun_path, "%s", name);
    int door = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(door, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(door, 1), 0);
    assert_ok(files_output(name, "sent", 4, &err));
    int from = accept(door, NULL, NULL);
    assert_reads(from, "sent");
    close(from);
    close(door);
    assert_fails(files_output(name, "x", 1, &err), ERR_IO);     /* nobody listens any more */
    assert_fails(files_output(dir, "x", 1, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "directory"));
    remove_dir(name);
}

static void a_descriptor_by_name_is_written_where_it_stands(void **state)
{
    (void)state;
    struct err err = { 0 };
    char by_name[64];
    fresh_dir();
    OWN_MEM char *path = in_dir("f");
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, "head ", 5), 5);
    static const char *const forms[] = { "/proc/self/fd/%d", "/dev/fd/%d", "/proc/thread-self/fd/%d" };
    for (int i = 0; i < 3; i++) {
        snprintf(by_name, sizeof by_name, forms[i], fd);
        assert_ok(files_output(by_name, "x", 1, &err));
    }
    assert_int_equal(write(fd, " tail", 5), 5);
    close(fd);
    assert_content(path, "head xxx tail");
    assert_int_equal(entries(), 1);

    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    snprintf(by_name, sizeof by_name, "/proc/self/fd/%d", pair[0]);
    assert_ok(files_output(by_name, "s", 1, &err));     /* open() of it fails: ENXIO */
    assert_reads(pair[1], "s");
    close(pair[0]);
    close(pair[1]);
    assert_true(files_output(by_name, "x", 1, &err) < 0);
    remove_dir(path);
}

static void whichever_call_fails_a_linked_file_is_whole_and_nothing_is_left(void **state)
{
    (void)state;
    struct err err = { 0 };
    fresh_dir();
    OWN_MEM char *path = in_dir("f"), *link = in_dir("l");
    assert_int_equal(symlink("f", link), 0);
    int failures = 0;
    for (long n = 1;; n++) {
        assert_ok(files_write(path, "old", 3, &err));
        files_fault("any", n);
        int rc = files_output(link, "new!", 4, &err);
        files_fault(NULL, 0);
        assert_int_equal(entries(), 2);
        OWN_MEM char *got = NULL;
        assert_ok(files_read(path, 10, &got, NULL, &(struct err){ 0 }));
        if (rc == 0)
            break;
        failures++;
        assert_non_null(strstr(err.text, link));
        assert_true(!strcmp(got, "old") || !strcmp(got, "new!"));
    }
    assert_int_equal(failures, 5);              /* open, write, fsync, rename, fsync */
    unlink(link);
    remove_dir(path);
}

static void a_stream_into_a_writer_fails_with_the_writers_reason(void **state)
{
    (void)state;
    struct err err = { 0 };
    fresh_dir();
    OWN_MEM char *path = in_dir("f");
    for (int full = 0; full < 2; full++) {
        OWN(file_writer) w = NULL;
        assert_ok(file_writer_output(path, &w, &err));
        FILE *f = file_writer_stream(w);
        assert_non_null(f);
        files_fault(full ? "write" : NULL, full);
        for (int i = 0; i < 200000; i++)
            fputs("line\n", f);
        assert_int_equal(fclose(f) != 0 || full, full);
        int rc = file_writer_commit(w, &err);
        files_fault(NULL, 0);
        assert_int_equal(rc, full ? -ERR_IO : 0);
    }
    assert_non_null(strstr(err.text, "disk is full"));
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 1000000);
    assert_int_equal(entries(), 1);
    remove_dir(path);
}

static void a_long_name_has_room_for_the_file_beside_it(void **state)
{
    (void)state;
    struct err err = { 0 };
    char name[256];
    fresh_dir();
    memset(name, 'n', 255);
    name[255] = '\0';
    OWN_MEM char *path = in_dir(name);
    assert_ok(files_output(path, "x", 1, &err));
    assert_content(path, "x");
    remove_dir(path);
}

CHECK_MAIN(paths_expand_home_and_data_and_start_at_the_given_directory,
           the_data_directory_has_a_default_in_the_cache,
           a_file_is_read_back_whole_and_ends_in_nul,
           a_file_longer_than_allowed_is_refused_and_one_of_that_length_is_not,
           what_cannot_be_read_is_named, directories_are_made_with_parents_and_twice,
           pieces_appear_only_with_the_commit,
           whichever_call_fails_the_file_is_whole_and_nothing_is_left,
           what_a_killed_writer_left_is_in_nobodys_way, a_full_disk_is_said_and_stays_full,
           a_link_stays_and_the_file_that_it_leads_to_is_replaced_in_its_own_directory,
           a_replaced_file_keeps_its_mode_and_a_new_one_gets_the_usual,
           what_is_no_regular_file_is_written_through_and_stays,
           a_descriptor_by_name_is_written_where_it_stands,
           whichever_call_fails_a_linked_file_is_whole_and_nothing_is_left,
           a_stream_into_a_writer_fails_with_the_writers_reason,
           a_long_name_has_room_for_the_file_beside_it)
