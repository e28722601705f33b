/* server/packages.h - the packages of a Python job, out of the bucket and onto the disk
 *
 * A job document names packages by gs://BUCKET/OBJECT (its key python.packages). Before an attempt
 * is started they are copied to DIR/packages/I/NAME, I from 0, where the driver finds them under
 * the names that installers go by. A bucket of another project is not read, whatever the document
 * says, and no other kind of URI ever is. Doing it twice is fine: what is there already is copied
 * anew and put in its place at once.
 *
 * Threads: any; waits for the disk.
 */
#ifndef MUSTER_SERVER_PACKAGES_H
#define MUSTER_SERVER_PACKAGES_H

#include <jansson.h>

#include "base/err.h"

struct server;

enum { PACKAGES_MAX = 100 };

/* *out: the paths, in the document's order; yours; NULL when the job has no packages. `dir` is
 * jobs/JOBID, which is there. ERR_MISSING: no such object; ERR_INVALID: no URI or name of a
 * package; ERR_DENIED: another project's. The sentence names the package. */
int packages_stage(struct server *s, const char *project, const json_t *spec, const char *dir,
                   json_t **out, struct err *err);

/* The objects of a step's files (drivers/step.h), as DIR/inputs/N; DIR is the job's. */
int packages_stage_inputs(struct server *s, const char *project, const json_t *spec,
                          const char *dir, struct err *err);

#endif
