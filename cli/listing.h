/* cli/listing.h - what the commands that ask a server for lists share */
#ifndef MUSTER_CLI_LISTING_H
#define MUSTER_CLI_LISTING_H

#include <jansson.h>
#include <stdbool.h>

#include "cli/cli.h"
#include "cli/client.h"

void listing_json(const json_t *doc);   /* on standard output, as --json has it */

/* "2026-11-15 17:25:01" here, of Unix seconds or of RFC 3339; blanks of that width where there is
 * none. */
void listing_stamp(double t);
void listing_stamp_text(const char *stamp);
void listing_span(double seconds);      /* eight characters; < 0: blanks */

/* Adds NAME=VALUE to a query. Nothing where there is no value. */
void listing_query(struct buf *path, const char *name, const char *value);

/* {NAME: VALUE} of --param NAME=VALUE. */
int listing_parameters(const struct option_list *list, json_t **out, struct err *err);

/* All pages of a list of Kubeflow's API, up to `limit` entries: the `key` of each answer. `path`
 * has a query already. *out_more (may be NULL): there are more. */
int listing_all(struct client *s, const char *path, const char *key, long limit, json_t **out,
                bool *out_more, struct err *err);

bool listing_is_id(const char *text);   /* a UUID */

/* The one whose key is that text, the newest where there are several; ERR_MISSING. `list` and
 * `key`: "runs", "display_name". Yours. */
int listing_find(struct client *s, const char *list, const char *key, const char *text,
                 json_t **out, struct err *err);

/* The id of a pipeline or an experiment that is called by its name or its id; caller frees. */
int listing_pipeline(struct client *s, const char *named, char **out, struct err *err);
int listing_experiment(struct client *s, const char *named, char **out, struct err *err);

#endif
