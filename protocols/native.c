/* protocols/native.c - muster's own API: jobs, projects, values, health and metrics */
#include "protocols/native.h"

#include <string.h>

#include "base/clock.h"
#include "server/auth.h"
#include "server/server.h"

static void error(struct request *q, const struct err *err)
{
    const int status = request_error_status(q, err);

    respond_json(q, status, json_pack("{s:{s:i, s:s}}", "error", "code", status, "message",
                                      err->text));
}

static int get_health(struct request *q, struct err *err)
{
    (void)err;
    return respond_json(q, 200, json_pack("{s:s, s:s}", "status", "ok", "version", MUSTER_VERSION));
}

static const struct http_route routes[] = {
    { "GET", "/healthz", HTTP_OPEN, get_health, NULL },
    { 0 }
};

const struct protocol protocol_native = { "native", routes, error };
