/* cli/apply.c - muster apply: run a pipeline from a file, or keep the config maps, secrets and
 * volumes that a file has */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "cli/listing.h"
#include "pipelines/package.h"
#include "pipelines/resources.h"

struct args {
    const char *file, *name, *project, *experiment;
    struct option_list parameters;
    int wait, json, no_cache;
};
#define AT(field) offsetof(struct args, field)
static const struct option options[] = {
    { "file", 'f', "FILE",
      "a Workflow or a compiled pipeline: YAML, .tar.gz or .zip; or ConfigMaps, Secrets and "
      "PersistentVolumeClaims", OPTION_TEXT,
      AT(file) },
    { "param", 'p', "NAME=VALUE", "a parameter of the run", OPTION_LIST, AT(parameters) },
    { "wait", 'w', NULL, "until it has ended; fails when the run did", OPTION_FLAG, AT(wait) },
    { "name", 0, "TEXT", "what the run is called (default: the workflow's name)", OPTION_TEXT,
      AT(name) },
    { "experiment", 0, "NAME", "that it belongs to (default: Default)", OPTION_TEXT,
      AT(experiment) },
    { "no-cache", 0, NULL, "every step runs, also those that were run before", OPTION_FLAG,
      AT(no_cache) },
    { "project", 0, "NAME", "of the run (default: MUSTER_PROJECT, or \"default\")", OPTION_TEXT,
      AT(project) },
    { "json", 0, NULL, "print the run as JSON", OPTION_FLAG, AT(json) },
    { 0 }
};

/* Between two looks at a run: nobody notices. */
enum { LOOK_US = 50000 };

/* ------------------------------------------------------------ what is sent */

/* What stands for the file in messages. */
static const char *file_name(const struct args *a)
{
    const char *slash = strrchr(a->file, '/');
    return strcmp(a->file, "-") ? slash ? slash + 1 : a->file : "stdin";
}

static int read_text(const struct args *a, struct buf *text, struct err *err)
{
    OWN_MEM char *bytes = NULL;
    size_t n;

    if (files_read(a->file, PACKAGE_BYTES_MAX, &bytes, &n, err) < 0)
        return -(int)err->code;
    return package_read(bytes, n, file_name(a), text, err);
}

static int make_body(const struct args *a, const struct client *s, const struct buf *text,
                     json_t **out, struct err *err)
{
    OWN_JSON json_t *parameters = NULL;

    if (listing_parameters(&a->parameters, &parameters, err) < 0)
        return -(int)err->code;
    *out = json_pack("{s:s, s:s*, s:s*, s:O, s:o, s:s, s:b}", "project", s->project, "name",
                     a->name, "experiment", a->experiment, "parameters", parameters, "text",
                     json_stringn(text->data, text->n), "file", file_name(a), "no_cache",
                     a->no_cache);
    return *out ? 0 : err_set(err, ERR_INVALID, "%s is not UTF-8", a->file);
}

/* ------------------------------------------------------------ config maps, secrets, volumes */

static int apply_resources(const struct args *a, struct client *s, const struct buf *text,
                           struct err *err)
{
    OWN_JSON json_t *done = NULL;
    OWN_JSON json_t *body = json_pack("{s:s, s:s, s:o}", "project", s->project, "file",
                                      file_name(a), "text", json_stringn(text->data, text->n));
    size_t i;
    json_t *one;

    if (a->parameters.n || a->wait || a->name || a->experiment || a->no_cache)
        return err_set(err, ERR_INVALID,
                       "%s has no pipeline: --param, --wait, --name, --experiment "
                       "and --no-cache are for one",
                       a->file);
    if (!body)
        return err_set(err, ERR_INVALID, "%s is not UTF-8", a->file);
    if (client_call(s, "POST", "/api/resources", body, &done, err) < 0)
        return -(int)err->code;
    if (a->json) {
        listing_json(json_object_get(done, "resources"));
        return 0;
    }
    json_array_foreach(json_object_get(done, "resources"), i, one)
        printf("%s/%s %s\n", text_of(one, "kind"), text_of(one, "name"), text_of(one, "did"));
    return 0;
}

/* ------------------------------------------------------------ following */

struct following {
    struct client *client;
    struct cli *cli;
    const char *project, *id;
    int64_t seen;               /* events */
    bool line;                  /* a line of progress stands on the terminal */
};

static void clear_line(struct following *f)
{
    if (f->line)
        fprintf(stderr, "\r\033[K");
    f->line = false;
}

static int show_events(struct following *f, struct err *err)
{
    OWN_MEM char *path = client_path("/api/runs/%/%/events", f->project, f->id, NULL);
    OWN_MEM char *whole = NULL;
    OWN_JSON json_t *doc = NULL;
    size_t i;
    json_t *e;

    if (!path || asprintf(&whole, "%s?after=%lld", path, (long long)f->seen) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a request");
    if (client_call(f->client, "GET", whole, NULL, &doc, err) < 0)
        return -(int)err->code;
    json_array_foreach(json_object_get(doc, "events"), i, e) {
        f->seen = whole_of(e, "seq");
        if (strcmp(text_of(e, "type"), "node.ended"))
            continue;
        clear_line(f);
        const char *message = text_of(e, "message");
        fprintf(stderr, "%-9s %6.2f s  %s%s%s%s\n", text_of(e, "phase"),
                number_of(e, "ended") - (number_of(e, "started") > 0 ? number_of(e, "started")
                                                                   : number_of(e, "ended")),
                text_of(e, "node"), json_object_get(e, "cached") ? "  (cached)" : "",
                *message ? ": " : "", message);
    }
    return 0;
}

static int follow(struct following *f, json_t **out, struct err *err)
{
    OWN_MEM char *path = client_path("/api/runs/%/%", f->project, f->id, NULL);

    for (;;) {
        OWN_JSON json_t *run = NULL;
        if (!path)
            return err_set(err, ERR_NOMEM, "no memory for a request");
        if (client_call(f->client, "GET", path, NULL, &run, err) < 0 || show_events(f, err) < 0)
            return -(int)err->code;
        if (number_of(run, "ended") > 0) {
            clear_line(f);
            *out = TAKE(run);
            return 0;
        }
        if (f->cli->err_is_terminal) {
            fprintf(stderr, "\r\033[K%s: %ld of %ld nodes, %.1f s", text_of(run, "workflow"),
                    whole_of(run, "done"), whole_of(run, "nodes"),
                    clock_wall() - number_of(run, "created"));
            fflush(stderr);
            f->line = true;
        }
        usleep(LOOK_US);
    }
}

static int run(struct cli *c, int argc, char **argv, struct err *err)
{
    struct args a = { 0 };
    OWN(client) s = NULL;
    OWN_JSON json_t *body = NULL, *made = NULL, *ended = NULL;
    OWN_BUF text = BUF_INIT;
    int n = options_parse(options, argc, argv, &a, err);

    if (n < 0)
        return n;
    if (n == 1 && !a.file)
        a.file = argv[n = 0];
    if (n != 0 || !a.file)
        return cli_usage(&command_apply, err);
    if (client_open(&s, err) < 0)
        return -(int)err->code;
    if (a.project) {
        free(s->project);
        if (!(s->project = strdup(a.project)))
            return err_set(err, ERR_NOMEM, "no memory for a name");
    }
    if (read_text(&a, &text, err) < 0)
        return -(int)err->code;
    if (text.n && resources_only(text.data, text.n))
        return apply_resources(&a, s, &text, err);
    if (make_body(&a, s, &text, &body, err) < 0 ||
        client_call(s, "POST", "/api/runs", body, &made, err) < 0)
        return -(int)err->code;
    if (!a.wait) {
        if (a.json)
            listing_json(made);
        else
            printf("%s %s\n", text_of(made, "workflow"), text_of(made, "id"));
        return 0;
    }
    struct following f = { s, c, text_of(made, "project"), text_of(made, "id"), 0, false };
    if (follow(&f, &ended, err) < 0)
        return -(int)err->code;
    if (a.json)
        listing_json(ended);
    else
        printf("%s %s %s\n", text_of(ended, "workflow"), text_of(ended, "id"),
               text_of(ended, "state"));
    if (strcmp(text_of(ended, "state"), "succeeded")) {
        c->exit_code = 1;
        return err_set(err, ERR_CONFLICT, "run %s %s%s%s", text_of(ended, "workflow"),
                       text_of(ended, "state"), *text_of(ended, "message") ? ": " : "",
                       text_of(ended, "message"));
    }
    return 0;
}

const struct command command_apply = {
    .name = "apply",
    .args = "-f FILE",
    .summary = "run a pipeline: a Workflow of Argo, or what kfp compiled",
    .example = "muster apply -f pipeline.yaml --param epochs=1 --wait\n"
               "muster apply -f configmap.yaml",
    .more =
        "Prints the name of the run and its id. What cannot run is refused before anything "
        "begins,\nwith file and line. muster runs lists and describes runs.\n"
        "A file of ConfigMaps, Secrets and PersistentVolumeClaims alone is kept in the project: "
        "a key K\nof N is its value N.K (muster config, muster secret), a claim is a volume "
        "(muster volumes).",
    .options = options,
    .run = run,
};
