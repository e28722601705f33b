/* server/scalars.h - numbers over time, out of what a job writes
 *
 * TensorBoard's event files (events.out.tfevents.*) and metrics.jsonl, anywhere below the job's
 * work directory, as they grow: what was read is remembered, so that asking again costs what is
 * new. A tag is named after its folder where that is not the work directory itself or "run". In
 * a folder that has a metrics.jsonl the event files are left alone: they say the same, later.
 * Of a tag about a thousand points are kept, evenly spread over its steps, and always the last.
 *
 * The files are the job's: nothing that it writes there (links, pipes, half records, a million
 * tags) leads out, blocks or costs more than a bounded amount of memory. Threads: any.
 */
#ifndef MUSTER_SERVER_SCALARS_H
#define MUSTER_SERVER_SCALARS_H

#include <jansson.h>

#include "base/err.h"

enum { SCALARS_POINTS = 1000, SCALARS_TAGS_MAX = 500, SCALARS_FILES_MAX = 200 };

/* `dir` is an attempt's directory (jobs_dir). *out, yours: {"loss": [[time, step, value], ...],
 * ...}; no numbers yet: {}. */
int scalars_read(const char *dir, json_t **out, struct err *err);
/* The same of any directory, such as a volume's. */
int scalars_read_below(const char *folder, json_t **out, struct err *err);

/* What is remembered of all jobs is forgotten, for tests. */
void scalars_forget(void);

#endif
