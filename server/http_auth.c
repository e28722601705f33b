/* server/http_auth.c - who asks: where a request has its token, and what it may do with it
 *
 * Nothing that a browser adds to a request by itself counts: no cookie, no password that it remembers.
 * Cookies in particular belong to a host and not to a port, so that every program which listens on
 * this machine and is opened in the same browser is sent them.
 */
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "server/http_int.h"
#include "server/tickets.h"

static bool same_token(const char *a, const char *b)
{
    unsigned char differ = 0;
    size_t n = strlen(a);

    if (n != strlen(b))
        return false;
    for (size_t i = 0; i < n; i++)
        differ |= (unsigned char)(a[i] ^ b[i]);
    return !differ;
}

/* Where the client put its token; q->token is set from the path already. */
static void find_token(struct request *q)
{
    const char *header = head_find(&q->head, "authorization");
    const char *key = request_query(q, "key");

    if (q->by_prefix)
        return;
    if (header && !strncasecmp(header, "bearer ", 7)) {
        key = header + 7 + strspn(header + 7, " ");
        q->by_header = true;
    }
    if (key && strlen(key) < TOKEN_MAX)
        memcpy(q->token, key, strlen(key) + 1);
}

/* A token, or, in the header, a browser's session. */
static bool check_anew(struct auth *auth, struct request *q, const char *token)
{
    if (auth_check(auth, token, &q->who))
        return true;
    q->by_session = q->by_header && auth_session_check(auth, token, &q->who);
    return q->by_session;
}

/* The last part of the query is a ticket for all that is before it. */
static bool use_ticket(struct conn *c)
{
    struct request *q = &c->q;
    struct http *h = c->loop->http;
    const char *last = strrchr(q->query_text, '&'), *start = last ? last + 1 : q->query_text;
    char token[AUTH_TOKEN];
    struct buf target = BUF_INIT;

    if (strncmp(start, "ticket=", 7)
        || (strcmp(q->head.method, "GET") && strcmp(q->head.method, "HEAD")))
        return false;
    buf_text(&target, q->path);
    if (last) {
        buf_text(&target, "?");
        buf_append(&target, q->query_text, (size_t)(last - q->query_text));
    }
    bool ok = !target.failed
        && tickets_find(h->tickets, start + 7, target.data, clock_seconds(), token);
    buf_done(&target);
    return ok && (auth_check(h->server->auth, token, &q->who)
                  || auth_session_check(h->server->auth, token, &q->who));
}

/* Who asks, by what was found out on this connection before, or anew. */
static bool know_token(struct conn *c)
{
    struct request *q = &c->q;
    struct auth *auth = c->loop->http->server->auth;
    const unsigned epoch = auth_epoch(auth);

    find_token(q);
    if (!q->token[0])
        return use_ticket(c);
    if (c->good_token[0] && c->good_epoch == epoch && c->good_header == q->by_header
        && same_token(c->good_token, q->token) && clock_seconds() < c->good.until) {
        q->who = c->good;
        q->by_session = c->good_session;
        return true;
    }
    if (!check_anew(auth, q, q->token))
        return false;
    memcpy(c->good_token, q->token, sizeof c->good_token);
    c->good_header = q->by_header;
    c->good_session = q->by_session;
    c->good = q->who;
    c->good_epoch = epoch;
    return true;
}

bool token_still_good(struct conn *c)
{
    struct request *q = &c->q;
    struct auth *auth = c->loop->http->server->auth;
    const unsigned epoch = auth_epoch(auth);

    if (!q->token[0] || !c->good_token[0])
        return true;            /* a ticket's, which let in and no more; or nobody's */
    if (c->good_epoch == epoch && (c->good.until == 0 || clock_seconds() < c->good.until))
        return true;
    if (!check_anew(auth, q, q->token))
        return false;
    c->good_epoch = epoch;
    return true;
}

int token_check(struct conn *c)
{
    struct request *q = &c->q;
    const unsigned flags = q->match.route->flags;

    q->known = know_token(c);
    if (flags & HTTP_OPEN)
        return 0;
    if (!q->known) {
        q->no_token = true;
        return err_set(&c->err, ERR_DENIED,
                       q->token[0] ? "nobody has this token (muster env prints "
                                     "what to use)"
                                   : "this needs a token (muster env prints what to use)");
    }
    if ((flags & HTTP_ROOT) && !q->who.root)
        return err_set(&c->err, ERR_DENIED, "this needs the server's own token, not a project's");
    if (q->who.job[0] && !(flags & HTTP_JOB))
        return err_set(&c->err, ERR_DENIED,
                       "a job's token is for its project's buckets and for what "
                       "is the job's own: this needs a project's");
    return 0;
}

char *token_cut_prefix(struct request *q, char *target)
{
    size_t n;

    if (strncmp(target, "/k/", 3) || !(n = strcspn(target + 3, "/?")) || n >= TOKEN_MAX)
        return target;
    memcpy(q->token, target + 3, n);
    q->token[n] = 0;
    q->by_prefix = true;
    target += 3 + n;
    if (*target == '/')
        return target;
    *--target = '/';            /* of the token's last letter, which is kept above */
    return target;
}

const char *request_session(const struct request *q)
{
    return q->by_session ? q->token : NULL;
}

int request_ticket(const struct request *q, const char *target, char out[AUTH_TOKEN],
                   struct err *err)
{
    return tickets_add(q->conn->loop->http->tickets, target, q->token, clock_seconds(), out, err);
}
