/* pipelines/resources.h - the kinds of Kubernetes that there are here, and what is done with them
 *
 * PersistentVolumeClaim is a volume (server/volumes.h), keys of a ConfigMap or a Secret are values of
 * the project under NAME.KEY (server/auth.h), a TrainingJob is a job. `resource` templates and
 * `muster apply` both come here. All may be done twice: what was created with the same content, or
 * by the same node, counts as created, and what is not there as deleted.
 *
 * Threads: any. What changes something waits for the disk.
 */
#ifndef MUSTER_PIPELINES_RESOURCES_H
#define MUSTER_PIPELINES_RESOURCES_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct server;

enum { MANIFEST_MAX = 1 << 20 };

/* The kind's own name for it or for one of kubectl's words ("pvc", "configmaps"); NULL: none. */
const char *resource_kind(const char *word);

/* `action`: create get apply replace patch delete. `by`: the node that does it, "" for none. *out:
 * the object as it is then, without values of a Secret; empty when it was deleted. ERR_INVALID: the
 * kind, or what of it is to be changed, is not to be had. */
int resource_act(struct server *s, const char *project, const char *by, const char *action,
                 json_t *manifest, json_t **out, struct err *err);
int resource_delete(struct server *s, const char *project, const char *kind, const char *name,
                    struct err *err);

/* Is this a text of ConfigMaps, Secrets and PersistentVolumeClaims alone? */
bool resources_only(const char *text, size_t n);
/* Applies them all, or, where one is refused by its form, none. *out: [{"kind", "name", "did":
 * "created" | "configured" | "unchanged"}]. `file` stands for the text in messages. */
int resources_apply(struct server *s, const char *project, const char *file, const char *text,
                    size_t n, json_t **out, struct err *err);

#endif
