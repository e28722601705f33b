/* drivers/runtimes.h - what stands here for a runtime version or an image of the cloud
 *
 * DATA/runtimes.yaml is a table that the user may edit; it is written with its defaults when it
 * is not there. A row says which Python to take, whether the packages of the system are seen,
 * and what to install. What was taken in place of what was asked for is said in the job's log.
 */
#ifndef MUSTER_DRIVERS_RUNTIMES_H
#define MUSTER_DRIVERS_RUNTIMES_H

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>

#include "base/err.h"

struct journal;

struct runtime {
    char python[PATH_MAX];      /* the interpreter: an absolute path without symbolic links */
    char version[32];           /* "3.11" */
    bool system;                /* packages of the system are seen */
    json_t *requirements;       /* texts; yours */
};

/* Writes the defaults unless the file is there. */
int runtimes_write(const char *data_dir, struct err *err);

/* For `python` (a job's "python" object) and `image` (NULL: none). */
int runtimes_find(const char *data_dir, const json_t *python, const char *image,
                  struct journal *journal, struct runtime *out, struct err *err);

#endif
