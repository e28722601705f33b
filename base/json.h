/* base/json.h - a field of a JSON object, whether it is there or not
 *
 * For documents that muster wrote itself or has checked: a field that is absent or of another kind
 * reads as nothing. Where the difference matters, ask jansson.
 */
#ifndef MUSTER_BASE_JSON_H
#define MUSTER_BASE_JSON_H

#include <jansson.h>
#include <math.h>

/* Borrowed from `doc`; "" where there is no such text. */
static inline const char *text_of(const json_t *doc, const char *key)
{
    const char *text = json_string_value(json_object_get(doc, key));
    return text ? text : "";
}

/* 0 where there is no such number; a number with a fraction is none. */
static inline long whole_of(const json_t *doc, const char *key)
{
    return (long)json_integer_value(json_object_get(doc, key));
}

/* 0 where there is no such number. */
static inline double number_of(const json_t *doc, const char *key)
{
    return json_number_value(json_object_get(doc, key));
}

/* JSON has no word for infinity or for what is not a number: null. */
static inline json_t *json_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

#endif
