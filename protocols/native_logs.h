/* protocols/native_logs.h - /api/jobs/PROJECT/NAME/logs and /events: read, followed, downloaded
 *
 * A place in a job's log is "ATTEMPT-FILE-OFFSET": an answer's "next", an event's id. Reading from it
 * gives each line once, whatever broke in between: what is left of that attempt, then the attempts
 * after it. Without a place the newest attempt is read.
 */
#ifndef MUSTER_PROTOCOLS_NATIVE_LOGS_H
#define MUSTER_PROTOCOLS_NATIVE_LOGS_H

#include "server/http.h"

/* Both answer; the caller has looked whether the token may see the job. */
int native_logs(struct request *q, const char *project, const char *name, struct err *err);
int native_events(struct request *q, const char *project, const char *name, struct err *err);

/* ?name=N; untouched when it is not there. */
int native_number(const struct request *q, const char *name, long least, long most, long *out,
                  struct err *err);

#endif
