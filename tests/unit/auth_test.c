/* Tokens reach what they should and nothing else. */
#include <string.h>
#include <sys/stat.h>

#include "base/files.h"
#include "server/auth.h"
#include "server/server.h"
#include "tests/check.h"

static char dir[] = "/tmp/muster-auth-XXXXXX";
static struct server server;

static void open_all(void)
{
    struct err err = { 0 };

    server = (struct server){ .data_dir = dir };
    assert_ok(store_open(dir, &server.store, &err));
    assert_ok(auth_new(&server, &server.auth, &err));
}

static void close_all(void)
{
    auth_free(server.auth);
    store_free(server.store);
}

static bool knows(const char *token, const char *project, bool root)
{
    char found[AUTH_NAME] = "?";
    bool is_root = !root;

    return auth_check(server.auth, token, found, &is_root) && !strcmp(found, project)
        && is_root == root;
}

static void the_first_start_makes_a_token_that_stays(void **state)
{
    (void)state;
    struct stat st;
    char token[AUTH_TOKEN];

    assert_non_null(mkdtemp(dir));
    open_all();
    snprintf(token, sizeof token, "%s", auth_root_token(server.auth));
    assert_int_equal(strlen(token), 47);
    assert_int_equal(stat(auth_token_file(server.auth), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_true(knows(token, "", true));
    close_all();
    open_all();
    assert_string_equal(auth_root_token(server.auth), token);
    token[20] ^= 1;
    assert_false(knows(token, "", true));
    assert_false(knows("", "", true));
    close_all();
}

static void a_projects_token_is_of_it_alone_and_ends_when_removed(void **state)
{
    (void)state;
    struct err err = { 0 };
    char token[AUTH_TOKEN], id[16];
    OWN_JSON json_t *rows = NULL;

    open_all();
    assert_fails(auth_token_add(server.auth, "nobody", "", token, id, &err), ERR_MISSING);
    assert_ok(auth_project_add(server.auth, "taxi-team", &err));
    assert_fails(auth_project_add(server.auth, "taxi-team", &err), ERR_CONFLICT);
    const unsigned epoch = auth_epoch(server.auth);
    err = (struct err){ 0 };
    assert_ok(auth_token_add(server.auth, "taxi-team", "laptop", token, id, &err));
    assert_true(auth_epoch(server.auth) != epoch);
    assert_true(knows(token, "taxi-team", false));
    close_all();
    open_all();
    assert_true(knows(token, "taxi-team", false));
    assert_ok(auth_token_list(server.auth, NULL, &rows, &err));
    assert_int_equal(json_array_size(rows), 1);
    assert_null(strstr(json_string_value(json_object_get(json_array_get(rows, 0), "id")), token));
    assert_fails(auth_token_remove(server.auth, "default", id, &err), ERR_MISSING);
    assert_ok(auth_token_remove(server.auth, "taxi-team", id, &err));
    assert_false(knows(token, "taxi-team", false));
    close_all();
}

static void a_jobs_token_is_the_same_after_a_restart_and_goes_with_the_project(void **state)
{
    (void)state;
    struct err err = { 0 };
    char first[AUTH_TOKEN], again[AUTH_TOKEN], other[AUTH_TOKEN];

    open_all();
    assert_ok(auth_job_token(server.auth, "taxi-team", first, &err));
    assert_ok(auth_job_token(server.auth, "default", other, &err));
    assert_string_not_equal(first, other);
    assert_true(knows(first, "taxi-team", false));
    close_all();
    open_all();
    assert_ok(auth_job_token(server.auth, "taxi-team", again, &err));
    assert_string_equal(first, again);
    assert_fails(auth_project_remove(server.auth, "default", &err), ERR_CONFLICT);
    assert_ok(auth_project_remove(server.auth, "taxi-team", &err));
    assert_false(knows(first, "taxi-team", false));
    assert_fails(auth_job_token(server.auth, "taxi-team", again, &err), ERR_MISSING);
    close_all();
}

static void names_are_such_as_every_client_takes(void **state)
{
    (void)state;
    struct err err = { 0 };

    assert_ok(auth_name_check("project", "taxi-team-2", &err));
    static const char *const bad[] = { "", "ab", "Taxi", "1taxi", "taxi_team", "taxi-", "../x",
        "a0123456789012345678901234567890123456789012345678901234567890123" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_fails(auth_name_check("project", bad[i], &err), ERR_INVALID);
}

static void a_secret_is_listed_by_name_and_a_config_value_by_both(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN_JSON json_t *secrets = NULL, *config = NULL;
    OWN_MEM char *value = NULL;

    open_all();
    assert_ok(auth_value_set(server.auth, AUTH_SECRET, "default", "key", "one", &err));
    assert_ok(auth_value_set(server.auth, AUTH_SECRET, "default", "key", "two", &err));
    assert_ok(auth_value_set(server.auth, AUTH_CONFIG, "default", "key", "three", &err));
    assert_ok(auth_value_get(server.auth, AUTH_SECRET, "default", "key", &value, &err));
    assert_string_equal(value, "two");
    assert_ok(auth_value_list(server.auth, AUTH_SECRET, "default", &secrets, &err));
    assert_int_equal(json_array_size(secrets), 1);
    assert_null(json_object_get(json_array_get(secrets, 0), "value"));
    assert_ok(auth_value_list(server.auth, AUTH_CONFIG, "default", &config, &err));
    assert_string_equal(json_string_value(json_object_get(json_array_get(config, 0), "value")),
                        "three");
    assert_fails(auth_value_set(server.auth, AUTH_SECRET, "default", "a b", "x", &err), ERR_INVALID);
    assert_fails(auth_value_set(server.auth, AUTH_SECRET, "nobody", "a", "x", &err), ERR_MISSING);
    assert_ok(auth_value_remove(server.auth, AUTH_SECRET, "default", "key", &err));
    assert_fails(auth_value_remove(server.auth, AUTH_SECRET, "default", "key", &err), ERR_MISSING);
    close_all();
    char *const rm[] = { "rm", "-rf", dir, NULL };
    pid_t pid = fork();
    if (pid == 0)
        execvp("rm", rm);
}

CHECK_MAIN(the_first_start_makes_a_token_that_stays,
           a_projects_token_is_of_it_alone_and_ends_when_removed,
           a_jobs_token_is_the_same_after_a_restart_and_goes_with_the_project,
           names_are_such_as_every_client_takes,
           a_secret_is_listed_by_name_and_a_config_value_by_both)
