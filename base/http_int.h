/* base/http_int.h - inside the HTTP client: libcurl, where a URL leads; for http*.c only */
#ifndef MUSTER_BASE_HTTP_INT_H
#define MUSTER_BASE_HTTP_INT_H

#define CURL_DISABLE_TYPECHECK 1
#include <curl/curl.h>
#undef curl_easy_setopt         /* macros that count arguments; here they are members */
#undef curl_easy_getinfo

#include "base/http.h"

/* What is taken from libcurl; the name of each is there behind "curl_". */
#define HTTP_CURL(X)                                                                               \
    X(global_init) X(easy_init) X(easy_setopt) X(easy_perform) X(easy_getinfo) X(easy_header)      \
    X(easy_reset) X(easy_cleanup) X(easy_strerror) X(slist_append) X(slist_free_all)

struct http_curl {
#define X(name) __typeof__(curl_##name) *name;
    HTTP_CURL(X)
#undef X
};

/* Loads the library once; borrowed for good. */
int http_curl(const struct http_curl **out, struct err *err);

/* Where a URL leads, and what may be said about it. */
struct http_target {
    char *url;
    char *name;                 /* for messages: nothing secret in it */
    char *authorization;        /* a header; NULL: none */
    int is_gs;
};
int http_target_init(struct http_target *t, const char *url, struct err *err);
void http_target_done(struct http_target *t);

/* A handle with the target's limits set: one that was put back, with its live connection, or new. */
int http_handle_take(const struct http_target *t, CURL **out, struct err *err);
void http_handle_put(CURL *c);

/* The value of a header of the last answer, "" when there is none; cut to nothing if over size - 1. */
void http_header(CURL *c, const char *name, char *out, size_t size);

/* A sentence for a transfer that libcurl gave up. */
int http_say_curl(const struct http_target *t, CURLcode code, struct err *err);
int http_may_pass(CURLcode code);               /* worth another try */
int http_status_may_pass(long status);

void http_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
