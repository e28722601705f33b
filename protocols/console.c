/* protocols/console.c - the web console, as files
 *
 * The pages hold no secret and need no token; what they ask for does. They load nothing from
 * elsewhere and may not be framed, which the headers tell the browser to enforce.
 */
#include "protocols/console.h"

#include <string.h>

static int send_page(struct request *q, const char *name, struct err *err)
{
    const struct console_page *p = console_pages;
    const char *known = request_header(q, "If-None-Match");

    while (p->name && strcmp(p->name, name) != 0)
        p++;
    if (!p->name)
        return err_set(err, ERR_MISSING, "%s: no such page", name);
    respond_header(q, "Content-Security-Policy",
                   "default-src 'none'; script-src 'self'; style-src 'self'; "
                   "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
                   "frame-src 'self'; frame-ancestors 'none'");
    respond_header(q, "X-Content-Type-Options", "nosniff");
    respond_header(q, "Referrer-Policy", "no-referrer");
    respond_header(q, "Cache-Control", "no-cache");
    respond_header(q, "ETag", p->etag);
    if (known && strcmp(known, p->etag) == 0)
        return respond_empty(q, 304);
    respond_header(q, "Content-Encoding", "gzip");
    return respond_shared(q, 200, p->type, p->bytes, p->n, NULL, NULL);
}

static int get_index(struct request *q, struct err *err)
{
    return send_page(q, "index.html", err);
}

static int get_part(struct request *q, struct err *err)
{
    return send_page(q, request_arg(q, "name"), err);
}

static void tell_error(struct request *q, const struct err *err)
{
    respond_bytes(q, err_http(err->code), "text/plain; charset=utf-8", err->text,
                  strlen(err->text));
}

static const struct http_route routes[] = {
    { "GET", "/", HTTP_OPEN, get_index, NULL },
    { "GET", "/console/{name}", HTTP_OPEN, get_part, NULL },
    { 0 },
};

const struct protocol protocol_console = { "console", routes, tell_error };
