/* tests/unit/damage_test.c - bytes that changed on the disk: refused and told, never given to anybody */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/files.h"
#include "base/sealed.h"
#include "drivers/journal.h"
#include "server/logs.h"
#include "server/objects.h"
#include "server/server.h"
#include "server/store_pages.h"
#include "tests/check.h"

static char folder[64], other[80];
static struct server server;

static void run(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void run(const char *format, ...)
{
    char command[512];
    va_list args;

    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    assert_int_equal(system(command), 0);
}

static void make_folder(void)
{
    snprintf(folder, sizeof folder, "/tmp/muster-damage-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(other, sizeof other, "%s/copy", folder);
}

static void flip(const char *path, int64_t at, int mask)
{
    struct stat st;
    char byte;
    int fd = open(path, O_RDWR);

    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte = (char)(byte ^ mask);
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    struct timespec times[2] = { st.st_atim, { st.st_mtim.tv_sec - 60, 0 } };
    assert_int_equal(futimens(fd, times), 0);
    close(fd);
}

/* ------------------------------------------------------------ the database */

static const char *const schema[] = { "CREATE TABLE t (k INTEGER PRIMARY KEY, v TEXT)", NULL };

static int put_rows(sqlite3 *db, void *arg, struct err *err)
{
    (void)arg;
    for (int64_t i = 0; i < 2000; i++)
        if (store_run(db, err, "INSERT INTO t VALUES (NULL, ?)", "s", "what is kept") < 0)
            return -(int)err->code;
    return 0;
}

static int read_rows(sqlite3 *db, void *arg, struct err *err)
{
    sqlite3_stmt *st = store_sql(db, "SELECT v FROM t ORDER BY k", err);
    int *n = arg, rc;

    for (*n = 0; st && (rc = store_step(st, err)) > 0; ++*n)
        assert_string_equal(sqlite3_column_text(st, 0), "what is kept");
    return st ? rc : -(int)err->code;
}

static struct store *open_with_rows(const char *dir, int n)
{
    struct err err = { 0 };
    struct store *s = NULL;

    assert_ok(store_open(dir, &s, &err));
    assert_ok(store_schema(s, "test", schema, &err));
    for (int i = 0; i < n; i++)
        assert_ok(store_write(s, put_rows, NULL, &err));
    return s;
}

static void a_page_that_changed_is_refused_and_listed(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct store *s = NULL;
    char path[96];
    struct stat st;
    int refused = 0, failed = 0;

    make_folder();
    store_free(open_with_rows(folder, 3));
    snprintf(path, sizeof path, "%s/muster.db", folder);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size % PAGES_SIZE, 0);
    for (int64_t page = 0; page < 20; page++)
        for (int i = 0; i < 3; i++) {
            int64_t at = page * PAGES_SIZE + (page * 977 + i * 1361 + (page ? 0 : i * 20)) % PAGES_SIZE;
            int n, found = 0;
            flip(path, at, 1 << (i * 2));
            if (store_open(folder, &s, &err) < 0) {
                refused++;
            } else {
                if (store_read(s, read_rows, &n, &err) < 0)
                    failed++;
                else
                    assert_int_equal(n, 6000);
                assert_ok(store_check(s, check_count, &found, &err));
                assert_true(found > 0);
                store_free(s);
            }
            s = NULL;
            if (err.code && !strstr(err.text, "damaged"))
                fail_msg("byte %lld: %s", (long long)at, err.text);
            err = (struct err){ 0 };
            flip(path, at, 1 << (i * 2));
        }
    assert_true(refused > 0 && failed > 20);
    int n;
    s = open_with_rows(folder, 0);
    assert_ok(store_read(s, read_rows, &n, &err));
    assert_int_equal(n, 6000);
    store_free(s);
    run("rm -rf %s", folder);
}

static void a_damaged_log_of_the_database_is_refused_not_forgotten(void **state)
{
    (void)state;
    struct err err = { 0 };
    char path[128];
    struct stat st;
    int n;

    make_folder();
    struct store *s = open_with_rows(folder, 3), *copy = NULL;
    for (int i = 0; i < 16; i++) {
        run("rm -rf %s; mkdir %s; cp %s/muster.db* %s/", other, other, folder, other);
        snprintf(path, sizeof path, "%s/muster.db-wal", other);
        assert_int_equal(stat(path, &st), 0);
        flip(path, i < 6 ? i * 4 : (int64_t)i * 2477 % st.st_size, 8);
        assert_fails(store_open(other, &copy, &err), ERR_IO);
        assert_non_null(strstr(err.text, "muster.db-wal is damaged"));
    }
    /* A frame of a log that is in use. */
    snprintf(path, sizeof path, "%s/muster.db-wal", folder);
    assert_ok(store_read(s, read_rows, &n, &err));
    assert_int_equal(n, 6000);
    store_free(s);
    run("rm -rf %s", folder);
}

static void another_program_may_read_the_database_of_a_killed_server(void **state)
{
    (void)state;
    struct err err = { 0 };
    char path[128];
    sqlite3 *db = NULL;
    int n = 0, found = 0;

    make_folder();
    struct store *s = open_with_rows(folder, 3), *copy = NULL;
    run("mkdir %s; cp %s/muster.db* %s/", other, folder, other);
    store_free(s);
    snprintf(path, sizeof path, "%s/muster.db", other);
    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, "unix"), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "SELECT count(*) FROM t", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);          /* the last: it empties the log into the file */
    assert_ok(store_open(other, &copy, &err));
    assert_ok(store_read(copy, read_rows, &n, &err));
    assert_int_equal(n, 6000);
    assert_ok(store_check(copy, check_count, &found, &err));
    assert_int_equal(found, 0);
    store_free(copy);
    run("rm -rf %s", folder);
}

static void a_database_from_before_gets_checksums(void **state)
{
    (void)state;
    struct err err = { 0 };
    char path[128];
    sqlite3 *db = NULL;
    struct store *s = NULL;
    int n = 0, found = 0;
    int64_t pages = -1;

    make_folder();
    snprintf(path, sizeof path, "%s/muster.db", folder);
    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, "unix"),
                     SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA journal_mode=WAL; CREATE TABLE schema (module TEXT "
                                  "PRIMARY KEY, version INTEGER) WITHOUT ROWID; INSERT INTO schema "
                                  "VALUES ('test', 1); CREATE TABLE t (k INTEGER PRIMARY KEY, v TEXT);"
                                  "INSERT INTO t (v) VALUES ('what is kept'), ('what is kept')", NULL,
                                  NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    assert_ok(pages_check(path, check_count, &found, &pages, &err));
    assert_int_equal(pages, 0);
    assert_ok(store_open(folder, &s, &err));            /* as it is */
    assert_ok(store_read(s, read_rows, &n, &err));
    assert_int_equal(n, 2);
    store_free(s);
    assert_int_equal(store_upgrade(folder, &err), 1);
    assert_int_equal(store_upgrade(folder, &err), 0);
    s = open_with_rows(folder, 1);
    assert_ok(store_read(s, read_rows, &n, &err));
    assert_int_equal(n, 2002);
    store_free(s);
    assert_ok(pages_check(path, check_count, &found, &pages, &err));
    assert_true(pages > 3 && found == 0);
    flip(path, 2 * PAGES_SIZE + 100, 1);
    assert_ok(pages_check(path, check_count, &found, &pages, &err));
    assert_int_equal(found, 1);
    run("rm -rf %s", folder);
}

/* ------------------------------------------------------------ objects */

static void begin(void)
{
    struct err err = { 0 };
    struct bucket b;

    make_folder();
    server = (struct server){ .data_dir = folder };
    assert_ok(store_open(folder, &server.store, &err));
    assert_ok(objects_new(&server, &server.objects, &err));
    assert_ok(buckets_insert(&server, "p", "bucket", NULL, &b, &err));
    bucket_done(&b);
}

static void end(void)
{
    objects_free(server.objects);
    store_free(server.store);
    run("rm -rf %s", folder);
}

static void stat_of(const char *name, struct object *out, char path[200])
{
    struct err err = { 0 };

    assert_ok(objects_stat(&server, "p", "bucket", name, out, &err));
    object_done(out);
    snprintf(path, 200, "%s/blobs/%.2s/%s", folder, out->sha256, out->sha256 + 2);
}

static void a_block_that_changed_is_not_read_copied_or_opened(void **state)
{
    (void)state;
    enum { SIZE = 5 * OBJECTS_BLOCK + 100 };
    static char large[SIZE];
    struct err err = { 0 };
    struct object o, copy;
    char path[200], *none = NULL;
    const char *bytes;
    int fd;
    int64_t size;
    OWN(reader) r = NULL;

    begin();
    for (int i = 0; i < SIZE; i++)
        large[i] = (char)(i * 31 >> 2);
    assert_ok(objects_put(&server, "p", "bucket", "x", NULL, large, SIZE, &err));
    stat_of("x", &o, path);
    assert_ok(objects_verify(&server, &o, &err));
    flip(path, SIZE - 50, 4);
    assert_ok(objects_content(&server, &o, &r, &none, &err));
    /* Blocks before it are what they were. */
    assert_true(reader_at(r, 70000, &bytes, &err) > 0);
    assert_memory_equal(bytes, large + 70000, 1000);
    assert_fails(reader_at(r, 5 * OBJECTS_BLOCK, &bytes, &err), ERR_IO);
    if (!strstr(err.text, "gs://bucket/x has changed on the disk"))
        fail_msg("%s", err.text);
    assert_fails(objects_open(&server, "p", "bucket", "x", &fd, &size, &err), ERR_IO);
    struct objects_copy c = { .project = "p", .bucket = "bucket", .name = "x", .to_bucket = "bucket",
                              .to_name = "y", .when = OBJECTS_WHENEVER,
                              .to_when = OBJECTS_WHENEVER };
    assert_fails(objects_copy(&server, &c, &copy, &err), ERR_IO);
    int found = 0;
    int64_t contents, n;
    assert_ok(objects_check(&server, check_count, &found, &contents, &n, &err));
    assert_int_equal(found, 2);         /* the file, and whose content it is */
    assert_non_null(strstr(check_told, "gs://bucket/x"));
    /* Once it is known to be damaged nothing of it is sent. */
    reader_free(TAKE(r));
    assert_fails(objects_content(&server, &o, &r, &none, &err), ERR_IO);
    /* A file that is gone is damage, too: the object was not deleted. */
    assert_int_equal(unlink(path), 0);
    assert_fails(objects_open(&server, "p", "bucket", "x", &fd, &size, &err), ERR_IO);
    /* The same bytes, under another name, mend it. */
    assert_ok(objects_put(&server, "p", "bucket", "again", NULL, large, SIZE, &err));
    assert_ok(objects_verify(&server, &o, &err));
    end();
}

static int drop_sums(sqlite3 *db, void *arg, struct err *err)
{
    (void)arg;
    return store_run(db, err, "DELETE FROM content_sums", "");
}

static int spoil_small(sqlite3 *db, void *arg, struct err *err)
{
    (void)arg;
    return store_run(db, err, "UPDATE contents SET bytes = 'other' WHERE size = 5", "");
}

static void content_from_before_is_compared_as_a_whole_and_gets_checksums(void **state)
{
    (void)state;
    static char large[3 * OBJECTS_BLOCK];
    struct err err = { 0 };
    struct object o;
    char path[200];

    begin();
    assert_ok(objects_put(&server, "p", "bucket", "x", NULL, large, sizeof large, &err));
    stat_of("x", &o, path);
    assert_ok(store_write(server.store, drop_sums, NULL, &err));
    flip(path, 99, 1);
    assert_fails(objects_verify(&server, &o, &err), ERR_IO);
    flip(path, 99, 1);
    assert_ok(objects_verify(&server, &o, &err));       /* makes them */
    flip(path, 99, 1);
    assert_fails(objects_verify(&server, &o, &err), ERR_IO);
    assert_ok(objects_put(&server, "p", "bucket", "small", NULL, "right", 5, &err));
    assert_ok(store_write(server.store, spoil_small, NULL, &err));
    stat_of("small", &o, path);
    assert_fails(objects_verify(&server, &o, &err), ERR_IO);
    assert_non_null(strstr(err.text, "gs://bucket/small"));
    end();
}

static void an_upload_whose_bytes_changed_begins_anew(void **state)
{
    (void)state;
    struct err err = { 0 };
    char id[OBJECTS_SESSION], path[200], piece[1000] = "some";
    OWN(session) u = NULL;

    begin();
    json_t *order = json_object();
    assert_ok(session_begin(&server, "p", "bucket", order, id, &err));
    assert_ok(session_open(&server, "p", id, &u, &err));
    assert_ok(session_add(u, piece, sizeof piece, &err));
    assert_ok(session_sync(u, &err));
    session_free(TAKE(u));
    for (int i = 0; i < 2; i++) {       /* a restart; another one, with a byte changed between */
        objects_free(server.objects);
        snprintf(path, sizeof path, "%s/uploads/s-%s", folder, id);
        if (i == 1)
            flip(path, 500, 1);
        assert_ok(objects_new(&server, &server.objects, &err));
        assert_ok(session_open(&server, "p", id, &u, &err));
        assert_int_equal(session_size(u), i == 0 ? sizeof piece : 0);
        session_free(TAKE(u));
    }
    json_decref(order);
    end();
}

/* ------------------------------------------------------------ logs, and small files */

struct lines { int right, told; };

static int each_line(void *arg, const struct log_line *l)
{
    struct lines *n = arg;
    int number;
    char end;

    if (l->stream == 'm') {
        assert_non_null(memmem(l->text, l->n, "damaged here", 12));
        n->told++;
        return 0;
    }
    /* Only lines that were printed, with a time that is near. */
    char text[64];
    snprintf(text, sizeof text, "%.*s", (int)l->n, l->text);
    assert_int_equal(sscanf(text, "line %d of the log%c", &number, &end), 1);
    assert_true(number >= 0 && number < 60 && l->worker == 0);
    assert_true(l->t > 1.5e9 && l->t < 1e10 && l->stream == (number % 2 ? 'e' : 'o'));
    n->right++;
    return 0;
}

static void whatever_byte_of_a_log_changes_is_told_and_no_wrong_line_is_shown(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct journal *j = NULL;
    char path[100], text[64];
    struct stat st;

    make_folder();
    assert_ok(journal_open(folder, &j, &err));
    for (int i = 0; i < 60; i++) {
        journal_feed(j, i % 2 ? 'e' : 'o', text, (size_t)snprintf(text, sizeof text,
                                                                  "line %d of the log\n", i));
        if (i % 6 == 5)
            journal_flush(j);
    }
    journal_free(j);
    snprintf(path, sizeof path, "%s/log.0", folder);
    assert_int_equal(stat(path, &st), 0);
    for (int64_t at = 0; at < st.st_size; at++) {
        struct log_cursor c = { 0 };
        struct lines n = { 0 };
        int found = 0;
        int64_t lines;
        flip(path, at, 1 << (at % 8));
        assert_true(logs_read(folder, &c, NULL, each_line, &n, &err) >= 0);
        assert_true(n.told >= 1 && n.right + n.told * 12 >= 60);
        assert_int_equal(c.offset, st.st_size);
        assert_ok(logs_check(folder, check_count, &found, &lines, &err));
        assert_true(found >= 1);
        /* From the end, and from a time, nothing else is shown. */
        assert_ok(logs_seek_tail(folder, 10, &c, &err));
        assert_true(logs_read(folder, &c, NULL, each_line, &n, &err) >= 0);
        assert_ok(logs_seek_time(folder, 1.6e9, &c, &err));
        assert_true(logs_read(folder, &c, NULL, each_line, &n, &err) >= 0);
        flip(path, at, 1 << (at % 8));
    }
    run("rm -rf %s", folder);
}

static void a_sealed_file_is_read_as_it_was_written_or_not_at_all(void **state)
{
    (void)state;
    struct err err = { 0 };
    char path[100];
    json_t *doc = json_pack("{s:i, s:s}", "code", 0, "reason", "exit code 1"), *got = NULL;
    OWN_MEM char *text = sealed_text(doc);
    OWN_JSON json_t *empty = json_object();
    OWN_MEM char *none = sealed_text(empty);

    make_folder();
    snprintf(path, sizeof path, "%s/f.json", folder);
    assert_ok(files_write(path, text, strlen(text), &err));
    for (size_t at = 0; at < strlen(text); at++) {
        flip(path, (int64_t)at, 1 << (at % 7));
        if (sealed_load(path, &got, &err) == 0) {
            json_object_del(got, "crc32c");
            assert_int_equal(json_integer_value(json_object_get(got, "code")), 0);
            assert_string_equal(json_string_value(json_object_get(got, "reason")), "exit code 1");
            json_decref(got);
        }
        flip(path, (int64_t)at, 1 << (at % 7));
    }
    assert_ok(sealed_load(path, &got, &err));
    assert_true(json_equal(got, doc));
    json_decref(got);
    assert_ok(files_write(path, none, strlen(none), &err));
    assert_ok(sealed_load(path, &got, &err));
    assert_int_equal(json_object_size(got), 0);
    json_decref(got);
    assert_ok(files_write(path, "{\"a\": 1}", 8, &err));        /* by hand */
    assert_ok(sealed_load(path, &got, &err));
    json_decref(got);
    assert_int_equal(unlink(path), 0);
    assert_fails(sealed_load(path, &got, &err), ERR_MISSING);
    json_decref(doc);
    run("rm -rf %s", folder);
}

CHECK_MAIN(a_page_that_changed_is_refused_and_listed,
           a_damaged_log_of_the_database_is_refused_not_forgotten,
           another_program_may_read_the_database_of_a_killed_server,
           a_database_from_before_gets_checksums,
           a_block_that_changed_is_not_read_copied_or_opened,
           content_from_before_is_compared_as_a_whole_and_gets_checksums,
           an_upload_whose_bytes_changed_begins_anew,
           whatever_byte_of_a_log_changes_is_told_and_no_wrong_line_is_shown,
           a_sealed_file_is_read_as_it_was_written_or_not_at_all)
