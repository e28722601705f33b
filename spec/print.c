/* spec/print.c - the normal form as YAML that reads back as the same document
 *
 * Two levels of maps are written as blocks, what is deeper on one line: a layer, a feature or a
 * list of files is one line. Texts are plain where no reader of YAML could take them for anything
 * else, in double quotes elsewhere.
 */
#include <locale.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "spec/keys.h"
#include "spec/spec.h"

/* "10 steps", "1..4": begin with a digit and are no number to anyone. */
static int is_count(const char *text)
{
    size_t n = strspn(text, "0123456789");
    const char *rest = text + n;

    if (!n)
        return 0;
    if (strncmp(rest, "..", 2) == 0)
        return rest[2] && !rest[2 + strspn(rest + 2, "0123456789")];
    return *rest == ' ' && rest[1] && !rest[1 + strspn(rest + 1, "abcdefghijklmnopqrstuvwxyz")];
}

static int is_plain(const char *text)
{
    static const char *const taken[] = { "true", "false", "yes", "no", "on", "off", "y", "n",
                                         "null", "~" };
    size_t n = strlen(text);

    if (is_count(text))
        return 1;
    if (!n || !strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_/$~", text[0]))
        return 0;
    if (strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_/$~.+- ") != n)
        return 0;
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++)
        if (strcasecmp(text, taken[i]) == 0)
            return 0;
    return text[n - 1] != ' ' && text[0] != ' ';
}

/* YAML wants these escaped even in quotes: controls, next line, separators, byte order mark. */
static int needs_escape(const unsigned char *s, unsigned *out_code, int *out_n)
{
    *out_n = 1;
    *out_code = s[0];
    if (s[0] < 0x20 || s[0] == 0x7F)
        return 1;
    if (s[0] == 0xC2 && s[1] < 0xA0) {
        *out_n = 2;
        *out_code = s[1];
        return 1;
    }
    if ((s[0] == 0xE2 && s[1] == 0x80 && (s[2] == 0xA8 || s[2] == 0xA9)) ||
        (s[0] == 0xEF && s[1] == 0xBB && s[2] == 0xBF) ||
        (s[0] == 0xEF && s[1] == 0xBF && s[2] >= 0xBE)) {
        *out_n = 3;
        *out_code = (s[0] & 0xFu) << 12 | (s[1] & 0x3Fu) << 6 | (s[2] & 0x3Fu);
        return 1;
    }
    return 0;
}

static void print_text(struct buf *b, const char *text)
{
    unsigned code;
    int n;

    if (is_plain(text)) {
        buf_text(b, text);
        return;
    }
    buf_text(b, "\"");
    for (const char *c = text; *c; c += n) {
        if (needs_escape((const unsigned char *)c, &code, &n))
            buf_printf(b, "\\u%04x", code);
        else
            buf_printf(b, *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
    }
    buf_text(b, "\"");
}

/* The shortest text that reads back as the same number. */
static void print_real(struct buf *b, double x)
{
    char text[40];

    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x)
            break;
    }
    buf_text(b, text);
}

static void print_flow(struct buf *b, const json_t *v)
{
    const char *key, *comma = "";
    const json_t *item;
    size_t i;

    switch (json_typeof(v)) {
    case JSON_OBJECT:
        buf_text(b, "{");
        json_object_foreach((json_t *)v, key, item) {
            buf_text(b, comma);
            print_text(b, key);
            buf_text(b, ": ");
            print_flow(b, item);
            comma = ", ";
        }
        buf_text(b, "}");
        break;
    case JSON_ARRAY:
        buf_text(b, "[");
        json_array_foreach(v, i, item) {
            buf_text(b, comma);
            print_flow(b, item);
            comma = ", ";
        }
        buf_text(b, "]");
        break;
    case JSON_STRING:
        print_text(b, json_string_value(v));
        break;
    case JSON_INTEGER:
        buf_printf(b, "%lld", (long long)json_integer_value(v));
        break;
    case JSON_REAL:
        print_real(b, json_real_value(v));
        break;
    case JSON_NULL:
        buf_text(b, "null");
        break;
    default:
        buf_text(b, json_is_true(v) ? "true" : "false");
    }
}

/* `rows: [0, 404]` is the normal form's; a spec says 0..404. */
static void print_rows(struct buf *b, const json_t *rows)
{
    const json_t *end = json_array_get(rows, 1);

    buf_printf(b, "%lld..", (long long)json_integer_value(json_array_get(rows, 0)));
    if (!json_is_null(end))
        buf_printf(b, "%lld", (long long)json_integer_value(end));
}

static void print_source(struct buf *b, const json_t *source)
{
    const char *key, *comma = "";
    const json_t *item;

    buf_text(b, "{");
    json_object_foreach((json_t *)source, key, item) {
        buf_printf(b, "%s%s: ", comma, key);
        if (strcmp(key, "rows") == 0)
            print_rows(b, item);
        else
            print_flow(b, item);
        comma = ", ";
    }
    buf_text(b, "}");
}

/* Maps that are worth a line for each of their keys. */
static int is_block(const char *key)
{
    return key_is_word("data|features|derived|nodes", key);
}

static void print_block(struct buf *b, const json_t *map, int indent)
{
    const char *key;
    const json_t *item, *layer;
    size_t i;

    json_object_foreach((json_t *)map, key, item) {
        buf_printf(b, "%*s", indent, "");
        print_text(b, key);
        buf_text(b, ":");
        if ((is_block(key) && json_object_size(item)) || json_object_get(item, "nodes")) {
            buf_text(b, "\n");
            print_block(b, item, indent + 2);
            continue;
        }
        if (strcmp(key, "model") == 0 && json_is_array(item)) {
            buf_text(b, "\n");
            json_array_foreach(item, i, layer) {
                buf_printf(b, "%*s- ", indent + 2, "");
                print_flow(b, layer);
                buf_text(b, "\n");
            }
            continue;
        }
        buf_text(b, " ");
        if (indent == 2 && key_is_word("train|test", key))
            print_source(b, item);
        else
            print_flow(b, item);
        buf_text(b, "\n");
    }
}

char *spec_print(const struct job_spec *s)
{
    struct buf b = BUF_INIT;
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);

    if (!c)
        return NULL;
    locale_t before = uselocale(c);     /* a user's locale may write 0,5 */
    print_block(&b, s->doc, 0);
    uselocale(before);
    freelocale(c);
    return buf_take(&b);
}
