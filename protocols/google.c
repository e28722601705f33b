/* protocols/google.c - what Google's APIs have in common */
#include "protocols/google.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/auth.h"
#include "server/server.h"

static const struct {
    int code;
    const char *status;
} statuses[] = {
    { 400, "INVALID_ARGUMENT" }, { 401, "UNAUTHENTICATED" },    { 403, "PERMISSION_DENIED" },
    { 404, "NOT_FOUND" },        { 405, "UNIMPLEMENTED" },      { 409, "ALREADY_EXISTS" },
    { 413, "INVALID_ARGUMENT" }, { 429, "RESOURCE_EXHAUSTED" }, { 501, "UNIMPLEMENTED" },
    { 503, "UNAVAILABLE" },      { 507, "RESOURCE_EXHAUSTED" },
};

static const char *status_of(int code)
{
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++)
        if (statuses[i].code == code)
            return statuses[i].status;
    return "INTERNAL";
}

static int answer(struct request *q, int code, const char *status, const char *text)
{
    json_t *error = json_pack("{s:i, s:s, s:s}", "code", code, "message", text, "status", status);
    const char *what = strstr(text, " Error: ");
    if (!strncmp(text, "Field: ", 7) && what)
        json_object_set_new(error, "details",
                            json_pack("[{s:s, s:[{s:s%, s:s}]}]", "@type",
                                      "type.googleapis.com/google.rpc.BadRequest",
                                      "fieldViolations", "field", text + 7,
                                      (size_t)(what - text - 7), "description", what + 8));
    return respond_json(q, code, json_pack("{s:o}", "error", error));
}

void google_error(struct request *q, const struct err *err)
{
    int code = request_error_status(q, err);
    answer(q, code, status_of(code), err->text);
}

int google_refuse(struct request *q, int code, const char *status, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return answer(q, code, status, text);
}

int google_project(const struct request *q, const char **out, struct err *err)
{
    const char *project = request_arg(q, "project");
    if (request_allows(q, project, err) < 0)
        return -(int)err->code;
    if (!auth_project_exists(request_server(q)->auth, project))
        return err_set(err, ERR_MISSING,
                       "there is no project \"%.64s\" here (muster project add NAME "
                       "makes one; \"default\" is always there)",
                       project);
    *out = project;
    return 0;
}

int google_page_size(const struct request *q, int otherwise, int max, int *out, struct err *err)
{
    const char *text = request_query(q, "pageSize");
    if (!text || !*text) {
        *out = otherwise;
        return 0;
    }
    char *end;
    long n = strtol(text, &end, 10);
    if (*end || n < 0)
        return err_set(err, ERR_INVALID,
                       "Field: pageSize Error: \"%.20s\" is no number of entries.", text);
    *out = n == 0 ? otherwise : n > max ? max : (int)n;
    return 0;
}
