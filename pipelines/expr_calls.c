/* pipelines/expr_calls.c - the functions of expressions, as a table */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pipelines/expr_int.h"

struct call {
    const char *name;
    int min, max;
    int (*run)(struct expr_run *r, const struct call *c, json_t **v, int n, json_t **out);
    int how;                    /* of a function that stands for several */
};

static int give(struct expr_run *r, json_t *value, json_t **out)
{
    if (!value)
        return err_set(r->err, ERR_INVALID, "the expression makes a value that cannot be written");
    *out = value;
    return 0;
}

static const char *text_of(const json_t *v)
{
    const char *text = json_string_value(v);
    return text ? text : "";
}

/* ------------------------------------------------------------ numbers */

enum { TO_INT, TO_FLOAT, TO_INT_OR_0, TO_FLOAT_OR_0 };

static int to_number(struct expr_run *r, const struct call *c, json_t **v, int n, json_t **out)
{
    (void)n;
    bool whole = c->how == TO_INT || c->how == TO_INT_OR_0;
    OWN_JSON json_t *number = json_is_number(v[0])    ? json_incref(v[0])
                              : json_is_boolean(v[0]) ? json_integer(json_is_true(v[0]))
                                                      : NULL;
    const char *text = json_string_value(v[0]);
    if (text) {
        while (isspace((unsigned char)*text))
            text++;
        OWN_MEM char *trimmed = strdup(text);
        for (size_t k = trimmed ? strlen(trimmed) : 0; k && isspace((unsigned char)trimmed[k - 1]);)
            trimmed[--k] = '\0';
        if (trimmed && trimmed[0])
            expr_number(trimmed, &number);
    }
    if (!number && c->how >= TO_INT_OR_0)
        number = json_integer(0);
    if (!number)
        return err_set(r->err, ERR_INVALID, "%s: \"%.60s\" is no number", c->name, text_of(v[0]));
    if (!whole)
        return give(r, json_real(json_number_value(number)), out);
    double d = trunc(json_number_value(number));
    if (json_is_integer(number))
        return give(r, TAKE(number), out);
    if (!(fabs(d) < 9.2e18))
        return err_set(r->err, ERR_INVALID, "%s: %g is too large", c->name, d);
    return give(r, json_integer((json_int_t)d), out);
}

enum { ROUND_ABS, ROUND_CEIL, ROUND_FLOOR, ROUND_NEAR };

static int to_rounded(struct expr_run *r, const struct call *c, json_t **v, int n, json_t **out)
{
    (void)n;
    if (!json_is_number(v[0]))
        return err_set(r->err, ERR_INVALID, "%s takes a number", c->name);
    double d = json_number_value(v[0]);
    d = c->how == ROUND_ABS    ? fabs(d)
        : c->how == ROUND_CEIL ? ceil(d)
        : c->how == ROUND_FLOOR ? floor(d)
                                : round(d);
    if (json_is_integer(v[0]) && fabs(d) < 9e15)
        return give(r, json_integer((json_int_t)d), out);
    return give(r, json_real(d), out);
}

/* min, max, sum, of arguments or of one list */
static int of_all(struct expr_run *r, const struct call *c, json_t **v, int n, json_t **out)
{
    bool list = n == 1 && json_is_array(v[0]);
    size_t count = list ? json_array_size(v[0]) : (size_t)n;
    double sum = 0;
    bool whole = true;
    const json_t *best = NULL;
    for (size_t i = 0; i < count; i++) {
        const json_t *each = list ? json_array_get(v[0], i) : v[i];
        int order = 0;
        if (!json_is_number(each))
            return err_set(r->err, ERR_INVALID, "%s takes numbers", c->name);
        if (best && expr_order(r, each, best, &order) < 0)
            return -ERR_INVALID;
        if (!best || order * c->how > 0)
            best = each;
        whole = whole && json_is_integer(each);
        sum += json_number_value(each);
    }
    if (c->how)
        return best ? give(r, json_incref((json_t *)best), out)
                    : err_set(r->err, ERR_INVALID, "%s of nothing", c->name);
    return give(r, whole && fabs(sum) < 9e15 ? json_integer((json_int_t)sum) : json_real(sum), out);
}

enum { MATH_ADD, MATH_SUB, MATH_MUL, MATH_DIV, MATH_MOD };

static json_int_t whole_of(const json_t *v)
{
    OWN_JSON json_t *number = NULL;
    if (json_is_string(v))
        expr_number(json_string_value(v), &number);
    double d = json_number_value(number ? number : v);
    return fabs(d) < 9e18 ? (json_int_t)d : 0;
}

/* sprig's sums are of whole numbers; texts that are none count as 0. */
static int sprig_math(struct expr_run *r, const struct call *c, json_t **v, int n, json_t **out)
{
    json_int_t sum = whole_of(v[0]);
    for (int i = 1; i < n; i++) {
        json_int_t b = whole_of(v[i]);
        bool over = false;
        if ((c->how == MATH_DIV || c->how == MATH_MOD) && (!b || b == -1)) {
            if (!b)
                return err_set(r->err, ERR_INVALID, "%s: division by zero", c->name);
            over = c->how == MATH_DIV && __builtin_sub_overflow((json_int_t)0, sum, &sum);
            sum = c->how == MATH_MOD ? 0 : sum;
        } else if (c->how == MATH_DIV) {
            sum /= b;
        } else if (c->how == MATH_MOD) {
            sum %= b;
        } else {
            over = c->how == MATH_ADD   ? __builtin_add_overflow(sum, b, &sum)
                   : c->how == MATH_SUB ? __builtin_sub_overflow(sum, b, &sum)
                                        : __builtin_mul_overflow(sum, b, &sum);
        }
        if (over)
            return err_set(r->err, ERR_INVALID, "%s: the number is too large", c->name);
    }
    return give(r, json_integer(sum), out);
}

/* ------------------------------------------------------------ texts */

static int to_string(struct expr_run *r, const struct call *c, json_t **v, int n, json_t **out)
{
    (void)c;
    (void)n;
    OWN_MEM char *text = flow_expr_text(v[0]);
    return text ? expr_text_new(r, text, strlen(text), out)
                : err_set(r->err, ERR_NOMEM, "no memory for a text");
}

static int to_json(struct expr_run *r, const struct call *c, json_t **v, int n, json_t **out)
{
    (void)n;
    size_t flags = c->how ? JSON_INDENT(2) : JSON_COMPACT;
    OWN_MEM char *text = json_dumps(v[0], flags | JSON_ENCODE_ANY | JSON_SORT_KEYS);
    return text ? expr_text_new(r, text, strlen(text), out)
                : err_set(r->err, ERR_NOMEM, "no memory for a text");
}

static int from_json(struct expr_run *r, const struct call *c, json_t **v, int n, json_t **out)
{
    (void)n;
    json_error_t why;
    const char *text = text_of(v[0]);
    if (expr_step(r, strlen(text)) < 0)
        return -ERR_INVALID;
    json_t *value = json_loads(text, JSON_DECODE_ANY, &why);
    if (!value)
        return err_set(r->err, ERR_INVALID, "%s: \"%.40s\" is no JSON: %s", c->name, text,
                       why.text);
    return give(r, value, out);
}

static int to_bool(struct expr_run *r, const struct call *c, json_t **v, int n, json_t **out)
{
    bool is;
    (void)c;
    (void)n;
    return flow_expr_truth(v[0], &is, r->err) < 0 ? -ERR_INVALID : give(r, json_boolean(is), out);
}

static int length(struct expr_run *r, const struct call *c, json_t **v, int n, json_t **out)
{
    (void)n;
    if (json_is_array(v[0]))
        return give(r, json_integer((json_int_t)json_array_size(v[0])), out);
    if (json_is_object(v[0]))
        return give(r, json_integer((json_int_t)json_object_size(v[0])), out);
    if (!json_is_string(v[0]))
        return err_set(r->err, ERR_INVALID, "%s takes a text, a list or a map", c->name);
    json_int_t letters = 0;
    for (const char *p = text_of(v[0]); *p; p++)
        letters += (*p & 0xc0) != 0x80;
    return give(r, json_integer(letters), out);
}

enum { CASE_LOWER, CASE_UPPER, CASE_TITLE };

static int to_case(struct expr_run *r, const struct call *c, json_t **v, int n, json_t **out)
{
    (void)n;
    OWN_MEM char *text = strdup(text_of(v[0]));
    for (size_t i = 0; text && text[i]; i++) {
        bool first = !i || isspace((unsigned char)text[i - 1]);
        int letter = (unsigned char)text[i];
        text[i] = (char)(c->how == CASE_LOWER ? tolower(letter)
                         : c->how == CASE_UPPER || first ? toupper(letter) : letter);
    }
    return expr_text_new(r, text ? text : "", text ? strlen(text) : 0, out);
}

enum { TRIM_LEFT = 1, TRIM_RIGHT = 2, TRIM_SPRIG = 4, TRIM_WHOLE = 8 };

/* trim(text, letters?); sprig.trimAll(letters, text), sprig.trimSuffix(end, text) */
static int trimmed(struct expr_run *r, const struct call *c, json_t **v, int n, json_t **out)
{
    bool sprig = c->how & TRIM_SPRIG;
    const char *text = text_of(v[sprig && n > 1 ? 1 : 0]);
    const char *what = n < 2 ? " \t\r\n\v\f" : text_of(v[sprig ? 0 : 1]);
    const char *end = text + strlen(text);
    size_t k = strlen(what);
    if (c->how & TRIM_WHOLE) {
        if (c->how & TRIM_LEFT && !strncmp(text, what, k))
            text += k;
        if (c->how & TRIM_RIGHT && (size_t)(end - text) >= k && !memcmp(end - k, what, k))
            end -= k;
        return expr_text_new(r, text, (size_t)(end - text), out);
    }
    while (c->how & TRIM_LEFT && text < end && strchr(what, *text))
        text++;
    while (c->how & TRIM_RIGHT && end > text && strchr(what, end[-1]))
        end--;
    return expr_text_new(r, text, (size_t)(end - text), out);
}

/* split(text, by); sprig.splitList(by, text) */
static int split(struct expr_run *r, const struct call *c, json_t **v, int n, json_t **out)
{
    const char *text = text_of(v[c->how ? 1 : 0]), *by = text_of(v[c->how ? 0 : 1]);
    size_t k = strlen(by);
    OWN_JSON json_t *list = json_array();
    (void)n;
    for (const char *p = text;;) {
        const char *at = k ? strstr(p, by) : *p && p[1] ? p + 1 : NULL;
        json_t *part = NULL;
        if (expr_text_new(r, p, at ? (size_t)(at - p) : strlen(p), &part) < 0)
            return -ERR_INVALID;
        json_array_append_new(list, part);
        if (!at)
            break;
        p = at + k;
    }
    return give(r, TAKE(list), out);
}

/* join(list, by?); sprig.join(by, list) */
static int join(struct expr_run *r, const struct call *c, json_t **v, int n, json_t **out)
{
    const json_t *list = v[c->how ? 1 : 0];
    const char *by = n < 2 ? "" : text_of(v[c->how ? 0 : 1]);
    OWN_BUF all = BUF_INIT;
    if (!json_is_array(list))
        return err_set(r->err, ERR_INVALID, "%s takes a list", c->name);
    for (size_t i = 0; i < json_array_size(list); i++) {
        OWN_MEM char *text = flow_expr_text(json_array_get(list, i));
        buf_printf(&all, "%s%s", i ? by : "", text ? text : "");
        if (all.n > FLOW_EXPR_MADE_MAX)
            break;
    }
    return expr_text_new(r, all.data ? all.data : "", all.n, out);
}

/* replace(text, old, new); sprig.replace(old, new, text) */
static int replace(struct expr_run *r, const struct call *c, json_t **v, int n, json_t **out)
{
    const char *text = text_of(v[c->how ? 2 : 0]);
    const char *old = text_of(v[c->how ? 0 : 1]), *with = text_of(v[c->how ? 1 : 2]);
    OWN_BUF all = BUF_INIT;
    size_t k = strlen(old);
    (void)n;
    for (const char *at; k && (at = strstr(text, old)) && all.n <= FLOW_EXPR_MADE_MAX;) {
        buf_append(&all, text, (size_t)(at - text));
        buf_text(&all, with);
        text = at + k;
    }
    buf_text(&all, text);
    return expr_text_new(r, all.data ? all.data : "", all.n, out);
}

static int repeat(struct expr_run *r, const struct call *c, json_t **v, int n, json_t **out)
{
    const char *text = text_of(v[c->how ? 1 : 0]);
    double times = (double)whole_of(v[c->how ? 0 : 1]);
    OWN_BUF all = BUF_INIT;
    (void)n;
    if (times * (double)strlen(text) > FLOW_EXPR_MADE_MAX)
        return expr_step(r, FLOW_EXPR_MADE_MAX + 1);
    for (double i = 0; *text && i < times; i++)
        buf_text(&all, text);
    return expr_text_new(r, all.data ? all.data : "", all.n, out);
}

/* sprig.contains(part, text) and the like; how 0: text first */
enum { HAS_PART = 2, HAS_PREFIX = 4, HAS_SUFFIX = 6 };

static int has_text(struct expr_run *r, const struct call *c, json_t **v, int n, json_t **out)
{
    const json_t *where = v[c->how & 1 ? 1 : 0], *what = v[c->how & 1 ? 0 : 1];
    const char *text = text_of(where), *part = text_of(what);
    size_t nt = strlen(text), np = strlen(part);
    int how = c->how & ~1;
    (void)n;
    bool is = how == HAS_PART ? strstr(text, part) != NULL
              : nt < np       ? false
                              : !memcmp(how == HAS_PREFIX ? text : text + nt - np, part, np);
    return give(r, json_boolean(is), out);
}

static int matches(struct expr_run *r, const struct call *c, json_t **v, int n, json_t **out)
{
    bool is;
    (void)n;
    if (expr_matches(r, text_of(v[!c->how ? 0 : 1]), text_of(v[!c->how ? 1 : 0]), &is) < 0)
        return -ERR_INVALID;
    return give(r, json_boolean(is), out);
}

static int index_of(struct expr_run *r, const struct call *c, json_t **v, int n, json_t **out)
{
    const char *text = text_of(v[0]), *at = strstr(text, text_of(v[1]));
    (void)c;
    (void)n;
    return give(r, json_integer(at ? at - text : -1), out);
}

/* sprig.substr(start, end, text) */
static int substr(struct expr_run *r, const struct call *c, json_t **v, int n, json_t **out)
{
    const char *text = text_of(v[2]);
    json_int_t size = (json_int_t)strlen(text), a = whole_of(v[0]), b = whole_of(v[1]);
    (void)c;
    (void)n;
    a = a < 0 ? 0 : a > size ? size : a;
    b = b < 0 || b > size ? size : b < a ? a : b;
    return expr_text_new(r, text + a, (size_t)(b - a), out);
}

/* sprig.trunc(n, text): the first n letters, or the last -n */
static int truncated(struct expr_run *r, const struct call *c, json_t **v, int n, json_t **out)
{
    const char *text = text_of(v[1]);
    json_int_t size = (json_int_t)strlen(text), k = whole_of(v[0]);
    (void)c;
    (void)n;
    if (k < 0)
        return expr_text_new(r, -k < size ? text + size + k : text, (size_t)(-k < size ? -k : size),
                             out);
    return expr_text_new(r, text, (size_t)(k < size ? k : size), out);
}

static const char base64_letters[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static int to_base64(struct expr_run *r, const struct call *c, json_t **v, int n, json_t **out)
{
    const unsigned char *p = (const unsigned char *)text_of(v[0]);
    size_t left = strlen((const char *)p);
    OWN_BUF b = BUF_INIT;
    (void)c;
    (void)n;
    for (; left; p += 3) {
        size_t k = left > 3 ? 3 : left;
        unsigned w = (unsigned)p[0] << 16 | (k > 1 ? p[1] : 0u) << 8 | (k > 2 ? p[2] : 0u);
        char four[4] = { base64_letters[w >> 18], base64_letters[w >> 12 & 63],
                         k > 1 ? base64_letters[w >> 6 & 63] : '=',
                         k > 2 ? base64_letters[w & 63] : '=' };
        buf_append(&b, four, 4);
        left -= k;
    }
    return expr_text_new(r, b.data ? b.data : "", b.n, out);
}

static int from_base64(struct expr_run *r, const struct call *c, json_t **v, int n, json_t **out)
{
    OWN_BUF b = BUF_INIT;
    unsigned w = 0, bits = 0;
    (void)n;
    for (const char *p = text_of(v[0]); *p && *p != '='; p++) {
        const char *at = strchr(base64_letters, *p);
        if (!at)
            return err_set(r->err, ERR_INVALID, "%s: the text is not base64", c->name);
        w = w << 6 | (unsigned)(at - base64_letters);
        bits += 6;
        if (bits >= 8) {
            char byte = (char)(w >> (bits -= 8));
            buf_append(&b, &byte, 1);
        }
    }
    return expr_text_new(r, b.data ? b.data : "", b.n, out);
}

/* sprig.date(layout, time): Go's layout, of a time in RFC 3339 */
static int date(struct expr_run *r, const struct call *c, json_t **v, int n, json_t **out)
{
    static const struct { const char *go, *c; } parts[] = {
        { "2006", "%Y" }, { "January", "%B" }, { "Jan", "%b" }, { "Monday", "%A" }, { "Mon", "%a" },
        { "01", "%m" }, { "02", "%d" }, { "15", "%H" }, { "03", "%I" }, { "04", "%M" },
        { "05", "%S" }, { "06", "%y" }, { "PM", "%p" }, { "MST", "UTC" }, { "Z07:00", "Z" },
    };
    struct tm tm = { 0 };
    const char *rest = strptime(text_of(v[1]), "%Y-%m-%dT%H:%M:%S", &tm);
    OWN_BUF format = BUF_INIT;
    char text[256];
    (void)n;
    if (!rest)
        return err_set(r->err, ERR_INVALID, "%s takes a time such as 2006-01-02T15:04:05Z",
                       c->name);
    for (const char *p = text_of(v[0]); *p;) {
        size_t i = 0, count = sizeof parts / sizeof parts[0];
        while (i < count && strncmp(p, parts[i].go, strlen(parts[i].go)))
            i++;
        if (i < count) {
            buf_text(&format, parts[i].c);
            p += strlen(parts[i].go);
        } else {
            buf_append(&format, *p == '%' ? "%%" : p, 1 + (*p == '%'));
            p++;
        }
    }
    size_t k = format.n && format.n < 200 ? strftime(text, sizeof text, format.data, &tm) : 0;
    return expr_text_new(r, text, k, out);
}

/* ------------------------------------------------------------ lists, maps */

enum { PART_FIRST, PART_LAST, PART_REVERSE, PART_UNIQUE, PART_SORT };

static int part_of(struct expr_run *r, const struct call *c, json_t **v, int n, json_t **out)
{
    size_t size = json_array_size(v[0]);
    (void)n;
    if (!json_is_array(v[0]))
        return err_set(r->err, ERR_INVALID, "%s takes a list", c->name);
    if (c->how <= PART_LAST)
        return give(r, size ? json_incref(json_array_get(v[0], c->how == PART_LAST ? size - 1 : 0))
                            : json_null(), out);
    OWN_JSON json_t *list = json_array();
    for (size_t i = 0; i < size; i++) {
        json_t *each = json_array_get(v[0], c->how == PART_REVERSE ? size - 1 - i : i);
        size_t at = json_array_size(list), k = 0;
        bool drop = false;
        for (; c->how != PART_REVERSE && k < json_array_size(list) && !drop; k++) {
            int order = 0;
            if (expr_step(r, 0) < 0)
                return -ERR_INVALID;
            if (c->how == PART_UNIQUE)
                drop = expr_equal(false, each, json_array_get(list, k));
            else if (expr_order(r, each, json_array_get(list, k), &order) < 0)
                return -ERR_INVALID;
            else if (order < 0)
                break;
        }
        if (c->how == PART_SORT)
            at = k;
        if (expr_step(r, 16) < 0)
            return -ERR_INVALID;
        if (!drop)
            json_array_insert(list, at, each);
    }
    return give(r, TAKE(list), out);
}

static int keys(struct expr_run *r, const struct call *c, json_t **v, int n, json_t **out)
{
    OWN_JSON json_t *list = json_array();
    const char *key;
    json_t *value;
    (void)n;
    if (!json_is_object(v[0]))
        return err_set(r->err, ERR_INVALID, "%s takes a map", c->name);
    json_object_foreach (v[0], key, value) {
        if (expr_step(r, 16 + strlen(key)) < 0)
            return -ERR_INVALID;
        if (c->how)
            json_array_append(list, value);
        else
            json_array_append_new(list, json_string(key));
    }
    return give(r, TAKE(list), out);
}

static int list_of(struct expr_run *r, const struct call *c, json_t **v, int n, json_t **out)
{
    json_t *list = json_array();
    (void)c;
    for (int i = 0; i < n; i++)
        json_array_append(list, v[i]);
    return give(r, list, out);
}

static int json_path(struct expr_run *r, const struct call *c, json_t **v, int n, json_t **out)
{
    OWN_JSON json_t *doc = NULL;
    if (json_is_string(v[0]) && from_json(r, c, v, n, &doc) < 0)
        return -ERR_INVALID;
    return expr_json_path(r, doc ? doc : v[0], text_of(v[1]), out);
}

/* sprig.default(other, value), sprig.coalesce(a, b), sprig.empty(value), sprig.ternary(a, b, is) */
enum { CHOOSE_DEFAULT, CHOOSE_FIRST, CHOOSE_EMPTY, CHOOSE_TERNARY, CHOOSE_TYPE };

static bool is_empty(const json_t *v)
{
    return json_is_null(v) || json_is_false(v) || (json_is_string(v) && !json_string_length(v)) ||
           (json_is_number(v) && json_number_value(v) == 0) ||
           (json_is_array(v) && !json_array_size(v)) || (json_is_object(v) && !json_object_size(v));
}

static int choose(struct expr_run *r, const struct call *c, json_t **v, int n, json_t **out)
{
    static const char *const types[] = {
        [JSON_OBJECT] = "map", [JSON_ARRAY] = "array", [JSON_STRING] = "string",
        [JSON_INTEGER] = "int", [JSON_REAL] = "float", [JSON_TRUE] = "bool",
        [JSON_FALSE] = "bool", [JSON_NULL] = "nil",
    };
    int i = 0;
    switch (c->how) {
    case CHOOSE_EMPTY:
        return give(r, json_boolean(is_empty(v[0])), out);
    case CHOOSE_TYPE:
        return give(r, json_string(types[json_typeof(v[0])]), out);
    case CHOOSE_DEFAULT:
        return give(r, json_incref(is_empty(v[n - 1]) ? v[0] : v[n - 1]), out);
    case CHOOSE_TERNARY:
        return give(r, json_incref(json_is_true(v[2]) ? v[0] : v[1]), out);
    default:
        while (i < n - 1 && is_empty(v[i]))
            i++;
        return give(r, json_incref(v[i]), out);
    }
}

/* ------------------------------------------------------------ the table */

static const struct call calls[] = {
    { "asInt", 1, 1, to_number, TO_INT },
    { "asFloat", 1, 1, to_number, TO_FLOAT },
    { "int", 1, 1, to_number, TO_INT },
    { "uint", 1, 1, to_number, TO_INT },
    { "float", 1, 1, to_number, TO_FLOAT },
    { "double", 1, 1, to_number, TO_FLOAT },
    { "string", 1, 1, to_string, 0 },
    { "bool", 1, 1, to_bool, 0 },
    { "type", 1, 1, choose, CHOOSE_TYPE },
    { "abs", 1, 1, to_rounded, ROUND_ABS },
    { "ceil", 1, 1, to_rounded, ROUND_CEIL },
    { "floor", 1, 1, to_rounded, ROUND_FLOOR },
    { "round", 1, 1, to_rounded, ROUND_NEAR },
    { "min", 1, 100, of_all, -1 },
    { "max", 1, 100, of_all, 1 },
    { "sum", 1, 1, of_all, 0 },
    { "len", 1, 1, length, 0 },
    { "size", 1, 1, length, 0 },
    { "toJson", 1, 1, to_json, 0 },
    { "toJSON", 1, 1, to_json, 1 },
    { "fromJson", 1, 1, from_json, 0 },
    { "fromJSON", 1, 1, from_json, 0 },
    { "jsonpath", 2, 2, json_path, 0 },
    { "lower", 1, 1, to_case, CASE_LOWER },
    { "upper", 1, 1, to_case, CASE_UPPER },
    { "trim", 1, 2, trimmed, TRIM_LEFT | TRIM_RIGHT },
    { "trimPrefix", 2, 2, trimmed, TRIM_LEFT | TRIM_WHOLE },
    { "trimSuffix", 2, 2, trimmed, TRIM_RIGHT | TRIM_WHOLE },
    { "split", 2, 2, split, 0 },
    { "join", 1, 2, join, 0 },
    { "replace", 3, 3, replace, 0 },
    { "repeat", 2, 2, repeat, 0 },
    { "indexOf", 2, 2, index_of, 0 },
    { "hasPrefix", 2, 2, has_text, HAS_PREFIX },
    { "hasSuffix", 2, 2, has_text, HAS_SUFFIX },
    { "startsWith", 2, 2, has_text, HAS_PREFIX },
    { "endsWith", 2, 2, has_text, HAS_SUFFIX },
    { "contains", 2, 2, has_text, HAS_PART },
    { "matches", 2, 2, matches, 0 },
    { "toBase64", 1, 1, to_base64, 0 },
    { "fromBase64", 1, 1, from_base64, 0 },
    { "first", 1, 1, part_of, PART_FIRST },
    { "last", 1, 1, part_of, PART_LAST },
    { "reverse", 1, 1, part_of, PART_REVERSE },
    { "uniq", 1, 1, part_of, PART_UNIQUE },
    { "sort", 1, 1, part_of, PART_SORT },
    { "keys", 1, 1, keys, 0 },
    { "values", 1, 1, keys, 1 },
    { "list", 0, 100, list_of, 0 },
    { "sprig.int", 1, 1, to_number, TO_INT_OR_0 },
    { "sprig.int64", 1, 1, to_number, TO_INT_OR_0 },
    { "sprig.atoi", 1, 1, to_number, TO_INT_OR_0 },
    { "sprig.float64", 1, 1, to_number, TO_FLOAT_OR_0 },
    { "sprig.toString", 1, 1, to_string, 0 },
    { "sprig.add", 1, 100, sprig_math, MATH_ADD },
    { "sprig.sub", 2, 2, sprig_math, MATH_SUB },
    { "sprig.mul", 1, 100, sprig_math, MATH_MUL },
    { "sprig.div", 2, 2, sprig_math, MATH_DIV },
    { "sprig.mod", 2, 2, sprig_math, MATH_MOD },
    { "sprig.min", 1, 100, of_all, -1 },
    { "sprig.max", 1, 100, of_all, 1 },
    { "sprig.abs", 1, 1, to_rounded, ROUND_ABS },
    { "sprig.ceil", 1, 1, to_rounded, ROUND_CEIL },
    { "sprig.floor", 1, 1, to_rounded, ROUND_FLOOR },
    { "sprig.round", 1, 1, to_rounded, ROUND_NEAR },
    { "sprig.len", 1, 1, length, 0 },
    { "sprig.toJson", 1, 1, to_json, 0 },
    { "sprig.fromJson", 1, 1, from_json, 0 },
    { "sprig.lower", 1, 1, to_case, CASE_LOWER },
    { "sprig.upper", 1, 1, to_case, CASE_UPPER },
    { "sprig.title", 1, 1, to_case, CASE_TITLE },
    { "sprig.trim", 1, 1, trimmed, TRIM_LEFT | TRIM_RIGHT },
    { "sprig.trimAll", 2, 2, trimmed, TRIM_LEFT | TRIM_RIGHT | TRIM_SPRIG },
    { "sprig.trimPrefix", 2, 2, trimmed, TRIM_LEFT | TRIM_WHOLE | TRIM_SPRIG },
    { "sprig.trimSuffix", 2, 2, trimmed, TRIM_RIGHT | TRIM_WHOLE | TRIM_SPRIG },
    { "sprig.splitList", 2, 2, split, 1 },
    { "sprig.join", 2, 2, join, 1 },
    { "sprig.replace", 3, 3, replace, 1 },
    { "sprig.repeat", 2, 2, repeat, 1 },
    { "sprig.substr", 3, 3, substr, 0 },
    { "sprig.trunc", 2, 2, truncated, 0 },
    { "sprig.contains", 2, 2, has_text, HAS_PART | 1 },
    { "sprig.hasPrefix", 2, 2, has_text, HAS_PREFIX | 1 },
    { "sprig.hasSuffix", 2, 2, has_text, HAS_SUFFIX | 1 },
    { "sprig.regexMatch", 2, 2, matches, 1 },
    { "sprig.b64enc", 1, 1, to_base64, 0 },
    { "sprig.b64dec", 1, 1, from_base64, 0 },
    { "sprig.date", 2, 2, date, 0 },
    { "sprig.first", 1, 1, part_of, PART_FIRST },
    { "sprig.last", 1, 1, part_of, PART_LAST },
    { "sprig.reverse", 1, 1, part_of, PART_REVERSE },
    { "sprig.uniq", 1, 1, part_of, PART_UNIQUE },
    { "sprig.keys", 1, 1, keys, 0 },
    { "sprig.values", 1, 1, keys, 1 },
    { "sprig.list", 0, 100, list_of, 0 },
    { "sprig.default", 2, 2, choose, CHOOSE_DEFAULT },
    { "sprig.coalesce", 1, 100, choose, CHOOSE_FIRST },
    { "sprig.empty", 1, 1, choose, CHOOSE_EMPTY },
    { "sprig.ternary", 3, 3, choose, CHOOSE_TERNARY },
};
enum { N_CALLS = sizeof calls / sizeof calls[0], ARGS_MAX = 100 };

/* ------------------------------------------------------------ closures */

enum { EACH_FILTER, EACH_MAP, EACH_ALL, EACH_ANY, EACH_ONE, EACH_NONE, EACH_COUNT, EACH_FIND };

static const char *const each_words[] = { "filter", "map", "all", "any", "one", "none", "count",
                                          "find" };
enum { N_EACH = sizeof each_words / sizeof each_words[0] };

static int each_index(const char *name)
{
    for (int i = 0; i < N_EACH; i++)
        if (!strcmp(name, each_words[i]))
            return i;
    return -1;
}

static int over_each(struct expr_run *r, int what, const json_t *list,
                     const struct expr_node *body, json_t **out)
{
    OWN_JSON json_t *made = json_array();
    json_int_t held = 0;
    size_t i, size = json_array_size(list);
    if (!json_is_array(list))
        return err_set(r->err, ERR_INVALID, "%s takes a list", each_words[what]);
    for (i = 0; i < size; i++) {
        const json_t *item = json_array_get(list, i);
        OWN_JSON json_t *v = NULL;
        bool is = false;
        if (expr_step(r, 16) < 0 || expr_closure(r, body, item, &v) < 0)
            return -ERR_INVALID;
        if (what == EACH_MAP) {
            json_array_append(made, v);
            continue;
        }
        if (flow_expr_truth(v, &is, r->err) < 0)
            return -ERR_INVALID;
        held += is;
        if (is && what == EACH_FILTER)
            json_array_append(made, (json_t *)item);
        if (is && what == EACH_FIND)
            return give(r, json_incref((json_t *)item), out);
    }
    switch (what) {
    case EACH_FILTER:
    case EACH_MAP:
        return give(r, TAKE(made), out);
    case EACH_COUNT:
        return give(r, json_integer(held), out);
    case EACH_FIND:
        return give(r, json_null(), out);
    default:
        return give(r, json_boolean(what == EACH_ALL   ? held == (json_int_t)size
                                    : what == EACH_ANY ? held > 0
                                    : what == EACH_ONE ? held == 1
                                                       : held == 0), out);
    }
}

/* ------------------------------------------------------------ calling */

static const struct call *call_find(const char *name)
{
    for (int i = 0; i < N_CALLS; i++)
        if (!strcmp(calls[i].name, name))
            return &calls[i];
    return NULL;
}

bool expr_known_call(const char *name)
{
    return call_find(name) || each_index(name) >= 0;
}

int expr_call(struct expr_run *r, const char *name, struct expr_node *const *args, int n,
              json_t *self, json_t **out)
{
    json_t *v[ARGS_MAX];
    int count = 0, rc = 0, each = each_index(name);
    const struct call *c = call_find(name);
    if (!c && each < 0)
        return err_set(r->err, ERR_INVALID, "there is no function \"%s\"", name);
    int given = n + (self != NULL), min = c ? c->min : 2, max = c ? c->max : 2;
    if (given < min || given > max)
        return err_set(r->err, ERR_INVALID, "%s takes %d argument%s, not %d", name,
                       given < min ? min : max, (given < min ? min : max) == 1 ? "" : "s", given);
    if (self)
        v[count++] = json_incref(self);
    for (int i = 0; i < n - (each >= 0) && rc == 0; i++)
        if ((rc = expr_value(r, args[i], c && c->run == choose, &v[count])) == 0)
            count++;
    if (rc == 0)
        rc = c ? c->run(r, c, v, count, out) : over_each(r, each, v[0], args[n - 1], out);
    for (int i = 0; i < count; i++)
        json_decref(v[i]);
    return rc;
}
