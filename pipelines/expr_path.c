/* pipelines/expr_path.c - JSON paths: $.a.b['c'][0][1:3][*][?(@.x > 1)]..name
 *
 * A path is walked from the left with the list of all matches so far. A path that can match several
 * (*, .., a slice, a filter) gives a list, another one its only match.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "pipelines/expr_int.h"

struct walk {
    struct expr_run *run;
    json_t *now;                /* a list: what matches so far */
    bool several;
};

static int add(struct walk *w, json_t *to, json_t *value)
{
    if (value)
        json_array_append(to, value);
    return expr_step(w->run, 16);
}

static int below(struct walk *w, json_t *to, json_t *of, int depth)
{
    size_t i;
    const char *key;
    json_t *v;
    if (add(w, to, of) < 0)
        return -ERR_INVALID;
    if (depth > FLOW_EXPR_DEPTH_MAX)
        return err_set(w->run->err, ERR_INVALID, "a value is nested too deeply for \"..\"");
    json_array_foreach (of, i, v)
        if (below(w, to, v, depth + 1) < 0)
            return -ERR_INVALID;
    json_object_foreach (of, key, v)
        if (below(w, to, v, depth + 1) < 0)
            return -ERR_INVALID;
    return 0;
}

static int every(struct walk *w, json_t *to, json_t *of)
{
    size_t i;
    const char *key;
    json_t *v;
    json_array_foreach (of, i, v)
        if (add(w, to, v) < 0)
            return -ERR_INVALID;
    json_object_foreach (of, key, v)
        if (add(w, to, v) < 0)
            return -ERR_INVALID;
    return 0;
}

/* @.field of the item that a filter looks at */
static json_t *filter_get(void *arg, const char *path)
{
    json_t *item = arg;
    return !strcmp(path, "$") ? json_incref(item) : NULL;
}

/* [?(expression)]: "@" is the item; read as the name "$" of a scope that knows nothing else. */
static int filter(struct walk *w, json_t *to, json_t *of, const char *text, size_t n)
{
    OWN_MEM char *copy = strndup(text, n);
    OWN(flow_expr) e = NULL;
    char quote = 0;
    for (char *p = copy; p && *p; p++) {
        if (quote ? *p == quote : *p == '"' || *p == '\'')
            quote = quote ? 0 : *p;
        if (!quote && *p == '@')
            *p = '$';
    }
    if (!copy || flow_expr_parse(copy, n, &e, w->run->err) < 0)
        return -ERR_INVALID;
    OWN_JSON json_t *items = json_array();
    if (every(w, items, of) < 0)
        return -ERR_INVALID;
    size_t i;
    json_t *item;
    json_array_foreach (items, i, item) {
        struct flow_scope scope = { filter_get, item };
        struct expr_run run = *w->run;
        OWN_JSON json_t *v = NULL;
        bool is = false;
        run.scope = &scope;
        int rc = expr_value(&run, e->root, true, &v);
        w->run->steps = run.steps;
        w->run->made = run.made;
        if (rc < 0)
            return rc;
        if (json_is_boolean(v))
            is = json_is_true(v);
        else
            is = !json_is_null(v);      /* [?(@.x)]: it has one */
        if (is && add(w, to, item) < 0)
            return -ERR_INVALID;
    }
    return 0;
}

static int slice(struct walk *w, json_t *to, json_t *of, const char *text)
{
    json_int_t size = (json_int_t)json_array_size(of);
    const char *colon = strchr(text, ':');
    json_int_t a = text[0] == ':' ? 0 : strtoll(text, NULL, 10), b = size;
    if (isdigit((unsigned char)colon[1]) || colon[1] == '-')
        b = strtoll(colon + 1, NULL, 10);
    a = a < 0 ? a + size : a;
    b = b < 0 ? b + size : b;
    for (json_int_t i = a < 0 ? 0 : a; i < b && i < size; i++)
        if (add(w, to, json_array_get(of, (size_t)i)) < 0)
            return -ERR_INVALID;
    return 0;
}

/* One [...] (its inside, `n` bytes) for one of the matches. */
static int bracket(struct walk *w, json_t *to, json_t *of, const char *text, size_t n)
{
    OWN_MEM char *in = strndup(text, n);
    if (!in)
        return err_set(w->run->err, ERR_NOMEM, "no memory for a path");
    if (!strcmp(in, "*"))
        return every(w, to, of);
    if (n > 3 && in[0] == '?' && in[1] == '(' && in[n - 1] == ')')
        return filter(w, to, of, in + 2, n - 3);
    if (n >= 2 && (in[0] == '\'' || in[0] == '"') && in[n - 1] == in[0]) {
        in[n - 1] = '\0';
        return add(w, to, json_object_get(of, in + 1));
    }
    if (strspn(in, "-0123456789:") != n || !n)
        return err_set(w->run->err, ERR_INVALID, "\"[%.40s]\" is no part of a JSON path", in);
    if (strchr(in, ':'))
        return slice(w, to, of, in);
    json_int_t i = strtoll(in, NULL, 10);
    i = i < 0 ? i + (json_int_t)json_array_size(of) : i;
    return add(w, to, i < 0 ? NULL : json_array_get(of, (size_t)i));
}

static size_t bracket_length(const char *p)
{
    char quote = 0;
    int open = 0;
    for (size_t i = 0; p[i]; i++) {
        if (quote ? p[i] == quote : p[i] == '"' || p[i] == '\'')
            quote = quote ? 0 : p[i];
        open += !quote && p[i] == '[';
        if (!quote && p[i] == ']' && !--open)
            return i + 1;
    }
    return 0;
}

/* Applies the part at `p` to all matches; *out_n: its length. */
static int part(struct walk *w, const char *p, size_t *out_n)
{
    OWN_JSON json_t *to = json_array();
    size_t i, n = 0;
    json_t *of;
    bool deep = p[0] == '.' && p[1] == '.';

    if (deep) {
        n = 1 + (p[2] == '[');
        w->several = true;
    } else if (p[0] == '[') {
        n = bracket_length(p);
        w->several |= n > 2 && (p[1] == '*' || p[1] == '?' || memchr(p, ':', n));
        if (p[1] == '\'' || p[1] == '"')
            w->several = w->several && !memchr(p, ':', n);
    } else {
        n = 1 + strcspn(p + 1, ".[");
        w->several |= n == 2 && p[1] == '*';
        if (p[0] != '.' || n == 1)
            n = 0;
    }
    if (!n)
        return err_set(w->run->err, ERR_INVALID, "\"%.40s\" is no part of a JSON path", p);
    OWN_MEM char *key = deep || p[0] == '[' ? NULL : strndup(p + 1, n - 1);
    json_array_foreach (w->now, i, of) {
        int rc = deep                ? below(w, to, of, 0)
                 : p[0] == '['       ? bracket(w, to, of, p + 1, n - 2)
                 : n == 2 && p[1] == '*' ? every(w, to, of)
                                     : add(w, to, json_object_get(of, key ? key : ""));
        if (rc < 0)
            return rc;
    }
    json_decref(w->now);
    w->now = TAKE(to);
    *out_n = n;
    return 0;
}

int expr_json_path(struct expr_run *r, const json_t *doc, const char *path, json_t **out)
{
    struct walk w = { r, json_array(), false };
    OWN_MEM char *text = NULL;
    int rc = 0;
    size_t n = 0;

    json_array_append(w.now, (json_t *)doc);
    while (isspace((unsigned char)*path))
        path++;
    const char *p = *path == '$' ? path + 1 : path;
    if (*path != '$' && *path != '.' && *path != '[' && asprintf(&text, ".%s", path) > 0)
        p = text;
    for (; rc == 0 && *p; p += n)
        rc = part(&w, p, &n);
    if (rc == 0 && w.several)
        *out = json_incref(w.now);
    else if (rc == 0 && json_array_size(w.now))
        *out = json_incref(json_array_get(w.now, 0));
    else if (rc == 0)
        rc = err_set(r->err, ERR_INVALID, "the JSON path \"%.80s\" matches nothing", path);
    json_decref(w.now);
    return rc;
}
