/* pipelines/expr.c - reads an expression into a tree
 *
 * Descent by the binding of operators. A chain of && or || is one node, so that a `depends` over
 * thousands of tasks is not deep; all other nesting is bounded by FLOW_EXPR_DEPTH_MAX.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "pipelines/expr_int.h"

struct reader {
    const char *text, *p, *end;
    enum expr_words words;
    struct flow_expr *e;
    int depth;
    struct err *err;
};

typedef struct expr_node *(*read_fn)(struct reader *);

static struct expr_node *read_all(struct reader *r);
static struct expr_node *read_prefix(struct reader *r);

void flow_expr_free(struct flow_expr *e)
{
    if (!e)
        return;
    for (struct expr_node *n = e->all, *next; n; n = next) {
        next = n->next;
        json_decref(n->value);
        free(n->text);
        free(n->list);
        free(n);
    }
    free(e);
}

static struct expr_node *wrong(struct reader *r, const char *what)
{
    if (!r->err->code) {
        int left = (int)(r->end - r->p);
        if (left > 0)
            err_set(r->err, ERR_INVALID, "expression, character %d: %s at \"%.*s\"",
                    (int)(r->p - r->text) + 1, what, left > 20 ? 20 : left, r->p);
        else
            err_set(r->err, ERR_INVALID, "expression, character %d: %s at its end",
                    (int)(r->p - r->text) + 1, what);
    }
    return NULL;
}

static struct expr_node *node_new(struct reader *r, enum expr_op op)
{
    struct expr_node *n = calloc(1, sizeof *n);
    if (!n) {
        err_set(r->err, ERR_NOMEM, "no memory for an expression");
        return NULL;
    }
    n->op = op;
    n->depth = 1;
    n->next = r->e->all;
    r->e->all = n;
    return n;
}

static struct expr_node *node_value(struct reader *r, json_t *value)
{
    struct expr_node *n = value ? node_new(r, EXPR_VALUE) : NULL;
    if (n)
        n->value = value;
    else
        json_decref(value);
    return n ? n : wrong(r, "a text that is not UTF-8");
}

/* Adds `part` (NULL: already failed) below `n`. */
static bool node_add(struct reader *r, struct expr_node *n, struct expr_node *part)
{
    if (!n || !part)
        return false;
    if (n->n == n->cap) {
        int cap = n->cap ? 2 * n->cap : 2;
        struct expr_node **list = realloc(n->list, (size_t)cap * sizeof *list);
        if (!list) {
            err_set(r->err, ERR_NOMEM, "no memory for an expression");
            return false;
        }
        n->list = list;
        n->cap = cap;
    }
    n->list[n->n++] = part;
    if (n->depth <= part->depth)
        n->depth = part->depth + 1;
    if (n->depth > 4 * FLOW_EXPR_DEPTH_MAX)
        return wrong(r, "it is nested too deeply"), false;
    return true;
}

static struct expr_node *node_of(struct reader *r, enum expr_op op, struct expr_node *a,
                                 struct expr_node *b, struct expr_node *c)
{
    struct expr_node *n = node_new(r, op);
    if (!node_add(r, n, a) || (b && !node_add(r, n, b)) || (c && !node_add(r, n, c)))
        return NULL;
    return n;
}

static struct expr_node *node_text(struct reader *r, enum expr_op op, const char *text, size_t n)
{
    struct expr_node *e = node_new(r, op);
    if (e && !(e->text = strndup(text, n))) {
        err_set(r->err, ERR_NOMEM, "no memory for an expression");
        return NULL;
    }
    return e;
}

/* ------------------------------------------------------------ tokens */

static void blanks(struct reader *r)
{
    while (r->p < r->end && isspace((unsigned char)*r->p))
        r->p++;
}

static bool name_start(char c)
{
    return isalpha((unsigned char)c) || c == '_' || c == '$';
}

static bool name_char(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '$';
}

/* The operator `op` comes next: taken. A word must end there. */
static bool take(struct reader *r, const char *op)
{
    size_t n = strlen(op);
    blanks(r);
    if ((size_t)(r->end - r->p) < n || memcmp(r->p, op, n))
        return false;
    if (name_start(op[0]) && r->p + n < r->end && name_char(r->p[n]))
        return false;
    r->p += n;
    return true;
}

static bool peek(struct reader *r, const char *op)
{
    const char *p = r->p;
    bool is = take(r, op);
    r->p = p;
    return is;
}

static int hex(const char *p, const char *end, int n, unsigned *out)
{
    *out = 0;
    for (int i = 0; i < n; i++) {
        if (p + i >= end || !isxdigit((unsigned char)p[i]))
            return -1;
        int c = tolower((unsigned char)p[i]);
        *out = *out * 16 + (unsigned)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return n;
}

static void put_utf8(struct buf *b, unsigned c)
{
    char u[4];
    size_t n;
    if (c < 0x80)
        u[0] = (char)c, n = 1;
    else if (c < 0x800)
        u[0] = (char)(0xc0 | c >> 6), u[1] = (char)(0x80 | (c & 63)), n = 2;
    else
        u[0] = (char)(0xe0 | c >> 12), u[1] = (char)(0x80 | (c >> 6 & 63)),
        u[2] = (char)(0x80 | (c & 63)), n = 3;
    buf_append(b, u, n);
}

/* A text in quotes; in backquotes nothing is special. */
static struct expr_node *read_text(struct reader *r)
{
    static const char letters[] = "ntrbfav0", meant[] = "\n\t\r\b\f\a\v";
    OWN_BUF b = BUF_INIT;
    const char *open = r->p;
    char quote = *r->p++;

    for (; r->p < r->end && *r->p != quote; r->p++) {
        unsigned c;
        if (*r->p != '\\' || quote == '`' || r->p + 1 == r->end) {
            buf_append(&b, r->p, 1);
            continue;
        }
        char what = *++r->p;
        const char *at = what ? strchr(letters, what) : NULL;
        if (what == 'u' && hex(r->p + 1, r->end, 4, &c) > 0 && c && (c & 0xf800) != 0xd800)
            put_utf8(&b, c), r->p += 4;
        else if (what == 'x' && hex(r->p + 1, r->end, 2, &c) > 0 && c)
            put_utf8(&b, c), r->p += 2;
        else if (at && *at != '0')
            buf_append(&b, &meant[at - letters], 1);
        else if (what == quote || what == '\\' || what == '/' || what == '\'' || what == '"')
            buf_append(&b, &what, 1);
        else
            buf_append(&b, r->p - 1, 2);        /* \d of a pattern */
    }
    if (r->p == r->end) {
        r->p = open;
        return wrong(r, "a text that does not end");
    }
    r->p++;
    return node_value(r, json_stringn(b.data ? b.data : "", b.n));
}

bool expr_number(const char *text, json_t **out)
{
    char *end;
    if (!isdigit((unsigned char)text[text[0] == '-' || text[0] == '+']))
        return false;           /* neither inf, nan nor blanks */
    long long i = strtoll(text, &end, 10);
    if (!*end && strlen(text) < 19) {
        *out = json_integer(i);
        return *out != NULL;
    }
    double d = strtod(text, &end);
    if (*end || !(*out = json_real(d)))         /* NULL also where it is infinite */
        return false;
    return true;
}

static struct expr_node *read_number(struct reader *r)
{
    char text[64];
    size_t n = 0;
    const char *p = r->p;
    for (; p < r->end && n < sizeof text - 1; p++) {
        bool sign = (*p == '-' || *p == '+') && n && (text[n - 1] == 'e' || text[n - 1] == 'E');
        if (!isalnum((unsigned char)*p) && *p != '.' && *p != '_' && !sign)
            break;
        if (*p == '.' && p + 1 < r->end && p[1] == '.')
            break;
        if (*p != '_')
            text[n++] = *p;
    }
    text[n] = '\0';
    json_t *value = NULL;
    if (!expr_number(text, &value))
        return wrong(r, "no number");
    r->p = p;
    return node_value(r, value);
}

/* ------------------------------------------------------------ operands */

/* What may stand bare in a `when`: anything up to a blank or the next operator. */
static struct expr_node *read_word(struct reader *r)
{
    const char *p = r->p;
    bool task = r->words == EXPR_WORDS_TASKS;
    while (p < r->end && !isspace((unsigned char)*p) &&
           (task ? isalnum((unsigned char)*p) || strchr("-_.", *p)
                 : !strchr("()!=<>&|,'\"?", *p)))
        p++;
    size_t n = (size_t)(p - r->p);
    const char *word = r->p;
    if (!n)
        return wrong(r, task ? "the name of a task is missing" : "a word is missing");
    r->p = p;
    if (task)
        return node_text(r, EXPR_NAME, word, n);
    if (n == 4 && !memcmp(word, "true", 4))
        return node_value(r, json_true());
    if (n == 5 && !memcmp(word, "false", 5))
        return node_value(r, json_false());
    OWN_MEM char *text = strndup(word, n);
    json_t *number = NULL;
    if (text && expr_number(text, &number))
        return node_value(r, number);
    return node_value(r, json_stringn(word, n));
}

/* a, b, c up to `close`, which is taken. */
static bool read_list(struct reader *r, struct expr_node *n, const char *close)
{
    if (!n)
        return false;
    if (take(r, close))
        return true;
    do {
        if (peek(r, close))
            break;              /* a comma at the end */
        if (!node_add(r, n, read_all(r)))
            return false;
    } while (take(r, ","));
    if (!take(r, close))
        return wrong(r, close[0] == ')' ? "a \")\" is missing" : "a \"]\" is missing"), false;
    return true;
}

static struct expr_node *read_parens(struct reader *r)
{
    struct expr_node *list = node_new(r, EXPR_LIST);
    if (!read_list(r, list, ")"))
        return NULL;
    /* (a, b) is a list in Argo's `when`; (a) is a. */
    return list->n == 1 ? list->list[0] : list;
}

/* { key: value } or a closure { # > 1 }: a map has a colon after its first word. */
static struct expr_node *read_braces(struct reader *r)
{
    const char *start = r->p;
    struct expr_node *map = node_new(r, EXPR_MAP);
    if (take(r, "}"))
        return map;
    do {
        struct expr_node *key = NULL;
        blanks(r);
        if (r->p < r->end && (*r->p == '"' || *r->p == '\''))
            key = read_text(r);
        else if (r->p < r->end && name_start(*r->p)) {
            const char *p = r->p;
            while (p < r->end && name_char(*p))
                p++;
            key = node_value(r, json_stringn(r->p, (size_t)(p - r->p)));
            r->p = p;
        }
        if (!key || !take(r, ":")) {
            if (!map || map->n || r->err->code)
                return wrong(r, "a key with a colon is missing");
            r->p = start;       /* no map after all */
            struct expr_node *body = read_all(r);
            if (body && !take(r, "}"))
                return wrong(r, "a \"}\" is missing");
            return node_of(r, EXPR_CLOSURE, body, NULL, NULL);
        }
        if (!node_add(r, map, key) || !node_add(r, map, read_all(r)))
            return NULL;
    } while (take(r, ","));
    return take(r, "}") ? map : wrong(r, "a \"}\" is missing");
}

static struct expr_node *read_name(struct reader *r)
{
    static const struct { const char *word; int value; } words[] = {
        { "true", 1 }, { "false", 0 }, { "nil", -1 }, { "null", -1 },
    };
    const char *p = r->p;
    while (p < r->end && name_char(*p))
        p++;
    size_t n = (size_t)(p - r->p);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strlen(words[i].word) == n && !memcmp(words[i].word, r->p, n)) {
            r->p = p;
            return node_value(r, words[i].value < 0 ? json_null() : json_boolean(words[i].value));
        }
    const char *name = r->p;
    r->p = p;
    if (take(r, "(")) {
        struct expr_node *call = node_text(r, EXPR_CALL, name, n);
        return read_list(r, call, ")") ? call : NULL;
    }
    return node_text(r, EXPR_NAME, name, n);
}

static struct expr_node *read_operand(struct reader *r)
{
    blanks(r);
    if (r->p == r->end)
        return r->words == EXPR_WORDS_TEXTS ? node_value(r, json_string(""))
                                            : wrong(r, "a value is missing");
    char c = *r->p;
    if (c == '(' && r->p++)
        return read_parens(r);
    if (r->words == EXPR_WORDS_TASKS)
        return read_word(r);
    if (c == '"' || c == '\'' || c == '`')
        return read_text(r);
    if (r->words == EXPR_WORDS_TEXTS) {
        /* A tag that came to nothing leaves a comparison without its left side: an empty text. */
        if (peek(r, "==") || peek(r, "!=") || peek(r, "&&") || peek(r, "||") || c == ')')
            return node_value(r, json_string(""));
        return read_word(r);
    }
    if (c == '[' && r->p++) {
        struct expr_node *list = node_new(r, EXPR_LIST);
        return read_list(r, list, "]") ? list : NULL;
    }
    if (c == '{' && r->p++)
        return read_braces(r);
    if (c == '#' && r->p++)
        return node_new(r, EXPR_ITEM);
    if (c == '.' && r->p + 1 < r->end && name_start(r->p[1]))
        return node_new(r, EXPR_ITEM);          /* .field of a closure: the member follows */
    if (isdigit((unsigned char)c) || c == '.')
        return read_number(r);
    if (name_start(c))
        return read_name(r);
    return wrong(r, "a value is missing");
}

/* ------------------------------------------------------------ operators */

static struct expr_node *read_index(struct reader *r, struct expr_node *of)
{
    struct expr_node *from = NULL;
    if (!peek(r, ":") && !(from = read_all(r)))
        return NULL;
    if (take(r, ":")) {
        struct expr_node *to = peek(r, "]") ? node_value(r, json_null()) : read_all(r);
        if (!from)
            from = node_value(r, json_null());
        if (!to || !from)
            return NULL;
        of = node_of(r, EXPR_SLICE, of, from, to);
    } else if (from->op == EXPR_VALUE && json_is_string(from->value)) {
        struct expr_node *member = node_text(r, EXPR_MEMBER, json_string_value(from->value),
                                             json_string_length(from->value));
        of = node_add(r, member, of) ? member : NULL;
    } else {
        of = node_of(r, EXPR_INDEX, of, from, NULL);
    }
    return !of || take(r, "]") ? of : wrong(r, "a \"]\" is missing");
}

static struct expr_node *read_member(struct reader *r, struct expr_node *of)
{
    blanks(r);
    const char *p = r->p;
    while (p < r->end && name_char(*p))
        p++;
    const char *name = r->p;
    size_t n = (size_t)(p - name);
    if (!n)
        return wrong(r, "a name is missing after the dot");
    r->p = p;
    bool call = take(r, "(");
    struct expr_node *e = node_text(r, call ? EXPR_METHOD : EXPR_MEMBER, name, n);
    if (!node_add(r, e, of) || (call && !read_list(r, e, ")")))
        return NULL;
    return e;
}

static struct expr_node *read_postfix(struct reader *r)
{
    struct expr_node *n = read_operand(r);
    while (n && r->words == EXPR_WORDS_NAMES) {
        if (take(r, "?.") || (!peek(r, "..") && take(r, ".")))
            n = read_member(r, n);
        else if (take(r, "["))
            n = read_index(r, n);
        else
            break;
    }
    return n;
}

static struct expr_node *read_power(struct reader *r)
{
    struct expr_node *n = read_postfix(r);
    if (n && r->words == EXPR_WORDS_NAMES && take(r, "**"))
        return node_of(r, EXPR_POW, n, read_prefix(r), NULL);
    return n;
}

static struct expr_node *read_prefix(struct reader *r)
{
    struct expr_node *n;
    if (++r->depth > FLOW_EXPR_DEPTH_MAX) {
        n = wrong(r, "it is nested too deeply");
    } else if (!peek(r, "!=") && !peek(r, "!~") && take(r, "!")) {
        n = node_of(r, EXPR_NOT, read_prefix(r), NULL, NULL);
    } else if (r->words == EXPR_WORDS_NAMES && take(r, "not")) {
        n = node_of(r, EXPR_NOT, read_prefix(r), NULL, NULL);
    } else if (r->words == EXPR_WORDS_NAMES && take(r, "-")) {
        n = node_of(r, EXPR_MINUS, read_prefix(r), NULL, NULL);
    } else if (r->words == EXPR_WORDS_NAMES && take(r, "+")) {
        n = read_prefix(r);
    } else {
        n = read_power(r);
    }
    r->depth--;
    return n;
}

struct binary { const char *word; enum expr_op op; };

/* One level of operators that bind alike, from the left. */
static struct expr_node *read_level(struct reader *r, read_fn below, const struct binary *ops)
{
    struct expr_node *n = below(r);
    while (n) {
        const struct binary *op = ops;
        while (op->word && !take(r, op->word))
            op++;
        if (!op->word)
            break;
        n = node_of(r, op->op, n, below(r), NULL);
    }
    return n;
}

static struct expr_node *read_product(struct reader *r)
{
    static const struct binary ops[] = {
        { "*", EXPR_MUL }, { "/", EXPR_DIV }, { "%", EXPR_MOD }, { NULL, 0 },
    };
    return read_level(r, read_prefix, ops);
}

static struct expr_node *read_sum(struct reader *r)
{
    static const struct binary ops[] = { { "+", EXPR_ADD }, { "-", EXPR_SUB }, { NULL, 0 } };
    return read_level(r, read_product, ops);
}

static struct expr_node *read_comparison(struct reader *r)
{
    static const struct binary ops[] = {
        { "==", EXPR_EQ }, { "!=", EXPR_NE }, { "=~", EXPR_MATCHES }, { "!~", EXPR_NOT_MATCHES },
        { "<=", EXPR_LE }, { "<", EXPR_LT }, { ">=", EXPR_GE }, { ">", EXPR_GT },
        { "not in", EXPR_NOT_IN }, { "in", EXPR_IN }, { "contains", EXPR_CONTAINS },
        { "startsWith", EXPR_STARTS }, { "endsWith", EXPR_ENDS }, { "matches", EXPR_MATCHES },
        { NULL, 0 },
    };
    return r->words == EXPR_WORDS_TASKS ? read_prefix(r) : read_level(r, read_sum, ops);
}

/* A chain of one operator is one node. */
static struct expr_node *read_chain(struct reader *r, read_fn below, enum expr_op op,
                                    const char *sign, const char *word)
{
    struct expr_node *first = below(r), *n = NULL;
    while (first && (take(r, sign) || (word && r->words == EXPR_WORDS_NAMES && take(r, word)))) {
        if (!n && !node_add(r, n = node_new(r, op), first))
            return NULL;
        if (!node_add(r, n, below(r)))
            return NULL;
    }
    return n ? n : first;
}

static struct expr_node *read_and(struct reader *r)
{
    return read_chain(r, read_comparison, EXPR_AND, "&&", "and");
}

static struct expr_node *read_or(struct reader *r)
{
    return read_chain(r, read_and, EXPR_OR, "||", "or");
}

static struct expr_node *read_coalesce(struct reader *r)
{
    return read_chain(r, read_or, EXPR_COALESCE, "??", NULL);
}

/* a | f(b) is f(a, b) */
static struct expr_node *read_pipe(struct reader *r)
{
    struct expr_node *n = read_coalesce(r);
    while (n && r->words == EXPR_WORDS_NAMES && take(r, "|")) {
        struct expr_node *call = read_postfix(r);
        if (!call)
            return NULL;
        if (call->op != EXPR_CALL)
            return wrong(r, "a call is missing after \"|\"");
        if (!node_add(r, call, n))
            return NULL;
        memmove(call->list + 1, call->list, (size_t)(call->n - 1) * sizeof *call->list);
        call->list[0] = n;
        n = call;
    }
    return n;
}

static struct expr_node *read_all(struct reader *r)
{
    if (++r->depth > FLOW_EXPR_DEPTH_MAX)
        return wrong(r, "it is nested too deeply");
    struct expr_node *n = read_pipe(r);
    if (n && r->words != EXPR_WORDS_TASKS && !peek(r, "?.") && take(r, "?")) {
        struct expr_node *yes = read_all(r);
        if (yes && !take(r, ":"))
            return wrong(r, "a \":\" is missing");
        n = yes ? node_of(r, EXPR_COND, n, yes, read_all(r)) : NULL;
        if (n && n->n < 3)
            n = NULL;           /* the second choice was wrong */
    }
    r->depth--;
    return n;
}

int expr_read(const char *text, size_t n, enum expr_words words, struct flow_expr **out,
              struct err *err)
{
    if (n > FLOW_EXPR_LENGTH_MAX && words != EXPR_WORDS_TASKS)
        return err_set(err, ERR_INVALID, "an expression has %zu bytes, %d are the most", n,
                       FLOW_EXPR_LENGTH_MAX);
    OWN(flow_expr) e = calloc(1, sizeof *e);
    if (!e)
        return err_set(err, ERR_NOMEM, "no memory for an expression");

    struct err why = { 0 };
    struct reader r = { text, text, text + n, words, e, 0, &why };
    e->words = words;
    e->root = read_all(&r);
    blanks(&r);
    if (e->root && r.p < r.end)
        wrong(&r, "an operator is missing");
    if (!e->root && !why.code)
        wrong(&r, "it is not understood");
    if (why.code) {
        *err = why;
        return -(int)why.code;
    }
    *out = TAKE(e);
    return 0;
}

int flow_expr_parse(const char *text, size_t n, struct flow_expr **out, struct err *err)
{
    return expr_read(text, n, EXPR_WORDS_NAMES, out, err);
}

int flow_expr_parse_depends(const char *text, struct flow_expr **out, struct err *err)
{
    return expr_read(text, strlen(text), EXPR_WORDS_TASKS, out, err);
}
