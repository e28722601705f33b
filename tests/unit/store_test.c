/* tests/unit/store_test.c - what was acknowledged is there, what failed is not */
#include "server/store.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/check.h"

static const char *const schema[] = {
    "CREATE TABLE t (k TEXT PRIMARY KEY, v INTEGER)",
    NULL
};

static char *new_dir(void)
{
    static char dir[64];
    snprintf(dir, sizeof dir, "/tmp/store_test.XXXXXX");
    assert_non_null(mkdtemp(dir));
    return dir;
}

static void drop_dir(const char *dir)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
}

static struct store *open_new(const char *dir)
{
    struct err err = { 0 };
    struct store *s = NULL;
    assert_ok(store_open(dir, &s, &err));
    assert_ok(store_schema(s, "test", schema, &err));
    return s;
}

struct put { const char *k; int64_t v; int fail; };

static int put(sqlite3 *db, void *arg, struct err *err)
{
    const struct put *p = arg;
    if (store_run(db, err, "INSERT INTO t VALUES (?, ?)", "si", p->k, p->v) < 0)
        return -(int)err->code;
    return p->fail ? err_set(err, ERR_INVALID, "no") : 0;
}

static int count(sqlite3 *db, void *arg, struct err *err)
{
    sqlite3_stmt *st = store_sql(db, "SELECT count(*) FROM t", err);
    if (!st || store_step(st, err) < 0)
        return -(int)err->code;
    *(int64_t *)arg = sqlite3_column_int64(st, 0);
    sqlite3_reset(st);
    return 0;
}

static int64_t rows(struct store *s)
{
    struct err err = { 0 };
    int64_t n = -1;
    assert_ok(store_read(s, count, &n, &err));
    return n;
}

static void a_failing_write_undoes_itself_and_nothing_else(void **state)
{
    (void)state;
    struct err err = { 0 };
    const char *dir = new_dir();
    OWN(store) s = open_new(dir);

    assert_ok(store_write(s, put, &(struct put){ "a", 1, 0 }, &err));
    assert_fails(store_write(s, put, &(struct put){ "b", 2, 1 }, &err), ERR_INVALID);
    assert_string_equal(err.text, "no");
    assert_fails(store_write(s, put, &(struct put){ "a", 3, 0 }, &err), ERR_CONFLICT);
    assert_ok(store_write(s, put, &(struct put){ "c", 2, 0 }, &err));
    assert_int_equal(rows(s), 2);
    drop_dir(dir);
}

static void a_schema_is_made_once_and_a_newer_one_is_refused(void **state)
{
    (void)state;
    static const char *const two[] = { "CREATE TABLE x (a)", "ALTER TABLE x ADD COLUMN b", NULL };
    static const char *const one[] = { "CREATE TABLE x (a)", NULL };
    struct err err = { 0 };
    const char *dir = new_dir();
    OWN(store) s = open_new(dir);

    assert_ok(store_schema(s, "m", one, &err));
    assert_ok(store_schema(s, "m", one, &err));
    assert_ok(store_schema(s, "m", two, &err));
    assert_fails(store_schema(s, "m", one, &err), ERR_CONFLICT);
    drop_dir(dir);
}

enum { THREADS = 8, EACH = 200 };
struct many { struct store *s; int id; int failed; };

static void *write_many(void *arg)
{
    struct many *m = arg;
    for (int i = 0; i < EACH; i++) {
        char k[32];
        struct err err = { 0 };
        snprintf(k, sizeof k, "%d/%d", m->id, i);
        struct put p = { k, i, i % 10 == 9 };
        int rc = store_write(m->s, put, &p, &err);
        m->failed += (rc < 0) != p.fail;
        rows(m->s);
    }
    return NULL;
}

static void threads_share_transactions_and_each_hears_its_own_result(void **state)
{
    (void)state;
    const char *dir = new_dir();
    OWN(store) s = open_new(dir);
    pthread_t thread[THREADS];
    struct many many[THREADS];

    for (int i = 0; i < THREADS; i++) {
        many[i] = (struct many){ s, i, 0 };
        pthread_create(&thread[i], NULL, write_many, &many[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(many[i].failed, 0);
    }
    assert_int_equal(rows(s), THREADS * EACH * 9 / 10);
    drop_dir(dir);
}

/* A child writes rows and tells each through a pipe; it dies at point n. What it told is there. */
static void what_was_acknowledged_survives_a_kill_at_every_point(void **state)
{
    (void)state;
    for (int n = 1; n < 40; n++) {
        const char *dir = new_dir();
        store_free(open_new(dir));
        int fd[2], status;
        assert_int_equal(pipe(fd), 0);
        pid_t pid = fork();
        if (pid == 0) {
            char text[16];
            snprintf(text, sizeof text, "%d", n);
            store_fault(text);
            struct store *s = NULL;
            struct err err = { 0 };
            if (store_open(dir, &s, &err) < 0)
                _exit(1);
            for (int i = 0; i < 10; i++) {
                char k[16];
                snprintf(k, sizeof k, "%d", i);
                if (store_write(s, put, &(struct put){ k, i, 0 }, &err) < 0 ||
                    write(fd[1], "x", 1) != 1)
                    _exit(1);
            }
            _exit(0);
        }
        close(fd[1]);
        char told[16];
        ssize_t acknowledged = 0, got;
        while ((got = read(fd[0], told, sizeof told)) > 0)
            acknowledged += got;
        close(fd[0]);
        waitpid(pid, &status, 0);
        assert_true(WIFSIGNALED(status) == (n <= 30));
        OWN(store) s = open_new(dir);
        int64_t there = rows(s);
        assert_true(there == acknowledged || there == acknowledged + 1);
        drop_dir(dir);
    }
}

static void a_full_disk_is_one_clear_error_and_passes(void **state)
{
    (void)state;
    struct err err = { 0 };
    const char *dir = new_dir();
    OWN(store) s = open_new(dir);
    struct rlimit old, small;

    signal(SIGXFSZ, SIG_IGN);
    assert_ok(store_write(s, put, &(struct put){ "a", 1, 0 }, &err));
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    small.rlim_cur = 64 << 10;
    setrlimit(RLIMIT_FSIZE, &small);
    int rc = 0, n = 0;
    for (; n < 1000 && rc == 0; n++) {
        char k[2000];
        memset(k, 'a', sizeof k);
        snprintf(k, 16, "%08d", n);
        k[8] = 'x';
        k[sizeof k - 1] = '\0';
        rc = store_write(s, put, &(struct put){ k, n, 0 }, &err);
    }
    int64_t there = rows(s);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(rc, -ERR_IO);
    if (!strstr(err.text, "the disk is full"))
        fail_msg("%s", err.text);
    assert_int_equal(there, n);         /* "a", and all but the last */
    assert_ok(store_write(s, put, &(struct put){ "z", 1, 0 }, &err));
    assert_int_equal(rows(s), n + 1);
    int found = 0;
    assert_ok(store_check(s, check_count, &found, &err));
    assert_int_equal(found, 0);
    drop_dir(dir);
}

static void a_backup_is_whole_and_damage_is_found(void **state)
{
    (void)state;
    struct err err = { 0 };
    const char *dir = new_dir();
    struct store *s = open_new(dir);
    char path[96], other[80];

    for (int i = 0; i < 3000; i++) {
        char k[16];
        snprintf(k, sizeof k, "%d", i);
        if (i < 200)
            assert_ok(store_write(s, put, &(struct put){ k, i, 0 }, &err));
    }
    snprintf(other, sizeof other, "%s/copy", dir);
    assert_int_equal(mkdir(other, 0700), 0);
    snprintf(path, sizeof path, "%s/muster.db", other);
    assert_ok(store_backup(s, path, &err));
    assert_ok(store_write(s, put, &(struct put){ "later", 1, 0 }, &err));
    store_free(s);

    OWN(store) copy = NULL;
    assert_ok(store_open(other, &copy, &err));
    assert_int_equal(rows(copy), 200);
    int found = 0;
    assert_ok(store_check(copy, check_count, &found, &err));
    assert_int_equal(found, 0);
    store_free(TAKE(copy));

    int fd = open(path, O_WRONLY);
    char junk[4096];
    memset(junk, 0x5a, sizeof junk);
    assert_int_equal(pwrite(fd, junk, sizeof junk, 8192), sizeof junk);
    close(fd);
    if (store_open(other, &copy, &err) == 0) {
        assert_ok(store_check(copy, check_count, &found, &err));
        assert_true(found > 0);
    } else {
        assert_non_null(strstr(err.text, "is damaged"));
    }
    drop_dir(dir);
}

static void a_database_that_is_gone_is_not_made_anew_beside_jobs(void **state)
{
    (void)state;
    struct err err = { 0 };
    char path[128];
    char *dir = new_dir();
    struct store *s = NULL;

    store_free(open_new(dir));
    snprintf(path, sizeof path, "%s/jobs", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    store_free(open_new(dir));
    snprintf(path, sizeof path, "%s/jobs/7", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    store_free(open_new(dir));
    snprintf(path, sizeof path, "%s/muster.db", dir);
    assert_int_equal(truncate(path, 0), 0);
    assert_fails(store_open(dir, &s, &err), ERR_CONFLICT);
    assert_int_equal(unlink(path), 0);
    assert_fails(store_open(dir, &s, &err), ERR_CONFLICT);
    assert_non_null(strstr(err.text, "put it back"));
    drop_dir(dir);
}

CHECK_MAIN(a_failing_write_undoes_itself_and_nothing_else,
           a_schema_is_made_once_and_a_newer_one_is_refused,
           threads_share_transactions_and_each_hears_its_own_result,
           what_was_acknowledged_survives_a_kill_at_every_point,
           a_full_disk_is_one_clear_error_and_passes,
           a_backup_is_whole_and_damage_is_found,
           a_database_that_is_gone_is_not_made_anew_beside_jobs)
