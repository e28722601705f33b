/* cli/top.c - muster top: a running job, redrawn in place; in a pipe, a line a change */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/own.h"
#include "base/terminal.h"
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
    int columns;                /* that the screen has */
    json_t *before;             /* the last status that was told, for a pipe */
    long step;
    bool any;
};

/* ------------------------------------------------------------------ a terminal */

/* One line over what was there, no longer than the terminal is wide. */
__attribute__((format(printf, 2, 3)))
static void draw_line(struct screen *s, const char *fmt, ...)
{
    char line[512];
    va_list args;

    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    terminal_cut(line, s->columns);
    printf("\033[K%s\n", line);
    s->lines++;
}

static void draw_worker(struct screen *s, const json_t *w)
{
    char shards[24] = "stands by";

    if (whole_of(w, "from") < whole_of(w, "to"))
        snprintf(shards, sizeof shards, "%ld..%ld", whole_of(w, "from"), whole_of(w, "to") - 1);
    draw_line(s, "%6ld %8ld  %-9s %10ld %12.0f  %s", whole_of(w, "id"), whole_of(w, "pid"), shards,
              whole_of(w, "step"), number_of(w, "bytes_per_step"), text_of(w, "address"));
}

static void draw(struct screen *s, const json_t *now)
{
    const json_t *workers = json_object_get(now, "workers"), *w;
    size_t i, n = json_array_size(workers);
    int rows;

    if (s->lines)
        printf("\033[%dA", s->lines);
    s->lines = 0;
    terminal_size(STDOUT_FILENO, &rows, &s->columns);
    draw_line(s, "%s  %s  generation %ld  %zu of %ld..%ld workers", text_of(now, "name"),
              text_of(now, "phase"), whole_of(now, "generation"), n, whole_of(now, "min"),
              whole_of(now, "max"));
    draw_line(s, "epoch %ld/%ld  step %ld  loss %.4f  %.0f samples/s", whole_of(now, "epoch"),
              whole_of(now, "epochs"), whole_of(now, "step"), number_of(now, "loss"),
              number_of(now, "samples_per_s"));
    draw_line(s, "%s", "");
    draw_line(s, "%6s %8s  %-9s %10s %12s  %s", "worker", "pid", "shards", "step", "bytes/step",
              "address");
    /* What scrolls away cannot be drawn over: a line for the rest, one for the cursor. */
    size_t room = rows > s->lines + 2 ? (size_t)(rows - s->lines - 2) : 0;
    json_array_foreach(workers, i, w) {
        if (i == room && n > room + 1)
            break;
        draw_worker(s, w);
    }
    if (i < n)
        draw_line(s, "%6s and %zu more", "", n - i);
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
        if (job_client(NULL, &server, err) < 0)
            return err_add(err, "%s: there is no such run here, and as a job's name", argv[0]);
        return job_watch(c, server, argv[0], a.once, a.json, err);
    }
    if (job_find(argv[0], &desk, err) < 0)
        return -(int)err->code;
    int rc = watch_job(&desk, 3000, tell, &s, err);
    json_decref(s.before);
    if (rc < 0) {
        rc = job_explain(argv[0], &desk, err);
        if (s.any && job_ended(argv[0]))
            rc = 0;             /* it missed the last word */
    }
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
