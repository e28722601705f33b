/* tests/unit/jobs_test.c - a job is its events: each order of them, twice, paged */
#include "server/jobs.h"

#include <sys/stat.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/tree.h"
#include "server/jobs_int.h"
#include "server/server.h"
#include "tests/check.h"

struct fixture {
    struct server server;
    char dir[64];
};

static void begin(struct fixture *f)
{
    struct err err = { 0 };
    snprintf(f->dir, sizeof f->dir, "/tmp/jobs_test.XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    f->server = (struct server){ .data_dir = f->dir };
    assert_ok(store_open(f->dir, &f->server.store, &err));
    assert_ok(jobs_init(&f->server, &err));
    assert_ok(jobs_init(&f->server, &err));
}

static void end(struct fixture *f)
{
    struct err err = { 0 };
    int64_t n;
    int found = 0;
    assert_ok(jobs_check(&f->server, check_count, &found, &n, &err));
    assert_int_equal(found, 0);
    store_free(f->server.store);
    assert_ok(tree_remove(f->dir, &err));
}

static json_t *command(const char *name)
{
    return json_pack("{s:s, s:s, s:[s]}", "name", name, "kind", "command", "command", "true");
}

static void submit_named(struct fixture *f, const char *project, const char *name)
{
    struct err err = { 0 };
    OWN_JSON json_t *spec = command("x");
    assert_ok(jobs_submit(&f->server, project, name, spec, NULL, &err));
}

static const char *text_of(struct fixture *f, const char *name, const char *key)
{
    static char out[256];
    struct err err = { 0 };
    OWN_JSON json_t *job = NULL;
    assert_ok(jobs_get(&f->server, "p", name, &job, &err));
    snprintf(out, sizeof out, "%s", json_string_value(json_object_get(job, key)));
    return out;
}

static long events_of(struct fixture *f, const char *name)
{
    struct err err = { 0 };
    OWN_JSON json_t *list = NULL;
    assert_ok(jobs_events(&f->server, "p", name, 0, &list, &err));
    return (long)json_array_size(list);
}

/* Types and bodies, then the state they lead to and how many of them are kept. */
struct story {
    const char *events[12];
    const char *state, *reason;
    int kept;
};

#define PREPARING "job.preparing {\"attempt\": 1}"
#define STARTED "attempt.started {\"attempt\": 1, \"pid\": 7}"
#define ENDED "attempt.ended {\"attempt\": 1, \"code\": 3, \"reason\": \"exit code 3\"}"
#define SUCCEEDED "job.ended {\"state\": \"succeeded\", \"reason\": \"\"}"
#define CANCELLED "job.ended {\"state\": \"cancelled\", \"reason\": \"cancelled by me\"}"
#define CANCEL "job.cancel_requested {\"by\": \"me\"}"
#define RETRY "job.retrying {\"at\": 12.5}"

static const struct story stories[] = {
    { { NULL }, "queued", "", 1 },
    { { PREPARING, PREPARING }, "preparing", "", 2 },
    { { PREPARING, STARTED, STARTED }, "running", "", 3 },
    { { STARTED }, "running", "", 2 },
    { { PREPARING, "job.preparing {\"what\": \"installing numpy\"}", STARTED }, "running", "", 4 },
    { { PREPARING, STARTED, ENDED, ENDED }, "running", "exit code 3", 4 },
    { { PREPARING, STARTED, ENDED, RETRY, RETRY }, "queued", "exit code 3", 5 },
    { { PREPARING, STARTED, ENDED, RETRY, STARTED }, "queued", "exit code 3", 5 },
    { { PREPARING, STARTED, ENDED, RETRY, "job.preparing {\"attempt\": 2}", ENDED }, "preparing",
      "", 6 },
    { { PREPARING, STARTED, ENDED, RETRY, "attempt.started {\"attempt\": 2}" }, "running", "", 6 },
    { { PREPARING, STARTED, ENDED, SUCCEEDED }, "succeeded", "", 5 },
    { { CANCEL, CANCEL }, "cancelling", "", 2 },
    { { PREPARING, CANCEL, STARTED, STARTED }, "cancelling", "", 4 },
    { { PREPARING, STARTED, CANCEL, ENDED, RETRY }, "cancelling", "exit code 3", 5 },
    { { CANCEL, CANCELLED }, "cancelled", "cancelled by me", 3 },
    { { "worker.joined {\"workers\": 3}" }, "queued", "", 1 },
};

static void each_order_of_events_leads_to_its_state_and_repeats_are_not_kept(void **state)
{
    (void)state;
    struct fixture f;
    struct err err = { 0 };
    begin(&f);
    for (size_t i = 0; i < sizeof stories / sizeof stories[0]; i++) {
        char name[16];
        snprintf(name, sizeof name, "s%zu", i);
        submit_named(&f, "p", name);
        for (int k = 0; stories[i].events[k]; k++) {
            char type[64];
            const char *space = strchr(stories[i].events[k], ' ');
            snprintf(type, sizeof type, "%.*s", (int)(space - stories[i].events[k]),
                     stories[i].events[k]);
            json_t *body = json_loads(space, 0, NULL);
            assert_non_null(body);
            assert_ok(jobs_append(&f.server, "p", name, type, body, &err));
        }
        if (strcmp(text_of(&f, name, "state"), stories[i].state))
            fail_msg("story %zu: %s, not %s", i, text_of(&f, name, "state"), stories[i].state);
        assert_string_equal(text_of(&f, name, "reason"), stories[i].reason);
        if (events_of(&f, name) != stories[i].kept)
            fail_msg("story %zu: %ld events kept, not %d", i, events_of(&f, name), stories[i].kept);
    }
    end(&f);
}

static void nothing_but_labels_changes_after_the_end(void **state)
{
    (void)state;
    struct fixture f;
    struct err err = { 0 };
    begin(&f);
    submit_named(&f, "p", "a");
    assert_ok(jobs_append(&f.server, "p", "a", "job.ended",
                          json_pack("{s:s, s:s}", "state", "failed", "reason", "no"), &err));
    assert_fails(jobs_cancel(&f.server, "p", "a", "me", &err), ERR_CONFLICT);
    assert_fails(jobs_append(&f.server, "p", "a", "attempt.started", json_object(), &err),
                 ERR_CONFLICT);
    struct job_event late = { 1, "attempt.started", json_pack("{s:i}", "attempt", 1) };
    assert_ok(jobs_append_all(&f.server, &late, 1, &err));
    assert_int_equal(events_of(&f, "a"), 2);
    OWN_JSON json_t *labels = json_pack("{s:s}", "k", "v");
    assert_ok(jobs_patch_labels(&f.server, "p", "a", labels, &err));
    assert_int_equal(events_of(&f, "a"), 3);
    assert_string_equal(text_of(&f, "a", "state"), "failed");
    end(&f);
}

static void a_name_is_taken_once_in_a_project_and_made_when_there_is_none(void **state)
{
    (void)state;
    struct fixture f;
    struct err err = { 0 };
    OWN_JSON json_t *spec = command("fit");
    OWN_JSON json_t *one = NULL;
    begin(&f);
    submit_named(&f, "p", "a");
    submit_named(&f, "q", "a");
    assert_fails(jobs_submit(&f.server, "p", "a", spec, NULL, &err), ERR_CONFLICT);
    assert_ok(jobs_submit(&f.server, "p", NULL, spec, &one, &err));
    assert_string_equal(json_string_value(json_object_get(one, "name")), "fit-3");
    assert_string_equal(json_string_value(json_object_get(one, "state")), "queued");
    assert_fails(jobs_submit(&f.server, "p", "../x", spec, NULL, &err), ERR_INVALID);
    OWN_JSON json_t *none = NULL;
    assert_fails(jobs_get(&f.server, "p", "nobody", &none, &err), ERR_MISSING);
    end(&f);
}

static void a_wrong_document_is_refused_with_its_key(void **state)
{
    (void)state;
    static const struct { const char *doc, *says; } wrong[] = {
        { "[]", "a job is a JSON object" },
        { "{}", "kind:" },
        { "{\"kind\": \"magic\"}", "kind: \"magic\"" },
        { "{\"kind\": \"command\"}", "command:" },
        { "{\"kind\": \"command\", \"command\": []}", "command: is empty" },
        { "{\"kind\": \"command\", \"command\": [1]}", "command[0]:" },
        { "{\"kind\": \"train\", \"train\": {}}", "train.spec:" },
        { "{\"kind\": \"python\", \"python\": {\"module\": 1}}", "python.module:" },
        { "{\"kind\": \"command\", \"command\": [\"a\"], \"resources\": {\"cpu\": 0}}",
          "resources.cpu:" },
        { "{\"kind\": \"command\", \"command\": [\"a\"], \"resources\": {\"memory\": \"many\"}}",
          "resources.memory: \"many\" is no amount, such as 512Mi" },
        { "{\"kind\": \"command\", \"command\": [\"a\"], \"resources\": {\"memory\": \"100m\"}}",
          "resources.memory: takes a whole number" },
        { "{\"kind\": \"command\", \"command\": [\"a\"], \"resources\": {\"cpus\": 1}}",
          "did you mean \"resources.cpu\"" },
        { "{\"kind\": \"command\", \"command\": [\"a\"], \"workers\": {\"min\": 3, \"max\": 2}}",
          "workers.max:" },
        { "{\"kind\": \"command\", \"command\": [\"a\"], \"workers\": {\"min\": 1.5}}",
          "workers.min:" },
        { "{\"kind\": \"command\", \"command\": [\"a\"], \"labels\": {\"a\": 1}}", "labels.a:" },
        { "{\"kind\": \"command\", \"command\": [\"a\"], \"priority\": 1000}", "priority:" },
    };
    struct fixture f;
    struct err err = { 0 };
    begin(&f);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        OWN_JSON json_t *doc = json_loads(wrong[i].doc, 0, NULL);
        assert_non_null(doc);
        assert_fails(jobs_submit(&f.server, "p", "a", doc, NULL, &err), ERR_INVALID);
        if (!strstr(err.text, wrong[i].says))
            fail_msg("%s: \"%s\" does not say \"%s\"", wrong[i].doc, err.text, wrong[i].says);
    }
    end(&f);
}

static void amounts_may_be_texts_as_kubernetes_has_them(void **state)
{
    (void)state;
    struct fixture f;
    struct err err = { 0 };
    OWN_JSON json_t *one = NULL;
    OWN_JSON json_t *doc = json_loads("{\"kind\": \"command\", \"command\": [\"a\"], \"resources\": "
                                      "{\"cpu\": \"500m\", \"memory\": \"100Mi\", \"gpu\": \"2\"}}",
                                      0, NULL);
    begin(&f);
    assert_ok(jobs_submit(&f.server, "p", "a", doc, NULL, &err));
    assert_ok(jobs_get(&f.server, "p", "a", &one, &err));
    const json_t *r = json_object_get(json_object_get(one, "spec"), "resources");
    assert_true(json_real_value(json_object_get(r, "cpu")) == 0.5);
    assert_int_equal(json_integer_value(json_object_get(r, "memory")), 100 << 20);
    assert_int_equal(json_integer_value(json_object_get(r, "gpu")), 2);
    end(&f);
}

static int pages(struct fixture *f, struct jobs_query q, int *out_n)
{
    struct err err = { 0 };
    char token[JOB_TOKEN] = "";
    int n_pages = 0;
    int64_t last = INT64_MAX;
    *out_n = 0;
    do {
        OWN_JSON json_t *list = NULL;
        q.token = token;
        char next[JOB_TOKEN];
        assert_ok(jobs_list(&f->server, &q, &list, next, &err));
        snprintf(token, sizeof token, "%s", next);
        for (size_t i = 0; i < json_array_size(list); i++) {
            int64_t uid = json_integer_value(json_object_get(json_array_get(list, i), "uid"));
            assert_true(uid < last);
            last = uid;
            ++*out_n;
        }
        n_pages++;
    } while (*token);
    return n_pages;
}

static void lists_are_paged_and_filtered_newest_first(void **state)
{
    (void)state;
    struct fixture f;
    struct err err = { 0 };
    int n;
    begin(&f);
    for (int i = 0; i < 25; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s_%d", i % 2 ? "Odd" : "even", i);
        OWN_JSON json_t *spec = command("x");
        if (i % 5 == 0)
            json_object_set_new(spec, "labels", json_pack("{s:s}", "team", i % 10 ? "a" : "b"));
        assert_ok(jobs_submit(&f.server, i < 20 ? "p" : "q", name, spec, NULL, &err));
    }
    assert_ok(jobs_cancel(&f.server, "p", "Odd_3", "me", &err));
    assert_int_equal(pages(&f, (struct jobs_query){ .limit = 10 }, &n), 3);
    assert_int_equal(n, 25);
    assert_int_equal(pages(&f, (struct jobs_query){ .limit = 25 }, &n), 1);
    pages(&f, (struct jobs_query){ .project = "q", .limit = 2 }, &n);
    assert_int_equal(n, 5);
    pages(&f, (struct jobs_query){ .state = "cancelling" }, &n);
    assert_int_equal(n, 1);
    pages(&f, (struct jobs_query){ .state = "queued", .limit = 7 }, &n);
    assert_int_equal(n, 24);
    pages(&f, (struct jobs_query){ .state = "active", .project = "p" }, &n);
    assert_int_equal(n, 20);
    pages(&f, (struct jobs_query){ .text = "odd_" }, &n);
    assert_int_equal(n, 12);
    pages(&f, (struct jobs_query){ .text = "%" }, &n);
    assert_int_equal(n, 0);
    pages(&f, (struct jobs_query){ .label_key = "team" }, &n);
    assert_int_equal(n, 5);
    pages(&f, (struct jobs_query){ .label_key = "team", .label_value = "a", .limit = 1 }, &n);
    assert_int_equal(n, 2);
    OWN_JSON json_t *none = json_object();
    assert_ok(jobs_patch_labels(&f.server, "p", "Odd_5", none, &err));
    pages(&f, (struct jobs_query){ .label_key = "team", .label_value = "a" }, &n);
    assert_int_equal(n, 1);
    char token[JOB_TOKEN];
    OWN_JSON json_t *list = NULL;
    assert_fails(jobs_list(&f.server, &(struct jobs_query){ .state = "odd" }, &list, token, &err),
                 ERR_INVALID);
    assert_fails(jobs_list(&f.server, &(struct jobs_query){ .token = "x" }, &list, token, &err),
                 ERR_INVALID);
    end(&f);
}

static void a_deleted_job_is_gone_with_its_files_and_its_number_is_not_given_again(void **state)
{
    (void)state;
    struct fixture f;
    struct err err = { 0 };
    char path[128], there[256] = "x";
    begin(&f);
    submit_named(&f, "p", "a");
    assert_ok(jobs_dir(&f.server, "p", "a", there, sizeof there, &err));
    assert_string_equal(there, "");
    assert_ok(jobs_append(&f.server, "p", "a", "job.preparing", json_pack("{s:i}", "attempt", 1),
                          &err));
    assert_ok(jobs_dir(&f.server, "p", "a", there, sizeof there, &err));
    snprintf(path, sizeof path, "%s/jobs/1/1", f.dir);
    assert_string_equal(there, path);
    assert_ok(files_mkdir(path, &err));
    assert_fails(jobs_delete(&f.server, "p", "a", &err), ERR_CONFLICT);
    assert_ok(jobs_append(&f.server, "p", "a", "job.ended", json_pack("{s:s}", "state", "failed"),
                          &err));
    int64_t clock = jobs_clock(&f.server);
    assert_ok(jobs_delete(&f.server, "p", "a", &err));
    assert_true(jobs_clock(&f.server) > clock);
    assert_int_equal(access(path, F_OK), -1);
    submit_named(&f, "p", "a");
    OWN_JSON json_t *job = NULL;
    assert_ok(jobs_get(&f.server, "p", "a", &job, &err));
    assert_true(json_integer_value(json_object_get(job, "uid")) > clock);
    end(&f);
}

static void only_training_that_others_can_join_is_resized(void **state)
{
    (void)state;
    struct fixture f;
    struct err err = { 0 };
    begin(&f);
    submit_named(&f, "p", "program");
    assert_fails(jobs_resize(&f.server, "p", "program", 1, 2, &err), ERR_INVALID);
    for (int max = 1; max <= 4; max += 3) {
        OWN_JSON json_t *spec = json_pack("{s:s, s:{s:s}, s:{s:i, s:i}}", "kind", "train", "train",
                                          "spec", "x", "workers", "min", 1, "max", max);
        const char *name = max > 1 ? "many" : "one";
        assert_ok(jobs_submit(&f.server, "p", name, spec, NULL, &err));
        assert_ok(jobs_append(&f.server, "p", name, "job.preparing", json_pack("{s:i}", "attempt", 1),
                              &err));
    }
    assert_fails(jobs_resize(&f.server, "p", "one", 1, 2, &err), ERR_CONFLICT);
    assert_ok(jobs_resize(&f.server, "p", "many", 2, 8, &err));
    assert_ok(jobs_resize(&f.server, "p", "many", 2, 8, &err));
    assert_int_equal(events_of(&f, "many"), 3);
    assert_fails(jobs_resize(&f.server, "p", "many", 3, 2, &err), ERR_INVALID);
    end(&f);
}

static int spoil(sqlite3 *db, void *arg, struct err *err)
{
    (void)arg;
    return store_run(db, err, "UPDATE jobs SET state = 2", "");
}

static void a_row_that_is_not_what_its_events_say_is_found(void **state)
{
    (void)state;
    struct fixture f;
    struct err err = { 0 };
    int64_t n;
    begin(&f);
    submit_named(&f, "p", "a");
    assert_ok(store_write(f.server.store, spoil, NULL, &err));
    int found = 0;
    assert_ok(jobs_check(&f.server, check_count, &found, &n, &err));
    assert_int_equal(found, 1);
    assert_non_null(strstr(check_told, "\"a\""));
    assert_ok(jobs_append(&f.server, "p", "a", "job.ended", json_pack("{s:s}", "state", "failed"),
                          &err));
    assert_ok(jobs_delete(&f.server, "p", "a", &err));
    end(&f);
}

static int many(sqlite3 *db, void *arg, struct err *err)
{
    (void)arg;
    return store_run(db, err,
        "WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < 50000) "
        "INSERT INTO events SELECT i, i, 1.5, 'job.submitted', replace(body, '\"a\"', '\"a' || i || "
        "'\"') FROM n, events WHERE seq = 1", "") < 0 ||
        store_run(db, err,
        "WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < 50000) "
        "INSERT INTO jobs SELECT i, project, 'a' || i, kind, state, live, priority, attempt, "
        "retries, min, max, now, cpu, memory, gpu, 1.5, started, ended, retry_at, reason, "
        "labels, user, processes, removed FROM n, jobs WHERE id = 1", "") < 0 ? -(int)err->code : 0;
}

static double list_ms(struct fixture *f, struct jobs_query q)
{
    struct err err = { 0 };
    char token[JOB_TOKEN];
    double start = clock_seconds();
    OWN_JSON json_t *list = NULL;
    assert_ok(jobs_list(&f->server, &q, &list, token, &err));
    return 1000 * (clock_seconds() - start);
}

static void fifty_thousand_queued_jobs_are_listed_at_once(void **state)
{
    (void)state;
    struct fixture f;
    struct err err = { 0 };
    begin(&f);
    submit_named(&f, "p", "a");
    assert_ok(store_write(f.server.store, many, NULL, &err));
    const struct { const char *what; struct jobs_query q; } asks[] = {
        { "all", { 0 } },
        { "the last page", { .token = "90" } },
        { "queued", { .state = "queued" } },
        { "queued of a project", { .state = "queued", .project = "p" } },
        { "queued, one in the middle", { .state = "queued", .text = "a25001" } },
        { "running, none", { .state = "running" } },
        { "active", { .state = "active", .project = "p" } },
        { "a name, one", { .text = "A49", .limit = 1000 } },
        { "a project without jobs", { .project = "q" } },
        { "a label, none", { .label_key = "k", .label_value = "v" } },
    };
    for (size_t i = 0; i < sizeof asks / sizeof asks[0]; i++) {
        double first = list_ms(&f, asks[i].q), again = list_ms(&f, asks[i].q);
        print_message("%-30s %6.1f ms, again %6.1f ms\n", asks[i].what, first, again);
        assert_true(first < 1000);
    }
    end(&f);
}

CHECK_MAIN(each_order_of_events_leads_to_its_state_and_repeats_are_not_kept,
           nothing_but_labels_changes_after_the_end,
           a_name_is_taken_once_in_a_project_and_made_when_there_is_none,
           amounts_may_be_texts_as_kubernetes_has_them,
           a_wrong_document_is_refused_with_its_key, lists_are_paged_and_filtered_newest_first,
           a_deleted_job_is_gone_with_its_files_and_its_number_is_not_given_again,
           only_training_that_others_can_join_is_resized,
           a_row_that_is_not_what_its_events_say_is_found,
           fifty_thousand_queued_jobs_are_listed_at_once)
