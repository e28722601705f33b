/* runtime/rerun.h - a finished run, opened again with its own spec and data */
#ifndef MUSTER_RUNTIME_RERUN_H
#define MUSTER_RUNTIME_RERUN_H

#include "base/err.h"
#include "base/own.h"
#include "runtime/trainer.h"

struct rerun;

/* `dir` holds a run.json. The trainer is at the start of the run. */
int rerun_open(const char *dir, int threads, struct rerun **out, struct err *err);
void rerun_free(struct rerun *r);
OWN_DEFINE(rerun)

/* The weights that the run ended with. ERR_CONFLICT when they are not what run.json says. */
int rerun_load(struct rerun *r, struct err *err);

struct trainer *rerun_trainer(struct rerun *r);
const char *rerun_digest(const struct rerun *r);        /* as recorded */
long rerun_steps(const struct rerun *r);                /* as recorded */
const json_t *rerun_document(const struct rerun *r);    /* run.json */

#endif
