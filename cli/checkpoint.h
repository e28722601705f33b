/* cli/checkpoint.h - --checkpoint best|last|STEP of evaluate, predict and export */
#ifndef MUSTER_CLI_CHECKPOINT_H
#define MUSTER_CLI_CHECKPOINT_H

#include "serving/predictor.h"

/* The parameters that `which` names, of the run that the predictor was opened from. NULL: nothing to
 * do. ERR_MISSING lists what the run keeps. */
int checkpoint_load(struct predictor *p, const char *dir, const char *which, struct err *err);

#endif
