/* spec/normal.h - from the tree of a spec to its normal form
 *
 * Walks the vocabulary (spec/keys.h, where the normal form is written down): refuses what is not
 * in it, expands short forms, fills in defaults. What depends on two keys at once is left to
 * spec/sense.c.
 */
#ifndef MUSTER_SPEC_NORMAL_H
#define MUSTER_SPEC_NORMAL_H

#include <jansson.h>

#include "spec/yaml.h"

/* Caller frees *out. Errors begin with the place: "file:line:column: path: ...". */
int normal_form(const struct value *root, const char *file, json_t **out, struct err *err);

#endif
