/* runtime/tunnel.c - TLS 1.3 for code that speaks through file descriptors
 *
 * DESIGN. GnuTLS sees no socket: it pulls what has come from `cipher_in` and pushes what is to go
 * to `cipher_out`. Outward, at most BULK bytes are taken from the owner's end when `cipher_out` is
 * empty, so that they fit as records; inward, records are opened when `clear` is empty. What cannot
 * go on waits in poll for the one event that lets it.
 *
 * Threads: `pump.lock` guards the list of tunnels, their `end` and `name`, and the descriptors'
 * closing; all else of a tunnel belongs to the pump's thread once it is on the list.
 */
#include "runtime/tunnel.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nettle/hmac.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/tls.h"
#include "runtime/wire.h"

enum {
    RECORD = 16384,             /* the most that one carries */
    BULK = 8 * RECORD,          /* more, and what is urgent waits for what is not; less, and half
                                   of the time is wake-ups */
    CIPHER = BULK + 4096,       /* BULK as records, and a few small ones */
    SHAKE_BYTES = 4096,         /* that a stranger may send; a greeting of ours has some 400 */
    SHAKERS = 128,
    SHAKES_A_ROUND = 4,         /* each is some 0.3 ms of computing, for which others wait */
    ROUNDS = 4,                 /* BULKs of one tunnel before it is the next one's turn */
    TUNNELS = 1024,
    KEY = SHA256_DIGEST_SIZE,
};
static const double SHAKE_SECONDS = 5;
static const double SILENT_SECONDS = 1;         /* the silent may wait for a challenge */
static const double LINGER_SECONDS = 10;        /* for the other side to take what was sent last */
static const int EXIT_MS = 2000;

/* Ciphers of SHA-256 alone: that is the hash of an external key. No key without an exchange.
 * Signatures, which nobody makes, are there because GnuTLS wants some. */
static const char PRIORITY[] = "NONE:+VERS-TLS1.3:+AEAD:+AES-128-GCM:+CHACHA20-POLY1305:+ECDHE-PSK:"
                               "+GROUP-X25519:+GROUP-SECP256R1:+SIGN-ALL";
static const char IDENTITY[] = "muster";

struct room {
    char *at;
    size_t from, to, cap;
};

struct tunnel {
    struct tunnel *next;        /* newest first */
    int end;                    /* the owner's number of its end, when it was given */
    struct sockaddr_storage name;
    int plain, tcp;
    gnutls_session_t session;
    unsigned char key[KEY];     /* zeros when it is not needed any more */
    bool calls;
    bool looked;                /* one who calls: it is no plain listener that answers */
    bool up;                    /* the key was shown */
    bool in_over;               /* nothing more comes, and the owner has been told */
    bool out_over;              /* the owner sends nothing more; the last record is made */
    bool shut;                  /* TCP has been told */
    bool gone;                  /* the owner's end is closed */
    bool more;                  /* there is something to do without an event */
    bool over;
    double since;               /* it came; then, the owner is gone */
    size_t heard;               /* bytes before it was up */
    struct room cipher_in, cipher_out, clear;
};

static struct {
    pthread_mutex_t lock;
    pid_t pid;                  /* of the process that has the thread */
    pthread_t thread;
    int wake;                   /* an eventfd */
    bool stop;
    struct tunnel *all;
    int n;
} pump = { .lock = PTHREAD_MUTEX_INITIALIZER };

static const struct tls_calls *tls;
static gnutls_priority_t priority;
static gnutls_psk_server_credentials_t listeners;
static gnutls_psk_client_credentials_t callers;

/* ------------------------------------------------------------ room for bytes */

static size_t room_held(const struct room *r)
{
    return r->to - r->from;
}

static int room_grow(struct room *r, size_t cap)
{
    char *at = realloc(r->at, cap);

    if (!at)
        return -1;
    r->at = at;
    r->cap = cap;
    return 0;
}

/* Space at the end, after what is held has been moved to the front. */
static size_t room_space(struct room *r)
{
    if (r->from) {
        memmove(r->at, r->at + r->from, room_held(r));
        r->to -= r->from;
        r->from = 0;
    }
    return r->cap - r->to;
}

/* ------------------------------------------------------------ what GnuTLS calls */

static ssize_t push(gnutls_transport_ptr_t arg, const void *bytes, size_t n)
{
    struct tunnel *t = arg;

    if (room_space(&t->cipher_out) < n) {
        tls->transport_set_errno(t->session, EAGAIN);
        return -1;
    }
    memcpy(t->cipher_out.at + t->cipher_out.to, bytes, n);
    t->cipher_out.to += n;
    return (ssize_t)n;
}

static ssize_t pull(gnutls_transport_ptr_t arg, void *to, size_t n)
{
    struct tunnel *t = arg;
    size_t held = room_held(&t->cipher_in);

    if (held == 0 || (t->calls && !t->looked)) {
        tls->transport_set_errno(t->session, EAGAIN);
        return -1;
    }
    n = n < held ? n : held;
    memcpy(to, t->cipher_in.at + t->cipher_in.from, n);
    t->cipher_in.from += n;
    return (ssize_t)n;
}

static int pull_ready(gnutls_transport_ptr_t arg, unsigned ms)
{
    const struct tunnel *t = arg;

    (void)ms;
    return room_held(&t->cipher_in) > 0;
}

/* A copy that GnuTLS frees. */
static int give(gnutls_datum_t *out, const void *bytes, size_t n)
{
    out->data = tls->malloc(n);
    if (!out->data)
        return -1;
    memcpy(out->data, bytes, n);
    out->size = (unsigned)n;
    return 0;
}

static int listeners_key(gnutls_session_t s, const gnutls_datum_t *name, gnutls_datum_t *key)
{
    const struct tunnel *t = tls->session_get_ptr(s);

    if (name->size != sizeof IDENTITY - 1 || memcmp(name->data, IDENTITY, name->size) != 0)
        return -1;
    return give(key, t->key, KEY);
}

static int callers_key(gnutls_session_t s, gnutls_datum_t *name, gnutls_datum_t *key)
{
    const struct tunnel *t = tls->session_get_ptr(s);

    return give(name, IDENTITY, sizeof IDENTITY - 1) < 0 ? -1 : give(key, t->key, KEY);
}

int tunnel_load(struct err *err)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool loaded;
    int rc = 0;

    pthread_mutex_lock(&lock);
    if (!loaded && (rc = tls_load("a tls: address", &tls, err)) == 0) {
        if (tls->priority_init(&priority, PRIORITY, NULL) < 0)
            rc = err_set(err, ERR_MISSING, "the GnuTLS of this machine lacks TLS 1.3 with a "
                         "pre-shared key (install 3.7 or newer)");
        else if (tls->psk_allocate_server_credentials(&listeners) < 0 ||
                 tls->psk_allocate_client_credentials(&callers) < 0)
            rc = err_set(err, ERR_NOMEM, "no memory for TLS");
        if (rc == 0) {
            tls->psk_set_server_credentials_function2(listeners, listeners_key);
            tls->psk_set_client_credentials_function2(callers, callers_key);
            loaded = true;
        }
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

/* ------------------------------------------------------------ moving bytes */

/* To TCP. 1: nothing is left; 0: it takes no more now; -1: it takes nothing any more. */
static int flush(struct tunnel *t)
{
    struct room *r = &t->cipher_out;

    while (room_held(r)) {
        ssize_t n = send(t->tcp, r->at + r->from, room_held(r), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
        r->from += (size_t)n;
    }
    return 1;
}

/* From TCP, n bytes at most. 1: some; 0: none now; -1: none any more. */
static int fill(struct tunnel *t, size_t n)
{
    struct room *r = &t->cipher_in;
    size_t space = room_space(r);
    ssize_t got;

    do
        got = recv(t->tcp, r->at + r->to, n < space ? n : space, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got > 0)
        r->to += (size_t)got;
    return got > 0 ? 1 : got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? 0 : -1;
}

/* To the owner, who is gone when it cannot. */
static int deliver(struct tunnel *t)
{
    struct room *r = &t->clear;

    while (room_held(r)) {
        ssize_t n = send(t->plain, r->at + r->from, room_held(r), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
        r->from += (size_t)n;
    }
    r->from = r->to = 0;
    return 1;
}

/* Records into `clear`, which is empty. 1: some bytes; 0: a whole record is not there; -1: the
 * other side's last word was heard; -2: what came is none of ours. */
static int decipher(struct tunnel *t)
{
    struct room *r = &t->clear;

    while (r->cap - r->to >= RECORD) {
        ssize_t n = tls->record_recv(t->session, r->at + r->to, r->cap - r->to);
        if (n > 0)
            r->to += (size_t)n;
        else if (n == 0)
            return r->to ? 1 : -1;      /* it is said again */
        else if (n == GNUTLS_E_AGAIN)
            break;
        else if (tls->error_is_fatal((int)n))
            return r->to ? 1 : -2;
    }
    return r->to > 0;
}

static bool encipher(struct tunnel *t, const char *bytes, size_t n)
{
    while (n > 0) {
        ssize_t sent = tls->record_send(t->session, bytes, n);
        if (sent < 0 && sent != GNUTLS_E_INTERRUPTED)
            return false;
        bytes += sent > 0 ? sent : 0;
        n -= sent > 0 ? (size_t)sent : 0;
    }
    return true;
}

static void lose_owner(struct tunnel *t)
{
    t->gone = true;
    t->since = clock_seconds();
}

/* Both return false when the tunnel is over at once. */
static bool inward(struct tunnel *t)
{
    for (int i = 0; i < ROUNDS; i++) {
        int done = deliver(t);
        if (done < 0)
            lose_owner(t);
        if (done <= 0 || t->in_over)
            return true;
        int got = decipher(t);
        if (got == 0 && (got = fill(t, t->cipher_in.cap)) == 0)
            return true;
        if (got == -2)
            return false;
        if (got < 0) {
            shutdown(t->plain, SHUT_WR);
            t->in_over = true;
            return true;
        }
    }
    t->more = true;
    return true;
}

static bool outward(struct tunnel *t)
{
    static char bulk[BULK];     /* of the pump's thread */

    for (int i = 0; i < ROUNDS; i++) {
        int done = flush(t);
        if (done <= 0)
            return done == 0;
        if (t->out_over) {
            if (!t->shut)
                shutdown(t->tcp, SHUT_WR);
            t->shut = true;
            return !t->gone && !t->in_over;
        }
        ssize_t n = recv(t->plain, bulk, sizeof bulk, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return true;
        if (n < 0 && errno == EINTR)
            continue;
        if (n > 0 && !encipher(t, bulk, (size_t)n))
            return false;
        if (n <= 0) {           /* an error: closed, with bytes that the owner did not read */
            tls->bye(t->session, GNUTLS_SHUT_WR);
            t->out_over = true;
        }
    }
    t->more = true;
    return true;
}

/* ------------------------------------------------------------ until the key was shown */

static size_t refusal(enum err_code code, const char *text, char out[WIRE_HEADER + 256])
{
    struct wire_header h = { .kind = WIRE_REFUSED, .number = (uint64_t)code,
                             .length = strlen(text) };

    wire_pack(&h, (unsigned char *)out);
    memcpy(out + WIRE_HEADER, text, h.length);
    return WIRE_HEADER + (size_t)h.length;
}

/* To our own side, which has called. */
static bool explain(struct tunnel *t, enum err_code code, const char *what)
{
    struct sockaddr_storage at;
    socklen_t n = sizeof at;
    char name[80] = "the other side", text[256], message[WIRE_HEADER + 256];

    if (!t->calls)
        return false;
    if (getpeername(t->tcp, (struct sockaddr *)&at, &n) == 0)
        wire_name(&at, name, sizeof name);
    snprintf(text, sizeof text, "%s%s", code == ERR_DENIED ? "" : name, what);
    send(t->plain, message, refusal(code, text, message), MSG_NOSIGNAL | MSG_DONTWAIT);
    return false;
}

/* To one who has called, said nothing, and so may wait for the challenge in the clear. */
static bool explain_tls(struct tunnel *t)
{
    char name[80] = "this port", text[256], message[WIRE_HEADER + 256];

    if (t->calls || t->heard)
        return false;
    wire_name(&t->name, name, sizeof name);
    snprintf(text, sizeof text, "%s uses TLS alone (call it as tls:%s)", name, name);
    send(t->tcp, message, refusal(ERR_DENIED, text, message), MSG_NOSIGNAL | MSG_DONTWAIT);
    return false;
}

static bool begin(struct tunnel *t)
{
    unsigned flags = GNUTLS_NONBLOCK | GNUTLS_NO_TICKETS;

    if (tls->init(&t->session, flags | (t->calls ? GNUTLS_CLIENT : GNUTLS_SERVER)) < 0) {
        t->session = NULL;
        return false;
    }
    tls->session_set_ptr(t->session, t);
    tls->transport_set_ptr(t->session, t);
    tls->transport_set_push_function(t->session, push);
    tls->transport_set_pull_function(t->session, pull);
    tls->transport_set_pull_timeout_function(t->session, pull_ready);
    return tls->priority_set(t->session, priority) == 0 &&
           tls->credentials_set(t->session, GNUTLS_CRD_PSK,
                                t->calls ? (void *)callers : (void *)listeners) == 0;
}

static bool finish(struct tunnel *t)
{
    if (tls->kx_get(t->session) != GNUTLS_KX_ECDHE_PSK)
        return explain(t, ERR_DENIED, "the token is not this job's");
    if (room_grow(&t->cipher_in, CIPHER) < 0 || room_grow(&t->cipher_out, CIPHER) < 0 ||
        room_grow(&t->clear, BULK) < 0)
        return false;
    explicit_bzero(t->key, KEY);
    t->up = t->more = true;
    return true;
}

/* Is it a plain listener that answers? Those speak first. 1: yes; 0: no; -1: not enough to tell. */
static int is_plain(const struct tunnel *t)
{
    size_t n = room_held(&t->cipher_in);

    if (memcmp(t->cipher_in.at, "musW", n < 4 ? n : 4) != 0)
        return 0;
    return n < 8 ? -1 : 1;
}

/* Bytes of a stranger, or of one who was called. 1: GnuTLS may look at them; 0: wait; -1: over. */
static int hear(struct tunnel *t)
{
    size_t most = t->calls ? CIPHER : SHAKE_BYTES;
    size_t before = t->cipher_in.to;
    int got = t->heard < most ? fill(t, most - t->heard) : -1;

    if (got <= 0)
        return got;
    t->heard += t->cipher_in.to - before;
    if (!t->calls || t->looked)
        return 1;
    int plain = is_plain(t);
    t->looked = plain == 0;
    if (plain <= 0)
        return plain == 0;
    /* A REFUSED is from one that uses TLS and did not hear us in time: it is to be called again. */
    if (t->cipher_in.at[6] != WIRE_REFUSED)
        explain(t, ERR_INVALID, " does not use TLS (it is another's, or its job was started "
                                "without --tls: then call it without tls:)");
    return -1;
}

static bool shake(struct tunnel *t)
{
    if (!t->session && !begin(t))
        return false;
    for (;;) {
        int rc = tls->handshake(t->session);
        flush(t);
        if (rc == 0)
            return finish(t);
        if (rc == GNUTLS_E_FATAL_ALERT_RECEIVED)
            return explain(t, ERR_DENIED, "the token is not this job's");
        if (tls->error_is_fatal(rc)) {
            tls->alert_send_appropriate(t->session, rc);
            flush(t);
            return explain(t, ERR_INVALID, " does not speak TLS as a job of muster's does");
        }
        int heard = hear(t);
        if (heard <= 0)
            return heard == 0;
    }
}

/* ------------------------------------------------------------ the thread */

static void tunnel_free(struct tunnel *t)
{
    if (t->session)
        tls->deinit(t->session);
    if (t->plain >= 0)
        close(t->plain);
    if (t->tcp >= 0)
        close(t->tcp);
    free(t->cipher_in.at);
    free(t->cipher_out.at);
    free(t->clear.at);
    explicit_bzero(t->key, KEY);
    free(t);
}

static void watch(const struct tunnel *t, struct pollfd p[2])
{
    bool out = t->cipher_out.from < t->cipher_out.to, in = t->clear.from < t->clear.to;
    short plain = (short)((t->up && !out && !t->out_over ? POLLIN : 0) | (in ? POLLOUT : 0));
    short tcp = (short)((out ? POLLOUT : 0) | (!in && !t->in_over && !t->gone ? POLLIN : 0));

    /* That the owner has closed is always of interest, once; TCP's end only in its turn. */
    p[0] = (struct pollfd){ t->gone ? -1 : t->plain, plain, 0 };
    p[1] = (struct pollfd){ tcp ? t->tcp : -1, tcp, 0 };
}

/* Milliseconds until something is due without an event. */
static int patience(struct tunnel *const *of, int n)
{
    int ms = -1;

    for (int i = 0; i < n; i++) {
        if (of[i]->more || !of[i]->session)
            return 0;
        if ((!of[i]->up && !of[i]->calls) || of[i]->gone)
            ms = 100;
    }
    return ms;
}

static bool is_late(const struct tunnel *t, double now)
{
    double age = now - t->since;

    if (t->up)
        return t->gone && age > LINGER_SECONDS;
    return !t->calls && age > (t->heard ? SHAKE_SECONDS : SILENT_SECONDS);
}

static void turn(struct tunnel *t, const struct pollfd p[2], double now, int *shakes)
{
    bool late = is_late(t, now), fresh = !t->session;

    if (!p[0].revents && !p[1].revents && !t->more && !late && !fresh)
        return;
    if (p[0].revents & (POLLHUP | POLLERR))
        lose_owner(t);
    if (!t->up && !t->gone && !late && ++*shakes > SHAKES_A_ROUND) {
        t->more = true;         /* in the next round */
        return;
    }
    t->more = false;
    if (late && t->up)
        t->over = true;
    else if (!t->up)
        t->over = late || t->gone ? !explain_tls(t) : !shake(t);
    else
        t->over = (!t->gone && !inward(t)) || !outward(t);
}

/* The list as an array; of too many strangers the first to come is dropped. */
static int list_all(struct tunnel **of, struct pollfd *p)
{
    struct tunnel *oldest = NULL;
    int n = 0, strangers = 0;

    for (struct tunnel *t = pump.all; t; t = t->next) {
        if (!t->up && !t->calls) {
            strangers++;
            oldest = t;
        }
        watch(t, p + 2 * n);
        of[n++] = t;
    }
    if (strangers > SHAKERS) {
        oldest->gone = oldest->more = true;
        oldest->heard = 1;      /* no word to it */
    }
    return n;
}

static void remove_over(void)
{
    for (struct tunnel **at = &pump.all; *at;) {
        struct tunnel *t = *at;
        if (t->over) {
            *at = t->next;
            pump.n--;
            tunnel_free(t);
        } else {
            at = &t->next;
        }
    }
}

static void *run(void *arg)
{
    static struct tunnel *of[TUNNELS];
    static struct pollfd p[2 * TUNNELS + 1];
    uint64_t count;

    (void)arg;
    for (;;) {
        pthread_mutex_lock(&pump.lock);
        remove_over();
        bool stop = pump.stop;
        int n = list_all(of, p), shakes = 0;
        pthread_mutex_unlock(&pump.lock);
        if (stop)
            return NULL;
        p[2 * n] = (struct pollfd){ pump.wake, POLLIN, 0 };
        poll(p, (nfds_t)(2 * n + 1), patience(of, n));
        if (p[2 * n].revents && read(pump.wake, &count, sizeof count) < 0)
            count = 0;          /* nobody has woken us after all */
        double now = clock_seconds();
        for (int i = 0; i < n; i++)
            turn(of[i], p + 2 * i, now, &shakes);
    }
}

static void wake(void)
{
    uint64_t one = 1;
    ssize_t n = write(pump.wake, &one, sizeof one);

    (void)n;                    /* full: it is awake anyway */
}

/* ------------------------------------------------------------ the process */

/* GnuTLS is taken apart when the process ends: nobody may be in it then. */
static void stop_pump(void)
{
    if (pump.pid != getpid())
        return;
    tunnel_drain(EXIT_MS);
    pthread_mutex_lock(&pump.lock);
    pump.stop = true;
    pthread_mutex_unlock(&pump.lock);
    wake();
    pthread_join(pump.thread, NULL);
}

static void before_fork(void)
{
    pthread_mutex_lock(&pump.lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&pump.lock);
}

/* A forked process has no such thread, and its parent's tunnels are not its own: held open here,
 * they would not end with the parent. */
static void in_child(void)
{
    for (const struct tunnel *t = pump.all; t; t = t->next) {
        close(t->plain);
        close(t->tcp);
    }
    if (pump.pid)
        close(pump.wake);
    pump.pid = 0;
    pump.all = NULL;
    pump.n = 0;
    pthread_mutex_unlock(&pump.lock);
}

/* Under the lock. */
static int start_pump(void)
{
    static bool registered;
    sigset_t all, before;

    if (pump.pid == getpid())
        return 0;
    pump.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (pump.wake < 0)
        return errno;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);        /* signals are for the others */
    int why = pthread_create(&pump.thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (why) {
        close(pump.wake);
        return why;
    }
    pump.pid = getpid();
    if (!registered)
        registered = pthread_atfork(before_fork, after_fork, in_child) == 0 &&
                     atexit(stop_pump) == 0;
    return 0;
}

int tunnel_start(struct err *err)
{
    pthread_mutex_lock(&pump.lock);
    int why = start_pump();
    pthread_mutex_unlock(&pump.lock);
    return why ? err_set(err, ERR_NOMEM, "no thread for TLS: %s", strerror(why)) : 0;
}

static void key_of(const char *token, unsigned char out[KEY])
{
    static const char use[] = "muster tls key";
    struct hmac_sha256_ctx ctx;

    hmac_sha256_set_key(&ctx, strlen(token), (const uint8_t *)token);
    hmac_sha256_update(&ctx, sizeof use - 1, (const uint8_t *)use);
    hmac_sha256_digest(&ctx, KEY, out);
}

static struct tunnel *tunnel_new(int tcp, const char *token, bool calls)
{
    struct tunnel *t = calloc(1, sizeof *t);
    socklen_t n = sizeof t->name;

    if (!t) {
        close(tcp);
        return NULL;
    }
    *t = (struct tunnel){ .plain = -1, .tcp = tcp, .calls = calls, .since = clock_seconds() };
    key_of(token, t->key);
    if (getsockname(tcp, (struct sockaddr *)&t->name, &n) < 0 ||
        room_grow(&t->cipher_in, SHAKE_BYTES) < 0 || room_grow(&t->cipher_out, SHAKE_BYTES) < 0) {
        tunnel_free(t);
        return NULL;
    }
    return t;
}

/* On the list; `end` is the owner's. 0 or an errno. */
static int tunnel_add(struct tunnel *t, int end)
{
    pthread_mutex_lock(&pump.lock);
    int why = start_pump();
    if (!why && pump.n >= TUNNELS)
        why = EMFILE;
    if (!why) {
        t->end = end;
        t->next = pump.all;
        pump.all = t;
        pump.n++;
    }
    pthread_mutex_unlock(&pump.lock);
    return why;
}

int tunnel_open(int tcp, const char *token, bool calls)
{
    int pair[2] = { -1, -1 }, why;
    struct tunnel *t = tunnel_new(tcp, token, calls);

    assert(tls);
    if (!t) {
        errno = ENOMEM;
        return -1;
    }
    why = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0 ? errno : 0;
    t->plain = pair[1];
    setsockopt(tcp, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &(int){ BULK }, sizeof(int));
    if (!why)
        why = tunnel_add(t, pair[0]);
    if (!why) {
        wake();
        return pair[0];
    }
    tunnel_free(t);
    if (pair[0] >= 0)
        close(pair[0]);
    errno = why;
    return -1;
}

int tunnel_name(int end, struct sockaddr_storage *out)
{
    int rc = -1;

    pthread_mutex_lock(&pump.lock);
    for (const struct tunnel *t = pump.pid == getpid() ? pump.all : NULL; t && rc < 0; t = t->next)
        if (t->end == end) {    /* the newest one with that number */
            *out = t->name;
            rc = 0;
        }
    pthread_mutex_unlock(&pump.lock);
    return rc;
}

void tunnel_drain(int timeout_ms)
{
    double until = clock_seconds() + 1e-3 * timeout_ms;

    for (bool busy = true; busy && clock_seconds() < until;) {
        busy = false;
        pthread_mutex_lock(&pump.lock);
        for (const struct tunnel *t = pump.pid == getpid() ? pump.all : NULL; t; t = t->next) {
            struct pollfd p = { t->plain, 0, 0 };
            busy |= poll(&p, 1, 0) > 0 && p.revents & POLLHUP;
        }
        pthread_mutex_unlock(&pump.lock);
        if (busy)
            poll(NULL, 0, 1);
    }
}
