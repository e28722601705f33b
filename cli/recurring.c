/* cli/recurring.c - muster recurring: runs of pipelines that begin by the clock */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "cli/listing.h"
#include "cli/verb.h"

struct args {
    const char *project, *experiment, *name, *cron;
    struct option_list parameters;
    long every, at_once;
    int json, no_catchup, disabled;
};
#define AT(field) offsetof(struct args, field)
static const struct option options[] = {
    { "project", 0, "NAME", "of the runs (default: MUSTER_PROJECT, or \"default\")", OPTION_TEXT,
      AT(project) },
    { "cron", 0, "LINE", "create: when, in UTC; five fields, or six with seconds first",
      OPTION_TEXT, AT(cron) },
    { "every", 0, "SECONDS", "create: again after so many", OPTION_INT, AT(every) },
    { "name", 0, "TEXT", "create: what it is called (default: as the pipeline)", OPTION_TEXT,
      AT(name) },
    { "experiment", 0, "NAME", "create: that its runs belong to", OPTION_TEXT, AT(experiment) },
    { "param", 'p', "NAME=VALUE", "create: a parameter", OPTION_LIST, AT(parameters) },
    { "at-once", 0, "N", "create: so many runs at most, up to 10 (default: 1)", OPTION_INT,
      AT(at_once) },
    { "no-catchup", 0, NULL, "create: times that were missed are left out", OPTION_FLAG,
      AT(no_catchup) },
    { "disabled", 0, NULL, "create: it waits to be enabled", OPTION_FLAG, AT(disabled) },
    { "json", 0, NULL, "print what the server answers", OPTION_FLAG, AT(json) },
    { 0 }
};

static int all_of(struct client *s, json_t **out, struct err *err)
{
    OWN_JSON json_t *doc = NULL;
    OWN_BUF path = BUF_INIT;

    buf_text(&path, "/api/recurring?limit=1000");
    listing_query(&path, "project", s->project);
    if (buf_ok(&path, err) < 0 || client_call(s, "GET", path.data, NULL, &doc, err) < 0)
        return -(int)err->code;
    *out = json_incref(json_object_get(doc, "recurring"));
    return 0;
}

static void print_one(const json_t *r)
{
    const json_t *trigger = json_object_get(r, "trigger");
    const char *cron = json_string_value(json_object_get(trigger, "cron"));

    printf("%-8s  next ", text_of(r, "state"));
    listing_stamp(number_of(r, "next"));
    printf("  %3ld runs  %s  ", whole_of(r, "index"), text_of(r, "name"));
    if (cron)
        printf("(%s)", cron);
    else
        printf("(every %.0f s)", number_of(trigger, "interval_s"));
    printf("%s%s\n", *text_of(r, "message") ? "  " : "", text_of(r, "message"));
}

static int list(struct client *s, const void *args, char **names, struct err *err)
{
    const struct args *a = args;
    OWN_JSON json_t *all = NULL;
    json_t *r;
    size_t i;

    (void)names;
    if (all_of(s, &all, err) < 0)
        return -(int)err->code;
    if (a->json)
        listing_json(all);
    else
        json_array_foreach(all, i, r)
            print_one(r);
    return 0;
}

static int create(struct client *s, const void *args, char **names, struct err *err)
{
    const struct args *a = args;
    OWN_MEM char *pipeline = NULL;
    OWN_JSON json_t *parameters = NULL, *made = NULL;

    if (!a->cron == !a->every)
        return err_set(err, ERR_INVALID, "say when: --cron LINE, or --every SECONDS");
    if (listing_parameters(&a->parameters, &parameters, err) < 0 ||
        listing_pipeline(s, names[0], &pipeline, err) < 0)
        return -(int)err->code;
    json_t *trigger = a->cron ? json_pack("{s:s}", "cron", a->cron)
                              : json_pack("{s:I}", "interval_s", (json_int_t)a->every);
    OWN_JSON json_t *body = json_pack(
        "{s:s, s:s, s:s*, s:s, s:O, s:o, s:I, s:b, s:b}", "project", s->project, "name",
        a->name ? a->name : names[0], "experiment", a->experiment, "pipeline", pipeline,
        "parameters", parameters, "trigger", trigger, "max_concurrency", (json_int_t)a->at_once,
        "no_catchup", a->no_catchup, "disabled", a->disabled);
    if (!body)
        return err_set(err, ERR_INVALID, "the name is not UTF-8");
    if (client_call(s, "POST", "/api/recurring", body, &made, err) < 0)
        return -(int)err->code;
    if (a->json)
        listing_json(made);
    else
        print_one(made);
    return 0;
}

/* By its name (the newest of it) or its id. */
static int each(struct client *s, char **names, const char *method, const char *form,
                const char *said, struct err *err)
{
    OWN_JSON json_t *all = NULL;

    if (all_of(s, &all, err) < 0)
        return -(int)err->code;
    for (; *names; names++) {
        const char *id = NULL;
        json_t *r;
        size_t i;
        json_array_foreach(all, i, r)
            if (!id && (!strcmp(text_of(r, "name"), *names) || !strcmp(text_of(r, "id"), *names)))
                id = text_of(r, "id");
        if (!id)
            return err_set(err, ERR_MISSING, "there is no recurring run \"%.200s\" (muster "
                           "recurring list)", *names);
        OWN_MEM char *path = client_path(form, s->project, id, NULL);
        if (!path)
            return err_set(err, ERR_NOMEM, "no memory for a request");
        if (client_call(s, method, path, NULL, NULL, err) < 0)
            return -(int)err->code;
        printf("%s: %s\n", *names, said);
    }
    return 0;
}

static int enable(struct client *s, const void *args, char **names, struct err *err)
{
    (void)args;
    return each(s, names, "POST", "/api/recurring/%/%/enable", "enabled", err);
}

static int disable(struct client *s, const void *args, char **names, struct err *err)
{
    (void)args;
    return each(s, names, "POST", "/api/recurring/%/%/disable", "disabled", err);
}

static int delete_recurring(struct client *s, const void *args, char **names, struct err *err)
{
    (void)args;
    return each(s, names, "DELETE", "/api/recurring/%/%", "deleted; its runs stay", err);
}

static const struct verb verbs[] = {
    { "list", "", 0, 0, list },
    { "create", "PIPELINE", 1, 1, create },
    { "enable", "NAME...", 1, VERB_MANY, enable },
    { "disable", "NAME...", 1, VERB_MANY, disable },
    { "delete", "NAME...", 1, VERB_MANY, delete_recurring },
    { 0 }
};

static int run(struct cli *c, int argc, char **argv, struct err *err)
{
    struct args a = { 0 };

    (void)c;
    return verb_run(&command_recurring, verbs, argc, argv, &a, err);
}

const struct command command_recurring = {
    .name = "recurring",
    .args = "list|create|enable|disable|delete [NAME...]",
    .summary = "run pipelines by the clock",
    .example = "muster recurring create train --cron '0 9 * * mon' -p epochs=3\n"
               "muster recurring create train --every 3600 --at-once 2 --name hourly\n"
               "muster recurring disable hourly",
    .more = "Each time the pipeline's default version is run. Times that were missed while the "
            "server was off\nare caught up with unless --no-catchup; those that pass while it is "
            "disabled are not.",
    .options = options,
    .run = run,
};
