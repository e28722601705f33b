/* tests/fuzz/wire_fuzz.c - any bytes from the other side of a connection
 *
 * The first byte says from whom: a stranger; a caller that has proved itself, over the real
 * challenge; a connection that needs no proof. The second says in what pieces the rest comes. A
 * stranger is never handed a message and is heard for a bounded number of bytes; of the others
 * every message is exactly what was sent.
 */
#include <assert.h>
#include <nettle/hmac.h>
#include <stdint.h>
#include <string.h>

#include "runtime/wire.h"

static const char token[] = "0123456789abcdef0123456789abcdef";

/* What wire_prove would answer to the challenge in `reply`. */
static void prove(struct wire_in *w, struct buf *reply)
{
    struct err err = { 0 };
    OWN_BUF out = BUF_INIT;
    struct hmac_sha256_ctx ctx;
    uint8_t answer[64] = { 1, 2, 3 };

    assert(reply->n == WIRE_HEADER + 32);
    hmac_sha256_set_key(&ctx, sizeof token - 1, (const uint8_t *)token);
    hmac_sha256_update(&ctx, 13, (const uint8_t *)"muster caller");
    hmac_sha256_update(&ctx, 32, (const uint8_t *)reply->data + WIRE_HEADER);
    hmac_sha256_update(&ctx, 32, answer);
    hmac_sha256_digest(&ctx, 32, answer + 32);
    wire_append(&out, &(struct wire_header){ .kind = WIRE_CHALLENGE, .length = 64 }, answer);
    assert(wire_in_feed(w, out.data, out.n, reply, &err) == 0);
    assert(wire_in_proved(w));
}

/* Messages so far, each compared with the bytes it was made of. Returns how many those are. */
static size_t take_messages(struct wire_in *w, const uint8_t *bytes, size_t used, size_t fed)
{
    struct wire_header h;
    unsigned char head[WIRE_HEADER];
    const char *body;

    while (wire_in_next(w, &h, &body)) {
        assert(wire_in_proved(w));
        wire_pack(&h, head);
        assert(fed - used >= WIRE_HEADER + h.length);
        assert(memcmp(head, bytes + used, WIRE_HEADER) == 0);
        assert(memcmp(body, bytes + used + WIRE_HEADER, (size_t)h.length) == 0);
        assert(body[h.length] == '\0' && h.kind != WIRE_CHALLENGE);
        used += WIRE_HEADER + (size_t)h.length;
    }
    return used;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct err err = { 0 };
    struct wire_header h;
    OWN_BUF reply = BUF_INIT;

    if (n < 2)
        return 0;
    const int from = bytes[0] % 3;
    const size_t piece = (size_t)bytes[1] + 1;
    bytes += 2;
    n -= 2;
    if (n >= WIRE_HEADER && wire_unpack(bytes, &h, &err) == 0) {
        unsigned char again[WIRE_HEADER];
        wire_pack(&h, again);
        assert(memcmp(again, bytes, WIRE_HEADER) == 0);
    } else if (n >= WIRE_HEADER) {
        assert(err.code == ERR_INVALID && err.text[0]);
    }

    OWN(wire_in) w = wire_in_new(from == 2 ? NULL : token, &reply);
    assert(w);
    if (from == 1)
        prove(w, &reply);
    const bool proved = wire_in_proved(w);
    size_t used = 0;
    int rc = 0;
    for (size_t at = 0; at < n && rc == 0; at += piece) {
        size_t take = n - at < piece ? n - at : piece;
        err = (struct err){ 0 };
        rc = wire_in_feed(w, bytes + at, take, &reply, &err);
        assert(rc == 0 || err.text[0]);
        assert(proved || rc < 0 || at + take <= WIRE_HELLO_BYTES);
        used = take_messages(w, bytes, used, at + take);
    }
    assert(proved == wire_in_proved(w) && (proved || used == 0));
    if (rc < 0)
        assert(wire_in_feed(w, bytes, 1, &reply, &err) < 0);
    return 0;
}
