/* spec/sense.h - what concerns two keys of a spec at once
 *
 * After normal_form every key is right in itself. Here the defaults that depend on other keys are
 * filled in (shards, strides, names of layers, ...) and contradictions are refused.
 */
#ifndef MUSTER_SPEC_SENSE_H
#define MUSTER_SPEC_SENSE_H

#include <jansson.h>

#include "spec/yaml.h"

/* Errors begin with a path, as spec_locate wants it. `root` tells what was given and what is a
 * default; `file` gives a job without a name one. */
int sense_make(json_t *doc, const struct value *root, const char *file, struct err *err);

#endif
