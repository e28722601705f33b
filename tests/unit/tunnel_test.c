#include "runtime/tunnel.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "runtime/wire.h"
#include "tests/check.h"

static const char token[] = "0123456789abcdef0123456789abcdef";
static const char other[] = "0123456789abcdef0123456789abcdeF";

enum { MS = 60000 };            /* nobody waits so long on a machine that works */

/* A listener that uses TLS, or not. */
static int listener(const char *address, char *out, size_t size)
{
    struct err err = { 0 };
    int fd = -1;

    if (tunnel_load(&err) < 0) {
        print_message("%s\n", err.text);
        skip();
    }
    assert_ok(wire_listen(address, &fd, out, size, &err));
    return fd;
}

/* The next caller of a listener that does not block. */
static int accepted(int listener, const char *address, const char *secret)
{
    struct pollfd p = { listener, POLLIN, 0 };

    assert_int_equal(poll(&p, 1, MS), 1);
    int fd = wire_accept(listener, address, secret);
    assert_true(fd >= 0);
    return fd;
}

static void pair_of(int fd[2])
{
    struct err err = { 0 };
    char address[80];
    int door = listener("tls:127.0.0.1:0", address, sizeof address);

    assert_ok(wire_connect(address, token, MS, &fd[0], &err));
    fd[1] = accepted(door, address, token);
    close(door);
}

static void close_pair(int fd[2])
{
    close(fd[0]);
    close(fd[1]);
}

struct side {
    pthread_t thread;
    int fd, rc;
    const char *token;
    struct err err;
};

static void *prove(void *arg)
{
    struct side *s = arg;
    s->rc = wire_prove(s->fd, s->token, MS, &s->err);
    return NULL;
}

/* Bytes until the end, or `most`. */
static size_t take(int fd, char *to, size_t most)
{
    size_t n = 0;

    for (ssize_t got; n < most; n += (size_t)got) {
        struct pollfd p = { fd, POLLIN, 0 };
        assert_int_equal(poll(&p, 1, MS), 1);
        got = recv(fd, to + n, most - n, 0);
        assert_true(got >= 0 || errno == ECONNRESET);
        if (got <= 0)
            break;
    }
    return n;
}

static void give(int fd, const char *from, size_t n)
{
    for (ssize_t sent; n > 0; n -= (size_t)sent, from += sent) {
        sent = send(fd, from, n, MSG_NOSIGNAL);
        assert_true(sent > 0);
    }
}

/* ------------------------------------------------------------ what goes through */

static void both_sides_prove_the_token_inside_it(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct wire_header h = { .kind = WIRE_HELLO, .number = 7, .length = 5 };
    OWN_BUF body = BUF_INIT;
    char here[80];
    int fd[2];

    pair_of(fd);
    assert_ok(wire_here(fd[0], here, sizeof here, &err));
    assert_string_equal(here, "tls:127.0.0.1:0");
    struct side caller = { .fd = fd[0], .token = token };
    pthread_create(&caller.thread, NULL, prove, &caller);
    assert_ok(wire_check(fd[1], token, MS, &err));
    pthread_join(caller.thread, NULL);
    assert_int_equal(caller.rc, 0);
    for (int i = 0; i < 2; i++) {
        assert_ok(wire_send(fd[i], &h, "hello", MS, &err));
        assert_ok(wire_receive(fd[1 - i], &h, &body, MS, &err));
        assert_string_equal(body.data, "hello");
    }
    close_pair(fd);
}

enum { LARGE = 24 << 20 };

struct sender {
    pthread_t thread;
    int fd;
    const char *bytes;
};

static void *send_large(void *arg)
{
    struct sender *s = arg;
    give(s->fd, s->bytes, LARGE);
    return NULL;
}

static void much_goes_both_ways_at_once(void **state)
{
    (void)state;
    struct sender s[2];
    char *bytes = malloc(2 * LARGE), *got = malloc(LARGE);
    uint32_t x = 1;
    int fd[2];

    assert_true(bytes && got);
    for (int i = 0; i < 2 * LARGE; i++)
        bytes[i] = (char)((x = x * 1664525 + 1013904223) >> 24);
    pair_of(fd);
    for (int i = 0; i < 2; i++) {
        s[i] = (struct sender){ .fd = fd[i], .bytes = bytes + i * LARGE };
        pthread_create(&s[i].thread, NULL, send_large, &s[i]);
    }
    for (int i = 0; i < 2; i++) {       /* the second direction waits while the first is read */
        assert_int_equal(take(fd[1 - i], got, LARGE), LARGE);
        assert_memory_equal(got, bytes + i * LARGE, LARGE);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(s[i].thread, NULL);
    close_pair(fd);
    free(bytes);
    free(got);
}

static void who_sends_too_fast_has_to_wait(void **state)
{
    (void)state;
    static char chunk[1 << 16];
    size_t sent = 0, got = 0;
    int fd[2];

    pair_of(fd);
    for (;;) {
        struct pollfd p = { fd[0], POLLOUT, 0 };
        if (poll(&p, 1, 500) == 0)
            break;
        ssize_t n = send(fd[0], chunk, sizeof chunk, MSG_NOSIGNAL | MSG_DONTWAIT);
        sent += n > 0 ? (size_t)n : 0;
        assert_true(sent < 200 << 20);  /* the kernel's own buffers are some MiB */
    }
    shutdown(fd[0], SHUT_WR);
    for (size_t n; (n = take(fd[1], chunk, sizeof chunk)) > 0;)
        got += n;
    assert_int_equal(got, sent);
    close_pair(fd);
}

/* ------------------------------------------------------------ ends */

static void what_was_sent_comes_before_the_end(void **state)
{
    (void)state;
    static char bytes[1 << 17], got[1 << 18];

    memset(bytes, 'x', sizeof bytes);
    for (int from = 0; from < 2; from++) {
        int fd[2];
        pair_of(fd);
        give(fd[1 - from], "x", 1);     /* it is up */
        assert_int_equal(take(fd[from], got, 1), 1);
        give(fd[from], bytes, sizeof bytes);
        close(fd[from]);
        assert_int_equal(take(fd[1 - from], got, sizeof got), sizeof bytes);
        assert_memory_equal(got, bytes, sizeof bytes);
        close(fd[1 - from]);
    }
}

static void one_direction_may_end_before_the_other(void **state)
{
    (void)state;
    char got[64];

    for (int from = 0; from < 2; from++) {
        int fd[2];
        pair_of(fd);
        give(fd[from], "question", 8);
        shutdown(fd[from], SHUT_WR);
        assert_int_equal(take(fd[1 - from], got, sizeof got), 8);
        give(fd[1 - from], "and its answer", 14);
        close(fd[1 - from]);
        assert_int_equal(take(fd[from], got, sizeof got), 14);
        close(fd[from]);
    }
}

static void an_end_that_is_cut_is_an_end_for_both(void **state)
{
    (void)state;
    char got[64];
    int fd[2];

    pair_of(fd);
    give(fd[1], "x", 1);
    assert_int_equal(take(fd[0], got, 1), 1);
    shutdown(fd[0], SHUT_RDWR);
    assert_int_equal(take(fd[0], got, sizeof got), 0);
    assert_int_equal(take(fd[1], got, sizeof got), 0);
    close_pair(fd);
    tunnel_drain(MS);           /* nothing of it is left behind */
}

/* ------------------------------------------------------------ who is not let in */

static void without_the_token_there_is_no_way_in(void **state)
{
    (void)state;
    const struct {
        const char *caller, *listener;
    } c[] = { { other, token }, { token, other } };

    for (int i = 0; i < 2; i++) {
        struct err err = { 0 };
        char address[80], got[64];
        int fd = -1, door = listener("tls:127.0.0.1:0", address, sizeof address);
        assert_ok(wire_connect(address, c[i].caller, MS, &fd, &err));
        int in = accepted(door, address, c[i].listener);
        assert_fails(wire_prove(fd, c[i].caller, MS, &err), ERR_DENIED);
        assert_string_equal(err.text, "the token is not this job's");
        assert_int_equal(take(in, got, sizeof got), 0);
        assert_int_equal(take(fd, got, sizeof got), 0);
        close(fd);
        close(in);
        close(door);
    }
}

/* A TCP connection to a listener that uses TLS, by one who does not. */
static int raw(const char *address)
{
    struct err err = { 0 };
    int fd = -1;

    assert_ok(wire_connect(address + strlen(WIRE_TLS), token, MS, &fd, &err));
    return fd;
}

static void garbage_is_dropped_after_a_bounded_read(void **state)
{
    (void)state;
    static char garbage[1 << 20], waste[1 << 16];
    char address[80];
    int door = listener("tls:127.0.0.1:0", address, sizeof address);
    static const char *const begins[] = { "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "musW",
                                          "\x16\x03\x01\x0f\xff\x01", "\x17\x03\x03\x40\x00", "" };

    memset(garbage, 'g', sizeof garbage);
    for (size_t i = 0; i < sizeof begins / sizeof begins[0]; i++) {
        int fd = raw(address), in = accepted(door, address, token);
        memcpy(garbage, begins[i], strlen(begins[i]));
        ssize_t sent = send(fd, garbage, sizeof garbage, MSG_NOSIGNAL | MSG_DONTWAIT);
        assert_true(sent > 0 || errno == ECONNRESET || errno == EPIPE);
        assert_int_equal(take(in, waste, sizeof waste), 0);
        assert_true(take(fd, waste, sizeof waste) < 100);       /* an alert at most */
        close(fd);
        close(in);
    }
    close(door);
}

static void who_calls_without_tls_is_told_of_it(void **state)
{
    (void)state;
    struct err err = { 0 };
    char address[80], want[200], waste[64];
    int door = listener("tls:127.0.0.1:0", address, sizeof address);
    int fd = raw(address), in = accepted(door, address, token);

    assert_fails(wire_prove(fd, token, MS, &err), ERR_DENIED);
    snprintf(want, sizeof want, "%s uses TLS alone (call it as %s)", address + 4, address);
    assert_string_equal(err.text, want);
    assert_int_equal(take(in, waste, sizeof waste), 0);
    close(fd);
    close(in);
    close(door);
}

static void who_calls_a_plain_listener_by_tls_is_told_of_it(void **state)
{
    (void)state;
    struct err err = { 0 };
    char plain[80], address[84], want[200];
    int fd = -1, door = listener("127.0.0.1:0", plain, sizeof plain);
    char nonce[32] = { 0 };
    struct wire_header h = { .kind = WIRE_CHALLENGE, .length = sizeof nonce };

    snprintf(address, sizeof address, "tls:%s", plain);
    assert_ok(wire_connect(address, token, MS, &fd, &err));
    int in = accepted(door, plain, token);
    unsigned char head[WIRE_HEADER];
    wire_pack(&h, head);
    give(in, (char *)head, 5);          /* it may come in pieces */
    poll(NULL, 0, 20);
    give(in, (char *)head + 5, WIRE_HEADER - 5);
    give(in, nonce, sizeof nonce);
    assert_fails(wire_prove(fd, token, MS, &err), ERR_INVALID);
    snprintf(want, sizeof want, "%s does not use TLS (it is another's, or its job was started "
             "without --tls: then call it without tls:)", plain);
    assert_string_equal(err.text, want);
    close(fd);
    close(in);
    close(door);
}

static void a_crowd_that_says_nothing_keeps_nobody_out(void **state)
{
    (void)state;
    enum { CROWD = 200 };
    struct err err = { 0 };
    char address[80], got[8];
    int door = listener("tls:127.0.0.1:0", address, sizeof address);
    int fd[CROWD], in[CROWD], ours = -1;

    for (int i = 0; i < CROWD; i++) {
        fd[i] = raw(address);
        in[i] = accepted(door, address, token);
    }
    assert_ok(wire_connect(address, token, MS, &ours, &err));
    int theirs = accepted(door, address, token);
    give(ours, "in", 2);
    assert_int_equal(take(theirs, got, 2), 2);
    for (int i = 0; i < CROWD; i++) {   /* those who came first were dropped, the rest have had */
        assert_int_equal(take(in[i], got, sizeof got), 0);      /* their time */
        close(fd[i]);
        close(in[i]);
    }
    give(theirs, "on", 2);
    assert_int_equal(take(ours, got, 2), 2);
    close(ours);
    close(theirs);
    close(door);
}

/* ------------------------------------------------------------ on the wire */

/* Passes on what comes, and keeps it; from `harm` bytes on (0: never) it changes one. */
struct relay {
    int from, to;
    size_t harm;
    pthread_t thread;
    struct buf seen;
};

static void *pass_on(void *arg)
{
    struct relay *r = arg;
    char bytes[4096];
    ssize_t n;

    while ((n = recv(r->from, bytes, sizeof bytes, 0)) > 0) {
        if (r->harm && r->seen.n >= r->harm)
            bytes[n - 1] ^= 1;
        buf_append(&r->seen, bytes, (size_t)n);
        if (send(r->to, bytes, (size_t)n, MSG_NOSIGNAL) != n)
            break;
    }
    shutdown(r->to, SHUT_WR);
    return NULL;
}

static bool holds(const struct buf *b, const char *text)
{
    return memmem(b->data, b->n, text, strlen(text)) != NULL;
}

/* A caller, a listener, and somebody between the two. */
static void wiretap(const char *prefix, size_t harm, int fd[2], struct relay r[2])
{
    struct err err = { 0 };
    char address[80], middle[80], to[84], want[84];
    int mid = listener("127.0.0.1:0", middle, sizeof middle), raw_to = -1;

    snprintf(want, sizeof want, "%s127.0.0.1:0", prefix);
    int door = listener(want, address, sizeof address);
    snprintf(to, sizeof to, "%s%s", prefix, middle);
    assert_ok(wire_connect(to, token, MS, &fd[0], &err));
    int raw_from = accepted(mid, middle, token);
    assert_ok(wire_connect(address + strlen(prefix), token, MS, &raw_to, &err));
    fd[1] = accepted(door, address, token);
    r[0] = (struct relay){ .from = raw_from, .to = raw_to, .harm = harm, .seen = BUF_INIT };
    r[1] = (struct relay){ .from = raw_to, .to = raw_from, .seen = BUF_INIT };
    for (int i = 0; i < 2; i++)
        pthread_create(&r[i].thread, NULL, pass_on, &r[i]);
    close(mid);
    close(door);
}

static void wiretap_end(struct relay r[2])
{
    for (int i = 0; i < 2; i++)
        pthread_join(r[i].thread, NULL);
    for (int i = 0; i < 2; i++) {
        close(r[i].from);
        buf_done(&r[i].seen);
    }
}

static void one_who_listens_on_the_wire_learns_nothing(void **state)
{
    (void)state;
    static const char hello[] = "{\"role\":\"worker\"}";
    struct wire_header h = { .kind = WIRE_HELLO, .length = sizeof hello - 1 };

    for (int tls = 0; tls < 2; tls++) {
        struct err err = { 0 };
        OWN_BUF body = BUF_INIT;
        struct relay r[2];
        int fd[2];
        wiretap(tls ? WIRE_TLS : "", 0, fd, r);
        struct side caller = { .fd = fd[0], .token = token };
        pthread_create(&caller.thread, NULL, prove, &caller);
        assert_ok(wire_check(fd[1], token, MS, &err));
        pthread_join(caller.thread, NULL);
        assert_ok(wire_send(fd[0], &h, hello, MS, &err));
        assert_ok(wire_receive(fd[1], &h, &body, MS, &err));
        assert_string_equal(body.data, hello);
        close_pair(fd);
        for (int i = 0; i < 2; i++)
            pthread_join(r[i].thread, NULL);
        for (int i = 0; i < 2; i++) {
            assert_true(r[i].seen.n > 64);
            assert_false(holds(&r[i].seen, token));
            assert_int_equal(holds(&r[i].seen, "musW"), !tls);
            close(r[i].from);
        }
        assert_int_equal(holds(&r[0].seen, hello), !tls);
        for (int i = 0; i < 2; i++)
            buf_done(&r[i].seen);
    }
}

static void what_was_changed_on_the_way_does_not_arrive(void **state)
{
    (void)state;
    static char bytes[40000], got[80000];
    struct relay r[2];
    int fd[2];

    memset(bytes, 'x', sizeof bytes);
    wiretap(WIRE_TLS, 8192, fd, r);
    give(fd[0], bytes, sizeof bytes);
    size_t n = take(fd[1], got, sizeof got);
    assert_true(n < sizeof bytes);
    assert_memory_equal(got, bytes, n);
    close_pair(fd);
    wiretap_end(r);
}

CHECK_MAIN(both_sides_prove_the_token_inside_it, much_goes_both_ways_at_once,
           who_sends_too_fast_has_to_wait, what_was_sent_comes_before_the_end,
           one_direction_may_end_before_the_other, an_end_that_is_cut_is_an_end_for_both,
           without_the_token_there_is_no_way_in, garbage_is_dropped_after_a_bounded_read,
           who_calls_without_tls_is_told_of_it, who_calls_a_plain_listener_by_tls_is_told_of_it,
           a_crowd_that_says_nothing_keeps_nobody_out, one_who_listens_on_the_wire_learns_nothing,
           what_was_changed_on_the_way_does_not_arrive)
