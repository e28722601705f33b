/* tests/unit/catalog_test.c - pipelines, versions and experiments are kept, listed and removed */
#include "pipelines/catalog.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/own.h"
#include "server/server.h"
#include "tests/check.h"

static char folder[64];
static struct server server;

static const char text[] =
    "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata: {generateName: coin-}\nspec:\n"
    "  entrypoint: main\n  arguments: {parameters: [{name: x, value: '1'}]}\n  templates:\n"
    "  - name: main\n    container: {image: alpine, command: ['true']}\n";

static int begin(void **state)
{
    struct err err = { 0 };

    (void)state;
    snprintf(folder, sizeof folder, "/tmp/catalog_test.XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    server = (struct server){ .data_dir = folder };
    return store_open(folder, &server.store, &err) < 0 ? -1 : rows_init(&server, &err);
}

static int end(void **state)
{
    char command[128];

    (void)state;
    store_free(server.store);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static json_t *add(const char *name)
{
    struct err err = { 0 };
    json_t *out = NULL;
    struct catalog_entry e = { .project = "p", .name = name, .package = text,
                               .package_n = sizeof text - 1, .file = "coin.yaml" };

    assert_ok(pipelines_create(&server, &e, &out, &err));
    return out;
}

/* The names of a page, with blanks between. */
static void assert_names(const struct rows_kind *k, struct rows_query q, const char *want,
                         int64_t want_total, char **out_token)
{
    struct err err = { 0 };
    OWN_JSON json_t *rows = NULL;
    OWN_MEM char *token = NULL;
    char got[512] = "";
    int64_t total = -1;

    assert_ok(rows_list(&server, k, &q, &rows, &token, &total, &err));
    for (size_t i = 0; i < json_array_size(rows); i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%s", i ? " " : "",
                 text_of(json_array_get(rows, i), "name"));
    assert_string_equal(got, want);
    assert_int_equal(total, want_total);
    if (out_token)
        *out_token = TAKE(token);
    else
        assert_string_equal(token, "");
}

static void a_pipeline_comes_with_its_first_version(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN_JSON json_t *p = add(NULL), *v = NULL, *flow = NULL;
    OWN_MEM char *got = NULL;
    size_t n;

    assert_string_equal(text_of(p, "name"), "coin");
    assert_ok(versions_get(&server, "p", text_of(p, "id"), "", &v, &err));
    assert_string_equal(text_of(v, "id"), text_of(p, "default_version"));
    assert_string_equal(text_of(v, "dialect"), "argo");
    assert_string_equal(text_of(json_array_get(json_object_get(v, "inputs"), 0), "name"), "x");
    assert_ok(versions_text(&server, "p", text_of(v, "id"), &got, &n, &flow, &err));
    assert_string_equal(got, text);
    assert_string_equal(text_of(flow, "entry"), "main");
    struct catalog_entry e = { .project = "p", .name = "coin" };
    OWN_JSON json_t *again = NULL;
    assert_fails(pipelines_create(&server, &e, &again, &err), ERR_CONFLICT);
    assert_fails(pipelines_get(&server, "q", text_of(p, "id"), &again, &err), ERR_MISSING);
    assert_ok(pipelines_delete(&server, "p", text_of(p, "id"), &err));
    assert_fails(versions_get(&server, "p", NULL, text_of(v, "id"), &again, &err), ERR_MISSING);
}

static void what_cannot_be_run_is_not_taken(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct catalog_entry e = { .project = "p", .name = "bad", .package = "kind: Nothing",
                               .package_n = 13, .file = "bad.yaml" };
    json_t *out = NULL;

    assert_fails(pipelines_create(&server, &e, &out, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "bad.yaml"));
    assert_names(&rows_pipelines, (struct rows_query){ 0 }, "", 0, NULL);
}

static void a_deleted_default_is_followed_by_the_newest_of_the_others(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN_JSON json_t *p = add("one"), *second = NULL, *now = NULL, *v = NULL;
    const char *id = text_of(p, "id"), *first = text_of(p, "default_version");
    struct catalog_entry e = { .project = "p", .name = "v2", .package = text,
                               .package_n = sizeof text - 1 };

    assert_ok(versions_create(&server, id, &e, &second, &err));
    assert_fails(versions_create(&server, id, &e, &v, &err), ERR_CONFLICT);
    assert_ok(pipelines_get(&server, "p", id, &now, &err));
    assert_string_equal(text_of(now, "default_version"), text_of(second, "id"));
    assert_names(&rows_versions, (struct rows_query){ .parent = id, .sort = "name" }, "one v2", 2,
                 NULL);
    assert_ok(versions_delete(&server, "p", text_of(second, "id"), &err));
    assert_ok(versions_get(&server, "p", id, "", &v, &err));
    assert_string_equal(text_of(v, "id"), first);
    assert_ok(pipelines_delete(&server, "p", id, &err));
}

static void lists_have_an_order_filters_and_pages(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN_MEM char *token = NULL, *last = NULL;
    static const char *const names[] = { "bee", "ant", "cat", "Dog", "cow" };
    OWN_JSON json_t *rows = NULL;

    for (int i = 0; i < 5; i++) {
        OWN_JSON json_t *e = NULL;
        assert_ok(experiments_create(&server, i == 4 ? "q" : "p", names[i], "of animals", &e, &err));
    }
    struct rows_query q = { .project = "p", .sort = "created", .limit = 3 };
    assert_names(&rows_experiments, q, "bee ant cat", 4, &token);
    q.token = token;
    assert_names(&rows_experiments, q, "Dog", 4, NULL);
    assert_names(&rows_experiments, (struct rows_query){ 0 }, "cow Dog cat ant bee", 5, NULL);
    assert_names(&rows_experiments, (struct rows_query){ .text = "O", .sort = "name desc" },
                 "cow Dog", 2, NULL);
    OWN_JSON json_t *in = json_pack("[{s:s, s:s, s:[s, s]}, {s:s, s:s, s:s}]", "key", "name", "op",
                                    "IN", "value", "ant", "bee", "key", "name", "op",
                                    "NOT_EQUALS", "value", "ant");
    assert_names(&rows_experiments, (struct rows_query){ .filter = in }, "bee", 1, NULL);
    static const char *const wrong[] = { "[{\"key\": \"name; DROP\", \"op\": \"EQUALS\", \"value\": 1}]",
        "[{\"key\": \"name\", \"op\": \"LIKES\", \"value\": \"x\"}]", "{}",
        "[{\"key\": \"name\", \"op\": \"IN\", \"value\": []}]",
        "[{\"key\": \"name\", \"op\": \"EQUALS\", \"value\": {}}]" };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        OWN_JSON json_t *filter = json_loads(wrong[i], 0, NULL);
        struct rows_query bad = { .filter = filter };
        assert_fails(rows_list(&server, &rows_experiments, &bad, &rows, &last, NULL, &err),
                     ERR_INVALID);
    }
    struct rows_query bad = { .sort = "name sideways" };
    assert_fails(rows_list(&server, &rows_experiments, &bad, &rows, &last, NULL, &err), ERR_INVALID);
    bad = (struct rows_query){ .token = "zz" };
    assert_fails(rows_list(&server, &rows_experiments, &bad, &rows, &last, NULL, &err), ERR_INVALID);
}

static void an_archived_experiment_is_listed_apart(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN_JSON json_t *e = NULL, *d = NULL, *again = NULL;

    assert_ok(experiments_create(&server, "r", "old", NULL, &e, &err));
    assert_ok(experiments_archive(&server, "r", text_of(e, "id"), true, &err));
    assert_names(&rows_experiments, (struct rows_query){ .project = "r" }, "", 0, NULL);
    assert_names(&rows_experiments, (struct rows_query){ .project = "r", .archived = 1 }, "old", 1,
                 NULL);
    assert_names(&rows_experiments, (struct rows_query){ .project = "r", .archived = -1 }, "old", 1,
                 NULL);
    assert_ok(experiments_archive(&server, "r", text_of(e, "id"), false, &err));
    assert_ok(experiments_default(&server, "r", &d, &err));
    assert_ok(experiments_default(&server, "r", &again, &err));
    assert_string_equal(text_of(d, "id"), text_of(again, "id"));
    assert_ok(experiments_delete(&server, "r", text_of(e, "id"), &err));
    assert_names(&rows_experiments, (struct rows_query){ .project = "r" }, "Default", 1, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pipeline_comes_with_its_first_version),
        cmocka_unit_test(what_cannot_be_run_is_not_taken),
        cmocka_unit_test(a_deleted_default_is_followed_by_the_newest_of_the_others),
        cmocka_unit_test(lists_have_an_order_filters_and_pages),
        cmocka_unit_test(an_archived_experiment_is_listed_apart),
    };

    return cmocka_run_group_tests(tests, begin, end);
}
