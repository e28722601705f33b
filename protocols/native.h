/* protocols/native.h - muster's own API: jobs, projects, values, health and metrics
 *
 * What the CLI and the console call. Paths and bodies are in docs/guides/server.md; errors are
 * {"error": {"code": HTTP status, "message": a sentence}}.
 */
#ifndef MUSTER_PROTOCOLS_NATIVE_H
#define MUSTER_PROTOCOLS_NATIVE_H

#include "server/http.h"

extern const struct protocol protocol_native;

#endif
