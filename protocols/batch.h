/* protocols/batch.h - one call of a batch as text */
#ifndef MUSTER_PROTOCOLS_BATCH_H
#define MUSTER_PROTOCOLS_BATCH_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* Into the text, which is cut up; the query is NULL when there is none. */
struct batch_call {
    char *method, *path, *query;
    char *body;
    size_t n_body;
};

/* "DELETE http://host/k/TOKEN/storage/v1/b/B/o/O HTTP/1.1", headers, an empty line, the body. The
 * text has a NUL after its n bytes. */
int batch_parse(char *text, size_t n, struct batch_call *out, struct err *err);

/* Percent-decoded, the caller's; NULL: an escape is broken or stands for NUL, it is not UTF-8,
 * or there is no memory. */
char *batch_decoded(const char *text, size_t n, bool plus_is_blank);

#endif
