/* runtime/wire.c - messages between coordinator, workers and watchers
 *
 * A header is: magic (4 bytes), version (2), kind (2), generation (8), number (8), length (8).
 */
#include "runtime/wire.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "runtime/tunnel.h"

enum { NONCE = 32, PROOF = SHA256_DIGEST_SIZE, IOV_BATCH = 64 };
enum { BODY_CHUNK = 1 << 20 };  /* memory taken ahead of the bytes of a body */

static const unsigned char magic[4] = { 'm', 'u', 's', 'W' };

static const struct {
    const char *name;
    uint64_t most;
} kinds[WIRE_KINDS_N] = {
#define X(name, most) { #name, (uint64_t)(most) },
    WIRE_KINDS(X)
#undef X
};

const char *wire_kind_name(enum wire_kind kind)
{
    return (unsigned)kind < WIRE_KINDS_N ? kinds[kind].name : "?";
}

/* ------------------------------------------------------------ headers */

static void put(unsigned char *to, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        to[i] = (unsigned char)(v >> 8 * i);
}

static uint64_t get(const unsigned char *from, int bytes)
{
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++)
        v |= (uint64_t)from[i] << 8 * i;
    return v;
}

void wire_pack(const struct wire_header *h, unsigned char out[WIRE_HEADER])
{
    memcpy(out, magic, 4);
    put(out + 4, WIRE_VERSION, 2);
    put(out + 6, (uint64_t)h->kind, 2);
    put(out + 8, h->generation, 8);
    put(out + 16, h->number, 8);
    put(out + 24, h->length, 8);
}

int wire_unpack(const unsigned char in[WIRE_HEADER], struct wire_header *out, struct err *err)
{
    uint64_t version = get(in + 4, 2), kind = get(in + 6, 2), length = get(in + 24, 8);

    if (memcmp(in, magic, 4) != 0)
        return err_set(err, ERR_INVALID, "the other side does not speak muster's protocol");
    if (version != WIRE_VERSION)
        return err_set(err, ERR_INVALID,
                       "the other side speaks version %d of the protocol, this program %d "
                       "(use the same muster everywhere)", (int)version, WIRE_VERSION);
    if (kind >= WIRE_KINDS_N)
        return err_set(err, ERR_INVALID, "a message of the unknown kind %d", (int)kind);
    if (length > kinds[kind].most)
        return err_set(err, ERR_INVALID, "a message %s of %llu bytes, at most %llu are allowed",
                       kinds[kind].name, (unsigned long long)length,
                       (unsigned long long)kinds[kind].most);
    *out = (struct wire_header){ (enum wire_kind)kind, get(in + 8, 8), get(in + 16, 8), length };
    return 0;
}

/* ------------------------------------------------------------ waiting and moving bytes */

static double deadline(int timeout_ms)
{
    return timeout_ms < 0 ? INFINITY : clock_seconds() + 1e-3 * timeout_ms;
}

/* Milliseconds that are left, rounded up, for poll. */
static int left(double until)
{
    if (isinf(until))
        return -1;
    double ms = ceil((until - clock_seconds()) * 1e3);
    return ms <= 0 ? 0 : ms < INT_MAX ? (int)ms : INT_MAX;
}

/* 1: ready; 0: the time is over. Errors of the socket show in the call that follows. */
static int wait_for(int fd, short events, double until)
{
    for (;;) {
        int ms = left(until);
        struct pollfd p = { fd, events, 0 };
        int n = poll(&p, 1, ms);
        if (n > 0)
            return 1;
        if (n == 0 && ms >= 0 && left(until) == 0)
            return 0;
        if (n < 0 && errno != EINTR && errno != EAGAIN)
            return 1;
    }
}

int wire_push(int fd, struct iovec **v, int *n)
{
    while (*n > 0) {
        struct msghdr msg = { .msg_iov = *v,
                              .msg_iovlen = (size_t)(*n < IOV_BATCH ? *n : IOV_BATCH) };
        ssize_t sent = sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
        for (; *n > 0 && (size_t)sent >= (*v)->iov_len; ++*v, --*n)
            sent -= (ssize_t)(*v)->iov_len;
        if (*n > 0) {
            (*v)->iov_base = (char *)(*v)->iov_base + sent;
            (*v)->iov_len -= (size_t)sent;
        }
    }
    return 1;
}

static int send_all(int fd, struct iovec *v, int n, double until, struct err *err)
{
    int rc;

    while ((rc = wire_push(fd, &v, &n)) == 0)
        if (!wait_for(fd, POLLOUT, until))
            return err_set(err, ERR_AGAIN, "the other side takes no bytes");
    return rc < 0 ? err_set(err, ERR_IO, "sending: %s", strerror(errno)) : 0;
}

/* `begun`: bytes of the same message came before. */
static int receive_all(int fd, void *to, size_t n, bool begun, double until, struct err *err)
{
    char *at = to;

    while (n > 0) {
        ssize_t got = recv(fd, at, n, MSG_DONTWAIT);
        if (got > 0) {
            at += got;
            n -= (size_t)got;
            begun = true;
        } else if (got == 0) {
            return err_set(err, ERR_IO, "the other side closed the connection%s",
                           begun ? " in the middle of a message" : "");
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            if (!wait_for(fd, POLLIN, until))
                return begun ? err_set(err, ERR_IO, "the other side stopped half way of a message")
                             : err_set(err, ERR_AGAIN, "the other side is silent");
        } else if (errno != EINTR) {
            return err_set(err, ERR_IO, "receiving: %s", strerror(errno));
        }
    }
    return 0;
}

/* ------------------------------------------------------------ whole messages */

int wire_send(int fd, const struct wire_header *h, const void *body, int timeout_ms,
              struct err *err)
{
    return wire_send_pieces(fd, h, &(struct wire_piece){ body, h->length }, 1, timeout_ms, err);
}

int wire_send_pieces(int fd, const struct wire_header *h, const struct wire_piece *piece, int n,
                     int timeout_ms, struct err *err)
{
    unsigned char head[WIRE_HEADER];
    struct iovec few[8], *v = few;
    OWN_MEM struct iovec *many = NULL;
    size_t sum = 0;

    if (n + 1 > 8) {
        v = many = malloc(sizeof *many * (size_t)(n + 1));
        if (!many)
            return err_set(err, ERR_NOMEM, "no memory for a message of %d pieces", n);
    }
    wire_pack(h, head);
    v[0] = (struct iovec){ head, WIRE_HEADER };
    for (int i = 0; i < n; i++) {
        v[i + 1] = (struct iovec){ (void *)(uintptr_t)piece[i].at, piece[i].n };
        sum += piece[i].n;
    }
    assert(sum == h->length && h->length <= kinds[h->kind].most);
    (void)sum;
    return send_all(fd, v, n + 1, deadline(timeout_ms), err);
}

static int receive_header(int fd, struct wire_header *h, int timeout_ms, struct err *err)
{
    unsigned char head[WIRE_HEADER];
    int rc = receive_all(fd, head, WIRE_HEADER, false, deadline(timeout_ms), err);

    return rc < 0 ? rc : wire_unpack(head, h, err);
}

static int receive_body(int fd, void *to, size_t n, int timeout_ms, struct err *err)
{
    return receive_all(fd, to, n, true, deadline(timeout_ms), err);
}

int wire_receive(int fd, struct wire_header *h, struct buf *body, int timeout_ms, struct err *err)
{
    double until = deadline(timeout_ms);
    struct wire_header got;
    int rc = receive_header(fd, &got, timeout_ms, err);
    if (rc < 0)
        return rc;

    buf_clear(body);
    buf_reserve(body, 0);
    for (uint64_t rest = got.length; rest > 0;) {
        size_t n = rest < BODY_CHUNK ? (size_t)rest : BODY_CHUNK;
        char *to = buf_reserve(body, n);
        if (!to)
            return err_set(err, ERR_NOMEM, "no memory for a message of %llu bytes",
                           (unsigned long long)got.length);
        if ((rc = receive_all(fd, to, n, true, until, err)) < 0)
            return rc;
        body->n += n;
        rest -= n;
    }
    if (body->failed)
        return err_set(err, ERR_NOMEM, "no memory for a message");
    *h = got;
    return 0;
}

void wire_append(struct buf *out, const struct wire_header *h, const void *body)
{
    unsigned char head[WIRE_HEADER];

    assert(h->length <= kinds[h->kind].most);
    wire_pack(h, head);
    buf_append(out, head, WIRE_HEADER);
    buf_append(out, body, (size_t)h->length);
}

/* ------------------------------------------------------------ the challenge */

static int fill_random(void *to, size_t n, struct err *err)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = getrandom((char *)to + done, n - done, 0);
        if (got < 0 && errno != EINTR)
            return err_set(err, ERR_IO, "random numbers: %s", strerror(errno));
        done += got > 0 ? (size_t)got : 0;
    }
    return 0;
}

int wire_token_new(char out[WIRE_TOKEN_TEXT], struct err *err)
{
    unsigned char bytes[(WIRE_TOKEN_TEXT - 1) / 2];
    int rc = fill_random(bytes, sizeof bytes, err);

    if (rc < 0)
        return rc;
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    return 0;
}

int wire_token_check(const char *token, struct err *err)
{
    if (!token || strlen(token) < WIRE_TOKEN_MIN)
        return err_set(err, ERR_INVALID, "the job's token has %d characters, it needs %d or more",
                       token ? (int)strlen(token) : 0, WIRE_TOKEN_MIN);
    return 0;
}

static void prove(const char *token, const char *role, const unsigned char listener[NONCE],
                  const unsigned char caller[NONCE], unsigned char out[PROOF])
{
    struct hmac_sha256_ctx ctx;

    hmac_sha256_set_key(&ctx, strlen(token), (const uint8_t *)token);
    hmac_sha256_update(&ctx, strlen(role), (const uint8_t *)role);
    hmac_sha256_update(&ctx, NONCE, listener);
    hmac_sha256_update(&ctx, NONCE, caller);
    hmac_sha256_digest(&ctx, PROOF, out);
}

static const char as_caller[] = "muster caller", as_listener[] = "muster listener";

/* What a listener thinks of the answer (nonce, proof). ERR_DENIED or its own proof in `out`. */
static int judge(const char *token, const unsigned char nonce[NONCE],
                 const unsigned char answer[NONCE + PROOF], unsigned char out[PROOF],
                 struct err *err)
{
    unsigned char want[PROOF];

    prove(token, as_caller, nonce, answer, want);
    if (!memeql_sec(want, answer + NONCE, PROOF))
        return err_set(err, ERR_DENIED, "the caller's token is not this job's");
    prove(token, as_listener, nonce, answer, out);
    return 0;
}

static const char refusal[] = "the token is not this job's";
static const struct wire_header refusal_header = { .kind = WIRE_REFUSED,
                                                   .length = sizeof refusal - 1 };

/* A CHALLENGE with a body of exactly n bytes. */
static int receive_challenge(int fd, unsigned char *to, size_t n, double until, struct err *err)
{
    struct wire_header h;
    char said[256];
    int rc = receive_header(fd, &h, left(until), err);

    if (rc < 0)
        return rc;
    if (h.kind == WIRE_REFUSED && h.length < sizeof said) {
        if ((rc = receive_body(fd, said, (size_t)h.length, left(until), err)) < 0)
            return rc;
        /* Our own tunnel says what kind of a failure it is. */
        return err_set(err, h.number == ERR_INVALID ? ERR_INVALID : ERR_DENIED, "%.*s",
                       (int)h.length, said);
    }
    if (h.kind != WIRE_CHALLENGE || h.length != n)
        return err_set(err, ERR_INVALID, "a message %s of %llu bytes in place of the challenge",
                       wire_kind_name(h.kind), (unsigned long long)h.length);
    return receive_body(fd, to, n, left(until), err);
}

static int send_challenge(int fd, const void *bytes, size_t n, double until, struct err *err)
{
    return wire_send(fd, &(struct wire_header){ .kind = WIRE_CHALLENGE, .length = n }, bytes,
                     left(until), err);
}

int wire_prove(int fd, const char *token, int timeout_ms, struct err *err)
{
    double until = deadline(timeout_ms);
    unsigned char nonce[NONCE], answer[NONCE + PROOF], want[PROOF], got[PROOF];
    int rc;

    if ((rc = receive_challenge(fd, nonce, NONCE, until, err)) < 0 ||
        (rc = fill_random(answer, NONCE, err)) < 0)
        return rc;
    prove(token, as_caller, nonce, answer, answer + NONCE);
    if ((rc = send_challenge(fd, answer, sizeof answer, until, err)) < 0 ||
        (rc = receive_challenge(fd, got, PROOF, until, err)) < 0)
        return rc;
    prove(token, as_listener, nonce, answer, want);
    if (!memeql_sec(want, got, PROOF))
        return err_set(err, ERR_DENIED, "the listener's token is not this job's");
    return 0;
}

int wire_check(int fd, const char *token, int timeout_ms, struct err *err)
{
    double until = deadline(timeout_ms);
    unsigned char nonce[NONCE], answer[NONCE + PROOF], proof[PROOF];
    int rc;

    if ((rc = fill_random(nonce, NONCE, err)) < 0 ||
        (rc = send_challenge(fd, nonce, NONCE, until, err)) < 0 ||
        (rc = receive_challenge(fd, answer, sizeof answer, until, err)) < 0)
        return rc;
    if ((rc = judge(token, nonce, answer, proof, err)) < 0) {
        struct err quiet;
        wire_send(fd, &refusal_header, refusal, left(until), &quiet);
        return rc;
    }
    return send_challenge(fd, proof, PROOF, until, err);
}

/* ------------------------------------------------------------ sockets */

static const char *without_tls(const char *address)
{
    return address + (wire_is_tls(address) ? strlen(WIRE_TLS) : 0);
}

/* "[v6]:PORT" or "HOST:PORT" to what getaddrinfo takes; NULL: cannot be. */
static struct addrinfo *look_up(const char *address, bool listen, struct err *err)
{
    char host[256];
    const char *from = without_tls(address), *colon = strrchr(from, ':'), *to = colon;
    struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM,
                              .ai_flags = AI_NUMERICSERV | (listen ? AI_PASSIVE : 0) };
    struct addrinfo *list = NULL;

    if (colon && *from == '[' && colon > from + 1 && colon[-1] == ']')
        from++, to--;
    else if (colon && memchr(from, ':', (size_t)(colon - from)))
        colon = NULL;           /* v6 needs its brackets */
    if (!colon || !colon[1] || (size_t)(to - from) >= sizeof host) {
        err_set(err, ERR_INVALID, "\"%.100s\" is no address (HOST:PORT or [V6]:PORT, "
                "with tls: before it for TLS)", address);
        return NULL;
    }
    memcpy(host, from, (size_t)(to - from));
    host[to - from] = '\0';
    int rc = getaddrinfo(host[0] ? host : NULL, colon + 1, &hints, &list);
    if (rc != 0) {
        err_set(err, rc == EAI_AGAIN ? ERR_AGAIN : ERR_INVALID, "address \"%.100s\": %s", address,
                gai_strerror(rc));
        return NULL;
    }
    return list;
}

static void no_delay(int fd)
{
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/* Connects within the time; the socket blocks afterwards (every call here polls anyway). */
static int connect_one(const struct addrinfo *a, double until, int *out_fd)
{
    OWN_FD int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int why = 0;
    socklen_t size = sizeof why;

    if (fd < 0)
        return errno;
    if (connect(fd, a->ai_addr, a->ai_addrlen) < 0) {
        if (errno != EINPROGRESS && errno != EINTR)
            return errno;
        if (!wait_for(fd, POLLOUT, until))
            return ETIMEDOUT;
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &size) < 0)
            return errno;
        if (why)
            return why;
    }
    if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) < 0)
        return errno;
    no_delay(fd);
    *out_fd = fd;
    fd = -1;
    return 0;
}

int wire_connect(const char *address, const char *token, int timeout_ms, int *out_fd,
                 struct err *err)
{
    const bool tls = wire_is_tls(address);
    double until = deadline(timeout_ms);
    int why = EADDRNOTAVAIL, fd = -1;

    if (tls && tunnel_load(err) < 0)
        return -(int)err->code;
    struct addrinfo *list = look_up(address, false, err);
    if (!list)
        return -(int)err->code;
    for (const struct addrinfo *a = list; a && why; a = a->ai_next)
        why = connect_one(a, until, &fd);
    freeaddrinfo(list);
    if (!why && tls && (fd = tunnel_open(fd, token, true)) < 0)
        why = errno;
    if (!why)
        *out_fd = fd;
    return why ? err_set(err, why == ETIMEDOUT ? ERR_AGAIN : ERR_IO, "calling %.100s: %s", address,
                         strerror(why))
               : 0;
}

static int listen_one(const struct addrinfo *a, int *out_fd)
{
    OWN_FD int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int on = 1;

    if (fd < 0)
        return errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, a->ai_addr, a->ai_addrlen) < 0 || listen(fd, SOMAXCONN) < 0)
        return errno;
    *out_fd = fd;
    fd = -1;
    return 0;
}

int wire_name(const struct sockaddr_storage *at, char *out, size_t size)
{
    char host[NI_MAXHOST], port[NI_MAXSERV];

    if (getnameinfo((const struct sockaddr *)at, sizeof *at, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return -1;
    int len = snprintf(out, size, at->ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
    return len > 0 && (size_t)len < size ? 0 : -1;
}

static int name_of(int fd, char *out, size_t size)
{
    struct sockaddr_storage at = { 0 };
    socklen_t n = sizeof at;

    return getsockname(fd, (struct sockaddr *)&at, &n) < 0 ? -1 : wire_name(&at, out, size);
}

int wire_here(int fd, char *out, size_t size, struct err *err)
{
    struct sockaddr_storage at = { 0 };
    socklen_t n = sizeof at;
    char name[NI_MAXHOST + NI_MAXSERV];
    bool known = getsockname(fd, (struct sockaddr *)&at, &n) == 0, tls = false;

    if (known && at.ss_family == AF_UNIX)
        known = tls = tunnel_name(fd, &at) == 0;
    if (!known || wire_name(&at, name, sizeof name) < 0)
        return err_set(err, ERR_IO, "this host's own address is unknown (give --listen)");
    *strrchr(name, ':') = '\0';
    snprintf(out, size, "%s%s:0", tls ? WIRE_TLS : "", name);
    return 0;
}

int wire_listen(const char *address, int *out_fd, char *out_address, size_t size, struct err *err)
{
    const size_t prefix = wire_is_tls(address) ? strlen(WIRE_TLS) : 0;
    OWN_FD int fd = -1;
    int why = EADDRNOTAVAIL;

    if (prefix && tunnel_load(err) < 0)
        return -(int)err->code;
    struct addrinfo *list = look_up(address, true, err);

    if (!list)
        return -(int)err->code;
    for (const struct addrinfo *a = list; a && why; a = a->ai_next)
        why = listen_one(a, &fd);
    freeaddrinfo(list);
    if (why)
        return err_set(err, why == EADDRINUSE ? ERR_CONFLICT : ERR_IO, "listening on %.100s: %s",
                       address, strerror(why));
    if (size <= prefix || name_of(fd, out_address + prefix, size - prefix) < 0)
        return err_set(err, ERR_IO, "listening on %.100s: the address has no name", address);
    memcpy(out_address, WIRE_TLS, prefix);
    *out_fd = fd;
    fd = -1;
    return 0;
}

bool wire_is_tls(const char *address)
{
    return strncmp(address, WIRE_TLS, strlen(WIRE_TLS)) == 0;
}

bool wire_is_any(const char *address)
{
    address = without_tls(address);
    return strncmp(address, "0.0.0.0:", 8) == 0 || strncmp(address, "[::]:", 5) == 0;
}

int wire_accept(int listener, const char *address, const char *token)
{
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

    if (fd < 0)
        return -1;
    no_delay(fd);
    return wire_is_tls(address) ? tunnel_open(fd, token, false) : fd;
}

/* ------------------------------------------------------------ for a loop */

struct wire_in {
    char *token;                /* NULL: proved */
    unsigned char nonce[NONCE];
    struct buf in;              /* from the first message that was not handed out */
    size_t used;                /* bytes of it that were handed out */
    size_t seen;                /* where the first message begins whose header was not looked at */
    struct buf body;            /* the message that was handed out last */
    bool broken;
};

struct wire_in *wire_in_new(const char *token, struct buf *reply)
{
    struct wire_in *w = calloc(1, sizeof *w);
    struct err err;

    if (!w || !token)
        return w;
    w->token = strdup(token);
    if (!w->token || fill_random(w->nonce, NONCE, &err) < 0) {
        wire_in_free(w);
        return NULL;
    }
    wire_append(reply, &(struct wire_header){ .kind = WIRE_CHALLENGE, .length = NONCE }, w->nonce);
    return w;
}

void wire_in_free(struct wire_in *w)
{
    if (!w)
        return;
    if (w->token)
        explicit_bzero(w->token, strlen(w->token));
    free(w->token);
    buf_done(&w->in);
    buf_done(&w->body);
    free(w);
}

bool wire_in_proved(const struct wire_in *w)
{
    return !w->token;
}

/* Looks at what a stranger has sent so far: never more than WIRE_HELLO_BYTES. */
static int take_proof(struct wire_in *w, struct buf *reply, struct err *err)
{
    const unsigned char *in = (const unsigned char *)w->in.data;
    unsigned char proof[PROOF];
    struct wire_header h;
    int rc;

    if (w->in.n < WIRE_HEADER)
        return 0;
    if ((rc = wire_unpack(in, &h, err)) < 0)
        return rc;
    if (h.kind != WIRE_CHALLENGE || h.length != NONCE + PROOF)
        return err_set(err, ERR_DENIED, "a message %s of %llu bytes in place of a proof",
                       wire_kind_name(h.kind), (unsigned long long)h.length);
    if (w->in.n < WIRE_HELLO_BYTES)
        return 0;
    if ((rc = judge(w->token, w->nonce, in + WIRE_HEADER, proof, err)) < 0) {
        wire_append(reply, &refusal_header, refusal);
        return rc;
    }
    wire_append(reply, &(struct wire_header){ .kind = WIRE_CHALLENGE, .length = PROOF }, proof);
    explicit_bzero(w->token, strlen(w->token));
    free(w->token);
    w->token = NULL;
    buf_clear(&w->in);
    return 0;
}

/* Every header that has come is looked at, so that wire_in_next cannot fail. */
static int look_at_headers(struct wire_in *w, struct err *err)
{
    struct wire_header h;

    while (w->in.n >= w->seen + WIRE_HEADER) {
        int rc = wire_unpack((const unsigned char *)w->in.data + w->seen, &h, err);
        if (rc < 0)
            return rc;
        if (h.kind == WIRE_CHALLENGE)
            return err_set(err, ERR_INVALID, "a second challenge");
        w->seen += WIRE_HEADER + (size_t)h.length;
    }
    return 0;
}

static int take(struct wire_in *w, const void *bytes, size_t n, struct buf *reply, struct err *err)
{
    bool proved = wire_in_proved(w);

    /* A caller waits for the listener's proof before it goes on: more is not from one of ours. */
    if (!proved && n > WIRE_HELLO_BYTES - w->in.n)
        return err_set(err, ERR_DENIED, "bytes from a stranger");
    if (w->used) {
        memmove(w->in.data, w->in.data + w->used, w->in.n - w->used);
        w->in.n -= w->used;
        w->seen -= w->used;
        w->used = 0;
    }
    buf_append(&w->in, bytes, n);
    if (w->in.failed)
        return err_set(err, ERR_NOMEM, "no memory for what a peer sent");
    return proved ? look_at_headers(w, err) : take_proof(w, reply, err);
}

int wire_in_feed(struct wire_in *w, const void *bytes, size_t n, struct buf *reply,
                 struct err *err)
{
    int rc = w->broken ? err_set(err, ERR_INVALID, "the connection has failed before")
                       : take(w, bytes, n, reply, err);

    w->broken |= rc < 0;
    return rc;
}

int wire_in_next(struct wire_in *w, struct wire_header *h, const char **out_body)
{
    struct err err;

    if (w->used >= w->seen)
        return 0;
    const unsigned char *at = (const unsigned char *)w->in.data + w->used;
    if (wire_unpack(at, h, &err) < 0 || w->in.n - w->used - WIRE_HEADER < h->length)
        return 0;
    buf_clear(&w->body);
    buf_append(&w->body, at + WIRE_HEADER, (size_t)h->length);
    if (!w->body.data)
        buf_reserve(&w->body, 0);
    if (w->body.failed) {       /* try again when there is memory */
        buf_clear(&w->body);
        return 0;
    }
    w->used += WIRE_HEADER + (size_t)h->length;
    *out_body = w->body.data;
    return 1;
}
