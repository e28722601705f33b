/* tests/unit/http_test.c - does the HTTP client keep its header's word? (Ranges: tests/e2e/test_http_data.py) */
#include "base/http.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "tests/check.h"

/* A server of one connection: takes a request, sends `answer`. */
struct server {
    const char *answer;
    char asked[4096], url[64];
    int fd;
    pthread_t thread;
};

static void *serve(void *arg)
{
    struct server *s = arg;
    size_t n = 0, whole = sizeof s->asked;
    int fd = accept(s->fd, NULL, NULL);

    while (n < whole) {
        ssize_t k = read(fd, s->asked + n, sizeof s->asked - 1 - n);
        if (k <= 0)
            break;
        n += (size_t)k;
        const char *end = strstr(s->asked, "\r\n\r\n"), *length = strstr(s->asked, "Content-Length: ");
        if (end)
            whole = (size_t)(end + 4 - s->asked) + (length ? strtoul(length + 16, NULL, 10) : 0);
    }
    if (write(fd, s->answer, strlen(s->answer)) < 0)
        abort();
    close(fd);
    return NULL;
}

static void serve_start(struct server *s, const char *answer)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof a;

    *s = (struct server){ .answer = answer, .fd = socket(AF_INET, SOCK_STREAM, 0) };
    assert_int_equal(bind(s->fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(s->fd, 4), 0);
    assert_int_equal(getsockname(s->fd, (struct sockaddr *)&a, &n), 0);
    snprintf(s->url, sizeof s->url, "http://127.0.0.1:%d/jobs/1", ntohs(a.sin_port));
    assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
    setenv("no_proxy", "127.0.0.1", 1);
}

static void serve_stop(struct server *s)
{
    pthread_join(s->thread, NULL);
    close(s->fd);
}

static void a_url_is_told_by_its_beginning(void **state)
{
    (void)state;
    assert_true(http_is_url("http://a/b") && http_is_url("https://a/b") && http_is_url("gs://a/b"));
    assert_true(http_is_url("HTTP://a/b"));
    assert_false(http_is_url("data/http.csv") || http_is_url("http:/a") || http_is_url("file:///a"));
    assert_false(http_is_url("-") || http_is_url(""));
}

static void a_range_is_three_numbers_or_a_star(void **state)
{
    static const struct { const char *text; int64_t first, last, total; } cases[] = {
        { "bytes 0-99/1000", 0, 99, 1000 },
        { "bytes 5-5/6", 5, 5, 6 },
        { "bytes 0-99/*", 0, 99, -1 },
        { "bytes */0", -1, -1, 0 },
        { "bytes */77", -1, -1, 77 },
        { "bytes 0-99/99", -2, -2, -2 },        /* the last byte is beyond the end */
        { "bytes 9-5/100", -2, -2, -2 },
        { "bytes -1-5/100", -2, -2, -2 },
        { "bytes 0-5/100 ", -2, -2, -2 },
        { "bytes 0-5", -2, -2, -2 },
        { "rows 0-5/100", -2, -2, -2 },
        { "bytes 0-99999999999999999999/99999999999999999999", -2, -2, -2 },
        { "", -2, -2, -2 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct http_range r = http_parse_range(cases[i].text);
        assert_int_equal(r.first, cases[i].first);
        assert_int_equal(r.last, cases[i].last);
        assert_int_equal(r.total, cases[i].total);
    }
}

static void a_call_sends_method_headers_and_body_and_brings_the_answer(void **state)
{
    const char *const headers[] = { "Content-Type: application/json", "X-One: 1", NULL };
    struct http_response r;
    struct err err = { 0 };
    struct server s;

    (void)state;
    serve_start(&s, "HTTP/1.1 409 Conflict\r\nContent-Length: 9\r\n\r\n{\"a\": 1}\n");
    assert_ok(http_call("PUT", s.url, headers, "{\"b\":2}", 7, 1 << 20, &r, &err));
    serve_stop(&s);
    assert_int_equal(r.status, 409);
    assert_string_equal(r.body.data, "{\"a\": 1}\n");
    assert_int_equal(strncmp(s.asked, "PUT /jobs/1 HTTP/1.1\r\n", 22), 0);
    assert_non_null(strstr(s.asked, "Content-Type: application/json\r\n"));
    assert_non_null(strstr(s.asked, "X-One: 1\r\n"));
    assert_non_null(strstr(s.asked, "\r\n\r\n{\"b\":2}"));
    http_response_done(&r);
    assert_fails(http_say_status("job 1", 403, &err), ERR_DENIED);
    assert_ok(http_say_status("job 1", 204, &err));
}

static void an_answer_that_is_too_long_is_refused(void **state)
{
    struct http_response r;
    struct err err = { 0 };
    struct server s;

    (void)state;
    serve_start(&s, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123456789");
    assert_fails(http_call("GET", s.url, NULL, NULL, 0, 8, &r, &err), ERR_IO);
    serve_stop(&s);
    assert_non_null(strstr(err.text, "longer than 8 bytes"));
}

static void a_call_that_changes_something_follows_no_redirect(void **state)
{
    struct http_response r;
    struct err err = { 0 };
    struct server s;

    (void)state;
    serve_start(&s, "HTTP/1.1 307 Go\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n");
    assert_ok(http_call("DELETE", s.url, NULL, NULL, 0, 100, &r, &err));
    serve_stop(&s);
    assert_int_equal(r.status, 307);
    http_response_done(&r);
}

static void what_is_no_url_is_said_without_its_secrets(void **state)
{
    struct http_response r;
    struct err err = { 0 };

    (void)state;
    assert_fails(http_call("GET", "http://me:secret@host/", NULL, NULL, 0, 9, &r, &err), ERR_INVALID);
    assert_null(strstr(err.text, "secret"));
    assert_fails(http_call("GET", "gs://a/b", NULL, NULL, 0, 9, &r, &err), ERR_INVALID);
    assert_fails(http_call("GET", "http://a/\r\nX: y", NULL, NULL, 0, 9, &r, &err), ERR_INVALID);
    assert_fails(http_call("GET", "ftp://a/b", NULL, NULL, 0, 9, &r, &err), ERR_INVALID);
    assert_fails(http_call("GET", "http://127.0.0.1:1/?key=secret", NULL, NULL, 0, 9, &r, &err),
                 ERR_AGAIN);
    assert_null(strstr(err.text, "secret"));
}

CHECK_MAIN(a_url_is_told_by_its_beginning, a_range_is_three_numbers_or_a_star,
           a_call_sends_method_headers_and_body_and_brings_the_answer,
           an_answer_that_is_too_long_is_refused,
           a_call_that_changes_something_follows_no_redirect,
           what_is_no_url_is_said_without_its_secrets)
