/* cli/volumes.c - muster volumes: directories that steps of pipelines share */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "cli/listing.h"
#include "cli/verb.h"

struct args {
    const char *project;
    int json;
};
#define AT(field) offsetof(struct args, field)
static const struct option options[] = {
    { "project", 0, "NAME", "of the volumes (default: MUSTER_PROJECT, or \"default\")",
      OPTION_TEXT, AT(project) },
    { "json", 0, NULL, "print what the server answers", OPTION_FLAG, AT(json) },
    { 0 }
};

static int list(struct client *s, const void *args, char **names, struct err *err)
{
    const struct args *a = args;
    OWN_MEM char *path = client_path("/api/volumes/%", s->project, NULL);
    OWN_JSON json_t *doc = NULL;
    json_t *v;
    size_t i;

    (void)names;
    if (!path)
        return err_set(err, ERR_NOMEM, "no memory for a request");
    if (client_call(s, "GET", path, NULL, &doc, err) < 0)
        return -(int)err->code;
    if (a->json) {
        listing_json(json_object_get(doc, "volumes"));
        return 0;
    }
    json_array_foreach(json_object_get(doc, "volumes"), i, v) {
        listing_stamp(number_of(v, "created"));
        printf("  %s\n", text_of(v, "name"));
    }
    return 0;
}

static int delete_volumes(struct client *s, const void *args, char **names, struct err *err)
{
    (void)args;
    for (; *names; names++) {
        OWN_MEM char *path = client_path("/api/volumes/%/%", s->project, *names, NULL);
        if (!path)
            return err_set(err, ERR_NOMEM, "no memory for a request");
        if (client_call(s, "DELETE", path, NULL, NULL, err) < 0)
            return -(int)err->code;
        printf("%s: deleted; a step that has it keeps it to its end\n", *names);
    }
    return 0;
}

static const struct verb verbs[] = {
    { "list", "", 0, 0, list },
    { "delete", "NAME...", 1, VERB_MANY, delete_volumes },
    { 0 }
};

static int run(struct cli *c, int argc, char **argv, struct err *err)
{
    struct args a = { 0 };

    (void)c;
    return verb_run(&command_volumes, verbs, argc, argv, &a, err);
}

const struct command command_volumes = {
    .name = "volumes",
    .args = "list | delete NAME...",
    .summary = "list and delete what steps of pipelines share",
    .example = "muster volumes list\n"
               "muster volumes delete train-x2xmz-pipeline-pvc",
    .more = "A workflow makes them (kind PersistentVolumeClaim); they stay until a step or this "
            "command\n"
            "deletes them.\n",
    .options = options,
    .run = run,
};
