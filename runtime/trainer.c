/* runtime/trainer.c - a spec in training
 *
 * DESIGN. The loop advances by runs of steps (plan_train) that end where something is due: a test,
 * a checkpoint, the end of the stretch, or the time to say how it goes. Where a run ends never
 * changes its bits. `position` (epoch, samples of it done) and `step` say where the run is; with
 * the parameters, the schedule's and the stop rules' state, and the best parameters so far, they are
 * all that a checkpoint holds (trainer_state.c).
 */
#include "runtime/trainer_int.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/files.h"
#include "engine/model.h"
#include "engine/test.h"

/* The most steps told in one event; also bounds how late a stop is noticed. */
enum { RUN_STEPS = 2048 };
/* A run of steps aims at this long, so that progress is shown and Ctrl-C is heard at once. */
static const double RUN_SECONDS = 0.05;

/* ------------------------------------------------------------------ life */

static int open_data(struct trainer *t, struct err *err)
{
    const struct job_spec *s = t->spec;

    if (dataset_open_parts(s->data, s->dir, DATASET_TRAIN, NULL, s->seed, s->batch, t->parts,
                           &t->data, err) < 0)
        return -(int)err->code;
    if (!json_object_get(s->data, "test") && !json_object_get(s->data, "split"))
        return 0;
    return dataset_open_parts(s->data, s->dir, DATASET_TEST, t->data, s->seed, s->batch, t->parts,
                              &t->test_data, err);
}

static int make_plan(struct trainer *t, int threads, struct err *err)
{
    const struct job_spec *s = t->spec;
    int n_fields;
    const struct field *fields = dataset_fields(t->data, &n_fields);

    if (graph_build(s->model, fields, n_fields, dataset_classes(t->data), &t->graph, err) < 0)
        return -(int)err->code;
    struct plan_config config = {
        .batch = s->batch, .shards = s->shards, .threads = threads ? threads : s->threads,
        .train = true, .shared = t->shared, .chain = t->chained, .seed = s->seed,
        .loss = s->loss, .optimizer = s->optimizer, .clip = s->clip,
    };
    if (plan_new(t->graph, fields, n_fields, &config, &t->plan, err) < 0)
        return -(int)err->code;
    return metrics_new(s->metric, s->n_metrics, dataset_classes(t->data), t->plan->output->c,
                       &t->metrics, err);
}

static int load_initial(struct trainer *t, struct err *err)
{
    const struct job_spec *s = t->spec;

    if (s->order) {
        OWN_MEM char *path = files_resolve(s->dir, s->order);
        if (dataset_set_order(t->data, path, err) < 0)
            return -(int)err->code;
    }
    if (!s->init)
        return 0;
    OWN_MEM char *path = files_resolve(s->dir, s->init);
    OWN(safetensors) file = NULL;
    if (safetensors_open(path, &file, err) < 0)
        return err_add(err, "init");
    return model_load(t->plan, file, path, false, err);
}

/* Room for the best parameters, where the spec keeps them. */
static int make_best(struct trainer *t, struct err *err)
{
    size_t bytes = plan_copy_bytes(t->plan);

    if (!t->spec->checkpoint_best || !t->test_data)
        return 0;
    t->best = calloc(1, bytes + 1);
    t->spare = calloc(1, bytes + 1);
    return t->best && t->spare ? 0 : err_set(err, ERR_NOMEM, "no memory for the best parameters "
                                             "(2 x %zu bytes)", bytes);
}

/* The start of a run: initial weights, nothing done. */
static int start(struct trainer *t, struct err *err)
{
    const struct job_spec *s = t->spec;
    long rows = dataset_rows(t->data);

    t->at = (struct place){ .best = NAN, .best_step = -1, .best_loss = NAN };
    t->test = (struct test_result){ 0 };
    t->kept_step = -1;
    if (rows > 0)
        t->at.steps_in_epoch = (rows + s->batch - 1) / s->batch;
    plan_init(t->plan);
    plan_set_chain(t->plan, 0);
    t->plan->lr_factor = 1;
    if (load_initial(t, err) < 0 ||
        schedule_parse(s->schedule, s->epochs, t->plan->optim[0].lr, &t->schedule, err) < 0)
        return spec_locate(s, err);
    t->plan->warmup = t->schedule.warmup;
    return 0;
}

static int make(const struct job_spec *spec, int threads, bool shared, bool chained,
                const struct parts *parts, struct trainer **out, struct err *err)
{
    OWN(trainer) t = calloc(1, sizeof *t);

    if (!t || !(t->results = calloc(RUN_STEPS, sizeof *t->results)))
        return err_set(err, ERR_NOMEM, "no memory for a trainer");
    t->spec = spec;
    t->shared = shared;
    t->chained = chained;
    t->parts = parts;
    t->saved_at = clock_seconds();
    t->report_every = REPORT_EVERY;
    if (open_data(t, err) < 0 || make_plan(t, threads, err) < 0)
        return spec_locate(spec, err);
    if (make_best(t, err) < 0)
        return -(int)err->code;
    if (dataset_rows(t->data) == 0)
        return err_set(err, ERR_INVALID, "%s: the training set has no rows", spec->path);
    if (start(t, err) < 0)
        return -(int)err->code;
    *out = TAKE(t);
    return 0;
}

int trainer_new(const struct job_spec *spec, int threads, struct trainer **out, struct err *err)
{
    return make(spec, threads, false, false, NULL, out, err);
}

int trainer_new_shared(const struct job_spec *spec, int threads, const struct parts *parts,
                       struct trainer **out, struct err *err)
{
    return make(spec, threads, true, false, parts, out, err);
}

int trainer_new_chained(const struct job_spec *spec, int threads, struct trainer **out,
                        struct err *err)
{
    return make(spec, threads, false, true, NULL, out, err);
}

int trainer_reset(struct trainer *t, struct err *err) { return start(t, err); }

void trainer_free(struct trainer *t)
{
    if (!t)
        return;
    plan_free(t->plan);
    graph_free(t->graph);
    metrics_free(t->metrics);
    dataset_free(t->test_data);
    dataset_free(t->data);
    free(t->best);
    free(t->spare);
    free(t->results);
    free(t);
}

void trainer_every_step(struct trainer *t) { t->every_step = true; }
void trainer_report_every(struct trainer *t, long steps) { t->report_every = steps; }
long trainer_reports(const struct trainer *t) { return t->report_every; }
void trainer_set_tester(struct trainer *t,
                        int (*tester)(void *arg, struct test_result *out, struct err *err),
                        bool (*intact)(void *arg), void *arg)
{
    t->tester = tester;
    t->intact = intact;
    t->tester_arg = arg;
}
void trainer_stop(struct trainer *t) { atomic_store(&t->stop, 1); }
struct plan *trainer_plan(struct trainer *t) { return t->plan; }
struct dataset *trainer_data(struct trainer *t) { return t->data; }
struct dataset *trainer_test_data(struct trainer *t) { return t->test_data; }
const struct job_spec *trainer_spec(const struct trainer *t) { return t->spec; }
const struct graph *trainer_graph(const struct trainer *t) { return t->graph; }
long trainer_step(const struct trainer *t) { return t->at.step; }
bool trainer_settled(const struct trainer *t) { return !(t->at.due & DUE_TEST); }

bool trainer_best(const struct trainer *t, struct best *out)
{
    if (t->at.best_step < 0)
        return false;
    *out = (struct best){ .step = t->at.best_step, .epoch = t->at.best_epoch,
                          .metric = t->spec->checkpoint_best, .value = t->at.best,
                          .params = t->best, .test.samples = t->at.best_samples };
    trainer_name_test(t, &out->test);
    memcpy(out->test.value, t->at.best_test, sizeof out->test.value);
    return true;
}

bool trainer_delivers_best(const struct trainer *t)
{
    return t->spec->patience && t->at.best_step >= 0 && t->at.over != OVER_BOUND;
}

/* ------------------------------------------------------------------ tests */

void trainer_name_test(const struct trainer *t, struct test_result *out)
{
    out->n = metrics_count(t->metrics);
    for (int i = 0; i < out->n; i++)
        out->name[i] = metrics_name(t->metrics, i);
}

void trainer_last_test(const struct trainer *t, struct test_result *out, long *out_step,
                       int *out_epoch)
{
    *out = t->test;
    *out_step = t->at.test_step;
    *out_epoch = t->at.test_epoch;
}

int trainer_test(struct trainer *t, struct test_result *out, struct err *err)
{
    long samples;

    if (!t->test_data)
        return err_set(err, ERR_CONFLICT, "%s: has no test set (add data.test or data.split)",
                       t->spec->path);
    if (t->kept_step == t->at.step) {
        *out = t->kept;
        return 0;
    }
    if (plan_test(t->plan, t->test_data, t->metrics, &samples, err) < 0)
        return -(int)err->code;
    trainer_name_test(t, out);
    out->samples = samples;
    for (int i = 0; i < out->n; i++)
        out->value[i] = metrics_value(t->metrics, i);
    t->kept = *out;
    t->kept_step = t->shared ? t->at.step : -1;
    return 0;
}

/* "test_accuracy" or "accuracy"; NAN when the test does not have it. */
static double test_value(const struct test_result *r, const char *metric)
{
    if (strncmp(metric, "test_", 5) == 0)
        metric += 5;
    for (int i = 0; i < r->n; i++)
        if (strcmp(r->name[i], metric) == 0)
            return r->value[i];
    return NAN;
}

static bool is_better(const char *metric, double value, double best)
{
    if (strncmp(metric, "test_", 5) == 0)
        metric += 5;
    if (isnan(best))
        return !isnan(value);
    return metrics_larger_is_better(metric) ? value > best : value < best;
}

/* Fills why and returns which stop rule is fulfilled; 0: none. */
static int check_stop(struct trainer *t, char *why, size_t size)
{
    const struct job_spec *s = t->spec;

    for (int i = 0; i < s->n_stops; i++) {
        double v = test_value(&t->test, s->stop[i].metric);
        if (s->stop[i].above ? v > s->stop[i].bound : v < s->stop[i].bound) {
            snprintf(why, size, "%s %.6g is %s %.6g", s->stop[i].metric, v,
                     s->stop[i].above ? "above" : "below", s->stop[i].bound);
            return OVER_BOUND;
        }
    }
    double loss = t->test.value[0];
    if (is_better("loss", loss, t->at.best_loss)) {
        t->at.best_loss = loss;
        t->at.waited = 0;
    } else if (s->patience && ++t->at.waited >= s->patience) {
        snprintf(why, size, "no better test loss in %d tests (best %.6g)", s->patience,
                 t->at.best_loss);
        return OVER_PATIENCE;
    }
    return 0;
}

/* ------------------------------------------------------------------ the loop */

struct fit {
    struct trainer *t;
    train_handler handler;
    void *arg;
    struct fit_result *out;
};

static int tell(struct fit *f, struct train_event *e)
{
    struct trainer *t = f->t;

    e->step = t->at.step;
    e->epoch = t->at.epoch;
    e->epoch_steps = (t->at.done + t->spec->batch - 1) / t->spec->batch;
    e->steps_in_epoch = t->at.steps_in_epoch;
    e->samples_per_s = t->seconds > 0 ? (double)t->samples / t->seconds : 0;
    if (f->handler && f->handler(f->arg, t, e))
        trainer_stop(t);
    return 0;
}

/* Keeps the parameters of a test that is the best so far; of equal ones the first stays. Nothing is
 * kept of what was read from others after this worker was left out: ERR_AGAIN, the test stays due. */
static int keep_best(struct trainer *t, const struct test_result *got, struct err *err)
{
    const char *metric = t->spec->checkpoint_best;
    double value = metric ? test_value(got, metric) : NAN;

    if (!t->best || !is_better(metric, value, t->at.best))
        return 0;
    plan_copy(t->plan, t->spare);
    if (t->intact && !t->intact(t->tester_arg))
        return err_set(err, ERR_AGAIN, "the test of step %ld was given up", t->at.step);
    float *old = t->best;
    t->best = t->spare;
    t->spare = old;
    t->at.best = value;
    t->at.best_step = t->at.step;
    t->at.best_epoch = t->at.epoch;
    memcpy(t->at.best_test, got->value, sizeof t->at.best_test);
    t->at.best_samples = got->samples;
    return 0;
}

static int run_test(struct fit *f, struct err *err)
{
    struct trainer *t = f->t;

    struct test_result got = { 0 };
    trainer_name_test(t, &got);
    if ((t->tester ? t->tester(t->tester_arg, &got, err) : trainer_test(t, &got, err)) < 0 ||
        keep_best(t, &got, err) < 0)
        return -(int)err->code;
    t->test = got;
    t->at.test_step = t->at.step;
    t->at.test_epoch = t->at.epoch;
    t->at.due &= ~DUE_TEST;
    if (t->schedule.kind == SCHEDULE_PLATEAU)
        t->plan->lr_factor = schedule_test(&t->schedule, test_value(&t->test, t->schedule.metric));
    if (!t->at.over)
        t->at.over = check_stop(t, t->at.why, sizeof t->at.why);
    return tell(f, &(struct train_event){ .kind = EVENT_TEST, .test = &t->test });
}

/* Steps until `every` is due, counting from the start of the run. */
static long until(const struct every *every, long step)
{
    if (every->unit != EVERY_STEPS || every->n <= 0)
        return LONG_MAX;
    return every->n - step % every->n;
}

static long min_long(long a, long b) { return a < b ? a : b; }

/* The clock grows the runs until one takes about RUN_SECONDS. */
static void pace(struct trainer *t, long steps, double seconds)
{
    if (seconds * 2 < RUN_SECONDS && steps == t->run_steps)
        t->run_steps = min_long(t->run_steps * 2, RUN_STEPS);
    else if (seconds > RUN_SECONDS * 2 && t->run_steps > 1)
        t->run_steps /= 2;
}

static int check_finite(const struct trainer *t, long n, struct err *err)
{
    for (long i = 0; i < n; i++)
        if (!isfinite(t->results[i].loss))
            return err_set(err, ERR_DIVERGED, "the loss is %g at step %ld (epoch %d): training "
                           "diverged (try a lower learning rate, or clip: {norm: 1})",
                           t->results[i].loss, t->results[i].step + 1, t->at.epoch + 1);
    return 0;
}

/* The loss that every output shows for a step: the mean over the samples since the last step that is
 * a multiple of report_every. Here alone it is computed; what it needs is part of the state. */
static void report_loss(struct trainer *t, long n)
{
    for (long i = 0; i < n; i++) {
        struct step_result *r = &t->results[i];
        if (r->step % t->report_every == 0)
            t->at.loss_sum = t->at.loss_samples = 0;
        t->at.loss_sum += r->loss * r->n;
        t->at.loss_samples += r->n;
        r->reported = t->at.loss_sum / (double)t->at.loss_samples;
    }
}

/* Does what is due at this place. */
static int settle(struct fit *f, struct err *err)
{
    struct trainer *t = f->t;

    if ((t->at.due & DUE_TEST) && run_test(f, err) < 0)
        return -(int)err->code;
    if (t->at.due & DUE_CHECKPOINT) {
        t->at.due &= ~DUE_CHECKPOINT;
        tell(f, &(struct train_event){ .kind = EVENT_CHECKPOINT });
    }
    return 0;
}

static bool is_checkpoint_due(struct trainer *t)
{
    const struct every *every = &t->spec->checkpoint;

    if (every->unit == EVERY_STEPS)
        return t->at.step % every->n == 0;
    if (every->unit != EVERY_SECONDS || clock_seconds() - t->saved_at < (double)every->n)
        return false;
    t->saved_at = clock_seconds();
    return true;
}

/* One run of steps inside a stretch; `pos` moves on. */
static int run_steps(struct fit *f, const struct stretch *data, long *pos, struct err *err)
{
    struct trainer *t = f->t;
    const struct job_spec *s = t->spec;
    long left = (data->n - *pos + s->batch - 1) / s->batch;
    long steps = min_long(left, t->every_step ? 1 : t->run_steps);

    if (t->test_data)
        steps = min_long(steps, until(&s->test, t->at.step));
    steps = min_long(steps, until(&s->checkpoint, t->at.step));
    double start = clock_seconds();
    long n = plan_train(t->plan, data, *pos, steps, (uint64_t)t->at.step, t->results, NULL, NULL);
    double took = clock_seconds() - start;
    long samples = min_long(n * s->batch, data->n - *pos);
    t->seconds += took;
    t->samples += samples;
    pace(t, n, took);
    if (check_finite(t, n, err) < 0)
        return -(int)err->code;
    report_loss(t, n);
    *pos += samples;
    t->at.done += samples;
    t->at.step += n;
    if (n > 0) {
        if (t->test_data && s->test.unit == EVERY_STEPS && t->at.step % s->test.n == 0)
            t->at.due |= DUE_TEST;
        if (is_checkpoint_due(t))
            t->at.due |= DUE_CHECKPOINT;
        tell(f,
             &(struct train_event){ .kind = EVENT_STEPS, .results = t->results, .n_results = n });
    }
    if (plan_abandoned(t->plan))
        return err_set(err, ERR_AGAIN, "step %ld was given up", t->at.step + 1);
    return settle(f, err);
}

static bool is_over(const struct fit *f)
{
    return f->t->at.over || atomic_load(&f->t->stop);
}

static int run_epoch(struct fit *f, struct err *err)
{
    struct trainer *t = f->t;
    struct stretch data;

    if (t->schedule.kind != SCHEDULE_PLATEAU)
        t->plan->lr_factor = schedule_epoch(&t->schedule, t->at.epoch);
    if (t->shared)
        dataset_share(t->data, t->plan->shards, t->plan->from, t->plan->to);
    if (dataset_rewind(t->data, t->at.epoch, t->at.done, err) < 0)
        return -(int)err->code;
    do {
        if (dataset_stretch(t->data, &data, err) < 0)
            return -(int)err->code;
        for (long pos = 0; pos < data.n && !is_over(f);)
            if (run_steps(f, &data, &pos, err) < 0)
                return -(int)err->code;
    } while (data.n && !data.last && !is_over(f));
    return 0;
}

static int end_epoch(struct fit *f, struct err *err)
{
    struct trainer *t = f->t;
    const struct job_spec *s = t->spec;

    t->at.steps_in_epoch = (t->at.done + s->batch - 1) / s->batch;
    tell(f, &(struct train_event){ .kind = EVENT_EPOCH });
    t->at.epoch++;
    t->at.done = 0;
    if (t->test_data && s->test.unit == EVERY_EPOCHS && t->at.epoch % s->test.n == 0)
        t->at.due |= DUE_TEST;
    if (s->checkpoint.unit == EVERY_EPOCHS && t->at.epoch % s->checkpoint.n == 0)
        t->at.due |= DUE_CHECKPOINT;
    return settle(f, err);
}

/* The whole epoch was seen: not one that a stop cut short. */
static bool epoch_done(const struct trainer *t)
{
    long rows = dataset_rows(t->data);
    return rows >= 0 && t->at.done >= rows;
}

int trainer_fit(struct trainer *t, train_handler handler, void *arg, struct fit_result *out,
                struct err *err)
{
    struct fit f = { t, handler, arg, out };

    *out = (struct fit_result){ 0 };
    t->run_steps = 1;
    atomic_store(&t->stop, 0);
    if (settle(&f, err) < 0)
        return -(int)err->code;
    while (t->at.epoch < t->spec->epochs && !is_over(&f)) {
        if (run_epoch(&f, err) < 0)
            return -(int)err->code;
        if (!epoch_done(t))
            break;
        if (end_epoch(&f, err) < 0)
            return -(int)err->code;
    }
    out->steps = t->at.step;
    out->epochs = t->at.epoch;
    out->seconds = t->seconds;
    out->samples_per_s = t->seconds > 0 ? (double)t->samples / t->seconds : 0;
    out->test = t->test;
    snprintf(out->why, sizeof out->why, "%s", t->at.why);
    if (t->at.over)
        return 0;
    out->stopped = t->at.epoch < t->spec->epochs;
    if (out->stopped)
        snprintf(out->why, sizeof out->why, "stopped");
    else
        snprintf(out->why, sizeof out->why, "all %d epochs done", t->spec->epochs);
    return 0;
}
