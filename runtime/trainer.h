/* runtime/trainer.h - a spec in training: data, model, steps, tests, stop rules
 *
 * A trainer opens the data of a spec, plans its model and goes through the epochs. It writes no
 * files by itself and prints nothing: whoever drives it (the command line, a C program) learns of
 * each stretch of steps, test and epoch through events, and may test, save or stop from there.
 *
 * A run is a function of its spec and data: the same bits after a stop and a resume as without.
 */
#ifndef MUSTER_RUNTIME_TRAINER_H
#define MUSTER_RUNTIME_TRAINER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/own.h"
#include "engine/metrics.h"
#include "engine/plan.h"
#include "spec/spec.h"

struct trainer;

/* What a test found; values[0] is the loss. Names are borrowed from the trainer. */
struct test_result {
    int n;
    const char *name[METRICS_MAX];
    double value[METRICS_MAX];
    long samples;
};

enum event_kind {
    EVENT_STEPS,        /* some steps are done, or one when every step is told: results of each */
    EVENT_TEST,         /* after a test */
    EVENT_EPOCH,        /* an epoch is over */
    EVENT_CHECKPOINT,   /* the spec's schedule calls for a checkpoint now */
};

struct train_event {
    enum event_kind kind;
    long step;                          /* steps done since the start of the run */
    int epoch;                          /* 0, 1, ...; of the last step */
    long epoch_steps, steps_in_epoch;   /* done in this epoch; in a whole one (0: not yet known) */
    const struct step_result *results;  /* EVENT_STEPS */
    long n_results;
    const struct test_result *test;     /* EVENT_TEST */
    double samples_per_s;               /* of training alone, since the start of this process */
};

/* Non-zero stops the run after this event. */
typedef int (*train_handler)(void *arg, struct trainer *t, const struct train_event *e);

/* How a run ended. */
struct fit_result {
    long steps;
    int epochs;                 /* completed */
    char why[160];              /* "all 20 epochs done", "test_loss 9.98 is below 10", "stopped" */
    bool stopped;               /* by trainer_stop or a handler, not by the spec */
    struct test_result test;    /* the last one; n == 0: none */
    double samples_per_s, seconds;
};

/* Opens data, plans and initialises. `threads` 0: the spec's. `keep_grads` for tests. */
int trainer_new(const struct job_spec *spec, int threads, struct trainer **out, struct err *err);
void trainer_free(struct trainer *t);
OWN_DEFINE(trainer)

/* The same for a worker that is one of several: its plan leaves gradients and sums to the hooks of
 * plan_set_share. Of files that are among `parts` (NULL: none are) it reads what it needs. */
int trainer_new_shared(const struct job_spec *spec, int threads, const struct parts *parts,
                       struct trainer **out, struct err *err);

/* The same in one process, with the chain of all steps (plan_chain), which costs a little. */
int trainer_new_chained(const struct job_spec *spec, int threads, struct trainer **out,
                        struct err *err);

/* Tells every single step (default: stretches of steps). */
void trainer_every_step(struct trainer *t);
/* "loss", wherever it is shown, is step_result.reported: the mean over the samples of the steps
 * since the last multiple of so many (default: REPORT_EVERY), up to and with this one. */
enum { REPORT_EVERY = 100 };
void trainer_report_every(struct trainer *t, long steps);
long trainer_reports(const struct trainer *t);          /* how many */

/* Runs to the end, from wherever the trainer is; at the end, it says so again. ERR_AGAIN when a
 * hook of the plan's share or the tester gave up: nothing of that step has happened. ERR_DIVERGED
 * when a loss is not a number, with step and epoch in the text. */
int trainer_fit(struct trainer *t, train_handler handler, void *arg, struct fit_result *out,
                struct err *err);
/* Fills *out in place of a test here: of several workers one tests and tells the others. ERR_AGAIN
 * leaves the test due and ends trainer_fit with it. `intact`: what was read from other workers for
 * a copy of the parameters was still of this step; false gives the test up in the same way. */
void trainer_set_tester(struct trainer *t,
                        int (*tester)(void *arg, struct test_result *out, struct err *err),
                        bool (*intact)(void *arg), void *arg);
/* From a handler, another thread or a signal handler. */
void trainer_stop(struct trainer *t);

/* The test set now. ERR_CONFLICT when the spec has none. */
int trainer_test(struct trainer *t, struct test_result *out, struct err *err);

/* The names that a test of this trainer has; the last test with its values (n == 0: none), its step
 * and epoch. */
void trainer_name_test(const struct trainer *t, struct test_result *out);
void trainer_last_test(const struct trainer *t, struct test_result *out, long *out_step,
                       int *out_epoch);

/* The best test so far by the spec's checkpoint.best, the first of equal ones; a value that is not
 * a number is never best. Borrowed until the next test or load. false: there was none. */
struct best {
    long step;
    int epoch;
    const char *metric;
    double value;
    struct test_result test;
    const float *params;        /* a plan_copy */
};
bool trainer_best(const struct trainer *t, struct best *out);
/* What a run that is over hands out: the best parameters where it has stop.patience, unless a bound
 * of `stop` ended it, which the last ones meet; else the last ones. */
bool trainer_delivers_best(const struct trainer *t);

/* Everything that decides the rest of the run. */
int trainer_save(const struct trainer *t, const char *path, struct err *err);
int trainer_load(struct trainer *t, const char *path, struct err *err);

/* The same in memory, as a plan stores it: for a worker with the same spec. A trainer at the start
 * again is trainer_reset. ERR_INVALID: the bytes are of another model. */
int trainer_state_get(const struct trainer *t, struct buf *out, struct err *err);
int trainer_state_set(struct trainer *t, const void *state, size_t n, struct err *err);
int trainer_reset(struct trainer *t, struct err *err);

struct plan *trainer_plan(struct trainer *t);
struct dataset *trainer_data(struct trainer *t);        /* the training set */
struct dataset *trainer_test_data(struct trainer *t);   /* NULL: there is none */
const struct job_spec *trainer_spec(const struct trainer *t);
const struct graph *trainer_graph(const struct trainer *t);
long trainer_step(const struct trainer *t);
bool trainer_settled(const struct trainer *t);          /* no test is due at this step, or it is done */
/* What a checkpoint must have been made by to be of this run: a digest of the spec, epochs
 * apart. */
void trainer_mark(const struct trainer *t, char out[65]);

#endif
