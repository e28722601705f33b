/* spec/json.h - a YAML tree as JSON, with the types that its plain scalars look like
 *
 * For documents of others, whose readers guess: Kubernetes' and PyYAML's. null, true, False, yes,
 * off, 12, 0x1f, 010 (eight), 1_000, 1.5 and 1e3 are what YAML 1.1 takes them for; dates and all
 * else are texts. A quoted scalar is a text.
 */
#ifndef MUSTER_SPEC_JSON_H
#define MUSTER_SPEC_JSON_H

#include <jansson.h>

#include "spec/yaml.h"

json_t *value_json(const struct value *value);      /* a new reference; NULL: no memory */

/* 1: it is plain and one of the words for a bool. */
int value_is_bool(const struct value *value, int *out);

#endif
