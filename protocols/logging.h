/* protocols/logging.h - Cloud Logging, as far as the logs of jobs are read and lines written
 * through it
 *
 * POST /v2/entries:list with a filter that says resource.labels.job_id="J" reads what the job J
 * printed: one entry a line, in the order of time. Bounds on timestamp are honoured to the
 * microsecond, since clients that follow a log depend on them. Entries that were written by POST
 * /v2/entries:write are kept (the newest LOGGING_KEPT of a project) and read by filters without a
 * job.
 */
#ifndef MUSTER_PROTOCOLS_LOGGING_H
#define MUSTER_PROTOCOLS_LOGGING_H

#include "server/http.h"

enum { LOGGING_KEPT = 100000, LOGGING_PAGE = 1000 };

extern const struct protocol protocol_logging;

#endif
