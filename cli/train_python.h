/* cli/train_python.h - muster train, for a distributed program of the user's own
 *
 * Python or anything else: a file given by --python, or a spec with `python` or `command`. It runs
 * as a group of processes on this machine (runtime/group.h); what it prints is passed on, each line
 * with its worker's rank before it when there are several. The exit code of muster is the
 * program's: 0, that of the worker that was lost last, or 128 and the signal's number.
 */
#ifndef MUSTER_CLI_TRAIN_PYTHON_H
#define MUSTER_CLI_TRAIN_PYTHON_H

#include "base/err.h"
#include "cli/cli.h"
#include "spec/spec.h"

/* Restarts of a group when --max-restarts does not say. */
enum { MAX_RESTARTS = 3 };

struct program_options {
    const char *out;            /* NULL: runs/NAME */
    const char *workers;        /* NULL: as the spec says */
    long max_restarts, threads; /* threads 0: cores / workers */
    int json, quiet, dry_run;
    char *const *args;          /* of the program, behind those of the spec */
    int n_args;
};

int train_script(struct cli *c, const char *script, const struct program_options *o,
                 struct err *err);
int train_program(struct cli *c, const struct job_spec *spec, const struct program_options *o,
                  struct err *err);

#endif
