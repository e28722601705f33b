/* server/tiers.h - what a scale tier of AI Platform is on this machine
 *
 * Rows of the table that the user may edit, runtimes.yaml in the data directory; it is read anew
 * for each job (drivers/runtimes.h).
 */
#ifndef MUSTER_SERVER_TIERS_H
#define MUSTER_SERVER_TIERS_H

#include <jansson.h>

#include "base/err.h"

struct server;

/* {"STANDARD_1": {"workers": 5, "cpu", "memory", "gpu"}, ...}; yours. */
int server_tiers(const struct server *s, json_t **out, struct err *err);

#endif
