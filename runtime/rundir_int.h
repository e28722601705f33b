/* runtime/rundir_int.h - a run's directory: what rundir.c and rundir_end.c share */
#ifndef MUSTER_RUNTIME_RUNDIR_INT_H
#define MUSTER_RUNTIME_RUNDIR_INT_H

#include "runtime/rundir.h"

enum { PATH_SIZE = 4096, NAME_SIZE = 4096 + 64, RUN_PATH_MAX = 3900 };

struct rundir {
    char path[PATH_SIZE];
    int lock;                           /* the directory itself; -1: another process of ours has it */
    int metrics;                        /* metrics.jsonl */
    struct scalars *scalars;
    long best_saved;                    /* step of best.safetensors as it is now; -1: not known */
    int reserve;                        /* a file without a name: room for the model; -1: none */
    char last[NAME_SIZE];               /* checkpoint */
    struct err damaged;                 /* the newest checkpoint that was passed over; code 0: none */
    double saved_at;                    /* time of the last checkpoint, or of the start */
};

/* Gives back the room that is set aside. */
void rundir_release(struct rundir *r);
/* checkpoints/best.safetensors, where there is a best test that it does not have yet. */
int rundir_save_best(struct rundir *r, struct trainer *t, struct err *err);

#endif
