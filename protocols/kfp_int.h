/* protocols/kfp_int.h - what the two versions of the API have in common; for protocols/kfp*.c */
#ifndef MUSTER_PROTOCOLS_KFP_INT_H
#define MUSTER_PROTOCOLS_KFP_INT_H

#include "pipelines/rows.h"
#include "protocols/kfp.h"

enum { KFP_PROJECT = 64 };

void kfp_error(struct request *q, const struct err *err);

/* A time as RFC 3339, a new reference; NULL for 0: there is none yet. */
json_t *kfp_time(double seconds);

/* The text of one or more documents as JSON; of several, a list. */
int kfp_parse(const char *text, size_t n, json_t **out, struct err *err);

/* The same as v2beta1's pipeline_spec; NULL: it cannot be read. */
json_t *kfp_spec_json(const char *text, size_t n);

/* ------------------------------------------------------------ lists */

/* How the values of a key are written there. */
enum kfp_as { KFP_TEXT, KFP_TIME, KFP_STORAGE, KFP_STATE };

struct kfp_key {
    const char *name, *ours;            /* "created_at", "created" */
    enum kfp_as as;
};

struct kfp_kind {
    const struct rows_kind *rows;
    const struct kfp_key *keys;         /* that may be sorted and filtered by; ends with NULL */
};

/* A filter as rows.h takes it, [{"key", "op", "value"}]; NULL for a text that is NULL or "".
 * ERR_INVALID: a key, an operation or a value that is none. */
int kfp_filter(const struct kfp_kind *k, const char *text, json_t **out, struct err *err);

struct kfp_listing {
    const struct kfp_kind *kind;
    const char *namespace_, *parent;    /* "" and NULL: none is named */
    const char *key;                    /* of the answer: "pipelines" */
    json_t *(*each)(struct request *q, const json_t *row);
};

/* Answers with the page that page_token, page_size, sort_by and filter of the query ask for; the
 * oldest come first where nothing is said, as there. */
int kfp_list(struct request *q, const struct kfp_listing *l, struct err *err);

/* ------------------------------------------------------------ verbs */

/* {}, unless `rc` says that it failed. */
int kfp_done(struct request *q, int rc);

/* Answers with the one that the path's "id" names. */
int kfp_get(struct request *q,
            int (*get)(struct server *s, const char *project, const char *id, json_t **out,
                       struct err *err),
            json_t *(*each)(struct request *q, const json_t *row), struct err *err);

/* Handlers, of what the path's "id" names; they answer {}. A pipeline is deleted with its versions,
 * whatever `cascade` says: the SDK has no word for it. */
int kfp_pipeline_delete(struct request *q, struct err *err);
int kfp_experiment_archive(struct request *q, struct err *err);
int kfp_experiment_unarchive(struct request *q, struct err *err);
int kfp_experiment_delete(struct request *q, struct err *err);
int kfp_run_terminate(struct request *q, struct err *err);
int kfp_run_retry(struct request *q, struct err *err);
int kfp_run_archive(struct request *q, struct err *err);
int kfp_run_unarchive(struct request *q, struct err *err);
int kfp_run_delete(struct request *q, struct err *err);
int kfp_recurring_enable(struct request *q, struct err *err);
int kfp_recurring_disable(struct request *q, struct err *err);
int kfp_recurring_delete(struct request *q, struct err *err);

/* ------------------------------------------------------------ uploads */

/* The form of an upload: the bytes of its file, and what that is called. */
struct kfp_upload {
    struct buf bytes;
    char file[256];
};
void kfp_upload_done(struct kfp_upload *u);
int kfp_upload_read(struct request *q, struct kfp_upload *out, struct err *err);
/* What a package_url names: gs:// of this server alone. */
int kfp_upload_url(struct request *q, const char *project, const char *url,
                   struct kfp_upload *out, struct err *err);
#define OWN_UPLOAD __attribute__((cleanup(kfp_upload_done))) struct kfp_upload

/* ------------------------------------------------------------ runs */

/* The project that a run belongs to: the one that is named, else that of its experiment (NULL or
 * "": none), else the token's. */
int kfp_project(const struct request *q, const char *named, const char *experiment,
                char out[KFP_PROJECT], struct err *err);

/* {name: value} as the dialect of a version wants it: texts for argo; for ir, values of the types
 * that `inputs` (as in a flow document) say. A new reference. ERR_INVALID: a name is none of
 * them. */
int kfp_parameters(const json_t *given, const char *dialect, const json_t *inputs, json_t **out,
                   struct err *err);
/* The same for a pipeline that comes with the run; `file` stands for it in messages. */
int kfp_parameters_of(const json_t *given, const char *file, const char *text, size_t n,
                      json_t **out, struct err *err);

/* "trigger" of a document (pipelines/schedule.h) from the API's, and back. */
int kfp_trigger_read(const json_t *trigger, json_t **out, struct err *err);
json_t *kfp_trigger(const json_t *doc);
/* A number that clients send as one or as a text. */
long kfp_whole(const json_t *doc, const char *key);

/* The Workflow of a run with its status, as Argo's controller would have left it: JSON text, the
 * caller frees it. */
int kfp_workflow(struct request *q, const json_t *run, char **out, struct err *err);

#endif
