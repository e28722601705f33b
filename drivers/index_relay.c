/* drivers/index_relay.c - the process that fetches from package indexes for a builder
 *
 * One thread a connection, one request a connection. What it is asked for is looked up, never
 * guessed: a page is below one of the indexes, a file bears the MAC that was put on it when a page
 * named it.
 */
#include <errno.h>
#include <nettle/base64.h>
#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/http.h"
#include "drivers/index_int.h"

enum {
    HEAD_BYTES = 16 << 10,
    PAGE_BYTES = 64 << 20,      /* PyPI's largest has some 20 MB */
    PIECE_BYTES = 1 << 20,
    CONNECTIONS = 64,
    MAC_BYTES = 16,
    STACK_BYTES = 512 << 10,
    QUIET_S = 60,               /* a builder that asks for nothing, or does not read */
};

struct serving {
    const struct index *x;
    int fd;
};

static atomic_int open_connections;

/* ------------------------------------------------------------------ names of files */

static void mac_of(const struct index *x, int number, const char *url, char out[2 * MAC_BYTES + 1])
{
    struct hmac_sha256_ctx ctx;
    uint8_t digest[MAC_BYTES], which = (uint8_t)number;

    hmac_sha256_set_key(&ctx, INDEX_KEY, x->key);
    hmac_sha256_update(&ctx, 1, &which);
    hmac_sha256_update(&ctx, strlen(url), (const uint8_t *)url);
    hmac_sha256_digest(&ctx, sizeof digest, digest);
    for (int i = 0; i < MAC_BYTES; i++)
        snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

struct page {
    const struct index *x;
    int number;
};

static void name_file(void *arg, const char *url, struct buf *out)
{
    const struct page *p = arg;
    char mac[2 * MAC_BYTES + 1];
    size_t n = strlen(url), end = strcspn(url, "?");
    const char *name = memrchr(url, '/', end);
    OWN_MEM char *code = malloc(BASE64_ENCODE_RAW_LENGTH(n) + 1);

    if (!code)
        return;
    base64_encode_raw(code, n, (const uint8_t *)url);
    code[BASE64_ENCODE_RAW_LENGTH(n)] = '\0';
    code[strcspn(code, "=")] = '\0';    /* pip writes %3D for it */
    for (char *c = code; *c; c++)
        *c = *c == '/' ? '_' : *c == '+' ? '-' : *c;
    mac_of(p->x, p->number, url, mac);
    buf_printf(out, "/f/%s/%d/%s/%.*s", mac, p->number, code, name ? (int)(url + end - name) - 1 : 0,
               name ? name + 1 : "");
}

/* The URL that a path of name_file stands for; NULL: none. Caller frees. */
static char *file_of(const struct index *x, const char *path, int *out_number)
{
    char mac[2 * MAC_BYTES + 1], right[2 * MAC_BYTES + 1];
    int at = 0;
    struct base64_decode_ctx ctx;

    if (sscanf(path, "/f/%32[0-9a-f]/%d/%n", mac, out_number, &at) != 2 || !at ||
        strlen(mac) != 2 * MAC_BYTES || *out_number < 0 || *out_number >= x->n)
        return NULL;
    const char *code = path + at, *name = strchr(code, '/');
    if (!name)
        return NULL;
    size_t n = (size_t)(name - code), done = 0;
    OWN_MEM char *text = malloc(n + 4);
    OWN_MEM char *url = malloc(BASE64_DECODE_LENGTH(n + 3) + sizeof ".metadata");
    if (!text || !url)
        return NULL;
    for (size_t i = 0; i < n; i++)
        text[i] = code[i] == '_' ? '/' : code[i] == '-' ? '+' : code[i];
    while (n % 4)
        text[n++] = '=';
    base64_decode_init(&ctx);
    if (!base64_decode_update(&ctx, &done, (uint8_t *)url, n, text) ||
        !base64_decode_final(&ctx))
        return NULL;
    url[done] = '\0';
    mac_of(x, *out_number, url, right);
    if (strlen(url) != done || !memeql_sec(mac, right, 2 * MAC_BYTES))
        return NULL;
    size_t end = strlen(name);
    if (end > 9 && !strcmp(name + end - 9, ".metadata") && !strchr(url, '?') &&
        strcmp(url + done - (done > 9 ? 9 : done), ".metadata"))
        memcpy(url + done, ".metadata", sizeof ".metadata");
    return TAKE(url);
}

/* ------------------------------------------------------------------ answers */

static bool send_all(int fd, const char *bytes, size_t n)
{
    while (n) {
        ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        bytes += sent;
        n -= (size_t)sent;
    }
    return true;
}

static void answer(int fd, int status, const char *type, const char *body, size_t n, bool head)
{
    char line[256];
    int m = snprintf(line, sizeof line,
                     "HTTP/1.1 %d -\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
                     "Connection: close\r\n\r\n", status, type, n);
    if (send_all(fd, line, (size_t)m) && !head)
        send_all(fd, body, n);
}

static void answer_error(const struct serving *s, const struct err *err)
{
    struct index_shared *shared = s->x->shared;
    int none = 0;
    int status = err->code == ERR_MISSING ? 404 : err->code == ERR_DENIED ? 403
                 : err->code == ERR_AGAIN ? 503 : 502;
    if (status != 404 && atomic_compare_exchange_strong(&shared->state, &none, 1)) {
        snprintf(shared->trouble, sizeof shared->trouble, "%s", err->text);
        atomic_store(&shared->state, 2);
    }
    answer(s->fd, status, "text/plain", err->text, strlen(err->text), false);
}

static int open_at(const struct index *x, int number, const char *url, struct http_file **out,
                   struct err *err)
{
    const struct index_at *at = &x->at[number];
    return http_file_open_as(url, index_same_origin(url, at->url) ? at->authorization : NULL, out,
                             err);
}

static void give_page(const struct serving *s, int number, const char *path, bool head)
{
    struct err err = { 0 };
    OWN(http_file) f = NULL;
    OWN_BUF url = BUF_INIT;
    OWN_BUF page = BUF_INIT;
    OWN_MEM char *html = NULL;
    size_t n = 0;

    buf_printf(&url, "%s%s", s->x->at[number].url, path);
    if (buf_ok(&url, &err) < 0 || open_at(s->x, number, url.data, &f, &err) < 0 ||
        http_file_read_all(f, PAGE_BYTES, &html, &n, &err) < 0) {
        answer_error(s, &err);
        return;
    }
    index_rewrite(html, n, url.data, name_file, &(struct page){ s->x, number }, &page);
    if (buf_ok(&page, &err) < 0)
        answer_error(s, &err);
    else
        answer(s->fd, 200, "text/html", page.data ? page.data : "", page.n, head);
}

static void give_file(const struct serving *s, int number, const char *url, bool head)
{
    struct err err = { 0 };
    OWN(http_file) f = NULL;
    OWN_MEM char *piece = malloc(PIECE_BYTES);
    size_t n = 0;
    char line[200];

    if (!piece || open_at(s->x, number, url, &f, &err) < 0) {
        answer_error(s, &err);
        return;
    }
    /* Without a length its end is the connection's. */
    int64_t size = http_file_size(f);
    int m = snprintf(line, sizeof line, "HTTP/1.1 200 -\r\nContent-Type: "
                     "application/octet-stream\r\nConnection: close\r\n");
    if (size >= 0)
        m += snprintf(line + m, sizeof line - (size_t)m, "Content-Length: %lld\r\n",
                      (long long)size);
    m += snprintf(line + m, sizeof line - (size_t)m, "\r\n");
    bool open = send_all(s->fd, line, (size_t)m) && !head;
    for (uint64_t at = 0; open; at += n) {
        if (http_file_read(f, at, piece, PIECE_BYTES, &n, &err) < 0 || !n)
            break;
        open = send_all(s->fd, piece, n);
    }
}

/* Names of packages and nothing that leads elsewhere. */
static bool is_below(const char *path)
{
    return !path[strspn(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                              "-_./")] && !strstr(path, "..");
}

static void serve(const struct serving *s)
{
    char head[HEAD_BYTES + 1], method[8], path[HEAD_BYTES];
    size_t n = 0;
    ssize_t got;

    do {
        got = recv(s->fd, head + n, HEAD_BYTES - n, 0);
        n += got > 0 ? (size_t)got : 0;
        head[n] = '\0';
    } while (got > 0 && n < HEAD_BYTES && !strstr(head, "\r\n\r\n"));
    struct err err = { .code = ERR_MISSING, .text = "no such page of the package index" };
    if (sscanf(head, "%7s %16383s HTTP/1.", method, path) != 2 ||
        (strcmp(method, "GET") && strcmp(method, "HEAD"))) {
        answer(s->fd, 405, "text/plain", "GET alone", 9, false);
        return;
    }
    bool only_head = method[0] == 'H';
    int number = -1, at = 0;
    OWN_MEM char *url = file_of(s->x, path, &number);
    if (url)
        give_file(s, number, url, only_head);
    else if (sscanf(path, "/%2d/%n", &number, &at) == 1 && at && number >= 0 && number < s->x->n &&
             is_below(path + at))
        give_page(s, number, path + at, only_head);
    else
        answer_error(s, &err);
}

static void *serve_one(void *arg)
{
    struct serving s = *(struct serving *)arg;

    free(arg);
    serve(&s);
    shutdown(s.fd, SHUT_RDWR);
    close(s.fd);
    atomic_fetch_sub(&open_connections, 1);
    return NULL;
}

__attribute__((noreturn)) void index_relay(const struct index *x, int listener)
{
    const struct timeval quiet = { .tv_sec = QUIET_S };
    const char *ca = getenv("PIP_CERT");
    sigset_t none;
    pthread_attr_t attr;

    prctl(PR_SET_NAME, "muster-index", 0, 0, 0);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGTERM, SIG_DFL);
    if (ca && !getenv("SSL_CERT_FILE"))
        setenv("SSL_CERT_FILE", ca, 1);
    if (getenv("PIP_PROXY")) {
        setenv("http_proxy", getenv("PIP_PROXY"), 1);
        setenv("https_proxy", getenv("PIP_PROXY"), 1);
    }
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        if (fd < 0)
            _exit(1);
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &quiet, sizeof quiet);
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &quiet, sizeof quiet);
        struct serving *s = malloc(sizeof *s);
        pthread_t thread;
        bool room = atomic_fetch_add(&open_connections, 1) < CONNECTIONS;
        if (s)
            *s = (struct serving){ x, fd };
        if (!s || !room || pthread_create(&thread, &attr, serve_one, s) != 0) {
            atomic_fetch_sub(&open_connections, 1);
            free(s);
            close(fd);
        }
    }
}
