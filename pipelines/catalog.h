/* pipelines/catalog.h - what was uploaded: pipelines and their versions; experiments
 *
 * A pipeline is a name with versions; a version is a package that was compiled when it came, so
 * what cannot run was refused then, by name and line. Names of pipelines and experiments are unique
 * in their project, those of versions in their pipeline. Documents (times are Unix seconds):
 *   pipeline    {"id","project","name","display","description","created","updated",
 *                "default_version": id or "", "tags": {}}
 *   version     {"id","project","pipeline","name","display","description","created","updated",
 *                "dialect": "argo"|"ir","inputs": as of a flow document,"digest","url","tags"}
 *   experiment  {"id","project","name","description","created","updated","archived": bool,
 *                "last_run": time or 0}
 * Lists: rows_list with rows_pipelines, rows_versions, rows_experiments.
 *
 * Threads: any. What changes something is durable when it returns. `project` NULL: any, where one
 * is looked up.
 */
#ifndef MUSTER_PIPELINES_CATALOG_H
#define MUSTER_PIPELINES_CATALOG_H

#include "pipelines/rows.h"

/* What comes with a pipeline or version; all is borrowed, and all but `name` may be NULL. */
struct catalog_entry {
    const char *project;        /* of a pipeline */
    const char *name;           /* NULL: of the package */
    const char *display;        /* NULL: the name */
    const char *description;    /* NULL: of the package */
    const char *url;            /* where it says that its code is */
    const json_t *tags;
    const void *package;        /* the bytes of a package, as uploaded; NULL: none (of a pipeline) */
    size_t package_n;
    const char *file;           /* its name, for messages */
};

/* With a package: the pipeline and its first version, of the same name. *out: the pipeline, with
 * "version": the document of that version. ERR_CONFLICT: the name is taken; ERR_INVALID: the package
 * cannot be run, with file and line. */
int pipelines_create(struct server *s, const struct catalog_entry *e, json_t **out,
                     struct err *err);
int versions_create(struct server *s, const char *pipeline, const struct catalog_entry *e,
                    json_t **out, struct err *err);

int pipelines_get(struct server *s, const char *project, const char *id, json_t **out,
                  struct err *err);
/* id "": the default version of `pipeline`. pipeline NULL: of any. */
int versions_get(struct server *s, const char *project, const char *pipeline, const char *id,
                 json_t **out, struct err *err);
/* The text of its package, yours, and the flow document made of it; either may be NULL. */
int versions_text(struct server *s, const char *project, const char *id, char **out_text,
                  size_t *out_n, json_t **out_flow, struct err *err);

/* Keys of {"display","description","tags"} that are there are changed. */
int pipelines_patch(struct server *s, const char *project, const char *id, const json_t *patch,
                    json_t **out, struct err *err);
int versions_patch(struct server *s, const char *project, const char *id, const json_t *patch,
                   json_t **out, struct err *err);
int pipelines_default(struct server *s, const char *project, const char *id, const char *version,
                      struct err *err);

/* Runs that were made of it keep what they need. A pipeline that has versions goes with them. */
int pipelines_delete(struct server *s, const char *project, const char *id, struct err *err);
/* The newest of the others becomes the default when it was that. */
int versions_delete(struct server *s, const char *project, const char *id, struct err *err);

int experiments_create(struct server *s, const char *project, const char *name,
                       const char *description, json_t **out, struct err *err);
int experiments_get(struct server *s, const char *project, const char *id, json_t **out,
                    struct err *err);
/* "Default" of a project; made at its first use. */
int experiments_default(struct server *s, const char *project, json_t **out, struct err *err);
/* With its runs, and its recurring runs are disabled; the way back leaves those as they are. */
int experiments_archive(struct server *s, const char *project, const char *id, bool archive,
                        struct err *err);
/* Its runs stay. */
int experiments_delete(struct server *s, const char *project, const char *id, struct err *err);

#endif
