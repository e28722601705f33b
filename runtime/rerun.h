/* runtime/rerun.h - a finished run, opened again with its own spec and data
 *
 * What a run recorded of its steps are marks: the chain (plan_chain) after the last step of each
 * line of metrics.jsonl, and after the last step of all. A run that is trained again here, by one
 * process, however many workers made it, must come by all of them.
 */
#ifndef MUSTER_RUNTIME_RERUN_H
#define MUSTER_RUNTIME_RERUN_H

#include "base/err.h"
#include "base/own.h"
#include "runtime/trainer.h"

struct rerun;

struct rerun_mark {
    long step;                  /* steps done */
    uint64_t chain;
};

/* `dir` holds a run.json. The trainer is at the start of the run, and keeps the chain when the run
 * has recorded one. */
int rerun_open(const char *dir, int threads, struct rerun **out, struct err *err);
void rerun_free(struct rerun *r);
OWN_DEFINE(rerun)

/* The parameters of the model (`which` NULL), or others that the run keeps (rundir_weights).
 * ERR_CONFLICT when the model or the last ones are not what run.json says. */
int rerun_load(struct rerun *r, const char *which, struct err *err);

/* Into the state of a kept checkpoint. */
int rerun_restore(struct rerun *r, long step, struct err *err);
/* In the order of steps; none: the run recorded no chain. Borrowed. */
const struct rerun_mark *rerun_marks(const struct rerun *r, long *out_n);

struct trainer *rerun_trainer(struct rerun *r);
const char *rerun_digest(const struct rerun *r);        /* as recorded */
long rerun_steps(const struct rerun *r);                /* as recorded */
const json_t *rerun_document(const struct rerun *r);    /* run.json */

#endif
