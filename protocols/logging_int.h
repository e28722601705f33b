/* protocols/logging_int.h - entries that clients wrote themselves */
#ifndef MUSTER_PROTOCOLS_LOGGING_INT_H
#define MUSTER_PROTOCOLS_LOGGING_INT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "protocols/filter.h"
#include "server/http.h"

struct logging_query {
    const char *project;
    const struct filter *filter;
    int64_t from, to; /* of timestamp, in nanoseconds: [from, to) */
    bool descending;
    int size;
};

int logging_write(struct request *q, struct err *err);

/* Adds what matches to `out`; `next` is the next page's token, empty at the end. */
int logging_read_written(struct server *s, const struct logging_query *query, const char *token,
                         json_t *out, struct buf *next, struct err *err);

#endif
