/* protocols/multipart.h - multipart bodies, part by part, as they come
 *
 * Taken in the forms that clients send: lines end in CRLF or in LF (the first boundary decides),
 * the boundary stands bare, in double or in single quotes. A part's bytes are handed on as they
 * are; what comes before the first boundary and after the last is dropped.
 */
#ifndef MUSTER_PROTOCOLS_MULTIPART_H
#define MUSTER_PROTOCOLS_MULTIPART_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/err.h"

enum { MULTIPART_BOUNDARY_MAX = 128, MULTIPART_HEAD_MAX = 16 << 10 };

/* Any of them may fail, which ends the parsing with that error. */
struct multipart_sink {
    int (*part)(void *arg, const char *head, struct err *err);  /* "Name: value\n" lines */
    int (*data)(void *arg, const char *bytes, size_t n, struct err *err);
    int (*end)(void *arg, struct err *err);
};

struct multipart {
    char delimiter[MULTIPART_BOUNDARY_MAX + 4]; /* "\n--BOUNDARY" */
    size_t n_delimiter;
    enum { PART_PREAMBLE, PART_BOUNDARY, PART_HEAD, PART_DATA, PART_EPILOGUE } state;
    bool crlf;
    bool mid_line;              /* of the preamble */
    bool data_begun;
    struct buf hold;            /* bytes that are not told yet */
};

/* From the request's Content-Type; ERR_INVALID when it names no boundary. */
int multipart_init(struct multipart *m, const char *content_type, struct err *err);
void multipart_done(struct multipart *m);
int multipart_feed(struct multipart *m, const void *bytes, size_t n,
                   const struct multipart_sink *sink, void *arg, struct err *err);
/* Has the last boundary come? */
bool multipart_ended(const struct multipart *m);

/* The value of a header in `head`, copied to `out`; "" when there is none. */
void multipart_header(const char *head, const char *name, char *out, size_t size);

#endif
