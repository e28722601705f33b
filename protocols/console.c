/* protocols/console.c - the web console, as files
 *
 * The pages hold no secret and need no token; what they ask for does. They load nothing from
 * elsewhere and may not be framed, which the headers tell the browser to enforce.
 *
 * The page keeps its session in the storage of its origin, so nobody else may ever be that origin. An
 * address such as 127.0.0.1:8470 is the server's as long as it listens. The name "localhost" is not:
 * it means ::1 as well, where another program may have the same port. The console is therefore shown
 * at the address alone, and the name leads there.
 */
#include "protocols/console.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/own.h"
#include "server/server.h"

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
                   "frame-src 'self'; frame-ancestors 'none'; worker-src 'none'");
    respond_header(q, "Cross-Origin-Opener-Policy", "same-origin");
    respond_header(q, "Cache-Control", "no-cache");
    respond_header(q, "ETag", p->etag);
    if (known && strcmp(known, p->etag) == 0)
        return respond_empty(q, 304);
    respond_header(q, "Content-Encoding", "gzip");
    return respond_shared(q, 200, p->type, p->bytes, p->n, NULL, NULL);
}

/* The server's address with the port that the browser called, which a tunnel may have changed; NULL:
 * the page may be shown where it is. Yours. */
static char *address_for(const struct request *q)
{
    const char *own = request_server(q)->address, *host = request_header(q, "Host");
    const char *port = host && !strncasecmp(host, "localhost", 9) ? host + 9 : NULL;
    char *out = NULL;

    /* With TLS the certificate says whose the name is. */
    if (!port || (*port && *port != ':') || strncmp(own, "http://", 7))
        return NULL;
    const char *end = strrchr(own, ':');
    return asprintf(&out, "%.*s%s/", (int)(end - own), own, port) < 0 ? NULL : out;
}

/* Whoever has the cookie that consoles used to keep loses it: it is good for nothing. */
static void clear_cookie(struct request *q)
{
    const char *sent = request_header(q, "Cookie");

    if (sent && strstr(sent, "muster="))
        respond_header(q, "Set-Cookie", "muster=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict");
}

static int get_index(struct request *q, struct err *err)
{
    OWN_MEM char *elsewhere = address_for(q);

    clear_cookie(q);
    if (elsewhere) {
        respond_header(q, "Location", elsewhere);
        return respond_empty(q, 307);
    }
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
