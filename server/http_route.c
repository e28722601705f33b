/* server/http_route.c - which handler: routes as a tree of segments */
#include <string.h>

#include "server/http_int.h"

/* In the order in which they are tried. */
enum node_kind { NODE_LITERAL, NODE_VERB, NODE_ANY, NODE_REST };

struct node {
    struct node *next, *child;
    enum node_kind kind;
    const char *text;           /* LITERAL: the segment; VERB: what it ends in; in the route's path */
    size_t n;
    char *name;                 /* of the argument */
    struct entry {
        struct entry *next;
        const struct http_route *route;
        const struct protocol *protocol;
    } *entries;
};

struct router {
    struct node top;
    const struct protocol *first;
};

static void node_free(struct node *n)
{
    while (n) {
        struct node *next = n->next;
        node_free(n->child);
        for (struct entry *e = n->entries; e;) {
            struct entry *after = e->next;
            free(e);
            e = after;
        }
        free(n->name);
        free(n);
        n = next;
    }
}

void router_free(struct router *r)
{
    if (!r)
        return;
    node_free(r->top.child);
    free(r);
}

static bool before(const struct node *a, const struct node *b)
{
    if (a->kind != b->kind)
        return a->kind < b->kind;
    return a->kind == NODE_VERB && a->n > b->n;
}

/* The child of `parent` for this segment of a route's path, made when it is new. */
static struct node *child_for(struct node *parent, const char *segment, size_t n)
{
    struct node want = { .kind = NODE_LITERAL, .text = segment, .n = n };
    const char *close = segment[0] == '{' ? memchr(segment, '}', n) : NULL;

    if (close) {
        bool rest = close[-1] == '*';
        want.text = close + 1;
        want.n = n - (size_t)(close + 1 - segment);
        want.kind = rest ? NODE_REST : want.n ? NODE_VERB : NODE_ANY;
        want.name = strndup(segment + 1, (size_t)(close - segment) - 1 - rest);
        if (!want.name)
            return NULL;
    }
    struct node **at = &parent->child;
    for (; *at && !before(&want, *at); at = &(*at)->next)
        if ((*at)->kind == want.kind && (*at)->n == want.n &&
            !memcmp((*at)->text, want.text, want.n) &&
            !strcmp((*at)->name ? (*at)->name : "", want.name ? want.name : "")) {
            free(want.name);
            return *at;
        }
    struct node *made = malloc(sizeof *made);
    if (!made) {
        free(want.name);
        return NULL;
    }
    *made = want;
    made->next = *at;
    *at = made;
    return made;
}

static int add_route(struct router *r, const struct protocol *p, const struct http_route *route,
                     struct err *err)
{
    struct node *at = &r->top;

    for (const char *s = route->path + 1; at;) {
        size_t n = strcspn(s, "/");
        at = child_for(at, s, n);
        s += n;
        if (!*s++)
            break;
    }
    struct entry *e = at ? calloc(1, sizeof *e) : NULL;
    if (!e)
        return err_set(err, ERR_NOMEM, "no memory for the routes");
    *e = (struct entry){ at->entries, route, p };
    at->entries = e;
    for (e = e->next; e; e = e->next)
        if (!strcmp(e->route->method, route->method))
            return err_set(err, ERR_CONFLICT, "%s %s is there twice, in %s and %s", route->method,
                           route->path, e->protocol->name, p->name);
    return 0;
}

int router_new(const struct protocol *const *protocols, struct router **out, struct err *err)
{
    OWN(router) r = calloc(1, sizeof *r);

    if (!r)
        return err_set(err, ERR_NOMEM, "no memory for the routes");
    r->first = protocols[0];
    for (; *protocols; protocols++)
        for (const struct http_route *route = (*protocols)->routes; route->method; route++)
            if (add_route(r, *protocols, route, err) < 0)
                return -(int)err->code;
    *out = TAKE(r);
    return 0;
}

/* ------------------------------------------------------------ finding */

struct walk {
    const char *method;
    const char *segment[SEGMENTS_MAX + 1];      /* decoded */
    size_t length[SEGMENTS_MAX + 1];
    const char *raw[SEGMENTS_MAX + 1];          /* where it begins in the path */
    int n;
    const char *end;            /* of the path */
    char *scratch;
    struct route_match *out;
};

static bool take_entry(struct walk *w, const struct node *n)
{
    const char *method = strcmp(w->method, "HEAD") ? w->method : "GET";

    for (const struct entry *e = n->entries; e; e = e->next) {
        w->out->protocol = e->protocol;
        if (!strcmp(e->route->method, method)) {
            w->out->route = e->route;
            return true;
        }
        size_t used = strlen(w->out->allow);
        snprintf(w->out->allow + used, sizeof w->out->allow - used, "%s%s", used ? ", " : "",
                 e->route->method);
    }
    return false;
}

static bool fits(const struct walk *w, const struct node *n, int i)
{
    size_t length = w->length[i];

    if (n->kind == NODE_LITERAL)
        return n->n == length && !memcmp(n->text, w->segment[i], length);
    if (n->kind == NODE_VERB)
        return length > n->n && !memcmp(w->segment[i] + length - n->n, n->text, n->n);
    return length > 0;
}

static bool find(struct walk *w, const struct node *at, int i)
{
    struct route_match *m = w->out;

    if (i == w->n)
        return take_entry(w, at);
    for (const struct node *n = at->child; n; n = n->next) {
        const int before_args = m->n_args;
        if (n->kind == NODE_REST) {
            if (w->raw[i] == w->end || m->n_args == ARGS_MAX)
                continue;
            /* Last use of the scratch: what was decoded before it is shorter than the path. */
            if (percent_decode(w->raw[i], (size_t)(w->end - w->raw[i]), false, w->scratch) < 0)
                return false;
            m->args[m->n_args++] = (struct pair){ n->name, w->scratch };
            if (take_entry(w, n))
                return true;
            m->n_args = before_args;
            continue;
        }
        if (!fits(w, n, i) || m->n_args == ARGS_MAX)
            continue;
        if (n->name)
            m->args[m->n_args++] = (struct pair){ n->name, w->segment[i] };
        if (find(w, n, i + 1)) {
            if (n->kind == NODE_VERB)   /* the verb is no part of the name */
                ((char *)w->segment[i])[w->length[i] - n->n] = 0;
            return true;
        }
        m->n_args = before_args;
    }
    return false;
}

int router_find(const struct router *r, const char *method, const char *path, size_t n,
                char *scratch, struct route_match *out)
{
    struct walk w = { .method = method, .end = path + n, .out = out };
    const char *at = path + 1;

    out->route = NULL;
    out->protocol = r->first;
    out->n_args = 0;
    out->allow[0] = 0;
    if (n == 0 || path[0] != '/')
        return -1;
    /* What is beyond SEGMENTS_MAX is reached by {name*} alone; there the count of segments is more
     * than any route has. */
    for (w.n = 0; w.n < SEGMENTS_MAX; at++) {
        const char *slash = memchr(at, '/', (size_t)(w.end - at));
        const char *stop = slash ? slash : w.end;
        long length = percent_decode(at, (size_t)(stop - at), false, scratch);
        if (length < 0)
            return -1;
        w.raw[w.n] = at;
        w.segment[w.n] = scratch;
        w.length[w.n++] = (size_t)length;
        scratch += length + 1;
        at = stop;
        if (!slash)
            break;
    }
    w.scratch = scratch;
    find(&w, &r->top, 0);
    return 0;
}
