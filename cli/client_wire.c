/* cli/client_wire.c - HTTP/1.1, one request a connection */
#include "cli/client_wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/own.h"

enum { WAIT_S = 600, HEAD_MAX = 64 << 10 };

/* "127.0.0.1", 8470 and "/path" of "http://127.0.0.1:8470/path". */
static bool take_apart(const char *url, struct sockaddr_in *out, const char **out_path)
{
    char host[64];
    long port = 80;

    if (strncmp(url, "http://", 7))
        return false;
    const char *at = url + 7;
    size_t n = strcspn(at, ":/");
    if (n >= sizeof host)
        return false;
    memcpy(host, at, n);
    host[n] = '\0';
    at += n;
    if (*at == ':') {
        char *end;
        port = strtol(at + 1, &end, 10);
        at = end;
    }
    *out_path = *at ? at : "/";
    *out = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    return port > 0 && port < 65536 && (*at == '/' || !*at) &&
           inet_pton(AF_INET, host, &out->sin_addr) == 1;
}

bool wire_can(const char *url)
{
    struct sockaddr_in to;
    const char *path;
    return take_apart(url, &to, &path);
}

static int send_all(int fd, const void *bytes, size_t n, struct err *err)
{
    for (const char *at = bytes; n > 0;) {
        ssize_t sent = send(fd, at, n, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return err_set(err, ERR_AGAIN, "the connection to the server broke: %s",
                           strerror(errno));
        at += sent;
        n -= (size_t)sent;
    }
    return 0;
}

static int ask(int fd, const char *method, const char *url, const char *path,
               const char *const *headers, const void *body, size_t n_body, struct err *err)
{
    OWN_BUF b = BUF_INIT;

    buf_printf(&b, "%s %s HTTP/1.1\r\nHost: %.*s\r\nConnection: close\r\n", method, path,
               (int)strcspn(url + 7, "/"), url + 7);
    for (; headers && *headers; headers++)
        buf_printf(&b, "%s\r\n", *headers);
    if (body || strcmp(method, "GET"))
        buf_printf(&b, "Content-Length: %zu\r\n", n_body);
    buf_text(&b, "\r\n");
    if (n_body)
        buf_append(&b, body, n_body);
    return buf_ok(&b, err) < 0 ? -(int)err->code : send_all(fd, b.data, b.n, err);
}

/* To the end of the connection, which the server closes after its answer. */
static int read_all(int fd, size_t max, struct buf *b, struct err *err)
{
    for (;;) {
        char *to = buf_reserve(b, 65536);
        if (!to)
            return err_set(err, ERR_NOMEM, "no memory for the server's answer");
        ssize_t n = recv(fd, to, 65535, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(err, ERR_AGAIN, "the connection to the server broke: %s",
                           strerror(errno));
        b->n += (size_t)n;
        b->data[b->n] = '\0';
        if (n == 0)
            return 0;
        if (b->n > max + HEAD_MAX)
            return err_set(err, ERR_IO, "the server's answer is longer than %zu bytes", max);
    }
}

/* The value of a header, as a number; -1: there is none. */
static long long header_number(const char *head, const char *end, const char *name)
{
    size_t n = strlen(name);

    for (const char *line = strstr(head, "\r\n"); line && line < end;
         line = strstr(line + 2, "\r\n"))
        if (!strncasecmp(line + 2, name, n) && line[2 + n] == ':')
            return strtoll(line + 3 + n, NULL, 10);
    return -1;
}

/* Pieces with their lengths before them, put together in place; false: they are not whole. */
static bool join_pieces(struct buf *b)
{
    size_t to = 0, from = 0;

    for (;;) {
        char *end;
        if (from >= b->n)
            return false;
        unsigned long n = strtoul(b->data + from, &end, 16);
        const char *line = strstr(end, "\r\n");
        if (end == b->data + from || !line)
            return false;
        from = (size_t)(line - b->data) + 2;
        if (n == 0)
            break;
        if (n > b->n - from)
            return false;
        memmove(b->data + to, b->data + from, n);
        to += n;
        from += n + 2;
    }
    b->n = to;
    b->data[to] = '\0';
    return true;
}

static int understand(struct buf *all, struct http_response *out, struct err *err)
{
    const char *end = all->data ? strstr(all->data, "\r\n\r\n") : NULL;
    struct buf body = BUF_INIT;

    if (!end || strncmp(all->data, "HTTP/1.1 ", 9))
        return err_set(err, ERR_AGAIN, "what answers there is no server of muster's");
    size_t skip = (size_t)(end - all->data) + 4;
    long long length = header_number(all->data, end, "Content-Length");
    bool pieces = strcasestr(all->data, "\r\nTransfer-Encoding: chunked") &&
                  strcasestr(all->data, "\r\nTransfer-Encoding: chunked") < end;
    buf_append(&body, all->data + skip, all->n - skip);
    if ((length >= 0 && body.n != (size_t)length) || (pieces && !join_pieces(&body))) {
        buf_done(&body);
        return err_set(err, ERR_AGAIN, "the connection to the server broke within its answer");
    }
    *out = (struct http_response){ .status = strtol(all->data + 9, NULL, 10), .body = body };
    return 0;
}

int wire_call(const char *method, const char *url, const char *const *headers, const void *body,
              size_t n_body, size_t max, struct http_response *out, struct err *err)
{
    struct sockaddr_in to;
    const char *path;
    OWN_BUF all = BUF_INIT;
    struct timeval wait = { .tv_sec = WAIT_S };

    if (!take_apart(url, &to, &path))
        return err_set(err, ERR_INVALID, "\"%.200s\" is no address of a server on this machine",
                       url);
    OWN_FD int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return err_set(err, ERR_AGAIN, "no socket: %s", strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) < 0)
        return err_set(err, ERR_AGAIN, "nobody answers at %.200s: %s", url, strerror(errno));
    if (ask(fd, method, url, path, headers, body, n_body, err) < 0 ||
        read_all(fd, max, &all, err) < 0)
        return -(int)err->code;
    return understand(&all, out, err);
}
