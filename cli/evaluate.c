/* cli/evaluate.c - muster evaluate: how good a model is */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/own.h"
#include "cli/checkpoint.h"
#include "cli/cli.h"
#include "runtime/rerun.h"
#include "serving/predictor.h"

struct args {
    const char *data, *format, *checkpoint;
    long threads;
    int json;
};

static const struct option options[] = {
    { "data", 0, "FILE", "rows to test on (default: the test set of the run's spec)", OPTION_TEXT,
      offsetof(struct args, data) },
    { "format", 0, "csv|json|tfrecord", "what FILE is (default: by its name)", OPTION_TEXT,
      offsetof(struct args, format) },
    { "checkpoint", 0, "best|last|STEP", "use these parameters of the run (default: the model's)",
      OPTION_TEXT, offsetof(struct args, checkpoint) },
    { "threads", 0, "N", "use N threads", OPTION_INT, offsetof(struct args, threads) },
    { "json", 0, NULL, "print one object", OPTION_FLAG, offsetof(struct args, json) },
    { 0 }
};

static void print_result(const struct test_result *r, long left_out, int json)
{
    if (!json) {
        for (int i = 0; i < r->n; i++)
            printf("%-10s %.6g\n", r->name[i], r->value[i]);
        printf("%-10s %ld\n", "samples", r->samples);
        if (left_out)
            printf("%-10s %ld (rows that cannot be read; data.on_error)\n", "left out", left_out);
        return;
    }
    fputs("{", stdout);
    for (int i = 0; i < r->n; i++) {
        if (isfinite(r->value[i]))
            printf("\"%s\": %.9g, ", r->name[i], r->value[i]);
        else
            printf("\"%s\": null, ", r->name[i]);  /* JSON has no word for it */
    }
    printf("\"samples\": %ld, \"left_out\": %ld}\n", r->samples, left_out);
}

static int on_file(const char *model, const struct args *a, struct err *err)
{
    OWN(predictor) p = NULL;
    OWN(metrics) m = NULL;
    struct test_result r;
    long left_out = 0;

    if (predictor_open(model, 0, (int)a->threads, true, &p, err) < 0 ||
        checkpoint_load(p, model, a->checkpoint, err) < 0 ||
        predictor_evaluate(p, a->data, a->format, &m, &r.samples, &left_out, err) < 0)
        return -(int)err->code;
    r.n = metrics_count(m);
    for (int i = 0; i < r.n; i++) {
        r.name[i] = metrics_name(m, i);
        r.value[i] = metrics_value(m, i);
    }
    print_result(&r, left_out, a->json);
    return 0;
}

/* The same plan, batch and rows as in training: the same numbers as its last test. */
static int on_test_set(const char *model, const struct args *a, struct err *err)
{
    OWN(rerun) again = NULL;
    struct test_result r;

    if (rerun_open(model, (int)a->threads, &again, err) < 0 ||
        rerun_load(again, a->checkpoint, err) < 0 ||
        trainer_test(rerun_trainer(again), &r, err) < 0)
        return -(int)err->code;
    print_result(&r, dataset_skipped(trainer_test_data(rerun_trainer(again))), a->json);
    return 0;
}

static int run(struct cli *c, int argc, char **argv, struct err *err)
{
    struct args a = { 0 };
    int n = options_parse(options, argc, argv, &a, err);

    (void)c;
    if (n < 0)
        return n;
    if (n != 1)
        return cli_usage(&command_evaluate, err);
    return a.data ? on_file(argv[0], &a, err) : on_test_set(argv[0], &a, err);
}

const struct command command_evaluate = {
    .name = "evaluate",
    .args = "MODEL",
    .summary = "test a model, on its test set or on a file",
    .example = "muster evaluate runs/fashion-lenet\n"
               "muster evaluate runs/taxi-tabular --checkpoint last",
    .options = options,
    .run = run,
};
