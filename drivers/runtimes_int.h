/* drivers/runtimes_int.h - the table of runtimes: what is read of it, and what may be in it */
#ifndef MUSTER_DRIVERS_RUNTIMES_INT_H
#define MUSTER_DRIVERS_RUNTIMES_INT_H

#include "drivers/runtimes.h"
#include "spec/yaml.h"

/* ERR_INVALID with the line of a key that is none, or of a value that cannot be one. */
int runtimes_check_table(const struct value *table, const char *path, struct err *err);

/* The table of the data directory, written first where there is none; `path` (PATH_MAX bytes) is
 * where it is. */
int runtimes_read(const char *data_dir, char *path, struct value **out, struct err *err);

/* The text of a key; "" where there is none. */
const char *runtimes_word(const struct value *row, const char *key);

/* "2Gi" in bytes; -1: it is no size. */
double runtimes_bytes(const char *text);
/* The same, or "90%" of `of`. */
double runtimes_share(const char *text, double of);

/* The part of the table that says what jobs and projects may use, with its defaults: also for a table
 * that lacks it. */
#define RUNTIMES_LIMITS                                                                          \
    "# What jobs and projects may use (docs/guides/limits.md). A number, a size (2Gi), or of "      \
    "memory\n"                                                                                    \
    "# and disk a share of the machine's (90%). 0: no limit.\n"                                   \
    "#   job          what a job has that does not ask for it in its resources\n"                 \
    "#   job_max      the most that a job may ask for; more is refused\n"                         \
    "#   project      what the jobs of a project that run have together, disk: with buckets and "  \
    "volumes\n"                                                                                   \
    "#   projects     the same for one project: {taxi-team: {cpu: 4, memory: 8Gi, jobs: 2, disk: " \
    "100Gi}}\n"                                                                                   \
    "limits:\n"                                                                                   \
    "  job: {memory: 90%, processes: 4096, disk: 50%}\n"                                          \
    "  job_max: {memory: 0, cpu: 0, processes: 32768, disk: 0}\n"                                 \
    "  project: {memory: 0, cpu: 0, processes: 0, jobs: 0, disk: 0}\n"                            \
    "  projects: {}\n"                                                                            \
    "# Files of a job that has ended (work, log) are removed after so many days, and the oldest "  \
    "ones when\n"                                                                                 \
    "# all take more than this. 0: never. What a job was and how it ended stays. `muster jobs "    \
    "keep NAME`\n"                                                                                \
    "# keeps the files of one.\n"                                                                 \
    "jobs: {days: 365, size: 50%}\n"

#endif
