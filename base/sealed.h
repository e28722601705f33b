/* base/sealed.h - small JSON files of our own that tell when a byte of them has changed
 *
 * The last member of the object is "crc32c", of all bytes before it: any JSON reader reads the file. One
 * without it (made by hand, or by a muster before there was one) is read as it is.
 */
#ifndef MUSTER_BASE_SEALED_H
#define MUSTER_BASE_SEALED_H

#include <jansson.h>

#include "base/err.h"

/* The object as one line of text, sealed. Caller frees; NULL: no memory. */
char *sealed_text(const json_t *doc);

/* ERR_MISSING: there is no file; ERR_IO: it cannot be read, or is not what was written. The caller's
 * to decref; without the member. */
int sealed_load(const char *path, json_t **out, struct err *err);

#endif
