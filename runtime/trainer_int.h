/* runtime/trainer_int.h - what the loop (trainer.c) and its state in files and memory
 * (trainer_state.c) share */
#ifndef MUSTER_RUNTIME_TRAINER_INT_H
#define MUSTER_RUNTIME_TRAINER_INT_H

#include <stdatomic.h>

#include "engine/schedule.h"
#include "runtime/trainer.h"

/* What is due at a place before the next step. */
enum { DUE_TEST = 1, DUE_CHECKPOINT = 2 };
/* Which stop rule has ended the run. */
enum { OVER_PATIENCE = 1, OVER_BOUND = 2 };

/* Where a run is: with parameters and optimizer state, all that decides the rest of it. Plain, so
 * that it travels as it is between workers of one program. */
struct place {
    long step;
    int epoch;
    long done;                          /* samples of this epoch */
    long steps_in_epoch;                /* 0: not yet known */
    double loss_sum;                    /* of the samples since the last report, and their number */
    long loss_samples;
    double best;                        /* of the spec's best metric; its step, -1: none yet */
    long best_step;
    int best_epoch;
    double best_test[METRICS_MAX];      /* all values of that test */
    long best_samples;
    double best_loss;                   /* of test_loss, for patience */
    int waited;                         /* tests without a better loss */
    int due;
    int over;                           /* OVER_*; `why` says it in words */
    char why[160];
    double lr_factor;
    double schedule_factor, schedule_best;
    int schedule_waited;
    int tests;                          /* values of the last test; 0: none yet */
    double test[METRICS_MAX];
    long test_samples;
    long test_step;                     /* when it was, and in which epoch */
    int test_epoch;
    uint64_t chain;
};

struct trainer {
    const struct job_spec *spec;
    const struct parts *parts;
    struct dataset *data, *test_data;
    struct graph *graph;
    struct plan *plan;
    struct metrics *metrics;
    struct schedule schedule;
    struct step_result *results;        /* (RUN_STEPS) */
    bool every_step;
    bool shared;                        /* one of several workers */
    bool chained;                       /* keeps the chain in any case */
    int (*tester)(void *arg, struct test_result *out, struct err *err);
    bool (*intact)(void *arg);
    void *tester_arg;
    long report_every;
    /* plan_copy of the best test so far; NULL: the spec keeps none. A new one is made in `spare`,
     * and takes the other's place once it is known to be good. */
    float *best, *spare;
    atomic_int stop;
    struct place at;
    double saved_at;                    /* by the clock, where checkpoints go by seconds */
    struct test_result test;
    /* Of several workers the one who tests may be told of another list meanwhile, and be asked for
     * the same test again: it has the same result, so it is kept. -1: there is none */
    struct test_result kept;
    long kept_step;
    /* clock of training alone */
    double seconds;
    long samples;
    long run_steps;                     /* how many steps RUN_SECONDS is worth */
};

#endif
