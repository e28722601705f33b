/* pipelines/argo_value.c - scalars of a Workflow: texts, tags, names, durations, quantities */
#include "pipelines/argo_int.h"

#include <ctype.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "pipelines/flow.h"
#include "spec/json.h"
#include "spec/scan.h"

enum { NAME_MAX_LENGTH = 128 };         /* Argo's own */

int argo_refuse(struct argo *c, const struct value *at, const char *fmt, ...)
{
    char what[384], path[160];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    value_path(at, path, sizeof path);
    const char *p = strncmp(path, "spec.", 5) == 0 ? path + 5 : path;
    return err_set(c->err, ERR_INVALID, "%s:%d: %s%s%s", c->name,
                   at->key_line ? at->key_line : at->line, p, *p ? ": " : "", what);
}

/* A value that could not be put is left alone, never freed: who made it may go on to fill it. */
void argo_put(struct argo *c, json_t *object, const char *key, json_t *value)
{
    if (json_object_set(object, key, value) < 0)
        c->failed = true;
    else
        json_decref(value);
}

void argo_put_item(struct argo *c, json_t *array, json_t *value)
{
    if (json_array_append(array, value) < 0)
        c->failed = true;
    else
        json_decref(value);
}

const struct value *argo_get(const struct value *map, const char *key)
{
    const struct value *v = value_find(map, key);
    return v && !value_is_null(v) ? v : NULL;
}

int argo_list(struct argo *c, const struct value *map, const char *key, const struct value **out)
{
    const struct value *v = argo_get(map, key);

    *out = NULL;
    if (!v)
        return 0;
    if (v->kind != VALUE_LIST)
        return argo_refuse(c, v, "must be a list");
    *out = v->child;
    return 0;
}

char *argo_text(const struct value *v)
{
    if (v->kind == VALUE_SCALAR && !v->plain)
        return strdup(v->text);
    OWN_JSON json_t *json = value_json(v);
    if (v->kind == VALUE_SCALAR && !json_is_integer(json) && !json_is_boolean(json))
        return strdup(json_is_null(json) ? "" : v->text);
    return json ? json_dumps(json, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
}

int argo_word(struct argo *c, const struct value *map, const char *key, const char **out)
{
    const struct value *v = argo_get(map, key);

    if (!v)
        return argo_refuse(c, map, "needs \"%s\"", key);
    if (v->kind != VALUE_SCALAR || !*v->text)
        return argo_refuse(c, v, "must be a text that is not empty");
    *out = v->text;
    return 0;
}

int argo_name(struct argo *c, const struct value *map, bool parameter, const char **out)
{
    const char *name;

    if (argo_word(c, map, "name", &name) < 0)
        return -(int)c->err->code;
    size_t n = strlen(name);
    bool good = n <= NAME_MAX_LENGTH && (parameter || isalnum((unsigned char)name[0]));
    for (size_t i = 0; i < n; i++)
        good = good && (isalnum((unsigned char)name[i]) || name[i] == '-' || name[i] == '_');
    if (!good)
        return argo_refuse(c, value_find(map, "name"), "\"%.60s\" is no name: %d letters, digits, "
                           "- and _ at most%s", name, NAME_MAX_LENGTH,
                           parameter ? "" : ", first a letter or a digit");
    *out = name;
    return 0;
}

int argo_bool(struct argo *c, const struct value *map, const char *key, bool *out)
{
    const struct value *v = argo_get(map, key);
    int yes;

    if (!v)
        return 0;
    if (!value_is_bool(v, &yes))
        return argo_refuse(c, v, "must be true or false");
    *out = yes;
    return 0;
}

int argo_whole(struct argo *c, const struct value *v, long long *out)
{
    if (v->kind != VALUE_SCALAR || !scan_whole(v->text, out))
        return argo_refuse(c, v, "must be a whole number");
    return 0;
}

bool argo_has_tags(const char *text)
{
    return strstr(text, "{{") != NULL;
}

void argo_note(struct argo *c, enum argo_use_kind kind, const struct value *at, const char *text)
{
    if (c->n_uses == c->cap) {
        int cap = c->cap ? 2 * c->cap : 256;
        struct argo_use *grown = reallocarray(c->use, (size_t)cap, sizeof *grown);
        if (!grown) {
            c->failed = true;
            return;
        }
        c->use = grown;
        c->cap = cap;
    }
    c->use[c->n_uses++] = (struct argo_use){ kind, at, text, c->scope, c->task, c->retry };
}

/* Tags of all scalars below: a list or a map that becomes one text. */
static void note_all(struct argo *c, const struct value *v)
{
    if (v->kind == VALUE_SCALAR && argo_has_tags(v->text))
        argo_note(c, ARGO_TEXT, v, v->text);
    for (const struct value *child = v->child; child; child = child->next)
        note_all(c, child);
}

int argo_value(struct argo *c, const struct value *v, json_t **out)
{
    OWN_MEM char *text = argo_text(v);

    if (!text) {
        c->failed = true;
        *out = NULL;
    } else if (argo_has_tags(text)) {
        note_all(c, v);
        *out = json_pack("{s:s}", "text", text);
    } else {
        *out = json_string(text);
    }
    return 0;
}

json_t *argo_expression(struct argo *c, const struct value *v)
{
    const char *text = v->kind == VALUE_SCALAR ? v->text : "";
    OWN_MEM char *tag = NULL;

    argo_note(c, ARGO_EXPRESSION, v, text);
    if (asprintf(&tag, argo_has_tags(text) ? "%s" : "{{=%s}}", text) < 0) {
        tag = NULL;
        c->failed = true;
    }
    return json_pack("{s:s}", "text", tag ? tag : "");
}

int argo_put_value(struct argo *c, json_t *object, const char *key, const struct value *v)
{
    json_t *value;

    if (!v)
        return 0;
    if (argo_value(c, v, &value) < 0)
        return -(int)c->err->code;
    argo_put(c, object, key, value);
    return 0;
}

int argo_put_values(struct argo *c, json_t *object, const char *key, const struct value *list)
{
    json_t *array = json_array(), *value;

    argo_put(c, object, key, array);
    if (list && list->kind != VALUE_LIST)
        return argo_refuse(c, list, "must be a list");
    for (const struct value *v = list ? list->child : NULL; v; v = v->next) {
        if (v->kind != VALUE_SCALAR)
            return argo_refuse(c, v, "must be a text");
        if (argo_value(c, v, &value) < 0)
            return -(int)c->err->code;
        argo_put_item(c, array, value);
    }
    return 0;
}

int argo_put_text(struct argo *c, json_t *object, const char *key, const struct value *v)
{
    if (!v)
        return 0;
    if (v->kind != VALUE_SCALAR)
        return argo_refuse(c, v, "must be a text");
    OWN_MEM char *text = argo_text(v);
    argo_put(c, object, key, text ? json_string(text) : NULL);
    return 0;
}

int argo_put_labels(struct argo *c, json_t *object, const char *key, const struct value *map)
{
    if (!map)
        return 0;
    if (map->kind != VALUE_MAP)
        return argo_refuse(c, map, "must be a map");
    json_t *labels = json_object();
    argo_put(c, object, key, labels);
    for (const struct value *v = map->child; v; v = v->next)
        if (argo_put_text(c, labels, v->key, v) < 0)
            return -(int)c->err->code;
    return 0;
}

/* ------------------------------------------------------------------ durations and quantities */

static locale_t c_locale(void)
{
    static locale_t c;          /* made once; a second one made at the same time is only lost */
    if (!c)
        c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    return c;
}

/* A number at *s, which moves on; 1: there is one. */
static int take_number(const char **s, double *out)
{
    char digits[32];
    size_t n = strspn(*s, "0123456789.");

    if (!n || n >= sizeof digits)
        return 0;
    snprintf(digits, sizeof digits, "%.*s", (int)n, *s);
    *s += n;
    return scan_number(digits, c_locale(), out);
}

static const struct { const char *word; double factor; } units[] = {
    { "ns", 1e-9 }, { "us", 1e-6 }, { "ms", 1e-3 }, { "s", 1 }, { "m", 60 }, { "h", 3600 },
    { "d", 86400 },
};

int flow_seconds(const char *text, double *out)
{
    double sum = 0, n;

    if (!*text)
        return 0;
    for (const char *s = text; *s;) {
        if (!take_number(&s, &n))
            return 0;
        size_t length = strspn(s, "nusmhd");
        double factor = s == text + strlen(text) && strspn(text, "0123456789.") == strlen(text);
        for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
            if (length == strlen(units[i].word) && strncmp(s, units[i].word, length) == 0)
                factor = units[i].factor;
        if (!(factor > 0))
            return 0;
        sum += n * factor;
        s += length;
    }
    *out = sum;
    return 1;
}

int argo_iso_duration(const char *text, double *out)
{
    static const struct { char letter; bool time; double factor; } parts[] = {
        { 'Y', false, 365 * 86400.0 }, { 'M', false, 30 * 86400.0 }, { 'W', false, 7 * 86400.0 },
        { 'D', false, 86400 }, { 'H', true, 3600 }, { 'M', true, 60 }, { 'S', true, 1 },
    };
    const char *s = text;
    bool time = false, any = false;
    double sum = 0, n;

    if (*s++ != 'P')
        return 0;
    while (*s) {
        if (*s == 'T' && !time) {
            time = true;
            s++;
            continue;
        }
        if (!take_number(&s, &n))
            return 0;
        size_t i = 0;
        while (i < 7 && (parts[i].letter != *s || parts[i].time != time))
            i++;
        if (i == 7)
            return 0;
        sum += n * parts[i].factor;
        any = true;
        s++;
    }
    *out = sum;
    return any;
}

int argo_put_seconds(struct argo *c, json_t *object, const char *key, const struct value *v)
{
    double seconds;

    if (!v)
        return 0;
    if (v->kind != VALUE_SCALAR)
        return argo_refuse(c, v, "must be a duration");
    if (argo_has_tags(v->text))
        return argo_put_value(c, object, key, v);
    if (!flow_seconds(v->text, &seconds))
        return argo_refuse(c, v, "\"%.40s\" is no duration: write 30, \"30s\", \"5m\" or \"1h30m\"",
                           v->text);
    argo_put(c, object, key, seconds == floor(seconds) && seconds < 1e15
                            ? json_integer((json_int_t)seconds) : json_real(seconds));
    return 0;
}

/* ------------------------------------------------------------------ paths */

int argo_path(struct argo *c, const struct value *v, const char *what)
{
    if (v->kind != VALUE_SCALAR || !*v->text)
        return argo_refuse(c, v, "must be a path");
    const char *path = v->text;
    if (*path != '/' && strncmp(path, "{{", 2) != 0)
        return argo_refuse(c, v, "\"%.100s\" is not absolute; the path of %s begins with /", path,
                           what);
    bool any = false;
    for (const char *p = path; *p;) {
        size_t n = strcspn(p, "/");
        if (n == 2 && strncmp(p, "..", 2) == 0)
            return argo_refuse(c, v, "\"%.100s\" climbs: a path has no \"..\"", path);
        any = any || (n && !(n == 1 && *p == '.'));
        p += n + (p[n] == '/');
    }
    if (!any)
        return argo_refuse(c, v, "\"%.100s\" is the whole file system; name a file or folder",
                           path);
    for (const char *p = path; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            return argo_refuse(c, v, "a path has no control characters");
    return 0;
}
