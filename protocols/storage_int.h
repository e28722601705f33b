/* protocols/storage_int.h - inside Cloud Storage's API; for storage*.c only
 *
 * An operation is a function of a call: it comes as a request of its own or as a part of a batch,
 * and cannot tell which.
 */
#ifndef MUSTER_PROTOCOLS_STORAGE_INT_H
#define MUSTER_PROTOCOLS_STORAGE_INT_H

#include "server/http.h"
#include "server/objects.h"

enum { CALL_QUERIES = 32 };

struct call {
    struct request *q;          /* of a batch: the whole of it */
    struct server *server;
    const char *project;        /* of the token; NULL: all */
    const char *base;           /* of the server's address, for links */
    const char *bucket, *object, *to_bucket, *to_object;
    bool part;                  /* of a batch: its query is here */
    struct { char *name, *value; } queries[CALL_QUERIES];
    int n_queries;
    json_t *body;               /* {} when there is none */
    int unmet;                  /* a condition that did not hold, as struct objects_when says */

    int status;                 /* the answer: 200 unless set */
    json_t *answer;             /* NULL: none */
};

typedef int storage_op(struct call *c, struct err *err);

/* method, path, name: one line an operation */
#define STORAGE_OPS(X)                                                                          \
    X("GET", "/storage/v1/b", bucket_list)                                                      \
    X("POST", "/storage/v1/b", bucket_insert)                                                   \
    X("GET", "/storage/v1/b/{bucket}", bucket_get)                                              \
    X("PATCH", "/storage/v1/b/{bucket}", bucket_patch)                                          \
    X("PUT", "/storage/v1/b/{bucket}", bucket_update)                                           \
    X("DELETE", "/storage/v1/b/{bucket}", bucket_delete)                                        \
    X("GET", "/storage/v1/b/{bucket}/storageLayout", bucket_layout)                             \
    X("GET", "/storage/v1/b/{bucket}/iam", bucket_policy)                                       \
    X("GET", "/storage/v1/b/{bucket}/iam/testPermissions", bucket_permissions)                  \
    X("GET", "/storage/v1/b/{bucket}/o", object_list)                                           \
    X("PATCH", "/storage/v1/b/{bucket}/o/{object*}", object_patch)                              \
    X("PUT", "/storage/v1/b/{bucket}/o/{object*}", object_update)                               \
    X("DELETE", "/storage/v1/b/{bucket}/o/{object*}", object_delete)                            \
    X("POST", "/storage/v1/b/{bucket}/o/{object}/compose", object_compose)                      \
    X("POST", "/storage/v1/b/{bucket}/o/{object}/copyTo/b/{to_bucket}/o/{to_object*}",          \
      object_copy)                                                                              \
    X("POST", "/storage/v1/b/{bucket}/o/{object}/rewriteTo/b/{to_bucket}/o/{to_object*}",       \
      object_rewrite)                                                                           \
    X("POST", "/storage/v1/b/{bucket}/o/{object}/moveTo/o/{to_object*}", object_move)

#define X(method, path, name) int storage_##name(struct call *c, struct err *err);
STORAGE_OPS(X)
#undef X
storage_op storage_object_get;  /* metadata; a request of its own takes a shorter way */

/* ------------------------------------------------------------ calls */

const char *call_query(const struct call *c, const char *name);         /* NULL: none */
/* A number of the query; `otherwise` when it is absent. ERR_INVALID. */
int call_number(const struct call *c, const char *name, int64_t otherwise, int64_t *out,
                struct err *err);
/* ifGenerationMatch and its like; "ifSource..." with source. */
int call_when(struct call *c, bool source, struct objects_when *out, struct err *err);
void call_done(struct call *c);

/* What an operation ended with, as an answer: its document, or err in Google's form. */
void call_settle(struct call *c, int rc, const struct err *err);

/* ------------------------------------------------------------ storage_doc.c */

json_t *storage_object_doc(const char *base, const struct object *o);
json_t *storage_bucket_doc(const char *base, const struct bucket *b);
/* {"error": {"code", "message", "errors": [{"message", "domain", "reason"}]}} */
json_t *storage_error_doc(int status, const char *text);
/* What of a client's document is kept; ERR_INVALID when a value is not what it should be. */
int storage_object_fields(const json_t *from, json_t **out, struct err *err);
int storage_bucket_fields(const json_t *from, json_t **out, struct err *err);
void storage_etag(const struct object *o, char out[48]);

/* ------------------------------------------------------------ routes of their own */

void storage_error(struct request *q, const struct err *err);
int storage_upload(struct request *q, struct err *err);
int storage_upload_body(struct request *q, const void *bytes, size_t n, struct err *err);
int storage_upload_cancel(struct request *q, struct err *err);
int storage_batch(struct request *q, struct err *err);

#endif
