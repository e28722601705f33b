/* tests/unit/objects_test.c - buckets keep their header's word */
#include "server/objects.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "server/server.h"
#include "tests/check.h"

static struct server server;
static char folder[64];

static void begin(void)
{
    struct err err = { 0 };

    snprintf(folder, sizeof folder, "/tmp/muster-objects-XXXXXX");
    assert_non_null(mkdtemp(folder));
    server = (struct server){ .data_dir = folder };
    assert_ok(store_open(folder, &server.store, &err));
    assert_ok(objects_new(&server, &server.objects, &err));
}

static void again(void)
{
    struct err err = { 0 };

    objects_free(server.objects);
    store_free(server.store);
    server = (struct server){ .data_dir = folder };
    assert_ok(store_open(folder, &server.store, &err));
    assert_ok(objects_new(&server, &server.objects, &err));
}

static void end(void)
{
    char command[128];

    objects_free(server.objects);
    store_free(server.store);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
}

static void make(const char *name)
{
    struct err err = { 0 };
    struct bucket b;

    assert_ok(buckets_insert(&server, "p1", name, NULL, &b, &err));
    bucket_done(&b);
}

static void check_all(void)
{
    struct err err = { 0 };
    int64_t contents, bytes;
    int found = 0;

    assert_ok(objects_check(&server, check_count, &found, &contents, &bytes, &err));
    assert_int_equal(found, 0);
}

static void put(const char *bucket, const char *name, const char *text)
{
    struct err err = { 0 };

    assert_ok(objects_put(&server, "p1", bucket, name, "text/plain", text, strlen(text), &err));
}

/* How many files there are under a folder of the data. */
static int files_in(const char *what)
{
    char command[128];
    int n = -1;

    snprintf(command, sizeof command, "find %s/%s -type f | wc -l", folder, what);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%d", &n), 1);
    pclose(f);
    return n;
}

static void reads(const char *bucket, const char *name, const char *bytes, size_t n)
{
    struct err err = { 0 };
    int fd = -1;
    int64_t size = -1;
    OWN_MEM char *got = malloc(n + 1);

    assert_ok(objects_open(&server, "p1", bucket, name, &fd, &size, &err));
    assert_int_equal(size, n);
    assert_int_equal(read(fd, got, n + 1), n);
    assert_memory_equal(got, bytes, n);
    close(fd);
}

/* ------------------------------------------------------------ names */

static void buckets_are_named_by_the_rules(void **state)
{
    (void)state;
    static const char *const good[] = { "abc", "a-b_c.d", "0ab", "my.domain.example" };
    static const char *const bad[] = {
        "ab",
        "Abc",
        "-abc",
        "abc-",
        "a..b",
        "a.-b",
        "192.168.5.4",
        "goog1",
        "my-google-b",
        "a/b",
        "abc\xc3\xa9",
        "../x",
        "a234567890123456789012345678901234567890123456789012345678901234"
    };
    struct err err = { 0 };

    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_ok(bucket_name_check(good[i], &err));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(bucket_name_check(bad[i], &err), ERR_INVALID);
}

static void any_text_names_an_object(void **state)
{
    (void)state;
    struct err err = { 0 };
    char longest[OBJECTS_NAME_MAX + 2];

    memset(longest, 'x', sizeof longest);
    longest[OBJECTS_NAME_MAX] = '\0';
    assert_ok(object_name_check(longest, &err));
    longest[OBJECTS_NAME_MAX] = 'x';
    longest[OBJECTS_NAME_MAX + 1] = '\0';
    assert_fails(object_name_check(longest, &err), ERR_INVALID);
    assert_ok(object_name_check("../../etc/passwd", &err));
    assert_ok(object_name_check("/", &err));
    assert_ok(object_name_check("\xe2\x82\xac \t%2F?#", &err));
    assert_fails(object_name_check("", &err), ERR_INVALID);
    assert_fails(object_name_check("..", &err), ERR_INVALID);
    assert_fails(object_name_check("a\nb", &err), ERR_INVALID);
    assert_fails(object_name_check("\x1b[2J", &err), ERR_INVALID);
    assert_fails(object_name_check("\xff\xfe", &err), ERR_INVALID);
    assert_fails(object_name_check("\xed\xa0\x80", &err), ERR_INVALID);
}

/* ------------------------------------------------------------ content */

static void what_was_put_is_read_after_a_restart(void **state)
{
    (void)state;
    size_t n = 300000;
    OWN_MEM char *large = malloc(n);

    begin();
    make("bucket");
    for (size_t i = 0; i < n; i++)
        large[i] = (char)(i * 31 >> 3);
    put("bucket", "small", "some text");
    put("bucket", "empty", "");
    struct err err = { 0 };
    assert_ok(objects_put(&server, "p1", "bucket", "../large", NULL, large, n, &err));
    for (int i = 0; i < 2; i++) {
        reads("bucket", "small", "some text", 9);
        reads("bucket", "empty", "", 0);
        reads("bucket", "../large", large, n);
        assert_int_equal(files_in("blobs"), 1);
        assert_int_equal(files_in("uploads"), 0);
        check_all();
        again();
    }
    struct object o;
    assert_ok(objects_stat(&server, "p1", "bucket", "small", &o, &err));
    assert_string_equal(o.crc32c, "LX0g5w==");
    assert_string_equal(o.md5, "VS4hzUzZkYZ448Gg30kbww==");
    object_done(&o);
    end();
}

static void the_same_bytes_are_kept_once_and_go_with_their_last_name(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct objects_when any = OBJECTS_WHENEVER;
    OWN_MEM char *large = calloc(1, 100000);
    int removed;

    begin();
    make("bucket");
    assert_ok(objects_put(&server, NULL, "bucket", "a", NULL, large, 100000, &err));
    assert_ok(objects_put(&server, NULL, "bucket", "b", NULL, large, 100000, &err));
    assert_int_equal(files_in("blobs"), 1);
    assert_ok(objects_delete(&server, NULL, "bucket", "a", 0, &any, &err));
    assert_ok(objects_sweep(server.objects, clock_wall(), &removed, &err));
    assert_int_equal(files_in("blobs"), 1);
    reads("bucket", "b", large, 100000);
    put("bucket", "b", "written over");
    assert_ok(objects_sweep(server.objects, clock_wall(), &removed, &err));
    assert_int_equal(files_in("blobs"), 0);
    check_all();
    end();
}

static void a_move_takes_the_old_name_away(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct object o;

    begin();
    make("bucket");
    put("bucket", "a", "text");
    struct objects_copy c = { .bucket = "bucket", .name = "a", .to_bucket = "bucket", .to_name = "b",
                              .when = OBJECTS_WHENEVER, .to_when = OBJECTS_WHENEVER, .move = true };
    struct hot *h;
    assert_ok(objects_hot(&server, "bucket", "a", &h, &err));
    hot_unref(h);
    assert_ok(objects_copy(&server, &c, &o, &err));
    object_done(&o);
    reads("bucket", "b", "text", 4);
    assert_fails(objects_hot(&server, "bucket", "a", &h, &err), ERR_MISSING);
    assert_fails(objects_copy(&server, &c, &o, &err), ERR_MISSING);
    c.name = "b";
    assert_fails(objects_copy(&server, &c, &o, &err), ERR_INVALID);
    check_all();
    end();
}

static void what_a_crash_left_is_swept_when_it_is_old(void **state)
{
    (void)state;
    struct err err = { 0 };
    char path[256];
    int removed = -1;
    static const char hex[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcd";

    begin();
    snprintf(path, sizeof path, "%s/blobs/ab", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/blobs/ab/%s", folder, hex);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    snprintf(path, sizeof path, "%s/uploads/t-1-1", folder);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    assert_ok(objects_sweep(server.objects, clock_wall(), &removed, &err));
    assert_int_equal(removed, 0);
    assert_ok(objects_sweep(server.objects, clock_wall() + 3700, &removed, &err));
    assert_int_equal(removed, 2);
    end();
}

static void bytes_that_are_not_what_was_announced_are_refused(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct object o;

    begin();
    make("bucket");
    OWN(content) c = content_new(&server);
    assert_ok(content_add(c, "some text", 9, &err));
    struct objects_put p = { .bucket = "bucket", .name = "x", .crc32c = "AAAAAA==",
                             .when = OBJECTS_WHENEVER };
    assert_fails(content_put(c, &p, &o, &err), ERR_INVALID);
    p.crc32c = "LX0g5w==";
    p.md5 = "AAAAAAAAAAAAAAAAAAAAAA==";
    assert_fails(content_put(c, &p, &o, &err), ERR_INVALID);
    assert_fails(objects_stat(&server, NULL, "bucket", "x", &o, &err), ERR_MISSING);
    p.md5 = "VS4hzUzZkYZ448Gg30kbww==";
    assert_ok(content_put(c, &p, &o, &err));
    object_done(&o);
    end();
}

/* ------------------------------------------------------------ generations */

static void conditions_decide_who_may_write(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct object a, b;
    int unmet = 0;

    begin();
    make("bucket");
    struct objects_put p = { .bucket = "bucket", .name = "x", .when = OBJECTS_WHENEVER };
    p.when.generation = 0;
    p.when.unmet = &unmet;
    OWN(content) first = content_new(&server);
    OWN(content) second = content_new(&server);
    assert_ok(content_add(first, "1", 1, &err));
    assert_ok(content_add(second, "2", 1, &err));
    assert_ok(content_put(first, &p, &a, &err));
    assert_fails(content_put(second, &p, &b, &err), ERR_CONFLICT);
    assert_int_equal(unmet, 1);
    p.when.generation = a.generation;
    assert_ok(content_put(second, &p, &b, &err));
    assert_true(b.generation > a.generation);
    object_done(&a);
    object_done(&b);

    struct objects_when when = OBJECTS_WHENEVER;
    OWN_JSON json_t *patch =
        json_pack("{s:{s:s}, s:s}", "metadata", "k", "v", "contentType", "a/b");
    when.metageneration = 7;
    assert_fails(objects_patch(&server, NULL, "bucket", "x", 0, patch, false, &when, &a, &err),
                 ERR_CONFLICT);
    when.metageneration = 1;
    assert_ok(objects_patch(&server, NULL, "bucket", "x", 0, patch, false, &when, &a, &err));
    assert_int_equal(a.metageneration, 2);
    assert_string_equal(a.type, "a/b");
    assert_string_equal(json_string_value(json_object_get(a.metadata, "k")), "v");
    object_done(&a);
    end();
}

static void old_generations_stay_where_the_bucket_keeps_them(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct objects_when any = OBJECTS_WHENEVER;
    struct bucket b;
    struct object first, o;
    OWN_JSON json_t *doc = json_pack("{s:{s:b}}", "versioning", "enabled", 1);

    begin();
    assert_ok(buckets_insert(&server, "p1", "bucket", doc, &b, &err));
    bucket_done(&b);
    put("bucket", "x", "one");
    assert_ok(objects_stat(&server, "p1", "bucket", "x", &first, &err));
    put("bucket", "x", "two");
    assert_ok(objects_delete(&server, "p1", "bucket", "x", 0, &any, &err));
    assert_fails(objects_stat(&server, "p1", "bucket", "x", &o, &err), ERR_MISSING);
    assert_ok(objects_get(&server, "p1", "bucket", "x", first.generation, NULL, &o, &err));
    assert_true(o.deleted > 0);
    OWN_MEM char *bytes = NULL;
    OWN(reader) r = NULL;
    assert_ok(objects_content(&server, &o, &r, &bytes, &err));
    assert_memory_equal(bytes, "one", 3);
    object_done(&o);
    assert_ok(objects_delete(&server, "p1", "bucket", "x", first.generation, &any, &err));
    assert_fails(objects_get(&server, "p1", "bucket", "x", first.generation, NULL, &o, &err),
                 ERR_MISSING);
    assert_fails(buckets_delete(&server, "p1", "bucket", NULL, &err), ERR_CONFLICT);
    object_done(&first);
    end();
}

static void another_project_does_not_reach_a_bucket(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct object o;
    struct bucket b;
    struct objects_when any = OBJECTS_WHENEVER;

    begin();
    make("bucket");
    put("bucket", "x", "one");
    assert_fails(objects_stat(&server, "p2", "bucket", "x", &o, &err), ERR_DENIED);
    assert_fails(objects_put(&server, "p2", "bucket", "x", NULL, "", 0, &err), ERR_DENIED);
    assert_fails(objects_delete(&server, "p2", "bucket", "x", 0, &any, &err), ERR_DENIED);
    assert_fails(buckets_delete(&server, "p2", "bucket", NULL, &err), ERR_DENIED);
    assert_fails(buckets_insert(&server, "p2", "bucket", NULL, &b, &err), ERR_CONFLICT);
    struct objects_copy c = { .project = "p2",
                              .bucket = "bucket",
                              .name = "x",
                              .to_bucket = "bucket",
                              .to_name = "y",
                              .when = OBJECTS_WHENEVER,
                              .to_when = OBJECTS_WHENEVER };
    assert_fails(objects_copy(&server, &c, &o, &err), ERR_DENIED);
    end();
}

/* ------------------------------------------------------------ lists */

static int add_name(void *arg, const struct object *o)
{
    buf_printf(arg, "%s ", o->name);
    return 0;
}

/* All pages of `limit`: names and prefixes in order, "|" between two pages. */
static void lists(struct objects_query q, const char *want)
{
    struct err err = { 0 };
    OWN_BUF got = BUF_INIT, token = BUF_INIT;

    q.bucket = "bucket";
    do {
        OWN_JSON json_t *prefixes = json_array();
        OWN_MEM char *before = token.data ? strdup(token.data) : NULL;
        q.token = before;
        buf_clear(&token);
        assert_ok(objects_list(&server, &q, add_name, &got, prefixes, &token, &err));
        for (size_t i = 0; i < json_array_size(prefixes); i++)
            buf_printf(&got, "[%s] ", json_string_value(json_array_get(prefixes, i)));
        if (token.n)
            buf_text(&got, "| ");
    } while (token.n);
    assert_string_equal(got.data ? got.data : "", want);
}

static void names_are_listed_in_pages_and_folders(void **state)
{
    (void)state;
    static const char *const names[] = {
        "a", "b/1", "b/2", "b/c/3", "b/", "c", "d/x", "e\xc3\xa9"
    };

    begin();
    make("bucket");
    lists((struct objects_query){ .limit = 5 }, "");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        put("bucket", names[i], "x");
    lists((struct objects_query){ .limit = 0 }, "a b/ b/1 b/2 b/c/3 c d/x e\xc3\xa9 ");
    lists((struct objects_query){ .limit = 3 }, "a b/ b/1 | b/2 b/c/3 c | d/x e\xc3\xa9 ");
    lists((struct objects_query){ .delimiter = "/" }, "a c e\xc3\xa9 [b/] [d/] ");
    lists((struct objects_query){ .delimiter = "/", .limit = 2 }, "a [b/] | c [d/] | e\xc3\xa9 ");
    lists((struct objects_query){ .delimiter = "/", .limit = 1 },
          "a | [b/] | c | [d/] | e\xc3\xa9 ");
    lists((struct objects_query){ .delimiter = "/", .prefix = "b/" }, "b/ b/1 b/2 [b/c/] ");
    lists((struct objects_query){ .delimiter = "/", .trailing = true },
          "a b/ c e\xc3\xa9 [b/] [d/] ");
    lists((struct objects_query){ .prefix = "b/c" }, "b/c/3 ");
    lists((struct objects_query){ .start = "b/2", .end = "d/x" }, "b/2 b/c/3 c ");
    lists((struct objects_query){ .glob = "b/*" }, "b/ b/1 b/2 ");
    lists((struct objects_query){ .glob = "**/[23]" }, "b/2 b/c/3 ");
    lists((struct objects_query){ .glob = "{a,c}" }, "a c ");
    lists((struct objects_query){ .glob = "b/?" }, "b/1 b/2 ");
    lists((struct objects_query){ .glob = "[!a-d]*" }, "e\xc3\xa9 ");
    lists((struct objects_query){ .glob = "b{,/c}/*" }, "b/ b/1 b/2 b/c/3 ");
    lists((struct objects_query){ .glob = "[" }, "");
    lists((struct objects_query){ .prefix = "zz" }, "");

    struct err err = { 0 };
    OWN_BUF token = BUF_INIT;
    struct objects_query wrong = { .bucket = "bucket", .token = "%%%" };
    assert_fails(objects_list(&server, &wrong, add_name, &token, NULL, &token, &err), ERR_INVALID);

    /* A glob that could be tried in 40^20 ways is given up, not tried. */
    char name[64], stars[2000];
    memset(name, 'a', 40);
    name[40] = '\0';
    put("bucket", name, "x");
    for (int i = 0; i < 20; i++)
        memcpy(stars + 2 * i, "*a", 3);
    memcpy(stars + 40, "b", 2);
    struct objects_query slow = { .bucket = "bucket", .glob = stars };
    assert_fails(objects_list(&server, &slow, add_name, &token, NULL, &token, &err), ERR_INVALID);
    memset(stars, '*', sizeof stars);
    stars[sizeof stars - 1] = '\0';
    assert_fails(objects_list(&server, &slow, add_name, &token, NULL, &token, &err), ERR_INVALID);
    end();
}

/* ------------------------------------------------------------ sessions */

static void an_upload_goes_on_after_a_restart(void **state)
{
    (void)state;
    struct err err = { 0 };
    char id[OBJECTS_SESSION];
    OWN_MEM char *large = malloc(100000);
    OWN_JSON json_t *order = json_pack("{s:s}", "name", "x");
    struct session *u = NULL, *later = NULL;
    struct object o;

    begin();
    make("bucket");
    for (int i = 0; i < 100000; i++)
        large[i] = (char)(i % 251);
    assert_ok(session_begin(&server, "p1", "bucket", order, id, &err));
    assert_fails(session_open(&server, "p2", id, &u, &err), ERR_MISSING);
    assert_fails(session_open(&server, "p1", "../../x", &u, &err), ERR_MISSING);
    assert_ok(session_open(&server, "p1", id, &u, &err));
    assert_ok(session_add(u, large, 60000, &err));
    assert_ok(session_sync(u, &err));
    assert_ok(session_add(u, large, 5, &err));  /* never promised: gone after a restart */
    session_free(u);
    again();
    assert_ok(session_open(&server, "p1", id, &u, &err));
    assert_int_equal(session_size(u), 60000);
    assert_ok(session_open(&server, "p1", id, &later, &err));
    assert_fails(session_add(u, large + 60000, 40000, &err), ERR_CONFLICT);
    session_free(u);
    assert_ok(session_add(later, large + 60000, 40000, &err));
    struct objects_put p = { .bucket = "bucket", .name = "x", .when = OBJECTS_WHENEVER };
    assert_ok(session_put(later, &p, &o, &err));
    object_done(&o);
    assert_int_equal(session_done(later), o.generation);
    session_free(later);
    reads("bucket", "x", large, 100000);
    again();
    assert_ok(session_open(&server, "p1", id, &u, &err));
    assert_int_equal(session_done(u), o.generation);
    session_free(u);
    int removed;
    assert_ok(objects_sweep(server.objects, clock_wall() + 8 * 86400, &removed, &err));
    assert_fails(session_open(&server, "p1", id, &u, &err), ERR_MISSING);
    reads("bucket", "x", large, 100000);
    end();
}

/* ------------------------------------------------------------ what is kept in memory */

static void *write_often(void *arg)
{
    struct err err = { 0 };
    char text[16];

    for (int i = 0; i < 200; i++) {
        snprintf(text, sizeof text, "%d", i);
        assert_ok(objects_put(&server, NULL, "bucket", "hot", NULL, text, strlen(text), &err));
        atomic_store((atomic_int *)arg, i);
    }
    return NULL;
}

static void who_was_told_of_a_write_reads_it(void **state)
{
    (void)state;
    struct err err = { 0 };
    atomic_int written = -1;
    pthread_t writer;

    begin();
    make("bucket");
    put("bucket", "hot", "-1");
    assert_int_equal(pthread_create(&writer, NULL, write_often, &written), 0);
    long last = -1;
    while (last < 199) {
        long least = written;
        struct hot *h = NULL;
        assert_ok(objects_hot(&server, "bucket", "hot", &h, &err));
        char text[16];
        snprintf(text, sizeof text, "%.*s", (int)h->object.size, h->bytes);
        hot_unref(h);
        long now = strtol(text, NULL, 10);
        assert_true(now >= least);
        assert_true(now >= last);
        last = now;
    }
    pthread_join(writer, NULL);
    end();
}

static void the_cache_stays_within_its_limit(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct objects_stats stats;
    OWN_MEM char *text = calloc(1, OBJECTS_SMALL);
    char name[16];

    begin();
    make("bucket");
    for (int i = 0; i < 400; i++) {
        struct hot *h;
        snprintf(name, sizeof name, "o%d", i);
        memcpy(text, name, sizeof name);
        assert_ok(objects_put(&server, NULL, "bucket", name, NULL, text, OBJECTS_SMALL, &err));
        for (int k = 0; k < 2; k++) {
            assert_ok(objects_hot(&server, "bucket", name, &h, &err));
            assert_memory_equal(h->bytes, text, OBJECTS_SMALL);
            hot_keep(h, 0, calloc(1, 100), 100);
            hot_unref(h);
        }
    }
    assert_ok(objects_stats(&server, &stats, &err));
    assert_int_equal(stats.objects, 400);
    assert_true(stats.cache_bytes <= OBJECTS_CACHE && stats.cache_bytes > OBJECTS_CACHE / 2);
    assert_int_equal(stats.hits, 400);
    end();
}

/* ------------------------------------------------------------ in one transaction */

static atomic_int held, let_go;
static char old_blob[256];
static int seen;

static int hold(sqlite3 *db, void *arg, struct err *err)
{
    (void)db, (void)arg, (void)err;
    atomic_store(&held, 1);
    while (!atomic_load(&let_go))
        usleep(1000);
    return 0;
}

static int look(sqlite3 *db, void *arg, struct err *err)
{
    (void)db, (void)arg, (void)err;
    seen = access(old_blob, F_OK) == 0;
    return 0;
}

static void *do_hold(void *arg)
{
    struct err err = { 0 };

    (void)arg;
    return store_write(server.store, hold, NULL, &err) < 0 ? "hold" : NULL;
}

static void *do_replace(void *arg)
{
    struct err err = { 0 };

    return objects_put(&server, NULL, "bucket", "x", NULL, arg, 100000, &err) < 0 ? "put" : NULL;
}

static void *do_sweep(void *arg)
{
    struct err err = { 0 };
    int removed;

    (void)arg;
    return objects_sweep(server.objects, clock_wall(), &removed, &err) < 0 ? "sweep" : NULL;
}

static void *do_look(void *arg)
{
    struct err err = { 0 };

    (void)arg;
    return store_write(server.store, look, NULL, &err) < 0 ? "look" : NULL;
}

/* One that a crash would undo has not taken the last name away. */
static void content_is_not_swept_in_the_transaction_that_takes_its_name(void **state)
{
    (void)state;
    struct err err = { 0 };
    void *(*const steps[])(void *) = { do_hold, do_replace, do_sweep, do_look };
    pthread_t threads[4];
    struct object o;
    char *text = calloc(1, 100000);

    begin();
    make("bucket");
    assert_ok(objects_put(&server, NULL, "bucket", "x", NULL, text, 100000, &err));
    assert_ok(objects_stat(&server, NULL, "bucket", "x", &o, &err));
    snprintf(old_blob, sizeof old_blob, "%s/blobs/%.2s/%s", folder, o.sha256, o.sha256 + 2);
    object_done(&o);
    assert_int_equal(access(old_blob, F_OK), 0);
    memset(text, 'y', 100000);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, steps[i], text), 0);
        while (!atomic_load(&held))
            usleep(1000);
        usleep(50000);          /* it waits behind the ones before */
    }
    atomic_store(&let_go, 1);
    for (int i = 0; i < 4; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    assert_true(seen);
    assert_null(do_sweep(NULL));
    assert_int_not_equal(access(old_blob, F_OK), 0);
    free(text);
    end();
}

CHECK_MAIN(buckets_are_named_by_the_rules, any_text_names_an_object,
           what_was_put_is_read_after_a_restart,
           the_same_bytes_are_kept_once_and_go_with_their_last_name,
           a_move_takes_the_old_name_away, what_a_crash_left_is_swept_when_it_is_old,
           bytes_that_are_not_what_was_announced_are_refused, conditions_decide_who_may_write,
           old_generations_stay_where_the_bucket_keeps_them,
           another_project_does_not_reach_a_bucket, names_are_listed_in_pages_and_folders,
           an_upload_goes_on_after_a_restart, who_was_told_of_a_write_reads_it,
           the_cache_stays_within_its_limit,
           content_is_not_swept_in_the_transaction_that_takes_its_name)
