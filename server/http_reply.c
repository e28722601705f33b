/* server/http_reply.c - what a handler sees of a request, and its answer on the way out */
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "server/http_int.h"

/* ------------------------------------------------------------ what was asked */

struct server *request_server(const struct request *q)
{
    return q->conn->loop->http->server;
}

const char *request_method(const struct request *q)
{
    return q->head.method;
}

const char *request_arg(const struct request *q, const char *name)
{
    for (int i = 0; i < q->match.n_args; i++)
        if (!strcmp(q->match.args[i].name, name))
            return q->match.args[i].value;
    return NULL;
}

const char *request_query(const struct request *q, const char *name)
{
    for (int i = 0; i < q->n_queries; i++)
        if (!strcmp(q->queries[i].name, name))
            return q->queries[i].value;
    return NULL;
}

const char *request_query_text(const struct request *q)
{
    return q->query_text;
}

const char *request_header(const struct request *q, const char *name)
{
    return head_find(&q->head, name);
}

const char *request_body(const struct request *q, size_t *out_n)
{
    if (out_n)
        *out_n = q->body.n;
    return q->body.data ? q->body.data : "";
}

int64_t request_length(const struct request *q)
{
    return q->head.chunked ? -1 : q->head.length;
}

/* Brackets that are open at once, outside of texts. */
static int depth_of(const char *text, size_t n)
{
    int depth = 0, deepest = 0;
    bool quoted = false;

    for (size_t i = 0; i < n; i++) {
        if (quoted && text[i] == '\\')
            i++;
        else if (text[i] == '"')
            quoted = !quoted;
        else if (!quoted && (text[i] == '{' || text[i] == '['))
            deepest = ++depth > deepest ? depth : deepest;
        else if (!quoted && (text[i] == '}' || text[i] == ']'))
            depth--;
    }
    return deepest;
}

/* What is wrong with a text that is no JSON, in a few words; `what` holds them where they name
 * something. */
static const char *say_wrong(const char *text, size_t n, const json_error_t *why, char *what,
                             size_t size)
{
    static const struct { enum json_error_code code; const char *words; } known[] = {
        { json_error_invalid_utf8, "there are bytes that are no UTF-8" },
        { json_error_premature_end_of_input, "it ends before it is whole" },
        { json_error_end_of_input_expected, "there is more after its end" },
        { json_error_null_character, "a character of number 0 is in it" },
        { json_error_null_byte_in_key, "a name has a character of number 0" },
        { json_error_duplicate_key, "a name is there twice" },
        { json_error_numeric_overflow, "a number is too large" },
    };
    const char *first = text + strspn(text, " \t\r\n");
    size_t end = why->position > 0 && (size_t)why->position <= n ? (size_t)why->position : 0;
    size_t from = end;

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (json_error_code(why) == known[i].code)
            return known[i].words;
    if (*first != '{' && *first != '[')
        return "it begins with neither { nor [";
    while (from > 0 && end - from < 24 && !strchr(" \t\r\n,:{}[]", text[from - 1]))
        from--;
    from -= from == end && end > 0;
    for (size_t i = from; i < end; i++)
        if ((unsigned char)text[i] < 0x20 || (unsigned char)text[i] > 0x7e)
            return "what is there is not expected";
    snprintf(what, size, "%.*s is not expected there", (int)(end - from), text + from);
    return end > from ? what : "what is there is not expected";
}

int http_json(const char *text, size_t n, json_t **out, struct err *err)
{
    char what[64];
    json_error_t why;

    if (n && depth_of(text, n) > HTTP_JSON_DEPTH)
        return err_set(err, ERR_INVALID, "the body is nested more than %d deep", HTTP_JSON_DEPTH);
    json_t *doc = n ? json_loadb(text, n, JSON_REJECT_DUPLICATES, &why) : json_object();
    if (!doc && !n)
        return err_set(err, ERR_NOMEM, "no memory for the request");
    if (!doc)
        return err_set(err, ERR_INVALID, "the body is not JSON at line %d, column %d: %s",
                       why.line < 1 ? 1 : why.line, why.column < 0 ? 0 : why.column,
                       say_wrong(text, n, &why, what, sizeof what));
    *out = doc;
    return 0;
}

int request_json(const struct request *q, json_t **out, struct err *err)
{
    size_t n;
    const char *text = request_body(q, &n);

    return http_json(text, n, out, err);
}

const char *request_project(const struct request *q)
{
    return q->who.root ? NULL : q->who.project;
}

const char *request_job(const struct request *q)
{
    return q->who.job[0] ? q->who.job : NULL;
}

int request_allows(const struct request *q, const char *project, struct err *err)
{
    if (q->who.root || (q->who.project[0] && !strcmp(q->who.project, project)))
        return 0;
    return err_set(err, ERR_DENIED, "this token is of another project than \"%.64s\": name "
                   "its own (--project, MUSTER_PROJECT)", project);
}

const char *request_base(const struct request *q)
{
    struct request *own = (struct request *)q;  /* made at the first use */
    const struct http *h = q->conn->loop->http;

    if (!q->base) {
        const char *host = *q->head.host ? q->head.host : strstr(h->server->address, "://") + 3;
        struct buf b = BUF_INIT;        /* of every answer with a link in it: no printf */
        buf_text(&b, h->tls ? "https://" : "http://");
        buf_text(&b, host);
        if (q->by_prefix) {
            buf_text(&b, "/k/");
            buf_text(&b, q->token);
        }
        own->base = buf_take(&b);
    }
    return q->base ? q->base : "";
}

void request_keep(struct request *q, void *state, void (*free_state)(void *state))
{
    if (q->free_kept)
        q->free_kept(q->kept);
    q->kept = state;
    q->free_kept = free_state;
}

void *request_kept(const struct request *q)
{
    return q->kept;
}

int request_error_status(const struct request *q, const struct err *err)
{
    /* Clients try again for minutes after 500 and 503; to a full disk that is no help. */
    const bool full = err->code == ERR_IO && strstr(err->text, "disk is full");

    return q->no_token ? 401 : q->too_long ? 413 : full ? 507 : err_http(err->code);
}

/* What the answer holds: a handler that fails after all gives it back here, too. */
static void drop_answer(struct request *q)
{
    if (q->answer == ANSWER_FILE)
        close(q->fd);
    if (q->answer == ANSWER_STREAM)
        atomic_fetch_sub(&q->conn->loop->http->n_streams, 1);
    if (q->release)
        q->release(q->release_arg);
    q->release = NULL;
    q->answer = ANSWER_NONE;
}

void request_done(struct request *q)
{
    drop_answer(q);
    request_keep(q, NULL, NULL);
    free(q->scratch);
    free(q->head_mem);
    free(q->base);
    buf_done(&q->body);
    buf_done(&q->extra);
    struct conn *c = q->conn;
    const size_t kept = offsetof(struct request, path);
    memset((char *)q + kept, 0, sizeof *q - kept);
    memset(&q->head, 0, offsetof(struct head, headers));
    q->head.n_headers = 0;
    q->head.length = 0;
    q->head.chunked = q->head.keep_alive = q->head.expects_continue = false;
    q->conn = c;
}

/* ------------------------------------------------------------ the answer */

/* A value with a line break in it would be a second header: it is cut there. */
void respond_header(struct request *q, const char *name, const char *value)
{
    if (!strcasecmp(name, "content-security-policy"))
        q->own_policy = true;
    if (!strcasecmp(name, "cache-control"))
        q->own_cache = true;
    buf_text(&q->extra, name);
    buf_text(&q->extra, ": ");
    buf_append(&q->extra, value, strcspn(value, "\r\n"));
    buf_text(&q->extra, "\r\n");
}

void respond_headers(struct request *q, const char *lines, size_t n)
{
    buf_append(&q->extra, lines, n);
}

static int answer(struct request *q, int status, const char *type, enum answer_kind kind)
{
    drop_answer(q);
    q->status = status;
    q->type = type;
    q->answer = kind;
    return 0;
}

int respond_bytes(struct request *q, int status, const char *type, const void *bytes, size_t n)
{
    char *copy = malloc(n ? n : 1);

    if (!copy)
        return respond_empty(q, 500);
    if (n)
        memcpy(copy, bytes, n);
    return respond_shared(q, status, type, copy, n, free, copy);
}

int respond_shared(struct request *q, int status, const char *type, const void *bytes, size_t n,
                   void (*release)(void *arg), void *arg)
{
    answer(q, status, type, ANSWER_SHARED);
    q->bytes = bytes;
    q->n = n;
    q->release = release;
    q->release_arg = arg;
    return 0;
}

int respond_json(struct request *q, int status, json_t *doc)
{
    char *text = doc ? json_dumps(doc, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;

    json_decref(doc);
    if (!text)
        return respond_empty(q, 500);
    return respond_shared(q, status, "application/json; charset=utf-8", text, strlen(text), free,
                          text);
}

int respond_file(struct request *q, int status, const char *type, int fd, uint64_t offset,
                 uint64_t n)
{
    answer(q, status, type, ANSWER_FILE);
    q->fd = fd;
    q->offset = offset;
    q->n = n;
    return 0;
}

int respond_reader(struct request *q, int status, const char *type, uint64_t offset, uint64_t n,
                   long (*read)(void *arg, uint64_t at, const char **out), void *arg,
                   void (*free_arg)(void *arg))
{
    answer(q, status, type, ANSWER_READER);
    q->offset = offset;
    q->n = n;
    q->read = read;
    q->release = free_arg;
    q->release_arg = arg;
    return 0;
}

int respond_empty(struct request *q, int status)
{
    answer(q, status, NULL, ANSWER_BYTES);
    q->n = 0;
    return 0;
}

int respond_stream(struct request *q, int status, const char *type,
                   long (*more)(void *arg, char *out, size_t max), void *arg,
                   void (*free_arg)(void *arg))
{
    answer(q, status, type, ANSWER_STREAM);
    atomic_fetch_add(&q->conn->loop->http->n_streams, 1);
    q->more = more;
    q->release = free_arg;
    q->release_arg = arg;
    return 0;
}

/* For what is refused before a protocol is known; Google's form, which every client can read. */
void reply_plain(struct request *q, int status, const char *text)
{
    respond_json(q, status, json_pack("{s:{s:i, s:s}}", "error", "code", status, "message", text));
}

/* ------------------------------------------------------------ its head, as bytes */

static const struct { int status; const char *text; } statuses[] = {
    { 200, "OK" }, { 201, "Created" }, { 202, "Accepted" }, { 204, "No Content" },
    { 206, "Partial Content" }, { 301, "Moved Permanently" }, { 302, "Found" }, { 303, "See Other" },
    { 304, "Not Modified" }, { 307, "Temporary Redirect" }, { 308, "Resume Incomplete" },
    { 400, "Bad Request" }, { 401, "Unauthorized" }, { 403, "Forbidden" }, { 404, "Not Found" },
    { 405, "Method Not Allowed" }, { 408, "Request Timeout" }, { 409, "Conflict" }, { 410, "Gone" },
    { 411, "Length Required" }, { 412, "Precondition Failed" }, { 413, "Content Too Large" },
    { 415, "Unsupported Media Type" }, { 416, "Range Not Satisfiable" },
    { 417, "Expectation Failed" }, { 421, "Misdirected Request" }, { 429, "Too Many Requests" },
    { 431, "Request Header Fields Too Large" }, { 499, "Client Closed Request" },
    { 500, "Internal Server Error" }, { 501, "Not Implemented" }, { 503, "Service Unavailable" },
    { 505, "HTTP Version Not Supported" }, { 507, "Insufficient Storage" },
};

static const char *status_text(int status)
{
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++)
        if (statuses[i].status == status)
            return statuses[i].text;
    return "Answer";
}

static void add_number(struct buf *b, uint64_t n)
{
    char digits[20];
    int i = sizeof digits;

    do
        digits[--i] = (char)('0' + n % 10);
    while (n /= 10);
    buf_append(b, digits + i, sizeof digits - (size_t)i);
}

#define ADD(b, literal) buf_append(b, literal, sizeof literal - 1)

void reply_begin(struct conn *c)
{
    struct request *q = &c->q;
    struct loop *l = c->loop;
    struct buf *b = &c->out;
    const bool bare = q->status == 204 || q->status == 304;

    buf_clear(b);
    c->out_at = 0;
    if (q->status == 200) {
        ADD(b, "HTTP/1.1 200 OK\r\nDate: ");
    } else {
        ADD(b, "HTTP/1.1 ");
        add_number(b, (uint64_t)q->status);
        ADD(b, " ");
        buf_text(b, status_text(q->status));
        ADD(b, "\r\nDate: ");
    }
    buf_text(b, l->date);
    if (q->type) {
        ADD(b, "\r\nContent-Type: ");
        buf_append(b, q->type, strcspn(q->type, "\r\n"));
    }
    if (q->answer == ANSWER_STREAM) {
        if (q->head.minor == 0)
            c->close_after = true;
        else
            ADD(b, "\r\nTransfer-Encoding: chunked");
    } else if (!bare) {
        ADD(b, "\r\nContent-Length: ");
        add_number(b, q->n);
    }
    if (c->close_after)
        ADD(b, "\r\nConnection: close");
    else if (q->head.minor == 0)
        ADD(b, "\r\nConnection: keep-alive");
    if (q->status == 401)
        ADD(b, "\r\nWWW-Authenticate: Bearer");
    ADD(b, "\r\n" SAFE_HEADERS);
    if (!q->own_policy)
        ADD(b, SAFE_POLICY);
    if (!q->own_cache)
        ADD(b, "Cache-Control: no-store\r\n");
    if (q->extra.n)
        buf_append(b, q->extra.data, q->extra.n);
    ADD(b, "\r\n");
    if (bare || (q->head.method && !strcmp(q->head.method, "HEAD")))
        drop_answer(q);
    else if (q->answer == ANSWER_SHARED && q->n <= KEEP_BUFFER) {
        /* Copying so little costs less than a second piece for the kernel to gather. */
        if (q->n)
            buf_append(b, q->bytes, (size_t)q->n);
        drop_answer(q);
    }
}
