/* spec/set.c - "--set key.sub=value": what the command line changes in a spec */
#include "spec/set.h"

#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "spec/keys.h"

struct walk {
    const char *arg;
    struct value *at;
    const char *map;            /* the vocabulary's name of `at` when it is a map; NULL: unknown */
    const char *item;           /* the map of each item when `at` is a list or holds user's names */
    const struct key *row;      /* of the key that led to `at`; NULL: unknown */
};

static int refuse(const struct walk *w, struct err *err, const char *what)
{
    return err_set(err, ERR_INVALID, "--set %s: %s", w->arg, what);
}

static int no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "no memory for the spec");
}

/* Remembers what the vocabulary says about the value below `key`. */
static void enter(struct walk *w, const struct key *k)
{
    w->map = w->item = NULL;
    w->row = k;
    if (!k)
        return;
    if (k->kind == KEY_MAP)
        w->map = k->of;
    else if (k->kind == KEY_NAMED)
        w->item = k->of;
    else if (k->kind == KEY_MODEL) {
        w->map = w->at->kind == VALUE_LIST ? NULL : "model";
        w->item = "layer";
    } else if (k->kind == KEY_STOP)
        w->item = "rule";
}

/* Writes a short form out: `relu` as {relu: }, `linear: 120` as linear: {out: 120}. */
static int expand(struct walk *w, const char *key, struct err *err)
{
    struct value *v = w->at;
    const struct key *brief = w->map ? key_flagged(w->map, KEY_SHORT) : NULL;
    const struct key *head = w->map && v->kind == VALUE_SCALAR ? key_find(w->map, v->text) : NULL;
    OWN(value) map = value_new(VALUE_MAP);
    struct value *inner = value_new(v->kind);

    if (!map || !inner) {
        value_free(inner);
        return no_memory(err);
    }
    map->line = inner->line = v->line;
    map->column = inner->column = v->column;
    map->set = inner->set = v->set;
    if (value_is_null(v)) {
        value_free(inner);
    } else if (head && (head->flags & KEY_HEAD)) {
        inner->kind = VALUE_MAP;
        if (value_append(map, head->name, inner) < 0)
            return no_memory(err);
    } else if (brief) {
        inner->plain = v->plain;
        inner->text = TAKE(v->text);
        inner->child = TAKE(v->child);
        inner->last = TAKE(v->last);
        inner->n = v->n;
        for (struct value *c = inner->child; c; c = c->next)
            c->parent = inner;
        if (value_append(map, brief->name, inner) < 0)
            return no_memory(err);
    } else {
        char path[200], what[320];
        value_free(inner);
        value_path(v, path, sizeof path);
        snprintf(what, sizeof what, "%s is %s and has no \"%.40s\"", path,
                 v->kind == VALUE_LIST ? "a list" : "one value", key);
        return refuse(w, err, what);
    }
    value_replace(v, TAKE(map));
    return 0;
}

/* A head takes the place of the one that is there: {sgd: ...} becomes {adam: ...}. */
static void drop_other_heads(struct walk *w, const struct key *k)
{
    if (!k || !(k->flags & KEY_HEAD))
        return;
    for (struct value *c = w->at->child, *next; c; c = next) {
        const struct key *other = key_find(w->map, c->key);
        next = c->next;
        if (other && other != k && (other->flags & KEY_HEAD))
            value_remove(c);
    }
}

static int step_key(struct walk *w, const char *key, struct err *err)
{
    if (w->at->kind != VALUE_MAP && expand(w, key, err) < 0)
        return -(int)err->code;
    const struct key *k = w->map ? key_find(w->map, key) : NULL;
    drop_other_heads(w, k);
    struct value *child = value_find(w->at, key);
    if (!child) {
        child = value_scalar("", 1);
        if (child)
            child->set = w->arg;
        if (value_append(w->at, key, child) < 0)
            return no_memory(err);
    }
    const char *item = w->item;
    w->at = child;
    if (w->map)
        enter(w, k);
    else
        *w = (struct walk){ w->arg, child, item, NULL, NULL };
    return 0;
}

static int step_index(struct walk *w, long i, struct err *err)
{
    char path[200], what[320];

    value_path(w->at, path, sizeof path);
    if (w->at->kind != VALUE_LIST) {
        snprintf(what, sizeof what, "%s is not a list", *path ? path : "the spec");
        return refuse(w, err, what);
    }
    struct value *child = value_item(w->at, (int)(i < 0 ? i + w->at->n : i));
    if (!child) {
        snprintf(what, sizeof what, "%s has no item %ld (it has %d, counted from 0)", path, i,
                 w->at->n);
        return refuse(w, err, what);
    }
    *w = (struct walk){ w->arg, child, w->item, NULL, NULL };
    return 0;
}

/* The length of the key at the start of `path`: the longest one that is there already (a column's
 * name may hold a dot), else up to the next "." or "[". */
static size_t key_length(const struct walk *w, const char *path)
{
    size_t best = 0;

    if (w->at->kind == VALUE_MAP)
        for (const struct value *c = w->at->child; c; c = c->next) {
            size_t n = strlen(c->key);
            if (n > best && strncmp(path, c->key, n) == 0 && strchr(".[", path[n]))
                best = n;
        }
    return best ? best : strcspn(path, ".[");
}

static int walk_path(struct walk *w, const char *path, struct err *err)
{
    char key[256];
    int depth = 0;

    while (*path) {
        if (++depth > VALUE_DEPTH_MAX / 2)
            return refuse(w, err, "the key is nested too deep");
        if (*path == '[') {
            char *end;
            long i = strtol(path + 1, &end, 10);
            if (end == path + 1 || *end != ']' || i > VALUE_MAX || i < -VALUE_MAX)
                return refuse(w, err, "a whole number and \"]\" are to follow \"[\"");
            if (step_index(w, i, err) < 0)
                return -(int)err->code;
            path = end + 1 + (end[1] == '.' && end[2]);
            continue;
        }
        size_t n = key_length(w, path);
        if (!n || n >= sizeof key)
            return refuse(w, err, "a key is to follow each \".\"");
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        if (step_key(w, key, err) < 0)
            return -(int)err->code;
        path += n;
        if (*path == '.' && !*++path)
            return refuse(w, err, "a key is to follow each \".\"");
    }
    return 0;
}

/* Short names for what is changed most often. */
static void long_path(const struct value *root, const char *path, char *out, size_t size)
{
    const struct value *optimizer = value_find(root, "optimizer");

    if (strcmp(path, "limit") == 0)
        snprintf(out, size, "data.train.limit");
    else if (strcmp(path, "lr") == 0 && optimizer && optimizer->kind == VALUE_MAP && optimizer->n)
        snprintf(out, size, "optimizer.%.60s.lr", optimizer->child->key);
    else if (strcmp(path, "lr") == 0 && optimizer && optimizer->kind == VALUE_SCALAR)
        snprintf(out, size, "optimizer.%.60s.lr", optimizer->text);
    else
        snprintf(out, size, "%s", path);
}

int set_apply(struct value *root, const char *arg, struct err *err)
{
    struct walk w = { arg, root, "", NULL, NULL };
    char path[1024], full[1024];
    const char *equals = strchr(arg, '=');
    OWN(value) v = NULL;

    if (!equals || equals == arg || (size_t)(equals - arg) >= sizeof path)
        return refuse(&w, err, "write it as KEY=VALUE, such as epochs=1");
    if (root->kind != VALUE_MAP)
        return 0;               /* not a spec, which normal_form says better */
    snprintf(path, sizeof path, "%.*s", (int)(equals - arg), arg);
    for (size_t n = strlen(path), i = 0, len; i < n; i += len) {
        len = utf8_length(path + i, n - i);
        if (!len || (unsigned char)path[i] < 0x20)
            return refuse(&w, err, "the key is not a text in UTF-8");
    }
    long_path(root, path, full, sizeof full);
    if (yaml_parse(equals + 1, strlen(equals + 1), arg, arg, &v, err) < 0 ||
        walk_path(&w, full, err) < 0)
        return -(int)err->code;
    if (w.at == root)
        return refuse(&w, err, "a key is to stand before \"=\"");
    int head = w.row && (w.row->flags & KEY_HEAD);      /* model[3].relu= is a relu, not a gap */
    if (value_is_null(v) && !head && w.at->parent->kind == VALUE_MAP) {
        value_remove(w.at);
        return 0;
    }
    value_replace(w.at, TAKE(v));
    return 0;
}
