/* base/http.c - the HTTP client: libcurl, where a URL leads, single calls */
#include <ctype.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <strings.h>

#include "base/http_int.h"

enum { URL_MAX = 8192, REDIRECTS = 5, CONNECT_S = 10, STALL_S = 30, POOL = 8, NOTES = 64 };

/* ------------------------------------------------------------------ the library */

static struct http_curl curl;
static struct err curl_err;
static pthread_once_t curl_once = PTHREAD_ONCE_INIT;

static void load(void)
{
    /* The flavours differ in who does TLS; whichever is here will do. */
    static const char *const names[] = { "libcurl.so.4", "libcurl-gnutls.so.4" };
    void *lib = NULL;

    for (int i = 0; i < 2 && !lib; i++)
        lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        err_set(
            &curl_err, ERR_MISSING,
            "libcurl is not on this machine, and reading a URL needs it (apt-get install libcurl4, "
            "or read a local file)");
        return;
    }
#define X(name) curl.name = (__typeof__(curl.name))dlsym(lib, "curl_" #name);
    HTTP_CURL(X)
#undef X
#define X(name)                                                                                    \
    if (!curl.name)                                                                                \
        err_set(&curl_err, ERR_MISSING,                                                            \
                "the libcurl of this machine lacks curl_" #name " (7.85 or newer is needed)");
    HTTP_CURL(X)
#undef X
    if (!curl_err.code && curl.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        err_set(&curl_err, ERR_NOMEM, "libcurl does not start");
}

int http_curl(const struct http_curl **out, struct err *err)
{
    pthread_once(&curl_once, load);
    if (curl_err.code) {
        *err = curl_err;
        return -(int)err->code;
    }
    *out = &curl;
    return 0;
}

/* ------------------------------------------------------------------ notes */

static void (*_Atomic note_to)(const char *text);

void http_on_note(void (*note)(const char *text))
{
    note_to = note;
}

/* True the first time for each text; when the table is full, never again. */
static int is_new(const char *text)
{
    static uint64_t said[NOTES];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    uint64_t hash = 14695981039346656037u;      /* FNV-1a */
    int i = 0;

    for (const char *p = text; *p; p++)
        hash = (hash ^ (unsigned char)*p) * 1099511628211u;
    pthread_mutex_lock(&lock);
    while (i < NOTES && said[i] && said[i] != hash)
        i++;
    const int fresh = i < NOTES && !said[i];
    if (fresh)
        said[i] = hash;
    pthread_mutex_unlock(&lock);
    return fresh;
}

void http_note(const char *fmt, ...)
{
    void (*to)(const char *) = note_to;
    char text[512];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (to && is_new(text))
        to(text);
}

/* ------------------------------------------------------------------ where a URL leads */

static int begins(const char *text, const char *with)
{
    return strncasecmp(text, with, strlen(with)) == 0;
}

int http_is_url(const char *path)
{
    return begins(path, "http://") || begins(path, "https://") || begins(path, "gs://");
}

void http_target_done(struct http_target *t)
{
    free(t->url);
    free(t->name);
    free(t->authorization);
    *t = (struct http_target){ 0 };
}

static const char *env_of(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

void http_escape(struct buf *b, const char *text)
{
    for (; *text; text++)
        if (isalnum((unsigned char)*text) || strchr("-._~", *text))
            buf_append(b, text, 1);
        else
            buf_printf(b, "%%%02X", (unsigned char)*text);
}

static int target_of_gs(struct http_target *t, const char *gs, struct err *err)
{
    const char *bucket = gs + strlen("gs://"), *slash = strchr(bucket, '/');
    const char *base = env_of("STORAGE_EMULATOR_HOST");
    const char *google = env_of("GOOGLE_OAUTH_ACCESS_TOKEN");
    const char *token = base && env_of("MUSTER_TOKEN") ? env_of("MUSTER_TOKEN") : google;
    OWN_BUF url = BUF_INIT;

    if (!slash || slash == bucket || !slash[1])
        return err_set(err, ERR_INVALID, "%.200s: gs://BUCKET/OBJECT should be here", gs);
    if (base && !begins(base, "http://") && !begins(base, "https://"))
        buf_text(&url, "http://");
    buf_text(&url, base ? base : "https://storage.googleapis.com");
    while (url.n && url.data[url.n - 1] == '/')
        url.data[--url.n] = 0;
    OWN_MEM char *name = strndup(bucket, (size_t)(slash - bucket));
    buf_text(&url, "/download/storage/v1/b/");
    http_escape(&url, name ? name : "");
    buf_text(&url, "/o/");
    http_escape(&url, slash + 1);
    buf_text(&url, "?alt=media");
    t->is_gs = 1;
    t->url = buf_take(&url);
    t->name = strdup(gs);
    if (token && asprintf(&t->authorization, "Authorization: Bearer %s", token) < 0)
        t->authorization = NULL;
    if (!name || !t->url || !t->name || (token && !t->authorization))
        return err_set(err, ERR_NOMEM, "no memory for a URL");
    /* A line break in it would be a second header. */
    if (token && token[strcspn(token, "\r\n")])
        return err_set(err, ERR_INVALID, "the token for %s has a line break in it", t->name);
    return 0;
}

static int target_of_url(struct http_target *t, const char *url, struct err *err)
{
    const char *host = strstr(url, "://") + 3;
    size_t n = strcspn(host, "/?#");

    t->name = strndup(url, (size_t)(host - url) + strcspn(host, "?#"));
    t->url = strndup(url, (size_t)(host - url) + strcspn(host, "#"));
    if (!t->name || !t->url)
        return err_set(err, ERR_NOMEM, "no memory for a URL");
    if (memchr(host, '@', n))
        return err_set(err, ERR_INVALID,
                       "a URL with a user or password before its host is not read: it "
                       "would be stored with every run (leave out what is before the @)");
    if (n == 0)
        return err_set(err, ERR_INVALID, "%s: has no host", t->name);
    return 0;
}

int http_target_init(struct http_target *t, const char *url, struct err *err)
{
    *t = (struct http_target){ 0 };
    if (!http_is_url(url) || strlen(url) > URL_MAX)
        return err_set(err, ERR_INVALID, "a URL of at most %d characters should be here", URL_MAX);
    for (const char *p = url; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f || (*p == ' ' && !begins(url, "gs://")))
            return err_set(err, ERR_INVALID,
                           "the URL has a blank or control character in it (write a "
                           "blank as %%20)");
    int rc = begins(url, "gs://") ? target_of_gs(t, url, err) : target_of_url(t, url, err);
    if (rc < 0)
        http_target_done(t);
    return rc;
}

/* ------------------------------------------------------------------ handles */

/* Sets an option of handle `c`; `rc` gathers what was refused. */
#define SET(option, value) rc |= (int)curl.easy_setopt(c, CURLOPT_##option, value)

static CURL *pool[POOL];
static int n_pool;
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;

static long stall_s(void)
{
    const char *text = env_of("MUSTER_HTTP_STALL");
    long s = text ? strtol(text, NULL, 10) : 0;
    return s >= 1 && s <= 3600 ? s : STALL_S;
}

int http_handle_take(const struct http_target *t, CURL **out, struct err *err)
{
    const struct http_curl *api;
    const char *ca = env_of("SSL_CERT_FILE") ? env_of("SSL_CERT_FILE") : env_of("CURL_CA_BUNDLE");
    const char *next = begins(t->url, "https://") ? "https" : "http,https";
    CURL *c = NULL;

    if (http_curl(&api, err) < 0)
        return -(int)err->code;
    pthread_mutex_lock(&pool_lock);
    if (n_pool)
        c = pool[--n_pool];
    pthread_mutex_unlock(&pool_lock);
    if (!c && !(c = api->easy_init()))
        return err_set(err, ERR_NOMEM, "no memory to read %s", t->name);
    int rc = 0;
    SET(URL, t->url);
    SET(PROTOCOLS_STR, "http,https");
    SET(FOLLOWLOCATION, 1L);
    SET(MAXREDIRS, (long)REDIRECTS);
    SET(REDIR_PROTOCOLS_STR, next);
    SET(CONNECTTIMEOUT, (long)CONNECT_S);
    SET(LOW_SPEED_LIMIT, 1L);
    SET(LOW_SPEED_TIME, stall_s());
    SET(NOSIGNAL, 1L);
    SET(USERAGENT, "muster/" MUSTER_VERSION);
    if (ca)
        SET(CAINFO, ca);
    if (rc) {
        api->easy_cleanup(c);
        return err_set(err, ERR_IO,
                       "the libcurl of this machine is too old (7.85 or newer is needed)");
    }
    *out = c;
    return 0;
}

void http_handle_put(CURL *c)
{
    if (!c)
        return;
    curl.easy_reset(c);         /* the options, not the connection */
    pthread_mutex_lock(&pool_lock);
    if (n_pool < POOL) {
        pool[n_pool++] = c;
        c = NULL;
    }
    pthread_mutex_unlock(&pool_lock);
    if (c)
        curl.easy_cleanup(c);
}

void http_header(CURL *c, const char *name, char *out, size_t size)
{
    struct curl_header *h = NULL;

    out[0] = 0;
    if (curl.easy_header(c, name, 0, CURLH_HEADER, -1, &h) == CURLHE_OK && strlen(h->value) < size)
        memcpy(out, h->value, strlen(h->value) + 1);
}

/* ------------------------------------------------------------------ what went wrong */

static const struct {
    long status;
    enum err_code code;
    const char *text;
} statuses[] = {
    { 400, ERR_INVALID, "it does not understand the request; check the URL" },
    { 401, ERR_DENIED, "it wants to know who asks; for gs:// set MUSTER_TOKEN or "
      "GOOGLE_OAUTH_ACCESS_TOKEN" },
    { 403, ERR_DENIED, "it may not be read by who asks; check the token and the object's rights" },
    { 404, ERR_MISSING, "there is no such object; check the name" },
    { 410, ERR_MISSING, "the object is gone; check the name" },
    { 408, ERR_AGAIN, "it waited too long for the request; try again" },
    { 429, ERR_AGAIN, "it is asked too often; try again later" },
    { 500, ERR_AGAIN, "the fault is on its side; try again later" },
    { 502, ERR_AGAIN, "what is behind it does not answer; try again later" },
    { 503, ERR_AGAIN, "it cannot answer now; try again later" },
    { 504, ERR_AGAIN, "what is behind it does not answer in time; try again later" },
};
enum { STATUSES = sizeof statuses / sizeof statuses[0] };

int http_say_status(const char *name, long status, struct err *err)
{
    if (status >= 200 && status < 300)
        return 0;
    for (int i = 0; i < STATUSES; i++)
        if (statuses[i].status == status)
            return err_set(err, statuses[i].code, "%s: the server answers %ld (%s)", name, status,
                           statuses[i].text);
    return err_set(err, ERR_IO, "%s: the server answers %ld, which is no file (check the URL)",
                   name, status);
}

int http_status_may_pass(long status)
{
    for (int i = 0; i < STATUSES; i++)
        if (statuses[i].status == status)
            return statuses[i].code == ERR_AGAIN;
    return 0;
}

static const struct {
    CURLcode curl;
    int may_pass;
    enum err_code code;
    const char *text;
} troubles[] = {
    { CURLE_COULDNT_RESOLVE_HOST, 0, ERR_AGAIN,
      "its host is not known; check the name, the network" },
    { CURLE_COULDNT_RESOLVE_PROXY, 0, ERR_AGAIN,
      "the proxy's host is not known; check http_proxy" },
    { CURLE_COULDNT_CONNECT, 0, ERR_AGAIN,
      "nobody is at its host and port; is the server running?" },
    { CURLE_OPERATION_TIMEDOUT, 1, ERR_AGAIN, "nothing came in time; check network and server" },
    { CURLE_TOO_MANY_REDIRECTS, 0, ERR_IO,
      "the server sends from one address to the next, more than "
      "five times; check the URL" },
    { CURLE_UNSUPPORTED_PROTOCOL, 0, ERR_DENIED,
      "the server sends on to an address that is not "
      "http or https, or from https to http; that is not followed" },
    { CURLE_URL_MALFORMAT, 0, ERR_INVALID, "that is no URL" },
    { CURLE_PEER_FAILED_VERIFICATION, 0, ERR_DENIED,
      "its certificate is not to be trusted; for one of "
      "your own, name its authority in SSL_CERT_FILE" },
    { CURLE_SSL_CACERT_BADFILE, 0, ERR_DENIED, "the certificates in SSL_CERT_FILE cannot be read" },
    { CURLE_SSL_CONNECT_ERROR, 1, ERR_IO, "no TLS connection can be made; is it https?" },
    { CURLE_GOT_NOTHING, 1, ERR_AGAIN, "the server closed the connection without an answer" },
    { CURLE_RECV_ERROR, 1, ERR_AGAIN, "the connection broke" },
    { CURLE_SEND_ERROR, 1, ERR_AGAIN, "the connection broke" },
    { CURLE_PARTIAL_FILE, 1, ERR_AGAIN, "the connection broke" },
    { CURLE_HTTP2, 1, ERR_AGAIN, "the connection broke" },
    { CURLE_HTTP2_STREAM, 1, ERR_AGAIN, "the connection broke" },
    { CURLE_OUT_OF_MEMORY, 0, ERR_NOMEM, "no memory to read it" },
};
enum { TROUBLES = sizeof troubles / sizeof troubles[0] };

int http_say_curl(const struct http_target *t, CURLcode code, struct err *err)
{
    for (int i = 0; i < TROUBLES; i++)
        if (troubles[i].curl == code)
            return err_set(err, troubles[i].code, "%s: %s", t->name, troubles[i].text);
    return err_set(err, ERR_IO, "%s: %s (check the URL and the server)", t->name,
                   curl.easy_strerror(code));
}

int http_may_pass(CURLcode code)
{
    for (int i = 0; i < TROUBLES; i++)
        if (troubles[i].curl == code)
            return troubles[i].may_pass;
    return 0;
}

/* ------------------------------------------------------------------ single calls */

struct answer {
    struct buf *body;
    size_t max;
    int too_long;
};

static size_t take_body(char *data, size_t one, size_t n, void *arg)
{
    struct answer *a = arg;

    (void)one;
    if (n > a->max - a->body->n) {
        a->too_long = 1;
        return 0;
    }
    buf_append(a->body, data, n);
    return n;
}

void http_response_done(struct http_response *r)
{
    buf_done(&r->body);
}

static int perform_call(CURL *c, const struct http_target *t, const char *method,
                        struct curl_slist *list, const void *body, size_t n_body, struct answer *a,
                        struct err *err)
{
    int rc = 0;

    if (strcmp(method, "HEAD") == 0)
        SET(NOBODY, 1L);
    else if (body || (strcmp(method, "GET") && strcmp(method, "DELETE"))) {
        SET(POSTFIELDSIZE_LARGE, (curl_off_t)n_body);
        SET(POSTFIELDS, body ? body : "");
    }
    SET(CUSTOMREQUEST, method);
    SET(FOLLOWLOCATION, strcmp(method, "GET") ? 0L : 1L);
    SET(HTTPHEADER, list);
    SET(WRITEFUNCTION, take_body);
    SET(WRITEDATA, a);
    if (rc)
        return err_set(err, ERR_NOMEM, "no memory to call %s", t->name);
    CURLcode done = curl.easy_perform(c);
    if (a->too_long)
        return err_set(err, ERR_IO, "%s: the answer is longer than %zu bytes", t->name, a->max);
    return done == CURLE_OK ? buf_ok(a->body, err) : http_say_curl(t, done, err);
}

int http_call(const char *method, const char *url, const char *const *headers, const void *body,
              size_t n_body, size_t max, struct http_response *out, struct err *err)
{
    struct http_target t;
    struct http_response r = { 0 };
    struct answer a = { .body = &r.body, .max = max };
    struct curl_slist *list = NULL;
    CURL *c = NULL;

    if (begins(url, "gs://"))
        return err_set(err, ERR_INVALID, "%.200s: an http:// or https:// URL should be here", url);
    if (http_target_init(&t, url, err) < 0)
        return -(int)err->code;
    int rc = http_handle_take(&t, &c, err);
    for (int i = 0; rc == 0 && headers && headers[i]; i++) {
        struct curl_slist *more = curl.slist_append(list, headers[i]);
        if (!more)
            rc = err_set(err, ERR_NOMEM, "no memory to call %s", t.name);
        else
            list = more;
    }
    if (rc == 0)
        rc = perform_call(c, &t, method, list, body, n_body, &a, err);
    if (rc == 0) {
        curl.easy_getinfo(c, CURLINFO_RESPONSE_CODE, &r.status);
        http_header(c, "Location", r.location, sizeof r.location);
        http_header(c, "Range", r.range, sizeof r.range);
        *out = r;
    } else {
        buf_done(&r.body);
    }
    http_handle_put(c);
    if (list)
        curl.slist_free_all(list);
    http_target_done(&t);
    return rc;
}
