/* protocols/google.h - what Google's APIs have in common: the form of an error, who a project is */
#ifndef MUSTER_PROTOCOLS_GOOGLE_H
#define MUSTER_PROTOCOLS_GOOGLE_H

#include "base/err.h"
#include "server/http.h"

/* {"error": {"code", "message", "status", "details"}}; a text "Field: F Error: E" becomes a
 * violation of that field in the details. For struct protocol. */
void google_error(struct request *q, const struct err *err);

/* The same with a status of its own: google_refuse(q, 400, "UNIMPLEMENTED", "..."). What is not
 * built is answered by 400: clients try a 501 again, half a minute long, and then speak of the
 * network. */
int google_refuse(struct request *q, int code, const char *status, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* The project of the path ({project}), which exists and which the token may use. */
int google_project(const struct request *q, const char **out, struct err *err);

/* pageSize of the query: `otherwise` where it is absent or 0, `max` at most. */
int google_page_size(const struct request *q, int otherwise, int max, int *out, struct err *err);

#endif
