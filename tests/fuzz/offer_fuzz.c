/* tests/fuzz/offer_fuzz.c - any bytes as a job's offer of rows */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "runtime/fetch.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct fetch_offer o = { 0 };
    struct err err = { 0 };
    size_t at = 0;

    if (fetch_read_offer(bytes, n, &o, &err) < 0) {
        assert(err.text[0] && !o.n);
        return 0;
    }
    for (int i = 0; i < o.n; i++) {
        const struct blocks *b = o.blocks[i];
        OWN_BUF again = BUF_INIT;
        uint64_t last = b->head, end = b->head;
        blocks_pack(b, &again);
        at += 4;
        assert(again.n <= n - at && memcmp(again.data, bytes + at, again.n) == 0);
        at += again.n;
        /* The blocks are the file behind its head, without a gap. */
        for (long k = 0; k < b->n; k++) {
            size_t size = blocks_place(b, k, &last);
            assert(last == end && size > 0 && size % b->row == 0);
            end += size;
        }
        assert(end == b->size);
    }
    assert(at == n);
    fetch_offer_done(&o);
    return 0;
}
