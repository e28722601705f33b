/* tests/unit/recurring_test.c - recurring runs begin when they are due, each time once */
#include "pipelines/schedule.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/own.h"
#include "pipelines/cache.h"
#include "pipelines/catalog.h"
#include "pipelines/runs.h"
#include "pipelines/runs_int.h"
#include "server/server.h"
#include "tests/check.h"

static char folder[64];
static struct server server;

static const char text[] =
    "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata: {generateName: tick-}\nspec:\n"
    "  entrypoint: main\n  arguments: {parameters: [{name: x, value: '1'}]}\n  templates:\n"
    "  - name: main\n    container: {image: alpine, command: ['true']}\n";

static void begin(void)
{
    struct err err = { 0 };

    snprintf(folder, sizeof folder, "/tmp/recurring_test.XXXXXX");
    assert_non_null(mkdtemp(folder));
    server = (struct server){ .data_dir = folder };
    assert_ok(store_open(folder, &server.store, &err));
    assert_ok(rows_init(&server, &err));
    assert_ok(runs_log_init(&server, &err));
    assert_ok(step_cache_init(&server, &err));
}

static void end(void)
{
    char command[128];

    store_free(server.store);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
}

static json_t *add(struct recurring_request q, const char *trigger, const char *parameters)
{
    struct err err = { 0 };
    OWN_JSON json_t *t = json_loads(trigger, 0, NULL), *p = json_loads(parameters, 0, NULL);
    json_t *out = NULL;

    q.project = "p";
    q.name = "tick";
    q.text = text;
    q.text_n = sizeof text - 1;
    q.trigger = t;
    q.parameters = p;
    assert_ok(recurring_create(&server, &q, &out, &err));
    return out;
}

/* Begins what is due at `now` until nothing is; returns how many runs there are then. */
static int64_t runs_at(double now, double *next)
{
    struct err err = { 0 };
    int64_t before = -1, total = 0;
    double due;

    while (total != before) {
        OWN_JSON json_t *rows = NULL;
        OWN_MEM char *token = NULL;
        before = total;
        assert_ok(recurring_begin(&server, now, &due, &err));
        assert_ok(rows_list(&server, &rows_runs, &(struct rows_query){ 0 }, &rows, &token, &total,
                            &err));
    }
    if (next)
        *next = due;
    return total;
}

static int end_all(sqlite3 *db, void *arg, struct err *err)
{
    (void)arg;
    return store_run(db, err, "UPDATE runs SET state = 'succeeded'", "");
}

static void each_time_gets_one_run_and_so_many_run_at_once(void **state)
{
    (void)state;
    struct err err = { 0 };

    begin();
    OWN_JSON json_t *doc = add((struct recurring_request){ .max_concurrency = 2 },
                               "{\"interval_s\": 60}", "{}");
    double t0 = number_of(doc, "created"), next;
    assert_int_equal(runs_at(t0 + 30, &next), 0);
    assert_true(next > t0 + 58 && next <= t0 + 60);
    assert_int_equal(runs_at(t0 + 61, &next), 1);
    assert_int_equal(runs_at(t0 + 61, NULL), 1);
    assert_int_equal(runs_at(t0 + 500, NULL), 2);       /* two run: the third waits */
    assert_ok(store_write(server.store, end_all, NULL, &err));
    assert_int_equal(runs_at(t0 + 500, NULL), 4);
    end();
}

static void without_catch_up_what_was_missed_is_one_run(void **state)
{
    (void)state;

    begin();
    OWN_JSON json_t *doc = add((struct recurring_request){ .max_concurrency = 10,
                                                           .no_catchup = true },
                               "{\"interval_s\": 60}", "{}");
    assert_int_equal(runs_at(number_of(doc, "created") + 601, NULL), 1);
    end();
}

static void one_that_is_disabled_does_not_begin_nor_catch_up(void **state)
{
    (void)state;
    struct err err = { 0 };

    begin();
    OWN_JSON json_t *doc = add((struct recurring_request){ .max_concurrency = 10,
                                                           .disabled = true },
                               "{\"interval_s\": 60}", "{}");
    OWN_JSON json_t *now = NULL;
    double t0 = number_of(doc, "created");
    assert_int_equal(runs_at(t0 + 601, NULL), 0);
    assert_ok(recurring_enable(&server, "p", text_of(doc, "id"), true, &err));
    assert_int_equal(runs_at(clock_wall() + 61, NULL), 1);
    assert_ok(recurring_enable(&server, "p", text_of(doc, "id"), false, &err));
    assert_int_equal(runs_at(t0 + 3000, NULL), 1);
    assert_ok(recurring_get(&server, "p", text_of(doc, "id"), &now, &err));
    assert_string_equal(text_of(now, "state"), "disabled");
    assert_int_equal(number_of(now, "next"), 0);
    assert_ok(recurring_delete(&server, "p", text_of(doc, "id"), &err));
    assert_fails(recurring_delete(&server, "p", text_of(doc, "id"), &err), ERR_MISSING);
    end();
}

static void parameters_say_the_time_and_the_number(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN_JSON json_t *rows = NULL;
    OWN_MEM char *token = NULL;

    begin();
    OWN_JSON json_t *doc = add((struct recurring_request){ 0 },
                               "{\"cron\": \"0 0 9 * * *\", \"start\": 1794700000}",
                               "{\"x\": \"[[ScheduledTime.2006-01-02]] [[ScheduledTime]] "
                               "[[Index]] [[Other]]\"}");
    double due = number_of(doc, "next");
    assert_int_equal(runs_at(due, NULL), 1);
    assert_ok(rows_list(&server, &rows_runs, &(struct rows_query){ 0 }, &rows, &token, NULL, &err));
    const json_t *run = json_array_get(rows, 0);
    const char *x = text_of(json_object_get(run, "parameters"), "x");
    assert_int_equal(strlen(x), 10 + 1 + 14 + 1 + 1 + 1 + 9);
    assert_non_null(strstr(x, "090000 1 [[Other]]"));
    assert_string_equal(text_of(run, "name"), "tick-1");
    assert_string_equal(text_of(run, "recurring"), text_of(doc, "id"));
    assert_true(number_of(run, "scheduled") == due);
    end();
}

static void one_whose_pipeline_is_gone_says_so_and_goes_on(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN_JSON json_t *trigger = json_pack("{s:i}", "interval_s", 60);
    OWN_JSON json_t *pipeline = NULL, *doc = NULL, *now = NULL;
    double next;

    begin();
    struct catalog_entry e = { .project = "p", .package = text, .package_n = sizeof text - 1 };
    assert_ok(pipelines_create(&server, &e, &pipeline, &err));
    struct recurring_request q = { .project = "p", .name = "tick", .trigger = trigger,
                                   .pipeline = text_of(pipeline, "id"), .max_concurrency = 5 };
    assert_ok(recurring_create(&server, &q, &doc, &err));
    double t0 = number_of(doc, "created");
    assert_int_equal(runs_at(t0 + 61, &next), 1);
    assert_ok(pipelines_delete(&server, "p", text_of(pipeline, "id"), &err));
    assert_int_equal(runs_at(t0 + 121, &next), 1);
    assert_int_equal(runs_at(t0 + 121, &next), 1);
    assert_true(next > t0 + 121);
    assert_ok(recurring_get(&server, "p", text_of(doc, "id"), &now, &err));
    assert_non_null(strstr(text_of(now, "message"), "no pipeline"));
    end();
}

CHECK_MAIN(each_time_gets_one_run_and_so_many_run_at_once,
           without_catch_up_what_was_missed_is_one_run,
           one_that_is_disabled_does_not_begin_nor_catch_up, parameters_say_the_time_and_the_number,
           one_whose_pipeline_is_gone_says_so_and_goes_on)
