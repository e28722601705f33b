/* cli/top.c - muster top: a running job, redrawn in place; in a pipe, a line a change */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/own.h"
#include "cli/cli.h"
#include "cli/jobs.h"
#include "runtime/watch.h"

struct args {
    int json, once;
};

static const struct option options[] = {
    { "json", 0, NULL, "print each status as one object a line", OPTION_FLAG,
      offsetof(struct args, json) },
    { "once", 0, NULL, "look once", OPTION_FLAG, offsetof(struct args, once) },
    { 0 }
};

struct screen {
    struct cli *cli;
    const struct args *args;
    int lines;                  /* on the screen, to be drawn over */
    json_t *before;             /* the last status that was told, for a pipe */
    long step;
    bool any;
};

/* ------------------------------------------------------------------ a terminal */

static void draw(struct screen *s, const json_t *now)
{
    const json_t *workers = json_object_get(now, "workers"), *w;
    size_t i;

    if (s->lines)
        printf("\033[%dA", s->lines);
    printf("\033[K%s  %s  generation %ld  %zu of %ld..%ld workers\n", text_of(now, "name"),
           text_of(now, "phase"), whole_of(now, "generation"), json_array_size(workers),
           whole_of(now, "min"), whole_of(now, "max"));
    printf("\033[Kepoch %ld/%ld  step %ld  loss %.4f  %.0f samples/s\n\033[K\n",
           whole_of(now, "epoch"), whole_of(now, "epochs"), whole_of(now, "step"),
           number_of(now, "loss"), number_of(now, "samples_per_s"));
    printf("\033[K%6s %8s  %-9s %10s %12s  %s\n", "worker", "pid", "shards", "step", "bytes/step",
           "address");
    s->lines = 4;
    json_array_foreach(workers, i, w) {
        char shards[24] = "stands by";
        if (whole_of(w, "from") < whole_of(w, "to"))
            snprintf(shards, sizeof shards, "%ld..%ld", whole_of(w, "from"), whole_of(w, "to") - 1);
        printf("\033[K%6ld %8ld  %-9s %10ld %12.0f  %s\n", whole_of(w, "id"),
               whole_of(w, "pid"), shards, whole_of(w, "step"), number_of(w, "bytes_per_step"),
               text_of(w, "address"));
        s->lines++;
    }
    printf("\033[J");
    fflush(stdout);
}

/* ------------------------------------------------------------------ a pipe */

static const json_t *find(const json_t *status, long id)
{
    const json_t *workers = json_object_get(status, "workers"), *w;
    size_t i;

    json_array_foreach(workers, i, w)
        if (whole_of(w, "id") == id)
            return w;
    return NULL;
}

/* Who came, who went. Returns how many. */
static int tell_changes(const struct screen *s, const json_t *now)
{
    const json_t *w;
    size_t i;
    int n = 0;

    json_array_foreach(json_object_get(s->before, "workers"), i, w)
        if (!find(now, whole_of(w, "id"))) {
            printf("worker %ld left (pid %ld)\n", whole_of(w, "id"), whole_of(w, "pid"));
            n++;
        }
    json_array_foreach(json_object_get(now, "workers"), i, w)
        if (!find(s->before, whole_of(w, "id"))) {
            printf("worker %ld joined (pid %ld, %s)\n", whole_of(w, "id"), whole_of(w, "pid"),
                   text_of(w, "address"));
            n++;
        }
    return n;
}

static void tell_line(struct screen *s, const json_t *now)
{
    int changes = tell_changes(s, now);
    bool phase = strcmp(text_of(s->before, "phase"), text_of(now, "phase")) != 0;
    bool epoch = whole_of(s->before, "epoch") != whole_of(now, "epoch");

    if (changes || phase || epoch)
        printf(
            "%s  generation %ld  workers %zu  epoch %ld/%ld  step %ld  loss %.4f  %.0f samples/s\n",
            text_of(now, "phase"), whole_of(now, "generation"),
            json_array_size(json_object_get(now, "workers")), whole_of(now, "epoch"),
            whole_of(now, "epochs"), whole_of(now, "step"), number_of(now, "loss"),
            number_of(now, "samples_per_s"));
    fflush(stdout);
    json_decref(s->before);
    s->before = json_deep_copy(now);
}

static int tell(void *arg, const json_t *now)
{
    struct screen *s = arg;

    s->any = true;
    if (s->args->json) {
        OWN_MEM char *text = json_dumps(now, JSON_COMPACT);
        printf("%s\n", text ? text : "{}");
        fflush(stdout);
    } else if (s->cli->out_is_terminal) {
        draw(s, now);
    } else {
        tell_line(s, now);
    }
    return s->args->once;
}

static int run(struct cli *c, int argc, char **argv, struct err *err)
{
    struct args a = { 0 };
    struct job_desk desk;

    int n = options_parse(options, argc, argv, &a, err);
    if (n < 0)
        return n;
    if (n != 1)
        return cli_usage(&command_top, err);
    struct screen s = { .cli = c, .args = &a };
    if (!strchr(argv[0], '/') && access(argv[0], F_OK) < 0) {
        /* A name that is no run here is a job of the server's. */
        OWN(client) server = NULL;
        return job_client(NULL, &server, err) < 0
            ? -(int)err->code : job_watch(c, server, argv[0], a.once, a.json, err);
    }
    if (job_find(argv[0], &desk, err) < 0)
        return -(int)err->code;
    int rc = watch_job(&desk, 3000, tell, &s, err);
    json_decref(s.before);
    if (rc == 0 && !a.once && !a.json)
        printf("the job has ended\n");
    return rc;
}

const struct command command_top = {
    .name = "top",
    .args = "RUN|JOB",
    .summary = "watch a running job: workers, shards, steps, loss",
    .example = "muster top runs/lenet",
    .more = "JOB is a job of the server's, RUN the directory of one that muster train runs.",
    .options = options,
    .run = run,
};
