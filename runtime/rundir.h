/* runtime/rundir.h - what a run leaves behind
 *
 *   model.json             graph, feature columns, normalisation, labels: all that predict needs
 *   weights.safetensors    the model: the parameters after the last step, or with stop.patience
 *                          those of the best test (trainer_delivers_best)
 *   last.safetensors       the parameters after the last step, where the model has the best ones
 *   metrics.jsonl          a line for each stretch of steps and each test
 *   events.out.tfevents.*  the same for TensorBoard
 *   checkpoints/           step-N.safetensors, best.safetensors
 *   run.json               spec, identity, digest, how it ended; written last, so a run without it
 *                          has not ended
 * Files are replaced whole; metrics.jsonl is appended to, a line a write, and cut back to the
 * checkpoint's step when a run is resumed.
 */
#ifndef MUSTER_RUNTIME_RUNDIR_H
#define MUSTER_RUNTIME_RUNDIR_H

#include <stdbool.h>

#include "base/err.h"
#include "base/own.h"
#include "engine/model.h"
#include "runtime/trainer.h"

struct rundir;

/* A path that is free: runs/NAME, runs/NAME-2, ... */
void rundir_choose(const char *name, char *out, size_t size);

/* A directory belongs to one at a time, who has it until it is freed (and to the processes that it
 * forks): ERR_CONFLICT when another is at work there. */

/* `path` NULL: runs/NAME, or runs/NAME-2, ... ERR_CONFLICT when it holds another run already. */
int rundir_create(const char *path, const struct job_spec *spec, struct rundir **out,
                  struct err *err);
/* For a run to be resumed: *out_checkpoint (caller frees) is its newest good checkpoint; NULL:
 * none. */
int rundir_resume(const char *path, struct rundir **out, char **out_checkpoint, struct err *err);
/* For a coordinator, which may have been killed: the directory as it is, with the last step that
 * metrics.jsonl has a line for, the last test, and the newest good checkpoint (caller frees; NULL:
 * none). `mine`: the process that started it has the directory already. */
int rundir_open(const char *path, bool mine, struct rundir **out, long *out_logged,
                long *out_tested, char **out_checkpoint, struct err *err);
void rundir_free(struct rundir *r);
OWN_DEFINE(rundir)

const char *rundir_path(const struct rundir *r);
/* The largest step below `below` that the run at `path` keeps a checkpoint of; -1: none. */
long rundir_find_checkpoint(const char *path, long below);
const char *rundir_last_checkpoint(const struct rundir *r);     /* NULL: none in this process */
/* What is wrong with a newer checkpoint that was passed over on opening; NULL: nothing. */
const char *rundir_damaged(const struct rundir *r);

/* Before the first step: everything that could keep the model from being saved at the end is tried
 * now, and room for it is set aside. ERR_IO: the disk is full, or nothing can be written there. */
int rundir_rehearse(struct rundir *r, struct trainer *t, struct err *err);
/* The room alone, for a coordinator that was started again. */
int rundir_reserve(struct rundir *r, struct trainer *t, struct err *err);

/* The file that has the parameters of the run at `dir`: the model (NULL), "best", "last", or a
 * step's. ERR_MISSING lists what there is. */
int rundir_weights(const char *dir, const char *which, char *out, size_t size, struct err *err);

/* One event of a trainer: lines, scalars, and checkpoints when they are due. `log_every` steps are
 * told by one line. */
int rundir_record(struct rundir *r, struct trainer *t, const struct train_event *e, long log_every,
                  struct err *err);
/* A checkpoint now. */
int rundir_checkpoint(struct rundir *r, struct trainer *t, struct err *err);
/* model.json, weights and run.json; *out_digest is the model's. `more` (NULL: nothing) is put into
 * run.json too. */
int rundir_finish(struct rundir *r, struct trainer *t, const struct fit_result *fit, json_t *more,
                  char out_digest[65], struct err *err);
/* model.json and weights alone, for a program that saves from its event handler: the parameters as
 * they were when `copy` was taken. */
int rundir_save_copy(const char *path, struct trainer *t, const struct snapshot *copy,
                     struct err *err);

#endif
