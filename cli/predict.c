/* cli/predict.c - muster predict: rows in, answers out */
#include <stdbool.h>
#include <stdio.h>

#include "base/files.h"
#include "base/own.h"
#include "cli/checkpoint.h"
#include "cli/cli.h"
#include "serving/predictor.h"

struct args {
    const char *input, *format, *as, *output, *on_error, *checkpoint;
    struct option_list id;
    long threads;
};

static const struct option options[] = {
    { "input", 'i', "FILE", "the rows; a target column is not needed", OPTION_TEXT,
      offsetof(struct args, input) },
    { "format", 0, "csv|json|tfrecord|idx", "what FILE is (default: by its name)", OPTION_TEXT,
      offsetof(struct args, format) },
    { "as", 0, "csv|json|tfrecord", "how to answer (default: as the rows came)", OPTION_TEXT,
      offsetof(struct args, as) },
    { "id", 0, "COLUMN", "copy this column of FILE to each answer, as text; may be repeated",
      OPTION_LIST, offsetof(struct args, id) },
    { "on-error", 0, "stop|skip|fill", "a row that cannot be read: stop; an empty answer with the "
      "reason; fill values in (default: as in training)", OPTION_TEXT,
      offsetof(struct args, on_error) },
    { "output", 'o', "FILE", "where to write (default, and -: standard output)", OPTION_TEXT,
      offsetof(struct args, output) },
    { "checkpoint", 0, "best|last|STEP", "use these parameters of the run (default: the model's)",
      OPTION_TEXT, offsetof(struct args, checkpoint) },
    { "threads", 0, "N", "use N threads", OPTION_INT, offsetof(struct args, threads) },
    { 0 }
};

static int to_file(struct predictor *p, const struct predict_ask *ask, const char *path,
                   struct predict_told *told, struct err *err)
{
    OWN(file_writer) w = NULL;

    if (file_writer_output(path, &w, err) < 0)
        return -(int)err->code;
    FILE *f = file_writer_stream(w);
    if (!f)
        return err_set(err, ERR_NOMEM, "no memory to write %s", path);
    struct err why = { 0 };
    int rc = predictor_file(p, ask, f, told, &why);
    const bool lost = ferror(f);
    if (fclose(f) != 0 || lost || rc == 0)      /* the writer knows why it could not */
        return file_writer_commit(w, err);
    *err = why;
    return rc;
}

static int run(struct cli *c, int argc, char **argv, struct err *err)
{
    struct args a = { 0 };
    OWN(predictor) p = NULL;
    struct predict_told told = { 0 };
    int n = options_parse(options, argc, argv, &a, err);

    (void)c;
    if (n < 0)
        return n;
    if (n != 1 || !a.input)
        return cli_usage(&command_predict, err);
    const struct predict_ask ask = { .path = a.input, .format = a.format, .as = a.as,
                                     .on_error = a.on_error, .keep = a.id.item, .n_keep = a.id.n };
    if (predictor_open(argv[0], 0, (int)a.threads, false, &p, err) < 0 ||
        checkpoint_load(p, argv[0], a.checkpoint, err) < 0)
        return -(int)err->code;
    int rc = a.output ? to_file(p, &ask, a.output, &told, err)
                      : predictor_file(p, &ask, stdout, &told, err);
    if (rc == 0 && told.unread)
        fprintf(stderr, "muster: %ld of %ld rows could not be read: their answers are empty and say "
                "why; the first: %s\n", told.unread, told.rows, told.first);
    return rc;
}

const struct command command_predict = {
    .name = "predict",
    .args = "MODEL",
    .summary = "answer for the rows of a file: labels with probabilities, or values",
    .example = "muster predict runs/taxi-tabular --input trips.csv --as json",
    .options = options,
    .run = run,
};
