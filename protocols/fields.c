/* protocols/fields.c - part of an answer
 *
 * The text becomes a tree of names first, as a JSON object each of whose values is such a tree; an
 * empty one stands for everything below.
 */
#include "protocols/fields.h"

#include <string.h>

#include "base/own.h"

enum { DEPTH_MAX = 16 };

struct text {
    const char *begin, *p;
};

static int bad(const struct text *t, struct err *err)
{
    return err_set(err, ERR_INVALID, "Invalid field selection %.100s (at character %d)", t->begin,
                   (int)(t->p - t->begin) + 1);
}

static json_t *child(json_t *tree, const char *name, size_t n)
{
    json_t *there = json_object_getn(tree, name, n);

    if (there)
        return there;
    json_t *made = json_object();
    return json_object_setn_new(tree, name, n, made) == 0 ? made : NULL;
}

/* name[/name...][(list)], several between commas. */
static int parse_list(struct text *t, json_t *tree, int depth, struct err *err)
{
    if (depth > DEPTH_MAX)
        return bad(t, err);
    for (;;) {
        json_t *at = tree;
        for (int steps = 0; ; steps++) {
            size_t n = strcspn(t->p, ",/()");
            if (n == 0 || steps > DEPTH_MAX || !(at = child(at, t->p, n)))
                return bad(t, err);
            t->p += n;
            if (*t->p != '/')
                break;
            t->p++;
        }
        if (*t->p == '(') {
            t->p++;
            if (parse_list(t, at, depth + 1, err) < 0)
                return -(int)err->code;
            if (*t->p != ')')
                return bad(t, err);
            t->p++;
        }
        if (*t->p != ',')
            return 0;
        t->p++;
    }
}

static json_t *apply(json_t *doc, json_t *tree)
{
    const char *key;
    json_t *value, *below;
    size_t i;

    if (json_object_size(tree) == 0)
        return json_incref(doc);
    if (json_is_array(doc)) {
        json_t *list = json_array();
        json_array_foreach(doc, i, value)
            json_array_append_new(list, apply(value, tree));
        return list;
    }
    if (!json_is_object(doc))
        return json_incref(doc);
    json_t *out = json_object();
    json_t *all = json_object_get(tree, "*");
    if (all)
        json_object_foreach(doc, key, value)
            json_object_set_new(out, key, apply(value, all));
    json_object_foreach(tree, key, below)
        if ((value = json_object_get(doc, key)))
            json_object_set_new(out, key, apply(value, below));
    return out;
}

int fields_select(json_t *doc, const char *fields, json_t **out, struct err *err)
{
    struct text t = { fields, fields };
    OWN_JSON json_t *tree = json_object();

    if (!*fields) {
        *out = json_incref(doc);
        return 0;
    }
    if (parse_list(&t, tree, 0, err) < 0)
        return -(int)err->code;
    if (*t.p)
        return bad(&t, err);
    *out = apply(doc, tree);
    return 0;
}
