/* cli/jobs.h - jobs of the server, for the commands that deal with them */
#ifndef MUSTER_CLI_JOBS_H
#define MUSTER_CLI_JOBS_H

#include <jansson.h>

#include "cli/cli.h"
#include "cli/client.h"

/* Prints what the job prints until it has ended; fails, and sets c->exit_code to 1, when the job did.
 * Ctrl-C ends the printing, not the job. */
int job_follow(struct cli *c, struct client *s, const char *name, struct err *err);

/* Asks for so many workers from now on; *out is the job, yours. */
int job_resize(struct client *s, const char *name, int min, int max, json_t **out,
               struct err *err);

/* State, workers and metrics of a job until it has ended: redrawn on a terminal, in a pipe a line for each
 * change; as JSON each time. `once`: one look. */
int job_watch(struct cli *c, struct client *s, const char *name, int once, int json,
              struct err *err);

/* The client, with --project when it is given. */
int job_client(const char *project, struct client **out, struct err *err);

#endif
