/* drivers/promises.h - what this machine does not let a server keep of what jobs are promised
 *
 * A job asks for limits of memory and processors, and is promised a sandbox and a user of its own.
 * Which of it can be kept depends on who the server is and on what the system gives it. That is
 * tried once, at the server's start, by doing it: a control group is made and joined, a mount is
 * mapped. What cannot be kept is said there and with every job that it concerns; --strict makes it
 * a reason not to start.
 */
#ifndef MUSTER_DRIVERS_PROMISES_H
#define MUSTER_DRIVERS_PROMISES_H

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"

/* [{"what": "memory" | "cpu" | "pids" | "user" | "sandbox" | "network", "text": a sentence, "do":
 * how to have it}]: empty where all is kept; yours. */
int promises_broken(const char *data_dir, bool unconfined, json_t **out, struct err *err);

/* The sentences of `broken` that concern a job with this document; yours, NULL: no memory. */
json_t *promises_of(const json_t *broken, const json_t *spec);

#endif
