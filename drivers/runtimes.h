/* drivers/runtimes.h - what stands here for a runtime, an image or a scale tier of the cloud
 *
 * DATA/runtimes.yaml is a table that the user may edit; it is written with its defaults when it
 * is not there. A row says which Python to take, whether the packages of the system are seen,
 * and what to install; of an image also whether it may be fetched; of a tier what a job may have.
 * What was taken in place of what was asked for is said in the job's log.
 */
#ifndef MUSTER_DRIVERS_RUNTIMES_H
#define MUSTER_DRIVERS_RUNTIMES_H

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>

#include "base/err.h"
#include "drivers/users.h"

struct journal;

struct runtime {
    char python[PATH_MAX];      /* the interpreter: an absolute path without symbolic links */
    char version[32];           /* "3.11" */
    bool system;                /* packages of the system are seen */
    json_t *requirements;       /* texts; yours */
};

/* Writes the defaults unless the file is there. */
int runtimes_write(const char *data_dir, struct err *err);

/* Is all of it as it must be? ERR_INVALID with the line: a mistake is told before a job comes upon
 * it. No file is fine: it has the defaults when one is needed. */
int runtimes_check(const char *data_dir, struct err *err);

/* For `python` (a job's "python" object) and `image` (NULL: none). */
int runtimes_find(const char *data_dir, const json_t *python, const char *image,
                  struct journal *journal, struct runtime *out, struct err *err);

/* What the table says of an image as a container (drivers/container.h). */
struct runtime_image {
    bool has_row;
    bool pull;                  /* may be fetched */
    bool never;                 /* its row stands for it even where it is here */
    bool own_user;              /* runs as the user whom it names itself */
    bool plain;                 /* this machine as it is stands for it */
};
int runtimes_image(const char *data_dir, const char *image, struct runtime_image *out,
                   struct err *err);

/* {"STANDARD_1": {"workers": 5, "cpu", "memory", "gpu"}, ...}: numbers, those that the row has;
 * yours. `data_dir` NULL, or a table without tiers: the defaults. */
int runtimes_tiers(const char *data_dir, json_t **out, struct err *err);

/* How long environments stay (drivers/environment.h): days without use, and bytes of all together;
 * 0: no limit. */
int runtimes_keep(const char *data_dir, double *out_days, double *out_bytes, struct err *err);

/* What every job's sandbox has of this machine. */
struct runtimes_sandbox {
    struct users_range users;   /* of whom each job has one to itself (drivers/users.h) */
    json_t *expose;             /* absolute paths; yours */
};
/* Quick where the file has not changed since the last call. Any thread. */
int runtimes_sandbox(const char *data_dir, struct runtimes_sandbox *out, struct err *err);
/* What jobs and projects may use, and how long files of ended jobs stay, as numbers (bytes, cores,
 * pieces, days; 0: no limit), shares worked out and defaults filled in; yours:
 *   {"job": {"memory", "processes", "disk"}, "job_max": {... and "cpu"}, "project": {... "cpu",
 *    "jobs"}, "projects": {NAME: what its row says}, "jobs": {"days", "size"}} */
int runtimes_limits(const char *data_dir, json_t **out, struct err *err);

/* May a job have this machine's network? ERR_DENIED with a sentence that says who decides. */
int runtimes_host_network(const char *data_dir, bool is_owner, struct err *err);

/* A program of PATH, as a path without symbolic links (PATH_MAX bytes); false: there is none. */
bool runtimes_program(const char *name, char *out);

#endif
