/* protocols/native.h - muster's own API: jobs, projects, values, health and metrics
 *
 * What the CLI and the console call; docs/guides/server.md lists it. Errors are
 * {"error": {"code": HTTP status, "message": a sentence}}.
 */
#ifndef MUSTER_PROTOCOLS_NATIVE_H
#define MUSTER_PROTOCOLS_NATIVE_H

#include "server/http.h"

extern const struct protocol protocol_native;           /* the server itself */
extern const struct protocol protocol_native_jobs;      /* /api/jobs */
extern const struct protocol protocol_native_pipelines; /* /api/pipelines, /api/experiments */
extern const struct protocol protocol_native_runs;      /* /api/runs */

void native_error(struct request *q, const struct err *err);

/* The project that is asked about: `named` (may be NULL), else that of the token, else "default".
 * ERR_DENIED when the token is of another one. */
int native_project(const struct request *q, const char *named, const char **out, struct err *err);

#endif
