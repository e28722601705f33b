#include "runtime/wire.h"

#include <pthread.h>
#include <string.h>
#include <sys/socket.h>

#include "tests/check.h"

static const char token[] = "0123456789abcdef0123456789abcdef";

struct side {
    pthread_t thread;
    int fd, rc;
    const char *token;
    int (*run)(int fd, const char *token, int timeout_ms, struct err *err);
    struct err err;
};

static void *run_side(void *arg)
{
    struct side *s = arg;
    s->rc = s->run(s->fd, s->token, 2000, &s->err);
    return NULL;
}

static void connected_pair(int fd[2])
{
    struct err err = { 0 };
    int listener = -1;
    char address[80];

    assert_ok(wire_listen("127.0.0.1:0", &listener, address, sizeof address, &err));
    assert_ok(wire_connect(address, token, 1000, &fd[0], &err));
    fd[1] = wire_accept(listener, address, token);
    assert_true(fd[1] >= 0);
    close(listener);
}

static void close_pair(int fd[2])
{
    close(fd[0]);
    close(fd[1]);
}

static void a_header_is_what_it_was(void **state)
{
    (void)state;
    struct err err = { 0 };
    unsigned char bytes[WIRE_HEADER];
    struct wire_header got, h = { WIRE_POST, UINT64_MAX - 1, UINT64_C(0x0123456789abcdef), 77 };

    wire_pack(&h, bytes);
    assert_ok(wire_unpack(bytes, &got, &err));
    assert_int_equal(got.kind, WIRE_POST);
    assert_int_equal(got.generation, h.generation);
    assert_int_equal(got.number, h.number);
    assert_int_equal(got.length, h.length);
}

static void a_wrong_header_is_refused(void **state)
{
    (void)state;
    struct err err = { 0 };
    unsigned char bytes[WIRE_HEADER];
    struct wire_header got;
    const struct {
        int at;
        unsigned char value;
    } wrong[] = { { 0, 'x' }, { 4, 9 }, { 6, WIRE_KINDS_N }, { 7, 1 }, { 28, 1 } };

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        wire_pack(&(struct wire_header){ WIRE_READY, 1, 2, 3 }, bytes);
        bytes[wrong[i].at] = wrong[i].value;
        assert_fails(wire_unpack(bytes, &got, &err), ERR_INVALID);
    }
}

static void messages_and_silence_and_a_close(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct wire_header h = { WIRE_ASK, 3, 4, 5 };
    OWN_BUF body = BUF_INIT;
    int fd[2];

    connected_pair(fd);
    assert_fails(wire_receive(fd[1], &h, &body, 20, &err), ERR_AGAIN);
    h = (struct wire_header){ WIRE_ASK, 3, 4, 5 };
    assert_ok(wire_send(fd[0], &h, "hello", 1000, &err));
    struct wire_piece piece[] = { { "ab", 2 }, { NULL, 0 }, { "cde", 3 } };
    assert_ok(wire_send_pieces(fd[0], &h, piece, 3, 1000, &err));
    assert_ok(wire_receive(fd[1], &h, &body, 1000, &err));
    assert_string_equal(body.data, "hello");
    assert_ok(wire_receive(fd[1], &h, &body, 1000, &err));
    assert_string_equal(body.data, "abcde");
    assert_int_equal(h.generation, 3);

    /* A header alone: the body never comes. */
    unsigned char half[WIRE_HEADER];
    wire_pack(&h, half);
    assert_int_equal(send(fd[0], half, sizeof half, 0), sizeof half);
    assert_fails(wire_receive(fd[1], &h, &body, 20, &err), ERR_IO);
    close(fd[0]);
    assert_fails(wire_receive(fd[1], &h, &body, 1000, &err), ERR_IO);
    close(fd[1]);
}

static void nobody_reading_ends_a_send(void **state)
{
    (void)state;
    struct err err = { 0 };
    static char big[32 << 20];
    struct wire_header h = { WIRE_STATE, 0, 0, sizeof big };
    int fd[2];

    connected_pair(fd);
    assert_fails(wire_send(fd[0], &h, big, 50, &err), ERR_AGAIN);
    close(fd[1]);
    assert_fails(wire_send(fd[0], &h, big, 50, &err), ERR_IO);  /* and no signal kills us */
    close(fd[0]);
}

static void both_sides_must_know_the_token(void **state)
{
    (void)state;
    static const char other[] = "0123456789abcdef0123456789abcdeF";
    const struct {
        const char *caller, *listener;
        int want;
    } c[] = { { token, token, 0 }, { other, token, -ERR_DENIED }, { token, other, -ERR_DENIED } };

    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        int fd[2];
        connected_pair(fd);
        struct side caller = { .fd = fd[0], .token = c[i].caller, .run = wire_prove };
        struct side listener = { .fd = fd[1], .token = c[i].listener, .run = wire_check };
        pthread_create(&caller.thread, NULL, run_side, &caller);
        run_side(&listener);
        pthread_join(caller.thread, NULL);
        assert_int_equal(caller.rc, c[i].want);
        assert_int_equal(listener.rc, c[i].want);
        close_pair(fd);
    }
}

/* A listener that has no token cannot answer the caller's nonce: its own bytes do not do. */
static void a_listener_without_the_token_is_found_out(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct wire_header h = { .kind = WIRE_CHALLENGE, .length = 32 };
    OWN_BUF body = BUF_INIT;
    char nonce[32] = { 1 };
    int fd[2];

    connected_pair(fd);
    struct side caller = { .fd = fd[0], .token = token, .run = wire_prove };
    pthread_create(&caller.thread, NULL, run_side, &caller);
    assert_ok(wire_send(fd[1], &h, nonce, 1000, &err));
    assert_ok(wire_receive(fd[1], &h, &body, 1000, &err));
    assert_int_equal(body.n, 64);
    h = (struct wire_header){ .kind = WIRE_CHALLENGE, .length = 32 };
    assert_ok(wire_send(fd[1], &h, body.data + 32, 1000, &err));  /* its own proof, sent back */
    pthread_join(caller.thread, NULL);
    assert_int_equal(caller.rc, -ERR_DENIED);
    close_pair(fd);
}

/* The listener's side as a loop that is fed `step` bytes at a time. */
static void feed_by(size_t step)
{
    struct err err = { 0 };
    OWN_BUF reply = BUF_INIT;
    OWN(wire_in) w = wire_in_new(token, &reply);
    struct wire_header h;
    const char *body;
    char in[4096];
    size_t sent = 0;
    int fd[2];

    connected_pair(fd);
    struct side caller = { .fd = fd[0], .token = token, .run = wire_prove };
    pthread_create(&caller.thread, NULL, run_side, &caller);
    while (!wire_in_proved(w)) {
        assert_int_equal(send(fd[1], reply.data + sent, reply.n - sent, 0), reply.n - sent);
        sent = reply.n;
        ssize_t n = recv(fd[1], in, step, 0);
        assert_true(n > 0);
        assert_int_equal(wire_in_next(w, &h, &body), 0);
        assert_ok(wire_in_feed(w, in, (size_t)n, &reply, &err));
    }
    assert_int_equal(send(fd[1], reply.data + sent, reply.n - sent, 0), reply.n - sent);
    pthread_join(caller.thread, NULL);
    assert_int_equal(caller.rc, 0);

    OWN_BUF out = BUF_INIT;
    for (uint64_t i = 0; i < 20; i++)
        wire_append(&out, &(struct wire_header){ WIRE_BEAT, 1, i, i }, "abcdefghijklmnopqrst");
    uint64_t next = 0;
    for (size_t at = 0; at < out.n; at += step) {
        assert_ok(wire_in_feed(w, out.data + at, at + step < out.n ? step : out.n - at, &reply,
                               &err));
        while (wire_in_next(w, &h, &body)) {
            assert_int_equal(h.number, next);
            assert_int_equal(strlen(body), next++);
        }
    }
    assert_int_equal(next, 20);
    close_pair(fd);
}

static void a_loop_may_be_fed_in_any_pieces(void **state)
{
    (void)state;
    feed_by(1);
    feed_by(7);
    feed_by(33);
    feed_by(4096);
}

static void a_stranger_is_dropped_after_a_bounded_read(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN_BUF reply = BUF_INIT;
    struct wire_header h;
    const char *body;
    char junk[WIRE_HELLO_BYTES + 1] = { 0 };

    OWN(wire_in) big = wire_in_new(token, &reply);
    assert_fails(wire_in_feed(big, junk, sizeof junk, &reply, &err), ERR_DENIED);
    assert_fails(wire_in_feed(big, junk, 1, &reply, &err), ERR_INVALID);
    assert_int_equal(wire_in_next(big, &h, &body), 0);

    /* A message before the proof, and a wrong proof. */
    OWN_BUF out = BUF_INIT;
    OWN(wire_in) early = wire_in_new(token, &reply);
    wire_append(&out, &(struct wire_header){ .kind = WIRE_HELLO, .length = 2 }, "{}");
    assert_fails(wire_in_feed(early, out.data, out.n, &reply, &err), ERR_DENIED);
    assert_int_equal(wire_in_next(early, &h, &body), 0);
    OWN(wire_in) wrong = wire_in_new(token, &reply);
    buf_clear(&out);
    wire_append(&out, &(struct wire_header){ .kind = WIRE_CHALLENGE, .length = 64 }, junk);
    assert_fails(wire_in_feed(wrong, out.data, out.n, &reply, &err), ERR_DENIED);
    assert_false(wire_in_proved(wrong));
}

static void what_came_before_a_broken_message_is_handed_out(void **state)
{
    (void)state;
    struct err err = { 0 };
    OWN_BUF reply = BUF_INIT;
    OWN_BUF out = BUF_INIT;
    OWN(wire_in) w = wire_in_new(NULL, &reply);
    struct wire_header h;
    const char *body;

    wire_append(&out, &(struct wire_header){ .kind = WIRE_EVENT, .length = 2 }, "{}");
    wire_append(&out, &(struct wire_header){ .kind = WIRE_CHALLENGE, .length = 2 }, "{}");
    assert_fails(wire_in_feed(w, out.data, out.n, &reply, &err), ERR_INVALID);
    assert_int_equal(wire_in_next(w, &h, &body), 1);
    assert_string_equal(body, "{}");
    assert_int_equal(wire_in_next(w, &h, &body), 0);
}

static void addresses_are_read_and_refused(void **state)
{
    (void)state;
    struct err err = { 0 };
    char address[80];
    int fd = -1;
    static const char *const bad[] = { "", "localhost", "::1:80", "127.0.0.1:", "127.0.0.1:99x",
                                       "tls:", "tls:localhost", "tls:::1:80", "ssl:127.0.0.1:80" };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_fails(wire_connect(bad[i], token, 100, &fd, &err), ERR_INVALID);
    assert_ok(wire_listen("127.0.0.1:0", &fd, address, sizeof address, &err));
    close(fd);
    assert_fails(wire_connect(address, token, 100, &fd, &err), ERR_IO);
    if (wire_listen("[::1]:0", &fd, address, sizeof address, &err) == 0) {
        int caller = -1;
        assert_memory_equal(address, "[::1]:", 6);
        assert_ok(wire_connect(address, token, 1000, &caller, &err));
        close(caller);
        close(fd);
    }
}

static void tokens_are_long_and_differ(void **state)
{
    (void)state;
    struct err err = { 0 };
    char a[WIRE_TOKEN_TEXT], b[WIRE_TOKEN_TEXT];

    assert_ok(wire_token_new(a, &err));
    assert_ok(wire_token_new(b, &err));
    assert_string_not_equal(a, b);
    assert_ok(wire_token_check(a, &err));
    assert_fails(wire_token_check("short", &err), ERR_INVALID);
    assert_fails(wire_token_check(NULL, &err), ERR_INVALID);
}

CHECK_MAIN(a_header_is_what_it_was, a_wrong_header_is_refused, messages_and_silence_and_a_close,
           nobody_reading_ends_a_send, both_sides_must_know_the_token,
           a_listener_without_the_token_is_found_out, a_loop_may_be_fed_in_any_pieces,
           a_stranger_is_dropped_after_a_bounded_read,
           what_came_before_a_broken_message_is_handed_out, addresses_are_read_and_refused,
           tokens_are_long_and_differ)
