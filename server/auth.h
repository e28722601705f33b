/* server/auth.h - who may do what: tokens, projects, and the values that jobs are given
 *
 * The server's own token is made at the first start and kept in DATA/token (0600); it may do
 * everything. A project has tokens of its own, shown once and stored as SHA-256 alone; they reach
 * what is in the project and nothing else. The project "default" is always there.
 *
 * A job has a token that follows from the server's own, so that one which outlives the server keeps
 * it; it is good until the job has ended, for the project's buckets and what is the job's own. A
 * browser has a session's, which log-in gives for a token, stored as SHA-256 alone; it ends with its
 * time, by log-out, or with the token that it was given for. The one is never taken for the other: a
 * session is good in the header "Authorization" alone, never in an address, and makes no further one.
 *
 * Values are kept in the database, which only its owner may read: secrets, which no answer ever
 * holds and which are encrypted there (server/vault.h), and config values, which may be read back.
 *
 * Threads: any. auth_check takes no lock that is held over a write to the disk; all that change
 * something wait for the disk.
 */
#ifndef MUSTER_SERVER_AUTH_H
#define MUSTER_SERVER_AUTH_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/own.h"

enum { AUTH_NAME = 64, AUTH_JOB = 136, AUTH_TOKEN = 72, AUTH_VALUE_MAX = 64 << 10,
       AUTH_SESSION_S = 30 * 86400, AUTH_SESSIONS_MAX = 1000 };

struct auth;
struct server;

/* Reads tokens and projects; makes the server's token when there is none. */
int auth_new(struct server *s, struct auth **out, struct err *err);
void auth_free(struct auth *a);
OWN_DEFINE(auth)

/* The prefix and 40 letters that nobody can guess. */
int auth_random(const char *prefix, char out[AUTH_TOKEN], struct err *err);

/* The server's own token, "muster_" and 40 letters. */
const char *auth_root_token(const struct auth *a);
const char *auth_token_file(const struct auth *a);

/* Who asks. */
struct auth_who {
    char project[AUTH_NAME];    /* "": all of them */
    bool root;                  /* the server's own token, or a session that was given for it */
    char job[AUTH_JOB];         /* the job whose token it is; "": none's */
    double until;               /* may be relied on until then (clock_seconds), in this epoch; 0: ask
                                 * again */
};
/* False: nobody has this token. How long it takes does not tell how much of it was right. */
bool auth_check(struct auth *a, const char *token, struct auth_who *out);
/* The same for a browser's session. */
bool auth_session_check(struct auth *a, const char *session, struct auth_who *out);
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

/* Of the job with this uid: its processes are told this one, never a project's. */
void auth_job_token(struct auth *a, int64_t uid, char out[AUTH_TOKEN]);

/* For AUTH_SESSION_S. ERR_DENIED: nobody has this token, or it is a job's. The oldest sessions go when
 * there are more than AUTH_SESSIONS_MAX. */
int auth_session_add(struct auth *a, const char *token, char out_session[AUTH_TOKEN],
                     struct err *err);
int auth_session_remove(struct auth *a, const char *session, struct err *err);  /* none is fine */

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
/* Caller frees. For the scheduler, who hands secrets to a job. ERR_MISSING: no such value, or no key
 * to decrypt it with; ERR_IO: its bytes are damaged. */
int auth_value_get(struct auth *a, enum auth_kind kind, const char *project, const char *name,
                   char **out, struct err *err);

#endif
