/* server/volumes.h - directories that outlive the steps that mount them
 *
 * A volume is DATA/volumes/PROJECT/NAME: `data`, the directory that steps see; `volume.json`, what
 * was asked for; `lock`, flocked by every step that has it mounted (shared) and by who deletes it.
 * A volume that was never mounted has the file `fresh`: mounted over a directory of an image it
 * starts with what is there (drivers/step.h). It is put in place by a rename, so that it is there
 * as a whole or not at all. Deleting one that is mounted only says so, by the file `deleted`: from
 * then on nobody finds it, and it goes with the first look after the last step has ended.
 *
 * Threads: any. What changes something waits for the disk.
 */
#ifndef MUSTER_SERVER_VOLUMES_H
#define MUSTER_SERVER_VOLUMES_H

#include <jansson.h>

#include "base/err.h"

struct server;

/* `doc` is kept: {"size": "3Gi", "labels": {}, ...}. ERR_CONFLICT: there is one; ERR_INVALID: no
 * name for one (letters, digits, '-', '_', '.', at most 253). */
int volumes_create(struct server *s, const char *project, const char *name, const json_t *doc,
                   struct err *err);
/* {"name", "created", ...doc}; yours. ERR_MISSING. */
int volumes_get(struct server *s, const char *project, const char *name, json_t **out,
                struct err *err);
/* Keeps `doc` in place of what was kept. ERR_MISSING. */
int volumes_set(struct server *s, const char *project, const char *name, const json_t *doc,
                struct err *err);
/* An array of them, by name. */
int volumes_list(struct server *s, const char *project, json_t **out, struct err *err);
/* ERR_MISSING. */
int volumes_delete(struct server *s, const char *project, const char *name, struct err *err);
/* Where its files are. */
int volumes_path(struct server *s, const char *project, const char *name, char *out, size_t size,
                 struct err *err);

#endif
