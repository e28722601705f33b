/* cli/value.c - secrets and config values: the same verbs over two kinds */
#include "cli/value.h"

#include <stdio.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "base/files.h"
#include "cli/client.h"

enum { VALUE_MAX = 64 << 10 };

struct args {
    int json;
    const char *project;
};
const struct option value_options[] = {
    { "project", 0, "NAME", "of this project (default: MUSTER_PROJECT, or \"default\")",
      OPTION_TEXT, offsetof(struct args, project) },
    { "json", 0, NULL, "print the list as JSON", OPTION_FLAG, offsetof(struct args, json) },
    { 0 }
};

/* A line from the terminal, not shown while it is typed. */
static int ask(const struct value_kind *kind, const char *name, char **out, struct err *err)
{
    struct termios shown, hidden;
    size_t cap = 0;

    fprintf(stderr, "value of the %s %s: ", kind->noun, name);
    fflush(stderr);
    const int is_terminal = tcgetattr(STDIN_FILENO, &shown) == 0;
    hidden = shown;
    hidden.c_lflag &= ~(tcflag_t)ECHO;
    if (is_terminal && !kind->shown)
        tcsetattr(STDIN_FILENO, TCSAFLUSH, &hidden);
    const ssize_t n = getline(out, &cap, stdin);
    if (is_terminal && !kind->shown) {
        tcsetattr(STDIN_FILENO, TCSAFLUSH, &shown);
        fprintf(stderr, "\n");
    }
    return n < 0 ? err_set(err, ERR_INVALID, "no value was given") : 0;
}

static int set(struct client *c, const struct value_kind *kind, const char *name, struct err *err)
{
    OWN_MEM char *path = client_path("/api/projects/%/%/%", c->project, kind->path, name, NULL);
    OWN_MEM char *value = NULL;

    if (!path)
        return err_set(err, ERR_NOMEM, "no memory for a request");
    if ((isatty(STDIN_FILENO) ? ask(kind, name, &value, err)
         : files_read("-", VALUE_MAX, &value, NULL, err)) < 0)
        return -(int)err->code;
    /* One line break at the end is the terminal's or the editor's, not the value's. */
    size_t n = strlen(value);
    if (n && value[n - 1] == '\n')
        value[--n] = 0;
    if (n && value[n - 1] == '\r')
        value[--n] = 0;
    OWN_JSON json_t *body = json_pack("{s:s}", "value", value);
    if (!body)
        return err_set(err, ERR_INVALID,
                       "the value of \"%s\" is not UTF-8 text (encode it, with base64 "
                       "for example)",
                       name);
    return client_call(c, "PUT", path, body, NULL, err);
}

static int list(struct client *c, const struct value_kind *kind, int json, struct err *err)
{
    OWN_MEM char *path = client_path("/api/projects/%/%", c->project, kind->path, NULL);
    OWN_JSON json_t *doc = NULL;
    json_t *row;
    size_t i;

    if (!path)
        return err_set(err, ERR_NOMEM, "no memory for a request");
    if (client_call(c, "GET", path, NULL, &doc, err) < 0)
        return -(int)err->code;
    if (json) {
        OWN_MEM char *text = json_dumps(doc, JSON_INDENT(2));
        puts(text ? text : "{}");
        return 0;
    }
    json_array_foreach(json_object_get(doc, "values"), i, row) {
        const char *value = json_string_value(json_object_get(row, "value"));
        printf("%s%s%s\n", json_string_value(json_object_get(row, "name")), value ? "=" : "",
               value ? value : "");
    }
    return 0;
}

static int remove_one(struct client *c, const struct value_kind *kind, const char *name,
                      struct err *err)
{
    OWN_MEM char *path = client_path("/api/projects/%/%/%", c->project, kind->path, name, NULL);

    if (!path)
        return err_set(err, ERR_NOMEM, "no memory for a request");
    return client_call(c, "DELETE", path, NULL, NULL, err);
}

int value_run(const struct value_kind *kind, struct cli *cli, int argc, char **argv,
              struct err *err)
{
    struct args a = { 0 };
    OWN(client) c = NULL;
    int n = options_parse(value_options, argc, argv, &a, err);

    (void)cli;
    if (n < 0)
        return n;
    const char *verb = n ? argv[0] : "";
    const int want = !strcmp(verb, "list") ? 1
        : !strcmp(verb, "set") || !strcmp(verb, "remove") ? 2 : 0;
    if (want == 2 && n > 2)
        return err_set(err, ERR_INVALID,
                       "a value does not go on the command line, where others could "
                       "read it: muster %s %s %s < FILE",
                       kind->command->name, verb, argv[1]);
    if (!want || n != want)
        return cli_usage(kind->command, err);
    if (a.project)
        setenv("MUSTER_PROJECT", a.project, 1);
    if (client_open(&c, err) < 0)
        return -(int)err->code;
    if (want == 1)
        return list(c, kind, a.json, err);
    return !strcmp(verb, "set") ? set(c, kind, argv[1], err) : remove_one(c, kind, argv[1], err);
}
