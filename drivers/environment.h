/* drivers/environment.h - Python environments, found by what is in them
 *
 * Two layers, each in DATA/envs/KEY, where KEY is the SHA-256 of all that went into it:
 *   base   a virtual environment: interpreter, packages of the runtime's row, of the job, and
 *          those that the job's packages name in their metadata. Shared by every job that asks for
 *          the same.
 *   top    the job's own packages alone, in DATA/envs/KEY/site. Changing a line of a program makes
 *          this one new, in a second or two, and the base is taken as it is.
 * A layer is built beside its place (KEY.tmp, which the builder sees as KEY, since virtual
 * environments know their path) and renamed; of two jobs that want the same, one builds and the
 * other waits. Builders run in the sandbox: a setup.py is anybody's program. pip's words go to
 * the job's log. uv takes the place of venv and pip where it is installed.
 */
#ifndef MUSTER_DRIVERS_ENVIRONMENT_H
#define MUSTER_DRIVERS_ENVIRONMENT_H

#include "drivers/runtimes.h"
#include "drivers/task.h"

struct environment {
    char base[PATH_MAX];
    char top[PATH_MAX];         /* "": the job has no packages */
};

/* At the end of a requirement: without what it requires itself. */
#define ENVIRONMENT_ALONE " --no-deps"

/* `requirements`: texts, checked. `layered` false: what the packages need is not known, and is
 * installed with them. `packages`: paths, checked (drivers/archive.h). */
struct environment_request {
    const struct task_order *order;
    const struct runtime *runtime;
    json_t *requirements;
    const json_t *packages;
    bool layered, isolated;     /* isolated: one of them has a pyproject.toml */
    task_step *step;
    void *step_arg;
};

int environment_make(const struct environment_request *r, struct environment *out, struct err *err);

/* The interpreter of a row may be anywhere; what it is installed in is needed to run it. */
void environment_expose_python(struct task *t, const struct runtime *r);

/* A name from the package index, perhaps with a version: no address, no option of pip. */
int environment_check_requirement(const char *text, struct err *err);

/* ------------------------------------------------------------------ how long they stay
 *
 * A layer stays for as long as a job uses it, and then until it has not been used for so many days,
 * or all together take more room than they may: those that were used longest ago go first
 * (runtimes.yaml says how much; runtimes_keep). It is built again when a job asks for it. */

/* This process, a keeper, uses the layer until it ends. Before it is looked whether it is there. */
int environment_hold(const char *layer, struct err *err);

/* At a keeper's end: where it built a layer, others may have to go. */
void environment_done(const char *data_dir);

/* Removes what may go. Any process may, at any time, also several at once. */
int environment_collect(const char *data_dir, int *out_removed, struct err *err);

/* For serve --check: how many there are, and their size. ERR_IO: one is damaged. */
int environment_check(const char *data_dir, int *out_n, double *out_bytes, struct err *err);

/* flock of a file that may be removed by whoever holds it alone; -1 with errno. */
int environment_lock(const char *path, int how);

#endif
