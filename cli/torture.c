/* cli/torture.c - muster torture: does the result depend on what happens to the workers?
 *
 * Trains a spec three times: in one process, with one worker, and with several workers while they
 * are killed, stopped, cut off, added and sent away. Then it compares the digest, the loss of every
 * single step, every test, and between the two with workers the chain.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/own.h"
#include "base/tree.h"
#include "cli/cli.h"
#include "runtime/roster.h"
#include "runtime/torture.h"
#include "spec/spec.h"

enum { EVENTS = 60, EVENTS_MAX = 100000, WORDS_MAX = 32 + 2 * OPTION_LIST_MAX, PATH_SIZE = 4096 };
/* Between two events, as far as it can be held. So long at the end is left alone: a worker that is
 * cut off says nothing of its steps, and what is due must be fired before the last of them. */
static const double EVENT_SECONDS = 0.2, REST_SECONDS = 3;
static const double HANG_SECONDS = 60;

struct args {
    const char *workers, *out;
    long events, seed;
    int json, tls;
    struct option_list set;
};

static const struct option options[] = {
    { "events", 0, "N", "disturb the run so many times (default: 60)", OPTION_INT,
      offsetof(struct args, events) },
    { "seed", 0, "S", "draw what happens, when and to whom from this number (default: 1)",
      OPTION_INT, offsetof(struct args, seed) },
    { "workers", 0, "MIN..MAX", "processes that share the work (default: 1..4)", OPTION_TEXT,
      offsetof(struct args, workers) },
    { "set", 0, "KEY=VALUE", "change the spec, as in epochs=1, limit=2000", OPTION_LIST,
      offsetof(struct args, set) },
    { "out", 'o', "DIR", "keep the three runs there (default: a temporary directory, kept when "
      "they differ)", OPTION_TEXT, offsetof(struct args, out) },
    { "tls", 0, NULL, "by TLS, as muster train --tls", OPTION_FLAG, offsetof(struct args, tls) },
    { "json", 0, NULL, "print the result as one object", OPTION_FLAG, offsetof(struct args, json) },
    { 0 }
};

static volatile int stop_asked;

static void on_signal(int sig)
{
    (void)sig;
    stop_asked = 1;
}

struct session {
    struct cli *cli;
    const struct args *args;
    const char *spec;
    char dir[PATH_SIZE];
    int min, max;
    struct torture_event *event;
    long steps, generations;
    double pace;                /* steps a second of the disturbed run */
    double seconds;             /* of the disturbed run */
    json_t *single, *alone, *disturbed;         /* run.json of each */
    bool line;                  /* a progress line is on the screen */
};

/* ------------------------------------------------------------------ progress */

static void clear_line(struct session *s)
{
    if (s->line)
        fputs("\r\033[K", stderr);
    s->line = false;
}

static void say(struct session *s, const char *text)
{
    if (!s->cli->err_is_terminal || s->args->json)
        return;
    fprintf(stderr, "\r\033[K%s", text);
    s->line = true;
}

static void tell(void *arg, int fired, const json_t *status)
{
    struct session *s = arg;
    char text[160];

    snprintf(text, sizeof text, "%d/%ld events  step %ld/%ld  generation %ld  workers %zu", fired,
             s->args->events, (long)json_integer_value(json_object_get(status, "step")), s->steps,
             (long)json_integer_value(json_object_get(status, "generation")),
             json_array_size(json_object_get(status, "workers")));
    say(s, text);
}

/* ------------------------------------------------------------------ training */

/* `muster train SPEC --out DIR/NAME ...` as a process of its own, with what it prints in
 * DIR/NAME.log. It ends when this process does, and so do its workers. */
static pid_t start_train(struct session *s, const char *name, const char *workers, struct err *err)
{
    char out[PATH_SIZE + 64], log[PATH_SIZE + 64], pace[32];
    char *argv[WORDS_MAX] = { "muster", "train", (char *)s->spec, "--quiet", "--log-every", "1",
                              "--out", out };
    const pid_t parent = getpid();
    int n = 8;

    snprintf(out, sizeof out, "%s/%s", s->dir, name);
    snprintf(log, sizeof log, "%s/%s.log", s->dir, name);
    snprintf(pace, sizeof pace, "%.3f", s->pace);
    if (s->pace > 0) {          /* when all have died at once, not the whole epoch is done again */
        argv[n++] = "--set";
        argv[n++] = "checkpoint.every=1 second";
    }
    for (int i = 0; i < s->args->set.n; i++) {
        argv[n++] = "--set";
        argv[n++] = (char *)s->args->set.item[i];
    }
    argv[n++] = workers ? "--workers" : "--set";
    argv[n++] = workers ? (char *)workers : "workers=1";
    if (s->args->tls)
        argv[n++] = "--tls";
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0)
        err_set(err, ERR_NOMEM, "a process cannot be started: %s", strerror(errno));
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    setpgid(0, 0);              /* Ctrl-C is for this command, which ends all of them */
    int to = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int from = open("/dev/null", O_RDONLY | O_CLOEXEC);
    dup2(from, STDIN_FILENO);
    dup2(to, STDOUT_FILENO);
    dup2(to, STDERR_FILENO);
    if (s->pace > 0)
        setenv("MUSTER_TORTURE", pace, 1);
    execv("/proc/self/exe", argv);
    _exit(127);
}

/* All that were started, and what they have left (this process adopts orphans). */
static void end_all(pid_t pid)
{
    if (pid > 0)
        kill(pid, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
        continue;
}

/* The last line that a run printed. */
static int add_last_words(const struct session *s, const char *name, struct err *err)
{
    char path[PATH_SIZE + 64];
    OWN_MEM char *text = NULL;
    struct err ignored;

    snprintf(path, sizeof path, "%s/%s.log", s->dir, name);
    if (files_read(path, 1 << 24, &text, NULL, &ignored) < 0)
        return -(int)err->code;
    size_t n = strlen(text);
    while (n && text[n - 1] == '\n')
        text[--n] = 0;
    const char *last = strrchr(text, '\n');
    last = last ? last + 1 : text;
    if (*last) {
        struct err was = *err;
        err_set(err, was.code, "%s; its last words: %.200s", was.text, last);
    }
    return -(int)err->code;
}

static int read_run(const struct session *s, const char *name, json_t **out, struct err *err)
{
    char path[PATH_SIZE + 64];
    OWN_MEM char *text = NULL;

    snprintf(path, sizeof path, "%s/%s/run.json", s->dir, name);
    if (files_read(path, (size_t)1 << 30, &text, NULL, err) < 0)
        return -(int)err->code;
    *out = json_loads(text, 0, NULL);
    return *out ? 0 : err_set(err, ERR_INVALID, "%s: is damaged", path);
}

static int train_undisturbed(struct session *s, const char *name, const char *workers, json_t **out,
                             struct err *err)
{
    int status;

    say(s, workers ? "training undisturbed, with one worker" : "training in one process");
    pid_t pid = start_train(s, name, workers, err);
    if (pid < 0)
        return -(int)err->code;
    while (waitpid(pid, &status, WNOHANG) != pid) {
        if (stop_asked) {
            end_all(pid);
            return err_set(err, ERR_AGAIN, "stopped");
        }
        usleep(5000);
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        err_set(err, ERR_IO, "the undisturbed run failed");
        return add_last_words(s, name, err);
    }
    return read_run(s, name, out, err);
}

static int train_disturbed(struct session *s, struct err *err)
{
    char dir[PATH_SIZE + 64], workers[32];

    double seconds = (double)s->args->events * EVENT_SECONDS;
    s->pace = (double)s->steps / (seconds + REST_SECONDS);
    torture_draw((uint64_t)s->args->seed, (long)(s->pace * seconds), s->min, s->max, s->event,
                 (int)s->args->events);
    snprintf(dir, sizeof dir, "%s/disturbed", s->dir);
    snprintf(workers, sizeof workers, "%d..%d", s->min, s->max);
    double began = clock_seconds();
    pid_t pid = start_train(s, "disturbed", workers, err);
    if (pid < 0)
        return -(int)err->code;
    struct torture t = { .dir = dir, .job = pid, .min = s->min, .max = s->max, .event = s->event,
                         .n = (int)s->args->events, .tell = tell, .arg = s, .stop = &stop_asked,
                         .silence_s = HANG_SECONDS };
    int rc = torture_run(&t, err);
    s->seconds = clock_seconds() - began;
    end_all(rc < 0 ? pid : 0);
    if (rc < 0)
        return err->code == ERR_IO ? add_last_words(s, "disturbed", err) : rc;
    if (torture_review(dir, s->event, (int)s->args->events, &s->generations, err) < 0)
        return -(int)err->code;
    return read_run(s, "disturbed", &s->disturbed, err);
}

/* ------------------------------------------------------------------ comparing */

/* The next line of metrics about steps (tests: about tests), NULL at the end; caller frees. */
static json_t *next_line(char **at, bool tests)
{
    for (char *end; (end = strchr(*at, '\n'));) {
        json_t *line = json_loadb(*at, (size_t)(end - *at), 0, NULL);
        *at = end + 1;
        if (line && (json_object_get(line, "test_loss") != NULL) == tests) {
            json_object_del(line, "samples_per_s");
            return line;
        }
        json_decref(line);
    }
    return NULL;
}

/* Lines of `other` against those of the disturbed run. */
static int compare_lines(const char *other, char *one, char *two, bool tests, long *out_lines,
                         struct err *err)
{
    for (*out_lines = 0;; ++*out_lines) {
        OWN_JSON json_t *a = next_line(&one, tests);
        OWN_JSON json_t *b = next_line(&two, tests);
        if (!a && !b)
            return 0;
        long step = (long)json_integer_value(json_object_get(a ? a : b, "step"));
        if (!a || !b || !json_equal(json_object_get(a, "step"), json_object_get(b, "step")))
            return err_set(err, ERR_CONFLICT, "different: %s %ld of the %s run is not there, or "
                           "twice, in the disturbed one", tests ? "the test of step" : "step", step,
                           other);
        if (!json_object_get(a, "chain"))       /* one process keeps none */
            json_object_del(b, "chain");
        if (!json_equal(a, b))
            return err_set(err, ERR_CONFLICT,
                           "different: the first %s that differs from the %s run "
                           "is %ld",
                           tests ? "test" : "step", other, step);
    }
}

/* Every step is there once, in both runs, with the same loss and chain; so are the tests. */
static int compare_steps(struct session *s, const char *other, struct err *err)
{
    char path[PATH_SIZE + 64];
    OWN_MEM char *one = NULL, *two = NULL;
    long steps, tests;

    snprintf(path, sizeof path, "%s/%s/metrics.jsonl", s->dir, other);
    if (files_read(path, (size_t)1 << 32, &one, NULL, err) < 0)
        return -(int)err->code;
    snprintf(path, sizeof path, "%s/disturbed/metrics.jsonl", s->dir);
    if (files_read(path, (size_t)1 << 32, &two, NULL, err) < 0)
        return -(int)err->code;
    if (compare_lines(other, one, two, false, &steps, err) < 0 ||
        compare_lines(other, one, two, true, &tests, err) < 0)
        return -(int)err->code;
    if (steps != s->steps)
        return err_set(err, ERR_CONFLICT, "different: metrics.jsonl has %ld steps of %ld", steps,
                       s->steps);
    return 0;
}

static int compare(struct session *s, struct err *err)
{
    const char *digest = text_of(s->alone, "digest"), *chain = text_of(s->alone, "chain");

    if (compare_steps(s, "undisturbed", err) < 0 || compare_steps(s, "single", err) < 0)
        return -(int)err->code;
    if (strcmp(digest, text_of(s->disturbed, "digest")) != 0)
        return err_set(err, ERR_CONFLICT, "different: undisturbed %.16s..., disturbed %.16s..., "
                       "and no step is known to differ", digest, text_of(s->disturbed, "digest"));
    if (strcmp(chain, text_of(s->disturbed, "chain")) != 0)
        return err_set(err, ERR_CONFLICT, "different: the chain undisturbed is %s, disturbed %s",
                       chain, text_of(s->disturbed, "chain"));
    const char *single = text_of(s->single, "chain");
    if (strspn(single, "0") != strlen(single) && strcmp(single, chain) != 0)
        return err_set(err, ERR_CONFLICT, "different: the chain of one process is %s, of workers "
                       "%s", single, chain);
    if (strcmp(digest, text_of(s->single, "digest")) != 0)
        return err_set(err, ERR_CONFLICT, "different: one process gives %.16s..., workers %.16s...",
                       text_of(s->single, "digest"), digest);
    return 0;
}

/* ------------------------------------------------------------------ the report */

struct summary {
    int fired, seen, n;         /* n: with a time until the next step */
    double median, worst;       /* seconds */
};

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static void summarise(const struct session *s, enum torture_kind kind, struct summary *out)
{
    OWN_MEM double *after = calloc((size_t)s->args->events, sizeof *after);

    *out = (struct summary){ 0 };
    for (long i = 0; after && i < s->args->events; i++) {
        const struct torture_event *e = &s->event[i];
        if (e->kind != kind)
            continue;
        out->fired += e->fired;
        out->seen += e->seen >= 0;
        if (e->step_after >= 0)
            after[out->n++] = e->step_after;
    }
    if (!out->n)
        return;
    qsort(after, (size_t)out->n, sizeof *after, by_size);
    out->median = after[out->n / 2];
    out->worst = after[out->n - 1];
}

static void print_table(const struct session *s)
{
    printf("%-12s %7s %8s   %s\n", "event", "fired", "noticed", "next step after (median, worst)");
    for (int k = 0; k < TORTURE_KINDS; k++) {
        struct summary of;
        summarise(s, (enum torture_kind)k, &of);
        if (!of.fired)
            continue;
        printf("%-12s %7d %8d", torture_name((enum torture_kind)k), of.fired, of.seen);
        if (of.n)
            printf("   %5.0f ms %6.0f ms", of.median * 1e3, of.worst * 1e3);
        printf("\n");
    }
    printf("%ld events, %ld generations, %ld steps in %.1f s\n", s->args->events, s->generations,
           s->steps, s->seconds);
}

static void print_json(const struct session *s, bool equal)
{
    OWN_JSON json_t *kinds = json_object();

    for (int k = 0; k < TORTURE_KINDS; k++) {
        struct summary of;
        summarise(s, (enum torture_kind)k, &of);
        json_object_set_new(kinds, torture_name((enum torture_kind)k), json_pack(
            "{s:i, s:i, s:i, s:f, s:f}", "fired", of.fired, "noticed", of.seen, "recovered", of.n,
            "median_s", of.median, "worst_s", of.worst));
    }
    OWN_JSON json_t *doc = json_pack(
        "{s:b, s:s, s:s, s:I, s:I, s:I, s:I, s:f, s:O}", "equal", equal, "digest",
        text_of(s->disturbed, "digest"), "chain", text_of(s->disturbed, "chain"), "steps",
        (json_int_t)s->steps, "events", (json_int_t)s->args->events, "seed",
        (json_int_t)s->args->seed, "generations", (json_int_t)s->generations, "seconds", s->seconds,
        "kinds", kinds);
    OWN_MEM char *text = json_dumps(doc, JSON_COMPACT | JSON_REAL_PRECISION(9));
    printf("%s\n", text ? text : "{}");
}

/* What was done, for whoever looks for the cause of a difference. */
static int write_events(const struct session *s, struct err *err)
{
    char path[PATH_SIZE + 64];
    OWN_BUF text = BUF_INIT;

    for (long i = 0; i < s->args->events; i++) {
        const struct torture_event *e = &s->event[i];
        buf_printf(&text, "{\"t\": %.6f, \"event\": \"%s\", \"due\": %ld, \"fired\": %s, \"step\": "
                   "%ld, \"id\": %ld, \"pid\": %ld, \"pause_ms\": %d, \"size\": %d, \"seen\": "
                   "%.6f, \"step_after\": %.6f}\n", e->at, torture_name(e->kind), e->due,
                   e->fired ? "true" : "false", e->step, e->id, e->pid, e->pause_ms, e->size,
                   e->seen, e->step_after);
    }
    snprintf(path, sizeof path, "%s/events.jsonl", s->dir);
    return buf_ok(&text, err) < 0 ? -(int)err->code : files_write(path, text.data, text.n, err);
}

/* ------------------------------------------------------------------ the command */

/* What three runs would fail with, each in its own log, is said before there is any. */
static int check_spec(const struct session *s, struct err *err)
{
    OWN(job_spec) spec = NULL;

    if (spec_read(s->spec, s->args->set.item, s->args->set.n, &spec, err) < 0)
        return -(int)err->code;
    return spec->program ? err_set(err, ERR_INVALID, "%s: runs a program of the user's own, whose "
                                   "bits muster does not promise", s->spec)
                         : 0;
}

static int open_dir(struct session *s, struct err *err)
{
    char run[PATH_SIZE + 64];

    if (s->args->out) {
        snprintf(s->dir, sizeof s->dir, "%s", s->args->out);
        snprintf(run, sizeof run, "%s/single", s->dir);
        if (access(run, F_OK) == 0)
            return err_set(err, ERR_CONFLICT, "%s: holds such runs already (choose another --out)",
                           s->dir);
        return files_mkdir(s->dir, err);
    }
    return tree_scratch("muster-torture", s->dir, sizeof s->dir, err);
}

static int torment(struct session *s, struct err *err)
{
    if (train_undisturbed(s, "single", NULL, &s->single, err) < 0 ||
        train_undisturbed(s, "undisturbed", "1", &s->alone, err) < 0)
        return -(int)err->code;
    s->steps = (long)json_integer_value(json_object_get(s->alone, "steps"));
    int rc = train_disturbed(s, err);
    clear_line(s);
    struct err ignored;
    if (s->event[0].fired && write_events(s, rc < 0 ? &ignored : err) < 0 && rc == 0)
        return -(int)err->code;
    if (rc < 0)
        return rc;
    rc = compare(s, err);
    if (s->args->json)
        print_json(s, rc == 0);
    else
        print_table(s);
    return rc;
}

static int torture(struct session *s, struct err *err)
{
    struct sigaction sa = { .sa_handler = on_signal };

    if (check_spec(s, err) < 0 || open_dir(s, err) < 0)
        return -(int)err->code;
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    int rc = torment(s, err);
    clear_line(s);
    if (stop_asked)
        s->cli->exit_code = 130;        /* as shells have it for Ctrl-C */
    if (rc == 0 && !s->args->json)
        printf("equal: %s, chain %s (one process, one worker, %d..%d workers disturbed)\n",
               text_of(s->disturbed, "digest"), text_of(s->disturbed, "chain"), s->min, s->max);
    if (!s->args->out && (rc == 0 || err->code == ERR_AGAIN))
        tree_remove(s->dir, &(struct err){ 0 });
    else if (rc < 0 && err->code != ERR_AGAIN) {
        struct err was = *err;
        err_set(err, was.code, "%s (the runs are in %s)", was.text, s->dir);
    }
    json_decref(s->single);
    json_decref(s->alone);
    json_decref(s->disturbed);
    return rc;
}

static int run(struct cli *c, int argc, char **argv, struct err *err)
{
    struct args a = { .events = EVENTS, .seed = 1 };
    struct session s = { .cli = c, .args = &a, .min = 1, .max = 4 };

    int n = options_parse(options, argc, argv, &a, err);
    if (n < 0)
        return n;
    if (n != 1)
        return cli_usage(&command_torture, err);
    if (a.workers && workers_parse(a.workers, &s.min, &s.max, err) < 0)
        return -(int)err->code;
    if (s.max > ROSTER_MAX)
        return err_set(err, ERR_INVALID, "workers: %d: at most %d take part in a job", s.max,
                       ROSTER_MAX);
    if (a.events < 1 || a.events > EVENTS_MAX)
        return err_set(err, ERR_INVALID, "--events wants a number from 1 to %d", EVENTS_MAX);
    OWN_MEM struct torture_event *event = calloc((size_t)a.events, sizeof *event);
    if (!event)
        return err_set(err, ERR_NOMEM, "no memory for %ld events", a.events);
    s.event = event;
    s.spec = argv[0];
    return torture(&s, err);
}

const struct command command_torture = {
    .name = "torture",
    .args = "SPEC",
    .summary = "train while workers are killed, stopped, cut off, added; compare the bits",
    .example = "muster torture examples/fashion-lenet/train.yaml --events 60 --set epochs=1",
    .more =
        "Events are drawn from the seed and fire at step numbers. Kinds: kill (kill -9 of a\n"
        "worker), stop (SIGSTOP for longer than a worker may be silent, then SIGCONT), slow (the\n"
        "same for a moment), partition (a worker and the coordinator do not hear each other for a\n"
        "while), join, leave, coordinator (kill -9 of it). Exit code 5 when anything differs.",
    .options = options,
    .run = run,
};
