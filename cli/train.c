/* cli/train.c - muster train: a spec, here and now */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/own.h"
#include "base/sha256.h"
#include "cli/cli.h"
#include "cli/layers.h"
#include "cli/train_python.h"
#include "runtime/coordinator.h"
#include "runtime/fetch.h"
#include "runtime/job.h"
#include "runtime/roster.h"
#include "runtime/rundir.h"
#include "runtime/trainer.h"
#include "runtime/wire.h"
#include "spec/spec.h"

/* How long it is tried to write a model that there is no room for, and no checkpoint. */
enum { FINISH_SECONDS = 60 };
enum { BEAT_MS = 100, BEAT_LEAST = 10, BEAT_MOST = 60000 };

struct args {
    const char *out, *device, *workers, *listen, *python;
    long threads, log_every, max_restarts, beat;
    int json, dry_run, resume, quiet, tls;
    struct option_list set;
};

static const struct option options[] = {
    { "out", 'o', "DIR", "put the run there (default: runs/NAME)", OPTION_TEXT,
      offsetof(struct args, out) },
    { "threads", 0, "N", "use N threads (default: all cores that help); the result is the same",
      OPTION_INT, offsetof(struct args, threads) },
    { "workers", 0, "N|MIN..MAX", "share the work among so many processes; with MIN, wait while "
      "there are fewer", OPTION_TEXT, offsetof(struct args, workers) },
    { "listen", 0, "HOST:PORT", "let workers of other hosts join there (default: this host alone)",
      OPTION_TEXT, offsetof(struct args, listen) },
    { "tls", 0, NULL, "encrypt what the processes of the job say to each other (TLS 1.3, keyed by "
      "the job's token)", OPTION_FLAG, offsetof(struct args, tls) },
    { "beat", 0, "MS", "a worker that is silent for five of them is left out (default: 100)",
      OPTION_INT, offsetof(struct args, beat) },
    { "python", 0, "FILE", "run a distributed Python program of your own in place of SPEC; what is "
      "after -- is for it", OPTION_TEXT, offsetof(struct args, python) },
    { "max-restarts", 0, "N", "start a program of your own again so many times (default: 3)",
      OPTION_INT, offsetof(struct args, max_restarts) },
    { "set", 0, "KEY=VALUE", "change the spec, as in epochs=1, limit=2000, optimizer.sgd.lr=0.01",
      OPTION_LIST, offsetof(struct args, set) },
    { "resume", 0, NULL, "go on with the run in --out from its last checkpoint", OPTION_FLAG,
      offsetof(struct args, resume) },
    { "dry-run", 0, NULL, "print the resolved spec, the layers and the memory, and stop",
      OPTION_FLAG, offsetof(struct args, dry_run) },
    { "json", 0, NULL, "print one object a line", OPTION_FLAG, offsetof(struct args, json) },
    { "log-every", 0, "N", "steps told by one line of metrics (default: 100)", OPTION_INT,
      offsetof(struct args, log_every) },
    { "device", 0, "auto|cpu", "where to compute", OPTION_TEXT, offsetof(struct args, device) },
    { "quiet", 'q', NULL, "print nothing but errors", OPTION_FLAG, offsetof(struct args, quiet) },
    { 0 }
};

/* ------------------------------------------------------------------ Ctrl-C */

static struct trainer *running;         /* for the signal handler alone */

/* Two signals within so many seconds are one: timeout(1), for one, signals both the process and its
 * group. */
static const double TWICE = 0.5;

/* The first signal ends the run at the next step with a checkpoint, a later one the process. */
static void on_signal(int sig)
{
    static volatile double first;

    if (first > 0 && clock_seconds() - first > TWICE) {
        signal(sig, SIG_DFL);
        raise(sig);
    } else if (first == 0) {
        first = clock_seconds();
        trainer_stop(running);
    }
}

static void catch_signals(struct trainer *t)
{
    struct sigaction sa = { .sa_handler = on_signal };

    running = t;
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
}

static void release_signals(void)
{
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    running = NULL;
}

/* ------------------------------------------------------------------ telling */

struct teller {
    struct cli *cli;
    const struct args *args;
    struct rundir *dir;
    struct err err;             /* the first failure to write; ends the run */
    double drawn;               /* time of the last progress line */
    bool line;                  /* a progress line is on the screen */
    double loss;                /* as trainer.h has it */
};

static void clear_line(struct teller *w)
{
    if (w->line)
        fputs("\r\033[K", stderr);
    w->line = false;
}

static void draw_progress(struct teller *w, struct trainer *t, const struct train_event *e)
{
    const struct job_spec *s = trainer_spec(t);
    double all = (double)e->steps_in_epoch * s->epochs;
    double part = all > 0 ? (double)e->step / all : 0;

    if (!w->cli->err_is_terminal || w->args->quiet || w->args->json ||
        clock_seconds() - w->drawn < 0.1)
        return;
    w->drawn = clock_seconds();
    fprintf(stderr, "\r\033[Kepoch %d/%d  %3.0f %%  step %ld  loss %.4f  %.0f samples/s",
            e->epoch + 1, s->epochs, part * 100, e->step, w->loss, e->samples_per_s);
    if (all > 0 && e->samples_per_s > 0)
        fprintf(stderr, "  %.0f s left", (all - (double)e->step) * s->batch / e->samples_per_s);
    w->line = true;
}

/* JSON has no word for what is not a number. */
static void print_value(const char *name, double value)
{
    if (isfinite(value))
        printf(", \"test_%s\": %.9g", name, value);
    else
        printf(", \"test_%s\": null", name);
}

static void print_json(const struct teller *w, const struct train_event *e)
{
    if (e->kind == EVENT_STEPS) {
        for (long i = 0; i < e->n_results; i++)
            if ((e->results[i].step + 1) % w->args->log_every == 0)
                printf("{\"step\": %ld, \"epoch\": %d, \"loss\": %.9g, \"samples_per_s\": %.1f}\n",
                       e->results[i].step + 1, e->epoch + 1, e->results[i].reported,
                       e->samples_per_s);
        return;
    }
    if (e->kind != EVENT_TEST)
        return;
    printf("{\"step\": %ld, \"epoch\": %d", e->step, e->epoch);
    for (int i = 0; i < e->test->n; i++)
        print_value(e->test->name[i], e->test->value[i]);
    printf(", \"samples_per_s\": %.1f}\n", e->samples_per_s);
}

static void print_test(struct teller *w, struct trainer *t, const struct train_event *e)
{
    const struct job_spec *s = trainer_spec(t);

    /* Tests every few steps would be hundreds of lines: a terminal sees the last in its progress
     * line, a file all of them in metrics.jsonl. */
    if (s->test.unit == EVERY_STEPS && clock_seconds() - w->drawn < 0.5)
        return;
    clear_line(w);
    w->drawn = clock_seconds();
    printf("epoch %d  step %ld  loss %.4f", e->epoch, e->step, w->loss);
    for (int i = 0; i < e->test->n; i++)
        printf("  test_%s %.4f", e->test->name[i], e->test->value[i]);
    printf("  %.0f samples/s\n", e->samples_per_s);
    fflush(stdout);
}

static int on_event(void *arg, struct trainer *t, const struct train_event *e)
{
    struct teller *w = arg;

    if (e->kind == EVENT_STEPS) {
        w->loss = e->results[e->n_results - 1].reported;
        draw_progress(w, t, e);
    }
    if (w->args->json)
        print_json(w, e);
    else if (e->kind == EVENT_TEST && !w->args->quiet)
        print_test(w, t, e);
    if (rundir_record(w->dir, t, e, w->args->log_every, &w->err) < 0)
        return 1;
    return 0;
}

/* ------------------------------------------------------------------ the command */

static int check_args(const struct args *a, struct err *err)
{
    if (a->device && strcmp(a->device, "auto") != 0 && strcmp(a->device, "cpu") != 0)
        return err_set(err, ERR_INVALID, "--device %s: this build computes on the CPU alone (use "
                       "auto or cpu)", a->device);
    if (a->log_every < 1)
        return err_set(err, ERR_INVALID, "--log-every wants a number from 1");
    if (a->beat < BEAT_LEAST || a->beat > BEAT_MOST)
        return err_set(err, ERR_INVALID, "--beat wants milliseconds from %d to %d", BEAT_LEAST,
                       BEAT_MOST);
    if (a->threads < 0 || a->threads > TEAM_MAX)
        return err_set(err, ERR_INVALID, "--threads wants a number from 0 to %d", TEAM_MAX);
    if (a->resume && !a->out)
        return err_set(err, ERR_INVALID, "--resume needs --out DIR, the run to go on with");
    return 0;
}

static void tell_damaged(const struct rundir *dir, const char *checkpoint)
{
    if (rundir_damaged(dir))
        fprintf(stderr, "muster: %s; going on from %s\n", rundir_damaged(dir),
                checkpoint ? checkpoint : "the start: there is no other");
}

static int open_run(const struct args *a, const struct job_spec *spec, struct trainer *t,
                    struct rundir **out, struct err *err)
{
    OWN_MEM char *checkpoint = NULL;

    if (!a->resume)
        return rundir_create(a->out, spec, out, err);
    if (rundir_resume(a->out, out, &checkpoint, err) < 0)
        return -(int)err->code;
    tell_damaged(*out, checkpoint);
    if (checkpoint && trainer_load(t, checkpoint, err) < 0)
        return -(int)err->code;
    if (!a->quiet)
        fprintf(stderr, "going on from step %ld\n", trainer_step(t));
    return 0;
}

static void print_end(const struct args *a, const struct rundir *dir, struct trainer *t,
                      const struct fit_result *fit, const char *digest)
{
    long skipped = dataset_skipped(trainer_data(t));
    struct best b;

    if (a->json) {
        printf("{\"ended\": \"%s\", \"steps\": %ld, \"epochs\": %d, \"samples_per_s\": %.1f, "
               "\"seconds\": %.6f, \"digest\": \"%s\", \"run\": \"%s\"}\n", fit->why, fit->steps,
               fit->epochs, fit->samples_per_s, fit->seconds, digest, rundir_path(dir));
        return;
    }
    if (a->quiet)
        return;
    printf("%s: %ld steps in %.2f s, %.0f samples/s", fit->why, fit->steps, fit->seconds,
           fit->samples_per_s);
    const bool best = trainer_delivers_best(t) && trainer_best(t, &b);
    const struct test_result *test = best ? &b.test : &fit->test;
    if (best)
        printf("\nthe model is the best, of step %ld", b.step);
    for (int i = 0; i < test->n; i++)
        printf(", test_%s %.4f", test->name[i], test->value[i]);
    if (skipped)
        printf("\n%ld wrong row%s left out (data.on_error)", skipped, skipped == 1 ? "" : "s");
    printf("\nmodel   %s\ndigest  %s\n", rundir_path(dir), digest);
}

static void tell_way_on(struct teller *w, struct trainer *t, const char *spec)
{
    fprintf(stderr, "stopped at step %ld; everything is in %s. To go on:\n"
            "  muster train %s --out %s --resume", trainer_step(t), rundir_path(w->dir), spec,
            rundir_path(w->dir));
    for (int i = 0; i < w->args->set.n; i++)
        fprintf(stderr, " --set '%s'", w->args->set.item[i]);
    if (w->args->workers)
        fprintf(stderr, " --workers %s", w->args->workers);
    if (w->args->tls)
        fputs(" --tls", stderr);
    fputs("\n", stderr);
}

/* A stop by a person: everything is kept, and the way on is one line. */
static int end_early(struct teller *w, struct trainer *t, const char *spec, struct err *err)
{
    if (rundir_checkpoint(w->dir, t, err) < 0)
        return -(int)err->code;
    tell_way_on(w, t, spec);
    return 0;
}

/* The model could not be written. A checkpoint keeps all of it; where that cannot be written either,
 * somebody may make room yet. */
static int finish_later(struct teller *w, struct trainer *t, const struct fit_result *fit,
                        char digest[65], struct err *err)
{
    struct err why = *err, again;

    if (rundir_checkpoint(w->dir, t, &again) == 0) {
        tell_way_on(w, t, trainer_spec(t)->path);
        return err_set(err, why.code, "%s; the trained parameters are in %s", why.text,
                       rundir_last_checkpoint(w->dir));
    }
    fprintf(stderr, "muster: %s; make room: it is tried again for %d s\n", why.text,
            FINISH_SECONDS);
    for (int i = 0; i < FINISH_SECONDS; i++) {
        sleep(1);
        if (rundir_finish(w->dir, t, fit, NULL, digest, err) == 0)
            return 0;
    }
    return -(int)err->code;
}

static int train(struct cli *c, const struct args *a, const struct job_spec *spec, struct err *err)
{
    OWN(trainer) t = NULL;
    OWN(rundir) dir = NULL;
    struct fit_result fit;
    char digest[65];

    if (trainer_new(spec, (int)a->threads, &t, err) < 0)
        return -(int)err->code;
    if (a->dry_run) {
        OWN_MEM char *text = spec_print(spec);
        printf("%s\n", text ? text : "");
        layers_print(trainer_graph(t), trainer_plan(t), stdout);
        return 0;
    }
    trainer_report_every(t, a->log_every);
    if (open_run(a, spec, t, &dir, err) < 0 || rundir_rehearse(dir, t, err) < 0)
        return -(int)err->code;
    struct teller w = { .cli = c, .args = a, .dir = dir };
    catch_signals(t);
    int rc = trainer_fit(t, on_event, &w, &fit, err);
    release_signals();
    clear_line(&w);
    if (rc < 0) {
        const char *last = rundir_last_checkpoint(dir);
        return last ? err_add(err, "%s (last good checkpoint: %s)", spec->name, last)
                    : err_add(err, "%s", spec->name);
    }
    if (w.err.code) {
        struct err none;        /* the first failure is the one to tell */
        if (rundir_checkpoint(dir, t, &none) == 0)
            tell_way_on(&w, t, spec->path);
        *err = w.err;
        return -(int)err->code;
    }
    if (fit.stopped)
        return end_early(&w, t, spec->path, err);
    if (rundir_finish(dir, t, &fit, NULL, digest, err) < 0 && finish_later(&w, t, &fit, digest, err) < 0)
        return -(int)err->code;
    print_end(a, dir, t, &fit, digest);
    return 0;
}

/* ------------------------------------------------------------------ many workers */

struct workers_job {
    struct cli *cli;
    const struct args *args;
    const struct job_spec *spec;
    /* Made before the first fork, so that a coordinator that was killed is back in milliseconds. */
    struct trainer *trainer;
    char data[65];              /* digest of the data */
    struct buf *offer;          /* what workers may read by part, and its digest; "": nothing */
    char offered[65];
    char dir[4096];
    char listen[JOB_ADDRESS];   /* "": this host alone, in the clear */
    int min, max;
};

static void on_stop(int sig)
{
    (void)sig;
    coordinator_stop();
}

/* In the coordinator's process; again and again when it is killed. */
static int coordinate(void *arg, const struct job_desk *desk, struct err *err)
{
    struct workers_job *j = arg;
    struct trainer *t = j->trainer;
    OWN(rundir) dir = NULL;
    OWN_MEM char *checkpoint = NULL;
    struct sigaction sa = { .sa_handler = on_stop };
    struct fit_result fit;
    struct err full;
    char digest[65];

    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    if (desk->stopping)
        coordinator_stop();
    struct coordinator_config config = { .token = desk->token, .listener = desk->listener,
                                         .address = desk->address, .min = j->min, .max = j->max,
                                         .beat_ms = (int)j->args->beat, .handler = on_event,
                                         .over = desk->over };
    if (rundir_open(j->dir, true, &dir, &config.logged, &config.tested, &checkpoint, err) < 0 ||
        (checkpoint && trainer_load(t, checkpoint, err) < 0))
        return -(int)err->code;
    if (rundir_reserve(dir, t, &full) < 0)
        fprintf(stderr, "muster: %s; the job goes on\n", full.text);
    if (j->args->listen && !j->args->quiet)
        fprintf(stderr, "other hosts join with: MUSTER_TOKEN=(what is in %s/token) muster worker "
                "--join %s\n", j->dir, desk->address);
    struct teller w = { .cli = j->cli, .args = j->args, .dir = dir };
    config.trainer = t;
    config.data = j->data;
    config.offer = j->offer;
    config.offered = j->offered;
    config.dir = dir;
    config.arg = &w;
    int rc = coordinator_run(&config, &fit, digest, err);
    clear_line(&w);
    if (rc < 0)
        return err_add(err, "%s", j->spec->name);
    if (w.err.code) {
        *err = w.err;
        return -(int)err->code;
    }
    if (fit.stopped)
        tell_way_on(&w, t, j->spec->path);
    else
        print_end(j->args, dir, t, &fit, digest);
    return 0;
}

static int choose_workers(const struct args *a, const struct job_spec *spec, struct workers_job *j,
                          struct err *err)
{
    j->min = spec->workers_min;
    j->max = spec->workers_max;
    if (a->workers && workers_parse(a->workers, &j->min, &j->max, err) < 0)
        return -(int)err->code;
    if (a->workers ? !strstr(a->workers, "..") : j->min == j->max)
        j->min = 1;             /* a number is what is wanted; fewer can go on meanwhile */
    if (j->max > ROSTER_MAX)
        return err_set(err, ERR_INVALID, "workers: %d: at most %d take part in a job", j->max,
                       ROSTER_MAX);
    return 0;
}

/* What is to be known of the job's data: its digest, and the list of what can be read by part. */
static int make_offer(struct workers_job *j, struct trainer *t, struct err *err)
{
    j->trainer = t;
    if (dataset_digest(trainer_data(t), j->data, err) < 0 ||
        fetch_make_offer(j->spec, trainer_data(t), trainer_test_data(t), j->offer, err) < 0)
        return -(int)err->code;
    if (j->offer->n)
        sha256_hex_of(j->offer->data, j->offer->n, j->offered);
    /* The workers have rows of their own. */
    dataset_drop_rows(trainer_data(t));
    if (trainer_test_data(t))
        dataset_drop_rows(trainer_test_data(t));
    return 0;
}

static int choose_address(const struct args *a, struct workers_job *j, struct err *err)
{
    const char *listen = a->listen ? a->listen : a->tls ? "127.0.0.1:0" : "";
    const char *tls = a->tls && !wire_is_tls(listen) ? WIRE_TLS : "";
    int n = snprintf(j->listen, sizeof j->listen, "%s%s", tls, listen);

    return n < (int)sizeof j->listen ? 0
           : err_set(err, ERR_INVALID, "--listen %.40s...: is too long", listen);
}

static int train_workers(struct cli *c, const struct args *a, const struct job_spec *spec,
                         struct err *err)
{
    OWN_BUF offer = BUF_INIT;
    struct workers_job j = { .cli = c, .args = a, .spec = spec, .offer = &offer };
    OWN(trainer) t = NULL;
    OWN(rundir) dir = NULL;
    OWN_MEM char *checkpoint = NULL;
    struct job_desk desk;
    long logged, tested;

    if (choose_workers(a, spec, &j, err) < 0 || choose_address(a, &j, err) < 0 ||
        job_open(j.listen[0] ? j.listen : NULL, j.max, &desk, err) < 0)
        return -(int)err->code;
    OWN_FD int listener = desk.listener;        /* to be closed */
    (void)listener;
    if (trainer_new_shared(spec, 1, NULL, &t, err) < 0 || make_offer(&j, t, err) < 0)
        return -(int)err->code;
    if (a->resume ? rundir_open(a->out, false, &dir, &logged, &tested, &checkpoint, err) < 0
                  : rundir_create(a->out, spec, &dir, err) < 0)
        return -(int)err->code;
    trainer_report_every(t, a->log_every);
    if (rundir_rehearse(dir, t, err) < 0)
        return -(int)err->code;
    tell_damaged(dir, checkpoint);
    snprintf(j.dir, sizeof j.dir, "%s", rundir_path(dir));
    int cores = team_cores() / j.max;
    const struct job_config config = {
        .dir = j.dir, .desk = &desk, .max = j.max,
        .threads = a->threads ? (int)a->threads : cores > 1 ? cores : 1,
        .coordinate = coordinate, .arg = &j,
    };
    return job_run(&config, err);
}

/* A program of the user's own: `own` arguments are for it. */
static int run_program(struct cli *c, const struct args *a, const struct job_spec *spec,
                       char *const *own, int n_own, struct err *err)
{
    struct program_options o = { a->out, a->workers, a->max_restarts, a->threads, a->json, a->quiet,
                                 a->dry_run, own, n_own };

    if (a->resume || a->device || a->tls || (a->python && a->set.n))
        return err_set(err, ERR_INVALID, "--%s has no place beside a program of your own",
                       a->resume   ? "resume"
                       : a->device ? "device"
                       : a->tls    ? "tls"
                                   : "set");
    return a->python ? train_script(c, a->python, &o, err) : train_program(c, spec, &o, err);
}

static int run(struct cli *c, int argc, char **argv, struct err *err)
{
    struct args a = { .log_every = REPORT_EVERY, .max_restarts = MAX_RESTARTS, .beat = BEAT_MS };
    OWN(job_spec) spec = NULL;
    int dashes = 0;

    while (dashes < argc && strcmp(argv[dashes], "--"))
        dashes++;
    int own = dashes < argc ? argc - dashes - 1 : 0;    /* arguments of a program */
    int n = options_parse(options, argc, argv, &a, err);
    if (n < 0)
        return n;
    if (n - own != (a.python ? 0 : 1))
        return cli_usage(&command_train, err);
    if (check_args(&a, err) < 0)
        return -(int)err->code;
    a.tls |= a.listen && wire_is_tls(a.listen);
    if (a.python)
        return run_program(c, &a, NULL, argv + n - own, own, err);
    if (spec_read(argv[0], a.set.item, a.set.n, &spec, err) < 0)
        return -(int)err->code;
    if (spec->program)
        return run_program(c, &a, spec, argv + n - own, own, err);
    if (own)
        return cli_usage(&command_train, err);
    bool many = (a.workers || spec->workers_max > 1) && !a.dry_run;
    return many ? train_workers(c, &a, spec, err) : train(c, &a, spec, err);
}

const struct command command_train = {
    .name = "train",
    .args = "SPEC",
    .summary = "train what a spec describes, on this machine",
    .example = "muster train examples/fashion-lenet/train.yaml --out runs/lenet\n"
               "muster train examples/fit-a-line/train.yaml --set epochs=10 --dry-run\n"
               "muster train examples/fashion-lenet/train.yaml --workers 2 --tls --listen "
               "10.0.0.5:7000\n"
               "muster train --python examples/ddp/train.py --workers 2",
    .more = "Ctrl-C saves a checkpoint and says how to go on. The model, its digest, metrics and\n"
            "TensorBoard events are in the run's directory.",
    .options = options,
    .run = run,
};
