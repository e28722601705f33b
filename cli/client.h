/* cli/client.h - how commands find the server and call it
 *
 * The server is $MUSTER_SERVER (a URL), or else what DATA/server.json says, where DATA is
 * $MUSTER_DATA_DIR or ${XDG_DATA_HOME:-~/.local/share}/muster. The token is $MUSTER_TOKEN, or else in
 * DATA/token. The project is $MUSTER_PROJECT, $CLOUDSDK_CORE_PROJECT, or "default".
 *
 *     OWN(client) c = NULL;
 *     OWN_JSON json_t *doc = NULL;
 *     if (client_open(&c, err) < 0 || client_call(c, "GET", "/api/jobs", NULL, &doc, err) < 0)
 *         return -(int)err->code;
 */
#ifndef MUSTER_CLI_CLIENT_H
#define MUSTER_CLI_CLIENT_H

#include <jansson.h>
#include <stdbool.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/own.h"

struct client {
    char *server;               /* "http://127.0.0.1:8470", no slash at the end */
    char *token;
    char *project;
    char *data_dir;
};

/* `option` when it is given, else as above. Caller frees; NULL: no memory. */
char *client_data_dir(const char *option);

/* Whether a server has this data directory now: it holds its lock. *out (may be NULL) is what
 * DIR/server.json says, yours; untouched when there is none: it starts or ends. Without a server it is
 * what the last one left. */
bool client_running(const char *dir, json_t **out);

/* ERR_AGAIN when there is no server, with what to do. Nothing is sent yet. */
int client_open(struct client **out, struct err *err);
void client_free(struct client *c);
OWN_DEFINE(client)

/* One call of the JSON API. `body` NULL: none. *out (may be NULL) is the answer's document, NULL when
 * it has none; yours. What the server refuses is told in its own sentence, with the code of the
 * status. */
int client_call(struct client *c, const char *method, const char *path, const json_t *body,
                json_t **out, struct err *err);

/* A POST whose body is not JSON; its answer is. */
int client_send(struct client *c, const char *path, const char *type, const void *body, size_t n,
                json_t **out, struct err *err);

/* What a GET answers, as it is. */
int client_text(struct client *c, const char *path, struct buf *out, struct err *err);

/* "/api/projects/PROJECT/tokens/ID" of "/api/projects/%/tokens/%" and two texts, each escaped; a
 * NULL ends them. Caller frees; NULL: no memory. */
char *client_path(const char *form, ...) __attribute__((sentinel));

#endif
