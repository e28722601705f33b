/* cli/resize.c - muster resize: more or fewer workers, while the job runs */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/own.h"
#include "cli/cli.h"
#include "cli/jobs.h"
#include "runtime/watch.h"

struct args {
    int json;
};

static const struct option options[] = {
    { "json", 0, NULL, "print the job's status after", OPTION_FLAG, offsetof(struct args, json) },
    { 0 }
};

/* A name that is no run here is a job of the server's. */
static int of_server(const struct args *a, const char *name, int min, int max, struct err *err)
{
    OWN(client) s = NULL;
    OWN_JSON json_t *job = NULL;

    if (job_client(NULL, &s, err) < 0)
        return err_add(err, "%s: there is no such run here, and as a job's name", name);
    if (job_resize(s, name, min, max, &job, err) < 0)
        return -(int)err->code;
    if (a->json) {
        OWN_MEM char *text = json_dumps(job, JSON_COMPACT);
        printf("%s\n", text ? text : "{}");
    } else {
        printf("%s: %d..%d workers from now on\n", name, min, max);
    }
    return 0;
}

static int run(struct cli *c, int argc, char **argv, struct err *err)
{
    struct args a = { 0 };
    struct job_desk desk;
    int min, max;

    (void)c;
    int n = options_parse(options, argc, argv, &a, err);
    if (n < 0)
        return n;
    if (n != 2)
        return cli_usage(&command_resize, err);
    if (workers_parse(argv[1], &min, &max, err) < 0)
        return -(int)err->code;
    if (!strchr(argv[0], '/') && access(argv[0], F_OK) < 0)
        return of_server(&a, argv[0], strstr(argv[1], "..") ? min : 1, max, err);
    if (job_find(argv[0], &desk, err) < 0)
        return -(int)err->code;
    if (!strstr(argv[1], ".."))
        min = 1;                /* as muster train takes it: fewer can go on meanwhile */
    OWN_JSON json_t *question = json_pack("{s:[i, i]}", "resize", min, max);
    OWN_JSON json_t *status = NULL;
    if (watch_ask(&desk, question, &status, err) < 0)
        return job_explain(argv[0], &desk, err);
    if (a.json) {
        OWN_MEM char *text = json_dumps(status, JSON_COMPACT);
        printf("%s\n", text ? text : "{}");
    } else {
        size_t now = json_array_size(json_object_get(status, "workers"));
        printf("%s: %d..%d workers from now on (%zu %s at work)\n", argv[0], min, max, now,
               now == 1 ? "is" : "are");
    }
    return 0;
}

const struct command command_resize = {
    .name = "resize",
    .args = "RUN|JOB N|MIN..MAX",
    .summary = "give a running job more or fewer workers",
    .example = "muster resize runs/lenet 2..8",
    .more = "JOB is a job of the server's, RUN the directory of one that muster train runs.\n"
            "The youngest workers go first. The result of the job does not depend on it.",
    .options = options,
    .run = run,
};
