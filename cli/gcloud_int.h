/* cli/gcloud_int.h - parts of gcloud.c: the server's API, packages, properties */
#ifndef MUSTER_CLI_GCLOUD_INT_H
#define MUSTER_CLI_GCLOUD_INT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/err.h"
#include "cli/cli.h"
#include "cli/client.h"
#include "cli/gcloud.h"

/* The server, for this project; NULL: as the properties say, or else "default". */
int gcloud_open(const char *project, struct client **out, struct err *err);

/* options_parse, for a command that takes so many arguments; a failure makes the exit code 2. */
int gcloud_parse(struct cli *c, const struct option *options, int argc, char **argv, void *into,
                 int wanted, const char *usage, struct err *err);

/* ------------------------------------------------------------ packages (gcloud_package.c) */

/* The parent of a package's folder, absolute; caller frees. */
char *gcloud_package_root(const char *path);
/* The interpreter that runs the user's code here; caller frees; NULL: there is none. */
char *gcloud_python(void);

/* ------------------------------------------------------------ jobs (gcloud_jobs.c) */

struct gcloud_common { /* flags of every command; the first member of each one's arguments */
    const char *project, *format, *verbosity, *account, *configuration;
    int quiet;
};
/* clang-format off */
#define GCLOUD_COMMON(type) \
    { "project", 0, "ID", "the project", OPTION_TEXT, offsetof(type, common.project) }, \
    { "format", 0, "FORMAT", "json or yaml", OPTION_TEXT, offsetof(type, common.format) }, \
    { "quiet", 'q', NULL, "ask nothing", OPTION_FLAG, offsetof(type, common.quiet) }, \
    { "verbosity", 0, "LEVEL", "ignored", OPTION_TEXT, offsetof(type, common.verbosity) }, \
    { "account", 0, "A", "ignored", OPTION_TEXT, offsetof(type, common.account) }, \
    { "configuration", 0, "C", "ignored", OPTION_TEXT, offsetof(type, common.configuration) }
/* clang-format on */

extern const struct option gcloud_jobs_options[];
int gcloud_describe(struct cli *c, int argc, char **argv, struct err *err);
int gcloud_list(struct cli *c, int argc, char **argv, struct err *err);
int gcloud_cancel(struct cli *c, int argc, char **argv, struct err *err);
int gcloud_stream_logs(struct cli *c, int argc, char **argv, struct err *err);

/* Prints what the job says, from its first line to its end, as gcloud does. Returns when the job
 * has ended (*out_job is the job then, yours) or on Ctrl-C (it goes on, and *out_job is NULL). */
int gcloud_follow(struct client *g, const char *job, FILE *to, json_t **out_job, struct err *err);
/* jobId, state, times: what submit shows at its end. */
void gcloud_show_job(const json_t *job);
void gcloud_say_active(const char *job);

/* ------------------------------------------------------------ properties (gcloud_config.c) */

/* "project", "core/project", "compute/region": of the environment (CLOUDSDK_...), else the file;
 * caller frees; NULL: unset. */
char *gcloud_property(const char *name);
int gcloud_config(struct cli *c, int argc, char **argv, struct err *err);

#endif
