/* tests/unit/retention_test.c - files of ended jobs go in time, the oldest first, and no others */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/tree.h"
#include "server/jobs_int.h"
#include "server/quota.h"
#include "server/retention_int.h"
#include "server/server.h"
#include "tests/check.h"

enum { FILE_BYTES = 1 << 20 };

struct fixture {
    struct server server;
    struct retention retention;
    char dir[64];
};

static bool used(struct server *s, const char *project, const json_t *spec)
{
    (void)s, (void)project;
    return json_object_get(json_object_get(spec, "labels"), "run") != NULL;
}

static const struct server_part part = { "test", NULL, NULL, used };
static const struct server_part *const parts[] = { &part, NULL };

static void table(struct fixture *f, const char *text)
{
    struct err err = { 0 };
    char path[96];
    snprintf(path, sizeof path, "%s/runtimes.yaml", f->dir);
    assert_ok(files_write(path, text, strlen(text), &err));
}

static void begin(struct fixture *f, const char *text)
{
    struct err err = { 0 };
    *f = (struct fixture){ .server = { .more = parts } };
    snprintf(f->dir, sizeof f->dir, "/tmp/retention_test.XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    f->server.data_dir = f->dir;
    table(f, text);
    assert_ok(store_open(f->dir, &f->server.store, &err));
    assert_ok(quota_new(&f->server, &f->server.quota, &err));
    assert_ok(retention_init(&f->server, &err));
    f->retention = (struct retention){ .server = &f->server };
}

static void end(struct fixture *f)
{
    struct err err = { 0 };
    int64_t n;
    int found = 0;
    assert_ok(jobs_check(&f->server, check_count, &found, &n, &err));
    assert_int_equal(found, 0);
    quota_free(f->server.quota);
    store_free(f->server.store);
    assert_ok(tree_remove(f->dir, &err));
}

static void path_of(struct fixture *f, int64_t id, char out[128])
{
    snprintf(out, 128, "%s/jobs/%lld", f->dir, (long long)id);
}

/* A job that has ended and left a megabyte; `label`: of its labels, NULL: none. */
static int64_t ended(struct fixture *f, const char *name, const char *label)
{
    static char bytes[FILE_BYTES];
    struct err err = { 0 };
    char path[128], file[160];
    OWN_JSON json_t *job = NULL;
    OWN_JSON json_t *spec = json_pack("{s:s, s:[s], s:{}}", "kind", "command", "command", "true",
                                      "labels");
    if (label)
        json_object_set_new(json_object_get(spec, "labels"), label, json_string("true"));
    assert_ok(jobs_submit(&f->server, "p", name, spec, &job, &err));
    assert_ok(jobs_append(&f->server, "p", name, "job.preparing", json_pack("{s:i}", "attempt", 1),
                          &err));
    assert_ok(jobs_append(&f->server, "p", name, "job.ended",
                          json_pack("{s:s, s:s}", "state", "succeeded", "reason", ""), &err));
    int64_t id = json_integer_value(json_object_get(job, "uid"));
    path_of(f, id, path);
    snprintf(file, sizeof file, "%s/1/work", path);
    assert_ok(files_mkdir(file, &err));
    snprintf(file, sizeof file, "%s/1/work/f", path);
    memset(bytes, 1, sizeof bytes);
    assert_ok(files_write(file, bytes, sizeof bytes, &err));
    return id;
}

static int pass(struct fixture *f, double now)
{
    struct err err = { 0 };
    int removed = -1;
    assert_ok(retention_pass(&f->retention, now, &removed, &err));
    return removed;
}

static bool has_files(struct fixture *f, int64_t id)
{
    char path[128];
    path_of(f, id, path);
    return access(path, F_OK) == 0;
}

static void the_oldest_go_until_the_rest_fits(void **state)
{
    (void)state;
    struct fixture f;
    int64_t id[5];
    char name[8];
    begin(&f, "jobs: {days: 0, size: 2500k}\n");
    for (int i = 0; i < 5; i++) {
        snprintf(name, sizeof name, "j%d", i);
        id[i] = ended(&f, name, NULL);
    }
    assert_int_equal(pass(&f, clock_wall()), 3);
    for (int i = 0; i < 5; i++)
        assert_int_equal(has_files(&f, id[i]), i >= 3);
    assert_int_equal(pass(&f, clock_wall()), 0);
    ended(&f, "j5", NULL);
    assert_int_equal(pass(&f, clock_wall()), 1);
    assert_false(has_files(&f, id[3]));
    end(&f);
}

static void those_that_are_kept_or_in_use_stay_and_the_next_oldest_goes(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f, "jobs: {days: 1, size: 1}\n");
    int64_t kept = ended(&f, "kept", "keep"), used_one = ended(&f, "used", "run");
    int64_t plain = ended(&f, "plain", NULL);
    assert_int_equal(pass(&f, clock_wall() + 10 * 86400), 1);
    assert_true(has_files(&f, kept) && has_files(&f, used_one) && !has_files(&f, plain));
    end(&f);
}

static void a_job_goes_after_its_days_and_its_record_says_so_once(void **state)
{
    (void)state;
    struct fixture f;
    struct err err = { 0 };
    OWN_JSON json_t *job = NULL, *events = NULL;
    char dir[128];
    begin(&f, "jobs: {days: 3, size: 0}\n");
    int64_t id = ended(&f, "a", NULL);
    assert_int_equal(pass(&f, clock_wall() + 2.9 * 86400), 0);
    assert_true(has_files(&f, id));
    assert_int_equal(pass(&f, clock_wall() + 3.1 * 86400), 1);
    assert_int_equal(pass(&f, clock_wall() + 9 * 86400), 0);
    assert_ok(jobs_get(&f.server, "p", "a", &job, &err));
    const char *said = json_string_value(json_object_get(job, "files_removed"));
    assert_non_null(said);
    assert_non_null(strstr(said, "it had ended more than 3 days before (jobs in runtimes.yaml)"));
    assert_string_equal(json_string_value(json_object_get(job, "state")), "succeeded");
    assert_fails(jobs_dir(&f.server, "p", "a", dir, sizeof dir, &err), ERR_MISSING);
    assert_non_null(strstr(err.text, "were removed on"));
    assert_ok(jobs_events(&f.server, "p", "a", 0, &events, &err));
    assert_int_equal(json_array_size(events), 4);
    end(&f);
}

static void what_a_killed_server_had_begun_is_finished_and_nothing_else_is_touched(void **state)
{
    (void)state;
    struct fixture f;
    struct err err = { 0 };
    char path[128], gone[160];
    begin(&f, "jobs: {days: 0, size: 0}\n");
    int64_t recorded = ended(&f, "recorded", NULL), renamed = ended(&f, "renamed", NULL);
    int64_t fine = ended(&f, "fine", NULL);
    for (int i = 0; i < 2; i++) {
        struct job_event e = { i ? renamed : recorded, "job.files_removed",
                               json_pack("{s:s}", "reason", "gone") };
        assert_ok(jobs_append_all(&f.server, &e, 1, &err));
    }
    path_of(&f, renamed, path);
    snprintf(gone, sizeof gone, "%s.gone", path);
    assert_int_equal(rename(path, gone), 0);
    retention_finish(&f.retention);
    assert_int_equal(access(gone, F_OK), -1);
    assert_false(has_files(&f, recorded));
    assert_true(has_files(&f, fine));
    retention_finish(&f.retention);
    end(&f);
}

CHECK_MAIN(the_oldest_go_until_the_rest_fits,
           those_that_are_kept_or_in_use_stay_and_the_next_oldest_goes,
           a_job_goes_after_its_days_and_its_record_says_so_once,
           what_a_killed_server_had_begun_is_finished_and_nothing_else_is_touched)
