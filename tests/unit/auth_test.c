/* Tokens reach what they should and nothing else. */
#include <string.h>
#include <sys/stat.h>

#include "base/files.h"
#include "server/auth.h"
#include "server/jobs.h"
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
    struct auth_who who;

    return auth_check(server.auth, token, &who) && !strcmp(who.project, project)
        && who.root == root && !who.job[0];
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

static bool of_job(const char *token, const char *name)
{
    struct auth_who who;

    return auth_check(server.auth, token, &who) && !strcmp(who.project, "taxi-team") && !who.root
        && !strcmp(who.job, name) && who.until == 0;
}

static void a_jobs_token_is_its_own_outlives_the_server_and_ends_with_the_job(void **state)
{
    (void)state;
    struct err err = { 0 };
    char one[AUTH_TOKEN], two[AUTH_TOKEN], again[AUTH_TOKEN];
    OWN_JSON json_t *spec = json_pack("{s:s, s:[s]}", "kind", "command", "command", "true");
    int64_t uid[2];

    open_all();
    assert_ok(jobs_init(&server, &err));
    for (int i = 0; i < 2; i++) {
        OWN_JSON json_t *job = NULL;
        assert_ok(jobs_submit(&server, "taxi-team", i ? "two" : "one", spec, &job, &err));
        uid[i] = json_integer_value(json_object_get(job, "uid"));
    }
    auth_job_token(server.auth, uid[0], one);
    auth_job_token(server.auth, uid[1], two);
    assert_string_not_equal(one, two);
    assert_true(of_job(one, "one"));
    assert_true(of_job(two, "two"));
    auth_job_token(server.auth, uid[1] + 1000, again);
    assert_false(of_job(again, "one"));         /* a good MAC, and no such job */
    two[strlen(two) - 1] ^= 1;
    assert_false(of_job(two, "two"));
    two[strlen(two) - 1] ^= 1;
    close_all();
    open_all();
    auth_job_token(server.auth, uid[0], again);
    assert_string_equal(one, again);
    assert_true(of_job(one, "one"));
    assert_ok(jobs_append(&server, "taxi-team", "one", "job.ended",
                          json_pack("{s:s, s:s}", "state", "cancelled", "reason", ""), &err));
    assert_false(of_job(one, "one"));
    assert_true(of_job(two, "two"));
    assert_fails(auth_session_add(server.auth, two, again, &err), ERR_DENIED);
    close_all();
}

static bool logged_in(const char *session, const char *project, bool root)
{
    struct auth_who who;

    return auth_session_check(server.auth, session, &who) && !strcmp(who.project, project)
        && who.root == root && who.until > 0;
}

static void a_session_is_no_token_and_ends_with_the_token_it_was_given_for(void **state)
{
    (void)state;
    struct err err = { 0 };
    char root[AUTH_TOKEN], token[AUTH_TOKEN], own[AUTH_TOKEN], other[AUTH_TOKEN], id[16];

    open_all();
    snprintf(root, sizeof root, "%s", auth_root_token(server.auth));
    assert_ok(auth_token_add(server.auth, "taxi-team", "web", token, id, &err));
    assert_fails(auth_session_add(server.auth, "muster_nobody", own, &err), ERR_DENIED);
    assert_ok(auth_session_add(server.auth, root, own, &err));
    assert_ok(auth_session_add(server.auth, token, other, &err));
    assert_true(logged_in(own, "", true));
    assert_true(logged_in(other, "taxi-team", false));
    assert_false(knows(own, "", true));
    assert_false(logged_in(root, "", true));
    assert_fails(auth_session_add(server.auth, own, token, &err), ERR_DENIED);
    close_all();
    open_all();
    assert_true(logged_in(own, "", true));
    assert_ok(auth_session_remove(server.auth, own, &err));
    assert_false(logged_in(own, "", true));
    assert_ok(auth_token_remove(server.auth, "taxi-team", id, &err));
    assert_false(logged_in(other, "taxi-team", false));
    assert_ok(auth_token_add(server.auth, "taxi-team", "", token, id, &err));
    assert_fails(auth_project_remove(server.auth, "default", &err), ERR_CONFLICT);
    assert_ok(auth_project_remove(server.auth, "taxi-team", &err));
    assert_false(knows(token, "taxi-team", false));
    close_all();
}

static int age_sessions(sqlite3 *db, void *arg, struct err *err)
{
    (void)arg;
    return store_run(db, err, "UPDATE sessions SET expires = expires - ?", "d",
                     AUTH_SESSION_S + 1.0);
}

static void a_session_ends_with_its_time(void **state)
{
    (void)state;
    struct err err = { 0 };
    char session[AUTH_TOKEN];

    open_all();
    assert_ok(auth_session_add(server.auth, auth_root_token(server.auth), session, &err));
    assert_ok(store_write(server.store, age_sessions, NULL, &err));
    close_all();
    open_all();
    assert_false(logged_in(session, "", true));
    close_all();
}

static void a_label_is_one_line(void **state)
{
    (void)state;
    struct err err = { 0 };
    char token[AUTH_TOKEN], id[16];
    static const char *const bad[] = { "a\nb", "a\tb", "\x1b[2J", "a\x7f", "a\xc2\x9bm" };

    open_all();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_fails(auth_token_add(server.auth, "default", bad[i], token, id, &err), ERR_INVALID);
    assert_ok(auth_token_add(server.auth, "default", "Zo\xc3\xab \xc2\xa0", token, id, &err));
    assert_ok(auth_token_remove(server.auth, "default", id, &err));
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
           a_jobs_token_is_its_own_outlives_the_server_and_ends_with_the_job,
           a_session_is_no_token_and_ends_with_the_token_it_was_given_for,
           a_session_ends_with_its_time, a_label_is_one_line,
           names_are_such_as_every_client_takes,
           a_secret_is_listed_by_name_and_a_config_value_by_both)
