/* cli/experiments.c - muster experiments: groups of runs */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "cli/listing.h"
#include "cli/verb.h"

#define V2 "/apis/v2beta1/"

struct args {
    const char *project, *description;
    long limit;
    int json, archived;
};
#define AT(field) offsetof(struct args, field)
static const struct option options[] = {
    { "project", 0, "NAME", "of the experiments (default: MUSTER_PROJECT, or \"default\")",
      OPTION_TEXT, AT(project) },
    { "archived", 0, NULL, "list: those that are archived", OPTION_FLAG, AT(archived) },
    { "limit", 0, "N", "list: at most so many, newest first (default: 100)", OPTION_INT,
      AT(limit) },
    { "description", 0, "TEXT", "create: what is said of it", OPTION_TEXT, AT(description) },
    { "json", 0, NULL, "print what the server answers", OPTION_FLAG, AT(json) },
    { 0 }
};

static int list(struct client *s, const void *args, char **names, struct err *err)
{
    const struct args *a = args;
    OWN_JSON json_t *all = NULL;
    OWN_JSON json_t *filter = json_pack(
        "{s:[{s:s, s:s, s:s}]}", "predicates", "operation", "EQUALS", "key", "storage_state",
        "string_value", a->archived ? "ARCHIVED" : "AVAILABLE");
    OWN_MEM char *filter_text = json_dumps(filter, JSON_COMPACT);
    OWN_BUF path = BUF_INIT;
    bool more;
    size_t i;
    json_t *e;

    (void)names;
    buf_text(&path, V2 "experiments?sort_by=created_at+desc");
    listing_query(&path, "namespace", s->project);
    listing_query(&path, "filter", filter_text);
    if (buf_ok(&path, err) < 0 ||
        listing_all(s, path.data, "experiments", a->limit, &all, &more, err) < 0)
        return -(int)err->code;
    if (a->json) {
        listing_json(all);
        return 0;
    }
    json_array_foreach(all, i, e) {
        const char *description = text_of(e, "description");
        listing_stamp_text(text_of(e, "created_at"));
        printf("  %s  %s%s%.*s\n", text_of(e, "experiment_id"), text_of(e, "display_name"),
               *description ? "  " : "", (int)strcspn(description, "\n"), description);
    }
    if (more)
        fprintf(stderr, "there are more (--limit N)\n");
    return 0;
}

static int create(struct client *s, const void *args, char **names, struct err *err)
{
    const struct args *a = args;
    OWN_JSON json_t *made = NULL;
    OWN_JSON json_t *body = json_pack("{s:s, s:s, s:s}", "display_name", names[0], "description",
                                      a->description ? a->description : "", "namespace",
                                      s->project);

    if (!body)
        return err_set(err, ERR_INVALID, "the name is not UTF-8");
    if (client_call(s, "POST", V2 "experiments", body, &made, err) < 0)
        return -(int)err->code;
    if (a->json)
        listing_json(made);
    else
        printf("%s %s\n", text_of(made, "display_name"), text_of(made, "experiment_id"));
    return 0;
}

/* METHOD of each one's path and `end`. */
static int each(struct client *s, char **names, const char *method, const char *form,
                const char *said, struct err *err)
{
    for (; *names; names++) {
        OWN_MEM char *id = NULL, *path = NULL;
        if (listing_experiment(s, *names, &id, err) < 0)
            return -(int)err->code;
        if (!(path = client_path(form, id, NULL)))
            return err_set(err, ERR_NOMEM, "no memory for a request");
        if (client_call(s, method, path, NULL, NULL, err) < 0)
            return -(int)err->code;
        printf("%s: %s\n", *names, said);
    }
    return 0;
}

static int archive(struct client *s, const void *args, char **names, struct err *err)
{
    (void)args;
    return each(s, names, "POST", V2 "experiments/%:archive", "archived, with its runs", err);
}

static int unarchive(struct client *s, const void *args, char **names, struct err *err)
{
    (void)args;
    return each(s, names, "POST", V2 "experiments/%:unarchive", "no longer archived", err);
}

static int delete_experiments(struct client *s, const void *args, char **names, struct err *err)
{
    (void)args;
    return each(s, names, "DELETE", V2 "experiments/%", "deleted; its runs stay", err);
}

static const struct verb verbs[] = {
    { "list", "", 0, 0, list },
    { "create", "NAME", 1, 1, create },
    { "archive", "EXPERIMENT...", 1, VERB_MANY, archive },
    { "unarchive", "EXPERIMENT...", 1, VERB_MANY, unarchive },
    { "delete", "EXPERIMENT...", 1, VERB_MANY, delete_experiments },
    { 0 }
};

static int run(struct cli *c, int argc, char **argv, struct err *err)
{
    struct args a = { .limit = 100 };

    (void)c;
    return verb_run(&command_experiments, verbs, argc, argv, &a, err);
}

const struct command command_experiments = {
    .name = "experiments",
    .args = "list|create|archive|unarchive|delete [NAME...]",
    .summary = "group the runs of pipelines",
    .example = "muster experiments create learning-rates --description \"which one\"\n"
               "muster runs create train --experiment learning-rates -p lr=0.1\n"
               "muster experiments archive learning-rates",
    .more = "A run that names no experiment belongs to \"Default\".",
    .options = options,
    .run = run,
};
