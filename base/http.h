/* base/http.h - the HTTP client: single calls, and files that are read by ranges
 *
 * A URL is http://, https:// or gs://BUCKET/OBJECT. The last goes to $STORAGE_EMULATOR_HOST (a base
 * URL, its path kept) or else to https://storage.googleapis.com, with a bearer token: there
 * $MUSTER_TOKEN (or $GOOGLE_OAUTH_ACCESS_TOKEN), here $GOOGLE_OAUTH_ACCESS_TOKEN alone.
 *
 * A file is read in blocks of HTTP_BLOCK, the next one fetched ahead by a thread while it is read in
 * order. A connection that breaks is taken up at the byte where it broke, a few times, with growing
 * pauses. From a server without ranges the whole is written to a file without a name in
 * $TMPDIR, and read from there as it comes. Invariants:
 *   1. all bytes of one http_file are of one version of the object: its ETag (or date) and size are
 *      those of the first answer, or the read fails and says so;
 *   2. a token is sent to the host it is meant for and to no other, whatever redirects say;
 *   3. redirects are followed five times at most, to http and https alone, from https to https alone;
 *   4. no message holds a password, a token or what comes after `?` in a URL.
 *
 * Waits: 10 s for a connection; 30 s (or $MUSTER_HTTP_STALL seconds) without a byte count as broken.
 *
 * libcurl is loaded by the first call: linked, it would add 4 ms to the start of every command.
 * Threads: any; a file belongs to one thread at a time.
 */
#ifndef MUSTER_BASE_HTTP_H
#define MUSTER_BASE_HTTP_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/own.h"

enum { HTTP_BLOCK = 4 << 20 };

/* True for http://, https:// and gs://; the rest of it is not looked at. */
int http_is_url(const char *path);

/* Who hears what is no error but worth a line (a server without ranges, once for each URL);
 * NULL, as at the start: nobody. Called from any thread. */
void http_on_note(void (*note)(const char *text));

/* ------------------------------------------------------------------ files */

struct http_file;

/* ERR_MISSING: no such object; ERR_DENIED: may not be read; ERR_AGAIN: the server cannot be reached
 * or says it cannot now; ERR_INVALID: not a URL. */
int http_file_open(const char *url, struct http_file **out, struct err *err);
void http_file_free(struct http_file *f);
OWN_DEFINE(http_file)

/* The same for one who reads here and there: nothing is fetched ahead, and each read asks for what
 * it names and no more. */
int http_file_open_sparse(const char *url, struct http_file **out, struct err *err);

/* The same with an Authorization header ("Basic ..."; NULL: none) for the URL's own host. */
int http_file_open_as(const char *url, const char *authorization, struct http_file **out,
                      struct err *err);

/* Up to n bytes from `at` on; fewer, in *out_n, only at the end of the file. */
int http_file_read(struct http_file *f, uint64_t at, void *buf, size_t n, size_t *out_n,
                   struct err *err);

int64_t http_file_size(const struct http_file *f);      /* -1: the server did not say */

/* Gives memory and connection back; a later read asks again, for the same version. */
void http_file_rest(struct http_file *f);

/* The whole of it, NUL-terminated (the NUL is not counted); more than `max` bytes are refused. Caller
 * frees; out_n may be NULL. */
int http_file_read_all(struct http_file *f, size_t max, char **out, size_t *out_n,
                       struct err *err);

/* The whole; like files_read (base/files.h), which calls it. */
int http_read(const char *url, size_t max, char **out, size_t *out_n, struct err *err);

/* ------------------------------------------------------------------ single calls */

struct http_response {
    long status;        /* 200, 404, ... : also an error status is an answer */
    struct buf body;
    char location[1024], range[64];     /* headers of these names; "": none */
};

/* Adds `text` to a path or query, all but letters, digits and -._~ escaped: a slash of an object's
 * name is no slash of the path. */
void http_escape(struct buf *b, const char *text);

/* One request to an http:// or https:// URL, not repeated when it fails. `headers` ("Name: value",
 * NULL-terminated, may be NULL) go to the URL's own host; `body` may be NULL. An answer longer
 * than `max` bytes is ERR_IO. The caller has http_response_done. */
int http_call(const char *method, const char *url, const char *const *headers, const void *body,
              size_t n_body, size_t max, struct http_response *out, struct err *err);
void http_response_done(struct http_response *r);

/* What a status means for the caller: 0 for 2xx, else a sentence about `name`. */
int http_say_status(const char *name, long status, struct err *err);

/* ------------------------------------------------------------------ for tests */

/* "bytes 0-99/1000" or "bytes *\/1000"; -1 where there is a star, -2 for what is no such text. */
struct http_range { int64_t first, last, total; };
struct http_range http_parse_range(const char *text);

#endif
