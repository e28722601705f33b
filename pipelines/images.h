/* pipelines/images.h - images that users have described (muster image)
 *
 * An image is the object images/NAME of the bucket images-PROJECT, a document:
 *   {"name", "digest", "created", "dirs": [{"path", "object": "gs://...", "sha256"}],
 *    "requirements": text, "python": "3.9", "from": an image of the table, "env": {}, "cwd",
 *    "command": [words], "arguments": [words]}
 * All but name, digest and dirs may be missing.
 *
 * Threads: any.
 */
#ifndef MUSTER_PIPELINES_IMAGES_H
#define MUSTER_PIPELINES_IMAGES_H

#include <jansson.h>

#include "base/err.h"

struct server;

/* ERR_MISSING: nobody has described it. */
int images_find(struct server *s, const char *project, const char *name, json_t **out,
                struct err *err);

/* Makes the job document of a step, which has "image", "command" and "step" (drivers/step.h), one
 * that runs with what the image says: its directories among the step's files, its environment
 * before the step's, its packages as "python", its program where "command" is empty. What the image
 * is based on stays as "image". A document whose image nobody described stays as it is. */
int images_apply(const json_t *image, json_t *job, struct err *err);

#endif
