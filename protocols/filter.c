/* protocols/filter.c - the filters of Google's list calls
 *
 * The parser walks the text once and fills an array of nodes; a node's children are indices, so the
 * array may grow. Words are copied into one pool: a word needs its bytes and a NUL, and there is at
 * most one word for each byte of text.
 */
#include "protocols/filter.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "protocols/stamp.h"

enum op { OP_EQ, OP_NE, OP_GT, OP_GE, OP_LT, OP_LE, OP_HAS, OP_NONE };
static const char *const op_text[] = { "=", "!=", ">", ">=", "<", "<=", ":" };

struct constant {
    const char *text;
    size_t n;
    bool prefix; /* it ended in *, which was cut off */
    bool is_number, is_time;
    double number;
    int64_t time;
    int severity; /* -1: none */
};

enum node_kind { NODE_ALL, NODE_AND, NODE_OR, NODE_NOT, NODE_TERM };
struct node {
    enum node_kind kind;
    int left, right; /* NODE_NOT: left alone */
    const char *path;
    enum op op;
    struct constant c;
};

struct filter {
    struct node node[FILTER_TERMS_MAX * 3]; /* terms, what joins them, NOTs */
    int n, terms, root;
    char *pool;
    size_t used;
};

struct parser {
    struct filter *f;
    const char *text, *at;
    int depth;
    struct err *err;
};

static const struct {
    const char *word;
    int rank;
} severities[] = {
    { "DEFAULT", 0 },    { "DEBUG", 100 },   { "INFO", 200 },
    { "NOTICE", 300 },   { "WARNING", 400 }, { "ERROR", 500 },
    { "CRITICAL", 600 }, { "ALERT", 700 },   { "EMERGENCY", 800 },
};

int filter_severity(const char *word)
{
    for (size_t i = 0; i < sizeof severities / sizeof severities[0]; i++)
        if (!strcasecmp(severities[i].word, word))
            return severities[i].rank;
    return -1;
}

static int wrong(struct parser *p, const char *at, const char *what)
{
    return err_set(p->err, ERR_INVALID, "filter, at character %d: %s", (int)(at - p->text) + 1,
                   what);
}

static int add(struct parser *p, const struct node *node)
{
    struct filter *f = p->f;
    if (f->n == (int)(sizeof f->node / sizeof f->node[0]))
        return wrong(p, p->at, "there are too many terms");
    f->node[f->n] = *node;
    return f->n++;
}

static void skip_space(struct parser *p)
{
    while (isspace((unsigned char)*p->at))
        p->at++;
}

static bool is_word(char c)
{
    return c && (isalnum((unsigned char)c) || (c & 0x80) || strchr("._-+*/@%$[]{}#~&?|^;,'", c));
}

/* A keyword is in capitals and a word of its own. */
static bool keyword(struct parser *p, const char *word)
{
    skip_space(p);
    size_t n = strlen(word);
    if (strncmp(p->at, word, n) || is_word(p->at[n]))
        return false;
    p->at += n;
    return true;
}

/* What comes up ends an expression. */
static bool at_end(struct parser *p)
{
    skip_space(p);
    return !*p->at || *p->at == ')';
}

/* A word or a quoted text, into the pool; `path` words stop before an operator. */
static const char *word(struct parser *p, bool path, bool *out_quoted)
{
    skip_space(p);
    const char *start = p->at;
    char *out = p->f->pool + p->f->used, *to = out;
    *out_quoted = *p->at == '"';
    if (*out_quoted) {
        for (p->at++; *p->at && *p->at != '"'; p->at++) {
            if (*p->at == '\\' && p->at[1])
                p->at++;
            *to++ = *p->at;
        }
        if (!*p->at) {
            wrong(p, start, "the quotes are not closed");
            return NULL;
        }
        p->at++;
    } else {
        while (is_word(*p->at) || (!path && *p->at == ':'))
            *to++ = *p->at++;
        if (to == out) {
            wrong(p, start,
                  path ? "a name such as state or resource.labels.job_id is wanted"
                       : "a value is wanted");
            return NULL;
        }
    }
    *to++ = 0;
    p->f->used += (size_t)(to - out);
    return out;
}

static enum op read_op(struct parser *p)
{
    static const enum op longest_first[] = { OP_GE, OP_LE, OP_NE, OP_EQ, OP_GT, OP_LT, OP_HAS };
    skip_space(p);
    for (size_t i = 0; i < sizeof longest_first / sizeof longest_first[0]; i++) {
        const char *text = op_text[longest_first[i]];
        if (!strncmp(p->at, text, strlen(text))) {
            p->at += strlen(text);
            return longest_first[i];
        }
    }
    return OP_NONE;
}

static int constant(struct parser *p, enum op op, struct constant *c)
{
    bool quoted;
    *c = (struct constant){ .severity = -1 };
    char *text = (char *)word(p, false, &quoted);
    if (!text)
        return -ERR_INVALID;
    c->n = strlen(text);
    if (op == OP_HAS && c->n && text[c->n - 1] == '*') {
        c->prefix = true;
        text[--c->n] = 0;
    }
    c->text = text;
    char *end;
    errno = 0;
    c->number = strtod(text, &end);
    c->is_number = c->n && !*end && !errno && isfinite(c->number);
    c->is_time = stamp_parse(text, &c->time) == 0;
    c->severity = filter_severity(text);
    return 0;
}

static int add_term(struct parser *p, const char *path, enum op op)
{
    struct node node = { .kind = NODE_TERM, .path = path, .op = op };
    if (p->f->terms == FILTER_TERMS_MAX)
        return wrong(p, p->at, "there are more than 1,000 terms");
    if (constant(p, op, &node.c) < 0)
        return -ERR_INVALID;
    p->f->terms++;
    return add(p, &node);
}

/* path = ("a" OR "b"): the same comparison with each. */
static int term_group(struct parser *p, const char *path, enum op op)
{
    int left = -1;
    enum node_kind join = NODE_OR;
    const char *open = p->at++;
    for (skip_space(p); *p->at != ')'; skip_space(p)) {
        if (!*p->at)
            return wrong(p, open, "the parenthesis is not closed");
        if (left >= 0) {
            join = keyword(p, "OR") ? NODE_OR : NODE_AND;
            if (join == NODE_AND)
                keyword(p, "AND");
        }
        int right = add_term(p, path, op);
        if (right < 0)
            return right;
        if (left >= 0)
            right = add(p, &(struct node){ .kind = join, .left = left, .right = right });
        if (right < 0)
            return right;
        left = right;
    }
    p->at++;
    return left < 0 ? wrong(p, open, "a value is wanted") : left;
}

static int comparison(struct parser *p)
{
    bool quoted;
    skip_space(p);
    const char *start = p->at, *path = word(p, true, &quoted);
    if (!path)
        return -ERR_INVALID;
    skip_space(p);
    if (!strncmp(p->at, "=~", 2) || !strncmp(p->at, "!~", 2))
        return wrong(p, p->at,
                     "regular expressions are not taken here (use : for a part of a text)");
    if (*p->at == '(')
        return wrong(p, start, "functions are not taken here");
    enum op op = read_op(p);
    if (op == OP_NONE)
        return wrong(p, start, "a comparison such as state=FAILED is wanted");
    skip_space(p);
    return *p->at == '(' ? term_group(p, path, op) : add_term(p, path, op);
}

static int expression(struct parser *p);

static int term(struct parser *p)
{
    if (++p->depth > FILTER_DEPTH_MAX)
        return wrong(p, p->at, "it is more than 32 deep");
    int rc;
    if (keyword(p, "NOT") || (*p->at == '-' && p->at++)) {
        rc = term(p);
        if (rc >= 0)
            rc = add(p, &(struct node){ .kind = NODE_NOT, .left = rc });
    } else if (*p->at == '(') {
        const char *open = p->at++;
        rc = expression(p);
        if (rc >= 0 && *p->at != ')')
            rc = wrong(p, open, "the parenthesis is not closed");
        else if (rc >= 0)
            p->at++;
    } else {
        rc = comparison(p);
    }
    p->depth--;
    return rc;
}

static int any(struct parser *p)
{
    int left = term(p);
    while (left >= 0 && keyword(p, "OR")) {
        int right = term(p);
        if (right < 0)
            return right;
        left = add(p, &(struct node){ .kind = NODE_OR, .left = left, .right = right });
    }
    return left;
}

static int expression(struct parser *p)
{
    int left = any(p);
    while (left >= 0 && (keyword(p, "AND") || !at_end(p))) {
        int right = any(p);
        if (right < 0)
            return right;
        left = add(p, &(struct node){ .kind = NODE_AND, .left = left, .right = right });
    }
    return left;
}

int filter_parse(const char *text, struct filter **out, struct err *err)
{
    size_t n = text ? strlen(text) : 0;
    if (n > FILTER_BYTES_MAX)
        return err_set(err, ERR_INVALID, "the filter has %zu bytes; %d are taken at most", n,
                       FILTER_BYTES_MAX);
    OWN(filter) f = calloc(1, sizeof *f);
    if (f)
        f->pool = malloc(2 * n + 2);
    if (!f || !f->pool)
        return err_set(err, ERR_NOMEM, "no memory for a filter");
    struct parser p = { .f = f, .text = n ? text : "", .at = n ? text : "", .err = err };
    if (at_end(&p) && !*p.at)
        f->root = add(&p, &(struct node){ .kind = NODE_ALL });
    else
        f->root = expression(&p);
    if (f->root < 0)
        return f->root;
    if (*p.at)
        return wrong(&p, p.at, "this parenthesis was not opened");
    *out = TAKE(f);
    return 0;
}

void filter_free(struct filter *f)
{
    if (!f)
        return;
    free(f->pool);
    free(f);
}

/* ------------------------------------------------------------ asking */

static bool ordered(enum op op, int order)
{
    switch (op) {
    case OP_EQ:
    case OP_HAS:
        return order == 0;
    case OP_NE:
        return order != 0;
    case OP_GT:
        return order > 0;
    case OP_GE:
        return order >= 0;
    case OP_LT:
        return order < 0;
    default:
        return order <= 0;
    }
}

static int order_of(double a, double b)
{
    return (a > b) - (a < b);
}

static bool compare(enum op op, const struct filter_value *v, const struct constant *c)
{
    if (v->kind == FILTER_NONE)
        return op == OP_NE;
    if (op == OP_HAS && c->prefix && !c->n)
        return true;
    switch (v->kind) {
    case FILTER_NUMBER:
        return c->is_number ? ordered(op, order_of(v->number, c->number)) : op == OP_NE;
    case FILTER_SEVERITY: {
        double rank = c->is_number ? c->number : c->severity;
        return rank >= 0 ? ordered(op, order_of(v->number, rank)) : op == OP_NE;
    }
    case FILTER_TIME:
        return c->is_time ? ordered(op, (v->time > c->time) - (v->time < c->time)) : op == OP_NE;
    default:
        if (op == OP_HAS)
            return c->prefix ? !strncasecmp(v->text, c->text, c->n)
                             : !!strcasestr(v->text, c->text);
        return ordered(op, strcmp(v->text, c->text));
    }
}

struct asked {
    void (*get)(void *arg, const char *path, struct filter_value *out);
    void *arg;
};

/* As deep as there are terms in a row: both sides of a join of a thousand are fine on any stack. */
static bool match(const struct filter *f, int i, const struct asked *a)
{
    const struct node *node = &f->node[i];
    switch (node->kind) {
    case NODE_ALL:
        return true;
    case NODE_AND:
        return match(f, node->left, a) && match(f, node->right, a);
    case NODE_OR:
        return match(f, node->left, a) || match(f, node->right, a);
    case NODE_NOT:
        return !match(f, node->left, a);
    default: {
        struct filter_value v = { .kind = FILTER_NONE };
        a->get(a->arg, node->path, &v);
        return compare(node->op, &v, &node->c);
    }
    }
}

bool filter_match(const struct filter *f,
                  void (*get)(void *arg, const char *path, struct filter_value *out), void *arg)
{
    return match(f, f->root, &(struct asked){ get, arg });
}

static const struct node *wants(const struct filter *f, int i, const char *path)
{
    const struct node *node = &f->node[i];
    if (node->kind == NODE_AND) {
        const struct node *found = wants(f, node->left, path);
        return found ? found : wants(f, node->right, path);
    }
    bool is = node->kind == NODE_TERM && (node->op == OP_EQ || node->op == OP_HAS) && node->c.n &&
              !strcmp(node->path, path);
    return is ? node : NULL;
}

const char *filter_wants(const struct filter *f, const char *path, bool *out_part)
{
    const struct node *node = wants(f, f->root, path);
    if (!node)
        return NULL;
    *out_part = node->op == OP_HAS;
    return node->c.text;
}

struct span {
    int64_t from, to;
};

static struct span times_of(const struct node *node, const char *path)
{
    struct span all = { INT64_MIN, INT64_MAX };
    if (node->kind != NODE_TERM || !node->c.is_time || strcmp(node->path, path))
        return all;
    int64_t t = node->c.time, after = t < INT64_MAX ? t + 1 : t;
    switch (node->op) {
    case OP_EQ:
    case OP_HAS:
        return (struct span){ t, after };
    case OP_GT:
        return (struct span){ after, INT64_MAX };
    case OP_GE:
        return (struct span){ t, INT64_MAX };
    case OP_LT:
        return (struct span){ INT64_MIN, t };
    case OP_LE:
        return (struct span){ INT64_MIN, after };
    default:
        return all;
    }
}

static struct span times(const struct filter *f, int i, const char *path)
{
    const struct node *node = &f->node[i];
    if (node->kind != NODE_AND && node->kind != NODE_OR)
        return times_of(node, path);
    struct span a = times(f, node->left, path), b = times(f, node->right, path);
    bool both = node->kind == NODE_AND;
    return (struct span){ (a.from > b.from) == both ? a.from : b.from,
                          (a.to < b.to) == both ? a.to : b.to };
}

void filter_times(const struct filter *f, const char *path, int64_t *from, int64_t *to)
{
    struct span s = times(f, f->root, path);
    *from = s.from;
    *to = s.to;
}
