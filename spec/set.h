/* spec/set.h - "--set key.sub=value": what the command line changes in a spec
 *
 * Works on the tree as written, before defaults are filled in, so that a default that depends on
 * the new value follows it. A short form on the way (`linear: 120`, `relu`) is written out first.
 */
#ifndef MUSTER_SPEC_SET_H
#define MUSTER_SPEC_SET_H

#include "spec/yaml.h"

/* Errors begin with "--set ARGUMENT: ". `arg` is borrowed by the tree. */
int set_apply(struct value *root, const char *arg, struct err *err);

#endif
