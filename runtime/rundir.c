/* runtime/rundir.c - what a run leaves behind */
#include "runtime/rundir_int.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "runtime/scalars.h"

/* A checkpoint at the end of an epoch waits until the one before is this old: epochs may be
 * milliseconds long, a sync is not. One that the spec asks for by steps never waits. */
static const double CHECKPOINT_SECONDS = 1;
static const double GONE_SECONDS = 2;

static bool exists(const char *dir, const char *name)
{
    char path[NAME_SIZE];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

/* ------------------------------------------------------------------ life */

void rundir_choose(const char *name, char *out, size_t size)
{
    snprintf(out, size, "runs/%s", name);
    for (int i = 2; access(out, F_OK) == 0; i++)
        snprintf(out, size, "runs/%s-%d", name, i);
}

static int open_files(struct rundir *r, struct err *err)
{
    char path[NAME_SIZE];

    snprintf(path, sizeof path, "%s/metrics.jsonl", r->path);
    r->metrics = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (r->metrics < 0)
        return err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    r->saved_at = clock_seconds();
    return scalars_open(r->path, &r->scalars, err);
}

static struct rundir *rundir_new(struct err *err)
{
    struct rundir *r = calloc(1, sizeof *r);

    if (!r)
        err_set(err, ERR_NOMEM, "no memory for a run directory");
    else
        r->metrics = r->lock = r->reserve = -1;
    if (r)
        r->best_saved = -1;
    return r;
}

/* Before anything in it is touched. One that was killed has a moment to be gone, with the processes
 * that it had forked. Where a file system knows no locks nobody is kept out. */
static int take_directory(struct rundir *r, struct err *err)
{
    double until = clock_seconds() + GONE_SECONDS;

    r->lock = open(r->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (r->lock >= 0 && flock(r->lock, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK) {
        if (clock_seconds() > until)
            return err_set(err, ERR_CONFLICT, "%s: another muster train is at work there (wait for "
                           "it, or choose another --out)", r->path);
        usleep(20000);
    }
    return 0;
}

static int check_free(const struct rundir *r, struct err *err)
{
    if (exists(r->path, "run.json") || exists(r->path, "metrics.jsonl"))
        return err_set(err, ERR_CONFLICT, "%s: holds a run already (choose another --out, or go on "
                       "with it by --resume)", r->path);
    return 0;
}

int rundir_create(const char *path, const struct job_spec *spec, struct rundir **out,
                  struct err *err)
{
    OWN(rundir) r = rundir_new(err);

    if (!r)
        return -(int)err->code;
    if (path)
        snprintf(r->path, sizeof r->path, "%s", path);
    else
        rundir_choose(spec->name, r->path, sizeof r->path);
    if (check_free(r, err) < 0 || files_mkdir(r->path, err) < 0 || take_directory(r, err) < 0 ||
        check_free(r, err) < 0 || open_files(r, err) < 0)       /* two may have come at once */
        return -(int)err->code;
    *out = TAKE(r);
    return 0;
}

void rundir_free(struct rundir *r)
{
    if (!r)
        return;
    if (r->metrics >= 0)
        close(r->metrics);
    if (r->lock >= 0)
        close(r->lock);
    rundir_release(r);
    scalars_free(r->scalars);
    free(r);
}

const char *rundir_path(const struct rundir *r)
{
    return r->path;
}

const char *rundir_damaged(const struct rundir *r)
{
    return r->damaged.code ? r->damaged.text : NULL;
}

const char *rundir_last_checkpoint(const struct rundir *r)
{
    return r->last[0] ? r->last : NULL;
}

/* ------------------------------------------------------------------ checkpoints */

/* The number in "step-123.safetensors"; -1: another file. */
static long checkpoint_step(const char *name)
{
    char *end;

    if (strncmp(name, "step-", 5) != 0)
        return -1;
    long step = strtol(name + 5, &end, 10);
    return strcmp(end, ".safetensors") == 0 ? step : -1;
}

/* The largest step below `below`; -1: none. */
static long find_checkpoint(const char *dir, long below)
{
    DIR *d = opendir(dir);
    long best = -1;

    if (!d)
        return -1;
    for (struct dirent *e; (e = readdir(d));) {
        long step = checkpoint_step(e->d_name);
        if (step < below && step > best)
            best = step;
    }
    closedir(d);
    return best;
}

long rundir_find_checkpoint(const char *path, long below)
{
    char dir[NAME_SIZE];

    snprintf(dir, sizeof dir, "%.4000s/checkpoints", path);
    return find_checkpoint(dir, below);
}

static void checkpoint_path(const struct rundir *r, long step, char *out, size_t size)
{
    snprintf(out, size, "%.4000s/checkpoints/step-%ld.safetensors", r->path, step);
}

static void remove_old(const struct rundir *r, int keep)
{
    char dir[NAME_SIZE], path[NAME_SIZE];
    long step = LONG_MAX;

    snprintf(dir, sizeof dir, "%s/checkpoints", r->path);
    for (int i = 0; (step = find_checkpoint(dir, step)) >= 0; i++)
        if (i >= keep) {
            checkpoint_path(r, step, path, sizeof path);
            unlink(path);
        }
}

int rundir_save_best(struct rundir *r, struct trainer *t, struct err *err)
{
    char path[NAME_SIZE], step[32];
    struct best best;

    if (!trainer_best(t, &best) || best.step == r->best_saved)
        return 0;
    snprintf(path, sizeof path, "%.4000s/checkpoints", r->path);
    if (files_mkdir(path, err) < 0)
        return -(int)err->code;
    snprintf(path, sizeof path, "%.4000s/checkpoints/best.safetensors", r->path);
    snprintf(step, sizeof step, "%ld", best.step);
    OWN_JSON json_t *notes = json_pack("{s:s}", "step", step);
    if (model_save_copy(trainer_plan(t), best.params, path, notes, err) < 0)
        return -(int)err->code;
    r->best_saved = best.step;
    return 0;
}

void rundir_release(struct rundir *r)
{
    if (r->reserve >= 0)
        close(r->reserve);
    r->reserve = -1;
}

/* On a full disk the room that is set aside goes to a checkpoint: it has all of the model. */
static int save_state(struct rundir *r, struct trainer *t, const char *path, struct err *err)
{
    if (trainer_save(t, path, err) == 0)
        return 0;
    if (r->reserve < 0)
        return -(int)err->code;
    rundir_release(r);
    return trainer_save(t, path, err);
}

int rundir_checkpoint(struct rundir *r, struct trainer *t, struct err *err)
{
    char dir[NAME_SIZE], path[NAME_SIZE];
    int keep = trainer_spec(t)->checkpoint_keep;

    snprintf(dir, sizeof dir, "%s/checkpoints", r->path);
    checkpoint_path(r, trainer_step(t), path, sizeof path);
    if (files_mkdir(dir, err) < 0 || save_state(r, t, path, err) < 0 ||
        rundir_save_best(r, t, err) < 0)
        return err_add(err, "the checkpoint of step %ld was not written%s%s", trainer_step(t),
                       r->last[0] ? "; still good: " : "", r->last);
    snprintf(r->last, sizeof r->last, "%s", path);
    r->saved_at = clock_seconds();
    remove_old(r, keep > 0 ? keep : 1);
    return 0;
}

/* ------------------------------------------------------------------ lines and scalars */

static int append_line(struct rundir *r, json_t *line, struct err *err)
{
    OWN_JSON json_t *own = line;
    OWN_MEM char *text = json_dumps(own, JSON_COMPACT | JSON_REAL_PRECISION(9));

    if (!text)
        return err_set(err, ERR_NOMEM, "no memory for a line of metrics");
    size_t n = strlen(text);
    text[n++] = '\n';           /* in place of the NUL */
    for (size_t at = 0; at < n;) {
        ssize_t part = write(r->metrics, text + at, n - at);
        if (part < 0 && errno == EINTR)
            continue;
        if (part <= 0)          /* what there is of the line is cut off by a resume */
            return err_set(err, ERR_IO, "%s/metrics.jsonl: %s", r->path,
                           errno == ENOSPC ? "the disk is full" : strerror(errno));
        at += (size_t)part;
    }
    return 0;
}

/* A line for each `log_every` steps: the loss as trainer.h has it, the last one's chain. */
static int record_steps(struct rundir *r, const struct train_event *e, long log_every,
                        struct err *err)
{
    for (long i = 0; i < e->n_results; i++) {
        const struct step_result *s = &e->results[i];
        long step = s->step + 1;
        if (step % log_every)
            continue;
        json_t *line = json_pack("{s:I, s:i, s:f, s:f}", "step", (json_int_t)step, "epoch",
                                 e->epoch + 1, "loss", s->reported, "samples_per_s",
                                 e->samples_per_s);
        if (s->chain) {
            char chain[17];
            snprintf(chain, sizeof chain, "%016" PRIx64, s->chain);
            json_object_set_new(line, "chain", json_string(chain));
        }
        if (append_line(r, line, err) < 0 ||
            scalars_add(r->scalars, "train/loss", step, s->reported, err) < 0)
            return -(int)err->code;
    }
    return 0;
}

static int record_test(struct rundir *r, const struct train_event *e, struct err *err)
{
    json_t *line = json_pack("{s:I, s:i}", "step", (json_int_t)e->step, "epoch", e->epoch);
    char tag[64];

    for (int i = 0; i < e->test->n; i++) {
        snprintf(tag, sizeof tag, "test_%s", e->test->name[i]);
        json_object_set_new(line, tag, json_number(e->test->value[i]));
        snprintf(tag, sizeof tag, "test/%s", e->test->name[i]);
        if (scalars_add(r->scalars, tag, e->step, e->test->value[i], err) < 0) {
            json_decref(line);
            return -(int)err->code;
        }
    }
    return append_line(r, line, err);
}

int rundir_record(struct rundir *r, struct trainer *t, const struct train_event *e, long log_every,
                  struct err *err)
{
    switch (e->kind) {
    case EVENT_STEPS:
        return record_steps(r, e, log_every, err);
    case EVENT_TEST:
        return record_test(r, e, err);
    case EVENT_CHECKPOINT:
        if (trainer_spec(t)->checkpoint.unit == EVERY_EPOCHS &&
            clock_seconds() - r->saved_at < CHECKPOINT_SECONDS)
            return 0;
        return rundir_checkpoint(r, t, err);
    case EVENT_EPOCH:
        return scalars_flush(r->scalars, err);
    }
    return 0;
}

/* ------------------------------------------------------------------ resume */

/* A checkpoint that cannot be read (cut off by a full disk of old, or damaged) is passed over. */
static char *newest_good(struct rundir *r, long *out_step)
{
    char dir[NAME_SIZE], path[NAME_SIZE];

    snprintf(dir, sizeof dir, "%s/checkpoints", r->path);
    for (long step = LONG_MAX; (step = find_checkpoint(dir, step)) >= 0;) {
        OWN(safetensors) s = NULL;
        struct err why = { 0 };
        checkpoint_path(r, step, path, sizeof path);
        if (safetensors_open(path, &s, &why) == 0) {
            *out_step = step;
            return strdup(path);
        }
        if (!r->damaged.code)
            r->damaged = why;
    }
    return NULL;
}

/* Keeps the lines up to step `last`: those after it belong to work that is done again, and what a
 * kill cut off is none. The steps of the last one about steps and of the last test. */
static int cut_metrics(struct rundir *r, long last, long *out_logged, long *out_tested,
                       struct err *err)
{
    OWN_MEM char *text = NULL;
    char path[NAME_SIZE];
    size_t n, keep = 0;

    snprintf(path, sizeof path, "%s/metrics.jsonl", r->path);
    if (files_read(path, (size_t)1 << 32, &text, &n, err) < 0)
        return -(int)err->code;
    for (const char *end; (end = memchr(text + keep, '\n', n - keep));) {
        OWN_JSON json_t *line = json_loadb(text + keep, (size_t)(end - text) - keep, 0, NULL);
        long step = (long)json_integer_value(json_object_get(line, "step"));
        if (!line || step > last)
            break;
        *(json_object_get(line, "test_loss") ? out_tested : out_logged) = step;
        keep = (size_t)(end - text) + 1;
    }
    if (ftruncate(r->metrics, (off_t)keep) < 0)
        return err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    return 0;
}

static int check_run(const char *path, struct err *err)
{
    if (exists(path, "metrics.jsonl"))
        return 0;
    return err_set(err, ERR_MISSING, "%s: holds no run to go on with (the directory of a run has "
                   "metrics.jsonl)", path);
}

int rundir_open(const char *path, bool mine, struct rundir **out, long *out_logged,
                long *out_tested, char **out_checkpoint, struct err *err)
{
    OWN(rundir) r = rundir_new(err);
    long step = 0;

    if (!r)
        return -(int)err->code;
    snprintf(r->path, sizeof r->path, "%s", path);
    *out_logged = *out_tested = 0;
    if (check_run(path, err) < 0 || (!mine && take_directory(r, err) < 0) ||
        open_files(r, err) < 0 || cut_metrics(r, LONG_MAX, out_logged, out_tested, err) < 0)
        return -(int)err->code;
    char *checkpoint = newest_good(r, &step);
    if (checkpoint)
        snprintf(r->last, sizeof r->last, "%s", checkpoint);
    *out_checkpoint = checkpoint;
    *out = TAKE(r);
    return 0;
}

int rundir_resume(const char *path, struct rundir **out, char **out_checkpoint, struct err *err)
{
    OWN(rundir) r = rundir_new(err);
    long step = 0, logged, tested;

    if (!r)
        return -(int)err->code;
    snprintf(r->path, sizeof r->path, "%s", path);
    if (check_run(path, err) < 0 || take_directory(r, err) < 0)
        return -(int)err->code;
    char *checkpoint = newest_good(r, &step);
    if (open_files(r, err) < 0 || cut_metrics(r, step, &logged, &tested, err) < 0) {
        free(checkpoint);
        return -(int)err->code;
    }
    if (checkpoint)
        snprintf(r->last, sizeof r->last, "%s", checkpoint);
    *out_checkpoint = checkpoint;
    *out = TAKE(r);
    return 0;
}
