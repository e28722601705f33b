/* cli/serve_data.h - a data directory as a whole: is it sound, a copy of it, and the end of its server
 *
 * The first two work while a server runs on it.
 */
#ifndef MUSTER_CLI_SERVE_DATA_H
#define MUSTER_CLI_SERVE_DATA_H

#include "base/err.h"
#include "server/server.h"

/* The database page by page, every job's row against its events, every object's content against its
 * digest, logs against their sums. Prints all findings; ERR_IO when there are any. */
int serve_check(const char *dir, struct err *err);

/* A copy that `muster serve --data-dir TO` can go on from: the database as of one moment, all content
 * that it names, the files of the jobs, the token. `to` must not be there yet, or be empty. */
int serve_backup(const char *dir, const char *to, struct err *err);

/* Prints what has changed in the logs of its jobs; how many findings there are. */
int64_t serve_check_logs(const char *dir);

/* For these two: of the server only data_dir and store. ERR_MISSING: it is no data directory. */
int serve_open_store(const char *dir, struct server *s, struct err *err);

/* Returns when the server that runs on it is gone; requests have had their time to end. ERR_MISSING:
 * none runs. */
int serve_stop(const char *dir, struct err *err);

#endif
