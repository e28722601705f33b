/* cli/cli.h - what a command is, and how to add one
 *
 * A command is one file, cli/NAME.c, that defines `const struct command command_NAME`. To add one:
 * write the file, add X(NAME) to COMMANDS below (that is also its place in the help) and 'NAME.c'
 * to cli/meson.build. Help, `muster help NAME`, `muster NAME --help` and "did you mean" are loops
 * over the table.
 *
 *     static int run(struct cli *c, int argc, char **argv, struct err *err)
 *     {
 *         struct args a = { .threads = 0 };
 *         int n = options_parse(options, argc, argv, &a, err);
 *         if (n < 0)
 *             return n;
 *         if (n != 1)
 *             return cli_usage(&command_train, err);
 *         ... argv[0] is SPEC ...
 *     }
 *
 *     const struct command command_train = {
 *         .name = "train",
 *         .args = "SPEC",
 *         .summary = "train what a spec describes, on this machine",
 *         .example = "muster train examples/fit-a-line/train.yaml --set epochs=10",
 *         .options = options,
 *         .run = run,
 *     };
 *
 * `run` returns 0 or -code; main prints err.text as one line on stderr and exits with
 * err_exit(code). A command prints results on stdout, progress on stderr, and never exits itself.
 */
#ifndef MUSTER_CLI_CLI_H
#define MUSTER_CLI_CLI_H

#include "base/err.h"
#include "cli/options.h"

/* What the terminal can take. Colour needs a terminal, a TERM other than "dumb", no NO_COLOR. */
struct cli {
    int out_is_terminal, err_is_terminal;
    int color_err;
    int exit_code;      /* set by a command: main ends with it in place of the error's own */
};

struct command {
    const char *name;
    const char *args;                   /* "SPEC", "RUN [RUN]"; options are added by the help */
    const char *summary;                /* one line, verb first, no full stop */
    const char *example;                /* lines that work, "\n" between two */
    const char *more;                   /* further text of the help; NULL: none */
    const struct option *options;       /* NULL: none */
    /* argv without "muster NAME" */
    int (*run)(struct cli *c, int argc, char **argv, struct err *err);
    int hidden;                         /* not in the list of commands */
};

/* In the order of the help. */
#define COMMANDS(X) \
    X(train) \
    X(evaluate) \
    X(predict) \
    X(export) \
    X(verify) \
    X(torture) \
    X(worker) \
    X(resize) \
    X(top) \
    X(serve) \
    X(submit) \
    X(apply) \
    X(pipelines) \
    X(experiments) \
    X(runs) \
    X(recurring) \
    X(jobs) \
    X(storage) \
    X(image) \
    X(volumes) \
    X(env) \
    X(project) \
    X(secret) \
    X(config) \
    X(keeper) \
    X(help)

#define X(name) extern const struct command command_##name;
COMMANDS(X)
#undef X

/* By its name; NULL: there is none. */
const struct command *cli_find(const char *name);

/* ERR_INVALID: "usage: muster train SPEC ...". */
int cli_usage(const struct command *c, struct err *err);

#endif
