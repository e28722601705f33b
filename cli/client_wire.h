/* cli/client_wire.h - one request to a server on this machine, over a plain socket
 *
 * What base/http.h does for any server, with libcurl, which takes some 10 ms to load: a command that
 * asks the server one thing would spend most of its time on it.
 */
#ifndef MUSTER_CLI_CLIENT_WIRE_H
#define MUSTER_CLI_CLIENT_WIRE_H

#include <stdbool.h>

#include "base/http.h"

/* Can it be asked that way? http://, and an address in digits. */
bool wire_can(const char *url);

/* As http_call. */
int wire_call(const char *method, const char *url, const char *const *headers, const void *body,
              size_t n_body, size_t max, struct http_response *out, struct err *err);

#endif
