/* drivers/gpus.h - which graphics processors a job has
 *
 * The scheduler counts them (server/queue_plan.h); which ones a job has is decided here, by its
 * keeper: DATA/gpus/N is flocked for /dev/nvidiaN by the keeper and its init, for as long as one
 * of them lives. So no two jobs have the same one, whoever was killed, and nothing has to be
 * written down. A job sees the nodes of its own and no others.
 *
 * A processor counts when the driver lists it (/proc/driver/nvidia/gpus) and its node is there:
 * nvidia-persistenced, or the first nvidia-smi, makes it. Where the driver lists nothing, as in
 * some containers, the nodes alone count.
 */
#ifndef MUSTER_DRIVERS_GPUS_H
#define MUSTER_DRIVERS_GPUS_H

#include "base/err.h"

enum { GPUS_MAX = 64 };

struct gpu {
    int minor;                  /* /dev/nvidiaMINOR */
    char bus[24];               /* "0000:17:00.0"; "": not known */
    char uuid[48];              /* "GPU-..."; "": not known */
};

struct gpus {
    int n;
    struct gpu at[GPUS_MAX];    /* by place on the bus, which is how CUDA counts them when asked */
    int index[GPUS_MAX];        /* of those that were taken: their places among all */
    int lock[GPUS_MAX];         /* the same: open files */
};

/* Where /dev and /proc/driver are: "", or $MUSTER_GPU_ROOT, for tests without such a machine. */
const char *gpus_root(void);

/* All that are here. */
void gpus_list(const char *root, struct gpus *out);

/* The nodes that a job with these needs, one after the other; NULL: no more. `g` NULL, or none: no
 * node at all. Borrowed until the next call. Not every driver has all of them. */
const char *gpus_node(const struct gpus *g, int i);

/* n of them that nobody has. ERR_AGAIN: so many are not free now. */
int gpus_take(const char *root, const char *data_dir, int n, struct gpus *out, struct err *err);
void gpus_release(struct gpus *g);      /* twice is fine */

#endif
