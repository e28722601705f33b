/* spec/yaml.c - YAML text as a tree that remembers where each value stands
 *
 * libyaml's events drive it: a scalar, a start or an end of a collection. `open` is the collection
 * whose children arrive; `key` is the key that waits for its value. An anchor is entered when its
 * value is complete, so a value cannot contain itself.
 */
#include "spec/yaml.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>

#include "base/utf8.h"

#define CORE_TAG "tag:yaml.org,2002:"
#define STR_TAG CORE_TAG "str"

struct anchor {
    char *name;
    const struct value *value;
};

struct builder {
    yaml_parser_t parser;
    const char *name, *set;
    const struct yaml_limits *limits;
    struct value *root, *open;
    struct value *documents;    /* NULL: there may be one only */
    int depth, values;
    char *key;                  /* waits for its value */
    int key_line, key_column;
    struct anchor *anchor;
    int n_anchors;
    /* of each open collection: its anchor's name, entered when it closes */
    char *pending[VALUE_DEPTH_MAX + 1];
};

static const struct yaml_limits spec_limits = { "a spec", YAML_BYTES_MAX, VALUE_MAX };

struct value *value_new(enum value_kind kind)
{
    struct value *value = calloc(1, sizeof *value);

    if (value)
        value->kind = kind;
    return value;
}

struct value *value_scalar(const char *text, int plain)
{
    struct value *value = value_new(VALUE_SCALAR);

    if (!value)
        return NULL;
    value->plain = plain;
    value->text = strdup(text);
    if (!value->text) {
        free(value);
        return NULL;
    }
    return value;
}

void value_free(struct value *value)
{
    if (!value)
        return;
    for (struct value *c = value->child, *next; c; c = next) {
        next = c->next;
        value_free(c);
    }
    free(value->text);
    free(value->key);
    free(value);
}

struct value *value_find(const struct value *map, const char *key)
{
    if (!map || map->kind != VALUE_MAP)
        return NULL;
    for (struct value *c = map->child; c; c = c->next)
        if (strcmp(c->key, key) == 0)
            return c;
    return NULL;
}

struct value *value_item(const struct value *list, int i)
{
    if (!list || list->kind != VALUE_LIST || i < 0)
        return NULL;
    struct value *c = list->child;
    while (c && i-- > 0)
        c = c->next;
    return c;
}

int value_append(struct value *parent, const char *key, struct value *child)
{
    if (!child)
        return -1;
    if (key) {
        char *copy = strdup(key);
        if (!copy) {
            value_free(child);
            return -1;
        }
        free(child->key);
        child->key = copy;
    }
    child->parent = parent;
    child->next = NULL;
    if (parent->last)
        parent->last->next = child;
    else
        parent->child = child;
    parent->last = child;
    parent->n++;
    return 0;
}

void value_remove(struct value *child)
{
    struct value *parent = child->parent;
    struct value **at = &parent->child, *before = NULL;

    while (*at != child) {
        before = *at;
        at = &(*at)->next;
    }
    *at = child->next;
    if (parent->last == child)
        parent->last = before;
    parent->n--;
    value_free(child);
}

void value_replace(struct value *value, struct value *from)
{
    for (struct value *c = value->child, *next; c; c = next) {
        next = c->next;
        value_free(c);
    }
    free(value->text);
    value->kind = from->kind;
    value->plain = from->plain;
    value->text = TAKE(from->text);
    value->line = from->line;
    value->column = from->column;
    value->set = from->set;
    value->child = TAKE(from->child);
    value->last = TAKE(from->last);
    value->n = from->n;
    for (struct value *c = value->child; c; c = c->next)
        c->parent = value;
    value_free(from);
}

int value_is_null(const struct value *value)
{
    return value->kind == VALUE_SCALAR && value->plain &&
           (!*value->text || strcmp(value->text, "~") == 0 || strcmp(value->text, "null") == 0);
}

void value_path(const struct value *value, char *out, size_t size)
{
    const struct value *chain[VALUE_DEPTH_MAX + 2];
    int n = 0;
    size_t at = 0;

    for (; value && value->parent && n < VALUE_DEPTH_MAX + 2; value = value->parent)
        chain[n++] = value;
    out[0] = 0;
    while (n-- > 0 && at < size) {
        const struct value *c = chain[n];
        if (c->parent->kind == VALUE_LIST) {
            int i = 0;
            for (const struct value *s = c->parent->child; s != c; s = s->next)
                i++;
            at += (size_t)snprintf(out + at, size - at, "[%d]", i);
        } else {
            at += (size_t)snprintf(out + at, size - at, "%s%s", at ? "." : "", c->key);
        }
    }
}

void value_place(const struct value *value, const char *file, int of_key, char *out, size_t size)
{
    size_t n = strlen(file), room = size > 40 ? size - 40 : 0;
    const char *cut = n > room ? "..." : "";

    file += n > room ? n - room : 0;            /* line and column matter more than folders */
    if (value->set)
        snprintf(out, size, "--set %s", value->set);
    else if (of_key && value->key_line)
        snprintf(out, size, "%s%s:%d:%d", cut, file, value->key_line, value->key_column);
    else
        snprintf(out, size, "%s%s:%d:%d", cut, file, value->line, value->column);
}

/* Every refusal of the text itself: "file:line:column: what", or the --set argument before it. */
static int refuse(const struct builder *b, yaml_mark_t mark, struct err *err, const char *what,
                  const char *detail)
{
    if (b->set)
        return err_set(err, ERR_INVALID, "--set %s: %s%s", b->set, what, detail);
    return err_set(err, ERR_INVALID, "%s:%zu:%zu: %s%s", b->name, mark.line + 1, mark.column + 1,
                   what, detail);
}

static int no_memory(const struct builder *b, struct err *err)
{
    return err_set(err, ERR_NOMEM, "%s: no memory for the document", b->name);
}

/* Puts a complete or just opened value into the collection that waits for it. Takes `value`. */
static int place(struct builder *b, struct value *value, yaml_mark_t mark, struct err *err)
{
    if (!value)
        return no_memory(b, err);
    if (++b->values > b->limits->values_max || b->depth >= VALUE_DEPTH_MAX) {
        value_free(value);
        if (b->values > b->limits->values_max)
            return refuse(b, mark, err, "too many values (aliases count once for each use)", "");
        return refuse(b, mark, err, "lists and maps nested too deep", "");
    }
    value->line = (int)mark.line + 1;
    value->column = (int)mark.column + 1;
    value->set = b->set;
    if (!b->open) {
        b->root = value;
        return 0;
    }
    if (b->open->kind == VALUE_MAP) {
        value->key_line = b->key_line;
        value->key_column = b->key_column;
        value->key = TAKE(b->key);
    }
    return value_append(b->open, NULL, value);
}

static int remember(struct builder *b, char *name, const struct value *value, struct err *err)
{
    if (!name)
        return 0;
    for (int i = 0; i < b->n_anchors; i++)
        if (strcmp(b->anchor[i].name, name) == 0) {     /* YAML: the latest one counts */
            b->anchor[i].value = value;
            free(name);
            return 0;
        }
    if (b->n_anchors == YAML_ANCHORS_MAX) {
        free(name);
        return err_set(err, ERR_INVALID, "%s:%d:%d: too many anchors", b->name, value->line,
                       value->column);
    }
    struct anchor *grown = reallocarray(b->anchor, (size_t)b->n_anchors + 1, sizeof *grown);
    if (!grown) {
        free(name);
        return no_memory(b, err);
    }
    b->anchor = grown;
    b->anchor[b->n_anchors++] = (struct anchor){ name, value };
    return 0;
}

static int take_key(struct builder *b, const yaml_event_t *ev, struct err *err)
{
    const char *text = (const char *)ev->data.scalar.value;

    if (strlen(text) != ev->data.scalar.length)
        return refuse(b, ev->start_mark, err, "a key holds a NUL character", "");
    if (strcmp(text, "<<") == 0 && ev->data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
        return refuse(b, ev->start_mark, err, "merge keys (<<) are not read; write the keys out",
                      "");
    if (b->open->n >= VALUE_KEYS_MAX)
        return refuse(b, ev->start_mark, err, "too many keys in one map", "");
    struct value *twin = value_find(b->open, text);
    if (twin) {
        char first[160];
        snprintf(first, sizeof first, "key \"%.60s\" is given twice (first in line %d)", text,
                 twin->key_line);
        return refuse(b, ev->start_mark, err, first, "");
    }
    b->key = strdup(text);
    b->key_line = (int)ev->start_mark.line + 1;
    b->key_column = (int)ev->start_mark.column + 1;
    return b->key ? 0 : no_memory(b, err);
}

/* 1 when the event stands where a key of a map belongs. */
static int wants_key(const struct builder *b)
{
    return b->open && b->open->kind == VALUE_MAP && !b->key;
}

static int check_tag(const struct builder *b, const yaml_event_t *ev, const yaml_char_t *tag,
                     struct err *err)
{
    if (!tag || strcmp((const char *)tag, "!") == 0 || strcmp((const char *)tag, STR_TAG) == 0)
        return 0;
    int core = strncmp((const char *)tag, CORE_TAG, strlen(CORE_TAG)) == 0;
    char what[120];
    snprintf(what, sizeof what, "tags are not read: remove %s%.60s", core ? "!!" : "",
             (const char *)tag + (core ? strlen(CORE_TAG) : 0));
    return refuse(b, ev->start_mark, err, what, "");
}

static int on_scalar(struct builder *b, const yaml_event_t *ev, struct err *err)
{
    const char *text = (const char *)ev->data.scalar.value;
    int plain = ev->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && !ev->data.scalar.tag;

    if (check_tag(b, ev, ev->data.scalar.tag, err) < 0)
        return -(int)err->code;
    if (wants_key(b)) {
        if (ev->data.scalar.anchor)
            return refuse(b, ev->start_mark, err, "a key cannot have an anchor", "");
        return take_key(b, ev, err);
    }
    if (strlen(text) != ev->data.scalar.length)
        return refuse(b, ev->start_mark, err, "a value holds a NUL character", "");
    struct value *value = value_scalar(text, plain);
    if (place(b, value, ev->start_mark, err) < 0)
        return -(int)err->code;
    char *anchor = NULL;
    if (ev->data.scalar.anchor && !(anchor = strdup((const char *)ev->data.scalar.anchor)))
        return no_memory(b, err);
    return remember(b, anchor, value, err);
}

static int on_open(struct builder *b, const yaml_event_t *ev, enum value_kind kind,
                   const yaml_char_t *anchor, const yaml_char_t *tag, struct err *err)
{
    if (check_tag(b, ev, tag, err) < 0)
        return -(int)err->code;
    if (wants_key(b))
        return refuse(b, ev->start_mark, err, "a key must be a word, not a list or a map", "");
    struct value *value = value_new(kind);
    if (place(b, value, ev->start_mark, err) < 0)
        return -(int)err->code;
    b->open = value;
    if (anchor && !(b->pending[b->depth] = strdup((const char *)anchor)))
        return no_memory(b, err);
    b->depth++;
    return 0;
}

static int on_close(struct builder *b, struct err *err)
{
    struct value *value = b->open;

    b->open = value->parent;
    b->depth--;
    return remember(b, TAKE(b->pending[b->depth]), value, err);
}

/* A deep copy that counts its values and stops at the limit. */
static int copy_into(struct builder *b, const struct value *from, yaml_mark_t mark, struct err *err)
{
    struct value *value = from->kind == VALUE_SCALAR ? value_scalar(from->text, from->plain)
                                                  : value_new(from->kind);
    if (place(b, value, mark, err) < 0)
        return -(int)err->code;
    if (from->kind == VALUE_SCALAR)
        return 0;
    b->open = value;
    b->depth++;
    for (const struct value *c = from->child; c; c = c->next) {
        if (c->key) {
            if (!(b->key = strdup(c->key)))
                return no_memory(b, err);
            b->key_line = (int)mark.line + 1;
            b->key_column = (int)mark.column + 1;
        }
        if (copy_into(b, c, mark, err) < 0)
            return -(int)err->code;
    }
    b->open = value->parent;
    b->depth--;
    return 0;
}

static int on_alias(struct builder *b, const yaml_event_t *ev, struct err *err)
{
    const char *name = (const char *)ev->data.alias.anchor;

    if (wants_key(b))
        return refuse(b, ev->start_mark, err, "a key cannot be an alias", "");
    for (int i = 0; i < b->n_anchors; i++)
        if (strcmp(b->anchor[i].name, name) == 0)
            return copy_into(b, b->anchor[i].value, ev->start_mark, err);
    char what[160];
    snprintf(what, sizeof what, "no anchor \"&%.60s\" before the alias \"*%.60s\"", name, name);
    return refuse(b, ev->start_mark, err, what, "");
}

/* Anchors are those of their document. */
static void forget_anchors(struct builder *b)
{
    for (int i = 0; i < b->n_anchors; i++)
        free(b->anchor[i].name);
    b->n_anchors = 0;
}

static int end_document(struct builder *b, struct err *err)
{
    struct value *root = TAKE(b->root);

    forget_anchors(b);
    if (value_append(b->documents, NULL, root) < 0)
        return no_memory(b, err);
    root->parent = NULL;
    return 0;
}

static int take_event(struct builder *b, const yaml_event_t *ev, struct err *err)
{
    switch (ev->type) {
    case YAML_DOCUMENT_END_EVENT:
        return b->documents ? end_document(b, err) : 0;
    case YAML_DOCUMENT_START_EVENT:
        if (b->root)
            return refuse(b, ev->start_mark, err,
                          "a second document begins here; a spec is one document", "");
        return 0;
    case YAML_SCALAR_EVENT:
        return on_scalar(b, ev, err);
    case YAML_SEQUENCE_START_EVENT:
        return on_open(b, ev, VALUE_LIST, ev->data.sequence_start.anchor,
                       ev->data.sequence_start.tag, err);
    case YAML_MAPPING_START_EVENT:
        return on_open(b, ev, VALUE_MAP, ev->data.mapping_start.anchor, ev->data.mapping_start.tag,
                       err);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        return on_close(b, err);
    case YAML_ALIAS_EVENT:
        return on_alias(b, ev, err);
    default:
        return 0;
    }
}

/* The character at a mark; libyaml counts characters, not bytes. */
static int char_at(const char *text, size_t n, yaml_mark_t mark)
{
    size_t i = 0;

    for (size_t line = 0; line < mark.line && i < n; i++)
        line += text[i] == '\n';
    for (size_t column = 0; i < n; i++)
        if (((unsigned char)text[i] & 0xC0) != 0x80 && column++ == mark.column)
            return (unsigned char)text[i];
    return -1;
}

/* What libyaml found, in words that say what to change. `text` is what it read. */
static int syntax_error(const struct builder *b, const char *text, size_t n, struct err *err)
{
    const yaml_parser_t *p = &b->parser;
    yaml_mark_t mark = p->problem_mark;
    const char *problem = p->problem ? p->problem : "this is not YAML";

    if (p->error == YAML_MEMORY_ERROR)
        return no_memory(b, err);
    if (p->error == YAML_READER_ERROR) {
        mark = (yaml_mark_t){ 0 };
        for (size_t i = 0; i < p->problem_offset && i < n; i++) {
            mark.column += ((unsigned char)text[i] & 0xC0) != 0x80;
            if (text[i] == '\n')
                mark = (yaml_mark_t){ .line = mark.line + 1 };
        }
        return refuse(b, mark, err, problem, "");
    }
    if (char_at(text, n, mark) == '\t')
        return refuse(b, mark, err, "a tab; YAML is indented with spaces", "");
    if (p->context && *p->context) {
        char what[200];
        snprintf(what, sizeof what, "not YAML: %s, %s", p->context, problem);
        return refuse(b, mark, err, what, "");
    }
    return refuse(b, mark, err, "not YAML: ", problem);
}

static int check_bytes(const struct builder *b, const char *text, size_t n, struct err *err)
{
    yaml_mark_t mark = { 0 };
    int directives = 0;

    if (n > b->limits->bytes_max)
        return err_set(err, ERR_INVALID, "%s: %zu bytes; %s has at most %zu MB", b->name, n,
                       b->limits->what, b->limits->bytes_max >> 20);
    const char *other = utf8_sniff(text, n);
    if (other)
        return refuse(b, mark, err, "not UTF-8; save the file in that encoding. It is ", other);
    for (size_t i = 0; i < n;) {
        size_t len = utf8_length(text + i, n - i);
        if (!len)
            return refuse(b, mark, err, "not UTF-8; save the file in that encoding (if it is "
                          "Latin-1: iconv -f latin1 -t utf-8 FILE > NEW)", "");
        if (!text[i])
            return refuse(b, mark, err, "a NUL byte; this is not a text file", "");
        if (text[i] == '%' && !mark.column && ++directives > YAML_DIRECTIVES_MAX)
            return refuse(b, mark, err, "too many directives (lines that begin with %)", "");
        mark.column++;
        if (text[i] == '\n')
            mark = (yaml_mark_t){ .line = mark.line + 1 };
        i += len;
    }
    return 0;
}

static int run_parser(struct builder *b, const char *text, size_t n, struct err *err)
{
    for (;;) {
        yaml_event_t ev;
        if (!yaml_parser_parse(&b->parser, &ev))
            return syntax_error(b, text, n, err);
        int end = ev.type == YAML_STREAM_END_EVENT;
        int rc = take_event(b, &ev, err);
        yaml_event_delete(&ev);
        if (rc < 0 || end)
            return rc;
    }
}

static int parse(struct builder *b, const char *text, size_t n, struct err *err)
{
    if (n >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) {       /* the mark of an editor */
        text += 3;
        n -= 3;
    }
    if (check_bytes(b, text, n, err) < 0)
        return -(int)err->code;
    if (!yaml_parser_initialize(&b->parser))
        return no_memory(b, err);
    yaml_parser_set_encoding(&b->parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&b->parser, (const unsigned char *)text, n);

    int rc = run_parser(b, text, n, err);
    yaml_parser_delete(&b->parser);
    forget_anchors(b);
    for (int i = 0; i <= VALUE_DEPTH_MAX; i++)
        free(b->pending[i]);
    free(b->anchor);
    free(b->key);
    return rc;
}

int yaml_parse(const char *text, size_t n, const char *name, const char *set, struct value **out,
               struct err *err)
{
    struct builder b = { .name = name, .set = set, .limits = &spec_limits };

    if (parse(&b, text, n, err) < 0) {
        value_free(b.root);
        return -(int)err->code;
    }
    if (!b.root && !(b.root = value_scalar("", 1)))
        return no_memory(&b, err);
    *out = b.root;
    return 0;
}

int yaml_parse_all(const char *text, size_t n, const char *name, const struct yaml_limits *limits,
                   struct value **out, struct err *err)
{
    struct builder b = { .name = name, .limits = limits, .documents = value_new(VALUE_LIST) };

    if (!b.documents)
        return no_memory(&b, err);
    if (parse(&b, text, n, err) < 0) {
        value_free(b.root);
        value_free(b.documents);
        return -(int)err->code;
    }
    *out = b.documents;
    return 0;
}
