/* spec/json.c - a YAML tree as JSON, with the types that its plain scalars look like */
#include "spec/json.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "spec/scan.h"

int value_is_bool(const struct value *value, int *out)
{
    static const char *const words[] = {
        "true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON",
        "false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF",
    };
    if (value->kind != VALUE_SCALAR || !value->plain)
        return 0;
    for (int i = 0; i < 18; i++)
        if (strcmp(value->text, words[i]) == 0) {
            *out = i < 9;
            return 1;
        }
    return 0;
}

/* Digits of YAML 1.1: 12, -0x1f, 010, 0o10, 0b11, 1_000. */
static int is_integer(const char *text, json_int_t *out)
{
    char digits[72];
    size_t n = 0;
    const char *s = text + (*text == '-' || *text == '+');
    int base = 10;

    if (s[0] == '0' && s[1]) {
        base = s[1] == 'x' ? 16 : s[1] == 'b' ? 2 : 8;
        s += s[1] == 'x' || s[1] == 'b' || s[1] == 'o' ? 2 : 1;
    }
    for (; *s && n < sizeof digits - 1; s++)
        if (isxdigit((unsigned char)*s))
            digits[n++] = *s;
        else if (*s != '_' || !n)
            return 0;
    digits[n] = '\0';
    char *end;
    errno = 0;
    long long value = strtoll(digits, &end, base);
    if (!n || *s || *end || errno)
        return 0;
    *out = *text == '-' ? -value : value;
    return 1;
}

static json_t *scalar_json(const struct value *value)
{
    int yes;
    json_int_t whole;
    double real;

    if (!value->plain)
        return json_string(value->text);
    if (value_is_null(value) || !strcmp(value->text, "Null") || !strcmp(value->text, "NULL"))
        return json_null();
    if (value_is_bool(value, &yes))
        return json_boolean(yes);
    if (is_integer(value->text, &whole))
        return json_integer(whole);
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    int is_real = c && scan_number(value->text, c, &real);
    if (c)
        freelocale(c);
    return is_real ? json_real(real) : json_string(value->text);
}

json_t *value_json(const struct value *value)
{
    if (value->kind == VALUE_SCALAR)
        return scalar_json(value);
    json_t *out = value->kind == VALUE_LIST ? json_array() : json_object();
    for (const struct value *c = value->child; out && c; c = c->next) {
        json_t *item = value_json(c);
        int rc = value->kind == VALUE_LIST ? json_array_append_new(out, item)
                                           : json_object_set_new(out, c->key, item);
        if (rc < 0) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}
