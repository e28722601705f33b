/* protocols/training.h - AI Platform's Job and TrainingInput, to a job document and back
 *
 * Pure: JSON in, JSON out. What the request said is kept whole (origin.request), so that it can be
 * shown again as it came: an unknown field is kept and ignored. A known field that is wrong is
 * ERR_INVALID in Google's words: "Field: trainingInput.scaleTier Error: ...".
 *
 * What was asked for and is not here becomes what is here, and a line of "notes" in the document
 * says so; the job's log begins with them. Parameter servers are not started: what a tier counts as
 * master and workers becomes the job's workers.
 */
#ifndef MUSTER_PROTOCOLS_TRAINING_H
#define MUSTER_PROTOCOLS_TRAINING_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* What a job may have of this machine. */
struct training_here {
    int cpus, gpus;
    int64_t memory_bytes;
    const json_t *tiers;        /* what a scale tier is (server/tiers.h) */
};

/* A sentence about the part of a request that is not built; NULL: all of it is. */
const char *training_unbuilt(const json_t *job);

/* `job` is the body of projects.jobs.create; *out is yours. */
int training_read(const json_t *job, const struct training_here *here, json_t **out,
                  struct err *err);

/* The Job for a record of jobs_get (server/jobs.h); yours, NULL: no memory. */
json_t *training_show(const json_t *record);

/* {"k": "v"} as labels may be: 64 of them, keys of small letters, digits, "-" and "_". */
int training_check_labels(const json_t *labels, struct err *err);

/* Base64, for Job.etag: changes with the labels. */
enum { TRAINING_ETAG_SIZE = 16 };
void training_etag(const json_t *record, char out[TRAINING_ETAG_SIZE]);

/* "RUNNING" for "running" and back; "STATE_UNSPECIFIED", NULL: no such state. */
const char *training_state(const char *name);
const char *training_state_name(const char *state);

#endif
