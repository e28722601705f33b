/* server/quota.h - what a job and a project may use, as runtimes.yaml says now
 *
 * The table (drivers/runtimes.h) is looked at whenever somebody asks, and read again when the file has
 * changed. One that cannot be read any more is told in the server's log, and what it said before
 * stays. 0 is no limit, everywhere.
 *
 * Disk of a project is the sum of what its buckets hold (every generation of every object), of its
 * volumes and of its jobs' files. What buckets hold is known at each upload; files are measured by the
 * thread of server/retention.h, which tells the result here. Of a project without such a limit nothing
 * is measured.
 *
 * Threads: any. A server without a quota (NULL) has no limits.
 */
#ifndef MUSTER_SERVER_QUOTA_H
#define MUSTER_SERVER_QUOTA_H

#include <jansson.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/own.h"

struct quota;
struct server;

/* ERR_INVALID with the line when the table is wrong. */
int quota_new(struct server *s, struct quota **out, struct err *err);
void quota_free(struct quota *q);
OWN_DEFINE(quota)

struct quota_limits {
    double memory, cpu, processes, disk, jobs;
};
/* Any of the three may be NULL. `job`: what a job has that does not ask: no more than job_max and the
 * project allow. */
void quota_of(struct quota *q, const char *project, struct quota_limits *job,
              struct quota_limits *job_max, struct quota_limits *of_project);
/* Days and bytes after which files of ended jobs go; 0: never. */
void quota_keep(struct quota *q, double *out_days, double *out_bytes);
/* Is there any project whose disk is limited? */
bool quota_limits_disk(struct quota *q);

/* May this document be a job of the project? ERR_INVALID: it asks for more than it can ever have.
 * ERR_IO, "the disk is full ...": the project has no disk left. */
int quota_check_job(struct quota *q, const char *project, const json_t *spec, struct err *err);

/* ERR_IO, "the disk is full ...", unless the project may store n bytes more. */
int quota_room(struct quota *q, const char *project, int64_t n, struct err *err);
/* The same in the transaction that stores them; what buckets hold is counted where it matters. */
int quota_store(struct quota *q, sqlite3 *db, const char *project, int64_t n, struct err *err);

/* What was measured of a project whose disk is limited. */
void quota_measured(struct quota *q, const char *project, int64_t buckets, int64_t files);
/* Of its limit what is left; INT64_MAX: it has none, 0: nothing. */
int64_t quota_left(struct quota *q, const char *project);
/* Bytes of all objects of a project. */
int quota_bucket_bytes(sqlite3 *db, const char *project, int64_t *out, struct err *err);
/* The sentence for one who is over it. */
void quota_say_full(struct quota *q, const char *project, char *out, size_t size);

#endif
