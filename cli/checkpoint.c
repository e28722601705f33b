/* cli/checkpoint.c - --checkpoint best|last|STEP of evaluate, predict and export */
#include "cli/checkpoint.h"

#include "runtime/rundir.h"

int checkpoint_load(struct predictor *p, const char *dir, const char *which, struct err *err)
{
    char path[4096 + 64];

    if (!which)
        return 0;
    if (rundir_weights(dir, which, path, sizeof path, err) < 0)
        return -(int)err->code;
    return predictor_load(p, path, err);
}
