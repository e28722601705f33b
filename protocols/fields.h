/* protocols/fields.h - part of an answer: Google's `fields=` parameter
 *
 *     items(name,size),nextPageToken        items/name        *
 */
#ifndef MUSTER_PROTOCOLS_FIELDS_H
#define MUSTER_PROTOCOLS_FIELDS_H

#include <jansson.h>

#include "base/err.h"

/* What `fields` leaves of `doc`, a new reference. ERR_INVALID with the place. */
int fields_select(json_t *doc, const char *fields, json_t **out, struct err *err);

#endif
