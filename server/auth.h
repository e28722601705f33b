/* server/auth.h - who may do what: tokens, projects, and the values that jobs are given
 *
 * The server's own token is made at the first start and kept in DATA/token (0600); it may do
 * everything. A project has tokens of its own, shown once and stored as SHA-256 alone; they reach
 * what is in the project and nothing else. The project "default" is always there.
 *
 * Values are kept in the database, which only its owner may read: secrets, which no answer ever
 * holds, and config values, which may be read back.
 *
 * Threads: any. auth_check takes no lock that is held over a write to the disk; all that change
 * something wait for the disk.
 */
#ifndef MUSTER_SERVER_AUTH_H
#define MUSTER_SERVER_AUTH_H

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"
#include "base/own.h"

enum { AUTH_NAME = 64, AUTH_TOKEN = 48, AUTH_VALUE_MAX = 64 << 10 };

struct auth;
struct server;

/* Reads tokens and projects; makes the server's token when there is none. */
int auth_new(struct server *s, struct auth **out, struct err *err);
void auth_free(struct auth *a);
OWN_DEFINE(auth)

/* The server's own token, "muster_" and 40 letters. */
const char *auth_root_token(const struct auth *a);
const char *auth_token_file(const struct auth *a);

/* False: nobody has this token. *out_root: it is the server's own, and out_project is "". */
bool auth_check(struct auth *a, const char *token, char out_project[AUTH_NAME], bool *out_root);
/* Grows when a token is added or removed: what was checked before is to be checked again. */
unsigned auth_epoch(struct auth *a);

/* Lower-case letters, digits and '-', 3 to 63 of them, a letter first: what gcloud takes, too. */
int auth_name_check(const char *what, const char *name, struct err *err);

/* ------------------------------------------------------------ projects and their tokens */

bool auth_project_exists(struct auth *a, const char *project);
int auth_project_add(struct auth *a, const char *project, struct err *err);     /* ERR_CONFLICT */
/* With its tokens and values; ERR_MISSING; "default" is refused. Jobs and buckets stay: see
 * auth_project_in_use of who calls. */
int auth_project_remove(struct auth *a, const char *project, struct err *err);
int auth_project_list(struct auth *a, json_t **out, struct err *err);   /* [{"name","created"}] */

/* `id` is the first letters of its hash, by which it is listed and removed. */
int auth_token_add(struct auth *a, const char *project, const char *label,
                   char out_token[AUTH_TOKEN], char out_id[16], struct err *err);
/* [{"id","project","label","created"}]; project NULL: all */
int auth_token_list(struct auth *a, const char *project, json_t **out, struct err *err);
int auth_token_remove(struct auth *a, const char *project, const char *id, struct err *err);

/* A token of a project's for a job's processes, made at the first use and kept: jobs are told this
 * one, never the server's own. */
int auth_job_token(struct auth *a, const char *project, char out[AUTH_TOKEN], struct err *err);

/* ------------------------------------------------------------ values */

enum auth_kind { AUTH_SECRET, AUTH_CONFIG };

/* Replaces. The name is letters, digits, '_', '-', '.'. */
int auth_value_set(struct auth *a, enum auth_kind kind, const char *project, const char *name,
                   const char *value, struct err *err);
int auth_value_remove(struct auth *a, enum auth_kind kind, const char *project, const char *name,
                      struct err *err);
/* [{"name","updated"}], with "value" for AUTH_CONFIG. */
int auth_value_list(struct auth *a, enum auth_kind kind, const char *project, json_t **out,
                    struct err *err);
/* Caller frees. For the scheduler, who hands secrets to a job. ERR_MISSING. */
int auth_value_get(struct auth *a, enum auth_kind kind, const char *project, const char *name,
                   char **out, struct err *err);

#endif
