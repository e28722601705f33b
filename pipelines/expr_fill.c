/* pipelines/expr_fill.c - texts with {{tags}} and {{=expressions}}, and Argo's `when` */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "pipelines/expr_int.h"

struct tag {
    const char *open, *after;   /* "{{" and past "}}" */
    char *text;                 /* trimmed, without "=" */
    bool expression;
};

static char *trimmed(const char *p, const char *end)
{
    while (p < end && isspace((unsigned char)*p))
        p++;
    while (end > p && isspace((unsigned char)end[-1]))
        end--;
    return strndup(p, (size_t)(end - p));
}

/* The next tag from `p`: 1, none: 0. Inside an expression "}}" may also close two maps, so it ends
 * at the first one where what is before it can be read. */
static int tag_next(const char *p, struct tag *out, struct err *err)
{
    const char *open = strstr(p, "{{");
    if (!open)
        return 0;
    struct err first = { 0 };
    bool expression = open[2] == '=';
    const char *from = open + 2 + expression, *end = from;
    for (int tries = 0; tries < 16 && (end = strstr(end, "}}")); end++, tries++) {
        OWN(flow_expr) e = NULL;
        struct err why = { 0 };
        if (!expression || flow_expr_parse(from, (size_t)(end - from), &e, &why) == 0) {
            *out = (struct tag){ open, end + 2, trimmed(from, end), expression };
            return out->text ? 1 : err_set(err, ERR_NOMEM, "no memory for a text");
        }
        if (!first.code)
            first = why;
    }
    if (first.code) {
        *err = first;
        return err_add(err, "\"%.40s\"", open);
    }
    return err_set(err, ERR_INVALID, "\"%.40s\" has no \"}}\"", open);
}

static int tag_value(const char *text, bool expression, const struct flow_scope *s, json_t **out,
                     struct err *err)
{
    if (!expression) {
        *out = s && s->get ? s->get(s->arg, text) : NULL;
        return *out ? 0 : err_set(err, ERR_INVALID, "{{%.200s}} is not known here, or has no value",
                                  text);
    }
    OWN(flow_expr) e = NULL;
    if (flow_expr_parse(text, strlen(text), &e, err) < 0 || flow_expr_eval(e, s, out, err) < 0)
        return err_add(err, "{{=%.80s}}", text);
    if (!json_is_null(*out))
        return 0;
    json_decref(*out);
    *out = NULL;
    return err_set(err, ERR_INVALID, "{{=%.80s}} comes to nil", text);
}

int flow_expr_fill(const char *text, const struct flow_scope *s, bool (*keep)(const char *tag),
                   struct buf *out, struct err *err)
{
    struct tag t;
    int rc;
    while ((rc = tag_next(text, &t, err)) > 0) {
        OWN_MEM char *name = TAKE(t.text);
        OWN_JSON json_t *v = NULL;
        struct err why = { 0 };
        buf_append(out, text, (size_t)(t.open - text));
        if (tag_value(name, t.expression, s, &v, &why) < 0) {
            if (t.expression || !keep || !keep(name)) {
                *err = why;
                return -(int)why.code;
            }
            buf_append(out, t.open, (size_t)(t.after - t.open));
        } else {
            OWN_MEM char *shown = flow_expr_text(v);
            buf_text(out, shown ? shown : "");
        }
        text = t.after;
    }
    if (rc < 0)
        return rc;
    buf_text(out, text);
    return buf_ok(out, err);
}

int flow_expr_tags(const char *text, int (*each)(void *arg, const char *tag, bool expression),
                   void *arg, struct err *err)
{
    struct tag t;
    int rc;
    while ((rc = tag_next(text, &t, err)) > 0) {
        OWN_MEM char *name = TAKE(t.text);
        int answer = each(arg, name, t.expression);
        if (answer)
            return answer;
        text = t.after;
    }
    return rc;
}

/* ------------------------------------------------------------ when */

int flow_expr_when(const char *text, const struct flow_scope *s, bool *out, struct err *err)
{
    OWN_BUF filled = BUF_INIT;
    OWN(flow_expr) e = NULL;
    OWN_JSON json_t *v = NULL;
    if (flow_expr_fill(text, s, NULL, &filled, err) < 0)
        return -(int)err->code;
    const char *whole = filled.data ? filled.data : "";
    if (expr_read(whole, filled.n, EXPR_WORDS_TEXTS, &e, err) < 0 ||
        flow_expr_eval(e, s, &v, err) < 0 || flow_expr_truth(v, out, err) < 0)
        return err_add(err, "when \"%.100s\"", whole);
    return 0;
}

/* A tag stands for a word, an expression for a condition. */
int flow_expr_check_when(const char *text, struct err *err)
{
    OWN_BUF filled = BUF_INIT;
    OWN(flow_expr) e = NULL;
    struct tag t;
    int rc;
    const char *p = text;
    while ((rc = tag_next(p, &t, err)) > 0) {
        free(t.text);
        buf_append(&filled, p, (size_t)(t.open - p));
        buf_text(&filled, t.expression ? "true" : "x");
        p = t.after;
    }
    if (rc < 0)
        return rc;
    buf_text(&filled, p);
    if (buf_ok(&filled, err) < 0)
        return -ERR_NOMEM;
    if (expr_read(filled.data ? filled.data : "", filled.n, EXPR_WORDS_TEXTS, &e, err) < 0)
        return err_add(err, "when \"%.100s\"", text);
    return 0;
}
