/* runtime/wire.h - messages between coordinator, workers and watchers
 *
 * A message is a header of 32 bytes and a body. Numbers are little endian. A connection begins with
 * a challenge in both directions: each side proves that it knows the job's token, which itself
 * never travels. Until then a stranger may send WIRE_HELLO_BYTES and no more. The size that a
 * header declares is checked against the limit of its kind before memory is taken, and memory grows
 * with the bytes that came, not with those that were announced.
 *
 *     listener -> caller    CHALLENGE  nonce (32)
 *     caller -> listener    CHALLENGE  nonce (32), HMAC(token, "muster caller" | both nonces)
 *     listener -> caller    CHALLENGE  HMAC(token, "muster listener" | both nonces), or REFUSED
 *
 * Blocking calls take a deadline in milliseconds; they are for workers. The coordinator, which
 * must not wait for anybody, feeds bytes to a `struct wire_in` as they come.
 */
#ifndef MUSTER_RUNTIME_WIRE_H
#define MUSTER_RUNTIME_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/own.h"

enum { WIRE_VERSION = 1, WIRE_HEADER = 32, WIRE_TOKEN_MIN = 16, WIRE_TOKEN_TEXT = 65 };

/* clang-format off */
/*    name        most bytes of the body */
#define WIRE_KINDS(X)                                                                            \
    X(CHALLENGE,                   64)  /* see above */                                          \
    X(HELLO,                    65536)  /* JSON: who I am */                                     \
    X(WELCOME,                  65536)  /* JSON */                                               \
    X(REFUSED,                   1024)  /* a sentence */                                         \
    X(ROSTER,                 1 << 20)  /* JSON */                                               \
    X(READY,                     4096)  /* JSON */                                               \
    X(GO,                     1 << 20)  /* JSON */                                               \
    X(BEAT,                      4096)  /* JSON, may be empty */                                 \
    X(RESULTS,                1 << 20)  /* fields of struct step_result, packed */               \
    X(EVENT,                  1 << 20)  /* JSON */                                               \
    X(STATE,        INT64_C(1) << 36)   /* a checkpoint's bytes, or a copy of a trainer's state */ \
    X(POST,         INT64_C(1) << 34)   /* between workers: a part of a region, see mesh.h */    \
    X(ASK,                      65536)  /* JSON: resize, status, drain */                        \
    X(STATUS,                 1 << 20)  /* JSON line for watchers */                             \
    X(BYE,                       4096)
/* clang-format on */

enum wire_kind {
#define X(name, most) WIRE_##name,
    WIRE_KINDS(X)
#undef X
    WIRE_KINDS_N
};
enum { WIRE_HELLO_BYTES = WIRE_HEADER + 64 };

struct wire_header {
    enum wire_kind kind;
    uint64_t generation;
    uint64_t number;            /* what it counts depends on the kind: a step, a post */
    uint64_t length;            /* of the body */
};

/* Bytes of a header; and back, ERR_INVALID for a wrong magic, version, kind or length. */
void wire_pack(const struct wire_header *h, unsigned char out[WIRE_HEADER]);
int wire_unpack(const unsigned char in[WIRE_HEADER], struct wire_header *out, struct err *err);
const char *wire_kind_name(enum wire_kind kind);

/* ---- the token ---- */

/* 256 random bits as hex. */
int wire_token_new(char out[WIRE_TOKEN_TEXT], struct err *err);
/* ERR_INVALID: NULL or shorter than WIRE_TOKEN_MIN. */
int wire_token_check(const char *token, struct err *err);

/* ---- blocking, on a connected socket ---- */

/* Whole messages. `timeout_ms` < 0: no limit. ERR_AGAIN: the time is over (of a receive: and
 * nothing of the message had come, so that one may ask again); ERR_IO: closed, or stopped half way;
 * ERR_INVALID: not a message. */
int wire_send(int fd, const struct wire_header *h, const void *body, int timeout_ms,
              struct err *err);
/* Several pieces as one body (h->length is their sum). */
struct wire_piece {
    const void *at;
    size_t n;
};
int wire_send_pieces(int fd, const struct wire_header *h, const struct wire_piece *piece, int n,
                     int timeout_ms, struct err *err);
/* What goes without waiting; *v and *n move on. 1: all of it; 0: no room now; -1: errno says. */
int wire_push(int fd, struct iovec **v, int *n);
/* Header and body; the body takes the place of what is in the buf and is NUL terminated. */
int wire_receive(int fd, struct wire_header *h, struct buf *body, int timeout_ms,
                 struct err *err);

/* The challenge, from the caller's and from the listener's side. ERR_DENIED: not the same token. */
int wire_prove(int fd, const char *token, int timeout_ms, struct err *err);
int wire_check(int fd, const char *token, int timeout_ms, struct err *err);

/* TCP. "HOST:PORT", "[v6]:PORT", and "tls:" before either where the connection is to be TLS, with
 * the job's token as its key (tunnel.h); `out_address` says the same, and has the port that a
 * listener on port 0 was given. Descriptors are close-on-exec, sockets without delay (TCP_NODELAY).
 * ERR_AGAIN: nobody answered in time. A failure of TLS shows in wire_prove. */
#define WIRE_TLS "tls:"
bool wire_is_tls(const char *address);
int wire_connect(const char *address, const char *token, int timeout_ms, int *out_fd,
                 struct err *err);
int wire_listen(const char *address, int *out_fd, char *out_address, size_t size, struct err *err);
/* The address of this host that a connection has, of the same kind and with port 0. */
int wire_here(int fd, char *out, size_t size, struct err *err);
/* "HOST:PORT" or "[v6]:PORT"; -1: it has no name. */
int wire_name(const struct sockaddr_storage *at, char *out, size_t size);
/* An address of a listener that stands for all of a host's: nobody else can call it. */
bool wire_is_any(const char *address);
/* The next caller, ready for wire_check. -1: none now (errno as accept4 left it). `address` is what
 * wire_listen has said. */
int wire_accept(int listener, const char *address, const char *token);

/* ---- for a loop that must not block ---- */

/* Takes bytes as they come and hands out whole messages. With a token the challenge of a listener
 * comes first: what must be sent is appended to `reply`, also when feeding fails (the caller is
 * told why: send it, then close). Without one (NULL) it is proved from the start. After a failure
 * every feed fails; whole messages from before are still handed out. */
struct wire_in;
struct wire_in *wire_in_new(const char *token, struct buf *reply); /* NULL: no memory */
void wire_in_free(struct wire_in *w);
OWN_DEFINE(wire_in)
bool wire_in_proved(const struct wire_in *w);
int wire_in_feed(struct wire_in *w, const void *bytes, size_t n, struct buf *reply,
                 struct err *err);
/* 1: a message (body borrowed until the next call, NUL terminated); 0: none yet. */
int wire_in_next(struct wire_in *w, struct wire_header *h, const char **out_body);
void wire_append(struct buf *out, const struct wire_header *h, const void *body);

#endif
