/* Many clients at once: loops, the pool, streamed bodies, streams and the end of it all. */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "server/auth.h"
#include "server/server.h"
#include "tests/check.h"

enum { CLIENTS = 8, ROUNDS = 40, BODY = 300000 };

static char dir[] = "/tmp/muster-serve-XXXXXX";
static struct server server;
static int port;
static char token[AUTH_TOKEN];

/* ------------------------------------------------------------ a protocol */

static int get_plain(struct request *q, struct err *err)
{
    (void)err;
    return respond_bytes(q, 200, "text/plain", request_arg(q, "word"), strlen(request_arg(q, "word")));
}

static int post_echo(struct request *q, struct err *err)
{
    size_t n;
    const char *body = request_body(q, &n);

    (void)err;
    return respond_bytes(q, 200, "text/plain", body, n);
}

struct sum { uint64_t n, sum; };

static int add_body(struct request *q, const void *bytes, size_t n, struct err *err)
{
    struct sum *s = request_kept(q);

    if (!s) {
        s = calloc(1, sizeof *s);
        if (!s)
            return err_set(err, ERR_NOMEM, "no memory");
        request_keep(q, s, free);
    }
    s->n += n;
    for (size_t i = 0; i < n; i++)
        s->sum += ((const unsigned char *)bytes)[i];
    return s->n > 2 * BODY ? err_set(err, ERR_INVALID, "too much") : 0;
}

static int post_sum(struct request *q, struct err *err)
{
    const struct sum *s = request_kept(q);

    (void)err;
    return respond_json(q, 200, json_pack("{s:I, s:I}", "n", (json_int_t)(s ? s->n : 0), "sum",
                                          (json_int_t)(s ? s->sum : 0)));
}

static int get_failure(struct request *q, struct err *err)
{
    (void)q;
    return err_set(err, ERR_CONFLICT, "as it was asked");
}

struct counter { int n; };

static long count(void *arg, char *out, size_t max)
{
    struct counter *c = arg;

    if (c->n == 20)
        return -1;
    if (c->n % 5 == 4) {        /* nothing now, until somebody wakes */
        c->n++;
        return 0;
    }
    return snprintf(out, max, "%d ", c->n++);
}

static int get_count(struct request *q, struct err *err)
{
    struct counter *c = calloc(1, sizeof *c);

    return c ? respond_stream(q, 200, "text/plain", count, c, free)
        : err_set(err, ERR_NOMEM, "no memory");
}

static void error(struct request *q, const struct err *err)
{
    respond_bytes(q, request_error_status(q, err), "text/plain", err->text, strlen(err->text));
}

static const struct http_route routes[] = {
    { "GET", "/plain/{word}", HTTP_OPEN, get_plain, NULL },
    { "GET", "/waits/{word}", HTTP_WAITS, get_plain, NULL },
    { "POST", "/echo", HTTP_WAITS, post_echo, NULL },
    { "POST", "/sum", HTTP_STREAMED, post_sum, add_body },
    { "POST", "/sum-waits", HTTP_STREAMED | HTTP_WAITS, post_sum, add_body },
    { "GET", "/fails", HTTP_WAITS, get_failure, NULL },
    { "GET", "/count", 0, get_count, NULL },
    { 0 }
};
static const struct protocol protocol = { "test", routes, error };
static const struct protocol *const protocols[] = { &protocol, NULL };

/* ------------------------------------------------------------ a client */

static int connect_to(void)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    return fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0 ? fd : -1;
}

static bool send_all(int fd, const char *bytes, size_t n)
{
    while (n) {
        ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        bytes += sent;
        n -= (size_t)sent;
    }
    return true;
}

/* One call on an open connection; the status, and the body in `out`. -1: broken. */
static int call(int fd, const char *method, const char *path, const char *body, size_t n,
                struct buf *out)
{
    char head[1024], *end = NULL;
    int len = snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nHost: localhost\r\n"
                       "Authorization: Bearer %s\r\nContent-Length: %zu\r\n\r\n", method, path,
                       token, n);
    size_t want = SIZE_MAX;

    if (!send_all(fd, head, (size_t)len) || !send_all(fd, body, n))
        return -1;
    buf_clear(out);
    while (!end || out->n < want) {
        char *at = buf_reserve(out, 65536);
        ssize_t got = at ? recv(fd, at, 65536, 0) : -1;
        if (got <= 0)
            return -1;
        out->n += (size_t)got;
        out->data[out->n] = 0;
        if (!end && (end = strstr(out->data, "\r\n\r\n"))) {
            const char *length = strcasestr(out->data, "content-length: ");
            if (length && length < end)
                want = (size_t)(end + 4 - out->data) + strtoul(length + 16, NULL, 10);
        }
        if (end && want == SIZE_MAX && strstr(out->data, "\r\n0\r\n\r\n"))
            break;              /* chunked, to its end */
        if (end)
            end = strstr(out->data, "\r\n\r\n");
    }
    int status = (int)strtol(out->data + 9, NULL, 10);
    size_t skip = (size_t)(end + 4 - out->data);
    memmove(out->data, end + 4, out->n - skip + 1);
    out->n -= skip;
    return status;
}

static void *client(void *arg)
{
    const int number = (int)(intptr_t)arg;
    OWN_BUF out = BUF_INIT;
    OWN_MEM char *body = malloc(BODY);
    char want[64];
    int bad = 0, fd = connect_to();

    memset(body, 'a' + number, BODY);
    for (int i = 0; i < ROUNDS && fd >= 0; i++) {
        bad += call(fd, "GET", "/plain/w%C3%B6rd", "", 0, &out) != 200 || strcmp(out.data, "wörd");
        bad += call(fd, "GET", "/waits/word", "", 0, &out) != 200 || strcmp(out.data, "word");
        bad += call(fd, "POST", "/echo", body, (size_t)(100 + i), &out) != 200
            || out.n != (size_t)(100 + i) || memcmp(out.data, body, out.n);
        if (i % 8 == 0) {
            snprintf(want, sizeof want, "{\"n\":%d,\"sum\":%d}", BODY, BODY * ('a' + number));
            bad += call(fd, "POST", i % 16 ? "/sum" : "/sum-waits", body, BODY, &out) != 200
                || strcmp(out.data, want);
            bad += call(fd, "POST", "/echo", body, BODY, &out) != 200 || out.n != BODY;
        }
        bad += call(fd, "GET", "/fails", "", 0, &out) != 409 || strcmp(out.data, "as it was asked");
        if (i % 10 == 0)
            bad += call(fd, "GET", "/count", "", 0, &out) != 200 || !strstr(out.data, "18 ");
    }
    if (fd >= 0)
        close(fd);
    return (void *)(intptr_t)(fd < 0 ? 1 : bad);
}

static void *waker(void *arg)
{
    atomic_bool *stop = arg;

    while (!atomic_load(stop)) {
        http_wake(&server);
        usleep(1000);
    }
    return NULL;
}

static void start(void)
{
    struct err err = { 0 };
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 100), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &n), 0);
    port = ntohs(at.sin_port);
    server = (struct server){ .data_dir = dir, .address = "http://127.0.0.1:1" };
    assert_ok(store_open(dir, &server.store, &err));
    assert_ok(auth_new(&server, &server.auth, &err));
    snprintf(token, sizeof token, "%s", auth_root_token(server.auth));
    assert_ok(http_start(&server, &(struct http_config){ .listen_fd = fd, .loops = 3, .waiters = 4 },
                         protocols, &err));
}

static void stop(int drain_ms)
{
    http_drain(server.http, drain_ms);
    http_stop(server.http);
    http_wake(&server);         /* somebody may not have heard yet */
    auth_free(server.auth);
    store_free(server.store);
    http_free(server.http);
}

static void many_clients_get_each_their_own_answers(void **state)
{
    (void)state;
    pthread_t clients[CLIENTS], wake;
    atomic_bool done = false;
    struct http_stats stats;

    assert_non_null(mkdtemp(dir));
    start();
    assert_int_equal(pthread_create(&wake, NULL, waker, &done), 0);
    for (intptr_t i = 0; i < CLIENTS; i++)
        assert_int_equal(pthread_create(&clients[i], NULL, client, (void *)i), 0);
    for (int i = 0; i < CLIENTS; i++) {
        void *bad;
        pthread_join(clients[i], &bad);
        assert_int_equal((intptr_t)bad, 0);
    }
    atomic_store(&done, true);
    pthread_join(wake, NULL);
    http_stats(server.http, &stats);
    assert_true(stats.by_status[2] >= CLIENTS * ROUNDS * 3);
    assert_int_equal(stats.by_status[4], CLIENTS * ROUNDS);
    assert_int_equal(stats.by_status[5], 0);
    assert_true(stats.bytes_in > (uint64_t)CLIENTS * 5 * 2 * BODY);
    stop(2000);
}

static void it_ends_while_clients_still_ask(void **state)
{
    (void)state;
    pthread_t clients[CLIENTS];

    start();
    for (intptr_t i = 0; i < CLIENTS; i++)
        assert_int_equal(pthread_create(&clients[i], NULL, client, (void *)i), 0);
    usleep(30000);
    stop(100);
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(clients[i], NULL);
}

/* As processes of jobs do between fork and exec. */
static void *forker(void *arg)
{
    atomic_bool *stop = arg;

    while (!atomic_load(stop)) {
        pid_t pid = fork();
        if (pid == 0) {
            usleep(3000);
            _exit(0);
        }
        if (pid > 0)
            waitpid(pid, NULL, 0);
    }
    return NULL;
}

static void connections_come_and_go_while_children_hold_copies_of_them(void **state)
{
    (void)state;
    pthread_t thread;
    atomic_bool done = false;
    OWN_BUF out = BUF_INIT;

    start();
    assert_int_equal(pthread_create(&thread, NULL, forker, &done), 0);
    for (int i = 0; i < 600; i++) {
        static const char last[] = "GET /plain/x HTTP/1.1\r\nHost: localhost\r\n"
            "Connection: close\r\n\r\n";
        char answer[1024];
        int fd = connect_to();
        assert_true(fd >= 0);
        if (i % 3)
            assert_int_equal(call(fd, "GET", i % 2 ? "/plain/x" : "/waits/x", "", 0, &out), 200);
        /* The server closes; what comes then must find nobody. */
        assert_true(send_all(fd, last, sizeof last - 1));
        assert_true(recv(fd, answer, sizeof answer, 0) > 0);
        usleep(200);
        send_all(fd, "x", 1);
        close(fd);
    }
    atomic_store(&done, true);
    pthread_join(thread, NULL);
    stop(1000);
}

static void a_body_that_is_refused_midway_is_answered(void **state)
{
    (void)state;
    OWN_BUF out = BUF_INIT;
    OWN_MEM char *body = calloc(1, 3 * BODY);

    start();
    int fd = connect_to();
    int status = call(fd, "POST", "/sum", body, 3 * BODY, &out);
    assert_true(status == 400 || status == -1);     /* -1: it was cut off while it still sent */
    close(fd);
    fd = connect_to();
    status = call(fd, "POST", "/sum-waits", body, 3 * BODY, &out);
    assert_true(status == 400 || status == -1);
    close(fd);
    fd = connect_to();
    assert_int_equal(call(fd, "GET", "/plain/alive", "", 0, &out), 200);
    close(fd);
    stop(100);
    char *const rm[] = { "rm", "-rf", dir, NULL };
    if (fork() == 0)
        execvp("rm", rm);
}

CHECK_MAIN(many_clients_get_each_their_own_answers, it_ends_while_clients_still_ask,
           connections_come_and_go_while_children_hold_copies_of_them,
           a_body_that_is_refused_midway_is_answered)
