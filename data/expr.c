/* data/expr.c - expressions to a small stack program
 *
 * A recursive-descent parser emits postfix code; evaluation is a loop over it. The parser counts
 * its depth up to EXPR_DEPTH_MAX. One depth of nesting leaves at most one operand a level and one
 * argument waiting on the stack of the evaluation, so STACK_MAX suffices whatever the text is.
 */
#include "data/expr.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/elementary.h"

enum op {
    OP_NUMBER, OP_COLUMN, OP_NEG, OP_NOT, OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_MOD,
    OP_LT, OP_LE, OP_GT, OP_GE, OP_EQ, OP_NE, OP_AND, OP_OR,
    OP_MIN, OP_MAX, OP_ABS, OP_LOG, OP_EXP, OP_SQRT, OP_FLOOR,
};

struct code {
    enum op op;
    int column;
    double number;
};

struct expr {
    struct code *code;
    int n, cap;
    char *column[EXPR_COLUMNS_MAX];
    int n_columns;
};

struct parser {
    const char *text, *at;
    struct expr *e;
    int depth;
    struct err *err;
};

/* Longer operators come before those they begin with. */
static const struct binary { const char *text; enum op op; int level; } binaries[] = {
    { "||", OP_OR, 0 },  { "&&", OP_AND, 1 }, { "==", OP_EQ, 2 }, { "!=", OP_NE, 2 },
    { "<=", OP_LE, 2 },  { ">=", OP_GE, 2 },  { "<", OP_LT, 2 },  { ">", OP_GT, 2 },
    { "+", OP_ADD, 3 },  { "-", OP_SUB, 3 },  { "*", OP_MUL, 4 }, { "/", OP_DIV, 4 },
    { "%", OP_MOD, 4 },
};
enum { LEVELS = 5, STACK_MAX = EXPR_DEPTH_MAX * (LEVELS + 1) };

static const struct function { const char *name; enum op op; int args; } functions[] = {
    { "min", OP_MIN, 2 }, { "max", OP_MAX, 2 }, { "abs", OP_ABS, 1 },   { "log", OP_LOG, 1 },
    { "exp", OP_EXP, 1 }, { "sqrt", OP_SQRT, 1 }, { "floor", OP_FLOOR, 1 },
};

static int parse_level(struct parser *p, int level);

static int wrong(struct parser *p, const char *want)
{
    if (!*p->at)
        return err_set(p->err, ERR_INVALID, "expression \"%.80s\" ends where %s should be", p->text,
                       want);
    return err_set(p->err, ERR_INVALID,
                   "expression \"%.80s\": at character %d, \"%.12s\", %s should be", p->text,
                   (int)(p->at - p->text) + 1, p->at, want);
}

static void skip_space(struct parser *p)
{
    while (*p->at == ' ' || *p->at == '\t' || *p->at == '\n')
        p->at++;
}

static int emit(struct parser *p, struct code c)
{
    struct expr *e = p->e;
    if (e->n == e->cap) {
        int cap = e->cap ? 2 * e->cap : 16;
        struct code *code = realloc(e->code, (size_t)cap * sizeof *code);
        if (!code)
            return err_set(p->err, ERR_NOMEM, "no memory for an expression");
        e->code = code;
        e->cap = cap;
    }
    e->code[e->n++] = c;
    return 0;
}

static int emit_column(struct parser *p, const char *name, size_t n)
{
    struct expr *e = p->e;
    int i = 0;
    while (i < e->n_columns && !(strlen(e->column[i]) == n && !memcmp(e->column[i], name, n)))
        i++;
    if (i == e->n_columns) {
        if (i == EXPR_COLUMNS_MAX)
            return err_set(p->err, ERR_INVALID, "expression \"%.80s\" reads more than %d columns",
                           p->text, EXPR_COLUMNS_MAX);
        if (!(e->column[i] = strndup(name, n)))
            return err_set(p->err, ERR_NOMEM, "no memory for an expression");
        e->n_columns++;
    }
    return emit(p, (struct code){ .op = OP_COLUMN, .column = i });
}

static int parse_call(struct parser *p, const struct function *f)
{
    p->at++;                            /* the ( */
    for (int i = 0; i < f->args; i++) {
        if (parse_level(p, 0) < 0)
            return -p->err->code;
        skip_space(p);
        char want = i + 1 < f->args ? ',' : ')';
        if (*p->at != want)
            return wrong(p, want == ',' ? "a comma" : "a closing parenthesis");
        p->at++;
    }
    return emit(p, (struct code){ .op = f->op });
}

static int parse_name(struct parser *p)
{
    const char *start = p->at;
    while (isalnum((unsigned char)*p->at) || *p->at == '_' || *p->at == '.' ||
           (unsigned char)*p->at >= 0x80)
        p->at++;
    size_t n = (size_t)(p->at - start);
    skip_space(p);
    if (*p->at != '(')
        return emit_column(p, start, n);
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++)
        if (strlen(functions[i].name) == n && !memcmp(functions[i].name, start, n))
            return parse_call(p, &functions[i]);
    p->at = start;
    return wrong(p, "one of the functions min max abs log exp sqrt floor");
}

static int parse_quoted(struct parser *p)
{
    const char *end = strchr(p->at + 1, '`');
    if (!end || end == p->at + 1)
        return wrong(p, "a column name in backquotes");
    int rc = emit_column(p, p->at + 1, (size_t)(end - p->at - 1));
    p->at = end + 1;
    return rc;
}

static int parse_number(struct parser *p)
{
    /* strtod would take "0x1" and "nan" too, and follows the locale's decimal point only in a
     * program that calls setlocale; this one does not. */
    const char *c = p->at;
    while (isdigit((unsigned char)*c) || *c == '.')
        c++;
    if ((*c == 'e' || *c == 'E') && (isdigit((unsigned char)c[1]) ||
        ((c[1] == '-' || c[1] == '+') && isdigit((unsigned char)c[2])))) {
        c += 2;
        while (isdigit((unsigned char)*c))
            c++;
    }
    char text[64], *end;
    size_t n = (size_t)(c - p->at);
    if (n >= sizeof text)
        return wrong(p, "a shorter number");
    memcpy(text, p->at, n);
    text[n] = 0;
    double number = strtod(text, &end);
    if (end != text + n || !isfinite(number))
        return wrong(p, "a number");
    p->at = c;
    return emit(p, (struct code){ .op = OP_NUMBER, .number = number });
}

static int parse_prefix(struct parser *p)
{
    skip_space(p);
    char c = *p->at;
    if (p->depth >= EXPR_DEPTH_MAX - LEVELS)
        return wrong(p, "less nesting");
    if (c == '-' || c == '!') {
        p->at++;
        p->depth++;
        if (parse_prefix(p) < 0)
            return -p->err->code;
        p->depth--;
        return emit(p, (struct code){ .op = c == '-' ? OP_NEG : OP_NOT });
    }
    if (c == '(') {
        p->at++;
        if (parse_level(p, 0) < 0)
            return -p->err->code;
        skip_space(p);
        if (*p->at != ')')
            return wrong(p, "a closing parenthesis");
        p->at++;
        return 0;
    }
    if (c == '`')
        return parse_quoted(p);
    if (isdigit((unsigned char)c) || c == '.')
        return parse_number(p);
    if (isalpha((unsigned char)c) || c == '_' || (unsigned char)c >= 0x80)
        return parse_name(p);
    return wrong(p, "a number, a column or a parenthesis");
}

static const struct binary *binary_at(struct parser *p)
{
    skip_space(p);
    for (size_t i = 0; i < sizeof binaries / sizeof binaries[0]; i++)
        if (!strncmp(p->at, binaries[i].text, strlen(binaries[i].text)))
            return &binaries[i];
    return NULL;
}

static int parse_level(struct parser *p, int level)
{
    if (level == LEVELS)
        return parse_prefix(p);
    p->depth += level == 0;
    if (parse_level(p, level + 1) < 0)
        return -p->err->code;
    for (const struct binary *b; (b = binary_at(p)) && b->level == level;) {
        p->at += strlen(b->text);
        if (parse_level(p, level + 1) < 0 || emit(p, (struct code){ .op = b->op }) < 0)
            return -p->err->code;
    }
    p->depth -= level == 0;
    return 0;
}

int expr_parse(const char *text, struct expr **out, struct err *err)
{
    if (strlen(text) > EXPR_LENGTH_MAX)
        return err_set(err, ERR_INVALID, "expression \"%.40s...\" is longer than %d characters",
                       text, EXPR_LENGTH_MAX);
    OWN(expr) e = calloc(1, sizeof *e);
    if (!e)
        return err_set(err, ERR_NOMEM, "no memory for an expression");
    struct parser p = { text, text, e, 0, err };
    if (parse_level(&p, 0) < 0)
        return -err->code;
    skip_space(&p);
    if (*p.at)
        return wrong(&p, "an operator");
    *out = TAKE(e);
    return 0;
}

void expr_free(struct expr *e)
{
    if (!e)
        return;
    for (int i = 0; i < e->n_columns; i++)
        free(e->column[i]);
    free(e->code);
    free(e);
}

int expr_n_columns(const struct expr *e)
{
    return e->n_columns;
}

const char *expr_column(const struct expr *e, int i)
{
    return e->column[i];
}

int expr_is_boolean(const struct expr *e)
{
    enum op last = e->code[e->n - 1].op;
    return last == OP_NOT || (last >= OP_LT && last <= OP_OR);
}

static double eval_unary(enum op op, double a)
{
    switch (op) {
    case OP_NEG: return -a;
    case OP_NOT: return a == 0;
    case OP_ABS: return fabs(a);
    case OP_LOG: return elementary_log(a);
    case OP_EXP: return elementary_exp(a);
    case OP_SQRT: return sqrt(a);
    default: return floor(a);
    }
}

static double eval_binary(enum op op, double a, double b)
{
    switch (op) {
    case OP_ADD: return a + b;
    case OP_SUB: return a - b;
    case OP_MUL: return a * b;
    case OP_DIV: return a / b;
    case OP_MOD: return fmod(a, b);
    case OP_LT: return a < b;
    case OP_LE: return a <= b;
    case OP_GT: return a > b;
    case OP_GE: return a >= b;
    case OP_EQ: return a == b;
    case OP_NE: return a != b;
    case OP_AND: return a != 0 && b != 0;
    case OP_OR: return a != 0 || b != 0;
    case OP_MIN: return a < b ? a : b;
    default: return a > b ? a : b;
    }
}

double expr_eval(const struct expr *e, const double *value)
{
    double stack[STACK_MAX];
    int n = 0;

    for (int i = 0; i < e->n; i++) {
        const struct code *c = &e->code[i];
        if (c->op == OP_NUMBER) {
            stack[n++] = c->number;
        } else if (c->op == OP_COLUMN) {
            stack[n++] = value[c->column];
        } else if (c->op == OP_NEG || c->op == OP_NOT || c->op >= OP_ABS) {
            double a = stack[n - 1];
            stack[n - 1] = isnan(a) ? a : eval_unary(c->op, a);
        } else {
            double a = stack[n - 2], b = stack[n - 1];
            stack[--n - 1] = isnan(a) ? a : isnan(b) ? b : eval_binary(c->op, a, b);
        }
    }
    return stack[0];
}
