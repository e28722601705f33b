/* cli/gcloud.h - the commands of gcloud that the AI Platform tutorials type, by muster itself
 *
 * A program named gcloud (a link to muster) takes gcloud's words and flags, with = or a space, says
 * what gcloud says and ends with its exit codes: 0, 1 when something failed, 2 when the command is
 * wrong. It knows `ai-platform jobs submit training|describe|list|cancel|stream-logs`, `ai-platform
 * local train`, `config get-value|set|unset|list` and `storage ...` (as muster storage does it);
 * the rest is refused. `muster submit training ...` is the first of these.
 */
#ifndef MUSTER_CLI_GCLOUD_H
#define MUSTER_CLI_GCLOUD_H

#include "cli/cli.h"
#include "cli/client.h"

/* Is this what argv[0] means? */
int gcloud_is(const char *program);

/* argv without "gcloud". Prints its own errors; the exit code. */
int gcloud_main(struct cli *c, int argc, char **argv);

/* argv without "submit training". */
int gcloud_submit(struct cli *c, int argc, char **argv, struct err *err);

/* Builds the sdist of the package in `path` or of the modules in `source`, uploads it and the
 * local files among `packages` to gs://BUCKET/PREFIX/SHA256/NAME and appends all URIs to `uris`:
 * those that were gs:// first. */
struct gcloud_staging {
    const char *path; /* NULL: there is none */
    const char *packages; /* by commas; NULL: none */
    const char *staging; /* gs://BUCKET[/PREFIX]; NULL: none was given */
    const char *source; /* in place of `path`: a folder that Python would find modules in, or a
                           built package; NULL: none */
    const char *name; /* of what is made of such a folder */
};
int gcloud_stage(struct client *g, const struct gcloud_staging *s, json_t *uris, struct err *err);

#endif
