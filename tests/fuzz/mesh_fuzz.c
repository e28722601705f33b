/* tests/fuzz/mesh_fuzz.c - any bytes from a peer that knows the token
 *
 * The first byte says how far the peer behaves: it proves itself and then sends the rest; or it
 * greets as a worker does, and the rest are messages of the link. Whatever they are, the mesh gives
 * up the link, not itself.
 */
#include <assert.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#include "runtime/mesh.h"
#include "runtime/wire.h"

enum { FLOATS = 4096, ID = 7 };

static const char token[] = "0123456789abcdef0123456789abcdef";
static const char hello[] =
    "{\"id\":9,\"to\":7,\"host\":\"there\",\"pid\":1,\"fd\":-1,"
    "\"nonce\":\"00000000000000000000000000000000\",\"floats\":4096,\"board\":0,\"shards\":8}";
static const char ready[] = "{\"tcp\":true}";

static void greet(int fd)
{
    struct err err = { 0 };
    OWN_BUF body = BUF_INIT;
    struct wire_header h = { .kind = WIRE_HELLO, .length = sizeof hello - 1 };

    assert(wire_send(fd, &h, hello, 5000, &err) == 0);
    assert(wire_receive(fd, &h, &body, 5000, &err) == 0 && h.kind == WIRE_WELCOME);
    h = (struct wire_header){ .kind = WIRE_READY, .length = sizeof ready - 1 };
    assert(wire_send(fd, &h, ready, 5000, &err) == 0);
    assert(wire_receive(fd, &h, &body, 5000, &err) == 0 && h.kind == WIRE_READY);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct err err = { 0 };
    const struct mesh_config c = { .token = token, .listen = "127.0.0.1:0", .host = "here",
                                   .floats = FLOATS, .shards = 8, .no_shared_memory = true };
    struct mesh_peer self = { .id = ID, .to = 8 };
    OWN(mesh) m = NULL;
    OWN_FD int fd = -1;
    char waste[256];
    ssize_t got;

    if (n < 1)
        return 0;
    assert(mesh_new(&c, &m, &err) == 0);
    assert(mesh_enter(m, 1, &self, 1, 0, 1000, &err) == 0);
    assert(wire_connect(mesh_address(m), token, 5000, &fd, &err) == 0);
    assert(wire_prove(fd, token, 5000, &err) == 0);
    if (bytes[0] % 2)
        greet(fd);
    for (size_t at = 1; at < n; at += (size_t)got)
        if ((got = send(fd, bytes + at, n - at, MSG_NOSIGNAL)) <= 0)
            break;              /* it has seen enough */
    shutdown(fd, SHUT_WR);
    while (recv(fd, waste, sizeof waste, 0) > 0)
        ;
    assert(mesh_enter(m, 2, &self, 1, 0, 1000, &err) == 0);
    return 0;
}
