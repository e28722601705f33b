/* cli/client.c - how commands find the server and call it */
#include "cli/client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/files.h"
#include "base/sealed.h"
#include "base/http.h"
#include "cli/client_wire.h"

enum { ANSWER_MAX = 256 << 20 };

static const char *env_of(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

/* Whole: jobs and other programs are told it, from other directories. */
static char *absolute(char *path)
{
    OWN_MEM char *relative = path, *here = NULL;
    char *out;

    if (!path || path[0] == '/')
        return TAKE(relative);
    here = getcwd(NULL, 0);
    return here && asprintf(&out, "%s/%s", here, relative) >= 0 ? out : NULL;
}

char *client_data_dir(const char *option)
{
    const char *dir = option ? option : env_of("MUSTER_DATA_DIR"), *xdg = env_of("XDG_DATA_HOME");
    char *out = NULL;

    if (dir)
        return absolute(files_resolve(NULL, dir));
    if (xdg && asprintf(&out, "%s/muster", xdg) < 0)
        out = NULL;
    return absolute(xdg ? out : files_resolve(NULL, "~/.local/share/muster"));
}

/* ------------------------------------------------------------ finding it */

static int no_server(const char *why, struct err *err)
{
    return err_set(err, ERR_AGAIN,
                   "no server runs here: %s (`muster serve` starts one; for another "
                   "machine's set MUSTER_SERVER)",
                   why);
}

/* A socket that the service manager keeps open for it: the next request starts the server. It must
 * be our own: another's at that address would be told our token. */
static bool is_kept_open(const char *address)
{
    const unsigned loopback = htonl(INADDR_LOOPBACK);
    unsigned wanted, host, port, state, user;
    char line[512];

    if (!address || sscanf(address, "http://127.0.0.1:%u", &wanted) != 1)
        return false;
    OWN_FILE FILE *sockets = fopen("/proc/net/tcp", "re");
    while (sockets && fgets(line, sizeof line, sockets))
        if (sscanf(line, " %*u: %8X:%4X %*8X:%*4X %2X %*s %*s %*s %u", &host, &port, &state,
                   &user) == 4 &&
            host == loopback && port == wanted && state == TCP_LISTEN && user == geteuid())
            return true;
    return false;
}

static bool is_locked(const char *dir)
{
    OWN_MEM char *path = NULL;

    if (asprintf(&path, "%s/server.lock", dir) < 0)
        path = NULL;
    OWN_FD int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    return fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
}

bool client_running(const char *dir, json_t **out)
{
    OWN_MEM char *path = NULL;
    struct err unread = { 0 };

    /* Before the file is read: a server that starts takes the lock, and then the file away. */
    const bool runs = is_locked(dir);
    if (out && asprintf(&path, "%s/server.json", dir) >= 0)
        sealed_load(path, out, &unread);        /* one that is damaged is none */
    return runs;
}

/* What a server that was killed left behind does not count. */
static int find_address(struct client *c, struct err *err)
{
    const char *named = env_of("MUSTER_SERVER");

    if (named) {
        c->server = strdup(named);
    } else {
        OWN_JSON json_t *doc = NULL;
        const bool runs = client_running(c->data_dir, &doc);
        const char *address = json_string_value(json_object_get(doc, "address"));
        if (!address)
            return no_server(runs ? "one is about to start or to end"
                             : "there is no server.json in the data directory", err);
        if (!runs && !(json_is_true(json_object_get(doc, "kept")) && is_kept_open(address)))
            return no_server("the last one has ended", err);
        c->server = strdup(address);
    }
    for (size_t n = c->server ? strlen(c->server) : 0; n && c->server[n - 1] == '/';)
        c->server[--n] = 0;
    return c->server ? 0 : err_set(err, ERR_NOMEM, "no memory for an address");
}

static int find_token(struct client *c, struct err *err)
{
    const char *named = env_of("MUSTER_TOKEN");
    OWN_MEM char *path = NULL, *text = NULL;
    struct err unread = { 0 };

    if (named) {
        c->token = strdup(named);
    } else {
        if (asprintf(&path, "%s/token", c->data_dir) < 0)
            return err_set(err, ERR_NOMEM, "no memory for a path");
        if (files_read(path, 4096, &text, NULL, &unread) < 0)
            return err_set(err, ERR_DENIED,
                           "there is no token for %s: set MUSTER_TOKEN (`muster project "
                           "token add` makes one where the server runs)",
                           c->server);
        text[strcspn(text, " \t\r\n")] = 0;
        c->token = strdup(text);
    }
    if (c->token && c->token[strcspn(c->token, "\r\n \t")])
        return err_set(err, ERR_INVALID, "MUSTER_TOKEN has a blank or a line break in it");
    return c->token ? 0 : err_set(err, ERR_NOMEM, "no memory for a token");
}

int client_open(struct client **out, struct err *err)
{
    OWN(client) c = calloc(1, sizeof *c);
    const char *project = env_of("MUSTER_PROJECT") ? env_of("MUSTER_PROJECT")
        : env_of("CLOUDSDK_CORE_PROJECT") ? env_of("CLOUDSDK_CORE_PROJECT") : "default";

    if (!c || !(c->data_dir = client_data_dir(NULL)) || !(c->project = strdup(project)))
        return err_set(err, ERR_NOMEM, "no memory for the server's address");
    if (find_address(c, err) < 0 || find_token(c, err) < 0)
        return -(int)err->code;
    *out = TAKE(c);
    return 0;
}

void client_free(struct client *c)
{
    if (!c)
        return;
    free(c->server);
    free(c->token);
    free(c->project);
    free(c->data_dir);
    free(c);
}

/* ------------------------------------------------------------ calling it */

char *client_path(const char *form, ...)
{
    OWN_BUF b = BUF_INIT;
    va_list args;

    va_start(args, form);
    for (; *form; form++) {
        const char *text = *form == '%' ? va_arg(args, const char *) : NULL;
        if (text)
            http_escape(&b, text);
        else
            buf_append(&b, form, 1);
    }
    va_end(args);
    return buf_take(&b);
}

static const struct { long status; enum err_code code; } codes[] = {
    { 400, ERR_INVALID }, { 401, ERR_DENIED }, { 403, ERR_DENIED }, { 404, ERR_MISSING },
    { 405, ERR_INVALID }, { 409, ERR_CONFLICT }, { 412, ERR_CONFLICT }, { 413, ERR_INVALID },
    { 421, ERR_DENIED }, { 429, ERR_AGAIN }, { 503, ERR_AGAIN },
};

static int say_refused(const struct client *c, long status, const json_t *doc, struct err *err)
{
    const char *text = json_string_value(json_object_get(json_object_get(doc, "error"), "message"));
    enum err_code code = ERR_IO;

    if (!text)                  /* as Kubeflow's API has it */
        text = json_string_value(json_object_get(doc, "message"));

    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (codes[i].status == status)
            code = codes[i].code;
    if (text)
        return err_set(err, code, "%s", text);
    return err_set(err, code, "the server at %s answers %ld and does not say why", c->server,
                   status);
}

/* One request with a body of this type; what the server refuses is told in its own sentence. */
static int send_bytes(struct client *c, const char *method, const char *path, const char *type,
                      const void *body, size_t n, struct http_response *out, struct err *err)
{
    OWN_MEM char *url = NULL, *token = NULL, *kind = NULL;

    if (asprintf(&url, "%s%s", c->server, path) < 0)
        url = NULL;
    if (asprintf(&token, "Authorization: Bearer %s", c->token) < 0)
        token = NULL;
    if (asprintf(&kind, "Content-Type: %s", type) < 0)
        kind = NULL;
    if (!url || !token || !kind)
        return err_set(err, ERR_NOMEM, "no memory for a request");
    const char *const headers[] = { token, kind, NULL };
    if ((wire_can(url) ? wire_call : http_call)(method, url, headers, body, n, ANSWER_MAX, out,
                                                err) < 0)
        return err->code != ERR_AGAIN ? -(int)err->code
               : env_of("MUSTER_SERVER")
                   ? err_set(err, ERR_AGAIN,
                             "nobody answers at %s, which MUSTER_SERVER names (a server that was "
                             "started again has another address: eval \"$(muster env)\" finds "
                             "it, eval \"$(muster env --unset)\" forgets this one)",
                             c->server)
                   : no_server("nobody answers at its address", err);
    if (out->status >= 200 && out->status <= 299)
        return 0;
    json_t *doc = json_loadb(out->body.data ? out->body.data : "", out->body.n, JSON_DECODE_ANY,
                             NULL);
    say_refused(c, out->status, doc, err);
    json_decref(doc);
    http_response_done(out);
    return -(int)err->code;
}

static int exchange(struct client *c, const char *method, const char *path, const json_t *body,
                    struct http_response *out, struct err *err)
{
    OWN_MEM char *text = body ? json_dumps(body, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;

    if (body && !text)
        return err_set(err, ERR_NOMEM, "no memory for a request");
    return send_bytes(c, method, path, "application/json", text, text ? strlen(text) : 0, out, err);
}

int client_call(struct client *c, const char *method, const char *path, const json_t *body,
                json_t **out, struct err *err)
{
    struct http_response r = { 0 };

    if (exchange(c, method, path, body, &r, err) < 0)
        return -(int)err->code;
    json_t *doc = r.body.n ? json_loadb(r.body.data, r.body.n, JSON_DECODE_ANY, NULL) : NULL;
    http_response_done(&r);
    if (out)
        *out = doc;
    else
        json_decref(doc);
    return 0;
}

int client_text(struct client *c, const char *path, struct buf *out, struct err *err)
{
    struct http_response r = { 0 };

    if (exchange(c, "GET", path, NULL, &r, err) < 0)
        return -(int)err->code;
    buf_append(out, r.body.data, r.body.n);
    http_response_done(&r);
    return buf_ok(out, err);
}

int client_send(struct client *c, const char *path, const char *type, const void *body, size_t n,
                json_t **out, struct err *err)
{
    struct http_response r = { 0 };

    if (send_bytes(c, "POST", path, type, body, n, &r, err) < 0)
        return -(int)err->code;
    *out = r.body.n ? json_loadb(r.body.data, r.body.n, JSON_DECODE_ANY, NULL) : NULL;
    http_response_done(&r);
    return 0;
}
