/* protocols/storage_batch.h - one call of a batch as text; its parser, for tests */
#ifndef MUSTER_PROTOCOLS_STORAGE_BATCH_H
#define MUSTER_PROTOCOLS_STORAGE_BATCH_H

#include <stddef.h>

#include "base/err.h"

/* Into the text, which is cut up; the query is NULL when there is none. */
struct batch_call {
    char *method, *path, *query;
    char *body;
    size_t n_body;
};

/* "DELETE http://host/k/TOKEN/storage/v1/b/B/o/O HTTP/1.1", headers, an empty line, the body. The text
 * has a NUL after its n bytes. */
int batch_parse(char *text, size_t n, struct batch_call *out, struct err *err);

#endif
