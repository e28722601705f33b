/* runtime/tunnel.h - TLS 1.3 for code that speaks through file descriptors
 *
 * Whoever opens a tunnel gives a connected TCP socket and gets one end of a socketpair, which it
 * uses as it would use the socket: poll, send, recv, shutdown, close. One thread of the process
 * moves the bytes of all tunnels between their other ends and TLS. Nothing else in the program
 * knows of TLS but wire.c, which opens them.
 *
 * There are no certificates. Both sides have the job's token, from which a key is made that both
 * must show (TLS 1.3 with an external pre-shared key), together with a fresh Diffie-Hellman
 * exchange: what was recorded stays secret when the token is known later.
 *
 *   1. Ends pass through in both directions: what was sent before comes first, then the end. A
 *      process that was killed is seen by the others at once, as without TLS. Messages have a
 *      length, so that an end which somebody else brings about cuts no message short unseen.
 *      An owner who closes before hands were shaken has given up: then nothing is sent.
 *   2. A tunnel holds BULK bytes at most in each direction besides the kernel's buffers: who sends
 *      faster than the other takes has to wait, as without TLS.
 *   3. Until a caller has shown the key it may send 4,096 bytes and take five seconds; of more than
 *      128 such callers the first to come is dropped. The thread never waits for any of them.
 *
 * A failure before the key was shown comes to the end that called as a message REFUSED (wire.h): a
 * sentence, where the challenge would be.
 */
#ifndef MUSTER_RUNTIME_TUNNEL_H
#define MUSTER_RUNTIME_TUNNEL_H

#include <stdbool.h>
#include <sys/socket.h>

#include "base/err.h"

/* Loads GnuTLS: ERR_MISSING where there is none. Before tunnel_open, once for a process or for one
 * that it was forked from. */
int tunnel_load(struct err *err);
/* The thread, before it is needed: it runs on the cores that this thread has now. */
int tunnel_start(struct err *err);

/* Takes the socket (closed, also on failure) and returns the end to use; -1: errno says why. Does
 * not wait: both sides' hands are shaken behind it. `calls`: this side has called. */
int tunnel_open(int tcp, const char *token, bool calls);

/* The own name of the socket behind an end that tunnel_open returned. -1: it is none. */
int tunnel_name(int end, struct sockaddr_storage *out);

/* Until what was written to ends that are closed has been handed to the kernel, or the time is
 * over. A process that ends by exit() does so by itself. */
void tunnel_drain(int timeout_ms);

#endif
