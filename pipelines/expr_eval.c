/* pipelines/expr_eval.c - the value of an expression */
#include <math.h>
#include <regex.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "pipelines/expr_int.h"

int expr_step(struct expr_run *r, size_t made)
{
    if (++r->steps > FLOW_EXPR_STEPS_MAX)
        return err_set(r->err, ERR_INVALID, "the expression takes more than %d steps",
                       FLOW_EXPR_STEPS_MAX);
    r->made += made;
    if (r->made > FLOW_EXPR_MADE_MAX)
        return err_set(r->err, ERR_INVALID, "the expression makes more than %d bytes",
                       FLOW_EXPR_MADE_MAX);
    return 0;
}

static int done(struct expr_run *r, json_t *value, json_t **out)
{
    if (!value)
        return err_set(r->err, ERR_INVALID, "the expression makes a value that cannot be written");
    *out = value;
    return expr_step(r, 0) < 0 ? (json_decref(value), *out = NULL, -ERR_INVALID) : 0;
}

int expr_text_new(struct expr_run *r, const char *text, size_t n, json_t **out)
{
    if (expr_step(r, n) < 0)
        return -ERR_INVALID;
    return done(r, json_stringn(text, n), out);
}

static const char *kind_of(const json_t *v)
{
    static const char *const words[] = {
        [JSON_OBJECT] = "a map", [JSON_ARRAY] = "a list", [JSON_STRING] = "a text",
        [JSON_INTEGER] = "a number", [JSON_REAL] = "a number", [JSON_TRUE] = "true",
        [JSON_FALSE] = "false", [JSON_NULL] = "nil",
    };
    return words[json_typeof(v)];
}

/* ------------------------------------------------------------ names */

/* Dotted path of a chain of members that begins with a name; false: it does not. */
static bool path_of(const struct expr_node *n, struct buf *out)
{
    if (n->op == EXPR_NAME) {
        buf_text(out, n->text);
        return true;
    }
    if (n->op != EXPR_MEMBER || !path_of(n->list[0], out))
        return false;
    buf_printf(out, ".%s", n->text);
    return true;
}

static int member(struct expr_run *r, const json_t *of, const char *key, bool optional,
                  json_t **out)
{
    json_t *v = json_is_object(of) ? json_object_get(of, key) : NULL;
    if (!v && (optional || json_is_object(of))) {
        *out = json_null();     /* of a map: a key that is not there is nil */
        return 0;
    }
    if (!v)
        return err_set(r->err, ERR_INVALID, "%s has no field \"%s\"", kind_of(of), key);
    return done(r, json_incref(v), out);
}

/* A name and the members after it: the longest path that the scope knows, the rest looked up. */
static int name_value(struct expr_run *r, const struct expr_node *n, bool optional, json_t **out)
{
    OWN_BUF path = BUF_INIT;
    if (!path_of(n, &path))
        return err_set(r->err, ERR_INVALID, "no name");
    if (buf_ok(&path, r->err) < 0)
        return -ERR_NOMEM;

    int up = 0;
    OWN_JSON json_t *v = NULL;
    const struct expr_node *at = n;
    OWN_MEM char *whole = strdup(path.data);
    for (;; up++) {
        v = r->scope && r->scope->get ? r->scope->get(r->scope->arg, path.data) : NULL;
        if (v || at->op == EXPR_NAME)
            break;
        path.n -= strlen(at->text) + 1;
        path.data[path.n] = '\0';
        at = at->list[0];
    }
    if (!v && optional) {
        *out = json_null();
        return expr_step(r, 0);
    }
    if (!v)
        return err_set(r->err, ERR_INVALID, "\"%s\" is not known here, or has no value",
                       whole ? whole : n->text);
    for (; up; up--) {
        const struct expr_node *m = n;
        for (int i = 1; i < up; i++)
            m = m->list[0];
        json_t *inner = NULL;
        if (member(r, v, m->text, optional, &inner) < 0)
            return -ERR_INVALID;
        if (json_is_null(inner) && !optional)
            return err_set(r->err, ERR_INVALID, "\"%s\" is not known here, or has no value",
                           whole ? whole : n->text);
        json_decref(v);
        v = inner;
    }
    return done(r, TAKE(v), out);
}

static bool begins_with_name(const struct expr_node *n)
{
    while (n->op == EXPR_MEMBER)
        n = n->list[0];
    return n->op == EXPR_NAME;
}

static int index_value(struct expr_run *r, const struct expr_node *n, bool optional, json_t **out)
{
    OWN_JSON json_t *of = NULL;
    OWN_JSON json_t *at = NULL;
    if (expr_value(r, n->list[0], optional, &of) < 0 || expr_value(r, n->list[1], false, &at) < 0)
        return -ERR_INVALID;
    if (json_is_string(at))
        return member(r, of, json_string_value(at), optional, out);
    if (optional && json_is_null(of))
        return done(r, json_null(), out);
    if (!json_is_array(of) || !json_is_number(at))
        return err_set(r->err, ERR_INVALID, "%s cannot be indexed by %s", kind_of(of), kind_of(at));
    double i = json_number_value(at);
    size_t size = json_array_size(of);
    if (i < 0)
        i += (double)size;
    if (!(i >= 0 && i < (double)size))
        return optional ? done(r, json_null(), out)
                        : err_set(r->err, ERR_INVALID, "index %.0f of a list of %zu",
                                  json_number_value(at), size);
    return done(r, json_incref(json_array_get(of, (size_t)i)), out);
}

static int slice_value(struct expr_run *r, const struct expr_node *n, json_t **out)
{
    OWN_JSON json_t *of = NULL;
    OWN_JSON json_t *from = NULL;
    OWN_JSON json_t *to = NULL;
    if (expr_value(r, n->list[0], false, &of) < 0 || expr_value(r, n->list[1], true, &from) < 0 ||
        expr_value(r, n->list[2], true, &to) < 0)
        return -ERR_INVALID;
    if (!json_is_array(of) && !json_is_string(of))
        return err_set(r->err, ERR_INVALID, "%s has no parts", kind_of(of));
    double size = json_is_array(of) ? (double)json_array_size(of) : (double)json_string_length(of);
    double a = json_is_number(from) ? json_number_value(from) : 0;
    double b = json_is_number(to) ? json_number_value(to) : size;
    a = a < 0 ? a + size : a;
    b = b < 0 ? b + size : b;
    a = fmin(fmax(a, 0), size);
    b = fmax(fmin(fmax(b, 0), size), a);
    if (json_is_string(of))
        return expr_text_new(r, json_string_value(of) + (size_t)a, (size_t)b - (size_t)a, out);
    OWN_JSON json_t *part = json_array();
    for (size_t i = (size_t)a; i < (size_t)b; i++)
        if (expr_step(r, 16) < 0)
            return -ERR_INVALID;
        else
            json_array_append(part, json_array_get(of, i));
    return done(r, TAKE(part), out);
}

/* ------------------------------------------------------------ comparing */

bool expr_equal(bool loose, const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b))
        return json_is_integer(a) && json_is_integer(b)
                   ? json_integer_value(a) == json_integer_value(b)
                   : json_number_value(a) == json_number_value(b);
    if (!loose || json_typeof(a) == json_typeof(b))
        return json_equal(a, b);
    const json_t *text = json_is_string(a) ? a : json_is_string(b) ? b : NULL;
    const json_t *other = text == a ? b : a;
    if (!text)
        return false;
    OWN_JSON json_t *number = NULL;
    if (json_is_number(other) && expr_number(json_string_value(text), &number))
        return json_number_value(number) == json_number_value(other);
    OWN_MEM char *shown = flow_expr_text(other);
    return shown && !strcmp(shown, json_string_value(text));
}

int expr_order(struct expr_run *r, const json_t *a, const json_t *b, int *out)
{
    OWN_JSON json_t *na = NULL;
    OWN_JSON json_t *nb = NULL;
    if (json_is_string(a) && json_is_string(b)) {
        bool numbers = r->loose && expr_number(json_string_value(a), &na) &&
                       expr_number(json_string_value(b), &nb);
        if (!numbers) {
            *out = strcmp(json_string_value(a), json_string_value(b));
            return 0;
        }
        a = na;
        b = nb;
    } else if (r->loose && json_is_string(a) && expr_number(json_string_value(a), &na)) {
        a = na;
    } else if (r->loose && json_is_string(b) && expr_number(json_string_value(b), &nb)) {
        b = nb;
    }
    if (!json_is_number(a) || !json_is_number(b))
        return err_set(r->err, ERR_INVALID, "%s and %s cannot be compared", kind_of(a), kind_of(b));
    if (json_is_integer(a) && json_is_integer(b)) {
        long long x = json_integer_value(a), y = json_integer_value(b);
        *out = (x > y) - (x < y);
    } else {
        double x = json_number_value(a), y = json_number_value(b);
        *out = (x > y) - (x < y);
    }
    return 0;
}

/* How large the library's automaton of a pattern becomes: it copies what + and {n} repeat, and
 * copies of copies. Stops at the ")" of a group. */
static double pattern_size(const char **p, int depth)
{
    double sum = 0, last = 0;
    if (depth > 32)
        return INFINITY;
    while (**p && !(**p == ')' && depth)) {
        char c = *(*p)++;
        double times = c == '+' ? 2 : 1;
        if (c == '*' || c == '?')
            continue;
        if (c == '{') {
            char *end;
            double least = (double)strtol(*p, &end, 10), most = least;
            if (*end == ',')
                most = end[1] == '}' ? least + 1 : (double)strtol(end + 1, NULL, 10);
            times = most > 1 ? most : 1;
            *p += strcspn(*p, "}");
            *p += **p == '}';
        }
        if (c == '+' || c == '{') {
            sum += last * (times - 1);
            last *= times;
            continue;
        }
        last = 1;
        if (c == '\\' && **p)
            ++*p;
        if (c == '[') {
            *p += **p == '^';
            *p += **p == ']';
            *p += strcspn(*p, "]");
            *p += **p == ']';
        }
        if (c == '(') {
            last = 1 + pattern_size(p, depth + 1);
            *p += **p == ')';
        }
        sum += last;
    }
    return sum;
}

/* Patterns are those of POSIX with \d \w \s. What would take unbounded memory or time (references
 * back, copies of copies) is refused. */
int expr_matches(struct expr_run *r, const char *text, const char *pattern, bool *out)
{
    OWN_BUF b = BUF_INIT;
    if (strlen(pattern) > 256 || strlen(text) > 64 << 10)
        return err_set(r->err, ERR_INVALID, "a pattern has at most 256 characters, what it is "
                                            "compared with at most 64 kB");
    for (const char *p = pattern; *p; p++) {
        if (*p != '\\' || !p[1]) {
            buf_append(&b, p, 1);
            continue;
        }
        p++;
        static const struct { char letter; const char *set; } sets[] = {
            { 'd', "[0-9]" }, { 'D', "[^0-9]" }, { 's', "[[:space:]]" }, { 'S', "[^[:space:]]" },
            { 'w', "[A-Za-z0-9_]" }, { 'W', "[^A-Za-z0-9_]" },
        };
        const char *set = NULL;
        for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++)
            if (sets[i].letter == *p)
                set = sets[i].set;
        if (*p >= '0' && *p <= '9')
            return err_set(r->err, ERR_INVALID, "the pattern \"%s\" refers back", pattern);
        if (set)
            buf_text(&b, set);
        else
            buf_append(&b, p - 1, 2);
    }
    regex_t re;
    if (buf_ok(&b, r->err) < 0)
        return -ERR_NOMEM;
    const char *made = b.data ? b.data : "", *p = made;
    if (pattern_size(&p, 0) > 1000)
        return err_set(r->err, ERR_INVALID, "the pattern \"%s\" is too large", pattern);
    if (regcomp(&re, made, REG_EXTENDED | REG_NOSUB))
        return err_set(r->err, ERR_INVALID, "\"%s\" is no pattern", pattern);
    *out = !regexec(&re, text, 0, NULL, 0);
    regfree(&re);
    return 0;
}

static bool is_in(struct expr_run *r, const json_t *what, const json_t *where)
{
    size_t i;
    const json_t *each;
    if (json_is_array(where)) {
        json_array_foreach ((json_t *)where, i, each)
            if (expr_equal(r->loose, what, each))
                return true;
        return false;
    }
    const char *text = json_string_value(what);
    if (json_is_object(where))
        return text && json_object_get(where, text);
    return text && json_is_string(where) && strstr(json_string_value(where), text);
}

static int compare(struct expr_run *r, const struct expr_node *n, const json_t *a,
                   const json_t *b, json_t **out)
{
    int order = 0;
    bool is = false;
    enum expr_op op = n->op;

    if (op == EXPR_EQ || op == EXPR_NE)
        return done(r, json_boolean(expr_equal(r->loose, a, b) == (op == EXPR_EQ)), out);
    if (op == EXPR_IN || op == EXPR_NOT_IN)
        return done(r, json_boolean(is_in(r, a, b) == (op == EXPR_IN)), out);
    if (op <= EXPR_GE) {
        if (expr_order(r, a, b, &order) < 0)
            return -ERR_INVALID;
        is = op == EXPR_LT ? order < 0 : op == EXPR_LE ? order <= 0 : op == EXPR_GT ? order > 0
                                                                                    : order >= 0;
        return done(r, json_boolean(is), out);
    }
    if (op == EXPR_CONTAINS && json_is_array(a))
        return done(r, json_boolean(is_in(r, b, a)), out);
    OWN_MEM char *x = flow_expr_text(a);
    OWN_MEM char *y = flow_expr_text(b);
    if (!x || !y)
        return err_set(r->err, ERR_NOMEM, "no memory for an expression");
    size_t nx = strlen(x), ny = strlen(y);
    if (op == EXPR_CONTAINS)
        is = strstr(x, y) != NULL;
    else if (op == EXPR_STARTS)
        is = nx >= ny && !memcmp(x, y, ny);
    else if (op == EXPR_ENDS)
        is = nx >= ny && !memcmp(x + nx - ny, y, ny);
    else if (expr_matches(r, x, y, &is) < 0)
        return -ERR_INVALID;
    return done(r, json_boolean(is != (op == EXPR_NOT_MATCHES)), out);
}

/* ------------------------------------------------------------ arithmetic */

static int integers(enum expr_op op, long long a, long long b, long long *out)
{
    switch (op) {
    case EXPR_ADD:
        return __builtin_add_overflow(a, b, out);
    case EXPR_SUB:
        return __builtin_sub_overflow(a, b, out);
    case EXPR_MUL:
        return __builtin_mul_overflow(a, b, out);
    case EXPR_MOD:
        if (!b || b == -1)
            return (*out = 0, !b);
        *out = a % b;
        return 0;
    default:
        return 1;
    }
}

static int compute(struct expr_run *r, const struct expr_node *n, const json_t *a,
                   const json_t *b, json_t **out)
{
    OWN_JSON json_t *na = NULL;
    OWN_JSON json_t *nb = NULL;
    if (n->op == EXPR_ADD && (json_is_string(a) || json_is_string(b)) && !json_is_null(a) &&
        !json_is_null(b)) {
        OWN_MEM char *x = flow_expr_text(a);
        OWN_MEM char *y = flow_expr_text(b);
        OWN_BUF all = BUF_INIT;
        buf_printf(&all, "%s%s", x ? x : "", y ? y : "");
        return expr_text_new(r, all.data ? all.data : "", all.n, out);
    }
    if (n->op == EXPR_ADD && json_is_array(a) && json_is_array(b)) {
        OWN_JSON json_t *all = json_copy((json_t *)a);
        json_array_extend(all, (json_t *)b);
        if (expr_step(r, 16 * json_array_size(all)) < 0)
            return -ERR_INVALID;
        return done(r, TAKE(all), out);
    }
    if (r->loose && json_is_string(a) && expr_number(json_string_value(a), &na))
        a = na;
    if (r->loose && json_is_string(b) && expr_number(json_string_value(b), &nb))
        b = nb;
    if (!json_is_number(a) || !json_is_number(b))
        return err_set(r->err, ERR_INVALID, "%s and %s cannot be computed with (asInt() and "
                                            "asFloat() make numbers of texts)",
                       kind_of(a), kind_of(b));
    long long i;
    if (json_is_integer(a) && json_is_integer(b) &&
        !integers(n->op, json_integer_value(a), json_integer_value(b), &i))
        return done(r, json_integer(i), out);
    double x = json_number_value(a), y = json_number_value(b), d;
    if ((n->op == EXPR_DIV || n->op == EXPR_MOD) && y == 0)
        return err_set(r->err, ERR_INVALID, "division by zero");
    switch (n->op) {
    case EXPR_ADD: d = x + y; break;
    case EXPR_SUB: d = x - y; break;
    case EXPR_MUL: d = x * y; break;
    case EXPR_DIV: d = x / y; break;
    case EXPR_MOD: d = fmod(x, y); break;
    default: d = pow(x, y); break;
    }
    return done(r, json_real(d), out);
}

static int binary(struct expr_run *r, const struct expr_node *n, json_t **out)
{
    OWN_JSON json_t *a = NULL;
    OWN_JSON json_t *b = NULL;
    bool optional = n->op == EXPR_EQ || n->op == EXPR_NE;
    if (expr_value(r, n->list[0], optional, &a) < 0 || expr_value(r, n->list[1], optional, &b) < 0)
        return -ERR_INVALID;
    return n->op <= EXPR_NOT_MATCHES ? compare(r, n, a, b, out) : compute(r, n, a, b, out);
}

/* ------------------------------------------------------------ all nodes */

int flow_expr_truth(const json_t *value, bool *out, struct err *err)
{
    const char *text = json_string_value(value);
    if (json_is_boolean(value)) {
        *out = json_is_true(value);
        return 0;
    }
    if (text && (!strcasecmp(text, "true") || !strcasecmp(text, "false"))) {
        *out = !strcasecmp(text, "true");
        return 0;
    }
    OWN_MEM char *shown = flow_expr_text(value);
    return err_set(err, ERR_INVALID, "the condition comes to %s%.60s%s, neither true nor false",
                   text ? "\"" : "", shown ? shown : "", text ? "\"" : "");
}

static int truth(struct expr_run *r, const struct expr_node *n, bool *out)
{
    OWN_JSON json_t *v = NULL;
    if (expr_value(r, n, false, &v) < 0)
        return -ERR_INVALID;
    return flow_expr_truth(v, out, r->err);
}

/* && and || stop at the first that decides. */
static int logic(struct expr_run *r, const struct expr_node *n, json_t **out)
{
    bool is = false, stop = n->op == EXPR_OR;
    for (int i = 0; i < n->n; i++) {
        if (truth(r, n->list[i], &is) < 0)
            return -ERR_INVALID;
        if (is == stop)
            break;
    }
    return done(r, json_boolean(is), out);
}

static int gathered(struct expr_run *r, const struct expr_node *n, json_t **out)
{
    bool map = n->op == EXPR_MAP;
    OWN_JSON json_t *all = map ? json_object() : json_array();
    for (int i = 0; i < n->n; i += 1 + map) {
        json_t *v = NULL;
        if (expr_step(r, 16) < 0 || expr_value(r, n->list[i + map], false, &v) < 0)
            return -ERR_INVALID;
        if (map)
            json_object_set_new(all, json_string_value(n->list[i]->value), v);
        else
            json_array_append_new(all, v);
    }
    return done(r, TAKE(all), out);
}

static int method(struct expr_run *r, const struct expr_node *n, json_t **out)
{
    OWN_BUF name = BUF_INIT;
    if (path_of(n->list[0], &name)) {
        buf_printf(&name, ".%s", n->text);
        if (buf_ok(&name, r->err) < 0)
            return -ERR_NOMEM;
        if (expr_known_call(name.data))
            return expr_call(r, name.data, n->list + 1, n->n - 1, NULL, out);
    }
    OWN_JSON json_t *self = NULL;
    if (expr_value(r, n->list[0], false, &self) < 0)
        return -ERR_INVALID;
    return expr_call(r, n->text, n->list + 1, n->n - 1, self, out);
}

static int prefix(struct expr_run *r, const struct expr_node *n, json_t **out)
{
    bool is;
    if (n->op == EXPR_NOT)
        return truth(r, n->list[0], &is) < 0 ? -ERR_INVALID : done(r, json_boolean(!is), out);
    OWN_JSON json_t *v = NULL;
    if (expr_value(r, n->list[0], false, &v) < 0)
        return -ERR_INVALID;
    if (json_is_integer(v) && json_integer_value(v) != INT64_MIN)
        return done(r, json_integer(-json_integer_value(v)), out);
    if (!json_is_number(v))
        return err_set(r->err, ERR_INVALID, "%s has no negative", kind_of(v));
    return done(r, json_real(-json_number_value(v)), out);
}

static int coalesce(struct expr_run *r, const struct expr_node *n, bool optional, json_t **out)
{
    for (int i = 0; i < n->n; i++) {
        json_t *v = NULL;
        if (expr_value(r, n->list[i], optional || i + 1 < n->n, &v) < 0)
            return -ERR_INVALID;
        if (!json_is_null(v) || i + 1 == n->n) {
            *out = v;
            return 0;
        }
        json_decref(v);
    }
    return done(r, json_null(), out);
}

int expr_closure(struct expr_run *r, const struct expr_node *body, const json_t *item,
                 json_t **out)
{
    const json_t *outer = r->item;
    r->item = item;
    int rc = expr_value(r, body->op == EXPR_CLOSURE ? body->list[0] : body, false, out);
    r->item = outer;
    return rc;
}

int expr_value(struct expr_run *r, const struct expr_node *n, bool optional, json_t **out)
{
    bool is;
    if (expr_step(r, 0) < 0)
        return -ERR_INVALID;
    switch (n->op) {
    case EXPR_VALUE:
        *out = json_incref(n->value);
        return 0;
    case EXPR_ITEM:
        if (!r->item)
            return err_set(r->err, ERR_INVALID, "\"#\" stands outside of a closure");
        *out = json_incref((json_t *)r->item);
        return 0;
    case EXPR_NAME:
        return name_value(r, n, optional, out);
    case EXPR_MEMBER: {
        if (begins_with_name(n))
            return name_value(r, n, optional, out);
        OWN_JSON json_t *of = NULL;
        if (expr_value(r, n->list[0], optional, &of) < 0)
            return -ERR_INVALID;
        return member(r, of, n->text, optional, out);
    }
    case EXPR_INDEX:
        return index_value(r, n, optional, out);
    case EXPR_SLICE:
        return slice_value(r, n, out);
    case EXPR_LIST:
    case EXPR_MAP:
        return gathered(r, n, out);
    case EXPR_CALL:
        return expr_call(r, n->text, n->list, n->n, NULL, out);
    case EXPR_METHOD:
        return method(r, n, out);
    case EXPR_CLOSURE:
        return err_set(r->err, ERR_INVALID, "a closure stands where a value should");
    case EXPR_NOT:
    case EXPR_MINUS:
        return prefix(r, n, out);
    case EXPR_AND:
    case EXPR_OR:
        return logic(r, n, out);
    case EXPR_COALESCE:
        return coalesce(r, n, optional, out);
    case EXPR_COND:
        if (truth(r, n->list[0], &is) < 0)
            return -ERR_INVALID;
        return expr_value(r, n->list[is ? 1 : 2], optional, out);
    default:
        return binary(r, n, out);
    }
}

int flow_expr_eval(const struct flow_expr *e, const struct flow_scope *s, json_t **out,
                   struct err *err)
{
    json_t *v = NULL;
    struct expr_run r = { .scope = s, .loose = e->words == EXPR_WORDS_TEXTS, .err = err };
    if (expr_value(&r, e->root, false, &v) < 0)
        return -(int)err->code;
    *out = v;
    return 0;
}

/* ------------------------------------------------------------ names, texts */

static int names_below(const struct expr_node *n, int (*each)(void *, const char *), void *arg)
{
    OWN_BUF path = BUF_INIT;
    if (path_of(n, &path)) {
        struct err none;
        return buf_ok(&path, &none) < 0 ? -ERR_NOMEM : each(arg, path.data);
    }
    int i = 0;
    OWN_BUF call = BUF_INIT;
    if (n->op == EXPR_METHOD && path_of(n->list[0], &call)) {
        buf_printf(&call, ".%s", n->text);
        i = call.data && expr_known_call(call.data);    /* sprig.trim is no name */
    }
    for (; i < n->n; i++) {
        int rc = names_below(n->list[i], each, arg);
        if (rc)
            return rc;
    }
    return 0;
}

int flow_expr_names(const struct flow_expr *e, int (*each)(void *arg, const char *path), void *arg)
{
    return names_below(e->root, each, arg);
}

static char *number_text(double d)
{
    char text[40];
    if (d == floor(d) && fabs(d) < 1e15) {
        snprintf(text, sizeof text, "%.0f", d);
        return strdup(text);
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, d);
        if (strtod(text, NULL) == d)
            break;
    }
    return strdup(text);
}

char *flow_expr_text(const json_t *value)
{
    if (json_is_string(value))
        return strdup(json_string_value(value));
    if (json_is_real(value))
        return number_text(json_real_value(value));
    return json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_SORT_KEYS);
}
