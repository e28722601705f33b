/* cli/project.c - muster project: who shares a server, and by which tokens */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "cli/listing.h"

struct args {
    int json;
    const char *project, *label;
};
static const struct option options[] = {
    { "project", 0, "NAME", "of the tokens (default: MUSTER_PROJECT, or \"default\")", OPTION_TEXT,
      offsetof(struct args, project) },
    { "label", 0, "TEXT", "what a new token is for", OPTION_TEXT, offsetof(struct args, label) },
    { "json", 0, NULL, "print the server's answer as JSON", OPTION_FLAG,
      offsetof(struct args, json) },
    { 0 }
};

static void print_time(const json_t *row)
{
    time_t t = (time_t)json_number_value(json_object_get(row, "created"));
    struct tm tm;
    char stamp[40];

    strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M", localtime_r(&t, &tm));
    printf("%-17s", stamp);
}

/* ------------------------------------------------------------ each verb */

static int add(struct client *c, const struct args *a, const char *name, struct err *err)
{
    OWN_JSON json_t *body = json_pack("{s:s}", "name", name), *doc = NULL;

    if (client_call(c, "POST", "/api/projects", body, &doc, err) < 0)
        return -(int)err->code;
    if (a->json)
        listing_json(doc);
    else
        printf("project %s is there (muster project token add --project %s makes a token for it)\n",
               name, name);
    return 0;
}

static int list(struct client *c, const struct args *a, const char *name, struct err *err)
{
    OWN_JSON json_t *doc = NULL;
    json_t *row;
    size_t i;

    (void)name;
    if (client_call(c, "GET", "/api/projects", NULL, &doc, err) < 0)
        return -(int)err->code;
    if (a->json)
        listing_json(doc);
    else
        json_array_foreach(json_object_get(doc, "projects"), i, row) {
            print_time(row);
            printf(" %s\n", text_of(row, "name"));
        }
    return 0;
}

static int remove_one(struct client *c, const struct args *a, const char *name, struct err *err)
{
    OWN_MEM char *path = client_path("/api/projects/%", name, NULL);

    (void)a;
    if (!path)
        return err_set(err, ERR_NOMEM, "no memory for a request");
    return client_call(c, "DELETE", path, NULL, NULL, err);
}

static int token_add(struct client *c, const struct args *a, const char *name, struct err *err)
{
    OWN_MEM char *path = client_path("/api/projects/%/tokens", c->project, NULL);
    OWN_JSON json_t *body = json_pack("{s:s}", "label", a->label ? a->label : ""), *doc = NULL;

    (void)name;
    if (!path || !body)
        return err_set(err, ERR_NOMEM, "no memory for a request");
    if (client_call(c, "POST", path, body, &doc, err) < 0)
        return -(int)err->code;
    if (a->json) {
        listing_json(doc);
        return 0;
    }
    /* The token alone on stdout, so that it can go to a file. */
    printf("%s\n", text_of(doc, "token"));
    fprintf(stderr, "token %s of project %s; it is shown this once\n", text_of(doc, "id"),
            text_of(doc, "project"));
    return 0;
}

static int token_list(struct client *c, const struct args *a, const char *name, struct err *err)
{
    OWN_MEM char *path = client_path("/api/projects/%/tokens", c->project, NULL);
    OWN_JSON json_t *doc = NULL;
    json_t *row;
    size_t i;

    (void)name;
    if (!path)
        return err_set(err, ERR_NOMEM, "no memory for a request");
    if (client_call(c, "GET", path, NULL, &doc, err) < 0)
        return -(int)err->code;
    if (a->json)
        listing_json(doc);
    else
        json_array_foreach(json_object_get(doc, "tokens"), i, row) {
            print_time(row);
            printf(" %s  %s\n", text_of(row, "id"), text_of(row, "label"));
        }
    return 0;
}

static int token_remove(struct client *c, const struct args *a, const char *id, struct err *err)
{
    OWN_MEM char *path = client_path("/api/projects/%/tokens/%", c->project, id, NULL);

    (void)a;
    if (!path)
        return err_set(err, ERR_NOMEM, "no memory for a request");
    return client_call(c, "DELETE", path, NULL, NULL, err);
}

static const struct verb {
    const char *word, *second;          /* second: of "token" */
    int args;
    int (*run)(struct client *c, const struct args *a, const char *name, struct err *err);
} verbs[] = {
    { "add", NULL, 1, add },
    { "list", NULL, 0, list },
    { "remove", NULL, 1, remove_one },
    { "token", "add", 0, token_add },
    { "token", "list", 0, token_list },
    { "token", "remove", 1, token_remove },
};

static int run(struct cli *cli, int argc, char **argv, struct err *err)
{
    struct args a = { 0 };
    OWN(client) c = NULL;
    int n = options_parse(options, argc, argv, &a, err);

    (void)cli;
    if (n < 0)
        return n;
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        const struct verb *v = &verbs[i];
        const int words = v->second ? 2 : 1;
        if (n != words + v->args || strcmp(argv[0], v->word)
            || (v->second && strcmp(argv[1], v->second)))
            continue;
        if (a.project)
            setenv("MUSTER_PROJECT", a.project, 1);
        if (client_open(&c, err) < 0)
            return -(int)err->code;
        return v->run(c, &a, v->args ? argv[words] : NULL, err);
    }
    return cli_usage(&command_project, err);
}

const struct command command_project = {
    .name = "project",
    .args = "add NAME | list | remove NAME | token add | token list | token remove ID",
    .summary = "share the server: projects, and the tokens that reach them",
    .example = "muster project add taxi-team\nmuster project token add --project taxi-team --label "
               "laptop\n"
               "muster project list",
    .more = "A project's token reaches its jobs, buckets and values and nothing else. It is shown "
            "once.",
    .options = options,
    .run = run,
};
