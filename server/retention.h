/* server/retention.h - files of ended jobs go in time; what projects take of the disk is measured
 *
 * The files of a job (jobs/ID: work, log, staged inputs of all attempts) are removed when it has been
 * over for so many days, and the oldest when all take more than so many bytes (`jobs` in
 * runtimes.yaml). The job's record stays and says when and why. Kept are those of a job that
 *   - has the label `keep` (whatever its value but "false"; muster jobs keep NAME);
 *   - is part of something that has not ended (server_part.in_use: a run of a pipeline).
 * What buckets and volumes hold is not touched.
 *
 * DESIGN. One thread. job.files_removed is on record before a file goes; then jobs/ID is renamed to
 * jobs/ID.gone and removed. A server that was killed in between finds, at its start, the record
 * without the rename or the rename without the end, and goes on. How much the files of an ended job
 * take is measured once, when it has ended, and kept in the table job_files. The thread sleeps until a
 * job ends or is deleted, for an hour at most; where a project's disk is limited (server/quota.h), for
 * seconds: it measures what such projects take, and tells a job that writes in one that is full to end
 * (DIR/full, drivers/guard.h).
 */
#ifndef MUSTER_SERVER_RETENTION_H
#define MUSTER_SERVER_RETENTION_H

#include "base/err.h"
#include "base/own.h"

struct retention;
struct server;

int retention_new(struct server *s, struct retention **out, struct err *err);
void retention_free(struct retention *r);       /* ends the thread */
OWN_DEFINE(retention)

/* A job has ended, was deleted, or begins in a project whose disk is limited. Any thread; NULL is fine. */
void retention_wake(struct retention *r);

/* One pass, on the calling thread: what is due at `now` goes. *out_removed: of how many jobs. For the
 * thread, and for tests. */
int retention_pass(struct retention *r, double now, int *out_removed, struct err *err);

#endif
